"""The values of a column that comes back, in rows that were written since it was dropped; compared with a model."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from instar.catalog.descriptors import Table
from instar.database import restoring
from instar.schemachange.compact import row_rewriter
from instar.store.engine import ROW_HEADER, Commit, Section, prefix_end, rowset_prefix
from support.databases import Engine, fails, rows, run, value


@pytest.mark.parametrize("seed", range(6))
def test_every_row_has_what_it_had(engine: Engine, seed: int) -> None:
    """Rows are told apart by `who`, which no statement changes: what has been there at the drop has its value then,
    wherever it is now, and what has come since has the default."""
    chance = random.Random(seed)
    connection = engine.connect()
    run(connection, "CREATE TABLE t (id int PRIMARY KEY, who int NOT NULL, c int DEFAULT -1 NOT NULL, n int)")
    run(connection, "INSERT INTO t SELECT g, g, g * 10, 0 FROM generate_series(1, 20) g")
    run(connection, "ALTER TABLE t ADD COLUMN late int DEFAULT 3", "UPDATE t SET late = id WHERE id > 10")
    had = {who: (c, late) for who, c, late in rows(connection, "SELECT who, c, late FROM t")}
    lost, ordinal = chance.choice([("c", 0), ("late", 1)])
    run(connection, f"ALTER TABLE t DROP COLUMN {lost}")
    new = iter(range(100, 1000))
    for _ in range(60):
        ids = [found for (found,) in rows(connection, "SELECT id FROM t ORDER BY id")]
        some = chance.choice(ids)
        match chance.randrange(6):
            case 0 | 1:
                run(connection, f"UPDATE t SET n = n + 1 WHERE id = {some}")
            case 2:
                run(connection, f"DELETE FROM t WHERE id = {some}")
            case 3:
                number = next(new)
                free = chance.choice(sorted(set(range(1, 40)) - set(ids)))
                run(connection, f"INSERT INTO t (id, who) VALUES ({free}, {number})")
            case 4:
                free = chance.choice(sorted(set(range(1, 60)) - set(ids)))
                run(connection, f"UPDATE t SET id = {free} WHERE id = {some}")
            case 5:  # several in one transaction, the last place of which is free when it is taken
                free = chance.choice(sorted(set(range(60, 90)) - set(ids)))
                run(connection, "BEGIN", f"UPDATE t SET id = {free} WHERE id = {some}", "UPDATE t SET n = 5", "COMMIT")
    run(connection, f"ALTER TABLE t UNDROP COLUMN {lost}")
    default = (-1, 3)[ordinal]
    found = dict(rows(connection, f"SELECT who, {lost} FROM t"))
    assert found == {who: had[who][ordinal] if who in had else default for who in found}
    assert rows(connection, "CHECK DATABASE") == []
    # And once more, with what was restored.
    run(connection, f"ALTER TABLE t DROP COLUMN {lost}", f"ALTER TABLE t UNDROP COLUMN {lost}")
    assert dict(rows(connection, f"SELECT who, {lost} FROM t")) == found


def test_rows_that_took_each_others_places_are_not_guessed_at(engine: Engine) -> None:
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, c int)",
        "INSERT INTO t SELECT g, g * 10 FROM generate_series(1, 5) g",
        "ALTER TABLE t DROP COLUMN c",
        "UPDATE t SET id = 6 - id WHERE id <> 3",
    )
    for statement in ("ALTER TABLE t UNDROP COLUMN c", "EXPLAIN (DDL) ALTER TABLE t UNDROP COLUMN c"):
        with fails("55000", "4 rows"):
            connection.execute(statement)
    run(connection, "UPDATE t SET id = id + 10 WHERE id = 1")
    with fails("55000", "4 rows"):
        connection.execute("ALTER TABLE t UNDROP COLUMN c")
    run(connection, "DELETE FROM t WHERE id <> 3")
    assert len(rows(connection, "EXPLAIN (DDL) ALTER TABLE t UNDROP COLUMN c")) == 1
    run(connection, "ALTER TABLE t UNDROP COLUMN c")
    assert rows(connection, "SELECT * FROM t") == [(3, 30)]


def test_rows_that_have_come_since_have_the_default_or_are_named(engine: Engine) -> None:
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, c int NOT NULL, d text DEFAULT 'd')",
        "INSERT INTO t VALUES (1, 10)",
        "ALTER TABLE t DROP COLUMN c",
        "ALTER TABLE t DROP COLUMN d",
        "INSERT INTO t VALUES (2), (3)",
    )
    with fails("23502", "2 rows"):
        connection.execute("ALTER TABLE t UNDROP COLUMN c")
    assert value(connection, "SELECT count(*) FROM instar.columns WHERE table_name = 't'") == 1
    run(connection, "ALTER TABLE t UNDROP COLUMN c CASCADE", "ALTER TABLE t UNDROP COLUMN d")
    assert rows(connection, "SELECT * FROM t ORDER BY id") == [(1, 10, "d"), (2, None, "d"), (3, None, "d")]


def test_what_the_transaction_of_the_drop_did_counts_as_done_since(engine: Engine) -> None:
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, c int DEFAULT 7)",
        "INSERT INTO t VALUES (1, 10), (2, 20)",
        "BEGIN",
        "UPDATE t SET c = 11 WHERE id = 1",
        "ALTER TABLE t DROP COLUMN c",
        "INSERT INTO t VALUES (3)",
        "COMMIT",
        "ALTER TABLE t UNDROP COLUMN c",
    )
    # The update of c was part of the transaction that dropped it: nobody ever saw an 11.
    assert rows(connection, "SELECT * FROM t ORDER BY id") == [(1, 10), (2, 20), (3, 7)]


def test_it_is_part_of_its_transaction_and_bounded(engine: Engine) -> None:
    connection, other = engine.connect(autocommit=False), engine.connect()
    run(
        other,
        "CREATE TABLE t (id int PRIMARY KEY, c int)",
        "INSERT INTO t SELECT g, g FROM generate_series(1, 20) g",
        "ALTER TABLE t DROP COLUMN c",
        "ALTER TABLE t ADD COLUMN n int",
        "UPDATE t SET n = 1",
    )
    run(connection, "SET max_transaction_rows = 10")
    connection.commit()
    with fails("54000"):
        connection.execute("ALTER TABLE t UNDROP COLUMN c")
    connection.rollback()
    run(connection, "SET max_transaction_rows = 20")
    connection.commit()
    run(connection, "UPDATE t SET n = 2 WHERE id = 1")
    with fails("0A000", "has written to the table"):
        connection.execute("ALTER TABLE t UNDROP COLUMN c")
    connection.rollback()
    run(connection, "ALTER TABLE t UNDROP COLUMN c", "UPDATE t SET c = c + 1 WHERE id = 1")
    assert value(connection, "SELECT sum(c) FROM t") == 211
    connection.rollback()
    run(connection, "ALTER TABLE t UNDROP COLUMN c")
    run(other, "UPDATE t SET n = 3 WHERE id = 7")
    with fails("40001"):
        connection.commit()
    run(other, "ALTER TABLE t UNDROP COLUMN c")
    assert value(other, "SELECT count(*) FROM t WHERE c = id") == 20


def test_a_row_that_was_deleted_and_inserted_again_is_another(engine: Engine) -> None:
    """In one transaction too; but for an update, and a row that comes back to its key."""
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, n int, c int DEFAULT 7)",
        "INSERT INTO t SELECT g, g, g * 10 FROM generate_series(1, 5) g",
        "ALTER TABLE t DROP COLUMN c",
        "BEGIN",
        "DELETE FROM t WHERE id < 3",
        "INSERT INTO t VALUES (1, 100)",
        "UPDATE t SET n = 101 WHERE id = 1",
        "COMMIT",
        "UPDATE t SET n = 102 WHERE id = 1",
        "BEGIN",
        "UPDATE t SET n = n + 1 WHERE id = 5",
        "UPDATE t SET n = n + 1 WHERE id = 5",
        "COMMIT",
        "ALTER TABLE t UNDROP COLUMN c",
    )
    assert rows(connection, "SELECT * FROM t ORDER BY id") == [
        (1, 102, 7), (3, 3, 30), (4, 4, 40), (5, 7, 50)
    ]  # fmt: skip
    assert rows(connection, "CHECK DATABASE") == []


def test_what_a_converted_column_was_derived_of_may_have_changed_since(engine: Engine) -> None:
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, x int, c text)",
        "INSERT INTO t VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 5, 'c'), (4, 10, 'd')",
        "ALTER TABLE t ALTER c TYPE int USING nullif(10 / x, 2)",
        "ALTER TABLE t DROP COLUMN c",
        "UPDATE t SET x = 0 WHERE id IN (1, 3)",
        "INSERT INTO t VALUES (5, 0), (6, 1)",
        "ALTER TABLE t UNDROP COLUMN c",
    )
    wanted = [(1, 0, 10), (2, 2, 5), (3, 0, None), (4, 10, 1), (5, 0, None), (6, 1, None)]
    assert rows(connection, "SELECT * FROM t ORDER BY id") == wanted
    run(connection, "UPDATE t SET x = 0")
    assert [row[2] for row in rows(connection, "SELECT * FROM t ORDER BY id")] == [row[2] for row in wanted]
    assert rows(connection, "CHECK DATABASE") == []


def mixed() -> list[str]:
    """Writes of all kinds to the first rows."""
    kinds = (
        "INSERT INTO t VALUES (1000 + {0}, 0)",
        "UPDATE t SET n = 0 WHERE id = {0}",
        "DELETE FROM t WHERE id = {0}",
        "UPDATE t SET id = 2000 + {0} WHERE id = {0}",
    )
    return [kinds[number % 4].format(number) for number in range(1, 20)]


@pytest.mark.parametrize("locked", [False, True])
def test_what_others_write_meanwhile_is_followed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, *, locked: bool
) -> None:
    """A writer that commits between what the statement has read and its commit: the statement is not begun anew, looks
    at each row that was not written again but once, and at the last of them in the atomic section."""
    connection, writer = engine.connect(), engine.connect()
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, n int, c int DEFAULT 7)",
        "INSERT INTO t SELECT g, g, g * 10 FROM generate_series(1, 200) g",
        *(["ALTER TABLE t ADD LOCK l COVERS (n)"] if locked else []),
        "ALTER TABLE t DROP COLUMN c",
        "UPDATE t SET n = n + 1",
    )
    store = engine.database.store
    commit, decoded = store.commit, restoring._Values._row
    looked: list[bytes] = []
    # More than is looked at in the atomic section, and then some that are.
    bursts = iter([[f"UPDATE t SET n = n - 1 WHERE id = {number % 150 + 50}" for number in range(90)], mixed()])
    attempts = []

    def beside(request: Commit) -> int:
        if request.bump_catalog:
            attempts.append(request)
            monkeypatch.setattr(store, "commit", commit)
            run(writer, *next(bursts, ()))
            monkeypatch.setattr(store, "commit", beside)
        return commit(request)

    def looks(values: restoring._Values, key: bytes, stored: bytes | None, origin: bytes | None) -> object:
        looked.append(key)
        return decoded(values, key, stored, origin)

    monkeypatch.setattr(store, "commit", beside)
    monkeypatch.setattr(restoring._Values, "_row", looks)
    run(connection, "ALTER TABLE t UNDROP COLUMN c")
    assert (len(attempts), len(looked)) == (2, 200 + 90)
    found = {key: (n, c) for key, n, c in rows(connection, "SELECT * FROM t")}
    assert len(found) == 200 + 4 - 5
    for key, (n, c) in found.items():
        was = key - 2000 if key > 2000 else key
        n_was = 0 if was % 4 == 1 and was < 20 else was + 1 - (50 <= was < 140)
        assert (n, c) == ((0, 7) if 1000 < key < 2000 else (n_was, was * 10))
    assert rows(connection, "CHECK DATABASE") == []


def test_who_writes_faster_than_it_is_followed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = engine.connect()
    run(connection, "CREATE TABLE t (id int PRIMARY KEY, c int)", "INSERT INTO t VALUES (1, 10)")
    run(connection, "ALTER TABLE t DROP COLUMN c")
    with monkeypatch.context() as patched:
        patched.setattr(restoring, "_FEW", -1)  # no pass is short enough
        with fails("55006", '"t"', "written faster"):
            connection.execute("ALTER TABLE t UNDROP COLUMN c")
    run(connection, "ALTER TABLE t UNDROP COLUMN c")
    assert rows(connection, "SELECT * FROM t") == [(1, 10)]


def test_values_that_a_sequence_gives_to_rows_that_come_meanwhile(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not drawn in the atomic section."""
    connection, writer = engine.connect(), engine.connect()
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, c serial)",
        "INSERT INTO t VALUES (1), (2)",
        "ALTER TABLE t DROP COLUMN c",
        "INSERT INTO t VALUES (3)",
    )
    store = engine.database.store
    commit = store.commit
    new = iter([4, 5])

    def beside(request: Commit) -> int:
        if request.bump_catalog and (number := next(new, None)) is not None:
            monkeypatch.setattr(store, "commit", commit)
            run(writer, f"INSERT INTO t VALUES ({number})")
            monkeypatch.setattr(store, "commit", beside)
        return commit(request)

    monkeypatch.setattr(store, "commit", beside)
    run(connection, "ALTER TABLE t UNDROP COLUMN c")
    found = rows(connection, "SELECT * FROM t ORDER BY id")
    assert found[:3] == [(1, 1), (2, 2), (3, 3)]
    assert len({c for _, c in found}) == 5
    assert rows(connection, "CHECK DATABASE") == []


