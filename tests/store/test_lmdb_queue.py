"""A row alone, committed in a straight line: the same bytes as by way of a section, the same refusals, nothing kept."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from instar.clock import ManualClock
from instar.errors import Error
from instar.store import open_store
from instar.store.engine import (
    ROW_HEADER,
    Commit,
    EntryWrite,
    Lease,
    LeaseExpired,
    Refused,
    RowCommit,
    RowWrite,
    TableWrites,
    View,
)
from instar.store.group import CommitQueue
from instar.store.header import HEADER_KEY, IDENTITY_KEY
from instar.store.lmdb import LmdbStore
from instar.store.lmdb_opened import Environment, ForkedEnvironment
from instar.store.lmdb_queue import LmdbQueue, _has_room
from instar.store.lock_modes import Mode
from instar.store.lock_table import Locked
from instar.store.mapped_section import PATH_PAGES
from instar.store.space import SLACK_BYTES
from store.building import ROWS, TABLE, body_of, change, contents, ended, in_child, raw, row_key

ROW_COUNT = 4


def opened(path: Path, clock: ManualClock | None = None, synchronous: str = "off") -> LmdbStore:
    store = open_store(path, synchronous=synchronous, clock=clock)
    assert isinstance(store, LmdbStore)
    change(store, dict.fromkeys(range(ROW_COUNT), b"a"))
    return store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbStore]:
    made = opened(tmp_path / "store")
    yield made
    made.close()


def putting(number: int, body: bytes | None, **fields: Any) -> Callable[[View], RowCommit | None]:
    """What updates or deletes a row that stands."""

    def derive(view: View) -> RowCommit | None:
        stored = view.get(row_key(number))
        if stored is None or ROW_HEADER.unpack_from(stored)[2] & 1:
            return None
        return RowCommit(TABLE, 1, row_key(number), stored, body, 1, **fields)

    return derive


def inserting(number: int, body: bytes, **fields: Any) -> Callable[[View], RowCommit | None]:
    """What inserts a row where none stands."""

    def derive(view: View) -> RowCommit | None:
        stored = view.get(row_key(number))
        if stored is not None and not ROW_HEADER.unpack_from(stored)[2] & 1:
            return None
        return RowCommit(TABLE, 1, row_key(number), stored, body, 1, **fields)

    return derive


def sections(store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Has an item for each section that is made from now on."""
    made: list[object] = []
    section = store._environment.section

    def counted(transaction: object) -> object:
        made.append(transaction)
        return section(transaction)

    monkeypatch.setattr(store._environment, "section", counted)
    return made


OPERATIONS = st.one_of(
    st.tuples(st.just("put"), st.integers(0, ROW_COUNT - 1), st.integers(0, 6000), st.booleans()),
    st.tuples(st.just("entry"), st.integers(0, ROW_COUNT - 1), st.lists(st.tuples(st.integers(0, 5), st.booleans()))),
    st.tuples(st.just("part"), st.integers(0, ROW_COUNT - 1), st.integers(0, 9)),
    st.tuples(st.just("delete"), st.integers(0, ROW_COUNT - 1)),
    st.tuples(st.just("insert"), st.integers(0, 2 * ROW_COUNT), st.integers(0, 6000), st.booleans()),
    st.tuples(st.just("insert part"), st.integers(0, 2 * ROW_COUNT), st.integers(0, 9), st.booleans()),
    st.tuples(
        st.just("several"),
        st.lists(
            st.tuples(st.integers(0, 2 * ROW_COUNT), st.one_of(st.none(), st.integers(0, 3000)), st.booleans()),
            unique_by=lambda row: row[0],
        ),
    ),
    st.tuples(st.just("clock"), st.sampled_from([0.0, 0.0004, 0.9, 1.1, 40.0, -0.5, -40.0]), st.booleans()),
    st.tuples(st.just("forget")),
    st.tuples(st.just("schema")),
)


