"""Plain updates of a join's sources: what is one, and what becomes of it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instar.catalog.descriptors import Index, IndexColumn
from instar.schemachange.online import plain_join, transformation
from instar.schemachange.online.overlay import Overlay
from instar.schemachange.online.plain_join import PlainJoin
from instar.schemachange.online.transformation import Propagator, join_of
from instar.transformations.records import Joined, Part, Row
from schemachange.online.following import commit
from schemachange.online.plain import NUMBERS, TOGETHER, VALUES, compare, is_plain, writes_of
from schemachange.online.tables import ENGINES, join_world, row_ids, stored_in
from support.changes import ChangingWorld, Server
from transformations.histories import Place, R, S, Writes, gone, row

JOIN_COMMITS = st.lists(
    st.builds(dict.__or__, writes_of(R, VALUES, NUMBERS), writes_of(S, VALUES, NUMBERS)), min_size=3, max_size=8
)


def with_unique_s(all_writes: list[Writes]) -> list[Writes]:
    """Without the writes of S by which two of its rows would have the same join value."""
    stored: dict[Place, Row] = {}
    made = []
    for writes in all_writes:
        after: dict[Place, Row | None] = {**stored, **{place: v for place, v in writes.items() if place[0] is S}}
        values = [v[1] for v in after.values() if v is not None and v[1] is not None]
        if len(values) == len(set(values)):
            stored = {place: v for place, v in after.items() if v is not None}
            made.append(writes)
        else:
            made.append({place: v for place, v in writes.items() if place[0] is R})
    return made


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=60)
@given(commits=JOIN_COMMITS, together=TOGETHER, unique=st.booleans(), merged=st.booleans(), whole=st.booleans())
def test_a_join(engine: str, commits: list[Writes], together: int, unique: bool, merged: bool, whole: bool) -> None:
    with stored_in(engine) as store:
        world = ChangingWorld(store)
        join = join_world(world, unique=unique, merged=merged, whole=whole)
        since = world.now()
        for writes in with_unique_s(commits) if unique else commits:
            commit(world, join, writes)
        compare(join, store, since, together=together)


@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.parametrize("unique", [True, False])
@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (row(R, 1, "x", 6), True),
        (row(S, 1, "x", 6), True),
        (row(R, 1, "x", None), False),
        (row(R, 1, "z", 5), False),
        (row(S, 1, None, 5), False),
    ],
)
def test_what_is_plain_of_a_join(
    after: Writes, expected: bool, unique: bool, merged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stored_in("memory") as store:
        world = ChangingWorld(store)
        join = join_world(world, unique=unique, merged=merged)
        since = world.now()
        commit(world, join, row(R, 1, "x", 5) | row(R, 2, "x", 5) | row(S, 1, "x", 5))
        commit(world, join, after)
        assert is_plain(join, store, since, monkeypatch) is expected
        # With an index on what changes, entries do.
        t = join.joined.t.table
        index = Index(id=320, name="own", columns=(IndexColumn(5, False), IndexColumn(7, False)), rowset=900)
        indexed = msgspec.structs.replace(t, indexes=(*t.indexes, index))
        assert not is_plain(join_of(join.r.table, join.s.table, indexed, row_ids()), store, since, monkeypatch)


def test_a_key_whose_entries_do_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cut and hashed: which rows have it is seen in them."""
    monkeypatch.setattr("instar.schemachange.online.plain_join.is_cut", lambda length: True)
    with stored_in("memory") as store:
        world = ChangingWorld(store)
        join = join_world(world, unique=True, merged=True)
        since = world.now()
        commit(world, join, row(R, 1, "x", 5))
        commit(world, join, row(R, 1, "x", 6))
        assert not is_plain(join, store, since, monkeypatch)


def test_an_index_in_descending_order_is_left_to_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entries do not begin with the row's key as the source has it."""
    with stored_in("memory") as store:
        world = ChangingWorld(store)
        join = join_world(world, unique=True, merged=True)
        since = world.now()
        commit(world, join, row(R, 1, "x", 5))
        commit(world, join, row(R, 1, "x", 6))
        assert is_plain(join, store, since, monkeypatch)
        t = join.joined.t.table
        turned = tuple(
            msgspec.structs.replace(index, columns=tuple(IndexColumn(part.column, True) for part in index.columns))
            for index in t.indexes
        )
        other = join_of(join.r.table, join.s.table, msgspec.structs.replace(t, indexes=turned), row_ids())
        assert not is_plain(other, store, since, monkeypatch)


