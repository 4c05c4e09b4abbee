"""Elements that leave by their paths, a state per stage: what every drop does where servers hold schemas under a lease.

Without leases a drop collapses into one step (removal.py says why that is safe). Under a lease a server may read by a
schema that others have left behind: so what it reads by must be maintained by all until it has surely renewed, and only
then lose its entries, and only then be gone (F1 §3.3). The first step is published by the statement itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from instar.catalog.descriptors import Table
from instar.schemachange.draft import Draft
from instar.schemachange.elements import Element, ElementKind, Phase, phase_of
from instar.schemachange.foreign_keys import owned_index
from instar.schemachange.probed_indexes import handed_on, heirs
from instar.schemachange.publishing import advance
from instar.schemachange.stages import Move, Scheduled, Stage


def takes_path(draft: Draft, table: Table) -> bool:
    """Whether what leaves `table` goes by its path: somebody may hold an older schema of it."""
    return draft.facts.schema_lease > 0 and not draft.collapsing and not draft.is_new(table)


def leave(draft: Draft, table: Table, kind: ElementKind, ids: Iterable[int]) -> None:
    """Elements of one kind take the way out."""
    for number in ids:
        element = Element(kind, table.id, number)
        draft.schedule(Scheduled(element, phase_of(table, element), Phase.ABSENT, None))


def leave_foreign_keys(draft: Draft, table: Table, gone: set[int]) -> None:
    """Foreign keys take the way out, and after each the index that it owns, unless another key goes on with it."""
    inherited = handed_on(table, gone)
    if inherited:
        table = draft.edit(table.id, foreign_keys=tuple(heirs(table.foreign_keys, inherited)))
    for key in (found for found in table.foreign_keys if found.id in gone):
        element = Element(ElementKind.FOREIGN_KEY, table.id, key.id)
        owned = () if key.child_index in inherited else owned_index(table.id, key)
        draft.schedule(Scheduled(element, phase_of(table, element), Phase.ABSENT, None, (key.parent,), owned))
        leave(draft, table, ElementKind.INDEX, [index.id for index in owned])


def leave_column(draft: Draft, table: Table, column: int) -> None:
    """The column goes in one direct step, in the stage in which the last of what uses it is gone (rule 25), and what it
    owns of sequences with it."""
    draft.at_the_end.append(Move(Element(ElementKind.COLUMN, table.id, column), Phase.PUBLIC, Phase.ABSENT))


def leave_tables(draft: Draft, tables: Iterable[int], views: Iterable[int]) -> None:
    """Tables, and the views on them, go in one direct step, in the stage in which the last of the foreign keys that
    refer to them is gone (rule 25)."""
    draft.objects += [*views, *tables]


def set_out(draft: Draft, moves: Iterable[Move]) -> None:
    """Publish the first steps of what leaves with the statement itself."""
    stage = Stage(moves=tuple(moves))
    if not stage.moves:
        return
    publication = advance(draft.table, stage, draft.statement)
    for published in publication.published:
        before, after = draft.table(published.after.id), published.after
        if isinstance(after, Table):
            steps = [(step.kind, step.columns) for step in after.steps if step.version > before.version]
            fields = {name: getattr(after, name) for name in _FIELDS if getattr(after, name) != getattr(before, name)}
            draft.edit(after.id, *steps, **fields)


# What moves of elements change in a table, beside its version and steps.
_FIELDS = ("columns", "layout", "indexes", "checks", "foreign_keys", "referenced_by", "locks")
