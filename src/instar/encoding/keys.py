"""Keys: values to bytes whose unsigned byte order is the order of the values (specified in docs/formats/keys.md).

A component is a tag byte, which names the type's *family*, and a payload that needs no length from outside. No
component is a prefix of another, so a key is the plain concatenation of its components, and the first component
that differs decides. Types of one family encode equal values equally: widening a column rebuilds no index. NULL's tag
follows all others (NULLS LAST); a descending component is the complement of the ascending one (so NULLS FIRST).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from decimal import Context, Decimal, InvalidOperation
from functools import lru_cache
from hashlib import blake2b
from math import isnan
from typing import Any

from instar.encoding.generate import compile_function, concatenation
from instar.errors import (
    CHARACTER_NOT_IN_REPERTOIRE,
    DATA_CORRUPTED,
    LIMIT_EXCEEDED,
    NUMERIC_OUT_OF_RANGE,
    Error,
    error,
    unsupported,
)
from instar.types import Kind, Type

TAG_BOOLEAN = 0x08
TAG_INTEGER = 0x10
TAG_FLOAT = 0x18
TAG_NUMERIC = 0x20
TAG_TEXT = 0x28
TAG_BYTEA = 0x30
TAG_DATE = 0x38
TAG_TIMESTAMP = 0x40
TAG_UUID = 0x48
TAG_NULL = 0x7F  # above every ascending tag; its complement, 0x80, is below every descending one

NULL_ASCENDING = bytes([TAG_NULL])
NULL_DESCENDING = bytes([TAG_NULL ^ 0xFF])

TAGS: dict[Kind, int] = {
    Kind.BOOLEAN: TAG_BOOLEAN,
    Kind.SMALLINT: TAG_INTEGER,
    Kind.INTEGER: TAG_INTEGER,
    Kind.BIGINT: TAG_INTEGER,
    Kind.REAL: TAG_FLOAT,
    Kind.DOUBLE: TAG_FLOAT,
    Kind.NUMERIC: TAG_NUMERIC,
    Kind.TEXT: TAG_TEXT,
    Kind.VARCHAR: TAG_TEXT,
    Kind.BYTEA: TAG_BYTEA,
    Kind.DATE: TAG_DATE,
    Kind.TIMESTAMP: TAG_TIMESTAMP,
    Kind.TIMESTAMPTZ: TAG_TIMESTAMP,
    Kind.UUID: TAG_UUID,
}

# A whole store key has 511 bytes: 5 of rowset prefix, the index columns' part, the primary key.
MAX_PRIMARY_KEY_BYTES = 378
MAX_INDEX_PART_BYTES = 112  # longer ones are cut here and hashed: 128 bytes
HASH_BYTES = 16
ROWSET_PREFIX_BYTES = 5

WIDE = Context(prec=100)  # 38 digits times a power of ten, with room: nothing is ever rounded in it

COMPLEMENT = bytes(255 - i for i in range(256))
FLIP_64 = 1 << 63
FLIP_32 = 1 << 31
TERMINATOR = b"\x00\x01"
_NAN_BITS = 0xFFF8_0000_0000_0000  # of the one NaN that is ever encoded, sign already flipped
_EXPONENT_BIAS = 1 << 15
_MAX_DIGIT_PAIRS = 20  # 38 digits, and one pair of slack for intermediate results

_BOOLEAN = struct.Struct(">BB")
_INTEGER = struct.Struct(">BQ")
_DATE = struct.Struct(">BI")
_DOUBLE = struct.Struct(">d")
_U64 = struct.Struct(">Q")

KeyEncoder = Callable[[Sequence[Any]], bytes]
KeyDecoder = Callable[[bytes, int], tuple[tuple[Any, ...], int]]


def key_tag(kind: Kind, column: str = "") -> int:
    """The ascending tag of this kind's family; 0A000 for a type that cannot be a key, with its column if given."""
    try:
        return TAGS[kind]
    except KeyError:
        of = f' (column "{column}")' if column else ""
        raise unsupported(f"a key of type {kind.value}{of}") from None


def same_key_family(old: Type, new: Type) -> bool:
    """Whether a column may change between these types without any index on it being rebuilt."""
    return old.kind in TAGS and TAGS[old.kind] == TAGS.get(new.kind)


