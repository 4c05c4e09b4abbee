"""How the tests are handed out to processes: what starts Spark to one of them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

TESTS = """
import os, time
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range(10))
def test_{name}(number):
    with Path("{name}").open("a") as seen:
        print(os.environ["PYTEST_XDIST_WORKER"], file=seen)
    time.sleep(0.05)
"""


def test_what_starts_spark_runs_in_one_process(tmp_path):
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_others.py").write_text(TESTS.format(name="others"))
    for name in ("one", "two"):
        (tmp_path / f"test_{name}.py").write_text(TESTS.format(name="spark") + "\npytestmark = pytest.mark.spark\n")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "-W", "ignore", str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment["PYTHONPATH"] = str(ROOT / "src")
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, text=True, capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    processes = {name: (tmp_path / name).read_text().split() for name in ("spark", "others")}
    assert (len(processes["spark"]), len(processes["others"])) == (20, 10)
    assert len(set(processes["spark"])) == 1
    # While one process has what starts Spark, the other goes on.
    assert set(processes["others"]) - set(processes["spark"])
