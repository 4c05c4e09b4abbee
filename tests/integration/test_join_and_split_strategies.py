"""Transactions that are under way when tables are joined or split, by what the strategy has in store for them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

import instar
from instar.catalog.descriptors import Table
from instar.dbapi import Connection
from instar.declarative import dump
from instar.worker.work import Worker
from integration.test_join_and_split_interleaved import CASES
from support import online
from support.databases import Engine, fails, rows, run, value
from support.victims import Victim, Work

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


@pytest.mark.parametrize(
    ("statement", "numbers"),
    [
        ("INSERT INTO t (id, v) VALUES (?, 0)", [70, 71, 72, 73]),
        ("UPDATE t SET v = v + 1 WHERE id = ?", [2, 2, 2, 2]),
        ("DELETE FROM t WHERE id = ?", [70, 71, 72, 2]),
    ],
)
def test_new_writers_wait_though_their_plans_are_kept(
    engine: Engine, one: Connection, statement: str, numbers: list[int]
) -> None:
    """The short way of a write in autocommit, which was taken before."""
    new, old = engine.connect(), engine.connect()
    for number in numbers[:-1]:
        new.execute(statement, [number])
    run(old, "BEGIN", "UPDATE t SET v = v WHERE id = 1")
    changing = going(engine, IN_PLACE.format("block", "1 min"))
    until(lambda: closes(engine, "t"))
    before = rows(one, "SELECT id, v FROM t ORDER BY id")
    waiting = Going(lambda: new.execute(statement, [numbers[-1]]))
    time.sleep(0.05)
    assert not waiting.is_over
    assert rows(one, "SELECT id, v FROM t ORDER BY id") == before
    run(old, "COMMIT")
    changing.end()
    waiting.end()
    assert rows(one, "SELECT id, v FROM t ORDER BY id") != before
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
    said = [row[:2] for row in rows(one, "EXPLAIN (DDL) " + SPLIT.format("commit", "3 s"))]
    assert ("3", 'table "p": seen, and takes changes of what it was made of') in said
    assert ("4", 'table "p": takes no more changes of what it was made of') in said
    run(one, SPLIT.replace("WITH (", "WITH (priority = 7, ").format("block", "0"))
    assert rows(one, "SELECT priority FROM instar.jobs ORDER BY id DESC LIMIT 1") == [(7,)]


# --- commit -----------------------------------------------------------------------------------------------------------

REPEATABLE = "BEGIN ISOLATION LEVEL REPEATABLE READ"
JOINED = "SELECT r, s, x, a, b FROM j ORDER BY r, s"


def switched(engine: Engine, change: str, target: str) -> Going:
    """A change that goes on until old transactions have ended: its switch is done."""
    changing = going(engine, change)
    until(lambda: (found := table(engine, target)) is not None and found.crossing is not None)
    return changing


def test_an_old_transaction_commits_on_the_targets_of_a_join(engine: Engine, one: Connection) -> None:
    old = engine.connect()
    run(old, REPEATABLE, "UPDATE r SET a = 1 WHERE id = 1")
    changing = switched(engine, JOIN.format("commit", "1 min"), "j")
    with fails("42P01"):
        run(one, "SELECT * FROM r")
    assert rows(old, "SELECT id, x, a FROM r ORDER BY id") == [(1, 1, 1), (2, 1, 0), (3, 2, 0)]
    run(old, "UPDATE s SET x = 4 WHERE id = 1", "INSERT INTO r VALUES (4, 3, 7)", "DELETE FROM r WHERE id = 3")
    assert not changing.is_over
    assert is_sound(one)
    run(old, "COMMIT")
    changing.end()
    assert rows(one, JOINED) == [
        (1, None, 1, 1, None), (2, None, 1, 0, None), (4, 3, 3, 7, 0), (None, 1, 4, None, 0), (None, 2, 2, None, 0),
    ]  # fmt: skip
    assert is_sound(one)
    run(one, "ALTER TABLE j ADD COLUMN later int", "DROP TABLE j")


def test_an_old_transaction_commits_on_the_targets_of_a_split(engine: Engine, one: Connection) -> None:
    old = engine.connect()
    run(old, REPEATABLE, "UPDATE t SET city = 'C', v = 1 WHERE zip = 1")
    changing = switched(engine, SPLIT.format("commit", "1 min"), "q")
    run(old, "INSERT INTO t VALUES (4, 3, 'D', 0)", "DELETE FROM t WHERE id = 3", "COMMIT")
    changing.end()
    assert rows(one, "SELECT id, zip, v FROM p ORDER BY id") == [(1, 1, 1), (2, 1, 1), (4, 3, 0)]
    assert rows(one, "SELECT zip, city FROM q ORDER BY zip") == [(1, "C"), (3, "D")]
    assert is_sound(one)


def test_old_transactions_on_either_side_do_not_conflict_and_on_one_side_they_do(
    engine: Engine, one: Connection
) -> None:
    """Figure 2: R.w and S.w on the same rows of T; R.w and R.w; S.w and S.w."""
    r1, r2, s1, s2 = (engine.connect() for _ in range(4))
    for old, change in ((r1, "r SET a = 1"), (r2, "r SET a = 2"), (s1, "s SET b = 3"), (s2, "s SET b = 4")):
        run(old, REPEATABLE, f"UPDATE {change} WHERE id = 1")
    changing = switched(engine, JOIN.format("commit", "1 min"), "j")
    run(r1, "COMMIT")
    run(s1, "COMMIT")
    for old, source in ((r2, "r"), (s2, "s")):
        changed = f'table "{source}" due to a concurrent update. Row (id)=(1) was changed'
        told = "first. The change was: ALTER TABLE r JOIN s"
        with fails("40001", 'to "r" and "s", joined or split meanwhile', changed, told):
            run(old, "COMMIT")
    changing.end()
    assert rows(one, JOINED)[:2] == [(1, 1, 1, 1, 3), (2, 1, 1, 0, 3)]
    assert is_sound(one)


@pytest.mark.parametrize(
    ("new", "old", "refused"),
    [
        ("UPDATE j SET a = 9 WHERE r = 1", "UPDATE r SET a = 1 WHERE id = 1", True),  # R.w, T.w
        ("UPDATE j SET b = 9 WHERE s = 1", "UPDATE r SET a = 1 WHERE id = 1", False),  # of the other part only
        ("UPDATE j SET b = 9 WHERE r = 1", "UPDATE s SET b = 1 WHERE id = 1", True),  # S.w, T.w
        ("UPDATE j SET a = 9 WHERE r = 1", "UPDATE s SET b = 1 WHERE id = 1", False),
        ("DELETE FROM j WHERE r = 1", "UPDATE r SET a = 1 WHERE id = 1", True),
        ("DELETE FROM j WHERE r = 1", "DELETE FROM r WHERE id = 1", True),
        ("UPDATE j SET a = 9 WHERE r = 1", "DELETE FROM r WHERE id = 1", True),
        ("UPDATE j SET a = 9 WHERE r = 1", "UPDATE r SET a = 1 WHERE id = 3", False),  # other rows
        ("INSERT INTO j (r, a) VALUES (9, 0)", "INSERT INTO r VALUES (9, 5, 5)", True),
        ("INSERT INTO j (s, x, b) VALUES (9, 9, 0)", "INSERT INTO s VALUES (8, 9, 5)", True),
    ],
)
def test_what_has_been_written_to_the_target_of_a_join_since(
    engine: Engine, one: Connection, new: str, old: str, refused: bool
) -> None:
    before = engine.connect()
    run(before, REPEATABLE, old)
    changing = switched(engine, JOIN.format("commit", "1 min"), "j")
    run(one, new)
    if refused:
        with fails("40001", "joined or split meanwhile"):
            run(before, "COMMIT")
    else:
        run(before, "COMMIT")
    changing.end()
    assert is_sound(one)


@pytest.mark.parametrize(
    ("new", "old", "refused"),
    [
        ("UPDATE p SET v = 9 WHERE id = 1", "UPDATE t SET v = 1 WHERE id = 1", True),
        ("UPDATE q SET city = 'Z' WHERE zip = 1", "UPDATE t SET v = 1 WHERE id = 1", False),
        ("UPDATE q SET city = 'Z' WHERE zip = 1", "UPDATE t SET city = 'Y' WHERE zip = 1", True),
        ("UPDATE p SET v = 9 WHERE id = 1", "UPDATE t SET city = 'Y' WHERE zip = 1", True),  # a row that was read
        ("UPDATE q SET city = 'Z' WHERE zip = 1", "INSERT INTO t VALUES (9, 1, 'A', 0)", True),  # would contradict
        ("INSERT INTO p VALUES (9, 1, 0)", "UPDATE t SET city = 'Y' WHERE zip = 1", True),
        ("INSERT INTO q VALUES (9, 'A')", "INSERT INTO t VALUES (9, 9, 'A', 0)", False),
        ("INSERT INTO q VALUES (9, 'Z')", "INSERT INTO t VALUES (9, 9, 'A', 0)", True),  # nobody's row, until then
        ("INSERT INTO q VALUES (9, 'Z')", "UPDATE t SET zip = 9, city = 'A' WHERE id = 3", True),
        ("DELETE FROM p WHERE id = 3", "DELETE FROM t WHERE id = 3", True),
    ],
)
def test_what_has_been_written_to_the_targets_of_a_split_since(
    engine: Engine, one: Connection, new: str, old: str, refused: bool
) -> None:
    before = engine.connect()
    run(before, REPEATABLE, old)
    changing = switched(engine, SPLIT.format("commit", "1 min"), "q")
    run(one, new)
    if refused:
        with fails("40001", "joined or split meanwhile"):
            run(before, "COMMIT")
    else:
        run(before, "COMMIT")
    changing.end()
    assert is_sound(one)


@pytest.mark.parametrize("first", [True, False])
def test_a_row_that_comes_brings_nothing_back_that_others_have_changed(
    engine: Engine, one: Connection, first: bool
) -> None:
    """All rows of its split value are changed beside it, but not in what q has: what they had of that when they were
    read says nothing, or an acknowledged change of it would be lost."""
    old = engine.connect()
    run(old, REPEATABLE, "UPDATE t SET v = 1 WHERE zip = 1", "INSERT INTO t VALUES (4, 1, 'A', 1)")
    if first:
        run(one, "UPDATE t SET city = 'Z' WHERE zip = 1")
    changing = switched(engine, SPLIT.format("commit", "1 min"), "q")
    if not first:
        run(one, "UPDATE q SET city = 'Z' WHERE zip = 1")
    with fails("40001", "would contradict each other"):
        run(old, "COMMIT")
    changing.end()
    assert rows(one, "SELECT zip, city FROM q ORDER BY zip") == [(1, "Z"), (2, "B")]
    assert rows(one, "SELECT id, v FROM p ORDER BY id") == [(1, 0), (2, 0), (3, 0)]
    assert is_sound(one)


def test_new_transactions_meet_what_old_ones_have_committed(engine: Engine, one: Connection) -> None:
    """Figure 2: T.w and R.w, the other way round."""
    old, new, other = engine.connect(), engine.connect(), engine.connect()
    run(old, REPEATABLE, "UPDATE r SET a = 1 WHERE id = 1")
    changing = switched(engine, JOIN.format("commit", "1 min"), "j")
    run(new, REPEATABLE, "UPDATE j SET b = 5 WHERE r = 1")
    run(other, REPEATABLE, "UPDATE j SET b = 6 WHERE r = 3")
    run(old, "COMMIT")
    with fails("40001", 'table "j"', "A row was changed"):
        run(new, "COMMIT")
    run(other, "COMMIT")
    changing.end()
    assert rows(one, JOINED)[0] == (1, 1, 1, 1, 0)


def test_old_readers_keep_their_snapshots(engine: Engine, one: Connection) -> None:
    reader, writer = engine.connect(), engine.connect()
    run(reader, REPEATABLE, "SELECT count(*) FROM t")
    run(writer, REPEATABLE, "UPDATE t SET v = 1 WHERE id = 1")
    changing = switched(engine, SPLIT.format("commit", "1 min"), "q")
    run(writer, "COMMIT")
    changing.end()
    assert rows(reader, "SELECT id, v FROM t ORDER BY id") == [(1, 0), (2, 0), (3, 0)]
    run(reader, "COMMIT")


@pytest.mark.parametrize(
    "reads", ["SELECT a FROM r WHERE id = 2", "SELECT count(*) FROM r", "SELECT b FROM s WHERE x = 2"]
)
@pytest.mark.parametrize(
    ("before", "after", "refused"),
    [
        (None, None, False),
        ("UPDATE t SET v = 9", None, False),  # elsewhere
        ("UPDATE r SET a = 9; UPDATE s SET b = 9", None, True),  # what was read has changed on the source
        (None, "UPDATE j SET a = 9 WHERE r = 3", True),  # R.r, S.r and T.w: any
        (None, "INSERT INTO j (r) VALUES (9)", True),
    ],
)
def test_reads_of_old_serializable_transactions(
    engine: Engine, one: Connection, reads: str, before: str | None, after: str | None, refused: bool
) -> None:
    old, holds = engine.connect(), engine.connect()
    run(holds, REPEATABLE, "UPDATE r SET a = 0 WHERE id = 3")
    run(old, "BEGIN ISOLATION LEVEL SERIALIZABLE", reads, "INSERT INTO r VALUES (7, 7, 7)")
    if before is not None:
        run(one, *before.split("; "))
    changing = switched(engine, JOIN.format("commit", "1 min"), "j")
    if after is not None:
        run(one, after)
    if refused:
        source = "s" if "s" in reads.split() else "r"
        told = (
            ['Table "j", which was made of it, was written to', "The change was: ALTER TABLE r JOIN s"] if after else []
        )
        with fails("40001", f'table "{source}"', *told):
            run(old, "COMMIT")
    else:
        run(old, "COMMIT")
    run(holds, "ROLLBACK")
    changing.end()
    assert value(one, "SELECT count(*) FROM j WHERE r = 7") == (0 if refused else 1)
    assert is_sound(one)


def test_new_serializable_transactions_see_what_old_ones_write(engine: Engine, one: Connection) -> None:
    old, new = engine.connect(), engine.connect()
    run(old, REPEATABLE, "UPDATE r SET a = 5 WHERE id = 1")
    changing = switched(engine, JOIN.format("commit", "1 min"), "j")
    run(new, "BEGIN ISOLATION LEVEL SERIALIZABLE", "SELECT a FROM j WHERE r = 1", "UPDATE t SET v = 1 WHERE id = 1")
    run(old, "COMMIT")
    with fails("40001", 'table "j"'):
        run(new, "COMMIT")
    changing.end()


def test_read_committed_goes_on_in_the_new_schema(engine: Engine, one: Connection) -> None:
    commits, goes_on, back = (engine.connect() for _ in range(3))
    run(commits, "BEGIN", "UPDATE t SET v = 1 WHERE id = 1")
    run(goes_on, "BEGIN", "UPDATE t SET v = 2 WHERE id = 2", "INSERT INTO t VALUES (4, 3, 'C', 2)")
    run(back, "BEGIN", "UPDATE t SET v = 3 WHERE id = 3", "SAVEPOINT a", "INSERT INTO t VALUES (5, 5, 'E', 3)")
    changing = switched(engine, SPLIT.format("commit", "1 min"), "q")
    run(commits, "COMMIT")
    assert rows(goes_on, "SELECT id, v FROM p ORDER BY id") == [(1, 1), (2, 2), (3, 0), (4, 2)]
    assert rows(goes_on, "SELECT zip, city FROM q ORDER BY zip") == [(1, "A"), (2, "B"), (3, "C")]
    with fails("42P01", "The change was: " + SPLIT.format("commit", "1 min")):
        run(goes_on, "SAVEPOINT b", "SELECT 1 FROM t")
    run(goes_on, "ROLLBACK TO b", "UPDATE p SET v = 4 WHERE id = 4", "COMMIT")
    run(back, "INSERT INTO p VALUES (6, 1, 6)", "ROLLBACK TO a", "UPDATE q SET city = 'F' WHERE zip = 2", "COMMIT")
    changing.end()
    assert rows(one, "SELECT id, v FROM p ORDER BY id") == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert rows(one, "SELECT zip, city FROM q ORDER BY zip") == [(1, "A"), (2, "F"), (3, "C")]
    assert is_sound(one)


AGAIN = "ALTER TABLE p JOIN q ON p.zip = q.zip INTO z (id, p.zip AS zip, q.zip AS qz, city, v) WITH (strategy = '{}')"


@pytest.mark.parametrize("change", ["ALTER TABLE p DROP COLUMN v", AGAIN.format("commit"), AGAIN.format("block")])
@pytest.mark.parametrize("statements", [("SELECT 1",), ("SAVEPOINT a", "SELECT 1", "ROLLBACK TO a", "SELECT 1")])
def test_what_was_translated_is_waited_for_as_what_was_written(
    engine: Engine, one: Connection, change: str, statements: tuple[str, ...]
) -> None:
    """The next change of the new tables meets a transaction that has written there, for what it knows."""
    old = engine.connect()
    run(old, "BEGIN", "UPDATE t SET v = 1 WHERE id = 1")
    changing = switched(engine, SPLIT.format("commit", "1 ms"), "q")
    run(old, *statements)
    changing.end()
    again = going(engine, "SET ddl_wait = '1 min'", change)
    time.sleep(0.1)
    assert not again.is_over
    run(old, "COMMIT")
    again.end()
    if "JOIN" in change:
        assert rows(one, "SELECT id, city, v FROM z ORDER BY id") == [(1, "A", 1), (2, "A", 0), (3, "B", 0)]
    assert is_sound(one)


def test_what_read_committed_was_translated_by_has_to_stay(engine: Engine, one: Connection) -> None:
    old, other = engine.connect(), engine.connect()
    run(old, "BEGIN", "INSERT INTO r VALUES (7, 7, 0)")
    run(other, "BEGIN", "INSERT INTO s VALUES (7, 7, 0)")
    changing = switched(engine, JOIN.format("commit", "1 min"), "j")
    assert rows(old, "SELECT r, s FROM j WHERE x = 7") == [(7, None)]
    run(other, "COMMIT")
    with fails("40001", 'to "r" and "s", joined or split meanwhile'):
        run(old, "COMMIT")
    changing.end()
    assert rows(one, "SELECT r, s FROM j WHERE x = 7") == [(None, 7)]


def test_what_read_committed_was_translated_by_may_not_be_cut(engine: Engine, one: Connection) -> None:
    """Nobody knows then whether it has stayed (rule 6): each would have taken the other's row to bear that of s."""
    old, store = engine.connect(), engine.database.store
    run(old, "BEGIN", "DELETE FROM r WHERE id = 1")
    changing = switched(engine, JOIN.replace("WITH (", "WITH (keep_views = true, ").format("commit", "1 min"), "j")
    assert rows(old, "SELECT r, s FROM j WHERE x = 1") == [(2, 1)]
    run(one, "DELETE FROM r WHERE id = 2", "UPDATE s SET b = 5 WHERE id = 3")
    store.retention_seconds = 0
    assert Worker(store, engine.database.clock).collect()
    with fails("72000"):
        run(old, "COMMIT")
    changing.end()
    assert rows(one, "SELECT r, s FROM j WHERE x = 1") == [(1, 1)]


