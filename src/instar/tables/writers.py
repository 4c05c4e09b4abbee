"""The writers of a process: one compiled TableWriter per table version, kept while it is the newest."""

from __future__ import annotations

from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Table
from instar.catalog.layouts import Layouts
from instar.tables.writes import TableWriter


class Writers:
    """A cache by descriptor identity: descriptors are immutable and shared by all sessions of a process.

    Foreign keys reach into other tables, so a writer holds only as long as the tables around it stay the same too.
    """

    def __init__(self, layouts: Layouts) -> None:
        self._layouts = layouts
        self._known: dict[int, tuple[Table, tuple[Table, ...], TableWriter]] = {}

    def get(self, table: Table, catalog: CatalogSnapshot) -> TableWriter:
        """The writer of `table` under `catalog`."""
        known = self._known.get(table.id)
        if known is not None and known[0] is table and not known[1]:
            return known[2]  # most tables stand alone
        around = tuple(
            catalog.table(other)
            for other in (*(key.parent for key in table.foreign_keys), *table.referenced_by)
            if other != table.id
        )
        if known is not None and known[0] is table and all(a is b for a, b in zip(known[1], around, strict=True)):
            return known[2]
        writer = TableWriter(table, catalog, self._layouts)
        self._known[table.id] = (table, around, writer)
        return writer
