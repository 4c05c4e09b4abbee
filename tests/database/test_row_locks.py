"""Row locks of sessions, on both engines: writers that wait for one another, keys, deadlocks, timeouts."""

from __future__ import annotations

import resource
import signal
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import instar
from instar import errors
from instar.database import row_locks
from instar.dbapi import Connection
from store.building import ended, in_child
from support.databases import Engine, fails, rows, run, value
from support.waiting import give_up, later, waiting

MODES = ["KEY SHARE", "SHARE", "NO KEY UPDATE", "UPDATE"]
# Which of them exclude one another (PostgreSQL's manual, table 13.3).
EXCLUDE = {
    ("KEY SHARE", "UPDATE"),
    ("SHARE", "NO KEY UPDATE"),
    ("SHARE", "UPDATE"),
    ("NO KEY UPDATE", "NO KEY UPDATE"),
    ("NO KEY UPDATE", "UPDATE"),
    ("UPDATE", "UPDATE"),
}
WRITES = {
    "UPDATE t SET a = a + 1 WHERE id = 1": "NO KEY UPDATE",
    "UPDATE t SET u = 100 WHERE id = 1": "UPDATE",
    "UPDATE t SET id = 100 WHERE id = 1": "UPDATE",
    "DELETE FROM t WHERE id = 1": "UPDATE",
    "INSERT INTO t VALUES (1, 5, 5, 'x') ON CONFLICT (id) DO UPDATE SET a = 9": "NO KEY UPDATE",
    "INSERT INTO c VALUES (9, 1)": "KEY SHARE",
}


def exclude(one: str, other: str) -> bool:
    return (one, other) in EXCLUDE or (other, one) in EXCLUDE


# Who waits for whom.


@pytest.mark.parametrize(("held", "wanted"), list(product(MODES, MODES)))
def test_the_matrix_of_modes(sessions: list[Connection], held: str, wanted: str) -> None:
    one, two, *_ = sessions
    run(two, "SET lock_timeout = '5s'")  # a cell that is wrong fails, and does not hang
    for first, second in ((held, wanted), (wanted, held)):
        run(one, "BEGIN", f"SELECT * FROM t WHERE id = 1 FOR {first}")
        statement = f"SELECT id FROM t WHERE id = 1 FOR {second}"
        if exclude(first, second):
            give_up(two, statement)
            with fails(errors.LOCK_NOT_AVAILABLE, 'relation "t"'):
                run(two, statement + " NOWAIT")
            assert rows(two, statement + " SKIP LOCKED") == []
        else:
            assert rows(two, statement) == rows(two, statement + " NOWAIT") == [(1,)]
            assert rows(two, statement + " SKIP LOCKED") == [(1,)]
        assert rows(two, "SELECT a FROM t WHERE id = 1") == [(0,)]  # readers never wait
        run(one, "COMMIT")


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize(("statement", "mode"), WRITES.items())
@pytest.mark.parametrize("held", MODES)
def test_writes_meet_locks_in_their_modes(
    sessions: list[Connection], held: str, statement: str, mode: str, explicit: bool
) -> None:
    one, two, *_ = sessions
    run(two, "SET lock_timeout = '5s'")
    run(one, "BEGIN", f"SELECT * FROM t WHERE id = 1 FOR {held}")
    begin = ["BEGIN"] if explicit else []
    if exclude(held, mode):
        give_up(two, *begin, statement)
        run(one, "ROLLBACK")
    run(two, *begin, statement)


@pytest.mark.parametrize(("statement", "mode"), WRITES.items())
@pytest.mark.parametrize("wanted", MODES)
def test_writes_of_a_transaction_are_locks_in_their_modes(
    sessions: list[Connection], wanted: str, statement: str, mode: str
) -> None:
    one, two, *_ = sessions
    run(two, "SET lock_timeout = '5s'")
    run(one, "BEGIN", statement)
    held = f"SELECT id FROM t WHERE id = 1 FOR {wanted}"
    if exclude(mode, wanted):
        give_up(two, held)
    else:
        assert rows(two, held) == [(1,)]
    run(one, "ROLLBACK")
    assert rows(two, held) == [(1,)]


@pytest.mark.parametrize("explicit", [False, True])
def test_an_update_waits_and_sees_what_the_holder_left(
    sessions: list[Connection], threads: ThreadPoolExecutor, explicit: bool
) -> None:
    one, two, three, _ = sessions
    run(one, "BEGIN", "UPDATE t SET a = a + 10 WHERE id = 1")
    begin = ["BEGIN"] if explicit else []
    waits = later(threads, two, *begin, "UPDATE t SET a = a + 1 WHERE id = 1 RETURNING a")
    waiting(three)
    run(one, "COMMIT")
    assert waits.result() == [(11,)]
    run(two, "COMMIT") if explicit else None
    assert rows(three, "SELECT a FROM t WHERE id = 1") == [(11,)]
    assert rows(three, "SELECT * FROM instar.transaction_locks") == []


