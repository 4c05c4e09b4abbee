"""Compatibility of a transaction with the steps that came between what it meant (I) and what it commits under (e).

Small validators vote on each direct step, by kind of step and by what the transaction did with the table (IEP-110);
one veto means 40001 naming the step. Steps of paths need no vote, since writes are derived anew under e.

IEP-110 vetoes two kinds of step that are compatible here. RENAME TABLE: transactions name tables by id (rule 25).
SET and DROP DEFAULT: a default is evaluated by the statement, under the statement's own snapshot, so what it wrote has
the same meaning under the new default; no reader can tell it from a row that was written before the change.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable

import msgspec

from instar import errors
from instar.catalog.descriptors import Step, StepKind, Table


class Vote(enum.Enum):
    """What a validator says of one step."""

    COMPATIBLE = "compatible"
    INCOMPATIBLE = "incompatible"
    DONT_CARE = "don't care"


class Usage(msgspec.Struct, frozen=True):
    """What the transaction did with one table. `columns`: those it set (None: whole rows were inserted or deleted);
    `read`: those that it has read, if it is SERIALIZABLE and writes, to whatever table."""

    wrote: bool
    columns: frozenset[int] | None = None
    read: frozenset[int] = frozenset()


Validator = Callable[[Step, Usage], Vote]

# Forward compatible whatever the transaction did: a row of the older version reads the same under the newer one.
FORWARD_COMPATIBLE = frozenset(
    {
        StepKind.CREATE_TABLE,
        StepKind.ADD_COLUMN,
        StepKind.RENAME_COLUMN,
        StepKind.MOVE_COLUMN,
        StepKind.RENAME_TABLE,
        StepKind.RENAME_INDEX,
        StepKind.RENAME_CONSTRAINT,
        StepKind.SET_DEFAULT,
        StepKind.DROP_DEFAULT,
        StepKind.DROP_NOT_NULL,
        StepKind.WIDEN_TYPE,
        StepKind.CHANGE_TYPE_TO_TEXT,
        StepKind.COMPACT,
        StepKind.SET_MIGRATION,
        StepKind.UNDROP_TABLE,
    }
)


def forward_compatible(step: Step, usage: Usage) -> Vote:
    """Steps after which what was written still says the same."""
    return Vote.COMPATIBLE if step.kind in FORWARD_COMPATIBLE else Vote.DONT_CARE


def derived_anew(step: Step, usage: Usage) -> Vote:
    """Steps of paths: entries, checks and probes are made under e, whatever the statement saw."""
    return Vote.COMPATIBLE if step.kind is StepKind.ELEMENT_STATE else Vote.DONT_CARE


def readers_only(step: Step, usage: Usage) -> Vote:
    """A snapshot reads what it always read; only writes can lose their meaning."""
    return Vote.DONT_CARE if usage.wrote else Vote.COMPATIBLE


def read_column(step: Step, usage: Usage) -> Vote:
    """SERIALIZABLE transactions come in the order of their commits: whoever commits after a change, and so after those
    that have seen it, can have read no column that was gone by then, nor one that was still generated, which is told by
    other locks. (To put him before the change is no way out: one
    that has seen it may have read, before he committed, what he writes.)"""
    gone = step.kind in {StepKind.DROP_COLUMN, StepKind.CHANGE_TYPE, StepKind.DROP_EXPRESSION}
    return Vote.INCOMPATIBLE if gone and not usage.read.isdisjoint(step.columns) else Vote.DONT_CARE


def dropped_column(step: Step, usage: Usage) -> Vote:
    """A row written with the column would be read with less in it than the writer put there (IEP-110, point 2)."""
    return Vote.INCOMPATIBLE if step.kind is StepKind.DROP_COLUMN and usage.wrote else Vote.DONT_CARE


def rows_without_value(step: Step, usage: Usage) -> Vote:
    """A new row from before has no value for a column that must have one, or that may have come back with one."""
    without = step.kind in {StepKind.ADD_REQUIRED_COLUMN, StepKind.UNDROP_COLUMN}
    return Vote.INCOMPATIBLE if without and usage.wrote else Vote.DONT_CARE


def other_type(step: Step, usage: Usage) -> Vote:
    """What was written, and what it was decided by, may be nothing of the new type (IEP-110)."""
    return Vote.INCOMPATIBLE if step.kind is StepKind.CHANGE_TYPE and usage.wrote else Vote.DONT_CARE


def dropped_expression(step: Step, usage: Usage) -> Vote:
    """What was written has the expression's value in a column that others may have set since."""
    return Vote.INCOMPATIBLE if step.kind is StepKind.DROP_EXPRESSION and usage.wrote else Vote.DONT_CARE


def vanished_rows(step: Step, usage: Usage) -> Vote:
    """The rows or the table that the writes were made on are gone."""
    gone = step.kind in {StepKind.TRUNCATE, StepKind.DROP_TABLE}
    return Vote.INCOMPATIBLE if gone and usage.wrote else Vote.DONT_CARE


VALIDATORS: tuple[Validator, ...] = (
    forward_compatible, derived_anew, readers_only, read_column, dropped_column, rows_without_value, other_type,
    dropped_expression, vanished_rows,
)  # fmt: skip


def verdict(step: Step, usage: Usage) -> Vote:
    """One veto decides; a step that nobody calls compatible is not."""
    votes = {validator(step, usage) for validator in VALIDATORS}
    if Vote.INCOMPATIBLE in votes or Vote.COMPATIBLE not in votes:
        return Vote.INCOMPATIBLE
    return Vote.COMPATIBLE


def first_veto(steps: Iterable[Step], usage: Usage) -> Step | None:
    """The first step that the transaction cannot cross, or None."""
    return next((step for step in steps if verdict(step, usage) is Vote.INCOMPATIBLE), None)


def require_compatible(table: Table, version: int, usage: Usage) -> None:
    """40001 naming the change if what was done under `version` of the table (I) has no meaning under `table` (e)."""
    veto = first_veto((step for step in table.steps if step.version > version), usage)
    if veto is None:
        veto = _forgotten_veto(table, version, usage)
    if veto is not None:
        raise errors.error(
            errors.SERIALIZATION_FAILURE,
            f'table "{table.name}" was changed by a concurrent {veto.kind.value}',
            detail=f"The change was: {veto.statement}" if veto.statement else None,
            hint="Retry the transaction.",
        )


def _forgotten_veto(table: Table, version: int, usage: Usage) -> Step | None:
    """The last incompatible step after `version` that is not listed any more, if it, or one before it, ends the
    transaction: if that wrote, or has read a column that is gone."""
    step = table.forgotten
    if step is None or step.version <= version:
        return None
    gone = not usage.read <= {column.id for column in table.columns}
    return step if usage.wrote or gone else None
