"""What a write of one row by its key demands of other rows: unique keys that are free, parents that stand, nobody who
refers to what goes.

It is judged in the atomic section, on the very state that is committed on. What does not hold there is left to the
general way, which tells what was violated. In tables/writes.py the same is derived for commits of any number of rows,
as preconditions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from instar.encoding.keys import successor
from instar.sql.execution import Row
from instar.sql.integrity import is_same
from instar.sql.point import PointWrite
from instar.store.apply import is_live
from instar.store.engine import Refused, View, prefix_end
from instar.tables.index import IndexCodec
from instar.tables.writes import ForeignKeyProbe, ParentProbe, TableWriter
from instar.transactions.buffer import Buffer


class Unmet(Refused):
    """Another row stands in the way of the write, or refers to what goes, or one that it needs is not there."""


class Demanded(NamedTuple):
    """Of one row: unique keys that are free, store keys that stand, and prefixes under which something stands, which it
    refers to; and prefixes under which nothing does, which would refer to what it gives up."""

    free: Sequence[bytes] = ()
    parents: Sequence[bytes] = ()
    parents_under: Sequence[bytes] = ()
    childless: Sequence[bytes] = ()

    @property
    def all_parents(self) -> Sequence[bytes]:
        """What it relies on, as a commit names it."""
        return (*self.parents, *self.parents_under)

    def without(self, keys: Collection[bytes]) -> Demanded:
        """The same without those parents."""
        parents, under = ([key for key in found if key not in keys] for found in (self.parents, self.parents_under))
        return self._replace(parents=parents, parents_under=under)


class Demands:
    """Those of a write, compiled once."""

    def __init__(
        self,
        unique: Sequence[IndexCodec] = (),
        parents: Sequence[ForeignKeyProbe] = (),
        children: Sequence[ParentProbe] = (),
    ) -> None:
        self.unique = unique
        self.parents = parents
        self.children = children

    def __bool__(self) -> bool:
        return bool(self.unique or self.parents or self.children)

    def of(self, old: Row | None, new: Row | None) -> Demanded:
        """Of the row that was `old` and comes to be `new`. Unmet if it refers to what it gives up itself."""
        childless = [prefix for _child, prefix in self._left(old, new)] if self.children else ()
        if new is None:
            return Demanded(childless=childless)
        free = [prefix for codec in self._comes_free(old, new) if (prefix := codec.unique_prefix(new)) is not None]
        if not self.parents:
            return Demanded(free, (), (), childless)
        keys: list[bytes] = []
        prefixes: list[bytes] = []
        left = self._given_up(old, new)
        for probe in self._comes_under(old, new):
            key = probe.key(new)
            if key in left:
                raise Unmet
            if key is not None and key not in free:  # which is the row's own
                (keys if probe.foreign_key.parent_index is None else prefixes).append(key)
        return Demanded(free, keys, prefixes, childless)

    def are_met(self, view: View, buffer: Buffer, row: bytes, old: Row | None, new: Row | None) -> bool:
        """Whether all holds for the row at the store key `row` as a transaction sees it that has buffered so much, on
        the newest state. False also where it takes more to find out."""
        if not all(
            buffer.table(child) is None and not _stands_under(view, prefix) for child, prefix in self._left(old, new)
        ):
            return False
        if new is None:
            return True
        own = {row}
        for codec in self._comes_free(old, new):
            prefix = codec.unique_prefix(new)
            if prefix is not None:
                if not _is_free(view, buffer, codec, prefix, new):
                    return False
                own.add(prefix)
        left = self._given_up(old, new)
        parents = [(probe, probe.key(new)) for probe in self._comes_under(old, new)]
        return not any(key in left for _, key in parents) and all(
            key is None or key in own or _has_parent(view, buffer, probe, key) for probe, key in parents
        )

    def _comes_free(self, old: Row | None, new: Row) -> Sequence[IndexCodec]:
        """The unique indexes in which the row comes to another key than it had, if it has one."""
        if old is None:
            return self.unique
        return [codec for codec in self.unique if codec.unique_prefix(old) != codec.unique_prefix(new)]

    def _given_up(self, old: Row | None, new: Row) -> set[bytes | None]:
        """The unique keys that it does not bear any more; of a table that refers to itself alone, since these might be
        taken for those of a parent."""
        if old is None or not self.children:
            return set()
        return {codec.unique_prefix(old) for codec in self._comes_free(old, new)} - {None}

    def _left(self, old: Row | None, new: Row | None) -> Iterator[tuple[int, bytes]]:
        """The tables that may refer to values which the row does not have any more, and the prefixes under which their
        rows would stand."""
        if old is None:
            return
        for probe in self.children:
            values = probe.values(old)
            # As the actions of foreign keys tell it: 1.0 and 1.00 are one key, and two values.
            stays = new is not None and all(map(is_same, values, probe.values(new)))
            prefix = None if stays else probe.key(values)
            if prefix is not None:
                yield probe.child.id, prefix

    def _comes_under(self, old: Row | None, new: Row) -> Sequence[ForeignKeyProbe]:
        """The foreign keys by which it comes under another parent."""
        if old is None:
            return self.parents
        return [probe for probe in self.parents if probe.values(old) != probe.values(new)]


def demands_of(write: PointWrite, writer: TableWriter) -> Demands:
    """An insert's are those of what ON CONFLICT makes of a row, too: what they come to is told by the row."""
    if write.operation == "delete":
        return Demands(children=writer.children)
    children = [probe for probe in writer.children if not write.changed.isdisjoint(probe.ordinals)]
    unique = [codec for codec in writer.codecs if codec.index.unique]
    if write.operation == "insert":
        return Demands(unique, writer.parents, children)
    unique = [codec for codec in unique if not write.changed.isdisjoint(codec.ordinals)]
    parents = [probe for probe in writer.parents if not write.changed.isdisjoint(probe.ordinals)]
    return Demands(unique, parents, children)


