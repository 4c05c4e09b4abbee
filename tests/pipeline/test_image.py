"""The image of a join, split or grouping on Spark: to the byte what it is in process; killed, stopped, resumed."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import psutil
import pytest

from instar import errors
from instar.catalog.descriptors import Table
from instar.clock import SystemClock
from instar.pipeline import image as spark_image
from instar.pipeline import spark_job
from instar.pipeline.reorganizer import SparkReorganizer
from instar.schemachange.job_records import Checkpoint
from instar.schemachange.jobs import Jobs
from instar.schemachange.online.image import Image, ImageEntries, image_snapshot
from instar.schemachange.reorganize import InProcess
from instar.schemachange.tasks import planned
from instar.sql.checks import compile_check
from instar.store.engine import Section
from instar.types import BIGINT, INTEGER, NUMERIC, TEXT
from pipeline.small_database import SmallDatabase
from support.transformed import check_entries, grouping_of, join_of, split_of, stored

pytestmark = pytest.mark.spark

STAGE = 2
ROWS = 16_000


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of a few thousand rows, and frequent pulses, to meet them midway."""
    monkeypatch.setattr(spark_image, "ITEMS_PER_RANGE", 5_000)
    monkeypatch.setattr(spark_job, "PULSE_SECONDS", 0.02)


