"""Optimistic locks of rows: who conflicts with whom, what a merge leaves, and the timestamps that are stored."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instar import errors
from instar.catalog.descriptors import CoverageChange, Layout, Lock, Table
from instar.store.engine import ROW_HEADER, rowset_prefix
from instar.tables.index import IndexReader
from instar.tables.locks import LockTimestamps
from instar.tables.rowset import TableReader
from instar.tables.view import END
from instar.tables.writes import Derivation
from instar.transactions.buffer import Buffer
from instar.transactions.commit import Conflict, commit
from instar.types import BIGINT, INTEGER, TEXT
from support.world import World

COLUMNS = (("id", BIGINT), ("a", INTEGER), ("b", INTEGER), ("c", TEXT))
A, B, C = 2, 3, 4
LOCK_A, LOCK_B = 7, 8


def with_locks(table: Table, *locks: Lock, coverage_changes: tuple[CoverageChange, ...] = ()) -> dict[str, Any]:
    ids = (0, *(lock.id for lock in locks)) if locks else ()
    layout = Layout(table.layout.id + 1, table.layout.columns, ids)
    return {"locks": locks, "layout": layout, "coverage_changes": coverage_changes}


class LockedWorld(World):
    """Table t (id, a, b, c) with index ab on (a, b); lock la covers a, lock lb covers b, the default lock c."""

    def __init__(self, *, unique: bool = False, locked: bool = True) -> None:
        super().__init__()
        self.create_table("t", COLUMNS, indexes=[("ab", (A, B), unique)])
        if locked:
            self.lock()

    @property
    def table(self) -> Table:
        found = self.catalog().lookup("public", "t")
        assert isinstance(found, Table)
        return found

    def lock(self) -> None:
        both = (Lock(id=LOCK_A, name="la", columns=(A,)), Lock(id=LOCK_B, name="lb", columns=(B,)))
        self.alter(self.table, **with_locks(self.table, *both))

    def begin(self) -> Client:
        return Client(self)

    def rows(self) -> list[tuple[object, ...]]:
        return list(TableReader(self.table, range(4), self.layouts).scan(self.view(), b"", END))

    def by_index(self) -> list[tuple[object, ...]]:
        table = self.table
        return list(IndexReader(table, table.indexes[0], range(4), self.layouts).scan(self.view(), b"", END))

    def timestamps(self, identity: int) -> dict[int, int]:
        """The row's timestamp under each lock, and (-1) its commit timestamp."""
        table = self.table
        key = TableReader(table, [0], self.layouts).encode_key((identity,))
        with self.store.read() as reader:
            stored = reader.get(rowset_prefix(table.rowset) + key)
        assert stored is not None
        locks = LockTimestamps(table, self.layouts)
        found = {lock: locks.of(stored, lock) for lock in (0, *(lock.id for lock in table.locks))}
        return found | {-1: ROW_HEADER.unpack_from(stored)[0]}


class Client:
    """A transaction on the table of a LockedWorld, at the snapshot of its beginning."""

    def __init__(self, world: LockedWorld) -> None:
        self.world = world
        self.table = world.table
        self.snapshot = world.now()
        self.buffer = Buffer()
        self.reader = TableReader(self.table, range(4), world.layouts)

    def insert(self, *values: object) -> Client:
        self.buffer.insert(self.table.id, self.table.version, self.reader.encode_key(values[:1]), values)
        return self

    def read(self, identity: int) -> Any:
        return self.reader.get_version(self.world.view(self.snapshot, self.buffer), self.reader.encode_key((identity,)))

    def update(self, identity: int, **changes: object) -> Client:
        found = self.read(identity)
        names = [column.name for column in self.table.columns]
        image = tuple(changes.get(name, value) for name, value in zip(names, found.values, strict=True))
        changed = frozenset(names.index(name) + 1 for name in changes)
        self.buffer.update(self.table.id, self.table.version, found.key, found.base, found.values, image, changed)
        return self

    def delete(self, identity: int) -> Client:
        found = self.read(identity)
        self.buffer.delete(self.table.id, self.table.version, found.key, found.base, found.values)
        return self

    def commit(self) -> int:
        return self.world.commit(self.buffer)

    def conflicts(self) -> errors.Error:
        with pytest.raises(Conflict) as caught:
            self.commit()
        assert caught.value.reported.sqlstate == errors.SERIALIZATION_FAILURE
        return caught.value.reported


@pytest.fixture
def world() -> LockedWorld:
    made = LockedWorld()
    made.begin().insert(1, 10, 20, "x").commit()
    return made


