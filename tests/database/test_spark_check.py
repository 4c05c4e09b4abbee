"""CHECK of large tables through SQL: in a process of its own, on Spark; cancelled; left alone by that process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

import instar
from instar import errors
from instar.catalog.descriptors import Table
from instar.dbapi import Connection
from instar.pipeline import consistency
from instar.store.engine import prefix_end, rowset_prefix
from support.children import children


@pytest.fixture
def connection(tmp_path, monkeypatch) -> Iterator[Connection]:
    """A database with a table that is large enough, two of whose index entries are lost."""
    monkeypatch.setattr(consistency, "SPARK_ROWS", 500)
    with instar.connect(tmp_path / "db", synchronous="off", autocommit=True) as made:
        made.execute("CREATE TABLE parent (id bigint PRIMARY KEY)")
        made.execute("INSERT INTO parent VALUES (1), (2)")
        made.execute(
            "CREATE TABLE t (id bigint PRIMARY KEY, a integer CHECK (a > 0), b text UNIQUE, "
            "parent bigint REFERENCES parent)"
        )
        made.execute("INSERT INTO t SELECT i, i, 'b' || i, i % 2 + 1 FROM generate_series(1, 1000) AS g(i)")
        made.execute("CREATE VIEW waiting AS SELECT id FROM instar.jobs")
        lose(made, 2)
        yield made


def lose(connection: Connection, entries: int) -> None:
    with connection.database.store.read() as reader:
        table = connection.database.catalog.at(reader).lookup("public", "t")
        assert isinstance(table, Table)
        prefix = rowset_prefix(next(index.rowset for index in table.indexes if index.unique))
        lost = reader.batch(prefix, prefix_end(prefix), entries)[0]

    def step(section) -> None:
        for entry in lost:
            section.delete(entry)

    connection.database.store.background([step])


def checks() -> list[psutil.Process]:
    return children("instar.worker.check")


def on_notice(connection: Connection, action: Callable[[], None]) -> list[str]:
    """Have `action` done when the check begins; what is told."""
    told: list[str] = []

    def hear(notice: str) -> None:
        told.append(notice)
        if len(told) == 1:
            action()

    connection.on_notice = hear
    return told


@pytest.mark.spark
@pytest.mark.slow
def test_the_same_rows_as_in_this_process(connection, monkeypatch):
    told = on_notice(connection, lambda: None)
    on_spark = connection.execute("CHECK DATABASE").fetchall()
    assert told[0] == "NOTICE:  CHECK DATABASE of large tables goes on in a process of its own, on Spark"
    assert not any("WARNING" in notice for notice in told)
    monkeypatch.setattr(consistency, "SPARK_ROWS", 10**6)
    assert sorted(on_spark) == sorted(connection.execute("CHECK DATABASE").fetchall())
    assert [row[:3] for row in on_spark] == [("t", 'index "t_b_key"', "4 complete")] * 2


def test_cancelled(connection):
    cancel = threading.Timer(0.3, connection.cancel)
    on_notice(connection, cancel.start)
    with pytest.raises(instar.Error) as caught:
        connection.execute("CHECK TABLE t")
    assert caught.value.sqlstate == errors.QUERY_CANCELED
    assert checks() == []
    assert connection.execute("SELECT count(*) FROM t").fetchall() == [(1000,)]


def test_a_process_that_ends_before_the_check_leaves_it_to_this_one(connection):
    def kill() -> None:
        while not (found := checks()):
            time.sleep(0.01)
        for child in found:
            child.kill()

    told = on_notice(connection, threading.Thread(target=kill).start)
    assert len(connection.execute("CHECK TABLE t").fetchall()) == 2
    assert told[-1] == (
        "WARNING:  the process that checks the database has ended with status -9: CHECK TABLE goes on in this process"
    )


def test_small_tables_are_checked_in_this_process(connection):
    told = on_notice(connection, lambda: None)
    assert connection.execute("CHECK TABLE parent").fetchall() == []
    assert told == []
