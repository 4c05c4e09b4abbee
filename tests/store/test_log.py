"""Log records: what goes in comes out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar.errors import Error
from instar.store.engine import ROW_HEADER, RowsetReplaced, RowWrite, Store
from instar.store.log import (
    PACK_BYTES,
    before_image,
    decode,
    encode_change,
    encode_inserts,
    encode_replaced,
    log_key,
    log_place,
)
from store.building import change, row_key

KEYS = st.binary(min_size=1, max_size=511)
AFTERS = st.one_of(st.none(), st.binary(max_size=3000))
PAIRS = st.integers(0, 2**32 - 1)
IDS = st.integers(0, 2**32 - 1)
KEY = log_key(2**63, 7)


@given(
    KEYS,
    st.binary(max_size=50),
    st.booleans(),
    AFTERS,
    PAIRS,
    IDS,
    IDS,
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**64 - 1),
)
def test_changes(
    key: bytes,
    old: bytes,
    dead: bool,
    after: bytes | None,
    pair: int,
    table: int,
    version: int,
    delete: bool,
    renewed: bool,
    place: int,
) -> None:
    before = ROW_HEADER.pack(1, 2, 3 << 8 | dead) + old
    row = RowWrite(key, before, None if delete else b"new", 1, (), pair, renewed=renewed)
    record = encode_change(place, table, version, row, before, after)
    assert log_place(KEY, record) == (2**63, place)
    (decoded,) = decode(KEY, record)
    assert (decoded.timestamp, decoded.sequence, decoded.table, decoded.version) == (2**63, 7, table, version)
    assert (decoded.key, decoded.after, decoded.pair, decoded.deleted) == (key, after, pair, delete)
    assert decoded.renewed == renewed
    assert decoded.before == (None if dead else before)
    assert before_image(record) == before


@given(
    st.lists(st.tuples(KEYS, st.binary(max_size=300), st.sampled_from([0, 0, 9])), min_size=1, max_size=60),
    st.booleans(),
)
def test_inserts_are_packed(inserted: list[tuple[bytes, bytes, int]], whole: bool) -> None:
    rows = [(key, after if whole else None, pair) for key, after, pair in inserted]
    writes = [RowWrite(key, None, b"", 1, (), pair) for key, _, pair in inserted]
    records = encode_inserts(2**40, 3, 4, writes, [after for _, after, _ in inserted] if whole else ())
    decoded = [one for record in records for one in decode(KEY, record)]
    assert [(one.key, one.after, one.pair) for one in decoded] == rows
    assert {(one.table, one.version, one.before, one.deleted) for one in decoded} == {(3, 4, None, False)}
    place = 2**40
    for record in records:
        assert len(record) <= PACK_BYTES or len(decode(KEY, record)) == 1
        assert log_place(KEY, record) == (2**63, place)
        place += len(KEY) + len(record)


def test_small_inserts_fill_their_records() -> None:
    records = encode_inserts(0, 1, 1, [RowWrite(row_key(number), None, b"", 1) for number in range(10_000)])
    assert all(len(record) > PACK_BYTES - 20 for record in records[:-1])


def test_a_replaced_rowset() -> None:
    encoded = encode_replaced(5, RowsetReplaced(1, 2, 3, 4))
    (record,) = decode(KEY, encoded)
    assert log_place(KEY, encoded) == (2**63, 5)
    assert (record.table, record.version, record.replaced, record.key) == (1, 2, (3, 4), b"")


def test_an_unknown_kind_is_damage() -> None:
    with pytest.raises(Error) as caught:
        decode(KEY, b"\x09")
    assert caught.value.sqlstate == "XX001"


def test_the_log_is_read_in_batches_across_a_large_commit(store: Store) -> None:
    change(store, dict.fromkeys(range(3000), b"a"))
    last = change(store, dict.fromkeys(range(3000), b"b"))
    newest = change(store, {1: b"c"})
    told = [record.key for record in store.log(last - 1, newest)]
    assert told == [row_key(number) for number in range(3000)] + [row_key(1)]


def test_of_some_tables_all_the_log_is_read(store: Store) -> None:
    first = change(store, dict.fromkeys(range(3000), b"a"))
    last = change(store, dict.fromkeys(range(3000), b"b"))
    (table,) = {record.table for record in store.log(first - 1, last)}
    read: list[int] = []
    assert list(store.log(first, last, {table}, read.append)) == list(store.log(first, last))
    assert list(store.log(first, last, {table + 1}, read.append)) == []
    assert read == [1024] * 4


def test_a_cut_in_the_middle_of_reading_is_told(store: Store) -> None:
    first = change(store, dict.fromkeys(range(3000), b"a"))
    last = change(store, dict.fromkeys(range(3000), b"b"))
    following = store.log(first, last)
    for _ in range(10):
        next(following)
    store.collect(last, lambda _record: [])
    with pytest.raises(Error) as caught:
        list(following)
    assert caught.value.sqlstate == "72000"


def test_a_cut_of_what_has_been_read_is_no_gap(store: Store) -> None:
    first = change(store, dict.fromkeys(range(5), b"a"))
    last = change(store, dict.fromkeys(range(3000), b"b"))
    following = store.log(0, last)
    for _ in range(100):
        next(following)
    store.collect(first, lambda _record: [])
    assert len(list(following)) == 3005 - 100
