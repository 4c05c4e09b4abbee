"""The rules of planning as named sentences: the floor of a version, and the order of moves.

Floors are computed from the states of two versions, never written by hand. The sentences are what EXPLAIN, the tests
and the documentation cite.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Literal, NamedTuple, Protocol

from instar.catalog.descriptors import State, StepKind, Table
from instar.schemachange.elements import Element, ElementKind, Phase, entered, phases, yielding
from instar.schemachange.lock_elements import skips_dual_coverage
from instar.schemachange.stages import Move, Reorganization
from instar.schemachange.states import PATHS

# --- the floor (rule 12) ---------------------------------------------------------------------------------------------

# Direct steps under which nothing that an older version writes has a meaning.
INCOMPATIBLE = frozenset({
    StepKind.DROP_COLUMN, StepKind.UNDROP_COLUMN, StepKind.ADD_REQUIRED_COLUMN, StepKind.CHANGE_TYPE,
    StepKind.DROP_EXPRESSION, StepKind.TRUNCATE, StepKind.DROP_TABLE,
})  # fmt: skip


class FloorRule(NamedTuple):
    """`demands` gives the version that f is raised to by the step from one version of a table to the next; 0: none."""

    name: str
    sentence: str
    demands: Callable[[Table, Table], int]


def _two_versions(before: Table, after: Table) -> int:
    """The version at which every element that moves now had come to where it stands at `before`."""
    wanted = 0
    for element, start, goal in _moves(before, after):
        # An element that was absent is absent in all older versions, so those are one state behind and no more.
        if start is not Phase.ABSENT and PATHS[element.kind].distance(start, goal) == 1:
            wanted = max(wanted, entered(before, element.id))
    return wanted


def _collapsed(before: Table, after: Table) -> int:
    far = any(PATHS[element.kind].distance(start, goal) > 1 for element, start, goal in _moves(before, after))
    return after.version if far else 0


def _incompatible(before: Table, after: Table) -> int:
    new = (step for step in after.steps if step.version > before.version)
    return after.version if any(step.kind in INCOMPATIBLE for step in new) else 0


def _converted(before: Table, after: Table) -> int:
    new = (step for step in after.steps if step.version > before.version)
    return after.version if any(step.kind is StepKind.CHANGE_TYPE_TO_TEXT for step in new) else 0


def _generated(before: Table, after: Table) -> int:
    known = {column.id for column in before.columns}
    new = any(column.generated and column.visible and column.id not in known for column in after.columns)
    return after.version if new else 0


def _rowset_changed(before: Table, after: Table) -> int:
    swapped = before.rowset != after.rowset or any(
        old.id == new.id and old.rowset != new.rowset for old in before.indexes for new in after.indexes
    )
    return after.version if swapped else 0


def _both_sides(before: Table, after: Table) -> int:
    new = (step for step in after.steps if step.version > before.version)
    return after.version if any(step.kind is StepKind.ELEMENT_STATE and not step.columns for step in new) else 0


def _abort_change(before: Table, after: Table) -> int:
    now = phases(after)
    enforced = any(now.get(element) is Phase.PUBLIC for element in yielding(before))
    return after.version if enforced else 0


def _dual_coverage(before: Table, after: Table) -> int:
    return after.version if skips_dual_coverage(before, after) else 0


def _transformed(before: Table, after: Table) -> int:
    moves = after.transformed is not None and before.transformed != after.transformed
    appears = before.unseen is not None and after.unseen is None
    settles = before.crossing is not None and after.crossing is None
    return after.version if moves or appears or settles else 0


FLOOR_RULES = (
    FloorRule(
        "two versions",
        "A step of a path raises f to the first version in which every element is at most one state behind.",
        _two_versions,
    ),
    FloorRule("collapsed", "A collapsed path admits nobody who has not seen all of it: f = c.", _collapsed),
    FloorRule(
        "dual coverage",
        "Writers on either side of a change of a column's lock have a lock in common, or f = c (F1 §3.4).",
        _dual_coverage,
    ),
    FloorRule(
        "abort change",
        "Who has let a pending constraint give way has not enforced it: f = c when it is published (rule 16).",
        _abort_change,
    ),
    FloorRule("incompatible", "Versions before an incompatible direct step are never admitted: f = c.", _incompatible),
    FloorRule(
        "converted", "What was meant for another type is converted before it is written, by whoever: f = c.", _converted
    ),
    FloorRule(
        "generated",
        "Nobody writes a row that a generated column's value cannot be computed of: f = c where it comes in one step.",
        _generated,
    ),
    FloorRule("rowset", "A stage that changes a rowset of a table sets f = c (rule 24).", _rowset_changed),
    FloorRule(
        "transformation",
        "While others are made of a table nobody is admitted who does not log its rows whole: f = c (rule 3); nor who "
        "has not seen that it closes; nor to these, once they are seen, who has not seen that, or whose changes of "
        "what they were made of come too late.",
        _transformed,
    ),
    FloorRule(
        "both sides",
        "Writers of both tables of a foreign key must know of what they probe in the other: f = c (rule 27).",
        _both_sides,
    ),
)


def floor(before: Table, after: Table) -> Literal["keep"] | int:
    """What f must be at least when `after` is published over `before`; "keep" if no rule says anything."""
    demanded = max(rule.demands(before, after) for rule in FLOOR_RULES)
    return demanded or "keep"


def _moves(before: Table, after: Table) -> list[tuple[Element, Phase, Phase]]:
    """Elements on paths whose phase differs: (element, phase before, phase after)."""
    old, new = phases(before), phases(after)
    return [
        (element, start, goal)
        for element in {**old, **new}
        if (start := old.get(element, Phase.ABSENT)) is not (goal := new.get(element, Phase.ABSENT))
        and not _is_direct(element, start, goal)
    ]


def _is_direct(element: Element, start: Phase, goal: Phase) -> bool:
    """Whether this is a direct step, which counts as no state: the validators vote on it."""
    if element.kind is ElementKind.COLUMN:
        return Phase.WRITE_ONLY not in (start, goal)
    return element.kind is ElementKind.NOT_NULL and start is Phase.PUBLIC


def rowsets(table: Table) -> set[int]:
    """All rowsets of a table: its rows' and its indexes', and those that are filled for its next primary key."""
    coming = () if table.next_key is None else table.next_key.rowsets
    return {table.rowset, *(index.rowset for index in table.indexes), *coming}


def check_list(table: Table) -> tuple[object, ...]:
    """What a committer evaluates before the atomic section (rule 16): the checks in force and NOT NULL, and which
    constraints it is to tell of what violates them."""
    return (
        tuple((check.id, check.expression) for check in table.checks if check.enforced),
        tuple(column.id for column in table.columns if column.refuses_null),
        tuple(element for element, state in yielding(table).items() if state is State.WRITE_ONLY),
    )


# --- the order of moves ----------------------------------------------------------------------------------------------


class Node(Protocol):
    """A move of an element, or the work that makes the move possible."""

    @property
    def move(self) -> Move: ...

    @property
    def work(self) -> Reorganization | None: ...

    @property
    def reads(self) -> tuple[Element, ...]: ...


class OrderRule(NamedTuple):
    """`later` may not come in a stage before `earlier`'s, and in the same stage only if `together`."""

    name: str
    sentence: str
    applies: Callable[[Node, Node, Set[tuple[Element, Element]]], bool]  # (later, earlier, pairs of user and used)
    together: bool


