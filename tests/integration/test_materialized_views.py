"""Materialized views under operations at every point of their creation, and under writers in processes of their own
while the worker is killed again and again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

import instar
from instar.database import database
from instar.schemachange import launching
from instar.schemachange.launching import WorkerLauncher
from instar.store import open_store, presence
from instar.worker.work import Worker
from integration.test_join_and_split_interleaved import CASES, PLACES, Case, through
from support.databases import Engine, rows, run, value
from support.victims import Victim

# --- at every point --------------------------------------------------------------------------------------------------

_JOINED = "SELECT r.id AS r, r.x, s.id AS s, s.x AS y, r.v, s.w FROM r {} JOIN s ON r.x = s.x"
_KEYED = "SELECT r.id AS r, r.x, s.id AS s, r.v, s.w FROM r {} JOIN s ON r.x = s.id"
_GROUPED = "SELECT zip, city, count(*), sum(v), avg(id) FROM t WHERE v < 7 GROUP BY zip, city"


def materialized(case: Case, query: str) -> Case:
    """The sources of a join or split and their operations, with a view of them created."""

    def check(engine: Engine) -> None:
        connection = engine.connect()
        engine.database.keep_views()
        found, wanted = (sorted(rows(connection, text), key=repr) for text in ("SELECT * FROM m", query))
        assert found == wanted

    return case._replace(statement=f"CREATE MATERIALIZED VIEW m WITH (refresh = 'log') AS {query}", check=check)


VIEWS = {
    "grouping": materialized(CASES["split"], _GROUPED),
    "many-to-many": materialized(CASES["many-to-many"], _JOINED.format("FULL")),
    "one-to-many": materialized(CASES["one-to-many"], _KEYED.format("LEFT")),
}
# The switch of a view has no tail.
POINTS = [point for point in PLACES if point[0] != "late" and point[1] < 3]


@pytest.mark.parametrize("point", POINTS, ids=lambda point: f"{point[0]} {point[1]}")
@pytest.mark.parametrize("name", VIEWS)
def test_each_operation_at_each_point(name: str, point: tuple[str, int]) -> None:
    for text in VIEWS[name].operations:
        through(VIEWS[name], [(point, text)])


@pytest.mark.parametrize("name", VIEWS)
def test_pairs_of_operations(name: str) -> None:
    case, draw = VIEWS[name], random.Random(name)
    for _ in range(30):
        places = sorted(draw.choices(POINTS, k=2), key=POINTS.index)
        through(case, list(zip(places, draw.sample(case.operations, 2), strict=True)))


# --- under fire ------------------------------------------------------------------------------------------------------

GROUPED = "SELECT g, count(*), sum(n), count(n) AS c FROM t GROUP BY g"
JOINED = "SELECT t.id, t.n, u.name FROM t LEFT JOIN u ON t.g = u.id"
SECONDS = 2.0


def writer(path: str, number: int, say: Callable[[object], None]) -> None:
    """Commit changes of both tables for some seconds; say how many."""
    WorkerLauncher.ensure = lambda launcher: True  # type: ignore[assignment, method-assign]  # as above
    connection = instar.connect(path, synchronous=None, autocommit=True)
    draw, until, count = random.Random(number), time.monotonic() + SECONDS, 0
    while time.monotonic() < until:
        try:
            run(connection, "BEGIN", *_statements(draw), "COMMIT")
            count += 1
        except instar.Error:
            connection.rollback()
    say(count)
    connection.close()


def _statements(draw: random.Random) -> Iterable[str]:
    for _ in range(draw.choice((1, 1, 3))):
        key, group = draw.randrange(300), draw.randrange(10)
        yield draw.choice(
            (
                f"INSERT INTO t VALUES ({key}, {group}, {key}) ON CONFLICT (id) DO UPDATE SET g = {group}",
                f"UPDATE t SET n = n + 1 WHERE id = {key}",
                f"DELETE FROM t WHERE id = {key}",
                f"UPDATE u SET name = 'n{key}' WHERE id = {group}",
                f"DELETE FROM u WHERE id = {group}",
                f"INSERT INTO u VALUES ({group}, 'x') ON CONFLICT (id) DO NOTHING",
            )
        )


ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src")}


def worker(path: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "instar.worker", path], env=ENVIRONMENT)


def test_workers_are_killed_under_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorkerLauncher, "ensure", lambda launcher: True)  # this test starts them
    path = str(tmp_path / "db")
    connection = instar.connect(path, synchronous="off", autocommit=True)
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, g int, n int)",
        "CREATE TABLE u (id int PRIMARY KEY, name text)",
        "INSERT INTO t SELECT i, i % 12, i FROM generate_series(1, 200) i",
        "INSERT INTO u SELECT i, 'u' || i FROM generate_series(1, 9) i",
        f"CREATE MATERIALIZED VIEW grouped WITH (refresh = 'log') AS {GROUPED}",
        f"CREATE MATERIALIZED VIEW joined WITH (refresh = 'log') AS {JOINED}",
    )
    store = connection.database.store
    writers = [Victim(writer, path, number) for number in (1, 2)]
    draw, killed = random.Random(9), 0
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        one = worker(path)
        while not store.worker_present() and one.poll() is None:
            time.sleep(0.01)
        time.sleep(draw.uniform(0.05, 0.3))
        one.kill()
        killed += one.wait() == -signal.SIGKILL
    assert sum(int(str(one.join())) for one in writers) > 50
    assert killed
    last = worker(path)
    for name, query in (("grouped", GROUPED), ("joined", JOINED)):
        run(connection, f"REFRESH MATERIALIZED VIEW {name}")
        assert sorted(rows(connection, f"SELECT * FROM {name}"), key=repr) == sorted(rows(connection, query), key=repr)
    assert value(connection, "SELECT sum(commits_behind) FROM instar.materialized_views") == 0
    assert rows(connection, "CHECK DATABASE") == []
    last.terminate()
    last.wait()
    connection.close()


def test_the_log_is_cut_while_no_worker_follows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes follows what there is of a log that is too long. Of what was cut, it populates the view anew."""
    monkeypatch.setattr(WorkerLauncher, "ensure", lambda launcher: True)  # this test starts it
    path = str(tmp_path / "db")
    open_store(path, synchronous="off", log_max_bytes=20_000).close()
    connection = instar.connect(path, synchronous=None, autocommit=True)
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, g int, n int)",
        "INSERT INTO t SELECT i, i % 3, i FROM generate_series(1, 300) i",
        f"CREATE MATERIALIZED VIEW v WITH (refresh = 'log') AS {GROUPED}",
    )
    store = connection.database.store
    for populated in (1, 2):
        run(connection, *["UPDATE t SET n = n + 1"] * 10)
        assert store.log_bytes() > store.log_max_bytes
        if populated > 1:  # by a worker that did no more
            cutting = Worker(store, connection.database.clock)
            while store.log_bytes() > store.log_max_bytes:
                cutting.collect()
            behind = "SELECT state, commits_behind, seconds_behind > 0 FROM instar.materialized_views"
            assert rows(connection, behind) == [("following", None, True)]  # until a worker has seen it
        one = worker(path)
        run(connection, "REFRESH MATERIALIZED VIEW v")
        one.kill()
        one.wait()
        assert sorted(rows(connection, "SELECT * FROM v")) == sorted(rows(connection, GROUPED))
        assert rows(connection, "SELECT state, commits_behind FROM instar.materialized_views") == [("following", 0)]
        assert value(connection, "SELECT count(*) FROM instar.jobs WHERE kind = 'materialize'") == populated
    assert rows(connection, "CHECK DATABASE") == []
    connection.close()


