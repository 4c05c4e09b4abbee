"""System views: `instar.*`, information_schema and what of pg_catalog clients ask for, made from the catalog when read.

What a view is, and is made from, is in system_views.py; those of constraints are in constraint_tables.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from instar.catalog.catalog import PUBLIC_SCHEMA
from instar.catalog.constraint_tables import CONSTRAINT_VIEWS
from instar.catalog.descriptors import (
    DEFAULT_LOCK,
    DEFAULT_LOCK_NAME,
    Check,
    ForeignKey,
    Index,
    State,
    Table,
)
from instar.catalog.history import dropped_columns, dropped_objects
from instar.catalog.naming import not_null_names
from instar.catalog.system_views import Row, Source, View, has_row_id, user_columns, view
from instar.store.header import TIMESTAMP_SHIFT
from instar.types import BIGINT, BOOLEAN, DOUBLE, INTEGER, NUMBERS, TEXT, TIMESTAMPTZ, Kind, Type


def _tables(source: Source) -> Iterator[Row]:
    for table in source.catalog.tables():
        yield (table.id, table.name, table.version, table.layout.id, len(tuple(user_columns(table))))


def _columns(source: Source) -> Iterator[Row]:
    for table in source.catalog.tables():
        for position, column in enumerate(user_columns(table), 1):
            yield (
                table.id, table.name, column.id, position, column.name, str(column.type), column.nullable,
                column.default, column.identity, column.id in table.primary_key,
            )  # fmt: skip


def _indexes(source: Source) -> Iterator[Row]:
    for table in source.catalog.tables():
        for index in table.indexes:
            yield (table.id, table.name, index.id, index.name, _listed(table, index), index.unique, index.state.value)


def _listed(table: Table, index: Index, written: Callable[[str], str] = str) -> str:
    names = {column.id: written(column.name) for column in table.columns}
    return ", ".join(names[part.column] + (" DESC" if part.descending else "") for part in index.columns)


def _constraints(source: Source) -> Iterator[Row]:
    for table in source.catalog.tables():
        if not has_row_id(table):
            yield (table.name, table.primary_key_name, "PRIMARY KEY", State.PUBLIC.value)
        for index in table.indexes:
            if index.constraint:
                yield (table.name, index.name, "UNIQUE", index.state.value)
        listed: list[tuple[str, Check | ForeignKey]] = [("CHECK", check) for check in table.checks]
        listed += [("FOREIGN KEY", key) for key in table.foreign_keys]
        for kind, found in listed:
            yield (table.name, found.name, kind, found.state.value)
        names = not_null_names(table)
        for column in table.columns:
            if column.id in names:
                state = State.PUBLIC if column.not_null is None else column.not_null
                yield (table.name, names[column.id], "NOT NULL", state.value)


def _locks(source: Source) -> Iterator[Row]:
    """A row per lock, the default one included; during a change of coverage a column stands at both its locks."""
    for table in source.catalog.tables():
        default = (DEFAULT_LOCK, DEFAULT_LOCK_NAME, State.PUBLIC)
        for number, name, state in (default, *((lock.id, lock.name, lock.state) for lock in table.locks)):
            columns = [column.name for column in user_columns(table) if number in table.covering(column.id)]
            yield (table.id, table.name, number, name, ", ".join(columns), state.value)


def _sequences(source: Source) -> Iterator[Row]:
    for found in source.catalog.sequences():
        yield (
            found.id, found.name, str(found.type), found.start, found.increment, found.minimum, found.maximum,
            found.cycle,
        )  # fmt: skip


def _views(source: Source) -> Iterator[Row]:
    for found in source.catalog.views():
        if found.materialized is None:
            yield (found.id, found.name, found.version, found.query)


def _dropped(source: Source) -> Iterator[Row]:
    """What UNDROP brings back, the latest drop first."""
    kept_us = int(source.store.retention_seconds * 1e6)
    with source.store.read() as reader:
        objects = list(dropped_objects(reader))
        columns = [
            one for table in source.catalog.tables() for one in dropped_columns(reader, table) if one.is_kept(table)
        ]
    found: list[tuple[int, str, int, str, str | None]] = [
        (one.timestamp, "table", one.found.id, one.found.name, None) for one in objects if isinstance(one.found, Table)
    ]
    found += [(one.timestamp, "column", one.table.id, one.table.name, one.column.name) for one in columns]
    for timestamp, kind, number, table, column in sorted(found, reverse=True, key=lambda row: row[0]):
        dropped_us = (timestamp >> TIMESTAMP_SHIFT) * 1000
        yield (kind, number, table, column, dropped_us, dropped_us + kept_us)


def _relations(source: Source) -> Iterator[Row]:
    for table in source.catalog.tables():
        yield (source.database, PUBLIC_SCHEMA, table.name, "BASE TABLE", "YES")
    for found in source.catalog.views():
        if found.materialized is None:  # the standard knows no others, and PostgreSQL lists none
            yield (source.database, PUBLIC_SCHEMA, found.name, "VIEW", "NO" if found.kept is None else "YES")
    for system in source.catalog.system_views():
        yield (source.database, system.schema, system.name, "VIEW", "NO")


def _all_columns(source: Source) -> Iterator[Row]:
    for table in source.catalog.tables():
        for position, column in enumerate(user_columns(table), 1):
            always = column.identity is not None
            default = None if always else source.default_of(column, source.catalog)
            made_of = source.generation_of(column, table, source.catalog)
            yield (
                *_column_row(source, table.name, column.name, position, column.type, column.nullable, default),
                "YES" if always else "NO", "NEVER" if made_of is None else "ALWAYS", made_of,
            )  # fmt: skip
    for found in source.catalog.views():
        if found.materialized is not None:
            continue
        for position, (name, type_) in enumerate(found.columns, 1):
            yield (*_column_row(source, found.name, name, position, type_, True, None), "NO", "NEVER", None)


def _column_row(
    source: Source,
    table: str,
    name: str,
    position: int,
    type_: Type,
    nullable: bool,
    default: str | None,
) -> Row:
    precision, scale = (type_.precision, type_.scale) if type_.kind in NUMBERS else (None, None)
    return (
        source.database, PUBLIC_SCHEMA, table, name, position, default, "YES" if nullable else "NO", type_.kind.value,
        type_.length if type_.kind is Kind.VARCHAR else None, precision, scale,
    )  # fmt: skip


def _schemata(source: Source) -> Iterator[Row]:
    schemas = {PUBLIC_SCHEMA, *(system.schema for system in source.catalog.system_views())}
    for schema in sorted(schemas):
        yield (source.database, schema)


def _pg_tables(source: Source) -> Iterator[Row]:
    for table in source.catalog.tables():
        yield (PUBLIC_SCHEMA, table.name, "instar", bool(table.indexes) or not has_row_id(table))


def _pg_indexes(source: Source) -> Iterator[Row]:
    quoted = source.quoted
    for table in source.catalog.tables():
        names = {column.id: quoted(column.name) for column in table.columns}
        listed = [(index.name, index.unique, _listed(table, index, quoted)) for index in table.indexes]
        if not has_row_id(table):
            key = ", ".join(names[column] for column in table.primary_key)
            listed.insert(0, (table.primary_key_name, True, key))
        for name, is_unique, columns in listed:
            unique = "UNIQUE " if is_unique else ""
            definition = f"CREATE {unique}INDEX {quoted(name)} ON public.{quoted(table.name)} USING btree ({columns})"
            yield (PUBLIC_SCHEMA, table.name, name, definition)


SYSTEM_VIEWS: tuple[View, ...] = (
    view("instar", "tables", _tables, id=BIGINT, name=TEXT, version=BIGINT, layout=BIGINT, columns=INTEGER),
    view(
        "instar", "columns", _columns, table_id=BIGINT, table_name=TEXT, id=BIGINT, position=INTEGER, name=TEXT,
        type=TEXT, nullable=BOOLEAN, default_expression=TEXT, identity=TEXT, primary_key=BOOLEAN,
    ),
    view(
        "instar", "indexes", _indexes, table_id=BIGINT, table_name=TEXT, id=BIGINT, name=TEXT, columns=TEXT,
        is_unique=BOOLEAN, state=TEXT,
    ),
    view("instar", "constraints", _constraints, table_name=TEXT, name=TEXT, kind=TEXT, state=TEXT),
    view(
        "instar", "locks", _locks, table_id=BIGINT, table_name=TEXT, id=BIGINT, name=TEXT, columns=TEXT, state=TEXT,
    ),
    view(
        "instar", "sequences", _sequences, id=BIGINT, name=TEXT, type=TEXT, start=BIGINT, increment=BIGINT,
        minimum=BIGINT, maximum=BIGINT, cycles=BOOLEAN,
    ),
    view("instar", "views", _views, id=BIGINT, name=TEXT, version=BIGINT, query=TEXT),
    view(
        # Its rows are made by the database package, which knows jobs.
        "instar", "jobs", lambda source: (), id=BIGINT, kind=TEXT, statement=TEXT, state=TEXT, reason=TEXT,
        stage=INTEGER, stages=INTEGER, progress=DOUBLE, rows_done=BIGINT, rows_total=BIGINT, rows_per_second=DOUBLE,
        eta=TIMESTAMPTZ, priority=INTEGER, max_rows_per_second=BIGINT, latency_target_ms=DOUBLE, statement_hash=TEXT,
        created_at=TIMESTAMPTZ, started_at=TIMESTAMPTZ, finished_at=TIMESTAMPTZ,
    ),
    view(
        "instar", "job_history", lambda source: (), job=BIGINT, at=TIMESTAMPTZ, state=TEXT, stage=INTEGER, who=TEXT,
        note=TEXT,
    ),
    view(
        "instar", "materialized_views", lambda source: (), id=BIGINT, name=TEXT, definition=TEXT, state=TEXT,
        reason=TEXT, as_of=TIMESTAMPTZ, seconds_behind=DOUBLE, commits_behind=BIGINT, rows=BIGINT,
    ),
    # So are those of these two, which need the clock.
    view(
        "instar", "servers", lambda source: (), pid=BIGINT, started_at=TIMESTAMPTZ, schema_version=BIGINT,
        lease_until=TIMESTAMPTZ, is_worker=BOOLEAN, is_self=BOOLEAN,
    ),
    view(
        "instar", "schema_versions", lambda source: (), version=BIGINT, committed_at=TIMESTAMPTZ, change=TEXT,
        abrupt=BOOLEAN, servers=INTEGER,
    ),
    view(
        # Of the process's own cache, whatever the snapshot.
        "instar", "metadata_cache", lambda source: (), kind=TEXT, id=BIGINT, name=TEXT, versions=INTEGER,
        payloads=INTEGER, bytes=BIGINT, changed_at=TIMESTAMPTZ, last_used_at=TIMESTAMPTZ,
    ),
    # And of this one, which is no part of the catalog.
    view(
        "instar", "transaction_locks", lambda source: (), pid=BIGINT, transaction=BIGINT, table_name=TEXT,
        index_name=TEXT, key=TEXT, mode=TEXT, granted=BOOLEAN, waits_for=TEXT,
    ),
    # And of this one, which need a look at rows.
    view(
        "instar", "layouts", lambda source: (), table_id=BIGINT, table_name=TEXT, layout=BIGINT, oldest=BIGINT,
        columns=TEXT, older_share=DOUBLE, older_layouts=INTEGER, compaction_share=DOUBLE,
    ),
    view(
        "instar", "dropped", _dropped, kind=TEXT, table_id=BIGINT, table_name=TEXT, column_name=TEXT,
        dropped_at=TIMESTAMPTZ, kept_until=TIMESTAMPTZ,
    ),
    view(
        "information_schema", "tables", _relations, table_catalog=TEXT, table_schema=TEXT, table_name=TEXT,
        table_type=TEXT, is_insertable_into=TEXT,
    ),
    view(
        "information_schema", "columns", _all_columns, table_catalog=TEXT, table_schema=TEXT, table_name=TEXT,
        column_name=TEXT, ordinal_position=INTEGER, column_default=TEXT, is_nullable=TEXT, data_type=TEXT,
        character_maximum_length=INTEGER, numeric_precision=INTEGER, numeric_scale=INTEGER, is_identity=TEXT,
        is_generated=TEXT, generation_expression=TEXT,
    ),
    *CONSTRAINT_VIEWS,
    view("information_schema", "schemata", _schemata, catalog_name=TEXT, schema_name=TEXT),
    view("pg_catalog", "pg_tables", _pg_tables, schemaname=TEXT, tablename=TEXT, tableowner=TEXT, hasindexes=BOOLEAN),
    view("pg_catalog", "pg_indexes", _pg_indexes, schemaname=TEXT, tablename=TEXT, indexname=TEXT, indexdef=TEXT),
)  # fmt: skip
