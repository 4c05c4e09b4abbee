"""The gate, replayed under a clock of its own: who holds the section how long, and who stays out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest

from instar.clock import ManualClock
from instar.store import MemoryStore, open_store
from instar.store.engine import Section, Store
from instar.store.gate import LONGEST_HOLD_NS, MOST_PAUSES, SYNCED, UNSYNCED, Rhythm, Step, run_gated
from instar.store.pace import Pace
from instar.store.presence import ABOUT_NS, ANNOUNCED_NS, Presence, SharedPresence
from store.building import change

HOLD_NS, PAUSE_FACTOR = UNSYNCED

STEP = 100_000  # nanoseconds that a step takes


class RecordingClock(ManualClock):
    """Notes how long it was asked to sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        super().sleep(seconds)


@pytest.fixture
def clock() -> RecordingClock:
    return RecordingClock()


@pytest.fixture
def store(clock: RecordingClock) -> Store:
    return MemoryStore(clock=clock)


def slow_steps(clock: ManualClock, count: int, during: Callable[[], object] = lambda: None):
    def step(_section: Section) -> None:
        clock.monotonic += STEP
        during()

    return [step] * count


def test_a_batch_holds_the_section_for_a_bounded_time_which_grows_while_nobody_is_about(
    store: Store, clock: RecordingClock
) -> None:
    clock.monotonic += ABOUT_NS
    batches = store.background(slow_steps(clock, 4000))
    assert 4000 * STEP // LONGEST_HOLD_NS <= batches < 4000 * STEP // HOLD_NS // 4


def test_nobody_about_no_pause(store: Store, clock: RecordingClock) -> None:
    clock.monotonic += ABOUT_NS
    store.background(slow_steps(clock, 40))
    assert clock.slept == []


def test_a_recent_commit_keeps_the_background_out_in_proportion(store: Store, clock: RecordingClock) -> None:
    change(store, {1: b"a"})
    store.background(slow_steps(clock, 8))
    assert clock.slept == [pytest.approx(PAUSE_FACTOR * HOLD_NS / 1e9)] * 2


@pytest.mark.parametrize(("synchronous", "rhythm"), [("off", UNSYNCED), ("normal", SYNCED), ("full", SYNCED)])
def test_where_commits_are_synchronous_batches_are_fewer_and_longer(
    tmp_path: Path, clock: RecordingClock, synchronous: str, rhythm: Rhythm
) -> None:
    store = open_store(tmp_path / "store", synchronous=synchronous, clock=clock)
    change(store, {1: b"a"})

    def step(_section: Section) -> None:
        clock.monotonic += rhythm.hold_ns // 4

    store.background([step] * 8)
    assert clock.slept[0] == pytest.approx(rhythm.pauses * rhythm.hold_ns / 1e9)
    store.close()


def test_the_steps_of_a_batch_have_as_long_as_its_commit_takes(
    clock: RecordingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = 5 * HOLD_NS
    ran: list[int] = []

    def run_batch(drawn: deque[Step], budget: int) -> tuple[int, int]:
        count = 0
        while drawn and count * STEP < budget:
            drawn.popleft()
            count += 1
        ran.append(count * STEP)
        return count * STEP, count * STEP + commit

    presence = Presence(clock, 3600.0)
    presence.wait_ends()  # a foreground commit was made a moment ago, and no time passes but in pauses
    monkeypatch.setattr(clock, "sleep", lambda _seconds: None)
    run_gated(slow_steps(clock, 200), run_batch, presence, clock)
    assert commit in ran
    assert max(ran) <= commit + STEP


def test_the_pauses_end_once_the_foreground_is_gone(store: Store, clock: RecordingClock) -> None:
    change(store, {1: b"a"})
    store.background(slow_steps(clock, 400))
    assert 0 < len(clock.slept) <= ABOUT_NS // (HOLD_NS * (1 + PAUSE_FACTOR)) + 1


def test_an_announced_commit_is_given_way_to(store: Store, clock: RecordingClock) -> None:
    clock.monotonic += ABOUT_NS
    presence = store._presence  # type: ignore[attr-defined] # as a commit that waits for the section
    store.background(slow_steps(clock, 8, presence.wait_begins))
    assert len(clock.slept) == 2


def test_an_old_announcement_is_ignored(store: Store, clock: RecordingClock) -> None:
    store._presence.wait_begins()  # type: ignore[attr-defined] # and is stopped here
    clock.monotonic += ANNOUNCED_NS
    store.background(slow_steps(clock, 8))
    assert clock.slept == []


def test_the_background_is_not_starved(store: Store, clock: RecordingClock) -> None:
    """However busy the foreground, each batch runs at least one step and each pause ends."""
    done = []

    def step(_section: Section) -> None:
        clock.monotonic += 10 * HOLD_NS
        store._presence.wait_begins()  # type: ignore[attr-defined] # somebody waits all the time
        done.append(1)

    assert store.background([step] * 5) == 5
    assert len(done) == 5


def test_steps_are_drawn_outside_the_section(store: Store, clock: RecordingClock) -> None:
    def steps():
        for number in range(20):
            assert store.writer.acquire(blocking=False)  # type: ignore[attr-defined] # nobody is inside
            store.writer.release()  # type: ignore[attr-defined]
            yield slow_steps(clock, 1)[0] if number % 2 else lambda _section: None

    assert store.background(steps()) > 1


@pytest.mark.parametrize(("waiting", "pauses"), [(1, 1), (2, MOST_PAUSES)])
def test_a_queue_of_processes_is_given_way_to_longer(
    clock: RecordingClock, tmp_path: Path, waiting: int, pauses: int
) -> None:
    slots = [SharedPresence(str(tmp_path / "presence"), clock, 3600.0) for _ in range(2)]
    for slot in slots[:waiting]:
        slot.wait_begins()
    heard: list[int] = []
    pace = Pace(lambda: heard.append(len(clock.slept)))
    pace.urgency = 0.5
    run_gated([lambda _section: None], lambda drawn, _: (drawn.clear() or 1000, 1000), slots[0], clock, pace)  # type: ignore[func-returns-value] # `or`
    pause = PAUSE_FACTOR * 1000 / 1e9
    assert clock.slept == [pytest.approx(2 * pause), *[pytest.approx(pause)] * (pauses - 1)]
    assert set(range(1, pauses + 1)) <= set(heard)  # who cancels does not wait for all of them
    for slot in slots:
        slot.close()
