"""The store protocol: an ordered key-value store with commit timestamps, atomic test-and-set and short reads.

Everything above the store speaks to this protocol and nothing else. Two engines implement it (`lmdb.py`, `memory.py`)
and pass one conformance suite. Presence, the gate and group commit belong to the engine, so that nothing above
assumes shared memory.

Keyspace (first byte of each key; see docs/formats/):

    00           store header: identity (00 00), header (00 01), canonical schema version (00 02)
    01           table headers: 01 + table id (u32 BE) -> TableHeader
    02           rowset records: 02 + rowset id (u32 BE) -> owner, state, since
    03           records read at their latest state (sequences, jobs, leases, layouts ...): 03 + kind (u8) + key
    10           versioned rows and index entries: 10 + rowset id (u32 BE) + key
    e0           the second copy of the canonical schema version (e0 02)
    f0           the log: f0 + commit timestamp (u64 BE) + sequence (u32 BE)

A *row value* is ROW_HEADER + lock timestamps (where the row's layout has more than one lock) + body; an *entry value*
is ENTRY_VALUE. A row whose newest version is deleted is a tombstone (flag set, nothing after the header) until the
collector cuts it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self

import msgspec

from instar.store.blocks import Block
from instar.store.cuts import Cut
from instar.store.lock_modes import Mode
from instar.store.pace import Pace
from instar.store.presence import Process, Writer

if TYPE_CHECKING:
    from instar.store.lock_table import LockTable

FORMAT_VERSION = 4

PREFIX_STORE = b"\x00"
PREFIX_TABLE = b"\x01"
PREFIX_ROWSET = b"\x02"
PREFIX_LATEST = b"\x03"
PREFIX_ROW = b"\x10"
PREFIX_COPY = b"\xe0"
PREFIX_LOG = b"\xf0"

# commit timestamp u64, log sequence u32 (NO_RECORD: the version before does not exist), layout id << 8 | flags u32.
ROW_HEADER = struct.Struct("<QII")
ROW_TOMBSTONE = 0x01
ROW_FLAGS = 12  # where the low byte of a row header's layout and flags lies
NO_RECORD = 0xFFFFFFFF

# commit timestamp u64, 1 live or 0 tombstone, offset of the primary key within the entry's key.
ENTRY_VALUE = struct.Struct("<QBH")

_ROWSET = struct.Struct(">BI")


def rowset_prefix(rowset: int) -> bytes:
    """The five bytes that every key of this rowset begins with."""
    return _ROWSET.pack(0x10, rowset)


def prefix_end(prefix: bytes) -> bytes:
    """The smallest key greater than every key that begins with `prefix` (not all 0xff)."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1])


class TableHeader(msgspec.Struct, frozen=True, array_like=True):
    """What the fence compares for one table (DESIGN: I, e, c).

    `current` is c, `floor` is f (never falls), `checks` the version of the list of checks and pending constraints;
    `logged_whole`: log records have after-images too, which is so from the version on that
    the floor stands at; `dropped`: every write is refused until deallocation.
    """

    current: int
    floor: int
    checks: int
    logged_whole: bool = False
    dropped: bool = False


class View(Protocol):
    """One consistent view of the newest state: what header and log say of it, and the keys."""

    catalog_version: int
    timestamp: int  # the newest commit: a snapshot taken now
    watermark: int  # snapshots below it are gone

    def get(self, key: bytes, /) -> bytes | None:
        """The value stored at `key` now."""
        ...

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with start <= key < stop in key order (or from the end)."""
        ...

    def batch(self, start: bytes, stop: bytes, limit: int, *, reverse: bool = False) -> tuple[list[bytes], list[bytes]]:
        """The first (or last, from the end) `limit` keys and values of the range, as two lists: the bulk path."""
        ...


class Reader(View, Protocol):
    """A view that is open for a batch or 50 ms at most and is then closed, on the same thread. Never held across user
    code or a fork. `with store.read() as reader` is the usual form; a hot path saves 0.2 us with `try ... finally:
    reader.close()`.
    """

    def block(self, start: bytes, stop: bytes, size: int) -> Block:
        """The first pairs of the range, about `size` bytes of them (one pair at least, if there is one), in one buffer:
        what a scan of many rows wants, since nothing is made per pair."""
        ...

    def cut(self, start: bytes, stop: bytes, parts: int) -> Cut | None:
        """Where the range is cut into at most `parts` parts of about as many keys each, none of them empty, and about
        how many keys it has; None if this view cannot say: another one may. Work: some 10 ms for a million keys, and
        20 us for each part."""
        ...

    def close(self) -> None:
        """Give the view back; what it returned stays valid. Closing twice does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: object, caught: object, traceback: object, /) -> None: ...


