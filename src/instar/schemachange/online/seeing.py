"""What the switch makes of a target: a table as others are (EDBT 2006, §3.4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from instar.catalog.descriptors import Object, Sequence, Table
from instar.schemachange.next_layout import next_layout


def seen(table: Table) -> dict[str, object]:
    """The fields that change when an unseen table comes to be seen: it is without what only the rules needed. Its rows
    stay as they are, in a layout that has more."""
    assert table.unseen is not None
    shown = frozenset(table.unseen.shown)
    stored = tuple(part for part in table.layout.columns if part[0] in shown)
    fields: dict[str, object] = {
        "unseen": None,
        "locks": (),
        "columns": tuple(column for column in table.columns if column.id in shown),
        "indexes": tuple(index for index in table.indexes if shown.issuperset(part.column for part in index.columns)),
    }
    if stored != table.layout.columns or table.layout.locks:
        fields["layout"] = next_layout(table, stored, locks=())
    return fields


def inherited(targets: Iterable[Object], dropped: Iterable[int], sequences: Iterable[Sequence]) -> Iterator[Sequence]:
    """The sequences of dropped tables that columns of the targets take values of, as theirs."""
    gone = frozenset(dropped)
    columns = [(table.id, column) for table in targets if isinstance(table, Table) for column in table.columns]
    for sequence in sequences:
        if sequence.owned_by is not None and sequence.owned_by[0] in gone:
            heir = next((place for place in columns if place[1].takes_from(sequence.id)), None)
            if heir is not None:
                owner = (heir[0], heir[1].id)
                yield msgspec.structs.replace(sequence, owned_by=owner, version=sequence.version + 1)
