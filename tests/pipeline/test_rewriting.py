"""Population, propagation and the copy under a next key on Spark: to the byte what they are in process, whatever is
written meanwhile; stopped, resumed, cancelled, taken over."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from instar import errors
from instar.catalog.sequences import counter_key
from instar.pipeline import reorganizer, rewriting, spark_job, stores
from instar.pipeline.reorganizer import SparkReorganizer
from instar.pipeline.rewriting import SparkRewriting
from instar.pipeline.runs import Todo
from instar.schemachange import wanted as want
from instar.schemachange.job_records import Checkpoint, Job, JobState, checkpoint_key
from instar.schemachange.jobs import Held
from instar.schemachange.rekey import KeyBackfill
from instar.schemachange.reorganize import InProcess
from instar.schemachange.tasks import RowTask, Task
from instar.store import open_store
from instar.store.engine import ROW_HEADER, Section, prefix_end, rowset_prefix
from instar.tables.locks import lock_places
from instar.types import BIGINT, DOUBLE, TEXT
from support.changes import ChangingWorld, Server

pytestmark = pytest.mark.spark

ROWS = 9_000  # of which a range has about 4,500, and so more than a batch
POPULATE = want.AddColumn("t", want.NewColumn("c", BIGINT, False, sequence=want.SequenceOptions()))
REKEY = want.AlterPrimaryKey("t", ("a",))
PROPAGATE = want.AlterLock("t", "l", ("a", "b"))
KINDS = pytest.mark.parametrize("wanted", [POPULATE, REKEY, PROPAGATE], ids=lambda wanted: type(wanted).__name__)
_TIMESTAMP = struct.Struct("<Q")


class SparkWorld(ChangingWorld):
    """Table t (id, a: unique, b: indexed) with rows in three layouts, of several commits, and a lock on b. Those in one
    of them have values of a column that was dropped."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        super().__init__(open_store(self.path, synchronous="off"))
        self.create_t()
        self.fill(0, ROWS // 10)
        self.execute(want.AddColumn("t", want.NewColumn("z", BIGINT)))
        self.fill(ROWS // 10, ROWS // 5, 7)
        self.execute(want.DropColumn("t", "z"))
        for wanted in (want.CreateIndex("t", (("b", False),), "tb"), want.AddLock("t", "l", ("b",))):
            self.alter_in_process(wanted)
        self.fill(ROWS // 5, ROWS)
        for number in range(0, ROWS, ROWS // 5):
            server = Server(self)
            for identity in range(number, number + 300):
                server.update(identity, a=-identity)
            server.commit()

    def fill(self, first: int, last: int, *more: object) -> None:
        server = Server(self)
        for identity in range(first, last):
            server.insert(identity, identity * 7919 % 1_000_003, f"b{identity % 100}", *more)
        server.commit()

    def alter_in_process(self, wanted: want.Wanted) -> None:
        job = self.execute(wanted)
        if job is not None:
            self.executor().run(job)

    def run(self, work: Callable[[Task, Callable[[], None]], None], wanted: want.Wanted | None = None) -> Job | None:
        """Have the newest job, or one made for `wanted`, taken on; the work on rows is done by `work`."""
        if wanted is not None:
            assert self.execute(wanted) is not None

        class Worked:
            def run(self, task: Task, pulse: Callable[[], None]) -> None:
                if isinstance(task, RowTask):
                    work(task, pulse)
                else:
                    InProcess().run(task, pulse)

        return self.executor(reorganizer=lambda task: Worked()).run(self.jobs.all()[-1].id)

    def on_spark(self, task: Task, pulse: Callable[[], None]) -> None:
        """Work on Spark, in which a second passes from pulse to pulse."""

        def tick() -> None:
            self.clock.advance(1)
            pulse()

        SparkReorganizer(self.path).run(task, tick)

    def given(self) -> list[object]:
        """The values of the newest column, in the order of keys."""
        return [values[-1] for _, (_, values) in sorted(self.rows(self.table()).items())]

    def checkpoints(self) -> list[Checkpoint]:
        job = self.jobs.all()[-1]
        return list(self.jobs.checkpoints(job.id, job.stage).values())


@pytest.fixture
def world(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkWorld]:
    monkeypatch.setattr(rewriting, "ROWS_PER_RANGE", ROWS // 2)
    monkeypatch.setattr(spark_job, "PULSE_SECONDS", 0.02)
    made = SparkWorld(tmp_path / "store")
    yield made
    stores.forget(made.path)
    made.store.close()


def rowsets(task: Task) -> list[int]:
    """The rowsets that the task writes to."""
    if isinstance(task, KeyBackfill):
        key = task.table.next_key
        assert key is not None
        return [key.rowset, *(rowset for _, rowset in key.indexes)]
    return [task.table.rowset]


def stored(world: SparkWorld, numbers: list[int]) -> dict[bytes, bytes]:
    with world.store.read() as reader:
        return {
            key: value
            for number in numbers
            for key, value in reader.scan(rowset_prefix(number), prefix_end(rowset_prefix(number)))
        }


def replace(world: SparkWorld, before: dict[bytes, bytes], after: dict[bytes, bytes]) -> None:
    def step(section: Section) -> None:
        for key in before.keys() - after.keys():
            section.delete(key)
        for key, value in after.items():
            if before.get(key) != value:
                section.put(key, value)

    world.store.background([step])


def disturb(world: SparkWorld, task: Task, start: bytes, stop: bytes) -> int:
    """Rows are buried, removed, and written again, between having been read and being put; by the bytes of each, so
    that it is the same whenever it happens. Returns how many."""
    with world.store.read() as reader:
        before = dict(reader.scan(max(start, task.start), min(stop, task.stop)))
        layouts = {ROW_HEADER.unpack_from(value)[2] >> 8 for value in before.values()}
        places = {layout: lock_places(task.layout(layout, reader)) for layout in layouts}
    after = dict(before)
    for key, value in before.items():
        timestamp, sequence, tag = ROW_HEADER.unpack_from(value)
        deed = key[-1] * 7 + key[-2]
        if deed % 40 == 0:
            after[key] = ROW_HEADER.pack(timestamp + 1, sequence, tag | 1)
        elif deed % 40 == 1:
            del after[key]
        elif deed % 40 < 5:
            locks = bytearray(value)
            for lock in places[tag >> 8].values():
                _TIMESTAMP.pack_into(locks, lock, timestamp - deed % 3)
                break
            after[key] = ROW_HEADER.pack(timestamp + 1, sequence, tag) + bytes(locks[ROW_HEADER.size :])
    replace(world, before, after)
    return sum(after.get(key) != value for key, value in before.items())


class Stopped(Exception):
    pass


def once(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Do something once the first range is done."""
    put = SparkRewriting.put
    happened: list[int] = []

    def then(self: SparkRewriting, todo: Todo, run: Path, between: Callable[[], None]) -> None:
        put(self, todo, run, between)
        if not happened:
            happened.append(todo.number)
            action()

    monkeypatch.setattr(SparkRewriting, "put", then)


@KINDS
def test_the_same_bytes_as_in_process(world: SparkWorld, monkeypatch: pytest.MonkeyPatch, wanted: want.Wanted) -> None:
    """Beside writers; and for what takes no numbers, which would be others then, stopped and resumed."""
    put = SparkRewriting.put
    disturbed: list[int] = []

    def late(self: SparkRewriting, todo: Todo, run: Path, between: Callable[[], None]) -> None:
        disturbed.append(disturb(world, self._task, todo.start, todo.stop))
        put(self, todo, run, between)

    def stop() -> None:
        raise Stopped

    def twins(task: Task, pulse: Callable[[], None]) -> None:
        written = [task.table.rowset, *rowsets(task)]
        before = stored(world, written)
        counters = [counter_key(found.counts_by) for found in world.catalog().sequences()]
        monkeypatch.setattr(SparkRewriting, "put", late)
        if not counters:
            with monkeypatch.context() as patched:
                once(patched, stop)
                with pytest.raises(Stopped):
                    world.on_spark(task, pulse)
            assert [found.done for found in world.checkpoints()].count(True) == 1
        world.on_spark(task, pulse)
        found = world.checkpoints()
        assert sum(checkpoint.rows for checkpoint in found) == ROWS
        assert len(disturbed) == len(found) >= 2
        assert min(disturbed) > 100
        on_spark = stored(world, written)
        # Once more, from the beginning.
        replace(world, on_spark, before)
        own = [checkpoint_key(task.job, task.stage, number) for number in range(len(found) + 1)]
        replace(world, dict.fromkeys([*own, *counters], b""), {})
        start = Checkpoint(task.start, task.stop, task.start, 0)
        batches = [(list(steps), reached) for steps, reached in task.batches(start)]
        disturb(world, task, task.start, task.stop)
        for steps, reached in batches:
            world.store.background([*steps, task.checkpoint(0, reached)], claim=task.claim)
        assert stored(world, written) == on_spark
        assert sum(before.get(key) != value for key, value in on_spark.items()) > sum(disturbed)

    done = world.run(twins, wanted)
    assert done is not None
    assert done.problem is None


def test_paused_resumed_and_cancelled(world: SparkWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        once(patched, lambda: world.jobs.pause(world.jobs.all()[-1].id))
        paused = world.run(world.on_spark, POPULATE)
    assert paused is not None
    assert paused.state is JobState.PAUSED
    assert [found.done for found in world.checkpoints()].count(True) == 1
    before = stored(world, [world.table().rowset])
    world.jobs.resume(paused.id)
    done = world.run(world.on_spark)
    assert done is not None
    assert done.state is JobState.SUCCEEDED
    after = stored(world, [world.table().rowset])
    assert sum(after[key] == value for key, value in before.items()) >= ROWS // 5
    assert len(set(world.given())) == len(world.given()) == ROWS

    columns = world.table().columns
    sequences = list(world.catalog().sequences())
    once(monkeypatch, lambda: world.jobs.cancel(world.jobs.all()[-1].id))
    wanted = want.AddColumn("t", want.NewColumn("d", BIGINT, False, sequence=want.SequenceOptions()))
    done = world.run(world.on_spark, wanted)
    assert done is not None
    assert done.state is JobState.CANCELLED
    assert world.table().columns == columns
    assert list(world.catalog().sequences()) == sequences
    assert len(set(world.given())) == len(world.given()) == ROWS


def test_taken_over_and_then_spark_fails(world: SparkWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    standing: list[dict[bytes, bytes]] = []
    held: list[Held] = []

    def take_over() -> None:
        world.clock.advance(60)
        found = world.jobs.claim(world.jobs.all()[-1].id, b"another")
        assert found is not None
        held.append(found)
        standing.append(stored(world, [world.table().rowset]))

    with monkeypatch.context() as patched:
        once(patched, take_over)
        assert world.run(world.on_spark, POPULATE) is None
    assert standing == [stored(world, [world.table().rowset])]
    world.jobs.release(held[0])

    lent = rewriting._lent
    drawn: list[int] = []

    def failing(*given: Any) -> tuple[dict[int, Any], ...]:
        made = lent(*given)
        drawn.append(1)
        if len(drawn) == 1:
            raise ConnectionError("Spark is gone between counting and deriving")
        return made

    monkeypatch.setattr(rewriting, "_lent", failing)
    done = world.run(world.on_spark)
    assert drawn == [1, 1]
    assert done is not None
    assert done.state is JobState.SUCCEEDED
    assert len(set(world.given())) == len(world.given()) == ROWS


def frozen(expression: str) -> want.Default:
    """A default that is evaluated for each row."""
    return want.Default(lambda table: want.Frozen(expression, ()), True, None)


def test_what_values_may_be(world: SparkWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    done = world.run(world.on_spark, want.AddColumn("t", want.NewColumn("c", DOUBLE, False, frozen("random() + 1"))))
    assert done is not None
    assert done.state is JobState.SUCCEEDED
    values = world.given()
    assert len(set(values)) == len(values) == ROWS
    assert all(1 <= value < 2 for value in values)  # type: ignore[operator]  # they are floats

    submit = SparkRewriting.submit
    submitted: list[int] = []

    def counted(self: SparkRewriting, session: Any, todo: tuple[Todo, ...], runs: Path) -> None:
        submitted.append(len(todo))
        submit(self, session, todo, runs)

    monkeypatch.setattr(SparkRewriting, "submit", counted)
    columns = world.table().columns
    null = want.NewColumn("d", TEXT, False, frozen("CASE WHEN random() < 0 THEN 'x' END"))
    too_few = want.NewColumn("d", BIGINT, False, sequence=want.SequenceOptions(maximum=ROWS - 1))
    for column, sqlstate in ((null, errors.NOT_NULL_VIOLATION), (too_few, "2200H")):
        done = world.run(world.on_spark, want.AddColumn("t", column))
        assert done is not None
        assert done.problem is not None
        assert done.problem.sqlstate == sqlstate
        assert done.state is JobState.FAILED
        assert world.table().columns == columns
    assert len(submitted) == 2


def test_values_may_be_derived_of_the_row(world: SparkWorld) -> None:
    """A conversion that is another each time: every row has a value of its own, which the indexes are built on."""
    conversion = want.Conversion('length("#3") + random()', (3,), True, 0, "UTC")
    change = want.NewType("b", DOUBLE, False, conversion, None)
    done = world.run(
        world.on_spark, want.ConvertColumns("t", (change,), lambda check, before, after: want.Frozen("", ()))
    )
    assert done is not None
    assert done.state is JobState.SUCCEEDED
    given = {identity: (image[0], image[2]) for identity, (_, image) in world.rows(world.table()).items()}
    assert all(isinstance(b, float) and int(b) == len(f"b{number % 100}") for number, b in given.values())  # type: ignore[operator] # ids
    assert len({b for _, b in given.values()}) == len(given)
    world.check_index("tb")


def test_values_that_cannot_be_counted_are_given_without_spark(
    world: SparkWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spark_session(*given: object, **named: object) -> None:
        raise AssertionError("Spark was asked")

    monkeypatch.setattr(reorganizer, "spark_session", spark_session)
    world.execute(want.CreateSequence("s", want.SequenceOptions()))
    (sequence,) = world.catalog().sequences()
    default = frozen(f"CASE WHEN random() < 0.5 THEN nextval('#{sequence.id}') END")
    done = world.run(world.on_spark, want.AddColumn("t", want.NewColumn("c", BIGINT, True, default)))
    assert done is not None
    assert done.state is JobState.SUCCEEDED
    values = [value for value in world.given() if value is not None]
    assert sorted(values) == list(range(1, len(values) + 1))  # type: ignore[type-var]  # they are integers
    assert 0 < len(values) < ROWS
