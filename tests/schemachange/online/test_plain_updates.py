"""Plain updates, on bytes, leave in the targets what the rules over values would, to the last byte.

But for the timestamps of entries: one that is put bears that of its row, which plain updates of the same commit may
have brought on by then.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instar.catalog.descriptors import Column, Index, IndexColumn, Layout, Table
from instar.encoding.keys import ROWSET_PREFIX_BYTES
from instar.schemachange.online.changes import Translator
from instar.schemachange.online.overlay import Overlay
from instar.schemachange.online.transformation import (
    OnlineJoin,
    OnlineSplit,
    Propagator,
    Transformation,
    apply,
    join_of,
    rules_of,
    split_of,
)
from instar.store.engine import LogRecord, Reader, Store, rowset_prefix
from instar.transformations.records import Change, Row, Source
from instar.types import BIGINT, TEXT
from schemachange.online.following import commit
from schemachange.online.tables import ENGINES, join_world, row_ids, split_world, stored_in
from support.changes import ChangingWorld
from transformations.histories import Place, R, S, T, Writes, row

LONG = "p" * 120  # an entry with such a value is cut and hashed
KEYS = st.integers(1, 3)
VALUES = st.sampled_from(["x", "z", LONG, None])
NUMBERS = st.integers(0, 2) | st.none()


def writes_of(source: Source, *columns: st.SearchStrategy[object]) -> st.SearchStrategy[dict[Place, Row | None]]:
    """A commit on one source: some rows put or deleted; most of what is put is an update."""
    values = st.tuples(*columns)
    rows = st.dictionaries(KEYS, st.one_of(values, values, st.none()), max_size=3)
    return rows.map(lambda found: {(source, (k,)): None if v is None else (k, *v) for k, v in found.items()})


def kept(writes: Writes) -> Writes:
    """Without what a split would lose: a number of a row that has no split value."""
    return {place: v if v is None or v[2] is not None else (*v[:3], None, None) for place, v in writes.items()}


SPLIT_COMMITS = st.lists(
    writes_of(T, NUMBERS, VALUES, st.sampled_from("AB"), NUMBERS).map(kept), min_size=3, max_size=8
)
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


def everything(transformation: Transformation, overlay: Overlay) -> dict[bytes, bytes]:
    """All that is stored, as it is seen through an overlay; entries of the targets without their timestamps."""
    if isinstance(transformation, OnlineSplit):
        targets = [transformation.targets.r.table, transformation.targets.s.table]
    else:
        assert isinstance(transformation, OnlineJoin)
        targets = [transformation.joined.t.table]
    entries = {rowset_prefix(index.rowset) for table in targets for index in table.indexes}
    found = overlay.scan(b"", b"\xff" * 9)
    return {key: value[8:] if key[:ROWSET_PREFIX_BYTES] in entries else value for key, value in found}


def by_rules(transformation: Transformation, target: object, own: list[LogRecord], reader: Reader) -> None:
    changes = Translator(transformation.sources).changes(own, reader)
    apply(transformation, rules_of(target), changes)  # type: ignore[arg-type] # a stored target


def compare(transformation: OnlineSplit | OnlineJoin, store: Store, since: int) -> None:
    """Bring a log to two targets, and a part of it once more; compare after every commit."""
    other_way = transformation
    if isinstance(other_way, OnlineJoin):
        transformation, other_way = (other_way._replace(new_row_id=row_ids()) for _ in range(2))
    propagator = Propagator(transformation)
    with store.read() as reader:
        one, other = Overlay(reader), Overlay(reader)
        first, second = transformation.target(one), other_way.target(other)
        records = list(store.log(since, reader.timestamp, propagator.tables))
        timestamps = sorted({record.timestamp for record in records})
        for timestamp in [*timestamps, *timestamps[len(timestamps) // 2 :]]:
            own = [record for record in records if record.timestamp == timestamp]
            assert list(propagator.apply(first, own, reader)) == [(timestamp, len(own))]
            by_rules(other_way, second, own, reader)
            assert everything(transformation, one) == everything(transformation, other)


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=60)
@given(commits=SPLIT_COMMITS)
def test_a_split(engine: str, commits: list[Writes]) -> None:
    with stored_in(engine) as store:
        world = ChangingWorld(store)
        split = split_world(world)
        since = world.now()
        for writes in commits:
            commit(world, split, writes)
        compare(split, store, since)


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=60)
@given(commits=JOIN_COMMITS, unique=st.booleans(), merged=st.booleans(), whole=st.booleans())
def test_a_join(engine: str, commits: list[Writes], unique: bool, merged: bool, whole: bool) -> None:
    with stored_in(engine) as store:
        world = ChangingWorld(store)
        join = join_world(world, unique=unique, merged=merged, whole=whole)
        since = world.now()
        for writes in with_unique_s(commits) if unique else commits:
            commit(world, join, writes)
        compare(join, store, since)


def is_plain(transformation: Transformation, store: Store, since: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the last commit of a log takes no rule."""
    met: list[LogRecord] = []
    changes = Translator.changes

    def seen(self: Translator, own: list[LogRecord], view: Reader) -> list[Change]:
        met.extend(own)
        return changes(self, own, view)

    with store.read() as reader:
        overlay = Overlay(reader)
        target = transformation.target(overlay)
        records = list(store.log(since, reader.timestamp))
        last = records[-1].timestamp
        propagator = Propagator(transformation)
        list(propagator.apply(target, [record for record in records if record.timestamp != last], reader))
        before = everything(transformation, overlay)
        with monkeypatch.context() as patch:
            patch.setattr(Translator, "changes", seen)
            list(propagator.apply(target, [record for record in records if record.timestamp == last], reader))
        assert everything(transformation, overlay) != before
    return not met


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ((1, 6, "x", "A", 0), True),
        ((1, None, "x", "A", 0), True),
        ((1, 5, "x", "B", 0), False),  # S's
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
    monkeypatch.setattr("instar.schemachange.online.stored_rows.is_cut", lambda length: True)
    with stored_in("memory") as store:
        world = ChangingWorld(store)
        join = join_world(world, unique=True, merged=True)
        since = world.now()
        commit(world, join, row(R, 1, "x", 5))
        commit(world, join, row(R, 1, "x", 6))
        assert not is_plain(join, store, since, monkeypatch)


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
