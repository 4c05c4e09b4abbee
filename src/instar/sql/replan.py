"""Planning the statement of a job once more, in another process and later than it was written."""

from __future__ import annotations

from collections.abc import Sequence

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.changes import CatalogChange
from instar.catalog.descriptors import Table
from instar.schemachange import wanted as want
from instar.schemachange.draft import Facts
from instar.schemachange.job_records import Job
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
    meant = dict(job.named)
    for name, number in named_tables(wanted, change.view):
        if meant.get(name, number) != number:
            raise errors.error(errors.OBJECT_NOT_READY, f'"{name}", which the statement named, is another by now')
    return plan(change.view, change, facts, wanted, job.statement)


def named_tables(wanted: Sequence[want.Wanted], view: CatalogSnapshot) -> tuple[tuple[str, int], ...]:
    """The tables that the actions name, and the tables of the indexes that they name, by id: names may be given to
    others while a statement waits."""
    tables: set[str] = set()
    indexes: set[str] = set()
    for action in wanted:
        match action:
            case want.DropTables() | want.Truncate():
                tables.update(action.names)
            case want.CreateMaterializedView():
                tables.update(action.tables)
            case want.JoinTables():
                tables.update((action.r, action.s))
            case want.DropIndexes():
                indexes.update(action.names)
            case _:
                tables.update(filter(None, [getattr(action, "table", None)]))
    found = [(name, view.lookup("public", name)) for name in sorted(tables)]
    found += [(name, view.relation(name)) for name in sorted(indexes)]
    return tuple((name, known.id) for name, known in found if isinstance(known, Table))