def require(view: View, demanded: Demanded, row: bytes) -> None:
    """Unmet if something that is demanded for the row at the store key `row` does not hold at this moment."""
    for prefix in demanded.free:
        if _stands_under(view, prefix):
            raise Unmet
    for prefix in demanded.childless:
        if _stands_under(view, prefix):
            raise Unmet
    for key in demanded.parents:
        if key != row and not _stands(view, key):  # it may refer to itself
            raise Unmet
    for prefix in demanded.parents_under:
        if not _stands_under(view, prefix):
            raise Unmet


def _is_free(view: View, buffer: Buffer, codec: IndexCodec, prefix: bytes, new: Row) -> bool:
    own = buffer.table(codec.table)
    whole = codec.whole(new)
    if own is not None and own.rows_between(codec.order, codec.whole, whole, successor(whole)):
        return False
    gone = {} if own is None else own.changes  # none of which has that key any more
    entries = view.scan(prefix, prefix_end(prefix))
    return not any(is_live(value) and entry[len(prefix) :] not in gone for entry, value in entries)


def _has_parent(view: View, buffer: Buffer, probe: ForeignKeyProbe, key: bytes) -> bool:
    theirs = buffer.table(probe.foreign_key.parent)
    if probe.foreign_key.parent_index is not None:
        return theirs is None and _stands_under(view, key)
    change = None if theirs is None else theirs.changes.get(key[len(probe.prefix) :])
    return _stands(view, key) if change is None else change.image is not None


def _stands(view: View, key: bytes) -> bool:
    stored = view.get(key)
    return stored is not None and is_live(stored)


def _stands_under(view: View, prefix: bytes) -> bool:
    return entry_under(view, prefix) is not None


def entry_under(view: View, prefix: bytes) -> bytes | None:
    """The first entry under a prefix that is there."""
    return next((entry for entry, value in view.scan(prefix, prefix_end(prefix)) if is_live(value)), None)
