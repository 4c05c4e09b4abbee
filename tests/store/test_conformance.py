"""What every engine does, byte for byte: both run each of these tests."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from msgspec.structs import replace

from instar.errors import Error
from instar.store.cuts import Cut
from instar.store.engine import (
    ENTRY_VALUE,
    MOVED,
    NO_RECORD,
    ROW_HEADER,
    ClaimLost,
    Commit,
    EntryWrite,
    Fails,
    KeyExists,
    LogRecord,
    LogUntouched,
    PreconditionFailed,
    RangeEmpty,
    RangeUnchanged,
    Reader,
    RowsetReplaced,
    RowWrite,
    Section,
    StaleRow,
    StaleSchema,
    Store,
    TableHeader,
    TableWrites,
    ValueUnchanged,
    View,
)
from instar.store.records import encode_table_header, table_key
from store.building import (
    ALL,
    ALL_ENTRIES,
    ALL_ROWS,
    INDEX,
    ROWS,
    TABLE,
    body_of,
    change,
    contents,
    entry_key,
    queued,
    raw,
    request,
    row_key,
)

# 1,700,000,000,000 ms, where the manual clock stands, shifted by 20.
T0 = 1_700_000_000_000 << 20


# Reading.


def test_scans_and_batches_keep_to_their_bounds(store: Store) -> None:
    change(store, {number: b"%d" % number for number in range(100)})
    keys = [row_key(number) for number in range(100)]
    with store.read() as reader:
        for start, stop in ((0, 100), (10, 20), (10, 10), (20, 10), (99, 100), (50, 1000)):
            first, last = row_key(start), row_key(stop)
            expected = keys[start:stop]
            assert [key for key, _ in reader.scan(first, last)] == expected
            assert [key for key, _ in reader.scan(first, last, reverse=True)] == expected[::-1]
            for limit in (0, 1, 7, 33, 1000):
                found, values = reader.batch(first, last, limit)
                assert found == expected[:limit]
                assert [body_of(value) for value in values] == [b"%d" % n for n in range(start, min(stop, 100))][:limit]
                assert reader.batch(first, last, limit, reverse=True)[0] == expected[::-1][:limit]
        assert reader.batch(row_key(1000), row_key(1001), 5) == ([], [])


def blocks(reader: Reader, start: bytes, stop: bytes, size: int) -> list[tuple[bytes, bytes]]:
    """The pairs of all blocks of the range, one after the other."""
    found: list[tuple[bytes, bytes]] = []
    position: bytes | None = start
    while position is not None:
        block = reader.block(position, stop, size)
        pairs = list(zip(block.keys.values(), block.values.values(), strict=True))
        assert block.last is None or block.last == pairs[-1][0]
        found += pairs
        position = None if block.last is None else block.last + b"\x00"
    return found


def test_blocks_are_what_a_scan_gives_and_say_where_to_go_on(store: Store) -> None:
    change(store, {number: b"%d" % number * (number % 7) ** 4 for number in range(1000)})
    bounds = ((0, 1000), (100, 103), (10, 10), (20, 10), (700, 2000), (999, 1000), (500, 800), (2000, 3000))
    with store.read() as reader:
        for start, stop in bounds:
            first, last = row_key(start), row_key(stop)
            for size in (1, 5000, 100_000, 1 << 30):
                assert blocks(reader, first, last, size) == list(reader.scan(first, last))
        assert blocks(reader, *ALL, 1 << 30) == list(reader.scan(*ALL))
        small = reader.block(*ALL_ROWS, 50_000)
        assert small.last is not None
        assert len(small.values.buffer) < 200_000


def test_a_range_is_cut_into_parts_of_about_as_many_keys(store: Store) -> None:
    change(store, dict.fromkeys(range(5_000), b"value"))
    with store.read() as reader:
        assert cut(reader, *ALL_ROWS, 1).keys == []
        assert cut(reader, *ALL_ROWS, 1).rows == pytest.approx(5_000, rel=0.1)
        assert cut(reader, row_key(100), row_key(103), 2) == ([row_key(101)], 3)
        assert cut(reader, row_key(100), row_key(103), 9) == ([row_key(101), row_key(102)], 3)
        keys, rows = cut(reader, row_key(1000), row_key(4000), 4)
        assert rows == pytest.approx(3_000, rel=0.15)
        bounds = [row_key(1000), *keys, row_key(4000)]
        sizes = [len(list(reader.scan(first, last))) for first, last in pairwise(bounds)]
        assert sizes == [pytest.approx(750, rel=0.2)] * 4
        assert cut(reader, row_key(7000), row_key(8000), 3) == cut(reader, row_key(9), row_key(9), 3) == ([], 0)
        change(store, dict.fromkeys(range(5_000), None))
        later = reader.cut(*ALL_ROWS, 1)
        assert later is None or later.rows == pytest.approx(5_000, rel=0.1)


def cut(reader: Reader, start: bytes, stop: bytes, parts: int) -> Cut:
    found = reader.cut(start, stop, parts)
    assert found is not None
    return found


def test_a_block_is_of_the_readers_view_and_outlives_it(store: Store) -> None:
    change(store, dict.fromkeys(range(500), b"old" * 20))
    with store.read() as reader:
        before = reader.block(*ALL_ROWS, 1 << 20)
        pairs = list(reader.scan(*ALL_ROWS))
        for number in range(0, 500, 50):
            change(store, {number: None, number + 1: b"new", 1000 + number: b"new"})
            assert blocks(reader, *ALL_ROWS, 1 << 20) == pairs
    for number in range(0, 500, 50):
        change(store, dict.fromkeys(range(number, number + 50), b"newer" * 100))
    assert list(zip(before.keys.values(), before.values.values(), strict=True)) == pairs


def test_a_reverse_scan_may_begin_behind_everything(store: Store) -> None:
    with store.read() as reader:
        assert list(reader.scan(b"\xff", b"\xff\xff", reverse=True)) == []


def test_an_open_reader_keeps_its_view(store: Store) -> None:
    first = change(store, {1: b"old", 2: b"old"})
    with store.read() as reader:
        second = change(store, {1: b"new", 2: None, 3: b"new"})
        assert (reader.timestamp, body_of(reader.get(row_key(1)))) == (first, b"old")
        assert [key for key, _ in reader.scan(*ALL_ROWS)] == [row_key(1), row_key(2)]
    reader.close()  # closing twice does nothing
    with store.read() as reader:
        assert reader.timestamp == second > first
        assert body_of(reader.get(row_key(1))) == b"new"


def test_the_header_is_part_of_the_view(store: Store) -> None:
    with store.read() as reader:
        assert (reader.catalog_version, reader.watermark) == (0, 0)
        raw(store, bump=True)
        assert reader.catalog_version == 0
    with store.read() as reader:
        assert (reader.catalog_version, reader.timestamp) == (1, T0)
    assert store.now() == T0 + 1


def test_the_newest_value_of_a_key_under_a_version_of_the_catalog(store: Store) -> None:
    assert store.newest(row_key(1), 0) is None
    change(store, {1: b"old"})
    assert body_of(store.newest(row_key(1), 0)) == b"old"
    change(store, {1: b"new"})
    assert body_of(store.newest(row_key(1), 0)) == b"new"
    assert store.newest(row_key(2), 0) is None
    assert store.newest(row_key(1), 1) is MOVED
    raw(store, bump=True)
    assert store.newest(row_key(1), 0) is store.newest(row_key(2), 0) is MOVED
    assert body_of(store.newest(row_key(1), 1)) == b"new"


def test_the_newest_values_of_rows_under_an_index_key(store: Store) -> None:
    """In the order of the entries; tombstones lead nowhere, but are counted."""
    prefix = INDEX + b"\x02k"
    entries = {number: EntryWrite(prefix + row_key(number)[5:], len(prefix), True) for number in (3, 1, 2)}
    change(store, {1: b"one", 2: b"two", 3: b"three"})
    with store.read() as reader:
        version = reader.catalog_version
    assert store.newest_under(prefix, ROWS, 9, version) == []
    store.commit(Commit(catalog_version=version, entries=list(entries.values()), raw=[(b"\x03\x01", b"x")]))

    def found(most: int) -> object:
        values = store.newest_under(prefix, ROWS, most, version)
        return values if values is None else [body_of(value) for value in values]

    assert found(9) == found(3) == [b"one", b"two", b"three"]
    assert found(2) is None
    assert store.newest_under(INDEX + b"\x03", ROWS, 9, version) == []
    gone = replace(entries[2], live=False)
    store.commit(Commit(catalog_version=version, entries=[gone], raw=[(b"\x03\x01", b"y")]))
    assert found(3) == [b"one", b"three"]
    assert found(2) is None
    cut = INDEX + b"\x02" + b"k" * 200
    store.commit(
        Commit(catalog_version=version, entries=[EntryWrite(cut + b"1", len(cut), True)], raw=[(b"\x03\x01", b"z")])
    )
    assert store.newest_under(cut, ROWS, 9, version) is None
    assert store.newest_under(prefix, ROWS, 9, version + 1) is MOVED


# Writing: golden bytes.


def test_what_commits_leave(store: Store) -> None:
    change(store, {1: b"ab", 2: b"cd"})
    change(store, {1: b"ef", 2: None})
    rows = contents(store, *ALL_ROWS)
    assert rows == {
        row_key(1): ROW_HEADER.pack(T0 + 1, 0, 1 << 8) + b"ef",
        row_key(2): ROW_HEADER.pack(T0 + 1, 1, 1 << 8 | 1),
    }
    assert contents(store, *ALL_ENTRIES) == {
        entry_key(b"ab", 1): ENTRY_VALUE.pack(T0 + 1, 0, 6),
        entry_key(b"cd", 2): ENTRY_VALUE.pack(T0 + 1, 0, 6),
        entry_key(b"ef", 1): ENTRY_VALUE.pack(T0 + 1, 1, 6),
    }
    log = contents(store, b"\xf0", b"\xf1")
    first, second = bytes.fromhex("18bcfe56 80000000"), bytes.fromhex("18bcfe56 80000001")
    one, two = bytes.fromhex("10 00000001 0001"), bytes.fromhex("10 00000001 0002")
    # What was replaced: header (timestamp, no record before, layout 1 without flags) and body.
    before = first[::-1] + bytes.fromhex("ffffffff 00010000")
    assert log == {
        # Inserts without pairs or after-images: 2 of them, table 7, version 1, at 0; the keys' lengths, the keys.
        b"\xf0" + first + bytes(4): bytes.fromhex("02 00 0200 07000000 01000000 0000000000000000 0700 0700")
        + (one + two),
        # An update: key of 7 bytes, table 7, version 1, at 51, no pair, 18 bytes before; key, before-image.
        b"\xf0" + second + bytes(4): bytes.fromhex("01 00 0700 07000000 01000000 3300000000000000 00000000 12000000")
        + (one + before + b"ab"),
        # A delete.
        b"\xf0" + second + b"\0\0\0\1": bytes.fromhex("01 01 0700 07000000 01000000 7500000000000000 00000000 12000000")
        + (two + before + b"cd"),
    }
    assert store.log_bytes() == sum(len(key) + len(value) for key, value in log.items())


def test_an_insert_has_no_version_before_and_a_reinsertion_has_the_tombstone(store: Store) -> None:
    change(store, {1: b"a"})
    assert ROW_HEADER.unpack_from(contents(store)[row_key(1)]) == (T0, NO_RECORD, 1 << 8)
    change(store, {1: None})
    change(store, {1: b"b"})
    assert ROW_HEADER.unpack_from(contents(store)[row_key(1)]) == (T0 + 2, 0, 1 << 8)
    assert [(r.before and body_of(r.before), r.deleted) for r in store.log(T0, T0 + 2)] == [(b"a", True), (None, False)]


def test_deleting_what_is_not_there_writes_nothing(store: Store) -> None:
    before = contents(store, *ALL_ROWS)
    change(store, {1: None})
    assert contents(store, *ALL_ROWS) == before
    assert store.log_bytes() == 0


def test_bulk_and_single_writes_leave_the_same(store: Store) -> None:
    change(store, {number: b"x%d" % number for number in range(0, 200, 2)})
    mixed: dict[int, bytes | None] = dict.fromkeys(range(60, 140), b"y")
    mixed |= {150: None, 151: b"z"}
    change(store, mixed)
    expected = {number: b"x%d" % number for number in range(0, 200, 2)} | mixed
    found = {int.from_bytes(key[-2:], "big"): body_of(value) for key, value in contents(store, *ALL_ROWS).items()}
    assert found == expected
    changed = [record.key for record in store.log(T0, T0 + 1)]
    assert sorted(changed) == sorted(row_key(number) for number in mixed)


@pytest.mark.parametrize("count", [1, 20])
def test_layout_and_lock_timestamps_are_stored(store: Store, count: int) -> None:
    """Of the lock timestamps, 0 is the commit's own; those of an update are kept or set one by one."""
    rows = [RowWrite(row_key(number), None, b"body", 70_000, (0, 0)) for number in range(count)]
    first = store.commit(Commit(catalog_version=0, tables=[TableWrites(TABLE, 1, 0, rows)]))
    stored = contents(store, *ALL_ROWS)
    inserted = ROW_HEADER.pack(first, NO_RECORD, 70_000 << 8) + struct.pack("<QQ", first, first) + b"body"
    assert set(stored.values()) == {inserted}
    rows = [RowWrite(key, value, b"new", 70_000, (first, 0)) for key, value in stored.items()]
    second = store.commit(Commit(catalog_version=0, tables=[TableWrites(TABLE, 1, 0, rows)]))
    for number, value in enumerate(contents(store, *ALL_ROWS).values()):
        assert value == ROW_HEADER.pack(second, number, 70_000 << 8) + struct.pack("<QQ", first, second) + b"new"


