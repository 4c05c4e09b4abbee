"""The records of a job: the job itself, its claim with the lease, and its checkpoints, with their keys and bytes.

All are read at their latest state, outside MVCC. The claim is a precondition of every batch and every stage (rule 9),
so it must not move; the lease, which is renewed, is therefore a record apart. A lease ends by the monotonic clock of
the boot, and with the boot.
"""

from __future__ import annotations

import enum
import hashlib
import os
import struct
from collections.abc import Iterator
from typing import Literal

import msgspec

from instar import errors
from instar.schemachange.elements import Element, ElementKind, Phase
from instar.schemachange.stages import Plan, Stage
from instar.store.engine import Reader, prefix_end
from instar.store.records import Latest, latest_key

LEAST_PRIORITY, MOST_PRIORITY = -1000, 1000
# So many events of a job are remembered.
KEPT_EVENTS = 100


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
    if isinstance(failed, RecursionError):
        return Problem(errors.STATEMENT_TOO_COMPLEX, "an expression is too deeply nested")
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
    was done and waited for but schema locks. `told`: what there is to know of what it has done. `analysis`: what log
    propagation came to in the end. Times: microseconds since the epoch.
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
    told: str = ""
    analysis: str = ""

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


def decode_job(stored: bytes | None, job: int) -> Job:
    """A job from its record; 42704 if there is none, XX001 if it cannot be read."""
    if stored is None:
        raise errors.error(errors.UNDEFINED_OBJECT, f"job {job} does not exist")
    try:
        return _jobs.decode(stored)
    except msgspec.MsgspecError:
        raise errors.error(errors.DATA_CORRUPTED, f"the record of job {job} is damaged") from None


def scan_jobs(reader: Reader) -> Iterator[tuple[int, bytes]]:
    """The ids and records of all jobs that the reader sees, in the order of their ids."""
    prefix = latest_key(Latest.JOB)
    for key, value in reader.scan(prefix, prefix_end(prefix)):
        yield _ID.unpack(key[len(prefix) :])[0], value


def readable_jobs(reader: Reader) -> tuple[list[Job], list[int]]:
    """Every job that the reader sees, in the order of their ids; the ids of those whose records are damaged."""
    found: list[Job] = []
    damaged: list[int] = []
    for number, stored in scan_jobs(reader):
        try:
            found.append(decode_job(stored, number))
        except errors.Error:
            damaged.append(number)
    return found, damaged


def claim_key(job: int) -> bytes:
    """The store key of a job's claim."""
    return latest_key(Latest.CLAIM, _ID.pack(job))


def encode_claim(claim: Claim) -> bytes:
    """The record's bytes (MessagePack)."""
    return _encode(claim)


def decode_claim(value: bytes) -> Claim:
    """A claim from its record."""
    return _claims.decode(value)


def lease_key(job: int) -> bytes:
    """The store key of a claim's lease."""
    return latest_key(Latest.LEASE, _ID.pack(job))


def encode_lease(lease: Lease) -> bytes:
    """The record's bytes (MessagePack)."""
    return _encode(lease)


def decode_lease(value: bytes) -> Lease:
    """A lease from its record."""
    return _leases.decode(value)


def checkpoint_key(job: int, stage: int, number: int) -> bytes:
    """The store key of the checkpoint of key range `number` of a stage's work."""
    return latest_key(Latest.CHECKPOINT, _RANGE.pack(job, stage, number))


def checkpoint_prefix(job: int, stage: int | None = None) -> bytes:
    """What the keys of all checkpoints of a job begin with, or of one of its stages."""
    return latest_key(Latest.CHECKPOINT, _ID.pack(job) if stage is None else _STAGE.pack(job, stage))


def checkpoint_number(key: bytes) -> int:
    """The number of the key range whose checkpoint has this key."""
    number: int = _RANGE.unpack(key[-_RANGE.size :])[2]
    return number


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


def paused(job: Job) -> Job:
    """The job as PAUSE JOB leaves it."""
    return msgspec.structs.replace(job, state=JobState.PAUSED, requested=None, retry_at=None, attempts=0, reason="")
