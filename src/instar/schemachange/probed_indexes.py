"""Which keys and indexes a foreign key probes, on either side (rule 27), also once a primary key has gone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from instar.catalog.descriptors import ForeignKey, Index, State, Table
from instar.types import FLOATS, INTEGERS, TIMESTAMPS, Kind

# Components of at most 17 bytes, and how many of them surely stay below where index keys are cut.
_SHORT = INTEGERS | FLOATS | TIMESTAMPS | {Kind.BOOLEAN, Kind.DATE, Kind.UUID}
_MOST_SHORT = 6


def leads(key: Sequence[int], columns: Sequence[int]) -> bool:
    """Whether a primary key begins with these columns, in whatever order."""
    return sorted(key[: len(columns)]) == sorted(columns)


def unique_index(table: Table, columns: Sequence[int]) -> Index | None:
    """A public unique index on just these columns, in whatever order."""
    for index in table.indexes:
        covered = sorted(part.column for part in index.columns) == sorted(columns)
        if index.unique and index.state is State.PUBLIC and covered:
            return index
    return None


def leading_index(table: Table, columns: Sequence[int]) -> Index | None:
    """A public index that finds rows by these columns; not one that goes again if a foreign key cannot come."""
    passing = {key.child_index for key in table.foreign_keys if key.owns_index and not _is_settled(key)}
    for index in table.indexes:
        leading = sorted(part.column for part in index.columns[: len(columns)])
        exact = len(index.columns) == len(columns) or _is_short(table, columns)
        if index.state is State.PUBLIC and index.id not in passing and leading == sorted(columns) and exact:
            return index
    return None


def _is_settled(key: ForeignKey) -> bool:
    """Whether no job is about to bring the key, or to take it away."""
    return key.state is State.PUBLIC or (key.not_valid and key.state is State.WRITE_ONLY)


def _is_short(table: Table, columns: Sequence[int]) -> bool:
    """Whether these columns' part of an index key is never cut: a longer index is then exact about them too."""
    kinds = [column.type.kind for column in table.columns if column.id in columns]
    return len(kinds) <= _MOST_SHORT and all(kind in _SHORT for kind in kinds)


def referring(found: ForeignKey, parent: Table, key: Sequence[int]) -> ForeignKey | None:
    """The foreign key once `key` is its parent's primary key; None if nothing proves its columns there a key then."""
    if found.parent_index is not None or sorted(key) == sorted(found.parent_columns):
        return found
    index = unique_index(parent, found.parent_columns)
    return None if index is None else msgspec.structs.replace(found, parent_index=index.id)


def referring_from(found: ForeignKey, child: Table, key: Sequence[int]) -> ForeignKey | None:
    """The foreign key once `key` is its own table's primary key; None if nothing finds a parent's children then."""
    if found.child_index is not None or leads(key, found.columns):
        return found
    index = leading_index(child, found.columns)
    return None if index is None else msgspec.structs.replace(found, child_index=index.id)


def found_otherwise(found: ForeignKey, child: Table) -> ForeignKey | None:
    """The foreign key as it finds a parent's children by what `child` has; None if nothing there finds them."""
    if leads(child.primary_key, found.columns):
        return msgspec.structs.replace(found, child_index=None, owns_index=False)
    index = leading_index(child, found.columns)
    return None if index is None else msgspec.structs.replace(found, child_index=index.id, owns_index=False)


def without_keys(table: Table, gone: set[int]) -> dict[str, object]:
    """The fields of a table that loses these foreign keys, with the indexes that they own."""
    inherited = handed_on(table, gone)
    owned = {key.child_index for key in table.foreign_keys if key.id in gone and key.owns_index}
    kept = (key for key in table.foreign_keys if key.id not in gone)
    indexes = tuple(index for index in table.indexes if index.id not in owned - inherited)
    return {"foreign_keys": tuple(heirs(kept, inherited)), "indexes": indexes}


def handed_on(table: Table, gone: set[int]) -> set[int | None]:
    """The indexes that foreign keys which go own, and others borrow: these own them from now on."""
    owned = {key.child_index for key in table.foreign_keys if key.id in gone and key.owns_index}
    return owned & {key.child_index for key in table.foreign_keys if key.id not in gone}


def heirs(keys: Iterable[ForeignKey], inherited: set[int | None]) -> Iterator[ForeignKey]:
    """The keys, as owners of what is handed on to them."""
    for key in keys:
        yield msgspec.structs.replace(key, owns_index=True) if key.child_index in inherited else key
