"""Splitting a key space: ranges cover it, are adjacent, and hold about as much each."""

from __future__ import annotations

import bisect
import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar.encoding.keys import compile_encoder
from instar.store.cuts import Cut, ranks
from instar.store.key_ranges import COUNTED_INTERVALS, SAMPLE, Split, estimate, merged, sampled, share_before, split
from instar.types import BIGINT, INTEGER, TEXT, UUID, Type

START, STOP = b"", b"\xff"


class Keys:
    """A sorted list of keys as a reader of a store, which knows their ranks (`cuts`) or not; `reads`: how often it was
    asked."""

    catalog_version = timestamp = watermark = 0

    def __init__(self, keys: list[bytes], *, cuts: bool = False) -> None:
        self.keys = sorted(set(keys))
        self.cuts = cuts
        self.reads = 0

    def __enter__(self) -> Keys:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing to give back."""

    def get(self, key: bytes, /) -> bytes | None:
        return b"" if key in self.keys else None

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        self.reads += 1
        found = self.keys[bisect.bisect_left(self.keys, start) : bisect.bisect_left(self.keys, stop)]
        return ((key, b"") for key in (reversed(found) if reverse else found))

    def batch(self, start: bytes, stop: bytes, limit: int, *, reverse: bool = False) -> tuple[list[bytes], list[bytes]]:
        found = [key for key, _ in islice(self.scan(start, stop, reverse=reverse), limit)]
        return found, [b""] * len(found)

    def cut(self, start: bytes, stop: bytes, parts: int) -> Cut | None:
        if not self.cuts:
            return None
        self.reads += 1
        first = bisect.bisect_left(self.keys, start)
        rows = max(bisect.bisect_left(self.keys, stop) - first, 0)
        return Cut([self.keys[first + rank] for rank in ranks(rows, parts)], rows)

    def sizes(self, ranges: list[tuple[bytes, bytes]]) -> list[int]:
        return [bisect.bisect_left(self.keys, stop) - bisect.bisect_left(self.keys, start) for start, stop in ranges]


def estimate_keys(keys: Keys) -> int:
    reader: Any = keys  # has what `estimate` needs of a reader
    return estimate(lambda: reader, START, STOP)


def split_keys(keys: Keys, parts: int) -> Split:
    reader: Any = keys  # has what `split` needs of a reader
    return split(lambda: reader, START, STOP, parts)


def encoded(types: list[Type], rows: list[tuple[object, ...]]) -> list[bytes]:
    encode = compile_encoder(types)
    return [encode(row) for row in rows]


def drawn(draw: Callable[[random.Random], tuple[object, ...]], seed: int = 1) -> list[tuple[object, ...]]:
    """The same rows whichever tests have run before."""
    chance = random.Random(seed)
    return [draw(chance) for _ in range(50_000)]


DISTRIBUTIONS: dict[str, Callable[[], list[bytes]]] = {
    "dense": lambda: encoded([BIGINT], [(i,) for i in range(50_000)]),
    "two clusters": lambda: encoded([BIGINT], [(i if i < 25_000 else i + 10**12,) for i in range(50_000)]),
    "log-uniform": lambda: encoded([BIGINT], drawn(lambda chance: (int(10 ** chance.uniform(0, 18)),))),
    "orders and lines": lambda: encoded([BIGINT, INTEGER], [(i // 4, i % 4) for i in range(50_000)]),
    "skewed tenants": lambda: encoded(
        [INTEGER, INTEGER], drawn(lambda chance: (int(chance.paretovariate(1)), chance.randrange(2**31)))
    ),
    "uuids": lambda: encoded([UUID], drawn(lambda chance: (chance.randbytes(16),))),
    "numbered text": lambda: encoded([TEXT], [(f"Customer#{i:09}",) for i in range(50_000)]),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("parts", [2, 7, 16])
def test_ranges_are_about_even_by_densities(name, parts):
    keys = Keys(DISTRIBUTIONS[name]())
    found = split_keys(keys, parts)
    assert len(found.ranges) == parts
    # Digits in text lie in nested gaps, which the estimate of densities does not see through.
    assert max(keys.sizes(found.ranges)) <= (4 if "text" in name else 1.5) * len(keys.keys) / parts
    assert keys.reads < 3_000  # not a scan
    if "text" not in name:
        assert found.rows == pytest.approx(len(keys.keys), rel=0.1)


# Where the density of keys says nothing: neighbours differ in a second number of eight bytes.
NESTED: dict[str, Callable[[], list[bytes]]] = {
    "readings of a day": lambda: encoded([INTEGER, INTEGER], [(i % 700, i) for i in range(50_000)]),
    "orders of customers": lambda: encoded([TEXT, INTEGER], [(f"cust{i % 700}", i) for i in range(50_000)]),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS | NESTED)
@pytest.mark.parametrize("parts", [2, 7, 16])
def test_ranges_are_even_whatever_the_keys_where_ranks_are_known(name, parts):
    keys = Keys((DISTRIBUTIONS | NESTED)[name](), cuts=True)
    found = split_keys(keys, parts)
    sizes = keys.sizes(found.ranges)
    assert len(sizes) == parts
    assert max(sizes) - min(sizes) <= 1
    assert found.rows == estimate_keys(keys) == len(keys.keys)
    assert keys.reads == 2


@pytest.mark.parametrize("name", NESTED)
def test_an_estimate_by_density_may_be_far_off_and_has_bounds(name):
    keys = Keys(NESTED[name]())
    assert 0 < estimate_keys(keys) < 1 << 60  # what a job's record has room for
    assert sum(keys.sizes(split_keys(keys, 7).ranges)) == len(keys.keys)


class Moving(Keys):
    """Only every third view can say it."""

    asked = 0

    def cut(self, start: bytes, stop: bytes, parts: int) -> Cut | None:
        self.asked += 1
        return None if self.asked % 3 else super().cut(start, stop, parts)


def test_another_view_is_asked_where_one_cannot_say_which_rank_a_key_has():
    keys = Moving(NESTED["readings of a day"](), cuts=True)
    sizes = keys.sizes(split_keys(keys, 4).ranges)
    assert max(sizes) - min(sizes) <= 1


@given(st.lists(st.binary(min_size=1, max_size=6).filter(lambda key: key[0] != 0xFF)), st.integers(1, 9), st.booleans())
def test_ranges_cover_everything_once(given_keys, parts, cuts):
    keys = Keys(given_keys, cuts=cuts)
    found = split_keys(keys, parts)
    assert 1 <= len(found.ranges) <= parts
    assert found.ranges[0][0] == START
    assert found.ranges[-1][1] == STOP
    assert all(
        one[1] == other[0] and one[0] < one[1] for one, other in zip(found.ranges, found.ranges[1:], strict=False)
    )
    assert sum(keys.sizes(found.ranges)) == len(keys.keys)
    fewer = merged(found.ranges, 2)
    assert len(fewer) <= 2
    assert (fewer[0][0], fewer[-1][1]) == (START, STOP)


def test_few_keys_are_counted():
    keys = Keys([b"a", b"b", b"c"])
    assert split_keys(keys, 4).rows == 3
    assert split_keys(Keys([]), 4) == ([(START, STOP)], 0)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("cuts", [False, True])
def test_the_share_before_a_key_is_about_its_rank(name, cuts):
    keys = Keys(DISTRIBUTIONS[name](), cuts=cuts)
    reader: Any = keys
    assert share_before(lambda: reader, START, START, STOP) == 0
    assert share_before(lambda: reader, START, STOP, STOP) == 1
    ranks = range(0, len(keys.keys), len(keys.keys) // 20)
    shares = [share_before(lambda: reader, START, keys.keys[rank], STOP) for rank in ranks]
    assert shares == sorted(shares)
    # As for ranges, densities do not see through the gaps of text.
    off = 0.001 if cuts else 0.25 if "text" in name else 0.05
    assert all(abs(share - rank / len(keys.keys)) < off for share, rank in zip(shares, ranks, strict=True))


def test_keys_far_above_all_others_do_not_make_little_of_the_way_behind() -> None:
    keys = Keys(encoded([BIGINT], [(number,) for number in (*range(20_000), *range(10**12, 10**12 + 2_000))]))
    reader: Any = keys
    for rank in (2_200, 11_000, 20_000):
        share = share_before(lambda: reader, START, keys.keys[rank], STOP)
        assert share == pytest.approx(rank / 22_000, abs=0.03)


@pytest.mark.parametrize("cuts", [False, True])
def test_no_share_of_nothing(cuts: bool) -> None:
    reader: Any = Keys([], cuts=cuts)
    assert share_before(lambda: reader, START, b"a", STOP) == 0


@pytest.mark.parametrize("rows", [0, 5, 100, 4_000, 20_000])
def test_what_is_sampled_stands_for_all_keys(rows: int) -> None:
    reader: Any = Keys(encoded([BIGINT], [(number,) for number in range(rows)]), cuts=True)
    stretches = list(sampled(lambda: reader, START, STOP))
    assert sum(weight for weight, _ in stretches) == pytest.approx(rows, rel=0.05)
    assert sum(len(values) for _, values in stretches) == min(rows, COUNTED_INTERVALS * SAMPLE)
