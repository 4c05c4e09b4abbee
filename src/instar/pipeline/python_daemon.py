"""What Spark forks its Python workers from: PySpark's daemon, which has loaded what tasks need before it forks.

PySpark's own leaves it to each worker to load PySpark, Arrow and Instar, and PySpark out of an archive that knows no
compiled files: more than a second of computing, beside the foreground, for every worker that there ever is.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from instar.gently import set_aside

# By the module that a daemon's workers run: what they will load. (Those of other modules live for one question.)
_TASKS = tuple(
    f"instar.pipeline.{name}"
    for name in ("backfill", "check_source", "datasource", "image", "reference_join", "rewriting", "validation")
)
_LOADED = {"pyspark.worker": ("pyarrow", "pyspark.sql.pandas.serializers", *_TASKS)}


def installed_first(path: list[str]) -> list[str]:
    """A search path without the archives of PySpark that lie in the PySpark which is found without them."""
    rest = [entry for entry in path if not entry.endswith(".zip")]
    found = PathFinder.find_spec("pyspark", rest)
    if found is None or found.origin is None:
        return path
    archives = Path(found.origin).parent / "python" / "lib"
    return [entry for entry in path if not (entry.endswith(".zip") and Path(entry).resolve().parent == archives)]


def main(worker_module: str) -> None:
    """Serve Spark until it closes standard input; the workers run `worker_module`."""
    sys.path[:] = installed_first(sys.path)
    for name in (worker_module, *_LOADED.get(worker_module, ())):
        importlib.import_module(name)
    # Its workers look for garbage after each task, and share with each other what nobody writes to.
    set_aside()
    sys.argv[1:] = [worker_module]
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])
