"""Row bodies: NULL bitmap, slots of fixed size, then the variable part (specified in docs/formats/rows.md).

A `RowFormat` says where each column of a list of types lies; `compile_encoder` and `compile_reader` turn it into
functions specialised to it. Rows are read straight from the store's value, whose header (16 bytes) comes first.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, NamedTuple

from instar.encoding.generate import compile_function, concatenation
from instar.encoding.keys import WIDE
from instar.errors import (
    CHARACTER_NOT_IN_REPERTOIRE,
    DATA_CORRUPTED,
    NUMERIC_OUT_OF_RANGE,
    Error,
    error,
    unsupported,
)
from instar.types import MAX_NUMERIC_DIGITS, STRINGS, Kind, Type

BODY_OFFSET = 16  # of a body in a store value: the size of the row header
_LAYOUT, _FLAGS = 1 << 8, 0xFF  # a tag is a layout's id, and flags
_TAG_OFFSET = 12  # of layout id and flags in the row header
LOCK_BYTES = 8  # of a lock timestamp, of which there may be several between header and body

RowEncoder = Callable[[Sequence[Any]], bytes]
RowReader = Callable[[bytes], tuple[Any, ...]]

_CODES: dict[Kind, str] = {
    Kind.BOOLEAN: "?",
    Kind.SMALLINT: "h",
    Kind.INTEGER: "i",
    Kind.BIGINT: "q",
    Kind.REAL: "f",
    Kind.DOUBLE: "d",
    Kind.DATE: "i",
    Kind.TIMESTAMP: "q",
    Kind.TIMESTAMPTZ: "q",
    Kind.UUID: "16s",
}
SHORT_DIGITS = 18  # a numeric of at most this precision is a scaled 64-bit integer, else one of 128 bits
NAN_64 = -(2**63)  # NaN in a numeric(p,s), like the smallest 128-bit integer
NAN_128 = -(2**127)
_NAN = Decimal("NaN")


class Slot(NamedTuple):
    """Where a column lies: a fixed slot, or (code "I") the end offset of its bytes in the variable part."""

    offset: int  # from the start of the body
    code: str  # of struct
    variable: int | None  # its place among the variable columns


class RowFormat(NamedTuple):
    """The physical layout of one list of types; `fixed_size` is where the variable part begins, in the body, and
    `start` where the body does, in a store value."""

    types: tuple[Type, ...]
    words: tuple[tuple[int, str], ...]  # the NULL bitmap: offset and struct code of each word
    slots: tuple[Slot, ...]
    variables: tuple[int, ...]  # positions of the variable columns
    fixed_size: int
    start: int = BODY_OFFSET


def slot_code(type_: Type) -> str | None:
    """The struct code of a fixed slot, None for what lies in the variable part."""
    if type_.kind is Kind.NUMERIC and type_.precision is not None:
        if type_.precision > MAX_NUMERIC_DIGITS:
            raise unsupported(f"a precision above {MAX_NUMERIC_DIGITS}")
        return "q" if type_.precision <= SHORT_DIGITS else "16s"
    return _CODES.get(type_.kind)


def _bitmap_words(columns: int) -> list[str]:
    """The bitmap is 1, 2, 4 or 8 bytes, or as many words of 8 bytes as it takes."""
    for bits, code in ((8, "B"), (16, "H"), (32, "I")):
        if columns <= bits:
            return [code]
    return ["Q"] * ((columns + 63) // 64)


@lru_cache(maxsize=1024)
def row_format(types: tuple[Type, ...], locks: int = 0) -> RowFormat:
    """The format of rows of these columns: bitmap, fixed columns in order, end offsets of the variable ones; so many
    lock timestamps stand between header and body."""
    offset = 0
    words = []
    for code in _bitmap_words(len(types)):
        words.append((offset, code))
        offset += struct.calcsize("<" + code)
    slots: dict[int, Slot] = {}
    variables = []
    for i, type_ in enumerate(types):
        fixed = slot_code(type_)
        if fixed is None:
            variables.append(i)
        else:
            slots[i] = Slot(offset, fixed, None)
            offset += struct.calcsize("<" + fixed)
    for ordinal, i in enumerate(variables):
        slots[i] = Slot(offset, "I", ordinal)
        offset += 4
    in_order = tuple(slots[i] for i in range(len(types)))
    return RowFormat(types, tuple(words), in_order, tuple(variables), offset, BODY_OFFSET + LOCK_BYTES * locks)


# Values to slots ----------------------------------------------------------------------------------------------------


def scaled_integer(value: Decimal, scale: int) -> int:
    """value * 10^scale, which must be a whole number: 22003 if not."""
    scaled = value.scaleb(scale, WIDE)
    number = int(scaled)
    if number != scaled:
        raise error(NUMERIC_OUT_OF_RANGE, f"numeric {value} has more than {scale} decimal places")
    return number


def _to_short(value: Decimal, scale: int) -> int:
    if value.is_nan():
        return NAN_64
    return scaled_integer(value, scale)


def _to_long(value: Decimal, scale: int) -> bytes:
    number = NAN_128 if value.is_nan() else scaled_integer(value, scale)
    return number.to_bytes(16, "little", signed=True)


def numeric_text(value: Decimal | None) -> bytes:
    """A numeric without modifiers: plain decimal notation with every digit of its scale, or NaN; nothing for NULL."""
    if value is None:
        return b""
    if value.is_infinite():
        raise unsupported("an infinite numeric")
    return format(value, "f").encode() if not value.is_nan() else b"NaN"


def decimal_of(number: int, scale: int) -> Decimal:
    """number / 10^scale, with that scale."""
    return Decimal(number).scaleb(-scale, WIDE)


def _from_long(data: bytes, scale: int) -> Decimal:
    number = int.from_bytes(data, "little", signed=True)
    return _NAN if number == NAN_128 else decimal_of(number, scale)


def _from_text(data: bytes) -> Decimal:
    value = Decimal(data.decode("ascii"))
    if value.is_infinite():
        raise ValueError("an infinite numeric")
    return value


# What generated source that deals with slots knows by name.
SLOT_SCOPE: dict[str, Any] = {
    "struct_error": struct.error,
    "InvalidOperation": InvalidOperation,
    "Decimal": Decimal,
    "WIDE": WIDE,
    "NAN": _NAN,
    "NAN_64": NAN_64,
    "to_short": _to_short,
    "to_long": _to_long,
    "numeric_text": numeric_text,
    "from_long": _from_long,
    "from_text": _from_text,
}


def pack_expression(type_: Type, name: str) -> str:
    """The value of `name` as its struct code wants it."""
    if type_.kind is Kind.NUMERIC:
        convert = "to_short" if slot_code(type_) == "q" else "to_long"
        return f"{convert}({name}, {type_.scale or 0})"
    return name


def bytes_expression(type_: Type, name: str) -> str:
    """The value of `name` as bytes of the variable part."""
    if type_.kind is Kind.BYTEA:
        return name
    return f"numeric_text({name})" if type_.kind is Kind.NUMERIC else f"{name}.encode()"


def _zero(type_: Type) -> str:
    """What stands in the slot of a NULL."""
    if type_.kind in STRINGS or type_.kind is Kind.JSONB:
        return "''"
    if type_.kind in (Kind.BYTEA, Kind.UUID):
        return "b''"
    if type_.kind is Kind.NUMERIC:
        return "None" if type_.precision is None else "Decimal(0)"
    return "0"


def _null_lines(form: RowFormat) -> list[str]:
    """Source that sets the bitmap words n0, n1 ... and replaces every NULL by a zero of its type."""
    columns = range(len(form.types))
    lines = ["    " + " = ".join(f"n{i}" for i in range(len(form.words))) + " = 0"]
    if not form.types:
        return lines
    lines.append("    if " + " or ".join(f"c{i} is None" for i in columns) + ":")
    for i in columns:
        word, bit = divmod(i, 64)
        lines.append(f"        if c{i} is None: n{word} |= {1 << bit:#x}; c{i} = {_zero(form.types[i])}")
    return lines


def unencodable(problem: Exception) -> Error:
    """The error for values that cannot be stored: 22021 for a lone surrogate, else 22003."""
    if isinstance(problem, UnicodeEncodeError):
        return error(CHARACTER_NOT_IN_REPERTOIRE, "a lone surrogate cannot be encoded as UTF-8")
    return error(NUMERIC_OUT_OF_RANGE, f"a value does not fit its column: {problem}")


def compile_encoder(form: RowFormat) -> RowEncoder:
    """A function from the internal values of all columns, in order, to a body.

    22003 for a number that does not fit its slot, 22021 for a lone surrogate.
    """
    names = "".join(f"c{i}, " for i in range(len(form.types)))
    lines = ["def encode_row(values):", f"    {names or '()'} = values", *_null_lines(form), "    try:"]
    end = "0"
    for ordinal, i in enumerate(form.variables):
        lines.append(f"        b{ordinal} = {bytes_expression(form.types[i], f'c{i}')}")
        lines.append(f"        e{ordinal} = {end} + len(b{ordinal})" if ordinal else "        e0 = len(b0)")
        end = f"e{ordinal}"
    fixed = [i for i, slot in enumerate(form.slots) if slot.variable is None]
    code = "<" + "".join(word for _, word in form.words) + "".join(form.slots[i].code for i in fixed)
    code += "I" * len(form.variables)
    arguments = [f"n{i}" for i in range(len(form.words))]
    arguments += [pack_expression(form.types[i], f"c{i}") for i in fixed]
    arguments += [f"e{ordinal}" for ordinal in range(len(form.variables))]
    parts = [f"pack({', '.join(arguments)})", *(f"b{ordinal}" for ordinal in range(len(form.variables)))]
    body = concatenation(parts)
    lines += [
        f"        return {body}",
        "    except (struct_error, OverflowError, InvalidOperation, UnicodeEncodeError) as problem:",
        "        raise unencodable(problem) from None",
    ]
    scope = {**SLOT_SCOPE, "pack": struct.Struct(code).pack, "unencodable": unencodable}
    encoder: RowEncoder = compile_function("encode_row", lines, scope)
    return encoder


# Slots to values ----------------------------------------------------------------------------------------------------


class Output(NamedTuple):
    """One column that a reader gives: the stored column `position`, converted; or (position None) a constant."""

    position: int | None
    convert: Callable[[Any], Any] | None = None
    constant: Any = None


def _value_expression(form: RowFormat, position: int, base: int) -> str:
    """The stored column's value, from the names that `compile_reader` unpacks into; `base`: the variable part."""
    type_, slot = form.types[position], form.slots[position]
    if slot.variable is None:
        name = f"s{position}"
        if type_.kind is not Kind.NUMERIC:
            return name
        scale = type_.scale or 0
        if slot.code != "q":
            return f"from_long({name}, {scale})"
        return f"(Decimal({name}).scaleb({-scale}, WIDE) if {name} != NAN_64 else NAN)"
    start = f"e{slot.variable - 1} + {base}" if slot.variable else str(base)
    data = f"data[{start}:e{slot.variable} + {base}]"
    if type_.kind is Kind.BYTEA:
        return data
    return f"from_text({data})" if type_.kind is Kind.NUMERIC else f"{data}.decode()"


