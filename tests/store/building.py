"""What the store's tests commit: one table in rowset 1 whose rows are numbers with a body, one index on the body."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from instar.store.engine import ROW_HEADER as HEADER
from instar.store.engine import (
    Commit,
    Derive,
    EntryWrite,
    LogRecord,
    Precondition,
    Reader,
    RowWrite,
    Section,
    Store,
    TableWrites,
    prefix_end,
    rowset_prefix,
)

TABLE = 7
ROWS = rowset_prefix(1)
INDEX = rowset_prefix(2)
ALL = (b"", b"\xff")
ALL_ROWS = (ROWS, prefix_end(ROWS))
ALL_ENTRIES = (INDEX, prefix_end(INDEX))


def row_key(number: int) -> bytes:
    return ROWS + number.to_bytes(2, "big")


def entry_key(body: bytes, number: int) -> bytes:
    return INDEX + body[:1] + number.to_bytes(2, "big")


def body_of(value: bytes | None) -> bytes | None:
    """The body of a stored row, None for a tombstone too."""
    if value is None or HEADER.unpack_from(value)[2] & 1:
        return None
    return value[HEADER.size :]


def row_writes(reader: Reader, changes: Mapping[int, bytes | None]) -> list[RowWrite]:
    """Changes {number: body or None to delete}, derived from what `reader` sees."""
    return [RowWrite(row_key(number), reader.get(row_key(number)), body, 1) for number, body in changes.items()]


def entry_writes(reader: Reader, changes: Mapping[int, bytes | None]) -> list[EntryWrite]:
    """The index entries that go with `changes`."""
    entries = []
    for number, body in changes.items():
        old = body_of(reader.get(row_key(number)))
        if old is not None and (body is None or body[:1] != old[:1]):
            entries.append(EntryWrite(entry_key(old, number), len(INDEX) + 1, False))
        if body is not None:
            entries.append(EntryWrite(entry_key(body, number), len(INDEX) + 1, True))
    return entries


def request(
    store: Store,
    changes: Mapping[int, bytes | None],
    preconditions: Iterable[Precondition] = (),
    *,
    version: int = 1,
    checks: int = 0,
    snapshot: int | None = None,
    claim: tuple[bytes, bytes] | None = None,
) -> Commit:
    with store.read() as reader:
        return Commit(
            catalog_version=reader.catalog_version,
            tables=[TableWrites(TABLE, version, checks, row_writes(reader, changes))],
            entries=entry_writes(reader, changes),
            preconditions=list(preconditions),
            snapshot=snapshot,
            claim=claim,
        )


def change(store: Store, changes: Mapping[int, bytes | None], *preconditions: Precondition) -> int:
    """Commit `changes`; returns the timestamp."""
    return store.commit(request(store, changes, preconditions))


def raw(store: Store, *records: tuple[bytes, bytes | None], bump: bool = False) -> int:
    """Commit raw records."""
    with store.read() as reader:
        version = reader.catalog_version
    return store.commit(Commit(catalog_version=version, raw=list(records), bump_catalog=bump))


def dead_entries(record: LogRecord) -> list[bytes]:
    """The index keys of a record's before-image."""
    body = body_of(record.before)
    return [] if body is None else [entry_key(body, int.from_bytes(record.key[-2:], "big"))]


def contents(store: Store, start: bytes = ALL[0], stop: bytes = ALL[1]) -> dict[bytes, bytes]:
    """What is stored in [start, stop)."""
    with store.read() as reader:
        return dict(reader.scan(start, stop))


def queued(store: Store, requests: Sequence[Commit | Derive]) -> list[int | Exception]:
    """Commit all at once: while the section is held from the background, the threads queue up behind the leader."""
    outcomes: list[int | Exception] = [0] * len(requests)

    def commit(index: int) -> None:
        try:
            request = requests[index]
            outcomes[index] = store.commit(request) if isinstance(request, Commit) else store.commit_derived(request)
        except Exception as caught:  # noqa: BLE001 - the outcome, whatever it is
            outcomes[index] = caught

    threads = [threading.Thread(target=commit, args=(index,)) for index in range(len(requests))]

    def hold(_section: Section) -> None:
        threads[0].start()
        for thread in threads[1:]:
            thread.start()
        # All but the leader are in the queue; the leader waits for the section.
        queue = store._queue._queue  # type: ignore[attr-defined] # the only place that tells
        while len(queue) < len(threads) - 1:
            threads[0].join(0.001)

    store.background([hold])
    for thread in threads:
        thread.join()
    return outcomes


def in_child(work: Callable[[], object]) -> int:
    """Fork; the child does `work` and ends, 0 if it did. Returns the child's process id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        work()
        status = 0
    except BaseException as caught:  # noqa: BLE001 - told, and the child ends
        os.write(2, f"in child: {caught!r}\n".encode())
    finally:
        os._exit(status)


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
