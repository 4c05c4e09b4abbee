"""Bytes as they lie in pages, for the property tests of encodings."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from instar.encoding.joined import Joined


@st.composite
def scattered(draw: st.DrawFn, values: list[bytes]) -> Joined:
    """The values in one buffer in any order, with gaps between them, as they lie in pages."""
    order = draw(st.permutations(range(len(values))))
    starts = np.zeros(len(values), np.int64)
    buffer = b""
    for position in order:
        buffer += draw(st.binary(max_size=3))
        starts[position] = len(buffer)
        buffer += values[position]
    lengths = np.array([len(value) for value in values], np.int64)
    return Joined(np.frombuffer(buffer, np.uint8), starts, starts + lengths)
