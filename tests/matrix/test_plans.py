"""Golden plans: what EXPLAIN (DDL) says of each kind, the stages of its job, and the way back from each of them.

INSTAR_GOLDEN=write renews them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from instar.catalog.descriptors import Table
from instar.schemachange.elements import Element, name_of
from instar.schemachange.job_records import Job, JobState
from matrix.arena import Arena, rows
from matrix.disturbances import LEASE
from matrix.kinds import NAMES, Kind, load

PLANS = Path(__file__).parent / "plans"


def explained(kind: Kind) -> Iterator[str]:
    """EXPLAIN (DDL) of each statement, as the ones before it leave the schema."""
    arena = Arena(kind)
    session = arena.changer
    session.execute("begin")
    for statement in kind.statements:
        yield f"{' '.join(statement.split())}\n"
        if statement.startswith(("alter", "compact", "create", "drop", "truncate", "undrop")):
            lines = [tuple(map(str, row)) for row in rows(session, f"explain (ddl) {statement}")]
            widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
            for line in lines:
                cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
                yield f"    {' | '.join(cells).rstrip(' |')}\n"
        if not kind.alone:
            session.execute(statement)
    session.rollback()


def stages(arena: Arena, job: Job) -> Iterator[str]:
    """The stages of a job: moves, fences, work."""
    with arena.store.read() as reader:
        catalog = arena.databases[0].catalog.at(reader)
    tables = {table.id: table for table in catalog.tables()}

    def named(element: Element) -> str:
        table = catalog.by_id(element.table)  # which nobody may see yet
        return name_of(table, element) if isinstance(table, Table) else repr(element)

    for number, stage in enumerate(job.stages, 1):
        said = [f"{named(move.element)}: {move.start.value} -> {move.goal.value}" for move in stage.moves]
        said += [f'fence "{tables[table].name}"' for table in stage.fences]
        said += [f"{work.work.value} of {named(work.element)}" for work in stage.work]
        said += [f'edit "{tables[edit.table].name}"' for edit in stage.edits]
        said += [f'drop "{tables[found].name}"' if found in tables else "drop a view" for found in stage.drops]
        said += [f'show "{view.name}"' for view in stage.shows]
        said += [f'keep a view of "{tables[source].name}"' for _, source in stage.keeps]
        yield f"    {number}: {'; '.join(said)}\n"


def way_back(kind: Kind, stage: int, lease: float = 0.0) -> Iterator[str]:
    """The stages of the job once it is cancelled in this stage, if it can be."""
    arena = Arena(kind, lease=lease)
    arena.change()
    job = arena.job
    if job is None or stage >= len(arena.get(job).stages):
        return
    arena.run(functools.partial(tuple.__eq__, (stage, 0)))
    if stage == 1:
        yield "the job\n"
        yield from stages(arena, arena.get(job))
    if not arena.get(job).stages[stage - 1].revertible:
        return
    yield f"cancelled in stage {stage}\n"
    before = Arena(kind, lease=lease)
    before.change()
    before.run(functools.partial(tuple.__eq__, (stage, 0)))
    arena.world.jobs.cancel(job)
    arena.finish()
    assert arena.job_state is JobState.CANCELLED
    yield from stages(before, arena.get(job))


@pytest.mark.parametrize("name", NAMES)
def test_plan_and_ways_back_are_the_golden_ones(name: str) -> None:
    kind = load(name)
    parts = [*explained(kind), *(line for stage in range(1, 12) for line in way_back(kind, stage))]
    if kind.by_paths:
        parts += ["under schema leases: ", *(line for stage in range(1, 12) for line in way_back(kind, stage, LEASE))]
    text = "".join(parts)
    golden = PLANS / f"{name}.txt"
    if os.environ.get("INSTAR_GOLDEN") == "write":
        golden.write_text(text)
    assert text == golden.read_text()


def test_every_plan_belongs_to_a_kind() -> None:
    assert sorted(path.stem for path in PLANS.glob("*.txt")) == NAMES
