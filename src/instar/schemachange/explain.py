"""EXPLAIN (DDL): the stages of a plan as rows, simulated on the descriptors of now; nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Object, Step, StepKind, Table, View, is_seen
from instar.schemachange import key_elements, lock_elements
from instar.schemachange.elements import ElementKind, Phase, name_of, phases, yielding
from instar.schemachange.job_records import Job
from instar.schemachange.publishing import advance
from instar.schemachange.reorganize import SMALL_ROWS
from instar.schemachange.stages import Plan, Publication, Published, Reorganization, Stage
from instar.schemachange.states import Work

COLUMNS = ("stage", "change", "version", "floor", "work", "revertible", "waits for")

# What the commit of a switch takes by itself, and for each row of the targets, a tenth of them computed in the atomic
# section: as `make bench BENCH=join_and_split` has measured it of joins, which take longer than splits.
_SWITCH_MS, _ROW_MS = 0.2, 0.008
_FREED = "old snapshots, to free {} rowset{}"


Waits = Callable[[Publication, int], str]
# Whether a job whose largest piece of work is of about so many rows is done in the call of its statement.
InCall = Callable[[int], bool]


class Row(NamedTuple):
    """One line of EXPLAIN (DDL). `version`: before -> after; `floor`: what f becomes at least, empty if it stays."""

    stage: int
    change: str
    version: str
    floor: str
    work: str
    revertible: str
    waits_for: str


def explain(
    plan: Plan,
    catalog: CatalogSnapshot,
    waits: Waits = lambda publication, number: "",
    in_call: InCall = lambda rows: rows <= SMALL_ROWS,
) -> list[Row]:
    """The rows of a plan that was made on `catalog`. `waits`: whom the stage of that number would wait for now."""
    largest = max((work.rows for stage in plan.stages for work in stage.work), default=0)
    done_by = "in the call" if in_call(largest) else "by the worker"
    rows: list[Row] = []
    for number, stage in enumerate(plan.stages, 1):
        publication = plan.first if number == 1 else advance(catalog.by_id, stage, plan.statement)
        gone = [found.id for found in publication.dropped]
        catalog = catalog.changed([published.after for published in publication.published], gone)
        awaited = "" if stage.grace == 0 else waits(publication, number)
        rows.extend(_stage(number, stage, publication, catalog, awaited, done_by))
    return rows


def queued(first: Job) -> Row:
    """The row of a statement that waits for another job."""
    return Row(1, "planned when that job has ended", "", "", "", "yes", f"job {first.id} ({first.statement})")


def _stage(
    number: int, stage: Stage, publication: Publication, catalog: CatalogSnapshot, awaited: str, done_by: str
) -> Iterator[Row]:
    revertible = "yes" if stage.revertible else "no"
    count = len(publication.freed)
    freed = _FREED.format(count, "" if count == 1 else "s") if count else ""
    waits = "; ".join(filter(None, (awaited, freed)))
    for dropped in publication.dropped:
        what = "dropped" if is_seen(dropped) else "goes unseen"
        yield Row(number, f"{_named(dropped)}: {what}", f"{dropped.version} ->", "", "", revertible, waits)
        waits = ""
    paused = False
    for published in publication.published:
        after = published.after
        version = (
            f"-> {after.version}" if published.before is None else f"{published.before.version} -> {after.version}"
        )
        floor = "" if published.floor == "keep" else str(published.floor)
        pause = "" if paused else _pause(published)  # one for all that are seen from now on
        paused = paused or bool(pause)
        for change in _changes(published):
            yield Row(number, f"{_named(after)}: {change}", version, floor, pause, revertible, waits)
            version = floor = pause = waits = ""
    for table_id in stage.fences:
        if table_id not in {work.element.table for work in stage.work}:
            table = catalog.table(table_id)
            version = str(table.version)
            yield Row(number, _fenced(table), version, version, "", revertible, waits)
            waits = ""
    for work in stage.work:
        table = catalog.table(work.element.table)
        what = _work(work, table, catalog, done_by)
        floor = str(table.version) if table.id in stage.fences else ""
        change = f"{_named(table)}: its indexes are filled" if work.work is Work.ENTRIES else _fenced(table)
        yield Row(number, change, str(table.version), floor, what, revertible, waits)
        waits = ""


def _fenced(table: Table) -> str:
    """What all writers do from then on that no older version of the table is written under."""
    what = "maintain it" if table.transformed is None else "log its rows whole"
    return f"{_named(table)}: all writers {what}"


def _work(work: Reorganization, table: Table, catalog: CatalogSnapshot, done_by: str) -> str:
    if work.work is Work.FOLLOW:
        return f"{work.work.value}, until at most about {work.rows} target rows are left, {done_by}"
    if table.transformed is not None:
        of = ", ".join(f'"{catalog.table(target).name}"' for target in table.transformed.targets)
    else:
        of = name_of(table, work.element)
    return f"{work.work.value} of {of}, about {work.rows} rows, {done_by}"


def _named(found: Object) -> str:
    if isinstance(found, View):
        return f'{found.kind} "{found.name}"'
    kind = "table" if isinstance(found, Table) else "sequence"
    return f'{kind} "{found.name}"'


def _pause(published: Published) -> str:
    """What a table takes the time of that is seen from now on: the tail of its sources' log, within one commit."""
    before, after = published.before, published.after
    if not isinstance(before, Table) or before.unseen is None or not isinstance(after, Table) or after.unseen:
        return ""
    rows = before.unseen.made.pause_rows
    return f"pause: at most about {rows} target rows in one commit, estimated at {_SWITCH_MS + rows * _ROW_MS:,.1f} ms"


