"""The image: the initial population of the targets of a join or split from one snapshot of their sources.

The snapshot and the key ranges of the targets are chosen once and on record before anything is read, so whoever goes on
after a crash, here or on Spark, makes the same rows of the same ranges: row ids too, which are counted in each range.
So all of it may be done again. Ranges are of groups (image_rows.py), and rows are put blindly: nobody else writes to
the targets. Their index entries follow, and then the log is propagated from exactly the snapshot on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from msgspec import structs

from instar import errors
from instar.catalog.descriptors import Index, Table
from instar.catalog.layouts import Layouts
from instar.schemachange.breath import FIRST_ROWS
from instar.schemachange.job_records import Checkpoint, decode_checkpoint
from instar.schemachange.jobs import Jobs
from instar.schemachange.loading import LoadedIndex
from instar.schemachange.online.image_groups import operator
from instar.schemachange.online.image_rows import Item, Pair
from instar.schemachange.online.redo import cut
from instar.schemachange.tasks import (
    AT_LEISURE,
    FIRST_NUMBER,
    RANGES_PER_WORK,
    RESTS_AT_LEISURE,
    Step,
    Task,
    planned,
    record,
)
from instar.schemachange.validate import CompileCheck
from instar.store.engine import Section, Store, prefix_end, rowset_prefix
from instar.store.versions import iterate_rows

# The number of the checkpoint that is the snapshot's.
_SNAPSHOT_NUMBER = 0
_SNAPSHOT_BYTES = 8
# T's row ids: above all that a sequence gives to rows that come later, and apart from those of other ranges.
_FIRST_ROW_ID = 1 << 62
_IDS_PER_RANGE = 1 << 36

# Rows of the sources read at a time, and rows of the targets put with one checkpoint.
READ_ROWS = 4_096
PUT_ROWS = 1_024
# Items that are sorted in memory at a time.
ITEMS_PER_RANGE = 100_000
MAX_RANGES = 512
# Of so many items, one is looked at to cut the groups into ranges.
_SAMPLED = 64


def image_snapshot(jobs: Jobs, job: int, stage: int, place: int) -> int | None:
    """The snapshot that the work `place` of a stage makes its image of, and from which the log is to be propagated;
    None as long as it is not chosen."""
    found = jobs.checkpoints(job, stage).get(place * RANGES_PER_WORK + _SNAPSHOT_NUMBER)
    return None if found is None else _snapshot(found)


class Image(Task):
    """The work of one job on the targets of a join (R, S; T), a split (its source; R, S) or a grouping: all tables
    as they stand behind the fence of the stage that created the targets."""

    rests = RESTS_AT_LEISURE

    def __init__(
        self,
        store: Store,
        sources: Sequence[Table],
        targets: Sequence[Table],
        *,
        job: int,
        stage: int,
        claim: tuple[bytes, bytes],
        rows: int,
        place: int = 0,
        compile_check: CompileCheck,
    ) -> None:
        super().__init__(store, sources[0], job=job, stage=stage, claim=claim, rows=rows, place=place)
        self.urgency = AT_LEISURE
        self.doing = "new rows are made and put"
        self.sources, self.targets = tuple(sources), tuple(targets)
        self.compile_check = compile_check
        self.operator = operator(Layouts(store), sources, targets, compile_check)

    # --- the plan ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> int:
        """The snapshot, which is chosen and recorded by whoever asks first."""
        with self.store.read() as reader:
            stored = reader.get(self.checkpoint_key(_SNAPSHOT_NUMBER))
            newest = reader.timestamp
        if stored is not None:
            return _snapshot(decode_checkpoint(stored))
        # Its bounds hold no rows, it is no range.
        chosen = Checkpoint(b"", b"", newest.to_bytes(_SNAPSHOT_BYTES, "big"), 0, True)
        self.store.background([self.checkpoint(_SNAPSHOT_NUMBER, chosen)], claim=self.claim)
        return newest

    def plan(self, sample: Iterable[bytes], ranges: int) -> list[Checkpoint]:
        """Cut the targets into ranges, about so many and about even by a sample of their groups, and record them."""
        groups, made = sorted(sample), []
        for prefix in self.operator.prefixes:
            bounds = [prefix, *self._cuts([group for group in groups if group.startswith(prefix)], len(groups), ranges)]
            made += [Checkpoint(start, stop, start, 0) for start, stop in pairwise([*bounds, prefix_end(prefix)])]
        record(self, made)
        return made

    @staticmethod
    def _cuts(groups: Sequence[bytes], sampled: int, ranges: int) -> list[bytes]:
        """Where one target's part of all that was sampled, its groups in order, is cut. Not at the first of them: of a
        range of nothing nobody learns how many rows the others have."""
        wanted = round(min(ranges, MAX_RANGES) * len(groups) / sampled) if sampled else 0
        return sorted({groups[len(groups) * part // wanted] for part in range(1, wanted)} - {*groups[:1]})

    def ranges(self, pulse: Callable[[], None]) -> Iterator[tuple[int, Checkpoint]]:
        """As in `Task`."""
        self.snapshot()
        found = planned(self)
        if not found:
            items = self.rows * len(self.operator.prefixes)
            found = self.plan(self._sample(pulse) if items > ITEMS_PER_RANGE else (), items // ITEMS_PER_RANGE + 1)
        return ((number, at) for number, at in enumerate(found, FIRST_NUMBER) if not at.done)

    def _sample(self, pulse: Callable[[], None]) -> Iterator[bytes]:
        """Groups from all over the sources."""
        for place in range(len(self.sources)):
            for _, items in self.items(place, *self.whole(place)):
                self.rest(read=True)
                pulse()
                yield from (item.group for item in items[::_SAMPLED])

    def passed(self, ranges: Sequence[Checkpoint]) -> tuple[int, float]:
        """As in `Task`. How far a range is cannot be seen by the keys in it, which are those that were put. Those of
        one target are about even; two targets may have very different numbers of rows."""
        rows = sum(found.rows for found in ranges)
        wanted = sum(
            self._about([found for found in ranges if found.start.startswith(prefix)])
            for prefix in self.operator.prefixes
        )
        return rows, rows / wanted if wanted else 0.0

    def _about(self, ranges: Sequence[Checkpoint]) -> int:
        """How many rows a target will have, by its ranges that are done; before any is, as many as are to be read."""
        done = [found.rows for found in ranges if found.done]
        return max(sum(done) * len(ranges) // len(done) if done else self.rows, sum(found.rows for found in ranges))

    # --- reading -----------------------------------------------------------------------------------------------------

    def whole(self, place: int) -> tuple[bytes, bytes]:
        """Between which store keys the rows of a source lie."""
        prefix = rowset_prefix(self.sources[place].rowset)
        return prefix, prefix_end(prefix)

    def items(
        self, place: int, start: bytes, stop: bytes, at_once: int | None = None
    ) -> Iterator[tuple[int, list[Item]]]:
        """How many rows of a source in [start, stop) the snapshot sees, and their items, by the batch. 72000 if the log
        does not have them any more."""
        snapshot, most = self.snapshot(), READ_ROWS if at_once is None else at_once

        def batch() -> int:
            # Here, since none of the rows that were read may have been seen. What is only read has no rate to keep to.
            self.rest()
            if self.pace is not None:
                self.pace.interrupt()
            return most if self.breath is None else self.breath.piece(most)

        try:
            for keys, stored in iterate_rows(self.store, start, stop, snapshot, batch):
                yield len(keys), self.operator.items(place, keys, stored)
        except errors.Error as failed:
            if failed.sqlstate != errors.SNAPSHOT_TOO_OLD:
                raise
            name = self.sources[place].name
            raise errors.error(
                errors.SNAPSHOT_TOO_OLD,
                f'the log no longer has the rows of table "{name}" as they were when the change began to copy them',
                detail=failed.message,
                hint="Begin it again. A store made with a longer retention, or a larger log_max_bytes, keeps more.",
            ) from failed

    def batches(self, at: Checkpoint) -> Iterator[tuple[Iterable[Step], Checkpoint]]:
        """As in `Task`: a range's items are sorted in memory. Batches of nothing tell that it reads still."""
        if at.done:
            return
        number = next(number for number, found in enumerate(planned(self), FIRST_NUMBER) if found.start == at.start)
        own: list[Item] = []
        for place in range(len(self.sources)):
            for _, items in self.items(place, *self.operator.bounds(place, at.start, at.stop)):
                own += [item for item in items if at.start <= item.group < at.stop]
                yield (), at
        own.sort()
        for rows, reached in self.made(number, own, at):
            yield self.steps(rows), reached

    # --- writing -----------------------------------------------------------------------------------------------------

    def made(self, number: int, items: Iterable[Item], at: Checkpoint) -> Iterator[tuple[list[Pair], Checkpoint]]:
        """What is left to be put of range `number`, in batches with the checkpoints that hold then. `items`, in order,
        are all of the range: its rows are counted from the beginning, and those that were counted before are passed. A
        batch ends, too, after so many items, of which one row may be made: it may be empty."""
        batch: list[Pair] = []
        rows, most, counted = 0, self.at_once(PUT_ROWS), _Counted(items)
        for group, row in self.operator.rows(counted, _FIRST_ROW_ID + number * _IDS_PER_RANGE):
            if len(batch) >= most or counted.count >= max(most, FIRST_ROWS):
                yield batch, Checkpoint(at.start, at.stop, group, rows) if rows > at.rows else at
                batch, most, counted.count = [], self.at_once(PUT_ROWS), 0
            rows += 1
            if rows > at.rows:
                batch.append(row)
        yield batch, Checkpoint(at.start, at.stop, at.stop, rows, True)

    def steps(self, rows: list[Pair]) -> Iterator[Step]:
        """Gated steps that put rows, whatever is there."""
        return map(self._step, cut(rows))

    def _step(self, chunk: list[Pair]) -> Step:
        def step(section: Section) -> None:
            if self.pace is not None:
                self.pace.rows += len(chunk)
            section.put_many(chunk)

        return step


class ImageEntries(LoadedIndex):
    """The work of one job on indexes of one target, whose rows are there. Each index is put in its own order, which is
    another than that of the rows: where both are put together, most entries are put into a page by themselves."""

    rests = RESTS_AT_LEISURE

    def __init__(
        self,
        store: Store,
        target: Table,
        indexes: Iterable[Index],
        *,
        job: int,
        stage: int,
        claim: tuple[bytes, bytes],
        rows: int,
        place: int,
    ) -> None:
        # What is unique in a target is so by what its rows are made of.
        unprobed = [structs.replace(index, unique=False) for index in indexes]
        super().__init__(store, target, unprobed, job=job, stage=stage, claim=claim, rows=rows, place=place)
        self.urgency = AT_LEISURE
        self.doing = "index entries of the new rows are put"


class _Counted(Iterator[Item]):
    """Items, and how many of them have been taken."""

    def __init__(self, items: Iterable[Item]) -> None:
        self.count = 0
        self._items = iter(items)

    def __next__(self) -> Item:
        self.count += 1
        return next(self._items)


def _snapshot(found: Checkpoint) -> int:
    return int.from_bytes(found.position, "big")
