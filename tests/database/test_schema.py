"""Schema changes of a session, as far as they depend on what is around it: the worker, and the disk."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import instar
from instar.database import schema

ROWS = 20_000


@contextmanager
def files_may_not_grow(path: Path) -> Iterator[None]:
    """No file may become larger than the data file is: for this process, and for those that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(path / "data.mdb"), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_an_index_build_that_meets_a_full_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker cannot write down why it fails; whoever waits is told all the same, and nothing is damaged."""
    monkeypatch.setattr(schema, "_UNATTENDED_SECONDS", 1.0)
    path = tmp_path / "db"
    with instar.connect(path, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(number, f"{number:040}") for number in range(ROWS)])
        with files_may_not_grow(path), pytest.raises(instar.Error) as caught:
            connection.execute("CREATE INDEX i ON t (a)")
        assert caught.value.sqlstate == "53100"
        assert connection.execute("SELECT count(*) FROM t WHERE a >= ''").fetchone() == (ROWS,)
        assert connection.execute("CHECK DATABASE").fetchall() == []


def test_a_check_survives_the_rename_of_its_table() -> None:
    with instar.connect(":memory:", autocommit=True) as connection:
        connection.execute("CREATE TABLE t (a integer CHECK (t.a > 0))")
        connection.execute("ALTER TABLE t RENAME TO u")
        connection.execute("INSERT INTO u VALUES (1)")
        with pytest.raises(instar.Error) as caught:
            connection.execute("INSERT INTO u VALUES (0)")
        assert caught.value.sqlstate == "23514"
        assert connection.execute("CHECK DATABASE").fetchall() == []
