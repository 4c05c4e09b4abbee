"""Pairs of statements on both sides of a switch: a transaction has executed one when its tables are joined or split
with `strategy = 'commit'`, the other is committed under the kept names, and then the transaction. If that stands, there
is what one after the other would have left, on whichever tables."""

from __future__ import annotations

import functools
import itertools
from collections import Counter

import pytest

from instar import errors
from integration.test_join_and_split_strategies import switched
from integration.test_pairs import SCENES, Outcome, Scene, State, opened, outcome, state
from support.databases import run

# Scenes that end with a join or split; the last of their tables is what it makes.
_MADE = {name: scene for name, scene in SCENES.items() if scene.setup[-1].startswith("ALTER TABLE")}


def _before(name: str) -> tuple[Scene, str, str]:
    """What there is before the change, the change, and the same as it goes on until old transactions have ended."""
    *setup, change = SCENES[name].setup
    crossing = change.replace("keep_views = true", "keep_views = true, strategy = 'commit', grace = '1 min'")
    assert crossing != change
    return SCENES[name]._replace(setup=tuple(setup)), change, crossing


@functools.cache
def _in_turn(name: str, *statements: str) -> tuple[list[Outcome], State]:
    """What becomes of statements, one after the other, and what they leave."""
    scene, _change, _crossing = _before(name)
    with opened(scene) as (_, connection):
        return [outcome(connection, statement) for statement in statements], state(connection, scene)


def _meet(name: str, level: str, one: str, other: str) -> str:
    """What became of `one`, which was executed before the switch, and committed after `other`."""
    scene, change, crossing = _before(name)
    with opened(scene) as (engine, connection):
        transaction = engine.connect()
        run(transaction, f"BEGIN ISOLATION LEVEL {level}")
        of_one = outcome(transaction, one)
        changing = switched(engine, crossing, scene.tables[-1])
        of_other = outcome(connection, other)
        committed, _ = outcome(transaction, "COMMIT")
        changing.end()
        if committed:
            assert committed == errors.SERIALIZATION_FAILURE
            return "refused"
        (first, _change, second), left = _in_turn(name, one, change, other)
        (_change, second_first, first_last), turned = _in_turn(name, change, other, one)
        expected = (first, second, left), (first_last, second_first, turned)
        assert (of_one, of_other, state(connection, scene)) in expected, f"{one}; {other}"
        return "stood"


@pytest.mark.parametrize("level", ["READ COMMITTED", "SERIALIZABLE"])
@pytest.mark.parametrize("name", _MADE)
def test_pairs_across_a_switch_come_out_as_one_after_the_other(name: str, level: str) -> None:
    statements = SCENES[name].statements
    of_sources = [one for one in statements if not any(f" {table} " in one for table in SCENES[name].tables)]
    met = Counter(_meet(name, level, one, other) for one, other in itertools.product(of_sources, statements))
    assert met["stood"] > 20
    assert met["refused"] > 20
