"""What the collector must know of tables: the index keys that a before-image had (rules 1, 4)."""

from __future__ import annotations

from collections.abc import Callable

from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Table
from instar.catalog.layouts import Layouts
from instar.store.engine import LogRecord
from instar.tables.index import IndexCodec
from instar.tables.rowset import TableReader


class DeadEntries:
    """The `dead_entries` of `Store.collect`: the entries that a before-image had, in the indexes of its table.

    Indexes that the catalog no longer lists are left out: their rowsets are dead, and go as a whole. So are records
    of rowsets that were swapped out. Those of a dropped table are not: it may come back with what is cut now.
    """

    def __init__(
        self, catalog: Callable[[], CatalogSnapshot], dropped: Callable[[int], Table | None], layouts: Layouts
    ) -> None:
        """`dropped`: the table of that id as it was when it was dropped, if it can still come back."""
        self._catalog = catalog
        self._dropped = dropped
        self._layouts = layouts
        self._known: dict[int, tuple[Table, TableReader, list[IndexCodec]]] = {}
        self._gone: tuple[int, dict[int, Table | None]] = (-1, {})  # the catalog version, and what it has no more

    def __call__(self, record: LogRecord) -> list[bytes]:
        """Store keys of entries; the collector removes those that are tombstones of the record's timestamp."""
        if record.before is None:
            return []
        found = self._of(record.table)
        if found is None:
            return []
        _, reader, codecs = found
        if not codecs or not record.key.startswith(reader.prefix):
            return []
        image = reader.decode(record.before)
        key = record.key[len(reader.prefix) :]
        return [codec.entry(image, key) for codec in codecs]

    def _of(self, table_id: int) -> tuple[Table, TableReader, list[IndexCodec]] | None:
        catalog = self._catalog()
        table = catalog.by_id(table_id) or self._found_dropped(catalog.version, table_id)
        if not isinstance(table, Table):
            return None
        known = self._known.get(table_id)
        if known is None or known[0] is not table:
            reader = TableReader(table, range(len(table.columns)), self._layouts, lenient=True)
            known = self._known[table_id] = (table, reader, [IndexCodec(table, index) for index in table.indexes])
        return known

    def _found_dropped(self, version: int, table_id: int) -> Table | None:
        """As `dropped`, asked once per table and catalog version."""
        if self._gone[0] != version:
            self._gone = (version, {})
        known = self._gone[1]
        if table_id not in known:
            known[table_id] = self._dropped(table_id)
        return known[table_id]
