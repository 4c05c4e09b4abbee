"""Utility statements: EXPLAIN, jobs, checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from instar import errors
from instar.database import jobs, materialized
from instar.database.result import Result, rows_of
from instar.sql import statements as ast
from instar.sql.materialized_statements import RefreshMaterializedView
from instar.types import TEXT

if TYPE_CHECKING:
    from instar.database.session import Session


def execute(session: Session, statement: ast.Statement, text: str) -> Result:
    """Execute a utility statement; 0A000 naming one that is not supported."""
    found = _STATEMENTS.get(type(statement))
    if found is None:
        raise errors.unsupported(f"the statement {_name(statement)}")
    return found(session, statement, text)


def _name(statement: ast.Statement) -> str:
    words = "".join(" " + letter if letter.isupper() else letter for letter in type(statement).__name__)
    return words.strip().upper()


def _explain(session: Session, statement: ast.Explain, text: str) -> Result:
    if statement.ddl:
        if statement.analyze:
            raise errors.unsupported("EXPLAIN ANALYZE")
        return session.explain_schema(statement, text)
    if not isinstance(statement.statement, ast.Query | ast.Dml):
        raise errors.error(
            errors.SYNTAX_ERROR,
            "EXPLAIN shows the plan of a query, INSERT, UPDATE or DELETE",
            hint="Use EXPLAIN (DDL) for schema changes.",
            position=statement.position,
        )
    if statement.analyze:
        raise errors.unsupported("EXPLAIN ANALYZE")
    return rows_of("EXPLAIN", (("QUERY PLAN", TEXT),), ((line,) for line in session.explain_query(statement.statement)))


def _check_table(session: Session, statement: ast.CheckTable, text: str) -> Result:
    return session.check((statement.name.name,))


def _check_database(session: Session, statement: ast.CheckDatabase, text: str) -> Result:
    return session.check(None)


def _show_jobs(session: Session, statement: ast.ShowJobs, text: str) -> Result:
    return jobs.show(session)


def _job_control(session: Session, statement: ast.JobControl, text: str) -> Result:
    return jobs.control(session, statement)


def _alter_job(session: Session, statement: ast.AlterJob, text: str) -> Result:
    return jobs.alter(session, statement)


def _refresh(session: Session, statement: RefreshMaterializedView, text: str) -> Result:
    return materialized.refresh(session, statement)


_STATEMENTS: dict[type, Callable[..., Result]] = {
    ast.Explain: _explain,
    ast.CheckTable: _check_table,
    ast.CheckDatabase: _check_database,
    ast.ShowJobs: _show_jobs,
    ast.JobControl: _job_control,
    ast.AlterJob: _alter_job,
    RefreshMaterializedView: _refresh,
}
