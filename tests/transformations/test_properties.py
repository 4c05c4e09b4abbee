"""Random histories: after every commit, from exact and from fuzzy images, and after replays of the log, the targets are
what the operators make of the sources from scratch.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar.transformations.checker import CheckBegun, CheckPassed, Contribution, conclude, pass_check
from instar.transformations.commits import ManyToMany, OneToMany, Splitting, apply_commit, joining
from instar.transformations.records import Flag, Join, Joined, Part, Row, Source
from transformations.histories import JOIN, MANY, SPLIT, Place, R, Reads, S, Sources, T, Writes, as_if_newer
from transformations.model import (
    Contradicted,
    JoinedTable,
    SplitTables,
    check_joined,
    check_split,
    fail,
    full_outer_join,
    split_of,
)

KEYS = st.integers(1, 3)
VALUES = st.sampled_from(["x", "z", None])
SMALL = st.integers(0, 1)
CITIES = st.sampled_from("AB")


def writes_of(source: Source, columns: st.SearchStrategy[Row]) -> st.SearchStrategy[dict[Place, Row | None]]:
    """A commit on one source: some rows put, changed or deleted."""
    rows = st.dictionaries(KEYS, st.none() | columns, max_size=3)
    return rows.map(lambda found: {(source, (k,)): None if v is None else (k, *v) for k, v in found.items()})


def both(r: dict[Place, Row | None], s: dict[Place, Row | None]) -> dict[Place, Row | None]:
    return r | s


JOIN_COMMITS = st.lists(
    st.builds(both, writes_of(R, st.tuples(VALUES, SMALL)), writes_of(S, st.tuples(VALUES, SMALL))),
    min_size=2, max_size=6,
)  # fmt: skip
SPLIT_COMMITS = st.lists(writes_of(T, st.tuples(SMALL, VALUES, CITIES, SMALL)), min_size=2, max_size=6)


def with_unique_s(sources: Sources, writes: Writes) -> Writes:
    """Without the writes of S, if two of its rows would have the same join value."""
    after = {(S, key): part.values for key, part in sources.read(S, sources.now).items()}
    changed: Mapping[Place, Row | None] = after | {place: row for place, row in writes.items() if place[0] is S}
    values = [row[1] for row in changed.values() if row is not None and row[1] is not None]
    if len(values) == len(set(values)):
        return writes
    return {place: row for place, row in writes.items() if place[0] is R}


@st.composite
def join_histories(draw: st.DrawFn, unique: bool) -> Sources:
    sources = Sources()
    for writes in draw(JOIN_COMMITS):
        sources.commit(with_unique_s(sources, writes) if unique else writes)
    return sources


@st.composite
def consistent_histories(draw: st.DrawFn) -> Sources:
    """T in which the split value determines S's columns after every commit: an update of them updates all its rows."""
    sources, towns = Sources(), {"x": ("A", 0), "z": ("A", 0)}
    for writes in draw(SPLIT_COMMITS):
        towns = {value: (draw(CITIES), draw(SMALL)) if draw(st.booleans()) else town for value, town in towns.items()}
        rows = {(T, key): part.values for key, part in sources.read(T, sources.now).items()}
        wanted: dict[Place, Row | None] = {}
        for place, row in (rows | writes).items():
            made = row if row is None or row[2] is None else (*row[:3], *towns[str(row[2])])
            if place in writes or made != row:
                wanted[place] = made
        sources.commit(wanted)
    return sources


@st.composite
def fuzzy_reads(draw: st.DrawFn, sources: Sources) -> tuple[int, Reads]:
    """From where the log is applied, and when each row was read, not before that."""
    start = draw(st.integers(0, sources.now))
    return start, {place: draw(st.integers(start, sources.now)) for place in sources.places()}


@st.composite
def rewound(draw: st.DrawFn, sources: Sources, start: int) -> list[int]:
    """The commits that are applied, by number, if the propagator falls back once on its way and once after."""
    broken = draw(st.integers(start, sources.now))
    back = draw(st.integers(start, broken))
    again = draw(st.integers(start, sources.now))
    return [*range(start, broken), *range(back, sources.now), *range(again, sources.now)]


SHAPES = pytest.mark.parametrize("join", [JOIN, MANY], ids=["one-to-many", "many-to-many"])


def joined_at(sources: Sources, join: Join, time: int) -> set[Joined]:
    return full_outer_join(join, sources.read(R, time), sources.read(S, time))


# --- joins ------------------------------------------------------------------------------------------------------------


@SHAPES
@given(data=st.data())
def test_a_join_is_exact_after_every_commit(join: Join, data: st.DataObject):
    sources = data.draw(join_histories(join.unique))
    start = data.draw(st.integers(0, sources.now))
    table = JoinedTable.image(join, sources.read(R, start), sources.read(S, start))
    for time, changes in enumerate(sources.log[start:], start=start + 1):
        apply_commit(joining(table, join), changes)
        assert table.records() == joined_at(sources, join, time)


@SHAPES
@given(data=st.data())
def test_a_join_converges_from_a_fuzzy_image_and_after_replays(join: Join, data: st.DataObject):
    sources = data.draw(join_histories(join.unique))
    start, reads = data.draw(fuzzy_reads(sources))
    table = JoinedTable.image(join, sources.read(R, start, reads), sources.read(S, start, reads))
    for number in data.draw(rewound(sources, start)):
        apply_commit(joining(table, join), sources.log[number])
        check_joined(table)
    assert table.records() == joined_at(sources, join, sources.now)