def test_old_transactions_commit_beside_views_that_are_kept(engine: Engine, one: Connection) -> None:
    old, goes_on = engine.connect(), engine.connect()
    run(old, REPEATABLE, "UPDATE t SET v = 1 WHERE id = 1")
    run(goes_on, "BEGIN", "UPDATE t SET v = 2 WHERE id = 2")
    changing = switched(engine, SPLIT.replace("WITH (", "WITH (keep_views = true, ").format("commit", "1 min"), "q")
    run(one, "UPDATE t SET v = 7 WHERE id = 3")
    run(old, "UPDATE t SET v = v + 1 WHERE id = 1", "COMMIT")
    run(goes_on, "UPDATE t SET v = v + 10 WHERE id = 2", "COMMIT")
    changing.end()
    assert rows(one, "SELECT * FROM t ORDER BY id") == [(1, 1, "A", 2), (2, 1, "A", 12), (3, 2, "B", 7)]
    assert is_sound(one)


def test_foreign_keys_hold_for_what_old_transactions_have_written(engine: Engine, one: Connection) -> None:
    run(one, "CREATE TABLE child (id int PRIMARY KEY, t int REFERENCES t)", "INSERT INTO child VALUES (1, 1)")
    adds, takes, both = (engine.connect() for _ in range(3))
    run(adds, REPEATABLE, "INSERT INTO t VALUES (4, 4, 'D', 0)", "INSERT INTO child VALUES (4, 4)")
    run(takes, REPEATABLE, "DELETE FROM t WHERE id = 2")
    run(both, REPEATABLE, "DELETE FROM t WHERE id = 3")
    changing = switched(engine, SPLIT.format("commit", "1 min"), "q")
    run(one, "INSERT INTO child VALUES (2, 2)")
    run(adds, "COMMIT")
    with fails("40001", "child"):
        run(takes, "COMMIT")
    run(both, "COMMIT")
    changing.end()
    assert rows(one, "SELECT id FROM p ORDER BY id") == [(1,), (2,), (4,)]
    assert is_sound(one)


