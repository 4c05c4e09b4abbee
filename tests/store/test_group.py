"""Group commit: what threads that commit at once get, together and each."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from instar.errors import Error
from instar.store.engine import Commit, EntryWrite, Section, StaleRow, Store, TableWrites
from store.building import ALL_ENTRIES, TABLE, body_of, change, contents, queued, request, row_key, row_writes


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
    while not store._queue._lead.locked():  # type: ignore[attr-defined] # the only place that tells
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
