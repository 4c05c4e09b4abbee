"""Which type becomes which, in what context, and the closure that does it (PostgreSQL's pg_cast).

A closure takes and gives internal values and is not called for NULL.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Literal

from instar import errors
from instar.types import FLOATS, NUMBERS, STRINGS, Kind, Type
from instar.values import datetimes, jsonb, numbers
from instar.values.text import reader, writer

CastContext = Literal["implicit", "assignment", "explicit"]
Closure = Callable[..., object]

_CATEGORIES: dict[Kind, str] = {
    Kind.BOOLEAN: "B",
    **dict.fromkeys(NUMBERS, "N"),
    **dict.fromkeys(STRINGS, "S"),
    **dict.fromkeys((Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ), "D"),
    **dict.fromkeys((Kind.BYTEA, Kind.UUID, Kind.JSONB), "U"),
    Kind.UNKNOWN: "X",
}
_PREFERRED = frozenset({Kind.BOOLEAN, Kind.DOUBLE, Kind.TEXT, Kind.TIMESTAMPTZ})
# Each number goes implicitly to those after it, and by assignment to those before.
_PROMOTION = (Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT, Kind.NUMERIC, Kind.REAL, Kind.DOUBLE)
_DATES = (Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ)


def category(type_: Type) -> str:
    """PostgreSQL's type category: B, N, S, D, U (user: whatever has no family), X (unknown)."""
    return _CATEGORIES[type_.kind] if type_.kind is not Kind.UUID else "U" + type_.kind.name


def is_preferred(type_: Type) -> bool:
    """Whether the type is its category's preferred one."""
    return type_.kind in _PREFERRED


def cast_context(source: Type, target: Type) -> CastContext | None:
    """The weakest context in which `source` becomes `target`; None: there is no such cast. Modifiers do not matter."""
    a, b = source.kind, target.kind
    if a is b or a is Kind.UNKNOWN or (a in STRINGS and b in STRINGS):
        return "implicit"
    if b is Kind.UNKNOWN:
        return None
    if a in NUMBERS and b in NUMBERS:
        return "implicit" if _PROMOTION.index(a) < _PROMOTION.index(b) else "assignment"
    if a in _DATES and b in _DATES:
        return "implicit" if _DATES.index(a) < _DATES.index(b) else "assignment"
    if b in STRINGS:
        return "assignment"
    if a in STRINGS or (a is Kind.JSONB and (b in NUMBERS or b is Kind.BOOLEAN)):
        return "explicit"
    if {a, b} == {Kind.BOOLEAN, Kind.INTEGER}:
        return "explicit"
    return None


@lru_cache(maxsize=1024)
def compile_cast(source: Type, target: Type, explicit: bool, zone: str = "UTC") -> Closure | None:
    """The closure from `source` to `target` (None: values stay as they are); NULL must not be passed.

    `explicit` truncates to varchar(n) where assignment raises 22001. `zone`: the session's, for timestamptz.
    Errors now: 42846 no such cast. Errors of the closure: 22001, 22003, 22007, 22008, 22P02, 22023.
    """
    if cast_context(source, target) is None:
        raise errors.error(errors.CANNOT_COERCE, f"cannot cast type {source} to {target}")
    a, b = source.kind, target.kind
    if a is Kind.UNKNOWN:
        return _from_string(target, explicit, zone)
    if b in STRINGS:
        return _to_string(source, target, explicit, zone)
    if a in STRINGS:
        return _from_string(target, explicit, zone)
    if a is Kind.JSONB and b is not Kind.JSONB:
        return _from_jsonb(target)
    if b in NUMBERS and a in NUMBERS:
        return numbers.conversion(source, target)
    if a is Kind.BOOLEAN and b is Kind.INTEGER:
        return int
    if b is Kind.BOOLEAN and a is Kind.INTEGER:
        return bool
    if a is not b:
        return datetimes.conversion(a, b, zone)
    return None


def cast(value: object, source: Type, target: Type, explicit: bool, zone: str = "UTC") -> object:
    """One value cast; NULL stays NULL. For many values take `compile_cast`."""
    closure = compile_cast(source, target, explicit, zone)
    return value if closure is None or value is None else closure(value)


def _from_string(target: Type, explicit: bool, zone: str) -> Closure | None:
    if target.kind in STRINGS or target.kind is Kind.UNKNOWN:
        return _shorten(target, explicit)
    return reader(target, zone)


def _to_string(source: Type, target: Type, explicit: bool, zone: str) -> Closure | None:
    shorten = _shorten(target, explicit)
    if source.kind in STRINGS:
        return None if source.length is not None and source.length == target.length else shorten
    if source.kind is Kind.BOOLEAN:
        write: Closure = _BOOLEANS.__getitem__  # the cast writes words where output writes t and f
    else:
        write = writer(source, zone)
    if shorten is None:
        return write
    return lambda value: shorten(write(value))


_BOOLEANS = {False: "false", True: "true"}


def _shorten(target: Type, explicit: bool) -> Closure | None:
    length = target.length
    if length is None:
        return None

    def truncate(value: str) -> str:
        return value[:length]

    def check(value: str) -> str:
        if len(value) > length and value[length:].strip(" "):
            raise errors.error(errors.STRING_TOO_LONG, f"value too long for type {target}")
        return value[:length]

    return truncate if explicit else check


def _same(value: object) -> object:
    return value


def _from_jsonb(target: Type) -> Closure:
    """A jsonb scalar as a number or boolean; anything else in it, JSON null too, is 22023."""
    name = str(Type(target.kind))
    finish: Closure
    if target.kind in FLOATS:
        read = numbers.float_reader(target)
        finish = lambda number: read(numbers.numeric_text(number))  # noqa: E731 - one of two closures
    else:
        convert_number = numbers.conversion(Type(Kind.NUMERIC), target) or _same
        finish = lambda number: convert_number(numbers.fits(number))  # noqa: E731 - the digits of jsonb are not bounded

    def convert(value: str) -> object:
        scalar = jsonb.scalar(value)
        if target.kind is Kind.BOOLEAN:
            if isinstance(scalar, bool):
                return scalar
        elif scalar is not None and not isinstance(scalar, (bool, str)) and scalar is not jsonb.CONTAINER:
            return finish(scalar)
        raise errors.error(errors.INVALID_PARAMETER, f"cannot cast jsonb {jsonb.type_name(value)} to type {name}")

    return convert
