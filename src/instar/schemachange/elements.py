"""Schema elements: what can change, and which state each is in (F1 §3.1).

An element is named by kind, table and id, never by name. Its state is read off the table's descriptor; an element that
the descriptor does not list is absent. A further kind needs a state in the descriptor, a path in states.py, and what
its step does in publishing.py.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

import msgspec

from instar.catalog.descriptors import Check, Column, ForeignKey, State, StepKind, Table


class ElementKind(enum.Enum):
    """The kinds of elements that live inside a table and move through states."""

    COLUMN = "column"
    INDEX = "index"
    CHECK = "check constraint"
    FOREIGN_KEY = "foreign key"
    NOT_NULL = "not null constraint"
    LOCK = "lock"
    COVERAGE = "lock coverage"  # of columns: absent is the old one, write-only dual coverage
    LAYOUT = "layout"  # the one that rows are compacted into; it has no states, and is named by work alone
    TABLE = "table"  # the whole, where a job is bound to drop it; it has no states, and nothing moves it
    TRANSFORMATION = "transformation"  # of a source of an online join or split, or then of a target
    PRIMARY_KEY = "primary key"  # the next one; once it has become the table's own it is listed no more


class Phase(enum.Enum):
    """A state of an element, absence included; the value is how it is printed."""

    ABSENT = "absent"
    DELETE_ONLY = "delete-only"
    WRITE_ONLY = "write-only"
    PUBLIC = "public"


_PHASES = {
    State.DELETE_ONLY: Phase.DELETE_ONLY,
    State.WRITE_ONLY: Phase.WRITE_ONLY,
    State.PUBLIC: Phase.PUBLIC,
}
_STATES = {phase: state for state, phase in _PHASES.items()}


def state_in(phase: Phase) -> State:
    """The descriptor's state of a phase other than ABSENT."""
    return _STATES[phase]


