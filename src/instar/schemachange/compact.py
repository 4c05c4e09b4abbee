"""Compaction (thesis §3.2): rows that older layouts still hold are put into the newest one, with nothing else changed.

The walk is over *current* keys and needs no snapshot (rule 20). A row is rewritten outside the atomic section and put
inside it only if it still stands there byte for byte: whoever has written it since has migrated it himself. So all of
it may be done again, and nobody conflicts with it: it is maintenance, which keeps commit timestamps, lock timestamps
and the log as they are.

A row that would lose something (a column that the newest layout has not, a type that is narrower) is left alone while a
snapshot may be read by a schema that had it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from instar import values
from instar.catalog.catalog import Catalog
from instar.catalog.descriptors import Layout, StepKind, Table
from instar.catalog.layouts import recorded_layouts
from instar.catalog.system import descriptor_key
from instar.schemachange import wanted as want
from instar.schemachange.draft import Draft
from instar.schemachange.elements import Element, ElementKind
from instar.schemachange.job_records import Checkpoint
from instar.schemachange.reorganize import STEP_ROWS
from instar.schemachange.stages import Change, Edit, Plan, Publication, Reorganization, Stage, Superseded
from instar.schemachange.states import Work
from instar.schemachange.tasks import BATCH_ROWS, Step, Task, layouts_of
from instar.store.engine import ROW_HEADER, ROW_TOMBSTONE, Reader, Section, Store
from instar.tables.locks import lock_places
from instar.tables.resolver import is_widening, rewriter

Rewriter = Callable[[bytes], bytes]

_TIMESTAMP = struct.Struct("<Q")
_ROW_TIMESTAMP = 0  # where a stored row has its commit timestamp: that of a lock which its layout does not know


class Compacted(NamedTuple):
    """A row to be put: its store key, its bytes as they were read, and as they are to be."""

    key: bytes
    stored: bytes
    value: bytes


def is_lossless(written: Layout, target: Layout) -> bool:
    """Whether a row of one layout says the same in the other, by whatever schema it is read."""
    types = dict(target.columns)
    return all(column in types and is_widening(type_, types[column]) for column, type_ in written.columns)


def is_settled(reader: Reader, table: Table, written: Layout) -> bool:
    """Whether rows in one layout of the table may be put into its newest: nothing is lost by it, or whatever reads them
    from now on goes by the table as it is now, for no snapshot is as old as its last change."""
    if is_lossless(written, table.layout):
        return True
    return is_at_rest(reader, table)


def is_at_rest(reader: Reader, table: Table) -> bool:
    """Whether no snapshot that is read, and no record of the log, is older than the last change of the table."""
    stored = reader.get(descriptor_key(table.id))
    return stored is not None and ROW_HEADER.unpack_from(stored)[0] <= reader.watermark


def older_layouts(reader: Reader, table: Table) -> list[Layout]:
    """The layouts that rows of the table may be in, but for its newest."""
    return list(recorded_layouts(reader, table.id, table.layout.id, table.oldest_layout))


def row_rewriter(table: Table, written: Layout) -> Rewriter:
    """A function from a stored row of the table in one layout to the same in its newest one."""
    target = table.layout
    missing = {
        column.id: None if column.missing is None else values.from_text(column.type, column.missing)
        for column in table.columns
    }
    derived = {
        column.id: column.derived for column in table.columns if column.derived is not None and not column.per_row
    }
    body = rewriter(written, target, missing, derived)
    places = lock_places(written)
    # A lock that the old layout does not know moved when the row did, as far as is known.
    locks = [places.get(lock, _ROW_TIMESTAMP) for lock in target.locks]

    def rewrite(stored: bytes) -> bytes:
        timestamp, sequence, tag = ROW_HEADER.unpack_from(stored)
        moved = b"".join([stored[place : place + _TIMESTAMP.size] for place in locks])
        return ROW_HEADER.pack(timestamp, sequence, target.id << 8 | tag & 0xFF) + moved + body(stored)

    return rewrite


def plan_compaction(draft: Draft, wanted: want.CompactTable) -> Plan:
    """COMPACT TABLE: rows in older layouts are put into the newest, from behind a fence (rule 26); the table is told
    that it has one layout if all of them may be put there now. 55006 while a job moves something of the table."""
    table = draft.find(Table, wanted.table)
    draft.require_settled(table)
    if table.oldest_layout == table.layout.id:
        return Plan(draft.statement, Publication(), (Stage(),))
    element = Element(ElementKind.LAYOUT, table.id, table.layout.id)
    work = Reorganization(Work.COMPACT, element, draft.facts.estimated_rows(table))
    stages = (Stage(revertible=True), Stage(fences=(table.id,), work=(work,), revertible=True))
    if not draft.facts.is_settled(table):
        notice = f'rows of table "{table.name}" that older snapshots may read with what it has lost stay as they are'
        return Plan(draft.statement, Publication(), stages, (notice,), Change(()))
    edit = Edit(table.id, (), ((StepKind.COMPACT, ()),), (table.rowset, table.layout.id))
    return Plan(draft.statement, Publication(), (*stages, Stage(edits=(edit,))), (), Change((), (edit,)))


class Compaction(Task):
    """The work of one job on the rows of one table. `whole`: the job says at its end that all rows are in one layout,
    and fails where one has to be left."""

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        table: Table,
        *,
        job: int,
        stage: int,
        claim: tuple[bytes, bytes],
        rows: int,
        place: int = 0,
        whole: bool,
    ) -> None:
        super().__init__(store, table, job=job, stage=stage, claim=claim, rows=rows, place=place)
        self._catalog = catalog
        self._whole = whole
        self._rewriters: dict[int, Rewriter] = {}

    def batches(self, at: Checkpoint) -> Iterator[tuple[Iterable[Step], Checkpoint]]:
        """As in `Task`, in the order of the table's keys. Superseded once the table has a newer layout."""
        while not at.done:
            most = self.at_once(BATCH_ROWS)
            with self.store.read() as reader:
                self._require_newest(reader)
                keys, rows = self.read_rows(reader, at.position, at.stop, most)
                rewriters = {layout: self._rewriter(layout, reader) for layout in layouts_of(rows)}
            made = [found for pair in zip(keys, rows, strict=True) if (found := _compacted(*pair, rewriters))]
            done = len(keys) < most
            position = at.stop if done else keys[-1] + b"\x00"
            at = Checkpoint(at.start, at.stop, position, at.rows + len(keys), done)
            yield self._steps(made), at

    def _require_newest(self, reader: Reader) -> None:
        found = self._catalog.at(reader).by_id(self.table.id)
        if not isinstance(found, Table) or (found.rowset, found.layout) != (self.table.rowset, self.table.layout):
            raise Superseded(f'table "{self.table.name}" has changed meanwhile')

    def _rewriter(self, layout: int, reader: Reader) -> Rewriter | None:
        """How rows in a layout are put into the newest one; None if they are there, or must wait."""
        rewrite = self._rewriters.get(layout)
        if rewrite is None and layout != self.table.layout.id:
            written = self.layout(layout, reader)
            if is_settled(reader, self.table, written):
                rewrite = self._rewriters[layout] = row_rewriter(self.table, written)
            elif self._whole:  # it was settled when it was planned: the table has changed since
                raise Superseded(f'table "{self.table.name}" has changed meanwhile')
        return rewrite

    def _steps(self, rows: list[Compacted]) -> Iterator[Step]:
        source = iter(rows)
        while chunk := list(islice(source, STEP_ROWS)):
            yield self._step(chunk)

    def _step(self, chunk: list[Compacted]) -> Step:
        def step(section: Section) -> None:
            if self.pace is not None:
                self.pace.rows += len(chunk)
            for row in chunk:
                if section.get(row.key) == row.stored:
                    section.put(row.key, row.value)

        return step


def _compacted(key: bytes, stored: bytes, rewriters: Mapping[int, Rewriter | None]) -> Compacted | None:
    """The row in the newest layout; None if it is no row, or in a layout that nothing is done about."""
    tag = ROW_HEADER.unpack_from(stored)[2]
    rewrite = None if tag & ROW_TOMBSTONE else rewriters.get(tag >> 8)
    return None if rewrite is None else Compacted(key, stored, rewrite(stored))
