"""ALTER COLUMN TYPE where values are converted: what is so at each stage, for whom, and what it leaves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

import instar
from instar.catalog.descriptors import State, Table
from instar.database import Database
from instar.dbapi import Connection
from instar.schemachange import populate, validate
from instar.schemachange.job_records import Job
from instar.store.engine import ROW_HEADER, ROW_TOMBSTONE, prefix_end, rowset_prefix
from instar.worker.work import Worker
from support.databases import Engine, rows, run, value
from support.steps import hook_jobs

MADE = "CREATE TABLE t (id bigint PRIMARY KEY, c text, n int)"
FILLED = "INSERT INTO t VALUES " + ", ".join(f"({i}, '{i}', {i})" for i in range(1, 10))
CONVERTED = "ALTER TABLE t ALTER COLUMN c TYPE int USING c::int"


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


def refused(connection: Connection, statement: str) -> instar.Error:
    with pytest.raises(instar.Error) as caught:
        connection.execute(statement)
    assert rows(connection, "CHECK DATABASE") == []
    return caught.value


def table(connection: Connection) -> Table:
    database = connection.database
    with database.store.read() as reader:
        found = database.catalog.at(reader).lookup("public", "t")
    assert isinstance(found, Table)
    return found


def layouts(connection: Connection) -> list[int]:
    """The layout of each row of t."""
    start = rowset_prefix(table(connection).rowset)
    with connection.database.store.read() as reader:
        tags = [ROW_HEADER.unpack_from(stored)[2] for _, stored in reader.scan(start, prefix_end(start))]
    return [tag >> 8 for tag in tags if not tag & ROW_TOMBSTONE]


def pending(engine: Engine, statement: str) -> int:
    """The job that a statement has begun, and that nobody works on yet."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "run_job", lambda *_: None)
        made = engine.connect(schema_change_mode="async")
        run(made, statement)
    return max(job.id for job in engine.database.jobs.all())


def finish(engine: Engine, job: int) -> Job:
    """The job as a worker leaves it."""
    Worker(engine.database.store, engine.database.clock).turn()
    return engine.database.jobs.get(job)


def collect(connection: Connection) -> None:
    """Cut the log as far as may be."""
    store = connection.database.store
    store.retention_seconds = 0.0
    Worker(store, connection.database.clock).collect()


def fails(connection: Connection, statement: str) -> str:
    """The SQLSTATE that a statement fails with."""
    with pytest.raises(instar.Error) as caught:
        connection.execute(statement)
    return caught.value.sqlstate


# --- what PostgreSQL says --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "sqlstate", "message", "hint"),
    [
        (
            "ALTER TABLE t ALTER c TYPE int",
            "42804",
            'column "c" cannot be cast automatically to type integer',
            'You might need to specify "USING c::integer".',
        ),
        (
            "ALTER TABLE t ALTER n TYPE date USING c",
            "42804",
            'result of USING clause for column "n" cannot be cast automatically to type date',
            "You might need to add an explicit cast.",
        ),
        (
            "ALTER TABLE t ALTER d TYPE int USING 1",
            "42804",
            'default for column "d" cannot be cast automatically to type integer',
            None,
        ),
        (
            'ALTER TABLE t ALTER "select" TYPE jsonb',
            "42804",
            'column "select" cannot be cast automatically to type jsonb',
            'You might need to specify "USING "select"::jsonb".',
        ),
        ("ALTER TABLE t ALTER x TYPE int USING 1", "42703", 'column "x" of relation "t" does not exist', None),
        ("ALTER TABLE t ALTER c TYPE int USING y", "42703", 'column "y" does not exist', None),
        (
            "ALTER TABLE t ALTER i TYPE text",
            "22023",
            "identity column type must be smallint, integer, or bigint",
            None,
        ),
        ("ALTER TABLE t ALTER k TYPE text", "42883", "operator does not exist: text > integer", None),
        ("ALTER TABLE t ALTER u TYPE text", "0A000", "cannot alter type of a column used by a view or rule", None),
        ("ALTER TABLE t ALTER c TYPE int USING sum(1)", "42803", None, None),
    ],
)
def test_what_postgresql_refuses(
    connection: Connection, statement: str, sqlstate: str, message: str | None, hint: str | None
) -> None:
    run(
        connection,
        "ALTER TABLE t ADD d text DEFAULT 'x', ADD k int CHECK (k > 0), ADD u int, ADD \"select\" text",
        "ALTER TABLE t ADD i int GENERATED ALWAYS AS IDENTITY",
        "CREATE VIEW v AS SELECT u FROM t",
    )
    before = table(connection)
    found = refused(connection, statement)
    assert found.sqlstate == sqlstate
    if message is not None:
        assert (found.message, found.hint or None) == (message, hint or found.hint or None)
    assert table(connection) == before


