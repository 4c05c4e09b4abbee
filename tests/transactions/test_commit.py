"""The commit loop on real stores: conflicts, preconditions, what is tried again."""

from __future__ import annotations

import msgspec
import pytest

from instar.catalog.descriptors import Column, Index, IndexColumn, Layout, State, Table
from instar.encoding.keys import successor
from instar.store.engine import Commit, Reader, RowWrite, Section, TableWrites
from instar.tables.index import IndexReader
from instar.tables.rowset import TableReader
from instar.tables.view import END
from instar.tables.writes import Derivation
from instar.transactions.buffer import Buffer
from instar.transactions.commit import Conflict, commit
from instar.types import INTEGER
from support.world import World


def insert(world: World, table: Table, *rows: tuple[object, ...]) -> int:
    buffer = Buffer()
    reader = TableReader(table, range(len(table.columns)), world.layouts)
    for row in rows:
        buffer.insert(table.id, table.version, reader.encode_key(row[:1]), row)
    return world.commit(buffer)


def update(world: World, table: Table, row: tuple[object, ...], snapshot: int | None = None) -> Buffer:
    """A buffer that updates every column of the row with this key, as seen at the snapshot."""
    reader = TableReader(table, range(len(table.columns)), world.layouts)
    seen = reader.get_version(world.view(snapshot), reader.encode_key(row[:1]))
    assert seen is not None
    buffer = Buffer()
    changed = frozenset(column.id for column in table.columns[1:])
    buffer.update(table.id, table.version, seen.key, seen.base, seen.values, row, changed)
    return buffer


def test_the_second_writer_of_a_row_gets_40001_naming_table_and_key() -> None:
    world = World()
    table = world.create_table()
    insert(world, table, (1, 1, "x"))
    first, second = update(world, table, (1, 2, "y")), update(world, table, (1, 3, "z"))
    world.commit(first)
    with pytest.raises(Conflict) as caught:
        world.commit(second)
    assert caught.value.reported.sqlstate == "40001"
    assert '"t"' in caught.value.reported.message
    assert caught.value.reported.detail is not None
    assert "(id)=(1)" in caught.value.reported.detail


def test_two_inserts_of_one_key_conflict_and_an_insert_over_a_tombstone_does_not() -> None:
    world = World()
    table = world.create_table()
    insert(world, table, (1, 1, "x"))
    with pytest.raises(Conflict):
        insert(world, table, (1, 2, "y"))
    reader = TableReader(table, [0, 1, 2], world.layouts)
    seen = reader.get_version(world.view(), reader.encode_key((1,)))
    assert seen is not None
    gone = Buffer()
    gone.delete(table.id, 1, seen.key, seen.base, seen.values)
    world.commit(gone)
    insert(world, table, (1, 2, "y"))
    assert reader.get(world.view(), seen.key) == (1, 2, "y")


def test_a_unique_key_that_was_taken_meanwhile_is_a_conflict() -> None:
    world = World()
    table = world.create_table(indexes=[("t_a_key", (2,), True)])
    insert(world, table, (1, 1, "x"), (2, None, "x"), (3, None, "x"))
    with pytest.raises(Conflict) as caught:
        insert(world, table, (4, 1, "y"))
    assert "t_a_key" in caught.value.reported.message


def test_unique_values_may_be_swapped_in_one_commit() -> None:
    """Rule 5: judged on the current state with the commit's own writes applied."""
    world = World()
    table = world.create_table(indexes=[("t_a_key", (2,), True)])
    insert(world, table, (1, 1, "x"), (2, 2, "x"))
    buffer = Buffer()
    reader = TableReader(table, [0, 1, 2], world.layouts)
    for number, value in ((1, 2), (2, 1)):
        seen = reader.get_version(world.view(), reader.encode_key((number,)))
        assert seen is not None
        buffer.update(table.id, 1, seen.key, seen.base, seen.values, (number, value, "x"), frozenset({2}))
    world.commit(buffer)
    assert [row[1] for row in reader.scan(world.view(), b"", END)] == [2, 1]


