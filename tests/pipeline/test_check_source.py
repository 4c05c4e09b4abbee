"""CHECK on Spark finds what its twin in this process finds: of every kind of damage, and beside writers nothing."""

from __future__ import annotations

import copy
import itertools
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import instar
from instar.catalog.descriptors import ForeignKey, Layout, Lock, State, Table
from instar.pipeline import check_source, consistency, spark_job
from instar.pipeline.consistency import Consistency
from instar.sql.checks import compile_check
from instar.store.engine import ENTRY_VALUE, Section, rowset_prefix
from instar.tables.index import IndexCodec
from instar.tables.rowset import key_encoder
from instar.tables.writes import TableWriter
from instar.types import BIGINT, TEXT
from pipeline.small_database import SmallDatabase
from pipeline.test_consistency import DAMAGES, problems, row, sound

ROWS = 1_000
NOBODY = 90_000


@pytest.fixture(autouse=True)
def narrow(monkeypatch) -> None:
    """Most tables are large, and have several ranges; pulses are frequent."""
    monkeypatch.setattr(consistency, "SPARK_ROWS", 500)
    monkeypatch.setattr(consistency, "ROWS_PER_PART", 600)
    monkeypatch.setattr(spark_job, "PULSE_SECONDS", 0.02)


class Raw:
    """Rows and entries of a table, written behind everybody's back."""

    def __init__(self, database: SmallDatabase, table: Table) -> None:
        self._database = database
        self._table = table
        self._writer = TableWriter(table, database.catalog, database.layouts)
        self._codecs = [IndexCodec(table, index) for index in table.indexes]
        self._primary = key_encoder(table)

    def row(self, number: int) -> bytes:
        with self._database.store.read() as reader:
            found = reader.get(rowset_prefix(self._table.rowset) + self._primary([number]))
        assert found is not None
        return found

    def put_row(self, number: int, image: tuple[object, ...] | None, value: bytes | None = None) -> None:
        header = self.row(min(number, ROWS - 1))[:16]
        value = header + self._writer.encode(image) if image is not None else value
        self._put(rowset_prefix(self._table.rowset) + self._primary([number]), value)

    def put_entry(self, place: int, image: tuple[object, ...], number: int, value: bytes | None = b"") -> None:
        key = self._primary([number])
        entry = self._codecs[place].entry(image, key)
        self._put(entry, ENTRY_VALUE.pack(1, 1, len(entry) - len(key)) if value == b"" else value)

    def _put(self, key: bytes, value: bytes | None) -> None:
        def step(section: Section) -> None:
            if value is None:
                section.delete(key)
            else:
                section.put(key, value)

        self._database.store.background([step])


def ruin_rows(raw: Raw) -> None:
    """Clauses 1, 2 and 6 of rows."""
    raw.put_row(11, None, raw.row(11)[:20])
    raw.put_row(12, None, raw.row(12)[:12] + (9 << 8).to_bytes(4, "little") + raw.row(12)[16:])
    raw.put_row(13, (14, *row(13)[1:]))
    raw.put_row(16, (*row(16)[:4], None))
    raw.put_row(17, (*row(17)[:4], -1))
    raw.put_row(18, (18, 4_000, *row(18)[2:]))
    raw.put_row(19, (19, None, *row(19)[2:]))  # refers to nothing


def ruin_entries(raw: Raw) -> None:
    """Clauses 4 and 5, of indexes in every state."""
    raw.put_entry(0, row(21), 21, None)
    raw.put_entry(0, row(22), 22, ENTRY_VALUE.pack(1, 0, 16))
    raw.put_entry(1, row(23), 23, b"torn")
    raw.put_entry(0, (24, 0, 77, "", 0), 24)
    for place in range(4):
        raw.put_entry(place, row(NOBODY), NOBODY)


