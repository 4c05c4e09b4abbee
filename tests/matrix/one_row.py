"""Writers of one and the same row, and SERIALIZABLE readers of it, while the schema changes.

They begin before a stage and commit after it, on the server with the older version and on the one with the newer;
others change the row meanwhile. Whatever is acknowledged must be there, and refused is only who met something. A READ
COMMITTED writer locks what it writes: then the others, who are in its thread and cannot wait, leave the row alone.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from instar import errors
from instar.database import Session
from instar.store.lock_table import Locked
from matrix.arena import Arena, Point, refusal, rows
from matrix.traffic import met_newer
from support.changes import Server

# The row is none of those that the traffic and the queries are about, and its values are nobody else's.
KEY, A, N = 950, 15_001, 500
STEP = {"a": 10, "n": 1}
LEVELS = ("read committed", "repeatable read", "read committed", "repeatable read", "serializable")


class Moment(NamedTuple):
    """What the row was like, and the schema, when a transaction began."""

    values: dict[str, int]
    changes: int
    version: int


class OneRow:
    """The row as it must be, by what was acknowledged."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.values = {"a": A, "n": N}
        self._changes = 0
        self._open: list[Writer | Reader | Bare] = []
        self._turns = itertools.count()
        arena.changer.execute(f"insert into t (id, a, b, n, p) values ({KEY}, {A}, 'one', {N}, 1)")
        arena.changer.execute("create table noted (id bigint primary key, a int)")
        self._side_by_side()

    def at(self, point: Point) -> None:
        """Who began before commits now, with others in between; and new ones begin."""
        for transaction in self._open:
            if self.arena.draw.random() < 0.25:
                self._autocommit(self.arena.draw.choice(("a", "n")))
            transaction.commit()
            self.check()
        turn = next(self._turns)
        level, older = LEVELS[turn % len(LEVELS)], turn % 2
        self._open = [
            Writer(self, self.arena.session(older), level, "a"),
            Writer(self, self.arena.session(1 - older), level, "n"),
            Reader(self, self.arena.session(older)),
            Bare(self, "an"[older]),
        ]
        self.arena.draw.shuffle(self._open)

    def end(self) -> None:
        """The last of them; then the row goes, and what was noted."""
        for transaction in self._open:
            transaction.commit()
        self._side_by_side()
        self.check()
        self.arena.changer.execute(f"delete from {self.arena.name('t')} where id = {KEY}")
        self.arena.changer.execute("drop table noted")

    def moment(self) -> Moment:
        return Moment(dict(self.values), self._changes, self.arena.world.catalog().version)

    def acknowledged(self, column: str) -> None:
        """A step of a column was committed."""
        self.values[column] += STEP[column]
        self._changes += 1

    def update(self, column: str) -> str:
        """The statement that takes a column a step on."""
        name = self.arena.name(column)
        return f"update {self.arena.name('t')} set {name} = {name} + {STEP[column]} where id = {KEY}"

    def refused(self, error: errors.Error, begun: Moment) -> None:
        """It has met a change of the row or of the schema."""
        assert error.sqlstate == errors.SERIALIZATION_FAILURE, error
        now = self.moment()
        # A server whose schema is the one before may meet a row that is written as it cannot read any more.
        newer = self.arena.kind.vetoes and met_newer(error)
        assert newer or (now.changes, now.version) != (begun.changes, begun.version), error
        self.arena.happened["conflicts"] += 1

    def check(self) -> None:
        """The row is what it must be, by its key and by a scan."""
        t, a, n = map(self.arena.name, ("t", "a", "n"))
        wanted = [(self.values["a"], self.values["n"])]
        session = self.arena.session(1)
        assert rows(session, f"select {a}, {n} from {t} where id = {KEY}") == wanted
        assert (
            rows(session, f"select {a}, {n} from {t} where {a} = {self.values['a']} and {n} = {self.values['n']}")
            == wanted
        )

    def _side_by_side(self) -> None:
        """One changes a and one has read it, while n changes: under one lock both are refused, else neither."""
        before = self.arena.happened["merged"], self.arena.happened["read beside"]
        transactions = Writer(self, self.arena.session(0), "repeatable read", "a"), Reader(self, self.arena.session(1))
        self._autocommit("n")
        for transaction in reversed(transactions):
            transaction.commit()
        made = self.arena.happened["merged"] - before[0], self.arena.happened["read beside"] - before[1]
        assert made in ((0, 0), (1, 1))

    def _autocommit(self, column: str) -> None:
        session = impatient(self.arena.session(self.arena.draw.randrange(2)))
        if not self.is_locked(refusal(lambda: session.execute(self.update(column)))):
            self.acknowledged(column)

    def is_locked(self, error: errors.Error | None) -> bool:
        """Whether a statement has met the lock of a READ COMMITTED writer, and nothing else has befallen it."""
        if error is None:
            return False
        assert error.sqlstate == errors.LOCK_NOT_AVAILABLE, error
        self.arena.happened["locked"] += 1
        return True


