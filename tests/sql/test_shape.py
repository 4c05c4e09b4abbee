"""What two versions of a table must have in common to share compiled writes: all that is not struck out by name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from instar.catalog.descriptors import (
    Check,
    Column,
    CoverageChange,
    Crossing,
    Derivation,
    ForeignKey,
    Index,
    IndexColumn,
    Kept,
    Layout,
    Lock,
    MadeBySplit,
    NextKey,
    State,
    Step,
    StepKind,
    Table,
    Transformed,
    Unseen,
)
from instar.sql.shape import shape_of
from instar.types import BIGINT, INTEGER, TEXT

ID = Column(id=1, name="id", type=BIGINT, nullable=False)
INDEXED = Column(id=2, name="indexed", type=INTEGER)
CHECKED = Column(id=3, name="checked", type=INTEGER)
PLAIN = Column(id=4, name="plain", type=TEXT)
INDEX = Index(id=10, name="i", columns=(IndexColumn(2),), rowset=70)
CHECK = Check(id=11, name="c", expression='"#3" > 0', columns=(3,))
TABLE = Table(
    id=5,
    name="t",
    version=3,
    columns=(ID, INDEXED, CHECKED, PLAIN),
    primary_key=(1,),
    primary_key_name="t_pkey",
    rowset=69,
    layout=Layout(2, ((1, BIGINT), (2, INTEGER), (3, INTEGER), (4, TEXT))),
    oldest_layout=1,
    indexes=(INDEX,),
    checks=(CHECK,),
    next_id=12,
)
MADE = MadeBySplit(source=5, r=6, s=7, on=(2,), counter=8, consistent=9, repair="fail", pause_rows=1)
# What a write takes of the version that it is committed under, and says nothing of what is compiled.
STRUCK_OUT: dict[str, Any] = {
    "version": 4,
    "oldest_layout": 2,
    "steps": (Step(version=3, kind=StepKind.ADD_COLUMN),),
    "forgotten": Step(version=2, kind=StepKind.RENAME_COLUMN),
    "next_id": 13,
    "checks_version": 1,
    "compaction_share": 0.5,
}
# With these there is more to writes than the table's rows and indexes.
HAVE_A_SAY: dict[str, Any] = {
    "foreign_keys": (ForeignKey(id=12, name="f", columns=(4,), parent=6, parent_columns=(1,)),),
    "referenced_by": (6,),
    "locks": (Lock(id=12, name="l", columns=(4,)),),
    "coverage_changes": (CoverageChange(id=12, covers=((4, 0),)),),
    "next_key": NextKey(id=12, name="k", columns=(4,), rowset=71, indexes=(), state=State.WRITE_ONLY),
    "unseen": Unseen(made=MADE, shown=(1,)),
    "crossing": Crossing(id=12, kept=Kept(made=MADE, sources=())),
}
OTHERS: dict[str, Any] = {
    "id": 6,
    "name": "u",
    "columns": (PLAIN, ID, INDEXED, CHECKED),
    "primary_key": (2,),
    "primary_key_name": "other",
    "rowset": 71,
    "layout": Layout(2, ((1, BIGINT), (2, INTEGER), (3, BIGINT), (4, TEXT))),
    "indexes": (),
    "checks": (),
    "migration": "read",
    "transformed": Transformed(id=12, targets=(6,)),
    "followed_by": (6,),
    "older_rows": True,
}
OF_A_COLUMN: dict[str, Any] = {
    "name": "other",
    "type": INTEGER,
    "nullable": False,
    "default": "'x'",
    "missing": "x",
    "per_row": True,
    "identity": "always",
    "sequence": 6,
    "state": State.WRITE_ONLY,
    "hidden": True,
    "not_null": State.WRITE_ONLY,
    "not_null_yields": True,
    "not_null_not_valid": True,
    "not_null_name": "other",
    "derived": Derivation(expression="1", type=TEXT, sources=(), now=0, zone="UTC"),
    "replaces": 3,
    "generated": True,
}
OF_AN_INDEX: dict[str, Any] = {
    "id": 12,
    "name": "other",
    "columns": (IndexColumn(2, descending=True),),
    "unique": True,
    "constraint": True,
    "rowset": 71,
    "yields": True,
}
OF_A_CHECK: dict[str, Any] = {
    "id": 12,
    "name": "other",
    "expression": '"#3" > 1',
    "columns": (2, 3),
    "not_valid": True,
    "yields": True,
}
STATES = [State.DELETE_ONLY, State.WRITE_ONLY]


def alike(**fields: Any) -> bool:
    """Whether the table with other fields has its shape."""
    return shape_of(msgspec.structs.replace(TABLE, **fields)) == shape_of(TABLE)


def with_column(ordinal: int, **fields: Any) -> tuple[Column, ...]:
    columns = list(TABLE.columns)
    columns[ordinal] = msgspec.structs.replace(columns[ordinal], **fields)
    return tuple(columns)


def test_every_field_is_decided_on() -> None:
    """A field that comes to a descriptor is part of the shape; whoever adds one says here whether that is right."""
    assert STRUCK_OUT.keys() | HAVE_A_SAY.keys() | OTHERS.keys() == set(Table.__struct_fields__)
    assert OF_A_COLUMN.keys() | {"id"} == set(Column.__struct_fields__)
    assert OF_AN_INDEX.keys() | {"state"} == set(Index.__struct_fields__)
    assert OF_A_CHECK.keys() | {"state"} == set(Check.__struct_fields__)


@pytest.mark.parametrize("field", STRUCK_OUT)
def test_what_belongs_to_the_version_alone(field: str) -> None:
    assert alike(**{field: STRUCK_OUT[field]})


@pytest.mark.parametrize("field", HAVE_A_SAY)
def test_a_table_that_is_compiled_anew_for_each_version(field: str) -> None:
    assert shape_of(msgspec.structs.replace(TABLE, **{field: HAVE_A_SAY[field]})) is None


@pytest.mark.parametrize("field", OTHERS)
def test_what_makes_another_shape(field: str) -> None:
    assert not alike(**{field: OTHERS[field]})


@pytest.mark.parametrize("field", OF_A_COLUMN)
@pytest.mark.parametrize("ordinal", [1, 3])
def test_what_of_a_column_makes_another_shape(field: str, ordinal: int) -> None:
    column = TABLE.columns[ordinal]
    other = TEXT if field == "type" and column.type == INTEGER else OF_A_COLUMN[field]
    assert not alike(columns=with_column(ordinal, **{field: other}))


@pytest.mark.parametrize("ordinal", [0, 1, 2])
def test_a_column_that_is_named_counts_by_its_id(ordinal: int) -> None:
    assert not alike(columns=with_column(ordinal, id=12))


def test_any_other_column_counts_by_its_place() -> None:
    """One that was dropped and added again, say."""
    layout = Layout(9, (*TABLE.layout.columns[:3], (12, TEXT)), left=(PLAIN,), has_wide=True)
    assert alike(columns=with_column(3, id=12), layout=layout)
    assert not alike(columns=(ID, INDEXED, PLAIN, CHECKED))
    assert not alike(columns=(*TABLE.columns, Column(id=12, name="more", type=TEXT)))


@pytest.mark.parametrize(
    "layout", [Layout(2, TABLE.layout.columns, locks=(0, 1)), Layout(2, (*TABLE.layout.columns[:3], (4, INTEGER)))]
)
def test_what_of_the_layout_makes_another_shape(layout: Layout) -> None:
    assert not alike(layout=layout)


@pytest.mark.parametrize("field", OF_AN_INDEX)
def test_what_of_an_index_makes_another_shape(field: str) -> None:
    assert not alike(indexes=(msgspec.structs.replace(INDEX, **{field: OF_AN_INDEX[field]}),))


@pytest.mark.parametrize("field", OF_A_CHECK)
def test_what_of_a_check_makes_another_shape(field: str) -> None:
    assert not alike(checks=(msgspec.structs.replace(CHECK, **{field: OF_A_CHECK[field]}),))


@pytest.mark.parametrize("state", STATES)
def test_the_state_of_an_element_makes_another_shape(state: State) -> None:
    assert not alike(indexes=(msgspec.structs.replace(INDEX, state=state),))
    assert not alike(checks=(msgspec.structs.replace(CHECK, state=state),))
    assert not alike(columns=with_column(3, state=state))
