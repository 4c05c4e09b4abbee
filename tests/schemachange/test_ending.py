"""What waits for the end of a job: as if the statements, and what they drop and add, had come one after the other."""

from __future__ import annotations

import pytest

from instar.catalog.descriptors import State, Table
from instar.schemachange.job_records import JobState
from support.databases import Engine, fails, rows, run, value
from support.slow import Slow


def table(slow: Slow, name: str = "t") -> Table:
    database = slow.engine.database
    with database.store.read() as reader:
        found = database.catalog.at(reader).lookup("public", name)
    assert isinstance(found, Table)
    return found


def ends(slow: Slow, *statements: str, job: int = 1) -> None:
    """The statements, in one transaction, are one job, which succeeds."""
    run(slow.connection, "BEGIN", *statements, "COMMIT")
    jobs = slow.finish()
    assert [(found.state, found.problem) for found in jobs[job - 1 :]] == [(JobState.SUCCEEDED, None)]


@pytest.mark.parametrize(
    ("statements", "inserted"),
    [
        (["ALTER a SET DEFAULT 5, ADD CHECK (a > 0)", "ALTER a SET DEFAULT 6, ADD CHECK (b > 0)"], 6),
        (["ALTER a SET DEFAULT 5, ADD CHECK (a > 0)", "ALTER a DROP DEFAULT, ADD CHECK (b > 0)"], None),
        (["ALTER a SET DEFAULT 5, ADD CHECK (a > 0)", "ALTER a SET DEFAULT 6"], 6),
        (["ALTER a SET DEFAULT 5, ADD CHECK (a > 0), ALTER a DROP DEFAULT"], 5),
        (["ALTER a SET DEFAULT 5", "ALTER a SET DEFAULT 6, ADD CHECK (a > 0)"], 6),
        (["ALTER a SET DEFAULT 5, ADD CHECK (a > 0)", "RENAME a TO n", "ALTER n SET DEFAULT 6, ADD UNIQUE (s)"], 6),
        (
            ["ALTER a SET DEFAULT 5, ADD CHECK (a > 0)", "ALTER a TYPE bigint", "ALTER a SET DEFAULT 5000000000"],
            5 * 10**9,
        ),
    ],
)
def test_edits_of_one_column_follow_each_other(slow: Slow, statements: list[str], inserted: int | None) -> None:
    ends(slow, *[f"ALTER TABLE t {statement}" for statement in statements])
    run(slow.connection, "INSERT INTO t (id, b) VALUES (9, 9)")
    (row,) = rows(slow.connection, "SELECT * FROM t WHERE id = 9")
    assert row[1] == inserted


def test_a_column_is_widened_twice(slow: Slow) -> None:
    run(slow.connection, "ALTER TABLE t ADD COLUMN w smallint DEFAULT 1")
    ends(slow, "ALTER TABLE t ALTER w TYPE int, ADD CHECK (a > 0)", "ALTER TABLE t ALTER w TYPE bigint, ADD UNIQUE (b)")
    run(slow.connection, "UPDATE t SET w = 5000000000 WHERE id = 1")
    assert rows(slow.connection, "SELECT w FROM t ORDER BY id") == [(5_000_000_000,), (1,), (1,)]


def test_null_is_allowed_twice(slow: Slow) -> None:
    run(slow.connection, "ALTER TABLE t ALTER a SET NOT NULL")
    slow.finish()
    ends(slow, *[f"ALTER TABLE t ALTER a DROP NOT NULL, ADD UNIQUE ({column})" for column in ("b", "s")], job=2)
    run(slow.connection, "INSERT INTO t VALUES (4, NULL, 4, '')")


@pytest.mark.parametrize("others", ["", ", ADD CHECK (b > 0)"])
@pytest.mark.parametrize("actions", [("DROP", "SET"), ("SET", "DROP")])
@pytest.mark.parametrize("before", ["DROP", "SET"])
def test_not_null_that_is_dropped_and_set_is_set(
    slow: Slow, before: str, actions: tuple[str, str], others: str
) -> None:
    """PostgreSQL drops first, whichever is written first."""
    run(slow.connection, f"ALTER TABLE t ALTER a {before} NOT NULL")
    slow.finish()
    both = ", ".join(f"ALTER a {action} NOT NULL" for action in actions)
    run(slow.connection, f"ALTER TABLE t {both}{others}")
    assert all(job.state is JobState.SUCCEEDED for job in slow.finish())
    with fails("23502", '"a"'):
        run(slow.connection, "INSERT INTO t VALUES (9, NULL, 9, '')")


