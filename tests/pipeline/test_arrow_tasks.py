"""Arrow batches enter and leave Spark, a task for each place and each partition; errors of Instar's cross it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from instar import errors
from instar.pipeline.arrow_tasks import frame_of, hand_over
from instar.pipeline.failures import from_spark

pytestmark = pytest.mark.spark

COLUMNS = "place int, `key` binary"
_FIELDS: list[tuple[str, pa.DataType]] = [("place", pa.int32()), ("key", pa.binary())]


def make(told: bytes, place: int) -> Iterator[pa.RecordBatch]:
    """Two batches for each place but the first, of which there is nothing."""
    for _ in range(2 if place else 0):
        yield pa.RecordBatch.from_pydict({"place": [place], "key": [told]}, schema=pa.schema(_FIELDS))


def take(told: bytes, batches: Iterator[pa.RecordBatch]) -> None:
    found: list[Any] = [place for batch in batches for place in batch.column("place").to_pylist()]
    if found:
        (Path(told.decode()) / str(found[0])).write_text(str(found))


def refuse(told: bytes, batches: Iterator[pa.RecordBatch]) -> None:
    for _ in batches:
        raise errors.unsupported(told.decode())


def test_each_place_is_a_task_and_each_partition_is_taken_by_one(spark: Any, tmp_path: Path) -> None:
    frame = frame_of(spark, make, b"\xff", 4, COLUMNS)
    assert frame.rdd.getNumPartitions() == 4
    assert sorted((row.place, bytes(row.key)) for row in frame.collect()) == [
        (place, b"\xff") for place in (1, 2, 3) for _ in range(2)
    ]
    hand_over(frame.repartitionById(4, "place"), take, str(tmp_path).encode())
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        str(place): f"[{place}, {place}]" for place in (1, 2, 3)
    }


def test_an_error_of_a_task_is_met_again(spark: Any) -> None:
    with pytest.raises(Exception, match=r"instar\[0A000\]") as caught:
        hand_over(frame_of(spark, make, b"", 2, COLUMNS), refuse, b"this")
    assert from_spark(caught.value).message == "this is not supported"