def test_raw_records_are_put_and_deleted(store: Store) -> None:
    raw(store, (b"\x03\x01a", b"1"), (b"\x03\x01b", b"2"))
    raw(store, (b"\x03\x01a", None), (b"\x03\x01b", b"3"), (b"\x03\x01c", None))
    assert contents(store, b"\x03", b"\x04") == {b"\x03\x01b": b"3"}


def test_a_replaced_rowset_is_logged(store: Store) -> None:
    store.commit(Commit(catalog_version=0, replaced=[RowsetReplaced(TABLE, 3, 10, 11)]))
    (record,) = store.log(0, T0)
    assert (record.table, record.version, record.replaced) == (TABLE, 3, (10, 11))


def test_a_key_too_long_is_refused_and_leaves_nothing(store: Store) -> None:
    before = contents(store)
    entry = EntryWrite(ALL_ENTRIES[0] + bytes(600), 6, True)
    with pytest.raises(Error) as caught:
        store.commit(Commit(catalog_version=0, raw=[(b"\x03a", b"1")], entries=[entry]))
    assert caught.value.sqlstate == "54000"
    assert contents(store) == before
    change(store, {1: b"a"})


# Judging.


@pytest.mark.parametrize("count", [1, 40])  # row by row, and in bulk
def test_rows_must_be_as_they_were(store: Store, count: int) -> None:
    rows = dict.fromkeys(range(count), b"a")
    late = request(store, {count - 1: b"b"} | rows)
    change(store, {count - 1: b"c"})
    before = contents(store)
    with pytest.raises(StaleRow) as refused:
        store.commit(late)
    assert refused.value.key == row_key(count - 1)
    update = request(store, dict.fromkeys(range(count), b"d"))
    change(store, {count - 1: None})
    with pytest.raises(StaleRow) as refused:
        store.commit(update)
    assert refused.value.key == row_key(count - 1)
    assert contents(store).keys() == before.keys() | contents(store, b"\xf0", b"\xf1").keys()