class Unpacking:
    """The one struct that reads what a reader needs and skips the rest; names in the order of the bytes."""

    def __init__(self, form: RowFormat, positions: set[int], offset: int, tagged: bool) -> None:
        self.masks: dict[int, int] = {}
        fields: dict[int, tuple[str, str]] = {_TAG_OFFSET - offset: ("tag", "I")} if tagged else {}
        ends: set[int] = set()
        for position in positions:
            word, bit = divmod(position, 64)
            self.masks[word] = self.masks.get(word, 0) | 1 << bit
            slot = form.slots[position]
            if slot.variable is None:
                fields[slot.offset] = (f"s{position}", slot.code)
            else:
                ends.update({slot.variable, slot.variable - 1} - {-1})
        for word in self.masks:
            fields[form.words[word][0]] = (f"n{word}", form.words[word][1])
        for ordinal in ends:
            fields[form.slots[form.variables[ordinal]].offset] = (f"e{ordinal}", "I")
        code, at = "<", -offset
        for start in sorted(fields):
            code += f"{start - at}x" if start > at else ""
            code += fields[start][1]
            at = start + struct.calcsize("<" + fields[start][1])
        self.struct = struct.Struct(code)
        self.names = "".join(f"{fields[start][0]}, " for start in sorted(fields))
        self.ends = [f"e{ordinal}" for ordinal in sorted(ends)]


