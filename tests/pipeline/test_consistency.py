"""CHECK DATABASE: silent on what is sound, beside writers too; each kind of damage is found under its clause."""

from __future__ import annotations

import fnmatch
import io
import random
import threading
from collections.abc import Callable

import msgspec
import pytest

import instar
from instar import errors
from instar.catalog import system
from instar.catalog.descriptors import Check, ForeignKey, Layout, Lock, State, Table
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
CHILD = [("id", BIGINT), ("parent", BIGINT), ("a", INTEGER), ("b", TEXT), ("c", INTEGER)]
Damage = Callable[[SmallDatabase, Table], None]


def problems(
    database: SmallDatabase, spark: str | None = None, told: Told = lambda table, share: None
) -> list[Problem]:
    checks = Consistency(
        database.store, database.layouts, database.new_catalog(), compile_check, spark=spark, told=told
    )
    return list(checks.check_database())


def row(number: int) -> tuple[object, ...]:
    return (number, number % 100, number % 7 if number % 3 else None, f"b{number}" if number % 5 else None, number)


def sound(database: SmallDatabase, count: int = 3_000) -> Table:
    """Two tables with a foreign key, a check and NOT NULL on c, public indexes on a and b, two on their way."""
    parent = database.create("parent", PARENT, ["id"])
    database.insert(parent, [(i, f"c{i}") for i in range(100)])
    child = database.create("child", CHILD, ["id"])
    child = database.add_index(child, "child_a", ["a"], State.PUBLIC, id_=50)
    child = database.add_index(child, "child_b", ["-b"], State.PUBLIC, unique=True, id_=51)
    child = database.add_index(child, "child_ab", ["a", "b"], State.WRITE_ONLY, id_=52)
    child = database.add_index(child, "child_c", ["c"], State.DELETE_ONLY, id_=53)
    key = ForeignKey(id=60, name="child_parent", columns=(2,), parent=parent.id, parent_columns=(1,))
    check = Check(id=61, name="positive", expression="", columns=(5,))
    columns = (*child.columns[:4], msgspec.structs.replace(child.columns[4], nullable=False))
    child = database.alter(child, columns=columns, foreign_keys=(key,), checks=(check,))
    database.alter(parent, referenced_by=(child.id,))
    database.under_way(child)
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
    index = child.indexes[2]
    held = database.claimed(1)
    InProcess().run(Backfill(database.store, child, [index], job=1, stage=1, claim=held.claim, rows=1), lambda: None)
    database.update(child, row(1), (1, 5, 3, "new", 1))
    database.delete(child, row(2))
    public = msgspec.structs.replace(index, state=State.PUBLIC)
    database.alter(child, indexes=(*child.indexes[:2], public, child.indexes[3]))
    assert problems(database) == []


TEN = "(id)=(11)"


def stored(database: SmallDatabase, key: bytes) -> bytes:
    with database.store.read() as reader:
        found = reader.get(key)
    assert found is not None
    return found


def row_key(table: Table, number: int) -> bytes:
    return rowset_prefix(table.rowset) + key_encoder(table)([number])


def entry_of(table: Table, index: int, image: tuple[object, ...], number: int) -> tuple[bytes, int]:
    """The store key of an entry that image would have in an index, as one of row `number`; its primary key's place."""
    key = key_encoder(table)([number])
    entry = IndexCodec(table, table.indexes[index]).entry(image, key)
    return entry, len(entry) - len(key)


def entry_lost(database, table):
    raw(database, lambda section: section.delete(entry_of(table, 0, row(11), 11)[0]))


def entry_buried(database, table):
    entry, offset = entry_of(table, 0, row(11), 11)
    raw(database, lambda section: section.put(entry, ENTRY_VALUE.pack(1, 0, offset)))


def entry_without_row(index: int) -> Damage:
    def damage(database: SmallDatabase, table: Table) -> None:
        entry, offset = entry_of(table, index, row(99_999), 99_999)
        raw(database, lambda section: section.put(entry, ENTRY_VALUE.pack(1, 1, offset)))

    return damage


