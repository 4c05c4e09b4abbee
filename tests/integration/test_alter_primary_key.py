"""ALTER PRIMARY KEY beside transactions that go across it, through SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import instar
from instar.database import Database, Session
from support.databases import before_the_next_commit


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    found = Database.open(str(tmp_path / "db"), synchronous="off")
    yield found
    found.release()


@pytest.fixture
def session(database: Database) -> Session:
    made = database.session()
    made.execute("create table t (id bigint primary key, a integer, b text)")
    made.execute("create index t_b on t (b)")
    made.execute("insert into t values (1, 10, 'x'), (2, 20, 'y'), (3, 30, 'x')")
    return made


ALTER = "alter table t alter primary key (a)"


def rows(session: Session, query: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in session.execute(query).rows]


def refused(session: Session, statement: str) -> str | None:
    with pytest.raises(instar.Error) as caught:
        session.execute(statement)
    return caught.value.sqlstate


def test_repeatable_read_goes_on_with_the_old_key_and_commits_under_the_new(
    database: Database, session: Session
) -> None:
    old = database.session()
    old.execute("begin isolation level repeatable read")
    old.execute("update t set b = 'old' where id = 1")
    session.execute(ALTER)
    session.execute("update t set b = 'new' where a = 20")
    assert rows(old, "select id, b from t order by id") == [(1, "old"), (2, "y"), (3, "x")]
    assert rows(old, "select a from t where id = 2") == [(20,)]
    assert rows(old, "select id from t where b = 'y'") == [(2,)]
    old.execute("update t set a = 31 where id = 3")
    old.execute("delete from t where id = 3 and false")
    old.execute("insert into t values (4, 40, 'n')")
    old.execute("commit")
    assert rows(session, "select * from t order by a") == [
        (1, 10, "old"), (2, 20, "new"), (3, 31, "x"), (4, 40, "n")
    ]  # fmt: skip
    assert rows(session, "select a from t where b = 'old'") == [(10,)]
    assert rows(session, "check database") == []


def test_a_row_that_was_changed_under_the_new_key_is_a_conflict(database: Database, session: Session) -> None:
    old = database.session()
    old.execute("begin isolation level repeatable read")
    old.execute("update t set b = 'old' where id = 2")
    session.execute(ALTER)
    session.execute("update t set b = 'new' where a = 20")
    assert refused(old, "commit") == "40001"
    assert rows(session, "select b from t where a = 20") == [("new",)]


def test_read_committed_goes_on_under_the_new_key(database: Database, session: Session) -> None:
    """Rule 14: what is buffered is brought to the schema of the statement, and a savepoint brings it back."""
    other = database.session()
    other.execute("begin")
    other.execute("update t set a = 11 where id = 1")
    other.execute("savepoint s")
    other.execute("update t set b = 'z' where id = 3")
    session.execute(ALTER)
    assert rows(other, "select * from t order by a") == [(1, 11, "x"), (2, 20, "y"), (3, 30, "z")]
    assert rows(other, "select id from t where a = 11") == [(1,)]
    assert refused(other, "insert into t values (9, 11, 'n')") == "23505"
    other.execute("rollback to s")
    assert rows(other, "select * from t order by a") == [(1, 11, "x"), (2, 20, "y"), (3, 30, "x")]
    other.execute("delete from t where a = 20")
    other.execute("commit")
    assert rows(session, "select * from t order by a") == [(1, 11, "x"), (3, 30, "x")]
    assert rows(session, "check database") == []


def test_rows_that_the_new_key_does_not_admit_fail_at_the_commit(database: Database, session: Session) -> None:
    """What is in the way is told as what it is: the statements could not see that it would be."""
    found = []
    for values in ("(4, 10, 'n')", "(5, 50, 'n'), (6, 50, 'n')", "(7, null, 'n')"):
        other = database.session()
        other.execute("begin isolation level repeatable read")
        other.execute(f"insert into t values {values}")
        found.append(other)
    session.execute(ALTER)
    assert [refused(other, "commit") for other in found] == ["40001", "23505", "23502"]
    assert rows(session, "select count(*) from t") == [(3,)]


def test_serializable_readers_do_not_cross(database: Database, session: Session) -> None:
    reader = database.session()
    reader.execute("begin isolation level serializable")
    assert rows(reader, "select count(*) from t where b = 'x'") == [(2,)]
    reader.execute("insert into t values (4, 40, 'n')")
    session.execute(ALTER)
    assert refused(reader, "commit") == "40001"


def test_prepared_statements_notice(database: Database, session: Session) -> None:
    with instar.connect(database.path, autocommit=True, synchronous="off") as connection:
        texts: dict[str, list[tuple[object, ...]]] = {
            "insert into t values (?, ?, ?)": [(5, 50, "n"), (6, 60, "n"), (7, 70, "n")],
            "update t set b = ? where id = ?": [("p", 1), ("q", 1), ("r", 1)],
            "select a from t where id = ?": [(1,), (1,), (1,)],
            "delete from t where id = ?": [(5,), (6,), (7,)],
        }
        for turn, change in enumerate(("select 1", ALTER, "alter table t alter primary key (id, a)")):
            session.execute(change)
            for text, parameters in texts.items():
                assert connection.execute(text, parameters[turn]).rowcount == 1, (text, change)
        with pytest.raises(instar.Error) as caught:
            connection.execute("insert into t values (?, ?, ?)", (1, 10, "n"))
        assert caught.value.sqlstate == "23505"
    assert rows(session, "select * from t order by a") == [(1, 10, "r"), (2, 20, "y"), (3, 30, "x")]
    assert rows(session, "check database") == []


@pytest.mark.parametrize("swap", [ALTER, "truncate t", "alter table t split into t (id, a), s (a, b) on (a)"])
@pytest.mark.parametrize("level", ["read committed", "repeatable read"])
@pytest.mark.parametrize("wait", ["", "skip locked"])
def test_rows_that_were_selected_for_update_are_not_changed_unseen(
    database: Database, session: Session, wait: str, level: str, swap: str
) -> None:
    """The swap gives them other keys, which are not locked: an update in between would be lost."""
    session.execute("create table other (n integer)")
    holder = database.session()
    holder.execute(f"begin isolation level {level}")
    assert rows(holder, f"select b from t where id = 1 for update {wait}") == [("x",)]
    session.execute(swap)
    session.execute("update t set a = 11 where id = 1")
    insert = "insert into other values (1)"
    if level == "repeatable read":
        holder.execute(insert)
    with pytest.raises(instar.Error, match="that the transaction has locked were replaced") as caught:
        holder.execute("commit" if level == "repeatable read" else insert)
    assert caught.value.sqlstate == "40001"
    assert caught.value.detail == f"The change was: {swap}"
    holder.execute("rollback")
    assert rows(session, "select * from other") == []


def test_of_several_changes_since_rows_were_locked_all_are_named(database: Database, session: Session) -> None:
    """It is not on record which of them replaced the rows; those before the rows were locked did not."""
    session.execute("alter table t add column c integer")
    holder = database.session()
    holder.execute("begin")
    holder.execute("select * from t for update")
    for change in (ALTER, "alter table t add column d integer"):
        session.execute(change)
    with pytest.raises(instar.Error, match="were replaced") as caught:
        holder.execute("select 1")
    assert caught.value.detail == f"The changes since were: {ALTER}; alter table t add column d integer"


@pytest.mark.parametrize("level", ["read committed", "repeatable read"])
def test_a_table_that_is_dropped_leaves_nothing_that_is_locked(
    database: Database, session: Session, level: str
) -> None:
    """Another that takes its name has rows that others may lock, for whatever the lock of a row stands for."""
    session.execute("create table other (n integer)")
    holder, others = database.session(), database.session()
    holder.execute(f"begin isolation level {level}")
    holder.execute("select * from t where id = 1 for update")
    session.execute("drop table t")
    session.execute("create table t (id integer primary key)")
    session.execute("insert into t values (1)")
    others.execute("begin")
    others.execute("select * from t where id = 1 for update nowait")
    statements = ["insert into other values (1)", "commit"]
    if level == "repeatable read":  # whose snapshot has the table until its end
        holder.execute(statements.pop(0))
    with pytest.raises(instar.Error, match='rows of table "t" that the transaction has locked were dropped') as caught:
        holder.execute(statements[0])
    assert caught.value.sqlstate == "40001"
    holder.rollback()
    assert rows(session, "select * from other") == []


@pytest.mark.parametrize("swap", [ALTER, "truncate t", "alter table t split into t (id, a), s (a, b) on (a)"])
@pytest.mark.parametrize("level", ["read committed", "repeatable read"])
def test_rows_that_were_selected_for_update_are_not_replaced_right_before_the_commit(
    database: Database, session: Session, monkeypatch: pytest.MonkeyPatch, level: str, swap: str
) -> None:
    """It writes elsewhere, so that no floor would turn it back: whoever came in between has not waited for it, and both
    would have found that there is no row in `other`."""
    session.execute("create table other (n integer)")
    holder = database.session()
    holder.execute(f"begin isolation level {level}")
    holder.execute("select b from t where id = 1 for update")
    holder.execute("insert into other select 1 where not exists (select from other)")
    come_before_the_next_commit(database, monkeypatch, lambda: session.execute(swap))
    assert refused(holder, "commit") == "40001"
    assert rows(session, "select * from other") == []


def test_another_change_right_before_the_commit_hinders_nobody(
    database: Database, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.execute("create table other (n integer)")
    holder = database.session()
    holder.execute("begin")
    holder.execute("select b from t where id = 1 for update")
    holder.execute("insert into other values (1)")
    come_before_the_next_commit(database, monkeypatch, lambda: session.execute("alter table t add column c integer"))
    holder.execute("commit")
    assert rows(session, "select * from other") == [(1,)]


def come_before_the_next_commit(
    database: Database, monkeypatch: pytest.MonkeyPatch, others: Callable[[], object]
) -> None:
    """Between the next commit's derivation and its judgement, if that is not one."""
    before_the_next_commit(database.store, monkeypatch, others)


