"""kill -9 at random instants: nothing acknowledged is lost, nothing unacknowledged is half there, jobs are taken up.

Eighty kills among commits, twenty-five in index builds, two in loads; INSTAR_KILLS=1000 for a night.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

import instar
from instar.dbapi import Connection
from instar.schemachange.jobs import LOAD_LEASE_SECONDS
from instar.store.engine import PREFIX_ROWSET, prefix_end
from instar.store.records import RowsetState, decode_rowset_record
from instar.worker.work import Worker
from support.databases import rows, run, value
from support.victims import Later, Victim, check_bank, index_builder, items, loader, open_bank, successor, transfers

KILLS = int(os.environ.get("INSTAR_KILLS", "80"))
BUILDERS = 5  # that are killed one after the other at one index

# Through the index, where it is public already, and past it, on one snapshot.
SAME = "SELECT (SELECT count(*) FROM item WHERE a = 5) - (SELECT count(*) FROM item WHERE a + 0 = 5)"


@pytest.mark.parametrize("synchronous", ["full", "normal"])
def test_killed_writers(tmp_path: Path, synchronous: str) -> None:
    path = str(tmp_path / "db")
    chance = random.Random(synchronous)
    open_bank(path, synchronous).close()
    acknowledged: dict[int, int] = {}
    for turn in range(KILLS * 9 // 40):
        first, second = Victim(transfers, path, 1), Victim(transfers, path, 2)
        first.wait()
        second.wait()
        time.sleep(chance.random() * 0.05)
        acknowledged[1] = _number(first.kill())
        second.wait(3)  # a killed process holds nobody up
        time.sleep(chance.random() * 0.02)
        acknowledged[2] = _number(second.kill())
        connection = instar.connect(path, synchronous=synchronous, autocommit=True)
        check_bank(connection, acknowledged, whole=turn % 4 == 3)
        connection.close()
    assert min(acknowledged.values()) > KILLS // 4


def test_writers_killed_beside_an_open_connection(tmp_path: Path) -> None:
    """A process that stays sees the same: its own reads, plans and writes go on through the kills."""
    path = str(tmp_path / "db")
    connection = open_bank(path, "off")
    chance = random.Random(1)
    acknowledged: dict[int, int] = {}
    for writer in range(KILLS // 10):
        victim = Victim(transfers, path, writer)
        victim.wait()
        time.sleep(chance.random() * 0.03)
        acknowledged[writer] = _number(victim.kill())
        check_bank(connection, acknowledged)
    connection.close()


def _number(said: object) -> int:
    assert isinstance(said, int)
    return said


def _item_table(path: str, count: int) -> Connection:
    connection = instar.connect(path, synchronous="off", autocommit=True)
    run(connection, "CREATE TABLE item (id int PRIMARY KEY, a int, b text)")
    connection.executemany("INSERT INTO item VALUES (?, ?, ?)", [(n * 10, n % 100, f"b{n % 7}") for n in range(count)])
    return connection


def _work(connection: Connection, turns: int = 20) -> None:
    """What the worker does once the leases of the dead have ended."""
    store = connection.database.store
    worker = Worker(store, Later(LOAD_LEASE_SECONDS + 1))
    for _ in range(turns):
        worker.turn()


def _kill_builders(path: str, connection: Connection, seed: int) -> None:
    """An index build, and those that take it up, killed one after the other."""
    chance = random.Random(seed)
    for number in range(BUILDERS):
        victim = Victim(successor, path, number) if number else Victim(index_builder, path, seed)
        victim.wait()
        while not rows(connection, "SELECT id FROM instar.jobs"):
            time.sleep(0.001)
        time.sleep(chance.random() * 0.1)
        done = victim.kill() in ("built", "done")
        assert not done or rows(connection, "SELECT state FROM instar.jobs") == [("succeeded",)]
        assert value(connection, SAME) == 0


@pytest.mark.parametrize("seed", range(max(KILLS // 16, 1)))
def test_killed_in_the_middle_of_an_index_build(tmp_path: Path, seed: int) -> None:
    path = str(tmp_path / "db")
    connection = _item_table(path, 3000)
    writers = [Victim(items, path, writer) for writer in (1, 2)]
    for writer in writers:
        writer.wait(10)
    _kill_builders(path, connection, seed)
    for writer in writers:
        writer.wait(20)
    _work(connection)
    for writer in writers:
        writer.wait(20)
        writer.kill()
    assert rows(connection, "SELECT state FROM instar.jobs") == [("succeeded",)]
    plan = [line for (line,) in rows(connection, "EXPLAIN SELECT id FROM item WHERE a = 5")]
    assert any(f"item_a{seed}" in line for line in plan), plan
    for wanted in range(0, 100, 7):
        through = rows(connection, "SELECT id FROM item WHERE a = ?", wanted)
        assert sorted(through) == rows(connection, "SELECT id FROM item WHERE a + 0 = ? ORDER BY id", wanted)
    assert rows(connection, "CHECK DATABASE") == []
    connection.close()


def _rowset_states(connection: Connection) -> list[RowsetState]:
    with connection.database.store.read() as reader:
        found = reader.scan(PREFIX_ROWSET, prefix_end(PREFIX_ROWSET))
        return [decode_rowset_record(record).state for _, record in found]


@pytest.mark.parametrize("seed", range(max(KILLS // 40, 1)))
def test_killed_in_the_middle_of_a_load(tmp_path: Path, seed: int) -> None:
    path = str(tmp_path / "db")
    connection = instar.connect(path, synchronous="off", autocommit=True)
    run(connection, "CREATE TABLE item (id int PRIMARY KEY, a int, b text)", "CREATE INDEX item_a ON item (a)")
    live = len(_rowset_states(connection))
    victim = Victim(loader, path, seed)
    victim.wait()
    time.sleep(random.Random(seed).random() * 0.3)
    loaded = victim.kill() == "loaded"
    found = value(connection, "SELECT count(*) FROM item")
    assert found == 200_000 if loaded else found in (0, 200_000)
    connection.database.store.retention_seconds = 0
    _work(connection, 5)
    assert RowsetState.BUILDING not in _rowset_states(connection)
    time.sleep(0.01)
    run(connection, "INSERT INTO item VALUES (-1, 5, 'new')")
    for _ in range(3):
        _work(connection, 5)
    assert len(_rowset_states(connection)) == live
    assert rows(connection, "SELECT b FROM item WHERE id = -1") == [("new",)]
    assert value(connection, "SELECT count(*) FROM item") == found + 1
    assert rows(connection, "CHECK DATABASE") == []
    connection.close()