def _next_state(later: Node, earlier: Node, uses: Set[tuple[Element, Element]]) -> bool:
    return earlier.work is None and later.move.element == earlier.move.element and later.move.start is earlier.move.goal


def _work_first(later: Node, earlier: Node, uses: Set[tuple[Element, Element]]) -> bool:
    return earlier.work is not None and later.work is None and later.move == earlier.move


def _user_gone(later: Node, earlier: Node, uses: Set[tuple[Element, Element]]) -> bool:
    return earlier.move.goal is Phase.ABSENT and (earlier.move.element, later.move.element) in uses


def _used_there(later: Node, earlier: Node, uses: Set[tuple[Element, Element]]) -> bool:
    return (
        earlier.work is None
        and earlier.move.goal is Phase.PUBLIC
        and later.move.start is not Phase.ABSENT
        and (later.move.element, earlier.move.element) in uses
    )


def _all_at_once(later: Node, earlier: Node, uses: Set[tuple[Element, Element]]) -> bool:
    # What leaves passes write-only too, but may have to wait for a user that is gone only after all work.
    builds = earlier.work is None and earlier.move.goal is Phase.WRITE_ONLY and earlier.move.start is not Phase.PUBLIC
    return later.work is not None and builds and all(user != earlier.move.element for user, _used in uses)


def _values_first(later: Node, earlier: Node, uses: Set[tuple[Element, Element]]) -> bool:
    return later.work is not None and earlier.work is not None and earlier.move.element in later.reads


def _seen_last(later: Node, earlier: Node, uses: Set[tuple[Element, Element]]) -> bool:
    used = any(used == later.move.element for _user, used in uses)
    return later.work is None and earlier.work is not None and not used and is_final(later.move)


def is_final(move: Move) -> bool:
    """Whether the move shows users something, or gives up what could be gone back to without a backfill (rule 23)."""
    if move.goal is Phase.PUBLIC:
        return True
    path = PATHS[move.element.kind].phases
    return path.index(move.goal) < path.index(move.start) and move.start is not Phase.PUBLIC


ORDER_RULES = (
    OrderRule("one state per stage", "An element takes one step of its path per stage.", _next_state, together=False),
    OrderRule(
        "work behind the fence",
        "Work on the data has a stage of its own, which first raises f to the version before it (rule 19).",
        _work_first,
        together=False,
    ),
    OrderRule(
        "users go first",
        "What is used goes no earlier than the stage in which all that uses it is gone (rule 25).",
        _user_gone,
        together=True,
    ),
    OrderRule(
        "users come last",
        "What uses an element is on record until the stage after that in which it is public (rules 19, 27).",
        _used_there,
        together=False,
    ),
    OrderRule(
        "one reorganization",
        "Work begins once all is write-only that is built and waits for no element to become public (F1 figure 3).",
        _all_at_once,
        together=False,
    ),
    OrderRule(
        "values first",
        "What reads a column of every row, a backfill or a validation, begins once all of them have a value of it.",
        _values_first,
        together=False,
    ),
    OrderRule(
        "what can fail comes first",
        "Nothing is shown, and nothing given up for good, before all work is done; the way back is open till then.",
        _seen_last,
        together=False,
    ),
)