def test_what_no_longer_matches_is_left_alone(sessions: list[Connection], threads: ThreadPoolExecutor) -> None:
    one, two, three, _ = sessions
    run(one, "BEGIN", "UPDATE t SET a = 5 WHERE id IN (1, 2)", "DELETE FROM t WHERE id = 3")
    waits = later(threads, two, "BEGIN", "UPDATE t SET a = 7 WHERE a = 0 RETURNING id")
    waiting(three)
    run(one, "COMMIT")
    assert waits.result() == [(4,)]
    run(two, "COMMIT")


def test_a_rollback_lets_the_waiting_go_on(sessions: list[Connection], threads: ThreadPoolExecutor) -> None:
    one, two, three, _ = sessions
    run(one, "BEGIN", "DELETE FROM t WHERE id = 1")
    waits = later(threads, two, "UPDATE t SET a = 1 WHERE id = 1 RETURNING a")
    waiting(three)
    run(one, "ROLLBACK")
    assert waits.result() == [(1,)]


def test_the_end_of_a_connection_is_the_end_of_its_locks(engine: Engine, sessions: list[Connection]) -> None:
    two = sessions[1]
    leaving = engine.connect()
    run(leaving, "BEGIN", "UPDATE t SET a = 1 WHERE id = 1")
    give_up(two, "UPDATE t SET a = 2 WHERE id = 1")
    leaving.close()
    run(two, "UPDATE t SET a = 2 WHERE id = 1")


def test_a_statement_that_meets_a_moved_row_runs_again(sessions: list[Connection], monkeypatch: Any) -> None:
    """Between its snapshot and its locks others commit: it takes what they left and keeps its locks."""
    one, two, *_ = sessions
    run(one, "BEGIN")
    store = one.database.store
    take = type(store).lock
    met = iter(range(3))

    def lock(self: Any, owner: bytes, wanted: Any, unchanged: Any) -> None:
        if next(met, None) is not None:
            run(
                two,
                "UPDATE t SET a = a + 1 WHERE id = 1"
                if not rows(two, "SELECT * FROM instar.transaction_locks")
                else "UPDATE t SET a = a + 1 WHERE id = 2",
            )
        take(self, owner, wanted, unchanged)

    monkeypatch.setattr(type(store), "lock", lock)
    assert rows(one, "UPDATE t SET a = a + 100 WHERE id IN (1, 2) RETURNING id, a") == [(1, 101), (2, 100)]
    run(one, "COMMIT")
    assert rows(two, "SELECT a FROM t WHERE id < 3") == [(101,), (100,)]


# Schedule 5.


def test_schedule_5(sessions: list[Connection], threads: ThreadPoolExecutor) -> None:
    """Autocommit update meets a row that a READ COMMITTED transaction has locked: the holder is not the one refused."""
    one, two, three, four = sessions
    run(one, "BEGIN", "UPDATE t SET a = a + 1 WHERE id = 1")
    plain = [
        later(threads, two, "UPDATE t SET a = a * 10 WHERE id = 1"),
        later(threads, three, "UPDATE t SET a = a * 10 WHERE id = 1"),
    ]
    waiting(four, 2)
    run(one, "UPDATE t SET a = a + 1 WHERE id = 1", "COMMIT")
    for each in plain:
        each.result()
    assert value(four, "SELECT a FROM t WHERE id = 1") == 200


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_schedule_5_with_a_commit_that_keeps_its_snapshot(
    sessions: list[Connection], threads: ThreadPoolExecutor, level: str
) -> None:
    """Its commit waits for the holder, and is then the one refused."""
    one, two, three, _ = sessions
    run(two, f"BEGIN ISOLATION LEVEL {level}", "UPDATE t SET a = 5 WHERE id = 1", "UPDATE t SET a = 5 WHERE id = 4")
    run(one, "BEGIN", "UPDATE t SET a = 7 WHERE id = 1")
    commit = later(threads, two, "COMMIT")
    waiting(three)
    run(one, "COMMIT")
    with fails(errors.SERIALIZATION_FAILURE):
        commit.result()
    assert rows(three, "SELECT a FROM t ORDER BY id") == [(7,), (0,), (0,), (0,)]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_snapshot_that_is_kept_cannot_lock_what_has_moved(sessions: list[Connection], level: str) -> None:
    one, two, *_ = sessions
    run(one, f"BEGIN ISOLATION LEVEL {level}", "SELECT * FROM q")
    run(two, "UPDATE t SET a = 1 WHERE id = 1")
    assert rows(one, "SELECT id FROM t WHERE id = 2 FOR UPDATE") == [(2,)]
    give_up(two, "UPDATE t SET a = 1 WHERE id = 2")
    with fails(errors.SERIALIZATION_FAILURE, '"t"', "(id)=(1)"):
        run(one, "SELECT id FROM t WHERE id = 1 FOR SHARE")
    run(one, "ROLLBACK")


