"""The pulse under a clock of its own: what it says, when it renews, and what stops it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest

from instar import errors
from instar.catalog.descriptors import Table
from instar.schemachange import executor, reorganize
from instar.schemachange import wanted as want
from instar.schemachange.job_records import Checkpoint, Job, JobState, checkpoint_key, encode_checkpoint
from instar.schemachange.jobs import LEASE_SECONDS, Held
from instar.schemachange.pulse import Interrupted, Pulse, _Rate
from instar.schemachange.reorganize import InProcess
from instar.schemachange.tasks import Task
from instar.schemachange.wanted import Frozen
from instar.store.engine import Commit
from support.changes import ChangingWorld, Facts

ROWS = 50


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> ChangingWorld:
    monkeypatch.setattr(reorganize, "BATCH_ROWS", 8)
    monkeypatch.setattr(reorganize, "SORTED_ENTRIES", 16)
    made = ChangingWorld()
    made.create_t([(number, number * 10, "x") for number in range(ROWS)])
    return made


def begin(world: ChangingWorld) -> int:
    number = world.execute(want.CreateIndex("t", (("a", False),), "i"), statement="CREATE INDEX i ON t (a)")
    assert number is not None
    return number


def held(world: ChangingWorld, number: int) -> Held:
    claimed = world.jobs.claim(number, b"one")
    assert claimed is not None
    return claimed


def pulse_of(world: ChangingWorld, number: int, **options: Callable[..., object]) -> Pulse:
    return Pulse(world.store, world.jobs, world.clock, held(world, number), **options)  # type: ignore[arg-type]  # tests


class Reading:
    """Work that reads all rows before it writes any."""

    rows = rows_to_read = ROWS
    place = 0
    rows_read: int | None = 10
    doing = "reads"

    def heed(self) -> None:
        pass

    def passed(self, ranges: Sequence[Checkpoint]) -> tuple[int, float]:
        return 0, 0.0


def test_it_says_how_far_reading_is_and_what_the_work_is_at(world: ChangingWorld) -> None:
    number = begin(world)
    pulse = pulse_of(world, number)
    # Stage 3 has the work.
    job = world.jobs.update(number, lambda found: msgspec.structs.replace(found, stage=3))
    task = Reading()
    pulse.attend(job, task)
    pulse()
    first = world.jobs.progress(job)
    assert first.status is not None
    assert (first.status.reason, first.status.waits, first.rows_done) == ("reads", False, 0)
    assert 0.1 < first.share < 0.2
    task.rows_read = 40
    world.clock.advance(1)
    pulse()
    second = world.jobs.progress(job)
    assert second.status is not None
    assert 0.4 < second.share < 0.5
    assert second.status.share_per_second == pytest.approx(second.share - first.share)
    # Another goes on, and reads from the beginning: nothing falls.
    task.rows_read = 0
    world.clock.advance(1)
    pulse()
    assert world.jobs.progress(job).share == second.share


def test_a_rate_does_not_fall_between_two_batches_that_take_longer_than_it_is_told(world: ChangingWorld) -> None:
    """120 rows every 2.4 seconds are 50 a second, at each of the four times that it is told meanwhile; and fewer once
    the next batch is overdue."""
    number = begin(world)
    pulse = pulse_of(world, number)
    job = world.jobs.update(number, lambda found: msgspec.structs.replace(found, stage=3))
    task = Reading()
    task.rows_read = None
    pulse.attend(job, task)

    def told() -> float:
        world.clock.advance(0.6)
        pulse()
        status = world.jobs.progress(world.jobs.get(number)).status
        assert status is not None
        return status.rows_per_second

    for batch in range(1, 5):
        meanwhile = [told() for _ in range(4)][1:]  # the first of them has the batch before
        assert meanwhile == [pytest.approx(0 if batch == 1 else 50, rel=0.01)] * 3
        checkpoint = Checkpoint(b"", b"\xff", b"\x01" * batch, 120 * batch)
        record = checkpoint_key(number, 3, 0), encode_checkpoint(checkpoint)
        world.store.commit(Commit(catalog_version=world.catalog().version, raw=[record]))
    overdue = [told() for _ in range(8)][4:]
    assert overdue == [pytest.approx(120 / 0.6 / tells, rel=0.01) for tells in (4, 5, 6, 7)]


def test_a_rate_that_another_process_has_told_of_is_not_believed_for_ever() -> None:
    rate = _Rate(100.0)
    second = 10**9
    assert [rate.grown(0, (1 + after) * second) for after in (0, 2, 5)] == [100.0] * 3
    assert [rate.grown(0, (1 + after) * second) for after in (10, 20)] == [50.0, 25.0]
    assert rate.grown(0, 22 * second) == 0.0


def test_what_has_stood_for_long_has_no_rate_until_it_goes_on() -> None:
    rate = _Rate(0.0)
    second = 10**9
    for at in range(1, 5):
        rate.grown(100.0, at * second)
    steps = [rate.grown(0, 4 * second + passed * second // 10) for passed in (10, 39, 41, 100, 101)]
    assert steps == [pytest.approx(found) for found in (100, 100 / 3.9, 100 / 4.1, 10, 0)]
    assert rate.grown(100.0, 24 * second) == pytest.approx(5, rel=0.01)
    assert rate.grown(0.0, 24 * second + 1) == pytest.approx(5, rel=0.01)


class Estimated(Facts):
    """Far off, as for tables of which pages are counted."""

    factor = 3.0

    def estimated_rows(self, table: Table) -> int:
        return int(super().estimated_rows(table) * self.factor)


@pytest.mark.parametrize("factor", [0.2, 1.7, 10.0])
def test_an_estimate_is_corrected_while_the_work_goes_on(
    world: ChangingWorld, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    """rows_total comes to be what there is, long before all is done, and the share does not fall."""
    monkeypatch.setattr(Estimated, "factor", factor)
    monkeypatch.setattr("support.changes.Facts", Estimated)
    unique = want.AddConstraint("t", want.Unique(("a",), "u"))
    number = world.execute(want.CreateIndex("t", (("a", False),), "i"), unique, statement="both")
    seen: list[tuple[int, int, float]] = []

    class Watched(InProcess):
        def run(self, task: Task, pulse: Callable[[], None]) -> None:
            def tick() -> None:
                world.clock.advance(1)
                pulse()
                progress = world.jobs.progress(world.jobs.get(number or 0))
                seen.append((progress.rows_done, progress.rows_total, progress.share))

            super().run(task, tick)

    assert world.executor(reorganizer=lambda task: Watched()).run(number or 0) is not None
    assert seen[0][1] == 2 * int(ROWS * factor)
    assert len(seen) > 5
    assert all(abs(total - 2 * ROWS) <= 12 for _, total, _ in seen[1:])
    shares = [share for *_, share in seen]
    assert shares == sorted(shares)
    for done, _, share in seen[2:]:
        assert share <= max(done / (2 * ROWS) + 0.1, shares[1])


@pytest.mark.parametrize(("done", "ratio", "total"), [(40, 1.0, 140), (40, 2.0, 240), (0, 1.0, 100)])
def test_what_has_ended_is_counted(world: ChangingWorld, done: int, ratio: float, total: int) -> None:
    """And not estimated by what the work at hand comes to, which knows better than the plan how much that is."""
    check = want.Check(lambda table: Frozen('"#2" >= 0', (2,)), "k")
    number = world.execute(
        want.AddConstraint("t", check), want.CreateIndex("t", (("a", False),), "i"), statement="both"
    )
    assert number is not None
    pulse = pulse_of(world, number)
    job = world.jobs.update(number, lambda found: msgspec.structs.replace(found, stage=3))
    assert len(job.stages[2].work) == 2
    checkpoint = Checkpoint(b"", b"\xff", b"\x01", done)
    record = checkpoint_key(number, 3, 0), encode_checkpoint(checkpoint)
    world.store.commit(Commit(catalog_version=world.catalog().version, raw=[record]))
    task = Reading()
    task.place, task.rows, task.rows_read = 1, 100, None
    pulse.attend(job, task)
    pulse._ratio = ratio
    world.clock.advance(1)
    pulse()
    assert world.jobs.progress(world.jobs.get(number)).rows_total == total


def test_reading_counts_for_the_piece_of_work_that_it_is_for(world: ChangingWorld) -> None:
    """Spark's, of the first of two pieces: half of it when all is read and nothing put."""
    check = want.Check(lambda table: Frozen('"#2" >= 0', (2,)), "k")
    number = world.execute(
        want.CreateIndex("t", (("a", False),), "i"), want.AddConstraint("t", check), statement="both"
    )
    assert number is not None
    pulse = pulse_of(world, number)
    job = world.jobs.update(number, lambda found: msgspec.structs.replace(found, stage=3))
    task = Reading()
    pulse.attend(job, task)
    for read, share in ((10, 0.05), (50, 0.25)):
        task.rows_read = read
        world.clock.advance(1)
        pulse()
        assert world.jobs.progress(job).share == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize(
    "wanted",
    [
        want.CreateIndex("t", (("a", False),), "i"),
        want.AddConstraint("t", want.Check(lambda table: Frozen('"#2" >= 0', (2,)), "k")),
    ],
)
def test_at_a_rate_the_work_goes_on_step_by_step(wanted: want.Wanted) -> None:
    """Not in leaps of thousands of rows, be they only read."""
    world = ChangingWorld()
    world.create_t([(number, number * 10, "x") for number in range(ROWS)])
    number = world.execute(wanted, statement="at a rate")
    assert number is not None
    world.jobs.alter(number, {"max_rows_per_second": 5})
    seen: list[tuple[float, int]] = []

    class Watched(InProcess):
        def run(self, task: Task, pulse: Callable[[], None]) -> None:
            def tick() -> None:
                pulse()
                done = world.jobs.progress(world.jobs.get(number or 0)).rows_done
                seen.append((world.clock.monotonic_ns() / 1e9, done))

            super().run(task, tick)

    begun = world.clock.monotonic_ns() / 1e9
    assert world.executor(reorganizer=lambda task: Watched()).run(number) is not None
    assert len({rows for _, rows in seen}) >= ROWS // 5
    assert all(rows <= 5 * (at - begun) + 10 for at, rows in seen)


