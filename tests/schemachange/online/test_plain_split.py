"""Plain updates of a split's source: what is one, and what becomes of it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instar.catalog.descriptors import Column, Layout, Table
from instar.schemachange.online.overlay import Overlay
from instar.schemachange.online.transformation import OnlineSplit, Propagator, split_of
from instar.transformations.records import Flag, Part, Row, SRecord
from instar.types import BIGINT, INTEGER, TEXT
from schemachange.online.following import commit
from schemachange.online.plain import KEYS, NUMBERS, TOGETHER, VALUES, compare, is_plain, writes_of
from schemachange.online.tables import ENGINES, split_world, stored_in
from support.changes import ChangingWorld, Server
from transformations.histories import Place, T, Writes, gone, row


def kept(writes: Writes) -> Writes:
    """Without what a split would lose: a number of a row that has no split value."""
    return {place: v if v is None or v[2] is not None else (*v[:3], None, None) for place, v in writes.items()}


CITIES = st.sampled_from("AB")
# Most of the time rows with one split value are updated together.
ALIKE = st.builds(
    lambda keys, numbers, of_s: {(T, (key,)): (key, number, *of_s) for key, number in zip(keys, numbers, strict=False)},
    st.lists(KEYS, min_size=1, unique=True),
    st.lists(NUMBERS, min_size=3),
    st.tuples(VALUES, CITIES, NUMBERS),
)
SPLIT_COMMITS = st.lists(
    st.one_of(writes_of(T, NUMBERS, VALUES, CITIES, NUMBERS), ALIKE).map(kept), min_size=3, max_size=8
)


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=60)
@given(commits=SPLIT_COMMITS, together=TOGETHER)
def test_a_split(engine: str, commits: list[Writes], together: int) -> None:
    with stored_in(engine) as store:
        world = ChangingWorld(store)
        split = split_world(world)
        since = world.now()
        for writes in commits:
            commit(world, split, writes)
        compare(split, store, since, together=together)


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ((1, 6, "x", "A", 0), True),
        ((1, None, "x", "A", 0), True),
        ((1, 5, "x", "B", 0), True),  # S's
        ((1, 6, "x", "B", None), True),
        ((1, 6, "z", "A", 0), False),  # the split value
        ((1, 6, None, None, None), False),
    ],
)
def test_what_is_plain_of_a_split(after: Row, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with stored_in("memory") as store:
        world = ChangingWorld(store)
        split = split_world(world)
        since = world.now()
        for values in ((1, 5, "x", "A", 0), after):
            commit(world, split, row(T, *values))
        # An index on the column of R has another entry then.
        in_index = after[1] != 5
        assert is_plain(split, store, since, monkeypatch) is (expected and not in_index)
        assert is_plain(without_index(split, 301), store, since, monkeypatch) is expected


def without_index(split: OnlineSplit, number: int) -> OnlineSplit:
    """The same split, whose R has an index less."""
    r = split.targets.r.table
    indexes = tuple(index for index in r.indexes if index.id != number)
    return split_of(split.source.table, msgspec.structs.replace(r, indexes=indexes), split.targets.s.table)


def altered(world: ChangingWorld, table: Table, type_: object = None) -> Table:
    """A table with a column more, or whose last column is of another type, in another layout."""
    old = table.layout
    if type_ is None:
        columns = (*table.columns, Column(id=9, name="more", type=TEXT, missing="m"))
    else:
        columns = (*table.columns[:-1], msgspec.structs.replace(table.columns[-1], type=type_))
    layout = Layout(old.id + 1, tuple((column.id, column.type) for column in columns))
    return world.alter(table, columns=columns, layout=layout)


@pytest.mark.parametrize("type_", [None, BIGINT])
def test_a_row_that_came_into_another_layout(type_: object, monkeypatch: pytest.MonkeyPatch) -> None:
    with stored_in("memory") as store:
        world = ChangingWorld(store)
        split = without_index(split_world(world), 301)
        since = world.now()
        commit(world, split, row(T, 1, 5, "x", "A", 0))
        newer = split_of(altered(world, world.table(), type_), split.targets.r.table, split.targets.s.table)
        commit(world, newer, row(T, 1, 6, "x", "A", 0, *(() if type_ else ("m",))))
        # A value of a wider type would have to be looked at.
        assert is_plain(split, store, since, monkeypatch) is (type_ is None)
        assert is_plain(newer, store, since, monkeypatch)
        compare(split, store, since)
        compare(newer, store, since)


def test_a_key_of_another_type_is_left_to_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """R's rows are elsewhere than the log says, for all that is known."""
    with stored_in("memory") as store:
        world = ChangingWorld(store)
        split = without_index(split_world(world), 301)
        since = world.now()
        commit(world, split, row(T, 1, 5, "x", "A", 0))
        commit(world, split, row(T, 1, 6, "x", "A", 0))
        assert is_plain(split, store, since, monkeypatch)
        r = split.targets.r.table
        columns = tuple(
            msgspec.structs.replace(column, type=INTEGER) if column.id in r.primary_key else column
            for column in r.columns
        )
        other = split_of(split.source.table, msgspec.structs.replace(r, columns=columns), split.targets.s.table)
        assert not is_plain(other, store, since, monkeypatch)


