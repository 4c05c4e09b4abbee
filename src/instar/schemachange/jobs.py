"""Jobs: durable records of changes that outlive the transaction of their statement.

A job's record, its claim and its checkpoints are read at their latest state, outside MVCC. Whoever works on a job holds
its claim: an epoch that every batch and every stage carries as a precondition (rule 9), so that a worker that slept
through its lease writes nothing. The lease itself is a record apart, since it is renewed and the claim must not move;
it ends by the monotonic clock of the boot, and with the boot.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import msgspec

from instar import errors
from instar.clock import Clock
from instar.schemachange.elements import Element, ElementKind, Phase
from instar.schemachange.progress import Progress, decode_status, published_share, status_key
from instar.schemachange.stages import Plan, Stage
from instar.store.engine import Commit, PreconditionFailed, Reader, Store, ValueUnchanged, prefix_end
from instar.store.records import Latest, latest_key

LEASE_SECONDS = 10.0
# A load waits for whoever hands it its rows, and what a dead one leaves is seen by nobody.
LOAD_LEASE_SECONDS = 300.0
LEAST_PRIORITY, MOST_PRIORITY = -1000, 1000
# So many finished jobs are remembered for SHOW JOBS, and so many events of each.
KEPT_JOBS = 200
KEPT_EVENTS = 100
# A step that cannot be taken back is tried again after one second, two, four, up to so many.
LONGEST_RETRY_SECONDS = 30.0


class JobState(enum.Enum):
    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    WAITING = "waiting"
    REVERTING = "reverting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINISHED = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})


class Problem(msgspec.Struct, frozen=True):
    """Why a job was reverted: what the error that the user gets is made of."""

    sqlstate: str
    message: str
    detail: str | None = None
    hint: str | None = None

    def error(self) -> errors.Error:
        return errors.error(self.sqlstate, self.message, detail=self.detail, hint=self.hint)


def problem_of(failed: Exception) -> Problem:
    """What went wrong as a job keeps it; XX000 for what is no error of Instar's own."""
    if isinstance(failed, errors.Error):
        return Problem(failed.sqlstate, failed.message, failed.detail, failed.hint)
    return Problem(errors.INTERNAL_ERROR, f"{type(failed).__name__}: {failed}")


class Event(msgspec.Struct, frozen=True, array_like=True):
    """What happened to a job: when (microseconds since the epoch), the state and stage that it was in from then on, who
    did it, and what there is to say about it."""

    at: int
    state: JobState
    stage: int
    by: str
    note: str = ""


class Job(msgspec.Struct, frozen=True):
    """A job. `stage` counts the stages that are published; the work of the last of them may still be going on.

    `stages` are those of the plan, or of the way back once the job is reverting. `reason`: what a waiting job waits
    for. `attempts`: how often the step that it is at has failed in a row, the last time of what `failed` says; before
    `retry_at` it is left alone, but for a request other than the one that it had `met` when that attempt began. The
    throttle: `max_rows_per_second`, `latency_target` (microseconds). `after`: the job that must end before this one's
    statement is planned; until then it has no stages. `waiter`: the process (number, and when it opened the store) that
    must be there then, since its statement waits. `named`: the tables that the statement named, by id. `zone`: the time
    zone that it was given in, for when it is planned, and for what it has evaluated row by row. A stage that would doom
    open transactions waits for them for `ddl_wait` microseconds. `ready`: the stage after which all
    was done and waited for but schema locks. Times: microseconds since the epoch.
    """

    id: int
    kind: str
    statement: str
    stages: tuple[Stage, ...]
    stage: int
    state: JobState
    rows_total: int
    created: int
    started: int | None = None
    finished: int | None = None
    requested: Literal["pause", "cancel"] | None = None
    problem: Problem | None = None
    statement_hash: str = ""
    priority: int = 0
    max_rows_per_second: int | None = None
    latency_target: int | None = None
    reason: str = ""
    attempts: int = 0
    retry_at: int | None = None
    history: tuple[Event, ...] = ()
    after: int | None = None
    zone: str = "UTC"
    named: tuple[tuple[str, int], ...] = ()
    ddl_wait: int = 5_000_000
    waiter: tuple[int, int] | None = None
    failed: Problem | None = None
    met: Literal["pause", "cancel"] | None = None
    ready: int | None = None

    @property
    def is_finished(self) -> bool:
        return self.state in FINISHED

    @property
    def is_revertible(self) -> bool:
        """Whether CANCEL JOB, or a failure, takes the job back: it has not passed its last revertible stage."""
        return not 0 < self.stage <= len(self.stages) or self.stages[self.stage - 1].revertible

    def noted(self, at: int, by: str, note: str = "") -> Job:
        """The job with an event in its history: it is from now on in the state and stage that it says."""
        event = Event(at, self.state, self.stage, by, note)
        return msgspec.structs.replace(self, history=(*self.history, event)[-KEPT_EVENTS:])

    @property
    def rows_at_once(self) -> int:
        """The rows of the largest piece of work that the job has, about."""
        return max((work.rows for stage in self.stages for work in stage.work), default=0)

    @property
    def elements(self) -> tuple[Element, ...]:
        """The elements that the job moves."""
        return tuple(dict.fromkeys(move.element for stage in self.stages for move in stage.moves))

    @property
    def tables(self) -> tuple[int, ...]:
        """The ids of the tables that the job changes."""
        return tuple(dict.fromkeys(element.table for element in self.elements))


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """Who works on a job. The epoch grows with every claim and never moves otherwise."""

    epoch: int
    owner: bytes


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """How long the claim of `epoch` is believed: until `until` of the monotonic clock of `boot`, in nanoseconds."""

    epoch: int
    boot: bytes
    until: int


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """How far the work on one key range of a stage is. Rows before `position` are done; it never goes back."""

    start: bytes
    stop: bytes
    position: bytes
    rows: int
    done: bool = False