def test_work_below_priority_0_yields_from_the_next_look_on(world: ChangingWorld) -> None:
    """And is told so."""
    number = begin(world)
    pulse = pulse_of(world, number)
    told: list[bool] = []

    class Told(Reading):
        def heed(self) -> None:
            told.append(pulse.pace.yields)

    pulse.attend(world.jobs.update(number, lambda found: msgspec.structs.replace(found, stage=3)), Told())
    yields = [pulse.pace.yields]
    for priority in (-1, 0, 7, -1000):
        world.jobs.alter(number, {"priority": priority})
        world.clock.advance(0.3)
        pulse()
        yields.append(pulse.pace.yields)
    assert yields == told == [False, True, False, False, True]


def test_what_it_waits_for_is_on_record_until_it_goes_on(world: ChangingWorld) -> None:
    number = begin(world)
    pulse = pulse_of(world, number)
    pulse.attend(world.jobs.get(number))
    for reason, waits in (("waits for transaction 7", True), ("", False)):
        pulse.wait(reason)
        status = world.jobs.progress(world.jobs.get(number)).status
        assert status is not None
        assert (status.reason, status.waits) == (reason, waits)


def test_what_waits_for_its_next_stage_has_done_all_work_of_this_one(world: ChangingWorld) -> None:
    """Also where that was done before anybody could be told."""
    number = begin(world)
    pulse = pulse_of(world, number)
    job = world.jobs.update(number, lambda found: msgspec.structs.replace(found, stage=3))
    pulse.attend(msgspec.structs.replace(job, stage=2), worked=True)
    pulse.attend(job)
    shares = []
    for _ in range(2):
        pulse.wait("waits for transaction 7")
        shares.append(world.jobs.progress(job).share)
        pulse.attend(job, worked=True)
    whole = len(job.stages) + ROWS  # a stage counts as much as a row
    assert shares == [pytest.approx(3 / whole), pytest.approx((3 + ROWS) / whole)]


