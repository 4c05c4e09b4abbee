"""Which change has brought what a transaction learns of when it has written already."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from instar.catalog.descriptors import StepKind, Table

Detail = Callable[[], str]


def telling(detail: Detail, written: Table, since: int, owner: Table, element: int) -> Detail:
    """The detail of a violation of `element`, a key of `owner`, by a write to `written` meant under its version
    `since`: it names the change, too, if that has come since. Nothing is looked up before it is told."""
    return detail if since == written.version else partial(_told, detail, written, since, owner, element)


def come_since(table: Table, since: int) -> set[int]:
    """The elements of a table that are not as they were at its version `since`."""
    return {
        element
        for step in table.steps
        if step.version > since and step.kind is StepKind.ELEMENT_STATE
        for element in step.columns
    }


def _told(detail: Detail, written: Table, since: int, owner: Table, element: int) -> str:
    # Ids are those of the owner alone; but both tables of a foreign key get a version by each of its steps.
    steps = (step for step in owner.steps if step.kind is StepKind.ELEMENT_STATE and element in step.columns)
    statements = {step.statement for step in steps}
    change = next(
        (step.statement for step in written.steps if step.version > since and step.statement in statements), ""
    )
    return f"{detail()} The change was: {change}" if change else detail()
