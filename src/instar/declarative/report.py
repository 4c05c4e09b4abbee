"""A plan for people, as a script of SQL with comments, and for programs, as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator

from instar import errors
from instar.declarative.planning import Plan, Step
from instar.schemachange.explain import Row
from instar.schemachange.job_records import Problem


def as_script(plan: Plan) -> str:
    """Each statement below what is to be known of it: what it destroys, why it cannot be done, and its stages."""
    if not plan.steps:
        return "-- The database has this schema already.\n"
    count = len(plan.steps)
    blocks = ["\n".join([*_heading(step, number, count), f"{step.statement};"]) for number, step in _numbered(plan)]
    return "\n\n".join(blocks) + "\n"


def _numbered(plan: Plan) -> Iterator[tuple[int, Step]]:
    return enumerate(plan.steps, 1)


def _heading(step: Step, number: int, count: int) -> Iterator[str]:
    yield f"-- {number} of {count}"
    if step.loses:
        yield f"-- DESTRUCTIVE: {step.loses}"
    if step.problem is not None:
        yield from _problem(step.problem)
    for row in step.stages:
        yield f"-- stage {_stage(row)}"


def _problem(problem: Problem) -> Iterator[str]:
    word = "NOT SUPPORTED" if problem.sqlstate == errors.FEATURE_NOT_SUPPORTED else "FAILS"
    lines = [f"{word}: {problem.sqlstate}: {problem.message}"]
    lines += [f"{label}: {text}" for label, text in (("DETAIL", problem.detail), ("HINT", problem.hint)) if text]
    for line in "\n".join(lines).splitlines():
        yield f"-- {line}"


def _stage(row: Row) -> str:
    parts = [f"{row.stage}: {row.change}"]
    if row.version:
        parts.append(f"version {row.version}")
    if row.floor:
        parts.append(f"floor {row.floor}")
    if row.work:
        parts.append(row.work)
    if row.revertible == "yes":
        parts.append("revertible")
    if row.waits_for:
        parts.append(f"waits for {row.waits_for}")
    return ", ".join(parts)


def as_json(plan: Plan) -> str:
    """One object: "steps", and whether they are all "possible" and any "destructive"."""
    document = {
        "steps": [_step(step) for step in plan.steps],
        "possible": not plan.problems,
        "destructive": bool(plan.destructive),
    }
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def _step(step: Step) -> dict[str, object]:
    problem = step.problem
    return {
        "statement": step.statement,
        "destroys": step.loses or None,
        "error": None
        if problem is None
        else {
            "sqlstate": problem.sqlstate,
            "message": problem.message,
            "detail": problem.detail,
            "hint": problem.hint,
        },
        "stages": [row._asdict() for row in step.stages],
    }
