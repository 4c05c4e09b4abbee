"""Materialized views in a session: what they show, what they refuse, and what goes on beside them."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import instar
from instar.catalog.descriptors import View
from instar.database import materialized
from instar.schemachange.launching import WorkerLauncher
from instar.schemachange.online.followed import Followed, followed
from instar.store.engine import Section, prefix_end, rowset_prefix
from instar.store.lock_modes import Mode
from instar.worker.work import Worker
from support.databases import Engine, fails, rows, run, value
from support.steps import hook_jobs
from support.waiting import later

GROUPED = "SELECT g, count(*), sum(n), avg(n) AS mean, sum(x) AS sx, avg(x) AS ax, count(b) AS cb FROM t {} GROUP BY g"
QUERY = GROUPED.format("WHERE n > 2 OR n IS NULL")
CREATE = f"CREATE MATERIALIZED VIEW v WITH (refresh = 'log') AS {QUERY}"


@pytest.fixture(autouse=True)
def no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Views are kept up when the test says so."""
    monkeypatch.setattr(WorkerLauncher, "ensure", lambda launcher: True)


@pytest.fixture
def connection(engine: Engine) -> Iterator[instar.Connection]:
    made = engine.connect()
    run(
        made,
        "CREATE TABLE t (id bigint PRIMARY KEY, g text, n int, x numeric(10, 2), b bigint)",
        "INSERT INTO t SELECT i, CASE WHEN i % 4 > 0 THEN 'g' || i % 4 END, i, i * 1.5, i "
        "FROM generate_series(1, 20) i",
        CREATE,
    )
    yield made
    assert rows(made, "CHECK DATABASE") == []


def alike(connection: instar.Connection, query: str = QUERY, view: str = "v") -> bool:
    """Whether a view is what its query says."""
    return sorted(rows(connection, f"SELECT * FROM {view}"), key=repr) == sorted(rows(connection, query), key=repr)


def record(engine: Engine, name: str = "v") -> Followed | None:
    with engine.database.store.read() as reader:
        view = engine.database.catalog.at(reader).lookup("public", name)
        assert isinstance(view, View)
        return followed(reader, view)


def test_its_condition_is_read_in_the_zone_of_who_makes_it(engine: Engine) -> None:
    connection = engine.connect(timezone="America/New_York")
    run(
        connection,
        "CREATE TABLE e (id bigint PRIMARY KEY, at timestamptz)",
        "INSERT INTO e VALUES (1, '2024-01-01 00:00'), (2, '2024-01-01 04:59Z')",
        "CREATE MATERIALIZED VIEW w WITH (refresh = 'log') AS "
        "SELECT at, count(*) FROM e WHERE at >= '2024-01-01' GROUP BY at",
        "SET timezone = 'Asia/Tokyo'",
        "INSERT INTO e VALUES (3, '2024-01-01 04:58Z'), (4, '2024-01-01 05:00Z')",
    )
    engine.database.keep_views()
    assert rows(connection, "SELECT at::text, count FROM w") == [("2024-01-01 14:00:00+09", 2)]
    assert rows(connection, "CHECK DATABASE") == []


def test_it_is_what_its_query_says(engine: Engine, connection: instar.Connection) -> None:
    assert alike(connection)
    for change in (
        "INSERT INTO t VALUES (100, 'new', 7, NULL, NULL), (101, NULL, NULL, 1, 1)",
        "UPDATE t SET n = 1 WHERE id = 100",
        "UPDATE t SET g = 'g1' WHERE id < 10",
        "UPDATE t SET x = 'NaN' WHERE id = 5",
        "UPDATE t SET x = 3 WHERE id = 5",
        "UPDATE t SET id = id + 1000 WHERE id = 6",
        "DELETE FROM t WHERE g IS NULL",
        "DELETE FROM t",
    ):
        run(connection, change)
        engine.database.keep_views()
        assert alike(connection), change
    assert rows(connection, "SELECT * FROM v") == []


