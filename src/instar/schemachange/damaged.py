"""CANCEL JOB of a job whose record cannot be read, so that nobody knows what it has begun."""

from __future__ import annotations

from collections.abc import Iterator

from instar import errors
from instar.catalog.catalog import Catalog, CatalogSnapshot
from instar.schemachange.elements import ElementKind, Phase, moving, phase_of
from instar.schemachange.job_records import (
    Claim,
    Job,
    JobState,
    claim_key,
    decode_claim,
    encode_claim,
    encode_job,
    job_key,
    readable_jobs,
    this_process,
)
from instar.schemachange.jobs import Jobs
from instar.schemachange.stages import Move, Stage
from instar.store.engine import Commit, PreconditionFailed, Store, ValueUnchanged


def cancel_damaged(store: Store, catalog: Catalog, jobs: Jobs, now_us: int, number: int) -> bool:
    """Another record takes the place of the damaged one: of a job that has brought all that moves and that no other job
    moves, and is asked to take it back. Without such a thing it has ended.

    False if the record is not damaged. 55000 if a table is being joined or split, which nothing but the record says how
    to take back.
    """
    while True:
        with store.read() as reader:
            version = reader.catalog_version
            stored, claim = reader.get(job_key(number)), reader.get(claim_key(number))
            known, damaged = readable_jobs(reader)
            if number not in damaged:
                return False
            moves = tuple(_left_behind(catalog.at(reader), known, number))
        made = Job(
            id=number,
            kind="cancel",
            statement="",
            stages=(Stage(moves=moves, revertible=True),) if moves else (),
            stage=1 if moves else 0,
            state=JobState.RUNNING if moves else JobState.CANCELLED,
            rows_total=0,
            created=now_us,
            finished=None if moves else now_us,
            requested="cancel" if moves else None,
        ).noted(now_us, this_process(), "CANCEL JOB: its record was damaged")
        raw = [(job_key(number), encode_job(made)), *jobs.finished_records(made)]
        if moves and claim is not None:
            # Whoever had it must not write under it any more, and epochs never begin again (rule 9).
            raw.append((claim_key(number), encode_claim(Claim(decode_claim(claim).epoch + 1, b""))))
        request = Commit(
            catalog_version=version,
            preconditions=[
                ValueUnchanged(job_key(number), stored, None),
                ValueUnchanged(claim_key(number), claim, None),
            ],
            raw=raw,
        )
        try:
            store.commit(request)
        except PreconditionFailed:
            continue
        return True


def _left_behind(catalog: CatalogSnapshot, known: list[Job], number: int) -> Iterator[Move]:
    """How all that moves, and that none of the jobs `known` moves, has come to where it is."""
    taken = {element for job in known if not job.is_finished for element in job.elements}
    for table in catalog.every_table():
        if table.unseen is not None and not table.unseen.nameless:
            if not any(element.table in table.unseen.made.sources for element in taken):
                raise _cannot_tell(number, table.name)
            continue
        for element in moving(table):
            if element in taken:
                continue
            if element.kind is ElementKind.TRANSFORMATION:
                raise _cannot_tell(number, table.name)
            yield Move(element, Phase.ABSENT, phase_of(table, element))


def _cannot_tell(number: int, table: str) -> errors.Error:
    return errors.error(
        errors.OBJECT_NOT_READY,
        f"job {number} cannot be cancelled: its record is damaged, and it may have joined or split "
        f'table "{table}", or have made a materialized view',
        hint="Export the tables that matter to another database, or go back to a copy of this one.",
    )
