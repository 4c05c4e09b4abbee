"""Read sets: ranges that stay few, and never lose a key."""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar.transactions import reads
from instar.transactions.reads import KeyRanges, Place, ReadSet

ROWS = Place(1, None, 7, frozenset({1}))
keys = st.binary(min_size=1, max_size=2)
ranges = st.tuples(keys, keys).map(lambda pair: (min(pair), max(pair) + b"\x00"))


def covers(found: KeyRanges, key: bytes) -> bool:
    return any(start <= key < stop for start, stop in found.ordered())


@given(st.lists(ranges, max_size=40), st.integers(2, 50))
def test_ranges_hold_what_was_added_in_order_and_in_bounds(added: list[tuple[bytes, bytes]], most: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reads, "MOST_RANGES", most)
        found = KeyRanges()
        for start, stop in added:
            found.add(start, stop)
        ordered = found.ordered()
        assert len(ordered) <= most
        assert all(stop < start for (_, stop), (start, _) in pairwise(ordered))
        for start, stop in added:
            assert any(low <= start and stop <= high for low, high in ordered)
        if not found.widened:
            probed = {bytes(edge) for pair in added for edge in pair} | {bytes([number]) for number in range(256)}
            assert all(covers(found, key) == any(start <= key < stop for start, stop in added) for key in probed)


def test_neighbours_are_merged() -> None:
    found = ReadSet()
    found.add_range(ROWS, b"a", b"c\x00", 3)
    found.add_range(ROWS, b"c\x00", b"e", 2)
    found.add_key(ROWS, b"b")
    found.add_key(ROWS, b"f")
    ((place, ranges_of),) = found
    assert place == ROWS
    assert ranges_of.ordered() == [(b"a", b"e"), (b"f", b"f\x00")]
    assert (ranges_of.rows, ranges_of.widened) == (5, False)


def test_places_differ_in_their_columns_until_there_are_many() -> None:
    found = ReadSet()
    for column in range(reads.MOST_PLACES):
        found.add_key(ROWS._replace(columns=frozenset({column})), bytes([column]))
    found.add_key(ROWS._replace(rowset=8), b"elsewhere")
    assert len(list(found)) == reads.MOST_PLACES + 1
    found.add_key(ROWS._replace(columns=frozenset({99})), b"\xfe")
    kept = {place.rowset: (place.columns, ranges_of) for place, ranges_of in found}
    assert kept[7][0] == {*range(reads.MOST_PLACES), 99}
    assert all(covers(kept[7][1], bytes([column])) for column in (*range(reads.MOST_PLACES), 0xFE))
    assert covers(kept[8][1], b"elsewhere")


def test_probes_count_once_they_are_kept() -> None:
    found = ReadSet()
    assert not found
    found.probes.add_key(ROWS, b"a")
    assert not found
    found.keep_probes()
    ((_, ranges_of),) = found
    assert ranges_of.ordered() == [(b"a", b"a\x00")]
    found.keep_probes()
    assert ranges_of.ordered() == [(b"a", b"a\x00")]


def test_threads_add_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The analytic engine reads two tables, or one table twice, in threads of its own."""
    monkeypatch.setattr(reads, "MOST_RANGES", 1 << 20)
    found = ReadSet()

    def add(first: int) -> None:
        for number in range(first, 20_000, 4):
            found.add_key(ROWS, number.to_bytes(4, "big"))

    threads = [threading.Thread(target=add, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ((_, ranges_of),) = found
    assert len(ranges_of.ordered()) == 20_000
