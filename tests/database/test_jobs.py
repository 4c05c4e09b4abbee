"""Jobs as SQL shows and steers them, with a worker that is a process of its own."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import instar
from instar.database import database
from instar.database.settings import duration_us
from instar.dbapi import Connection
from instar.schemachange.job_records import JobState, job_key, lease_key
from instar.schemachange.shown import NO_WORKER, STARTING
from instar.store.engine import Section
from instar.worker import process, work
from support.children import end_worker
from support.databases import fails, rows, run, value
from support.victims import CONTEXT

ROWS = 60_000
ADOPTED = 20_000  # by a worker that may get little of a processor


def serve(path: str) -> None:
    """The worker as it is, but without Spark, and it does not stand back: the tests beside this one never end."""
    work.WITHOUT_SPARK_ROWS = 1 << 40
    sys.exit(process.main([path]))


class Shop:
    """A database with a table `t` and workers that the test starts and kills."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.connection: Connection = instar.connect(path, synchronous="off", autocommit=True)
        run(self.connection, "SET schema_change_mode = async")
        self.workers: list[BaseProcess] = []

    def table(self, name: str, count: int = ROWS) -> None:
        run(self.connection, f"CREATE TABLE {name} (id bigint PRIMARY KEY, a integer)")
        self.connection.insert_arrow(name, pa.table({"id": range(count), "a": [i * 7919 % 1000 for i in range(count)]}))

    def start_worker(self) -> BaseProcess:
        worker = CONTEXT.Process(target=serve, args=(self.path,))
        worker.start()
        self.workers.append(worker)
        wait_for(self.connection.database.store.worker_present)
        return worker

    def job(self, number: int) -> dict[str, Any]:
        cursor = self.connection.execute("SELECT * FROM instar.jobs WHERE id = ?", (number,))
        names = [column[0] for column in cursor.description or ()]
        return dict(zip(names, cursor.fetchone() or (), strict=True))

    def newest(self) -> int:
        return int(value(self.connection, "SELECT max(id) FROM instar.jobs"))

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.join()
        self.connection.close()


def wait_for(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path / "db")
    yield made
    made.close()


def test_a_job_is_slowed_down_let_go_and_shown_all_the_while(shop: Shop) -> None:
    shop.table("t")
    shop.start_worker()
    run(shop.connection, "SET max_rows_per_second = 2000", "CREATE INDEX t_a ON t (a)")
    number = shop.newest()
    wait_for(lambda: shop.job(number)["reason"] == "held back by max_rows_per_second = 2000")
    time.sleep(1.5)
    slow = shop.job(number)
    assert (slow["state"], slow["kind"], slow["stages"]) == ("running", "build index", 4)
    assert slow["rows_done"] < ROWS / 2
    assert slow["eta"] is None or slow["eta"] > slow["started_at"]
    seen = [0.0]

    def progress() -> bool:
        job = shop.job(number)
        seen.append(job["progress"])
        return job["state"] == "succeeded"

    begun = time.monotonic()
    run(shop.connection, f"ALTER JOB {number} SET (max_rows_per_second = DEFAULT, priority = 5)")
    wait_for(progress)
    assert time.monotonic() - begun < ROWS / 2000 / 3
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    done = shop.job(number)
    assert (done["rows_done"], done["rows_total"], done["reason"], done["eta"]) == (ROWS, ROWS, None, None)
    assert done["rows_per_second"] == round(done["rows_per_second"], 1) > 0
    assert (done["priority"], done["max_rows_per_second"]) == (5, None)
    with fails("42601", "conflicting or redundant options"):
        run(shop.connection, f"ALTER JOB {number} SET (priority = 1, priority = 2)")
    history = rows(shop.connection, "SELECT state, stage, who, note FROM instar.job_history WHERE job = ?", number)
    assert [(state, stage) for state, stage, _, _ in history][-1] == ("succeeded", 4)
    assert any(who.startswith("worker ") for _, _, who, _ in history)
    assert any(note == "ALTER JOB: max_rows_per_second = None, priority = 5" for *_, note in history)


