"""One Spark session for the whole directory: starting it takes longer than all that the tests do with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from instar.pipeline import session
from instar.pipeline.session import activate, spark_session, stop_session
from pipeline.small_database import SmallDatabase


@pytest.fixture(scope="session")
def _session() -> Iterator[None]:
    # Tasks import what tests hand to them by name.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, Path(__file__).parents[1:3])))
        patch.setattr(session, "TASK_ATTEMPTS", 2)  # what fails for good does so sooner
        yield
        stop_session()


@pytest.fixture
def spark(_session: None) -> Any:
    """Instar's own Spark session, with two tasks at a time; another one after a test has killed its JVM."""
    made = spark_session("local[2]", "512m")
    activate(made)  # the thread of a job may have started it
    return made


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SmallDatabase]:
    """An empty database."""
    made = SmallDatabase(tmp_path / "store")
    yield made
    made.close()
