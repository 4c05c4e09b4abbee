"""Group commit: what threads that commit at once get, together and each."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from unittest.mock import Mock

import pytest

from instar.errors import Error
from instar.store import group, open_store, wal_format
from instar.store.engine import (
    ROW_HEADER,
    Commit,
    EntryWrite,
    RowCommit,
    Section,
    StaleRow,
    Store,
    TableWrites,
    View,
)
from instar.store.group import LEADER, CommitQueue, _Member
from instar.store.lmdb_section import LmdbSection
from instar.store.memory import MemorySection, MemoryStore
from instar.store.section import WriteSection
from store.building import (
    ALL_ENTRIES,
    TABLE,
    body_of,
    change,
    contents,
    ended,
    in_child,
    queued,
    request,
    row_key,
    row_writes,
)


def test_members_get_their_own_timestamps(store: Store) -> None:
    outcomes = queued(store, [request(store, {number: b"a"}) for number in range(8)])
    timestamps = sorted(outcome for outcome in outcomes if isinstance(outcome, int))
    assert timestamps == list(range(timestamps[0], timestamps[0] + 8))
    assert {record.timestamp for record in store.log(0, store.now())} == set(outcomes)


def test_members_are_judged_on_what_their_predecessors_left(store: Store) -> None:
    outcomes = queued(store, [request(store, {1: b"%d" % number}) for number in range(5)])
    assert [type(outcome) for outcome in outcomes].count(StaleRow) == 4
    (winner,) = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, int)]
    assert body_of(contents(store)[row_key(1)]) == b"%d" % winner


def test_a_member_that_cannot_be_written_harms_no_other(store: Store) -> None:
    broken = request(store, {50: b"x"})
    broken.entries.append(EntryWrite(ALL_ENTRIES[0] + bytes(600), 6, True))
    good = [request(store, {number: b"a"}) for number in range(4)]
    outcomes = queued(store, [*good[:2], broken, *good[2:]])
    assert isinstance(outcomes[2], Error)
    assert outcomes[2].sqlstate == "54000"
    assert all(isinstance(outcome, int) for outcome in outcomes[:2] + outcomes[3:])
    assert {row_key(number) for number in range(4)} <= contents(store).keys()
    assert row_key(50) not in contents(store)


def test_what_the_log_does_not_take_is_not_half_written(tmp_path, monkeypatch) -> None:
    store = open_store(tmp_path / "store", synchronous="full")
    monkeypatch.setattr(wal_format, "_MOST_PAYLOAD", 150_000)
    large = request(store, {10: b"a", 11: bytes(200_000)})
    outcomes = queued(store, [request(store, {1: b"a"}), large, request(store, {2: b"a"})])
    assert isinstance(outcomes[1], Error)
    assert outcomes[1].sqlstate == "54000"
    assert [type(outcome) for outcome in outcomes] == [int, type(outcomes[1]), int]
    assert [key for key in contents(store) if key in map(row_key, range(30))] == [row_key(1), row_key(2)]
    store.close()


def test_of_commits_that_find_the_store_damaged_nothing_stands(store: Store) -> None:
    """No key is above the log, whose records end the store. One that leaves no record finds nothing."""
    change(store, {1: b"a"})
    store.commit(Commit(catalog_version=0, raw=[(b"\xff", b"")]))
    before = contents(store)
    unlogged = Commit(catalog_version=0, raw=[(b"\xff", b"more")])
    outcomes = queued(store, [request(store, {1: b"b"}), unlogged, request(store, {2: b"b"})])
    assert isinstance(outcomes.pop(1), int)
    for outcome in outcomes:
        assert isinstance(outcome, Error)
        assert outcome.sqlstate == "XX001"
    after = contents(store)
    assert after[row_key(1)] == before[row_key(1)]
    assert row_key(2) not in after


def test_who_was_judged_on_a_commit_that_then_failed_is_judged_again(store: Store, monkeypatch) -> None:
    """A full disk, say: the one that came first has not changed the row, which the other one may change then."""
    change(store, {1: b"a"})
    full = [Error("no space is left", "53100")]
    for section in (LmdbSection, MemorySection):

        def commit(self: WriteSection, *, durably: bool = True, made=section.commit) -> None:
            if durably and full:
                raise full.pop()
            made(self, durably=durably)

        monkeypatch.setattr(section, "commit", commit)
    bodies: list[bytes] = []
    outcomes = queued(store, [request(store, {1: b"b"}), request(store, {1: b"c"}), partial(_seen, bodies)])
    (failed,) = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Error)]
    assert isinstance(outcomes[1 - failed], int)
    assert body_of(contents(store)[row_key(1)]) == b"cb"[failed : failed + 1]
    assert len(bodies) == 2


def _seen(bodies: list[bytes], view: View) -> None:
    """A commit that finds that there is nothing to be done, by what is stored."""
    bodies.append(view.get(row_key(1)) or b"")


def test_many_threads_lose_nothing(store: Store) -> None:
    """Each thread adds to one counter and to rows of its own; conflicts are tried again."""
    change(store, {0: (0).to_bytes(4, "big")})

    def work(thread: int) -> None:
        for turn in range(25):
            while True:
                with store.read() as reader:
                    body = body_of(reader.get(row_key(0)))
                    assert body is not None
                    more = (int.from_bytes(body, "big") + 1).to_bytes(4, "big")
                    rows = row_writes(reader, {0: more, 1000 + 100 * thread + turn: b"done"})
                try:
                    store.commit(Commit(catalog_version=0, tables=[TableWrites(TABLE, 1, 0, rows)]))
                    break
                except StaleRow:
                    continue

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    rows = contents(store)
    assert int.from_bytes(body_of(rows[row_key(0)]) or b"", "big") == 150
    assert sum(row_key(1000 + 100 * thread + turn) in rows for thread in range(6) for turn in range(25)) == 150


def test_an_interrupted_leader_leaves_the_queue_in_order(make_store: Callable[[str], Store]) -> None:
    store = make_store("memory")

    class Interrupt(BaseException):
        pass

    class Poison(list):  # iterated in the middle of the section
        def __iter__(self):
            raise Interrupt

        def __bool__(self) -> bool:
            return True

    interrupted = request(store, {1: b"a"})
    interrupted.raw = Poison()
    with pytest.raises(Interrupt):
        store.commit(interrupted)
    change(store, {1: b"b"})
    assert body_of(contents(store)[row_key(1)]) == b"b"


class Interrupt(BaseException):
    pass


class SecondTime(list):
    """Written records of a commit that are read once in a group, and interrupt whoever reads them again."""

    read = 0

    def __iter__(self):
        self.read += 1
        if self.read > 1:
            raise Interrupt
        return super().__iter__()

    def __bool__(self) -> bool:
        return True


def test_an_interrupt_while_a_group_is_redone_acknowledges_nothing_that_is_lost(store: Store) -> None:
    requests = [request(store, {number: b"a"}) for number in range(6)]
    requests[2].raw = SecondTime()
    requests[4].entries.append(EntryWrite(ALL_ENTRIES[0] + bytes(600), 6, True))  # cannot be written: all are redone
    threading.excepthook, hook = lambda _: None, threading.excepthook  # the leader's thread ends by the interrupt
    try:
        outcomes = queued(store, requests)
    finally:
        threading.excepthook = hook
    assert requests[2].raw.read == 2
    stored = contents(store)
    for number, outcome in enumerate(outcomes):
        if isinstance(outcome, int) and outcome:
            assert row_key(number) in stored
        elif isinstance(outcome, Error):
            assert outcome.sqlstate == "08007"
            assert row_key(number) not in stored
    assert sum(isinstance(outcome, Error) for outcome in outcomes) >= 3
    change(store, {7: b"b"})  # the queue is in order


class EatsOne:
    """A member's lock whose first acquisition succeeds and is interrupted before anybody knows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._eaten = False
        self.waited_for = threading.Event()

    def acquire(self, timeout: float) -> bool:
        self.waited_for.set()
        found = self._lock.acquire(timeout=timeout)
        if found and not self._eaten and threading.current_thread().name == "victim":
            self._eaten = True
            raise KeyboardInterrupt
        return found

    def release(self) -> None:
        self._lock.release()