class Held(msgspec.Struct, frozen=True):
    """A claim as its holder has it: the record's key and bytes, for `Commit.claim` and `Store.background`; for how many
    `seconds` its lease is taken and renewed."""

    job: int
    claim: tuple[bytes, bytes]
    epoch: int
    seconds: float = LEASE_SECONDS


_ID = struct.Struct(">I")
_RANGE = struct.Struct(">IHI")
_STAGE = struct.Struct(">IH")
_encode = msgspec.msgpack.Encoder().encode
_jobs = msgspec.msgpack.Decoder(Job)
_claims = msgspec.msgpack.Decoder(Claim)
_leases = msgspec.msgpack.Decoder(Lease)
_checkpoints = msgspec.msgpack.Decoder(Checkpoint)


def job_key(job: int) -> bytes:
    """The store key of a job's record. Errors: 42704 for a number that no job can have."""
    if not 0 <= job < 2**32:
        raise errors.error(errors.UNDEFINED_OBJECT, f"job {job} does not exist")
    return latest_key(Latest.JOB, _ID.pack(job))


def encode_job(job: Job) -> bytes:
    """The record's bytes (MessagePack)."""
    return _encode(job)


def claim_key(job: int) -> bytes:
    """The store key of a job's claim."""
    return latest_key(Latest.CLAIM, _ID.pack(job))


def lease_key(job: int) -> bytes:
    """The store key of a claim's lease."""
    return latest_key(Latest.LEASE, _ID.pack(job))


def checkpoint_key(job: int, stage: int, number: int) -> bytes:
    """The store key of the checkpoint of key range `number` of a stage's work."""
    return latest_key(Latest.CHECKPOINT, _RANGE.pack(job, stage, number))


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The record's bytes (MessagePack)."""
    return _encode(checkpoint)


def decode_checkpoint(value: bytes) -> Checkpoint:
    """A checkpoint from its record."""
    return _checkpoints.decode(value)


def this_process() -> str:
    """How a job's history names whoever does something in this process."""
    return f"process {os.getpid()}"


def statement_hash(statement: str) -> str:
    """What tells statements apart: 16 hexadecimal digits of SHA-256 of the text, with its white space evened out."""
    return hashlib.sha256(" ".join(statement.split()).encode()).hexdigest()[:16]


def new_job(
    job: int,
    plan: Plan,
    now_us: int,
    *,
    max_rows_per_second: int | None = None,
    latency_target: int | None = None,
    ddl_wait: int = 5_000_000,
    zone: str = "UTC",
) -> Job:
    """The job of a plan, as it is committed together with the plan's first stage."""
    return Job(
        id=job,
        kind=kind_of(plan.stages),
        statement=plan.statement,
        stages=plan.stages,
        stage=1,
        state=JobState.PENDING,
        rows_total=sum(work.rows for stage in plan.stages for work in stage.work),
        created=now_us,
        statement_hash=statement_hash(plan.statement),
        max_rows_per_second=max_rows_per_second,
        latency_target=latency_target,
        ddl_wait=ddl_wait,
        zone=zone,
        priority=plan.priority,
    ).noted(now_us, this_process())


