"""ADD CONSTRAINT beside writers: the schedules of "Non-blocking lazy schema changes", tables 3.1 to 3.4, and §3.3.4.

T1 is the session that changes the schema, T2 another that writes what the constraint forbids. The paper's steps of T1
are the stages of its job: its constraint is on the pending list from "added" on, and has been scanned for at "scanned".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

import instar
from instar.catalog.descriptors import Check, ForeignKey, Index, State, Table
from instar.database import Database, commit
from instar.dbapi import Connection
from instar.schemachange import reorganize
from instar.schemachange.tasks import Task
from instar.store.engine import Commit, ValueUnchanged
from instar.store.records import Latest, latest_key
from support.databases import Engine, fails, rows, run

Hook = Callable[[], None]
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
YIELDING = " WITH (violation = 'abort change')"
REFUSING = " WITH (violation = 'reject write')"


class Kind(NamedTuple):
    """A kind of constraint: the statement, what violates it, the SQLSTATE of that, and those that a T2 which did not
    know of it is given at COMMIT, while it is pending and once it is public."""

    change: str
    violates: str
    sqlstate: str
    at_commit: tuple[str, str]


KINDS = {
    "not null": Kind(
        "ALTER TABLE t ALTER a SET NOT NULL", "INSERT INTO t VALUES (9, NULL, 1)", "23502", ("23502",) * 2
    ),
    "check": Kind("ALTER TABLE t ADD CHECK (a < 1000)", "UPDATE t SET a = 1000 WHERE id = 2", "23514", ("23514",) * 2),
    "unique": Kind("ALTER TABLE t ADD UNIQUE (a)", "INSERT INTO t VALUES (9, 1, 1)", "23505", ("23505",) * 2),
    "unique index": Kind("CREATE UNIQUE INDEX i ON t (a)", "UPDATE t SET a = 1 WHERE id = 2", "23505", ("23505",) * 2),
    "foreign key, child": Kind(
        "ALTER TABLE t ADD FOREIGN KEY (p) REFERENCES parent",
        "INSERT INTO t VALUES (9, 9, 9)",
        "23503",
        ("23503", "40001"),
    ),
    "foreign key, parent": Kind(
        "ALTER TABLE t ADD FOREIGN KEY (p) REFERENCES parent",
        "DELETE FROM parent WHERE id = 2",
        "23503",
        ("40001", "40001"),
    ),
}


class Sessions:
    """T1, T2, and the moments of T1's change at which something else is done."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.database = engine.database
        self.t1, self.t2 = engine.connect(), engine.connect()
        self._monkeypatch = monkeypatch
        run(
            self.t1,
            "CREATE TABLE parent (id int PRIMARY KEY)",
            "INSERT INTO parent VALUES (1), (2)",
            "CREATE TABLE t (id int PRIMARY KEY, a int, p int)",
            "INSERT INTO t VALUES (1, 1, 1), (2, 2, 2)",
        )

    def change(self, statement: str, *, added: Hook = lambda: None, scanned: Hook = lambda: None) -> None:
        """T1's statement. `added`: once the constraint is pending; `scanned`: once no row was found that violates it,
        with the change still to be committed."""
        fill = reorganize.InProcess.run
        seen: set[str] = set()

        def run_reorganizer(self: reorganize.InProcess, task: Task, pulse: Hook) -> None:
            kind = type(task).__name__
            if not seen:
                added()
            seen.add(kind)
            fill(self, task, pulse)
            if kind == "Validation" or "FOREIGN" not in statement:
                scanned()

        with self._monkeypatch.context() as patched:
            patched.setattr(reorganize.InProcess, "run", run_reorganizer)
            self.t1.execute(statement)

    def is_brought(self) -> bool:
        """Whether the constraint is there and relied on; if not, nothing of it is left."""
        with self.database.store.read() as reader:
            table = self.database.catalog.at(reader).lookup("public", "t")
            flags = list(reader.scan(latest_key(Latest.VIOLATION), latest_key(Latest.VIOLATION, b"\xff")))
        assert isinstance(table, Table)
        assert flags == []
        column = next(column for column in table.columns if column.name == "a")
        unique = [index for index in table.indexes if index.unique]
        listed: list[Index | Check | ForeignKey] = [*table.checks, *table.foreign_keys, *unique]
        assert all(found.state is State.PUBLIC and not found.yields for found in listed)
        assert column.not_null is None or not column.nullable
        assert not column.not_null_yields
        return bool(listed) or not column.nullable


