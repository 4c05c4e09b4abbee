"""Propagation over real stores and real commits: killed after any step, it ends with what the operators make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instar import errors
from instar.catalog.descriptors import Repair
from instar.clock import ManualClock
from instar.schemachange.breath import MOST_RESTS, PIECE_NS, RESTS, Breath
from instar.schemachange.online import following as module
from instar.schemachange.online import overlay, redo, transformation
from instar.schemachange.online.changes import Translator
from instar.schemachange.online.following import decode_position
from instar.schemachange.online.overlay import Overlay, Put, ShortReads
from instar.schemachange.online.transformation import OnlineJoin, OnlineSplit, Transformation, rules_of
from instar.schemachange.reorganize import InProcess
from instar.schemachange.stages import Superseded
from instar.schemachange.tasks import AT_LEISURE, IN_BACKGROUND, Step
from instar.store.engine import ClaimLost, Commit, RowsetReplaced, Store, rowset_prefix
from instar.store.memory import MemoryStore
from instar.store.pace import Pace
from instar.transformations.commits import apply_commit
from instar.transformations.records import Row
from schemachange.online.following import CLAIM, at, check, commit, following, image, leftovers, run
from schemachange.online.tables import ENGINES, join_world, split_records, split_world, stored_in
from schemachange.test_breath import Foreground, Working
from support.changes import ChangingWorld
from transformations.histories import R, S, Sources, T, Writes, gone, row
from transformations.test_properties import SPLIT_COMMITS, join_histories

SECOND = 1000 << 20  # of timestamps
KILLS = st.lists(st.integers(1, 12), max_size=12)


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GATHERED_PUTS", 8)
    monkeypatch.setattr(module, "_BATCH_STEPS", 3)
    monkeypatch.setattr(module, "_CHECKED_TOGETHER", 2)
    monkeypatch.setattr(redo, "STEP_PUTS", 6)


def propagate(
    world: ChangingWorld, transformation: Transformation, log: list[Writes], kills: list[int], first: int
) -> None:
    """Commits, an image after the first of them, and propagation that is killed, with commits in between."""
    for writes in log[:first]:
        commit(world, transformation, writes)
    since = world.now()
    image(world.store, transformation, since)
    half = (first + len(log)) // 2
    for writes in log[first:half]:
        commit(world, transformation, writes)
    for steps in kills:
        run(following(world.store, transformation, since), steps)
    for writes in log[half:]:
        commit(world, transformation, writes)
    for steps in kills:
        run(following(world.store, transformation, since), steps)
    task = following(world.store, transformation, since)
    assert run(task)
    assert task.position == decode_position(at(task)) == world.now()
    check(world.store, transformation, task.position)
    assert leftovers(task) == []


def written(sources: Sources) -> list[Writes]:
    return [
        {(change.source, change.key): getattr(change, "after", None) for change in changes} for changes in sources.log
    ]


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=25)
@given(data=st.data(), unique=st.booleans(), merged=st.booleans(), kills=KILLS)
def test_a_join_that_is_killed(engine: str, data: st.DataObject, unique: bool, merged: bool, kills: list[int]) -> None:
    log = written(data.draw(join_histories(unique)))
    with stored_in(engine) as store:
        world = ChangingWorld(store)
        join = join_world(world, unique=unique, merged=merged)
        propagate(world, join, log, kills, data.draw(st.integers(0, len(log))))


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=25)
@given(data=st.data(), kills=KILLS, repair=st.sampled_from(["most frequent", "newest"]))
def test_a_split_that_is_killed(engine: str, data: st.DataObject, kills: list[int], repair: Repair) -> None:
    log = written(Sources(*data.draw(SPLIT_COMMITS)))
    with stored_in(engine) as store:
        world = ChangingWorld(store)
        split = split_world(world, repair)
        log = [{at: nothing_lost(split, row) for at, row in writes.items()} for writes in log]
        propagate(world, split, log, kills, data.draw(st.integers(0, len(log))))


def nothing_lost(split: OnlineSplit, row: Row | None) -> Row | None:
    """A row that has values for S only if it has a split value."""
    shape = split.targets.shape
    if row is None or shape.value(row) is not None:
        return row
    return tuple(None if place in shape.s and place not in shape.r else value for place, value in enumerate(row))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_row_that_would_lose_values_is_told(engine: str) -> None:
    with stored_in(engine) as store:
        world = ChangingWorld(store)
        split = split_world(world)
        width = len(split.source.table.columns)
        since = world.now()
        image(store, split, since)
        commit(world, split, {(T, (1,)): (1, *[None] * (width - 1))})
        assert run(following(store, split, since))
        lost = next(place for place in split.targets.shape.s if place not in split.targets.shape.r)
        commit(world, split, {(T, (2,)): (2, *["v" if place == lost else None for place in range(1, width)])})
        with pytest.raises(errors.Error, match="by which it is split") as refused:
            run(following(store, split, since))
        assert refused.value.sqlstate == errors.NOT_NULL_VIOLATION


@pytest.fixture(params=ENGINES)
def world(request: pytest.FixtureRequest) -> Iterator[ChangingWorld]:
    with stored_in(request.param) as store:
        yield ChangingWorld(store)


MANY_ROWS = range(8)


def moving(store: Store) -> tuple[OnlineJoin, int]:
    """A join, of which the image is made, and one commit since that gives many rows of R another join value."""
    world = ChangingWorld(store)
    join = join_world(world, unique=True, merged=False)
    commit(world, join, {(R, (number,)): (number, "x", 0) for number in MANY_ROWS} | row(S, 1, "x", 0))
    since = world.now()
    image(store, join, since)
    commit(world, join, {(R, (number,)): (number, "z", 0) for number in MANY_ROWS})
    return join, since


@pytest.mark.parametrize("engine", ENGINES)
def test_a_large_commit_is_applied_whole_wherever_it_is_killed(engine: str) -> None:
    killed, steps = True, 0
    while killed:
        with stored_in(engine) as store:
            join, since = moving(store)
            first = following(store, join, since)
            killed = not run(first, steps)
            unfinished = leftovers(first)
            if at(first).position == first.start and len(unfinished) < 3:
                check(store, join, since)  # recorded, at most
            second = following(store, join, since)
            assert run(second)
            check(store, join, second.position)
            assert leftovers(second) == []
        steps += 1
    assert steps > 10


def test_half_of_a_commit_would_lose_rows() -> None:
    """Rule 5 finds nothing on the second try."""
    with stored_in("memory") as store:
        join, since = moving(store)
        overlay = Overlay(ShortReads(store))
        target = join.target(overlay)
        with store.read() as reader:
            changes = Translator(join.sources).changes(store.log(since, reader.timestamp), reader)
        apply_commit(rules_of(target), changes)
        removed = [put for put in overlay.taken() if put[1] is None]
        store.background([redo.putting(removed)])
        task = following(store, join, since)
        assert run(task)
        with pytest.raises(AssertionError):
            check(store, join, task.position)


def test_it_runs_as_any_other_task(world: ChangingWorld) -> None:
    split = split_world(world, "newest")
    commit(world, split, row(T, 1, 5, "x", "A", 0))
    since = world.now()
    image(world.store, split, since)
    commit(world, split, row(T, 2, 5, "x", "B", 0) | gone(T, 1))
    task = following(world.store, split, since)
    with pytest.raises(ClaimLost):
        InProcess().run(task, lambda: None)
    world.store.background([redo.putting([CLAIM])])
    task.pace = Pace()
    InProcess().run(task, lambda: None)
    check(world.store, split, task.position)
    assert (at(task).rows, task.pace.rows, at(task).done) == (2, 2, False)
    assert task.doing == "cycle 1: 1 commits applied"
    commit(world, split, row(T, 3, 5, "z", "B", 0))
    InProcess().run(task, lambda: None)  # to catch up once more
    check(world.store, split, world.now())
    assert at(task).rows == 3


def test_another_cycle_follows_if_much_has_come(world: ChangingWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    split = split_world(world, pause_rows=2)
    since = world.now()
    commit(world, split, row(T, 1, 5, "x", "A", 0))
    task = following(world.store, split, since)
    told = task._tell
    written = iter([6, 5, 1, 0])

    def tell(*, checking: bool = False) -> None:
        told(checking=checking)
        if not checking:
            return
        for number in range(next(written)):
            commit(world, split, row(T, 100 + number, world.now() % 1000, f"z{number}", "A", 0))

    monkeypatch.setattr(task, "_tell", tell)
    assert run(task)
    assert task._cycle.number == 3
    assert task.fan_out > 1
    assert task.rows_left() == task.fan_out
    assert run(task)
    assert task.rows_left() == 0
    check(world.store, split, world.now())


def test_a_cycle_is_told_of_from_its_beginning(world: ChangingWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where little may be put in a second, its first batch takes long, and what came before it is long over."""
    split = split_world(world, pause_rows=1)
    since = world.now()
    commit(world, split, row(T, 1, 1, "z", "A", 0))
    world.store.background([redo.putting([CLAIM])])
    task = following(world.store, split, since)
    told: list[str] = []
    propagated = task._propagated

    def noted(upto: int) -> Iterator[module.Batch]:
        told.append(task.doing)
        return propagated(upto)

    monkeypatch.setattr(task, "_propagated", noted)
    InProcess().run(task, lambda: None)
    assert told[0] == "cycle 1: reading the log"


