"""NOT NULL as CREATE TABLE writes it: at a column, or as a constraint of the table's, which becomes its column's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from instar import errors
from instar.sql import statements as ast
from instar.sql.not_null_statement import NotNull


def with_not_nulls(
    table: ast.Name, columns: Sequence[ast.ColumnDef], constraints: Sequence[ast.Constraint]
) -> tuple[list[ast.ColumnDef], list[ast.Constraint]]:
    """The columns with those NOT NULLs that are among the constraints, and the other constraints."""
    made = list(columns)
    for found in constraints:
        if isinstance(found, NotNull):
            place = next((place for place, column in enumerate(made) if column.name == found.column), None)
            if place is None:
                message = f'column "{found.column}" of relation "{table.name}" does not exist'
                raise errors.error(errors.UNDEFINED_COLUMN, message, position=table.position)
            name = one_name(made[place].not_null_name, found.name, table.position)
            made[place] = replace(made[place], nullable=False, not_null_name=name)
    return made, [found for found in constraints if not isinstance(found, NotNull)]


def one_name(before: str | None, name: str | None, position: int | None) -> str | None:
    """The name of a NOT NULL that is written twice; 42601 if it has two."""
    if before is not None and name is not None and before != name:
        message = f'conflicting not-null constraint names "{before}" and "{name}"'
        raise errors.error(errors.SYNTAX_ERROR, message, position=position)
    return before or name


def conflicting_null(column: str, position: int) -> errors.Error:
    """The error that a column is to be both."""
    message = f'conflicting NULL/NOT NULL declarations for column "{column}"'
    return errors.error(errors.SYNTAX_ERROR, message, position=position)
