"""Row layouts as a transaction sees them that changes the schema itself, and has not committed."""

from __future__ import annotations

from instar.catalog.changes import CatalogChange, CatalogConflict
from instar.catalog.descriptors import Layout, Table
from instar.catalog.layouts import Layouts


class OwnLayouts(Layouts):
    """The committed layouts, and those that a catalog change has made.

    The numbers of layouts and columns count on from those of the table as the transaction has seen it. Another change
    of the table that is committed first has made layouts, and columns, of the same numbers. The transaction will not
    commit then; but compaction may have put rows that it sees into such a layout already, and it must not take another
    column's values for its own.
    """

    def __init__(self, committed: Layouts, change: CatalogChange) -> None:
        self._committed = committed
        self._first: dict[int, int] = {}  # by table, the first layout that is its own
        for table, layout in change.layouts:
            self._first[table] = min(layout, self._first.get(table, layout))

    def find(self, table: int, layout: int) -> Layout | None:
        """As in `Layouts`."""
        return self._committed.find(table, layout)

    def of_row(self, table: Table, layout: int) -> Layout:
        """As in `Layouts`; 40001 for a row in a layout that another has made."""
        if layout >= self._first.get(table.id, layout + 1) and self.find(table.id, layout) is not None:
            raise CatalogConflict(table.id, table.name).error()
        return super().of_row(table, layout)
