"""What holds at the end of a statement: constraints on the new rows, uniqueness, foreign keys and their cascades.

A statement's changes are staged while it reads, buffered together, and judged on snapshot plus buffer (rule 15): so
`UPDATE t SET id = id + 1` works, and a foreign key may point at a row of the same statement. Cascades are rounds of
further changes, each found on the state that the round before left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal

import msgspec

from instar import errors
from instar.catalog import descriptors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import ForeignKey, Index, Kept, State, Table
from instar.catalog.layouts import Layouts
from instar.encoding import keys
from instar.schemachange.online.kept_views import targets_of
from instar.sql.binder import bind_check
from instar.sql.defaults import compile_default
from instar.sql.execution import ExecutionContext, Row
from instar.sql.expressions import Compiler, FrameLayout, Scope, reads_context
from instar.sql.functions import Context
from instar.sql.shape import shape_of
from instar.store.engine import rowset_prefix
from instar.tables.derivations import deriver
from instar.tables.index import IndexReader
from instar.tables.rowset import TableReader, key_encoder
from instar.tables.view import RowVersion, View
from instar.values import to_text

# Rounds in a row that only change what was changed before. Foreign keys in a circle, each on the other's key, may hand
# rows that swap their keys back and forth for ever.
_MOST_ROUNDS_AGAIN = 1000


class Staged(msgspec.Struct, gc=False):
    """One row's change within a statement: insert (`old` None), delete (`new` None) or update."""

    table: TableRules
    key: bytes
    base: int | None
    old: Row | None
    new: Row | None
    new_key: bytes
    leaves: bool = False  # without a key that it had, a row of a joined table is gone for those that refer to it
    again: bool = False  # an earlier round changed the row too, and `old` is as that left it

    @property
    def judged(self) -> Row | None:
        """The row as it was when its constraints were last seen to hold, if that was ever."""
        return None if self.again else self.old


class KeyLookup:
    """Finds rows of `table` by equality on `columns` (ids), which lead its primary key or `index`."""

    def __init__(self, table: Table, columns: Sequence[int], index: Index | None, layouts: Layouts) -> None:
        self.table = table
        by_id = {column.id: (ordinal, column) for ordinal, column in enumerate(table.columns)}
        key = table.primary_key if index is None else tuple(part.column for part in index.columns)
        leading = key[: len(columns)]
        descending = [False] * len(key) if index is None else [part.descending for part in index.columns]
        self._order = [list(columns).index(column) for column in leading]
        self.ordinals = [by_id[column][0] for column in columns]
        types = [by_id[column][1].type for column in leading]
        self._encode = keys.compile_encoder(types, descending[: len(leading)])
        everything = range(len(table.columns))
        self._whole_key = index is None and len(leading) == len(key)
        self._rows = TableReader(table, everything, layouts)
        self._index = None if index is None else IndexReader(table, index, everything, layouts)

    def values(self, image: Row) -> Row:
        """The looked-up columns of a row, in the order of `columns`."""
        return tuple([image[ordinal] for ordinal in self.ordinals])

    def find(self, view: View, values: Row) -> Iterator[RowVersion]:
        """The rows whose columns equal `values`; none where one of them is NULL."""
        if None in values:
            return
        wanted = self._key(values)
        if self._whole_key:
            version = self._rows.get_version(view, wanted) if len(wanted) <= keys.MAX_PRIMARY_KEY_BYTES else None
            if version is not None:
                yield version
            return
        start, stop = keys.limited_index_range(wanted, keys.successor(wanted))
        reader = self._rows if self._index is None else self._index
        for version in reader.scan_versions(view, start, stop):
            # Cut keys make the range give candidates only.
            if self._key(self.values(version.values)) == wanted:
                yield version

    def finds(self, image: Row, values: Row) -> bool:
        """Whether a row of that image is one of those that `find` gives."""
        given = self.values(image)
        return None not in given and self._key(given) == self._key(values)

    def resource(self, values: Row) -> bytes:
        """What is locked by whoever gives these values up or takes them, as a unique key."""
        if self._index is None:
            return rowset_prefix(self.table.rowset) + self._key(values)
        return self._index.codec.prefix + keys.limited_index_key(self._key(values))

    def _key(self, values: Row) -> bytes:
        return self._encode([values[position] for position in self._order])


class _Reference(msgspec.Struct):
    """A foreign key, from either side."""

    key: ForeignKey
    child: Table
    parent: Table
    parents: KeyLookup
    children: KeyLookup


