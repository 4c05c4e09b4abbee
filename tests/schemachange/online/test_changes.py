"""What the rules are told of each kind of log record: real commits, and those that no commit makes any more."""

from __future__ import annotations

import msgspec
import pytest

from instar import errors
from instar.catalog.descriptors import Layout
from instar.schemachange.online.changes import SourceRows, Translator
from instar.schemachange.online.transformation import OnlineSplit
from instar.schemachange.stages import Superseded
from instar.store.engine import Commit, LogRecord, RowsetReplaced
from instar.tables.layout import body_encoder, row_start
from instar.transformations.records import Change, Deleted, Inserted, Source, Updated
from instar.types import BIGINT, DOUBLE
from schemachange.online.tables import split_world
from support.changes import ChangingWorld, Server

T = Source.T


@pytest.fixture
def world() -> ChangingWorld:
    return ChangingWorld()


@pytest.fixture
def split(world: ChangingWorld) -> OnlineSplit:
    return split_world(world)


def told(world: ChangingWorld, split: OnlineSplit, since: int) -> list[tuple[int, list[Change]]]:
    translator = Translator(split.sources)
    with world.store.read() as reader:
        commits = translator.commits(world.store.log(since, reader.timestamp))
        return [(timestamp, translator.changes(commit, reader)) for timestamp, commit in commits]


def test_inserts_updates_and_deletes(world: ChangingWorld, split: OnlineSplit) -> None:
    since = world.now()
    writer = Server(world)
    writer.insert(1, 5, "x", "A", 0)
    writer.insert(2, 6, None, "B", 1)
    first = writer.commit()
    writer.begin()
    writer.update(1, a=7)
    writer.delete(2)
    second = writer.commit()
    assert told(world, split, since) == [
        (first, [Inserted(T, (1,), (1, 5, "x", "A", 0), first), Inserted(T, (2,), (2, 6, None, "B", 1), first)]),
        (second, [
            Updated(T, (1,), (1, 5, "x", "A", 0), (1, 7, "x", "A", 0), second),
            Deleted(T, (2,), (2, 6, None, "B", 1), second),
        ]),
    ]  # fmt: skip
    assert [timestamp for timestamp, _ in told(world, split, first)] == [second]


def test_a_change_of_key_and_an_insert_where_a_row_was(world: ChangingWorld, split: OnlineSplit) -> None:
    writer = Server(world)
    writer.insert(1, 5, "x", "A", 0)
    since = writer.commit()
    writer.begin()
    writer.update(1, id=2)
    moved = writer.commit()
    writer.begin()
    writer.insert(1, 9, "z", "B", 1)  # over a tombstone
    back = writer.commit()
    found = told(world, split, since)
    assert found[0][0] == moved
    assert sorted(found[0][1], key=repr) == [
        Deleted(T, (1,), (1, 5, "x", "A", 0), moved), Inserted(T, (2,), (2, 5, "x", "A", 0), moved),
    ]  # fmt: skip
    assert found[1] == (back, [Inserted(T, (1,), (1, 9, "z", "B", 1), back)])


def records(world: ChangingWorld, split: OnlineSplit) -> tuple[LogRecord, LogRecord]:
    """The records of an insert and an update."""
    since = world.now()
    writer = Server(world)
    writer.insert(1, 5, "x", "A", 0)
    writer.commit()
    writer.begin()
    writer.update(1, a=7)
    insert, update = world.store.log(since, writer.commit())
    return insert, update


def test_a_row_that_is_another_is_two_changes(world: ChangingWorld, split: OnlineSplit) -> None:
    _, update = records(world, split)
    renewed = msgspec.structs.replace(update, renewed=True)
    with world.store.read() as reader:
        changes = Translator(split.sources).changes([renewed], reader)
    timestamp = update.timestamp
    assert changes == [
        Deleted(T, (1,), (1, 5, "x", "A", 0), timestamp),
        Inserted(T, (1,), (1, 7, "x", "A", 0), timestamp),
    ]


