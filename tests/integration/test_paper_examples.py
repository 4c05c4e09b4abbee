"""The examples that the papers tell their designs by, as schedules of sessions.

Their figures and sections are named in the tests. The thesis' tables 3.1 to 3.4 (constraints beside writers), MD-MVCC's
tables 1 and 2 (locks and hints) and F1's claims (`tests/schemachange/test_model.py`) are not among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from instar.clock import ManualClock
from instar.database import Database
from instar.dbapi import Connection
from instar.store import open_store
from instar.store.engine import PREFIX_ROWSET, prefix_end
from instar.worker.work import Worker
from support.databases import Engine, before_the_next_commit, fails, general_commits, rows, run, value
from support.servers import LEASE, Servers, version

REPEATABLE = "BEGIN ISOLATION LEVEL REPEATABLE READ"
SERIALIZABLE = "BEGIN ISOLATION LEVEL SERIALIZABLE"
Sessions = tuple[Connection, Connection, Connection]


@pytest.fixture
def sessions(engine: Engine) -> Sessions:
    """Three sessions, and the thesis' table (figures 3.4 to 3.8), indexed by id and by name."""
    made = engine.connect(ddl_wait="0"), engine.connect(ddl_wait="0"), engine.connect(ddl_wait="0")
    run(
        made[0],
        "CREATE TABLE student (id int PRIMARY KEY, name text)",
        "CREATE INDEX student_name ON student (name)",
        "INSERT INTO student VALUES (1, 'abc')",
    )
    return made


# --- lazy multi-version schemas: the thesis, chapter 3 ---------------------------------------------------------------


def layouts(session: Connection) -> list[int]:
    """The layouts in which the student table's rows are stored, oldest first."""
    database = session.database
    with database.store.read() as reader:
        table = database.catalog.at(reader).lookup("public", "student")
        prefix = b"\x10" + table.rowset.to_bytes(4, "big")  # type: ignore[union-attr]  # a table
        stored = [found for _, found in reader.scan(prefix, prefix_end(prefix))]
    return sorted(int.from_bytes(found[12:16], "little") >> 8 for found in stored)


def test_figure_3_4_a_row_of_version_1_is_read_under_version_2(sessions: Sessions) -> None:
    """Each transaction asks for its version of the table, and gets rows of any layout in that."""
    one, two, _ = sessions
    run(one, REPEATABLE)
    assert rows(one, "SELECT * FROM student WHERE id = 1") == [(1, "abc")]
    run(two, "ALTER TABLE student ADD COLUMN age int DEFAULT 0")
    assert rows(two, "SELECT * FROM student WHERE id = 1") == [(1, "abc", 0)]
    assert rows(one, "SELECT * FROM student WHERE id = 1") == [(1, "abc")]
    assert layouts(two) == [1]


def test_figure_3_5_an_index_leads_to_a_row_of_an_older_version(sessions: Sessions) -> None:
    one, _, _ = sessions
    run(one, "ALTER TABLE student ADD COLUMN age int DEFAULT 0", "INSERT INTO student VALUES (2, 'abc', 5)")
    assert rows(one, "SELECT * FROM student WHERE name = 'abc' ORDER BY id") == [(1, "abc", 0), (2, "abc", 5)]
    assert layouts(one) == [1, 2]


def test_figure_3_6_an_index_leads_nobody_to_a_version_newer_than_his_own(sessions: Sessions) -> None:
    """A began before the change, B after it; B's update migrates the row. A goes on finding the row as it was."""
    a, b, _ = sessions
    run(a, REPEATABLE)
    assert value(a, "SELECT count(*) FROM student") == 1
    run(b, "ALTER TABLE student ADD COLUMN age int DEFAULT 0")
    run(b, "UPDATE student SET age = 20, name = 'xyz' WHERE name = 'abc'")
    assert layouts(b) == [2]
    assert rows(a, "SELECT * FROM student WHERE name = 'abc'") == [(1, "abc")]
    assert rows(a, "SELECT * FROM student WHERE name = 'xyz'") == []
    assert rows(a, "SELECT * FROM student WHERE id = 1") == [(1, "abc")]
    assert rows(b, "SELECT * FROM student WHERE name = 'xyz'") == [(1, "xyz", 20)]
    assert rows(b, "SELECT * FROM student WHERE name = 'abc'") == []


