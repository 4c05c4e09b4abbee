"""Which share of a table's rows is in older layouts, and in how many: what compaction is begun for.

Nobody counts such rows, neither who writes nor who reads them: that would cost all of them something. A few thousand
rows are looked at instead, in stretches that lie all over the table, each in a short read; some ten milliseconds' work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from instar.catalog.descriptors import Table
from instar.store.engine import ROW_HEADER, ROW_TOMBSTONE, Reader, prefix_end, rowset_prefix
from instar.store.key_ranges import sampled


class OlderShare(NamedTuple):
    """About how many rows a table has, which share of them is in older layouts, and how many of those were met: a scan
    decodes what it reads layout by layout, so it is by their number that its blocks get dearer."""

    rows: int
    share: float
    layouts: int


def older_share(open_reader: Callable[[], Reader], table: Table) -> OlderShare:
    """That of a table. `open_reader` gives a short read of the store."""
    start = rowset_prefix(table.rowset)
    rows = 0.0
    found: dict[int, float] = {}
    for weight, values in sampled(open_reader, start, prefix_end(start)):
        tags = [ROW_HEADER.unpack_from(value)[2] for value in values]
        for tag in tags:
            if not tag & ROW_TOMBSTONE:
                rows += weight / len(values)
                found[tag >> 8] = found.get(tag >> 8, 0.0) + weight / len(values)
    older = [layout for layout in found if layout < table.layout.id]
    # What is not older may be newer than the descriptor. The share is 1, and not almost, when all rows are older.
    others = sum(count for layout, count in found.items() if layout not in older)
    return OlderShare(round(rows), 1 - others / rows if rows else 0.0, len(older))