def test_an_autocommitted_statement_and_a_savepoint_that_is_taken_back(engine: Engine, one: Connection) -> None:
    old = engine.connect()
    run(old, REPEATABLE, "UPDATE t SET v = 1 WHERE id = 1", "SAVEPOINT a", "UPDATE t SET v = 1 WHERE id = 2")
    changing = switched(engine, SPLIT.format("commit", "1 min"), "q")
    with fails("42P01"):
        run(one, "UPDATE t SET v = 9 WHERE id = 3")
    run(old, "ROLLBACK TO a", "UPDATE t SET id = 9 WHERE id = 3", "COMMIT")
    changing.end()
    assert rows(one, "SELECT id, v FROM p ORDER BY id") == [(1, 1), (2, 0), (9, 0)]
    assert is_sound(one)


def test_after_the_grace_it_is_too_late(engine: Engine, one: Connection) -> None:
    old = engine.connect()
    run(old, REPEATABLE, "UPDATE t SET v = 1 WHERE id = 1")
    going(engine, SPLIT.format("commit", "50 ms")).end()
    with fails("40001", 'table "t"'):
        run(old, "COMMIT")
    assert rows(one, "SELECT v FROM p") == [(0,), (0,), (0,)]
    assert table(engine, "p").crossing is None  # type: ignore[union-attr] # it is there
    assert is_sound(one)