def joined(database: SmallDatabase) -> tuple[list[Table], list[Table]]:
    """Sources of a join, R the larger one, and its target: some rows match nothing, many match several."""
    drawn = random.Random(1)
    r = database.create("a", [("id", BIGINT), ("k", INTEGER), ("v", TEXT)], ["id"])
    s = database.create("b", [("id", TEXT), ("k", BIGINT), ("w", TEXT)], ["id"])
    database.insert(r, [(n, drawn.choice([None, drawn.randrange(4_000)]), f"v{n}" * 5) for n in range(ROWS)])
    database.insert(s, [(f"b{n}", drawn.choice([None, drawn.randrange(4_500)]), None) for n in range(ROWS // 4)])
    change = database.change()
    target = join_of(change, r, s, [("k", "k")], unique=False, merged=True)
    database.publish(change)
    return [r, s], [target]


def split(database: SmallDatabase) -> tuple[list[Table], list[Table]]:
    """The source of a split, and its targets: some rows contradict each other, some have no split value."""
    drawn = random.Random(2)
    source = database.create("u", [("id", BIGINT), ("a", INTEGER), ("zip", TEXT), ("city", TEXT)], ["id"])
    rows: list[tuple[object, ...]] = []
    for number in range(ROWS):
        value = drawn.choice([None, drawn.randrange(3_000)])
        city = None if value is None else f"of {value % 100}" if value % 7 else drawn.choice("xy")
        rows.append((number, number % 9, None if value is None else f"z{value}", city))
    database.insert(source, rows)
    change = database.change()
    targets = split_of(change, source, ["id", "a", "zip"], ["zip", "city"], ["zip"])
    database.publish(change)
    return [source], list(targets)


def grouped(database: SmallDatabase) -> tuple[list[Table], list[Table]]:
    """The source of a grouping, and its target: NULLs and long texts among what it groups by, rows in no group."""
    drawn = random.Random(3)
    columns = [("id", BIGINT), ("a", INTEGER), ("zip", TEXT), ("city", TEXT), ("n", NUMERIC)]
    source = database.create("u", columns, ["id"])
    groups = [None, *(f"z{value}" * (60 if value % 50 == 0 else 1) for value in range(3_000))]
    numbers = [None, Decimal("NaN"), *(Decimal(value).scaleb(-2) for value in range(-500, 500))]
    rows: list[tuple[object, ...]] = []
    for number in range(ROWS):
        city = drawn.choice([None, "x"])
        rows.append((number, drawn.choice([None, -1, 1]), drawn.choice(groups), city, drawn.choice(numbers)))
    database.insert(source, rows)
    change = database.change()
    target = grouping_of(change, source, ["zip", "city"], ["n", "a"], counted="id", positive="a")
    database.publish(change)
    return [source], [target]


def image(database: SmallDatabase, tables: tuple[list[Table], list[Table]], job: int = 1) -> Image:
    held = database.claimed(job)
    return Image(
        database.store, *tables, job=job, stage=STAGE, claim=held.claim, rows=ROWS, compile_check=compile_check
    )


def entries(task: Image, table: Table, place: int) -> ImageEntries:
    names = {"job": task.job, "stage": task.stage, "rows": ROWS, "place": place}
    return ImageEntries(task.store, table, table.indexes, claim=task.claim, **names)


def everything(database: SmallDatabase, targets: list[Table]) -> list[dict[bytes, bytes]]:
    rowsets = [number for table in targets for number in (table.rowset, *(index.rowset for index in table.indexes))]
    return [stored(database.store, number) for number in rowsets]


def emptied(database: SmallDatabase, targets: list[Table]) -> list[dict[bytes, bytes]]:
    """What there was of the targets, which have nothing now."""
    found = everything(database, targets)

    def step(section: Section) -> None:
        for rowset in found:
            for key in rowset:
                section.delete(key)

    database.store.background([step])
    return found


def in_process(database: SmallDatabase, task: Image) -> None:
    """The same ranges once more, by this process."""
    for found in planned(task):
        at = Checkpoint(found.start, found.stop, found.start, 0)
        for steps, reached in task.batches(at):
            database.store.background(list(steps))
            at = reached


class Midway:
    """A pulse that does something once, as soon as a range is done."""

    def __init__(self, task: Image, action: Callable[[], None]) -> None:
        self.happened = False
        self._task = task
        self._action = action

    def __call__(self) -> None:
        if not self.happened and any(found.done for found in planned(self._task)):
            self.happened = True
            self._action()


def kill_jvm() -> None:
    for child in psutil.Process().children():
        if child.name() == "java":
            child.send_signal(signal.SIGKILL)


KINDS = pytest.mark.parametrize("made", [joined, split])
Made = Callable[[SmallDatabase], tuple[list[Table], list[Table]]]


def check_done(database: SmallDatabase, task: Image, targets: list[Table]) -> None:
    """All ranges are done, and what they put is what this process puts of them."""
    ranges = planned(task)
    assert len(ranges) >= 4
    assert all(found.done for found in ranges)
    assert sum(found.rows for found in ranges) == sum(len(stored(database.store, table.rowset)) for table in targets)
    entered = [entries(task, table, place) for place, table in enumerate(targets, task.place + 1)]
    for work in entered:
        SparkReorganizer(database.path).run(work, lambda: None)
        check_entries(database.store, database.layouts, work.table)
    found = emptied(database, targets)
    in_process(database, task)
    for work in entered:
        for steps, _ in work.batches(Checkpoint(work.start, work.stop, work.start, 0)):
            database.store.background(list(steps))
    assert everything(database, targets) == found


def test_the_same_as_in_process_though_the_jvm_is_killed(spark: Any, database: SmallDatabase) -> None:
    """What is changed after the snapshot does not show."""
    same_as_in_process(database, joined(database), kill_jvm)


@pytest.mark.parametrize("made", [split, grouped])
def test_the_same_as_in_process(spark: Any, database: SmallDatabase, made: Made) -> None:
    same_as_in_process(database, made(database), lambda: None)


def same_as_in_process(
    database: SmallDatabase, tables: tuple[list[Table], list[Table]], action: Callable[[], None]
) -> None:
    """An image by Spark, with something done midway."""
    source = tables[0][0]
    old: tuple[object, ...] = (ROWS, 1, "z1", "as it was", Decimal(1))[: len(source.columns)]
    database.insert(source, [old])
    task = image(database, tables)
    snapshot = task.snapshot()
    database.update(source, old, tuple("changed" if isinstance(found, str) else found for found in old))
    pulse = Midway(task, action)
    SparkReorganizer(database.path).run(task, pulse)
    assert pulse.happened
    assert image_snapshot(Jobs(database.store, SystemClock()), 1, STAGE, 0) == snapshot
    assert not any(b"changed" in value for rows in everything(database, tables[1]) for value in rows.values())
    check_done(database, task, tables[1])


@KINDS
def test_stopped_and_finished_without_spark(spark: Any, database: SmallDatabase, made: Made) -> None:
    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    tables = made(database)
    task = image(database, tables)
    with pytest.raises(Stop):
        SparkReorganizer(database.path).run(task, Midway(task, stop))
    before = planned(task)
    assert 0 < sum(found.done for found in before) < len(before)
    resumed = Image(
        database.store, *tables, job=1, stage=STAGE, claim=task.claim, rows=ROWS, compile_check=compile_check
    )
    InProcess().run(resumed, lambda: None)
    assert [(found.start, found.stop) for found in planned(task)] == [(found.start, found.stop) for found in before]
    check_done(database, resumed, tables[1])


def test_empty_sources_and_what_would_be_lost(spark: Any, database: SmallDatabase) -> None:
    source = database.create("u", [("id", BIGINT), ("a", INTEGER), ("zip", TEXT), ("city", TEXT)], ["id"])
    change = database.change()
    targets = split_of(change, source, ["id", "a", "zip"], ["zip", "city"], ["zip"])
    database.publish(change)
    task = image(database, ([source], list(targets)))
    SparkReorganizer(database.path).run(task, lambda: None)
    assert all(found.done for found in planned(task))
    assert not any(everything(database, list(targets)))

    database.insert(source, [(1, 1, "z", "c"), (2, 1, None, "lost")])
    again = image(database, ([source], list(targets)), 2)
    with pytest.raises(errors.Error) as caught:
        SparkReorganizer(database.path).run(again, lambda: None)
    assert caught.value.sqlstate == errors.NOT_NULL_VIOLATION
    assert caught.value.detail == 'The value of column "city" of row (id)=(2) would be lost.'
