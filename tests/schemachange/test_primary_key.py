"""ALTER PRIMARY KEY under way (rule 24): servers that lag behind, on the real code.

Table t (id, a, b) has the key id and gets the key a; index t_b_idx is on b. A server works by the key that it knows.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from instar import errors
from instar.catalog.descriptors import Table
from instar.pipeline.consistency import Consistency
from instar.schemachange import rekey, rules, states
from instar.schemachange import wanted as want
from instar.schemachange.elements import ElementKind, Phase
from instar.schemachange.executor import Executor, apply
from instar.schemachange.job_records import Job, JobState
from instar.schemachange.jobs import LEASE_SECONDS, Held
from instar.schemachange.rekey import KeyBackfill
from instar.schemachange.reorganize import InProcess
from instar.schemachange.tasks import Reorganizer, Task
from instar.sql.checks import compile_check
from instar.sql.defaults import Defaults
from instar.store.engine import Commit, RowsetReplaced, StaleRow, prefix_end, rowset_prefix
from instar.tables import writes
from instar.tables.copies import RowCopies, image_key
from instar.tables.index import IndexCodec
from instar.tables.rowset import TableReader
from instar.tables.upgrade import upgraded
from instar.tables.writes import Derivation
from instar.transactions.buffer import Change
from instar.transactions.commit import Conflict
from instar.types import BIGINT
from instar.worker.work import replanner
from support.changes import ChangingWorld, Server
from support.mortal import Killed, Mortal

Hook = Callable[[str], object]
ALTER = want.AlterPrimaryKey("t", ("a",))
ROWS: list[tuple[object, ...]] = [(number, number * 10, "xyz"[number % 3]) for number in range(1, 7)]


class Watched(InProcess):
    def __init__(self, hook: Hook) -> None:
        self._hook = hook

    def run(self, task: Task, pulse: Callable[[], None]) -> None:
        if isinstance(task, KeyBackfill):
            self._hook("before the backfill")

        def watched() -> None:
            if isinstance(task, KeyBackfill):
                self._hook("before a batch")
            pulse()

        super().run(task, watched)


class Stepping(Executor):
    """Calls `hook` before each stage is published."""

    hook: Hook

    def _publish(self, job: Job, held: Held) -> Job:
        self.hook(f"before stage {job.stage + 1}")
        return super()._publish(job, held)


class KeyWorld(ChangingWorld):
    def __init__(self, rows: list[tuple[object, ...]] = ROWS) -> None:
        super().__init__()
        self.create_t(rows)
        self.execute(want.CreateIndex("t", (("b", False),)))
        for job in self.jobs.all():
            self.executor().run(job.id)

    def rekey(self, hook: Hook = lambda where: None, wanted: want.Wanted = ALTER, *, idle: bool = False) -> Job:
        """Execute the statement and its job; `hook` is also called afterwards."""
        job = self.execute(wanted, statement="ALTER TABLE t ALTER PRIMARY KEY (a)")
        assert job is not None
        done = self.stepping(hook, idle=idle).run(job)
        assert done is not None
        hook("after")
        return done

    def stepping(self, hook: Hook, *, idle: bool = False) -> Stepping:
        class Idle:
            def run(self, task: Task, pulse: Callable[[], None]) -> None:
                pulse()

        reorganizer: Reorganizer = Idle() if idle else Watched(hook)
        made = Stepping(
            self.store,
            self.catalog_cache,
            self.ids,
            self.clock,
            b"worker",
            lambda task: reorganizer,
            compile_check,
            replanner(self.store, self.clock),
            Defaults(self.sequences),
        )
        made.hook = hook
        return made

    def values(self) -> list[tuple[object, ...]]:
        return sorted(values for _, values in self.rows(self.table()).values())

    def check(self) -> None:
        """Each row stands under the key that it has, and has one entry in each index; nothing else is there."""
        table = self.table()
        key_of = image_key(table)
        assert all(key_of(values) == key for key, (_, values) in self.rows(table).items())
        for index in table.indexes:
            self.check_index(index.name)

    def check_copies(self, *, complete: bool = False) -> None:
        """Each copy is a row, with its bytes and timestamp, and has one entry in each index; there are no others."""
        table = self.table()
        key = table.next_key
        assert key is not None
        reader_of = TableReader(table, range(len(table.columns)), self.layouts)
        own_key = image_key(table)
        start, entries = rowset_prefix(key.rowset), {rowset: set[bytes]() for _, rowset in key.indexes}
        with self.store.read() as reader:
            copies = dict(reader.scan(start, prefix_end(start)))
            for at, stored in copies.items():
                image = reader_of.decode(stored)
                row = reader.get(reader_of.prefix + own_key(image))
                assert row is not None
                assert (row[:8], row[12:]) == (stored[:8], stored[12:])  # all but the place of a log record
                for number, rowset in key.indexes:
                    index = next(found for found in table.indexes if found.id == number)
                    codec = IndexCodec(table, index)
                    place = rowset_prefix(rowset)
                    entries[rowset].add(place + codec.part(image) + at[len(start) :])
            for rowset, wanted in entries.items():
                place = rowset_prefix(rowset)
                assert {found for found, _ in reader.scan(place, prefix_end(place))} == wanted
        assert not complete or len(copies) == len(self.rows(table))


class Keyed(Server):
    """A server that finds rows by the key that its schema names."""

    def _key(self, identity: object) -> bytes:
        return TableReader(self.meant, (), self.world.layouts).encode_key((identity,))

    def insert(self, *values: object) -> None:
        self._put(values, 0)

    def move(self, identity: object, *values: object) -> None:
        """Give a row other values, its key among them: a delete and an insert (rule 2)."""
        found = self._read(identity)
        table = self.meant
        pair = self.buffer.pair_of(table.id, found.key)
        self.buffer.delete(table.id, table.version, found.key, found.base, found.values, pair=pair)
        self._put(values, pair)

    def _put(self, values: tuple[object, ...], pair: int) -> None:
        key = image_key(self.meant)(values)
        reader = TableReader(self.meant, (), self.world.layouts)
        assert reader.get_version(self.world.view(self.snapshot, self.buffer), key) is None  # or it is a 23505
        self.buffer.insert(self.meant.id, self.meant.version, key, values, pair=pair)


@pytest.fixture
def world() -> KeyWorld:
    return KeyWorld()


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rekey, "BATCH_ROWS", 2)
    monkeypatch.setattr(rekey, "STEP_ROWS", 1)


def same(one: Table, other: Table) -> bool:
    """Whether two versions of a table differ in nothing but how often it was changed."""

    def shape(table: Table) -> tuple[object, ...]:
        return table.columns, table.primary_key, table.primary_key_name, table.rowset, table.indexes, table.next_key

    return shape(one) == shape(other)


# --- the change ------------------------------------------------------------------------------------------------------


def test_rows_and_indexes_stand_under_the_new_key_with_their_timestamps(world: KeyWorld) -> None:
    before = world.table()
    timestamps = {values: timestamp for timestamp, values in world.rows(before).values()}
    assert world.rekey().state is JobState.SUCCEEDED
    after = world.table()
    assert (after.primary_key, after.primary_key_name, after.next_key) == ((2,), "t_pkey", None)
    assert not after.columns[1].nullable
    assert {values: timestamp for timestamp, values in world.rows(after).values()} == timestamps
    assert rules.rowsets(before).isdisjoint(rules.rowsets(after))
    world.check()


def test_the_log_says_that_the_rowset_was_replaced(world: KeyWorld) -> None:
    before = world.table()
    requests: list[Commit] = []
    store_commit = world.store.commit

    def commit(request: Commit) -> int:
        requests.append(request)
        return store_commit(request)

    world.store.commit = commit  # type: ignore[method-assign]  # watched, not replaced
    world.rekey()
    after = world.table()
    replaced = [change for request in requests for change in request.replaced]
    assert replaced == [RowsetReplaced(after.id, after.version, before.rowset, after.rowset)]


def test_old_snapshots_go_on_reading_the_old_rowset(world: KeyWorld) -> None:
    old = Keyed(world)
    world.rekey()
    writer = Keyed(world)
    writer.update(10, b="new")
    writer.delete(20)
    writer.commit()
    assert old._read(1).values == (1, 10, "y")
    assert old._read(2).values == (2, 20, "z")
    world.store.collect(world.now(), lambda record: [])
    with pytest.raises(errors.Error) as too_old:
        old._read(1)
    assert too_old.value.sqlstate == "72000"


def test_a_table_without_rows_gets_its_key_at_once() -> None:
    world = KeyWorld([])
    before = world.table()
    assert world.execute(ALTER) is None
    after = world.table()
    assert (after.primary_key, after.columns[1].nullable) == ((2,), False)
    assert rules.rowsets(before).isdisjoint(rules.rowsets(after))


def test_found_empty_but_filled_before_the_commit() -> None:
    """Rule 12: a collapsed path has "still empty" as its precondition, of the rowset that the table had."""
    world = KeyWorld([])
    change = world.change()
    apply(world.plan(ALTER).first, change)
    writer = Keyed(world)
    writer.insert(1, 10, "x")
    writer.commit()
    with pytest.raises(errors.Error) as refused:
        world.commit(change=change)
    assert refused.value.sqlstate == "40001"


def test_the_hidden_row_id_goes_when_there_is_a_key() -> None:
    world = ChangingWorld()
    world.execute(want.CreateTable("t", (want.NewColumn("a", BIGINT), want.NewColumn("b", BIGINT))))
    server = Server(world)
    for number in (1, 2):
        key = TableReader(server.meant, (), world.layouts).encode_key((number,))
        server.buffer.insert(server.meant.id, server.meant.version, key, (number, number * 10, number))
    server.commit()
    late = Server(world)
    late.buffer.insert(late.meant.id, late.meant.version, b"row id 3", (3, 30, 3))
    job = world.execute(want.AlterPrimaryKey("t", ("b",), adds=True))
    assert job is not None
    done = world.executor().run(job)
    assert done is not None
    assert done.problem is None
    late.commit()
    table = world.table()
    assert [column.name for column in table.columns] == ["a", "b"]
    assert sorted(values for _, values in world.rows(table).values()) == [(1, 10), (2, 20), (3, 30)]


# --- servers on both versions ----------------------------------------------------------------------------------------

PLACES = ["before stage 2", "before stage 3", "before the backfill", "before a batch", "before stage 4", "after"]


@pytest.mark.parametrize("at", PLACES)
def test_enlisted_before_the_change_and_committed_late(world: KeyWorld, at: str) -> None:
    """Insert, update of the new key, of an index, of the old key, and delete: found by their buffered old images."""
    old = Keyed(world)
    old.insert(77, 770, "new")
    old.update(1, a=11)
    old.delete(2)
    old.update(3, b="changed")
    old.move(4, 44, 40, "moved")

    def hook(where: str) -> None:
        if where == at and old.buffer:
            old.commit()
            old.buffer.clear()

    assert world.rekey(hook).state is JobState.SUCCEEDED
    changed = [(1, 11, "y"), (3, 30, "changed"), (5, 50, "z"), (6, 60, "x"), (44, 40, "moved"), (77, 770, "new")]
    assert world.values() == changed
    world.check()


@pytest.mark.parametrize("at", PLACES)
def test_a_row_that_has_moved_on_is_a_conflict_wherever_it_stands(world: KeyWorld, at: str) -> None:
    """Rule 24: timestamps are compared across the swap."""
    old = Keyed(world)
    old.update(1, b="lost")
    refused: list[str] = []

    def hook(where: str) -> None:
        if where == at and not refused:
            other = Keyed(world)
            other.update(10 if at == "after" else 1, b="kept")
            other.commit()
            try:
                old.commit()
            except Conflict as conflict:
                refused.append(str(conflict.reported.sqlstate))

    assert world.rekey(hook).state is JobState.SUCCEEDED
    assert refused == ["40001"]
    assert (1, 10, "kept") in world.values()
    world.check()


@pytest.mark.parametrize("at", PLACES[:-1])
def test_writers_of_the_moment_keep_the_copies(world: KeyWorld, at: str) -> None:
    def hook(where: str) -> None:
        if where != at or (1, 10, "y") not in world.values():
            return
        for change in range(4):
            writer = Keyed(world)
            if change == 0:
                writer.insert(8, 80, "n")
            elif change == 1:
                writer.update(1, a=20)  # in the place of row 2, whose key moves on
                writer.update(2, a=21)
            elif change == 2:
                writer.delete(3)
                writer.insert(9, 30, "n")  # as another row
            else:
                writer.update(4, b="n")
            writer.commit()
            world.check_copies()

    done = world.rekey(hook)
    assert done.problem is None
    assert world.values() == [
        (1, 20, "y"), (2, 21, "z"), (4, 40, "n"), (5, 50, "z"), (6, 60, "x"), (8, 80, "n"), (9, 30, "n")
    ]  # fmt: skip
    world.check()


def test_check_database_finds_nothing_at_any_stage(world: KeyWorld) -> None:
    found: dict[str, list[object]] = {}

    def hook(where: str) -> None:
        check = Consistency(world.store, world.layouts, world.catalog_cache, compile_check)
        found[where] = list(check.check_database())

    assert world.rekey(hook).problem is None
    assert found == {where: [] for where in PLACES}


def test_the_copies_are_complete_before_the_swap(world: KeyWorld) -> None:
    def hook(where: str) -> None:
        if where == "before stage 4":
            world.check_copies(complete=True)

    assert world.rekey(hook).problem is None


def test_a_delete_only_writer_does_not_take_the_copy_of_another_row(world: KeyWorld) -> None:
    """The new key is not unique yet: a write-only server has a row with the values of one that was not copied."""
    late = Keyed(world)

    def hook(where: str) -> None:
        if where == "before stage 2":
            late.begin()
            late.delete(1)  # a = 10
        elif where == "before stage 3":
            writer = Keyed(world)
            writer.insert(9, 10, "second")
            writer.commit()
            late.commit()
            assert late.refused == 0  # one version behind, and let in
            world.check_copies()

    assert world.rekey(hook).problem is None
    assert (9, 10, "second") in world.values()
    world.check()


def test_a_server_one_version_behind_takes_away_what_one_of_the_version_puts(world: KeyWorld) -> None:
    [job] = [world.execute(want.SetNotNull("t", "a"))]  # else a list of checks that moves keeps the laggard out
    assert job is not None
    world.executor().run(job)
    behind = Keyed(world)

    def hook(where: str) -> None:
        if where == "after":
            return
        writer = Keyed(world)
        writer.insert(9, 90, "n")
        writer.commit()
        behind.begin(learn=False)
        behind.delete(9)
        behind.commit()
        behind.refresh()
        assert (where == "before stage 3") <= (behind.refused == 0)

    assert world.rekey(hook).problem is None
    assert world.values() == ROWS
    world.check()


def test_without_delete_only_the_copy_stays(world: KeyWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """F1 §3.3: a server that knows nothing of the copies works beside one that puts them."""
    path = states.PATHS[ElementKind.PRIMARY_KEY]
    shorter = states.Path((Phase.ABSENT, Phase.WRITE_ONLY, Phase.PUBLIC), path.work)
    monkeypatch.setitem(states.PATHS, ElementKind.PRIMARY_KEY, shorter)
    with pytest.raises(AssertionError, match=r"Key \(a\)=\(90\) already exists"):
        test_a_server_one_version_behind_takes_away_what_one_of_the_version_puts(world)


@pytest.mark.usefixtures("small_batches")
def test_a_write_only_writer_does_not_take_the_copy_of_another_row(world: KeyWorld) -> None:
    """Nor later, when the backfill has passed the other row and would not put its copy again."""
    places: list[str] = []

    def hook(where: str) -> None:
        places.append(where)
        writer = Keyed(world)
        if where == "before the backfill":
            writer.insert(0, 60, "second")
            writer.commit()
        elif places[-2:] == ["before a batch", "before a batch"] and places.count("before a batch") == 2:
            writer.delete(6)  # a = 60
            writer.commit()
            world.check_copies()

    assert world.rekey(hook).problem is None
    assert world.values()[0] == (0, 60, "second")
    world.check()


def test_telling_copies_by_the_key_alone_loses_one(
    world: KeyWorld, monkeypatch: pytest.MonkeyPatch, small_batches: None
) -> None:
    """The same with the rule off."""
    monkeypatch.setattr(RowCopies, "_is_own", lambda self, image, key: True)
    monkeypatch.setattr(world, "check_copies", lambda: None)
    with pytest.raises(AssertionError):
        test_a_write_only_writer_does_not_take_the_copy_of_another_row(world)


def test_a_copy_that_came_between_deriving_and_writing_is_seen(world: KeyWorld) -> None:
    """Rule 10: what was derived stands only if the copy is still the one, or still none."""
    job = world.execute(ALTER)
    assert job is not None
    held: list[Commit] = []

    def hook(where: str) -> None:
        if where == "before the backfill":
            writer = Keyed(world)
            writer.delete(1)
            with world.store.read() as reader:
                request = Commit(catalog_version=writer.catalog.version)
                derivation = Derivation(reader)
                [changed] = writer.buffer
                derivation.table(world.writers.get(writer.meant, writer.catalog), changed)
                request.tables += derivation.tables
                request.entries += derivation.entries
                held.append(request)
        elif where == "before stage 4":
            with pytest.raises(StaleRow):
                world.store.commit(held[0])

    done = world.stepping(hook).run(job)
    assert done is not None
    assert done.problem is None
    world.check()


def test_a_row_changed_between_deriving_and_putting_is_derived_anew(
    world: KeyWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = KeyBackfill.steps

    def late(self, copies):
        writer = Keyed(world)
        writer.update(3, a=31)
        writer.delete(4)
        writer.commit()
        return original(self, copies)

    monkeypatch.setattr(KeyBackfill, "steps", late)
    assert world.rekey().problem is None
    assert (3, 31, "x") in world.values()
    world.check()


# --- crossing --------------------------------------------------------------------------------------------------------


def crossed(old: Keyed) -> list[tuple[object, object, object]]:
    """The buffer under the new key: (old image, new image, whether it is half of a pair)."""
    newest = old.world.table()
    [changed] = old.buffer
    changes = upgraded(changed, old.meant, newest).changes
    return [(change.old, change.image, change.pair > 0) for _, change in sorted(changes.items())]


def test_a_change_of_the_new_key_becomes_a_delete_and_an_insert(world: KeyWorld) -> None:
    old = Keyed(world)
    old.update(1, a=11)
    world.rekey()
    assert crossed(old) == [((1, 10, "y"), None, True), (None, (1, 11, "y"), True)]


def test_a_change_of_the_old_key_becomes_an_update(world: KeyWorld) -> None:
    old = Keyed(world)
    old.move(1, 100, 10, "y")
    world.rekey()
    assert crossed(old) == [((1, 10, "y"), (100, 10, "y"), False)]


def test_a_row_whose_old_key_changed_twice_is_one_row(world: KeyWorld) -> None:
    old = Keyed(world)
    old.move(1, 100, 10, "y")
    old.move(100, 101, 10, "y")
    world.rekey()
    assert crossed(old) == [((1, 10, "y"), (101, 10, "y"), False)]


def test_rows_that_changed_places_under_the_old_key_are_updated_under_the_new_one(world: KeyWorld) -> None:
    old = Keyed(world)
    old.move(1, 100, 10, "y")
    old.move(2, 1, 20, "z")
    old.move(100, 2, 10, "y")
    world.rekey()
    assert crossed(old) == [((1, 10, "y"), (2, 10, "y"), False), ((2, 20, "z"), (1, 20, "z"), False)]
    old.commit()
    assert world.values()[:2] == [(1, 20, "z"), (2, 10, "y")]
    world.check()


def test_two_changes_of_the_primary_key_are_crossed_as_one(world: KeyWorld) -> None:
    """To (a) and back to (id), the buffer brought along at each: which row is which stays known."""
    old = Keyed(world)
    old.move(1, 100, 20, "y")
    old.move(2, 1, 10, "z")
    first = old.meant
    [changed] = old.buffer
    world.rekey()
    middle = world.table()
    world.rekey(wanted=want.AlterPrimaryKey("t", ("id",)))
    newest = world.table()
    twice = upgraded(upgraded(changed, first, middle), middle, newest).changes
    assert twice.keys() == changed.changes.keys()
    for key, change in changed.changes.items():
        found = twice[key]
        assert (found.base, found.image, found.old) == (change.base, change.image, change.old)

    def halves(changes: dict[bytes, Change]) -> set[tuple[bytes, bytes]]:
        gone = {change.gone if change.image is not None else change.pair: key for key, change in changes.items()}
        return {(gone[change.pair], key) for key, change in changes.items() if change.image is not None}

    assert halves(twice) == halves(changed.changes)
    old.commit()
    assert world.values()[:2] == [(1, 10, "z"), (3, 30, "x")]
    world.check()


def test_rows_that_change_places_under_the_new_key(world: KeyWorld) -> None:
    old = Keyed(world)
    old.update(1, a=20)
    old.update(2, a=10)
    world.rekey()
    assert crossed(old) == [((1, 10, "y"), (2, 10, "z"), True), ((2, 20, "z"), (1, 20, "y"), True)]
    old.commit()
    assert world.values()[:2] == [(1, 20, "y"), (2, 10, "z")]
    world.check()


def test_two_rows_that_come_to_have_one_new_key(world: KeyWorld) -> None:
    old = Keyed(world)
    old.insert(8, 80, "n")
    old.insert(9, 80, "n")
    world.rekey()
    with pytest.raises(errors.Error) as refused:
        old.commit()
    assert (refused.value.sqlstate, refused.value.detail) == ("23505", "Key (a)=(80) already exists.")


def test_two_rows_that_had_one_new_key_when_they_were_changed() -> None:
    """One of them has another by now: nothing of the other may get lost in it."""
    world = KeyWorld([(1, 10, "x"), (2, 10, "y"), (3, 30, "z")])
    old = Keyed(world)
    old.update(1, b="n")
    old.delete(2)
    other = Keyed(world)
    other.update(2, a=20)
    other.commit()
    assert world.rekey().problem is None
    with pytest.raises(Conflict):
        old.commit()
    assert world.values() == [(1, 10, "x"), (2, 20, "y"), (3, 30, "z")]


# --- what stands in the way ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "sqlstate", "said"),
    [
        ((9, 30, "n"), "23505", 'could not create unique index "t_pkey"'),
        ((9, None, "n"), "23502", 'column "a" of relation "t" contains null values'),
    ],
)
def test_duplicates_and_nulls_leave_the_schema_as_it_was(
    world: KeyWorld, row: tuple[object, ...], sqlstate: str, said: str
) -> None:
    writer = Keyed(world)
    writer.insert(*row)
    writer.commit()
    before, values = world.table(), world.values()
    done = world.rekey()
    assert done.state is JobState.FAILED
    assert done.problem is not None
    assert (done.problem.sqlstate, done.problem.message) == (sqlstate, said)
    assert same(world.table(), before)
    assert world.values() == values
    world.check()


@pytest.mark.parametrize("at", ["before stage 3", "before the backfill", "before a batch", "before stage 4"])
def test_a_duplicate_written_meanwhile_is_met_by_one_of_the_two(world: KeyWorld, at: str) -> None:
    refused: list[bool] = []

    def hook(where: str) -> None:
        if where == at and not refused:
            writer = Keyed(world)
            writer.insert(9, 30, "duplicate of 3")
            try:
                writer.commit()
                refused.append(False)
            except errors.Error as failed:
                refused.append(failed.sqlstate == "23505")

    before = world.table()
    done = world.rekey(hook)
    assert refused == [at == "before stage 4"]
    assert (done.state is JobState.SUCCEEDED) is refused[0]
    assert refused[0] or same(world.table(), before)
    world.check()


def test_a_null_written_meanwhile_is_refused(world: KeyWorld) -> None:
    def hook(where: str) -> None:
        if where == "before stage 3":
            writer = Keyed(world)
            writer.insert(9, None, "n")
            with pytest.raises(errors.Error) as refused:
                writer.commit()
            assert refused.value.sqlstate == "23502"

    assert world.rekey(hook).problem is None


@pytest.mark.parametrize("at", PLACES[:-1])
def test_cancel_takes_the_change_back(world: KeyWorld, at: str) -> None:
    before = world.table()

    def hook(where: str) -> None:
        if where == at:
            [job] = [found for found in world.jobs.all() if not found.is_finished]
            if job.problem is None:
                world.jobs.cancel(job.id)
                world.clock.advance(1)  # the record is read ten times a second
        if world.table().next_key is not None:
            writer = Keyed(world)
            writer.update(1, b=where)
            writer.commit()
            world.check_copies()

    done = world.rekey(hook)
    assert done.state is JobState.CANCELLED, done.problem
    assert same(world.table(), before)
    world.check()


@pytest.mark.parametrize(
    "other",
    [
        want.CreateIndex("t", (("a", False),)),
        want.DropIndexes(("t_b_idx",)),
        want.Truncate(("t",)),
        want.DropTables(("t",)),
        want.DropColumn("t", "a"),
        want.AddLock("t", "l", ("b",)),
        want.AddConstraint("t", want.ForeignKey(("id",), "t")),
        want.RenameIndex("t_pkey", "other"),
        want.AlterPrimaryKey("t", ("b",)),
    ],
    ids=lambda wanted: type(wanted).__name__,
)
def test_what_would_change_what_is_copied_has_to_wait(world: KeyWorld, other: want.Wanted) -> None:
    world.execute(ALTER)
    with pytest.raises(errors.Error) as refused:
        world.plan(other)
    assert refused.value.sqlstate == "55006"


def test_columns_come_during_the_change(world: KeyWorld) -> None:
    def hook(where: str) -> None:
        if where == "before the backfill":
            world.execute(want.AddColumn("t", want.NewColumn("c", BIGINT)))
            writer = Server(world)
            writer.buffer.insert(writer.meant.id, writer.meant.version, writer._key(8), (8, 80, "n", 8))
            writer.commit()
        elif where == "before stage 4":
            world.check_copies(complete=True)

    assert world.rekey(hook).problem is None
    assert world.values()[0] == (1, 10, "y", None)
    assert world.values()[-1] == (8, 80, "n", 8)
    world.check()


# --- crashes ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("duplicate", [False, True], ids=["succeeds", "fails"])
def test_a_kill_at_any_write_leaves_a_job_that_another_finishes(duplicate: bool, after: bool) -> None:
    lives, died = 0, True
    while died:
        lives += 1
        world = KeyWorld([*ROWS, (9, 50, "duplicate of 5")] if duplicate else ROWS)
        before = world.table()
        number = world.execute(ALTER)
        assert number is not None
        immortal = world.store
        world.store = Mortal(immortal, lives, after=after)
        try:
            world.executor(b"mortal").run(number)
            died = False
        except Killed:
            pass
        world.store = immortal
        if not world.jobs.get(number).is_finished:
            world.clock.advance(LEASE_SECONDS + 1)
            world.executor(b"adopter").run(number)
        done = world.jobs.get(number)
        assert done.state is (JobState.FAILED if duplicate else JobState.SUCCEEDED)
        assert same(world.table(), before) is duplicate
        world.check()
    assert lives > 7


# --- random schedules ------------------------------------------------------------------------------------------------


def chaos(world: KeyWorld, seed: int, expected: dict[object, tuple[object, ...]]) -> Hook:
    """At every hook, servers that may have an old schema begin, change rows, learn, or commit. `expected` is what the
    commits that stand have made of the rows."""
    draw = random.Random(seed)
    servers = [Keyed(world), Keyed(world)]
    meant: dict[int, dict[object, tuple[object, ...] | None]] = {0: {}, 1: {}}

    def begin(place: int, *, learn: bool) -> None:
        servers[place].begin(learn=learn)
        meant[place] = {}

    def change(place: int) -> None:
        server, own = servers[place], meant[place]
        identity = draw.randrange(1, 8)
        row: tuple[object, ...]
        known = {**expected, **own}.get(identity)
        key = known[server.meant.primary_key[0] - 1] if known is not None else None
        kind = draw.randrange(4)
        if known is None:
            row = (identity, draw.choice([identity * 10, draw.randrange(99)]), "n")
            server.insert(*row)
            own[identity] = row
        elif kind == 0:
            server.delete(key)
            own[identity] = None
        elif kind == 1:
            server.update(key, b=f"v{draw.randrange(9)}")
            own[identity] = server._read(key).values
        else:
            row = (known[0], draw.randrange(99), known[2])
            if server.meant.primary_key == (2,):
                server.move(key, *row)
            else:
                server.update(key, a=row[1])
            own[identity] = row

    def act(place: int) -> None:
        server = servers[place]
        kind = draw.randrange(6)
        try:
            if kind == 0:
                begin(place, learn=draw.random() < 0.2)
            elif kind == 1:
                if draw.random() < 0.3:
                    server.refresh()
            elif kind == 2 and server.buffer:
                server.commit()
                for identity, row in meant[place].items():
                    if row is None:
                        expected.pop(identity, None)
                    else:
                        expected[identity] = row
                begin(place, learn=draw.random() < 0.2)
            else:
                change(place)
        except (Conflict, AssertionError):
            begin(place, learn=draw.random() < 0.5)
        except errors.Error as refused:
            if refused.sqlstate not in ("72000", "23505", "23502"):
                raise
            begin(place, learn=draw.random() < 0.5)

    def hook(where: str) -> None:
        for _ in range(draw.randrange(24)):
            act(draw.randrange(2))
        if world.table().next_key is not None:
            world.check_copies()

    return hook


def run_chaos(seed: int) -> bool:
    """Whether the change succeeded; AssertionError if it lost something."""
    world = KeyWorld([(number, number * 10, "x") for number in range(1, 5)])
    unique = world.execute(want.CreateIndex("t", (("id", False),), "t_id", unique=True))  # id is a key at the end too
    assert unique is not None
    world.executor().run(unique)
    expected = {values[0]: values for values in world.values()}
    hook = chaos(world, seed, expected)
    hook("at first")
    done = world.rekey(hook)
    assert done.problem is None or done.problem.sqlstate == "23505"
    hook("at last")
    assert world.values() == sorted(expected.values())
    world.check()
    return done.problem is None


@pytest.mark.usefixtures("small_batches")
def test_random_schedules_lose_nothing() -> None:
    succeeded = [run_chaos(seed) for seed in range(80)]
    assert 10 < sum(succeeded) < 80


def broken_by_some_schedule(seeds: int = 400) -> bool:
    for seed in range(seeds):
        try:
            run_chaos(seed)
        except AssertionError:
            return True
    return False


@pytest.mark.usefixtures("small_batches")
def test_without_floors_some_schedule_loses_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "FLOOR_RULES", (rules.FloorRule("off", "off.", lambda before, after: 0),))
    assert broken_by_some_schedule()


@pytest.mark.usefixtures("small_batches")
def test_without_the_backfill_rows_are_lost() -> None:
    world = KeyWorld()
    world.rekey(idle=True)
    assert world.values() == []


def test_tables_without_a_next_key_have_no_copies(world: KeyWorld) -> None:
    assert writes.TableWriter(world.table(), world.catalog(), world.layouts).copies is None