def test_ones_own_truncate_leaves_what_one_has_locked(session: Session) -> None:
    session.execute("begin")
    session.execute("select * from t for update")
    session.execute("truncate t")
    session.execute("insert into t values (9, 90, 'z')")
    session.execute("commit")
    assert rows(session, "select id from t") == [(9,)]


@pytest.mark.parametrize("write", ["delete from t where id = 1", "update t set b = 'mine' where id = 1"])
def test_a_query_locks_under_the_new_key_what_was_written_under_the_old(
    database: Database, session: Session, write: str
) -> None:
    """Else another might move the row to a third key: a query would see it twice then, or though it is deleted."""
    holder = database.session()
    holder.execute("begin")
    holder.execute(write)
    session.execute(ALTER)
    seen = rows(holder, "select * from t order by a")
    session.execute("set lock_timeout = '1ms'")
    assert refused(session, "update t set a = 11 where id = 1") == "55P03"
    assert rows(holder, "select * from t order by a") == seen
    holder.execute("commit")
    assert rows(session, "select * from t order by a") == seen


def test_a_query_waits_for_no_lock_under_the_new_key(database: Database, session: Session) -> None:
    holder, other = database.session(), database.session()
    holder.execute("begin")
    holder.execute("update t set b = 'mine' where id = 1")
    session.execute(ALTER)
    other.execute("begin")
    other.execute("update t set b = 'theirs' where id = 1")
    holder.execute("set lock_timeout = '1ms'")
    assert rows(holder, "select b from t where id = 1") == [("mine",)]
    other.execute("rollback")
    holder.execute("commit")
    assert rows(session, "select b from t where id = 1") == [("mine",)]


