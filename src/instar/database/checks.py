"""CHECK TABLE and CHECK DATABASE: a row per problem, naming the clause of F1's definition 4; none when all is well."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from instar import errors
from instar.catalog.catalog import PUBLIC_SCHEMA
from instar.catalog.descriptors import Sequence, Table, View
from instar.database.bulk import has_spark
from instar.database.result import Result
from instar.database.utility import rows_of
from instar.pipeline.consistency import Consistency, Problem, Told
from instar.sql.checks import compile_check
from instar.types import TEXT

if TYPE_CHECKING:
    from instar.database.session import Session

COLUMNS = (("table", TEXT), ("object", TEXT), ("clause", TEXT), ("key", TEXT), ("problem", TEXT))


def check(session: Session, tables: Iterable[str] | None) -> Result:
    """Check the tables of those names, or everything (None)."""
    database = session.database

    def told(table: str, share: float) -> None:
        session.check_cancel()

    consistency = Consistency(database.store, database.layouts, database.catalog, compile_check, told=told)
    if tables is None:
        return _rows("CHECK DATABASE", session, consistency.check_database())
    found: list[Problem] = []
    for name in tables:
        table = session.catalog().lookup(PUBLIC_SCHEMA, name)
        if isinstance(table, View | Sequence):
            kind = "view" if isinstance(table, View) else "sequence"
            raise errors.error(errors.WRONG_OBJECT_TYPE, f'"{name}" is not a table', detail=f'"{name}" is a {kind}.')
        if not isinstance(table, Table):
            raise errors.error(errors.UNDEFINED_TABLE, f'table "{name}" does not exist')
        found.extend(consistency.check_table(table.id))
    return _rows("CHECK TABLE", session, found)


def check_database(session: Session, told: Told) -> list[Problem]:
    """CHECK DATABASE for a process that is there for it: large tables are checked on Spark, which it starts, if there
    is a Java. `told` which share of which table is done."""
    database = session.database

    def pulse(table: str, share: float) -> None:
        session.check_cancel()
        told(table, share)

    spark = database.path if has_spark(database) else None
    consistency = Consistency(
        database.store, database.layouts, database.catalog, compile_check, spark=spark, told=pulse
    )
    return list(consistency.check_database())


def _rows(command: str, session: Session, problems: Iterable[Problem]) -> Result:
    found = []
    for problem in problems:
        session.check_cancel()
        found.append(tuple(problem))
    return rows_of(command, COLUMNS, found)
