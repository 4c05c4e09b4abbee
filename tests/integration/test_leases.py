"""Many processes under schema leases: writers that are stopped while the schema changes, and wake up."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.queues import Queue
from pathlib import Path

import pyarrow as pa

import instar
from instar.schemachange.reorganize import SMALL_ROWS
from support.databases import rows, run, value
from support.servers import write_while_there
from support.victims import CONTEXT

LEASE = 0.3
WRITERS = 3


def test_stopped_servers_commit_nothing_under_an_old_schema(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    connection = instar.connect(path, synchronous="off", schema_lease=LEASE, autocommit=True)
    run(connection, "CREATE TABLE t (id bigint PRIMARY KEY, a bigint, b int DEFAULT 1)")
    out: Queue[tuple[int, list[str]]] = CONTEXT.Queue()
    flag = tmp_path / "flag"
    flag.touch()
    writers = [CONTEXT.Process(target=write_while_there, args=(path, number, flag, out)) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    while value(connection, "SELECT count(*) FROM t") < 100:
        time.sleep(0.05)
    changes = ("ADD COLUMN c int DEFAULT 3", "ADD COLUMN d text", "DROP COLUMN b", "DROP COLUMN d")
    for number, change in enumerate(changes):
        stopped = writers[number % WRITERS].pid
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        run(connection, f"ALTER TABLE t {change}")
        time.sleep(LEASE * 1.5)
        os.kill(stopped, signal.SIGCONT)
    run(connection, "CREATE INDEX i ON t (a)")
    flag.unlink()
    told = [out.get(timeout=60) for _ in writers]
    for writer in writers:
        writer.join()
    assert [strange for _, strange in told] == [[]] * WRITERS
    assert value(connection, "SELECT count(*) FROM t") == sum(done for done, _ in told)
    assert rows(connection, "CHECK DATABASE") == []
    connection.close()


def test_a_column_is_given_values_while_stopped_servers_wake_up(tmp_path: Path) -> None:
    """Writers insert, update and delete at each step of it, one of them half a step behind, or more."""
    path = str(tmp_path / "db")
    connection = instar.connect(path, synchronous="off", schema_lease=LEASE, autocommit=True)
    run(connection, "CREATE TABLE t (id bigint PRIMARY KEY, a bigint)")
    count = 2 * SMALL_ROWS
    keys = range(-count, 0)
    connection.insert_arrow("t", pa.table({"id": keys, "a": keys}))
    out: Queue[tuple[int, list[str]]] = CONTEXT.Queue()
    flag = tmp_path / "flag"
    flag.touch()
    writers = [CONTEXT.Process(target=write_while_there, args=(path, number, flag, out)) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    while value(connection, "SELECT count(*) FROM t") < count + 50:
        time.sleep(0.05)
    run(connection, "SET schema_change_mode = async", "ALTER TABLE t ADD COLUMN c bigserial UNIQUE")
    woken = 0
    while value(connection, "SELECT count(*) FROM instar.jobs WHERE finished_at IS NULL"):
        stopped = writers[woken % WRITERS].pid
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        time.sleep(LEASE * 1.5)
        os.kill(stopped, signal.SIGCONT)
        time.sleep(LEASE / 3)
        woken += 1
    assert woken > 1
    flag.unlink()
    told = [out.get(timeout=60) for _ in writers]
    for writer in writers:
        writer.join()
    assert value(connection, "SELECT state FROM instar.jobs ORDER BY id DESC LIMIT 1") == "succeeded"
    assert [strange for _, strange in told] == [[]] * WRITERS
    assert value(connection, "SELECT count(*) FROM t") == count + sum(done for done, _ in told)
    assert value(connection, "SELECT count(*) - count(DISTINCT c) FROM t") == 0
    assert rows(connection, "CHECK DATABASE") == []
    connection.close()
