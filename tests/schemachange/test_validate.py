"""Validation of pending constraints: what it finds, what it says, and that writers beside it cannot fool it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import msgspec
import pytest

from instar import errors, types
from instar.catalog.descriptors import Check, ForeignKey, State, Table
from instar.schemachange import validate
from instar.schemachange import wanted as want
from instar.schemachange.elements import Element, ElementKind, Phase
from instar.schemachange.job_records import Job, JobState, encode_job, job_key
from instar.schemachange.jobs import Held
from instar.schemachange.reorganize import InProcess
from instar.schemachange.stages import Move, Reorganization, Stage, Superseded
from instar.schemachange.states import Work
from instar.schemachange.validate import Validation
from instar.sql.checks import compile_check
from instar.store.engine import Commit
from instar.transactions.commit import Conflict
from support.changes import ChangingWorld, Server

POSITIVE = Check(id=50, name="positive", expression='"#2" > 0', columns=(2,), state=State.WRITE_ONLY)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validate, "BATCH_ROWS", 2)


def nothing() -> None:
    pass


def claimed(world: ChangingWorld, number: int = 7, *stages: Stage) -> Held:
    record = Job(number, "test", "a test", stages, 1, JobState.RUNNING, 0, 0)
    with world.store.read() as reader:
        version = reader.catalog_version
    world.store.commit(Commit(catalog_version=version, raw=[(job_key(number), encode_job(record))]))
    held = world.jobs.claim(number, b"test")
    assert held is not None
    return held


def validation(world: ChangingWorld, kind: ElementKind, number: int, held: Held | None = None) -> Validation:
    held = held or claimed(world)
    element = Element(kind, world.table().id, number)
    return Validation(
        world.store, world.catalog_cache, element, compile_check, job=held.job, stage=1, claim=held.claim, rows=9
    )


def problem_of(task: Validation, pulse: Callable[[], None] = nothing) -> errors.Error:
    with pytest.raises(errors.Error) as caught:
        InProcess().run(task, pulse)
    return caught.value


def family(
    children: Iterable[tuple[object, ...]],
    parents: Iterable[int] = (1, 2, 3),
    *,
    through_index: bool = False,
    enforced: bool = True,
) -> ChangingWorld:
    """Table t with rows (id, a, b), a referring to table p's rows (id, code) by a foreign key that is pending."""
    world = ChangingWorld()
    columns = (want.NewColumn("id", types.BIGINT), want.NewColumn("code", types.BIGINT))
    world.execute(want.CreateTable("p", columns, ("id",), constraints=(want.Unique(("code",)),)))
    writer = Server(world, "p")
    for number in parents:
        writer.insert(number, -number if through_index else number)
    writer.commit()
    world.create_t(children)
    job = world.execute(want.CreateIndex("t", (("a", False),), "t_a"))
    if job is not None:
        world.executor().run(job)
    child, parent = world.table(), world.table("p")
    key = ForeignKey(
        id=60,
        name="t_p",
        columns=(2,),
        parent=parent.id,
        parent_columns=(2,) if through_index else (1,),
        parent_index=parent.indexes[0].id if through_index else None,
        child_index=child.indexes[0].id,
        state=State.WRITE_ONLY,
    )
    world.alter(child, foreign_keys=(key,))
    if enforced:
        world.alter(parent, referenced_by=(child.id,))
    return world


def orphans(world: ChangingWorld) -> list[object]:
    parents = {values[0] for _, values in world.rows(world.table("p")).values()}
    return [
        values[0]
        for _, values in world.rows(world.table()).values()
        if values[1] is not None and values[1] not in parents
    ]


# --- what is found ---------------------------------------------------------------------------------------------------


def test_a_check_is_held_to_by_all_rows_or_names_those_that_do_not() -> None:
    world = ChangingWorld()
    world.alter(world.create_t([(1, 5, "x"), (2, None, "y"), (3, 9, None)]), checks=(POSITIVE,))
    InProcess().run(validation(world, ElementKind.CHECK, 50), nothing)
    assert world.jobs.checkpoints(7, 1)[0].done
    world = ChangingWorld()
    world.alter(world.create_t([(1, 5, "x"), (2, 0, "y"), (3, -1, None)]), checks=(POSITIVE,))
    found = problem_of(validation(world, ElementKind.CHECK, 50))
    assert (found.sqlstate, found.message) == (
        errors.CHECK_VIOLATION,
        'check constraint "positive" of relation "t" is violated by some row',
    )
    assert found.detail == "2 rows violate it: (id)=(2), (id)=(3)."


