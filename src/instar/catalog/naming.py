"""Names that PostgreSQL would generate: t_pkey, t_a_key, t_a_check, t_a_fkey, t_a_not_null, t_a_idx, t_a_seq; and the
names that constraints have."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from instar.catalog.descriptors import Check, Column, ForeignKey, Index, Table

MAX_NAME_BYTES = 63


def generated_name(table: str, columns: Sequence[str], label: str, taken: Callable[[str], bool]) -> str:
    """`<table>_<columns>_<label>`, shortened to 63 bytes as PostgreSQL does, with a number after the label if taken."""
    middle = "_".join(columns)
    attempt = 0
    while True:
        name = _shortened(table, middle, label if attempt == 0 else f"{label}{attempt}")
        if not taken(name):
            return name
        attempt += 1


def _shortened(first: str, second: str, label: str) -> str:
    """The longer of the two parts gives way first."""
    fixed = len(label) + 1 + (1 if second else 0)
    one, two = first.encode(), second.encode()
    while len(one) + len(two) + fixed > MAX_NAME_BYTES:
        if len(one) > len(two):
            one = one[:-1]
        else:
            two = two[:-1]
    parts = [one.decode(errors="ignore"), two.decode(errors="ignore"), label]
    return "_".join(part for part in parts if part)


def constraint_names(table: Table, without: Collection[int] = ()) -> set[str]:
    """The names of all constraints of a table, but for those of the ids `without`."""
    not_nulls = {name for column, name in not_null_names(table).items() if column not in without}
    return _listed_names(table, without) | not_nulls


def not_null_names(table: Table) -> dict[int, str]:
    """The names of the NOT NULLs of a table, by column: those that they were given, and generated ones, which are not
    kept, so that they follow the names of table and column."""
    found = [column for column in table.columns if has_not_null(column) and not column.hidden]
    taken = _listed_names(table) | {column.not_null_name for column in found if column.not_null_name is not None}
    names: dict[int, str] = {}
    for column in found:
        name = column.not_null_name
        if name is None:
            name = generated_name(table.name, (column.name,), "not_null", taken.__contains__)
            taken.add(name)
        names[column.id] = name
    return names


def has_not_null(column: Column) -> bool:
    """Whether there is a NOT NULL, pending or not."""
    return not column.nullable or column.not_null is not None


def not_null_named(table: Table, name: str) -> Column | None:
    """The column whose NOT NULL has this name."""
    ids = {column for column, known in not_null_names(table).items() if known == name}
    return next((column for column in table.columns if column.id in ids), None)


def _listed_names(table: Table, without: Collection[int] = ()) -> set[str]:
    listed: tuple[Index | Check | ForeignKey, ...] = (*table.indexes, *table.checks, *table.foreign_keys)
    coming = "" if table.next_key is None else table.next_key.name
    return {
        table.primary_key_name,
        coming,
        *(found.name for found in listed if found.id not in without and not _is_plain(found)),
    }


def _is_plain(found: Index | Check | ForeignKey) -> bool:
    """Whether it is an index that no constraint made."""
    return isinstance(found, Index) and not found.constraint
