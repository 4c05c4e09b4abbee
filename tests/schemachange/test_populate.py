"""Population: what it leaves of a row, whom it disturbs, and servers that lag behind at every step of it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator

import msgspec
import pytest

from instar import errors
from instar.catalog.descriptors import Layout, Lock, State
from instar.catalog.sequences import LentNumbers
from instar.schemachange import populate
from instar.schemachange import wanted as want
from instar.schemachange.elements import Element, ElementKind
from instar.schemachange.executor import Executor
from instar.schemachange.job_records import Checkpoint, Job, JobState, encode_job, job_key
from instar.schemachange.jobs import Held
from instar.schemachange.populate import Population
from instar.schemachange.reorganize import InProcess
from instar.schemachange.rules import ORDER_RULES
from instar.schemachange.stages import Superseded
from instar.schemachange.tasks import Task
from instar.sql.checks import compile_check
from instar.sql.defaults import Defaults
from instar.store.engine import ROW_HEADER, ClaimLost, Commit, Section, prefix_end, rowset_prefix
from instar.tables.locks import LockTimestamps
from instar.transactions.commit import Conflict
from instar.types import BIGINT, DOUBLE, UUID
from instar.worker.work import replanner
from support.changes import ChangingWorld, Server

ADD = want.AddColumn(
    "t", want.NewColumn("c", BIGINT, False, sequence=want.SequenceOptions()), (want.Unique(("c",), "i"),)
)
FILLED = [(number, number * 10, "x") for number in range(1, 8)]


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(populate, "BATCH_ROWS", 2)


@pytest.fixture
def world() -> ChangingWorld:
    made = ChangingWorld()
    made.create_t(FILLED)
    return made


def stored(world: ChangingWorld) -> dict[bytes, bytes]:
    start = rowset_prefix(world.table().rowset)
    with world.store.read() as reader:
        return dict(reader.scan(start, prefix_end(start)))


def fenced(world: ChangingWorld) -> Population:
    """The population of column c, behind its fence, under a claim of its own."""
    number = world.execute(want.AddColumn("t", want.NewColumn("c", BIGINT, False, sequence=want.SequenceOptions())))
    assert number is not None
    record = msgspec.structs.replace(world.jobs.get(number), stage=2, state=JobState.RUNNING)
    with world.store.read() as reader:
        version = reader.catalog_version
    world.store.commit(Commit(catalog_version=version, raw=[(job_key(number), encode_job(record))]))
    held = world.jobs.claim(number, b"test")
    assert held is not None
    return population(world, held)


def population(world: ChangingWorld, held: Held) -> Population:
    table = world.table()
    element = Element(ElementKind.COLUMN, table.id, table.columns[-1].id)
    return Population(
        world.store, world.catalog_cache, element, Defaults(world.sequences),
        job=held.job, stage=2, claim=held.claim, rows=9, now=0, zone="UTC",
    )  # fmt: skip


def nothing() -> None:
    pass


def test_a_row_keeps_its_header_and_nothing_is_logged(world: ChangingWorld) -> None:
    writer = Server(world)
    writer.update(2, b="y")
    writer.delete(3)
    writer.commit()
    task = fenced(world)
    before, log = stored(world), world.store.log_bytes()
    InProcess().run(task, nothing)
    after = stored(world)
    assert before.keys() == after.keys()
    layout = world.table().layout.id
    for key, value in before.items():
        timestamp, sequence, tag = ROW_HEADER.unpack_from(value)
        moved = tag if tag & 1 else layout << 8  # a tombstone is left alone
        assert ROW_HEADER.unpack_from(after[key]) == (timestamp, sequence, moved)
    assert world.store.log_bytes() == log
    assert sorted(values[3] for _, values in world.rows(world.table()).values()) == [1, 2, 3, 4, 5, 6]  # type: ignore[type-var]


def test_done_again_it_changes_nothing(world: ChangingWorld) -> None:
    task = fenced(world)
    InProcess().run(task, nothing)
    before = stored(world)
    for batch, _ in task.batches(Checkpoint(task.start, task.stop, task.start, 0)):
        world.store.background(batch, claim=task.claim)
    assert stored(world) == before
    assert world.sequences.next_value(next(iter(world.catalog().sequences()))) == 8


def test_the_rows_locks_keep_their_timestamps(world: ChangingWorld) -> None:
    table = world.table()
    layout = Layout(table.layout.id + 1, table.layout.columns, (0, 50))
    world.alter(table, locks=(Lock(id=50, name="la", columns=(2,)),), layout=layout, next_id=51)
    inserted = {key: ROW_HEADER.unpack_from(value)[0] for key, value in stored(world).items()}
    writer = Server(world)
    writer.update(2, a=21)
    writer.commit()
    writer.begin()
    writer.update(2, b="y")
    writer.commit()
    moved = LockTimestamps(world.table(), world.layouts)
    before = {key: (moved.of(value, 0), moved.of(value, 50)) for key, value in stored(world).items()}
    InProcess().run(fenced(world), nothing)
    moved = LockTimestamps(world.table(), world.layouts)
    assert world.table().layout.locks == (0, 50)
    after = {key: (moved.of(value, 0), moved.of(value, 50)) for key, value in stored(world).items()}
    assert after == before
    assert {lock for key in after for lock in after[key] if lock == inserted[key]}
    assert len({lock for locks in after.values() for lock in locks}) == 3


def test_it_conflicts_with_nobody(world: ChangingWorld) -> None:
    before = Server(world)
    before.update(1, b="y")
    task = fenced(world)
    after = Server(world)
    after.update(2, b="y")
    InProcess().run(task, nothing)
    given = {values[0]: values[3] for _, values in world.rows(world.table()).values()}
    for writer in (before, after):
        writer.commit()
        assert writer.refused <= 1  # for its schema at most, never for a row
    assert {values[0]: values[3] for _, values in world.rows(world.table()).values()} == given


def test_a_row_that_was_changed_under_two_locks_has_a_value(world: ChangingWorld) -> None:
    """Both were read before there was the column; the second one's row is merged of theirs and the stored one, which
    has no value yet."""
    table = world.table()
    layout = Layout(table.layout.id + 1, table.layout.columns, (0, 50))
    world.alter(table, locks=(Lock(id=50, name="la", columns=(2,)),), layout=layout, next_id=51)
    first = Server(world)
    first.update(1, a=1)  # from now on the row has a timestamp of the lock
    first.commit()
    one, other = Server(world), Server(world)
    one.update(1, a=11)
    other.update(1, b="y")
    other.commit()
    task = fenced(world)
    one.commit()
    InProcess().run(task, nothing)
    values = [image for _, image in world.rows(world.table()).values()]
    assert next(image[:3] for image in values if image[0] == 1) == (1, 11, "y")
    assert None not in [image[3] for image in values]


def test_a_row_that_is_written_between_reading_and_putting(world: ChangingWorld) -> None:
    task = fenced(world)
    lagging = iter(range(1, 8))
    for steps, reached in task.batches(Checkpoint(task.start, task.stop, task.start, 0)):
        made = list(steps)
        number = next(lagging)
        writer = Server(world)
        if number == 1:
            writer.update(1, a=11)  # has a value from now on
            writer.delete(2)
        elif number == 2:
            world.execute(want.AddColumn("t", want.NewColumn("d", BIGINT)))
        writer.commit() if writer.buffer else None
        world.store.background([*made, task.checkpoint(0, reached)], claim=task.claim)
    table = world.table()
    found = {values[0]: values[1:] for _, values in world.rows(table).values()}
    assert found.keys() == {1, 3, 4, 5, 6, 7}
    assert found[1][:2] == (11, "x")
    assert all(values[2] is not None for values in found.values())
    assert len({values[2] for values in found.values()}) == 6


def test_a_row_that_is_still_without_a_value_is_made_anew_of_what_stands_there(world: ChangingWorld) -> None:
    """Another server may have put it into an older layout, before the fence: here it is the test that does."""
    task = fenced(world)
    ((key, value), *_rest) = stored(world).items()
    batches = task.batches(Checkpoint(task.start, task.stop, task.start, 0))
    steps, _ = next(batches)
    made = list(steps)
    changed = ROW_HEADER.pack(ROW_HEADER.unpack_from(value)[0] + 1, *ROW_HEADER.unpack_from(value)[1:])

    def put(section: Section) -> None:
        section.put(key, changed + value[ROW_HEADER.size :])

    world.store.background([put])
    world.store.background(made, claim=task.claim)
    standing = stored(world)[key]
    assert ROW_HEADER.unpack_from(standing)[0] == ROW_HEADER.unpack_from(changed)[0]
    assert next(iter(world.rows(world.table()).values()))[1] == (1, 10, "x", 1)


def test_a_straggler_is_refused_for_its_claim(world: ChangingWorld) -> None:
    task = fenced(world)
    before = stored(world)
    world.jobs.release(Held(task.job, task.claim, 1))
    taken = world.jobs.claim(task.job, b"another")
    assert taken is not None
    with pytest.raises(ClaimLost):
        InProcess().run(task, nothing)
    assert stored(world) == before


def test_what_is_gone_is_superseded(world: ChangingWorld) -> None:
    task = fenced(world)
    InProcess().run(task, nothing)
    executor = world.executor()
    world.jobs.release(Held(task.job, task.claim, 1))
    done = executor.run(task.job)
    assert done is not None
    assert done.state is JobState.SUCCEEDED
    with pytest.raises(Superseded, match="no longer write-only"):
        population(world, Held(task.job, task.claim, 1))


def test_null_for_a_required_column(world: ChangingWorld) -> None:
    default = want.Default(
        lambda table: want.Frozen("CASE WHEN random() < 0 THEN gen_random_uuid() END", ()), True, None
    )
    job = world.execute(want.AddColumn("t", want.NewColumn("c", UUID, False, default)))
    assert job is not None
    done = world.executor().run(job)
    assert done is not None
    assert done.problem is not None
    assert done.problem.sqlstate == errors.NOT_NULL_VIOLATION
    assert [column.name for column in world.table().columns] == ["id", "a", "b"]


@pytest.mark.parametrize(
    ("expression", "counted"),
    [
        ("random()", 0),
        ("nextval('#{}')", 7),
        ("nextval('#{0}') + nextval('#{0}') * 2", 14),
        ("CASE WHEN random() < 0.5 THEN nextval('#{}') ELSE 0 END", None),
        ("coalesce(nextval('#{}'), 1)", None),
        ("CASE WHEN random() < 0.5 THEN 1 ELSE 0 END", 0),
    ],
)
def test_how_many_values_of_sequences_rows_take(world: ChangingWorld, expression: str, counted: int | None) -> None:
    world.execute(want.CreateSequence("s", want.SequenceOptions()))
    (sequence,) = world.catalog().sequences()
    default = want.Default(lambda table: want.Frozen(expression.format(sequence.id), ()), True, None)
    number = world.execute(want.AddColumn("t", want.NewColumn("c", DOUBLE, True, default)))
    assert number is not None
    found: list[object] = []

    def look(task: Task) -> InProcess:
        assert isinstance(task, Population)
        found.append(task.sequences())
        found.append(sum(task.count_numbers(task.start, task.stop), Counter()))
        return InProcess()

    done = world.executor(reorganizer=look).run(number)
    assert done is not None
    assert done.problem is None
    if counted is None:
        assert found[0] is None
    else:
        (taken,) = world.catalog().sequences()
        assert found == [{taken.id: taken}, {taken.id: counted}] if counted else [{}, {}]


def test_lent_values_are_handed_out_once(world: ChangingWorld) -> None:
    world.execute(want.CreateSequence("s", want.SequenceOptions()))
    (sequence,) = world.catalog().sequences()
    numbers = LentNumbers({sequence.id: [(5, 11, 3), (20, 18, -1)]})
    assert [numbers.next_value(sequence) for _ in range(4)] == [5, 8, 20, 19]
    with pytest.raises(errors.Error, match='no value of sequence "s" is left') as caught:
        numbers.next_value(sequence)
    assert caught.value.sqlstate == errors.INTERNAL_ERROR


# --- servers that lag behind -----------------------------------------------------------------------------------------


class _Stepping(Executor):
    hook: Callable[[], object]

    def _publish(self, job: Job, held: Held) -> Job:
        self.hook()
        return super()._publish(job, held)


class _Watched(InProcess):
    def __init__(self, hook: Callable[[], object]) -> None:
        self._hook = hook

    def run(self, task: Task, pulse: Callable[[], None]) -> None:
        batches = task.batches

        def watched(at: Checkpoint) -> Iterator[object]:
            for steps, reached in batches(at):
                made = list(steps)
                self._hook()
                yield made, reached

        task.batches = watched  # type: ignore[method-assign, assignment]  # of this one task
        super().run(task, pulse)


def run_chaos(seed: int) -> None:
    """Two servers change rows at every step, under the schema they have as often as under the newest."""
    world = ChangingWorld()
    world.create_t(FILLED)
    draw = random.Random(seed)
    servers = [Server(world), Server(world)]

    def act(server: Server) -> None:
        kind, identity = draw.randrange(6), draw.randrange(1, 10)
        try:
            if kind == 0:
                server.begin(learn=draw.random() < 0.2)
            elif kind == 1 and draw.random() < 0.3:
                server.refresh()
            elif kind == 2 and server.buffer:
                server.commit()
                server.begin(learn=draw.random() < 0.2)
            elif kind == 3:
                server.update(identity, a=draw.randrange(1000))
            elif server._key(identity) in world.rows(server.meant):
                server.delete(identity)
            else:
                server.insert(identity, draw.randrange(1000), "n")
        except (Conflict, AssertionError):
            server.begin(learn=False)

    def hook() -> None:
        for _ in range(draw.randrange(24)):
            act(draw.choice(servers))

    executor = _Stepping(
        world.store, world.catalog_cache, world.ids, world.clock, b"worker",
        lambda task: _Watched(hook), compile_check, replanner(world.store, world.clock), Defaults(world.sequences),
    )  # fmt: skip
    executor.hook = hook
    job = world.execute(ADD)
    assert job is not None
    done = executor.run(job)
    assert done is not None
    assert done.problem is None
    seen: dict[bytes, tuple[int, object]] = {}
    for _ in range(3):
        check(world, seen)
        hook()
    check(world, seen)


def check(world: ChangingWorld, seen: dict[bytes, tuple[int, object]]) -> None:
    """Each row has a value, its own, and the entry for it; one that was seen is there until the row is another."""
    table = world.table()
    assert all(column.state is State.PUBLIC for column in table.columns)
    rows = world.rows(table)
    values = {key: row[3] for key, (_, row) in rows.items()}
    assert None not in values.values()
    assert len(set(values.values())) == len(values)
    world.check_index("i")
    for key, (timestamp, row) in rows.items():
        if key in seen and seen[key][0] == timestamp:
            assert seen[key][1] == row[3]
        seen[key] = (timestamp, row[3])


@pytest.mark.parametrize("block", range(4))
def test_random_schedules(block: int) -> None:
    for seed in range(block * 15, (block + 1) * 15):
        run_chaos(seed)


def test_without_the_rule_values_first_an_index_is_built_of_what_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The damage: the backfill finds rows without values, and population puts no entries."""
    monkeypatch.setattr("instar.schemachange.rules.ORDER_RULES", [r for r in ORDER_RULES if r.name != "values first"])
    world = ChangingWorld()
    world.create_t(FILLED)
    plan = world.plan(ADD)
    works = [work.work for stage in plan.stages for work in stage.work]
    assert len(works) == 2
    assert len([stage for stage in plan.stages if stage.work]) == 1
    number = world.execute(ADD)
    assert number is not None
    job = world.jobs.get(number)
    swapped = tuple(msgspec.structs.replace(stage, work=stage.work[::-1]) for stage in job.stages)
    with world.store.read() as reader:
        version = reader.catalog_version
    record = encode_job(msgspec.structs.replace(job, stages=swapped))
    world.store.commit(Commit(catalog_version=version, raw=[(job_key(number), record)]))
    done = world.executor().run(number)
    assert done is not None
    assert done.problem is None
    with pytest.raises(AssertionError):
        world.check_index("i")
