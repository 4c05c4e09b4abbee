"""The views instar.servers, instar.schema_versions and instar.metadata_cache."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import instar
from support.databases import Engine, rows, run, value
from support.servers import LEASE, Servers


def test_versions_are_listed_with_what_made_them() -> None:
    one = Servers().server()
    run(one, "CREATE TABLE t (id int PRIMARY KEY,  a int)", "ALTER TABLE t DROP COLUMN a")
    found = rows(one, "SELECT version, change, abrupt FROM instar.schema_versions ORDER BY version")
    assert found[0] == (1, "a new database", False)
    assert found[1] == (2, "CREATE TABLE t (id int PRIMARY KEY, a int)", False)
    assert found[-1][2] is True
    assert "DROP COLUMN" in found[-1][1]
    assert value(one, "SELECT count(*) FROM instar.schema_versions WHERE committed_at > '2023-11-14'") == len(found)


def test_a_server_says_its_version_and_lease() -> None:
    servers = Servers()
    one = servers.server()
    run(one, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    version = value(one, "SELECT max(version) FROM instar.schema_versions")
    ((pid, seen, until, worker, mine),) = rows(
        one, "SELECT pid, schema_version, lease_until, is_worker, is_self FROM instar.servers"
    )
    assert (pid, seen, worker, mine) == (os.getpid(), version, False, True)
    assert until.timestamp() == servers.clock.wall / 1e9 + LEASE
    assert value(one, f"SELECT servers FROM instar.schema_versions WHERE version = {version}") == 1
    servers.clock.advance(3 * LEASE)
    ((now_until,),) = rows(one, "SELECT lease_until FROM instar.servers")
    assert now_until == until  # of an idle server it has run out


def test_without_leases_there_is_no_lease_to_show(tmp_path: Path) -> None:
    one = instar.connect(tmp_path / "db", synchronous="off", autocommit=True)
    run(one, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    assert rows(one, "SELECT schema_version, lease_until FROM instar.servers") == [(2, None)]
    assert rows(one, "SELECT servers FROM instar.schema_versions ORDER BY version") == [(0,), (1,)]
    one.close()


def test_the_metadata_cache_is_shown(engine: Engine) -> None:
    one = engine.connect()
    run(
        one,
        "CREATE TABLE t (id int PRIMARY KEY, a int)",
        "CREATE VIEW v AS SELECT a FROM t",
        "ALTER TABLE t ADD COLUMN b int",
        "DROP VIEW v",
        "CREATE VIEW v AS SELECT b FROM t",
    )
    rows(one, "SELECT * FROM v")
    shown = rows(
        one, "SELECT kind, name, versions, payloads, bytes, changed_at < now(), last_used_at IS NULL "
        "FROM instar.metadata_cache ORDER BY kind, name, id"
    )  # fmt: skip
    by_name = {(kind, name): rest for kind, name, *rest in shown}
    assert {("table", "t"), ("view", "v"), ("name", "t"), ("name", "v"), ("name", "t_pkey")} <= by_name.keys()
    versions, payloads, size, _, never = by_name["table", "t"]
    assert versions >= payloads >= 1
    assert size > 0
    assert never is False
    # Of the two views that bore the name, it is with the one that has it.
    (bearer,) = rows(one, "SELECT id FROM instar.metadata_cache WHERE kind = 'name' AND name = 'v'")
    assert [bearer] == rows(one, "SELECT id FROM instar.views WHERE name = 'v'")


def test_the_limit_of_the_metadata_cache(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    one = instar.connect(path, synchronous="off", autocommit=True, metadata_cache_bytes=50_000)
    run(one, *[f"CREATE TABLE t{number} (id int PRIMARY KEY, a int)" for number in range(60)])
    for number in range(60):
        assert value(one, f"SELECT count(*) FROM t{number}") == 0
    assert value(one, "SHOW metadata_cache_bytes") == "50000"
    assert 0 < value(one, "SELECT sum(bytes) FROM instar.metadata_cache") <= 50_000
    instar.connect(path, synchronous=None).close()
    refused: list[tuple[Any, str]] = [(60_000, "55000"), (-1, "22023"), ("1", "22023"), (True, "22023")]
    for other, sqlstate in refused:
        with pytest.raises(instar.Error) as caught:
            instar.connect(path, synchronous=None, metadata_cache_bytes=other)
        assert caught.value.sqlstate == sqlstate
    one.close()