def impatient(session: Session) -> Session:
    """A session that does not wait for locks."""
    session.set("lock_timeout", "1us")
    return session


class Writer:
    """A transaction that takes one column a step on; under SERIALIZABLE it has read the other one."""

    def __init__(self, row: OneRow, session: Session, level: str, column: str) -> None:
        self._row = row
        self._session = impatient(session)
        self._column = column
        self._has_read = level == "serializable"
        self._begun = row.moment()
        session.execute(f"begin isolation level {level}")
        if self._has_read:
            names = ", ".join(map(row.arena.name, ("a", "n")))
            rows(session, f"select {names} from {row.arena.name('t')} where id = {KEY}")
        self._beaten = row.is_locked(refusal(lambda: session.execute(row.update(column))))
        if self._beaten:
            session.execute("rollback")

    def commit(self) -> None:
        """If it stands, nothing that it has read or overwritten had changed."""
        row = self._row
        if self._beaten:
            return
        refused = refusal(lambda: self._session.execute("commit"))
        if refused is not None and refused.sqlstate == errors.LOCK_NOT_AVAILABLE:
            # Since its statement the column has come under another optimistic lock too, which another has locked.
            row.arena.happened["locked"] += 1
            return
        if refused is not None:
            row.refused(refused, self._begun)
            return
        assert row.values[self._column] == self._begun.values[self._column], "a lost update"
        assert not self._has_read or row.values == self._begun.values, "not serializable"
        row.arena.happened["merged"] += row.values != self._begun.values
        row.acknowledged(self._column)


class Reader:
    """A SERIALIZABLE transaction that notes elsewhere what it has read of a."""

    def __init__(self, row: OneRow, session: Session) -> None:
        self._row = row
        self._session = session
        self._begun = row.moment()
        session.execute("begin isolation level serializable")
        found = rows(session, f"select {row.arena.name('a')} from {row.arena.name('t')} where id = {KEY}")
        assert found == [(row.values["a"],)]
        session.execute("insert into noted values (?, ?)", (row.arena.fresh(), *found[0]))

    def commit(self) -> None:
        """If it stands, a is still what was noted."""
        row = self._row
        refused = refusal(lambda: self._session.execute("commit"))
        if refused is not None:
            row.refused(refused, self._begun)
            return
        assert row.values["a"] == self._begun.values["a"], "not serializable"
        row.arena.happened["read beside"] += row.values != self._begun.values


class Bare:
    """A bare server that takes a column a step on, under the schema that it held when it began."""

    def __init__(self, row: OneRow, column: str) -> None:
        self._row = row
        self._column = column
        self._begun = row.moment()
        self._server = Server(row.arena.world, row.arena.name("t"))
        self._server.update(KEY, **{row.arena.name(column): row.values[column] + STEP[column]})

    def commit(self) -> None:
        """As a `Writer`; the store's fence turns it back as often as it must."""
        row = self._row
        try:
            refused = refusal(self._server.commit)
        except Locked:
            row.arena.happened["locked"] += 1
            return
        if refused is not None:
            row.refused(refused, self._begun)
            return
        assert row.values[self._column] == self._begun.values[self._column], "a lost update"
        row.arena.happened["merged"] += row.values != self._begun.values
        row.arena.happened["derived again"] += self._server.refused
        row.acknowledged(self._column)