class TableRules:
    """Everything that rows of one table must keep to, compiled once."""

    def __init__(self, table: Table, catalog: CatalogSnapshot, layouts: Layouts) -> None:
        self.table = table
        self.encode_key = key_encoder(table)
        self.key_ordinals = _ordinals(table, table.primary_key)
        self.existence = TableReader(table, (), layouts)
        self.unique = [
            (index, KeyLookup(table, [part.column for part in index.columns], index, layouts))
            for index in table.indexes
            if index.unique and index.state is State.PUBLIC
        ]
        self.parents = [_reference(key, table, catalog, layouts) for key in table.foreign_keys if key.enforced]
        self.children = [
            _reference(key, catalog.table(child), catalog, layouts)
            for child in table.referenced_by
            for key in catalog.table(child).foreign_keys
            if key.parent == table.id and key.enforced
        ]
        self._required = [(ordinal, column) for ordinal, column in enumerate(table.columns) if column.refuses_null]
        self._derive = deriver(table)
        self._populated = [ordinal for ordinal, column in enumerate(table.columns) if column.is_being_given]
        self._layout = FrameLayout(0)
        columns = {(0, ordinal): ordinal for ordinal in range(len(table.columns))}
        bound = [(check, bind_check(check.expression, table, 0, catalog)) for check in table.checks if check.enforced]
        self._checks = [
            (check, Compiler(Scope(columns), self._layout).value(expression)) for check, expression in bound
        ]
        self._yielding = [
            (check.id, Compiler(Scope(columns), self._layout).value(bind_check(check.expression, table, 0, catalog)))
            for check in table.checks
            if check.yields
        ]
        self._yielding_nulls = [
            (ordinal, column.id) for ordinal, column in enumerate(table.columns) if column.tells_null
        ]
        self.has_checks = bool(bound)
        self.checks_read_context = any(reads_context(expression) for _, expression in bound)
        self.catalog = catalog.unheld()

    def key(self, image: Row) -> bytes:
        """The encoded primary key of a row; 54000 if it is too long to be stored."""
        return keys.limited_primary_key(self.encode_key([image[ordinal] for ordinal in self.key_ordinals]))

    def checked(self, image: Row, context: ExecutionContext) -> Row:
        """The row, with what is derived of it (the errors of a change of type that is under way); NOT NULL (23502) and
        CHECK (23514) hold for it."""
        if self._derive is not None:
            image = self._derive(image)
        self._judge(image, context.functions, context)
        return image

    def recheck(self, image: Row, functions: Context) -> None:
        """As `checked`, for a whole row that no statement made; `functions` is what the transaction's stable functions
        read."""
        self._judge(image, functions, None)

    def judge_by(self, functions: Callable[[], Context]) -> Callable[[Row], None]:
        """`recheck`, for several rows."""
        return lambda image: self.recheck(image, functions())

    def violated(self, image: Row, functions: Context) -> Iterator[int]:
        """The ids of the CHECKs, and columns of NOT NULLs, that yield and that the row violates. An expression that
        fails for it does not hold."""
        for ordinal, column in self._yielding_nulls:
            if image[ordinal] is None:
                yield column
        frame = self._layout.frame((), functions, None)
        for number, holds in self._yielding:
            try:
                kept = holds(image, frame)
            except errors.Error:
                kept = False
            if kept is False:
                yield number

    def _judge(self, image: Row, functions: Context, context: ExecutionContext | None) -> None:
        for ordinal, column in self._required:
            if image[ordinal] is None:
                raise errors.error(
                    errors.NOT_NULL_VIOLATION,
                    f'null value in column "{column.name}" of relation "{self.table.name}" '
                    "violates not-null constraint",
                    detail=self._failing(image),
                )
        if not self._checks:
            return
        frame = self._layout.frame((), functions, context)
        for check, holds in self._checks:
            if holds(image, frame) is False:
                raise errors.error(
                    errors.CHECK_VIOLATION,
                    f'new row for relation "{self.table.name}" violates check constraint "{check.name}"',
                    detail=self._failing(image),
                )

    def default_of(self, ordinal: int, context: ExecutionContext) -> object:
        """A column's default, for SET DEFAULT."""
        column = self.table.columns[ordinal]
        return compile_default(column, self.catalog, context.functions, context.next_value)()

    def completed(self, image: Row, context: ExecutionContext) -> Row:
        """The row with a value of every column that a job is giving to rows, and has not given to this one yet."""
        if not any(image[ordinal] is None for ordinal in self._populated):
            return image
        made = list(image)
        for ordinal in self._populated:
            if made[ordinal] is None:
                made[ordinal] = self.default_of(ordinal, context)
        return tuple(made)

    def _failing(self, image: Row) -> str:
        shown = [
            "null" if value is None else to_text(column.type, value)
            for column, value in zip(self.table.columns, image, strict=True)
            if column.visible
        ]
        return f"Failing row contains ({', '.join(shown)})."

    def describe(self, ordinals: Sequence[int], image: Row) -> str:
        """`(a, b)=(1, x)`, as PostgreSQL's details name a key."""
        columns = [self.table.columns[ordinal] for ordinal in ordinals]
        values = [
            "null" if image[ordinal] is None else to_text(column.type, image[ordinal])
            for ordinal, column in zip(ordinals, columns, strict=True)
        ]
        return f"({', '.join(column.name for column in columns)})=({', '.join(values)})"

    def duplicate(self, constraint: str, ordinals: Sequence[int], image: Row) -> errors.Error:
        """23505 naming constraint and key."""
        return errors.error(
            errors.UNIQUE_VIOLATION,
            f'duplicate key value violates unique constraint "{constraint}"',
            detail=f"Key {self.describe(ordinals, image)} already exists.",
        )


