"""Floors are computed from states; the table of RULES 12 and 24, step by step."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instar import errors
from instar.catalog.descriptors import Column, Index, IndexColumn, Layout, State, Step, StepKind, Table
from instar.schemachange import rules
from instar.schemachange.elements import Element, ElementKind, Phase
from instar.schemachange.planner import schedule
from instar.schemachange.publishing import new_version
from instar.schemachange.stages import Move, Reorganization, Scheduled
from instar.schemachange.states import PATHS
from instar.types import BIGINT, INTEGER


def table(version: int = 5, *, indexes: tuple[Index, ...] = (), steps: tuple[Step, ...] = ()) -> Table:
    columns = (Column(id=1, name="id", type=BIGINT, nullable=False), Column(id=2, name="a", type=INTEGER))
    return Table(
        id=9,
        name="t",
        version=version,
        columns=columns,
        primary_key=(1,),
        primary_key_name="t_pkey",
        rowset=1,
        layout=Layout(1, ((1, BIGINT), (2, INTEGER))),
        oldest_layout=1,
        next_id=10,
        indexes=indexes,
        steps=steps or (Step(version=1, kind=StepKind.CREATE_TABLE),),
    )


def index(state: State, number: int = 3) -> Index:
    return Index(id=number, name=f"i{number}", columns=(IndexColumn(2),), rowset=number, state=state)


def step(
    before: Table, kind: StepKind = StepKind.ELEMENT_STATE, columns: tuple[int, ...] = (3,), **fields: object
) -> Table:
    return new_version(before, [Step(version=before.version + 1, kind=kind, columns=columns)], **fields)


def test_the_path_of_an_index_admits_the_version_before_and_no_older_one() -> None:
    absent = table(5)
    delete_only = step(absent, indexes=(index(State.DELETE_ONLY),))
    assert rules.floor(absent, delete_only) == "keep"
    write_only = step(delete_only, indexes=(index(State.WRITE_ONLY),))
    assert rules.floor(delete_only, write_only) == 6
    public = step(write_only, indexes=(index(State.PUBLIC),))
    assert rules.floor(write_only, public) == 7


def test_compatible_steps_in_between_admit_the_whole_stretch_of_one_state() -> None:
    delete_only = step(table(5), indexes=(index(State.DELETE_ONLY),))
    added = step(delete_only, StepKind.ADD_COLUMN, (4,))
    assert rules.floor(delete_only, added) == "keep"
    write_only = step(added, indexes=(index(State.WRITE_ONLY),))
    assert rules.floor(added, write_only) == delete_only.version


def test_two_indexes_at_different_states() -> None:
    one = step(table(5), indexes=(index(State.DELETE_ONLY),))
    other = step(one, columns=(4,), indexes=(index(State.DELETE_ONLY), index(State.DELETE_ONLY, 4)))
    assert rules.floor(one, other) == "keep"
    moved = step(other, indexes=(index(State.WRITE_ONLY), index(State.DELETE_ONLY, 4)))
    assert rules.floor(other, moved) == one.version


def test_the_way_back_has_floors_too() -> None:
    write_only = step(step(table(5), indexes=(index(State.DELETE_ONLY),)), indexes=(index(State.WRITE_ONLY),))
    delete_only = step(write_only, indexes=(index(State.DELETE_ONLY),))
    assert rules.floor(write_only, delete_only) == write_only.version
    absent = step(delete_only, indexes=())
    assert rules.floor(delete_only, absent) == delete_only.version


@pytest.mark.parametrize("kind", list(StepKind))
def test_direct_steps_raise_the_floor_if_they_are_incompatible_or_convert_what_is_written(kind: StepKind) -> None:
    before = table(5)
    after = step(before, kind, (2,))
    incompatible = {
        StepKind.DROP_COLUMN, StepKind.UNDROP_COLUMN, StepKind.ADD_REQUIRED_COLUMN, StepKind.CHANGE_TYPE,
        StepKind.CHANGE_TYPE_TO_TEXT, StepKind.DROP_EXPRESSION, StepKind.TRUNCATE, StepKind.DROP_TABLE,
    }  # fmt: skip
    assert rules.floor(before, after) == (6 if kind in incompatible else "keep")


def test_collapsed_paths_admit_nobody_else() -> None:
    before = table(5)
    built = step(before, indexes=(index(State.PUBLIC),))
    assert rules.floor(before, built) == 6
    assert rules.floor(built, step(built, indexes=())) == 7


def test_a_new_rowset_and_a_change_on_the_other_side_of_a_foreign_key_admit_nobody_else() -> None:
    before = table(5, indexes=(index(State.PUBLIC),))
    assert rules.floor(before, step(before, StepKind.RENAME_TABLE, (), rowset=77)) == 6
    swapped = msgspec.structs.replace(index(State.PUBLIC), rowset=78)
    assert rules.floor(before, step(before, StepKind.RENAME_TABLE, (), indexes=(swapped,))) == 6
    assert rules.floor(before, step(before, columns=(), referenced_by=(4,))) == 6


def test_forgotten_steps_make_the_floor_higher_never_lower() -> None:
    known = table(200, indexes=(index(State.DELETE_ONLY),), steps=(Step(version=150, kind=StepKind.ADD_COLUMN),))
    assert rules.floor(known, step(known, indexes=(index(State.WRITE_ONLY),))) == 150


def test_every_rule_is_a_sentence() -> None:
    for rule in (*rules.FLOOR_RULES, *rules.ORDER_RULES):
        assert rule.sentence.endswith((".", ")."))


# --- order -----------------------------------------------------------------------------------------------------------

INDEX = Element(ElementKind.INDEX, 9, 3)
COLUMN = Element(ElementKind.COLUMN, 9, 2)
KEY = Element(ElementKind.FOREIGN_KEY, 9, 4)
CHECK = Element(ElementKind.CHECK, 9, 5)


def moves(stages: tuple[object, ...]) -> list[list[tuple[Element, Phase]]]:
    return [[(move.element, move.goal) for move in stage.moves] for stage in stages]  # type: ignore[attr-defined]


def test_an_index_takes_four_stages_with_its_work_behind_the_fence() -> None:
    stages = schedule([Scheduled(INDEX, Phase.ABSENT, Phase.PUBLIC, 7)])
    assert moves(stages) == [[(INDEX, Phase.DELETE_ONLY)], [(INDEX, Phase.WRITE_ONLY)], [], [(INDEX, Phase.PUBLIC)]]
    assert [stage.fences for stage in stages] == [(), (), (9,), ()]
    assert [len(stage.work) for stage in stages] == [0, 0, 1, 0]
    assert isinstance(stages[2].work[0], Reorganization)
    assert stages[2].work[0].rows == 7
    assert [stage.revertible for stage in stages] == [True, True, True, False]


def test_a_column_goes_with_the_last_of_what_uses_it() -> None:
    """Rule 25, by the long path that leases will need."""
    stages = schedule(
        [
            Scheduled(COLUMN, Phase.WRITE_ONLY, Phase.ABSENT, None),
            Scheduled(INDEX, Phase.PUBLIC, Phase.ABSENT, None, uses=(COLUMN,)),
        ]
    )
    assert moves(stages) == [
        [(INDEX, Phase.WRITE_ONLY)],
        [(INDEX, Phase.DELETE_ONLY)],
        [(COLUMN, Phase.ABSENT), (INDEX, Phase.ABSENT)],
    ]
    assert [stage.revertible for stage in stages] == [True, False, False]
    assert not any(stage.work for stage in stages)


def test_a_constraint_is_pending_only_once_the_index_it_probes_is_public() -> None:
    stages = schedule(
        [
            Scheduled(KEY, Phase.ABSENT, Phase.PUBLIC, 1, related=(8,), uses=(INDEX,)),
            Scheduled(INDEX, Phase.ABSENT, Phase.PUBLIC, 1),
        ]
    )
    assert moves(stages) == [
        [(KEY, Phase.DELETE_ONLY), (INDEX, Phase.DELETE_ONLY)], [(INDEX, Phase.WRITE_ONLY)], [],
        [(INDEX, Phase.PUBLIC)], [(KEY, Phase.WRITE_ONLY)], [], [(KEY, Phase.PUBLIC)],
    ]  # fmt: skip
    assert [stage.revertible for stage in stages] == [True] * 6 + [False]
    assert stages[5].fences == (9, 8)  # rule 19: on all tables concerned


def test_an_index_leaves_public_only_once_its_constraint_is_gone() -> None:
    stages = schedule(
        [
            Scheduled(KEY, Phase.PUBLIC, Phase.ABSENT, None, uses=(INDEX,)),
            Scheduled(INDEX, Phase.PUBLIC, Phase.ABSENT, None),
        ]
    )
    assert moves(stages)[0] == [(KEY, Phase.WRITE_ONLY)]
    assert (KEY, Phase.ABSENT) in moves(stages)[2]
    assert (INDEX, Phase.WRITE_ONLY) in moves(stages)[2]


def test_everything_that_is_added_shares_one_reorganization_and_is_shown_at_once() -> None:
    """F1 figure 3: one reorganization, and nothing public before all of it is done."""
    stages = schedule(
        [
            Scheduled(COLUMN, Phase.ABSENT, Phase.PUBLIC, None),
            Scheduled(INDEX, Phase.ABSENT, Phase.PUBLIC, 5),
            Scheduled(CHECK, Phase.ABSENT, Phase.PUBLIC, 5),
        ]
    )
    assert moves(stages) == [
        [(COLUMN, Phase.WRITE_ONLY), (INDEX, Phase.DELETE_ONLY), (CHECK, Phase.WRITE_ONLY)],
        [(INDEX, Phase.WRITE_ONLY)],
        [],
        [(COLUMN, Phase.PUBLIC), (INDEX, Phase.PUBLIC), (CHECK, Phase.PUBLIC)],
    ]
    assert [work.element for work in stages[2].work] == [INDEX, CHECK]
    assert [stage.revertible for stage in stages] == [True, True, True, False]


def test_what_is_dropped_can_be_had_back_until_all_that_may_fail_is_done() -> None:
    stages = schedule(
        [Scheduled(CHECK, Phase.ABSENT, Phase.PUBLIC, 5), Scheduled(INDEX, Phase.PUBLIC, Phase.ABSENT, None)]
    )
    assert moves(stages) == [
        [(CHECK, Phase.WRITE_ONLY), (INDEX, Phase.WRITE_ONLY)], [],
        [(CHECK, Phase.PUBLIC), (INDEX, Phase.DELETE_ONLY)], [(INDEX, Phase.ABSENT)],
    ]  # fmt: skip
    assert [stage.revertible for stage in stages] == [True, True, False, False]


def test_a_validation_begins_after_the_statement() -> None:
    stages = schedule([Scheduled(CHECK, Phase.WRITE_ONLY, Phase.PUBLIC, 5)])
    assert moves(stages) == [[], [], [(CHECK, Phase.PUBLIC)]]
    assert [bool(stage.work) for stage in stages] == [False, True, False]


def test_no_stage_moves_an_element_by_more_than_one_state() -> None:
    for stage in schedule(
        [Scheduled(INDEX, Phase.ABSENT, Phase.PUBLIC, 1), Scheduled(KEY, Phase.ABSENT, Phase.PUBLIC, 1)]
    ):
        assert len({move.element for move in stage.moves}) == len(stage.moves)
        assert all(isinstance(move, Move) for move in stage.moves)


@st.composite
def scheduled(draw: st.DrawFn) -> list[Scheduled]:
    """Elements that come and go, from anywhere; each may read any before it, and use those that go its way."""
    made: list[Scheduled] = []
    for number in range(draw(st.integers(2, 6))):
        element = Element(draw(st.sampled_from(list(PATHS))), 9, number + 2)
        phases = PATHS[element.kind].phases
        goal = draw(st.sampled_from((Phase.ABSENT, Phase.PUBLIC)))
        start = draw(st.sampled_from([phase for phase in phases if phase is not goal]))
        rows = draw(st.sampled_from((1, None))) if goal is Phase.PUBLIC else None
        uses = some_of(draw, [found.element for found in made if found.goal is goal])
        reads = some_of(draw, [found.element for found in made])
        made.append(Scheduled(element, start, goal, rows, uses=uses, reads=reads))
    return made


def some_of(draw: st.DrawFn, elements: list[Element]) -> tuple[Element, ...]:
    return tuple(draw(st.lists(st.sampled_from(elements), max_size=2, unique=True))) if elements else ()


@given(scheduled())
@settings(deadline=None, max_examples=300)
def test_the_order_rules_never_contradict_one_another(elements: list[Scheduled]) -> None:
    stages = schedule(elements)
    for element in elements:
        passed = [move for stage in stages for move in stage.moves if move.element == element.element]
        assert [move.start for move in passed] == [element.start, *(move.goal for move in passed[:-1])]
        assert passed[-1].goal is element.goal


def test_elements_in_a_circle_are_refused() -> None:
    circle = [
        Scheduled(KEY, Phase.PUBLIC, Phase.ABSENT, None, uses=(INDEX,)),
        Scheduled(INDEX, Phase.ABSENT, Phase.PUBLIC, 1, uses=(KEY,)),
        Scheduled(CHECK, Phase.ABSENT, Phase.PUBLIC, 1, reads=(CHECK,)),
    ]
    with pytest.raises(errors.Error, match="contradict") as refused:
        schedule(circle)
    assert refused.value.sqlstate == "XX000"


def test_work_does_not_wait_for_an_index_that_goes_with_its_constraint() -> None:
    """The index waits for the constraint to be gone, which waits for all work."""
    other = Element(ElementKind.INDEX, 8, 6)
    stages = schedule(
        [
            Scheduled(KEY, Phase.PUBLIC, Phase.ABSENT, None, uses=(INDEX,)),
            Scheduled(INDEX, Phase.PUBLIC, Phase.ABSENT, None),
            Scheduled(other, Phase.ABSENT, Phase.PUBLIC, 1),
        ]
    )
    assert moves(stages) == [
        [(KEY, Phase.WRITE_ONLY), (other, Phase.DELETE_ONLY)], [(other, Phase.WRITE_ONLY)], [],
        [(KEY, Phase.DELETE_ONLY), (other, Phase.PUBLIC)], [(KEY, Phase.ABSENT), (INDEX, Phase.WRITE_ONLY)],
        [(INDEX, Phase.DELETE_ONLY)], [(INDEX, Phase.ABSENT)],
    ]  # fmt: skip