def test_its_share_is_how_much_of_the_time_is_caught_up_with(world: ChangingWorld) -> None:
    split = split_world(world, pause_rows=1)
    since = world.now()
    for number in range(100):
        commit(world, split, row(T, number, number, "z", "A", 0))
    world.store.background([redo.putting([CLAIM])])
    task, shares = following(world.store, split, since), []

    def tick() -> None:
        shares.append(task.passed(()))

    tick()
    InProcess().run(task, tick)
    assert shares[0] == (0, 0.0)
    assert shares[-1] == (100, 1.0)
    assert shares == sorted(shares)


def test_a_large_commit_feels_the_pulse_while_it_is_computed(
    world: ChangingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlay, "READ_SECONDS", 0)
    monkeypatch.setattr(module, "_LOG_RECORDS", 5)
    split = split_world(world)
    since = world.now()
    commit(world, split, {(T, (number,)): (number, 5, "x", "A", 0) for number in range(20)})
    world.store.background([redo.putting([CLAIM])])
    pulses = 0

    def pulse() -> None:
        nonlocal pulses
        pulses += 1

    InProcess().run(following(world.store, split, since), pulse)
    assert pulses > 20
    check(world.store, split, world.now())


def test_contradictions_end_a_split_that_is_not_to_repair_them(world: ChangingWorld) -> None:
    split = split_world(world)
    commit(world, split, row(T, 1, 5, "x", "A", 0) | row(T, 2, 5, "x", "B", 0))
    since = world.now()
    image(world.store, split, since)
    with pytest.raises(errors.Error, match="contradict") as caught:
        run(following(world.store, split, since))
    assert caught.value.sqlstate == errors.UNIQUE_VIOLATION
    commit(world, split, row(T, 1, 5, "x", "B", 0))
    assert run(following(world.store, split, since))
    check(world.store, split, world.now())


