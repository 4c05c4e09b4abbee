"""Unseen targets of joins, splits and groupings, described by hand, and what is stored in them."""

from __future__ import annotations

from collections.abc import Sequence

from instar.catalog.changes import CatalogChange
from instar.catalog.descriptors import (
    Column,
    GroupedValue,
    Index,
    IndexColumn,
    Layout,
    Lock,
    MadeByGrouping,
    MadeByJoin,
    MadeBySplit,
    Table,
    Unseen,
)
from instar.catalog.layouts import Layouts
from instar.encoding.rows import BODY_OFFSET, LOCK_BYTES
from instar.store.engine import ENTRY_VALUE, ROW_HEADER, Store, prefix_end, rowset_prefix
from instar.tables.index import IndexCodec
from instar.tables.rowset import TableReader
from instar.types import BIGINT, BOOLEAN, BYTEA, NUMERIC, SMALLINT, TEXT, Kind, Type

Row = tuple[object, ...]

ROW_ID, PARTS, R_LOCK, S_LOCK = 200, 201, 202, 203
COUNTER, CONSISTENT = 200, 201


def split_of(
    change: CatalogChange, source: Table, r: Sequence[str], s: Sequence[str], on: Sequence[str]
) -> tuple[Table, Table]:
    """R and S of a split of `source`, called r and s, created in `change`."""
    columns = {column.name: column for column in source.columns}
    by = tuple(columns[name].id for name in on)
    r_id, s_id = change.new_id(), change.new_id()
    made = MadeBySplit(
        source=source.id, r=r_id, s=s_id, on=by, counter=COUNTER, consistent=CONSISTENT, repair="fail", pause_rows=100
    )
    r_columns, s_columns = (tuple(columns[name] for name in names) for names in (r, s))
    hidden = (
        Column(id=COUNTER, name="counter", type=BIGINT, hidden=True),
        Column(id=CONSISTENT, name="consistent", type=BOOLEAN, hidden=True),
    )
    index = _index(change, r_id, 300, by)
    tables = (
        _unseen(change, r_id, "r", r_columns, source.primary_key, made, (index,)),
        _unseen(change, s_id, "s", (*s_columns, *hidden), by, made, ()),
    )
    for table in tables:
        change.create(table)
    return tables


def join_of(
    change: CatalogChange, r: Table, s: Table, on: Sequence[tuple[str, str]], *, unique: bool, merged: bool = False
) -> Table:
    """T of a join, called t, created in `change`: all columns of R, then those of S; `merged`: join columns once."""
    r_ids, s_ids = ({column.name: column.id for column in table.columns} for table in (r, s))
    pairs = tuple((r_ids[one], s_ids[other]) for one, other in on)
    of_r = {column.id: number for number, column in enumerate(r.columns, 1)}
    of_s = {column.id: number for number, column in enumerate(s.columns, 100)}
    if merged:
        of_s.update({other: of_r[one] for one, other in pairs})
    target = change.new_id()
    on_columns = [tuple(of_r[one] for one, _ in pairs), tuple(of_s[other] for _, other in pairs)]
    parts = dict.fromkeys(on_columns)
    indexes = (
        _index(change, target, 300, tuple(of_r[column] for column in r.primary_key), unique=unique),
        _index(change, target, 301, tuple(of_s[column] for column in s.primary_key)),
        *(_index(change, target, 302 + number, columns) for number, columns in enumerate(parts)),
    )
    made = MadeByJoin(
        r=r.id,
        s=s.id,
        target=target,
        r_columns=tuple(of_r.items()),
        s_columns=tuple(of_s.items()),
        on=pairs,
        unique=unique,
        parts=PARTS,
        r_lock=R_LOCK,
        s_lock=S_LOCK,
        r_index=300,
        s_index=301,
        on_indexes=tuple(index.id for index in indexes[2:]),
        pause_rows=100,
    )
    columns = [Column(id=ROW_ID, name="rowid", type=BIGINT, hidden=True)]
    columns += [Column(id=of_r[column.id], name=f"r_{column.name}", type=column.type) for column in r.columns]
    taken = {column.id for column in columns}
    columns += [
        Column(id=of_s[column.id], name=f"s_{column.name}", type=column.type)
        for column in s.columns
        if of_s[column.id] not in taken
    ]
    columns.append(Column(id=PARTS, name="parts", type=SMALLINT, hidden=True))
    locks = (Lock(id=R_LOCK, name="r", columns=()), Lock(id=S_LOCK, name="s", columns=()))
    table = _unseen(change, target, "t", tuple(columns), (ROW_ID,), made, indexes, locks)
    change.create(table)
    return table


