"""Plain updates, taken on bytes: those that leave alone what tables are split or joined by, which most of a log is.

They are rules 10 and 11 of a split where the split value stays (plain_split.py), and rule 7 of a join (plain_join.py).
Each comes to rows of the targets that are there already, and stay where they are with all their entries; only the
update's part of them is put anew. So no value is made of what is only copied. What is not surely of this kind is left
to the rules, over values.

They are taken from some commits at once, and of a row that changes again and again the last one alone is put. All of
them go before what is left, which is sound (rule 28 of the protocol holds commit by commit for that):

- The changes of one row stay in order: once one is left to the rules, so are all that follow it.
- Those of different rows meet in S's records of a split only, and these are not put here: what an update makes of S is
  left, too, and done in the order of commits.
- A join's write to their own part of records, and all other changes move that part from record to record as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import NamedTuple, Protocol

from instar.catalog.descriptors import Layout, Table
from instar.encoding.comparing import RowComparer, compile_comparer
from instar.encoding.rows import BODY_OFFSET, row_format
from instar.schemachange.online.changes import SourceRows
from instar.schemachange.online.overlay import Readable
from instar.schemachange.online.shapes import column_places
from instar.store.engine import LogRecord
from instar.tables.layout import layout_format
from instar.tables.patching import mover
from instar.tables.resolver import LAYOUT_OFFSET, Wanted
from instar.tables.rowset import wanted
from instar.types import Type


class Batch(Protocol):
    """Some commits, one after the other, of which the plain updates are applied before all else."""

    weight: int  # how much it is: changes, or rows of the targets
    is_closed: bool  # whether nothing is to be added: what is left may come to any number of rows

    def add(self, records: list[LogRecord], /) -> None:
        """Add the records of one commit."""
        ...

    def apply(self, by_rules: Callable[[list[LogRecord]], None], /) -> None:
        """Apply all of it; `by_rules` applies records of one commit."""
        ...


class RulesAlone:
    """A batch of one commit, of which nothing is plain."""

    def __init__(self) -> None:
        self.weight = 0
        self.is_closed = True
        self._left: list[LogRecord] = []

    def add(self, records: list[LogRecord]) -> None:
        """As in `Batch`."""
        self._left = records

    def apply(self, by_rules: Callable[[list[LogRecord]], None]) -> None:
        """As in `Batch`."""
        by_rules(self._left)


def tags_of(before: bytes, after: bytes) -> bytes:
    """The layouts of two stored rows, as a key of what is known for such pairs."""
    return before[LAYOUT_OFFSET:BODY_OFFSET] + after[LAYOUT_OFFSET:BODY_OFFSET]


class Layouts(NamedTuple):
    """The layouts of a source's row before and after an update."""

    table: Table
    before: Layout
    after: Layout

    def alike(self, columns: Set[int], filled: Set[int] = frozenset()) -> RowComparer:
        """A function of both stored rows: whether these columns (ids) are the same in them, to the last bit, and those
        not NULL after the update. It is false, too, where that is not surely so."""
        stored = {column: position for position, (column, _) in enumerate(self.after.columns)}
        if self.before == self.after and stored.keys() >= columns | filled:
            alike, not_null = ({stored[column] for column in some} for some in (columns, filled))
            return compile_comparer(layout_format(self.after), alike, not_null)
        ids = sorted(columns | filled)
        places = column_places(self.table)
        moved = [wanted(self.table.columns[places[column]]) for column in ids]
        old, new = (mover(layout, moved) for layout in (self.before, self.after))
        if old is None or new is None:
            return _never
        alike, not_null = ({ids.index(column) for column in some} for some in (columns, filled))
        body = row_format(tuple([column.type for column in moved]))._replace(start=0)
        compare = compile_comparer(body, alike, not_null)
        return lambda one, other: compare(old(one, ()) or b"", new(other, ()) or b"")


def layouts_of(rows: SourceRows, before: bytes, after: bytes, view: Readable) -> Layouts:
    """The layouts of two stored rows of a source; `view` as of `SourceRows.row`."""
    tags = (row[LAYOUT_OFFSET:BODY_OFFSET] for row in (before, after))
    return Layouts(rows.table, *[rows.layout(int.from_bytes(tag, "little") >> 8, view) for tag in tags])


def _never(_before: bytes, _after: bytes) -> bool:
    return False


def key_types(table: Table) -> list[tuple[int, Type]]:
    """The columns of a table's primary key with their types."""
    places = column_places(table)
    return [(column, table.columns[places[column]].type) for column in table.primary_key]


def columns_of(source: Table, target: Table, hidden: Sequence[int] = ()) -> list[Wanted]:
    """The columns of a target's layout as they are read of a source; `hidden` ones have values of their own."""
    places = column_places(source)
    return [
        Wanted(column, type_) if column in hidden else wanted(source.columns[places[column]])._replace(type=type_)
        for column, type_ in target.layout.columns
    ]
