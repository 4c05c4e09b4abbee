"""Texts that have run before, across changes of what they name: kept plans and lean forms say what a new plan says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

import instar
from instar import errors
from instar.dbapi import Connection
from support.databases import Engine, fails, rows, run, value

TIMES = 3  # general, then the lean form is made, then it is taken

QUERIES: list[tuple[str, tuple[object, ...]]] = [
    ("SELECT id, a FROM t WHERE id = ?", (1,)),
    ("SELECT b, id FROM t WHERE id = ?", (2,)),
    ("SELECT * FROM t WHERE id = ?", (1,)),
    ("SELECT * FROM t ORDER BY id", ()),
    ("SELECT t.* FROM u, t WHERE u.t_id = t.id ORDER BY t.id", ()),
    ("SELECT x FROM t, u WHERE t.id = u.t_id ORDER BY x", ()),  # two columns of that name, once t has one
    # u's a, once it has one.
    ("SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE t_id = t.id AND a = 2) ORDER BY id", ()),
    ("SELECT a AS e, count(*) FROM t GROUP BY e ORDER BY 1, 2", ()),  # t's e, once it has one
    ("SELECT a + 1 AS e FROM t ORDER BY e", ()),
    ("SELECT p FROM t AS q (p, r, s, w) ORDER BY p", ()),
    ("SELECT * FROM t NATURAL JOIN u ORDER BY 1, 2", ()),
    ("SELECT id FROM t JOIN u USING (id) ORDER BY id", ()),
    ("SELECT id FROM v ORDER BY id", ()),
    ("SELECT count(*) FROM t", ()),
    ("SELECT count(*), max(c) FROM t WHERE c > ?", (0,)),
    ("SELECT id FROM t WHERE c = ?", (30,)),
    ("SELECT id FROM t ORDER BY c DESC LIMIT 2", ()),
    ("SELECT max(length(b)) FROM t", ()),
    ("SELECT (SELECT max(x) FROM u WHERE u.t_id = t.id) FROM t ORDER BY id", ()),
    ("TABLE t", ()),
]  # fmt: skip

CHANGES = [
    "ALTER TABLE t ADD COLUMN d int DEFAULT 7",
    "ALTER TABLE t ADD COLUMN e int DEFAULT 8",
    "ALTER TABLE u ADD COLUMN a int DEFAULT 2",
    "ALTER TABLE t ADD COLUMN x int DEFAULT 1",
    "INSERT INTO t (id, a, b, c) VALUES (4, 2, 'four', 40)",
    "ALTER TABLE t ALTER COLUMN c FIRST",
    "ALTER TABLE t ADD COLUMN f int DEFAULT 6 AFTER id",
    "ALTER TABLE t DROP COLUMN f",
    "ALTER TABLE t DROP COLUMN d",
    "ALTER TABLE t DROP COLUMN e, DROP COLUMN x",
    "ALTER TABLE t RENAME COLUMN b TO bb",
    "ALTER TABLE t ADD COLUMN b text DEFAULT 'another'",
    "ALTER TABLE t ALTER COLUMN c TYPE bigint",
    "ALTER TABLE t ALTER COLUMN c SET DEFAULT 5",
    "ALTER TABLE t ADD CHECK (c > 0)",
    "DROP INDEX t_c",
    "CREATE INDEX t_c ON t (c)",
    "ALTER TABLE t DROP COLUMN a",
    "ALTER TABLE t ADD COLUMN a int DEFAULT 2",
    "ALTER TABLE t RENAME TO other",
    "CREATE TABLE t (a int, id int PRIMARY KEY, c int)",
    "DROP TABLE t",
    "ALTER TABLE other RENAME TO t",
    "ALTER TABLE u DROP COLUMN a",
    "TRUNCATE u",
    "DROP VIEW v",
    "CREATE VIEW v AS SELECT a AS id FROM t",
]

DROPPED = "ALTER TABLE t DROP COLUMN d"

Answer = str | list[tuple[object, ...]]


@pytest.fixture
def memory() -> Iterator[Engine]:
    made = Engine(":memory:")
    yield made
    made.close()


def filled(engine: Engine) -> Connection:
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, a int, b text, c int)",
        "CREATE TABLE u (id int PRIMARY KEY, t_id int, x int)",
        "CREATE INDEX t_c ON t (c)",
        "CREATE VIEW v AS SELECT id FROM t",
        "INSERT INTO t VALUES (1, 1, 'one', 10), (2, 2, 'two', 20), (3, 3, 'three', 30)",
        "INSERT INTO u VALUES (1, 1, 100), (2, 2, 200), (3, 2, 250)",
    )
    return connection


def answer(connection: Connection, text: str, parameters: Sequence[object]) -> Answer:
    """What a query says: its columns and rows, or the SQLSTATE that it fails with."""
    try:
        cursor = connection.execute(text, parameters)
        return [tuple(column[0] for column in cursor.description or ()), *cursor.fetchall()]
    except instar.Error as failed:
        return failed.sqlstate or ""


def test_every_query_says_what_a_new_plan_says(memory: Engine) -> None:
    connection = filled(memory)
    for number, change in enumerate(["", *CHANGES]):
        if change:
            connection.execute(change)
        for text, parameters in QUERIES:
            fresh = answer(connection, f"{text} -- {number}", parameters)
            for _ in range(TIMES):
                assert answer(connection, text, parameters) == fresh, (change, text)


def test_older_and_newer_snapshots_take_turns(memory: Engine) -> None:
    """REPEATABLE READ transactions of all ages run the same texts as who sees the newest schema."""
    connection = filled(memory)
    older: list[tuple[Connection, list[Answer]]] = []
    for change in CHANGES:
        session = memory.connect()
        run(session, "BEGIN ISOLATION LEVEL REPEATABLE READ")
        older.append((session, [answer_in_block(session, text, parameters) for text, parameters in QUERIES]))
        older = older[-2:]
        connection.execute(change)
        for place, (text, parameters) in enumerate(QUERIES):
            newest = answer(connection, f"{text} --", parameters)
            for _ in range(2):
                for session, known in older:
                    assert answer_in_block(session, text, parameters) == known[place], (change, text)
                    assert answer(connection, text, parameters) == newest, (change, text)


def answer_in_block(session: Connection, text: str, parameters: Sequence[object]) -> Answer:
    session.execute("SAVEPOINT s")
    found = answer(session, text, parameters)
    session.execute("ROLLBACK TO s")
    return found


def test_a_query_that_does_not_name_what_changes_is_not_planned_anew(memory: Engine) -> None:
    connection, plans = filled(memory), memory.database.plans
    kept = [query for query in QUERIES if query[0] in STEADY]
    assert len(kept) == len(STEADY)
    for text, parameters in kept:
        rows(connection, text, *parameters)
    before = {text: plan_of(plans, text) for text in STEADY}
    run(connection, *CHANGES[:2], DROPPED, "ALTER TABLE t ADD CHECK (c > 0), ALTER COLUMN b SET DEFAULT 'x'")
    run(connection, "CREATE INDEX u_x ON u (x)", "ALTER TABLE u ADD COLUMN more int")
    for text, parameters in kept:
        rows(connection, text, *parameters)
    unlike = {text for text in STEADY if plan_of(plans, text) is not before[text]}
    # What may use the new index is planned anew.
    assert unlike == {text for text in STEADY if " u " in text}


STEADY = {
    "SELECT id, a FROM t WHERE id = ?",
    "SELECT x FROM t, u WHERE t.id = u.t_id ORDER BY x",
    "SELECT id FROM v ORDER BY id",
    "SELECT count(*) FROM t",
    "SELECT id FROM t WHERE c = ?",
    "SELECT id FROM t ORDER BY c DESC LIMIT 2",
    "SELECT (SELECT max(x) FROM u WHERE u.t_id = t.id) FROM t ORDER BY id",
}


def plan_of(plans: object, text: str) -> object:
    return plans._entries[text].plans[0][1]  # type: ignore[attr-defined]  # the cache's own


# --- writes ----------------------------------------------------------------------------------------------------------


def test_inserts_across_changes(engine: Engine) -> None:
    connection, other = filled(engine), engine.connect()
    whole, some, numbers = (
        "INSERT INTO t VALUES (?, ?, 'b', 1)",
        "INSERT INTO t (id, c) VALUES (?, ?)",
        iter(range(10, 999)),
    )

    def insert(text: str = some, c: object = 1) -> tuple[object, ...]:
        for _ in range(TIMES):
            number = next(numbers)
            connection.execute(text, (number, c))
        ((found),) = rows(other, "SELECT * FROM t WHERE id = ?", number)
        return found[1:]

    assert insert() == (None, None, 1)
    assert insert(whole, 5) == (5, "b", 1)
    run(other, "ALTER TABLE t ADD COLUMN d int DEFAULT 7")
    assert insert() == (None, None, 1, 7)
    assert insert(whole, 5) == (5, "b", 1, 7)
    run(other, "ALTER TABLE t ALTER COLUMN d SET DEFAULT 8, ALTER COLUMN a SET DEFAULT 4")
    assert insert() == (4, None, 1, 8)
    run(other, "ALTER TABLE t ADD CHECK (c < 100)")
    with fails(errors.CHECK_VIOLATION):
        insert(some, 100)
    with fails(errors.NUMERIC_OUT_OF_RANGE):
        insert(some, -(2**31) - 1)
    run(other, "ALTER TABLE t ALTER COLUMN c TYPE bigint")
    assert insert(some, -(2**40)) == (4, None, -(2**40), 8)
    run(other, "ALTER TABLE t ALTER COLUMN d DROP DEFAULT")
    assert insert() == (4, None, 1, None)
    run(other, "ALTER TABLE t DROP COLUMN a")
    assert insert() == (None, 1, None)
    run(other, "ALTER TABLE t RENAME COLUMN c TO renamed")
    with fails(errors.UNDEFINED_COLUMN):
        insert()
    run(other, "ALTER TABLE t ADD COLUMN c text DEFAULT 'c'")
    assert insert(some, "new") == (None, None, None, "new")
    run(other, "DELETE FROM t WHERE id > 3", "ALTER TABLE t ALTER COLUMN b SET NOT NULL")
    with fails(errors.NOT_NULL_VIOLATION):
        insert(some, "new")


def test_inserts_and_constraints_that_come(engine: Engine) -> None:
    connection, other = filled(engine), engine.connect()
    text = "INSERT INTO u (id, t_id, x) VALUES (?, ?, ?)"
    for number in range(10, 10 + TIMES):
        connection.execute(text, (number, 1, number))
    run(other, "ALTER TABLE u ADD FOREIGN KEY (t_id) REFERENCES t (id)")
    with fails(errors.FOREIGN_KEY_VIOLATION):
        connection.execute(text, (20, 99, 20))
    connection.execute(text, (20, 3, 20))
    run(other, "ALTER TABLE u ADD UNIQUE (x)")
    with fails(errors.UNIQUE_VIOLATION):
        connection.execute(text, (21, 3, 20))
    with fails(errors.FOREIGN_KEY_VIOLATION):
        connection.execute("DELETE FROM t WHERE id = ?", (3,))


def test_updates_and_deletes_across_changes(engine: Engine) -> None:
    connection, other = filled(engine), engine.connect()
    put, add, remove = (
        "UPDATE t SET a = ? WHERE id = 1",
        "UPDATE t SET a = a + ? WHERE id = 1",
        "DELETE FROM t WHERE id = ?",
    )

    def update(a: object = 1) -> tuple[object, ...]:
        for _ in range(TIMES):
            assert connection.execute(put, (a,)).rowcount == 1
            assert connection.execute(add, (0,)).rowcount == 1
        return rows(other, "SELECT * FROM t WHERE id = 1")[0][1:]

    assert update(5) == (5, "one", 10)
    run(other, "ALTER TABLE t ADD COLUMN d int DEFAULT 7")
    assert update(6) == (6, "one", 10, 7)
    run(other, "ALTER TABLE t ALTER COLUMN d SET DEFAULT 8")
    assert update(6) == (6, "one", 10, 7)
    run(other, "CREATE INDEX t_a ON t (a)")
    assert update(7) == (7, "one", 10, 7)
    assert rows(other, "SELECT id FROM t WHERE a = 7") == [(1,)]
    run(other, "ALTER TABLE t ADD CHECK (a < 100)")
    with fails(errors.CHECK_VIOLATION):
        update(100)
    run(other, "ALTER TABLE t ALTER COLUMN a TYPE bigint")
    assert update(-(2**40))[0] == -(2**40)
    run(other, "ALTER TABLE t DROP COLUMN c")
    assert update(9) == (9, "one", 7)
    assert connection.execute(remove, (3,)).rowcount == 1
    run(other, "ALTER TABLE u ADD FOREIGN KEY (t_id) REFERENCES t (id) ON DELETE CASCADE")
    assert connection.execute(remove, (2,)).rowcount == 1
    assert value(other, "SELECT count(*) FROM u") == 1
    run(other, "ALTER TABLE t DROP COLUMN a CASCADE")
    with fails(errors.UNDEFINED_COLUMN):
        update()
    run(other, "ALTER TABLE t ADD COLUMN a text")
    assert connection.execute(put, ("text",)).rowcount == 1
    assert value(other, "SELECT a FROM t WHERE id = 1") == "text"


def test_a_write_is_made_anew_at_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a change a lean form is followed by a lean form: nothing is executed the general way in between."""
    connection, other = filled(engine), engine.connect()
    texts: list[tuple[str, Callable[[int], tuple[object, ...]]]] = [
        ("SELECT id, a FROM t WHERE id = ?", lambda number: (1,)),
        ("INSERT INTO t (id, a) VALUES (?, ?)", lambda number: (number, 1)),
        ("UPDATE t SET a = ? WHERE id = ?", lambda number: (number, 1)),
    ]
    for number in range(10, 10 + TIMES):
        for text, given in texts:
            connection.execute(text, given(number))
    for number, change in enumerate((CHANGES[0], DROPPED, CHANGES[0], DROPPED), 100):
        other.execute(change)
        with monkeypatch.context() as patched:
            patched.setattr(connection._session, "_in_transaction", None)
            for text, given in texts:
                connection.execute(text, given(number))
        assert rows(other, "SELECT id, a FROM t WHERE id IN (1, ?) ORDER BY id", number) == [(1, number), (number, 1)]


