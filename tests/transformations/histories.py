"""Sources with their whole history, the log of it, and what a read without locks finds of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from instar.transformations.commits import Rules, apply_commit, joining
from instar.transformations.records import Change, Deleted, Inserted, Join, Part, Row, Source, Split, Updated
from transformations.model import JoinedTable, SplitTables

R, S, T = Source.R, Source.S, Source.T
Place = tuple[Source, Row]
# What a commit leaves of some rows; None: it is deleted.
Writes = Mapping[Place, Row | None]
Reads = Mapping[Place, int]

# R and S have columns key, join column, another one. T has key, a column of R, split column, two columns of S.
JOIN = Join(r_key=(0,), r_on=(1,), s_key=(0,), s_on=(1,), unique=True)
MANY = Join(r_key=(0,), r_on=(1,), s_key=(0,), s_on=(1,), unique=False)
SPLIT = Split(r=(0, 1, 2), s=(2, 3, 4), on=(2,))

ApplyCommit = Callable[[Rules, Sequence[Change]], None]
MakeRules = Callable[[JoinedTable, Join], Rules]


def row(source: Source, *values: object) -> dict[Place, Row | None]:
    """A write: the row with these values, of which the first is its key."""
    return {(source, values[:1]): values}


def gone(source: Source, key: object) -> dict[Place, Row | None]:
    """A write: no row with this key."""
    return {(source, (key,)): None}


class Sources:
    """All versions of all rows. Time is counted in commits; nothing is there at 0."""

    def __init__(self, *commits: Writes) -> None:
        self.log: list[list[Change]] = []
        self._versions: dict[Place, list[tuple[int, Row | None]]] = {}
        for writes in commits:
            self.commit(writes)

    @property
    def now(self) -> int:
        return len(self.log)

    def commit(self, writes: Writes) -> list[Change]:
        timestamp = self.now + 1
        changes = []
        for place, after in writes.items():
            versions = self._versions.setdefault(place, [(0, None)])
            change = _change(place, versions[-1][1], after, timestamp)
            if change is not None:
                changes.append(change)
                versions.append((timestamp, after))
        self.log.append(changes)
        return changes

    def part(self, place: Place, time: int) -> Part | None:
        timestamp, values = [version for version in self._versions[place] if version[0] <= time][-1]
        return None if values is None else Part(values, timestamp)

    def places(self) -> list[Place]:
        return list(self._versions)

    def read(self, source: Source, time: int, reads: Reads | None = None) -> dict[Row, Part]:
        """The source as of a time, but for the rows that were read at another."""
        found = {}
        for place in self._versions:
            part = self.part(place, time if reads is None else reads.get(place, time))
            if part is not None and place[0] is source:
                found[place[1]] = part
        return found

    def all_reads(self, start: int) -> Iterator[Reads]:
        """Every way in which a read without locks that began at `start` can find the rows."""
        times = [
            [max(start, timestamp) for timestamp, _ in self._versions_since(place, start)] for place in self._versions
        ]
        for chosen in itertools.product(*times):
            yield dict(zip(self._versions, chosen, strict=True))

    def _versions_since(self, place: Place, start: int) -> list[tuple[int, Row | None]]:
        versions = self._versions[place]
        first = max(number for number, version in enumerate(versions) if version[0] <= start)
        return versions[first:]

    def reflected(self, tables: SplitTables) -> dict[Row, Part]:
        """The rows of T in the states that R and S reflect, as R's timestamps tell."""
        found = {}
        for key, record in tables.r_records.items():
            part = self.part((T, key), record.timestamp)
            assert part is not None
            found[key] = part
        return found


def _change(place: Place, before: Row | None, after: Row | None, timestamp: int) -> Change | None:
    source, key = place
    if before is None:
        return None if after is None else Inserted(source, key, after, timestamp)
    return Deleted(source, key, before, timestamp) if after is None else Updated(source, key, before, after, timestamp)


def propagated(
    sources: Sources,
    join: Join,
    start: int,
    reads: Reads | None = None,
    *,
    rules: MakeRules = joining,
    apply: ApplyCommit = apply_commit,
    check: Callable[[JoinedTable], None] | None = None,
) -> JoinedTable:
    """T of an image that was read from `start` on, after the whole log since then."""
    table = JoinedTable.image(join, sources.read(R, start, reads), sources.read(S, start, reads))
    made = rules(table, join)
    for changes in sources.log[start:]:
        apply(made, changes)
        if check is not None:
            check(table)
    return table


def damaged(run: Callable[[], object]) -> bool:
    """Whether this ends in a failed comparison, or in an assertion of the rules or the tables."""
    try:
        run()
    except (AssertionError, KeyError):
        return True
    return False


def as_if_newer(rules: Rules, changes: Sequence[Change]) -> None:
    """What becomes of the rules without timestamps: every change is newer than all that an image has."""
    apply_commit(rules, [msgspec.structs.replace(change, timestamp=change.timestamp + 1_000) for change in changes])


def one_at_a_time(rules: Rules, changes: Iterable[Change]) -> None:
    """What the paper does: each record of the log by itself."""
    for change in changes:
        apply_commit(rules, [change])