def test_while_a_stage_is_awaited_the_work_before_it_counts(
    world: ChangingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = begin(world)
    shares = []

    def waits(store: object, clock: object, doomed: object, seconds: float, wait: Callable[[str], None], **_: object):
        wait("waits for transaction 7")
        job = world.jobs.get(number)
        shares.append((job.stage, world.jobs.progress(job).share))

    monkeypatch.setattr(executor, "wait_for_writers", waits)
    assert world.executor().run(number) is not None
    job = world.jobs.get(number)
    whole = len(job.stages) + ROWS  # a stage counts as much as a row
    worked = next(place for place, stage in enumerate(job.stages, 1) if stage.work)
    assert dict(shares)[worked] == pytest.approx((worked + ROWS) / whole)


def test_it_renews_the_lease_in_time(world: ChangingWorld) -> None:
    number = begin(world)
    pulse = pulse_of(world, number)
    for _ in range(20):
        world.clock.advance(LEASE_SECONDS / 3)
        pulse()
        assert world.jobs.is_held(number)
    world.clock.advance(LEASE_SECONDS + 1)
    assert not world.jobs.is_held(number)


def test_it_stops_for_a_request_for_the_process_and_for_a_more_urgent_job(world: ChangingWorld) -> None:
    number = begin(world)
    stop: list[int] = []
    pulse = pulse_of(world, number, stopping=lambda: bool(stop), overtaken=lambda job: job.max_rows_per_second)
    pulse.attend(world.jobs.get(number))
    pulse()
    world.jobs.alter(number, {"max_rows_per_second": 9})
    world.clock.advance(1)
    with pytest.raises(Interrupted):
        pulse()
    assert pulse.gives_way_to == 9
    world.jobs.alter(number, {"max_rows_per_second": None})
    world.clock.advance(1)
    pulse()
    world.jobs.pause(number)
    world.clock.advance(1)
    with pytest.raises(Interrupted):
        pulse()
    world.jobs.resume(number)
    stop.append(1)
    with pytest.raises(Interrupted):
        pulse()


def test_what_is_altered_takes_effect_at_the_next_look(world: ChangingWorld) -> None:
    """The work is slowed down in the middle of it, and told so; then let go."""
    number = begin(world)
    seen: list[tuple[float, str]] = []

    class Altering(InProcess):
        def run(self, task: Task, pulse: Callable[[], None]) -> None:
            assert isinstance(pulse, Pulse)
            world.jobs.alter(number, {"max_rows_per_second": 10, "latency_target": 5_000})
            world.clock.advance(0.3)
            pulse()
            assert (pulse.pace.rows_per_second, pulse.pace.latency_target_ns) == (10, 5_000_000)
            before = world.clock.monotonic
            super().run(task, pulse)
            progress = world.jobs.progress(world.jobs.get(number))
            assert progress.status is not None
            seen.append(((world.clock.monotonic - before) / 1e9, progress.status.reason))

    done = world.executor(reorganizer=lambda backfill: Altering()).run(number)
    assert done is not None
    assert done.state is JobState.SUCCEEDED
    ((seconds, reason),) = seen
    assert ROWS / 10 - 1 < seconds < ROWS / 10 + 1
    assert reason == "held back by max_rows_per_second = 10"
    world.check_index("i")


def test_what_is_done_beside_beats_and_is_not_begun_again_meanwhile(world: ChangingWorld) -> None:
    """Its beats renew the lease, and end it by whatever ends the work: that is not its own failure."""
    number = begin(world)
    begun: list[int] = []
    seconds = LEASE_SECONDS / 3

    def beside(beat: Callable[[], None]) -> None:
        begun.append(1)
        for _ in range(6):
            world.clock.advance(seconds)
            beat()

    def judge(job: Job) -> None:
        if job.max_rows_per_second:
            raise errors.error("23505", "a write that the job gives way to")

    pulse = pulse_of(world, number, beside=beside, judge=judge)
    pulse()
    assert len(begun) == 1
    assert world.jobs.is_held(number)
    world.jobs.alter(number, {"max_rows_per_second": 9})
    with pytest.raises(Interrupted) as caught:
        pulse()
    assert isinstance(caught.value.__cause__, errors.Error)
    assert len(begun) == 2
    world.clock.advance(1)
    with pytest.raises(errors.Error, match="gives way"):  # where it ends the work
        pulse()
    world.jobs.alter(number, {"max_rows_per_second": None})
    pulse()
    seconds = LEASE_SECONDS + 1
    world.jobs.cancel(number)
    with pytest.raises(Interrupted):
        pulse()
