"""A bug, or a store that fails, in one part of the worker's work: it is told of, and the rest goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from instar import errors
from instar.schemachange import executor
from instar.schemachange import wanted as want
from instar.schemachange.job_records import Job, JobState, job_key
from instar.schemachange.online.keeping import ViewKeeper
from instar.schemachange.shown import shown
from instar.store.engine import Commit, Section
from instar.worker.work import Worker
from support.changes import ChangingWorld, Server


@pytest.fixture
def world() -> ChangingWorld:
    made = ChangingWorld()
    made.create_t([(number, number * 10, "x") for number in range(5)])
    made.execute(want.CreateTable("u", (want.NewColumn("id", made.table().columns[0].type),), ("id",)))
    server = Server(made, "u")
    server.insert(1)
    server.commit()
    return made


def begin(world: ChangingWorld, table: str = "t", column: str = "a") -> int:
    number = world.execute(want.CreateIndex(table, ((column, False),), f"{table}_i"), statement=f"index of {table}")
    assert number is not None
    return number


def broken(*_: object, **__: object) -> object:
    raise ZeroDivisionError("a bug")


def test_a_bug_in_one_job_keeps_nobody_from_the_others_and_stands_in_its_record(
    world: ChangingWorld, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The way back cannot be planned."""
    worker = Worker(world.store, world.clock)
    first = begin(world)
    world.jobs.cancel(first)
    second = begin(world, "u", "id")
    with monkeypatch.context() as there:
        there.setattr(executor.planner, "reverse", broken)
        for attempt in range(1, 8):
            worker.turn()
            job = world.jobs.get(first)
            assert (job.state, job.attempts, job.requested) == (JobState.WAITING, attempt, "cancel")
            assert f"attempt {attempt} failed: XX000 ZeroDivisionError: a bug" in job.reason
            seen = shown(job, world.jobs.progress(job), held=False, lacking="", now=0)
            assert (seen.state, seen.reason) == (JobState.WAITING, job.reason)
            assert "Traceback" in capsys.readouterr().err
            assert job.retry_at is not None
            pause = job.retry_at - world.clock.wall_ns() // 1000
            assert pause == min(2 ** (attempt - 1), 30) * 1_000_000
            assert not world.jobs.is_held(first)
            worker.turn()
            assert world.jobs.get(first) == job
            world.clock.advance(pause / 1e6)
    assert world.jobs.get(second).state is JobState.SUCCEEDED
    worker.turn()
    assert world.jobs.get(first).state is JobState.CANCELLED
    assert world.table().indexes == ()
    assert capsys.readouterr().err == ""


