"""jsonb: one canonical text per document, which is PostgreSQL's output of it; its order.

Keys are sorted by (length in bytes, bytes), the last of duplicates wins, numbers keep all their digits (as numerics
of up to 1,000 digits, scale included), white space is a space after each colon and comma.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from instar import errors

MAX_EXPONENT = 1000

CONTAINER = object()  # what `scalar` gives for an array or object


def canonical(text: str) -> str:
    """The canonical text of a JSON document. Errors: 22P02, 22P05 (\\u0000), 22003, 54000 (nested too deeply)."""
    return write(parse(text, check=True))


def parse(text: str, check: bool = False) -> Any:
    """A document as dict, list, str, Decimal, bool, None; `check` also what canonical text is known to satisfy."""
    try:
        document = _DECODER.decode(text)
        if check:
            _check(document)
    except (ValueError, InvalidOperation) as fault:
        detail = str(fault) if isinstance(fault, json.JSONDecodeError) else None
        raise errors.error(errors.INVALID_TEXT, "invalid input syntax for type json", detail=detail) from None
    except RecursionError:
        raise too_deep() from None
    return document


def too_deep() -> errors.Error:
    """54000: where Python's stack ends."""
    return errors.error(errors.LIMIT_EXCEEDED, "JSON document is nested too deeply")


def write(document: Any) -> str:
    """Canonical text of dict, list, str, Decimal, int, float, bool, None. Errors: 22P02 for anything else, 54000."""
    try:
        return _write(document)
    except RecursionError:  # a list that contains itself, too
        raise too_deep() from None


def _write(document: Any) -> str:
    if isinstance(document, str):
        return _string(document)
    if document is None or isinstance(document, bool):
        return _WORDS[document]
    if isinstance(document, dict):
        pairs = sorted(document.items(), key=_storage_order)
        return "{" + ", ".join([f"{_string(key)}: {_write(value)}" for key, value in pairs]) + "}"
    if isinstance(document, (list, tuple)):
        return "[" + ", ".join(map(_write, document)) + "]"
    return format(_number(document), "f")


def object_of(members: Mapping[str, str]) -> str:
    """Canonical text of the object whose members these canonical texts are."""
    pairs = sorted(members.items(), key=_storage_order)
    return "{" + ", ".join([f"{_string(key)}: {value}" for key, value in pairs]) + "}"


def scalar(text: str) -> Any:
    """A canonical document that is a scalar: str, Decimal, bool or None; CONTAINER if it is an array or object."""
    return CONTAINER if text[0] in "{[" else parse(text)


def type_name(text: str) -> str:
    """What jsonb_typeof says of a canonical document."""
    return _TYPES.get(text[0], "number")


def sort_key(text: str) -> tuple[object, ...]:
    """A key that orders and hashes documents as PostgreSQL's jsonb_ops do.

    Object > array > boolean > number > string > null; more members > fewer; and the historical accident that a bare
    scalar counts as an array of one element, below a real one, so that an empty array is the least of all.
    """
    document = parse(text)
    if isinstance(document, dict):
        return _key(document)
    if isinstance(document, list):
        return (4, len(document), 1, *map(_key, document))
    return (4, 1, 0, _key(document))


def _key(document: Any) -> tuple[object, ...]:
    if document is None:
        return (0,)
    if isinstance(document, str):
        return (1, document)
    if isinstance(document, bool):
        return (3, document)
    if isinstance(document, Decimal):
        return (2, document)
    if isinstance(document, list):
        return (4, len(document), *map(_key, document))
    flat: list[object] = [5, len(document)]
    for key, value in document.items():
        flat += (key, _key(value))
    return tuple(flat)


def _storage_order(pair: tuple[Any, Any]) -> tuple[int, bytes]:
    if not isinstance(pair[0], str):
        what = type(pair[0]).__name__
        raise errors.error(errors.INVALID_TEXT, f"a key of a JSON object is text, not a Python {what}")
    key = pair[0].encode(errors="surrogatepass")  # refused where the document is checked
    return len(key), key


def _check(document: Any) -> None:
    if isinstance(document, str):
        _check_string(document)
    elif isinstance(document, list):
        for value in document:
            _check(value)
    elif isinstance(document, dict):
        for key, value in document.items():
            _check_string(key)
            _check(value)


def _check_string(text: str) -> None:
    if "\0" in text:
        raise errors.error(
            errors.UNTRANSLATABLE_CHARACTER,
            "unsupported Unicode escape sequence",
            detail="\\u0000 cannot be converted to text.",
        )
    text.encode()  # a lone surrogate is a UnicodeEncodeError, which is a ValueError


def _number(value: object) -> Decimal:
    if isinstance(value, (int, float)):
        value = Decimal(repr(value))
    if not isinstance(value, Decimal) or not value.is_finite():
        raise errors.error(errors.INVALID_TEXT, f"invalid input syntax for type json: {value!r}")
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)
    if value.adjusted() > MAX_EXPONENT or exponent < -MAX_EXPONENT:
        raise errors.error(errors.NUMERIC_OUT_OF_RANGE, "number in JSON has too many digits")
    return value if value else value.copy_abs()


def _read_number(digits: str) -> Decimal:
    return _number(Decimal(digits))


def _refuse(word: str) -> Any:
    raise ValueError(word)


_DECODER = json.JSONDecoder(parse_float=_read_number, parse_int=_read_number, parse_constant=_refuse)
_string = json.encoder.py_encode_basestring
_WORDS = {None: "null", False: "false", True: "true"}
_TYPES = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}
