"""Renames: by the hints of the schema file, and of the sequences that belong to a column. Nothing else is guessed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from instar.catalog import descriptors
from instar.catalog.catalog import CatalogSnapshot
from instar.declarative import model
from instar.declarative.changes import RelationKind, RenameColumn, RenameRelation
from instar.declarative.diff import identities

Rename = RenameRelation | RenameColumn

_CLASSES: dict[str, type[descriptors.Object]] = {
    "table": descriptors.Table,
    "view": descriptors.View,
    "sequence": descriptors.Sequence,
}


class Hint(NamedTuple):
    """`new` was called `old`. `table`: the one that a column is in, by its new name."""

    kind: Literal["column"] | RelationKind
    new: str
    old: str
    table: str = ""


def follow(catalog: CatalogSnapshot, hints: Sequence[Hint]) -> tuple[CatalogSnapshot, list[Rename]]:
    """The catalog as the hints rename it, and the renames in an order in which each new name is free.

    A hint says nothing where the new name is there already or the old one is not: a file may keep it for ever.
    """
    found: list[Rename] = []
    waiting = list(hints)
    # Tables first, since columns are looked for under their table's new name.
    while (step := _next(catalog, waiting, columns=False) or _next(catalog, waiting, columns=True)) is not None:
        hint, changed, rename = step
        waiting.remove(hint)
        catalog = catalog.changed([changed], [])
        found.append(rename)
    return catalog, found


def _next(
    catalog: CatalogSnapshot, hints: Iterable[Hint], *, columns: bool
) -> tuple[Hint, descriptors.Object, Rename] | None:
    for hint in hints:
        if (hint.kind == "column") is not columns:
            continue
        applied = _renamed_column(catalog, hint) if hint.kind == "column" else _renamed_relation(catalog, hint)
        if applied is not None:
            return hint, *applied
    return None


def _renamed_relation(catalog: CatalogSnapshot, hint: Hint) -> tuple[descriptors.Object, Rename] | None:
    old = catalog.lookup("public", hint.old)
    kind = _CLASSES[hint.kind]
    if not isinstance(old, descriptors.Object) or not isinstance(old, kind) or catalog.lookup("public", hint.new):
        return None
    assert hint.kind != "column"
    return msgspec.structs.replace(old, name=hint.new), RenameRelation(hint.kind, hint.old, hint.new)


def _renamed_column(catalog: CatalogSnapshot, hint: Hint) -> tuple[descriptors.Object, Rename] | None:
    table = catalog.lookup("public", hint.table)
    if not isinstance(table, descriptors.Table):
        return None
    names = {column.name for column in table.columns if not column.hidden}
    if hint.old not in names or hint.new in names:
        return None
    columns = tuple(
        msgspec.structs.replace(column, name=hint.new) if column.name == hint.old and not column.hidden else column
        for column in table.columns
    )
    return msgspec.structs.replace(table, columns=columns), RenameColumn(hint.table, hint.old, hint.new)


def owned_sequences(live: model.Schema, wanted: model.Schema) -> list[Hint]:
    """The sequences that are a column's only ones here and there, under other names: which is which is no guess."""
    before, after = _only_sequences(live), _only_sequences(wanted)
    return [
        Hint("sequence", after[owner], name)
        for owner, name in before.items()
        if owner in after and after[owner] != name
    ]


def _only_sequences(schema: model.Schema) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], list[str]] = {owner: [name] for owner, name in identities(schema).items()}
    for sequence in schema.sequences.values():
        if sequence.owned_by is not None:
            found.setdefault(sequence.owned_by, []).append(sequence.name)
    return {owner: names[0] for owner, names in found.items() if len(names) == 1}
