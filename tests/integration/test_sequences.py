"""Sequences beside transactions and other processes: nextval is for good, a restart belongs to its transaction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import instar
from instar.clock import SystemClock
from instar.database import Database
from instar.dbapi import Connection
from instar.store import open_store
from support.databases import Engine, fails, rows, run, value


def next_of(connection: Connection, name: str = "q") -> int:
    found = value(connection, f"select nextval('{name}')")
    assert isinstance(found, int)
    return found


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[tuple[Connection, Connection]]:
    """Connections of two databases that have nothing in common but the store, as two processes have."""
    path = str(tmp_path / "db")
    engine = Engine(path)
    other = Connection(Database(open_store(path), path, SystemClock()), autocommit=True, settings={})
    yield engine.connect(), other
    other.close()
    engine.close()


def test_a_restart_belongs_to_its_transaction(engine: Engine) -> None:
    connection, other = engine.connect(), engine.connect()
    run(connection, "create sequence q")
    assert [next_of(connection) for _ in range(3)] == [1, 2, 3]
    run(connection, "begin", "alter sequence q restart with 100")
    # Whoever restarts sees it at once, all others when it is committed.
    assert [next_of(connection), next_of(other), next_of(connection)] == [100, 4, 101]
    run(connection, "rollback")
    assert next_of(connection) == 5
    run(connection, "begin", "savepoint s", "alter sequence q restart with 100", "rollback to s")
    assert next_of(connection) == 6
    run(connection, "alter sequence q restart with 200")
    assert [next_of(connection), next_of(other)] == [200, 7]
    run(connection, "commit")
    assert [next_of(other), next_of(connection)] == [201, 202]
    run(connection, "alter sequence q restart")
    assert [next_of(other), next_of(connection)] == [1, 2]


def test_truncate_restarts_what_its_tables_own(engine: Engine) -> None:
    connection = engine.connect()
    run(
        connection,
        "create table t (id int generated always as identity (start with 10) primary key, s serial, v text)",
        "insert into t (v) values ('a'), ('b')",
        "begin",
        "truncate t restart identity",
        "insert into t (v) values ('c')",
    )
    assert rows(connection, "select id, s, v from t") == [(10, 1, "c")]
    run(connection, "rollback", "insert into t (v) values ('d')")
    assert rows(connection, "select id, s, v from t order by id") == [(10, 1, "a"), (11, 2, "b"), (12, 3, "d")]
    run(connection, "truncate t", "insert into t (v) values ('e')")
    assert rows(connection, "select id, s from t") == [(13, 4)]
    run(connection, "truncate t restart identity", "insert into t (v) values ('f')")
    assert rows(connection, "select id, s from t") == [(10, 1)]
    assert rows(connection, "check database") == []


def test_other_processes_leave_their_blocks_when_a_restart_is_committed(
    elsewhere: tuple[Connection, Connection],
) -> None:
    connection, other = elsewhere
    run(connection, "create sequence q", "create table t (id serial primary key, v int)")
    assert next_of(connection) == 1
    assert next_of(other) > 1
    run(other, "insert into t (v) values (1)")
    # A snapshot is of rows: nextval is the newest sequence's, whatever the snapshot.
    run(other, "begin isolation level repeatable read", "select * from t")
    run(connection, "begin", "alter sequence q restart with 1000")
    assert next_of(other) < 1000
    run(connection, "commit")
    assert next_of(other) >= 1000
    run(other, "commit")
    run(connection, "truncate t restart identity")
    run(other, "insert into t (v) values (2)")
    assert rows(connection, "select * from t") == [(1, 2)]


def test_of_two_restarts_at_once_one_stands(engine: Engine) -> None:
    one, two = engine.connect(), engine.connect()
    run(one, "create sequence q", "begin", "alter sequence q restart with 10")
    run(two, "begin", "alter sequence q restart with 20")
    assert [next_of(one), next_of(two)] == [10, 20]
    run(one, "commit")
    with fails("40001", '"q"'):
        run(two, "commit")
    assert [next_of(one), next_of(two)] == [11, 12]


def test_a_value_that_was_reserved_within_other_bounds_is_not_handed_out(engine: Engine) -> None:
    connection = engine.connect()
    run(connection, "create sequence q")
    assert [next_of(connection) for _ in range(40)] == list(range(1, 41))
    run(connection, "alter sequence q maxvalue 42")
    assert [next_of(connection), next_of(connection)] == [41, 42]
    with fails("2200H", "maximum value", "42"):
        next_of(connection)
    connection.rollback()
    run(connection, "alter sequence q maxvalue 44")
    assert next_of(connection) == 43
    with fails("22023", "RESTART value (43) cannot be greater than MAXVALUE (30)"):
        run(connection, "alter sequence q maxvalue 30 cycle")
    connection.rollback()
    with fails("22023", "RESTART value (43) cannot be less than MINVALUE (50)"):
        run(connection, "alter sequence q minvalue 50 maxvalue 60 start 50")
    connection.rollback()
    run(connection, "alter sequence q maxvalue 30 cycle restart 30")
    assert [next_of(connection), next_of(connection)] == [30, 1]


def test_the_next_value_is_as_far_from_the_last_as_the_increment_is_then(engine: Engine) -> None:
    connection = engine.connect()
    run(connection, "create sequence q")
    assert [next_of(connection) for _ in range(5)] == [1, 2, 3, 4, 5]
    run(connection, "alter sequence q increment -1")
    assert next_of(connection) == 4
    run(connection, "alter sequence q increment 100")
    assert [next_of(connection), next_of(connection)] == [104, 204]
    run(connection, "create sequence up")
    assert [next_of(connection, "up"), next_of(connection, "up")] == [1, 2]
    run(connection, "begin", "alter sequence up increment 1000")
    assert next_of(connection, "up") == 1002
    run(connection, "rollback")
    assert next_of(connection, "up") == 1003
    run(connection, "alter sequence up increment 10")
    assert [next_of(connection, "up"), next_of(connection, "up")] == [1013, 1023]
    run(connection, "create sequence fresh", "alter sequence fresh increment 10")
    assert [next_of(connection, "fresh"), next_of(connection, "fresh")] == [1, 11]


def test_no_value_comes_twice_when_the_increment_changes_beside_other_processes(
    elsewhere: tuple[Connection, Connection],
) -> None:
    connection, other = elsewhere
    run(connection, "create sequence q")
    seen: list[int] = []
    for increment in (1, 10, 3, 1, 100, 7):
        run(other, f"alter sequence q increment {increment}")
        seen += [next_of(found) for _ in range(40) for found in (connection, other, other)]
    assert len(set(seen)) == len(seen)


def test_start_is_for_the_next_restart(engine: Engine) -> None:
    connection = engine.connect()
    run(connection, "create sequence q", "alter sequence q start 7")
    assert next_of(connection) == 1
    run(connection, "alter sequence q restart")
    assert next_of(connection) == 7
    lowest = -(2**63)
    run(connection, f"create sequence low increment -1 minvalue {lowest} start {lowest}")
    assert next_of(connection, "low") == lowest
    with fails("2200H", "minimum value"):
        next_of(connection, "low")


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("nullif(nextval('s'), 0)", 1),
        ("nullif(nextval('s'), 1)", None),
        ("nullif(nextval('s'), NULL)", 1),
        ("CASE nextval('s') WHEN NULL THEN 0 WHEN 2 THEN 20 WHEN 1 THEN 10 END", 10),
        ("CASE nextval('s')::int WHEN 7.5 THEN 'a' WHEN 8 THEN 'b' ELSE 'c' END", "c"),
        ("CASE nullif(nextval('s'), 5) WHEN 1 THEN nullif(nextval('s'), 3) END", 2),
        ("coalesce(nullif((SELECT nextval('s')), 1), -1)", -1),
        ("CASE WHEN nullif(nextval('s'), 0) = 1 THEN 'one' END", "one"),
    ],
)
def test_a_volatile_operand_is_evaluated_once(sql: str, found: object) -> None:
    with instar.connect(":memory:", autocommit=True) as connection:
        run(connection, "CREATE SEQUENCE s")
        assert value(connection, f"SELECT {sql}") == found
        used = 2 if sql.count("nextval") > 1 else 1
        assert value(connection, "SELECT nextval('s')") == used + 1


def test_what_a_default_or_a_view_evaluates_once_is_kept_so(tmp_path: Path) -> None:
    """Also once it has been written back, and read again by another process."""
    path = tmp_path / "db"
    with instar.connect(path, autocommit=True, synchronous="off") as connection:
        run(connection, "CREATE SEQUENCE s", "CREATE TABLE t (id int, a bigint DEFAULT nullif(nextval('s'), 2))")
        case = "CASE nextval('s') WHEN 3 THEN 'three' WHEN 4 THEN 'four' ELSE 'more' END"
        run(connection, f"CREATE VIEW v AS SELECT {case} AS c")
    with instar.connect(path, autocommit=True, synchronous="off") as connection:
        run(connection, "INSERT INTO t (id) VALUES (1), (2)")
        assert rows(connection, "SELECT a FROM t ORDER BY id") == [(1,), (None,)]
        assert [value(connection, "SELECT c FROM v") for _ in range(3)] == ["three", "four", "more"]


def test_a_session_is_told_what_it_has_drawn_itself(engine: Engine) -> None:
    connection, other = engine.connect(), engine.connect()
    run(connection, "create sequence q", "create table t (id serial primary key, v int)", "create table p (v bigint)")
    run(other, "insert into t (v) values (0)")
    assert next_of(other) == 1
    with fails("55000", "lastval is not yet defined in this session"):
        connection.execute("select lastval()")
    with fails("55000", 'currval of sequence "q" is not yet defined in this session'):
        connection.execute("select currval('q')")
    assert rows(connection, "select nextval('q'), currval('q'), lastval()") == [(2, 2, 2)]
    # The short way of a write as well as the general one, in a transaction or not; a rollback takes nothing back.
    for number, opened in enumerate([False, False, False, True, True, True], 2):
        run(connection, *(["begin"] if opened else []))
        connection.execute("insert into t (v) values (?)", (number,))
        connection.execute("insert into p values (currval('t_id_seq'))")
        run(connection, *(["rollback"] if opened else []))
        assert rows(connection, "select lastval(), currval('t_id_seq'), currval('q')") == [(number, number, 2)]
    assert rows(connection, "select v from p order by v") == [(2,), (3,), (4,)]
    connection.executemany("insert into t (v) values (?)", [(0,)] * 3)
    assert value(connection, "select lastval()") == value(connection, "select max(id) from t")
    run(connection, "drop table t")
    with fails("55000", "lastval"):
        connection.execute("select lastval()")
    assert value(connection, "select currval('q')") == 2


def test_a_load_into_an_empty_table_counts_as_drawing(engine: Engine) -> None:
    connection = engine.connect()
    run(connection, "create table t (id serial primary key, v int)")
    connection.executemany("insert into t (v) values (?)", [(number,) for number in range(20_000)])
    assert value(connection, "select lastval()") == 20_000


def test_setval_is_for_all_at_once_and_for_good(elsewhere: tuple[Connection, Connection]) -> None:
    connection, other = elsewhere
    run(connection, "create sequence q", "create table t (id serial primary key, v int)")
    assert [next_of(connection), next_of(other)] == [1, 33]
    for _ in range(3):
        connection.execute("insert into t (v) values (1)")
    run(connection, "begin")
    assert value(connection, "select setval('q', 1000)") == 1000
    run(connection, "rollback")
    assert next_of(other) == 1001
    assert next_of(connection) > 1001
    assert value(other, "select setval('q', 500, false)") == 500
    assert value(other, "select currval('q')") == 1001
    assert next_of(connection) == 500
    assert 500 < next_of(other) < 1000
    # What a load has brought along, given keys of its own: nobody meets them, whatever blocks there are.
    run(other, "insert into t values (40, 0), (41, 0)", "select setval('t_id_seq', max(id)) from t")
    connection.execute("insert into t (v) values (1)")
    other.execute("insert into t (v) values (1)")
    found = [number for (number,) in rows(connection, "select id from t order by id")]
    assert found[:6] == [1, 2, 3, 40, 41, 42]
    assert len(found) == 7


def test_setval_leaves_what_a_block_had_left(elsewhere: tuple[Connection, Connection]) -> None:
    """Neither is it given back when its process closes, nor does it come when values are reserved for another cause."""
    connection, other = elsewhere
    run(connection, "create sequence q")
    assert [next_of(connection), next_of(other)] == [1, 33]
    run(connection, "select setval('q', 7)")
    run(other, "alter sequence q increment 5")
    assert next_of(other) == 12
    assert next_of(connection) > 12
    assert (next_of(connection) - 12) % 5 == 0


@pytest.mark.parametrize(
    ("sql", "sqlstate", "message"),
    [
        ("select setval('q', 0)", "22003", 'setval: value 0 is out of bounds for sequence "q" (1..50)'),
        ("select setval('q', 51)", "22003", "value 51 is out of bounds"),
        ("select setval('q', 1.5)", "42883", "setval takes bigint, not numeric"),
        ("select setval('q', 1, 2)", "42883", "setval takes boolean, not integer"),
        ("select setval('q')", "42883", "function setval(unknown) does not exist"),
        ("select currval()", "42883", "function currval() does not exist"),
        ("select currval('nosuch')", "42P01", 'relation "nosuch" does not exist'),
        ("select setval(v::text, 1) from t", "0A000", "setval of what is not a literal name"),
        ("create view v as select currval('q')", "0A000", "currval"),
        ("create table u (v bigint default lastval())", "0A000", "lastval"),
        ("create table u (v bigint check (v > currval('q')))", "42P17", "immutable"),
        ("select setval('q', 1) as of system time now()", "25006", "setval()"),
    ],
)
def test_what_is_refused_of_setval_and_currval(engine: Engine, sql: str, sqlstate: str, message: str) -> None:
    connection = engine.connect()
    run(connection, "create sequence q maxvalue 50", "create table t (v int)")
    with fails(sqlstate, message):
        connection.execute(sql)


def test_setval_is_strict_and_no_reading(engine: Engine) -> None:
    connection = engine.connect()
    run(connection, "create sequence q")
    assert value(connection, "select setval('q', NULL)") is None
    assert next_of(connection) == 1
    assert rows(connection, "select setval('q', v) from (values (5), (9)) x (v)") == [(5,), (9,)]
    run(connection, "begin read only")
    assert value(connection, "select currval('q')") == 9
    with fails("25006", "setval()"):
        connection.execute("select setval('q', 1)")
    run(connection, "rollback")
    # Nobody has got the value that was set, but it is the next one.
    run(connection, "select setval('q', 70, false)")
    with fails("22023", "RESTART value (70) cannot be greater than MAXVALUE (30)"):
        run(connection, "alter sequence q maxvalue 30")
