"""Expressions of generated columns: frozen by ids, bound again, thawed under new names."""

from __future__ import annotations

import msgspec
import pytest

from instar import types
from instar.catalog.descriptors import Column, Derivation
from instar.errors import Error
from instar.sql.binder import freeze_generated, thaw_generated
from instar.sql.derivations import compile_derivation
from instar.sql.parser import parse_expression
from instar.types import Type
from sql.binding import CATALOG, ORDERS, VARCHAR5


def freeze(text: str, type_: Type) -> tuple[str, tuple[int, ...]]:
    return freeze_generated(parse_expression(text), ORDERS, "g", type_, CATALOG, "UTC")


def generated(text: str, type_: Type) -> Column:
    frozen, used = freeze(text, type_)
    sources = tuple(column for column in ORDERS.columns if column.id in used)
    derived = Derivation(expression=frozen, type=type_, sources=sources, now=0, zone="UTC")
    return Column(id=90, name="g", type=type_, generated=True, derived=derived)


@pytest.mark.parametrize("type_", [types.BIGINT, types.TEXT, VARCHAR5])
def test_a_constant_is_one_of_the_column_s_type(type_: Type) -> None:
    column = generated("'7'", type_)
    assert column.derived is not None
    assert column.derived.sources == ()
    assert compile_derivation(column.derived)(()) == (7 if type_ == types.BIGINT else "7")


def test_it_survives_renames() -> None:
    first = ORDERS.columns[0]
    column = generated(f'"{first.name}" * 2 + 1', types.BIGINT)
    assert column.derived is not None
    assert f'"#{first.id}"' in column.derived.expression
    assert column.derived.sources == (first,)
    renamed = msgspec.structs.replace(ORDERS, columns=(msgspec.structs.replace(first, name="New"), *ORDERS.columns[1:]))
    thawed = thaw_generated(column, renamed, CATALOG)
    assert thawed is not None
    assert '"New"' in thawed
    assert compile_derivation(column.derived)((20,)) == 41


def test_other_columns_have_none() -> None:
    assert thaw_generated(ORDERS.columns[0], ORDERS, CATALOG) is None
    plain = msgspec.structs.replace(generated("7", types.BIGINT), generated=False)
    assert thaw_generated(plain, ORDERS, CATALOG) is None


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("now()::text", "42P17"),
        ("random()", "42P17"),
        ("'2020-01-01 00:00'::text::timestamptz::text", "42P17"),
        ("(SELECT 1)", "0A000"),
        ("EXISTS (SELECT 1)", "0A000"),
        ("count(*)", "42803"),
        ("true", "42804"),
        ("nothing", "42703"),
    ],
)
def test_errors(text: str, code: str) -> None:
    with pytest.raises(Error) as caught:
        freeze(text, types.BIGINT if text == "true" else types.TEXT)
    assert caught.value.sqlstate == code
