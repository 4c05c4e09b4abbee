"""The lock table, on both engines: modes, owners and their ends, waiting, deadlocks, and commits that meet locks."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from instar.errors import Error
from instar.store import MemoryStore, open_store
from instar.store.engine import (
    ROW_HEADER,
    KeyExists,
    RangeEmpty,
    RowCommit,
    Section,
    StaleRow,
    Store,
    View,
    prefix_end,
)
from instar.store.lmdb_locks import LOCKS_FILE
from instar.store.lock_modes import CONFLICTS, ROW_MODES, SCHEMA_MODES, Mode
from instar.store.lock_table import _RESOURCE, _RESOURCES_END, Deadlock, Locked, LockTable
from instar.store.row_locks import part_of
from store.building import INDEX, TABLE, change, contents, ended, in_child, queued, request, row_key

MODES = list(Mode)

# As MD-MVCC has it (table 1): N is no conflict, C is one; "other modes" are those of rows.
TABLE_1 = """
             SCH-A  SCH-S  other  SCH-C  SCH-M
SCH-A        N      N      N      N      C
SCH-S        N      N      N      C      C
other        N      N      -      C      C
SCH-C        N      C      C      C      C
SCH-M        C      C      C      C      C
"""
# As PostgreSQL's manual has it (table 13.3).
CONFLICTING = {
    (Mode.KEY_SHARE, Mode.UPDATE),
    (Mode.SHARE, Mode.NO_KEY_UPDATE),
    (Mode.SHARE, Mode.UPDATE),
    (Mode.NO_KEY_UPDATE, Mode.NO_KEY_UPDATE),
    (Mode.NO_KEY_UPDATE, Mode.UPDATE),
    (Mode.UPDATE, Mode.UPDATE),
}


def conflict(one: Mode, other: Mode) -> bool:
    if one in ROW_MODES and other in ROW_MODES:
        return (one, other) in CONFLICTING or (other, one) in CONFLICTING
    columns, *lines = [line.split() for line in TABLE_1.strip().splitlines()]
    cells = {line[0]: dict(zip(columns, line[1:], strict=True)) for line in lines}
    row, column = ("other" if mode in ROW_MODES else mode.shown for mode in (one, other))
    return cells[row][column] == "C"


def meets(store: Store, owner: bytes, resource: bytes, mode: Mode) -> tuple[bytes, ...]:
    """Who is in the way of a lock; nobody: it is held then."""
    try:
        store.lock(owner, [(resource, mode)])
    except Locked as met:
        return met.holders
    return ()


def owners(store: Store, number: int) -> list[bytes]:
    return [store.locks.new_owner() for _ in range(number)]


def records(table: LockTable) -> int:
    """How many resources have a record, be it of the dead."""
    with table._reading() as found:
        return len(found.batch(_RESOURCE, _RESOURCES_END, 1 << 20)[0])


# Modes.


@pytest.mark.parametrize(("held", "wanted"), list(product(MODES, MODES)))
def test_the_matrix_of_modes(store: Store, held: Mode, wanted: Mode) -> None:
    """Every cell, from both sides, for an owner that waits and for a commit."""
    one, two = owners(store, 2)
    assert meets(store, one, b"a", held) == ()
    assert meets(store, two, b"a", wanted) == ((one,) if conflict(held, wanted) else ())
    assert meets(store, two, b"b", wanted) == ()
    assert meets(store, one, b"b", held) == ((two,) if conflict(held, wanted) else ())


def test_conflicts_are_mutual() -> None:
    for one, other in product(MODES, MODES):
        assert bool(CONFLICTS[one] & 1 << other) == bool(CONFLICTS[other] & 1 << one) == conflict(one, other)


@pytest.mark.parametrize(("first", "second"), list(product(MODES, MODES)))
def test_an_owner_is_never_in_its_own_way(store: Store, first: Mode, second: Mode) -> None:
    """It holds all the modes it ever asked for: another meets the strongest."""
    one, two = owners(store, 2)
    assert meets(store, one, b"a", first) == meets(store, one, b"a", second) == ()
    for mode in MODES:
        assert meets(store, two, b"a", mode) == ((one,) if conflict(first, mode) or conflict(second, mode) else ())
        store.locks.end(two)


def test_all_who_are_in_the_way_are_named(store: Store) -> None:
    one, two, three, four = owners(store, 4)
    for sharing in (one, two, three):
        assert meets(store, sharing, b"a", Mode.SHARE) == ()
    assert set(meets(store, four, b"a", Mode.UPDATE)) == {one, two, three}
    assert set(meets(store, two, b"a", Mode.UPDATE)) == {one, three}
    assert meets(store, four, b"a", Mode.KEY_SHARE) == ()


def test_modes_are_shown_as_sql_and_the_paper_say_them() -> None:
    assert [mode.shown for mode in MODES] == [
        "KEY SHARE", "SHARE", "NO KEY UPDATE", "UPDATE", "SCH-A", "SCH-S", "SCH-C", "SCH-M",
    ]  # fmt: skip


@pytest.mark.parametrize(("held", "wanted"), list(product(SCHEMA_MODES, SCHEMA_MODES)))
def test_a_commit_meets_schema_locks_by_the_matrix(store: Store, held: Mode, wanted: Mode) -> None:
    one, two = owners(store, 2)
    store.lock(one, [(b"a", held)])
    for owner, met in ((two, conflict(held, wanted)), (b"", conflict(held, wanted)), (one, False)):
        commit = request(store, {1: b"a"})
        commit.owner, commit.schema = owner, [(b"a", wanted)]
        if met:
            with pytest.raises(Locked) as caught:
                store.commit(commit)
            assert (caught.value.resource, caught.value.mode, caught.value.holders) == (b"a", wanted, (one,))
        else:
            store.commit(commit)
    store.locks.end(one)
    commit = request(store, {1: b"b"})
    commit.schema = [(b"a", wanted)]
    store.commit(commit)


def test_what_is_released_is_held_no_more_in_that_mode(store: Store) -> None:
    one, two = owners(store, 2)
    store.lock(one, [(b"a", Mode.SCH_S), (b"a", Mode.SHARE), (b"b", Mode.SCH_S)])
    store.lock(two, [(b"b", Mode.SCH_S)])
    store.locks.release(one, [(b"a", Mode.SCH_S), (b"b", Mode.SCH_S), (b"c", Mode.SCH_S)])
    held = {(entry.owner, entry.resource): entry.modes for entry in store.locks.entries()}
    assert held == {(one, b"a"): [Mode.SHARE], (two, b"b"): [Mode.SCH_S]}
    store.locks.release(one, [(b"a", Mode.SHARE)])
    store.locks.release(two, [(b"b", Mode.SCH_S)])
    assert store.locks.entries() == []
    assert records(store.locks) == 0


def test_who_waits_for_what_is_released_waits_no_more(store: Store) -> None:
    """Nor is it in a circle: whoever has let go of it may wait for who has waited."""
    one, two = owners(store, 2)
    store.lock(one, [(b"a", Mode.SCH_S)])
    store.lock(two, [(b"b", Mode.UPDATE)])
    met = wait(store, two, b"a", Mode.SCH_C)
    assert store.locks.is_blocked(met)
    store.locks.release(one, [(b"a", Mode.SCH_S)])
    assert not store.locks.is_blocked(met)
    wait(store, one, b"b")
    store.locks.end_waiting(two)


@pytest.mark.parametrize("long", [b"", b"x" * 600])
def test_the_first_in_a_range_is_found(store: Store, long: bytes) -> None:
    one, two = owners(store, 2)
    assert store.locks.met_within(b"", b"z", Mode.SHARE, two) is None
    for number in range(100):
        store.lock(two, [(b"a%02d" % number, Mode.UPDATE)])  # its own
        store.lock(one, [(b"a%02d-" % number, Mode.KEY_SHARE)])  # that share
    for name in (b"b", b"c", b"d"):
        store.lock(one, [(name + long, Mode.UPDATE)])

    def met(start: bytes, stop: bytes, *, reverse: bool = False) -> bytes | None:
        found = store.locks.met_within(start, stop, Mode.SHARE, two, reverse=reverse)
        assert found is None or found.holders == (one,)
        return None if found is None else found.resource[:1]

    assert met(b"", b"z") == b"b"
    assert met(b"", b"z", reverse=True) == b"d"
    assert met(b"b" + long, b"c" + long) == b"b"
    assert met(b"c", b"d") == b"c"
    assert met(b"e", b"z") is None
    assert met(b"", b"b") is None
    store.locks.end(one)
    assert met(b"", b"z") is None


# Owners.


def recorded(table: LockTable) -> list[bytes]:
    """The owners that have a record, dead or alive."""
    with table._reading() as found:
        return [key[1:] for key in found.batch(b"o", b"p", 100)[0]]


def test_an_end_is_seen_at_once_in_whatever_order(store: Store) -> None:
    """Whether it is said in the slot, or by a record that is gone; what was left goes with the next change."""
    one, two, three, four = owners(store, 4)
    for owner, resource in ((one, b"a"), (two, b"b"), (three, b"c")):
        assert meets(store, owner, resource, Mode.UPDATE) == ()
    for holder, resource in ((two, b"b"), (one, b"a"), (three, b"c")):
        assert meets(store, four, resource, Mode.UPDATE) == (holder,)
        store.locks.end(holder)
        assert store.locks.met(resource, Mode.UPDATE, four) is None
    assert meets(store, four, b"d", Mode.UPDATE) == ()
    assert recorded(store.locks) == [four]


@pytest.mark.parametrize("living", [False, True])
def test_a_commit_tells_many_who_have_ended_from_one_who_lives(store: Store, living: bool) -> None:
    """As many as held locks at once, and nobody locks since, who would take their records away."""
    found = owners(store, 41)
    for number, owner in enumerate(found):
        store.lock(owner, [(b"%d" % number, Mode.UPDATE)])
    for owner in found[:40]:
        store.locks.end(owner)
    if not living:
        store.locks.end(found[40])
    assert len(recorded(store.locks)) == 41
    change(store, {1: b"a"})
    assert store.locks.may_be_held() == living


def test_a_commit_asks_for_nothing_that_its_owner_holds(store: Store) -> None:
    change(store, {1: b"a", 2: b"a"})
    one, two = owners(store, 2)
    held = {row_key(1): Mode.NO_KEY_UPDATE}
    store.lock(one, list(held.items()))
    store.lock(two, [(row_key(2), Mode.UPDATE)])
    for demands in ([(row_key(1), Mode.NO_KEY_UPDATE)], [(row_key(1), Mode.SHARE), (row_key(1), Mode.KEY_SHARE)]):
        store.locks.require_free(demands, one, held)
    with pytest.raises(Locked) as met:
        store.locks.require_free([(row_key(1), Mode.NO_KEY_UPDATE), (row_key(2), Mode.UPDATE)], one, held)
    assert (met.value.resource, met.value.holders) == (row_key(2), (two,))


def test_an_end_frees_everything(store: Store) -> None:
    one, two = owners(store, 2)
    resources = [b"%d" % number for number in range(2000)]
    store.lock(one, [(resource, Mode.UPDATE) for resource in resources])
    assert meets(store, two, b"7", Mode.KEY_SHARE) == (one,)
    store.locks.end(one)
    store.lock(two, [(resource, Mode.UPDATE) for resource in resources])
    store.locks.end(two)
    store.locks.end(two)  # again: nothing
    assert store.locks.entries() == []


def test_locks_before_the_one_in_the_way_are_kept(store: Store) -> None:
    """Else a statement of many rows would be overtaken again and again by those of few."""
    one, two, three = owners(store, 3)
    store.lock(one, [(b"b", Mode.UPDATE)])
    with pytest.raises(Locked):
        store.lock(two, [(name, Mode.UPDATE) for name in (b"a", b"b", b"c")])
    assert meets(store, three, b"a", Mode.SHARE) == (two,)
    assert meets(store, three, b"c", Mode.SHARE) == ()


def test_resources_of_any_length_are_told_apart(store: Store) -> None:
    one, two = owners(store, 2)
    stem = b"x" * 600
    store.lock(one, [(stem + b"a", Mode.UPDATE), (b"", Mode.UPDATE)])
    assert meets(store, two, stem + b"b", Mode.UPDATE) == ()
    assert meets(store, two, stem + b"a", Mode.UPDATE) == (one,)
    assert meets(store, two, b"", Mode.UPDATE) == (one,)


def test_what_the_dead_leave_is_swept(store: Store) -> None:
    """One transaction after the other, each of rows of its own, beside one that stays: the table does not grow."""
    lasting = store.locks.new_owner()
    store.lock(lasting, [(b"lasting", Mode.UPDATE)])
    most = 0
    for number in range(60):
        (owner,) = owners(store, 1)
        store.lock(owner, [(b"%d/%d" % (number, row), Mode.UPDATE) for row in range(20)])
        most = max(most, records(store.locks))
        store.locks.end(owner)
    assert most < 120
    assert meets(store, store.locks.new_owner(), b"lasting", Mode.SHARE) == (lasting,)


def test_entries_are_of_the_living(store: Store) -> None:
    one, two, three = owners(store, 3)
    for owner in (one, three):
        store.lock(owner, [(b"a", Mode.KEY_SHARE)])
    store.lock(one, [(b"a", Mode.NO_KEY_UPDATE)])
    store.locks.end(three)
    with pytest.raises(Locked) as met:
        store.lock(two, [(b"a", Mode.SHARE)])
    store.locks.begin_waiting(two, met.value)
    held, waiting = sorted(store.locks.entries(), key=lambda entry: not entry.granted)
    assert held == (one, os.getpid(), b"a", [Mode.KEY_SHARE, Mode.NO_KEY_UPDATE], True, ())
    assert waiting == (two, os.getpid(), b"a", [Mode.SHARE], False, (one,))
    store.locks.end_waiting(two)
    assert len(store.locks.entries()) == 1


# Waiting.


def wait(store: Store, owner: bytes, resource: bytes, mode: Mode = Mode.UPDATE) -> Locked:
    with pytest.raises(Locked) as met:
        store.lock(owner, [(resource, mode)])
    store.locks.begin_waiting(owner, met.value)
    return met.value


@pytest.mark.parametrize("number", [2, 3, 7])
def test_a_circle_is_found_by_who_closes_it(store: Store, number: int) -> None:
    found = owners(store, number)
    names = [b"%d" % each for each in range(number)]
    for owner, name in zip(found, names, strict=True):
        store.lock(owner, [(name, Mode.UPDATE)])
    for owner, name in zip(found, names[1:], strict=False):
        wait(store, owner, name)
    with pytest.raises(Locked) as met:
        store.lock(found[-1], [(names[0], Mode.SHARE)])
    with pytest.raises(Deadlock) as closed:
        store.locks.begin_waiting(found[-1], met.value)
    cycle = closed.value.cycle
    assert cycle[0] == (found[-1], names[0], Mode.SHARE, found[0])
    assert [edge.owner for edge in cycle] == [found[-1], *found[:-1]]
    assert [edge.holder for edge in cycle] == found
    assert [edge.resource for edge in cycle[1:]] == names[1:]
    # Whoever gives way lets the one who waits for him go on.
    store.locks.end(found[-1])
    assert meets(store, found[-2], names[-1], Mode.UPDATE) == ()


def test_one_circle_of_several_ways_is_found(store: Store) -> None:
    """Two hold a row in common; a third waits for both, and one of them for the third."""
    one, two, three = owners(store, 3)
    for sharing in (one, two):
        store.lock(sharing, [(b"a", Mode.SHARE)])
    store.lock(three, [(b"b", Mode.UPDATE)])
    wait(store, three, b"a")
    for sharing in (one, two):
        with pytest.raises(Locked) as met:
            store.lock(sharing, [(b"b", Mode.KEY_SHARE)])
        with pytest.raises(Deadlock):
            store.locks.begin_waiting(sharing, met.value)


def test_both_who_share_and_want_more_is_a_circle(store: Store) -> None:
    one, two = owners(store, 2)
    for sharing in (one, two):
        store.lock(sharing, [(b"a", Mode.SHARE)])
    wait(store, one, b"a")
    with pytest.raises(Locked) as met:
        store.lock(two, [(b"a", Mode.UPDATE)])
    with pytest.raises(Deadlock):
        store.locks.begin_waiting(two, met.value)


def test_who_has_ended_is_forgotten_though_a_circle_is_found(store: Store) -> None:
    """Else circles would leave records for ever, and of many a commit takes it that some live."""
    for _ in range(20):
        ended_before, one, two = owners(store, 3)
        store.lock(ended_before, [(b"c", Mode.UPDATE)])
        store.lock(one, [(b"a", Mode.UPDATE)])
        store.lock(two, [(b"b", Mode.UPDATE)])
        wait(store, one, b"b")
        with pytest.raises(Locked) as met:
            store.lock(two, [(b"a", Mode.UPDATE)])
        store.locks.end(ended_before)
        with pytest.raises(Deadlock):
            store.locks.begin_waiting(two, met.value)
        assert recorded(store.locks) == [one, two]
        for owner in (two, one):
            store.locks.end(owner)
    change(store, {1: b"a"})
    assert not store.locks.may_be_held()


def test_who_waits_no_more_closes_no_circle(store: Store) -> None:
    one, two = owners(store, 2)
    store.lock(one, [(b"a", Mode.UPDATE)])
    store.lock(two, [(b"b", Mode.UPDATE)])
    wait(store, one, b"b")
    store.locks.end_waiting(one)
    wait(store, two, b"a")


def test_a_wait_is_over_when_all_in_the_way_have_ended(store: Store) -> None:
    one, two, three = owners(store, 3)
    for sharing in (one, two):
        store.lock(sharing, [(b"a", Mode.SHARE)])
    met = wait(store, three, b"a")
    assert store.locks.is_blocked(met)
    store.locks.end(one)
    assert store.locks.is_blocked(met)
    store.locks.end(two)
    assert not store.locks.is_blocked(met)
    assert meets(store, three, b"a", Mode.UPDATE) == ()


# Commits.


def test_nothing_is_asked_while_nothing_is_locked(store: Store) -> None:
    presence = store._presence  # type: ignore[attr-defined]  # the word itself
    owner, other = owners(store, 2)
    store.locks.end(other)  # never heard of
    change(store, {1: b"a"})
    assert not presence.locks_held()
    store.lock(owner, [(b"a", Mode.KEY_SHARE)])
    change(store, {1: b"b"})
    assert presence.locks_held()
    store.locks.end(owner)
    change(store, {1: b"c"})
    assert not presence.locks_held()


WRITES: dict[str, tuple[dict[int, bytes | None], Mode]] = {
    "update": ({1: b"b"}, Mode.NO_KEY_UPDATE),
    "delete": ({1: None}, Mode.UPDATE),
    "insert": ({2: b"b"}, Mode.UPDATE),
    "insert over a tombstone": ({3: b"b"}, Mode.UPDATE),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("write", WRITES)
def test_a_commit_meets_the_locks_of_others(store: Store, write: str, mode: Mode) -> None:
    changes, met_in = WRITES[write]
    change(store, {1: b"a", 3: b"a"})
    change(store, {3: None})
    one, two = owners(store, 2)
    (number,) = changes
    store.lock(one, [(row_key(number), mode)])
    before = contents(store)
    if not conflict(mode, met_in):
        change(store, changes)
        return
    for owner in (two, b""):
        made = request(store, changes)
        made.owner = owner
        with pytest.raises(Locked) as met:
            store.commit(made)
        assert (met.value.resource, met.value.mode, met.value.holders) == (row_key(number), met_in, (one,))
    assert contents(store) == before
    made = request(store, changes)
    made.owner = one
    store.commit(made)


def test_a_change_of_a_unique_key_meets_what_only_keeps_the_keys(store: Store) -> None:
    change(store, {1: b"a"})
    (one,) = owners(store, 1)
    store.lock(one, [(row_key(1), Mode.KEY_SHARE)])
    change(store, {1: b"ab"})
    made = request(store, {1: b"b"})
    made.tables[0].rows[0] = replace(made.tables[0].rows[0], keyed=True)
    with pytest.raises(Locked):
        store.commit(made)


def test_keys_that_come_and_go_are_met_where_they_stand_in_their_index(store: Store) -> None:
    """An insert that is not committed yet keeps the key from others, and so does a row that gives it up."""
    change(store, {1: b"a"})
    (one,) = owners(store, 1)
    store.lock(one, [(INDEX + b"k", Mode.UPDATE), (INDEX + b"a", Mode.UPDATE)])
    for changes in ({2: b"k"}, {1: b"b"}, {1: None}):
        with pytest.raises(Locked) as met:
            change(store, changes)
        assert met.value.resource in (INDEX + b"k", INDEX + b"a")
    change(store, {2: b"z"})


def test_a_parent_that_somebody_removes_is_waited_for(store: Store) -> None:
    change(store, {1: b"a"})
    one, two = owners(store, 2)
    store.lock(one, [(row_key(1), Mode.NO_KEY_UPDATE)])
    change(store, {5: b"x"}, KeyExists(row_key(1), False, None))
    store.locks.end(one)
    store.lock(two, [(row_key(1), Mode.UPDATE)])
    with pytest.raises(Locked):
        change(store, {6: b"x"}, KeyExists(row_key(1), False, None))
    change(store, {6: b"x"}, RangeEmpty(row_key(9), prefix_end(row_key(9)), None, None))


def test_a_row_of_several_parts_is_met_by_parts(store: Store) -> None:
    """Changes under different optimistic locks do not wait for one another; who takes the row away waits for all."""
    change(store, {1: b"a"})
    one, two = owners(store, 2)
    key = row_key(1)
    store.lock(one, [(key, Mode.KEY_SHARE), (part_of(key, 1), Mode.NO_KEY_UPDATE)])

    def write(locks: tuple[int, ...], body: bytes | None = b"a") -> None:
        made = request(store, {1: body})
        row = replace(made.tables[0].rows[0], locks=locks)
        made.tables[0].rows[0] = row
        made.entries.clear()
        store.commit(made)

    write((0, 5))
    with pytest.raises(Locked):
        write((5, 0))
    with pytest.raises(Locked):
        write((0, 0))
    with pytest.raises(Locked):
        write((), None)
    store.locks.end(one)
    write((5, 0))
    store.lock(two, [(key, Mode.SHARE), (part_of(key, 0), Mode.SHARE), (part_of(key, 1), Mode.SHARE)])
    with pytest.raises(Locked):
        write((0, 5))


def test_a_row_derived_inside_the_section_meets_locks(store: Store) -> None:
    change(store, {1: b"a"})
    (one,) = owners(store, 1)

    def derive(view: View) -> RowCommit:
        stored = view.get(row_key(1))
        assert stored is not None
        return RowCommit(TABLE, 1, row_key(1), stored, b"b", 1, [])

    store.lock(one, [(row_key(1), Mode.SHARE)])
    with pytest.raises(Locked):
        store.commit_derived(derive)
    store.locks.end(one)
    assert store.commit_derived(derive)


def test_those_of_a_group_meet_locks_each_for_itself(store: Store) -> None:
    change(store, {1: b"a", 2: b"a", 3: b"a"})
    (one,) = owners(store, 1)
    store.lock(one, [(row_key(2), Mode.NO_KEY_UPDATE)])
    outcomes = queued(store, [request(store, {number: b"b"}) for number in (1, 2, 3)])
    assert isinstance(outcomes[1], Locked)
    assert all(isinstance(outcomes[index], int) for index in (0, 2))


def test_background_work_looks_at_no_locks(store: Store) -> None:
    change(store, {1: b"a"})
    (one,) = owners(store, 1)
    store.lock(one, [(row_key(1), Mode.UPDATE)])

    def rewrite(section: Section) -> None:
        section.put(row_key(1), ROW_HEADER.pack(1, 0, 2 << 8) + b"a")

    assert store.background([rewrite]) == 1
    assert store.collect(store.now(), lambda record: []) == 1


def test_what_is_read_under_a_lock_stays(store: Store) -> None:
    """What was judged before is seen by whoever reads after; what comes later meets the lock."""
    (one,) = owners(store, 1)
    change(store, {1: b"a"})
    late = request(store, {1: b"b"})
    store.lock(one, [(row_key(1), Mode.UPDATE)])
    seen = contents(store)
    with pytest.raises(Locked):
        store.commit(late)
    assert contents(store) == seen


def test_schedule_5(store: Store) -> None:
    """Whoever holds the lock is never the one refused: 200 rounds of a holder beside a writer that locks nothing."""
    change(store, {1: b"0"})
    over = threading.Event()
    refused = 0

    def write() -> None:
        nonlocal refused
        while not over.is_set():
            try:
                change(store, {1: b"w"})
            except Locked:
                refused += 1
            except StaleRow:
                pass

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(200):
            (owner,) = owners(store, 1)
            store.lock(owner, [(row_key(1), Mode.NO_KEY_UPDATE)])
            made = request(store, {1: b"h"})  # derived from what is there once the lock is held
            made.owner = owner
            store.commit(made)
            store.locks.end(owner)
    finally:
        over.set()
        writer.join()


# Processes.


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def shared(path: Path) -> Iterator[Store]:
    made = open_store(path, synchronous="off")
    yield made
    made.close()


def held_by_a_child(store: Store, resource: bytes, then: Callable[[], object]) -> int:
    """A child that holds `resource` when this returns, and then does what it does."""
    reading, writing = os.pipe()

    def work() -> None:
        store.lock(store.locks.new_owner(), [(resource, Mode.UPDATE)])
        os.write(writing, b".")
        then()

    child = in_child(work)
    assert os.read(reading, 1) == b"."
    os.close(reading)
    os.close(writing)
    return child


def test_another_process_is_in_the_way_until_it_dies(shared: Store) -> None:
    (owner,) = owners(shared, 1)
    child = held_by_a_child(shared, row_key(1), signal.pause)
    with pytest.raises(Locked) as met:
        shared.lock(owner, [(row_key(1), Mode.KEY_SHARE)])
    shared.locks.begin_waiting(owner, met.value)
    assert shared.locks.is_blocked(met.value)
    (entry,) = [entry for entry in shared.locks.entries() if entry.granted]
    assert entry.pid == child
    with pytest.raises(Locked):
        change(shared, {1: b"a"})
    os.kill(child, signal.SIGKILL)
    assert ended(child) == -signal.SIGKILL
    assert not shared.locks.is_blocked(met.value)
    shared.locks.end_waiting(owner)
    change(shared, {1: b"a"})
    shared.lock(owner, [(row_key(1), Mode.UPDATE)])
    assert [entry.owner for entry in shared.locks.entries()] == [owner]


def test_the_matrix_of_schema_locks_across_two_processes(shared: Store) -> None:
    """Every cell, from both sides; the child is killed, and all that it held is free."""
    reading, writing = os.pipe()
    told, tell = os.pipe()
    (owner,) = owners(shared, 1)

    def work() -> None:
        own = shared.locks.new_owner()
        shared.lock(own, [(b"child %d" % mode, mode) for mode in SCHEMA_MODES])
        os.write(writing, b".")
        os.read(told, 1)  # the parent holds its own by now
        for held, wanted in product(SCHEMA_MODES, SCHEMA_MODES):
            asking = shared.locks.new_owner()
            os.write(writing, b"C" if meets(shared, asking, b"parent %d" % held, wanted) else b"N")
            shared.locks.end(asking)
        signal.pause()

    child = in_child(work)
    assert os.read(reading, 1) == b"."
    for held, wanted in product(SCHEMA_MODES, SCHEMA_MODES):
        (asking,) = owners(shared, 1)
        assert bool(meets(shared, asking, b"child %d" % held, wanted)) == conflict(held, wanted)
        shared.locks.end(asking)
    shared.lock(owner, [(b"parent %d" % mode, mode) for mode in SCHEMA_MODES])
    os.write(tell, b".")
    for held, wanted in product(SCHEMA_MODES, SCHEMA_MODES):
        assert os.read(reading, 1) == (b"C" if conflict(held, wanted) else b"N")
    os.kill(child, signal.SIGKILL)
    assert ended(child) == -signal.SIGKILL
    for mode in SCHEMA_MODES:
        assert meets(shared, owner, b"child %d" % mode, Mode.SCH_M) == ()


def test_a_process_that_takes_the_slot_of_a_dead_one_inherits_nothing(shared: Store) -> None:
    (owner,) = owners(shared, 1)
    for _ in range(2):
        child = held_by_a_child(shared, b"a", lambda: None)
        assert ended(child) == 0
    other = held_by_a_child(shared, b"b", signal.pause)
    try:
        assert meets(shared, owner, b"a", Mode.UPDATE) == ()
        assert len(meets(shared, owner, b"b", Mode.UPDATE)) == 1
    finally:
        os.kill(other, signal.SIGKILL)
        ended(other)


def test_a_forked_child_neither_holds_nor_frees_its_parents_locks(store: Store) -> None:
    (owner,) = owners(store, 1)
    store.lock(owner, [(row_key(1), Mode.UPDATE)])
    in_memory = isinstance(store, MemoryStore)

    def work() -> None:
        mine = store.locks.new_owner()
        # In memory the child has a store of its own, in which its parent's transactions are not.
        assert meets(store, mine, row_key(1), Mode.SHARE) == (() if in_memory else (owner,))
        store.lock(mine, [(row_key(2), Mode.UPDATE)])

    assert ended(in_child(work)) == 0
    (other,) = owners(store, 1)
    assert meets(store, other, row_key(1), Mode.SHARE) == (owner,)
    assert meets(store, other, row_key(2), Mode.UPDATE) == ()


def test_a_circle_of_processes_is_found(shared: Store) -> None:
    (owner,) = owners(shared, 1)
    shared.lock(owner, [(b"a", Mode.UPDATE)])

    def wait_for_parent() -> None:
        mine = shared.locks.new_owner()
        shared.lock(mine, [(b"b", Mode.UPDATE)])
        wait(shared, mine, b"a")
        os.write(writing, b".")
        signal.pause()

    reading, writing = os.pipe()
    child = in_child(wait_for_parent)
    assert os.read(reading, 1) == b"."
    with pytest.raises(Locked) as met:
        shared.lock(owner, [(b"b", Mode.SHARE)])
    with pytest.raises(Deadlock) as closed:
        shared.locks.begin_waiting(owner, met.value)
    assert len(closed.value.cycle) == 2
    os.kill(child, signal.SIGKILL)
    ended(child)
    shared.locks.begin_waiting(owner, met.value)  # the dead wait for nobody


def test_a_process_stopped_while_it_has_the_table_to_itself_is_let_go_on(shared: Store) -> None:
    def hold() -> None:
        locks = shared.locks
        with locks._writing():
            os.write(writing, b".")
            signal.raise_signal(signal.SIGSTOP)
        locks.new_owner()

    change(shared, {1: b"a"})
    reading, writing = os.pipe()
    child = in_child(hold)
    assert os.read(reading, 1) == b"."
    os.waitpid(child, os.WUNTRACED)
    (owner,) = owners(shared, 1)
    shared.lock(owner, [(b"a", Mode.UPDATE)])
    os.kill(child, signal.SIGKILL)
    ended(child)


def test_the_table_is_thrown_away_by_who_opens_the_store_alone(path: Path) -> None:
    """What lies there may be of before a power failure: it is never looked at."""
    store = open_store(path, synchronous="off")
    assert not (path / LOCKS_FILE).exists()  # nobody has locked anything
    store.lock(store.locks.new_owner(), [(b"a", Mode.UPDATE)])
    assert (path / LOCKS_FILE).exists()

    def beside() -> None:
        # Opens it for itself, beside its parent: nothing is thrown away.
        (owner,) = owners(store, 1)
        assert len(meets(store, owner, b"a", Mode.UPDATE)) == 1

    assert ended(in_child(beside)) == 0
    store.close()
    (path / LOCKS_FILE).write_bytes(b"\xde\xad" * 5000)
    again = open_store(path)
    assert not (path / LOCKS_FILE).exists()
    change(again, {1: b"a"})
    assert meets(again, again.locks.new_owner(), b"a", Mode.UPDATE) == ()
    again.close()


def test_a_killed_process_that_held_locks_costs_the_next_opener_nothing(path: Path) -> None:
    def work() -> None:
        store = open_store(path, synchronous="off")
        store.lock(store.locks.new_owner(), [(b"a", Mode.UPDATE)])
        os.kill(os.getpid(), signal.SIGKILL)

    assert ended(in_child(work)) == -signal.SIGKILL
    store = open_store(path)
    assert not store._presence.locks_held()  # type: ignore[attr-defined]  # the word itself
    assert store.locks.entries() == []
    store.close()


def test_a_full_disk_is_an_error_and_harms_nothing(shared: Store) -> None:
    def work() -> None:
        import resource

        (owner,) = owners(shared, 1)
        shared.lock(owner, [(b"a", Mode.UPDATE)])
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limit[1]))
        with pytest.raises(Error) as full:
            shared.lock(owner, [(b"%d" % number * 50, Mode.UPDATE) for number in range(5000)])
        assert full.value.sqlstate == "53100"
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        shared.lock(owner, [(b"%d" % number * 50, Mode.UPDATE) for number in range(5000)])
        assert len(meets(shared, shared.locks.new_owner(), b"a", Mode.SHARE)) == 1

    assert ended(in_child(work)) == 0


def test_who_ends_while_the_disk_is_full_is_forgotten_later(shared: Store) -> None:
    def work() -> None:
        import resource

        first, older, younger = owners(shared, 3)
        for owner in (first, older, younger):
            shared.lock(owner, [(owner, Mode.UPDATE)])
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, limit[1]))
        shared.locks.end(first)  # a word
        for change_of_records in (
            lambda: shared.lock(older, [(b"a", Mode.UPDATE)]),  # which would have taken its record along
            lambda: shared.locks.end(younger),
        ):
            with pytest.raises(Error) as full:
                change_of_records()
            assert full.value.sqlstate == "53100"
            assert recorded(shared.locks) == [first, older, younger]
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        shared.lock(older, [(b"a", Mode.UPDATE)])
        assert recorded(shared.locks) == [older]

    assert ended(in_child(work)) == 0


# Against a model.

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("lock"), st.integers(0, 3), st.integers(0, 2), st.sampled_from(MODES)),
        st.tuples(st.just("end"), st.integers(0, 3), st.just(0), st.just(Mode.UPDATE)),
        st.tuples(st.just("release"), st.integers(0, 3), st.integers(0, 2), st.sampled_from(MODES)),
        st.tuples(st.just("wait"), st.integers(0, 3), st.integers(0, 2), st.sampled_from(MODES)),
        st.tuples(st.just("commit"), st.integers(0, 3), st.integers(0, 2), st.sampled_from(MODES)),
    ),
    max_size=40,
)


class Model:
    """The table as it is meant: modes by (resource, owner), and what owners wait for, and for whom."""

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], set[Mode]] = {}
        self.waits: dict[int, tuple[int, Mode, set[int]]] = {}

    def blocking(self, owner: int, name: int, mode: Mode) -> set[int]:
        return {
            other
            for (resource, other), modes in self.held.items()
            if resource == name and other != owner and any(conflict(mode, each) for each in modes)
        }

    def reaches(self, start: set[int], wanted: int) -> bool:
        seen: set[int] = set()
        while start:
            seen |= start
            start = {after for each in start for after in self.waited_for(each)} - seen
        return wanted in seen

    def waited_for(self, owner: int) -> set[int]:
        if owner not in self.waits:
            return set()
        name, mode, met = self.waits[owner]
        return met & self.blocking(owner, name, mode)

    def release(self, owner: int, name: int, mode: Mode) -> None:
        left = self.held.get((name, owner), set()) - {mode}
        self.held.pop((name, owner), None)
        if left:
            self.held[name, owner] = left

    def end(self, owner: int) -> None:
        self.held = {key: modes for key, modes in self.held.items() if key[1] != owner}
        self.waits.pop(owner, None)
        for _name, _mode, waiting in self.waits.values():
            waiting.discard(owner)


@given(steps=STEPS)
def test_the_table_does_what_its_model_does(lasting: Store, steps: list[tuple[str, int, int, Mode]]) -> None:
    store = lasting
    model, found = Model(), owners(store, 4)
    for step, owner, name, mode in steps:
        if step == "end":
            store.locks.end(found[owner])
            found[owner] = store.locks.new_owner()
            model.end(owner)
            continue
        if step == "release":
            store.locks.release(found[owner], [(b"%d" % name, mode)])
            model.release(owner, name, mode)
            continue
        blocking = model.blocking(owner, name, mode)
        met: Locked | None = None
        try:
            if step == "commit":
                store.locks.require_free([(b"%d" % name, mode)], found[owner])
            else:
                store.lock(found[owner], [(b"%d" % name, mode)])
                model.held.setdefault((name, owner), set()).add(mode) if not blocking else None
        except Locked as caught:
            met = caught
        assert (set() if met is None else {found.index(holder) for holder in met.holders}) == blocking
        if step != "wait" or met is None:
            continue
        closes = model.reaches(set(blocking), owner)
        try:
            store.locks.begin_waiting(found[owner], met)
            assert not closes
            model.waits[owner] = name, mode, blocking
        except Deadlock:
            assert closes
    shown = {
        (entry.resource, found.index(entry.owner)): set(entry.modes) for entry in store.locks.entries() if entry.granted
    }
    assert shown == {(b"%d" % name, owner): modes for (name, owner), modes in model.held.items()}
    for each in found:
        store.locks.end(each)


@pytest.fixture(scope="module", params=["lmdb", "memory"])
def lasting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One store for all examples: whatever an example leaves is dead."""
    path = tmp_path_factory.mktemp("model") / "store"
    made: Store = MemoryStore() if request.param == "memory" else open_store(path, synchronous="off")
    yield made
    made.close()
