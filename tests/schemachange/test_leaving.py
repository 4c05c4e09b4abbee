"""Drops by their paths, as under leases: what is maintained at each stage, users before used, and back again."""

from __future__ import annotations

import pytest

from instar import errors, types
from instar.catalog.descriptors import Sequence, State
from instar.clock import ManualClock
from instar.schemachange import wanted as want
from instar.schemachange.draft import TableBusy
from instar.schemachange.job_records import Job, JobState
from instar.schemachange.wanted import Frozen, NewColumn
from instar.store import MemoryStore
from support.changes import ChangingWorld, Server

LEASE = 5.0


@pytest.fixture
def world() -> ChangingWorld:
    """p (id) and t (id, a: index i and check c, b, p -> p with an index of its own), a row each, under a lease."""
    made = ChangingWorld(MemoryStore(clock=ManualClock(), schema_lease=LEASE))
    made.execute(want.CreateTable("p", (NewColumn("id", types.BIGINT),), ("id",)))
    columns = tuple(NewColumn(name, types.BIGINT) for name in ("id", "a", "b", "p"))
    check = want.Check(lambda table: Frozen('"#2" > 0', (2,)), "c")
    made.execute(want.CreateTable("t", columns, ("id",), constraints=(check, want.ForeignKey(("p",), "p", name="f"))))
    made.execute(want.CreateIndex("t", (("a", False),), "i"))
    for name, row in (("p", (1,)), ("t", (1, 10, 100, 1))):
        server = Server(made, name)
        server.insert(*row)
        server.commit()
    return made


def moves(world: ChangingWorld, *wanted: want.Wanted) -> list[list[tuple[str, str]]]:
    return [
        [(move.element.kind.value, move.goal.value) for move in stage.moves] for stage in world.plan(*wanted).stages
    ]


def run(world: ChangingWorld, job: int | None) -> JobState:
    assert job is not None
    done = world.executor().run(job)
    assert done is not None
    return done.state


def test_a_column_on_its_way_out_is_not_set_not_null(world: ChangingWorld) -> None:
    job = world.execute(want.DropColumn("t", "a"))
    with pytest.raises(TableBusy, match='column "a" of relation "t" is being dropped'):
        world.plan(want.SetNotNull("t", "a"))
    world.plan(want.SetNotNull("t", "b"))
    assert run(world, job) is JobState.SUCCEEDED


def test_an_index_is_maintained_until_nobody_reads_it_any_more(world: ChangingWorld) -> None:
    assert moves(world, want.DropIndexes(("i",))) == [
        [("index", "write-only")], [("index", "delete-only")], [("index", "absent")]
    ]  # fmt: skip
    index = next(found for found in world.table().indexes if found.name == "i")
    job = world.execute(want.DropIndexes(("i",)))
    (left,) = (found for found in world.table().indexes if found.name == "i")
    assert left.state is State.WRITE_ONLY
    server = Server(world)
    server.insert(2, 20, 200, 1)
    server.commit()
    world.check_index("i")
    assert run(world, job) is JobState.SUCCEEDED
    assert all(found.id != index.id for found in world.table().indexes)


def test_a_foreign_key_leaves_before_its_index_and_the_parent_is_told(world: ChangingWorld) -> None:
    assert moves(world, want.DropConstraint("t", "f")) == [
        [("foreign key", "write-only")],
        [("foreign key", "delete-only")],
        [("foreign key", "absent"), ("index", "write-only")],
        [("index", "delete-only")],
        [("index", "absent")],
    ]
    parent = world.table("p")
    job = world.execute(want.DropConstraint("t", "f"))
    assert world.table("p").version > parent.version
    assert run(world, job) is JobState.SUCCEEDED
    assert world.table("p").referenced_by == ()
    assert (world.table().foreign_keys, [index.name for index in world.table().indexes]) == ((), ["i"])


