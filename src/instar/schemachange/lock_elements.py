"""Locks and their coverage as elements (F1 §3.4): what a step of their paths does to a table, and how it is told.

A lock is a required column that nobody reads: write-only, it is part of the layout, and every writer keeps its
timestamp; rows in layouts without it have that of their last commit, so that it needs no reorganization. A change of
coverage goes from the old lock of a column to dual coverage, and from there, once the timestamps have been propagated,
to the new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from instar import errors
from instar.catalog.descriptors import DEFAULT_LOCK, DEFAULT_LOCK_NAME, Lock, Table
from instar.schemachange.elements import Element, ElementKind, Phase, state_in
from instar.schemachange.next_layout import next_layout

KINDS = frozenset({ElementKind.LOCK, ElementKind.COVERAGE})


def with_locks(table: Table, locks: tuple[Lock, ...]) -> dict[str, object]:
    """The fields that change when a table's locks do: rows of other locks are of another layout."""
    ids = (DEFAULT_LOCK, *(lock.id for lock in locks)) if locks else ()
    if ids == table.layout.locks:
        return {"locks": locks}
    return {"locks": locks, "layout": next_layout(table, table.layout.columns, locks=ids)}


def covered(locks: Iterable[Lock], covers: Iterable[tuple[int, int]]) -> tuple[Lock, ...]:
    """The locks, once each of `covers` (column, lock) is so and no other lock covers that column."""
    target = dict(covers)
    made = []
    for lock in locks:
        columns = [column for column in lock.columns if target.get(column, lock.id) == lock.id]
        columns += [column for column, to in target.items() if to == lock.id and column not in columns]
        made.append(msgspec.structs.replace(lock, columns=tuple(sorted(columns))))
    return tuple(made)


def moved(table: Table, element: Element, goal: Phase) -> dict[str, object]:
    """The fields of `table` that change when one of these elements, which is there, goes to the phase `goal`."""
    if element.kind is ElementKind.LOCK:
        if goal is Phase.ABSENT:
            return with_locks(table, tuple(lock for lock in table.locks if lock.id != element.id))
        state = state_in(goal)
        locks = [msgspec.structs.replace(lock, state=state) if lock.id == element.id else lock for lock in table.locks]
        return with_locks(table, tuple(locks))
    changes = tuple(change for change in table.coverage_changes if change.id != element.id)
    if goal is Phase.ABSENT:
        return {"coverage_changes": changes}
    if goal is not Phase.PUBLIC:
        raise errors.error(errors.INTERNAL_ERROR, f"lock coverage cannot become {goal.value}")
    change = next(found for found in table.coverage_changes if found.id == element.id)
    left = [lock for lock in table.locks if lock.id not in change.drops]
    return {"coverage_changes": changes, **with_locks(table, covered(left, change.covers))}


def without_column(table: Table, column: int) -> dict[str, object]:
    """The fields that change in the locks when a column goes."""
    locks = [
        msgspec.structs.replace(lock, columns=tuple(found for found in lock.columns if found != column))
        for lock in table.locks
    ]
    changes = [
        msgspec.structs.replace(change, covers=tuple(cover for cover in change.covers if cover[0] != column))
        for change in table.coverage_changes
    ]
    return {"locks": tuple(locks), "coverage_changes": tuple(changes)}


def changed_coverage(before: Table, after: Table) -> Iterator[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """The columns of both whose locks differ: (column, locks before, locks after)."""
    if not (before.locks or after.locks):
        return
    old = {column.id for column in before.columns}
    for column in after.columns:
        if column.id in old:
            one, other = before.covering(column.id), after.covering(column.id)
            if set(one) != set(other):
                yield column.id, one, other


def skips_dual_coverage(before: Table, after: Table) -> bool:
    """Whether a column goes from one lock to another at once: no lock would be both writers'."""
    return any(not set(one) & set(other) for _, one, other in changed_coverage(before, after))


def told(before: Table, after: Table) -> Iterator[str]:
    """What became of the columns' locks, in words."""
    columns = {column.id: column.name for column in after.columns}
    names = {lock.id: lock.name for lock in (*before.locks, *after.locks)} | {DEFAULT_LOCK: DEFAULT_LOCK_NAME}
    for column, one, other in changed_coverage(before, after):
        was, becomes = (" and ".join(f'"{names[lock]}"' for lock in locks) for locks in (one, other))
        yield f'column "{columns[column]}": covered by lock {was} -> {becomes}'
