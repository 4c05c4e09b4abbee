"""What computes beside foreground commits does so in short pieces, and rests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from instar.clock import ManualClock
from instar.schemachange import breath as breath_module
from instar.schemachange import reorganize
from instar.schemachange import wanted as want
from instar.schemachange.breath import (
    FIRST_ROWS,
    LATELY_NS,
    LEAST_ROWS,
    LONG_PIECE_NS,
    LONG_RESTS,
    MOST_RESTS,
    MOST_ROWS,
    PIECE_NS,
    RESTS,
    Breath,
)
from instar.schemachange.job_records import Checkpoint, JobState
from instar.schemachange.reorganize import Backfill, Entry
from instar.store.engine import Section
from instar.store.pace import LONGEST_PAUSE_NS, Pace
from instar.worker import work as work_module
from instar.worker.work import Worker
from support.changes import ChangingWorld, Server


class Foreground:
    """Of a store, whether others commit."""

    def __init__(self) -> None:
        self.commits = True

    def foreground_about(self) -> bool:
        return self.commits


class Working(ManualClock):
    """Notes how long it was asked to sleep; its thread computes `cost` nanoseconds between two looks."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []
        self.cost = 0

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        super().sleep(seconds)

    def computed_ns(self) -> int:
        self.computed += self.cost
        return super().computed_ns()


@pytest.fixture
def clock() -> Working:
    return Working()


@pytest.fixture
def foreground() -> Foreground:
    return Foreground()


@pytest.fixture
def breath(foreground: Foreground, clock: Working) -> Breath:
    return Breath(foreground, clock)


def test_a_piece_is_followed_by_several_times_as_much_rest(breath: Breath, clock: Working) -> None:
    clock.computed += PIECE_NS
    breath.draw()
    breath.draw()  # nothing was computed since
    assert clock.slept == [pytest.approx(RESTS * PIECE_NS / 1e9)]


def test_who_gives_way_at_once_has_longer_pieces_and_longer_rests(foreground: Foreground, clock: Working) -> None:
    breath = Breath(foreground, clock, gives_way=True)
    clock.computed += LONG_PIECE_NS // 4
    breath.draw()
    assert clock.slept == []
    clock.computed += LONG_PIECE_NS * 3 // 4
    breath.draw()
    assert clock.slept == [pytest.approx(LONG_RESTS * LONG_PIECE_NS / 1e9)]


def test_less_than_a_piece_waits_for_more(breath: Breath, clock: Working) -> None:
    for _ in range(8):
        clock.computed += PIECE_NS // 8
        breath.draw()
    assert sum(clock.slept) == pytest.approx(RESTS * PIECE_NS / 1e9)
    assert len(clock.slept) == 2


def test_where_nobody_commits_nobody_rests_and_batches_are_large(
    breath: Breath, clock: Working, foreground: Foreground
) -> None:
    foreground.commits = False
    clock.computed += 100 * PIECE_NS
    assert breath.piece() == MOST_ROWS
    breath.draw(read=True)
    assert clock.slept == []
    foreground.commits = True  # what was computed while nobody was there is not made up for
    breath.draw()
    assert clock.slept == []


def test_who_commits_now_and_then_counts_as_there(breath: Breath, clock: Working, foreground: Foreground) -> None:
    assert breath.piece() == FIRST_ROWS
    foreground.commits = False
    clock.advance(LATELY_NS / 2e9)
    assert breath.piece() == FIRST_ROWS
    clock.computed += PIECE_NS
    breath.draw()
    assert len(clock.slept) == 1
    clock.advance(LATELY_NS / 2e9)
    assert breath.piece() == MOST_ROWS