@pytest.mark.parametrize("numbers", [range(40), range(39, -1, -1)])
def test_bulk_inserts_in_any_order_meet_what_is_there(store: Store, numbers: range) -> None:
    rows = [RowWrite(row_key(number), None, b"a", 1) for number in numbers]
    change(store, {20: b"there"})
    with pytest.raises(StaleRow) as refused:
        store.commit(Commit(catalog_version=0, tables=[TableWrites(TABLE, 1, 0, rows)]))
    assert refused.value.key == row_key(20)
    around = [row for row in rows if row.key != row_key(20)]
    store.commit(Commit(catalog_version=0, tables=[TableWrites(TABLE, 1, 0, around)]))
    assert len(contents(store, *ALL_ROWS)) == 40


def test_a_commit_is_completed_on_the_state_that_it_is_judged_on(store: Store) -> None:
    change(store, {1: b"a", 2: b"b"})
    rows: list[RowWrite] = []
    seen = []

    def complete(section: View) -> None:
        seen.append(section.timestamp)
        if len(seen) == 1:
            raise StaleRow(row_key(2))
        rows.extend(RowWrite(row_key(number), section.get(row_key(number)), b"new", 1) for number in (1, 2))

    request = Commit(catalog_version=0, tables=[TableWrites(TABLE, 1, 0, rows)], complete=complete)
    with pytest.raises(StaleRow):
        store.commit(request)
    newest = change(store, {1: b"later"})
    store.commit(request)
    assert seen[1] == newest
    assert [body_of(contents(store)[row_key(number)]) for number in (1, 2)] == [b"new", b"new"]


