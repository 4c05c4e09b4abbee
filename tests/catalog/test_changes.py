"""Catalog changes: what they read is a precondition of their commit (schedule 7), and refusals leave nothing."""

from __future__ import annotations

import msgspec
import pytest

from instar import errors
from instar.catalog.changes import CatalogChange, Floor
from instar.catalog.descriptors import Index, IndexColumn, Table, View
from instar.store.records import decode_table_header, table_key
from instar.transactions.commit import Conflict
from instar.types import BIGINT
from support.world import World, describe_table


def new_table(change: CatalogChange, name: str) -> Table:
    table = describe_table(change, name, [("id", BIGINT)], (1,))
    change.create(table)
    return table


def view_of(change: CatalogChange, table: Table) -> View:
    return View(
        id=change.new_id(),
        name="v",
        version=1,
        query=f'select "#1" from "#{table.id}"',
        columns=(("id", BIGINT),),
        depends_on=((table.id, (1,)),),
    )


def refusal(world: World, change: CatalogChange) -> errors.Error:
    with pytest.raises((Conflict, errors.Error)) as caught:
        world.commit(change=change)
    error = caught.value
    if isinstance(error, Conflict):
        return error.reported
    assert isinstance(error, errors.Error)
    return error


def test_two_creations_of_one_name() -> None:
    world = World()
    first, second = world.change(), world.change()
    new_table(first, "t")
    new_table(second, "t")
    world.commit(change=first)
    assert refusal(world, second).sqlstate == "42P07"
    assert [table.name for table in world.catalog().tables()] == ["t"]


def test_an_index_takes_a_name_too() -> None:
    world = World()
    table = world.create_table("t")
    first, second = world.change(), world.change()
    index = Index(id=150, name="u", columns=(IndexColumn(2),), rowset=first.new_rowset(150))
    first.update(msgspec.structs.replace(table, version=2, indexes=(index,)))
    new_table(second, "u")
    world.commit(change=first)
    assert refusal(world, second).sqlstate == "42P07"


def test_create_view_beside_drop_table() -> None:
    """Schedule 7: whichever commits second is refused; no view is left without its table."""
    world = World()
    table = world.create_table("t")
    viewing, dropping = world.change(), world.change()
    viewing.require(table)
    viewing.create(view_of(viewing, table))
    dropping.drop(table)
    world.commit(change=dropping)
    assert refusal(world, viewing).sqlstate == "40001"
    assert list(world.catalog().objects()) == []


def test_one_change_per_object_at_a_time() -> None:
    world = World()
    table = world.create_table("t")
    first, second = world.change(), world.change()
    first.update(msgspec.structs.replace(table, version=2, name="a"))
    second.update(msgspec.structs.replace(table, version=2, name="b"))
    world.commit(change=first)
    error = refusal(world, second)
    assert error.sqlstate == "40001"
    assert '"t"' in error.message
    assert world.catalog().table(table.id).name == "a"


def test_changes_of_different_objects_do_not_meet() -> None:
    world = World()
    one, two = world.create_table("one"), world.create_table("two")
    first, second = world.change(), world.change()
    first.update(msgspec.structs.replace(one, version=2, name="eins"))
    second.update(msgspec.structs.replace(two, version=2, name="zwei"))
    world.commit(change=first)
    world.commit(change=second)
    assert sorted(table.name for table in world.catalog().tables()) == ["eins", "zwei"]


def test_two_tables_swap_their_names() -> None:
    world = World()
    one, two = world.create_table("one"), world.create_table("two")
    change = world.change()
    change.update(msgspec.structs.replace(one, version=2, name="three"))
    change.update(msgspec.structs.replace(two, version=2, name="one"))
    change.update(msgspec.structs.replace(one, version=2, name="two"))
    world.commit(change=change)
    catalog = world.catalog()
    assert catalog.lookup(None, "one") == catalog.by_id(two.id)
    assert catalog.lookup(None, "two") == catalog.by_id(one.id)


def test_the_floor_never_falls_and_a_dropped_tables_header_refuses_all() -> None:
    """Rules 12 and 24."""
    world = World()
    table = world.create_table("t")

    def header():
        with world.store.read() as reader:
            stored = reader.get(table_key(table.id))
        assert stored is not None
        return decode_table_header(stored)

    steps: tuple[tuple[int, Floor, int], ...] = ((2, "current", 2), (3, "keep", 2), (4, 1, 2), (5, 5, 5))
    for version, floor, expected in steps:
        change = world.change()
        current = world.catalog().table(table.id)
        change.update(msgspec.structs.replace(current, version=version), floor=floor)
        world.commit(change=change)
        assert (header().current, header().floor) == (version, expected)
    change = world.change()
    change.drop(world.catalog().table(table.id))
    world.commit(change=change)
    assert header().dropped
    assert header().floor > 5


def test_a_snapshot_keeps_its_catalog_and_a_change_shows_in_the_next_read() -> None:
    world = World()
    before = world.catalog()
    world.create_table("t")
    assert before.lookup(None, "t") is None
    assert world.catalog().lookup(None, "t") is not None
    assert world.catalog() is world.catalog()


def test_still_empty_is_judged_at_the_commit() -> None:
    from instar.tables.rowset import TableReader
    from instar.transactions.buffer import Buffer

    world = World()
    table = world.create_table("t")
    change = world.change()
    change.require_empty(table)
    change.update(msgspec.structs.replace(table, version=2))
    buffer = Buffer()
    buffer.insert(table.id, 1, TableReader(table, [0], world.layouts).encode_key((1,)), (1, None, None))
    world.commit(buffer)
    assert refusal(world, change).sqlstate == "40001"


def test_a_copy_of_a_change_is_independent() -> None:
    world = World()
    change = world.change()
    new_table(change, "a")
    copy = change.copy()
    new_table(change, "b")
    assert copy.view.lookup(None, "b") is None
    world.commit(change=copy)
    assert [table.name for table in world.catalog().tables()] == ["a"]
