"""Changes: what a difference between two schemas consists of, as data. One change is one statement."""

from __future__ import annotations

from typing import Literal

import msgspec

from instar.catalog.descriptors import Migration
from instar.declarative import model
from instar.schemachange.alteration import widens
from instar.types import INTEGERS, Kind, Type

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
    """`name`: the one that it is given, if any. `valid` False: NOT VALID."""

    table: str
    column: str
    name: str | None = None
    valid: bool = True


class RenameNotNull(msgspec.Struct, frozen=True):
    table: str
    old: str
    new: str


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


class DropExpression(msgspec.Struct, frozen=True):
    table: str
    column: str


class SetExpression(msgspec.Struct, frozen=True):
    """Another expression of a generated column, or one of a column that had none. No statement does that yet; the plan
    says so."""

    table: str
    column: str
    expression: str


class AddElement(msgspec.Struct, frozen=True):
    table: str
    element: model.Element


class DropElement(msgspec.Struct, frozen=True):
    table: str
    element: model.Element


class ReplaceElement(msgspec.Struct, frozen=True):
    """A constraint in the place of one of its kind: both or neither, and one of them holds at any time."""

    table: str
    old: model.Element
    new: model.Element


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


class SetMigration(msgspec.Struct, frozen=True):
    table: str
    policy: Migration


class SetCompaction(msgspec.Struct, frozen=True):
    table: str
    share: float


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
    | SetDefault | DropDefault | SetNotNull | RenameNotNull | DropNotNull | AddIdentity | SetIdentity | DropIdentity
    | AddElement | DropElement | ReplaceElement | ValidateConstraint | CreateSequence | AlterSequence | OwnSequence
    | DisownSequence | DropSequence | CreateView | DropView | AddLock | AlterLock | DropLock | SetMigration
    | SetCompaction | DropExpression | SetExpression
)  # fmt: skip


def holds_all(old: Type, new: Type) -> bool:
    """Whether every value of `old` can be had back from what it is as one of `new`, whether or not a column of the one
    can be made one of the other."""
    if widens(old, new) or (new.kind is Kind.TEXT and new.length is None):
        return True
    if new.kind is Kind.VARCHAR:  # of what length a value is as text is known of few types
        longest = _LONGEST.get(old.kind)
        return new.length is None or (longest is not None and longest <= new.length)
    if old.kind in INTEGERS and new.kind is Kind.NUMERIC:
        return new.precision is None or new.precision - (new.scale or 0) >= _DIGITS[old.kind]
    if old.kind is Kind.NUMERIC and new.kind is Kind.NUMERIC and None not in (old.precision, new.precision):
        return _places(new)[0] >= _places(old)[0] and _places(new)[1] >= _places(old)[1]
    return (old.kind, new.kind) in _WIDER


def _places(numeric: Type) -> tuple[int, int]:
    """How many digits a numeric(p, s) has before and behind the point."""
    scale = numeric.scale or 0
    return (numeric.precision or 0) - scale, scale


_DIGITS = {Kind.SMALLINT: 5, Kind.INTEGER: 10, Kind.BIGINT: 19}
# The longest texts of a type; with a sign, where there is one.
_LONGEST = {Kind.BOOLEAN: 5, Kind.SMALLINT: 6, Kind.INTEGER: 11, Kind.BIGINT: 20, Kind.UUID: 36}
_WIDER = {
    (Kind.SMALLINT, Kind.REAL), (Kind.SMALLINT, Kind.DOUBLE), (Kind.INTEGER, Kind.DOUBLE),
    (Kind.DATE, Kind.TIMESTAMP), (Kind.BOOLEAN, Kind.INTEGER),
}  # fmt: skip


def loss(change: Change) -> str:
    """What a change destroys that no change brings back; empty if nothing."""
    match change:
        case DropTable():
            return f'the rows of table "{change.table}"'
        case DropColumn():
            return f'the values of column "{change.column}" of table "{change.table}"'
        case SetType() if not holds_all(change.old, change.new):
            return f'what {change.new} cannot hold of column "{change.column}" of table "{change.table}"'
        case DropSequence():
            return f'the value of sequence "{change.sequence}"'
        case DropIdentity():
            return f'the value of the sequence of column "{change.column}" of table "{change.table}"'
    return ""
