"""The draft of one statement: the descriptors as its actions leave them, on top of what the session sees.

Each action sees what the ones before it did (`ALTER TABLE t ADD a int, ADD CHECK (a > 0)`); however many there are, a
table gets one new version per statement. Nothing is written: `publication` says what the transaction has to publish.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Protocol, TypeVar

import msgspec

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import (
    Column,
    Index,
    Object,
    Sequence,
    State,
    Step,
    StepKind,
    Table,
    View,
    is_seen,
)
from instar.catalog.history import Dropped, DroppedColumn
from instar.catalog.naming import constraint_names, generated_name
from instar.schemachange import replacements, rules
from instar.schemachange.elements import Element, ElementKind, Phase, moving, name_of
from instar.schemachange.key_elements import is_held
from instar.schemachange.next_layout import numbered
from instar.schemachange.publishing import new_version, publish, revived
from instar.schemachange.stages import Move, Publication, Scheduled
from instar.schemachange.states import first_state
from instar.schemachange.wanted import Freezer

Kind = TypeVar("Kind", Table, View, Sequence)

_NOUNS: dict[type[Object], str] = {Table: "table", View: "view", Sequence: "sequence"}
_MISSING = {**_NOUNS, Sequence: "relation"}


class Ids(Protocol):
    """Where ids come from; they are never reused. A catalog change is one."""

    def new_id(self) -> int: ...

    def new_rowset(self, owner: int) -> int: ...

    def is_new(self, object_id: int) -> bool:
        """Whether the object was created by this very transaction, so that nobody else can have written to it."""
        ...

    def committed(self, object_id: int) -> Object | None:
        """The object as it is without this transaction."""
        ...


class TableBusy(errors.OperationalError):
    """55006: a job moves an element of the table of id `table`: `element`, if it is known which. The change may wait
    for it.

    `on_record`: the job was found among the jobs; else the table's descriptor tells whether there is one.
    """

    table = 0
    element: Element | None = None
    on_record = False


def busy(table: Table, message: str, element: Element | None = None, *, on_record: bool = False) -> TableBusy:
    """The error that says so."""
    made = TableBusy(
        message, errors.OBJECT_IN_USE, hint="Wait for the job, or cancel it (SHOW JOBS, CANCEL JOB)."
    )  # fmt: skip
    made.table, made.element, made.on_record = table.id, element, on_record
    return made


def unfinished(table: Table, element: Element) -> TableBusy:
    """The error for a table one of whose elements a job moves."""
    return busy(table, f'table "{table.name}" is being changed: {name_of(table, element)} is not complete', element)


class Facts(Protocol):
    """What planning must know of the data and of the servers."""

    @property
    def schema_lease(self) -> float:
        """For how many seconds a server may go on with the schema that it has cached; 0: for no statement."""
        ...

    def stored_empty(self, table: Table) -> bool:
        """Whether no committed row of the table exists now."""
        ...

    def has_buffered(self, table: Table) -> bool:
        """Whether the transaction itself has buffered rows of the table."""
        ...

    def estimated_rows(self, table: Table) -> int:
        """About how many rows the table has."""
        ...

    def is_settled(self, table: Table) -> bool:
        """Whether all rows of the table may be put into its newest layout: no snapshot reads what they would lose."""
        ...

    def is_moved(self, element: Element) -> bool:
        """Whether a job that has not ended moves the element."""
        ...

    def bound(self) -> dict[Element, int]:
        """What jobs past their last revertible stage are bound to drop or change, with the job."""
        ...

    def last_value(self, sequence: Sequence) -> int | None:
        """The last value that was handed out or reserved; None before the first."""
        ...

    def dropped(self) -> list[Dropped]:
        """All that was dropped and can still come back."""
        ...

    def dropped_columns(self, table: Table) -> list[DroppedColumn]:
        """The columns that the table has lost and that can still come back, the one dropped last first."""
        ...

    def object_at(self, object_id: int, snapshot: int) -> Object | None:
        """An object as it was at a timestamp, None if it was not there; 72000 if that is longer ago than the store
        retains."""
        ...


class Draft:
    """The working copy of one statement."""

    def __init__(self, view: CatalogSnapshot, ids: Ids, facts: Facts, statement: str) -> None:
        self.view = view
        self.ids = ids
        self.facts = facts
        self.statement = statement
        self.notices: list[str] = []
        self.scheduled: list[Scheduled] = []
        self.resting: list[Scheduled] = []  # what has come as far as it is to come, and goes if the job fails
        self.at_the_end: list[Move] = []  # of the job, in its last stage
        self.objects: list[int] = []  # tables and views that go in it
        self.own: set[Element] = set()  # what this statement has begun or made
        self.begun: set[Element] = set()  # what those before it in its transaction have begun
        # What is there all the same: what the statement drops, for what it adds; what it adds, for what it drops.
        self.unseen: set[Element] = set()
        # Whether the statement takes a job: then what it brings is shown at the end of it, all at once.
        self.staged = False
        # Whether nothing collapses: what comes has the name of what leaves by its path.
        self.by_paths = False
        # Whether drops are part of the last step of a job, and so take no steps of their own.
        self.collapsing = False
        self._before: dict[int, Object | None] = {}  # None: created by this statement
        self._created: set[int] = set()
        self._revived: dict[int, int] = {}
        self._dropped: dict[int, Object] = {}
        self._freed: list[int] = []
        self._still_empty: dict[int, None] = {}

    # --- looking up --------------------------------------------------------------------------------------------------

    def find(self, kind: type[Kind], name: str) -> Kind:
        """The object of that name; 42P01 if there is none, 42809 if it is of another kind."""
        found = self.view.lookup("public", name)
        if found is None:
            raise errors.error(errors.UNDEFINED_TABLE, f'{_MISSING[kind]} "{name}" does not exist')
        if not isinstance(found, kind):
            raise errors.error(errors.WRONG_OBJECT_TYPE, f'"{name}" is not a {_NOUNS[kind]}')
        return found

    def table(self, table_id: int) -> Table:
        """The table as the draft has it now."""
        return self.view.table(table_id)

    def column(self, table: Table, name: str) -> Column:
        """42703 if the table has no such column, 55006 if one is only on its way."""
        for found in self.seen_columns(table):
            if found.name == name and not found.hidden:
                if found.state is not State.PUBLIC and _column_element(table, found) not in self.own:
                    raise _is_being_added(table, found)
                return found
        raise errors.error(errors.UNDEFINED_COLUMN, f'column "{name}" of relation "{table.name}" does not exist')

    def find_index(self, name: str) -> tuple[Table, Index] | None:
        """The index of that name and its table."""
        table = self.view.relation(name)
        if isinstance(table, Table) and table.unseen is None:
            for index in table.indexes:
                if index.name == name and self.sees(ElementKind.INDEX, table, index.id):
                    return table, index
        return None

    def seen_columns(self, table: Table) -> list[Column]:
        """The columns of the table that are there for the action at hand."""
        return [column for column in table.columns if _column_element(table, column) not in self.unseen]

    def sees(self, kind: ElementKind, table: Table, number: int) -> bool:
        """Whether an element of the table is there for the action at hand."""
        return Element(kind, table.id, number) not in self.unseen

    def name_taken(self, name: str) -> bool:
        """Whether a relation has this name: table, view, sequence, index or primary key."""
        return self.view.relation(name) is not None

    def require_free(self, name: str) -> None:
        """42P07 if a relation has this name."""
        found = self.view.relation(name)
        if found is not None:
            hint = None if is_seen(found) else "A change that is under way makes it: SHOW JOBS tells which."
            raise errors.error(errors.DUPLICATE_TABLE, f'relation "{name}" already exists', hint=hint)

    def require_free_index(self, table: Table, name: str) -> None:
        """The same of the name of a new index of the table: one that goes when it comes may bear it still."""
        going = {Element(ElementKind.INDEX, table.id, found.id) for found in table.indexes if found.name == name}
        if not going or not going <= self.unseen:
            self.require_free(name)

    def require_free_constraint(self, table: Table, name: str) -> None:
        """42710 if a constraint of the table has this name."""
        if name in self.constraint_names(table):
            raise errors.error(
                errors.DUPLICATE_OBJECT, f'constraint "{name}" for relation "{table.name}" already exists'
            )

    def relation_name(self, table: str, columns: Iterable[str], label: str) -> str:
        """A generated name that no relation has."""
        return generated_name(table, tuple(columns), label, self.name_taken)

    def constraint_name(self, table: Table, columns: Iterable[str], label: str) -> str:
        """A generated name that no constraint of the table has."""
        taken = self.constraint_names(table)
        return generated_name(table.name, tuple(columns), label, taken.__contains__)

    def constraint_names(self, table: Table) -> set[str]:
        """The names of the constraints of a table that this statement sees."""
        gone = {element.id for element in self.unseen if element.table == table.id}
        return constraint_names(table, gone)

    def shown(self, table: Table) -> Table:
        """The table as the statement's own expressions see it: with the columns that only the end of its job shows."""
        columns = tuple(
            msgspec.structs.replace(column, state=State.PUBLIC)
            if _column_element(table, column) in self.own
            else column
            for column in self.seen_columns(table)
        )
        return msgspec.structs.replace(table, columns=columns)

    def read(self, table: Table, columns: Iterable[int]) -> tuple[Element, ...]:
        """Those of the columns that rows are given values of by the job of this transaction: whoever reads them comes
        later. 55006 if another job is at it."""
        wanted = set(columns)
        found = [column for column in table.columns if column.id in wanted and column.state is not State.PUBLIC]
        before = self.ids.committed(table.id)
        for column in found:
            if isinstance(before, Table) and any(known.id == column.id for known in before.columns):
                raise _is_being_added(table, column)
        return tuple(_column_element(table, column) for column in found if column.per_row or column.derived is not None)

    # --- facts -------------------------------------------------------------------------------------------------------

    def collapses(self, table: Table) -> bool:
        """Whether the paths of new elements of `table` collapse into one step: nobody else can have rows in it.

        A table of this very transaction is known to nobody; one that was found empty must be so still at the commit.
        """
        if self.is_new(table):
            return True
        if self.by_paths:
            return False
        if table.id not in self._still_empty:
            if not self.facts.stored_empty(table):
                return False
            self._still_empty[table.id] = None
        return True

    def is_new(self, table: Table) -> bool:
        """Whether this very transaction has created the table."""
        return self.ids.is_new(table.id) or table.id in self._created

    def has_no_rows(self, table: Table) -> bool:
        """Whether no row of the table needs a value for a new column, this transaction's own included."""
        return not self.facts.has_buffered(table) and self.collapses(table)

    def require_settled(self, table: Table) -> None:
        """55006 while a job moves an element of the table: one change at a time."""
        for element in moving(table):
            raise unfinished(table, element)

    def require_still(self, table: Table, *elements: Element) -> None:
        """55006 while a job moves one of these elements. At the end of a job, what it brings is not in the way."""
        if self.collapsing:
            return
        for element in moving(table):
            if element in elements:
                raise unfinished(table, element)

    def require_unvalidated(self, table: Table, element: Element) -> None:
        """55006 while a job is validating the constraint, or the transaction has begun that."""
        if element in self.begun or self.facts.is_moved(element):
            what = f'table "{table.name}" is being changed: {name_of(table, element)} is being validated'
            raise busy(table, what, element, on_record=element not in self.begun)

    # --- changing ----------------------------------------------------------------------------------------------------

    def create(self, new: Object) -> None:
        """Add an object whose name has been found free."""
        self._before[new.id] = None
        self._created.add(new.id)
        self.view = self.view.changed([new], [])

    def revive(self, new: Object, dropped_at: int) -> None:
        """Bring back an object, one version on, that the commit of this timestamp dropped, and whose name is free."""
        self._before[new.id] = None
        self._revived[new.id] = dropped_at
        self.view = self.view.changed([new], [])

    def replace(self, new: View | Sequence) -> None:
        """Put a view or sequence, one version on, in the place of the old one."""
        old = self._remember(new.id)
        version = 1 if old is None else old.version + 1
        self.view = self.view.changed([msgspec.structs.replace(new, version=version)], [])

    def edit(self, table_id: int, *steps: tuple[StepKind, tuple[int, ...]], **fields: object) -> Table:
        """Change fields of a table; `steps` are what the validators will vote on: (kind, column or element ids)."""
        table = self.table(table_id)
        columns: tuple[Column, ...] = fields.get("columns", table.columns)  # type: ignore[assignment] # what they are
        # Others are being made of it as it is, or what others were is still written to.
        held = table.transformed is not None or table.crossing is not None
        if held or is_held(table, fields, columns) or replacements.is_held(table, fields, columns):
            self.require_settled(table)
        old = self._remember(table_id)
        first = old is not None and table.version == old.version
        version = table.version + 1 if first else table.version
        new_steps = [
            Step(version=version, kind=kind, columns=columns, statement=self.statement) for kind, columns in steps
        ]
        edited = new_version(table, new_steps, **fields)
        if not first:
            edited = msgspec.structs.replace(edited, version=version)
        if isinstance(old, Table) and edited.layout.id > old.layout.id:
            # However many actions make one, the statement publishes one: the numbers of layouts have no gaps.
            edited = msgspec.structs.replace(edited, layout=numbered(edited.layout, old))
        self.view = self.view.changed([edited], [])
        return edited

    def drop(self, old: Object) -> None:
        """Take an object out, with the rowsets of a table."""
        before = self._remember(old.id)
        if before is not None:
            self._dropped[old.id] = before
        else:
            self._before.pop(old.id, None)
        if isinstance(old, Table):
            self.free(rules.rowsets(old))
        self.view = self.view.changed([], [old.id])

    def free(self, rowsets: Iterable[int]) -> None:
        """These rowsets are dead once the statement has committed (rule 22)."""
        self._freed.extend(sorted(rowsets))

    def touch(self, needed: Object) -> None:
        """Give an object that something new depends on a version of its own.

        A precondition that it is unchanged would not do: whoever drops it next would not notice the newcomer.
        """
        if isinstance(needed, Table):
            self.edit(needed.id)
            return
        if isinstance(needed, Sequence) and needed.owned_by is not None:
            # It goes if the column does not come.
            owner = self.table(needed.owned_by[0])
            for column in owner.columns:
                if column.id == needed.owned_by[1] and column.state is not State.PUBLIC:
                    raise _is_being_added(owner, column)
            # A job that drops the column gives the table a version with each of its stages: they are to meet.
            self.edit(owner.id)
        self.replace(needed)

    def freeze_default(self, table: Table, freeze: Freezer) -> str:
        """A default's text. The sequences that it takes values of get a version, so that their DROP meets it."""
        text = freeze(table).text
        for number in re.findall(r"#(\d+)", text):
            found = self.view.by_id(int(number))
            if isinstance(found, Sequence):
                self.touch(found)
        return text

    def restart(self, sequence: Sequence, first: int | None) -> None:
        """Have the sequence count anew, from `first` or its start: by another counter, which ROLLBACK forgets."""
        self.replace(msgspec.structs.replace(sequence, counter=self.ids.new_id(), first=first))

    def schedule(self, scheduled: Scheduled) -> None:
        """The element, which this statement has put into the next state of its path, goes on by it."""
        self.scheduled.append(scheduled)
        self.own.add(scheduled.element)

    def leaving(self, table: Table) -> set[int]:
        """The ids of elements of the table that this statement has sent on their way out."""
        ways = (found for found in self.scheduled if found.element.table == table.id)
        return {found.element.id for found in ways if found.goal is Phase.ABSENT}

    def new_state(self, table: Table) -> State:
        """The state in which a new index of `table` begins."""
        return State.PUBLIC if self.collapses(table) else first_state(ElementKind.INDEX)

    def publication(self) -> Publication:
        """What the transaction publishes."""
        published = []
        for object_id, before in self._before.items():
            after = self.view.by_id(object_id)
            if object_id in self._revived and after is not None:
                published.append(revived(after, self._revived[object_id]))
            elif after is not None:
                published.append(publish(before, after))
        return Publication(
            tuple(published),
            tuple(self._dropped.values()),
            tuple(self._freed),
            tuple(table for table in self._still_empty if table not in self._dropped),
        )

    def _remember(self, object_id: int) -> Object | None:
        """The object as the statement found it; None if the statement created it."""
        if object_id not in self._before:
            self._before[object_id] = self.view.by_id(object_id)
        return self._before[object_id]


def _column_element(table: Table, column: Column) -> Element:
    return Element(ElementKind.COLUMN, table.id, column.id)


def _is_being_added(table: Table, column: Column) -> TableBusy:
    what = f'column "{column.name}" of relation "{table.name}" is being added'
    return busy(table, what, _column_element(table, column))
