"""ALTER TABLE ... SPLIT and JOIN in a session: in transactions, beside other changes, and what EXPLAIN says of them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import instar
from instar.catalog.descriptors import Index, Table
from instar.schemachange import works
from instar.schemachange.job_records import claim_key, lease_key
from instar.schemachange.online import planning
from instar.schemachange.online.image import ImageEntries
from instar.store.engine import Store
from support.databases import Engine, fails, rows, run, value
from support.steps import hook_jobs

SPLIT = "ALTER TABLE person SPLIT INTO person (id, zip), place (zip, town) ON (zip)"
JOIN = "ALTER TABLE r JOIN s USING (b) INTO t (a, b, c)"


@pytest.fixture
def connection() -> Iterator[instar.Connection]:
    with instar.connect(autocommit=True) as made:
        run(
            made,
            "CREATE TABLE person (id bigint PRIMARY KEY, zip text, town text)",
            "INSERT INTO person VALUES (1, '1', 'x'), (2, '2', 'y')",
            "CREATE TABLE r (a int PRIMARY KEY, b int)",
            "INSERT INTO r VALUES (1, 1)",
            "CREATE TABLE s (b int PRIMARY KEY, c int)",
            "CREATE TABLE other (a int)",
            "INSERT INTO other VALUES (1)",
        )
        yield made


def test_nothing_is_left_of_one_that_is_rolled_back(connection: instar.Connection) -> None:
    version = value(connection, "SELECT max(version) FROM instar.schema_versions")
    run(connection, "BEGIN", "ALTER TABLE other ADD COLUMN b int", SPLIT, "ROLLBACK")
    assert value(connection, "SELECT max(version) FROM instar.schema_versions") == version
    assert rows(connection, "SELECT id, town FROM person ORDER BY id") == [(1, "x"), (2, "y")]
    assert rows(connection, "SHOW JOBS") == []
    run(connection, "CREATE TABLE place (a int)")


def test_targets_are_not_there_before_the_end_but_their_names_are_taken(connection: instar.Connection) -> None:
    run(connection, "BEGIN", SPLIT)
    for statement, sqlstate in (
        ("SELECT * FROM place", "42P01"),
        ("DROP TABLE place", "42P01"),
        ("CREATE TABLE place (a int)", "42P07"),
        ("CREATE INDEX place ON other (a)", "42P07"),
    ):
        run(connection, "SAVEPOINT a")
        with fails(sqlstate) as refused:
            connection.execute(statement)
        hint = "A change that is under way makes it: SHOW JOBS tells which."
        assert refused.error.hint == (hint if sqlstate == "42P07" else None)
        run(connection, "ROLLBACK TO a")
    assert rows(connection, "SELECT town FROM person WHERE id = 1") == [("x",)]
    run(connection, "ROLLBACK")


@pytest.mark.parametrize("change", [SPLIT, JOIN])
def test_it_shares_its_stages_with_no_other_change(connection: instar.Connection, change: str) -> None:
    for statements in (("CREATE INDEX i ON other (a)", change), (change, "CREATE INDEX i ON other (a)")):
        run(connection, "BEGIN", statements[0])
        with fails("0A000", "whose other changes take a job"):
            connection.execute(statements[1])
        run(connection, "ROLLBACK")


def test_explain_tells_of_the_pause(connection: instar.Connection) -> None:
    told = rows(connection, f"EXPLAIN (DDL) {SPLIT} WITH (pause_rows = 5)")
    assert [(row[0], row[1]) for row in told] == [
        ("1", 'table "person": created, to be seen at the end'),
        ("1", 'table "place": created, to be seen at the end'),
        ("1", 'table "person": its rows are logged whole'),
        ("2", 'table "person": all writers log its rows whole'),
        ("2", 'table "person": its indexes are filled'),
        ("2", 'table "person": all writers log its rows whole'),
        ("3", 'table "person": dropped'),
        ("3", 'table "person": seen'),
        ("3", 'table "place": seen'),
    ]
    assert [row[4] for row in told if row[4]] == [
        'initial population of "person", "place", about 2 rows, in the call',
        'index entries of index "person_zip_idx", about 2 rows, in the call',
        "log propagation, until at most about 5 target rows are left, in the call",
        "pause: at most about 5 target rows in one commit, estimated at 0.2 ms",
    ]
    more = rows(connection, f"EXPLAIN (DDL) {SPLIT} WITH (pause_rows = 100000)")
    assert "100000 target rows in one commit, estimated at 800.2 ms" in "".join(row[4] for row in more)
    assert rows(connection, "SHOW JOBS") == []


def test_entries_are_as_many_as_their_table_has_rows(
    connection: instar.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of S there are fewer than of the source, by whose rows they were planned."""
    found: dict[str, int] = {}

    class Noted(ImageEntries):
        def __init__(self, store: Store, target: Table, indexes: Iterable[Index], **names: Any) -> None:
            super().__init__(store, target, indexes, **names)
            found[target.name] = self.rows

    monkeypatch.setattr(works, "ImageEntries", Noted)
    run(connection, "CREATE TABLE m (id int PRIMARY KEY, k int, v int)", "CREATE INDEX m_v ON m (v)")
    run(connection, "INSERT INTO m SELECT x, x % 2, x % 2 FROM generate_series(1, 6) AS n (x)")
    run(connection, "ALTER TABLE m SPLIT INTO mr (id, k), ms (k, v) ON (k)")
    assert found == {"mr": 6, "ms": 2}


