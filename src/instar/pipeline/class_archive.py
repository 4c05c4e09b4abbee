"""Makes the archive of Spark's classes (session.py's `class_archive`): run as a program, once per environment.

A JVM is made to do about what jobs do, and writes down the classes that it has loaded when it ends (class data sharing
of the Java virtual machine, JEP 350). Later ones map them instead of reading, parsing and verifying twenty thousand
classes: half the processor time until the first job.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from instar.pipeline.arrow_tasks import frame_of, hand_over
from instar.pipeline.scratch import new_scratch
from instar.pipeline.session import class_archive, java_home, spark_session, stop_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS = 1_000
_COLUMNS = "number bigint, key binary"


class _Numbers(DataSource):
    """A source of Arrow batches, as what exports read."""

    @classmethod
    def name(cls) -> str:
        return "instar-numbers"

    def schema(self) -> str:
        return _COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        return _NumbersReader()


class _NumbersReader(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(2)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _make(b"", partition.value)


def _make(told: bytes, place: int) -> Iterator[pa.RecordBatch]:
    numbers = pa.array(range(_ROWS), pa.int64())
    keys = pa.array([number.to_bytes(4, "big") for number in range(_ROWS)], pa.binary())
    yield pa.RecordBatch.from_arrays([numbers, keys], names=["number", "key"])


def _take(told: bytes, batches: Iterator[pa.RecordBatch]) -> None:
    for _batch in batches:
        pass


def _exercise(session: SparkSession, directory: Path) -> None:
    """What jobs, imports and exports do, in small."""
    numbers: Any = frame_of(session, _make, b"", 2, _COLUMNS)
    ranged = numbers.selectExpr("cast(number % 4 as int) as range", "number", "key")
    hand_over(ranged.repartitionById(4, "range").sortWithinPartitions("key"), _take, b"")
    numbers.groupBy("key").count().where("count > 1").join(numbers, "key", "left_anti").count()
    session.dataSource.register(_Numbers)
    numbers = session.read.format(_Numbers.name()).load()
    for kind in ("parquet", "csv"):
        path = str(directory / kind)
        numbers.select("number").write.format(kind).save(path)
        session.read.format(kind).schema("number bigint").load(path).count()


def make() -> Path:
    """Make the archive for this environment and the Java that Spark would run on; returns where it lies.

    55000 if there is no Java; OSError where the environment cannot be written to.
    """
    archive = class_archive(java_home())
    archive.parent.mkdir(parents=True, exist_ok=True)
    partial, directory = archive.with_suffix(".partial"), new_scratch()
    try:
        session = spark_session("local[2]", "512m", archive=partial)
        try:
            _exercise(session, directory)
        finally:
            stop_session()
        partial.replace(archive)  # whole, or not there
    finally:
        partial.unlink(missing_ok=True)
        shutil.rmtree(directory, ignore_errors=True)
    return archive


if __name__ == "__main__":
    make()
