"""Jobs of a database that run in the statement's own call, with a hook between any two steps of theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest

from instar.database import Database
from instar.schemachange import populate
from instar.schemachange.executor import Executor
from instar.schemachange.job_records import Checkpoint, Job
from instar.schemachange.jobs import Held
from instar.schemachange.reorganize import InProcess
from instar.schemachange.tasks import Reorganizer, Step, Task
from instar.sql.checks import compile_check
from instar.sql.defaults import Defaults
from instar.worker.work import replanner

# Told where the job is: "stage n" (about to be published), "work" (about to begin), "read" (a batch has been read and
# derived, and not put yet), "put".
Hook = Callable[[str], object]


class _Hooked(Reorganizer):
    def __init__(self, hook: Hook) -> None:
        self._hook = hook

    def run(self, task: Task, pulse: Callable[[], None]) -> None:
        batches = task.batches

        def hooked(at: Checkpoint) -> Iterator[tuple[Iterable[Step], Checkpoint]]:
            for steps, reached in batches(at):
                made = list(steps)
                self._hook("read")
                yield made, reached
                self._hook("put")

        self._hook("work")
        task.batches = hooked  # type: ignore[method-assign]  # of this one task
        InProcess().run(task, pulse)


class _Stepping(Executor):
    hook: Hook

    def _publish(self, job: Job, held: Held) -> Job:
        if job.stage < len(job.stages):
            self.hook(f"stage {job.stage + 1}")
        return super()._publish(job, held)


def hook_jobs(monkeypatch: pytest.MonkeyPatch, hook: Hook, *, batch_rows: int = 2) -> None:
    """From now on jobs run in the call of their statement, in batches of so many rows, and call `hook`."""

    def run_job(database: Database, job: int, stopping: Callable[[], bool]) -> None:
        executor = _Stepping(
            database.store,
            database.catalog,
            database.ids,
            database.clock,
            b"a test",
            lambda task: _Hooked(hook),
            compile_check,
            replanner(database.store, database.clock),
            Defaults(database.sequences),
            stopping=stopping,
        )
        executor.hook = hook
        executor.run(job)

    monkeypatch.setattr(Database, "run_job", run_job)
    monkeypatch.setattr(populate, "BATCH_ROWS", batch_rows)
