"""Nodes of the tree as values: equal, hashed and replaced, at whatever depth."""

from __future__ import annotations

from decimal import Decimal

import msgspec
import pytest

from instar.sql import plan, tree
from instar.types import BOOLEAN, INTEGER, NUMERIC

DEPTH = 300_000

ONE = tree.Literal(1, INTEGER)


def nested(depth: int) -> tree.Expr:
    found: tree.Expr = tree.Literal(True, BOOLEAN)
    for _ in range(depth):
        found = tree.Not(found)
    return found


def test_nodes_that_say_the_same_are_equal_and_hashed_alike() -> None:
    assert nested(5) == nested(5)
    assert nested(5) != nested(6)
    assert hash(nested(5)) == hash(nested(5))
    assert len({nested(5), nested(5), nested(6)}) == 2


def test_every_node_is_hashed_by_python() -> None:
    """msgspec's own hash would go down without an end."""
    nodes = [
        kind
        for module in (tree, plan)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == module.__name__
    ]
    assert len(nodes) > 60
    for kind in nodes:
        assert not kind.__struct_config__.frozen or kind.__hash__ is not msgspec.Struct.__hash__, kind


def test_a_tree_that_is_too_deep_is_an_error_and_not_the_end_of_the_process() -> None:
    deep = nested(DEPTH)
    for use in (hash, repr, lambda found: found == nested(DEPTH)):
        with pytest.raises(RecursionError):
            use(deep)


def test_rows_of_values_that_are_computed_are_found_again_in_what_replaces_them() -> None:
    column = tree.ColumnRef(0, 0, INTEGER, "a")
    values = tree.ValuesList(1, ((ONE,), (column,)), (("a", INTEGER),), "v")
    assert values.computed == ((column,),)
    assert msgspec.structs.replace(values, rows=((ONE,),)).computed == ()


def test_numbers_that_are_written_differently_are_different_literals() -> None:
    assert tree.Literal(Decimal("1.5"), NUMERIC) != tree.Literal(Decimal("1.50"), NUMERIC)
    assert tree.Literal(float("nan"), NUMERIC) == tree.Literal(float("nan"), NUMERIC)


def test_values_within_values_are_gone_through_once() -> None:
    """Comparing, hashing and showing forty levels would take years if each doubled what is below it."""

    def levels(number: int) -> tree.Expr:
        found: tree.Expr = ONE
        for _ in range(number):
            values = tree.ValuesList(0, ((tree.Not(found),),), (("a", INTEGER),), "v")
            found = tree.Not(values)  # type: ignore[arg-type]  # in a query, in truth
        return found

    assert levels(40) == levels(40) != levels(39)
    assert hash(levels(40)) == hash(levels(40))
    assert len(repr(levels(40))) < 20_000
