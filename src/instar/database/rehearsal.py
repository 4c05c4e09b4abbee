"""Rehearsals: schema changes planned one upon the other, as if each were complete, and none of them done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.schemachange.explain import Row
from instar.sql import statements as ast
from instar.sql.ddl import is_schema_change
from instar.sql.parser import parse_one

if TYPE_CHECKING:
    from instar.database.session import Session


class Rehearsal:
    """What is planned in a transaction that will be rolled back."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def catalog(self) -> CatalogSnapshot:
        """The schema as what was rehearsed so far leaves it."""
        return self._session.catalog()

    def plan(self, text: str) -> list[Row]:
        """The stages of a DDL statement, as EXPLAIN (DDL) has them; for what is planned next, it has come to its end.

        Errors are those of planning; they change nothing of what was rehearsed before.
        """
        statement = parse_one(text)
        if not is_schema_change(statement):
            raise errors.error(errors.SYNTAX_ERROR, "only schema changes can be rehearsed", position=1)
        return self._session.rehearse_schema(statement, text)


@contextmanager
def rehearsal(session: Session) -> Iterator[Rehearsal]:
    """A rehearsal on one snapshot of the schema. No transaction may be open; none is at the end."""
    told = len(session.notices)
    session.open(explicit=True, modes=ast.TransactionModes(isolation="repeatable read"))
    try:
        session.begin_statement(session.open_transaction(), writes=False)
        yield Rehearsal(session)
    finally:
        session.rollback()
        del session.notices[told:]
