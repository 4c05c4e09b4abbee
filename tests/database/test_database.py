"""Opening a database."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

import instar
from support.databases import fails, run


def test_a_path_that_no_file_can_have_is_an_error_of_instars_own() -> None:
    with pytest.raises(instar.Error, match="null characters") as caught:
        instar.connect("a\0b")
    assert caught.value.sqlstate == "22023"


def _tables(connection: instar.Connection) -> list[tuple[object, ...]]:
    return connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()


@pytest.mark.parametrize("goes", ["removed", "moved"])
@pytest.mark.parametrize("made_by", ["this process", "another"])
def test_what_lies_at_a_path_now_is_opened(tmp_path: Path, goes: str, made_by: str) -> None:
    """Whoever has the database that lay there open still goes on with that."""
    path = tmp_path / "db"
    before = instar.connect(path, synchronous="off", autocommit=True)
    run(before, "CREATE TABLE old (a int PRIMARY KEY)")
    if goes == "removed":
        shutil.rmtree(path)
    else:
        path.rename(tmp_path / "elsewhere")
    if made_by == "another":
        script = f"import instar; instar.connect({str(path)!r}, synchronous='off').close()"
        subprocess.run([sys.executable, "-c", script], check=True)
    after = instar.connect(path, synchronous="off", autocommit=True)
    run(after, "CREATE TABLE new (a int PRIMARY KEY)")
    again = instar.connect(path, synchronous="off", autocommit=True)
    assert (_tables(before), _tables(after), _tables(again)) == ([("old",)], [("new",)], [("new",)])
    if goes == "moved":
        moved = instar.connect(tmp_path / "elsewhere", synchronous="off", autocommit=True)
        run(moved, "INSERT INTO old VALUES (1)")
        assert before.execute("SELECT a FROM old").fetchall() == [(1,)]
        moved.close()
    before.close()
    again.close()
    run(after, "INSERT INTO new VALUES (1)")
    after.close()
    script = f"import instar; print(instar.connect({str(path)!r}, synchronous='off').execute('TABLE new').fetchall())"
    assert subprocess.run([sys.executable, "-c", script], check=True, capture_output=True).stdout == b"[(1,)]\n"


def _moved(tmp_path: Path) -> tuple[instar.Connection, instar.Connection, Path]:
    """A connection to a database that was moved since, one to another in its place, and where the first is now."""
    path, elsewhere = tmp_path / "db", tmp_path / "elsewhere"
    made = []
    for goes_to in (elsewhere, None):
        made.append(instar.connect(path, synchronous="off", autocommit=True))
        run(made[-1], "CREATE TABLE t (a int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        if goes_to is not None:
            path.rename(goes_to)
    return made[0], made[1], elsewhere


def test_row_locks_are_in_the_database_that_is_open(tmp_path: Path) -> None:
    """Their file is opened when it is first needed: one that lies where the database was is not taken for it."""
    moved, other, elsewhere = _moved(tmp_path)
    run(other, "BEGIN", "SELECT * FROM t FOR UPDATE")
    with fails("58030", "was moved or removed while it was open"):
        moved.execute("SELECT * FROM t FOR UPDATE")
    again = instar.connect(elsewhere, synchronous="off", autocommit=True)
    run(again, "BEGIN", "SELECT * FROM t FOR UPDATE")
    with fails("55P03"):
        moved.execute("SELECT * FROM t FOR UPDATE NOWAIT")
    again.rollback()
    other.rollback()
    for connection in (moved, other, again):
        connection.close()


def test_a_child_opens_a_database_where_it_was_moved_to(tmp_path: Path) -> None:
    parent, other, elsewhere = _moved(tmp_path)
    run(other, "INSERT INTO t VALUES (2)")
    child = os.fork()
    if not child:
        found = instar.connect(elsewhere, synchronous="off", autocommit=True).execute("SELECT a FROM t").fetchall()
        os._exit(0 if found == [(1,)] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    parent.close()
    other.close()


def test_what_cannot_be_looked_at_is_an_error_of_instars_own(tmp_path: Path) -> None:
    path = tmp_path / "db"
    connection = instar.connect(path, synchronous="off", autocommit=True)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(path)
    with fails("55000", "is not an Instar store"):
        instar.connect(path, synchronous="off", autocommit=True)
    connection.close()


def test_a_log_that_has_outgrown_its_bound_has_a_worker_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small the bound is: nobody else would cut it, and what is slowest loose."""
    connection = instar.connect(tmp_path / "db", synchronous="off", autocommit=True, log_max_bytes=1 << 16)
    database = connection.database
    started: list[str] = []

    def ensure(*_launcher: object) -> bool:
        started.append("worker")
        return True

    monkeypatch.setattr(database._launcher, "ensure", ensure)
    run(connection, "CREATE TABLE t (a int PRIMARY KEY, b text)")
    database.look_after()
    assert started == []
    connection.executemany("INSERT INTO t VALUES (?, ?)", [(a, "b" * 100) for a in range(1000)])
    run(connection, "UPDATE t SET b = 'c'")
    assert database.store.log_bytes() > 1 << 16
    database.look_after()
    assert started == ["worker"]
    connection.close()


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _works_with_few_descriptors(path: str, synchronous: str) -> None:
    def works() -> None:
        try:
            with closing(instar.connect(path, synchronous=synchronous, autocommit=True)) as connection:
                connection.execute("SELECT 1").fetchall()
        finally:
            for thread in threading.enumerate():
                if thread.daemon:  # one that writes back closes what it has when it ends
                    thread.join(10)

    works()
    limits, opened = resource.getrlimit(resource.RLIMIT_NOFILE), len(os.listdir("/proc/self/fd"))
    refused: list[tuple[str | None, bool]] = []
    # The limit is of numbers, of which not all below need be in use: each limit leaves one more free.
    for number in [number for number in range(limits[0]) if not _is_open(number)][:40]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (number, limits[1]))
        try:
            works()
        except instar.OperationalError as error:
            refused.append((error.sqlstate, "Too many open files" in str(error)))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert len(os.listdir("/proc/self/fd")) == opened
    assert set(refused) == {("58030", True)}
    assert 0 < len(refused) < 40
    works()


@pytest.mark.parametrize("synchronous", ["off", "full"])
def test_too_few_descriptors_are_an_error_that_leaves_nothing_open(tmp_path: Path, synchronous: str) -> None:
    """In a process of its own: what other tests have left would close descriptors sometime."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_works_with_few_descriptors, args=(str(tmp_path / "db"), synchronous))
    process.start()
    process.join()
    assert process.exitcode == 0