# Keys.


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("commits", [False, True])
@pytest.mark.parametrize("row", ["(9, 0, 1009, '')", "(1009, 0, 9, '')"])
def test_an_insert_waits_for_another_of_the_same_key(
    sessions: list[Connection], threads: ThreadPoolExecutor, explicit: bool, commits: bool, row: str
) -> None:
    one, two, three, _ = sessions
    run(one, "BEGIN", "INSERT INTO t VALUES (9, 0, 9, '')")
    waits = later(threads, two, *(["BEGIN"] if explicit else []), f"INSERT INTO t VALUES {row} RETURNING id")
    waiting(three)
    run(one, "COMMIT" if commits else "ROLLBACK")
    if commits:
        with fails(errors.UNIQUE_VIOLATION):
            waits.result()
    else:
        assert len(waits.result()) == 1
    run(two, "ROLLBACK") if explicit else None


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("commits", [False, True])
@pytest.mark.parametrize("statement", ["DELETE FROM t WHERE id = 1", "UPDATE t SET id = 50, u = 50 WHERE id = 1"])
@pytest.mark.parametrize("row", ["(1, 7, 77, '')", "(77, 7, 1, '')"])
def test_an_insert_waits_for_who_gives_its_key_up(
    sessions: list[Connection], threads: ThreadPoolExecutor, statement: str, row: str, explicit: bool, commits: bool
) -> None:
    one, two, three, _ = sessions
    insert = f"INSERT INTO t VALUES {row} RETURNING a"
    with fails(errors.UNIQUE_VIOLATION):
        run(two, insert)
    run(one, "BEGIN", statement)
    waits = later(threads, two, *(["BEGIN"] if explicit else []), insert)
    waiting(three)
    run(one, "COMMIT" if commits else "ROLLBACK")
    if commits:
        assert waits.result() == [(7,)]
    else:
        with fails(errors.UNIQUE_VIOLATION):
            waits.result()
    run(two, "ROLLBACK") if explicit else None


@pytest.mark.parametrize(("action", "a"), [("DO NOTHING", 1), ("DO UPDATE SET a = t.a + 10", 11)])
@pytest.mark.parametrize("explicit", [False, True])
def test_on_conflict_waits_for_the_row_that_is_coming(
    sessions: list[Connection], threads: ThreadPoolExecutor, action: str, a: int, explicit: bool
) -> None:
    one, two, three, _ = sessions
    run(one, "BEGIN", "INSERT INTO t VALUES (9, 1, 9, '')")
    begin = ["BEGIN"] if explicit else []
    waits = later(threads, two, *begin, f"INSERT INTO t VALUES (9, 5, 99, '') ON CONFLICT (id) {action} RETURNING a")
    waiting(three)
    run(one, "COMMIT")
    assert waits.result() == ([(11,)] if a == 11 else [])
    run(two, "COMMIT") if explicit else None
    assert value(three, "SELECT a FROM t WHERE id = 9") == a


def test_rows_without_a_key_do_not_hinder_one_another(sessions: list[Connection]) -> None:
    one, two, three, _ = sessions
    for session in (one, two):
        run(session, "BEGIN", "INSERT INTO q VALUES (1)")
    assert rows(three, "SELECT * FROM instar.transaction_locks") == []
    run(one, "COMMIT")
    run(two, "COMMIT")
    assert rows(three, "SELECT a FROM q FOR UPDATE") == [(1,), (1,)]


@pytest.mark.parametrize("commits", [False, True])
def test_a_child_waits_for_who_removes_its_parent(
    sessions: list[Connection], threads: ThreadPoolExecutor, commits: bool
) -> None:
    one, two, three, _ = sessions
    run(one, "BEGIN", "DELETE FROM t WHERE id = 1")
    waits = later(threads, two, "INSERT INTO c VALUES (1, 1) RETURNING id")
    waiting(three)
    run(one, "COMMIT" if commits else "ROLLBACK")
    if commits:
        with fails(errors.FOREIGN_KEY_VIOLATION):
            waits.result()
    else:
        assert waits.result() == [(1,)]


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("commits", [False, True])
def test_who_removes_a_parent_waits_for_children_that_are_coming(
    sessions: list[Connection], threads: ThreadPoolExecutor, commits: bool, explicit: bool
) -> None:
    one, two, three, _ = sessions
    run(one, "BEGIN", "INSERT INTO c VALUES (1, 1)")
    run(three, "UPDATE t SET a = 5 WHERE id = 1")  # not its key
    waits = later(threads, two, *(["BEGIN"] if explicit else []), "DELETE FROM t WHERE id = 1 RETURNING a")
    waiting(three)
    run(one, "COMMIT" if commits else "ROLLBACK")
    if commits:
        with fails(errors.FOREIGN_KEY_VIOLATION):
            waits.result()
    else:
        assert waits.result() == [(5,)]
    run(two, "ROLLBACK") if explicit else None


