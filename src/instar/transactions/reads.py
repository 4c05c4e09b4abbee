"""The read set of a SERIALIZABLE transaction: which keys it has looked for, and which ranges of keys it has scanned.

A read is a range of store keys in the rowset of a table or of one of its indexes, together with the columns that were
read there: a key looked up is the range that holds it alone, whether a row was found or not. The set is bounded: where
it would grow too long it grows wider instead, which may refuse a commit for nothing and never lets one pass.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import NamedTuple

# Ranges that are kept apart in one place, and places (which differ in their columns) that are kept apart in one rowset.
MOST_RANGES = 16_384
MOST_PLACES = 16

Range = tuple[bytes, bytes]


class Place(NamedTuple):
    """Where something was read: the rows of a table (`index_id` None) or the entries of an index, and which columns. A
    read of no columns asks whether rows are there."""

    table: int
    index_id: int | None
    rowset: int
    columns: frozenset[int]


class KeyRanges:
    """Ranges [start, stop) of keys; `rows` is how many rows and entries were read in all of them, single keys apart.

    `widened`: the ranges hold keys that nobody has read, of which `rows` knows nothing.
    """

    __slots__ = ("_pending", "_ranges", "rows", "widened")

    def __init__(self) -> None:
        self._ranges: list[Range] = []
        self._pending: list[Range] = []
        self.rows = 0
        self.widened = False

    def add(self, start: bytes, stop: bytes) -> None:
        """One more range."""
        self._pending.append((start, stop))
        if len(self._pending) >= MOST_RANGES:
            self._settle()

    def absorb(self, other: KeyRanges) -> None:
        """All ranges of `other` too."""
        self._pending += other.ordered()
        self.rows += other.rows
        self.widened |= other.widened
        self._settle()

    def ordered(self) -> list[Range]:
        """The ranges, disjoint and in the order of their keys."""
        if self._pending:
            self._settle()
        return self._ranges

    def _settle(self) -> None:
        found: list[Range] = []
        for start, stop in sorted(self._ranges + self._pending):
            if found and start <= found[-1][1]:
                if stop > found[-1][1]:
                    found[-1] = found[-1][0], stop
            else:
                found.append((start, stop))
        while len(found) > MOST_RANGES:
            self.widened = True
            found = [(pair[0][0], pair[-1][1]) for pair in (found[at : at + 2] for at in range(0, len(found), 2))]
        self._ranges, self._pending = found, []


class ReadSet:
    """What one transaction has read. The analytic engine reads in threads of its own, hence the lock.

    `catalog`: a system view was read, which stands for the whole schema. `probes` are the reads that judged
    constraints on what the transaction wrote: as long as those writes stand as they were judged, the commit judges the
    same constraints again, on the current state and more exactly than by "nothing has changed".
    """

    def __init__(self) -> None:
        self.catalog = False
        self._places: dict[Place, KeyRanges] = {}
        self._probes: ReadSet | None = None
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._places) or self.catalog

    def __iter__(self) -> Iterator[tuple[Place, KeyRanges]]:
        return iter(self._places.items())

    def add_key(self, place: Place, key: bytes) -> None:
        """A look for one key, found or not."""
        with self._lock:
            (self._places.get(place) or self._open(place)).add(key, key + b"\x00")

    def add_keys(self, place: Place, keys: list[bytes]) -> None:
        """A look for some keys."""
        with self._lock:
            ranges = self._places.get(place) or self._open(place)
            for key in keys:
                ranges.add(key, key + b"\x00")

    def add_range(self, place: Place, start: bytes, stop: bytes, rows: int) -> None:
        """A scan of [start, stop), in which `rows` rows or entries are stored, those that are not seen included."""
        with self._lock:
            ranges = self._places.get(place) or self._open(place)
            ranges.add(start, stop)
            ranges.rows += rows

    @property
    def probes(self) -> ReadSet:
        """Where the reads of constraints go."""
        if self._probes is None:
            self._probes = ReadSet()
        return self._probes

    def keep_probes(self) -> None:
        """What was judged is not what will be committed (a statement failed, something was undone or changed twice):
        so what the judgement rested on counts as read."""
        if self._probes is None:
            return
        for place, ranges in self._probes:
            (self._places.get(place) or self._open(place)).absorb(ranges)
        self._probes = None

    def _open(self, place: Place) -> KeyRanges:
        """The ranges of a place that was not read before."""
        near = [other for other in self._places if other[:3] == place[:3]]
        ranges = KeyRanges()
        if len(near) >= MOST_PLACES:
            place = place._replace(columns=place.columns.union(*(other.columns for other in near)))
            for other in near:
                ranges.absorb(self._places.pop(other))
        self._places[place] = ranges
        return ranges
