"""The pulse of whoever works on a job: between two batches it renews the lease, heeds the job's record, says how far
the work is, and has a little of something else done that is not to wait for the end of the job.

What an operator asks for (PAUSE, CANCEL, another rate or priority) stands in the job's record, which is looked at five
times a second: so it takes effect in a process that nobody can reach otherwise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

from instar import errors
from instar.clock import Clock
from instar.schemachange.job_records import Checkpoint, Job, JobState
from instar.schemachange.jobs import Held, Jobs
from instar.schemachange.progress import Status, encode_status, share_of_work, status_key, working_share
from instar.schemachange.stages import passes
from instar.schemachange.tasks import RANGES_PER_WORK
from instar.store.engine import Section, Store
from instar.store.pace import Pace

# How often the job's record is looked at, and how often its status is written.
LOOK_NS = 200_000_000
TELL_NS = 500_000_000
# How much of a rate is that of the last half second.
_NEWEST, _NEWEST_SECONDS = 0.3, 0.5
# A rate that another process has told of is believed for so long.
_BELIEVED_SECONDS = 5
# What has not grown for so many times as long as its last step took, and for so many seconds, does not grow.
_GONE, _GONE_SECONDS = 4, 10.0
# From this share of the keys on, what is done tells how many rows there are.
_TELLING = 0.02


class Interrupted(Exception):
    """The job's record asks for something else than going on, or the process is to stop."""


class Doing(Protocol):
    """What a task says of itself: about how many rows it has to do, where its checkpoints are, how many rows it has
    read, where reading them all comes before writing any, and in words what it is at."""

    rows: int
    place: int
    rows_read: int | None
    doing: str

    @property
    def rows_to_read(self) -> int:
        """About how many rows there are to be read."""
        ...

    def heed(self) -> None:
        """What an operator has set may have changed: its pace has it."""
        ...

    def passed(self, ranges: Sequence[Checkpoint]) -> tuple[int, float]:
        """(rows, share): what is done of its key ranges, and about which share of its rows that is."""
        ...


class _Rate:
    """How fast something grows, a second, that comes in steps: rows are on record when a batch of them is, which may
    take longer than until somebody looks again. It does not fall before a step as large as the last one is overdue, and
    is nothing when that is overdue for long: what loses ground, or waits, will not have ended at any time."""

    def __init__(self, known: float) -> None:
        self._rate = known
        self._step = known * _BELIEVED_SECONDS
        self._since = 0  # ns; 0: nobody has asked yet

    def grown(self, change: float, now: int) -> float:
        """The rate at `now` (ns), when there is so much more than there was when it was last asked for."""
        if not self._since:
            self._since = now
        seconds = (now - self._since) / 1e9
        if not seconds or (change <= 0 and not self._step):
            return self._rate
        if change <= 0:
            falling = self._step / seconds
            is_gone = seconds > _GONE_SECONDS and _GONE * falling < self._rate
            return 0.0 if is_gone else min(self._rate, falling)
        newest = change / seconds
        weight = 1 - (1 - _NEWEST) ** (seconds / _NEWEST_SECONDS)
        self._rate = newest if not self._rate else self._rate + weight * (newest - self._rate)
        self._step, self._since = change, now
        return self._rate


