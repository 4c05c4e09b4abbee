"""Validation: whether the rows that are there already keep to a constraint that is pending (F1 §3.2, clause 6).

A pending constraint is write-only: whoever commits keeps to it, and the fence before the validation shuts out those who
do not know it (rule 19). So the rows that violate it, V, only become fewer while the walk goes on:

* CHECK and NOT NULL are judged on every row that is written, whole. A row that is written under the fence is not in V.
* A foreign key is judged on a row that is inserted, or whose columns of the key change, by a precondition on the parent
  at the commit; and on a parent that goes away, by a precondition that it has no children, for which the index on the
  child's columns is public before the constraint is pending (rule 27). A row leaves V when it, or its parent, is
  written; none enters it. A row whose primary key changes is a new row to its commit, so V does not move about either.

Hence a walk over the *current* keys, in any order, at any pace, each row once, is sound: what violates the constraint
at the end did so at the fence, under the same key, and was there to be met. It needs no snapshot (rule 20), which would
hold the log or be cut loose by it. What makes a foreign key's finding just is that child and parent are read in the
same short read: a parent read at another moment might have come or gone with its child (references.py).

The schema of each batch is that of its read (rows may be in a layout that is newer than the task). A violation does not
end the walk: the error names up to ten rows and counts them all. The checkpoint stays before the first violation, so
that whoever resumes meets it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from instar import errors
from instar.catalog.catalog import Catalog, CatalogSnapshot
from instar.catalog.descriptors import Check, Column, Table
from instar.encoding.rows import RowReader
from instar.schemachange.elements import Element, ElementKind, is_required
from instar.schemachange.job_records import Checkpoint
from instar.schemachange.references import FindLayout, ReferenceJudge
from instar.schemachange.reorganize import widest
from instar.schemachange.stages import Superseded
from instar.schemachange.tasks import BATCH_ROWS, NAMED_ROWS, Step, Task
from instar.store.engine import ROW_HEADER, ROW_TOMBSTONE, Reader, Store
from instar.tables.resolver import LAYOUT_OFFSET, mixed_batch_reader, resolver
from instar.tables.rowset import describe_key, wanted

# A row's columns, in the order of the table's descriptor; False alone violates the constraint.
Predicate = Callable[[tuple[object, ...]], object]
# Makes the predicate of a CHECK constraint, whose expression is SQL's business: the table's columns are those that the
# rows will have. A function of a module, since Spark's tasks import it by name.
CompileCheck = Callable[[Table, Check], Predicate]


class Offender(NamedTuple):
    """A row that violates the constraint: its key as people read it, and what is wrong with it, if that can be said;
    the SQLSTATE of that, where rows differ in it."""

    key: str
    why: str = ""
    sqlstate: str = ""


class Examined(NamedTuple):
    """What was found in a batch: how many rows it had, how many of them violate the constraint, the first of those, and
    where the next batch begins (None: there is none)."""

    rows: int
    violations: int
    offenders: list[Offender]
    position: bytes | None


class References(NamedTuple):
    """What was found in a batch: how many rows it had, what those refer to that refer to anything, and their keys."""

    rows: int
    keys: list[bytes]
    referring: list[bytes]


class Judge(Protocol):
    """Finds the rows that violate one constraint. `probes`: it reads others beside them."""

    probes: bool

    def offenders(self, find: FindLayout, reader: Reader | None, stored: Sequence[bytes]) -> list[int]:
        """Which of the rows as stored violate it, by their places, in order. `reader` has read them, and is wanted by
        who probes."""
        ...

    def why(self, find: FindLayout, stored: bytes) -> tuple[str, ...]:
        """A sentence on one of them, if there is one to be said, and its SQLSTATE, if rows differ in that."""
        ...

    def problem(self) -> tuple[str, str]:
        """SQLSTATE and message, as PostgreSQL has them."""
        ...


class Validation(Task):
    """The validation of one pending constraint: a CHECK, a foreign key, or a NOT NULL, whose id is its column's."""

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        element: Element,
        compile_check: CompileCheck,
        *,
        job: int,
        stage: int,
        claim: tuple[bytes, bytes],
        rows: int,
        place: int = 0,
    ) -> None:
        """Superseded if there is no such element."""
        with store.read() as reader:
            snapshot = catalog.at(reader)
        super().__init__(store, _table(snapshot, element), job=job, stage=stage, claim=claim, rows=rows, place=place)
        self.element = element
        self.compile_check = compile_check
        self._catalog = catalog
        self._version = snapshot.version
        self._judge = judge_of(snapshot, self.table, element, compile_check)

    def batches(self, at: Checkpoint) -> Iterator[tuple[Iterable[Step], Checkpoint]]:
        """As in `Task`: nothing is written but the checkpoint. Raises what `problem` makes of the violations."""
        if at.done:
            return
        position: bytes = at.position
        found = 0
        offenders: list[Offender] = []
        for examined in self.examine(at.position, at.stop):
            found += examined.violations
            offenders += examined.offenders[: NAMED_ROWS - len(offenders)]
            if not found:
                position = at.stop if examined.position is None else examined.position
            at = Checkpoint(at.start, at.stop, position, at.rows + examined.rows, position == at.stop)
            yield (), at
        if found:
            raise self.problem(found, offenders)

    def examine(self, start: bytes, stop: bytes) -> Iterator[Examined]:
        """Judge the rows that stand in [start, stop) (whole store keys), batch by batch, each in a short read."""
        position: bytes | None = start
        while position is not None:
            most = self.at_once(BATCH_ROWS)
            with self.store.read() as reader:
                self._refresh(reader)
                keys, stored = self.read_rows(reader, position, stop, most)
                judged = self._judged(keys, stored, reader) if self._judge.probes else None
            rows, violations, offenders = judged or self._judged(keys, stored)
            position = keys[-1] + b"\x00" if len(keys) == most else None
            yield Examined(rows, violations, offenders, position)

    def _judged(
        self, keys: Sequence[bytes], stored: Sequence[bytes], reader: Reader | None = None
    ) -> tuple[int, int, list[Offender]]:
        """How many of the rows as stored are live, how many of those violate the constraint, and the first of those.
        `reader`: what has read them, if it is still open."""
        live = [i for i, value in enumerate(stored) if not value[LAYOUT_OFFSET] & ROW_TOMBSTONE]
        rows = [stored[i] for i in live]
        find = partial(self.layout, view=reader)
        places = self._judge.offenders(find, reader, rows) if rows else []
        offenders = [
            Offender(describe_key(self.table, keys[live[i]][len(self.start) :]), *self._judge.why(find, rows[i]))
            for i in places[:NAMED_ROWS]
        ]
        return len(rows), len(places), offenders

    # --- a foreign key as an anti-join -------------------------------------------------------------------------------

    def references(self, start: bytes, stop: bytes) -> Iterator[References]:
        """What the rows that stand in [start, stop) (whole store keys) refer to, batch by batch."""
        position: bytes | None = start
        while position is not None:
            with self.store.read() as reader:
                self._refresh(reader)
                keys, stored = self.read_rows(reader, position, stop, BATCH_ROWS)
            live = [i for i, value in enumerate(stored) if not value[LAYOUT_OFFSET] & ROW_TOMBSTONE]
            wanted = self.reference_judge.keys(self.layout, [stored[i] for i in live]) if live else []
            position = keys[-1] + b"\x00" if len(keys) == BATCH_ROWS else None
            referring = [(key, keys[i]) for i, key in zip(live, wanted, strict=True) if key is not None]
            yield References(len(live), [key for key, _ in referring], [row for _, row in referring])

    def standing(self, start: bytes, stop: bytes) -> Iterator[list[bytes]]:
        """What can be referred to of [start, stop) of a rowset, batch by batch; nothing if the parents stand in another
        one by now."""
        judge = self.reference_judge
        position: bytes | None = start if start.startswith(judge.parents) else None
        while position is not None:
            with self.store.read() as reader:
                keys, stored = reader.batch(position, stop, BATCH_ROWS)
            yield judge.standing(keys, stored)
            position = keys[-1] + b"\x00" if len(keys) == BATCH_ROWS else None

    def reexamine(self, keys: Sequence[bytes]) -> Examined:
        """Judge the rows under those store keys as they stand now, with what they refer to, in one short read."""
        with self.store.read() as reader:
            self._refresh(reader)
            found = [(key, stored) for key in keys if (stored := reader.get(key)) is not None]
            rows, violations, offenders = self._judged(
                [key for key, _ in found], [stored for _, stored in found], reader
            )
        return Examined(rows, violations, offenders, None)

    @property
    def reference_judge(self) -> ReferenceJudge:
        """That of the foreign key, as of the last read."""
        assert isinstance(self._judge, ReferenceJudge)
        return self._judge

    def problem(self, count: int, offenders: Sequence[Offender]) -> errors.Error:
        """The error that names the constraint, how many rows violate it, and some of them."""
        shown = ", ".join(offender.key for offender in offenders[:NAMED_ROWS])
        if offenders and offenders[0].sqlstate:
            rows = "1 row" if count == 1 else f"{count} rows"
            some = ", among them" if count > len(offenders[:NAMED_ROWS]) else ""
            generated = any(found.generated for found in self.table.columns if found.id == self.element.id)
            what = "would have no value of it" if generated else "cannot be converted"
            if self.element.kind is ElementKind.CHECK:
                name = next((check.name for check in self.table.checks if check.id == self.element.id), "")
                what = f'cannot be judged by check constraint "{name}"'
            detail = f"{rows} {what}{some}: {shown}."
            return errors.error(offenders[0].sqlstate, offenders[0].why, detail=detail)
        sqlstate, message = self._judge.problem()
        what = f"{count} row violates it" if count == 1 else f"{count} rows violate it"
        among = ", among them" if count > len(offenders[:NAMED_ROWS]) else ""
        why = f"{offenders[0].why} " if offenders and offenders[0].why else ""
        return errors.error(sqlstate, message, detail=f"{why}{what}{among}: {shown}.")

    def _refresh(self, reader: Reader) -> None:
        """Judge by the schema that `reader` sees, so that every row which it sees can be read. Superseded if the
        constraint is gone."""
        if reader.catalog_version == self._version:
            return
        snapshot = self._catalog.at(reader)
        table = _table(snapshot, self.element)
        if table.rowset != self.table.rowset:
            raise Superseded(f'the rows of table "{table.name}" were replaced')
        self._judge = judge_of(snapshot, table, self.element, self.compile_check)
        self.table, self._version = table, snapshot.version