def test_another_schema_of_ones_own_is_nobody_elses(memory: Engine) -> None:
    """Who has changed the schema in his transaction plans for himself."""
    connection, other = filled(memory), memory.connect()
    text = "SELECT * FROM t WHERE id = 1"
    for _ in range(TIMES):
        assert rows(connection, text) == [(1, 1, "one", 10)]
    run(connection, "BEGIN", CHANGES[0])
    for _ in range(TIMES):
        assert rows(connection, text) == [(1, 1, "one", 10, 7)]
        assert rows(other, text) == [(1, 1, "one", 10)]
    connection.execute("ROLLBACK")
    assert rows(connection, text) == [(1, 1, "one", 10)]


def test_a_key_of_no_row_is_judged_by_the_schema_of_now(engine: Engine) -> None:
    """A key that is too long, or NULL, finds nothing; but by now it may be none, or the table be gone."""
    one, other = engine.connect(), engine.connect()
    run(one, "CREATE TABLE t (name text PRIMARY KEY, id bigint NOT NULL, n int)", "INSERT INTO t VALUES ('x', 1, 0)")
    long = "y" * 500
    look_up, update = "SELECT id FROM t WHERE name = ?", "UPDATE t SET n = ? WHERE name = ?"
    for name in ("x", long, "x", long):
        assert rows(one, look_up, name) == [(1,)] * (name == "x")
        assert one.execute(update, (1, name)).rowcount == (name == "x")
        assert one.execute(update, (1, None)).rowcount == 0
    run(other, "ALTER TABLE t ALTER PRIMARY KEY (id)", f"INSERT INTO t VALUES ('{long}', 2, 0)")
    for _ in range(TIMES):
        assert rows(one, look_up, long) == [(2,)]
        assert one.execute(update, (3, long)).rowcount == 1
    run(other, "ALTER TABLE t ALTER n TYPE boolean USING n > 0")
    with fails(errors.DATATYPE_MISMATCH):
        one.execute(update, (1, None))
    run(other, "DROP TABLE t")
    for text, values in ((look_up, (long,)), (look_up, (None,)), (update, (1, None))):
        with fails(errors.UNDEFINED_TABLE):
            one.execute(text, values)


