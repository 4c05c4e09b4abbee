"""Which change has brought what a transaction learns of when it has written already."""

from __future__ import annotations

from typing import Protocol

import msgspec

from instar.catalog.descriptors import StepKind, Table


class Key(Protocol):
    """A key that a row may violate."""

    def detail(self, values: tuple[object, ...], /) -> str:
        """What is to be said of a row, or of its referenced values, that does."""
        ...


class Detail(msgspec.Struct, frozen=True, gc=False):
    """The detail of a violation of `element`, which is the `key` of `owner`, by a write to `written` meant under its
    version `since`: it names the change, too, if that has come since. Nothing is looked up before it is told."""

    key: Key
    values: tuple[object, ...]
    written: Table
    since: int
    owner: Table
    element: int

    def __call__(self) -> str:
        told = self.key.detail(self.values)
        change = "" if self.since == self.written.version else self._change()
        return f"{told} The change was: {change}" if change else told

    def _change(self) -> str:
        # Ids are those of the owner alone; but both tables of a foreign key get a version by each of its steps.
        own = (step for step in self.owner.steps if step.kind is StepKind.ELEMENT_STATE)
        statements = {step.statement for step in own if self.element in step.columns}
        later = (step.statement for step in self.written.steps if step.version > self.since)
        return next((statement for statement in later if statement in statements), "")


def come_since(table: Table, since: int) -> set[int]:
    """The elements of a table that are not as they were at its version `since`."""
    return {
        element
        for step in table.steps
        if step.version > since and step.kind is StepKind.ELEMENT_STATE
        for element in step.columns
    }
