"""Key ranges of about equal numbers of keys, found by looking at a few hundred places of the tree, never at all keys.

An ordered store does not know the rank of a key, but its pages do, as good as: how many leaves there are, and how many
keys some of them have (`Reader.cut`). Where a view cannot say it, since others have committed twice meanwhile, another
one is asked.

Where none can (pages of another format), ranks are estimated: the density of keys (keys per distance in byte space) is
sampled at the start of an interval, and the interval that seems to hold most is halved, again and again. Halving goes
by the keys that are really there, so that common prefixes and gaps cost one step each. Densities are far off where gaps
lie nested: in text, and between keys of two numbers, the second of which says more of the distance.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from instar.store.cuts import Cut
from instar.store.engine import Reader

SAMPLE = 32
# Intervals per range asked for, and at least: the ranges are as even as the intervals are small, and an estimate of the
# density is no good where the gaps between keys lie nested (digits in text). Each costs some 80 us.
INTERVALS = 16
LEAST_INTERVALS = 512
# As many when it is asked for the share before a key; and so many stretches of which a few keys are looked at.
COUNTED_INTERVALS = 128
# How many bytes after the common prefix count as a position.
_POSITION_BYTES = 16
# So many views are asked for a cut. And more keys than this are in no store.
_ASKED, _MOST_KEYS = 5, 1 << 48


class Interval(NamedTuple):
    """A stretch of keys in [start, stop): the first one there, and about how many there are."""

    start: bytes
    stop: bytes
    first: bytes
    last: bytes
    rows: float
    exact: bool


class Split(NamedTuple):
    """`ranges` are adjacent and half-open; `rows`: about how many keys they hold together. Within a tenth, as long as
    pages can be read."""

    ranges: list[tuple[bytes, bytes]]
    rows: int


def split(open_reader: Callable[[], Reader], start: bytes, stop: bytes, parts: int) -> Split:
    """[start, stop) in at most `parts` adjacent ranges of about as many keys each; fewer where keys are few.

    `open_reader` gives a short read of the store; the keys are whole store keys. Work: some 10 ms for a million keys in
    256 parts; by densities 80 us for each interval.
    """
    cut = _cut(open_reader, start, stop, parts) or _cut_by_density(open_reader, start, stop, parts)
    return Split(list(pairwise([start, *cut.keys, stop])), cut.rows)


def estimate(open_reader: Callable[[], Reader], start: bytes, stop: bytes) -> int:
    """About how many keys [start, stop) has, as in `split`."""
    return split(open_reader, start, stop, 1).rows


def share_before(open_reader: Callable[[], Reader], start: bytes, at: bytes, stop: bytes) -> float:
    """About which share of the keys of [start, stop) lies before `at`, 0 to 1. Work: some 10 ms."""
    before, whole = (_cut(open_reader, start, end, 1) for end in (min(at, stop), stop))
    if before is not None and whole is not None:
        return min(before.rows / whole.rows, 1.0) if whole.rows else 0.0
    behind = total = 0.0
    for interval in _intervals(open_reader, start, stop, COUNTED_INTERVALS):
        total += interval.rows
        behind += interval.rows * _share_of(interval, at)
    return behind / total if total else 0.0


def sampled(open_reader: Callable[[], Reader], start: bytes, stop: bytes) -> Iterator[tuple[float, list[bytes]]]:
    """The values of a few keys of each of many stretches of [start, stop), and about how many keys the stretch has."""
    ranges, rows = split(open_reader, start, stop, COUNTED_INTERVALS)
    for first, last in ranges:
        with open_reader() as reader:
            _, values = reader.batch(first, last, SAMPLE)
        if values:
            yield (rows / len(ranges) if len(values) == SAMPLE else len(values)), values


def merged(ranges: list[tuple[bytes, bytes]], parts: int) -> list[tuple[bytes, bytes]]:
    """Adjacent ranges put together until at most `parts` are left."""
    each = -(-len(ranges) // parts)
    groups = [ranges[begin : begin + each] for begin in range(0, len(ranges), each)]
    return [(group[0][0], group[-1][1]) for group in groups]


def _cut(open_reader: Callable[[], Reader], start: bytes, stop: bytes, parts: int) -> Cut | None:
    """As in `Reader`; None if no view can say it."""
    for _ in range(_ASKED):
        with open_reader() as reader:
            cut = reader.cut(start, stop, parts)
        if cut is not None:
            return cut
    return None


def _cut_by_density(open_reader: Callable[[], Reader], start: bytes, stop: bytes, parts: int) -> Cut:
    """As `_cut`, by what densities say."""
    intervals = _intervals(open_reader, start, stop, max(INTERVALS * parts, LEAST_INTERVALS))
    total = sum(interval.rows for interval in intervals)
    keys: list[bytes] = []
    passed = 0.0
    for interval in intervals:
        # A part begins with the interval whose middle passes the next multiple of a part's share.
        if passed and passed + interval.rows / 2 >= total * (len(keys) + 1) / parts and len(keys) + 1 < parts:
            keys.append(interval.first)
        passed += interval.rows
    return Cut(keys, round(total))


def _intervals(open_reader: Callable[[], Reader], start: bytes, stop: bytes, wanted: int) -> list[Interval]:
    """About `wanted` intervals in key order that cover every key of [start, stop)."""
    whole = _measure(open_reader, start, stop)
    if whole is None:
        return []
    breadth = max(4, wanted // 4)  # so many are made whatever the estimates say: they may be wrong at first
    heap = [(0.0, 0, whole)]
    done: list[Interval] = []
    made = 1
    while heap and len(heap) + len(done) < wanted:
        _, _, interval = heapq.heappop(heap)
        halves = [] if interval.exact else _halve(open_reader, interval)
        if not halves:
            done.append(interval)
            continue
        for half in halves:
            size = -half.rows if made > breadth else -_span(half)
            heapq.heappush(heap, (size, made, half))
            made += 1
    return sorted([*done, *(interval for _, _, interval in heap)], key=lambda interval: interval.first)


def _share_of(interval: Interval, at: bytes) -> float:
    """Which share of an interval's keys lies before `at`, were they as dense everywhere in it."""
    if at <= interval.first:
        return 0.0
    if at > interval.last:
        return 1.0
    shared = _shared_prefix(interval.first, interval.last)
    low, high = _position(interval.first, shared), _position(interval.last, shared)
    return (_position(at, shared) - low) / max(high - low, 1)


