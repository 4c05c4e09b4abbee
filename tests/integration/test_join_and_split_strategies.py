"""Transactions that are under way when tables are joined or split, by what the strategy has in store for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from instar.catalog.descriptors import Table
from instar.dbapi import Connection
from support.databases import Engine, fails, rows, run, value

PATIENCE = 20.0


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = Engine(str(tmp_path / "db"))
    yield made
    made.close()


@pytest.fixture
def one(engine: Engine) -> Connection:
    """A session with r (id, x, a), s (id, x, b), which are to be joined, and t (id, zip, city, v), to be split."""
    made = engine.connect()
    run(
        made,
        "CREATE TABLE r (id int PRIMARY KEY, x int, a int)",
        "CREATE TABLE s (id int PRIMARY KEY, x int UNIQUE, b int)",
        "INSERT INTO r VALUES (1, 1, 0), (2, 1, 0), (3, 2, 0)",
        "INSERT INTO s VALUES (1, 1, 0), (2, 2, 0), (3, 3, 0)",
        "CREATE TABLE t (id int PRIMARY KEY, zip int, city text, v int)",
        "INSERT INTO t VALUES (1, 1, 'A', 0), (2, 1, 'A', 0), (3, 2, 'B', 0)",
    )
    return made


JOIN = "ALTER TABLE r JOIN s USING (x) INTO j (r.id AS r, s.id AS s, x, a, b) WITH (strategy = '{}', grace = '{}')"
SPLIT = "ALTER TABLE t SPLIT INTO p (id, zip, v), q (zip, city) ON (zip) WITH (strategy = '{}', grace = '{}')"
IN_PLACE = (
    "ALTER TABLE t SPLIT IN PLACE INTO t (id, zip, v), q (zip, city) ON (zip) WITH (strategy = '{}', grace = '{}')"
)


class Going:
    """Something that is done meanwhile, in a thread of its own."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as failed:  # noqa: BLE001 - raised again where it is waited for
            self._failed = failed

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def end(self) -> None:
        """Wait until it is over; raises what it has ended with."""
        self._thread.join(PATIENCE)
        assert self.is_over, "it does not come to an end"
        if self._failed is not None:
            raise self._failed


def going(engine: Engine, *statements: str) -> Going:
    """Statements in a session of their own."""
    connection = engine.connect()
    return Going(lambda: run(connection, *statements))


def until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < limit, "it does not come to that"
        time.sleep(0.002)


def table(engine: Engine, name: str) -> Table | None:
    with engine.database.store.read() as reader:
        found = engine.database.catalog.at(reader).lookup("public", name)
    return found if isinstance(found, Table) else None


def closes(engine: Engine, name: str) -> bool:
    found = table(engine, name)
    return found is not None and found.transformed is not None and found.transformed.closing


def is_sound(one: Connection) -> bool:
    return rows(one, "CHECK DATABASE") == []


# --- block ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [SPLIT, IN_PLACE])
def test_old_writers_end_and_new_ones_wait(engine: Engine, one: Connection, change: str) -> None:
    old = engine.connect()
    run(old, "BEGIN", "UPDATE t SET v = 1 WHERE id = 1")
    changing = going(engine, change.format("block", "1 min"))
    until(lambda: closes(engine, "t"))
    waiting = going(engine, "UPDATE t SET v = 9 WHERE id = 2")
    assert value(one, "SELECT v FROM t WHERE id = 2") == 0
    run(old, "UPDATE t SET city = 'C' WHERE zip = 1")
    time.sleep(0.05)
    assert not changing.is_over
    assert not waiting.is_over
    run(old, "COMMIT")
    changing.end()
    name = "t" if change is IN_PLACE else "p"
    if change is IN_PLACE:
        waiting.end()
    else:
        with fails("42P01"):
            waiting.end()
    after = 9 if change is IN_PLACE else 0
    assert rows(one, f"SELECT id, zip, v FROM {name} ORDER BY id") == [(1, 1, 1), (2, 1, after), (3, 2, 0)]
    assert rows(one, "SELECT zip, city FROM q ORDER BY zip") == [(1, "C"), (2, "B")]
    assert is_sound(one)


