"""What the analytic engine reads: tables of the statement's snapshot and system views, as Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from instar.encoding.arrow_values import arrow_array
from instar.sql import tree
from instar.sql.access_paths import candidates, restrictions
from instar.sql.accesses import RangeCompiler
from instar.sql.driving import Held, is_constant
from instar.sql.execution import ExecutionContext, Row
from instar.sql.expressions import Frame, FrameLayout, Scope
from instar.sql.plan import Access
from instar.tables.layout import arrow_type
from instar.tables.rowset import TableReader
from instar.tables.view import END
from instar.types import Kind, Type

# Up to so many bytes of a relation are decoded before DuckDB begins: a quarter of a small machine's memory at most.
COLLECTED_BYTES = 256 << 20


class Input:
    """One scan's batches: a table in memory up to COLLECTED_BYTES, beyond that a stream which DuckDB pulls.

    The table is decoded without DuckDB's threads waiting for the interpreter, and read by several of them. The stream
    begins anew each time it is asked for, since a plan may read one relation several times. An error raised on its way
    is kept, since DuckDB passes on its text.
    """

    def __init__(self, schema: pa.Schema, batches: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        self.failure: BaseException | None = None
        self._schema = schema
        self._batches = batches

    def relation(self) -> Input | pa.Table:
        """What DuckDB is to read."""
        collected: list[pa.RecordBatch] = []
        room = COLLECTED_BYTES
        for batch in self._batches():
            room -= batch.nbytes
            if room < 0:
                return self
            collected.append(batch)
        return pa.Table.from_batches(collected, schema=self._schema)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader: Any = pa.RecordBatchReader.from_batches(self._schema, self._guarded())
        return reader.__arrow_c_stream__(requested_schema)

    def _guarded(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._batches()
        except GeneratorExit:  # DuckDB wants no more of it
            raise
        except BaseException as failure:
            self.failure = failure
            raise


def key_ranges(held: Held, layout: FrameLayout, frame: Frame) -> list[tuple[bytes, bytes]]:
    """The ranges of the primary key that the conditions leave."""
    scan = held.scan
    restricted = restrictions(scan.relation, held.conditions, is_constant)
    path = next(found.path for found in candidates(scan.table, restricted) if found.path.index is None)
    if not path.restricts:
        return [(b"", END)]
    access = Access(Scope({}), scan.relation, scan.table, scan.alias, (), path)
    return RangeCompiler(layout, None).ranges(access)(frame)


def table_input(
    scan: tree.TableScan, ordinals: Sequence[int], ranges: Sequence[tuple[bytes, bytes]], context: ExecutionContext
) -> Input:
    """These columns of the table's rows in ranges of its primary key."""
    reader = TableReader(scan.table, ordinals, context.view.layouts)
    types = _types(scan, ordinals)
    schema = _schema(types)
    uuids = any(type_.kind is Kind.UUID for type_ in types)

    def batches() -> Iterator[pa.RecordBatch]:
        view = context.view if scan.level is None else context.view_at(scan.level)
        for start, stop in ranges:
            for batch in reader.arrow(view, start, stop):
                context.check_cancel()
                yield pa.RecordBatch.from_arrays(_typed(batch.columns, schema), schema=schema) if uuids else batch

    return Input(schema if uuids else reader.schema, batches)


def given_input(scan: tree.TableScan, ordinals: Sequence[int], rows: list[Row]) -> Input:
    """These columns of the table, read before."""
    return _of_rows(_types(scan, ordinals), lambda: rows)


def system_input(scan: tree.SystemScan, context: ExecutionContext) -> Input:
    """All columns of a system view."""
    return _of_rows([type_ for _, type_ in scan.columns], lambda: context.system_rows(scan.view))


def _of_rows(types: Sequence[Type], rows: Callable[[], Iterable[Row]]) -> Input:
    schema = _schema(types)

    def batches() -> Iterator[pa.RecordBatch]:
        found = list(rows())
        arrays = [arrow_array(type_, [row[number] for row in found]) for number, type_ in enumerate(types)]
        yield pa.RecordBatch.from_arrays(_typed(arrays, schema), schema=schema)

    return Input(schema, batches)


def _types(scan: tree.TableScan, ordinals: Sequence[int]) -> list[Type]:
    return [scan.table.columns[ordinal].type for ordinal in ordinals]


def _schema(types: Sequence[Type]) -> pa.Schema:
    """The schema of an input: columns c0, c1, ...; uuids as Arrow's extension, which DuckDB takes for its UUID."""
    return pa.schema(
        [
            pa.field(f"c{number}", pa.uuid() if type_.kind is Kind.UUID else arrow_type(type_))
            for number, type_ in enumerate(types)
        ]
    )


def _typed(arrays: Sequence[Any], schema: pa.Schema) -> list[Any]:
    return [
        pa.ExtensionArray.from_storage(field.type, array) if isinstance(field.type, pa.BaseExtensionType) else array
        for array, field in zip(arrays, schema, strict=True)
    ]
