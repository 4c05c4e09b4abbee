"""Locks and their coverage under change (F1 §2.5, §3.4, claims 8 and 9), with servers that lag behind: the real code.

Transactions read a number and write the next one: a lost update is a count that falls behind the commits.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from instar import errors
from instar.catalog.descriptors import Lock, State, Table
from instar.schemachange import breath, propagate, rules
from instar.schemachange import wanted as want
from instar.schemachange.draft import Draft
from instar.schemachange.executor import Executor
from instar.schemachange.job_records import Job, JobState
from instar.schemachange.jobs import Held
from instar.schemachange.reorganize import InProcess
from instar.schemachange.tasks import Reorganizer, Task
from instar.sql.checks import compile_check
from instar.sql.defaults import Defaults
from instar.store.engine import Section, prefix_end, rowset_prefix
from instar.tables.locks import LockTimestamps
from instar.transactions.commit import Conflict
from instar.types import BIGINT, INTEGER
from instar.worker.work import Worker, replanner
from support.changes import ChangingWorld, Server

Hook = Callable[[str], object]
COLUMNS = ("a", "b", "c")
ADD = want.AddLock("t", "l", ("b",))
MOVE = want.AlterLock("t", "l", ("a", "b"))
DROP = want.DropLock("t", "l")


class Idle:
    """A reorganizer that does nothing: the paper's second attempt, without the propagation."""

    def run(self, task: Task, pulse: Callable[[], None]) -> None:
        pulse()


class Watched(InProcess):
    def __init__(self, hook: Hook) -> None:
        self._hook = hook

    def run(self, task: Task, pulse: Callable[[], None]) -> None:
        self._hook("before the work")

        def watched() -> None:
            self._hook("before a batch")
            pulse()

        super().run(task, watched)


class Stepping(Executor):
    """Calls `hook` before each stage is published."""

    hook: Hook

    def _publish(self, job: Job, held: Held) -> Job:
        self.hook(f"before stage {job.stage + 1}")
        return super()._publish(job, held)


class CountingWorld(ChangingWorld):
    """Table t (id, a, b, c) with rows of zeros, and how often each was counted up by commits that stand."""

    def __init__(self, rows: int = 1) -> None:
        super().__init__()
        columns = (want.NewColumn("id", BIGINT), *(want.NewColumn(name, INTEGER) for name in COLUMNS))
        self.execute(want.CreateTable("t", columns, ("id",)))
        server = Server(self)
        for identity in range(rows):
            server.insert(identity, 0, 0, 0)
        server.commit()
        self.counted: Counter[tuple[int, str]] = Counter()

    def counts(self) -> dict[tuple[int, str], int]:
        """What the rows say."""
        return {
            (int(str(values[0])), name): int(str(value))
            for _, values in self.rows(self.table()).values()
            for name, value in zip(COLUMNS, values[1:], strict=True)
        }

    def is_sound(self) -> bool:
        """Whether no commit was lost."""
        return all(found == self.counted[place] for place, found in self.counts().items())

    def alter(self, wanted: want.Wanted, hook: Hook = lambda where: None, *, idle: bool = False) -> Job:  # type: ignore[override]  # another kind of world's
        """Execute the statement, and its job, which must need one."""
        job = self.execute(wanted, statement=type(wanted).__name__)
        assert job is not None
        reorganizer: Reorganizer = Idle() if idle else Watched(hook)
        replan = replanner(self.store, self.clock)
        made = Stepping(
            self.store,
            self.catalog_cache,
            self.ids,
            self.clock,
            b"worker",
            lambda task: reorganizer,
            compile_check,
            replan,
            Defaults(self.sequences),
        )
        made.hook = hook
        done = made.run(job)
        assert done is not None
        return done

    def lock(self, name: str = "l") -> Lock:
        return next(lock for lock in self.table().locks if lock.name == name)

    def timestamps(self) -> Iterator[dict[int, int]]:
        """Per row, the timestamp under each lock."""
        table = self.table()
        read = LockTimestamps(table, self.layouts)
        start = rowset_prefix(table.rowset)
        with self.store.read() as reader:
            stored = [value for _, value in reader.scan(start, prefix_end(start))]
        for value in stored:
            yield {lock: read.of(value, lock) for lock in (0, *(lock.id for lock in table.locks))}


