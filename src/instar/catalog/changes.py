"""The catalog changes of one transaction or one stage, and what they add to its store commit.

A change carries what it read as preconditions (name free, referenced object alive, version unchanged): one change per
object at a time is such a precondition, not a held lock. A refused one is 40001 and leaves nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Literal, NamedTuple, Protocol

import msgspec

from instar import errors
from instar.catalog import system
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Layout, Object, StepKind, Table, changes_since
from instar.catalog.ids import IdAllocator
from instar.catalog.layouts import columns_left, encode_layout, layout_key, recorded_layouts, wide_layout
from instar.catalog.schema_locks import demands_of
from instar.store import records
from instar.store.apply import is_live
from instar.store.engine import (
    Commit,
    LogRecord,
    LogUntouched,
    Precondition,
    RangeUnchanged,
    Reader,
    RowsetReplaced,
    Store,
    TableHeader,
    TableWrites,
    ValueUnchanged,
    prefix_end,
    rowset_prefix,
)
from instar.store.engine import View as StoreView
from instar.store.log import decode, log_key
from instar.store.records import RowsetState
from instar.store.row_locks import Demand

Floor = Literal["keep", "current"] | int

# A rowset dies at the timestamp of the commit, which only the store knows; the worker that first sees the record dead
# writes the newest timestamp of that moment, which is at or after it, and so safe to wait for.
UNKNOWN_SINCE = 0
# So many changes that others commit meanwhile are looked at in the atomic section; with more, a commit is derived anew.
_LOOKED_AT = 1000


class CatalogParts(msgspec.Struct):
    """What a catalog change adds to a store commit."""

    tables: list[TableWrites]
    raw: list[tuple[bytes, bytes | None]]
    preconditions: list[Precondition]
    replaced: list[RowsetReplaced]
    schema: list[Demand]
    change: str = ""
    abrupt: bool = False
    history: int | None = None  # what came back was there at this snapshot, which the watermark has not passed

    def add_to(self, request: Commit) -> None:
        """Make all of this part of a commit."""
        request.tables[:0] = self.tables  # first in the log of the commit: see directory.py
        request.raw.extend(self.raw)
        request.preconditions.extend(self.preconditions)
        request.replaced.extend(self.replaced)
        request.schema = [*request.schema, *self.schema]
        request.bump_catalog = True
        request.change = self.change
        request.abrupt = self.abrupt
        if self.history is not None:
            request.snapshot = self.history if request.snapshot is None else min(self.history, request.snapshot)


class CatalogConflict(msgspec.Struct, frozen=True):
    """Why a precondition of a catalog change failed: handed back by the store in PreconditionFailed."""

    object_id: int
    name: str
    changes: str = ""  # in words, where they are known

    def error(self, found: bytes | None = None) -> errors.Error:
        """40001; `found` says nothing more."""
        return errors.error(
            errors.SERIALIZATION_FAILURE,
            f'"{self.name}" was changed by a concurrent schema change',
            detail=self.changes or None,
            hint="Retry the transaction.",
        )


class _Written(msgspec.Struct, frozen=True):
    """Handed to the store with a precondition: a table's rows were written meanwhile."""

    name: str

    def error(self, found: bytes | None = None) -> errors.Error:
        """40001."""
        return errors.error(
            errors.SERIALIZATION_FAILURE,
            f'rows of table "{self.name}" were written concurrently',
            hint="Retry the transaction.",
        )


def deallocated(name: str) -> errors.Error:
    """55000: what the log had of a dropped object has been cut, and its rows may be gone."""
    return errors.error(
        errors.OBJECT_NOT_READY,
        f'"{name}" was dropped longer ago than the store retains, and has been deallocated',
        hint="A longer retention, which a store is created with, keeps what is dropped for longer.",
    )


class Conflicting(Protocol):
    """What makes an error of a precondition that has failed."""

    def error(self, found: bytes | None = None) -> errors.Error:
        """The error; `found` is the key at which it has failed."""
        ...