def ruin_unique(raw: Raw) -> None:
    """UNIQUE between rows with entries, with and without, and both without; one may be in the same place as another."""
    for number, like, placed in (
        (5_000, 31, True), (5_001, 31, True), (5_002, 32, False), (5_003, 33, True), (5_004, 34, False),
        (5_005, 34, False), (5_006, 36, False), (5_007, 37, True),
    ):  # fmt: skip
        image = (number, 1, None, f"b{like}", 1)
        raw.put_row(number, image)
        raw.put_entry(0, image, number)
        if placed:
            raw.put_entry(1, image, number)
    for number in (34, 36, 37):
        raw.put_entry(1, row(number), number, None)
    for number in (5_010, 5_011):  # NULL is equal to nothing
        raw.put_row(number, (number, 1, None, None, 1))


def second_pair(database: SmallDatabase) -> None:
    """A parent that is referred to by a unique index, and has locks; of both something is broken."""
    upper = database.create("upper", [("id", BIGINT), ("code", TEXT)], ["id"])
    upper = database.add_index(upper, "upper_code", ["-code"], State.PUBLIC, unique=True, id_=50)
    lower = database.create("lower", [("id", BIGINT), ("code", TEXT)], ["id"])
    lower = database.add_index(lower, "lower_code", ["code"], State.PUBLIC, id_=50)
    key = ForeignKey(
        id=60, name="up", columns=(2,), parent=upper.id, parent_columns=(2,), parent_index=50, child_index=50
    )
    lower = database.alter(lower, foreign_keys=(key,))
    locked = Layout(2, upper.layout.columns, (0, 70))
    lock = Lock(id=70, name="l", columns=(2,))
    upper = database.alter(upper, layout=locked, locks=(lock,), referenced_by=(lower.id,))
    database.insert(upper, [(i, "c" * 700 + str(i)) for i in range(ROWS)])
    database.insert(lower, [(i, "c" * 700 + str(i) if i % 4 else None) for i in range(ROWS)])
    assert problems(database) == []
    above, below = Raw(database, upper), Raw(database, lower)
    above.put_entry(0, (41, "c" * 700 + "41"), 41, None)
    value = above.row(43)
    above.put_row(43, None, value[:24] + (1 << 63).to_bytes(8, "little") + value[32:])
    below.put_row(45, (45, "nobody"))


@pytest.mark.spark
def test_every_kind_of_damage(spark, database):
    child = sound(database, ROWS)
    second_pair(database)
    raw = Raw(database, child)
    for ruin in (ruin_rows, ruin_entries, ruin_unique):
        ruin(raw)
    for kind in ("stray rowset", "rowset without owner", "stray key", "name lost", "dead rowset"):
        DAMAGES[kind][0](database, child)
    here = problems(database)
    assert sorted(problems(database, spark=database.path)) == sorted(here)
    unique = {found.key: found.message.rpartition(" ")[2] for found in here if "violates unique" in found.message}
    assert unique == {
        f"(id)=({number})": f"(id)=({before})"
        for number, before in (
            (5_000, 31), (5_001, 5_000), (5_002, 32), (5_003, 33), (5_004, 34), (5_005, 5_004), (5_006, 36),
            (5_007, 37),
        )
    }  # fmt: skip
    clauses = Counter(found.clause for found in here)
    assert set(clauses) == {
        "1 rows",
        "2 columns",
        "3 rowsets",
        "4 complete",
        "5 valid",
        "6 constraints",
        "7 keys",
        "catalog",
    }
    objects = {(found.table, found.object, found.key) for found in here if found.clause == "6 constraints"}
    assert {
        ("child", 'check "positive"', "(id)=(17)"),
        ("child", 'foreign key "child_parent"', "(id)=(18)"),
        ("lower", 'foreign key "up"', "(id)=(45)"),
    } <= objects
    assert ("child", 'foreign key "child_parent"', "(id)=(19)") not in objects


