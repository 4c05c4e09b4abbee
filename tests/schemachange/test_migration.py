"""Migration on read: rows that queries come by are put into the newest layout, and nobody notices."""

from __future__ import annotations

from collections import Counter

import pytest

from instar.catalog.descriptors import Table
from instar.clock import ManualClock
from instar.schemachange import wanted as want
from instar.schemachange.migration import MOST_ROWS, PAUSES, WORTH_A_BATCH, MigrationOnRead
from instar.store.engine import ROW_HEADER, Reader, prefix_end, rowset_prefix
from instar.tables.index import IndexReader
from instar.tables.older import OlderRows
from instar.tables.rowset import TableReader
from instar.tables.view import END, View
from instar.types import INTEGER, UUID
from support.changes import ChangingWorld, Server
from support.databases import Engine, fails, rows, run, value

ROWS = 2 * WORTH_A_BATCH
READ = want.SetMigration("t", "read")


def stored_layouts(reader: Reader, table: Table) -> Counter[int]:
    start = rowset_prefix(table.rowset)
    tags = [ROW_HEADER.unpack_from(stored)[2] for _, stored in reader.scan(start, prefix_end(start))]
    return Counter(tag >> 8 for tag in tags if not tag & 1)


# --- through SQL -----------------------------------------------------------------------------------------------------


def layouts(engine: Engine, name: str = "t") -> Counter[int]:
    with engine.database.store.read() as reader:
        table = engine.database.catalog.at(reader).lookup("public", name)
        assert isinstance(table, Table)
        return stored_layouts(reader, table)


@pytest.fixture
def filled(engine: Engine) -> Engine:
    run(
        engine.connect(),
        "CREATE TABLE t (id int PRIMARY KEY, a int UNIQUE, b text)",
        f"INSERT INTO t SELECT g, -g, 'b' || g FROM generate_series(1, {ROWS}) g",
        "ALTER TABLE t ADD COLUMN c int DEFAULT 7",
    )
    return engine


@pytest.mark.parametrize(
    "query",
    [
        "SELECT c FROM t WHERE id = {number}",
        "SELECT c FROM t WHERE id = ?",
        "SELECT c FROM t WHERE a = -{number}",
        "SELECT c FROM t WHERE id BETWEEN {number} AND {number} + 5 LIMIT 1",
        "SELECT max(c) FROM t",
        "SELECT t.c FROM t JOIN (VALUES ({number})) AS v (id) ON v.id = t.id",
    ],
)
def test_whatever_reads_a_row_migrates_it(filled: Engine, query: str) -> None:
    connection = filled.connect()
    run(connection, "ALTER TABLE t SET (migration = 'read')")
    before = rows(connection, "SELECT * FROM t ORDER BY id")
    for _ in range(200):
        for number in range(1, ROWS + 1):
            parameters = (number,) if "?" in query else ()
            assert rows(connection, query.format(number=number), *parameters) == [(7,)]
            if not layouts(filled)[1]:
                break
        else:
            continue
        break
    assert layouts(filled) == {2: ROWS}
    assert rows(connection, "SELECT * FROM t ORDER BY id") == before
    assert rows(connection, "CHECK DATABASE") == []


def test_who_may_not_write_migrates_nothing(filled: Engine) -> None:
    connection = filled.connect()
    then = value(connection, "SELECT CAST(now() AS text)")
    whole = f"SELECT count(c) FROM t WHERE id <= {ROWS}"
    for _ in range(5):
        assert value(connection, whole) == ROWS  # by the usual policy only who writes does
    run(connection, "ALTER TABLE t SET (migration = read)", "SET default_transaction_read_only = on")
    for _ in range(5):
        assert value(connection, whole) == ROWS
    run(connection, "SET default_transaction_read_only = off", "BEGIN READ ONLY")
    assert value(connection, whole) == ROWS
    run(connection, "COMMIT")
    for _ in range(5):
        connection.execute(f"SELECT * FROM t AS OF SYSTEM TIME '{then}'")
    assert layouts(filled) == {1: ROWS}
    run(connection, "ALTER TABLE t RESET (migration)")
    assert value(connection, whole) == ROWS
    assert layouts(filled) == {1: ROWS}


def test_options(engine: Engine) -> None:
    connection = engine.connect()
    run(connection, "CREATE TABLE t (id int)")
    for option in ("(migration = 'never')", "(fillfactor = 70)", "(migration = 1)"):
        with fails("22023"):
            connection.execute(f"ALTER TABLE t SET {option}")
    with fails("42601"):
        connection.execute("ALTER TABLE t SET (migration)")
    run(connection, "ALTER TABLE t SET (migration = 'READ')", "ALTER TABLE t SET (migration = 'read')")
    shown = rows(connection, "EXPLAIN (DDL) ALTER TABLE t RESET (migration)")
    assert [row[1] for row in shown] == ['table "t": set migration']
    assert rows(connection, "EXPLAIN (DDL) ALTER TABLE t SET (migration = 'read')") == []


def test_the_share_for_compaction_and_how_it_is_seen(engine: Engine) -> None:
    connection = engine.connect()
    run(connection, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2), (3), (4)")
    run(connection, "ALTER TABLE t ADD COLUMN a int", "UPDATE t SET a = 1 WHERE id = 1")
    seen = "SELECT layout - oldest, older_share, older_layouts, compaction_share FROM instar.layouts"
    assert rows(connection, seen) == [(1, 0.75, 1, 0.1)]
    run(connection, "ALTER TABLE t SET (compaction_share = .25)", "ALTER TABLE t SET (compaction_share = 0.25)")
    assert rows(connection, seen) == [(1, 0.75, 1, 0.25)]
    run(connection, "ALTER TABLE t RESET (compaction_share)", "COMPACT TABLE t")
    assert rows(connection, seen) == [(0, 0.0, 0, 0.1)]
    for share in ("1.1", "-0.1", "'read'", "x"):
        with fails("22023", "compaction_share"):
            connection.execute(f"ALTER TABLE t SET (compaction_share = {share})")


