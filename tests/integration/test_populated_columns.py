"""Columns whose values differ from row to row come to a table that is in use: sessions write at every step of the job,
transactions cross any number of them, and afterwards each row has exactly one value, which nobody has seen change."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from uuid import UUID

import pytest

from instar import errors
from instar.catalog.descriptors import Table as Descriptor
from instar.dbapi import Connection
from instar.store.engine import prefix_end, rowset_prefix
from support.databases import Engine, fails, rows, run, value
from support.engines import engine  # noqa: F401 - pytest finds the fixture by its name here
from support.steps import hook_jobs

LEVELS = ["READ COMMITTED", "REPEATABLE READ"]
ADD = "ALTER TABLE t ADD COLUMN c bigint NOT NULL DEFAULT nextval('s') UNIQUE CHECK (c > 0)"
ROWS = 9


class Table:
    """Table t (id, a, b: indexed) with rows in three layouts, and what is expected of it."""

    def __init__(self, database: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine = database
        self.monkeypatch = monkeypatch
        self.one = database.connect()
        run(self.one, "CREATE TABLE t (id int PRIMARY KEY, a int)", "CREATE SEQUENCE s")
        self._fill(0)
        run(self.one, "ALTER TABLE t ADD COLUMN b text DEFAULT 'x'", "CREATE INDEX tb ON t (b)")
        self._fill(3)
        run(self.one, "ALTER TABLE t ALTER COLUMN a TYPE bigint")
        self._fill(6)

    def _fill(self, first: int) -> None:
        self.one.executemany("INSERT INTO t (id, a) VALUES (?, ?)", [(i, i) for i in range(first, first + 3)])

    def add(self, hook: Callable[[str, int], object], statement: str = ADD) -> None:
        """Add the column; the hook is told the step and its number."""
        steps: list[str] = []

        def numbered(step: str) -> None:
            steps.append(step)
            hook(step, len(steps))

        with self.monkeypatch.context() as patched:
            hook_jobs(patched, numbered)
            self.one.execute(statement)

    def check(self, expected: set[tuple[int, int]] | None = None) -> dict[int, int]:
        """Every row has a value of its own, and nothing is wrong anywhere; returns the values by id."""
        assert rows(self.one, "CHECK DATABASE") == []
        found = rows(self.one, "SELECT id, a, c FROM t ORDER BY id")
        values = [c for _, _, c in found]
        assert None not in values
        assert len(set(values)) == len(values)
        assert [rows(self.one, "SELECT id FROM t WHERE c = ?", c) for c in values] == [[(i,)] for i, _, _ in found]
        if expected is not None:
            assert {(i, a) for i, a, _ in found} == expected
        with fails("23505"):
            self.one.execute("UPDATE t SET c = (SELECT min(c) FROM t)")
        return {i: c for i, _, c in found}


@pytest.fixture
def table(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Table:  # noqa: F811 - the fixture is used here
    return Table(engine, monkeypatch)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[Table]:
    """In memory only, for what is done once for each step."""
    made = Engine(":memory:")
    yield Table(made, monkeypatch)
    made.close()


FILLED = {(i, i) for i in range(ROWS)}
# stage 2, stage 3; population; backfill; validation; the last stage.
STEPS = [
    "stage 2", "stage 3", "work", *["read", "put"] * 5, "stage 4", "work", "read", "put", "work", "read", "put",
    "stage 5",
]  # fmt: skip


def test_the_steps_are_these(table: Table) -> None:
    steps: list[str] = []
    table.add(lambda step, _number: steps.append(step))
    assert steps == STEPS
    assert sorted(table.check(FILLED).values()) == list(range(1, ROWS + 1))


def write_all_kinds(connection: Connection, number: int) -> None:
    """Every kind of write, on rows of all layouts, those that the job has come to and those that it has not."""
    new = 100 * number
    run(
        connection,
        f"UPDATE t SET a = a + 1 WHERE id = {number % ROWS}",
        f"UPDATE t SET b = 'y' WHERE id IN ({(number + 1) % ROWS}, {(number + 4) % ROWS})",
        f"INSERT INTO t (id, a) VALUES ({new}, 0), ({new + 1}, 0)",
        f"INSERT INTO t (id, a) VALUES ({new + 2}, 0), ({(number + 2) % ROWS}, 0) ON CONFLICT (id) "
        "DO UPDATE SET a = t.a + 1",
        f"DELETE FROM t WHERE id = {new}",
        f"UPDATE t SET id = id + 1000000 WHERE id = {new + 1}",
        f"UPDATE t SET id = id + 1000000 WHERE id = {(number + 3) % ROWS}",
        f"UPDATE t SET id = id - 1000000 WHERE id = {(number + 3) % ROWS + 1000000}",
        "UPDATE t SET a = a + 1 WHERE id < 1000 AND a >= 0",
    )
    connection.executemany("INSERT INTO t (id, a) VALUES (?, ?)", [(new + 10 + i, 0) for i in range(3)])
    connection.executemany("UPDATE t SET b = ? WHERE id = ?", [("z", i) for i in range(number % 3, ROWS, 3)])


def write_some(connection: Connection, number: int) -> None:
    """As above at each of the first steps: batches of two rows would never catch up with what this inserts."""
    if number <= 12:
        write_all_kinds(connection, number)


@pytest.mark.parametrize("step", range(1, len(STEPS) + 1))
def test_all_kinds_of_writes_at_each_step(quick: Table, step: int) -> None:
    two = quick.engine.connect()
    quick.add(lambda _step, number: write_all_kinds(two, number) if number == step else None)
    before = quick.check()
    assert set(range(ROWS)) <= set(before)
    write_all_kinds(two, 50)
    after = quick.check()
    assert {i: after[i] for i in range(ROWS)} == {i: before[i] for i in range(ROWS)}


def test_all_kinds_of_writes_at_every_step(table: Table) -> None:
    two = table.engine.connect()
    table.add(lambda _step, number: write_some(two, number))
    table.check()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("begun", [0, 1, 3, 6, 14])
def test_transactions_cross_any_number_of_steps(table: Table, begun: int, level: str) -> None:
    """Begun before the statement or at a step of its job, and committed at each later step, or after the job."""
    waiting: dict[int, Connection] = {}

    def begin(offset: int) -> None:
        """For each later step a transaction with rows of its own."""
        for commit in range(offset + 1, len(STEPS) + 2):
            connection = waiting[commit] = table.engine.connect()
            run(connection, f"BEGIN ISOLATION LEVEL {level}", f"INSERT INTO t (id, a) VALUES ({commit * 10}, 0)")
            if commit - offset <= 7:
                run(connection, f"UPDATE t SET a = 10 WHERE id = {commit - offset}")
            elif commit - offset == 8:
                run(connection, "DELETE FROM t WHERE id = 8")
            elif commit - offset == 9:
                run(connection, "UPDATE t SET id = 9 WHERE id = 0")

    def step(_step: str, number: int) -> None:
        if number == begun:
            begin(begun)
        elif number in waiting:
            run(waiting.pop(number), "COMMIT")

    if not begun:
        begin(0)
    table.add(step)
    for connection in waiting.values():
        run(connection, "COMMIT")
    numbers = range(begun + 1, len(STEPS) + 2)
    expected = FILLED | {(number * 10, 0) for number in numbers}
    for number in numbers:
        place = number - begun
        if place <= 7:
            expected = expected - {(place, place)} | {(place, 10)}
        elif place == 8:
            expected = expected - {(8, 8)}
        elif place == 9:
            expected = expected - {(0, 0)} | {(9, 0)}
    table.check(expected)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("begun", [0, 1, 5])
def test_what_was_seen_stays(table: Table, begun: int, level: str) -> None:
    """A transaction that did not see the column commits after others have read it: rows keep their values."""
    two = table.engine.connect()

    def begin() -> None:
        run(
            two,
            f"BEGIN ISOLATION LEVEL {level}",
            "UPDATE t SET a = 10 WHERE id IN (1, 4, 7)",
            "UPDATE t SET id = id + 100 WHERE id IN (2, 5, 8)",
            "DELETE FROM t WHERE id = 3",
            "INSERT INTO t (id, a) VALUES (3, 30), (9, 9)",
        )

    if not begun:
        begin()
    table.add(lambda _step, number: begin() if number == begun else None)
    before = dict(rows(table.one, "SELECT id, c FROM t"))
    two.execute("COMMIT")
    after = table.check()
    moved = {2: 102, 5: 105, 8: 108}
    assert {moved.get(i, i): c for i, c in before.items() if i != 3} == {
        i: c for i, c in after.items() if i not in (3, 9)
    }
    assert after[3] not in set(before.values()) - {before[3]}


@pytest.mark.parametrize("begun", [0, 1, 5])
def test_the_next_statement_of_a_transaction_sees_the_column_in_its_own_rows(table: Table, begun: int) -> None:
    """READ COMMITTED (rule 14): what is buffered is brought to the schema of the statement, values and all."""
    two = table.engine.connect()

    def begin() -> None:
        run(two, "BEGIN", "UPDATE t SET a = 10 WHERE id IN (1, 4, 7)", "INSERT INTO t (id, a) VALUES (9, 9)")

    if not begun:
        begin()
    table.add(lambda _step, number: begin() if number == begun else None)
    before = dict(rows(table.one, "SELECT id, c FROM t"))
    own = dict(rows(two, "SELECT id, c FROM t"))
    assert own == before | {9: own[9]}
    assert own[9] is not None
    two.execute("UPDATE t SET c = c + 1000 WHERE id IN (4, 9)")
    two.execute("COMMIT")
    assert table.check() == own | {4: own[4] + 1000, 9: own[9] + 1000}


@pytest.mark.parametrize("level", LEVELS)
def test_rows_that_took_the_place_of_one_another_take_their_values_along(table: Table, level: str) -> None:
    """Somebody may have seen them: a row has the value that it had where it was."""
    two = table.engine.connect()
    run(two, f"BEGIN ISOLATION LEVEL {level}", "UPDATE t SET id = id + 1")
    table.add(lambda _step, _number: None)
    before = dict(rows(table.one, "SELECT id, c FROM t"))
    two.execute("COMMIT")
    assert table.check() == {i + 1: c for i, c in before.items()}


@pytest.mark.parametrize("step", range(1, len(STEPS) + 1))
def test_rows_may_take_the_place_of_one_another_while_the_column_comes(quick: Table, step: int) -> None:
    two = quick.engine.connect()
    quick.add(lambda _step, number: two.execute("UPDATE t SET id = id + 1") if number == step else None)
    quick.check({(i + 1, i) for i in range(ROWS)})


@pytest.mark.parametrize("step", range(1, len(STEPS) + 1))
def test_old_snapshots_read_what_they_read(quick: Table, step: int) -> None:
    two = quick.engine.connect()
    seen: list[object] = []

    def read() -> object:
        return rows(two, "SELECT * FROM t ORDER BY id"), rows(two, "SELECT id FROM t WHERE b = 'x' ORDER BY id")

    def hook(_step: str, number: int) -> None:
        if number == step:
            two.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            seen.append(read())
            write_all_kinds(quick.engine.connect(), number)
        elif number > step:
            assert read() == seen[0]

    quick.add(hook)
    assert read() == seen[0]
    assert seen[0][0][0] == (0, 0, "x")  # type: ignore[index]  # three columns: the fourth was not there
    quick.check()


def test_nobody_sees_the_column_before_all_rows_have_it(table: Table) -> None:
    two = table.engine.connect()

    def hook(_step: str, _number: int) -> None:
        for statement in ("SELECT c FROM t", "UPDATE t SET c = 1", "INSERT INTO t (id, c) VALUES (99, 1)"):
            with fails("42703"):
                two.execute(statement)
        assert len(two.execute("SELECT * FROM t WHERE id = 1").fetchall()[0]) == 3
        assert value(two, "SELECT count(*) FROM information_schema.columns WHERE table_name = 't'") == 3

    table.add(hook)
    table.check(FILLED)


KINDS: dict[str, Callable[[list[object]], bool]] = {
    "c uuid DEFAULT gen_random_uuid()": lambda found: all(isinstance(one, UUID) for one in found),
    "c double precision NOT NULL DEFAULT random()": lambda found: all(0 <= one < 1 for one in found),  # type: ignore[operator]
    "c text DEFAULT random()::text || 'x'": lambda found: all(str(one).endswith("x") for one in found),
    "c numeric(9,3) DEFAULT nextval('s')": lambda found: list(map(str, found)) == [f"{i}.000" for i in range(1, 10)],
    "c varchar(3) DEFAULT nextval('s')": lambda found: found == [str(i) for i in range(1, 10)],
    "c serial": lambda found: found == list(range(1, 10)),
    "c bigserial": lambda found: found == list(range(1, 10)),
    "c int GENERATED ALWAYS AS IDENTITY (START 5 INCREMENT 5)": lambda found: found == list(range(5, 50, 5)),
    "c int GENERATED BY DEFAULT AS IDENTITY": lambda found: found == list(range(1, 10)),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_value(table: Table, kind: str) -> None:
    table.one.execute(f"ALTER TABLE t ADD COLUMN {kind}")
    found = [c for (c,) in rows(table.one, "SELECT c FROM t ORDER BY id")]
    assert KINDS[kind](found)
    assert len(set(found)) == ROWS
    table.one.execute("INSERT INTO t (id) VALUES (99)")
    assert value(table.one, "SELECT count(DISTINCT c) FROM t") == ROWS + 1
    assert rows(table.one, "CHECK DATABASE") == []


def test_stable_parts_of_a_default_are_those_of_the_statement(table: Table) -> None:
    run(table.one, "SET TIME ZONE 'Asia/Tokyo'", "ALTER TABLE t ADD COLUMN c text DEFAULT nextval('s') || ' ' || now()")
    found = {c.split(" ", 1)[1] for (c,) in rows(table.one, "SELECT c FROM t")}
    assert len(found) == 1
    assert found.pop().endswith("+09")


def test_defaults_that_give_null(table: Table) -> None:
    table.one.execute("ALTER TABLE t ADD COLUMN c int DEFAULT CASE nextval('s') % 2 WHEN 1 THEN 1 END")
    assert [c for (c,) in rows(table.one, "SELECT c FROM t ORDER BY id")] == [1, None] * 4 + [1]
    with fails("23502", "column", "c"):
        table.one.execute("ALTER TABLE t ADD COLUMN d int NOT NULL DEFAULT CASE nextval('s') % 2 WHEN 1 THEN 1 END")
    assert rows(table.one, "CHECK DATABASE") == []
    assert [c for (c,) in rows(table.one, "SELECT c FROM t ORDER BY id")] == [1, None] * 4 + [1]


@pytest.mark.parametrize(
    "given",
    [
        "ADD COLUMN g uuid DEFAULT gen_random_uuid()",
        "ADD COLUMN g serial",
        "ADD COLUMN g text DEFAULT 'g', ALTER g TYPE text USING random()::text",
    ],
)
def test_what_is_written_under_a_newer_schema_between_reading_and_putting_stays(quick: Table, given: str) -> None:
    """A column that an earlier job gave values goes, another comes, and a row is written, which lacks the first one
    then: it is not made anew as of the schema under which the job has read it."""
    for action in given.split(", "):
        quick.one.execute(f"ALTER TABLE t {action}")
    two = quick.engine.connect()

    def write(step: str, number: int) -> None:
        if step == "read":
            come, gone = f"ADD COLUMN e{number} text DEFAULT 'old'", "DROP COLUMN IF EXISTS g"
            run(two, f"ALTER TABLE t {come}", f"ALTER TABLE t {gone}", "ALTER TABLE t ADD COLUMN g int DEFAULT 5")
            run(two, f"UPDATE t SET e{number} = 'new', a = a + 100 WHERE id IN (1, 4)")

    quick.add(write)
    names = [name for (name,) in rows(two, "SELECT column_name FROM information_schema.columns WHERE table_name = 't'")]
    came = [name for name in names if name.startswith("e")]
    assert came
    for name in came:
        assert rows(two, f"SELECT id FROM t WHERE {name} = 'new' ORDER BY id") == [(1,), (4,)]
    changed = {1: 1 + 100 * len(came), 4: 4 + 100 * len(came)}
    quick.check({(number, changed.get(number, number)) for number in range(ROWS)})


def test_columns_that_a_job_drops_together_stay_beside_the_next_values(quick: Table) -> None:
    """Several go in the one stage that ends a job: each is known of when the next job gives rows values."""
    old, one = quick.engine.connect(), quick.one
    run(old, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    before = rows(old, "SELECT id, a, b FROM t ORDER BY id")
    run(one, "ALTER TABLE t ADD COLUMN k int", "DROP INDEX tb")
    run(one, "ALTER TABLE t DROP COLUMN a, DROP COLUMN b, ADD COLUMN v double precision DEFAULT random()")
    run(one, "ALTER TABLE t ADD COLUMN w double precision DEFAULT random()")
    assert rows(old, "SELECT id, a, b FROM t ORDER BY id") == before
    run(one, "ALTER TABLE t UNDROP COLUMN a", "ALTER TABLE t UNDROP COLUMN b")
    assert rows(one, "SELECT id, a, b FROM t ORDER BY id") == before


def test_columns_that_are_dropped_beside_a_job_stay_beside_its_values(quick: Table) -> None:
    """One of them is in no row yet: older rows have its default."""
    old, one, two = quick.engine.connect(), quick.one, quick.engine.connect()
    run(one, "DROP INDEX tb", "ALTER TABLE t ADD COLUMN d text DEFAULT 'd'")
    run(old, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    before = rows(old, "SELECT id, a, b, d FROM t ORDER BY id")
    dropped: list[str] = []

    def drop(step: str, _number: int) -> None:
        if step == "work" and not dropped:
            dropped.append(step)
            run(two, "ALTER TABLE t DROP COLUMN b, DROP COLUMN d")

    quick.add(drop, "ALTER TABLE t ADD COLUMN v double precision DEFAULT random()")
    assert rows(old, "SELECT id, a, b, d FROM t ORDER BY id") == before
    run(one, "ALTER TABLE t UNDROP COLUMN b", "ALTER TABLE t UNDROP COLUMN d")
    assert rows(one, "SELECT id, a, b, d FROM t ORDER BY id") == before


def test_a_column_that_never_came_is_no_hindrance(quick: Table) -> None:
    """A change of type has failed for a row: what was to come is among the columns that the table has lost, and cannot
    be computed for that row."""
    run(quick.one, "ALTER TABLE t ALTER b DROP DEFAULT", "UPDATE t SET b = '7' WHERE id < 5")
    with fails("22P02"):
        run(quick.one, "ALTER TABLE t ALTER COLUMN b TYPE int USING b::int")
    run(quick.one, "ALTER TABLE t DROP COLUMN a")
    run(quick.one, "ALTER TABLE t ADD COLUMN v double precision DEFAULT random()", "ALTER TABLE t UNDROP COLUMN a")
    assert rows(quick.one, "SELECT id, a FROM t ORDER BY id") == [(number, number) for number in range(ROWS)]


def test_rows_have_no_room_for_what_no_row_has(quick: Table) -> None:
    """Columns that came and went before all rows were replaced, and one that went since."""
    one = quick.one
    for _ in range(50):
        run(one, "ALTER TABLE t ADD COLUMN n bigint DEFAULT 1", "ALTER TABLE t DROP COLUMN n")
    run(one, "TRUNCATE t", "INSERT INTO t (id, a) VALUES (1, 1)", "ALTER TABLE t DROP COLUMN b")
    run(one, "ALTER TABLE t ADD COLUMN v double precision DEFAULT random()")
    with quick.engine.database.store.read() as reader:
        table = quick.engine.database.catalog.at(reader).lookup(None, "t")
        assert isinstance(table, Descriptor)
        prefix = rowset_prefix(table.rowset)
        ((_, stored),) = reader.scan(prefix, prefix_end(prefix))
    assert len(stored) < 64


def test_several_columns_in_one_statement_and_in_one_transaction(table: Table) -> None:
    two = table.engine.connect()

    def hook(_step: str, number: int) -> None:
        write_some(two, number)

    statement = "ALTER TABLE t ADD COLUMN c serial UNIQUE, ADD COLUMN d uuid DEFAULT gen_random_uuid() NOT NULL, "
    table.add(hook, statement + "ADD COLUMN e int DEFAULT 5, ADD UNIQUE (d), ALTER a SET NOT NULL")
    assert value(table.one, "SELECT count(*) FROM t WHERE d IS NULL OR e <> 5") == 0
    table.check()
    run(
        table.one,
        "BEGIN",
        "ALTER TABLE t ADD COLUMN f serial",
        "ALTER TABLE t ADD COLUMN g double precision DEFAULT random()",
        "CREATE UNIQUE INDEX tf ON t (f)",
        "INSERT INTO t (id, a) VALUES (77777, 0)",
        "COMMIT",
    )
    assert value(table.one, "SELECT count(*) FROM t WHERE f IS NULL OR g IS NULL") == 0
    assert value(table.one, "SELECT count(*) FROM instar.jobs") == 3
    table.check()


def test_a_transaction_that_has_written_adds_a_column(table: Table) -> None:
    run(table.one, "BEGIN", "INSERT INTO t (id, a) VALUES (9, 9)", "UPDATE t SET a = 10 WHERE id = 1", ADD, "COMMIT")
    table.check(FILLED - {(1, 1)} | {(1, 10), (9, 9)})
    run(
        table.one,
        "CREATE TABLE u (id int)",
        "BEGIN",
        "INSERT INTO u VALUES (1)",
        "ALTER TABLE u ADD c serial",
        "COMMIT",
    )
    assert rows(table.one, "SELECT * FROM u") == [(1, 1)]
    run(
        table.one,
        "BEGIN",
        "CREATE TABLE v (id int)",
        "INSERT INTO v VALUES (1)",
        "ALTER TABLE v ADD c serial",
        "COMMIT",
    )
    assert rows(table.one, "SELECT * FROM v") == [(1, 1)]
    assert rows(table.one, "CHECK DATABASE") == []


FAILURES = {
    "ALTER TABLE t ADD COLUMN c serial, ADD CHECK (c < 5)": "23514",
    "ALTER TABLE t ADD COLUMN c int GENERATED ALWAYS AS IDENTITY (MAXVALUE 5)": "2200H",
    "ALTER TABLE t ADD COLUMN c smallint DEFAULT nextval('s') * 10000": "22003",
    "ALTER TABLE t ADD COLUMN c int DEFAULT 10 / (nextval('s') - 4)": "22012",
    "ALTER TABLE t ADD COLUMN c varchar(2) DEFAULT random()::text": "22001",
    "ALTER TABLE t ADD COLUMN c int DEFAULT nextval('s') / 2 UNIQUE": "23505",
    "ALTER TABLE t ADD COLUMN c serial REFERENCES p, ALTER a SET DEFAULT 3": "23503",
    "ALTER TABLE t ADD COLUMN c serial, ADD COLUMN d int DEFAULT CASE nextval('s') WHEN 7 THEN NULL ELSE 1 END, "
    "ALTER d SET NOT NULL": "23502",
}


@pytest.mark.parametrize("statement", FAILURES)
def test_what_fails_leaves_nothing(table: Table, statement: str) -> None:
    run(table.one, "CREATE TABLE p (id int PRIMARY KEY)", "INSERT INTO p VALUES (1), (2)")
    two = table.engine.connect()
    views = ("information_schema.columns", "instar.sequences", "instar.indexes", "instar.constraints")
    before = [rows(table.one, f"SELECT * FROM {view}") for view in views]
    done: list[int] = []

    def hook(step: str, number: int) -> None:
        if step == "read" and not done:
            done.append(number)
            run(two, "UPDATE t SET b = 'y' WHERE id IN (0, 4)", "INSERT INTO t (id, a) VALUES (9, 9)")

    with fails(FAILURES[statement]):
        table.add(hook, statement)
    assert [rows(table.one, f"SELECT * FROM {view}") for view in views] == before
    assert {(i, a) for i, a, _ in rows(table.one, "SELECT * FROM t")} in (FILLED, FILLED | {(9, 9)})
    assert rows(table.one, "CHECK DATABASE") == []
    write_all_kinds(two, 3)
    table.one.execute("CREATE SEQUENCE t_c_seq")
    table.one.execute("DROP SEQUENCE t_c_seq")
    table.add(lambda _step, _number: None)
    table.check()


@pytest.mark.parametrize("step", range(1, len(STEPS) - 1))
def test_cancelled_at_each_step(quick: Table, step: int) -> None:
    two = quick.engine.connect()
    late = quick.engine.connect()

    def hook(_step: str, number: int) -> None:
        if number == step:
            write_all_kinds(two, number)
            run(late, "BEGIN", "UPDATE t SET a = 99 WHERE id = 5", "INSERT INTO t (id, a) VALUES (98, 98)")
            quick.engine.database.jobs.cancel(value(two, "SELECT max(id) FROM instar.jobs"))
            time.sleep(0.11)  # so often a job looks

    with fails("57014"):
        quick.add(hook, ADD.replace("DEFAULT nextval('s')", "GENERATED ALWAYS AS IDENTITY"))
    late.execute("COMMIT")
    assert rows(quick.one, "SELECT * FROM t WHERE id IN (5, 98) ORDER BY id")[1] == (98, 98, "x")
    assert rows(quick.one, "SELECT name FROM instar.sequences") == [("s",)]
    assert rows(quick.one, "CHECK DATABASE") == []
    quick.add(lambda _step, _number: None)
    quick.check()


@pytest.mark.parametrize("step", range(1, len(STEPS)))
def test_paused_and_resumed_at_each_step(quick: Table, step: int) -> None:
    two = quick.engine.connect()

    def hook(_step: str, number: int) -> None:
        if number == step:
            quick.engine.database.jobs.pause(value(two, "SELECT max(id) FROM instar.jobs"))
            time.sleep(0.11)  # so often a job looks

    run(quick.one, "SET schema_change_mode = async")  # it would wait for the end
    quick.add(hook)
    write_all_kinds(two, 5)
    job = value(two, "SELECT max(id) FROM instar.jobs")
    if value(two, "SELECT state FROM instar.jobs WHERE id = ?", job) == "paused":
        quick.engine.database.jobs.resume(job)
        quick.engine.database.run_job(job)
    assert value(two, "SELECT state FROM instar.jobs WHERE id = ?", job) == "succeeded"
    quick.check()


def test_what_would_disturb_the_job_is_refused(table: Table) -> None:
    two = table.engine.connect()
    run(two, "CREATE TABLE p (id int PRIMARY KEY)", "CREATE TABLE u (id int)")
    refused = [
        "ALTER TABLE t ALTER COLUMN c SET DEFAULT 5",
        "ALTER TABLE t ALTER COLUMN c DROP DEFAULT",
        "ALTER TABLE t ALTER COLUMN c DROP IDENTITY",
        "ALTER TABLE t ALTER COLUMN c DROP NOT NULL",
        "ALTER TABLE t ALTER COLUMN c TYPE numeric",
        "ALTER TABLE t DROP COLUMN c",
        "ALTER TABLE t RENAME COLUMN c TO d",
        "ALTER TABLE t ADD UNIQUE (c)",
        "CREATE INDEX tc ON t (c)",
        "ALTER TABLE t ADD FOREIGN KEY (c) REFERENCES p",
        "ALTER TABLE t ADD COLUMN d serial",
        "ALTER TABLE u ALTER COLUMN id SET DEFAULT nextval('t_c_seq')",
        "CREATE VIEW v AS SELECT nextval('t_c_seq')",
        "DROP SEQUENCE t_c_seq CASCADE",
        "TRUNCATE t",
        "DROP TABLE t",
    ]

    def hook(step: str, _number: int) -> None:
        if step == "read":
            for statement in refused:
                two.execute("BEGIN")
                with fails("55006"):  # outside of a transaction block it would wait for the job
                    two.execute(statement)
                two.execute("ROLLBACK")
            with fails("42703"):
                two.execute("ALTER TABLE t ADD CHECK (c > 0)")

    table.add(hook, "ALTER TABLE t ADD COLUMN c serial")
    assert [c for (c,) in rows(two, "SELECT c FROM t ORDER BY id")] == list(range(1, ROWS + 1))


def test_a_second_such_column_waits_for_the_first(table: Table) -> None:
    two = table.engine.connect(schema_change_mode="async")

    def hook(_step: str, number: int) -> None:
        if number == 4:
            two.execute("ALTER TABLE t ADD COLUMN d bigint NOT NULL DEFAULT nextval('s')")
            assert "d" not in {name for (name,) in rows(two, "SELECT column_name FROM information_schema.columns")}

    table.add(hook)
    run(two, "SET schema_change_mode = wait")
    number = value(two, "SELECT max(id) FROM instar.jobs")
    if value(two, "SELECT state FROM instar.jobs WHERE id = ?", number) != "succeeded":
        table.engine.database.run_job(number)
    assert value(two, "SELECT count(DISTINCT d) FROM t") == ROWS
    table.check(FILLED)


def test_other_changes_go_on_beside_the_job(table: Table) -> None:
    """Rows in layouts that came while the job was at work; columns that are dropped, renamed and widened beside it."""
    two = table.engine.connect()
    changes = {
        1: "ALTER TABLE t ADD COLUMN d int DEFAULT 4",
        3: "ALTER TABLE t RENAME COLUMN d TO dd",
        4: "ALTER TABLE t ADD COLUMN e int NOT NULL DEFAULT 5",
        6: "ALTER TABLE t DROP COLUMN dd",
        7: "ALTER TABLE t ALTER COLUMN e TYPE bigint",
        9: "ALTER SEQUENCE s INCREMENT 3",
        11: "CREATE INDEX te ON t (e)",
    }

    def hook(_step: str, number: int) -> None:
        if number in changes:
            change = changes.pop(number)  # before, since it may have a job itself
            two.execute(change)
            write_all_kinds(two, number)

    table.add(hook)
    assert not changes
    assert value(two, "SELECT count(*) FROM t WHERE e IS NULL OR e <> 5") == 0
    table.check()


def test_the_children_of_cascades_are_given_values(table: Table) -> None:
    run(
        table.one,
        "CREATE TABLE p (id int PRIMARY KEY)",
        "INSERT INTO p VALUES (1), (2), (3)",
        "CREATE TABLE k (id int PRIMARY KEY, p int REFERENCES p ON UPDATE CASCADE ON DELETE SET NULL)",
        "INSERT INTO k VALUES (1, 1), (2, 2), (3, 3), (4, 1), (5, 2), (6, 3)",
    )
    two = table.engine.connect()

    def hook(step: str, number: int) -> None:
        if step == "work":
            run(two, f"UPDATE p SET id = {number * 10} WHERE id < 4 AND id <> 3", "DELETE FROM p WHERE id = 3")

    run(table.one, "DELETE FROM p WHERE id = 1")
    table.add(hook, "ALTER TABLE k ADD COLUMN c bigint NOT NULL DEFAULT nextval('s') UNIQUE")
    found = rows(table.one, "SELECT id, p, c FROM k ORDER BY id")
    assert len({c for _, _, c in found}) == 6
    assert [p for _, p, _ in found] == [None, found[1][1], None, None, found[1][1], None]
    assert rows(table.one, "CHECK DATABASE") == []


def test_identity_for_a_column_that_is_there(table: Table) -> None:
    one = table.one
    run(one, "ALTER TABLE t ALTER COLUMN a SET NOT NULL")
    run(one, "ALTER TABLE t ALTER COLUMN a ADD GENERATED ALWAYS AS IDENTITY (START 50)")
    run(one, "INSERT INTO t (id) VALUES (9), (10)")
    assert rows(one, "SELECT a FROM t ORDER BY id") == [*((i,) for i in range(ROWS)), (50,), (51,)]
    with fails("428C9"):
        one.execute("UPDATE t SET a = 5")
    with fails("55000", "already an identity column"):
        one.execute("ALTER TABLE t ALTER COLUMN a ADD GENERATED ALWAYS AS IDENTITY")
    with fails("55000", "must be declared NOT NULL"):
        one.execute("ALTER TABLE t ALTER COLUMN b ADD GENERATED ALWAYS AS IDENTITY")
    run(one, "UPDATE t SET b = 'x'", "ALTER TABLE t ALTER COLUMN b DROP DEFAULT, ALTER COLUMN b SET NOT NULL")
    with fails("22023", "must be smallint, integer, or bigint"):
        one.execute("ALTER TABLE t ALTER COLUMN b ADD GENERATED ALWAYS AS IDENTITY")
    run(one, "ALTER TABLE t ALTER COLUMN a DROP IDENTITY", "ALTER TABLE t ALTER COLUMN a SET DEFAULT 3")
    with fails("55000", "already has a default value"):
        one.execute("ALTER TABLE t ALTER COLUMN a ADD GENERATED ALWAYS AS IDENTITY")
    assert rows(one, "CHECK DATABASE") == []


@pytest.mark.parametrize("seed", range(6))
def test_random_transactions_across_the_steps(table: Table, seed: int) -> None:
    """Sessions that begin, write, save, roll back and commit at random while the column comes, by a seed."""
    draw = random.Random(seed)
    sessions = [table.engine.connect(lock_timeout="1us") for _ in range(4)]
    fresh = iter(range(1000, 100_000))
    seen: dict[int, int] = {}

    def act() -> None:
        session = draw.choice(sessions)
        key = draw.randrange(ROWS)
        statements = [
            f"INSERT INTO t (id, a) VALUES ({next(fresh)}, 0)",
            f"UPDATE t SET a = a + 1 WHERE id = {key}",
            f"UPDATE t SET b = 'y' WHERE id >= {key} AND id < 1000",
            f"INSERT INTO t (id, a) VALUES ({key}, 0) ON CONFLICT (id) DO UPDATE SET a = 0",
            f"DELETE FROM t WHERE id = {next(fresh) - 3}",
            f"UPDATE t SET id = {next(fresh)} WHERE id = (SELECT max(id) FROM t)",
            "SAVEPOINT x", "ROLLBACK TO x", "COMMIT", "COMMIT", "ROLLBACK",
            f"BEGIN ISOLATION LEVEL {draw.choice(LEVELS)}",
        ]  # fmt: skip
        try:
            session.execute(draw.choice(statements))
        except errors.Error as failed:
            assert failed.sqlstate in {"40001", "55P03", "3B001", "25P01", "25001", "25P02", "23505"}, failed  # noqa: PT017
            if failed.sqlstate == "40001":
                session.execute("ROLLBACK")

    def hook(_step: str, _number: int) -> None:
        for _ in range(draw.randrange(6)):
            act()

    table.add(hook)
    for _ in range(30):
        # What rows have had since the column was there they keep, whoever writes what he began before.
        found = dict(rows(table.one, "SELECT id, c FROM t WHERE id < 1000"))
        assert all(found.get(i, c) == c for i, c in seen.items())
        seen |= found
        act()
    for session in sessions:
        try:
            session.execute("COMMIT")
        except errors.Error as failed:
            assert failed.sqlstate in {"40001", "55P03", "25P01", "25P02"}, failed  # noqa: PT017
    table.check()