def test_changes_under_different_locks_both_stand(world: LockedWorld) -> None:
    """Schedule 2: the index on (a, b) has what the two make together."""
    one, other = world.begin().update(1, a=11), world.begin().update(1, b=21)
    first, second = one.commit(), other.commit()
    assert world.rows() == world.by_index() == [(1, 11, 21, "x")]
    found = world.timestamps(1)
    assert (found[LOCK_A], found[LOCK_B], found[-1]) == (first, second, second)
    assert found[0] < first


def test_a_third_change_meets_what_its_own_locks_cover_only(world: LockedWorld) -> None:
    slow = world.begin().update(1, c="slow")
    world.begin().update(1, a=11).commit()
    world.begin().update(1, b=21, a=12).commit()
    slow.commit()
    assert world.rows() == world.by_index() == [(1, 12, 21, "slow")]


@pytest.mark.parametrize(
    ("mine", "theirs"), [({"a": 1}, {"a": 2}), ({"a": 1, "b": 1}, {"b": 2}), ({"c": "m"}, {"c": "t"})]
)
def test_changes_under_one_lock_conflict(world: LockedWorld, mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    client = world.begin().update(1, **mine)
    world.begin().update(1, **theirs).commit()
    assert "Key" not in str(client.conflicts().detail)
    before = {"a": 10, "b": 20, "c": "x"} | theirs
    assert world.rows() == [(1, *before.values())]


def test_a_delete_meets_every_lock(world: LockedWorld) -> None:
    gone, changed = world.begin().delete(1), world.begin().update(1, c="y")
    changed.commit()
    gone.conflicts()
    late = world.begin().update(1, a=5)
    world.begin().delete(1).commit()
    late.conflicts()
    assert world.rows() == world.by_index() == []


def test_a_row_that_was_deleted_and_came_back_is_another(world: LockedWorld) -> None:
    late = world.begin().update(1, a=5)
    world.begin().delete(1).insert(1, 10, 20, "x").commit()
    late.conflicts()
    later = world.begin().update(1, a=6)
    world.begin().delete(1).commit()
    back = world.begin().insert(1, 10, 20, "x").commit()
    later.conflicts()
    assert set(world.timestamps(1).values()) == {back}


def test_replacing_a_row_as_a_whole_meets_every_lock(world: LockedWorld) -> None:
    replaced = world.begin().delete(1).insert(1, 0, 0, "new")
    world.begin().update(1, c="y").commit()
    replaced.conflicts()


def test_two_rows_do_not_stand_under_one_key_that_only_their_merge_has() -> None:
    world = LockedWorld(unique=True)
    world.begin().insert(1, 1, 1, "x").insert(2, 2, 2, "x").commit()
    one, other = world.begin().update(1, a=2), world.begin().update(1, b=2)
    one.commit()
    assert "ab" in other.conflicts().message
    assert world.rows() == world.by_index() == [(1, 2, 1, "x"), (2, 2, 2, "x")]


def test_rows_of_before_the_locks_count_with_their_commit_timestamp() -> None:
    world = LockedWorld(locked=False)
    inserted = world.begin().insert(1, 10, 20, "x").commit()
    early = world.begin().update(1, a=1)
    world.begin().update(1, b=2).commit()
    world.lock()
    # Which of the locks moved is not known of a row without lock timestamps.
    with pytest.raises(Conflict):
        world.commit(early.buffer)
    assert len(set(world.timestamps(1).values())) == 1
    one, other = world.begin().update(1, a=11), world.begin().update(1, b=21)
    one.commit()
    other.commit()
    assert world.rows() == world.by_index() == [(1, 11, 21, "x")]
    assert inserted < world.timestamps(1)[0] < world.timestamps(1)[LOCK_A]


def test_dual_coverage_meets_and_moves_both_locks(world: LockedWorld) -> None:
    """Column a goes from lock la to lock lb."""
    change = CoverageChange(id=50, covers=((A, LOCK_B),))
    world.alter(world.table, **with_locks(world.table, *world.table.locks, coverage_changes=(change,)))
    both, b_only = world.begin().update(1, a=1), world.begin().update(1, b=1)
    moved = both.commit()
    assert {world.timestamps(1)[lock] for lock in (LOCK_A, LOCK_B)} == {moved}
    b_only.conflicts()
    both = world.begin().update(1, a=3)
    world.begin().update(1, b=3).commit()
    both.conflicts()


def test_locks_that_are_gone_are_forgotten(world: LockedWorld) -> None:
    world.begin().update(1, a=11).commit()
    before = world.timestamps(1)
    world.alter(world.table, **with_locks(world.table, world.table.locks[1]))
    world.begin().update(1, b=21).commit()
    assert world.timestamps(1)[0] == before[0]
    world.alter(world.table, **with_locks(world.table))
    one, other = world.begin().update(1, a=1), world.begin().update(1, b=1)
    one.commit()
    other.conflicts()
    assert world.rows() == [(1, 1, 21, "x")]


def test_what_a_recheck_refuses_is_a_conflict(world: LockedWorld) -> None:
    """Rule 16: a CHECK on a and b, which each of the two changes satisfies."""
    one, other = world.begin().update(1, a=30), world.begin().update(1, b=30)
    one.commit()
    seen = []

    def recheck(table: Table, image: tuple[object, ...]) -> None:
        seen.append(image)
        raise errors.error(errors.CHECK_VIOLATION, "a + b is too much")

    def derive(reader: Any) -> Any:
        catalog = world.catalog_cache.at(reader)
        derivation = Derivation(reader, recheck)
        (changed,) = other.buffer
        derivation.table(world.writers.get(world.table, catalog), changed)

    with pytest.raises(Conflict) as caught:
        commit(world.store, derive)
    assert caught.value.reported.sqlstate == errors.SERIALIZATION_FAILURE
    assert "a + b is too much" in str(caught.value.reported.detail)
    assert seen == [(1, 30, 30, "x")]


def test_older_snapshots_read_what_they_always_did(world: LockedWorld) -> None:
    snapshot = world.now()
    one, other = world.begin().update(1, a=11), world.begin().update(1, b=21)
    between = one.commit()
    other.commit()
    reader = TableReader(world.table, range(4), world.layouts)
    assert list(reader.scan(world.view(snapshot), b"", END)) == [(1, 10, 20, "x")]
    assert list(reader.scan(world.view(between), b"", END)) == [(1, 11, 20, "x")]
    batches = [batch.to_pylist() for batch in reader.arrow(world.view())]
    assert [tuple(row.values()) for batch in batches for row in batch] == [(1, 11, 21, "x")]


# --- against a model ------------------------------------------------------------------------------------------------

SETS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 3), min_size=1)
OPERATIONS: st.SearchStrategy[tuple[str, dict[str, int]]] = st.one_of(
    st.tuples(st.just("update"), SETS), st.just(("delete", {})), st.just(("insert", {}))
)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(0, 1), OPERATIONS), st.tuples(st.just("commit"), st.integers(0, 9))
    ),
    min_size=4,
    max_size=25,
)
COVERED = {"a": LOCK_A, "b": LOCK_B, "c": 0}


