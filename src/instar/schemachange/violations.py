"""Changes that give way: a pending constraint that yields to writes is not published if its flag is set (thesis §3.3).

The flag is looked at in the commit that would publish the constraint, as a precondition, so that of a write that
violates it and of the change whoever commits first wins. It is also looked at while the change is under way, so that
one which is bound to fail does not go on for long.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Table
from instar.schemachange.elements import Element, ElementKind, Phase, name_of, yielding
from instar.schemachange.stages import Move, Superseded
from instar.schemachange.validate import CompileCheck, judge_of
from instar.store.engine import Commit, Reader, ValueUnchanged
from instar.tables.pending import Violation, violation_at, violation_key

_CONSTRAINTS = frozenset({ElementKind.INDEX, ElementKind.CHECK, ElementKind.FOREIGN_KEY, ElementKind.NOT_NULL})


def require_unviolated(
    reader: Reader, catalog: CatalogSnapshot, elements: Collection[Element], compile_check: CompileCheck
) -> None:
    """The error of the constraint that is violated (23514, 23502, 23505, 23503) if one of the elements has its flag
    set."""
    for element in elements:
        if element.kind in _CONSTRAINTS:
            found = violation_at(reader, violation_key(element.table, element.id))
            if found is not None:
                raise _problem(catalog, element, found, compile_check)


def judge_moves(
    request: Commit, reader: Reader, catalog: CatalogSnapshot, moves: Collection[Move], compile_check: CompileCheck
) -> None:
    """Have the commit of a stage stand only if what it publishes is not violated, and take the flags along of what it
    takes back. Raises as `require_unviolated`."""
    published = [move.element for move in _yielding(catalog, moves) if move.goal is Phase.PUBLIC]
    require_unviolated(reader, catalog, published, compile_check)
    for element in published:
        request.preconditions.append(ValueUnchanged(violation_key(element.table, element.id), None, None))
    for move in _yielding(catalog, moves):
        if move.start is Phase.WRITE_ONLY and move.goal is not Phase.PUBLIC:
            request.raw.append((violation_key(move.element.table, move.element.id), None))


def _yielding(catalog: CatalogSnapshot, moves: Collection[Move]) -> Iterator[Move]:
    for move in moves:
        table = catalog.by_id(move.element.table)
        if isinstance(table, Table) and move.element in yielding(table):
            yield move


def _problem(catalog: CatalogSnapshot, element: Element, found: Violation, compile_check: CompileCheck) -> errors.Error:
    table = catalog.by_id(element.table)
    if not isinstance(table, Table):
        raise Superseded(f"table {element.table} was dropped")
    if element.kind is ElementKind.INDEX:
        name = next((index.name for index in table.indexes if index.id == element.id), str(element.id))
        sqlstate, message = errors.UNIQUE_VIOLATION, f'could not create unique index "{name}"'
    else:
        sqlstate, message = judge_of(catalog, table, element, compile_check).problem()
    return errors.error(
        sqlstate,
        message,
        detail=f'Row {found.row} of table "{found.table}" was committed while {name_of(table, element)} was pending, '
        "which aborts the change.",
    )
