"""The row ids of rows that log propagation adds to the target of a join."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from instar.catalog.descriptors import Sequence, Table
from instar.catalog.sequences import Sequences
from instar.types import BIGINT

# So many are drawn at a time.
_DRAWN = 1_000


class RowIds:
    """Gives ids that no row of the table has had, or will be given by others."""

    def __init__(self, sequences: Sequences, table: Table) -> None:
        (column,) = (column for column in table.columns if column.id in table.primary_key)
        assert column.sequence is not None  # the key is a row id
        self._sequence = Sequence(id=column.sequence, name=column.name, version=1, type=BIGINT)
        self._sequences = sequences
        self._left: Iterator[int] = iter(())

    def __call__(self) -> int:
        """The next one. It may have to be drawn, which is a commit."""
        found = next(self._left, None)
        if found is None:
            self._left = chain.from_iterable(self._sequences.next_values(self._sequence, _DRAWN))
            found = next(self._left)
        return found