def test_rows_that_are_updated_together_need_no_check() -> None:
    """As long as they are all that have the split value, and agree."""
    with stored_in("memory") as store:
        world = ChangingWorld(store)
        split = split_world(world)
        since = world.now()
        steps: list[tuple[set[Row], dict[int, int]]] = [
            (set(), {0: 0, 1: 0, 2: 0}),
            (set(), {0: 1, 1: 1, 2: 1}),
            ({("x",)}, {0: 2, 1: 2}),
            (set(), {0: 3, 1: 3, 2: 3}),
            ({("x",)}, {0: 4, 1: 4, 2: 5}),
            (set(), {0: 6, 1: 6, 2: 6}),
        ]
        for _, numbers in steps:
            writes: dict[Place, Row | None] = {}
            for key, number in numbers.items():
                writes |= row(T, key, 5, "x", "A", number)
            commit(world, split, writes)
        propagator = Propagator(split)
        with store.read() as reader:
            target = split.target(Overlay(reader))
            applied = propagator.apply(target, store.log(since, reader.timestamp), reader)
            for (doubtful, _), _ in zip(steps, applied, strict=True):
                assert target.doubtful == doubtful
        compare(split, store, since)


def test_the_only_row_of_a_record_that_is_in_doubt() -> None:
    """The rules say whether it is so still: all columns have to change."""
    with stored_in("memory") as store:
        world = ChangingWorld(store)
        split = split_world(world)
        since = world.now()
        commit(world, split, row(T, 1, 5, "x", "A", 0) | row(T, 2, 5, "x", "A", 0))
        commit(world, split, row(T, 1, 5, "x", "A", 1))
        commit(world, split, gone(T, 2))
        commit(world, split, row(T, 1, 5, "x", "A", 2))
        with store.read() as reader:
            target = split.target(Overlay(reader))
            list(Propagator(split).apply(target, store.log(since, reader.timestamp), reader))
            assert target.doubtful == {("x",)}
        compare(split, store, since)


@pytest.mark.parametrize("newer", [True, False])
def test_a_record_of_s_that_is_newer_keeps_its_values(newer: bool) -> None:
    """As a fuzzy image has it."""
    with stored_in("memory") as store:
        world = ChangingWorld(store)
        split = split_world(world)
        commit(world, split, row(T, 1, 5, "x", "A", 0))
        since = world.now()
        now = commit(world, split, row(T, 1, 5, "x", "A", 1))
        with store.read() as reader:
            target = split.target(Overlay(reader))
            target.put_r((1,), Part((1, 5, "x"), since))
            target.put_s(("x",), SRecord(("x", "A", 7), 1, now + newer, Flag.CONSISTENT))
            list(Propagator(split).apply(target, store.log(since, reader.timestamp), reader))
            record = target.s(("x",))
        if newer:
            assert record == SRecord(("x", "A", 7), 1, now + 1, Flag.UNKNOWN)
        else:
            assert record == SRecord(("x", "A", 1), 1, now, Flag.CONSISTENT)


def test_a_row_that_is_another_is_left_to_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was deleted and inserted by one commit, and looks like an update."""
    with stored_in("memory") as store:
        world = ChangingWorld(store)
        split = without_index(split_world(world), 301)
        since = world.now()
        commit(world, split, row(T, 1, 5, "x", "A", 0))
        server = Server(world)
        server.delete(1)
        server.insert(1, 6, "x", "A", 0)
        server.commit()
        assert not is_plain(split, store, since, monkeypatch)


def test_rows_that_change_again_and_again_are_put_once() -> None:
    with stored_in("memory") as store:
        world = ChangingWorld(store)
        split = without_index(split_world(world), 301)
        since = world.now()
        for number in range(10):
            commit(world, split, row(T, 1, number, "x", "A", 0))
        propagator = Propagator(split)
        with store.read() as reader:
            target = split.target(Overlay(reader))
            log = store.log(since, reader.timestamp)
            assert [changes for *_, changes in propagator.apply(target, log, reader, 5)] == [5, 5]
            # The row of R that is put by rule 8, with one of S; and all later ones at once.
            assert target.rows == 2 + 4 + 1
