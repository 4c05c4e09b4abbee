"""Chains of schema changes with rows in every layout, against a model: by key, scan, index, analytic engine, and at old
snapshots."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

import pytest

import instar
from instar.catalog.descriptors import Table
from instar.catalog.system import descriptor_key
from instar.dbapi import Connection
from instar.schemachange.publishing import KEPT_STEPS
from support.databases import Engine, fails, rows, run, value

CHANGES = 50


@dataclass
class Column:
    name: str
    type: str
    default: object = None


@dataclass
class Model:
    """The table as it should be: columns in order, and rows by key as lists in that order."""

    columns: list[Column] = field(default_factory=lambda: [Column("a", "int"), Column("b", "text")])
    rows: dict[int, list[object]] = field(default_factory=dict)

    def snapshot(self) -> Model:
        return copy.deepcopy(self)

    def listed(self) -> list[tuple[object, ...]]:
        return [(key, *found) for key, found in sorted(self.rows.items())]


WIDER = {
    "smallint": "int",
    "int": "bigint",
    "real": "double precision",
    "varchar(4)": "varchar(9)",
    "varchar(9)": "text",
}
TYPES = ["smallint", "int", "bigint", "real", "double precision", "varchar(4)", "text", "numeric(8, 2)", "boolean"]


def sample(chance: random.Random, kind: str) -> object:
    if chance.random() < 0.15:
        return None
    if kind in ("smallint", "int", "bigint"):
        return chance.randrange(-(2**15), 2**15)
    if kind in ("real", "double precision"):
        return chance.randrange(-100, 100) / 4
    if kind == "numeric(8, 2)":
        return Decimal(chance.randrange(-10_000, 10_000)).scaleb(-2)
    if kind == "boolean":
        return chance.random() < 0.5
    return "".join(chance.choice("abc") for _ in range(chance.randrange(4)))


class Chain:
    """One table through many changes, on one session; another one holds old snapshots."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.chance = random.Random(seed)
        self.engine = engine
        self.connection = engine.connect()
        self.model = Model()
        self.next_key = 0
        self.next_column = 0
        self.indexed: set[str] = set()
        run(self.connection, "CREATE TABLE t (id int PRIMARY KEY, a int, b text)")

    def literal(self, given: object) -> str:
        if given is None:
            return "NULL"
        if isinstance(given, str):
            return f"'{given}'"
        return str(given)

    def change(self) -> None:
        """One ALTER TABLE or index statement, in the model too."""
        kind = self.chance.choice(
            ["add", "add", "add", "drop", "rename", "move", "widen", "default", "index", "drop index"]
        )
        column = self.chance.choice(self.model.columns)
        if kind == "add" or len(self.model.columns) < 2:
            self._add()
        elif kind == "drop":
            place = self.model.columns.index(column)
            self.connection.execute(f"ALTER TABLE t DROP COLUMN {column.name}")
            del self.model.columns[place]
            for found in self.model.rows.values():
                del found[place]
            self.indexed.discard(column.name)
        elif kind == "rename":
            self.next_column += 1
            name = f"r{self.next_column}"
            self.connection.execute(f"ALTER TABLE t RENAME COLUMN {column.name} TO {name}")
            if column.name in self.indexed:
                self.indexed = self.indexed - {column.name} | {name}
            column.name = name
        elif kind == "move":
            self._move(column)
        elif kind == "widen" and column.type in WIDER:
            self.connection.execute(f"ALTER TABLE t ALTER COLUMN {column.name} TYPE {WIDER[column.type]}")
            column.type = WIDER[column.type]
        elif kind == "default":
            column.default = sample(self.chance, column.type)
            text = self.literal(column.default)
            self.connection.execute(f"ALTER TABLE t ALTER COLUMN {column.name} SET DEFAULT {text}")
        elif kind == "index" and column.name not in self.indexed:
            self.connection.execute(f"CREATE INDEX ON t ({column.name})")
            self.indexed.add(column.name)

    def _add(self) -> None:
        self.next_column += 1
        kind = self.chance.choice(TYPES)
        column = Column(f"c{self.next_column}", kind, sample(self.chance, kind))
        default = f" DEFAULT {self.literal(column.default)}" if column.default is not None else ""
        place, words = self._place()
        self.connection.execute(f"ALTER TABLE t ADD COLUMN {column.name} {kind}{default} {words}")
        self.model.columns.insert(place, column)
        for found in self.model.rows.values():
            found.insert(place, column.default)

    def _place(self, but: Column | None = None) -> tuple[int, str]:
        """Somewhere among the columns, all or all but one; and the words that say where."""
        others = [column for column in self.model.columns if column is not but]
        place = self.chance.randrange(len(others) + 1)
        if not place:
            return place, "AFTER id"
        last = place == len(others) and but is None
        return place, "" if last else f"AFTER {others[place - 1].name}"

    def _move(self, column: Column) -> None:
        place, words = self._place(column)
        self.connection.execute(f"ALTER TABLE t ALTER COLUMN {column.name} {words}")
        before = self.model.columns.index(column)
        self.model.columns.insert(place, self.model.columns.pop(before))
        for found in self.model.rows.values():
            found.insert(place, found.pop(before))

    def write(self) -> None:
        """A few rows in the newest layout: inserted with all columns or few, updated, deleted."""
        for _ in range(2):
            self.next_key += 1
            given = [column for column in self.model.columns if self.chance.random() < 0.6]
            values = {column.name: sample(self.chance, column.type) for column in given}
            names = "".join(f", {column.name}" for column in given)
            places = ", ?" * len(given)
            self.connection.execute(f"INSERT INTO t (id{names}) VALUES (?{places})", (self.next_key, *values.values()))
            self.model.rows[self.next_key] = [values.get(c.name, c.default) for c in self.model.columns]
        if self.chance.random() < 0.5:
            key, column = self.chance.choice(list(self.model.rows)), self.chance.choice(self.model.columns)
            wanted = sample(self.chance, column.type)
            self.connection.execute(f"UPDATE t SET {column.name} = ? WHERE id = ?", (wanted, key))
            self.model.rows[key][self.model.columns.index(column)] = wanted
        if self.chance.random() < 0.1:
            key = self.chance.choice(list(self.model.rows))
            self.connection.execute("DELETE FROM t WHERE id = ?", (key,))
            del self.model.rows[key]


