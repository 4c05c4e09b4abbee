"""Which change has brought a constraint that a transaction learns of at its commit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from instar.catalog.descriptors import StepKind, Table

Detail = Callable[[], str]


def telling(detail: Detail, written: Table, meant: Table | None, owner: Table, element: int) -> Detail:
    """The detail of a violation of `element`, a key of `owner`, by a write to `written` meant under the version
    `meant` (None: under this one): it names the change, too, if that has come since. Nothing is looked up before it is
    told."""
    return detail if meant is None else partial(_told, detail, written, meant.version, owner, element)


def _told(detail: Detail, written: Table, since: int, owner: Table, element: int) -> str:
    # Ids are those of the owner alone; but both tables of a foreign key get a version by each of its steps.
    steps = (step for step in owner.steps if step.kind is StepKind.ELEMENT_STATE and element in step.columns)
    statements = {step.statement for step in steps}
    change = next(
        (step.statement for step in written.steps if step.version > since and step.statement in statements), ""
    )
    return f"{detail()} The change was: {change}" if change else detail()