class Section(View, Protocol):
    """The atomic section: a view that may write and sees what it wrote. Only the store and maintenance see one."""

    def put(self, key: bytes, value: bytes, /) -> object: ...

    def put_many(self, pairs: list[tuple[bytes, bytes]]) -> None:
        """Put all pairs, of which there are some, all with different keys, in whatever order."""
        ...

    def any_of(self, keys: list[bytes]) -> bytes | None:
        """One of `keys`, of which there are some, at which something is stored, if there is one."""
        ...

    def delete(self, key: bytes, /) -> bool:
        """Whether there was something at `key`."""
        ...


class RowWrite(msgspec.Struct, frozen=True, gc=False):
    """One row change. `stored` are the bytes it was derived from (None: no row, not even a tombstone).

    `locks` are the lock timestamps of a layout that has more than one lock; 0 is the commit's own.
    """

    key: bytes
    stored: bytes | None
    body: bytes | None  # None deletes
    layout: int
    locks: tuple[int, ...] = ()
    pair: int = 0  # a key change is a delete and an insert bearing one pair number (rule 2)
    keyed: bool = False  # a unique key of the row changes, which its row lock is to know
    renewed: bool = False  # the row that stood there was deleted, and this one inserted: it is another


class CopyWrite(NamedTuple):
    """What becomes of a row's copy under the table's next primary key, and of the copy's index entries.

    `stored` as in `RowWrite`. A copy has no history: nobody reads it before it is the row itself, in a rowset that is
    the table's own. So what goes is gone without a tombstone, and the log has nothing of it.
    """

    key: bytes
    stored: bytes | None
    goes: bool  # what is stored is removed, or replaced
    body: bytes | None  # None: nothing is put
    layout: int
    locks: tuple[int, ...]
    gone: tuple[bytes, ...]  # entries, by their keys
    entries: tuple[tuple[bytes, int], ...]  # entries to be put: key, where the primary key begins in it


class TableWrites(NamedTuple):
    """All row changes of one table in one commit, and what they were derived under."""

    table: int
    version: int  # e
    checks: int  # version of the list of checks that was evaluated (rule 16)
    rows: list[RowWrite]
    copies: Sequence[CopyWrite] = ()  # while the table gets another primary key
    heeds_locks: bool = True  # whether row locks of others stand in the way
    whole: bool = False  # whether the log gets the rows as they are afterwards, too: the table is logged whole


class EntryWrite(msgspec.Struct, frozen=True, gc=False):
    """One index entry: live at the commit's timestamp, or a tombstone over an *existing* entry (rule 4)."""

    key: bytes
    primary_offset: int
    live: bool


class KeyExists(msgspec.Struct, frozen=True, gc=False):
    """A live row or entry stands at `key` (or, with `prefix`, under it) once the commit's own writes are applied."""

    key: bytes
    prefix: bool
    on_failure: object  # handed back in PreconditionFailed


class RangeEmpty(msgspec.Struct, frozen=True, gc=False):
    """No live row or entry but `allow` stands in [start, stop) once the commit's own writes are applied (rule 5)."""

    start: bytes
    stop: bytes
    allow: bytes | None
    on_failure: object


class RangeUnchanged(NamedTuple):
    """Nothing in [start, stop), tombstones too, is newer than `since`, and `moved` where that is asked: of a value as
    it is stored, tombstones too."""

    start: bytes
    stop: bytes
    since: int
    on_failure: object
    moved: Callable[[bytes], bool] | None = None


