"""The validation of a pending constraint on Spark: tasks examine key ranges of the table as it stands, and hand over
what they found (schemachange/validate.py says what, and why no snapshot is needed).

CHECK and NOT NULL are filters. A foreign key is an anti-join (reference_join.py), with the same checkpoints and
findings.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from instar.pipeline.arrow_tasks import frame_of
from instar.pipeline.importable import imported, name_of
from instar.pipeline.runs import Todo, beat, write_run
from instar.pipeline.stores import identity, opened, require_shared
from instar.schemachange.elements import Element
from instar.schemachange.job_records import Checkpoint
from instar.schemachange.tasks import NAMED_ROWS, planned, record
from instar.schemachange.validate import Offender, Validation
from instar.store import key_ranges

# A range of so many rows is examined in about a second, which is what a kill costs at most.
ROWS_PER_RANGE = 100_000
MAX_RANGES = 512


class Work(msgspec.Struct, frozen=True):
    """What tasks are told. `ranges`: a task each; `runs`: the directory that their findings are written into."""

    path: str
    runs: str
    identity: bytes
    element: Element
    compile_check: str
    job: int
    stage: int
    place: int
    claim: tuple[bytes, bytes]
    ranges: tuple[Todo, ...]

    def validation(self) -> Validation:
        """The validation in a task's own process."""
        found = opened(self.path, self.identity)
        return Validation(
            found.store,
            found.catalog,
            self.element,
            imported(self.compile_check),
            job=self.job,
            stage=self.stage,
            claim=self.claim,
            rows=0,
            place=self.place,
        )


class Finding(msgspec.Struct, frozen=True, array_like=True):
    """The run of a range: how many rows it has, how many of them violate the constraint, and the first of those."""

    rows: int
    violations: int
    offenders: list[Offender]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Work)
_FINDINGS = msgspec.msgpack.Decoder(Finding)


def write_finding(runs: Path, todo: Todo, finding: Finding) -> None:
    """Write the run of a range."""
    encoded = _ENCODER.encode(finding)
    write_run(runs, todo, lambda file: file.write(encoded))


class SparkValidation:
    """One validation, cut up for Spark. Ranges with violations are not recorded as done, so that whoever resumes meets
    them again."""

    need = 0

    def __init__(self, path: str, task: Validation) -> None:
        self.path = path
        self.task = task
        self._found: dict[int, Finding] = {}

    def ranges(self) -> list[Checkpoint]:
        """The ranges of the table, with what is done of each: those of an earlier attempt, or new ones, recorded."""
        task = self.task
        found = planned(task)
        if found:
            return found
        parts = min(max(task.rows // ROWS_PER_RANGE, 2 * (os.cpu_count() or 1)), MAX_RANGES)
        split = key_ranges.split(task.store.read, task.start, task.stop, parts).ranges
        made = [Checkpoint(start, stop, start, 0) for start, stop in split]
        record(task, made)
        return made

    def submit(self, session: Any, todo: tuple[Todo, ...], runs: Path) -> None:
        """Run the Spark job to its end."""
        told = _ENCODER.encode(self.work(todo, runs))
        frame_of(session, examine, told, len(todo), "nothing int").collect()

    def work(self, todo: tuple[Todo, ...], runs: Path) -> Work:
        """What tasks are told of the ranges that are not done."""
        task = self.task
        return Work(
            path=self.path,
            runs=str(runs),
            identity=identity(self.path, task.store),
            element=task.element,
            compile_check=name_of(task.compile_check),
            job=task.job,
            stage=task.stage,
            place=task.place,
            claim=task.claim,
            ranges=todo,
        )

    def put(self, todo: Todo, run: Path, between: Callable[[], None]) -> None:
        """Record what was found in a range."""
        between()
        task = self.task
        finding = self._found[todo.number] = _FINDINGS.decode(run.read_bytes())
        done = not finding.violations
        position = todo.stop if done else todo.start
        at = Checkpoint(todo.start, todo.stop, position, finding.rows, done)
        task.store.background([task.checkpoint(todo.number, at)], claim=task.claim)

    def tell(self, runs: Path, taken: int) -> None:
        """Ranges are examined one by one."""
        self.task.doing = "Spark examines rows"

    def finish(self) -> None:
        """Raises what the violations are, if there are any."""
        found = [self._found[number] for number in sorted(self._found) if self._found[number].violations]
        if found:
            offenders = [offender for finding in found for offender in finding.offenders]
            raise self.task.problem(sum(finding.violations for finding in found), offenders)


def examine(told: bytes, place: int) -> Iterator[pa.RecordBatch]:
    """Examine one range, and write its run: nothing else comes of it."""
    work = _DECODER.decode(told)
    task = work.validation()
    require_shared(work.runs)
    todo = work.ranges[place]
    rows = violations = 0
    offenders: list[Offender] = []
    for examined in task.examine(todo.start, todo.stop):
        rows += examined.rows
        violations += examined.violations
        offenders += examined.offenders[: NAMED_ROWS - len(offenders)]
        beat(Path(work.runs))
    write_finding(Path(work.runs), todo, Finding(rows, violations, offenders))
    yield from ()