@pytest.fixture
def sessions(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sessions]:
    made = Sessions(engine, monkeypatch)
    yield made
    assert rows(made.t1, "CHECK DATABASE") == []


INSERT_NULL = "INSERT INTO t VALUES (2000, NULL, 1)"
ADD_NOT_NULL = "ALTER TABLE t ALTER a SET NOT NULL"


@pytest.mark.parametrize("policy", [YIELDING, REFUSING])
def test_table_3_1_a_change_scans_what_was_committed_after_its_transaction_began(
    sessions: Sessions, policy: str
) -> None:
    """Step I: T1 refreshes its timestamp. A scan of its own snapshot would not do."""
    t1, t2 = sessions.t1, sessions.t2
    run(t1, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    assert rows(t1, "SELECT count(*) FROM t") == [(2,)]
    run(t2, "BEGIN", INSERT_NULL, "COMMIT")
    t1.execute(ADD_NOT_NULL + policy)
    assert rows(t1, "SELECT count(*) FROM t WHERE a IS NULL") == [(0,)]  # what T1's own timestamp shows
    with fails("XXS01", "23502", "(id)=(2000)"):
        t1.execute("COMMIT")
    assert not sessions.is_brought()


@pytest.mark.parametrize("level", LEVELS)
def test_table_3_2_a_writer_that_commits_before_the_change_aborts_it(sessions: Sessions, level: str) -> None:
    """Step II: T2 finds the constraint on the pending list when it commits, and sets its violation flag."""
    t2 = sessions.t2

    def scanned() -> None:
        run(t2, INSERT_NULL, "COMMIT")

    with fails("23502", "contains null values", "(id)=(2000)"):
        sessions.change(
            ADD_NOT_NULL + YIELDING,
            added=lambda: run(t2, f"BEGIN ISOLATION LEVEL {level}", "SELECT * FROM t"),
            scanned=scanned,
        )
    assert rows(t2, "SELECT id FROM t WHERE a IS NULL") == [(2000,)]
    assert not sessions.is_brought()


@pytest.mark.parametrize("level", LEVELS)
def test_table_3_3_a_writer_that_commits_after_the_change_is_aborted(sessions: Sessions, level: str) -> None:
    """Step III: T1 enforces its constraint with its commit, so T2, which did not know, is refused."""
    t2 = sessions.t2
    sessions.change(
        ADD_NOT_NULL + YIELDING,
        added=lambda: run(t2, f"BEGIN ISOLATION LEVEL {level}", "SELECT * FROM t"),
        scanned=lambda: run(t2, INSERT_NULL),
    )
    with fails("23502", "violates not-null constraint"):
        t2.execute("COMMIT")
    assert rows(t2, "SELECT id FROM t WHERE a IS NULL") == []
    assert sessions.is_brought()


def _changed(sessions: Sessions, statement: str, **hooks: Hook) -> str:
    """The SQLSTATE that the change fails with; empty: none."""
    try:
        sessions.change(statement, **hooks)
    except instar.Error as failed:
        return failed.sqlstate
    return ""


def _written(t2: Connection, *statements: str) -> str:
    """The SQLSTATE that T2 fails with, which is then rolled back."""
    try:
        run(t2, *statements)
    except instar.Error as failed:
        t2.execute("ROLLBACK")
        return failed.sqlstate
    return ""


# When T2 writes, and when it commits: before T1's step 4, after it and before step 7, after step 7.
MOMENTS = [
    ("before", "before"), ("before", "scanned"), ("before", "after"), ("scanned", "scanned"), ("scanned", "after"),
    ("after", "after"),
]  # fmt: skip


@pytest.mark.parametrize("policy", ["abort change", "reject write"])
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
@pytest.mark.parametrize(("writes", "commits"), MOMENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_table_3_4_whoever_commits_first_wins(
    sessions: Sessions, kind: str, writes: str, commits: str, level: str, policy: str
) -> None:
    """All steps of the table: T2 aborts T1 if it commits before it, and is aborted if it commits after it. With
    `reject write` it is T2 that gives way from T1's step 4 on."""
    change, violates, sqlstate, at_commit = KINDS[kind]
    t2 = sessions.t2
    met: dict[str, str] = {}

    def at(moment: str) -> None:
        if moment == writes:
            met["write"] = _written(t2, f"BEGIN ISOLATION LEVEL {level}", violates)
        if moment == commits and not met["write"]:
            met["commit"] = _written(t2, "COMMIT")

    at("before")
    changed = _changed(sessions, f"{change} WITH (violation = '{policy}')", scanned=lambda: at("scanned"))
    brought = sessions.is_brought()
    at("after")
    wins = commits == "before" or (commits == "scanned" and policy == "abort change")
    assert (changed, brought) == ((sqlstate, False) if wins else ("", True))
    if wins:
        assert met == {"write": "", "commit": ""}
    elif writes == "after" or (writes == "scanned" and policy == "reject write" and "unique" not in kind):
        assert met == {"write": sqlstate}
    else:  # whether a unique key is free is judged at COMMIT as long as its index is not public
        assert met == {"write": "", "commit": at_commit[commits == "after"]}


@pytest.mark.parametrize("policy", ["reject write", "abort change"])
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
@pytest.mark.parametrize("kind", ["unique", "unique index"])
def test_what_repeats_a_row_that_a_unique_index_has_not_yet(
    sessions: Sessions, kind: str, level: str, policy: str
) -> None:
    """It stands under either policy, and fails the change: there is no index yet that could tell T2 of the row."""
    change, violates, sqlstate, _ = KINDS[kind]
    met: list[str] = []

    def repeat() -> None:
        met.append(_written(sessions.t2, f"BEGIN ISOLATION LEVEL {level}", violates, "COMMIT"))

    with fails(sqlstate):
        sessions.change(f"{change} WITH (violation = '{policy}')", added=repeat)
    assert met == [""]
    assert not sessions.is_brought()
    assert rows(sessions.t1, "SELECT count(*) FROM t WHERE a = 1") == [(2,)]
    assert rows(sessions.t1, "CHECK DATABASE") == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_flag_that_is_set_while_the_change_is_about_to_be_judged(
    sessions: Sessions, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 7 of T1 is atomic: T2 commits once T1's last stage has been made, and no flag was seen."""
    change, violates, sqlstate, _ = KINDS[kind]
    store = sessions.database.store
    commit_of = store.commit

    def publishing(request: Commit) -> int:
        if any(isinstance(one, ValueUnchanged) and one.key[1] == Latest.VIOLATION for one in request.preconditions):
            monkeypatch.setattr(store, "commit", commit_of)
            run(sessions.t2, violates)
        return commit_of(request)

    monkeypatch.setattr(store, "commit", publishing)
    with fails(sqlstate, "aborts the change"):
        sessions.change(change + YIELDING)
    assert not sessions.is_brought()


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_that_commits_while_a_write_is_about_to_be_judged(
    sessions: Sessions, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 3 of T2 is atomic: T1 commits once T2 is about to set its flag, in place of being held to the constraint."""
    change, violates, _, at_commit = KINDS[kind]
    store = sessions.database.store
    commit_of = store.commit
    derived, published = threading.Event(), threading.Event()
    met: list[str] = []

    def committing(request: Commit) -> int:
        if any(key[1] == Latest.VIOLATION for key, _ in request.raw) and threading.current_thread() is writer:
            derived.set()
            assert published.wait(60)
        return commit_of(request)

    writer = threading.Thread(target=lambda: met.append(_written(sessions.t2, "BEGIN", violates, "COMMIT")))

    def scanned() -> None:
        monkeypatch.setattr(store, "commit", committing)
        writer.start()
        assert derived.wait(60)

    sessions.change(change + YIELDING, scanned=scanned)
    published.set()
    writer.join(60)
    assert met == [at_commit[1]]
    assert sessions.is_brought()


def test_an_aborted_change_takes_its_entry_off_the_list(sessions: Sessions) -> None:
    """§3.3.4: new transactions need not check against it, and the next change finds no flag."""
    t2 = sessions.t2
    with fails("23502", "(id)=(2000)"):
        sessions.change(ADD_NOT_NULL + YIELDING, scanned=lambda: run(t2, INSERT_NULL))
    run(t2, "INSERT INTO t VALUES (2001, NULL, 1)", "DELETE FROM t WHERE a IS NULL")
    sessions.change(ADD_NOT_NULL + YIELDING)
    assert sessions.is_brought()


def test_a_cancelled_change_takes_its_entry_off_the_list(sessions: Sessions) -> None:
    def scanned() -> None:
        run(sessions.t2, INSERT_NULL)
        ((job,),) = rows(sessions.t2, "SELECT id FROM instar.jobs")
        sessions.t2.execute(f"CANCEL JOB {job}")

    assert _changed(sessions, ADD_NOT_NULL + YIELDING, scanned=scanned) in ("57014", "23502")
    assert not sessions.is_brought()


def test_only_transactions_that_began_before_the_change_check_its_constraint_apart(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§3.3.4: a committed change leaves its entry, stamped: the version at which the table's list has moved. It is
    checked by transactions that were meant under an older one; those that began since know it from their statements."""
    held: list[str] = []
    hold = commit.hold

    def counted(*arguments: object) -> None:
        held.append("")
        hold(*arguments)  # type: ignore[arg-type] # handed on as they are

    monkeypatch.setattr(commit, "hold", counted)
    run(sessions.t2, "BEGIN", "INSERT INTO t VALUES (9, 9, 1)")
    sessions.change(ADD_NOT_NULL + YIELDING)
    sessions.t2.execute("COMMIT")
    assert len(held) == 1
    run(sessions.t2, "BEGIN", "INSERT INTO t VALUES (10, 10, 1)", "COMMIT")
    assert len(held) == 1


def test_a_change_gives_up_while_it_waits_as_soon_as_it_is_violated(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flag is looked at while the change is under way: it is bound to fail, and does so before its scan has
    ended."""
    sessions = Sessions(engine, monkeypatch)
    database: Database = sessions.database
    pulses: list[int] = []
    fill = reorganize.InProcess.run

    def endless(self: reorganize.InProcess, task: Task, pulse: Hook) -> None:
        run(sessions.t2, INSERT_NULL)
        while len(pulses) < 100_000:
            pulses.append(1)
            database.clock.sleep(0.01)
            pulse()
        fill(self, task, pulse)

    monkeypatch.setattr(reorganize.InProcess, "run", endless)
    with fails("23502", "(id)=(2000)"):
        sessions.t1.execute(ADD_NOT_NULL + YIELDING)
    assert len(pulses) < 100_000
    assert not sessions.is_brought()


def test_a_pending_constraint_that_yields_does_nothing_to_rows(sessions: Sessions) -> None:
    """A foreign key's actions are not taken either: a parent goes, its child stays, the change is aborted."""

    def scanned() -> None:
        run(sessions.t2, "DELETE FROM parent WHERE id = 2")
        assert rows(sessions.t2, "SELECT id FROM t WHERE p = 2") == [(2,)]

    with fails("23503", 'table "parent"', "(id)=(2)"):
        sessions.change(
            "ALTER TABLE t ADD FOREIGN KEY (p) REFERENCES parent ON DELETE CASCADE" + YIELDING, scanned=scanned
        )
    assert not sessions.is_brought()


def test_a_transaction_that_violates_its_own_change_aborts_it(sessions: Sessions) -> None:
    run(sessions.t1, "BEGIN", ADD_NOT_NULL + YIELDING, INSERT_NULL)
    with fails("XXS01", "23502", "(id)=(2000)"):
        sessions.t1.execute("COMMIT")
    assert rows(sessions.t1, "SELECT id FROM t WHERE a IS NULL") == [(2000,)]
    assert not sessions.is_brought()


def test_every_way_to_write_sets_the_flag(sessions: Sessions) -> None:
    """Prepared look-ups by key, RETURNING, INSERT ... SELECT, executemany and what an upsert makes of a row."""
    ways = (
        lambda t2: t2.execute("UPDATE t SET a = ? WHERE id = ?", (None, 1)),
        lambda t2: t2.execute("INSERT INTO t VALUES (?, ?, ?)", (50, None, 1)),
        lambda t2: t2.execute("UPDATE t SET a = NULL WHERE p = 1 RETURNING id").fetchall(),
        lambda t2: t2.execute("INSERT INTO t SELECT id + 100, NULL, p FROM t"),
        lambda t2: t2.executemany("INSERT INTO t VALUES (?, ?, ?)", [(60 + n, None, 1) for n in range(3)]),
        lambda t2: t2.execute("INSERT INTO t VALUES (1, 1, 1) ON CONFLICT (id) DO UPDATE SET a = NULL"),
    )
    for write in ways:
        for _ in range(2):  # once to prepare it under a schema without the constraint
            write(sessions.t2)
            run(sessions.t2, "DELETE FROM t WHERE id > 2", "UPDATE t SET a = id")

        def scanned(write: Callable[[Connection], object] = write) -> None:
            write(sessions.t2)
            run(sessions.t2, "DELETE FROM t WHERE id > 2", "UPDATE t SET a = id")

        assert _changed(sessions, ADD_NOT_NULL + YIELDING, scanned=scanned) == "23502"
        assert not sessions.is_brought()


def test_where_nobody_can_have_rows_there_is_nothing_to_give_way(sessions: Sessions) -> None:
    run(
        sessions.t1,
        f"CREATE TABLE e (x int, y int, CHECK (x > 0){YIELDING})",
        f"ALTER TABLE e ADD UNIQUE (x){YIELDING}, ALTER y SET NOT NULL{YIELDING}",
    )
    with fails("23502"):
        sessions.t2.execute("INSERT INTO e VALUES (1, NULL)")
    with fails("23514"):
        sessions.t2.execute("INSERT INTO e VALUES (0, 1)")


@pytest.mark.parametrize(
    ("statement", "sqlstate"),
    [
        ("ALTER TABLE t ADD CHECK (a > 0) NOT VALID WITH (violation = 'abort change')", "0A000"),
        ("ALTER TABLE t ADD CHECK (a > 0) WITH (violation = 'abort change') NOT VALID", "0A000"),
        ("ALTER TABLE t ADD PRIMARY KEY (a) WITH (violation = 'abort change')", "0A000"),
        ("ALTER TABLE t ADD COLUMN c int CHECK (c > 0) WITH (violation = 'abort change')", "0A000"),
        ("CREATE INDEX i ON t (a) WITH (violation = 'abort change')", "0A000"),
        ("ALTER TABLE t ADD UNIQUE (a) WITH (fillfactor = 70)", "0A000"),
        ("ALTER TABLE t ADD CHECK (a > 0) WITH (violation = 'ignore')", "22023"),
        ("ALTER TABLE t ADD CHECK (a > 0) WITH (violation = abort)", "42601"),
        ("ALTER TABLE t ADD CHECK (a > 0) WITH violation", "42601"),
    ],
)
def test_policies_that_there_are_not(sessions: Sessions, statement: str, sqlstate: str) -> None:
    with fails(sqlstate):
        sessions.t1.execute(statement)


def test_the_plan_says_what_gives_way(sessions: Sessions) -> None:
    plan = rows(sessions.t1, "EXPLAIN (DDL) ALTER TABLE t ADD CONSTRAINT c CHECK (a < 1000)" + YIELDING)
    assert plan[0][1] == (
        'table "t": check constraint "c": absent -> write-only, a write that violates it aborts the change'
    )
    assert (plan[-1][1], plan[-1][3]) == ('table "t": check constraint "c": write-only -> public', "3")
