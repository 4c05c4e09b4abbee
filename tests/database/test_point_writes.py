"""The short way of autocommit writes gives what the general way gives, however often a text has run before."""

from __future__ import annotations

import contextlib
import datetime as dt
import gc
import random
import threading
import weakref
from collections.abc import Iterator, Sequence
from decimal import Decimal

import pytest

import instar
from instar import errors
from instar.database.database import Database
from instar.database.point_writes import PointWriter
from instar.database.session import Session
from instar.dbapi import Connection
from instar.encoding.generate import compile_source
from instar.encoding.patching import RowPatcher
from instar.sql.execution import Row
from instar.tables.patching import Patchers
from instar.tables.rowset import TableReader
from support.databases import Engine, fails, rows, run, value

TIMES = 3  # the first execution goes the general way, the second compiles the short one, the third takes it
NOON = dt.datetime(2024, 1, 1, 12)
IN_OSLO = dt.datetime(2024, 1, 1, 11, tzinfo=dt.UTC)


@pytest.fixture
def memory() -> Iterator[Engine]:
    """A database in memory, for what no store has a say in."""
    made = Engine(":memory:")
    yield made
    made.close()


@pytest.mark.parametrize(
    ("statement", "given"),
    [
        ("UPDATE t SET z = ? WHERE id = 1", NOON),
        ("UPDATE t SET z = ? WHERE id = 1", "2024-01-01 12:00"),
        ("UPDATE t SET z = ?::text::timestamptz WHERE id = 1", "2024-01-01 12:00"),
        ("UPDATE t SET z = ?::timestamp WHERE id = 1", NOON),
    ],
)
def test_times_are_read_in_the_zone_of_the_session(engine: Engine, statement: str, given: object) -> None:
    utc, oslo = engine.connect(), engine.connect(timezone="Europe/Oslo")
    run(utc, "CREATE TABLE t (id int PRIMARY KEY, z timestamptz)", "INSERT INTO t VALUES (1)")
    for _ in range(TIMES):
        utc.execute(statement, (given,))
        assert value(utc, "SELECT z FROM t") == NOON.replace(tzinfo=dt.UTC)
    for _ in range(TIMES):
        oslo.execute(statement, (given,))
        assert value(utc, "SELECT z FROM t") == IN_OSLO


def test_checks_are_judged_in_the_zone_of_the_session(engine: Engine) -> None:
    oslo = engine.connect(timezone="Europe/Oslo")
    run(oslo, "CREATE TABLE t (id int PRIMARY KEY, z timestamptz, CHECK (z::timestamp < '2024-01-01 12:00'))")
    for identity in range(TIMES):
        oslo.execute("INSERT INTO t VALUES (?, ?)", (identity, IN_OSLO - dt.timedelta(seconds=1)))
        with fails(errors.CHECK_VIOLATION):
            oslo.execute("INSERT INTO t VALUES (?, ?)", (identity + 10, IN_OSLO))


def test_defaults_read_the_clock(engine: Engine) -> None:
    connection = engine.connect()
    run(connection, "CREATE TABLE t (id int PRIMARY KEY, z timestamptz DEFAULT now())")
    for identity in range(TIMES):
        connection.execute("INSERT INTO t (id) VALUES (?)", (identity,))
    assert value(connection, "SELECT count(*) FROM t WHERE z > '2020-01-01'") == TIMES


def test_parameters_may_change_their_class(engine: Engine) -> None:
    connection = engine.connect()
    run(connection, "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 1)")
    for _ in range(TIMES):
        for given, wanted in ((2, 3), (Decimal("1.5"), 3), (2.0, 3), ("3", 4), (None, None)):
            connection.execute("UPDATE t SET a = a + ? WHERE id = 1", (given,))
            assert value(connection, "SELECT a FROM t") == wanted
            connection.execute("UPDATE t SET a = 1")


def test_values_put_into_a_row(engine: Engine) -> None:
    """Updates that need nothing of the row: with and without NULLs, in rows of several layouts, several columns."""
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, a int, b numeric(5,2) NOT NULL, c text, d boolean, e date)",
        "INSERT INTO t VALUES (1, 1, 1, 'old', true, NULL), (2, NULL, 2, NULL, NULL, NULL)",
        "ALTER TABLE t ADD COLUMN f smallint DEFAULT 9",
        "INSERT INTO t VALUES (3, 3, 3, 'new', false, '2024-01-01', 3)",
    )
    day = dt.date(2024, 2, 29)
    for number in range(TIMES):
        for identity in (1, 2, 3, 4):
            changed = connection.execute(
                "UPDATE t SET f = ?, b = 1.5, a = ? WHERE id = ?", (number, number + 10, identity)
            )
            assert changed.rowcount == (identity < 4)
        with fails(errors.NOT_NULL_VIOLATION):
            connection.execute("UPDATE t SET b = ? WHERE id = 3", (None,))
        with fails(errors.NUMERIC_OUT_OF_RANGE):
            connection.execute("UPDATE t SET b = ? WHERE id = 3", (Decimal(1000),))
        assert rows(connection, "SELECT * FROM t ORDER BY id") == [
            (1, number + 10, Decimal("1.50"), "old", True, None, number),
            (2, number + 10, Decimal("1.50"), None, None, None, number),
            (3, number + 10, Decimal("1.50"), "new", False, dt.date(2024, 1, 1), number),
        ]
    for given in (day, None, day):
        for _ in range(TIMES):
            connection.execute("UPDATE t SET e = ?, d = ? WHERE id = 1", (given, given is None))
            assert rows(connection, "SELECT * FROM t WHERE id = 1") == [
                (1, TIMES + 9, Decimal("1.50"), "old", given is None, given, TIMES - 1)
            ]


