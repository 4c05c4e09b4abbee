"""Values of sequences for a session: nextval, and what it has drawn itself, which currval and lastval tell.

Sequences are outside of transactions: nothing of this is rolled back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Sequence
from instar.sql.functions import Context

if TYPE_CHECKING:
    from instar.database.session import Session

_CONSTANT = Context(now=0)


class SessionNumbers:
    """What a session has drawn, and the execution (`Execution` in sql/defaults.py) of its writes on the short way,
    whose checks read no clock, and each of which may find another descriptor of the sequence."""

    __slots__ = ("_database", "_drawn", "_last", "functions")

    def __init__(self, session: Session) -> None:
        self._database = session.database
        self.functions = _CONSTANT
        self._drawn: dict[int, int] = {}  # the last value of each sequence, by its id
        self._last: int | None = None  # the sequence that was drawn from last

    def next_value(self, sequence: int) -> int:
        """nextval."""
        return self.draw(self._database.sequence(sequence))

    def next_values(self, sequence: int, count: int) -> list[range]:
        """`count` values at once."""
        found = self._database.sequence(sequence)
        taken = self._database.sequences.next_values(found, count)
        if taken:
            self._note(found, taken[-1][-1])
        return taken

    def draw(self, sequence: Sequence) -> int:
        """nextval of a sequence by its descriptor."""
        value = self._database.sequences.next_value(sequence)
        self._note(sequence, value)
        return value

    def current_value(self, sequence: int | None, catalog: CatalogSnapshot | None = None) -> int:
        """currval; lastval if `sequence` is None. 55000 where the session has not drawn yet."""
        number = self._last if sequence is None else sequence
        value = None if number is None else self._drawn.get(number)
        if number is not None:
            found = self._database.sequence(number, catalog)
            if value is not None and not found.numbers_rows:  # it may have been dropped since
                return value
        what = "lastval" if sequence is None else f'currval of sequence "{found.name}"'
        raise errors.error(errors.OBJECT_NOT_READY, f"{what} is not yet defined in this session")

    def set_value(self, sequence: int, value: int, called: bool) -> int:
        """setval; it is what currval tells then, if it counts as drawn."""
        return self.put(self._database.sequence(sequence), value, called)

    def put(self, sequence: Sequence, value: int, called: bool) -> int:
        """setval of a sequence by its descriptor."""
        self._database.sequences.set_value(sequence, value, called)
        if called:
            self._drawn[sequence.id] = value
        return value

    def _note(self, sequence: Sequence, value: int) -> None:
        if not sequence.numbers_rows:
            self._drawn[sequence.id] = value
            self._last = sequence.id


class StatementNumbers:
    """The same for one statement under `catalog`, which may be its session's own: each sequence is looked up once."""

    __slots__ = ("_catalog", "_found", "_numbers", "_session")

    def __init__(self, session: Session, catalog: CatalogSnapshot) -> None:
        self._session = session
        self._catalog = catalog
        self._numbers = session.numbers
        self._found: dict[int, Sequence] = {}

    def next_value(self, sequence: int) -> int:
        """nextval. 25006 where the transaction may only read."""
        return self._numbers.draw(self._find(sequence, "nextval()"))

    def current_value(self, sequence: int | None) -> int:
        """currval, lastval."""
        return self._numbers.current_value(sequence, self._catalog)

    def set_value(self, sequence: int, value: int, called: bool) -> int:
        """setval. 25006 as above."""
        return self._numbers.put(self._find(sequence, "setval()"), value, called)

    def _find(self, sequence: int, what: str) -> Sequence:
        found = self._found.get(sequence)
        if found is None:
            self._session.open_transaction().require_writable(what)
            found = self._found[sequence] = self._session.database.sequence(sequence, self._catalog)
        return found
