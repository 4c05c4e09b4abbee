"""A stage's work on the data: tasks, their checkpoints, and the `Reorganizer` that runs them.

A task walks the *current* keys of a table in key ranges, and each range has a checkpoint: it can stop anywhere and
begin again, in this process or another. What a task does with the rows is its subclass' business (reorganize.py,
populate.py, propagate.py, rekey.py, validate.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from instar import errors
from instar.catalog.descriptors import Layout, Table
from instar.catalog.layouts import decode_layout, layout_key
from instar.clock import SystemClock
from instar.schemachange.breath import Breath
from instar.schemachange.job_records import Checkpoint, checkpoint_key, decode_checkpoint, encode_checkpoint
from instar.schemachange.jobs import Jobs
from instar.schemachange.progress import passed
from instar.store.engine import ROW_HEADER, ROW_TOMBSTONE, Reader, Section, Store, View, prefix_end, rowset_prefix
from instar.store.pace import Pace

# Rows read, derived and checkpointed together.
BATCH_ROWS = 4_096
# So many offending rows are named by an error.
NAMED_ROWS = 10
# The urgency of work that nobody waits for: it makes four times as long pauses as others beside foreground commits.
AT_LEISURE = 0.25
# The urgency of what follows the log at a priority below 0, which clients are not to notice: pauses and rests are twice
# as long again. Beside a million rows clients lost 2.5 to 3 hundredths of their throughput to work at leisure.
IN_BACKGROUND = 0.125
# And its rests are so many times as long as others': what clients lose beside a join or split is a quarter to a half of
# the share of a processor that it takes (docs/benchmarks-history.md).
RESTS_AT_LEISURE = 2.5
# Key ranges that one work of a stage may have: the checkpoints of its other works are numbered beside them.
RANGES_PER_WORK = 1 << 16
# The number of the first range of a plan; 0 is that of whoever works without one.
FIRST_NUMBER = 1

Step = Callable[[Section], None]

_HEADER_BYTES = ROW_HEADER.size
_HEADER = np.dtype([("timestamp", "<u8"), ("sequence", "<u4"), ("tag", "<u4")])


class Task(ABC):
    """Work of one job on the rows of one table. `rows`: an estimate; `place`: which work of its stage it is.
    `breathes`: beside commits it is done in short pieces, and one may be made before the one before it is put.
    `gathers`: it rests between these itself, and its batches are not small."""

    breathes = True
    gathers = False
    rests = 1.0  # so many times as long as other work's

    def __init__(
        self, store: Store, table: Table, *, job: int, stage: int, claim: tuple[bytes, bytes], rows: int, place: int = 0
    ) -> None:
        self.store = store
        self.table = table
        self.job = job
        self.stage = stage
        self.claim = claim
        self.rows = rows
        self.place = place
        # How fast; with which rests from computing, if any; what the work is at, in words; how many rows are read,
        # where all are before anything is put.
        self.pace: Pace | None = None
        self.breath: Breath | None = None
        self.urgency = 1.0  # of its pace, at first
        self.doing = ""
        self.rows_read: int | None = None
        self.start = rowset_prefix(table.rowset)
        self.stop = prefix_end(self.start)
        self._layouts = {table.layout.id: table.layout}

    def heed(self) -> None:  # noqa: B027 - what most work does is nothing
        """As in `pulse.Doing`. Most work makes the same pauses at any priority."""

    @property
    def rows_to_read(self) -> int:
        """About how many rows there are to be read: each once, whatever is made of it."""
        return self.rows

    def passed(self, ranges: Sequence[Checkpoint]) -> tuple[int, float]:
        """(rows, share): what is done of the task's key ranges, and about which share of its rows that is."""
        return passed(self.read_at_rest, ranges)

    def read_at_rest(self) -> Reader:
        """A read, after a rest from what was computed for those before it."""
        self.rest()
        return self.store.read()

    def together(self, most: int) -> int:
        """How many rows are put on record together: `most`, or as many as by its pace."""
        return most if self.pace is None else self.pace.most_rows(most)

    def at_once(self, most: int) -> int:
        """How many rows the batch that begins now has: those that are put on record together, or as many as a piece of
        work beside commits has."""
        rows = self.together(most)
        return rows if self.breath is None else self.breath.piece(rows)

    def rest(self, *, read: bool = False) -> None:
        """Where it breathes, rest from what was computed. `read`: that was for the rows of a batch."""
        if self.breath is not None:
            # That it makes longer pauses at the gate than others does not make its rests longer.
            factor = 1.0 if self.pace is None else self.pace.factor * min(self.pace.urgency, 1.0)
            self.breath.draw(factor * self.rests, read=read)

    @abstractmethod
    def batches(self, at: Checkpoint) -> Iterator[tuple[Iterable[Step], Checkpoint]]:
        """The work on a key range of the table from checkpoint `at` on, in batches: what is to be written in gated
        steps, and the checkpoint that holds once it is. The last one is done."""

    def ranges(self, pulse: Callable[[], None]) -> Iterator[tuple[int, Checkpoint]]:
        """What is to be done in one process, one after the other: key ranges by the numbers of their checkpoints, with
        what is done of them. `pulse` as in `Reorganizer`."""
        with self.store.read() as reader:
            stored = reader.get(self.checkpoint_key(0))
        yield 0, Checkpoint(self.start, self.stop, self.start, 0) if stored is None else decode_checkpoint(stored)

    def read_rows(self, reader: View, start: bytes, stop: bytes, most: int) -> tuple[list[bytes], list[bytes]]:
        """The first `most` rows of [start, stop) as stored, tombstones too. Their layouts are known from then on, so
        that what is made of them is made when the reader is closed: as long as it is open, others write to pages that
        no processor has in its cache."""
        keys, stored = reader.batch(start, stop, most)
        for layout in layouts_of(stored):
            self.layout(layout, reader)
        return keys, stored

    def layout(self, layout: int, view: View | None = None) -> Layout:
        """A layout of the table by `view`, since a row may be in one that came into being a moment ago (rule 26). Rows
        that `read_rows` gave need no view."""
        found = self._layouts.get(layout)
        if found is None:
            assert view is not None, f"layout {layout} is that of a row which was read otherwise"
            record = view.get(layout_key(self.table.id, layout))
            if record is None:
                raise errors.error(errors.DATA_CORRUPTED, f'table "{self.table.name}" has no layout {layout}')
            found = self._layouts[layout] = decode_layout(record)
        return found

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def checkpoint_key(self, number: int) -> bytes:
        """The store key of the checkpoint of this work's key range `number`."""
        return checkpoint_key(self.job, self.stage, self.place * RANGES_PER_WORK + number)

    def checkpoint(self, number: int, checkpoint: Checkpoint) -> Step:
        """A step that records how far key range `number` is, together with what the steps before it put."""
        key = self.checkpoint_key(number)
        record = encode_checkpoint(checkpoint)

        def step(section: Section) -> None:
            stored = section.get(key)
            if stored is not None:
                before = decode_checkpoint(stored)
                if before.done or before.position > checkpoint.position:
                    return
            section.put(key, record)

        return step

    def put(self, number: int, steps: Iterable[Step], before: Checkpoint, reached: Checkpoint) -> None:
        """Run the steps of a batch under the claim, and record in the same that key range `number` stood at `before`
        and is at `reached` now."""
        counted = 0 if self.pace is None else self.pace.rows
        breathing = chain(self._breathing(steps), [self.checkpoint(number, reached)])
        self.store.background(breathing, claim=self.claim, pace=self.pace)
        if self.pace is not None:  # what steps have not counted: rows that were only read
            self.pace.rows = max(self.pace.rows, counted + reached.rows - before.rows)

    def _breathing(self, steps: Iterable[Step]) -> Iterator[Step]:
        """The steps, with rests from making them. In rests, as in the gate's pauses, it is heard what the work is told:
        many may be made before the next batch."""
        source = iter(steps)
        while True:
            if self.breath is not None:
                self.rest()
                if self.pace is not None:
                    self.pace.interrupt()
            step = next(source, None)
            if step is None:
                return
            yield step


