"""The reorganizer on Spark (F1 §4.4), run by the worker process: schemachange/tasks.py's `Reorganizer`.

A task is cut into key ranges, each with a checkpoint; Spark's tasks make a run of each (runs.py), and this process
takes it as soon as it is there, under the job's claim, while Spark goes on with the next. Whoever resumes keeps the
ranges and does what is not done; doing something twice is harmless. What a run is, and what becomes of it, is the
business of `SparkBackfill` (backfill.py), `SparkValidation` (validation.py), `SparkReferences` (reference_join.py),
`SparkRewriting` (rewriting.py) and `SparkImage` (image.py).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from instar import errors
from instar.gently import loading_gently
from instar.pipeline.backfill import SparkBackfill
from instar.pipeline.failures import from_spark
from instar.pipeline.image import SparkImage
from instar.pipeline.reference_join import SparkReferences
from instar.pipeline.rewriting import SparkRewriting, can_derive
from instar.pipeline.runs import Heard, Todo, beat, left, run_path
from instar.pipeline.scratch import new_scratch
from instar.pipeline.session import kill_session, spark_session
from instar.pipeline.spark_job import SparkJob, patiently, stands_still
from instar.pipeline.turns import LONG_REST_SECONDS, REST_SECONDS, turns
from instar.pipeline.validation import SparkValidation
from instar.schemachange.elements import ElementKind
from instar.schemachange.job_records import Checkpoint
from instar.schemachange.online.image import Image
from instar.schemachange.reorganize import Backfill, InProcess
from instar.schemachange.tasks import RowTask, Task, planned
from instar.schemachange.validate import Validation

# How often Spark may fail for a reason that is none of Instar's (a killed JVM; killed tasks it tries again by itself)
# before the job is left to another reorganizer.
MAX_LOSSES = 3
# How long nothing may be heard of a Spark that starts, or of its tasks, before the job is left to another reorganizer:
# it hangs, or others keep it from the processor.
PATIENCE_SECONDS = 120.0


class Parts(Protocol):
    """A task that is cut up for Spark. `need`: how many bytes Spark sorts, and how many the runs have then, at most."""

    @property
    def need(self) -> int: ...

    def ranges(self) -> list[Checkpoint]:
        """The key ranges, with what is done of each: those of an earlier attempt, or new ones, recorded."""
        ...

    def submit(self, session: Any, todo: tuple[Todo, ...], runs: Path) -> None:
        """Have Spark make the runs of what is not done; returns when it has."""
        ...

    def put(self, todo: Todo, run: Path, between: Callable[[], None]) -> None:
        """Take the run of a range. `between` is called often, and may raise."""
        ...

    def tell(self, runs: Path, taken: int) -> None:
        """Say what the task is at, for whoever watches the job; so many runs have been taken."""
        ...

    def finish(self) -> None:
        """All runs have been taken."""
        ...


def _parts(path: str, task: Task) -> Parts | None:
    """The task cut up; None if Spark could do nothing of it."""
    if isinstance(task, Backfill):
        return SparkBackfill(path, task)
    if isinstance(task, Validation):
        return (
            SparkReferences(path, task) if task.element.kind is ElementKind.FOREIGN_KEY else SparkValidation(path, task)
        )
    if isinstance(task, Image):
        return SparkImage(path, task)
    if isinstance(task, RowTask) and can_derive(task):
        return SparkRewriting(path, task)
    return None


def _rest(task: Task) -> float:
    """For how many seconds Spark rests beside commits, by the priority and the store of now."""
    if task.pace is not None and task.pace.yields:
        return LONG_REST_SECONDS
    # Without fsync nobody waits for the disk, and idle processes are hardly in anybody's way.
    return 0.0 if task.store.synchronous == "off" else REST_SECONDS


class SparkReorganizer:
    """Reorganizes the tables of the store at `path`, on the process's Spark session. `background`: the session, if this
    is the first to need one, takes only what others leave of the processors."""

    def __init__(self, path: str, *, background: bool = False) -> None:
        self._path = os.path.realpath(path)
        self._background = background

    def run(self, task: Task, pulse: Callable[[], None]) -> None:
        """As in `Reorganizer`. 55000 if there is no Java, 58030 if Spark does not start or fails again and again."""
        parts = _parts(self._path, task)
        if parts is None:
            InProcess().run(task, pulse)
            return
        with ExitStack() as gentle:
            if self._background:
                gentle.enter_context(turns(task.store, partial(_rest, task)))
            if self._background and _rest(task):
                gentle.enter_context(loading_gently(task.store.foreground_about))
            self._run(task, parts, pulse)

    def _run(self, task: Task, parts: Parts, pulse: Callable[[], None]) -> None:
        ranges = parts.ranges()
        for loss in range(MAX_LOSSES):
            pulse()
            todo = left(ranges)
            if not todo:
                return
            runs = new_scratch(parts.need)
            try:
                failed = self._attempt(task, parts, todo, runs, pulse)
            finally:
                shutil.rmtree(runs, ignore_errors=True)  # a task that was killed with its JVM may live a moment longer
            if failed is None:
                parts.finish()
                return
            problem = from_spark(failed)
            if problem.sqlstate != errors.IO_ERROR:
                raise problem from failed
            if loss == MAX_LOSSES - 1:
                told = "\n".join(filter(None, (problem.message, problem.detail)))
                raise errors.error(errors.IO_ERROR, f"Spark failed {MAX_LOSSES} times", detail=told) from failed
            ranges = planned(task)

    def _attempt(
        self, task: Task, parts: Parts, todo: tuple[Todo, ...], runs: Path, pulse: Callable[[], None]
    ) -> BaseException | None:
        """Have the runs of what is not done made, and take them; returns what Spark failed of, if it did."""
        waiting = list(todo)

        def put_finished() -> None:
            parts.tell(runs, len(todo) - len(waiting))
            pulse()
            for part in [found for found in waiting if run_path(runs, found).exists()]:
                parts.put(part, run_path(runs, part), pulse)
                run_path(runs, part).unlink()
                waiting.remove(part)
                beat(runs)
            if heard.seconds() > PATIENCE_SECONDS:
                kill_session()
                raise stands_still(PATIENCE_SECONDS)

        def started() -> SparkJob | errors.Error:
            try:
                session = spark_session(background=self._background, need=parts.need if self._background else None)
            except errors.Error as failed:
                return failed  # its JVM may have been killed while it started
            return SparkJob(session, f"job-{task.job}-{task.stage}", partial(parts.submit, session, todo, runs))

        def starting() -> None:
            parts.tell(runs, 0)  # what others change meanwhile is learnt bit by bit
            task.doing = "Spark starts"
            pulse()

        job: SparkJob | errors.Error = patiently(started, starting, PATIENCE_SECONDS)
        if isinstance(job, errors.Error):
            return job
        heard = Heard(runs)
        # Tasks only read the store, and write runs that nobody looks for any more.
        job.wait(put_finished, at_once=True)
        put_finished()
        return job.failed