@example([("clock", 40.0, False), ("put", 1, 1, False), ("clock", 0.9, False), ("put", 1, 1, False)])
@given(st.lists(OPERATIONS, max_size=40))
@settings(max_examples=60, deadline=None)
def test_the_same_bytes_as_by_way_of_a_section(tmp_path_factory: pytest.TempPathFactory, script: list[Any]) -> None:
    clock, path = ManualClock(), tmp_path_factory.mktemp("straight")
    straight, general = opened(path / "straight", clock), opened(path / "general", clock)
    try:
        for step in script:
            if step[0] == "clock":
                clock.wall += int(step[1] * 1e9)
                clock.monotonic += int(abs(step[1]) * 1e9) if step[2] else 0
                continue
            if step[0] == "forget":  # as if another process had committed
                straight._environment.newest = -2, straight._environment.newest[1]
                continue
            if step[0] == "schema":
                raw(straight, (b"\x03\x01", b"x"), bump=True)
                raw(general, (b"\x03\x01", b"x"), bump=True)
                continue
            derive = _derive(step)
            if step[0].startswith("insert") and body_of(contents(general).get(row_key(step[1]))) is None:
                made = general.commit(_general(general, derive))
            else:
                made = CommitQueue.commit(general._environment.queue, derive)
            assert straight.commit_derived(derive) == made
        found, expected = (
            {key: value for key, value in contents(each).items() if key != IDENTITY_KEY} for each in (straight, general)
        )
        assert found == expected
        assert HEADER_KEY in found
        assert straight._environment.newest[1] == general._environment.newest[1]
    finally:
        straight.close()
        general.close()


def entry(byte: int, *, live: bool) -> EntryWrite:
    return EntryWrite(b"\x10\x00\x00\x00\x02" + bytes([byte]), 5, live)


def _general(store: LmdbStore, derive: Callable[[View], RowCommit | None]) -> Commit:
    """What is derived as the commit of anything."""
    with store.read() as reader:
        row = derive(reader)
        assert row is not None
        written = RowWrite(row.key, row.stored, row.body, row.layout, row.locks, row.pair)
        writes = TableWrites(row.table, row.version, 0, [written], whole=row.whole)
        return Commit(catalog_version=reader.catalog_version, tables=[writes], entries=list(row.entries))


def _derive(step: Any) -> Callable[[View], RowCommit | None]:
    match step:
        case "put", number, size, whole:
            return putting(number, b"b" * size, whole=whole)
        case "entry", number, entries:
            return putting(number, b"c", entries=[entry(byte, live=live) for byte, live in entries])
        case "part", number, lock:
            return putting(number, b"d", locks=(0, lock), pair=lock, renewed=bool(lock))
        case "delete", number:
            return putting(number, None, entries=[entry(number, live=False)])
        case "insert", number, size, whole:
            return inserting(number, b"e" * size, whole=whole, entries=[entry(number, live=True)] if whole else ())
        case "insert part", number, pair, whole:
            return inserting(number, b"f", locks=(0, pair), pair=pair, whole=whole)
        case "several", rows:
            return _several(rows)
    raise AssertionError(step)


def _several(rows: list[tuple[int, int | None, bool]]) -> Callable[[View], RowCommit | None]:
    """Rows of one commit, by number, size (None: those that stand are deleted) and whether they are logged whole."""

    def derive(view: View) -> RowCommit | None:
        made = []
        for number, size, whole in rows:
            stored = view.get(row_key(number))
            body = None if size is None else b"s" * size
            if body is not None or (stored is not None and not ROW_HEADER.unpack_from(stored)[2] & 1):
                entries = [entry(number, live=body is not None)] if whole else ()
                made.append(RowCommit(TABLE, 1, row_key(number), stored, body, 1, entries, whole=whole))
        if made:
            made[0].more = made[1:]
        return made[0] if made else None

    return derive