def test_section_3_2_1_two_updates_of_an_old_row_leave_one_copy(sessions: Sessions) -> None:
    """There, the row is deleted in the old table before it is put into the new one, else both would put it there. Here
    it stays under its key, and the second to commit is refused."""
    one, two, three = sessions
    run(one, "ALTER TABLE student ADD COLUMN age int DEFAULT 0")
    run(one, REPEATABLE, "UPDATE student SET age = 1 WHERE id = 1")
    run(two, REPEATABLE)
    assert rows(two, "SELECT age FROM student WHERE id = 1") == [(0,)]
    run(one, "COMMIT")
    with fails("40001", "student"):
        run(two, "UPDATE student SET age = age + 10 WHERE id = 1", "COMMIT")
    run(two, "ROLLBACK")
    assert rows(three, "SELECT * FROM student") == [(1, "abc", 1)]
    assert layouts(three) == [2]


@pytest.mark.parametrize("column", ["name", "age"])
def test_section_3_2_1_an_update_migrates_whichever_columns_it_sets(sessions: Sessions, column: str) -> None:
    """There, an update of columns that both versions have leaves the row where it was."""
    one, *_ = sessions
    run(one, "ALTER TABLE student ADD COLUMN age int DEFAULT 7", f"UPDATE student SET {column} = {column}")
    assert layouts(one) == [2]
    assert rows(one, "SELECT * FROM student") == [(1, "abc", 7)]


def test_section_3_2_1_insert_goes_to_the_newest_and_delete_takes_any(sessions: Sessions) -> None:
    one, *_ = sessions
    for number in range(3):
        run(one, f"ALTER TABLE student ADD COLUMN c{number} int DEFAULT {number}")
        run(one, f"INSERT INTO student (id, name) VALUES ({number + 2}, 'n')")
    assert layouts(one) == [1, 2, 3, 4]
    assert rows(one, "SELECT * FROM student ORDER BY id") == [
        (key, "abc" if key == 1 else "n", 0, 1, 2) for key in range(1, 5)
    ]
    assert one.execute("DELETE FROM student WHERE c0 = 0 AND c2 = 2").rowcount == 4
    assert rows(one, "SELECT * FROM student") == []
    assert rows(one, "CHECK DATABASE") == []


def test_section_3_2_1_a_scan_has_the_rows_of_all_versions_that_its_transaction_sees(sessions: Sessions) -> None:
    one, two, _ = sessions
    run(one, "ALTER TABLE student ADD COLUMN age int DEFAULT 0", "INSERT INTO student VALUES (2, 'two', 2)")
    run(two, REPEATABLE)
    before = rows(two, "SELECT * FROM student ORDER BY id")
    run(one, "ALTER TABLE student DROP COLUMN name", "UPDATE student SET age = 9", "INSERT INTO student VALUES (3, 3)")
    assert before == [(1, "abc", 0), (2, "two", 2)] == rows(two, "SELECT * FROM student ORDER BY id")
    assert rows(two, "SELECT *, count(*) OVER () FROM student ORDER BY id") == [(*row, 2) for row in before]
    assert rows(one, "SELECT * FROM student ORDER BY id") == [(1, 9), (2, 9), (3, 3)]


