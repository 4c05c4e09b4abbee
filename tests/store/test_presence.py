"""Who has the store open: what one process says and the others read."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest

from instar.clock import ManualClock
from instar.store import open_store
from instar.store.presence import (
    _LEASE,
    _VERSION,
    _WORDS,
    _WRITERS,
    LATENCY_NS,
    LAUNCH_NS,
    STARTING_NS,
    WORKER_NS,
    SharedPresence,
)
from store.building import raw
from store.test_writeback import until


def test_of_all_processes_one_starts_the_worker(clock: ManualClock, tmp_path: Path) -> None:
    """Each that started one would have it load for a second, to find the other there."""
    first, second = (SharedPresence(str(tmp_path / "presence"), clock, 3600.0) for _ in range(2))
    assert first.wants_worker()
    assert not second.wants_worker()
    assert not first.wants_worker()
    assert second.worker_starting()
    clock.monotonic += LAUNCH_NS  # it has died of something
    assert second.wants_worker()
    assert not first.wants_worker()
    worker = SharedPresence(str(tmp_path / "presence"), clock, 3600.0)
    assert second.worker_starting()
    worker.announce_worker(True)
    assert not second.worker_starting()
    assert not first.wants_worker()
    worker.close()  # without a word, as who is killed
    assert not second.worker_starting()
    assert first.wants_worker()
    clock.monotonic += STARTING_NS - 1
    assert second.worker_starting()
    clock.monotonic += 1  # it has died of something
    assert not second.worker_starting()
    first.close()
    second.close()


class ClosingClock(ManualClock):
    """Closes a presence when it is next asked for the time."""

    closing: SharedPresence | None = None

    def monotonic_ns(self) -> int:
        closing, self.closing = self.closing, None
        if closing is not None:
            closing.close()
        return super().monotonic_ns()


def test_a_commit_that_ends_while_another_thread_closes_the_store_has_ended_well(tmp_path: Path) -> None:
    clock = ClosingClock()
    first, second = (SharedPresence(str(tmp_path / "presence"), clock, 3600.0) for _ in range(2))
    first.wait_begins()
    clock.closing = first
    first.wait_ends()  # between two of its words
    assert second.is_alone()
    third = SharedPresence(str(tmp_path / "presence"), clock, 3600.0)
    assert not second.is_alone()
    third.close()
    assert second.is_alone()
    second.close()


@pytest.mark.parametrize("synchronous", ["off", "full"])
def test_a_store_that_is_closed_holds_nothing(tmp_path: Path, synchronous: str) -> None:
    """Not even until garbage is collected: who opens and closes often has few descriptors."""
    path = tmp_path / "store"

    def held() -> list[str]:
        links = [f"/proc/self/fd/{file}" for file in os.listdir("/proc/self/fd")]
        return [link for link in links if os.path.exists(link) and os.readlink(link).startswith(str(path))]

    gc.disable()
    try:
        for _ in range(3):
            store = open_store(str(path), synchronous=synchronous)
            raw(store, (b"\x03\x01a", b"1"))
            assert held()
            store.close()
            until(lambda: not held())  # a thread may be at its last look
            assert str(path) not in Path("/proc/self/maps").read_text()
    finally:
        gc.enable()


def test_a_worker_that_says_no_more_does_not_count(clock: ManualClock, tmp_path: Path) -> None:
    worker, client = (SharedPresence(str(tmp_path / "presence"), clock, 3600.0) for _ in range(2))
    worker.worker_goes_on()
    assert not client.worker_present()  # it was never announced
    worker.announce_worker(True)
    clock.monotonic += WORKER_NS - 1
    assert client.worker_present()
    worker.worker_goes_on()
    clock.monotonic += WORKER_NS - 1
    assert not client.wants_worker()
    clock.monotonic += 1  # stopped, or it hangs
    assert not client.worker_present()
    assert client.wants_worker()
    worker.worker_goes_on()
    assert client.worker_present()
    worker.announce_worker(False)
    worker.worker_goes_on()
    assert not client.worker_present()
    worker.close()
    client.close()


class _Renewing:
    """Words of presence whose owner renews, to another version, between any two looks at version and lease."""

    def __init__(self, words: Any, owner: SharedPresence) -> None:
        self._words, self._owner = words, owner
        self._version = 1

    def __getitem__(self, index: int) -> int:
        found: int = self._words[index]
        if index % _WORDS in (_VERSION, _LEASE):
            self._version += 1
            self._owner.publish_schema(self._version, self._version * 100)
        return found


def test_a_lease_is_never_shown_with_an_older_version(clock: ManualClock, tmp_path: Path) -> None:
    """Whoever looked would take a server that has just renewed for one that is behind, and may write."""
    owner, other = (SharedPresence(str(tmp_path / "presence"), clock, 3600.0) for _ in range(2))
    owner.publish_schema(1, 100)
    words: Any = other._words
    renewing: Any = _Renewing(words, owner)
    other._words = renewing
    seen = [found for found in other.processes() if found.schema_version]
    other._words = words
    assert [(found.schema_version, found.lease_until_ns) for found in seen] == [(2, 100)]
    owner.close()
    other.close()


def test_what_a_process_says_of_its_writers_is_read_by_the_others(clock: ManualClock, tmp_path: Path) -> None:
    one, two = (SharedPresence(str(tmp_path / "presence"), clock, 300.0) for _ in range(2))
    one.enlist(7, 1_700_000_000_123_456)
    refused = one.enlist(2**31 - 1, 1_700_000_001_000_000, refused=True)
    one.enlist(0, 1_700_000_002_000_000, refused=True)
    said = {(found.table, found.begun_us, found.refused) for found in two.writers()}
    assert said == {
        (7, 1_700_000_000_000_000, False),
        (2**31 - 1, 1_700_000_001_000_000, True),
        (0, 1_700_000_002_000_000, True),
    }
    one.withdraw(refused)
    assert {found.table for found in two.writers()} == {0, 7}
    assert {found.refused for found in two.writers() if found.table == 0} == {True}
    for presence in (one, two):
        presence.close()


def test_writers_beyond_the_words_are_told_of_together_and_one_by_one_as_there_is_room(
    clock: ManualClock, tmp_path: Path
) -> None:
    one, two = (SharedPresence(str(tmp_path / "presence"), clock, 300.0) for _ in range(2))
    shown = [one.enlist(100 + number, 5_000_000) for number in range(len(_WRITERS))]
    more = [one.enlist(table, begun) for table, begun in ((7, 3_000_000), (8, 2_000_000))]
    refused = one.enlist(9, 4_000_000, refused=True)

    def several() -> list[tuple[int, bool]]:
        return sorted((found.begun_us, found.refused) for found in two.writers() if not found.table)

    assert several() == [(2_000_000, False), (4_000_000, True)]
    assert [found.table for found in one.writers() if found.table in (7, 8, 9)] == [7, 8, 9]  # its own it knows
    one.withdraw(shown[3])
    assert 7 in [found.table for found in two.writers()]
    one.withdraw(more[1])
    assert several() == [(4_000_000, True)]
    one.withdraw(shown[0])
    assert several() == []
    assert [(found.table, found.begun_us, found.refused) for found in two.writers() if found.table in (7, 8, 9)] == [
        (9, 4_000_000, True),
        (7, 3_000_000, False),
    ]
    for token in (*shown, more[0], refused):
        one.withdraw(token)
    assert two.writers() == one.writers() == []
    for presence in (one, two):
        presence.close()


def test_what_the_dead_have_said_before_the_host_was_started_again_counts_for_nothing(
    clock: ManualClock, tmp_path: Path
) -> None:
    """The times of those that were killed lie ahead of the new clock's: commits would seem to be about for as long as
    the host was up before, and the index builds of all that time would crawl."""
    path = str(tmp_path / "presence")
    one, two, three = (SharedPresence(path, clock, 300.0) for _ in range(3))
    for presence in (one, two, three):
        presence.wait_begins()
        presence.wait_ends()
        presence.abandon()  # without a word, as who is killed
    clock.monotonic = 1_000_000_000
    first, second = (SharedPresence(path, clock, 300.0) for _ in range(2))
    assert not first.foreground_about()
    assert not first.others_commit()
    assert first.foreground_latency() is None
    for presence in (first, second):
        presence.close()


def test_who_has_ended_is_read_by_the_others(clock: ManualClock, tmp_path: Path) -> None:
    """Of owners that an older one outlives nothing can be said, until that has ended."""
    one, two = (SharedPresence(str(tmp_path / "presence"), clock, 300.0) for _ in range(2))
    slot, _ = one.this_slot()
    first, second, third = (one.begin_owner() for _ in range(3))
    assert not one.end_owner(second)
    assert [two.has_ended(slot, number) for number in (first, second, third)] == [False] * 3
    assert one.end_owner(first)
    assert [two.has_ended(slot, number) for number in (first, second, third)] == [True, True, False]
    assert one.end_owner(third)
    fourth = one.begin_owner()
    assert [two.has_ended(slot, number) for number in (third, fourth)] == [True, False]
    assert not two.has_ended(two.this_slot()[0], 1)
    for presence in (one, two):
        presence.close()


def test_others_commit_where_another_process_has_that_is_no_worker(clock: ManualClock, tmp_path: Path) -> None:
    here, other = (SharedPresence(str(tmp_path / "presence"), clock, 3600.0) for _ in range(2))
    clock.monotonic += 10 * LATENCY_NS
    for committing, seen in ((here, False), (other, True)):
        committing.wait_begins()
        committing.wait_ends()
        assert here.others_commit() == seen
    clock.monotonic += LATENCY_NS
    assert not here.others_commit()
    other.announce_worker(True)
    other.wait_begins()
    other.wait_ends()
    assert not here.others_commit()
    here.close()
    other.close()