class LogUntouched(NamedTuple):
    """Among the changes in the log after `since` is none for which `touches` gives a key.

    For reads that are too many to be looked at one by one: the changes since the commit was derived are few. If they
    are more than `limit`, the commit is refused with StaleRow, to be derived again. `touches` reads nothing but the
    view and what it was made with.
    """

    since: int
    limit: int
    touches: Callable[[View, LogRecord], bytes | None]
    on_failure: object


class ValueUnchanged(NamedTuple):
    """The raw value at `key` is still `value`: for records read at their latest state, table headers, claims."""

    key: bytes
    value: bytes | None
    on_failure: object


class Fails(NamedTuple):
    """`precondition`, with which the commit was refused before, does not hold. If it does by now, the commit is refused
    with StaleRow, to be derived again."""

    precondition: KeyExists | RangeEmpty
    on_failure: object = None


Precondition = KeyExists | RangeEmpty | RangeUnchanged | LogUntouched | ValueUnchanged | Fails


class RowsetReplaced(NamedTuple):
    """A table's rows are from this commit on those of rowset `new` (swap, TRUNCATE, published load): rule 3."""

    table: int
    version: int  # e
    old: int
    new: int


class Lease:
    """Until when a schema version may be used by its server, on the monotonic clock (ns). Renewing moves it on, for the
    writes too that are on their way to the store."""

    __slots__ = ("until",)

    def __init__(self, until: int) -> None:
        self.until = until


class Commit(msgspec.Struct, kw_only=True):
    """One atomic test-and-set.

    Judged in this order on the current state; nothing is written unless all stand:
    fence (`catalog_version` as derived under: if it moved, every table's floor and list; `claim`), then rows (stored
    bytes equal), then row locks and those of `schema`, which `owner` alone may hold (lock_table.Locked), then
    preconditions, then `lease`: it still runs. A moved catalog refuses a table without a header:
    StaleSchema. With `snapshot`, for commits that validate reads since then, it refuses at all (rule 13); and the
    snapshot is at or above the watermark, else 72000 (rule 6).

    `complete` is called behind the fence, with the atomic section's view, and adds to the rows of `tables` what has to
    be told from what came since the commit was derived. It has a millisecond or so, and may refuse.

    `bump_catalog` publishes a catalog version, made by the statement `change`; `abrupt`: nobody may use the version
    before on a snapshot that shows this one.
    """

    catalog_version: int
    tables: list[TableWrites] = msgspec.field(default_factory=list)
    entries: list[EntryWrite] = msgspec.field(default_factory=list)
    preconditions: list[Precondition] = msgspec.field(default_factory=list)
    raw: list[tuple[bytes, bytes | None]] = msgspec.field(default_factory=list)  # latest-state records, headers
    bump_catalog: bool = False
    change: str = ""
    abrupt: bool = False
    lease: Lease | None = None  # of the schema version that it was derived under
    snapshot: int | None = None
    claim: tuple[bytes, bytes] | None = None  # (key, value) of a claim record that must stand
    owner: bytes = b""  # of the locks that are not in its way
    held: Mapping[bytes, Mode] = msgspec.field(default_factory=dict)  # those that it is known to have, by resource
    schema: Sequence[tuple[bytes, Mode]] = ()  # schema locks that nobody may hold against it: resource, mode
    replaced: list[RowsetReplaced] = msgspec.field(default_factory=list)
    complete: Callable[[View], None] | None = None


class RowCommit(msgspec.Struct, gc=False):
    """A commit of one row, or a few, derived from what the store has of it on the very state that it is judged on.

    Fields as in `RowWrite` and `TableWrites`: one object, since a commit of one row has microseconds.
    """

    table: int
    version: int  # e
    key: bytes
    stored: bytes | None  # None: an insert where nothing is, not even a tombstone
    body: bytes | None
    layout: int
    entries: Sequence[EntryWrite] = ()
    lease: Lease | None = None
    locks: tuple[int, ...] = ()
    pair: int = 0
    whole: bool = False
    renewed: bool = False
    keyed: bool = False
    parents: Sequence[bytes] = ()  # rows, or unique keys, that it relies on: locked by nobody who may take them away
    held: bool = False  # who commits holds all locks that it meets
    more: Sequence[RowCommit] = ()  # of the same commit; these have neither `lease` nor `more` that anybody looks at


# What a commit derives from the state that it is judged on; None: nothing is to be written.
Derive = Callable[[View], RowCommit | None]


