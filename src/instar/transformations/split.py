"""Rules 8 to 11: R and S follow a split of T, with counters and flags (§5.2, §5.3).

R has a record per row of T, and its timestamp says what of that row R and S reflect. S has a record per split value,
with a counter of the rows that contribute to it. After each rule the counter is the number of R's records with that
split value; and under flag C all rows that R reflects agree with S's record.

U becomes C by the checker, or by an update of all non-key columns at counter 1: those are S's columns without the split
columns. A column that is set to what it was counts as not updated; the log does not tell.

What differs from the paper:
- The guard of rule 11 lets a change pass whose timestamp is S's own. Log sequence numbers differ between the records of
  a commit, timestamps do not: a delete in the same commit would keep the update from S.
- A change that the guard keeps from S's values still makes the flag U: S's record is newer, but no longer agreed with.
- A commit that updates all rows that contribute to s^x, so that they agree, leaves it C: what the paper says of the
  one row at counter 1. That is how applications change what is there many times, and needs no check.
- An update that leaves S's columns alone changes neither S's record nor its flag.
- A split value that is NULL belongs to no record of S. What T has in S's other columns then is lost, which is for the
  preparation to refuse or to say.
- A new record of S is C: one row contributes to it. The paper does not say.
"""

from __future__ import annotations

from collections.abc import Sequence

from instar.transformations.records import Deleted, Flag, Inserted, Part, Row, Split, SRecord, Updated, same
from instar.transformations.targets import SplitTarget


def insert_t(target: SplitTarget, split: Split, change: Inserted) -> None:
    """Rule 8 (§5.2): insert t^y_x. If r^y exists, it is reflected in R and in S: both are left alone. Else r^y is put,
    and s^x is put or counted.
    """
    if target.r(change.key) is not None:
        return
    target.put_r(change.key, Part(split.r_part(change.after), change.timestamp))
    _count(target, split, change)


def delete_t(target: SplitTarget, split: Split, change: Deleted) -> None:
    """Rule 9 (§5.2): delete t^y. Ignored if there is no r^y, or a newer one. S's record is that of R's split value."""
    old = target.r(change.key)
    if old is None or old.timestamp >= change.timestamp:
        return
    target.remove_r(change.key)
    _uncount(target, split.value_in_r(old), change.timestamp)


def update_r(target: SplitTarget, split: Split, change: Updated) -> Part | None:
    """Rule 10 (§5.2): update the R-part of t^y, and its timestamp in any case. Ignored if there is no r^y, or a newer
    one. Returns r^y as it was, which has x; None: it was ignored, and rule 11 does not follow.
    """
    old = target.r(change.key)
    if old is None or old.timestamp >= change.timestamp:
        return None
    target.put_r(change.key, Part(split.r_part(change.after), change.timestamp))
    return old


def update_s(target: SplitTarget, split: Split, change: Updated) -> None:
    """Rule 11 (§5.2, §5.3), split value unchanged: s^x gets the new values if it is not newer. It is U if another row
    contributes to it. If none does, C stays, and U becomes C if all non-key columns are updated. The guard covers its
    values: that rows disagree is so at any timestamp.
    """
    value, new = split.value(change.after), split.s_part(change.after)
    if value is None or same(new, split.s_part(change.before)):
        return
    old = target.s(value)
    assert old is not None, "a record of R without one of S"
    if old.timestamp > change.timestamp:
        target.put_s(value, SRecord(old.values, old.counter, old.timestamp, Flag.UNKNOWN))
        return
    known = old.counter == 1 and (old.flag is Flag.CONSISTENT or split.renews_s(change))
    flag = Flag.CONSISTENT if known else Flag.UNKNOWN
    target.put_s(value, SRecord(new, old.counter, change.timestamp, flag))


def agree_s(target: SplitTarget, split: Split, changes: Sequence[Updated]) -> None:
    """Rule 11 for the updates of one commit together, after `update_s` for each: where all rows that contribute to s^x
    are among them, with S's columns changed, and agree, s^x is C.
    """
    said: dict[Row, list[Row]] = {}
    for change in changes:
        value, new = split.value(change.after), split.s_part(change.after)
        if value is not None and not same(new, split.s_part(change.before)):
            said.setdefault(value, []).append(new)
    for value, parts in said.items():
        record = target.s(value)
        assert record is not None, "a record of R without one of S"
        if 1 < len(parts) == record.counter and all(part == record.values for part in parts):
            target.put_s(value, SRecord(record.values, record.counter, record.timestamp, Flag.CONSISTENT))


def leave_s(target: SplitTarget, split: Split, old: Part, change: Updated) -> None:
    """Rule 11 (§5.2), split value x updated, first half: s^x is counted down as in rule 9. x is R's from before rule
    10, and no guard applies: a newer s^x still counted this row.
    """
    _uncount(target, split.value_in_r(old), change.timestamp)


def enter_s(target: SplitTarget, split: Split, change: Updated) -> None:
    """Rule 11 (§5.2), split value x updated to v, second half: s^v is put or counted as in rule 8."""
    _count(target, split, change)


def _count(target: SplitTarget, split: Split, change: Inserted | Updated) -> None:
    """One more row contributes to an S-record (rule 8, S-part). If it is not equal to what is there, the flag is U."""
    value, new = split.value(change.after), split.s_part(change.after)
    if value is None:
        return
    old = target.s(value)
    if old is None:
        target.put_s(value, SRecord(new, 1, change.timestamp, Flag.CONSISTENT))
        return
    flag = old.flag if new == old.values else Flag.UNKNOWN
    target.put_s(value, SRecord(old.values, old.counter + 1, max(old.timestamp, change.timestamp), flag))


def _uncount(target: SplitTarget, value: Row | None, timestamp: int) -> None:
    """One row less contributes to an S-record (rule 9, S-part); at zero it goes."""
    if value is None:
        return
    old = target.s(value)
    assert old is not None, "a record of R without one of S"
    if old.counter == 1:
        target.remove_s(value)
    else:
        target.put_s(value, SRecord(old.values, old.counter - 1, max(old.timestamp, timestamp), old.flag))
