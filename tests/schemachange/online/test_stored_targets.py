"""Stored targets, by the same rules, are what targets in memory are: random commits, some stored and some not yet."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instar.schemachange.online.overlay import Overlay, ShortReads
from instar.schemachange.online.redo import putting
from instar.schemachange.online.transformation import rules_of
from instar.store.engine import Store
from instar.transformations.commits import Splitting, apply_commit, joining
from instar.transformations.records import Change, Deleted, Flag, Inserted, Joined, Part, Row, Source, SRecord
from schemachange.online.tables import ENGINES, join_world, joined_records, split_records, split_world, stored_in
from support.world import World
from transformations.histories import JOIN, MANY, SPLIT
from transformations.model import JoinedTable, SplitTables
from transformations.test_properties import SPLIT_COMMITS, Sources, join_histories

# An entry with such a value is cut and hashed, and differs from others in the hash only.
LONG = "p" * 120


def lengthened(changes: list[Change], place: int) -> list[Change]:
    """The same with long values at a place of the rows."""

    def long(row: Row) -> Row:
        return tuple([LONG + str(value) if at == place and value else value for at, value in enumerate(row)])

    return [
        msgspec.structs.replace(
            change, **{name: long(getattr(change, name)) for name in ("before", "after") if hasattr(change, name)}
        )
        for change in changes
    ]


class Written:
    """An overlay over a store, and what is to be stored of it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.reads = ShortReads(store)
        self.overlay = Overlay(self.reads)

    def settle(self) -> None:
        self.reads.close()
        self.store.background([putting(self.overlay.taken())])
        self.overlay.settled()


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=30)
@given(data=st.data())
def test_a_stored_split_is_what_one_in_memory_is(engine: str, data: st.DataObject) -> None:
    sources = Sources(*data.draw(SPLIT_COMMITS))
    with stored_in(engine) as store:
        split = split_world(World(store))
        written = Written(store)
        target = split.target(written.overlay)
        model = SplitTables(SPLIT, {})
        for log in sources.log:
            changes = lengthened(log, 2)
            apply_commit(rules_of(target), changes)
            apply_commit(Splitting(model, SPLIT), changes)
            if data.draw(st.booleans()):
                written.settle()
            assert split_records(split, written.overlay) == (model.r_records, model.s_records)
            unknown = {value for value, record in model.s_records.items() if record.flag is Flag.UNKNOWN}
            assert target.doubtful == unknown
        written.settle()
        again = split.target(written.overlay)
        list(again.find_doubtful())
        assert again.doubtful == target.doubtful
        written.reads.close()


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=30)
@given(data=st.data(), unique=st.booleans(), merged=st.booleans())
def test_a_stored_join_is_what_one_in_memory_is(engine: str, data: st.DataObject, unique: bool, merged: bool) -> None:
    sources = data.draw(join_histories(unique))
    shape = JOIN if unique else MANY
    with stored_in(engine) as store:
        join = join_world(World(store), unique=unique, merged=merged)
        written = Written(store)
        target = join.target(written.overlay)
        model = JoinedTable(shape)
        for log in sources.log:
            changes = lengthened(log, 1)
            apply_commit(rules_of(target), changes)
            apply_commit(joining(model, shape), changes)
            if data.draw(st.booleans()):
                written.settle()
            records = joined_records(join, written.overlay)
            assert len(records) == len(model.records())
            assert set(records) == model.records()
        written.reads.close()


def test_what_is_counted() -> None:
    with stored_in("memory") as store:
        target = split_world(World(store)).target(Written(store).overlay)
        target.put_r((1,), Part((1, 5, "x"), 10))
        target.put_s(("x",), SRecord(("x", "A", 1), 1, 10, Flag.CONSISTENT))
        target.remove_r((1,))
        assert target.rows == 3


@pytest.mark.parametrize("merged", [True, False])
def test_a_part_without_a_column_has_null_there_and_the_rules_do_not_mind(merged: bool) -> None:
    with stored_in("memory") as store:
        join = join_world(World(store), unique=True, merged=merged, whole=False)
        overlay = Written(store).overlay
        target = join.target(overlay)
        rules = rules_of(target)
        apply_commit(rules, [Inserted(Source.S, (1,), (1, "x", 7), 10), Inserted(Source.R, (1,), (1, "x", 5), 10)])
        assert joined_records(join, overlay) == [Joined(Part((1, "x", 5), 10), Part((1, "x", None), 10))]
        apply_commit(rules, [Deleted(Source.R, (1,), (1, "x", 5), 11)])
        assert joined_records(join, overlay) == [Joined(None, Part((1, "x", None), 10))]


def test_a_record_keeps_its_row_id_for_as_long_as_its_keys() -> None:
    with stored_in("memory") as store:
        join = join_world(World(store), unique=True, merged=True)
        overlay = Written(store).overlay
        one, other = Part((1, "x", 5), 10), Part((1, "x", 6), 11)
        join.target(overlay).put(Joined(one, None))
        before = overlay.taken()
        join.target(overlay).put(Joined(other, None))
        assert [key for key, _ in overlay.taken()] == [before[0][0]]  # the row; its entries are as they were


def test_a_row_is_deleted_only_if_it_is_there() -> None:
    with stored_in("memory") as store:
        target = split_world(World(store)).target(Written(store).overlay)
        with pytest.raises(AssertionError):
            target.remove_r((1,))
        with pytest.raises(AssertionError):
            target.remove_s(("x",))
        assert target.r((1,)) is None


def test_a_row_that_was_met_is_met_again_as_it_was_put() -> None:
    with stored_in("memory") as store:
        target = split_world(World(store)).target(Written(store).overlay)
        rows = [target.targets.r_row(Part((1, number, "x"), 10 + number)) for number in range(3)]
        target.put_r((1,), Part((1, 5, "x"), 9))
        for number, row in enumerate(rows):
            assert target.r((1,)) is not None
            if number % 2:
                target.r_rows.overwrite(row.key, row.value)
            else:
                target.r_rows.overwrite_many({row.key: row.value})
            assert target.r((1,)) == Part((1, number, "x"), 10 + number)
