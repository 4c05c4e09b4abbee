"""Changes of sources that are tables no more: one commit after the other, the targets are what the operators make of
the sources from scratch.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar import errors
from instar.catalog.descriptors import Index, IndexColumn, Kept, MadeByJoin, Table
from instar.schemachange.online.crossing import translate
from instar.schemachange.online.crossing_join import marks
from instar.schemachange.online.crossing_rows import FoundRow, Limits, RowChange
from instar.tables.rowset import key_encoder
from instar.transformations.records import Change, Deleted, Inserted, Join, Row, Source, Updated
from schemachange.online.tables import join_world, split_world
from support.world import World
from transformations.histories import JOIN, MANY, SPLIT, Sources, T
from transformations.model import contributing, full_outer_join, split_of
from transformations.test_properties import SPLIT_COMMITS, consistent_histories, join_histories

R, S = Source.R, Source.S
LIMITS = Limits(100)


class Targets:
    """Tables in memory that others write to as well."""

    def __init__(self, kept: Kept, *tables: Table) -> None:
        self.kept = kept
        self.tables = {table.id: table for table in tables}
        self.rows: dict[int, dict[bytes, Row]] = {table.id: {} for table in tables}
        self.row_ids = 0

    def by_key(self, table: Table, values: Row) -> FoundRow | None:
        key = key_encoder(table)(values)
        image = self.rows[table.id].get(key)
        return None if image is None else FoundRow(key, image)

    def by_index(self, table: Table, index: Index, values: Row) -> Iterator[FoundRow]:
        places = [[column.id for column in table.columns].index(part.column) for part in index.columns]
        for key, image in self.rows[table.id].items():
            if tuple([image[place] for place in places[: len(values)]]) == values:
                yield FoundRow(key, image)

    def change(self, *changes: Change, limits: Limits = LIMITS) -> list[RowChange]:
        made = translate(self.kept, self.tables, self, changes, limits)
        for change in made:
            self.write(change)
        return made

    def write(self, change: RowChange) -> None:
        table, rows = self.tables[change.table], self.rows[change.table]
        if change.key is not None:
            assert rows.pop(change.key) == change.before
        if change.after is not None:
            places = [[column.id for column in table.columns].index(column) for column in table.primary_key]
            image = list(change.after)
            if table.columns[places[0]].hidden and image[places[0]] is None:
                self.row_ids += 1
                image[places[0]] = self.row_ids
            key = key_encoder(table)([image[place] for place in places])
            assert key not in rows
            rows[key] = tuple(image)

    def put(self, table: Table, *values: object) -> None:
        """What somebody else puts."""
        self.write(RowChange(table.id, None, None, values))

    def shown(self, table: Table) -> list[Row]:
        visible = [place for place, column in enumerate(table.columns) if not column.hidden]
        found = [tuple([row[place] for place in visible]) for row in self.rows[table.id].values()]
        return sorted(found, key=repr)


# --- joins ------------------------------------------------------------------------------------------------------------


def joined(*, unique: bool, merged: bool = False, whole: bool = True) -> tuple[Targets, Table]:
    """T (row id; id, v, a of R; v, n, id of S) after the switch, empty."""
    join = join_world(World(), unique=unique, merged=merged, whole=whole)
    unseen = join.joined.t.table
    t = msgspec.structs.replace(
        unseen, columns=tuple(column for column in unseen.columns if column.id != 8), locks=(), unseen=None
    )
    made = msgspec.structs.replace(join.made, target=t.id)
    return Targets(Kept(made=made, sources=(join.r.table, join.s.table)), t), t


def expected(shape: Join, sources: Sources, time: int, *, merged: bool) -> list[Row]:
    """The full outer join of the sources, as T shows it: id, v, a, of S v (but once if merged), id, n."""
    made: list[Row] = []
    for record in full_outer_join(shape, sources.read(R, time), sources.read(S, time)):
        r = (None,) * 3 if record.r is None else record.r.values
        s = (None,) * 3 if record.s is None else record.s.values
        if merged:
            made.append((r[0], r[1] if record.r is not None else s[1], r[2], s[0], s[2]))
        else:
            made.append((r[0], r[1], s[1], r[2], s[0], s[2]))
    return sorted(made, key=repr)


@given(data=st.data(), unique=st.booleans(), merged=st.booleans())
def test_a_join_is_that_of_the_sources_after_every_commit(data: st.DataObject, unique: bool, merged: bool) -> None:
    sources = data.draw(join_histories(unique))
    targets, t = joined(unique=unique, merged=merged)
    for time, changes in enumerate(sources.log, 1):
        targets.change(*changes)
        assert targets.shown(t) == expected(JOIN if unique else MANY, sources, time, merged=merged)


def test_two_rows_swap_their_join_values_in_one_commit() -> None:
    targets, t = joined(unique=True, merged=True)
    targets.change(
        Inserted(S, (1,), (1, "x", 7), 0), Inserted(S, (2,), (2, "z", 8), 0), Inserted(R, (1,), (1, "x", 5), 0)
    )
    targets.change(Updated(S, (1,), (1, "x", 7), (1, "z", 7), 0), Updated(S, (2,), (2, "z", 8), (2, "x", 8), 0))
    assert targets.shown(t) == [(1, "x", 5, 2, 8), (None, "z", None, 1, 7)]


def test_a_row_of_r_stays_the_same_row_of_t() -> None:
    targets, t = joined(unique=True, merged=True)
    targets.change(Inserted(S, (1,), (1, "x", 7), 0))
    (before,) = targets.rows[t.id]
    targets.change(Inserted(R, (1,), (1, "x", 5), 0))
    assert list(targets.rows[t.id]) == [before]
    made = targets.change(Updated(R, (1,), (1, "x", 5), (1, "z", 5), 0))
    assert [(change.key, change.after and change.after[1:]) for change in made] == [
        (before, (1, "z", 5, None, None)),
        (None, (None, "x", None, 1, 7)),
    ]


def test_the_key_of_a_row_changes() -> None:
    targets, t = joined(unique=False)
    targets.change(Inserted(S, (1,), (1, "x", 7), 0), Inserted(R, (1,), (1, "x", 5), 0))
    targets.change(Deleted(R, (1,), (1, "x", 5), 0), Inserted(R, (2,), (2, "x", 5), 0))
    assert targets.shown(t) == [(2, "x", "x", 5, 1, 7)]


def test_a_row_that_is_deleted_and_inserted_again_is_another_one() -> None:
    targets, t = joined(unique=True)
    targets.change(Inserted(R, (1,), (1, "x", 5), 0))
    targets.change(Deleted(R, (1,), (1, "x", 5), 0), Inserted(R, (1,), (1, "z", 6), 0))
    assert targets.shown(t) == [(1, "z", None, 6, None, None)]


def test_rows_that_have_neither_part_and_rows_that_are_there_twice_do_not_disturb() -> None:
    targets, t = joined(unique=False, merged=True)
    targets.put(t, 100, None, "x", None, None, None)
    targets.put(t, 101, 1, "x", 5, None, None)
    targets.put(t, 102, 1, "x", 5, None, None)
    targets.change(Updated(R, (1,), (1, "x", 5), (1, "x", 6), 0))
    assert targets.shown(t) == [(1, "x", 6, None, None), (1, "x", 6, None, None), (None, "x", None, None, None)]
    targets.change(Deleted(R, (1,), (1, "x", 6), 0), Inserted(S, (1,), (1, "x", 7), 0))
    assert targets.shown(t) == [(None, "x", None, 1, 7), (None, "x", None, None, None)]


def test_what_t_has_not_goes_nowhere() -> None:
    targets, t = joined(unique=True, merged=True, whole=False)
    targets.change(Inserted(S, (1,), (1, "x", 7), 0), Inserted(R, (1,), (1, "x", 5), 0))
    assert targets.shown(t) == [(1, "x", 5, 1)]
    assert targets.change(Updated(S, (1,), (1, "x", 7), (1, "x", 8), 0)) == []


def test_equal_and_yet_another_value_is_written() -> None:
    targets, _ = joined(unique=True)
    targets.change(Inserted(R, (1,), (1, "x", 5), 0))
    assert targets.change(Updated(R, (1,), (1, "x", 5), (1, "x", 5), 0)) == []
    (made,) = targets.change(Updated(R, (1,), (1, "x", 5), (1, "x", 5.0), 0))
    assert repr(made.after) == repr((1, 1, "x", None, 5.0, None, None))


@pytest.mark.parametrize(
    ("change", "sqlstate", "said"),
    [
        (Inserted(R, (1,), (1, "z", 5), 0), errors.UNIQUE_VIOLATION, 'unique constraint "r_pkey"'),
        (Inserted(S, (2,), (2, "x", 7), 0), errors.UNIQUE_VIOLATION, "Key (v)=(x) already exists."),
        (Updated(R, (2,), (2, "x", 5), (2, "x", 6), 0), errors.SERIALIZATION_FAILURE, "Row (id)=(2) was changed"),
        (Deleted(S, (2,), (2, "x", 5), 0), errors.SERIALIZATION_FAILURE, "Row (id)=(2) was changed"),
    ],
)
def test_what_contradicts_the_rows_that_are_there_is_refused(change: Change, sqlstate: str, said: str) -> None:
    targets, _ = joined(unique=True)
    sources = tuple(
        msgspec.structs.replace(table, primary_key_name=f"{table.name}_pkey", indexes=(unique_on_v(table),))
        for table in targets.kept.sources
    )
    targets.kept = msgspec.structs.replace(targets.kept, sources=sources)
    targets.change(Inserted(S, (1,), (1, "x", 7), 0), Inserted(R, (1,), (1, "x", 5), 0))
    with pytest.raises(errors.Error, match=r"violates|concurrent") as refused:
        targets.change(change)
    assert refused.value.sqlstate == sqlstate
    assert said in f"{refused.value.message} {refused.value.detail}"


def unique_on_v(table: Table) -> Index:
    return Index(id=50, name=f"{table.name}_v_key", columns=(IndexColumn(2),), unique=True, rowset=1)


def test_a_limit_holds_for_rows_of_the_targets() -> None:
    targets, _ = joined(unique=True)
    targets.change(*(Inserted(R, (number,), (number, "x", 5), 0) for number in range(5)))
    targets.change(Inserted(S, (1,), (1, "x", 7), 0), limits=Limits(5))
    with pytest.raises(errors.Error, match="more than 4 rows") as refused:
        targets.change(Updated(S, (1,), (1, "x", 7), (1, "x", 8), 0), limits=Limits(4, too_many="40001"))
    assert refused.value.sqlstate == errors.SERIALIZATION_FAILURE


def test_without_its_indexes_nothing_can_be_found() -> None:
    targets, t = joined(unique=True)
    targets.tables[t.id] = msgspec.structs.replace(t, indexes=t.indexes[1:])
    with pytest.raises(errors.Error, match=r"no index on \(c2\)"):
        targets.change(Inserted(R, (1,), (1, "x", 5), 0))


def test_what_tells_the_parts() -> None:
    targets, _ = joined(unique=True, merged=True)
    made, sources = targets.kept.made, targets.kept.sources
    assert isinstance(made, MadeByJoin)
    assert (marks(made, sources, R), marks(made, sources, S)) == ((2,), (6,))
    shared = msgspec.structs.replace(made, r_columns=((1, 2), (3, 5)), s_columns=((1, 2), (3, 7)), on=((1, 1),))
    with pytest.raises(errors.Error, match='no row of table "r" could not be told'):
        marks(shared, sources, R)
    one, other = (
        msgspec.structs.replace(
            table,
            columns=(*table.columns[:2], msgspec.structs.replace(table.columns[2], nullable=False)),
        )
        for table in sources
    )
    assert (marks(shared, (one, other), R), marks(shared, (one, other), S)) == ((5,), (7,))


# --- splits -----------------------------------------------------------------------------------------------------------


def split() -> tuple[Targets, Table, Table]:
    """R (id, a, z) and S (z, city, n) after the switch, empty."""
    made = split_world(World())
    r = msgspec.structs.replace(made.targets.r.table, unseen=None)
    unseen = made.targets.s.table
    s = msgspec.structs.replace(unseen, columns=unseen.columns[1:-1], unseen=None)
    kept = Kept(made=msgspec.structs.replace(made.made, r=r.id, s=s.id), sources=(made.source.table,))
    return Targets(kept, r, s), r, s


def without_what_would_be_lost(changes: list[Change]) -> list[Change]:
    """A row whose split value is NULL has nothing that is S's."""

    def kept(row: Row) -> Row:
        return row if row[2] is not None else (*row[:3], None, None)

    return [
        msgspec.structs.replace(
            change, **{name: kept(getattr(change, name)) for name in ("before", "after") if hasattr(change, name)}
        )
        for change in changes
    ]


