"""Where the elements of a job stand that is taken back, and what goes with what a stage drops."""

from __future__ import annotations

from collections.abc import Iterator

from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Sequence as SequenceDescriptor
from instar.catalog.descriptors import Table
from instar.schemachange.elements import Element, ElementKind, Phase, phase_of, used_columns
from instar.schemachange.foreign_keys import used_indexes
from instar.schemachange.job_records import Job, JobState
from instar.schemachange.planner import Standing
from instar.schemachange.stages import Stage, Superseded


def standing(job: Job, catalog: CatalogSnapshot) -> Iterator[Standing]:
    """Where the elements of a job stand that goes no further, and where what is left of them was before it. A job that
    is on its way back already goes where it was going."""
    origins: dict[Element, Phase] = {}
    left: dict[Element, Phase] = {}  # where the job's own stages have left it
    for number, move in ((number, move) for number, stage in enumerate(job.stages) for move in stage.moves):
        if job.state is JobState.REVERTING:
            origins[move.element] = move.goal
        else:
            origins.setdefault(move.element, move.start)
        if number < job.stage:
            left[move.element] = move.goal
        else:
            left.setdefault(move.element, move.start)
    for element, origin in origins.items():
        table = find_table(catalog, element.table)
        phase = phase_of(table, element)
        if table is None or phase is Phase.ABSENT or phase is not left[element]:
            continue  # somebody else has dropped it, or taken it elsewhere: it is not this job's to take back
        keys = (found for found in table.foreign_keys if found.id == element.id)
        is_key = element.kind is ElementKind.FOREIGN_KEY
        indexes = tuple(used for key in keys for used in used_indexes(table.id, key)) if is_key else ()
        yield Standing(element, phase, origin, (*indexes, *used_columns(table, element)))


def unseen_of(job: Job, catalog: CatalogSnapshot) -> tuple[int, ...]:
    """The tables that the job makes and nobody has seen yet, by their ids: on its way back they go."""
    named = (
        number
        for stage in job.stages
        for number in (
            *stage.reveals,
            *stage.drops,
            *(view.materialized.storage for view in stage.shows if view.materialized is not None),
        )
    )
    found = (find_table(catalog, number) for number in dict.fromkeys(named))
    return tuple(table.id for table in found if table is not None and table.unseen is not None)


def orphaned(catalog: CatalogSnapshot, stage: Stage) -> Iterator[SequenceDescriptor]:
    """The sequences that go with the columns and tables which the stage drops."""
    gone = {
        (move.element.table, move.element.id)
        for move in stage.moves
        if move.element.kind is ElementKind.COLUMN and move.goal is Phase.ABSENT
    }
    for sequence in catalog.sequences():
        if sequence.owned_by is not None and (sequence.owned_by in gone or sequence.owned_by[0] in stage.drops):
            yield sequence


def find_table(catalog: CatalogSnapshot, table: int) -> Table | None:
    """The table of that id, if it is there."""
    found = catalog.by_id(table)
    return found if isinstance(found, Table) else None


def table_of(catalog: CatalogSnapshot, table: int) -> Table:
    """The table of that id; Superseded if it is gone."""
    found = find_table(catalog, table)
    if found is None:
        raise Superseded(f"table {table} was dropped")
    return found
