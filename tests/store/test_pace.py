"""The controller that background work keeps to, and the latency that it follows; under a clock of its own."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import pytest

from instar.clock import ManualClock
from instar.store.gate import UNSYNCED, Step, run_gated
from instar.store.pace import ADJUST_NS, LATELY_NS, LEAST_FACTOR, LONGEST_PAUSE_NS, MOST_FACTOR, Pace
from instar.store.presence import ANNOUNCED_NS, LATENCY_NS, Presence, SharedPresence

HOLD_NS, PAUSE_FACTOR = UNSYNCED

MS = 1_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def commit(presence: Presence, clock: ManualClock, took: int) -> None:
    presence.wait_begins()
    clock.monotonic += took
    presence.wait_ends()


# --- what commits take ------------------------------------------------------------------------------------------------


def test_the_latency_follows_what_commits_take_upwards_faster_than_downwards(clock: ManualClock) -> None:
    presence = Presence(clock, 3600.0)
    assert presence.foreground_latency() is None
    up = down = 0
    while (presence.foreground_latency() or 0) < 9 * MS:
        commit(presence, clock, 10 * MS)
        up += 1
    while (presence.foreground_latency() or 0) > 1 * MS:
        commit(presence, clock, MS // 2)
        down += 1
    assert 5 < up < down < 60


def test_a_commit_that_waits_now_counts_and_one_of_long_ago_does_not(clock: ManualClock) -> None:
    presence = Presence(clock, 3600.0)
    commit(presence, clock, MS)
    usual = presence.foreground_latency()
    assert usual is not None
    presence.wait_begins()
    clock.monotonic += 50 * MS
    assert presence.foreground_latency() == 50 * MS
    clock.monotonic += ANNOUNCED_NS  # whoever announced it is stopped
    assert presence.foreground_latency() == usual
    clock.monotonic += LATENCY_NS
    assert presence.foreground_latency() is None


def test_the_slowest_process_counts_and_no_worker(clock: ManualClock, tmp_path: Path) -> None:
    slots = [SharedPresence(str(tmp_path / "presence"), clock, 3600.0) for _ in range(3)]
    for took, slot in zip((4 * MS, 8 * MS, 400 * MS), slots, strict=True):
        commit(slot, clock, took)
    slots[2].announce_worker(True)
    assert slots[2].foreground_latency() == 2 * MS  # a quarter of the first that is seen
    for slot in slots:
        slot.close()


# --- the controller ---------------------------------------------------------------------------------------------------


def adjusted(pace: Pace, clock: ManualClock, latency: int | None, times: int) -> float:
    for _ in range(times):
        clock.monotonic += ADJUST_NS
        pace.follow(latency, clock.monotonic)
    return pace.factor


def test_without_a_target_pauses_are_the_gates(clock: ManualClock) -> None:
    pace = Pace()
    assert adjusted(pace, clock, 500 * MS, 10) == 1.0
    assert pace.held_back(clock.monotonic) == ""


def test_above_the_target_it_slows_down_below_it_speeds_up_and_near_it_stays(clock: ManualClock) -> None:
    pace = Pace()
    pace.latency_target_ns = 5 * MS
    assert adjusted(pace, clock, 6 * MS, 3) == pytest.approx(1.5**3)
    assert "reorganize_latency_target = 5 ms: foreground commits take 6.0 ms" in pace.held_back(clock.monotonic)
    assert adjusted(pace, clock, 9 * MS // 2, 5) == pytest.approx(1.5**3)
    assert adjusted(pace, clock, 3 * MS, 2) == pytest.approx(1.5**3 * 0.81)
    assert adjusted(pace, clock, None, 100) == LEAST_FACTOR
    clock.monotonic += LATELY_NS
    assert pace.held_back(clock.monotonic) == ""
    assert adjusted(pace, clock, 6 * MS, 1) == 1.5  # from where the gate's own pauses are, not from the least
    assert adjusted(pace, clock, 6 * MS, 100) == MOST_FACTOR


def test_it_is_adjusted_so_often_and_no_more(clock: ManualClock) -> None:
    pace = Pace()
    pace.latency_target_ns = MS
    for _ in range(10):
        pace.follow(2 * MS, ADJUST_NS)
    assert pace.factor == 1.5


def batches(pace: Pace, clock: ManualClock, presence: Presence, steps: int, took: int) -> None:
    """Gated batches of one step, each of 16 rows; beside each, a commit of the foreground that takes `took`."""

    def step(_section: object) -> None:
        pace.rows += 16

    def run_batch(drawn: deque[Step], _budget: int) -> tuple[int, int]:
        drawn.popleft()(None)  # type: ignore[arg-type]  # the step asks for nothing
        clock.monotonic += HOLD_NS
        if took:
            commit(presence, clock, took)
        return HOLD_NS, HOLD_NS

    run_gated([step] * steps, run_batch, presence, clock, pace)


def simulated(pace: Pace, clock: ManualClock, work: float) -> list[float]:
    """A closed loop: a foreground commit takes 1 ms, and more the greater the share of time that the background works;
    what latency settles at, in ms."""
    presence = Presence(clock, 3600.0)
    seen: list[float] = []

    def run_batch(drawn: deque[Step], _budget: int) -> tuple[int, int]:
        drawn.popleft()
        clock.monotonic += HOLD_NS
        pause = PAUSE_FACTOR * HOLD_NS * pace.factor
        commit(presence, clock, int(MS + work * MS * HOLD_NS / (HOLD_NS + pause)))
        seen.append((presence.foreground_latency() or 0) / MS)
        return HOLD_NS, HOLD_NS

    run_gated([lambda _section: None] * 4000, run_batch, presence, clock, pace)
    return seen[-500:]


def test_the_latency_settles_at_the_target_whatever_the_load(clock: ManualClock) -> None:
    for work in (20, 60, 200):
        pace = Pace()
        pace.latency_target_ns = 5 * MS
        settled = simulated(pace, clock, work)
        assert max(settled) < 7.5, work
        assert sum(settled) / len(settled) < 5.5, work
        if work == 60:  # there is work to hold back, and it is not held back more than need be
            assert pace.factor > 1
    assert pace.factor > 4


def test_with_room_below_the_target_it_is_faster_than_without_one(clock: ManualClock) -> None:
    pace = Pace()
    pace.latency_target_ns = 50 * MS
    simulated(pace, clock, 20)
    assert pace.factor == LEAST_FACTOR


def test_a_target_that_cannot_be_kept_does_not_stop_the_work(clock: ManualClock) -> None:
    presence, pace = Presence(clock, 3600.0), Pace()
    pace.latency_target_ns = MS
    begun = clock.monotonic
    batches(pace, clock, presence, 200, took=20 * MS)
    assert pace.rows == 200 * 16
    assert clock.monotonic - begun < 200 * (LONGEST_PAUSE_NS + 30 * MS)


@pytest.mark.parametrize("rate", [100, 10_000])
def test_a_rate_is_kept_with_nobody_about(clock: ManualClock, rate: int) -> None:
    presence, pace = Presence(clock, 3600.0), Pace()
    clock.monotonic += 10**10
    pace.rows_per_second = rate
    begun = clock.monotonic
    batches(pace, clock, presence, 100, took=0)
    assert 1600 / rate <= (clock.monotonic - begun) / 1e9 <= 1600 / rate * 1.3
    assert pace.held_back(clock.monotonic) == f"held back by max_rows_per_second = {rate}"


@pytest.mark.parametrize(("rate", "ran"), [(100, [1] * 24), (20_000, [1, 2, *[3] * 7]), (None, [8, 16])])
def test_no_batch_does_more_than_the_rate_allows_in_a_moment_the_first_neither(
    clock: ManualClock, rate: int | None, ran: list[int]
) -> None:
    """Each work of a job begins with a first batch; what it did beyond the rate made rows_per_second and eta jump."""
    presence, pace = Presence(clock, 3600.0), Pace()
    clock.monotonic += 10**10
    pace.rows_per_second = rate
    batched: list[int] = []

    def step(_section: object) -> None:
        pace.rows += 512

    def run_batch(drawn: deque[Step], _budget: int) -> tuple[int, int]:
        batched.append(len(drawn))
        while drawn:
            drawn.popleft()(None)  # type: ignore[arg-type]  # the step asks for nothing
        return HOLD_NS, HOLD_NS

    run_gated([step] * 24, run_batch, presence, clock, pace)
    assert batched == ran


def test_a_long_pause_is_interrupted(clock: ManualClock) -> None:
    class Stop(Exception):
        pass

    def interrupt() -> None:
        if clock.monotonic - begun > 10**9:
            raise Stop

    presence, pace = Presence(clock, 3600.0), Pace(interrupt)
    clock.monotonic += 10**10
    begun = clock.monotonic
    pace.rows_per_second = 1
    with pytest.raises(Stop):
        batches(pace, clock, presence, 100, took=0)
    assert clock.monotonic - begun < 1.2e9


def test_the_time_that_rows_have_taken_counts_and_a_rest_does_not() -> None:
    pace, second = Pace(), 10**9
    pace.rows_per_second = 100
    pace.rows = 20
    assert pace.owed(0) == second // 5
    assert not pace.owed(second // 5)
    pace.rows += 20  # in a tenth of a second
    assert pace.owed(3 * second // 10) == second // 10
    assert pace.is_limited
    pace.rows += 100  # after ten seconds
    assert pace.owed(10 * second) == 3 * second // 4
    pace.rows_per_second = None
    assert pace.owed(20 * second) == 0
    assert not pace.is_limited


def test_work_that_nobody_waits_for_is_not_held_back_by_a_target_that_is_not_set() -> None:
    pace = Pace()
    pace.urgency = 0.25
    assert pace.follow(10**9, 1) == 4.0
    assert not pace.is_limited
    pace.latency_target_ns = 1
    assert pace.follow(10**9, ADJUST_NS) > 4.0
    assert pace.is_limited


def test_a_new_rate_holds_from_the_next_batch_on(clock: ManualClock) -> None:
    pace = Pace()
    pace.rows_per_second = 10
    pace.rows = 10
    assert pace.owed(0) == 10**9
    pace.rows_per_second = None
    pace.rows = 500
    assert pace.owed(1) == 0
    pace.rows_per_second = 100
    assert pace.owed(2) == 0  # what was done without a rate is not owed


@pytest.mark.parametrize(("rate", "seconds"), [(None, 2), (2, 2 + 14 / 2), (0.5, 2 + 14 / 0.5)])
def test_a_pause_by_a_rate_is_as_long_as_the_newest_rate_demands(
    clock: ManualClock, rate: float | None, seconds: float
) -> None:
    """An operator who lifts a rate (ALTER JOB) need not wait for what the old one had asked for: minutes, if that was
    low. 16 rows at one per second take 16 seconds; another rate is set after two."""

    def interrupt() -> None:
        if clock.monotonic - begun >= 2 * 10**9:
            pace.rows_per_second = rate

    presence, pace = Presence(clock, 3600.0), Pace(interrupt)
    clock.monotonic += 10**10
    begun = clock.monotonic
    pace.rows_per_second = 1
    batches(pace, clock, presence, 1, took=0)
    assert (clock.monotonic - begun) / 1e9 == pytest.approx(seconds, abs=0.3)


def test_a_long_pause_by_a_rate_is_told_to_its_end(clock: ManualClock) -> None:
    said: list[str] = []
    presence, pace = Presence(clock, 3600.0), Pace(lambda: said.append(pace.held_back(clock.monotonic)))
    clock.monotonic += 10**10
    pace.rows_per_second = 1
    batches(pace, clock, presence, 1, took=0)
    assert len(said) > 16
    assert set(said) == {"held back by max_rows_per_second = 1"}


def test_a_rate_that_is_not_reached_is_not_what_holds_the_work_back(clock: ManualClock) -> None:
    """What is waited for after a portion would be waited for by other things, too."""
    presence, pace = Presence(clock, 3600.0), Pace()
    clock.monotonic += 10**10
    pace.rows_per_second = 1_000
    batches(pace, clock, presence, 200, took=0)
    assert pace.held_back(clock.monotonic) == "held back by max_rows_per_second = 1000"
    for _ in range(5):
        clock.advance(1.0)  # rows are read, which are put in twenty portions
        for _ in range(20):
            pace.rows += 20
            owed = pace.owed(clock.monotonic)
            clock.monotonic += max(owed, 0)
    assert owed > 0
    assert pace.held_back(clock.monotonic) == ""


def test_at_a_rate_few_rows_are_done_before_that_is_put_on_record() -> None:
    pace = Pace()
    assert pace.most_rows(4096) == 4096
    for rate, rows in ((100_000, 4096), (300, 75), (1, 1), (0.1, 1)):
        pace.rows_per_second = rate
        assert pace.most_rows(4096) == rows
