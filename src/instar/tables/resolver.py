"""Written layout x wanted columns -> reader (thesis §3.2): how a row of any layout is read under any schema.

A column is found by its id. One that the written layout lacks gives its frozen `missing` value; one of another type is
converted: always if the type was widened; under an older schema, whose type is the narrower one, if this row's value
fits, else 40001. One that took the place of another, with a type of its own, is derived of what the row has.
Readers are built once per pair and cached for the process: layouts are immutable.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from instar.catalog.descriptors import Column, Derivation, Layout
from instar.catalog.layouts import Outline, outline_of
from instar.encoding import arrow_compute
from instar.encoding.arrow_values import arrow_array, internal_values
from instar.encoding.joined import Joined, join_values
from instar.encoding.keys import WIDE
from instar.encoding.row_batches import arrow_type, decode_columns
from instar.encoding.rows import BODY_OFFSET, Output, RowReader, Tags, compile_reader, damaged_row
from instar.errors import SERIALIZATION_FAILURE, Error, error, unsupported
from instar.tables.derivations import Compute, computation
from instar.tables.layout import body_encoder, layout_format
from instar.types import INTEGER_RANGES, STRINGS, Kind, Type
from instar.values import from_text

Convert = Callable[[Any], Any]
ArrayConvert = Callable[[Any], Any]  # of pyarrow arrays
BatchReader = Callable[[Sequence[bytes]], list[Any]]  # stored values of one or several layouts -> pyarrow arrays

LAYOUT_OFFSET = 12  # of `layout id << 8 | flags` (u32) in a row's header
_WIDENED = {
    Kind.SMALLINT: {Kind.INTEGER, Kind.BIGINT},
    Kind.INTEGER: {Kind.BIGINT},
    Kind.REAL: {Kind.DOUBLE},
}


class Wanted(NamedTuple):
    """A column that a reader gives: its id, its type in the reader's schema, and the internal value that rows in
    layouts without it have, or what it is derived of there (`lenient`: NULL where that fails)."""

    column: int
    type: Type
    missing: Any = None
    derived: Derivation | None = None
    lenient: bool = False


def is_widening(old: Type, new: Type) -> bool:
    """Whether every value of `old` is one of `new`, in the same key family: a change of metadata alone.

    Integers to numeric are none: their keys differ, so indexes would have to be rebuilt.
    """
    if old == new or new.kind in _WIDENED.get(old.kind, ()):
        return True
    if old.kind in STRINGS and new.kind in STRINGS:
        return new.length is None or (old.length is not None and old.length <= new.length)
    if old.kind is Kind.NUMERIC and new.kind is Kind.NUMERIC:
        if new.precision is None or old.precision is None:
            return new.precision is None
        old_scale, new_scale = old.scale or 0, new.scale or 0
        return new_scale >= old_scale and new.precision - new_scale >= old.precision - old_scale
    return False


def _does_not_fit(type_: Type) -> Error:
    return error(
        SERIALIZATION_FAILURE,
        f"a row written under a newer schema does not fit type {type_} of this transaction's schema",
        hint="Try the transaction again.",
    )


# One value ----------------------------------------------------------------------------------------------------------


def _narrow_integer(type_: Type) -> Convert:
    low, high = INTEGER_RANGES[type_.kind]

    def convert(value: int) -> int:
        if not low <= value <= high:
            raise _does_not_fit(type_)
        return value

    return convert


def _narrow_float(value: float) -> float:
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        raise _does_not_fit(Type(Kind.REAL)) from None
    if rounded != value and value == value:
        raise _does_not_fit(Type(Kind.REAL))
    return rounded


def _narrow_text(type_: Type, length: int) -> Convert:
    def convert(value: str) -> str:
        if len(value) > length:
            raise _does_not_fit(type_)
        return value

    return convert


def _rescale(type_: Type, precision: int) -> Convert:
    """Numeric to numeric(p,s): the same value with scale s, or 40001."""
    scale = type_.scale or 0
    unit = Decimal((0, (1,), -scale))
    limit = Decimal((0, (1,), precision - scale))

    def convert(value: Decimal) -> Decimal:
        if value.is_nan():
            return value
        try:
            scaled = value.quantize(unit, context=WIDE)
        except InvalidOperation:
            raise _does_not_fit(type_) from None
        if scaled != value or abs(scaled) >= limit:
            raise _does_not_fit(type_)
        return scaled

    return convert


def conversion(written: Type, wanted: Type) -> Convert | None:
    """How a value of the written type becomes one of the wanted type; None: as it is. 40001 for unrelated types."""
    if written == wanted:
        return None
    widening = is_widening(written, wanted)
    if not widening and not is_widening(wanted, written) and not _alike(written, wanted):
        raise error(
            SERIALIZATION_FAILURE,
            f"a column of type {written} cannot be read as {wanted} under this transaction's schema",
        )
    if wanted.kind is Kind.NUMERIC:
        return None if wanted.precision is None else _rescale(wanted, wanted.precision)
    if widening:
        return None
    if wanted.kind in INTEGER_RANGES:
        return _narrow_integer(wanted)
    if wanted.kind is Kind.REAL:
        return _narrow_float
    return None if wanted.length is None else _narrow_text(wanted, wanted.length)


def _alike(one: Type, other: Type) -> bool:
    """Whether some values of either type may be values of the other, though neither is wider."""
    return (one.kind in STRINGS and other.kind in STRINGS) or one.kind is other.kind is Kind.NUMERIC


# Whole rows ---------------------------------------------------------------------------------------------------------


class _Frozen:
    """A missing value as part of a cache's key: 1, True and 1.0, or 1.0 and 1.00, are equal but not the same."""

    __slots__ = ("text", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.text = repr(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Frozen) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


Key = tuple[tuple[int, Type, _Frozen, Derivation | None, bool], ...]


def _key(wanted: Sequence[Wanted]) -> Key:
    return tuple([(one.column, one.type, _Frozen(one.missing), one.derived, one.lenient) for one in wanted])


class Wants:
    """A list of wanted columns in the form in which readers are looked up for it.

    A reader depends on where columns stand and of which types they are, and on nothing else of a layout. So columns
    are numbered by their places in the list, and those that nobody wants are all alike: a column that comes and goes
    makes layouts without end, and two readers.
    """

    __slots__ = ("_numbers", "columns", "key")

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self.key = _key(wanted)
        self.columns = tuple([one.column for one in wanted])
        self._numbers: dict[int, int] | None = None
        if all(one.derived is None for one in wanted):  # else there are columns beside them that they are derived of
            numbers = self._numbers = {}
            for number, one in enumerate(wanted, 1):
                numbers.setdefault(one.column, number)
            self.key = tuple([(numbers[found[0]], *found[1:]) for found in self.key])

    def written(self, layout: Layout) -> Layout:
        """What readers ask of a layout: of those alike the same object, so that caches find it by its hash at once."""
        return self.outlined(outline_of(layout))

    def outlined(self, layout: Outline) -> Layout:
        """As `written`, of an outline that is at hand."""
        columns, shape = layout
        if self._numbers is None:
            return _numbered(shape, columns)
        number = self._numbers.get
        return _numbered(shape, tuple([number(column, 0) for column in columns]))


@lru_cache(maxsize=4096)
def _numbered(shape: Layout, numbers: tuple[int, ...]) -> Layout:
    columns = zip(numbers, shape.columns, strict=True)
    return Layout(0, tuple([(number, type_) for number, (_, type_) in columns]), shape.locks)


class _Derived(NamedTuple):
    """A wanted column that rows of a layout do not have: where it stands among the wanted ones, how it is computed, of
    which type, and where its sources stand behind the wanted columns."""

    place: int
    compute: Compute
    convert: Convert | None
    sources: slice
    types: tuple[Type, ...]


def source(column: Column) -> Wanted:
    """What a derivation asks the resolver for, of a column that it reads as it was then."""
    missing = None if column.missing is None else from_text(column.type, column.missing)
    return Wanted(column.id, column.type, missing, None if column.per_row else column.derived)


def _with_sources(written: Layout, wanted: Key) -> tuple[Key, list[_Derived]]:
    """What has to be read of rows in `written`, and what of `wanted` is computed of that."""
    stored = {column for column, _ in written.columns}
    read, derived = list(wanted), []
    for place, (column, type_, missing, derivation, lenient) in enumerate(wanted):
        if derivation is None or column in stored:
            continue
        read[place] = (column, type_, missing, None, False)
        begin = len(read)
        read.extend(_key([source(found) for found in derivation.sources]))
        types = tuple([found.type for found in derivation.sources])
        compute = computation(derivation, lenient=lenient)
        convert = conversion(derivation.type, type_)
        derived.append(_Derived(place, compute, convert, slice(begin, len(read)), types))
    return tuple(read), derived


def _outputs(written: Layout, wanted: Key) -> list[Output]:
    stored = {column: (position, type_) for position, (column, type_) in enumerate(written.columns)}
    outputs = []
    for column, type_, missing, _derived, _lenient in wanted:
        if column in stored:
            position, old = stored[column]
            outputs.append(Output(position, conversion(old, type_)))
        else:
            outputs.append(Output(None, None, missing.value))
    return outputs


@lru_cache(maxsize=4096)
def _resolver(written: Layout, wanted: Key) -> RowReader:
    return _reader(written, wanted, None)


def _reader(written: Layout, wanted: Key, tags: Tags | None) -> RowReader:
    """The reader of one layout; with `tags`, as `tagged_resolver` says."""
    read, derived = _with_sources(written, wanted)
    if not derived:
        return compile_reader(layout_format(written), _outputs(written, wanted), tags=tags)
    return _computed(_reader(written, read, tags), derived, len(wanted))


def _computed(
    read: Callable[[bytes], tuple[Any, ...] | None], derived: Sequence[_Derived], width: int
) -> Callable[[bytes], Any]:
    def computed(value: bytes) -> tuple[Any, ...] | None:
        row = read(value)
        if row is None:  # of another layout, or deleted
            return None
        made = list(row[:width])
        for place, compute, convert, sources, _types in derived:
            found = compute(row[sources])
            made[place] = found if convert is None or found is None else convert(found)
        return tuple(made)

    return computed


class Resolvers:
    """The readers of one list of wanted columns, by the layout that a row is written in."""

    def __init__(self, wants: Wants) -> None:
        self._wants = wants
        self._known: dict[Layout, RowReader] = {}

    def of(self, written: Layout) -> RowReader:
        """See `resolver`."""
        layout = self._wants.written(written)
        found = self._known.get(layout)
        if found is None:
            found = self._known[layout] = _resolver(layout, self._wants.key)
        return found


def resolver(written: Layout, wanted: Sequence[Wanted]) -> RowReader:
    """A function from a store value in `written` to the wanted values.

    40001 (here or from the function) for what cannot be read as the wanted type without loss, XX001 for damaged bytes.
    """
    wants = Wants(wanted)
    return _resolver(wants.written(written), wants.key)


def tagged_resolver(written: Layout, wanted: Sequence[Wanted], tags: Tags) -> Callable[[bytes], tuple[Any, ...] | None]:
    """As `resolver`, but for any stored value: None for one that is deleted or in another layout. One look at a row's
    header, on the way to its columns, is all that several layouts cost a table that has one.

    `tags` are those of the layouts whose rows it reads: of `written` first, and of others that `resolver` has the same
    function for, as soon as they are put there."""
    return _reader(written, _key(wanted), tags)


@lru_cache(maxsize=1024)
def _rewriter(written: Layout, target: Layout, wanted: Key) -> Callable[[bytes], bytes]:
    if written.columns == target.columns:
        start = layout_format(written).start
        return lambda value: value[start:]
    read = _resolver(written, wanted)
    encode = body_encoder(target)
    return lambda value: encode(read(value))


def rewriter(
    written: Layout, target: Layout, missing: Mapping[int, Any], derived: Mapping[int, Derivation] | None = None
) -> Callable[[bytes], bytes]:
    """A function from a store value in `written` to a body in `target`; `missing` and `derived`: of columns that
    `written` has not, by id, None where absent."""
    found = derived or {}
    wanted = [Wanted(column, type_, missing.get(column), found.get(column)) for column, type_ in target.columns]
    return _rewriter(written, target, _key(wanted))


# Batches ------------------------------------------------------------------------------------------------------------


def _finite(value: Decimal, type_: Type) -> Decimal:
    if value.is_nan():
        raise unsupported(f"reading NaN from a whole column of type {type_}")
    return value


def _by_value(type_: Type, convert: Convert | None) -> ArrayConvert:
    """The scalar conversion over an array of numerics, for the pairs of types that Arrow does not convert exactly."""

    def numeric(value: Any) -> Decimal:
        return value if isinstance(value, Decimal) else Decimal(value)

    def apply(array: Any) -> Any:
        values = [None if value is None else numeric(value) for value in array.to_pylist()]
        if convert is not None:
            values = [None if value is None else convert(value) for value in values]
        if type_.precision is None:
            return pa.array([None if v is None else format(v, "f") for v in values], pa.string())
        return pa.array([None if v is None else _finite(v, type_) for v in values], arrow_type(type_))

    return apply


def array_conversion(written: Type, wanted: Type) -> ArrayConvert | None:
    """As `conversion`, for Arrow arrays; None: as it is."""
    convert = conversion(written, wanted)
    if written == wanted or (arrow_type(written) == arrow_type(wanted) and convert is None):
        return None
    if wanted.kind in STRINGS:
        return lambda array: _checked_lengths(array, wanted)
    if wanted.kind is Kind.REAL:
        return lambda array: _checked_reals(array, wanted)
    if wanted.kind is Kind.NUMERIC and (written.precision is None or wanted.precision is None):
        return _by_value(wanted, convert)
    return lambda array: _cast(array, wanted)


def _cast(array: Any, wanted: Type) -> Any:
    try:
        return array.cast(arrow_type(wanted))
    except pa.ArrowInvalid:
        raise _does_not_fit(wanted) from None


def _checked_lengths(array: Any, wanted: Type) -> Any:
    lengths: Any = arrow_compute.utf8_length(array)
    longest = arrow_compute.max(lengths).as_py()
    if longest is not None and wanted.length is not None and longest > wanted.length:
        raise _does_not_fit(wanted)
    return array


def _checked_reals(array: Any, wanted: Type) -> Any:
    narrow = array.cast(pa.float32())
    before, after = (column.fill_null(0).to_numpy() for column in (array, narrow.cast(pa.float64())))
    if not np.array_equal(before, after, equal_nan=True):
        raise _does_not_fit(wanted)
    return narrow


def _constant(type_: Type, value: Any) -> Callable[[int], Any]:
    if isinstance(value, Decimal):
        value = format(value, "f") if type_.precision is None else _finite(value, type_)
    scalar: Any = pa.scalar(value, arrow_type(type_))
    return lambda count: pa.repeat(scalar, count)


Decode = Callable[[Joined], list[Any]]


@lru_cache(maxsize=1024)
def _decoder(written: Layout, wanted: Key, exact: int | None = None) -> Decode:
    """`exact`: of so many columns the arrays are of their `arrow_type`; the others' may be text, if they have NaN."""
    read, derived = _with_sources(written, wanted)
    if derived:
        return _computed_arrays(_decoder(written, read, len(wanted)), derived, wanted)
    form = layout_format(written)
    stored = {found[0]: position for position, found in enumerate(written.columns)}
    positions = [stored[found[0]] for found in wanted if found[0] in stored]
    # A numeric without a precision is text in any case.
    decimals = {column for column, type_, *_ in wanted[:exact] if type_.precision is not None}
    as_text = frozenset(position for column, position in stored.items() if column not in decimals)
    steps: list[tuple[int | None, Any]] = []
    for column, type_, missing, _derived, _lenient in wanted:
        if column in stored:
            steps.append((stored[column], array_conversion(written.columns[stored[column]][1], type_)))
        else:
            steps.append((None, _constant(type_, missing.value)))

    def decode(joined: Joined) -> list[Any]:
        arrays = dict(zip(positions, decode_columns(joined, form, positions, as_text), strict=True))
        out = []
        for position, step in steps:
            if position is None:
                out.append(step(len(joined.starts)))
            else:
                out.append(arrays[position] if step is None else step(arrays[position]))
        return out

    return decode


def _computed_arrays(decode: Decode, derived: Sequence[_Derived], wanted: Key) -> Decode:
    """Value by value: expressions have no other form here. A compaction puts an end to it."""

    def computed(joined: Joined) -> list[Any]:
        arrays = decode(joined)
        made = arrays[: len(wanted)]
        for place, compute, convert, sources, types in derived:
            columns = [internal_values(array, type_) for array, type_ in zip(arrays[sources], types, strict=True)]
            rows = zip(*columns, strict=True) if columns else [()] * len(joined.starts)
            values = [compute(row) for row in rows]
            if convert is not None:
                values = [None if value is None else convert(value) for value in values]
            made[place] = arrow_array(wanted[place][1], values)
        return made

    return computed


def _tags(joined: Joined) -> Any:
    """Layout id and flags of each value, from its header."""
    if joined.tags is not None:
        return joined.tags
    if joined.shortest() < BODY_OFFSET:
        raise damaged_row(joined.value(0), "a value without a header")
    return joined.parts(LAYOUT_OFFSET, np.dtype("<u4"))


def mixed_batch_reader(find: Callable[[int], Layout], wanted: Sequence[Wanted]) -> BatchReader:
    """A function from store values in any layouts of one table to an Arrow array per wanted column, in their order.

    `find` gives the layout of an id; it is asked once per layout met.
    """
    decode = mixed_decoder(find, wanted)
    return lambda values: decode(join_values(values))


def mixed_decoder(find: Callable[[int], Layout], wanted: Sequence[Wanted]) -> Decode:
    """As `mixed_batch_reader`, for values in one buffer."""
    wants = Wants(wanted)
    decoders: dict[int, Decode] = {}

    def decoder(layout: int) -> Decode:
        found = decoders.get(layout)
        if found is None:
            found = decoders[layout] = _decoder(wants.written(find(layout)), wants.key)
        return found

    def read(joined: Joined) -> list[Any]:
        if not len(joined.starts):
            return [pa.array([], arrow_type(column.type)) for column in wanted]
        tags = _tags(joined)
        if not np.count_nonzero(tags != tags[0]):
            return decoder(int(tags[0]) >> 8)(joined)
        ids = tags >> 8
        order, parts = [], []
        for layout in np.unique(ids):
            index = np.flatnonzero(ids == layout)
            order.append(index)
            parts.append(decoder(int(layout))(joined.select(index)))
        place = np.argsort(np.concatenate(order), kind="stable")
        return [pa.concat_arrays(list(column)).take(place) for column in zip(*parts, strict=True)]

    return read
