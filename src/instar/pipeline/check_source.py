"""A table's checks as a Python data source of Spark: a task per range of rows or entries, a row per problem."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Table
from instar.pipeline.failures import from_spark, in_task
from instar.pipeline.importable import imported
from instar.pipeline.row_checks import Problem, Snapshot, check_entries, check_rows
from instar.pipeline.session import spark_session
from instar.pipeline.spark_job import SparkJob
from instar.pipeline.stores import opened

FORMAT = "instar-check"


class Work(msgspec.Struct, frozen=True):
    """What tasks are told. `compile_check`: "module:function"; `ranges`: (index id, or 0 for rows, start, stop)."""

    path: str
    identity: bytes
    timestamp: int
    objects: tuple[Table, ...]
    table: int
    compile_check: str
    ranges: tuple[tuple[int, bytes, bytes], ...]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Work)


def problems(work: Work, pulse: Callable[[float], None]) -> list[Problem]:
    """Run the checks on the process's Spark session; `pulse` is told the share that is done, and may raise."""
    option = base64.b64encode(_ENCODER.encode(work)).decode()
    session = spark_session()
    found: list[Problem] = []

    def run() -> None:
        rows = session.read.format(FORMAT).option("work", option).load().collect()
        found.extend(Problem(*row) for row in rows)

    job = SparkJob(session, "check", run)
    job.wait(lambda: pulse(job.share))
    if job.failed is not None:
        raise from_spark(job.failed) from job.failed
    return found


class CheckSource(DataSource):
    """Option `work`: a `Work` in Base64."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return FORMAT

    def schema(self) -> str:
        """A `Problem`."""
        return "`table` string, object string, clause string, `key` string, message string"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Checks the ranges."""
        return CheckReader(base64.b64decode(self.options["work"]))


class CheckReader(DataSourceReader):
    """One range per task."""

    def __init__(self, work: bytes) -> None:
        self._work = work

    def partitions(self) -> list[InputPartition]:
        """One per range."""
        return [InputPartition(bounds) for bounds in _DECODER.decode(self._work).ranges]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """The problems of one range."""
        with in_task():
            work = _DECODER.decode(self._work)
            found = opened(work.path, work.identity)
            by_id = {table.id: table for table in work.objects}
            catalog = CatalogSnapshot(0, by_id, {table.name: table.id for table in work.objects})
            snapshot = Snapshot(found.store, found.layouts, work.timestamp, catalog)
            table = by_id[work.table]
            number, start, stop = partition.value
            if number:
                index = next(index for index in table.indexes if index.id == number)
                yield from map(tuple, check_entries(snapshot, table, index, start, stop))
            else:
                yield from map(tuple, check_rows(snapshot, table, imported(work.compile_check), start, stop))
