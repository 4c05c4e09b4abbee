"""Prepared statements by text: one plan per text and classes of parameters, revalidated per snapshot (MD-MVCC §3.7).

A plan holds for a catalog snapshot if every descriptor that it was made from is that snapshot's own: descriptors are
immutable, and one that a plan uses is shared by all snapshots of a process (catalog/versions.py), so identity decides.
Of a table that a statement only reads another version will do as well if the statement cannot tell the two apart
(holding.py): else every column that comes or goes, and every step of an index build, would have all queries planned
anew at once. What has to be planned anew is not parsed again: a text's tree is kept beside its plans. A session with
uncommitted DDL sees descriptors that nobody else does: it prepares for itself and adds nothing here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Object, Table
from instar.catalog.layouts import Layouts
from instar.lazily import computed_once
from instar.sql import tree
from instar.sql.execution import ExecutionContext, Result
from instar.sql.executor import QueryProgram, RunAnalytic
from instar.sql.executor_dml import InsertProgram, ModifyProgram, returned_columns
from instar.sql.holding import Holding
from instar.sql.integrity import Rules
from instar.sql.kept_views import KeptInsertProgram, KeptModifyProgram
from instar.sql.plan import InsertPlan, ModifyPlan, Plan, QueryPlan
from instar.sql.planner import plan_statement
from instar.sql.point import LookUp, PointLookup, PointWrite, point_lookup, point_write
from instar.sql.statements import Dml, Query, require_parameters
from instar.sql.traversal import walk
from instar.store.forks import begin_anew_in_child
from instar.types import BIGINT, INTEGER_RANGES, NUMERIC, Kind, Type
from instar.values import converter, type_of_python

DEFAULT_CAPACITY = 1024

# For how many shapes of its table a write's lean form is kept: a change that is taken back finds that of before.
_MAX_SHAPES = 3

Columns = tuple[tuple[str, Type], ...]
# The lean form of a query, the columns of its rows, and whose it is.
Lean = tuple[LookUp, Columns, PointLookup]
# Descriptors that a plan was made from, and what there is of these ids now.
_Moved = Sequence[tuple[Object, Object | None]]
_LOW, _HIGH = INTEGER_RANGES[Kind.BIGINT]


def hints_of(parameters: Sequence[Any]) -> tuple[Type | None, ...]:
    """The types that the binder takes for parameters whose place in the statement does not decide them.

    Integers are bigint whatever their size, so that one plan serves them all; NULL is no hint.
    """
    hints: list[Type | None] = []
    for value in parameters:
        if value is None:
            hints.append(None)
        elif value.__class__ is int:
            hints.append(BIGINT if _LOW <= value <= _HIGH else NUMERIC)
        else:
            hints.append(type_of_python(value))
    return tuple(hints)


class Prepared:
    """A statement bound and planned, and compiled when it is first run. `lookup` and `write` are its lean forms, where
    it has them; `locks`: in which mode it locks rows that it selects, which a lean form leaves to who uses it."""

    def __init__(
        self,
        statement: Query | Dml,
        bound: tree.BoundStatement,
        catalog: CatalogSnapshot,
        layouts: Layouts,
        rules: Rules,
        analytic: RunAnalytic,
    ) -> None:
        self.statement = statement
        self.bound = bound
        self.plan = plan_statement(bound)
        count = len(bound.parameters)
        self.lookup: PointLookup | None = point_lookup(self.plan, bound.parameters, layouts)
        self.write: PointWrite | None = point_write(self.plan, count, rules)
        self._newest_write = self.write
        # Those compiled last, by the shapes (shape.py) of the table that they were compiled for.
        self._writes: tuple[tuple[Table, PointWrite], ...] = ()
        if self.write is not None and (shape := rules.shape_of(self.write.table)) is not None:
            self._writes = ((shape, self.write),)
        self.columns = _columns(self.plan)
        nodes = list(walk(bound.statement))
        self.locks = next((found.mode for found in nodes if isinstance(found, tree.RowLock)), None)
        self._compile: Callable[[], Program] = lambda: compile_program(self.plan, count, layouts, rules, analytic)
        # And the time zone that they are of.
        self._converters: tuple[str | None, list[Callable[[Any], Any]]] = (None, [])
        self._rules = rules
        self.version = catalog.version  # for which it was last found to hold
        self._depends = dependencies(bound, catalog)
        self._holding: Holding | None = None  # made when it is first asked
        # What it writes, and what is judged of that, it knows in one version only.
        self._written = frozenset(table.id for table in _written(bound, catalog))
        self._names = any(isinstance(found, tree.SystemScan) for found in nodes)
        self._draws = any(isinstance(found, tree.OfSequence) for found in nodes)
        scans = [found for found in nodes if isinstance(found, tree.TableScan)]
        # The tables that it reads at levels of their own.
        hinted = {(found.table.id, found.level): found.table for found in scans}
        self.hints = tuple((table, level) for (_number, level), table in hinted.items() if level is not None)
        self._plainly = {found.table.id for found in scans if found.level is None}

    @computed_once
    def program(self) -> Program:
        """The compiled plan: what has a lean form hardly ever needs it."""
        try:
            return self._compile()
        except RecursionError:
            raise errors.error(errors.STATEMENT_TOO_COMPLEX, "statement is too deeply nested") from None

    @property
    def is_query(self) -> bool:
        """Whether it only reads (a query that calls nextval is one too)."""
        return isinstance(self.plan, QueryPlan)

    @computed_once
    def stands_alone(self) -> bool:
        """Whether it is a query of nothing but tables as of a snapshot, which needs no transaction around it: it reads
        nothing of its session and leaves nothing there, and locks no rows."""
        statement = self.statement
        if not isinstance(statement, Query) or statement.as_of is not None or not self.is_query:
            return False
        return not (self._names or self._draws or self.hints or self.locks is not None)

    @property
    def unhinted(self) -> Iterator[Object]:
        """What it depends on, but for tables that it reads at levels of their own alone."""
        hinted = {table.id for table, _level in self.hints} - self._plainly
        return (found for found in self._depends if found.id not in hinted)

    def run(self, context: ExecutionContext) -> Result:
        """Execute with a context whose parameters are internal values (see `convert`)."""
        return self.program.run(context)

    def convert(self, parameters: Sequence[object], zone: str) -> tuple[Any, ...]:
        """Python objects as internal values of the parameters' types. Errors: 08P01 (their number), `from_python`'s."""
        types = self.bound.parameters
        require_parameters(len(types), len(parameters))
        known, converters = self._converters
        if known != zone:
            converters = [converter(type_, zone) for type_ in types]
            self._converters = zone, converters  # at once: other threads use it
        return tuple([
            None if value is None else convert(value)
            for convert, value in zip(converters, parameters, strict=True)
        ])  # fmt: skip

    def holds(self, catalog: CatalogSnapshot) -> bool:
        """Whether the plan is right for this snapshot of the catalog."""
        if catalog.version == self.version:
            return True
        # A system view's name may since have been hidden by a table.
        if self._names:
            return False
        own = tuple(catalog.by_id(found.id) for found in self._depends)
        if any(one is not found for one, found in zip(own, self._depends, strict=True)):
            if not all(map(self._cannot_tell, self._depends, own)):
                return False
            self._depends = tuple(one for one in own if one is not None)  # all: they are alike
        self.version = catalog.version
        self._rules.move_to(catalog)
        return True

    def _cannot_tell(self, one: Object, other: Object | None, written: int | None = None) -> bool:
        """Whether both are the same, or versions of a table that do not differ for this statement: of one that is
        judged or changed by it, only of the table `written`."""
        if one is other:
            return True
        if not isinstance(one, Table) or not isinstance(other, Table):
            return False
        if one.id in self._written and one.id != written:
            return False
        if self._holding is None:
            self._holding = Holding(self.bound, self.statement.expression)
        return self._holding.cannot_tell(one, other)

    def write_under(self, catalog: CatalogSnapshot, rules: Rules) -> PointWrite | None:
        """The lean form of a write, whether the plan holds for this snapshot or not; None if there is none, or the
        statement has to be planned anew. `rules` are the snapshot's."""
        write = self._newest_write
        if write is None:
            return None
        used = (write.table if found.id == write.table.id else found for found in self._depends)
        moved = [(one, found) for one in used if (found := catalog.by_id(one.id)) is not one]
        if not moved:
            return write
        made = self._write_alike(write, moved, rules) or self._write_anew(write, moved, catalog, rules)
        if made is not None:
            self._newest_write = made
        return made

    def _write_alike(self, write: PointWrite, moved: _Moved, rules: Rules) -> PointWrite | None:
        """The lean form that was made for another version of the table, of the same shape, if nothing but the table has
        moved."""
        found = moved[0][1] if all(one is write.table for one, _ in moved) else None
        if not isinstance(found, Table):
            return None
        shape = rules.shape_of(found)
        return next((made.at(found) for known, made in self._writes if known == shape), None)

    def _write_anew(
        self, write: PointWrite, moved: _Moved, catalog: CatalogSnapshot, rules: Rules
    ) -> PointWrite | None:
        if not all(self._cannot_tell(*pair, write.table.id) for pair in moved):
            return None
        table = catalog.table(write.table.id)
        made, shape = write.under(table, rules, catalog), rules.shape_of(table)
        if made is not None and shape is not None:
            self._writes = ((shape, made), *self._writes[: _MAX_SHAPES - 1])
        return made

    def table(self, table: Table) -> Table:
        """The version of a table, of those that the plan was made from, that it held for last."""
        return next((found for found in self._depends if isinstance(found, Table) and found.id == table.id), table)


