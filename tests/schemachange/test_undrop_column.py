"""ALTER TABLE ... UNDROP COLUMN: the column as it was, or an error that says what of it is gone."""

from __future__ import annotations

import pytest

from instar import errors
from instar.schemachange import wanted as want
from instar.schemachange.compact import Compaction
from instar.schemachange.executor import apply
from instar.schemachange.reorganize import InProcess
from instar.store.engine import Commit
from instar.types import INTEGER
from instar.worker import compaction
from instar.worker.work import Worker
from support.changes import ChangingWorld, Server
from support.databases import Engine, fails, rows, run

UNDROP = want.UndropColumn("t", "b")


def test_a_column_comes_back_where_it_was(engine: Engine) -> None:
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, c varchar(9) NOT NULL DEFAULT 'five', b text)",
        "INSERT INTO t VALUES (1, 'one', 'x')",
        "ALTER TABLE t ADD COLUMN d int DEFAULT 7",
        "INSERT INTO t VALUES (2, 'two', 'y', 8)",
    )
    before = rows(connection, "SELECT * FROM t ORDER BY id")
    run(connection, "ALTER TABLE t DROP COLUMN c", "ALTER TABLE t DROP COLUMN d", "ALTER TABLE t ADD COLUMN e int")
    listed = rows(connection, "SELECT kind, table_name, column_name FROM instar.dropped")
    assert listed == [("column", "t", "d"), ("column", "t", "c")]
    run(connection, "ALTER TABLE t UNDROP COLUMN d", "ALTER TABLE t UNDROP c")
    assert rows(connection, "SELECT * FROM instar.dropped") == []
    assert rows(connection, "SELECT * FROM t ORDER BY id") == [(*row, None) for row in before]
    assert rows(connection, "INSERT INTO t (id) VALUES (3) RETURNING c") == [("five",)]
    with fails("23502"):
        connection.execute("UPDATE t SET c = NULL")
    with fails("22001"):
        connection.execute("UPDATE t SET c = '1234567890'")
    run(connection, "CREATE INDEX t_c ON t (c)")
    assert rows(connection, "SELECT id FROM t WHERE c = 'two'") == [(2,)]
    assert rows(connection, "CHECK DATABASE") == []


def test_what_stood_on_the_column_is_named(engine: Engine) -> None:
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, c int UNIQUE CHECK (c > 0), b int)",
        "CREATE INDEX t_cb ON t (c, b)",
        "ALTER TABLE t ADD LOCK l COVERS (c, b)",
        "INSERT INTO t VALUES (1, 1, 1)",
        "ALTER TABLE t DROP COLUMN c",
        "ALTER TABLE t UNDROP COLUMN c",
    )
    told = "".join(connection.notices)
    assert all(f'"{name}"' in told for name in ("t_c_key", "t_cb", "t_c_check", "l"))
    assert rows(connection, "SELECT * FROM instar.indexes WHERE table_name = 't'") == []
    run(connection, "UPDATE t SET c = -1", "ALTER TABLE t DROP COLUMN b", "ALTER TABLE t UNDROP COLUMN b")
    assert rows(connection, "SELECT c, b FROM t") == [(-1, 1)]
    assert rows(connection, "CHECK DATABASE") == []


def test_not_null_comes_back(engine: Engine) -> None:
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, a int, b int CONSTRAINT n NOT NULL, c int)",
        "INSERT INTO t VALUES (1, 1, 1, 1)",
        "ALTER TABLE t ALTER a SET NOT NULL, ADD CONSTRAINT late NOT NULL c NOT VALID",
        *(f"ALTER TABLE t DROP COLUMN {column}" for column in "abc"),
        "ALTER TABLE t ADD CONSTRAINT n CHECK (id > 0)",
        *(f"ALTER TABLE t UNDROP COLUMN {column}" for column in "abc"),
    )
    assert [notice for notice in connection.notices if '"late"' in notice]
    listed = rows(connection, "SELECT name, state FROM instar.constraints WHERE kind = 'NOT NULL'")
    assert listed == [(f"t_{column}_not_null", "public") for column in ("id", "a", "b")]


