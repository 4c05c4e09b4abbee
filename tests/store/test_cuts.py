"""Where keys are cut, by their rank."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from instar.store.cuts import ranks


@given(st.integers(0, 2000), st.integers(1, 600))
def test_parts_are_even_and_none_is_empty(rows: int, parts: int) -> None:
    sizes = [later - first for first, later in pairwise([0, *ranks(rows, parts), rows])]
    assert len(sizes) == max(min(parts, rows), 1)
    assert max(sizes) - min(sizes) <= 1
