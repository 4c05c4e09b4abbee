"""A job that waits for a transaction at a locking level lets others be run, and goes on when that has ended."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from instar.catalog.schema_locks import resource_of
from instar.clock import ManualClock
from instar.schemachange import executor, reorganize
from instar.schemachange import wanted as want
from instar.schemachange.job_records import Job, JobState, Problem
from instar.schemachange.queued import queued_job
from instar.schemachange.shown import shown
from instar.schemachange.stages import Plan
from instar.schemachange.tasks import Task
from instar.store.engine import prefix_end, rowset_prefix
from instar.store.lock_modes import Mode
from instar.worker.work import Worker
from support.changes import ChangingWorld, Server


class Scripted(ManualClock):
    """Things happen at their times, in seconds from `start`."""

    def __init__(self) -> None:
        super().__init__()
        self.start = 0
        self.script: list[tuple[float, Callable[[], object]]] = []
        self.each: Callable[[], object] = lambda: None

    def seconds(self) -> float:
        return (self.monotonic - self.start) / 1e9

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        while self.script and self.script[0][0] <= self.seconds():
            self.script.pop(0)[1]()
        self.each()


class Shop:
    """Tables t and u, a worker, and transactions at a locking level."""

    def __init__(self) -> None:
        self.clock = Scripted()
        self.world = ChangingWorld(clock=self.clock)
        self.world.create_t([(number, number * 10, "x") for number in range(20)])
        self.world.execute(want.CreateTable("u", (want.NewColumn("id", self.world.table().columns[0].type),), ("id",)))
        server = Server(self.world, "u")
        for number in range(20):
            server.insert(number)
        server.commit()
        self.jobs = self.world.jobs
        self.hooked: list[JobState] = []
        self.worker = Worker(self.world.store, self.clock, hook=self._hook)
        self.clock.start = self.clock.monotonic

    def _hook(self, job: Job) -> str:
        self.hooked.append(job.state)
        return ""

    def lock(self, table: str) -> Callable[[], None]:
        """What ends the transaction that has locked the table's schema."""
        locks = self.world.store.locks
        owner = locks.new_owner()
        self.world.store.lock(owner, [(resource_of(self.world.table(table).id), Mode.SCH_S)])
        return lambda: locks.end(owner)

    def index(self, table: str, column: str) -> int:
        number = self.world.execute(want.CreateIndex(table, ((column, False),), f"{table}_i"))
        assert number is not None
        return number

    def at(self, *script: tuple[float, Callable[[], object]]) -> None:
        self.clock.script = list(script)

    def work(self, until: Callable[[], bool], longest: float = 200) -> None:
        while not until():
            assert self.clock.seconds() < longest
            if not self.worker.turn():
                self.clock.advance(0.1)

    def is_over(self, *numbers: int) -> bool:
        return all(self.jobs.get(number).is_finished for number in numbers)

    def told(self, number: int) -> str:
        """What a client is told of the job."""
        job = self.jobs.get(number)
        seen = shown(job, self.jobs.progress(job), held=self.jobs.is_held(number), lacking="", now=0)
        return f"{job.stage} {seen.state.value} {seen.reason}"


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The jobs that are run, one after the other."""
    runs: list[int] = []
    real = executor.Executor.run

    def run(self: executor.Executor, job: int) -> Job | None:
        runs.append(job)
        return real(self, job)

    monkeypatch.setattr(executor.Executor, "run", run)
    return runs


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setattr(reorganize, "BATCH_ROWS", 4)
    monkeypatch.setattr(reorganize, "SORTED_ENTRIES", 4)
    return Shop()


def test_another_job_is_run_meanwhile_and_the_first_soon_after_the_lock_is_free(shop: Shop) -> None:
    first, second = shop.index("t", "a"), shop.index("u", "id")
    end = shop.lock("t")
    shop.worker.turn()
    assert shop.jobs.get(second).state is JobState.SUCCEEDED
    assert 1 <= shop.clock.seconds() < 1.5
    job = shop.jobs.get(first)
    assert (job.state, job.attempts, job.failed) == (JobState.WAITING, 0, None)
    assert "SCH-C on a table that a transaction at a locking level uses" in job.reason
    assert job.retry_at is not None
    assert not shop.jobs.is_held(first)
    shop.at((50, end))
    shop.work(lambda: shop.is_over(first))
    assert 50 <= shop.clock.seconds() < 50.2
    assert shop.jobs.get(first).state is JobState.SUCCEEDED
    shop.world.check_index("t_i")
    assert [event.note for event in shop.jobs.get(first).history if event.note] == [
        "claimed", f"steps aside for other jobs: {job.reason}",
    ]  # fmt: skip


def test_one_job_alone_waits_as_ever(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    first = shop.index("t", "a")
    shop.at((30, shop.lock("t")))
    runs = counted(monkeypatch)
    shop.work(lambda: shop.is_over(first))
    assert runs == [first]
    assert 30 <= shop.clock.seconds() < 30.2


def test_two_that_wait_take_turns_of_a_second_and_say_nothing_new(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = shop.index("t", "a"), shop.index("u", "id")
    shop.at((60, shop.lock("t")), (90, shop.lock("u")))
    runs = counted(monkeypatch)
    told: dict[int, list[str]] = {first: [], second: []}
    share = {first: 0.0, second: 0.0}

    def look() -> None:
        for number, said in told.items():
            text, progress = shop.told(number), shop.jobs.progress(shop.jobs.get(number)).share
            assert progress >= share[number]
            share[number] = progress
            if text not in said[-1:]:
                said.append(text)

    shop.clock.each = look
    shop.work(lambda: shop.is_over(first, second))
    assert 90 <= shop.clock.seconds() < 93
    assert 20 < len(runs) <= 95
    for number, said in told.items():
        assert len(said) < 10, said
        assert len(shop.jobs.get(number).history) < 12
    assert len(shop.hooked) < 14


def test_it_goes_on_before_a_younger_job_when_what_it_met_is_free(shop: Shop) -> None:
    first, second = shop.index("t", "a"), shop.index("u", "id")
    shop.jobs.alter(second, {"max_rows_per_second": 1})
    shop.at((5, shop.lock("t")))
    begun = shop.clock.wall_ns() // 1000
    shop.work(lambda: shop.is_over(first, second))
    finished = [(shop.jobs.get(number).finished or 0) - begun for number in (first, second)]
    assert 5_000_000 <= finished[0] < 6_000_000
    assert finished[1] > 15_000_000
    shop.world.check_index("u_i", "u")


def test_a_cancel_is_heard_while_another_job_is_run(shop: Shop) -> None:
    first, second = shop.index("t", "a"), shop.index("u", "id")
    shop.jobs.alter(second, {"max_rows_per_second": 1})
    end = shop.lock("t")
    states: list[JobState] = []
    shop.at(
        (5, lambda: shop.jobs.cancel(first)), (7, lambda: states.append(shop.jobs.get(first).state)), (10, end)
    )  # fmt: skip
    shop.work(lambda: shop.is_over(first, second))
    assert states == [JobState.REVERTING]
    assert shop.jobs.get(first).state is JobState.CANCELLED
    assert shop.jobs.get(second).state is JobState.SUCCEEDED
    assert shop.world.table().indexes == ()


def test_a_pause_is_heard_and_a_resume_too(shop: Shop) -> None:
    first, second = shop.index("t", "a"), shop.index("u", "id")
    end = shop.lock("t")
    shop.worker.turn()
    shop.jobs.pause(first)
    assert shop.jobs.get(first).state is JobState.PAUSED
    end()
    shop.clock.advance(5)
    shop.worker.turn()
    assert shop.jobs.get(first).state is JobState.PAUSED
    shop.jobs.resume(first)
    shop.worker.turn()
    assert shop.is_over(first, second)
    shop.world.check_index("t_i")


def test_a_statement_that_was_queued_steps_aside_too(shop: Shop) -> None:
    """Its first stage meets the lock."""
    world = shop.world
    ended = world.jobs.get(shop.index("t", "a"))
    shop.worker.turn()

    def replan(change: object, job: Job) -> Plan:
        return world.plan(want.DropTables(("t",)), statement="DROP TABLE t")

    queue = queued_job(world.ids.next_job(), "DROP TABLE t", ended, 0, "UTC", (), 0, None)
    world.jobs.begin(queue, b"gone", [], seconds=0)
    shop.worker._executor._replan = replan
    end = shop.lock("t")
    second = shop.index("u", "id")
    shop.worker.turn()
    job = world.jobs.get(queue.id)
    assert shop.is_over(second)
    assert (job.state, job.stages, job.after) == (JobState.WAITING, (), ended.id)
    assert "SCH-M" in job.reason
    end()
    shop.work(lambda: shop.is_over(queue.id))
    done = world.jobs.get(queue.id)
    assert (done.state, done.problem) == (JobState.SUCCEEDED, None)
    assert world.catalog().lookup("public", "t") is None


def test_it_counts_no_attempt_and_forgets_one_that_came_to_the_lock(shop: Shop) -> None:
    first = shop.index("t", "a")
    shop.index("u", "id")
    full = Problem("53100", "the disk is full")
    shop.jobs.update(first, lambda job: executor.put_off(job, full, 0, "worker 9"))
    shop.lock("t")
    shop.worker.turn()
    assert shop.jobs.get(first).attempts == 0


def test_a_job_that_has_not_begun_is_cancelled_while_another_one_is_run(shop: Shop) -> None:
    """Its user is not to wait for the end of that, which may be hours away."""
    first, second = shop.index("t", "a"), shop.index("u", "id")
    shop.jobs.alter(first, {"max_rows_per_second": 1})
    states: list[JobState] = []
    shop.at(
        (3, lambda: shop.jobs.cancel(second)),
        (5, lambda: states.extend(shop.jobs.get(number).state for number in (first, second))),
    )
    shop.work(lambda: shop.is_over(first, second))
    assert states == [JobState.RUNNING, JobState.CANCELLED]
    assert shop.jobs.get(first).state is JobState.SUCCEEDED
    shop.world.check_index("t_i")
    assert shop.world.table("u").indexes == ()
    assert f"gives way to job {second}" in [event.note for event in shop.jobs.get(first).history]


def test_a_queued_statement_is_as_urgent_as_it_says_once_what_it_has_waited_for_has_ended(shop: Shop) -> None:
    world = shop.world
    ended = world.jobs.get(shop.index("t", "a"))
    shop.worker.turn()
    slow = shop.index("u", "id")
    shop.jobs.alter(slow, {"max_rows_per_second": 1})
    queue = queued_job(world.ids.next_job(), "DROP INDEX t_i", ended, 0, "UTC", (), 0, None)
    world.jobs.begin(queue, b"gone", [], seconds=0)
    states: list[JobState] = []
    shop.at(
        (3, lambda: shop.jobs.alter(queue.id, {"priority": 1})),
        (5, lambda: states.extend(shop.jobs.get(number).state for number in (slow, queue.id))),
    )
    shop.work(lambda: shop.is_over(slow, queue.id))
    assert states == [JobState.RUNNING, JobState.SUCCEEDED]
    assert world.table().indexes == ()
    world.check_index("u_i", "u")


def run_beside(monkeypatch: pytest.MonkeyPatch, tick: Callable[[], object]) -> None:
    """Have `tick` called between two batches of every job."""

    class Ticking(reorganize.InProcess):
        def run(self, task: Task, pulse: Callable[[], None]) -> None:
            def beat() -> None:
                tick()
                pulse()

            super().run(task, beat)

    monkeypatch.setattr("instar.worker.work.InProcess", Ticking)


def test_what_is_resumed_does_not_wait_for_the_other_jobs_of_a_turn(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = shop.index("t", "a"), shop.index("u", "id")
    third = shop.world.execute(want.CreateIndex("u", (("id", True),), "u_j")) or 0
    shop.jobs.alter(first, {"priority": 10})
    runs, ticks = counted(monkeypatch), iter(range(1000))

    def tick() -> None:
        shop.clock.advance(1)
        number = next(ticks)
        if number == 1:
            shop.jobs.pause(first)
        elif number == 3:
            shop.jobs.resume(first)

    run_beside(monkeypatch, tick)
    assert shop.worker.turn()
    assert runs == [first, second, first, second, third]
    assert shop.is_over(first, second, third)


def test_a_statement_that_meets_another_job_is_planned_again_in_the_same_turn(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though others keep coming, of another table."""
    world = shop.world
    first = shop.index("t", "a")
    queue = queued_job(world.ids.next_job(), "DROP TABLE t", shop.jobs.get(first), 0, "UTC", (), 0, None)
    world.jobs.begin(queue, b"gone", [], seconds=0)
    second = world.execute(want.CreateIndex("t", (("b", False),), "t_j"))
    others = [world.execute(want.CreateIndex("u", (("id", True),), f"u_{number}")) for number in range(3)]
    shop.worker._executor._replan = lambda change, job: world.plan(want.DropTables(("t",)), statement="DROP TABLE t")
    runs = counted(monkeypatch)
    run_beside(monkeypatch, lambda: shop.clock.advance(1))
    assert shop.worker.turn()
    assert runs == [first, queue.id, second, queue.id, *others]
    assert world.catalog().lookup("public", "t") is None


