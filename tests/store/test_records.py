"""The store's small records."""

from __future__ import annotations

import pytest

from instar.errors import Error
from instar.store.engine import FORMAT_VERSION, TableHeader
from instar.store.header import decode_identity, new_identity
from instar.store.records import (
    Latest,
    RowsetRecord,
    RowsetState,
    decode_rowset_record,
    decode_table_header,
    encode_table_header,
    latest_key,
    rowset_key,
    rowset_record,
    table_key,
)


def test_keys() -> None:
    assert table_key(258).hex(" ") == "01 00 00 01 02"
    assert rowset_key(258).hex(" ") == "02 00 00 01 02"
    assert latest_key(Latest.JOB, b"xy").hex(" ") == "03 03 78 79"


def test_values() -> None:
    header = TableHeader(5, 4, 3, logged_whole=True)
    assert decode_table_header(encode_table_header(header)) == header
    for state in RowsetState:
        assert decode_rowset_record(rowset_record(7, state, 1 << 60)) == RowsetRecord(7, state, 1 << 60)


@pytest.mark.parametrize("data", [b"", b"[]", b"7", b"{}", b'{"format": %d}' % FORMAT_VERSION, b"\xff"])
def test_an_unreadable_identity_is_damage(data: bytes) -> None:
    with pytest.raises(Error) as caught:
        decode_identity(data, "here")
    assert caught.value.sqlstate == "XX001"
    assert len(new_identity("off", None, None).uuid_bytes) == 16
