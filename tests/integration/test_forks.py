"""Forks: a connection that a child inherits is the child's own, and takes nothing that is its parent's."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from instar import errors
from instar.catalog.catalog import Catalog
from instar.catalog.ids import IdAllocator
from instar.catalog.sequences import Sequences
from instar.database import Database
from instar.sql import analytic
from support.databases import Engine, rows, run, value


@pytest.fixture
def engine(tmp_path: Path):
    made = Engine(str(tmp_path / "db"))
    yield made
    made.close()


def in_child(work: Callable[[], None], seconds: float = 20) -> None:
    """Run `work` in a forked child; an error there, or no end, fails the test."""
    child = os.fork()
    if child == 0:
        try:
            threading.Timer(seconds, os._exit, (3,)).start()
            work()
        except BaseException as failed:  # noqa: BLE001 - the child must not go on with the test
            print(f"in the child: {failed!r}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_parent_and_child_hand_out_different_numbers(engine: Engine) -> None:
    """Blocks of ids and of sequences are reserved per process. Handed out twice, the parent's next table would take the
    place of the child's in the catalog, and its rowset; and row ids would meet."""
    connection = engine.connect()
    run(
        connection,
        "create table s (id int generated always as identity primary key, v text)",
        "create table n (v text)",
        "insert into s (v) values ('before')",
        "insert into n values ('before')",
    )

    def work() -> None:
        run(
            connection,
            "create table child (id int primary key, v text)",
            "create index child_v on child (v)",
            "insert into child values (1, 'child')",
            *["insert into s (v) values ('child')", "insert into n values ('child')"] * 3,
        )

    in_child(work)
    run(
        connection,
        "create table parent (id int primary key, v text)",
        "create index parent_v on parent (v)",
        "insert into parent values (1, 'parent')",
        *["insert into s (v) values ('parent')", "insert into n values ('parent')"] * 3,
    )
    assert rows(connection, "select v from child") == [("child",)]
    assert rows(connection, "select v from parent where v >= 'a' order by v") == [("parent",)]
    for table in ("s", "n"):
        assert rows(connection, f"select v, count(*) from {table} group by v order by v") == [
            ("before", 1),
            ("child", 3),
            ("parent", 3),
        ]
    assert rows(connection, "check database") == []


def test_a_child_that_closes_gives_back_nothing_of_its_parents(engine: Engine) -> None:
    """A process that closes in order gives back what it has left of its blocks; a child has nothing left of them."""
    connection = engine.connect()
    run(connection, "create sequence q")
    assert value(connection, "select nextval('q')") == 1
    in_child(engine.close)
    assert value(connection, "select nextval('q')") == 2
    other = Engine(engine.path)
    in_child(lambda: value(other.connect(), "select nextval('q')"))
    seen = [value(connection, "select nextval('q')") for _ in range(40)]
    assert seen == sorted(set(seen))
    other.close()


def test_a_child_finds_no_lock_held_by_a_thread_that_it_does_not_have(engine: Engine) -> None:
    database = engine._held
    connection = engine.connect()
    run(connection, "create table t (id int primary key, v int default 1)", "create sequence q")
    assert value(connection, "select nextval('q')") == 1
    caches: list[Catalog | Sequences] = [database.catalog, database.sequences]
    counters = vars(database.ids).values()
    assert isinstance(database.ids, IdAllocator)
    for held in (*caches, *counters):
        with held._lock:
            in_child(
                lambda: run(
                    connection,
                    "create table c (id int generated always as identity primary key)",
                    "insert into c default values",
                    "select nextval('q')",
                    "drop table c",
                )
            )
    with pytest.raises(errors.Error):
        run(connection, "select * from c")


def test_a_child_plans_and_opens_although_threads_of_its_parents_were_at_it(engine: Engine) -> None:
    """The plans, the databases and the analytic engine of a process have locks of their own, renewed in a child."""
    connection = engine.connect()
    run(connection, "create table t (id int primary key, v int)", "insert into t values (1, 2)")

    def work() -> None:
        # A text that the parent has not planned, for DuckDB, in the connection inherited and in a database opened anew.
        assert rows(connection, "select v, rank() over (order by v) from t") == [(2, 1)]
        other = Engine(engine.path)
        assert value(other.connect(), "select v from t where id = 1") == 2
        other.close()

    held = [engine._held.plans._lock, Database._lock, analytic._engine_lock]
    for lock in held:
        entered, done = threading.Event(), threading.Event()

        def hold(lock: threading.Lock = lock, entered: threading.Event = entered, done: threading.Event = done) -> None:
            with lock:
                entered.set()
                done.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        entered.wait()
        try:
            in_child(work)
        finally:
            done.set()
            thread.join()
    assert [engine._held.plans._lock, Database._lock, analytic._engine_lock] == held


@pytest.mark.parametrize("beforehand", ["pass", "count()"])
def test_a_child_ends_as_a_program_does(tmp_path: Path, beforehand: str) -> None:
    """By sys.exit, not os._exit, and silently, whether it has queried or not: it ended DuckDB of its parent, whose
    threads it has not (SIGSEGV)."""
    program = f"""
import os, sys, instar
connection = instar.connect(sys.argv[1])
def count():
    return connection.execute("select count(*) from generate_series(1, 30000) g").fetchone()[0]
connection.execute("create table t as select g from generate_series(1, 30000) g")
connection.execute("select g, count(*) from t group by g").fetchone()
connection.commit()
if os.fork() == 0:
    {beforehand}
    sys.exit()
assert os.wait()[1] == 0
assert count() == 30000
"""
    done = subprocess.run(
        # Since 3.12 Python warns of any fork beside threads, of which the analytic engine has some.
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program, str(tmp_path / "db")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
