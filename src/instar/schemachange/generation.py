"""Generated columns: GENERATED ALWAYS AS (expression) STORED, and what others may not do because of them.

Rows that were written without the column have what its expression gives for them: whoever reads such a row computes it
(tables/derivations.py), which is the same at any time, since the expression reads nothing but the row. So no row is
rewritten when a column is added; a job sees that the expression fails for none of them, behind the fence from which on
whoever writes a row computes it. From then on the column is in the row like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from instar import errors
from instar.catalog.descriptors import Column, Derivation, State, StepKind, Table
from instar.schemachange import wanted as want
from instar.schemachange.draft import Draft


def generate(draft: Draft, table_id: int, new: Mapping[int, want.NewColumn]) -> None:
    """Give those of these columns of the table, by their ids, that are generated their expressions."""
    table = draft.table(table_id)
    derived = {number: _derivation(draft, table, one) for number, one in new.items() if one.generated is not None}
    if derived:
        columns = tuple(
            msgspec.structs.replace(column, derived=derived[column.id]) if column.id in derived else column
            for column in table.columns
        )
        draft.edit(table_id, columns=columns)


def _derivation(draft: Draft, table: Table, new: want.NewColumn) -> Derivation:
    """0A000 if it would read a column whose values the same statement gives to rows one by one: they are not there when
    a reader has need of them."""
    assert new.generated is not None  # the caller's choice
    frozen = new.generated(draft.shown(table))
    if not draft.has_no_rows(table) and draft.read(table, frozen.columns):
        raise errors.unsupported(
            f'adding generated column "{new.name}" in one statement with a column that it reads and that has another '
            "value in each row"
        )
    sources = tuple(
        msgspec.structs.replace(column, state=State.PUBLIC) for column in table.columns if column.id in frozen.columns
    )
    # It reads neither time nor session.
    return Derivation(expression=frozen.text, type=new.type, sources=sources, now=0, zone="UTC")


def reading(table: Table, column: int) -> Iterator[Column]:
    """The generated columns that are made of a column of the table."""
    for found in table.columns:
        if found.generated and found.derived is not None and any(part.id == column for part in found.derived.sources):
            yield found


def require_own_type(table: Table, column: Column) -> None:
    """0A000 if the type of a column cannot change because one is generated: itself, or another that is made of it."""
    if column.generated:
        raise errors.unsupported(f'changing the type of generated column "{column.name}"')
    for found in reading(table, column.id):
        raise errors.error(
            errors.FEATURE_NOT_SUPPORTED,
            "cannot alter type of a column used by a generated column",
            detail=f'Column "{column.name}" is used by generated column "{found.name}".',
        )


def require_actions(columns: Iterable[Column], wanted: want.ForeignKey) -> None:
    """42601 for what a foreign key cannot do to a generated column."""
    if not any(column.generated for column in columns):
        return
    for event, action, refused in (
        ("ON UPDATE", wanted.on_update, ("cascade", "set null", "set default")),
        ("ON DELETE", wanted.on_delete, ("set null", "set default")),
    ):
        if action in refused:
            message = f"invalid {event} action for foreign key constraint containing generated column"
            raise errors.error(errors.SYNTAX_ERROR, message)


def drop_expression(draft: Draft, wanted: want.DropExpression) -> None:
    """DROP EXPRESSION: the column keeps its values, and is set like any other. One direct step, which nobody crosses
    who wrote to the table: he has set it to what the expression gave."""
    table = draft.find(Table, wanted.table)
    column = draft.column(table, wanted.column)
    if not column.generated:
        raise errors.error(errors.OBJECT_NOT_READY, not_generated(table.name, column.name))
    plain = msgspec.structs.replace(column, generated=False)
    columns = tuple(plain if found.id == column.id else found for found in table.columns)
    draft.edit(table.id, (StepKind.DROP_EXPRESSION, (column.id,)), columns=columns)


def not_generated(table: str, column: str) -> str:
    """What is said where a generated column is wanted."""
    return f'column "{column}" of relation "{table}" is not a stored generated column'