def _table(snapshot: CatalogSnapshot, element: Element) -> Table:
    found = snapshot.by_id(element.table)
    if not isinstance(found, Table):
        raise Superseded(f"table {element.table} was dropped")
    return found


def judge_of(snapshot: CatalogSnapshot, table: Table, element: Element, compile_check: CompileCheck) -> Judge:
    """Whoever finds the rows that violate a CHECK, foreign key or NOT NULL. Superseded if there is no such element."""
    if element.kind is ElementKind.CHECK:
        for check in table.checks:
            if check.id == element.id:
                return _CheckJudge(table, check, compile_check)
    elif element.kind is ElementKind.FOREIGN_KEY:
        for foreign_key in table.foreign_keys:
            if foreign_key.id == element.id:
                return ReferenceJudge(table, foreign_key, snapshot)
    else:
        judge = _DerivedJudge if element.kind is ElementKind.COLUMN else _NotNullJudge
        for column in table.columns:
            if column.id == element.id:
                return judge(table, column)
    raise Superseded(f'a {element.kind.value} of table "{table.name}" is gone')


class _CheckJudge:
    """A CHECK: a predicate on the columns that it names."""

    probes = False

    def __init__(self, table: Table, check: Check, compile_check: CompileCheck) -> None:
        self._table, self._check = table, check
        columns = tuple(column for column in table.columns if column.id in check.columns)
        self._holds = compile_check(msgspec.structs.replace(table, columns=columns), check)
        self._wanted = [wanted(column) for column in columns]
        self._readers: dict[int, RowReader] = {}

    def offenders(self, find: FindLayout, reader: Reader | None, stored: Sequence[bytes]) -> list[int]:
        holds, readers = self._holds, self._readers
        found = []
        for place, value in enumerate(stored):
            layout = ROW_HEADER.unpack_from(value)[2] >> 8
            read = readers.get(layout)
            if read is None:
                read = readers[layout] = resolver(find(layout), self._wanted)
            try:
                if holds(read(value)) is False:
                    found.append(place)
            except errors.Error:  # of the expression, for this row
                found.append(place)
        return found

    def why(self, find: FindLayout, stored: bytes) -> tuple[str, ...]:
        read = self._readers[ROW_HEADER.unpack_from(stored)[2] >> 8]
        try:
            self._holds(read(stored))
        except errors.Error as failed:
            return failed.message, failed.sqlstate
        return ()

    def problem(self) -> tuple[str, str]:
        message = f'check constraint "{self._check.name}" of relation "{self._table.name}" is violated by some row'
        return errors.CHECK_VIOLATION, message