def test_rows_in_older_layouts_are_moved_without_being_decoded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are those in the newest one decoded, whatever is put into them."""
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, a smallint, gone text, b text, c varchar(9))",
        "INSERT INTO t VALUES (1, 1, 'x', 'old', NULL), (2, NULL, NULL, NULL, 'ä'), (3, 3, 'y', 'older', 'c')",
        "ALTER TABLE t ADD COLUMN d numeric(5,2) DEFAULT 1.5, DROP COLUMN gone, ALTER COLUMN a TYPE int",
        "INSERT INTO t VALUES (4, 40000, 'new', 'd', 2)",
        "ALTER TABLE t ADD COLUMN e text, ADD COLUMN f text DEFAULT 'f'",
    )
    texts = ("UPDATE t SET b = ? WHERE id = ?", "UPDATE t SET e = ?, b = 'both' WHERE id = ?")
    for text in texts:  # the first executions take the general way
        for _ in range(TIMES):
            connection.execute(text, ("B", 3))
    monkeypatch.setattr(TableReader, "decode", lambda self, value: pytest.fail("a row was decoded"))
    run(connection, "ALTER TABLE t ALTER COLUMN c SET DEFAULT 'c'")  # so that all is made anew
    for identity in (1, 2, 3, 4):
        for text in texts[: 1 + identity % 2]:
            assert connection.execute(text, ("ü" * identity, identity)).rowcount == 1
    monkeypatch.undo()
    assert rows(connection, "SELECT id, a, b, c, d, e, f FROM t ORDER BY id") == [
        (1, 1, "both", None, Decimal("1.50"), "ü", "f"),
        (2, None, "üü", "ä", Decimal("1.50"), None, "f"),
        (3, 3, "both", "c", Decimal("1.50"), "üüü", "f"),
        (4, 40000, "üüüü", "d", Decimal("2.00"), None, "f"),
    ]
    assert rows(connection, "CHECK DATABASE") == []


def test_what_patches_a_row_is_made_outside_of_the_section(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a wide table that takes milliseconds, which others would wait for; so are rows that are not patched."""
    c = engine.connect()
    run(
        c,
        "CREATE TABLE t (id int PRIMARY KEY, a int, b numeric(5, 2))",
        "INSERT INTO t VALUES (1, 1, 1.5), (2, 2, 2.5)",
        "ALTER TABLE t ALTER COLUMN b TYPE numeric(9, 3)",  # converted: rows have to be decoded
        "INSERT INTO t VALUES (3, 3, 3.5)",
        "ALTER TABLE t ADD COLUMN d int",
    )
    met = []
    learn = Patchers.learn

    def watched(self: Patchers, stored: bytes) -> RowPatcher:
        assert not c.database.store._queue.leader  # type: ignore[attr-defined] # of either engine
        met.append(stored)
        return learn(self, stored)

    monkeypatch.setattr(Patchers, "learn", watched)
    text = "UPDATE t SET a = ? WHERE id = ?"
    for number in range(TIMES):
        for identity in (1, 2, 3):
            assert c.execute(text, (number, identity)).rowcount == 1
    assert len(met) == len(set(met)) <= 3
    assert rows(c, "SELECT * FROM t ORDER BY id") == [
        (number, TIMES - 1, Decimal(f"{number}.500"), None) for number in (1, 2, 3)
    ]