# --- beside a job ----------------------------------------------------------------------------------------------------


def soon(condition: Callable[[], bool], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)


def test_a_worker_that_is_killed_while_it_starts_is_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a commit to remind anybody."""
    monkeypatch.setattr(presence, "LAUNCH_NS", 500_000_000)
    monkeypatch.setattr(database, "_LOOK_AGAIN_SECONDS", 0.7)
    connection = instar.connect(str(tmp_path / "db"), synchronous="off", autocommit=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(WorkerLauncher, "ensure", lambda launcher: True)
        run(
            connection,
            "CREATE TABLE t (id int PRIMARY KEY, g int, n int)",
            f"CREATE MATERIALIZED VIEW grouped WITH (refresh = 'log') AS {GROUPED}",
        )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(launching, "PROGRAM", ("-c", "import os; os.kill(os.getpid(), 9)"))
        run(connection, "INSERT INTO t VALUES (1, 1, 1)")
        started = connection.database._launcher._started
        assert started is not None
        assert started.wait() == -signal.SIGKILL
    soon(lambda: value(connection, "SELECT count(*) FROM grouped") == 1)
    connection.close()


def test_a_view_does_not_wait_for_a_job_that_the_worker_is_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does who cancels the job wait for the view."""
    monkeypatch.setattr(WorkerLauncher, "ensure", lambda launcher: True)  # this test starts it
    path = str(tmp_path / "db")
    connection = instar.connect(path, synchronous="off", autocommit=True)
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, g int, n int)",
        "CREATE TABLE big (id int PRIMARY KEY, a int)",
        "INSERT INTO big SELECT i, i FROM generate_series(1, 6000) i",
        f"CREATE MATERIALIZED VIEW v WITH (refresh = 'log') AS {GROUPED}",
        "SET schema_change_mode = async",
        "SET max_rows_per_second = 10",
        "CREATE INDEX big_a ON big (a)",
    )
    one = worker(path)
    state, reason = (
        f"SELECT {what} FROM instar.jobs WHERE statement LIKE 'CREATE INDEX%'" for what in ("state", "reason")
    )
    soon(lambda: value(connection, reason) == "held back by max_rows_per_second = 10")
    for key in (1, 2):
        run(connection, f"INSERT INTO t VALUES ({key}, 1, 5)")
        expected = [(1, key, 5 * key, key)]
        soon(lambda expected=expected: rows(connection, "SELECT * FROM v") == expected)  # type: ignore[misc]  # bound
    assert value(connection, state) == "running"
    run(connection, *[f"INSERT INTO t VALUES ({key}, {key}, 1)" for key in range(10, 30)])
    run(connection, f"CANCEL JOB {value(connection, 'SELECT max(id) FROM instar.jobs')}")
    soon(lambda: value(connection, state) == "cancelled", 5)
    run(connection, "REFRESH MATERIALIZED VIEW v")
    assert sorted(rows(connection, "SELECT * FROM v")) == sorted(rows(connection, GROUPED))
    assert rows(connection, "CHECK DATABASE") == []
    one.terminate()
    one.wait()
    connection.close()
