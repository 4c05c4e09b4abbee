"""Dates and times from texts, as PostgreSQL reads them (datestyle ISO, MDY): its documentation, appendix B.1.

A text is cut into fields by what they begin with (`_fields`); then each field is taken for what it may still be, given
those before it: `1999-01-08`, `20040715T120000`, `Jan 8, 99 BC`, `J2451187`, `040506.5 PST`. One that is there twice,
or has no meaning left, makes the text invalid (22007). There is no infinity, and no day that depends on today: 0A000.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from typing import NamedTuple

from instar import errors
from instar.values.datetimes import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    check_date,
    check_timestamp,
    civil_from_days,
    days_from_civil,
    days_in_month,
    time_zone,
    to_utc,
)
from instar.values.zone_abbreviations import ABBREVIATIONS

# What most texts look like: in one step.
_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(Z|[+-](?:0\d|1[0-5])(?::?[0-5]\d)?)?)?\Z",
    re.ASCII,
)
_SPACE = " \t\n\r\v\f"

_MONTHS = {
    name: number
    for number, names in enumerate(
        "jan january|feb february|mar march|apr april|may|jun june|jul july|aug august|sep sept september|"
        "oct october|nov november|dec december".split("|"),
        start=1,
    )
    for name in names.split()
}
_WEEKDAYS = frozenset(
    "sun sunday mon monday tue tues tuesday wed weds wednesday thu thur thurs thursday fri friday sat saturday".split()
)
_JULIAN = frozenset({"j", "jd", "julian"})
_IGNORED = frozenset({"at", "on"})
# Words that are no names of zones, whatever follows them.
_WORDS = frozenset(_MONTHS) | _WEEKDAYS | _JULIAN | _IGNORED | {"ad", "bc", "am", "pm", "t", "dst"}
_JULIAN_EPOCH = 2_440_588  # the Julian day of 1970-01-01
_MOST_DIGITS = 9  # of one number: more are beyond every range
_MOST_HOURS = 15  # of an offset

# What a text has told so far.
_YEAR, _MONTH, _DAY, _OF_YEAR, _CLOCK, _ZONE, _ERA, _HALF, _WEEKDAY = (1 << bit for bit in range(9))
_DATE = _YEAR | _MONTH | _DAY
# What a number is (second part of the key: one of three digits or more, where that counts), given those before it.
_NEXT = {
    (0, False): _MONTH,
    (0, True): _YEAR,
    (_YEAR, False): _MONTH,
    (_MONTH, False): _DAY,
    (_MONTH, True): _YEAR,
    (_YEAR | _MONTH, False): _DAY,
    (_DAY, False): _MONTH,
    (_MONTH | _DAY, False): _YEAR,
}


class _Look(enum.Enum):
    """What a field is by its look: a date has separators or letters in it, an offset begins with a sign."""

    NUMBER = enum.auto()
    DATE = enum.auto()
    TIME = enum.auto()
    WORD = enum.auto()
    OFFSET = enum.auto()
    NOTHING = enum.auto()


class _Moment(NamedTuple):
    days: int
    micros: int  # of the day; may be a whole day (24:00:00)
    zone: str | None


def date_from_text(text: str) -> int:
    """Days since 1970. Errors: 22007, 22008, 22009, 22023, 0A000."""
    return check_date(_parse(text, "date").days)


def timestamp_from_text(text: str) -> int:
    """Microseconds since 1970; a zone in the text is ignored. Errors: as of `date_from_text`."""
    moment = _parse(text, "timestamp")
    return check_timestamp(moment.days * DAY + moment.micros)


def timestamptz_from_text(text: str, zone: str) -> int:
    """Microseconds since 1970 UTC; without a zone in the text, the session's. Errors: as of `date_from_text`."""
    moment = _parse(text, "timestamp with time zone")
    return check_timestamp(to_utc(moment.days * DAY + moment.micros, moment.zone or zone))


def names_zone(text: str) -> bool:
    """Whether a text of timestamptz is the same instant in every session. Errors: as of `timestamptz_from_text`."""
    return _parse(text, "timestamp with time zone").zone is not None


def _parse(text: str, name: str) -> _Moment:
    iso = _ISO.match(text)
    if iso is not None:
        year = int(iso[1])
        if not year:
            raise _out_of_range(text)
        micros = 0 if iso[4] is None else _clock(int(iso[4]), int(iso[5]), int(iso[6]), iso[7], text)
        return _Moment(_days(year, int(iso[2]), int(iso[3]), text), micros, iso[8])
    word = text.strip(_SPACE).lower()
    if word == "epoch":
        return _Moment(0, 0, "UTC")
    if word.lstrip("+-") in ("infinity", "inf"):
        raise errors.unsupported(f'{name} "{word}"')
    if word in ("now", "today", "tomorrow", "yesterday"):
        raise errors.unsupported(f'{name} "{word}" (use now() or current_date)')
    return _Text(name, text).moment()


