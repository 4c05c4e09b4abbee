"""INSERT, UPDATE and DELETE of kept views: the names that tables which were joined or split live on as.

A statement makes changes of rows of the view as it would of the table that it stands for, held to what that promised.
The rules of the join or split make these changes of rows of the new tables (schemachange/online/crossing.py), which go
the way of all changes of those. What the rules have read must still be so at the commit, whichever the isolation level:
that a row is a row of the old table is a matter of several rows of the new ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from instar.catalog.descriptors import Index, Kept, MadeByJoin, MadeBySplit, Table
from instar.catalog.layouts import Layouts
from instar.schemachange.online.crossing import translate
from instar.schemachange.online.crossing_rows import FoundRow, Limits, RowChange
from instar.sql import tree
from instar.sql.execution import ExecutionContext, Result, Row
from instar.sql.executor import RunAnalytic
from instar.sql.executor_dml import InsertProgram, finish, returned_columns, updated_image
from instar.sql.expressions import Frame, FrameLayout
from instar.sql.integrity import KeyLookup, Rules, Staged, TableRules
from instar.sql.operators import NodeCompiler
from instar.sql.plan import InsertPlan, ModifyPlan
from instar.tables.view import RowVersion
from instar.transformations.records import Change, Deleted, Inserted, Source, Updated, chosen


class RowOfView(NamedTuple):
    """A change of one row of a kept view: as it was (None: it is new), and as it is then (None: it goes)."""

    before: Row | None
    after: Row | None


class KeptInsertProgram(InsertProgram):
    """INSERT into a kept view, compiled."""

    def __init__(
        self, plan: InsertPlan, parameters: int, layouts: Layouts, rules: Rules, analytic: RunAnalytic
    ) -> None:
        self._writer = KeptWriter(plan.statement.target, rules, layouts)
        super().__init__(plan, parameters, layouts, rules, analytic)

    def _rules_of(self, target: tree.TableScan) -> TableRules:
        return self._writer.source

    def _insert(self, context: ExecutionContext, frame: Frame, images: Iterable[Row]) -> Result:
        changes = [RowOfView(None, self._target.checked(image, context)) for image in images]
        self._writer.write(context, changes)
        if not self.columns:
            return Result((), None, len(changes))
        rows = [self._returning(change.after, frame) for change in changes if change.after is not None]
        return Result(self.columns, rows, len(changes))


class KeptModifyProgram:
    """UPDATE or DELETE of a kept view, compiled."""

    def __init__(self, plan: ModifyPlan, parameters: int, layouts: Layouts, rules: Rules) -> None:
        statement = plan.statement
        self.plan = plan
        self.columns = returned_columns(statement.returning)
        self._writer = KeptWriter(statement.target, rules, layouts)
        self._layout = FrameLayout(parameters)
        nodes = NodeCompiler(self._layout, plan.subplans, layouts)
        self._rows = nodes.source(plan.root)
        scope = plan.root.scope
        assignments = statement.assignments if isinstance(statement, tree.Update) else None
        self._image = None if assignments is None else updated_image(nodes.compiler(scope), statement, assignments)
        self._returning = nodes.compiler(scope).row([output.expr for output in statement.returning])

    def run(self, context: ExecutionContext) -> Result:
        """Change every row that FROM and WHERE give, once, however often they give it."""
        frame = self._layout.frame(context.parameters, context.functions, context)
        source, image = self._writer.source, self._image
        width = len(source.table.columns)
        seen: set[bytes] = set()
        changes: list[RowOfView] = []
        returned: list[Row] = []
        for row in self._rows(frame):
            old = row[:width]
            key = source.key(old)
            if key in seen:
                continue
            seen.add(key)
            new = None if image is None else source.checked(image(row, frame), context)
            changes.append(RowOfView(old, new))
            if self.columns:
                returned.append(self._returning(row if new is None else new + row[width:], frame))
        self._writer.write(context, changes)
        return Result(self.columns, returned if self.columns else None, len(changes))


class KeptWriter:
    """Writes what changes in rows of one kept view to the tables that are there in its stead. `source`: the rules of
    the table that it stands for, as far as they are about one row."""

    def __init__(self, target: tree.TableScan, rules: Rules, layouts: Layouts) -> None:
        assert target.kept is not None
        assert target.kept.view is not None  # or it is no kept view
        kept, tables = rules.kept(target.kept.view)
        self._kept: Kept = kept
        self._rules = rules
        self._layouts = layouts
        self.source = rules.apart(target.table)
        # A split calls its targets as it has made them; in place it has made R of what was there.
        self._targets = dict(zip(kept.made.targets, tables, strict=True))
        self._by_id = {table.id: table for table in tables}
        self._known = {table.id: _known(kept, table) for table in tables}
        self._lookups: dict[tuple[int, int | None, int], KeyLookup] = {}
        made, key = kept.made, target.table.primary_key
        if isinstance(made, MadeBySplit):
            self._as = Source.T
        else:
            self._as = Source.R if target.table.id == made.r else Source.S
            columns = dict(made.r_columns if self._as is Source.R else made.s_columns)
            key = tuple(columns[column] for column in key)
        self._key_table = tables[0]
        by_id = {column.id: place for place, column in enumerate(tables[0].columns)}
        self._key_places = [by_id[column] for column in key]

    def write(self, context: ExecutionContext, changes: Sequence[RowOfView]) -> None:
        """Put the changes of a statement to the transaction's buffer, all or none.

        Errors: those of the tables that are written to; 23505 and 23514 where the table that was would not have rows
        that could be, 54000.
        """
        if not changes:
            return
        rows = _Rows(self, context)
        limits = Limits(max(context.buffer.max_rows - context.buffer.rows, 0))
        made = translate(self._kept, self._targets, rows, list(self._records(changes)), limits)
        # Who refers to a row, and columns that have come since, are to go with it to its new key.
        has_come = any(column.id not in self._known[self._key_table.id] for column in self._key_table.columns)
        if has_come or any(self._rules.of(table).children for table in self._by_id.values()):
            made = self._moved(made, changes)
        finish(context, self._rules, [self._staged(change, rows, context) for change in made])

    def _records(self, changes: Sequence[RowOfView]) -> Iterator[Change]:
        """The changes as the log of the table that was would have them."""
        places = self.source.key_ordinals
        for before, after in changes:
            old = None if before is None else chosen(before, places)
            new = None if after is None else chosen(after, places)
            if before is not None and after is not None and self.source.key(before) == self.source.key(after):
                yield Updated(self._as, chosen(before, places), before, after, 0)
                continue
            if before is not None and old is not None:
                yield Deleted(self._as, old, before, 0)
            if after is not None and new is not None:
                yield Inserted(self._as, new, after, 0)

    def lookup(self, table: Table, index: Index | None, columns: Sequence[int]) -> KeyLookup:
        """What finds rows of a target by these columns."""
        place = table.id, None if index is None else index.id, len(columns)
        if place not in self._lookups:
            self._lookups[place] = KeyLookup(table, columns, index, self._layouts)
        return self._lookups[place]

    # --- changes of the new tables ------------------------------------------------------------------------------------

    def _staged(self, change: RowChange, rows: _Rows, context: ExecutionContext) -> Staged:
        rules = self._rules.of(self._by_id[change.table])
        old = None if change.key is None else rows.met[change.table, change.key]
        image = change.after
        if image is not None:
            image = image if old is not None else self._filled(rules, image, context)
            image = rules.checked(image, context)
        key = rules.key(image) if image is not None else b"" if old is None else old.key
        joined = isinstance(self._kept.made, MadeByJoin)
        if old is None:
            return Staged(rules, key, None, None, image, key)
        return Staged(rules, old.key, old.base, old.values, image, key, leaves=joined)

    def _filled(self, rules: TableRules, image: Row, context: ExecutionContext) -> Row:
        """A new row with values of the columns that the table which was had not."""
        known, made = self._known[rules.table.id], list(image)
        for ordinal, column in enumerate(rules.table.columns):
            if column.hidden and column.sequence is not None:
                made[ordinal] = context.next_value(column.sequence)
            elif column.id not in known and not column.hidden and not column.is_derived:
                made[ordinal] = rules.default_of(ordinal, context)
        return tuple(made)

    def _moved(self, made: list[RowChange], changes: Sequence[RowOfView]) -> list[RowChange]:
        """The same with rows that have got another key changed rather than replaced by others, as those that refer to
        them take it."""
        for before, after in changes:
            if before is None or after is None or self.source.key(before) == self.source.key(after):
                continue
            old, new = (chosen(row, self.source.key_ordinals) for row in (before, after))
            left = next((at for at, one in enumerate(made) if self._had(one, old) and not self._has(one, old)), None)
            come = next((at for at, one in enumerate(made) if one.key is None and self._has(one, new)), None)
            if left is not None and come is not None:
                made = self._swapped(made, left, come)
        return made

    def _had(self, change: RowChange, key: Row) -> bool:
        """Whether the row had this key of the table that was."""
        is_own = change.table == self._key_table.id and change.before is not None
        return is_own and chosen(change.before or (), self._key_places) == key

    def _has(self, change: RowChange, key: Row) -> bool:
        """Whether the row has this key of the table that was."""
        is_own = change.table == self._key_table.id and change.after is not None
        return is_own and chosen(change.after or (), self._key_places) == key

    def _swapped(self, made: list[RowChange], left: int, come: int) -> list[RowChange]:
        """The row that has lost its key is the one that has come with another; what it had become is a new one."""
        known = self._known[made[left].table]
        columns = self._by_id[made[left].table].columns
        gone, arrived = made[left], made[come]
        assert gone.before is not None
        assert arrived.after is not None  # or they would not have been found
        image = tuple([
            value if column.id in known else kept
            for column, value, kept in zip(columns, arrived.after, gone.before, strict=True)
        ])  # fmt: skip
        swapped = list(made)
        swapped[left] = gone._replace(after=image)
        if gone.after is None:
            del swapped[come]
        else:
            blank = [value if column.id in known else None for column, value in zip(columns, gone.after, strict=True)]
            swapped[come] = arrived._replace(after=tuple(blank))
        return swapped


class _Rows:
    """The rows of the new tables as a statement sees them (a `TargetRows`); those that it has `met`, by their tables
    and keys."""

    def __init__(self, writer: KeptWriter, context: ExecutionContext) -> None:
        self.met: dict[tuple[int, bytes], RowVersion] = {}
        self._writer = writer
        self._view = context.judged_view()

    def by_key(self, table: Table, values: Row) -> FoundRow | None:
        """As in `TargetRows`."""
        return next(self._found(self._writer.lookup(table, None, table.primary_key), values), None)

    def by_index(self, table: Table, index: Index, values: Row) -> Iterator[FoundRow]:
        """As in `TargetRows`."""
        columns = [part.column for part in index.columns[: len(values)]]
        return self._found(self._writer.lookup(table, index, columns), values)

    def _found(self, lookup: KeyLookup, values: Row) -> Iterator[FoundRow]:
        for version in lookup.find(self._view, values):
            self.met[lookup.table.id, version.key] = version
            yield FoundRow(version.key, version.values)


def _known(kept: Kept, table: Table) -> frozenset[int]:
    """The columns of a target that have values of the tables that were."""
    made = kept.made
    if isinstance(made, MadeByJoin):
        return frozenset(column for _, column in (*made.r_columns, *made.s_columns))
    own = {column.id for column in table.columns}
    return frozenset(column.id for column in kept.sources[0].columns if column.id in own)
