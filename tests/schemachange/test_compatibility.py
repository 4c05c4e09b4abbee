from __future__ import annotations

import os
from pathlib import Path

import pytest

from instar import errors
from instar.catalog.descriptors import Step, StepKind
from instar.schemachange.compatibility import VALIDATORS, Usage, Vote, first_veto, require_compatible, verdict
from instar.schemachange.publishing import KEPT_STEPS, new_version
from schemachange.test_rules import table

WRITER, READER = Usage(wrote=True), Usage(wrote=False)
COLUMN = 7  # that the step is about
SERIALIZABLE = Usage(wrote=False, read=frozenset({1, COLUMN}))
VETOED = {
    StepKind.CHANGE_TYPE,
    StepKind.DROP_COLUMN,
    StepKind.UNDROP_COLUMN,
    StepKind.ADD_REQUIRED_COLUMN,
    StepKind.DROP_EXPRESSION,
    StepKind.TRUNCATE,
    StepKind.DROP_TABLE,
}


@pytest.mark.parametrize("kind", list(StepKind))
def test_the_table_of_verdicts(kind: StepKind) -> None:
    step = Step(version=2, kind=kind, columns=(COLUMN,))
    assert (verdict(step, WRITER) is Vote.INCOMPATIBLE) == (kind in VETOED)
    assert verdict(step, READER) is Vote.COMPATIBLE
    gone = kind in {StepKind.DROP_COLUMN, StepKind.CHANGE_TYPE, StepKind.DROP_EXPRESSION}
    assert (verdict(step, SERIALIZABLE) is Vote.INCOMPATIBLE) == gone
    assert verdict(step, Usage(wrote=False, read=frozenset({1}))) is Vote.COMPATIBLE


def test_one_veto_among_many_steps_decides_and_is_named() -> None:
    steps = [Step(version=2, kind=StepKind.ADD_COLUMN), Step(version=3, kind=StepKind.DROP_COLUMN, statement="DROP x")]
    assert first_veto(steps, WRITER) is steps[1]
    assert first_veto(steps[:1], WRITER) is None
    with pytest.raises(errors.Error) as refused:
        require_compatible(table(3, steps=tuple(steps)), 1, WRITER)
    assert refused.value.sqlstate == "40001"
    assert "drop column" in refused.value.message
    assert "DROP x" in (refused.value.detail or "")


def test_only_steps_after_what_the_transaction_meant_are_judged() -> None:
    steps = (Step(version=2, kind=StepKind.TRUNCATE), Step(version=3, kind=StepKind.ADD_COLUMN))
    require_compatible(table(3, steps=steps), 2, WRITER)


def test_of_steps_that_are_no_longer_listed_those_that_doom_are_remembered() -> None:
    newest = table(1)
    for kind in [StepKind.ADD_COLUMN, StepKind.DROP_COLUMN, *[StepKind.ADD_COLUMN] * (KEPT_STEPS + 6)]:
        newest = new_version(newest, [Step(version=newest.version + 1, kind=kind)])
    assert (len(newest.steps), newest.steps[0].version) == (KEPT_STEPS, 10)
    require_compatible(newest, 3, WRITER)
    require_compatible(newest, 1, READER)
    require_compatible(newest, 1, Usage(wrote=False, read=frozenset({newest.columns[0].id})))
    for usage in (WRITER, Usage(wrote=False, read=frozenset({9_999}))):
        with pytest.raises(errors.Error, match="concurrent drop column"):
            require_compatible(newest, 2, usage)


@pytest.mark.parametrize("kind", list(StepKind))
def test_what_is_forgotten_of_steps_that_doom_nobody(kind: StepKind) -> None:
    """What `listed` goes by is what the validators say."""
    newest = new_version(table(1), [Step(version=2, kind=kind, columns=(COLUMN,))])
    newest = new_version(newest, [Step(version=3, kind=StepKind.ADD_COLUMN)] * KEPT_STEPS)
    dooms = Vote.INCOMPATIBLE in {
        verdict(Step(version=2, kind=kind, columns=(COLUMN,)), u) for u in (WRITER, SERIALIZABLE)
    }
    assert (newest.forgotten is not None) == dooms


PAGE = Path(__file__).parents[2] / "docs" / "architecture" / "schemachange.md"
BEGIN, END = "<!-- votes, made by test_compatibility.py -->\n", "<!-- end of votes -->\n"


def votes(kind: StepKind, usage: Usage) -> str:
    """The verdict on a kind of step, and whose votes made it."""
    step = Step(version=2, kind=kind, columns=(COLUMN,))
    made = verdict(step, usage)
    who = [validator.__name__.replace("_", " ") for validator in VALIDATORS if validator(step, usage) is made]
    return f"{made.value}: {', '.join(who)}"


def test_the_table_of_the_documentation_is_what_the_validators_say() -> None:
    """To accept a change: UPDATE_GOLDEN=1, and read the diff."""
    heads = (
        "step",
        "the transaction wrote to the table",
        "it only read, or never touched it",
        "it is SERIALIZABLE, has read the column and writes elsewhere",
    )
    lines = [f"| {' | '.join(heads)} |", "|---|---|---|---|"]
    lines += [
        f"| {kind.value} | {votes(kind, WRITER)} | {votes(kind, READER)} | {votes(kind, SERIALIZABLE)} |"
        for kind in StepKind
    ]
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    wanted = "\n".join([before + BEGIN.rstrip(), *lines, END.rstrip() + "\n"]) + after
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(wanted)
    assert PAGE.read_text() == wanted