def _days(year: int, month: int, day: int, text: str) -> int:
    if 1 <= month <= 12 and 1 <= day <= days_in_month(year, month):
        return days_from_civil(year, month, day)
    raise _out_of_range(text)


def _clock(hour: int, minute: int, second: int, fraction: str | None, text: str) -> int:
    """Microseconds of the day; `fraction` are digits of a second."""
    part = round(float(f"0.{fraction}") * SECOND) if fraction else 0
    micros = hour * HOUR + minute * MINUTE + second * SECOND + part
    if minute > 59 or second > 60 or micros > DAY:
        raise _out_of_range(text)
    return micros


def _out_of_range(text: str) -> errors.Error:
    return errors.error(errors.DATETIME_OVERFLOW, f'date/time field value out of range: "{text}"')


# --- fields ----------------------------------------------------------------------------------------------------------

_TIME_FIELD = re.compile(r"\d+:[\d:.]*", re.ASCII)
_DATE_FIELD = re.compile(r"\d+([-/.])(?:\d+(?:\1(?:\d|\1)*)?|(?!\d)(?:[a-z\d]|\1)*)", re.ASCII | re.IGNORECASE)
_NUMBER_FIELD = re.compile(r"\d+|\.\d*", re.ASCII)
_DECIMAL = re.compile(r"\d+\.\d+", re.ASCII)
_WORD_FIELD = re.compile(r"[a-z]+", re.ASCII | re.IGNORECASE)
_NAME_FIELD = re.compile(r"[a-z\d+\-/_.:]+", re.ASCII | re.IGNORECASE)
_OFFSET_FIELD = re.compile(rf"[+-][{_SPACE}]*\d[\d:.-]*", re.ASCII)
_BETWEEN = re.compile(rf"(?:[{_SPACE}]|(?![+\-.])[!-/:-@\[-`{{-~])*", re.ASCII)


def _fields(text: str) -> Iterator[tuple[_Look, str]]:
    """The fields of a text, with what each is; _Look.NOTHING for what is none, which ends them."""
    at, end = 0, len(text)
    while True:
        between = _BETWEEN.match(text, at)
        assert between is not None  # it matches the empty string, too
        at = between.end()
        if at == end:
            return
        kind, found = _field(text, at)
        if found is None:
            yield _Look.NOTHING, ""
            return
        yield kind, found.group()
        at = found.end()


def _field(text: str, at: int) -> tuple[_Look, re.Match[str] | None]:
    if text[at] in "+-":
        return _Look.OFFSET, _OFFSET_FIELD.match(text, at)
    word = _WORD_FIELD.match(text, at)
    if word is not None:
        after = text[word.end() : word.end() + 1]
        # `Jan-08-1999`, `America/Lima`, `UTC+3`; but not `Jan08`, `T0405`.
        named = after == "+" or (after.isdigit() and after.isascii())
        if after in ("-", "/", ".") or (named and word.group().lower() not in _WORDS):
            return _Look.DATE, _NAME_FIELD.match(text, at)
        return _Look.WORD, word
    time = _TIME_FIELD.match(text, at)
    if time is not None:
        return _Look.TIME, time
    date = _DATE_FIELD.match(text, at)
    if date is None:
        return _Look.NUMBER, _NUMBER_FIELD.match(text, at)
    # `2001.360` and `040506.5` may be several things yet.
    return (_Look.NUMBER if _DECIMAL.fullmatch(date.group()) else _Look.DATE), date


# --- what they mean --------------------------------------------------------------------------------------------------

_OFFSET_PARTS = re.compile(rf"([+-])[{_SPACE}]*(\d+)(?::(\d+)(?::(\d+))?)?", re.ASCII)
_TIME_PARTS = re.compile(r"(\d+):(\d*)(?::(\d+))?(?:\.(\d*))?", re.ASCII)
_DATE_PART = re.compile(r"\d+|[a-z]+", re.ASCII | re.IGNORECASE)