def test_edits_come_before_a_drop_and_not_after_it(slow: Slow) -> None:
    run(slow.connection, "BEGIN", "ALTER TABLE t ALTER b SET DEFAULT 4, ADD CHECK (a > 0)")
    run(slow.connection, "ALTER TABLE t DROP COLUMN b")
    for gone in (
        "ALTER TABLE t ALTER b SET DEFAULT 5",
        "ALTER TABLE t DROP COLUMN b",
        "CREATE INDEX i ON t (b)",
        "ALTER TABLE t ADD CHECK (b > 0)",
        "ALTER TABLE t ADD LOCK l COVERS (b)",
    ):
        run(slow.connection, "SAVEPOINT s")
        with fails("42703", '"b"'):
            run(slow.connection, gone)
        run(slow.connection, "ROLLBACK TO s")
    run(slow.connection, "COMMIT")
    assert [job.state for job in slow.finish()] == [JobState.SUCCEEDED]
    assert rows(slow.connection, "SELECT * FROM t WHERE id = 1") == [(1, 1, "x")]


def test_a_constraint_is_dropped_once(slow: Slow) -> None:
    run(slow.connection, "BEGIN", "ALTER TABLE p DROP CONSTRAINT p_u, ADD CHECK (id > 0)")
    with fails("42704", "p_u"):
        run(slow.connection, "ALTER TABLE p DROP CONSTRAINT p_u")


def test_identity_is_not_added_to_what_gets_a_default(slow: Slow) -> None:
    run(slow.connection, "ALTER TABLE t ALTER a SET NOT NULL")
    slow.finish()
    run(slow.connection, "BEGIN", "ALTER TABLE t ALTER a SET DEFAULT 5, ADD CHECK (b > 0)")
    with fails("55000", "already has a default value"):
        run(slow.connection, "ALTER TABLE t ALTER a ADD GENERATED ALWAYS AS IDENTITY")


@pytest.mark.parametrize(
    ("actions", "sqlstate"),
    [
        ("ADD FOREIGN KEY (b) REFERENCES t (a), DROP COLUMN b", "42703"),
        ("ADD FOREIGN KEY (b) REFERENCES t (a), DROP COLUMN a CASCADE", "42703"),
        ("ADD FOREIGN KEY (b) REFERENCES t (a), DROP CONSTRAINT t_a CASCADE", "42830"),
        ("ADD CHECK (b > 0), DROP COLUMN b", "42703"),
        ("ADD UNIQUE (b), DROP COLUMN b", "42703"),
        ("ADD COLUMN c int CHECK (c > 0), DROP COLUMN c", "42703"),
        ("ADD CONSTRAINT k CHECK (a > 0), DROP CONSTRAINT k", "42704"),
        ("ADD CONSTRAINT k CHECK (a > 0), ADD CONSTRAINT k CHECK (a > 1), DROP CONSTRAINT k", "42704"),
    ],
)
def test_what_is_added_finds_the_table_without_what_is_dropped(slow: Slow, actions: str, sqlstate: str) -> None:
    """PostgreSQL drops first, whatever is written first."""
    run(slow.connection, "ALTER TABLE t ADD CONSTRAINT t_a UNIQUE (a)")
    slow.finish()
    with fails(sqlstate):
        run(slow.connection, f"ALTER TABLE t {actions}")
    assert len(slow.finish()) == 1


REPLACED = [
    ("k", "CHECK (a > 0)", "CHECK (a > 1)", "23514", "INSERT INTO t VALUES (9, 1, 9, '9')"),
    ("k", "CHECK (a > 0)", "FOREIGN KEY (a) REFERENCES p", "23503", "INSERT INTO t VALUES (9, 77, 9, '9')"),
    ("k", "UNIQUE (a)", "UNIQUE (b)", "23505", "INSERT INTO t VALUES (9, 9, 2, '9')"),
    (
        "k",
        "FOREIGN KEY (a) REFERENCES p",
        "FOREIGN KEY (b) REFERENCES p",
        "23503",
        "INSERT INTO t VALUES (9, 77, 77, '')",
    ),
    ("k", "FOREIGN KEY (a) REFERENCES p", "FOREIGN KEY (a) REFERENCES p (u)", "23503", "UPDATE t SET a = 77"),
]


