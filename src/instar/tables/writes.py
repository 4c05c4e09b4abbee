"""Logical changes to physical writes, at commit: rows, index entries, and the preconditions that constraints are.

Derived outside the atomic section from the stored bytes; the store compares those bytes again inside it (rule 10), so
that what is derived here stands or is derived anew. Index entries follow the state of their index (F1 §3.1): a
delete-only one loses entries, a write-only or public one gains them too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import DEFAULT_LOCK, ForeignKey, Index, State, Table, changes_since
from instar.catalog.layouts import Layouts
from instar.encoding.keys import compile_encoder, limited_index_key
from instar.lazily import computed_once
from instar.store.apply import is_live
from instar.store.engine import (
    ROW_TOMBSTONE,
    EntryWrite,
    Fails,
    KeyExists,
    Precondition,
    PreconditionFailed,
    RangeEmpty,
    Reader,
    Refused,
    RowWrite,
    StaleRow,
    StaleSchema,
    TableWrites,
    prefix_end,
    rowset_prefix,
)
from instar.tables.copies import Copied, RowCopies
from instar.tables.index import IndexCodec
from instar.tables.layout import body_encoder
from instar.tables.locks import Recheck, RowLocks, merged
from instar.tables.overtaking import Detail, come_since
from instar.tables.pending import Violation, violation_at, violation_key, yielding_checks
from instar.tables.resolver import LAYOUT_OFFSET
from instar.tables.rowset import TableReader, describe_key, described, named_row
from instar.transactions.buffer import Change, TableBuffer
from instar.transactions.commit import Conflict

_TIMESTAMP = struct.Struct("<Q")

_DATA_EXCEPTION = "22"  # the class of errors that computing a value ends with

# Which CHECKs (by their ids) and NOT NULLs (by their columns') of a table that yield a row of it violates.
Violated = Callable[[Table, tuple[object, ...]], Iterable[int]]
# Where the flag of a constraint lies, and what it says.
Flag = tuple[bytes, Violation]


def _layout_of(stored: bytes) -> int:
    """The layout that a stored row is in."""
    return int.from_bytes(stored[LAYOUT_OFFSET + 1 : LAYOUT_OFFSET + 4], "little")


class ConstraintFailure(msgspec.Struct, frozen=True, gc=False):
    """Handed to the store with a precondition: how to report that it does not hold on the current state.

    Statements have judged the constraint on their own snapshot already, so what stands in the way is newer than it:
    a conflict (rule 15), except where the snapshot's schema could not see the index. Then nobody has `judged` it,
    trying again might not help, and the violation is reported as such.

    `flag`: the constraint yields. The commit is to set this flag, which says so much, and to go on. `detail` is asked
    for where it is told.
    """

    table: str
    constraint: str
    reported_as: str
    detail: Detail
    judged: bool = True
    flag: Flag | None = None

    def error(self, found: bytes | None = None) -> errors.Error | None:
        """40001, or the violation; the detail says more than the key that was `found`. None if the constraint
        yields."""
        if self.flag is not None:
            return None
        what = {
            errors.UNIQUE_VIOLATION: "duplicate key value violates unique constraint",
            errors.FOREIGN_KEY_VIOLATION: "write violates foreign key constraint",
        }[self.reported_as]
        if not self.judged:
            return errors.error(self.reported_as, f'{what} "{self.constraint}"', detail=self.detail())
        return errors.error(
            errors.SERIALIZATION_FAILURE,
            f'could not commit: {what} "{self.constraint}" of table "{self.table}" because of a concurrent commit',
            detail=self.detail(),
            hint="Retry the transaction.",
        )


class Met(NamedTuple):
    """What the flag of a constraint that yields is to say, and the precondition that did not hold: the flag is set only
    if that is so still."""

    violation: Violation
    precondition: KeyExists | RangeEmpty


def note_refusal(met: dict[bytes, Met], refused: Refused | None) -> None:
    """Note by their flags the constraints that yield which a commit was refused for, before it is derived again; of a
    commit that was refused for another state than it was derived on, nothing holds any more."""
    if isinstance(refused, StaleRow | StaleSchema):
        met.clear()
    elif isinstance(refused, PreconditionFailed) and isinstance(refused.precondition, KeyExists | RangeEmpty):
        failure = refused.precondition.on_failure
        if isinstance(failure, ConstraintFailure) and failure.flag is not None:
            key, violation = failure.flag
            met[key] = Met(violation, refused.precondition)


def row_conflict(table: Table, key: bytes, since: int | None = None) -> Conflict:
    """40001 naming table and key: the row was changed after the transaction's snapshot. `since`: a version of the
    table, where it may be for its changes since then that nothing kept others from that row."""
    told = f"{named_row(table, key)} was changed by a transaction that committed first."
    changes = "" if since is None else changes_since(table, since)
    return Conflict(
        errors.error(
            errors.SERIALIZATION_FAILURE,
            f'could not serialize access to table "{table.name}" due to a concurrent update',
            detail=f"{told} {changes}" if changes else told,
            hint="Retry the transaction.",
        )
    )


class NewerRow(Conflict):
    """The row lies in a layout that the statement's schema had not: it would lose what only that layout holds, whatever
    it is derived under now (rule 11). Only leases let a statement read what is newer than its schema."""

    def __init__(self, table: Table, key: bytes) -> None:
        super().__init__(
            errors.error(
                errors.SERIALIZATION_FAILURE,
                f'a row of table "{table.name}" was written under a newer schema than this process had leased',
                detail=f"It is row {describe_key(table, key)}.",
                hint="Retry the transaction.",
            )
        )


class ForeignKeyProbe:
    """What a child row demands of its parent, as a store key."""

    def __init__(self, table: Table, foreign_key: ForeignKey, catalog: CatalogSnapshot) -> None:
        self.foreign_key = foreign_key
        ordinals = {column.id: ordinal for ordinal, column in enumerate(table.columns)}
        self.ordinals = [ordinals[column] for column in foreign_key.columns]
        parent = catalog.table(foreign_key.parent)
        self._parent = parent.name
        self._columns = [table.columns[ordinal] for ordinal in self.ordinals]
        by_id = {column.id: column for column in parent.columns}
        if foreign_key.parent_index is None:
            order = list(parent.primary_key)
            self.prefix = rowset_prefix(parent.rowset)
            descending = [False] * len(order)
        else:
            index = next(found for found in parent.indexes if found.id == foreign_key.parent_index)
            order = [part.column for part in index.columns]
            self.prefix = rowset_prefix(index.rowset)
            descending = [part.descending for part in index.columns]
        # The constraint may list the columns in another order than the parent's key does.
        self._order = [foreign_key.parent_columns.index(column) for column in order]
        self._encode = compile_encoder([by_id[column].type for column in order], descending)

    def values(self, image: tuple[object, ...]) -> tuple[object, ...]:
        """The child's values, in the order in which the constraint lists them."""
        return tuple([image[ordinal] for ordinal in self.ordinals])

    def detail(self, image: tuple[object, ...]) -> str:
        """What is to be said of a row whose parent is not there."""
        return f'Key {described(self._columns, self.values(image))} is not present in table "{self._parent}".'

    def key(self, image: tuple[object, ...]) -> bytes | None:
        """The store key (a prefix, for an index) that must stand; None where a column is NULL (MATCH SIMPLE)."""
        values = self.values(image)
        if None in values:
            return None
        part = self._encode([values[position] for position in self._order])
        return self.prefix + (part if self.foreign_key.parent_index is None else limited_index_key(part))


