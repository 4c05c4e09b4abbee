"""Which rows of a table others change while a task works on it, read off the log: each record once."""

from __future__ import annotations

from instar.store.engine import View
from instar.store.log import decode, log_key

# So many rows are remembered. Then all are forgotten, and what was looked at before counts as changed.
MOST_ROWS = 8_192


class Touched:
    """What was derived from a row outside the atomic section stands in it if nobody has changed the row since: the log
    since then is short, and tells it for all rows at once. Maintenance, which is not logged, leaves values as they are.
    """

    def __init__(self, table: int) -> None:
        self._table = table
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
        if len(self._last) > MOST_ROWS:
            self._forget(after)
        for key, value in view.scan(log_key(after + 1, 0), log_key(upto + 1, 0)):
            for record in decode(key, value):
                if record.table == self._table:
                    self._last[record.key] = record.timestamp
                    if record.replaced is not None:
                        self._forget(record.timestamp)

    def _forget(self, timestamp: int) -> None:
        self._from = timestamp
        self._last.clear()

    def none_since(self, timestamp: int) -> bool:
        """Whether no row at all has been changed after `timestamp`; a view that has been followed."""
        return timestamp >= self._upto

    def unchanged(self, row: bytes, since: int) -> bool:
        """Whether the row at this store key has not been changed after `since`: surely not, that is."""
        return since >= self._from and self._last.get(row, 0) <= since
