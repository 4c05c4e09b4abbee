"""The anti-join of a foreign key on Spark: in every shape of the join, wave after wave, and the last word on what it
leaves over."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from instar import errors
from instar.catalog.descriptors import ForeignKey, State, Table
from instar.clock import SystemClock
from instar.pipeline import reference_join, spark_job
from instar.pipeline import validation as spark_validation
from instar.pipeline.reorganizer import SparkReorganizer
from instar.schemachange.elements import ElementKind
from instar.schemachange.jobs import Jobs
from instar.schemachange.reorganize import InProcess
from instar.store.key_ranges import Split
from instar.types import BIGINT, TEXT
from pipeline.test_validation import BY_INDEX, KEY, ROWS, damage, pending, validation, verdict

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def narrow(monkeypatch) -> None:
    """Several ranges, and a shuffle of both sides."""
    monkeypatch.setattr(spark_validation, "ROWS_PER_RANGE", 2_000)
    monkeypatch.setattr(reference_join, "ROWS_PER_RANGE", 40)  # the parents' ranges
    monkeypatch.setattr(reference_join, "BROADCAST_ROWS", 0)
    monkeypatch.setattr(reference_join, "ROWS_PER_PARTITION", 2_000)
    monkeypatch.setattr(spark_job, "PULSE_SECONDS", 0.02)


@pytest.mark.parametrize(
    ("number", "image"),
    [(KEY, lambda i: (i, 100 + i, 1, None)), (BY_INDEX, lambda i: (i, 1, 1, "no" * 400 + str(i)))],
)
def test_both_sides_shuffled_in_waves(spark, database, monkeypatch, number, image):
    monkeypatch.setattr(reference_join, "WAVE_ROWS", 4_000)
    heard: list[Path] = []
    monkeypatch.setattr(reference_join, "LISTEN_SECONDS", 0.02)
    monkeypatch.setattr(reference_join, "beat", heard.append)  # in this process; those of tasks are their own
    table = pending(database)
    for violating in (*range(7, ROWS, 600), 8, 9):
        damage(database, table, violating, image(violating))
    task = validation(database, table, ElementKind.FOREIGN_KEY, number, database.claimed(1))
    on_spark = verdict(lambda: SparkReorganizer(database.path).run(task, lambda: None))
    assert heard
    twin = validation(database, table, ElementKind.FOREIGN_KEY, number, database.claimed(2))
    assert on_spark == verdict(lambda: InProcess().run(twin, lambda: None))
    assert "16 rows violate it, among them: (id)=(7), (id)=(8), (id)=(9), (id)=(607)," in (on_spark[2] or "")


def test_a_table_that_refers_to_itself(spark, database):
    """By two columns, in another order than its key has them; a row with a NULL in either refers to nothing."""
    columns = [("a", BIGINT), ("b", TEXT), ("up_b", TEXT), ("up_a", BIGINT)]
    node = database.create("node", columns, ["a", "b"])
    above = [(i, f"n{i}", f"n{i // 2}", i // 2) for i in range(1_000)]
    half = [(1_000 + i, "half", None, 10**6) if i % 2 else (1_000 + i, "half", "nobody", None) for i in range(100)]
    database.insert(node, [*above, *half, (5_000, "x", "n1", 2), (5_001, "y", "y", 5_001)])
    up = ForeignKey(id=KEY, name="up", columns=(3, 4), parent=node.id, parent_columns=(2, 1), state=State.WRITE_ONLY)
    node = database.alter(node, foreign_keys=(up,))
    task = validation(database, node, ElementKind.FOREIGN_KEY, KEY, database.claimed(1))
    assert verdict(lambda: SparkReorganizer(database.path).run(task, lambda: None)) == (
        errors.FOREIGN_KEY_VIOLATION,
        'insert or update on table "node" violates foreign key constraint "up"',
        'Key (up_b, up_a)=(n1, 2) is not present in table "node". 1 row violates it: (a, b)=(5000, x).',
    )


def test_what_the_join_leaves_over_is_judged_as_it_stands(spark, database, monkeypatch):
    """As if all parents had come after they were read, and a few rows had gone after that."""
    table = pending(database)
    damage(database, table, 4_000, (4_000, 999, 1, None))
    split = reference_join.key_ranges.split

    def no_parents(reader, start, stop, parts):
        return Split([(start, start)], 0) if start != task.start else split(reader, start, stop, parts)

    task = validation(database, table, ElementKind.FOREIGN_KEY, KEY, database.claimed(1))
    monkeypatch.setattr(reference_join.key_ranges, "split", no_parents)
    found = verdict(lambda: SparkReorganizer(database.path).run(task, lambda: None))
    assert found[2] == 'Key (parent)=(999) is not present in table "parent". 1 row violates it: (id)=(4000).'


def test_beside_writers_that_keep_to_it(spark, database):
    table = pending(database)
    parent = database.catalog.lookup("public", "parent")
    assert isinstance(parent, Table)
    stop, drawn = threading.Event(), random.Random(5)
    failures: list[errors.Error] = []

    def write() -> None:
        number = ROWS
        try:
            while not stop.is_set():
                number += 1
                above, below = (number, f"c{number}"), (drawn.choice((-1, 1)) * number, number, 1, f"c{number}")
                database.insert(parent, [above])
                database.insert(table, [below])
                if drawn.random() < 0.9:
                    database.delete(table, below)
                    database.delete(parent, above)
        except errors.Error as failure:
            failures.append(failure)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        task = validation(database, table, ElementKind.FOREIGN_KEY, BY_INDEX, database.claimed(1))
        SparkReorganizer(database.path).run(task, lambda: None)
    finally:
        stop.set()
        writer.join()
    assert failures == []


def test_stopped_after_a_wave_and_resumed(spark, database, monkeypatch):
    monkeypatch.setattr(reference_join, "WAVE_ROWS", 4_000)
    table = pending(database)
    jobs = Jobs(database.store, SystemClock())

    class Stop(Exception):
        pass

    def stop_midway() -> None:
        done = [found.done for found in jobs.checkpoints(1, 2).values()]
        if any(done) and not all(done):
            raise Stop

    task = validation(database, table, ElementKind.FOREIGN_KEY, KEY, database.claimed(1))
    with pytest.raises(Stop):
        SparkReorganizer(database.path).run(task, stop_midway)
    # Nobody can have written so: whoever examines the range again meets it.
    damage(database, table, 5, (5, 999, 1, None))
    SparkReorganizer(database.path).run(task, lambda: None)
    found = jobs.checkpoints(1, 2)
    assert all(checkpoint.done for checkpoint in found.values())
    assert sum(checkpoint.rows for checkpoint in found.values()) == ROWS
    again = validation(database, table, ElementKind.FOREIGN_KEY, KEY, database.claimed(2))
    assert "(id)=(5)" in (verdict(lambda: InProcess().run(again, lambda: None))[2] or "")
