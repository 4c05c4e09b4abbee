"""Planning the statement of a job once more, in another process and later than it was written."""

from __future__ import annotations

from instar import errors
from instar.catalog.changes import CatalogChange
from instar.schemachange.draft import Facts
from instar.schemachange.jobs import Job
from instar.schemachange.planner import plan
from instar.schemachange.stages import Plan
from instar.sql import ddl
from instar.sql.functions import Context
from instar.sql.parser import parse_one


def replan(change: CatalogChange, facts: Facts, job: Job, now_us: int) -> Plan:
    """The plan of the job's statement on the catalog that `change` is made on. Errors: the statement's own."""
    statement = parse_one(job.statement)
    if not ddl.is_schema_change(statement):
        raise errors.error(errors.INTERNAL_ERROR, f"job {job.id} is of no schema change")
    notices: list[str] = []
    wanted = ddl.translate(statement, change.view, Context(now=now_us, zone=job.zone), notices.append).wanted
    return plan(change.view, change, facts, wanted, job.statement)
