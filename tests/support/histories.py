"""Histories of concurrent transactions with schema changes in between, as their sessions have seen them.

Every write has a number of its own, and a row bears the numbers of all the writes that made it. So a row that somebody
reads says whose it is, and on whose it was written. Every schema change, too, has a number, by which it renames a
marker column of its table; so the columns of a result say under which schema the statement ran. Nothing here looks into
the database: `isolation.py` judges a history by what sessions were told alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

READ_COMMITTED = "READ COMMITTED"
REPEATABLE_READ = "REPEATABLE READ"
SERIALIZABLE = "SERIALIZABLE"
LEVELS = (READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE)

Key = tuple[int, int]  # table, row; a table is known by the number of the change that made it
Versions = tuple[int, ...]  # the numbers of the writes that made a row, deletes too, oldest first; (): there is no row


class Span(NamedTuple):
    """When something was asked for, and when the answer was there."""

    asked: int
    told: int


class Write(NamedTuple):
    """What a statement left of one row: a version on top of `base`. `group` is what it gave the row's column `a` (None:
    left as it was), `columns` are those that it set to its number."""

    number: int
    key: Key
    base: Versions
    group: int | None = None
    columns: frozenset[str] = frozenset()
    deletes: bool = False


class Row(NamedTuple):
    """A row as a result shows it; without `group`, if only what an update has made of it is shown."""

    key: Key
    versions: Versions
    group: int | None = None
    columns: tuple[tuple[str, int | None], ...] = ()


class Predicate(NamedTuple):
    """low <= column <= high, where the column is `id` or `a`."""

    column: str
    low: int
    high: int

    def holds(self, identity: int, group: int) -> bool:
        return self.low <= (identity if self.column == "id" else group) <= self.high


class Read(NamedTuple):
    """All rows of a table for which a predicate holds, this transaction's own among them; without one, some rows.
    `locked`: by FOR UPDATE or the like, so that nobody else changes them before its end."""

    table: int
    predicate: Predicate | None
    rows: tuple[Row, ...]
    locked: bool = False


class Seen(NamedTuple):
    """A table as a statement has seen it: under its name, the number of its last change, and its columns."""

    name: str
    table: int
    change: int
    columns: frozenset[str]


class Change(NamedTuple):
    """A schema change of a table on top of the change `after` (0: it made the table), and what it left. Whoever has
    written under a version before it and commits after it has lost something (`loses`); it takes all rows (`empties`).
    """

    number: int
    table: int
    after: int
    name: str
    columns: frozenset[str]
    loses: bool = False
    empties: bool = False


@dataclass
class Statement:
    """One statement and what it said. `undone`: before which statement of its transaction it was rolled back, as failed
    statements are, and those after a savepoint."""

    text: str
    span: Span
    seen: list[Seen] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    undone: int | None = None
    error: str = ""


@dataclass
class Transaction:
    """A transaction of one session; `ended`: its COMMIT or ROLLBACK."""

    name: str
    level: str
    statements: list[Statement] = field(default_factory=list)
    ended: Span | None = None
    committed: bool = False
    error: str = ""

    @property
    def standing(self) -> list[Statement]:
        """The statements that were not undone."""
        return [statement for statement in self.statements if statement.undone is None]

    @property
    def writes(self) -> list[Write]:
        """What it leaves: not what its own TRUNCATE takes, which takes whatever others have left by then as well."""
        left: list[Write] = []
        for statement in self.standing:
            emptied = {change.table for change in statement.changes if change.empties}
            left = [write for write in left if write.key[0] not in emptied] + statement.writes
        return left

    @property
    def changes(self) -> list[Change]:
        return [change for statement in self.standing for change in statement.changes]


@dataclass
class History:
    """Transactions of all sessions, those that failed too. `seed` says what to replay. `leased`: statements may run
    under a schema that is older than what they see of rows."""

    transactions: list[Transaction] = field(default_factory=list)
    seed: int = 0
    leased: bool = False

    def __str__(self) -> str:
        return "\n".join(line for _, line in sorted(self._lines()))

    def _lines(self) -> Iterator[tuple[int, str]]:
        for transaction in self.transactions:
            for statement in transaction.statements:
                said = [f"sees {seen.name} at {seen.change}" for seen in statement.seen]
                said += [f"finds {_rows(read)}" for read in statement.reads]
                said += [f"writes {_shown(write.key, (*write.base, write.number))}" for write in statement.writes]
                said += [f"changes {change.name} to {change.number}" for change in statement.changes]
                said += ["undone"] * (statement.undone is not None) + [statement.error] * bool(statement.error)
                yield statement.span.asked, _line(statement.span, transaction, statement.text, "; ".join(said))
            alone = any(statement.span == transaction.ended for statement in transaction.statements)
            if transaction.ended is not None and not alone:  # else the statement was its own transaction
                outcome = "COMMIT" if transaction.committed else "not committed"
                yield transaction.ended.asked, _line(transaction.ended, transaction, outcome, transaction.error)


def _line(span: Span, transaction: Transaction, text: str, said: str) -> str:
    return f"{span.asked:>6} {span.told:>6} {transaction.name} ({transaction.level}): {text}   {said}".rstrip(": ")


def _rows(read: Read) -> str:
    return ", ".join(_shown(row.key, row.versions) for row in read.rows) or "nothing"


def _shown(key: Key, versions: Versions) -> str:
    return f"{key[0]}/{key[1]}=[{' '.join(map(str, versions))}]"
