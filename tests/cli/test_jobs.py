"""`instar jobs`: on a terminal, in a pipe, as JSON, and to steer a job."""

from __future__ import annotations

import datetime as dt
import io
import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

import instar
from instar import errors
from instar.cli import jobs
from instar.dbapi import Connection
from support.children import end_worker

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src"), "COLUMNS": "160"}
ROWS = 30_000


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Connection]:
    """A database whose index takes as long as somebody lets it."""
    with instar.connect(tmp_path / "shop", synchronous="off", autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id bigint PRIMARY KEY, a integer)")
        connection.insert_arrow("t", pa.table({"id": range(ROWS), "a": range(ROWS)}))
        connection.execute("SET schema_change_mode = async")
        connection.execute("SET max_rows_per_second = 500")
        connection.execute("CREATE INDEX t_a ON t (a)")
        yield connection
        end_worker(connection.database.path)


def instar_jobs(shop: Connection, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "instar.cli.main", "jobs", shop.database.path, *arguments]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False)


def the_job(shop: Connection) -> dict[str, Any]:
    return [job for job in jobs.jobs(shop) if job["kind"] == "build index"][-1]


def wait_for_state(shop: Connection, state: str) -> None:
    deadline = time.monotonic() + 30
    while the_job(shop)["state"] != state:
        assert time.monotonic() < deadline, the_job(shop)
        time.sleep(0.02)


def test_a_job_is_listed_steered_and_watched_by_other_processes(shop: Connection) -> None:
    number = str(the_job(shop)["id"])
    wait_for_state(shop, "running")
    assert instar_jobs(shop, "pause", number).stdout == "PAUSE JOB\n"
    wait_for_state(shop, "paused")
    (listed,) = [job for job in json.loads(instar_jobs(shop, "--json").stdout) if str(job["id"]) == number]
    assert (listed["state"], listed["reason"], listed["max_rows_per_second"]) == ("paused", "paused by PAUSE JOB", 500)
    assert dt.datetime.fromisoformat(listed["created_at"]).tzinfo is not None
    table = instar_jobs(shop).stdout
    assert "paused by PAUSE JOB" in table
    assert "CREATE INDEX t_a ON t (a)" in table
    assert instar_jobs(shop, "resume", number).stdout == "RESUME JOB\n"
    done = instar_jobs(shop, "set", number, "max_rows_per_second=0", "priority=3", "reorganize_latency_target=5 ms")
    assert done.stdout == "ALTER JOB\n"
    wait_for_state(shop, "succeeded")
    assert (the_job(shop)["priority"], the_job(shop)["latency_target_ms"]) == (3, 5.0)
    refused = instar_jobs(shop, "cancel", number)
    assert refused.returncode == 1
    assert "55000" in refused.stderr


def test_on_a_terminal_it_is_drawn_until_all_have_ended(shop: Connection) -> None:
    number = str(the_job(shop)["id"])
    wait_for_state(shop, "running")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "instar.cli.main", "jobs", shop.database.path]
    environment = ENVIRONMENT | {"TERM": "xterm"}
    watching = subprocess.Popen(command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    while b"held back by max_rows_per_second = 500" not in seen:
        seen += os.read(ours, 4096)
    assert watching.poll() is None
    shop.execute(f"CANCEL JOB {number}")
    while True:
        try:
            more = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        seen += more
    assert watching.wait(20) == 0
    os.close(ours)
    assert b"cancelled" in seen


@pytest.mark.parametrize(
    "words",
    [("pause",), ("pause", "one"), ("pause", "1", "2"), ("set", "1"), ("set", "1", "priority"), ("stop", "1"),
     ("set", "1", "a b=1")],
)  # fmt: skip
def test_what_is_nothing_to_do_with_a_job(tmp_path: Path, words: tuple[str, ...]) -> None:
    with instar.connect(autocommit=True) as connection, pytest.raises(errors.Error) as refused:
        jobs.control(connection, words)
    assert refused.value.sqlstate == "42601"


def job(number: int, state: str, **more: object) -> dict[str, Any]:
    return {
        "id": number, "statement": "CREATE INDEX i ON t (a)", "state": state, "stage": 3, "stages": 4, "progress": 0.5,
        "rows_per_second": None, "eta": None, "reason": None,
    } | more  # fmt: skip


def test_the_view() -> None:
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    found = [job(number, "succeeded", progress=1.0) for number in range(1, 9)]
    found += [
        job(9, "running", rows_per_second=12345.6, eta=now + dt.timedelta(seconds=125), reason="Spark starts"),
        job(10, "waiting", reason="waits for transaction 7"),
    ]
    out = io.StringIO()
    Console(file=out, width=140).print(jobs.draw(found, now))
    text = out.getvalue()
    assert [line.split()[0] for line in text.splitlines()[1:8]] == ["4", "5", "6", "7", "8", "9", "10"]
    assert "12,346" in text
    assert "2 min 05 s" in text
    assert "50%" in text
    assert "job 10: waits for transaction 7" in text
    out = io.StringIO()
    Console(file=out, width=140).print(jobs.draw([], now))
    assert out.getvalue() == "no jobs\n"
