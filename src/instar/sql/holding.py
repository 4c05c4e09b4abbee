"""What a statement takes of the tables that it reads: which versions of them it cannot tell apart.

A plan that only reads a table goes on for another version of it if that version has, for this statement, nothing else
to offer: the columns that it uses stand where they stood and are what they were, keys, public indexes and rows too,
and none of its names means another column by now. Rows of layouts that came since are no hindrance: readers learn
layouts as they meet them (tables/rowset.py).

Names are judged by the text, which knows best what it might mean: a column that comes, goes or is renamed outdates all
statements in which its name occurs, in whatever place. `*`, NATURAL and lists of column aliases take all columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from sqlglot import exp

from instar.catalog.descriptors import Index, State, StepKind, Table
from instar.schemachange.publishing import KEPT_STEPS
from instar.sql import tree
from instar.sql.traversal import walk

# Steps that leave the values of all columns alone but of those that they name, in all rows.
_LOCAL = frozenset(
    {
        StepKind.ADD_COLUMN,
        StepKind.ADD_REQUIRED_COLUMN,
        StepKind.DROP_COLUMN,
        StepKind.RENAME_COLUMN,
        StepKind.MOVE_COLUMN,
        StepKind.RENAME_INDEX,
        StepKind.RENAME_CONSTRAINT,
        StepKind.SET_DEFAULT,
        StepKind.DROP_DEFAULT,
        StepKind.DROP_NOT_NULL,
        StepKind.WIDEN_TYPE,
        StepKind.SET_MIGRATION,
        StepKind.ELEMENT_STATE,
    }
)


class Holding:
    """The tables of a bound statement as far as the statement looks at them; `expression` is what was bound."""

    def __init__(self, bound: tree.BoundStatement, expression: exp.Expr) -> None:
        self._takes_all = _takes_all(expression)
        self._names = frozenset(found.name for found in expression.find_all(exp.Identifier))
        relations: dict[int, int] = {}
        columns: set[tuple[int, int]] = set()
        for found in walk(bound.statement):
            if isinstance(found, tree.TableScan):
                relations[found.relation] = found.table.id
            elif isinstance(found, tree.ColumnRef):
                columns.add((found.relation, found.ordinal))
        self._used: dict[int, set[int]] = {table: set() for table in relations.values()}
        for relation, ordinal in columns:
            if relation in relations:
                self._used[relations[relation]].add(ordinal)
        match bound.statement:
            case tree.Insert(target=target):
                self._used[target.table.id].update(bound.statement.columns)
            case tree.Update(target=target):
                self._used[target.table.id].update(ordinal for ordinal, _ in bound.statement.assignments)

    def cannot_tell(self, one: Table, other: Table) -> bool:
        """Whether the statement, planned under `one` of two versions of a table, is right under `other`, and does the
        same; but for what a new row, or a new image of one, has in columns that it does not name."""
        if _whole(one) != _whole(other) or not _only_local_steps(one, other):
            return False
        if self._takes_all:
            return one.columns == other.columns
        if dict(_named(one, self._names)) != dict(_named(other, self._names)):
            return False
        keys = {*one.primary_key, *(part.column for index in _public(one) for part in index.columns)}
        used = self._used.get(one.id, set()) | {place for place, found in enumerate(one.columns) if found.id in keys}
        return all(place < len(other.columns) and one.columns[place] == other.columns[place] for place in used)


def _takes_all(expression: exp.Expr) -> bool:
    """Whether columns are meant that the text does not name."""
    if isinstance(expression, exp.Insert) and not isinstance(expression.this, exp.Schema):
        return True
    for found in expression.find_all(exp.Star, exp.Join, exp.TableAlias):
        match found:
            case exp.Star():
                counted = isinstance(found.parent, exp.Anonymous)  # count(*)
                if not counted:
                    return True
            case exp.Join():
                if found.args.get("method") == "NATURAL":
                    return True
            case _:
                if found.args.get("columns"):
                    return True
    return False


def _public(table: Table) -> tuple[Index, ...]:
    return tuple(index for index in table.indexes if index.state is State.PUBLIC)


def _whole(table: Table) -> tuple[object, ...]:
    """What every statement looks at."""
    # Whoever migrates what he reads is to know the newest layout.
    layout = table.layout.id if table.migration == "read" else None
    return table.id, table.name, table.primary_key, table.rowset, _public(table), table.migration, layout


def _only_local_steps(one: Table, other: Table) -> bool:
    """Whether what came between the two versions is known, and touched only the columns that it names."""
    older, newer = (one, other) if one.version <= other.version else (other, one)
    if len(newer.steps) >= KEPT_STEPS and newer.steps[0].version > older.version:
        return False  # some are forgotten
    new = takewhile(lambda step: step.version > older.version, reversed(newer.steps))
    return all(step.kind in _LOCAL for step in new)


def _named(table: Table, names: frozenset[str]) -> Iterator[tuple[str, int]]:
    """The columns that these names may mean."""
    return ((found.name, found.id) for found in table.columns if found.visible and found.name in names)