@given(sources=join_histories(unique=True))
def test_both_kinds_of_rules_make_the_same_of_a_unique_s(sources: Sources):
    one, many = JoinedTable(JOIN), JoinedTable(MANY)
    for changes in sources.log:
        apply_commit(OneToMany(one, JOIN), changes)
        apply_commit(ManyToMany(many, MANY), changes)
        assert one.records() == many.records()


@SHAPES
@given(data=st.data())
def test_a_join_converges_without_timestamps(join: Join, data: st.DataObject):
    """Theorem 1: the log is applied as if every change were newer than all that the image has."""
    sources = data.draw(join_histories(join.unique))
    start, reads = data.draw(fuzzy_reads(sources))
    table = JoinedTable.image(join, sources.read(R, start, reads), sources.read(S, start, reads))
    for changes in sources.log[start:]:
        as_if_newer(joining(table, join), changes)
        check_joined(table)
    assert values_of(table.records()) == values_of(joined_at(sources, join, sources.now))


def values_of(records: set[Joined]) -> set[tuple[Row | None, Row | None]]:
    def values(part: Part | None) -> Row | None:
        return None if part is None else part.values

    return {(values(record.r), values(record.s)) for record in records}


# --- splits -----------------------------------------------------------------------------------------------------------


@st.composite
def split_histories(draw: st.DrawFn) -> Sources:
    return Sources(*draw(SPLIT_COMMITS))


def values_from_scratch(sources: Sources, time: int) -> dict[Row, Row]:
    return {value: record.values for value, record in split_of(SPLIT, sources.read(T, time))[1].items()}


@given(data=st.data())
def test_a_split_is_exact_after_every_commit(data: st.DataObject):
    sources = data.draw(consistent_histories())
    start = data.draw(st.integers(0, sources.now))
    tables = SplitTables(SPLIT, sources.read(T, start))
    for time, changes in enumerate(sources.log[start:], start=start + 1):
        apply_commit(Splitting(tables, SPLIT), changes)
        check_split(tables, sources.read(T, time))
        assert tables.values() == values_from_scratch(sources, time)


@given(data=st.data())
def test_a_split_converges_from_a_fuzzy_image_and_after_replays(data: st.DataObject):
    sources = data.draw(consistent_histories())
    start, reads = data.draw(fuzzy_reads(sources))
    tables = SplitTables(SPLIT, sources.read(T, start, reads))
    for number in data.draw(rewound(sources, start)):
        apply_commit(Splitting(tables, SPLIT), sources.log[number])
        check_split(tables, sources.reflected(tables))
    check_split(tables, sources.read(T, sources.now))
    assert tables.values() == values_from_scratch(sources, sources.now)


Check = tuple[int, CheckPassed]


@st.composite
def checks(draw: st.DrawFn, sources: Sources) -> list[Check]:
    """Checks of T, rows read at different moments while commits go on; those that pass, by when they say so."""
    passed = []
    for _ in range(draw(st.integers(0, 3))):
        begun = draw(st.integers(0, sources.now))
        ended = draw(st.integers(begun, sources.now))
        value = draw(VALUES.filter(bool))
        reads = {place: draw(st.integers(begun, ended)) for place in sources.places()}
        found = check(sources.read(T, begun, reads), CheckBegun((value,), begun))
        if found is not None:
            passed.append((ended, found))
    return passed


def check(t: Mapping[Row, Part], begun: CheckBegun) -> CheckPassed | None:
    contributions = [
        Contribution(key, SPLIT.s_part(part.values), part.timestamp)
        for key, part in t.items()
        if SPLIT.value(part.values) == begun.value
    ]
    try:
        return conclude(begun, contributions, fail)
    except Contradicted:
        return None


@given(data=st.data())
def test_c_is_never_said_of_what_contradicts(data: st.DataObject):
    """T contradicts itself, checks run, the propagator falls back in the log: what has a C flag is agreed with."""
    sources = data.draw(split_histories())
    start, reads = data.draw(fuzzy_reads(sources))
    marks = data.draw(checks(sources))
    tables = SplitTables(SPLIT, sources.read(T, start, reads))
    for number in data.draw(rewound(sources, start)):
        apply_commit(Splitting(tables, SPLIT), sources.log[number])
        for ended, passed in marks:
            if ended == number + 1:
                pass_check(tables, passed)
        check_split(tables, sources.reflected(tables))
    check_split(tables, sources.read(T, sources.now))


@given(data=st.data())
def test_checks_make_c_of_all_that_agrees(data: st.DataObject):
    sources = data.draw(split_histories())
    start, reads = data.draw(fuzzy_reads(sources))
    tables = SplitTables(SPLIT, sources.read(T, start, reads))
    for changes in sources.log[start:]:
        apply_commit(Splitting(tables, SPLIT), changes)
    t = sources.read(T, sources.now)
    for value in list(tables.s_records):
        passed = check(t, CheckBegun(value, sources.now))
        assert passed is None or pass_check(tables, passed)
    scratch = split_of(SPLIT, t)[1]
    assert {value: record.flag for value, record in tables.s_records.items()} == {
        value: record.flag for value, record in scratch.items()
    }
    agreed = [value for value, record in scratch.items() if record.flag is Flag.CONSISTENT]
    assert all(tables.s_records[value].values == scratch[value].values for value in agreed)


# --- the log within a commit ------------------------------------------------------------------------------------------


@given(data=st.data())
def test_the_order_within_a_commit_is_of_no_account(data: st.DataObject):
    sources = data.draw(join_histories(unique=True))

    one, other = JoinedTable(JOIN), JoinedTable(JOIN)
    for changes in sources.log:
        apply_commit(OneToMany(one, JOIN), changes)
        apply_commit(OneToMany(other, JOIN), data.draw(st.permutations(changes)))
    assert one.records() == other.records()
