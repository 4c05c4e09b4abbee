"""The image of a split on bytes: R's rows, which are the source's without some columns, and whether rows that
contribute to one record of S say the same of it.

As of the log (plain_updates.py), no value is made of what is only copied or compared. What cannot be copied, or is not
surely the same, is looked at by its values.
"""

from __future__ import annotations

from instar.catalog.descriptors import Layout, Table
from instar.catalog.layouts import Layouts
from instar.encoding.comparing import RowComparer
from instar.encoding.patching import RowPatcher
from instar.encoding.rows import BODY_OFFSET
from instar.schemachange.online import plain_updates
from instar.schemachange.online.plain_updates import columns_of, tags_of
from instar.schemachange.online.target_rows import SplitTargets
from instar.tables.patching import mover
from instar.tables.resolver import LAYOUT_OFFSET


class SplitCopies:
    """Copies and comparisons of the rows of one source, by the layouts that they are in."""

    def __init__(self, layouts: Layouts, source: Table, targets: SplitTargets) -> None:
        made = targets.made
        self._source, self._layouts = source, layouts
        self._r_columns = columns_of(source, targets.r.table)
        # Rows of one record have the same split value, though perhaps not the same bytes of it.
        in_s = {column.id for column in targets.s.table.columns}
        self._of_s = in_s.difference([made.counter, made.consistent, *made.on])
        self._movers: dict[bytes, RowPatcher | None] = {}
        self._comparers: dict[bytes, RowComparer] = {}

    def r_body(self, stored: bytes) -> bytes | None:
        """The body of R's record of a row; None if a value of it has to be converted or computed."""
        tag = stored[LAYOUT_OFFSET:BODY_OFFSET]
        try:
            move = self._movers[tag]
        except KeyError:
            move = self._movers[tag] = mover(self._layout(tag), self._r_columns)
        return None if move is None else move(stored, ())

    def say_the_same(self, one: bytes, other: bytes) -> bool:
        """Whether two rows of one record of S surely agree on its other columns."""
        tags = tags_of(one, other)
        try:
            compare = self._comparers[tags]
        except KeyError:
            pair = (self._layout(row[LAYOUT_OFFSET:BODY_OFFSET]) for row in (one, other))
            compare = self._comparers[tags] = plain_updates.Layouts(self._source, *pair).alike(self._of_s)
        return compare(one, other)

    def _layout(self, tag: bytes) -> Layout:
        return self._layouts.of_row(self._source, int.from_bytes(tag, "little") >> 8)
