"""All small histories: two keys, two join or split values, three operations.

Every state of the sources is a beginning, but one only of those that differ in names. A commit is one operation, or
two; the image is exact, or found in each way in which a read without locks can find it. Random histories
(test_properties.py) are longer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

import pytest

from instar.transformations.commits import Splitting, apply_commit
from instar.transformations.records import Join, Row
from transformations.histories import JOIN, MANY, SPLIT, Place, R, S, Sources, T, Writes, propagated
from transformations.model import SplitTables, check_joined, check_split, full_outer_join

State = Mapping[Place, Row]
Steps = Callable[[State], Iterator[Writes]]

SHAPES = pytest.mark.parametrize("join", [JOIN, MANY], ids=["one-to-many", "many-to-many"])
OTHER: dict[object, object] = {"x": "z", "z": "x", "A": "B", "B": "A", 0: 1, 1: 0}

# What may be inserted for a key.
JOIN_ROWS: Mapping[Place, list[Row]] = {
    (source, (key,)): [(key, value, 0) for value in "xz"] for source in (R, S) for key in (1, 2)
}
SPLIT_ROWS: Mapping[Place, list[Row]] = {
    (T, (key,)): [(key, 0, value, city, 0) for value in "xz" for city in "AB"] for key in (1, 2)
}


def join_updates(row: Row) -> list[Row]:
    """The join value, or another column."""
    key, value, other = row
    return [(key, OTHER[value], other), (key, value, OTHER[other])]


def split_updates(row: Row) -> list[Row]:
    """The split value, with S's columns or without; S's columns; R's."""
    key, of_r, value, city, other = row
    return [
        (key, of_r, OTHER[value], city, other),
        (key, of_r, OTHER[value], OTHER[city], other),
        (key, of_r, value, OTHER[city], other),
        (key, OTHER[of_r], value, city, other),
    ]


def states(rows: Mapping[Place, list[Row]]) -> list[State]:
    """Every choice of rows, or of none, for the keys."""
    found: dict[str, State] = {}
    for chosen in itertools.product(*([None, *some] for some in rows.values())):
        state = {place: row for place, row in zip(rows, chosen, strict=True) if row is not None}
        found.setdefault(_without_names(state), state)
    return list(found.values())


def _without_names(state: State) -> str:
    """The same for states in which keys are exchanged, or values."""
    renamed = []
    for names in itertools.product(({}, {"x": "z", "z": "x"}), ({}, {"A": "B", "B": "A"})):
        both = {**names[0], **names[1]}
        rows = [
            (place[0].name, *(both.get(str(value), str(value)) for value in row[1:])) for place, row in state.items()
        ]
        renamed.append(repr(sorted(rows)))
    return min(renamed)


def operations(
    state: State, rows: Mapping[Place, list[Row]], updates: Callable[[Row], list[Row]]
) -> Iterator[tuple[Place, Row | None]]:
    """All that can be done to one row."""
    for place, some in rows.items():
        old = state.get(place)
        possible: list[Row | None] = [*some] if old is None else [None, *updates(old)]
        yield from ((place, row) for row in possible)


def steps_of(
    rows: Mapping[Place, list[Row]],
    updates: Callable[[Row], list[Row]],
    allowed: Callable[[State], bool],
    at_once: int = 1,
) -> Steps:
    """Commits of `at_once` operations on rows of their own that leave an allowed state."""

    def steps(state: State) -> Iterator[Writes]:
        for some in itertools.combinations(list(operations(state, rows, updates)), at_once):
            if len(dict(some)) == at_once and allowed(after(state, dict(some))):
                yield dict(some)

    return steps


def after(state: State, writes: Writes) -> State:
    return {place: row for place, row in {**state, **writes}.items() if row is not None}


def histories(state: State, steps: Steps, length: int) -> Iterator[list[Writes]]:
    """Every sequence of commits from a state."""
    if length == 0:
        yield []
        return
    for writes in steps(state):
        for rest in histories(after(state, writes), steps, length - 1):
            yield [writes, *rest]


