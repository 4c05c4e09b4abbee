"""Key ranges of about equal numbers of keys, found by looking at a few hundred places of the tree, never at all keys.

An ordered store does not know the rank of a key, so it is estimated: the density of keys (keys per distance in byte
space) is sampled at the start of an interval, and the interval that seems to hold most is halved, again and again.
Halving goes by the keys that are really there, so that common prefixes and gaps cost one step each.

Densities are far off where gaps lie nested: in text, and between keys of two numbers, the second of which says more of
the distance. So the whole is counted by the pages of the tree (`Reader.count`), and so are two halves that together
seem to hold another number of keys than what was halved. Where a view cannot say it, since others have committed twice
meanwhile, another one is asked; where none can (pages of another format), densities are all there is.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import NamedTuple

from instar.store.engine import Reader

SAMPLE = 32
# Intervals per range asked for, and at least: the ranges are as even as the intervals are small, and an estimate of the
# density is no good where the gaps between keys lie nested (digits in text). Each costs some 80 us.
INTERVALS = 16
LEAST_INTERVALS = 512
# As many when only the number of keys is asked for, by a statement that computes beside others.
COUNTED_INTERVALS = 128
# How many bytes after the common prefix count as a position.
_POSITION_BYTES = 16
# So many views are asked for a count. And more keys than this are in no store.
_ASKED, _MOST_KEYS = 5, 1 << 48
# By so much densities may be off before keys are counted.
_DOUBTFUL = 1.25


class Interval(NamedTuple):
    """A stretch of keys in [start, stop): the first one there, and about how many there are."""

    start: bytes
    stop: bytes
    first: bytes
    last: bytes
    rows: float
    exact: bool


class Split(NamedTuple):
    """`ranges` are adjacent and half-open; `rows`: about how many keys they hold together.

    Within a tenth, as long as pages can be read.
    """

    ranges: list[tuple[bytes, bytes]]
    rows: int


def split(open_reader: Callable[[], Reader], start: bytes, stop: bytes, parts: int) -> Split:
    """[start, stop) in at most `parts` adjacent ranges of about as many keys each; fewer where keys are few.

    `open_reader` gives a short read of the store; the keys are whole store keys. Work: some 45 ms for up to
    32 parts.
    """
    intervals = _intervals(open_reader, start, stop, max(INTERVALS * parts, LEAST_INTERVALS))
    total = sum(interval.rows for interval in intervals)
    bounds = [start]
    passed = 0.0
    for interval in intervals:
        # A range begins with the interval whose middle passes the next multiple of a part's share.
        if passed and passed + interval.rows / 2 >= total * len(bounds) / parts and len(bounds) < parts:
            bounds.append(interval.first)
        passed += interval.rows
    counted = _count(open_reader, start, stop)
    rows = round(total) if counted is None else counted
    return Split(list(zip(bounds, [*bounds[1:], stop], strict=True)), rows)


def estimate(open_reader: Callable[[], Reader], start: bytes, stop: bytes) -> int:
    """About how many keys [start, stop) has, as in `split`."""
    counted = _count(open_reader, start, stop)
    if counted is not None:
        return counted
    return round(sum(interval.rows for interval in _intervals(open_reader, start, stop, COUNTED_INTERVALS)))


def share_before(open_reader: Callable[[], Reader], start: bytes, at: bytes, stop: bytes) -> float:
    """About which share of the keys of [start, stop) lies before `at`, 0 to 1. What an estimate of their number is off
    by on both sides alike does not count. Work: some 10 ms."""
    behind = total = 0.0
    for interval in _intervals(open_reader, start, stop, COUNTED_INTERVALS):
        total += interval.rows
        behind += interval.rows * _share_of(interval, at)
    return behind / total if total else 0.0


def sampled(open_reader: Callable[[], Reader], start: bytes, stop: bytes) -> Iterator[tuple[float, list[bytes]]]:
    """The values of a few keys of each of many stretches of [start, stop), and about how many keys the stretch has."""
    for interval in _intervals(open_reader, start, stop, COUNTED_INTERVALS):
        with open_reader() as reader:
            _, values = reader.batch(interval.first, interval.stop, SAMPLE)
        if values:
            yield interval.rows, values


def merged(ranges: list[tuple[bytes, bytes]], parts: int) -> list[tuple[bytes, bytes]]:
    """Adjacent ranges put together until at most `parts` are left."""
    each = -(-len(ranges) // parts)
    groups = [ranges[begin : begin + each] for begin in range(0, len(ranges), each)]
    return [(group[0][0], group[-1][1]) for group in groups]


def _intervals(open_reader: Callable[[], Reader], start: bytes, stop: bytes, wanted: int) -> list[Interval]:
    """About `wanted` intervals in key order that cover every key of [start, stop)."""
    whole = _measure(open_reader, start, stop)
    if whole is None:
        return []
    breadth = max(4, wanted // 4)  # so many are made whatever the estimates say: they may be wrong at first
    heap = [(0.0, 0, _counted(open_reader, whole))]
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
    halves = [half for half in measured if half is not None]
    rows = sum(half.rows for half in halves)
    if interval.rows / _DOUBTFUL <= rows <= interval.rows * _DOUBTFUL:
        return halves
    return [_counted(open_reader, half) for half in halves]


def _counted(open_reader: Callable[[], Reader], interval: Interval) -> Interval:
    """The interval with the number of its keys, if it is to be had."""
    rows = None if interval.exact else _count(open_reader, interval.start, interval.stop)
    return interval if rows is None else interval._replace(rows=max(rows, SAMPLE))


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


def _count(open_reader: Callable[[], Reader], start: bytes, stop: bytes) -> int | None:
    """About how many keys there are; None if no view can say it."""
    for _ in range(_ASKED):
        with open_reader() as reader:
            counted = reader.count(start, stop)
        if counted is not None:
            return counted
    return None


def _position(key: bytes, skip: int) -> int:
    """Where a key lies in the space of keys that share its first `skip` bytes."""
    return int.from_bytes(key[skip : skip + _POSITION_BYTES].ljust(_POSITION_BYTES, b"\x00"), "big")


def _shared_prefix(one: bytes, other: bytes) -> int:
    length = min(len(one), len(other))
    for position in range(length):
        if one[position] != other[position]:
            return position
    return length