def _columns(plan: Plan) -> Columns:
    """The columns of the result."""
    if isinstance(plan, QueryPlan):
        return tuple(zip(plan.names, plan.types, strict=True))
    return returned_columns(plan.statement.returning)


Program = QueryProgram | InsertProgram | ModifyProgram | KeptModifyProgram


def compile_program(plan: Plan, parameters: int, layouts: Layouts, rules: Rules, analytic: RunAnalytic) -> Program:
    """The program of a plan."""
    match plan:
        case QueryPlan():
            return QueryProgram(plan, parameters, layouts, analytic)
        case InsertPlan() if plan.statement.target.kept is not None:
            return KeptInsertProgram(plan, parameters, layouts, rules, analytic)
        case InsertPlan():
            return InsertProgram(plan, parameters, layouts, rules, analytic)
        case ModifyPlan() if plan.statement.target.kept is not None:
            return KeptModifyProgram(plan, parameters, layouts, rules)
        case ModifyPlan():
            return ModifyProgram(plan, parameters, layouts, rules)


def dependencies(bound: tree.BoundStatement, catalog: CatalogSnapshot) -> tuple[Object, ...]:
    """The descriptors that a plan is made from: what it names, and for DML all that foreign keys lead to."""
    found: dict[int, Object] = {view.id: view for view in bound.views}
    for named in bound.tables:
        found[named.id] = named
    for node in walk(bound.statement):
        # The sequences of row ids have a number, but no descriptor; lastval is of any.
        number = node.sequence if isinstance(node, tree.OfSequence) else None
        sequence = None if number is None else catalog.by_id(number)
        if sequence is not None:
            found[sequence.id] = sequence
    for table in _written(bound, catalog):
        found.setdefault(table.id, table)
    return tuple(found.values())