def entry_of_other_values(database, table):
    entry, offset = entry_of(table, 0, (11, 0, 77, "", 0), 11)
    raw(database, lambda section: section.put(entry, ENTRY_VALUE.pack(1, 1, offset)))


def entry_torn(database, table):
    entry, _ = entry_of(table, 2, row(11), 11)
    raw(database, lambda section: section.put(entry, b"torn"))


def rewritten(image: tuple[object, ...]) -> Damage:
    """Row 11 has these values; its entries stay."""

    def damage(database: SmallDatabase, table: Table) -> None:
        writer = TableWriter(table, database.catalog, database.layouts)
        key = row_key(table, 11)
        value = stored(database, key)[:16] + writer.encode(image)
        raw(database, lambda section: section.put(key, value))

    return damage


def row_torn(database, table):
    key = row_key(table, 11)
    value = stored(database, key)[:20]
    raw(database, lambda section: section.put(key, value))


def row_of_unknown_layout(database, table):
    key = row_key(table, 11)
    value = stored(database, key)
    raw(database, lambda section: section.put(key, value[:12] + (9 << 8).to_bytes(4, "little") + value[16:]))


def second_of_a_kind(database, table):
    writer = TableWriter(table, database.catalog, database.layouts)
    image = (5_000, 1, None, "b11", 1)
    header = stored(database, row_key(table, 11))[:16]

    def put(section: Section) -> None:
        section.put(row_key(table, 5_000), header + writer.encode(image))
        for place in range(len(table.indexes)):
            entry, offset = entry_of(table, place, image, 5_000)
            section.put(entry, ENTRY_VALUE.pack(1, 1, offset))

    raw(database, put)


def rowset_stray(database, table):
    raw(database, lambda section: section.put(rowset_prefix(9_999) + b"\x10", b"x"))


def rowset_without_owner(database, table):
    raw(database, lambda section: section.put(rowset_key(9_999), rowset_record(table.id, RowsetState.LIVE, 0)))


def rowset_dead(database, table):
    dead = rowset_record(table.id, RowsetState.DEAD, 1)
    raw(database, lambda section: section.put(rowset_key(table.indexes[0].rowset), dead))


def rowset_unrecorded(database, table):
    raw(database, lambda section: section.delete(rowset_key(table.indexes[2].rowset)))


def key_stray(database, table):
    raw(database, lambda section: section.put(b"\x77stray", b"x"))


def header_with(**fields: int) -> Damage:
    def damage(database: SmallDatabase, table: Table) -> None:
        header = decode_table_header(stored(database, header_key(table.id)))
        changed = {name: getattr(header, name) + by for name, by in fields.items()}
        value = encode_table_header(msgspec.structs.replace(header, **changed))
        raw(database, lambda section: section.put(header_key(table.id), value))

    return damage


def header_lost(database, table):
    raw(database, lambda section: section.delete(header_key(table.id)))


def layout_lost(database, table):
    raw(database, lambda section: section.delete(layout_key(table.id, 1)))
    database.layouts._known.clear()


def name_lost(database, table):
    raw(database, lambda section: section.delete(system.name_key("child_a")))


