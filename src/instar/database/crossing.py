"""Commits of transactions that have written to tables which were joined or split meanwhile, with `strategy = 'commit'`.

What is buffered on the sources is made changes of the targets, on the state that the commit is derived on, and goes on
as what is buffered on these. It stands if what was read for it has not changed when the store judges the commit, else
the commit is derived anew. A row that others have changed since it was read, through the sources or in the targets, is
40001: it is told by its values, since the rows of the targets bear no timestamps of those of the sources any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Index, Kept, Table, transformation_of
from instar.encoding.keys import compile_encoder, limited_index_range
from instar.schemachange.compatibility import Usage, require_compatible
from instar.schemachange.online.crossing import translate
from instar.schemachange.online.crossing_rows import FoundRow, Limits, RowChange
from instar.schemachange.online.shapes import column_places
from instar.store.apply import is_live
from instar.store.engine import ENTRY_VALUE, ROW_HEADER, RangeUnchanged, View, prefix_end
from instar.tables.completion import unseen
from instar.tables.index import IndexCodec
from instar.tables.upgrade import upgraded
from instar.tables.writes import TableWriter
from instar.transactions.buffer import Change, TableBuffer
from instar.transactions.commit import Conflict
from instar.transactions.reads import Range
from instar.transformations import records
from instar.transformations.records import Row, Source, chosen

if TYPE_CHECKING:
    from instar.database.database import Database


class Again(msgspec.Struct, frozen=True):
    """Handed to the store with what was read: if it has changed, the commit is derived anew."""

    def error(self, found: bytes | None = None) -> errors.Error | None:
        """None: nothing is wrong."""
        return None


class Overtaken(msgspec.Struct, frozen=True):
    """Handed to the store with what an earlier statement has read: if it has changed, the commit is refused."""

    kept: Kept

    def error(self, found: bytes | None = None) -> errors.Error | None:
        """40001."""
        changed = (
            "Rows that it was made changes of the new tables by were changed by a transaction that committed first."
        )
        return _refused(self.kept, changed)


class Crossings:
    """What a transaction has buffered on tables that were joined or split meanwhile, on its way to the targets."""

    def __init__(self, database: Database, catalog: CatalogSnapshot) -> None:
        self._database = database
        self._catalog = catalog
        self._found: dict[tuple[int, ...], Crossing] = {}

    def take(self, buffer: TableBuffer, meant: Table) -> bool:
        """Take these changes of a table that is gone along, if it is such a one. Conflict if they have no meaning any
        more."""
        kept = self._catalog.kept_of(buffer.table)
        if kept is None:
            return False
        made = kept.made.targets
        if made not in self._found:
            self._found[made] = Crossing(self._database, self._catalog, kept)
        self._found[made].add(buffer, meant)
        return True

    def buffers(
        self, view: View, *, lasting: bool = False
    ) -> tuple[list[tuple[TableWriter, TableBuffer]], list[RangeUnchanged]]:
        """As of `Crossing`, of all that was taken. `lasting`: they are not made anew at the commit."""
        buffers: list[tuple[TableWriter, TableBuffer]] = []
        unchanged: list[RangeUnchanged] = []
        for found in self._found.values():
            made, read = found.buffers(view)
            buffers.extend(made)
            failure = Overtaken(found.kept) if lasting else Again()
            unchanged.extend(RangeUnchanged(start, stop, view.timestamp, failure) for start, stop in read)
        return buffers, unchanged


class Crossing:
    """The changes of the sources of one join or split, on their way to the targets."""

    def __init__(self, database: Database, catalog: CatalogSnapshot, kept: Kept) -> None:
        """Conflict if a target is gone."""
        self._database = database
        self._catalog = catalog
        self.kept = kept
        self._changes: list[records.Change] = []
        self._targets: dict[int, Table] = {}
        for number in kept.made.targets:
            found = catalog.by_id(number)
            if not isinstance(found, Table):
                raise Conflict(_gone(kept))
            self._targets[number] = found

    def add(self, buffer: TableBuffer, meant: Table) -> None:
        """What is buffered of a source, which was meant under `meant`. Conflict if it has no meaning for the table as
        it was last."""
        number = self.kept.made.sources.index(meant.id)
        source = self.kept.sources[number]
        other_key = (meant.rowset, meant.primary_key) != (source.rowset, source.primary_key)
        if other_key or unseen(meant, source):
            raise Conflict(_gone(self.kept))
        try:
            require_compatible(source, meant.version, Usage(wrote=True))
        except errors.Error as refused:
            raise Conflict(refused) from None
        as_source = Source.T if len(self.kept.sources) == 1 else (Source.R, Source.S)[number]
        places = column_places(source)
        key = [places[column] for column in source.primary_key]
        for change in upgraded(buffer, meant, source).changes.values():
            self._changes.extend(_recorded(as_source, change, key))

    def buffers(self, view: View) -> tuple[list[tuple[TableWriter, TableBuffer]], list[Range]]:
        """The changes of the targets, on the state that `view` sees, and the ranges that were read for them. Conflict
        if they contradict what others have committed; 23502 if values would be lost."""
        rows = _Rows(self._database, self._catalog, view)
        made = self.kept.made
        limits = Limits(made.pause_rows, errors.SERIALIZATION_FAILURE, errors.SERIALIZATION_FAILURE)
        try:
            changes = translate(self.kept, self._targets, rows, self._changes, limits, as_read=True)
        except errors.Error as refused:
            if refused.sqlstate not in (errors.SERIALIZATION_FAILURE, errors.UNIQUE_VIOLATION):
                raise
            said = f"{refused.message}. {refused.detail}" if refused.detail else refused.message
            raise Conflict(_refused(self.kept, said)) from None
        buffers: dict[int, TableBuffer] = {}
        for change in changes:
            writer = rows.writer(self._targets[change.table])
            buffer = buffers.setdefault(change.table, TableBuffer(change.table))
            self._put(buffer, writer, change, rows)
        made_of = [(rows.writer(self._targets[number]), buffer) for number, buffer in buffers.items()]
        return made_of, rows.ranges()

    def _put(self, buffer: TableBuffer, writer: TableWriter, change: RowChange, rows: _Rows) -> None:
        table = writer.table
        if change.key is None:
            assert change.after is not None
            image = self._with_row_id(table, change.after)
            places = column_places(table)
            key = writer.reader.encode_key([image[places[column]] for column in table.primary_key])
            before = buffer.changes.get(key)
            assert before is None, "two rows of one key"
            buffer.set(key, Change(None, image, None, None, table.version))
            return
        old, base = rows.read[table.id, change.key]
        changed = None
        if change.after is not None:
            pairs = zip(table.columns, old, change.after, strict=True)
            changed = frozenset(column.id for column, was, now in pairs if not records.same((was,), (now,)))
        buffer.set(change.key, Change(base, change.after, old, changed, table.version))

    def _with_row_id(self, table: Table, image: Row) -> Row:
        """A new row, with a row id if that is its key."""
        made = list(image)
        for place, column in enumerate(table.columns):
            if column.hidden and column.id in table.primary_key and column.sequence is not None:
                sequence = self._database.sequence(column.sequence, self._catalog)
                made[place] = self._database.sequences.next_value(sequence)
        return tuple(made)


class _Rows:
    """The targets' rows as a view of the store sees them, and what has been read of them."""

    def __init__(self, database: Database, catalog: CatalogSnapshot, view: View) -> None:
        self._database = database
        self._catalog = catalog
        self._view = view
        self.read: dict[tuple[int, bytes], tuple[Row, int]] = {}
        self._ranges: dict[Range, None] = {}

    def writer(self, table: Table) -> TableWriter:
        """What rows of a target are encoded and decoded by."""
        return self._database.writers.get(table, self._catalog)

    def by_key(self, table: Table, values: Row, /) -> FoundRow | None:
        """As in `TargetRows`."""
        return self._row(table, self.writer(table).reader.encode_key(values))

    def by_index(self, table: Table, index: Index, values: Row, /) -> Iterator[FoundRow]:
        """As in `TargetRows`."""
        codec, count = IndexCodec(table, index), len(values)
        encode = compile_encoder(codec.types[:count], codec.descending[:count])
        wanted = encode(values)
        start, stop = (codec.prefix + bound for bound in limited_index_range(wanted, prefix_end(wanted)))
        self._ranges[start, stop] = None
        for entry, value in list(self._view.scan(start, stop)):
            _timestamp, live, offset = ENTRY_VALUE.unpack(value)
            found = self._row(table, entry[offset:]) if live else None
            if found is not None and encode(chosen(found.image, codec.ordinals[:count])) == wanted:
                yield found

    def ranges(self) -> list[Range]:
        """All keys and ranges of keys that have been read."""
        return list(self._ranges)

    def _row(self, table: Table, key: bytes) -> FoundRow | None:
        writer = self.writer(table)
        place = writer.prefix + key
        self._ranges[place, place + b"\x00"] = None
        stored = self._view.get(place)
        if stored is None or not is_live(stored):
            return None
        known = self.read.get((table.id, key))
        if known is None:
            known = self.read[table.id, key] = writer.reader.decode(stored), ROW_HEADER.unpack_from(stored)[0]
        return FoundRow(key, known[0])


