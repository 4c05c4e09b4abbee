"""Sessions that do what a seed says and record what they are told, as `histories.py` has it.

The tables are `id int primary key, v text, a int`, a marker, and columns that come and go. `v` has the numbers of the
writes that made the row. The marker `m1x17` says that table 1 was last changed by change 17; a column `c17` has the
default 17 and is called `c17r23` once change 23 has renamed it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

from instar import errors
from instar.database import Session
from support.histories import (
    LEVELS,
    READ_COMMITTED,
    REPEATABLE_READ,
    Change,
    History,
    Predicate,
    Read,
    Row,
    Seen,
    Span,
    Statement,
    Transaction,
    Write,
)

NAMES = ("t0", "t1")
GROUPS = 4
WHOLE = Predicate("id", 0, 2**31 - 1)
NOTHING = Predicate("id", -1, -1)

# What may befall a statement beside others and beside schema changes. Nothing here violates a constraint.
REFUSED = {
    "0A000", "2BP01", "40001", "40P01", "42701", "42703", "42704", "42710", "42P01", "42P07", "42P16", "55000", "55006",
    "55P03", "72000",
}  # fmt: skip

Part = tuple[Seen, list[tuple[Any, ...]], list[str]]


def column_id(name: str) -> str:
    """What a column was called at first."""
    return name.split("r", maxsplit=1)[0]


class Common:
    """What the clients of one process share: their history, numbers and clock, the rows they have met, by the name of
    their table, and whether one of them is at a change that others would wait for."""

    def __init__(self, history: History, draw: random.Random, numbers: Iterator[int], now: Callable[[], int]) -> None:
        self.history = history
        self.draw = draw
        self.numbers = numbers
        self.now = now
        self.keys: dict[str, list[int]] = {name: [] for name in NAMES}
        self.is_building = False


class Client:
    """A session, and the transactions that it records."""

    refused = REFUSED

    def __init__(self, session: Session, name: str, common: Common) -> None:
        self.session = session
        self.name = name
        self.busy = False
        self._common = common
        self._draw, self._numbers, self._now = common.draw, common.numbers, common.now
        self._open: Transaction | None = None
        self._savepoint: int | None = None
        self._columns: dict[str, list[str]] = {}  # by table name, those that come and go
        session.execute("SET ddl_wait = 0")
        with suppress(errors.Error):  # where statements wait for locks of others, none may: there is one thread
            session.execute("SET lock_timeout = '5ms'")

    # --- what it does --------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One statement, or the few of a schema change."""
        self.busy = True
        try:
            self._choose()()
        finally:
            self.busy = False

    def finish(self) -> None:
        """End what is open."""
        if self._open is not None:
            self._end(commit=self._draw.random() < 0.8)

    def read_all(self) -> None:
        """A transaction that reads both tables."""
        self._begin(REPEATABLE_READ)
        for name in NAMES:
            self._read(name, WHOLE)
        self._end(commit=True)

    def create_tables(self) -> None:
        """The tables, with some rows and perhaps an index in each."""
        for name in NAMES:
            self._begin(READ_COMMITTED)
            number = next(self._numbers)
            marker = f"m{number}x{number}"
            change = Change(number, number, 0, name, frozenset({"id", "v", "a"}))
            self._do(f"CREATE TABLE {name} (id int PRIMARY KEY, v text NOT NULL, a int NOT NULL, {marker} boolean)")
            self._last().changes.append(change)
            self._insert(name, 4)
            self._end(commit=True)
            if self._draw.random() < 0.5:
                self._do(f"CREATE INDEX i{name} ON {name} (a)")

    def _choose(self) -> Callable[[], object]:
        draw = self._draw
        name = draw.choice(NAMES)
        usual: list[tuple[int, Callable[[], object]]] = [
            (30, lambda: self._read(name, self._predicate(name))),
            (4, self._join),
            (26, lambda: self._update(name, self._predicate(name))),
            (10, lambda: self._insert(name, draw.choice((1, 1, 2)))),
            (6, lambda: self._delete(name, self._predicate(name))),
            (4, lambda: self._move(name)),
            (6, lambda: self._alter(name)),
            (1, self._swap),
        ]
        if self._open is None:
            control = [(50, lambda: self._begin(draw.choice(LEVELS))), (12, lambda: self._beside(name))]
        else:
            control = [(24, lambda: self._end(commit=draw.random() < 0.9)), (4, self._save), (2, self._back)]
        choices = usual + control
        return draw.choices([found for _, found in choices], [weight for weight, _ in choices])[0]

    def _predicate(self, name: str) -> Predicate:
        draw, keys = self._draw, self._common.keys[name]
        kind = draw.random()
        if kind < 0.45 and keys:
            key = draw.choice(keys[-8:])
            return Predicate("id", key, key)
        if kind < 0.55 and keys:
            return Predicate("id", *sorted((draw.choice(keys), draw.choice(keys))))
        low = draw.randrange(GROUPS)
        return WHOLE if kind < 0.65 else Predicate("a", low, draw.choice((low, low, GROUPS)))

    # --- transactions --------------------------------------------------------------------------------------------

    def _begin(self, level: str) -> None:
        self.session.execute(f"BEGIN ISOLATION LEVEL {level}")
        self._open = Transaction(f"T{len(self._common.history.transactions)} of {self.name}", level)
        self._common.history.transactions.append(self._open)
        self._savepoint = None

    def _end(self, *, commit: bool) -> None:
        ended = self._open
        assert ended is not None
        asked = self._now()
        try:
            self.session.execute("COMMIT" if commit else "ROLLBACK")
            ended.committed = commit
        except errors.Error as refused:
            self._require_expected(refused)
            ended.error = refused.sqlstate
        self._open = None
        ended.ended = Span(asked, self._now())

    def _save(self) -> None:
        assert self._open is not None
        self.session.execute("SAVEPOINT s")
        self._savepoint = len(self._open.statements)

    def _back(self) -> None:
        """ROLLBACK TO SAVEPOINT."""
        if self._savepoint is not None and self._open is not None:
            self.session.execute("ROLLBACK TO s")
            for statement in self._open.statements[self._savepoint :]:
                if statement.undone is None:
                    statement.undone = len(self._open.statements)

    def _last(self) -> Statement:
        assert self._open is not None
        return self._open.statements[-1]

    def _do(self, text: str, parameters: tuple[object, ...] = ()) -> tuple[Statement, list[Part]] | None:
        """Execute a statement, in the open transaction or its own. None if it was refused: then a transaction goes back
        to its savepoint, or ends."""
        transaction = self._open
        if transaction is None:
            transaction = Transaction(f"T{len(self._common.history.transactions)} of {self.name}", READ_COMMITTED)
            self._common.history.transactions.append(transaction)
        asked = self._now()
        try:
            result = self.session.execute(text, parameters)
            names = [column for column, _ in result.columns or ()]
            found = [tuple(row) for row in result.rows or ()]
        except errors.Error as refused:
            self._require_expected(refused)
            failed = Statement(_said(text, parameters), Span(asked, self._now()), error=refused.sqlstate)
            failed.undone = len(transaction.statements)
            transaction.statements.append(failed)
            self._give_up(transaction, failed)
            return None
        statement = Statement(_said(text, parameters), Span(asked, self._now()))
        transaction.statements.append(statement)
        if self._open is None:
            transaction.ended, transaction.committed = statement.span, True
        return statement, _parts(names, found)

    def _give_up(self, transaction: Transaction, failed: Statement) -> None:
        if self._open is None:
            transaction.ended, transaction.error = failed.span, failed.error
        elif self._savepoint is not None and self._draw.random() < 0.5:
            self._back()
        else:
            self._end(commit=False)

    def _require_expected(self, refused: errors.Error) -> None:
        if refused.sqlstate not in self.refused:
            raise refused

    # --- rows ----------------------------------------------------------------------------------------------------

    def _read(self, name: str, predicate: Predicate) -> Seen | None:
        """A query through a key, a range, an index, or the analytic engine."""
        where, parameters = _where(predicate)
        window = ", count(*) OVER () AS n" if self._draw.random() < 0.05 else ""
        done = self._do(f"SELECT *{window} FROM {name} WHERE {where}", parameters)
        if done is None:
            return None
        statement, ((seen, rows, columns),) = done
        seen = self._remember(statement, seen, name, columns)
        shown = tuple(_row(seen, columns, row) for row in rows)
        statement.reads.append(Read(seen.table, predicate, shown))
        self._meet(name, shown)
        return seen

    def _join(self) -> None:
        """Both tables in one statement."""
        done = self._do("SELECT * FROM t0, t1")
        if done is None:
            return
        statement, parts = done
        for name, (found, rows, columns) in zip(NAMES, parts, strict=True):
            seen = self._remember(statement, found, name, columns)
            shown = dict.fromkeys(_row(seen, columns, row) for row in rows)
            # Without a row in one table, none of the other is shown.
            statement.reads.append(Read(seen.table, WHOLE if rows else None, tuple(shown)))

    def _update(self, name: str, predicate: Predicate) -> None:
        number = next(self._numbers)
        group = self._draw.randrange(GROUPS) if self._draw.random() < 0.6 else None
        column = self._some_column(name)
        sets: list[str] = ["v = v || ?"]
        parameters: list[object] = [f",{number}"]
        if group is not None:
            sets.append("a = ?")
            parameters.append(group)
        if column is not None:
            sets.append(f"{column} = ?")
            parameters.append(number)
        where, values = _where(predicate)
        text = f"UPDATE {name} SET {', '.join(sets)} WHERE {where} RETURNING *"
        self._written(name, predicate, self._do(text, (*parameters, *values)), number, group, column)

    def _delete(self, name: str, predicate: Predicate) -> None:
        where, values = _where(predicate)
        if predicate != WHOLE:
            done = self._do(f"DELETE FROM {name} WHERE {where} RETURNING *", values)
            self._deleted(name, predicate, done, next(self._numbers))

    def _insert(self, name: str, rows: int) -> None:
        keys = [next(self._numbers) for _ in range(rows)]
        number = keys[0]
        group, column = self._draw.randrange(GROUPS), self._some_column(name)
        columns = "id, v, a" if column is None else f"id, v, a, {column}"
        given = (f",{number}", group) if column is None else (f",{number}", group, number)
        values = ", ".join(f"({', '.join('?' * (1 + len(given)))})" for _ in keys)
        parameters = tuple(value for key in keys for value in (key, *given))
        done = self._do(f"INSERT INTO {name} ({columns}) VALUES {values} RETURNING *", parameters)
        self._written(name, None, done, number, group, column)

    def _move(self, name: str) -> None:
        """Delete a row and insert it again, in one transaction: one to whom the name is the same table both times."""
        if self._open is None or self._open.level == READ_COMMITTED or not self._common.keys[name]:
            return
        key, group = self._draw.choice(self._common.keys[name][-8:]), self._draw.randrange(GROUPS)
        predicate = Predicate("id", key, key)
        done = self._do(f"DELETE FROM {name} WHERE id = ? RETURNING *", (key,))
        number = next(self._numbers)
        deleted = self._deleted(name, predicate, done, number)
        if self._open is None or not deleted:
            return
        again = next(self._numbers)
        versions = (*deleted[0].versions, number, again)
        shown = "".join(f",{version}" for version in versions)
        text = f"INSERT INTO {name} (id, v, a) VALUES (?, ?, ?) RETURNING *"
        self._written(name, None, self._do(text, (key, shown, group)), again, group, None)

    def _written(
        self,
        name: str,
        predicate: Predicate | None,
        done: tuple[Statement, list[Part]] | None,
        number: int,
        group: int | None,
        column: str | None,
    ) -> None:
        """Record what INSERT or UPDATE returns: the rows as they are now, and so as they were found."""
        if done is None:
            return
        statement, ((seen, rows, columns),) = done
        seen = self._remember(statement, seen, name, columns)
        images = tuple(_row(seen, columns, row) for row in rows)
        self._meet(name, images)
        found = tuple(Row(image.key, image.versions[:-1]) for image in images)
        if predicate is not None:
            statement.reads.append(Read(seen.table, predicate, found))
        statement.reads.append(Read(seen.table, None, images))
        sets = frozenset() if column is None else frozenset({column_id(column)})
        for row in found:
            statement.writes.append(Write(number, row.key, row.versions, group, sets))

    def _deleted(
        self, name: str, predicate: Predicate, done: tuple[Statement, list[Part]] | None, number: int
    ) -> tuple[Row, ...]:
        if done is None:
            return ()
        statement, ((seen, rows, columns),) = done
        seen = self._remember(statement, seen, name, columns)
        found = tuple(_row(seen, columns, row) for row in rows)
        statement.reads.append(Read(seen.table, predicate, found))
        statement.writes += [Write(number, row.key, row.versions, deletes=True) for row in found]
        return found

    def _meet(self, name: str, rows: Iterable[Row]) -> None:
        """Remember which rows there are, the newest last."""
        keys = self._common.keys[name]
        for row in rows:
            if row.key[1] not in keys:
                keys.append(row.key[1])

    def _some_column(self, name: str) -> str | None:
        columns = self._columns.get(name)
        return self._draw.choice(columns) if columns and self._draw.random() < 0.6 else None

    def _remember(self, statement: Statement, seen: Seen, name: str, columns: list[str]) -> Seen:
        seen = seen._replace(name=name)
        statement.seen.append(seen)
        self._columns[name] = [column for column in columns if column[0] == "c"]
        return seen

    # --- schema changes ------------------------------------------------------------------------------------------

    def _alter(self, name: str) -> None:
        """A change that statements can tell by the columns they get, and the marker with it."""
        alone = self._open is None
        if alone:
            self._begin(self._draw.choice(LEVELS))
        seen = self._read(name, NOTHING)
        if seen is not None:
            number = next(self._numbers)
            text, columns, change = self._drawn_change(name, seen, number)
            if self._do(text) is not None:
                self._mark(name, seen, change._replace(columns=columns))
        if alone and self._open is not None and self._draw.random() < 0.7:
            self._end(commit=True)

    def _drawn_change(self, name: str, seen: Seen, number: int) -> tuple[str, frozenset[str], Change]:
        alter = f"ALTER TABLE {name}"
        change = Change(number, seen.table, seen.change, name, seen.columns)
        added = f"c{number}"
        extra = sorted(column for column in seen.columns if column[0] == "c")
        kind = self._draw.random()
        if kind < 0.12:
            return f"TRUNCATE {name}", seen.columns, change._replace(empties=True)
        if kind < 0.5 or not extra:
            return f"{alter} ADD COLUMN {added} int DEFAULT {number}", seen.columns | {added}, change
        column = self._draw.choice(extra)
        if kind < 0.7:
            return f"{alter} DROP COLUMN {column}", seen.columns - {column}, change._replace(loses=True)
        if kind < 0.85:
            renamed = f"{column_id(column)}r{number}"
            return f"{alter} RENAME COLUMN {column} TO {renamed}", seen.columns - {column} | {renamed}, change
        return f"{alter} ALTER COLUMN {column} TYPE bigint", seen.columns, change

    def _mark(self, name: str, seen: Seen, change: Change) -> bool:
        """Rename the marker, which fails if the table was changed since it was seen."""
        old, new = (f"m{seen.table}x{found}" for found in (seen.change, change.number))
        if self._do(f"ALTER TABLE {name} RENAME COLUMN {old} TO {new}") is None:
            return False
        self._last().changes.append(change)
        return True

    def _swap(self) -> None:
        """Two tables take each other's name, by three renames."""
        if self._open is not None:
            return
        self._begin(self._draw.choice(LEVELS))
        number = next(self._numbers)
        found = [self._read(name, NOTHING) for name in NAMES if self._open is not None]
        texts = [f"ALTER TABLE {one} RENAME TO {other}" for one, other in (("t0", "tx"), ("t1", "t0"), ("tx", "t1"))]
        for text in texts:
            if self._open is None or self._do(text) is None:
                return
        for name, seen in zip(reversed(NAMES), found, strict=True):
            if self._open is None or seen is None:
                return
            if not self._mark(name, seen, Change(number, seen.table, seen.change, name, seen.columns)):
                return
        self._end(commit=True)

    def _beside(self, name: str) -> None:
        """A change that no statement can tell: indexes, constraints, the primary key, compaction."""
        if self._common.is_building:  # by who is waiting for this very client to do something
            return
        self._common.is_building = True
        try:
            self._build(name)
        finally:
            self._common.is_building = False

    def _build(self, name: str) -> None:
        draw = self._draw
        index, check = f"i{draw.choice((name, 0, 1))}", f"k{draw.randrange(2)}"
        self._do(draw.choice((
            f"CREATE INDEX {index} ON {name} (a)",
            f"CREATE INDEX {index} ON {name} (a DESC, id)",
            f"CREATE UNIQUE INDEX {index} ON {name} (id)",
            f"DROP INDEX {index}",
            f"DROP INDEX {index}",
            f"ALTER TABLE {name} ADD CONSTRAINT {check} CHECK (a >= 0)",
            f"ALTER TABLE {name} ADD CONSTRAINT {check} CHECK (a <= {GROUPS} AND id > 0)",
            f"ALTER TABLE {name} DROP CONSTRAINT {check}",
            f"ALTER TABLE {name} ALTER PRIMARY KEY USING COLUMNS ({draw.choice(('id', 'id, a', 'a, id'))})",
            f"COMPACT TABLE {name}",
        )))  # fmt: skip


