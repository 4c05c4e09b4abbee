"""What is checked of the log, while the collector cuts it; what jobs have left behind."""

from __future__ import annotations

import msgspec
import pytest

from instar import errors
from instar.pipeline.catalog_checks import _log, check_catalog, check_writers
from instar.pipeline.row_checks import Snapshot
from instar.schemachange import wanted as want
from instar.schemachange.job_records import JobState, checkpoint_key, claim_key, encode_job, job_key
from instar.store.engine import Commit
from support.changes import ChangingWorld, Server


def test_a_log_that_is_cut_meanwhile_is_checked_from_there() -> None:
    world = ChangingWorld()
    world.create_t([(1, 10, "x")])
    cut = world.now()
    for turn in range(3):
        writer = Server(world)
        writer.update(1, a=turn)
        writer.commit()
    snapshot = Snapshot(world.store, world.layouts, world.now(), world.catalog())
    assert world.store.collect(cut, lambda record: [])
    with pytest.raises(errors.Error):
        list(world.store.log(0, snapshot.timestamp))
    left = list(_log(snapshot, 0))
    assert [record.timestamp > cut for record in left] == [True] * 3
    assert list(check_writers(snapshot)) == []


def test_a_snapshot_below_the_watermark_cannot_be_checked() -> None:
    world = ChangingWorld()
    world.create_t([(1, 10, "x")])
    old = Snapshot(world.store, world.layouts, world.now() - 1, world.catalog())
    world.store.collect(world.now(), lambda record: [])
    with pytest.raises(errors.Error) as caught:
        list(_log(old, 0))
    assert caught.value.sqlstate == errors.SNAPSHOT_TOO_OLD


def test_what_a_job_has_left_half_way_is_reported() -> None:
    world = ChangingWorld()
    world.create_t([(1, 10, "x")])
    number = world.execute(want.CreateIndex("t", (("a", False),), "i"))
    assert number is not None
    assert problems(world) == []
    ended = msgspec.structs.replace(world.jobs.get(number), state=JobState.FAILED)
    with world.store.read() as reader:
        version = reader.catalog_version
    world.store.commit(Commit(catalog_version=version, raw=[(job_key(number), encode_job(ended))]))
    assert problems(world) == [("t", 'index "i"', 'index "i" is delete-only, and no job is moving it')]


@pytest.mark.parametrize(("key", "what"), [(claim_key(7), "a claim"), (checkpoint_key(7, 1, 0), "a checkpoint")])
def test_what_is_left_of_a_job_that_has_ended_is_reported(key: bytes, what: str) -> None:
    world = ChangingWorld()
    with world.store.read() as reader:
        version = reader.catalog_version
    world.store.commit(Commit(catalog_version=version, raw=[(key, b"")]))
    assert problems(world) == [("", "job 7", f"job 7 has ended, and {what} of it is left")]


def test_a_table_that_no_job_makes_is_reported() -> None:
    world = ChangingWorld()
    world.create_t([(1, 10, "x")])
    number = world.execute(
        want.SplitTable("t", want.NewTable("r", ("id", "a")), want.NewTable("s", ("a", "b")), ("a",))
    )
    assert number is not None
    assert problems(world) == []
    ended = msgspec.structs.replace(world.jobs.get(number), state=JobState.FAILED)
    with world.store.read() as reader:
        version = reader.catalog_version
    world.store.commit(Commit(catalog_version=version, raw=[(job_key(number), encode_job(ended))]))
    assert {found[0] for found in problems(world)} == {"t", "r", "s"}


def problems(world: ChangingWorld) -> list[tuple[str, str, str]]:
    with world.store.read() as reader:
        snapshot = Snapshot(world.store, world.layouts, reader.timestamp, world.catalog())
        return [(found.table, found.object, found.message) for found in check_catalog(snapshot, reader)]
