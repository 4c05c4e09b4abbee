"""The protocol's rules 1 to 9 as far as the store keeps them, each with the damage done where it is switched off."""

from __future__ import annotations

import pytest

from instar.clock import ManualClock
from instar.errors import Error
from instar.store import collector, records
from instar.store.engine import (
    ENTRY_VALUE,
    ROW_HEADER,
    ClaimLost,
    Commit,
    EntryWrite,
    LogRecord,
    PreconditionFailed,
    RangeEmpty,
    RangeUnchanged,
    RowWrite,
    Section,
    StaleRow,
    Store,
    TableWrites,
)
from instar.store.versions import entry_at, read_row
from store.building import (
    ALL_ENTRIES,
    ALL_ROWS,
    TABLE,
    body_of,
    change,
    contents,
    dead_entries,
    entry_key,
    raw,
    request,
    row_key,
)


def seen(store: Store, number: int, snapshot: int) -> bytes | None:
    with store.read_at(snapshot) as reader:
        return body_of(read_row(reader, row_key(number), snapshot))


def test_rule_1_a_record_at_t_is_needed_only_below_t(store: Store) -> None:
    first = change(store, {1: b"a"})
    second = change(store, {1: b"b"})
    third = change(store, {1: b"c"})
    store.collect(second, dead_entries)
    assert (seen(store, 1, second), seen(store, 1, third)) == (b"b", b"c")
    with pytest.raises(Error) as caught:
        store.read_at(first)
    assert caught.value.sqlstate == "72000"


def test_rule_1_cut_and_watermark_are_one_transaction(store: Store) -> None:
    """Schedule: a reader picks a snapshot, the collector cuts, the reader reads: an error, not a wrong row."""
    snapshot = change(store, {1: b"a"})
    newest = change(store, {1: b"b"})
    steps = collector.cut_steps(store.read, newest, dead_entries, lambda _count: None)

    states = []

    def watch(section: Section) -> None:
        states.append((section.watermark, len(section.batch(b"\xf0", b"\xf1", 100)[0])))

    def together(section: Section) -> None:
        for step in steps:
            step(section)
            watch(section)

    store.background([together])
    assert all(watermark == newest and left == 0 for watermark, left in states)
    moment = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\+00"
    with pytest.raises(Error, match=f"^snapshot too old: it is of {moment}, and the store keeps .* since {moment}$"):
        store.read_at(snapshot)


def test_rule_1_damage_a_cut_without_watermark_breaks_the_snapshot(store: Store) -> None:
    snapshot = change(store, {1: b"a"})
    change(store, {1: b"b"})

    def cut_alone(section: Section) -> None:
        for key in section.batch(b"\xf0", b"\xf1", 100)[0]:
            section.delete(key)

    store.background([cut_alone])
    with pytest.raises(Error, match=r"log record .* is missing"):
        seen(store, 1, snapshot)


def test_rule_2_one_record_per_row_and_the_sequence_restarts(store: Store) -> None:
    change(store, {1: b"a", 2: b"a"})
    for _ in range(2):
        timestamp = change(store, {1: b"b", 2: b"b"})
        assert [record.sequence for record in store.log(timestamp - 1, timestamp)] == [0, 1]


def test_rule_2_a_key_change_bears_one_pair_number(store: Store) -> None:
    change(store, {1: b"a"})
    stored = contents(store)[row_key(1)]
    moved = [RowWrite(row_key(1), stored, None, 1, pair=5), RowWrite(row_key(2), None, b"a", 1, pair=5)]
    timestamp = store.commit(Commit(catalog_version=0, tables=[TableWrites(TABLE, 1, 0, moved)]))
    told = [(record.key, record.deleted, record.pair) for record in store.log(timestamp - 1, timestamp)]
    assert told == [(row_key(1), True, 5), (row_key(2), False, 5)]


def test_rule_2_a_refused_commit_leaves_nothing(store: Store) -> None:
    late = request(store, {1: b"a", 2: b"b"}, [RangeEmpty(row_key(5), row_key(6), None, None)])
    late.raw.append((b"\x03\x01x", b"y"))
    change(store, {5: b"in the way"})
    before = contents(store)
    with pytest.raises(PreconditionFailed):
        store.commit(late)
    assert contents(store) == before


