"""Generated columns beside random writes and schema changes: at any time each row has in them what their expressions
give, for queries, in indexes, and in the store."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

import instar
from instar.dbapi import Connection
from support.databases import Engine, rows, run, value

# What may be generated of t (id, a, b, s), and of what type it is. The first may fail.
EXPRESSIONS = {
    "100 / (a - 7)": "int",
    "a::bigint + b": "bigint",
    "coalesce(s, '-') || '/'": "text",
    "CASE WHEN a > b THEN a END": "int",
    "(a * 1.5)::numeric(10, 2)": "numeric(10, 2)",
    "length(s) > 2": "boolean",
}
# What a statement, a commit or a change may be refused with here.
EXPECTED = {
    "22012", "23502", "23503", "23505", "40001", "40P01", "55P03", "55006", "2BP01", "0A000", "42703", "42701", "42P07",
    "55000", "42704",
}  # fmt: skip
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
STEPS = 60


class Story:
    """A random history of one database, from a seed."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.random = random.Random(seed)
        self.changer = engine.connect()
        # One thread does it all, so nobody is waited for.
        self.writers = [engine.connect(lock_timeout="5ms") for _ in range(3)]
        self.generated: dict[str, str] = {}
        self.number = 0
        run(
            self.changer,
            "SET ddl_wait = 0",
            "CREATE TABLE p (id int PRIMARY KEY)",
            "INSERT INTO p SELECT i FROM generate_series(0, 9) AS g (i)",
            "CREATE TABLE t (id int PRIMARY KEY, a int, b int DEFAULT 3 REFERENCES p ON UPDATE CASCADE "
            "ON DELETE SET DEFAULT, s text)",
        )
        self.keys = 12
        if seed % 3 == 0:
            self.keys = 3  # so that changes of one row are merged
            run(self.changer, "ALTER TABLE t ADD LOCK la COVERS (a), ADD LOCK lb COVERS (b, s)")

    def attempt(self, connection: Connection, statement: str) -> bool:
        """Execute a statement that may be refused for a reason; whether it was not."""
        try:
            connection.execute(statement)
        except instar.Error as refused:
            if refused.sqlstate not in EXPECTED:
                raise
            if connection in self.writers:
                connection.execute("ROLLBACK")
            return False
        return True

    def write(self) -> None:
        """One more statement of a transaction, its beginning, or its end."""
        writer = self.random.choice(self.writers)
        if not writer.session.in_block:
            self.attempt(writer, f"BEGIN ISOLATION LEVEL {self.random.choice(LEVELS)}")
        elif self.random.random() < 0.4:
            self.attempt(writer, "COMMIT")
            return
        draw = self.random.randrange
        key, one, other = draw(self.keys), draw(12), draw(10)
        statement = self.random.choice([
            f"INSERT INTO t (id, a, b, s) VALUES ({key}, {one}, {other}, 'x{one}')",
            f"INSERT INTO t (id, a) VALUES ({key}, {one}), ({key + 12}, NULL)",
            f"INSERT INTO t (id, a) VALUES ({key}, {one}) ON CONFLICT (id) DO UPDATE SET a = EXCLUDED.a + t.a, s = 'c'",
            f"INSERT INTO t (id, a, s) SELECT id + 24, a, s FROM t WHERE id = {key}",
            f"UPDATE t SET a = {one} WHERE id = {key}",
            f"UPDATE t SET b = {other}, s = s || '.' WHERE id = {key}",
            f"UPDATE t SET a = a + 1 WHERE a < {one}",
            f"UPDATE t SET id = id + 40 WHERE id = {key}",
            f"DELETE FROM t WHERE id = {key}",
            f"DELETE FROM p WHERE id = {4 + draw(6)}",
            f"UPDATE p SET id = id + 20 WHERE id = {4 + draw(6)}",
        ])  # fmt: skip
        self.attempt(writer, statement)

    def change(self) -> None:
        """A change of the schema, of generated columns more often than not."""
        changes: list[Callable[[], None]] = [self.add, self.add, self.drop, self.leave, self.other]
        self.random.choice(changes)()

    def add(self) -> None:
        self.number += 1
        name, expression = f"g{self.number}", self.random.choice(list(EXPRESSIONS))
        more = self.random.choice(["", "", " NOT NULL", " UNIQUE"]) if "s" not in expression else ""
        column = f"{name} {EXPRESSIONS[expression]} GENERATED ALWAYS AS ({expression}) STORED{more}"
        if self.attempt(self.changer, f"ALTER TABLE t ADD COLUMN {column}"):
            self.generated[name] = expression
            if not more:
                self.attempt(self.changer, f"CREATE INDEX ON t ({name})")

    def drop(self) -> None:
        if self.generated:
            name = self.random.choice(list(self.generated))
            if self.attempt(self.changer, f"ALTER TABLE t DROP COLUMN {name}"):
                del self.generated[name]

    def leave(self) -> None:
        if self.generated:
            name = self.random.choice(list(self.generated))
            if self.attempt(self.changer, f"ALTER TABLE t ALTER {name} DROP EXPRESSION"):
                del self.generated[name]
                self.attempt(self.changer, f"ALTER TABLE t DROP COLUMN {name}")

    def other(self) -> None:
        name = f"c{self.number}"
        self.attempt(
            self.changer,
            self.random.choice([
                f"ALTER TABLE t ADD COLUMN {name} int DEFAULT 5",
                f"ALTER TABLE t ADD COLUMN {name} float8 DEFAULT random()",
                f"ALTER TABLE t DROP COLUMN {name}",
                "COMPACT TABLE t",
                "ALTER TABLE t DROP COLUMN a",
                "ALTER TABLE t ALTER b TYPE bigint" if self.generated else "SELECT 1",
                "TRUNCATE t",
            ]),
        )  # fmt: skip

    def judge(self) -> None:
        """What is committed is what it should be."""
        for name, expression in self.generated.items():
            wrong = f"SELECT count(*) FROM t WHERE {name} IS DISTINCT FROM ({expression})::{EXPRESSIONS[expression]}"
            assert value(self.changer, wrong) == 0, (name, expression)
        assert rows(self.changer, "CHECK DATABASE") == []


@pytest.mark.parametrize("seed", range(12))
def test_rows_have_what_their_expressions_give(engine: Engine, seed: int) -> None:
    story = Story(engine, seed)
    for step in range(STEPS):
        if story.random.random() < 0.15:
            story.change()
        else:
            story.write()
        if step % 5 == 0:
            story.judge()
    for writer in story.writers:
        if writer.session.in_block:
            story.attempt(writer, "COMMIT")
    story.judge()