class Counting(Server):
    """A server whose transactions count one column of one row up."""

    world: CountingWorld
    place: tuple[int, str]

    def __init__(self, world: CountingWorld, name: str = "t") -> None:
        super().__init__(world, name)
        self.world = world

    def count(self, column: str, identity: int = 0, *, learn: bool = True) -> Counting:
        self.begin(learn=learn)
        names = [found.name for found in self.meant.columns]
        value = self._read(identity).values[names.index(column)]
        self.update(identity, **{column: int(str(value)) + 1})
        self.place = (identity, column)
        return self

    def stands(self) -> bool:
        """Commit; whether that succeeded."""
        try:
            self.commit()
        except Conflict:
            return False
        finally:
            self.buffer.clear()
        self.world.counted[self.place] += 1
        return True


@pytest.fixture
def world() -> CountingWorld:
    return CountingWorld()


# --- what the statements do ------------------------------------------------------------------------------------------


def test_a_lock_comes_moves_and_goes(world: CountingWorld) -> None:
    seen = []

    def hook(where: str) -> None:
        table = world.table()
        states = [(lock.name, lock.state.value) for lock in table.locks]
        seen.append((where, states, [table.covering(column.id) for column in table.columns]))

    assert world.alter(ADD, hook).problem is None
    lock = world.lock()
    dual = [(0,), (0,), (0, lock.id), (0,)]
    assert seen == [
        ("before stage 2", [("l", "write-only")], dual),
        ("before the work", [("l", "write-only")], dual),
        ("before a batch", [("l", "write-only")], dual),
        ("before stage 3", [("l", "write-only")], dual),
    ]
    assert (lock.columns, lock.state, world.table().coverage_changes) == ((3,), State.PUBLIC, ())
    assert world.table().layout.locks == (0, lock.id)
    assert world.alter(MOVE).problem is None
    assert world.lock().columns == (2, 3)
    assert world.alter(want.AlterLock("t", "l", ("c",))).problem is None
    assert world.lock().columns == (4,)
    assert world.execute(want.AlterLock("t", "l", ("c",))) is None
    assert world.alter(DROP).problem is None
    assert (world.table().locks, world.table().layout.locks) == ((), ())


def test_on_a_table_without_rows_it_takes_one_step() -> None:
    world = CountingWorld(rows=1)
    server = Server(world)
    server.delete(0)
    server.commit()
    late = Server(world)
    late.insert(7, 0, 0, 0)
    for wanted, columns in ((ADD, (3,)), (MOVE, (2, 3))):
        version = world.table().version
        assert world.execute(wanted) is None
        assert (world.lock().columns, world.lock().state) == (columns, State.PUBLIC)
        assert world.table().version == version + 1
    late.commit()
    assert late.refused == 1
    assert world.alter(DROP).problem is None


def test_what_is_refused(world: CountingWorld) -> None:
    assert world.alter(ADD).problem is None

    def refused(wanted: want.Wanted) -> str:
        with pytest.raises(errors.Error) as caught:
            world.execute(wanted)
        return caught.value.sqlstate

    assert refused(ADD) == refused(want.AddLock("t", "default", ("a",))) == errors.DUPLICATE_OBJECT
    assert refused(want.AddLock("t", "m", ("z",))) == errors.UNDEFINED_COLUMN
    assert refused(want.AddLock("t", "m", ("a", "a"))) == errors.DUPLICATE_COLUMN
    assert refused(want.AddLock("t", "m", ("id",))) == errors.INVALID_TABLE_DEFINITION
    assert refused(want.DropLock("t", "m")) == refused(want.AlterLock("t", "m", ("a",))) == errors.UNDEFINED_OBJECT
    assert refused(want.DropLock("t", "default")) == errors.FEATURE_NOT_SUPPORTED
    assert refused(want.AddLock("z", "m", ("a",))) == errors.UNDEFINED_TABLE
    assert world.execute(MOVE) is not None
    assert refused(DROP) == refused(want.AddLock("t", "m", ("a",))) == errors.OBJECT_IN_USE
    assert refused(want.AlterLock("t", "l", ("b",))) == errors.OBJECT_IN_USE
    assert world.execute(MOVE) is None  # as good as done
    assert refused(want.DropTables(("t",))) == errors.OBJECT_IN_USE


def test_columns_come_and_go_beside_a_change_of_coverage(world: CountingWorld) -> None:
    def hook(where: str) -> None:
        if where == "before the work":
            world.execute(want.DropColumn("t", "c"))
            world.execute(want.AddColumn("t", want.NewColumn("d", INTEGER)))

    assert world.alter(want.AddLock("t", "l", ("b", "c")), hook).problem is None
    assert world.lock().columns == (3,)
    assert Counting(world).count("a").stands()
    world.execute(want.DropColumn("t", "b"))
    assert world.lock().columns == ()
    assert world.execute(DROP) is None
    layout = world.table().layout
    assert (layout.columns, layout.locks) == (((1, BIGINT), (2, INTEGER), (7, INTEGER)), ())