class ParentProbe:
    """What the disappearance of a parent key demands: no child entry under it."""

    def __init__(self, parent: Table, child: Table, foreign_key: ForeignKey) -> None:
        self.foreign_key = foreign_key
        self.child = child
        ordinals = {column.id: ordinal for ordinal, column in enumerate(parent.columns)}
        self.ordinals = [ordinals[column] for column in foreign_key.parent_columns]
        self._columns = [parent.columns[ordinal] for ordinal in self.ordinals]
        by_id = {column.id: column for column in child.columns}
        if foreign_key.child_index is None:
            order = list(child.primary_key)[: len(foreign_key.columns)]
            self._prefix = rowset_prefix(child.rowset)
            descending = [False] * len(order)
        else:
            index = next(found for found in child.indexes if found.id == foreign_key.child_index)
            order = [part.column for part in index.columns][: len(foreign_key.columns)]
            self._prefix = rowset_prefix(index.rowset)
            descending = [part.descending for part in index.columns][: len(foreign_key.columns)]
        self._order = [foreign_key.columns.index(column) for column in order]
        self._encode = compile_encoder([by_id[column].type for column in order], descending)

    def values(self, image: tuple[object, ...]) -> tuple[object, ...]:
        """The referenced values of a parent row, in the constraint's order."""
        return tuple([image[ordinal] for ordinal in self.ordinals])

    def detail(self, values: tuple[object, ...]) -> str:
        """What is to be said of a key that is to go, and has children."""
        return f'Key {described(self._columns, values)} is still referenced from table "{self.child.name}".'

    def key(self, values: tuple[object, ...]) -> bytes | None:
        """The prefix under which children of those values stand; None if one is NULL (nobody refers to it)."""
        if None in values:
            return None
        part = self._encode([values[position] for position in self._order])
        # A borrowed index of more columns than the constraint's has short ones only (schemachange/foreign_keys.py), so
        # what is cut here is always a whole index key.
        return self._prefix + (part if self.foreign_key.child_index is None else limited_index_key(part))


