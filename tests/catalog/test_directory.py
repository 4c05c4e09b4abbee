"""The directory of views and sequences: it follows the log, and reads them anew where the log does not tell."""

from __future__ import annotations

import msgspec
import pytest

from instar.catalog import system
from instar.catalog.catalog import Catalog
from instar.catalog.descriptors import Object, Sequence, Table, View
from instar.catalog.directory import Directory, is_no_table
from instar.store.memory import MemoryReader
from instar.store.schema_version import KEPT_VERSIONS
from instar.tables.rowset import key_encoder
from instar.transactions.buffer import Buffer
from instar.types import BIGINT
from support.world import World, describe_table


def view(world: World, name: str) -> View:
    change = world.change()
    made = View(id=change.new_id(), name=name, version=1, query="SELECT 1", columns=(), depends_on=())
    change.create(made)
    world.commit(change=change)
    return made


def drop(world: World, found: Object) -> int:
    change = world.change()
    change.drop(found)
    return world.commit(change=change)


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The timestamps at which all descriptors are read."""
    made = []
    iterate = system.iterate_descriptors

    def counting(store: object, snapshot: int) -> object:
        made.append(snapshot)
        return iterate(store, snapshot)  # type: ignore[arg-type] # what it was given

    monkeypatch.setattr(system, "iterate_descriptors", counting)
    return made


def test_it_follows_what_comes_and_goes(scans: list[int]) -> None:
    world = World()
    world.create_table("t")
    first = view(world, "first")
    directory = Directory(world.store, is_no_table)
    assert directory.ids(world.now()) == [first.id]
    then = world.now()
    second = view(world, "second")
    world.create_table("u")
    sequence = Sequence(id=1100, name="s", version=1, type=BIGINT)
    change = world.change()
    change.create(sequence)
    change.create(describe_table(change, "w", [("id", BIGINT)], (1,)))
    world.commit(change=change)
    drop(world, first)
    passing = view(world, "passing")
    gone = drop(world, passing)
    everything = sorted([first.id, second.id, passing.id, sequence.id])
    assert directory.ids(world.now()) == everything  # somebody may see what is gone
    assert directory.ids(then) == everything
    directory.forget(gone)
    assert directory.ids(world.now()) == sorted([second.id, sequence.id])
    assert directory.ids(then) is None
    assert len(scans) == 1


def test_rows_of_the_same_commit_are_not_gone_through(scans: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    table = world.create_table("t", [("id", BIGINT)])
    directory = Directory(world.store, is_no_table)
    assert directory.ids(world.now()) == []
    change = world.change()
    made = View(id=change.new_id(), name="v", version=1, query="SELECT 1", columns=(), depends_on=())
    change.create(made)
    buffer = Buffer()
    encode = key_encoder(table)
    for number in range(10_000):
        buffer.insert(table.id, table.version, encode((number,)), (number,))
    world.commit(buffer, change)
    read = []
    batch = MemoryReader.batch

    def counting(*given: object, **named: object) -> tuple[list[bytes], list[bytes]]:
        read.append(1)
        return batch(*given, **named)  # type: ignore[arg-type] # what it was given

    monkeypatch.setattr(MemoryReader, "batch", counting)
    assert directory.ids(world.now()) == [made.id]
    assert len(read) == 1
    assert len(scans) == 1


@pytest.mark.parametrize("why", ["the history ends", "the log is cut"])
def test_it_reads_anew_what_it_cannot_follow(scans: list[int], why: str) -> None:
    world = World()
    first = view(world, "first")
    directory = Directory(world.store, is_no_table)
    assert directory.ids(world.now()) == [first.id]
    then = world.now()
    drop(world, first)
    second = view(world, "second")
    if why == "the log is cut":
        world.store.collect(world.now(), lambda record: [])
    else:
        table = world.create_table("t")
        for _ in range(KEPT_VERSIONS):
            table = world.alter(table, next_id=table.next_id + 1)
    assert directory.ids(world.now()) == [second.id]
    assert directory.ids(then) is None
    assert len(scans) == 2
    third = view(world, "third")
    assert directory.ids(world.now()) == [second.id, third.id]
    assert len(scans) == 2


def test_views_of_a_snapshot_are_found_without_the_tables(scans: list[int]) -> None:
    world = World()
    made = view(world, "v")
    catalog = Catalog(world.store, world.clock)

    def views() -> list[View]:
        with world.store.read() as reader:
            return list(catalog.at(reader).views())

    assert views() == [made]
    with world.store.read() as reader:
        old = catalog.at(reader)
    drop(world, made)
    world.create_table("t")
    assert views() == []
    assert list(old.views()) == [made]
    assert list(old.sequences()) == []
    assert len(scans) == 1


def test_tables_that_take_values_of_a_sequence_are_found_without_the_others(scans: list[int]) -> None:
    """Those that have taken some for as long as the directory knows them, whoever else may look."""
    world = World()
    change = world.change()
    sequences = [Sequence(id=1100 + number, name=f"s{number}", version=1, type=BIGINT) for number in range(3)]
    for sequence in sequences:
        change.create(sequence)
    world.commit(change=change)
    tables = [world.create_table(name, [("id", BIGINT), ("a", BIGINT)]) for name in ("by_default", "plain", "owner")]

    def with_column(table: Table, **fields: object) -> Table:
        *first, last = table.columns
        return world.alter(table, columns=(*first, msgspec.structs.replace(last, **fields)))

    catalog = Catalog(world.store, world.clock)

    def takers() -> list[list[tuple[str, str]]]:
        with world.store.read() as reader:
            found = catalog.at(reader)
        return [[(table.name, column.name) for table, column in found.takers(one.id)] for one in sequences]

    assert takers() == [[], [], []]
    by_default = with_column(tables[0], default="nextval('\"#1100\"')")
    with_column(tables[2], sequence=1101, identity="always")
    wanted = [[("by_default", "a")], [("owner", "a")], []]
    assert takers() == wanted
    with world.store.read() as reader:
        old = catalog.at(reader)
    by_default = with_column(by_default, default="7")
    with_column(by_default, default="nextval('\"#1102\"')")
    assert takers() == [[], [("owner", "a")], [("by_default", "a")]]
    drop(world, world.catalog().table(tables[2].id))
    assert takers() == [[], [], [("by_default", "a")]]
    assert [[table.name for table, _ in old.takers(one.id)] for one in sequences] == [["by_default"], ["owner"], []]
    assert len(scans) == 1
