"""What planning a schema change must know of the data: whether a table is empty, and about how many rows it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instar.catalog.descriptors import Table
from instar.store.engine import ROW_HEADER, ROW_TOMBSTONE, Reader, prefix_end, rowset_prefix

if TYPE_CHECKING:
    from instar.database.session import Session

_SAMPLE = 8_192


class StoreFacts:
    """Facts on the newest state, and on the session's own buffer."""

    def __init__(self, session: Session) -> None:
        self._store = session.database.store
        self._buffer = session.open_transaction().buffer

    def stored_empty(self, table: Table) -> bool:
        """Whether no committed row of the table exists now."""
        with self._store.read() as reader:
            start = rowset_prefix(table.rowset)
            return all(
                ROW_HEADER.unpack_from(value)[2] & ROW_TOMBSTONE for _, value in reader.scan(start, prefix_end(start))
            )

    def has_buffered(self, table: Table) -> bool:
        """Whether the transaction itself has buffered rows of the table."""
        return self._buffer.table(table.id) is not None

    def estimated_rows(self, table: Table) -> int:
        """About how many rows the table has: exact up to 8,192, else by where evenly spread keys fall."""
        start = rowset_prefix(table.rowset)
        with self._store.read() as reader:
            keys, _ = reader.batch(start, prefix_end(start), _SAMPLE)
            return len(keys) if len(keys) < _SAMPLE else _estimate(reader, start, keys)


def _estimate(reader: Reader, start: bytes, sample: list[bytes]) -> int:
    """The density of the first keys, taken over the whole range of keys as numbers of their first bytes.

    Right for evenly spread keys such as serial ones; for others an order of magnitude, which is what plans and
    progress need. Progress corrects the total when it has passed it.
    """
    last = next(iter(reader.scan(start, prefix_end(start), reverse=True)))[0]
    width = len(start) + 16
    first_value, sample_value, last_value = (
        int.from_bytes(key[len(start) : width].ljust(16, b"\x00"), "big") for key in (sample[0], sample[-1], last)
    )
    if sample_value <= first_value:
        return len(sample)
    return max(len(sample), len(sample) * (last_value - first_value) // (sample_value - first_value))
