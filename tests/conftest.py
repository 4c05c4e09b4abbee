"""What every test shares: Hypothesis' profiles, and one process for all that starts Spark."""

from __future__ import annotations

import functools
import gc
import os
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler.loadscope import LoadScopeScheduling

from instar import scheduling
from instar.schemachange import launching

# No deadlines: the machine is shared, and a hang is caught by pytest's own timeout. "ci" draws the same examples every
# time, so that a red run says something about the change and nothing about luck; "thorough" is for a night's search.
_UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("dev", _UNHURRIED, max_examples=50)
settings.register_profile("ci", _UNHURRIED, max_examples=50, derandomize=True, database=None, print_blob=True)
settings.register_profile("thorough", _UNHURRIED, max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


# Of the cases of one function: so many that the processes end at about the same time.
_BUNDLES = 16


class OneForSpark(LoadScopeScheduling):
    """Hands out tests, but those of files that start Spark to one process: one JVM, not two, which begins first.

    The node ids are all that the process which hands them out knows: `--dist loadgroup` would find the group in them,
    but pytest-xdist 3.8 cannot put it there under pytest 9.2.

    A function's cases go in bundles: with ten thousand single ones it would spend ten seconds on counting what is left.
    """

    def _split_scope(self, nodeid: str) -> str:
        if starts_spark(self.config.rootpath / nodeid.partition("::")[0]):
            return "spark"
        function, case, _ = nodeid.partition("[")
        return f"{function}[{zlib.crc32(nodeid.encode()) % _BUNDLES}]" if case else function


@functools.cache
def starts_spark(path: Path) -> bool:
    """Whether a file has tests marked `spark`."""
    return "pytest.mark.spark" in path.read_text(encoding="utf-8")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneForSpark:
    """Whatever `--dist` says."""
    return OneForSpark(config, log)


# The worker that a database starts, and Spark, as they are but for standing back: beside other tests, which never end,
# that leaves a worker a tenth of a processor, where loading alone takes a second of one, and Spark nothing at all.
_EQUALS = "import os; from instar import scheduling; scheduling.STANDS_BACK = os.SCHED_BATCH"
scheduling.STANDS_BACK = os.SCHED_BATCH
_MAIN = "import sys; from instar.worker.process import main; sys.exit(main(sys.argv[1:]))"
launching.PROGRAM = ("-c", f"{_EQUALS}; {_MAIN}")

# Python's are 700, 10, 10. Tests make and drop whole databases: a sixth of their time went into looking for what is
# garbage among what is in use, for little memory (157 MB become 165 MB).
_COLLECTIONS = (5_000, 20, 50)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Ten thousand tests and all modules stay to the end: Python's collector would go through them again and again,
    which takes a fifth of the time. And it comes less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTIONS)


def pytest_sessionfinish() -> None:
    """What was kept is let go: libraries complain at the end about what is left of theirs."""
    gc.unfreeze()


_PRIORITY = os.getpriority(os.PRIO_PROCESS, 0)


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Nobody gets a priority back: all tests after this one would run at the lower one, and starve beside others."""
    if os.getpriority(os.PRIO_PROCESS, 0) != _PRIORITY:
        pytest.exit(f"{item.nodeid} has lowered the priority of the test process")