def kind_of(stages: tuple[Stage, ...]) -> str:
    """What a job does, in two or three words: after what comes first, if that is not all."""
    first = next((move for stage in stages for move in stage.moves), None)
    if first is None:
        return "compact"
    if first.element.kind is ElementKind.TRANSFORMATION:
        if any(stage.shows for stage in stages):
            return "materialize"
        return "split" if len(stages[0].moves) == 1 else "join"
    verb = "build"
    if first.start is Phase.PUBLIC:
        verb = "drop"
    elif first.goal is Phase.PUBLIC:
        verb = "validate"
    return f"{verb} {first.element.kind.value}"


class Jobs:
    """The jobs of a store: reading, claiming, and changing their records."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    # --- reading -----------------------------------------------------------------------------------------------------

    def get(self, job: int) -> Job:
        """42704 if there is no such job."""
        with self._store.read() as reader:
            return self.decode(reader.get(job_key(job)), job)

    @staticmethod
    def decode(stored: bytes | None, job: int) -> Job:
        """A job from its record; 42704 if there is none, XX001 if it cannot be read."""
        if stored is None:
            raise errors.error(errors.UNDEFINED_OBJECT, f"job {job} does not exist")
        try:
            return _jobs.decode(stored)
        except msgspec.MsgspecError:
            raise errors.error(errors.DATA_CORRUPTED, f"the record of job {job} is damaged") from None

    def all(self) -> list[Job]:
        """Every job on record, in the order of their ids."""
        with self._store.read() as reader:
            return jobs_on_record(reader)

    def runnable(self) -> list[Job]:
        """Jobs that somebody should work on now, and nobody does: their lease, if they have one, has ended. The most
        urgent first, and of those the oldest. One whose records cannot be read keeps nobody from the others."""
        found = []
        with self._store.read() as reader:
            for _, value in _scan(reader, Latest.JOB):
                with contextlib.suppress(msgspec.DecodeError):
                    job = _jobs.decode(value)
                    if self._is_runnable(reader, job):
                        found.append(job)
        return sorted(found, key=lambda job: -job.priority)

    def _is_runnable(self, reader: Reader, job: Job) -> bool:
        paused = job.state is JobState.PAUSED and job.requested is None
        if job.is_finished or paused or self._is_leased(reader, job.id) or not self._is_due(job):
            return False
        return job.requested is not None or not self._is_queued(reader, job)

    def _is_due(self, job: Job) -> bool:
        """Whether the pause after a failed attempt is over; a wall clock that was set back makes nobody wait longer."""
        if job.retry_at is None or job.requested not in (None, job.met):
            return True
        return not 0 < job.retry_at - self._now() <= LONGEST_RETRY_SECONDS * 1e6

    @staticmethod
    def _is_queued(reader: Reader, job: Job) -> bool:
        """Whether the job that this one waits for goes on."""
        stored = None if job.after is None else reader.get(job_key(job.after))
        return stored is not None and not _jobs.decode(stored).is_finished

    def is_held(self, job: int) -> bool:
        """Whether somebody works on the job: its lease has not ended."""
        return self.owner(job) is not None

    def owner(self, job: int) -> bytes | None:
        """Who works on the job: whose claim it is, if its lease has not ended."""
        with self._store.read() as reader:
            claim = reader.get(claim_key(job)) if self._is_leased(reader, job) else None
        return None if claim is None else _claims.decode(claim).owner

    def checkpoints(self, job: int, stage: int) -> dict[int, Checkpoint]:
        """The checkpoints of a stage's work by number of key range."""
        prefix = latest_key(Latest.CHECKPOINT, _STAGE.pack(job, stage))
        with self._store.read() as reader:
            return {
                _RANGE.unpack(key[-_RANGE.size :])[2]: _checkpoints.decode(value)
                for key, value in reader.scan(prefix, prefix_end(prefix))
            }

    def progress(self, job: Job) -> Progress:
        """Rows done and to do, summed over the key ranges of the work that the job is at, or was at last; the share is
        what its worker said last, so that it does not fall when an estimate is corrected."""
        if job.state is JobState.SUCCEEDED:
            return Progress(job.rows_total, job.rows_total, 1.0)
        done = sum(checkpoint.rows for checkpoint in self.checkpoints(job.id, job.stage).values())
        with self._store.read() as reader:
            stored = reader.get(status_key(job.id))
        status = None if stored is None else decode_status(stored)
        total = max((status and status.rows_total) or job.rows_total, done)
        if not job.stages and job.state is JobState.RUNNING:
            return Progress(done, total, done / total if total else 0.0, status)
        share = 1.0 if job.is_finished else published_share(job.stages, job.stage)
        if status is None or status.reverting != (job.state is JobState.REVERTING):
            return Progress(done, total, share)
        return Progress(done, total, max(status.share, share), status)

    # --- changing ----------------------------------------------------------------------------------------------------

    def update(self, job: int, change: Callable[[Job], Job], held: Held | None = None) -> Job:
        """Replace the job's record by what `change` makes of it. ClaimLost if `held` is no longer."""
        key = job_key(job)
        while True:
            with self._store.read() as reader:
                stored = reader.get(key)
                version = reader.catalog_version
            before = self.decode(stored, job)
            after = change(before)
            if after == before:
                return after
            request = Commit(
                catalog_version=version,
                preconditions=[ValueUnchanged(key, stored, None)],
                raw=[(key, _encode(after)), *(self.finished_records(after) if after.is_finished else ())],
                claim=None if held is None else held.claim,
            )
            try:
                self._store.commit(request)
            except PreconditionFailed:
                continue
            return after

    def probe(self, job: int) -> None:
        """Write the job's record as it is: who waits for a job that nobody works on learns whether anybody could."""
        key = job_key(job)
        with self._store.read() as reader:
            stored = reader.get(key)
            version = reader.catalog_version
        unchanged = ValueUnchanged(key, stored, None)
        with contextlib.suppress(PreconditionFailed):
            self._store.commit(Commit(catalog_version=version, preconditions=[unchanged], raw=[(key, stored)]))

    def pause(self, job: int) -> None:
        """PAUSE JOB: whoever works on it stops at its next batch; one that nobody works on is paused at once. 55000 for
        one that is finished or reverting."""

        def ask(found: Job) -> Job:
            self._require_open(found, "paused")
            if found.state is JobState.PAUSED or found.requested == "pause":
                return found
            if found.state is JobState.PENDING or not self.is_held(job):
                return paused(found).noted(self._now(), this_process(), "PAUSE JOB")
            after = msgspec.structs.replace(found, requested="pause")
            return after.noted(self._now(), this_process(), "PAUSE JOB")

        self.update(job, ask)

    def resume(self, job: int) -> None:
        """RESUME JOB."""

        def ask(found: Job) -> Job:
            self._require_open(found, "resumed")
            if found.state is not JobState.PAUSED and found.requested != "pause":
                return found
            state = JobState.PENDING if found.state is JobState.PAUSED else found.state
            requested = None if found.requested == "pause" else found.requested
            after = msgspec.structs.replace(found, state=state, requested=requested)
            return after.noted(self._now(), this_process(), "RESUME JOB")

        self.update(job, ask)

    def cancel(self, job: int) -> None:
        """CANCEL JOB: it is taken back by whoever works on it, or claims it next. 55000 for one that only goes forward:
        it is past its last revertible stage."""

        def ask(found: Job) -> Job:
            if found.requested == "cancel":
                return found
            self._require_open(found, "cancelled")
            if not found.is_revertible:
                raise errors.error(
                    errors.OBJECT_NOT_READY,
                    f"job {job} cannot be cancelled: it only goes forward",
                    detail=f"Stage {found.stage} of {len(found.stages)}, which is published, cannot be taken back.",
                )
            return msgspec.structs.replace(found, requested="cancel").noted(self._now(), this_process(), "CANCEL JOB")

        self.update(job, ask)

    def alter(self, job: int, changes: Mapping[str, int | None]) -> None:
        """ALTER JOB ... SET: fields of the job that its owner may change at any time; whoever works on it heeds them
        within a second, on its way back too. 55000 for one that is finished or being cancelled."""

        def ask(found: Job) -> Job:
            self._require_open(found, "altered", reverting=True)
            note = "ALTER JOB: " + ", ".join(f"{name} = {value}" for name, value in changes.items())
            return msgspec.structs.replace(found, **changes).noted(self._now(), this_process(), note)

        self.update(job, ask)

    def _now(self) -> int:
        return self._clock.wall_ns() // 1000

    @staticmethod
    def _require_open(job: Job, what: str, *, reverting: bool = False) -> None:
        cancelled = job.requested == "cancel"
        if job.is_finished or cancelled or (job.state is JobState.REVERTING and not reverting):
            state = "being cancelled" if cancelled else job.state.value
            raise errors.error(errors.OBJECT_NOT_READY, f"job {job.id} is {state} and cannot be {what}")

    # --- claims ------------------------------------------------------------------------------------------------------

    def begin(
        self, job: Job, owner: bytes, more: list[tuple[bytes, bytes | None]], *, seconds: float = LEASE_SECONDS
    ) -> Held:
        """Put a job on record whose own process works on it from the first: record, claim and what `more` it needs are
        one commit, so that no worker comes in between."""
        claim = _encode(Claim(1, owner))
        raw = [
            (job_key(job.id), _encode(job)),
            (claim_key(job.id), claim),
            (lease_key(job.id), self._lease(1, seconds)),
        ]
        with self._store.read() as reader:
            version = reader.catalog_version
        self._store.commit(Commit(catalog_version=version, raw=[*raw, *more]))
        return Held(job.id, (claim_key(job.id), claim), 1, seconds)

    def claim(self, job: int, owner: bytes) -> Held | None:
        """Claim a job that nobody holds, or whose holder's lease has ended; None if another holds it, or it is over.

        The end of a job takes its claim away. So the job's own record is a precondition too: without it a late claimer
        would begin the epochs again, and leave a claim behind for good.
        """
        while True:
            with self._store.read() as reader:
                version = reader.catalog_version
                record, old, old_lease = map(reader.get, (job_key(job), claim_key(job), lease_key(job)))
                if record is None or _jobs.decode(record).is_finished or self._is_leased(reader, job):
                    return None
            epoch = 1 if old is None else _claims.decode(old).epoch + 1
            claim = _encode(Claim(epoch, owner))
            request = Commit(
                catalog_version=version,
                preconditions=[
                    ValueUnchanged(job_key(job), record, None),
                    ValueUnchanged(claim_key(job), old, None),
                    ValueUnchanged(lease_key(job), old_lease, None),
                ],
                raw=[(claim_key(job), claim), (lease_key(job), self._lease(epoch))],
            )
            try:
                self._store.commit(request)
            except PreconditionFailed:
                continue
            return Held(job, (claim_key(job), claim), epoch)

    def renew(self, held: Held) -> None:
        """Extend the lease; ClaimLost if another has claimed the job."""
        self._store.worker_goes_on()
        self._write_lease(held, self._lease(held.epoch, held.seconds))

    def release(self, held: Held) -> None:
        """End the lease, so that another may claim the job at once. Nothing happens if another has already."""
        self._write_lease(held, _encode(Lease(held.epoch, self._clock.boot_id(), 0)))

    def prune(self) -> int:
        """Forget all finished jobs but the KEPT_JOBS that ended last; returns how many were forgotten. One whose record
        cannot be read stays."""
        found = []
        with self._store.read() as reader:
            version = reader.catalog_version
            for key, value in _scan(reader, Latest.JOB):
                with contextlib.suppress(msgspec.MsgspecError):
                    found.append((_jobs.decode(value), key))
        # By their ends: one that took long is to be seen by whoever waits for it, whatever has come and gone meanwhile.
        ended = sorted((job.finished or 0, key) for job, key in found if job.is_finished)
        if gone := ended[:-KEPT_JOBS]:
            self._store.commit(Commit(catalog_version=version, raw=[(key, None) for _, key in gone]))
        return len(gone)

    def finished_records(self, job: Job) -> list[tuple[bytes, bytes | None]]:
        """What is deleted with the commit that finishes a job: claim, lease, status and checkpoints."""
        prefix = latest_key(Latest.CHECKPOINT, _ID.pack(job.id))
        with self._store.read() as reader:
            found = [key for key, _ in reader.scan(prefix, prefix_end(prefix))]
        return [(key, None) for key in (claim_key(job.id), lease_key(job.id), status_key(job.id), *found)]

    def _lease(self, epoch: int, seconds: float = LEASE_SECONDS) -> bytes:
        until = self._clock.monotonic_ns() + int(seconds * 1e9)
        return _encode(Lease(epoch, self._clock.boot_id(), until))

    def _write_lease(self, held: Held, lease: bytes) -> None:
        with self._store.read() as reader:
            version = reader.catalog_version
        self._store.commit(Commit(catalog_version=version, raw=[(lease_key(held.job), lease)], claim=held.claim))

    def _is_leased(self, reader: Reader, job: int) -> bool:
        stored = reader.get(lease_key(job))
        if stored is None:
            return False
        lease = _leases.decode(stored)
        return lease.boot == self._clock.boot_id() and lease.until > self._clock.monotonic_ns()


def paused(job: Job) -> Job:
    """The job as PAUSE JOB leaves it."""
    return msgspec.structs.replace(job, state=JobState.PAUSED, requested=None, retry_at=None, attempts=0, reason="")


def jobs_on_record(reader: Reader) -> list[Job]:
    """Every job that the reader sees, in the order of their ids."""
    return [Jobs.decode(value, *_ID.unpack(key[-_ID.size :])) for key, value in _scan(reader, Latest.JOB)]


def _scan(reader: Reader, kind: Latest) -> Iterator[tuple[bytes, bytes]]:
    prefix = latest_key(kind)
    return reader.scan(prefix, prefix_end(prefix))
