"""No text and no parameters bring anything out of a connection but its errors, and it is usable afterwards.

The texts are those of the parser's corpus, mutated by words and by characters, and plain noise. A few hundred in CI;
INSTAR_FUZZ=50000 for a night.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import random
import re
import threading
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

import instar
from instar import errors
from support.databases import Engine, run, value

CASES = int(os.environ.get("INSTAR_FUZZ", "800"))
CORPUS = Path(__file__).parent.parent / "sql" / "corpus"
STATEMENTS = [text for path in sorted(CORPUS.glob("*.sql")) for text in path.read_text().splitlines() if text.strip()]
TOKEN = re.compile(r"\w+|\s+|'[^']*'|\"[^\"]*\"|.", re.S)
WORDS = sorted({token for statement in STATEMENTS for token in TOKEN.findall(statement) if token.strip()})
PARAMETERS: list[object] = [
    None, True, 0, -1, 2**31, 2**63, 2**200, 1.5, float("nan"), float("inf"), -0.0, Decimal("1.1"), Decimal("NaN"),
    Decimal("1e400"), Decimal("sNaN"), "", "x", "\0", "\ud800", "é" * 300, "2024-01-01", "{",
    b"", b"\0\xff", bytearray(b"x"),
    memoryview(b"y"), dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.datetime(2024, 1, 1), dt.datetime.max,
    dt.datetime.min.replace(tzinfo=dt.UTC), dt.time(1), dt.timedelta(1), uuid.UUID(int=0), [], [1, None],
    {}, {"a": [1]}, {1: 2}, {"a": object()}, object(), int, complex(1), (), frozenset(),
]  # fmt: skip
SQLSTATE = re.compile(r"[0-9A-Z]{5}")

# The tables that the corpus speaks of, filled.
TABLES = """
CREATE TABLE customer (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text DEFAULT 'nobody' UNIQUE,
    code varchar(5), balance numeric(12, 2) DEFAULT 0, born date);
CREATE INDEX customer_code ON customer (code);
CREATE TABLE orders (id int PRIMARY KEY, customer_id bigint REFERENCES customer (id) ON DELETE CASCADE,
    total double precision, at timestamptz, note jsonb, paid boolean CHECK (paid OR total > 0));
CREATE TABLE heap (a int, b smallint);
CREATE TABLE t (id int PRIMARY KEY, a int, b text, c numeric(10, 2), i bytea, j uuid);
CREATE INDEX ta ON t (a, b DESC);
CREATE SEQUENCE counter;
CREATE VIEW rich AS SELECT c.id, upper(name) AS who FROM customer c WHERE balance > 100;
INSERT INTO customer (name, code, balance, born) SELECT 'n' || n, 'c' || n % 3, n * 20, '2000-01-01'
    FROM generate_series(1, 12) AS g (n);
INSERT INTO orders SELECT n, n, n / 3.0, now(), '{"a": 1}', true FROM generate_series(1, 12) AS g (n);
INSERT INTO heap VALUES (1, 2), (1, 2), (NULL, NULL);
INSERT INTO t SELECT n, n % 7, 'b' || n, n / 3.0, '\\x01' FROM generate_series(1, 20) AS g (n)
"""


def mutated(chance: random.Random) -> str:
    """A statement with a few words or characters taken out, put in, repeated or swapped; or noise."""
    kind = chance.random()
    if kind < 0.05:
        return "".join(chr(chance.choice((chance.randrange(128), chance.randrange(0x11_0000)))) for _ in range(20))
    if kind < 0.15:
        return " ".join(chance.choice(WORDS) for _ in range(chance.randrange(1, 12)))
    tokens = TOKEN.findall(chance.choice(STATEMENTS))
    for _ in range(chance.randrange(0, 4)):
        place = chance.randrange(len(tokens) + 1)
        change = chance.randrange(5)
        if change == 0:
            tokens[place : place + 1] = []
        elif change == 1:
            tokens.insert(place, chance.choice(WORDS) + " ")
        elif change == 2:
            tokens[place : place + 1] = [chance.choice(WORDS)]
        elif change == 3:
            tokens[place:place] = tokens[place : place + chance.randrange(1, 6)]
        elif place < len(tokens):
            token = tokens[place]
            tokens[place] = token[: chance.randrange(len(token) + 1)] + chr(chance.randrange(1, 0x250))
    return "".join(tokens) or ";"


def parameters(chance: random.Random, text: str) -> tuple[object, ...]:
    """Mostly as many as the text has places, of any class."""
    places = max(text.count("?"), *(int(number) for number in re.findall(r"\$([0-9]{1,2})", text)), 0, 0)
    if chance.random() < 0.03:
        places += chance.choice((-1, 1))
    return tuple(chance.choice(PARAMETERS) for _ in range(places))


class Watchdog:
    """Cancels a statement that takes too long; a hang past that is pytest's timeout."""

    def __init__(self, connection: instar.Connection, seconds: float = 5.0) -> None:
        self._timer = threading.Timer(seconds, connection.cancel)

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *exception: object) -> None:
        self._timer.cancel()


