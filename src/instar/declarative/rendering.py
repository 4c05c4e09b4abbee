"""Changes as statements of SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from instar.declarative import changes as to
from instar.declarative import model
from instar.declarative.changes import Change
from instar.sql.binder.deparse import quote_identifier as quoted
from instar.types import BIGINT, INTEGER_RANGES, Type


def render(change: Change) -> str:
    """The statement, without its semicolon."""
    return _WRITERS[type(change)](change)


def _list(names: Iterable[str]) -> str:
    return f"({', '.join(map(quoted, names))})"


def _alter(table: str, action: str) -> str:
    return f"ALTER TABLE {quoted(table)} {action}"


def _alter_column(table: str, column: str, action: str) -> str:
    return _alter(table, f"ALTER COLUMN {quoted(column)} {action}")


# --- tables ----------------------------------------------------------------------------------------------------------


def _create_table(change: to.CreateTable) -> str:
    table = change.table
    lines = [*map(column_definition, table.columns), *map(constraint_definition, table.elements)]
    body = ",".join(f"\n    {line}" for line in lines)
    return f"CREATE TABLE {quoted(table.name)} ({body}\n)"


def column_definition(column: model.Column) -> str:
    """As in CREATE TABLE and ADD COLUMN."""
    text = f"{quoted(column.name)} {column.type}"
    named = ""
    if column.not_null is not None and column.not_null.given:
        named = f" CONSTRAINT {quoted(column.not_null.name)}"
    if column.identity is not None:
        text += f" {_identity(column.identity, column.type)}"
        return f"{text}{named} NOT NULL" if named else text
    if column.default is not None:
        text += f" DEFAULT {column.default.text}"
    if column.generated is not None:
        text += f" GENERATED ALWAYS AS ({column.generated}) STORED"
    return text if column.nullable else f"{text}{named} NOT NULL"


def _identity(identity: model.Identity, type_: Type) -> str:
    options = _options(identity.sequence, type_)
    return f"GENERATED {identity.kind.upper()} AS IDENTITY{f' ({options})' if options else ''}"


def constraint_definition(element: model.Element) -> str:
    """A constraint as CREATE TABLE and ADD write it."""
    match element:
        case model.PrimaryKey():
            what = f"PRIMARY KEY {_list(element.columns)}"
        case model.Index():
            what = f"UNIQUE {_list(name for name, _ in element.columns)}"
        case model.Check():
            what = f"CHECK ({element.expression})"
        case model.ForeignKey():
            what = f"FOREIGN KEY {_list(element.columns)} REFERENCES {quoted(element.parent)} "
            what += _list(element.parent_columns)
            if element.on_delete != "no action":
                what += f" ON DELETE {element.on_delete.upper()}"
            if element.on_update != "no action":
                what += f" ON UPDATE {element.on_update.upper()}"
    return f"CONSTRAINT {quoted(element.name)} {what}"


def _add_element(change: to.AddElement) -> str:
    element = change.element
    if isinstance(element, model.Index) and not element.constraint:
        unique = "UNIQUE " if element.unique else ""
        columns = ", ".join(quoted(name) + (" DESC" if descending else "") for name, descending in element.columns)
        return f"CREATE {unique}INDEX {quoted(element.name)} ON {quoted(change.table)} ({columns})"
    not_valid = "" if model.is_valid(element) else " NOT VALID"
    return _alter(change.table, f"ADD {constraint_definition(element)}{not_valid}")


def _drop_element(change: to.DropElement) -> str:
    if model.is_constraint(change.element):
        return _alter(change.table, f"DROP CONSTRAINT {quoted(change.element.name)}")
    return f"DROP INDEX {quoted(change.element.name)}"


def _set_not_null(change: to.SetNotNull) -> str:
    if change.name is None and change.valid:
        return _alter_column(change.table, change.column, "SET NOT NULL")
    named = "" if change.name is None else f"CONSTRAINT {quoted(change.name)} "
    not_valid = "" if change.valid else " NOT VALID"
    return _alter(change.table, f"ADD {named}NOT NULL {quoted(change.column)}{not_valid}")


def _replace_element(change: to.ReplaceElement) -> str:
    not_valid = "" if model.is_valid(change.new) else " NOT VALID"
    added = f"ADD {constraint_definition(change.new)}{not_valid}"
    return _alter(change.table, f"DROP CONSTRAINT {quoted(change.old.name)}, {added}")


def _rename_element(change: to.RenameElement) -> str:
    old, new = quoted(change.element.name), quoted(change.new)
    if model.is_constraint(change.element):
        return _alter(change.table, f"RENAME CONSTRAINT {old} TO {new}")
    return f"ALTER INDEX {old} RENAME TO {new}"


def _add_identity(change: to.AddIdentity) -> str:
    column = change.column
    assert column.identity is not None
    return _alter_column(change.table, column.name, f"ADD {_identity(column.identity, column.type)}")


def _set_identity(change: to.SetIdentity) -> str:
    assert change.column.identity is not None
    return _alter_column(change.table, change.column.name, f"SET GENERATED {change.column.identity.kind.upper()}")


# --- sequences and views ---------------------------------------------------------------------------------------------


def _options(sequence: model.Sequence, usual: Type) -> str:
    """The options that are not what they would be anyway; `usual` is the type that goes without saying."""
    found = [] if sequence.type == usual else [f"AS {sequence.type}"]
    low, high = INTEGER_RANGES[sequence.type.kind]
    rising = sequence.increment > 0
    first = sequence.minimum if rising else sequence.maximum
    values = (
        ("INCREMENT BY", sequence.increment, 1),
        ("MINVALUE", sequence.minimum, 1 if rising else low),
        ("MAXVALUE", sequence.maximum, high if rising else -1),
        ("START WITH", sequence.start, first),
        ("CACHE", sequence.cache, 1),
    )
    found += [f"{word} {value}" for word, value, otherwise in values if value != otherwise]
    return " ".join([*found, "CYCLE"] if sequence.cycle else found)


def _create_sequence(change: to.CreateSequence) -> str:
    sequence = change.sequence
    options = _options(sequence, BIGINT)
    return f"CREATE SEQUENCE {quoted(sequence.name)}{f' {options}' if options else ''}"


def _alter_sequence(change: to.AlterSequence) -> str:
    """Another type takes the bounds along, so that they are said with it."""
    old, new = change.old, change.new
    retyped = old.type != new.type
    found = [f"AS {new.type}"] if retyped else []
    values = (
        ("INCREMENT BY", old.increment, new.increment, False),
        ("MINVALUE", old.minimum, new.minimum, retyped),
        ("MAXVALUE", old.maximum, new.maximum, retyped),
        ("START WITH", old.start, new.start, False),
        ("CACHE", old.cache, new.cache, False),
    )
    found += [f"{word} {value}" for word, before, value, said in values if said or value != before]
    if old.cycle != new.cycle:
        found.append("CYCLE" if new.cycle else "NO CYCLE")
    return f"ALTER SEQUENCE {quoted(new.name)} {' '.join(found)}"


def _create_view(change: to.CreateView) -> str:
    view = change.view
    replace = "OR REPLACE " if change.replace else ""
    told = "-- Writable where the dump was made: it stands for a table that was joined or split.\n" if view.kept else ""
    columns = _list(name for name, _ in view.columns)
    return f"{told}CREATE {replace}VIEW {quoted(view.name)} {columns} AS\n    {view.query}"


def _place(owner: tuple[str, str]) -> str:
    return ".".join(map(quoted, owner))


_WRITERS: dict[type, Callable[[Any], str]] = {
    to.RenameRelation: lambda c: f"ALTER {c.kind.upper()} {quoted(c.old)} RENAME TO {quoted(c.new)}",
    to.RenameColumn: lambda c: _alter(c.table, f"RENAME COLUMN {quoted(c.old)} TO {quoted(c.new)}"),
    to.RenameElement: _rename_element,
    to.CreateTable: _create_table,
    to.DropTable: lambda c: f"DROP TABLE {quoted(c.table)}",
    to.AddColumn: lambda c: _alter(c.table, f"ADD COLUMN {column_definition(c.column)}"),
    to.DropColumn: lambda c: _alter(c.table, f"DROP COLUMN {quoted(c.column)}"),
    to.SetType: lambda c: _alter_column(c.table, c.column, f"TYPE {c.new}"),
    to.SetDefault: lambda c: _alter_column(c.table, c.column, f"SET DEFAULT {c.default.text}"),
    to.DropDefault: lambda c: _alter_column(c.table, c.column, "DROP DEFAULT"),
    to.SetNotNull: _set_not_null,
    to.RenameNotNull: lambda c: _alter(c.table, f"RENAME CONSTRAINT {quoted(c.old)} TO {quoted(c.new)}"),
    to.DropNotNull: lambda c: _alter_column(c.table, c.column, "DROP NOT NULL"),
    to.AddIdentity: _add_identity,
    to.SetIdentity: _set_identity,
    to.DropExpression: lambda c: _alter_column(c.table, c.column, "DROP EXPRESSION"),
    to.SetExpression: lambda c: _alter_column(c.table, c.column, f"SET EXPRESSION AS ({c.expression})"),
    to.DropIdentity: lambda c: _alter_column(c.table, c.column, "DROP IDENTITY"),
    to.AddElement: _add_element,
    to.DropElement: _drop_element,
    to.ReplaceElement: _replace_element,
    to.ValidateConstraint: lambda c: _alter(c.table, f"VALIDATE CONSTRAINT {quoted(c.constraint)}"),
    to.AddLock: lambda c: _alter(c.table, f"ADD LOCK {quoted(c.lock.name)} COVERS {_list(c.lock.columns)}"),
    to.AlterLock: lambda c: _alter(c.table, f"ALTER LOCK {quoted(c.lock.name)} COVERS {_list(c.lock.columns)}"),
    to.DropLock: lambda c: _alter(c.table, f"DROP LOCK {quoted(c.lock)}"),
    to.SetMigration: lambda c: _alter(c.table, f"SET (migration = '{c.policy}')"),
    to.SetCompaction: lambda c: _alter(c.table, f"SET (compaction_share = {c.share})"),
    to.CreateSequence: _create_sequence,
    to.AlterSequence: _alter_sequence,
    to.OwnSequence: lambda c: f"ALTER SEQUENCE {quoted(c.sequence)} OWNED BY {_place(c.owner)}",
    to.DisownSequence: lambda c: f"ALTER SEQUENCE {quoted(c.sequence)} OWNED BY NONE",
    to.DropSequence: lambda c: f"DROP SEQUENCE {quoted(c.sequence)}",
    to.CreateView: _create_view,
    to.DropView: lambda c: f"DROP VIEW {quoted(c.view)}",
}
