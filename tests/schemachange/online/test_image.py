"""The image in process, on both engines: it is the operator from scratch on one snapshot, wherever it is killed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from instar import errors
from instar.catalog.descriptors import Column, Layout, Table
from instar.schemachange import reorganize
from instar.schemachange.breath import FIRST_ROWS, PIECE_NS, RESTS, Breath
from instar.schemachange.job_records import Checkpoint, Job, JobState, encode_job, job_key
from instar.schemachange.jobs import Held
from instar.schemachange.online import image, redo
from instar.schemachange.online.image import Image, ImageEntries, image_snapshot
from instar.schemachange.online.image_rows import Item, SplitOperator
from instar.schemachange.reorganize import InProcess
from instar.schemachange.tasks import AT_LEISURE, Step, planned
from instar.schemachange.touched import Touched
from instar.sql.checks import compile_check
from instar.store import MemoryStore, open_store
from instar.store.engine import ClaimLost, Commit, Store, rowset_prefix
from instar.store.pace import Pace
from instar.transformations.records import Join, Part, Split
from instar.types import BIGINT, DOUBLE, INTEGER, NUMERIC, TEXT, Type
from schemachange.test_breath import Foreground, Working
from support.changes import ChangingWorld, Server
from support.transformed import check_entries, join_of, rows_of, split_of, stored
from support.world import describe_table
from transformations.model import full_outer_join
from transformations.model import split_of as model_split

STAGE = 2
PLACE = 3

Row = tuple[object, ...]
Parts = dict[Row, Part]


class Sources(ChangingWorld):
    """Tables that are made by hand, and a job's claim."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.held = self.claimed(b"test")

    def claimed(self, owner: bytes) -> Held:
        with self.store.read() as reader:
            version = reader.catalog_version
        job = Job(1, "test", "a test", (), 0, JobState.RUNNING, 0, 0)
        self.store.commit(Commit(catalog_version=version, raw=[(job_key(1), encode_job(job))]))
        held = self.jobs.claim(1, owner)
        assert held is not None
        return held

    def described(
        self, name: str, columns: Iterable[tuple[str, Type]], rows: Iterable[Row] = (), key: tuple[int, ...] = (1,)
    ) -> Table:
        change = self.change()
        table = describe_table(change, name, columns, key)
        change.create(table)
        self.commit(change=change)
        self.insert(name, rows)
        return self.table(name)

    def insert(self, name: str, rows: Iterable[Row]) -> None:
        """Rows, a few to a commit."""
        server = Server(self, name)
        for number, row in enumerate(rows):
            server.insert(*row)
            if number % 3 == 2:
                server.commit()
                server.begin()
        if server.buffer:
            server.commit()

    def with_column(self, name: str, column: str, missing: str) -> Table:
        """The table with one more column, which rows that are there have in no layout."""
        table = self.table(name)
        added = Column(id=90, name=column, type=TEXT, missing=missing)
        layout = Layout(table.layout.id + 1, (*table.layout.columns, (90, TEXT)))
        return self.alter(table, columns=(*table.columns, added), layout=layout)

    def parts(self, table: Table) -> dict[Row, Part]:
        """The rows of a table as the rules know them."""
        places = [[column.id for column in table.columns].index(column) for column in table.primary_key]
        return {
            tuple(values[place] for place in places): Part(values, timestamp)
            for timestamp, values in self.rows(table).values()
        }

    def split(self, r: list[str], s: list[str], on: list[str], source: str = "u") -> tuple[Table, Table]:
        change = self.change()
        made = split_of(change, self.table(source), r, s, on)
        self.commit(change=change)
        return made

    def joined(self, on: list[tuple[str, str]], *, unique: bool, merged: bool = False) -> Table:
        change = self.change()
        made = join_of(change, self.table("a"), self.table("b"), on, unique=unique, merged=merged)
        self.commit(change=change)
        return made

    def image(self, sources: list[Table], targets: list[Table], kind: type[Image] = Image, rows: int = 100) -> Image:
        claim = self.held.claim
        names = {"job": 1, "stage": STAGE, "rows": rows, "place": PLACE}
        return kind(self.store, sources, targets, claim=claim, compile_check=compile_check, **names)

    def check_entries(self, *targets: Table) -> None:
        """That the entries of an image's rows are put."""
        for place, target in enumerate(targets, PLACE + 1):
            InProcess().run(self.entries_of(target, place), nothing)
            check_entries(self.store, self.layouts, target)

    def entries_of(self, target: Table, place: int) -> ImageEntries:
        names = {"job": 1, "stage": STAGE, "rows": 100, "place": place}
        return ImageEntries(self.store, target, target.indexes, claim=self.held.claim, **names)