# What is broken behind everybody's back, and the one row that tells of it: object, clause, key, problem.
DAMAGES: dict[str, tuple[Damage, tuple[str, str, str, str]]] = {
    "row torn": (row_torn, ("rows", "1 rows", TEN, "the row cannot be read: *")),
    "row of an unknown layout": (
        row_of_unknown_layout,
        ("rows", "1 rows", TEN, "the row cannot be read: table * has no layout 9"),
    ),
    "row under a wrong key": (
        rewritten((12, *row(11)[1:])),
        ("rows", "1 rows", TEN, "the row stands under a key that is not its own, *"),
    ),
    "required column without value": (
        rewritten((*row(11)[:4], None)),
        ('column "c"', "2 columns", TEN, 'column "c" is NULL, which it must not be'),
    ),
    "stray rowset": (
        rowset_stray,
        ("rowset 9999", "3 rowsets", "", "there are keys under rowset 9999, which has no record"),
    ),
    "rowset without owner": (
        rowset_without_owner,
        ("rowset 9999", "3 rowsets", "", "rowset 9999 is live, but nothing owns it"),
    ),
    "dead rowset": (
        rowset_dead,
        ('index "child_a"', "3 rowsets", "", 'the record of rowset * of index "child_a" says dead, owner *'),
    ),
    "entry lost": (entry_lost, ('index "child_a"', "4 complete", TEN, 'the row has no entry in index "child_a"')),
    "entry buried": (entry_buried, ('index "child_a"', "4 complete", TEN, 'the row has no entry in index "child_a"')),
    "entry of a public index without row": (
        entry_without_row(0),
        ('index "child_a"', "5 valid", "(id)=(99999)", 'an entry of index "child_a" points to no row'),
    ),
    "entry of a write-only index without row": (
        entry_without_row(2),
        ('index "child_ab"', "5 valid", "(id)=(99999)", 'an entry of index "child_ab" points to no row'),
    ),
    "entry of a delete-only index without row": (
        entry_without_row(3),
        ('index "child_c"', "5 valid", "(id)=(99999)", 'an entry of index "child_c" points to no row'),
    ),
    "entry of other values": (
        entry_of_other_values,
        ('index "child_a"', "5 valid", TEN, 'an entry of index "child_a" points to a row with other values'),
    ),
    "entry torn": (entry_torn, ('index "child_ab"', "5 valid", "*", "the entry is damaged")),
    "check violated": (
        rewritten((*row(11)[:4], -1)),
        ('check "positive"', "6 constraints", TEN, 'the row violates check constraint "positive"'),
    ),
    "parent not there": (
        rewritten((11, 4_000, *row(11)[2:])),
        ('foreign key "child_parent"', "6 constraints", TEN, 'the row violates foreign key constraint "child_parent"'),
    ),
    "equal in a unique index": (
        second_of_a_kind,
        (
            'index "child_b"',
            "6 constraints",
            "(id)=(5000)",
            'the row violates unique constraint "child_b", as does (id)=(11)',
        ),
    ),
    "stray key": (key_stray, ("store", "7 keys", "77*", "a key of no known kind")),
    "header ahead": (
        header_with(current=1),
        ("header", "catalog", "", "the header is at version *, the descriptor at *"),
    ),
    "checks of another version": (
        header_with(checks=1),
        ("header", "catalog", "", "the header has checks of version *, the descriptor of *"),
    ),
    "floor above the version": (header_with(floor=1), ("header", "catalog", "", "the floor * is above version *")),
    "header lost": (header_lost, ("header", "catalog", "", "the table has no header")),
    "layout lost": (layout_lost, ("layout 1", "catalog", "", "table * has no layout 1")),
    "name lost": (name_lost, ("name", "catalog", "child_a", "the name belongs to object None, not to *")),
}
# Those that are found by walking rows and entries, and can be there together.
BULK = ("check violated", "entry lost", "entry of a write-only index without row", "equal in a unique index")
NAMELESS = {"stray rowset", "rowset without owner", "stray key"}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_one_row(database, kind):
    damage, expected = DAMAGES[kind]
    damage(database, sound(database, 100))
    (found,) = problems(database)
    assert found.table == ("" if kind in NAMELESS else "child")
    shown = (found.object, found.clause, found.key, found.message)
    assert all(fnmatch.fnmatchcase(one, like) for one, like in zip(shown, expected, strict=True)), shown


def test_a_rowset_without_record(database):
    """Its index is known, its keys are those of a rowset that nobody has recorded."""
    rowset_unrecorded(database, sound(database, 100))
    assert {(found.object.split()[0], found.clause) for found in problems(database)} == {
        ("index", "3 rowsets"),
        ("rowset", "3 rowsets"),
    }