def test_figure_3_8_a_null_beside_not_null(sessions: Sessions) -> None:
    """T2 inserts (2, andy, null) while T1 adds NOT NULL: whichever commits first, no NULL is under the constraint."""
    one, two, three = sessions
    run(one, "ALTER TABLE student ADD COLUMN age int DEFAULT 0")
    run(two, "BEGIN", "INSERT INTO student VALUES (2, 'andy', NULL)")
    run(one, "ALTER TABLE student ALTER COLUMN age SET NOT NULL")
    with fails("23502", "age"):
        run(two, "COMMIT")
    run(three, "ALTER TABLE student ALTER COLUMN age DROP NOT NULL")
    run(two, "INSERT INTO student VALUES (2, 'andy', NULL)")
    with fails("23502", "age"):
        run(one, "ALTER TABLE student ALTER COLUMN age SET NOT NULL")
    assert rows(three, "SELECT * FROM student ORDER BY id") == [(1, "abc", 0), (2, "andy", None)]


# --- IEP-110 ---------------------------------------------------------------------------------------------------------


def test_iep_110_no_transaction_can_tell_that_it_ran_on_two_schemas(sessions: Sessions) -> None:
    """Requirement 1, from within and from outside: what the two rows of one transaction look like is the same."""
    one, two, _ = sessions
    run(one, REPEATABLE, "INSERT INTO student VALUES (2, 'two')")
    run(two, "ALTER TABLE student ADD COLUMN age int NOT NULL DEFAULT 18")
    run(one, "INSERT INTO student VALUES (3, 'three')")
    assert [len(row) for row in rows(one, "SELECT * FROM student")] == [2, 2, 2]
    with fails("42703", "age"):
        rows(one, "SELECT age FROM student")
    run(one, "ROLLBACK", REPEATABLE, "INSERT INTO student (id, name) VALUES (2, 'two')")
    run(two, "ALTER TABLE student ADD COLUMN room int DEFAULT 5")
    run(one, "INSERT INTO student (id, name) VALUES (3, 'three')", "COMMIT")
    assert rows(two, "SELECT * FROM student ORDER BY id") == [
        (1, "abc", 18, 5), (2, "two", 18, 5), (3, "three", 18, 5),
    ]  # fmt: skip


def test_iep_110_a_created_table_is_there_for_transactions_from_before(sessions: Sessions) -> None:
    """Requirement 2. One that keeps its snapshot has the schema of that."""
    one, two, three = sessions
    run(one, "BEGIN", "INSERT INTO student VALUES (2, 'two')")
    run(three, REPEATABLE)
    rows(three, "SELECT * FROM student")
    run(two, "CREATE TABLE course (id int PRIMARY KEY)")
    run(one, "INSERT INTO course VALUES (1)", "COMMIT")
    assert rows(two, "SELECT * FROM course") == [(1,)]
    with fails("42P01", "course"):
        rows(three, "SELECT * FROM course")


def test_iep_110_a_table_altered_before_it_is_touched_ends_no_transaction(sessions: Sessions) -> None:
    """Requirement 3."""
    one, two, _ = sessions
    run(two, "CREATE TABLE course (id int PRIMARY KEY, title text)")
    run(one, "BEGIN", "INSERT INTO student VALUES (2, 'two')")
    run(two, "ALTER TABLE course DROP COLUMN title", "ALTER TABLE course ADD COLUMN room int")
    run(one, "INSERT INTO course VALUES (1, 7)", "COMMIT")
    assert rows(two, "SELECT * FROM course") == [(1, 7)]


def test_iep_110_backward_compatibility_t1_does_not_see_what_t2_wrote_on_the_new_schema(sessions: Sessions) -> None:
    """T1 < Ts < T2 < T1 is a cycle there. A snapshot sees nothing of T2, whatever the schema was."""
    one, two, three = sessions
    run(one, SERIALIZABLE)
    before = rows(one, "SELECT * FROM student")
    run(three, "ALTER TABLE student ADD COLUMN age int")
    run(two, "INSERT INTO student VALUES (2, 'two', 2)", "UPDATE student SET age = 1 WHERE id = 1")
    assert rows(one, "SELECT * FROM student") == before
    run(one, "COMMIT")
    run(one, SERIALIZABLE)
    assert len(rows(one, "SELECT * FROM student")) == 2
    run(two, "UPDATE student SET age = 3 WHERE id = 2")
    run(one, "INSERT INTO student VALUES (3, 'three', 0)")
    with fails("40001", "student"):
        run(one, "COMMIT")


