"""Spark's Python workers begin with what they need, out of the files that are installed."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest

from instar.pipeline.arrow_tasks import frame_of
from instar.pipeline.python_daemon import installed_first

SPARK = Path(pyspark.__file__).parent
ARCHIVE = str(SPARK / "python" / "lib" / "pyspark.zip")
INSTALLED = str(SPARK.parent)


def report(told: bytes, place: int) -> Iterator[pa.RecordBatch]:
    """What a task finds when it begins."""
    found = {
        "pyspark": sys.modules["pyspark"].__file__,
        "kept": gc.get_freeze_count(),
        "safe": bool(sys.flags.safe_path),
        # Loaded before this module, which is the first that the worker itself has loaded.
        "loaded": list(sys.modules)[: list(sys.modules).index(__name__)],
    }
    yield pa.RecordBatch.from_pydict({"found": [json.dumps(found)]})


@pytest.mark.spark
def test_a_worker_has_what_tasks_need_before_its_first_one(spark: Any) -> None:
    (row,) = frame_of(spark, report, b"", 1, "found string").collect()
    found = json.loads(row.found)
    assert Path(found["pyspark"]).parent == SPARK
    assert found["kept"] > 10_000
    needed = {"pyspark.worker", "pyarrow", "instar.pipeline.backfill", "instar.pipeline.rewriting"}
    assert needed <= set(found["loaded"])
    assert found["safe"]  # a random.py where somebody has started from would be taken for Python's


def test_archives_give_way_to_the_pyspark_that_they_lie_in() -> None:
    path = ["/src", ARCHIVE, "/lib/other.zip", INSTALLED]
    assert installed_first(path) == ["/src", "/lib/other.zip", INSTALLED]


@pytest.mark.parametrize("elsewhere", [False, True], ids=["nothing installed", "another one installed"])
def test_archives_stay_where_it_is_not_that_pyspark_which_is_installed(tmp_path: Path, elsewhere: bool) -> None:
    """On a cluster, Spark's own archives have the version of its JVM."""
    (tmp_path / "pyspark").mkdir()
    if elsewhere:
        (tmp_path / "pyspark" / "__init__.py").touch()
    path = ["/src", ARCHIVE, str(tmp_path)]
    assert installed_first(path) == path
