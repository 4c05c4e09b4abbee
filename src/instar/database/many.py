"""executemany in a transaction: one statement for many parameter sets, where that makes no difference; of writes of one
row by its key, which have a short way, each set takes that into the transaction's buffer.

Such sets see the newest state, some in one short read, as if each were a statement of its own. A transaction of several
statements locks their rows at the end, in the order of keys, so that two of them cannot wait for one another; what is
newer than the beginning by then has all sets run again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from instar import errors
from instar.database.buffered_writes import put
from instar.database.point_writes import Buffered, PointWriter, point_writer
from instar.sql import statements as ast
from instar.sql.executor_dml import InsertProgram
from instar.sql.parser import parse_one
from instar.sql.plan_cache import Prepared, class_of

if TYPE_CHECKING:
    from instar.database.queries import Queries
    from instar.database.session import Session

Sets = Sequence[Sequence[object]]

# So many sets are read by one reader, some milliseconds.
_TOGETHER = 256


def parsed_dml(text: str) -> ast.Dml:
    """The statement that is executed many times. 42601 if it is none that changes rows."""
    statement = parse_one(text)
    if not isinstance(statement, ast.Dml):
        raise errors.error(errors.SYNTAX_ERROR, "executemany executes INSERT, UPDATE and DELETE only", position=1)
    return statement


class Many:
    """Executes DML once per parameter set, for one session."""

    def __init__(self, session: Session, queries: Queries) -> None:
        self._session = session
        self._queries = queries

    def execute(self, text: str, statement: ast.Dml, sets: Iterable[Sequence[object]]) -> int:
        """In the session's transaction; the number of rows that were changed."""
        total = 0
        prepared: Prepared | None = None
        classes: tuple[type, ...] = ()
        pending: list[Sequence[object]] = []
        for given in sets:
            own = tuple(map(class_of, given))
            if prepared is None or own != classes:
                total += self._run(prepared, pending)
                prepared, classes, pending = self._queries.prepare(text, statement, given), own, []
            pending.append(given)
        return total + self._run(prepared, pending)

    def _run(self, prepared: Prepared | None, sets: Sets) -> int:
        """For sets of the same classes."""
        if prepared is None or not sets:
            return 0
        program, session = prepared.program, self._session
        if isinstance(program, InsertProgram) and program.takes_many:
            zone = session.settings.get("timezone")
            context = self._queries.context(())
            total = program.run_many(context, [prepared.convert(given, zone) for given in sets]).rowcount
            session.enlist()
            return total
        point = self._point(prepared, sets[0]) if len(sets) > 1 else None
        if point is None:
            return sum(self._run_one(prepared, given) for given in sets)
        return sum(
            self._buffer(point, prepared, sets[first : first + _TOGETHER]) for first in range(0, len(sets), _TOGETHER)
        )

    def _run_one(self, prepared: Prepared, given: Sequence[object]) -> int:
        session = self._session
        session.check_cancel()
        parameters = prepared.convert(given, session.settings.get("timezone"))
        count = prepared.run(self._queries.context(parameters)).rowcount
        session.enlist()
        return count

    def _point(self, prepared: Prepared, given: Sequence[object]) -> PointWriter | None:
        """The short way of the statement, where the transaction may take it."""
        session, write = self._session, prepared.write
        catalog = session.catalog()
        if write is None or not session.open_transaction().is_plain or catalog.by_id(write.table.id) is not write.table:
            return None
        writer = session.database.writers.get(write.table, catalog)
        return point_writer(session.database, write, prepared.bound, given, writer, catalog.version)

    def _buffer(self, point: PointWriter, prepared: Prepared, sets: Sets) -> int:
        """What the sets come to, in the buffer."""
        session, open_, total = self._session, self._session.open_transaction(), 0
        session.check_cancel()
        with session.database.store.read() as reader:
            for given in sets:
                made = point.to_buffer(reader, given, session, open_.buffer)
                if isinstance(made, Buffered):
                    put(open_, point, made)
                    total += 1
                elif made not in (0, []):
                    total += self._run_one(prepared, given)
        session.enlist()
        return total