@pytest.mark.parametrize("change", [SPLIT, JOIN])
def test_a_job_of_a_version_whose_image_had_entries_is_taken_back(
    connection: instar.Connection, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Nothing would fill the indexes."""
    filling = planning.filling
    monkeypatch.setattr(planning, "filling", lambda *what: tuple(filling(*what)[place] for place in (0, -1)))
    before = rows(connection, "SELECT table_name FROM information_schema.tables ORDER BY 1")
    with pytest.raises(instar.Error, match="begun by a version that filled tables in another way"):
        connection.execute(change)
    assert rows(connection, "SELECT table_name FROM information_schema.tables ORDER BY 1") == before
    monkeypatch.undo()
    run(connection, change)
    assert rows(connection, "CHECK DATABASE") == []


def test_explain_warns_as_the_statement_does(connection: instar.Connection) -> None:
    run(connection, "ALTER TABLE s ADD UNIQUE (b, c)", "ALTER TABLE s ALTER c SET DEFAULT 1")
    connection.notices.clear()
    run(connection, f"EXPLAIN (DDL) {JOIN}")
    warned = list(connection.notices)
    assert warned == [
        'NOTICE:  index "s_b_c_key" is not unique any more',
        'NOTICE:  column "c" of table "s" loses its default',
    ]
    connection.notices.clear()
    run(connection, JOIN)
    assert list(connection.notices) == warned


@pytest.mark.parametrize("in_place", ["", "IN PLACE "])
def test_a_split_that_leaves_nothing_between_its_tables_says_so(connection: instar.Connection, in_place: str) -> None:
    run(connection, "CREATE TABLE people (id int PRIMARY KEY, name text, zip text, town text)")
    connection.notices.clear()
    run(connection, f"ALTER TABLE people SPLIT {in_place}INTO who (id, name), towns (zip, town) ON (zip)")
    told = 'NOTICE:  table "who" is without zip: nobody can tell which rows of "towns" belong to its rows'
    assert list(connection.notices)[:1] == [told]


def test_columns_and_indexes_that_are_left_out_are_told(connection: instar.Connection) -> None:
    run(
        connection,
        "CREATE TABLE a (id int PRIMARY KEY, x int, left_out text, too text)",
        "CREATE TABLE b (x int PRIMARY KEY, code int, y int, UNIQUE (x, y))",
        "CREATE INDEX b_code ON b (code)",
        "CREATE INDEX a_too ON a (too)",
    )
    connection.notices.clear()
    run(connection, "ALTER TABLE a JOIN b USING (x) INTO ab (a.id AS id, code, y)")
    assert list(connection.notices) == [
        'NOTICE:  index "a_too" goes with columns that are not wanted',
        'NOTICE:  index "b_x_y_key" goes with columns that are not wanted',
        'NOTICE:  columns "x", "left_out", "too" of table "a" will be gone',
        'NOTICE:  column "x" of table "b" will be gone',
    ]
    shown = rows(connection, "SELECT indexname FROM pg_indexes WHERE tablename = 'ab' ORDER BY 1")
    assert shown == [("ab_id_key",), ("b_code",)]
    connection.notices.clear()
    run(
        connection,
        "CREATE TABLE c (id int PRIMARY KEY, x int)",
        "CREATE TABLE d (k int PRIMARY KEY, x int UNIQUE)",
        "ALTER TABLE c JOIN d USING (x) INTO cd (c.id AS id, k)",
    )
    assert list(connection.notices) == [
        'NOTICE:  index "d_x_key" goes with columns that are not wanted',
        'NOTICE:  column "x" of table "c" will be gone',
        'NOTICE:  column "x" of table "d" will be gone',
    ]
    assert rows(connection, "CHECK DATABASE") == []


TWO = ("CREATE TABLE q (id int PRIMARY KEY, x int, y int)", "CREATE TABLE p (k int PRIMARY KEY, x int, y int)")
BY_KEY = "ON q.x = p.k INTO t (id, q.x, k, p.y)"


@pytest.mark.parametrize(
    ("more", "join", "words"),
    [
        ("ALTER TABLE p ADD UNIQUE (y)", BY_KEY, "p: unique constraint p_y_key"),
        ("CREATE UNIQUE INDEX one ON p (y)", BY_KEY, "p: unique index one"),
        # a many-to-many join repeats the rows of either table
        ("ALTER TABLE q ADD UNIQUE (y)", "ON q.x = p.x INTO t (id, p.x, k, q.y)", "q: unique constraint q_y_key"),
        ("ALTER TABLE p ADD UNIQUE (y)", "ON q.x = p.x INTO t (id, q.x, k, p.y)", "p: unique constraint p_y_key"),
        # a row that p alone has may have the x of one that q has
        (
            "ALTER TABLE p ADD UNIQUE (x, y); ALTER TABLE q ADD UNIQUE (x)",
            "USING (x, y) INTO t (id, x, y, k)",
            "q: unique constraint q_x_key",
        ),
    ],
)
def test_unique_constraints_that_a_join_cannot_have_refuse_it(
    connection: instar.Connection, more: str, join: str, words: str
) -> None:
    run(connection, *TWO, *more.split("; "))
    for explain in ("EXPLAIN (DDL) ", ""):
        with fails("2BP01", f"cannot join table {words} cannot hold") as failed:
            connection.execute(f"{explain}ALTER TABLE q JOIN p {join}")
        assert str(failed.error.hint).endswith(" first, or leave a column of it out of the new table.")
    assert rows(connection, "SHOW JOBS") == []
    assert list(connection.notices) == []


def test_one_that_is_dropped_or_left_out_does_not_refuse_it(connection: instar.Connection) -> None:
    run(connection, *TWO, "ALTER TABLE p ADD UNIQUE (y)", f"EXPLAIN (DDL) ALTER TABLE q JOIN p {BY_KEY[:-6]})")
    assert connection.notices[0] == 'NOTICE:  index "p_y_key" goes with columns that are not wanted'
    run(connection, "ALTER TABLE p DROP CONSTRAINT p_y_key", f"ALTER TABLE q JOIN p {BY_KEY}")


def test_what_is_unique_by_a_key_or_the_join_columns_is_no_more(connection: instar.Connection) -> None:
    run(
        connection,
        *TWO,
        "ALTER TABLE p ADD UNIQUE (x)",
        "ALTER TABLE p ADD UNIQUE (x, y)",
        "CREATE UNIQUE INDEX again ON p (y, k)",
        "ALTER TABLE q ADD UNIQUE (y)",
        "ALTER TABLE q JOIN p ON q.x = p.x INTO t (id, q.y AS v, k, p.x, p.y)",
    )
    assert list(connection.notices) == [
        'NOTICE:  index "p_x_key" is not unique any more',
        'NOTICE:  index "p_x_y_key" is not unique any more',
        'NOTICE:  index "again" is not unique any more',
        'NOTICE:  column "x" of table "q" will be gone',
    ]
    shown = rows(connection, "SELECT name, is_unique FROM instar.indexes WHERE table_name = 't' ORDER BY 1")
    assert ("q_y_key", True) in shown
    assert ("p_x_key", False) in shown


# --- what refers to the sources, and what they refer to --------------------------------------------------------------


@pytest.fixture
def orders() -> Iterator[instar.Connection]:
    with instar.connect(autocommit=True) as made:
        run(
            made,
            "CREATE TABLE place (id int PRIMARY KEY)",
            "CREATE TABLE customer (id int PRIMARY KEY, name text, UNIQUE (id, name))",
            "CREATE TABLE orders (id int PRIMARY KEY, customer int REFERENCES customer, place int REFERENCES place)",
            "CREATE TABLE item (id int PRIMARY KEY, orders int REFERENCES orders ON DELETE CASCADE)",
            "INSERT INTO place VALUES (1)",
            "INSERT INTO customer VALUES (1, 'Ada'), (2, 'Ben')",
            "INSERT INTO orders VALUES (10, 1, 1), (11, 1, NULL)",
            "INSERT INTO item VALUES (100, 10), (101, 11)",
        )
        yield made


BOTH = (
    "ALTER TABLE orders o JOIN customer c ON o.customer = c.id "
    "INTO orders (o.id AS id, customer, place, c.id AS c, name)"
)


def test_foreign_keys_are_carried_over_to_a_join(orders: instar.Connection) -> None:
    orders.execute(BOTH)
    assert 'NOTICE:  constraint "orders_customer_fkey" goes: its tables become one' in orders.notices
    with fails("23503", "item_orders_fkey"):
        orders.execute("INSERT INTO item VALUES (102, 12)")
    with fails("23503", "orders_place_fkey"):
        orders.execute("UPDATE orders SET place = 2 WHERE id = 11")
    with fails("23503", "orders_place_fkey"):
        orders.execute("DELETE FROM place")
    orders.execute("DELETE FROM orders WHERE id = 10")
    assert rows(orders, "SELECT id FROM item") == [(101,)]
    assert rows(orders, "CHECK DATABASE") == []


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("CREATE TABLE card (id int PRIMARY KEY, c int REFERENCES customer)", "card_c_fkey"),
        (
            "CREATE TABLE card (id int PRIMARY KEY, n text, FOREIGN KEY (id, n) REFERENCES customer (id, name))",
            "card_id_n_fkey",
        ),
        ("ALTER TABLE orders ADD COLUMN x int REFERENCES place ON DELETE CASCADE", "orders_x_fkey"),
    ],
)
def test_foreign_keys_that_a_join_cannot_have_refuse_it(orders: instar.Connection, more: str, words: str) -> None:
    run(orders, more)
    with fails("2BP01", words):
        orders.execute(BOTH.replace("place,", "place, x,") if "x" in more.split() else BOTH)
    assert rows(orders, "SELECT count(*) FROM orders") == [(2,)]


def test_those_of_a_split_go_to_the_side_that_has_their_columns(orders: instar.Connection) -> None:
    run(
        orders,
        "CREATE TABLE visit (id int PRIMARY KEY, city int, mayor int REFERENCES customer, who int REFERENCES customer)",
        "CREATE INDEX ON visit (mayor)",
        "INSERT INTO visit VALUES (1, 1, 1, 2), (2, 1, 1, 1)",
        "ALTER TABLE visit SPLIT INTO visit (id, city, who), city (city, mayor) ON (city)",
    )
    for statement in ("UPDATE visit SET who = 3", "UPDATE city SET mayor = 3", "DELETE FROM customer WHERE id = 2"):
        with fails("23503"):
            orders.execute(statement)
    assert rows(orders, "CHECK DATABASE") == []


def test_a_cascade_would_leave_rows_of_the_other_side(orders: instar.Connection) -> None:
    split = "ALTER TABLE visit SPLIT INTO visit (id, city), city (city, mayor, a) ON (city)"
    run(
        orders,
        "CREATE TABLE visit (id int PRIMARY KEY, city int, mayor int REFERENCES customer ON DELETE CASCADE, a int)",
        "CREATE INDEX ON visit (mayor)",
        "INSERT INTO visit VALUES (1, 1, 1, 5)",
    )
    with fails("2BP01", "visit_mayor_fkey"):
        orders.execute(split)
    run(orders, split.replace("id, city)", "id, city, mayor)").replace("city, mayor, a)", "city, a)"))
    run(orders, "DELETE FROM orders", "DELETE FROM customer WHERE id = 1")
    assert rows(orders, "SELECT id FROM visit") == []
    assert rows(orders, "CHECK DATABASE") == []


def test_a_split_that_takes_a_key_apart_is_refused(orders: instar.Connection) -> None:
    run(
        orders,
        "CREATE TABLE pair (a int, b int, PRIMARY KEY (a, b))",
        "CREATE TABLE visit (id int PRIMARY KEY, city int, a int, b int, FOREIGN KEY (a, b) REFERENCES pair)",
    )
    with fails("2BP01", "visit_a_b_fkey"):
        orders.execute("ALTER TABLE visit SPLIT INTO visit (id, city, a), city (city, b) ON (city)")


def test_a_source_that_is_brought_back_is_a_table_like_others(orders: instar.Connection) -> None:
    run(orders, "DROP TABLE item", BOTH, "UNDROP TABLE orders AS former, customer")
    assert rows(orders, "SELECT id, customer FROM former ORDER BY id") == [(10, 1), (11, 1)]
    run(orders, "ALTER TABLE former ADD COLUMN x int", "INSERT INTO former VALUES (12, 2, 1, 0)")
    assert rows(orders, "CHECK DATABASE") == []


# --- while the job goes on --------------------------------------------------------------------------------------------


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine(":memory:")
    run(
        made.connect(),
        "CREATE TABLE person (id bigint PRIMARY KEY, zip text, town text)",
        "INSERT INTO person VALUES (1, '1', 'x'), (2, '2', 'y')",
    )
    yield made
    made.close()


def split_with(engine: Engine, deed: Callable[[instar.Connection], object], statement: str = SPLIT) -> None:
    """Split, and do something when the initial population begins."""
    one, two = engine.connect(ddl_wait="50ms"), engine.connect(schema_change_mode="async")
    with pytest.MonkeyPatch.context() as patched:
        hook_jobs(patched, lambda point: deed(two) if point == "stage 2" else None)
        one.execute(statement)


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_writers_are_told_which_change_has_voided_what_they_wrote(engine: Engine, level: str) -> None:
    writer = engine.connect()
    split_with(
        engine, lambda _: run(writer, f"BEGIN ISOLATION LEVEL {level}", "INSERT INTO person VALUES (3, '3', 'z')")
    )
    with fails("40001", "was joined or split meanwhile", SPLIT):
        writer.execute("COMMIT")


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_so_are_those_who_wrote_before_the_change_was_asked_for(engine: Engine, level: str) -> None:
    writer = engine.connect()
    run(writer, f"BEGIN ISOLATION LEVEL {level}", "INSERT INTO person VALUES (3, '3', 'z')")
    split_with(engine, lambda _: None)
    with fails("40001", "was joined or split meanwhile", SPLIT):
        writer.execute("COMMIT")


def test_readers_keep_their_snapshot(engine: Engine) -> None:
    reader = engine.connect()
    split_with(engine, lambda _: run(reader, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT * FROM person"))
    assert rows(reader, "SELECT id, town FROM person ORDER BY id") == [(1, "x"), (2, "y")]
    reader.execute("COMMIT")
    with fails("42703"):
        reader.execute("SELECT town FROM person")


def test_statements_that_were_compiled_before_mean_the_new_table(engine: Engine) -> None:
    one = engine.connect()

    def write() -> None:
        one.execute("UPDATE person SET zip = ? WHERE id = ?", ("1", 2))
        one.execute("INSERT INTO person (id, zip) VALUES (?, ?)", (value(one, "SELECT max(id) + 1 FROM person"), "1"))
        one.execute("DELETE FROM person WHERE id = ?", (1,))

    write()
    split_with(engine, lambda _: write(), f"{SPLIT} WITH (repair = 'newest')")
    write()
    assert rows(one, "SELECT id, zip FROM person ORDER BY id") == [(2, "1"), (3, "1"), (4, "1"), (5, "1")]
    assert rows(one, "SELECT zip FROM place") == [("1",)]
    assert rows(one, "CHECK DATABASE") == []


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE person ADD COLUMN a int",
        "ALTER TABLE person RENAME TO people",
        "ALTER TABLE person RENAME COLUMN town TO city",
        "ALTER TABLE person DROP COLUMN town",
        "CREATE INDEX ON person (town)",
        "CREATE VIEW v AS SELECT id FROM person",
        "CREATE TABLE child (id int PRIMARY KEY, p bigint REFERENCES person)",
        "ALTER TABLE person ALTER PRIMARY KEY (zip)",
        "ALTER TABLE person SET (migration = 'read')",
        "DROP TABLE person",
        "COMPACT TABLE person",
        JOIN.replace("r JOIN s USING (b)", "person JOIN r USING (id)").replace("(a, b, c)", "(id, zip)"),
    ],
)
def test_other_changes_of_a_source_wait(engine: Engine, change: str) -> None:
    run(engine.connect(), "CREATE TABLE r (id bigint PRIMARY KEY)", "ALTER TABLE person ADD COLUMN b int")
    run(engine.connect(), "INSERT INTO person VALUES (3, '3', 'z', 0)")
    statement = SPLIT.replace("(id, zip)", "(id, zip, b)")
    split_with(engine, lambda two: run(two, change), statement)
    one = engine.connect()
    assert rows(one, "SELECT id, zip FROM person ORDER BY id") == [(1, "1"), (2, "2"), (3, "3")]
    assert rows(one, "SELECT zip, town FROM place ORDER BY zip") == [("1", "x"), ("2", "y"), ("3", "z")]
    # What was in its way has ended: it is to be planned by the next worker.
    assert rows(one, "SELECT state FROM instar.jobs WHERE state <> 'succeeded'") == [("pending",)]
    assert rows(one, "CHECK DATABASE") == []


def test_a_truncate_that_nobody_waits_for_is_refused(engine: Engine) -> None:
    def truncate(two: instar.Connection) -> None:
        with fails("55006", "join or split"):
            two.execute("TRUNCATE person")

    split_with(engine, truncate)
    assert value(engine.connect(), "SELECT count(*) FROM person") == 2


def test_a_load_takes_the_way_of_transactions(engine: Engine) -> None:
    table = pa.table({"id": [3, 4], "zip": ["1", "1"], "town": ["x", "x"]})
    run(engine.connect(), "DELETE FROM person")
    split_with(engine, lambda two: two.insert_arrow("person", table))
    one = engine.connect()
    assert rows(one, "SELECT id FROM person ORDER BY id") == [(3,), (4,)]
    assert rows(one, "SELECT zip, town FROM place") == [("1", "x")]


LOST = "by which it is split, violates not-null constraint"


def test_values_that_would_have_no_place_are_told(engine: Engine) -> None:
    one = engine.connect()
    run(one, "CREATE TABLE t (id int PRIMARY KEY, k int, l int, v text)", "INSERT INTO t VALUES (1, NULL, 5, 'a')")
    with fails("23502", LOST, 'column "l" of row (id)=(1)'):
        one.execute("ALTER TABLE t SPLIT INTO r (id, k, v), s (k, l, v) ON (k, l)")
    one.execute("ALTER TABLE t SPLIT INTO r (id, k, l, v), s (k, l, v) ON (k, l)")
    assert rows(one, "SELECT * FROM r") == [(1, None, 5, "a")]


@pytest.mark.parametrize("place", ["", "IN PLACE "])
@pytest.mark.parametrize(
    "write", ["INSERT INTO person VALUES (3, NULL, 'z')", "UPDATE person SET zip = NULL WHERE id = 1"]
)
def test_such_values_are_told_when_they_come_later(engine: Engine, place: str, write: str) -> None:
    one, two = engine.connect(), engine.connect()
    for point in ("read", "stage 3"):
        deeds = [write]

        def deed(reached: str, point: str = point, deeds: list[str] = deeds) -> None:
            if reached == point and deeds:
                run(two, deeds.pop())

        with pytest.MonkeyPatch.context() as patched, fails("23502", LOST):
            hook_jobs(patched, deed)
            one.execute(SPLIT.replace("INTO", f"{place}INTO"))
        assert value(one, "SELECT count(*) FROM person WHERE zip IS NULL AND town IS NOT NULL") == 1
        run(
            one,
            "DELETE FROM person WHERE zip IS NULL",
            "INSERT INTO person VALUES (1, '1', 'x') ON CONFLICT DO NOTHING",
        )
        assert rows(one, "CHECK DATABASE") == []


def test_targets_of_a_change_that_failed_are_gone_for_good(engine: Engine) -> None:
    one = engine.connect()
    run(one, "INSERT INTO person VALUES (3, '1', 'contradicts')")
    with fails("23505", 'table "person" with (zip)=(1)', "(zip, town)=(1, contradicts) in 1 row, such as (id)=(3)"):
        one.execute(SPLIT.replace("person (id", "man (id"))
    assert value(one, "SELECT count(*) FROM instar.dropped") == 0
    for name in ("man", "place"):
        with fails("42P01"):
            one.execute(f"UNDROP TABLE {name}")
        run(one, f"CREATE TABLE {name} (a int)")


def test_what_a_check_of_a_joined_table_would_need_is_said(connection: instar.Connection) -> None:
    run(connection, "ALTER TABLE s ADD CHECK (c > 0)")
    with fails(
        "2BP01", "cannot join table s: constraint s_c_check would hold for rows that have a row of s"
    ) as refused:
        connection.execute(JOIN)
    assert refused.error.hint is not None
    assert "or have its primary key in the new table, with a column that is of s alone" in refused.error.hint
    run(connection, "ALTER TABLE r JOIN s ON r.b = s.b INTO t (a, r.b, s.b AS of_s, c)")
    run(connection, "INSERT INTO t (a, c) VALUES (2, -1)")
    with fails("23514", "s_c_check"):
        connection.execute("INSERT INTO t (a, of_s, c) VALUES (3, 1, -1)")


def test_all_that_contradicts_is_named_and_what_is_repaired_is_told(engine: Engine) -> None:
    one = engine.connect()
    run(one, "INSERT INTO person VALUES (3, '1', 'wrong'), (4, '2', 'wrong'), (5, '2', 'y')")
    first, second = (
        "(zip, town)=(1, wrong) in 1 row, such as (id)=(3)",
        "(zip, town)=(2, wrong) in 1 row, such as (id)=(4)",
    )
    with fails("23505", "each of 2 values of (zip), by which it is split, contradict each other", first, second):
        one.execute(SPLIT)
    one.execute(f"{SPLIT} WITH (repair = 'most frequent')")
    told = 'rows of table "person" with each of 2 values of (zip) contradicted each other, and the most frequent were'
    [notice] = [notice for notice in one.notices if "contradicted" in notice]
    assert notice.startswith(f"NOTICE:  {told} taken: ")
    assert "(zip, town)=(2, y) in 2 rows, such as (id)=(2), is taken; " + second in notice
    reason = value(one, "SELECT reason FROM instar.jobs WHERE state = 'succeeded'")
    assert reason.startswith(notice.removeprefix("NOTICE:  ").removesuffix(".") + "; cycle ")


def test_documents_contradict_each_other_where_sql_has_them_differ(engine: Engine) -> None:
    one = engine.connect()
    run(one, "CREATE TABLE m (id int PRIMARY KEY, k int, v jsonb)")
    run(
        one,
        "INSERT INTO m VALUES (1, 1, '1.0'), (2, 1, '1.00'), (3, 1, '1'), (4, 2, '[1]'), (5, 2, '[1.0]'), (6, 3, NULL)",
    )
    run(one, "ALTER TABLE m SPLIT INTO mr (id, k), ms (k, v) ON (k) WITH (keep_views = true)")
    assert rows(one, "SELECT k FROM ms WHERE v = CASE k WHEN 1 THEN '1' ELSE '[1]' END::jsonb ORDER BY k") == [
        (1,),
        (2,),
    ]
    assert [notice for notice in one.notices if "contradict" in notice] == []
    run(one, "UPDATE m SET v = '1.000' WHERE k = 1", "INSERT INTO m VALUES (7, 1, '1.0')")
    with fails("23514", "would contradict each other"):
        run(one, "INSERT INTO m VALUES (8, 1, '1.1')")
    run(one, "CREATE TABLE n (id int PRIMARY KEY, k int, v jsonb)")
    run(one, "INSERT INTO n VALUES (1, 1, '1.0'), (2, 1, '1.00'), (3, 1, '1'), (4, 1, '2'), (5, 1, '2')")
    run(one, "ALTER TABLE n SPLIT INTO nr (id, k), ns (k, v) ON (k) WITH (repair = 'most frequent')")
    assert rows(one, "SELECT k FROM ns WHERE v = '1'") == [(1,)]
    assert rows(one, "CHECK DATABASE") == []


def test_what_log_propagation_came_to_is_told_when_the_job_has_ended(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = engine.connect(), engine.connect()
    numbers = iter(range(10, 100))
    # the third work is to follow the log, which begins with a look for doubtful rows
    awaited = ["work", "work", "work", "put", "put", "stage 3"]

    def write(point: str) -> None:
        if awaited and point == awaited[0]:
            awaited.pop(0)
            if cancels:
                run(two, f"CANCEL JOB {value(two, 'SELECT max(id) FROM instar.jobs')}")
            else:
                run(two, *(f"INSERT INTO person VALUES ({next(numbers)}, '1', 'x')" for _ in range(4)))

    hook_jobs(monkeypatch, write)
    cancels = False
    run(one, f"{SPLIT} WITH (pause_rows = 3)")
    assert re.fullmatch(
        r"cycle 3: 4 changes in 4 commits applied in \d+\.\d\d s; the switch may write 3 target rows, about 0 were "
        r"left: synchronization; the switch was put off once, since too much had come meanwhile",
        value(one, "SELECT reason FROM instar.jobs"),
    )
    cancels, awaited = True, ["stage 3"]
    with fails("57014"):
        one.execute("ALTER TABLE person JOIN place USING (zip) INTO t (id, zip, town)")
    told = value(one, "SELECT reason FROM instar.jobs WHERE state = 'cancelled'")
    assert re.match(r"job \d+ was cancelled; cycle 1: 0 changes .* were left: synchronization$", told)


def test_a_moment_before_the_switch_has_not_got_the_new_tables(engine: Engine) -> None:
    one = engine.connect()
    then = value(one, "SELECT now()")
    time.sleep(0.002)  # what is committed in the same millisecond was there then
    run(one, "DELETE FROM person WHERE id = 1", SPLIT)
    with fails("0A000", 'table "place" was joined or split from'):
        one.execute("SELECT * FROM place AS OF SYSTEM TIME ? WITH CURRENT SCHEMA", (then,))
    assert rows(one, "SELECT town FROM person AS OF SYSTEM TIME ? ORDER BY id", then) == [("x",), ("y",)]


def test_what_a_row_without_a_part_may_share_is_no_key(engine: Engine) -> None:
    one = engine.connect()
    run(
        one,
        "CREATE TABLE r (a int PRIMARY KEY, b int, v text CHECK (v IS NOT NULL))",
        "CREATE TABLE s (a int, b int, w text, PRIMARY KEY (a, b))",
        "INSERT INTO r VALUES (1, 10, 'v')",
        "INSERT INTO s VALUES (1, 11, 'w'), (1, 12, 'w')",
    )
    with fails("2BP01", "r_v_check"):
        one.execute("ALTER TABLE r JOIN s USING (a, b) INTO t (a, b, v, w)")
    run(one, "ALTER TABLE r DROP CONSTRAINT r_v_check", "ALTER TABLE r JOIN s USING (a, b) INTO t (a, b, v, w)")
    assert value(one, "SELECT count(*) FROM t WHERE a = 1") == 3
    assert rows(one, "CHECK DATABASE") == []


def test_serial_columns_of_the_side_with_several_rows_go_on(engine: Engine) -> None:
    one = engine.connect()
    run(
        one,
        "CREATE TABLE r (id serial PRIMARY KEY, x int)",
        "CREATE TABLE s (x int PRIMARY KEY, n serial)",
        "INSERT INTO r (x) VALUES (1), (1)",
        "INSERT INTO s VALUES (1)",
        "ALTER TABLE r JOIN s USING (x) INTO t (id, x, n)",
        "INSERT INTO t (x) VALUES (7)",
    )
    assert 'NOTICE:  column "n" of table "s" loses its default' in one.notices
    assert rows(one, "SELECT id, x, n FROM t ORDER BY id") == [(1, 1, 1), (2, 1, 1), (3, 7, None)]
    run(one, "DROP TABLE t")
    assert rows(one, "CHECK DATABASE") == []


def test_values_are_those_of_the_last_writer_to_the_last_digit(engine: Engine) -> None:
    one, two = engine.connect(), engine.connect()
    run(
        one,
        "CREATE TABLE t (id int PRIMARY KEY, k int, n numeric, d double precision)",
        "INSERT INTO t VALUES (1, 1, 1.0, 0)",
        "CREATE TABLE r (id int PRIMARY KEY, x int, n numeric)",
        "CREATE TABLE s (x int PRIMARY KEY)",
        "INSERT INTO r VALUES (1, 1, 1.0)",
    )
    writes = {
        "ALTER TABLE t SPLIT INTO t (id, k), p (k, n, d) ON (k)": "UPDATE t SET n = 1.000, d = '-0'",
        "ALTER TABLE r JOIN s USING (x) INTO j (id, x, n)": "UPDATE r SET n = 1.000",
    }

    def write(point: str) -> None:
        if point == "stage 3":
            run(two, writes[statement])

    for statement in writes:
        with pytest.MonkeyPatch.context() as patched:
            hook_jobs(patched, write)
            one.execute(statement)
    assert rows(one, "SELECT n::text, d::text FROM p") == [("1.000", "-0")]
    assert rows(one, "SELECT n::text FROM j") == [("1.000",)]


@pytest.mark.parametrize("unique", ["UNIQUE", ""])
def test_join_values_are_those_of_the_last_writer_to_the_last_digit(engine: Engine, unique: str) -> None:
    one, two = engine.connect(), engine.connect()
    run(
        one,
        "CREATE TABLE r (id int PRIMARY KEY, x numeric)",
        f"CREATE TABLE s (id int PRIMARY KEY, y numeric {unique})",
        "INSERT INTO r VALUES (1, 1.0), (2, 1.0), (3, 2.0)",
        "INSERT INTO s VALUES (1, 1.0), (2, 2.0)",
    )

    def write(point: str) -> None:
        if point == "stage 3":
            run(two, "UPDATE r SET x = 1.00 WHERE id = 2", "UPDATE s SET y = 2.00 WHERE id = 2")

    with pytest.MonkeyPatch.context() as patched:
        hook_jobs(patched, write)
        one.execute("ALTER TABLE r JOIN s ON x = y INTO j (r.id AS r, s.id AS s, x, y)")
    assert rows(one, "SELECT r, s, x::text, y::text FROM j ORDER BY r") == [
        (1, 1, "1.0", "1.0"), (2, 1, "1.00", "1.0"), (3, 2, "2.0", "2.00"),
    ]  # fmt: skip
    assert rows(one, "CHECK DATABASE") == []


def test_nothing_is_left_of_a_job_that_has_ended(engine: Engine) -> None:
    run(engine.connect(), SPLIT)
    jobs = engine.database.jobs
    (job,) = jobs.all()
    with engine.database.store.read() as reader:
        assert [reader.get(key) for key in (claim_key(job.id), lease_key(job.id))] == [None, None]
    assert all(jobs.checkpoints(job.id, stage) == {} for stage in range(5))


def test_a_cancel_is_heeded_to_the_last(engine: Engine) -> None:
    one, two = engine.connect(), engine.connect()

    def cancel(point: str) -> None:
        if point == "stage 3":
            run(two, f"CANCEL JOB {value(two, 'SELECT max(id) FROM instar.jobs')}")

    with pytest.MonkeyPatch.context() as patched, fails("57014"):
        hook_jobs(patched, cancel)
        one.execute(SPLIT)
    assert rows(one, "SELECT id, town FROM person ORDER BY id") == [(1, "x"), (2, "y")]
    assert rows(one, "CHECK DATABASE") == []


def test_times_with_and_without_a_zone_are_not_joined(engine: Engine) -> None:
    one = engine.connect()
    run(one, "CREATE TABLE r (id int PRIMARY KEY, x timestamp)", "CREATE TABLE s (y timestamptz PRIMARY KEY)")
    with fails("42804", "timestamp"):
        one.execute("ALTER TABLE r JOIN s ON r.x = s.y INTO t (id, x, y)")


def test_a_commit_that_moves_many_rows_of_one_value(engine: Engine) -> None:
    one, two = engine.connect(), engine.connect()
    run(
        one,
        "CREATE TABLE r (id int PRIMARY KEY, x int)",
        "CREATE TABLE s (x int PRIMARY KEY, w int)",
        "INSERT INTO s VALUES (1, 1), (2, 2)",
        "INSERT INTO r SELECT n, 1 FROM generate_series(1, 4000) AS g(n)",
    )
    with pytest.MonkeyPatch.context() as patched:
        hook_jobs(
            patched, lambda point: run(two, "UPDATE r SET x = 2") if point == "stage 2" else None, batch_rows=4096
        )
        one.execute("ALTER TABLE r JOIN s USING (x) INTO t (id, x, w)")
    assert rows(one, "SELECT x, w, count(*) FROM t GROUP BY x, w ORDER BY x") == [(1, 1, 1), (2, 2, 4000)]


def test_checks_of_one_name_are_told_apart(engine: Engine) -> None:
    one = engine.connect()
    run(
        one,
        "CREATE TABLE r (id int PRIMARY KEY, x int, CONSTRAINT positive CHECK (id > 0))",
        "CREATE TABLE s (k int PRIMARY KEY, x int UNIQUE, CONSTRAINT positive CHECK (k > 0))",
        "ALTER TABLE r JOIN s USING (x) INTO t (id, k, x)",
    )
    with fails("23514", '"positive"'):
        one.execute("INSERT INTO t VALUES (-1, 1, 1)")
    with fails("23514", '"t_check"'):
        one.execute("INSERT INTO t VALUES (1, -1, 1)")
    run(one, "ALTER TABLE t DROP CONSTRAINT positive", "INSERT INTO t VALUES (-1, 1, 1)")
    assert rows(one, "CHECK DATABASE") == []


def test_a_row_whose_key_is_too_long_is_named(connection: instar.Connection) -> None:
    run(connection, f"INSERT INTO person VALUES (3, '{'7' * 400}', 'z')")
    with fails("54000", "primary key takes 403 bytes, more than the limit of 378") as failed:
        connection.execute(SPLIT)
    assert failed.error.detail == f'It is that of row (zip)=({"7" * 93}... of table "place".'


def test_not_null_holds_for_rows_that_have_the_part(engine: Engine) -> None:
    one = engine.connect()
    run(
        one,
        "CREATE TABLE q (k int PRIMARY KEY, b int, v text NOT NULL, w text CONSTRAINT given NOT NULL)",
        "CREATE TABLE u (b int PRIMARY KEY, y text NOT NULL, z text)",
        "ALTER TABLE q ALTER w DROP NOT NULL",
        "INSERT INTO q VALUES (1, 1, 'v', NULL), (2, 7, 'v', 'w')",
        "INSERT INTO u VALUES (1, 'y', 'z'), (2, 'y', NULL)",
        "ALTER TABLE q ADD CONSTRAINT given NOT NULL w NOT VALID",
    )
    one.notices.clear()
    run(one, "ALTER TABLE q JOIN u USING (b) INTO qu (k, b, v, w, y, z)")
    assert 'NOTICE:  column "y" of table "u" may be NULL' in one.notices
    assert rows(one, "SELECT * FROM qu ORDER BY k, b") == [
        (1, 1, "v", None, "y", "z"),
        (2, 7, "v", "w", None, None),
        (None, 2, None, None, "y", None),
    ]
    for write in ("INSERT INTO qu (k, b, w) VALUES (3, 1, 'w')", "UPDATE qu SET v = NULL WHERE k = 2"):
        with fails("23514", "q_v_not_null"):
            one.execute(write)
    with fails("23514", "given"):
        one.execute("INSERT INTO qu (k, b, v) VALUES (3, 1, 'v')")
    with fails("23514", "given"):
        one.execute("ALTER TABLE qu VALIDATE CONSTRAINT given")
    run(one, "UPDATE qu SET w = 'w' WHERE k = 1", "ALTER TABLE qu VALIDATE CONSTRAINT given")
    assert rows(one, "CHECK DATABASE") == []