def corrupted(what: str, data: bytes, position: int) -> Error:
    """XX001 naming the place in `data` where `what` was expected."""
    return error(DATA_CORRUPTED, f"damaged key: {what} at byte {position} of {data[:600].hex()}")


# Encoding one component -------------------------------------------------------------------------------------------


def _boolean(value: bool) -> bytes:
    return _BOOLEAN.pack(TAG_BOOLEAN, value)


def _integer(value: int) -> bytes:
    return _INTEGER.pack(TAG_INTEGER, value + FLIP_64)


def _float(value: float) -> bytes:
    """Sign bit flipped for positive numbers, all bits for negative ones; -0 is +0, every NaN one and greatest."""
    value = value + 0.0  # -0.0 + 0.0 is 0.0
    if isnan(value):
        return b"\x18" + _U64.pack(_NAN_BITS)
    bits = _U64.unpack(_DOUBLE.pack(value))[0]
    return b"\x18" + _U64.pack(bits ^ 0xFFFF_FFFF_FFFF_FFFF if bits >= FLIP_64 else bits | FLIP_64)


def _numeric(value: Decimal) -> bytes:
    """Class (negative 1, zero 2, positive 3, NaN 4), exponent, digits in pairs: 0.d1d2d3... * 10^exponent, d1 > 0."""
    negative, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        if value.is_infinite():
            raise unsupported("an infinite numeric")
        return b"\x20\x04"
    significant = bytes(digits).lstrip(b"\x00")
    if not significant:
        return b"\x20\x02"
    exponent += len(significant)
    stripped = significant.rstrip(b"\x00")
    if len(stripped) > 2 * _MAX_DIGIT_PAIRS or not -_EXPONENT_BIAS < exponent < _EXPONENT_BIAS:
        raise error(NUMERIC_OUT_OF_RANGE, "numeric value out of range for a key")
    if len(stripped) & 1:
        stripped += b"\x00"
    pairs = bytes([10 * a + b + 1 for a, b in zip(stripped[::2], stripped[1::2], strict=True)])
    payload = (exponent + _EXPONENT_BIAS).to_bytes(2, "big") + pairs + b"\x00"
    return b"\x20\x01" + payload.translate(COMPLEMENT) if negative else b"\x20\x03" + payload


def _text(value: str) -> bytes:
    return b"\x28" + value.encode().replace(b"\x00", b"\x00\xff") + TERMINATOR


def _bytea(value: bytes) -> bytes:
    return b"\x30" + value.replace(b"\x00", b"\x00\xff") + TERMINATOR


def _date(value: int) -> bytes:
    return _DATE.pack(TAG_DATE, value + FLIP_32)


def _timestamp(value: int) -> bytes:
    return _INTEGER.pack(TAG_TIMESTAMP, value + FLIP_64)


def _uuid(value: bytes) -> bytes:
    return b"\x48" + value


_COMPONENTS: dict[int, Callable[[Any], bytes]] = {
    TAG_BOOLEAN: _boolean,
    TAG_INTEGER: _integer,
    TAG_FLOAT: _float,
    TAG_NUMERIC: _numeric,
    TAG_TEXT: _text,
    TAG_BYTEA: _bytea,
    TAG_DATE: _date,
    TAG_TIMESTAMP: _timestamp,
    TAG_UUID: _uuid,
}


def encode_component(value: Any, kind: Kind, descending: bool = False) -> bytes:
    """One component. 0A000 for jsonb, 22003 for a number that its family cannot hold, 22021 for a lone surrogate."""
    encode = _COMPONENTS[key_tag(kind)]
    if value is None:
        return NULL_DESCENDING if descending else NULL_ASCENDING
    try:
        data = encode(value)
    except struct.error:
        raise error(NUMERIC_OUT_OF_RANGE, f"{kind.value} out of range for a key: {value!r}") from None
    except UnicodeEncodeError:
        raise error(CHARACTER_NOT_IN_REPERTOIRE, "a lone surrogate cannot be encoded as UTF-8") from None
    return data.translate(COMPLEMENT) if descending else data