@pytest.mark.parametrize("commits", [False, True])
def test_who_removes_a_parent_waits_for_children_that_are_going(
    sessions: list[Connection], threads: ThreadPoolExecutor, commits: bool
) -> None:
    one, two, three, _ = sessions
    run(one, "INSERT INTO c VALUES (1, 1)", "BEGIN", "DELETE FROM c WHERE id = 1")
    waits = later(threads, two, "DELETE FROM t WHERE id = 1 RETURNING id")
    waiting(three)
    run(one, "COMMIT" if commits else "ROLLBACK")
    if commits:
        assert waits.result() == [(1,)]
    else:
        with fails(errors.FOREIGN_KEY_VIOLATION):
            waits.result()


def test_a_foreign_key_to_a_unique_column(sessions: list[Connection], threads: ThreadPoolExecutor) -> None:
    one, two, three, _ = sessions
    run(one, "CREATE TABLE d (id int PRIMARY KEY, u int REFERENCES t (u))")
    run(one, "BEGIN", "INSERT INTO d VALUES (1, 1)")
    run(two, "UPDATE t SET a = 1 WHERE id = 1")
    waits = later(threads, two, "UPDATE t SET u = 100 WHERE id = 1")
    waiting(three)
    run(one, "COMMIT")
    with fails(errors.FOREIGN_KEY_VIOLATION):
        waits.result()


# Deadlocks, timeouts, cancelling.


@pytest.mark.parametrize("number", [2, 3])
def test_one_of_a_circle_is_told(sessions: list[Connection], threads: ThreadPoolExecutor, number: int) -> None:
    chosen = sessions[:number]
    for row, session in enumerate(chosen, 1):
        run(session, "BEGIN", f"UPDATE t SET a = {row} WHERE id = {row}")
    waits = []
    for row, session in enumerate(chosen[:-1], 2):
        waits.append(later(threads, session, f"UPDATE t SET a = a + 10 WHERE id = {row}"))
        waiting(sessions[3], len(waits))
    with fails(errors.DEADLOCK_DETECTED, "deadlock detected", "NO KEY UPDATE", '(id)=(1) of table "t"') as closed:
        run(chosen[-1], "UPDATE t SET a = a + 10 WHERE id = 1")
    assert closed.error.detail is not None
    assert len(closed.error.detail.splitlines()) == number
    with fails(errors.IN_FAILED_TRANSACTION):
        run(chosen[-1], "SELECT 1")
    for session, wait in reversed(list(zip(chosen, waits, strict=False))):  # who was told need not have gone back
        wait.result()
        run(session, "COMMIT")
    assert rows(sessions[3], "SELECT * FROM instar.transaction_locks") == []


def test_two_who_share_a_row_and_want_to_change_it(sessions: list[Connection], threads: ThreadPoolExecutor) -> None:
    one, two, three, _ = sessions
    for session in (one, two):
        run(session, "BEGIN", "SELECT * FROM t WHERE id = 1 FOR SHARE")
    waits = later(threads, one, "UPDATE t SET a = 1 WHERE id = 1")
    waiting(three)
    with fails(errors.DEADLOCK_DETECTED):
        run(two, "UPDATE t SET a = 2 WHERE id = 1")
    waits.result()
    run(two, "ROLLBACK")
    run(one, "COMMIT")


def test_statements_of_many_rows_in_any_order_do_not_block_one_another(
    sessions: list[Connection], threads: ThreadPoolExecutor
) -> None:
    """Locks are taken in the order of keys, whatever the order in which rows were found."""

    def work(session: Connection, order: str) -> None:
        for _ in range(15):
            run(
                session, "BEGIN", f"SELECT id FROM t ORDER BY id {order} FOR UPDATE", "UPDATE t SET a = a + 1", "COMMIT"
            )

    for each in [threads.submit(work, sessions[0], "ASC"), threads.submit(work, sessions[1], "DESC")]:
        each.result()
    assert rows(sessions[2], "SELECT DISTINCT a FROM t") == [(30,)]


def test_lock_timeout(sessions: list[Connection]) -> None:
    one, two, *_ = sessions
    run(one, "BEGIN", "UPDATE t SET a = 1 WHERE id = 1")
    run(two, "SET lock_timeout = '5ms'", "BEGIN", "UPDATE t SET a = 1 WHERE id = 2", "SAVEPOINT s")
    with fails(errors.LOCK_NOT_AVAILABLE, "canceling statement due to lock timeout"):
        run(two, "UPDATE t SET a = 2 WHERE id = 1")
    run(two, "ROLLBACK TO s", "UPDATE t SET a = 2 WHERE id = 3", "COMMIT")
    run(one, "COMMIT")
    assert rows(one, "SELECT a FROM t ORDER BY id") == [(1,), (1,), (2,), (0,)]
    assert value(two, "SHOW lock_timeout") == "5ms"


