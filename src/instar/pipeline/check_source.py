"""A table's checks on Spark: a task per range of rows, entries or parents.

What a row or an entry shows by itself, and by look-ups beside it, its task says: a problem. What takes all rows is left
to Spark, on encoded key bytes: tasks hand over what each row refers to, and what stands of the parents, for an
anti-join; and what no two rows may have, for a grouping. All of it comes in one pass over the rows, at one snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from itertools import islice
from typing import Any

import msgspec
import pyarrow as pa

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Table
from instar.pipeline.arrow_tasks import frame_of
from instar.pipeline.failures import from_spark
from instar.pipeline.importable import imported
from instar.pipeline.row_checks import (
    Pair,
    Pairs,
    Part,
    Problem,
    Referenced,
    Snapshot,
    check_entries,
    check_rows,
    orphaned,
    twice,
)
from instar.pipeline.session import spark_session
from instar.pipeline.spark_job import SparkJob
from instar.pipeline.stores import opened

# How often Spark may fail for a reason that is none of Instar's before the table is left to this process.
MAX_LOSSES = 3


class Kind(IntEnum):
    """What a row is that a task hands over: a `Problem`, or bytes of a row or parent."""

    PROBLEM = 0
    REFERENCE = 1
    PARENT = 2
    UNIQUE = 3


class Work(msgspec.Struct, frozen=True):
    """What tasks are told. `compile_check`: "module:function"."""

    path: str
    identity: bytes
    timestamp: int
    objects: tuple[Table, ...]
    table: int
    compile_check: str
    parts: tuple[Part, ...]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Work)
_TEXTS = Problem._fields
_TYPES: list[tuple[str, pa.DataType]] = [
    ("kind", pa.int32()),
    ("item", pa.int32()),
    ("bytes", pa.binary()),
    ("row", pa.binary()),
    *((name, pa.string()) for name in _TEXTS),
]
_ARROW = pa.schema(_TYPES)
_COLUMNS = "kind int, item int, bytes binary, `row` binary, " + ", ".join(f"`{name}` string" for name in _TEXTS)
_BATCH = 8_192


def problems(work: Work, pulse: Callable[[float], None]) -> list[Problem]:
    """Run the checks on the process's Spark session; `pulse` is told the share that is done, and may raise. What failed
    with Spark itself is tried again: tasks only read, at one snapshot. 58030 if that helps nothing."""
    told = 0.0

    def tell(share: float) -> None:
        nonlocal told
        told = max(told, share)  # of the stages that Spark knows of, which become more
        pulse(told)

    for loss in range(MAX_LOSSES):
        found: list[Problem] = []
        failed = _attempt(work, found, tell)
        if failed is None:
            return found
        problem = from_spark(failed)
        if problem.sqlstate != errors.IO_ERROR or loss == MAX_LOSSES - 1:
            raise problem from failed
    raise AssertionError


def _attempt(work: Work, found: list[Problem], tell: Callable[[float], None]) -> BaseException | None:
    """Find the problems; returns what Spark failed of, if it did."""
    try:
        session = spark_session()
    except errors.Error as failed:
        return failed  # its JVM may have been killed while it started
    job = SparkJob(session, "check", lambda: found.extend(_found(session, work)))
    job.wait(lambda: tell(job.share))
    return job.failed


def _found(session: Any, work: Work) -> Iterator[Problem]:
    """The problems of tasks, of the join and of the grouping."""
    from pyspark import StorageLevel
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    table = next(table for table in work.objects if table.id == work.table)
    read = frame_of(session, check, _ENCODER.encode(work), len(work.parts), _COLUMNS)
    read.persist(StorageLevel.DISK_ONLY)
    try:
        yield from (Problem(*row) for row in read.where(read.kind == Kind.PROBLEM).select(*_TEXTS).collect())
        if any(part.parents for part in work.parts):
            names = {found.id: found for found in table.foreign_keys}
            sides = [read.where(read.kind == kind) for kind in (Kind.REFERENCE, Kind.PARENT)]
            children, parents = sides[0].select("item", "bytes", "row"), sides[1].select("item", "bytes")
            for item, row in children.join(parents, ["item", "bytes"], "left_anti").select("item", "row").collect():
                yield orphaned(table, names[item], bytes(row))
        if any(index.unique for index in table.indexes):
            indexes = {index.id: index for index in table.indexes}
            order = Window.partitionBy("item", "bytes").orderBy("row")
            rows = read.where(read.kind == Kind.UNIQUE).select("item", "row", f.lag("row").over(order).alias("before"))
            for item, row, before in rows.where("before IS NOT NULL").collect():
                yield twice(table, indexes[item], bytes(row), bytes(before))
    finally:
        read.unpersist()


def check(told: bytes, place: int) -> Iterator[pa.RecordBatch]:
    """What there is to say of one part."""
    work = _DECODER.decode(told)
    found = opened(work.path, work.identity)
    by_id = {table.id: table for table in work.objects}
    catalog = CatalogSnapshot.of(work.objects)
    snapshot = Snapshot(found.store, found.layouts, work.timestamp, catalog)
    yield from _checked(snapshot, by_id[work.table], work, work.parts[place])


def _checked(snapshot: Snapshot, table: Table, work: Work, part: Part) -> Iterator[pa.RecordBatch]:
    if part.parents:
        foreign_key = next(found for found in table.foreign_keys if found.id == part.item)
        for keys in Referenced(snapshot, table, foreign_key).standing(part.start, part.stop):
            yield from _batch(Kind.PARENT, [Pair(part.item, key, b"") for key in keys])
    elif part.item:
        index = next(index for index in table.indexes if index.id == part.item)
        yield from _problems(check_entries(snapshot, table, index, part.start, part.stop, None))
    else:
        pairs = Pairs()
        compile_check = imported(work.compile_check)
        for batch in check_rows(snapshot, table, compile_check, part.start, part.stop, [], pairs):
            yield from _problems(batch)
            yield from _batch(Kind.REFERENCE, pairs.references)
            yield from _batch(Kind.UNIQUE, pairs.unique)
            pairs.references.clear()
            pairs.unique.clear()


def _problems(found: Iterable[Problem]) -> Iterator[pa.RecordBatch]:
    listed = iter(found)
    while batch := list(islice(listed, _BATCH)):
        columns = [
            [int(Kind.PROBLEM)] * len(batch),
            *([None] * len(batch) for _ in range(3)),
            *zip(*batch, strict=True),
        ]
        yield _arrow(columns)


def _batch(kind: Kind, pairs: list[Pair]) -> Iterator[pa.RecordBatch]:
    if pairs:
        texts = [[None] * len(pairs)] * len(_TEXTS)
        yield _arrow([[int(kind)] * len(pairs), *(list(column) for column in zip(*pairs, strict=True)), *texts])


def _arrow(columns: list[Any]) -> pa.RecordBatch:
    """A batch of the columns; `item`: of which foreign key or index."""
    return pa.RecordBatch.from_pydict(dict(zip(_ARROW.names, columns, strict=True)), schema=_ARROW)