@pytest.mark.parametrize(
    ("change", "crosses"),
    [
        ("DROP COLUMN name, ADD COLUMN title varchar(20)", False),  # the document's compound change
        ("ADD COLUMN title varchar(20), ADD COLUMN room int DEFAULT 3", True),
        ("ALTER COLUMN age DROP NOT NULL, ALTER COLUMN age TYPE bigint, ALTER COLUMN age SET DEFAULT 42", True),
        ("DROP COLUMN name, ADD COLUMN name text", False),  # by ids: it is another column
    ],
)
def test_iep_110_a_compound_change_is_compatible_if_all_its_parts_are(
    sessions: Sessions, change: str, crosses: bool
) -> None:
    one, two, _ = sessions
    run(two, "ALTER TABLE student ADD COLUMN age int NOT NULL DEFAULT 1")
    run(one, REPEATABLE, "INSERT INTO student VALUES (2, 'two', 2)")
    run(two, f"ALTER TABLE student {change}")
    if crosses:
        run(one, "COMMIT")
    else:
        with fails("40001", "drop column"):
            run(one, "COMMIT")
    assert value(two, "SELECT count(*) FROM student WHERE id = 2") == crosses


def test_iep_110_several_changes_are_judged_step_by_step(sessions: Sessions) -> None:
    """One that is incompatible decides, though the schema at the end is the one of the beginning."""
    one, two, _ = sessions
    run(one, REPEATABLE, "UPDATE student SET name = 'one' WHERE id = 1")
    run(two, "ALTER TABLE student ADD COLUMN age int", "ALTER TABLE student DROP COLUMN name")
    run(two, "ALTER TABLE student ADD COLUMN name text", "ALTER TABLE student DROP COLUMN age")
    with fails("40001", "drop column", "ALTER TABLE student DROP COLUMN name"):
        run(one, "COMMIT")


def test_iep_110_changes_of_other_tables_are_compatible(sessions: Sessions) -> None:
    one, two, _ = sessions
    run(two, "CREATE TABLE course (id int PRIMARY KEY, title text)")
    run(one, SERIALIZABLE, "UPDATE student SET name = 'one' WHERE id = 1")
    run(two, "ALTER TABLE course DROP COLUMN title", "DROP TABLE course")
    run(one, "COMMIT")
    assert rows(two, "SELECT * FROM student") == [(1, "one")]


def test_iep_110_a_renamed_table_has_its_old_name_for_transactions_from_before(sessions: Sessions) -> None:
    """Postponed optimization 3."""
    one, two, _ = sessions
    run(one, REPEATABLE, "INSERT INTO student VALUES (2, 'two')")
    run(two, "ALTER TABLE student RENAME TO pupil", "CREATE TABLE student (x int)")
    run(one, "UPDATE student SET name = upper(name)", "COMMIT")
    assert rows(two, "SELECT * FROM pupil ORDER BY id") == [(1, "ABC"), (2, "TWO")]
    assert rows(one, "SELECT * FROM student") == []


def test_iep_110_not_null_without_default_on_an_empty_table(sessions: Sessions) -> None:
    """Postponed optimization 2: rows that were written meanwhile have no value for it."""
    one, two, _ = sessions
    run(one, "DELETE FROM student", REPEATABLE, "INSERT INTO student VALUES (2, 'two')")
    run(two, "ALTER TABLE student ADD COLUMN age int NOT NULL")
    with fails("40001", "required column"):
        run(one, "COMMIT")
    with fails("23502", "age"):
        run(two, "INSERT INTO student VALUES (2, 'two')")


@pytest.mark.parametrize("is_short", [True, False])
def test_iep_110_the_quirk_is_retried_inside(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch, is_short: bool
) -> None:
    """A change comes between the moment at which a statement's schema is resolved and the one at which it is judged."""
    one, two, _ = sessions
    if not is_short:
        general_commits(monkeypatch)
    changes = "ALTER TABLE student DROP COLUMN name", "ALTER TABLE student ADD COLUMN name text DEFAULT 'new'"
    before_the_next_commit(one.database.store, monkeypatch, lambda: run(two, *changes))
    run(one, "INSERT INTO student (id, name) SELECT 2, 'two'")
    assert rows(two, "SELECT * FROM student ORDER BY id") == [(1, "new"), (2, "two")]


