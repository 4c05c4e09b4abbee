"""How much longer operations take during changes, where a change may be over before any has arrived."""

from __future__ import annotations

import numpy as np
from benchmarks.clients import Latencies
from benchmarks.reorganization import _compared, _Phase

# One query and one write in each second but the third.
AT = np.array([second + part for second in (0, 1, 3, 4) for part in (0.2, 0.4)])
TOOK = np.array([1.0, 10.0, 2.0, 20.0, 3.0, 30.0, 1.0, 10.0])
SEEN = Latencies(AT, TOOK, np.array([True, False] * 4))


def test_a_change_without_operations_is_left_out() -> None:
    outside = [_Phase(0, 1), _Phase(4, 5), _Phase(0, 1)]
    alone = list(_compared(SEEN, outside[:2], [_Phase(1, 2)], []))
    assert {figure.value for figure in alone} == {1.0}  # twice as long
    with_an_empty_one = list(_compared(SEEN, outside, [_Phase(1, 2), _Phase(2, 3)], []))
    assert [figure.value for figure in with_an_empty_one] == [figure.value for figure in alone]