def test_a_cancel_takes_effect_at_once_however_slow_the_job_is(shop: Shop) -> None:
    shop.table("t")
    shop.start_worker()
    run(shop.connection, "SET max_rows_per_second = 10", "CREATE INDEX t_a ON t (a)")
    number = shop.newest()
    wait_for(lambda: shop.job(number)["reason"] == "held back by max_rows_per_second = 10")
    begun = time.monotonic()
    run(shop.connection, f"CANCEL JOB {number}")
    wait_for(lambda: shop.job(number)["state"] == "cancelled")
    assert time.monotonic() - begun < 15  # the job would take 6,000
    assert shop.job(number)["reason"] == f"job {number} was cancelled"
    assert rows(shop.connection, "CHECK DATABASE") == []


def test_a_worker_that_is_starting_is_told_of(shop: Shop) -> None:
    """On a busy machine it takes ten seconds until it is there."""
    shop.table("t", 6_000)
    shop.connection.database.ensure_worker = lambda: None  # type: ignore[method-assign]  # nobody starts one yet
    run(shop.connection, "CREATE INDEX t_a ON t (a)")
    number = shop.newest()
    assert shop.job(number)["reason"] == NO_WORKER
    assert shop.connection.database.store.wants_worker()  # as asks who starts one at once
    shop.connection.notices.clear()
    (listed,) = [row for row in rows(shop.connection, "SHOW JOBS") if row[0] == number]
    assert (listed[3:5], shop.connection.notices) == (("pending", STARTING), [])
    shop.start_worker()
    wait_for(lambda: shop.job(number)["state"] == "succeeded")


def test_paused_before_it_began_and_cancelled_while_it_is_paused(shop: Shop) -> None:
    shop.table("t")
    shop.connection.database.ensure_worker = lambda: None  # type: ignore[method-assign]  # nobody is to take it up
    run(shop.connection, "CREATE INDEX t_a ON t (a)")
    number = shop.newest()
    pending = shop.job(number)
    assert (pending["state"], pending["reason"], pending["progress"] < 0.01) == ("pending", NO_WORKER, True)
    shop.connection.notices.clear()
    (listed,) = [row for row in rows(shop.connection, "SHOW JOBS") if row[0] == number]
    assert listed[3:5] == ("pending", NO_WORKER)
    assert "no worker runs" in shop.connection.notices[0]
    run(shop.connection, f"PAUSE JOB {number}")
    assert shop.job(number)["reason"] == "paused by PAUSE JOB"
    shop.start_worker()
    time.sleep(0.5)
    assert shop.job(number)["state"] == "paused"
    run(shop.connection, f"CANCEL JOB {number}")
    wait_for(lambda: shop.job(number)["state"] == "cancelled")
    with fails("55000", "is cancelled and cannot be paused"):
        run(shop.connection, f"PAUSE JOB {number}")
    with fails("55000", "is cancelled and cannot be altered"):
        run(shop.connection, f"ALTER JOB {number} SET (priority = 1)")


def test_a_more_urgent_job_comes_first_and_the_other_goes_on_after_it(shop: Shop) -> None:
    shop.table("t")
    shop.table("u")
    shop.start_worker()
    run(shop.connection, "SET max_rows_per_second = 5000", "CREATE INDEX t_a ON t (a)")
    first = shop.newest()
    wait_for(lambda: shop.job(first)["rows_done"])
    run(shop.connection, "CREATE INDEX u_a ON u (a)")
    second = shop.newest()
    assert shop.job(second)["state"] == "pending"
    assert shop.job(second)["reason"] == "waits for the worker"
    run(shop.connection, f"ALTER JOB {second} SET (priority = 1, max_rows_per_second = 0)")
    wait_for(lambda: shop.job(second)["state"] == "succeeded")
    assert shop.job(first)["state"] in ("running", "waiting", "pending")
    notes = rows(shop.connection, "SELECT note FROM instar.job_history WHERE job = ?", first)
    assert (f"gives way to job {second}",) in notes
    run(shop.connection, f"ALTER JOB {first} SET (max_rows_per_second = 0)")
    wait_for(lambda: shop.job(first)["state"] == "succeeded")
    assert rows(shop.connection, "CHECK DATABASE") == []