@given(sources=consistent_histories())
def test_a_split_is_that_of_the_source_after_every_commit(sources: Sources) -> None:
    targets, r, s = split()
    for time, changes in enumerate(sources.log, 1):
        targets.change(*without_what_would_be_lost(changes))
        of_r, of_s = split_of(SPLIT, sources.read(T, time))
        assert targets.shown(r) == sorted([part.values for part in of_r.values()], key=repr)
        assert targets.shown(s) == sorted([record.values for record in of_s.values()], key=repr)


@given(commits=SPLIT_COMMITS)
def test_contradictions_are_refused_and_nothing_else(commits: list[dict[tuple[Source, Row], Row | None]]) -> None:
    targets, _, s = split()
    done: list[dict[tuple[Source, Row], Row | None]] = []
    for writes in commits:
        wanted = {place: None if row is None or row[2] is None else row for place, row in writes.items()}
        sources = Sources(*done, wanted)
        groups = contributing(SPLIT, sources.read(T, sources.now))
        if all(len({part.values[2:] for part in parts}) == 1 for parts in groups.values()):
            targets.change(*sources.log[-1])
            done.append(wanted)
        else:
            with pytest.raises(errors.Error, match="would contradict each other") as refused:
                targets.change(*sources.log[-1])
            assert refused.value.sqlstate == errors.CHECK_VIOLATION
        assert [row[0] for row in targets.shown(s)] == sorted(
            {part.values[2] for part in Sources(*done).read(T, len(done)).values()}  # type: ignore[type-var]
        )


