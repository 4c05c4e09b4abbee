"""Date and time functions. There is no interval type: what needs one is absent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal

from instar import errors
from instar.sql.functions.date_formats import to_char
from instar.sql.functions.model import Context, Function, Sql
from instar.sql.functions.rendering import quote, render_cast, render_literal, repeatable
from instar.sql.functions.strings import constant_text
from instar.sql.functions.udfs import duckdb_type, register
from instar.types import DATE, DOUBLE, INTEGER, NUMERIC, TEXT, TIMESTAMP, TIMESTAMPTZ, Kind, Type
from instar.values import compile_cast, datetimes
from instar.values.arithmetic import add, divide
from instar.values.datetimes import DAY, HOUR, MINUTE, SECOND, civil_from_days, days_from_civil
from instar.values.numbers import WIDE

_JULIAN_EPOCH = 2_440_588  # the Julian day of 1970-01-01
_FIELDS = {
    alias: field
    for field, aliases in {
        "year": "years y yr yrs",
        "month": "months mon mons",
        "day": "days d",
        "hour": "hours h hr hrs",
        "minute": "minutes m min mins",
        "second": "seconds s sec secs",
        "millisecond": "milliseconds ms msec msecs msecond mseconds",
        "microsecond": "microseconds us usec usecs usecond useconds",
        "week": "weeks w",
        "quarter": "qtr",
        "decade": "decades dec decs",
        "century": "centuries c cent",
        "millennium": "millennia mil mils",
    }.items()
    for alias in (field, *aliases.split())
} | {name: name for name in "epoch dow isodow doy isoyear julian timezone timezone_hour timezone_minute".split()}


def _unsupported(field: str, kind: Kind, known: bool) -> errors.Error:
    if known:
        return errors.error(errors.FEATURE_NOT_SUPPORTED, f'unit "{field}" not supported for type {kind.value}')
    return errors.error(errors.INVALID_PARAMETER, f'unit "{field}" not recognized for type {kind.value}')


# --- extract ---------------------------------------------------------------------------------------------------------


def iso_week(days: int) -> tuple[int, int]:
    """(ISO year, ISO week) of a date."""
    thursday = days - (days + 3) % 7 + 3
    year = civil_from_days(thursday)[0]
    return year, (thursday - days_from_civil(year, 1, 1)) // 7 + 1


def _signed_year(year: int) -> int:
    """There is no year 0: what the calendar counts as 0 is 1 BC, written -1."""
    return year if year > 0 else year - 1


def _century(year: int, length: int) -> int:
    """The century or millennium that a year of the calendar is in."""
    return (year + length - 1) // length if year > 0 else -((length - (year - 1)) // length)


def _date_field(field: str, days: int) -> int | None:
    """A field that depends on the day alone; None for others."""
    year, month, day = civil_from_days(days)
    if field == "week":
        return iso_week(days)[1]
    if field == "isoyear":
        return _signed_year(iso_week(days)[0])
    return {
        "year": _signed_year(year),
        "month": month,
        "day": day,
        "quarter": (month + 2) // 3,
        "decade": year // 10,
        "century": _century(year, 100),
        "millennium": _century(year, 1000),
        "dow": (days + 4) % 7,
        "isodow": (days + 3) % 7 + 1,
        "doy": days - days_from_civil(year, 1, 1) + 1,
    }.get(field)


def _micros(value: int, scale: int) -> Decimal:
    """Microseconds as a numeric with this many of their decimal places."""
    return Decimal(value).scaleb(-scale, WIDE)


def _extract_date(field: str, days: int) -> Decimal:
    name = _FIELDS.get(field.lower())
    found = None if name is None else _date_field(name, days)
    if found is None:
        if name == "epoch":
            return Decimal(days * 86_400)
        if name == "julian":
            return Decimal(days + _JULIAN_EPOCH)
        raise _unsupported(field, Kind.DATE, name is not None)
    return Decimal(found)


def _extract_timestamp(field: str, local: int, kind: Kind = Kind.TIMESTAMP) -> Decimal:
    name = _FIELDS.get(field.lower())
    days, micros = divmod(local, DAY)
    found = None if name is None else _date_field(name, days)
    if found is not None:
        return Decimal(found)
    if name == "hour":
        return Decimal(micros // HOUR)
    if name == "minute":
        return Decimal(micros // MINUTE % 60)
    if name == "second":
        return _micros(micros % MINUTE, 6)
    if name == "millisecond":
        return _micros(micros % MINUTE, 3)
    if name == "microsecond":
        return Decimal(micros % MINUTE)
    if name == "epoch":
        return _micros(local, 6)
    if name == "julian":
        return _julian(days, micros)
    raise _unsupported(field, kind, name is not None)


def _julian(days: int, micros: int) -> Decimal:
    return add(Decimal(days + _JULIAN_EPOCH), divide(Decimal(micros), Decimal(DAY)))


def _extract_timestamptz(field: str, instant: int, zone: str) -> Decimal:
    name = _FIELDS.get(field.lower())
    if name == "epoch":
        return _micros(instant, 6)
    offset = datetimes.offset_at(instant, zone)
    seconds = offset // SECOND
    sign = -1 if seconds < 0 else 1
    if name == "timezone":
        return Decimal(seconds)
    if name == "timezone_hour":
        return Decimal(sign * (abs(seconds) // 3600))
    if name == "timezone_minute":
        return Decimal(sign * (abs(seconds) // 60 % 60))
    return _extract_timestamp(field, instant + offset, Kind.TIMESTAMPTZ)


_extract_calls = {
    Kind.DATE: register("extract_date", _extract_date, [TEXT, DATE], NUMERIC),
    Kind.TIMESTAMP: register("extract_timestamp", _extract_timestamp, [TEXT, TIMESTAMP], NUMERIC),
    Kind.TIMESTAMPTZ: register("extract_timestamptz", _extract_timestamptz, [TEXT, TIMESTAMPTZ, TEXT], NUMERIC),
}
# Fields in which DuckDB agrees for every date of our range.
_NATIVE = {
    "month": "month({0})",
    "day": "day({0})",
    "quarter": "quarter({0})",
    "doy": "dayofyear({0})",
    "dow": "dayofweek({0})",
    "isodow": "isodow({0})",
    "year": "(year({0}) - CASE WHEN year({0}) <= 0 THEN 1 ELSE 0 END)",
    "hour": "hour({0})",
    "minute": "minute({0})",
}
_INTEGRAL = Type(Kind.NUMERIC, 10, 0)


def _render_extract(args: Sequence[Sql], context: Context) -> Sql:
    kind, literal = args[1].type.kind, constant_text(args[0])
    field = _FIELDS.get(literal.lower()) if literal is not None else None
    native = _NATIVE.get(field or "")
    has_field = kind is Kind.TIMESTAMP or (kind is Kind.DATE and field not in ("hour", "minute"))
    if native is not None and has_field and repeatable(args[1].text):
        text = native.format(args[1].text)
        return Sql(f"CAST({text} AS {duckdb_type(_INTEGRAL)})", _INTEGRAL)
    zone = (quote(context.zone),) if kind is Kind.TIMESTAMPTZ else ()
    return Sql(_extract_calls[kind](args[0].text, args[1].text, *zone), NUMERIC)


def _render_part(args: Sequence[Sql], context: Context) -> Sql:
    found = _render_extract(args, context)
    text = found.text if found.type == _INTEGRAL else f"CAST({found.text} AS VARCHAR)"
    return Sql(f"CAST({text} AS DOUBLE)", DOUBLE)


def _part_of_date(field: str, days: int) -> object:
    """date_part, unlike extract, takes a date for its first moment, so that it has hours."""
    closure = compile_cast(DATE, TIMESTAMP, True)
    assert closure is not None
    moment = closure(days)
    assert isinstance(moment, int)
    return _extract_timestamp(field, moment)


def _render_part_of_date(args: Sequence[Sql], context: Context) -> Sql:
    return _render_part([args[0], render_cast(args[1], TIMESTAMP, True, context)], context)


def _with_zone(closure: Callable[..., object]) -> Callable[..., object]:
    """A closure whose last argument is the zone, as one whose first is the context."""
    return lambda context, *args: closure(*args, context.zone)


def _as_double(closure: Callable[..., object]) -> Callable[..., object]:
    return lambda *args: float(str(closure(*args)))


def _extracts() -> list[Function]:
    found = []
    for type_, closure in ((DATE, _extract_date), (TIMESTAMP, _extract_timestamp)):
        found.append(Function("extract", (TEXT, type_), NUMERIC, closure, _render_extract))
    found.append(Function("date_part", (TEXT, DATE), DOUBLE, _as_double(_part_of_date), _render_part_of_date))
    part = _as_double(_extract_timestamp)
    found.append(Function("date_part", (TEXT, TIMESTAMP), DOUBLE, part, _render_part))
    zoned = _with_zone(_extract_timestamptz)
    arguments = (TEXT, TIMESTAMPTZ)
    found.append(Function("extract", arguments, NUMERIC, zoned, _render_extract, volatility="stable", context=True))
    found.append(
        Function("date_part", arguments, DOUBLE, _as_double(zoned), _render_part, volatility="stable", context=True)
    )
    return found


# --- date_trunc ------------------------------------------------------------------------------------------------------

_CLOCK_UNITS = {"hour": HOUR, "minute": MINUTE, "second": SECOND, "millisecond": 1000, "microsecond": 1}
_UNITS = _CLOCK_UNITS | {"day": DAY}


def _truncate(field: str, local: int, kind: Kind = Kind.TIMESTAMP) -> int:
    name = _FIELDS.get(field.lower())
    unit = _UNITS.get(name or "")
    if unit is not None:
        return local // unit * unit
    days = local // DAY
    year, month, _ = civil_from_days(days)
    if name == "week":
        return datetimes.check_timestamp((days - (days + 3) % 7) * DAY)
    if name == "quarter":
        month = (month - 1) // 3 * 3 + 1
    elif name in ("year", "decade", "century", "millennium"):
        month, year = 1, _first_year(name, year)
    elif name != "month":
        raise _unsupported(field, kind, name is not None)
    return datetimes.check_timestamp(days_from_civil(year, month, 1) * DAY)


def _first_year(name: str, year: int) -> int:
    if name == "decade":
        return year // 10 * 10
    length = {"year": 1, "century": 100, "millennium": 1000}[name]
    return (year - 1) // length * length + 1


def _truncate_zoned(field: str, instant: int, zone: str) -> int:
    offset = datetimes.offset_at(instant, zone)
    local = _truncate(field, instant + offset, Kind.TIMESTAMPTZ)
    if _FIELDS.get(field.lower()) in _CLOCK_UNITS:
        # Within an hour the offset stays: of an hour that a clock shows twice it may be the first one.
        return datetimes.check_timestamp(local - offset)
    return datetimes.to_utc(local, zone)


def _truncate_in_zone(field: str, instant: int, zone: str) -> int:
    return _truncate_zoned(field, instant, datetimes.zone_in_expression(zone))


_truncate_call = register("date_trunc", _truncate, [TEXT, TIMESTAMP], TIMESTAMP)
_truncate_zoned_call = register("date_trunc_zoned", _truncate_zoned, [TEXT, TIMESTAMPTZ, TEXT], TIMESTAMPTZ)
_truncate_in_zone_call = register("date_trunc_in_zone", _truncate_in_zone, [TEXT, TIMESTAMPTZ, TEXT], TIMESTAMPTZ)


def _render_truncate(args: Sequence[Sql], context: Context) -> Sql:
    literal = constant_text(args[0])
    field = _FIELDS.get(literal.lower()) if literal is not None else None
    if field in ("year", "quarter", "month", "week", "day", "hour", "minute", "second"):
        return Sql(f"date_trunc('{field}', {args[1].text})", TIMESTAMP)
    return Sql(_truncate_call(args[0].text, args[1].text), TIMESTAMP)


def _render_truncate_zoned(args: Sequence[Sql], context: Context) -> Sql:
    return Sql(_truncate_zoned_call(args[0].text, args[1].text, quote(context.zone)), TIMESTAMPTZ)


# --- construction and zones ------------------------------------------------------------------------------------------


def _make_date(year: int, month: int, day: int) -> int:
    calendar = year + 1 if year < 0 else year
    if year == 0 or not 1 <= month <= 12 or not 1 <= day <= datetimes.days_in_month(calendar, month):
        raise errors.error(errors.DATETIME_OVERFLOW, f"date field value out of range: {year}-{month:02d}-{day:02d}")
    return datetimes.check_date(days_from_civil(calendar, month, day))


def _make_timestamp(year: int, month: int, day: int, hour: int, minute: int, second: float) -> int:
    days = _make_date(year, month, day)
    valid = 0 <= hour <= 24 and 0 <= minute <= 59 and 0 <= second <= 60
    micros = hour * HOUR + minute * MINUTE + round(second * SECOND) if valid else DAY + 1
    if micros > DAY:
        raise errors.error(errors.DATETIME_OVERFLOW, f"time field value out of range: {hour}:{minute:02d}:{second:02g}")
    return datetimes.check_timestamp(days * DAY + micros)


def _to_timestamp(seconds: float) -> int:
    if not datetimes.MIN_TIMESTAMP <= seconds * SECOND <= datetimes.MAX_TIMESTAMP:
        raise errors.error(errors.DATETIME_OVERFLOW, f'timestamp out of range: "{seconds:g}"')
    # Rounded on the value counted from 2000, as PostgreSQL does: the last digit of a double depends on it.
    return datetimes.check_timestamp(round((seconds - 946_684_800) * SECOND) + 946_684_800 * SECOND)


def _at_zone(zone: str, instant: int) -> int:
    return datetimes.check_timestamp(datetimes.to_local(instant, datetimes.zone_in_expression(zone)))


def _in_zone(zone: str, local: int) -> int:
    return datetimes.to_utc(local, datetimes.zone_in_expression(zone))


def _zoned_char(instant: int, template: str, zone: str) -> str | None:
    return to_char(datetimes.to_local(instant, zone), template)


_zoned_char_call = register("to_char_zoned", _zoned_char, [TIMESTAMPTZ, TEXT, TEXT], TEXT)


def _render_zoned_char(args: Sequence[Sql], context: Context) -> Sql:
    return Sql(_zoned_char_call(args[0].text, args[1].text, quote(context.zone)), TEXT)


def _called(name: str, closure: Callable[..., object], arguments: Sequence[Type], result: Type) -> Function:
    suffix = "_".join(type_.kind.name.lower() for type_ in arguments)
    call = register(f"{name}_{suffix}", closure, arguments, result)
    return Function(name, tuple(arguments), result, closure, call(*(f"{{{i}}}" for i in range(len(arguments)))))


# --- the clock -------------------------------------------------------------------------------------------------------


def _clock(name: str, result: Type, read: Callable[[Context], int]) -> Function:
    return Function(
        name,
        (),
        result,
        read,
        lambda args, context: render_literal(read(context), result),
        volatility="stable",
        context=True,
    )


def _now(context: Context) -> int:
    return context.now


def _local_now(context: Context) -> int:
    return datetimes.to_local(context.now, context.zone)


def _today(context: Context) -> int:
    return _local_now(context) // DAY


_NOW = ("now", "current_timestamp", "transaction_timestamp", "statement_timestamp")

ENTRIES = (
    *_extracts(),
    *(_clock(name, TIMESTAMPTZ, _now) for name in _NOW),
    _clock("localtimestamp", TIMESTAMP, _local_now),
    _clock("current_date", DATE, _today),
    Function("date_trunc", (TEXT, TIMESTAMP), TIMESTAMP, _truncate, _render_truncate),
    Function(
        "date_trunc",
        (TEXT, TIMESTAMPTZ),
        TIMESTAMPTZ,
        _with_zone(_truncate_zoned),
        _render_truncate_zoned,
        volatility="stable",
        context=True,
    ),
    Function(
        "date_trunc",
        (TEXT, TIMESTAMPTZ, TEXT),
        TIMESTAMPTZ,
        _truncate_in_zone,
        _truncate_in_zone_call("{0}", "{1}", "{2}"),
    ),
    _called("make_date", _make_date, [INTEGER] * 3, DATE),
    _called("make_timestamp", _make_timestamp, [*[INTEGER] * 5, DOUBLE], TIMESTAMP),
    _called("to_timestamp", _to_timestamp, [DOUBLE], TIMESTAMPTZ),
    _called("to_char", to_char, [TIMESTAMP, TEXT], TEXT),
    Function(
        "to_char",
        (TIMESTAMPTZ, TEXT),
        TEXT,
        _with_zone(_zoned_char),
        _render_zoned_char,
        volatility="stable",
        context=True,
    ),
    # x AT TIME ZONE z is timezone(z, x).
    _called("timezone", _at_zone, [TEXT, TIMESTAMPTZ], TIMESTAMP),
    _called("timezone", _in_zone, [TEXT, TIMESTAMP], TIMESTAMPTZ),
)