def grouping_of(
    change: CatalogChange, source: Table, by: Sequence[str], summed: Sequence[str], *, counted: str, positive: str
) -> Table:
    """The target of a grouping, called g, created in `change`: of the rows in which the column `positive` is."""
    columns = {column.name: column for column in source.columns}
    made_of: list[Column] = []

    def add(name: str, type_: Type) -> int:
        made_of.append(Column(id=len(made_of) + 1, name=name, type=type_))
        return made_of[-1].id

    groups = tuple((columns[name].id, add(name, columns[name].type)) for name in by)
    counter = add("counter", BIGINT)
    values = [GroupedValue(columns[counted].id, add(f"{counted} count", BIGINT))]
    for name in summed:
        total = TEXT if columns[name].type.kind is Kind.NUMERIC else NUMERIC
        kept = [("count", BIGINT), ("sum", total), ("NaN", BIGINT)]
        kept += [("scales", TEXT)] if columns[name].type == NUMERIC else []
        values.append(GroupedValue(columns[name].id, *[add(f"{name} {what}", type_) for what, type_ in kept]))
    target, read = change.new_id(), columns[positive].id
    made = MadeByGrouping(
        source=source.id,
        target=target,
        groups=groups,
        values=tuple(values),
        counter=counter,
        condition=f'"#{read}" > 0',
        reads=(read,),
    )
    key = Column(id=200, name="group", type=BYTEA, nullable=False, hidden=True)
    index = _index(change, target, 300, tuple(number for _, number in groups))
    table = _unseen(change, target, "g", (*made_of, key), (key.id,), made, (index,))
    change.create(table)
    return table


def _index(change: CatalogChange, table: int, number: int, columns: Sequence[int], *, unique: bool = False) -> Index:
    return Index(
        id=number,
        name=f"i{table}_{number}",
        columns=tuple(IndexColumn(column) for column in columns),
        unique=unique,
        rowset=change.new_rowset(table),
    )


def _unseen(
    change: CatalogChange,
    number: int,
    name: str,
    columns: tuple[Column, ...],
    key: tuple[int, ...],
    made: MadeBySplit | MadeByJoin | MadeByGrouping,
    indexes: tuple[Index, ...],
    locks: tuple[Lock, ...] = (),
) -> Table:
    """A target. Its columns are stored in another order than they have."""
    stored = tuple((column.id, column.type) for column in reversed(columns))
    layout = Layout(1, stored, (0, *(lock.id for lock in locks)) if locks else ())
    return Table(
        id=number,
        name=name,
        version=1,
        columns=columns,
        primary_key=key,
        primary_key_name="",
        rowset=change.new_rowset(number),
        layout=layout,
        oldest_layout=1,
        indexes=indexes,
        locks=locks,
        next_id=400,
        unseen=Unseen(made=made, shown=tuple(column.id for column in columns if not column.hidden)),
    )


def stored(store: Store, rowset: int) -> dict[bytes, bytes]:
    """All of a rowset."""
    prefix = rowset_prefix(rowset)
    with store.read() as reader:
        return dict(reader.scan(prefix, prefix_end(prefix)))


def rows_of(store: Store, layouts: Layouts, table: Table) -> list[tuple[Row, tuple[int, ...]]]:
    """The rows of a target in the order of their keys: all columns, timestamps (the row's, then its locks')."""
    reader = TableReader(table, range(len(table.columns)), layouts)
    found = []
    for value in stored(store, table.rowset).values():
        locks = [
            int.from_bytes(value[at : at + LOCK_BYTES], "little")
            for at in range(BODY_OFFSET, BODY_OFFSET + LOCK_BYTES * len(table.layout.locks), LOCK_BYTES)
        ]
        found.append((reader.decode(value), (ROW_HEADER.unpack_from(value)[0], *locks)))
    return found


def check_entries(store: Store, layouts: Layouts, table: Table) -> None:
    """The indexes of a target have an entry per row, and no other."""
    reader = TableReader(table, range(len(table.columns)), layouts)
    prefix = rowset_prefix(table.rowset)
    rows = stored(store, table.rowset)
    for index in table.indexes:
        codec = IndexCodec(table, index)
        wanted = {}
        for key, value in rows.items():
            own = key[len(prefix) :]
            entry = codec.entry(reader.decode(value), own)
            timestamp = ROW_HEADER.unpack_from(value)[0]
            wanted[entry] = ENTRY_VALUE.pack(timestamp, 1, codec.primary_offset(entry, own))
        assert len(wanted) == len(rows)
        assert stored(store, index.rowset) == wanted