def test_a_commit_derived_below_the_floor_is_derived_again_unseen() -> None:
    """Schedule 1: enlisted before delete-only, committed after write-only: the index has the row's entry."""
    world = World()
    table = world.create_table()
    buffer = Buffer()
    reader = TableReader(table, [0, 1, 2], world.layouts)
    buffer.insert(table.id, table.version, reader.encode_key((1,)), (1, 5, "x"))
    rounds = 0

    def derive(store_reader: Reader) -> Commit:
        nonlocal rounds
        rounds += 1
        catalog = world.catalog_cache.at(store_reader)
        now = catalog.table(table.id)
        request = Commit(catalog_version=store_reader.catalog_version)
        derivation = Derivation(store_reader)
        for changed in buffer:
            derivation.table(world.writers.get(now, catalog), changed)
        request.tables, request.entries = derivation.tables, derivation.entries
        if rounds == 1:
            # While this round is on its way to the store, the index goes to delete-only and write-only.
            change = world.change()
            index = Index(id=150, name="t_a", columns=(IndexColumn(2),), rowset=change.new_rowset(150))
            world.commit(change=_with_index(change, now, index, State.DELETE_ONLY))
            changed_again = world.catalog().table(table.id)
            world.commit(change=_with_index(world.change(), changed_again, index, State.WRITE_ONLY))
        return request

    commit(world.store, derive)
    assert rounds == 2
    table = world.alter(
        world.catalog().table(table.id),
        indexes=(msgspec.structs.replace(world.catalog().table(table.id).indexes[0], state=State.PUBLIC),),
    )
    index_reader = IndexReader(table, table.indexes[0], [0], world.layouts)
    part = index_reader.codec.whole((1, 5, "x"))
    assert list(index_reader.scan(world.view(), part, successor(part))) == [(1,)]


def _with_index(change, table: Table, index: Index, state: State):
    listed = (msgspec.structs.replace(index, state=state),)
    change.update(msgspec.structs.replace(table, version=table.version + 1, indexes=listed), floor="current")
    return change


def test_maintenance_that_rewrote_a_row_is_no_conflict() -> None:
    """Rule 10: the same version in other bytes (migrated to a newer layout) is derived again, not refused."""
    world = World()
    table = world.create_table()
    insert(world, table, (1, 1, "x"))
    buffer = update(world, table, (1, 2, "y"))
    columns = (*table.columns, Column(id=9, name="c", type=INTEGER, missing="7"))
    layout = Layout(2, tuple((column.id, column.type) for column in columns))
    newer = world.alter(table, columns=columns, layout=layout)
    reader = TableReader(newer, range(4), world.layouts)
    key = reader.prefix + reader.encode_key((1,))
    with world.store.read() as store_reader:
        stored = store_reader.get(key)
    assert stored is not None
    writer = world.writers.get(newer, world.catalog())
    migrated = stored[:12] + (2 << 8).to_bytes(4, "little") + writer.encode(reader.decode(stored))

    def migrate(section: Section) -> None:
        section.put(key, migrated)

    world.store.background([migrate])
    assert reader.get(world.view(), reader.encode_key((1,))) == (1, 1, "x", 7)
    from instar.tables.upgrade import upgraded

    crossed = Buffer()
    crossed.tables[table.id] = upgraded(buffer.tables[table.id], table, newer)
    crossed.rows = 1
    world.commit(crossed)
    assert reader.get(world.view(), reader.encode_key((1,))) == (1, 2, "y", 7)


def test_endless_publications_end_in_40001() -> None:
    world = World()
    table = world.create_table()

    def derive(store_reader: Reader) -> Commit:
        current = world.catalog().table(table.id)
        world.alter(current)
        row = RowWrite(b"\x10\x00\x00\x00\x01key", None, b"", 1)
        return Commit(
            catalog_version=store_reader.catalog_version,
            tables=[TableWrites(table.id, current.version, current.checks_version, [row])],
        )

    with pytest.raises(Exception, match="times in a row") as caught:
        commit(world.store, derive)
    assert getattr(caught.value, "sqlstate", None) == "40001"
