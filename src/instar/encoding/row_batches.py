"""Row bodies by the batch: many stored rows of one format to Arrow arrays and back, without a Python step per value.

Stored values lie in one buffer. The fixed parts become a structured NumPy array (a view if all values are adjacent and
of one size, else one gather); a variable column becomes an Arrow array whose offsets point into the buffer, compacted
by one `take`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from instar.encoding import arrow_compute
from instar.encoding.joined import Array, Joined
from instar.encoding.rows import NAN_64, RowFormat, damaged_row
from instar.errors import (
    CHARACTER_NOT_IN_REPERTOIRE,
    INVALID_TEXT,
    NUMERIC_OUT_OF_RANGE,
    STRING_TOO_LONG,
    error,
    unsupported,
)
from instar.types import STRINGS, Kind, Type

Column = Any  # a pyarrow.Array: its stubs are generic in scalar types that are known at run time only

BatchEncoder = Callable[..., list[bytes]]

_ARROW_TYPES: dict[Kind, pa.DataType] = {
    Kind.BOOLEAN: pa.bool_(),
    Kind.SMALLINT: pa.int16(),
    Kind.INTEGER: pa.int32(),
    Kind.BIGINT: pa.int64(),
    Kind.REAL: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    # Exact at any scale: no DECIMAL that DuckDB has (38 digits, one scale) holds both 1e30 and 1e-30.
    Kind.NUMERIC: pa.string(),
    Kind.TEXT: pa.string(),
    Kind.VARCHAR: pa.string(),
    Kind.BYTEA: pa.binary(),
    Kind.DATE: pa.date32(),
    Kind.TIMESTAMP: pa.timestamp("us"),
    Kind.TIMESTAMPTZ: pa.timestamp("us", "UTC"),
    Kind.UUID: pa.binary(16),
    Kind.JSONB: pa.string(),
}
_DTYPES = {
    "?": "u1", "h": "<i2", "i": "<i4", "q": "<i8", "f": "<f4", "d": "<f8", "16s": "V16",
    "B": "u1", "H": "<u2", "I": "<u4", "Q": "<u8",
}  # fmt: skip


def arrow_type(type_: Type) -> pa.DataType:
    """The Arrow type of a column. A numeric without modifiers travels as text, all others as themselves."""
    if type_.kind is Kind.NUMERIC and type_.precision is not None:
        return pa.decimal128(type_.precision, type_.scale or 0)
    try:
        return _ARROW_TYPES[type_.kind]
    except KeyError:
        raise unsupported(f"an Arrow column of type {type_.kind.value}") from None


def _dtype(form: RowFormat, header: int = 0) -> np.dtype[Any]:
    """Bitmap words n0..., slots s0..., after `header` bytes."""
    fields = {f"n{i}": (header + offset, _DTYPES[code]) for i, (offset, code) in enumerate(form.words)}
    fields |= {f"s{i}": (header + slot.offset, _DTYPES[slot.code]) for i, slot in enumerate(form.slots)}
    return np.dtype(
        {
            "names": list(fields),
            "offsets": [offset for offset, _ in fields.values()],
            "formats": [code for _, code in fields.values()],
            "itemsize": header + form.fixed_size,
        }
    )


def _fixed_parts(joined: Joined, form: RowFormat, dtype: np.dtype[Any]) -> Array:
    """The fixed parts as one structured array."""
    if joined.shortest() < form.start + form.fixed_size:
        raise damaged_row(joined.value(int(np.argmin(joined.ends - joined.starts))))
    return joined.parts(form.start, dtype)


def _buffer(data: Any) -> pa.Buffer:
    return pa.py_buffer(data)


def _validity(valid: Array | None) -> pa.Buffer | None:
    return None if valid is None else _buffer(np.packbits(valid, bitorder="little"))


def _decimals(slots: Array, valid: Array | None) -> tuple[Array, Array | None]:
    """128-bit integers as pairs of 64, and where there is NaN, if anywhere, which Arrow's decimals do not have."""
    pairs = np.empty((len(slots), 2), np.int64)
    if slots.dtype.itemsize == 8:
        pairs[:, 0] = slots
        pairs[:, 1] = slots >> 63
        strange = slots == NAN_64
    else:
        pairs[:] = np.ascontiguousarray(slots).view(np.int64).reshape(-1, 2)
        strange = (pairs[:, 1] == NAN_64) & (pairs[:, 0] == 0)
    if valid is not None:
        strange &= valid
    return pairs, strange if bool(strange.any()) else None