def test_old_transactions_may_not_write_too_much(engine: Engine, one: Connection) -> None:
    one.executemany("INSERT INTO r VALUES (?, 1, 0)", [(number,) for number in range(10, 20)])
    old = engine.connect()
    run(old, REPEATABLE, "UPDATE s SET b = 1 WHERE id = 1")
    changing = switched(engine, JOIN.replace("WITH (", "WITH (pause_rows = 10, ").format("commit", "1 min"), "j")
    with fails("40001", "more than 10 rows"):
        run(old, "COMMIT")
    changing.end()


def test_other_changes_of_the_targets_wait_and_it_only_goes_forward(engine: Engine, one: Connection) -> None:
    old = engine.connect()
    run(old, REPEATABLE, "UPDATE t SET v = 1 WHERE id = 1")
    changing = switched(engine, SPLIT.format("commit", "1 min"), "q")
    job = value(one, "SELECT max(id) FROM instar.jobs")
    with fails("55000", "only goes forward"):
        run(one, f"CANCEL JOB {job}")
    waiting = going(engine, "ALTER TABLE p ADD COLUMN later int")
    time.sleep(0.03)
    assert not waiting.is_over
    run(old, "COMMIT")
    changing.end()
    waiting.end()
    assert rows(one, "SELECT id, v, later FROM p WHERE id = 1") == [(1, 1, None)]