def _said(text: str, parameters: Iterable[object]) -> str:
    for value in parameters:
        text = text.replace("?", repr(value), 1)
    return text


def _where(predicate: Predicate) -> tuple[str, tuple[int, ...]]:
    if predicate.low == predicate.high:
        return f"{predicate.column} = ?", (predicate.low,)
    return f"{predicate.column} BETWEEN ? AND ?", (predicate.low, predicate.high)


def _parts(names: list[str], rows: list[tuple[Any, ...]]) -> list[Part]:
    """The result's columns and rows, table by table: each table's begin with its id."""
    bounds = [place for place, name in enumerate(names) if name == "id"]
    parts = []
    for start, stop in pairwise([*bounds, len(names)]):
        own = names[start:stop]
        table, change = next(name for name in own if name[0] == "m")[1:].split("x")
        columns = frozenset(name for name in own if name[0] not in "mn")
        parts.append((Seen("", int(table), int(change), columns), [row[start:stop] for row in rows], own))
    return parts


def _row(seen: Seen, columns: list[str], values: tuple[Any, ...]) -> Row:
    named = dict(zip(columns, values, strict=True))
    versions = tuple(map(int, named["v"].split(",")[1:]))
    extra = tuple((column_id(name), value) for name, value in named.items() if name[0] == "c")
    return Row((seen.table, named["id"]), versions, named["a"], extra)