@pytest.mark.parametrize(
    ("statement", "key"),
    [
        ("alter table t alter primary key (a, id)", "a, id"),
        ("alter table t alter primary key using columns (b, id)", "b, id"),
        ("alter table t drop constraint t_pkey, add primary key (a)", "a"),
        ("alter table t drop constraint t_pkey, add constraint k primary key (a)", "a"),
    ],
)
def test_the_forms_of_the_statement(session: Session, statement: str, key: str) -> None:
    session.execute(statement)
    wanted = " and ".join(f"{column} = '1'" for column in key.split(", "))
    shown = [str(line) for (line,) in rows(session, f"explain select * from t where {wanted}")]
    assert any("Lookup t by" in line for line in shown)
    assert not any("Filter" in line for line in shown)
    assert rows(session, "check database") == []
    name = "k" if " k " in statement else "t_pkey"
    assert refused(session, f"alter table t drop constraint {name}") == "0A000"


def test_a_table_without_a_key_gets_one(session: Session) -> None:
    session.execute("create table h (a integer, b integer)")
    session.execute("insert into h values (1, 2), (2, 3)")
    session.execute("alter table h add primary key (b)")
    session.execute("insert into h values (3, 4)")
    assert rows(session, "select * from h order by b") == [(1, 2), (2, 3), (3, 4)]
    assert refused(session, "insert into h values (9, 3)") == "23505"
    assert refused(session, "alter table h add primary key (a)") == "42P16"