def tags_of(stored: Sequence[bytes]) -> Any:
    """Layout ids and flags of rows as stored, from their headers: an array of 32-bit numbers."""
    return np.frombuffer(b"".join([row[:_HEADER_BYTES] for row in stored]), dtype=_HEADER)["tag"]


def layouts_of(stored: Sequence[bytes]) -> set[int]:
    """The ids of the layouts that rows as stored are in; tombstones are in none."""
    tags = tags_of(stored)
    return {*(tags[tags & ROW_TOMBSTONE == 0] >> 8).tolist()}


def planned(task: Task) -> list[Checkpoint]:
    """The checkpoints of the task's key ranges in key order; none if nobody has planned it yet."""
    found = Jobs(task.store, SystemClock()).checkpoints(task.job, task.stage)
    own = range(task.place * RANGES_PER_WORK + FIRST_NUMBER, (task.place + 1) * RANGES_PER_WORK)
    return [found[number] for number in sorted(found) if number in own]


def record(task: Task, checkpoints: list[Checkpoint]) -> None:
    """Write the checkpoints of all ranges in one batch: there is a whole plan or none."""
    steps = [task.checkpoint(number, found) for number, found in enumerate(checkpoints, FIRST_NUMBER)]

    def all_of_them(section: Section) -> None:
        for step in steps:
            step(section)

    task.store.background([all_of_them], claim=task.claim)


Made = TypeVar("Made")


class Derived(NamedTuple, Generic[Made]):
    """A batch of rows in the order of their keys: what is to be put for them, where the next batch begins, how many
    there were, and whether they were the last."""

    made: Sequence[Made]
    position: bytes
    rows: int
    done: bool


class RowTask(Task, Generic[Made]):
    """A task that derives what is to be put from each row by itself. Deriving only reads, so another process may do
    it; what it has made stands as long as the row does, and is made anew in the atomic section if the row is another by
    then."""

    @abstractmethod
    def derive(self, start: bytes, stop: bytes) -> Derived[Made]:
        """What is to be put for the rows of [start, stop), or for as many of them as make a batch."""

    @abstractmethod
    def steps(self, made: Sequence[Made]) -> Iterator[Step]:
        """Gated steps that put what was made, here or elsewhere."""

    def batches(self, at: Checkpoint) -> Iterator[tuple[Iterable[Step], Checkpoint]]:
        """As in `Task`, in the order of the table's keys."""
        while not at.done:
            found = self.derive(at.position, at.stop)
            at = Checkpoint(at.start, at.stop, found.position, at.rows + found.rows, found.done)
            yield self.steps(found.made), at


class Reorganizer(Protocol):
    """Does the work of a stage. It may stop at any point and begin again from the checkpoints."""

    def run(self, task: Task, pulse: Callable[[], None]) -> None:
        """Return when the task is complete. `pulse` is called every second or so, at least: it renews the lease and
        raises if the work is to stop. What the rows violate is raised (23505, 23514, 23503, 23502); ClaimLost if
        another took over."""
        ...
