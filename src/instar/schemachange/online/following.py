"""Log propagation: the targets of a join or split follow the log of their sources, from exactly where their image was
read.

The work's position is the timestamp of a commit: that commit and all before it are applied, and none after it. It is
recorded together with what the commit puts, so that the work goes on exactly there after a crash. What a commit puts is
computed outside the atomic section: nobody else writes to the targets, so what has been read of them stays as it is. A
step puts blindly. What many commits put is gathered, as far as it is there, and put in the order of its keys: many
rows of one page come together. That, and a large commit, is too much for a step, and takes the way of redo.py.

Log is propagated in *cycles*: up to what was the newest commit when the cycle began. While that took place, more has
come; after each cycle it is judged whether what is left is little enough for the commit of the switch (tail.py), else
another cycle follows. For a split, doubtful records of S are checked at the end of a cycle (checks.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from time import monotonic

from instar.schemachange.breath import MOST_RESTS
from instar.schemachange.job_records import Checkpoint, Job, encode_checkpoint
from instar.schemachange.jobs import Jobs
from instar.schemachange.online.checks import Contradictions, check_all
from instar.schemachange.online.image import image_snapshot
from instar.schemachange.online.overlay import Overlay, Put, ShortReads
from instar.schemachange.online.redo import Redo, is_step, putting
from instar.schemachange.online.split_target import StoredSplit
from instar.schemachange.online.transformation import OnlineSplit, Propagator, Transformation
from instar.schemachange.states import Work
from instar.schemachange.tasks import AT_LEISURE, IN_BACKGROUND, RANGES_PER_WORK, RESTS_AT_LEISURE, Step, Task
from instar.store.engine import LogRecord, Section, Store

# Checks are handed over when so much time has passed, or so many puts are computed. It is told every so often how far
# the work is.
_BATCH_SECONDS = 0.25
_BATCH_PUTS = 4_096
# So many puts are gathered at the most. To put a row by itself takes the section four times as long as to put one of
# many in a page: LMDB copies the page. 20,000 rows of an R have some hundred pages. Of a million, which have 30,000,
# more would be of use; but what is gathered is lost where the work is interrupted, and keeps to no rate.
_GATHERED_PUTS = 16_384
# Nor more bytes, or, of rows that are put again and again, changes than that: all of it is in memory, and to be done
# again after a kill.
_GATHERED_BYTES = 8 << 20
# Commits with so many changes, or rows that they come to, are applied at once; then it is seen whether it is time to
# rest.
_BREATHING_ROWS = 256
# Rests from checks are so many times as long as other work's, as there may be many of them.
_CHECK_RESTS = 5.0
# So many steps are run between two pulses: those of a large commit may be more.
_BATCH_STEPS = 256
# Records of S that are looked at between two pulses.
_LOOKED_AT = 50_000
# So many records of S are checked for one step, and so many of these steps are run between two pulses: a check begins
# with a read of its own, and each rest, and each look at how commits fare, costs as much as some checks.
_CHECKED_TOGETHER, _CHECKED = 16, 16
# More than so many are checked with rests. Fewer are what came into doubt while the cycle went on, and the log grows
# meanwhile.
_CHECKED_AT_ONCE = 512
# Records of the log that are read between two pulses.
_LOG_RECORDS = 10_000
# If a cycle takes more than this share of the time in which its changes were written, pauses get shorter, as far as
# this: the sources would never be caught up with.
_FALLING_BEHIND, _MOST_URGENCY = 0.7, 16.0
# It need not take so long: by how far it has come in some seconds it is seen that it will take many times as long. That
# is a guess, as what was written all at once takes longer than its time tells; so by that pauses get no shorter than
# other work's.
_FAR_BEHIND, _TELLING_PROGRESS = 3.0, 5.0
# What was written in less than this says nothing about who is faster. Where so many cycles of that kind have left too
# much for the switch, pauses are what they leave it for.
_TELLING_SECONDS, _SHORT_CYCLES = 1.0, 8

_MILLISECOND = 20  # timestamps: milliseconds above a counter of so many bits

Batch = tuple[list[Step], Checkpoint]


def encode_position(timestamp: int) -> bytes:
    """A position as checkpoints have it."""
    return timestamp.to_bytes(8, "big")


def decode_position(checkpoint: Checkpoint) -> int:
    """Up to where the log is applied: what comes after is needed still, and not to be cut."""
    return int.from_bytes(checkpoint.position, "big")


def followed_since(jobs: Jobs, job: Job) -> int | None:
    """From where the log is followed by the job's stage: from the image's snapshot, where the stage makes one, else
    from where the stage before has left it. None if that is not known yet, or nothing is followed."""
    works = [work.work for work in job.stages[job.stage - 1].work]
    if Work.FOLLOW not in works:
        return None
    if Work.IMAGE in works:
        return image_snapshot(jobs, job.id, job.stage, works.index(Work.IMAGE))
    before = [work.work for work in job.stages[job.stage - 2].work]
    at = jobs.checkpoints(job.id, job.stage - 1).get(before.index(Work.FOLLOW) * RANGES_PER_WORK)
    return None if at is None else decode_position(at)


class Following(Task):
    """Propagation of the log from timestamp `since` on, or from its recorded position. Its `batches` end, never "done",
    when the rest is for the switch; to run it again is to catch up once more. Its rows are changes applied."""

    gathers = True

    def __init__(
        self,
        store: Store,
        transformation: Transformation,
        *,
        job: int,
        stage: int,
        claim: tuple[bytes, bytes],
        since: int,
        place: int = 0,
    ) -> None:
        table = transformation.sources[0].table
        super().__init__(store, table, job=job, stage=stage, claim=claim, rows=0, place=place)
        self.start = self.stop = encode_position(since)  # no key range, of which a share could be told
        self.transformation = transformation
        self.at = Checkpoint(self.start, self.stop, self.start, 0)
        self.propagator = Propagator(transformation)
        self._reads = ShortReads(store)
        self._redo = Redo(self)
        self._cycle = _Cycle(0, since, since)
        self.urgency = AT_LEISURE
        self.contradictions: Contradictions | None = None  # of a split
        self.analysis = ""  # what came of the last cycle, and what follows of that
        self._short_cycles = 0  # one after the other, since pauses were made shorter
        self._applies = False  # commits, just now
        self._is_outpaced = False  # and would have been made shorter for that, at another priority
        self._begin()

    def _begin(self) -> None:
        """Know nothing but what is stored."""
        self._overlay = Overlay(self._reads)
        self.target = self.transformation.target(self._overlay)
        self._knows_doubtful = False
        split = self.transformation
        self.contradictions = Contradictions(split) if isinstance(split, OnlineSplit) else None
        self._changes = 0  # applied, with this target

    def rest(self, *, read: bool = False) -> None:
        """Not between steps, which are made before: it rests where it computes."""

    def go_on(self, stage: int, place: int) -> None:
        """What follows is the work of a later stage, which begins where this one has ended."""
        self.stage, self.place = stage, place
        self.start = self.stop = encode_position(self.position)

    @property
    def position(self) -> int:
        """Up to where the log is applied."""
        return decode_position(self.at)

    @property
    def fan_out(self) -> float:
        """How many rows of the targets a change has come to, as far as is known."""
        return max(1.0, self.target.rows / self._changes) if self._changes else 1.0

    def passed(self, ranges: Sequence[Checkpoint]) -> tuple[int, float]:
        """As in `Task`: how much of the time since the image was read is caught up with."""
        since, position = int.from_bytes(self.start, "big"), self.position
        with self.store.read() as reader:
            now = reader.timestamp
        return self.at.rows, (position - since) / max(now - since, 1)

    def batches(self, at: Checkpoint) -> Iterator[tuple[Iterable[Step], Checkpoint]]:
        """As in `Task`, in the order of commits. Superseded if a source gets other rows altogether; 72000 if the log
        has been cut; 23505 if rows contradict each other and are not to be repaired."""
        self.at = at
        if not self._overlay.is_settled:  # what was computed has not been stored
            self._begin()
        before = at
        try:
            for steps, reached in self._work():
                self._reads.close()
                for first in range(0, len(steps) - _BATCH_STEPS, _BATCH_STEPS):
                    yield steps[first : first + _BATCH_STEPS], before
                yield steps[(len(steps) - 1) // _BATCH_STEPS * _BATCH_STEPS :] if steps else [], reached
                self._overlay.settled()
                before = reached
        finally:
            self._reads.close()

    def ranges(self, pulse: Callable[[], None]) -> Iterator[tuple[int, Checkpoint]]:
        """As in `Task`. What a large commit puts may take long to compute: the pulse is felt there, too."""
        self._reads.between = pulse
        return super().ranges(pulse)

    def _work(self) -> Iterator[Batch]:
        yield from self._resumed()
        if isinstance(self.target, StoredSplit) and not self._knows_doubtful:
            yield from self._doubtful(self.target)
        while True:
            newest = self._newest()
            self._cycle = _Cycle(self._cycle.number + 1, self.position, newest, before=self._cycle)
            self.doing = f"cycle {self._cycle.number}: reading the log"
            yield from self._propagated(newest)
            self._tell()
            if self._cycle.number == 1:
                self._cycle.end()  # what is checked now may have come into doubt long before
            if isinstance(self.target, StoredSplit):
                yield from self._checked(self.target)
                self._tell(checking=True)
            self._cycle.end()
            left = self.rows_left()
            if left <= self.transformation.made.pause_rows:
                # Pauses stay as short as they had to be: the switch may be refused, and the log is not to get longer.
                self._short_cycles, self._is_outpaced = 0, False
                self._decide(left, "synchronization")
                return
            self._short_cycles = self._short_cycles + 1 if self._cycle.is_short else 0
            self._decide(left, f"another cycle{self._pauses()}")

    def _hurry(self, *, checking: bool = False) -> None:
        """Make pauses half as long if the cycle takes too long, or cycles that take no time leave too much, and pauses
        are what they do so for. What is checked may have come into doubt all at once, and takes long once: so that is
        too long only where the cycle before was late, too. At a priority below 0 they are as long as in the
        background."""
        late = self._cycle.is_late(self.position if self.urgency < 1.0 else None) and (
            self._cycle.follows_late or not checking
        )
        pace = self.pace
        late = (late or self._short_cycles >= _SHORT_CYCLES) and not (pace is not None and pace.is_limited)
        if late:
            self._short_cycles = 0
        self._keep_pauses()
        if pace is not None and pace.yields:
            self._is_outpaced |= late
            return
        self._is_outpaced = False
        if late:
            self.urgency = min(self.urgency * 2, _MOST_URGENCY)
            if pace is not None:
                pace.urgency = self.urgency

    def heed(self) -> None:
        """As in `Task`: in the middle of what is put, too, pauses are at once what the priority makes them, and it is
        told how much has come meanwhile."""
        self._keep_pauses()
        if self._applies and self._cycle.commits:
            self._say()

    def _keep_pauses(self) -> None:
        pace = self.pace
        if pace is None:
            return
        urgency = IN_BACKGROUND if pace.yields else max(self.urgency, AT_LEISURE)
        if urgency != self.urgency:
            self.urgency = pace.urgency = urgency

    def _resumed(self) -> Iterator[Batch]:
        """What a crash has left of a large commit."""
        steps, reached = self._redo.resumed(self._reads)
        made = list(steps)
        if reached is not None:
            self.at = reached
        if made:
            yield made, self.at

    def _newest(self) -> int:
        with self.store.read() as reader:
            return reader.timestamp

    def _log(self, upto: int) -> Iterator[LogRecord]:
        """The log of the sources from the position on. Most of the log may be of other tables."""
        read = 0

        def between(records: int) -> None:
            nonlocal read
            read += records
            if read >= _LOG_RECORDS:
                read = 0
                self._reads.close()
                self._reads.between()

        return self.store.log(self.position, upto, self.propagator.tables, between)

    # --- a cycle -----------------------------------------------------------------------------------------------------

    def _propagated(self, upto: int) -> Iterator[Batch]:
        """Apply all commits after the position up to a timestamp."""
        self._applies = True
        try:
            yield from self._applied(upto)
        finally:
            self._applies = False

    def _applied(self, upto: int) -> Iterator[Batch]:
        waiting = computed = 0  # changes that are not put yet; changes, or rows, since it was time to rest last
        until = monotonic() + _BATCH_SECONDS
        written = self.target.rows
        log, together = self._log(upto), min(_BREATHING_ROWS, self.together(_GATHERED_PUTS))
        for timestamp, commits, changes in self.propagator.apply(self.target, log, self._reads, together):
            self._changes += changes
            self._cycle.commits += commits
            self._cycle.changes += changes
            self.at = self._reached(timestamp, changes)
            waiting += changes
            computed += max(changes, self.target.rows - written)
            written = self.target.rows
            if computed >= _BREATHING_ROWS:
                computed = 0
                self._breathe()
                if monotonic() >= until:
                    until = monotonic() + _BATCH_SECONDS
                    self._tell()
            if self._is_enough(waiting):
                yield self._gathered(waiting), self.at
                waiting = 0
        steps = self._gathered(waiting)
        self.at = self._reached(max(upto, self.position), 0)
        yield steps, self.at

    def _is_enough(self, changes: int) -> bool:
        """Whether what so many changes have come to is to be put before more is applied."""
        overlay = self._overlay
        return max(changes, overlay.waiting) >= self.together(_GATHERED_PUTS) or (
            overlay.waiting_bytes >= _GATHERED_BYTES
        )

    def _breathe(self, times: float = RESTS_AT_LEISURE) -> None:
        """Rest from what was computed, `times` as long as others do: longer where a latency target is missed, and as
        much shorter as the pauses of who hurries are."""
        self._reads.close()
        self._reads.between()
        if self.breath is not None:
            pace = self.pace
            held_back = 1.0 if pace is None or pace.latency_target_ns is None else pace.factor
            longer = AT_LEISURE / self.urgency
            self.breath.draw(times * held_back * longer, most=MOST_RESTS * max(longer, 1.0))

    def _gathered(self, changes: int) -> list[Step]:
        """Steps that put what so many changes have come to, which end where the work is at."""
        puts = self._overlay.taken()
        if not is_step(puts):
            return list(self._redo.steps(puts, self.at))
        return [self._step(puts, changes)] if changes else []

    def _reached(self, timestamp: int, changes: int) -> Checkpoint:
        return Checkpoint(self.start, self.stop, encode_position(timestamp), self.at.rows + changes)

    def _step(self, puts: list[Put], changes: int) -> Step:
        """What some commits put, and that they are applied."""
        put_all = putting([*puts, (self.checkpoint_key(0), encode_checkpoint(self.at))])

        def step(section: Section) -> None:
            if self.pace is not None:
                self.pace.rows += changes
            put_all(section)

        return step

    # --- the checker -------------------------------------------------------------------------------------------------

    def _doubtful(self, target: StoredSplit) -> Iterator[Batch]:
        """Learn which records of S are U; what is put later tells itself."""
        self.doing = "looking for rows that may contradict each other"
        found = target.find_doubtful()
        while sum(1 for _ in islice(found, _LOOKED_AT)):
            yield [], self.at
        self._knows_doubtful = True

    def _checked(self, target: StoredSplit) -> Iterator[Batch]:
        """Check all records of S that are in doubt."""
        split, found = self.transformation, self.contradictions
        assert isinstance(split, OnlineSplit)
        assert found is not None
        batch, many = _Batch(), len(target.doubtful) > _CHECKED_AT_ONCE
        checks = check_all(split, target, self.position, lambda: self.store.read_at(self.position), found)
        while sum(1 for _ in islice(checks, _CHECKED_TOGETHER)):
            if many:
                self._breathe(_CHECK_RESTS)
            self.doing = f"cycle {self._cycle.number}: checking {len(target.doubtful):,} rows for contradictions"
            puts = self._overlay.taken()
            batch.steps.append(putting(puts))
            batch.puts += len(puts)
            if len(batch.steps) >= _CHECKED or batch.is_full:
                self._hurry(checking=True)
                yield batch.steps, self.at
                batch = _Batch()
        if batch.steps:
            yield batch.steps, self.at

    # --- analysis ----------------------------------------------------------------------------------------------------

    def rows_left(self) -> float:
        """About how many rows of the targets are to be written for what is in the log by now; counted no further than
        the switch may write."""
        left = 0
        for _ in self._log(self._newest()):
            left += 1
            if left * self.fan_out > self.transformation.made.pause_rows:
                break
        return left * self.fan_out

    def _tell(self, *, checking: bool = False) -> None:
        self._hurry(checking=checking)
        self._say()

    def _say(self) -> None:
        limit = None if self.pace is None else self.pace.rows_per_second
        self.doing = self._cycle.told(self.position, self._newest(), limit) + self._pauses("; pauses are")

    def _decide(self, left: float, follows: str) -> None:
        """Keep what came of the cycle that has ended, and what follows."""
        most = self.transformation.made.pause_rows
        rows = f"about {left:,.0f}" if left <= most else "more"
        self.analysis = f"{self._cycle.ended()}; the switch may write {most:,} target rows, {rows} were left: {follows}"

    def _pauses(self, says: str = ", with pauses") -> str:
        """How much shorter pauses are since the sources are not caught up with, or that they are not though they would
        be; empty if they are as ever."""
        if self._is_outpaced:
            return f"{says} not made shorter for that, as the priority is below 0"
        return f"{says} {self.urgency / AT_LEISURE:g} times shorter for that" if self.urgency > AT_LEISURE else ""


class _Batch:
    """Steps that are handed over together."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.puts = 0
        self._until = monotonic() + _BATCH_SECONDS

    @property
    def is_late(self) -> bool:
        return monotonic() >= self._until

    @property
    def is_full(self) -> bool:
        return self.puts >= _BATCH_PUTS or self.is_late


