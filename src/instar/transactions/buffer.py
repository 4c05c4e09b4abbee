"""The buffer: logical row changes of a transaction, net per row, with savepoints.

A transaction buffers what its statements *meant* (key, operation, changed columns, version of the row they were made
on, version of the schema they were meant under) and derives physical writes at commit, under the newest schema. So a
transaction that began before CREATE INDEX maintains the index when it commits after.

Keys are the encoded primary key without the rowset prefix: a change finds its row even if the rowset was swapped. If
the primary key is another one by then, it is found by its old image (tables/upgrade.py).
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Hashable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from instar import errors

DEFAULT_MAX_ROWS = 1_000_000
# Fewer than one in so many rows are put in their places in an order one by one.
_FEW = 16


class Change(msgspec.Struct, frozen=True, gc=False):
    """The net change of one row in this transaction.

    `base` is the commit timestamp of the stored row version that the change was made on, None if there was none
    (an insert, or an update of a row that this transaction inserted). `image` is the new row as the statement saw it,
    one value per column of the table as it is enlisted (all columns, in descriptor order), None for a deleted row.
    `changed` are the ids of the columns that were set (None: all of them, an insert). `old` is the image that the
    change was made on, in the same order, where `base` is given. `version` is that of the table under which it was
    meant first: keys that have come since have judged no statement.

    A change of key is a delete and an insert that bear one number: `pair` is that of the row that has come to this key,
    or has gone from it; where another row has taken the place of one that has gone, `gone` is the latter's.
    """

    base: int | None
    image: tuple[object, ...] | None
    old: tuple[object, ...] | None
    changed: frozenset[int] | None
    version: int
    pair: int = 0
    gone: int = 0

    @property
    def is_alone(self) -> bool:
        """Whether it is of one row, which has kept its place from before it to after it, as far as it was there."""
        return not (self.pair or self.gone) and (self.changed is not None or self.base is None or self.image is None)


class _Order:
    """The new rows of a buffer in another order than that of their keys: as pairs of what `part_of` makes of them and
    their key. Brought up to date when it is asked for: who writes row by row and asks in between pays for those rows
    only."""

    __slots__ = ("_pairs", "_part_of", "_parts", "stale")

    def __init__(self, part_of: Callable[[tuple[object, ...]], bytes], keys: Mapping[bytes, Change]) -> None:
        self._part_of = part_of
        self._parts: dict[bytes, bytes] = {}
        self._pairs: list[tuple[bytes, bytes]] = []
        self.stale = set(keys)  # those whose change may be another one by now

    def between(self, changes: Mapping[bytes, Change], start: bytes, stop: bytes) -> list[tuple[bytes, bytes]]:
        """The pairs with start <= part < stop."""
        if self.stale:
            self._refresh(changes)
        pairs = self._pairs
        return pairs[bisect.bisect_left(pairs, (start, b"")) : bisect.bisect_left(pairs, (stop, b""))]

    def _refresh(self, changes: Mapping[bytes, Change]) -> None:
        parts, pairs = self._parts, self._pairs
        # Each of a few takes a search and a move in memory; many are sorted at less.
        few = len(self.stale) * _FEW < len(pairs)
        for key in self.stale:
            before = parts.pop(key, None)
            if few and before is not None:
                del pairs[bisect.bisect_left(pairs, (before, key))]
            change = changes.get(key)
            if change is not None and change.image is not None:
                part = parts[key] = self._part_of(change.image)
                if few:
                    bisect.insort(pairs, (part, key))
        if not few:
            self._pairs = sorted((part, key) for key, part in parts.items())
        self.stale.clear()


def _place(keys: list[bytes], key: bytes, *, is_in: bool) -> None:
    """Have sorted `keys` contain `key`, or not."""
    at = bisect.bisect_left(keys, key)
    was_in = at < len(keys) and keys[at] == key
    if is_in and not was_in:
        keys.insert(at, key)
    elif was_in and not is_in:
        del keys[at]


class TableBuffer:
    """The changes of one table: net change by key, keys also in order for range scans, new rows in that of indexes."""

    __slots__ = ("_moved", "_ordered", "_orders", "changes", "table")

    def __init__(self, table: int) -> None:
        self.table = table
        self.changes: dict[bytes, Change] = {}
        self._ordered: list[bytes] | None = None  # until it is first asked for
        self._moved: set[bytes] = set()  # keys that have come or gone since it was made
        self._orders: dict[Hashable, _Order] = {}

    def ordered(self) -> list[bytes]:
        """All changed keys in key order. Few that have come or gone are put in their places, so that a statement of a
        long transaction does not pay for all that those before it have changed.

        The analytic engine reads in threads of its own: none changes a list or a set that another may have, and who
        meets the old set places in whichever list there is what may be there already.
        """
        moved = self._moved
        keys = self._ordered
        if keys is None:
            keys = sorted(self.changes)
        elif moved:
            keys = keys.copy()
            for key in moved:
                _place(keys, key, is_in=key in self.changes)
        else:
            return keys
        self._ordered = keys
        self._moved = set()
        return keys

    def keys_between(self, start: bytes, stop: bytes) -> list[bytes]:
        """The changed keys with start <= key < stop."""
        keys = self.ordered()
        return keys[bisect.bisect_left(keys, start) : bisect.bisect_left(keys, stop)]

    def rows_between(
        self, order: Hashable, part_of: Callable[[tuple[object, ...]], bytes], start: bytes, stop: bytes
    ) -> list[tuple[bytes, bytes]]:
        """What `part_of` makes of the images of the new rows, with their keys, where it is in [start, stop); in order.
        `order` stands for `part_of`: two that make the same of an image may bear the same one."""
        known = self._orders.get(order)
        if known is None:
            known = self._orders[order] = _Order(part_of, self.changes)
        try:
            return known.between(self.changes, start, stop)
        except BaseException:  # an interrupt, too, leaves it half brought up to date
            del self._orders[order]
            raise

    def set(self, key: bytes, change: Change | None) -> Change | None:
        """Replace the net change of `key` (None: no change any more); returns what was there."""
        before = self.changes.get(key)
        if change is None:
            self.changes.pop(key, None)
        else:
            self.changes[key] = change
        if self._ordered is not None and (before is None) != (change is None):
            self._moved.add(key)
            if len(self._moved) > _FEW:
                self._ordered, self._moved = None, set()
        for order in self._orders.values():
            order.stale.add(key)
        return before


class Buffer:
    """All buffered changes of one transaction, with an undo journal for savepoints and failed statements."""

    __slots__ = ("_column_sets", "_journal", "_pairs", "max_rows", "merged", "rows", "tables")

    def __init__(self, max_rows: int = DEFAULT_MAX_ROWS) -> None:
        self.tables: dict[int, TableBuffer] = {}
        self.rows = 0
        self.max_rows = max_rows
        self.merged = False  # whether a row was ever changed more than once
        self._journal: list[tuple[int, bytes, Change | None]] = []
        self._column_sets: dict[frozenset[int], frozenset[int]] = {}  # many rows have few of them
        self._pairs = 0

    def __bool__(self) -> bool:
        return self.rows > 0

    def table(self, table: int) -> TableBuffer | None:
        """The changes of `table`, or None if there are none: the overlay of a statement's reads."""
        found = self.tables.get(table)
        return found if found is not None and found.changes else None

    def mark(self) -> int:
        """A savepoint: everything buffered later can be taken back with `rollback`."""
        return len(self._journal)

    def rollback(self, mark: int) -> None:
        """Restore the buffer as it stood at `mark`, the schema versions of its changes included (rule 14)."""
        while len(self._journal) > mark:
            table, key, before = self._journal.pop()
            self._count(self.tables[table].set(key, before), before)

    def changed_since(self, mark: int) -> dict[int, dict[bytes, Change]]:
        """The changes, by table and key, that were made since `mark` and not taken back."""
        found: dict[int, dict[bytes, Change]] = {}
        for table, key, _before in self._journal[mark:]:
            change = self.tables[table].changes.get(key)
            if change is not None:
                found.setdefault(table, {})[key] = change
        return found

    def insert(self, table: int, version: int, key: bytes, image: tuple[object, ...], *, pair: int = 0) -> None:
        """Buffer a new row. The caller has made sure that no visible row has this key."""
        buffer = self._of(table)
        before = buffer.changes.get(key)
        if before is not None and before.base is not None:
            # Deleted in this transaction and inserted again: the stored row is replaced as a whole.
            self._put(buffer, key, Change(before.base, image, before.old, None, version, pair, before.pair))
        else:
            self._put(buffer, key, Change(None, image, None, None, version, pair))

    def update(
        self,
        table: int,
        version: int,
        key: bytes,
        base: int | None,
        old: tuple[object, ...],
        image: tuple[object, ...],
        changed: frozenset[int],
    ) -> None:
        """Buffer new values of `changed` columns of the row at `key`, whose key stays."""
        buffer = self._of(table)
        before = buffer.changes.get(key)
        if before is None:
            self._put(buffer, key, Change(base, image, old, self._one_of(changed), version))
            return
        all_changed = None if before.changed is None else self._one_of(before.changed | changed)
        self._put(buffer, key, replace(before, image=image, changed=all_changed))

    def delete(
        self, table: int, version: int, key: bytes, base: int | None, old: tuple[object, ...], *, pair: int = 0
    ) -> None:
        """Buffer the removal of the row at `key`."""
        buffer = self._of(table)
        before = buffer.changes.get(key)
        if before is None:
            self._put(buffer, key, Change(base, None, old, None, version, pair))
        elif before.base is None:
            self._put(buffer, key, None)
        else:
            # Of a row that had come here, nothing is left to be said; of the one that had been here, where it has gone.
            left = before.gone if before.changed is None else pair
            self._put(buffer, key, Change(before.base, None, before.old, None, version, left))

    def pair_of(self, table: int, key: bytes) -> int:
        """The number for the delete and the insert that a change of key is made of (rule 2), of the row at `key`: that
        of the change by which it has come there in this transaction; 0 if the transaction has inserted it."""
        buffer = self.tables.get(table)
        before = None if buffer is None else buffer.changes.get(key)
        if before is not None and before.changed is None:
            return before.pair
        self._pairs += 1
        return self._pairs

    def drop_table(self, table: int) -> None:
        """Forget all changes of `table` (it was dropped or truncated in this transaction); can be rolled back."""
        buffer = self.tables.get(table)
        if buffer is not None:
            for key in list(buffer.changes):
                self._put(buffer, key, None)

    def replace(self, table: int, changes: Mapping[bytes, Change]) -> None:
        """The changes of `table` at another schema version, where keys may be others too; a rollback restores them as
        they were (rule 14)."""
        buffer = self._of(table)
        for key in [key for key in buffer.changes if key not in changes]:
            self._put(buffer, key, None)
        for key, change in changes.items():
            self._pairs = max(self._pairs, change.pair, change.gone)
            self._put(buffer, key, change)

    def rebase(self, table: int, key: bytes, change: Change) -> None:
        """The change of a row as one that was made on another version of it."""
        self._put(self._of(table), key, change)

    def clear(self) -> None:
        self.tables.clear()
        self._journal.clear()
        self.rows = 0

    def __iter__(self) -> Iterator[TableBuffer]:
        return (buffer for buffer in self.tables.values() if buffer.changes)

    def _of(self, table: int) -> TableBuffer:
        buffer = self.tables.get(table)
        if buffer is None:
            buffer = self.tables[table] = TableBuffer(table)
        return buffer

    def _put(self, buffer: TableBuffer, key: bytes, change: Change | None) -> None:
        before = buffer.set(key, change)
        if before is not None:
            self.merged = True
        self._journal.append((buffer.table, key, before))
        self._count(before, change)
        if self.rows > self.max_rows:
            raise too_many_rows(self.max_rows)

    def _one_of(self, columns: frozenset[int]) -> frozenset[int]:
        return self._column_sets.setdefault(columns, columns)

    def _count(self, before: Change | None, after: Change | None) -> None:
        self.rows += (after is not None) - (before is not None)


def too_many_rows(most: int) -> errors.Error:
    """54000: a transaction changes more rows than it may."""
    return errors.error(
        errors.LIMIT_EXCEEDED,
        f"transaction changes more than {most} rows",
        hint="Raise max_transaction_rows, or load in bulk into an empty table: with instar import, or with "
        "Connection.insert_arrow in autocommit.",
    )
