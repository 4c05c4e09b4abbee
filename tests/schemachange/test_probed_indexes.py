"""Which indexes a foreign key may borrow."""

from __future__ import annotations

import msgspec
import pytest

from instar.catalog.descriptors import Column, ForeignKey, Index, IndexColumn, Layout, State, Table
from instar.schemachange.probed_indexes import leading_index
from instar.types import INTEGER

INDEX = Index(id=9, name="i", columns=(IndexColumn(2),), rowset=11)
OWNER = ForeignKey(id=10, name="k", columns=(2,), parent=8, parent_columns=(1,), child_index=9, owns_index=True)
TABLE = Table(
    id=7,
    name="t",
    version=1,
    columns=(Column(id=1, name="id", type=INTEGER), Column(id=2, name="a", type=INTEGER)),
    primary_key=(1,),
    primary_key_name="t_pkey",
    rowset=10,
    layout=Layout(1, ((1, INTEGER), (2, INTEGER))),
    oldest_layout=1,
    indexes=(INDEX,),
    next_id=11,
)


def test_a_public_index_that_begins_with_the_columns() -> None:
    assert leading_index(TABLE, [2]) == INDEX
    assert leading_index(TABLE, [1]) is None
    coming = msgspec.structs.replace(INDEX, state=State.WRITE_ONLY)
    assert leading_index(msgspec.structs.replace(TABLE, indexes=(coming,)), [2]) is None


@pytest.mark.parametrize(
    ("state", "not_valid", "lasts"),
    [
        (State.PUBLIC, False, True),
        (State.WRITE_ONLY, True, True),  # and stays so until somebody asks for its validation
        (State.WRITE_ONLY, False, False),  # rows may turn out to violate it
        (State.DELETE_ONLY, True, False),  # its job may be cancelled
        (State.DELETE_ONLY, False, False),
    ],
)
def test_the_index_of_another_foreign_key_only_if_that_lasts(state: State, not_valid: bool, lasts: bool) -> None:
    """Else a job that takes its key back would take the index from under the one that borrows it, or never end."""
    owner = msgspec.structs.replace(OWNER, state=state, not_valid=not_valid)
    found = leading_index(msgspec.structs.replace(TABLE, foreign_keys=(owner,)), [2])
    assert found == (INDEX if lasts else None)
