"""The backfill looks at rows outside the atomic section, and inside at what the log says was changed since."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from instar import errors
from instar.errors import Error
from instar.schemachange import reorganize
from instar.schemachange import touched as module
from instar.schemachange import wanted as want
from instar.schemachange.job_records import Checkpoint
from instar.schemachange.reorganize import Backfill, Entry
from instar.schemachange.tasks import Step
from instar.schemachange.touched import Touched
from instar.store.engine import Commit, RowsetReplaced, View, prefix_end, rowset_prefix
from support.changes import ChangingWorld, Server

ROWS = [(number, number % 7, f"v{number}") for number in range(200)]


@pytest.fixture
def world() -> ChangingWorld:
    made = ChangingWorld()
    made.create_t(ROWS)
    return made


def nobody() -> None:
    pass


def built(
    world: ChangingWorld,
    between: Callable[[], None],
    before: Callable[[], None] = nobody,
    *,
    unique: bool = False,
    column: str = "a",
) -> Backfill:
    """An index that is write-only, filled by steps that were all made before `between` and are run after it, of entries
    that were derived before `before`."""
    job = world.execute(want.CreateIndex("t", ((column, False),), "i", unique))
    made: list[Backfill] = []

    class Capture:
        def run(self, task, pulse):
            assert isinstance(task, Backfill)
            entries, derived, _ = task._derived(Checkpoint(task.start, task.stop, task.start, 0), 10**6, 0)
            before()
            steps = list(task.steps(entries, derived))
            between()
            made.append(task)
            world.store.background(steps)

    assert job is not None
    done = world.executor(reorganizer=lambda task: Capture()).run(job)
    assert done is not None
    if done.problem is not None:
        raise errors.error(done.problem.sqlstate, done.problem.message)
    return made[0]


def writes(world: ChangingWorld, *steps: Callable[[Server], None]) -> Callable[[], None]:
    def act() -> None:
        for step in steps:
            server = Server(world)
            step(server)
            server.commit()

    return act


@pytest.mark.parametrize("looked", [False, True])
def test_changes_since_an_entry_was_derived_are_seen(world: ChangingWorld, looked: bool) -> None:
    """Before the step is made, which looks at them outside of the atomic section, and after that."""
    act = writes(
        world,
        lambda server: server.update(3, a=99),
        lambda server: server.update(4, b="another column"),  # puts no entry itself
        lambda server: server.delete(5),
        lambda server: server.insert(500, 1, "new"),
        lambda server: server.delete(6),
        lambda server: server.insert(6, 6, "again"),
        lambda server: server.update(7, a=98),
        lambda server: server.update(7, a=0),
    )
    built(world, *((act, nobody) if looked else (nobody, act)))
    world.check_index("i")


@pytest.mark.parametrize("looked", [False, True])
def test_without_looking_at_the_log_the_index_is_wrong(
    world: ChangingWorld, monkeypatch: pytest.MonkeyPatch, looked: bool
) -> None:
    monkeypatch.setattr(Touched, "changed", lambda self, rows, since: frozenset())
    act = writes(world, lambda server: server.update(3, a=99))
    built(world, *((act, nobody) if looked else (nobody, act)))
    with pytest.raises(AssertionError):
        world.check_index("i")


def test_of_what_nobody_has_changed_no_row_is_read_again(world: ChangingWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []
    missing = Backfill._missing

    def reading(self: Backfill, view: View, entry: Entry) -> Entry | None:
        read.append(entry.row)
        return missing(self, view, entry)

    monkeypatch.setattr(Backfill, "_missing", reading)
    act = writes(world, lambda server: server.update(3, a=99), lambda server: server.update(4, b="other"))
    built(world, act, writes(world, lambda server: server.update(4, b="another")))
    world.check_index("i")
    # Row 4 before its step is made, and again with row 3 in the section.
    assert len(read) == 3
    assert len(set(read)) == 2


def test_a_key_taken_between_looking_and_putting_is_a_duplicate(world: ChangingWorld) -> None:
    act = writes(world, lambda server: server.insert(500, 1, "v10"))
    with pytest.raises(Error) as failed:
        built(world, act, unique=True, column="b")
    assert failed.value.sqlstate == "23505"


@pytest.mark.parametrize("looked", [False, True])
def test_a_changed_row_meets_a_key_that_was_taken_meanwhile(world: ChangingWorld, looked: bool) -> None:
    """Of a row that was changed the entry is derived anew, and it is probed for all the same."""
    act = writes(world, lambda server: server.update(10, a=50), lambda server: server.insert(500, 1, "v10"))
    with pytest.raises(Error) as failed:
        built(world, *((act, nobody) if looked else (nobody, act)), unique=True, column="b")
    assert failed.value.sqlstate == "23505"


def test_changes_between_two_pieces_are_seen(world: ChangingWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows that were read in the first piece, when the entries of both are put."""
    monkeypatch.setattr(reorganize, "BATCH_ROWS", 50)
    acts = [writes(world, lambda server: server.update(3, a=99), lambda server: server.delete(4))]

    def rest(_task: Backfill, *, read: bool = False) -> None:
        while acts:
            acts.pop()()

    monkeypatch.setattr(Backfill, "rest", rest)
    built(world, nobody)
    assert not acts
    world.check_index("i")