def test_a_contradiction_is_told() -> None:
    targets, _, _ = split()
    targets.change(Inserted(T, (1,), (1, 5, "x", "A", 1), 0), Inserted(T, (2,), (2, 5, "x", "A", 1), 0))
    with pytest.raises(errors.Error, match='rows of what was table "t"') as refused:
        targets.change(
            Updated(T, (1,), (1, 5, "x", "A", 1), (1, 5, "x", "B", 1), 0), limits=Limits(10, contradiction="40001")
        )
    assert refused.value.sqlstate == errors.SERIALIZATION_FAILURE
    assert refused.value.detail == 'Rows with (z)=(x) would differ in columns of table "s", which has one row for them.'


def test_rows_that_s_has_not_stand_for_null() -> None:
    targets, r, s = split()
    targets.put(r, 1, 5, "x")
    targets.put(r, 2, 5, "x")
    with pytest.raises(errors.Error, match="would contradict each other") as refused:
        targets.change(Inserted(T, (3,), (3, 5, "x", "A", 1), 0))
    assert refused.value.detail is not None
    assert refused.value.detail.endswith('of table "s", which has no row for them yet: there they are NULL.')
    targets.change(Updated(T, (1,), (1, 5, "x", None, None), (1, 6, "x", None, None), 0))
    targets.change(Deleted(T, (2,), (2, 5, "x", None, None), 0))
    assert (targets.shown(r), targets.shown(s)) == ([(1, 6, "x")], [])
    targets.change(Updated(T, (1,), (1, 6, "x", None, None), (1, 6, "x", "A", 1), 0))
    assert targets.shown(s) == [("x", "A", 1)]
    targets.put(r, 3, 5, "z")
    targets.change(Deleted(T, (3,), (3, 5, "z", None, None), 0))
    assert (targets.shown(r), targets.shown(s)) == ([(1, 6, "x")], [("x", "A", 1)])


