"""Dates and times: civil calendar, time zones, PostgreSQL's text forms of output (ISO), conversions.

What is read of texts is in `datetime_texts.py`.

Dates run from 4714-11-24 BC to 5874897-12-31, timestamps from 4714-11-24 BC to 294246-12-31 (64 bits of microseconds
since 1970, which is what DuckDB and Arrow can hold too). There is no infinity: 0A000.
"""

from __future__ import annotations

import datetime
import functools
import re
import zoneinfo
from collections.abc import Callable

from instar import errors
from instar.types import Kind
from instar.values.zone_abbreviations import ABBREVIATIONS

KINDS = frozenset({Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ})
SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

_CYCLE = 146_097  # days in 400 years


def days_from_civil(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 of a date in the proleptic Gregorian calendar; year 0 is 1 BC."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * _CYCLE + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def civil_from_days(days: int) -> tuple[int, int, int]:
    """(year, month, day) of days since 1970-01-01."""
    era, of_era = divmod(days + 719_468, _CYCLE)
    year_of_era = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    return era * 400 + year_of_era + (month <= 2), month, day


def days_in_month(year: int, month: int) -> int:
    """28 to 31."""
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


MAX_DATE = days_from_civil(5_874_897, 12, 31)
MIN_DATE = days_from_civil(-4713, 11, 24)
MIN_TIMESTAMP, MAX_TIMESTAMP = MIN_DATE * DAY, days_from_civil(294_247, 1, 1) * DAY - 1


def check_date(days: int) -> int:
    """`days` if it is in the range of date. Errors: 22008."""
    if MIN_DATE <= days <= MAX_DATE:
        return days
    raise errors.error(errors.DATETIME_OVERFLOW, "date out of range")


def check_timestamp(micros: int) -> int:
    """`micros` if it is in the range of timestamp. Errors: 22008."""
    if MIN_TIMESTAMP <= micros <= MAX_TIMESTAMP:
        return micros
    raise errors.error(errors.DATETIME_OVERFLOW, "timestamp out of range")


# --- time zones ------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def time_zone(name: str) -> datetime.tzinfo:
    """The zone of this name: tz database, an offset such as +02 or -05:30 (ISO's sign: east is positive), or one as
    POSIX writes it, such as UTC+3 or <-03>+3 (positive is west; no daylight saving time).

    Errors: 22023.
    """
    if name.upper() in ("UTC", "Z", "GMT", "ZULU"):
        return datetime.UTC
    match = _OFFSET.fullmatch(name)
    if match:
        seconds = _offset_seconds(match)
        if seconds is not None:
            return datetime.timezone(datetime.timedelta(seconds=seconds))
    try:
        return zoneinfo.ZoneInfo(name)
    except (KeyError, OSError, ValueError):
        known = _names_of_zones().get(name.lower())
        if known is not None:
            return zoneinfo.ZoneInfo(known)
    posix = _POSIX_NAME.fullmatch(name)
    seconds = _offset_seconds(posix)
    if seconds is not None:
        return datetime.timezone(datetime.timedelta(seconds=-seconds))
    raise _unknown_zone(name)


_OFFSET = re.compile(r"([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?", re.ASCII)
_POSIX_NAME = re.compile(r"(?:<[A-Za-z0-9+:-]{3,}>|[A-Za-z]{3,})([+-]?)(\d{1,2})(?::(\d{2}))?(?::(\d{2}))?", re.ASCII)
_HOURS = re.compile(r"\s*([+-]?\d{1,4}(?:\.\d*)?)\s*", re.ASCII)


def _offset_seconds(match: re.Match[str] | None) -> int | None:
    if match is None:
        return None
    hours, minutes, seconds = int(match[2]), int(match[3] or 0), int(match[4] or 0)
    if hours > 15 or minutes > 59 or seconds > 59:
        return None
    total = hours * 3600 + minutes * 60 + seconds
    return -total if match[1] == "-" else total


@functools.cache
def _names_of_zones() -> dict[str, str]:
    """The names of the tz database, by what they are in small letters."""
    return {name.lower(): name for name in zoneinfo.available_timezones()}


def zone_setting(name: str) -> str:
    """What SET timezone means by a zone, as a name for `time_zone`: a number is hours east of Greenwich, and is shown
    as POSIX writes it; an offset with minutes has POSIX's sign. Errors: 22023."""
    hours, clock = _HOURS.fullmatch(name), _POSIX.fullmatch(name)
    if hours:
        name = _posix_name(round(float(hours[1]) * 3600))
    elif clock:
        east = _offset_seconds(_OFFSET.fullmatch(zone_in_expression(name)))
        name = _posix_name(24 * 3600 if east is None else east)
    time_zone(name)
    return name


def _posix_name(east: int) -> str:
    return f"<{_offset_text(east)}>{_offset_text(-east)}"


_POSIX = re.compile(r"([+-]?)(\d{1,3})((?::\d{2}){0,2})", re.ASCII)


def zone_in_expression(name: str) -> str:
    """What AT TIME ZONE and date_trunc mean by a zone: an offset has POSIX's sign there, +03 is west of Greenwich.

    Errors: 22023.
    """
    match = _POSIX.fullmatch(name)
    if match:
        return f"{'+' if match[1] == '-' else '-'}{int(match[2]):02}{match[3]}"
    if name.startswith(("+", "-")):
        raise _unknown_zone(name)
    return ABBREVIATIONS.get(name.upper(), name)


def _unknown_zone(name: str) -> errors.Error:
    return errors.error(errors.INVALID_PARAMETER, f'time zone "{name}" not recognized')


_EPOCH = datetime.datetime(1970, 1, 1)
_FIRST = -719_162 * DAY + 2 * DAY  # from here to _LAST, datetime can do it
_LAST = 2_932_896 * DAY - 2 * DAY


def _in_datetime_range(micros: int) -> datetime.datetime:
    """The civil time, moved by whole 400-year cycles (same calendar, same rules) into the years of datetime."""
    if micros > _LAST:
        micros -= ((micros - _LAST) // (_CYCLE * DAY) + 1) * _CYCLE * DAY
    return _EPOCH + datetime.timedelta(microseconds=max(micros, _FIRST))


def _micros(offset: datetime.timedelta | None) -> int:
    assert offset is not None
    return offset.days * DAY + offset.seconds * SECOND


def offset_at(instant: int, zone: str) -> int:
    """Microseconds by which the zone is ahead of UTC at an instant."""
    tz = time_zone(zone)
    if tz is datetime.UTC:
        return 0
    return _micros(_in_datetime_range(instant).replace(tzinfo=datetime.UTC).astimezone(tz).utcoffset())


def to_local(instant: int, zone: str) -> int:
    """timestamptz to timestamp: the civil time in the zone."""
    return instant + offset_at(instant, zone)


def to_utc(local: int, zone: str) -> int:
    """timestamp to timestamptz: the instant of a civil time in the zone.

    A time that a clock skips is read with the offset before the change, one that it shows twice with the offset after
    it, as PostgreSQL does; in both cases that is the smaller of the two offsets. Errors: 22008.
    """
    tz = time_zone(zone)
    if tz is datetime.UTC:
        return local
    civil = _in_datetime_range(local).replace(tzinfo=tz)
    offset = min(_micros(civil.utcoffset()), _micros(civil.replace(fold=1).utcoffset()))
    return check_timestamp(local - offset)


# --- conversions -----------------------------------------------------------------------------------------------------


def conversion(source: Kind, target: Kind, zone: str) -> Callable[[int], int]:
    """The closure between two different ones of date, timestamp, timestamptz in the session's zone."""
    return {
        (Kind.DATE, Kind.TIMESTAMP): _date_to_timestamp,
        (Kind.DATE, Kind.TIMESTAMPTZ): lambda days: to_utc(_date_to_timestamp(days), zone),
        (Kind.TIMESTAMP, Kind.TIMESTAMPTZ): lambda local: to_utc(local, zone),
        (Kind.TIMESTAMP, Kind.DATE): _timestamp_to_date,
        (Kind.TIMESTAMPTZ, Kind.TIMESTAMP): lambda instant: check_timestamp(to_local(instant, zone)),
        (Kind.TIMESTAMPTZ, Kind.DATE): lambda instant: to_local(instant, zone) // DAY,
    }[source, target]


def _date_to_timestamp(days: int) -> int:
    if MIN_TIMESTAMP <= days * DAY <= MAX_TIMESTAMP:
        return days * DAY
    raise errors.error(errors.DATETIME_OVERFLOW, "date out of range for timestamp")


def _timestamp_to_date(local: int) -> int:
    return local // DAY


# --- output ----------------------------------------------------------------------------------------------------------


def date_text(days: int) -> str:
    """`2024-02-29`, `0044-03-15 BC`."""
    year, month, day = civil_from_days(days)
    if year > 0:
        return f"{year:04d}-{month:02d}-{day:02d}"
    return f"{1 - year:04d}-{month:02d}-{day:02d} BC"


def _clock_text(micros: int) -> str:
    seconds, fraction = divmod(micros, SECOND)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{fraction:06d}".rstrip("0") if fraction else text


def timestamp_text(local: int, suffix: str = "") -> str:
    """`2024-02-29 12:00:00.5`."""
    days, micros = divmod(local, DAY)
    date = date_text(days)
    era = ""
    if date.endswith(" BC"):
        date, era = date[:-3], " BC"
    return f"{date} {_clock_text(micros)}{suffix}{era}"


def timestamptz_text(instant: int, zone: str) -> str:
    """`2024-02-29 12:00:00+01`: in the zone, with its offset then."""
    offset = offset_at(instant, zone)
    return timestamp_text(instant + offset, _offset_text(offset // SECOND))


def _offset_text(seconds: int) -> str:
    sign = "-" if seconds < 0 else "+"
    minutes, second = divmod(abs(seconds), 60)
    hours, minute = divmod(minutes, 60)
    text = f"{sign}{hours:02d}"
    if minute or second:
        text += f":{minute:02d}"
    return f"{text}:{second:02d}" if second else text
