"""The test vectors in docs/formats are what the code does, in both directions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from instar.encoding import keys
from instar.encoding.rows import compile_decoder, compile_encoder, row_format
from instar.types import NUMERIC, TEXT, Kind, Type
from instar.values import from_text, to_text

FORMATS = Path(__file__).parents[2] / "docs" / "formats"
HEX = r"`([0-9a-f]+)`"
KINDS = "|".join(kind.value for kind in Kind)


def lines(name: str, pattern: str) -> list[tuple[str, ...]]:
    text = (FORMATS / name).read_text(encoding="utf-8")
    found = re.findall(f"^{pattern}$", text, re.MULTILINE)
    assert found, f"{name} has lost a table"
    return found


def type_of(text: str) -> Type:
    """The type that a document names, as `numeric(5,2)`."""
    constrained = re.fullmatch(r"numeric\((\d+),(\d+)\)", text)
    return Type(Kind.NUMERIC, int(constrained[1]), int(constrained[2])) if constrained else Type(Kind(text))


def columns(types: str, values: str) -> Iterator[tuple[Type, Any, str]]:
    """(type, internal value, text) of each column of a line."""
    for name, text in zip(types.split(", "), values.split(", "), strict=True):
        type_ = type_of(name)
        yield type_, None if text == "NULL" else from_text(type_, text), text


def text_of(value: Any, type_: Type) -> str:
    return "NULL" if value is None else to_text(type_, value)


SINGLE = lines("keys.md", rf"\| ({KINDS}) \| `([^`]*)` \| {HEX} \| {HEX} \|")
COMPOSITE = lines("keys.md", rf"\| ([^|`]+) \| `([^`]*)` \| {HEX} \|")
CUT = lines("keys.md", rf"\| (\d+) \| (\d+) \| {HEX} \|")
ROWS = lines("rows.md", rf"\| ([^|`]+) \| `([^`]*)` \| {HEX} \|")


@pytest.mark.parametrize(("kind", "text", "ascending", "descending"), SINGLE)
def test_keys_of_one_column(kind: str, text: str, ascending: str, descending: str) -> None:
    type_ = Type(Kind(kind))
    value = None if text == "NULL" else from_text(type_, text)
    for flag, expected in ((False, ascending), (True, descending)):
        assert keys.encode_key([value], [type_], [flag]).hex() == expected
        (found,), end = keys.compile_decoder([type_], [flag])(bytes.fromhex(expected), 0)
        assert end == len(expected) // 2
        assert text_of(found, type_) == ("1" if type_ == NUMERIC and text == "1.00" else text)


@pytest.mark.parametrize(("types", "values", "expected"), COMPOSITE)
def test_keys_of_several_columns(types: str, values: str, expected: str) -> None:
    parts = list(columns(types.replace(" desc", ""), values))
    column_types = [type_ for type_, _, _ in parts]
    flags = [name.endswith(" desc") for name in types.split(", ")]
    assert keys.encode_key([value for _, value, _ in parts], column_types, flags).hex() == expected
    found, _ = keys.compile_decoder(column_types, flags)(bytes.fromhex(expected), 0)
    assert ", ".join(map(text_of, found, column_types)) == values


@pytest.mark.parametrize(("letters", "size", "end"), CUT)
def test_cut_keys(letters: str, size: str, end: str) -> None:
    key = keys.encode_key(["x" * int(letters)], [TEXT])
    assert len(key) == int(size)
    assert keys.limited_index_key(key).hex().endswith(end)


@pytest.mark.parametrize(("types", "values", "expected"), ROWS)
def test_rows(types: str, values: str, expected: str) -> None:
    parts = list(columns(types, values))
    form = row_format(tuple(type_ for type_, _, _ in parts))
    assert compile_encoder(form)([value for _, value, _ in parts]).hex() == expected
    found = compile_decoder(form, 0)(bytes.fromhex(expected))
    assert ", ".join(map(text_of, found, form.types)) == values


def test_the_numbers_in_the_text() -> None:
    text = (FORMATS / "keys.md").read_text(encoding="utf-8")
    assert f"at most {keys.MAX_PRIMARY_KEY_BYTES} for the primary key" in text
    assert f"more than {keys.MAX_INDEX_PART_BYTES} encoded bytes" in text
    for tag in {*keys.TAGS.values(), keys.TAG_NULL}:
        assert f"| `{tag:02x}` |" in text
