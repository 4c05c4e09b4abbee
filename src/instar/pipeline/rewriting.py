"""Tasks that derive what is to be put from each row by itself (`RowTask`: population, propagation of lock timestamps,
the copy under a next primary key) on Spark: tasks derive key ranges of the table as it stands, this process puts.

Spark's tasks only read the store (runs.py says why), so they cannot take values of sequences. As one numbers the rows
of a data set: a first pass counts how many each key range needs, this process draws as many, and lends each range its
own. What the first pass has counted is enough, since no row loses its value; what is left of it when the job is killed
is lost, as is what any process has drawn and not used.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as SequenceType
from functools import partial
from io import BufferedWriter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from instar.catalog.descriptors import CoverageChange, Sequence, Table
from instar.catalog.sequences import LentNumbers, Sequences
from instar.pipeline.arrow_tasks import frame_of
from instar.pipeline.importable import imported, name_of
from instar.pipeline.runs import Todo, beat, note_read, put_batches, rows_read, write_batches, write_run
from instar.pipeline.stores import Opened, identity, opened, require_shared
from instar.schemachange.elements import Element
from instar.schemachange.job_records import Checkpoint
from instar.schemachange.populate import Populated, Population
from instar.schemachange.propagate import Propagation
from instar.schemachange.rekey import Copy, KeyBackfill
from instar.schemachange.tasks import RowTask, Step, planned, record
from instar.store import key_ranges
from instar.store.engine import Store

# A range of so many rows is derived in about a second, which is what a kill costs at most: what was put of it stays.
ROWS_PER_RANGE = 50_000
MAX_RANGES = 512
# Where the size of rows is looked at: so many places of the table, so many rows in each.
SAMPLED_PLACES = 64
SAMPLED_ROWS = 4

# The values of one sequence that are lent to one range: ranges as first, stop, increment.
Lent = list[tuple[int, int, int]]


# --- what tasks are told ---------------------------------------------------------------------------------------------


class Populate(msgspec.Struct, frozen=True, tag=True):
    """A `Population`. `defaults`: the name of the `CompileDefault` that is to be made of numbers."""

    element: Element
    defaults: str
    now: int
    zone: str

    def task(self, found: Opened, lent: Mapping[int, Lent], **common: Any) -> Population:
        """The task in a process of Spark's."""
        defaults = imported(self.defaults)(LentNumbers(lent))
        return Population(
            found.store, found.catalog, self.element, defaults, now=self.now, zone=self.zone, rows=0, **common
        )


class Propagate(msgspec.Struct, frozen=True, tag=True):
    """A `Propagation`."""

    table: Table
    change: CoverageChange

    def task(self, found: Opened, lent: Mapping[int, Lent], **common: Any) -> Propagation:
        """The task in a process of Spark's."""
        return Propagation(found.store, self.table, self.change, rows=0, **common)


class Rekey(msgspec.Struct, frozen=True, tag=True):
    """A `KeyBackfill`."""

    table: Table

    def task(self, found: Opened, lent: Mapping[int, Lent], **common: Any) -> KeyBackfill:
        """The task in a process of Spark's."""
        return KeyBackfill(found.store, self.table, rows=0, **common)


What = Populate | Propagate | Rekey


class _Form(NamedTuple):
    """What a kind of task makes: how it is made of the columns of a run, and those."""

    made: Callable[..., Any]
    columns: pa.Schema


def _form(made: Callable[..., Any], **columns: pa.DataType) -> _Form:
    return _Form(made, pa.schema(list(columns.items())))


_BINARY, _BINARIES, _OFFSETS = pa.binary(), pa.list_(pa.binary()), pa.list_(pa.int32())
_FORMS: dict[type[RowTask[Any]], _Form] = {
    Population: _form(Populated, key=_BINARY, seen=_BINARY, value=_BINARY),
    Propagation: _form(bytes, key=_BINARY),
    KeyBackfill: _form(Copy, row=_BINARY, header=_BINARY, key=_BINARY, entries=_BINARIES, offsets=_OFFSETS),
}