# --- MD-MVCC, sections 1 to 3 ----------------------------------------------------------------------------------------


def test_md_mvcc_section_1_a_long_query_holds_up_no_change_and_the_change_no_query(sessions: Sessions) -> None:
    """There, the change waits for the query, and all that come after it for the change."""
    one, two, three = sessions
    run(one, "INSERT INTO student SELECT g, 'n' FROM generate_series(2, 20000) g")
    cursor = one.execute("SELECT * FROM student")  # rows are made as they are fetched
    assert cursor.fetchone() == (1, "abc")
    run(two, "ALTER TABLE student ADD COLUMN age int DEFAULT 1", "ALTER TABLE student DROP COLUMN name")
    run(two, "TRUNCATE student")
    assert rows(three, "SELECT * FROM student") == []
    assert len(cursor.fetchall()) == 19_999


def test_md_mvcc_figure_2_a_chain_of_row_versions(sessions: Sessions) -> None:
    _, writer, _ = sessions
    readers = list(sessions[::2])
    for number, reader in enumerate(readers):
        run(reader, REPEATABLE)
        assert rows(reader, "SELECT name FROM student") == [(f"v{number}" if number else "abc",)]
        run(writer, f"UPDATE student SET name = 'v{number + 1}'")
    for number, reader in enumerate(readers):
        assert rows(reader, "SELECT name FROM student") == [(f"v{number}" if number else "abc",)]


def test_md_mvcc_figure_3_a_change_that_is_rolled_back_was_never_seen(sessions: Sessions) -> None:
    """Its version is a ghost: others go on with the one before, the next change is made on that."""
    one, two, three = sessions
    run(two, REPEATABLE)
    assert rows(two, "SELECT * FROM student") == [(1, "abc")]
    run(one, "BEGIN", "ALTER TABLE student ADD COLUMN age int DEFAULT 0", "UPDATE student SET age = 5")
    assert rows(one, "SELECT * FROM student") == [(1, "abc", 5)]
    assert rows(two, "SELECT * FROM student") == rows(three, "SELECT * FROM student") == [(1, "abc")]
    run(one, "ROLLBACK")
    run(three, "ALTER TABLE student ADD COLUMN age text DEFAULT 'unknown'")
    assert rows(one, "SELECT * FROM student") == [(1, "abc", "unknown")]
    assert rows(two, "SELECT * FROM student") == [(1, "abc")]


def test_md_mvcc_section_3_2_2_two_tables_that_bore_one_name(sessions: Sessions) -> None:
    """A name is found as of the snapshot, and leads to another id."""
    one, two, three = sessions
    run(one, REPEATABLE)
    assert rows(one, "SELECT * FROM student") == [(1, "abc")]
    run(two, "DROP TABLE student", "CREATE TABLE student (x int)", "INSERT INTO student VALUES (3)")
    run(three, REPEATABLE)
    assert rows(three, "SELECT * FROM student") == [(3,)]
    run(two, "ALTER TABLE student RENAME TO pupil")
    assert rows(one, "SELECT * FROM student") == [(1, "abc")]
    assert rows(three, "SELECT * FROM student") == [(3,)]
    with fails("42P01", "student"):
        rows(two, "SELECT * FROM student")


def test_md_mvcc_section_3_2_1_sequences_are_read_at_their_latest_state(sessions: Sessions) -> None:
    one, two, _ = sessions
    run(two, "CREATE SEQUENCE number")
    run(one, REPEATABLE)
    first = value(one, "SELECT nextval('number')")
    second = value(two, "SELECT nextval('number')")
    assert len({first, second, value(one, "SELECT nextval('number')")}) == 3