@pytest.mark.parametrize(
    ("together", "size", "expected"),
    [
        (3, 1 << 20, [(1, 3), (2, 2), (1, 1), (1, 1)]),  # the update of s comes to two rows
        (100, 1 << 20, [(1, 3), (3, 3), (1, 1)]),
        (100, 1, [(1, 3), (1, 1), (1, 1), (1, 1), (1, 1)]),
        (100, 50, [(1, 3), (1, 1), (1, 1), (1, 1), (1, 1)]),  # the rows of an update before and after it
        (1, 1 << 20, [(1, 3), (1, 1), (1, 1), (1, 1), (1, 1)]),
    ],
)
def test_where_batches_end(
    together: int, size: int, expected: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At so many rows or bytes, and with the first commit that takes the rules: that may come to any number of rows."""
    monkeypatch.setattr(transformation, "_BYTES_TOGETHER", size)
    with stored_in("memory") as store:
        world = ChangingWorld(store)
        join = join_world(world, unique=True, merged=True)
        since = world.now()
        commit(world, join, row(R, 1, "x", 5) | row(R, 2, "x", 5) | row(S, 1, "x", 5))
        for writes in (row(R, 1, "x", 6), row(S, 1, "x", 6), gone(R, 2), row(R, 1, "x", 7)):
            commit(world, join, writes)
        propagator = Propagator(join)
        with store.read() as reader:
            target = join.target(Overlay(reader))
            log = store.log(since, reader.timestamp, propagator.tables)
            applied = [(commits, changes) for _, commits, changes in propagator.apply(target, log, reader, together)]
        # The commit that deletes takes the rules, and is the last of its batch.
        assert applied == expected
        compare(join, store, since, together=together)


def test_a_row_that_is_another_is_left_to_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was deleted and inserted by one commit, and looks like an update."""
    with stored_in("memory") as store:
        world = ChangingWorld(store)
        join = join_world(world, unique=True, merged=True)
        since = world.now()
        commit(world, join, row(R, 1, "x", 5))
        server = Server(world, "r")
        server.delete(1)
        server.insert(1, "x", 6)
        server.commit()
        assert not is_plain(join, store, since, monkeypatch)


def test_a_row_of_both_parts_has_the_newer_timestamp() -> None:
    """Whichever of the two is applied first."""
    with stored_in("memory") as store:
        world = ChangingWorld(store)
        join = join_world(world, unique=True, merged=True)
        since = world.now()
        commit(world, join, row(R, 1, "x", 5) | row(S, 1, "x", 5))
        for writes in (row(S, 1, "x", 6), row(R, 1, "x", 6), row(S, 1, "x", 7)):
            commit(world, join, writes)
        compare(join, store, since, together=100)


def test_a_row_that_lacks_the_part_is_left_alone() -> None:
    """Though it has the key, in a column that both parts have."""
    with stored_in("memory") as store:
        world = ChangingWorld(store)
        join = join_world(world, unique=True, merged=True)
        part = PlainJoin(join.sources, join.joined).parts[join.r.table.id]
        alone = join.joined.row(1, Joined(None, Part((1, "x", 5), 10)))
        both = join.joined.row(2, Joined(Part((1, "x", 5), 10), Part((1, "x", 5), 10)))
        assert part.updated(alone.value, (1, 7), 12) is None
        assert part.updated(both.value, (1, 7), 10) is None, "ahead"
        expected = join.joined.row(2, Joined(Part((1, "x", 7), 12), Part((1, "x", 5), 10)))
        assert part.updated(both.value, (1, 7), 12) == expected.value


def test_many_rows_of_one_update_are_put_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_join, "_TOGETHER", 2)
    with stored_in("memory") as store:
        world = ChangingWorld(store)
        join = join_world(world, unique=True, merged=True)
        since = world.now()
        commit(world, join, row(R, 1, "x", 5) | row(R, 2, "x", 5) | row(R, 3, "z", 5) | row(S, 1, "x", 5))
        for number in range(6, 9):
            commit(world, join, row(S, 1, "x", number) | row(R, 1, "x", number) | row(R, 3, "z", number))
        compare(join, store, since, together=100)