def test_garbage_does_not_wait_for_the_end_of_a_job(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    world = shop.world
    world.execute(want.CreateTable("gone", (want.NewColumn("id", world.table().columns[0].type),), ("id",)))
    server = Server(world, "gone")
    server.insert(1)
    server.commit()
    gone = rowset_prefix(world.table("gone").rowset)
    world.execute(want.DropTables(("gone",)))
    number = shop.index("t", "a")
    seen: list[tuple[int, bool]] = []

    def tick() -> None:
        with world.store.read() as reader:
            seen.append((reader.watermark, next(reader.scan(gone, prefix_end(gone)), None) is None))
        shop.clock.advance(world.store.retention_seconds + 60)
        writer = Server(world)
        writer.update(1, b=f"{len(seen)}")
        writer.commit()

    run_beside(monkeypatch, tick)
    assert shop.worker.turn()
    assert shop.is_over(number)
    assert seen[0][0] < seen[-1][0]
    assert [freed for _, freed in seen] == sorted(freed for _, freed in seen)
    assert not seen[0][1]
    assert seen[-1][1]


def test_a_turn_ends_though_two_jobs_wait(shop: Shop) -> None:
    """Compaction comes once a turn, and two jobs that meet locks again and again are no reason to let it wait."""
    first, second = shop.index("t", "a"), shop.index("u", "id")
    ends = shop.lock("t"), shop.lock("u")
    shop.at(*((60, end) for end in ends))
    turns = 0
    while not shop.is_over(first, second):
        assert shop.clock.seconds() < 100
        turns += 1
        if not shop.worker.turn():
            shop.clock.advance(0.1)
    assert turns > 20
