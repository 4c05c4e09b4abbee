"""Sources and unseen targets by hand, as the statements would make them, and what is stored in the targets."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from instar.catalog.descriptors import (
    Column,
    Index,
    IndexColumn,
    Layout,
    Lock,
    MadeByJoin,
    MadeBySplit,
    Repair,
    Table,
    Transformed,
    Unseen,
)
from instar.clock import ManualClock
from instar.schemachange.online.changes import SourceRows
from instar.schemachange.online.join_target import StoredJoin
from instar.schemachange.online.overlay import Readable
from instar.schemachange.online.split_target import StoredSplit
from instar.schemachange.online.target_rows import TargetTable
from instar.schemachange.online.transformation import OnlineJoin, OnlineSplit, join_of, split_of
from instar.store import MemoryStore, open_store
from instar.store.engine import ENTRY_VALUE, ROW_HEADER, Store, prefix_end, rowset_prefix
from instar.store.versions import visible_rows
from instar.tables.index import IndexCodec
from instar.tables.resolver import resolver
from instar.tables.rowset import wanted
from instar.transformations.records import Joined, Part, Row, Source, SRecord
from instar.types import BIGINT, BOOLEAN, INTEGER, SMALLINT, TEXT, Type
from support.world import World

ENGINES = ("memory", "lmdb")


@contextmanager
def stored_in(engine: str) -> Iterator[Store]:
    """A fresh store of the named engine, as often as one example of a property needs it."""
    clock = ManualClock()
    with tempfile.TemporaryDirectory() as directory:
        store: Store = MemoryStore(clock=clock)
        if engine == "lmdb":
            store = open_store(Path(directory) / "store", synchronous="off", clock=clock)
        try:
            yield store
        finally:
            store.close()


def target(world: World, name: str, columns: tuple[Column, ...], key: tuple[int, ...], **fields: object) -> Table:
    """An unseen table; it has indexes on these columns: (id, column ids)."""
    change = world.change()
    number = change.new_id()
    indexes: tuple[tuple[int, tuple[int, ...]], ...] = fields.pop("indexes", ())  # type: ignore[assignment]
    locks: tuple[Lock, ...] = fields.get("locks", ())  # type: ignore[assignment]
    stored = tuple((column.id, column.type) for column in reversed(columns))
    return Table(
        id=number, name=name, version=1, columns=columns, primary_key=key, primary_key_name="", next_id=500,
        rowset=change.new_rowset(number), oldest_layout=7,
        layout=Layout(7, stored, (0, *(lock.id for lock in locks)) if locks else ()),
        indexes=tuple(
            Index(
                id=index, name=f"i{index}", columns=tuple(IndexColumn(column, column % 2 == 1) for column in on),
                rowset=change.new_rowset(number),
            )
            for index, on in indexes
        ),
        **fields,  # type: ignore[arg-type]
    )  # fmt: skip


T_COLUMNS: tuple[tuple[str, Type], ...] = (
    ("id", BIGINT), ("a", INTEGER), ("z", TEXT), ("city", TEXT), ("n", INTEGER),
)  # fmt: skip
COUNTER, CONSISTENT = 201, 202


def split_world(world: World, repair: Repair = "fail", pause_rows: int = 100) -> OnlineSplit:
    """A table t (id, a, z, city, n) that is split by z into r (id, a, z) and s (z, city, n)."""
    source = world.create_table("t", T_COLUMNS)
    source = world.alter(source, transformed=Transformed(id=99, targets=()))
    made = MadeBySplit(
        source=source.id, r=0, s=0, on=(3,), counter=COUNTER, consistent=CONSISTENT, repair=repair,
        pause_rows=pause_rows,
    )  # fmt: skip
    unseen = Unseen(made=made, shown=())
    r = target(world, "r", source.columns[:3], (1,), indexes=((300, (3,)), (301, (2, 3))), unseen=unseen)
    hidden = (
        Column(id=COUNTER, name="counter", type=BIGINT, hidden=True),
        Column(id=CONSISTENT, name="consistent", type=BOOLEAN, hidden=True),
    )
    s = target(world, "s", (hidden[0], *source.columns[2:], hidden[1]), (3,), indexes=((310, (4,)),), unseen=unseen)
    return split_of(source, r, s)


R_COLUMNS: tuple[tuple[str, Type], ...] = (("id", BIGINT), ("v", TEXT), ("a", INTEGER))
S_COLUMNS: tuple[tuple[str, Type], ...] = (("id", BIGINT), ("v", TEXT), ("n", INTEGER))
R_LOCK, S_LOCK = 401, 402


def join_world(world: World, *, unique: bool, merged: bool, whole: bool = True, pause_rows: int = 100) -> OnlineJoin:
    """Tables r (id, v, a) and s (id, v, n) that are joined on v. `merged`: the target has v once; `whole`: it has n."""
    r, s = world.create_table("r", R_COLUMNS), world.create_table("s", S_COLUMNS)
    r, s = (world.alter(table, transformed=Transformed(id=99, targets=())) for table in (r, s))
    types = {1: BIGINT, 2: BIGINT, 3: TEXT, 4: TEXT, 5: INTEGER, 6: BIGINT, 7: INTEGER, 8: SMALLINT}
    left_out = {4} if merged else set()
    left_out |= set() if whole else {7}
    columns = tuple(
        Column(id=number, name=f"c{number}", type=type_, hidden=number in (1, 8))
        for number, type_ in types.items()
        if number not in left_out
    )
    s_columns = ((1, 6), (2, 3 if merged else 4), (3, 7))
    made = MadeByJoin(
        r=r.id, s=s.id, target=0, r_columns=((1, 2), (2, 3), (3, 5)), s_columns=s_columns[: 3 if whole else 2],
        on=((2, 2),), unique=unique, parts=8, r_lock=R_LOCK, s_lock=S_LOCK, r_index=300, s_index=301,
        on_indexes=(302,) if merged else (302, 303), pause_rows=pause_rows,
    )  # fmt: skip
    indexes = [(300, (2,)), (301, (6,)), (302, (3,)), (303, (4,))]
    joined = target(
        world, "t", columns, (1,), indexes=tuple(indexes[: 3 if merged else 4]),
        unseen=Unseen(made=made, shown=()),
        locks=(Lock(id=R_LOCK, name="r", columns=()), Lock(id=S_LOCK, name="s", columns=())),
    )  # fmt: skip
    return join_of(r, s, joined, row_ids())


def row_ids() -> Callable[[], int]:
    """Numbers from 1 on."""
    return itertools.count(1).__next__


# --- what is stored -------------------------------------------------------------------------------------------------


def visible(store: Store, rows: SourceRows, snapshot: int) -> dict[Row, Part]:
    """The rows of a source at a snapshot, with their timestamps."""
    start = rowset_prefix(rows.table.rowset)
    with store.read_at(snapshot) as reader:
        found = list(reader.scan(start, prefix_end(start)))
        _, values = visible_rows(reader, [key for key, _ in found], [value for _, value in found], snapshot)
        parts = [Part(rows.row(value, reader), ROW_HEADER.unpack_from(value)[0]) for value in values]
    return {rows.key(part.values): part for part in parts}


def images(target: TargetTable, view: Readable) -> dict[bytes, Row]:
    """The rows of a target by store key; its indexes have an entry for each, no more, and none is newer."""
    table = target.table
    decode = resolver(table.layout, [wanted(column) for column in table.columns])
    stored = dict(view.scan(target.prefix, prefix_end(target.prefix)))
    rows = {key: decode(value) for key, value in stored.items()}
    for index in table.indexes:
        codec = IndexCodec(table, index)
        entries = dict(view.scan(codec.prefix, prefix_end(codec.prefix)))
        keys = {codec.entry(row, key[len(target.prefix) :]): key for key, row in rows.items()}
        assert entries.keys() == keys.keys()
        for entry, value in entries.items():
            timestamp, live, offset = ENTRY_VALUE.unpack(value)
            assert target.prefix + entry[offset:] == keys[entry]
            assert (live, timestamp <= ROW_HEADER.unpack_from(stored[keys[entry]])[0]) == (1, True)
    return rows


def split_records(split: OnlineSplit, view: Readable) -> tuple[dict[Row, Part], dict[Row, SRecord]]:
    """R and S as the rules know them."""
    target = StoredSplit(split.targets, split.source.table, view)  # type: ignore[arg-type] # nothing is written
    r, s = split.targets.r, split.targets.s
    key = [column.id for column in r.table.columns].index(1)
    value = [column.id for column in s.table.columns].index(3)
    keys = [(row[key],) for row in images(r, view).values()]
    values = [(row[value],) for row in images(s, view).values()]
    return (
        {key: part for key in keys if (part := target.r(key))},
        {value: record for value in values if (record := target.s(value))},
    )


def joined_records(join: OnlineJoin, view: Readable) -> list[Joined]:
    """T as the rules know it."""
    target = StoredJoin(join.joined, (join.r.table, join.s.table), view, row_ids())  # type: ignore[arg-type]
    made, columns = join.made, [column.id for column in join.joined.t.table.columns]
    parts = columns.index(made.parts)
    keys = {
        Source.R: columns.index(dict(made.r_columns)[join.r.table.primary_key[0]]),
        Source.S: columns.index(dict(made.s_columns)[join.s.table.primary_key[0]]),
    }
    found = []
    for row in images(join.joined.t, view).values():
        wanted = [(row[keys[Source.R]],) if row[parts] in (1, 3) else None]
        wanted.append((row[keys[Source.S]],) if row[parts] in (2, 3) else None)
        source = Source.R if wanted[0] else Source.S
        (record,) = [
            record
            for record in target.of(source, wanted[0] or wanted[1] or ())
            if [part and part.values[:1] for part in (record.r, record.s)] == wanted
        ]
        found.append(record)
    return found