def _changes(published: Published) -> Iterator[str]:
    """What became of one object, in words."""
    before, after = published.before, published.after
    if published.dropped_at is not None:
        yield "brought back"
    elif before is None:
        yield "created, to be seen at the end" if isinstance(after, Table) and after.unseen else "created"
    elif isinstance(before, Table) and isinstance(after, Table):
        yield from _table_changes(before, after)
    else:
        yield "renamed" if before.name != after.name else "replaced"


def _table_changes(before: Table, after: Table) -> Iterator[str]:
    if before.unseen is not None and after.unseen is None:
        yield "seen" if after.crossing is None else "seen, and takes changes of what it was made of"
        return
    if after.unseen is not None and after.unseen.nameless:
        yield "read through the view"
        return
    if after.followed_by != before.followed_by:
        yield "its log is followed" if len(after.followed_by) > len(before.followed_by) else "followed by one view less"
    steps = [step for step in after.steps if step.version > before.version]
    for step in steps:
        if step.kind is not StepKind.ELEMENT_STATE:
            yield _step(step, before, after)
    old, new = phases(before), phases(after)
    moved = False
    for said in (*lock_elements.told(before, after), *key_elements.told(before, after)):
        moved = True
        yield said
    if before.transformed is None and after.transformed is not None:
        moved = True
        yield "its rows are logged whole"
    elif after.transformed is not None and after.transformed != before.transformed:
        moved = True
        yield "closes to new writers, who wait"
    if before.crossing is not None and after.crossing is None:
        moved = True
        yield "takes no more changes of what it was made of"
    for element in {**old, **new}:
        start, goal = old.get(element, Phase.ABSENT), new.get(element, Phase.ABSENT)
        if element.kind in (ElementKind.COVERAGE, ElementKind.TRANSFORMATION):  # told by what it does
            continue
        if element.kind is ElementKind.PRIMARY_KEY and before.rowset != after.rowset:  # told as what it has become
            continue
        if start is not goal and (element.kind is not ElementKind.COLUMN or Phase.WRITE_ONLY in (start, goal)):
            moved = True
            named = name_of(after if element in new else before, element)
            yields = goal is Phase.WRITE_ONLY and element in yielding(after)
            way = ", a write that violates it aborts the change" if yields else ""
            yield f"{named}: {start.value} -> {goal.value}{way}"
    validated = {number for step in steps for number in step.columns if step.kind is StepKind.ELEMENT_STATE}
    if not moved and all(step.kind is StepKind.ELEMENT_STATE for step in steps):
        if not validated:
            yield "told of a change in a related table" if steps else "depended on by something new"
        # A NOT NULL bears the id of its column, which is there.
        waiting = {element for element, phase in new.items() if phase is not Phase.PUBLIC}
        for element in (element for element in new if element.id in validated and element in waiting):
            yield f"{name_of(after, element)}: {new[element].value}, to be validated"


def _step(step: Step, before: Table, after: Table) -> str:
    names = {column.id: column.name for column in (*before.columns, *after.columns)}
    if step.kind in (StepKind.RENAME_INDEX, StepKind.RENAME_CONSTRAINT):
        renamed = _renamed(before, after)
        return f'{step.kind.value} "{renamed[0]}" to "{renamed[1]}"' if renamed else step.kind.value
    columns = ", ".join(f'"{names[column]}"' for column in step.columns if column in names)
    return f"{step.kind.value} {columns}".rstrip()


def _renamed(before: Table, after: Table) -> tuple[str, str] | None:
    """The old and the new name of the index or constraint whose name differs."""
    if before.primary_key_name != after.primary_key_name:
        return before.primary_key_name, after.primary_key_name
    old, new = _names(before), _names(after)
    return next(((name, new[number]) for number, name in old.items() if new.get(number, name) != name), None)


def _names(table: Table) -> dict[int, str]:
    """The names of a table's indexes and constraints by id."""
    names = {index.id: index.name for index in table.indexes}
    names |= {check.id: check.name for check in table.checks}
    return names | {key.id: key.name for key in table.foreign_keys}
