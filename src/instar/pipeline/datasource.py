"""A table at a timestamp as a Spark DataFrame: `spark.read.format("instar").option("path", ...).option("table", ...)`.

`load()` fixes the snapshot (the newest one, or option `timestamp`) and the schema of that moment; every action on the
DataFrame then reads the same rows, until the watermark passes: 72000. Partitions are key ranges; each is read by one
task in short store transactions and handed to Spark as Arrow batches.

Options: path, table; timestamp (a time, or a commit timestamp); partitions (default: two per core, fewer for small
tables); columns (a comma-separated list: Spark's Python sources know no column pruning); pushdown ("true": conditions
on the leading primary key columns narrow the key range; needs spark.sql.python.filterPushdown.enabled, which Instar's
own session has set).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter, Filter, InputPartition
from pyspark.sql.types import StructType

from instar import errors
from instar.catalog.descriptors import Column, Table
from instar.pipeline.failures import in_task
from instar.pipeline.filters import narrowed
from instar.pipeline.spark_types import converter, spark_schema
from instar.pipeline.stores import Opened, identity, opened, table_at
from instar.store import key_ranges
from instar.store.header import TIMESTAMP_SHIFT, wall_timestamp
from instar.tables.rowset import TableReader
from instar.tables.view import END, View
from instar.values.datetime_texts import timestamptz_from_text

if TYPE_CHECKING:
    import pyarrow as pa

# Below this a further task costs more than it saves.
ROWS_PER_PARTITION = 50_000

OPTIONS = frozenset({"path", "table", "timestamp", "partitions", "columns", "pushdown"})

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Table)


class Source:
    """What `load()` has fixed. Pickled into every task: descriptors travel as MessagePack."""

    def __init__(self, path: str, identity: bytes, table: Table, snapshot: int) -> None:
        self.path = path
        self.identity = identity
        self.snapshot = snapshot
        self._table = _ENCODER.encode(table)

    @property
    def table(self) -> Table:
        return _DECODER.decode(self._table)


class KeyRange(InputPartition):
    """Rows with start <= encoded primary key < stop."""

    def __init__(self, start: bytes, stop: bytes) -> None:
        super().__init__((start, stop))


class InstarDataSource(DataSource):
    """`spark.dataSource.register(InstarDataSource)` makes format "instar" known."""

    _source: Source | None = None

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "instar"

    def schema(self) -> StructType:
        """The public columns, or those of option `columns`, in their order."""
        with in_task():
            self._count("partitions")  # refused here rather than when the first action comes
            return spark_schema(self._columns())

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the columns that `schema` names."""
        with in_task():
            source = self._resolved()
            ordinals = _ordinals(source.table, schema.names)
            partitions = self._count("partitions")
            if self.options.get("pushdown", "false").lower() == "true":
                return NarrowingReader(source, ordinals, partitions)
            return InstarReader(source, ordinals, partitions)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """0A000: constraints, defaults and sequences are SQL's business, and a load is published by one commit, which
        tasks that may be tried again cannot do. Export to Parquet and `instar import` it."""
        with in_task():
            raise errors.unsupported('writing a DataFrame to format "instar"')

    def _resolved(self) -> Source:
        if self._source is None:
            self._require_known()
            path, name = self._required("path"), self._required("table")
            found = opened(path)
            snapshot = self._snapshot(found)
            table = table_at(found.catalog, name, snapshot)
            self._source = Source(os.path.realpath(path), identity(path, found.store), table, snapshot)
        return self._source

    def _snapshot(self, found: Opened) -> int:
        """What option `timestamp` says: a time as of AS OF SYSTEM TIME, which is in UTC unless it names a zone, or a
        commit timestamp; never one to come, for what is committed until then would be seen by some tasks only."""
        value = self.options.get("timestamp")
        if value is None:
            first = last = 0
        elif value.isdecimal():
            first = last = int(value)
        else:
            first = max(wall_timestamp(timestamptz_from_text(value, "UTC") * 1000), 0)
            last = first + (1 << TIMESTAMP_SHIFT) - 1  # all that was committed in that millisecond
        if first > found.store.now():
            raise errors.error(errors.INVALID_PARAMETER, f'option "timestamp" lies in the future: "{value}"')
        with found.store.read() as reader:
            return reader.timestamp if value is None else min(last, reader.timestamp)

    def _require_known(self) -> None:
        unknown = sorted(name for name in self.options if name.lower() not in OPTIONS)
        if unknown:
            raise errors.error(
                errors.INVALID_PARAMETER,
                f'format "instar" has no option "{unknown[0]}"',
                hint=f"Its options are {', '.join(sorted(OPTIONS))}.",
            )

    def _columns(self) -> list[Column]:
        table = self._resolved().table
        named = self.options.get("columns")
        names = [name.strip() for name in named.split(",")] if named else _public(table)
        return [table.columns[ordinal] for ordinal in _ordinals(table, names)]

    def _required(self, name: str) -> str:
        value = self.options.get(name)
        if not value:
            raise errors.error(errors.INVALID_PARAMETER, f'option "{name}" of format "instar" is missing')
        return str(value)

    def _count(self, name: str) -> int | None:
        value = self.options.get(name)
        if value is None:
            return None
        if not value.isdecimal() or int(value) < 1:
            raise errors.error(errors.INVALID_PARAMETER, f'option "{name}" is no positive integer: "{value}"')
        return int(value)


