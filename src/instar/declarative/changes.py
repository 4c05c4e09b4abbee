"""Changes: what a difference between two schemas consists of, as data. One change is one statement."""

from __future__ import annotations

from typing import Literal

import msgspec

from instar.declarative import model
from instar.schemachange.alteration import widens
from instar.types import Type

RelationKind = Literal["table", "view", "sequence"]


class RenameRelation(msgspec.Struct, frozen=True):
    kind: RelationKind
    old: str
    new: str


class RenameColumn(msgspec.Struct, frozen=True):
    table: str
    old: str
    new: str


class RenameElement(msgspec.Struct, frozen=True):
    """An index or constraint that is the same but for its name; `element` has the old one."""

    table: str
    element: model.Element
    new: str


class CreateTable(msgspec.Struct, frozen=True):
    """Of the elements those that belong into the statement; the others are added apart."""

    table: model.Table


class DropTable(msgspec.Struct, frozen=True):
    table: str


class AddColumn(msgspec.Struct, frozen=True):
    table: str
    column: model.Column


class DropColumn(msgspec.Struct, frozen=True):
    table: str
    column: str


class SetType(msgspec.Struct, frozen=True):
    table: str
    column: str
    old: Type
    new: Type


class SetDefault(msgspec.Struct, frozen=True):
    table: str
    column: str
    default: model.Default


class DropDefault(msgspec.Struct, frozen=True):
    table: str
    column: str


class SetNotNull(msgspec.Struct, frozen=True):
    table: str
    column: str


class DropNotNull(msgspec.Struct, frozen=True):
    table: str
    column: str


class AddIdentity(msgspec.Struct, frozen=True):
    table: str
    column: model.Column


class SetIdentity(msgspec.Struct, frozen=True):
    """ALWAYS in the place of BY DEFAULT, or the other way round."""

    table: str
    column: model.Column


class DropIdentity(msgspec.Struct, frozen=True):
    table: str
    column: str


class AddElement(msgspec.Struct, frozen=True):
    table: str
    element: model.Element


class DropElement(msgspec.Struct, frozen=True):
    table: str
    element: model.Element


class ValidateConstraint(msgspec.Struct, frozen=True):
    table: str
    constraint: str


class AddLock(msgspec.Struct, frozen=True):
    table: str
    lock: model.Lock


class AlterLock(msgspec.Struct, frozen=True):
    """The lock as it is to be: what it covers comes from other locks, what it covered no more goes to the default."""

    table: str
    lock: model.Lock


class DropLock(msgspec.Struct, frozen=True):
    table: str
    lock: str


class CreateSequence(msgspec.Struct, frozen=True):
    sequence: model.Sequence


class AlterSequence(msgspec.Struct, frozen=True):
    old: model.Sequence
    new: model.Sequence


class OwnSequence(msgspec.Struct, frozen=True):
    sequence: str
    owner: tuple[str, str]


class DisownSequence(msgspec.Struct, frozen=True):
    sequence: str


class DropSequence(msgspec.Struct, frozen=True):
    sequence: str


class CreateView(msgspec.Struct, frozen=True):
    """`replace`: its columns stay, so what reads it may stay too."""

    view: model.View
    replace: bool = False


class DropView(msgspec.Struct, frozen=True):
    view: str


Change = (
    RenameRelation | RenameColumn | RenameElement | CreateTable | DropTable | AddColumn | DropColumn | SetType
    | SetDefault | DropDefault | SetNotNull | DropNotNull | AddIdentity | SetIdentity | DropIdentity | AddElement
    | DropElement | ValidateConstraint | CreateSequence | AlterSequence | OwnSequence | DisownSequence | DropSequence
    | CreateView | DropView | AddLock | AlterLock | DropLock
)  # fmt: skip


def loss(change: Change) -> str:
    """What a change destroys that no change brings back; empty if nothing."""
    match change:
        case DropTable():
            return f'the rows of table "{change.table}"'
        case DropColumn():
            return f'the values of column "{change.column}" of table "{change.table}"'
        case SetType() if not widens(change.old, change.new):
            return f'what {change.new} cannot hold of column "{change.column}" of table "{change.table}"'
        case DropSequence():
            return f'the value of sequence "{change.sequence}"'
        case DropIdentity():
            return f'the value of the sequence of column "{change.column}" of table "{change.table}"'
    return ""
