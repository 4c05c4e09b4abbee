"""Opening a database."""

from __future__ import annotations

from pathlib import Path

import pytest

import instar
from support.databases import run


def test_a_path_that_no_file_can_have_is_an_error_of_instars_own() -> None:
    with pytest.raises(instar.Error, match="null characters") as caught:
        instar.connect("a\0b")
    assert caught.value.sqlstate == "22023"


def test_a_log_that_has_outgrown_its_bound_has_a_worker_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small the bound is: nobody else would cut it, and what is slowest loose."""
    connection = instar.connect(tmp_path / "db", synchronous="off", autocommit=True, log_max_bytes=1 << 16)
    database = connection.database
    started: list[str] = []

    def ensure(*_launcher: object) -> bool:
        started.append("worker")
        return True

    monkeypatch.setattr(database._launcher, "ensure", ensure)
    run(connection, "CREATE TABLE t (a int PRIMARY KEY, b text)")
    database.look_after()
    assert started == []
    connection.executemany("INSERT INTO t VALUES (?, ?)", [(a, "b" * 100) for a in range(1000)])
    run(connection, "UPDATE t SET b = 'c'")
    assert database.store.log_bytes() > 1 << 16
    database.look_after()
    assert started == ["worker"]
    connection.close()
