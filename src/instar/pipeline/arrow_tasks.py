"""Spark's tasks in Python: functions that make Arrow batches, and functions that take them.

This is what `DataFrame.mapInArrow` does, which PySpark offers only where there is pandas, though it has no use for it.
Python data sources need none either, but Spark plans each with four processes, one after the other, that import PySpark
and Instar: half of the time from Spark's start to the end of a first job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from instar.pipeline.failures import in_task

if TYPE_CHECKING:
    import pyarrow as pa

Maker = Callable[[bytes, int], "Iterator[pa.RecordBatch]"]
Taker = Callable[[bytes, "Iterator[pa.RecordBatch]"], None]


def frame_of(session: Any, maker: Maker, work: bytes, places: int, columns: str) -> Any:
    """A DataFrame of what `maker`, a function of a module, makes of `work` for each of so many places, a task each."""
    return _mapped(session.range(0, places, 1, places), partial(_make, maker=maker, work=work), columns)


def hand_over(frame: Any, taker: Taker, work: bytes) -> None:
    """Have `taker`, a function of a module, take each partition of a DataFrame, a task each; returns when all are."""
    _mapped(frame, partial(_take, taker=taker, work=work), "nothing int").collect()


def _mapped(frame: Any, function: Callable[..., Any], columns: str) -> Any:
    from pyspark.sql import DataFrame
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    udf: Any = UserDefinedFunction(function, columns, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    called = udf(*(frame[name] for name in frame.columns))
    new: Any = DataFrame
    return new(frame._jdf.mapInArrow(called._jc, False, None), frame.sparkSession)


def _make(batches: Iterator[pa.RecordBatch], maker: Maker, work: bytes) -> Iterator[pa.RecordBatch]:
    """In a task: its row of the numbers of places becomes what is made of it."""
    with in_task():
        for batch in batches:
            numbers: list[Any] = batch.column(0).to_pylist()
            for place in numbers:
                yield from maker(work, place)


def _take(batches: Iterator[pa.RecordBatch], taker: Taker, work: bytes) -> Iterator[pa.RecordBatch]:
    """In a task: nothing comes of its batches."""
    with in_task():
        taker(work, batches)
        yield from ()
