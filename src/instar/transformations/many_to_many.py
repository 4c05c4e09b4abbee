"""The variants of rules 1 to 6 for a full outer join in which many rows of S may have one join value (end of §4.2).

Each row has a record per row that it matches, or one without the other part. R and S are alike then, so one function
stands for the rule of R and for that of S.

What differs from the paper: it says that the rules for S need no change. They do. Rule 2 gives s^x only to records that
have no S-part, so a second row of S with the value x would join nothing; and rule 4 leaves r^y without S-part behind
for each s that goes, though it may have other matches. No row lacks room in T here: what T has not is newer, namely
gone, so moving it (rules 5 and 6) is ignored.
"""

from __future__ import annotations

from instar.transformations.records import Deleted, Inserted, Join, Part, Row, Source, Updated, joined
from instar.transformations.targets import JoinTarget, has, outdated


def insert_row(target: JoinTarget, join: Join, change: Inserted | Updated) -> None:
    """Rules 1 and 2 for many-to-many (§4.2): a record for every match. Ignored if T has the row already."""
    source = change.source
    if has(target.of(source, change.key)):
        return
    new = Part(change.after, change.timestamp)
    partners = _partners(target, join, source, join.value(source, change.after))
    for other, alone in partners:
        if alone:
            target.remove(joined(source, None, other))
        target.put(joined(source, new, other))
    if not partners:
        target.put(joined(source, new, None))


def _partners(target: JoinTarget, join: Join, source: Source, value: Row | None) -> list[tuple[Part, bool]]:
    """The rows of the opposite source with this join value, each once, and whether it has had no match so far."""
    found: dict[Row, tuple[Part, bool]] = {}
    for record in target.matching(value) if value is not None else ():
        other = record.part(source.opposite)
        if other is not None:
            found[join.key(source.opposite, other.values)] = other, record.part(source) is None
    return list(found.values())


def delete_row(target: JoinTarget, join: Join, change: Deleted | Updated) -> bool:
    """Rules 3 and 4 for many-to-many (§4.2): all its records go, and a match that is in no other record is kept in one
    of its own. Says whether there was anything to delete.
    """
    source, opposite = change.source, change.source.opposite
    found = outdated(target, change)
    for record in found:
        target.remove(record)
        other = record.part(opposite)
        if other is not None and not has(target.of(opposite, join.key(opposite, other.values))):
            target.put(joined(source, None, other))
    return bool(found)


def detach_row(target: JoinTarget, join: Join, change: Updated) -> bool:
    """Rules 5 and 6 for many-to-many (§4.2), first half: all records go that the row contributed to, their other parts
    do not. Says whether there were any; if not, T is ahead and the second half does not follow.
    """
    return delete_row(target, join, change)


def attach_row(target: JoinTarget, join: Join, change: Updated) -> None:
    """Rules 5 and 6 for many-to-many (§4.2), second half: the row gets the matches of its new join value."""
    insert_row(target, join, change)
