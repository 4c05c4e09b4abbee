"""What the image of a join or split is made of: rows of the sources to items, groups of items to rows of the targets.

An item is a source's row with the group that it belongs to: rows that have the same bytes as encoded join or split
value, whole, since equal bytes are what equality of keys is; a row that matches nothing is a group of its own. Whoever
has brought the items in order, in memory or on Spark, makes the targets' rows of them group by group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, Protocol

from instar.catalog.descriptors import Table
from instar.catalog.layouts import Layouts
from instar.encoding.key_batches import compile_key_batch_encoder
from instar.schemachange.online.plain_image import SplitCopies
from instar.schemachange.online.shapes import comparable
from instar.schemachange.online.target_rows import JoinTarget, SplitTargets
from instar.schemachange.reorganize import widest
from instar.store.engine import ROW_HEADER, prefix_end, rowset_prefix
from instar.tables.resolver import mixed_batch_reader
from instar.tables.rowset import TableReader, wanted
from instar.transformations.records import Flag, Joined, Part, Row, SRecord

_PREFIX_BYTES = len(rowset_prefix(0))
# Sides of a join's items: rows of S come first, since there is one in a group, or few.
_S_SIDE, _R_SIDE = 0, 1

# A row of a target: its store key and its stored value.
Pair = tuple[bytes, bytes]


class Item(NamedTuple):
    """A row of a source on its way. Items in order are in the order of the targets' rows: `group` begins with the
    prefix of the target's rowset; `key` tells rows of one side apart."""

    group: bytes
    side: int
    key: bytes
    stored: bytes


class Operator(Protocol):
    """A join or a split. Sources are known by their places."""

    @property
    def prefixes(self) -> tuple[bytes, ...]:
        """Those that groups begin with, a target each, in order."""
        ...

    def bounds(self, place: int, start: bytes, stop: bytes) -> tuple[bytes, bytes]:
        """Between which store keys the rows of a source lie that may have items with groups in [start, stop)."""
        ...

    def items(self, place: int, keys: Sequence[bytes], stored: Sequence[bytes]) -> list[Item]:
        """The items of rows of a source. Errors: 23502 for what would be lost."""
        ...

    def rows(self, items: Iterable[Item], first_id: int) -> Iterator[tuple[bytes, Pair]]:
        """The targets' rows of items in order, with their groups; row ids are given from `first_id` on."""
        ...


class SourceImage:
    """The rows of a source, in whichever layouts they are."""

    def __init__(self, layouts: Layouts, table: Table) -> None:
        self.table = table
        self.prefix = rowset_prefix(table.rowset)
        self._layouts = layouts
        self._reader = TableReader(table, range(len(table.columns)), layouts)
        self._comparable = comparable(table.columns)

    def part(self, stored: bytes) -> Part:
        """The row as the rules know it."""
        return Part(self._comparable(self._reader.decode(stored)), ROW_HEADER.unpack_from(stored)[0])

    def grouping(self, columns: Sequence[int], prefix: bytes) -> _Grouping:
        """Rows by their values of these columns."""
        return _Grouping(self.table, self._layouts, columns, prefix)


class _Grouping:
    """Encodes the join or split values of many rows."""

    def __init__(self, table: Table, layouts: Layouts, columns: Sequence[int], prefix: bytes) -> None:
        by_id = {column.id: column for column in table.columns}
        asked = [wanted(by_id[column])._replace(type=widest(by_id[column])) for column in columns]
        self._read = mixed_batch_reader(lambda layout: layouts.of_row(table, layout), asked)
        self._encode = compile_key_batch_encoder([one.type for one in asked], [False] * len(asked), prefix=prefix)

    def of(self, stored: Sequence[bytes]) -> tuple[list[bytes], list[bool]]:
        """`prefix` and the value, of each row, and whether a part of the value is NULL."""
        if not stored:
            return [], []
        columns = self._read(stored)
        null = [False] * len(stored)
        for column in columns:
            if column.null_count:
                null = [one or other for one, other in zip(null, column.is_null().to_pylist(), strict=True)]
        return self._encode(columns), null


