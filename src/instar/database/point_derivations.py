"""What a write of one row by its key makes of it, derived inside the atomic section from what is stored there.

Closures, since what they hold is found faster than attributes are. Nothing in them waits, asks for more than the row
and what it demands of others (point_demands.py), or makes what takes long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from instar.catalog.descriptors import Table
from instar.database.point_demands import Demands, entry_under, require
from instar.encoding.rows import RowEncoder
from instar.sql.execution import Row
from instar.sql.point import PointWrite
from instar.store.apply import is_live
from instar.store.engine import Derive, EntryWrite, Lease, Refused, RowCommit, View
from instar.tables.index import IndexCodec
from instar.tables.patching import Patchers
from instar.tables.resolver import LAYOUT_OFFSET
from instar.tables.writes import TableWriter


class Unlearnt(Refused):
    """A row is in a layout that was not met before, or has to be changed by way of its values for the first time: what
    does that is made outside of the atomic section, since of a wide table that takes many milliseconds."""

    def __init__(self, stored: bytes) -> None:
        super().__init__()
        self.stored = stored


class LeftAlone(Refused):
    """A row stands in the way of an insert, which is to do nothing about it."""


# What becomes of a row, of its index entries, and the parents that it relies on.
Changed = tuple[bytes | None, Sequence[EntryWrite], Sequence[bytes]]
Changing = Callable[[View, bytes, bytes, list[Any], list[Row] | None, Row | None], Changed]


class ByValues:
    """What changes rows by way of their values, if it has been made: what patches rows seldom needs it."""

    def __init__(self, make: Callable[[], Changing]) -> None:
        self._make = make
        self.known: Changing | None = None

    def learn(self) -> None:
        """Make it."""
        self.known = self._make()


def changing(write: PointWrite, writer: TableWriter, codecs: Sequence[IndexCodec], demands: Demands) -> Changing:
    """From where a row is stored, its bytes there, a frame, where to leave what is returned, and the row that was to be
    inserted where that one is in the way, to what becomes of it, by way of its values. Unmet if other rows do not allow
    it; LeftAlone."""
    decode, encode, prefix_bytes = writer.reader.decode, writer.encode, len(writer.prefix)
    demanding = demands.of if demands else None

    def changed(
        view: View,
        stored_at: bytes,
        stored: bytes,
        frame: list[Any],
        returned: list[Row] | None,
        proposed: Row | None,
    ) -> Changed:
        old = decode(stored)
        if proposed is None:
            new = write.image(old, frame)
        elif (new := write.updated(old, proposed, frame)) is None:
            raise LeftAlone
        parents: Sequence[bytes] = ()
        if demanding is not None:
            demanded = demanding(old, new)
            require(view, demanded, stored_at)
            parents = demanded.all_parents
        if returned is not None and write.returning is not None:
            returned[:] = [write.returning(old if new is None else new, frame)]
        body = None if new is None else encode(new)
        return body, entry_writes(codecs, stored_at[prefix_bytes:], old, new), parents

    return changed


def deriving(
    write: PointWrite, patchers: Patchers | None, by_values: ByValues, demands: Demands
) -> Callable[[int, Lease | None, bytes, list[Any], list[Row] | None], Derive]:
    """From a catalog version, its lease, where a row is stored, a frame and where to leave what is returned, to what
    derives an update or delete of it: what the row becomes, from what it is; nothing where it is not there, or another
    version is due. Unlearnt."""
    table, layout = write.table, write.table.layout.id
    table_id, table_version, whole, keyed = table.id, table.version, table.logged_whole, bool(demands.unique)
    patching = None
    if patchers is not None and write.assigned is not None:
        patching = (*patchers.found_first, patchers.at_hand, write.assigned[1])

    def deriving(
        version: int, lease: Lease | None, stored_at: bytes, frame: list[Any], returned: list[Row] | None
    ) -> Derive:
        def derive(view: View) -> RowCommit | None:
            if view.catalog_version != version:
                return None
            stored = view.get(stored_at)
            if stored is None or stored[LAYOUT_OFFSET] & 1:
                return None
            entries: Sequence[EntryWrite] = ()
            parents: Sequence[bytes] = ()
            body = None
            if patching is not None:
                first, second, at_hand, values = patching
                tag = stored[LAYOUT_OFFSET : LAYOUT_OFFSET + 4]
                patch = first(tag) or second(tag) or at_hand(stored)
                if patch is None:
                    raise Unlearnt(stored)
                body = patch(stored, values((), frame))
            if body is None:
                changed = by_values.known
                if changed is None:
                    raise Unlearnt(stored)
                body, entries, parents = changed(view, stored_at, stored, frame, returned, None)
            return RowCommit(
                table_id, table_version, stored_at, stored, body, layout, entries, lease, (), 0, whole,
                False, keyed, parents,
            )  # fmt: skip

        return derive

    return deriving


def inserting(
    table: Table, encode: RowEncoder, codecs: Sequence[IndexCodec], demands: Demands
) -> Callable[[int, Lease | None, bytes, bytes, tuple[Any, ...]], Derive]:
    """From a catalog version, its lease, where a row is to be stored, its key and its image to what derives its insert:
    nothing where one stands, or another version is due."""
    layout, table_id, table_version, whole = table.layout.id, table.id, table.version, table.logged_whole
    demanding = demands.of if demands else None

    def inserting(version: int, lease: Lease | None, stored_at: bytes, key: bytes, image: tuple[Any, ...]) -> Derive:
        body = encode(image)
        entries = entry_writes(codecs, key, None, image) if codecs else ()
        demanded = None if demanding is None else demanding(None, image)
        parents = () if demanded is None else demanded.all_parents

        def derive(view: View) -> RowCommit | None:
            if view.catalog_version != version:
                return None
            stored = view.get(stored_at)
            if stored is not None and not stored[LAYOUT_OFFSET] & 1:
                return None
            if demanded is not None:
                require(view, demanded, stored_at)
            return RowCommit(
                table_id, table_version, stored_at, stored, body, layout, entries, lease, (), 0, whole,
                False, False, parents,
            )  # fmt: skip

        return derive

    return inserting


class Arbiters(NamedTuple):
    """What tells whether a row is in the way of an insert with ON CONFLICT: one under the same primary key, one with
    the same key of a unique index."""

    by_key: bool
    codecs: Sequence[IndexCodec]
    rows: bytes  # the prefix of the table's

    def in_the_way(self, view: View, stored_at: bytes, stored: bytes | None, image: Row) -> tuple[bytes, bytes] | None:
        """Where that row is stored, and its bytes; `stored` is what there is at `stored_at`, where `image` would be."""
        if self.by_key and stored is not None and is_live(stored):
            return stored_at, stored
        for codec in self.codecs:
            prefix = codec.unique_prefix(image)
            entry = None if prefix is None else entry_under(view, prefix)
            if prefix is not None and entry is not None:
                found_at = self.rows + entry[len(prefix) :]
                found = view.get(found_at)
                assert found is not None, "an entry of no row"
                return found_at, found
        return None


def arbiters_of(write: PointWrite, writer: TableWriter) -> Arbiters | None:
    """None of a write without ON CONFLICT."""
    if write.conflict is None:
        return None
    action = write.conflict.action
    unique = [codec for codec in writer.codecs if codec.index.unique]
    asked = [codec for codec in unique if action.index is not None and codec.index.id == action.index.id]
    return Arbiters(action.any_target or action.index is None, unique if action.any_target else asked, writer.prefix)


def upserting(
    write: PointWrite, writer: TableWriter, arbiters: Arbiters, demands: Demands
) -> Callable[[int, Lease | None, bytes, Row, list[Any], list[Row] | None], Derive]:
    """As `inserting`, with ON CONFLICT, which may come to a change of the row that is in the way; it takes frame and
    where to leave what is returned, too. LeftAlone."""
    table, layout, encode, prefix_bytes = writer.table, writer.table.layout.id, writer.encode, len(writer.prefix)
    touched = [codec for codec in writer.codecs if not write.changed.isdisjoint(codec.ordinals)]
    keyed = any(codec.index.unique for codec in touched)
    changed = changing(write, writer, touched, demands)

    def upserting(
        version: int, lease: Lease | None, stored_at: bytes, image: Row, frame: list[Any], returned: list[Row] | None
    ) -> Derive:
        demanded = demands.of(None, image)
        inserted = entry_writes(writer.codecs, stored_at[prefix_bytes:], None, image)

        def derive(view: View) -> RowCommit | None:
            if view.catalog_version != version:
                return None
            stored = view.get(stored_at)
            found = arbiters.in_the_way(view, stored_at, stored, image)
            if found is not None:
                at, old = found
                body, entries, parents = changed(view, at, old, frame, returned, image)
                return RowCommit(
                    table.id, table.version, at, old, body, layout, entries, lease, (), 0, table.logged_whole,
                    False, keyed, parents,
                )  # fmt: skip
            if stored is not None and is_live(stored):
                return None
            require(view, demanded, stored_at)
            if returned is not None and write.returning is not None:
                returned[:] = [write.returning(image, frame)]
            return RowCommit(
                table.id, table.version, stored_at, stored, encode(image), layout, inserted, lease, (), 0,
                table.logged_whole, False, False, demanded.all_parents,
            )  # fmt: skip

        return derive

    return upserting


def entry_writes(
    codecs: Sequence[IndexCodec], key: bytes, old: tuple[Any, ...] | None, new: tuple[Any, ...] | None
) -> list[EntryWrite]:
    """What becomes of the index entries when the row at `key` goes from one image to the other."""
    entries: list[EntryWrite] = []
    for codec in codecs:
        before = None if old is None else codec.entry(old, key)
        after = None if new is None else codec.entry(new, key)
        if before == after:
            continue
        if before is not None:
            entries.append(EntryWrite(before, len(before) - len(key), False))
        if after is not None:
            entries.append(EntryWrite(after, len(after) - len(key), True))
    return entries