def test_all_contradictions_are_counted_and_some_are_told(world: ChangingWorld) -> None:
    split = split_world(world)
    for number in range(12):
        one, other = f"v{number:02}", number + 100
        commit(world, split, row(T, number, 5, one, "A", 0) | row(T, other, 5, one, "B", 0))
    since = world.now()
    image(world.store, split, since)
    task = following(world.store, split, since)
    for count, more in ((12, " And 2 more."), (11, " And 1 more."), (10, "")):
        with pytest.raises(errors.Error, match=f"with each of {count} values of ") as caught:
            run(task)
        detail = caught.value.detail
        assert detail is not None
        assert detail.count(" in 1 row, such as ") == 20
        assert detail.endswith(f"=(109).{more}")
        commit(world, split, gone(T, count - 1) | gone(T, count + 99))


def test_what_was_repaired_is_told(world: ChangingWorld) -> None:
    split = split_world(world, "most frequent")
    commit(world, split, row(T, 1, 5, "x", "A", 0) | row(T, 2, 5, "x", "B", 0) | row(T, 3, 5, "x", "B", 0))
    since = world.now()
    image(world.store, split, since)
    task = following(world.store, split, since)
    assert run(task)
    assert task.contradictions is not None
    told = task.contradictions.told()
    assert "contradicted each other, and the most frequent were taken: " in told
    assert "B, 0) in 2 rows, such as " in told
    assert told.index("B, 0)") < told.index(", is taken; ") < told.index("A, 0)")
    commit(world, split, row(T, 1, 5, "x", "B", 0))
    assert run(task)
    assert task.contradictions.told() == ""


def test_of_rows_that_contradict_each_other_another_may_be_chosen_when_one_goes(world: ChangingWorld) -> None:
    split = split_world(world, "newest")
    commit(world, split, row(T, 1, 5, "x", "A", 0))
    commit(world, split, row(T, 2, 5, "x", "B", 0))
    since = world.now()
    image(world.store, split, since)
    task = following(world.store, split, since)
    for writes, city in (({}, "B"), (gone(T, 2), "A"), (row(T, 3, 5, "x", "C", 0), "C")):
        commit(world, split, writes)
        assert run(task)
        check(world.store, split, world.now())
        with world.store.read() as reader:
            assert split_records(split, reader)[1]["x",].values == ("x", city, 0)


