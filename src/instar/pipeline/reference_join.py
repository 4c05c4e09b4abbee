"""The validation of a foreign key on Spark: an anti-join on encoded key bytes.

Tasks read what the rows of the child refer to, and what stands of the parent, both in the order in which they lie;
Spark leaves over what the parent has not. Those rows are candidates only, for the reads are at different moments:
tasks put each to a look-up in one short read of child and parent (schemachange/references.py has the argument).

The checkpoints are those of key ranges of the child, as for any validation. They are joined in *waves* of some millions
of rows, so that what is sorted is bounded, and a kill costs one wave.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from instar.pipeline.arrow_tasks import frame_of, hand_over
from instar.pipeline.runs import Todo, beat, note_read, noted, rows_read, run_path
from instar.pipeline.stores import require_shared
from instar.pipeline.validation import MAX_RANGES, ROWS_PER_RANGE, Finding, SparkValidation, Work, write_finding
from instar.schemachange.tasks import BATCH_ROWS, NAMED_ROWS
from instar.schemachange.validate import Offender, Validation
from instar.store import key_ranges
from instar.store.engine import prefix_end

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
# How often Spark is asked what it has come to.
LISTEN_SECONDS = 0.5

RANGE, KEY, ROW = "range", "key", "row"
_TYPES: list[tuple[str, pa.DataType]] = [(RANGE, pa.int32()), (KEY, pa.binary()), (ROW, pa.binary())]
_CHILDREN = pa.schema(_TYPES)
_CHILD_COLUMNS = f"{RANGE} int, `{KEY}` binary, `{ROW}` binary"
_PARENTS = pa.schema(_TYPES[1:2])
_PARENT_COLUMNS = f"`{KEY}` binary"


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

    def submit(self, session: Any, todo: tuple[Todo, ...], runs: Path) -> None:
        """Join wave after wave; ranges of which nothing is left over are without violations."""
        over = threading.Event()
        threading.Thread(target=_listen, args=(session, runs, over), name="instar-listen", daemon=True).start()
        try:
            each = max(1, len(todo) * WAVE_ROWS // max(self.task.rows, 1))
            for first in range(0, len(todo), each):
                wave = todo[first : first + each]
                self._join(session, wave, runs)
                for done in wave:
                    if not run_path(runs, done).exists():
                        write_finding(runs, done, Finding(noted(runs, done.start), 0, []))
        finally:
            over.set()

    def _join(self, session: Any, wave: tuple[Todo, ...], runs: Path) -> None:
        ranges = key_ranges.merged(self._parents.ranges, self._parents.rows // ROWS_PER_RANGE + 1)
        join = Join(self.work(wave, runs), tuple(ranges))
        told = _ENCODER.encode(join)
        children = frame_of(session, read_children, told, len(wave), _CHILD_COLUMNS)
        parents = frame_of(session, read_parents, told, len(ranges), _PARENT_COLUMNS)
        if self._parents.rows <= BROADCAST_ROWS:
            parents = parents.hint("broadcast")
        else:
            partitions = min(self.task.rows, WAVE_ROWS) // ROWS_PER_PARTITION + 1
            children, parents = children.repartition(partitions, KEY), parents.repartition(partitions, KEY)
        left = children.join(parents, KEY, "left_anti").select(RANGE, ROW)
        ranged = left.repartitionById(len(wave), RANGE).sortWithinPartitions(RANGE, ROW)
        hand_over(ranged, judge, told)

    def tell(self, runs: Path, taken: int) -> None:
        """Rows are read, then joined."""
        self.task.rows_read = rows_read(runs)
        self.task.doing = f"Spark joins rows with what they refer to, {self.task.rows_read:,} read so far"


def _listen(session: Any, runs: Path, over: threading.Event) -> None:
    """Note that Spark is at work where its stages begin or tasks of theirs have ended: nothing of Instar's runs while
    it sorts and joins. A Spark that stands still never answers, so nobody else may wait for it."""
    from py4j.protocol import Py4JError

    seen: set[tuple[int, int]] = set()  # stages at work, and how many tasks of each have ended
    with contextlib.suppress(Py4JError, OSError):  # a Spark that has gone; the job's end will tell
        tracker = session.sparkContext.statusTracker()
        while not over.wait(LISTEN_SECONDS):
            stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
            before, seen = seen, {(stage.stageId, stage.numCompletedTasks) for stage in stages if stage}
            if seen - before:
                beat(runs)


def _pair_bytes(task: Validation) -> int:
    """About how much a row of the child takes while it is joined."""
    longest = 0
    for start, stop in key_ranges.split(task.store.read, task.start, task.stop, SAMPLED_PLACES).ranges:
        found = next(task.references(start, stop))
        longest = max(longest, *(len(key) + len(row) for key, row in zip(found.keys, found.referring, strict=True)), 0)
    return longest + PAIR_BYTES


def read_children(told: bytes, place: int) -> Iterator[pa.RecordBatch]:
    """Of a range of the child: its number among those of the wave, what a row refers to, the row's key."""
    work = _DECODER.decode(told).work
    task = work.validation()
    require_shared(work.runs)
    runs, todo = Path(work.runs), work.ranges[place]
    rows = 0
    for found in task.references(todo.start, todo.stop):
        rows += found.rows
        note_read(runs, todo.start, rows)
        beat(runs)
        if found.keys:
            columns: list[list[Any]] = [[place] * len(found.keys), found.keys, found.referring]
            yield pa.RecordBatch.from_pydict(dict(zip(_CHILDREN.names, columns, strict=True)), schema=_CHILDREN)


def read_parents(told: bytes, place: int) -> Iterator[pa.RecordBatch]:
    """What can be referred to: the keys of a range of the parents' rowset."""
    join = _DECODER.decode(told)
    work = join.work
    require_shared(work.runs)
    for standing in work.validation().standing(*join.parents[place]):
        beat(Path(work.runs))
        yield pa.RecordBatch.from_pydict({KEY: standing}, schema=_PARENTS)


def judge(told: bytes, batches: Iterator[pa.RecordBatch]) -> None:
    """Judge what the join has left over, which comes in order, as it stands now: a run per range."""
    work = _DECODER.decode(told).work
    candidates: Iterator[tuple[Any, Any]] = (
        pair
        for batch in batches
        for pair in zip(batch.column(RANGE).to_pylist(), batch.column(ROW).to_pylist(), strict=True)
    )
    for place, found in groupby(candidates, key=itemgetter(0)):
        _judge(work, work.ranges[place], (row for _, row in found))


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