def compare(connection: Connection, model: Model, indexed: set[str], chance: random.Random) -> None:
    """The table by scan, by analytic engine, by key and through an index."""
    wanted = model.listed()
    names = ", ".join(["id", *(column.name for column in model.columns)])
    assert rows(connection, f"SELECT {names} FROM t ORDER BY id") == wanted
    assert rows(connection, "SELECT * FROM t ORDER BY id") == wanted
    analytic = connection.execute(f"SELECT {names}, count(*) OVER () FROM t ORDER BY id").fetchall()
    assert [found[:-1] for found in analytic] == wanted
    for key in chance.sample(sorted(model.rows), min(8, len(model.rows))):
        assert rows(connection, "SELECT * FROM t WHERE id = ?", key) == [(key, *model.rows[key])]
    for place, column in enumerate(model.columns):
        if column.name in indexed and model.rows:
            sought = chance.choice(list(model.rows.values()))[place]
            if sought is not None:
                found = rows(connection, f"SELECT id FROM t WHERE {column.name} = ? ORDER BY id", sought)
                assert found == [(key,) for key, row in sorted(model.rows.items()) if row[place] == sought]


@pytest.mark.parametrize("seed", range(3))
def test_rows_in_every_layout(engine: Engine, seed: int) -> None:
    chain = Chain(engine, seed)
    snapshots: list[tuple[Connection, Model, set[str]]] = []
    for number in range(CHANGES):
        chain.write()
        if number % 10 == 5:
            old = engine.connect()
            old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            rows(old, "SELECT id FROM t WHERE id = 1")
            snapshots.append((old, chain.model.snapshot(), set(chain.indexed)))
        chain.change()
        if number % 7 == 3:
            # Beside snapshots that still read what some columns had.
            chain.connection.execute("COMPACT TABLE t")
        if number % 5 == 0:
            compare(chain.connection, chain.model, chain.indexed, chain.chance)
    compare(chain.connection, chain.model, chain.indexed, chain.chance)
    for old, model, indexed in snapshots:
        compare(old, model, indexed, chain.chance)
        old.execute("COMMIT")
        compare(old, chain.model, chain.indexed, chain.chance)
    chain.connection.database.store.collect(1 << 62, lambda record: [])
    chain.connection.execute("COMPACT TABLE t")
    assert value(chain.connection, "SELECT layout - oldest FROM instar.layouts WHERE table_name = 't'") == 0
    compare(chain.connection, chain.model, chain.indexed, chain.chance)
    assert value(chain.connection, "SELECT count(*) FROM instar.jobs WHERE state <> 'succeeded'") == 0
    assert rows(chain.connection, "CHECK DATABASE") == []


