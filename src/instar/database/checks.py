"""CHECK TABLE and CHECK DATABASE: a row per problem, naming the clause of F1's definition 4; none when all is well."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from instar import errors
from instar.catalog.catalog import PUBLIC_SCHEMA
from instar.catalog.descriptors import Sequence, Table, View
from instar.database.bulk import has_spark
from instar.database.result import Result, rows_of
from instar.database.spark_check import checked
from instar.pipeline import consistency
from instar.pipeline.consistency import Consistency, Problem, Told
from instar.sql.checks import compile_check
from instar.types import TEXT

if TYPE_CHECKING:
    from instar.database.session import Session

# How often a statement that waits for Spark says how far it is.
NOTICE_SECONDS = 5.0

COLUMNS = (("table", TEXT), ("object", TEXT), ("clause", TEXT), ("key", TEXT), ("problem", TEXT))


def check(session: Session, names: Iterable[str] | None) -> Result:
    """Check the tables of those names, or everything (None). Large tables are checked on Spark, in a process of its
    own, where other processes can open the store and there is a Java."""
    found = None if names is None else [_named(session, name) for name in names]
    command = "CHECK DATABASE" if found is None else "CHECK TABLE"
    if _are_large(session, found) and has_spark(session.database):
        try:
            with closing(_on_spark(session, command, found)) as problems:
                return _rows(command, session, problems)
        except errors.Error as failed:
            if failed.sqlstate != errors.IO_ERROR:
                raise
            session.notice(f"{failed.message}: {command} goes on in this process", "WARNING")
            session.deliver_notices()
    return _rows(command, session, _here(session, found))


def _named(session: Session, name: str) -> Table:
    table = session.catalog().lookup(PUBLIC_SCHEMA, name)
    if isinstance(table, View | Sequence):
        kind = "view" if isinstance(table, View) else "sequence"
        raise errors.error(errors.WRONG_OBJECT_TYPE, f'"{name}" is not a table', detail=f'"{name}" is a {kind}.')
    if not isinstance(table, Table):
        raise errors.error(errors.UNDEFINED_TABLE, f'table "{name}" does not exist')
    return table


def _are_large(session: Session, tables: Iterable[Table] | None) -> bool:
    here = _consistency(session)
    return any(here.is_large(table) for table in (session.catalog().tables() if tables is None else tables))


def _here(session: Session, tables: Iterable[Table] | None) -> Iterator[Problem]:
    here = _consistency(session)
    if tables is None:
        yield from here.check_database()
        return
    for table in tables:
        yield from here.check_table(table.id)


def _on_spark(session: Session, command: str, tables: Iterable[Table] | None) -> Generator[Problem]:
    """In a process of its own; notices say how far it is."""
    clock = session.database.clock
    at = clock.monotonic_ns()

    def told(table: str, share: float) -> None:
        nonlocal at
        if clock.monotonic_ns() - at >= NOTICE_SECONDS * 1e9:
            at = clock.monotonic_ns()
            session.notice(f'{command}: {share:.0%} of table "{table}" is checked')
            session.deliver_notices()

    session.notice(f"{command} of large tables goes on in a process of its own, on Spark")
    session.deliver_notices()
    ids = [] if tables is None else [table.id for table in tables]
    yield from checked(session.database.path, ids, consistency.SPARK_ROWS, told, session.check_cancel)


def _consistency(session: Session) -> Consistency:
    """The checks in this process."""
    database = session.database

    def told(table: str, share: float) -> None:
        session.check_cancel()

    return Consistency(database.store, database.layouts, database.catalog, compile_check, told=told)


def check_database(session: Session, told: Told) -> list[Problem]:
    """CHECK DATABASE for a process that is there for it: large tables are checked on Spark, which it starts, if there
    is a Java. `told` which share of which table is done."""
    database = session.database

    def pulse(table: str, share: float) -> None:
        session.check_cancel()
        told(table, share)

    spark = database.path if has_spark(database) else None
    checks = Consistency(database.store, database.layouts, database.catalog, compile_check, spark=spark, told=pulse)
    return list(checks.check_database())


def _rows(command: str, session: Session, problems: Iterable[Problem]) -> Result:
    found = []
    for problem in problems:
        session.check_cancel()
        found.append(tuple(problem))
    return rows_of(command, COLUMNS, found)