def write(path: Path, stop: threading.Event, failures: list[BaseException]) -> None:
    """Rows of both tables come, change and go."""
    drawn = random.Random(7)
    try:
        with instar.connect(path, synchronous="off", autocommit=True) as connection:
            for number in itertools.count(ROWS):
                if stop.is_set():
                    return
                connection.execute("INSERT INTO parent VALUES (?, ?)", (number, f"c{number}"))
                connection.execute(
                    "INSERT INTO child VALUES (?, ?, ?, ?, 1)", (number, number, f"c{number}", f"b{number}")
                )
                moved, gone = drawn.randrange(number), drawn.randrange(number)
                connection.execute("UPDATE child SET b = b || 'x', a = a + 1, parent = 0 WHERE id = ?", (moved,))
                connection.execute("DELETE FROM child WHERE id = ? OR parent = ? OR code = ?", (gone, gone, f"c{gone}"))
                if gone:
                    connection.execute("DELETE FROM parent WHERE id = ?", (gone,))
    except BaseException as failure:  # noqa: BLE001 - the test's thread looks at them
        failures.append(failure)


class Gone(Exception):
    """As Spark's own errors: nothing of Instar's."""


def failing(monkeypatch, times: int) -> list[None]:
    """Have Spark fail so often, at the first thing that it is asked for; an element for each session that was taken."""
    taken: list[None] = []
    started = check_source.spark_session

    def session() -> Any:
        found = copy.copy(started())
        taken.append(None)
        if len(taken) <= times:

            def fail(self: Any, *given: object) -> Any:
                raise Gone

            found.__class__ = type("Failing", (type(found),), {"range": fail})
        return found

    monkeypatch.setattr(check_source, "spark_session", session)
    return taken


@pytest.mark.spark
def test_beside_writers_though_spark_fails(spark, tmp_path, monkeypatch):
    taken = failing(monkeypatch, 2)
    path = tmp_path / "sql"
    stop = threading.Event()
    failures: list[BaseException] = []
    with instar.connect(path, synchronous="off", autocommit=True) as connection:
        connection.execute("CREATE TABLE parent (id bigint PRIMARY KEY, code text UNIQUE)")
        connection.execute(
            "CREATE TABLE child (id bigint PRIMARY KEY, parent bigint REFERENCES parent, "
            "code text REFERENCES parent (code), b text UNIQUE, a integer NOT NULL CHECK (a > 0))"
        )
        connection.execute("INSERT INTO parent SELECT i, 'c' || i FROM generate_series(0, 999) AS g(i)")
        connection.execute("INSERT INTO child SELECT i, i, 'c' || i, 'b' || i, 1 FROM generate_series(0, 999) AS g(i)")
        database = connection.database
        checks = Consistency(database.store, database.layouts, database.catalog, compile_check, spark=str(path))
        writer = threading.Thread(target=write, args=(path, stop, failures))
        writer.start()
        try:
            found = list(checks.check_database())
        finally:
            stop.set()
            writer.join()
        assert (found, failures, len(taken)) == ([], [], 4)  # three for the child, one for the parent
        ((newest,),) = connection.execute("SELECT max(id) FROM child").fetchall()
        assert newest > ROWS + 100


@pytest.mark.spark
def test_where_spark_fails_again_and_again_this_process_goes_on(spark, database, monkeypatch):
    taken = failing(monkeypatch, 3)
    Raw(database, sound(database, 600)).put_row(17, (*row(17)[:4], -1))
    (found,) = problems(database, spark=database.path)
    assert (found.object, found.key, len(taken)) == ('check "positive"', "(id)=(17)", 3)


def test_a_row_without_entry_is_in_nobodys_place(database):
    """UNIQUE in this process, in parts of the index: rows without entries are met in the places of their entries."""
    child = sound(database, 300)
    raw = Raw(database, child)
    for number in (7, 8, 9):
        raw.put_entry(1, row(number), number, None)
    found = problems(database)
    assert Counter(problem.clause for problem in found) == {"4 complete": 3}
    raw.put_row(7, (*row(7)[:3], "b8", 7))
    again = [problem for problem in problems(database) if problem.clause == "6 constraints"]
    assert [(problem.key, problem.message[-8:]) for problem in again] == [("(id)=(8)", "(id)=(7)")]