def _recorded(source: Source, change: Change, key: Iterable[int]) -> Iterator[records.Change]:
    """A buffered change as the log would tell it."""
    places = list(key)
    old, new = change.old, change.image
    if old is not None and new is not None and change.changed is not None:
        yield records.Updated(source, chosen(old, places), old, new, 0)
        return
    if old is not None:
        yield records.Deleted(source, chosen(old, places), old, 0)
    if new is not None:
        yield records.Inserted(source, chosen(new, places), new, 0)


def _names(kept: Kept) -> str:
    return " and ".join(f'"{source.name}"' for source in kept.sources)


def _gone(kept: Kept) -> errors.Error:
    return errors.error(
        errors.SERIALIZATION_FAILURE,
        f"what the transaction wrote to {_names(kept)}, joined or split meanwhile, has no place any more",
        detail=f"The change was: {transformation_of(kept.sources[0])}",
        hint="Retry the transaction, on the new tables.",
    )


def _refused(kept: Kept, detail: str) -> errors.Error:
    """What others have committed is in the way: the statements have judged it on a snapshot from before."""
    return errors.error(
        errors.SERIALIZATION_FAILURE,
        f"could not commit what the transaction wrote to {_names(kept)}, joined or split meanwhile",
        detail=f"{detail.removesuffix('.')}. The change was: {transformation_of(kept.sources[0])}",
        hint="Retry the transaction, on the new tables.",
    )
