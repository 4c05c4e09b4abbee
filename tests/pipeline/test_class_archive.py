"""The archive of Spark's classes: used where it is, and never a reason not to start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from instar.pipeline.session import class_archive, java_home, jvm_options


def test_the_set_up_has_made_one() -> None:
    assert class_archive(java_home()).exists()


def test_without_one_no_jvm_is_told_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert not any("Archive" in option for option in jvm_options(java_home()))


@pytest.mark.parametrize("content", [b"", b"no archive", b"\0" * 10_000])
def test_one_that_is_broken_is_passed_over_in_silence(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    archive = class_archive(java_home())
    archive.parent.mkdir(parents=True)
    archive.write_bytes(content)
    options = jvm_options(java_home())
    assert f"-XX:SharedArchiveFile={archive}" in options
    java = str(java_home() / "bin" / "java")
    plain = subprocess.run([java, "-version"], capture_output=True, check=True)
    done = subprocess.run([java, *options, "-version"], capture_output=True, check=True)
    assert done.stdout == b""
    assert len(done.stderr.splitlines()) == len(plain.stderr.splitlines())
