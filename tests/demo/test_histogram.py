"""Histograms: buckets cover all latencies without gaps, and quantiles keep to the promised error."""

from itertools import pairwise

import numpy as np
import pytest
from demo.histogram import BUCKETS, bucket_bounds, bucket_of, quantile
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(0, 60 * 10**9))
def test_a_latency_lies_within_the_bounds_of_its_bucket(nanoseconds):
    low, high = bucket_bounds(bucket_of(nanoseconds))
    assert low <= nanoseconds < high
    assert high - low <= max(low / 16, 1024)


def test_buckets_follow_each_other_without_gap():
    bounds = [bucket_bounds(bucket) for bucket in range(BUCKETS)]
    assert bounds[0][0] == 0
    assert all(before[1] == after[0] for before, after in pairwise(bounds))


def test_what_is_too_long_is_in_the_last_bucket():
    assert bucket_of(10**15) == BUCKETS - 1


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99, 0.999])
def test_quantiles_of_a_long_tail(share):
    latencies = np.random.default_rng(1).lognormal(np.log(200_000), 1.2, 50_000).astype(int)
    counts = np.bincount([bucket_of(int(value)) for value in latencies], minlength=BUCKETS)
    exact = np.quantile(latencies, share, method="inverted_cdf") / 1e6
    assert quantile(counts, share) == pytest.approx(exact, rel=0.04)


def test_nothing_has_no_quantile():
    assert np.isnan(quantile(np.zeros(BUCKETS, int), 0.5))