def test_rule_3_logged_whole_tables_carry_after_images(store: Store) -> None:
    rows = [RowWrite(row_key(1), None, b"row", 1, pair=5), RowWrite(row_key(2), None, b"other", 1)]
    first = store.commit(Commit(catalog_version=0, tables=[TableWrites(TABLE, 1, 0, rows, whole=True)]))
    assert [body_of(record.after) for record in store.log(first - 1, first)] == [b"row", b"other"]
    stored = contents(store)
    writes = [RowWrite(row_key(1), stored[row_key(1)], b"ROW", 1), RowWrite(row_key(2), stored[row_key(2)], None, 1)]
    second = store.commit(Commit(catalog_version=0, tables=[TableWrites(TABLE, 1, 0, writes, whole=True)]))
    changed, deleted = store.log(first, second)
    assert (body_of(changed.before), changed.after) == (b"row", contents(store)[row_key(1)])
    assert (body_of(deleted.before), deleted.after, deleted.deleted) == (b"other", None, True)


def test_rule_3_others_do_not(store: Store) -> None:
    first = store.commit(
        Commit(catalog_version=0, tables=[TableWrites(TABLE, 1, 0, [RowWrite(row_key(1), None, b"row", 1)])])
    )
    stored = contents(store)[row_key(1)]
    second = store.commit(
        Commit(catalog_version=0, tables=[TableWrites(TABLE, 1, 0, [RowWrite(row_key(1), stored, b"ROW", 1)])])
    )
    assert [record.after for record in store.log(first - 1, second)] == [None, None]


def index_at(store: Store, snapshot: int, *, recheck: bool = True) -> list[bytes]:
    """The entries that `snapshot` accepts; without recheck what is newer is believed as it stands."""
    with store.read_at(snapshot) as reader:
        found = []
        for key, value in reader.scan(*ALL_ENTRIES):
            visible, _offset = entry_at(value, snapshot)
            if visible is None:
                number = int.from_bytes(key[-2:], "big")
                body = body_of(read_row(reader, row_key(number), snapshot))
                visible = (
                    body is not None and entry_key(body, number) == key if recheck else ENTRY_VALUE.unpack(value)[1]
                )
            if visible:
                found.append(key)
        return found


def test_rule_4_what_is_newer_is_decided_by_the_row(store: Store) -> None:
    first = change(store, {1: b"a"})
    second = change(store, {1: b"b"})
    third = change(store, {1: b"a"})
    assert index_at(store, first) == [entry_key(b"a", 1)]
    assert index_at(store, second) == [entry_key(b"b", 1)]
    assert index_at(store, third) == [entry_key(b"a", 1)]
    # Damage: at the second snapshot the row is missed, and found under a key it had not.
    assert index_at(store, second, recheck=False) == [entry_key(b"a", 1)]


def test_rule_4_a_tombstone_only_over_an_existing_entry(store: Store) -> None:
    absent = EntryWrite(entry_key(b"q", 9), 6, False)
    store.commit(Commit(catalog_version=0, entries=[absent]))
    assert contents(store, *ALL_ENTRIES) == {}


def test_rule_4_a_later_put_overwrites_a_tombstone_and_survives_the_cut(store: Store) -> None:
    change(store, {1: b"a"})
    second = change(store, {1: b"b"})
    change(store, {1: b"a"})
    store.collect(second, dead_entries)
    assert ENTRY_VALUE.unpack(contents(store)[entry_key(b"a", 1)])[1] == 1
    store.collect(store.now(), dead_entries)
    assert list(contents(store, *ALL_ENTRIES)) == [entry_key(b"a", 1)]


def test_rule_4_damage_without_dead_entries_orphans_stay_for_ever(store: Store) -> None:
    change(store, {1: b"a"})
    change(store, {1: b"b"})
    store.collect(store.now(), lambda _record: [])
    store.collect(store.now(), dead_entries)
    assert list(contents(store, *ALL_ENTRIES)) == [entry_key(b"a", 1), entry_key(b"b", 1)]


def test_rule_5_uniqueness_looks_at_live_entries_with_own_writes(store: Store) -> None:
    change(store, {1: b"a"})
    unique = RangeEmpty(entry_key(b"a", 0), entry_key(b"b", 0), entry_key(b"a", 2), None)
    with pytest.raises(PreconditionFailed):
        change(store, {2: b"a"}, unique)
    change(store, {1: None})  # a tombstone is in nobody's way
    change(store, {2: b"a"}, unique)
    # Two rows swap their values in one commit.
    change(store, {3: b"c"})
    swap = [
        RangeEmpty(entry_key(b"a", 0), entry_key(b"b", 0), entry_key(b"a", 3), None),
        RangeEmpty(entry_key(b"c", 0), entry_key(b"d", 0), entry_key(b"c", 2), None),
    ]
    change(store, {2: b"c", 3: b"a"}, *swap)


def test_rule_5_nothing_changed_looks_at_tombstones_too(store: Store) -> None:
    since = change(store, {1: b"a"})
    change(store, {1: None})
    with pytest.raises(PreconditionFailed):
        change(store, {9: b"x"}, RangeUnchanged(*ALL_ROWS, since, None))