def test_a_row_changes_once_per_commit(store: Store) -> None:
    rows = [RowWrite(row_key(1), None, b"a", 1), RowWrite(row_key(1), None, b"b", 1)]
    with pytest.raises(Error, match="one row twice"):
        store.commit(Commit(catalog_version=0, tables=[TableWrites(TABLE, 1, 0, rows)]))


def test_range_empty(store: Store) -> None:
    change(store, {1: b"a", 5: b"a"})
    change(store, {5: None})
    taken = RangeEmpty(row_key(0), row_key(9), None, "taken")
    with pytest.raises(PreconditionFailed) as refused:
        change(store, {20: b"b"}, taken)
    assert (refused.value.found, refused.value.precondition) == (row_key(1), taken)
    change(store, {20: b"b"}, replace(taken, allow=row_key(1)))
    change(store, {21: b"b"}, replace(taken, start=row_key(2)))
    # The commit's own writes count: what it deletes is gone, what it inserts is there.
    change(store, {1: None}, taken)
    with pytest.raises(PreconditionFailed) as refused:
        change(store, {7: b"c", 8: b"c"}, replace(taken, allow=row_key(7)))
    assert refused.value.found == row_key(8)
    change(store, {8: b"c"}, replace(taken, allow=row_key(8)))


def test_what_is_to_fail_still(store: Store) -> None:
    change(store, {1: b"a"})
    violated = RangeEmpty(row_key(0), row_key(9), None, None)
    change(store, {20: b"b"}, Fails(violated))
    with pytest.raises(StaleRow):
        change(store, {1: None}, Fails(violated))
    missing = KeyExists(row_key(5), False, None)
    change(store, {21: b"b"}, Fails(missing))
    with pytest.raises(StaleRow):
        change(store, {5: b"b"}, Fails(missing))
    change(store, {5: b"b"}, missing)


