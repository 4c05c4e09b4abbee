"""Latency histograms with a fixed relative error, in the manner of HdrHistogram.

Values are counted in units of 1.024 us. The first 32 buckets are exact; above, each octave has 16 buckets, so a bucket
is at most 1/16 of its value wide and a quantile, given as a bucket's middle, is off by at most 3.2 %.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

BUCKETS = 400  # up to about 68 s
UNIT_SHIFT = 10  # nanoseconds to units
_SUB_BITS = 4

Counts = NDArray[Any]


def bucket_of(nanoseconds: int) -> int:
    """The bucket that a latency is counted in; too long ones share the last."""
    value = nanoseconds >> UNIT_SHIFT
    shift = value.bit_length() - (_SUB_BITS + 1)
    if shift <= 0:
        return value
    bucket = (shift << _SUB_BITS) + (value >> shift)
    return bucket if bucket < BUCKETS else BUCKETS - 1


def bucket_bounds(bucket: int) -> tuple[int, int]:
    """The latencies of a bucket: from, and up to but without, in nanoseconds."""
    if bucket < 1 << (_SUB_BITS + 1):
        low, width = bucket, 1
    else:
        shift = (bucket >> _SUB_BITS) - 1
        low, width = (bucket - (shift << _SUB_BITS)) << shift, 1 << shift
    return low << UNIT_SHIFT, (low + width) << UNIT_SHIFT


MIDDLES = np.array([sum(bucket_bounds(bucket)) / 2 for bucket in range(BUCKETS)]) / 1e6  # milliseconds


def quantile(counts: Counts, share: float) -> float:
    """The latency in milliseconds below or at which `share` of the counted operations lie; NaN of nothing."""
    total = int(counts.sum())
    if total == 0:
        return float("nan")
    rank = max(int(np.ceil(share * total)), 1)
    return float(MIDDLES[int(np.searchsorted(np.cumsum(counts, dtype=np.int64), rank))])