# --- rules -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def world() -> ChangingWorld:
    made = ChangingWorld()
    made.create_t([(number, number * 10, f"b{number}") for number in range(1, ROWS + 1)])
    made.execute(want.CreateIndex("t", (("a", False),), "t_a"))
    made.executor().run(1)
    made.execute(READ)
    return made


def add(world: ChangingWorld, name: str = "c") -> None:
    frozen = want.Default(lambda _: want.Frozen("7", ()), False, "7")
    assert world.execute(want.AddColumn("t", want.NewColumn(name, INTEGER, default=frozen))) is None


def migration(world: ChangingWorld) -> MigrationOnRead:
    return MigrationOnRead(world.store, world.layouts, world.clock)


def read(world: ChangingWorld, migrating: MigrationOnRead) -> tuple[OlderRows | None, dict[int, Table]]:
    """What a scan of the whole table notes."""
    table = world.table()
    notes = migrating.notes_for({table.id: table})
    view = View(world.store, world.now(), None, world.layouts)
    view.older = notes
    assert len(list(TableReader(table, [0], world.layouts).scan(view, b"", END))) == ROWS
    return notes, {table.id: table}


def seen(world: ChangingWorld) -> Counter[int]:
    with world.store.read() as reader:
        return stored_layouts(reader, world.table())


def test_a_row_keeps_all_but_its_layout(world: ChangingWorld) -> None:
    add(world)
    migrating = migration(world)
    before, newest = world.rows(world.table()), world.now()
    notes, tables = read(world, migrating)
    assert notes is not None
    migrating.take(notes, tables)
    assert seen(world) == {2: ROWS}
    assert world.rows(world.table()) == before  # timestamps and values
    assert world.now() == newest  # and nothing was committed
    world.check_index("t_a")


class Ticking(ManualClock):
    """A clock by which everything takes a millisecond."""

    def monotonic_ns(self) -> int:
        self.advance(0.001)
        return super().monotonic_ns()


def test_a_batch_is_followed_by_a_pause(world: ChangingWorld) -> None:
    add(world)
    clock = Ticking()
    migrating = MigrationOnRead(world.store, world.layouts, clock)
    notes, tables = read(world, migrating)
    assert notes is not None
    migrating.take(notes, tables)
    asked = 1
    while migrating.notes_for(tables) is None:
        asked += 1
    assert asked >= PAUSES


def test_rows_found_by_an_index_are_noted(world: ChangingWorld) -> None:
    add(world)
    migrating, table = migration(world), world.table()
    notes = migrating.notes_for({table.id: table})
    assert notes is not None
    view = View(world.store, world.now(), None, world.layouts)
    view.older = notes
    list(IndexReader(table, table.indexes[0], [0], world.layouts).scan(view, b"", END))
    assert len(notes.found) == ROWS


def test_a_few_rows_wait_for_more(world: ChangingWorld) -> None:
    add(world)
    migrating = migration(world)
    notes, tables = read(world, migrating)
    assert notes is not None
    few = OlderRows(tables, MOST_ROWS)
    few.note_all(next(iter(tables)), [(key, stored) for _, key, stored in notes.found[: WORTH_A_BATCH - 1]])
    migrating.take(few, tables)
    assert seen(world) == {1: ROWS}
    migrating.take(few, tables)  # the same once more: somebody reads them again and again
    assert seen(world)[2] == WORTH_A_BATCH - 1


def test_what_would_be_lost_stays_until_nobody_can_read_it(world: ChangingWorld) -> None:
    world.execute(want.DropColumn("t", "b"))
    migrating = migration(world)
    notes, tables = read(world, migrating)
    assert notes is not None
    migrating.take(notes, tables)
    assert seen(world) == {1: ROWS}
    world.clock.advance(60)
    world.store.collect(world.now(), lambda record: [])
    notes, tables = read(world, migrating)
    assert notes is not None
    migrating.take(notes, tables)
    assert seen(world) == {2: ROWS}


def test_a_row_that_was_written_meanwhile_is_left_alone(world: ChangingWorld) -> None:
    add(world)
    migrating = migration(world)
    notes, tables = read(world, migrating)
    assert notes is not None
    writer = Server(world)
    writer.update(1, a=1)
    writer.delete(2)
    writer.commit()
    before = world.rows(world.table())
    migrating.take(notes, tables)
    assert world.rows(world.table()) == before
    assert seen(world) == {2: ROWS - 1}


def test_rows_go_into_the_newest_layout_or_nowhere(world: ChangingWorld) -> None:
    """A compaction that read them before would leave them where they are, and then have their layout forgotten."""
    add(world)
    migrating = migration(world)
    notes, tables = read(world, migrating)
    assert notes is not None
    add(world, "d")
    migrating.take(notes, tables)
    assert seen(world) == {1: ROWS}


def test_rows_that_a_job_is_at_are_left_to_it(world: ChangingWorld) -> None:
    """Else a row would be in a layout with the column, and have no value of it."""
    add(world)
    job = world.execute(
        want.AddColumn(
            "t",
            want.NewColumn("r", UUID, default=want.Default(lambda _: want.Frozen("gen_random_uuid()", ()), True, None)),
        )
    )
    assert job is not None
    table = world.table()
    migrating = migration(world)
    assert migrating.notes_for({table.id: table}) is None
    world.executor().run(job)
    found = [row[-1] for _, row in world.rows(world.table()).values()]
    assert len({str(one) for one in found}) == ROWS
    assert None not in found