class Refused(Exception):
    """A commit that was refused before anything was written; the caller derives again or reports."""


class Damaged(Exception):
    """The store is not as it can be, which was found in the middle of a commit: nothing of that may stand."""


class StaleSchema(Refused):
    """`table`'s floor is above e, or its list of checks moved: reload, derive again, try again (unseen by the user)."""

    def __init__(self, table: int, header: TableHeader | None) -> None:
        super().__init__(table)
        self.table = table
        self.header = header


class LeaseExpired(Refused):
    """The lease of the schema version that the commit was derived under has run out: renew, derive again."""


class StaleRow(Refused):
    """The stored bytes of `key` are no longer those that the commit was derived from."""

    def __init__(self, key: bytes) -> None:
        super().__init__(key)
        self.key = key


class PreconditionFailed(Refused):
    """`precondition` does not hold on the current state; `found` is the key that stands in its way, if one does."""

    def __init__(self, precondition: Precondition, found: bytes | None = None) -> None:
        super().__init__(precondition)
        self.precondition = precondition
        self.found = found


class ClaimLost(Refused):
    """The claim or rowset that a background batch works under is no longer its own (rule 9)."""


class LogRecord(msgspec.Struct, frozen=True):
    """One row change of the log, decoded (layout of the bytes: docs/formats/log.md).

    The inserts of a commit share records, so that several changes may bear one (timestamp, sequence).
    """

    timestamp: int
    sequence: int
    table: int
    version: int  # the writer's e
    key: bytes
    before: bytes | None  # the whole row value that was replaced; None: there was no row, or a tombstone
    after: bytes | None
    pair: int
    deleted: bool
    renewed: bool = False  # the row before was deleted and this one inserted, both by this commit
    replaced: tuple[int, int] | None = None  # no row change, but the table's rowset: (old, new); key is empty


MOVED: Final = object()
"""What `Store.newest` gives where the catalog is of another version."""