class _Cycle:
    """How a cycle goes, which applies what was written from timestamp `start` to `upto`. Its time to the time in which
    that was written is how fast the sources write to how fast their changes are applied.

    What it applies was written since the cycle before began; that is told by this process' own clock. Of the first one
    only timestamps tell, which go by a clock that may be set.
    """

    def __init__(self, number: int, start: int, upto: int, before: _Cycle | None = None) -> None:
        self.number = number
        self.commits = 0
        self.changes = 0
        self.ratio = 0.0
        self.written = 0.0  # changes of the sources in a second
        self.seconds = 0.0
        self._is_over = False
        self._start, self._upto = start, upto
        self._began = monotonic()
        self._looked = self._began, start  # when it became late last, and where it was
        if before is not None and before.number:
            self._written_in = self._began - before._began
        else:
            self._written_in = (upto - start >> _MILLISECOND) / 1e3
        self._late = _FALLING_BEHIND * self._written_in
        self.was_late = False
        self.follows_late = before is not None and before.was_late
        self._before = (0.0, 0.0) if before is None else (before.ratio, before.written)

    @property
    def is_short(self) -> bool:
        """Whether what it applies was written in too little time to say who is faster."""
        return self._written_in < _TELLING_SECONDS

    def is_late(self, position: int | None) -> bool:
        """Whether it has taken too long, and then whether it has taken twice as long as when that was said; or, where a
        position is given, whether it would take far too long if it went on as it has since it began, or since that was
        said last."""
        now = monotonic()
        passed = now - self._began
        if self._is_over or self.is_short or (passed < self._late and not self._is_far_behind(position, now)):
            return False
        self._late = max(self._late, 2 * passed)
        if position is not None:
            self._looked = now, position
        self.was_late = True
        return True

    def _is_far_behind(self, position: int | None, now: float) -> bool:
        if position is None:
            return False
        since, start = self._looked
        took, done = now - since, position - start
        if took < _TELLING_PROGRESS or position >= self._upto:
            return False
        return took * (self._upto - self._start) > _FAR_BEHIND * self._written_in * done

    def end(self) -> None:
        """The cycle has come to its end; the first time that this is said."""
        if self._is_over:
            return
        self._is_over = True
        self.seconds = monotonic() - self._began
        if not self.is_short:
            self.ratio = self.seconds / self._written_in
            self.written = self.changes / self._written_in

    def ended(self) -> str:
        """What it came to, in words."""
        told = (
            f"cycle {self.number}: {self.changes:,} changes in {self.commits:,} commits applied in {self.seconds:.2f} s"
        )
        return told + (f", {self.ratio:.1f} times as long as the sources took" if self.ratio >= 0.05 else "")

    def told(self, position: int, newest: int, limit: float | None = None) -> str:
        """What the work is at, in words, where an operator allows `limit` rows a second. What is behind is guessed from
        how dense commits have been so far."""
        done, left = (end - start >> _MILLISECOND for start, end in ((self._start, position), (position, newest)))
        told = f"cycle {self.number}: {self.commits:,} commits applied"
        if done > 0:
            told += f", about {self.commits * left // done:,} behind"
        ratio, needed = self._sources(position)
        if ratio >= 1:
            told += f"; the sources are written {ratio:.1f} times as fast as their changes are applied"
            if limit is not None and limit <= needed:
                told += f", for which max_rows_per_second has to be more than {needed:,.0f}"
        return told

    def _sources(self, position: int) -> tuple[float, float]:
        """How many times as fast as their changes are applied the sources are written, and changes in a second: by what
        this cycle has come to, once that tells something, else by the cycle before."""
        applying = self.seconds if self._is_over else monotonic() - self._began
        written = self._written_in * (position - self._start) / max(self._upto - self._start, 1)
        if applying < _TELLING_PROGRESS or written < _TELLING_SECONDS:
            return self._before
        return applying / written, self.changes / written