# The number of a commit that is under way.
OTHER = -7


def begin(queue: CommitQueue, leader: threading.Thread, follower: threading.Thread) -> None:
    """Start both, in this order."""
    leader.start()
    while not queue.leader:
        leader.join(0.001)
    follower.start()


def leads(queue: CommitQueue) -> None:
    """Let that commit lead."""
    queue.within[OTHER] = 0
    queue.leader[LEADER] = OTHER


def ends(queue: CommitQueue) -> None:
    """That commit is over: else a store that is closed would wait for it."""
    del queue.within[OTHER]


@pytest.mark.parametrize("together", [True, False])
def test_an_interrupt_that_eats_the_waking_hangs_nobody(store: Store, monkeypatch, together: bool) -> None:
    made = _Member.__init__

    def init(self: _Member, number: int, asked: object) -> None:
        made(self, number, asked)  # type: ignore[arg-type]
        self.wake = EatsOne()  # type: ignore[assignment]

    monkeypatch.setattr(_Member, "__init__", init)
    caught: list[BaseException] = []

    def commit() -> None:
        try:
            store.commit(request(store, {2: b"victim"}))
        except KeyboardInterrupt as interrupt:
            caught.append(interrupt)

    victim = threading.Thread(target=commit, name="victim", daemon=True)
    queue = store._queue  # type: ignore[attr-defined] # the only place that tells

    def hold(_section: Section) -> None:
        if together:
            leader.start()
            while not queue.leader:
                leader.join(0.001)
        victim.start()
        while not queue._queue:
            victim.join(0.001)
        queue._queue[-1].wake.waited_for.wait(10)  # who is called before it waits is not woken

    leader = threading.Thread(target=change, args=(store, {1: b"leader"}))
    if together:
        store.background([hold])
        leader.join()
    else:
        leads(queue)  # as one that has done its own commit, and now hands over
        hold(store)  # type: ignore[arg-type] # not used
        queue._hand_over(OTHER)
        ends(queue)
    victim.join(10)
    assert not victim.is_alive()
    assert len(caught) == 1
    assert (row_key(2) in contents(store)) == together
    change(store, {3: b"b"})  # somebody can lead


