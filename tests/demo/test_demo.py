"""The demonstration from beginning to end, small: real processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


# The demonstration as it is, but for how long it looks at each change and at what the clients reach at most.
HASTY = """
import sys
from demo import __main__, changes, run
run.CALIBRATION_SECONDS = 1.0
run.BETWEEN_SECONDS = 0.2
run.LEAST_SECONDS = changes.LEAST_SECONDS = 0.5
sys.exit(__main__.main())
"""


def run(*options: str, hasty: bool = False) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, *(("-c", HASTY) if hasty else ("-m", "demo")), *options]
    return subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=170, check=False)


@pytest.mark.slow
def test_schema_changes_under_load(tmp_path):
    options = ("--scale", "0.01", "--seconds", "1", "--rate", "100", "--synchronous", "off", "--output", str(tmp_path))
    done = run(*options, hasty=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "CHECK DATABASE found nothing wrong" in done.stdout
    assert "could not create unique index" in done.stdout
    assert (tmp_path / "timeline.png").stat().st_size > 10_000
    assert (tmp_path / "timeline.svg").stat().st_size > 10_000
    found = json.loads((tmp_path / "demo.json").read_text())
    assert [course["sqlstate"] for course in found["courses"]] == [None] * 5 + ["23505"] + [None] * 3
    index = found["courses"][1]
    # The 60,175 rows that were loaded, and what the clients inserted before: more, the faster the machine.
    assert index["rows_done"] >= 60_175
    assert index["share"] == 1.0
    assert [stage["name"] for stage in index["stages"]][-1] == "public"
    assert found["operations"] > 1000


def test_an_existing_database_is_left_alone(tmp_path):
    done = run("--path", str(tmp_path))
    assert done.returncode == 2
    assert "is there already" in done.stdout


def test_options_that_make_no_sense():
    assert run("--clients", "0").returncode == 2
