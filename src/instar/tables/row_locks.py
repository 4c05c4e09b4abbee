"""Which row locks a statement needs for what it has written or selected, and what must not have moved before it has
them.

The locks are those that a commit of the same changes meets (`store/row_locks.py`): whoever holds them finds at its
commit what its statement has found, unless the schema has given the table other keys meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from instar.store.apply import is_live
from instar.store.engine import ROW_HEADER, RangeUnchanged, prefix_end
from instar.store.lock_modes import Mode
from instar.store.row_locks import Demand, part_of
from instar.tables.locks import RowLocks
from instar.tables.writes import TableWriter
from instar.transactions.buffer import Change


class Needs(NamedTuple):
    """Locks, and what is to be as it was at the statement's snapshot once they are held."""

    demands: list[Demand]
    unchanged: list[RangeUnchanged]


def _is_dead(value: bytes) -> bool:
    return not is_live(value)


def of_selected(writer: TableWriter, key: bytes, mode: Mode, since: int) -> Needs:
    """What SELECT ... FOR `mode` needs for the row at `key`: of a row of several parts, all of them."""
    row = writer.prefix + key
    demands = [(row, mode)]
    if writer.locks is not None:
        demands += [(part_of(row, number), mode) for number in range(len(writer.table.layout.locks))]
    return Needs(demands, [RangeUnchanged(row, row + b"\x00", since, None)])


def of_written(writer: TableWriter, key: bytes, change: Change, since: int) -> Needs:
    """What a row's change needs, which was made on the snapshot `since`."""
    row = writer.prefix + key
    needs = Needs([], [])
    keyed = _unique_keys(writer, change, since, needs)
    arrives = change.base is None
    if not (arrives and writer.has_row_id):  # nobody else can come to that key
        moved: Callable[[bytes], bool] | None = is_live if arrives else None
        read = since
        if writer.locks is not None and change.base is not None:
            moved = partial(_parts_moved, writer.locks, change)
            read = min(since, change.base)  # of a row that was buffered before, other parts may have moved since then
        needs.unchanged.append(RangeUnchanged(row, row + b"\x00", read, None, moved))
        needs.demands.extend(_row_demands(writer, row, change, keyed=keyed))
    _parents(writer, change, since, needs)
    _children(writer, change, since, needs)
    return needs


def _row_demands(writer: TableWriter, row: bytes, change: Change, *, keyed: bool) -> list[Demand]:
    if keyed or change.base is None or change.changed is None or change.image is None:
        return [(row, Mode.UPDATE)]
    if writer.locks is None:
        return [(row, Mode.NO_KEY_UPDATE)]
    parts = [(part_of(row, number), Mode.NO_KEY_UPDATE) for number in writer.locks.parts(change)]
    return [(row, Mode.SHARE), *parts]


def has_moved(writer: TableWriter, change: Change, stored: bytes | None) -> bool:
    """Whether a row, as it is stored now, is another than that which a change was made on, as far as they meet; or, of
    one that comes, whether there is one."""
    if stored is None or not is_live(stored):
        return change.base is not None
    if change.base is None:
        return True
    if writer.locks is not None:
        return writer.locks.is_met(change, stored)
    written: int = ROW_HEADER.unpack_from(stored)[0]
    return written != change.base


def is_behind(writer: TableWriter, change: Change, stored: bytes) -> bool:
    """Whether others have changed parts of the row, as it is stored now, that the change does not meet."""
    if change.base is None or change.changed is None or writer.locks is None or not is_live(stored):
        return False
    return ROW_HEADER.unpack_from(stored)[0] != change.base and not writer.locks.is_met(change, stored)


def _parts_moved(locks: RowLocks, change: Change, stored: bytes) -> bool:
    return not is_live(stored) or locks.is_met(change, stored)


def _unique_keys(writer: TableWriter, change: Change, since: int, needs: Needs) -> bool:
    """The unique keys that the row gives up and takes; whether there are any."""
    keyed = False
    for codec in writer.codecs:
        if not codec.index.unique:
            continue
        old, image = change.old, change.image
        if (None if old is None else codec.part(old)) == (None if image is None else codec.part(image)):
            continue
        keyed = True
        given_up = None if old is None else codec.unique_prefix(old)
        taken = None if image is None else codec.unique_prefix(image)
        if given_up is not None:
            needs.demands.append((given_up, Mode.UPDATE))
        if taken is not None:
            needs.demands.append((taken, Mode.UPDATE))
            needs.unchanged.append(RangeUnchanged(taken, prefix_end(taken), since, None, is_live))
    return keyed


def _parents(writer: TableWriter, change: Change, since: int, needs: Needs) -> None:
    """A row that refers to another keeps it there, and its key."""
    if change.image is None:
        return
    for probe in writer.parents:
        if change.old is not None and probe.values(change.old) == probe.values(change.image):
            continue
        parent = probe.key(change.image)
        if parent is not None:
            stop = parent + b"\x00" if probe.foreign_key.parent_index is None else prefix_end(parent)
            needs.demands.append((parent, Mode.KEY_SHARE))
            needs.unchanged.append(RangeUnchanged(parent, stop, since, None, _is_dead))


def _children(writer: TableWriter, change: Change, since: int, needs: Needs) -> None:
    """A referenced key that goes: who refers to it keeps it (see `_parents`), and has not come since."""
    if change.old is None:
        return
    for probe in writer.children:
        values = probe.values(change.old)
        if change.image is None or probe.values(change.image) != values:
            prefix = probe.key(values)
            if prefix is not None:
                needs.unchanged.append(RangeUnchanged(prefix, prefix_end(prefix), since, None, is_live))