class _Text:
    """A text of a type of this name, while it is read."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text
        self._told = 0  # what it has told, as a mask
        self._year, self._month, self._day = 0, 0, 0  # the year as it is written, until all is read
        self._micros = 0
        self._zone: str | None = None
        self._half = self._era = ""
        self._month_named = self._short_year = self._by_julian_day = False
        self._announced = ""  # what the field before says that this one is: "j" for a Julian day, or "t" for a time

    def moment(self) -> _Moment:
        """All of it. Errors: 22007, 22008, 22009, 22023, 0A000."""
        fields = list(_fields(self._text))
        if not fields or fields[-1][0] is _Look.NOTHING:
            raise self._invalid()
        for look, field in fields:
            self._tell(self._read(look, field))
        self._settle_year()
        if self._told & _HALF:
            self._settle_half()
        if self._told & _DATE != _DATE or self._announced:
            raise self._invalid()
        return _Moment(_days(self._year, self._month, self._day, self._text), self._micros, self._zone)

    def _set_clock(self, hour: int, minute: int, second: int, fraction: str | None) -> int:
        self._micros = _clock(hour, minute, second, fraction, self._text)
        return _CLOCK

    def _invalid(self) -> errors.Error:
        what = f'invalid input syntax for type {self._name}: "{self._text}"'
        return errors.error(errors.INVALID_DATETIME_FORMAT, what)

    def _int(self, digits: str) -> int:
        if len(digits) > _MOST_DIGITS:
            digits = digits.lstrip("0")
            if len(digits) > _MOST_DIGITS:
                raise _out_of_range(self._text)
        return int(digits or "0")

    def _tell(self, told: int) -> None:
        if told & self._told:
            raise self._invalid()
        self._told |= told

    def _settle_year(self) -> None:
        """The year with its era, or of two digits (1970 to 2069), where there is no year 0; then the day of it."""
        if not self._told & _YEAR or self._by_julian_day:
            return
        if not self._year and (self._era == "bc" or not self._short_year):
            raise _out_of_range(self._text)
        if self._era == "bc":
            self._year = 1 - self._year
        elif self._short_year:
            self._year += 2000 if self._year < 70 else 1900
        if self._told & _OF_YEAR:
            self._year, self._month, self._day = civil_from_days(days_from_civil(self._year, 1, 1) + self._day - 1)

    def _settle_half(self) -> None:
        """The hour of the clock, of which am or pm was said."""
        hour = self._micros // HOUR
        if hour > 12:
            raise _out_of_range(self._text)
        self._micros += ((12 if self._half == "pm" else 0) - (hour if hour == 12 else 0)) * HOUR

    # --- a field ---

    def _read(self, look: _Look, field: str) -> int:
        """Take a field for what it may be. The mask of what it tells."""
        announced, self._announced = self._announced, ""
        match look:
            case _Look.WORD if not announced:
                return self._word(field)
            case _Look.TIME if announced != "j":
                return self._time(field)
            case _Look.OFFSET if not announced:
                return self._offset(field)
            case _Look.DATE if announced == "j":
                return self._julian_with_zone(field)
            case _Look.DATE if self._told & (_MONTH | _DAY) == _MONTH | _DAY:
                if field[0].isdigit():
                    return self._time_with_zone(field)
                if not announced:
                    return self._named_zone(field)
            case _Look.DATE if not announced:
                return self._date(field)
            case _Look.NUMBER if announced == "j":
                return self._julian_day(field)
            case _Look.NUMBER if announced:
                return self._run_together_time(field)
            case _Look.NUMBER:
                return self._number_or_date(field)
        raise self._invalid()

    def _word(self, field: str) -> int:
        word = field.lower()
        if word in _MONTHS:
            return self._take_month(_MONTHS[word])
        if word in _WEEKDAYS:
            return _WEEKDAY
        if word in _IGNORED:
            return 0
        if word in ("am", "pm"):
            self._half = word
            return _HALF
        if word in ("ad", "bc"):
            self._era = word
            return _ERA
        if word == "dst":
            raise errors.unsupported(f'{self._name} with "{word}"')
        if word in _JULIAN or (word == "t" and self._told & _DATE == _DATE):
            self._announced = word[0]
            return 0
        return self._zone_of_letters(field)

    def _zone_of_letters(self, field: str) -> int:
        abbreviation = ABBREVIATIONS.get(field.upper())
        if abbreviation is None:
            try:
                time_zone(field)
            except errors.Error:
                raise self._invalid() from None
        self._zone = abbreviation or field
        return _ZONE

    def _named_zone(self, field: str) -> int:
        time_zone(field)
        self._zone = field
        return _ZONE

    def _offset(self, field: str) -> int:
        parts = _OFFSET_PARTS.match(field)
        if parts is None:
            raise self._invalid()
        sign, hours, minutes, seconds = parts.groups()
        if minutes is None and len(hours) > 2:
            hours, minutes = hours[:-2], hours[-2:]
        east, minute, second = self._int(hours), self._int(minutes or ""), self._int(seconds or "")
        if east > _MOST_HOURS or minute > 59 or second > 59:
            what = f'time zone displacement out of range: "{self._text}"'
            raise errors.error(errors.INVALID_TIME_ZONE_DISPLACEMENT, what)
        if parts.end() != len(field):
            raise self._invalid()
        self._zone = f"{sign}{east:02}:{minute:02}:{second:02}"
        return _ZONE

    def _take_month(self, number: int) -> int:
        told = _MONTH
        if self._told & (_MONTH | _DAY) == _MONTH and not self._month_named and 1 <= self._month <= 31:
            self._day, told = self._month, _DAY  # `8 January`: what was taken for the month is the day
        self._month_named = True
        self._month = number
        return told

    # --- times ---

    def _time(self, field: str) -> int:
        parts = _TIME_PARTS.fullmatch(field)
        if parts is None:
            raise self._invalid()
        first, second, third, fraction = parts.groups()
        if third is None and fraction is not None:  # minutes and seconds
            return self._set_clock(0, self._int(first), self._int(second), fraction)
        return self._set_clock(self._int(first), self._int(second), self._int(third or "0"), fraction)

    def _run_together_time(self, field: str) -> int:
        """`040506`, `0405`, `040506.789`."""
        digits, _, fraction = field.partition(".")
        if len(digits) not in (4, 6):
            raise self._invalid()
        return self._set_clock(int(digits[:2]), int(digits[2:4]), int(digits[4:] or "0"), fraction)

    def _time_with_zone(self, field: str) -> int:
        """`040506-08`."""
        digits, sign, offset = field.partition("-")
        if self._told & _CLOCK or not sign or not digits.isdigit():
            raise self._invalid()
        return self._run_together_time(digits) | self._offset(sign + offset)

    # --- dates ---

    def _date(self, field: str) -> int:
        """One with separators: of numbers, in the order of the session's style, or with a month by its name."""
        parts = _DATE_PART.findall(field)
        before = self._told
        named = [part for part in parts if part[0].isalpha()]
        for part in named:
            if part.lower() not in _MONTHS:
                raise self._invalid()
            self._month, self._month_named = _MONTHS[part.lower()], True
            self._tell(_MONTH)
        for part in parts:
            if part[0].isdigit():
                self._tell(self._number(part))
        # A time before a date with separators is none that PostgreSQL reads; nor is a day of the week.
        if self._told & ~(_OF_YEAR | _ZONE) != _DATE:
            raise self._invalid()
        told, self._told = self._told & ~before, before
        return told

    def _number_or_date(self, field: str) -> int:
        digits, point, _ = field.partition(".")
        if point and not self._told & _DATE:
            return self._date(field)
        if point and len(digits) > 2:
            return self._run_together(field)
        if len(field) >= 6 and not (self._told & _DATE and self._told & _CLOCK):
            return self._run_together(field)
        return self._number(field)

    def _run_together(self, field: str) -> int:
        """`20040715`, `990108`; after a date a time."""
        if "." in field or self._told & _DATE == _DATE:
            if self._told & _CLOCK:
                raise self._invalid()
            return self._run_together_time(field)
        self._year, self._month, self._day = self._int(field[:-4]), int(field[-4:-2]), int(field[-2:])
        self._short_year = len(field) == 6
        return _DATE

    def _number(self, field: str) -> int:
        """A number that is one of year, month and day, given those before it."""
        if "." in field:
            raise self._invalid()
        number, long = self._int(field), len(field) >= 3
        told = self._told & _DATE
        if told == _YEAR and len(field) == 3 and 1 <= number <= 366:
            self._day = number
            return _OF_YEAR | _MONTH | _DAY
        if told == _DATE:
            return self._run_together(field)
        if told == _YEAR | _MONTH and self._month_named and long and self._short_year:
            self._day, self._year, self._short_year = self._year, number, False  # `8-Jan-1999`, taken for the year 8
            return _DAY
        told = _NEXT.get((told, long and (not told or (told == _MONTH and self._month_named))), 0)
        if told == _YEAR:
            self._year, self._short_year = number, len(field) <= 2
        elif told == _MONTH:
            self._month = number
        elif told == _DAY:
            self._day = number
        else:
            raise self._invalid()
        return told

    def _julian_day(self, field: str) -> int:
        digits, point, fraction = field.partition(".")
        self._by_julian_day = True
        self._year, self._month, self._day = civil_from_days(self._int(digits) - _JULIAN_EPOCH)
        if not point:
            return _DATE
        self._micros = round(float(f"0.{fraction}") * DAY)
        return _DATE | _CLOCK

    def _julian_with_zone(self, field: str) -> int:
        digits, sign, offset = field.partition("-")
        if not digits.isdigit():
            raise self._invalid()
        return self._julian_day(digits) | _CLOCK | self._offset(sign + offset)