def encode_key(values: Sequence[Any], types: Sequence[Type], descending: Sequence[bool] = ()) -> bytes:
    """The key of internal `values` (types.py); `descending` may be empty (all ascending). Errors: encode_component."""
    flags = descending or (False,) * len(types)
    return b"".join(
        [encode_component(value, type_.kind, flag) for value, type_, flag in zip(values, types, flags, strict=True)]
    )


# Decoding one component -------------------------------------------------------------------------------------------


def _terminated(data: bytes, start: int, flip: int) -> tuple[bytes, int]:
    """The escaped string at `start`, unescaped, and the position after its terminator."""
    zero = bytes([flip])
    position = start
    while True:
        found = data.find(zero, position)
        if found < 0 or found + 1 >= len(data):
            raise corrupted("an unterminated string", data, start)
        follower = data[found + 1] ^ flip
        if follower == 0x01:
            break
        if follower != 0xFF:
            raise corrupted("a bad escape", data, found)
        position = found + 2
    raw = data[start:found]
    if flip:
        raw = raw.translate(COMPLEMENT)
    return raw.replace(b"\x00\xff", b"\x00"), found + 2


def _decode_numeric(data: bytes, start: int, flip: int) -> tuple[Decimal, int]:
    if start >= len(data):
        raise corrupted("a numeric's class", data, start)
    category = data[start] ^ flip
    if category == 2:
        return Decimal(0), start + 1
    if category == 4:
        return Decimal("NaN"), start + 1
    if category not in (1, 3):
        raise corrupted("a numeric's class", data, start)
    if category == 1:
        flip ^= 0xFF
    end = data.find(bytes([flip]), start + 3)
    if end < 0 or not 1 <= end - start - 3 <= _MAX_DIGIT_PAIRS:
        raise corrupted("a numeric's digits", data, start)
    payload = data[start + 1 : end]
    if flip:
        payload = payload.translate(COMPLEMENT)
    pairs = payload[2:]
    if max(pairs) > 100 or pairs[0] < 11 or pairs[-1] == 1:
        raise corrupted("a numeric's digits", data, start)
    digits = "".join([f"{pair - 1:02d}" for pair in pairs])
    exponent = int.from_bytes(payload[:2], "big") - _EXPONENT_BIAS
    significant = digits.rstrip("0")
    sign = "-" if category == 1 else ""
    value = Decimal(f"{sign}{significant}E{exponent - len(significant)}")
    if value.as_tuple().exponent > 0:  # type: ignore[operator]  # finite: the exponent is a number
        value = Decimal(int(value))  # 1E+2 is 100
    return value, end + 1


_PAYLOAD_BYTES = {TAG_BOOLEAN: 1, TAG_INTEGER: 8, TAG_FLOAT: 8, TAG_DATE: 4, TAG_TIMESTAMP: 8, TAG_UUID: 16}


def _fixed_value(tag: int, payload: bytes, data: bytes, position: int) -> Any:
    """The value of an ascending payload of fixed size."""
    if tag == TAG_UUID:
        return payload
    number = int.from_bytes(payload, "big")
    if tag == TAG_BOOLEAN:
        if number > 1:
            raise corrupted("a boolean", data, position)
        return number == 1
    if tag == TAG_DATE:
        return number - FLIP_32
    if tag == TAG_FLOAT:
        bits = number ^ FLIP_64 if number >= FLIP_64 else number ^ 0xFFFF_FFFF_FFFF_FFFF
        return _DOUBLE.unpack(_U64.pack(bits))[0]
    return number - FLIP_64


def decode_component(data: bytes, position: int) -> tuple[Any, int, bool, int]:
    """(value, ascending tag, descending, end) of the component at `position`; XX001 if there is none."""
    if position >= len(data):
        raise corrupted("a component", data, position)
    tag = data[position]
    flip = 0xFF if tag >= 0x80 else 0x00
    tag ^= flip
    start = position + 1
    if tag == TAG_NULL:
        return None, tag, flip != 0, start
    size = _PAYLOAD_BYTES.get(tag)
    if size is not None:
        payload = data[start : start + size]
        if len(payload) < size:
            raise corrupted("a payload", data, start)
        if flip:
            payload = payload.translate(COMPLEMENT)
        return _fixed_value(tag, payload, data, start), tag, flip != 0, start + size
    if tag == TAG_NUMERIC:
        value, end = _decode_numeric(data, start, flip)
        return value, tag, flip != 0, end
    if tag not in (TAG_TEXT, TAG_BYTEA):
        raise corrupted("a tag", data, position)
    raw, end = _terminated(data, start, flip)
    if tag == TAG_BYTEA:
        return raw, tag, flip != 0, end
    try:
        return raw.decode(), tag, flip != 0, end
    except UnicodeDecodeError:
        raise corrupted("UTF-8", data, start) from None


