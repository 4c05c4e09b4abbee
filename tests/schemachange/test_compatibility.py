from __future__ import annotations

import os
from pathlib import Path

import pytest

from instar import errors
from instar.catalog.descriptors import Step, StepKind
from instar.schemachange.compatibility import VALIDATORS, Usage, Vote, first_veto, require_compatible, verdict
from instar.schemachange.publishing import KEPT_STEPS
from schemachange.test_rules import table

WRITER, READER = Usage(wrote=True), Usage(wrote=False)
COLUMN = 7  # that the step is about
SERIALIZABLE = Usage(wrote=False, read=frozenset({1, COLUMN}))
VETOED = {
    StepKind.CHANGE_TYPE,
    StepKind.DROP_COLUMN,
    StepKind.UNDROP_COLUMN,
    StepKind.ADD_REQUIRED_COLUMN,
    StepKind.TRUNCATE,
    StepKind.DROP_TABLE,
}


@pytest.mark.parametrize("kind", list(StepKind))
def test_the_table_of_verdicts(kind: StepKind) -> None:
    step = Step(version=2, kind=kind, columns=(COLUMN,))
    assert (verdict(step, WRITER) is Vote.INCOMPATIBLE) == (kind in VETOED)
    assert verdict(step, READER) is Vote.COMPATIBLE
    gone = kind in {StepKind.DROP_COLUMN, StepKind.CHANGE_TYPE}
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


def test_steps_that_are_no_longer_listed_cannot_be_vouched_for() -> None:
    steps = tuple(Step(version=100 + i, kind=StepKind.ADD_COLUMN) for i in range(KEPT_STEPS))
    newest = table(100 + KEPT_STEPS - 1, steps=steps)
    require_compatible(newest, 100, WRITER)
    require_compatible(newest, 50, READER)
    require_compatible(newest, 50, Usage(wrote=False, read=frozenset({newest.columns[0].id})))
    with pytest.raises(errors.Error, match="too often"):
        require_compatible(newest, 50, Usage(wrote=False, read=frozenset({9_999})))
    with pytest.raises(errors.Error, match="too often"):
        require_compatible(newest, 99, WRITER)  # version 100 may have had more steps than are listed


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
