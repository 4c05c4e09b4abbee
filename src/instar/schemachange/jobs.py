"""Jobs: durable records of changes that outlive the transaction of their statement.

Whoever works on a job holds its claim: an epoch that every batch and every stage carries as a precondition (rule 9), so
that a worker that slept through its lease writes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from instar import errors
from instar.clock import Clock
from instar.schemachange.job_records import (
    Checkpoint,
    Claim,
    Job,
    JobState,
    Lease,
    checkpoint_number,
    checkpoint_prefix,
    claim_key,
    decode_checkpoint,
    decode_claim,
    decode_job,
    decode_lease,
    encode_claim,
    encode_job,
    encode_lease,
    job_key,
    lease_key,
    paused,
    readable_jobs,
    scan_jobs,
    this_process,
)
from instar.schemachange.progress import Progress, decode_status, published_share, status_key
from instar.store.engine import Commit, PreconditionFailed, Reader, Store, ValueUnchanged, prefix_end

LEASE_SECONDS = 10.0
# A load waits for whoever hands it its rows, and what a dead one leaves is seen by nobody.
LOAD_LEASE_SECONDS = 300.0
# So many finished jobs are remembered for SHOW JOBS.
KEPT_JOBS = 200
# A step that cannot be taken back is tried again after one second, two, four, up to so many.
LONGEST_RETRY_SECONDS = 30.0


class Held(msgspec.Struct, frozen=True):
    """A claim as its holder has it: the record's key and bytes, for `Commit.claim` and `Store.background`; for how many
    `seconds` its lease is taken and renewed."""

    job: int
    claim: tuple[bytes, bytes]
    epoch: int
    seconds: float = LEASE_SECONDS


class Seen(NamedTuple):
    """A job at one moment: its record, how far it was, and who worked on it (`Jobs.owner`)."""

    job: Job
    progress: Progress
    owner: bytes | None


class Jobs:
    """The jobs of a store: reading, claiming, and changing their records."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    # --- reading -----------------------------------------------------------------------------------------------------

    def get(self, job: int) -> Job:
        """42704 if there is no such job."""
        with self._store.read() as reader:
            return decode_job(reader.get(job_key(job)), job)

    def all(self) -> list[Job]:
        """Every job on record, in the order of their ids."""
        with self._store.read() as reader:
            return [decode_job(stored, number) for number, stored in scan_jobs(reader)]

    def runnable(self) -> list[Job]:
        """Jobs that somebody should work on now, and nobody does: their lease, if they have one, has ended. The most
        urgent first, and of those the oldest. One whose records cannot be read keeps nobody from the others."""
        found = []
        with self._store.read() as reader:
            for job in readable_jobs(reader)[0]:
                with contextlib.suppress(msgspec.MsgspecError, errors.InternalError):
                    if self._is_runnable(reader, job):
                        found.append(job)
        return sorted(found, key=lambda job: -job.priority)

    def _is_runnable(self, reader: Reader, job: Job) -> bool:
        rests = job.state is JobState.PAUSED and job.requested is None
        if job.is_finished or rests or self._is_leased(reader, job.id) or not self._is_due(job):
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
        return job.after is not None and stored is not None and not decode_job(stored, job.after).is_finished

    def is_held(self, job: int) -> bool:
        """Whether somebody works on the job: its lease has not ended."""
        return self.owner(job) is not None

    def owner(self, job: int) -> bytes | None:
        """Who works on the job: whose claim it is, if its lease has not ended."""
        with self._store.read() as reader:
            return self._owner(reader, job)

    def _owner(self, reader: Reader, job: int) -> bytes | None:
        claim = reader.get(claim_key(job)) if self._is_leased(reader, job) else None
        return None if claim is None else decode_claim(claim).owner

    def checkpoints(self, job: int, stage: int) -> dict[int, Checkpoint]:
        """The checkpoints of a stage's work by number of key range."""
        with self._store.read() as reader:
            return self._checkpoints(reader, job, stage)

    @staticmethod
    def _checkpoints(reader: Reader, job: int, stage: int) -> dict[int, Checkpoint]:
        prefix = checkpoint_prefix(job, stage)
        found = reader.scan(prefix, prefix_end(prefix))
        return {checkpoint_number(key): decode_checkpoint(value) for key, value in found}

    def seen(self, job: Job) -> Seen:
        """The job as it is by now, all of it at one moment: what ends a job takes its claim and its checkpoints away.
        If its record is gone, or says nothing, that is as it was given."""
        with self._store.read() as reader:
            with contextlib.suppress(msgspec.MsgspecError, errors.Error):
                job = decode_job(reader.get(job_key(job.id)), job.id)
            return Seen(job, self._progress(reader, job), self._owner(reader, job.id))

    def progress(self, job: Job) -> Progress:
        """Rows done and to do, summed over the key ranges of the work that the job is at, or was at last; the share is
        what its worker said last, so that it does not fall when an estimate is corrected."""
        with self._store.read() as reader:
            return self._progress(reader, job)

    def _progress(self, reader: Reader, job: Job) -> Progress:
        if job.state is JobState.SUCCEEDED:
            return Progress(job.rows_total, job.rows_total, 1.0)
        done = sum(checkpoint.rows for checkpoint in self._checkpoints(reader, job.id, job.stage).values())
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
            before = decode_job(stored, job)
            after = change(before)
            if after == before:
                return after
            request = Commit(
                catalog_version=version,
                preconditions=[ValueUnchanged(key, stored, None)],
                raw=[(key, encode_job(after)), *(self.finished_records(after) if after.is_finished else ())],
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
        claim = encode_claim(Claim(1, owner))
        raw = [
            (job_key(job.id), encode_job(job)),
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
                if record is None or decode_job(record, job).is_finished or self._is_leased(reader, job):
                    return None
            epoch = 1 if old is None else decode_claim(old).epoch + 1
            claim = encode_claim(Claim(epoch, owner))
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
        self._write_lease(held, encode_lease(Lease(held.epoch, self._clock.boot, 0)))

    def prune(self) -> int:
        """Forget all finished jobs but the KEPT_JOBS that ended last; returns how many were forgotten. One whose record
        cannot be read stays."""
        with self._store.read() as reader:
            version = reader.catalog_version
            found, _ = readable_jobs(reader)
        # By their ends: one that took long is to be seen by whoever waits for it, whatever has come and gone meanwhile.
        ended = sorted((job.finished or 0, job.id) for job in found if job.is_finished)
        if gone := ended[:-KEPT_JOBS]:
            self._store.commit(Commit(catalog_version=version, raw=[(job_key(job), None) for _, job in gone]))
        return len(gone)

    def finished_records(self, job: Job) -> list[tuple[bytes, bytes | None]]:
        """What is deleted with the commit that finishes a job: claim, lease, status and checkpoints."""
        prefix = checkpoint_prefix(job.id)
        with self._store.read() as reader:
            found = [key for key, _ in reader.scan(prefix, prefix_end(prefix))]
        return [(key, None) for key in (claim_key(job.id), lease_key(job.id), status_key(job.id), *found)]

    def _lease(self, epoch: int, seconds: float = LEASE_SECONDS) -> bytes:
        until = self._clock.monotonic_ns() + int(seconds * 1e9)
        return encode_lease(Lease(epoch, self._clock.boot, until))

    def _write_lease(self, held: Held, lease: bytes) -> None:
        with self._store.read() as reader:
            version = reader.catalog_version
        self._store.commit(Commit(catalog_version=version, raw=[(lease_key(held.job), lease)], claim=held.claim))

    def _is_leased(self, reader: Reader, job: int) -> bool:
        stored = reader.get(lease_key(job))
        if stored is None:
            return False
        lease = decode_lease(stored)
        return lease.boot == self._clock.boot and lease.until > self._clock.monotonic_ns()
