"""Large loads and exports on Spark: Parquet row groups into the unseen rowsets of a load, tables into Parquet or CSV.

A load's tasks read row groups with pyarrow and put rows and entries under the load's claim; nothing passes through the
JVM. What a task has put cannot be told from duplicates of the data, so a task is never tried twice: if one dies, the
load fails, nothing of it has been seen, and it may be begun again.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from instar import errors
from instar.catalog.descriptors import Table
from instar.pipeline.failures import TaskError, from_spark, in_task
from instar.pipeline.session import spark_session
from instar.pipeline.spark_job import SparkJob
from instar.pipeline.stores import opened
from instar.store.engine import Store
from instar.tables.layout import arrow_type
from instar.tables.load import ROWS_PER_BATCH, TableLoad
from instar.types import Kind
from instar.values import from_text

FORMAT = "instar-load"
EXPORT_FORMATS = ("parquet", "csv")


class Load(msgspec.Struct, frozen=True):
    """What tasks are told. `table` is the descriptor to be published, `timestamp` that of its rows; `constants` are the
    texts of columns that the files do not have (None: NULL), by name; `groups` are (file, row group)."""

    path: str
    uuid: bytes
    table: Table
    timestamp: int
    claim: tuple[bytes, bytes]
    constants: dict[str, str | None]
    groups: tuple[tuple[str, int], ...]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Load)


def load_parquet(
    path: str,
    store: Store,
    table: Table,
    timestamp: int,
    claim: tuple[bytes, bytes],
    files: Sequence[str],
    constants: Mapping[str, str | None],
    pulse: Callable[[], None],
) -> int:
    """Fill the rowsets of `table`, a descriptor that is not published yet, from Parquet files; returns the rows.

    The files' columns are matched by name; `constants` has a canonical text, or None for NULL, for every other column.
    `pulse` is called every half second, and ends the load by raising. 23502, 23505, 22xxx as in process; 58030 if a
    task died: begin a new load.
    """
    files = [os.path.realpath(file) for file in files]
    groups = [(file, group) for file in files for group in range(pyarrow.parquet.read_metadata(file).num_row_groups)]
    work = Load(
        path=os.path.realpath(path),
        uuid=store.uuid,
        table=table,
        timestamp=timestamp,
        claim=claim,
        constants=dict(constants),
        groups=tuple(groups),
    )
    option = base64.b64encode(_ENCODER.encode(work)).decode()
    session = spark_session()
    outcomes: list[tuple[int, str | None]] = []
    job = SparkJob(session, "load", partial(_submit, session, option, outcomes))
    job.wait(pulse)
    if job.failed is not None:
        raise from_spark(job.failed) from job.failed
    for _, failure in outcomes:
        if failure is not None:
            raise from_spark(Exception(failure))
    return sum(rows for rows, _ in outcomes)


def _submit(session: Any, option: str, outcomes: list[tuple[int, str | None]]) -> None:
    outcomes.extend(map(tuple, session.read.format(FORMAT).option("work", option).load().collect()))


class LoadSource(DataSource):
    """Option `work`: a `Load` in Base64."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return FORMAT

    def schema(self) -> str:
        """How many rows a task has put, and what it failed with: an error that is raised is tried again by Spark."""
        return "loaded bigint, failure string"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Puts the rows."""
        return LoadReader(base64.b64decode(self.options["work"]))


class LoadReader(DataSourceReader):
    """One row group per task."""

    def __init__(self, work: bytes) -> None:
        self._work = work

    def partitions(self) -> list[InputPartition]:
        """One per row group."""
        return [InputPartition(group) for group in _DECODER.decode(self._work).groups]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, str | None]]:
        """Put the rows of one row group; their number, or the failure."""
        try:
            with in_task():
                yield self._put(*partition.value), None
        except TaskError as failed:
            yield 0, str(failed)

    def _put(self, file: str, group: int) -> int:
        task = TaskContext.get()
        if task is not None and task.attemptNumber() > 0:
            raise errors.error(errors.IO_ERROR, "a task of the load died", hint="Begin the load again.")
        work = _DECODER.decode(self._work)
        store = opened(work.path, work.uuid).store
        load = _SharedLoad(work.table, work.timestamp)
        rows = 0
        with pyarrow.parquet.ParquetFile(file) as source:
            for batch in source.iter_batches(ROWS_PER_BATCH, row_groups=[group]):
                store.background(load.steps(_complete(work, batch)), claim=work.claim)
                rows += batch.num_rows
        return rows


class _SharedLoad(TableLoad):
    """A load whose rowsets other tasks fill too: keys in order say nothing about theirs, so every key is probed."""

    def _in_order(self, keys: list[bytes]) -> bool:
        return False


def _complete(work: Load, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with a column per column of the table, in order and in its Arrow type."""
    arrays = []
    for column in work.table.columns:
        target: Any = arrow_type(column.type)
        if column.name in batch.schema.names:
            found = batch.column(column.name)
            arrays.append(found if found.type == target else found.cast(target))
            continue
        text = work.constants[column.name]
        if text is None:
            arrays.append(pa.array([None] * batch.num_rows, target))
            continue
        plain = column.type.kind is Kind.NUMERIC and column.type.precision is None
        value = text if plain else from_text(column.type, text)
        arrays.append(pa.repeat(pa.scalar(value, target), batch.num_rows))
    fields = [pa.field(column.name, array.type) for column, array in zip(work.table.columns, arrays, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def export(path: str, table: str, target: str, file_format: str, *, timestamp: int | None = None) -> None:
    """Write a table, as of `timestamp` or now, into directory `target`: a Parquet or CSV file per key range.

    CSV has headers. 0A000 for other formats; 58030 if the directory is there already.
    """
    if file_format not in EXPORT_FORMATS:
        raise errors.unsupported(f'exporting to format "{file_format}"')
    source = spark_session().read.format("instar").option("path", path).option("table", table)
    if timestamp is not None:
        source = source.option("timestamp", str(timestamp))
    try:
        writer = source.load().write.option("header", "true")
        writer.format(file_format).save(os.path.realpath(target))
    except Exception as failed:
        raise from_spark(failed) from failed
