"""Statements that wait for a job: what ends them before they are planned, however close to it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from instar.catalog.changes import CatalogChange
from instar.schemachange import wanted as want
from instar.schemachange.draft import TableBusy
from instar.schemachange.job_records import Job, JobState, claim_key, encode_job, job_key, new_job
from instar.schemachange.queued import deserted, in_the_way, queued_job, withdraw
from instar.schemachange.stages import Plan
from instar.worker.work import replanner
from support.changes import ChangingWorld

ROWS = [(number, number * 10, "x") for number in range(5)]
TRUNCATE = "TRUNCATE t"


@pytest.fixture
def world() -> ChangingWorld:
    """Table t, with rows, whose truncation waits as job 2 for the end of job 1."""
    made = ChangingWorld()
    made.create_t(ROWS)
    plan = made.plan(want.CreateIndex("t", (("a", False),), "i"))
    queue(made, waiter=made.store.this_process(), first=new_job(1, plan, 0))
    return made


def queue(world: ChangingWorld, waiter: tuple[int, int] | None, first: Job) -> None:
    named = (("t", world.table().id),)
    change = world.change()
    record = queued_job(2, TRUNCATE, first, 0, "UTC", named, 0, waiter)
    change.write(job_key(2), encode_job(record))
    world.commit(change=change)


def test_it_is_planned_when_the_other_has_ended(world: ChangingWorld) -> None:
    done = world.executor().run(2)
    assert done is not None
    assert done.state is JobState.SUCCEEDED
    assert world.rows(world.table()) == {}


def test_it_fails_of_whatever_its_planning_fails_of(world: ChangingWorld) -> None:
    """Else the worker ends over it each time that it is started, and nobody does what other jobs there are."""

    def broken(change: CatalogChange, job: Job) -> Plan:
        raise KeyError(job.statement)

    done = world.executor(replan=broken).run(2)
    assert done is not None
    assert done.state is JobState.FAILED
    assert done.problem is not None
    assert (done.problem.sqlstate, done.problem.message) == ("XX000", f"KeyError: '{TRUNCATE}'")
    assert len(world.rows(world.table())) == len(ROWS)


@pytest.mark.parametrize("known", [True, False])
def test_it_tells_for_what_it_has_waited_where_what_it_names_is_not_there(known: bool) -> None:
    world = ChangingWorld()
    world.create_t(ROWS)
    first = new_job(1, world.plan(want.CreateIndex("t", (("a", False),), "i")), 0)
    change = world.change()
    record = queued_job(2, "ALTER TABLE t DROP COLUMN a", first, 0, "UTC", (), 0, None)
    change.write(job_key(2), encode_job(record))
    if known:  # others are forgotten
        ended = msgspec.structs.replace(first, state=JobState.SUCCEEDED, finished=1)
        change.write(job_key(1), encode_job(ended))
    world.commit(change=change)
    world.execute(want.RenameColumn("t", "a", "z"))
    done = world.executor().run(2)
    assert done is not None
    assert done.problem is not None
    assert (done.problem.sqlstate, done.problem.message) == ("42703", 'column "a" of relation "t" does not exist')
    told = "The statement waited for job 1 (a statement), and names what there was before."
    assert done.problem.detail == (told if known else None)


def cancelled(world: ChangingWorld) -> None:
    world.jobs.cancel(2)


def withdrawn(world: ChangingWorld) -> None:
    withdraw(world.jobs, 2, 0)


@pytest.mark.parametrize("end", [cancelled, withdrawn])
def test_it_is_not_run_once_it_was_ended_while_it_was_planned(
    world: ChangingWorld, end: Callable[[ChangingWorld], None]
) -> None:
    plan = replanner(world.store, world.clock)

    def meanwhile(change: CatalogChange, job: Job) -> Plan:
        end(world)
        return plan(change, job)

    world.executor(replan=meanwhile).run(2)
    assert world.jobs.get(2).state is JobState.CANCELLED
    assert len(world.rows(world.table())) == len(ROWS)
    with world.store.read() as reader:
        assert reader.get(claim_key(2)) is None


def test_who_waits_no_longer_leaves_what_is_planned_alone(world: ChangingWorld) -> None:
    world.executor().run(2)
    done = world.jobs.get(2)
    withdraw(world.jobs, 2, 7)
    assert world.jobs.get(2) == done


def test_it_is_deserted_when_its_process_is_gone(world: ChangingWorld) -> None:
    job = world.jobs.get(2)
    assert deserted(job, world.store) is None
    pid, started_ns = world.store.this_process()

    def of_another(found: Job) -> Job:
        return queued_job(2, TRUNCATE, found, 0, "UTC", found.named, 0, (pid, started_ns - 1))

    world.jobs.update(2, of_another)
    done = world.executor().run(2)
    assert done is not None
    assert done.problem is not None
    assert (done.state, done.problem.message) == (
        JobState.CANCELLED, f"process {pid}, which waited for the statement, is gone"
    )  # fmt: skip
    assert len(world.rows(world.table())) == len(ROWS)


def test_it_waits_for_the_job_that_is_in_its_way_and_no_other() -> None:
    """The other one may be paused, or take hours."""
    world = ChangingWorld()
    world.create_t(ROWS)
    index = world.execute(want.CreateIndex("t", (("a", False),), "i"))
    lock = world.execute(want.AddLock("t", "one", ("b",)))
    assert index is not None
    assert lock is not None

    def busy(action: want.Wanted) -> TableBusy:
        with pytest.raises(TableBusy) as found:
            world.plan(action)
        return found.value

    def awaited(action: want.Wanted) -> int | None:
        found = in_the_way(world.jobs.all(), busy(action))
        return None if found is None else found.id

    assert awaited(want.AddLock("t", "two", ("b",))) == lock
    assert awaited(want.DropIndexes(("i",))) == index
    unknown = busy(want.DropIndexes(("i",)))
    unknown.element = None
    first = in_the_way(world.jobs.all(), unknown)
    assert first is not None
    assert first.id == index
    world.executor().run(lock)
    assert world.jobs.get(lock).state is JobState.SUCCEEDED
    assert awaited(want.DropIndexes(("i",))) == index
    blocked = busy(want.DropIndexes(("i",)))
    world.executor().run(index)
    assert in_the_way(world.jobs.all(), blocked) is None