def test_a_lead_that_an_interrupt_has_lost_is_taken_over_at_once(store: Store, monkeypatch) -> None:
    monkeypatch.setattr(group, "_LOOK_SECONDS", 1000.0)
    queue = store._queue  # type: ignore[attr-defined] # the only place that tells
    leads(queue)
    ends(queue)  # interrupted before anything came of it
    threads = [threading.Thread(target=change, args=(store, {number: b"a"}), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert {row_key(number) for number in range(4)} <= contents(store).keys()
    assert not queue.leader


def test_a_free_lead_is_taken_by_who_was_forgotten_in_the_queue(store: Store) -> None:
    queue = store._queue  # type: ignore[attr-defined] # the only place that tells
    leads(queue)
    forgotten = threading.Thread(target=change, args=(store, {1: b"a"}), daemon=True)
    forgotten.start()
    while not queue._queue:
        forgotten.join(0.001)
    del queue.leader[LEADER]  # and interrupted before anybody was called
    forgotten.join(10)
    assert row_key(1) in contents(store)
    assert not queue.leader
    ends(queue)
    change(store, {2: b"b"})


def test_a_long_commit_is_not_taken_for_a_lost_lead(store: Store, monkeypatch) -> None:
    monkeypatch.setattr(group, "_LOOK_SECONDS", 0.01)

    def hold(_section: Section) -> None:
        begin(queue, leader, follower)
        follower.join(0.2)
        assert follower.is_alive()
        assert len(queue._queue) == 1

    queue = store._queue  # type: ignore[attr-defined] # the only place that tells
    leader, follower = [threading.Thread(target=change, args=(store, {number: b"a"})) for number in (1, 2)]
    store.background([hold])
    leader.join()
    follower.join()
    assert {row_key(1), row_key(2)} <= contents(store).keys()


@pytest.mark.parametrize("knows", [True, False])
def test_who_was_taken_by_a_leader_that_is_gone_is_told_that_nothing_is_known(
    store: Store, monkeypatch, knows: bool
) -> None:
    """The leader is interrupted when it knows whom it has taken out of the queue, or just before."""
    queue = store._queue  # type: ignore[attr-defined] # the only place that tells
    leads(queue)
    told: list[str] = []

    def commit() -> None:
        try:
            store.commit(request(store, {1: b"a"}))
        except Error as error:
            told.append(error.sqlstate)

    victim = threading.Thread(target=commit, daemon=True)
    victim.start()
    while not queue._queue:
        victim.join(0.001)
    withdraw = queue._withdraw

    def interrupted(member: _Member) -> bool:
        withdraw(member)
        raise KeyboardInterrupt

    if not knows:
        monkeypatch.setattr(queue, "_withdraw", interrupted)
    with contextlib.suppress(KeyboardInterrupt):
        queue._drain(OTHER, [])
    monkeypatch.undo()
    queue.within[OTHER - 1] = 0
    queue.leader[LEADER] = OTHER - 1  # others go on
    ends(queue)  # interrupted here
    victim.join(10)
    assert told == ["08007"]
    del queue.within[OTHER - 1], queue.leader[LEADER]
    change(store, {2: b"b"})


def test_who_was_about_to_be_taken_by_a_leader_that_is_gone_waits_for_the_next(store: Store, monkeypatch) -> None:
    queue = store._queue  # type: ignore[attr-defined] # the only place that tells
    leads(queue)
    waiting = threading.Thread(target=change, args=(store, {1: b"a"}), daemon=True)
    waiting.start()
    while not queue._queue:
        waiting.join(0.001)
    with monkeypatch.context() as patched:
        patched.setattr(queue, "_withdraw", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            queue._drain(OTHER, [])
    ends(queue)
    waiting.join(10)
    assert row_key(1) in contents(store)
    assert not queue.leader


def test_who_is_handed_the_lead_and_not_told_finds_it(store: Store, monkeypatch) -> None:
    queue = store._queue  # type: ignore[attr-defined] # the only place that tells
    leads(queue)
    waiting = threading.Thread(target=change, args=(store, {1: b"a"}), daemon=True)
    waiting.start()
    while not queue._queue:
        waiting.join(0.001)
    with monkeypatch.context() as patched:
        patched.setattr(queue, "_withdraw", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            queue._hand_over(OTHER)
    waiting.join(10)
    assert row_key(1) in contents(store)
    assert not queue.leader
    assert queue.within.keys() == {OTHER}
    ends(queue)


def test_a_leader_that_is_interrupted_acknowledges_nothing_for_its_group(store: Store, monkeypatch) -> None:
    together = CommitQueue._together

    def interrupted(self: CommitQueue, section: WriteSection, members: list[_Member]) -> None:
        section.abort()
        raise Interrupt

    monkeypatch.setattr(CommitQueue, "_together", interrupted)
    threading.excepthook, hook = lambda _: None, threading.excepthook  # the leader's thread ends by the interrupt
    try:
        outcomes = queued(store, [request(store, {number: b"a"}) for number in range(4)])
    finally:
        threading.excepthook = hook
    assert [outcome.sqlstate for outcome in outcomes if isinstance(outcome, Error)] == ["08007"] * 3
    assert not any(outcome for outcome in outcomes if isinstance(outcome, int))
    monkeypatch.setattr(CommitQueue, "_together", together)
    change(store, {7: b"b"})


def test_an_interrupt_when_the_section_has_just_been_entered_leaves_it(store: Store, monkeypatch) -> None:
    engine = MemorySection if isinstance(store, MemoryStore) else LmdbSection
    for enter in (lambda: store.commit(request(store, {1: b"a"})), lambda: store.background([lambda _section: None])):
        with monkeypatch.context() as patched:
            patched.setattr(engine, "__init__", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                enter()
        committing = threading.Thread(target=change, args=(store, {1: b"b"}), daemon=True)
        committing.start()
        committing.join(10)
        assert not committing.is_alive()


def test_a_child_that_is_forked_while_a_thread_notes_a_snapshot_notes_its_own(store: Store) -> None:
    with store._presence._lock:  # type: ignore[attr-defined] # the only place that tells

        def notes() -> None:
            store.release_snapshot(store.register_snapshot(1))

        child = in_child(notes)
        assert ended(child) == 0


def test_who_looks_for_a_leader_that_has_just_ended_is_told_what_came_of_it(store: Store, monkeypatch) -> None:
    looks, done = threading.Event(), threading.Event()
    look, together = CommitQueue._look_for_leader, CommitQueue._together

    def looks_late(self: CommitQueue, member: _Member) -> None:
        looks.set()
        assert done.wait(10)
        look(self, member)

    def commits_late(self: CommitQueue, section: WriteSection, members: list[_Member]) -> None:
        assert looks.wait(10)
        together(self, section, members)

    def hold(_section: Section) -> None:
        begin(queue, leader, follower)
        while not queue._queue:
            follower.join(0.001)

    def lead() -> None:
        store.commit(request(store, {1: b"a"}))
        done.set()

    monkeypatch.setattr(CommitQueue, "_look_for_leader", looks_late)
    monkeypatch.setattr(CommitQueue, "_together", commits_late)
    queue = store._queue  # type: ignore[attr-defined] # the only place that tells
    outcomes: list[int] = []
    leader = threading.Thread(target=lead)
    follower = threading.Thread(target=lambda: outcomes.append(store.commit(request(store, {2: b"b"}))))
    store.background([hold])
    leader.join()
    follower.join(10)
    assert len(outcomes) == 1
    assert {row_key(1), row_key(2)} <= contents(store).keys()
    assert not queue.leader
    assert not queue.within


def test_those_who_look_for_a_leader_all_the_time_find_none_lost(store: Store, monkeypatch) -> None:
    monkeypatch.setattr(group, "_LOOK_SECONDS", 0.0001)
    change(store, {0: bytes(4)})
    until, counts = time.monotonic() + 0.5, [0, 0, 0, 0]

    def works(thread: int) -> None:
        def derive(view: View) -> RowCommit:
            stored = view.get(row_key(0))
            assert stored is not None
            number = int.from_bytes(stored[ROW_HEADER.size :], "big") + 1
            return RowCommit(TABLE, 1, row_key(0), stored, number.to_bytes(4, "big"), 1)

        while time.monotonic() < until:
            assert store.commit_derived(derive)
            counts[thread] += 1

    threads = [threading.Thread(target=works, args=(thread,)) for thread in range(len(counts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(counts)
    assert int.from_bytes(contents(store)[row_key(0)][ROW_HEADER.size :], "big") == sum(counts)


def test_a_child_that_is_forked_in_the_middle_of_a_commit_does_not_wait_for_that_thread(store: Store) -> None:
    entered, leave = threading.Event(), threading.Event()

    def derive(_view: View) -> None:
        entered.set()
        assert leave.wait(10)

    committing = threading.Thread(target=store.commit_derived, args=(derive,))
    committing.start()
    assert entered.wait(10)
    child = in_child(lambda: change(store, {1: b"child"}))
    leave.set()
    assert ended(child) == 0
    committing.join()


def test_an_interrupted_follower_takes_its_commit_out_of_the_queue(store: Store) -> None:
    """Ctrl-C in the main thread while it waits for a leader that waits for the section."""

    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    entered, leave = threading.Event(), threading.Event()

    def hold(_section: Section) -> None:
        entered.set()
        leave.wait()

    holder = threading.Thread(target=store.background, args=([hold],))
    leader = threading.Thread(target=change, args=(store, {1: b"leader"}))
    mine = request(store, {2: b"interrupted"})
    holder.start()
    entered.wait()
    leader.start()
    while not store._queue.leader:  # type: ignore[attr-defined] # the only place that tells
        leader.join(0.001)
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    try:
        with pytest.raises(KeyboardInterrupt):
            store.commit(mine)
    finally:
        signal.signal(signal.SIGALRM, before)
        leave.set()
    leader.join()
    holder.join()
    assert row_key(1) in contents(store)
    assert row_key(2) not in contents(store)
    store.commit(mine)