@pytest.mark.parametrize(("name", "old", "new", "sqlstate", "violating"), REPLACED)
def test_a_constraint_takes_the_place_of_one_of_its_name(
    slow: Slow, name: str, old: str, new: str, sqlstate: str, violating: str
) -> None:
    run(slow.connection, "DELETE FROM t WHERE id = 1", f"ALTER TABLE t ADD CONSTRAINT {name} {old}")
    slow.finish()
    run(slow.connection, f"ALTER TABLE t DROP CONSTRAINT {name}, ADD CONSTRAINT {name} {new}")
    with fails("55006"):  # which of the two?
        run(slow.connection, "BEGIN", f"ALTER TABLE t RENAME CONSTRAINT {name} TO other")
    run(slow.connection, "ROLLBACK")
    assert [job.state for job in slow.finish()] == [JobState.SUCCEEDED] * 2
    found = table(slow)
    constraints = [(element.name, element.state) for element in found.checks]
    constraints += [(element.name, element.state) for element in found.foreign_keys]
    constraints += [(element.name, element.state) for element in found.indexes if element.constraint]
    assert constraints == [(name, State.PUBLIC)]
    assert len(found.indexes) == ("CHECK" not in new)
    with fails(sqlstate, name):
        run(slow.connection, violating)


@pytest.mark.parametrize(("name", "old", "new"), [case[:3] for case in REPLACED])
def test_a_constraint_that_cannot_take_the_place_leaves_the_old_one(slow: Slow, name: str, old: str, new: str) -> None:
    run(slow.connection, f"ALTER TABLE t ADD CONSTRAINT {name} {old}")
    slow.finish()
    before = table(slow)
    run(slow.connection, "UPDATE t SET s = 'x'")
    run(slow.connection, f"ALTER TABLE t DROP CONSTRAINT {name}, ADD CONSTRAINT {name} {new}, ADD UNIQUE (s)")
    assert slow.finish()[1].state is JobState.FAILED
    after = table(slow)
    assert (after.checks, after.foreign_keys, after.indexes) == (before.checks, before.foreign_keys, before.indexes)


def test_a_constraint_that_is_not_valid_goes_with_its_job(slow: Slow) -> None:
    run(slow.connection, "ALTER TABLE t ADD CONSTRAINT k CHECK (a > 0)", "UPDATE t SET s = 'x'")
    slow.finish()
    run(slow.connection, "ALTER TABLE t DROP CONSTRAINT k, ADD CONSTRAINT k CHECK (a > 1) NOT VALID, ADD UNIQUE (s)")
    assert slow.finish()[1].state is JobState.FAILED
    (check,) = table(slow).checks
    assert (check.name, check.not_valid) == ("k", False)
    run(slow.connection, "ALTER TABLE t DROP CONSTRAINT k, ADD CONSTRAINT k CHECK (a > 2) NOT VALID")
    (check,) = table(slow).checks
    assert (check.name, check.not_valid) == ("k", True)
    assert len(slow.finish()) == 2


@pytest.mark.parametrize("together", [True, False])
def test_a_column_takes_the_place_of_one_of_its_name(slow: Slow, together: bool) -> None:
    """Both are there till the end of the job, and users see the one that goes."""
    drop, add = "DROP COLUMN b", "ADD COLUMN b text DEFAULT 'new' CHECK (b <> '')"
    if together:
        run(slow.connection, f"ALTER TABLE t {add}, {drop}, ALTER b SET DEFAULT 'newer'")
    else:
        run(slow.connection, "BEGIN", f"ALTER TABLE t {drop}, ADD CHECK (a > 0)", f"ALTER TABLE t {add}", "COMMIT")
    run(slow.connection, "UPDATE t SET b = 7 WHERE b = 1", "INSERT INTO t VALUES (8, 8, 8, '')")
    assert [job.state for job in slow.finish()] == [JobState.SUCCEEDED]
    assert rows(slow.connection, "SELECT id, b FROM t WHERE id IN (1, 8)") == [(1, "new"), (8, "new")]
    run(slow.connection, "INSERT INTO t (id) VALUES (9)")
    assert value(slow.connection, "SELECT b FROM t WHERE id = 9") == ("newer" if together else "new")