def test_a_column_goes_with_the_last_of_what_uses_it(world: ChangingWorld) -> None:
    """Rule 25: as a job, with the column in its last stage."""
    assert moves(world, want.DropColumn("t", "a")) == [
        [("check constraint", "write-only"), ("index", "write-only")],
        [("check constraint", "absent"), ("index", "delete-only")],
        [("index", "absent"), ("column", "absent")],
    ]
    job = world.execute(want.DropColumn("t", "a"))
    assert "a" in [column.name for column in world.table().columns]
    assert run(world, job) is JobState.SUCCEEDED
    table = world.table()
    assert [column.name for column in table.columns] == ["id", "b", "p"]
    assert (table.checks, [index.name for index in table.indexes]) == ((), ["f_idx"])
    assert table.layout.columns == tuple((column.id, column.type) for column in table.columns)


def serial(world: ChangingWorld) -> Sequence:
    """t with an indexed serial column s; its sequence."""
    world.execute(want.CreateTable("u", (NewColumn("id", types.BIGINT), NewColumn("x", types.BIGINT)), ("id",)))
    columns = (NewColumn("id", types.BIGINT), NewColumn("s", types.BIGINT, sequence=want.SequenceOptions()))
    world.execute(want.CreateTable("v", columns, ("id",), constraints=(want.Unique(("s",)),)))
    server = Server(world, "v")
    server.insert(1, 1)
    server.commit()
    (sequence,) = (found for found in world.catalog().sequences() if found.name == "v_s_seq")
    return sequence


def taking(sequence: Sequence) -> want.SetDefault:
    """A default of u.x that takes values of the sequence."""
    return want.SetDefault("u", "x", want.Default(lambda _: Frozen(f"nextval('#{sequence.id}')", ()), True, None))


def test_the_sequence_of_a_column_goes_with_it(world: ChangingWorld) -> None:
    sequence = serial(world)
    job = world.execute(want.DropColumn("v", "s"))
    assert world.catalog().by_id(sequence.id) is not None  # who has the schema of before still takes values of it
    assert run(world, job) is JobState.SUCCEEDED
    assert world.catalog().by_id(sequence.id) is None
    assert [column.name for column in world.table("v").columns] == ["id"]


def test_defaults_that_take_values_of_it_go_first(world: ChangingWorld) -> None:
    sequence = serial(world)
    world.execute(taking(sequence))
    with pytest.raises(errors.Error) as caught:
        world.plan(want.DropColumn("v", "s"))
    assert caught.value.sqlstate == errors.DEPENDENT_OBJECTS
    job = world.execute(want.DropColumn("v", "s", cascade=True))
    assert [column.default for column in world.table("u").columns] == [None, None]
    assert run(world, job) is JobState.SUCCEEDED
    assert world.catalog().by_id(sequence.id) is None


def test_a_default_that_comes_to_use_it_meanwhile_fails_the_drop(world: ChangingWorld) -> None:
    sequence = serial(world)
    job = world.execute(want.DropColumn("v", "s"))
    world.execute(taking(sequence))
    assert run(world, job) is JobState.FAILED
    assert job is not None
    problem = world.jobs.get(job).problem
    assert problem is not None
    assert (problem.sqlstate, "column x of table u" in (problem.detail or "")) == (errors.DEPENDENT_OBJECTS, True)
    assert world.catalog().by_id(sequence.id) is not None
    world.check_index("v_s_key", "v")


def test_a_drop_can_be_taken_back_while_all_still_maintain_the_element(world: ChangingWorld) -> None:
    job = world.execute(want.DropIndexes(("i",)))
    assert job is not None
    world.jobs.cancel(job)
    assert run(world, job) is JobState.CANCELLED
    (index,) = (found for found in world.table().indexes if found.name == "i")
    assert index.state is State.PUBLIC
    world.check_index("i")


def test_a_writer_from_before_the_drop_commits_after_it(world: ChangingWorld) -> None:
    stale = Server(world)
    stale.update(1, a=11)
    job = world.execute(want.DropIndexes(("i",)))
    assert run(world, job) is JobState.SUCCEEDED
    stale.commit()
    assert [values for _, values in world.rows(world.table()).values()] == [(1, 11, 100, 1)]


def test_what_leaves_cannot_leave_twice(world: ChangingWorld) -> None:
    world.execute(want.DropIndexes(("i",)))
    with pytest.raises(errors.Error) as caught:
        world.execute(want.DropIndexes(("i",)))
    assert caught.value.sqlstate == errors.OBJECT_IN_USE


