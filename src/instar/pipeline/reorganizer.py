"""The backfill of an index on Spark (F1 §4.4), run by the worker process: schemachange/reorganize.py's `Reorganizer`.

Map tasks read key ranges of the table as it is now and derive entries; Spark brings the entries into ranges of the
index and sorts each into a run. This process puts each run as soon as it is there, in small gated batches under the
job's claim, while Spark goes on with the next. Writes in the order of the index cost the store least, and a range is a
unit of progress: each has a checkpoint, written in the same batch as the entries it speaks of. Whoever resumes keeps
the ranges, reads the table again, and writes what is not done; doing something twice is harmless, for an entry that
stands is left alone.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from instar import errors
from instar.clock import SystemClock
from instar.pipeline import key_ranges
from instar.pipeline.entries import FORMAT, KEY, RANGE, Heard, Todo, Work, beat, put_run, rows_read, run_path
from instar.pipeline.failures import from_spark
from instar.pipeline.scratch import new_scratch
from instar.pipeline.session import kill_session, spark_session
from instar.pipeline.spark_job import SparkJob, patiently, stands_still
from instar.schemachange.jobs import Checkpoint, Jobs
from instar.schemachange.loading import LoadedIndex
from instar.schemachange.reorganize import Backfill, InProcess
from instar.schemachange.tasks import RANGES_PER_WORK, Task
from instar.store.engine import Section, prefix_end, rowset_prefix

# A range of this many entries is written in a few seconds, which is what a kill costs at most.
ENTRIES_PER_RANGE = 100_000
MAX_RANGES = 512
# An entry on its way: a key of full length, with what goes along.
MAX_ENTRY_BYTES = 640
# Where index keys are looked at to cut the index into ranges: so many places of the table, so many rows in each.
SAMPLED_PLACES = 256
SAMPLED_ROWS = 16
# Numbers of checkpoints; 0 is the in-process reorganizer's.
FIRST_NUMBER = 1
# How often Spark may fail for a reason that is none of Instar's (a killed JVM, or a killed process that plans for it;
# killed tasks it tries again by itself) before the job is left to another reorganizer.
MAX_LOSSES = 3
# How long nothing may be heard of a Spark that starts, or of its tasks, before the job is left to another reorganizer:
# it hangs, or others keep it from the processor.
PATIENCE_SECONDS = 60.0


class SparkReorganizer:
    """Reorganizes the tables of the store at `path`, on the process's Spark session. `background`: the session, if this
    is the first to need one, takes only what others leave of the processors."""

    def __init__(self, path: str, *, background: bool = False) -> None:
        self._path = os.path.realpath(path)
        self._background = background

    def run(self, task: Task, pulse: Callable[[], None]) -> None:
        """As in `Reorganizer`. 55000 if there is no Java, 58030 if Spark does not start or fails again and again."""
        if isinstance(task, Backfill):
            self._backfill(task, pulse)
        else:
            InProcess().run(task, pulse)

    def _backfill(self, backfill: Backfill, pulse: Callable[[], None]) -> None:
        ranges = _ranges(backfill)
        for loss in range(MAX_LOSSES):
            pulse()
            if all(found.done for found in ranges):
                return
            runs = new_scratch(_need(backfill))
            try:
                failed = self._attempt(backfill, ranges, runs, pulse)
            finally:
                shutil.rmtree(runs, ignore_errors=True)  # a task that was killed with its JVM may live a moment longer
            if failed is None:
                _finish(backfill, ranges)
                return
            problem = from_spark(failed)
            if problem.sqlstate != errors.IO_ERROR:
                raise problem from failed
            if loss == MAX_LOSSES - 1:
                raise errors.error(
                    errors.IO_ERROR, f"Spark failed {MAX_LOSSES} times", detail=problem.detail
                ) from failed
            ranges = _planned(backfill)

    def _attempt(
        self, backfill: Backfill, ranges: list[Checkpoint], runs: Path, pulse: Callable[[], None]
    ) -> BaseException | None:
        """Have the runs of what is not done made, and put them; returns what Spark failed of, if it did."""
        work = self._work(backfill, ranges, runs)
        waiting = list(work.entries)

        def put_finished() -> None:
            backfill.rows_read = rows_read(runs)
            reads = backfill.rows_read < backfill.rows and len(waiting) == len(work.entries)
            backfill.doing = (
                f"Spark reads rows, {backfill.rows_read:,} so far" if reads else "entries are sorted and put"
            )
            pulse()
            for todo in [found for found in waiting if run_path(runs, found).exists()]:
                put_run(backfill, todo, run_path(runs, todo), pulse)
                run_path(runs, todo).unlink()
                waiting.remove(todo)
                beat(runs)
            if heard.seconds() > PATIENCE_SECONDS:
                kill_session()
                raise stands_still(PATIENCE_SECONDS)

        backfill.rows_read, backfill.doing = 0, "Spark starts"
        job: SparkJob = patiently(partial(self._job, work, _need(backfill)), pulse, PATIENCE_SECONDS)
        heard = Heard(runs)
        job.wait(put_finished)
        put_finished()
        return job.failed

    def _job(self, work: Work, need: int) -> SparkJob:
        session = spark_session(background=self._background, need=need if self._background else None)
        return SparkJob(session, f"job-{work.job}-{work.stage}", partial(_backfill, session, work))

    def _work(self, backfill: Backfill, ranges: list[Checkpoint], runs: Path) -> Work:
        store = backfill.store
        tasks = max(2 * (os.cpu_count() or 1), min(backfill.rows // ENTRIES_PER_RANGE, MAX_RANGES))
        rows = key_ranges.split(store.read, backfill.start, backfill.stop, tasks).ranges
        todo = [
            Todo(number, found.start, found.stop, found.position, found.rows)
            for number, found in enumerate(ranges, FIRST_NUMBER)
            if not found.done
        ]
        return Work(
            path=self._path,
            runs=str(runs),
            uuid=store.uuid,
            table=backfill.table,
            index=backfill.index,
            job=backfill.job,
            stage=backfill.stage,
            place=backfill.place,
            claim=backfill.claim,
            rows=tuple(rows),
            entries=tuple(todo),
            unseen=isinstance(backfill, LoadedIndex),
        )


def _need(backfill: Backfill) -> int:
    """How many bytes Spark sorts, and how many the runs have then, at most."""
    return backfill.rows * MAX_ENTRY_BYTES


def _backfill(session: Any, work: Work) -> None:
    """Submit the job and wait for it: derive, bring into ranges and order, write runs."""
    option = work.option()
    entries = session.read.format(FORMAT).option("work", option).load()
    ranged = entries.repartitionById(len(work.entries), RANGE).sortWithinPartitions(KEY)
    ranged.write.format(FORMAT).option("work", option).mode("append").save()


def _ranges(backfill: Backfill) -> list[Checkpoint]:
    """The ranges of the index, with what is done of each: those of an earlier attempt, or new ones, recorded."""
    planned = _planned(backfill)
    if planned:
        return planned
    prefix = rowset_prefix(backfill.index.rowset)
    bounds = [prefix, *_bounds(backfill), prefix_end(prefix)]
    made = [Checkpoint(start, stop, start, 0) for start, stop in pairwise(bounds)]
    _record(backfill, made)
    return made


def _planned(backfill: Backfill) -> list[Checkpoint]:
    """The checkpoints of this work in key order; none if nobody has planned it yet."""
    found = Jobs(backfill.store, SystemClock()).checkpoints(backfill.job, backfill.stage)
    first = backfill.place * RANGES_PER_WORK + FIRST_NUMBER
    return [found[number] for number in sorted(found) if first <= number < first - FIRST_NUMBER + RANGES_PER_WORK]


def _finish(backfill: Backfill, ranges: list[Checkpoint]) -> None:
    """Mark ranges done that no row fell into."""
    current = _planned(backfill) or ranges
    _record(backfill, [Checkpoint(found.start, found.stop, found.stop, found.rows, True) for found in current])


def _record(backfill: Backfill, checkpoints: list[Checkpoint]) -> None:
    """Write the checkpoints of all ranges in one batch: there is a whole plan or none."""
    steps = [backfill.checkpoint(number, found) for number, found in enumerate(checkpoints, FIRST_NUMBER)]

    def all_of_them(section: Section) -> None:
        for step in steps:
            step(section)

    backfill.store.background([all_of_them], claim=backfill.claim)


def _bounds(backfill: Backfill) -> list[bytes]:
    """Entry keys that cut the index into ranges of about as many entries, from a sample of the table's rows."""
    store = backfill.store
    places = key_ranges.split(store.read, backfill.start, backfill.stop, SAMPLED_PLACES)
    wanted = min(max(max(backfill.rows, 1) // ENTRIES_PER_RANGE, 2 * (os.cpu_count() or 1)), MAX_RANGES)
    sample: list[bytes] = []
    for start, stop in places.ranges:
        with store.read() as reader:
            keys, stored = reader.batch(start, stop, SAMPLED_ROWS)
            sample += [entry.key for entry in backfill.entries(reader, keys, stored)]
    sample.sort()
    cuts = {sample[len(sample) * part // wanted] for part in range(1, wanted)} if sample else set()
    return sorted(cuts)
