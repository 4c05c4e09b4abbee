"""Functions of bytea that strings have too, by bytes, and those that only bytea has."""

from __future__ import annotations

from collections.abc import Callable

from instar import errors
from instar.sql.functions.model import Function
from instar.sql.functions.strings import called, overlay, substring
from instar.types import BYTEA, INTEGER


def _get_byte(value: bytes, index: int) -> int:
    if not 0 <= index < len(value):
        raise errors.error(errors.SUBSCRIPT_ERROR, f"index {index} out of valid range, 0..{len(value) - 1}")
    return value[index]


def _position(value: bytes, part: bytes) -> int:
    return value.find(part) + 1


_TRIMS: dict[str, Callable[[bytes, bytes], bytes]] = {
    "btrim": bytes.strip,
    "ltrim": bytes.lstrip,
    "rtrim": bytes.rstrip,
}


def _substrings() -> list[Function]:
    return [
        called(name, substring, arguments, BYTEA)
        for name in ("substring", "substr")
        for arguments in ([BYTEA, INTEGER], [BYTEA, INTEGER, INTEGER])
    ]


ENTRIES = (
    *_substrings(),
    *(called(name, closure, [BYTEA, BYTEA], BYTEA) for name, closure in _TRIMS.items()),
    called("overlay", overlay, [BYTEA, BYTEA, INTEGER], BYTEA),
    called("overlay", overlay, [BYTEA, BYTEA, INTEGER, INTEGER], BYTEA),
    called("position", _position, [BYTEA, BYTEA], INTEGER),
    called("get_byte", _get_byte, [BYTEA, INTEGER], INTEGER),
)