# --- claims 8 and 9 --------------------------------------------------------------------------------------------------


def test_without_dual_coverage_an_update_is_lost(world: CountingWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claim 8, driven through the planner's direct path, which is there for tables without rows, with no floor."""
    assert world.alter(ADD).problem is None
    assert Counting(world).count("b").stands()
    monkeypatch.setattr(Draft, "collapses", lambda draft, table: True)
    monkeypatch.setattr(rules, "FLOOR_RULES", ())
    monkeypatch.setattr(rules, "floor", lambda before, after: "keep")
    old = Counting(world).count("a")
    assert world.execute(MOVE) is None
    assert Counting(world).count("a").stands()
    assert old.stands()
    assert old.refused == 0
    assert not world.is_sound()


def test_with_the_rule_of_floors_the_direct_path_is_sound(
    world: CountingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert world.alter(ADD).problem is None
    assert Counting(world).count("b").stands()
    monkeypatch.setattr(Draft, "collapses", lambda draft, table: True)
    old = Counting(world).count("a")
    assert world.execute(MOVE) is None
    assert Counting(world).count("a").stands()
    assert not old.stands()
    assert world.is_sound()


def without_propagation(world: CountingWorld, *, idle: bool) -> bool:
    """The paper's second schedule: read under S1, changed by another under S1, committed under S3."""
    assert world.alter(ADD).problem is None
    assert Counting(world).count("b").stands()
    reader = Counting(world).count("a")
    assert Counting(world).count("a").stands()
    assert world.alter(MOVE, idle=idle).problem is None
    reader.refresh()
    return reader.stands()


def test_without_propagation_an_update_is_lost(world: CountingWorld) -> None:
    assert without_propagation(world, idle=True)
    assert not world.is_sound()


def test_with_propagation_none_is(world: CountingWorld) -> None:
    assert not without_propagation(world, idle=False)
    assert world.is_sound()


@pytest.mark.parametrize("wanted", [MOVE, DROP, want.AlterLock("t", "l", ("c",))])
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("read", ["before stage 1", "before stage 2", "before the work"])
@pytest.mark.parametrize("at", ["before stage 2", "before the work", "before a batch", "before stage 3", "at last"])
def test_a_server_one_version_behind_at_every_stage(
    world: CountingWorld, wanted: want.Wanted, column: str, read: str, at: str
) -> None:
    """Reads at one stage; another server counts at the next; it commits at a third under the schema that it had."""
    assert world.alter(ADD).problem is None
    for name in COLUMNS:
        assert Counting(world).count(name).stands()
    behind, stands = Counting(world), Counting(world)
    began = False

    def hook(where: str) -> None:
        nonlocal began
        if where == read:
            behind.count(column)
            began = True
        if where == at and began:
            assert stands.count(column).stands()
            assert not behind.stands()

    hook("before stage 1")
    assert world.alter(wanted, hook).problem is None
    hook("at last")
    assert world.is_sound()


# --- random schedules ------------------------------------------------------------------------------------------------


def chaos(world: CountingWorld, seed: int) -> Hook:
    """Three servers count columns up, under the newest schema or the one that they had, as servers under a lease do."""
    draw = random.Random(seed)
    servers = [Counting(world) for _ in range(3)]

    def hook(where: str) -> None:
        for _ in range(draw.randrange(10)):
            server = draw.choice(servers)
            if server.buffer and draw.random() < 0.5:
                if draw.random() < 0.2:
                    server.refresh()
                server.stands()
            elif server.buffer:
                continue
            else:
                server.count(draw.choice(COLUMNS), draw.randrange(3), learn=draw.random() < 0.4)

    return hook


def run_chaos(seed: int, *, idle: bool = False) -> bool:
    """A lock that comes, moves about and goes under chaos; whether nothing was lost."""
    world = CountingWorld(rows=3)
    hook = chaos(world, seed)
    hook("at first")
    for wanted in (ADD, MOVE, want.AddLock("t", "m", ("a",)), want.AlterLock("t", "l", ("c",)), DROP):
        assert world.alter(wanted, hook, idle=idle).problem is None
        hook("between")
    return world.is_sound()


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(propagate, "BATCH_ROWS", 1)
    monkeypatch.setattr(propagate, "STEP_ROWS", 1)


@pytest.mark.usefixtures("small_batches")
def test_random_schedules_lose_nothing() -> None:
    for seed in range(150):
        assert run_chaos(seed), seed


def test_random_schedules_lose_updates_without_propagation() -> None:
    assert not all(run_chaos(seed, idle=True) for seed in range(60))


def test_random_schedules_lose_updates_without_dual_coverage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where dual coverage is the old lock's alone."""
    covering = Table.covering
    monkeypatch.setattr(Table, "covering", lambda table, column: covering(table, column)[:1])
    monkeypatch.setattr(rules, "skips_dual_coverage", lambda before, after: False)
    assert not all(run_chaos(seed) for seed in range(60))


# --- interruptions ---------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("lives", range(4))
def test_propagation_is_killed_and_resumed(lives: int) -> None:
    """At any of its steps; whoever resumes ends it, and a row that was done is left as it is."""
    world = CountingWorld(rows=4)
    assert world.alter(ADD).problem is None
    for identity in range(4):
        assert Counting(world).count("b", identity).stands()
        assert Counting(world).count("a", identity).stands()
    left = lives

    def mortal(step: Callable[[Section], None]) -> Callable[[Section], None]:
        def run(section: Section) -> None:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            step(section)

        return run

    class Mortal(InProcess):
        def run(self, task: Task, pulse: Callable[[], None]) -> None:
            batches = task.batches
            task.batches = lambda at: (([mortal(step) for step in steps], to) for steps, to in batches(at))  # type: ignore[method-assign]  # the schedule
            super().run(task, pulse)

    job = world.execute(MOVE)
    assert job is not None
    before = list(world.timestamps())
    with pytest.raises(Killed):
        world.executor(b"one", lambda task: Mortal()).run(job)
    world.clock.advance(3600)
    done = world.executor(b"two").run(job)
    assert done is not None
    assert done.state is JobState.SUCCEEDED
    lock = world.lock().id
    assert [found[lock] for found in world.timestamps()] == [found[0] for found in before]
    assert all(found[lock] < found[0] for found in before)
    assert world.is_sound()


def test_propagation_beside_commits_goes_through_all_rows_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for rows in ("FIRST_ROWS", "LEAST_ROWS", "MOST_ROWS"):
        monkeypatch.setattr(breath, rows, 2)
    world = CountingWorld(rows=7)
    assert world.alter(ADD).problem is None
    for identity in range(7):
        assert Counting(world).count("b", identity).stands()
        assert Counting(world).count("a", identity).stands()
    before = list(world.timestamps())
    job = world.execute(MOVE)
    assert job is not None
    worker = Worker(world.store, world.clock)
    while not world.jobs.get(job).is_finished:
        assert worker.turn()
    lock = world.lock().id
    assert [found[lock] for found in world.timestamps()] == [found[0] for found in before]
    assert world.is_sound()


@pytest.mark.parametrize("wanted", [ADD, MOVE, DROP])
@pytest.mark.parametrize("at", ["before stage 2", "before the work", "before a batch"])
def test_a_change_that_is_cancelled_leaves_the_locks_as_they_were(
    world: CountingWorld, wanted: want.Wanted, at: str
) -> None:
    if wanted is not ADD:
        assert world.alter(ADD).problem is None
        assert Counting(world).count("b").stands()
    before = world.table()
    late = Counting(world).count("a")
    asked = False

    def hook(where: str) -> None:
        nonlocal asked
        if where == at and not asked:
            asked = True
            world.jobs.cancel(max(job.id for job in world.jobs.all()))
            assert Counting(world).count("a").stands()
            world.clock.advance(1)  # the worker looks ten times a second

    done = world.alter(wanted, hook)
    assert done.state is JobState.CANCELLED
    after = world.table()
    assert (after.locks, after.coverage_changes, after.layout.locks) == (before.locks, (), before.layout.locks)
    assert not late.stands()
    assert Counting(world).count("a").stands()
    assert world.is_sound()


def test_propagation_writes_no_history(world: CountingWorld) -> None:
    assert world.alter(ADD).problem is None
    for name in ("b", "a"):
        assert Counting(world).count(name).stands()
    rows, log = world.rows(world.table()), world.store.log_bytes()
    table = world.table()
    job = world.execute(MOVE)
    assert job is not None
    assert world.executor().run(job) is not None
    assert world.rows(world.table()) == rows
    changed = [record for record in world.store.log(0, world.now()) if record.table == table.id]
    assert len(changed) == 3
    assert world.store.log_bytes() > log  # of the catalog's own rows
