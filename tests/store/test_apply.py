"""Commits as they are written: in which order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from instar.clock import SystemClock
from instar.store import MemoryStore
from instar.store.apply import apply_commit
from instar.store.engine import PREFIX_LOG, ROW_HEADER
from instar.store.log import decode, log_key
from instar.store.memory import MemorySection
from store.building import ROWS, body_of, change, request, row_key

FEW, MANY = 5, 100  # fewer than are written in bulk, and more


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    made = MemoryStore()
    yield made
    made.close()


@pytest.mark.parametrize("rows", [FEW, MANY])
def test_rows_are_put_before_their_log_records(store: MemoryStore, rows: int) -> None:
    """Else pages of the table and of the log lie in the file by turns. Each row tells the place of its own record."""
    change(store, {number: b"old %d" % number for number in range(0, 2 * rows, 2)})
    kinds: dict[int, bytes | None] = {number: b"new %d" % number for number in range(2 * rows)}
    kinds |= dict.fromkeys(range(0, 2 * rows, 6))
    commit = request(store, kinds)
    section = MemorySection(store)
    timestamp = apply_commit(section, commit, SystemClock())
    put = {key: value for key, value in section._changes.items() if value is not None}
    of_rows = [key for key in put if key.startswith(ROWS)]
    of_log = [key for key in put if key[:1] == PREFIX_LOG]
    assert [key for key in put if key in of_rows or key in of_log] == of_rows + of_log
    assert of_log == sorted(of_log)
    assert sorted(of_rows) == [row_key(number) for number in range(2 * rows)]
    for number in range(0, 2 * rows, 2):
        written, sequence, _tag = ROW_HEADER.unpack_from(put[row_key(number)])
        key = log_key(timestamp, sequence)
        (record,) = decode(key, put[key])
        assert (written, record.key, body_of(record.before)) == (timestamp, row_key(number), b"old %d" % number)
        assert record.deleted == (number % 6 == 0)
