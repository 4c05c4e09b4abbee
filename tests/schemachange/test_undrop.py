"""UNDROP TABLE: what was dropped comes back as it was, as long as nobody can have taken anything of it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from instar import errors
from instar.schemachange import wanted as want
from instar.schemachange.executor import apply
from instar.store.engine import Commit, prefix_end, rowset_prefix
from instar.store.records import RowsetState, decode_rowset_record, rowset_key
from instar.transactions.commit import Conflict
from instar.worker.work import Worker
from support.changes import ChangingWorld, Server
from support.databases import Engine, fails, rows, run, value

UNDROP = want.UndropTables((("d", None),))


def moment(connection: Any) -> str:
    """A time that all before is committed by, and nothing after."""
    time.sleep(0.003)
    found = value(connection, "SELECT CAST(now() AS text)")
    time.sleep(0.003)
    assert isinstance(found, str)
    return found


def test_a_table_comes_back_with_all_that_it_had(engine: Engine) -> None:
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE p (id int PRIMARY KEY)",
        "INSERT INTO p VALUES (1), (2)",
        "CREATE TABLE t (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int DEFAULT 5 CHECK (a > 0), "
        "b text NOT NULL UNIQUE, up bigint REFERENCES t, p int REFERENCES p)",
        "CREATE INDEX t_a ON t (a DESC)",
        "INSERT INTO t (b, p) VALUES ('x', 1), ('y', 2), ('gone', 1)",
        "DELETE FROM t WHERE b = 'gone'",
        "ALTER TABLE t ADD COLUMN c int DEFAULT 7",
        "UPDATE t SET up = 1, a = 6 WHERE id = 2",
    )
    shape = rows(connection, "SELECT name, columns, is_unique FROM instar.indexes WHERE table_name = 't' ORDER BY 1")
    before = rows(connection, "SELECT * FROM t ORDER BY id")
    run(connection, "DROP TABLE t")
    assert rows(connection, "SELECT kind, table_name FROM instar.dropped") == [("table", "t")]
    with fails("42P01"):
        connection.execute("SELECT * FROM t")
    run(connection, "UNDROP TABLE t")
    assert rows(connection, "SELECT * FROM instar.dropped") == []
    assert rows(connection, "SELECT * FROM t ORDER BY id") == before
    found = rows(connection, "SELECT name, columns, is_unique FROM instar.indexes WHERE table_name = 't' ORDER BY 1")
    assert found == shape
    assert rows(connection, "SELECT id FROM t WHERE a = 6") == [(2,)]
    assert rows(connection, "INSERT INTO t (b, p) VALUES ('z', 1) RETURNING id, a, c") == [(4, 5, 7)]
    for refused, sqlstate in (
        ("INSERT INTO t (b) VALUES ('x')", "23505"),
        ("INSERT INTO t (b) VALUES (NULL)", "23502"),
        ("INSERT INTO t (b, a) VALUES ('w', 0)", "23514"),
        ("INSERT INTO t (b, p) VALUES ('w', 9)", "23503"),
        ("INSERT INTO t (b, up) VALUES ('w', 99)", "23503"),
        ("DELETE FROM p WHERE id = 2", "23503"),
        ("DELETE FROM t WHERE id = 1", "23503"),
    ):
        with fails(sqlstate):
            connection.execute(refused)
    run(connection, "ALTER TABLE t VALIDATE CONSTRAINT t_p_fkey")
    assert rows(connection, "CHECK DATABASE") == []
    # And as any other: it can be altered, dropped and brought back again.
    run(connection, "ALTER TABLE t DROP COLUMN c", "DROP TABLE t", "UNDROP TABLE t", "TRUNCATE t", "DROP TABLE t")
    run(connection, "UNDROP TABLE t")
    assert rows(connection, "SELECT * FROM t") == []
    assert rows(connection, "CHECK DATABASE") == []


def test_rows_that_a_foreign_key_refers_to_may_have_gone(engine: Engine) -> None:
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE p (id int PRIMARY KEY)",
        "INSERT INTO p VALUES (1), (2)",
        "CREATE TABLE t (id int PRIMARY KEY, p int REFERENCES p)",
        "INSERT INTO t VALUES (1, 1), (2, 2)",
        "DROP TABLE t",
        "DELETE FROM p WHERE id = 2",
        "UNDROP TABLE t",
    )
    assert "NOT VALID" in "".join(connection.notices)
    assert rows(connection, "SELECT state FROM instar.constraints WHERE name = 't_p_fkey'") == [("write-only",)]
    with fails("23503", "(2)"):
        connection.execute("ALTER TABLE t VALIDATE CONSTRAINT t_p_fkey")
    with fails("23503"):
        connection.execute("INSERT INTO t VALUES (3, 2)")
    run(connection, "DELETE FROM t WHERE id = 2", "ALTER TABLE t VALIDATE CONSTRAINT t_p_fkey")
    assert rows(connection, "CHECK DATABASE") == []


def test_what_is_gone_is_named_and_left_out_on_demand(engine: Engine) -> None:
    connection = engine.connect()
    run(
        connection,
        "CREATE SEQUENCE s",
        "CREATE TABLE p (id int PRIMARY KEY, u int UNIQUE)",
        "CREATE TABLE t (id int PRIMARY KEY DEFAULT nextval('s'), p int REFERENCES p, u int REFERENCES p (u))",
        "INSERT INTO t (p) VALUES (NULL)",
        "DROP TABLE t",
        "DROP SEQUENCE s",
        "ALTER TABLE p DROP CONSTRAINT p_u_key",
    )
    with fails("55000", '"id"', "sequence", '"t_u_fkey"', "no key of table") as failed:
        connection.execute("UNDROP TABLE t")
    assert "t_p_fkey" not in str(failed.error.detail)
    run(connection, "DROP TABLE p")
    with fails("55000", '"t_p_fkey"', 'table "p", which is dropped'):
        connection.execute("UNDROP TABLE t")
    run(connection, "UNDROP TABLE t CASCADE")
    assert rows(connection, "SELECT name FROM instar.constraints WHERE table_name = 't' AND kind <> 'NOT NULL'") == [
        ("t_pkey",)
    ]
    assert rows(connection, "SELECT * FROM t") == [(1, None, None)]
    with fails("23502"):
        connection.execute("INSERT INTO t (p) VALUES (1)")
    assert rows(connection, "CHECK DATABASE") == []


def test_tables_that_refer_to_each_other_come_back_together(engine: Engine) -> None:
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE p (id int PRIMARY KEY)",
        "CREATE TABLE t (id int PRIMARY KEY, p int REFERENCES p)",
        "ALTER TABLE p ADD COLUMN t int",
        "ALTER TABLE p ADD FOREIGN KEY (t) REFERENCES t",
        "CREATE TABLE kid (p int REFERENCES p)",
        "CREATE VIEW v AS SELECT t.id, p.id AS p FROM t JOIN p ON p.id = t.p",
        "CREATE VIEW w AS SELECT v.id FROM v JOIN kid ON kid.p = v.p",
        "INSERT INTO p VALUES (1, NULL)",
        "INSERT INTO t VALUES (5, 1)",
        "INSERT INTO kid VALUES (1)",
        "UPDATE p SET t = 5",
        "DROP TABLE p, t CASCADE",
    )
    with fails("55000", 'table "p", which is dropped'):
        connection.execute("UNDROP TABLE t")
    run(connection, "UNDROP TABLE t, p")
    assert 'foreign keys of table "kid" to "p" do not come back' in "".join(connection.notices)
    assert rows(connection, "SELECT * FROM w") == [(5,)]
    states = "SELECT state FROM instar.constraints WHERE kind = 'FOREIGN KEY'"
    assert rows(connection, states) == [("public",), ("public",)]
    with fails("23503"):
        connection.execute("DELETE FROM t")
    assert rows(connection, "CHECK DATABASE") == []


def test_a_view_on_what_has_changed_stays_dropped(engine: Engine) -> None:
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE u (id int PRIMARY KEY, x int)",
        "CREATE VIEW v AS SELECT u.x FROM t JOIN u ON u.id = t.id",
        "DROP TABLE t CASCADE",
        "ALTER TABLE u ALTER x TYPE bigint",
        "UNDROP TABLE t",
    )
    assert 'view "v", which was dropped with what it reads, does not come back' in "".join(connection.notices)
    assert rows(connection, "SELECT * FROM instar.views") == []


def test_names_that_are_taken(engine: Engine) -> None:
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, a int UNIQUE, s serial)",
        "INSERT INTO t (id, a) VALUES (1, 1)",
        "DROP TABLE t",
        "CREATE TABLE t (id int PRIMARY KEY, a int UNIQUE, s serial)",
    )
    with fails("42P07") as failed:
        connection.execute("UNDROP TABLE t")
    assert 'UNDROP TABLE "t" AS' in str(failed.error.hint)
    run(connection, "UNDROP TABLE t AS old")
    told = "".join(connection.notices)
    assert all(name in told for name in ("old_pkey", "old_a_key", "old_s_seq"))
    assert rows(connection, "INSERT INTO old (id, a) VALUES (2, 2) RETURNING s") == [(2,)]
    assert rows(connection, "SELECT count(*) FROM t") == [(0,)]
    assert rows(connection, "CHECK DATABASE") == []


def test_of_several_tables_of_one_name_the_newest_or_the_one_of_a_time(engine: Engine) -> None:
    connection = engine.connect()
    moments = []
    for number in range(3):
        run(connection, "CREATE TABLE t (id int)", f"INSERT INTO t VALUES ({number})")
        moments.append(moment(connection))
        run(connection, "DROP TABLE t")
    run(connection, "UNDROP TABLE t AS second AS OF SYSTEM TIME '" + moments[1] + "'", "UNDROP TABLE t")
    assert rows(connection, "SELECT id FROM t") == [(2,)]
    assert rows(connection, "SELECT id FROM second") == [(1,)]
    with fails("42P01"):
        connection.execute(f"UNDROP TABLE t AS OF SYSTEM TIME '{moments[1]}'")
    run(connection, f"UNDROP TABLE t AS first AS OF SYSTEM TIME '{moments[0]}'")
    assert rows(connection, "SELECT id FROM first") == [(0,)]
    with fails("22023"):
        connection.execute("UNDROP TABLE t AS OF SYSTEM TIME '2100-01-01'")
    # By the name that it had then; it comes back as it was at the drop.
    run(connection, "ALTER TABLE t RENAME TO u", "DROP TABLE u", f"UNDROP TABLE t AS OF SYSTEM TIME '{moments[2]}'")
    assert rows(connection, "SELECT id FROM u") == [(2,)]


def test_a_table_that_is_named_twice_comes_back_once(engine: Engine) -> None:
    """As DROP TABLE drops it once; under two names it cannot come back."""
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE a (id int)",
        "INSERT INTO a VALUES (1)",
        "CREATE TABLE b (id int)",
        "DROP TABLE b, a, a",
    )
    for named in ("b, a AS x, a", "b, a, a AS x", "a AS x, b, a AS y"):
        with fails("42712", 'table name "a" specified more than once'):
            connection.execute(f"UNDROP TABLE {named}")
    run(connection, "UNDROP TABLE a, b, a")
    assert rows(connection, "SELECT * FROM a") == [(1,)]
    assert rows(connection, "SELECT * FROM instar.dropped") == []


def test_what_the_transaction_of_the_drop_had_done_before_does_not_come_back(engine: Engine) -> None:
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, a int)",
        "INSERT INTO t VALUES (1, 1)",
        "BEGIN",
        "INSERT INTO t VALUES (2, 2)",
        "UPDATE t SET a = 9 WHERE id = 1",
        "ALTER TABLE t ADD COLUMN b int DEFAULT 7",
        "DROP TABLE t",
        "COMMIT",
        "UNDROP TABLE t",
    )
    assert rows(connection, "SELECT * FROM t") == [(1, 1)]
    run(connection, "BEGIN", "UPDATE t SET a = 9", "ALTER TABLE t DROP COLUMN a", "COMMIT")
    run(connection, "ALTER TABLE t UNDROP COLUMN a")
    assert rows(connection, "SELECT * FROM t") == [(1, 1)]


def test_in_a_transaction(engine: Engine) -> None:
    connection, other = engine.connect(autocommit=False), engine.connect()
    run(other, "CREATE TABLE t (id int PRIMARY KEY, a int UNIQUE)", "INSERT INTO t VALUES (1, 1)", "DROP TABLE t")
    run(connection, "UNDROP TABLE t", "INSERT INTO t VALUES (2, 2)", "ALTER TABLE t ADD COLUMN b int DEFAULT 3")
    run(connection, "UPDATE t SET a = 9 WHERE id = 1")
    assert rows(connection, "SELECT * FROM t ORDER BY id") == [(1, 9, 3), (2, 2, 3)]
    with fails("42P01"):
        other.execute("SELECT * FROM t")
    connection.rollback()
    run(connection, "UNDROP TABLE t", "DROP TABLE t", "CREATE TABLE t (x int)")
    connection.commit()
    assert rows(other, "SELECT * FROM t") == []
    run(connection, "DROP TABLE t", "SAVEPOINT s")
    with fails("42P01"):  # not dropped before this has been committed
        connection.execute("UNDROP TABLE t AS OF SYSTEM TIME '-1 us'")
    connection.rollback()
    run(connection, "DROP TABLE t")
    connection.commit()
    run(connection, "UNDROP TABLE t AS one", "INSERT INTO one VALUES (5)")
    run(other, "UNDROP TABLE t AS two")
    with fails("40001"):
        connection.commit()
    assert rows(other, "SELECT * FROM two") == []
    assert rows(other, "CHECK DATABASE") == []


def test_who_wrote_before_the_drop_commits_after_the_return(engine: Engine) -> None:
    """The rows are those of before, so what was done to them means what it meant."""
    writer, changer = engine.connect(autocommit=False), engine.connect(ddl_wait="0")
    run(changer, "CREATE TABLE t (id int PRIMARY KEY, a int UNIQUE)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    for level in ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"):
        run(writer, f"SET TRANSACTION ISOLATION LEVEL {level}", "UPDATE t SET a = a + 10 WHERE id = 1")
        run(changer, "DROP TABLE t", "UNDROP TABLE t", "UPDATE t SET a = a + 100 WHERE id = 2")
        if level == "READ COMMITTED":
            assert rows(writer, "SELECT a FROM t ORDER BY id")[1][0] > 100
        writer.commit()
    assert rows(changer, "SELECT a FROM t ORDER BY id") == [(31,), (302,)]
    assert rows(changer, "CHECK DATABASE") == []


# --- and the worker --------------------------------------------------------------------------------------------------


@pytest.fixture
def world() -> ChangingWorld:
    """Table t, for others to write to; and d, which is dropped, with an index: rows 1 to 5."""
    made = ChangingWorld()
    made.create_t([(1, 10, "x")])
    columns = tuple(want.NewColumn(column.name, column.type) for column in made.table().columns)
    made.execute(want.CreateTable("d", columns, ("id",)))
    made.execute(want.CreateIndex("d", (("a", False),), "d_a"))
    writer = Server(made, "d")
    for number in range(1, 6):
        writer.insert(number, number * 10, "x")
    writer.commit()
    return made


def pass_time(world: ChangingWorld, seconds: float) -> None:
    """Time, and a commit to carry it."""
    world.clock.advance(seconds)
    writer = Server(world)
    writer.update(1, b="tick")
    writer.commit()


def entries(world: ChangingWorld, rowset: int) -> int:
    start = rowset_prefix(rowset)
    with world.store.read() as reader:
        return len(list(reader.scan(start, prefix_end(start))))


def test_nothing_is_freed_before_retention_has_passed(world: ChangingWorld) -> None:
    worker = Worker(world.store, world.clock)
    before = world.rows(world.table("d"))
    world.execute(want.DropTables(("d",)))
    for _ in range(20):
        pass_time(world, world.store.retention_seconds / 25)
        worker.turn()
    world.execute(UNDROP)
    assert world.rows(world.table("d")) == before
    # Brought back, it is nothing that the worker would remove.
    for _ in range(3):
        pass_time(world, world.store.retention_seconds + 60)
        worker.turn()
    assert world.rows(world.table("d")) == before
    world.check_index("d_a", "d")


def test_what_has_been_deallocated_is_gone(world: ChangingWorld) -> None:
    worker = Worker(world.store, world.clock)
    dropped = world.table("d")
    world.execute(want.DropTables(("d",)))
    for _ in range(3):
        pass_time(world, world.store.retention_seconds + 60)
        worker.turn()
    assert entries(world, dropped.rowset) == 0
    with pytest.raises(errors.Error) as caught:
        world.execute(UNDROP)
    assert caught.value.sqlstate == "42P01"


@pytest.mark.parametrize("removed", [False, True])
def test_the_watermark_decides_when_it_is_committed(world: ChangingWorld, removed: bool) -> None:
    """Planned while everything is there, committed when the worker may remove it, or has begun to."""
    worker = Worker(world.store, world.clock)
    dropped = world.table("d")
    world.execute(want.DropTables(("d",)))
    change = world.change()
    apply(world.plan(UNDROP).first, change)
    for _ in range(3 if removed else 1):
        pass_time(world, world.store.retention_seconds + 60)
        worker.turn()
    with world.store.read() as reader:
        assert (reader.get(rowset_key(dropped.rowset)) is None) is removed
    with pytest.raises((errors.Error, Conflict)):
        world.commit(change=change)
    assert world.catalog().by_id(dropped.id) is None
    with world.store.read() as reader:
        record = reader.get(rowset_key(dropped.rowset))
        assert record is None or decode_rowset_record(record).state is RowsetState.DEAD


def test_the_store_judges_the_watermark_too(world: ChangingWorld) -> None:
    """The log is cut between the derivation of the commit and its atomic section."""
    world.execute(want.DropTables(("d",)))
    change = world.change()
    apply(world.plan(UNDROP).first, change)
    with world.store.read() as reader:
        request = Commit(catalog_version=reader.catalog_version)
        change.parts(reader).add_to(request)
    world.store.collect(world.now(), lambda record: [])
    with pytest.raises(errors.Error) as caught:
        world.store.commit(request)
    assert caught.value.sqlstate == "72000"


def test_a_removal_that_is_under_way_is_never_of_a_table_that_is_back(world: ChangingWorld) -> None:
    """Between whatever steps of the worker it comes, the return is refused."""
    worker = Worker(world.store, world.clock)
    dropped = world.table("d")
    world.execute(want.DropTables(("d",)))
    returned: list[bool] = []
    store: Any = world.store
    background = store.background

    def stepping(steps: Any, **options: Any) -> int:
        for step in steps:
            background([step], **options)
            try:
                world.execute(UNDROP)
                returned.append(True)
            except (errors.Error, Conflict):
                returned.append(False)
        return 1

    store.background = stepping
    for _ in range(3):
        pass_time(world, world.store.retention_seconds + 60)
        worker.turn()
    assert returned
    assert not any(returned)
    assert world.catalog().by_id(dropped.id) is None


def test_entries_that_were_cut_while_the_table_was_dropped_are_gone(world: ChangingWorld) -> None:
    """Rule 4: the collector removes the tombstones of a dropped table's indexes too, else they would be orphans for
    ever once it is back."""
    worker = Worker(world.store, world.clock)
    writer = Server(world, "d")
    writer.update(1, a=99)
    writer.delete(2)
    writer.commit()
    index = world.table("d").indexes[0]
    world.clock.advance(world.store.retention_seconds / 2)
    world.execute(want.DropTables(("d",)))
    assert entries(world, index.rowset) == 6
    pass_time(world, world.store.retention_seconds / 2 + 60)
    worker.turn()
    world.clock.advance(2)
    worker.turn()
    world.execute(UNDROP)
    assert entries(world, index.rowset) == 4
    world.check_index("d_a", "d")
