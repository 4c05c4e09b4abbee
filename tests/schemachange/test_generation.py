"""Generated columns of tables with rows: how they come, what is so meanwhile and for whom, what they hold in place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from instar.catalog.descriptors import State
from instar.database.bulk import SMALLEST_LOAD
from instar.dbapi import Connection
from instar.schemachange.online.changes import SourceRows
from instar.store.engine import prefix_end, rowset_prefix
from instar.transformations.records import Source
from schemachange.test_conversion import collect, finish, layouts, pending, table
from support.databases import Engine, fails, rows, run, value

MADE = "CREATE TABLE t (id bigint PRIMARY KEY, a int, s text)"
FILLED = "INSERT INTO t VALUES " + ", ".join(f"({i}, {i * 10}, 's{i}')" for i in range(1, 10))
ADDED = "ALTER TABLE t ADD COLUMN g int GENERATED ALWAYS AS (100 / (a - 30)) STORED"
HARMLESS = "ALTER TABLE t ADD COLUMN g int GENERATED ALWAYS AS (a * 2) STORED"


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine(":memory:")
    yield made
    made.close()


@pytest.fixture
def connection(engine: Engine) -> Connection:
    made = engine.connect()
    run(made, "SET ddl_wait = 0", MADE, FILLED)
    return made


def is_whole(connection: Connection, expression: str = "a * 2") -> None:
    """Each row has in g what the expression gives, and CHECK finds nothing."""
    assert value(connection, f"SELECT count(*) FROM t WHERE g IS DISTINCT FROM {expression}") == 0
    assert rows(connection, "CHECK DATABASE") == []


# --- how they come ---------------------------------------------------------------------------------------------------


def test_rows_stay_as_they_are_until_they_are_written_or_compacted(connection: Connection) -> None:
    before = layouts(connection)
    run(connection, HARMLESS, "CREATE INDEX i ON t (g)")
    assert layouts(connection) == before
    assert rows(connection, "SELECT id FROM t WHERE g BETWEEN 60 AND 80 ORDER BY g") == [(3,), (4,)]
    assert value(connection, "SELECT sum(g) FROM t") == 900
    run(connection, "UPDATE t SET s = 'x' WHERE id = 5")
    newest = table(connection).layout.id
    assert layouts(connection) == [newest if number == 5 else before[0] for number in range(1, 10)]
    collect(connection)
    run(connection, "COMPACT TABLE t")
    assert set(layouts(connection)) == {newest}
    is_whole(connection)


def test_rows_that_it_fails_for_fail_the_change_and_are_named(connection: Connection) -> None:
    before = table(connection)
    with fails("22012", "division by zero", "1 row would have no value of it: (id)=(3).") as failed:
        run(connection, ADDED)
    assert failed.error.detail
    run(connection, "INSERT INTO t VALUES (20, 30, 'x')")
    with fails("22012", "2 rows would have no value of it: (id)=(3), (id)=(20)."):
        run(connection, ADDED)
    assert [column.name for column in table(connection).columns] == [column.name for column in before.columns]
    assert rows(connection, "CHECK DATABASE") == []
    run(connection, "DELETE FROM t WHERE a = 30", ADDED)
    is_whole(connection, "100 / (a - 30)")


def test_not_null_and_constraints_come_with_it(connection: Connection) -> None:
    required = "ALTER TABLE t ADD COLUMN g int GENERATED ALWAYS AS (nullif(a, 30)) STORED NOT NULL"
    with fails("23502", 'column "g" of relation "t" contains null values', "1 row would have no value"):
        run(connection, required)
    with fails("23505", "t_g_key"):
        run(connection, "ALTER TABLE t ADD COLUMN g int GENERATED ALWAYS AS (a % 20) STORED UNIQUE")
    with fails("23514", "t_g_check"):
        run(connection, "ALTER TABLE t ADD COLUMN g int GENERATED ALWAYS AS (a) STORED CHECK (g < 90)")
    run(connection, "CREATE TABLE p (id int PRIMARY KEY)", "INSERT INTO p SELECT a FROM t WHERE a < 90")
    with fails("23503", "t_g_fkey"):
        run(connection, "ALTER TABLE t ADD COLUMN g int GENERATED ALWAYS AS (a) STORED REFERENCES p")
    assert len(table(connection).columns) == 3
    run(connection, "UPDATE t SET a = 31 WHERE id = 3", required)
    with fails("23502", '"g"'):
        run(connection, "UPDATE t SET a = 30 WHERE id = 3")
    is_whole(connection, "a")


def test_several_in_one_statement_and_what_they_read(connection: Connection) -> None:
    run(
        connection,
        "ALTER TABLE t ADD COLUMN b int DEFAULT 7, ADD COLUMN g int GENERATED ALWAYS AS (a * 2) STORED, "
        "ADD COLUMN h int GENERATED ALWAYS AS (a + b) STORED FIRST",
    )
    assert rows(connection, "SELECT * FROM t WHERE id = 2") == [(27, 2, 20, "s2", 7, 40)]
    with fails("42P17", 'cannot use generated column "h"'):
        run(connection, "ALTER TABLE t ADD COLUMN k int GENERATED ALWAYS AS (h) STORED")
    with fails("0A000", 'generated column "k"'):
        run(
            connection,
            "ALTER TABLE t ADD COLUMN v float8 DEFAULT random(), ADD COLUMN k float8 GENERATED ALWAYS AS (v) STORED",
        )
    run(connection, "ALTER TABLE t ADD COLUMN v float8 DEFAULT random()")
    run(connection, "ALTER TABLE t ADD COLUMN k float8 GENERATED ALWAYS AS (v * 2) STORED")
    assert value(connection, "SELECT count(*) FROM t WHERE k IS DISTINCT FROM v * 2 OR h <> a + b") == 0
    is_whole(connection)


def test_beside_a_column_that_rows_are_given_values_of(connection: Connection) -> None:
    """Population puts rows into the newest layout, with what is generated of them."""
    run(
        connection,
        "ALTER TABLE t ADD COLUMN v float8 DEFAULT random(), ADD COLUMN g int GENERATED ALWAYS AS (a * 2) STORED",
    )
    is_whole(connection)
    assert value(connection, "SELECT count(v) FROM t") == 9


def test_a_table_without_rows_has_it_at_once(connection: Connection) -> None:
    run(connection, "DELETE FROM t", HARMLESS, "INSERT INTO t (id, a) VALUES (1, 2)")
    assert rows(connection, "SELECT g FROM t") == [(4,)]


def test_what_is_generated_of_what_older_rows_do_not_have(connection: Connection) -> None:
    """Rows of three layouts: the source has its frozen default, or is a conversion itself."""
    run(
        connection,
        "ALTER TABLE t ADD COLUMN b int DEFAULT 7",
        "UPDATE t SET b = 8 WHERE id = 2",
        "ALTER TABLE t ALTER s TYPE int USING substr(s, 2)::int + b",
        "UPDATE t SET a = 0 WHERE id = 3",
        "ALTER TABLE t ADD COLUMN g int GENERATED ALWAYS AS (a * 2) STORED, "
        "ADD COLUMN h int GENERATED ALWAYS AS (s + b) STORED",
    )
    assert rows(connection, "SELECT id, s, b, g, h FROM t WHERE id < 4 ORDER BY id") == [
        (1, 8, 7, 20, 15),
        (2, 10, 8, 40, 18),
        (3, 10, 7, 0, 17),
    ]
    collect(connection)
    run(connection, "COMPACT TABLE t")
    assert value(connection, "SELECT count(*) FROM t WHERE h IS DISTINCT FROM s + b") == 0
    is_whole(connection)


def test_many_rows(connection: Connection) -> None:
    run(
        connection,
        f"INSERT INTO t SELECT i, i, 's' FROM generate_series(100, {SMALLEST_LOAD + 100}) AS x (i)",
        HARMLESS,
    )
    is_whole(connection)


# --- meanwhile -------------------------------------------------------------------------------------------------------


def test_until_it_is_published_nobody_sees_it_and_everybody_keeps_to_it(engine: Engine, connection: Connection) -> None:
    job = pending(engine, ADDED)
    assert table(connection).columns[-1].state is State.WRITE_ONLY
    assert rows(connection, "SELECT * FROM t WHERE id = 1") == [(1, 10, "s1")]
    with fails("42703"):
        run(connection, "SELECT g FROM t")
    with fails("22012"):
        run(connection, "INSERT INTO t VALUES (20, 30, 'x')")
    with fails("22012"):
        run(connection, "UPDATE t SET s = 'x' WHERE id = 3")
    with fails("2BP01", "column g of table t depends on column a of table t"):
        run(connection, "ALTER TABLE t DROP COLUMN a")
    with fails("0A000", "cannot alter type of a column used by a generated column"):
        run(connection, "ALTER TABLE t ALTER a TYPE bigint")
    run(
        connection,
        "UPDATE t SET a = 31 WHERE id = 3",
        "INSERT INTO t VALUES (21, 35, 'x')",
        "DELETE FROM t WHERE id = 9",
    )
    run(connection, "ALTER TABLE t RENAME a TO b")
    finish(engine, job)
    is_whole(connection, "100 / (b - 30)")


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t DROP COLUMN g",
        "ALTER TABLE t DROP COLUMN a CASCADE",
        "CREATE INDEX i ON t (g)",
        "ALTER TABLE t ALTER g DROP EXPRESSION",
        "ALTER TABLE t ALTER g SET NOT NULL",
        "ALTER TABLE t ADD COLUMN u uuid DEFAULT gen_random_uuid()",
    ],
)
def test_what_stands_on_it_waits_for_it(engine: Engine, connection: Connection, statement: str) -> None:
    job = pending(engine, HARMLESS)
    run(connection, statement)
    assert finish(engine, job).problem is None
    if "DROP COLUMN" not in statement:
        is_whole(connection)
    assert rows(connection, "CHECK DATABASE") == []


def test_a_change_that_fails_lets_the_writers_go_on(engine: Engine, connection: Connection) -> None:
    job = pending(engine, ADDED)
    with fails("22012"):
        run(connection, "INSERT INTO t VALUES (20, 30, 'x')")
    assert finish(engine, job).problem is not None
    run(connection, "INSERT INTO t VALUES (20, 30, 'x')")
    assert [column.name for column in table(connection).columns] == ["id", "a", "s"]
    assert rows(connection, "CHECK DATABASE") == []


@pytest.mark.parametrize("level", ["read committed", "repeatable read"])
@pytest.mark.parametrize("ends", [False, True])
def test_what_was_written_before_it_came_is_committed_with_it(
    engine: Engine, connection: Connection, level: str, ends: bool
) -> None:
    """The column comes, or begins to, between a transaction's statements and its commit."""
    run(connection, "CREATE INDEX i ON t (a)")
    writer = engine.connect(autocommit=False)
    run(writer, f"SET TRANSACTION ISOLATION LEVEL {level}")
    run(writer, "UPDATE t SET a = 77 WHERE id = 1", "INSERT INTO t VALUES (20, 5, 'x')", "DELETE FROM t WHERE id = 2",
        "UPDATE t SET id = 30 WHERE id = 4")  # fmt: skip
    job = pending(engine, HARMLESS + " UNIQUE")
    if ends:
        finish(engine, job)
    if level == "read committed":
        run(writer, "UPDATE t SET s = 'y' WHERE id = 5")
    writer.commit()
    if not ends:
        finish(engine, job)
    assert rows(connection, "SELECT id, g FROM t WHERE id IN (1, 2, 20, 30) ORDER BY id") == [
        (1, 154),
        (20, 10),
        (30, 80),
    ]
    assert rows(connection, "SELECT id FROM t WHERE g = 154") == [(1,)]
    is_whole(connection)


