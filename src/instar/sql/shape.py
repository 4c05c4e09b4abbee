"""What of a version of a table a compiled write of one row depends on, so that versions alike share what is compiled.

Everything is part of a shape that is not struck out here: what comes to descriptors is part of it from the first day.
Struck out is what a write takes of the version under which it is committed (which version that and its checks are, the
layout's id, and what older rows are read by), and what is for the worker only. Columns count by their places; their ids
only where something else names them.
"""

from __future__ import annotations

from msgspec.structs import replace

from instar.catalog.descriptors import COMPACTION_SHARE, Layout, Table


def shape_of(table: Table) -> Table | None:
    """The shape of a version, which is equal to that of another one if the same compiled writes serve both. None where
    more than the table's rows and indexes has a say in writes: other tables, several locks, keys to come."""
    if (
        table.foreign_keys
        or table.referenced_by
        or table.locks
        or table.coverage_changes
        or table.next_key is not None
        or table.unseen is not None
        or table.crossing is not None
    ):
        return None
    named = set(table.primary_key)
    for index in table.indexes:
        named.update([part.column for part in index.columns])
    for check in table.checks:
        named.update(check.columns)
    for column in table.columns:
        if column.is_derived and column.derived is not None:
            named.update([source.id for source in column.derived.sources])
    return replace(
        table,
        version=0,
        columns=tuple([column if column.id in named else replace(column, id=0) for column in table.columns]),
        layout=Layout(0, tuple([(0, type_) for _, type_ in table.layout.columns]), table.layout.locks),
        oldest_layout=0,
        steps=(),
        forgotten=None,
        next_id=0,
        checks_version=0,
        compaction_share=COMPACTION_SHARE,
    )
