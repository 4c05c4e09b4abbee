"""Work of another library beside the main thread: heard signals, and none that is left behind or waited for in vain."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from instar.sql.beside import run_beside


@pytest.fixture
def alarms() -> Iterator[None]:
    """SIGALRM raises KeyboardInterrupt. Not while garbage is collected: Hypothesis has Python run a function of its own
    then, and what is raised there is lost."""

    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_results_and_failures_come_back() -> None:
    assert run_beside(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        run_beside(lambda: 1 / 0)


@pytest.mark.usefixtures("alarms")
def test_a_signal_leaves_no_work_behind_whenever_it_comes() -> None:
    running = []

    def interrupted(after: float) -> None:
        stopped = threading.Event()

        def work() -> None:
            running.append(after)
            stopped.wait(30)
            running.remove(after)

        signal.setitimer(signal.ITIMER_REAL, after)
        run_beside(work, stopped.set)

    for step in range(1, 100):
        with pytest.raises(KeyboardInterrupt):
            interrupted(step * 4e-6)
        assert not running


@pytest.mark.usefixtures("alarms")
def test_a_signal_at_the_very_end_of_the_work_is_not_waited_for_in_vain() -> None:
    """Work that keeps the interpreter to itself: the signal is heard where the wait for it ends."""

    def work() -> None:
        end = time.perf_counter() + 0.001
        while time.perf_counter() < end:
            pass

    heard = 0
    for _ in range(500):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0009)  # it may be late before the next line, on a busy machine
            run_beside(work)
            time.sleep(0.01)
        except KeyboardInterrupt:
            heard += 1
    assert heard == 500


# The first analytic query of a process, interrupted while DuckDB is being loaded; then another.
LOADING = """
import signal, sys, instar

def interrupt(number, frame):
    raise KeyboardInterrupt

connection = instar.connect(":memory:", autocommit=True)
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]))
query = "SELECT count(*) FROM generate_series(1, 20000) g"
try:
    connection.execute(query)
    signal.pause()
except KeyboardInterrupt:
    print(connection.execute(query).fetchall())
"""


@pytest.mark.parametrize("after", [0.02, 0.06, 0.12])
def test_a_signal_while_the_library_is_loaded_does_not_break_it(after: float) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADING, str(after)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "[(20000,)]\n"), done.stderr
