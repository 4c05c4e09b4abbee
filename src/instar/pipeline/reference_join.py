"""The validation of a foreign key on Spark: an anti-join on encoded key bytes.

Tasks read what the rows of the child refer to, and what stands of the parent, both in the order in which they lie;
Spark leaves over what the parent has not. Those rows are candidates only, for the reads are at different moments:
tasks put each to a look-up in one short read of child and parent (schemachange/references.py has the argument).

The checkpoints are those of key ranges of the child, as for any validation. They are joined in *waves* of some millions
of rows, so that what is sorted is bounded, and a kill costs one wave.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from instar.pipeline import key_ranges
from instar.pipeline.failures import in_task
from instar.pipeline.runs import Todo, beat, note_read, noted, rows_read, run_path
from instar.pipeline.stores import require_shared
from instar.pipeline.validation import MAX_RANGES, ROWS_PER_RANGE, Finding, SparkValidation, Work, write_finding
from instar.schemachange.tasks import BATCH_ROWS, NAMED_ROWS
from instar.schemachange.validate import Offender, Validation
from instar.store.engine import prefix_end

FORMAT = "instar-references"
# Rows of the child that are joined at a time.
WAVE_ROWS = 10_000_000
# Rows of the child in a partition of the join: sorted in a second or so.
ROWS_PER_PARTITION = 250_000
# So few parents are sent to every executor, and the child is not shuffled.
BROADCAST_ROWS = 200_000
# Where the child is looked at to see how long its keys are.
SAMPLED_PLACES = 16
# What Spark adds to a pair of keys that it sorts.
PAIR_BYTES = 64

RANGE, KEY, ROW = "range", "key", "row"
_TYPES: list[tuple[str, pa.DataType]] = [(RANGE, pa.int32()), (KEY, pa.binary()), (ROW, pa.binary())]
_CHILDREN = pa.schema(_TYPES)
_PARENTS = pa.schema(_TYPES[1:2])


class Join(msgspec.Struct, frozen=True):
    """What tasks are told of a wave: the ranges of the child (`work`), and those of the parents' rowset."""

    work: Work
    parents: tuple[tuple[bytes, bytes], ...]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Join)


