"""Rows of the targets of a join or split in their stored form, for the initial population and the log's propagation.

What the rules know as `Part`, `SRecord` and `Joined` becomes a store key, a stored value and the index entries that go
with it: nothing is logged, and nothing points into the log.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from instar import errors
from instar.catalog.descriptors import DEFAULT_LOCK, MadeByJoin, MadeBySplit, Table
from instar.encoding.keys import compile_encoder, limited_index_key
from instar.lazily import computed_once
from instar.schemachange.online.shapes import column_places, join_shape, split_shape
from instar.store.engine import NO_RECORD, ROW_HEADER, rowset_prefix
from instar.tables.index import IndexCodec
from instar.tables.layout import body_encoder
from instar.tables.patching import mover
from instar.tables.rowset import described, key_encoder, wanted
from instar.transformations.records import Flag, Joined, Part, Row, Split, SRecord, choosing, chosen

# The hidden column `parts` of a join's target.
R_PART, S_PART = 1, 2

_PREFIX_BYTES = len(rowset_prefix(0))
# Letters of a key that is named in an error.
_MOST_SHOWN = 100


class NewRow(NamedTuple):
    """A row to be put: its store key, its stored value, and all its columns, of which its index entries are made."""

    key: bytes
    value: bytes
    image: Row


class TargetTable:
    """The stored form of one target's rows. An image has all columns, hidden ones too, in the descriptor's order."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.prefix = rowset_prefix(table.rowset)
        places = column_places(table)
        self._key = choosing(tuple([places[column] for column in table.primary_key]))
        self._stored = choosing(tuple([places[column] for column, _ in table.layout.columns]))
        self._encode_key = key_encoder(table)
        self._encode = body_encoder(table.layout)
        codecs = [IndexCodec(table, index) for index in table.indexes]
        self.indexed = tuple(sorted({place for codec in codecs for place in codec.ordinals}))  # of an image
        self._indexed = choosing(self.indexed)
        self._entries = [
            (
                choosing(tuple([self.indexed.index(place) for place in codec.ordinals])),
                compile_encoder(codec.types, codec.descending, prefix=codec.prefix),
            )
            for codec in codecs
        ]
        self._tag = table.layout.id << 8
        # What stands before the columns: a row's header and the timestamps of the layout's locks, in its order.
        self.head = struct.Struct(f"{ROW_HEADER.format}{len(table.layout.locks)}Q")

    def key(self, values: Sequence[object]) -> bytes:
        """The store key of the row with these primary key values."""
        return self.prefix + self._encoded(values)

    def _encoded(self, values: Sequence[object]) -> bytes:
        try:
            return self._encode_key(values)
        except errors.Error as failed:  # 54000, most of the time: the values say of which rows
            places = column_places(self.table)
            columns = [self.table.columns[places[column]] for column in self.table.primary_key]
            shown = described(columns, values)
            shown = shown if len(shown) <= _MOST_SHOWN else shown[:_MOST_SHOWN] + "..."
            failed.detail = failed.detail or f'It is that of row {shown} of table "{self.table.name}".'
            raise

    def row(self, image: Row, timestamp: int, locks: Sequence[int] = (), key: bytes | None = None) -> NewRow:
        """A row as it is stored; `locks`: the timestamps of the layout's locks in its order; `key`: its store key, if
        that is known."""
        if key is None:
            key = self.key(self._key(image))
        return NewRow(key, self.value(self._encode(self._stored(image)), timestamp, locks), image)

    def value(self, body: bytes, timestamp: int, locks: Iterable[int] = ()) -> bytes:
        """A row's body as it is stored; `locks` as of `row`."""
        return self.head.pack(timestamp, NO_RECORD, self._tag, *locks) + body

    def indexed_alike(self, one: Row, other: Row) -> bool:
        """Whether two rows of one primary key have the same entries: an update leaves them alone, most of the time."""
        return self._indexed(one) == self._indexed(other)

    @computed_once
    def indexed_bytes(self) -> Callable[[bytes, tuple[()]], bytes | None]:
        """A function from a stored value, and no values, to the bytes of all columns that are in an index."""
        found = [self.table.columns[place] for place in self.indexed]
        move = mover(self.table.layout, [wanted(column) for column in found])
        assert move is not None, "columns of the one layout that there is"
        return move

    def entries(self, image: Row, key: bytes) -> tuple[bytes, ...]:
        """The store keys of the index entries of a row whose encoded primary key is `key`."""
        indexed = self._indexed(image)
        return tuple([limited_index_key(encode(of(indexed)), _PREFIX_BYTES) + key for of, encode in self._entries])