def _told(task: RowTask[Any]) -> What:
    """The task as others are told of it."""
    if isinstance(task, Population):
        return Populate(task.element, name_of(type(task.compile_default)), task.now, task.zone)
    if isinstance(task, Propagation):
        return Propagate(task.table, task.change)
    return Rekey(task.table)


class Work(msgspec.Struct, frozen=True):
    """`ranges`: a Spark task each; `lent`: what each range may take of each sequence, None if that is to be counted."""

    path: str
    runs: str
    identity: bytes
    what: What
    job: int
    stage: int
    place: int
    claim: tuple[bytes, bytes]
    ranges: tuple[Todo, ...]
    lent: tuple[dict[int, Lent], ...] | None

    def encoded(self) -> bytes:
        """The work as tasks are told of it."""
        return _ENCODER.encode(self)

    def task(self, place: int) -> RowTask[Any]:
        """The task in a process of Spark's, for range `place`."""
        found = opened(self.path, self.identity)
        lent = {} if self.lent is None else self.lent[place]
        common: dict[str, Any] = {"job": self.job, "stage": self.stage, "claim": self.claim, "place": self.place}
        return self.what.task(found, lent, **common)


# Of ranges that are counted: place of the range, sequence, how many of its values the range takes.
_COUNT_COLUMNS = "place int, sequence bigint, count bigint"
_COUNTS = pa.schema([pa.field("place", pa.int32()), pa.field("sequence", pa.int64()), pa.field("count", pa.int64())])

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Work)


# --- in the process that runs the job --------------------------------------------------------------------------------


