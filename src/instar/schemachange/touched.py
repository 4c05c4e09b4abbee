"""Which rows of a table others change while a task works on it, read off the log: each record once."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from instar.store.engine import View
from instar.store.log import INSERTS, REPLACED, TABLE, changed_key, log_key, log_place, tables_told

# So many rows are remembered, in some 25 MB (80 with keys of 500 bytes). Then all are forgotten, and what was looked
# at before counts as changed.
MOST_ROWS = 131_072


class Touched:
    """What was derived from a row outside the atomic section stands in it if nobody has changed the row since: the log
    since then is short, and tells it for all rows at once. Maintenance, which is not logged, leaves values as they are.
    """

    def __init__(self, table: int) -> None:
        (self._told,) = tables_told([table])
        self._upto = -1  # the log has been read up to this timestamp,
        self._from = 0  # and everything after this one is remembered
        self._last: dict[bytes, int] = {}  # when a row was changed last

    def follow(self, view: View) -> int:
        """Learn what has been committed up to this view; returns its timestamp."""
        upto, timestamp = self._upto, view.timestamp
        if upto < view.watermark:
            self._forget(timestamp)
        elif timestamp > upto:
            self._read(view, upto, timestamp)
        self._upto = max(upto, timestamp)
        return timestamp

    def _read(self, view: View, after: int, upto: int) -> None:
        last = self._last
        for key, value in view.scan(log_key(after + 1, 0), log_key(upto + 1, 0)):
            # Inserts are left out: nothing stood at such a key, so nothing can have been derived from it since the
            # deletion before, which was met here.
            if value[TABLE] != self._told or value[0] == INSERTS:
                continue
            timestamp, _ = log_place(key, value)
            if value[0] == REPLACED or len(last) >= MOST_ROWS:
                self._forget(timestamp)
            else:
                last[changed_key(value)] = timestamp

    def _forget(self, timestamp: int) -> None:
        self._from = timestamp
        self._last.clear()

    def changed(self, rows: AbstractSet[bytes], since: int) -> AbstractSet[bytes]:
        """Of the rows at these store keys those that may have been changed after `since`, up to what was followed."""
        if since >= self._upto:
            return frozenset()
        if since < self._from:
            return rows
        return {row for row in self._last.keys() & rows if self._last[row] > since}
