"""What ON CONFLICT makes of a row that stands in the way of one that is to be inserted, as a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from instar.sql import tree
from instar.sql.execution import Row
from instar.sql.expressions import Compiler, Frame, Scope
from instar.sql.traversal import walk
from instar.tables.derivations import derived_columns


class OnConflict:
    """`action` of `statement`, compiled. `changed`: the ordinals that it sets, and of what is derived of these."""

    def __init__(
        self, statement: tree.Insert, action: tree.ConflictAction, compiler: Callable[[Scope], Compiler]
    ) -> None:
        table, relation = statement.target.table, statement.target.relation
        self.action = action
        self._ordinals = [ordinal for ordinal, _ in action.assignments]
        changed = frozenset(self._ordinals)
        self.changed = changed | {
            found.ordinal for found in derived_columns(table) if not changed.isdisjoint(found.sources)
        }
        width = len(table.columns)
        columns = {(relation, ordinal): ordinal for ordinal in range(width)}
        columns |= {(action.excluded, ordinal): width + ordinal for ordinal in range(width)}
        self._where = None if action.where is None else compiler(Scope(columns)).predicate([action.where])
        self._values = compiler(Scope(columns)).row([expr for _, expr in action.assignments])

    def updated(self, old: Row, proposed: Row, frame: Frame) -> Row | None:
        """What becomes of the row `old`, before that is judged, where `proposed` was to be inserted; None: it is left
        alone."""
        if not self.action.update:
            return None
        row = old + proposed
        if self._where is not None and not self._where(row, frame):
            return None
        new = list(old)
        for ordinal, value in zip(self._ordinals, self._values(row, frame), strict=True):
            new[ordinal] = value
        return tuple(new)


def draws_late(action: tree.ConflictAction, returning: Sequence[tree.Output]) -> bool:
    """Whether sequences have a part in what is evaluated when it is known which row stands in the way."""
    late = (*(expr for _, expr in action.assignments), action.where, *(output.expr for output in returning))
    return any(isinstance(found, tree.OfSequence) for found in walk(late))
