"""Targets in memory, and the operators computed from scratch, which the rules are compared with.

The tables hold what the rules put and nothing else. They complain where a real one would: about a record removed that
is not there, or put over one that it does not replace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from instar.transformations.checker import Contribution
from instar.transformations.records import (
    Flag,
    Join,
    Joined,
    Part,
    Row,
    Source,
    Split,
    SRecord,
)

Parts = Mapping[Row, Part]


class Contradicted(Exception):
    """Rows contradict each other, and no repair is wanted."""


def fail(contributions: Sequence[Contribution]) -> Row:
    """The repair that is none."""
    raise Contradicted(contributions)


class JoinedTable:
    """T of a join (a `JoinTarget`)."""

    def __init__(self, join: Join, records: Iterable[Joined] = ()) -> None:
        self.join = join
        self._records = {self._keys(record): record for record in records}

    @classmethod
    def image(cls, join: Join, r: Parts, s: Parts) -> JoinedTable:
        """What initial population makes of rows that were read at different moments."""
        return cls(join, full_outer_join(join, r, with_room(join, s)))

    def _keys(self, record: Joined) -> tuple[Row | None, Row | None]:
        r, s = record.r, record.s
        return (
            None if r is None else self.join.key(Source.R, r.values),
            None if s is None else self.join.key(Source.S, s.values),
        )

    def records(self) -> set[Joined]:
        return set(self._records.values())

    def parts(self, source: Source) -> Parts:
        """The rows of a source that T has; it has each in one state."""
        found: dict[Row, Part] = {}
        for record in self._records.values():
            part = record.part(source)
            if part is not None:
                assert found.setdefault(self.join.key(source, part.values), part) == part, "two states of one row"
        return found

    def of(self, source: Source, key: Row) -> Iterable[Joined]:
        place = 0 if source is Source.R else 1
        return [record for keys, record in self._records.items() if keys[place] == key]

    def matching(self, value: Row) -> Iterable[Joined]:
        return [record for record in self._records.values() if self._value(record) == value]

    def _value(self, record: Joined) -> Row | None:
        if record.r is not None:
            return self.join.value(Source.R, record.r.values)
        assert record.s is not None
        return self.join.value(Source.S, record.s.values)

    def put(self, record: Joined) -> None:
        keys = self._keys(record)
        if self.join.unique and keys[0] is not None:
            assert not [1 for r, s in self._records if r == keys[0] and s != keys[1]], "two records with the same key"
        self._records[keys] = record

    def remove(self, record: Joined) -> None:
        assert self._records.pop(self._keys(record)) == record


def full_outer_join(join: Join, r: Parts, s: Parts) -> set[Joined]:
    """The operator, from scratch."""
    made: set[Joined] = set()
    matched: set[Part] = set()
    for one in r.values():
        value = join.value(Source.R, one.values)
        matches = [other for other in s.values() if value is not None and join.value(Source.S, other.values) == value]
        made.update(Joined(one, other) for other in matches)
        if not matches:
            made.add(Joined(one, None))
        matched.update(matches)
    made.update(Joined(None, other) for other in s.values() if other not in matched)
    return made


def with_room(join: Join, s: Parts) -> Parts:
    """Of rows of S with the same join value, which were not there together, the newest has room in T."""
    if not join.unique:
        return s
    kept: dict[object, Row] = {}
    for key, part in sorted(s.items(), key=lambda item: item[1].timestamp):
        value = join.value(Source.S, part.values)
        kept[key if value is None else (value, "value")] = key
    return {key: s[key] for key in kept.values()}


def check_joined(table: JoinedTable) -> None:
    """Whatever states the rows are in, T is the join of them."""
    r, s = table.parts(Source.R), table.parts(Source.S)
    assert table.records() == full_outer_join(table.join, r, s)


class SplitTables:
    """R and S of a split (a `SplitTarget`)."""

    def __init__(self, split: Split, t: Parts) -> None:
        self.split = split
        self.r_records, self.s_records = split_of(split, t)

    def r(self, key: Row) -> Part | None:
        return self.r_records.get(key)

    def put_r(self, key: Row, record: Part) -> None:
        self.r_records[key] = record

    def remove_r(self, key: Row) -> None:
        del self.r_records[key]

    def s(self, value: Row) -> SRecord | None:
        return self.s_records.get(value)

    def put_s(self, value: Row, record: SRecord) -> None:
        assert record.counter > 0
        self.s_records[value] = record

    def remove_s(self, value: Row) -> None:
        del self.s_records[value]

    def counters(self) -> dict[Row, int]:
        return {value: record.counter for value, record in self.s_records.items()}

    def values(self) -> dict[Row, Row]:
        return {value: record.values for value, record in self.s_records.items()}


def split_of(split: Split, t: Parts) -> tuple[dict[Row, Part], dict[Row, SRecord]]:
    """The operator, from scratch; where rows contradict each other, S has what the newest says."""
    r = {key: Part(split.r_part(part.values), part.timestamp) for key, part in t.items()}
    s: dict[Row, SRecord] = {}
    for value, parts in contributing(split, t).items():
        newest = max(parts, key=lambda part: part.timestamp)
        agreed = {split.s_part(part.values) for part in parts} == {split.s_part(newest.values)}
        flag = Flag.CONSISTENT if agreed else Flag.UNKNOWN
        s[value] = SRecord(split.s_part(newest.values), len(parts), newest.timestamp, flag)
    return r, s


def contributing(split: Split, t: Parts) -> dict[Row, list[Part]]:
    """The rows of T by split value, in the order of their keys."""
    found: dict[Row, list[Part]] = {}
    for _key, part in sorted(t.items()):
        value = split.value(part.values)
        if value is not None:
            found.setdefault(value, []).append(part)
    return found


def check_split(tables: SplitTables, reflected: Parts) -> None:
    """Whatever states the rows of T are in: R has them, counters count them, and a C flag says that they agree."""
    assert tables.r_records == {
        key: Part(tables.split.r_part(part.values), part.timestamp) for key, part in reflected.items()
    }
    groups = contributing(tables.split, reflected)
    assert tables.counters() == {value: len(parts) for value, parts in groups.items()}
    for value, record in tables.s_records.items():
        if record.flag is Flag.CONSISTENT:
            said = {tables.split.s_part(part.values) for part in groups[value]}
            assert said == {record.values}, f"{record} is C, but its rows say {said}"
