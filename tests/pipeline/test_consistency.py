"""CHECK DATABASE: silent on what is sound, beside writers too; each kind of damage is found under its clause."""

from __future__ import annotations

import io
import random
import threading
from collections.abc import Callable

import msgspec
import pytest

import instar
from instar import errors
from instar.catalog import system
from instar.catalog.catalog import Catalog
from instar.catalog.descriptors import Check, ForeignKey, State, Table
from instar.catalog.layouts import layout_key
from instar.cli import inspection
from instar.pipeline import consistency
from instar.pipeline.consistency import Consistency, Problem, Told
from instar.schemachange.reorganize import Backfill, InProcess
from instar.store.engine import ENTRY_VALUE, Section, prefix_end, rowset_prefix
from instar.store.records import RowsetState, decode_table_header, encode_table_header, rowset_key, rowset_record
from instar.store.records import table_key as header_key
from instar.tables.index import IndexCodec
from instar.tables.rowset import key_encoder
from instar.tables.writes import TableWriter
from instar.types import BIGINT, INTEGER, TEXT
from pipeline.small_database import SmallDatabase, compile_check

PARENT = [("id", BIGINT), ("code", TEXT)]
CHILD = [("id", BIGINT), ("parent", BIGINT), ("a", INTEGER), ("b", TEXT)]


def problems(
    database: SmallDatabase, spark: str | None = None, told: Told = lambda table, share: None
) -> list[Problem]:
    checks = Consistency(database.store, database.layouts, Catalog(), compile_check, spark=spark, told=told)
    return list(checks.check_database())


def clauses(database: SmallDatabase) -> set[str]:
    return {problem.clause for problem in problems(database)}


def row(number: int) -> tuple[object, ...]:
    return (number, number % 100, number % 7 if number % 3 else None, f"b{number}" if number % 5 else None)


def sound(database: SmallDatabase, count: int = 3_000) -> Table:
    """Two tables with a foreign key, a check, an index on a, a unique one on b and one that is being built."""
    parent = database.create("parent", PARENT, ["id"])
    database.insert(parent, [(i, f"c{i}") for i in range(100)])
    child = database.create("child", CHILD, ["id"])
    child = database.add_index(child, "child_a", ["a"], State.PUBLIC, id_=50)
    child = database.add_index(child, "child_b", ["-b"], State.PUBLIC, unique=True, id_=51)
    child = database.add_index(child, "child_ab", ["a", "b"], State.WRITE_ONLY, id_=52)
    key = ForeignKey(id=60, name="child_parent", columns=(2,), parent=parent.id, parent_columns=(1,))
    check = Check(id=61, name="positive", expression="a >= 0", columns=(3,))
    child = database.alter(child, foreign_keys=(key,), checks=(check,))
    database.alter(parent, referenced_by=(child.id,))
    database.insert(child, [row(i) for i in range(count)])
    return child


def raw(database: SmallDatabase, action: Callable[[Section], object]) -> None:
    """Damage the store behind everybody's back."""

    def step(section: Section) -> None:
        action(section)

    database.store.background([step])


def test_sound(database):
    sound(database)
    assert problems(database) == []


def test_empty(database):
    assert problems(database) == []


def test_backfilled_and_changed(database):
    child = sound(database)
    index = child.indexes[-1]
    held = database.claimed(1)
    InProcess().run(Backfill(database.store, child, index, job=1, stage=1, claim=held.claim, rows=1), lambda: None)
    database.update(child, row(1), (1, 5, 3, "new"))
    database.delete(child, row(2))
    public = msgspec.structs.replace(index, state=State.PUBLIC)
    database.alter(child, indexes=(*child.indexes[:-1], public))
    assert problems(database) == []