@pytest.fixture(params=["memory", "lmdb"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sources]:
    store: Store = MemoryStore() if request.param == "memory" else open_store(str(tmp_path / "s"), synchronous="off")
    yield Sources(store)
    store.close()


def nothing() -> None:
    pass


# --- what is to come out ---------------------------------------------------------------------------------------------


def shape_of(r: Table, s: Table, on: list[tuple[str, str]], *, unique: bool) -> Join:
    of_r, of_s = ({column.name: place for place, column in enumerate(table.columns)} for table in (r, s))
    return Join((0,), tuple(of_r[one] for one, _ in on), (0,), tuple(of_s[other] for _, other in on), unique)


def expected_join(join: Join, r: Parts, s: Parts, *, merged: bool = False) -> list[object]:
    """T without row ids: (columns, timestamps: the row's, its default lock's, its parts')."""
    found = []
    widths = [len(next(iter(parts.values())).values) if parts else 3 for parts in (r, s)]
    for record in full_outer_join(join, r, s):
        of_r: list[object] = [None] * widths[0] if record.r is None else list(record.r.values)
        of_s: list[object] = [None] * widths[1] if record.s is None else list(record.s.values)
        if merged:
            for one, other in zip(join.r_on, join.s_on, strict=True):
                of_r[one] = of_r[one] if record.r is not None else of_s[other]
            of_s = [value for place, value in enumerate(of_s) if place not in join.s_on]
        parts = (record.r is not None) + 2 * (record.s is not None)
        own = [0 if part is None else part.timestamp for part in (record.r, record.s)]
        found.append(((*of_r, *of_s, parts), (max(own), max(own), *own)))
    return sorted(found, key=repr)


def check_join(world: Sources, target: Table, expected: list[object]) -> None:
    rows = rows_of(world.store, world.layouts, target)
    assert sorted([(values[1:], stamps) for values, stamps in rows], key=repr) == expected
    ids = [values[0] for values, _ in rows]
    assert len(set(ids)) == len(ids)
    assert all(isinstance(number, int) and number > 2**62 for number in ids)
    world.check_entries(target)


def check_split(world: Sources, targets: tuple[Table, Table], split: Split, parts: Parts) -> None:
    r, s = model_split(split, parts)
    found = [rows_of(world.store, world.layouts, table) for table in targets]
    assert sorted(found[0], key=repr) == sorted([(part.values, (part.timestamp,)) for part in r.values()], key=repr)
    records = [
        ((*record.values, record.counter, record.flag.value == "C"), (record.timestamp,)) for record in s.values()
    ]
    assert sorted(found[1], key=repr) == sorted(records, key=repr)
    world.check_entries(*targets)


def everything(world: Sources, *targets: Table) -> list[dict[bytes, bytes]]:
    """All that is stored of targets."""
    rowsets = [number for table in targets for number in (table.rowset, *(index.rowset for index in table.indexes))]
    return [stored(world.store, number) for number in rowsets]


# --- joins -----------------------------------------------------------------------------------------------------------

A_COLUMNS = (("id", BIGINT), ("k", INTEGER), ("v", TEXT))
B_COLUMNS = (("id", TEXT), ("k", BIGINT), ("w", TEXT))
KEYS = [("k", "k")]
BOTH = [("k", "k"), ("v", "w")]


def some_a(count: int, seed: int = 1) -> list[Row]:
    drawn = random.Random(seed)
    return [(number, drawn.choice([None, *range(6)]), drawn.choice(["x", "y", None])) for number in range(count)]


def some_b(count: int, *, unique: bool, seed: int = 2) -> list[Row]:
    drawn = random.Random(seed)
    numbers = [None if number % 5 == 0 else number for number in range(count)]
    keys = numbers if unique else [drawn.choice([None, *range(3, 9)]) for _ in range(count)]
    return [(f"b{number}", key, drawn.choice(["x", "y", None])) for number, key in enumerate(keys)]


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches and several ranges."""
    monkeypatch.setattr(image, "READ_ROWS", 5)
    monkeypatch.setattr(image, "PUT_ROWS", 4)
    monkeypatch.setattr(redo, "STEP_PUTS", 2)
    monkeypatch.setattr(image, "ITEMS_PER_RANGE", 25)
    monkeypatch.setattr(image, "_SAMPLED", 3)


@pytest.mark.parametrize(("on", "unique"), [(KEYS, True), (KEYS, False), (BOTH, False)])
@pytest.mark.parametrize("merged", [False, True])
def test_a_join(world: Sources, on: list[tuple[str, str]], unique: bool, merged: bool) -> None:
    r = world.described("a", A_COLUMNS, some_a(40))
    s = world.described("b", B_COLUMNS, some_b(12, unique=unique))
    target = world.joined(on, unique=unique, merged=merged)
    task = world.image([r, s], [target])
    InProcess().run(task, nothing)
    expected = expected_join(shape_of(r, s, on, unique=unique), world.parts(r), world.parts(s), merged=merged)
    check_join(world, target, expected)
    assert [found.done for found in planned(task)] == [True]
    assert sum(found.rows for found in planned(task)) == len(expected) > 40


@pytest.mark.parametrize("sizes", [(0, 0), (9, 0), (0, 9)])
def test_a_join_with_an_empty_source(world: Sources, sizes: tuple[int, int]) -> None:
    r = world.described("a", A_COLUMNS, some_a(sizes[0]))
    s = world.described("b", B_COLUMNS, some_b(sizes[1], unique=True))
    target = world.joined(KEYS, unique=True)
    InProcess().run(world.image([r, s], [target]), nothing)
    check_join(world, target, expected_join(shape_of(r, s, KEYS, unique=True), world.parts(r), world.parts(s)))
    assert len(rows_of(world.store, world.layouts, target)) == sum(sizes)


def test_long_values_that_begin_alike_are_told_apart(world: Sources) -> None:
    """Entries are cut and hashed, groups are not."""
    r = world.described("a", (("id", BIGINT), ("k", TEXT)), [(number, "x" * 900 + str(number)) for number in range(4)])
    s = world.described(
        "b", (("id", BIGINT), ("k", TEXT)), [(number, "x" * 900 + str(number)) for number in range(2, 5)]
    )
    target = world.joined(KEYS, unique=False)
    InProcess().run(world.image([r, s], [target]), nothing)
    check_join(world, target, expected_join(shape_of(r, s, KEYS, unique=False), world.parts(r), world.parts(s)))
    assert sorted(str(values[-1]) for values, _ in rows_of(world.store, world.layouts, target)) == list("11233")


# --- splits ----------------------------------------------------------------------------------------------------------

U_COLUMNS = (("id", BIGINT), ("a", INTEGER), ("zip", TEXT), ("city", TEXT))
R, S, ON = ["id", "a", "zip"], ["zip", "city"], ["zip"]
SPLIT = Split(r=(0, 1, 2), s=(2, 3), on=(2,))


def some_u(count: int) -> list[Row]:
    """Rows of some values agree, of others they do not; some have none."""
    drawn = random.Random(count)
    made: list[Row] = []
    for number in range(count):
        value = drawn.choice([None, *"abcdef"])
        city = None if value is None else f"of {value}" if value < "e" else drawn.choice("xy")
        made.append((number, drawn.choice([None, 1, 2]), value, city))
    return made


@pytest.mark.parametrize("count", [0, 1, 60])
def test_a_split(world: Sources, count: int) -> None:
    source = world.described("u", U_COLUMNS, some_u(count))
    targets = world.split(R, S, ON)
    InProcess().run(world.image([source], list(targets)), nothing)
    check_split(world, targets, SPLIT, world.parts(source))


def test_beside_commits_it_is_made_in_pieces(world: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many rows are read at once as take a piece, and each piece is followed by its rest."""
    clock, foreground, read = Working(), Foreground(), list[int]()
    fits = FIRST_ROWS // 2  # so many rows to a piece

    def items(self: SplitOperator, place: int, keys: Sequence[bytes], stored: Sequence[bytes]) -> list[Item]:
        read.append(len(keys))
        clock.computed += len(keys) * PIECE_NS // fits
        return made(self, place, keys, stored)

    made = SplitOperator.items
    monkeypatch.setattr(SplitOperator, "items", items)
    source = world.described("u", U_COLUMNS, some_u(4 * FIRST_ROWS))
    targets = world.split(R, S, ON)
    task = world.image([source], list(targets))
    assert task.breathes
    task.breath = Breath(foreground, clock)
    InProcess().run(task, nothing)
    assert read[:7] == [FIRST_ROWS] + [fits] * 6  # of the first range
    assert sum(clock.slept) == pytest.approx(2.5 * RESTS * clock.computed / 1e9, rel=0.1)
    check_split(world, targets, SPLIT, world.parts(source))


def test_a_split_by_two_columns(world: Sources) -> None:
    columns = (("id", TEXT), ("m", INTEGER), ("n", TEXT), ("c", TEXT))
    rows = [(f"{number}", number % 3 or None, "xyz"[number % 2] if number % 5 else None, None) for number in range(30)]
    source = world.described("u", columns, rows)
    targets = world.split(["id", "n", "m"], ["c", "n", "m"], ["n", "m"])
    InProcess().run(world.image([source], list(targets)), nothing)
    check_split(world, targets, Split(r=(0, 2, 1), s=(3, 2, 1), on=(2, 1)), world.parts(source))


def test_equal_values_that_do_not_look_alike(world: Sources) -> None:
    """They make one row, whose rows agree: 1.5 and 1.50, NaN and NaN."""
    columns = (("id", BIGINT), ("n", NUMERIC), ("x", DOUBLE))
    alike = [Decimal("1.5"), Decimal("1.50"), Decimal("NaN"), Decimal("NaN")]
    source = world.described("u", columns, [(number, value, float(value)) for number, value in enumerate(alike)])
    _, s = targets = world.split(["id", "n"], ["n", "x"], ["n"])
    InProcess().run(world.image([source], list(targets)), nothing)
    records = [values for values, _ in rows_of(world.store, world.layouts, s)]
    assert [(str(values[0]), str(values[1]), *values[2:]) for values in records] == [
        ("1.5", "1.5", 2, True), ("NaN", "nan", 2, True)
    ]  # fmt: skip


def test_what_a_split_would_lose_is_refused(world: Sources) -> None:
    source = world.described("u", U_COLUMNS, [*some_u(10), (77, 1, None, "lost")])
    targets = world.split(R, S, ON)
    with pytest.raises(errors.Error) as caught:
        InProcess().run(world.image([source], list(targets)), nothing)
    assert caught.value.sqlstate == errors.NOT_NULL_VIOLATION
    assert caught.value.message == (
        'null value in column "zip" of relation "u", by which it is split, violates not-null constraint'
    )
    assert caught.value.detail == 'The value of column "city" of row (id)=(77) would be lost.'
    assert not any(everything(world, *targets))


def shares_of(task: Image) -> list[tuple[int, float]]:
    """What is told of the task while it runs: rows, and of how many they are said to be the share."""
    told: list[tuple[int, float]] = []

    def tick() -> None:
        told.append(task.passed(planned(task)))

    InProcess().run(task, tick)
    tick()
    return told


@pytest.mark.parametrize("cut", [25, 1000])
@pytest.mark.parametrize("first", ["r", "s"])
def test_the_share_that_is_done_is_one_of_all_targets(
    world: Sources, narrow: None, monkeypatch: pytest.MonkeyPatch, first: str, cut: int
) -> None:
    """S has six rows and R sixty, and each has a range at least."""
    monkeypatch.setattr(image, "ITEMS_PER_RANGE", cut)
    source = world.described("u", U_COLUMNS, some_u(60))
    r, s = world.split(R, S, ON)
    task = world.image([source], [r, s], rows=60)
    ordered = (r, s) if first == "r" else (s, r)
    monkeypatch.setattr(type(task.operator), "prefixes", tuple(rowset_prefix(table.rowset) for table in ordered))
    told = shares_of(task)
    assert told[-1] == (66, 1.0)
    assert len({rows for rows, _ in told}) > 10
    assert all(share < rows / 66 + 0.2 for rows, share in told)


@pytest.mark.parametrize("ranges", [1, 2, 3, 7])
def test_each_target_is_cut_by_its_own_groups_and_not_before_the_first(world: Sources, ranges: int) -> None:
    """A range of no rows would have all others of the target seem to be done, for they are taken to be as large."""
    source = world.described("u", U_COLUMNS, some_u(6))
    task = world.image([source], [*world.split(R, S, ON)], rows=6)
    groups = [prefix + bytes((number,)) for prefix in task.operator.prefixes for number in (3, 3, 4, 5)]
    bounds = [at.start for at in task.plan(groups, ranges)]
    assert bounds == sorted(bounds)
    assert len(bounds) == {1: 2, 2: 2, 3: 4, 7: 6}[ranges]
    assert not {prefix + b"\x03" for prefix in task.operator.prefixes} & {*bounds}


def test_the_share_of_a_join_is_not_that_of_what_was_put(
    world: Sources, narrow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows in its one range end where the work is."""
    monkeypatch.setattr(image, "ITEMS_PER_RANGE", 1000)
    r = world.described("a", A_COLUMNS, some_a(40))
    s = world.described("b", B_COLUMNS, some_b(12, unique=True))
    told = shares_of(world.image([r, s], [world.joined(KEYS, unique=True)], rows=52))
    assert told[-1][1] == 1.0
    assert len({rows for rows, _ in told}) > 10
    assert all(share == rows / 52 for rows, share in told if rows < told[-1][0])


def test_rows_count_for_a_rate_as_they_are_put(world: Sources, narrow: None) -> None:
    source = world.described("u", U_COLUMNS, some_u(6))
    r, s = world.split(R, S, ON)
    task = world.image([source], [r, s])
    task.pace = Pace()
    rows = [(rowset_prefix(r.rowset) + bytes([number]), b"v") for number in range(5)]
    counted = []
    for step in task.steps(rows):
        world.store.background([step])
        counted.append(task.pace.rows)
    assert counted == [2, 4, 5]
    assert stored(world.store, r.rowset) == dict(rows)


# --- index entries ---------------------------------------------------------------------------------------------------


def test_entries_are_put_without_a_look_at_who_writes(world: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are unique ones probed. They count for a rate, and are put at leisure, many together."""
    monkeypatch.setattr(reorganize, "STEP_ENTRIES", 5)
    r = world.described("a", A_COLUMNS, some_a(40))
    s = world.described("b", B_COLUMNS, some_b(12, unique=True))
    target = world.joined(KEYS, unique=True)
    InProcess().run(world.image([r, s], [target]), nothing)
    target = msgspec.structs.replace(
        target, indexes=tuple(msgspec.structs.replace(index, unique=True) for index in target.indexes)
    )
    task = world.entries_of(target, PLACE + 1)
    task.pace = Pace()

    def looked(*_given: object) -> int:
        raise AssertionError("the log was read")

    monkeypatch.setattr(Touched, "follow", looked)
    at = Checkpoint(task.start, task.stop, task.start, 0)
    ((steps, reached),) = [(list(found), at) for found, at in task.batches(at)]
    entries = len(target.indexes) * len(rows_of(world.store, world.layouts, target))
    assert (reached.rows, reached.done) == (entries, True)
    assert len(steps) == -(-entries // 20) + len(target.indexes)  # what says of each that nothing was met twice
    world.store.background(steps)
    assert task.pace.rows == entries
    assert (task.urgency, task.rests) == (AT_LEISURE, 2.5)
    check_entries(world.store, world.layouts, target)


# --- the snapshot ----------------------------------------------------------------------------------------------------


def test_rows_are_those_of_the_snapshot(world: Sources) -> None:
    """In whichever layout, and whatever came later."""
    world.described("u", U_COLUMNS, some_u(20))
    source = world.with_column("u", "more", "as it was")
    server = Server(world, "u")
    for number in range(3, 9):
        server.update(number, a=number)
    server.insert(30, 1, "a", "of a", "m")
    server.commit()
    targets = world.split([*R, "more"], S, ON)
    task = world.image([source], list(targets))
    assert image_snapshot(world.jobs, 1, STAGE, PLACE) is None
    snapshot = task.snapshot()
    parts = world.parts(source)
    assert {part.values[4] for part in parts.values()} == {"as it was", "m"}
    server.begin()
    server.update(1, zip="z", city="z")
    server.update(4, a=99)
    server.delete(5)
    server.insert(40, 1, "q", "q", "q")
    server.commit()
    assert world.parts(source) != parts
    for _ in range(2):  # the second time it has nothing to do
        task = world.image([source], list(targets))
        assert task.snapshot() == image_snapshot(world.jobs, 1, STAGE, PLACE) == snapshot
        InProcess().run(task, nothing)
        check_split(world, targets, Split(r=(0, 1, 2, 4), s=(2, 3), on=(2,)), parts)


def test_it_fails_if_the_log_is_cut_past_its_snapshot(world: Sources) -> None:
    source = world.described("u", U_COLUMNS, some_u(20))
    targets = world.split(R, S, ON)
    task = world.image([source], list(targets))
    task.snapshot()
    server = Server(world, "u")
    server.update(1, a=5)
    server.commit()
    world.store.collect(world.now(), lambda record: [])
    with pytest.raises(errors.Error, match='the log no longer has the rows of table "u"') as caught:
        InProcess().run(task, nothing)
    assert caught.value.sqlstate == errors.SNAPSHOT_TOO_OLD


# --- killed ----------------------------------------------------------------------------------------------------------


class Killed(Exception):
    pass


class Mortal(Image):
    """Dies at the `dies`-th batch that puts rows, when the first step of it is put, and nothing else."""

    dies = 0

    def put(self, number: int, steps: Iterable[Step], before: Checkpoint, reached: Checkpoint) -> None:
        left = list(steps)
        if left:
            Mortal.dies -= 1
            if Mortal.dies == 0:
                self.store.background(left[:1], claim=self.claim)
                raise Killed
        super().put(number, left, before, reached)


def lives(make: Callable[[type[Image]], Image]) -> int:
    """Run the work in as many lives as it takes, each of a batch and a bit; how many they were."""
    count = 0
    while True:
        count += 1
        Mortal.dies = 2
        try:
            InProcess().run(make(Mortal), nothing)
        except Killed:
            continue
        return count


@pytest.mark.parametrize("unique", [True, False])
def test_a_join_that_is_killed_again_and_again(world: Sources, narrow: None, unique: bool) -> None:
    r = world.described("a", A_COLUMNS, some_a(40))
    s = world.described("b", B_COLUMNS, some_b(12, unique=unique))
    target = world.joined(KEYS, unique=unique)
    count = lives(lambda kind: world.image([r, s], [target], kind, 52))
    assert count > 6
    assert len(planned(world.image([r, s], [target]))) >= 3
    expected = expected_join(shape_of(r, s, KEYS, unique=unique), world.parts(r), world.parts(s))
    check_join(world, target, expected)
    before = everything(world, target)
    assert sum(found.rows for found in planned(world.image([r, s], [target]))) == len(before[0])


def test_a_split_that_is_killed_at_each_batch(world: Sources, narrow: None) -> None:
    source = world.described("u", U_COLUMNS, some_u(40))
    parts = world.parts(source)
    targets = world.split(R, S, ON)
    count = lives(lambda kind: world.image([source], list(targets), kind, 40))
    assert count > 6
    check_split(world, targets, SPLIT, parts)
    ranges = planned(world.image([source], list(targets)))
    assert len(ranges) >= 4
    assert all(found.done for found in ranges)


def test_ranges_done_again_put_the_same(world: Sources, narrow: None) -> None:
    r = world.described("a", A_COLUMNS, some_a(40))
    s = world.described("b", B_COLUMNS, some_b(12, unique=False))
    target = world.joined(KEYS, unique=False)
    task = world.image([r, s], [target], rows=52)
    InProcess().run(task, nothing)
    before = everything(world, target)
    for number, found in enumerate(planned(task), 1):
        at = Checkpoint(found.start, found.stop, found.start, 0)
        for steps, reached in task.batches(at):
            task.put(number, steps, at, reached)
            at = reached
    assert everything(world, target) == before


def test_without_its_claim_it_writes_nothing(world: Sources) -> None:
    source = world.described("u", U_COLUMNS, some_u(10))
    targets = world.split(R, S, ON)
    task = world.image([source], list(targets))
    world.jobs.release(world.held)
    assert world.jobs.claim(1, b"another") is not None
    with pytest.raises(ClaimLost):
        InProcess().run(task, nothing)
    assert not any(everything(world, *targets))
    assert image_snapshot(world.jobs, 1, STAGE, PLACE) is None


def test_one_row_of_many_is_made_in_pieces(world: Sources) -> None:
    """A batch ends after so many items, whatever has come of them; to pass what was put is no progress."""
    count = 8 * FIRST_ROWS
    source = world.described("u", U_COLUMNS, [(number, 1, f"v{number % 8}", "x") for number in range(count)])
    targets = world.split(R, S, ON)
    task = world.image([source], list(targets))
    ranges = dict(task.ranges(nothing))
    number, at = next((number, at) for number, at in ranges.items() if at.start == rowset_prefix(targets[1].rowset))
    task.breath = Breath(Foreground(), Working())
    items = [item for _, found in task.items(0, *task.whole(0)) for item in found if item.group.startswith(at.start)]
    items.sort()
    batches = list(task.made(number, items, at))
    assert [(len(rows), reached.rows) for rows, reached in batches] == [(0, 0)] + [(1, n) for n in range(1, 9)]
    assert batches[0][1] == at
    again = list(task.made(number, items, batches[4][1]))
    assert [(len(rows), reached.rows) for rows, reached in again] == [(0, 4)] * 5 + [(1, n) for n in range(5, 9)]
    assert again[0][1] == batches[4][1]
    assert [rows for rows, _ in again[5:]] == [rows for rows, _ in batches[5:]]


def test_among_rows_that_came_later_it_rests_and_feels_the_pulse(
    world: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them is seen by its snapshot, so that nothing comes of reading them."""
    monkeypatch.setattr(image, "READ_ROWS", 50)
    source = world.described("u", U_COLUMNS, some_u(4))
    task = world.image([source], list(world.split(R, S, ON)))
    task.snapshot()
    world.insert("u", [(number, 1, "a", "of a") for number in range(4, 304)])
    clock, pulses = Working(), list[int]()
    clock.cost = PIECE_NS
    task.breath, task.pace = Breath(Foreground(), clock), Pace(lambda: pulses.append(len(clock.slept)))
    assert [count for count, _ in task.items(0, *task.whole(0))] == [4]
    assert len(pulses) >= 6  # a read each
    assert pulses == list(range(1, len(pulses) + 1))  # each after a rest