class SplitTargets:
    """R and S of a split, of their source's rows."""

    def __init__(self, source: Table, r: Table, s: Table) -> None:
        made = made_by_split(r)
        of_s = [column.id for column in s.columns if column.id not in (made.counter, made.consistent)]
        self.made = made
        self.r, self.s = TargetTable(r), TargetTable(s)
        self.shape = split_shape(source, made, r, s)
        kept = () if r.unseen is None else r.unseen.shown
        self._source = source
        # The places of values that S alone has: a row with no record there would lose them.
        self._only_s = [place for place in self.shape.s if source.columns[place].id not in kept]
        # Where a column of S has its value: counter and flag stand behind what the rules know as the values.
        behind = [*of_s, made.counter, made.consistent]
        self._s_image = choosing(tuple([behind.index(column.id) for column in s.columns]))

    def require_kept(self, row: Row) -> None:
        """23502 if a row of the source belongs to no record of S, and has a value that nothing else has."""
        require_kept(self._source, self.shape, self._only_s, row)

    def r_row(self, record: Part, key: bytes | None = None) -> NewRow:
        """R's record; `key`: its store key, if that is known."""
        return self.r.row(record.values, record.timestamp, (), key)

    def s_row(self, record: SRecord, key: bytes | None = None) -> NewRow:
        """S's record; `key` as in `r_row`."""
        return self.s.row(self.s_image(record), record.timestamp, (), key)

    def s_image(self, record: SRecord) -> Row:
        """S's record as a row of all columns."""
        values = (*record.values, record.counter, record.flag is Flag.CONSISTENT)
        return self._s_image(values)


class JoinTarget:
    """T of a join, of the rows of R and S."""

    def __init__(self, r: Table, s: Table, target: Table) -> None:
        made = made_by_join(target)
        of_r, of_s = column_places(r), column_places(s)
        self.made = made
        self.t = TargetTable(target)
        self.shape = join_shape(r, s, made)
        self._no_r, self._no_s = (None,) * len(of_r), (None,) * len(of_s)
        behind = len(of_r) + len(of_s)  # `_image` has row id and parts there
        own = {target.primary_key[0]: behind, made.parts: behind + 1}
        r_places = {column: of_r[source] for source, column in made.r_columns}
        s_places = {column: len(of_r) + of_s[source] for source, column in made.s_columns}
        # A column that both parts have is R's, if that part is there.
        self._with_r = _image(target, {**s_places, **r_places, **own})
        self._without_r = _image(target, {**r_places, **s_places, **own})
        stamps = [DEFAULT_LOCK, made.r_lock, made.s_lock]
        self._locks = itemgetter(*[stamps.index(lock) for lock in target.layout.locks])

    def row(self, row_id: int, record: Joined, key: bytes | None = None) -> NewRow:
        """T's record under this row id; `key`: its store key, if that is known."""
        r, s = record.r, record.s
        r_values, r_stamp = (self._no_r, 0) if r is None else (r.values, r.timestamp)
        s_values, s_stamp = (self._no_s, 0) if s is None else (s.values, s.timestamp)
        parts = (0 if r is None else R_PART) | (0 if s is None else S_PART)
        image = self._without_r if r is None else self._with_r
        newest = max(r_stamp, s_stamp)
        locks = self._locks((newest, r_stamp, s_stamp))
        return self.t.row(image((*r_values, *s_values, row_id, parts)), newest, locks, key)


def _image(target: Table, places: Mapping[int, int]) -> Callable[[Row], Row]:
    """A function from R's values, S's, row id and parts, one behind the other, to a row of all columns."""
    return choosing(tuple([places[column.id] for column in target.columns]))


def made_by_split(table: Table) -> MadeBySplit:
    """What a target of a split is made by."""
    if table.unseen is None or not isinstance(table.unseen.made, MadeBySplit):
        raise errors.error(errors.INTERNAL_ERROR, f'table "{table.name}" is not made by a split')
    return table.unseen.made


def made_by_join(table: Table) -> MadeByJoin:
    """What the target of a join is made by."""
    if table.unseen is None or not isinstance(table.unseen.made, MadeByJoin):
        raise errors.error(errors.INTERNAL_ERROR, f'table "{table.name}" is not made by a join')
    return table.unseen.made


def require_kept(source: Table, shape: Split, only_s: Sequence[int], row: Row) -> None:
    """23502 if a row of the source of a split belongs to no record of S, and has a value at one of the places `only_s`,
    which nothing else has."""
    if shape.value(row) is not None or all(row[place] is None for place in only_s):
        return
    columns = source.columns
    null = next(columns[place].name for place in shape.on if row[place] is None)
    lost = next(place for place in only_s if row[place] is not None)
    key = [place for place, column in enumerate(columns) if column.id in source.primary_key]
    shown = described([columns[place] for place in key], chosen(row, key))
    raise errors.error(
        errors.NOT_NULL_VIOLATION,
        f'null value in column "{null}" of relation "{source.name}", by which it is split, violates not-null '
        "constraint",
        detail=f'The value of column "{columns[lost].name}" of row {shown} would be lost.',
    )