def test_what_was_written_before_it_came_may_be_refused_by_it(engine: Engine, connection: Connection) -> None:
    run(connection, "DELETE FROM t WHERE a = 30")
    for begin, statement, sqlstate in (
        (ADDED, "INSERT INTO t VALUES (20, 30, 'x')", "22012"),
        (ADDED.replace("STORED", "STORED NOT NULL"), "INSERT INTO t (id) VALUES (20)", "23502"),
    ):
        writer = engine.connect(autocommit=False)
        run(writer, statement)
        finish(engine, pending(engine, begin))
        with fails(sqlstate):
            writer.commit()
        is_whole(connection, "100 / (a - 30)")
        run(connection, "ALTER TABLE t DROP COLUMN g")


def test_what_was_written_before_its_source_had_values(engine: Engine, connection: Connection) -> None:
    """Both come meanwhile: the source, of which a job gives each row a value, and what is generated of it."""
    writer = engine.connect(autocommit=False)
    run(writer, "UPDATE t SET s = 'w' WHERE id = 1", "INSERT INTO t VALUES (20, 5, 'w')")
    run(connection, "ALTER TABLE t ADD COLUMN v int DEFAULT 1 + (random() * 100000)::int")
    run(connection, "ALTER TABLE t ADD COLUMN g int GENERATED ALWAYS AS (v * 2) STORED", "CREATE INDEX i ON t (g)")
    writer.commit()
    assert rows(connection, "SELECT id FROM t WHERE s = 'w' AND g IS NOT NULL ORDER BY id") == [(1,), (20,)]
    is_whole(connection, "v * 2")