def test_rows_bear_the_columns_that_they_were_read_by(engine: Engine) -> None:
    """A text has a plan for each class of its parameters, and these are found to be outdated one by one."""
    connection = engine.connect()
    run(connection, "CREATE TABLE t (id bigint PRIMARY KEY, a text)", "INSERT INTO t VALUES (1, 'x')")
    text = "SELECT * FROM t WHERE id = ?"

    def shown(parameter: object) -> tuple[list[str], tuple[object, ...]]:
        cursor = connection.execute(text, (parameter,))
        (row,) = cursor.fetchall()
        return [column[0] for column in cursor.description or ()], row

    assert shown("1") == shown(1) == (["id", "a"], (1, "x"))
    run(connection, "ALTER TABLE t ADD COLUMN c int DEFAULT 7")
    assert shown(1) == (["id", "a", "c"], (1, "x", 7))
    run(connection, "ALTER TABLE t DROP COLUMN c")
    for parameter in ("1", 1, "1", 1):
        assert shown(parameter) == (["id", "a"], (1, "x"))
    run(connection, "ALTER TABLE t RENAME a TO b")
    assert shown(1) == (["id", "b"], (1, "x"))
    run(connection, "ALTER TABLE t RENAME b TO a")
    for parameter in ("1", 1, "1", 1):
        assert shown(parameter) == (["id", "a"], (1, "x"))