class Element(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One element. Ids of columns, indexes and constraints of one table share a number space and are never reused; a
    NOT NULL bears the id of its column."""

    kind: ElementKind
    table: int
    id: int


def phases(table: Table | None) -> dict[Element, Phase]:
    """The phase of every element of a table; what is not in the result is absent."""
    if table is None:
        return {}
    return {element: _PHASES[state] for element, state in _states(table)}


def phase_of(table: Table | None, element: Element) -> Phase:
    """The phase of one element at one version of its table."""
    return phases(table).get(element, Phase.ABSENT)


def _states(table: Table) -> Iterator[tuple[Element, State]]:
    for column in table.columns:
        yield Element(ElementKind.COLUMN, table.id, column.id), column.state
        if column.not_null is not None:
            yield Element(ElementKind.NOT_NULL, table.id, column.id), column.not_null
    for index in table.indexes:
        yield Element(ElementKind.INDEX, table.id, index.id), index.state
    for check in table.checks:
        yield Element(ElementKind.CHECK, table.id, check.id), check.state
    for foreign_key in table.foreign_keys:
        yield Element(ElementKind.FOREIGN_KEY, table.id, foreign_key.id), foreign_key.state
    for lock in table.locks:
        yield Element(ElementKind.LOCK, table.id, lock.id), lock.state
    for change in table.coverage_changes:
        yield Element(ElementKind.COVERAGE, table.id, change.id), State.WRITE_ONLY
    if table.transformed is not None:
        yield Element(ElementKind.TRANSFORMATION, table.id, table.transformed.id), table.transformed.state
    if table.crossing is not None:
        yield Element(ElementKind.TRANSFORMATION, table.id, table.crossing.id), State.WRITE_ONLY
    if table.next_key is not None:
        yield Element(ElementKind.PRIMARY_KEY, table.id, table.next_key.id), table.next_key.state


def used_columns(table: Table, element: Element) -> tuple[Element, ...]:
    """The columns that an index, a constraint or a generated column of the table stands on: they go no earlier than it
    does (rule 25)."""
    columns = {element.id} if element.kind is ElementKind.NOT_NULL else set()
    if element.kind is ElementKind.COLUMN:
        made = (found.derived for found in table.columns if found.id == element.id and found.generated)
        columns = {source.id for derived in made if derived is not None for source in derived.sources}
    if element.kind is ElementKind.INDEX:
        columns = {part.column for index in table.indexes if index.id == element.id for part in index.columns}
    elif element.kind in (ElementKind.CHECK, ElementKind.FOREIGN_KEY):
        constraints: tuple[Check | ForeignKey, ...] = (*table.checks, *table.foreign_keys)
        columns = {column for found in constraints if found.id == element.id for column in found.columns}
    elif element.kind is ElementKind.PRIMARY_KEY and table.next_key is not None:
        columns = set(table.next_key.columns)
    return tuple(Element(ElementKind.COLUMN, table.id, column) for column in sorted(columns))


def entered(table: Table, element: int) -> int:
    """The version at which the element of this id entered the state that it has at `table.version`.

    Steps of paths bear the ids of the elements that they moved. If no step that is still listed moved it, the answer
    is the oldest version that is listed: later than the truth, and a floor that is too high is always safe.
    """
    for step in reversed(table.steps):
        if step.kind is StepKind.ELEMENT_STATE and element in step.columns:
            return step.version
    return table.steps[0].version if table.steps else table.version


def yielding(table: Table) -> dict[Element, State]:
    """The elements that give way to writes until they are public, with their states: pending constraints that abort
    their change."""
    found = {
        Element(kind, table.id, listed.id): listed.state
        for kind, group in (
            (ElementKind.INDEX, table.indexes),
            (ElementKind.CHECK, table.checks),
            (ElementKind.FOREIGN_KEY, table.foreign_keys),
        )
        for listed in group
        if listed.yields
    }
    for column in table.columns:
        if column.not_null_yields and column.not_null is not None:
            found[Element(ElementKind.NOT_NULL, table.id, column.id)] = column.not_null
    return found


def name_of(table: Table, element: Element) -> str:
    """The element's name for people: `index "t_a_idx"`; its id if the descriptor does not list it."""
    if element.kind is ElementKind.LAYOUT:
        return f"older layouts, into layout {element.id}"
    if element.kind is ElementKind.TRANSFORMATION:
        return "its join or split"
    names = {
        listed.id: listed.name
        for group in (table.columns, table.indexes, table.checks, table.foreign_keys, table.locks)
        for listed in group
    }
    if table.next_key is not None:
        names[table.next_key.id] = table.next_key.name
    for change in table.coverage_changes:
        if change.id == element.id:
            moved = ", ".join(f'"{names[column]}"' for column, _ in change.covers if column in names)
            return f"{element.kind.value} of {moved}"
    if element.id in names:
        of = "of column " if element.kind is ElementKind.NOT_NULL else ""
        return f'{element.kind.value} {of}"{names[element.id]}"'
    return f"{element.kind.value} {element.id}"


def moving(table: Table) -> list[Element]:
    """The elements of a table that a job is moving: those in a state between absent and public, but for constraints
    that nobody has asked to validate."""
    resting = _resting(table)
    return [
        element
        for element, phase in phases(table).items()
        if phase is not Phase.PUBLIC and not (phase is Phase.WRITE_ONLY and element in resting)
    ]


def is_required(column: Column) -> bool:
    """Whether a job may leave no row without a value of the column: a NOT NULL that is NOT VALID says nothing of older
    rows."""
    return column.refuses_null and not column.not_null_not_valid


def _resting(table: Table) -> set[Element]:
    """The constraints that are NOT VALID."""
    kinds = ((ElementKind.CHECK, table.checks), (ElementKind.FOREIGN_KEY, table.foreign_keys))
    found = {Element(kind, table.id, one.id) for kind, listed in kinds for one in listed if one.not_valid}
    return found | {
        Element(ElementKind.NOT_NULL, table.id, column.id) for column in table.columns if column.not_null_not_valid
    }