# --- joins ------------------------------------------------------------------------------------------------------------


def join_steps(join: Join, at_once: int = 1) -> Steps:
    return steps_of(JOIN_ROWS, join_updates, lambda state: joinable(join, state), at_once)


def joinable(join: Join, state: State) -> bool:
    """Whether S's join values are unique, if they have to be."""
    values = [row[1] for place, row in state.items() if place[0] is S]
    return not join.unique or len(values) == len(set(values))


def join_states(join: Join) -> list[State]:
    return [state for state in states(JOIN_ROWS) if joinable(join, state)]


def check_join(join: Join, state: State, commits: list[Writes], *, fuzzy: bool) -> None:
    sources = Sources(state, *commits)
    end = full_outer_join(join, sources.read(R, sources.now), sources.read(S, sources.now))
    for reads in sources.all_reads(1) if fuzzy else [None]:
        table = propagated(sources, join, 1, reads, check=check_joined)
        assert table.records() == end, (state, commits, reads)


@SHAPES
def test_two_operations_on_a_join_and_every_fuzzy_image(join: Join):
    for state in join_states(join):
        for commits in histories(state, join_steps(join), 2):
            check_join(join, state, commits, fuzzy=True)


@SHAPES
@pytest.mark.parametrize("number", [0, -1], ids=["empty", "full"])
def test_three_operations_on_a_join_and_every_fuzzy_image(join: Join, number: int):
    state = join_states(join)[number]
    for commits in histories(state, join_steps(join), 3):
        check_join(join, state, commits, fuzzy=True)


@SHAPES
def test_two_operations_on_a_join_in_one_commit(join: Join):
    for state in join_states(join):
        for commits in histories(state, join_steps(join, at_once=2), 1):
            check_join(join, state, commits, fuzzy=True)


# --- splits -----------------------------------------------------------------------------------------------------------


def agreeing(state: State) -> bool:
    """Whether the split value determines S's columns."""
    return len({row[2] for row in state.values()}) == len({row[2:] for row in state.values()})


def split_steps(allowed: Callable[[State], bool], at_once: int = 1) -> Steps:
    return steps_of(SPLIT_ROWS, split_updates, allowed, at_once)


def check_splitting(state: State, commits: list[Writes], *, fuzzy: bool, values: bool) -> None:
    sources = Sources(state, *commits)
    end = sources.read(T, sources.now)
    for reads in sources.all_reads(1) if fuzzy else [None]:
        tables = SplitTables(SPLIT, sources.read(T, 1, reads))
        for changes in sources.log[1:]:
            apply_commit(Splitting(tables, SPLIT), changes)
            check_split(tables, sources.reflected(tables))
        check_split(tables, end)
        if values:
            assert tables.values() == SplitTables(SPLIT, end).values(), (state, commits, reads)


def test_three_operations_on_a_split():
    for state in states(SPLIT_ROWS):
        for commits in histories(state, split_steps(lambda state: True), 3):
            check_splitting(state, commits, fuzzy=False, values=False)


def test_two_operations_on_a_split_and_every_fuzzy_image():
    for state in states(SPLIT_ROWS):
        for commits in histories(state, split_steps(lambda state: True), 2):
            check_splitting(state, commits, fuzzy=True, values=False)


def test_three_operations_on_a_split_that_agrees_and_every_fuzzy_image():
    for state in filter(agreeing, states(SPLIT_ROWS)):
        for commits in histories(state, split_steps(agreeing), 3):
            check_splitting(state, commits, fuzzy=True, values=True)


@pytest.mark.parametrize("agrees", [False, True])
def test_two_operations_on_a_split_in_one_commit(agrees: bool):
    allowed = agreeing if agrees else lambda state: True
    for state in filter(allowed, states(SPLIT_ROWS)):
        for commits in histories(state, split_steps(allowed, at_once=2), 2 if agrees else 1):
            check_splitting(state, commits, fuzzy=True, values=agrees)
