"""Servers under schema leases, one version apart and more: what they write, read, and are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from instar.database import Database
from instar.database.session import Session
from instar.dbapi import Connection
from instar.schemachange.job_records import JobState
from instar.store.engine import Commit, Derive
from instar.tables import writes
from instar.worker.work import Worker
from support.databases import fails, general_commits, rows, run, value
from support.servers import LEASE, Servers, version
from support.steps import hook_jobs


@pytest.fixture
def servers() -> Servers:
    return Servers()


@pytest.fixture
def pair(servers: Servers) -> tuple[Connection, Connection]:
    """A server that changes the schema, and one that has t (id, a) in its cache."""
    one, two = servers.server(), servers.server()
    run(one, "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 10)")
    run(two, "INSERT INTO t VALUES (2, 20)")
    return one, two


def session(connection: Connection) -> Session:
    return connection.session


def test_without_leases_there_is_no_repository() -> None:
    assert Servers(lease=0).server().database.repository is None


def test_a_server_writes_under_its_cached_version_and_reads_under_its_snapshots(
    servers: Servers, pair: tuple[Connection, Connection]
) -> None:
    one, two = pair
    before = version(two)
    run(one, "ALTER TABLE t ADD COLUMN b text DEFAULT 'new'")
    run(two, "INSERT INTO t VALUES (3, 30)", "UPDATE t SET a = 21 WHERE id = 2", "DELETE FROM t WHERE id = 1")
    assert version(two) == before
    assert servers.versions() == [1, 1, 1, 1, 1]
    assert rows(two, "SELECT id, a, b FROM t ORDER BY id") == [(2, 21, "new"), (3, 30, "new")]
    assert version(two) == before  # a query tells the server's writes nothing
    servers.clock.advance(LEASE / 2)
    run(two, "INSERT INTO t VALUES (4, 40, 'mine')")
    assert version(two) == before + 1
    assert servers.versions()[-1] == 2
    assert rows(one, "CHECK DATABASE") == []


def test_the_server_that_changes_the_schema_has_it_at_once(pair: tuple[Connection, Connection]) -> None:
    one, _two = pair
    run(one, "ALTER TABLE t ADD COLUMN b text", "INSERT INTO t VALUES (3, 30, 'x')")
    run(one, "BEGIN", "ALTER TABLE t ADD COLUMN c int", "INSERT INTO t VALUES (4, 40, 'y', 5)", "COMMIT")
    run(one, "INSERT INTO t VALUES (5, 50, 'z', 6)")
    assert value(one, "SELECT sum(c) FROM t") == 11


def test_a_row_in_a_newer_layout_keeps_what_only_that_holds(
    servers: Servers, pair: tuple[Connection, Connection]
) -> None:
    """Rule 11: the older server reloads before it replaces the row; a transaction of several statements is refused."""
    one, two = pair
    run(one, "ALTER TABLE t ADD COLUMN b text", "UPDATE t SET b = 'kept' WHERE id = 1")
    before = version(two)
    run(two, "BEGIN", "UPDATE t SET a = a + 1 WHERE id = 1")
    with fails("40001", "newer schema", "(id)=(1)"):
        run(two, "COMMIT")
    servers.clock.advance(LEASE)
    run(one, "ALTER TABLE t ADD COLUMN c int", "UPDATE t SET c = 3 WHERE id = 1")
    run(two, "UPDATE t SET a = a + 1 WHERE id = 1")
    assert version(two) == before + 2
    run(two, "BEGIN", "UPDATE t SET a = a + 1 WHERE id = 1", "COMMIT")
    assert rows(one, "SELECT * FROM t WHERE id = 1") == [(1, 12, "kept", 3)]


def test_rule_11_switched_off_loses_the_new_columns_value(
    pair: tuple[Connection, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pair
    run(one, "ALTER TABLE t ADD COLUMN b text", "UPDATE t SET b = 'lost' WHERE id = 1")
    monkeypatch.setattr(writes, "_layout_of", lambda stored: 0)
    run(two, "UPDATE t SET a = a + 1 WHERE id = 1")
    assert rows(one, "SELECT * FROM t WHERE id = 1") == [(1, 11, None)]


@pytest.mark.parametrize(
    ("change", "statement", "expected"),
    [
        ("ALTER TABLE t DROP COLUMN a", "UPDATE t SET id = id + 10 WHERE id < 5", [(11,), (12,)]),
        ("ALTER TABLE t ALTER a TYPE bigint", "UPDATE t SET a = 5000000000 WHERE id = 2", [(1, 10), (2, 5000000000)]),
        ("TRUNCATE t", "INSERT INTO t VALUES (2, 21)", [(2, 21)]),
    ],
)
def test_an_abrupt_step_is_seen_by_the_next_statement(
    pair: tuple[Connection, Connection], change: str, statement: str, expected: list[tuple[object, ...]]
) -> None:
    one, two = pair
    run(one, change)
    run(two, statement)
    assert rows(two, "SELECT * FROM t ORDER BY id") == expected


def test_rows_that_were_selected_for_share_are_seen_to_under_the_newest_schema(
    servers: Servers, pair: tuple[Connection, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written elsewhere alone would be derived under the version before, which knows nothing of the lock."""
    one, two = pair
    three = servers.server()
    run(one, "CREATE TABLE other (n int)")
    servers.clock.advance(LEASE)  # nobody's lease of the version before that is waited for
    run(two, "INSERT INTO other VALUES (0)", "BEGIN", "SELECT * FROM t WHERE id = 1 FOR SHARE")
    run(two, "INSERT INTO other VALUES (1)")
    before = version(two)

    def before_the_job(database: Database, job: int, stopping: Callable[[], bool]) -> None:
        run(three, "UPDATE t SET a = 11 WHERE id = 1")
        assert version(two) == before
        with fails("40001", "divided into more parts"):
            run(two, "COMMIT")
        run_job(database, job, stopping)

    hook_jobs(monkeypatch, lambda step: None)
    run_job = Database.run_job
    monkeypatch.setattr(Database, "run_job", before_the_job)
    run(one, "ALTER TABLE t ADD LOCK l COVERS (a)")
    assert rows(one, "SELECT * FROM other") == [(0,)]