def test_a_table_goes_when_the_last_key_to_it_is_gone(world: ChangingWorld) -> None:
    """The stages of the keys' way out need both tables, and both get a version with each."""
    stages = world.plan(want.DropTables(("p",), cascade=True)).stages
    (left,) = (number for number, stage in enumerate(stages) if stage.drops)
    assert left == len(stages) - 1
    assert ("foreign key", "absent") in moves(world, want.DropTables(("p",), cascade=True))[2]
    assert [stage.revertible for stage in stages] == [True, *[False] * (len(stages) - 1)]
    before = world.table("p").version, world.table().version
    job = world.execute(want.DropTables(("p",), cascade=True))
    assert (world.table("p").version, world.table().version) == (before[0] + 1, before[1] + 1)
    assert run(world, job) is JobState.SUCCEEDED
    assert world.catalog().lookup("public", "p") is None
    assert (world.table().foreign_keys, [index.name for index in world.table().indexes]) == ((), ["i"])


def test_a_table_that_refers_to_others_goes_with_what_it_owns(world: ChangingWorld) -> None:
    columns = (
        NewColumn("id", types.BIGINT),
        NewColumn("n", types.BIGINT, identity="always", sequence=want.SequenceOptions()),
    )
    keys = (want.ForeignKey(("id",), "p", name="rp"),)
    world.execute(want.CreateTable("r", columns, ("id",), constraints=keys))
    child = (want.ForeignKey(("id",), "r", name="sr"),)
    world.execute(want.CreateTable("s", (NewColumn("id", types.BIGINT),), ("id",), constraints=child))
    server = Server(world, "p")
    server.insert(7)
    server.commit()
    assert world.table("p").referenced_by == (world.table().id, world.table("r").id)
    assert len(list(world.catalog().sequences())) == 1
    job = world.execute(want.DropTables(("r",), cascade=True))
    assert run(world, job) is JobState.SUCCEEDED
    assert world.catalog().lookup("public", "r") is None
    assert world.table("p").referenced_by == (world.table().id,)
    assert list(world.catalog().sequences()) == []


@pytest.mark.parametrize("user", ["view", "foreign key"])
def test_what_came_to_use_a_table_that_is_to_go(world: ChangingWorld, user: str) -> None:
    """Before the first stage that cannot be taken back the job looks, fails for it, and leaves all as it was."""
    job = world.execute(want.DropTables(("p",), cascade=True))
    world.execute(using(world, user))
    assert job is not None
    assert run(world, job) is JobState.FAILED
    problem = world.jobs.get(job).problem
    assert problem is not None
    assert problem.sqlstate == errors.DEPENDENT_OBJECTS
    assert world.catalog().lookup("public", "p") is not None
    assert [key.state for key in world.table().foreign_keys] == [State.PUBLIC]


@pytest.mark.parametrize("user", ["view", "foreign key"])
def test_what_would_use_a_table_that_is_bound_to_go_is_refused(world: ChangingWorld, user: str) -> None:
    job = world.execute(want.DropTables(("p",), cascade=True))
    assert job is not None
    refused: list[str] = []

    def hook(found: Job) -> str:
        if found.stage == 2 and not refused:
            with pytest.raises(errors.Error, match='table "p" is being dropped') as caught:
                world.execute(using(world, user))
            refused.append(caught.value.sqlstate)
        return ""

    done = world.executor(hook=hook).run(job)
    assert done is not None
    assert (done.state, refused) == (JobState.SUCCEEDED, [errors.OBJECT_IN_USE])


def using(world: ChangingWorld, user: str) -> want.Wanted:
    """A change that brings something which uses p."""
    number = world.table("p").id
    if user == "view":
        return want.CreateView("v", f'SELECT count(*) FROM "#{number}"', (("n", types.BIGINT),), ((number, ()),))
    key = want.ForeignKey(("id",), "p", name="cp")
    return want.CreateTable("c", (NewColumn("id", types.BIGINT),), ("id",), constraints=(key,))


def test_without_a_lease_a_drop_is_one_step() -> None:
    world = ChangingWorld()
    world.create_t([(1, 10, "x")])
    job = world.execute(want.CreateIndex("t", (("a", False),), "i"))
    assert run(world, job) is JobState.SUCCEEDED
    assert world.execute(want.DropIndexes(("i",))) is None
    assert world.table().indexes == ()
