"""What is left over once a change is through: schemas compared by what they say, and a store without garbage."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Sequence, Table, View
from instar.store.apply import is_live
from instar.store.engine import PREFIX_LOG, PREFIX_ROW, PREFIX_ROWSET, Store, prefix_end

# What tells one history from another, and not one schema from another.
_HISTORY = frozenset({
    "version", "steps", "forgotten", "rowset", "next_id", "checks_version", "oldest_layout", "missing", "counter",
    "derived", "replaces",
})  # fmt: skip
_ID = re.compile(r'"#(\d+)"')


def require_no_garbage(store: Store, catalog: CatalogSnapshot) -> None:
    """With no snapshot left, nothing is left but what is live: no log, no tombstone, no rowset of nobody."""
    tables = list(catalog.every_table())
    used = {1, 2} | {table.rowset for table in tables} | {index.rowset for table in tables for index in table.indexes}
    with store.read() as reader:
        assert {_number(key) for key, _ in reader.scan(PREFIX_ROWSET, prefix_end(PREFIX_ROWSET))} == used
        for key, value in reader.scan(PREFIX_ROW, prefix_end(PREFIX_ROW)):
            assert _number(key) in used
            assert is_live(value)
        assert list(reader.scan(PREFIX_LOG, prefix_end(PREFIX_LOG))) == []


def _number(key: bytes) -> int:
    return int.from_bytes(key[1:5], "big")


def schema(catalog: CatalogSnapshot) -> dict[str, Any]:
    """Every object by name, as plain data without versions, steps and numbers: equal for equal schemas, however many
    changes lie behind them."""
    objects = [found for found in catalog.objects() if isinstance(found, Table | View | Sequence)]
    names = {found.id: found.name for found in objects}
    return {found.name: _plain(found, names) for found in objects}


def _plain(found: Table | View | Sequence, names: dict[int, str]) -> dict[str, Any]:
    plain: dict[str, Any] = {
        name: value for name, value in msgspec.to_builtins(found).items() if name not in _HISTORY | {"id"}
    }
    if isinstance(found, Table):
        _name_parts(plain, found, names)
    elif isinstance(found, View):
        plain["depends_on"] = sorted(names[number] for number, _ in found.depends_on)
        plain["query"] = _ID.sub("#", found.query)
        plain["materialized"] = found.materialized and found.materialized.definition
        plain["kept"] = found.stands_for and found.stands_for.name
        del plain["source"]
    elif found.owned_by is not None:
        plain["owned_by"] = names[found.owned_by[0]]
    return plain


def _name_parts(plain: dict[str, Any], table: Table, names: dict[int, str]) -> None:
    """Replace the numbers of a table's parts by their names, and drop their order but for that of columns."""
    columns = {column.id: column.name for column in table.columns}
    indexes = {index.id: index.name for index in table.indexes}

    def named(text: str | None) -> str | None:
        return None if text is None else _ID.sub(lambda found: columns.get(int(found[1]), found[0]), text)

    def without(part: Any, *more: str) -> dict[str, Any]:
        left_out = _HISTORY | {"id", *more}
        return {name: value for name, value in msgspec.to_builtins(part).items() if name not in left_out}

    plain["layout"] = [(columns[number], repr(type_)) for number, type_ in table.layout.columns]
    plain["primary_key"] = [columns[number] for number in table.primary_key]
    plain["referenced_by"] = sorted(names.get(number, "itself") for number in table.referenced_by)
    plain["followed_by"] = len(table.followed_by)
    plain["columns"] = [
        without(column, "sequence")
        | {"default": named(column.default), "sequence": names.get(column.sequence or 0, bool(column.sequence))}
        for column in table.columns
    ]
    plain["indexes"] = {
        index.name: without(index) | {"columns": [(columns[part.column], part.descending) for part in index.columns]}
        for index in table.indexes
    }
    plain["checks"] = {
        check.name: without(check)
        | {"expression": named(check.expression), "columns": sorted(columns[number] for number in check.columns)}
        for check in table.checks
    }
    plain["foreign_keys"] = {
        key.name: without(key, "parent_columns", "parent_index")
        | {
            "columns": [columns[number] for number in key.columns],
            "parent": names[key.parent],
            "child_index": indexes.get(key.child_index or 0),
        }
        for key in table.foreign_keys
    }
    plain["locks"] = {
        lock.name: without(lock) | {"columns": sorted(columns[number] for number in lock.columns)}
        for lock in table.locks
    }
