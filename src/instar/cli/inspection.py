"""What an operator asks: is the database sound, what jobs run."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from instar.cli import output

if TYPE_CHECKING:
    from instar.dbapi import Connection, Row


def _query(connection: Connection, statement: str) -> tuple[list[output.Column], list[Row]]:
    with connection.execute(statement) as cursor:
        columns = [output.Column(each[0], each[1]) for each in cursor.description or ()]
        return columns, cursor.fetchall()


def check(connection: Connection, out: TextIO) -> bool:
    """CHECK DATABASE: one line per problem. True: the database is sound."""
    columns, problems = _query(connection, "CHECK DATABASE")
    if not problems:
        out.write("no problems found\n")
        return True
    output.write_table(columns, problems, out)
    return False


def jobs(connection: Connection, out: TextIO, *, json: bool) -> None:
    """SHOW JOBS."""
    columns, rows = _query(connection, "SHOW JOBS")
    if json:
        output.write_json(columns, rows, out)
    else:
        output.write_table(columns, rows, out)
