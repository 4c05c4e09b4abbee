"""What the rules read and write: changes as the sources' log tells them, shapes, and records of the targets.

The rules and their numbers are those of Løland and Hvasshovd, "Online, Non-blocking Relational Schema Changes", EDBT
2006. A join makes T of R and S; a split makes R and S of T. Every timestamp is that of a commit on the sources.

Where this differs from the paper: its log has the new values of the changed columns only, so that its rules read the
rest from T. Ours has whole before-images besides, so an `Updated` has the whole row before and after. And what the
paper's T lacks, a state identifier per source record, is a timestamp per part here.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter
from types import NoneType

import msgspec

# A row, or some columns of it. Values are compared by ==, so what is equal must look alike to whoever compares.
Row = tuple[object, ...]


class Source(enum.Enum):
    """The source that a change is of: R or S of a join, T of a split."""

    R = "R"
    S = "S"
    T = "T"

    # Members are keys of many look-ups for each change: Enum's own hash, that of the name, is a call of a function.
    __hash__ = object.__hash__

    @property
    def opposite(self) -> Source:
        """The other source of a join."""
        return Source.S if self is Source.R else Source.R


class Inserted(msgspec.Struct, frozen=True):
    """A row that was not there before its commit; a row whose key has changed comes as one, and goes as a `Deleted`."""

    source: Source
    key: Row
    after: Row
    timestamp: int


class Deleted(msgspec.Struct, frozen=True):
    """A row that is not there after its commit."""

    source: Source
    key: Row
    before: Row
    timestamp: int


class Updated(msgspec.Struct, frozen=True):
    """A row of the same key before and after: both images are whole."""

    source: Source
    key: Row
    before: Row
    after: Row
    timestamp: int


Change = Inserted | Deleted | Updated

# What is equal is the same, of values of these types.
_EXACT = frozenset((bool, bytes, int, str, NoneType))


def same(one: Row, other: Row) -> bool:
    """Whether two rows are equal to the last bit: 1.0 and 1.00, 0.0 and -0.0 are equal, and not the same."""
    return one == other and (_EXACT.issuperset(map(type, one)) or repr(one) == repr(other))


def overwritten(row: Row, change: Updated, kept: Sequence[int]) -> Row:
    """A row as it is after an update, but for the columns at the places `kept`, which the update leaves alone."""
    after = list(change.after)
    for place in kept:
        after[place] = row[place]
    return tuple(after)


def chosen(row: Row, places: Sequence[int]) -> Row:
    """The columns of a row at these places."""
    return tuple([row[place] for place in places])


@lru_cache(maxsize=1024)
def choosing(places: tuple[int, ...]) -> Callable[[Row], Row]:
    """As `chosen`, for places that are known long before the rows: a function of rows."""
    if len(places) > 1:
        return itemgetter(*places)
    return itemgetter(slice(places[0], places[0] + 1) if places else slice(0))


def match_value(row: Row, places: tuple[int, ...]) -> Row | None:
    """The join or split value of a row; None if a column of it is NULL, since that equals nothing, NULL included."""
    value = choosing(places)(row)
    return None if None in value else value


@lru_cache(maxsize=1024)
def _places_among(columns: tuple[int, ...], some: tuple[int, ...]) -> tuple[int, ...]:
    return tuple([columns.index(place) for place in some])


class Join(msgspec.Struct, frozen=True):
    """The shape of a full outer join: the places of keys and of join columns in the rows of R and S."""

    r_key: tuple[int, ...]
    r_on: tuple[int, ...]
    s_key: tuple[int, ...]
    s_on: tuple[int, ...]
    unique: bool  # no two rows of S have the same join value: one-to-many

    def key(self, source: Source, row: Row) -> Row:
        """The primary key of a source's row."""
        return choosing(self.r_key if source is Source.R else self.s_key)(row)

    def value(self, source: Source, row: Row) -> Row | None:
        """The join value of a source's row; None matches nothing."""
        return match_value(row, self.r_on if source is Source.R else self.s_on)

    def moves(self, change: Updated) -> bool:
        """Whether an update gives its row other join columns: with a NULL among them both before and after, too, and
        equal ones that are not the same (1.0, 1.00), since whoever updates the row in its place leaves them alone."""
        value = choosing(self.r_on if change.source is Source.R else self.s_on)
        return not same(value(change.before), value(change.after))


class Part(msgspec.Struct, frozen=True):
    """A row of a source as a target has it, in the state of that commit. R's record of a split is one, too."""

    values: Row
    timestamp: int


class Joined(msgspec.Struct, frozen=True):
    """T's record of a join; a part that is None is the paper's NULL record. The timestamps of the parts are the lock
    timestamps of T's R-part and S-part.
    """

    r: Part | None
    s: Part | None

    def __post_init__(self) -> None:
        assert self.r is not None or self.s is not None, "a record of T has neither part"

    def part(self, source: Source) -> Part | None:
        """The part that came from this source."""
        return self.r if source is Source.R else self.s


def joined(source: Source, own: Part | None, other: Part | None) -> Joined:
    """The record of a part of `source` and one of the opposite source."""
    return Joined(own, other) if source is Source.R else Joined(other, own)


class Split(msgspec.Struct, frozen=True):
    """The shape of a split: which columns of T make R and S, and by which it is split. R and S both have the latter, by
    which S's records are known; R has T's primary key.
    """

    r: tuple[int, ...]
    s: tuple[int, ...]
    on: tuple[int, ...]

    def value(self, row: Row) -> Row | None:
        """The split value of T's row; None belongs to no record of S."""
        return match_value(row, self.on)

    def value_in_r(self, part: Part) -> Row | None:
        """The split value of R's record."""
        return match_value(part.values, _places_among(self.r, self.on))

    def r_part(self, row: Row) -> Row:
        """What R has of T's row."""
        return choosing(self.r)(row)

    def s_part(self, row: Row) -> Row:
        """What S has of T's row."""
        return choosing(self.s)(row)

    def renews_s(self, change: Updated) -> bool:
        """Whether an update changes all columns of S but those it is known by."""
        return all(change.before[place] != change.after[place] for place in self.s if place not in self.on)


class Flag(enum.Enum):
    """What is known of a record of S (§5.3): CONSISTENT says that all rows of T that contribute agree with it."""

    CONSISTENT = "C"
    UNKNOWN = "U"


class SRecord(msgspec.Struct, frozen=True):
    """S's record of a split: `counter` rows of T contribute to it. It was changed last at `timestamp`, if only by a row
    that no longer does.
    """

    values: Row
    counter: int
    timestamp: int
    flag: Flag
