"""The work of a stage, as tasks on the tables as they are now."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from instar.catalog.catalog import Catalog
from instar.catalog.descriptors import MadeByGrouping, MadeByJoin, MadeBySplit, Table
from instar.catalog.descriptors import View as ViewDescriptor
from instar.catalog.sequences import Sequences
from instar.schemachange.compact import Compaction
from instar.schemachange.elements import Element, ElementKind, Phase, name_of, phase_of
from instar.schemachange.job_records import Job
from instar.schemachange.jobs import Held, Jobs
from instar.schemachange.online.conditions import counts_of, read_of
from instar.schemachange.online.followed import Followed, encode_followed, followed_key
from instar.schemachange.online.following import Following, followed_since
from instar.schemachange.online.image import Image, ImageEntries
from instar.schemachange.online.row_ids import RowIds
from instar.schemachange.online.tail import Tail
from instar.schemachange.online.transformation import Transformation, grouping_of, join_of, split_of
from instar.schemachange.populate import CompileDefault, Population
from instar.schemachange.propagate import Propagation
from instar.schemachange.rekey import KeyBackfill
from instar.schemachange.reorganize import Backfill
from instar.schemachange.stages import Reorganization, Superseded
from instar.schemachange.standing import table_of
from instar.schemachange.states import Work
from instar.schemachange.tasks import Task
from instar.schemachange.validate import CompileCheck, Validation
from instar.store import key_ranges
from instar.store.engine import Commit, Reader, Store, View, prefix_end, rowset_prefix


class Works:
    """Makes tasks for the stages of jobs."""

    def __init__(
        self,
        store: Store,
        jobs: Jobs,
        catalog: Catalog,
        compile_check: CompileCheck,
        compile_default: CompileDefault,
    ) -> None:
        self._store = store
        self._jobs = jobs
        self._catalog = catalog
        self._compile_check = compile_check
        self._compile_default = compile_default
        self._following: Following | None = None  # the newest: what it has come to know is of use again
        self._refused = 0  # how often its switch was refused in a row

    def task(self, job: Job, works: Sequence[Reorganization], place: int, held: Held) -> Task:
        """The work `place` of the job's stage, on one element, or on several indexes of one table. Superseded if the
        table is another by now."""
        work = works[0]
        element = work.element
        with self._store.read() as reader:
            table = table_of(self._catalog.at(reader), element.table)
        rows = sum(found.rows for found in works)

        def made(task: Callable[..., Task], *what: object, **how: object) -> Task:
            return task(
                self._store, *what, job=job.id, stage=job.stage, claim=held.claim, rows=rows, place=place, **how
            )

        if work.work is Work.COMPACT:
            # What was planned for another layout is wrong for this one: it may lack values that rows are to be given.
            if table.layout.id != element.id:
                raise Superseded(f'table "{table.name}" has changed meanwhile')
            edits = [edit.compacted for stage in job.stages for edit in stage.edits if edit.compacted is not None]
            if any(rowset != table.rowset for rowset, _ in edits):
                raise Superseded(f'the rows of table "{table.name}" were replaced meanwhile')
            return made(Compaction, self._catalog, table, whole=bool(edits))
        if work.work is Work.ENTRIES:
            wanted = {found.element.id for found in works}
            # The rows are there: how many the sources have says nothing of S, which may have few.
            prefix = rowset_prefix(table.rowset)
            rows = key_ranges.estimate(self._store.read, prefix, prefix_end(prefix)) * len(works)
            return made(ImageEntries, table, [index for index in table.indexes if index.id in wanted])
        for found in works:
            if phase_of(table, found.element) is not Phase.WRITE_ONLY:
                raise Superseded(f'{name_of(table, found.element)} of table "{table.name}" is no longer write-only')
        if work.work in (Work.IMAGE, Work.FOLLOW):
            return self._transforming(job, work, table, place, held)
        if work.work is Work.VALIDATE:
            return made(Validation, self._catalog, element, self._compile_check)
        if work.work is Work.PROPAGATE:
            return made(Propagation, table, next(found for found in table.coverage_changes if found.id == element.id))
        if work.work is Work.POPULATE:
            return made(Population, self._catalog, element, self._compile_default, now=job.created, zone=job.zone)
        if element.kind is ElementKind.PRIMARY_KEY:
            return made(KeyBackfill, table)
        ids = {found.element.id for found in works}
        return made(Backfill, table, [index for index in table.indexes if index.id in ids])

    # --- join and split ----------------------------------------------------------------------------------------------

    def _transforming(self, job: Job, work: Reorganization, source: Table, place: int, held: Held) -> Task:
        """The initial population of the targets of a join or split, or the log propagation, which comes after it."""
        with self._store.read() as reader:
            catalog = self._catalog.at(reader)
        assert source.transformed is not None  # it is write-only
        targets = [table_of(catalog, number) for number in source.transformed.targets]
        assert targets[0].unseen is not None
        made = targets[0].unseen.made
        sources = [table_of(catalog, number) for number in made.sources]
        if source.transformed.kept:
            sources = [read_of(found, made) for found in sources]
        if work.work is Work.IMAGE:
            _require_entries(job, targets)
            names = {"job": job.id, "stage": job.stage, "place": place, "rows": work.rows}
            return Image(self._store, sources, targets, claim=held.claim, compile_check=self._compile_check, **names)
        since = followed_since(self._jobs, job)
        assert since is not None  # the image, or more of the log, is the work before
        known = self._following
        if known is not None and (known.job, known.stage, known.claim) == (job.id, job.stage, held.claim):
            return known
        if known is not None and (known.job, known.claim, known.position) == (job.id, held.claim, since):
            known.go_on(job.stage, place)
            return known
        transformation = transformation_of(self._store, made, sources, targets, self._compile_check)
        self._refused = 0
        self._following = Following(
            self._store, transformation, job=job.id, stage=job.stage, claim=held.claim, since=since, place=place
        )
        return self._following

    def begun(self, view: ViewDescriptor) -> tuple[bytes, bytes]:
        """The record of a materialized view that is to be shown: from here on others follow the log for it."""
        assert self._following is not None  # the work of the stage before
        assert view.materialized is not None
        record = encode_followed(Followed(self._following.position))
        return followed_key(view.materialized.storage), record

    def told(self) -> str:
        """What the switch has to say of the rows that are in the targets: which the log propagation has repaired."""
        found = None if self._following is None else self._following.contradictions
        return "" if found is None else found.told()

    def analysis(self, job: Job) -> str:
        """What the last cycle of the job's log propagation came to, in words; empty if there was none."""
        if self._following is None or self._following.job != job.id or not self._following.analysis:
            return ""
        times = "once" if self._refused == 1 else f"{self._refused} times"
        put_off = f"; the switch was put off {times}, since too much had come meanwhile" if self._refused else ""
        return self._following.analysis + put_off

    def behind(self) -> None:
        """The switch was refused: too much had been committed since."""
        self._refused += 1

    def add_tail(self, request: Commit, reader: Reader) -> None:
        """Have a commit that is to show the targets apply what the log propagation has left: as of `reader`, and in its
        own atomic section what came since. Behind if that is too much."""
        assert self._following is not None  # the work of the stage before
        tail = Tail(self._following, reader, refused=self._refused)
        request.raw.extend(tail.puts)
        count = len(request.raw)

        def complete(view: View) -> None:
            request.raw[count:] = tail.complete(view)

        request.complete = complete


def _require_entries(job: Job, targets: Sequence[Table]) -> None:
    """Superseded if nothing fills the indexes of the targets: when the job was planned, the image did."""
    filled = {found.element for found in job.stages[job.stage - 1].work if found.work is Work.ENTRIES}
    for target in targets:
        if any(Element(ElementKind.INDEX, target.id, index.id) not in filled for index in target.indexes):
            raise Superseded("it was begun by a version that filled tables in another way")


def transformation_of(
    store: Store,
    made: MadeBySplit | MadeByJoin | MadeByGrouping,
    sources: Sequence[Table],
    targets: Sequence[Table],
    compile_check: CompileCheck,
) -> Transformation:
    """What brings changes of the sources to the targets."""
    if isinstance(made, MadeBySplit):
        return split_of(*sources, *targets)
    if isinstance(made, MadeByGrouping):
        return grouping_of(sources[0], targets[0], counts_of(sources[0], made, compile_check))
    r, s = sources
    return join_of(r, s, targets[0], RowIds(Sequences(store), targets[0]))