def test_a_write_that_a_drop_dooms_is_refused_whatever_the_lease_says(pair: tuple[Connection, Connection]) -> None:
    one, two = pair
    run(two, "BEGIN", "UPDATE t SET a = 0 WHERE id = 1")
    run(one, "ALTER TABLE t DROP COLUMN a")
    with fails("40001", "drop column"):
        run(two, "COMMIT")
    assert rows(one, "SELECT * FROM t ORDER BY id") == [(1,), (2,)]


@pytest.mark.parametrize("changes", [1, 2, 7, 70])
def test_a_server_that_slept_commits_nothing_under_an_old_schema(
    servers: Servers, pair: tuple[Connection, Connection], changes: int
) -> None:
    """Rules 12 and 17: it wakes up after any number of changes, in the middle of a transaction or at a new one."""
    one, two = pair
    three = servers.server()
    run(three, "UPDATE t SET a = a")
    run(two, "BEGIN", "UPDATE t SET a = a + 1 WHERE id = 2")
    for number in range(changes):
        run(one, f"ALTER TABLE t ADD COLUMN c{number} int DEFAULT {number}")
        servers.clock.advance(LEASE)
    run(two, "COMMIT")
    run(three, "INSERT INTO t (id, a) VALUES (3, 30)")
    assert servers.versions()[-1] == changes + 1
    assert rows(one, "SELECT id, a, c0 FROM t ORDER BY id") == [(1, 10, 0), (2, 21, 0), (3, 30, 0)]
    assert rows(one, "CHECK DATABASE") == []


def test_a_stale_server_maintains_an_index_that_it_has_never_heard_of(
    servers: Servers, pair: tuple[Connection, Connection]
) -> None:
    one, two = pair
    run(two, "BEGIN", "INSERT INTO t VALUES (7, 70)")
    run(one, "CREATE INDEX i ON t (a)")
    run(two, "COMMIT", "INSERT INTO t VALUES (8, 80)")
    assert rows(one, "SELECT id FROM t WHERE a >= 70 ORDER BY a") == [(7,), (8,)]
    assert rows(one, "CHECK DATABASE") == []


