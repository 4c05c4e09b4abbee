"""The image of a join or split on Spark (schemachange/online/image.py): tasks read key ranges of the sources at the
snapshot and make items, Spark brings these into ranges of groups and order, and each range's items become rows of the
targets where Spark writes them: a run holds what is to be put, in the order of the targets.

Groups are encoded keys, compared by their bytes, by Spark as by Instar. What is done of a range is counted in rows from
its beginning, which come in the same order each time; so a range that was put in part is read and sorted whole again.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from instar.catalog.descriptors import Table
from instar.pipeline.arrow_tasks import frame_of, hand_over
from instar.pipeline.entries import RANGE, by_range
from instar.pipeline.importable import imported, name_of
from instar.pipeline.rewriting import row_bytes
from instar.pipeline.runs import Todo, beat, note_read, put_batches, rows_read, write_batches, write_run
from instar.pipeline.stores import identity, opened, require_shared
from instar.schemachange.job_records import Checkpoint
from instar.schemachange.online.image import Image
from instar.schemachange.online.image_rows import Item
from instar.schemachange.tasks import Step, planned, record
from instar.store import key_ranges

# A range of so many items is put in a few seconds, which is what a kill costs at most, and read by a task as quickly.
ITEMS_PER_RANGE = 100_000
ROWS_PER_READ = 100_000
MAX_READS = 512
# Rows in a batch on its way to Spark: they go whole.
ROWS_AT_ONCE = 1_024
# Where groups are looked at to cut them into ranges: so many places of the sources, so many rows in each.
SAMPLED_PLACES = 256
SAMPLED_ROWS = 16
# What an item takes beside the row's own bytes is about as much again: its group and its key. So does what becomes of
# it in a run.
_TIMES = 4

_GROUP, _SIDE, _KEY, _STORED = "group", "side", "key", "stored"
_COLUMNS = f"{RANGE} int, `{_GROUP}` binary, `{_SIDE}` int, `{_KEY}` binary, `{_STORED}` binary"
_ITEM_TYPES: list[tuple[str, pa.DataType]] = [
    (RANGE, pa.int32()),
    (_GROUP, pa.binary()),
    (_SIDE, pa.int32()),
    (_KEY, pa.binary()),
    (_STORED, pa.binary()),
]
_ITEMS = pa.schema(_ITEM_TYPES)
_ROW_TYPES: list[tuple[str, pa.DataType]] = [
    ("key", pa.binary()),
    ("value", pa.binary()),
]
_ROWS = pa.schema(_ROW_TYPES)


class Work(msgspec.Struct, frozen=True):
    """An image as tasks are told of it. `reads`: what of which source is read, a task each (its place, start, stop);
    `ranges`: the ranges of groups that are still to be put, in their order; `compile_check`: a
    function by its name."""

    path: str
    runs: str
    identity: bytes
    sources: tuple[Table, ...]
    targets: tuple[Table, ...]
    job: int
    stage: int
    place: int
    claim: tuple[bytes, bytes]
    reads: tuple[tuple[int, bytes, bytes], ...]
    ranges: tuple[Todo, ...]
    compile_check: str

    def encoded(self) -> bytes:
        """The work as tasks are told of it."""
        return _ENCODER.encode(self)

    def image(self) -> Image:
        """The task in a process of Spark's."""
        store = opened(self.path, self.identity).store
        names = {"job": self.job, "stage": self.stage, "place": self.place}
        compile_check = imported(self.compile_check)
        return Image(store, self.sources, self.targets, **names, claim=self.claim, rows=0, compile_check=compile_check)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Work)


# --- in the process that runs the job --------------------------------------------------------------------------------


