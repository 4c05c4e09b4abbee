"""Text to internal values and back, in PostgreSQL's input and output syntax."""

from __future__ import annotations

import re
from collections.abc import Callable

from instar import errors
from instar.types import FLOATS, INTEGERS, STRINGS, Kind, Type
from instar.values import datetime_texts, datetimes, jsonb, numbers

_TRUE = ("t", "tr", "tru", "true", "y", "ye", "yes", "on", "1")
_FALSE = ("f", "fa", "fal", "fals", "false", "n", "no", "of", "off", "0")
_BOOLEANS = dict.fromkeys(_TRUE, True) | dict.fromkeys(_FALSE, False)
_UUID = re.compile(r"(?:[0-9a-f]{4}-?){7}[0-9a-f]{4}\Z", re.ASCII | re.IGNORECASE)
_ESCAPE = re.compile(rb"\\(\\|[0-3][0-7]{2})|\\")
_PAIRS = re.compile(r"(?:[0-9a-fA-F]{2}|[ \n\t\r])*+")
_NO_DIGIT = re.compile(r"[^0-9a-fA-F]")
_SPACES = " \t\n\r\v\f"


def from_text(type_: Type, text: str, zone: str = "UTC") -> object:
    """The internal value that `text` is in the input syntax of the type; `zone` is the session's, for timestamptz.

    Errors: 22P02, 22007 (syntax), 22003, 22008 (range), 22001 (too long for varchar(n)), 22021 (NUL in text).
    """
    return reader(type_, zone)(text)


def to_text(type_: Type, value: object, zone: str = "UTC") -> str:
    """The type's output syntax of an internal value, not None."""
    return writer(type_, zone)(value)


def reader(type_: Type, zone: str = "UTC") -> Callable[[str], object]:
    """`from_text` for many values of one type."""
    kind = type_.kind
    if kind in STRINGS or kind is Kind.UNKNOWN:
        return _string_reader(type_)
    if kind in INTEGERS:
        return numbers.integer_reader(type_)
    if kind in FLOATS:
        return numbers.float_reader(type_)
    if kind is Kind.NUMERIC:
        return numbers.numeric_reader(type_)
    if kind is Kind.DATE:
        return datetime_texts.date_from_text
    if kind is Kind.TIMESTAMP:
        return datetime_texts.timestamp_from_text
    if kind is Kind.TIMESTAMPTZ:
        return lambda text: datetime_texts.timestamptz_from_text(text, zone)
    return {Kind.BOOLEAN: _boolean, Kind.BYTEA: _bytea, Kind.UUID: _uuid, Kind.JSONB: jsonb.canonical}[kind]


def writer(type_: Type, zone: str = "UTC") -> Callable[..., str]:
    """`to_text` for many values of one type."""
    if type_.kind is Kind.TIMESTAMPTZ:
        return lambda value: datetimes.timestamptz_text(value, zone)
    return _WRITERS.get(type_.kind, str)


def _string_reader(type_: Type) -> Callable[[str], str]:
    length = type_.length

    def read(text: str) -> str:
        if "\0" in text:
            raise errors.error(errors.CHARACTER_NOT_IN_REPERTOIRE, 'invalid byte sequence for encoding "UTF8": 0x00')
        if length is not None and len(text) > length:
            if text[length:].strip(" "):
                raise errors.error(errors.STRING_TOO_LONG, f"value too long for type {type_}")
            return text[:length]
        return text

    return read


def _boolean(text: str) -> bool:
    value = _BOOLEANS.get(text.strip(_SPACES).lower())
    if value is None:
        raise errors.error(errors.INVALID_TEXT, f'invalid input syntax for type boolean: "{text}"')
    return value


def _uuid(text: str) -> bytes:
    digits = text[1:-1] if text[:1] == "{" and text[-1:] == "}" else text
    if not _UUID.match(digits):
        raise errors.error(errors.INVALID_TEXT, f'invalid input syntax for type uuid: "{text}"')
    return bytes.fromhex(digits.replace("-", ""))


def uuid_text(value: bytes) -> str:
    """The standard form: 8-4-4-4-12 lower-case digits."""
    digits = value.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _bytea(text: str) -> bytes:
    """`\\x` and pairs of digits (white space between pairs), or the escape form: `\\\\` and `\\ooo`."""
    if text.startswith("\\x"):
        return hex_bytes(text[2:])

    def unescape(match: re.Match[bytes]) -> bytes:
        if match[1] is None:
            raise errors.error(errors.INVALID_TEXT, "invalid input syntax for type bytea")
        return b"\\" if match[1] == b"\\" else bytes([int(match[1], 8)])

    return _ESCAPE.sub(unescape, text.encode())


def hex_bytes(digits: str) -> bytes:
    """Pairs of hexadecimal digits, with white space only between pairs, to bytes. Errors: 22023, as PostgreSQL has it
    for bytea and decode()."""
    behind = _PAIRS.match(digits).end()  # type: ignore[union-attr]  # it matches nothing, too
    if behind == len(digits):
        return bytes.fromhex(digits)
    wrong = _NO_DIGIT.search(digits, behind)
    if wrong is None:
        raise errors.error(errors.INVALID_PARAMETER, "invalid hexadecimal data: odd number of digits")
    raise errors.error(errors.INVALID_PARAMETER, f'invalid hexadecimal digit: "{wrong.group()}"')


def _bytea_text(value: bytes) -> str:
    return "\\x" + value.hex()


_WRITERS: dict[Kind, Callable[..., str]] = {
    Kind.BOOLEAN: {False: "f", True: "t"}.__getitem__,
    Kind.REAL: numbers.single_text,
    Kind.DOUBLE: numbers.double_text,
    Kind.NUMERIC: numbers.numeric_text,
    Kind.BYTEA: _bytea_text,
    Kind.DATE: datetimes.date_text,
    Kind.TIMESTAMP: datetimes.timestamp_text,
    Kind.UUID: uuid_text,
}