class Model:
    """Rows as dictionaries; when each row began, and when each of its columns last changed."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, Any]] = {}
        self.changed: dict[tuple[int, str], int] = {}
        self.clock = 0

    def commit(self, row: int, operation: str, values: dict[str, Any], since: int) -> bool:
        """Whether it stands."""
        self.clock += 1
        if operation == "insert":
            if row in self.rows:
                return False
            self.rows[row] = {"a": 0, "b": 0, "c": "0"}
            self.changed |= {(row, name): self.clock for name in "abc"}
            return True
        met = list(values) or list("abc")
        if row not in self.rows or any(self.changed[row, name] > since for name in met):
            return False
        if operation == "delete":
            del self.rows[row]
        else:
            self.rows[row] |= values
        self.changed |= {(row, name): self.clock for name in met}
        return True


@given(EVENTS)
@settings(max_examples=150, deadline=None)
def test_against_a_model(events: list[tuple[Any, ...]]) -> None:
    """Each column under a lock of its own, transactions of one change each, begun and committed in any order."""
    world, model = LockedWorld(), Model()
    waiting: list[tuple[Client, int, str, dict[str, Any], int]] = []
    for event in events:
        if event[0] == "begin":
            _, row, (operation, values) = event
            values = {name: str(value) if name == "c" else value for name, value in values.items()}
            client = world.begin()
            if (operation == "insert") is (client.read(row) is not None):
                continue
            if operation == "insert":
                client.insert(row, 0, 0, "0")
            elif operation == "update":
                client.update(row, **values)
            else:
                client.delete(row)
            waiting.append((client, row, operation, values, model.clock))
        elif waiting:
            client, row, operation, values, since = waiting.pop(event[1] % len(waiting))
            try:
                stands = client.commit() > 0
            except Conflict:
                stands = False
            assert stands is model.commit(row, operation, values, since)
            expected = [(row, *found.values()) for row, found in sorted(model.rows.items())]
            assert world.rows() == expected
            assert sorted(world.by_index()) == expected


def test_coverage() -> None:
    """The locks of a column: its own or the default one, and what is to come."""
    table = LockedWorld().table
    assert [table.covering(column) for column in (1, A, B, C)] == [(0,), (LOCK_A,), (LOCK_B,), (0,)]
    change = CoverageChange(id=50, covers=((A, 0), (C, LOCK_A), (B, LOCK_B)))
    dual = msgspec.structs.replace(table, coverage_changes=(change,))
    assert [dual.covering(column) for column in (1, A, B, C)] == [(0,), (LOCK_A, 0), (LOCK_B,), (0, LOCK_A)]