def test_writes_bring_rows_to_the_newest_layout(engine: Engine) -> None:
    """An update of every row leaves one layout in use; the values from before are the same."""
    chain = Chain(engine, 99)
    for _ in range(CHANGES // 2):
        chain.write()
        chain.change()
    column = chain.model.columns[0].name
    chain.connection.execute(f"UPDATE t SET {column} = {column}")
    compare(chain.connection, chain.model, chain.indexed, chain.chance)
    assert rows(chain.connection, "CHECK DATABASE") == []


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("change", ["RENAME COLUMN a TO b", "ALTER a SET DEFAULT 5", "RENAME TO u"])
def test_a_change_of_ones_own_that_makes_no_layout_hides_no_rows(engine: Engine, level: str, change: str) -> None:
    one, name = engine.connect(), "u" if change.endswith("u") else "t"
    run(one, "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 1)")
    run(one, f"BEGIN ISOLATION LEVEL {level}", f"ALTER TABLE t {change}")
    assert rows(one, f"SELECT * FROM {name}") == [(1, 1)]
    assert rows(one, f"SELECT *, count(*) OVER () FROM {name}") == [(1, 1, 1)]
    run(one, f"ALTER TABLE {name} ADD COLUMN x int DEFAULT 7", f"INSERT INTO {name} VALUES (2, 2, 2)")
    assert rows(one, f"SELECT * FROM {name} ORDER BY id") == [(1, 1, 7), (2, 2, 2)]
    run(one, f"ALTER TABLE {name} ALTER x SET DEFAULT 8", "COMMIT")
    assert rows(one, f"SELECT * FROM {name} ORDER BY id") == [(1, 1, 7), (2, 2, 2)]


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("later", [False, True])
def test_a_column_of_ones_own_change_is_not_anothers(engine: Engine, level: str, later: bool) -> None:
    """Two transactions add a column, the first commits, and compaction puts the rows, which the second goes on seeing
    as of its snapshot, into the layout of the first: it has the number of the second's own, as the column has."""
    one, two = engine.connect(ddl_wait="0"), engine.connect()
    run(one, "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 1)")
    run(two, f"BEGIN ISOLATION LEVEL {level}", "ALTER TABLE t ADD COLUMN x int DEFAULT 7")
    run(two, "INSERT INTO t VALUES (2, 2, 2)")
    analytic = "SELECT *, count(*) OVER () FROM t ORDER BY id"
    assert rows(two, analytic) == [(1, 1, 7, 2), (2, 2, 2, 2)]
    run(one, "ALTER TABLE t ADD COLUMN y text DEFAULT 'why'")
    if later:
        run(one, "ALTER TABLE t ADD COLUMN z int DEFAULT 9")
    run(one, "COMPACT TABLE t")
    run(two, "SAVEPOINT s")
    for query in ("SELECT * FROM t WHERE id = 1", "SELECT * FROM t ORDER BY a", analytic):
        with fails("40001", '"t"', "concurrent schema change"):
            rows(two, query)
        run(two, "ROLLBACK TO s")
    run(two, "ROLLBACK")
    assert rows(two, "SELECT id, y FROM t") == [(1, "why")]


@pytest.mark.parametrize("compacted", [False, True])
def test_what_was_dropped_on_the_way_stays_beside_new_values(engine: Engine, compacted: bool) -> None:
    """Columns go in all ways, one comes back and goes again, and then a job gives every row a value and rewrites it: an
    older snapshot reads what it read, and all of it can be brought back."""
    one, old = engine.connect(), engine.connect()
    run(one, "CREATE TABLE t (id int PRIMARY KEY, a text, b int, c text, d int, e text)")
    one.executemany(
        "INSERT INTO t VALUES (?, ?, ?, ?, ?, ?)", [(n, f"a{n}", n, f"c{n}", -n, f"e{n}") for n in range(9)]
    )
    run(old, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    before = rows(old, "SELECT * FROM t ORDER BY id")
    run(one, "ALTER TABLE t DROP COLUMN a", "UPDATE t SET b = 100 WHERE id = 1")
    run(one, "ALTER TABLE t DROP COLUMN b, DROP COLUMN c", "UPDATE t SET e = 'e!' WHERE id = 2")
    run(one, "ALTER TABLE t UNDROP COLUMN a", "ALTER TABLE t RENAME COLUMN a TO f", "ALTER TABLE t DROP COLUMN f")
    run(one, "BEGIN", "ALTER TABLE t DROP COLUMN d", "ALTER TABLE t ADD COLUMN g int DEFAULT 7")
    run(one, "ALTER TABLE t DROP COLUMN e", "ALTER TABLE t ADD COLUMN v double precision DEFAULT random()", "COMMIT")
    if compacted:  # rows have what older snapshots read: nothing is taken away
        run(one, "COMPACT TABLE t")
    run(one, "ALTER TABLE t ADD COLUMN w double precision NOT NULL DEFAULT random()")
    assert rows(old, "SELECT * FROM t ORDER BY id") == before
    run(old, "COMMIT")
    run(one, *(f"ALTER TABLE t UNDROP COLUMN {name}" for name in "fbcde"))
    now = [tuple(found) for found in before]
    now[1], now[2] = (*now[1][:2], 100, *now[1][3:]), (*now[2][:5], "e!")
    assert rows(one, "SELECT id, f, b, c, d, e FROM t ORDER BY id") == now
    assert value(one, "SELECT count(DISTINCT v) + count(DISTINCT w) + sum(g) FROM t") == 9 + 9 + 63
    assert rows(one, "CHECK DATABASE") == []


def test_a_descriptor_does_not_grow_with_what_was_dropped(engine: Engine) -> None:
    """However many columns came and went, and rows are in layouts that have them."""
    connection = engine.connect()
    run(connection, "CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 1)")
    sizes = []
    for number in range(3 * KEPT_STEPS):
        run(connection, "ALTER TABLE t ADD COLUMN extra int DEFAULT 1")
        run(connection, f"INSERT INTO t VALUES ({number + 2}, 2, 3)", "ALTER TABLE t DROP COLUMN extra")
        with engine.database.store.read() as reader:
            table = engine.database.catalog.at(reader).lookup(None, "t")
            assert isinstance(table, Table)
            sizes.append(len(reader.get(descriptor_key(table.id)) or b""))
    assert sizes[-1] - sizes[KEPT_STEPS] < 5 * KEPT_STEPS  # numbers get longer
    assert len(rows(connection, "SELECT * FROM t")) == 1 + 3 * KEPT_STEPS


def test_a_larger_table_is_compacted_by_the_worker(tmp_path: Path) -> None:
    """Seen from outside: what the statement says, what EXPLAIN says, what it leaves."""
    count = 20_000
    with instar.connect(tmp_path / "db", synchronous="off", autocommit=True) as connection:
        run(connection, "CREATE TABLE t (id int PRIMARY KEY, a int)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(number, number) for number in range(count)])
        run(connection, "COMPACT TABLE t", "ALTER TABLE t ADD COLUMN b text DEFAULT 'b'")
        run(connection, "UPDATE t SET a = -1, b = 'new' WHERE id < 10")
        said = [line[4] for line in rows(connection, "EXPLAIN (DDL) COMPACT TABLE t")]
        assert "compact rows of older layouts, into layout 2, about 20000 rows, by the worker" in said
        with pytest.raises(instar.Error) as caught:
            run(connection, "BEGIN", "COMPACT TABLE t")
        assert caught.value.sqlstate == "25001"
        run(connection, "ROLLBACK", "COMPACT TABLE t")
        kinds = "SELECT kind, state, rows_done FROM instar.jobs WHERE statement LIKE 'COMPACT%'"
        assert rows(connection, kinds) == [("compact", "succeeded", count)]
        assert rows(connection, "SELECT layout, oldest FROM instar.layouts") == [(2, 2)]
        assert value(connection, "SELECT count(*) FROM t WHERE b = 'b' AND a = id") == count - 10
        assert value(connection, "SELECT count(*) FROM t WHERE b = 'new' AND a = -1") == 10
        with pytest.raises(instar.Error) as caught:
            run(connection, "COMPACT TABLE missing")
        assert caught.value.sqlstate == "42P01"
        assert rows(connection, "CHECK DATABASE") == []