@pytest.mark.parametrize("statement", ["UPDATE t SET a = 2 WHERE id = 1", "SELECT * FROM t FOR UPDATE"])
@pytest.mark.parametrize("explicit", [False, True])
def test_cancel_ends_a_wait(
    sessions: list[Connection], threads: ThreadPoolExecutor, statement: str, explicit: bool
) -> None:
    one, two, three, _ = sessions
    run(one, "BEGIN", "UPDATE t SET a = 1 WHERE id = 1")
    waits = later(threads, two, *(["BEGIN"] if explicit else []), statement)
    waiting(three)
    two.cancel()
    with fails(errors.QUERY_CANCELED):
        waits.result()
    assert rows(three, "SELECT * FROM instar.transaction_locks WHERE NOT granted") == []
    run(two, "ROLLBACK") if explicit else None


def test_a_failed_statement_leaves_nothing_but_locks(sessions: list[Connection]) -> None:
    """Those taken after a savepoint are kept until the transaction ends: they cannot harm but by being there."""
    one, two, *_ = sessions
    run(one, "BEGIN", "SAVEPOINT s", "UPDATE t SET a = 1 WHERE id = 1", "ROLLBACK TO s")
    give_up(two, "UPDATE t SET a = 2 WHERE id = 1")
    run(one, "COMMIT")
    run(two, "UPDATE t SET a = 2 WHERE id = 1")
    assert value(one, "SELECT a FROM t WHERE id = 1") == 2


# Beside optimistic locks and changes of the schema.


def test_rows_of_several_optimistic_locks_are_locked_by_parts(
    sessions: list[Connection], threads: ThreadPoolExecutor
) -> None:
    one, two, three, _ = sessions
    run(one, "ALTER TABLE t ADD LOCK words COVERS (s)")
    run(one, "BEGIN", "UPDATE t SET a = 1 WHERE id = 1")
    run(two, "BEGIN", "UPDATE t SET s = 'y' WHERE id = 1")
    run(three, "SET lock_timeout = '1ms'")
    for statement in ("UPDATE t SET a = 2", "UPDATE t SET s = 'z'", "DELETE FROM t", "SELECT * FROM t FOR SHARE"):
        with fails(errors.LOCK_NOT_AVAILABLE):
            run(three, statement)
    assert len(rows(three, "SELECT * FROM t FOR KEY SHARE")) == 4
    run(two, "COMMIT")
    run(one, "COMMIT")
    assert rows(three, "SELECT a, s FROM t WHERE id = 1") == [(1, "y")]
    run(one, "BEGIN", "SELECT * FROM t WHERE id = 1 FOR SHARE")
    for statement in ("UPDATE t SET a = 2 WHERE id = 1", "UPDATE t SET s = 'z' WHERE id = 1"):
        with fails(errors.LOCK_NOT_AVAILABLE):
            run(three, statement)


def test_a_change_of_the_schema_waits_for_no_row_lock(sessions: list[Connection]) -> None:
    one, two, *_ = sessions
    run(one, "BEGIN", "UPDATE t SET a = 1 WHERE id = 1", "SELECT * FROM t FOR UPDATE")
    run(
        two,
        "SET lock_timeout = '1ms'",
        "CREATE INDEX ta ON t (a)",
        "ALTER TABLE t ADD COLUMN n int NOT NULL DEFAULT 3",
        "COMPACT TABLE t",
    )
    run(one, "UPDATE t SET n = 4 WHERE id = 1", "COMMIT")
    assert rows(two, "SELECT a, n FROM t WHERE a = 1") == [(1, 4)]
    assert rows(two, "CHECK DATABASE") == []


def test_a_row_stays_locked_under_a_change_of_the_schema(
    sessions: list[Connection], threads: ThreadPoolExecutor
) -> None:
    one, two, three, _ = sessions
    run(one, "BEGIN", "UPDATE t SET a = 1 WHERE id = 1")
    run(two, "ALTER TABLE t ADD COLUMN n int", "CREATE INDEX ta ON t (a)")
    waits = later(threads, two, "UPDATE t SET a = a + 1 WHERE id = 1")
    waiting(three)
    run(one, "UPDATE t SET a = a + 10 WHERE id = 1", "COMMIT")
    waits.result()
    assert value(three, "SELECT a FROM t WHERE id = 1") == 12


# Many at once.


def test_counters_lose_nothing(sessions: list[Connection], threads: ThreadPoolExecutor) -> None:
    """No transaction fails, whoever meets whom: statements of several rows lock them in order."""

    def work(session: Connection) -> None:
        for number in range(20):
            if number % 2:
                run(session, "UPDATE t SET a = a + 1 WHERE id = 1")
            else:
                run(session, "BEGIN", "UPDATE t SET a = a + 1 WHERE id <= 2", "COMMIT")

    for each in [threads.submit(work, session) for session in sessions]:
        each.result()
    assert rows(sessions[0], "SELECT a FROM t ORDER BY id LIMIT 2") == [(80,), (40,)]