def _ordinals(table: Table, columns: Sequence[int]) -> tuple[int, ...]:
    by_id = {column.id: ordinal for ordinal, column in enumerate(table.columns)}
    return tuple(by_id[column] for column in columns)


def _reference(key: ForeignKey, child: Table, catalog: CatalogSnapshot, layouts: Layouts) -> _Reference:
    parent = catalog.table(key.parent)
    probed = next((index for index in parent.indexes if index.id == key.parent_index), None)
    walked = next((index for index in child.indexes if index.id == key.child_index), None)
    parents = KeyLookup(parent, key.parent_columns, probed, layouts)
    return _Reference(key, child, parent, parents, KeyLookup(child, key.columns, walked, layouts))


class Rules:
    """The rules of all tables of one catalog snapshot, each compiled when it is first needed."""

    def __init__(self, catalog: CatalogSnapshot, layouts: Layouts) -> None:
        self._catalog = catalog.unheld()
        self._layouts = layouts
        self._known: dict[int, TableRules] = {}
        self._apart: dict[int, TableRules] = {}
        self._shapes: dict[int, tuple[Table, Table | None]] = {}

    def shape_of(self, table: Table) -> Table | None:
        """See shape.py."""
        known = self._shapes.get(table.id)
        if known is None or known[0] is not table:
            known = self._shapes[table.id] = table, shape_of(table)
        return known[1]

    def of(self, table: Table) -> TableRules:
        """The rules of `table`."""
        found = self._known.get(table.id)
        if found is None:
            found = self._known[table.id] = TableRules(table, self._catalog, self._layouts)
        return found

    def apart(self, table: Table) -> TableRules:
        """What rows of a table must keep to, each by itself, that is no table of the catalog any more."""
        alone = msgspec.structs.replace(table, indexes=(), foreign_keys=(), referenced_by=())
        found = self._apart[table.id] = TableRules(alone, self._catalog, self._layouts)
        return found

    def kept(self, view: int) -> tuple[Kept, tuple[Table, ...]]:
        """What has taken the place of the table that a kept view stands for, and the tables that are there now."""
        found = self._catalog.by_id(view)
        assert isinstance(found, descriptors.View)
        assert found.kept is not None  # what is bound is a kept view
        return found.kept, tuple(self._catalog.table(table) for table in targets_of(found.kept.made))

    def move_to(self, catalog: CatalogSnapshot) -> None:
        """Go on under another catalog, in which all tables that these are the rules of are the same."""
        self._catalog = catalog.unheld()
        for found in (*self._known.values(), *self._apart.values()):
            found.catalog = self._catalog