def _written(bound: tree.BoundStatement, catalog: CatalogSnapshot) -> Iterator[Table]:
    """The tables that DML writes to, and all that foreign keys lead to from there."""
    if isinstance(bound.statement, tree.QueryStatement):
        return
    target = bound.statement.target
    stack = [target.table]
    if target.kept is not None:
        stack = [found.table for found in walk(target.kept) if isinstance(found, tree.TableScan)]
    known = {table.id: table for table in stack}
    while stack:
        current = stack.pop()
        yield current
        for other in (*(key.parent for key in current.foreign_keys), *current.referenced_by):
            if other not in known:
                known[other] = catalog.table(other)
                stack.append(known[other])


# The classes of parameters that a plan was made for, and the plan.
_Form = tuple[tuple[type, ...], Prepared]


class Entry:
    """The plans of one text, by the classes of the parameters that they were made for, and what it was parsed to.
    `fast`: a point lookup and the columns of its rows, together, since another form of the text may have others; who
    uses it sets `used`. `locking`: the same, where the row is to be locked."""

    __slots__ = ("fast", "locking", "plans", "statement", "used")

    def __init__(self, statement: Query | Dml) -> None:
        self.fast: Lean | None = None
        self.locking: Lean | None = None
        self.statement = statement
        self.plans: list[_Form] = []
        self.used = False


# A text whose parameters keep changing class is planned anew rather than kept in ever more forms.
_MAX_FORMS = 8