@pytest.mark.parametrize("level", ["read committed", "repeatable read"])
def test_a_new_name_is_found_at_once(pair: tuple[Connection, Connection], level: str) -> None:
    """A statement that fails for what its leased schema has not runs again under the newest."""
    one, two = pair
    run(one, "CREATE TABLE u (id int PRIMARY KEY)")
    run(two, "INSERT INTO u VALUES (1)")
    run(one, "ALTER TABLE t ADD COLUMN b int")
    run(two, f"BEGIN ISOLATION LEVEL {level}", "INSERT INTO t (id, b) VALUES (5, 6)", "COMMIT")
    assert rows(one, "SELECT id, b FROM t WHERE id = 5") == [(5, 6)]
    with fails("42P01"):
        run(two, "INSERT INTO nowhere VALUES (1)")


def test_what_seems_violated_under_a_leased_schema_is_judged_under_the_newest(
    servers: Servers, pair: tuple[Connection, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One version before the swap of ALTER PRIMARY KEY, the copies are the table that others write to by now: the row's
    own copy looks like another row with its key."""
    one, two = pair
    monkeypatch.setattr(Database, "ensure_worker", lambda database: None)
    monkeypatch.setattr(Database, "run_job", lambda *_: None)
    run(one, "SET schema_change_mode = async", "ALTER TABLE t ALTER a SET NOT NULL")
    Worker(servers.store, servers.clock).turn()
    run(one, "ALTER TABLE t ALTER PRIMARY KEY (a)")
    job = one.database.jobs.all()[-1]

    def keep_up() -> bool:
        """The other server renews until the last stage is published, and begins a transaction before that."""
        found = one.database.jobs.get(job.id)
        if two.database.repository is not None and not found.is_finished:
            two.database.repository.tend()
        if found.stage == len(found.stages) - 1 and not session(two).in_transaction:
            run(two, "BEGIN ISOLATION LEVEL REPEATABLE READ", "UPDATE t SET a = a + 1 WHERE id = 2")
        return False

    Worker(servers.store, servers.clock, stopping=keep_up).turn()
    assert one.database.jobs.get(job.id).state is JobState.SUCCEEDED
    with servers.store.read() as reader:
        assert version(two) == reader.catalog_version - 1
    run(one, "UPDATE t SET a = a + 1 WHERE id = 2")
    with fails("40001"):
        run(two, "COMMIT")
    assert rows(one, "SELECT id, a FROM t ORDER BY id") == [(1, 10), (2, 21)]


def test_a_transaction_never_goes_back_to_an_older_schema(pair: tuple[Connection, Connection]) -> None:
    one, two = pair
    run(one, "ALTER TABLE t ADD COLUMN b int DEFAULT 1")
    for level in ("READ COMMITTED", "REPEATABLE READ"):
        run(two, f"BEGIN ISOLATION LEVEL {level}")
        assert rows(two, "SELECT b FROM t WHERE id = 1") == [(1,)]
        run(two, "UPDATE t SET b = 1 WHERE id = 1", "COMMIT")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT count(*) FROM t",
        "SELECT * FROM t WHERE id = 1",
        "SELECT id FROM t WHERE a = 10",
        "SELECT id FROM t WHERE id = 1 FOR UPDATE",
        "SELECT id FROM t WHERE id = 100 FOR UPDATE",
    ],
)
def test_nor_does_one_whose_queries_leave_no_snapshot(pair: tuple[Connection, Connection], query: str) -> None:
    """A query that stands alone, and look-ups: what they have seen is what the write after them goes by."""
    one, two = pair
    run(one, "CREATE INDEX ON t (a)")
    for _ in range(3):
        rows(two, query)
    run(two, "UPDATE t SET a = 20 WHERE a = 20")  # which leases this version
    run(one, "ALTER TABLE t ALTER COLUMN a SET DEFAULT 9")
    rows(two, query)  # so that it is planned under the newest schema
    run(two, "BEGIN")
    rows(two, query)
    assert rows(two, "INSERT INTO t (id) VALUES (3) RETURNING *") == [(3, 9)]
    run(two, "COMMIT")


def test_a_transaction_of_an_older_schema_may_span_renewals(
    servers: Servers, pair: tuple[Connection, Connection]
) -> None:
    one, two = pair
    run(two, "BEGIN ISOLATION LEVEL REPEATABLE READ", "INSERT INTO t VALUES (3, 30)")
    run(one, "ALTER TABLE t ADD COLUMN b int DEFAULT 1")
    servers.clock.advance(3 * LEASE)
    run(two, "INSERT INTO t VALUES (4, 40)")
    servers.clock.advance(3 * LEASE)
    run(two, "COMMIT")
    assert servers.versions()[-2:] == [2, 2]
    assert rows(one, "SELECT id, b FROM t ORDER BY id") == [(1, 1), (2, 1), (3, 1), (4, 1)]


def test_a_serializable_transaction_never_stands_on_a_leased_schema(
    servers: Servers, pair: tuple[Connection, Connection]
) -> None:
    """Rule 13: it is derived under the store's version."""
    one, two = pair
    run(one, "ALTER TABLE t ADD COLUMN b int DEFAULT 1")
    run(two, "BEGIN ISOLATION LEVEL SERIALIZABLE", "INSERT INTO t SELECT id + 10, a, 2 FROM t WHERE b = 1", "COMMIT")
    assert servers.versions()[-2:] == [2, 2]
    assert rows(one, "SELECT id, b FROM t WHERE id > 10 ORDER BY id") == [(11, 2), (12, 2)]


# --- leases that run out ---------------------------------------------------------------------------------------------


def slow_commits(servers: Servers, monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """The next `times` commits come to the atomic section only when their leases have run out."""
    left = [0] * times
    real: Callable[[Commit], int] = servers.store.commit
    real_derived: Callable[[Derive], int] = servers.store.commit_derived

    def late(request: Commit) -> int:
        if left and request.lease is not None:
            left.pop()
            servers.clock.advance(LEASE)
        return real(request)

    def late_derived(derive: Derive) -> int:
        if left:
            left.pop()
            servers.clock.advance(LEASE)
        return real_derived(derive)

    monkeypatch.setattr(servers.store, "commit", late)
    monkeypatch.setattr(servers.store, "commit_derived", late_derived)
    return left


def test_a_write_whose_lease_ran_out_is_derived_and_submitted_again(
    servers: Servers, pair: tuple[Connection, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    _one, two = pair
    left = slow_commits(servers, monkeypatch, 3)
    run(two, "UPDATE t SET a = a + 1")
    assert not left
    assert rows(two, "SELECT a FROM t ORDER BY id") == [(11,), (21,)]


def test_a_pending_write_on_an_older_version_ends_with_its_lease(
    servers: Servers, pair: tuple[Connection, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another session of its server has renewed, to the next version, which moves the lease of the older no further."""
    one, two = pair
    general_commits(monkeypatch)
    real: Callable[[Commit], int] = servers.store.commit
    judged: list[tuple[int, int]] = []

    def late(request: Commit) -> int:
        if request.lease is not None and not request.bump_catalog:
            if not judged:
                run(one, "ALTER TABLE t ADD COLUMN b int DEFAULT 1")
                servers.clock.advance(LEASE / 2)
                two.database.repository.schema()  # type: ignore[union-attr]  # there are leases
                servers.clock.advance(LEASE / 2)
            judged.append((request.catalog_version, request.lease.until - servers.clock.monotonic))
        return real(request)

    before = version(two)
    monkeypatch.setattr(servers.store, "commit", late)
    run(two, "UPDATE t SET a = a + 1")
    assert [found for found, _left in judged] == [before, before + 1]
    assert judged[0][1] <= 0 < judged[1][1]
    assert servers.versions()[-2:] == [2, 2]


def test_a_lease_that_always_runs_out_is_a_retryable_error_that_says_so(
    servers: Servers, pair: tuple[Connection, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    _one, two = pair
    slow_commits(servers, monkeypatch, 1000)
    with fails("40001", "lease", "ran out 5 times"):
        run(two, "UPDATE t SET a = a + 1")
    assert rows(two, "SELECT a FROM t ORDER BY id") == [(10,), (20,)]


@pytest.mark.parametrize(
    ("statement", "parameters"),
    [
        ("UPDATE t SET a = ? WHERE id = 1", (5,)),
        ("INSERT INTO t VALUES (?, 0)", None),
        ("UPDATE t SET a = a + 1", ()),
        ("INSERT INTO t SELECT id + 1000, a FROM t WHERE id < 3", ()),
    ],
)
def test_a_server_that_cannot_renew_stops_committing_when_its_lease_runs_out(
    servers: Servers, pair: tuple[Connection, Connection], statement: str, parameters: tuple[object, ...] | None
) -> None:
    one, two = pair
    count = iter(range(100, 200))

    def write() -> None:
        two.execute(statement, (next(count),) if parameters is None else parameters)

    write()
    servers.damage(0, 1)
    servers.clock.advance(LEASE - 0.001)
    if "SELECT" not in statement:
        write()
    servers.clock.advance(0.001)
    before = rows(two, "SELECT * FROM t ORDER BY id")
    for _ in range(3):
        with fails("XX001", "both copies"):
            write()
    assert rows(two, "SELECT * FROM t ORDER BY id") == before  # reading needs no lease
    run(one, "ALTER TABLE t ADD COLUMN b int")  # which writes both copies anew
    two.execute("DELETE FROM t WHERE id = 1")
    assert rows(one, "CHECK DATABASE") == []


def test_short_forms_of_writes_renew_and_stay(servers: Servers, pair: tuple[Connection, Connection]) -> None:
    """An update by key keeps its compiled form over any number of leases, idle or not."""
    _one, two = pair
    update, insert = "UPDATE t SET a = a + ? WHERE id = 2", "INSERT INTO t VALUES (?, 0)"
    two.execute(update, (1,))
    two.execute(insert, (1000,))
    compiled = dict(two.database.point_writers)
    assert set(compiled) >= {update, insert}
    for number in range(20):
        servers.clock.advance(LEASE * (number % 4) / 3)
        two.execute(update, (1,))
        two.execute(insert, (number + 50,))
    assert two.database.point_writers == compiled
    assert value(two, "SELECT a FROM t WHERE id = 2") == 41


def test_damage_to_a_copy_is_reported_and_mended(servers: Servers, pair: tuple[Connection, Connection]) -> None:
    _one, two = pair
    servers.damage(1)
    (problem,) = rows(two, "CHECK DATABASE")
    assert problem[-2:] == ("e002", "a copy of the canonical schema version is damaged")
    servers.clock.advance(LEASE)
    run(two, "UPDATE t SET a = a")
    assert rows(two, "CHECK DATABASE") == []


@pytest.mark.parametrize("jump", [-(10**17), 10**17])
def test_a_wall_clock_that_jumps_changes_nothing(
    servers: Servers, pair: tuple[Connection, Connection], jump: int
) -> None:
    one, two = pair
    before = version(two)
    run(one, "ALTER TABLE t ADD COLUMN b int")
    servers.clock.wall += jump
    run(two, "INSERT INTO t VALUES (3, 30)")
    assert version(two) == before
    servers.clock.monotonic += int(LEASE * 1e9)
    run(two, "INSERT INTO t VALUES (4, 40, 1)")
    assert version(two) == before + 1


def test_a_materialized_view_has_what_servers_one_version_behind_write(
    servers: Servers, pair: tuple[Connection, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is made, after it is shown, and after its table has changed."""
    one, two = pair
    behind: list[int] = []
    keys = iter(range(10, 1000))

    def write(point: str) -> None:
        run(two, f"INSERT INTO t VALUES ({next(keys)}, 1)", "UPDATE t SET a = a + 1 WHERE id = 2")
        if next(keys) % 3 == 0:
            run(two, "BEGIN", f"INSERT INTO t VALUES ({next(keys)}, 2)", "DELETE FROM t WHERE id = 10", "COMMIT")
        with servers.store.read() as reader:
            behind.append(reader.catalog_version - version(two))

    hook_jobs(monkeypatch, write)
    query = "SELECT a, count(*), sum(id) FROM t GROUP BY a"
    run(one, f"CREATE MATERIALIZED VIEW v WITH (refresh = 'log') AS {query}")
    for change in (None, "ALTER TABLE t ADD COLUMN b text", "ALTER TABLE t DROP COLUMN b", "CREATE INDEX i ON t (a)"):
        if change is not None:
            run(one, change)
        write("after")
        for server in pair:
            run(server, "REFRESH MATERIALIZED VIEW v")
            assert sorted(rows(server, "SELECT * FROM v")) == sorted(rows(server, query))
    assert max(behind) == 1
    assert rows(one, "CHECK DATABASE") == []