def test_random_commits(engine: Engine, connection: instar.Connection) -> None:
    """At whatever position it is, it is what the query said there."""
    chance = random.Random(7)
    said = {}

    def remember() -> None:
        with engine.database.store.read() as reader:
            said[reader.timestamp] = sorted(rows(connection, QUERY), key=repr)

    remember()
    for _ in range(40):
        with engine.connect(autocommit=False) as other:
            for _ in range(chance.randint(1, 3)):
                key = chance.randint(1, 30)
                group, number = chance.choice(("NULL", "'g1'", "'g2'")), chance.choice(("NULL", "1", "5"))
                other.execute(f"DELETE FROM t WHERE id = {key}")
                if chance.random() < 0.7:
                    other.execute(f"INSERT INTO t VALUES ({key}, {group}, {number}, {number}, {key})")
                else:
                    other.execute(f"UPDATE t SET g = {group}, n = {number} WHERE id = {chance.randint(1, 30)}")
            other.commit()
        remember()
        if engine.database.in_memory or chance.random() < 0.4:
            engine.database.keep_views()
            reached = record(engine)
            assert reached is not None
            at = [timestamp for timestamp in said if timestamp <= reached.position or engine.database.in_memory]
            newest = max(at)  # in memory it is followed within the commit
            assert sorted(rows(connection, "SELECT * FROM v"), key=repr) == said[newest]


def test_groups_may_be_longer_than_keys(engine: Engine) -> None:
    connection = engine.connect()
    query = "SELECT g, count(*) FROM t GROUP BY g"
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, g text)",
        "INSERT INTO t SELECT i, repeat('x', 1000) || i % 2 FROM generate_series(1, 4) i",
        f"CREATE MATERIALIZED VIEW v WITH (refresh = 'log') AS {query}",
        "INSERT INTO t VALUES (5, repeat('x', 1000) || 1), (6, repeat('y', 1000)), (7, 'y')",
        "DELETE FROM t WHERE id = 2",
    )
    engine.database.keep_views()
    assert alike(connection, query)
    assert rows(connection, "CHECK DATABASE") == []


def test_readers_repeat_what_they_have_read(engine: Engine, connection: instar.Connection) -> None:
    before = rows(connection, "SELECT * FROM v ORDER BY g")
    at = rows(connection, "SELECT now()::text")[0][0]
    time.sleep(0.002)  # what is committed in the same millisecond was there then
    with engine.connect() as reader:
        run(reader, "BEGIN ISOLATION LEVEL REPEATABLE READ")
        assert rows(reader, "SELECT * FROM v ORDER BY g") == before
        run(connection, "UPDATE t SET g = 'other' WHERE id < 15", "DELETE FROM t WHERE id > 18")
        engine.database.keep_views()
        assert rows(reader, "SELECT * FROM v ORDER BY g") == before
        assert rows(reader, "SELECT count(*) FROM v WHERE g = 'other'") == [(0,)]
        run(reader, "COMMIT")
    assert rows(connection, "SELECT count(*) FROM v WHERE g = 'other'") == [(1,)]
    assert rows(connection, f"SELECT * FROM v AS OF SYSTEM TIME '{at}' ORDER BY g") == before


def test_own_writes_are_not_in_it(connection: instar.Connection) -> None:
    run(connection, "BEGIN", "INSERT INTO t VALUES (50, 'mine', 9, 9, 9)")
    assert rows(connection, "SELECT * FROM v WHERE g = 'mine'") == []
    run(connection, "ROLLBACK")