def test_rule_6_a_validating_commit_below_the_watermark_is_refused(store: Store) -> None:
    since = change(store, {1: b"a"})
    unchanged = RangeUnchanged(*ALL_ROWS, since, None)
    change(store, {1: None})
    store.collect(store.now(), dead_entries)
    with pytest.raises(Error) as caught:
        store.commit(request(store, {9: b"x"}, [unchanged], snapshot=since))
    assert caught.value.sqlstate == "72000"
    # Damage: without the fence the commit passes over the delete, whose trace was cut.
    store.commit(request(store, {9: b"x"}, [unchanged]))


def test_rule_7_presence_frees_nothing(store: Store) -> None:
    first = change(store, {1: b"a"})
    change(store, {1: b"b"})
    assert store.oldest_snapshot() is None  # nobody said that the first snapshot is in use
    assert seen(store, 1, first) == b"a"


def test_rule_8_an_implausible_wall_clock_is_not_believed(store: Store, clock: ManualClock) -> None:
    def milliseconds() -> int:
        return change(store, {}) >> 20

    start = milliseconds()
    clock.wall += 59 * 60 * 10**9
    assert milliseconds() == start + 59 * 60 * 1000  # less than an hour: believed
    clock.wall += 10 * 3600 * 10**9
    clock.monotonic += 5 * 10**9
    assert milliseconds() == start + 59 * 60 * 1000 + 5000  # what the monotonic clock allows
    assert milliseconds() == start + 59 * 60 * 1000 + 5000
    assert store.now() >> 20 == start + 59 * 60 * 1000 + 5000
    clock.boot = b"\x02" * 16
    assert milliseconds() == clock.wall // 10**6  # after a reboot it is


def test_rule_8_a_clock_that_falls_and_recovers_is_believed(store: Store, clock: ManualClock) -> None:
    first = change(store, {})
    clock.wall -= 7200 * 10**9
    second = change(store, {})
    assert second == first + 1
    clock.wall += 7201 * 10**9
    clock.monotonic += 10**9
    assert change(store, {}) >> 20 == clock.wall // 10**6


def test_rule_9_a_batch_without_its_claim_writes_nothing(store: Store) -> None:
    claim = (records.latest_key(records.Latest.CLAIM, b"job 1"), b"epoch 1")
    raw(store, claim)

    def put(section: Section) -> None:
        section.put(row_key(1), ROW_HEADER.pack(1, 0, 1 << 8))

    store.background([put], claim=claim)
    raw(store, (claim[0], b"epoch 2"))  # canceled, or taken over, while the worker slept
    before = contents(store)
    with pytest.raises(ClaimLost):
        store.background([put], claim=claim)
    assert contents(store) == before
    # Damage: without the claim the sleeper writes into what is dead by now.
    store.background([put])


def test_rule_9_the_claim_is_judged_in_every_batch(store: Store, clock: ManualClock) -> None:
    claim = (records.latest_key(records.Latest.CLAIM, b"job 1"), b"epoch 1")
    raw(store, claim)
    written: list[int] = []

    def step_for(number: int):
        def step(section: Section) -> None:
            section.put(b"\x03\x07%d" % number, b"x")
            written.append(number)
            clock.advance(0.001)  # longer than the gate lets a batch hold the section
            if number == 1:
                section.put(claim[0], b"epoch 2")

        return step

    with pytest.raises(ClaimLost):
        store.background(map(step_for, range(5)), claim=claim)
    assert written == [0, 1]


def test_rule_10_rows_are_compared_as_stored(store: Store) -> None:
    """Maintenance keeps timestamps, so that only the bytes tell that a row was migrated to another layout."""
    change(store, {1: b"a"})
    derived = request(store, {1: b"b"})

    def migrate(section: Section) -> None:
        value = section.get(row_key(1))
        assert value is not None
        timestamp, sequence, _tag = ROW_HEADER.unpack_from(value)
        section.put(row_key(1), ROW_HEADER.pack(timestamp, sequence, 2 << 8) + value[ROW_HEADER.size :])

    store.background([migrate])
    with pytest.raises(StaleRow):
        store.commit(derived)


def test_dead_entries_are_asked_for_before_images_only(store: Store) -> None:
    asked: list[LogRecord] = []
    change(store, {1: b"a"})
    change(store, {1: None})
    change(store, {1: b"b"})

    def dead(record: LogRecord) -> list[bytes]:
        asked.append(record)
        return []

    store.collect(store.now(), dead)
    assert [body_of(record.before) for record in asked] == [b"a"]