def test_a_check_reads_rows_of_every_layout(small_batches: None) -> None:
    """A row in an older layout has the frozen value of a column that came later; a widened one is read as written."""
    world = ChangingWorld()
    world.create_t([(1, 5, "x"), (2, 6, "y"), (3, 7, "z")])
    frozen = want.Default(lambda table: want.Frozen("-4", ()), False, "-4")
    world.execute(want.AddColumn("t", want.NewColumn("c", types.INTEGER, default=frozen)))
    world.execute(want.SetType("t", "a", types.BIGINT))
    writer = Server(world)
    writer.update(2, a=1 << 40, c=4)
    writer.commit()
    number = world.table().columns[-1].id
    check = Check(id=70, name="c", expression=f'"#{number}" > 0 AND "#2" > 0', columns=(2, number))
    world.alter(world.table(), checks=(msgspec.structs.replace(check, state=State.WRITE_ONLY),))
    assert problem_of(validation(world, ElementKind.CHECK, 70)).detail == "2 rows violate it: (id)=(1), (id)=(3)."


def test_a_type_that_is_widened_during_the_walk_is_read_as_it_is_then(small_batches: None) -> None:
    world = ChangingWorld()
    world.alter(world.create_t([(number, number, "x") for number in range(1, 7)]), checks=(POSITIVE,))

    def widen() -> None:
        if world.table().columns[1].type == types.INTEGER:
            world.execute(want.SetType("t", "a", types.BIGINT))
            writer = Server(world)
            writer.update(6, a=1 << 40)
            writer.commit()

    InProcess().run(validation(world, ElementKind.CHECK, 50), widen)
    assert world.jobs.checkpoints(7, 1)[0].done


def test_not_null() -> None:
    world = ChangingWorld()
    world.create_t([(number, 1 if number % 3 else None, "x") for number in range(1, 46)])
    writer = Server(world)
    writer.delete(3)
    writer.commit()
    InProcess().run(validation(world, ElementKind.NOT_NULL, 3), nothing)
    found = problem_of(validation(world, ElementKind.NOT_NULL, 2, claimed(world, 8)))
    assert (found.sqlstate, found.message) == (
        errors.NOT_NULL_VIOLATION,
        'column "a" of relation "t" contains null values',
    )
    shown = ", ".join(f"(id)=({number})" for number in range(6, 36, 3))
    assert found.detail == f"14 rows violate it, among them: {shown}."


@pytest.mark.parametrize("through_index", [False, True])
def test_a_foreign_key(through_index: bool) -> None:
    sign = -1 if through_index else 1
    sound = [(1, sign, "x"), (2, 3 * sign, "y"), (3, None, "z"), (4, sign, "x")]
    world = family(sound, through_index=through_index)
    InProcess().run(validation(world, ElementKind.FOREIGN_KEY, 60), nothing)
    world = family([*sound, (5, 4, "nobody")], through_index=through_index)
    found = problem_of(validation(world, ElementKind.FOREIGN_KEY, 60))
    assert (found.sqlstate, found.message) == (
        errors.FOREIGN_KEY_VIOLATION,
        'insert or update on table "t" violates foreign key constraint "t_p"',
    )
    assert found.detail == 'Key (a)=(4) is not present in table "p". 1 row violates it: (id)=(5).'


def test_a_deleted_parent_is_none() -> None:
    world = family([(1, 1, "x")], enforced=False)
    for name, number in (("p", 2), ("p", 1)):
        writer = Server(world, name)
        writer.delete(number)
        writer.commit()
    assert problem_of(validation(world, ElementKind.FOREIGN_KEY, 60)).sqlstate == errors.FOREIGN_KEY_VIOLATION


# --- how it goes on --------------------------------------------------------------------------------------------------


def test_stopped_before_a_violation_and_after_it(small_batches: None) -> None:
    """The checkpoint stays before the first violation, so that whoever resumes meets it too."""
    world = ChangingWorld()
    world.alter(world.create_t([(n, -1 if n in (5, 6) else 1, "x") for n in range(1, 11)]), checks=(POSITIVE,))
    held = claimed(world)

    class Stop(Exception):
        pass

    seen: list[int] = []
    for batches in (2, 3):

        def pulse(left: list[int] = [batches]) -> None:  # noqa: B006 - a counter of this call
            if not left[0]:
                raise Stop
            left[0] -= 1

        with pytest.raises(Stop):
            InProcess().run(validation(world, ElementKind.CHECK, 50, held), pulse)
        seen.append(world.jobs.checkpoints(7, 1)[0].rows)
    assert seen == [4, 10]
    found = problem_of(validation(world, ElementKind.CHECK, 50, held))
    assert found.detail == "2 rows violate it: (id)=(5), (id)=(6)."
    assert not world.jobs.checkpoints(7, 1)[0].done


def test_a_finished_walk_is_not_done_again() -> None:
    world = ChangingWorld()
    world.alter(world.create_t([(1, 1, "x")]), checks=(POSITIVE,))
    held = claimed(world)
    InProcess().run(validation(world, ElementKind.CHECK, 50, held), nothing)
    before = world.jobs.checkpoints(7, 1)
    InProcess().run(validation(world, ElementKind.CHECK, 50, held), nothing)
    assert world.jobs.checkpoints(7, 1) == before


