"""The header, the log's end, and what they say together."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from instar.clock import ManualClock
from instar.errors import Error
from instar.store import open_store
from instar.store.engine import Commit, RowCommit, Section, Store, View
from instar.store.header import HEADER_KEY, HOUR_NS, Header, decode_header
from store.building import TABLE, change, contents, dead_entries, ended, in_child, queued, raw, request, row_key

SECOND = 10**9
LOG = (b"\xf0", b"\xf1")


def stored(store: Store) -> Header:
    return decode_header(contents(store)[HEADER_KEY])


def holds_together(store: Store) -> int:
    """What readers are told is what the records say; returns the newest timestamp."""
    header, log = stored(store), contents(store, *LOG)
    with store.read() as reader:
        timestamp = reader.timestamp
        assert (reader.catalog_version, reader.watermark) == (header.catalog_version, header.watermark)
    assert timestamp == max([header.timestamp, *(int.from_bytes(key[1:9], "big") for key in log)])
    assert store.log_bytes() == sum(len(key) + len(value) for key, value in log.items())
    assert store.now() > timestamp
    return timestamp


def test_a_fresh_store(store: Store) -> None:
    assert holds_together(store) == 1
    assert stored(store)[:5] == (0, 1, 0, 0, 0)


def test_commits_that_leave_records_leave_the_header_alone(store: Store) -> None:
    change(store, {1: b"a"})
    before = stored(store)
    for body in (b"b", b"c", None):
        assert change(store, {1: body}) == holds_together(store)
    assert stored(store) == before


def test_commits_without_records_write_it(store: Store) -> None:
    change(store, {1: b"a"})
    for commit in (lambda: raw(store, (b"\x03\x01", b"1")), lambda: raw(store, bump=True), lambda: change(store, {})):
        timestamp = commit()
        assert stored(store).timestamp == timestamp == holds_together(store)
        assert stored(store).log_end == store.log_bytes()
    assert change(store, {1: b"b"}) == holds_together(store) == timestamp + 1
    assert stored(store).catalog_version == 1


def test_a_commit_with_records_that_bumps_the_catalog(store: Store) -> None:
    commit = request(store, {1: b"a"})
    commit.bump_catalog = True
    assert store.commit(commit) == holds_together(store) == stored(store).timestamp
    assert stored(store).catalog_version == 1


@pytest.mark.parametrize("last", ["record", "none", "refused"])
def test_groups(store: Store, last: str) -> None:
    change(store, {1: b"a"})
    kinds = {
        "record": request(store, {2: b"b"}),
        "none": Commit(catalog_version=0, raw=[(b"\x03\x01", b"1")]),
        "refused": Commit(catalog_version=0, claim=(b"\x03\x02", b"?")),
    }
    order = [kinds.pop(last)]
    outcomes = queued(store, [*kinds.values(), *order])
    timestamps = [outcome for outcome in outcomes if isinstance(outcome, int)]
    assert max(timestamps) == holds_together(store)
    assert all(one != other for one, other in pairwise(sorted(timestamps)))
    assert len(timestamps) == 2


def test_the_whole_log_is_collected(store: Store) -> None:
    for body in (b"a", b"b", None):
        newest = change(store, {1: body})
    assert store.collect(newest, dead_entries) == 3
    assert contents(store, *LOG) == {}
    assert holds_together(store) == newest == stored(store).timestamp == stored(store).watermark
    assert stored(store).log_start == stored(store).log_end > 0
    assert change(store, {1: b"c"}) == holds_together(store) == newest + 1
    assert store.collect(newest, dead_entries) == 0
    assert holds_together(store) == newest + 1


def test_half_the_log_is_collected_twice(store: Store) -> None:
    timestamps = [change(store, {1: bytes([65 + number])}) for number in range(10)]
    for upto in (timestamps[4], timestamps[2], timestamps[4]):
        store.collect(upto, dead_entries)
        assert holds_together(store) == timestamps[-1]
        assert stored(store).watermark == timestamps[4]
    assert len(contents(store, *LOG)) == 5


def test_derived_commits(store: Store) -> None:
    change(store, {1: b"a"})

    def derive(view: View) -> RowCommit:
        assert view.timestamp == holds_together(store)
        return RowCommit(TABLE, 1, row_key(1), view.get(row_key(1)) or b"", b"b", 1, [])

    assert store.commit_derived(derive) == holds_together(store)
    before = holds_together(store)
    assert store.commit_derived(lambda _view: None) == 0
    assert holds_together(store) == before


def test_what_fails_leaves_no_trace(store: Store) -> None:
    before = change(store, {1: b"a"})
    long = Commit(catalog_version=0, raw=[(bytes(600), b"")], bump_catalog=True)
    with pytest.raises(Error):
        store.commit(long)
    assert holds_together(store) == before
    assert change(store, {1: b"b"}) == holds_together(store) == before + 1
    with store.read() as reader:
        assert reader.catalog_version == 0


def test_what_is_remembered_of_the_clocks(store: Store, clock: ManualClock) -> None:
    change(store, {1: b"a"})
    first = stored(store)
    clock.advance(7200)
    change(store, {1: b"b"})
    clock.wall -= 7200 * SECOND  # it falls
    change(store, {1: b"c"})
    clock.wall += 7200 * SECOND + SECOND // 2  # it recovers, and gains half a second
    change(store, {1: b"d"})
    assert stored(store) == first
    clock.wall += SECOND  # a second and a half on what is remembered
    change(store, {1: b"e"})
    assert stored(store)[5:] == (clock.boot, clock.monotonic, clock.wall)
    clock.wall += HOUR_NS - SECOND
    assert change(store, {1: b"f"}) >> 20 == clock.wall // 10**6
    assert stored(store).wall == clock.wall
    second = stored(store)
    clock.wall += HOUR_NS + SECOND  # not believed
    assert change(store, {1: b"g"}) >> 20 == second.wall // 10**6
    assert stored(store) == second
    clock.boot = b"\x02" * 16
    assert change(store, {1: b"h"}) >> 20 == clock.wall // 10**6
    assert stored(store)[5:] == (clock.boot, clock.monotonic, clock.wall)
    holds_together(store)


# Of the lmdb engine: what a process remembers, and what other processes do.


@pytest.fixture
def shared(tmp_path: Path, clock: ManualClock) -> Store:
    return open_store(tmp_path / "store", synchronous="off", clock=clock)


def elsewhere(work: Callable[[], object]) -> None:
    assert ended(in_child(work)) == 0


def test_another_process_commits(shared: Store) -> None:
    change(shared, {1: b"a"})
    for commit in (
        lambda: change(shared, {1: b"b"}),
        lambda: raw(shared, bump=True),
        lambda: shared.collect(shared.now(), dead_entries),
        lambda: change(shared, {1: b"c"}),
    ):
        before = holds_together(shared)
        elsewhere(commit)
        assert holds_together(shared) >= before
        elsewhere(commit)
        assert change(shared, {2: b"x"}) == holds_together(shared) > before
    with shared.read() as reader:
        assert reader.catalog_version == 2
    shared.close()


@pytest.mark.parametrize("nothing", ["empty batch", "batch", "refused", "failed", "aborted"])
def test_numbers_of_transactions_that_left_nothing_are_used_again(shared: Store, nothing: str) -> None:
    """LMDB gives them to whoever commits next, so they must not be remembered."""
    change(shared, {1: b"a"})

    def fail(section: Section) -> None:
        section.put(b"\x03\x01", b"1")
        raise ZeroDivisionError

    match nothing:
        case "empty batch":
            shared.background([lambda _section: None])
        case "batch":
            shared.background([lambda section: section.put(b"\x03\x01", b"1")])  # type: ignore[list-item] # its result is not looked at
        case "refused":
            assert shared.commit_derived(lambda _view: None) == 0
        case "failed":
            with pytest.raises(Error):
                shared.commit(Commit(catalog_version=0, raw=[(bytes(600), b"")], bump_catalog=True))
        case "aborted":
            with pytest.raises(ZeroDivisionError):
                shared.background([fail])
    elsewhere(lambda: change(shared, {1: b"b"}))
    newest = holds_together(shared)
    assert [record.timestamp for record in shared.log(0, newest)][-1] == newest
    assert change(shared, {1: b"c"}) == holds_together(shared) == newest + 1
    shared.close()


def test_a_kill_between_writes_and_commit(shared: Store) -> None:
    newest = change(shared, {1: b"a"})

    def die(section: Section) -> None:
        section.put(b"\x03\x01", b"1")
        section.delete(max(contents(shared, *LOG)))
        os._exit(7)

    for _ in range(2):
        assert ended(in_child(lambda: shared.background([die]))) == 7
        assert holds_together(shared) == newest
    assert change(shared, {1: b"b"}) == holds_together(shared) == newest + 1
    shared.close()


def test_it_is_found_again(shared: Store, tmp_path: Path, clock: ManualClock) -> None:
    change(shared, {1: b"a"})
    newest, bytes_ = change(shared, {1: b"b"}), shared.log_bytes()
    shared.close()
    again = open_store(tmp_path / "store", clock=clock)
    assert (holds_together(again), again.log_bytes()) == (newest, bytes_)
    again.collect(newest, dead_entries)
    again.close()
    again = open_store(tmp_path / "store", clock=clock)
    assert (holds_together(again), again.log_bytes()) == (newest, 0)
    again.close()