class TableWriter:
    """Everything that deriving the writes of one table at one version needs, compiled once."""

    def __init__(self, table: Table, catalog: CatalogSnapshot, layouts: Layouts) -> None:
        stored = [column for column, _ in table.layout.columns]
        locks = (DEFAULT_LOCK, *(lock.id for lock in table.locks)) if table.locks else ()
        if [column.id for column in table.columns] != stored or table.layout.locks != locks:
            raise errors.error(errors.DATA_CORRUPTED, f'table "{table.name}" does not match its layout')
        self.table = table
        self._layouts = layouts
        self.prefix = rowset_prefix(table.rowset)
        self.encode = body_encoder(table.layout)
        self.locks = RowLocks(table, layouts) if table.layout.locks else None
        self.has_row_id = any(column.hidden and column.id in table.primary_key for column in table.columns)
        self.per_row = any(column.per_row for column in table.columns)
        self.codecs = [IndexCodec(table, index) for index in table.indexes]
        self.copies = RowCopies(table, table.next_key, self.reader) if table.next_key is not None else None
        self.parents = [ForeignKeyProbe(table, key, catalog) for key in table.foreign_keys if key.judged]
        self.children = [
            ParentProbe(table, child, key)
            for child_id in table.referenced_by
            for child in [catalog.table(child_id)]
            for key in child.foreign_keys
            if key.parent == table.id and key.judged
        ]
        self.yielding = yielding_checks(table)
        self.yields = bool(self.yielding) or any(index.yields for index in table.indexes)

    @computed_once
    def is_plain(self) -> bool:
        """Whether all that a write comes to is told by the row before it and after it."""
        if (
            self.locks
            or self.copies
            or self.yields
            or any(index.state is not State.PUBLIC for index in self.table.indexes)
        ):
            return False
        # A job gives values to rows, and leaves their timestamps as they are.
        return not any(column.per_row and column.state is not State.PUBLIC for column in self.table.columns)

    @computed_once
    def reader(self) -> TableReader:
        """Of whole rows. Who only inserts has no use for it."""
        return TableReader(self.table, range(len(self.table.columns)), self._layouts)