def test_range_empty_over_index_entries(store: Store) -> None:
    change(store, {1: b"a"})
    unique = RangeEmpty(entry_key(b"a", 0), entry_key(b"b", 0), entry_key(b"a", 2), None)
    with pytest.raises(PreconditionFailed):
        change(store, {2: b"a"}, unique)
    change(store, {1: b"z", 2: b"a"}, unique)


def test_key_exists(store: Store) -> None:
    change(store, {1: b"a", 2: b"a"})
    change(store, {2: None})
    for number, stands in ((1, True), (2, False), (3, False)):
        condition = KeyExists(row_key(number), False, None)
        if stands:
            change(store, {9: b"x"}, condition)
        else:
            with pytest.raises(PreconditionFailed):
                change(store, {9: b"y"}, condition)
    change(store, {3: b"new"}, KeyExists(row_key(3), False, None))
    with pytest.raises(PreconditionFailed):
        change(store, {3: None}, KeyExists(row_key(3), False, None))
    prefix = KeyExists(ALL_ENTRIES[0] + b"a", True, None)
    change(store, {9: b"a"}, prefix)
    change(store, {9: b"b"}, prefix)
    with pytest.raises(PreconditionFailed):
        change(store, {1: b"b"}, prefix)
    change(store, {1: b"b", 4: b"a"}, prefix)