def decode_key(data: bytes) -> list[Any]:
    """The internal values of all components up to the end of `data`; a numeric comes without trailing zeros."""
    values = []
    position = 0
    while position < len(data):
        value, _, _, position = decode_component(data, position)
        values.append(value)
    return values


# Compiled encoders and decoders ------------------------------------------------------------------------------------

# What goes into one struct with its neighbours: family -> (code, expression ascending, expression descending). Each
# expression fails on None (TypeError, AttributeError or struct.error), which is how NULL leaves the fast path.
_STRUCT: dict[int, tuple[str, str, str]] = {
    TAG_BOOLEAN: ("B", "{} + 0", "255 - {}"),
    TAG_INTEGER: ("Q", "{} + FLIP_64", "LOW_64 - {}"),
    TAG_TIMESTAMP: ("Q", "{} + FLIP_64", "LOW_64 - {}"),
    TAG_DATE: ("I", "{} + FLIP_32", "LOW_32 - {}"),
    TAG_UUID: ("16s", "{}", "{}.translate(COMPLEMENT)"),
}
_INLINE: dict[int, str] = {
    TAG_TEXT: "{}.encode().replace(b'\\0', b'\\0\\xff')",
    TAG_BYTEA: "{}.replace(b'\\0', b'\\0\\xff')",
}


# Code of a struct -> how its value is read back, ascending and descending.
_UNPACKED = {
    "B": ("{} == 1", "{} == 254"),
    "Q": ("{} - FLIP_64", "LOW_64 - {}"),
    "I": ("{} - FLIP_32", "LOW_32 - {}"),
}
_SCOPE: dict[str, Any] = {
    "FLIP_64": FLIP_64,
    "LOW_64": FLIP_64 - 1,
    "FLIP_32": FLIP_32,
    "LOW_32": FLIP_32 - 1,
    "COMPLEMENT": COMPLEMENT,
    "struct_error": struct.error,
}


def _flags(types: Sequence[Type], descending: Sequence[bool]) -> tuple[bool, ...]:
    flags = tuple(descending) or (False,) * len(types)
    if len(flags) != len(types):
        raise ValueError("one direction per type")
    return flags


class _Emitter:
    """Collects the expressions of one encoder; what has a fixed size is gathered into one struct until `flush`."""

    def __init__(self, scope: dict[str, Any], prefix: bytes) -> None:
        self.scope = scope
        self.parts: list[str] = []
        self._constant = prefix
        self._code = ">"
        self._arguments: list[str] = []

    def constant(self, data: bytes) -> None:
        self._constant += data

    def packed(self, letter: str, expression: str) -> None:
        self._code += f"{len(self._constant)}s{letter}"
        self._arguments += [repr(self._constant), expression]
        self._constant = b""

    def expression(self, source: str) -> None:
        self.flush()
        self.parts.append(source)

    def flush(self) -> None:
        if self._arguments:
            if self._constant:
                self._code += f"{len(self._constant)}s"
                self._arguments.append(repr(self._constant))
            name = f"pack{len(self.parts)}"
            self.scope[name] = struct.Struct(self._code).pack
            self.parts.append(f"{name}({', '.join(self._arguments)})")
        elif self._constant:
            self.parts.append(repr(self._constant))
        self._constant, self._code, self._arguments = b"", ">", []

    def source(self) -> str:
        self.flush()
        return concatenation(self.parts) or "b''"


def is_fixed_size(types: Sequence[Type]) -> bool:
    """Whether all keys of these types are equally long, but for NULLs: none can be too long."""
    return all(key_tag(type_.kind) in _STRUCT for type_ in types)


