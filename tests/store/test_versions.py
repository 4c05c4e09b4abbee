"""Versions of rows at snapshots; what random histories show is in test_model.py."""

from __future__ import annotations

import pytest

from instar.errors import Error
from instar.store.engine import ENTRY_VALUE, ROW_HEADER, Store
from instar.store.versions import entry_at, iterate_rows, scan_rows, visible_rows, visible_values
from store.building import ALL_ROWS, body_of, change, dead_entries, raw, row_key


def test_the_common_case_hands_back_what_came_in(store: Store) -> None:
    newest = change(store, dict.fromkeys(range(10), b"a"))
    with store.read_at(newest) as reader:
        keys, values = reader.batch(*ALL_ROWS, 10)
        seen = visible_rows(reader, keys, values, newest)
    assert seen[0] is keys
    assert seen[1] is values


def test_newer_rows_are_resolved_and_invisible_ones_dropped(store: Store) -> None:
    snapshot = change(store, {1: b"a", 2: b"b", 3: b"c"})
    change(store, {1: b"x", 2: None, 4: b"new"})
    change(store, {1: b"y", 2: b"back", 4: b"newer", 3: None})
    (batch,) = iterate_rows(store, *ALL_ROWS, snapshot)
    assert batch[0] == [row_key(1), row_key(2), row_key(3)]
    assert [body_of(value) for value in batch[1]] == [b"a", b"b", b"c"]


def test_a_scan_goes_on_past_invisible_rows(store: Store) -> None:
    snapshot = change(store, {9: b"a"})
    change(store, dict.fromkeys(range(9), b"new"))
    with store.read_at(snapshot) as reader:
        keys, values, following = scan_rows(reader, *ALL_ROWS, snapshot, limit=5)
        assert (keys, values, following) == ([], [], row_key(4) + b"\x00")
        assert following is not None
        keys, _values, following = scan_rows(reader, following, ALL_ROWS[1], snapshot, limit=6)
        assert (keys, following) == ([row_key(9)], None)


def test_iteration_ends_when_the_snapshot_is_cut(store: Store) -> None:
    snapshot = change(store, dict.fromkeys(range(10), b"a"))
    newest = change(store, dict.fromkeys(range(10), b"b"))
    batches = iterate_rows(store, *ALL_ROWS, snapshot, batch=lambda: 4)
    assert len(next(batches)[0]) == 4
    store.collect(newest, dead_entries)
    with pytest.raises(Error) as caught:
        next(batches)
    assert caught.value.sqlstate == "72000"


def test_a_block_has_the_same_versions(store: Store) -> None:
    snapshots = [
        change(store, dict.fromkeys(range(40), b"a")),
        change(store, {number: None if number % 2 else b"longer" for number in range(0, 40, 3)}),
        change(store, dict.fromkeys(range(20, 60), b"b")),
        change(store, dict.fromkeys(range(10), None)),
    ]
    for snapshot in snapshots:
        with store.read_at(snapshot) as reader:
            block = reader.block(*ALL_ROWS, 1 << 20)
            seen = visible_values(store, block.values, snapshot)
            assert seen.values() == visible_rows(reader, *reader.batch(*ALL_ROWS, 100), snapshot)[1]
            assert seen.tags is not None
            assert seen.tags.tolist() == [ROW_HEADER.unpack_from(value)[2] for value in seen.values()]


def test_a_value_without_header_is_damage(store: Store) -> None:
    change(store, dict.fromkeys(range(10), b"a"))
    raw(store, (row_key(5), b"short"))
    with store.read() as reader, pytest.raises(Error) as caught:
        visible_values(store, reader.block(*ALL_ROWS, 1 << 20).values, reader.timestamp)
    assert caught.value.sqlstate == "XX001"


def test_entries() -> None:
    assert entry_at(ENTRY_VALUE.pack(5, 1, 3), 5) == (True, 3)
    assert entry_at(ENTRY_VALUE.pack(5, 0, 3), 5) == (False, 3)
    assert entry_at(ENTRY_VALUE.pack(6, 1, 3), 5) == (None, 3)
    assert entry_at(ENTRY_VALUE.pack(6, 0, 3), 5) == (None, 3)