def test_names(engine: Engine) -> None:
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, c int)",
        "INSERT INTO t VALUES (1, 10)",
        "ALTER TABLE t DROP COLUMN c",
        "ALTER TABLE t ADD COLUMN c int DEFAULT 20",
    )
    with fails("42701") as failed:
        connection.execute("ALTER TABLE t UNDROP COLUMN c")
    assert "AS another_name" in str(failed.error.hint)
    run(connection, "ALTER TABLE t DROP COLUMN c")
    run(connection, "ALTER TABLE t UNDROP COLUMN c", "ALTER TABLE t UNDROP COLUMN c AS older")
    assert rows(connection, "SELECT older, c FROM t") == [(10, 20)]
    for statement in ("ALTER TABLE t UNDROP COLUMN c", "ALTER TABLE t UNDROP COLUMN nothing"):
        with fails("42703"):
            connection.execute(statement.replace(" c", " gone"))
    with fails("0A000"):
        connection.execute("ALTER TABLE t UNDROP COLUMN c, ADD COLUMN z int")


def test_its_sequence_comes_back_with_it(engine: Engine) -> None:
    connection = engine.connect()
    run(
        connection,
        "CREATE SEQUENCE s",
        "CREATE TABLE t (id int PRIMARY KEY, c int GENERATED ALWAYS AS IDENTITY, d int DEFAULT nextval('s') NOT NULL)",
        "INSERT INTO t VALUES (1), (2)",
        "ALTER TABLE t DROP COLUMN c",
        "ALTER TABLE t DROP COLUMN d",
        "CREATE SEQUENCE t_c_seq",
        "DROP SEQUENCE s",
        "ALTER TABLE t UNDROP COLUMN c",
        "INSERT INTO t VALUES (3)",
    )
    assert "t_c_seq1" in "".join(connection.notices)
    assert rows(connection, "SELECT * FROM t ORDER BY id") == [(1, 1), (2, 2), (3, 3)]
    with fails("55000", "sequence that is gone"):
        connection.execute("ALTER TABLE t UNDROP COLUMN d")
    run(connection, "ALTER TABLE t UNDROP COLUMN d CASCADE")
    assert rows(connection, "SELECT id, d FROM t ORDER BY id") == [(1, 1), (2, 2), (3, None)]
    assert rows(connection, "CHECK DATABASE") == []


def test_a_column_that_left_in_stages() -> None:
    """Under a schema lease its index goes first, and its sequence with it."""
    engine = Engine(":memory:", schema_lease=0.05)
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, c int GENERATED ALWAYS AS IDENTITY)",
        "CREATE INDEX t_c ON t (c)",
        "INSERT INTO t VALUES (1), (2)",
        "ALTER TABLE t DROP COLUMN c",
        "INSERT INTO t VALUES (3)",
        "ALTER TABLE t UNDROP COLUMN c",
        "INSERT INTO t VALUES (4)",
        "DROP TABLE t",
        "UNDROP TABLE t",
    )
    assert rows(connection, "SELECT * FROM t ORDER BY id") == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert rows(connection, "CHECK DATABASE") == []
    engine.close()


@pytest.mark.parametrize(
    "since",
    [
        "TRUNCATE t",
        "ALTER TABLE t ALTER PRIMARY KEY USING COLUMNS (b)",
    ],
)
def test_what_replaces_rows_takes_the_values_along(engine: Engine, since: str) -> None:
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, b int NOT NULL, c int)",
        "INSERT INTO t VALUES (1, 1, 1)",
        "ALTER TABLE t DROP COLUMN c",
        since,
    )
    assert rows(connection, "SELECT * FROM instar.dropped") == []
    with fails("55000", "the values of column"):
        connection.execute("ALTER TABLE t UNDROP COLUMN c")


def test_a_job_that_gives_rows_other_values_takes_none_along(engine: Engine) -> None:
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, c int)",
        "INSERT INTO t SELECT g, g * 10 FROM generate_series(1, 5) g",
        "ALTER TABLE t ADD COLUMN d text DEFAULT 'then'",
        "ALTER TABLE t DROP COLUMN c",
        "UPDATE t SET d = 'since' WHERE id = 2",
        "ALTER TABLE t DROP COLUMN d",
        "ALTER TABLE t ADD s serial",
        "DELETE FROM t WHERE id = 3",
        "INSERT INTO t VALUES (3), (6)",
        "ALTER TABLE t ADD r float DEFAULT random()",
        "ALTER TABLE t UNDROP COLUMN d",
        "ALTER TABLE t UNDROP COLUMN c",
    )
    assert rows(connection, "SELECT id, c, d FROM t ORDER BY id") == [
        (1, 10, "then"), (2, 20, "since"), (3, None, "then"), (4, 40, "then"), (5, 50, "then"), (6, None, "then")
    ]  # fmt: skip
    assert rows(connection, "CHECK DATABASE") == []