@pytest.mark.parametrize("kind", ["split", "join", "many-to-many"])
def test_the_rules_read_the_log_and_the_targets_and_no_source(
    world: ChangingWorld, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """EDBT 2006, §3.3: self-maintainable. Only the checker reads a source, at the position."""
    made: Transformation = split_world(world, "newest") if kind == "split" else join_world(
        world, unique=kind == "join", merged=False
    )  # fmt: skip
    writes = (
        [row(T, 1, 5, "x", "A", 0), row(T, 2, 5, "x", "A", 0), row(T, 1, 6, "y", "B", 1), gone(T, 2)]
        if kind == "split"
        else [row(R, 1, "x", 0), row(S, 1, "x", 0), row(R, 2, "x", 0), row(S, 1, "z", 1), row(R, 1, "z", 2), gone(R, 2)]
    )
    since = world.now()
    image(world.store, made, since)
    for each in writes:
        commit(world, made, each)
    of_sources = tuple(
        rowset_prefix(number)
        for rows in made.sources
        for number in (rows.table.rowset, *(index.rowset for index in rows.table.indexes))
    )
    get, scan = ShortReads.get, ShortReads.scan
    read = 0

    def seen(key: bytes) -> bytes:
        nonlocal read
        read += 1
        assert not key.startswith(of_sources)
        return key

    monkeypatch.setattr(ShortReads, "get", lambda self, key: get(self, seen(key)))
    monkeypatch.setattr(ShortReads, "scan", lambda self, start, stop: scan(self, seen(start), stop))
    assert run(following(world.store, made, since))
    assert read > 0
    monkeypatch.undo()
    check(world.store, made, world.now())


def test_other_rows_altogether(world: ChangingWorld) -> None:
    split = split_world(world)
    since = world.now()
    source = split.source.table
    world.store.commit(Commit(catalog_version=0, replaced=[RowsetReplaced(source.id, source.version, 1, 2)]))
    with pytest.raises(Superseded):
        run(following(world.store, split, since))


def test_log_that_is_cut(world: ChangingWorld) -> None:
    split = split_world(world)
    since = world.now()
    commit(world, split, row(T, 1, 5, "x", "A", 0))
    world.store.collect(world.now(), lambda record: [])
    with pytest.raises(errors.Error) as caught:
        run(following(world.store, split, since))
    assert caught.value.sqlstate == errors.SNAPSHOT_TOO_OLD


def test_what_follows_a_cycle_is_kept(world: ChangingWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    task = following(world.store, split_world(world), world.now())
    most = task.transformation.made.pause_rows
    left, late = iter((most + 1.0, most + 1.0, 3.0)), iter((False, False, True, False, False, False))
    kept: list[str] = []
    decide = task._decide

    def decided(left: float, follows: str) -> None:
        decide(left, follows)
        kept.append(task.analysis)

    monkeypatch.setattr(task, "rows_left", lambda: next(left))
    monkeypatch.setattr(module._Cycle, "is_late", lambda _cycle, _position: next(late))
    monkeypatch.setattr(task, "_decide", decided)
    assert run(task)
    assert [told.partition("the switch may write ")[2] for told in kept] == [
        f"{most:,} target rows, more were left: another cycle",
        f"{most:,} target rows, more were left: another cycle, with pauses 2 times shorter for that",
        f"{most:,} target rows, about 3 were left: synchronization",
    ]
    # Pauses stay so short until the switch: with longer ones again, as much as before would come until it is tried.
    assert task.urgency == 2 * AT_LEISURE


def test_short_cycles_that_leave_too_much_have_shorter_pauses(
    world: ChangingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes so little time that nobody can say who is faster, and still leaves more than the switch may write."""
    task = following(world.store, split_world(world), world.now())
    task.pace = Pace()
    most, count = task.transformation.made.pause_rows, module._SHORT_CYCLES
    left, urgency = iter([most + 1.0] * (2 * count + 1) + [0.0]), list[float]()

    def rows_left() -> float:
        urgency.append(task.urgency / AT_LEISURE)
        return next(left)

    monkeypatch.setattr(task, "rows_left", rows_left)
    assert run(task)
    assert urgency == [1.0] * count + [2.0] * count + [4.0] * 2
    assert task.pace.urgency == task.urgency


class _Timed:
    """A following whose clock is the test's, in the middle of a cycle that applies what was written in ten seconds."""

    def __init__(self, world: ChangingWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(module, "monotonic", lambda: self.now)
        self.task = following(world.store, split_world(world), world.now())
        self.task.pace = Pace()
        self.task._cycle = module._Cycle(1, 0, 10 * SECOND)

    def pressed(self, *, seconds: int, checking: bool = False) -> list[tuple[float, float]]:
        """When pauses got shorter in the next seconds, and how many times as short as at first they are then."""
        changes = []
        for _ in range(seconds):
            self.now += 1
            before = self.task.urgency
            self.task._tell(checking=checking)
            if self.task.urgency != before:
                changes.append((self.now, self.task.urgency / AT_LEISURE))
        assert self.task.pace is not None
        assert self.task.pace.urgency in (self.task.urgency, 1.0)
        return changes


@pytest.fixture
def timed(world: ChangingWorld, monkeypatch: pytest.MonkeyPatch) -> _Timed:
    return _Timed(world, monkeypatch)


def test_a_cycle_that_takes_too_long_has_shorter_pauses_from_then_on(timed: _Timed) -> None:
    """More than seven seconds are too many for what was written in ten."""
    assert timed.pressed(seconds=120) == [(7, 2), (14, 4), (28, 8), (56, 16), (112, 32)]
    timed.task._cycle = module._Cycle(2, 0, SECOND // 2, module._Cycle(1, 0, 0))
    assert timed.pressed(seconds=100) == []  # what was written in so short a time says nothing


@pytest.mark.parametrize(
    ("seconds", "expected", "later"),
    [(29, [(7, 2), (14, 4), (28, 8)], (56, 16)), (31, [(5, 2), (10, 4), (20, 8)], (40, 16))],
)
def test_how_far_it_has_come_tells_sooner(
    timed: _Timed,
    monkeypatch: pytest.MonkeyPatch,
    seconds: int,
    expected: list[tuple[float, float]],
    later: tuple[float, float],
) -> None:
    """If it would take more than three times as long as what it applies was written in, by how far it has come since it
    began, or since pauses became shorter: as short as other work's, and no shorter by that."""
    position = property(lambda _task: int(timed.now * 10 * SECOND / seconds))
    monkeypatch.setattr(module.Following, "position", position)
    assert timed.pressed(seconds=seconds - 1) == expected
    assert timed.pressed(seconds=40) == [later]  # what follows is no log
    timed.now = 20 * seconds
    timed.task._cycle = module._Cycle(2, timed.task.position, timed.task.position + 10 * SECOND, timed.task._cycle)
    assert timed.pressed(seconds=4) == []


def test_a_cycle_that_was_far_behind_once_has_its_time(timed: _Timed, monkeypatch: pytest.MonkeyPatch) -> None:
    timed.task._cycle = module._Cycle(1, 0, 100 * SECOND)
    monkeypatch.setattr(module.Following, "position", property(lambda _task: (timed.now > 5) * 50 * SECOND))
    assert timed.pressed(seconds=75) == [(5, 2), (70, 4)]


def test_what_came_into_doubt_at_once_is_checked_at_leisure_once(timed: _Timed) -> None:
    """A cycle that takes too long by its checks has shorter pauses only if the one before took too long, too."""
    assert timed.pressed(seconds=60, checking=True) == []
    timed.task._cycle = module._Cycle(2, 0, 10 * SECOND, timed.task._cycle)
    assert timed.pressed(seconds=60, checking=True) == [(102, 2)]
    timed.task._cycle = module._Cycle(3, 0, 10 * SECOND, module._Cycle(2, 0, 10 * SECOND))
    assert timed.pressed(seconds=60, checking=True) == []


def test_a_process_that_stood_still_is_not_behind_for_each_of_its_looks(timed: _Timed) -> None:
    timed.now = 60
    assert timed.pressed(seconds=60) == [(61, 2)]


def test_a_wall_clock_that_is_set_back_does_not_hide_that_it_falls_behind(timed: _Timed) -> None:
    timed.now = 20
    timed.task._cycle = module._Cycle(2, SECOND, SECOND + 5, timed.task._cycle)
    assert timed.pressed(seconds=20) == [(34, 2)]


def test_what_an_operator_allows_is_not_to_be_made_up_for_by_shorter_pauses(timed: _Timed) -> None:
    pace = timed.task.pace
    assert pace is not None
    pace.rows_per_second = 10
    pace.rows = 100
    assert pace.owed(0) > 0
    assert pace.is_limited
    assert timed.pressed(seconds=60) == []
    pace.yields = True  # nor is it the priority that keeps them from that
    assert timed.pressed(seconds=60) == [(61, 0.5)]
    assert "pauses" not in timed.task.doing


def test_below_priority_0_pauses_are_and_stay_twice_as_long_and_it_is_said_so(timed: _Timed) -> None:
    pace, said = timed.task.pace, "; pauses are not made shorter for that, as the priority is below 0"
    assert pace is not None
    pace.yields = True
    assert timed.pressed(seconds=6) == [(1, 0.5)]
    assert said not in timed.task.doing
    assert timed.pressed(seconds=60) == []
    assert timed.task.doing.endswith(said)
    pace.yields = False
    assert timed.pressed(seconds=60) == [(67, 1), (112, 2)]
    assert timed.task.doing.endswith("; pauses are 2 times shorter for that")
    pace.yields = True
    timed.task._tell()
    assert timed.task.urgency == pace.urgency == IN_BACKGROUND
    assert "pauses" not in timed.task.doing  # it is as fast as it has to be by now, as far as is known
    assert timed.pressed(seconds=120) == []
    assert timed.task.doing.endswith(said)
    timed.task._decide(0, f"another cycle{timed.task._pauses()}")
    assert timed.task.analysis.endswith(
        ": another cycle, with pauses not made shorter for that, as the priority is below 0"
    )


def test_a_priority_holds_at_once_though_much_is_to_be_put(
    world: ChangingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is computed meanwhile, after which pauses would be judged."""
    monkeypatch.setattr(module, "_GATHERED_PUTS", 1000)
    monkeypatch.setattr(redo, "STEP_PUTS", 1)
    split, since = split_world(world), world.now()
    for number in range(20):
        commit(world, split, row(T, number, number // 2, "v", "town", 0))
    task = following(world.store, split, since)
    task.pace = pace = Pace()
    world.store.background([redo.putting([CLAIM])])
    seen = []
    for steps, _ in task.batches(task.at):
        for step in steps:
            pace.yields = not pace.yields
            task.heed()
            seen.append((pace.yields, task.urgency, pace.urgency))
            world.store.background([step])
    assert len(seen) > 40
    assert set(seen) == {(True, IN_BACKGROUND, IN_BACKGROUND), (False, AT_LEISURE, AT_LEISURE)}
    task.urgency = pace.urgency = 16.0
    pace.yields = False
    task.heed()
    assert task.urgency == pace.urgency == 16.0
    pace.yields = True
    task.heed()
    assert task.urgency == pace.urgency == IN_BACKGROUND


def test_what_has_come_while_much_is_put_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a low rate it takes minutes, in which nothing is computed."""
    monkeypatch.setattr(module, "_GATHERED_PUTS", 1000)
    monkeypatch.setattr(redo, "STEP_PUTS", 1)
    clock = ManualClock()
    world = ChangingWorld(MemoryStore(clock=clock))
    split, since = split_world(world), world.now()

    def write(key: int) -> None:
        clock.advance(0.01)
        commit(world, split, row(T, key, 1, "v", "town", 0))

    for number in range(20):
        write(number)
    task = following(world.store, split, since)
    world.store.background([redo.putting([CLAIM])])
    batches = task.batches(task.at)
    behind = []
    for number, step in enumerate(next(batches)[0]):
        task.heed()
        behind.append(int(task.doing.removeprefix("cycle 1: 20 commits applied, about ").removesuffix(" behind")))
        world.store.background([step])
        write(100 + number)
    assert behind == list(range(len(behind)))
    assert len(behind) > 2
    task.doing = "something else"
    task.heed()
    assert task.doing != "something else"
    del batches  # it is given up
    task.doing = "something else"
    task.heed()  # it does not apply anything now
    assert task.doing == "something else"


def test_what_has_caught_up_below_priority_0_is_not_said_to_be_behind(
    world: ChangingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = following(world.store, split_world(world), world.now())
    task.pace = Pace()
    task.pace.yields = True
    left = iter((task.transformation.made.pause_rows + 1.0, 0.0))
    analyses: list[str] = []
    decide = task._decide

    def decided(left: float, follows: str) -> None:
        decide(left, follows)
        analyses.append(follows)

    monkeypatch.setattr(task, "rows_left", lambda: next(left))
    monkeypatch.setattr(module._Cycle, "is_late", lambda _cycle, _position: True)
    monkeypatch.setattr(task, "_decide", decided)
    assert run(task)
    assert analyses == [
        "another cycle, with pauses not made shorter for that, as the priority is below 0", "synchronization",
    ]  # fmt: skip
    assert task._pauses() == ""
    assert task.urgency == IN_BACKGROUND


def test_checks_of_what_was_in_doubt_before_do_not_count(world: ChangingWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody writes; records that were repaired are in doubt for good, and who begins anew checks them all."""
    split = split_world(world, "newest")
    since = world.now()
    for number in range(100):
        commit(world, split, row(T, number, number // 2, "x", f"town {number}", 0))
    assert run(following(world.store, split, since))
    now, check_all = 0.0, module.check_all

    def slowly(*given: Any) -> Iterator[None]:
        nonlocal now
        for found in check_all(*given):
            now += 20.0
            yield found

    monkeypatch.setattr(module, "monotonic", lambda: now)
    monkeypatch.setattr(module, "check_all", slowly)
    monkeypatch.setattr(module, "_CHECKED", 1)
    monkeypatch.setattr(module, "_CHECKED_TOGETHER", 1)
    task = following(world.store, split, since)
    monkeypatch.setattr(task, "_newest", lambda: task.position + 10 * SECOND)
    assert run(task)
    assert now >= 20
    assert task.urgency == AT_LEISURE
    assert "as long as the sources took" not in task.analysis


@pytest.mark.parametrize(("few", "haste", "rests"), [(9, 1, True), (10, 1, False), (9, 2, True)])
def test_it_rests_while_it_checks_many(
    world: ChangingWorld, monkeypatch: pytest.MonkeyPatch, few: int, haste: int, rests: bool
) -> None:
    split = split_world(world, "newest")
    since = world.now()
    for number in range(20):
        commit(world, split, row(T, number, number // 2, f"v{number // 2}", f"town {number}", 0))
    clock, check_all, checked = Working(), module.check_all, 0

    def slowly(*given: Any) -> Iterator[None]:
        nonlocal checked
        assert clock.slept == []
        for found in check_all(*given):
            checked += 1
            clock.computed += PIECE_NS
            yield found
            assert len(clock.slept) == (checked if rests else 0)
            assert not rests or task._reads._reader is None  # as it was during the rest

    def applied(*given: Any) -> None:
        clock.computed += PIECE_NS
        apply(*given)

    apply = transformation.apply
    monkeypatch.setattr(module, "check_all", slowly)
    monkeypatch.setattr(transformation, "apply", applied)
    monkeypatch.setattr(module, "_CHECKED_AT_ONCE", few)
    monkeypatch.setattr(module, "_CHECKED_TOGETHER", 1)
    task = following(world.store, split, since)
    assert task.breathes
    task.urgency *= haste
    task.breath = Breath(Foreground(), clock)
    world.store.background([redo.putting([CLAIM])])
    InProcess().run(task, lambda: None)
    assert checked == 10
    # The first rest is from what was computed before, too.
    rest = module._CHECK_RESTS * RESTS * PIECE_NS / 1e9 / haste
    assert clock.slept[1:] == [pytest.approx(rest)] * (9 if rests else 0)


@pytest.mark.parametrize("haste", [1, 4])
def test_it_rests_while_it_computes(world: ChangingWorld, monkeypatch: pytest.MonkeyPatch, haste: int) -> None:
    """From two changes that come to two rows each; as much shorter as its pauses are."""
    split = split_world(world)
    since = world.now()
    for number in range(20):
        commit(world, split, row(T, number, 5, f"v{number}", "town", 0))
    clock = Working()
    monkeypatch.setattr(module, "_BREATHING_ROWS", 2)
    monkeypatch.setattr(module, "_GATHERED_PUTS", 1000)
    apply = transformation.apply

    def applied(*given: Any) -> None:
        clock.computed += PIECE_NS // 2
        apply(*given)

    monkeypatch.setattr(transformation, "apply", applied)
    task = following(world.store, split, since)
    task.urgency *= haste
    task.breath = Breath(Foreground(), clock)
    world.store.background([redo.putting([CLAIM])])
    InProcess().run(task, lambda: None)
    assert clock.slept == [pytest.approx(2.5 * RESTS * PIECE_NS / 1e9 / haste)] * 10
    check(world.store, split, world.now())


@pytest.mark.parametrize(
    ("urgency", "latency", "expected"),
    [
        (IN_BACKGROUND, None, 2), (AT_LEISURE, None, 1), (1.0, None, 1 / 4), (16.0, None, 1 / 64),
        (AT_LEISURE, 1, 2), (1.0, 1, 2 / 4), (16.0, 1, 2 / 64),
    ],
)  # fmt: skip
def test_rests_shrink_as_pauses_do(world: ChangingWorld, urgency: float, latency: int | None, expected: float) -> None:
    """Or grow, where a latency target is missed: by what pauses are longer for that."""
    task = following(world.store, split_world(world), world.now())
    clock, task.pace = Working(), Pace()
    task.breath = Breath(Foreground(), clock)
    task.urgency = task.pace.urgency = urgency
    task.pace.latency_target_ns = latency
    task.pace.factor = 2.0 if latency else 1 / urgency
    clock.computed += PIECE_NS
    task._breathe()
    assert clock.slept == [pytest.approx(expected * 2.5 * RESTS * PIECE_NS / 1e9)]


@pytest.mark.parametrize(("urgency", "times"), [(16.0, 1), (AT_LEISURE, 1), (IN_BACKGROUND, 2)])
def test_the_longest_rests_are_longer_in_the_background(world: ChangingWorld, urgency: float, times: int) -> None:
    task = following(world.store, split_world(world), world.now())
    clock = Working()
    task.breath = Breath(Foreground(), clock)
    task.urgency = urgency
    clock.computed += PIECE_NS
    task._breathe(1e6)
    assert clock.slept == [pytest.approx(times * MOST_RESTS * PIECE_NS / 1e9)]


@pytest.mark.parametrize(("most", "bytes_", "expected"), [(8, 1 << 20, 3), (1000, 1 << 20, 1), (1000, 250, 10)])
def test_rows_that_change_again_and_again_are_put_all_the_same(
    world: ChangingWorld, monkeypatch: pytest.MonkeyPatch, most: int, bytes_: int, expected: int
) -> None:
    """After so many changes, or when so much has been written: the position moves, and memory is bounded."""
    monkeypatch.setattr(module, "_BREATHING_ROWS", 1)
    monkeypatch.setattr(module, "_GATHERED_PUTS", most)
    monkeypatch.setattr(module, "_GATHERED_BYTES", bytes_)
    split = split_world(world)
    commit(world, split, row(T, 1, 5, "v", "town", 0))
    since = world.now()
    image(world.store, split, since)
    for number in range(20):
        commit(world, split, row(T, 1, number % 5, "v", "town", number))
    task = following(world.store, split, since)
    positions = []
    gathered = task._gathered

    def noted(changes: int) -> list[Step]:
        positions.append(changes)
        return gathered(changes)

    monkeypatch.setattr(task, "_gathered", noted)
    assert run(task)
    assert sum(positions) == 20
    assert sum(1 for changes in positions if changes) == expected
    check(world.store, split, task.position)


def test_steps_are_bounded_by_puts_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redo, "STEP_BYTES", 100)
    puts: list[Put] = [(bytes([number]), b"x" * size) for number, size in enumerate((40, 40, 40, 300, 1, 1))]
    pieces = redo.cut(puts)
    assert [[len(value or b"") for _, value in piece] for piece in pieces] == [[40, 40], [40], [300], [1, 1]]
    assert [put for piece in pieces for put in piece] == puts
    assert [redo.is_step(piece) for piece in pieces] == [True] * 4
    assert not redo.is_step(puts[:3])
    assert [len(piece) for piece in redo.cut([(b"k", None)] * 13)] == [6, 6, 1]
    assert redo.cut([]) == []


def test_a_commit_of_more_steps_than_there_are_numbers(world: ChangingWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """They share records, and come to the same, whenever they are interrupted."""
    monkeypatch.setattr(redo, "RANGES_PER_WORK", 5)  # three records of chunks
    split = split_world(world)
    since = world.now()
    commit(world, split, {place: put for number in range(12) for place, put in row(T, number, 5, "v", "A", 0).items()})
    steps = 0
    while not run(following(world.store, split, since), steps):
        steps += 1
    assert leftovers(following(world.store, split, since)) == []
    check(world.store, split, world.now())


def test_what_many_commits_put_is_put_in_the_order_of_its_keys(
    world: ChangingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until so much is gathered, or so much as an operator allows in a moment; a large commit is not torn apart."""
    monkeypatch.setattr(module, "_BREATHING_ROWS", 1)
    split = split_world(world)
    since = world.now()
    for number in (5, 3, 9, 1, 7):
        commit(world, split, row(T, number, 5, f"v{number}", "town", 0))
    task = following(world.store, split, since)
    gathered: list[list[Put]] = []
    taken = task._overlay.taken

    def noted() -> list[Put]:
        gathered.append(taken())
        return gathered[-1]

    task._overlay.taken = noted  # type: ignore[method-assign]
    assert run(task)
    assert [len(puts) for puts in gathered if puts] == [10, 10, 5]  # five for each commit: eight are enough
    assert all(puts == sorted(puts) for puts in gathered)
    for number in (4, 2):
        commit(world, split, row(T, number, 5, f"v{number}", "town", 0))
    gathered.clear()
    monkeypatch.setattr(module, "_BREATHING_ROWS", 256)
    task.pace = Pace()
    task.pace.rows_per_second = 4
    assert run(task)
    assert [len(puts) for puts in gathered if puts] == [5, 5]
    check(world.store, split, world.now())


def test_what_it_is_at_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(module, "monotonic", lambda: now)
    one = module._Cycle(1, 0, SECOND // 2)
    one.commits = 1200
    assert one.told(4 * SECOND, 5 * SECOND) == "cycle 1: 1,200 commits applied, about 300 behind"
    now = 2.0
    one.end()
    assert one.ended() == "cycle 1: 0 changes in 1,200 commits applied in 2.00 s"
    two = module._Cycle(2, 4 * SECOND, 6 * SECOND, one)
    now = 5.0
    assert two.told(4 * SECOND, 5 * SECOND) == "cycle 2: 0 commits applied"
    two.changes = 6000
    two.end()
    assert two.ended() == "cycle 2: 6,000 changes in 0 commits applied in 3.00 s, 1.5 times as long as the sources took"
    three = module._Cycle(3, 6 * SECOND, 8 * SECOND, two)
    behind = "cycle 3: 0 commits applied; the sources are written 1.5 times as fast as their changes are applied"
    needed = ", for which max_rows_per_second has to be more than 3,000"
    assert three.told(5 * SECOND, 5 * SECOND) == behind
    assert three.told(5 * SECOND, 5 * SECOND, limit=4000) == behind
    assert three.told(5 * SECOND, 5 * SECOND, limit=2000) == behind + needed


def test_a_long_cycle_tells_itself_how_fast_the_sources_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one, too; not before it has taken some seconds, nor by what was written in less than a second."""
    now = 0.0
    monkeypatch.setattr(module, "monotonic", lambda: now)
    cycle = module._Cycle(1, 0, 100 * SECOND)
    cycle.commits, cycle.changes = 50, 8000
    told = "cycle 1: 50 commits applied, about 0 behind; the sources are written "
    needed = ", for which max_rows_per_second has to be more than "
    now = 4.9
    assert "written" not in cycle.told(2 * SECOND, 2 * SECOND)
    now = 6.0
    assert "written" not in cycle.told(SECOND * 9 // 10, SECOND)
    fast = "times as fast as their changes are applied"
    assert cycle.told(2 * SECOND, 2 * SECOND, limit=3000) == f"{told}3.0 {fast}{needed}4,000"
    assert cycle.told(4 * SECOND, 4 * SECOND, limit=3000) == f"{told}1.5 {fast}"  # of 2,000 a second
    assert "written" not in cycle.told(8 * SECOND, 8 * SECOND, limit=3000)
    now = 150.0
    cycle.end()
    now = 400.0  # what is checked now may have come into doubt long before
    assert cycle.told(100 * SECOND, 100 * SECOND) == f"{told}1.5 {fast}"
    # The clock that timestamps go by may be set: what the next cycle applies was written while this one went on.
    second = module._Cycle(2, 100 * SECOND, 9_000 * SECOND, cycle)
    now = 600.0
    assert second.told(4_550 * SECOND, 4_550 * SECOND).endswith(f"written 1.0 {fast}")