def test_what_is_gone_cannot_be_validated() -> None:
    world = ChangingWorld()
    world.create_t([(1, 1, "x")])
    with pytest.raises(Superseded):
        validation(world, ElementKind.CHECK, 50)
    world.alter(world.table(), checks=(POSITIVE,))
    task = validation(world, ElementKind.CHECK, 50, claimed(world, 8))
    world.alter(world.table(), checks=())
    with pytest.raises(Superseded):
        InProcess().run(task, nothing)


# --- as a stage of a job ---------------------------------------------------------------------------------------------


def job_of(world: ChangingWorld) -> int:
    table = world.table()
    element = Element(ElementKind.CHECK, table.id, 50)
    stages = (
        Stage((Move(element, Phase.ABSENT, Phase.WRITE_ONLY),)),
        Stage(fences=(table.id,), work=(Reorganization(Work.VALIDATE, element, 3),), revertible=True),
        Stage((Move(element, Phase.WRITE_ONLY, Phase.PUBLIC),)),
    )
    record = Job(7, "test", "ADD CHECK", stages, 1, JobState.PENDING, 3, 0)
    with world.store.read() as reader:
        version = reader.catalog_version
    world.store.commit(Commit(catalog_version=version, raw=[(job_key(7), encode_job(record))]))
    return 7


def test_the_executor_validates_and_publishes() -> None:
    world = ChangingWorld()
    world.alter(world.create_t([(1, 1, "x"), (2, 2, "y")]), checks=(POSITIVE,))
    done = world.executor().run(job_of(world))
    assert done is not None
    assert (done.state, done.problem) == (JobState.SUCCEEDED, None)
    assert world.table().checks == (msgspec.structs.replace(POSITIVE, state=State.PUBLIC),)


def test_the_executor_takes_a_violated_constraint_back() -> None:
    world = ChangingWorld()
    world.alter(world.create_t([(1, 1, "x"), (2, -2, "y")]), checks=(POSITIVE,))
    done = world.executor().run(job_of(world))
    assert done is not None
    assert done.state is JobState.FAILED
    assert done.problem is not None
    assert (done.problem.sqlstate, done.problem.detail) == (errors.CHECK_VIOLATION, "1 row violates it: (id)=(2).")
    assert world.table().checks == ()


# --- beside writers --------------------------------------------------------------------------------------------------


def some_write(world: ChangingWorld, drawn: random.Random) -> None:
    """A transaction of somebody who knows the pending constraint; it may be refused."""
    name = drawn.choice(["t", "t", "p"])
    server = Server(world, name)
    standing = [values[0] for _, values in world.rows(world.table(name)).values()]
    number = drawn.randrange(1, 12 if name == "t" else 6)
    try:
        if number not in standing:
            server.insert(*((number, drawn.choice([None, 1, 2, 3, 4, 5]), "x") if name == "t" else (number, number)))
        elif drawn.random() < 0.6:
            server.delete(number)
        elif name == "t":
            server.update(number, a=drawn.choice([None, 1, 2, 3, 4, 5]))
        if server.buffer:
            server.commit()
    except Conflict:
        pass


def outcome(seed: int, *, enforced: bool) -> tuple[bool, bool]:
    """Whether the validation was passed, and whether there are orphans at its end."""
    drawn = random.Random(seed)
    children = [(n, drawn.choice([None, 1, 2, 3]), "x") for n in range(1, 9)]
    if drawn.random() < 0.4:
        children[drawn.randrange(8)] = (99, 4, "an orphan, unless its parent comes in time")
    world = family(children, enforced=enforced)

    def pulse() -> None:
        for _ in range(drawn.randrange(4)):
            some_write(world, drawn)

    failed = None
    try:
        InProcess().run(validation(world, ElementKind.FOREIGN_KEY, 60), pulse)
    except errors.Error as caught:
        failed = caught
    assert failed is None or failed.sqlstate == errors.FOREIGN_KEY_VIOLATION
    return failed is None, bool(orphans(world))


def test_random_writers_leave_no_orphan_behind_a_validation_that_passed(small_batches: None) -> None:
    found = [outcome(seed, enforced=True) for seed in range(60)]
    assert {passed for passed, _ in found} == {True, False}
    assert (True, True) not in found


def test_where_the_parents_writers_do_not_know_the_key_orphans_get_past(small_batches: None) -> None:
    """Rule 19: what the walk is sound by is the fence on both tables."""
    assert any(outcome(seed, enforced=False) == (True, True) for seed in range(60))


def test_tables_are_named_as_they_are_called_in_the_end(small_batches: None) -> None:
    world = ChangingWorld()
    world.alter(world.create_t([(n, n - 4, "x") for n in range(1, 9)]), checks=(POSITIVE,))

    def rename() -> None:
        if isinstance(world.catalog().lookup("public", "t"), Table):
            world.execute(want.RenameObject("table", "t", "u"))

    assert '"u"' in problem_of(validation(world, ElementKind.CHECK, 50), rename).message
