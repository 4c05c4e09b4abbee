"""Jobs: claims, leases, requests; crashes at every store commit; both engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from instar import errors
from instar.catalog.descriptors import State
from instar.clock import ManualClock
from instar.schemachange import executor, jobs, reorganize
from instar.schemachange import wanted as want
from instar.schemachange.elements import moving
from instar.schemachange.job_records import JobState, decode_job, statement_hash
from instar.schemachange.jobs import LEASE_SECONDS, LOAD_LEASE_SECONDS
from instar.schemachange.loading import Loading
from instar.schemachange.reorganize import InProcess
from instar.schemachange.tasks import Task
from instar.store import open_store
from instar.store.engine import ClaimLost, Commit
from support.changes import ChangingWorld, Server
from support.mortal import Killed, Mortal


@pytest.fixture(params=["memory", "lmdb"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ChangingWorld]:
    if request.param == "memory":
        made = ChangingWorld()
    else:
        clock = ManualClock()
        made = ChangingWorld(open_store(tmp_path / "store", synchronous="off", clock=clock))
        made.clock = made.jobs._clock = clock
    made.create_t([(number, number * 10, "x") for number in range(50)])
    yield made
    made.store.close()


def begin(world: ChangingWorld, *, unique: bool = False) -> int:
    job = world.execute(want.CreateIndex("t", (("a", False),), "i", unique), statement="CREATE INDEX i ON t (a)")
    assert job is not None
    return job


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reorganize, "BATCH_ROWS", 8)
    monkeypatch.setattr(reorganize, "SORTED_ENTRIES", 8)


def test_a_job_is_on_record_with_its_first_stage(world: ChangingWorld) -> None:
    job = world.jobs.get(begin(world))
    assert (job.kind, job.state, job.stage, job.rows_total) == ("build index", JobState.PENDING, 1, 50)
    assert job.tables == (world.table().id,)
    assert world.table().indexes[0].state is State.DELETE_ONLY
    assert [found.id for found in world.jobs.all()] == [job.id]
    assert [found.id for found in world.jobs.runnable()] == [job.id]
    with pytest.raises(errors.Error, match="does not exist"):
        world.jobs.get(77)


def test_a_finished_job_leaves_its_record_only(world: ChangingWorld) -> None:
    number = begin(world)
    done = world.executor().run(number)
    assert done is not None
    assert done.state is JobState.SUCCEEDED
    assert world.jobs.get(number) == done
    assert world.jobs.progress(done).rows_done == 50
    assert world.jobs.runnable() == []
    assert world.jobs.checkpoints(number, 3) == {}


def test_a_job_is_seen_as_of_one_moment(world: ChangingWorld) -> None:
    """Whoever has read its record a moment ago does not take its end for that of its worker."""
    number = begin(world)
    before = world.jobs.get(number)
    pending = world.jobs.seen(before)
    assert (pending.job, pending.progress.rows_done, pending.owner) == (before, 0, None)
    done = world.executor().run(number)
    seen = world.jobs.seen(before)
    assert (seen.job, seen.progress, seen.owner) == (done, world.jobs.progress(seen.job), None)
    assert seen.progress.share == 1.0


def test_one_claim_at_a_time_until_the_lease_ends(world: ChangingWorld) -> None:
    number = begin(world)
    one = world.jobs.claim(number, b"one")
    assert one is not None
    assert world.jobs.claim(number, b"two") is None
    assert world.executor(b"two").run(number) is None
    world.clock.advance(LEASE_SECONDS * 0.9)
    world.jobs.renew(one)
    world.clock.advance(LEASE_SECONDS * 0.9)
    assert world.jobs.claim(number, b"two") is None
    world.clock.advance(LEASE_SECONDS * 0.2)
    two = world.jobs.claim(number, b"two")
    assert two is not None
    assert two.epoch == one.epoch + 1
    with pytest.raises(ClaimLost):
        world.jobs.renew(one)
    with pytest.raises(ClaimLost):
        world.store.background([lambda section: None], claim=one.claim)


def test_a_lease_ends_with_the_boot(world: ChangingWorld) -> None:
    number = begin(world)
    assert world.jobs.claim(number, b"one") is not None
    world.clock.boot = b"\x02" * 16
    assert world.jobs.claim(number, b"two") is not None


@pytest.mark.usefixtures("small_batches")
def test_a_worker_that_slept_through_its_lease_writes_nothing(world: ChangingWorld) -> None:
    """Rule 9: another adopts the job and finishes it while the first is asleep in the middle of the backfill."""
    number = begin(world)

    class Sleeping(InProcess):
        def run(self, task: Task, pulse: Callable[[], None]) -> None:
            world.clock.advance(LEASE_SECONDS + 1)
            assert world.executor(b"adopter").run(number).state is JobState.SUCCEEDED  # type: ignore[union-attr]
            super().run(task, lambda: None)

    version = world.table().version
    assert world.executor(b"sleeper", lambda task: Sleeping()).run(number) is None
    assert world.table().version == version + 2
    world.check_index("i")


@pytest.mark.usefixtures("small_batches")
def test_pause_and_resume(world: ChangingWorld) -> None:
    number = begin(world)
    batches = []

    class Pausing(InProcess):
        def run(self, task: Task, pulse: Callable[[], None]) -> None:
            def counted() -> None:
                batches.append(1)
                if len(batches) == 3:
                    world.jobs.pause(number)
                    world.clock.advance(1)
                pulse()

            super().run(task, counted)

    paused = world.executor(reorganizer=lambda task: Pausing()).run(number)
    assert paused is not None
    assert paused.state is JobState.PAUSED
    assert world.jobs.runnable() == []
    assert world.jobs.progress(paused).rows_done == 16
    assert world.executor().run(number).state is JobState.PAUSED  # type: ignore[union-attr]
    world.jobs.resume(number)
    assert world.executor().run(number).state is JobState.SUCCEEDED  # type: ignore[union-attr]
    world.check_index("i")


def test_pause_before_anybody_works(world: ChangingWorld) -> None:
    number = begin(world)
    world.jobs.pause(number)
    assert world.jobs.get(number).state is JobState.PAUSED
    world.jobs.resume(number)
    assert world.jobs.get(number).state is JobState.PENDING


def test_cancel_takes_the_change_back(world: ChangingWorld) -> None:
    number = begin(world)
    before = world.table()
    world.jobs.pause(number)
    world.jobs.cancel(number)
    cancelled = world.jobs.get(number)
    for what, steer in (
        ("paused", world.jobs.pause),
        ("resumed", world.jobs.resume),
        ("altered", lambda job: world.jobs.alter(job, {"priority": 1})),
    ):
        with pytest.raises(errors.Error, match=f"is being cancelled and cannot be {what}") as refused:
            steer(number)
        assert refused.value.sqlstate == "55000"
    world.jobs.cancel(number)
    assert world.jobs.get(number) == cancelled
    assert [job.id for job in world.jobs.runnable()] == [number]
    done = world.executor().run(number)
    assert done is not None
    assert done.state is JobState.CANCELLED
    assert done.problem is not None
    assert done.problem.sqlstate == "57014"
    assert world.table().indexes == ()
    assert world.table().layout == before.layout
    with pytest.raises(errors.Error) as refused:
        world.jobs.cancel(number)
    assert refused.value.sqlstate == "55000"


def test_a_job_without_stages_has_died_with_its_process(world: ChangingWorld) -> None:
    world.execute(want.CreateTable("l", (want.NewColumn("id", world.table().columns[0].type),), ("id",)))
    Loading(world.store, world.ids, world.clock, world.table("l"))
    (job,) = [job for job in world.jobs.all() if job.kind == "load"]
    assert world.jobs.runnable() == []
    world.clock.advance(LOAD_LEASE_SECONDS - 1)
    assert world.jobs.runnable() == []
    world.clock.advance(2)
    assert world.executor().run(job.id).state is JobState.FAILED  # type: ignore[union-attr]


def test_no_worker_takes_a_load_for_abandoned_before_it_has_begun(world: ChangingWorld) -> None:
    """A load's record and its claim are one commit: a worker looks for jobs that nobody holds ten times a second."""
    world.execute(want.CreateTable("l", (want.NewColumn("id", world.table().columns[0].type),), ("id",)))
    commit = world.store.commit

    def beside(request: Commit) -> int:
        timestamp = commit(request)
        for job in world.jobs.runnable():
            world.executor(b"worker").run(job.id)
        return timestamp

    world.store.commit = beside  # type: ignore[method-assign]  # the schedule
    loading = Loading(world.store, world.ids, world.clock, world.table("l"))
    assert world.jobs.get(loading.job).state is JobState.RUNNING
    loading.publish(world.catalog_cache, lambda: None)
    assert world.jobs.get(loading.job).state is JobState.SUCCEEDED