def _fixed_array(type_: Type, slots: Array, valid: Array | None, *, nan_as_text: bool) -> Column:
    strange = None
    if type_.kind is Kind.BOOLEAN:
        data = np.packbits(slots != 0, bitorder="little")
    elif type_.kind is Kind.NUMERIC:
        data, strange = _decimals(slots, valid)
    else:
        data = np.ascontiguousarray(slots)
    if strange is None:
        return pa.Array.from_buffers(arrow_type(type_), len(slots), [_validity(valid), _buffer(data)])
    if not nan_as_text:
        raise unsupported(f"reading NaN from a whole column of type {type_}")
    data[strange] = 0
    array: Any = pa.Array.from_buffers(arrow_type(type_), len(slots), [_validity(valid), _buffer(data)])
    values = zip(array.to_pylist(), strange.tolist(), strict=True)
    texts: list[Any] = ["NaN" if nan else None if value is None else format(value, "f") for value, nan in values]
    return pa.array(texts, pa.string())


def _variable_array(type_: Type, joined: Joined, pieces: tuple[Array, Array], valid: Array | None) -> Column:
    """The bytes [begins, stops) of the buffer as one compact array."""
    count = len(joined.starts)
    taken = _taken(joined, *pieces)
    try:
        array = taken.cast(arrow_type(type_))  # to string: validates UTF-8
    except pa.ArrowInvalid:
        raise damaged_row(joined.value(0), "bad text in a batch") from None
    if valid is None:
        return array
    return pa.Array.from_buffers(array.type, count, [_validity(valid), *array.buffers()[1:]])


def _taken(joined: Joined, begins: Array, stops: Array) -> Column:
    """Every second piece of the buffer, cut at all begins and stops, taken in the order of the values.

    Arrow's offsets ascend, so where values do not lie in their order, neither do the pieces.
    """
    count = len(begins)
    index = np.arange(0, 2 * count, 2, dtype=np.int32)
    if not joined.ascending():
        order = np.argsort(joined.starts, kind="stable")
        begins, stops = begins[order], stops[order]
        places = np.empty(count, np.int32)
        places[order] = index
        index = places
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = begins
    offsets[1::2] = stops
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, _buffer(offsets), _buffer(joined.buffer)])
    return pieces.take(index)


class _Ends:
    """The bounds of the variable columns of a batch, checked once each."""

    def __init__(self, joined: Joined, form: RowFormat, fixed: Array) -> None:
        self._joined, self._form, self._fixed = joined, form, fixed
        self._base = joined.starts + (form.start + form.fixed_size)
        self._known: dict[int, Array] = {-1: self._base}

    def end(self, ordinal: int) -> Array:
        """Where variable column `ordinal` ends, as positions in the joined buffer."""
        if ordinal not in self._known:
            ends = self._fixed[f"s{self._form.variables[ordinal]}"] + self._base
            wrong = (ends < self._base) | (ends > self._joined.ends)
            if bool(wrong.any()):
                self._damaged(wrong)
            self._known[ordinal] = ends
        return self._known[ordinal]

    def bounds(self, ordinal: int) -> tuple[Array, Array]:
        begins, stops = self.end(ordinal - 1), self.end(ordinal)
        wrong = begins > stops
        if bool(wrong.any()):
            self._damaged(wrong)
        return begins, stops

    def _damaged(self, wrong: Array) -> None:
        raise damaged_row(self._joined.value(int(np.argmax(wrong))), "bad offsets")


