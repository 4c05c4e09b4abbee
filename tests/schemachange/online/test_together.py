"""What the statements plan, the image fills and the log is propagated to: all parts over the same descriptors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from instar.catalog.descriptors import Sequence, Table
from instar.schemachange import wanted as want
from instar.schemachange.online.image import Image, ImageEntries, image_snapshot
from instar.schemachange.online.redo import putting
from instar.schemachange.online.transformation import Transformation, join_of, split_of
from instar.schemachange.reorganize import InProcess
from instar.sql.checks import compile_check
from instar.types import BIGINT, INTEGER, TEXT
from schemachange.online.following import CLAIM, check, commit, following, run
from schemachange.online.tables import ENGINES, stored_in
from support.changes import ChangingWorld
from transformations.histories import R, S, T, gone, row


@pytest.fixture(params=ENGINES)
def world(request: pytest.FixtureRequest) -> Iterator[ChangingWorld]:
    with stored_in(request.param) as store:
        made = ChangingWorld(store)
        for name, columns in (
            ("t", (("id", BIGINT), ("a", INTEGER), ("z", TEXT), ("city", TEXT), ("n", INTEGER))),
            ("r", (("id", BIGINT), ("v", TEXT), ("a", INTEGER))),
            ("s", (("id", BIGINT), ("v", TEXT), ("n", INTEGER))),
        ):
            made.execute(want.CreateTable(name, tuple(want.NewColumn(*column) for column in columns), ("id",)))
        yield made


def targets(world: ChangingWorld, name: str) -> tuple[Table, tuple[Table, ...]]:
    """A source, and what is made of it."""
    source = world.table(name)
    assert source.transformed is not None
    return source, tuple(world.catalog().table(number) for number in source.transformed.targets)


def filled(world: ChangingWorld, job: int, transformation: Transformation, made: tuple[Table, ...]) -> int:
    """Have the targets be filled as the job would; returns the snapshot."""
    world.store.background([putting([CLAIM])])
    sources = [rows.table for rows in transformation.sources]
    InProcess().run(
        Image(world.store, sources, made, job=job, stage=1, claim=CLAIM, rows=10, compile_check=compile_check),
        lambda: None,
    )
    for place, target in enumerate(made, 1):
        names = {"job": job, "stage": 1, "rows": 10, "place": place}
        InProcess().run(ImageEntries(world.store, target, target.indexes, claim=CLAIM, **names), lambda: None)
    snapshot = image_snapshot(world.jobs, job, 1, 0)
    assert snapshot is not None
    check(world.store, transformation, snapshot)
    return snapshot


def test_a_split(world: ChangingWorld) -> None:
    job = world.execute(
        want.SplitTable("t", want.NewTable("tr", ("id", "a", "z")), want.NewTable("ts", ("z", "city", "n")), ("z",))
    )
    assert job is not None
    source, (r, s) = targets(world, "t")
    split = split_of(source, r, s)
    commit(world, split, row(T, 1, 5, "x", "A", 0) | row(T, 2, 5, "x", "A", 0) | row(T, 3, 5, "z", "B", 1))
    snapshot = filled(world, job, split, (r, s))
    commit(world, split, gone(T, 3) | row(T, 1, 6, "y", "C", 2) | row(T, 4, 5, None, None, None))
    task = following(world.store, split, snapshot)
    assert run(task)
    check(world.store, split, world.now())


def test_a_join(world: ChangingWorld) -> None:
    columns = (
        want.JoinedColumn("r_id", r="id"), want.JoinedColumn("v", r="v", s="v"), want.JoinedColumn("a", r="a"),
        want.JoinedColumn("s_id", s="id"), want.JoinedColumn("n", s="n"),
    )  # fmt: skip
    job = world.execute(want.JoinTables("r", "s", (("v", "v"),), "rs", columns))
    assert job is not None
    r, (target,) = targets(world, "r")
    number = next(column.sequence for column in target.columns if column.id == target.primary_key[0])
    assert number is not None
    sequence = Sequence(id=number, name="rowid", version=1, type=BIGINT)
    join = join_of(r, world.table("s"), target, lambda: world.sequences.next_value(sequence))
    commit(world, join, row(R, 1, "x", 0) | row(R, 2, "x", 0) | row(S, 1, "x", 0) | row(S, 2, "z", 0))
    snapshot = filled(world, job, join, (target,))
    commit(world, join, {(R, (key,)): (key, "z", 0) for key in range(1, 90)} | gone(S, 1) | row(S, 3, "z", 1))
    task = following(world.store, join, snapshot)
    assert run(task)
    check(world.store, join, world.now())
