"""The commit of transactions of a few rows does what the general way does, and leaves to it what only that knows."""

from __future__ import annotations

import multiprocessing
import random
from pathlib import Path
from typing import Any

import pytest

import instar
from instar import errors
from instar.database import session, short_commits
from instar.database.commit import Committer
from instar.database.point_demands import Demanded
from instar.dbapi import Connection
from instar.store.engine import EntryWrite, LogRecord
from support.databases import Engine, fails, rows, run, value


@pytest.fixture
def general(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Has an item for each commit that goes the general way."""
    found: list[object] = []
    made = Committer.__init__

    def counted(self: Committer, *given: Any) -> None:
        found.append(given)
        made(self, *given)

    monkeypatch.setattr(Committer, "__init__", counted)
    return found


@pytest.fixture
def one(engine: Engine) -> Connection:
    made = engine.connect()
    run(
        made,
        "CREATE TABLE p (id int PRIMARY KEY, u text UNIQUE, n int)",
        "CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p, n int)",
        "CREATE INDEX ON c (n)",
        "CREATE TABLE plain (id int PRIMARY KEY, n int)",
        "CREATE TABLE keyless (n int)",
        "INSERT INTO p SELECT g, 'u' || g, 0 FROM generate_series(0, 9) AS s (g)",
        "INSERT INTO c SELECT g, 1, 0 FROM generate_series(0, 9) AS s (g)",
        "INSERT INTO plain SELECT g, 0 FROM generate_series(0, 99) AS s (g)",
    )
    return made


SHORT = [
    ["UPDATE p SET n = 1 WHERE id = 2"],
    ["UPDATE p SET u = 'x' WHERE id = 2"],
    ["INSERT INTO p VALUES (20, 'u20', 1)"],
    ["DELETE FROM p WHERE id = 3"],
    ["INSERT INTO c VALUES (20, 2, 1)"],
    ["UPDATE c SET p = 2, n = 5 WHERE id = 2"],
    ["DELETE FROM c WHERE id = 3"],
    ["INSERT INTO keyless VALUES (5)"],
    ["UPDATE plain SET n = 5 WHERE id = 1", "UPDATE p SET n = 2 WHERE id = 2", "UPDATE c SET n = 4 WHERE id = 5"],
    ["INSERT INTO plain VALUES (100, 1)", "DELETE FROM plain WHERE id = 5", "DELETE FROM c WHERE id = 4"],
    ["DELETE FROM plain WHERE id = 5", "SELECT 1"],
    ["UPDATE plain SET n = n + 1 WHERE id < 30"],
    ["INSERT INTO p VALUES (20, 'u20', 1)", "UPDATE plain SET n = 1 WHERE id = 1"],
    ["INSERT INTO p VALUES (20, 'u20', 1)", "INSERT INTO c VALUES (20, 20, 1)"],
    ["INSERT INTO p VALUES (20, 'u20', 1), (21, NULL, 1)", "UPDATE c SET p = 21 WHERE id = 1"],
    ["DELETE FROM p WHERE id = 7", "UPDATE p SET u = 'u20' WHERE id = 8", "INSERT INTO c VALUES (20, 8, 1)"],
    ["SELECT * FROM p WHERE id = 1 FOR UPDATE", "UPDATE plain SET n = 1 WHERE id = 1"],
]
GENERAL = [
    ["UPDATE p SET u = 'moved' WHERE id = 5", "INSERT INTO p VALUES (20, 'u5', 1)"],  # one takes what another leaves
    ["DELETE FROM c WHERE p = 1", "DELETE FROM p WHERE id = 1"],
    ["DELETE FROM c WHERE id = 1", "UPDATE c SET p = 2 WHERE p = 1", "DELETE FROM p WHERE id = 1"],
    ["DELETE FROM plain WHERE id = 5", "INSERT INTO plain VALUES (5, 7)"],
    ["UPDATE plain SET id = 500 WHERE id = 5"],
    ["UPDATE plain SET n = n + 1 WHERE id < 50"],
    ["CREATE TABLE more (id int PRIMARY KEY)", "UPDATE plain SET n = 1 WHERE id = 1"],
    ["SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "UPDATE plain SET n = 1 WHERE id = 1"],
    ["SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", "UPDATE plain SET n = 1 WHERE id = 1"],
]


@pytest.mark.parametrize("script", SHORT, ids="; ".join)
def test_few_rows(engine: Engine, one: Connection, general: list[object], script: list[str]) -> None:
    _compared(engine, one, script)
    assert not general


@pytest.mark.parametrize("script", GENERAL, ids="; ".join)
def test_what_is_left_to_the_general_way(
    engine: Engine, one: Connection, general: list[object], script: list[str]
) -> None:
    _compared(engine, one, script)
    assert len(general) == 1


TABLES = ("p", "c", "plain", "keyless")


def _compared(engine: Engine, one: Connection, script: list[str]) -> None:
    """Others see all of it once it is committed, and nothing before."""
    two = engine.connect()
    before = [rows(two, f"SELECT * FROM {table} ORDER BY 1") for table in TABLES]
    run(one, "BEGIN", *script)
    expected = [rows(one, f"SELECT * FROM {table} ORDER BY 1") for table in TABLES]
    assert expected != before
    assert [rows(two, f"SELECT * FROM {table} ORDER BY 1") for table in TABLES] == before
    run(one, "COMMIT")
    assert [rows(two, f"SELECT * FROM {table} ORDER BY 1") for table in TABLES] == expected
    assert not rows(two, "CHECK DATABASE")


def test_what_has_come_in_between_is_found(engine: Engine, one: Connection, general: list[object]) -> None:
    """Changes of the schema, compatible ones and one that is not."""
    other = engine.connect()
    run(one, "BEGIN", "UPDATE plain SET n = 7 WHERE id = 1")
    run(other, "ALTER TABLE plain ADD COLUMN m int DEFAULT 5")
    run(one, "COMMIT")
    assert len(general) == 1 + 1  # with that of the change
    assert rows(one, "SELECT * FROM plain WHERE id = 1") == [(1, 7, 5)]
    run(one, "BEGIN", "UPDATE plain SET n = 8 WHERE id = 1")
    run(other, "UPDATE plain SET m = 0 WHERE id > 50", "CREATE UNIQUE INDEX plain_n ON plain (id, n)")
    run(one, "COMMIT", "BEGIN", "UPDATE plain SET m = 8 WHERE id = 1")
    run(other, "ALTER TABLE plain DROP COLUMN m")
    with fails(errors.SERIALIZATION_FAILURE, "m"):
        run(one, "COMMIT")
    assert rows(one, "SELECT * FROM plain WHERE id = 1") == [(1, 8)]
    assert not rows(one, "CHECK DATABASE")


def test_statements_of_several_rows_in_autocommit(engine: Engine, one: Connection, general: list[object]) -> None:
    other = engine.connect(lock_timeout="50ms")
    run(one, "UPDATE plain SET n = n + 1 WHERE id < 20", "INSERT INTO p VALUES (30, 'u30', 0), (31, 'u31', 0)")
    run(one, "UPDATE c SET p = 31 WHERE id < 3", "DELETE FROM p WHERE id IN (30, 5)")
    assert not general
    run(one, "BEGIN", "UPDATE plain SET n = 9 WHERE id = 10")
    for text in ("UPDATE plain SET n = n + 1 WHERE id < 20", "DELETE FROM plain WHERE id IN (10, 11)"):
        with fails(errors.LOCK_NOT_AVAILABLE):
            run(other, text)
    run(other, "UPDATE plain SET n = 7 WHERE id BETWEEN 11 AND 12")
    run(one, "COMMIT")
    run(other, "UPDATE plain SET n = n + 1 WHERE id < 20")
    assert rows(one, "SELECT n, count(*) FROM plain WHERE id < 20 GROUP BY n ORDER BY n") == [(2, 17), (8, 2), (10, 1)]
    with fails(errors.FOREIGN_KEY_VIOLATION):
        run(one, "DELETE FROM p WHERE id IN (31, 6)")
    with fails(errors.UNIQUE_VIOLATION):
        run(one, "INSERT INTO p VALUES (50, 'x', 0), (51, 'x', 0)")
    assert not rows(one, "CHECK DATABASE")


@pytest.mark.parametrize(
    ("text", "between", "expected"),
    [
        ("UPDATE plain SET n = n + 1 WHERE id < 3", "DELETE FROM plain WHERE id = 1", [(0, 1), (2, 1)]),
        ("UPDATE plain SET n = n + 1 WHERE id < 3", "UPDATE plain SET n = 7 WHERE id = 1", [(0, 1), (1, 8), (2, 1)]),
        ("DELETE FROM plain WHERE id IN (0, 1)", "UPDATE plain SET n = 7 WHERE id = 1", [(2, 0)]),
        ("DELETE FROM plain WHERE id IN (0, 1)", "DELETE FROM plain WHERE id = 1", [(2, 0)]),
        ("INSERT INTO plain VALUES (-1, 1), (-2, 2) ON CONFLICT DO NOTHING", "INSERT INTO plain VALUES (-1, 3)",
         [(-2, 2), (-1, 3), (0, 0), (1, 0), (2, 0)]),
    ],
)  # fmt: skip
def test_rows_that_others_change_before_a_statement_in_autocommit_commits(
    engine: Engine, one: Connection, monkeypatch: pytest.MonkeyPatch, text: str, between: str, expected: list[Any]
) -> None:
    """It runs again."""
    other, left = engine.connect(), [between]

    def late(session_: Any, open_: Any) -> bool:
        if left and session_ is not other.session:
            run(other, left.pop())
        return short_commits.commit_few(session_, open_)

    run(one, "DELETE FROM plain WHERE id > 2")
    monkeypatch.setattr(session, "commit_few", late)
    run(one, text)
    assert not left
    assert rows(one, "SELECT id, n FROM plain ORDER BY id") == expected
    assert not rows(one, "CHECK DATABASE")


def test_locks_that_a_row_without_a_key_meets(engine: Engine, one: Connection) -> None:
    """Nobody has its row id locked, but perhaps its parent, or its unique key."""
    other = engine.connect(lock_timeout="50ms")
    run(one, "CREATE TABLE k (p int REFERENCES p, u int UNIQUE)")
    run(one, "BEGIN", "DELETE FROM p WHERE id = 3", "INSERT INTO k VALUES (2, 7)")
    for number, given in enumerate(((3, "NULL"), ("NULL", 7))):
        for values in ("{}, {}", "{}, {}), (NULL, {}"):
            with fails(errors.LOCK_NOT_AVAILABLE):
                run(other, f"INSERT INTO k VALUES ({values.format(*given, 10 + number)})")
    run(other, "INSERT INTO k VALUES (4, 8)")
    run(one, "COMMIT")
    assert rows(one, "SELECT * FROM k ORDER BY p") == [(2, 7), (4, 8)]


def test_rows_that_were_selected_and_replaced_meanwhile(engine: Engine, one: Connection) -> None:
    """Their locks are of rows that are not there any more."""
    other = engine.connect()
    update = "UPDATE c SET n = 5 WHERE id = 1"
    for change, first, refused in (
        ("ALTER TABLE plain ADD COLUMN m int", True, False), ("TRUNCATE plain", True, True),
        ("ALTER TABLE plain ADD COLUMN o int", False, False), ("TRUNCATE plain", False, True),
    ):  # fmt: skip
        run(other, "INSERT INTO plain (id) VALUES (1) ON CONFLICT DO NOTHING")
        run(one, "BEGIN", "SELECT * FROM plain WHERE id = 1 FOR UPDATE")
        if first:
            run(one, update)
        run(other, change)
        rest = ["COMMIT"] if first else [update, "COMMIT"]
        if refused:
            with fails(errors.SERIALIZATION_FAILURE, "replaced"):  # at once: at the first of them
                run(one, rest[0])
            run(one, "ROLLBACK")
        else:
            run(one, *rest)
    assert value(one, "SELECT n FROM c WHERE id = 1") == 5


def test_commits_are_counted(one: Connection) -> None:
    """By which the database sees now and then whether it is there, and wants a worker."""
    before = one.database._commits
    run(one, "BEGIN", "UPDATE plain SET n = 1 WHERE id = 1", "COMMIT")
    assert one.database._commits == before + 1


def test_savepoints(engine: Engine, one: Connection, general: list[object]) -> None:
    run(one, "BEGIN", "SAVEPOINT s", "UPDATE plain SET n = 7 WHERE id = 1", "ROLLBACK TO s")
    run(one, "COMMIT", "BEGIN", "UPDATE plain SET n = 6 WHERE id = 2", "SAVEPOINT s", "UPDATE plain SET n = 5")
    run(one, "ROLLBACK TO s", "UPDATE plain SET n = 4 WHERE id = 3", "COMMIT")
    assert rows(one, "SELECT * FROM plain WHERE n > 0 ORDER BY id") == [(2, 6), (3, 4)]
    assert not general


@pytest.mark.parametrize("seed", range(6))
def test_the_log_and_the_rows_are_those_of_the_general_way(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random transactions in two databases, of which one has no short commits."""
    sides = []
    for is_short in (True, False):
        with monkeypatch.context() as patched:
            if not is_short:
                patched.setattr(session, "commit_few", lambda *_: False)
            sides.append(_history(seed))
    assert sides[0] == sides[1]


def _history(seed: int) -> object:
    chance, engine = random.Random(seed), Engine(":memory:")
    try:
        c = engine.connect()
        run(
            c,
            "CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE, n int)",
            "CREATE INDEX ON t (n)",
            "CREATE TABLE f (id int PRIMARY KEY, t int REFERENCES t, v int REFERENCES t (u))",
            "CREATE MATERIALIZED VIEW m WITH (refresh = 'log') AS SELECT n, count(*) AS c FROM t GROUP BY n",
        )
        outcomes: list[object] = []
        for _ in range(150):
            run(c, "BEGIN")
            try:
                outcomes.extend(c.execute(*_drawn(chance)).rowcount for _ in range(chance.randint(1, 4)))
                run(c, "COMMIT")
            except instar.Error as failed:
                outcomes.append((failed.sqlstate, failed.message, failed.detail))
                run(c, "ROLLBACK")
        assert not rows(c, "CHECK DATABASE")
        assert "23503" in str(outcomes)
        assert "23505" in str(outcomes)
        store = c.database.store
        with store.read() as reader:
            upto = reader.timestamp
        log = list(store.log(0, upto))
        return outcomes, [rows(c, f"SELECT * FROM {table} ORDER BY id") for table in "tf"], _told(log)
    finally:
        engine.close()


def _drawn(chance: random.Random) -> tuple[str, tuple[int | None, ...]]:
    key, other, number = chance.randrange(6), chance.randrange(6), chance.choice((None, 0, 1, 2, 3))
    return chance.choice((
        ("INSERT INTO t VALUES (?, ?, ?)", (key, number, other)),
        ("UPDATE t SET n = ? WHERE id = ?", (number, key)),
        ("UPDATE t SET u = ? WHERE id = ?", (number, key)),
        ("DELETE FROM t WHERE id = ?", (key,)),
        ("INSERT INTO f VALUES (?, ?, ?)", (key, other, number)),
        ("UPDATE f SET t = ? WHERE id = ?", (number, key)),
        ("DELETE FROM f WHERE id = ?", (key,)),
        ("INSERT INTO t VALUES (?, ?, 9) ON CONFLICT (id) DO UPDATE SET n = 9", (key, number)),
    ))  # fmt: skip


def _told(log: list[LogRecord]) -> list[object]:
    """What the log says, commit by commit, whatever the timestamps, and in whichever order of a commit's rows."""
    commits: dict[int, list[object]] = {}
    for record in log:
        told = (record.table, record.key, record.deleted, record.renewed, _body(record.before), _body(record.after))
        commits.setdefault(record.timestamp, []).append(told)
    return [sorted(commit, key=repr) for _, commit in sorted(commits.items())]


def _body(stored: bytes | None) -> bytes | None:
    return None if stored is None else stored[12:]  # behind timestamp and sequence


def _made(stored_at: bytes, **fields: Any) -> short_commits._Row:
    blank = short_commits._Row(None, stored_at, 1, b"", (), False, None, True)  # type: ignore[arg-type]  # not asked
    return blank._replace(**fields)


def test_rows_that_take_away_what_another_one_demands() -> None:
    """Which statements do not let come about; the general way judges all rows together."""
    entry = EntryWrite(b"iku", 2, True)
    child, parent = _made(b"tc", demanded=Demanded(parents=[b"tp"])), _made(b"tp")
    under = _made(b"tc", demanded=Demanded(parents_under=[b"ik"]))
    unique = _made(b"tu", demanded=Demanded(free=[b"ik"]), entries=[entry])
    left = _made(b"tl", demanded=Demanded(childless=[b"ik"]))
    judged = short_commits._judgeable
    for rows_, fits in (
        ([child, parent], True),
        ([child, parent._replace(body=None)], False),
        ([under, _made(b"tp", entries=[EntryWrite(b"iku", 2, False)])], False),
        ([unique, _made(b"tv", entries=[entry])], True),
        ([unique, unique._replace(stored_at=b"tv")], False),
        ([left, parent], True),
        ([left, _made(b"tc", entries=[entry])], False),
        ([left._replace(demanded=Demanded(childless=[b"tp"])), parent._replace(base=None)], False),
        ([parent, parent], True),
    ):
        assert bool(judged(rows_)) is fits
    brings = [parent._replace(base=None), _made(b"tq", entries=[entry])]
    for other, parents in zip(brings, ([(), (b"ik",)], [(b"tp",), ()]), strict=True):
        found = judged([child, under, other])
        assert [row.demanded.all_parents for row in found if row.demanded is not None] == parents


# --- several processes ------------------------------------------------------------------------------------------------

_ACCOUNTS, _ROUNDS = 9, 400


def _pay(path: Path, seed: int) -> None:
    """Payments of two rows and a record of it, by transactions that meet each other; some are taken back."""
    draw = random.Random(seed)
    with instar.connect(path, synchronous=None, autocommit=True) as connection:
        for number in range(_ROUNDS):
            one, two = sorted(draw.sample(range(_ACCOUNTS), 2))
            amount = draw.randint(-5, 5)
            connection.execute("BEGIN")
            connection.execute("UPDATE account SET balance = balance - ? WHERE id = ?", (amount, one))
            connection.execute("UPDATE account SET balance = balance + ? WHERE id = ?", (amount, two))
            connection.execute("INSERT INTO payment VALUES (?, ?)", (seed * 1000 + number, amount))
            connection.execute("COMMIT" if number % 10 else "ROLLBACK")


def test_several_processes(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with instar.connect(path, synchronous="off", autocommit=True) as c:
        run(
            c,
            "CREATE TABLE account (id int PRIMARY KEY, balance int)",
            "CREATE TABLE payment (id int PRIMARY KEY, amount int)",
        )
        run(c, f"INSERT INTO account SELECT g, 100 FROM generate_series(0, {_ACCOUNTS - 1}) AS s (g)")
        context = multiprocessing.get_context("spawn")
        workers = [context.Process(target=_pay, args=(path, seed)) for seed in range(3)]
        for worker in workers:
            worker.start()
        for column in range(5):
            run(c, f"ALTER TABLE account ADD COLUMN c{column} int DEFAULT 0")
        for worker in workers:
            worker.join()
        assert [worker.exitcode for worker in workers] == [0, 0, 0]
        assert value(c, "SELECT sum(balance) FROM account") == 100 * _ACCOUNTS
        assert value(c, "SELECT count(*) FROM payment") == 3 * (_ROUNDS - _ROUNDS // 10)
        assert not rows(c, "CHECK DATABASE")