def test_a_source_comes_back_when_old_transactions_have_ended(engine: Engine, one: Connection) -> None:
    """Else what they commit would go to it, and not to the new tables."""
    old = engine.connect()
    run(old, REPEATABLE, "UPDATE t SET v = 1 WHERE id = 1")
    changing = switched(engine, SPLIT.format("commit", "1 min"), "q")
    said = (
        "from before it was joined or split may still commit",
        'goes to "p" and "q". The change was: ALTER TABLE t SPLIT',
    )
    with fails("55006", *said) as refused:
        run(one, "UNDROP TABLE t AS before")
    assert "Try again when its job has ended" in str(refused.error.hint)
    run(old, "COMMIT")
    changing.end()
    run(one, "UNDROP TABLE t")
    assert rows(one, "SELECT id, v FROM p ORDER BY id") == [(1, 1), (2, 0), (3, 0)]
    assert rows(one, "SELECT id, v FROM t ORDER BY id") == [(1, 0), (2, 0), (3, 0)]
    assert is_sound(one)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (IN_PLACE.format("commit", "1 s"), "IN PLACE"),
        ("ALTER TABLE t SPLIT INTO p (id, v), q (zip, city) ON (zip)", 'column "zip" in table "p"'),
        ("ALTER TABLE r JOIN s USING (x) INTO j (r.id AS r, x, a, b)", 'column "id" in table "j"'),
        ("ALTER TABLE r JOIN s USING (id) INTO j (id, a, b, r.x)", 'no row of table "r"'),
    ],
)  # fmt: skip
def test_where_old_changes_could_not_be_translated(one: Connection, statement: str, said: str) -> None:
    with fails("0A000", said):
        run(one, statement if "WITH" in statement else f"{statement} WITH (strategy = 'commit')")