def test_a_column_that_a_job_had_given_values_of_comes_back(engine: Engine) -> None:
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1), (2)",
        "ALTER TABLE t ADD COLUMN c serial",
        "ALTER TABLE t ADD COLUMN d uuid DEFAULT gen_random_uuid()",
    )
    before = rows(connection, "SELECT * FROM t ORDER BY id")
    run(connection, "ALTER TABLE t DROP COLUMN c", "INSERT INTO t VALUES (3)", "ALTER TABLE t UNDROP COLUMN c")
    assert rows(connection, "SELECT * FROM t ORDER BY id LIMIT 2") == before
    assert rows(connection, "SELECT c FROM t WHERE id = 3") == [(3,)]
    run(connection, "ALTER TABLE t DROP COLUMN c", "ALTER TABLE t DROP COLUMN d", "ALTER TABLE t UNDROP COLUMN c")
    run(connection, "ALTER TABLE t UNDROP COLUMN d")
    assert rows(connection, "SELECT * FROM t ORDER BY id LIMIT 2") == before


def test_who_wrote_without_the_column_is_turned_away(engine: Engine) -> None:
    writer, changer = engine.connect(autocommit=False), engine.connect(ddl_wait="0")
    run(
        changer,
        "CREATE TABLE t (id int PRIMARY KEY, b int, c int)",
        "INSERT INTO t VALUES (1, 1, 1)",
        "ALTER TABLE t DROP COLUMN c",
    )
    run(writer, "UPDATE t SET b = 2")
    run(changer, "ALTER TABLE t UNDROP COLUMN c")
    with fails("40001", "undrop column"):
        writer.commit()
    assert rows(changer, "SELECT * FROM t") == [(1, 1, 1)]


# --- compaction, and the watermark -----------------------------------------------------------------------------------


@pytest.fixture
def world() -> ChangingWorld:
    made = ChangingWorld()
    made.create_t([(number, number * 10, f"b{number}") for number in range(1, 6)])
    made.execute(want.DropColumn("t", "b"))
    made.execute(want.AddColumn("t", want.NewColumn("z", INTEGER)))
    return made


def values(world: ChangingWorld) -> list[tuple[object, ...]]:
    return sorted(row for _, row in world.rows(world.table()).values())


def test_compaction_loses_nothing_that_may_come_back(world: ChangingWorld) -> None:
    """Rule 26: rows stay in layouts with the column until the watermark has passed its drop."""
    worker = Worker(world.store, world.clock)
    claim = (b"\x08claim", b"the test's")
    world.store.commit(Commit(catalog_version=world.catalog().version, raw=[claim]))
    task = Compaction(world.store, world.catalog_cache, world.table(), job=9, stage=1, claim=claim, rows=5, whole=False)
    InProcess().run(task, lambda: None)
    world.execute(want.CompactTable("t"))
    for _ in range(10):
        world.clock.advance(world.store.retention_seconds / 20)
        world.store.commit(Commit(catalog_version=world.catalog().version, raw=[(b"\x08tick", b"")]))
        worker.turn()
    world.execute(UNDROP)
    assert values(world) == [(number, number * 10, f"b{number}", None) for number in range(1, 6)]


def test_past_the_watermark_it_is_gone(world: ChangingWorld) -> None:
    worker = Worker(world.store, world.clock)
    for _ in range(3):
        world.clock.advance(world.store.retention_seconds + compaction.LOOK_SECONDS + 60)
        world.store.commit(Commit(catalog_version=world.catalog().version, raw=[(b"\x08tick", b"")]))
        worker.turn()
    with pytest.raises(errors.Error) as caught:
        world.execute(UNDROP)
    assert caught.value.sqlstate == "42703"


def test_the_watermark_decides_when_it_is_committed(world: ChangingWorld) -> None:
    change = world.change()
    apply(world.plan(UNDROP).first, change)
    change.require_untouched(world.table(), world.now(), kept=world.now() - 1)
    with world.store.read() as reader:
        request = Commit(catalog_version=reader.catalog_version)
        change.parts(reader).add_to(request)
    world.store.collect(world.now(), lambda record: [])
    with pytest.raises(errors.Error) as caught:
        world.commit(change=change)
    assert caught.value.sqlstate == "55000"
    with pytest.raises(errors.Error) as caught:
        world.store.commit(request)
    assert caught.value.sqlstate == "72000"


def test_a_write_between_plan_and_commit_is_a_conflict(world: ChangingWorld) -> None:
    """Its row would have lost its value unnoticed."""
    change = world.change()
    apply(world.plan(UNDROP).first, change)
    change.require_untouched(world.table(), world.now(), kept=world.now() - 1)
    writer = Server(world)
    writer.update(1, a=99)
    writer.commit()
    with pytest.raises(errors.Error) as caught:
        world.commit(change=change)
    assert caught.value.sqlstate == "40001"