def decode_columns(
    joined: Joined, form: RowFormat, positions: Sequence[int], nan_as_text: Collection[int] = ()
) -> list[Column]:
    """The stored columns at `positions` of values that are all in `form`, as arrays of `arrow_type`. XX001; 0A000 for
    NaN in a decimal, but for the positions `nan_as_text`, which are text if there is one."""
    count = len(joined.starts)
    if not count:
        return [pa.array([], arrow_type(form.types[position])) for position in positions]
    fixed = _fixed_parts(joined, form, _dtype(form))
    words = {position // 64 for position in positions}
    bitmaps = {word: np.ascontiguousarray(fixed[f"n{word}"]) for word in words}
    nulls = {word: int(np.bitwise_or.reduce(bitmaps[word])) for word in words}
    ends = _Ends(joined, form, fixed)
    arrays = []
    for position in positions:
        word, bit = divmod(position, 64)
        valid = None
        if nulls[word] >> bit & 1:
            bitmap = bitmaps[word]
            valid = (bitmap >> bitmap.dtype.type(bit)) & bitmap.dtype.type(1) == 0
        slot = form.slots[position]
        if slot.variable is None:
            slots, as_text = fixed[f"s{position}"], position in nan_as_text
            arrays.append(_fixed_array(form.types[position], slots, valid, nan_as_text=as_text))
        else:
            arrays.append(_variable_array(form.types[position], joined, ends.bounds(slot.variable), valid))
    return arrays


# Arrow to rows ------------------------------------------------------------------------------------------------------


def conformed(column: Column, type_: Type) -> Column:
    """The column in its Arrow type, and what Arrow does not check: 22003, 22001, 22021, 22P02."""
    wanted = arrow_type(type_)
    if column.type != wanted:
        try:
            column = column.cast(wanted)
        except pa.ArrowInvalid as problem:
            raise error(NUMERIC_OUT_OF_RANGE, f"a value does not fit type {type_}: {problem}") from None
        except pa.ArrowNotImplementedError:
            raise unsupported(f"loading {column.type} into a column of type {type_}") from None
    if not pa.types.is_string(wanted):
        return column
    if _has_nul(column):
        raise error(CHARACTER_NOT_IN_REPERTOIRE, "a text cannot contain NUL")
    if type_.kind is Kind.NUMERIC:
        good = arrow_compute.all(
            arrow_compute.match_substring_regex(column, r"^(-?[0-9]+(\.[0-9]+)?|NaN)$"), min_count=0
        )
        if not good.as_py():
            raise error(INVALID_TEXT, "invalid input syntax for type numeric in a batch")
    elif type_.kind in STRINGS and type_.length is not None:
        longest = arrow_compute.max(arrow_compute.utf8_length(column)).as_py()
        if longest is not None and longest > type_.length:
            raise error(STRING_TOO_LONG, f"value too long for type {type_}")
    return column


def _has_nul(column: Column) -> bool:
    """Whether a value of a string column contains the character NUL: looked for in all of its bytes at once."""
    count = len(column)
    _, offsets, text = column.buffers()
    if not count or text is None:
        return False
    bounds = np.frombuffer(offsets, np.int32, count + 1, 4 * column.offset)
    if not bool((np.frombuffer(text, np.uint8)[bounds[0] : bounds[-1]] == 0).any()):
        return False
    # What lies under a NULL is anything, and no value.
    return not column.null_count or bool(arrow_compute.any(arrow_compute.match_substring(column, "\0")).as_py())


def _slot_values(column: Column, type_: Type, code: str) -> Array:
    """What goes into the slots of a fixed column; anything where it is NULL."""
    count = len(column)
    if type_.kind is Kind.BOOLEAN:
        values: Array = column.fill_null(False).to_numpy(zero_copy_only=False)
        return values
    data = column.buffers()[1]
    if type_.kind is not Kind.NUMERIC or code == "16s":
        dtype = np.dtype(_DTYPES[code])
        slots: Array = np.frombuffer(data, dtype, count, column.offset * dtype.itemsize)
        return slots
    pairs: Array = np.frombuffer(data, np.int64, 2 * count, column.offset * 16).reshape(-1, 2)
    if column.null_count == 0 and bool((pairs[:, 0] >> 63 != pairs[:, 1]).any()):
        raise error(NUMERIC_OUT_OF_RANGE, f"a value does not fit type {type_}")
    short: Array = pairs[:, 0]
    return short


def _bodies(fixed: Array, variables: list[Column]) -> list[bytes]:
    """Fixed parts and variable columns, joined row by row."""
    size = fixed.dtype.itemsize
    if not variables:
        plain: list[bytes] = fixed.view(f"V{size}").tolist()
        return plain
    offsets = np.arange(0, (len(fixed) + 1) * size, size, dtype=np.int64)
    head = pa.Array.from_buffers(pa.large_binary(), len(fixed), [None, _buffer(offsets), _buffer(fixed)])
    parts = [head, *(column.cast(pa.large_binary()) for column in variables)]
    joined = arrow_compute.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))
    bodies: list[bytes] = joined.to_numpy(zero_copy_only=False).tolist()
    return bodies


def compile_batch_encoder(form: RowFormat) -> BatchEncoder:
    """A function (record batch with the format's columns in order, header=b"") -> `header` + body of each row.

    Columns are cast to `arrow_type` where they differ. 22003, 22001, 22021, 22P02 for values that do not fit.
    """

    def encode(batch: pa.RecordBatch, header: bytes = b"") -> list[bytes]:
        count = batch.num_rows
        columns = [conformed(column, type_) for column, type_ in zip(batch.columns, form.types, strict=True)]
        if not count:
            return []
        fixed = np.zeros(count, _dtype(form, len(header)))
        if header:
            fixed.view(np.uint8).reshape(count, -1)[:, : len(header)] = np.frombuffer(header, np.uint8)
        end = np.zeros(count, np.uint32)
        variables = []
        for i, (column, type_, slot) in enumerate(zip(columns, form.types, form.slots, strict=True)):
            null = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
            if null is not None:
                word, bit = divmod(i, 64)
                words = fixed[f"n{word}"]
                words |= null.astype(words.dtype) << words.dtype.type(bit)
            if slot.variable is not None:
                column = column.fill_null("" if pa.types.is_string(column.type) else b"")
                end = end + arrow_compute.binary_length(column).to_numpy(zero_copy_only=False).astype(np.uint32)
                fixed[f"s{i}"] = end
                variables.append(column)
            else:
                fixed[f"s{i}"] = _slot_values(column, type_, slot.code)
                if null is not None:
                    fixed[f"s{i}"][null] = np.zeros((), fixed.dtype[f"s{i}"])
        return _bodies(fixed, variables)

    return encode
