"""to_char of timestamps: PostgreSQL's template patterns (its manual, section 9.8)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

from instar import errors
from instar.values.datetimes import DAY, HOUR, MINUTE, SECOND, civil_from_days, days_from_civil

_MONTHS = (
    "January February March April May June July August September October November December".split()
)  # fmt: skip
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_ROMAN = "I II III IV V VI VII VIII IX X XI XII".split()
_JULIAN_OF_1970 = 2440588


class Moment(NamedTuple):
    """A timestamp in its parts; `year` 0 is 1 BC, `weekday` 0 is Monday, `clock` counts microseconds."""

    days: int
    clock: int
    year: int
    month: int
    day: int

    @property
    def weekday(self) -> int:
        return (self.days + 3) % 7

    @property
    def day_of_year(self) -> int:
        return self.days - days_from_civil(self.year, 1, 1) + 1

    @property
    def hour(self) -> int:
        return self.clock // HOUR

    @property
    def iso_year(self) -> int:
        return civil_from_days(self.days - self.weekday + 3)[0]

    @property
    def iso_day(self) -> int:
        """The day in the year of weeks, from 1; that year begins with the Monday of the week of January 4."""
        fourth = days_from_civil(self.iso_year, 1, 4)
        return self.days - (fourth - (fourth + 3) % 7) + 1


Part = Callable[[Moment, bool], str]  # the bool: FM, no padding


def _number(value: Callable[[Moment], int], width: int) -> Part:
    return lambda moment, bare: str(value(moment)) if bare else f"{value(moment):0{width}d}"


def _plain(value: Callable[[Moment], int]) -> Part:
    return lambda moment, bare: str(value(moment))


def _fraction(unit: int, width: int) -> Part:
    return lambda moment, bare: f"{moment.clock % SECOND // unit:0{width}d}"


def _name(value: Callable[[Moment], str], width: int = 0) -> Part:
    return lambda moment, bare: value(moment) if bare else value(moment).ljust(width)


def _era(year: int) -> int:
    """The number of a year in its era."""
    return year if year > 0 else 1 - year


def _year(value: Callable[[Moment], int], digits: int) -> Part:
    """The last digits of a year; four are all of them."""
    if digits == 4:
        return _number(lambda moment: _era(value(moment)), digits)
    return _number(lambda moment: _era(value(moment)) % 10**digits, digits)


def _century(moment: Moment, bare: bool) -> str:
    number = (moment.year - 1) // 100 + 1 if moment.year > 0 else -(-moment.year // 100) - 1
    if bare or abs(number) > 99:
        return str(number)
    return f"{number:02d}" if number >= 0 else f"{number:03d}"


def _grouped_year(moment: Moment, bare: bool) -> str:
    return f"{_era(moment.year) // 1000},{_era(moment.year) % 1000:03d}"


def _month(moment: Moment) -> str:
    return _MONTHS[moment.month - 1]


def _weekday(moment: Moment) -> str:
    return _DAYS[moment.weekday]


def _cased(key: str, text: Callable[[Moment], str], width: int = 0) -> dict[str, Part]:
    """A name in capitals, as it is and in small letters, as its pattern is written."""
    return {
        key.upper(): _name(lambda moment: text(moment).upper(), width),
        key.capitalize(): _name(text, width),
        key.lower(): _name(lambda moment: text(moment).lower(), width),
    }


def _half(moment: Moment) -> str:
    return "PM" if moment.hour >= 12 else "AM"


def _bc(moment: Moment) -> str:
    return "AD" if moment.year > 0 else "BC"


def _dotted(text: Callable[[Moment], str]) -> Callable[[Moment], str]:
    return lambda moment: ".".join(text(moment)) + "."


def _of_either_case() -> dict[str, Part]:
    parts: dict[str, Part] = {
        "CC": _century,
        "Y,YYY": _grouped_year,
        "HH24": _number(lambda moment: moment.hour, 2),
        "MI": _number(lambda moment: moment.clock % HOUR // MINUTE, 2),
        "SS": _number(lambda moment: moment.clock % MINUTE // SECOND, 2),
        "MS": _fraction(1000, 3),
        "US": _fraction(1, 6),
        "MM": _number(lambda moment: moment.month, 2),
        "DDD": _number(lambda moment: moment.day_of_year, 3),
        "DD": _number(lambda moment: moment.day, 2),
        "D": _plain(lambda moment: (moment.weekday + 1) % 7 + 1),
        "IDDD": _number(lambda moment: moment.iso_day, 3),
        "ID": _plain(lambda moment: moment.weekday + 1),
        "WW": _number(lambda moment: (moment.day_of_year - 1) // 7 + 1, 2),
        "IW": _number(lambda moment: (moment.iso_day - 1) // 7 + 1, 2),
        "W": _plain(lambda moment: (moment.day - 1) // 7 + 1),
        "Q": _plain(lambda moment: (moment.month - 1) // 3 + 1),
        "J": _plain(lambda moment: moment.days + _JULIAN_OF_1970),
    }
    parts |= {f"FF{places}": _fraction(10 ** (6 - places), places) for places in range(1, 7)}
    parts |= dict.fromkeys(("HH", "HH12"), _number(lambda moment: (moment.hour - 1) % 12 + 1, 2))
    parts |= dict.fromkeys(("SSSS", "SSSSS"), _plain(lambda moment: moment.clock // SECOND))
    for digits in (4, 3, 2, 1):
        parts["Y" * digits] = _year(lambda moment: moment.year, digits)
        parts["I" + "Y" * (digits - 1)] = _year(lambda moment: moment.iso_year, digits)
    return parts


def _patterns() -> dict[str, Part | None]:
    """What each pattern writes, by how it is written; None of those that are left out."""
    parts: dict[str, Part | None] = {}
    for key, part in _of_either_case().items():
        parts |= {key: part, key.lower(): part}
    parts |= _cased("month", _month, 9) | _cased("day", _weekday, 9)
    parts |= _cased("mon", lambda moment: _month(moment)[:3]) | _cased("dy", lambda moment: _weekday(moment)[:3])
    roman = _cased("rm", lambda moment: _ROMAN[moment.month - 1], 4)
    parts |= {key: part for key, part in roman.items() if key != "Rm"}
    for text, plain in ((_half, ("AM", "PM")), (_bc, ("BC", "AD"))):
        for word in plain:
            dotted = ".".join(word) + "."
            for key, of in ((word, text), (dotted, _dotted(text))):
                cased = _cased(key, of)
                parts |= {key: cased[key], key.lower(): cased[key.lower()]}
    return parts | dict.fromkeys(("TZ", "tz", "TZH", "tzh", "TZM", "tzm", "OF", "of", "FX", "fx"))


_PATTERNS = _patterns()
_LONGEST = max(map(len, _PATTERNS))
_ORDINALS = {"1": "st", "2": "nd", "3": "rd"}

Node = str | tuple[Part, bool, str]  # text as it is; or a part, whether FM is before it, and TH behind it


@functools.lru_cache(256)
def _parsed(template: str) -> tuple[Node, ...]:
    """The nodes of a template. Errors: 0A000, which names the pattern that is left out."""
    nodes: list[Node] = []
    position, size = 0, len(template)
    while position < size:
        prefix = template[position : position + 2]
        if prefix in ("TM", "tm"):
            raise _left_out(prefix)
        bare = prefix in ("FM", "fm")
        position += 2 * bare
        key = _keyword(template, position)
        if key:
            part = _PATTERNS[key]
            position += len(key)
            suffix = template[position : position + 2]
            if part is None or suffix in ("SP", "sp"):
                raise _left_out(key if part is None else suffix)
            ordinal = suffix if suffix in ("TH", "th") else ""
            position += len(ordinal)
            nodes.append((part, bare, ordinal))
        elif position < size and template[position] == '"':
            text, position = _quoted(template, position + 1)
            nodes.append(text)
        elif position < size:
            position += template.startswith('\\"', position)
            nodes.append(template[position])
            position += 1
    return tuple(nodes)


def _left_out(pattern: str) -> errors.Error:
    return errors.unsupported(f'the pattern "{pattern}" of to_char')


def _keyword(template: str, position: int) -> str:
    for size in range(_LONGEST, 0, -1):
        key = template[position : position + size]
        if len(key) == size and key in _PATTERNS:
            return key
    return ""


def _quoted(template: str, position: int) -> tuple[str, int]:
    text = ""
    while position < len(template):
        if template[position] == '"':
            return text, position + 1
        position += template[position] == "\\" and position + 1 < len(template)
        text += template[position]
        position += 1
    return text, position


def _ordinal(digits: str, suffix: str) -> str:
    if not digits[-1].isdigit():
        return digits  # a name has none
    ending = "th" if digits[-2:-1] == "1" else _ORDINALS.get(digits[-1], "th")
    return digits + (ending.upper() if suffix == "TH" else ending)


def to_char(local: int, template: str) -> str | None:
    """A civil time by a template; NULL by an empty one, as in PostgreSQL."""
    if not template:
        return None
    days, clock = divmod(local, DAY)
    moment = Moment(days, clock, *civil_from_days(days))
    written = []
    for node in _parsed(template):
        if isinstance(node, str):
            written.append(node)
        else:
            part, bare, ordinal = node
            text = part(moment, bare)
            written.append(_ordinal(text, ordinal) if ordinal else text)
    return "".join(written)