def test_who_waits_is_told_as_it_happens(shop: Shop) -> None:
    shop.table("t", 20_000)
    shop.start_worker()
    told: list[tuple[float, str]] = []
    shop.connection.on_notice = lambda notice: told.append((time.monotonic(), notice))
    run(shop.connection, "SET schema_change_mode = wait", "SET max_rows_per_second = 10000")
    run(shop.connection, "CREATE INDEX t_a ON t (a)")
    ended = time.monotonic()
    assert shop.connection.notices == []
    stages = [notice for _, notice in told]
    assert f"NOTICE:  job {shop.newest()}: stage 3 of 4, running" in stages
    assert ended - told[0][0] > 1
    shop.connection.on_notice = None
    run(shop.connection, "DROP TABLE IF EXISTS nothing")
    assert shop.connection.notices == ['NOTICE:  table "nothing" does not exist, skipping']


def test_who_waits_is_told_what_is_waited_for(shop: Shop) -> None:
    shop.table("t")
    shop.connection.database.ensure_worker = lambda: None  # type: ignore[method-assign]  # nobody is to take it up
    run(shop.connection, "SET schema_change_mode = wait")
    told: list[str] = []

    def heard(notice: str) -> None:
        told.append(notice)
        if len(told) == 1:
            with instar.connect(shop.path, synchronous=None, autocommit=True) as other:
                jobs = other.database.jobs
                waiting = {"state": JobState.WAITING, "reason": "waits for job 1 (DROP INDEX i)"}
                jobs.update(jobs.all()[-1].id, lambda job: msgspec.structs.replace(job, **waiting))
        else:
            shop.connection.cancel()

    shop.connection.on_notice = heard
    with fails("57014"):
        run(shop.connection, "CREATE INDEX t_a ON t (a)")
    number = shop.newest()
    assert told == [
        f"NOTICE:  job {number}: stage 1 of 4, pending",
        f"NOTICE:  job {number}: stage 1 of 4, waiting: waits for job 1 (DROP INDEX i)",
    ]


def test_without_a_hook_notices_are_kept_in_order(shop: Shop) -> None:
    shop.table("t", 20_000)
    run(shop.connection, "SET schema_change_mode = wait", "CREATE INDEX t_a ON t (a)")
    number = shop.newest()
    assert shop.connection.notices[0].startswith(f"NOTICE:  job {number}: stage 1 of 4")


@pytest.mark.parametrize(
    ("option", "sqlstate"),
    [
        ("priority = 1001", "22023"), ("priority = high", "22023"), ("max_rows_per_second = -1", "22023"),
        ("reorganize_latency_target = '5 parsecs'", "22023"), ("colour = 1", "22023"), ("priority", "42601"),
    ],
)  # fmt: skip
def test_alter_job_says_what_is_wrong(shop: Shop, option: str, sqlstate: str) -> None:
    with fails(sqlstate):
        run(shop.connection, f"ALTER JOB 1 SET ({option})")


