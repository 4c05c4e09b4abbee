"""The DB-API: PEP 249 as its public compliance suite reads it, and what the driver promises beyond it."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import dbapi20
import pyarrow as pa
import pytest

import instar
from instar import errors
from instar.clock import SystemClock
from instar.worker.work import Worker
from support.databases import fails, rows, run, value

PACKAGE = os.path.dirname(instar.__file__)


class TestCompliance(dbapi20.DatabaseAPI20Test):
    """The public suite. PEP 249 leaves to drivers: stored procedures and several result sets (Instar has neither, so
    the cursor has no such methods), output sizes (ignored), and closing twice (fine, as in sqlite3)."""

    driver = instar

    @pytest.fixture(autouse=True)
    def _database(self, tmp_path: Path) -> None:
        self.connect_args = (str(tmp_path / "db"),)
        self.connect_kw_args = {"synchronous": "off"}

    def test_nextset(self) -> None:
        connection = self._connect()
        assert not hasattr(connection.cursor(), "nextset")
        assert not hasattr(connection.cursor(), "callproc")
        connection.close()

    def test_setoutputsize(self) -> None:
        connection = self._connect()
        cursor = connection.cursor()
        cursor.setoutputsize(1)
        cursor.execute("SELECT 'longer than that'")
        assert cursor.fetchall() == [("longer than that",)]
        connection.close()

    def test_non_idempotent_close(self) -> None:
        connection = self._connect()
        connection.close()
        connection.close()


def test_the_public_names_are_listed_before_any_is_used() -> None:
    """What completes names in a shell, and help(), ask for them."""
    listed = subprocess.check_output([sys.executable, "-c", "import instar; print(*dir(instar))"], text=True).split()
    assert {"__version__", "apilevel", "connect", "Connection", "Error", "TimestampFromTicks"} <= set(listed)
    assert all(hasattr(instar, name) for name in listed)


@pytest.fixture
def connection() -> Iterator[instar.Connection]:
    with_table = instar.connect(autocommit=True)
    run(with_table, "CREATE TABLE t (id int PRIMARY KEY, a int, b text)")
    yield with_table
    with_table.close()


# --- autocommit, commit, rollback -------------------------------------------------------------------------------------


def test_a_transaction_stays_open_until_commit(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    with_changes, other = instar.connect(path, synchronous="off"), instar.connect(path, synchronous="off")
    with_changes.execute("CREATE TABLE t (id int PRIMARY KEY)")
    assert with_changes.in_transaction
    with fails(errors.UNDEFINED_TABLE):
        other.execute("SELECT * FROM t")
    other.rollback()
    with_changes.commit()
    assert not with_changes.in_transaction
    assert rows(other, "SELECT * FROM t") == []
    with_changes.execute("INSERT INTO t VALUES (1)")
    with_changes.rollback()
    assert rows(with_changes, "SELECT * FROM t") == []
    with_changes.close()
    other.close()


def test_autocommit_can_be_switched(connection: instar.Connection) -> None:
    assert connection.autocommit
    connection.autocommit = False
    connection.execute("INSERT INTO t VALUES (1)")
    connection.rollback()
    connection.execute("INSERT INTO t VALUES (2)")
    connection.autocommit = True  # commits what is open, as in sqlite3
    connection.rollback()
    assert rows(connection, "SELECT id FROM t") == [(2,)]


def test_begin_works_under_autocommit(connection: instar.Connection) -> None:
    connection.execute("BEGIN")
    assert connection.in_transaction
    connection.execute("INSERT INTO t VALUES (1)")
    connection.execute("ROLLBACK")
    assert not connection.in_transaction
    assert rows(connection, "SELECT * FROM t") == []


def test_closing_rolls_back(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    first = instar.connect(path, synchronous="off")
    first.execute("CREATE TABLE t (id int)")
    first.commit()
    first.execute("INSERT INTO t VALUES (1)")
    first.close()
    second = instar.connect(path, synchronous="off")
    assert rows(second, "SELECT * FROM t") == []
    second.close()


def test_commit_of_a_failed_transaction_rolls_back() -> None:
    connection = instar.connect()
    connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    connection.commit()
    connection.execute("INSERT INTO t VALUES (1)")
    with fails(errors.UNIQUE_VIOLATION):
        connection.execute("INSERT INTO t VALUES (1)")
    assert connection.in_transaction
    with fails(errors.IN_FAILED_TRANSACTION):
        connection.execute("SELECT 1")
    connection.commit()
    assert rows(connection, "SELECT * FROM t") == []
    connection.close()


def test_connection_as_context_manager(connection: instar.Connection) -> None:
    connection.autocommit = False
    with connection as entered:
        assert entered is connection
        connection.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(instar.DataError), connection:
        connection.execute("INSERT INTO t VALUES (2, 1 / 0)")
    assert rows(connection, "SELECT id FROM t") == [(1,)]


def test_cursor_as_context_manager(connection: instar.Connection) -> None:
    with connection.cursor() as cursor:
        assert cursor.execute("SELECT 1") is cursor
    with fails("34000"):
        cursor.execute("SELECT 1")


def test_connection_dropped_without_close_gives_everything_back(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    instar.connect(path, synchronous="off").execute("CREATE TABLE t (id int)")
    with pytest.raises(instar.Error):
        instar.connect(path, synchronous="full", create=False)
    instar.connect(path, synchronous="off").close()


def test_a_transaction_whose_connection_is_dropped_is_waited_for_by_nobody(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    with instar.connect(path, synchronous="off", autocommit=True) as connection:
        run(connection, "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 0)")
        run(connection, "SET lock_timeout = '30 s'")
        for _ in range(20):
            dropped = instar.connect(path, synchronous="off", autocommit=True)
            run(dropped, "BEGIN", "UPDATE t SET a = 100 WHERE id = 1")
            with pytest.warns(ResourceWarning, match="unclosed"):
                del dropped
            run(connection, "UPDATE t SET a = a + 1 WHERE id = 1")
        assert value(connection, "SELECT a FROM t") == 20


# --- results ----------------------------------------------------------------------------------------------------------


def test_description(connection: instar.Connection) -> None:
    cursor = connection.execute("SELECT id, b, 1.50::numeric(10, 2) AS price, now() AS at, '\\x00'::bytea FROM t")
    assert cursor.description is not None
    assert [entry[0] for entry in cursor.description] == ["id", "b", "price", "at", "bytea"]
    types = [entry[1] for entry in cursor.description]
    wanted = [instar.NUMBER, instar.STRING, instar.NUMBER, instar.DATETIME, instar.BINARY]
    assert types == wanted
    assert types[0] == instar.ROWID
    assert types[1] != instar.NUMBER
    assert cursor.description[2][4:6] == (10, 2)
    assert connection.execute("INSERT INTO t VALUES (1)").description is None
    returning = connection.execute("UPDATE t SET a = 1 RETURNING id AS x")
    assert returning.description is not None
    assert returning.description[0][0] == "x"


def test_rowcount(connection: instar.Connection) -> None:
    assert connection.cursor().rowcount == -1
    assert connection.execute("INSERT INTO t VALUES (1), (2), (3)").rowcount == 3
    assert connection.execute("UPDATE t SET a = 1 WHERE id > 1").rowcount == 2
    assert connection.execute("UPDATE t SET a = 1 WHERE id = 9").rowcount == 0
    assert connection.execute("SELECT * FROM t").rowcount == 3
    assert connection.execute("DELETE FROM t WHERE id = 1").rowcount == 1
    assert connection.execute("INSERT INTO t VALUES (2) ON CONFLICT DO NOTHING").rowcount == 0
    assert connection.execute("ALTER TABLE t ADD COLUMN c int").rowcount == -1


def test_fetching(connection: instar.Connection) -> None:
    connection.executemany("INSERT INTO t (id) VALUES (?)", [(number,) for number in range(7)])
    cursor = connection.execute("SELECT id FROM t ORDER BY id")
    assert cursor.fetchone() == (0,)
    assert cursor.fetchmany() == [(1,)]
    cursor.arraysize = 2
    assert cursor.fetchmany() == [(2,), (3,)]
    assert cursor.fetchmany(1) == [(4,)]
    assert next(cursor) == (5,)
    assert list(cursor) == [(6,)]
    assert cursor.fetchone() is None
    assert cursor.fetchmany(3) == []
    assert cursor.fetchall() == []


def test_fetchmany_loses_no_row(connection: instar.Connection) -> None:
    connection.executemany("INSERT INTO t (id) VALUES (?)", [(number,) for number in range(10)])
    cursor = connection.execute("SELECT id FROM t ORDER BY id")
    found = []
    while batch := cursor.fetchmany(3):
        found += batch
    assert [number for (number,) in found] == list(range(10))


def test_results_outlive_their_transaction(connection: instar.Connection) -> None:
    connection.execute("INSERT INTO t VALUES (1, 1, 'x')")
    connection.execute("BEGIN")
    cursor = connection.execute("SELECT * FROM t")
    connection.execute("DELETE FROM t")
    connection.execute("COMMIT")
    assert cursor.fetchall() == [(1, 1, "x")]


@pytest.mark.parametrize("call", ["fetchone", "fetchmany", "fetchall", "fetch_arrow_table"])
def test_fetching_without_rows(connection: instar.Connection, call: str) -> None:
    cursor = connection.cursor()
    with fails("24000"):
        getattr(cursor, call)()
    cursor.execute("INSERT INTO t VALUES (1)")
    with fails("24000"):
        getattr(cursor, call)()


def test_fetching_after_a_failed_statement(connection: instar.Connection) -> None:
    cursor = connection.execute("SELECT 1")
    with fails(errors.UNDEFINED_TABLE):
        cursor.execute("SELECT * FROM nowhere")
    with fails("24000"):
        cursor.fetchall()
    assert cursor.description is None


def test_fetch_arrow_table(connection: instar.Connection) -> None:
    run(connection, "CREATE TABLE w (i int, n numeric(9, 2), d date, z timestamptz, b boolean, s text, x bytea)")
    connection.execute(
        "INSERT INTO w VALUES (1, 1.5, '2024-02-29', '2024-02-29 12:00+01', true, 'é', '\\x00ff'), (NULL, NULL, NULL,"
        " NULL, NULL, NULL, NULL)"
    )
    for query in ("SELECT * FROM w", "SELECT * FROM w ORDER BY i LIMIT 2", "SELECT w.* FROM w, w AS v WHERE v.i = 1"):
        table = connection.execute(query).fetch_arrow_table()
        assert isinstance(table, pa.Table)
        assert table.column_names == ["i", "n", "d", "z", "b", "s", "x"]
        wanted = {
            "i": 1, "n": decimal.Decimal("1.50"), "d": dt.date(2024, 2, 29), "b": True, "s": "é", "x": b"\x00\xff",
            "z": dt.datetime(2024, 2, 29, 11, tzinfo=dt.UTC),
        }  # fmt: skip
        assert wanted in table.to_pylist()
    empty = connection.execute("SELECT * FROM w WHERE i = 77").fetch_arrow_table()
    assert empty.num_rows == 0
    assert empty.column_names == ["i", "n", "d", "z", "b", "s", "x"]


@pytest.mark.parametrize("query", ["SELECT * FROM n", "SELECT a FROM n WHERE i = 1"])
def test_nan_of_a_decimal_column_is_refused_as_arrow(connection: instar.Connection, query: str) -> None:
    connection.execute("CREATE TABLE n (i integer PRIMARY KEY, a numeric(10,2))")
    connection.execute("INSERT INTO n VALUES (1, 'NaN'), (2, 1.5), (3, NULL)")
    with pytest.raises(instar.NotSupportedError, match=r"NaN of type numeric\(10,2\)") as caught:
        connection.execute(query).fetch_arrow_table()
    assert caught.value.sqlstate == errors.FEATURE_NOT_SUPPORTED
    table = connection.execute("SELECT a::numeric AS a FROM n ORDER BY i").fetch_arrow_table()
    assert table.to_pydict() == {"a": ["NaN", "1.50", None]}


def test_arrow_of_statements_that_are_no_queries(connection: instar.Connection) -> None:
    assert connection.execute("INSERT INTO t VALUES (1) RETURNING id").fetch_arrow_table().to_pylist() == [{"id": 1}]
    assert connection.execute("SHOW timezone").fetch_arrow_table().to_pylist() == [{"timezone": "UTC"}]


def test_arrow_of_a_point_lookup_that_ran_before(connection: instar.Connection) -> None:
    connection.execute("INSERT INTO t VALUES (1, 2, 'x')")
    for _ in range(3):
        cursor = connection.execute("SELECT a, b FROM t WHERE id = ?", (1,))
        assert cursor.fetch_arrow_table().to_pylist() == [{"a": 2, "b": "x"}]


def test_insert_arrow(connection: instar.Connection) -> None:
    table = pa.table({"b": ["x", None], "id": [1, 2]})
    assert connection.insert_arrow("t", table) == 2
    assert rows(connection, "SELECT * FROM t ORDER BY id") == [(1, None, "x"), (2, None, None)]
    with fails(errors.UNIQUE_VIOLATION):
        connection.insert_arrow("t", table)
    with fails(errors.UNDEFINED_TABLE):
        connection.insert_arrow("nowhere", table)
    with pytest.raises(instar.DataError, match="not as list"):
        connection.insert_arrow("t", [(1,)])  # type: ignore[arg-type] # what users do


def test_executemany(connection: instar.Connection) -> None:
    cursor = connection.cursor()
    cursor.executemany("INSERT INTO t VALUES (?, ?, ?)", ((number, None, str(number)) for number in range(5)))
    assert cursor.rowcount == 5
    assert cursor.description is None
    cursor.executemany("UPDATE t SET a = $2 WHERE id = $1", [(1, 10), (2, 20), (99, 0)])
    assert cursor.rowcount == 2
    assert rows(connection, "SELECT id, a FROM t WHERE a IS NOT NULL ORDER BY id") == [(1, 10), (2, 20)]
    cursor.executemany("DELETE FROM t WHERE id = ?", [])
    assert cursor.rowcount == 0
    with fails(errors.SYNTAX_ERROR):
        cursor.executemany("SELECT ?", [(1,)])


def test_executemany_is_all_or_nothing(connection: instar.Connection) -> None:
    with fails(errors.UNIQUE_VIOLATION):
        connection.executemany("INSERT INTO t (id) VALUES (?)", [(1,), (2,), (1,)])
    assert rows(connection, "SELECT * FROM t") == []
    with fails(errors.DIVISION_BY_ZERO):
        connection.executemany("INSERT INTO t (id, a) VALUES (?, 1 / ?)", [(1, 1), (2, 0)])
    assert rows(connection, "SELECT * FROM t") == []


def test_executemany_reads_what_the_sets_before_have_written(connection: instar.Connection) -> None:
    upsert = "INSERT INTO t (id, a) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET a = t.a + excluded.a"
    assert connection.executemany(upsert, [(1, 1), (2, 20), (1, 2), (1, 4)]).rowcount == 4
    assert rows(connection, "SELECT id, a FROM t ORDER BY id") == [(1, 7), (2, 20)]
    nothing = "INSERT INTO t (id, a) VALUES (?, ?) ON CONFLICT DO NOTHING"
    assert connection.executemany(nothing, [(2, 0), (3, 30), (3, 0)]).rowcount == 1
    connection.executemany("INSERT INTO t (id, a) SELECT max(id) + 1, ? FROM t", [(40,), (50,)])
    connection.executemany("INSERT INTO t (id, a) VALUES ((SELECT max(id) + 1 FROM t), ?)", [(60,), (70,)])
    found = [(1, 7), (2, 20), (3, 30), (4, 40), (5, 50), (6, 60), (7, 70)]
    assert rows(connection, "SELECT id, a FROM t ORDER BY id") == found


def test_a_subquery_of_executemany_is_computed_for_each_set(connection: instar.Connection) -> None:
    connection.executemany("INSERT INTO t (id, a) VALUES (?, ?)", [(1, 10), (2, 20), (3, 0), (4, 0)])
    upsert = """INSERT INTO t (id) VALUES ($1)
        ON CONFLICT (id) DO UPDATE SET a = (SELECT a FROM t s WHERE id = $2) WHERE t.id IN (SELECT $1 FROM t)"""
    connection.executemany(upsert, [(3, 1), (4, 2)])
    assert rows(connection, "SELECT id, a FROM t WHERE id > 2 ORDER BY id") == [(3, 10), (4, 20)]


def test_executemany_with_classes_that_change(connection: instar.Connection) -> None:
    given = [(1, 1, "a"), (2, None, None), ("3", 3, "c"), (4, False, "d")]
    with fails(errors.DATATYPE_MISMATCH):
        connection.executemany("INSERT INTO t VALUES (?, ?, ?)", given)
    connection.executemany("INSERT INTO t VALUES (?, ?, ?)", given[:3])
    assert rows(connection, "SELECT * FROM t ORDER BY id") == [(1, 1, "a"), (2, None, None), (3, 3, "c")]


# --- parameters -------------------------------------------------------------------------------------------------------


def test_both_parameter_styles(connection: instar.Connection) -> None:
    assert rows(connection, "SELECT ?, ?", 1, "x") == [(1, "x")]
    assert rows(connection, "SELECT $2, $1, $2", 1, "x") == [("x", 1, "x")]
    assert rows(connection, 'SELECT \'?\', "?" FROM (SELECT ? AS "?") AS s -- ?', 1) == [("?", 1)]
    assert connection.execute("SELECT ?", [None]).fetchall() == [(None,)]


@pytest.mark.parametrize("given", [(), (1, 2)])
def test_wrong_number_of_parameters(connection: instar.Connection, given: tuple[object, ...]) -> None:
    for text in ("SELECT ?", "SELECT a FROM t WHERE id = ?", "DELETE FROM t WHERE id = $1"):
        for _ in range(2):
            with fails("08P01"):
                connection.execute(text, given)
    rows(connection, "SELECT a FROM t WHERE id = ?", 1)
    with fails("08P01"):
        connection.execute("SELECT a FROM t WHERE id = ?", given)


def test_parameters_of_statements_that_take_none(connection: instar.Connection) -> None:
    for text in ("CREATE TABLE u (id int)", "BEGIN", "SHOW timezone"):
        with fails("08P01"):
            connection.execute(text, (1,))


def test_parameters_that_are_no_sequence(connection: instar.Connection) -> None:
    for given in (5, None, {"a": 1}, "ab", b"ab", {1, 2}):
        for text in ("SELECT ?, ?", "SELECT a FROM t WHERE id = ?", "BEGIN"):
            with pytest.raises(instar.ProgrammingError) as caught:
                connection.execute(text, given)  # type: ignore[arg-type]  # that is the point
            assert caught.value.sqlstate == "08P01"
    with pytest.raises(instar.ProgrammingError):
        connection.executemany("INSERT INTO t (id) VALUES (?)", [5])  # type: ignore[list-item]  # that is the point
    with pytest.raises(instar.ProgrammingError):
        connection.executemany("INSERT INTO t (id) VALUES (?)", 5)  # type: ignore[arg-type]  # that is the point


def test_parameters_of_strange_types(connection: instar.Connection) -> None:
    for given in (object(), {"a"}, complex(1), threading.Lock()):
        for text in ("SELECT ?", "SELECT a FROM t WHERE id = ?", "INSERT INTO t (id, b) VALUES (1, ?)"):
            with pytest.raises(instar.DatabaseError) as caught:
                connection.execute(text, (given,))
            assert caught.value.sqlstate[:2] in ("42", "22", "0A"), caught.value


def test_parameters_keep_their_types(connection: instar.Connection) -> None:
    given = [
        True, 7, 2**62, 1.5, decimal.Decimal("1.10"), "é\n", b"\x00\xff", dt.date(2024, 2, 29),
        dt.datetime(2024, 2, 29, 12, 30, 1, 5), dt.datetime(2024, 2, 29, tzinfo=dt.UTC), uuid.UUID(int=5), None,
    ]  # fmt: skip
    for one in given:
        assert value(connection, "SELECT ?", one) == one
        assert type(value(connection, "SELECT ?", one)) is type(one)


def test_statement_must_be_text(connection: instar.Connection) -> None:
    for given in (None, b"SELECT 1", 5):
        with pytest.raises(instar.Error):
            connection.execute(given)  # type: ignore[arg-type]  # that is the point


def test_one_statement_at_a_time(connection: instar.Connection) -> None:
    with fails(errors.SYNTAX_ERROR):
        connection.execute("SELECT 1; SELECT 2")
    assert rows(connection, "SELECT 1;") == [(1,)]


# --- closed objects, threads, processes -------------------------------------------------------------------------------


def test_closed_connection(connection: instar.Connection) -> None:
    cursor = connection.execute("SELECT 1")
    connection.close()
    connection.close()
    for call in (
        connection.cursor, connection.commit, connection.rollback, lambda: connection.execute("SELECT 1"),
        lambda: connection.executemany("DELETE FROM t WHERE id = ?", []), lambda: connection.autocommit,
        lambda: connection.in_transaction, connection.cancel, lambda: cursor.execute("SELECT 1"), cursor.fetchall,
        lambda: cursor.executemany("DELETE FROM t WHERE id = ?", []), lambda: connection.notices,
    ):  # fmt: skip
        with pytest.raises(instar.InterfaceError) as caught:
            call()
        assert caught.value.sqlstate in ("08003", "34000")


def test_closed_cursor(connection: instar.Connection) -> None:
    cursor = connection.execute("SELECT 1")
    cursor.close()
    for call in (
        lambda: cursor.execute("SELECT 1"), cursor.fetchone, cursor.fetchmany, cursor.fetchall, cursor.close,
        cursor.fetch_arrow_table, lambda: cursor.executemany("DELETE FROM t WHERE id = ?", []), lambda: next(cursor),
    ):  # fmt: skip
        with pytest.raises(instar.InterfaceError):
            call()


def test_threads_with_a_connection_each(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    first = instar.connect(path, synchronous="off", autocommit=True)
    first.execute("CREATE TABLE t (thread int, id int, PRIMARY KEY (thread, id))")
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            mine = instar.connect(path, synchronous="off", autocommit=True)
            for identity in range(100):
                mine.execute("INSERT INTO t VALUES (?, ?)", (number, identity))
                assert value(mine, "SELECT count(*) FROM t WHERE thread = ?", number) == identity + 1
            mine.close()
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert value(first, "SELECT count(*) FROM t") == 400
    first.close()


def _insert(path: str, number: int) -> int:
    connection = instar.connect(path, synchronous="off")
    for identity in range(20):
        connection.execute("INSERT INTO t (b) VALUES (?)", (f"{number}-{identity}",))
        connection.commit()
    connection.close()
    return number


def test_processes_with_a_connection_each(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    first = instar.connect(path, synchronous="off", autocommit=True)
    first.execute("CREATE TABLE t (id bigserial PRIMARY KEY, b text UNIQUE)")
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.starmap(_insert, [(path, number) for number in range(2)]) == [0, 1]
    assert value(first, "SELECT count(*) FROM t") == 40
    assert value(first, "SELECT count(DISTINCT id) FROM t") == 40
    first.close()


def test_cancel_from_another_thread(connection: instar.Connection) -> None:
    connection.cancel()  # nothing runs: nothing happens
    connection.executemany("INSERT INTO t (id) VALUES (?)", [(number,) for number in range(3000)])
    timer = threading.Timer(0.2, connection.cancel)
    timer.start()
    with fails(errors.QUERY_CANCELED):
        connection.execute("SELECT sum(sqrt(x.id * y.id)) FROM t x, t y, t z")
    timer.join()
    assert value(connection, "SELECT 1") == 1


_Place = tuple[CodeType, int, str]  # where Python looks for signals: in front of a function, behind one of C's


class _Interrupts:
    """Ctrl-C at one place, when it is come to for the n-th time."""

    def __init__(self) -> None:
        self._met: Counter[_Place] = Counter()
        self._at: tuple[_Place, int] | None = None

    def run(self, work: Callable[[], object], at: tuple[_Place, int] | None) -> None:
        """Do `work` until it is there, or ends."""
        self._met.clear()
        self._at = at
        with contextlib.suppress(KeyboardInterrupt):
            sys.setprofile(self._look)
            try:
                work()
            finally:
                sys.setprofile(None)

    def places(self, work: Callable[[], object]) -> list[tuple[_Place, int]]:
        """Where, and when: for the first time, and for the last."""
        self.run(work, None)
        return [(place, time) for place, most in self._met.items() for time in sorted({1, most})]

    def _look(self, frame: FrameType, event: str, called: object) -> None:
        looks = event == "call" or (event == "c_return" and called is not sys.setprofile)
        if looks and frame.f_code.co_filename.startswith((PACKAGE, threading.__file__)):
            place = (frame.f_code, frame.f_lineno, event)
            self._met[place] += 1
            if self._at == (place, self._met[place]):
                raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of generators that are left
@pytest.mark.parametrize("kind", ["memory", "lmdb"])
@pytest.mark.parametrize("then", ["rollback", "commit", "autocommit"])
def test_an_interrupt_anywhere_leaves_the_connection_usable(tmp_path: Path, kind: str, then: str) -> None:
    path = (str(tmp_path / "db"),) if kind == "lmdb" else ()
    connection = instar.connect(*path, synchronous="off", autocommit=True)
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
    connection.autocommit = then == "autocommit"
    interrupts, turn = _Interrupts(), 0

    def work() -> None:
        connection.executemany("INSERT INTO t VALUES (?, 1)", [(turn,)])
        connection.execute("UPDATE t SET a = a + 1 WHERE id = ?", (turn,))
        connection.execute("SELECT a FROM t WHERE id = ?", (turn,)).fetchall()
        connection.commit()

    work()  # what is made once is there
    turn = 1
    places = interrupts.places(work)
    assert len(places) > 300
    # A statement that has not begun does not fail its transaction.
    possible = ([], [(2,)]) if then == "rollback" else ([], [(1,)], [(2,)])
    for turn, place in enumerate(places, 2):
        interrupts.run(work, place)
        if then == "rollback":
            connection.rollback()
        elif then == "commit":
            connection.commit()  # which is no conflict with what is committed by this transaction already
        assert not connection.in_transaction
        assert connection.database.store.writers() == []
        assert rows(connection, "SELECT a FROM t WHERE id = ?", turn) in possible
        connection.cancel()  # of what does not run
        connection.execute("DELETE FROM t WHERE id = ?", (turn,))
        work()
        assert rows(connection, "SELECT a FROM t WHERE id = ?", turn) == [(2,)]
        connection.rollback()
    assert connection.notices == []  # of locks that could not be given back
    assert rows(connection, "CHECK DATABASE") == []
    assert rows(connection, "SELECT * FROM instar.transaction_locks") == []
    if kind == "lmdb":
        other = instar.connect(*path, synchronous="off", autocommit=True)
        locked = [f"SELECT a FROM t WHERE id = {number} FOR UPDATE NOWAIT" for number in (1, turn)]
        thread = threading.Thread(target=run, args=(other, "BEGIN", *locked, "ROLLBACK"), daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive(), "another thread gets at the lock table"
        other.close()
    connection.close()


def test_a_transaction_whose_end_was_interrupted_leaves_nothing_to_the_next(tmp_path: Path) -> None:
    """Its snapshot, for one, though nobody has rolled back."""
    path = str(tmp_path / "db")
    one, two = instar.connect(path, synchronous="off"), instar.connect(path, synchronous="off", autocommit=True)
    two.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
    two.execute("INSERT INTO t VALUES (1, 0)")
    interrupts, text = _Interrupts(), "SELECT a FROM t WITH (SNAPSHOT)"
    rows(one, text)
    one.commit()
    rows(one, text)
    for place in interrupts.places(one.commit):
        assert rows(one, text) == rows(two, text)
        interrupts.run(one.commit, place)
        two.execute("UPDATE t SET a = a + 1 WHERE id = 1")
        if one.in_transaction:  # it was interrupted before it began to end
            one.rollback()
    assert rows(one, text) == rows(two, text)
    one.close()
    two.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_who_was_interrupted_in_its_wait_waits_no_more(tmp_path: Path) -> None:
    """And goes on from a savepoint: others would find a deadlock with it."""
    path = str(tmp_path / "db")
    one, two = (instar.connect(path, synchronous="off", autocommit=True) for _ in range(2))
    one.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
    one.execute("INSERT INTO t VALUES (1, 0), (2, 0)")
    one.execute("BEGIN")
    one.execute("UPDATE t SET a = 1 WHERE id = 1")
    run(two, "SET lock_timeout = '1ms'", "BEGIN", "UPDATE t SET a = 2 WHERE id = 2", "SAVEPOINT s")
    interrupts, waiting = _Interrupts(), "SELECT * FROM instar.transaction_locks WHERE NOT granted"

    def wait() -> None:
        with contextlib.suppress(instar.OperationalError):
            two.execute("UPDATE t SET a = 2 WHERE id = 1")

    for place in interrupts.places(wait):
        two.execute("ROLLBACK TO s")
        interrupts.run(wait, place)
        two.execute("ROLLBACK TO s")
        assert rows(one, waiting) == []
    one.close()
    two.close()


def test_a_cancel_of_nothing_is_none_of_the_next_call(connection: instar.Connection) -> None:
    connection.autocommit = False
    connection.executemany("INSERT INTO t (id) VALUES (?)", [(number,) for number in range(3000)])
    calls: list[Callable[[], object]] = [
        connection.commit, connection.rollback, lambda: connection.execute("CREATE INDEX ON t (b)"), connection.commit,
        lambda: connection.insert_arrow("t", pa.table({"id": [5000]})), lambda: setattr(connection, "autocommit", True),
    ]  # fmt: skip
    for call in calls:
        connection.cancel()
        call()
    assert value(connection, "SELECT count(*) FROM t") == 3001


def test_errors_survive_pickling(connection: instar.Connection) -> None:
    with fails(errors.SYNTAX_ERROR) as failed:
        connection.execute("SELECT FROM WHERE")
    again = pickle.loads(pickle.dumps(failed.error))
    assert type(again) is type(failed.error) is instar.ProgrammingError
    assert (again.message, again.sqlstate, again.position) == (
        failed.error.message, failed.error.sqlstate, failed.error.position
    )  # fmt: skip
    assert again.position is not None


def test_settings_of_a_connection() -> None:
    connection = instar.connect(settings={"timezone": "Europe/Oslo"})
    assert value(connection, "SHOW timezone") == "Europe/Oslo"
    connection.close()
    with fails(errors.UNDEFINED_OBJECT):
        instar.connect(settings={"nonsense": "1"})


def test_memory_databases_are_private() -> None:
    first, second = instar.connect(autocommit=True), instar.connect(autocommit=True)
    first.execute("CREATE TABLE t (id int)")
    with fails(errors.UNDEFINED_TABLE):
        second.execute("SELECT * FROM t")
    first.close()
    second.close()


def test_another_durability_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    first = instar.connect(path, synchronous="normal")
    with pytest.raises(instar.Error, match="normal"):
        instar.connect(path, synchronous="full")
    instar.connect(path, synchronous=None).close()
    first.close()


def test_another_schema_lease_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    first = instar.connect(path, synchronous="off", schema_lease=30)
    with pytest.raises(instar.Error, match=r"schema_lease = 30\.0"):
        instar.connect(path, synchronous="off", schema_lease=0)
    second = instar.connect(path, synchronous="off")
    assert second.execute("SHOW schema_lease").fetchone() == ("30",)
    first.close()
    second.close()
    with pytest.raises(instar.Error, match="cannot change"):  # the store remembers, with nobody there
        instar.connect(path, synchronous="off", schema_lease=5)


def test_no_lease_unless_one_is_asked_for(tmp_path: Path) -> None:
    first = instar.connect(str(tmp_path / "db"), synchronous="off")
    assert first.execute("SHOW schema_lease").fetchone() == ("0",)
    first.close()
    with pytest.raises(instar.Error) as caught:
        instar.connect(str(tmp_path / "other"), schema_lease=601)
    assert caught.value.sqlstate == "22023"


def test_how_much_of_the_past_is_kept_is_the_makers_to_say(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    first = instar.connect(path, synchronous="off", retention=2.5, log_max_bytes=1 << 20)
    assert first.execute("SHOW retention").fetchone() == ("2.5",)
    assert first.execute("SHOW log_max_bytes").fetchone() == ("1048576",)
    with pytest.raises(instar.Error, match=r"retention = 2\.5, which"):
        instar.connect(path, synchronous="off", retention=600)
    with pytest.raises(instar.Error, match="log_max_bytes = 1048576, which"):
        instar.connect(path, synchronous="off", log_max_bytes=1)
    first.close()
    second = instar.connect(path, synchronous="off", retention=2.5)  # the store remembers, with nobody there
    assert second.execute("SHOW log_max_bytes").fetchone() == ("1048576",)
    second.close()


@pytest.mark.parametrize("where", ["db", ":memory:"])
def test_the_past_can_be_read_for_as_long_as_it_is_retained(tmp_path: Path, where: str) -> None:
    path = where if where == ":memory:" else str(tmp_path / where)
    connection = instar.connect(path, synchronous="off", autocommit=True, retention=0)
    run(connection, "CREATE TABLE t (a int PRIMARY KEY)")
    run(connection, "INSERT INTO t VALUES (1)")
    then = value(connection, "SELECT now()")
    time.sleep(0.02)
    run(connection, "INSERT INTO t VALUES (2)")
    assert value(connection, "SELECT count(*) FROM t AS OF SYSTEM TIME ?", then) == 1
    Worker(connection.database.store, SystemClock()).collect()
    with pytest.raises(instar.Error, match="snapshot too old") as caught:
        connection.execute("SELECT count(*) FROM t AS OF SYSTEM TIME ?", [then])
    assert caught.value.sqlstate == "72000"
    connection.close()


@pytest.mark.parametrize("arguments", [{"retention": -1}, {"retention": float("inf")}, {"log_max_bytes": 0}])
def test_no_other_past_can_be_kept(tmp_path: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(instar.Error) as caught:
        instar.connect(str(tmp_path / "db"), **arguments)
    assert caught.value.sqlstate == "22023"
    assert not (tmp_path / "db").exists()


def test_no_database_without_create(tmp_path: Path) -> None:
    with pytest.raises(instar.OperationalError):
        instar.connect(str(tmp_path / "nowhere"), create=False)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        {"path": None},
        {"path": 3},
        {"path": b"db"},
        {"path": ""},
        {"schema_lease": "1"},
        {"schema_lease": True},
        {"retention": "1"},
        {"log_max_bytes": 1.5},
        {"synchronous": 1},
        {"autocommit": "yes"},
        {"create": 1},
        {"settings": "timezone"},
        {"settings": {"timezone": 3}},
        {"settings": {3: "UTC"}},
    ],
)
def test_arguments_that_are_none_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(instar.ProgrammingError) as caught:
        instar.connect(**arguments)
    assert caught.value.sqlstate == "22023"


def test_a_connection_that_another_thread_uses_is_refused(tmp_path: Path) -> None:
    """Two threads in one session would mix their transactions: rows under layouts that no commit brought."""
    inside, leave = threading.Event(), threading.Event()
    connection = instar.connect(tmp_path / "store", autocommit=True)
    connection.execute("CREATE TABLE t (a integer PRIMARY KEY)")

    def handler(_notice: str) -> None:
        assert connection.execute("SELECT 1").fetchall() == [(1,)]  # the thread that executes may go on
        inside.set()
        assert leave.wait(20)

    connection.on_notice = handler
    thread = threading.Thread(target=lambda: connection.execute("DROP TABLE IF EXISTS nothing"))
    thread.start()
    assert inside.wait(20)
    cursor = connection.cursor()
    uses: list[Callable[[], object]] = [
        lambda: connection.execute("SELECT 1"),
        lambda: cursor.execute("SELECT 1"),
        lambda: cursor.executemany("INSERT INTO t VALUES (?)", [(1,)]),
        lambda: connection.insert_arrow("t", pa.table({"a": [1]})),
        lambda: setattr(connection, "autocommit", False),
        connection.commit,
        connection.rollback,
        connection.close,
    ]
    for use in uses:
        with pytest.raises(instar.Error) as refused:
            use()
        assert refused.value.sqlstate == "55006"
    connection.cancel()
    leave.set()
    thread.join()
    connection.on_notice = None
    assert connection.execute("SELECT count(*) FROM t").fetchall() == [(0,)]
    connection.close()


def test_threads_that_share_a_connection_all_the_same_leave_the_store_whole(tmp_path: Path) -> None:
    connection = instar.connect(tmp_path / "store", autocommit=True)
    connection.execute("CREATE TABLE t (a integer PRIMARY KEY)")
    refused: list[str] = []

    def work(number: int) -> None:
        for turn in range(30):
            try:
                connection.execute("INSERT INTO t (a) VALUES (?)", [number * 100 + turn])
                if turn % 10 == 0:
                    connection.execute(f"ALTER TABLE t ADD COLUMN c{number}_{turn} integer DEFAULT 1")
            except instar.Error as error:
                refused.append(error.sqlstate)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(refused) <= {"55006"}
    assert connection.execute("CHECK DATABASE").fetchall() == []
    connection.close()


def test_a_connection_that_is_left_to_the_end_of_the_interpreter_says_nothing(tmp_path: Path) -> None:
    """Kept by a module that is taken down after this package."""
    program = "import sys, time, instar; kept = instar.connect(sys.argv[1]); time.kept = lambda: kept"
    environment = os.environ | {"PYTHONPATH": str(Path(instar.__file__).parents[1])}
    command = [sys.executable, "-c", program, str(tmp_path / "db")]
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_cancel_at_any_moment_is_57014(tmp_path):
    with contextlib.closing(instar.connect(tmp_path / "db", autocommit=True)) as connection:
        connection.execute("CREATE TABLE a (id int PRIMARY KEY, n int)")
        connection.execute("INSERT INTO a SELECT i, 0 FROM generate_series(1, 2000) g(i)")
        ended = threading.Event()

        def cancel():
            while not ended.is_set():
                time.sleep(random.random() / 100)
                connection.cancel()

        canceller = threading.Thread(target=cancel)
        canceller.start()
        told = set()
        for _ in range(150):
            try:
                connection.execute("SELECT * FROM a ORDER BY n").fetchall()
            except instar.Error as error:
                told.add(error.sqlstate)
        ended.set()
        canceller.join()
        assert told <= {"57014"}


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE a SET n = (SELECT count(*) FROM a b WHERE b.n = a.n + 1)",
        "DELETE FROM a USING a b WHERE a.n + b.n = 5 AND a.n > b.n + a.id",
        "UPDATE a SET n = 1 WHERE NOT EXISTS (SELECT 1 FROM a b WHERE b.n > a.n + 7)",
    ],
)
def test_cancel_ends_writes_that_look_at_all_rows_for_each(statement):
    with contextlib.closing(instar.connect(autocommit=True)) as connection:
        connection.execute("CREATE TABLE a (id int PRIMARY KEY, n int)")
        connection.execute("INSERT INTO a SELECT i, 0 FROM generate_series(1, 5000) g(i)")
        threading.Timer(0.3, connection.cancel).start()
        begun = time.monotonic()
        with pytest.raises(instar.OperationalError) as caught:
            connection.execute(statement)
        assert caught.value.sqlstate == "57014"
        assert time.monotonic() - begun < 5
