"""Jobs whose records cannot be read, and what CANCEL JOB does with them."""

from __future__ import annotations

import pytest

from instar.schemachange.job_records import claim_key, job_key
from instar.store.engine import Section
from support.databases import fails, rows, run, value
from support.slow import Slow


def damage(slow: Slow, *jobs: int) -> None:
    def write(section: Section) -> None:
        for job in jobs:
            section.put(job_key(job), b"\xc1")

    slow.engine.database.store.background([write])


def jobs_of(slow: Slow) -> list[int]:
    return [number for (number,) in rows(slow.connection, "SELECT id FROM instar.jobs ORDER BY id")]


def names(slow: Slow) -> set[str]:
    """Of the columns, indexes and constraints of t."""
    with slow.engine.database.store.read() as reader:
        table = slow.engine.database.catalog.at(reader).lookup("public", "t")
    assert table is not None
    listed = (*table.columns, *table.indexes, *table.checks, *table.foreign_keys)  # type: ignore[union-attr] # a table
    return {found.name for found in listed}


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE INDEX i ON t (a)",
        "ALTER TABLE t ADD CONSTRAINT f FOREIGN KEY (a) REFERENCES p, ADD CONSTRAINT k CHECK (b > 0)",
        "ALTER TABLE t ADD COLUMN x integer DEFAULT 1 UNIQUE",
        "ALTER TABLE t ALTER COLUMN a SET NOT NULL",
        "ALTER TABLE t ALTER COLUMN s TYPE integer USING length(s)",
        "ALTER TABLE t ALTER PRIMARY KEY USING COLUMNS (id, b)",
        "ALTER TABLE t ADD CONSTRAINT k CHECK (b > 0), DROP COLUMN a",
    ],
)
def test_what_a_damaged_job_has_begun_is_taken_back(slow: Slow, statement: str) -> None:
    before = names(slow)
    run(slow.connection, statement)
    (job,) = jobs_of(slow)
    damage(slow, job)
    with fails("XX001"):
        run(slow.connection, "CREATE INDEX j ON t (b)")
    run(slow.connection, f"CANCEL JOB {job}")
    assert [found.state.value for found in slow.finish()] == ["cancelled"]
    assert names(slow) == before
    run(slow.connection, "ALTER TABLE t ALTER COLUMN a TYPE bigint", "UPDATE t SET a = NULL, b = -1")
    assert value(slow.connection, "SELECT count(*) FROM t") == 3


def test_other_jobs_go_on(slow: Slow) -> None:
    run(slow.connection, "CREATE INDEX i ON p (id, u)", "ALTER TABLE t ADD CONSTRAINT k CHECK (b > 0)")
    _, second = jobs_of(slow)
    damage(slow, second)
    run(slow.connection, f"CANCEL JOB {second}")
    assert [found.state.value for found in slow.finish()] == ["succeeded", "cancelled"]
    run(slow.connection, "DROP INDEX i")


def test_a_job_that_has_left_nothing_has_ended(slow: Slow) -> None:
    run(slow.connection, "CREATE INDEX i ON t (a)", "CREATE INDEX j ON t (b)")
    slow.finish()
    first, second = jobs_of(slow)
    damage(slow, first, second)
    for job in (first, second):
        run(slow.connection, f"CANCEL JOB {job}")
    listed = rows(slow.connection, "SELECT id, state, finished_at IS NULL FROM instar.jobs ORDER BY id")
    assert listed == [(first, "cancelled", False), (second, "cancelled", False)]
    assert rows(slow.connection, "CHECK DATABASE") == []
    with fails("55000"):
        run(slow.connection, f"CANCEL JOB {first}")
    run(slow.connection, "DROP INDEX i, j")


def test_whoever_had_the_job_writes_no_more(slow: Slow) -> None:
    run(slow.connection, "CREATE INDEX i ON t (a)")
    (job,) = jobs_of(slow)
    database = slow.engine.database
    held = database.jobs.claim(job, b"somebody")
    assert held is not None
    damage(slow, job)
    run(slow.connection, f"CANCEL JOB {job}")
    with database.store.read() as reader:
        assert reader.get(claim_key(job)) not in (None, held.claim[1])
    again = database.jobs.claim(job, b"another")
    assert again is not None
    assert again.epoch > held.epoch
    database.jobs.release(again)
    slow.finish()


def test_a_join_or_split_is_not_guessed_at(slow: Slow) -> None:
    run(slow.connection, "ALTER TABLE t SPLIT INTO r (id, a), s (a, b, s) ON (a)")
    (job,) = jobs_of(slow)
    damage(slow, job)
    with fails("55000", "its record is damaged", "may have joined or split"):
        run(slow.connection, f"CANCEL JOB {job}")
