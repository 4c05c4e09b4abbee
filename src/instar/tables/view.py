"""What a statement sees: one snapshot, overlaid with the transaction's buffer as it stood when the statement began.

The executor and the analytic engine read tables only through `TableReader` and `IndexReader`: one overlay for key
look-ups, key ranges, index ranges and Arrow batches (rule 15). A DML statement collects its changes first and buffers
them when it has read everything, so the buffer does not move while it reads.

At the locking levels there is no snapshot: every read is of the newest state (`NEWEST`), each short read of the store
of its own moment, and under READ COMMITTED LOCK behind a guard.
"""

from __future__ import annotations

from typing import NamedTuple

from instar.catalog.layouts import Layouts
from instar.store.engine import Store
from instar.tables.guard import ReadGuard
from instar.tables.older import OlderRows
from instar.transactions.buffer import Buffer, TableBuffer
from instar.transactions.reads import ReadSet

# Keys never begin with ff (encoding/keys.py), so this is above all of them.
END = b"\xff"
# A snapshot that sees whatever is committed.
NEWEST = (1 << 63) - 1


class View:
    """One statement's reads. `buffer` is None where the transaction has written nothing; `reads` is where SERIALIZABLE
    transactions remember what they read; `older`, where rows are noted that the query may migrate; `guard`, what reads
    wait for."""

    __slots__ = ("buffer", "guard", "layouts", "older", "reads", "snapshot", "store")

    def __init__(
        self,
        store: Store,
        snapshot: int,
        buffer: Buffer | None,
        layouts: Layouts,
        reads: ReadSet | None = None,
        guard: ReadGuard | None = None,
    ) -> None:
        self.store = store
        self.snapshot = snapshot
        self.buffer = buffer
        self.layouts = layouts
        self.reads = reads
        self.older: OlderRows | None = None
        self.guard = guard

    def unguarded(self) -> View:
        """The same for rows that the statement locks itself, and waits for then."""
        if self.guard is None:
            return self
        return View(self.store, self.snapshot, self.buffer, self.layouts, self.reads)

    def overlay(self, table: int) -> TableBuffer | None:
        """The buffered changes of `table`, or None if there are none."""
        return self.buffer.table(table) if self.buffer is not None else None


class RowVersion(NamedTuple):
    """A visible row: `key` is its encoded primary key without rowset prefix; `base` the commit timestamp of its stored
    version (None: inserted by this very transaction); `values` the wanted columns."""

    key: bytes
    base: int | None
    values: tuple[object, ...]