def attempts(seed: int, count: int) -> Iterator[tuple[str, tuple[object, ...]]]:
    chance = random.Random(seed)
    for _ in range(count):
        text = mutated(chance)
        yield text, parameters(chance, text)


def check(connection: instar.Connection, text: str, given: tuple[object, ...]) -> str | None:
    """The SQLSTATE of what executing and fetching raises. Nothing else may come out, and XX000 is nothing to raise."""
    try:
        with Watchdog(connection):
            cursor = connection.execute(text, given)
            if cursor.description is not None:
                cursor.fetchall()
                cursor.fetch_arrow_table()
    except instar.Error as raised:
        error = raised
    else:
        return None
    assert SQLSTATE.fullmatch(error.sqlstate), (text, given, error)
    assert error.sqlstate not in (errors.INTERNAL_ERROR, errors.DATA_CORRUPTED), (text, given, error)
    assert error.position is None or 1 <= error.position <= len(text) + 1, (text, given, error.position)
    assert str(error), (text, given)
    return error.sqlstate


@pytest.mark.parametrize("seed", range(4))
def test_mutated_statements(seed: int, tmp_path: Path) -> None:
    engine = Engine(":memory:" if seed % 2 else str(tmp_path / "db"))
    connection = engine.connect(autocommit=seed < 2)
    failed = 0
    for number, (text, given) in enumerate(attempts(seed, CASES // 4)):
        if number % 50 == 0:
            connection.close()
            connection = engine.connect(autocommit=seed < 2)
            _refill(connection)
        failed += check(connection, text, given) is not None
        if connection.session.failed or number % 10 == 0:
            connection.rollback()
            assert value(connection, "SELECT 1") == 1
    assert CASES // 40 < failed < CASES // 4, failed
    assert connection.execute("CHECK DATABASE").fetchall() == []
    engine.close()


def _refill(connection: instar.Connection) -> None:
    """The tables as they are in the beginning."""
    for kind, name in connection.execute(
        "SELECT table_type, table_name FROM information_schema.tables WHERE table_schema = 'public' ORDER BY 1 DESC"
    ).fetchall():
        dropped = "VIEW" if kind == "VIEW" else "TABLE"
        connection.execute(f'DROP {dropped} IF EXISTS "{name}" CASCADE')
    connection.execute("DROP SEQUENCE IF EXISTS counter")
    run(connection, *TABLES.split(";"))
    connection.commit()


PREPARED = [
    "SELECT ?", "SELECT * FROM t WHERE id = ?", "SELECT * FROM t WHERE a = ? AND b > ?", "SELECT ? + a FROM t",
    "SELECT * FROM t WHERE c = ? OR i < ? OR j >= ? OR id = ?", "INSERT INTO t (id, a) VALUES (?, ?)",
    "INSERT INTO t VALUES (?, ?, ?, ?, ?, ?)", "UPDATE t SET b = ?, c = ? WHERE id = ?", "SELECT ? || ?",
    "UPDATE t SET a = a + ? WHERE id = ?", "DELETE FROM t WHERE id = ?", "UPDATE t SET i = ?, j = ? WHERE id = ?",
    "UPDATE orders SET total = ?, at = ?, note = ?, paid = ? WHERE id = ?", "SELECT count(*) FROM orders WHERE at > ?",
    "SELECT a, sum(c) FROM t WHERE b < ? GROUP BY a HAVING sum(c) > ?", "SELECT coalesce(?, ?)",
    "SELECT * FROM t ORDER BY id LIMIT ? OFFSET ?", "SELECT ?::int, ?::text", "SELECT * FROM rich WHERE who = ?",
    "INSERT INTO customer (name, code) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET balance = ? RETURNING *",
    "SELECT * FROM t WHERE id IN (?, ?, ?)", "SELECT * FROM t WHERE b LIKE ?", "DELETE FROM customer WHERE born = ?",
    "SELECT sum(?) OVER (ORDER BY id) FROM t", "SELECT max(?) FROM t", "SELECT CASE WHEN ? THEN ? ELSE ? END",
]  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
def test_parameters_of_any_class(seed: int, tmp_path: Path) -> None:
    """Each text many times, so that plans and short ways made for one class meet another."""
    chance = random.Random(seed)
    engine = Engine(":memory:" if seed % 2 else str(tmp_path / "db"))
    connection = engine.connect(autocommit=True)
    run(connection, *TABLES.split(";"))
    for _ in range(CASES // 2):
        text = chance.choice(PREPARED)
        given = tuple(chance.choice(PARAMETERS) for _ in range(text.count("?")))
        check(connection, text, given)
    for _ in range(CASES // 20):
        text = chance.choice([text for text in PREPARED if not text.startswith("SELECT")])
        sets = [tuple(chance.choice(PARAMETERS) for _ in range(text.count("?"))) for _ in range(3)]
        with contextlib.suppress(instar.DataError, instar.ProgrammingError, instar.IntegrityError):
            connection.executemany(text, sets)
    assert connection.execute("CHECK DATABASE").fetchall() == []
    engine.close()