def test_refresh_waits_for_it(engine: Engine, connection: instar.Connection, threads: ThreadPoolExecutor) -> None:
    run(connection, "CREATE TABLE other (a int)", "INSERT INTO other VALUES (1)")
    run(connection, "REFRESH MATERIALIZED VIEW v")  # what was committed is none of its business
    run(connection, "INSERT INTO t VALUES (50, 'mine', 9, 9, 9)")
    if not engine.database.in_memory:
        cancelled, waiting = engine.connect(), engine.connect()
        futures = [later(threads, one, "REFRESH MATERIALIZED VIEW v") for one in (cancelled, waiting)]
        time.sleep(0.1)
        assert not any(future.done() for future in futures)
        cancelled.cancel()
        with fails("57014"):
            futures[0].result()
        engine.database.keep_views()
        futures[1].result()
    run(connection, "REFRESH MATERIALIZED VIEW v")
    assert alike(connection)
    run(connection, "BEGIN")
    with fails("25001"):
        connection.execute("REFRESH MATERIALIZED VIEW v")
    run(connection, "ROLLBACK")
    with fails("42809", '"t" is not a materialized view'):
        connection.execute("REFRESH MATERIALIZED VIEW t")
    with fails("42P01"):
        connection.execute("REFRESH MATERIALIZED VIEW nothing")


def test_a_commit_that_changes_nothing_of_it_is_behind_it(engine: Engine, connection: instar.Connection) -> None:
    for change in ("UPDATE t SET n = n", "UPDATE t SET id = id + 100", "UPDATE t SET n = 1 WHERE n = 2"):
        run(connection, change)
        engine.database.keep_views()
        assert rows(connection, "SELECT commits_behind FROM instar.materialized_views") == [(0,)], change
        run(connection, "REFRESH MATERIALIZED VIEW v")
    assert alike(connection)


def test_an_undropped_column_is_followed(engine: Engine, connection: instar.Connection) -> None:
    """It writes what rows without a value get: in memory, nobody else would bring the view up to that."""
    run(connection, "ALTER TABLE t ADD COLUMN k int DEFAULT 5", "INSERT INTO t (id, g) VALUES (60, 'x')")
    run(connection, "ALTER TABLE t DROP COLUMN k", "INSERT INTO t (id, g) VALUES (61, 'x')")
    engine.database.keep_views()
    run(connection, "ALTER TABLE t UNDROP COLUMN k")
    behind = value(connection, "SELECT commits_behind FROM instar.materialized_views")
    assert behind == (0 if engine.database.in_memory else 1)


def test_the_system_view(engine: Engine, connection: instar.Connection) -> None:
    run(connection, "ALTER TABLE t RENAME COLUMN b TO c", "INSERT INTO t VALUES (50, 'mine', 9, 9, 9)")
    ((name, definition, state, behind),) = rows(
        connection, "SELECT name, definition, state, commits_behind FROM instar.materialized_views"
    )
    assert (name, state) == ("v", "following")
    assert "count(t.c) AS cb FROM t WHERE ((t.n > 2) OR (t.n IS NULL)) GROUP BY t.g" in definition
    assert behind == (0 if engine.database.in_memory else 1)
    engine.database.keep_views()
    assert rows(connection, "SELECT commits_behind, rows FROM instar.materialized_views") == [(0, 5)]


# --- schema changes --------------------------------------------------------------------------------------------------


