"""Plans: what would turn the live schema into another one, statement by statement, rehearsed on the live database."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Sequence as SequenceDescriptor
from instar.catalog.descriptors import Table
from instar.database import Database, Session
from instar.database.database import MEMORY
from instar.database.rehearsal import Rehearsal, rehearsal
from instar.declarative import changes as to
from instar.declarative import model
from instar.declarative.changes import Change, loss
from instar.declarative.diff import difference
from instar.declarative.order import ordered
from instar.declarative.reading import read_schema, require_settled
from instar.declarative.renames import Hint, follow, follow_owners
from instar.declarative.rendering import render
from instar.schemachange.explain import Row
from instar.schemachange.job_records import Problem, problem_of


class Step(msgspec.Struct, frozen=True):
    """One statement. `loses`: what it destroys, in words; `problem`: why it cannot be done, as far as is known now."""

    statement: str
    loses: str = ""
    stages: tuple[Row, ...] = ()
    problem: Problem | None = None

    @property
    def takes_job(self) -> bool:
        """Whether it is not complete once it is committed."""
        return any(row.stage > 1 for row in self.stages)


class Plan(msgspec.Struct, frozen=True):
    """Steps in a safe order; none where the schemas are the same."""

    steps: tuple[Step, ...] = ()

    @property
    def problems(self) -> list[Step]:
        """The steps that cannot be done."""
        return [step for step in self.steps if step.problem is not None]

    @property
    def destructive(self) -> list[Step]:
        """The steps that destroy something."""
        return [step for step in self.steps if step.loses]


def make_plan(session: Session, wanted: model.Schema, hints: Sequence[Hint] = ()) -> Plan:
    """What turns the schema of the session's database into `wanted`. Nothing is changed.

    55006 while a job changes the schema.
    """
    with rehearsal(session) as rehearsed:
        require_settled(rehearsed.catalog)
        return Plan(tuple(_steps(rehearsed, _changes(rehearsed.catalog, wanted, hints))))


def dump(session: Session) -> str:
    """The live schema as a file: the plan that makes it in an empty database, where it is rehearsed."""
    with rehearsal(session) as rehearsed:
        schema = read_schema(rehearsed.catalog)
    empty = Database.open(MEMORY)
    try:
        plan = make_plan(empty.session(), schema)
    finally:
        empty.release()
    for step in plan.problems:
        assert step.problem is not None
        raise errors.error(
            errors.INTERNAL_ERROR,
            f"the schema cannot be written as SQL: {step.problem.message}",
            detail=step.statement,
        )
    return "\n".join(f"{step.statement};\n" for step in plan.steps)


def _changes(catalog: CatalogSnapshot, wanted: model.Schema, hints: Sequence[Hint]) -> list[Change]:
    """Renames first, on the catalog itself, where names are all that they change; then what else differs."""
    renamed, by_hint = follow(catalog, hints)
    settled, by_owner = follow_owners(renamed, wanted)
    return ordered([*by_hint, *by_owner, *difference(read_schema(settled, wanted), wanted)])


def _steps(rehearsed: Rehearsal, changes: Sequence[Change]) -> list[Step]:
    """A step for each change, in an order in which they can be done; those that cannot stand where their phase puts
    them. A change is put off where what is in its way goes later (a name that another table's key has yet, a lock on
    columns of a new key)."""
    done: list[Step] = []
    waiting: deque[tuple[int | None, Change]] = deque((None, change) for change in changes)
    while True:
        refused: list[tuple[int, Change, Step]] = []
        before = len(done)
        while waiting:
            place, change = waiting.popleft()
            step = _rehearsed(rehearsed, change)
            if step.problem is None:
                done.append(step)
                waiting.extendleft((None, rename) for rename in _generated(change, rehearsed.catalog))
            else:
                refused.append((len(done) if place is None else place, change, step))
        if not refused or len(done) == before:
            break
        waiting.extend((place, change) for place, change, _ in refused)
    for place, _, step in reversed(refused):
        done.insert(place, step)
    return done


def _rehearsed(rehearsed: Rehearsal, change: Change) -> Step:
    statement = render(change)
    try:
        return Step(statement, loss(change), tuple(rehearsed.plan(statement)))
    except errors.Error as error:
        return Step(statement, loss(change), problem=problem_of(error))


def _generated(change: Change, catalog: CatalogSnapshot) -> Iterator[Change]:
    """Renames of sequences that identity columns have got with a generated name, where they are called otherwise."""
    columns: Iterable[model.Column] = ()
    if isinstance(change, to.CreateTable):
        name, columns = change.table.name, change.table.columns
    elif isinstance(change, to.AddColumn | to.AddIdentity):
        name, columns = change.table, (change.column,)
    for column in columns:
        table = catalog.lookup("public", name)
        if column.identity is None or not isinstance(table, Table):
            continue
        made = next(catalog.by_id(found.sequence or 0) for found in table.columns if found.name == column.name)
        wanted = column.identity.sequence.name
        if isinstance(made, SequenceDescriptor) and made.name != wanted:
            yield to.RenameRelation("sequence", made.name, wanted)