def test_rows_of_many_layouts_that_differ_in_nothing_are_changed_at_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column that comes and goes makes layouts without end. What moves their rows is made once, and not looked for
    outside of the section, which would have to be entered anew for it."""
    c = engine.connect()
    run(c, "CREATE TABLE t (id int PRIMARY KEY, a int)")
    layouts, groups = 20, 4
    text = "UPDATE t SET a = ? WHERE id = ?"

    def change(number: int) -> None:
        run(c, "ALTER TABLE t DROP COLUMN e" if number % 2 else "ALTER TABLE t ADD COLUMN e int DEFAULT 5")

    def move(group: int) -> None:
        for number in range(group, groups * layouts, groups):
            assert c.execute(text, (-number, number)).rowcount == 1

    for number in range(layouts):
        for group in range(groups):
            c.execute("INSERT INTO t (id, a) VALUES (?, 0)", (groups * number + group,))
        change(number)
    for group in (0, 1):  # makes what there is to make, with and without the column
        change(group)
        move(group)
    monkeypatch.setattr(Patchers, "learn", lambda self, stored: pytest.fail("a row was not moved at once"))
    for group in (2, 3):
        change(group)
        move(group)
    assert rows(c, "SELECT id, a FROM t ORDER BY id") == [(number, -number) for number in range(groups * layouts)]
    run(c, "INSERT INTO t (id, a) VALUES (-1, 0), (-2, 0)")
    assert c.execute(text, (1, -1)).rowcount == 1  # a layout that nobody has read
    change(0)
    assert c.execute(text, (2, -2)).rowcount == 1
    assert rows(c, "SELECT id, a FROM t WHERE id < 0 ORDER BY id") == [(-2, 2), (-1, 1)]
    run(c, "DELETE FROM t WHERE id < 0")
    assert rows(c, "SELECT DISTINCT e FROM t") == [(5,)]
    assert rows(c, "CHECK DATABASE") == []


def test_layouts_of_changes_that_did_not_come_about(engine: Engine) -> None:
    """Another change gets their number: what was known of them is not what its rows are read, or moved, by."""
    c = engine.connect()
    run(c, "CREATE TABLE t (id int PRIMARY KEY, a int)")
    c.executemany("INSERT INTO t (id, a) VALUES (?, 0)", [(number,) for number in range(4)])
    text, look_up = "UPDATE t SET a = ? WHERE id = ?", "SELECT id, a FROM t WHERE id = ?"
    for number in range(TIMES):
        c.execute(text, (number, 0))
        c.execute(look_up, (0,)).fetchall()
    run(c, "BEGIN", "ALTER TABLE t ADD COLUMN gone text DEFAULT 'gone'")
    for number in range(TIMES):
        c.execute(text, (number, 1))
        assert c.execute(look_up, (1,)).fetchall() == [(1, number)]
    run(c, "ROLLBACK", "ALTER TABLE t DROP COLUMN a, ADD COLUMN a text DEFAULT 'a'")
    for number in range(TIMES):
        assert c.execute(text, (f"b{number}", 2)).rowcount == 1
    run(c, "ALTER TABLE t ADD COLUMN e int DEFAULT 5")
    for number in range(TIMES):
        assert c.execute(text, (f"c{number}", 2)).rowcount == 1
        assert c.execute(look_up, (2,)).fetchall() == [(2, f"c{number}")]
    assert rows(c, "SELECT * FROM t ORDER BY id") == [(0, "a", 5), (1, "a", 5), (2, f"c{TIMES - 1}", 5), (3, "a", 5)]


def test_as_many_columns_as_a_table_may_have(engine: Engine) -> None:
    """Put in place and, into rows of an older layout, by moving them; the generated source is not too deep."""
    c = engine.connect()
    names = [f"c{number}" for number in range(1597)]
    run(
        c,
        f"CREATE TABLE t (id int PRIMARY KEY, {', '.join(f'{name} int' for name in names)})",
        f"INSERT INTO t VALUES (1{', 0' * len(names)}), (2{', 0' * len(names)})",
    )
    text = f"UPDATE t SET {', '.join(f'{name} = ?' for name in names)} WHERE id = ?"
    for number in range(TIMES):
        assert c.execute(text, (*[number] * len(names), 1)).rowcount == 1
    run(c, "ALTER TABLE t ADD COLUMN d int DEFAULT 7")
    for number in range(TIMES):
        assert c.execute(text, (*[number] * len(names), 2)).rowcount == 1
    assert rows(c, "SELECT * FROM t") == [(number, *[TIMES - 1] * len(names), 7) for number in (1, 2)]


def test_of_two_values_that_do_not_fit_the_first_column_s_is_told(engine: Engine) -> None:
    c = engine.connect()
    run(c, "CREATE TABLE t (id int PRIMARY KEY, n numeric(6, 2), v varchar(8))", "INSERT INTO t VALUES (1, 1, 'a')")
    for _ in range(TIMES):
        with fails(errors.NUMERIC_OUT_OF_RANGE):
            c.execute("UPDATE t SET v = ?, n = ? WHERE id = ?", ("x" * 20, 99999999, 1))
        c.execute("UPDATE t SET v = ?, n = ? WHERE id = ?", ("b", 1, 1))


def test_values_put_into_a_row_are_checked_and_indexed(engine: Engine) -> None:
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, a int, b int, CHECK (a < 100))",
        "CREATE TABLE u (id int PRIMARY KEY, a int, b int)",
        "INSERT INTO t VALUES (1, 1, 1)",
        "INSERT INTO u VALUES (1, 1, 1)",
    )
    for number in range(TIMES):
        connection.execute("UPDATE t SET a = ? WHERE id = 1", (number,))
        with fails(errors.CHECK_VIOLATION):
            connection.execute("UPDATE t SET a = ? WHERE id = 1", (100 + number,))
        connection.execute("UPDATE u SET b = ? WHERE id = 1", (number,))
    connection.execute("CREATE INDEX ub ON u (b)")
    for number in range(10, 10 + TIMES):
        connection.execute("UPDATE u SET b = ? WHERE id = 1", (number,))
        assert rows(connection, "SELECT id FROM u WHERE b = ?", number) == [(1,)]
        assert rows(connection, "SELECT id FROM u WHERE b = ?", number - 1) == []


def test_who_writes_a_row_is_held_to_a_not_null_that_is_not_valid_yet(engine: Engine) -> None:
    """In whichever column the NULL is, and whichever rows the statement has met before."""
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, a int, b int)",
        "INSERT INTO t VALUES (1, 1, NULL), (2, 2, 2)",
        "ALTER TABLE t ADD CONSTRAINT b_there NOT NULL b NOT VALID",
    )
    for number in range(TIMES):
        connection.execute("UPDATE t SET a = ? WHERE id = ?", (number, 2))
    for _ in range(TIMES):
        with fails(errors.NOT_NULL_VIOLATION):
            connection.execute("UPDATE t SET a = ? WHERE id = ?", (9, 1))
    assert rows(connection, "SELECT * FROM t ORDER BY id") == [(1, 1, None), (2, TIMES - 1, 2)]


@pytest.mark.parametrize("value_", ["coalesce(?, a) * 2", "greatest(a, ?) * 2", "abs(coalesce(?, a)) * 2"])
@pytest.mark.parametrize("before", [None, "1"])
def test_a_value_has_the_type_that_it_would_have_had_at_first(engine: Engine, value_: str, before: object) -> None:
    """Where its place does not decide the type, which has been NULL, or of another class, until now."""
    connection = engine.connect()
    run(connection, "CREATE TABLE t (id int PRIMARY KEY, a int, b bigint)", "INSERT INTO t VALUES (1, 1, 1)")
    statement = f"UPDATE t SET b = {value_} WHERE id = ?"
    for _ in range(TIMES):
        with contextlib.suppress(instar.Error):  # a text and an integer have no common type
            connection.execute(statement, (before, 1))
    connection.execute(statement, (2**31 - 1, 1))
    assert value(connection, "SELECT b FROM t") == 2 * (2**31 - 1)


def test_strings_that_are_no_text_are_refused_at_the_statement(engine: Engine) -> None:
    connection = engine.connect()
    run(connection, "CREATE TABLE t (id int PRIMARY KEY, c text)", "INSERT INTO t VALUES (1, 'a')")
    for statement in ("UPDATE t SET c = ? WHERE id = ?", "UPDATE t SET c = left(?, 0) WHERE id = ?"):
        for number in range(TIMES):
            connection.execute(statement, (f"é{number}", 1))
            for key in (1, 9):
                with fails("22021", 'invalid byte sequence for encoding "UTF8"'):
                    connection.execute(statement, ("\ud800", key))


def test_what_a_statement_gives_is_judged_before_defaults(engine: Engine) -> None:
    connection = engine.connect()
    run(connection, "CREATE TABLE t (a int, v varchar(3), id int PRIMARY KEY, n serial)")
    statement = "INSERT INTO t (id, v) VALUES (?, ?)"
    for number in range(TIMES):
        connection.execute(statement, (number, "x"))
        with fails("22001"):
            connection.execute(statement, (9, "long"))
    assert rows(connection, "SELECT n FROM t ORDER BY id") == [(number + 1,) for number in range(TIMES)]
    run(connection, "ALTER TABLE t ALTER a SET DEFAULT 1 / (length('abc') - 3)")
    for _ in range(TIMES):
        with fails("22001"):
            connection.execute(statement, (9, "long"))
        with fails("22012"):
            connection.execute(statement, (9, "x"))


def test_generated_columns_are_computed_on_the_short_way(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = 0
    run_short = PointWriter.run

    def counted(self: PointWriter, parameters: Sequence[object], session: Session) -> int | list[Row]:
        nonlocal taken
        taken += 1
        return run_short(self, parameters, session)

    monkeypatch.setattr(PointWriter, "run", counted)
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, a int, s text, g int GENERATED ALWAYS AS (100 / a) STORED)",
        "CREATE INDEX tg ON t (g)",
    )
    for number in range(1, TIMES + 1):
        connection.execute("INSERT INTO t (id, a) VALUES (?, ?)", (number, 10 * number))
    for number in range(1, TIMES + 1):
        connection.execute("UPDATE t SET a = ? WHERE id = ?", (5 * number, number))
        assert rows(connection, "SELECT id FROM t WHERE g = ?", 20 // number) == [(number,)]
        connection.execute("UPDATE t SET s = ? WHERE id = ?", ("x", number))
        with fails(errors.DIVISION_BY_ZERO):
            connection.execute("UPDATE t SET a = ? WHERE id = ?", (0, number))
    connection.execute("DELETE FROM t WHERE id = 1")
    assert taken > TIMES
    assert rows(connection, "CHECK DATABASE") == []


@pytest.mark.parametrize("text", ["SELECT ?", "SELECT ? FROM t WHERE id = 1", "SELECT max(?) FROM t"])
def test_naive_and_aware_times_are_different_classes(engine: Engine, text: str) -> None:
    connection = engine.connect(timezone="Europe/Oslo")
    run(connection, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    for _ in range(TIMES):
        for given in (NOON, IN_OSLO, None, dt.date(2024, 1, 1), 2**70, 1):
            assert value(connection, text, given) == given


def test_schema_changes_between_two_executions(engine: Engine) -> None:
    connection, other = engine.connect(), engine.connect()
    run(connection, "CREATE TABLE t (id int PRIMARY KEY, a smallint, b text)")
    insert = "INSERT INTO t (id, a) VALUES (?, ?)"
    for identity in range(TIMES):
        connection.execute(insert, (identity, identity))
    other.execute("ALTER TABLE t ADD COLUMN c int DEFAULT 7")
    connection.execute(insert, (10, 10))
    assert rows(connection, "SELECT * FROM t WHERE id = 10") == [(10, 10, None, 7)]
    with fails(errors.NUMERIC_OUT_OF_RANGE):
        connection.execute(insert, (11, 70_000))
    other.execute("ALTER TABLE t ALTER COLUMN a TYPE int")
    connection.execute(insert, (11, 70_000))
    other.execute("CREATE UNIQUE INDEX ta ON t (a)")
    with fails(errors.UNIQUE_VIOLATION):
        connection.execute(insert, (12, 70_000))
    other.execute("DROP INDEX ta")
    connection.execute(insert, (12, 70_000))
    other.execute("ALTER TABLE t ALTER COLUMN b SET DEFAULT 'new'")
    connection.execute(insert, (13, 13))
    assert value(connection, "SELECT b FROM t WHERE id = 13") == "new"
    other.execute("ALTER TABLE t RENAME COLUMN a TO was_a")
    with fails(errors.UNDEFINED_COLUMN):
        connection.execute(insert, (14, 14))
    other.execute("DROP TABLE t")
    with fails(errors.UNDEFINED_TABLE):
        connection.execute(insert, (14, 14))


def test_a_read_only_session_takes_no_short_way(engine: Engine) -> None:
    connection, reader = engine.connect(), engine.connect(default_transaction_read_only="on")
    run(connection, "CREATE TABLE t (id int PRIMARY KEY, a int)")
    for identity in range(TIMES):
        connection.execute("INSERT INTO t VALUES (?)", (identity,))
        with fails(errors.READ_ONLY_TRANSACTION):
            reader.execute("INSERT INTO t VALUES (?)", (identity + 10,))


def test_cached_plans_follow_sequences(engine: Engine) -> None:
    connection, other = engine.connect(), engine.connect()
    connection.execute("CREATE SEQUENCE s")
    for wanted in range(1, TIMES + 1):
        assert value(connection, "SELECT nextval('s')") == wanted
    run(other, "DROP SEQUENCE s", "CREATE SEQUENCE s START 100")
    for wanted in range(100, 100 + TIMES):
        assert value(connection, "SELECT nextval('s')") == wanted
    other.execute("DROP SEQUENCE s")
    with pytest.raises(instar.ProgrammingError):
        connection.execute("SELECT nextval('s')")


def test_two_threads_find_out_at_once_that_the_schema_has_moved(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The short form of a statement is shared by the threads of a process, and taken away by whoever meets it first."""
    connection = engine.connect()
    run(connection, "create table t (id int primary key, n int)", "insert into t values (1, 0)")
    text = "update t set n = n + 1 where id = ?"
    connection.execute(text, (1,))
    writers = engine._held.point_writers
    fast = PointWriter.run

    def beside(writer: PointWriter, parameters: Sequence[object], session: Session) -> int | list[Row]:
        count = fast(writer, parameters, session)
        del writers[text]  # the other thread
        return count

    run(connection, "alter table t add column c int")
    monkeypatch.setattr(PointWriter, "run", beside)
    connection.execute(text, (1,))
    assert value(connection, "select n from t") == 2