def test_the_system_view_does_not_mind_that_a_view_is_dropped_meanwhile(
    engine: Engine, connection: instar.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = materialized.followed

    def dropped(*arguments: Any) -> Followed | None:
        found = looked(*arguments)
        with contextlib.suppress(instar.Error):
            engine.connect().execute("DROP MATERIALIZED VIEW v")
        return found

    monkeypatch.setattr(materialized, "followed", dropped)
    assert rows(connection, "SELECT name FROM instar.materialized_views") == [("v",)]
    assert rows(connection, "SELECT name FROM instar.materialized_views") == []


def test_changes_of_the_source_go_on(engine: Engine, connection: instar.Connection) -> None:
    run(
        connection,
        "ALTER TABLE t ADD COLUMN z int DEFAULT 4",
        "ALTER TABLE t ADD COLUMN gone text",
        "INSERT INTO t VALUES (50, 'mine', 9, 9, 9, 9, 'x')",
        "ALTER TABLE t DROP COLUMN gone",
        "ALTER TABLE t ALTER COLUMN z TYPE text",
        "ALTER TABLE t ADD CHECK (n < 1000)",
        "CREATE INDEX ON t (n)",
        "ALTER TABLE t RENAME COLUMN g TO kind",
        "ALTER TABLE t RENAME TO renamed",
        "INSERT INTO renamed VALUES (51, 'mine', 9, 9, 9, '9')",
        "ALTER MATERIALIZED VIEW v RENAME TO w",
    )
    engine.database.keep_views()
    assert alike(
        connection, QUERY.replace("FROM t", "FROM renamed").replace("g,", "kind,").replace("BY g", "BY kind"), "w"
    )


@pytest.mark.parametrize(
    ("statement", "sqlstate", "told"),
    [
        ("ALTER TABLE t DROP COLUMN n", "2BP01", "materialized view v depends on column n of table t"),
        ("DROP TABLE t", "2BP01", "materialized view v depends on table t"),
        ("TRUNCATE t", "2BP01", "materialized view v follows table t"),
        ("ALTER TABLE t ALTER PRIMARY KEY USING COLUMNS (id, n)", "2BP01", "materialized view v follows table t"),
        ("ALTER TABLE t ALTER COLUMN n TYPE text", "0A000", 'materialized view v depends on column "n"'),
        ("ALTER TABLE t SPLIT INTO t (id, g), s (g, n, x, b) ON (g)", "2BP01", "v depends on table t"),
        ("INSERT INTO v VALUES ('a')", "42809", 'cannot change materialized view "v"'),
        ("UPDATE v SET g = 'a'", "42809", 'cannot change materialized view "v"'),
        ("DELETE FROM v", "42809", 'cannot change materialized view "v"'),
        ("TRUNCATE v", "42809", '"v" is not a table'),
        ("DROP VIEW v", "42809", '"v" is not a view'),
        ("DROP TABLE v", "42809", "v"),
        ("DROP MATERIALIZED VIEW t", "42809", '"t" is not a materialized view'),
        ("DROP MATERIALIZED VIEW nothing", "42P01", 'materialized view "nothing" does not exist'),
        ("CREATE INDEX ON v (g)", "0A000", "materialized view"),
        ("CREATE TABLE v (a int)", "42P07", "v"),
        (CREATE, "42P07", "v"),
    ],
)  # fmt: skip
def test_refused(connection: instar.Connection, statement: str, sqlstate: str, told: str) -> None:
    with fails(sqlstate, told):
        connection.execute(statement)
    assert alike(connection)


def test_drop(engine: Engine, connection: instar.Connection) -> None:
    run(connection, "CREATE VIEW above AS SELECT g FROM v")
    with fails("2BP01", "view above depends on materialized view v"):
        connection.execute("DROP MATERIALIZED VIEW v")
    run(connection, "DROP MATERIALIZED VIEW v CASCADE", "DROP MATERIALIZED VIEW IF EXISTS v")
    with fails("42P01"):
        connection.execute("SELECT * FROM v")
    with engine.database.store.read() as reader:
        catalog = engine.database.catalog.at(reader)
        assert [table.name for table in catalog.every_table()] == ["t"]
        table = catalog.lookup("public", "t")
        assert isinstance(table, instar.catalog.descriptors.Table)
        assert not table.logged_whole
    run(connection, "TRUNCATE t", CREATE)
    assert rows(connection, "SELECT * FROM v") == []


def test_drop_of_the_source_takes_it_along_and_undrop_leaves_it(connection: instar.Connection) -> None:
    run(connection, "DROP TABLE t CASCADE")
    with fails("42P01"):
        connection.execute("SELECT * FROM v")
    run(connection, "UNDROP TABLE t", "TRUNCATE t")
    with fails("42P01"):
        connection.execute("SELECT * FROM v")


def test_two_views_of_one_table(engine: Engine, connection: instar.Connection) -> None:
    run(connection, "CREATE MATERIALIZED VIEW w (a, b) WITH (refresh = log) AS SELECT n, count(*) FROM t GROUP BY n")
    run(connection, "INSERT INTO t VALUES (50, 'mine', 9, 9, 9)")
    engine.database.keep_views()
    assert alike(connection)
    assert alike(connection, "SELECT n, count(*) FROM t GROUP BY n", "w")
    run(connection, "DROP MATERIALIZED VIEW v", "INSERT INTO t VALUES (51, 'mine', 9, 9, 9)")
    engine.database.keep_views()
    assert rows(connection, "SELECT b FROM w WHERE a = 9") == [(3,)]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("SELECT g, min(n) FROM t GROUP BY g", "aggregate min"),
        ("SELECT g, sum(DISTINCT n) FROM t GROUP BY g", "DISTINCT"),
        ("SELECT g, sum(n) FILTER (WHERE n > 1) FROM t GROUP BY g", "FILTER"),
        ("SELECT g, sum(n + 1) FROM t GROUP BY g", "aggregate sum of an expression"),
        ("SELECT g, sum(f) FROM f GROUP BY g", "double precision"),
        ("SELECT f, count(*) FROM f GROUP BY f", "double precision"),
        ("SELECT g, count(*) FROM t GROUP BY g HAVING count(*) > 1", "HAVING"),
        ("SELECT g, count(*) FROM t GROUP BY g ORDER BY g", "ORDER BY"),
        ("SELECT g, count(*) FROM t GROUP BY g LIMIT 1", "LIMIT"),
        ("SELECT g || 'x', count(*) FROM t GROUP BY g", "an expression"),
        ("SELECT n % 2, count(*) FROM t GROUP BY n % 2", "GROUP BY an expression"),
        ("SELECT g, n, count(*) FROM t GROUP BY ROLLUP (g, n)", "GROUPING SETS"),
        ("SELECT count(*) FROM t", "without GROUP BY"),
        ("SELECT g FROM t", "without GROUP BY"),
        ("SELECT DISTINCT g FROM t", "DISTINCT"),
        ("SELECT g, count(*) FROM t WHERE n > random() GROUP BY g", "WHERE"),
        ("SELECT g, count(*) FROM t WHERE 1 / n > 0 GROUP BY g", "operator / in WHERE"),
        (
            "SELECT g, count(*) FROM t WHERE at > '2020-01-01'::text::timestamptz GROUP BY g",
            "cast from text to timestamp with time zone in",
        ),
        ("SELECT g, count(*) FROM t WHERE CASE WHEN n = 1 THEN true END GROUP BY g", "CASE in WHERE"),
        ("SELECT g, count(*) FROM t WHERE n IN (SELECT 1) GROUP BY g", "a subquery"),
        ("SELECT g, rank() OVER (ORDER BY g) FROM t GROUP BY g", "a window function"),
        ("SELECT g, count(*) FROM (SELECT g FROM t) s GROUP BY g", "a subquery in FROM"),
        ("SELECT g, count(*) FROM v GROUP BY g", "a view"),
        ("SELECT name, count(*) FROM instar.materialized_views GROUP BY name", "a system view"),
        ("SELECT 1 UNION SELECT 2", "UNION"),
        ("SELECT a, count(*) FROM keyless GROUP BY a", "primary key"),
        (
            "SELECT a, count(*) FROM locked GROUP BY a",
            'a materialized view of table "locked", which has optimistic locks',
        ),
    ],
)
def test_not_supported(query: str, told: str) -> None:
    with instar.connect(autocommit=True) as made:
        run(
            made,
            "CREATE TABLE t (id bigint PRIMARY KEY, g text, n int, at timestamptz)",
            "CREATE TABLE f (id bigint PRIMARY KEY, g text, f double precision)",
            "CREATE TABLE keyless (a int)",
            "CREATE TABLE locked (id int PRIMARY KEY, a int)",
            "ALTER TABLE locked ADD LOCK l COVERS (a)",
            "CREATE VIEW v AS SELECT g FROM t",
        )
        with fails("55000" if "keyless" in query else "0A000", told):
            made.execute(f"CREATE MATERIALIZED VIEW w WITH (refresh = 'log') AS {query}")
        assert rows(made, "SHOW JOBS") == []