def compile_encoder(types: Sequence[Type], descending: Sequence[bool] = (), *, prefix: bytes = b"") -> KeyEncoder:
    """A function from a sequence of internal values to `prefix` + key, the same bytes as `encode_key`'s.

    Neighbours of fixed size are packed by one struct; a NULL, or a value that does not fit, takes the slow path.
    """
    return _encoder(tuple([type_.kind for type_ in types]), _flags(types, descending), prefix)


@lru_cache(maxsize=4096)
def _encoder(kinds: tuple[Kind, ...], flags: tuple[bool, ...], prefix: bytes) -> KeyEncoder:
    def slow(values: Sequence[Any]) -> bytes:
        parts = [encode_component(value, kind, flag) for value, kind, flag in zip(values, kinds, flags, strict=True)]
        return prefix + b"".join(parts)

    emitter = _Emitter({**_SCOPE, "slow": slow}, prefix)
    for i, (kind, flag) in enumerate(zip(kinds, flags, strict=True)):
        family = key_tag(kind)
        tag = bytes([family ^ 0xFF if flag else family])
        reverse = ".translate(COMPLEMENT)" if flag else ""
        if family in _STRUCT:
            emitter.constant(tag)
            emitter.packed(_STRUCT[family][0], _STRUCT[family][2 if flag else 1].format(f"c{i}"))
        elif family in _INLINE:
            emitter.constant(tag)
            emitter.expression(_INLINE[family].format(f"c{i}") + reverse)
            emitter.constant(TERMINATOR.translate(COMPLEMENT) if flag else TERMINATOR)
        else:
            emitter.scope[f"component{i}"] = _COMPONENTS[family]
            emitter.expression(f"component{i}(c{i}){reverse}")
    names = "".join(f"c{i}, " for i in range(len(kinds)))
    lines = [
        "def encode_key(values):",
        "    try:",
        f"        {names or '()'} = values",
        f"        return {emitter.source()}",
        "    except (TypeError, AttributeError, struct_error, UnicodeEncodeError):",
        "        return slow(values)",
    ]
    encoder: KeyEncoder = compile_function("encode_key", lines, emitter.scope)
    return encoder


def _with_scale(value: Decimal, scale: int, data: bytes, position: int) -> Decimal:
    try:
        return value.quantize(Decimal((0, (1,), -scale)), context=WIDE)
    except InvalidOperation:
        raise corrupted(f"a numeric of scale {scale}", data, position) from None


def _slow_decoder(types: Sequence[Type], flags: Sequence[bool]) -> KeyDecoder:
    expected = [(key_tag(type_.kind), flag, type_) for type_, flag in zip(types, flags, strict=True)]

    def decode(data: bytes, offset: int) -> tuple[tuple[Any, ...], int]:
        values = []
        for family, flag, type_ in expected:
            start = offset
            value, tag, descending, offset = decode_component(data, start)
            if descending != flag or tag not in (family, TAG_NULL):
                raise corrupted(f"a component of type {type_.kind.value}", data, start)
            if tag == TAG_NUMERIC and type_.precision is not None and not value.is_nan():
                value = _with_scale(value, type_.scale or 0, data, start)
            values.append(value)
        return tuple(values), offset

    return decode


def compile_decoder(types: Sequence[Type], descending: Sequence[bool] = ()) -> KeyDecoder:
    """A function (data, offset) -> (values, end). XX001 if other components stand there.

    A numeric(p,s) comes back with its scale; an unconstrained one has lost its trailing zeros: read the row for those.
    """
    flags = _flags(types, descending)
    slow = _slow_decoder(types, flags)
    code, names, outputs, checks = ">", "", "", []
    for i, (type_, flag) in enumerate(zip(types, flags, strict=True)):
        family = key_tag(type_.kind)
        if family not in _STRUCT or (family == TAG_UUID and flag):
            return slow
        letter = _STRUCT[family][0]
        code += f"B{letter}"
        names += f"t{i}, p{i}, "
        outputs += _UNPACKED.get(letter, ("{}", "{}"))[flag].format(f"p{i}") + ", "
        checks.append(f"t{i} == {family ^ 0xFF if flag else family}")
        if letter == "B":
            checks.append(f"p{i} >= 254" if flag else f"p{i} <= 1")
    if not types:
        return slow
    fixed = struct.Struct(code)
    lines = [
        "def decode_key(data, offset):",
        f"    if len(data) - offset < {fixed.size}:",
        "        return slow(data, offset)",
        f"    {names} = unpack(data, offset)",
        f"    if {' and '.join(checks)}:",
        f"        return ({outputs}), offset + {fixed.size}",
        "    return slow(data, offset)",
    ]
    decoder: KeyDecoder = compile_function("decode_key", lines, {**_SCOPE, "unpack": fixed.unpack_from, "slow": slow})
    return decoder


