"""A schema file: statements that make a schema, and comments that say what was renamed.

It is parsed by Instar's own parser and executed in a database in memory, so that what it means is what its statements
mean, and what is wrong with it is found before the live database is looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from instar import errors
from instar.database import Database
from instar.database.database import MEMORY
from instar.declarative import model
from instar.declarative.changes import RelationKind
from instar.declarative.reading import read_schema
from instar.declarative.renames import Hint
from instar.sql import statements as ast
from instar.sql.ddl import command, is_schema_change
from instar.sql.grammar.lexer import END, QUOTED, WORD, Token, tokenize
from instar.sql.not_null_statement import NotNull
from instar.sql.parser import parse_one, split
from instar.sql.transformation_statements import JoinTables, SplitTable

_HINT = re.compile(r"--[ \t]*instar:[ \t]*([^\n\r]*)")
_BLOCK = re.compile(r"/\*.*?\*/", re.DOTALL)
_RENAMED = re.compile(r"renamed[ \t]+from[ \t]+(.*?)[ \t]*\Z")


class SchemaFile(NamedTuple):
    """What a file says."""

    schema: model.Schema
    hints: tuple[Hint, ...]


class _Statement(NamedTuple):
    """A statement of the file and the 0-based character that it begins at."""

    parsed: ast.Ddl
    text: str
    start: int


def load(text: str) -> SchemaFile:
    """The schema that the text makes, and its hints.

    Errors have the position in the whole text: those of parsing and executing its statements, 0A000 for one that makes
    no schema, 42601 for a hint that cannot be understood or stands beside nothing that has a name.
    """
    statements = [_parsed(fragment.text, fragment.start) for fragment in split(text)]
    hints = tuple(_hints(text, statements))
    return SchemaFile(_executed(statements), hints)


def _parsed(text: str, start: int) -> _Statement:
    try:
        parsed = parse_one(text)
        if not is_schema_change(parsed) or not _makes(parsed):
            raise errors.unsupported(f"{_named(parsed, text)} in a schema file", position=1)
        if _yields(parsed):
            raise errors.unsupported("WITH (violation) in a schema file", position=1)
    except errors.Error as error:
        raise _placed(error, start) from None
    return _Statement(parsed, text, start)


def _makes(statement: ast.Ddl) -> bool:
    """Whether the statement makes part of a schema, or alters what another has made: nothing else is of use."""
    if isinstance(statement, ast.CreateTable):
        return statement.as_query is None
    if isinstance(statement, SplitTable | JoinTables):
        return False
    return command(statement).startswith(("CREATE", "ALTER"))


def _yields(statement: ast.Ddl) -> bool:
    """Whether a constraint is to give way while it is pending: that is about a change, and no part of a schema."""
    if isinstance(statement, ast.AlterTable):
        added = (action.constraint if isinstance(action, ast.AddConstraint) else action for action in statement.actions)
        return any(getattr(action, "yields", False) for action in added)
    return isinstance(statement, ast.CreateIndex) and statement.yields


def _named(statement: ast.Statement, text: str) -> str:
    if isinstance(statement, SplitTable | JoinTables):
        return f"{command(statement)} ... {'SPLIT' if isinstance(statement, SplitTable) else 'JOIN'}"
    if is_schema_change(statement):
        return command(statement)
    return "".join(text.split()[:1]).upper()


def _placed(error: errors.Error, start: int) -> errors.Error:
    error.position = start + (error.position or 1)
    return error


def _executed(statements: list[_Statement]) -> model.Schema:
    database = Database.open(MEMORY)
    try:
        session = database.session()
        not_valid: set[tuple[str, str]] = set()
        for statement in statements:
            asked = _adds_not_valid(statement.parsed)
            before = _constraints(database) if asked else set()
            try:
                session.run(statement.parsed, statement.text, ())
            except errors.Error as error:
                raise _placed(error, statement.start) from None
            if asked:
                not_valid |= _constraints(database) - before
        return _marked(_schema(database), not_valid)
    finally:
        database.release()


def _schema(database: Database) -> model.Schema:
    with database.store.read() as reader:
        return read_schema(database.catalog.at(reader))


# --- NOT VALID: in a table without rows every constraint is valid at once, and the words are forgotten ----------------


def _adds_not_valid(statement: ast.Ddl) -> bool:
    return isinstance(statement, ast.AlterTable) and any(
        isinstance(action, ast.AddConstraint)
        and isinstance(action.constraint, ast.Check | ast.ForeignKey | NotNull)
        and action.constraint.not_valid
        for action in statement.actions
    )


def _constraints(database: Database) -> set[tuple[str, str]]:
    tables = _schema(database).tables.values()
    named = {(table.name, element.name) for table in tables for element in table.elements}
    return named | {
        (table.name, column.not_null.name)
        for table in tables
        for column in table.columns
        if column.not_null is not None
    }


def _marked(schema: model.Schema, not_valid: set[tuple[str, str]]) -> model.Schema:
    tables = {
        name: msgspec.structs.replace(
            table,
            elements=tuple(
                msgspec.structs.replace(element, valid=False)
                if (name, element.name) in not_valid and isinstance(element, model.Check | model.ForeignKey)
                else element
                for element in table.elements
            ),
            columns=tuple(
                msgspec.structs.replace(
                    column, nullable=True, not_null=msgspec.structs.replace(column.not_null, valid=False)
                )
                if column.not_null is not None and (name, column.not_null.name) in not_valid
                else column
                for column in table.columns
            ),
        )
        for name, table in schema.tables.items()
    }
    return msgspec.structs.replace(schema, tables=tables)


# --- hints -----------------------------------------------------------------------------------------------------------


def _hints(text: str, statements: list[_Statement]) -> Iterator[Hint]:
    """A hint stands on the line above what it is about, or at the end of the line that this begins on."""
    tokens = tokenize(text)
    end = 0
    for number, token in enumerate(tokens):
        # Outside of tokens there is nothing but space and comments.
        gap = _BLOCK.sub(lambda found: " " * len(found.group()), text[end : token.start])
        for found in _HINT.finditer(gap):
            at = end + found.start()
            yield _hint(_old_name(found.group(1), at), _target(text, tokens, number, at), statements, at)
        end = token.end


def _old_name(words: str, at: int) -> str:
    found = _RENAMED.match(words)
    if found is not None:
        try:
            name, *rest = tokenize(found.group(1))
        except errors.Error as error:
            raise _placed(error, at) from None
        if name.kind in (WORD, QUOTED) and [token.kind for token in rest] == [END]:
            return name.value
    message = f'"{words.strip()}" is no hint'
    hint = "Hints are: -- instar: renamed from name"
    raise errors.error(errors.SYNTAX_ERROR, message, hint=hint, position=at + 1)


def _target(text: str, tokens: list[Token], following: int, at: int) -> tuple[int, int]:
    """Where what the hint is about begins, and where its line, or the hint on it, ends: the first token of the hint's
    own line, or else the next."""
    line = text.rfind("\n", 0, at) + 1
    same_line = [token for token in tokens[:following] if token.start >= line]
    if same_line:
        return same_line[0].start, at
    begin = tokens[following].start
    end = text.find("\n", begin)
    return begin, len(text) if end < 0 else end


def _hint(old: str, target: tuple[int, int], statements: list[_Statement], at: int) -> Hint:
    begin, end = target
    found = [named for named in _named_ones(statements, old) if begin <= named[0] < end]
    if not found or found[0][0] != begin:
        message = "a rename hint stands at no table, column, view or sequence"
        hint = (
            "It belongs on the line above, or at the end of the line with which the object or column begins. Indexes "
            "and constraints that are the same but for their names need none."
        )
        raise errors.error(errors.SYNTAX_ERROR, message, hint=hint, position=at + 1)
    (_begin, over, first), *others = found
    # Above a statement, and behind all of it, its columns are not meant.
    whole = first.kind != "column" and (at < begin or at >= over)
    for _begin, _over, other in others:
        if not (whole and other.kind == "column" and other.table == first.new):
            message = f'a rename hint may be about "{first.new}" or "{other.new}"'
            hint = "Give each a line of its own."
            raise errors.error(errors.SYNTAX_ERROR, message, hint=hint, position=at + 1)
    return first


def _named_ones(statements: list[_Statement], old: str) -> Iterator[tuple[int, int, Hint]]:
    """What a hint may be about, in the order of the file: where it begins, where its statement ends, and the hint."""
    for statement in statements:
        parsed, over = statement.parsed, statement.start + len(statement.text)
        kind = _KINDS.get(type(parsed))
        if kind is not None:
            assert isinstance(parsed, ast.CreateTable | ast.CreateView | ast.CreateSequence)
            yield statement.start, over, Hint(kind, parsed.name.name, old)
        if isinstance(parsed, ast.CreateTable):
            for column in parsed.columns:
                if column.position is not None:
                    yield (
                        statement.start + column.position - 1,
                        over,
                        Hint("column", column.name, old, parsed.name.name),
                    )


_KINDS: dict[type, RelationKind] = {
    ast.CreateTable: "table",
    ast.CreateView: "view",
    ast.CreateSequence: "sequence",
}