class StatementEnd:
    """Buffers a statement's changes, runs their cascades, and judges what must hold then."""

    def __init__(self, context: ExecutionContext, rules: Rules) -> None:
        self._context = context
        self._rules = rules
        given = context.view
        # The view of the statement itself may have no buffer, where nothing was written before it.
        probes = None if given.reads is None else given.reads.probes
        self._view = View(given.store, given.snapshot, context.buffer, given.layouts, probes)
        self._all: list[Staged] = []
        self._vanished: list[tuple[_Reference, Row]] = []

    def run(self, changes: list[Staged]) -> None:
        """All of it. An error leaves the buffer for the caller to roll back."""
        moved: set[tuple[int, bytes]] = set()
        again = 0
        while changes:
            self._context.check_cancel()
            self._all += changes
            self._buffer(changes)
            following = self._cascades(changes)
            if following:
                moved.update((staged.table.table.id, staged.new_key) for staged in changes)
                for staged in following:
                    staged.again = (staged.table.table.id, staged.key) in moved
                again = again + 1 if all(staged.again for staged in following) else 0
                if again > _MOST_ROUNDS_AGAIN:
                    raise _endless(following[0].table.table)
            changes = following
        for staged in self._all:
            # A row that a later round changed again is judged as that round left it.
            if staged.new is not None and self._stands(staged):
                self._judge_unique(staged, staged.new)
                self._judge_parents(staged, staged.new)
        for reference, values in self._vanished:
            self._judge_no_action(reference, values)

    def _stands(self, staged: Staged) -> bool:
        buffered = self._context.buffer.table(staged.table.table.id)
        change = None if buffered is None else buffered.changes.get(staged.new_key)
        return change is not None and change.image is staged.new

    def _buffer(self, changes: list[Staged]) -> None:
        buffer = self._context.buffer
        arrivals: list[tuple[Staged, int]] = []
        for staged in changes:
            table = staged.table.table
            if staged.old is None:
                arrivals.append((staged, 0))
            elif staged.new is None:
                buffer.delete(table.id, table.version, staged.key, staged.base, staged.old)
            elif staged.key == staged.new_key:
                changed = changed_columns(table, staged.old, staged.new)
                buffer.update(table.id, table.version, staged.key, staged.base, staged.old, staged.new, changed)
            else:
                pair = buffer.pair_of(table.id, staged.key)
                buffer.delete(table.id, table.version, staged.key, staged.base, staged.old, pair=pair)
                arrivals.append((staged, pair))
        if arrivals:
            self._buffer_arrivals(arrivals)

    def _buffer_arrivals(self, arrivals: list[tuple[Staged, int]]) -> None:
        """Rows under keys that are new to them; 23505 if a row stands there once everything else has moved."""
        rules = arrivals[0][0].table
        table = rules.table
        if any(staged.table is not rules for staged, _ in arrivals):
            for one in arrivals:
                self._buffer_arrivals([one])
            return
        taken = {
            version.key for version in rules.existence.get_many(self._view, [staged.new_key for staged, _ in arrivals])
        }
        for staged, pair in arrivals:
            if staged.new is None:
                continue
            if staged.new_key in taken:
                self._context.require_unlocked(rowset_prefix(table.rowset) + staged.new_key)
                raise rules.duplicate(table.primary_key_name, rules.key_ordinals, staged.new)
            taken.add(staged.new_key)
            self._context.buffer.insert(table.id, table.version, staged.new_key, staged.new, pair=pair)

    # --- foreign keys -------------------------------------------------------------------------------------------------

    def _cascades(self, changes: list[Staged]) -> list[Staged]:
        """What the foreign keys that refer to changed rows do to their children; one change per child."""
        found: dict[tuple[int, bytes], Staged] = {}
        for staged in changes:
            if staged.old is None:
                continue
            for reference in staged.table.children:
                values = reference.parents.values(staged.old)
                new = staged.new
                moved = None if new is None else reference.parents.values(new)
                if None in values or (moved is not None and all(map(is_same, values, moved))):
                    continue
                if moved is not None and staged.leaves and None in moved:
                    new = None
                self._cascade(reference, new, values, found)
        for staged in found.values():
            if staged.new is not None:
                staged.new = staged.table.completed(staged.new, self._context)
                staged.new = staged.table.checked(staged.new, self._context)
                staged.new_key = staged.table.key(staged.new)
        return list(found.values())

    def _cascade(
        self, reference: _Reference, parent: Row | None, values: Row, found: dict[tuple[int, bytes], Staged]
    ) -> None:
        """What becomes of the children of a row that had `values`, and is `parent` by now."""
        action = reference.key.on_delete if parent is None else reference.key.on_update
        if action in ("no action", "set default"):
            # A default may be the very key that is gone.
            self._vanished.append((reference, values))
        if action == "no action":
            return
        for version in reference.children.find(self._view, values):
            known = found.get((reference.child.id, version.key))
            child = version.values if known is None else known.new
            if child is None or not reference.children.finds(child, values):
                continue  # another foreign key has taken the row away from this one, as in PostgreSQL
            if action == "restrict":
                self._context.require_unlocked(rowset_prefix(reference.child.rowset) + version.key)
                raise _still_referenced(self._rules.of(reference.parent), reference, values)
            rules = self._rules.of(reference.child)
            if known is None:
                known = Staged(rules, version.key, version.base, version.values, version.values, version.key)
                found[reference.child.id, version.key] = known
            known.new = self._moved(action, reference, rules, child, parent)

    def _moved(
        self, action: str, reference: _Reference, rules: TableRules, child: Row, parent: Row | None
    ) -> Row | None:
        if action == "cascade":
            if parent is None:
                return None
            values = reference.parents.values(parent)
        elif action == "set null":
            values = (None,) * len(reference.key.columns)
        else:
            values = tuple(rules.default_of(ordinal, self._context) for ordinal in reference.children.ordinals)
        image = list(child)
        for ordinal, value in zip(reference.children.ordinals, values, strict=True):
            image[ordinal] = value
        return tuple(image)

    def _judge_parents(self, staged: Staged, image: Row) -> None:
        for reference in staged.table.parents:
            values = reference.children.values(image)
            if None in values or (staged.judged is not None and reference.children.values(staged.judged) == values):
                continue
            if next(reference.parents.find(self._view, values), None) is None:
                raise errors.error(
                    errors.FOREIGN_KEY_VIOLATION,
                    f'insert or update on table "{reference.child.name}" violates foreign key constraint '
                    f'"{reference.key.name}"',
                    detail=f"Key {staged.table.describe(reference.children.ordinals, image)} is not present in table "
                    f'"{reference.parent.name}".',
                )

    def _judge_no_action(self, reference: _Reference, values: Row) -> None:
        if next(reference.parents.find(self._view, values), None) is not None:
            return
        found = next(reference.children.find(self._view, values), None)
        if found is not None:
            self._context.require_unlocked(rowset_prefix(reference.child.rowset) + found.key)
            raise _still_referenced(self._rules.of(reference.parent), reference, values)

    # --- uniqueness ---------------------------------------------------------------------------------------------------

    def _judge_unique(self, staged: Staged, image: Row) -> None:
        for index, lookup in staged.table.unique:
            values = lookup.values(image)
            if staged.judged is not None and lookup.values(staged.judged) == values:
                continue
            for version in lookup.find(self._view, values):
                if version.key != staged.new_key:
                    self._context.require_unlocked(lookup.resource(values))
                    raise staged.table.duplicate(index.name, lookup.ordinals, image)


