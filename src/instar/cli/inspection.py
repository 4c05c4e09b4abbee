"""What an operator asks: is the database sound, what lies in the store."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TextIO

from instar import errors
from instar.catalog import system
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Table
from instar.cli import output
from instar.cli.progress import progress_bars
from instar.cli.runner import interruptible
from instar.database.checks import COLUMNS, check_database
from instar.encoding.format import format_row
from instar.encoding.rows import LOCK_BYTES
from instar.store import debug as store_debug
from instar.store import engine

if TYPE_CHECKING:
    from instar.database import Database
    from instar.dbapi import Connection

_BATCH = 1_000  # pairs per read, so that no read of the store stays open while somebody looks at the output

PARTS = {
    "store": engine.PREFIX_STORE,
    "tables": engine.PREFIX_TABLE,
    "rowsets": engine.PREFIX_ROWSET,
    "records": engine.PREFIX_LATEST,
    "rows": engine.PREFIX_ROW,
    "log": engine.PREFIX_LOG,
}


def check(connection: Connection, out: TextIO) -> bool:
    """CHECK DATABASE, on Spark where tables are large: one line per problem. True: the database is sound."""
    with progress_bars() as bars, interruptible(connection.session):
        problems = check_database(connection.session, bars.reached("check ", 1.0))
    if not problems:
        out.write("no problems found\n")
        return True
    output.write_table([output.Column(name, type_.kind.value) for name, type_ in COLUMNS], problems, out)
    return False


# --- what lies in the store ------------------------------------------------------------------------------------------


def debug(database: Database, parts: list[str], out: TextIO) -> None:
    """Print the pairs of each part: one of PARTS, or a table's rows and index entries. 42P01 for another name."""
    with database.store.read() as reader:
        catalog = database.catalog.at(reader)
    format_body = body_formatter(database, catalog)
    for part in parts:
        for prefix in _prefixes(catalog, part):
            for key, value in pairs(database, prefix):
                key_text, value_text = store_debug.describe(key, value, format_body)
                out.write(f"{key_text}: {value_text}\n")


def _prefixes(catalog: CatalogSnapshot, part: str) -> list[bytes]:
    if part in PARTS:
        return [PARTS[part]]
    found = catalog.lookup("public", part)
    if not isinstance(found, Table):
        raise errors.error(
            errors.UNDEFINED_TABLE, f'relation "{part}" does not exist', hint=f"The parts are {', '.join(PARTS)}."
        )
    return [engine.rowset_prefix(rowset) for rowset in (found.rowset, *(index.rowset for index in found.indexes))]


def pairs(database: Database, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """All pairs under a prefix, as they lie there now, a batch at a time."""
    start, stop = prefix, engine.prefix_end(prefix)
    while True:
        with database.store.read() as reader:
            keys, values = reader.batch(start, stop, _BATCH)
        yield from zip(keys, values, strict=True)
        if len(keys) < _BATCH:
            return
        start = keys[-1] + b"\0"


def body_formatter(database: Database, catalog: CatalogSnapshot) -> Callable[[int, int, bytes], str | None]:
    """A reader of row bodies for `store.debug.describe`: columns with the names that they have now."""
    owners = {table.rowset: table for table in catalog.every_table()}

    def format_body(rowset: int, layout: int, body: bytes) -> str | None:
        if rowset == system.DESCRIPTORS:
            return repr(system.decode_descriptor(body))
        table = owners.get(rowset)
        if table is None:
            return None
        found = database.layouts.get(table.id, layout)
        columns = found.columns
        taken = LOCK_BYTES * len(found.locks)
        locks = [store_debug.format_timestamp(at) for (at,) in struct.iter_unpack("<Q", body[:taken])]
        names = {column.id: column.name for column in table.columns}
        shown = format_row(
            body[taken:],
            [type_ for _, type_ in columns],
            [names.get(column, f"dropped column {column}") for column, _ in columns],
        )
        listed = [f"lock {lock} at {at}" for lock, at in zip(found.locks, locks, strict=True)]
        return ", ".join([*listed, shown])

    return format_body