def damaged_row(data: bytes, why: str = "too short") -> Error:
    """XX001 for a row value that is not what its layout says."""
    return error(DATA_CORRUPTED, f"damaged row: {why}: {bytes(data[:64]).hex()}")


def _reader_source(unpacking: Unpacking, plain: list[str], checked: list[str], base: int, *, tagged: bool) -> list[str]:
    """The lines of a reader; `plain` and `checked` are its outputs for rows without and with NULLs."""
    lines = ["def read_row(data):", "    try:", f"        {unpacking.names} = unpack(data)"]
    if tagged:
        # Written out: most rows are in the newest layout, and most others in a run of those before it.
        run = f"(tags.low <= tag <= tags.high and not tag & {_FLAGS})"
        lines += [f"        if tag != wanted_tag and not {run} and tag not in tags.others:", "            return None"]
    if unpacking.ends:
        lines.append(f"        if not {' <= '.join(unpacking.ends)} <= len(data) - {base}:")
        lines.append("            raise damaged_row(data, 'bad offsets')")
    if unpacking.masks:
        nulls = " or ".join(f"n{word} & {mask:#x}" for word, mask in unpacking.masks.items())
        lines += [f"        if {nulls}:", f"            return ({', '.join(checked)},)"]
    lines += [
        f"        return ({''.join(value + ', ' for value in plain)})",
        "    except struct_error:",
    ]
    if tagged:
        # A deleted row has no body, and a row of another layout may have a shorter one.
        header = f"data[{_TAG_OFFSET}:{BODY_OFFSET}]"
        lines += [f"        if len(data) >= {BODY_OFFSET} and int.from_bytes({header}, 'little') not in tags:"]
        lines += ["            return None"]
    lines += [
        "        raise damaged_row(data) from None",
        "    except (UnicodeDecodeError, InvalidOperation, ValueError):",
        "        raise damaged_row(data, 'bad text') from None",
    ]
    return lines


