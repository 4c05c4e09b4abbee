"""Many processes under schema leases: writers that are stopped while the schema changes, and wake up."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from multiprocessing.queues import Queue
from pathlib import Path

import instar
from support.databases import rows, run, value
from support.servers import write_until

LEASE = 0.3
WRITERS = 3
_SPAWN = multiprocessing.get_context("spawn")


def test_stopped_servers_commit_nothing_under_an_old_schema(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    connection = instar.connect(path, synchronous="off", schema_lease=LEASE, autocommit=True)
    run(connection, "CREATE TABLE t (id bigint PRIMARY KEY, a bigint, b int DEFAULT 1)")
    out: Queue[tuple[int, list[str]]] = _SPAWN.Queue()
    until = time.time() + 12
    writers = [_SPAWN.Process(target=write_until, args=(path, number, until, out)) for number in range(WRITERS)]
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
    told = [out.get(timeout=60) for _ in writers]
    for writer in writers:
        writer.join()
    assert [strange for _, strange in told] == [[]] * WRITERS
    assert value(connection, "SELECT count(*) FROM t") == sum(done for done, _ in told)
    assert rows(connection, "CHECK DATABASE") == []
    connection.close()