def test_transfers_in_any_order_keep_the_sum(sessions: list[Connection], threads: ThreadPoolExecutor) -> None:
    """Deadlocks are the only thing that befalls them, and are tried again."""
    befell: list[str] = []

    def work(number: int, session: Connection) -> None:
        done = 0
        while done < 12:
            one, other = 1 + (number + done) % 4, 1 + (number * 3 + done * 2 + 1) % 4
            try:
                run(
                    session,
                    "BEGIN",
                    f"UPDATE t SET a = a - 1 WHERE id = {one}",
                    f"UPDATE t SET a = a + 1 WHERE id = {other}",
                    "COMMIT",
                )
                done += 1
            except instar.Error as failed:
                befell.append(failed.sqlstate)
                session.rollback()

    for each in [threads.submit(work, number, session) for number, session in enumerate(sessions)]:
        each.result()
    assert set(befell) <= {errors.DEADLOCK_DETECTED}
    assert value(sessions[0], "SELECT sum(a) FROM t") == 0
    assert rows(sessions[0], "SELECT * FROM instar.transaction_locks") == []


def test_the_view_names_rows_keys_and_who_waits(sessions: list[Connection], threads: ThreadPoolExecutor) -> None:
    one, two, three, _ = sessions
    run(one, "BEGIN", "UPDATE t SET u = 50 WHERE id = 1")
    waits = later(threads, two, "BEGIN", "SELECT * FROM t WHERE id = 1 FOR SHARE")
    waiting(three)
    shown = (
        "SELECT table_name, index_name, key, mode, granted FROM instar.transaction_locks ORDER BY granted, index_name"
    )
    key = ("t", "t_u_key", None, "UPDATE", True)
    row = ("t", None, "(id)=(1)", "UPDATE", True)
    assert rows(three, shown) == [("t", None, "(id)=(1)", "SHARE", False), key, key, row]
    holder, waiter = rows(
        three,
        "SELECT DISTINCT granted, transaction, pid, waits_for FROM instar.transaction_locks ORDER BY granted DESC",
    )
    assert waiter[3] == f"{holder[2]}/{holder[1]}"
    assert holder[3] is None
    run(one, "COMMIT")
    waits.result()
    run(two, "COMMIT")


def test_a_commit_whose_locks_cannot_be_let_go_of_stands(tmp_path: Path) -> None:
    """A full disk: the locks of the younger transaction end with a record, since an older one lives."""

    def work() -> None:
        older, younger = (instar.connect(tmp_path / "db", synchronous="off", autocommit=True) for _ in range(2))
        run(older, "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 0), (2, 0), (3, 0)")
        run(older, "BEGIN", "SELECT * FROM t WHERE id = 1 FOR UPDATE")
        run(younger, "BEGIN", "SELECT * FROM t WHERE id = 2 FOR UPDATE", "UPDATE t SET a = 1 WHERE id = 2")
        told: list[str] = []
        younger.on_notice = told.append
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, limits[1]))
        run(younger, "COMMIT")
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert len(told) == 1
        assert told[0].startswith(
            "NOTICE:  the transaction has ended, but others may find its locks still: the disk is full"
        )
        assert rows(younger, "SELECT a FROM t WHERE id = 2") == [(1,)]
        locks = younger.database.store.locks
        assert len(locks.entries()) == 2
        run(younger, "BEGIN", "SELECT * FROM t WHERE id = 3 FOR UPDATE", "COMMIT")  # whoever locks does it now
        assert [entry.owner for entry in locks.entries()] == [older.session.locks.owner]

    assert ended(in_child(work)) == 0


@pytest.mark.parametrize(
    ("before", "change", "write"),
    [
        ("", "ALTER TABLE t ADD LOCK l COVERS (a)", "UPDATE t SET a = a - 7 WHERE id = 1"),
        ("ALTER TABLE t ADD LOCK k COVERS (s)", "ALTER TABLE t DROP LOCK k", "UPDATE t SET a = a - 7 WHERE id = 1"),
        ("", "ALTER TABLE t ADD LOCK l COVERS (s)", "DELETE FROM t WHERE id = 1"),
    ],
)
def test_who_has_written_a_row_is_waited_for_when_its_locks_are_others_by_now(
    sessions: list[Connection], before: str, change: str, write: str
) -> None:
    one, two, three, _ = sessions
    run(three, *filter(None, [before]))
    run(one, "BEGIN", "UPDATE t SET a = a + 1 WHERE id = 1")
    run(three, change)
    run(two, "SET lock_timeout = '1ms'")
    with fails(errors.LOCK_NOT_AVAILABLE):
        run(two, write)
    with fails(errors.LOCK_NOT_AVAILABLE):
        run(two, "BEGIN", write)
    run(one, "COMMIT")