def test_other_kinds_are_not_supported(connection: instar.Connection) -> None:
    for way in ("", "WITH (refresh = 'always')"):
        with fails("0A000"):
            connection.execute(f"CREATE MATERIALIZED VIEW w {way} AS {QUERY}")
    with fails("22023"):
        connection.execute(f"CREATE MATERIALIZED VIEW w WITH (fillfactor = 1) AS {QUERY}")
    with fails("22023", 'unrecognized parameter "priority"'):
        connection.execute(f"CREATE MATERIALIZED VIEW w WITH (refresh = 'log', priority = -1) AS {QUERY}")
    with fails("42601", "conflicting or redundant options"):
        connection.execute(f"CREATE MATERIALIZED VIEW w WITH (refresh = 'log', refresh = 'log') AS {QUERY}")


def test_a_sum_that_has_too_many_digits_fails_when_it_is_asked_for(engine: Engine) -> None:
    connection = engine.connect()
    run(
        connection,
        "CREATE TABLE n (id int PRIMARY KEY, x numeric)",
        "CREATE MATERIALIZED VIEW v WITH (refresh = 'log') AS SELECT x, count(*), sum(x) FROM n GROUP BY x",
        f"INSERT INTO n SELECT i, {'9' * 38} FROM generate_series(1, 20) i",
    )
    engine.database.keep_views()
    assert value(connection, "SELECT count FROM v") == 20
    with fails("22003"):
        connection.execute("SELECT sum FROM v")
    run(connection, "DELETE FROM n WHERE id > 1")
    engine.database.keep_views()
    assert alike(connection, "SELECT x, count(*), sum(x) FROM n GROUP BY x")


