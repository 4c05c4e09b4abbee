"""Locks in words: the rows of instar.transaction_locks, and what the cycle of a deadlock is made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Index, Table
from instar.catalog.schema_locks import object_of
from instar.store.engine import Store, rowset_prefix
from instar.store.lock_table import Wait, number_of
from instar.tables.rowset import describe_key

_PREFIX_BYTES = len(rowset_prefix(0))


class _Resource(NamedTuple):
    """What a resource is: a row of a table, by its key as shown, a unique key in its index, or a schema."""

    table: str  # or view
    unique: Index | None = None
    key: str | None = None  # None: not to be told
    schema: bool = False


def _resolved(catalog: CatalogSnapshot, resource: bytes) -> _Resource | None:
    number = object_of(resource)
    if number is not None:
        found = catalog.by_id(number)
        return None if found is None else _Resource(found.name, schema=True)
    prefix, key = resource[:_PREFIX_BYTES], resource[_PREFIX_BYTES:]
    for table in catalog.tables():
        if rowset_prefix(table.rowset) == prefix:
            if table.locks and key[-2:-1] == b"\xff":
                key = key[:-2]  # a part of the row
            return _Resource(table.name, key=_key(table, key))
        for index in table.indexes:
            if rowset_prefix(index.rowset) == prefix:
                return _Resource(table.name, index)
    return None


def _key(table: Table, key: bytes) -> str | None:
    try:
        return describe_key(table, key)
    except (errors.Error, ValueError, IndexError):  # a long key, of which the lock table has the beginning
        return None


def described(catalog: CatalogSnapshot, resource: bytes) -> str:
    """A resource as a message names it."""
    found = _resolved(catalog, resource)
    if found is None:
        return "an object that is gone"
    if found.schema:
        return f'"{found.table}"'
    if found.unique is not None:
        return f'a key of "{found.unique.name}" of table "{found.table}"'
    return f'row {found.key or "of a long key"} of table "{found.table}"'


def shown_cycle(store: Store, catalog: CatalogSnapshot, cycle: Iterable[Wait]) -> str:
    """Who waits for whom, a line each."""
    pids = {entry.owner: entry.pid for entry in store.locks.entries()}

    def shown(owner: bytes) -> str:
        return f"transaction {number_of(owner)} of process {pids.get(owner, 0)}"

    return "\n".join(
        f"{shown(edge.owner).capitalize()} waits for {edge.mode.shown} on {described(catalog, edge.resource)}, held by "
        f"{shown(edge.holder)}."
        for edge in cycle
    )


def lock_rows(store: Store, catalog: CatalogSnapshot) -> Iterator[tuple[object, ...]]:
    """A row of internal values per lock that is held or waited for, in order."""
    entries = store.locks.entries()
    pids = {entry.owner: entry.pid for entry in entries}
    for entry in sorted(entries, key=lambda entry: (entry.resource, not entry.granted, entry.pid, entry.owner)):
        found = _resolved(catalog, entry.resource)
        yield (
            entry.pid,
            number_of(entry.owner),
            None if found is None else found.table,
            None if found is None or found.unique is None else found.unique.name,
            None if found is None else found.key,
            ", ".join(mode.shown for mode in entry.modes),
            entry.granted,
            ", ".join(f"{pids.get(holder, 0)}/{number_of(holder)}" for holder in entry.waits_for) or None,
        )
