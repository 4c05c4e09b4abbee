"""Validation on Spark: the same verdict as in process, resumed where it was stopped, across a killed JVM."""

from __future__ import annotations

import signal
from collections.abc import Callable

import psutil
import pytest

from instar import errors
from instar.catalog.descriptors import Check, Column, Derivation, ForeignKey, Layout, State, Table
from instar.clock import SystemClock
from instar.pipeline import spark_job
from instar.pipeline import validation as spark_validation
from instar.pipeline.reorganizer import SparkReorganizer
from instar.schemachange.elements import Element, ElementKind
from instar.schemachange.jobs import Held, Jobs
from instar.schemachange.reorganize import InProcess
from instar.schemachange.validate import Validation
from instar.store.engine import ClaimLost, Section
from instar.tables.rowset import key_encoder
from instar.tables.writes import TableWriter
from instar.types import BIGINT, INTEGER, TEXT
from pipeline.small_database import SmallDatabase, compile_check

pytestmark = pytest.mark.spark

ROWS = 8_000
CHECK, KEY, BY_INDEX, COLUMN = 61, 60, 62, 3


@pytest.fixture(autouse=True)
def narrow(monkeypatch) -> None:
    """Many ranges, and frequent pulses, to meet them midway."""
    monkeypatch.setattr(spark_validation, "ROWS_PER_RANGE", 1_000)
    monkeypatch.setattr(spark_job, "PULSE_SECONDS", 0.02)


def pending(database: SmallDatabase) -> Table:
    """A table that keeps to a pending check, two pending foreign keys, and (in column a) to NOT NULL."""
    parent = database.create("parent", [("id", BIGINT), ("code", TEXT)], ["id"])
    parent = database.add_index(parent, "code", ["code"], State.PUBLIC, unique=True)
    database.insert(parent, [(i, f"c{i}") for i in range(100)])
    child = database.create("child", [("id", BIGINT), ("parent", BIGINT), ("a", INTEGER), ("code", TEXT)], ["id"])
    key = ForeignKey(id=KEY, name="by_id", columns=(2,), parent=parent.id, parent_columns=(1,), state=State.WRITE_ONLY)
    by_index = ForeignKey(
        id=BY_INDEX,
        name="by_code",
        columns=(4,),
        parent=parent.id,
        parent_columns=(2,),
        parent_index=parent.indexes[0].id,
        state=State.WRITE_ONLY,
    )
    check = Check(id=CHECK, name="positive", expression="", columns=(3,), state=State.WRITE_ONLY)
    child = database.alter(child, foreign_keys=(key, by_index), checks=(check,))
    database.insert(child, [(i, i % 100, i % 7, f"c{i % 90}" if i % 3 else None) for i in range(ROWS)])
    return child


def validation(database: SmallDatabase, table: Table, kind: ElementKind, number: int, held: Held) -> Validation:
    element = Element(kind, table.id, number)
    return Validation(
        database.store,
        database.new_catalog(),
        element,
        compile_check,
        job=held.job,
        stage=2,
        claim=held.claim,
        rows=ROWS,
    )


def damage(database: SmallDatabase, table: Table, number: int, image: tuple[object, ...]) -> None:
    """Put another image in the place of row `number`, behind everybody's back."""
    writer = TableWriter(table, database.catalog, database.layouts)
    key = writer.prefix + key_encoder(table)([number])

    def put(section: Section) -> None:
        stored = section.get(key)
        assert stored is not None
        section.put(key, stored[:16] + writer.encode(image))

    database.store.background([put])


def verdict(run: Callable[[], None]) -> tuple[str, str, str | None]:
    with pytest.raises(errors.Error) as caught:
        run()
    return caught.value.sqlstate, caught.value.message, caught.value.detail


@pytest.mark.parametrize(
    ("kind", "number", "sqlstate", "image"),
    [
        (ElementKind.CHECK, CHECK, errors.CHECK_VIOLATION, lambda i: (i, 1, -1, None)),
        (ElementKind.NOT_NULL, COLUMN, errors.NOT_NULL_VIOLATION, lambda i: (i, 1, None, None)),
        (ElementKind.FOREIGN_KEY, KEY, errors.FOREIGN_KEY_VIOLATION, lambda i: (i, 100 + i, 1, None)),
        (ElementKind.FOREIGN_KEY, BY_INDEX, errors.FOREIGN_KEY_VIOLATION, lambda i: (i, 1, 1, f"no{i}")),
    ],
)
def test_the_same_verdict_as_in_process(spark, database, kind, number, sqlstate, image):
    table = pending(database)
    for violating in range(7, ROWS, 600):
        damage(database, table, violating, image(violating))
    task = validation(database, table, kind, number, database.claimed(1))
    on_spark = verdict(lambda: SparkReorganizer(database.path).run(task, lambda: None))
    whole = validation(database, table, kind, number, database.claimed(2))
    assert on_spark == verdict(lambda: InProcess().run(whole, lambda: None))
    assert on_spark[0] == sqlstate
    assert "14 rows violate it, among them: (id)=(7), (id)=(607)," in (on_spark[2] or "")