def under_traffic(engine: Engine, work: Work, change: str) -> int:
    """Change the schema while processes have transactions open; by how much they have counted up."""
    writers = [Victim(work, engine.path, number) for number in range(2)]
    for writer in writers:
        writer.wait()
    run(engine.connect(), change)
    said = [cast("tuple[int, int]", writer.join()) for writer in writers]
    assert sum(late for _, late in said) > 0, "nobody committed after the switch"
    return sum(total for total, _ in said)


@pytest.mark.parametrize("unique", [True, False])
def test_a_join_with_transactions_open_across_the_switch(engine: Engine, unique: bool) -> None:
    one = engine.connect()
    run(one, "CREATE TABLE r (id int PRIMARY KEY, x int, v int)")
    run(one, f"CREATE TABLE s (id int PRIMARY KEY, x int {'UNIQUE' if unique else ''}, w int)")
    one.executemany("INSERT INTO r VALUES (?, ?, 0)", [(i, i % online.VALUES) for i in range(online.KEYS)])
    one.executemany("INSERT INTO s VALUES (?, ?, 0)", [(i, i + 3) for i in range(online.VALUES)])
    change = "ALTER TABLE r JOIN s USING (x) INTO t (r.id AS r, s.id AS s, x, v, w)"
    change += " WITH (strategy = 'commit', pause_rows = 500)"
    counted = under_traffic(engine, online.staying_on_r_and_s, change)
    found = rows(one, "SELECT r, s, x, v, w FROM t")
    r = sorted({(key, x, v) for key, _, x, v, _ in found if key is not None})
    s = sorted({(key, x, w) for _, key, x, _, w in found if key is not None})
    assert [row[0] for row in r] == list(range(online.KEYS))
    assert [row[0] for row in s] == list(range(online.VALUES))
    assert Counter(found) == online.joined(cast("list[online.Row]", r), cast("list[online.Row]", s))
    assert sum(v for _, _, v in r) + sum(w for _, _, w in s) == counted
    assert is_sound(one)