def _span(interval: Interval) -> float:
    """How much of the byte space an interval covers, compared with others of the same tree."""
    return float(_position(interval.last, 0) - _position(interval.first, 0))


def _halve(open_reader: Callable[[], Reader], interval: Interval) -> list[Interval]:
    shared = _shared_prefix(interval.first, interval.last)
    middle = (_position(interval.first, shared) + _position(interval.last, shared) + 1) // 2
    key = interval.first[:shared] + middle.to_bytes(_POSITION_BYTES, "big").rstrip(b"\x00")
    if not interval.first < key <= interval.last:
        return []
    measured = (_measure(open_reader, interval.start, key), _measure(open_reader, key, interval.stop))
    return [half for half in measured if half is not None]


def _measure(open_reader: Callable[[], Reader], start: bytes, stop: bytes) -> Interval | None:
    with open_reader() as reader:
        keys, _ = reader.batch(start, stop, SAMPLE)
        if not keys:
            return None
        if len(keys) < SAMPLE:
            return Interval(start, stop, keys[0], keys[-1], len(keys), True)
        last, _ = next(iter(reader.scan(start, stop, reverse=True)))
    shared = _shared_prefix(keys[0], last)
    origin = _position(keys[0], shared)
    sampled = _position(keys[-1], shared) - origin
    rows = (SAMPLE - 1) * (_position(last, shared) - origin) / max(sampled, 1) + 1
    return Interval(start, stop, keys[0], last, min(max(rows, SAMPLE), _MOST_KEYS), False)


def _position(key: bytes, skip: int) -> int:
    """Where a key lies in the space of keys that share its first `skip` bytes."""
    return int.from_bytes(key[skip : skip + _POSITION_BYTES].ljust(_POSITION_BYTES, b"\x00"), "big")


def _shared_prefix(one: bytes, other: bytes) -> int:
    length = min(len(one), len(other))
    for position in range(length):
        if one[position] != other[position]:
            return position
    return length
