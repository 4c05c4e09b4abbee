"""What a schema says, by names: the form in which two databases are compared, and from which SQL is written.

Expressions are in their bound form, thawed under today's names, so that it does not matter how they were written.
"""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec

from instar.catalog.descriptors import COMPACTION_SHARE, Action, Migration
from instar.types import Type


class Sequence(msgspec.Struct, frozen=True, kw_only=True):
    """A sequence. `owned_by`: (table, column); of an identity column's sequence it goes without saying (None)."""

    name: str
    type: Type
    start: int
    increment: int
    minimum: int
    maximum: int
    cycle: bool
    cache: int
    owned_by: tuple[str, str] | None = None


class Default(msgspec.Struct, frozen=True):
    """A DEFAULT, and the sequences that it takes values of. Serial is the default `nextval` of an owned sequence."""

    text: str
    sequences: tuple[str, ...] = ()


class Identity(msgspec.Struct, frozen=True):
    kind: Literal["always", "by default"]
    sequence: Sequence


class NotNull(msgspec.Struct, frozen=True):
    """A NOT NULL. `given`: it bears a name of its own, and not the one that is generated. `valid` as of a check."""

    name: str
    given: bool = False
    valid: bool = True


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """`nullable`: rows may have NULL, as they may under a `not_null` that is not valid."""

    name: str
    type: Type
    nullable: bool
    default: Default | None = None
    identity: Identity | None = None
    not_null: NotNull | None = None
    generated: str | None = None  # the expression of a generated column


class PrimaryKey(msgspec.Struct, frozen=True):
    name: str
    columns: tuple[str, ...]


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """An index, or a UNIQUE constraint; `columns` are (name, descending)."""

    name: str
    columns: tuple[tuple[str, bool], ...]
    unique: bool
    constraint: bool


class Check(msgspec.Struct, frozen=True):
    """`valid` False: NOT VALID, which rows that were there before it need not fulfil."""

    name: str
    expression: str
    valid: bool = True


class ForeignKey(msgspec.Struct, frozen=True, kw_only=True):
    """`valid` as of a check. `needs`: the indexes and keys of either table that it borrows, as (table, name)."""

    name: str
    columns: tuple[str, ...]
    parent: str
    parent_columns: tuple[str, ...]
    on_delete: Action
    on_update: Action
    valid: bool = True
    needs: tuple[tuple[str, str], ...] = ()


Element = PrimaryKey | Index | Check | ForeignKey
AnyElement = TypeVar("AnyElement", PrimaryKey, Index, Check, ForeignKey)


class Lock(msgspec.Struct, frozen=True):
    """An optimistic lock, with the columns that it covers in the table's order."""

    name: str
    columns: tuple[str, ...]


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table; `elements` by kind, then by name, `locks` by name, the default lock not among them."""

    name: str
    columns: tuple[Column, ...]
    elements: tuple[Element, ...] = ()
    locks: tuple[Lock, ...] = ()
    migration: Migration = "write"
    compaction_share: float = COMPACTION_SHARE

    def column(self, name: str) -> Column | None:
        return next((column for column in self.columns if column.name == name), None)


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A view. `meaning`: its query with aliases numbered, for comparison; `reads`: (relation, columns of it). `kept`:
    it stands for a table that was joined or split; no statement makes such a view, so it is not compared."""

    name: str
    columns: tuple[tuple[str, Type], ...]
    query: str
    meaning: str
    reads: tuple[tuple[str, tuple[str, ...]], ...]
    kept: bool = False


class Schema(msgspec.Struct, frozen=True):
    """All that a database has, by name, in the order of names. `sequences` are those of no identity column."""

    tables: dict[str, Table] = {}
    sequences: dict[str, Sequence] = {}
    views: dict[str, View] = {}


def same(one: Element, other: Element) -> bool:
    """Whether two elements are the same but for their names, what they borrow, and whether they have been validated."""
    return type(one) is type(other) and _meaning(one) == _meaning(other)


def _meaning(element: Element) -> Element:
    match element:
        case ForeignKey():
            return msgspec.structs.replace(element, name="", valid=True, needs=())
        case Check():
            return msgspec.structs.replace(element, name="", valid=True)
    return msgspec.structs.replace(element, name="")


def is_constraint(element: Element) -> bool:
    """Whether ALTER TABLE adds and drops it; what is none is an index."""
    return not isinstance(element, Index) or element.constraint


def is_valid(element: Element) -> bool:
    """Whether all rows are known to fulfil it."""
    return not isinstance(element, Check | ForeignKey) or element.valid


def same_view(one: View, other: View) -> bool:
    """Whether two views give the same columns by the same query."""
    return one.columns == other.columns and one.meaning == other.meaning