def test_a_change_of_another_table_leaves_the_short_way_as_it_is(engine: Engine) -> None:
    c = engine.connect()
    run(c, "CREATE TABLE t (id int PRIMARY KEY, a int)", "CREATE TABLE other (id int PRIMARY KEY)")
    run(c, "INSERT INTO t VALUES (1, 0)")
    text = "UPDATE t SET a = a + ? WHERE id = 1"
    for _ in range(TIMES):
        c.execute(text, (1,))
    database = c.database
    made = database.point_writers[text][1]
    run(c, "ALTER TABLE other ADD COLUMN b int")
    c.execute(text, (1,))
    assert database.point_writers[text][1] is made
    run(c, "ALTER TABLE t ADD COLUMN b int DEFAULT 7")
    c.execute(text, (1,))
    renewed = database.point_writers[text][1]
    assert renewed is not made
    run(c, "ALTER TABLE other ADD COLUMN d int")
    c.execute(text, (0,))
    assert database.point_writers[text][1] is renewed
    run(c, "ALTER TABLE other ADD COLUMN c int")
    c.execute(text, ("1",))  # of another class, after yet another change
    c.execute(text, (1,))
    assert rows(c, "SELECT a, b FROM t") == [(TIMES + 4, 7)]


def test_a_short_way_that_is_superseded_is_freed_at_once(engine: Engine) -> None:
    """Without the garbage collector, for which changes in quick succession would leave much to do."""
    c = engine.connect()
    run(c, "CREATE TABLE t (id int PRIMARY KEY, a int, CHECK (a >= 0))")
    texts = (
        "INSERT INTO t (id, a) VALUES (?, ?)",
        "UPDATE t SET a = id + ? WHERE id = ?",
        "UPDATE t SET a = ? WHERE id = ?",
    )
    for number in range(TIMES):
        for text in texts:
            c.execute(text, (number, number))
    kept = c.database.point_writers
    before = [weakref.ref(kept[text][1]) for text in texts]
    gc.disable()
    try:
        for column in ("b", "d"):  # a change that is taken back finds what was there before it, and nothing older
            assert [found() is None for found in before] == [False] * len(texts)
            run(c, f"ALTER TABLE t ADD COLUMN {column} int DEFAULT 7")
            for text in texts:
                c.execute(text, (TIMES + ord(column), TIMES))
            assert all(text in kept for text in texts)
        assert [found() for found in before] == [None] * len(texts)
    finally:
        gc.enable()