@pytest.mark.parametrize(
    ("default", "type_", "left"),
    [
        # What is written is of its own type, a constant of the column's.
        ("timestamp DEFAULT current_date", "date", "CURRENT_DATE"),
        ("text DEFAULT current_date", "date", "CURRENT_DATE"),
        ("timestamp DEFAULT current_date::timestamp", "date", "(CURRENT_DATE)::timestamp without time zone"),
        ("int DEFAULT random() * 9", "text", "(random() * '9'::double precision)"),
        ("int DEFAULT 1.5", "text", "'2'::text"),
        ("int DEFAULT NULL", "text", None),
    ],
)
def test_a_default_is_assigned_to_the_new_type(
    connection: Connection, default: str, type_: str, left: str | None
) -> None:
    run(connection, f"ALTER TABLE t ADD d {default}", f"ALTER TABLE t ALTER d TYPE {type_} USING NULL")
    found = "SELECT column_default FROM information_schema.columns WHERE table_name = 't' AND column_name = 'd'"
    assert value(connection, found) == left


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("ALTER TABLE t ALTER id TYPE int", "primary key"),
        ("ALTER TABLE t ALTER n TYPE smallint", 'foreign key "t_n_fkey"'),
        ("ALTER TABLE p ALTER code TYPE smallint", 'foreign key "t_n_fkey"'),
        ("ALTER TABLE t ALTER c TYPE int USING (SELECT 1)", "a subquery in a transform expression"),
        ("ALTER TABLE t ALTER c TYPE int USING nextval('s')", "a function of sequences in a transform expression"),
        ("ALTER TABLE t ALTER c TYPE int USING 1, ADD COLUMN e int", "together with other actions"),
    ],
)
def test_what_is_not_supported_says_so(connection: Connection, statement: str, named: str) -> None:
    run(
        connection,
        "CREATE TABLE p (id int PRIMARY KEY, code int UNIQUE)",
        "INSERT INTO p SELECT i, i FROM generate_series(1, 9) AS g (i)",
        "CREATE SEQUENCE s",
        "ALTER TABLE t ADD FOREIGN KEY (n) REFERENCES p (code)",
    )
    found = refused(connection, statement)
    assert found.sqlstate == "0A000"
    assert named in found.message


@pytest.mark.parametrize(
    ("type_", "statement", "sqlstate"),
    [
        ("text", CONVERTED, "22P02"),
        ("bigint", "ALTER TABLE t ALTER c TYPE smallint", "22003"),
        ("varchar(20)", "ALTER TABLE t ALTER c TYPE varchar(3)", "22001"),
        ("text", "ALTER TABLE t ALTER c TYPE float8 USING random() + c::int", "22P02"),
    ],
)
def test_rows_that_cannot_be_converted_fail_the_change_and_are_named(
    connection: Connection, type_: str, statement: str, sqlstate: str
) -> None:
    bad = "100000" if type_ == "bigint" else "'bad one'"
    good = "7" if type_ == "bigint" else "'7'"
    run(connection, "DROP TABLE t", f"CREATE TABLE t (id bigint PRIMARY KEY, c {type_})")
    run(connection, f"INSERT INTO t SELECT i, CASE WHEN i IN (3, 5) THEN {bad} ELSE {good} END "
        "FROM generate_series(1, 9) AS g (i)")  # fmt: skip
    run(connection, "CREATE INDEX i ON t (c)")
    before = rows(connection, "SELECT * FROM t ORDER BY id")
    found = refused(connection, statement)
    assert found.sqlstate == sqlstate
    expected = "It is row (id)=(3)." if "random" in statement else "2 rows cannot be converted: (id)=(3), (id)=(5)."
    assert found.detail == expected
    assert rows(connection, "SELECT * FROM t ORDER BY id") == before
    assert len(table(connection).columns) == 2
    assert [index.name for index in table(connection).indexes] == ["i"]
    run(connection, "DELETE FROM t WHERE id IN (3, 5)", statement)
    assert value(connection, "SELECT count(*) FROM t WHERE c IS NOT NULL") == 7


