"""Which locks a commit meets, seen from its writes: those of rows here, those of schemas as it says itself.

The resources of row locks are keys of the store: that of a row, and the prefix under which a unique key stands in its
index, which is where another row with the same key would come. A row of a table with several optimistic locks (F1
§2.5) is locked by parts: an update meets the parts whose timestamps it moves, and who has the whole row for an update,
since there were no parts yet, or are none any more.
"""

from __future__ import annotations

from collections.abc import Iterator

from instar.store.engine import ROW_FLAGS, ROW_TOMBSTONE, Commit, KeyExists, RowCommit, RowWrite
from instar.store.lock_modes import Mode

Demand = tuple[bytes, Mode]


def part_of(row: bytes, number: int) -> bytes:
    """The resource of what one optimistic lock, by its number in the row's layout, covers of the row at key `row`."""
    return row + b"\xff" + bytes((number,))


def row_demands(row: RowWrite | RowCommit, *, keyed: bool) -> Iterator[Demand]:
    """What one row's write meets. `keyed`: a unique key of it changes."""
    stored = row.stored
    if row.body is None or keyed or stored is None or stored[ROW_FLAGS] & ROW_TOMBSTONE:
        yield row.key, Mode.UPDATE
    elif not row.locks:
        yield row.key, Mode.NO_KEY_UPDATE
    else:
        yield row.key, Mode.SHARE
        for number, moved in enumerate(row.locks):
            if not moved:  # to be the timestamp of this commit
                yield part_of(row.key, number), Mode.NO_KEY_UPDATE


def demands(request: Commit) -> Iterator[Demand]:
    """All that a commit meets: its rows, the keys that come and go in its indexes, and the parents that it relies on.

    Of indexes that are not unique nobody locks anything; they are not told from the others here.
    """
    for writes in request.tables:
        for row in writes.rows if writes.heeds_locks else ():
            yield from row_demands(row, keyed=row.keyed)
    for entry in request.entries:
        yield entry.key[: entry.primary_offset], Mode.UPDATE
    for precondition in request.preconditions:
        if isinstance(precondition, KeyExists):
            yield precondition.key, Mode.KEY_SHARE
    yield from request.schema


def derived_demands(derived: RowCommit) -> Iterator[Demand]:
    """As `demands`, of a commit of one row."""
    yield from row_demands(derived, keyed=derived.keyed)
    for entry in derived.entries:
        yield entry.key[: entry.primary_offset], Mode.UPDATE
    for parent in derived.parents:
        yield parent, Mode.KEY_SHARE