def test_what_was_forgotten_between_two_steps_counts_as_changed(
    world: ChangingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 2)
    made = Backfill._step
    steps: list[int] = []

    def step(self: Backfill, chunk: list[Entry], derived: int) -> Step:
        steps.append(len(chunk))
        if len(steps) == 2:
            writes(world, *[lambda server, row=row: server.update(row, b="other") for row in range(3)])()
        return made(self, chunk, derived)

    monkeypatch.setattr(Backfill, "_step", step)
    changed = (5, 6, 12, 13, 20, 27, 34, 41, 188, 190, 195)
    act = writes(world, *[lambda server, row=row: server.update(row, a=77) for row in changed])
    built(world, nobody, act)
    assert len(steps) > 2
    world.check_index("i")


def test_a_large_commit_of_others_does_not_fill_the_memory(
    world: ChangingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 20)
    touched = Touched(world.table().id)
    with world.store.read() as reader:
        begun = touched.follow(reader)
    server = Server(world)
    for number in range(50):
        server.update(number, a=77)
        server.insert(1_000 + number, 1, "new")
    server.commit()
    with world.store.read() as reader:
        touched.follow(reader)
    assert len(touched._last) <= 20
    rows = {key for key, _ in _rows(world)}
    assert touched.changed(rows, begun) == rows


def test_two_rows_of_one_step_with_one_key_are_duplicates(world: ChangingWorld) -> None:
    with pytest.raises(Error) as failed:
        built(world, lambda: None, unique=True)
    assert failed.value.sqlstate == "23505"


def test_a_log_that_was_cut_meanwhile_tells_nothing(world: ChangingWorld) -> None:
    def act() -> None:
        writes(world, lambda server: server.update(3, a=99), lambda server: server.update(4, b="other"))()
        world.store.collect(world.now(), lambda record: [])

    built(world, act)
    world.check_index("i")


def test_a_log_that_was_cut_before_a_step_is_made_tells_nothing(world: ChangingWorld) -> None:
    def act() -> None:
        writes(world, lambda server: server.update(3, a=99), lambda server: server.update(4, b="other"))()
        world.store.collect(world.now(), lambda record: [])

    built(world, nobody, act)
    world.check_index("i")


@pytest.mark.parametrize("seed", range(20))
def test_random_writes_between_looking_and_putting(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 5)
    rng = random.Random(seed)
    world = ChangingWorld()
    world.create_t(ROWS)

    def act() -> None:
        for _ in range(rng.randrange(40)):
            server = Server(world)
            identity = rng.choice(sorted(row[0] for _, row in world.rows(world.table()).values()))  # type: ignore[type-var]
            match rng.randrange(4):
                case 0:
                    server.update(identity, a=rng.randrange(9))
                case 1:
                    server.update(identity, b="another")
                case 2:
                    server.delete(identity)
                case _:
                    server.insert(rng.randrange(1000, 10**9), rng.randrange(9), "new")
            server.commit()

    built(world, act, act)
    world.check_index("i")


def test_what_is_not_known_counts_as_changed(world: ChangingWorld) -> None:
    table = world.table()
    row = rowset_prefix(table.rowset) + b"a row"
    touched = Touched(table.id)

    def follow() -> int:
        with world.store.read() as reader:
            return touched.follow(reader)

    begun = follow()
    assert not touched.changed({row}, begun)
    assert touched.changed({row}, begun - 1) == {row}
    writes(world, lambda server: server.update(3, a=99))()
    middle = follow()
    changed = next(key for key, value in _rows(world) if int.from_bytes(value[:8], "little") == middle)
    assert touched.changed({row, changed}, begun) == {changed}
    assert not touched.changed({row, changed}, middle)
    replaced = RowsetReplaced(table.id, table.version, table.rowset, table.rowset + 100)
    with world.store.read() as reader:
        version = reader.catalog_version
    end = world.store.commit(Commit(catalog_version=version, replaced=[replaced]))
    follow()
    assert touched.changed({row}, middle) == {row}
    assert not touched.changed({row}, end)


def _rows(world: ChangingWorld) -> list[tuple[bytes, bytes]]:
    start = rowset_prefix(world.table().rowset)
    with world.store.read() as reader:
        return list(reader.scan(start, prefix_end(start)))
