"""The consistency checker of a split over stored tables (§5.3; transformations/checker.py has what it comes to).

A check is done when the targets are at a position of the log: they reflect the sources as of exactly that timestamp,
and no commit after it. The rows that contribute to a record of S are read at the same timestamp. So nothing can have
come between the check's begin, its reads and its end, and no marks in the log are needed, which the paper takes to
find that out: a later change of the record is applied after the check, and makes it U again if it has to.

A record that was repaired has the image that was chosen, and stays U, since its rows contradict each other still: when
one of them changes or goes, another may have to be chosen. Until then there is nothing to be done about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice

from instar import errors
from instar.catalog.descriptors import Repair
from instar.schemachange.online.split_target import StoredSplit
from instar.schemachange.online.transformation import OnlineSplit
from instar.store.engine import ROW_HEADER, View, rowset_prefix
from instar.store.versions import read_row
from instar.tables.rowset import described
from instar.transformations import checker
from instar.transformations.checker import CheckBegun, Contribution
from instar.transformations.records import Flag, Row, SRecord

_REPAIRS: dict[Repair, checker.Repair] = {"most frequent": checker.most_frequent, "newest": checker.newest}
# So many of the images that contradict each other are told.
_TOLD = 5

_BATCH_ROWS = 512


def check(
    split: OnlineSplit, target: StoredSplit, value: Row, position: int, read: Callable[[], AbstractContextManager[View]]
) -> None:
    """Have the record of S with a split value be what the rows of the source say at `position`, which the target
    reflects; `read` opens views that have them. 23505 if they contradict each other and there is no repair."""
    contributions = list(_contributions(split, target, value, position, read))
    repair = _REPAIRS.get(split.made.repair, lambda rows: _fail(split, rows))
    passed = checker.conclude(CheckBegun(value, position), contributions, repair)
    old = target.s(value)
    assert old is not None, "doubts about a record that is not there"
    assert passed is not None, "a record of S that no row contributes to"
    if len(checker.opinions(contributions)) == 1:
        holds = checker.pass_check(target, passed)
        assert holds, "a record of S that is newer than all commits"
    else:
        target.put_s(value, SRecord(passed.image, old.counter, old.timestamp, Flag.UNKNOWN))
        target.doubtful.discard(value)


def _fail(split: OnlineSplit, contributions: Sequence[Contribution]) -> Row:
    """23505, with what contradicts, as users write it, and an example of who says so."""
    table, shape = split.source.table, split.targets.shape
    columns = [table.columns[place] for place in shape.s]
    by_id = {column.id: column for column in table.columns}
    key = [by_id[column] for column in table.primary_key]
    on = [table.columns[place] for place in shape.on]
    first = contributions[0].values
    value = described(on, [first[shape.s.index(place)] for place in shape.on])
    said = checker.opinions(contributions)
    told = [
        f"{described(columns, values)} in {len(rows)} row{'' if len(rows) == 1 else 's'}, such as "
        f"{described(key, rows[0].key)}"
        for values, rows in said[:_TOLD]
    ]
    more = "" if len(said) <= _TOLD else f"; and {len(said) - _TOLD} more"
    raise errors.error(
        errors.UNIQUE_VIOLATION,
        f'rows of table "{table.name}" with {value}, by which it is split, contradict each other',
        detail=f"{'; '.join(told)}{more}.",
        hint="Have them agree, or say what is to be taken: WITH (repair = 'most frequent' | 'newest').",
    )


def _contributions(
    split: OnlineSplit, target: StoredSplit, value: Row, position: int, read: Callable[[], AbstractContextManager[View]]
) -> Iterator[Contribution]:
    """The rows of the source with this split value at the position, found by R's index."""
    shape, prefix = split.targets.shape, rowset_prefix(split.source.table.rowset)
    found = target.source_keys(value)
    while keys := list(islice(found, _BATCH_ROWS)):
        with read() as view:
            for key in keys:
                stored = read_row(view, prefix + key, position)
                assert stored is not None, "a row of R that the source has not"
                row = split.source.row(stored, view)
                if shape.value(row) == value:
                    timestamp = ROW_HEADER.unpack_from(stored)[0]
                    yield Contribution(split.source.key(row), shape.s_part(row), timestamp)
