"""Java is found or its absence named; the session's configuration keeps to itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from instar import errors
from instar.pipeline import session


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


@pytest.mark.spark
def test_a_session_whose_files_do_not_fit_into_memory_any_more_is_started_again():
    """Also if its JVM is killed when it is to stop. In a process of its own: this one's session stays."""
    script = """
from pathlib import Path
from pyspark.sql import SparkSession
from instar.pipeline import scratch, session
session._become_idle = lambda: None  # the tests beside this one leave nothing over

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