def test_who_has_written_to_one_source_goes_on_in_the_other(engine: Engine, one: Connection) -> None:
    old = engine.connect()
    run(old, "BEGIN", "UPDATE r SET a = 1 WHERE id = 1")
    changing = going(engine, JOIN.format("block", "1 min"))
    until(lambda: closes(engine, "s"))
    run(old, "UPDATE s SET b = 2 WHERE id = 1", "COMMIT")
    changing.end()
    assert rows(one, "SELECT r, s, x, a, b FROM j ORDER BY r, s") == [
        (1, 1, 1, 1, 2), (2, 1, 1, 0, 2), (3, 2, 2, 0, 0), (None, 3, 3, None, 0),
    ]  # fmt: skip
    assert is_sound(one)


def test_who_has_written_elsewhere_waits_too(engine: Engine, one: Connection) -> None:
    run(one, "CREATE TABLE other (id int PRIMARY KEY)")
    old, new = engine.connect(), engine.connect()
    run(old, "BEGIN", "UPDATE t SET v = 1 WHERE id = 1")
    run(new, "BEGIN", "INSERT INTO other VALUES (1)")
    changing = going(engine, IN_PLACE.format("block", "1 min"))
    until(lambda: closes(engine, "t"))
    waiting = Going(lambda: run(new, "UPDATE t SET v = 2 WHERE id = 2", "COMMIT"))
    time.sleep(0.05)
    assert not waiting.is_over
    run(old, "COMMIT")
    changing.end()
    waiting.end()
    assert rows(one, "SELECT id, v FROM t ORDER BY id") == [(1, 1), (2, 2), (3, 0)]
    assert rows(one, "SELECT id FROM other") == [(1,)]


def test_when_the_grace_is_over_old_writers_are_refused(engine: Engine, one: Connection) -> None:
    old = engine.connect()
    run(old, "BEGIN", "UPDATE t SET v = 1 WHERE id = 1")
    going(engine, SPLIT.format("block", "50 ms")).end()
    with fails("40001", 'table "t"'):
        run(old, "COMMIT")
    assert rows(one, "SELECT v FROM p") == [(0,), (0,), (0,)]
    assert is_sound(one)


def test_a_kept_snapshot_does_not_outlast_the_wait(engine: Engine, one: Connection) -> None:
    old, reads, begins = (engine.connect(), *(engine.connect() for _ in range(2)))
    run(old, "BEGIN", "UPDATE t SET v = 1 WHERE id = 1")
    run(reads, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM t")
    run(begins, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    changing = going(engine, IN_PLACE.format("block", "1 min"))
    until(lambda: closes(engine, "t"))
    refused = Going(lambda: run(reads, "UPDATE t SET v = 2 WHERE id = 2"))
    goes_on = Going(lambda: run(begins, "UPDATE t SET v = 3 WHERE id = 3", "COMMIT"))
    run(old, "COMMIT")
    changing.end()
    with fails("40001", "ALTER TABLE t SPLIT"):
        refused.end()
    goes_on.end()
    assert rows(one, "SELECT id, v FROM t ORDER BY id") == [(1, 1), (2, 0), (3, 3)]


def test_who_waits_gives_up_and_a_change_that_is_cancelled_lets_all_go_on(engine: Engine, one: Connection) -> None:
    old = engine.connect()
    run(old, "BEGIN", "UPDATE t SET v = 1 WHERE id = 1")
    changing = going(engine, SPLIT.format("block", "1 min"))
    until(lambda: closes(engine, "t"))
    with fails("55P03"):
        going(engine, "SET lock_timeout = '20ms'", "UPDATE t SET v = 9 WHERE id = 2").end()
    waiting = going(engine, "UPDATE t SET v = 2 WHERE id = 2")
    kept = engine.connect()
    run(kept, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM t")
    keeping = Going(lambda: run(kept, "UPDATE t SET v = 3 WHERE id = 3", "COMMIT"))
    time.sleep(0.02)
    job = value(one, "SELECT max(id) FROM instar.jobs")
    run(one, f"CANCEL JOB {job}")
    with fails("57014"):
        changing.end()
    waiting.end()
    keeping.end()
    run(old, "COMMIT")
    assert rows(one, "SELECT id, v FROM t ORDER BY id") == [(1, 1), (2, 2), (3, 3)]
    assert is_sound(one)


def test_what_is_said_of_it(engine: Engine, one: Connection) -> None:
    said = rows(one, "EXPLAIN (DDL) " + SPLIT.format("block", "3 s"))
    assert next(row[1] for row in said if row[0] == "3") == 'table "t": closes to new writers, who wait'
    assert len({row[0] for row in said}) == 4
