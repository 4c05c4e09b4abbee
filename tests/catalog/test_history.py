"""What was dropped is found by the history of catalog versions and the log, and else among all objects."""

from __future__ import annotations

import random

import pytest

from instar.catalog import history
from instar.catalog.descriptors import View
from instar.catalog.history import Dropped, dropped_objects
from instar.store.engine import View as StoreView
from instar.store.schema_version import KEPT_VERSIONS
from support.world import World


def of_all(world: World) -> list[Dropped]:
    """By looking at each object there is."""
    with world.store.read() as reader:
        return list(history._all_dropped(reader))


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for each time that all objects were looked at."""
    made: list[int] = []
    find = history._all_dropped

    def counting(view: StoreView) -> object:
        made.append(1)
        return find(view)

    monkeypatch.setattr(history, "_all_dropped", counting)
    return made


def found(world: World) -> list[Dropped]:
    with world.store.read() as reader:
        return list(dropped_objects(reader))


@pytest.mark.parametrize("seed", range(3))
def test_what_was_dropped_and_what_has_come_back(whole: list[int], seed: int) -> None:
    draw = random.Random(seed)
    world = World()
    there: list[View] = []
    for number in range(40):
        change = world.change()
        deed = draw.choice(["create", "create", "drop", "revive", "cut", "several"])
        gone = [one for one in of_all(world) if isinstance(one.found, View)]
        if deed == "cut" and number > 20:
            world.store.collect(world.now(), lambda record: [])
        elif deed == "drop" and there:
            change.drop(there.pop(draw.randrange(len(there))))
            world.commit(change=change)
        elif deed == "several" and len(there) > 1:
            for view in there[:2]:
                change.drop(view)
            del there[:2]
            world.commit(change=change)
        elif deed == "revive" and gone:
            one = draw.choice(gone)
            change.revive(one.found, one.timestamp)
            world.commit(change=change)
            there.append(one.found)  # type: ignore[arg-type] # those are views
        else:
            name = f"v{number}"
            view = View(id=change.new_id(), name=name, version=1, query="SELECT 1", columns=(), depends_on=())
            change.create(view)
            world.commit(change=change)
            there.append(view)
        whole.clear()
        assert found(world) == of_all(world)
        assert len(whole) == 1  # the test's own


def test_more_changes_than_the_history_has(whole: list[int]) -> None:
    world = World()
    table = world.create_table("t")
    change = world.change()
    view = View(id=change.new_id(), name="v", version=1, query="SELECT 1", columns=(), depends_on=())
    change.create(view)
    world.commit(change=change)
    change = world.change()
    change.drop(view)
    world.commit(change=change)
    for _ in range(KEPT_VERSIONS):
        table = world.alter(table, next_id=table.next_id + 1)
    assert [one.found for one in found(world)] == [view]
    assert len(whole) == 1