def test_only_what_has_more_to_do_makes_a_section(store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
    made = sections(store, monkeypatch)
    assert store.commit_derived(putting(1, b"b"))
    assert store.commit_derived(putting(1, b"c", whole=True))
    assert not store.commit_derived(lambda view: None)
    assert store.commit_derived(putting(1, b"d", entries=[entry(1, live=True), entry(2, live=False)]))
    assert store.commit_derived(putting(1, None))
    assert store.commit_derived(inserting(ROW_COUNT, b"e", whole=True, entries=[entry(2, live=True)]))
    assert store.commit_derived(_several([(2, 3, True), (3, None, True), (9, 4, False)]))
    assert not made
    assert store.commit_derived(_several([(2, 3, True), (1, 1, False)]))  # over a tombstone
    assert store.commit_derived(inserting(3, b"f"))
    assert store.commit_derived(putting(1, b"g", locks=(0, 5)))
    assert len(made) == 3


def test_locks_take_no_section(store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction takes one for each row that it locks."""
    made = sections(store, monkeypatch)
    owner = store.locks.new_owner()
    store.lock(owner, [(row_key(1), Mode.UPDATE)])
    assert not made
    with pytest.raises(Locked):
        store.commit_derived(putting(1, b"b"))
    assert store.commit_derived(putting(2, b"b"))
    made.clear()
    assert store.commit_derived(putting(1, b"c", held=True))
    assert not made
    store.locks.end(owner)
    assert store.commit_derived(putting(1, b"b"))


def test_a_commit_that_was_refused_is_judged_no_more(store: LmdbStore) -> None:
    """Else who locks next would enter the section, to see what it has done."""

    def refuse(view: View) -> RowCommit | None:
        raise Refused

    with pytest.raises(Refused):
        store.commit_derived(refuse)
    with store.read() as view:
        assert store._presence.judged() <= view.number


@pytest.mark.parametrize("more", [0, 1, 3])
@pytest.mark.parametrize("entries", [0, 1, 5])
def test_entries_need_room_as_rows_do(entries: int, more: int) -> None:
    """Each put may copy and split a whole path, as a section allows for."""
    rows = [RowCommit(TABLE, 1, row_key(number), None, b"", 1, [entry(1, live=True)] * 2) for number in range(more)]
    page = 4096
    needed = SLACK_BYTES + (1 + entries + 3 * more) * PATH_PAGES * page + page
    for spare, expected in ((0, False), (page, True)):
        space = SimpleNamespace(used=lambda: 0, page_bytes=page, reserved=needed + spare)
        assert _has_room(space, 100, entries, rows) is expected  # type: ignore[arg-type]  # that is all it asks for


def test_a_lease_that_has_run_out(store: LmdbStore) -> None:
    before = contents(store)
    with pytest.raises(LeaseExpired):
        store.commit_derived(putting(1, b"b", lease=Lease(0)))
    assert contents(store) == before
    assert store.commit_derived(putting(1, b"b", lease=Lease(1 << 62)))


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(Error("no", "22003"), "22003"), (OSError(28, "No space left on device"), "53100"), (KeyError("k"), None)],
)
def test_what_deriving_raises_leaves_no_trace(store: LmdbStore, raised: Exception, expected: str | None) -> None:
    def derive(view: View) -> RowCommit | None:
        assert view.get(row_key(1)) is not None
        raise raised

    before = contents(store)
    with pytest.raises(Exception) as caught:
        store.commit_derived(derive)
    assert getattr(caught.value, "sqlstate", None) == expected
    assert contents(store) == before
    assert store.commit_derived(putting(1, b"b"))


def test_an_interrupt_leaves_the_section(store: LmdbStore) -> None:
    def derive(view: View) -> RowCommit | None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.commit_derived(derive)
    assert ended(in_child(lambda: change(opened_again(store), {1: b"b"}))) == 0
    assert store.commit_derived(putting(2, b"b"))


def _call(queue: LmdbQueue, name: str, *arguments: object) -> object:
    return getattr(queue, name)(*arguments)


@pytest.mark.parametrize("synchronous", ["off", "full"])
@pytest.mark.parametrize("place", ["section", "_led", "_alone", "_with_followers", "_drain", "_together"])
def test_an_interrupt_between_two_calls_leaves_the_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, synchronous: str
) -> None:
    """It is kept with its traceback, and so is all that the frames knew: the mutex is free all the same."""
    store = opened(tmp_path / "store", synchronous=synchronous)
    environment = store._environment
    where = environment if place == "section" else environment.queue

    def interrupted(*_arguments: object) -> None:
        raise KeyboardInterrupt

    if place in ("_with_followers", "_drain", "_together"):
        queue = environment.queue
        monkeypatch.setattr(queue, "_alone", partial(_call, queue, "_with_followers", 0))
    monkeypatch.setattr(where, place, interrupted)
    kept = []
    commits: list[Callable[[], object]] = [lambda: change(store, {1: b"b"})]
    if place != "_led":
        commits.append(lambda: store.commit_derived(putting(1, b"c", locks=(0, 5))))
    for commit in commits:
        with pytest.raises(KeyboardInterrupt) as caught:
            commit()
        kept.append(caught)
    monkeypatch.undo()
    assert not environment.inside
    assert ended(in_child(lambda: change(opened_again(store), {1: b"b"}))) == 0
    change(store, {2: b"b"})
    store.close()


def test_an_interrupt_of_background_work_leaves_the_section(store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store._environment, "section", interrupted)
    with pytest.raises(KeyboardInterrupt) as kept:
        store.background([lambda section: None])
    monkeypatch.undo()
    assert ended(in_child(lambda: change(opened_again(store), {1: b"b"}))) == 0
    assert kept.value is not None


def test_an_interrupt_at_the_lock_table_leaves_it(store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Just when it has been entered, before anybody would leave it."""

    def interrupted(*_arguments: object, **_named: object) -> None:
        raise KeyboardInterrupt

    for place in ("instar.store.lmdb_locks._Transaction", "instar.store.lmdb_locks.LmdbLockTable._begun"):
        owner = store.locks.new_owner()
        monkeypatch.setattr(place, interrupted)
        with pytest.raises(KeyboardInterrupt) as kept:
            store.lock(owner, [(row_key(1), Mode.UPDATE)])
        monkeypatch.undo()
        other = threading.Thread(target=store.lock, args=(owner, [(row_key(1), Mode.UPDATE)]))
        other.start()
        other.join(10.0)
        assert not other.is_alive()
        assert ended(in_child(lambda: locked(opened_again(store)))) == 0
        store.locks.end(owner)
        assert kept.value is not None


def locked(store: LmdbStore) -> None:
    store.lock(store.locks.new_owner(), [(row_key(2), Mode.SHARE)])


def opened_again(store: LmdbStore) -> LmdbStore:
    found = open_store(store._environment.path)
    assert isinstance(found, LmdbStore)
    return found


def test_what_lmdb_refuses_is_undone(store: LmdbStore) -> None:
    key = ROWS + b"k" * 600
    with pytest.raises(Error) as caught:
        store.commit_derived(lambda view: RowCommit(TABLE, 1, key, b"\0" * ROW_HEADER.size, b"b", 1))
    assert caught.value.sqlstate == "54000"
    assert store.commit_derived(putting(1, b"b"))


def test_a_closing_store_waits_for_who_derives(tmp_path: Path) -> None:
    store, entered, leave = opened(tmp_path / "store"), threading.Event(), threading.Event()

    def derive(view: View) -> RowCommit | None:
        entered.set()
        assert leave.wait(20.0)
        return putting(1, b"last")(view)

    committing = threading.Thread(target=store.commit_derived, args=(derive,))
    committing.start()
    assert entered.wait(20.0)
    closing = threading.Thread(target=store.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    leave.set()
    closing.join(20.0)
    committing.join(20.0)
    again = open_store(tmp_path / "store")
    assert body_of(contents(again)[row_key(1)]) == b"last"
    again.close()
    with pytest.raises(Error) as caught:
        store.commit_derived(putting(1, b"b"))
    assert caught.value.sqlstate == "08003"


@pytest.mark.parametrize("synchronous", ["off", "full"])
def test_threads_and_processes_count_together(tmp_path: Path, synchronous: str) -> None:
    """Each adds to the same row, by what it finds there: nothing is lost between those that commit alone, those that
    commit in a group, and other processes."""
    store = opened(tmp_path / "store", synchronous=synchronous)
    change(store, {0: (0).to_bytes(4, "big")})
    per_thread = 300 if synchronous == "off" else 60

    def add(view: View) -> RowCommit | None:
        stored = view.get(row_key(0))
        assert stored is not None
        count = int.from_bytes(stored[ROW_HEADER.size :], "big")
        return RowCommit(TABLE, 1, row_key(0), stored, (count + 1).to_bytes(4, "big"), 1)

    def adds(added: LmdbStore) -> None:
        for _ in range(per_thread):
            assert added.commit_derived(add)

    def threads_add() -> None:
        threads = [threading.Thread(target=adds, args=(store,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    children = [in_child(threads_add) for _ in range(2)]
    threads_add()
    assert [ended(child) for child in children] == [0, 0]
    assert contents(store)[row_key(0)][ROW_HEADER.size :] == (9 * per_thread).to_bytes(4, "big")
    store.close()


def test_a_forked_child_opens_what_it_needs_anew(store: LmdbStore) -> None:
    def child() -> None:
        assert type(store._environment) is ForkedEnvironment
        assert store.commit_derived(putting(1, b"child"))
        assert type(store._environment) is Environment

    assert ended(in_child(child)) == 0
    assert body_of(contents(store)[row_key(1)]) == b"child"


def test_blocks_are_reserved_for_what_grows(store: LmdbStore) -> None:
    """What is not there is granted by the way of a section."""
    space = store._environment.space
    assert space is not None
    for number in range(3000):
        assert store.commit_derived(putting(number % ROW_COUNT, os.urandom(number % 3000)))
        assert space.used() <= space.reserved