@pytest.mark.parametrize("type_", ["numeric", "numeric(38, 0)", "numeric(38, 2)"])
def test_an_average_has_no_too_many_digits(engine: Engine, type_: str) -> None:
    """Though the sum that it is of has."""
    connection = engine.connect()
    query = "SELECT g, avg(x)::text AS a FROM n GROUP BY g"
    digits = "9" * (36 if "2" in type_ else 38)
    run(
        connection,
        f"CREATE TABLE n (id int PRIMARY KEY, g int, x {type_})",
        f"INSERT INTO n VALUES (1, 1, {digits}), (2, 1, {digits}), (3, 1, 1), (4, 2, NULL), (5, 3, 'NaN'), (6, 3, 1)",
        "CREATE MATERIALIZED VIEW v WITH (refresh = 'log') AS SELECT g, avg(x) AS a, sum(x) AS s FROM n GROUP BY g",
        "INSERT INTO n VALUES (7, 4, 1e10), (8, 4, 1e-30)" if type_ == "numeric" else "UPDATE n SET g = 1 WHERE x = 1",
    )
    engine.database.keep_views()
    assert sorted(rows(connection, "SELECT g, a::text FROM v")) == sorted(rows(connection, query))
    with fails("22003"):
        connection.execute("SELECT s FROM v WHERE g = 1")
    run(connection, "DELETE FROM n WHERE id = 5")
    engine.database.keep_views()
    assert sorted(rows(connection, "SELECT g, a::text FROM v")) == sorted(rows(connection, query))


