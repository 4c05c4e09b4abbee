"""The two ends of an index backfill on Spark: rows to index entries, and sorted entries into runs.

Some tasks derive entries from key ranges of the table (schemachange/reorganize.py says how), others put the sorted
entries of each range into a file, its run (runs.py). The worker process itself puts them into the store.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from io import BufferedWriter
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from instar.catalog.descriptors import Index, Table
from instar.pipeline.runs import Todo, beat, note_read, write_run
from instar.pipeline.stores import opened, require_shared
from instar.schemachange.job_records import Checkpoint, decode_checkpoint
from instar.schemachange.loading import LoadedIndex
from instar.schemachange.reorganize import Backfill, Entry
from instar.schemachange.tasks import BATCH_ROWS

# Entries put between two looks at whether to go on, and so with one checkpoint: a fraction of a second's work.
PUT_ROWS = 1_024
RANGE, KEY, OFFSET, HEADER, UNIQUE = "range", "key", "offset", "header", "unique"
# Number of the entry range, entry key, offset of the primary key, header of the row, whether to probe.
COLUMNS = f"{RANGE} int, `{KEY}` binary, `{OFFSET}` int, {HEADER} binary, `{UNIQUE}` boolean"
_TYPES: list[tuple[str, pa.DataType]] = [
    (RANGE, pa.int32()),
    (KEY, pa.binary()),
    (OFFSET, pa.int32()),
    (HEADER, pa.binary()),
    (UNIQUE, pa.bool_()),
]
_ARROW = pa.schema(_TYPES)


class Work(msgspec.Struct, frozen=True):
    """A backfill as tasks are told of it. `rows` are the key ranges of the table that are read, a task each; `entries`
    the ranges of entries that are still to be written, in key order; `runs`: the directory that runs are written into;
    `unseen`: the rows are those of a load."""

    path: str
    runs: str
    identity: bytes
    table: Table
    indexes: tuple[Index, ...]
    job: int
    stage: int
    place: int
    claim: tuple[bytes, bytes]
    rows: tuple[tuple[bytes, bytes], ...]
    entries: tuple[Todo, ...]
    unseen: bool

    def encoded(self) -> bytes:
        """The work as tasks are told of it."""
        return _ENCODER.encode(self)

    def backfill(self) -> Backfill:
        """The backfill in a task's own process."""
        store = opened(self.path, self.identity).store
        kind = LoadedIndex if self.unseen else Backfill
        names = {"job": self.job, "stage": self.stage, "place": self.place}
        return kind(store, self.table, self.indexes, **names, claim=self.claim, rows=0)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Work)


def read_entries(told: bytes, place: int) -> Iterator[pa.RecordBatch]:
    """Rows as stored now to entries of a key range (rule 20: current keys, no snapshot): batches of those entries that
    belong to ranges that are not done."""
    work = _DECODER.decode(told)
    backfill = work.backfill()
    require_shared(work.runs)
    starts = [todo.start for todo in work.entries]
    start, stop = bounds = work.rows[place]
    read = 0
    while start < stop:
        with backfill.store.read() as reader:
            keys, stored = backfill.read_rows(reader, start, stop, BATCH_ROWS)
        made = backfill.entries(keys, stored)
        read += len(keys)
        note_read(Path(work.runs), bounds[0], read)
        beat(Path(work.runs))
        if made:
            yield _batch(work.entries, starts, made)
        if len(keys) < BATCH_ROWS:
            return
        start = keys[-1] + b"\x00"


def _batch(todo: tuple[Todo, ...], starts: list[bytes], made: list[Entry]) -> pa.RecordBatch:
    ranges = [bisect.bisect_right(starts, entry.key) - 1 for entry in made]
    kept = [
        (number, entry)
        for number, entry in zip(ranges, made, strict=True)
        if number >= 0 and todo[number].position <= entry.key < todo[number].stop
    ]
    columns: dict[str, list[object]] = {
        RANGE: [number for number, _ in kept],
        KEY: [entry.key for _, entry in kept],
        OFFSET: [entry.offset for _, entry in kept],
        HEADER: [entry.header for _, entry in kept],
        UNIQUE: [entry.unique for _, entry in kept],
    }
    return pa.RecordBatch.from_pydict(columns, schema=_ARROW)


def write_runs(told: bytes, batches: Iterator[pa.RecordBatch]) -> None:
    """Write the entries of a task, which come sorted by range and key: a run per range."""
    work = _DECODER.decode(told)
    runs = Path(work.runs)
    for number, found in groupby(by_range(batches), key=itemgetter(0)):
        write = partial(_write_batches, directory=runs, batches=(batch for _, batch in found))
        write_run(runs, work.entries[number], write)


def _write_batches(file: BufferedWriter, directory: Path, batches: Iterable[pa.RecordBatch]) -> None:
    with pa.ipc.new_file(file, _ARROW) as sink:
        for batch in batches:
            sink.write_batch(batch)
            beat(directory)


def by_range(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The batches cut where the range changes: ranges and keys ascend together."""
    for batch in batches:
        numbers = batch.column(RANGE).to_numpy()
        cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        for begin, end in pairwise(cuts):
            if begin < end:
                yield int(numbers[begin]), batch.slice(begin, end - begin)


def put_run(backfill: Backfill, todo: Todo, run: Path, derived: int, between: Callable[[], None]) -> None:
    """Put the entries of a run into the store, in gated batches under the job's claim, a checkpoint with each batch.

    `derived`: the timestamp of the store before the first of their rows was read. `between` is called between two
    batches and may raise. What an earlier attempt has put is passed over.
    """
    position, rows = _resumed(backfill, todo)
    with pa.memory_map(str(run)) as file:
        for batch in pa.ipc.open_file(file).read_all().to_batches(max_chunksize=PUT_ROWS):
            between()
            entries = _entries(backfill, batch, position)
            if entries:
                rows += len(entries)
                position = entries[-1].key + b"\x00"
                at = Checkpoint(todo.start, todo.stop, position, rows)
                steps = [*backfill.steps(entries, derived), backfill.checkpoint(todo.number, at)]
                backfill.store.background(steps, claim=backfill.claim, pace=backfill.pace)
    done = Checkpoint(todo.start, todo.stop, todo.stop, rows, True)
    backfill.store.background([backfill.checkpoint(todo.number, done)], claim=backfill.claim)


def _entries(backfill: Backfill, batch: pa.RecordBatch, position: bytes) -> list[Entry]:
    """The entries of a batch from `position` on."""
    columns = [batch.column(name).to_pylist() for name in (KEY, OFFSET, HEADER, UNIQUE)]
    row_prefix = backfill.start
    return [
        Entry(key, offset, row_prefix + key[offset:], header, unique)
        for key, offset, header, unique in zip(*columns, strict=True)
        if key >= position
    ]


def _resumed(backfill: Backfill, todo: Todo) -> tuple[bytes, int]:
    """Where a range stands in the store: an earlier attempt of this very task may have written."""
    with backfill.store.read() as reader:
        stored = reader.get(backfill.checkpoint_key(todo.number))
    if stored is None:
        return todo.position, todo.rows
    found = decode_checkpoint(stored)
    return found.position, found.rows
