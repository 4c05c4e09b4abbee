"""The table itself: the families' entries, by name."""

from __future__ import annotations

from collections import defaultdict

from instar.sql.functions import (
    aggregates,
    arithmetic,
    binary,
    comparison,
    datetimes,
    document_building,
    document_changes,
    documents,
    mathematics,
    strings,
    system,
    windows,
)
from instar.sql.functions.model import Entry, Function

_FAMILIES: tuple[tuple[Entry, ...], ...] = (
    arithmetic.ENTRIES,
    comparison.ENTRIES,
    mathematics.ENTRIES,
    strings.ENTRIES,
    binary.ENTRIES,
    datetimes.ENTRIES,
    documents.ENTRIES,
    document_building.ENTRIES,
    document_changes.ENTRIES,
    system.ENTRIES,
    aggregates.ENTRIES,
    windows.ENTRIES,
)


def _by_name(operators: bool) -> dict[str, tuple[Entry, ...]]:
    table: dict[str, list[Entry]] = defaultdict(list)
    for family in _FAMILIES:
        for entry in family:
            if (isinstance(entry, Function) and entry.operator) == operators:
                table[entry.name].append(entry)
    return {name: tuple(entries) for name, entries in table.items()}


FUNCTIONS = _by_name(operators=False)
OPERATORS = _by_name(operators=True)