def test_foreign_keys_go_on_by_other_indexes(session: Session) -> None:
    session.execute("create table child (id bigint primary key, t bigint references t on delete cascade)")
    session.execute("insert into child values (1, 1), (2, 2)")
    assert refused(session, ALTER) == "2BP01"
    session.execute("create unique index t_id on t (id)")
    session.execute(ALTER)
    assert refused(session, "insert into child values (3, 9)") == "23503"
    session.execute("insert into child values (3, 3)")
    assert refused(session, "drop index t_id") == "2BP01"
    session.execute("delete from t where a = 10")
    session.execute("alter table child alter primary key (t)")
    session.execute("delete from t where a = 20")
    assert rows(session, "select * from child") == [(3, 3)]
    assert rows(session, "check database") == []


def test_a_foreign_key_that_finds_its_rows_by_the_old_key_needs_an_index(session: Session) -> None:
    session.execute("create table child (t bigint references t, n integer, primary key (t, n))")
    session.execute("insert into child values (1, 5)")
    assert refused(session, "alter table child alter primary key (n, t)") == "0A000"
    session.execute("create index child_t on child (t)")
    session.execute("alter table child alter primary key (n, t)")
    assert refused(session, "delete from t where id = 1") == "23503"
    assert rows(session, "check database") == []


def test_a_table_that_refers_to_itself(session: Session) -> None:
    session.execute("create table node (id integer primary key, up integer references node, k integer unique)")
    session.execute("insert into node values (1, null, 10), (2, 1, 20)")
    session.execute("create unique index node_id on node (id)")
    session.execute("alter table node alter primary key (k)")
    assert refused(session, "delete from node where id = 1") == "23503"
    assert refused(session, "insert into node values (3, 9, 30)") == "23503"
    session.execute("insert into node values (3, 2, 30)")
    assert rows(session, "check database") == []


def test_locks_keep_their_timestamps(database: Database, session: Session) -> None:
    """Two transactions that change columns under different locks do not conflict, before, across or after the swap."""
    session.execute("create table l (id integer primary key, k integer, a integer, b integer)")
    session.execute("insert into l values (1, 10, 0, 0)")
    session.execute("alter table l add lock m covers (b)")
    old = database.session()
    old.execute("begin isolation level repeatable read")
    old.execute("update l set a = 1 where id = 1")
    session.execute("update l set b = 1 where id = 1")
    session.execute("alter table l alter primary key (k)")
    session.execute("update l set b = 2 where k = 10")
    old.execute("commit")
    assert rows(session, "select * from l") == [(1, 10, 1, 2)]
    assert refused(session, "alter table l alter primary key (b)") == "42P16"
    assert rows(session, "check database") == []


def test_in_a_transaction_of_its_own(session: Session) -> None:
    session.execute("begin")
    session.execute("insert into t values (4, 40, 'n')")
    session.execute(ALTER)
    session.execute("commit")
    assert rows(session, "select id from t where a = 40") == [(4,)]
    session.execute("begin")
    session.execute("alter table t alter primary key (id)")
    session.execute("rollback")
    assert refused(session, "insert into t values (9, 40, 'n')") == "23505"
    session.execute("begin")
    session.execute("create table made (a integer primary key, b integer)")
    session.execute("alter table made alter primary key (b)")
    session.execute("insert into made values (1, 2)")
    assert refused(session, "alter table made alter primary key (a)") == "0A000"
    session.execute("rollback")
    assert rows(session, "check database") == []


def test_under_a_schema_lease(tmp_path: Path) -> None:
    """Whoever reads by a schema that is one version behind must not read the rowset that was swapped out (rule 17)."""
    with (
        instar.connect(tmp_path / "db", autocommit=True, schema_lease=0.2) as one,
        instar.connect(tmp_path / "db", autocommit=True, schema_lease=0.2) as other,
    ):
        one.execute("create table t (id integer primary key, a integer)")
        one.execute("insert into t values (1, 10), (2, 20)")
        assert other.execute("select count(*) from t").fetchone() == (2,)
        one.execute(ALTER)
        one.execute("update t set id = 5 where a = 10")
        assert other.execute("select id from t where a = 10").fetchone() == (5,)
        other.execute("insert into t values (2, 30)")
        assert one.execute("select count(*) from t where id = 2").fetchone() == (2,)
        assert one.execute("check database").fetchall() == []