def test_md_mvcc_section_3_4_1_a_query_is_compiled_under_one_snapshot(sessions: Sessions) -> None:
    """A foreign key and the column that it refers to go between two statements of a transaction."""
    one, two, _ = sessions
    run(two, "CREATE TABLE grade (student int REFERENCES student, mark int)", "INSERT INTO grade VALUES (1, 2)")
    run(one, REPEATABLE)
    assert value(one, "SELECT count(*) FROM grade") == 1
    run(two, "ALTER TABLE grade DROP CONSTRAINT grade_student_fkey", "ALTER TABLE student DROP COLUMN name")
    run(two, "ALTER TABLE grade DROP COLUMN student")
    joined = "SELECT name, mark FROM student JOIN grade ON grade.student = student.id"
    assert rows(one, joined) == [("abc", 2)]
    with fails("42703"):
        rows(two, joined)


def test_md_mvcc_section_3_6_a_dropped_table_is_freed_after_the_last_snapshot(tmp_path: Path) -> None:
    clock = ManualClock()
    store = open_store(tmp_path / "db", synchronous="off", clock=clock)
    store.retention_seconds = 0.0
    database = Database(store, ":memory:", clock)
    one, two = (Connection(database, autocommit=True, settings={}) for _ in range(2))
    run(one, "CREATE TABLE t (id int PRIMARY KEY, a int)", "CREATE INDEX ta ON t (a)", "INSERT INTO t VALUES (1, 5)")
    run(two, REPEATABLE)
    assert rows(two, "SELECT id FROM t WHERE a = 5") == [(1,)]
    run(one, "DROP TABLE t")

    def rowsets() -> int:
        worker = Worker(store, clock)
        for _ in range(4):
            clock.advance(20)
            worker.turn()
        with store.read() as reader:
            return sum(1 for _ in reader.scan(PREFIX_ROWSET, prefix_end(PREFIX_ROWSET)))

    before = rowsets()
    assert rows(two, "SELECT id FROM t WHERE a = 5") == [(1,)]
    run(two, "COMMIT")
    assert rowsets() == before - 2
    with fails("42P01"):
        rows(two, "SELECT id FROM t WHERE a = 5")
    database.sequences.close()
    one.close()
    two.close()


def test_md_mvcc_section_3_7_one_plan_serves_two_snapshots_by_turns(sessions: Sessions) -> None:
    """The plan of each text is compiled again for whoever has another version of the schema."""
    one, two, _ = sessions
    text = "SELECT * FROM student WHERE name = 'abc'"
    run(one, REPEATABLE)
    for _ in range(3):
        assert rows(one, text) == [(1, "abc")]
    run(two, "ALTER TABLE student ADD COLUMN age int DEFAULT 4", "DROP INDEX student_name")
    for _ in range(3):
        assert rows(two, text) == [(1, "abc", 4)]
        assert rows(one, text) == [(1, "abc")]


# --- F1 --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def servers() -> Iterator[Servers]:
    made = Servers()
    yield made
    made.store.close()


def test_f1_section_1_a_server_without_the_index_deletes_what_one_with_it_has_inserted(servers: Servers) -> None:
    """M2 runs on S2, which has index I, and M1 on S1, which has not: the entry of the row that M1 deletes would stay,
    and an index-only scan would show the row."""
    m1, m2 = servers.server(), servers.server()
    run(m2, "CREATE TABLE r (id int PRIMARY KEY, a int)", "INSERT INTO r VALUES (1, 1)")
    servers.clock.advance(LEASE + 1)
    rows(m1, "SELECT * FROM r")
    old = version(m1)
    run(m2, "CREATE INDEX i ON r (a)")
    run(m2, "INSERT INTO r VALUES (2, 7)")
    run(m1, "DELETE FROM r WHERE id = 2")
    assert version(m1) > old, "two versions behind, it had to learn of the index before it could commit"
    assert rows(m2, "SELECT a FROM r WHERE a = 7") == []
    assert rows(m2, "CHECK DATABASE") == []