# --- what an operator asks for ----------------------------------------------------------------------------------------


def test_what_is_asked_for_while_a_stage_is_published_is_kept(world: ChangingWorld) -> None:
    """ALTER JOB and PAUSE JOB come between the reading of a job's record and the commit that replaces it."""
    number = begin(world)
    commit = world.store.commit
    asked: list[Commit] = []

    def between(request: Commit) -> int:
        if not asked and request.bump_catalog:
            asked.append(request)
            world.jobs.alter(number, {"priority": 7, "max_rows_per_second": 100, "latency_target": 5000})
            world.jobs.pause(number)
        return commit(request)

    world.store.commit = between  # type: ignore[method-assign]  # the schedule
    paused = world.executor().run(number)
    assert paused is not None
    assert (paused.state, paused.stage) == (JobState.PAUSED, 2)
    assert (paused.priority, paused.max_rows_per_second, paused.latency_target) == (7, 100, 5000)
    notes = [event.note for event in paused.history]
    assert notes == ["", "claimed", "ALTER JOB: priority = 7, max_rows_per_second = 100, latency_target = 5000",
                     "PAUSE JOB", "", ""]  # fmt: skip


def test_the_history_says_when_each_stage_was_entered_and_by_whom(world: ChangingWorld) -> None:
    number = begin(world)
    world.clock.advance(3)
    done = world.executor(b"worker 9:xyz").run(number)
    assert done is not None
    assert [(event.stage, event.state.value) for event in done.history] == [
        (1, "pending"), (1, "running"), (2, "running"), (3, "running"), (4, "succeeded"),
    ]  # fmt: skip
    assert {event.by for event in done.history[1:]} == {"worker 9"}
    assert done.history[1].at - done.history[0].at == 3_000_000
    assert done.statement_hash == statement_hash(" CREATE  INDEX i ON t (a) ")


