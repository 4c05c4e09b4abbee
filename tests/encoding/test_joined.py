"""Byte strings in one buffer, against lists of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoding.strategies import scattered
from instar.encoding.joined import Joined, join_values

VALUES = st.lists(st.binary(max_size=6), max_size=8)


@st.composite
def joined(draw: st.DrawFn) -> tuple[list[bytes], Joined]:
    values = draw(VALUES)
    return values, join_values(values) if draw(st.booleans()) else draw(scattered(values))


@given(joined())
def test_they_come_back(drawn: tuple[list[bytes], Joined]) -> None:
    values, strings = drawn
    assert strings.values() == values
    assert [strings.value(position) for position in range(len(values))] == values
    if values:
        assert strings.shortest() == min(map(len, values))


@given(joined(), st.data())
def test_selected_and_replaced(drawn: tuple[list[bytes], Joined], data: st.DataObject) -> None:
    values, strings = drawn
    index = sorted(data.draw(st.sets(st.sampled_from(range(len(values)))))) if values else []
    positions = np.array(index, np.int64)
    assert strings.select(positions).values() == [values[position] for position in index]
    assert strings.select(slice(1, 3)).values() == values[1:3]
    others = data.draw(st.lists(st.binary(max_size=9), min_size=len(index), max_size=len(index)))
    expected = list(values)
    for position, other in zip(index, others, strict=True):
        expected[position] = other
    assert strings.replaced(positions, others).values() == expected
    assert strings.values() == values


@given(joined(), st.integers(0, 2), st.sampled_from(["u1", "<u2", "V3"]))
def test_parts(drawn: tuple[list[bytes], Joined], offset: int, code: str) -> None:
    values, strings = drawn
    dtype = np.dtype(code)
    if all(len(value) >= offset + dtype.itemsize for value in values):
        cut = [value[offset : offset + dtype.itemsize] for value in values]
        assert strings.parts(offset, dtype).tobytes() == b"".join(cut)


@pytest.mark.parametrize("values", [[], [b"a"], [b"a", b"b"], [b"", b"ab", b""]])
def test_joined_ones_ascend(values: list[bytes]) -> None:
    strings = join_values(values)
    assert strings.ascending()
    backwards = strings.select(np.arange(len(values))[::-1])
    assert backwards.values() == values[::-1]
    assert backwards.ascending() == (len(set(backwards.starts.tolist())) < 2)


def test_tags_follow_a_selection() -> None:
    strings = join_values([b"a", b"b", b"c"])._replace(tags=np.array([1, 2, 3], np.uint32))
    selected = strings.select(np.array([0, 2]))
    assert selected.tags is not None
    assert selected.tags.tolist() == [1, 3]
