"""What joins and splits that are under way still need of the log, and materialized views that follow it."""

from __future__ import annotations

from collections.abc import Iterator

from instar.catalog.catalog import CatalogSnapshot
from instar.schemachange.jobs import Jobs
from instar.schemachange.online.followed import followed
from instar.schemachange.online.following import decode_position, followed_since
from instar.schemachange.states import Work
from instar.schemachange.tasks import RANGES_PER_WORK
from instar.store.engine import Reader


def needed(jobs: Jobs) -> Iterator[int]:
    """Timestamps up to which the log may be cut, of each job that follows it: its position, or the snapshot that it
    begins at."""
    for job in jobs.all():
        if job.is_finished or not 0 < job.stage <= len(job.stages):
            continue
        works = [work.work for work in job.stages[job.stage - 1].work]
        if Work.FOLLOW not in works:
            continue
        at = jobs.checkpoints(job.id, job.stage).get(works.index(Work.FOLLOW) * RANGES_PER_WORK)
        since = followed_since(jobs, job)
        if at is not None:
            yield decode_position(at)
        elif since is not None:
            yield since


def kept(reader: Reader, catalog: CatalogSnapshot) -> Iterator[int]:
    """Timestamps up to which the log may be cut, of each view that follows it. To be asked for after what jobs need: a
    job that has ended meanwhile has left a view."""
    for view in catalog.views():
        known = None if view.materialized is None else followed(reader, view)
        if known is not None and not known.stale:
            yield known.position
