"""After the switch of a join or split, changes of rows of its sources made changes of rows of its targets.

They are made by the very rules that the targets have followed the log by. But the targets are tables as others are by
now: their rows are read as a statement or a commit sees them, and what is made is for a transaction to write. Whoever
writes to a target knows nothing of parts, counters and flags, so these are told by the rows themselves:

- A row of T has R's part if none of R's columns in it that rows of R have always a value in is NULL (`marks`); S's
  part likewise.
- The counter of a record of S is the number of rows of R with its split value, and its flag is C.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from instar import errors
from instar.catalog.descriptors import Index, Kept, Table
from instar.transformations.records import Change


class FoundRow(NamedTuple):
    """A row of a target as it is read: its encoded primary key, its values in all of the table's columns, hidden ones
    too, the timestamp of the commit that made it, and, where the table has several locks, theirs by their ids."""

    key: bytes
    image: tuple[object, ...]
    timestamp: int
    locks: Mapping[int, int]


class TargetRows(Protocol):
    """What the targets are read by. What a call gives is read to its end before the next one, or left."""

    def by_key(self, table: Table, values: tuple[object, ...], /) -> FoundRow | None:
        """The row with these values of the primary key."""
        ...

    def by_index(self, table: Table, index: Index, values: tuple[object, ...], /) -> Iterable[FoundRow]:
        """The rows with just these values in the leading columns of the index."""
        ...


class RowChange(NamedTuple):
    """A change of one row of a target, as a statement would make it. Images have all of the table's columns; `key` and
    `before` are None for a new row, `after` for one that goes. In a new row the columns that no source has are None,
    for the caller to fill: a hidden row id, what came later."""

    table: int
    key: bytes | None
    before: tuple[object, ...] | None
    after: tuple[object, ...] | None


class Limits(NamedTuple):
    """How many rows of targets may change, and as what it is reported if there are more, or if rows of a source would
    contradict each other."""

    rows: int
    too_many: str = errors.LIMIT_EXCEEDED
    contradiction: str = errors.CHECK_VIOLATION


def translate(
    kept: Kept, targets: Mapping[int, Table], rows: TargetRows, changes: Sequence[Change], limits: Limits
) -> list[RowChange]:
    """What changes of the sources, whose rows have the columns of `kept.sources`, come to in the targets. Timestamps of
    the changes are of no account.

    40001 if a row that is changed or deleted is not there, 23505 if one is inserted that is, or takes a join value that
    must be unique; 23502 if values would be lost since a split value is NULL; `limits`.
    """
    raise errors.unsupported("writing to a table that was joined or split")
