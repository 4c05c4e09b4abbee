"""Where Spark's files lie: in memory if they fit twice, on disk if not or if nobody knows."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from instar.pipeline import scratch


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that stands for the one in memory, of which the information and the group say how much there is."""
    place = tmp_path / "memory"
    place.mkdir()
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    1000 kB\n")
    monkeypatch.setattr(scratch, "MEMORY", place)
    monkeypatch.setattr(scratch, "_MEMORY_INFO", tmp_path / "meminfo")
    monkeypatch.setattr(scratch, "_CGROUP", tmp_path)
    return place


def test_what_fits_twice_lies_in_memory(memory: Path) -> None:
    assert scratch.fits_in_memory(512_000)
    assert not scratch.fits_in_memory(512_001)
    assert scratch.new_scratch(512_000).parent == memory
    assert scratch.new_scratch(512_001).parent == Path(tempfile.gettempdir())
    assert scratch.new_scratch().parent == Path(tempfile.gettempdir())


@pytest.mark.parametrize(("limit", "fits"), [("max", True), ("1000000", True), ("999999", False)])
def test_a_group_has_less(memory: Path, tmp_path: Path, limit: str, fits: bool) -> None:
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text("500000\n")
    assert scratch.fits_in_memory(250_000) is fits


def test_no_memory_to_write_in(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "MEMORY", memory / "missing")
    assert not scratch.fits_in_memory(0)
    assert scratch.new_scratch(0).parent == Path(tempfile.gettempdir())


def test_a_full_one_is_not_taken(memory: Path) -> None:
    free = os.statvfs(memory)
    assert not scratch.fits_in_memory(free.f_bavail * free.f_frsize)


def test_what_killed_processes_left_is_removed(memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for place in (memory, disk):
        left, alive = place / f"instar-spark-{gone.pid}-abc", place / f"instar-spark-{os.getppid()}-abc"
        other = place / "instar-spark-of-somebody"
        for directory in (left, alive, other):
            directory.mkdir()
            (directory / "file").touch()
    made = scratch.new_scratch()
    kept = {f"instar-spark-{os.getppid()}-abc", "instar-spark-of-somebody"}
    assert {path.name for path in disk.iterdir()} == {made.name, *kept}
    assert {path.name for path in memory.iterdir()} == kept