def _public(table: Table) -> list[str]:
    return [column.name for column in table.columns if column.visible]


def _ordinals(table: Table, names: Sequence[str]) -> list[int]:
    """Where the named columns stand in `table.columns`; 42703 for one that is not there."""
    public = set(_public(table))
    ordinals = {column.name: ordinal for ordinal, column in enumerate(table.columns) if column.name in public}
    for name in names:
        if name not in ordinals:
            raise errors.error(errors.UNDEFINED_COLUMN, f'column "{name}" of table "{table.name}" does not exist')
    return [ordinals[name] for name in names]


class InstarReader(DataSourceReader):
    """Plans key ranges and reads them."""

    def __init__(self, source: Source, ordinals: list[int], partitions: int | None) -> None:
        self.source = source
        self.ordinals = ordinals
        self._partitions = partitions
        self.start = b""
        self.stop = END

    def partitions(self) -> list[InputPartition]:
        """Adjacent key ranges of about as many rows each, found without scanning the table."""
        with in_task():
            found = opened(self.source.path, self.source.identity)
            reader = TableReader(self.source.table, self.ordinals, found.layouts)
            skip = len(reader.prefix)
            parts = self._partitions or 2 * (os.cpu_count() or 1)
            split = key_ranges.split(found.store.read, reader.prefix + self.start, reader.prefix + self.stop, parts)
            ranges = split.ranges
            if self._partitions is None and split.rows < parts * ROWS_PER_PARTITION:
                fewer = split.rows // ROWS_PER_PARTITION + 1
                ranges = key_ranges.merged(ranges, fewer)
            return [KeyRange(start[skip:], stop[skip:]) for start, stop in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range at the source's snapshot; 72000 once the watermark has passed it."""
        with in_task():
            start, stop = partition.value
            found = opened(self.source.path, self.source.identity)
            table = self.source.table
            reader = TableReader(table, self.ordinals, found.layouts)
            convert = converter([table.columns[ordinal] for ordinal in self.ordinals])
            view = View(found.store, self.source.snapshot, None, found.layouts)
            token = found.store.register_snapshot(view.snapshot)
            try:
                for batch in reader.arrow(view, start, stop):
                    yield convert(batch)
            finally:
                found.store.release_snapshot(token)


class NarrowingReader(InstarReader):
    """A reader to which Spark may push filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Narrow the key range by conditions on leading key columns. Spark evaluates all filters once more."""
        with in_task():
            self.start, self.stop = narrowed(self.source.table, filters)
        return filters