@pytest.mark.parametrize("steering", ["PAUSE JOB", "RESUME JOB", "CANCEL JOB", "ALTER JOB"])
def test_no_job_is_steered_by_a_transaction_that_could_roll_it_back(shop: Shop, steering: str) -> None:
    """Nor by one that begins without BEGIN, once it has written something."""
    shop.connection.database.ensure_worker = lambda: None  # type: ignore[method-assign]  # nobody is to take it up
    shop.table("t", 10_000)
    run(shop.connection, "CREATE INDEX i ON t (a)")
    number = shop.newest()
    statement = f"{steering} {number}" + (" SET (priority = 1)" if steering == "ALTER JOB" else "")
    before = shop.job(number)
    run(shop.connection, "BEGIN")
    with fails("25001", f"{steering} cannot run inside a transaction block"):
        run(shop.connection, statement)
    run(shop.connection, "ROLLBACK")
    other = instar.connect(shop.path, synchronous=None)
    run(other, "INSERT INTO t VALUES (10001, 1)")
    with fails("25001", f"{steering} cannot run inside a transaction block"):
        run(other, statement)
    other.rollback()
    assert shop.job(number)["priority"] == before["priority"]
    run(other, statement)
    other.close()


def test_no_such_job(shop: Shop) -> None:
    with fails("42704", "job 4711 does not exist"):
        run(shop.connection, "ALTER JOB 4711 SET (priority = 1)")


@pytest.mark.parametrize(
    ("given", "shown", "microseconds"),
    [("5", "5ms", 5000), ("5 ms", "5ms", 5000), ("0.5ms", "500us", 500), ("2 s", "2s", 2_000_000),
     ("1500 us", "1500us", 1500), ("1 min", "60s", 60_000_000), ("0", "0", None)],
)  # fmt: skip
def test_a_latency_target_is_a_duration(shop: Shop, given: str, shown: str, microseconds: int | None) -> None:
    run(shop.connection, f"SET reorganize_latency_target = '{given}'")
    assert value(shop.connection, "SHOW reorganize_latency_target") == shown
    assert duration_us(shown) == microseconds


def test_the_latency_target_slows_the_job_down_while_clients_suffer(shop: Shop) -> None:
    """A target that no commit can keep: the job says so, goes on nevertheless, and ends once it is taken away."""
    shop.table("t")
    shop.start_worker()
    stop = threading.Event()

    def client() -> None:
        with instar.connect(shop.path, synchronous=None, autocommit=True) as connection:
            while not stop.is_set():
                connection.execute("UPDATE t SET a = a WHERE id = 7")
                time.sleep(0.001)

    thread = threading.Thread(target=client)
    thread.start()
    try:
        run(shop.connection, "SET reorganize_latency_target = '1 us'", "CREATE INDEX t_a ON t (a)")
        number = shop.newest()
        wait_for(lambda: "held back by reorganize_latency_target = 0.001 ms" in (shop.job(number)["reason"] or ""))
        standing = shop.job(number)
        assert standing["latency_target_ms"] == 0.001
        run(shop.connection, f"ALTER JOB {number} SET (reorganize_latency_target = 0)")
        wait_for(lambda: shop.job(number)["state"] == "succeeded")
    finally:
        stop.set()
        thread.join()
    assert rows(shop.connection, "CHECK DATABASE") == []


# --- orphans ----------------------------------------------------------------------------------------------------------


def deletion(key: bytes) -> Callable[[Section], None]:
    def delete(section: Section) -> None:
        section.delete(key)

    return delete


def orphan(shop: Shop) -> int:
    """A job whose worker was killed in the middle of it, and whose lease has ended (its ten seconds are not waited
    for)."""
    worker = shop.start_worker()
    run(shop.connection, "SET max_rows_per_second = 2000", "CREATE INDEX t_a ON t (a)")
    number = shop.newest()
    wait_for(lambda: shop.job(number)["progress"] > 0.02)
    worker.kill()
    worker.join()
    for _ in range(2):  # its lease is believed still, then it has ended
        left = shop.job(number)
        assert (left["state"], left["reason"]) == ("waiting", f"whoever worked on it is gone; {NO_WORKER}")
        assert left["eta"] is None
        shop.connection.database.store.background([deletion(lease_key(number))])
    run(shop.connection, f"ALTER JOB {number} SET (max_rows_per_second = 0)", "SET max_rows_per_second = 0")
    return number


