"""ALTER TABLE ... SPLIT and JOIN with their names resolved: which columns of which table they mean.

What the new tables are then like, and whether the change is possible at all, is the schema change planner's.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from instar import errors
from instar.catalog.descriptors import Table
from instar.schemachange import wanted as want
from instar.sql.transformation_statements import JoinTables, Reference, SplitTable, TargetColumn, TransformationOptions


def split_table(statement: SplitTable, table: str, r: str, s: str) -> want.SplitTable:
    """What a split wants; `r` and `s` are the names of its targets."""
    return want.SplitTable(
        table,
        want.NewTable(r, statement.r.columns),
        want.NewTable(s, statement.s.columns),
        statement.on,
        _options(statement.options),
        statement.in_place,
    )


def join_tables(statement: JoinTables, r: Table, s: Table, into: str) -> want.JoinTables:
    """What a join wants; `into` is the name of its target."""
    if r.id == s.id:
        raise errors.unsupported("joining a table with itself", position=statement.s.name.position)
    tables = _Joined(_Side(r, statement.r.alias), _Side(s, statement.s.alias))
    if tables.r.label == tables.s.label:
        message = f'table name "{tables.s.label}" specified more than once'
        raise errors.error(errors.DUPLICATE_ALIAS, message, position=statement.s.name.position)
    if statement.using:
        on = tables.pairs_of_names(statement.using)
    else:
        on = tuple(dict.fromkeys(tables.pair(left, right) for left, right in statement.on))
    merged = {one for one, other in on if one == other}
    columns = tuple(tables.target(column, merged) for column in statement.columns)
    return want.JoinTables(r.name, s.name, on, into, columns, _options(statement.options))


def _options(options: TransformationOptions) -> want.TransformationOptions:
    default = want.TransformationOptions()
    return want.TransformationOptions(
        options.repair or default.repair,
        options.pause_rows or default.pause_rows,
        options.strategy or default.strategy,
        default.grace if options.grace is None else options.grace,
        options.keep_views,
        options.priority,
    )


class _Side(NamedTuple):
    """A table that is joined, and its alias."""

    table: Table
    alias: str | None

    @property
    def label(self) -> str:
        """What qualifies its columns."""
        return self.alias or self.table.name

    def is_meant(self, reference: Reference) -> bool:
        """Whether the reference is qualified with this table."""
        if reference.table is None or reference.table.name != self.label:
            return False
        return reference.table.schema is None or (reference.table.schema == "public" and self.alias is None)

    def has(self, name: str) -> bool:
        return name in _columns(self.table)


class _Joined(NamedTuple):
    """The tables that are joined, as the scope of names."""

    r: _Side
    s: _Side

    def pairs_of_names(self, names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
        """The pairs of columns of USING."""
        for name, count in Counter(names).items():
            if count > 1:
                message = f'column name "{name}" appears more than once in USING clause'
                raise errors.error(errors.DUPLICATE_COLUMN, message)
            for side, place in ((self.r, "left"), (self.s, "right")):
                if not side.has(name):
                    message = f'column "{name}" specified in USING clause does not exist in {place} table'
                    raise errors.error(errors.UNDEFINED_COLUMN, message)
        return tuple((name, name) for name in names)

    def pair(self, left: Reference, right: Reference) -> tuple[str, str]:
        """A pair of columns that ON says are equal, R's first."""
        one, other = self._resolved(left, set()), self._resolved(right, set())
        if one.r is not None and other.s is not None:
            return one.r, other.s
        if one.s is not None and other.r is not None:
            return other.r, one.s
        raise errors.unsupported("a join condition of columns of one table", position=left.position)

    def target(self, column: TargetColumn, merged: set[str]) -> want.JoinedColumn:
        """A column of the table that is made. `merged`: names that are one column, whatever table they are of."""
        found = self._resolved(column.column, merged)
        return found if column.name is None else want.JoinedColumn(column.name, found.r, found.s)

    def _resolved(self, reference: Reference, merged: set[str]) -> want.JoinedColumn:
        name, table = reference.name, reference.table
        if table is None and name in merged:
            return want.JoinedColumn(name, name, name)
        meant = [side for side in self if table is None or side.is_meant(reference)]
        if not meant:
            message = f'missing FROM-clause entry for table "{table and table.name}"'
            raise errors.error(errors.UNDEFINED_TABLE, message, position=reference.position)
        found = [side for side in meant if side.has(name)]
        if not found:
            said = f'"{name}"' if table is None else f"{table.name}.{name}"
            raise errors.error(errors.UNDEFINED_COLUMN, f"column {said} does not exist", position=reference.position)
        if len(found) > 1:
            message = f'column reference "{name}" is ambiguous'
            raise errors.error(errors.AMBIGUOUS_COLUMN, message, position=reference.position)
        return want.JoinedColumn(name, r=name) if found[0] is self.r else want.JoinedColumn(name, s=name)


def _columns(table: Table) -> set[str]:
    """The names of the table's columns; the planner says which of them are only on their way."""
    return {column.name for column in table.columns if not column.hidden}