class SparkImage:
    """One image, cut into ranges of its groups."""

    def __init__(self, path: str, task: Image) -> None:
        self._path = path
        self._task = task
        task.rows_read = 0
        sources = range(len(task.sources))
        self._splits = [key_ranges.split(task.store.read, *task.whole(place), MAX_READS) for place in sources]
        largest = max(row_bytes(task.store, *task.whole(place)) for place in sources)
        self.need = self._items * largest * _TIMES

    @property
    def _items(self) -> int:
        """About how many items there are: a row of a source has one per target."""
        return sum(split.rows for split in self._splits) * len(self._task.targets)

    def ranges(self) -> list[Checkpoint]:
        """The ranges of groups, with what is done of each: those of an earlier attempt, or new ones, recorded. Before
        that the snapshot is chosen."""
        self._task.snapshot()
        wanted = max(self._items // ITEMS_PER_RANGE, 2 * (os.cpu_count() or 1))
        return planned(self._task) or self._task.plan(self._sample(), wanted)

    def _sample(self) -> Iterator[bytes]:
        """Groups from all over the sources, of each as many as its share of the rows."""
        for place, start, stop in self._parted(SAMPLED_PLACES):
            for _, items in islice(self._task.items(place, start, stop, SAMPLED_ROWS), 1):
                yield from (item.group for item in items)

    def _parted(self, parts: int) -> Iterator[tuple[int, bytes, bytes]]:
        """The sources in about so many ranges of about as many rows."""
        rows = sum(split.rows for split in self._splits) or 1
        for place, split in enumerate(self._splits):
            ranges = split.ranges or [self._task.whole(place)]
            for start, stop in key_ranges.merged(ranges, max(parts * split.rows // rows, 1)):
                yield place, start, stop

    def submit(self, session: Any, todo: tuple[Todo, ...], runs: Path) -> None:
        """Make items, bring them into ranges and order, write runs."""
        task = self._task
        rows = sum(split.rows for split in self._splits)
        work = Work(
            path=self._path,
            runs=str(runs),
            identity=identity(self._path, task.store),
            sources=task.sources,
            targets=task.targets,
            job=task.job,
            stage=task.stage,
            place=task.place,
            claim=task.claim,
            reads=tuple(self._parted(max(2 * (os.cpu_count() or 1), min(rows // ROWS_PER_READ, MAX_READS)))),
            ranges=todo,
            compile_check=name_of(task.compile_check),
        )
        told = work.encoded()
        items = frame_of(session, read_items, told, len(work.reads), _COLUMNS)
        ranged = items.repartitionById(len(todo), RANGE).sortWithinPartitions(_GROUP, _SIDE, _KEY)
        hand_over(ranged, write_rows, told)

    def put(self, todo: Todo, run: Path, between: Callable[[], None]) -> None:
        """Put the rows of a run."""
        put_batches(self._task, todo, run, self._steps, between)

    def _steps(self, batch: pa.RecordBatch) -> Iterator[Step]:
        columns: list[list[Any]] = [column.to_pylist() for column in batch.columns]
        return self._task.steps(list(zip(*columns, strict=True)))

    def tell(self, runs: Path, taken: int) -> None:
        """First all rows are read, then those of the targets are put."""
        task = self._task
        task.rows_read = rows_read(runs)
        reads = task.rows_read < task.rows and not taken
        task.doing = f"Spark reads rows, {task.rows_read:,} so far" if reads else "new rows are sorted and put"

    def finish(self) -> None:
        """Mark ranges done that no item fell into."""
        current = planned(self._task)
        record(self._task, [Checkpoint(found.start, found.stop, found.stop, found.rows, True) for found in current])


# --- in Spark's tasks ------------------------------------------------------------------------------------------------


def read_items(told: bytes, place: int) -> Iterator[pa.RecordBatch]:
    """Rows of a key range of a source, at the snapshot, to items: batches of those that belong to ranges that are not
    done."""
    work = _DECODER.decode(told)
    image = work.image()
    require_shared(work.runs)
    runs = Path(work.runs)
    starts = [todo.start for todo in work.ranges]
    source, start, stop = work.reads[place]
    rows = 0
    for read, items in image.items(source, start, stop, ROWS_AT_ONCE):
        rows += read
        note_read(runs, start, rows)
        beat(runs)
        yield _batch(work.ranges, starts, items)


def _batch(todo: Sequence[Todo], starts: list[bytes], items: list[Item]) -> pa.RecordBatch:
    numbers = [bisect.bisect_right(starts, item.group) - 1 for item in items]
    kept = [
        (number, *item)
        for number, item in zip(numbers, items, strict=True)
        if number >= 0 and item.group < todo[number].stop
    ]
    columns = list(zip(*kept, strict=True)) or [()] * len(_ITEMS)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _ITEMS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ITEMS)


def write_rows(told: bytes, batches: Iterator[pa.RecordBatch]) -> None:
    """Make the rows of the items of a task, which come in order: a run per range."""
    work = _DECODER.decode(told)
    image, runs = work.image(), Path(work.runs)
    for number, found in groupby(by_range(batches), key=itemgetter(0)):
        todo = work.ranges[number]
        made = _made(image, todo, _items((batch for _, batch in found), runs), runs)
        write_run(runs, todo, partial(write_batches, schema=_ROWS, made=made))


def _items(batches: Iterable[pa.RecordBatch], runs: Path) -> Iterator[Item]:
    for batch in batches:
        beat(runs)  # many items may make one row
        yield from map(Item, *(column.to_pylist() for column in batch.columns[1:]))


def _made(image: Image, todo: Todo, items: Iterable[Item], runs: Path) -> Iterator[tuple[pa.RecordBatch, Checkpoint]]:
    """What is to be put of a range."""
    at = Checkpoint(todo.start, todo.stop, todo.position, todo.rows)
    for rows, reached in image.made(todo.number, items, at):
        columns = list(zip(*rows, strict=True)) or [()] * len(_ROWS)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _ROWS, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=_ROWS), reached
        beat(runs)
