"""The answers to \\d and its kin: descriptors as PostgreSQL's tables of what there is."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from typing import TextIO

from instar.catalog.descriptors import (
    COMPACTION_SHARE,
    DEFAULT_LOCK,
    DEFAULT_LOCK_NAME,
    Column,
    ForeignKey,
    Index,
    Object,
    Sequence,
    State,
    Table,
    View,
)
from instar.catalog.naming import not_null_names
from instar.cli.output import Column as Heading
from instar.cli.output import Row, write_table
from instar.sql.binder.deparse import quote_identifier as quoted

_ID = re.compile(r'"#(\d+)"')


def named(expression: str, table: Table) -> str:
    """A descriptor's expression, in which columns are named by id, with their names of now."""
    names = {column.id: column.name for column in table.columns}
    return _ID.sub(lambda found: quoted(names.get(int(found.group(1)), found.group())), expression)


def matching(objects: Iterable[Object], pattern: str) -> list[Object]:
    """Objects whose names match a pattern with * and ?, by name; the empty pattern is every name."""
    wanted = pattern.removeprefix("public.") or "*"
    # Unquoted names are folded, as everywhere in SQL.
    wanted = wanted[1:-1] if wanted.startswith('"') and wanted.endswith('"') else wanted.lower()
    return sorted((o for o in objects if fnmatch.fnmatchcase(o.name, wanted)), key=lambda o: o.name)


def _write(names: Iterable[str], rows: Iterable[Row], out: TextIO, *, title: str, footer: str | None = None) -> None:
    write_table([Heading(name) for name in names], rows, out, title=title, footer=footer)


def _kind(found: Object) -> str:
    if isinstance(found, View):
        return found.kind
    return "table" if isinstance(found, Table) else "sequence"


def list_objects(objects: Iterable[Object], kinds: tuple[type, ...], pattern: str, out: TextIO) -> bool:
    """\\dt, \\dv, \\ds and \\d without a name: one line per object of these classes. False: there is none."""
    found = [o for o in matching(objects, pattern) if isinstance(o, kinds)]
    if not found:
        return False
    rows = [(o.name, _kind(o), o.version) for o in found]
    _write(("Name", "Type", "Version"), rows, out, title="List of relations")
    return True


def list_indexes(objects: Iterable[Object], pattern: str, out: TextIO) -> bool:
    """\\di: primary keys and secondary indexes, with the state of what is still being built."""
    rows = []
    for table in sorted((o for o in objects if isinstance(o, Table)), key=lambda o: o.name):
        if table.primary_key and not _hidden_key(table):
            rows.append((table.primary_key_name, table.name, _key_columns(table), "primary key", State.PUBLIC.value))
        rows += [
            (index.name, table.name, _index_columns(table, index), _uniqueness(index), index.state.value)
            for index in table.indexes
        ]
    rows = [row for row in rows if fnmatch.fnmatchcase(row[0], pattern or "*")]
    if not rows:
        return False
    _write(("Name", "Table", "Columns", "Kind", "State"), rows, out, title="List of indexes")
    return True


def describe(found: Object, by_id: Mapping[int, Object], out: TextIO) -> None:
    """\\d name: what one object is made of."""
    if isinstance(found, Table):
        _describe_table(found, by_id, out)
    elif isinstance(found, View):
        rows = [(name, str(type_)) for name, type_ in found.columns]
        _write(("Column", "Type"), rows, out, title=f'{found.kind.capitalize()} "public.{found.name}"')
        if found.kept is not None:
            written = [by_id[number].name for number, _ in found.depends_on if isinstance(by_id.get(number), Table)]
            out.write(f"Stands for a table that was joined or split. Writes to: {', '.join(written)}\n")
    else:
        _describe_sequence(found, by_id, out)


def _describe_sequence(found: Sequence, by_id: Mapping[int, Object], out: TextIO) -> None:
    names = ("Type", "Start", "Minimum", "Maximum", "Increment", "Cycles?", "Cache")
    cycles = "yes" if found.cycle else "no"
    row = (str(found.type), found.start, found.minimum, found.maximum, found.increment, cycles, found.cache)
    _write(names, [row], out, title=f'Sequence "public.{found.name}"')
    if found.owned_by is not None:
        table = by_id.get(found.owned_by[0])
        if isinstance(table, Table):
            out.write(f"Owned by: {table.name}.{_column_names(table, [found.owned_by[1]])}\n")


