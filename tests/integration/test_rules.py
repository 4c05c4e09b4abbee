"""The rules of the commit (docs/architecture/rules.md, 10 to 18) in whole databases: each schedule goes well, and does
the damage that the rule speaks of once the rule is switched off.

Where the rule is about leases (17) there is nothing to run here. Of rule 11 the half without leases
is here: a snapshot's schema comes from the header that its timestamp comes from, so what it writes over is never newer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from instar.catalog import changes
from instar.catalog.changes import CatalogParts
from instar.clock import SystemClock
from instar.database import Database
from instar.dbapi import Connection
from instar.schemachange import rules
from instar.store import MemoryStore, apply, open_store
from instar.store.engine import Commit, Store, TableHeader
from instar.store.records import decode_table_header, table_key
from instar.store.section import WriteSection
from support.databases import fails, general_commits, rows, run, value

Patch = pytest.MonkeyPatch


@pytest.fixture(params=["memory", "lmdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = MemoryStore() if request.param == "memory" else open_store(tmp_path / "db", synchronous="off")
    yield made
    made.close()


@pytest.fixture
def servers(store: Store) -> Iterator[tuple[Connection, Connection]]:
    """Two servers of one store, each with a cache of its own, as two processes have."""
    databases = [Database(store, ":memory:", SystemClock()) for _ in range(2)]
    one, two = [Connection(database, autocommit=True, settings={}) for database in databases]
    run(one, "create table t (id int primary key, a int, b text)")
    yield one, two
    for database in databases:
        database.sequences.close()  # while there is a store: the first connection to be closed closes it
    one.close()
    two.close()


def between(store: Store, patch: Patch, action: Callable[[], object]) -> None:
    """Have `action` happen once: after the next commit was derived, before it is judged."""
    general_commits(patch)
    commit = store.commit

    def later(request: Commit) -> int:
        patch.setattr(store, "commit", commit)
        action()
        return commit(request)

    patch.setattr(store, "commit", later)


def header(store: Store, table: int) -> TableHeader:
    with store.read() as reader:
        stored = reader.get(table_key(table))
    assert stored is not None
    return decode_table_header(stored)


def judge_no_rows(section: WriteSection, written: object) -> None:
    """Rule 10 switched off."""


def judge_no_fence(section: WriteSection, request: Commit) -> None:
    """Rules 6, 12, 16 switched off."""


# --- rule 10 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [True, False])
def test_rule_10_what_was_derived_stands_only_on_the_same_bytes(
    servers: tuple[Connection, Connection], store: Store, monkeypatch: Patch, rule: bool
) -> None:
    one, two = servers
    run(one, "insert into t values (1, 0)")
    if not rule:
        monkeypatch.setattr(apply, "_judge_rows", judge_no_rows)
    between(store, monkeypatch, lambda: run(two, "update t set a = a + 1 where b is null"))
    run(one, "update t set a = a + 1 where b is null")
    assert value(one, "select a from t") == (2 if rule else 1)  # else an update is lost


# --- rule 11 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [True, False])
def test_rule_11_a_value_of_a_new_column_is_not_written_over_in_an_older_layout(
    servers: tuple[Connection, Connection], store: Store, monkeypatch: Patch, rule: bool
) -> None:
    one, two = servers
    run(one, "insert into t values (1, 0)")
    if not rule:
        monkeypatch.setattr(apply, "_judge_rows", judge_no_rows)
    newer = ("alter table t add column c int default 7", "update t set c = 42 where b is null")
    between(store, monkeypatch, lambda: run(two, *newer))
    run(one, "update t set a = a + 1 where b is null")
    assert rows(one, "select a, c from t") == [(1, 42 if rule else 7)]  # else the column's value is gone


# --- rule 12 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [True, False])
def test_rule_12_a_floor_never_falls(
    servers: tuple[Connection, Connection], store: Store, monkeypatch: Patch, rule: bool
) -> None:
    """Compatible steps after an incompatible one let nobody in whom that one has shut out."""
    one, two = servers
    run(one, "insert into t values (1, 0, 'kept')")
    if not rule:
        falling = rules.FloorRule("off", "Steps that demand nothing let everybody in.", lambda before, after: 1)
        monkeypatch.setattr(rules, "FLOOR_RULES", (falling,))
    later = ("alter table t drop column b", "alter table t add column c int", "alter table t rename column c to d")
    between(store, monkeypatch, lambda: run(two, *later))
    if rule:
        with fails("42703", "b"):
            run(one, "insert into t (id, a, b) values (2, 0, 'lost')")
    else:
        run(one, "insert into t (id, a, b) values (2, 0, 'lost')")  # accepted, and read by nobody
    assert value(one, "select count(*) from t") == (1 if rule else 2)
    with store.read() as reader:
        table = one.database.catalog.at(reader).lookup("public", "t")
    assert table is not None
    floor = header(store, table.id).floor  # type: ignore[union-attr]  # no system view
    run(one, "alter table t rename column d to e")
    assert header(store, table.id).floor == floor  # type: ignore[union-attr]


# --- rule 13 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [True, False])
def test_rule_13_an_index_that_nobody_keeps_any_more_proves_nothing(
    servers: tuple[Connection, Connection], store: Store, monkeypatch: Patch, rule: bool
) -> None:
    one, two = servers
    run(two, "create table seen (n int)", "create index ta on t (a)")
    run(one, "begin isolation level serializable")
    assert rows(one, "select id from t where a = 7") == []
    run(one, "insert into seen values (0)")
    if not rule:
        monkeypatch.setattr(apply, "_judge_fence", judge_no_fence)
    between(store, monkeypatch, lambda: run(two, "drop index ta", "insert into t values (1, 7)"))
    if rule:
        with fails("40001", '"t"', '"ta"'):
            one.execute("commit")
    else:
        one.execute("commit")  # although what it says it has seen is no longer so
    assert rows(two, "select n from seen") == ([] if rule else [(0,)])


# --- rule 14 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["at the next statement", "at the commit", "after a savepoint"])
def test_rule_14_what_was_meant_under_one_schema_is_not_committed_under_another(
    servers: tuple[Connection, Connection], way: str
) -> None:
    one, two = servers
    run(one, "begin", "insert into t values (1, 1, 'b')", "savepoint s")
    if way == "after a savepoint":
        # Compatible: the buffer goes to the new schema with the next statement, and back with ROLLBACK TO.
        run(two, "alter table t add column c int default 7")
        run(one, "insert into t values (2, 2, 'b', 8)", "rollback to s")
    run(two, "alter table t drop column b")
    if way == "at the next statement":
        with fails("40001", "drop column"):
            run(one, "select * from t")
        return
    with fails("40001", "drop column"):
        run(one, "commit")
    assert rows(two, "select * from t") == []


def test_rule_14_a_compatible_step_leaves_what_was_meant(servers: tuple[Connection, Connection]) -> None:
    one, two = servers
    run(one, "begin", "insert into t values (1, 1, 'b')", "savepoint s")
    run(two, "alter table t add column c int default 7")
    run(one, "update t set c = 8", "rollback to s", "insert into t values (2, 2, 'b', 9)")
    run(two, "alter table t rename column a to z", "alter table t alter z type bigint")
    run(one, "commit")
    assert rows(one, "select id, z, c from t order by id") == [(1, 1, 7), (2, 2, 9)]


# --- rule 15 ---------------------------------------------------------------------------------------------------------


def test_rule_15_one_overlay_for_keys_indexes_and_batches(servers: tuple[Connection, Connection]) -> None:
    one, _two = servers
    run(one, "create index ta on t (a)", "insert into t values (1, 1), (2, 2), (3, 3)", "begin")
    run(one, "update t set a = a + 1", "delete from t where a = 3", "insert into t values (4, 3)")
    by_key = [found for number in range(6) for found in rows(one, "select id, a from t where id = $1", number)]
    by_index = rows(one, "select id, a from t where a >= 0 order by a, id")
    in_batches = rows(one, "select id, sum(a) over (partition by id) from t order by id")
    assert by_key == sorted(by_index) == in_batches == [(1, 2), (3, 4), (4, 3)]
    run(one, "insert into t select id + 10, a from t")  # and does not meet what it writes
    assert value(one, "select count(*) from t") == 6
    with fails("23505"):
        run(one, "update t set id = 1")
    run(one, "rollback")
    assert value(one, "select sum(a) from t") == 6


# --- rule 16 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [True, False])
def test_rule_16_the_list_of_checks_is_the_one_that_was_evaluated(
    servers: tuple[Connection, Connection], store: Store, monkeypatch: Patch, rule: bool
) -> None:
    one, two = servers
    if not rule:
        monkeypatch.setattr(apply, "_judge_fence", judge_no_fence)
    between(store, monkeypatch, lambda: run(two, "alter table t add check (a > 0)"))
    if rule:
        with fails("23514"):
            run(one, "insert into t values (1, 0)")
        return
    run(one, "insert into t values (1, 0)")
    problems = [problem[-1] for problem in rows(one, "check database")]
    assert any("violates check constraint" in problem for problem in problems), problems


# --- rule 18 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [True, False])
def test_rule_18_the_catalog_version_moves_with_what_plans_are_made_from(
    servers: tuple[Connection, Connection], monkeypatch: Patch, rule: bool
) -> None:
    one, two = servers
    run(one, "insert into t values (1, 5)")
    lookup, update = "select a from t where id = ?", "update t set a = a + 1 where id = ?"
    for _ in range(3):  # until the shortest ways are taken
        assert value(one, lookup, 1) == value(one, "select sum(a) from t")
        one.execute(update, (1,))
    if not rule:
        add_to = CatalogParts.add_to

        def unmoved(self: CatalogParts, request: Commit) -> None:
            add_to(self, request)
            request.bump_catalog = False

        monkeypatch.setattr(changes.CatalogParts, "add_to", unmoved)
    run(two, "truncate t")
    # Else the other server goes on in the rowset that was swapped out.
    assert rows(one, lookup, 1) == ([] if rule else [(8,)])
    assert one.execute(update, (1,)).rowcount == (0 if rule else 1)


def test_rule_18_names_that_were_looked_up_in_vain(servers: tuple[Connection, Connection]) -> None:
    one, two = servers
    for _ in range(2):
        with fails("42P01"):
            rows(one, "select * from later")
    run(two, "create view later as select id from t")
    assert rows(one, "select * from later") == []
    run(two, "drop view later", "create table later (x int)", "insert into later values (3)")
    assert rows(one, "select * from later") == [(3,)]
