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
from instar.schemachange.tasks import NAMED_ROWS
from instar.store.engine import ROW_HEADER, View, rowset_prefix
from instar.store.versions import read_row
from instar.tables.rowset import described
from instar.transformations import checker
from instar.transformations.checker import CheckBegun, Contribution
from instar.transformations.records import Flag, Row, SRecord

_REPAIRS: dict[Repair, checker.Repair] = {"most frequent": checker.most_frequent, "newest": checker.newest}
# So many of the images that contradict each other are told of a split value, in so many characters: jobs keep them.
_TOLD, _LONGEST = 5, 1000

_BATCH_ROWS = 512


class Contradictions:
    """The split values that were found with rows that contradict each other. All are counted, and some told, each with
    what its rows say, and what of that was taken."""

    def __init__(self, split: OnlineSplit) -> None:
        table, shape = split.source.table, split.targets.shape
        by_id = {column.id: column for column in table.columns}
        self._table, self._repair = table, split.made.repair
        self._columns = [table.columns[place] for place in shape.s]
        self._on = [table.columns[place] for place in shape.on]
        self._key = [by_id[column] for column in table.primary_key]
        self._found: dict[Row, str | None] = {}
        self._named = 0  # those that can be told

    def put(self, value: Row, contributions: Sequence[Contribution], taken: Row | None) -> None:
        """The rows of a value contradict each other; None is taken if the change is to fail of it."""
        self.remove(value)
        self._found[value] = self._told(contributions, taken) if self._named < NAMED_ROWS else None
        self._named += self._found[value] is not None

    def begin(self) -> None:
        """All that is in doubt is checked once more. What is repaired is so no longer."""
        if self._repair == "fail":
            self._found.clear()
            self._named = 0

    def remove(self, value: Row) -> None:
        """The rows of a value agree."""
        self._named -= self._found.pop(value, None) is not None

    def require_repaired(self) -> None:
        """23505 if there are any and they are not to be repaired."""
        if self._found and self._repair == "fail":
            raise errors.error(
                errors.UNIQUE_VIOLATION,
                f"{self._rows()}, by which it is split, contradict each other",
                detail=self._listed(),
                hint="Have them agree, or say what is to be taken: WITH (repair = 'most frequent' | 'newest').",
            )

    def told(self) -> str:
        """What was repaired, in words; empty if there was nothing."""
        if not self._found:
            return ""
        return f"{self._rows()} contradicted each other, and the {self._repair} were taken: {self._listed()}"

    def _rows(self) -> str:
        names = ", ".join(column.name for column in self._on)
        values = f"each of {len(self._found):,} values of ({names})"
        if len(self._found) == 1:
            values = described(self._on, next(iter(self._found)))
        return f'rows of table "{self._table.name}" with {values}'

    def _listed(self) -> str:
        lines = [f"{line}." for line in self._found.values() if line is not None]
        if more := len(self._found) - len(lines):
            lines.append(f"And {more:,} more.")
        return " ".join(lines)

    def _told(self, contributions: Sequence[Contribution], taken: Row | None) -> str:
        """What contradicts, as users write it, and an example of who says so."""
        said = checker.opinions(contributions)
        said.sort(key=lambda opinion: opinion[0] != taken)
        told = [
            f"{described(self._columns, values)} in {len(rows)} row{'' if len(rows) == 1 else 's'}, such as "
            f"{described(self._key, rows[0].key)}{', is taken' if values == taken else ''}"
            for values, rows in said[:_TOLD]
        ]
        more = "" if len(said) <= _TOLD else f"; and {len(said) - _TOLD} more"
        line = f"{'; '.join(told)}{more}"
        return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def check_all(
    split: OnlineSplit,
    target: StoredSplit,
    position: int,
    read: Callable[[], AbstractContextManager[View]],
    found: Contradictions,
) -> Iterator[None]:
    """Have the records of S that are in doubt be what the rows of the source say at `position`, which the target
    reflects; `read` opens views that have them. Stops after each. 23505 if there are contradictions and no repair."""
    found.begin()
    for value in sorted(target.doubtful, key=repr):
        _check(split, target, value, list(_contributions(split, target, value, position, read)), position, found)
        yield
    found.require_repaired()


def _check(
    split: OnlineSplit,
    target: StoredSplit,
    value: Row,
    contributions: Sequence[Contribution],
    position: int,
    found: Contradictions,
) -> None:
    agreed = len(checker.opinions(contributions)) == 1
    repair = _REPAIRS.get(split.made.repair)
    if not agreed and repair is None:
        found.put(value, contributions, None)
        return
    passed = checker.conclude(CheckBegun(value, position), contributions, repair or checker.newest)
    old = target.s(value)
    assert old is not None, "doubts about a record that is not there"
    assert passed is not None, "a record of S that no row contributes to"
    if agreed:
        found.remove(value)
        holds = checker.pass_check(target, passed)
        assert holds, "a record of S that is newer than all commits"
    else:
        found.put(value, contributions, passed.image)
        target.put_s(value, SRecord(passed.image, old.counter, old.timestamp, Flag.UNKNOWN))
        target.doubtful.discard(value)


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