class Tags:
    """The tags, without flags, that rows of the layouts bear which one reader reads: `first`, all from `low` to `high`,
    and `others`. Layouts that come one after the other are a run, not a set without end: that would be cold memory."""

    __slots__ = ("first", "high", "low", "others")

    def __init__(self, layout: int) -> None:
        self.first = self.low = self.high = layout * _LAYOUT
        self.others: set[int] = set()

    def __contains__(self, tag: int) -> bool:
        return tag in self.others or (self.low <= tag <= self.high and not tag & _FLAGS)

    def add(self, layout: int) -> None:
        """Rows of that layout are read so, too. Threads may add at once: what is put at an end of the run was found to
        be here by who puts it. So what one has added may be forgotten for another's sake, and is met again; what nobody
        has added is never here."""
        tag = layout * _LAYOUT
        if tag in self:
            return
        others, low, high = self.others, self.low, self.high
        others.add(tag)
        while high + _LAYOUT in others:
            high += _LAYOUT
            others.discard(high)
        while low - _LAYOUT in others:
            low -= _LAYOUT
            others.discard(low)
        self.low, self.high = low, high


@lru_cache(maxsize=1024)
def _plain_reader(lines: tuple[str, ...], code: str) -> RowReader:
    """The reader of these lines, which unpacks by a struct's format and needs nothing else. One for all formats that it
    serves: so rows of two of them are known to be read alike."""
    scope = {**SLOT_SCOPE, "unpack": struct.Struct(code).unpack_from, "damaged_row": damaged_row}
    reader: RowReader = compile_function("read_row", lines, scope)
    return reader


def compile_reader(
    form: RowFormat, outputs: Sequence[Output], offset: int | None = None, tags: Tags | None = None
) -> RowReader:
    """A function from a store value, whose body begins at `offset` (None: where the format says), to the tuple of
    `outputs`; the same one where values are read alike, and nothing is converted nor constant.

    With `tags`, layout and flags of the row's header are read along, and values that bear none of those give None.
    There is one at first, and may come more, of rows that are read alike. XX001 for bytes that are no row of this
    format. Errors of an output's `convert` pass through.
    """
    offset = form.start if offset is None else offset
    positions = {output.position for output in outputs if output.position is not None}
    constants = {f"k{i}": output.constant for i, output in enumerate(outputs) if output.position is None}
    if not positions and tags is None:
        fixed = tuple(constants.values())
        return lambda data: fixed
    unpacking = Unpacking(form, positions, offset, tags is not None)
    base = offset + form.fixed_size
    plain, checked = [], []
    for i, output in enumerate(outputs):
        if output.position is None:
            plain.append(f"k{i}")
            checked.append(f"k{i}")
            continue
        value = _value_expression(form, output.position, base)
        if output.convert is not None:
            constants[f"f{i}"] = output.convert
            value = f"f{i}({value})"
        word, bit = divmod(output.position, 64)
        plain.append(value)
        checked.append(f"None if n{word} & {1 << bit:#x} else {value}")
    lines = _reader_source(unpacking, plain, checked, base, tagged=tags is not None)
    if not constants and tags is None:
        return _plain_reader(tuple(lines), unpacking.struct.format)
    scope = {**SLOT_SCOPE, **constants, "unpack": unpacking.struct.unpack_from, "damaged_row": damaged_row}
    if tags is not None:
        scope |= {"wanted_tag": tags.first, "tags": tags}
    reader: RowReader = compile_function("read_row", lines, scope)
    return reader


def compile_decoder(form: RowFormat, offset: int | None = None) -> RowReader:
    """A reader of all columns in order."""
    return compile_reader(form, [Output(position) for position in range(len(form.types))], offset)
