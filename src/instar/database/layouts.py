"""The rows of instar.layouts: in which layouts the rows of each table are, and what the worker compacts it for."""

from __future__ import annotations

from collections.abc import Iterator

from instar.catalog.catalog import CatalogSnapshot
from instar.pipeline.older_rows import older_share
from instar.store.engine import Store


def layout_rows(store: Store, catalog: CatalogSnapshot) -> Iterator[tuple[object, ...]]:
    """A row of internal values per table. How its rows are spread is estimated now, whatever the snapshot; a table
    that is known to have one layout is not looked at."""
    for table in catalog.tables():
        columns = ", ".join(f"{column} {type_}" for column, type_ in table.layout.columns)
        share, layouts = 0.0, 0
        if table.oldest_layout < table.layout.id:
            _, share, layouts = older_share(store.read, table)
        yield (
            table.id,
            table.name,
            table.layout.id,
            table.oldest_layout,
            columns,
            round(share, 4),
            layouts,
            table.compaction_share,
        )