def test_a_job_that_is_put_off_hears_of_a_cancel_at_once(world: ChangingWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(world.store, world.clock)
    number = begin(world)
    with monkeypatch.context() as there:
        there.setattr(executor.Executor, "_next", broken)
        worker.turn()
    assert world.jobs.get(number).attempts == 1
    assert world.jobs.runnable() == []
    world.jobs.cancel(number)
    worker.turn()
    assert world.jobs.get(number).state is JobState.CANCELLED


def test_a_cancel_that_comes_in_an_attempt_that_fails_is_heard_at_once(
    world: ChangingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(world.store, world.clock)
    number = begin(world)

    def cancelled(*_: object) -> object:
        world.jobs.cancel(number)
        return broken()

    with monkeypatch.context() as there:
        there.setattr(executor.Executor, "_next", cancelled)
        worker.turn()
    worker.turn()
    assert world.jobs.get(number).state is JobState.CANCELLED


def test_a_paused_job_whose_cancel_fails_stays_paused(world: ChangingWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(world.store, world.clock)
    number = begin(world)
    world.jobs.pause(number)
    world.jobs.cancel(number)
    with monkeypatch.context() as there:
        there.setattr(executor.planner, "reverse", broken)
        worker.turn()
    job = world.jobs.get(number)
    assert (job.state, job.attempts) == (JobState.PAUSED, 1)
    assert "a bug" in shown(job, world.jobs.progress(job), held=False, lacking="", now=0).reason
    assert world.jobs.runnable() == []
    world.clock.advance(1)
    worker.turn()
    assert world.jobs.get(number).state is JobState.CANCELLED


def test_what_cannot_be_written_down_is_tried_again_after_five_seconds(
    world: ChangingWorld, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = Worker(world.store, world.clock)
    number = begin(world)
    before = world.jobs.get(number)
    asked: list[Commit] = []

    def full(request: Commit) -> int:
        asked.append(request)
        raise errors.error(errors.DISK_FULL, "the disk is full")

    with monkeypatch.context() as there:
        there.setattr(world.store, "commit", full)
        for _ in range(3):
            worker.turn()
        met = len(asked)
        assert met > 0
        assert "the disk is full" in capsys.readouterr().err
        world.clock.advance(4)
        worker.turn()
        assert len(asked) == met
    assert world.jobs.get(number) == before
    world.clock.advance(2)
    worker.turn()
    assert world.jobs.get(number).state is JobState.SUCCEEDED


def test_who_runs_a_job_in_his_own_call_gets_the_error(world: ChangingWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    number = begin(world)
    monkeypatch.setattr(executor.Executor, "_next", broken)
    with pytest.raises(ZeroDivisionError):
        world.executor().run(number)
    assert world.jobs.get(number).attempts == 0
    assert not world.jobs.is_held(number)


def test_a_record_that_cannot_be_read_keeps_nobody_from_the_others(world: ChangingWorld) -> None:
    first, second = begin(world), begin(world, "u", "id")

    def damage(section: Section) -> None:
        section.put(job_key(first), b"\xc1")

    world.store.background([damage])
    Worker(world.store, world.clock).turn()
    assert world.jobs.get(second).state is JobState.SUCCEEDED


def test_the_hook_is_told_of_a_job_that_is_put_off(world: ChangingWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[JobState, str]] = []

    def hook(job: Job) -> str:
        told.append((job.state, job.reason))
        return ""

    begin(world)
    monkeypatch.setattr(executor.Executor, "_next", broken)
    Worker(world.store, world.clock, hook=hook).turn()
    assert [state for state, _ in told] == [JobState.RUNNING, JobState.WAITING]
    assert "a bug" in told[-1][1]


@pytest.mark.parametrize("part", ["collect", "_prune", "deallocate"])
def test_a_bug_in_a_part_of_a_turn_keeps_nobody_from_the_rest(
    world: ChangingWorld, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], part: str
) -> None:
    called: list[str] = []

    def calling(name: str) -> Callable[..., bool]:
        def call(worker: Worker, *between: object) -> bool:
            called.append(name)
            return bool(broken()) if name == part else False

        return call

    for name in ("collect", "_prune", "deallocate"):
        monkeypatch.setattr(Worker, name, calling(name))
    worker = Worker(world.store, world.clock)
    for _ in range(3):
        worker.turn()
    assert called == ["collect", "_prune", "deallocate"]
    assert "a bug" in capsys.readouterr().err
    world.clock.advance(6.5)
    number = begin(world)
    worker.turn()  # what is done beside the job is left alone, too, after it has failed
    beside = ["collect", "deallocate"]
    assert called[3:] == ([*beside, "collect", "_prune", "deallocate"] if part == "_prune" else beside)
    world.clock.advance(6.5)
    worker.turn()
    assert called[-3:] == ["collect", "_prune", "deallocate"]
    assert world.jobs.get(number).state is JobState.SUCCEEDED


def test_a_bug_in_keeping_views_keeps_nobody_from_the_rest(
    world: ChangingWorld, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called: list[int] = []

    def turn(*_: object) -> object:
        called.append(1)
        return broken()

    monkeypatch.setattr(ViewKeeper, "turn", turn)
    worker = Worker(world.store, world.clock)
    number = begin(world)
    for _ in range(3):
        worker.turn()
    assert (world.jobs.get(number).state, len(called)) == (JobState.SUCCEEDED, 1)
    assert "a bug" in capsys.readouterr().err
    world.clock.advance(6)
    worker.turn()
    assert len(called) == 2
