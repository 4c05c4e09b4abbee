"""The targets' records as the rules see them: key and index look-ups, puts and removals, nothing else.

A commit's rules see what they have put themselves. Nothing here leads to a source: that the rules read the log and the
targets only (§3.3, self-maintainable) is true by what they are given.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from instar.transformations.records import Change, Joined, Part, Row, Source, SRecord


class JoinTarget(Protocol):
    """T of a join, with an index on each source's key and one on the join value. A record is known by the keys of both
    its parts; a part that is not there has no key. What is looked up is read to its end before anything is written, or
    left after the first record.
    """

    def of(self, source: Source, key: Row, /) -> Iterable[Joined]:
        """The records that have this row of the source as a part."""
        ...

    def matching(self, value: Row, /) -> Iterable[Joined]:
        """The records with this join value, whichever part it is in."""
        ...

    def put(self, record: Joined, /) -> None:
        """Add a record, or overwrite the one with the same keys."""
        ...

    def remove(self, record: Joined, /) -> None:
        """Take away a record that is there."""
        ...


class SplitTarget(Protocol):
    """R and S of a split: R by T's primary key, S by split value."""

    def r(self, key: Row, /) -> Part | None: ...

    def put_r(self, key: Row, record: Part, /) -> None: ...

    def remove_r(self, key: Row, /) -> None: ...

    def s(self, value: Row, /) -> SRecord | None: ...

    def put_s(self, value: Row, record: SRecord, /) -> None: ...

    def remove_s(self, value: Row, /) -> None: ...


def outdated(target: JoinTarget, change: Change) -> list[Joined]:
    """The records that have the changed row in a state from before the change. By theorem 1 there are none only if T
    has a newer state of it: another, or that it is gone. Then there is nothing to do.
    """
    found = []
    for record in target.of(change.source, change.key):
        part = record.part(change.source)
        if part is not None and part.timestamp < change.timestamp:
            found.append(record)
    return found


def has(records: Iterable[Joined]) -> bool:
    """Whether a look-up finds anything."""
    return any(True for _ in records)
