"""Bulk input gives what the same rows give through INSERT, in an empty table (loaded unseen) and in one with rows."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

import instar
from instar import errors
from instar.database import bulk, session
from instar.dbapi import Connection
from support.databases import Engine, fails, rows, run, value


@pytest.fixture(params=["load", "buffer"])
def connection(request: pytest.FixtureRequest, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Connection:
    """A session for which three rows are a load, or no number is."""
    smallest = 3 if request.param == "load" else 1 << 60
    monkeypatch.setattr(bulk, "SMALLEST_LOAD", smallest)
    monkeypatch.setattr(session, "SMALLEST_LOAD", smallest)
    return engine.connect()


def arrow(**columns: object) -> pa.Table:
    return pa.table(columns)


def was_loaded(connection: Connection) -> bool:
    return value(connection, "SELECT count(*) FROM instar.jobs WHERE kind = 'load' AND state = 'succeeded'") > 0


def test_rows_and_entries(connection: Connection, request: pytest.FixtureRequest) -> None:
    run(connection, "CREATE TABLE t (id int PRIMARY KEY, a int, b text)", "CREATE INDEX ta ON t (a DESC, b)")
    data = arrow(b=["x", "y", None, "z"], id=[3, 1, 4, 2], a=[1, None, 1, 7])
    assert connection.insert_arrow("t", data) == 4
    assert rows(connection, "SELECT * FROM t ORDER BY id") == [(1, None, "y"), (2, 7, "z"), (3, 1, "x"), (4, 1, None)]
    assert rows(connection, "SELECT id FROM t WHERE a = 1 ORDER BY id") == [(3,), (4,)]
    assert was_loaded(connection) == ("load" in request.node.name)
    assert connection.insert_arrow("t", arrow(id=[5, 6, 7])) == 3
    assert value(connection, "SELECT count(*) FROM t") == 7
    assert rows(connection, "CHECK DATABASE") == []


def test_a_column_named_as_the_hidden_row_id_is(connection: Connection, request: pytest.FixtureRequest) -> None:
    run(connection, "CREATE TABLE t (rowid int, a int)")
    assert connection.insert_arrow("t", arrow(rowid=[7, 7, 1, 2], a=[1, 2, 3, 4])) == 4
    assert was_loaded(connection) == ("load" in request.node.name)
    run(connection, "INSERT INTO t VALUES (1, 5)")
    assert rows(connection, "SELECT * FROM t ORDER BY a") == [(7, 1), (7, 2), (1, 3), (2, 4), (1, 5)]
    assert rows(connection, "CHECK DATABASE") == []


def test_defaults_are_those_of_now(connection: Connection) -> None:
    run(
        connection,
        "CREATE TABLE t (id int PRIMARY KEY, n bigserial, a int DEFAULT 1, b text DEFAULT 'x', c numeric DEFAULT 1.50)",
        "ALTER TABLE t ADD COLUMN d int DEFAULT 7",
        "ALTER TABLE t ALTER COLUMN d SET DEFAULT 8",
        "ALTER TABLE t ALTER COLUMN a DROP DEFAULT",
        "ALTER TABLE t ALTER COLUMN b SET DEFAULT 'y'",
    )
    assert connection.insert_arrow("t", arrow(id=[1, 2, 3])) == 3
    found = rows(connection, "SELECT * FROM t ORDER BY id")
    assert found == [(number, number, None, "y", Decimal("1.50"), 8) for number in (1, 2, 3)]


def test_volatile_defaults(connection: Connection) -> None:
    run(
        connection, "CREATE TABLE t (id int PRIMARY KEY, u uuid DEFAULT gen_random_uuid(), z timestamptz DEFAULT now())"
    )
    connection.insert_arrow("t", arrow(id=[1, 2, 3]))
    assert value(connection, "SELECT count(DISTINCT u) FROM t") == 3
    assert value(connection, "SELECT count(*) FROM t WHERE z > '2020-01-01'") == 3


@pytest.mark.parametrize(
    ("kind", "given", "wanted"),
    [
        ("smallint", pa.array([1, None, -5], pa.int64()), [1, None, -5]),
        ("bigint", pa.array([1, None, 2], pa.uint8()), [1, None, 2]),
        ("double precision", pa.array([1, None, 2], pa.int32()), [1.0, None, 2.0]),
        ("double precision", pa.array([1.5, float("inf"), None], pa.float32()), [1.5, float("inf"), None]),
        ("real", pa.array([1.5, None, 2.25], pa.float64()), [1.5, None, 2.25]),
        ("numeric(6, 2)", pa.array([1, None, 2], pa.int32()), [Decimal("1.00"), None, Decimal("2.00")]),
        ("numeric(6, 2)", pa.array([Decimal("1.255"), None, Decimal(-2)]), [Decimal("1.26"), None, Decimal("-2.00")]),
        ("numeric(6, 2)", pa.array([1.5, None, 0.125]), [Decimal("1.50"), None, Decimal("0.13")]),
        ("numeric", pa.array([Decimal("1.255"), None, Decimal("-2.100")]), [Decimal("1.255"), None, Decimal("-2.100")]),
        ("text", pa.array(["a", None, ""], pa.large_string()), ["a", None, ""]),
        ("text", pa.array(["a", None, "a"]).dictionary_encode(), ["a", None, "a"]),
        ("varchar(3)", pa.array(["abc", None, ""]), ["abc", None, ""]),
        ("boolean", pa.array([True, None, False]), [True, None, False]),
        ("bytea", pa.array([b"\0", None, b""], pa.large_binary()), [b"\0", None, b""]),
        ("date", pa.array([dt.date(2024, 2, 29), None, None]), [dt.date(2024, 2, 29), None, None]),
        ("timestamp", pa.array([dt.datetime(2024, 1, 1), None, None], pa.timestamp("ms")),
         [dt.datetime(2024, 1, 1), None, None]),
        ("timestamptz", pa.array([dt.datetime(2024, 1, 1, 12), None, None], pa.timestamp("us")),
         [dt.datetime(2024, 1, 1, 11, tzinfo=dt.UTC), None, None]),
        ("timestamptz", pa.array([dt.datetime(2024, 1, 1, 12)] * 3, pa.timestamp("ns", "America/New_York")),
         [dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)] * 3),
    ],
)  # fmt: skip
def test_types(connection: Connection, kind: str, given: pa.Array, wanted: list[object]) -> None:
    run(connection, "SET timezone = 'Europe/Oslo'", f"CREATE TABLE t (id int PRIMARY KEY, a {kind})")
    connection.insert_arrow("t", arrow(id=[1, 2, 3], a=given))
    assert [found for (found,) in rows(connection, "SELECT a FROM t ORDER BY id")] == wanted
    assert rows(connection, "CHECK DATABASE") == []


def test_documents_are_kept_as_their_canonical_text(connection: Connection) -> None:
    """By which they are compared, and found."""
    run(connection, "CREATE TABLE t (id int PRIMARY KEY, a jsonb)")
    connection.insert_arrow("t", arrow(id=[1, 2, 3], a=['{"b": 1,  "a": [2.50]}', None, '{"b":2,"b":1, "a":[2.50]}']))
    document = '{"a": [2.50], "b": 1}'
    assert rows(connection, "SELECT CAST(a AS text) FROM t ORDER BY id") == [(document,), (None,), (document,)]
    assert rows(connection, "SELECT id FROM t WHERE a = ? ORDER BY id", document) == [(1,), (3,)]


@pytest.mark.parametrize(
    ("table", "data", "sqlstate"),
    [
        ("id int PRIMARY KEY, a smallint", {"a": [1, 70_000, 2]}, errors.NUMERIC_OUT_OF_RANGE),
        ("id int PRIMARY KEY, a numeric(4, 2)", {"a": [Decimal(1), Decimal(100), None]}, errors.NUMERIC_OUT_OF_RANGE),
        ("id int PRIMARY KEY, a varchar(2)", {"a": ["ab", "abc", None]}, errors.STRING_TOO_LONG),
        ("id int PRIMARY KEY, a text", {"a": ["a", "\0", None]}, errors.CHARACTER_NOT_IN_REPERTOIRE),
        ("id int PRIMARY KEY, a jsonb", {"a": ["{}", "{", None]}, errors.INVALID_TEXT),
        ("id int PRIMARY KEY, a int NOT NULL", {"a": [1, None, 2]}, errors.NOT_NULL_VIOLATION),
        ("id int PRIMARY KEY, a int NOT NULL", {}, errors.NOT_NULL_VIOLATION),
        ("id int PRIMARY KEY, a int UNIQUE", {"a": [1, None, 1]}, errors.UNIQUE_VIOLATION),
        ("id int PRIMARY KEY, a int CHECK (a > 0)", {"a": [1, None, 0]}, errors.CHECK_VIOLATION),
        ("id int PRIMARY KEY, a int REFERENCES t (id)", {"a": [1, None, 4]}, errors.FOREIGN_KEY_VIOLATION),
        ("id int PRIMARY KEY", {"b": [1, 2, 3]}, errors.UNDEFINED_COLUMN),
        ("id int PRIMARY KEY", {"id": [1, 2, 1]}, errors.UNIQUE_VIOLATION),
        ("id int PRIMARY KEY", {"id": [1, None, 2]}, errors.NOT_NULL_VIOLATION),
        ("id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY", {}, "428C9"),
    ],
)  # fmt: skip
def test_what_is_refused_leaves_nothing(
    connection: Connection, table: str, data: dict[str, list[object]], sqlstate: str
) -> None:
    connection.execute(f"CREATE TABLE t ({table})")
    with pytest.raises(instar.Error) as caught:
        connection.insert_arrow("t", arrow(**({"id": [1, 2, 3]} | data)))
    assert caught.value.sqlstate == sqlstate, caught.value
    assert rows(connection, "SELECT * FROM t") == []
    assert rows(connection, "CHECK DATABASE") == []


def test_read_only_sessions(connection: Connection) -> None:
    run(connection, "CREATE TABLE t (id int PRIMARY KEY)", "SET default_transaction_read_only = on")
    with fails(errors.READ_ONLY_TRANSACTION):
        connection.insert_arrow("t", arrow(id=[1, 2, 3]))
    with fails(errors.READ_ONLY_TRANSACTION):
        connection.executemany("INSERT INTO t VALUES (?)", [(1,), (2,), (3,)])


def test_tables_without_a_key_and_names_to_quote(connection: Connection) -> None:
    run(connection, 'CREATE TABLE "a ""b" ("c d" int, "E" text)')
    assert connection.insert_arrow('a "b', arrow(**{"c d": [1, 1, 2], "E": ["x", "x", None]})) == 3
    assert rows(connection, 'SELECT * FROM "a ""b" ORDER BY 1') == [(1, "x"), (1, "x"), (2, None)]


def test_a_load_in_a_transaction_rolls_back(connection: Connection) -> None:
    run(connection, "CREATE TABLE t (id int PRIMARY KEY)", "BEGIN")
    connection.insert_arrow("t", arrow(id=[1, 2, 3]))
    assert value(connection, "SELECT count(*) FROM t") == 3
    connection.execute("ROLLBACK")
    assert value(connection, "SELECT count(*) FROM t") == 0


def test_executemany(connection: Connection) -> None:
    run(connection, "CREATE TABLE t (id int PRIMARY KEY, z timestamptz, n numeric(5, 1), b text DEFAULT 'x')")
    run(connection, "SET timezone = 'Europe/Oslo'")
    sets = [
        (1, dt.datetime(2024, 1, 1, 12), 1), (2, dt.datetime(2024, 1, 1, tzinfo=dt.UTC), "2.25"),
        (3, "2024-01-01 12:00", Decimal("3.05")), ("4", None, None),
    ]  # fmt: skip
    assert connection.executemany("INSERT INTO t (id, z, n) VALUES (?, ?, ?)", sets).rowcount == 4
    oslo = dt.datetime(2024, 1, 1, 11, tzinfo=dt.UTC)
    assert rows(connection, "SELECT * FROM t ORDER BY id") == [
        (1, oslo, Decimal("1.0"), "x"), (2, dt.datetime(2024, 1, 1, tzinfo=dt.UTC), Decimal("2.3"), "x"),
        (3, oslo, Decimal("3.1"), "x"), (4, None, None, "x"),
    ]  # fmt: skip
    with fails(errors.UNIQUE_VIOLATION):
        connection.executemany("INSERT INTO t (id) VALUES (?)", [(10,), (11,), (10,)])
    with fails(errors.INVALID_TEXT):
        connection.executemany("INSERT INTO t (id) VALUES (?)", [(20,), (21,), ("x",)])
    with pytest.raises(instar.ProgrammingError):
        connection.executemany("INSERT INTO t (id) VALUES (?)", [(30,), (31,), (32, 33)])
    assert value(connection, "SELECT count(*) FROM t") == 4
    assert rows(connection, "CHECK DATABASE") == []


@pytest.mark.parametrize("way", ["arrow", "many"])
def test_columns_that_are_not_given_have_the_default_of_the_moment(connection: Connection, way: str) -> None:
    """Not the value that was frozen for older rows when the column was added."""
    run(
        connection,
        "create table t (id int primary key)",
        "alter table t add column a int default 5",
        "alter table t alter a set default 3 + 4",
        "alter table t add column z timestamptz default now()",
        "alter table t add column d numeric default 1.50",
        "alter table t add column n int default 1",
        "alter table t alter n drop default",
        "alter table t add column s varchar(3) default 'abc'",
    )
    begun = value(connection, "select now()")
    if way == "arrow":
        connection.insert_arrow("t", pa.table({"id": [1, 2, 3]}))
    else:
        connection.executemany("insert into t (id) values (?)", [(1,), (2,), (3,)])
    found = rows(connection, "select a, n, s, d::text, min(z) >= $1, count(*) from t group by a, n, s, d", begun)
    assert found == [(7, None, "abc", "1.50", True, 3)]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_times_that_python_has_not(connection: Connection, zone: str) -> None:
    connection.execute(f"SET timezone = '{zone}'")
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, d date, at timestamp, seen timestamptz)")
    far = 400_000_000_000 * 1_000_000
    data = pa.table(
        {
            "id": pa.array([1, 2, 3], pa.int32()),
            "d": pa.array([-1_000_000, 5_000_000, None], pa.date32()),
            "at": pa.array([far, None, -far // 4], pa.timestamp("us")),
            "seen": pa.array([None, far, -far // 4], pa.timestamp("us", tz="UTC")),
        }
    )
    assert connection.insert_arrow("t", data) == 3
    assert connection.execute("SELECT * FROM t ORDER BY id").fetch_arrow_table().equals(data)


def test_nanoseconds_are_refused(connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, at timestamp)")
    at = pa.array([1000, 1999, None], pa.timestamp("ns"))
    with fails(errors.NUMERIC_OUT_OF_RANGE, "timestamp without time zone"):
        connection.insert_arrow("t", arrow(id=[1, 2, 3], at=at))
    assert connection.insert_arrow("t", arrow(id=[1, 3, 4], at=at.take([0, 2, 2]))) == 3