def changed_columns(table: Table, old: Row, new: Row) -> frozenset[int]:
    """The ids of the columns whose values differ, by identity or equality of representation."""
    pairs = zip(table.columns, old, new, strict=True)
    return frozenset(
        column.id
        for column, before, after in pairs
        if before is not after and not column.is_derived and not is_same(before, after)
    )


def is_same(before: object, after: object) -> bool:
    """Whether two values are one: 1.0 and 1.00 of a numeric are equal, and yet two; so are 0.0 and -0.0. NaN is one."""
    return str(before) == str(after) if isinstance(after, (Decimal, float)) else before == after


def _endless(table: Table) -> errors.Error:
    return errors.error(
        errors.LIMIT_EXCEEDED,
        f'the actions of foreign keys change rows of table "{table.name}" again and again',
        detail=f"{_MOST_ROUNDS_AGAIN} rounds of actions have changed only rows that the statement had changed before.",
    )


def _still_referenced(parent: TableRules, reference: _Reference, values: Row) -> errors.Error:
    columns = [parent.table.columns[ordinal] for ordinal in reference.parents.ordinals]
    names = ", ".join(column.name for column in columns)
    shown = ", ".join(to_text(column.type, value) for column, value in zip(columns, values, strict=True))
    return errors.error(
        errors.FOREIGN_KEY_VIOLATION,
        f'update or delete on table "{parent.table.name}" violates foreign key constraint "{reference.key.name}" on '
        f'table "{reference.child.name}"',
        detail=f'Key ({names})=({shown}) is still referenced from table "{reference.child.name}".',
    )