def test_a_short_way_keeps_no_version_of_the_catalog(memory: Engine) -> None:
    """Else what was there then could not be collected, for as long as nobody executes that text again."""
    c = memory.connect()
    run(c, "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 1)")
    for number in range(12):
        run(c, "ALTER TABLE t DROP COLUMN b" if number % 2 else "ALTER TABLE t ADD COLUMN b int DEFAULT 7")
        for last in range(number, 12):  # each text is executed up to a version of its own
            assert c.execute(f"UPDATE t SET a = ? WHERE id = ? -- {last}", (number, 1)).rowcount == 1
    assert value(c, "SELECT a FROM t") == 11
    gc.collect()
    assert len(c.database.catalog.cache._live) <= 2, "of the last statement, and of the last write"


# --- several versions of a table --------------------------------------------------------------------------------------

THERE_AND_BACK = [
    ("ALTER TABLE {0} ADD COLUMN c bigint DEFAULT 1", "ALTER TABLE {0} DROP COLUMN c"),
    ("ALTER TABLE {0} ADD COLUMN c text NOT NULL DEFAULT 'c'", "ALTER TABLE {0} DROP COLUMN c"),
    ("ALTER TABLE {0} ADD COLUMN c serial", "ALTER TABLE {0} DROP COLUMN c"),
    ("ALTER TABLE {0} ADD COLUMN c int DEFAULT 1 FIRST", "ALTER TABLE {0} DROP COLUMN c"),
    ("ALTER TABLE {0} ALTER COLUMN b SET DEFAULT 'new'", "ALTER TABLE {0} ALTER COLUMN b DROP DEFAULT"),
    ("ALTER TABLE {0} ALTER COLUMN b SET DEFAULT 'new'", "ALTER TABLE {0} ALTER COLUMN b SET DEFAULT 'newer'"),
    (
        "ALTER TABLE {0} ADD CONSTRAINT {0}_c CHECK (b <> 'b200' AND b <> 'b400')",
        "ALTER TABLE {0} DROP CONSTRAINT {0}_c",
    ),
    ("ALTER TABLE {0} ADD CONSTRAINT {0}_c CHECK (a < 100) NOT VALID", "ALTER TABLE {0} DROP CONSTRAINT {0}_c"),
    ("ALTER TABLE {0} ALTER COLUMN d SET NOT NULL", "ALTER TABLE {0} ALTER COLUMN d DROP NOT NULL"),
    ("CREATE INDEX {0}_a ON {0} (a)", "DROP INDEX {0}_a"),
    ("CREATE INDEX {0}_a ON {0} (a)", "ALTER INDEX {0}_a RENAME TO {0}_x"),
    ("CREATE UNIQUE INDEX {0}_b ON {0} (b)", "DROP INDEX {0}_b"),
    ("ALTER TABLE {0} ALTER COLUMN a TYPE int", "ALTER TABLE {0} ALTER COLUMN b TYPE text"),
    ("ALTER TABLE {0} RENAME COLUMN a TO c", "ALTER TABLE {0} RENAME COLUMN c TO a"),
    ("ALTER TABLE {0} RENAME COLUMN d TO c", "ALTER TABLE {0} RENAME COLUMN c TO d"),
    ("ALTER TABLE {0} DROP COLUMN a", "ALTER TABLE {0} ADD COLUMN a smallint AFTER id"),
    ("ALTER TABLE {0} ALTER COLUMN b FIRST", "ALTER TABLE {0} ALTER COLUMN b AFTER a"),
    ("ALTER TABLE {0} RENAME TO elsewhere_{0}", "ALTER TABLE elsewhere_{0} RENAME TO {0}"),
    ("ALTER TABLE {0} ADD LOCK la COVERS (a)", "ALTER TABLE {0} DROP LOCK la"),
    ("ALTER TABLE {0} ADD LOCK la COVERS (a)", "ALTER TABLE {0} ALTER LOCK la COVERS (a, b)"),
    ("ALTER TABLE {0} SET (migration = 'read')", "ALTER TABLE {0} SET (migration = 'write')"),
    (
        "ALTER TABLE {0} ADD CONSTRAINT {0}_f FOREIGN KEY (a) REFERENCES parent (id) NOT VALID",
        "ALTER TABLE {0} DROP CONSTRAINT {0}_f",
    ),
    (
        "CREATE TABLE child_of_{0} (id int PRIMARY KEY REFERENCES {0} (id) ON DELETE CASCADE)",
        "DROP TABLE child_of_{0}",
    ),
    ("ALTER TABLE {0} ADD COLUMN c int GENERATED ALWAYS AS (a * 2) STORED", "ALTER TABLE {0} DROP COLUMN c"),
    (
        "ALTER TABLE {0} ADD COLUMN c int GENERATED ALWAYS AS (10 / (a - 9)) STORED",
        "ALTER TABLE {0} ALTER COLUMN c DROP EXPRESSION",
    ),
    (
        "ALTER TABLE {0} ADD COLUMN c text GENERATED ALWAYS AS (coalesce(b, '') || id::text) STORED UNIQUE FIRST",
        "ALTER TABLE {0} DROP COLUMN c",
    ),
    ("TRUNCATE {0}", "INSERT INTO {0} (id, a) VALUES (-1, 1)"),
]