def test_an_orphan_is_adopted_by_who_commits_now_and_then(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has the database open since before, and opens nothing: one commit is enough."""
    monkeypatch.setattr(database, "LOOK_NS", 2_000_000_000)
    shop.table("t", ADOPTED)
    number = orphan(shop)
    share = shop.job(number)["progress"]
    time.sleep(2.1)
    run(shop.connection, "UPDATE t SET a = 1 WHERE id = 1")
    wait_for(lambda: shop.job(number)["state"] == "succeeded")
    assert share > 0
    assert rows(shop.connection, "CHECK DATABASE") == []
    seen = shop.connection.database.store.worker_present()
    assert seen, "it was not a worker that adopted it"
    end_worker(shop.path)


def test_an_orphan_is_adopted_by_who_waits_for_another_job(shop: Shop) -> None:
    shop.table("t", ADOPTED)
    shop.table("u", 10_000)
    number = orphan(shop)
    run(shop.connection, "SET schema_change_mode = wait", "CREATE INDEX u_a ON u (a)")
    wait_for(lambda: shop.job(number)["state"] == "succeeded")
    assert rows(shop.connection, "CHECK DATABASE") == []
    end_worker(shop.path)


def test_an_orphan_is_adopted_by_the_worker_that_is_started(shop: Shop) -> None:
    shop.table("t", ADOPTED)
    number = orphan(shop)
    share = shop.job(number)["progress"]
    shop.start_worker()
    wait_for(lambda: shop.job(number)["progress"] > share)
    wait_for(lambda: shop.job(number)["state"] == "succeeded")


def test_a_damaged_record_hides_no_other_job() -> None:
    connection = instar.connect(autocommit=True)
    run(
        connection,
        "CREATE TABLE t (id bigint PRIMARY KEY, a integer)",
        "INSERT INTO t SELECT g, g FROM generate_series(1, 9000) g",
        *(f"CREATE INDEX i{number} ON t (a)" for number in range(3)),
    )
    first, second, third = (number for (number,) in rows(connection, "SELECT id FROM instar.jobs ORDER BY id"))

    def damage(section: Section) -> None:
        section.put(job_key(second), b"\xc1")

    connection.database.store.background([damage])
    told = f"the record of job {second} is damaged"
    listed = rows(connection, "SELECT id, state, reason FROM instar.jobs")
    assert listed == [(first, "succeeded", None), (second, "damaged", told), (third, "succeeded", None)]
    assert [(row[0], row[3]) for row in rows(connection, "SHOW JOBS")] == [row[:2] for row in listed]
    assert rows(connection, "SELECT DISTINCT job FROM instar.job_history ORDER BY job") == [(first,), (third,)]
    assert [problem[-1] for problem in rows(connection, "CHECK DATABASE")] == [told]
    assert connection.database.jobs.prune() == 0
    for refused in (f"PAUSE JOB {second}", "CREATE INDEX i3 ON t (a)"):  # whose table it moves, if any, is not known
        with fails("XX001", told):
            connection.execute(refused)
    connection.close()


def test_in_memory_who_resumes_or_cancels_a_job_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = instar.connect(autocommit=True)
    run(connection, "CREATE TABLE t (id bigint PRIMARY KEY, a integer)")
    connection.insert_arrow("t", pa.table({"id": range(9000), "a": range(9000)}))
    jobs = connection.database.jobs
    monkeypatch.setattr(connection.database, "run_job", lambda job, _: jobs.pause(job))  # from elsewhere
    run(connection, "SET schema_change_mode = async", "CREATE INDEX t_a ON t (a)")
    monkeypatch.undo()
    number = int(value(connection, "SELECT max(id) FROM instar.jobs"))
    assert value(connection, f"SELECT state FROM instar.jobs WHERE id = {number}") == "paused"
    run(connection, f"RESUME JOB {number}")
    assert value(connection, f"SELECT state FROM instar.jobs WHERE id = {number}") == "succeeded"
    connection.close()