def test_a_conversion_to_null_keeps_to_not_null(connection: Connection) -> None:
    run(connection, "ALTER TABLE t ALTER c SET NOT NULL")
    found = refused(connection, "ALTER TABLE t ALTER c TYPE int USING nullif(c::int, 4)")
    assert (found.sqlstate, found.message) == ("23502", 'column "c" of relation "t" contains null values')
    found = refused(connection, "ALTER TABLE t ALTER c TYPE float8 USING nullif(c::int, 4) + random()")
    assert (found.sqlstate, found.message) == ("23502", 'column "c" of relation "t" contains null values')
    run(connection, "DELETE FROM t WHERE id = 4", "ALTER TABLE t ALTER c TYPE int USING nullif(c::int, 4)")
    assert refused(connection, "INSERT INTO t VALUES (20, NULL, 1)").sqlstate == "23502"


def test_a_unique_index_may_meet_duplicates(connection: Connection) -> None:
    run(connection, "CREATE UNIQUE INDEX u ON t (c)")
    found = refused(connection, "ALTER TABLE t ALTER c TYPE int USING c::int / 4")
    assert found.sqlstate == "23505"
    assert value(connection, "SELECT pg_typeof(c)::text FROM t WHERE c = '4'") == "text"
    run(connection, "ALTER TABLE t ALTER c TYPE int USING -c::int")
    assert refused(connection, "INSERT INTO t VALUES (20, -4, 1)").sqlstate == "23505"
    assert rows(connection, "SELECT id FROM t WHERE c < -7 ORDER BY c") == [(9,), (8,)]


# --- lazily ----------------------------------------------------------------------------------------------------------


def test_rows_stay_as_they_are_until_they_are_written_or_compacted(connection: Connection) -> None:
    run(connection, "CREATE INDEX i ON t (c)")
    before = layouts(connection)
    run(connection, CONVERTED)
    assert layouts(connection) == before
    assert rows(connection, "SELECT c FROM t WHERE c BETWEEN 3 AND 4 ORDER BY c") == [(3,), (4,)]
    assert value(connection, "SELECT sum(c) FROM t") == 45
    assert rows(connection, "SELECT c FROM t WHERE id = 5") == [(5,)]
    run(connection, "UPDATE t SET n = 0 WHERE id = 5")
    newest = table(connection).layout.id
    assert layouts(connection) == [newest if number == 5 else before[0] for number in range(1, 10)]
    collect(connection)
    run(connection, "COMPACT TABLE t")
    assert set(layouts(connection)) <= {before[0], newest}
    assert rows(connection, "SELECT id, c FROM t WHERE c >= 4 ORDER BY id") == [(i, i) for i in range(4, 10)]
    assert rows(connection, "CHECK DATABASE") == []