class SparkRewriting:
    """One task, cut into ranges of the table's rows."""

    def __init__(self, path: str, task: RowTask[Any]) -> None:
        self._path = path
        self._task = task
        self._form = _FORMS[type(task)]
        # Two keys and the row, or in its place what of it is in the entries of each index.
        self.need = task.rows * row_bytes(task.store, task.start, task.stop) * (2 + len(task.table.indexes))
        self._counts = False

    def ranges(self) -> list[Checkpoint]:
        """The ranges of the table, with what is done of each: those of an earlier attempt, or new ones, recorded."""
        task = self._task
        found = planned(task)
        if found:
            return found
        parts = min(max(task.rows // ROWS_PER_RANGE, 2 * (os.cpu_count() or 1)), MAX_RANGES)
        split = key_ranges.split(task.store.read, task.start, task.stop, parts).ranges
        made = [Checkpoint(start, stop, start, 0) for start, stop in split or [(task.start, task.stop)]]
        record(task, made)
        return made

    def submit(self, session: Any, todo: tuple[Todo, ...], runs: Path) -> None:
        """Have the runs made; before that, where values of sequences are needed, have them counted."""
        task = self._task
        work = Work(
            path=self._path,
            runs=str(runs),
            identity=identity(self._path, task.store),
            what=_told(task),
            job=task.job,
            stage=task.stage,
            place=task.place,
            claim=task.claim,
            ranges=todo,
            lent=tuple({} for _ in todo),
        )
        sequences = task.sequences() if isinstance(task, Population) else None
        if sequences:
            self._counts = True
            counted = _collected(session, msgspec.structs.replace(work, lent=None))
            self._counts = False
            work = msgspec.structs.replace(work, lent=_lent(task.store, sequences, counted, len(todo)))
        _collected(session, work)

    def put(self, todo: Todo, run: Path, between: Callable[[], None]) -> None:
        """Put what was made of a range, batch by batch."""
        put_batches(self._task, todo, run, self._steps, between)

    def _steps(self, batch: pa.RecordBatch) -> Iterator[Step]:
        columns = [column.to_pylist() for column in batch.columns]
        return self._task.steps([self._form.made(*row) for row in zip(*columns, strict=True)])

    def tell(self, runs: Path, taken: int) -> None:
        """Ranges are read one by one, and put as they come."""
        self._task.doing = "Spark counts rows" if self._counts else f"Spark reads rows, {rows_read(runs):,} so far"

    def finish(self) -> None:
        """Each range has a run, and was done when that was put."""


def can_derive(task: RowTask[Any]) -> bool:
    """Whether Spark's tasks can derive what the task puts. They cannot where nobody knows how many values of a sequence
    that takes, as of `CASE WHEN random() < 0.5 THEN nextval('s') END`."""
    return not isinstance(task, Population) or task.sequences() is not None


def row_bytes(store: Store, start: bytes, stop: bytes) -> int:
    """How large a stored row is with its key, about, by a sample."""
    size = count = 0
    for first, last in key_ranges.split(store.read, start, stop, SAMPLED_PLACES).ranges:
        with store.read() as reader:
            keys, rows = reader.batch(first, last, SAMPLED_ROWS)
        size += sum(map(len, keys)) + sum(map(len, rows))
        count += len(keys)
    return size // max(count, 1)


def _lent(
    store: Store, sequences: dict[int, Sequence], counted: list[tuple[int, int, int]], ranges: int
) -> tuple[dict[int, Lent], ...]:
    """Draw what was counted (place of a range, sequence, values that it takes); what each range gets of each."""
    counts: Counter[tuple[int, int]] = Counter({(number, place): count for place, number, count in counted})
    lent: tuple[dict[int, Lent], ...] = tuple({} for _ in range(ranges))
    source = Sequences(store)
    try:
        for number, sequence in sequences.items():
            wanted = [counts[number, place] for place in range(ranges)]
            shares = _shares(source.next_values(sequence, sum(wanted)), wanted)
            for found, share in zip(lent, shares, strict=True):
                found[number] = share
    finally:
        source.close()
    return lent


def _shares(drawn: list[range], counts: list[int]) -> Iterator[Lent]:
    """The values that were drawn, so many for each, in their order."""
    left = drawn[::-1]
    for count in counts:
        share: Lent = []
        while count:
            part = left.pop()
            taken, rest = part[:count], part[count:]
            share.append((taken.start, taken.stop, taken.step))
            count -= len(taken)
            if rest:
                left.append(rest)
        yield share


def _collected(session: Any, work: Work) -> list[Any]:
    """Run a Spark job to its end."""
    found: list[Any] = frame_of(session, derive, work.encoded(), len(work.ranges), _COUNT_COLUMNS).collect()
    return found


# --- in Spark's tasks ------------------------------------------------------------------------------------------------


def derive(told: bytes, place: int) -> Iterator[pa.RecordBatch]:
    """Count what one range takes of sequences, or write its run."""
    work = _DECODER.decode(told)
    require_shared(work.runs)
    task = work.task(place)
    todo = work.ranges[place]
    runs = Path(work.runs)
    if work.lent is None:
        assert isinstance(task, Population)
        taken: Counter[int] = Counter()
        for found in task.count_numbers(todo.position, todo.stop):
            taken += found
            beat(runs)
        yield _batch([(place, number, count) for number, count in taken.items()], _COUNTS)
    else:
        write_run(runs, todo, partial(_write, task=task, todo=todo, runs=runs))


def _write(file: BufferedWriter, task: RowTask[Any], todo: Todo, runs: Path) -> None:
    """A run: what was made of each batch of rows."""
    columns = _FORMS[type(task)].columns
    write_batches(file, columns, _derived(task, todo, runs, columns))


def _derived(
    task: RowTask[Any], todo: Todo, runs: Path, columns: pa.Schema
) -> Iterator[tuple[pa.RecordBatch, Checkpoint]]:
    at = Checkpoint(todo.start, todo.stop, todo.position, todo.rows)
    while not at.done:
        found = task.derive(at.position, at.stop)
        at = Checkpoint(at.start, at.stop, found.position, at.rows + found.rows, found.done)
        yield _batch(found.made, columns), at
        note_read(runs, todo.start, at.rows)
        beat(runs)


def _batch(made: SequenceType[Any], columns: pa.Schema) -> pa.RecordBatch:
    rows = [(one,) if isinstance(one, bytes) else one for one in made]
    values: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in columns]
    arrays = [pa.array(column, field.type) for column, field in zip(values, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)