def test_pieces_have_as_many_rows_as_take_as_long_as_a_piece(breath: Breath, clock: Working) -> None:
    assert breath.piece() == FIRST_ROWS
    for rows, each in ((FIRST_ROWS, PIECE_NS // 40), (40, PIECE_NS // 200), (80, PIECE_NS // 200)):
        assert breath.piece() == rows
        clock.computed += rows * each
        breath.draw(read=True)
    clock.computed += 10 * PIECE_NS
    breath.draw(read=True)
    assert breath.piece() == LEAST_ROWS
    for _ in range(20):
        clock.computed += 1
        breath.draw(read=True)
        assert breath.piece() <= MOST_ROWS
    assert breath.piece() == MOST_ROWS


def test_a_piece_has_no_more_rows_than_are_asked_for(breath: Breath, clock: Working) -> None:
    """And tells no more of how many would take as long as a piece: a few may be read in no time."""
    for _ in range(20):
        assert breath.piece(5) == 5
        clock.computed += 1
        breath.draw(read=True)
    assert breath.piece() <= FIRST_ROWS


def test_what_was_computed_between_two_tasks_says_nothing_of_pieces(breath: Breath, clock: Working) -> None:
    clock.computed += 1000 * PIECE_NS
    assert breath.piece() == FIRST_ROWS
    clock.computed += PIECE_NS
    breath.draw(read=True)
    assert breath.piece() == FIRST_ROWS
    assert clock.slept == [LONGEST_PAUSE_NS / 1e9]


def test_a_large_batch_that_was_begun_before_others_came_says_nothing_of_pieces(
    breath: Breath, clock: Working, foreground: Foreground
) -> None:
    foreground.commits = False
    assert breath.piece() == MOST_ROWS
    foreground.commits = True
    clock.computed += PIECE_NS
    breath.draw(read=True)
    assert breath.piece() == FIRST_ROWS


@pytest.mark.parametrize(
    ("factor", "slept_ns"), [(2.0, 6 * PIECE_NS), (0.5, 1.5 * PIECE_NS), (1e6, MOST_RESTS * PIECE_NS)]
)
def test_rests_are_as_long_as_asked_for_within_reason(
    breath: Breath, clock: Working, factor: float, slept_ns: float
) -> None:
    clock.computed += PIECE_NS
    breath.draw(factor)
    assert clock.slept == [pytest.approx(slept_ns / 1e9)]


@pytest.mark.parametrize(
    ("urgency", "target", "times"), [(1.0, None, 1.0), (0.25, None, 1.0), (4.0, None, 0.25), (1.0, 1, 1.5)]
)
def test_a_task_rests_by_its_pace_where_it_has_a_breath(
    clock: Working, foreground: Foreground, urgency: float, target: int | None, times: float
) -> None:
    """Its urgency makes rests shorter, as a latency target makes them longer; leisure is for pauses at the gate."""
    world = world_of(clock, 1)
    task = Backfill(world.store, world.table(), (), job=1, stage=1, claim=(b"", b""), rows=1)
    clock.slept.clear()
    clock.computed += PIECE_NS
    task.rest()
    assert clock.slept == []
    task.breath = Breath(foreground, clock)
    task.pace = Pace()
    task.pace.urgency, task.pace.latency_target_ns = urgency, target
    task.pace.follow(2, clock.monotonic)
    clock.computed += PIECE_NS
    task.rest()
    assert clock.slept == [pytest.approx(times * RESTS * PIECE_NS / 1e9)]


def world_of(clock: Working, rows: int) -> ChangingWorld:
    world = ChangingWorld(clock=clock)
    world.create_t([(number, number * 10, "x") for number in range(rows)])
    return world


def noting(monkeypatch: pytest.MonkeyPatch, during: Callable[[int], object] = lambda rows: None) -> list[int]:
    """How many rows each batch of a backfill has, from now on; `during` is called with that."""
    batches: list[int] = []
    derived = Backfill.entries

    def entries(self, keys, stored):
        batches.append(len(keys))
        during(len(keys))
        return derived(self, keys, stored)

    monkeypatch.setattr(Backfill, "entries", entries)
    return batches


def work(world: ChangingWorld, number: int | None) -> None:
    """A worker does that job."""
    assert number is not None
    worker = Worker(world.store, world.clock)
    while not world.jobs.get(number).is_finished:
        assert worker.turn()
    assert world.jobs.get(number).state is JobState.SUCCEEDED


def test_entries_of_several_pieces_are_put_in_the_order_of_their_keys(
    clock: Working, foreground: Foreground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else those of one page would be put in as many batches as there are pieces with one of them."""
    world = ChangingWorld(clock=clock)
    world.create_t([(number, number * 7919 % 1000, "x") for number in range(1000)])
    world.execute(want.CreateIndex("t", (("a", False),), "i"))
    table = world.table()
    (index,) = (found for found in table.indexes if found.name == "i")
    task = Backfill(world.store, table, [index], job=1, stage=1, claim=(b"", b""), rows=1)
    task.breath = Breath(foreground, clock)
    batches, put = noting(monkeypatch), list[Entry]()

    def steps(entries: list[Entry], _derived: int) -> tuple[()]:
        put.extend(entries)
        return ()

    monkeypatch.setattr(task, "steps", steps)
    ((_, reached),) = task.batches(Checkpoint(task.start, task.stop, task.start, 0))
    assert reached.done
    assert len(batches) > 1
    assert sum(batches) == len(put) == 1000
    assert put == sorted(put)


@pytest.mark.parametrize(("gives_way", "piece"), [(True, LONG_PIECE_NS), (False, PIECE_NS)])
def test_a_worker_that_gives_way_at_once_has_longer_pieces(
    clock: Working, monkeypatch: pytest.MonkeyPatch, gives_way: bool, piece: int
) -> None:
    monkeypatch.setattr(work_module, "gives_way", lambda: gives_way)
    world = world_of(clock, 800)
    batches = noting(monkeypatch, lambda rows: setattr(clock, "computed", clock.computed + rows * PIECE_NS // 100))
    work(world, world.execute(want.CreateIndex("t", (("a", False),), "i")))
    assert batches[1] == min(2 * FIRST_ROWS, 100 * piece // PIECE_NS)


@pytest.mark.parametrize("beside", [True, False])
def test_a_worker_builds_an_index_in_short_pieces_beside_commits_and_in_one_go_else(
    monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    clock = Working()
    world = world_of(clock, 800)

    def during(rows: int) -> None:
        clock.computed += rows * PIECE_NS // 200  # a row takes a 200th of a piece
        if beside:
            writer = Server(world)
            writer.update(rows, b="beside")
            writer.commit()
        else:
            clock.advance(LATELY_NS / 1e9)

    batches = noting(monkeypatch, during)
    number = world.execute(want.CreateIndex("t", (("a", False),), "i"))
    clock.slept.clear()
    work(world, number)
    world.check_index("i")
    # The stage before it was published a moment ago: that was a commit, too.
    assert batches == ([FIRST_ROWS, 200, 200, 200, 72] if beside else [FIRST_ROWS, 672])
    rests = sum(slept >= RESTS * PIECE_NS / 4e9 for slept in clock.slept)
    assert rests >= 4 if beside else rests == 0


def test_rows_count_once_however_many_entries_are_made_of_each(clock: Working, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(clock, 1000)

    def during(rows: int) -> None:
        clock.computed += rows * PIECE_NS // 32

    batches = noting(monkeypatch, during)
    work(
        world,
        world.execute(want.CreateIndex("t", (("a", False),), "i"), want.CreateIndex("t", (("b", False),), "j")),
    )
    assert batches[:3] == [FIRST_ROWS, 32, 32]


@pytest.mark.parametrize("breathes", [True, False])
def test_a_worker_lets_tasks_breathe_that_may(clock: Working, monkeypatch: pytest.MonkeyPatch, breathes: bool) -> None:
    monkeypatch.setattr(Backfill, "breathes", breathes)
    world = world_of(clock, 300)
    batches = noting(monkeypatch)
    work(world, world.execute(want.CreateIndex("t", (("a", False),), "i")))
    assert batches == ([FIRST_ROWS, 172] if breathes else [300])


def test_steps_are_made_one_by_one_with_rests_that_hear_what_the_work_is_told(
    clock: Working, foreground: Foreground
) -> None:
    world = world_of(clock, 1)
    claim = (b"claim", b"held")
    world.store.background([putting(*claim)])
    task = Backfill(world.store, world.table(), (), job=1, stage=1, claim=claim, rows=1)
    task.breath = Breath(foreground, clock)
    told: list[int] = []

    class Enough(Exception):
        pass

    def interrupt() -> None:
        told.append(made)
        if made == 5:
            raise Enough

    task.pace = Pace(interrupt)
    made = 0

    def steps() -> Iterator[Callable[[Section], None]]:
        nonlocal made
        while True:
            clock.computed += PIECE_NS
            made += 1
            yield lambda section: None

    clock.slept.clear()
    begun = Checkpoint(task.start, task.stop, task.start, 0)
    with pytest.raises(Enough):
        task.put(0, steps(), begun, Checkpoint(task.start, task.stop, task.stop, 1, True))
    assert made == 5
    assert set(range(5)) <= set(told)
    assert sum(slept == pytest.approx(RESTS * PIECE_NS / 1e9) for slept in clock.slept) == 5
    with world.store.read() as reader:
        assert reader.get(task.checkpoint_key(0)) is None


@pytest.fixture
def backfill(clock: Working, foreground: Foreground, monkeypatch: pytest.MonkeyPatch) -> Backfill:
    """Of an index over 1,000 rows, two pieces of which take as long as entries are gathered."""
    world = world_of(clock, 1000)
    number = world.execute(want.CreateIndex("t", (("a", False),), "i"), want.CreateIndex("t", (("b", False),), "j"))
    assert number is not None
    table = world.table()
    task = Backfill(world.store, table, table.indexes[-2:], job=1, stage=1, claim=(b"", b""), rows=2000)
    noting(monkeypatch, lambda rows: clock.advance(breath_module.GATHERING_NS / 2e9))
    task.breath = Breath(foreground, clock)
    task.pace = Pace()
    return task


def batches_of(task: Backfill) -> Iterator[Checkpoint]:
    for steps, at in task.batches(Checkpoint(task.start, task.stop, task.start, 0)):
        assert list(steps)
        yield at


def test_entries_of_a_few_pieces_are_put_together(backfill: Backfill) -> None:
    """A pause at the gate follows each commit; and all of them are lost if the work is interrupted before."""
    told: list[int | None] = []
    backfill.pace = Pace(lambda: told.append(backfill.rows_read))
    reached = [at.rows for at in batches_of(backfill)]
    assert reached[0] == 2 * (FIRST_ROWS + 2 * FIRST_ROWS)  # two indexes; the second piece is twice as long
    assert reached[-1] == 2000
    # It is heard between two pieces what the work is told, and what was read is known.
    assert told[:2] == [FIRST_ROWS, 3 * FIRST_ROWS]
    assert told[-1] == 1000


def test_beside_commits_no_more_is_put_together_than_takes_a_second(
    backfill: Backfill, clock: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reorganize, "STEP_ENTRIES", 1)
    before, sizes = 0, []
    for at in batches_of(backfill):
        sizes.append(at.rows - before)
        before = at.rows
        clock.advance(sizes[-1] / 100)
    assert sizes[0] > 200
    assert max(sizes[1:]) <= 200


def test_at_a_rate_few_are_read_and_put_together(backfill: Backfill) -> None:
    assert backfill.pace is not None
    backfill.pace.rows_per_second = 40.0
    before = 0
    for at in batches_of(backfill):
        assert at.rows - before <= 20  # two entries of each of ten rows
        before = at.rows
    assert before == 2000


def putting(key: bytes, value: bytes) -> Callable[[Section], None]:
    def step(section: Section) -> None:
        section.put(key, value)

    return step
