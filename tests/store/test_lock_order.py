"""Locks that are taken beside the section, on disk: in which order who locks and who commits see each other, and that
background work holds up only who commits."""

from __future__ import annotations

import os
import random
import select
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from instar.clock import Clock
from instar.store import open_store
from instar.store.engine import (
    ROW_HEADER,
    Commit,
    Lease,
    LeaseExpired,
    PreconditionFailed,
    RangeUnchanged,
    RowCommit,
    RowWrite,
    Section,
    TableWrites,
    View,
)
from instar.store.lmdb import LmdbStore
from instar.store.lock_modes import Mode
from instar.store.lock_table import Locked, LockTable
from instar.store.presence import _NO_LOCKS
from instar.store.section import WriteSection
from store.building import TABLE, change, contents, ended, in_child, row_key

SECONDS = 20.0


@pytest.fixture(params=["off", "full"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LmdbStore]:
    made = opened(tmp_path / "store", request.param)
    change(made, {1: b"a", 2: b"b"})
    yield made
    made.close()


def opened(path: Path | str, synchronous: str | None = None) -> LmdbStore:
    store = open_store(path, synchronous=synchronous)
    assert isinstance(store, LmdbStore)
    return store


class Thread(threading.Thread):
    """Work of its own, whose outcome is asked for."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._outcome: Any = None
        self.start()

    def run(self) -> None:
        try:
            self._outcome = self._work()
        except BaseException as caught:  # noqa: BLE001 - looked at by who asks
            self._outcome = caught

    def outcome(self) -> Any:
        self.join(SECONDS)
        assert not self.is_alive(), "it hangs"
        return self._outcome


def updating(number: int, body: bytes, **fields: Any) -> Callable[[View], RowCommit]:
    def derive(view: View) -> RowCommit:
        stored = view.get(row_key(number))
        assert stored is not None
        return RowCommit(TABLE, 1, row_key(number), stored, body, 1, **fields)

    return derive


def since(store: LmdbStore, number: int) -> RangeUnchanged:
    """That a row is what it is now."""
    with store.read() as reader:
        return RangeUnchanged(row_key(number), row_key(number) + b"\0", reader.timestamp, None, None)


def test_who_locks_does_not_wait_for_background_work(store: LmdbStore) -> None:
    entered, leave = threading.Event(), threading.Event()

    def step(section: Section) -> None:
        section.put(b"\x03\x01", b"x")
        entered.set()
        assert leave.wait(SECONDS)

    working = Thread(lambda: store.background([step]))
    assert entered.wait(SECONDS)
    owner = store.locks.new_owner()
    locking = Thread(lambda: store.lock(owner, [(row_key(1), Mode.UPDATE)], [since(store, 1)]))
    assert locking.outcome() is None
    assert working.is_alive()
    leave.set()
    assert working.outcome() == 1
    with pytest.raises(Locked):
        store.commit_derived(updating(1, b"c"))


@pytest.mark.parametrize("stands", [True, False])
@pytest.mark.parametrize("elsewhere", [True, False])
def test_who_locks_while_another_is_judged(store: LmdbStore, stands: bool, elsewhere: bool) -> None:
    """Who has not asked for locks yet finds this one; who locks waits for the outcome."""
    unchanged = since(store, 1)
    entered, leave = os.pipe(), os.pipe()

    def commit(own: LmdbStore) -> object:
        def derive(view: View) -> RowCommit | None:
            made = updating(1, b"c")(view)
            os.write(entered[1], b".")
            os.read(leave[0], 1)
            return made if stands else None

        try:
            return own.commit_derived(derive)
        except Locked as refused:
            return refused

    def refused_in_child() -> None:
        assert isinstance(commit(opened(path)), Locked) == stands

    path = store._environment.path
    if elsewhere:
        child = in_child(refused_in_child)
    else:
        committing = Thread(lambda: commit(store))
    assert os.read(entered[0], 1)
    owner = store.locks.new_owner()
    locking = Thread(lambda: store.lock(owner, [(row_key(1), Mode.UPDATE)], [unchanged]))
    locking.join(0.05)
    assert locking.is_alive()
    os.write(leave[1], b".")
    assert locking.outcome() is None
    if elsewhere:
        assert ended(child) == 0
    else:
        assert isinstance(committing.outcome(), Locked) == stands
    with pytest.raises(Locked):
        store.commit_derived(updating(1, b"d"))
    for end in (*entered, *leave):
        os.close(end)


def test_what_was_judged_before_is_seen_under_the_lock(store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
    unchanged, entered, leave = since(store, 1), threading.Event(), threading.Event()
    next_timestamp = WriteSection.next_timestamp

    def waits(section: WriteSection, clock: Clock, lease: Lease | None) -> int:
        entered.set()
        assert leave.wait(SECONDS)
        return next_timestamp(section, clock, lease)

    made = commit_of(store, 1, b"c")
    monkeypatch.setattr(WriteSection, "next_timestamp", waits)
    committing = Thread(lambda: store.commit(made))
    assert entered.wait(SECONDS)  # it has found no locks
    owner = store.locks.new_owner()
    locking = Thread(lambda: store.lock(owner, [(row_key(1), Mode.UPDATE)], [unchanged]))
    locking.join(0.05)
    assert locking.is_alive()
    leave.set()
    assert isinstance(committing.outcome(), int)
    assert isinstance(locking.outcome(), PreconditionFailed)


@pytest.mark.parametrize("stands", [True, False])
def test_the_word_that_locks_are_held_is_not_lost(
    store: LmdbStore, monkeypatch: pytest.MonkeyPatch, stands: bool
) -> None:
    """Who finds no living owner says that there are no locks: just then one comes. Whether that commit stands, so that
    its state is seen, or is given up, so that nobody is judged any more, the word is said again."""
    dead = store.locks.new_owner()
    store.lock(dead, [(row_key(2), Mode.UPDATE)])
    store.locks.end(dead)
    presence, path, any_lives = store._presence, store._environment.path, LockTable._any_lives
    there, looked, acquired, done, held, over = (os.pipe() for _ in range(6))

    def locks() -> None:
        own = opened(path)
        stays_about = own._presence.stays_about

        def waits() -> None:
            os.write(acquired[1], b".")
            os.read(done[0], 1)
            stays_about()

        monkeypatch.setattr(own._presence, "stays_about", waits)
        os.write(there[1], b".")
        os.read(looked[0], 1)
        own.lock(own.locks.new_owner(), [(row_key(1), Mode.UPDATE)])
        os.write(held[1], b"%d" % own._presence.locks_held())
        os.read(over[0], 1)

    child = in_child(locks)
    os.read(there[0], 1)

    def looks(records: Any, lives: Any) -> bool:
        found = any_lives(records, lives)
        os.write(looked[1], b".")
        os.read(acquired[0], 1)
        return found

    monkeypatch.setattr(LockTable, "_any_lives", staticmethod(looks))
    if stands:
        assert store.commit_derived(updating(1, b"c"))
    else:
        with pytest.raises(LeaseExpired):
            store.commit_derived(updating(1, b"c", lease=Lease(0)))
    monkeypatch.undo()
    assert not presence.locks_held()
    os.write(done[1], b".")
    assert os.read(held[0], 1) == b"1"
    assert presence.locks_held()
    with pytest.raises(Locked):
        store.commit_derived(updating(1, b"d"))
    os.write(over[1], b".")
    assert ended(child) == 0
    for end in (*there, *looked, *acquired, *done, *held, *over):
        os.close(end)


def test_what_was_written_while_it_was_said_that_no_lock_is_held(
    store: LmdbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, but before who locks looks again somebody has believed it, and a third one's lock has set it right."""
    dead = store.locks.new_owner()
    store.lock(dead, [(row_key(2), Mode.UPDATE)])
    store.locks.end(dead)
    path, any_lives, next_timestamp = store._environment.path, LockTable._any_lives, WriteSection.next_timestamp
    there, looked, asked, done, read = (os.pipe() for _ in range(5))

    def locks() -> None:
        own = opened(path)
        judged = own._presence.judged

        def waits() -> int:
            found = judged()
            os.write(asked[1], b".")
            os.read(done[0], 1)
            return found

        monkeypatch.setattr(own._presence, "judged", waits)
        os.write(there[1], b".")
        os.read(looked[0], 1)
        own.lock(own.locks.new_owner(), [(row_key(1), Mode.UPDATE)])
        with own.read() as reader:
            os.write(read[1], reader.get(row_key(1)) or b"")

    child = in_child(locks)
    os.read(there[0], 1)

    def looks(records: Any, lives: Any) -> bool:
        found = any_lives(records, lives)
        os.write(looked[1], b".")
        os.read(asked[0], 1)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(LockTable, "_any_lives", staticmethod(looks))
        assert store.commit_derived(updating(2, b"c"))  # it has not found the lock, and says that there is none
    entered, leave = threading.Event(), threading.Event()

    def waits(section: WriteSection, clock: Clock, lease: Lease | None) -> int:
        entered.set()
        assert leave.wait(SECONDS)
        return next_timestamp(section, clock, lease)

    made = commit_of(store, 1, b"c")
    with monkeypatch.context() as patched:
        patched.setattr(WriteSection, "next_timestamp", waits)
        believing = Thread(lambda: store.commit(made))
        assert entered.wait(SECONDS)
        store.locks.acquire(store.locks.new_owner(), [(row_key(2), Mode.UPDATE)])
        os.write(done[1], b".")
        waits_for_who_believes = not select.select([read[0]], [], [], 0.2)[0]
        leave.set()
        assert isinstance(believing.outcome(), int)
    assert ended(child) == 0
    assert waits_for_who_believes
    assert os.read(read[0], 100)[ROW_HEADER.size :] == b"c"
    for end in (*there, *looked, *asked, *done, *read):
        os.close(end)


def test_who_was_killed_while_saying_that_no_lock_is_held_makes_others_wait_for_the_section(store: LmdbStore) -> None:
    presence, owner = store._presence, store.locks.new_owner()
    presence.shared_words[_NO_LOCKS] |= 1  # and killed
    assert presence.no_locks_said() is None
    entered, leave = threading.Event(), threading.Event()

    def step(_section: Section) -> None:
        entered.set()
        assert leave.wait(SECONDS)

    working = Thread(lambda: store.background([step]))
    assert entered.wait(SECONDS)
    locking = Thread(lambda: store.lock(owner, [(row_key(1), Mode.UPDATE)]))
    locking.join(0.05)
    waits = locking.is_alive()
    leave.set()
    assert locking.outcome() is None
    assert working.outcome() == 1
    assert waits
    store.locks.end(owner)
    change(store, {1: b"c"})  # it is said again
    assert presence.no_locks_said() is not None


def test_who_was_judged_and_is_gone_holds_nobody_up(store: LmdbStore) -> None:
    """As after a kill in the middle of a commit: what it has said stays until the next commit."""
    store._presence.say_judged(1 << 40)
    owner = store.locks.new_owner()
    assert Thread(lambda: store.lock(owner, [(row_key(1), Mode.UPDATE)], [since(store, 1)])).outcome() is None
    change(store, {2: b"c"})
    with store.read() as reader:
        assert store._presence.judged() == reader.number


def commit_of(store: LmdbStore, number: int, body: bytes, owner: bytes = b"") -> Commit:
    with store.read() as reader:
        row = RowWrite(row_key(number), reader.get(row_key(number)), body, 1)
        return Commit(catalog_version=reader.catalog_version, tables=[TableWrites(TABLE, 1, 0, [row])], owner=owner)


def test_what_is_locked_stays_as_it_was_read(store: LmdbStore) -> None:
    """Counters that are added to in three ways by three processes: under a lock, which no commit of others passes, so
    that the own one always stands; by the value found in the section; beside background work."""
    path, count, seconds = store._environment.path, 3, 1.5
    change(store, {number: (0).to_bytes(4, "big") for number in range(count)})
    out = os.pipe()

    def value(stored: bytes | None) -> int:
        assert stored is not None
        return int.from_bytes(stored[ROW_HEADER.size :], "big")

    def locked(own: LmdbStore, number: int) -> bool:
        owner = own.locks.new_owner()
        try:
            own.lock(owner, [(row_key(number), Mode.NO_KEY_UPDATE)])
            with own.read() as reader:
                found = value(reader.get(row_key(number)))
            made = commit_of(own, number, (found + 1).to_bytes(4, "big"), owner)
            assert made.tables[0].rows[0].stored is not None
            assert value(made.tables[0].rows[0].stored) == found, "it has changed under the lock"
            own.commit(made)  # StaleRow would be an error
            return True
        except Locked:
            return False
        finally:
            own.locks.end(owner)

    def found(own: LmdbStore, number: int) -> bool:
        def derive(view: View) -> RowCommit:
            stored = view.get(row_key(number))
            assert stored is not None
            return RowCommit(TABLE, 1, row_key(number), stored, (value(stored) + 1).to_bytes(4, "big"), 1)

        try:
            return own.commit_derived(derive) > 0
        except Locked:
            return False

    def note(section: Section) -> None:
        section.put(b"\x03\x01", b"x")

    def works(own: LmdbStore, seed: int) -> int:
        draw, added = random.Random(seed), 0
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            number = draw.randrange(count)
            kind = draw.random()
            if kind < 0.02:
                own.background([note])
            else:
                added += (locked if kind < 0.5 else found)(own, number)
        return added

    def process(seed: int) -> None:
        own = opened(path)
        threads = [Thread(lambda seed=seed + number: works(own, seed)) for number in range(2)]  # type: ignore[misc]
        outcomes = [thread.outcome() for thread in threads]
        assert all(isinstance(outcome, int) for outcome in outcomes), outcomes
        os.write(out[1], sum(outcomes).to_bytes(8, "big"))
        own.close()

    children = [in_child(lambda seed=10 * seed: process(seed)) for seed in range(3)]  # type: ignore[misc]
    assert [ended(child) for child in children] == [0, 0, 0]
    added = sum(int.from_bytes(os.read(out[0], 8), "big") for _ in children)
    kept = contents(store)
    assert sum(value(kept[row_key(number)]) for number in range(count)) == added > 100
    for end in out:
        os.close(end)
