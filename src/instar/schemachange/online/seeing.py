"""What the switch makes of a target: a table as others are (EDBT 2006, §3.4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from instar.catalog.descriptors import Crossing, Kept, MadeByGrouping, Object, Sequence, Table
from instar.schemachange.next_layout import next_layout


def seen(table: Table, sources: tuple[Table, ...] = ()) -> dict[str, object]:
    """The fields that change when an unseen table comes to be seen: it is without what only the rules needed. Its rows
    stay as they are, in a layout that has more. `sources`: what it was made of, if changes of that may still come."""
    assert table.unseen is not None
    shown = frozenset(table.unseen.shown)
    stored = tuple(part for part in table.layout.columns if part[0] in shown)
    fields: dict[str, object] = {
        "unseen": None,
        "older_rows": True,
        "locks": (),
        "columns": tuple(column for column in table.columns if column.id in shown),
        "indexes": tuple(index for index in table.indexes if shown.issuperset(part.column for part in index.columns)),
    }
    if sources:
        made = table.unseen.made
        assert not isinstance(made, MadeByGrouping)  # its source stays
        fields["crossing"] = Crossing(id=table.next_id, kept=Kept(made=made, sources=sources))
        fields["next_id"] = table.next_id + 1
    if stored != table.layout.columns or table.layout.locks:
        fields["layout"] = next_layout(table, stored, locks=())
    return fields


def without_columns(table: Table, gone: Iterable[int]) -> Table:
    """A table without these columns and all that stands on them, as far as that can be seen."""
    left = {column.id for column in table.columns}.difference(gone)
    return msgspec.structs.replace(
        table,
        columns=tuple(column for column in table.columns if column.id in left),
        indexes=tuple(index for index in table.indexes if left.issuperset(part.column for part in index.columns)),
        checks=tuple(check for check in table.checks if left.issuperset(check.columns)),
        foreign_keys=tuple(key for key in table.foreign_keys if left.issuperset(key.columns)),
    )


def inherited(targets: Iterable[Object], orphaned: Iterable[Sequence]) -> Iterator[Sequence]:
    """Of sequences whose columns go, those that columns of the targets take values of, as theirs."""
    columns = [(table.id, column) for table in targets if isinstance(table, Table) for column in table.columns]
    for sequence in orphaned:
        heir = next((place for place in columns if place[1].takes_from(sequence.id)), None)
        if heir is not None:
            owner = (heir[0], heir[1].id)
            yield msgspec.structs.replace(sequence, owned_by=owner, version=sequence.version + 1)
