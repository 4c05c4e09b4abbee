"""The names of constraints."""

from __future__ import annotations

import msgspec

from instar.catalog.descriptors import Check, Column, Layout, State, Table
from instar.catalog.naming import constraint_names, not_null_named, not_null_names
from instar.types import INTEGER

CHECK = Check(id=9, name="t_a_not_null", expression="true", columns=())


def table(*columns: Column) -> Table:
    key = Column(id=1, name="rowid", type=INTEGER, nullable=False, hidden=True)
    return Table(
        id=7,
        name="t",
        version=1,
        columns=(key, *columns),
        primary_key=(1,),
        primary_key_name="",
        rowset=1,
        layout=Layout(1, ()),
        oldest_layout=1,
        checks=(CHECK,),
        next_id=10,
    )


def test_not_nulls_have_names_that_nothing_else_has() -> None:
    a = Column(id=2, name="a", type=INTEGER, nullable=False)
    b = Column(id=3, name="b", type=INTEGER, not_null=State.WRITE_ONLY)
    c = Column(id=4, name="c", type=INTEGER)
    given = msgspec.structs.replace(c, nullable=False, not_null_name="t_b_not_null")
    assert not_null_names(table(a, b, c)) == {2: "t_a_not_null1", 3: "t_b_not_null"}
    made = table(a, b, given)
    assert not_null_names(made) == {2: "t_a_not_null1", 3: "t_b_not_null1", 4: "t_b_not_null"}
    assert not_null_named(made, "t_b_not_null") == given
    assert not_null_named(made, "t_a_not_null") is None
    assert constraint_names(made, {3, 9}) == {"", "t_a_not_null1", "t_b_not_null"}