def test_range_unchanged_sees_tombstones(store: Store) -> None:
    change(store, {1: b"a", 2: b"a"})
    since = change(store, {3: b"a"})
    condition = RangeUnchanged(row_key(0), row_key(3), since, None)
    change(store, {1: b"b"}, condition)  # one's own writes are no change
    with pytest.raises(PreconditionFailed) as refused:
        change(store, {9: b"x"}, condition)
    assert refused.value.found == row_key(1)
    since = change(store, {2: None})
    change(store, {9: b"x"}, condition._replace(since=since))
    with pytest.raises(PreconditionFailed):
        change(store, {9: b"y"}, condition._replace(since=since - 1, start=row_key(2)))


def test_log_untouched_looks_at_every_change_since(store: Store) -> None:
    """Inserts, updates and deletes, predecessors in a group included; one's own writes are none."""
    change(store, {1: b"a", 2: b"a"})
    since = change(store, {3: b"a"})
    met: list[tuple[bytes, bytes | None]] = []

    def touches(view: View, record: LogRecord) -> bytes | None:
        met.append((record.key, view.get(record.key)))
        return record.key if record.key == row_key(2) else None

    condition = LogUntouched(since, 4, touches, None)
    change(store, {2: b"b"}, condition)
    assert met == []
    since = change(store, {4: b"a", 1: None})
    change(store, {9: b"x"}, condition._replace(since=since - 1))
    assert [key for key, _value in met] == [row_key(1), row_key(4)]
    assert all(value == contents(store).get(key) for key, value in met)
    since = change(store, {5: b"a"})
    first, second = queued(
        store, [request(store, {2: b"c"}), request(store, {8: b"x"}, [condition._replace(since=since)])]
    )
    assert isinstance(first, int)
    assert isinstance(second, PreconditionFailed)
    assert second.found == row_key(2)
    with pytest.raises(PreconditionFailed) as caught:
        change(store, {9: b"y"}, condition._replace(since=since))
    assert caught.value.found == row_key(2)


def test_log_untouched_gives_up_where_too_much_has_changed(store: Store) -> None:
    since = change(store, {0: b"a"})
    for number in range(1, 4):
        change(store, {number: b"a", number + 10: b"a"})
    condition = LogUntouched(since, 6, lambda view, record: None, None)
    change(store, {90: b"x"}, condition)
    with pytest.raises(StaleRow):
        change(store, {91: b"x"}, condition)


def test_a_commit_that_validates_reads_stands_under_the_newest_catalog_only(store: Store) -> None:
    """Rule 13, e = c."""
    raw(store, (table_key(TABLE), encode_table_header(TableHeader(current=1, floor=1, checks=0))), bump=True)
    since = change(store, {1: b"a"})
    plain, validating = request(store, {2: b"a"}), request(store, {3: b"a"}, snapshot=since)
    raw(store, bump=True)
    store.commit(plain)
    with pytest.raises(StaleSchema):
        store.commit(validating)
    store.commit(request(store, {3: b"a"}, snapshot=since))


def test_value_unchanged(store: Store) -> None:
    key = b"\x03\x01counter"
    first = Commit(catalog_version=0, raw=[(key, b"1")], preconditions=[ValueUnchanged(key, None, "c")])
    store.commit(first)
    with pytest.raises(PreconditionFailed):
        store.commit(first)
    store.commit(Commit(catalog_version=0, raw=[(key, None)], preconditions=[ValueUnchanged(key, b"1", "c")]))
    assert contents(store, b"\x03", b"\x04") == {}