def test_a_split_with_transactions_open_across_the_switch(engine: Engine) -> None:
    one = engine.connect()
    run(one, "CREATE TABLE t (id int PRIMARY KEY, zip int, city text, v int)", "CREATE INDEX t_zip ON t (zip)")
    zips = [(i // 2 % online.VALUES // 2 * 2 + i % 2) % online.VALUES for i in range(online.KEYS)]
    one.executemany(
        "INSERT INTO t VALUES (?, ?, ?, 0)", [(i, z - (z - i) % 2, f"city {z}") for i, z in enumerate(zips)]
    )
    change = (
        "ALTER TABLE t SPLIT INTO p (id, zip, v), q (zip, city) ON (zip) WITH (strategy = 'commit', repair = 'newest')"
    )
    counted = under_traffic(engine, online.staying_on_t, change)
    p, q = rows(one, "SELECT id, zip, v FROM p ORDER BY id"), rows(one, "SELECT zip FROM q ORDER BY zip")
    assert [row[0] for row in p] == list(range(online.KEYS))
    assert [zip_ for (zip_,) in q] == sorted({row[1] for row in p})
    assert sum(row[2] for row in p) == counted
    assert is_sound(one)


@pytest.mark.parametrize(
    ("name", "operation"),
    [(name, text) for name in ("split", "one-to-many", "many-to-many") for text in CASES[name].operations],
)
def test_each_operation_as_an_old_transaction_would_do_it(name: str, operation: str) -> None:
    """The targets are the operator of the sources as the old transaction saw them last."""
    case = CASES[name]
    engine = Engine(":memory:")
    one, old = engine.connect(), engine.connect()
    run(one, *case.setup)
    run(old, REPEATABLE, *(text for text in operation.split("; ") if text not in ("BEGIN", "COMMIT")))
    target = "s" if name == "split" else "t"
    changing = switched(engine, f"{case.statement} WITH (strategy = 'commit', grace = '1 min')", target)
    if name == "split":
        source = rows(old, "SELECT id, zip, city, v FROM t ORDER BY id")
        run(old, "COMMIT")
        assert rows(one, "SELECT id, zip, v FROM r ORDER BY id") == [(i, zip_, v) for i, zip_, _, v in source]
        assert set(rows(one, "SELECT zip, city FROM s")) == {(row[1], row[2]) for row in source if row[1] is not None}
        assert value(one, "SELECT count(*) FROM s") == len({row[1] for row in source if row[1] is not None})
    else:
        r, s = rows(old, "SELECT id, x, v FROM r"), rows(old, "SELECT id, x, w FROM s")
        run(old, "COMMIT")
        expected = online.joined(cast("list[online.Row]", r), cast("list[online.Row]", s))
        assert Counter(rows(one, "SELECT r, s, x, v, w FROM t")) == expected
    changing.end()
    assert is_sound(one)
    engine.close()


# --- with schema leases -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["commit", "block"])
def test_servers_that_may_be_a_version_behind(tmp_path: Path, strategy: str) -> None:
    engine = Engine(str(tmp_path / "leased"), schema_lease=0.05)
    try:
        one, old, later = (engine.connect() for _ in range(3))
        run(one, "CREATE TABLE t (id int PRIMARY KEY, zip int, city text, v int)")
        run(one, "INSERT INTO t VALUES (1, 1, 'A', 0), (2, 1, 'A', 0), (3, 2, 'B', 0)")
        run(old, REPEATABLE, "UPDATE t SET v = 1 WHERE id = 1")
        run(later, "BEGIN", "UPDATE t SET v = 2 WHERE id = 2")
        changing = going(engine, SPLIT.format(strategy, "1 min"))
        if strategy == "commit":
            until(lambda: (found := table(engine, "q")) is not None and found.crossing is not None)
        else:
            until(lambda: closes(engine, "t"))
        run(old, "UPDATE t SET city = 'C' WHERE zip = 2", "COMMIT")
        run(later, "COMMIT")
        changing.end()
        assert rows(one, "SELECT id, v FROM p ORDER BY id") == [(1, 1), (2, 2), (3, 0)]
        assert rows(one, "SELECT city FROM q ORDER BY zip") == [("A",), ("C",)]
        assert is_sound(one)
    finally:
        engine.close()


# --- what a dump shows of it ------------------------------------------------------------------------------------------


def is_dumped(one: Connection, names: list[str]) -> None:
    """The dump is the schema that users see: these tables, and an empty database made by it has the same dump."""
    text = dump(one.session)
    with instar.connect(":memory:", autocommit=True) as empty:
        run(empty, *filter(str.strip, text.split(";\n")))
        assert dump(empty.session) == text
        shown = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' ORDER BY 1"
        assert [name for (name,) in rows(empty, shown)] == names
        for name in names:
            described = f"SELECT * FROM {name} LIMIT 0"
            columns = [[found[:2] for found in at.execute(described).description or ()] for at in (one, empty)]
            assert columns[0] == columns[1]


@pytest.mark.parametrize("change", [JOIN, SPLIT])
def test_a_dump_while_the_sources_close_is_that_of_the_sources(engine: Engine, one: Connection, change: str) -> None:
    """The targets are there, and unseen."""
    old = engine.connect()
    name = "t" if change is SPLIT else "r"
    run(old, "BEGIN", f"UPDATE {name} SET id = 9 WHERE id = 1")
    changing = going(engine, change.format("block", "1 min"))
    until(lambda: closes(engine, name))
    is_dumped(one, ["r", "s", "t"])
    run(old, "COMMIT")
    changing.end()
    is_dumped(one, ["p", "q", "r", "s"] if change is SPLIT else ["j", "t"])


@pytest.mark.parametrize("change", [JOIN, SPLIT])
def test_a_dump_after_the_switch_is_that_of_the_targets(engine: Engine, one: Connection, change: str) -> None:
    """Old transactions still write to the sources."""
    old = engine.connect()
    name = "t" if change is SPLIT else "r"
    run(old, REPEATABLE, f"UPDATE {name} SET id = 9 WHERE id = 1")
    changing = switched(engine, change.format("commit", "1 min"), "q" if change is SPLIT else "j")
    is_dumped(one, ["p", "q", "r", "s"] if change is SPLIT else ["j", "t"])
    run(old, "COMMIT")
    changing.end()
    is_dumped(one, ["p", "q", "r", "s"] if change is SPLIT else ["j", "t"])