def test_conversions_of_conversions_and_columns_that_are_gone(connection: Connection) -> None:
    """Row 1 is still in the layout of the table's first day."""
    run(
        connection,
        "ALTER TABLE t ADD COLUMN d int DEFAULT 7",
        "ALTER TABLE t ALTER c TYPE text USING c || ':' || n || ':' || d",
        "UPDATE t SET n = 0 WHERE id = 2",
        "ALTER TABLE t DROP COLUMN n",
        "ALTER TABLE t ALTER d TYPE text",
        "UPDATE t SET c = c WHERE id = 3",
        "ALTER TABLE t ALTER c TYPE varchar(20) USING c || '/' || d",
        "ALTER TABLE t ALTER c TYPE varchar(30)",
        "ALTER TABLE t ALTER c TYPE bytea USING c::bytea",
    )
    assert rows(connection, "SELECT id, c, d FROM t WHERE id < 4 ORDER BY id") == [
        (number, f"{number}:{number}:7/7".encode(), "7") for number in (1, 2, 3)
    ]
    assert value(connection, "SELECT count(*) FROM t WHERE length(c) = 7") == 9
    assert rows(connection, "CHECK DATABASE") == []


def test_a_volatile_conversion_is_made_once(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(populate, "BATCH_ROWS", 2)
    run(connection, "CREATE INDEX i ON t (c)", "ALTER TABLE t ALTER c TYPE float8 USING c::int + random()")
    first = rows(connection, "SELECT id, c FROM t ORDER BY c")
    assert [int(found) for _, found in first] == list(range(1, 10))
    assert rows(connection, "SELECT id, c FROM t ORDER BY c") == first
    run(connection, "UPDATE t SET n = 0")
    assert rows(connection, "SELECT id, c FROM t ORDER BY c") == first
    assert set(layouts(connection)) == {table(connection).layout.id}


def test_the_time_and_the_zone_are_those_of_the_statement(engine: Engine) -> None:
    """Schedule 8: two sessions in different time zones have one answer, rows of before and after alike."""
    east, west = engine.connect(timezone="Asia/Tokyo"), engine.connect(timezone="America/New_York")
    run(
        east,
        "CREATE TABLE t (id int PRIMARY KEY, at timestamp, x int)",
        "CREATE INDEX i ON t (at)",
        "INSERT INTO t VALUES (1, '2020-02-02 09:00:00', 1), (2, '2020-07-02 09:00:00', 2)",
        "ALTER TABLE t ALTER at TYPE timestamptz",
    )
    same = "SELECT id FROM t WHERE at = '2020-02-02 00:00:00+00'"
    assert rows(east, same) == rows(west, same) == [(1,)]
    assert value(west, "SELECT at::text FROM t WHERE id = 1") == "2020-02-01 19:00:00-05"
    run(west, "UPDATE t SET x = 0 WHERE id = 1")
    assert rows(east, same) == rows(west, same) == [(1,)]
    run(west, "ALTER TABLE t ALTER at TYPE timestamp", "ALTER TABLE t ALTER x TYPE timestamptz USING now()")
    assert rows(east, "SELECT at::text FROM t ORDER BY id") == [("2020-02-01 19:00:00",), ("2020-07-01 20:00:00",)]
    assert len(set(rows(east, "SELECT x FROM t"))) == 1
    assert rows(east, "SELECT x FROM t") == rows(east, "SELECT x FROM t")
    assert rows(east, "CHECK DATABASE") == []


# --- meanwhile -------------------------------------------------------------------------------------------------------


def test_until_it_is_published_the_old_type_is_what_there_is(engine: Engine, connection: Connection) -> None:
    run(connection, "INSERT INTO t VALUES (20, 'bad', 1), (21, 'bad', 1)")
    job = pending(engine, CONVERTED)
    assert [column.state for column in table(connection).columns if column.name == "c"] == [
        State.PUBLIC,
        State.WRITE_ONLY,
    ]
    assert value(connection, "SELECT c || '' FROM t WHERE id = 20") == "bad"
    assert refused(connection, "INSERT INTO t VALUES (30, 'bad', 1)").sqlstate == "22P02"
    assert refused(connection, "UPDATE t SET n = 2 WHERE id = 20").sqlstate == "22P02"
    run(connection, "UPDATE t SET c = '20' WHERE id = 20", "DELETE FROM t WHERE id = 21")
    run(connection, "INSERT INTO t VALUES (31, '31', 1)", "INSERT INTO t (id) VALUES (32)")
    finish(engine, job)
    assert rows(connection, "SELECT id, c FROM t WHERE id > 9 ORDER BY id") == [(20, 20), (31, 31), (32, None)]
    assert rows(connection, "CHECK DATABASE") == []


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE INDEX i ON t (c)",
        "ALTER TABLE t ADD CHECK (c <> '')",
        "ALTER TABLE t ALTER c SET DEFAULT '5'",
        "ALTER TABLE t ALTER c SET NOT NULL",
        "ALTER TABLE t DROP COLUMN c",
        "ALTER TABLE t ADD COLUMN s bigserial",
        "ALTER TABLE t ALTER PRIMARY KEY (n)",
        "TRUNCATE t",
        "ALTER TABLE t ALTER c TYPE bigint USING 1",
    ],
)
def test_what_would_be_lost_waits_for_it(engine: Engine, connection: Connection, statement: str) -> None:
    pending(engine, CONVERTED)
    run(connection, "BEGIN")
    assert fails(connection, statement) == "55006"
    run(connection, "ROLLBACK")