@pytest.mark.parametrize("which", [0, 1])
def test_a_record_without_the_new_row_is_damage(world: ChangingWorld, split: OnlineSplit, which: int) -> None:
    bare = msgspec.structs.replace(records(world, split)[which], after=None)
    with world.store.read() as reader, pytest.raises(errors.Error) as caught:
        Translator(split.sources).changes([bare], reader)
    assert caught.value.sqlstate == errors.DATA_CORRUPTED


def test_tables_that_are_no_source_are_passed_over(world: ChangingWorld, split: OnlineSplit) -> None:
    other = world.create_table("other")
    since = world.now()
    writer = Server(world, "other")
    writer.insert(1, 5, "x")
    writer.commit()
    world.store.commit(Commit(catalog_version=0, replaced=[RowsetReplaced(other.id, 1, 1, 2)]))
    assert told(world, split, since) == []


def test_other_rows_altogether(world: ChangingWorld, split: OnlineSplit) -> None:
    since = world.now()
    source = split.source.table
    world.store.commit(Commit(catalog_version=0, replaced=[RowsetReplaced(source.id, source.version, 1, 2)]))
    with pytest.raises(Superseded, match='the rows of table "t" were replaced'):
        told(world, split, since)


def test_rows_in_other_layouts(world: ChangingWorld, split: OnlineSplit) -> None:
    since = world.now()
    writer = Server(world)
    writer.insert(1, 5, "x", "A", 0)
    first = writer.commit()
    source = split.source.table
    widened = msgspec.structs.replace(source.columns[4], type=BIGINT)
    layout = Layout(source.layout.id + 1, (*source.layout.columns[:4], (5, BIGINT)))
    world.alter(world.table(), columns=(*source.columns[:4], widened), layout=layout)
    writer = Server(world)
    writer.update(1, a=7)
    second = writer.commit()
    assert told(world, split, since) == [
        (first, [Inserted(T, (1,), (1, 5, "x", "A", 0), first)]),
        (second, [Updated(T, (1,), (1, 5, "x", "A", 0), (1, 7, "x", "A", 0), second)]),
    ]
    (update,) = world.store.log(second - 1, second)
    assert update.after is not None
    unknown = msgspec.structs.replace(update, after=update.after[:13] + b"\x63" + update.after[14:])
    with world.store.read() as reader, pytest.raises(errors.Error) as caught:
        Translator(split.sources).changes([unknown], reader)
    assert caught.value.sqlstate == errors.DATA_CORRUPTED


def test_some_columns_of_a_row_in_whichever_layout(world: ChangingWorld) -> None:
    first = world.create_table("f", (("id", BIGINT), ("x", DOUBLE), ("n", BIGINT)))
    newer = world.alter(first, layout=Layout(first.layout.id + 1, ((3, BIGINT), (2, DOUBLE), (1, BIGINT))))
    rows = SourceRows(T, newer)
    read = rows.reader([3, 2])
    nan = body_encoder(first.layout)((1, float("nan"), 7)), body_encoder(newer.layout)((8, float("nan"), 1))
    with world.store.read() as reader:
        old, new = (
            read(row_start(layout, 5) + body, reader)
            for layout, body in zip((first.layout, newer.layout), nan, strict=True)
        )
        whole = rows.row(row_start(newer.layout, 5) + nan[1], reader)
    assert (old[0], new[0]) == (7, 8)
    assert old[1:] == new[1:] == whole[1:2], "each NaN is one object, so that tuples of them are equal"


def test_the_change_of_an_update(world: ChangingWorld, split: OnlineSplit) -> None:
    writer = Server(world)
    writer.insert(1, 5, "x", "A", 0)
    since = writer.commit()
    writer.begin()
    writer.update(1, a=7)
    writer.commit()
    with world.store.read() as reader:
        (record,) = world.store.log(since, reader.timestamp)
        assert [split.source.updated(record, reader)] == Translator(split.sources).changes([record], reader)