def _writes(n: int) -> list[tuple[str, tuple[object, ...]]]:
    """Writes of rows with keys from `n` on, and of row 1, which is as old as its table: each text several times, and
    with what constraints may be against."""
    insert, update, put = (
        "INSERT INTO {} (id, a) VALUES (?, ?)",
        "UPDATE {} SET a = a + ? WHERE id = ?",
        "UPDATE {} SET a",
    )
    return [
        *((insert, given) for given in ((n, 1), (n + 1, 40_000), (n + 2, None), (n + 3, 1), (n + 3, 4))),
        ("INSERT INTO {} (id, a, b) VALUES (?, 5, ?)", (n + 4, f"b{n}")),
        ("INSERT INTO {} (id, a, b) VALUES (?, 5, ?)", (n + 5, None)),
        *((f"{put} = ? WHERE id = ?", given) for given in ((6, n), (40_000, n), (7, 1), (None, n + 4), (n, 1))),
        *((update, given) for given in ((100, n), (8, 1), (9, n + 4), (30_000, 1))),
        ("UPDATE {} SET b = ? WHERE id = ?", (f"b{n}", 1)),
        ("UPDATE {} SET b = ? WHERE id = ?", ("a long text", n)),
        *(("UPDATE {} SET d = ? WHERE id = ?", given) for given in ((None, n), (2, n))),
        ("DELETE FROM {} WHERE id = ?", (n + 3,)),
        ("DELETE FROM {} WHERE id = ?", (n + 3,)),
    ]


def _written(connection: instar.Connection, table: str, n: int) -> list[object]:
    """What comes of these writes."""
    found: list[object] = []
    for text, given in _writes(n):
        try:
            if table == "within":
                connection.execute("SELECT 1")  # the first statement of a transaction goes the general way
            found.append(connection.execute(text.format(table), given).rowcount)
            connection.commit()
        except instar.Error as failed:
            found.append(
                (failed.sqlstate, *(str(told).replace(table, "t") for told in (failed.message, failed.detail)))
            )
            connection.rollback()
    return found


def _contents(connection: instar.Connection, table: str) -> object:
    try:
        return rows(connection, f"SELECT * FROM {table} ORDER BY id")
    except instar.Error as failed:
        return failed.sqlstate


@pytest.mark.parametrize(("there", "back"), THERE_AND_BACK)
def test_versions_of_a_table_that_come_and_go(memory: Engine, there: str, back: str) -> None:
    """The short way does what the general one does, whatever it has been compiled for before; in a transaction, too."""
    short, changing = memory.connect(), memory.connect()
    general, within = memory.connect(autocommit=False), memory.connect(autocommit=False)
    tables = ("short", "general", "within")
    defined = "(id int PRIMARY KEY, a smallint, b varchar(9), d int DEFAULT 3)"
    run(changing, "CREATE TABLE parent (id int PRIMARY KEY)", "INSERT INTO parent VALUES (1), (5), (6)")
    for table in tables:
        run(changing, f"CREATE TABLE {table} {defined}", f"INSERT INTO {table} VALUES (1, 1, 'old')")
    for number, change in enumerate([None, there, back, there, back, there]):
        n = 100 * (number + 1)
        for table in tables:
            # What stands in the way of a change stands in the way in both.
            with contextlib.suppress(instar.Error):
                changing.execute((change or "SELECT 1").format(table))
        for start in (n, n + 50):  # what is compiled anew first, and what is taken as it is then
            expected = _written(general, "general", start)
            assert _written(short, "short", start) == expected
            assert _written(within, "within", start) == expected
        assert _contents(changing, "short") == _contents(changing, "general") == _contents(changing, "within")
    assert rows(changing, "CHECK DATABASE") == []


def _compiled() -> int:
    """How many functions have been made of generated source so far."""
    found = compile_source.cache_info()
    return found.hits + found.misses


@pytest.mark.parametrize("column", ["b int DEFAULT 7", "b int NOT NULL DEFAULT 7"])
def test_nothing_is_compiled_for_a_shape_that_comes_back(engine: Engine, column: str) -> None:
    c = engine.connect()
    run(c, "CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL)", "CREATE TABLE other (id int PRIMARY KEY)")
    c.executemany("INSERT INTO t VALUES (?, 0)", [(number,) for number in range(TIMES)])
    for number in range(TIMES, 10):
        run(c, f"ALTER TABLE t {f'ADD COLUMN {column}' if number % 2 else 'DROP COLUMN b'}")
        run(c, f"ALTER TABLE other {'ADD COLUMN b int' if number % 2 else 'DROP COLUMN b'}")
        before = _compiled()
        for key in (0, number - 1):  # of the oldest layout, and of the last one
            c.execute("UPDATE t SET a = ? WHERE id = ?", (number, key))
        c.execute("UPDATE t SET a = a + ? WHERE id = ?", (1, 0))
        c.execute("INSERT INTO t (id, a) VALUES (?, ?)", (number, number))
        c.execute("DELETE FROM t WHERE id = ?", (number - 2,))
        if number > TIMES + 2:
            assert _compiled() == before
        assert rows(c, "SELECT id, a FROM t WHERE id IN (0, ?) ORDER BY id", number) == [
            (0, number + 1),
            (number, number),
        ]


def test_a_sequence_that_is_another_under_a_shape_that_comes_back(engine: Engine) -> None:
    c = engine.connect()
    run(c, "CREATE SEQUENCE s", "CREATE TABLE t (id int PRIMARY KEY)")
    for number in range(TIMES):
        c.execute("INSERT INTO t (id) VALUES (nextval('s'))")
        run(c, "ALTER TABLE t ADD COLUMN b int", "DROP SEQUENCE s", f"CREATE SEQUENCE s START {number * 100 + 100}")
        run(c, "ALTER TABLE t DROP COLUMN b")
    assert rows(c, "SELECT id FROM t ORDER BY id") == [(1,), (100,), (200,)]


