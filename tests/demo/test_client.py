"""A client of the demonstration as a process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Starts a client as the demonstration does, which then does nothing, tells who it is, and waits to be killed.
PARENT = """
import multiprocessing, os, time
from demo import client

def idle(pipe):
    client._prepare()
    pipe.send(os.getpid())
    time.sleep(60)

if __name__ == "__main__":
    here, there = multiprocessing.Pipe()
    multiprocessing.get_context("spawn").Process(target=idle, args=(there,), daemon=True).start()
    print(here.recv(), flush=True)
    time.sleep(60)
"""


def test_a_client_ends_with_the_demonstration_even_if_that_is_killed(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        client = int(parent.stdout.readline())
        parent.kill()
        parent.wait()  # not for the end of its output, which the client has too
        try:
            until = time.monotonic() + 10
            while Path(f"/proc/{client}").exists():
                assert time.monotonic() < until
                time.sleep(0.01)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(client, signal.SIGKILL)