class _NotNullJudge:
    """The NOT NULL of a column."""

    probes = False

    def __init__(self, table: Table, column: Column) -> None:
        self._table, self._column = table, column
        self._wanted = wanted(column)._replace(type=widest(column))

    def offenders(self, find: FindLayout, reader: Reader | None, stored: Sequence[bytes]) -> list[int]:
        (values,) = mixed_batch_reader(find, [self._wanted])(stored)
        if not values.null_count:
            return []
        return [place for place, null in enumerate(values.is_null().to_pylist()) if null]

    def why(self, find: FindLayout, stored: bytes) -> tuple[str, ...]:
        return ()

    def problem(self) -> tuple[str, str]:
        message = f'column "{self._column.name}" of relation "{self._table.name}" contains null values'
        return errors.NOT_NULL_VIOLATION, message


class _DerivedJudge:
    """A column that is derived of others, generated or to take the place of another one: whether all rows have a value
    of it."""

    probes = False

    def __init__(self, table: Table, column: Column) -> None:
        self._table, self._column = table, column
        self._wanted = [wanted(column)._replace(lenient=False)]
        self._readers: dict[int, RowReader] = {}

    def offenders(self, find: FindLayout, reader: Reader | None, stored: Sequence[bytes]) -> list[int]:
        return [place for place, value in enumerate(stored) if self._error(find, value) is not None]

    def why(self, find: FindLayout, stored: bytes) -> tuple[str, ...]:
        found = self._error(find, stored)
        return () if found is None else (found.message, found.sqlstate)

    def problem(self) -> tuple[str, str]:
        message = f'column "{self._column.name}" of relation "{self._table.name}" contains null values'
        return errors.NOT_NULL_VIOLATION, message

    def _error(self, find: FindLayout, stored: bytes) -> errors.Error | None:
        layout = ROW_HEADER.unpack_from(stored)[2] >> 8
        read = self._readers.get(layout)
        if read is None:
            read = self._readers[layout] = resolver(find(layout), self._wanted)
        try:
            (value,) = read(stored)
        except errors.Error as found:
            return found
        if value is None and is_required(self._column):
            return errors.error(*self.problem())
        return None