class Pulse:
    """Called between two batches, at least every second. `pace` is that of the job: batches of its work keep to it.

    `overtaken`: a job that should be worked on in place of this one, if there is one; `gives_way_to` is then its id.
    `judge` raises if the job has nothing to go on for. `beside`: does a little of what else the process is there for,
    if it is time to. Where that takes long, it calls what it is given as often as work on the job would call the pulse.
    """

    def __init__(
        self,
        store: Store,
        jobs: Jobs,
        clock: Clock,
        held: Held,
        *,
        stopping: Callable[[], bool] = lambda: False,
        overtaken: Callable[[Job], int | None] = lambda job: None,
        judge: Callable[[Job], None] = lambda job: None,
        beside: Callable[[Callable[[], None]], None] = lambda beat: None,
    ) -> None:
        self.pace = Pace(self)
        self.gives_way_to: int | None = None
        self._store = store
        self._jobs = jobs
        self._clock = clock
        self._held = held
        self._stopping = stopping
        self._overtaken = overtaken
        self._judge = judge
        self._beside = beside
        self._renewed = self._looked = clock.monotonic_ns()
        self._told = 0
        self._rows: int | None = None
        self._ratio = 1.0  # of the rows that there are, as far as is known by now, to those that were estimated
        self._status = Status(False, 0.0, 0.0, 0.0, "", False, 0)
        self._rates = _Rate(0.0), _Rate(0.0)  # of the share, of rows
        self._waits = ""
        self._task: Doing | None = None
        self._worked = False
        self._counted = 0
        self._job: Job | None = None

    def attend(self, job: Job, task: Doing | None = None, *, worked: bool = False) -> None:
        """From now on the work is that of the job's current stage, and of it `task`; `worked`: all of it is done, and
        what follows is awaited."""
        if self._job is None or (job.state is JobState.REVERTING) != self._status.reverting:
            found = self._jobs.progress(job)
            reverting = job.state is JobState.REVERTING
            self._status = known = found.status or Status(reverting, found.share, 0.0, 0.0, "", False, 0)
            self._rates = _Rate(known.share_per_second), _Rate(known.rows_per_second)
        self._job, self._task, self._rows, self._waits = job, task, None, ""
        self._worked = worked
        self._counted = 0  # rows of what has ended of the stage's work
        if task is not None and job.stage:
            checkpoints = self._jobs.checkpoints(job.id, job.stage).items()
            self._counted = sum(found.rows for number, found in checkpoints if number // RANGES_PER_WORK < task.place)
        self._heed(job)

    def wait(self, reason: str) -> None:
        """As a call, of a job that waits for what `reason` says; until `attend`, or `wait` for nothing ("")."""
        if reason != self._waits:
            self._waits = reason
            self._told = 0
        self()

    def __call__(self) -> None:
        self._beat()
        self._beside(self._beat_beside)

    def _beat_beside(self) -> None:
        """In the middle of what is done beside: whatever would end the job's work ends that. It comes up again when the
        work goes on, and is no failure of what was done beside."""
        try:
            self._beat()
        except Interrupted:
            raise
        except Exception as why:
            raise Interrupted from why

    def _beat(self) -> None:
        now = self._clock.monotonic_ns()
        if now - self._renewed > self._held.seconds * 1e9 / 3:
            self._jobs.renew(self._held)
            self._renewed = now
        if self._stopping():
            raise Interrupted
        if now - self._looked > LOOK_NS:
            self._looked = now
            self._look()
        if self._job is not None and (not self._told or now - self._told > TELL_NS):
            self._tell(self._job, now)
            self.gives_way_to = None if self._status.reverting else self._overtaken(self._jobs.get(self._held.job))
            if self.gives_way_to is not None:
                raise Interrupted

    def _look(self) -> None:
        job = self._jobs.get(self._held.job)
        self._heed(job)
        if job.state is JobState.REVERTING:
            return
        if job.requested is not None or job.state is JobState.PAUSED:
            raise Interrupted
        self._judge(job)

    def _heed(self, job: Job) -> None:
        self.pace.yields = job.priority < 0
        self.pace.rows_per_second = job.max_rows_per_second
        self.pace.latency_target_ns = None if job.latency_target is None else job.latency_target * 1000
        if self._task is not None:
            self._task.heed()

    def _tell(self, job: Job, now: int) -> None:
        self._told = now
        before, progress = self._status, self._jobs.progress(job)
        share = max(before.share, working_share(job.stages, job.stage, self._done(job)))
        doing = "" if self._task is None else self._task.doing
        rows = 0 if self._rows is None else progress.rows_done - self._rows
        self._rows = progress.rows_done
        self._status = Status(
            job.state is JobState.REVERTING,
            share,
            self._rates[0].grown(share - before.share, now),
            self._rates[1].grown(rows, now),
            self._waits or "; ".join(filter(None, (doing, self.pace.held_back(now)))),
            bool(self._waits),
            self._clock.wall_ns() // 1000,
            self._rows_total(job),
        )
        key, record = status_key(job.id), encode_status(self._status)

        def put(section: Section) -> None:
            section.put(key, record)

        # What cannot be written for want of space is said half a second later; the work has a say of its own in that.
        with contextlib.suppress(errors.Error):
            self._store.background([put], claim=self._held.claim)

    def _done(self, job: Job) -> float:
        """The share of the current stage's work that is done. What is read and not yet written is half done."""
        task = self._task
        if task is None or not job.stage:
            return float(self._worked)
        # Without what is on record beside the ranges: the snapshot that they are read at.
        own = [
            found
            for number, found in self._jobs.checkpoints(job.id, job.stage).items()
            if number // RANGES_PER_WORK == task.place and found.start < found.stop
        ]
        rows, share = task.passed(own)
        if task.rows:
            if share >= _TELLING and rows:
                self._ratio = rows / share / task.rows
            share = rows / max(self._ratio * task.rows, rows, 1)
        read, to_read = task.rows_read, self._ratio * task.rows_to_read
        if read is not None and to_read:
            share += max(min(read / to_read, 1.0) - share, 0.0) / 2
        return share_of_work(job.stages[job.stage - 1].work, task.place, share)

    def _rows_total(self, job: Job) -> int | None:
        """The job's rows: those of what has ended are counted, the others estimated, as well as can be by now."""
        if job.state is JobState.REVERTING:
            return None
        left = [stage.work for stage in job.stages[max(job.stage - 1, 0) :]]
        planned = sum(work.rows for works in left for work in works)
        task, own, ended = self._task, 0, 0
        if task is not None and job.stage:
            rows = {place: sum(work.rows for work in together) for place, together in passes(left[0])}
            own, ended = rows[task.place], sum(count for place, count in rows.items() if place < task.place)
        estimated = (own if task is None else task.rows or own) + planned - own - ended
        return round(job.rows_total - planned + self._counted + self._ratio * estimated)