def test_sums_and_averages_are_written_as_the_query_writes_them(engine: Engine) -> None:
    """By scales of the values that are there now: an average of more digits than a numeric shows is rounded by them."""
    connection, chance = engine.connect(), random.Random(11)
    query = "SELECT g, sum(x)::text AS s, avg(x)::text AS a, sum(y)::text AS sy, avg(y)::text AS ay FROM n GROUP BY g"
    kept = "SELECT g, sum(x) AS s, avg(x) AS a, sum(y) AS sy, avg(y) AS ay FROM n GROUP BY g"
    run(
        connection,
        "CREATE TABLE n (id int PRIMARY KEY, g int, x numeric, y numeric(12, 3))",
        "INSERT INTO n VALUES (1, 1, 12345678901234567891, 1), (2, 1, 0.00001, 2), (3, 2, 0, NULL)",
        f"CREATE MATERIALIZED VIEW v WITH (refresh = 'log') AS {kept}",
        "DELETE FROM n WHERE id = 2",
        "INSERT INTO n VALUES (4, 1, 0, 3)",
    )
    view = "SELECT g, s::text, a::text, sy::text, ay::text FROM v"
    engine.database.keep_views()
    assert rows(connection, f"{view} WHERE g = 1") == [
        (1, "12345678901234567891", "6172839450617283946", "4.000", "2.0000000000000000")
    ]
    for _ in range(30):
        key, group = chance.randint(1, 8), chance.choice(("NULL", "1", "2"))
        value = chance.choice(("NULL", "'NaN'", "1", "0.1", "0.1000", "12345678901234567891", "-7.123456"))
        run(
            connection,
            f"INSERT INTO n VALUES ({key}, {group}, {value}, {key}) "
            f"ON CONFLICT (id) DO UPDATE SET g = {group}, x = {value}"
            if chance.random() < 0.7
            else f"DELETE FROM n WHERE id = {key}",
        )
        engine.database.keep_views()
        assert sorted(rows(connection, view), key=repr) == sorted(rows(connection, query), key=repr)
    assert rows(connection, "CHECK DATABASE") == []


def test_it_is_populated_anew_when_it_cannot_follow(engine: Engine, connection: instar.Connection) -> None:
    """Others go on with the old rows meanwhile, and it says so."""
    run(connection, "CREATE VIEW above AS SELECT g, cb FROM v", "INSERT INTO t VALUES (50, 'mine', 9, 9, 9)")
    store = engine.database.store
    with store.read() as reader:
        newest = reader.timestamp
    store.collect(newest, lambda record: [])
    if not engine.database.in_memory:  # where a commit is followed at once
        engine.database.keep_views()
        assert rows(connection, "SELECT * FROM v WHERE g = 'mine'") == [("mine", 1, 9, 9, 9, 9, 1)]
        assert "materialize" in [row[0] for row in rows(connection, "SELECT kind FROM instar.jobs WHERE id > 1")]
    assert alike(connection)
    run(connection, "INSERT INTO t VALUES (51, 'mine', 9, 9, 9)")
    engine.database.keep_views()
    assert alike(connection)
    assert rows(connection, "SELECT cb FROM above WHERE g = 'mine'") == [(2,)]


def test_rows_that_contradict_the_log_are_made_anew(engine: Engine, connection: instar.Connection) -> None:
    store = engine.database.store
    with store.read() as reader:
        view = engine.database.catalog.at(reader).lookup("public", "v")
        assert isinstance(view, View)
        assert view.materialized is not None
        prefix = rowset_prefix(engine.database.catalog.at(reader).table(view.materialized.storage).rowset)
        groups = [key for key, _ in reader.scan(prefix, prefix_end(prefix))]

    def lose(section: Section) -> None:
        for key in groups:
            section.delete(key)

    store.background([lose])
    run(connection, "DELETE FROM t WHERE id = 5")
    engine.database.keep_views()
    assert alike(connection)


