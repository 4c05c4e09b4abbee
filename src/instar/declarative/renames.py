"""Renames: by the hints of the schema file, and of the sequences that belong to a column. Nothing else is guessed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from instar.catalog import descriptors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.naming import generated_name
from instar.declarative import model
from instar.declarative.changes import RelationKind, RenameColumn, RenameRelation
from instar.declarative.diff import identities, lost_sequences, relation_names
from instar.declarative.reading import read_schema

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


# --- sequences of columns --------------------------------------------------------------------------------------------


def follow_owners(catalog: CatalogSnapshot, wanted: model.Schema) -> tuple[CatalogSnapshot, list[Rename]]:
    """The catalog with the sequences of columns named as in `wanted`, and the renames.

    What has a name that something else is to have, and is dropped too late to free it, is moved aside first. So are
    sequences that take each other's names.
    """
    live = read_schema(catalog)
    hints = _owned_sequences(live, wanted)
    taken = relation_names(live) | relation_names(wanted)
    catalog, found = follow(catalog, [_aside(kind, name, taken) for kind, name in _in_the_way(live, wanted, hints)])
    catalog, renamed = follow(catalog, hints)
    circle = [hint for hint in hints if RenameRelation("sequence", hint.old, hint.new) not in renamed]
    aside = [_aside("sequence", hint.old, taken) for hint in circle]
    catalog, opened = follow(catalog, aside)
    catalog, closed = follow(catalog, [one._replace(old=other.new) for one, other in zip(circle, aside, strict=True)])
    return catalog, [*found, *renamed, *opened, *closed]


def _owned_sequences(live: model.Schema, wanted: model.Schema) -> list[Hint]:
    """The sequences that are a column's only ones here and there, under other names: which is which is no guess."""
    pairs = [
        (before[owner], after[owner])
        for before, after in (
            (identities(live), identities(wanted)),
            (_only_sequences(live), _only_sequences(wanted)),
        )
        for owner in before
        if owner in after and after[owner] != before[owner]
    ]
    owned = {old for old, _ in pairs}
    # Where both names stay, and the new one was nobody's only sequence, the column has just got another one.
    stay = live.sequences.keys() & wanted.sequences.keys()
    return [Hint("sequence", new, old) for old, new in pairs if not (stay >= {old, new} and new not in owned)]


def _only_sequences(schema: model.Schema) -> dict[tuple[str, str], str]:
    """The sequences that belong to a column as its only one, but for those of identity, by table and column."""
    found: dict[tuple[str, str], list[str]] = {}
    for sequence in schema.sequences.values():
        if sequence.owned_by is not None:
            found.setdefault(sequence.owned_by, []).append(sequence.name)
    return {owner: names[0] for owner, names in found.items() if len(names) == 1}


def _in_the_way(live: model.Schema, wanted: model.Schema, hints: list[Hint]) -> Iterator[tuple[RelationKind, str]]:
    """What goes, and has a name that is needed before: by a rename, or, of a sequence, by anything that comes."""
    targets, moving = {hint.new for hint in hints}, {hint.old for hint in hints}
    yield from (("table", name) for name in live.tables if name in targets)
    yield from (("view", name) for name in live.views if name in targets)
    needed, kept = relation_names(wanted), identities(wanted)
    lost = {
        name
        for name, owner in lost_sequences(live, wanted).items()
        # A column's sequence goes before the column gets another one of that name as one of identity.
        if name in needed and (owner is None or kept.get(owner) != name)
    }
    every = {*live.sequences, *identities(live).values()}
    yield from (("sequence", name) for name in sorted(((targets & every) | lost) - moving))


def _aside(kind: RelationKind, name: str, taken: set[str]) -> Hint:
    free = generated_name(name, (), "old", taken.__contains__)
    taken.add(free)
    return Hint(kind, free, name)
