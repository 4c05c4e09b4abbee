"""Garbage collection: cutting the log's prefix, with the tombstones met there, and how far it may go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from instar.store.engine import ENTRY_VALUE, ROW_HEADER, ROW_TOMBSTONE, LogRecord, Reader
from instar.store.gate import Step
from instar.store.header import TIMESTAMP_SHIFT
from instar.store.log import decode, log_key, log_place
from instar.store.section import WriteSection

# Records per step: about as many as fit into one hold of the gate.
_STEP_RECORDS = 64


def collection_limit(
    *,
    now: int,
    watermark: int,
    holds: Iterable[int],
    retention_seconds: float,
    log_bytes: int,
    log_max_bytes: int,
) -> int:
    """Up to which timestamp (inclusive) the log may be cut; at least `watermark`.

    `now` is the least timestamp of a commit made now; `holds` are what live snapshots and subscribers still need: a
    record at T is needed by those below T alone (rule 1). A log past its cap is cut as far as brings it back below,
    taking its bytes as evenly spread in time: the slowest is cut loose, and whoever it is gets 72000.
    """
    limit = min(holds, default=now)
    limit = min(limit, now - (int(retention_seconds * 1000) << TIMESTAMP_SHIFT))
    if log_bytes > log_max_bytes:
        excess = log_bytes - log_max_bytes
        limit = max(limit, watermark + (now - watermark) * excess // log_bytes)
    return max(limit, watermark)


def cut_steps(
    read: Callable[[], Reader], upto: int, dead_entries: Callable[[LogRecord], list[bytes]], cut: Callable[[int], None]
) -> Iterator[Step]:
    """Steps that cut every record up to and including timestamp `upto` (at most the newest commit's).

    Records are read, and index keys derived, before the atomic section is entered: records never change, and what
    stands at a key is judged inside. `cut` is told how many records each step removed.
    """
    position, stop = log_key(0, 0), log_key(upto + 1, 0)
    while True:
        with read() as reader:
            keys, values = reader.batch(position, stop, _STEP_RECORDS)
        if not keys:
            yield _cut_step([], [], [], upto, 0, cut)
            return
        records = list(chain.from_iterable(map(decode, keys, values)))
        rows = [(record.key, record.timestamp) for record in records if record.deleted]
        entries = [
            (key, record.timestamp) for record in records if record.before is not None for key in dead_entries(record)
        ]
        timestamp, place = log_place(keys[-1], values[-1])
        yield _cut_step(keys, rows, entries, timestamp, place + len(keys[-1]) + len(values[-1]), cut)
        position = keys[-1] + b"\x00"


def _cut_step(
    records: list[bytes],
    rows: list[tuple[bytes, int]],
    entries: list[tuple[bytes, int]],
    watermark: int,
    log_start: int,
    cut: Callable[[int], None],
) -> Step:
    def step(section: object) -> None:
        assert isinstance(section, WriteSection)  # collection is the engine's own: it moves the header
        count = sum([section.delete(key) for key in records])
        for key, timestamp in rows:
            value = section.get(key)
            if value is not None:
                stamped, _sequence, tag = ROW_HEADER.unpack_from(value)
                if stamped == timestamp and tag & ROW_TOMBSTONE:
                    section.delete(key)
        for key, timestamp in entries:
            value = section.get(key)
            if value is not None:
                stamped, live, _offset = ENTRY_VALUE.unpack(value)
                if stamped == timestamp and not live:
                    section.delete(key)
        section.cut_log(watermark, log_start)
        section.store_header()
        cut(count)

    return step