ADD_CHECK = "ALTER TABLE t ADD CONSTRAINT v CHECK (c <> '99') NOT VALID"
ADD_NOT_NULL = "ALTER TABLE t ADD CONSTRAINT v NOT NULL c NOT VALID"
VALIDATED = "ALTER TABLE t VALIDATE CONSTRAINT v"
TO_TEXT = "ALTER TABLE t ALTER c TYPE text USING c || ''"


@pytest.mark.parametrize("added", [ADD_CHECK, ADD_NOT_NULL])
@pytest.mark.parametrize(("first", "then"), [(TO_TEXT, VALIDATED), (VALIDATED, TO_TEXT)])
def test_no_constraint_is_validated_on_what_goes(
    engine: Engine, connection: Connection, added: str, first: str, then: str
) -> None:
    """It was: the statement succeeded, and the constraint of the new column was NOT VALID."""
    run(connection, "UPDATE t SET c = '1' WHERE c IS NULL", added, "BEGIN", first)
    assert fails(connection, then) == "55006"
    run(connection, "ROLLBACK")
    job = pending(engine, first)
    run(connection, "BEGIN")
    assert fails(connection, then) == "55006"
    run(connection, "ROLLBACK")
    finish(engine, job)
    run(connection, then, VALIDATED)
    assert value(connection, "SELECT state FROM instar.constraints WHERE name = 'v'") == "public"


def test_what_has_nothing_to_do_with_it_goes_on_meanwhile(engine: Engine, connection: Connection) -> None:
    job = pending(engine, CONVERTED)
    run(connection, "ALTER TABLE t RENAME COLUMN c TO number", "ALTER TABLE t ADD COLUMN d int DEFAULT 4")
    run(connection, "ALTER TABLE t ALTER n SET DEFAULT 8", "ALTER TABLE t ALTER n TYPE bigint")
    finish(engine, job)
    assert rows(connection, "SELECT * FROM t WHERE id = 1") == [(1, 1, 1, 4)]
    assert value(connection, "SELECT number + 1 FROM t WHERE id = 2") == 3
    assert rows(connection, "CHECK DATABASE") == []


def test_a_view_that_comes_meanwhile_fails_it(engine: Engine, connection: Connection) -> None:
    job = pending(engine, CONVERTED)
    run(connection, "CREATE VIEW v AS SELECT c FROM t")
    problem = finish(engine, job).problem
    assert problem is not None
    assert problem.sqlstate == "0A000"
    assert problem.message == "cannot alter type of a column used by a view or rule"
    assert problem.detail == 'view v depends on column "c"'
    assert rows(connection, "SELECT c FROM v WHERE c = '1'") == [("1",)]
    assert rows(connection, "CHECK DATABASE") == []