def test_the_most_urgent_first_and_of_those_the_oldest(world: ChangingWorld) -> None:
    numbers = [begin(world)]
    for name in ("j", "k"):
        world.execute(want.CreateTable(name, (want.NewColumn("id", world.table().columns[0].type),), ("id",)))
        server = Server(world, name)
        server.insert(1)
        server.commit()
        found = world.execute(want.CreateIndex(name, (("id", False),), f"{name}_i"))
        assert found is not None
        numbers.append(found)
    assert [job.id for job in world.jobs.runnable()] == numbers
    world.jobs.alter(numbers[2], {"priority": 1})
    assert [job.id for job in world.jobs.runnable()] == [numbers[2], numbers[0], numbers[1]]


def test_past_the_last_stage_that_can_be_taken_back_a_job_only_goes_forward(world: ChangingWorld) -> None:
    number = begin(world)
    forward = msgspec.structs.replace
    world.jobs.update(
        number, lambda job: forward(job, stages=tuple(forward(stage, revertible=False) for stage in job.stages))
    )
    with pytest.raises(errors.Error, match="only goes forward") as refused:
        world.jobs.cancel(number)
    assert refused.value.sqlstate == "55000"
    # One that came just before the stage was published is dropped.
    world.jobs.update(number, lambda job: forward(job, requested="cancel"))
    assert world.executor().run(number).state is JobState.SUCCEEDED  # type: ignore[union-attr]
    world.check_index("i")


class Failing(InProcess):
    """Fails `times` times, as a disk that is full for a while."""

    def __init__(self, times: int) -> None:
        self.left = times

    def run(self, task: Task, pulse: Callable[[], None]) -> None:
        if self.left:
            self.left -= 1
            raise errors.error(errors.DISK_FULL, "the disk is full")
        super().run(task, pulse)


