"""What a model of a change does to rows: the work of its stages, in pieces that others come in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Check, Column, Table
from instar.schemachange.duplicates import Duplicates
from instar.schemachange.elements import ElementKind
from instar.schemachange.job_records import Checkpoint, Job
from instar.schemachange.jobs import Held, Jobs
from instar.schemachange.online.following import Following
from instar.schemachange.populate import Population
from instar.schemachange.propagate import Propagation
from instar.schemachange.rekey import KeyBackfill
from instar.schemachange.reorganize import Backfill
from instar.schemachange.stages import Reorganization
from instar.schemachange.states import Work
from instar.schemachange.tasks import Step, Task
from instar.schemachange.touched import Touched
from instar.schemachange.validate import Validation
from instar.schemachange.works import Works as RealWorks
from instar.store.engine import Section, rowset_prefix
from support.model_servers import GIVEN, Moment, Predicate

if TYPE_CHECKING:
    from support.model import Model

# What the probes of unique indexes have met: for each a key, and the rows that share it with others.
Met = tuple[tuple[str, tuple[str, ...]], ...]
JOB = 1
CLAIM = (b"\x08claim", b"the model's")
HELD = Held(JOB, CLAIM, 1)


class Piece(NamedTuple):
    """A step of a work, and what it and the others note."""

    step: Step
    duplicates: tuple[Duplicates, ...]


def _told(task: Backfill, step: Step) -> Step:
    """The step of a backfill that follows the log of the state that it is run in, and not of the one before in time."""

    def told(section: Section) -> None:
        task._touched = touched = Touched(task.table.id)
        touched._upto = touched._from = section.watermark
        step(section)

    return told


class Works:
    """The work of one change. `checks` as of `Model`."""

    def __init__(self, model: Model, checks: Mapping[str, Predicate]) -> None:
        self._model = model
        self._store = model.world.store
        self._checks = checks
        self._derived: dict[tuple[object, ...], tuple[Piece, ...]] = {}

    def derive(
        self, catalog: CatalogSnapshot, job: Job, moment: Moment, work: Reorganization, stored: Mapping[bytes, bytes]
    ) -> tuple[Piece, ...]:
        """The work as pieces that others come in between; the same objects for the same rows and entries, so that
        states meet. Of the log that is followed a piece at a time, until there are none."""
        if work.work in (Work.IMAGE, Work.ENTRIES, Work.FOLLOW):
            return self._online(catalog, job, work, stored)
        task = self._task(catalog, job, moment, work)
        at = Checkpoint(task.start, task.stop, task.start, 0)
        steps = tuple(step for batch, _at in task.batches(at) for step in batch)
        looked_at = [task.start]
        if isinstance(task, Backfill):
            looked_at += [rowset_prefix(index.rowset) for index in task.indexes]
            steps = tuple(_told(task, step) for step in steps)
        found = frozenset(pair for pair in stored.items() if pair[0].startswith(tuple(looked_at)))
        noted: tuple[Duplicates, ...] = ()
        if isinstance(task, Backfill):
            noted = tuple(found.duplicates for found in task._derivations.values())
        elif isinstance(task, KeyBackfill):
            noted = (task._duplicates,)
        pieces = tuple(Piece(step, noted) for step in steps)
        return self._derived.setdefault((moment, work, found, self._model.world.now()), pieces)

    def _online(
        self, catalog: CatalogSnapshot, job: Job, work: Reorganization, stored: Mapping[bytes, bytes]
    ) -> tuple[Piece, ...]:
        """As `derive`, of what fills the targets of a join, split or grouping."""
        task = self._real(catalog).task(job, [work], job.stages[job.stage - 1].work.index(work), HELD)
        steps: list[Step] = []
        for number, at in task.ranges(lambda: None):
            for batch, reached in task.batches(at):
                made = list(batch)
                if made or reached != at or task.checkpoint_key(number) not in stored:
                    steps += [*made, task.checkpoint(number, reached)]
                    if isinstance(task, Following):
                        break  # what comes next is made of what is stored then
        return self._same(job, work, steps)

    def _same(self, job: Job, work: Reorganization, steps: Sequence[Step]) -> tuple[Piece, ...]:
        """The steps as pieces: the same objects for steps that put the same."""
        section = self._store._begin()  # type: ignore[attr-defined] # the memory engine
        for step in steps:
            step(section)
        changes = frozenset(section._changes.items())
        section.abort()
        return self._derived.setdefault((job.stage, work, changes), tuple(Piece(step, ()) for step in steps))

    def _real(self, catalog: CatalogSnapshot) -> RealWorks:
        known: Any = _Known(catalog)
        world = self._model.world
        return RealWorks(self._store, Jobs(self._store, world.clock), known, self.compile, _Given())

    def following(self, catalog: CatalogSnapshot, job: Job) -> RealWorks:
        """The works of a job that is where it is on record to have followed the log to."""
        works, done = self._real(catalog), job.stages[job.stage - 1].work
        place = next(place for place, work in enumerate(done) if work.work is Work.FOLLOW)
        task = works.task(job, [done[place]], place, HELD)
        assert isinstance(task, Following)
        ((_, task.at),) = task.ranges(lambda: None)
        return works

    def put(self, piece: Piece, met: Met) -> Met:
        """Run a piece after others that have met so much; what they all have met then."""
        for noted, (key, rows) in zip(piece.duplicates, met or [("", ())] * len(piece.duplicates), strict=True):
            noted._key, noted._rows = key, dict.fromkeys(rows)
        self._store.background([piece.step], claim=CLAIM)
        return tuple((noted._key, tuple(noted._rows)) for noted in piece.duplicates)

    def _task(self, catalog: CatalogSnapshot, job: Job, moment: Moment, work: Reorganization) -> Task:
        table = catalog.table(work.element.table)
        given: dict[str, Any] = {"job": JOB, "stage": moment.stage, "claim": CLAIM, "rows": 2}
        known: Any = _Known(catalog)
        if work.work is Work.COMPACT:
            return self._real(catalog).task(job, [work], 0, HELD)
        if work.work is Work.VALIDATE:
            return Validation(self._store, known, work.element, self.compile, **given)
        if work.work is Work.PROPAGATE:
            change = next(found for found in table.coverage_changes if found.id == work.element.id)
            return Propagation(self._store, table, change, **given)
        if work.work is Work.POPULATE:
            given |= {"now": 0, "zone": "UTC"}
            return Population(self._store, known, work.element, _Given(), **given)
        if work.element.kind is ElementKind.PRIMARY_KEY:
            return KeyBackfill(self._store, table, **given)
        index = next(found for found in table.indexes if found.id == work.element.id)
        return Backfill(self._store, table, [index], **given)

    def compile(self, table: Table, check: Check) -> Callable[[tuple[object, ...]], object]:
        """The predicate of a CHECK."""
        return self._checks[check.name]


class _Given:
    """The default of a column that is the same in every row, though nobody says so."""

    def __call__(self, column: Column, catalog: CatalogSnapshot, now: int, zone: str) -> Callable[[], object]:
        return lambda: GIVEN

    def draws(self, column: Column, catalog: CatalogSnapshot) -> tuple[int, ...]:
        return ()


class _Known:
    """A catalog whose one version is known."""

    def __init__(self, catalog: CatalogSnapshot) -> None:
        self._catalog = catalog

    def at(self, _reader: object) -> CatalogSnapshot:
        return self._catalog