def damages() -> dict[str, tuple[str, Callable[[SmallDatabase, Table], None]]]:
    def entry_of(database: SmallDatabase, table: Table, number: int, index: int) -> tuple[bytes, int]:
        key = key_encoder(table)([number])
        codec = IndexCodec(table, table.indexes[index])
        entry = codec.entry(row(number), key)
        return entry, len(entry) - len(key)

    def lost_entry(database, table):
        raw(database, lambda section: section.delete(entry_of(database, table, 10, 0)[0]))

    def buried_entry(database, table):
        entry, offset = entry_of(database, table, 10, 0)
        raw(database, lambda section: section.put(entry, ENTRY_VALUE.pack(1, 0, offset)))

    def orphan_entry(database, table):
        entry = IndexCodec(table, table.indexes[2]).entry(row(99_999), key_encoder(table)([99_999]))
        raw(database, lambda section: section.put(entry, ENTRY_VALUE.pack(1, 1, len(entry) - 9)))

    def wrong_entry(database, table):
        entry = IndexCodec(table, table.indexes[0]).entry((0, 0, 77, ""), key_encoder(table)([10]))
        raw(database, lambda section: section.put(entry, ENTRY_VALUE.pack(1, 1, len(entry) - 9)))

    def rewritten(image: tuple[object, ...]) -> Callable[[SmallDatabase, Table], None]:
        def damage(database: SmallDatabase, table: Table) -> None:
            writer = TableWriter(table, database.catalog, database.layouts)
            key = writer.prefix + key_encoder(table)([10])
            with database.store.read() as reader:
                stored = reader.get(key)
            assert stored is not None
            raw(database, lambda section: section.put(key, stored[:16] + writer.encode(image)))

        return damage

    def torn_row(database, table):
        key = rowset_prefix(table.rowset) + key_encoder(table)([10])
        with database.store.read() as reader:
            stored = reader.get(key)
        raw(database, lambda section: section.put(key, stored[:20]))

    def unknown_layout(database, table):
        key = rowset_prefix(table.rowset) + key_encoder(table)([10])
        with database.store.read() as reader:
            stored = reader.get(key)
        raw(database, lambda section: section.put(key, stored[:12] + (9 << 8).to_bytes(4, "little") + stored[16:]))

    def second_of_a_kind(database, table):
        writer = TableWriter(table, database.catalog, database.layouts)
        image = (5_000, 1, None, "b11")
        key = key_encoder(table)([5_000])
        with database.store.read() as reader:
            header = reader.get(writer.prefix + key_encoder(table)([10]))[:16]

        def put(section: Section) -> None:
            section.put(writer.prefix + key, header + writer.encode(image))
            for codec in writer.codecs:
                entry = codec.entry(image, key)
                section.put(entry, ENTRY_VALUE.pack(1, 1, len(entry) - len(key)))

        raw(database, put)

    def stray_rowset(database, table):
        raw(database, lambda section: section.put(rowset_prefix(9_999) + b"\x10", b"x"))

    def ownerless_rowset(database, table):
        raw(database, lambda section: section.put(rowset_key(9_999), rowset_record(table.id, RowsetState.LIVE, 0)))

    def dead_rowset(database, table):
        dead = rowset_record(table.id, RowsetState.DEAD, 1)
        raw(database, lambda section: section.put(rowset_key(table.indexes[0].rowset), dead))

    def stray_key(database, table):
        raw(database, lambda section: section.put(b"\x77stray", b"x"))

    def header_behind(database, table):
        with database.store.read() as reader:
            header = decode_table_header(reader.get(header_key(table.id)))
        behind = encode_table_header(msgspec.structs.replace(header, current=header.current - 1))
        raw(database, lambda section: section.put(header_key(table.id), behind))

    def lost_layout(database, table):
        raw(database, lambda section: section.delete(layout_key(table.id, 1)))
        database.layouts._known.clear()

    def lost_name(database, table):
        raw(database, lambda section: section.delete(system.name_key("child_a")))

    return {
        "lost entry": ("4 complete", lost_entry),
        "buried entry": ("4 complete", buried_entry),
        "orphan entry": ("5 valid", orphan_entry),
        "wrong entry": ("5 valid", wrong_entry),
        "violated check": ("6 constraints", rewritten((10, 10, -1, "b10"))),
        "no parent": ("6 constraints", rewritten((10, 4_000, 3, "b10"))),
        "null key": ("2 columns", rewritten((None, 10, 3, "b10"))),
        "wrong key": ("1 rows", rewritten((11, 10, 3, "b10"))),
        "torn row": ("1 rows", torn_row),
        "unknown layout": ("1 rows", unknown_layout),
        "equal in a unique index": ("6 constraints", second_of_a_kind),
        "stray rowset": ("3 rowsets", stray_rowset),
        "ownerless rowset": ("3 rowsets", ownerless_rowset),
        "dead rowset": ("3 rowsets", dead_rowset),
        "stray key": ("7 keys", stray_key),
        "header behind": ("catalog", header_behind),
        "lost layout": ("catalog", lost_layout),
        "lost name": ("catalog", lost_name),
    }


