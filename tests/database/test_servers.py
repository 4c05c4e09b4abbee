"""The views instar.servers and instar.schema_versions."""

from __future__ import annotations

import os
from pathlib import Path

import instar
from support.databases import rows, run, value
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
