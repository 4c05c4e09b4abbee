"""The environment of the processes that are started on demand."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import msgspec
import pytest

import instar
from instar.gently import OPTION
from instar.schemachange import launching
from instar.store import open_store, presence

# What a client does, and what the process that it starts does first.
CLIENT = """
import subprocess, sys
from instar.schemachange.launching import SAFELY, environment
program = "import dataclasses, os, instar; print(instar.__file__, os.environ.get('PYTHONPATH'))"
subprocess.run([sys.executable, SAFELY, "-c", program], env=environment(), check=True)
"""


def test_an_installed_package_is_not_put_before_the_standard_library(tmp_path: Path) -> None:
    """What is installed beside it may bear the name of a standard module: old backports do. Nor does the path of it
    reach what the worker runs, a job hook in another Python, say."""
    venv.create(tmp_path, symlinks=True)
    (packages,) = tmp_path.glob("lib/python*/site-packages")
    shutil.copytree(Path(instar.__file__).parent, packages / "instar")
    (packages / "dataclasses.py").write_text("raise ImportError('not this one')")
    (packages / "requirements.pth").write_text(str(Path(msgspec.__file__).parents[1]))
    command = [str(tmp_path / "bin" / "python"), "-P", "-c", CLIENT]
    said = subprocess.run(command, env={}, stdout=subprocess.PIPE, check=True, text=True).stdout
    assert said.split() == [str(packages / "instar" / "__init__.py"), "None"]


def test_no_second_worker_is_started_while_the_first_is_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the processors are busy that takes longer than the time for which a launch is heeded."""
    monkeypatch.setattr(launching, "PROGRAM", ("-c", "import time; time.sleep(60)"))
    monkeypatch.setattr(presence, "LAUNCH_NS", 0)
    with contextlib.closing(open_store(str(tmp_path / "db"), synchronous="off")) as store:
        launcher = launching.WorkerLauncher(store, str(tmp_path / "db"))
        assert not launcher.ensure()
        first = launcher._started
        assert first is not None
        assert not launcher.ensure()
        assert launcher._started is first
        first.kill()
        first.wait()
        assert not launcher.ensure()
        second = launcher._started
        assert second is not None
        assert second is not first
        second.kill()
        second.wait()


def test_a_worker_loads_itself_gently_where_another_process_is_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, said = str(tmp_path / "db"), tmp_path / "said"
    monkeypatch.setattr(
        launching, "PROGRAM", ("-c", f"import sys; open({str(said)!r}, 'a').write(f'{{sys.argv[1:]}}')")
    )
    client = "import instar, sys; instar.connect(sys.argv[1], synchronous=None).execute('CREATE SEQUENCE s')"
    with contextlib.closing(open_store(path, synchronous="off")) as store:
        for others_work in (False, True):
            if others_work:
                subprocess.run([sys.executable, "-c", client, path], check=True, env=launching.environment())
            monkeypatch.setattr(presence, "LAUNCH_NS", 0)  # the one before has announced itself never
            launcher = launching.WorkerLauncher(store, path)
            launcher.ensure()
            assert launcher._started is not None
            launcher._started.wait()
    assert said.read_text() == str([path]) + str([path, OPTION])
