"""Rules 1 to 7: T follows a full outer join of R and S while S's join values are unique (§4.2, one-to-many).

After each rule T is exactly the full outer join of the rows of R and of S that it has parts of, each in some state. As
each record of the log brings its row to its own state or finds it newer, T becomes the join of the newest (theorem 1).

What differs from the paper:
- A part bears its commit's timestamp, and a change that T is ahead of is ignored for it. That saves work; the rules
  converge without, as the paper proves.
- Rule 5 deletes the old record. The paper only inserts the new one, and T would have two of one key.
- Rule 5 as printed ignores the record if the old join value is found (w = x); it must be if another is. The
  timestamp decides here.
- S-parts are found by S's primary key, not by join value: a row with NULL there matches nothing, yet has to be found
  again.
- So rule 2 ignores a row that T has already, and rule 6 takes the row from the log. The paper's takes it from the
  record with that join value, which may be another row's while old log is applied to a newer image.
- Rule 6 adds a row that T has not. Two rows read at different moments can have the same join value, and only the newer
  one has room in T. The older one has since been deleted or moved: its move must bring it back.
"""

from __future__ import annotations

from instar.transformations.records import Deleted, Inserted, Join, Joined, Part, Source, Updated, joined, overwritten
from instar.transformations.targets import JoinTarget, has, outdated


def insert_r(target: JoinTarget, join: Join, change: Inserted | Updated) -> None:
    """Rule 1 (§4.2): insert r^y_x. Ignored if T has a record with key y. Else s^x is taken from any record with join
    value x; the one without an R-part gives way.
    """
    if has(target.of(Source.R, change.key)):
        return
    value = join.value(Source.R, change.after)
    match = None if value is None else next(iter(target.matching(value)), None)
    if match is not None and match.r is None:
        target.remove(match)
    target.put(Joined(Part(change.after, change.timestamp), None if match is None else match.s))


def insert_s(target: JoinTarget, join: Join, change: Inserted | Updated) -> None:
    """Rule 2 (§4.2): insert s^x. Every record with join value x that has no S-part gets it, and one without R-part is
    made if there is none at all. Records with another S-part stay as they are: T is ahead, and s has lost x since.
    """
    if has(target.of(Source.S, change.key)):
        return
    new = Part(change.after, change.timestamp)
    value = join.value(Source.S, change.after)
    matches = [] if value is None else list(target.matching(value))
    if not matches:
        target.put(Joined(None, new))
    for record in matches:
        if record.s is None:
            target.remove(record)
            target.put(Joined(record.r, new))


def delete_r(target: JoinTarget, join: Join, change: Deleted | Updated) -> bool:
    """Rule 3 (§4.2): delete r^y. Its record goes; if no other has the S-part, one without R-part keeps it. Says whether
    there was anything to delete.
    """
    found = outdated(target, change)
    for record in found:  # one at most: y is T's key
        target.remove(record)
        if record.s is not None and not has(target.of(Source.S, join.key(Source.S, record.s.values))):
            target.put(Joined(None, record.s))
    return bool(found)


def delete_s(target: JoinTarget, change: Deleted | Updated) -> None:
    """Rule 4 (§4.2): delete s^x. Its record without R-part goes, all others keep their R-part."""
    for record in outdated(target, change):
        target.remove(record)
        if record.r is not None:
            target.put(Joined(record.r, None))


def detach_r(target: JoinTarget, join: Join, change: Updated) -> bool:
    """Rule 5 (§4.2), first half: r^y_x leaves x. The old record goes, which the paper omits, and s^x is kept as in rule
    3. Says whether there was anything to detach; if not, T is ahead and the second half does not follow.
    """
    return delete_r(target, join, change)


def attach_r(target: JoinTarget, join: Join, change: Updated) -> None:
    """Rule 5 (§4.2), second half: r^y comes to z, as a new row would."""
    insert_r(target, join, change)


def detach_s(target: JoinTarget, change: Updated) -> None:
    """Rule 6 (§4.2), first half: s^x leaves x, as in rule 4."""
    delete_s(target, change)


def attach_s(target: JoinTarget, join: Join, change: Updated) -> None:
    """Rule 6 (§4.2), second half: s comes to z, as a new row would, even if T did not have it at x. It is ignored if T
    still has s, in a newer state then.
    """
    insert_s(target, join, change)


def update_part(target: JoinTarget, join: Join, change: Updated) -> None:
    """Rule 7 (§4.2): update other columns of r^y or s^x, in every record that has it as a part; for both kinds of join.

    Ignored if there is none: T has a newer state, or will get one, since what has no room in T (see above) will be
    moved or deleted. The join columns are left alone: the log's join value may be older than T's. All others are the
    log's, and not only those that changed, since what is equal need not be the same (1.0 and 1.00).
    """
    on = join.r_on if change.source is Source.R else join.s_on
    for record in outdated(target, change):
        old = record.part(change.source)
        assert old is not None, "found by a part that it has not"
        new = Part(overwritten(old.values, change, on), change.timestamp)
        target.put(joined(change.source, new, record.part(change.source.opposite)))