def test_what_another_lock_covers_now_is_compared_by_the_next_statement(sessions: list[Connection]) -> None:
    """Else it would show half of what another has written: rows that it has buffered itself hide the rest."""
    one, two, three, _ = sessions
    run(three, "ALTER TABLE t ADD LOCK l COVERS (s)", "UPDATE t SET a = 100")
    run(one, "BEGIN", "UPDATE t SET a = a - 10 WHERE id = 1", "UPDATE t SET a = a + 10 WHERE id = 2")
    run(three, "ALTER TABLE t ALTER LOCK l COVERS (s, a)")
    run(two, "BEGIN", "UPDATE t SET a = a - 7 WHERE id = 1", "UPDATE t SET a = a + 7 WHERE id = 3", "COMMIT")
    with fails(errors.SERIALIZATION_FAILURE, "(id)=(1) was changed", "The change was: ALTER TABLE t ALTER LOCK l"):
        run(one, "SELECT sum(a) FROM t")
    run(one, "ROLLBACK")


@pytest.mark.parametrize(
    "statement", ["SELECT sum(a) FROM n", "SELECT a FROM n WHERE k = 14", "UPDATE n SET a = 0 WHERE k = 14"]
)
def test_rows_that_were_anothers_are_looked_at_again(sessions: list[Connection], statement: str) -> None:
    """A query does not wait for the locks of rows under their new keys; the next statement asks for them anew."""
    one, two, three, _ = sessions
    run(three, "SET ddl_wait = '0'", "CREATE TABLE n (id int PRIMARY KEY, k int NOT NULL UNIQUE, a int)")
    run(three, "INSERT INTO n VALUES (1, 11, 100), (2, 12, 100), (3, 13, 100), (4, 14, 100)")
    run(one, "BEGIN", "UPDATE n SET a = a - 10 WHERE id = 1", "UPDATE n SET a = a + 10 WHERE id = 2")
    run(three, "ALTER TABLE n ALTER PRIMARY KEY (k)")
    run(two, "BEGIN", "UPDATE n SET a = a - 7 WHERE id = 1", "UPDATE n SET a = a + 7 WHERE id = 3")
    assert value(one, "SELECT sum(a) FROM n") == 400
    run(two, "COMMIT")
    with fails(errors.SERIALIZATION_FAILURE, "was changed by a transaction", "ALTER PRIMARY KEY"):
        run(one, statement)
    run(one, "ROLLBACK")


@pytest.mark.parametrize("asks", [False, True])
def test_a_key_that_has_come_since_names_its_change(sessions: list[Connection], asks: bool) -> None:
    """Whether or not a statement under the new schema came before COMMIT."""
    one, _, three, _ = sessions
    run(one, "BEGIN", "INSERT INTO t (id, a) VALUES (90, 500), (91, 500)")
    run(three, "UPDATE t SET a = id", "CREATE UNIQUE INDEX ta ON t (a)")
    if asks:
        run(one, "SELECT 1 FROM t WHERE id = 1", "UPDATE t SET s = 'z' WHERE id = 90")
    with fails(errors.UNIQUE_VIOLATION, '"ta"', "The change was: CREATE UNIQUE INDEX ta ON t (a)"):
        run(one, "COMMIT")


def test_a_check_that_has_come_since_names_its_change(sessions: list[Connection]) -> None:
    one, _, three, _ = sessions
    run(one, "BEGIN", "INSERT INTO t (id, a) VALUES (90, -1)")
    run(three, "UPDATE t SET a = id", "ALTER TABLE t ADD CHECK (a >= 0)")
    with fails(errors.CHECK_VIOLATION, "The change was: ALTER TABLE t ADD CHECK (a >= 0)"):
        run(one, "SELECT count(*) FROM t")
    run(one, "ROLLBACK")


def test_two_changes_of_one_table_name_the_first(sessions: list[Connection]) -> None:
    one, two, *_ = sessions
    run(one, "BEGIN", "ALTER TABLE t ADD COLUMN x int")
    run(two, "ALTER TABLE t ADD COLUMN y int")
    with fails(errors.SERIALIZATION_FAILURE, '"t" was changed by', "The change was: ALTER TABLE t ADD COLUMN y int"):
        run(one, "SELECT 1", "COMMIT")
    run(one, "ROLLBACK")


@pytest.mark.parametrize("own", ["INSERT INTO n VALUES (9, 19, 0)", "UPDATE n SET k = 19 WHERE id = 1"])
@pytest.mark.parametrize("others", ["INSERT INTO n VALUES (8, 19, 0)", "UPDATE n SET k = 19 WHERE id = 2"])
def test_a_new_key_that_another_has_taken_is_told_by_the_next_statement(
    sessions: list[Connection], own: str, others: str
) -> None:
    """Or what is buffered would hide the other's row."""
    one, two, three, _ = sessions
    run(three, "SET ddl_wait = '0'", "CREATE TABLE n (id int PRIMARY KEY, k int NOT NULL, a int)")
    run(three, "INSERT INTO n VALUES (1, 11, 0), (2, 12, 0)")
    run(one, "BEGIN", own)
    run(three, "ALTER TABLE n ALTER PRIMARY KEY (k)")
    run(two, others)
    with fails(errors.SERIALIZATION_FAILURE, "(k)=(19)", "The change was: ALTER TABLE n ALTER PRIMARY KEY (k)"):
        run(one, "SELECT sum(k) FROM n")
    run(one, "ROLLBACK")