@pytest.mark.parametrize("kind", damages())
def test_damage_is_found(database, kind):
    clause, damage = damages()[kind]
    table = sound(database, 100)
    damage(database, table)
    assert clause in clauses(database)


def test_a_writer_below_the_floor_is_found(database):
    child = sound(database, 10)
    late = msgspec.structs.replace(child, version=child.version - 2)

    def put(section: Section) -> None:
        header = decode_table_header(section.get(header_key(child.id)) or b"")
        section.put(header_key(child.id), encode_table_header(msgspec.structs.replace(header, floor=1)))

    assert clauses(database) == set()
    raw(database, put)
    database.insert(late, [row(50)])
    assert "writers" in clauses(database)


def test_beside_writers(database):
    child = sound(database, 2_000)
    stop = threading.Event()
    drawn = random.Random(3)
    failures: list[errors.Error] = []

    def write() -> None:
        known = {number: row(number) for number in range(2_000)}
        try:
            while not stop.is_set():
                number = drawn.choice(list(known))
                if drawn.random() < 0.2:
                    database.delete(child, known.pop(number))
                    continue
                new = (number, drawn.randrange(100), drawn.randrange(9), f"b{number}-{drawn.random()}")
                database.update(child, known[number], new)
                known[number] = new
        except errors.Error as failure:
            failures.append(failure)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        found = [problem for _ in range(5) for problem in problems(database)]
    finally:
        stop.set()
        writer.join()
    assert (found, failures) == ([], [])


def test_in_parts(database, monkeypatch):
    child = sound(database)
    for kind in ("lost entry", "orphan entry", "violated check", "equal in a unique index"):
        damages()[kind][1](database, child)
    whole = problems(database)
    told: list[tuple[str, float]] = []
    monkeypatch.setattr(consistency, "ROWS_PER_PART", 100)
    parts = problems(database, told=lambda *reached: told.append(reached))
    assert sorted(parts) == sorted(whole)
    shares = [share for table, share in told if table == child.name]
    assert len(shares) > 10
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)

    class Stop(Exception):
        pass

    def stop(table: str, share: float) -> None:
        raise Stop

    with pytest.raises(Stop):
        problems(database, told=stop)


@pytest.mark.spark
def test_on_spark(spark, database, monkeypatch):
    monkeypatch.setattr(consistency, "SPARK_ROWS", 1_000)
    child = sound(database)
    assert problems(database, spark=database.path) == []
    for kind in ("lost entry", "orphan entry", "violated check", "equal in a unique index"):
        damages()[kind][1](database, child)
    assert sorted(problems(database, spark=database.path)) == sorted(problems(database))
    assert clauses(database) == {"4 complete", "5 valid", "6 constraints"}


@pytest.mark.spark
def test_the_command_on_spark(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(consistency, "SPARK_ROWS", 1)
    with instar.connect(tmp_path / "sql", synchronous="off", autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id bigint PRIMARY KEY, a integer CHECK (a > 0), b text UNIQUE)")
        connection.execute("INSERT INTO t SELECT i, i, 'b' || i FROM generate_series(1, 500) AS g(i)")
        out = io.StringIO()
        assert inspection.check(connection, out)
        with connection.database.store.read() as reader:
            table = connection.database.catalog.at(reader).lookup("public", "t")
            assert isinstance(table, Table)
            prefix = rowset_prefix(table.indexes[0].rowset)
            entry = next(reader.scan(prefix, prefix_end(prefix)))[0]

        def lose(section: Section) -> None:
            section.delete(entry)

        connection.database.store.background([lose])
        assert not inspection.check(connection, out)
    assert out.getvalue().startswith("no problems found\n")
    assert "4 complete" in out.getvalue()