class Store(Protocol):
    """A store, opened. Any number of processes; threads of one process share one Store."""

    uuid: bytes
    synchronous: str  # full | normal | off: a property of the store
    retention_seconds: float
    log_max_bytes: int
    schema_lease: float  # seconds for which a server uses its cached schema; 0: every read asks for the newest
    snapshot_max_age: float  # seconds for which a registered snapshot is heeded
    max_key_bytes: int

    def read(self) -> Reader:
        """A short read of the newest state."""
        ...

    def newest(self, key: bytes, catalog_version: int) -> Any:
        """A read of one key, without a reader: the newest value (bytes), None without one, or MOVED if the catalog is
        not of this version."""
        ...

    def newest_under(self, start: bytes, rows: bytes, most: int, catalog_version: int) -> Any:
        """The same of rows through an index: the newest values of those whose live entries' keys begin with `start`, in
        the order of the entries, in a list; `rows` is the prefix of the rows. None where there are more entries than
        `most`, or cut ones."""
        ...

    def now(self) -> int:
        """The least timestamp that a commit would get now."""
        ...

    def read_at(self, snapshot: int) -> Reader:
        """As `read`, but raises 72000 "snapshot too old" if `snapshot` is below the watermark."""
        ...

    def commit(self, request: Commit) -> int:
        """Commit in the foreground, joined with other threads' commits; returns the timestamp. Raises Refused."""
        ...

    def commit_derived(self, derive: Derive) -> int:
        """Commit what `derive` makes of the state that the commit is judged on; 0 if that is nothing.

        For writes whose deriving takes a few microseconds and touches nothing but the view: on an engine in this
        process it runs inside the atomic section, so nothing can move under it and nothing is left to be judged (it
        compares the view's catalog version itself). It may be called more than once.
        """
        ...

    @property
    def locks(self) -> LockTable:
        """Who holds what, and who waits for whom."""
        ...

    def lock(
        self, owner: bytes, wanted: Sequence[tuple[bytes, Mode]], unchanged: Iterable[RangeUnchanged] = ()
    ) -> None:
        """Have `owner`, one of `locks.new_owner()`, hold each resource in its mode.

        As in the atomic section: every commit that was judged before is seen by whoever reads after this, and those
        that are judged later meet the locks. Locked at the first resource that cannot be had; those before it are held.
        Nothing is written to the store, and nothing synced. `unchanged`, some few, is judged once all are held:
        PreconditionFailed, and held they are.
        """
        ...

    def background(
        self,
        steps: Iterable[Callable[[Section], None]],
        *,
        claim: tuple[bytes, bytes] | None = None,
        pace: Pace | None = None,
    ) -> int:
        """Run `steps` in gated batches (about 0.4 ms each), each one atomic; returns the number of batches.

        A step may write anything but must be idempotent and must leave the store consistent on its own. Steps are
        drawn from the iterable ahead of being run, outside the atomic section. The claim is judged at the start of
        every batch: ClaimLost. `pace`: how fast, if not as fast as the foreground leaves room for.
        """
        ...

    def log(
        self,
        after: int,
        upto: int,
        of: Iterable[int] | None = None,
        between: Callable[[int], None] = lambda records: None,
    ) -> Iterator[LogRecord]:
        """Records with after < timestamp <= upto in (timestamp, sequence) order, read in short batches: of these tables
        only, if they are given. `between` is called before another batch is read, with how many records, of whatever
        table, the one before had.

        Raises 72000 if some of them were cut (`after` is below the watermark).
        """
        ...

    def collect(
        self,
        upto: int,
        dead_entries: Callable[[LogRecord], list[bytes]],
        between: Callable[[], None] = lambda: None,
    ) -> int:
        """Cut the log's prefix up to and including timestamp `upto`, with tombstones met there (rules 1, 4, 7).

        `dead_entries` gives, for a record's before-image, the index keys it had in every index whose rowset exists.
        Gated; watermark and cut are one store transaction. Returns the number of records cut. `between` is called every
        few dozen records; if it raises, what has been cut stays so.
        """
        ...

    def log_bytes(self) -> int:
        """About how many bytes the log holds."""
        ...

    def register_snapshot(self, snapshot: int) -> object:
        """Say (a hint, never needed for correctness) that `snapshot` is in use here; returns a token."""
        ...

    def release_snapshot(self, token: object) -> None: ...

    def oldest_snapshot(self) -> int | None:
        """The oldest snapshot that a living process registered no longer than `snapshot_max_age` ago."""
        ...

    def announce_worker(self, working: bool) -> None:
        """Say that this process does (or no longer does) background work for the store."""
        ...

    def worker_goes_on(self) -> None:
        """Say, if this process does background work, that it has not stopped. `background` says so too."""
        ...

    def worker_present(self) -> bool:
        """Whether a living process has announced itself as a worker, and goes on."""
        ...

    def worker_starting(self) -> bool:
        """Whether a worker was started lately, by any process, that has not announced itself yet."""
        ...

    def wants_worker(self) -> bool:
        """Whether the caller is to start a worker: none is there, and no process has started one a moment ago."""
        ...

    def foreground_about(self) -> bool:
        """Whether any process waits to commit in the foreground, or did so in the last few milliseconds."""
        ...

    def others_commit(self) -> bool:
        """Whether another process than this one, and no worker, has committed within the last second."""
        ...

    def foreground_queues(self) -> bool:
        """Whether a process waits to commit in the foreground while another does."""
        ...

    def processes(self) -> list[Process]:
        """The living processes that have the store open."""
        ...

    def this_process(self) -> tuple[int, int]:
        """The `pid` and `started_ns` of this one among them; no other ever has both."""
        ...

    def publish_schema(self, version: int, lease_until_ns: int) -> None:
        """Say which catalog version this process has cached, and until when its lease runs (0: without leases)."""
        ...

    def enlist(self, table: int, begun_us: int, *, into: list[int] | None = None, refused: bool = False) -> int:
        """Say (a hint) that a transaction begun at `begun_us` has written to `table`, or if `refused` that changes of
        its schema keep turning it back (0: of any schema); returns a token, which is noted in `into` before: an
        interrupt may come between."""
        ...

    def withdraw(self, token: int) -> None:
        """The transaction of that token has ended."""
        ...

    def writers(self) -> list[Writer]:
        """The open transactions that were enlisted by living processes."""
        ...

    def close(self) -> None: ...