def test_rows_that_are_anothers_are_asked_for_when_they_are_free(
    sessions: list[Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not by every statement until then, each of which would look at all that is buffered."""
    one, two, three, _ = sessions
    run(three, "SET ddl_wait = '0'", "CREATE TABLE n (id int PRIMARY KEY, k int NOT NULL, a int)")
    run(three, "INSERT INTO n VALUES (1, 11, 0), (2, 12, 0)")
    run(one, "BEGIN", "UPDATE n SET a = 1")
    run(three, "ALTER TABLE n ALTER PRIMARY KEY (k)")
    run(two, "BEGIN", "SELECT * FROM n WHERE k = 12 FOR UPDATE")
    asked: list[int] = []
    needs = row_locks.of_written

    def noted(*given: Any) -> Any:
        asked.append(1)
        return needs(*given)

    monkeypatch.setattr(row_locks, "of_written", noted)
    for _ in range(5):
        run(one, "SELECT count(*) FROM q")
    assert len(asked) == 2
    run(two, "COMMIT")
    run(one, "SELECT count(*) FROM q", "SELECT count(*) FROM q", "UPDATE n SET a = 2", "COMMIT")
    assert rows(two, "SELECT a FROM n") == [(2,), (2,)]


@pytest.mark.parametrize("others", ["UPDATE t SET s = s || 'y'", "UPDATE t SET s = s || 'y' WHERE id = 1"])
def test_another_part_of_a_row_that_was_changed_before_is_changed_as_it_is_by_now(
    sessions: list[Connection], others: str
) -> None:
    """The transaction's own image of the row has that part as it was when it was read."""
    one, two, *_ = sessions
    run(two, "ALTER TABLE t ADD LOCK words COVERS (s)", "UPDATE t SET a = 0, s = 'x'")
    run(one, "BEGIN", "UPDATE t SET a = a + 5 WHERE id IN (1, 2)")
    run(two, others)
    changed = "UPDATE t SET s = s || 'z' WHERE id IN (1, 2, 3) RETURNING id, a, s"
    second = "xyz" if "WHERE" not in others else "xz"
    assert sorted(rows(one, changed)) == [(1, 5, "xyz"), (2, 5, second), (3, 0, second)]
    run(one, "COMMIT")
    assert rows(two, "SELECT id, a, s FROM t WHERE id < 3 ORDER BY id") == [(1, 5, "xyz"), (2, 5, second)]


def test_what_is_caught_up_with_is_taken_back_with_its_statement(sessions: list[Connection]) -> None:
    one, two, *_ = sessions
    run(two, "ALTER TABLE t ADD LOCK words COVERS (s)", "UPDATE t SET a = 0, s = 'x'")
    run(one, "BEGIN", "UPDATE t SET a = a + 5 WHERE id = 1", "SAVEPOINT p")
    run(two, "UPDATE t SET s = 'y' WHERE id = 1")
    run(one, "UPDATE t SET s = s || 'z' WHERE id = 1", "ROLLBACK TO p", "COMMIT")
    assert rows(two, "SELECT a, s FROM t WHERE id = 1") == [(5, "y")]


def test_whoever_is_slower_than_others_gets_its_turn(
    sessions: list[Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement in autocommit that is derived outside of the section, while somebody changes its row before each of
    its commits: from the fourth attempt on it locks what it writes, so that it is not refused for ever."""
    one, two, *_ = sessions
    run(two, "SET lock_timeout = '10ms'")
    session, met = one.session, []
    commit = session._commit

    def late(*arguments: Any, **named: Any) -> object:
        try:
            run(two, "UPDATE t SET a = a + 1 WHERE id = 1")
            met.append("moved")
        except instar.OperationalError as refused:
            met.append(refused.sqlstate)
        return commit(*arguments, **named)

    monkeypatch.setattr(session, "_commit", late)
    assert one.execute("UPDATE t SET a = a + 100 WHERE id + 0 = 1").rowcount == 1
    monkeypatch.undo()
    assert met == ["moved"] * row_locks.RESTARTS_WITHOUT_LOCKS + [errors.LOCK_NOT_AVAILABLE]
    assert value(two, "SELECT a FROM t WHERE id = 1") == 100 + row_locks.RESTARTS_WITHOUT_LOCKS
    run(two, "UPDATE t SET a = 0 WHERE id = 1")  # the lock is gone
