"""The backfill of an index on Spark, from the side of the process that runs the job.

Map tasks read key ranges of the table as it is now and derive entries; Spark brings the entries into ranges of the
index and sorts each into a run. This process puts each run in small gated batches. Writes in the order of the index
cost the store least, and a range is a unit of progress: each has a checkpoint, written in the same batch as the entries
it speaks of. An entry that stands is left alone, so what is done twice is harmless.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from instar.pipeline.arrow_tasks import frame_of, hand_over
from instar.pipeline.entries import COLUMNS, KEY, RANGE, Work, put_run, read_entries, write_runs
from instar.pipeline.runs import Todo, rows_read
from instar.pipeline.stores import identity
from instar.schemachange.job_records import Checkpoint
from instar.schemachange.loading import LoadedIndex
from instar.schemachange.reorganize import Backfill
from instar.schemachange.tasks import planned, record
from instar.store import key_ranges
from instar.store.engine import prefix_end, rowset_prefix

# A range of this many entries is written in a few seconds, which is what a kill costs at most.
ENTRIES_PER_RANGE = 100_000
MAX_RANGES = 512
# An entry on its way: a key of full length, with what goes along.
MAX_ENTRY_BYTES = 640
# Where index keys are looked at to cut the index into ranges: so many places of the table, so many rows in each.
SAMPLED_PLACES = 256
SAMPLED_ROWS = 16


class SparkBackfill:
    """One backfill, cut into ranges of its indexes."""

    def __init__(self, path: str, task: Backfill) -> None:
        self.need = task.rows * MAX_ENTRY_BYTES
        self._path = path
        self._task = task
        self._derived = 0  # the timestamp that entries are derived at, or later
        task.rows_read = 0

    def ranges(self) -> list[Checkpoint]:
        """The ranges of the indexes, with what is done of each: those of an earlier attempt, or new ones, recorded."""
        self._derived = self._task.follow()
        found = planned(self._task)
        if found:
            return found
        cuts = _cuts(self._task)
        made = []
        for prefix in sorted(rowset_prefix(index.rowset) for index in self._task.indexes):
            bounds = [prefix, *(cut for cut in cuts if cut.startswith(prefix)), prefix_end(prefix)]
            made += [Checkpoint(start, stop, start, 0) for start, stop in pairwise(bounds)]
        record(self._task, made)
        return made

    def submit(self, session: Any, todo: tuple[Todo, ...], runs: Path) -> None:
        """Derive, bring into ranges and order, write runs."""
        work = self._work(todo, runs)
        told = work.encoded()
        entries = frame_of(session, read_entries, told, len(work.rows), COLUMNS)
        hand_over(entries.repartitionById(len(todo), RANGE).sortWithinPartitions(KEY), write_runs, told)

    def put(self, todo: Todo, run: Path, between: Callable[[], None]) -> None:
        """Put the entries of a run."""
        put_run(self._task, todo, run, self._derived, between)

    def tell(self, runs: Path, taken: int) -> None:
        """First all rows are read, then entries are put. What others change meanwhile is learnt bit by bit."""
        task = self._task
        task.follow()
        task.rows_read = rows_read(runs)
        reads = task.rows_read < task.rows and not taken
        task.doing = f"Spark reads rows, {task.rows_read:,} so far" if reads else "entries are sorted and put"

    def finish(self) -> None:
        """Mark ranges done that no row fell into."""
        current = planned(self._task)
        record(self._task, [Checkpoint(found.start, found.stop, found.stop, found.rows, True) for found in current])

    def _work(self, todo: tuple[Todo, ...], runs: Path) -> Work:
        task = self._task
        parts = max(2 * (os.cpu_count() or 1), min(task.rows // ENTRIES_PER_RANGE, MAX_RANGES))
        return Work(
            path=self._path,
            runs=str(runs),
            identity=identity(self._path, task.store),
            table=task.table,
            indexes=task.indexes,
            job=task.job,
            stage=task.stage,
            place=task.place,
            claim=task.claim,
            rows=tuple(key_ranges.split(task.store.read, task.start, task.stop, parts).ranges),
            entries=todo,
            unseen=isinstance(task, LoadedIndex),
        )


def _cuts(backfill: Backfill) -> list[bytes]:
    """Entry keys that cut the indexes into ranges of about as many entries, from a sample of the table's rows."""
    places = key_ranges.split(backfill.store.read, backfill.start, backfill.stop, SAMPLED_PLACES)
    wanted = min(max(max(backfill.rows, 1) // ENTRIES_PER_RANGE, 2 * (os.cpu_count() or 1)), MAX_RANGES)
    sample: list[bytes] = []
    for start, stop in places.ranges:
        with backfill.read_at_rest() as reader:
            keys, stored = backfill.read_rows(reader, start, stop, SAMPLED_ROWS)
        sample += [entry.key for entry in backfill.entries(keys, stored)]
    sample.sort()
    cuts = {sample[len(sample) * part // wanted] for part in range(1, wanted)} if sample else set()
    return sorted(cuts)