# Ranges ------------------------------------------------------------------------------------------------------------


def successor(prefix: bytes) -> bytes:
    """The smallest bytes above every key that begins with `prefix`: [prefix, successor(prefix)) are those keys."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else prefix + b"\xff"


def key_range(
    prefix: bytes,
    type_: Type,
    descending: bool = False,
    *,
    low: Any = None,
    low_inclusive: bool = True,
    high: Any = None,
    high_inclusive: bool = True,
) -> tuple[bytes, bytes]:
    """[start, stop) of the keys that begin with `prefix` and whose next component is within the bounds, NULL never.

    A bound of None is open: both open is IS NOT NULL. Bounds are by value, whatever the direction.
    """
    null = NULL_DESCENDING if descending else NULL_ASCENDING
    first, first_inclusive, last, last_inclusive = low, low_inclusive, high, high_inclusive
    if descending:
        first, first_inclusive, last, last_inclusive = high, high_inclusive, low, low_inclusive
    if first is None:
        start = successor(prefix + null) if descending else prefix
    else:
        start = prefix + encode_component(first, type_.kind, descending)
        start = start if first_inclusive else successor(start)
    if last is None:
        return start, successor(prefix) if descending else prefix + null
    stop = prefix + encode_component(last, type_.kind, descending)
    return start, successor(stop) if last_inclusive else stop


def text_range(prefix: bytes, beginning: str, descending: bool = False) -> tuple[bytes, bytes]:
    """[start, stop) of the keys that begin with `prefix` and whose next component is a text with this beginning."""
    start = prefix + encode_component(beginning, Kind.TEXT, descending)[: -len(TERMINATOR)]
    return start, successor(start)


# Long keys ---------------------------------------------------------------------------------------------------------


def limited_primary_key(key: bytes, skip: int = 0) -> bytes:
    """`key`, or 54000 if it has more than MAX_PRIMARY_KEY_BYTES after its first `skip` (a rowset prefix)."""
    if len(key) - skip > MAX_PRIMARY_KEY_BYTES:
        raise error(
            LIMIT_EXCEEDED,
            f"primary key takes {len(key) - skip} bytes, more than the limit of {MAX_PRIMARY_KEY_BYTES}",
        )
    return key


def limited_index_key(key: bytes, skip: int = 0) -> bytes:
    """`key` (all components of an index, after `skip` bytes of rowset prefix), cut and hashed if it is too long.

    A key of more than MAX_INDEX_PART_BYTES becomes its first MAX_INDEX_PART_BYTES and a hash of the whole. The order
    between keys, cut or not, stays exact down to the cut; equal keys stay equal; and no other key becomes equal but by
    a collision of 128 bits. Entries with `is_cut` are candidates: whoever finds one compares the row.
    """
    if len(key) - skip <= MAX_INDEX_PART_BYTES:
        return key
    return key[: skip + MAX_INDEX_PART_BYTES] + blake2b(key[skip:], digest_size=HASH_BYTES).digest()


def limited_index_range(start: bytes, stop: bytes, skip: int = 0) -> tuple[bytes, bytes]:
    """The range of entries that holds every row whose whole index key lies in [start, stop), and some candidates."""
    size = skip + MAX_INDEX_PART_BYTES
    return start[:size], successor(stop[:size]) if len(stop) > size else stop


def is_cut(primary_offset: int) -> bool:
    """Whether the index entry whose primary key begins at this byte of its whole store key is cut and hashed."""
    return primary_offset > ROWSET_PREFIX_BYTES + MAX_INDEX_PART_BYTES