def test_an_empty_table_lets_nobody_through_whom_it_would_fail_for(engine: Engine, connection: Connection) -> None:
    run(connection, "DELETE FROM t")
    good, bad = (engine.connect(autocommit=False) for _ in range(2))
    run(good, "INSERT INTO t VALUES (1, 5, 'x')")
    run(bad, "INSERT INTO t VALUES (2, 30, 'x')")
    run(connection, ADDED)
    good.commit()
    with fails("22012"):
        bad.commit()
    assert rows(connection, "SELECT id, g FROM t") == [(1, -4)]
    is_whole(connection, "100 / (a - 30)")


def test_an_older_snapshot_reads_on(engine: Engine, connection: Connection) -> None:
    reader = engine.connect(autocommit=False)
    run(reader, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    before = rows(reader, "SELECT * FROM t ORDER BY id")
    run(connection, "UPDATE t SET a = 31 WHERE id = 3", ADDED, "UPDATE t SET a = 32")
    assert rows(reader, "SELECT * FROM t ORDER BY id") == before
    reader.commit()
    is_whole(connection, "100 / (a - 30)")


# --- what they hold in place -----------------------------------------------------------------------------------------


def test_its_source_goes_with_it_only(connection: Connection) -> None:
    run(connection, HARMLESS, "CREATE INDEX i ON t (g, a)", "CREATE VIEW v AS SELECT g FROM t")
    with fails("2BP01", "cannot drop column a of table t", "column g of table t depends on column a of table t"):
        run(connection, "ALTER TABLE t DROP COLUMN a")
    run(connection, "ALTER TABLE t DROP COLUMN a CASCADE")
    assert rows(connection, "SELECT * FROM t WHERE id = 1") == [(1, "s1")]
    with fails("42P01"):
        run(connection, "SELECT * FROM v")
    assert table(connection).indexes == ()
    with fails("0A000", 'bringing back generated column "g"'):
        run(connection, "ALTER TABLE t UNDROP COLUMN g")
    run(connection, "ALTER TABLE t UNDROP COLUMN a", HARMLESS)
    is_whole(connection)


def test_a_table_keeps_a_column(connection: Connection) -> None:
    run(connection, "CREATE TABLE u (a int, g int GENERATED ALWAYS AS (a) STORED)")
    with fails("0A000", "the only column"):
        run(connection, "ALTER TABLE u DROP COLUMN a CASCADE")
    run(connection, "INSERT INTO u VALUES (1)")
    assert rows(connection, "SELECT * FROM u") == [(1, 1)]


def test_names_follow(connection: Connection) -> None:
    run(connection, HARMLESS, "ALTER TABLE t RENAME a TO b", "ALTER TABLE t RENAME g TO a", "UPDATE t SET b = 4")
    assert value(connection, "SELECT sum(a) FROM t") == 72
    with fails("428C9", '"a"'):
        run(connection, "UPDATE t SET a = 1")


@pytest.mark.parametrize("type_", ["bigint", "text", "int USING a + 1"])
def test_types_stay(connection: Connection, type_: str) -> None:
    run(connection, HARMLESS)
    with fails("0A000", "cannot alter type of a column used by a generated column", 'generated column "g"'):
        run(connection, f"ALTER TABLE t ALTER a TYPE {type_}")
    with fails("0A000", 'changing the type of generated column "g"'):
        run(connection, f"ALTER TABLE t ALTER g TYPE {type_}")


def test_a_job_finds_out_what_came_meanwhile(engine: Engine, connection: Connection) -> None:
    """A job drops a column, or widens it, at its end: something is generated of it by then."""
    run(connection, "ALTER TABLE t ADD COLUMN n int DEFAULT 1, ADD COLUMN w int DEFAULT 1")
    for last in ("DROP COLUMN n", "ALTER w TYPE bigint"):
        job = pending(engine, f"ALTER TABLE t ADD CHECK (id > 0), {last}")
        run(connection, "ALTER TABLE t ADD COLUMN g int GENERATED ALWAYS AS (n + w) STORED")
        problem = finish(engine, job).problem
        assert problem is not None
        assert problem.sqlstate == ("2BP01" if "DROP" in last else "0A000")
        is_whole(connection, "n + w")
        run(connection, "ALTER TABLE t DROP COLUMN g")


def test_default_and_identity(connection: Connection) -> None:
    run(connection, HARMLESS)
    with fails("42601", 'column "g" of relation "t" is a generated column'):
        run(connection, "ALTER TABLE t ALTER g SET DEFAULT 3")
    with fails("42601", 'column "g" of relation "t" is a generated column') as failed:
        run(connection, "ALTER TABLE t ALTER g DROP DEFAULT")
    assert "DROP EXPRESSION" in (failed.error.hint or "")
    run(connection, "ALTER TABLE t ALTER g SET NOT NULL")
    with fails("55000", "already has a default value"):
        run(connection, "ALTER TABLE t ALTER g ADD GENERATED ALWAYS AS IDENTITY")
    with fails("0A000", "SET EXPRESSION"):
        run(connection, "ALTER TABLE t ALTER g SET EXPRESSION AS (a)")


# --- DROP EXPRESSION -------------------------------------------------------------------------------------------------


def test_a_plain_column_is_left(connection: Connection) -> None:
    run(connection, HARMLESS, "CREATE INDEX i ON t (g)", "ALTER TABLE t ALTER g DROP EXPRESSION")
    assert value(connection, "SELECT sum(g) FROM t") == 900
    run(connection, "UPDATE t SET a = 0 WHERE id = 1", "UPDATE t SET g = 7 WHERE id = 2",
        "INSERT INTO t VALUES (20, 1)",
        "ALTER TABLE t ALTER g SET DEFAULT 5", "INSERT INTO t (id) VALUES (21)", "ALTER TABLE t DROP COLUMN a",
        "ALTER TABLE t ALTER g TYPE bigint")  # fmt: skip
    found = [(1, 20), (2, 7), (3, 60), (20, None), (21, 5)]
    asked = "SELECT id, g FROM t WHERE id < 4 OR id > 19 ORDER BY id"
    assert rows(connection, asked) == found
    collect(connection)
    run(connection, "COMPACT TABLE t")
    assert rows(connection, asked) == found
    assert rows(connection, "CHECK DATABASE") == []
    with fails("55000", 'column "g" of relation "t" is not a stored generated column'):
        run(connection, "ALTER TABLE t ALTER g DROP EXPRESSION")
    run(connection, "ALTER TABLE t ALTER g DROP EXPRESSION IF EXISTS")
    with fails("42703"):
        run(connection, "ALTER TABLE t ALTER nope DROP EXPRESSION IF EXISTS")


def test_who_has_written_before_it_is_told(engine: Engine, connection: Connection) -> None:
    run(connection, HARMLESS)
    writer = engine.connect(autocommit=False)
    run(writer, "UPDATE t SET a = 1 WHERE id = 1")
    run(connection, "ALTER TABLE t ALTER g DROP EXPRESSION", "UPDATE t SET g = 5 WHERE id = 2")
    with fails("40001", "drop expression"):
        writer.commit()


# --- other changes of the table --------------------------------------------------------------------------------------


def test_joins_and_splits_are_refused_by_name(connection: Connection) -> None:
    run(connection, HARMLESS, "CREATE TABLE u (id bigint PRIMARY KEY, k bigint)")
    for statement in (
        "ALTER TABLE t SPLIT INTO r (id, a), s (a, s) ON (a)",
        "ALTER TABLE t SPLIT IN PLACE INTO r (id, a), s (a, s) ON (a)",
        "ALTER TABLE u JOIN t USING (id) INTO w (id, k, a)",
    ):
        with fails("0A000", 'which has generated column "g"'):
            run(connection, statement)


def test_another_primary_key(connection: Connection) -> None:
    run(connection, HARMLESS, "CREATE INDEX i ON t (s)")
    run(connection, "ALTER TABLE t ALTER g SET NOT NULL", "ALTER TABLE t ALTER PRIMARY KEY (g)")
    assert rows(connection, "SELECT id FROM t WHERE g = 60") == [(3,)]
    run(connection, "UPDATE t SET a = 1000 WHERE id = 3")
    with fails("23505", "t_pkey"):
        run(connection, "INSERT INTO t VALUES (20, 10)")
    is_whole(connection)


def test_truncate_and_undrop(connection: Connection) -> None:
    run(connection, HARMLESS, "DROP TABLE t", "UNDROP TABLE t")
    is_whole(connection)
    run(connection, "TRUNCATE t", "INSERT INTO t VALUES (1, 2)")
    assert rows(connection, "SELECT * FROM t") == [(1, 2, None, 4)]


def test_a_dropped_column_comes_back_beside_it(connection: Connection) -> None:
    run(
        connection,
        HARMLESS,
        "ALTER TABLE t DROP COLUMN s",
        "UPDATE t SET a = 1 WHERE id = 1",
        "INSERT INTO t VALUES (20, 3)",
    )
    run(connection, "ALTER TABLE t UNDROP COLUMN s")
    assert value(connection, "SELECT s FROM t WHERE id = 1") == "s1"
    is_whole(connection)


def test_a_conversion_of_another_column_beside_it(connection: Connection) -> None:
    run(connection, HARMLESS, "ALTER TABLE t ALTER s TYPE int USING substr(s, 2)::int + g")
    assert rows(connection, "SELECT s FROM t WHERE id = 2") == [(42,)]
    is_whole(connection)


def test_a_materialized_view_follows_it(engine: Engine, connection: Connection) -> None:
    run(connection, HARMLESS)
    run(connection, "CREATE MATERIALIZED VIEW m WITH (refresh = 'log') AS SELECT g, count(*) AS n FROM t GROUP BY g")
    run(connection, "UPDATE t SET a = 10 WHERE id < 5", "INSERT INTO t VALUES (20, 10)")
    run(connection, "REFRESH MATERIALIZED VIEW m")
    assert rows(connection, "SELECT n FROM m WHERE g = 20") == [(5,)]
    assert rows(connection, "CHECK DATABASE") == []


def test_a_view_that_lags_behind_meets_rows_that_went_before_it(connection: Connection) -> None:
    """They may have no value of it, and nobody who follows them asks for one."""
    store, prefix = connection.database.store, rowset_prefix(table(connection).rowset)
    with store.read() as reader:
        before = [stored for _, stored in reader.scan(prefix, prefix_end(prefix))]
    run(connection, "DELETE FROM t WHERE id = 3", ADDED)
    with store.read() as reader:
        source = SourceRows(Source.T, table(connection))
        assert [source.row(stored, reader)[3] for stored in before[:4]] == [-5, -10, None, 10]


def test_check_tells_of_a_row_that_has_another_value(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("instar.sql.integrity.deriver", lambda _: lambda image: (*image[:2], 7))
    run(connection, "CREATE TABLE u (id int PRIMARY KEY, a int, g int GENERATED ALWAYS AS (a * 2) STORED)")
    run(connection, "INSERT INTO u VALUES (1, 3)")
    ((_table, what, _clause, key, message),) = rows(connection, "CHECK TABLE u")
    assert (what, key) == ('column "g"', "(id)=(1)")
    assert message == 'column "g" is not what its expression gives'


def test_writes_to_a_view_that_stands_for_a_table_that_was_split(connection: Connection) -> None:
    run(
        connection,
        "CREATE TABLE o (id int PRIMARY KEY, z int, c text)",
        "INSERT INTO o VALUES (1, 1, 'A'), (2, 1, 'A')",
        "ALTER TABLE o SPLIT INTO r (id, z), w (z, c) ON (z) WITH (keep_views = true)",
        "ALTER TABLE r ADD COLUMN g int GENERATED ALWAYS AS (id + z) STORED",
        "ALTER TABLE w ADD COLUMN h text GENERATED ALWAYS AS (c || '!') STORED",
        "INSERT INTO o VALUES (3, 2, 'B')",
        "UPDATE o SET z = 2, c = 'B' WHERE id = 2",
        "UPDATE o SET c = 'C' WHERE z = 1",
    )
    assert rows(connection, "SELECT * FROM r ORDER BY id") == [(1, 1, 2), (2, 2, 4), (3, 2, 5)]
    assert rows(connection, "SELECT * FROM w ORDER BY z") == [(1, "C", "C!"), (2, "B", "B!")]
    assert rows(connection, "CHECK DATABASE") == []