@pytest.mark.parametrize("at", ["stage 2", "put", "stage 3"])
def test_cancel_leaves_no_trace(engine: Engine, at: str) -> None:
    connection, other = engine.connect(), engine.connect()
    run(connection, "CREATE TABLE t (id bigint PRIMARY KEY, g text, n int, x numeric, b bigint)")
    run(connection, "INSERT INTO t SELECT i, 'a', i, i, i FROM generate_series(1, 5) i")

    cancelled: list[str] = []

    def cancel(point: str) -> None:
        if point == at and not cancelled:
            cancelled.append(point)
            run(other, "INSERT INTO t VALUES (9, 'b', 9)", "CANCEL JOB 1")

    with pytest.MonkeyPatch.context() as patched, fails("57014"):
        hook_jobs(patched, cancel)
        connection.execute(CREATE)
    with engine.database.store.read() as reader:
        catalog = engine.database.catalog.at(reader)
        assert [(table.name, table.logged_whole) for table in catalog.every_table()] == [("t", False)]
    run(connection, CREATE)
    assert alike(connection)
    assert rows(connection, "CHECK DATABASE") == []


def test_what_is_written_while_it_is_populated_is_in_it(engine: Engine) -> None:
    connection, other = engine.connect(), engine.connect()
    run(connection, "CREATE TABLE t (id bigint PRIMARY KEY, g text, n int, x numeric, b bigint)")
    run(connection, "INSERT INTO t SELECT i, 'a', i, i, i FROM generate_series(1, 5) i")
    points = iter(range(100, 1000))
    with pytest.MonkeyPatch.context() as patched:
        hook_jobs(
            patched,
            lambda point: run(other, f"INSERT INTO t VALUES ({next(points)}, 'b', 9)", "DELETE FROM t WHERE id = 3"),
        )
        connection.execute(CREATE)
    engine.database.keep_views()
    assert alike(connection)
    assert next(points) > 104


def test_who_opens_a_database_whose_views_are_behind_starts_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "db")
    started: list[str] = []

    def ensure(*_launcher: object) -> bool:
        started.append(path)
        return True

    monkeypatch.setattr(WorkerLauncher, "ensure", ensure)
    for statements in (
        ("CREATE TABLE t (id int PRIMARY KEY, g text, n int, x numeric, b int)", CREATE),
        ("INSERT INTO t VALUES (1, 'a', 1)",),
    ):
        made = instar.connect(path, autocommit=True)
        assert not started
        run(made, *statements)
        made.close()
        started.clear()
    instar.connect(path).close()
    assert started


def test_who_has_written_before_it_is_shown_and_commits_after_starts_a_worker(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, other = engine.connect(), engine.connect()
    run(connection, "CREATE TABLE t (id int PRIMARY KEY, g text, n int, x numeric, b int)")

    def write(point: str) -> None:
        if point == "stage 3":
            run(other, "BEGIN", "INSERT INTO t VALUES (1, 'a', 3)")

    with pytest.MonkeyPatch.context() as patched:
        hook_jobs(patched, write)
        connection.execute(CREATE)
    started: list[str] = []

    def ensure(*_launcher: object) -> bool:
        started.append("one")
        return True

    monkeypatch.setattr(WorkerLauncher, "ensure", ensure)
    run(other, "COMMIT")
    if not engine.database.in_memory:
        assert started
        engine.database.keep_views()
    assert rows(connection, "SELECT g, cb FROM v") == [("a", 0)]


def test_a_worker_owes_a_view_that_a_reader_holds_up(engine: Engine, connection: instar.Connection) -> None:
    """So it does not end for want of work, though nothing is committed any more."""
    store = engine.database.store
    worker = Worker(store, engine.database.clock)
    while worker.turn():
        pass
    with store.read() as reader:
        view = engine.database.catalog.at(reader).lookup("public", "v")
        assert isinstance(view, View)
        assert view.materialized is not None
        start = rowset_prefix(engine.database.catalog.at(reader).table(view.materialized.storage).rowset)
        held = [(key, Mode.SHARE) for key, _ in reader.scan(start, prefix_end(start))]
    owner = store.locks.new_owner()
    store.lock(owner, held)
    run(connection, "UPDATE t SET n = 50")
    for _ in range(2):
        worker.turn()
        assert worker.is_owing
    store.locks.end(owner)
    worker.turn()
    assert not worker.is_owing
    assert alike(connection)