def test_the_fence_asks_the_table_only_once_the_catalog_moved(store: Store) -> None:
    raw(store, (table_key(TABLE), encode_table_header(TableHeader(current=5, floor=4, checks=2))), bump=True)
    fresh = request(store, {1: b"a"}, version=3, checks=1)
    store.commit(fresh)  # derived under the catalog as it is: what it says is believed
    stale = [
        (request(store, {2: b"a"}, version=3, checks=2), "below the floor"),
        (request(store, {2: b"a"}, version=4, checks=1), "another list"),
    ]
    allowed = request(store, {2: b"a"}, version=4, checks=2)
    unknown = Commit(catalog_version=1, tables=[TableWrites(99, 1, 0, [])])
    raw(store, bump=True)
    for late, _why in stale:
        with pytest.raises(StaleSchema) as refused:
            store.commit(late)
        assert (refused.value.table, refused.value.header) == (TABLE, TableHeader(5, 4, 2))
    with pytest.raises(StaleSchema) as refused:
        store.commit(unknown)
    assert (refused.value.table, refused.value.header) == (99, None)
    store.commit(allowed)


def test_a_dropped_table_refuses_all(store: Store) -> None:
    late = request(store, {1: b"a"}, version=9)
    raw(store, (table_key(TABLE), encode_table_header(TableHeader(1, 1, 0, dropped=True))), bump=True)
    with pytest.raises(StaleSchema):
        store.commit(late)


def test_claims(store: Store) -> None:
    raw(store, (b"\x03\x04job", b"epoch 1"))
    store.commit(request(store, {1: b"a"}, claim=(b"\x03\x04job", b"epoch 1")))
    with pytest.raises(ClaimLost):
        store.commit(request(store, {2: b"a"}, claim=(b"\x03\x04job", b"epoch 0")))


# Background.


def test_background_steps_are_atomic_per_batch_and_see_what_they_wrote(store: Store) -> None:
    seen = []

    def step_for(number: int):
        def step(section: Section) -> None:
            section.put(b"\x03\x01%03d" % number, b"x")
            seen.append(len(section.batch(b"\x03", b"\x04", 1000)[0]))

        return step

    assert store.background(step_for(number) for number in range(100)) >= 1
    assert seen == list(range(1, 101))
    assert len(contents(store, b"\x03", b"\x04")) == 100
    assert store.background([]) == 0


def test_a_failing_step_takes_its_batch_with_it_and_no_more(store: Store) -> None:
    def good(section: Section) -> None:
        section.put(b"\x03\x01good", b"x")
        assert section.get(b"\x03\x01good") == b"x"
        assert section.delete(b"\x03\x01good")
        assert not section.delete(b"\x03\x01good")
        section.put(b"\x03\x01good", b"y")

    def bad(section: Section) -> None:
        section.put(b"\x03\x01bad", b"x")
        raise ValueError("bad step")

    store.background([good])
    with pytest.raises(ValueError, match="bad step"):
        store.background([bad])
    assert contents(store, b"\x03", b"\x04") == {b"\x03\x01good": b"y"}
    change(store, {1: b"the store is usable"})


# Presence.


def test_snapshots_are_registered_until_released_or_too_old(store: Store, clock) -> None:
    assert store.oldest_snapshot() is None
    tokens = [store.register_snapshot(snapshot) for snapshot in (30, 10, 20, 10)]
    assert store.oldest_snapshot() == 10
    store.release_snapshot(tokens[1])
    assert store.oldest_snapshot() == 10
    store.release_snapshot(tokens[3])
    assert store.oldest_snapshot() == 20
    clock.advance(store.snapshot_max_age + 1)
    assert store.oldest_snapshot() is None
    store.release_snapshot(tokens[2])
    store.release_snapshot(tokens[0])
    store.release_snapshot(tokens[0])
    assert store.oldest_snapshot() is None
    store.register_snapshot(40)
    assert store.oldest_snapshot() == 40


def test_a_snapshot_that_is_too_old_hides_none_after_it(store: Store, clock) -> None:
    """A transaction that was forgotten must not lay bare the others of its process."""
    forgotten = store.register_snapshot(10)
    clock.advance(store.snapshot_max_age + 1)
    token = store.register_snapshot(20)
    store.register_snapshot(30)
    assert store.oldest_snapshot() == 20
    store.release_snapshot(forgotten)
    assert store.oldest_snapshot() == 20
    store.release_snapshot(token)
    assert store.oldest_snapshot() == 30


def test_workers_announce_themselves(store: Store) -> None:
    assert not store.worker_present()
    store.announce_worker(True)
    assert store.worker_present()
    store.announce_worker(False)
    assert not store.worker_present()
