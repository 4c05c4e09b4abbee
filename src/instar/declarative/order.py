"""In which order changes are safe: phases, each with the sentence that puts it where it stands."""

from __future__ import annotations

from typing import NamedTuple

from instar.declarative import changes as to
from instar.declarative import model
from instar.declarative.changes import Change

_Kind = type[Change] | tuple[type[Change], type[model.Element]]


class Phase(NamedTuple):
    """Changes that come together: kinds of changes, or of one kind those of one kind of element."""

    sentence: str
    kinds: tuple[_Kind, ...]


PHASES = (
    Phase("Renames go first: all that follows speaks of the new names.", (to.RenameRelation, to.RenameColumn)),
    Phase("A view goes before what it reads is dropped or altered.", (to.DropView,)),
    Phase("A foreign key goes before the keys and indexes that it needs.", ((to.DropElement, model.ForeignKey),)),
    Phase("A check goes before the type of its columns changes.", ((to.DropElement, model.Check),)),
    Phase("An index goes before its columns.", ((to.DropElement, model.Index),)),
    Phase("A primary key goes when no foreign key needs it.", ((to.DropElement, model.PrimaryKey),)),
    Phase("A default goes before the sequence that it takes values of.", (to.DropDefault,)),
    Phase("An expression goes before the columns that it reads.", (to.DropExpression, to.SetExpression)),
    Phase("A sequence that stays leaves its owner before that is dropped.", (to.DisownSequence,)),
    Phase("A table goes when nothing refers to it any more, and its name is free then.", (to.DropTable,)),
    Phase("What is the same but for its name takes its new one when that is free.",
          (to.RenameElement, to.RenameNotNull)),
    Phase("A sequence is there before the defaults that use it.", (to.CreateSequence, to.AlterSequence)),
    Phase("Tables come with their columns, keys and checks.", (to.CreateTable,)),
    Phase("A column is added before others go: a table has at least one.", (to.AddColumn,)),
    Phase("Types change while no view, dropped check or changed key depends on them.", (to.SetType,)),
    Phase("A constraint is replaced between the columns that come and those that go.",
          ((to.ReplaceElement, model.PrimaryKey), (to.ReplaceElement, model.Index), (to.ReplaceElement, model.Check))),
    Phase("A column goes when nothing uses it any more.", (to.DropColumn,)),
    Phase("A sequence goes when no default, view or column uses it.", (to.DropIdentity, to.DropSequence)),
    Phase("NULL is forbidden before a column becomes one of identity.", (to.SetNotNull,)),
    Phase("A column has its sequence before a default names that.", (to.AddIdentity, to.SetIdentity)),
    Phase("A default is of its column's new type.", (to.SetDefault,)),
    Phase("A sequence is owned by a column that is there.", (to.OwnSequence,)),
    Phase("NULL is allowed when no key or identity forbids it any more.", (to.DropNotNull,)),
    Phase("A primary key is of columns that have no NULL.", ((to.AddElement, model.PrimaryKey),)),
    Phase("Indexes are there before the foreign keys that borrow them.", ((to.AddElement, model.Index),)),
    Phase("Checks see the columns as they will be.", ((to.AddElement, model.Check),)),
    Phase("Views come when all that they read is there, those that others read first.", (to.CreateView,)),
    Phase("Foreign keys come behind all else that is new, so that the indexes they make take no name of others.",
          ((to.AddElement, model.ForeignKey), (to.ReplaceElement, model.ForeignKey))),
    Phase("A lock covers columns that are there, and takes them from others.", (to.AddLock, to.AlterLock)),
    Phase("A lock goes when others have taken its columns.", (to.DropLock,)),
    Phase("Options are of tables that are there.", (to.SetMigration, to.SetCompaction)),
    Phase("A constraint is validated when all that it may need is there.", (to.ValidateConstraint,)),
)  # fmt: skip

_NUMBERS = {kind: number for number, phase in enumerate(PHASES) for kind in phase.kinds}


def ordered(changes: list[Change]) -> list[Change]:
    """The changes by phase; within one they keep the order in which they were found."""
    return sorted(changes, key=phase_number)


def phase_number(change: Change) -> int:
    """The phase that a change belongs to."""
    if isinstance(change, to.AddElement | to.DropElement):
        return _NUMBERS[type(change), type(change.element)]
    if isinstance(change, to.ReplaceElement):
        return _NUMBERS[type(change), type(change.new)]
    return _NUMBERS[type(change)]