def test_maintenance_that_moves_a_row_meanwhile(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps timestamps, and the log has nothing of it (rule 10)."""
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, c int)",
        "INSERT INTO t VALUES (1, 10), (2, 20)",
        "ALTER TABLE t DROP COLUMN c",
        "ALTER TABLE t ADD COLUMN n int",
        "UPDATE t SET n = 0",
        "ALTER TABLE t ADD COLUMN m int",
    )
    store = engine.database.store
    commit = store.commit

    def beside(request: Commit) -> int:
        if request.bump_catalog:
            monkeypatch.setattr(store, "commit", commit)
            with store.read() as reader:
                table = engine.database.catalog.at(reader).lookup("public", "t")
            assert isinstance(table, Table)
            rows_of = rowset_prefix(table.rowset)

            def step(section: Section) -> None:
                for key, value in list(section.scan(rows_of, prefix_end(rows_of))):
                    layout = engine.database.layouts.get(table.id, ROW_HEADER.unpack_from(value)[2] >> 8)
                    section.put(key, row_rewriter(table, layout)(value))

            store.background([step])
        return commit(request)

    monkeypatch.setattr(store, "commit", beside)
    run(connection, "ALTER TABLE t UNDROP COLUMN c")
    assert rows(connection, "SELECT id, c, n, m FROM t ORDER BY id") == [(1, 10, 0, None), (2, 20, 0, None)]
    assert rows(connection, "CHECK DATABASE") == []


@pytest.mark.parametrize("statement", ["UPDATE t SET n = 5 WHERE id = 1", "SELECT * FROM t WHERE id = 1 FOR UPDATE"])
@pytest.mark.parametrize("block", [False, True])
def test_row_locks_of_others_are_waited_for_no_longer_than_ddl_wait(
    engine: Engine, statement: str, *, block: bool
) -> None:
    holder, connection = engine.connect(), engine.connect(ddl_wait="200ms")
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, n int, c int)",
        "INSERT INTO t VALUES (1, 1, 10), (2, 2, 20)",
        "ALTER TABLE t DROP COLUMN c",
        "UPDATE t SET n = n + 1",
    )
    run(holder, "BEGIN", statement)
    with ThreadPoolExecutor(1) as pool:
        statements = ["ALTER TABLE t UNDROP COLUMN c"]
        pool.submit(run, connection, *(["BEGIN", *statements, "COMMIT"] if block else statements)).result(timeout=20)
    assert rows(connection, "SELECT id, n, c FROM t ORDER BY id") == [(1, 2, 10), (2, 3, 20)]
    if statement.startswith("UPDATE"):
        with fails("40001", "undrop column"):
            holder.execute("COMMIT")
    else:
        run(holder, "UPDATE t SET n = 6 WHERE id = 1", "COMMIT")
        assert rows(connection, "SELECT n, c FROM t WHERE id = 1") == [(6, 10)]
    assert rows(connection, "CHECK DATABASE") == []