def test_a_row_in_a_layout_that_is_said_to_be_gone(database):
    table = sound(database, 1)
    newer = msgspec.structs.replace(table.layout, id=2)
    database.alter(table, layout=newer, oldest_layout=2)
    (found,) = problems(database)
    assert found[1:4] == ("layout 1", "1 rows", "(id)=(0)")


def test_a_lock_that_is_newer_than_its_row(database):
    table = database.create("t", CHILD[:3], ["id"])
    locked = Layout(2, table.layout.columns, (0, 70))
    table = database.alter(table, layout=locked, locks=(Lock(id=70, name="l", columns=(3,)),))
    database.insert(table, [(1, 2, 3)])
    assert problems(database) == []
    key = row_key(table, 1)
    value = stored(database, key)
    raw(database, lambda section: section.put(key, value[:24] + (1 << 63).to_bytes(8, "little") + value[32:]))
    assert problems(database) == [
        Problem("t", "locks", "2 columns", "(id)=(1)", "a lock of the row is newer than the row")
    ]


def test_what_is_not_public_may_be_violated(database):
    """Clauses 2, 4 and 6 speak of public elements; the same rows are problems once the elements are public."""
    child = sound(database, 20)
    columns = list(child.columns)
    columns[4] = msgspec.structs.replace(columns[4], nullable=True, not_null=State.WRITE_ONLY)
    pending = {
        "columns": tuple(columns),
        "checks": tuple(msgspec.structs.replace(found, state=State.WRITE_ONLY) for found in child.checks),
        "foreign_keys": tuple(msgspec.structs.replace(found, state=State.WRITE_ONLY) for found in child.foreign_keys),
        "indexes": tuple(
            msgspec.structs.replace(found, state=State.WRITE_ONLY if found.unique else State.DELETE_ONLY)
            for found in child.indexes
        ),
    }
    table = database.alter(child, **pending)
    database.under_way(table, 901)
    for damage in (rewritten((11, 4_000, *row(11)[2:4], -1)), second_of_a_kind, entry_lost):
        damage(database, table)
    null = TableWriter(table, database.catalog, database.layouts).encode((*row(7)[:4], None))
    value = stored(database, row_key(table, 7))[:16] + null
    raw(database, lambda section: section.put(row_key(table, 7), value))
    assert problems(database) == []
    public = {name: getattr(child, name) for name in pending}
    database.alter(table, **public)
    assert sorted((found.object, found.clause, found.key) for found in problems(database)) == [
        ('check "positive"', "6 constraints", "(id)=(11)"),
        ('column "c"', "2 columns", "(id)=(7)"),
        ('foreign key "child_parent"', "6 constraints", "(id)=(11)"),
        ('index "child_a"', "4 complete", "(id)=(11)"),
        ('index "child_b"', "6 constraints", "(id)=(5000)"),
    ]


def test_a_writer_below_the_floor_is_found(database):
    child = sound(database, 10)
    late = msgspec.structs.replace(child, version=child.version - 2)

    def put(section: Section) -> None:
        header = decode_table_header(section.get(header_key(child.id)) or b"")
        section.put(header_key(child.id), encode_table_header(msgspec.structs.replace(header, floor=1)))

    assert problems(database) == []
    raw(database, put)
    database.insert(late, [row(50)])
    (found,) = problems(database)
    assert found[:3] == ("child", "log", "writers")
    assert f"was derived under version {late.version} of the table" in found.message


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
                if len(known) > 1_000 and drawn.random() < 0.2:  # however fast it is, some are left
                    database.delete(child, known.pop(number))
                    continue
                new = (number, drawn.randrange(100), drawn.randrange(9), f"b{number}-{drawn.random()}", number)
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
    for kind in BULK:
        DAMAGES[kind][0](database, child)
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
