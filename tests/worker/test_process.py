"""The background process, as a process: it is started on demand, once, stands back, and ends when told."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import instar
from instar import gently, scheduling
from instar.clock import SystemClock
from instar.schemachange import launching
from instar.schemachange import wanted as want
from instar.schemachange.job_records import JobState
from instar.schemachange.jobs import Jobs
from instar.store import open_store, presence
from instar.store.engine import prefix_end, rowset_prefix
from instar.store.lock_modes import Mode
from instar.worker import NICENESS
from instar.worker.process import serve
from support.changes import ChangingWorld
from support.databases import rows, run


def wait_for(condition, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def test_a_process_adopts_the_job_of_a_dead_one_and_stops_when_told(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = open_store(path, synchronous="off", clock=SystemClock())
    world = ChangingWorld(store)
    world.clock = SystemClock()  # type: ignore[assignment]
    world.jobs = Jobs(store, world.clock)
    world.create_t([(number, number * 10, "x") for number in range(200)])
    number = world.execute(want.CreateIndex("t", (("a", False),), "i"))
    assert number is not None
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    worker = subprocess.Popen([sys.executable, "-m", "instar.worker", str(path)], env=environment)
    try:
        wait_for(lambda: world.jobs.get(number).is_finished)
        assert world.jobs.get(number).state is JobState.SUCCEEDED
        world.check_index("i")
        assert store.worker_present()
        assert os.getpriority(os.PRIO_PROCESS, worker.pid) == min(os.getpriority(os.PRIO_PROCESS, 0) + NICENESS, 19)
        second = subprocess.run(
            [sys.executable, "-m", "instar.worker", str(path)], env=environment, timeout=20, check=False
        )
        assert second.returncode == 0
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(10) == 0
        assert not store.worker_present()
    finally:
        worker.kill()
        worker.wait()
        store.close()


@pytest.mark.parametrize("asked", [False, True])
def test_it_loads_itself_gently_if_it_is_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: bool) -> None:
    """As it stands back before that; what it is asked by is an option like others."""
    path, loaded = tmp_path / "store", list[bool | int | str]()

    @contextmanager
    def loading(others_work: Callable[[], bool]) -> Iterator[None]:
        monkeypatch.delitem(sys.modules, "instar.worker.process")
        loaded.append(others_work())
        yield
        assert "instar.worker.process" in sys.modules

    monkeypatch.setattr(gently, "loading_gently", loading)
    monkeypatch.setattr(gently, "set_aside", lambda: loaded.append("aside"))
    monkeypatch.setattr(scheduling, "stand_back", loaded.append)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "setswitchinterval", lambda _seconds: None)
    monkeypatch.setattr(sys, "argv", ["worker", str(path), *([gently.OPTION] if asked else [])])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("instar.worker", run_name="__main__")
    assert ended.value.code == 1  # for it has begun, and there is no store
    assert loaded == [NICENESS, asked, "aside"]


def test_a_stopped_worker_keeps_no_other_from_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "WORKER_NS", 1_000_000_000)  # as who looks here sees it
    path = str(tmp_path / "store")
    store = open_store(path, synchronous="off", clock=SystemClock())
    world = ChangingWorld(store)
    world.create_t([(number, number * 10, "x") for number in range(200)])
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    worker = subprocess.Popen([sys.executable, "-m", "instar.worker", path], env=environment)
    try:
        wait_for(store.worker_present)
        time.sleep(1.5)
        assert store.worker_present()  # which says so in every turn, with nothing to do too
        worker.send_signal(signal.SIGSTOP)
        wait_for(lambda: not store.worker_present())
        number = world.execute(want.CreateIndex("t", (("a", False),), "i"))
        assert number is not None
        serve(path, SystemClock(), lambda: world.jobs.get(number).is_finished)
        assert world.jobs.get(number).state is JobState.SUCCEEDED
        world.check_index("i")
        assert not store.worker_present()
        worker.send_signal(signal.SIGCONT)
        wait_for(store.worker_present)
        worker.terminate()
        assert worker.wait(10) == 0
    finally:
        worker.kill()
        worker.wait()
        store.close()


class Meanwhile(SystemClock):
    """Does something once, after the last turn that an idle worker takes."""

    def __init__(self, action: Callable[[], None]) -> None:
        super().__init__()
        self._actions = [action]

    def sleep(self, seconds: float) -> None:
        if self._actions:
            self._actions.pop()()
        super().sleep(seconds)


def test_what_is_committed_as_an_idle_worker_ends_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(launching.subprocess, "Popen", lambda *arguments, **options: started.append(arguments))
    path = str(tmp_path / "db")
    connection = instar.connect(path, synchronous="off", autocommit=True)
    create = "CREATE MATERIALIZED VIEW v WITH (refresh = 'log') AS SELECT g, count(*) FROM t GROUP BY g"
    run(connection, "CREATE TABLE t (id int PRIMARY KEY, g int)", create)
    started.clear()
    turns: list[bool] = []

    def commit() -> None:
        turns.append(connection.database.store.worker_present())
        run(connection, "INSERT INTO t VALUES (1, 7)")

    serve(path, Meanwhile(commit), lambda: False, idle_seconds=0.05)
    assert turns == [True]
    assert not started
    assert not connection.database.store.worker_present()
    assert rows(connection, "SELECT * FROM v") == [(7, 1)]
    run(connection, "INSERT INTO t VALUES (2, 7)")
    assert len(started) == 1
    connection.close()


def test_a_view_that_is_held_up_keeps_a_worker_from_ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching.subprocess, "Popen", lambda *arguments, **options: None)
    path = str(tmp_path / "db")
    connection = instar.connect(path, synchronous="off", autocommit=True)
    create = "CREATE MATERIALIZED VIEW v WITH (refresh = 'log') AS SELECT g, count(*) FROM t GROUP BY g"
    run(connection, "CREATE TABLE t (id int PRIMARY KEY, g int)", "INSERT INTO t VALUES (1, 7)", create)
    store = connection.database.store
    owner = store.locks.new_owner()
    with store.read() as reader:
        catalog = connection.database.catalog.at(reader)
        (storage,) = (view.materialized.storage for view in catalog.views() if view.materialized)
        start = rowset_prefix(catalog.table(storage).rowset)
        store.lock(owner, [(key, Mode.SHARE) for key, _ in reader.scan(start, prefix_end(start))])
    run(connection, "UPDATE t SET g = 8")
    until = time.monotonic() + 0.6

    def stopping() -> bool:
        if time.monotonic() > until:
            store.locks.end(owner)
        return False

    serve(path, SystemClock(), stopping, idle_seconds=0.2)
    assert rows(connection, "SELECT * FROM v") == [(8, 1)]
    connection.close()


def test_a_directory_that_is_no_store_is_refused(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    refused = subprocess.run(
        [sys.executable, "-m", "instar.worker", str(tmp_path / "nothing")],
        check=False,
        env=environment, capture_output=True, text=True, timeout=20,
    )  # fmt: skip
    assert refused.returncode == 1
    assert refused.stderr[:5].isalnum()


FIRST_LINES = """
import os, runpy, sys

os.nice = lambda by: print(by, "instar.worker" in sys.modules, "instar.worker.process" in sys.modules)
runpy.run_module("instar.worker", run_name="__main__")
"""


def test_it_stands_back_before_it_loads_anything(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    shown = subprocess.run(
        [sys.executable, "-c", FIRST_LINES, str(tmp_path / "nothing")],
        env=environment, capture_output=True, text=True, check=False, timeout=20,
    )  # fmt: skip
    assert shown.stdout.split() == [str(NICENESS), "True", "False"]
