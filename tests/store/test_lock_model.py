"""The order in which who locks beside the section and who commits see each other, as a model: every schedule of it.

One locks (`LmdbStore.lock`), others commit one after the other, each in the section; background batches commit, and
others' locks set the word that locks are held, whenever they like. Whoever commits may be refused, give up, or be
killed at any step. A schedule breaks the promise if a commit that was judged without the lock stands after who locks
has returned. Without either word of the protocol, or with a count that goes up only once, there is such a schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple

import pytest


class Rule(Enum):
    """When who locks is content without the section."""

    AS_IT_IS = auto()
    NO_NUMBER = auto()  # whoever is judged meanwhile
    HELD = auto()  # the word says that locks are held
    COUNTED_ONCE = auto()  # it was cleared as often as before, which is counted afterwards


class Step(Enum):
    """Where somebody is. Who locks: from COUNT on; who commits: from ENTER on."""

    COUNT = auto()
    SET = auto()
    PUT = auto()
    JUDGED = auto()
    READ = auto()
    DECIDE = auto()
    WAIT = auto()
    SET_AGAIN = auto()
    LEAVE = auto()
    ENTER = auto()
    SAY = auto()
    ASK = auto()
    LOOK = auto()
    FOUND = auto()
    CLEAR = auto()
    COUNT_CLEARED = auto()
    END = auto()
    TAKE_BACK = auto()
    ABORT = auto()
    DONE = auto()


class Committer(NamedTuple):
    at: Step = Step.ENTER
    number: int = 0
    found: bool = False  # the lock
    passes: bool = False


class State(NamedTuple):
    held: bool = True  # a dead owner's lock
    judged: int = 0
    newest: int = 0
    section: int | None = None  # whose it is; -1: of who locks
    put: bool = False
    cleared: int = 0
    at: Step = Step.COUNT
    cleared_before: int = 0
    judged_before: int = 0
    read: int = 0
    committers: tuple[Committer, ...] = ()


_MOST_COMMITS = 4
_LOCKER = -1


class Broken(Exception):
    """A commit that was not judged by the lock stands after who locks has returned."""


def content(state: State, rule: Rule) -> bool:
    """Whether who locks returns without the section."""
    if rule is not Rule.NO_NUMBER and state.read < state.judged_before:
        return False
    if rule is Rule.HELD:
        return state.held
    return state.cleared == state.cleared_before and (rule is not Rule.AS_IT_IS or state.cleared % 2 == 0)


def locker(state: State, rule: Rule) -> Iterator[State]:
    """What who locks does next."""
    match state.at:
        case Step.COUNT:
            yield state._replace(at=Step.SET, cleared_before=state.cleared)
        case Step.SET:
            yield state._replace(at=Step.PUT, held=True)
        case Step.PUT:
            yield state._replace(at=Step.JUDGED, put=True)
        case Step.JUDGED:
            yield state._replace(at=Step.READ, judged_before=state.judged)
        case Step.READ:
            yield state._replace(at=Step.DECIDE, read=state.newest)
        case Step.DECIDE:
            yield state._replace(at=Step.DONE if content(state, rule) else Step.WAIT)
        case Step.WAIT if state.section is None:
            yield state._replace(at=Step.SET_AGAIN, section=_LOCKER)
        case Step.SET_AGAIN:
            yield state._replace(at=Step.LEAVE, held=True)
        case Step.LEAVE:
            yield state._replace(at=Step.DONE, section=None)


def committer(state: State, which: int, rule: Rule) -> Iterator[State]:
    """What one who commits does next, or what becomes of it."""
    own = state.committers[which]

    def then(at: Step, **fields: object) -> State:
        mine = {name: fields.pop(name) for name in ("number", "found", "passes") if name in fields}
        others = list(state.committers)
        others[which] = own._replace(at=at, **mine)  # type: ignore[arg-type]  # fields of it by their names
        return state._replace(committers=tuple(others), **fields)  # type: ignore[arg-type]  # as above

    odd = rule is not Rule.COUNTED_ONCE
    match own.at:
        case Step.ENTER if state.section is None and state.newest < _MOST_COMMITS:
            yield then(Step.SAY, number=state.newest + 1, section=which)
        case Step.SAY:
            yield then(Step.ASK, judged=own.number)
        case Step.ASK:
            yield then(Step.LOOK) if state.held else then(Step.END, passes=True)
        case Step.LOOK:
            yield then(Step.FOUND, found=state.put)
        case Step.FOUND if own.found:
            yield then(Step.END)
        case Step.FOUND:
            yield then(Step.CLEAR, cleared=state.cleared | 1 if odd else state.cleared)
        case Step.CLEAR:
            yield then(Step.COUNT_CLEARED, held=False)
        case Step.COUNT_CLEARED:
            yield then(Step.END, passes=True, cleared=state.cleared + 1)
        case Step.END:
            if own.passes:
                if state.at is Step.DONE:
                    raise Broken
                yield then(Step.DONE, newest=own.number, section=None)
            yield then(Step.TAKE_BACK)
        case Step.TAKE_BACK:
            yield then(Step.ABORT, judged=own.number - 1)
        case Step.ABORT:
            yield then(Step.DONE, section=None)
    if own.at not in (Step.ENTER, Step.DONE):
        yield then(Step.DONE, section=None)  # it is killed


def following(state: State, rule: Rule) -> Iterator[State]:
    """All states that one step of anybody comes to."""
    yield from locker(state, rule)
    for which in range(len(state.committers)):
        yield from committer(state, which, rule)
    if not state.held:
        yield state._replace(held=True)  # another's lock
    if state.section is None and state.newest < _MOST_COMMITS:
        yield state._replace(newest=state.newest + 1)  # a background batch


def explore(rule: Rule, committers: int) -> int:
    """Go through all states; how many there are. Broken."""
    first = State(committers=(Committer(),) * committers)
    seen, pending = {first}, [first]
    while pending:
        for state in following(pending.pop(), rule):
            if state not in seen:
                seen.add(state)
                pending.append(state)
    return len(seen)


def test_no_schedule_breaks_the_promise() -> None:
    assert explore(Rule.AS_IT_IS, 2) > 50_000


@pytest.mark.parametrize("rule", [Rule.NO_NUMBER, Rule.HELD, Rule.COUNTED_ONCE])
def test_without_one_of_the_rules_a_schedule_does(rule: Rule) -> None:
    with pytest.raises(Broken):
        explore(rule, 2)
