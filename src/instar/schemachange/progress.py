"""How far a job is: the share of its way that lies behind it, and what its worker says of the work at hand.

A share is never shown before it is on record, and what is put on record is the largest so far: so it does not fall when
an estimate is corrected, nor when another worker goes on. The way back counts anew, from nothing to all.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import msgspec

from instar.schemachange.job_records import Checkpoint
from instar.schemachange.stages import Reorganization, Stage, passes
from instar.schemachange.states import Work
from instar.store.engine import Reader
from instar.store.key_ranges import share_before
from instar.store.records import Latest, latest_key

_ID = struct.Struct(">I")
# To follow the log of tables that are written to takes some such part of the time of the image of their rows and of its
# entries.
_FOLLOWING = 1 / 3


class Status(msgspec.Struct, frozen=True, array_like=True):
    """What whoever works on a job says of it, twice a second or so: a record apart, as no stage depends on it.

    `reverting`: of which way it speaks. `reason`: what the work is at, what holds it back, or (`waits`) what it waits
    for. `at`: microseconds since the epoch. `rows_total`: the job's rows as they are known by now, in place of the
    estimate of its plan.
    """

    reverting: bool
    share: float
    share_per_second: float
    rows_per_second: float
    reason: str
    waits: bool
    at: int
    rows_total: int | None = None


class Progress(msgspec.Struct, frozen=True):
    """Rows done of the work that a job is at, of about how many; the share of its way; what its worker said last."""

    rows_done: int
    rows_total: int
    share: float
    status: Status | None = None


_encode = msgspec.msgpack.Encoder().encode
_statuses = msgspec.msgpack.Decoder(Status)


def status_key(job: int) -> bytes:
    """The store key of what a job's worker says of it."""
    return latest_key(Latest.STATUS, _ID.pack(job))


def encode_status(status: Status) -> bytes:
    """The record's bytes (MessagePack)."""
    return _encode(status)


def decode_status(value: bytes) -> Status:
    """A status from its record."""
    return _statuses.decode(value)


def published_share(stages: Sequence[Stage], published: int) -> float:
    """The share of the way by the stages that are published, whatever is done of the work of the last one. A stage
    counts as much as a row of work."""
    weights = _weights(stages)
    behind = sum(weights[: max(published - 1, 0)]) + (published > 0)
    return behind / sum(weights) if weights else 0.0


def working_share(stages: Sequence[Stage], published: int, done: float) -> float:
    """The same, when the share `done` of the work of the stage that was published last is."""
    share = published_share(stages, published)
    if not 0 < published <= len(stages):
        return share
    weights = _weights(stages)
    return share + (weights[published - 1] - 1) * min(max(done, 0.0), 1.0) / sum(weights)


def share_of_work(works: Sequence[Reorganization], place: int, done: float) -> float:
    """The share of a stage's work that is done when the share `done` of the pass at `place` is, and all before it."""
    weights = {at: sum(_weight(work, works) for work in together) for at, together in passes(works)}
    behind = sum(weight for at, weight in weights.items() if at < place)
    total = sum(weights.values())
    return (behind + weights.get(place, 0) * min(max(done, 0.0), 1.0)) / total if total else 0.0


def passed(open_reader: Callable[[], Reader], ranges: Sequence[Checkpoint]) -> tuple[int, float]:
    """(rows, share): what is done of the key ranges of a work, and about which share of all keys that is. Of ranges
    that were cut to be about even, those count that are done; one that is all there is counts by the keys that seem to
    lie on both sides of where it is: what is inserted far above all others would make little of the way between its
    first key and its last."""
    if len(ranges) == 1 and not ranges[0].done:
        (only,) = ranges
        return only.rows, share_before(open_reader, only.start, only.position, only.stop)
    done = [found for found in ranges if found.done]
    return sum(found.rows for found in done), len(done) / len(ranges) if ranges else 0.0


def _weights(stages: Sequence[Stage]) -> list[int]:
    return [1 + sum(_weight(work, stage.work) for work in stage.work) for stage in stages]


def _weight(work: Reorganization, works: Sequence[Reorganization]) -> int:
    """In rows. Nobody knows how much will be in a log that is to be followed."""
    if work.work is not Work.FOLLOW:
        return work.rows
    filled = sum(other.rows for other in works if other.work in (Work.IMAGE, Work.ENTRIES))
    return max(work.rows, int(filled * _FOLLOWING))