class Derivation:
    """The physical writes of one commit, collected table by table.

    `recheck` judges NOT NULL and CHECK of rows that no statement has seen: those merged of changes under several locks.
    `leased`: a statement's schema may be older than that of the snapshot which it has read; `behind`: the one that is
    derived under is older than that of `reader`. `violated` says which CHECKs and NOT NULLs that yield a row violates;
    `met` are the flags of other constraints that are found to be violated. `flags` is what the commit is to set.
    """

    def __init__(
        self,
        reader: Reader,
        recheck: Recheck | None = None,
        *,
        leased: bool = False,
        behind: bool = False,
        violated: Violated | None = None,
        met: Mapping[bytes, Met] | None = None,
    ) -> None:
        self.reader = reader
        self._recheck = recheck
        self._leased = leased
        self._behind = behind
        self.tables: list[TableWrites] = []
        self.entries: list[EntryWrite] = []
        self.preconditions: list[Precondition] = []
        self.flags: dict[bytes, Violation] = {}
        self._violated = violated
        self._met = met or {}

    def table(self, writer: TableWriter, buffer: TableBuffer, meant: Table | None = None) -> None:
        """Derive all changes of one table, whose images are at `writer.table`'s version. `meant` is the version
        that the statements saw, if it was another."""
        public = {index.id for index in (meant or writer.table).indexes if index.state is State.PUBLIC}
        public_at: dict[int, set[int]] = {}
        rows: list[RowWrite] = []
        copied: list[Copied] | None = None if writer.copies is None else []
        get = self.reader.get
        layout, version = writer.table.layout.id, writer.table.version
        several = writer.locks
        locks: tuple[int, ...] = ()
        moved: set[bytes] = set()
        if several is not None:
            buffer, moved = self._merged(writer, several, buffer)
            every = {index.id for index in writer.table.indexes}
        if writer.yielding:
            self._note_violations(writer, buffer)
        seen = (meant or writer.table).layout.id
        may_be_newer = self._leased and (self._behind or seen < layout)
        for key, change in buffer.changes.items():
            stored = get(writer.prefix + key)
            self._judge(writer, key, change, stored)
            if may_be_newer and stored is not None and _layout_of(stored) > seen:
                raise NewerRow(writer.table, key)
            body = None if change.image is None else writer.encode(change.image)
            judged = public
            if change.version < version:
                judged = public_at.setdefault(change.version, public - come_since(writer.table, change.version))
            if several is not None:
                locks = several.stamps(change, stored)
                # A merged row is nobody's but this commit's: what it violates is a conflict.
                judged = every if key in moved else judged
            keyed = self._entries(writer, key, change, judged)
            renewed = change.changed is None and body is not None and change.base is not None
            rows.append(RowWrite(writer.prefix + key, stored, body, layout, locks, change.pair, keyed, renewed))
            if copied is not None:
                copied.append(Copied(key, change, body, locks))
            self._parents(writer, key, change, merged=key in moved)
        self._children(writer, buffer)
        copies = () if writer.copies is None or copied is None else writer.copies.derive(self.reader, copied)
        table = writer.table
        names = (table.id, table.version, table.checks_version)
        self.tables.append(TableWrites(*names, rows, copies, whole=table.logged_whole))

    def _merged(self, writer: TableWriter, locks: RowLocks, buffer: TableBuffer) -> tuple[TableBuffer, set[bytes]]:
        """The changes, and the keys of those whose rows have moved since under other locks: put onto the rows as they
        are now."""
        result, moved = TableBuffer(buffer.table), set()
        for key, change in buffer.changes.items():
            stored = self.reader.get(writer.prefix + key)
            if change.base is not None and stored is not None and is_live(stored):
                if locks.is_met(change, stored):
                    raise row_conflict(writer.table, key)
                if _TIMESTAMP.unpack_from(stored)[0] != change.base:
                    change = self._merged_row(writer, key, change, stored)
                    moved.add(key)
            result.changes[key] = change
        return result, moved

    def _merged_row(self, writer: TableWriter, key: bytes, change: Change, stored: bytes) -> Change:
        try:
            return merged(writer.reader, change, stored, self._recheck)
        except errors.Error as violated:
            held_to = (errors.CHECK_VIOLATION, errors.NOT_NULL_VIOLATION)
            if violated.sqlstate not in held_to and violated.sqlstate[:2] != _DATA_EXCEPTION:
                raise
            # Either change alone was right (rule 16), and what is derived of the row could be computed.
            conflict = row_conflict(writer.table, key)
            conflict.reported.detail = f"Together with a change that committed first, {violated.message}."
            raise conflict from None

    def _judge(self, writer: TableWriter, key: bytes, change: Change, stored: bytes | None) -> None:
        """The stored row is still the version that the change was made on; else the other committed first."""
        live = stored is not None and not stored[LAYOUT_OFFSET] & ROW_TOMBSTONE
        if change.base is None:
            if live:
                raise row_conflict(writer.table, key)
            return
        if not live or stored is None or _TIMESTAMP.unpack_from(stored)[0] != change.base:
            raise row_conflict(writer.table, key)

    def _entries(self, writer: TableWriter, key: bytes, change: Change, public: set[int]) -> bool:
        """The row's index entries; whether a unique key of it changes."""
        keyed = False
        old, image = change.old, change.image
        for codec in writer.codecs:
            if old is not None and image is not None and codec.has_same(old, image):
                continue
            before = None if old is None else codec.entry(old, key)
            after = None if image is None else codec.entry(image, key)
            if before == after:
                continue
            keyed = keyed or codec.index.unique
            if before is not None:
                self.entries.append(EntryWrite(before, codec.primary_offset(before, key), False))
            if after is not None and codec.index.state is not State.DELETE_ONLY:
                self.entries.append(EntryWrite(after, codec.primary_offset(after, key), True))
                if codec.index.unique:
                    self._unique(writer.table, codec, key, change, after, judged=codec.index.id in public)
        return keyed

    def _unique(
        self, table: Table, codec: IndexCodec, key: bytes, change: Change, entry: bytes, *, judged: bool
    ) -> None:
        image, since = change.image, change.version
        prefix = None if image is None else codec.unique_prefix(image)
        if image is None or prefix is None:
            return
        flag = self._flag(table, codec.index, table, key)
        if self._is_flagged(flag):
            return
        detail = Detail(codec, image, table, since, table, codec.index.id)
        failure = ConstraintFailure(table.name, codec.index.name, errors.UNIQUE_VIOLATION, detail, judged, flag)
        self.preconditions.append(RangeEmpty(prefix, prefix_end(prefix), entry, failure))

    def _parents(self, writer: TableWriter, key: bytes, change: Change, *, merged: bool) -> None:
        """A row that refers to another needs it at the commit; what a merged row violates is a conflict."""
        if change.image is None:
            return
        for probe in writer.parents:
            if change.old is not None and probe.values(change.old) == probe.values(change.image):
                continue
            parent_key = probe.key(change.image)
            found = probe.foreign_key
            flag = self._flag(writer.table, found, writer.table, key)
            if parent_key is not None and not self._is_flagged(flag):
                # Rows may violate a key that is not validated yet: one whose primary key changes would do so for ever.
                failure = ConstraintFailure(
                    writer.table.name,
                    found.name,
                    errors.FOREIGN_KEY_VIOLATION,
                    Detail(probe, change.image, writer.table, change.version, writer.table, found.id),
                    judged=merged or found.state is State.PUBLIC,
                    flag=flag,
                )
                self.preconditions.append(KeyExists(parent_key, found.parent_index is not None, failure))

    def _children(self, writer: TableWriter, buffer: TableBuffer) -> None:
        """A referenced key that goes away needs that nobody refers to it, unless another row here bears it."""
        for probe in writer.children:
            gone: dict[tuple[object, ...], bytes] = {}
            borne = set()
            for key, change in buffer.changes.items():
                if change.old is not None:
                    gone[probe.values(change.old)] = key
                if change.image is not None:
                    borne.add(probe.values(change.image))
            vanished = gone.keys() - borne
            # NaN is not equal to itself, but for keys.
            kept = {probe.key(values) for values in borne} if vanished else set()
            for values in vanished:
                prefix = probe.key(values)
                if prefix in kept:
                    continue
                flag = self._flag(probe.child, probe.foreign_key, writer.table, gone[values])
                if prefix is not None and not self._is_flagged(flag):
                    failure = ConstraintFailure(
                        probe.child.name,
                        probe.foreign_key.name,
                        errors.FOREIGN_KEY_VIOLATION,
                        Detail(
                            probe,
                            values,
                            writer.table,
                            buffer.changes[gone[values]].version,
                            probe.child,
                            probe.foreign_key.id,
                        ),
                        flag=flag,
                    )
                    self.preconditions.append(RangeEmpty(prefix, prefix_end(prefix), None, failure))

    # --- constraints that yield ---------------------------------------------------------------------------------------

    def _note_violations(self, writer: TableWriter, buffer: TableBuffer) -> None:
        """Flag the CHECKs and NOT NULLs that yield, as far as they are violated here."""
        assert self._violated is not None  # where constraints can yield there is somebody to judge them
        left = {number: flag for number, flag in writer.yielding.items() if violation_at(self.reader, flag) is None}
        for key, change in buffer.changes.items():
            if not left:
                return
            if change.image is not None:
                for number in self._violated(writer.table, change.image):
                    if number in left:
                        self.flags[left.pop(number)] = Violation(writer.table.name, describe_key(writer.table, key))

    @staticmethod
    def _flag(owner: Table, element: Index | ForeignKey, table: Table, key: bytes) -> Flag | None:
        """The flag that the row of `table` at `key` sets if it violates the element of `owner`; None if the element
        does not yield."""
        if not element.yields:
            return None
        return violation_key(owner.id, element.id), Violation(table.name, describe_key(table, key))

    def _is_flagged(self, flag: Flag | None) -> bool:
        """Whether the flag is set already, or by this very commit: what it stands for need not be judged again."""
        if flag is None:
            return False
        key = flag[0]
        if key in self._met and key not in self.flags:
            self.flags[key], violated = self._met[key]
            self.preconditions.append(Fails(violated))
        return key in self.flags or violation_at(self.reader, key) is not None