RETURNING = (
    ("INSERT INTO t (a) VALUES (?) RETURNING *", (5,)),
    ("INSERT INTO t (a, b) VALUES (?, 'x') RETURNING id, upper(b) AS u, n", (6,)),
    ("UPDATE t SET a = a + ? WHERE id = ? RETURNING *, a * 2 AS twice", (1, 1)),
    ("UPDATE t SET a = ? WHERE id = ? RETURNING n", (7, 2)),
    ("UPDATE t SET a = ? WHERE id = ? RETURNING b", (7, 99)),
    ("DELETE FROM t WHERE id = ? RETURNING t.*", (3,)),
    ("DELETE FROM t WHERE id = ? RETURNING n", (99,)),
)
CHANGES = (
    "ALTER TABLE t ADD COLUMN m int DEFAULT 9",
    "ALTER TABLE t ALTER n SET DEFAULT 4",
    "ALTER TABLE t RENAME COLUMN n TO was",
    "ALTER TABLE t RENAME COLUMN was TO n",
    "ALTER TABLE t RENAME COLUMN m TO o",
    "ALTER TABLE t ALTER n TYPE bigint",
    "ALTER TABLE t ALTER n TYPE text",
    "ALTER TABLE t DROP COLUMN n",
    "ALTER TABLE t ADD COLUMN n date DEFAULT '2024-05-01'",
    "ALTER TABLE t ADD CHECK (a < 1000)",
    "CREATE INDEX ON t (b)",
    "ALTER TABLE t DROP COLUMN b",
)


def _returned(connection: instar.Connection, text: str, parameters: tuple[object, ...]) -> object:
    """What a statement returns, with its rows as they are on the outside."""
    try:
        cursor = connection.execute(text, parameters)
    except instar.Error as failed:
        return failed.sqlstate, failed.message
    return cursor.description, cursor.fetchall(), cursor.rowcount


@pytest.mark.parametrize("block", [False, True])
def test_what_is_returned(engine: Engine, block: bool) -> None:
    """As the general way returns it, which a text takes that was never seen, whatever was changed in between."""
    short, general = engine.connect(), Engine(":memory:")
    other = general.connect()
    seen = 0
    try:
        for connection in (short, other):
            run(connection, "CREATE TABLE t (id serial PRIMARY KEY, a int, b text, n int DEFAULT 1)")
        for change in ("SELECT 1", *CHANGES):
            for number in range(TIMES):
                if not number:
                    short.execute(change)
                    other.execute(change)
                if block:
                    run(short, "BEGIN")
                for text, parameters in RETURNING:
                    if block:
                        run(short, "SAVEPOINT s")
                    seen += 1
                    expected = _returned(other, f"{text} -- {seen}", parameters)
                    assert _returned(short, text, parameters) == expected
                    if block and isinstance(expected, tuple) and isinstance(expected[0], str):
                        run(short, "ROLLBACK TO s")
                if block:
                    run(short, "COMMIT")
        assert rows(short, "SELECT * FROM t ORDER BY id") == rows(other, "SELECT * FROM t ORDER BY id")
    finally:
        general.close()


def test_what_fails_while_it_is_returned_is_not_written(engine: Engine) -> None:
    connection = engine.connect()
    run(connection, "CREATE TABLE t (id int PRIMARY KEY, a int)")
    for number in range(TIMES):
        connection.execute("INSERT INTO t VALUES (?, ?) RETURNING 1 / a", (number, 1))
        connection.execute("UPDATE t SET a = ? WHERE id = ? RETURNING 1 / a", (2, number))
    for text, parameters in (
        ("INSERT INTO t VALUES (?, ?) RETURNING 1 / a", (50, 0)),
        ("UPDATE t SET a = ? WHERE id = ? RETURNING 1 / a", (0, 1)),
    ):
        with fails(errors.DIVISION_BY_ZERO):
            connection.execute(text, parameters)
    assert rows(connection, "SELECT count(*), sum(a) FROM t") == [(TIMES, 2 * TIMES)]
    for begin, end in (("SELECT 1", "SELECT 1"), ("BEGIN", "ROLLBACK")):
        run(connection, begin)
        with fails(errors.DIVISION_BY_ZERO):  # before it is seen that a row stands there
            connection.execute("INSERT INTO t VALUES (?, ?) RETURNING 1 / a", (0, 0))
        run(connection, end)


def alteration(draw: random.Random, there: set[str], gone: set[str]) -> str:
    """A change of a table that has these columns and had those, which it keeps up to date: mostly one column comes and
    goes."""
    kind = draw.choice(["toggle"] * 20 + ["back", "back", "move", "default"])
    name = draw.choice("e" * 15 + "f")
    if kind == "move":
        return f"ALTER COLUMN {draw.choice(['n', *sorted(there)])} {draw.choice(['FIRST', 'AFTER id'])}"
    if kind == "default":
        return f"ALTER COLUMN b SET DEFAULT {draw.randrange(2)}"
    if name in there:
        there.remove(name)
        gone.add(name)
        return f"DROP COLUMN {name}"
    there.add(name)
    if kind == "back" and name in gone:
        return f"UNDROP COLUMN {name}"
    return f"ADD COLUMN {name} int DEFAULT {5 if draw.randrange(8) else 6}"


