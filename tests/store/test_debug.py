"""Every kind of pair in a store, in words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from instar.clock import ManualClock
from instar.encoding.format import format_row
from instar.encoding.keys import encode_key
from instar.encoding.rows import compile_encoder, row_format
from instar.store import header, log, records, schema_version
from instar.store.debug import describe, format_timestamp
from instar.store.engine import ENTRY_VALUE, NO_RECORD, ROW_HEADER, ROW_TOMBSTONE, RowWrite, TableHeader, rowset_prefix
from instar.types import BIGINT, TEXT

T = header.wall_timestamp(1_700_000_000_123_000_000) + 5
WHEN = "1700000000123.5 (2023-11-14 22:13:20.123)"
KEY = rowset_prefix(9) + encode_key([42], [BIGINT])
BODY = compile_encoder(row_format((BIGINT, TEXT)))((42, "x"))


def body(rowset: int, layout: int, data: bytes) -> str | None:
    return format_row(data, (BIGINT, TEXT), ("id", "t")) if (rowset, layout) == (9, 3) else None


def test_timestamps() -> None:
    assert format_timestamp(T) == WHEN
    assert format_timestamp(2**64 - 1).startswith("17592186044415.1048575 (2527-06-23")


def test_rows_and_entries() -> None:
    value = ROW_HEADER.pack(T, NO_RECORD, 3 << 8) + BODY
    assert describe(KEY, value, body) == (
        "rowset 9 row (42)",
        f"commit {WHEN}, no version before, layout 3: id=42, t='x'",
    )
    assert describe(KEY, value)[1].endswith(BODY.hex())
    gone = ROW_HEADER.pack(T, 8, 3 << 8 | ROW_TOMBSTONE)
    assert describe(KEY, gone, body)[1] == f"commit {WHEN}, record 8, layout 3, deleted"
    entry = rowset_prefix(10) + encode_key(["a", 42], [TEXT, BIGINT])
    primary = len(entry) - 9
    assert describe(entry, ENTRY_VALUE.pack(T, 1, primary)) == ("rowset 10 entry ('a') -> (42)", f"live, commit {WHEN}")


def test_records_of_the_store() -> None:
    table = records.encode_table_header(TableHeader(4, 3, 0))
    assert describe(records.table_key(7), table) == (
        "table 7 header",
        "current 4, floor 3, checks 0, logged_whole False, dropped False",
    )
    rowset = records.rowset_record(7, records.RowsetState.LIVE, T)
    assert describe(records.rowset_key(9), rowset) == ("rowset 9", f"owner 7, live since {WHEN}")
    counter = records.latest_key(records.Latest.COUNTER, b"table")
    assert describe(counter, (12).to_bytes(8, "little")) == ("latest counter table", "12")
    assert describe(records.latest_key(records.Latest.JOB, b"\x01"), b'{"a":1}') == ("latest job 01", "{'a': 1}")
    assert describe(header.HEADER_KEY, header.first_header(ManualClock()))[1].startswith(
        "catalog version 0, written at commit"
    )
    for number, key in enumerate(schema_version.COPIES, 1):
        copy = schema_version.encode_copy(key, schema_version.SchemaVersion(3, T, True))
        said = f"catalog version 3 of commit {WHEN}, at once for all"
        assert describe(key, copy) == (f"schema version, copy {number}", said)
        assert describe(key, copy[:-1]) == (f"? {key.hex()}", f"? {copy[:-1].hex()}")
    assert describe(header.IDENTITY_KEY, b"{}") == ("store identity", "{}")


def test_log_records() -> None:
    before = ROW_HEADER.pack(T - 1, NO_RECORD, 3 << 8) + BODY
    change = log.encode_change(0, 7, 2, RowWrite(KEY, before, None, 3), before)
    key, text = describe(log.log_key(T, 0), change, body)
    assert key == f"log {WHEN} / 0"
    assert text.startswith("table 7 at version 2, rowset 9, deleted (42), before [commit ")
    assert text.endswith("id=42, t='x']")
    inserts = log.encode_inserts(0, 7, 2, [RowWrite(KEY, None, BODY, 3, pair=5)])
    assert describe(log.log_key(T, 1), inserts[0])[1] == "table 7 at version 2, rowset 9, inserted (42), pair 5"


@given(
    st.sampled_from([b"\x00", b"\x01", b"\x02", b"\x03", b"\x10", b"\xf0", b"\x77"]),
    st.binary(max_size=20),
    st.binary(),
)
def test_damage_is_shown(prefix: bytes, key: bytes, value: bytes) -> None:
    assert all(isinstance(text, str) for text in describe(prefix + key, value, body))