def _describe_table(table: Table, by_id: Mapping[int, Object], out: TextIO) -> None:
    rows = [
        (column.name, str(column.type), "" if column.nullable else "not null", _default(column, table, by_id))
        for column in table.columns
        if not column.hidden
    ]
    sections = {
        "Indexes:": _index_lines(table),
        "Check constraints:": [
            f'"{check.name}" CHECK ({named(check.expression, table)})' + _state(check.state) for check in table.checks
        ],
        "Not-null constraints:": list(_not_null_lines(table)),
        "Foreign-key constraints:": [
            f'"{key.name}" {_foreign_key(key, table, by_id)}' + _state(key.state) for key in table.foreign_keys
        ],
        "Referenced by:": _references(table, by_id),
        "Locks:": _lock_lines(table),
        "Options:": _options(table),
    }
    footer = "".join(
        f"{heading}\n" + "".join(f"    {line}\n" for line in lines) for heading, lines in sections.items() if lines
    )
    title = f'Table "public.{table.name}"'
    _write(("Column", "Type", "Nullable", "Default"), rows, out, title=title, footer=footer)


def _options(table: Table) -> list[str]:
    """Those that are not as they come."""
    found = [] if table.migration == "write" else [f"migration = {table.migration}"]
    return found + (
        [] if table.compaction_share == COMPACTION_SHARE else [f"compaction_share = {table.compaction_share}"]
    )


def _not_null_lines(table: Table) -> Iterable[str]:
    """Those that were given a name, or that do not hold for all rows yet: the others go without saying."""
    names = not_null_names(table)
    for column in table.columns:
        state = State.PUBLIC if column.not_null is None else column.not_null
        if column.id in names and (column.not_null_name is not None or state is not State.PUBLIC):
            yield f'"{names[column.id]}" NOT NULL {quoted(column.name)}{_state(state)}'


def _state(state: State) -> str:
    return "" if state is State.PUBLIC else f" [{state.value}]"


def _default(column: Column, table: Table, by_id: Mapping[int, Object]) -> str:
    if column.identity is not None:
        text = f"generated {column.identity} as identity"
    elif column.generated and column.derived is not None:
        text = f"generated always as ({named(column.derived.expression, table)}) stored"
    elif column.sequence is not None and column.sequence in by_id:
        text = f"nextval('{quoted(by_id[column.sequence].name)}')"
    else:
        text = "" if column.default is None else named(column.default, table)
    return (text + _state(column.state)).strip()


def _hidden_key(table: Table) -> bool:
    return any(column.hidden for column in table.columns if column.id in table.primary_key)


def _column_names(table: Table, ids: Iterable[int]) -> str:
    names = {column.id: column.name for column in table.columns}
    return ", ".join(quoted(names[column]) for column in ids)


def _key_columns(table: Table) -> str:
    return _column_names(table, table.primary_key)


def _index_columns(table: Table, index: Index) -> str:
    return ", ".join(
        _column_names(table, [column.column]) + (" DESC" if column.descending else "") for column in index.columns
    )


def _uniqueness(index: Index) -> str:
    if index.constraint:
        return "unique constraint"
    return "unique" if index.unique else "index"


def _index_lines(table: Table) -> list[str]:
    lines = []
    if table.primary_key and not _hidden_key(table):
        lines.append(f'"{table.primary_key_name}" PRIMARY KEY ({_key_columns(table)})')
    for index in table.indexes:
        kind = "" if not index.unique else "UNIQUE CONSTRAINT " if index.constraint else "UNIQUE "
        lines.append(f'"{index.name}" {kind}({_index_columns(table, index)})' + _state(index.state))
    return lines


def _lock_lines(table: Table) -> list[str]:
    """As ALTER TABLE ... ADD LOCK takes them, and what is on its way to another lock."""
    lines = []
    names = {DEFAULT_LOCK: DEFAULT_LOCK_NAME}
    for lock in table.locks:
        names[lock.id] = lock.name
        lines.append(f'"{lock.name}" COVERS ({_column_names(table, lock.columns)})' + _state(lock.state))
    for change in table.coverage_changes:
        for column, lock_id in change.covers:
            lines.append(f'"{names[lock_id]}" COVERS ({_column_names(table, [column])}) [dual]')
    return lines


def _foreign_key(key: ForeignKey, table: Table, by_id: Mapping[int, Object]) -> str:
    parent = by_id.get(key.parent)
    parent_text = str(key.parent)
    if isinstance(parent, Table):
        parent_text = f"{quoted(parent.name)}({_column_names(parent, key.parent_columns)})"
    text = f"FOREIGN KEY ({_column_names(table, key.columns)}) REFERENCES {parent_text}"
    if key.on_update != "no action":
        text += f" ON UPDATE {key.on_update.upper()}"
    if key.on_delete != "no action":
        text += f" ON DELETE {key.on_delete.upper()}"
    return text


def _references(table: Table, by_id: Mapping[int, Object]) -> list[str]:
    lines = []
    for child_id in table.referenced_by:
        child = by_id.get(child_id)
        if isinstance(child, Table):
            lines += [
                f'TABLE "{child.name}" CONSTRAINT "{key.name}" {_foreign_key(key, child, by_id)}'
                for key in child.foreign_keys
                if key.parent == table.id
            ]
    return lines