def test_a_row_of_s_that_nothing_refers_to_is_not_overwritten() -> None:
    """Somebody has put it there, and these changes were not made on it."""
    targets, r, s = split()
    targets.put(s, "x", "A", 1)
    with pytest.raises(errors.Error, match="would contradict each other"):
        targets.change(Inserted(T, (1,), (1, 5, "x", "B", 1), 0))
    assert (targets.shown(r), targets.shown(s)) == ([], [("x", "A", 1)])
    targets.change(Inserted(T, (1,), (1, 5, "x", "A", 1), 0))
    assert (targets.shown(r), targets.shown(s)) == ([(1, 5, "x")], [("x", "A", 1)])


def test_the_last_of_many_rows_takes_the_row_of_s_with_it() -> None:
    targets, r, s = split()
    rows = [(number, 5, "x", "A", 1) for number in range(8)]
    targets.change(*(Inserted(T, row[:1], row, 0) for row in rows))
    targets.change(*(Deleted(T, row[:1], row, 0) for row in rows[:3]))
    assert len(targets.shown(s)) == 1
    targets.change(*(Deleted(T, row[:1], row, 0) for row in rows[3:]))
    assert (targets.shown(r), targets.shown(s)) == ([], [])


def test_a_row_is_not_split_into_nothing() -> None:
    targets, _, _ = split()
    with pytest.raises(errors.Error, match='null value in column "z"') as refused:
        targets.change(Inserted(T, (1,), (1, 5, None, "A", None), 0))
    assert refused.value.sqlstate == errors.NOT_NULL_VIOLATION
    with pytest.raises(errors.Error, match="due to a concurrent update"):
        targets.change(Deleted(T, (1,), (1, 5, None, None, None), 0))
