"""Spark as a standalone cluster: it works where executors see the store, and is refused in so many words where not.

What leaves no session behind stands here side by side, since starting one takes longer than any of the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from instar import errors
from instar.catalog.descriptors import Check, State
from instar.pipeline import reference_join, reorganizer, session, spark_job, stores
from instar.pipeline.reorganizer import SparkReorganizer
from instar.schemachange.elements import Element, ElementKind
from instar.schemachange.reorganize import Backfill, InProcess
from instar.schemachange.validate import Validation
from instar.types import BIGINT, INTEGER
from pipeline.small_database import SmallDatabase, compile_check
from pipeline.test_reorganizer import Midway, java, python_workers
from pipeline.test_validation import KEY, damage, pending, validation
from support.clusters import Cluster

ROWS = 5_000


def hidden(path: Path) -> list[str]:
    """What begins a command that sees an empty directory in the place of `path`."""
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", f'mount -t tmpfs none {path} && exec "$@"', "sh"]


def copied(path: Path, copy: Path) -> list[str]:
    """What begins a command that sees a copy of a directory in the place of `path`."""
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", f'mount --bind {copy} {path} && exec "$@"', "sh"]


# Begins a command that has a view of the file systems of its own, as do the processes that it starts.
OF_ITS_OWN = ["unshare", "--map-root-user", "--mount"]


def hide(path: Path, process: subprocess.Popen[bytes]) -> None:
    """Have a process begun by `OF_ITS_OWN`, and those that it has started, see an empty directory in the place of
    `path`."""
    inside = ["nsenter", "--target", str(process.pid), "--user", "--mount", "--preserve-credentials"]
    subprocess.run([*inside, "mount", "-t", "tmpfs", "none", str(path)], check=True)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster without workers, which this process's sessions are to use."""
    directory = tmp_path / "cluster"
    directory.mkdir()
    made = Cluster(directory)
    monkeypatch.setenv(session.MASTER, made.url)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    session.stop_session()
    yield made
    session.stop_session()
    made.close()


@pytest.mark.spark
def test_a_session_that_has_given_up_is_replaced(spark):
    """As Spark does when its cluster is gone."""
    spark.sparkContext._jsc.stop()
    assert session.spark_session("local[2]", "512m").range(3).count() == 3


@pytest.mark.spark
def test_a_spark_that_stands_still_is_given_up(spark, database, monkeypatch):
    """Where it is asked how far it is."""
    monkeypatch.setattr(spark_job, "PULSE_SECONDS", 0.02)
    monkeypatch.setattr(reference_join, "LISTEN_SECONDS", 0.02)

    def stop() -> None:
        for jvm in java():
            for process in [*python_workers(), jvm]:
                process.send_signal(signal.SIGSTOP)
        # Not before something was heard of a task, which takes as long where the machine is busy.
        monkeypatch.setattr(reorganizer, "PATIENCE_SECONDS", 2.0)

    table = pending(database)
    damage(database, table, 5, (5, 999, 1, None))
    work = validation(database, table, ElementKind.FOREIGN_KEY, KEY, database.claimed(1))
    pulse = Midway(lambda: bool(work.rows_read), stop)
    with pytest.raises(errors.Error, match="nothing was heard of Spark for 2 seconds") as caught:
        SparkReorganizer(database.path).run(work, pulse)
    assert caught.value.sqlstate == errors.IO_ERROR
    assert pulse.happened
    assert java() == []
    # Another reorganizer finishes what it left.
    with pytest.raises(errors.Error, match="violates foreign key constraint") as caught:
        InProcess().run(work, lambda: None)
    assert "1 row violates it: (id)=(5)." in (caught.value.detail or "")


@pytest.mark.spark
@pytest.mark.timeout(400)  # four JVMs, one after the other
def test_a_standalone_cluster(cluster, database, monkeypatch):
    """Backfill and validation on executors of their own; then these do not see the store any more."""
    monkeypatch.setattr(reorganizer, "PATIENCE_SECONDS", 300.0)  # executors start in their own time
    table = database.create("t", [("id", BIGINT), ("a", INTEGER)], ["id"])
    database.insert(table, [(i, i % 7) for i in range(ROWS)])
    check = Check(id=60, name="c", expression="", columns=(2,), state=State.WRITE_ONLY)
    table = database.alter(table, checks=(check,))
    table = database.add_index(table, "i", ["a"], State.WRITE_ONLY)

    def validating(job: int) -> Validation:
        held = database.claimed(job)
        element = Element(ElementKind.CHECK, table.id, 60)
        return Validation(
            database.store,
            database.new_catalog(),
            element,
            compile_check,
            job=job,
            stage=1,
            claim=held.claim,
            rows=ROWS,
        )

    worker = cluster.worker(within=OF_ITS_OWN)
    on_spark = SparkReorganizer(database.path)
    on_spark.run(validating(1), lambda: None)
    held = database.claimed(2)
    build = Backfill(database.store, table, table.indexes[:1], job=2, stage=1, claim=held.claim, rows=ROWS)
    on_spark.run(build, lambda: None)
    with database.store.read() as reader:
        assert len(reader.batch(*_entries(table.indexes[0].rowset), 2 * ROWS)[0]) == ROWS
    hide(Path(database.path), worker)
    with pytest.raises(errors.Error) as caught:
        on_spark.run(validating(3), lambda: None)
    assert caught.value.sqlstate == errors.FEATURE_NOT_SUPPORTED
    assert caught.value.message == f"a Spark executor does not see the store of the driver at {database.path}"
    assert "there is none" in (caught.value.detail or "")


def _entries(rowset: int) -> tuple[bytes, bytes]:
    return b"\x10" + rowset.to_bytes(4, "big"), b"\x10" + (rowset + 1).to_bytes(4, "big")


def seen(within: list[str], database: SmallDatabase) -> str:
    """What an executor says that opens the store by a command line begun so."""
    identity = stores.identity(database.path, database.store)
    program = (
        "import sys; from instar import errors; from instar.pipeline.stores import opened\n"
        "try: opened(sys.argv[1], bytes.fromhex(sys.argv[2])); print('opened')\n"
        "except errors.Error as refused: print(refused.sqlstate, refused.message, refused.detail)"
    )
    command = [*within, sys.executable, "-c", program, database.path, identity.hex()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ))
    return done.stdout + done.stderr


def test_an_executor_tells_the_store_from_a_copy(database, tmp_path):
    assert seen([], database) == "opened\n"
    refusal = f"0A000 a Spark executor does not see the store of the driver at {database.path} On the executor's host "
    assert seen(hidden(Path(database.path)), database).startswith(refusal)
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", database.path, str(copy)], check=True)
    assert "it is another file, or another host" in seen(copied(Path(database.path), copy), database)
    with pytest.raises(errors.Error, match="does not see the directory"):
        stores.require_shared(str(tmp_path / "nowhere"))