def test_what_cannot_be_taken_back_is_tried_again_after_longer_and_longer_pauses(world: ChangingWorld) -> None:
    number = begin(world)
    forward = msgspec.structs.replace
    world.jobs.update(
        number, lambda job: forward(job, stages=tuple(forward(stage, revertible=False) for stage in job.stages))
    )
    failing = Failing(7)
    pauses: list[int] = []
    job = world.jobs.get(number)
    while not job.is_finished:
        assert [found.id for found in world.jobs.runnable()] == [number]
        job = world.executor(reorganizer=lambda backfill: failing).run(number)  # type: ignore[assignment]
        if job.is_finished:
            break
        assert job.state is JobState.WAITING
        assert f"attempt {len(pauses) + 1} failed: 53100 the disk is full" in job.reason
        assert world.jobs.runnable() == []
        assert job.retry_at is not None
        pauses.append(job.retry_at - world.clock.wall_ns() // 1000)
        world.clock.advance(pauses[-1] / 1e6)
    assert pauses == [1e6, 2e6, 4e6, 8e6, 16e6, 30e6, 30e6]
    assert (job.state, job.attempts, job.reason) == (JobState.SUCCEEDED, 0, "")
    world.check_index("i")


def test_a_way_back_that_fails_is_tried_again_and_never_turned_round(
    world: ChangingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = begin(world)
    world.jobs.cancel(number)
    advance = executor.advance
    monkeypatch.setattr(executor, "advance", lambda *_: 1 / 0)
    stuck = world.executor().run(number)
    assert stuck is not None
    assert (stuck.state, stuck.attempts) == (JobState.REVERTING, 1)
    assert "ZeroDivisionError" in stuck.reason
    assert world.jobs.runnable() == []
    with pytest.raises(errors.Error):
        world.jobs.pause(number)
    monkeypatch.setattr(executor, "advance", advance)
    world.clock.advance(1)
    assert world.executor().run(number).state is JobState.CANCELLED  # type: ignore[union-attr]
    assert world.table().indexes == ()


def test_a_record_of_an_older_version_is_read(world: ChangingWorld) -> None:
    number = begin(world)
    stored = msgspec.to_builtins(world.jobs.get(number))
    new = ("statement_hash", "priority", "max_rows_per_second", "latency_target", "reason", "attempts", "retry_at")
    older = msgspec.msgpack.encode({name: stored[name] for name in stored if name not in (*new, "history")})
    job = decode_job(older, number)
    assert (job.priority, job.history, job.retry_at) == (0, (), None)


# --- crashes ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("duplicate", [False, True], ids=["succeeds", "fails"])
def test_a_kill_at_any_write_leaves_a_job_that_another_finishes(duplicate: bool, after: bool) -> None:
    lives = 0
    died = True
    while died:
        lives += 1
        world = ChangingWorld()
        world.create_t([(number, number * 10, "x") for number in range(20)])
        if duplicate:
            writer = Server(world)
            writer.insert(99, 150, "duplicate of 15")
            writer.commit()
        number = begin(world, unique=True)
        immortal = world.store
        world.store = Mortal(immortal, lives, after=after)
        try:
            world.executor(b"mortal").run(number)
            died = False
        except Killed:
            pass
        world.store = immortal
        if not world.jobs.get(number).is_finished:
            assert world.executor(b"too early").run(number) is None or lives <= 1
            world.clock.advance(LEASE_SECONDS + 1)
            world.executor(b"adopter").run(number)
        done = world.jobs.get(number)
        if duplicate:
            assert done.state is JobState.FAILED
            assert done.problem is not None
            assert done.problem.sqlstate == "23505"
            assert world.table().indexes == ()
        else:
            assert done.state is JobState.SUCCEEDED
            world.check_index("i")
        assert world.table().version <= 6
    assert lives > 7


def unresolved() -> errors.Error:
    return errors.error("08007", "the commit was interrupted: it may stand or not")


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_write_of_which_nobody_knows_leaves_nothing_half_way(after: bool) -> None:
    """It says that it has failed, at any write of the job: it may stand, and so may a stage."""
    lives, ended = 0, set()
    failed = True
    while failed:
        lives += 1
        world = ChangingWorld()
        world.create_t([(number, number * 10, "x") for number in range(20)])
        number = begin(world)
        sound = world.store
        mortal = Mortal(sound, lives, after=after, fails=unresolved)
        world.store = mortal
        with suppress(errors.Error):
            world.executor(b"mortal").run(number)
        failed = mortal.lives <= 0
        world.store = sound
        world.clock.advance(LEASE_SECONDS + 1)
        world.executor(b"adopter").run(number)
        done = world.jobs.get(number)
        ended.add(done.state)
        assert moving(world.table()) == []
        if done.state is JobState.SUCCEEDED:
            world.check_index("i")
        else:
            assert (done.state, world.table().indexes) == (JobState.FAILED, ())
    assert ended == {JobState.SUCCEEDED, JobState.FAILED}
    assert lives > 7


def test_what_fails_after_a_stage_does_not_take_it_back(world: ChangingWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The renewal of the lease before the hook meets a full disk, at one stage after the other."""
    number = begin(world)
    renew, met = jobs.Jobs.renew, set()

    def full(self: jobs.Jobs, held: jobs.Held) -> None:
        stage = self.get(held.job).stage
        if stage in (2, 3) and stage not in met:
            met.add(stage)
            raise errors.error("53100", "the disk is full")
        renew(self, held)

    monkeypatch.setattr(jobs.Jobs, "renew", full)
    done = world.executor(hook=lambda job: "").run(number)
    assert done is not None
    assert (done.state, met) == (JobState.SUCCEEDED, {2, 3})
    world.check_index("i")


def test_a_stage_that_came_to_stand_meanwhile_is_not_reverted(world: ChangingWorld) -> None:
    """The commit that nobody knew of stands after the record was read, and before the way back is published."""
    number = begin(world)
    commit = world.store.commit
    late: list[Commit] = []

    def between(request: Commit) -> int:
        if request.bump_catalog and not late:
            late.append(request)
            raise unresolved()
        if len(late) == 1 and not request.bump_catalog:
            late.append(request)
            commit(late[0])
        return commit(request)

    world.store.commit = between  # type: ignore[method-assign]  # the schedule
    done = world.executor().run(number)
    assert done is not None
    assert (done.state, len(late)) == (JobState.SUCCEEDED, 2)
    world.check_index("i")


def test_only_the_newest_finished_jobs_are_remembered(world: ChangingWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "KEPT_JOBS", 2)
    numbers = []
    for _ in range(4):
        numbers.append(begin(world))
        world.executor().run(numbers[-1])
        world.execute(want.DropIndexes(("i",)))
    waiting = begin(world)
    assert world.jobs.prune() == 2
    assert [job.id for job in world.jobs.all()] == [*numbers[2:], waiting]
    assert world.jobs.prune() == 0


def test_a_job_that_ends_after_many_that_came_later_is_remembered(
    world: ChangingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its statement still waits, and is to learn how it ended."""
    monkeypatch.setattr(jobs, "KEPT_JOBS", 2)
    long = begin(world)
    others = [world.ids.next_job() for _ in range(3)]
    for other in others:
        ended = {"id": other, "state": JobState.SUCCEEDED, "finished": world.clock.wall_ns() // 1000}
        world.jobs.begin(msgspec.structs.replace(world.jobs.get(long), **ended), b"another", [])
    world.clock.advance(1.0)
    world.executor().run(long)
    assert world.jobs.prune() == 2
    assert [job.id for job in world.jobs.all()] == [long, others[-1]]


def test_a_late_claimer_of_a_finished_job_gets_nothing_and_leaves_nothing(world: ChangingWorld) -> None:
    """Rule 9: epochs are told apart by the claim, which goes when the job ends; so a claim needs a job that goes on."""
    number = begin(world)
    commit = world.store.commit
    claims: list[Commit] = []

    def late(request: Commit) -> int:
        if not claims and any(key == jobs.claim_key(number) for key, _ in request.raw):
            claims.append(request)
            done = world.executor(b"first").run(number)
            assert done is not None
            assert done.state is JobState.SUCCEEDED
        return commit(request)

    world.store.commit = late  # type: ignore[method-assign]  # the schedule
    assert world.jobs.claim(number, b"late") is None
    assert len(claims) == 1
    assert world.jobs.claim(number, b"later") is None
    assert world.jobs.claim(number + 1, b"of none") is None
    with world.store.read() as reader:
        assert reader.get(jobs.claim_key(number)) is None
        assert reader.get(jobs.lease_key(number)) is None
