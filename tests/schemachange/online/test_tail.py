"""The commit of a switch: what it applies of the log, with what comes while it is on its way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest

from instar import errors
from instar.schemachange.online import tail as module
from instar.schemachange.online.following import Following
from instar.schemachange.online.tail import Behind, Tail
from instar.schemachange.online.transformation import Transformation
from instar.schemachange.stages import Superseded
from instar.store.engine import Commit, RowsetReplaced, View
from schemachange.online.following import check, commit, following, image, run
from schemachange.online.tables import ENGINES, join_world, split_records, split_world, stored_in
from support.changes import ChangingWorld
from transformations.histories import R, S, T, Writes, gone, row


@pytest.fixture(params=ENGINES)
def world(request: pytest.FixtureRequest) -> Iterator[ChangingWorld]:
    with stored_in(request.param) as store:
        yield ChangingWorld(store)


def followed(world: ChangingWorld, transformation: Transformation) -> Following:
    """Propagation that has come to its end."""
    since = world.now()
    image(world.store, transformation, since)
    task = following(world.store, transformation, since)
    assert run(task)
    return task


def tail(world: ChangingWorld, task: Following) -> Tail:
    with world.store.read() as reader:
        return Tail(task, reader)


def switch(world: ChangingWorld, made: Tail, *, before: Callable[[View], None] = lambda view: None) -> None:
    """Put the tail in one commit."""
    with world.store.read() as reader:
        request = Commit(catalog_version=reader.catalog_version)

    def complete(view: View) -> None:
        before(view)
        request.raw = [*made.puts, *made.complete(view)]
        assert request.raw == [*made.puts, *made.complete(view)]  # it may be asked again

    request.complete = complete
    world.store.commit(request)


@pytest.mark.parametrize("unique", [True, False])
def test_a_join_is_as_new_as_the_switch(world: ChangingWorld, unique: bool) -> None:
    join = join_world(world, unique=unique, merged=True)
    commit(world, join, row(R, 1, "x", 0) | row(R, 2, "x", 0) | row(S, 1, "x", 0))
    task = followed(world, join)
    commit(world, join, row(R, 3, "x", 0) | row(S, 2, "z", 0))
    made = tail(world, task)
    commit(world, join, row(R, 4, "z", 0) | gone(R, 3) | row(S, 1, None, 0))
    commit(world, join, row(R, 1, "z", 1))
    switch(world, made)
    check(world.store, join, world.now())


def test_a_split_is_as_new_as_the_switch(world: ChangingWorld) -> None:
    split = split_world(world)
    commit(world, split, row(T, 1, 5, "x", "A", 0) | row(T, 2, 5, "x", "A", 0))
    task = followed(world, split)
    commit(world, split, row(T, 3, 5, "z", "A", 0))
    made = tail(world, task)
    commit(world, split, row(T, 3, 6, "x", "A", 0) | gone(T, 1))
    switch(world, made)
    check(world.store, split, world.now())


def test_nothing_has_come(world: ChangingWorld) -> None:
    split = split_world(world)
    made = tail(world, followed(world, split))
    assert made.puts == []
    switch(world, made)


def rows(first: int, last: int) -> Writes:
    return {(R, (number,)): (number, "x", 0) for number in range(first, last)}


def test_too_much_has_come_before_it(world: ChangingWorld) -> None:
    join = join_world(world, unique=True, merged=True, pause_rows=5)
    task = followed(world, join)
    commit(world, join, rows(1, 7))
    with pytest.raises(Behind):
        tail(world, task)
    assert run(task)  # which goes on where it stood
    switch(world, tail(world, task))
    check(world.store, join, world.now())


def test_too_much_has_come_in_the_last_moment(world: ChangingWorld) -> None:
    join = join_world(world, unique=True, merged=True, pause_rows=5)
    task = followed(world, join)
    commit(world, join, rows(1, 4))
    made = tail(world, task)
    commit(world, join, rows(4, 7))
    with pytest.raises(Behind):
        switch(world, made)
    assert run(task)
    check(world.store, join, task.position)


@pytest.mark.parametrize("many", [7, 5_000])
@pytest.mark.parametrize("last_moment", [True, False])
def test_one_change_meets_many_rows(world: ChangingWorld, many: int, last_moment: bool) -> None:
    join = join_world(world, unique=True, merged=False, pause_rows=5)
    commit(world, join, rows(1, many))
    task = followed(world, join)
    made = tail(world, task)
    commit(world, join, row(S, 1, "x", 0))
    attempt = (lambda: switch(world, made)) if last_moment else (lambda: tail(world, task))
    with pytest.raises(Behind):
        attempt()


@pytest.mark.parametrize("last_moment", [True, False])
def test_a_contradiction_has_come(world: ChangingWorld, last_moment: bool) -> None:
    split = split_world(world, "newest")
    commit(world, split, row(T, 1, 5, "x", "A", 0) | row(T, 2, 5, "x", "A", 0))
    task = followed(world, split)
    made = tail(world, task)
    commit(world, split, row(T, 2, 5, "x", "B", 0))
    commit(world, split, row(T, 3, 5, "x", "C", 0))
    switch(world, made if last_moment else tail(world, task))
    check(world.store, split, world.now())
    with world.store.read() as reader:
        record = split_records(split, reader)[1]["x",]
    assert (record.values, record.counter) == (("x", "C", 0), 3)


def test_a_contradiction_that_is_not_to_be_repaired(world: ChangingWorld) -> None:
    split = split_world(world)
    commit(world, split, row(T, 1, 5, "x", "A", 0))
    made = tail(world, followed(world, split))
    commit(world, split, row(T, 2, 5, "x", "B", 0))
    with pytest.raises(errors.Error) as caught:
        switch(world, made)
    assert caught.value.sqlstate == errors.UNIQUE_VIOLATION


def test_more_rows_contradict_each_other_than_can_be_looked_at(world: ChangingWorld) -> None:
    split = split_world(world, "newest", pause_rows=3)
    commit(world, split, {(T, (number,)): (number, 5, "x", "A", 0) for number in range(500)})
    task = followed(world, split)
    made = tail(world, task)
    commit(world, split, row(T, 1, 5, "x", "B", 0))
    with pytest.raises(Behind):
        switch(world, made)
    assert run(task)
    switch(world, tail(world, task))
    check(world.store, split, world.now())


def test_a_source_gets_other_rows_altogether(world: ChangingWorld) -> None:
    split = split_world(world)
    task = followed(world, split)
    made = tail(world, task)
    source = split.source.table
    world.store.commit(Commit(catalog_version=0, replaced=[RowsetReplaced(source.id, source.version, 1, 2)]))
    with pytest.raises(Superseded):
        switch(world, made)


def test_the_log_is_cut(world: ChangingWorld) -> None:
    split = split_world(world)
    task = followed(world, split)
    commit(world, split, row(T, 1, 5, "x", "A", 0))
    world.store.collect(world.now(), lambda record: [])
    with pytest.raises(errors.Error) as caught:
        tail(world, task)
    assert caught.value.sqlstate == errors.SNAPSHOT_TOO_OLD


def test_what_is_met_at_once_is_counted_as_if_one_by_one(world: ChangingWorld) -> None:
    keys = [b"%04d" % number for number in range(65)]
    with world.store.read() as reader:
        for read in (True, False):
            bounded = module._Bounded(reader, 0)
            for some in (keys[:64], keys[64:]):
                with pytest.raises(Behind) if len(some) == 1 else nullcontext():
                    if read:
                        assert bounded.get_many(some) == [None] * 64
                    else:
                        bounded.put_many(dict.fromkeys(some, b"v"))