class PlanCache:
    """Prepared statements of a process, shared by its sessions. Bounded; texts not used for long go first."""

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self._capacity = capacity
        self._entries: dict[str, Entry] = {}
        # The entry of a text, if it has one: the dictionary's own function, so that a lookup pays for nothing between.
        self.entry = self._entries.get
        self.forked()
        begin_anew_in_child(self)

    def forked(self) -> None:
        """In a child: plans hold there too, the lock may be held by a thread that is not there."""
        self._lock = threading.Lock()  # taken to change the set of entries, not to use one

    def __len__(self) -> int:
        return len(self._entries)

    def is_of(self, text: str, version: int) -> bool:
        """Whether the newest plan of a text is one for this catalog version."""
        entry = self._entries.get(text)
        return entry is not None and bool(entry.plans) and entry.plans[0][1].version == version

    def statement(self, text: str) -> Query | Dml | None:
        """What a text that was planned before was parsed to; None for other texts."""
        entry = self._entries.get(text)
        return None if entry is None else entry.statement

    def find(self, text: str, parameters: Sequence[object], catalog: CatalogSnapshot) -> Prepared | None:
        """The plan for parameters of these classes, if there is one and it holds for the snapshot.

        `catalog` is a committed snapshot: the newest, or an older one.
        """
        entry = self._entries.get(text)
        if entry is None:
            return None
        entry.used = True
        for form in entry.plans:
            if _serves(form, parameters):
                prepared = form[1]
                if not prepared.holds(catalog):
                    with self._lock:
                        self._forget(entry, form)
                    return None
                _offer_lookup(entry, prepared, catalog)
                return prepared
        return None

    def known(self, text: str, parameters: Sequence[object]) -> Prepared | None:
        """The plan for parameters of these classes, if there is one, whichever snapshot it holds for."""
        entry = self._entries.get(text)
        return None if entry is None else next((form[1] for form in entry.plans if _serves(form, parameters)), None)

    def add(self, text: str, parameters: Sequence[object], catalog: CatalogSnapshot, prepared: Prepared) -> None:
        """Keep a plan that was made for these parameters under a committed snapshot."""
        classes = tuple(class_of(value) for value in parameters)
        with self._lock:
            entry = self._entries.get(text)
            if entry is None:
                self._make_room()
                entry = self._entries[text] = Entry(prepared.statement)
            entry.plans = [(classes, prepared), *entry.plans[: _MAX_FORMS - 1]]
        _offer_lookup(entry, prepared, catalog)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()

    def _forget(self, entry: Entry, form: _Form) -> None:
        entry.plans = [kept for kept in entry.plans if kept is not form]
        entry.fast = entry.locking = None

    def _make_room(self) -> None:
        """A clock: entries come round in the order of their age, and one that was used since gets another turn."""
        while len(self._entries) >= self._capacity:
            text, entry = next(iter(self._entries.items()))
            del self._entries[text]
            if entry.used:
                entry.used = False
                self._entries[text] = entry


def _offer_lookup(entry: Entry, prepared: Prepared, catalog: CatalogSnapshot) -> None:
    """Have the lean form of a plan, which holds for this snapshot, be tried first."""
    lookup = prepared.lookup
    if lookup is not None:
        lookup.revalidate(catalog.version, prepared.table(lookup.table))
        lean = lookup.fast, prepared.columns, lookup
        if lookup.mode is None:
            entry.fast = lean
        else:
            entry.locking = lean


def class_of(value: Any) -> type:
    """What decides the hint of a parameter: its class, with those apart whose values are hinted as several types."""
    kind: type = value.__class__
    if kind is int:
        return int if _LOW <= value <= _HIGH else _Huge
    if kind is not str and isinstance(value, datetime) and value.tzinfo is not None:
        return _Aware
    return kind


class _Huge:
    """Stands for an int that no bigint holds."""


class _Aware:
    """Stands for a datetime with a time zone."""


def _serves(form: _Form, parameters: Sequence[object]) -> bool:
    """Whether a plan made for these classes serves the parameters; NULL is of every type that its place decides."""
    classes, prepared = form
    if len(classes) != len(parameters):
        return False
    for index, value in enumerate(parameters):
        if class_of(value) is not classes[index] and (value is not None or index in prepared.bound.by_value):
            return False
    return True