def test_a_conversion_has_the_same_verdict_as_in_process(spark, database):
    table = database.create("numbers", [("id", BIGINT), ("c", TEXT)], ["id"])
    database.insert(table, [(i, "x" if i % 600 == 7 else str(i)) for i in range(ROWS)])
    derived = Derivation(
        expression='CAST("#2" AS integer)', type=INTEGER, sources=(table.columns[1],), now=0, zone="Asia/Tokyo"
    )  # fmt: skip
    column = Column(id=3, name="c", type=INTEGER, state=State.WRITE_ONLY, derived=derived, replaces=2)
    layout = Layout(table.layout.id + 1, (*table.layout.columns, (3, INTEGER)))
    table = database.alter(table, columns=(*table.columns, column), layout=layout)
    task = validation(database, table, ElementKind.COLUMN, 3, database.claimed(1))
    on_spark = verdict(lambda: SparkReorganizer(database.path).run(task, lambda: None))
    whole = validation(database, table, ElementKind.COLUMN, 3, database.claimed(2))
    assert on_spark == verdict(lambda: InProcess().run(whole, lambda: None))
    assert on_spark[:2] == (errors.INVALID_TEXT, 'invalid input syntax for type integer: "x"')
    assert (on_spark[2] or "").startswith("14 rows cannot be converted, among them: (id)=(7), (id)=(607),")


def test_a_constraint_that_holds(spark, database):
    table = pending(database)
    task = validation(database, table, ElementKind.FOREIGN_KEY, BY_INDEX, database.claimed(1))
    SparkReorganizer(database.path).run(task, lambda: None)
    found = Jobs(database.store, SystemClock()).checkpoints(1, 2)
    assert len(found) == 8
    assert all(checkpoint.done for checkpoint in found.values())
    assert sum(checkpoint.rows for checkpoint in found.values()) == ROWS


class Once:
    """A pulse that does something once some ranges of job 1, and not all, are done."""

    def __init__(self, database: SmallDatabase, action: Callable[[], None]) -> None:
        self.happened = False
        self._jobs = Jobs(database.store, SystemClock())
        self._action = action

    def __call__(self) -> None:
        done = [found.done for found in self._jobs.checkpoints(1, 2).values()]
        if not self.happened and any(done) and not all(done):
            self.happened = True
            self._action()


def test_stopped_and_resumed(spark, database):
    table = pending(database)
    held = database.claimed(1)

    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    task = validation(database, table, ElementKind.CHECK, CHECK, held)
    with pytest.raises(Stop):
        SparkReorganizer(database.path).run(task, Once(database, stop))
    # What is done is not examined again: a row that nobody can have written so is not met.
    checkpoints = Jobs(database.store, SystemClock()).checkpoints(1, 2)
    done = next(found for found in checkpoints.values() if found.done)
    with database.store.read() as reader:
        key = reader.batch(max(done.start, task.start), done.stop, 1)[0][0]
    number = int.from_bytes(key[-8:], "big") - (1 << 63)
    damage(database, table, number, (number, 1, -1, None))
    SparkReorganizer(database.path).run(task, lambda: None)
    resumed = Jobs(database.store, SystemClock()).checkpoints(1, 2)
    assert all(found.done for found in resumed.values())
    assert sum(found.rows for found in resumed.values()) == ROWS


def test_a_lost_claim_stops_it(spark, database):
    table = pending(database)
    held = database.claimed(1)
    jobs = Jobs(database.store, SystemClock())

    def take_over() -> None:
        jobs.release(held)
        assert jobs.claim(1, b"another") is not None

    task = validation(database, table, ElementKind.FOREIGN_KEY, KEY, held)
    with pytest.raises(ClaimLost):
        SparkReorganizer(database.path).run(task, Once(database, take_over))


def test_survives_a_killed_jvm(spark, database):
    table = pending(database)
    damage(database, table, 11, (11, 1, -1, None))

    def kill() -> None:
        for child in psutil.Process().children():
            if child.name() == "java":
                child.send_signal(signal.SIGKILL)

    pulse = Once(database, kill)
    task = validation(database, table, ElementKind.CHECK, CHECK, database.claimed(1))
    found = verdict(lambda: SparkReorganizer(database.path).run(task, pulse))
    assert pulse.happened
    assert found[2] == "1 row violates it: (id)=(11)."