class _Untouched(NamedTuple):
    """Nobody has written to a table since a snapshot, and the watermark has not passed `kept`. `judged`: up to this
    timestamp it has been looked after."""

    since: int
    kept: int
    judged: int
    conflict: Conflicting

    def precondition(self, reader: Reader, table: Object) -> Precondition:
        """As far as the reader sees, and up to the commit. The conflict's error if somebody has written, 55000 if the
        watermark has passed `kept`."""
        if reader.watermark > self.kept:
            raise deallocated(table.name)
        for key, value in reader.scan(log_key(self.judged + 1, 0), log_key(reader.timestamp + 1, 0)):
            self.judge(decode(key, value), table)
        return LogUntouched(reader.timestamp, _LOOKED_AT, partial(_key_of, table.id), self.conflict)

    def judge(self, records: Iterable[LogRecord], table: Object) -> None:
        """The conflict's error if one of the records is of the table."""
        for record in records:
            if record.table == table.id:
                raise self.conflict.error(None if record.replaced else record.key)


def _key_of(table: int, _view: StoreView, record: LogRecord) -> bytes | None:
    return record.key if record.table == table else None


class CatalogChange:
    """DDL that is not committed yet, on top of `base`; `view` is what the session that does it sees."""

    def __init__(self, base: CatalogSnapshot, ids: IdAllocator) -> None:
        self.base = base
        self.view = base
        self._ids = ids
        self._put: dict[int, Object] = {}
        self._before: dict[int, Object | None] = {}  # what is committed of them, at hand for as long as this lives
        self._dropped: dict[int, Object] = {}
        self._floors: dict[int, int] = {}
        self._required: dict[int, Object] = {}
        self._live_rowsets: dict[int, int] = {}
        self._dead_rowsets: set[int] = set()
        self._created: set[int] = set()
        self._empty: dict[int, Table] = {}
        self._fences: dict[int, Table] = {}
        self._records: dict[bytes, bytes] = {}
        self._layouts: dict[tuple[int, int], Layout] = {}
        self._revived: dict[int, int] = {}
        self._untouched: dict[int, _Untouched] = {}
        self._statements: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._put or self._dropped or self._fences or self._records)

    def copy(self) -> CatalogChange:
        """An independent copy: what a savepoint keeps."""
        other = CatalogChange(self.base, self._ids)
        other.view = self.view
        for name in (
            "_put", "_before", "_dropped", "_floors", "_required", "_live_rowsets", "_dead_rowsets", "_created",
            "_empty", "_fences", "_records", "_layouts", "_revived", "_untouched", "_statements",
        ):  # fmt: skip
            setattr(other, name, getattr(self, name).copy())
        return other

    # --- collecting ------------------------------------------------------------------------------------------------

    def new_id(self) -> int:
        """An object id that was never used and never will be again."""
        return self._ids.next_object()

    def new_rowset(self, owner: int) -> int:
        """A rowset id of its own, live from the commit on."""
        rowset = self._ids.next_rowset()
        self._live_rowsets[rowset] = owner
        return rowset

    def is_new(self, object_id: int) -> bool:
        """Whether the object was created by this very change."""
        return object_id in self._created

    def committed(self, object_id: int) -> Object | None:
        """The object as it is without this change."""
        if object_id not in self._before:
            self._before[object_id] = self.base.by_id(object_id)
        return self._before[object_id]

    def changes(self, object_id: int) -> bool:
        """Whether the object is put or dropped by this change."""
        return object_id in self._put or object_id in self._dropped

    def create(self, new: Object) -> None:
        """Add an object; 42P07 if its name is taken."""
        self._free_name(new)
        self._created.add(new.id)
        self._add_layout(new)
        self._place(new)

    def revive(self, new: Object, dropped_at: int) -> None:
        """Bring an object back that was dropped by the commit of that timestamp, with the rowsets of a table; 42P07 if
        its name is taken. The commit is refused once the watermark has passed the drop: what it had may be gone."""
        self._free_name(new)
        self._revived[new.id] = dropped_at
        if isinstance(new, Table):
            self._floors[new.id] = new.version
        self._place(new)

    def update(self, new: Object, *, floor: Floor = "keep", checks_moved: bool = False) -> None:
        """Put another version in the place of the object's last. `floor` as DESIGN's fence has it; it never falls."""
        old = self.view.by_id(new.id)
        if old is None:
            raise errors.error(errors.DATA_CORRUPTED, f"object {new.id} is updated but not there")
        if old.name != new.name:
            self._free_name(new)
        if floor != "keep":
            wanted = new.version if floor == "current" else floor
            self._floors[new.id] = max(self._floors.get(new.id, 0), wanted)
        if checks_moved and isinstance(new, Table):
            new = msgspec.structs.replace(new, checks_version=new.checks_version + 1)
        if isinstance(old, Table) and isinstance(new, Table) and old.layout.id != new.layout.id:
            self._add_layout(new)
        self._place(new)

    def _place(self, new: Object) -> None:
        self.committed(new.id)
        self._put[new.id] = new
        self.view = self.view.changed([new], [])

    def _add_layout(self, new: Object) -> None:
        if isinstance(new, Table):
            self._layouts[new.id, new.layout.id] = new.layout

    def drop(self, old: Object) -> None:
        """Take an object out. Its rowsets are freed apart (`free_rowset`)."""
        self._put.pop(old.id, None)
        self._layouts = {place: found for place, found in self._layouts.items() if place[0] != old.id}
        if old.id in self._created:
            self._created.discard(old.id)
        elif old.id in self._revived:  # what it had is still dead
            del self._revived[old.id]
        else:
            self._dropped[old.id] = self.committed(old.id) or old
        self.view = self.view.changed([], [old.id])

    def require(self, needed: Object) -> None:
        """Precondition: `needed` is alive and at this very version when the change is committed."""
        if needed.id not in self._put and needed.id not in self._created:
            self._required[needed.id] = needed

    def free_rowset(self, rowset: int) -> None:
        """The rowset is dead from the commit on; it is removed below the watermark (rule 22)."""
        if rowset in self._live_rowsets:
            del self._live_rowsets[rowset]
        else:
            self._dead_rowsets.add(rowset)

    def require_empty(self, table: Table) -> None:
        """Precondition: `table` has no row at the commit, as a collapsed path needs it."""
        self._empty[table.rowset] = table

    def require_untouched(
        self, table: Table, since: int, *, kept: int | None = None, conflict: Conflicting | None = None
    ) -> None:
        """Precondition: nobody has written to `table` since a snapshot (`conflict`, 40001), and the watermark has not
        passed `kept`."""
        kept = since if kept is None else kept
        known = self._untouched.get(table.id)
        if known is not None:
            since, kept = min(since, known.since), min(kept, known.kept)
        self._untouched[table.id] = _Untouched(since, kept, since, conflict or _Written(table.name))

    def judge_writes(self, store: Store) -> None:
        """Look whether others have written what they may not, as far as that takes longer than a reader may be open.
        40001 if so, 72000 if the log does not tell any more."""
        if not self._untouched:
            return
        with store.read() as reader:
            upto = reader.timestamp
        for table_id, untouched in self._untouched.items():
            if table_id in self._put and upto > untouched.judged:
                untouched.judge(store.log(untouched.judged, upto), self._put[table_id])
                self._untouched[table_id] = untouched._replace(judged=upto)

    def fence(self, table: Table) -> None:
        """Raise the floor of `table` to its current version without a version of its own (rule 19)."""
        self._fences[table.id] = table
        self._floors[table.id] = max(self._floors.get(table.id, 0), table.version)

    def describe(self, statement: str) -> None:
        """Say what is done here, for instar.schema_versions."""
        self._statements.append(statement)

    def write(self, key: bytes, value: bytes) -> None:
        """A record read at its latest state, written in the same commit: a job beside its first stage (rule 9)."""
        self._records[key] = value

    def _free_name(self, new: Object) -> None:
        if new.name in system.relation_names(new) and self.view.lookup("public", new.name) is not None:
            raise errors.error(errors.DUPLICATE_TABLE, f'relation "{new.name}" already exists')

    def rebase(self, newest: CatalogSnapshot) -> None:
        """Put this change on top of a newer catalog; 40001 if what it changed has changed there."""
        if newest is self.base:
            return
        for object_id, needed in (*self._put.items(), *self._dropped.items(), *self._required.items()):
            if object_id in self._created:
                continue
            before, after = self.committed(object_id), newest.by_id(object_id)
            if before != after:
                told = ""
                if isinstance(before, Table) and isinstance(after, Table):
                    told = changes_since(after, before.version)
                raise CatalogConflict(object_id, (before or needed).name, told).error()
        self.base = newest
        self._before = {object_id: newest.by_id(object_id) for object_id in self._before}
        self.view = newest.changed(self._put.values(), self._dropped)

    def schema_locks(self) -> list[Demand]:
        """SCH-C or SCH-M on all that is changed: nobody may hold what conflicts when this is committed."""
        return demands_of(self._put.values(), self._dropped.values(), self._before)

    @property
    def layouts(self) -> Collection[tuple[int, int]]:
        """The layouts that it makes: table, layout."""
        return [(table, number) for (table, _), layout in self._layouts.items() for number in layout.ids]

    # --- committing ------------------------------------------------------------------------------------------------

    def parts(self, reader: Reader) -> CatalogParts:
        """The writes and preconditions of this change, derived from the stored bytes that `reader` sees."""
        raw: list[tuple[bytes, bytes | None]] = []
        preconditions: list[Precondition] = []
        for object_id, new in self._put.items():
            if isinstance(new, Table):
                self._table_header(reader, new, raw, preconditions)
            elif object_id not in self._created and object_id not in self._revived:
                preconditions.append(self._unchanged(reader, self.committed(object_id) or new))
        for object_id, dropped_at in self._revived.items():
            self._require_kept(reader, self._put[object_id], dropped_at)
        for table_id, untouched in self._untouched.items():
            if table_id in self._put:
                preconditions.append(untouched.precondition(reader, self._put[table_id]))
        for old in self._dropped.values():
            preconditions.append(self._unchanged(reader, old))
            if isinstance(old, Table):
                raw.append((records.table_key(old.id), records.encode_table_header(self._dropped_header(reader, old))))
        preconditions.extend(self._unchanged(reader, needed) for needed in self._required.values())
        for rowset, table in self._empty.items():
            # Empty but for what this very transaction writes: so judged on what is stored, and unchanged since.
            start, stop = rowset_prefix(rowset), prefix_end(rowset_prefix(rowset))
            conflict = CatalogConflict(table.id, table.name)
            if any(is_live(value) for _, value in reader.scan(start, stop)):
                raise conflict.error()
            preconditions.append(RangeUnchanged(start, stop, reader.timestamp, conflict))
        for rowset, owner in self._live_rowsets.items():
            raw.append((records.rowset_key(rowset), records.rowset_record(owner, RowsetState.LIVE, 0)))
        dead = records.rowset_record(0, RowsetState.DEAD, UNKNOWN_SINCE)
        raw.extend((records.rowset_key(rowset), dead) for rowset in self._dead_rowsets)
        for table in self._fences.values():
            if table.id not in self._put:
                self._floor_header(reader, table, raw, preconditions)
        # Layouts that came and went within this change too: the numbers of a table's layouts have no gaps.
        for (table_id, _), layout in self._layouts.items():
            made = (layout, self._beside(reader, table_id, layout)) if layout.has_wide else (layout,)
            raw.extend((layout_key(table_id, found.id), encode_layout(found)) for found in made)
        raw.extend(self._records.items())
        base = {found.id: found for found in map(self.committed, self._put) if found is not None}
        tables = system.descriptor_writes(reader, self._put.values(), self._dropped.values(), base)
        history = min((*(dropped_at - 1 for dropped_at in self._revived.values()), *self._kept()), default=None)
        return CatalogParts(
            tables, raw, preconditions, list(self._replaced()), self.schema_locks(), "; ".join(self._statements),
            self._is_abrupt(), history,
        )  # fmt: skip

    def _beside(self, reader: Reader, table: int, layout: Layout) -> Layout:
        """The wide layout beside one of those that are made. No row is in a layout that is older than the oldest, so
        what had gone by then is in no row."""
        own = [found for (owner, number), found in self._layouts.items() if owner == table and number <= layout.id]
        new = self._put[table]
        assert isinstance(new, Table)  # it has layouts
        before = recorded_layouts(reader, table, own[0].id, new.oldest_layout + 1)
        return wide_layout(layout, columns_left(chain(before, own)).values())

    def _kept(self) -> Iterator[int]:
        return (untouched.kept for table, untouched in self._untouched.items() if table in self._put)

    def _is_abrupt(self) -> bool:
        """Whether a server that has the version before must not use it on a snapshot that shows this one (rule 17).

        It may where every step is one that it could have come to see a moment later: a step of a path, something new,
        a name. Not where nobody is let in who has not seen the step, for then his reads are as wrong as his writes;
        nor where a type was widened: rows may hold what the narrower type does not (rule 26).
        """
        if any(self.committed(dropped) is not None for dropped in self._dropped):
            return True
        for new in self._put.values():
            old = self.committed(new.id)
            if not (isinstance(new, Table) and isinstance(old, Table)):
                continue
            if self._floors.get(new.id, 0) >= new.version:
                return True
            if any(step.kind is StepKind.WIDEN_TYPE and step.version > old.version for step in new.steps):
                return True
        return False

    def _replaced(self) -> Iterator[RowsetReplaced]:
        """Tables whose rows are those of another rowset from the commit on: the log says so (rule 3)."""
        for new in self._put.values():
            old = self.committed(new.id)
            if isinstance(new, Table) and isinstance(old, Table) and new.rowset != old.rowset:
                yield RowsetReplaced(new.id, new.version, old.rowset, new.rowset)

    def _unchanged(self, reader: Reader, needed: Object) -> Precondition:
        """The row of `needed` is the version that this change was made on, by its bytes as stored now."""
        key = system.descriptor_key(needed.id)
        stored = reader.get(key)
        if stored is None or system.decode_stored(stored) != needed:
            raise CatalogConflict(needed.id, needed.name).error()
        return ValueUnchanged(key, stored, CatalogConflict(needed.id, needed.name))

    def _table_header(
        self,
        reader: Reader,
        new: Table,
        raw: list[tuple[bytes, bytes | None]],
        preconditions: list[Precondition],
    ) -> None:
        key = records.table_key(new.id)
        stored = reader.get(key)
        base = self.committed(new.id)
        if base is None and new.id in self._revived:
            self._revived_records(reader, new, raw, preconditions)
            return
        if base is None:
            made = TableHeader(new.version, new.version, new.checks_version, new.logged_whole)
            raw.append((key, records.encode_table_header(made)))
            return
        if stored is None or records.decode_table_header(stored).current != base.version:
            raise CatalogConflict(new.id, base.name).error()
        header = records.decode_table_header(stored)
        floor = max(header.floor, self._floors.get(new.id, 0))
        changed = TableHeader(new.version, floor, new.checks_version, new.logged_whole)
        raw.append((key, records.encode_table_header(changed)))
        preconditions.append(ValueUnchanged(key, stored, CatalogConflict(new.id, base.name)))

    def _require_kept(self, reader: Reader, new: Object, dropped_at: int) -> None:
        """40001 if somebody else has brought the object back, 55000 if the watermark has passed the drop."""
        if reader.watermark >= dropped_at:
            raise deallocated(new.name)
        stored = reader.get(system.descriptor_key(new.id))
        if stored is None or not system.is_dropped_at(stored, dropped_at):
            raise CatalogConflict(new.id, new.name).error()

    def _revived_records(
        self,
        reader: Reader,
        new: Table,
        raw: list[tuple[bytes, bytes | None]],
        preconditions: list[Precondition],
    ) -> None:
        """The header of a table that comes back, which lets nobody in who has not seen that, and its rowsets' records:
        they are dead, and the worker has not begun to remove them."""
        conflict = CatalogConflict(new.id, new.name)
        key = records.table_key(new.id)
        stored = reader.get(key)
        if stored is None or not records.decode_table_header(stored).dropped:
            raise conflict.error()
        back = TableHeader(new.version, new.version, new.checks_version, new.logged_whole)
        raw.append((key, records.encode_table_header(back)))
        preconditions.append(ValueUnchanged(key, stored, conflict))
        for rowset in sorted({new.rowset, *(index.rowset for index in new.indexes)} - self._live_rowsets.keys()):
            key = records.rowset_key(rowset)
            stored = reader.get(key)
            if stored is None or records.decode_rowset_record(stored).state is not RowsetState.DEAD:
                raise conflict.error()
            raw.append((key, records.rowset_record(new.id, RowsetState.LIVE, 0)))
            preconditions.append(ValueUnchanged(key, stored, conflict))

    def _floor_header(
        self,
        reader: Reader,
        table: Table,
        raw: list[tuple[bytes, bytes | None]],
        preconditions: list[Precondition],
    ) -> None:
        key = records.table_key(table.id)
        stored = reader.get(key)
        if stored is None or records.decode_table_header(stored).current != table.version:
            raise CatalogConflict(table.id, table.name).error()
        header = records.decode_table_header(stored)
        raw.append((key, records.encode_table_header(msgspec.structs.replace(header, floor=table.version))))
        preconditions.append(ValueUnchanged(key, stored, CatalogConflict(table.id, table.name)))

    def _dropped_header(self, reader: Reader, old: Table) -> TableHeader:
        stored = reader.get(records.table_key(old.id))
        if stored is None:
            raise CatalogConflict(old.id, old.name).error()
        header = records.decode_table_header(stored)
        return msgspec.structs.replace(header, current=header.current + 1, floor=header.current + 1, dropped=True)
