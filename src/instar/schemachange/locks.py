"""ALTER TABLE ... ADD, ALTER and DROP LOCK: optimistic locks, and which columns they cover (F1 §2.5, §3.4)."""

from __future__ import annotations

from collections.abc import Sequence

from instar import errors
from instar.catalog.descriptors import DEFAULT_LOCK, DEFAULT_LOCK_NAME, CoverageChange, Lock, State, StepKind, Table
from instar.schemachange import wanted as want
from instar.schemachange.draft import Draft, unfinished
from instar.schemachange.elements import Element, ElementKind, Phase
from instar.schemachange.lock_elements import covered, with_locks
from instar.schemachange.stages import Scheduled


def add_lock(draft: Draft, wanted: want.AddLock) -> None:
    """ADD LOCK: the lock write-only and its columns in dual coverage; or at once, where nobody can have rows."""
    table = draft.find(Table, wanted.table)
    if wanted.name == DEFAULT_LOCK_NAME or any(lock.name == wanted.name for lock in table.locks):
        raise errors.error(errors.DUPLICATE_OBJECT, f'lock "{wanted.name}" of relation "{table.name}" already exists')
    columns = _columns(draft, table, wanted.columns)
    _require_still(table, columns)
    direct = draft.collapses(table)
    state = State.PUBLIC if direct else State.WRITE_ONLY
    lock = Lock(id=table.next_id, name=wanted.name, columns=(), state=state)
    draft.edit(
        table.id,
        (StepKind.ELEMENT_STATE, (lock.id,)),
        next_id=lock.id + 1,
        **with_locks(table, (*table.locks, lock)),
    )
    if not direct:
        draft.schedule(Scheduled(Element(ElementKind.LOCK, table.id, lock.id), Phase.ABSENT, Phase.PUBLIC, None))
    if columns:
        _cover(draft, table.id, [(column, lock.id) for column in columns], direct=direct)


def alter_lock(draft: Draft, wanted: want.AlterLock) -> None:
    """ALTER LOCK ... COVERS: these columns, from whatever lock covers them; the others go to the default lock."""
    table = draft.find(Table, wanted.table)
    lock = _find(table, wanted.name)
    columns = _columns(draft, table, wanted.columns)
    # What is on its way to another lock, or to this one, is as good as there.
    coming = [cover for change in table.coverage_changes for cover in change.covers]
    has = next(found.columns for found in covered(table.locks, coming) if found.id == lock.id)
    covers = [(column, lock.id) for column in columns if column not in has]
    covers += [(column, DEFAULT_LOCK) for column in has if column not in columns]
    if covers:
        _require_still(table, [column for column, _ in covers], lock)
        _cover(draft, table.id, covers, direct=draft.collapses(table))


def drop_lock(draft: Draft, wanted: want.DropLock) -> None:
    """DROP LOCK: its columns go to the default lock first, by dual coverage; the lock goes with the last step."""
    table = draft.find(Table, wanted.table)
    lock = _find(table, wanted.name)
    _require_still(table, lock.columns, lock, goes=True)
    direct = not lock.columns or draft.collapses(table)
    if direct:
        left = tuple(found for found in table.locks if found.id != lock.id)
        draft.edit(table.id, (StepKind.ELEMENT_STATE, (lock.id,)), **with_locks(table, left))
    else:
        covers = [(column, DEFAULT_LOCK) for column in lock.columns]
        _cover(draft, table.id, covers, direct=False, drops=(lock.id,))


def _cover(
    draft: Draft, table_id: int, covers: Sequence[tuple[int, int]], *, direct: bool, drops: tuple[int, ...] = ()
) -> None:
    """Have other locks cover columns; `covers` are (column, lock)."""
    table = draft.table(table_id)
    if direct:
        # Nobody has a row of the table, and the floor keeps out who knows the old coverage.
        fields = with_locks(table, covered(table.locks, covers))
        draft.edit(table_id, (StepKind.ELEMENT_STATE, tuple(lock for _, lock in covers)), **fields)
        return
    change = CoverageChange(id=table.next_id, covers=tuple(covers), drops=drops)
    draft.edit(
        table_id,
        (StepKind.ELEMENT_STATE, (change.id,)),
        coverage_changes=(*table.coverage_changes, change),
        next_id=change.id + 1,
    )
    element = Element(ElementKind.COVERAGE, table_id, change.id)
    draft.schedule(Scheduled(element, Phase.ABSENT, Phase.PUBLIC, draft.facts.estimated_rows(table)))


def _find(table: Table, name: str) -> Lock:
    for lock in table.locks:
        if lock.name == name:
            return lock
    if name == DEFAULT_LOCK_NAME:
        raise errors.unsupported("changing or dropping the default lock")
    raise errors.error(errors.UNDEFINED_OBJECT, f'lock "{name}" of relation "{table.name}" does not exist')


def _columns(draft: Draft, table: Table, names: Sequence[str]) -> tuple[int, ...]:
    """The columns' ids: they exist (42703), none twice (42701), none of the primary key (42P16)."""
    ids: list[int] = []
    for name in names:
        column = draft.column(table, name)
        if column.id in ids:
            raise errors.error(errors.DUPLICATE_COLUMN, f'column "{name}" appears twice in lock')
        if column.id in table.primary_key:
            raise errors.error(
                errors.INVALID_TABLE_DEFINITION,
                f'column "{name}" is in a primary key',
                detail="A change of key meets every lock of the row.",
            )
        ids.append(column.id)
    return tuple(ids)


def _require_still(table: Table, columns: Sequence[int], lock: Lock | None = None, *, goes: bool = False) -> None:
    """55006 where these columns or the lock, which may be going, are part of another change that is under way."""
    for change in table.coverage_changes:
        moves = any(column in columns or (goes and lock is not None and to == lock.id) for column, to in change.covers)
        if moves or (lock is not None and lock.id in change.drops):
            raise unfinished(table, Element(ElementKind.COVERAGE, table.id, change.id))
    if lock is not None and lock.state is not State.PUBLIC:
        raise unfinished(table, Element(ElementKind.LOCK, table.id, lock.id))