def test_a_plain_column_that_takes_a_name_goes_with_its_job(slow: Slow) -> None:
    run(slow.connection, "UPDATE t SET s = 'x'", "BEGIN", "ALTER TABLE t DROP COLUMN b, ADD UNIQUE (s)")
    run(slow.connection, "ALTER TABLE t ADD COLUMN b text", "COMMIT")
    assert [job.state for job in slow.finish()] == [JobState.FAILED]
    assert rows(slow.connection, "SELECT * FROM t WHERE id = 1") == [(1, 1, 1, "x")]


def test_a_name_that_is_free_at_the_end_is_not_given_before(slow: Slow) -> None:
    run(slow.connection, "BEGIN", "ALTER TABLE t DROP COLUMN b, ADD UNIQUE (s)", "SAVEPOINT s")
    with fails("42701"):
        run(slow.connection, "ALTER TABLE t RENAME a TO b")
    run(slow.connection, "ROLLBACK TO s", "ALTER TABLE p DROP CONSTRAINT p_u, ADD CHECK (u > 0)")
    for taken in ("CREATE TABLE p_u (id int)", "CREATE TABLE q (id int PRIMARY KEY, CONSTRAINT p_u UNIQUE (id))"):
        run(slow.connection, "SAVEPOINT s")
        with fails("42P07"):
            run(slow.connection, taken)
        run(slow.connection, "ROLLBACK TO s")


def test_an_index_is_handed_on_where_a_foreign_key_goes_at_the_end(slow: Slow) -> None:
    """The key that borrows the index of another one owns it when that one has gone, and takes it along when it goes."""
    run(slow.connection, "ALTER TABLE t ADD CONSTRAINT f FOREIGN KEY (a) REFERENCES p")
    slow.finish()
    run(slow.connection, "ALTER TABLE t ADD CONSTRAINT g FOREIGN KEY (a) REFERENCES p (u)")
    slow.finish()
    run(slow.connection, "ALTER TABLE t DROP CONSTRAINT f, ADD CHECK (b > 0)")
    slow.finish()
    (key,) = table(slow).foreign_keys
    assert (key.name, key.owns_index) == ("g", True)
    with fails("2BP01", "constraint g"):
        run(slow.connection, "DROP INDEX f_idx")
    run(slow.connection, "ALTER TABLE t DROP CONSTRAINT g, ADD CHECK (b > 1)")
    assert slow.finish()[-1].state is JobState.FAILED
    run(slow.connection, "ALTER TABLE t DROP CONSTRAINT g, ADD UNIQUE (b)")
    slow.finish()
    assert [index.name for index in table(slow).indexes] == ["t_b_key"]


def test_an_index_goes_with_the_foreign_key_that_is_left_alone_with_it(slow: Slow) -> None:
    run(slow.connection, "ALTER TABLE t ADD CONSTRAINT f FOREIGN KEY (a) REFERENCES p")
    slow.finish()
    run(slow.connection, "ALTER TABLE t ADD CONSTRAINT g FOREIGN KEY (a) REFERENCES p (u)")
    slow.finish()
    run(slow.connection, "ALTER TABLE t DROP CONSTRAINT f, ADD CHECK (b > 0)", "ALTER TABLE t DROP CONSTRAINT g")
    slow.finish()
    assert table(slow).indexes == ()


def test_names_are_handed_on_under_a_lease() -> None:
    """Also in a table without rows, where what comes would be there at once, and what goes would not be gone."""
    engine = Engine(":memory:", schema_lease=0.01)
    connection = engine.connect()
    run(connection, "CREATE TABLE t (a int, CONSTRAINT k CHECK (a > 0))")
    run(connection, "ALTER TABLE t DROP CONSTRAINT k, ADD CONSTRAINT k CHECK (a > 1)")
    with fails("23514", "k"):
        run(connection, "INSERT INTO t VALUES (1)")
    run(connection, "INSERT INTO t VALUES (2)", "ALTER TABLE t DROP CONSTRAINT k, ADD CONSTRAINT k CHECK (a > 0)")
    run(connection, "INSERT INTO t VALUES (1)")
    engine.close()