class JoinOperator:
    """The full outer join of two sources, R and S."""

    def __init__(self, layouts: Layouts, r: Table, s: Table, target: Table) -> None:
        self._target = JoinTarget(r, s, target)
        self._sources = SourceImage(layouts, r), SourceImage(layouts, s)
        prefix = self._target.t.prefix
        on = self._target.made.on
        self._groupings = (
            self._sources[0].grouping([column for column, _ in on], prefix),
            self._sources[1].grouping([column for _, column in on], prefix),
        )

    @property
    def prefixes(self) -> tuple[bytes, ...]:
        """As in `Operator`."""
        return (self._target.t.prefix,)

    def bounds(self, place: int, start: bytes, stop: bytes) -> tuple[bytes, bytes]:
        """As in `Operator`: anywhere."""
        prefix = self._sources[place].prefix
        return prefix, prefix_end(prefix)

    def items(self, place: int, keys: Sequence[bytes], stored: Sequence[bytes]) -> list[Item]:
        """As in `Operator`. A NULL matches nothing: side and key make a group of such a row."""
        side = _S_SIDE if place else _R_SIDE
        groups, null = self._groupings[place].of(stored)
        own = [key[_PREFIX_BYTES:] for key in keys]
        return [
            Item(group + bytes((side,)) + key if alone else group, side, key, value)
            for group, alone, key, value in zip(groups, null, own, stored, strict=True)
        ]

    def rows(self, items: Iterable[Item], first_id: int) -> Iterator[tuple[bytes, Pair]]:
        """As in `Operator`."""
        number = first_id
        for group, found in groupby(items, key=attrgetter("group")):
            for record in self._joined(found):
                made = self._target.row(number, record)
                yield group, (made.key, made.value)
                number += 1

    def _joined(self, items: Iterable[Item]) -> Iterator[Joined]:
        """All pairs of a group; what has no match stands alone."""
        r, s = self._sources
        others: list[Part] = []
        matched = False
        for item in items:
            if item.side == _S_SIDE:
                others.append(s.part(item.stored))
                continue
            matched = True
            part = r.part(item.stored)
            for other in others or (None,):
                yield Joined(part, other)
        if not matched:
            for other in others:
                yield Joined(None, other)


class SplitOperator:
    """The split of a source into R, which has its rows, and S, which has a row per split value."""

    def __init__(self, layouts: Layouts, source: Table, r: Table, s: Table) -> None:
        self._targets = SplitTargets(source, r, s)
        self._source = SourceImage(layouts, source)
        self._r, self._s = self._targets.r.prefix, self._targets.s.prefix
        # In the order of S's key, so that groups are in the order of its rows.
        self._grouping = self._source.grouping(s.primary_key, self._s)
        self._copies = SplitCopies(layouts, source, self._targets)

    @property
    def prefixes(self) -> tuple[bytes, ...]:
        """As in `Operator`."""
        first, second = sorted((self._r, self._s))
        return first, second

    def bounds(self, place: int, start: bytes, stop: bytes) -> tuple[bytes, bytes]:
        """As in `Operator`: R's keys are those of its source."""
        own = self._source.prefix
        if not start.startswith(self._r):
            return own, prefix_end(own)
        return own + start[_PREFIX_BYTES:], own + stop[_PREFIX_BYTES:] if stop.startswith(self._r) else prefix_end(own)

    def items(self, place: int, keys: Sequence[bytes], stored: Sequence[bytes]) -> list[Item]:
        """As in `Operator`. A row with a NULL in its split value contributes to no row of S."""
        own = [key[_PREFIX_BYTES:] for key in keys]
        items = [Item(self._r + key, 0, b"", value) for key, value in zip(own, stored, strict=True)]
        groups, null = self._grouping.of(stored)
        for group, nowhere, key, value in zip(groups, null, own, stored, strict=True):
            if nowhere:
                self._targets.require_kept(self._source.part(value).values)
            else:
                items.append(Item(group, 0, key, value))
        return items

    def rows(self, items: Iterable[Item], first_id: int) -> Iterator[tuple[bytes, Pair]]:
        """As in `Operator`; nobody needs row ids. R's keys are those of its source, as the groups have them."""
        for of_s, some in groupby(items, key=lambda item: item.group.startswith(self._s)):
            if not of_s:
                yield from ((item.group, (item.group, self._r_value(item.group, item.stored))) for item in some)
                continue
            for group, found in groupby(some, key=attrgetter("group")):
                made = self._targets.s_row(self._record(found))
                yield group, (made.key, made.value)

    def _r_value(self, key: bytes, stored: bytes) -> bytes:
        """R's record of a row, as it is stored."""
        body = self._copies.r_body(stored)
        if body is not None:
            return self._targets.r.value(body, ROW_HEADER.unpack_from(stored)[0])
        part = self._source.part(stored)
        own = Part(self._targets.shape.r_part(part.values), part.timestamp)
        return self._targets.r_row(own, key).value

    def _record(self, items: Iterable[Item]) -> SRecord:
        """S's record of the rows of one split value: what the newest says, and whether all say so."""
        first = newest = b""
        said: Row | None = None  # by the first, if its values had to be looked at
        timestamp = counter = 0
        agree = True
        for item in items:
            stored = item.stored
            if not counter:
                first = stored
            elif agree and not self._copies.say_the_same(first, stored):
                said = self._s_part(first) if said is None else said
                agree = self._s_part(stored) == said
            counter += 1
            stamp = ROW_HEADER.unpack_from(stored)[0]
            if stamp > timestamp:
                newest, timestamp = stored, stamp
        return SRecord(self._s_part(newest), counter, timestamp, Flag.CONSISTENT if agree else Flag.UNKNOWN)

    def _s_part(self, stored: bytes) -> Row:
        return self._targets.shape.s_part(self._source.part(stored).values)