def test_a_row_that_is_written_behind_the_validation_is_no_matter(
    engine: Engine, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows that cannot be converted only become fewer, wherever the walk is."""
    monkeypatch.setattr(validate, "BATCH_ROWS", 2)
    run(connection, "INSERT INTO t VALUES (20, 'bad', 1)")
    job = pending(engine, CONVERTED)
    run(connection, "UPDATE t SET id = 0, c = '0' WHERE id = 20")
    finish(engine, job)
    assert rows(connection, "SELECT c FROM t WHERE id = 0") == [(0,)]


def test_old_snapshots_read_the_old_type(engine: Engine, connection: Connection) -> None:
    reader = engine.connect()
    run(reader, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    before = rows(reader, "SELECT * FROM t ORDER BY id")
    run(connection, CONVERTED, "UPDATE t SET c = 100 WHERE id < 4", "DELETE FROM t WHERE id = 5", "COMPACT TABLE t")
    assert rows(reader, "SELECT * FROM t ORDER BY id") == before
    assert value(reader, "SELECT string_agg(c, '' ORDER BY id) FROM t") == "123456789"
    assert fails(reader, "UPDATE t SET n = 0 WHERE id = 9") == "40001"
    run(reader, "ROLLBACK")


POPULATED = "ALTER TABLE t ADD COLUMN s bigserial"


def read(connection: Connection) -> list[list[tuple[Any, ...]]]:
    """What is read of the column: whole rows, by key, in DuckDB, in a filter."""
    queries = (
        "SELECT id, c, n FROM t ORDER BY id",
        "SELECT c FROM t WHERE id = 1",
        "SELECT string_agg(c, '' ORDER BY id), count(c) FROM t",
        "SELECT id FROM t WHERE c = '1'",
    )
    return [rows(connection, query) for query in queries]


@pytest.mark.parametrize("change", [CONVERTED, "ALTER TABLE t DROP COLUMN c"])
@pytest.mark.parametrize(
    "since",
    [
        (POPULATED,),
        ("ALTER TABLE t ADD COLUMN n2 int DEFAULT 4", POPULATED, "ALTER TABLE t ADD u uuid DEFAULT gen_random_uuid()"),
        ("ALTER TABLE t ALTER n TYPE float8 USING random()",),
        ("UPDATE t SET n = 0 WHERE id < 4", POPULATED, "UPDATE t SET n = 1", "COMPACT TABLE t"),
        ("ALTER TABLE t ADD LOCK l COVERS (n)", POPULATED, "ALTER TABLE t DROP LOCK l"),
    ],
)  # fmt: skip
def test_rows_that_are_given_values_keep_what_older_snapshots_read(
    engine: Engine, connection: Connection, change: str, since: tuple[str, ...]
) -> None:
    """A population puts rows elsewhere where they stand; a change in the middle of a query is not noticed by it."""
    reader = engine.connect()
    run(reader, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    before = read(reader)
    assert before[2] == [("123456789", 9)]
    run(connection, change, *since)
    assert read(reader) == before
    run(reader, "ROLLBACK")
    assert rows(connection, "CHECK DATABASE") == []
    collect(connection)
    run(connection, "COMPACT TABLE t")
    assert len(set(layouts(connection))) == 1
    assert rows(connection, "CHECK DATABASE") == []


def test_a_column_that_is_dropped_while_rows_are_given_values(
    engine: Engine, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of the walk: rows that it comes to afterwards keep theirs too."""
    reader, dropper = engine.connect(), engine.connect(ddl_wait="0")
    run(reader, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    before = read(reader)
    batches = []

    def drop(step: str) -> None:
        batches.append(step)
        if batches.count("put") == 2 and step == "put":
            run(dropper, "ALTER TABLE t DROP COLUMN c")

    hook_jobs(monkeypatch, drop)
    run(connection, POPULATED)
    assert batches.count("put") > 3
    assert read(reader) == before
    assert rows(connection, "CHECK DATABASE") == []


def test_rows_that_never_had_a_column_are_not_missing_it(engine: Engine, connection: Connection) -> None:
    """They are compacted across its life, by which nothing is lost: it had one value in all of them."""
    reader = engine.connect()
    run(connection, "CREATE TABLE w (id int PRIMARY KEY, a int)", "INSERT INTO w VALUES (1, 10)")
    run(connection, "ALTER TABLE w ADD COLUMN c int DEFAULT 5")
    run(reader, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    assert rows(reader, "SELECT * FROM w") == [(1, 10, 5)]
    run(connection, "ALTER TABLE w DROP COLUMN c", "COMPACT TABLE w")
    assert rows(reader, "SELECT * FROM w") == [(1, 10, 5)]
    run(reader, "COMMIT")
    run(connection, "UPDATE w SET a = 11", "ALTER TABLE w UNDROP COLUMN c")
    assert rows(connection, "SELECT * FROM w") == [(1, 11, 5)]


def test_what_is_gone_need_not_be_converted(engine: Engine, connection: Connection) -> None:
    """The collector, and the validation of what was read, meet rows in the log that have no value of the new type."""
    reader = engine.connect()
    run(connection, "INSERT INTO t VALUES (20, 'bad', 1)", "CREATE INDEX i ON t (c)", "CREATE TABLE o (x int)")
    run(reader, "BEGIN ISOLATION LEVEL SERIALIZABLE", "INSERT INTO o VALUES (1)")
    assert rows(reader, "SELECT id FROM t WHERE n > 5 AND c = '6'") == [(6,)]
    run(connection, "DELETE FROM t WHERE id = 20", CONVERTED)
    assert fails(reader, "COMMIT") == "40001"
    collect(connection)
    assert rows(connection, "SELECT c FROM t WHERE c > 8") == [(9,)]
    assert rows(connection, "CHECK DATABASE") == []


# --- at once ---------------------------------------------------------------------------------------------------------


def test_on_an_empty_table_it_is_at_once(connection: Connection) -> None:
    run(connection, "CREATE UNIQUE INDEX i ON t (c)", "ALTER TABLE t ADD CHECK (n > 0)", "DELETE FROM t")
    before = value(connection, "SELECT count(*) FROM instar.jobs")
    run(connection, "ALTER TABLE t ALTER c TYPE int USING c::int, ALTER n TYPE numeric(4, 1)")
    assert value(connection, "SELECT count(*) FROM instar.jobs") == before
    run(connection, "INSERT INTO t VALUES (1, 5, 1.25)")
    assert rows(connection, "SELECT * FROM t WHERE c = 5 AND n::text = '1.3'") != []
    assert refused(connection, "INSERT INTO t VALUES (2, 5, 1)").sqlstate == "23505"
    assert refused(connection, "INSERT INTO t VALUES (2, 6, -1)").sqlstate == "23514"


def test_to_text_at_once_and_what_crosses_it_is_converted(engine: Engine, connection: Connection) -> None:
    writer = engine.connect()
    run(writer, "BEGIN", "UPDATE t SET n = 77 WHERE id = 1", "INSERT INTO t VALUES (20, 'x', 20)")
    before = value(connection, "SELECT count(*) FROM instar.jobs")
    run(connection, "ALTER TABLE t ALTER n TYPE text")
    assert value(connection, "SELECT count(*) FROM instar.jobs") == before
    run(writer, "UPDATE t SET n = n || '!' WHERE id = 2", "COMMIT")
    found = rows(connection, "SELECT id, n FROM t WHERE id IN (1, 2, 3, 20) ORDER BY id")
    assert found == [(1, "77"), (2, "2!"), (3, "3"), (20, "20")]


def test_what_crosses_a_conversion_to_text_of_an_empty_table_is_converted(
    engine: Engine, connection: Connection
) -> None:
    run(connection, "DELETE FROM t")
    writer = engine.connect()
    run(writer, "BEGIN", "INSERT INTO t VALUES (20, 'x', 20)")
    run(connection, "ALTER TABLE t ALTER n TYPE text")
    run(writer, "UPDATE t SET n = n || '!' WHERE id = 20", "COMMIT")
    assert rows(connection, "SELECT id, n FROM t") == [(20, "20!")]


def test_in_the_transaction_that_has_written_the_rows(connection: Connection) -> None:
    run(connection, "BEGIN", "INSERT INTO t VALUES (20, '20', 20)", CONVERTED, "COMMIT")
    assert rows(connection, "SELECT c FROM t WHERE id IN (1, 20) ORDER BY id") == [(1,), (20,)]
    run(connection, "BEGIN", "INSERT INTO t VALUES (21, 21, 21)", "ALTER TABLE t ALTER c TYPE text")
    assert rows(connection, "SELECT c || 'x' FROM t WHERE id IN (1, 21) ORDER BY id") == [("1x",), ("21x",)]
    run(connection, "UPDATE t SET c = 'y' WHERE id = 1", "COMMIT")
    assert rows(connection, "SELECT c FROM t WHERE id IN (1, 20, 21) ORDER BY id") == [("y",), ("20",), ("21",)]
    run(connection, "BEGIN", "CREATE TABLE u (x text)", "INSERT INTO u VALUES ('5')")
    run(connection, "ALTER TABLE u ALTER x TYPE int USING x::int", "COMMIT")
    assert rows(connection, "SELECT x + 1 FROM u") == [(6,)]
    assert rows(connection, "CHECK DATABASE") == []


# --- what goes with it -----------------------------------------------------------------------------------------------


def test_a_serial_column_keeps_its_sequence(connection: Connection) -> None:
    run(connection, "ALTER TABLE t ADD s bigserial", "ALTER TABLE t ALTER s TYPE int")
    run(connection, "INSERT INTO t (id) VALUES (20)")
    assert value(connection, "SELECT s FROM t WHERE id = 20") > 9
    assert refused(connection, "DROP SEQUENCE t_s_seq").sqlstate == "2BP01"
    run(connection, "ALTER TABLE t DROP COLUMN s")
    assert refused(connection, "DROP SEQUENCE t_s_seq").sqlstate == "42P01"


def test_defaults_checks_and_names(connection: Connection) -> None:
    run(
        connection,
        "ALTER TABLE t ADD k int NOT NULL DEFAULT 3 CONSTRAINT small CHECK (k < 100)",
        "ALTER TABLE t ADD CONSTRAINT both_ CHECK (k <> n + 1000) NOT VALID",
        "ALTER TABLE t ADD CONSTRAINT one UNIQUE (k, n)",
        "ALTER TABLE t ALTER k TYPE numeric(5, 1)",
        "INSERT INTO t (id) VALUES (20)",
    )
    assert value(connection, "SELECT k::text FROM t WHERE id = 20") == "3.0"
    assert refused(connection, "UPDATE t SET k = 100.5 WHERE id = 1").sqlstate == "23514"
    assert refused(connection, "INSERT INTO t (id, k, n) VALUES (21, 3, 9)").sqlstate == "23505"
    assert [found.name for found in table(connection).checks] == ["small", "both_"]
    assert [found.not_valid for found in table(connection).checks] == [False, True]
    run(connection, "ALTER TABLE t DROP CONSTRAINT one", "ALTER TABLE t VALIDATE CONSTRAINT both_")


def test_a_check_of_integers_of_two_widths_rounds_no_numeric(connection: Connection) -> None:
    run(
        connection,
        "ALTER TABLE t ADD k smallint DEFAULT 3 CHECK (k < 6)",
        "ALTER TABLE t ALTER k TYPE numeric",
        "UPDATE t SET k = 5.6 WHERE id = 1",
    )
    assert refused(connection, "UPDATE t SET k = 6.1 WHERE id = 1").sqlstate == "23514"


def test_as_of_before_it(connection: Connection) -> None:
    then = value(connection, "SELECT now()::text")
    time.sleep(0.002)  # what is committed in the same millisecond was there then
    run(connection, CONVERTED)
    for _ in range(2):
        assert rows(connection, f"SELECT c || 'x' FROM t AS OF SYSTEM TIME '{then}' WHERE id = 1") == [("1x",)]
        today = f"SELECT c + 1 FROM t AS OF SYSTEM TIME '{then}' WITH CURRENT SCHEMA WHERE id = 1"
        assert rows(connection, today) == [(2,)]
        run(connection, "UPDATE t SET c = c + 100")
