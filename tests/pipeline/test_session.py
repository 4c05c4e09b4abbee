"""Java is found or its absence named; the session's configuration keeps to itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from instar import errors
from instar.pipeline import reorganizer, session
from instar.pipeline.reorganizer import SparkReorganizer


def java(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").touch(mode=0o755)
    (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture
def nowhere(monkeypatch, tmp_path) -> Path:
    """No Java in the environment, none on the path, none installed."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(session, "INSTALLED", tmp_path / "jvm")
    return tmp_path


@pytest.mark.parametrize(("written", "version"), [("17.0.15", 17), ("1.8.0_402", 8), ("25", 25)])
def test_version(tmp_path, written, version):
    assert session.java_version(java(tmp_path / "j", written)) == version


def test_version_of_what_is_no_java(tmp_path):
    assert session.java_version(tmp_path) is None


def test_java_home_wins(nowhere, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(java(nowhere / "mine", "21.0.1")))
    java(nowhere / "jvm" / "java-17", "17.0.15")
    assert session.java_home() == nowhere / "mine"


def test_an_old_one_is_passed_over(nowhere, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(java(nowhere / "old", "11.0.2")))
    java(nowhere / "jvm" / "java-21", "21.0.1")
    java(nowhere / "jvm" / "java-17", "17.0.15")
    assert session.java_home() == nowhere / "jvm" / "java-17"


def test_none_is_an_error_that_says_what_to_do(nowhere, monkeypatch):
    with pytest.raises(errors.Error) as caught:
        session.java_home()
    assert caught.value.sqlstate == errors.OBJECT_NOT_READY
    monkeypatch.setenv("JAVA_HOME", str(java(nowhere / "old", "11.0.2")))
    with pytest.raises(errors.Error) as caught:
        session.java_home()
    assert "Java 11" in (caught.value.detail or "")
    assert "apt install" in (caught.value.hint or "")


def test_the_background_leaves_half_of_the_processors(monkeypatch):
    masters = []
    for processors in (None, 1, 2, 3, 16):
        monkeypatch.setattr(os, "cpu_count", lambda processors=processors: processors)
        masters.append(session.background_master())
    assert masters == ["local[1]", "local[1]", "local[1]", "local[1]", "local[8]"]


@pytest.mark.parametrize("background", [True, False])
def test_what_computes_for_long_at_the_start_is_idle_in_the_background(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, background: bool
) -> None:
    """Loading PySpark, reading what a JVM maps, and the JVM itself, which inherits it."""
    from pyspark import java_gateway

    done: list[tuple[object, bool]] = []
    idle = False

    def in_idle_thread(action: Callable[[], Any]) -> Any:
        nonlocal idle
        idle = True
        try:
            return action()
        finally:
            idle = False

    def launch(_configuration: object, options: dict[str, object]) -> None:
        done.append(("a JVM" + " in a group of its own" * ("process_group" in options), idle))
        raise OSError("not now")

    monkeypatch.setattr(session, "in_idle_thread", in_idle_thread)
    monkeypatch.setattr(session.importlib, "import_module", lambda name: done.append((name, idle)))
    monkeypatch.setattr(session, "read_ahead", lambda _files: done.append(("files", idle)))
    monkeypatch.setattr(java_gateway, "launch_gateway", launch)
    monkeypatch.setattr(session, "java_home", lambda: tmp_path)
    monkeypatch.setattr(session, "new_scratch", lambda: tmp_path)
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "")
    with pytest.raises(errors.Error, match="not now"):
        session._start("local[1]", "1g", background, tmp_path, None)
    if background:
        assert done == [("pyspark.sql", True), ("files", True), ("a JVM in a group of its own", True)]
    else:
        assert done == [("a JVM", False)]


@pytest.mark.parametrize(
    ("background", "synchronous", "yields", "gently"),
    [
        (True, "full", False, True),
        (True, "off", False, False),
        (True, "off", True, True),
        (False, "full", True, False),
    ],
)
def test_background_work_takes_turns_and_loads_modules_gently(
    monkeypatch: pytest.MonkeyPatch, background: bool, synchronous: str, yields: bool, gently: bool
) -> None:
    """From its first module to its end. Where nobody waits for the disk, and it is not to yield, it is in nobody's
    way."""
    within: list[object] = []
    store = SimpleNamespace(synchronous=synchronous, foreground_about=lambda: True)

    @contextmanager
    def entered(given: object, _rest: object = None) -> Iterator[None]:
        within.append(given)
        yield
        within.remove(given)

    seen: list[list[object]] = []
    monkeypatch.setattr(reorganizer, "turns", entered)
    monkeypatch.setattr(reorganizer, "loading_gently", entered)
    monkeypatch.setattr(reorganizer, "_parts", lambda _path, _task: object())
    monkeypatch.setattr(SparkReorganizer, "_run", lambda *_: seen.append(list(within)))
    task: Any = SimpleNamespace(store=store, pace=SimpleNamespace(yields=yields))
    SparkReorganizer("db", background=background).run(task, lambda: None)
    assert seen == [[store] * background + [store.foreground_about] * gently]
    assert within == []


@pytest.mark.spark
def test_a_session_whose_files_do_not_fit_into_memory_any_more_is_started_again():
    """Also if its JVM is killed when it is to stop. In a process of its own: this one's session stays."""
    script = """
import gc
import os
from pathlib import Path
from pyspark.sql import SparkSession
from instar import scheduling
from instar.pipeline import scratch, session
scheduling.STANDS_BACK = os.SCHED_BATCH  # the tests beside this one leave nothing over

def local(spark):
    return Path(spark.sparkContext.getConf().get("spark.local.dir"))

if scratch.fits_in_memory(1000):
    small = session.spark_session(background=True, need=1000)
    assert local(small).parent == scratch.MEMORY, local(small)
    assert session.spark_session(background=True, need=2000) is small
    stop = SparkSession.stop

    def killed(spark):
        spark.sparkContext._gateway.proc.kill()
        spark.sparkContext._gateway.proc.wait()
        stop(spark)

    SparkSession.stop = killed
    large = session.spark_session(background=True, need=1 << 60)
    SparkSession.stop = stop
    assert large is not small and local(large).parent != scratch.MEMORY, local(large)
    assert session.spark_session(background=True, need=1000) is large
    assert gc.get_freeze_count() > 10_000  # what was loaded is out of the collector's way
    assert large.range(3).count() == 3
    session.stop_session()
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.spark
def test_session(spark):
    assert session.spark_session() is spark
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert not session.is_lost()
    # Executors run this very Python and import this very instar.
    seen = spark.sparkContext.parallelize([0], 1).map(_where).collect()
    assert seen == [_where(0)]


def _where(_: int) -> tuple[str, str]:
    import sys

    import instar

    return sys.executable, str(instar.__file__)
