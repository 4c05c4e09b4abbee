"""What share of a table's rows is in older layouts, by a look at some of them."""

from __future__ import annotations

import pytest

from instar.pipeline.older_rows import OlderShare, older_share
from instar.schemachange import wanted as want
from instar.types import INTEGER
from support.changes import ChangingWorld, Server


def test_the_estimate_is_near_wherever_the_older_rows_lie() -> None:
    world = ChangingWorld()
    world.create_t([(number, number, "x") for number in range(6000)])
    assert older_share(world.store.read, world.table()).share == 0.0
    for name, changed in (("c", range(0, 6000, 3)), ("d", range(1000, 2000))):
        world.execute(want.AddColumn("t", want.NewColumn(name, INTEGER)))
        writer = Server(world)
        for number in changed:
            writer.update(number, b=name)
        writer.commit()
    found = older_share(world.store.read, world.table())
    assert found.rows == pytest.approx(6000, rel=0.1)
    assert found.share == pytest.approx(5 / 6, abs=0.05)
    assert found.layouts == 2


def test_an_empty_table_and_deleted_rows() -> None:
    world = ChangingWorld()
    world.create_t([(1, 1, "x"), (2, 2, "y")])
    world.execute(want.AddColumn("t", want.NewColumn("c", INTEGER)))
    writer = Server(world)
    writer.update(2, b="new")
    writer.delete(1)
    writer.commit()
    assert older_share(world.store.read, world.table()) == OlderShare(1, 0.0, 0)
    writer = Server(world)
    writer.delete(2)
    writer.commit()
    assert older_share(world.store.read, world.table()) == OlderShare(0, 0.0, 0)
