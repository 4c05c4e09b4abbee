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


def test_all_rows_are_a_share_of_exactly_one() -> None:
    """It is compared with `compaction_share`, which may be 1: parts of a sum in another order may come to less."""
    world = ChangingWorld()
    world.create_t([(number, number, "x" * (number % 50)) for number in range(9000)])
    older = world.table()
    for name in ("c", "d", "e"):
        world.execute(want.AddColumn("t", want.NewColumn(name, INTEGER)))
        writer = Server(world)
        for number in range(9000):
            if number % 4 == ord(name) % 4:
                writer.update(number, b=name)
        writer.commit()
    world.execute(want.AddColumn("t", want.NewColumn("f", INTEGER)))
    found = older_share(world.store.read, world.table())
    assert (found.share, found.layouts) == (1.0, 4)
    # By a descriptor that is older than the rows nothing is.
    assert older_share(world.store.read, older).share == pytest.approx(0.0)
    assert older_share(world.store.read, older).layouts == 0