class SparkReferences(SparkValidation):
    """The validation of a foreign key, cut up for Spark."""

    def __init__(self, path: str, task: Validation) -> None:
        super().__init__(path, task)
        task.rows_read = 0
        start = task.reference_judge.parents
        self._parents = key_ranges.split(task.store.read, start, prefix_end(start), MAX_RANGES)
        self.need = min(task.rows, WAVE_ROWS) * _pair_bytes(task)
        self._session: Any = None
        self._ended_tasks = 0

    def submit(self, session: Any, todo: tuple[Todo, ...], runs: Path) -> None:
        """Join wave after wave; ranges of which nothing is left over are without violations."""
        self._session = session
        each = max(1, len(todo) * WAVE_ROWS // max(self.task.rows, 1))
        for first in range(0, len(todo), each):
            wave = todo[first : first + each]
            self._join(session, wave, runs)
            for done in wave:
                if not run_path(runs, done).exists():
                    write_finding(runs, done, Finding(noted(runs, done.start), 0, []))

    def _join(self, session: Any, wave: tuple[Todo, ...], runs: Path) -> None:
        ranges = key_ranges.merged(self._parents.ranges, self._parents.rows // ROWS_PER_RANGE + 1)
        join = Join(self.work(wave, runs), tuple(ranges))
        option = base64.b64encode(_ENCODER.encode(join)).decode()
        read = partial(session.read.format(FORMAT).option("work", option).option, "side")
        children, parents = read("children").load(), read("parents").load()
        if self._parents.rows <= BROADCAST_ROWS:
            parents = parents.hint("broadcast")
        else:
            partitions = min(self.task.rows, WAVE_ROWS) // ROWS_PER_PARTITION + 1
            children, parents = children.repartition(partitions, KEY), parents.repartition(partitions, KEY)
        left = children.join(parents, KEY, "left_anti").select(RANGE, ROW)
        ranged = left.repartitionById(len(wave), RANGE).sortWithinPartitions(RANGE, ROW)
        ranged.write.format(FORMAT).option("work", option).mode("append").save()

    def tell(self, runs: Path, taken: int) -> None:
        """Rows are read, then joined."""
        self.task.rows_read = rows_read(runs)
        self.task.doing = f"Spark joins rows with what they refer to, {self.task.rows_read:,} read so far"
        if self._moves():
            beat(runs)

    def _moves(self) -> bool:
        """Whether tasks have ended since it was last asked: nothing of Instar's runs while Spark sorts and joins."""
        from py4j.protocol import Py4JError

        if self._session is None:
            return False
        try:
            tracker = self._session.sparkContext.statusTracker()
            stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
        except (Py4JError, OSError):  # a Spark that has gone; the job's end will tell
            return False
        before, self._ended_tasks = self._ended_tasks, sum(stage.numCompletedTasks for stage in stages if stage)
        return self._ended_tasks != before


def _pair_bytes(task: Validation) -> int:
    """About how much a row of the child takes while it is joined."""
    longest = 0
    for start, stop in key_ranges.split(task.store.read, task.start, task.stop, SAMPLED_PLACES).ranges:
        found = next(task.references(start, stop))
        longest = max(longest, *(len(key) + len(row) for key, row in zip(found.keys, found.referring, strict=True)), 0)
    return longest + PAIR_BYTES


class ReferencesSource(DataSource):
    """Options `work`: a `Join` in Base64; `side`: which of the two is read."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return FORMAT

    def schema(self) -> str:
        """What rows refer to, or what can be referred to, as bytes."""
        return f"{RANGE} int, `{KEY}` binary, `{ROW}` binary" if self._children() else f"`{KEY}` binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads a side."""
        return ChildrenReader(self._join()) if self._children() else ParentsReader(self._join())

    def writer(self, schema: StructType, overwrite: bool) -> CandidatesWriter:
        """Judges candidates."""
        return CandidatesWriter(self._join())

    def _join(self) -> bytes:
        return base64.b64decode(self.options["work"])

    def _children(self) -> bool:
        return self.options.get("side") == "children"


class ChildrenReader(DataSourceReader):
    """What rows refer to: a range of the child per task."""

    def __init__(self, join: bytes) -> None:
        self._join = join

    def partitions(self) -> list[InputPartition]:
        """One per range."""
        return [InputPartition(place) for place in range(len(_DECODER.decode(self._join).work.ranges))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The number of the range among those of the wave, what a row refers to, the row's key."""
        with in_task():
            work = _DECODER.decode(self._join).work
            task = work.validation()
            require_shared(work.runs)
            runs, todo = Path(work.runs), work.ranges[partition.value]
            rows = 0
            for found in task.references(todo.start, todo.stop):
                rows += found.rows
                note_read(runs, todo.start, rows)
                beat(runs)
                if found.keys:
                    columns = [[partition.value] * len(found.keys), found.keys, found.referring]
                    yield pa.RecordBatch.from_pydict(dict(zip(_CHILDREN.names, columns, strict=True)), schema=_CHILDREN)


class ParentsReader(DataSourceReader):
    """What can be referred to: a range of the parents' rowset per task."""

    def __init__(self, join: bytes) -> None:
        self._join = join

    def partitions(self) -> list[InputPartition]:
        """One per range."""
        return [InputPartition(bounds) for bounds in _DECODER.decode(self._join).parents]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Keys of parents."""
        with in_task():
            work = _DECODER.decode(self._join).work
            require_shared(work.runs)
            for standing in work.validation().standing(*partition.value):
                beat(Path(work.runs))
                yield pa.RecordBatch.from_pydict({KEY: standing}, schema=_PARENTS)


class Judged(WriterCommitMessage):
    """A task is done; what it found lies in its runs."""


class CandidatesWriter(DataSourceArrowWriter):
    """Judges what the join has left over, as it stands now, and writes what it finds as runs."""

    def __init__(self, join: bytes) -> None:
        self._join = join

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Judged:  # type: ignore[override]  # as PySpark itself does
        """A run per range; candidates come in order."""
        with in_task():
            work = _DECODER.decode(self._join).work
            candidates: Iterator[tuple[Any, Any]] = (
                pair
                for batch in iterator
                for pair in zip(batch.column(RANGE).to_pylist(), batch.column(ROW).to_pylist(), strict=True)
            )
            for place, found in groupby(candidates, key=itemgetter(0)):
                _judge(work, work.ranges[place], (row for _, row in found))
            return Judged()


def _judge(work: Work, todo: Todo, candidates: Iterator[bytes]) -> None:
    """Write the finding of a range of which the join has left over those rows."""
    task, runs = work.validation(), Path(work.runs)
    violations = 0
    offenders: list[Offender] = []
    while keys := list(islice(candidates, BATCH_ROWS)):
        found = task.reexamine(keys)
        violations += found.violations
        offenders += found.offenders[: NAMED_ROWS - len(offenders)]
        beat(runs)
    write_finding(runs, todo, Finding(noted(runs, todo.start), violations, offenders))
