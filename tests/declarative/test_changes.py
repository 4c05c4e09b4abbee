"""What a change destroys."""

from __future__ import annotations

import pytest

from instar.declarative.changes import SetType, loss
from instar.sql.grammar.type_names import parse_type


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("integer", "text"),
        ("integer", "bigint"),
        ("bigint", "varchar(20)"),
        ("uuid", "varchar(36)"),
        ("timestamptz", "varchar"),
        ("numeric(10,2)", "text"),
        ("integer", "numeric(12,2)"),
        ("bigint", "numeric"),
        ("numeric(10,2)", "numeric(12,3)"),
        ("smallint", "real"),
        ("integer", "double precision"),
        ("date", "timestamp"),
        ("varchar(5)", "varchar(6)"),
    ],
)
def test_a_type_that_holds_every_value_destroys_nothing(old: str, new: str) -> None:
    assert loss(SetType("t", "c", parse_type(old), parse_type(new))) == ""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("text", "integer"),
        ("bigint", "integer"),
        ("bigint", "varchar(19)"),
        ("text", "varchar(10)"),
        ("numeric", "varchar(100)"),
        ("integer", "numeric(10,2)"),
        ("bigint", "double precision"),
        ("integer", "real"),
        ("numeric(10,2)", "numeric(11,1)"),
        ("numeric(10,2)", "numeric(10,3)"),
        ("timestamp", "date"),
        ("double precision", "numeric"),
        ("varchar(6)", "varchar(5)"),
    ],
)
def test_a_type_that_does_not_destroys(old: str, new: str) -> None:
    assert str(parse_type(new)) in loss(SetType("t", "c", parse_type(old), parse_type(new)))
