from __future__ import annotations

from decimal import Decimal

from instar.catalog.descriptors import Column
from instar.schemachange.online.shapes import comparable, join_shape, split_shape
from instar.transformations.records import Join, Split
from instar.transformations.records import same as identical
from instar.types import DOUBLE, JSONB, NUMERIC, TEXT
from schemachange.online.tables import join_world, split_world
from support.world import World


def test_positions_are_those_of_the_sources_columns() -> None:
    split = split_world(World())
    targets = split.targets
    assert split_shape(split.source.table, split.made, targets.r.table, targets.s.table) == Split(
        r=(0, 1, 2), s=(2, 3, 4), on=(2,)
    )
    for unique in (True, False):
        join = join_world(World(), unique=unique, merged=True)
        assert join_shape(join.r.table, join.s.table, join.made) == Join(
            r_key=(0,), r_on=(1,), s_key=(0,), s_on=(1,), unique=unique
        )


def test_nan_equals_itself_as_an_index_has_it() -> None:
    columns = [Column(id=number, name="c", type=type_) for number, type_ in enumerate((DOUBLE, NUMERIC, TEXT), 1)]
    same = comparable(columns)
    one, other = ((float("nan"), Decimal("NaN"), "x") for _ in range(2))
    assert one != other
    assert same(one) == same(other)
    assert same((1.5, Decimal(1), None)) == (1.5, Decimal(1), None)
    assert comparable(columns[2:])(("x",)) == ("x",)


def test_documents_are_equal_as_sql_has_it() -> None:
    columns = [Column(id=number, name="c", type=type_) for number, type_ in enumerate((JSONB, TEXT), 1)]
    ready = comparable(columns)
    one, other = ready(('{"a": 1.0}', "x")), ready(('{"a": 1.00}', "x"))
    assert one == other
    assert (one[0] == other[0], one[0] != other[0]) == (True, False)
    assert hash(one) == hash(other)
    assert one != ready(('{"a": 1.01}', "x"))
    assert not identical(one, other)
    assert [str(row[0]) for row in (one, other)] == ['{"a": 1.0}', '{"a": 1.00}']
    assert ready((None, "x")) == (None, "x")
    assert ready(("null", "1.0")) != ready((None, "1.0"))
    assert ready(("1", "1.0")) != ready(("1", "1.00"))