def test_a_change_that_is_taken_back_finds_the_short_way_of_before(
    memory: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And makes nothing of the table's descriptor again."""
    c = memory.connect()
    run(c, "CREATE TABLE t (id int PRIMARY KEY, a int)")

    def execute(number: int) -> None:
        run(c, "ALTER TABLE t DROP COLUMN b" if number % 2 else "ALTER TABLE t ADD COLUMN b int DEFAULT 7")
        assert c.execute("INSERT INTO t (id, a) VALUES (?, ?)", (number, number)).rowcount == 1
        assert c.execute(UPDATE, (-number, number)).rowcount == 1

    for number in range(4):
        execute(number)
    monkeypatch.setattr(PointWriter, "__init__", lambda self, *_: pytest.fail("it was made from nothing"))
    for number in range(4, 8):
        execute(number)
    assert rows(c, "SELECT * FROM t ORDER BY id") == [(number, -number) for number in range(8)]


def test_what_was_null_is_changed_by_way_of_values(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """For which there is something as soon as one such row is met, under each version of the table."""
    c = engine.connect()
    run(c, "CREATE TABLE t (id int PRIMARY KEY, a int)")
    run(c, *(f"INSERT INTO t (id) VALUES ({key})" for key in range(1, 10)))
    text = "UPDATE t SET a = ? WHERE id = ?"
    for number in range(TIMES):
        c.execute(text, (number, number + 1))
    general = Session.open_transaction

    def at_once(*keys: int) -> None:
        monkeypatch.setattr(Session, "open_transaction", lambda self: pytest.fail("it took the general way"))
        for key in keys:
            assert c.execute(text, (key, key)).rowcount == 1
        monkeypatch.setattr(Session, "open_transaction", general)

    at_once(4)
    run(c, "ALTER TABLE t ADD COLUMN b int", "ALTER TABLE t DROP COLUMN b")
    at_once(5, 6)
    run(c, "INSERT INTO t VALUES (10, NULL)")  # in the newest layout, where a NULL has no place to be patched
    at_once(10)
    assert [row[0] for row in rows(c, "SELECT a FROM t ORDER BY id")] == [0, 1, 2, 4, 5, 6, None, None, None, 10]


@pytest.mark.parametrize("seed", range(12))
def test_a_table_that_changes_all_the_time(engine: Engine, seed: int) -> None:
    """What a short way has from versions before is right under each that comes: a twin of the table, whose statements
    are new texts every time, has the same rows."""
    draw = random.Random(seed)
    c = engine.connect()
    checked = ", CHECK (a < 1000)" if seed % 3 == 0 else ""  # without one, rows are patched
    for table in ("t", "u"):
        run(c, f"CREATE TABLE {table} (id int PRIMARY KEY, a int, b int UNIQUE DEFAULT 3, n int{checked})")
    insert, update = "INSERT INTO {} (id, a, b, n) VALUES (?, ?, ?, 0)", "UPDATE {} SET a = ? WHERE id = ?"
    others = (
        "UPDATE {} SET n = ? WHERE id = ?",
        "UPDATE {} SET b = b + ? WHERE id = ? RETURNING a, b",
        "DELETE FROM {} WHERE id = ?",
        "INSERT INTO {} (id, a, b) VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET a = excluded.a",
    )
    there: set[str] = set()
    gone: set[str] = set()
    for number in range(100):
        change = alteration(draw, there, gone)
        run(c, f"ALTER TABLE t {change}", f"ALTER TABLE u {change}")
        run(c, *(f"UPDATE {table} SET e = {number} WHERE id % 5 = {number % 5}" for table in "tu" if "e" in there))
        for text in (insert, *[update] * 6, draw.choice(others)):
            key, small = draw.randrange(40), draw.choice([*range(30), 1000, None])
            given = (key, small, draw.randrange(60)) if "INSERT" in text else (small, key) if "SET" in text else (key,)
            found: list[object] = []
            for table, note in (("t", ""), ("u", f" -- {number} {key}")):
                try:
                    found.append(c.execute(text.format(table) + note, given).rowcount)
                except errors.Error as failed:
                    found.append((failed.sqlstate, str(failed).replace(f'"{table}', '"')))
            assert found[0] == found[1]
        assert rows(c, "SELECT * FROM t ORDER BY id") == rows(c, "SELECT * FROM u ORDER BY id")
    assert rows(c, "CHECK DATABASE") == []


UPDATE = "UPDATE t SET a = ? WHERE id = ?"


def replaced(column: int) -> list[str]:
    """What puts another column in the place of e, and keeps this one, which has that id, for UNDROP under its name."""
    return [
        f"ALTER TABLE t RENAME COLUMN e TO o{column}",
        f"ALTER TABLE t DROP COLUMN o{column}",
        "ALTER TABLE t ADD COLUMN e int DEFAULT 7",
    ]


def columns_come_and_go(c: Connection) -> None:
    """A table of nineteen rows, whose third column has the id 4 now; and what updates know of those that went."""
    run(c, "CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL)")
    run(c, *(f"INSERT INTO t VALUES ({key}, 0)" for key in range(1, 20)), "ALTER TABLE t ADD COLUMN e int DEFAULT 7")
    for key in (1, 2):
        c.execute(UPDATE, (1, key))
    run(c, *replaced(3))
    for key in (4, 5):
        c.execute(UPDATE, (2, key))


def test_a_column_that_was_ignored_and_is_back(memory: Engine) -> None:
    """Whoever ignored it knows that of the layout; who has it back must not, though he knew of the column before."""
    c = memory.connect()
    columns_come_and_go(c)
    run(c, "UPDATE t SET e = 42 WHERE id IN (6, 7, 8)", *replaced(4))
    for key in (9, 6):
        c.execute(UPDATE, (3, key))
    c.execute(UPDATE, ("5", 10))  # of another class, for which the text gets another short way
    run(c, "ALTER TABLE t DROP COLUMN e", "ALTER TABLE t UNDROP COLUMN o4 AS e")
    for key in (7, 11):
        c.execute(UPDATE, (4, key))
    assert rows(c, "SELECT * FROM t WHERE id BETWEEN 6 AND 9 ORDER BY id") == [
        (6, 3, 42),
        (7, 4, 42),
        (8, 0, 42),
        (9, 3, 7),
    ]


@pytest.mark.parametrize("back", [5, 6])
def test_a_thread_that_is_late_with_what_it_has_made(
    memory: Engine, back: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a version that others have left behind, with a column that went and came back meanwhile, of which it knew, or
    not."""
    c, late = memory.connect(), memory.connect()
    columns_come_and_go(c)
    run(c, *replaced(4), "UPDATE t SET e = 42 WHERE id IN (6, 7, 8)")
    made, goes_on, kept, ends = (threading.Event() for _ in range(4))
    keep = Database.keep_point_writer

    def keep_late(self: Database, text: str, command: str, writer: PointWriter) -> None:
        if threading.current_thread() is not thread:
            keep(self, text, command, writer)
            return
        made.set()
        assert goes_on.wait(60)
        keep(self, text, command, writer)
        kept.set()
        assert ends.wait(60)

    monkeypatch.setattr(Database, "keep_point_writer", keep_late)
    thread = threading.Thread(target=late.execute, args=(UPDATE, (3, 9)))
    thread.start()
    assert made.wait(60)
    c.execute(UPDATE, (3, 10))
    run(c, *replaced(5))
    c.execute(UPDATE, (4, 6))
    if back == 6:
        run(c, "UPDATE t SET e = 43 WHERE id IN (12, 13)", *replaced(6))
        c.execute(UPDATE, (4, 12))
    run(c, "ALTER TABLE t DROP COLUMN e", f"ALTER TABLE t UNDROP COLUMN o{back} AS e")
    goes_on.set()
    assert kept.wait(60)
    for key in (7, 13):
        c.execute(UPDATE, (5, key))
    ends.set()
    thread.join()
    assert rows(c, "SELECT id, e FROM t WHERE e <> 7 ORDER BY id") == (
        [(6, 42), (7, 42), (8, 42)] if back == 5 else [(12, 43), (13, 43)]
    )
