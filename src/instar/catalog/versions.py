"""The metadata cache: a container per object and per name, with the versions of its row in the system tables.

MD-MVCC §3.2.2: what tells which version a snapshot sees (version metadata) is kept apart from the decoded descriptor
(payload), which goes first when memory is short and comes back when somebody asks. A container knows of each version
from when to when it is *proved* to have stood: a snapshot in between needs nothing else, any other has the row read,
from its newest version back to the one that the snapshot sees. So a change of the schema costs nothing here but a look
at the rows that statements really use, however many objects there are, and whoever made it.

Two descriptors of one version hardly ever live side by side: one that somebody still uses is found again, though it was
put out. So plans and compiled writers ask for nothing but `is`: it never takes one version for another, and a version
for another one only if its whole container was forgotten.

Nothing uncommitted comes here, so there are no ghosts of aborted changes (MD-MVCC §3.2.4): what a rolled back change
had made went with its session's `CatalogChange`.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from bisect import bisect_left
from collections.abc import Collection, Iterator, Set
from itertools import islice
from typing import NamedTuple

from instar import errors
from instar.catalog import system
from instar.catalog.descriptors import Object, Sequence, View
from instar.catalog.directory import Directory, is_no_table, takes_numbers
from instar.clock import Clock
from instar.store.engine import ROW_HEADER, Store
from instar.store.forks import begin_anew_in_child
from instar.store.versions import version_chain

DEFAULT_CACHE_BYTES = 64 << 20
COLLECT_SECONDS = 5.0

# What things take in memory, about; a descriptor as a multiple of its stored bytes (see benchmarks/metadata.py).
_CONTAINER_BYTES = 400
_VERSION_BYTES = 400
_PAYLOAD_FACTOR = 3
# Containers that are looked at to make room for one more, and by one collection.
_ATTEMPTS = 64
_EXAMINED = 512

NAME = "name"

# An object's id, or a name.
Label = int | str


class Version:
    """One version of a row of a system table: its metadata and, unless it was put out, its payload.

    It is proved to have stood from `since` (its commit's timestamp; where there was no row, maybe later) to `until`.
    `id` is the object's, for a name that of its bearer, None where there was no row.
    """

    __slots__ = ("id", "kept", "kind", "name", "payload", "queued", "since", "size", "until", "used")

    def __init__(self, since: int, until: int, id_: int | None, kind: str, name: str) -> None:
        self.since = since
        self.until = until
        self.id = id_
        self.kind = kind
        self.name = name
        self.payload: Object | None = None
        self.kept: weakref.ref[Object] | None = None  # the payload, as long as anybody uses it
        self.size = 0  # of the payload
        self.used = 0  # when it was last asked for (ns, monotonic)
        self.queued = 0  # when it took its place in the queue of those that may be put out


class Container:
    """The versions of one object, or of one name, which may have been borne by several objects: the newest first."""

    __slots__ = ("label", "queued", "versions")

    def __init__(self, label: Label, queued: int) -> None:
        self.label = label
        self.queued = queued  # when it took its place in the queue of those that may be forgotten
        self.versions: tuple[Version, ...] = ()  # replaced as a whole, so that it is read without the lock

    def at(self, snapshot: int) -> Version | None:
        """The version that a snapshot sees; None if it is not proved which one that is (rule 18)."""
        for version in self.versions:
            if version.since <= snapshot:
                return version if snapshot <= version.until else None
        return None

    def used(self) -> int:
        """When it was last asked for."""
        return max(version.used for version in self.versions)

    def is_held(self) -> bool:
        """Whether anybody has one of the payloads."""
        return any(version.kept is not None and version.kept() is not None for version in self.versions)


class ContainerRow(NamedTuple):
    """What instar.metadata_cache says of a container; times are a timestamp of the store and monotonic nanoseconds."""

    kind: str
    id: int | None
    name: str
    versions: int
    payloads: int
    bytes: int
    changed: int
    used_ns: int


class Seen:
    """What there is at one timestamp. As made by `MetadataCache.seen`, it keeps what it sees from being collected.

    `upto` is a later timestamp, or the same, at which there was the same catalog version still: what is not at hand is
    read as of then, for of a moment long ago the log may know nothing any more.
    """

    __slots__ = ("__weakref__", "_cache", "timestamp", "upto")

    def __init__(self, cache: MetadataCache, timestamp: int, upto: int = 0) -> None:
        self._cache = cache
        self.timestamp = timestamp
        self.upto = max(timestamp, upto)

    def by_id(self, object_id: int) -> Object | None:
        """The object of that id. 72000 if it must be read, and the log is cut past the timestamp."""
        return self._cache.object_at(object_id, self)

    def bearer(self, name: str) -> Object | None:
        """The object that bears a name, itself or with an index or key; 72000 as above."""
        found = self._cache.bearer_at(name, self)
        return None if found is None else self._cache.object_at(found, self)

    def of_kind(self, kind: type[Object] | None, *, taking: bool = False) -> Iterator[Object]:
        """All objects, or those of one kind, in the order of their ids: read from the store. `taking`: of the tables
        those that take values of sequences. 72000 as above."""
        return self._cache.scan(kind, self, taking=taking)

    def own(self) -> tuple[Set[int], Set[str]]:
        """The ids and names of what is otherwise than what is committed: none."""
        return frozenset(), frozenset()

    def unheld(self) -> Seen:
        """The same, for what outlives its statement: what it sees may be collected, and is read again if need be."""
        return Seen(self._cache, self.timestamp, self.upto)


class MetadataCache:
    """The containers of one process. `limit`: how many bytes they may take, about."""

    def __init__(self, store: Store, clock: Clock, limit: int = DEFAULT_CACHE_BYTES) -> None:
        self.limit = limit
        self._metadata = 0  # bytes of the containers
        self._payloads = 0  # bytes of the payloads
        self._store = store
        self._now = clock.monotonic_ns
        self._containers: dict[Label, Container] = {}
        self._queue: dict[Version, None] = {}  # versions with payload, the first to be put out first
        self._several: set[Container] = set()  # containers of which there may be something to collect
        self._live: weakref.WeakSet[Seen] = weakref.WeakSet()
        self._directory = Directory(store, is_no_table)
        self._takers = Directory(store, takes_numbers)
        self._collected_ns = clock.monotonic_ns()
        self._lock = threading.Lock()
        begin_anew_in_child(self)

    def forked(self) -> None:
        """In a child: what is cached holds there too; a thread that is not there may have been in the middle of it."""
        self._lock = threading.Lock()
        self._live = weakref.WeakSet(list(self._live))
        self._directory = Directory(self._store, is_no_table)
        self._takers = Directory(self._store, takes_numbers)
        containers = list(self._containers.values())
        versions = [version for container in containers for version in container.versions]
        self._queue = {version: None for version in versions if version.payload is not None}
        self._several = set(containers)
        self._metadata = _CONTAINER_BYTES * len(containers) + _VERSION_BYTES * len(versions)
        self._payloads = sum(version.size for version in self._queue)

    @property
    def size(self) -> int:
        """What it takes now, about."""
        return self._metadata + self._payloads

    # --- looking up --------------------------------------------------------------------------------------------------

    def seen(self, timestamp: int) -> Seen:
        """What there is at a timestamp, held: at the newest of the store, or one that its watermark has not passed."""
        made = Seen(self, timestamp)
        with self._lock:
            self._live.add(made)
        return made

    def object_at(self, object_id: int, seen: Seen) -> Object | None:
        """The object of that id; None if there is none."""
        container = self._containers.get(object_id)
        if container is not None:
            version = container.at(seen.timestamp)
            if version is not None:
                version.used = self._now()
                found = version.payload
                if found is not None or version.id is None:
                    return found
        return self._object(object_id, seen)

    def bearer_at(self, name: str, seen: Seen) -> int | None:
        """The id of the object that bears a name; None if nobody does."""
        container = self._containers.get(name)
        version = None if container is None else container.at(seen.timestamp)
        if version is None:
            key = _key(name)
            if len(key) > self._store.max_key_bytes:  # nobody can bear it
                return None
            with self._lock:
                version, _ = self._prove(name, key, seen.timestamp, seen.upto)
                self._make_room()
        version.used = self._now()
        return version.id

    def scan(self, kind: type[Object] | None, seen: Seen, *, taking: bool = False) -> Iterator[Object]:
        """All objects, or those of one kind; others are not decoded, and for views and sequences tables not read.
        `taking`: of the tables at least those that take values of sequences, and no others than must be."""
        if kind is not None and (taking or kind in (View, Sequence)):
            with self._lock:
                ids = (self._takers if taking else self._directory).ids(seen.timestamp)
            if ids is not None:
                found = (self.object_at(object_id, seen) for object_id in ids)
                yield from (one for one in found if isinstance(one, kind))
                return
        yield from self._read_all(kind, seen.upto)

    def _read_all(self, kind: type[Object] | None, snapshot: int) -> Iterator[Object]:
        for object_id, stored in system.iterate_descriptors(self._store, snapshot):
            if kind is None or system.is_kind(stored, kind):
                with self._lock:
                    version = self._record(object_id, stored, ROW_HEADER.unpack_from(stored)[0], snapshot)
                    found = self._admitted(version, _payload_of(version), stored)
                    self._make_room()
                yield found

    def _object(self, object_id: int, seen: Seen) -> Object | None:
        """As `object_at`, where something is to be read."""
        if not 0 < object_id < 1 << 63:  # of a text that looks like a reference and is none
            return None
        with self._lock:
            container = self._containers.get(object_id)
            version = None if container is None else container.at(seen.timestamp)
            found = None if version is None else _payload_of(version)
            stored = None
            if version is None or (found is None and version.id is not None):
                version, stored = self._prove(object_id, _key(object_id), seen.timestamp, seen.upto)
                found = _payload_of(version)
            version.used = self._now()
            if version.id is not None:
                found = self._admitted(version, found, stored)
            self._make_room()
            return found

    # --- reading (with the lock) -------------------------------------------------------------------------------------

    def _prove(self, label: Label, key: bytes, snapshot: int, upto: int) -> tuple[Version, bytes | None]:
        """Read the row at `key` from its newest version back to the one that was there at `upto`, and at `snapshot`:
        that one, and what is stored of it. The others' metadata is recorded on the way."""
        with self._store.read() as reader:
            chain = list(version_chain(reader, key, upto))
            until = reader.timestamp
        for since, stored in chain:
            version = self._record(label, stored, min(since, snapshot) if since <= upto else since, until)
            until = since - 1
        return version, None if version.id is None else stored

    def _record(self, label: Label, stored: bytes | None, since: int, until: int) -> Version:
        """The version that stood from `since` to `until` at least, with what was known of it before."""
        container = self._containers.get(label)
        if container is None:
            container = self._containers[label] = Container(label, self._now())
            self._metadata += _CONTAINER_BYTES
        place = 0  # behind all that came later
        for known in container.versions:
            same = known.since == since if stored is not None else known.since <= since <= known.until
            if same and (known.id is None) == (stored is None):
                known.until = max(known.until, until)
                return known
            if known.since < since:
                break
            place += 1
        made = _version(label, stored, since, max(since, until))
        container.versions = (*container.versions[:place], made, *container.versions[place:])
        self._metadata += _VERSION_BYTES
        if len(container.versions) > 1 or made.id is None:
            self._several.add(container)
        return made

    def _admitted(self, version: Version, found: Object | None, stored: bytes | None) -> Object:
        """The payload, `found` if it is at hand, else what is stored; it takes its place in the queue."""
        if found is None:
            assert stored is not None  # it was read, or had been at hand
            found = system.decode_descriptor(stored[ROW_HEADER.size :])
            version.kept = weakref.ref(found)
            version.size = _PAYLOAD_FACTOR * len(stored)
        if version.payload is None:
            version.payload = found
            version.queued = self._now()
            self._queue[version] = None
            self._payloads += version.size
        return found

    # --- memory (with the lock) --------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """Put out payloads, those not asked for longest first. Metadata is small, and goes only where it would leave no
        room for payloads."""
        if self._metadata > self.limit // 2:
            self._forget_some()
        while self.size > self.limit and self._queue:
            version = next(iter(self._queue))
            del self._queue[version]
            if version.used > version.queued:
                version.queued = self._now()
                self._queue[version] = None
            else:
                self._put_out(version)

    def _forget_some(self) -> None:
        """Forget containers that were not asked for lately, and of which nobody has a payload; the others take their
        turn again."""
        for label in list(islice(self._containers, _ATTEMPTS)):
            container = self._containers.pop(label)
            if container.used() > container.queued:
                container.queued = self._now()
                self._containers[label] = container
                continue
            for version in container.versions:
                if version.payload is not None:
                    del self._queue[version]
                    self._put_out(version)
            if container.is_held():
                self._containers[label] = container
                continue
            self._forget(container, container.versions)
            self._metadata -= _CONTAINER_BYTES
            if self._metadata <= self.limit // 2:
                return

    def _forget(self, container: Container, gone: Collection[Version]) -> None:
        """Take versions out of their container."""
        for version in gone:
            if version.payload is not None:
                del self._queue[version]
                self._put_out(version)
        container.versions = tuple(version for version in container.versions if version not in gone)
        self._metadata -= _VERSION_BYTES * len(gone)
        if len(container.versions) < 2 and all(version.id is not None for version in container.versions):
            self._several.discard(container)

    def _put_out(self, version: Version) -> None:
        version.payload = None
        self._payloads -= version.size

    # --- collection --------------------------------------------------------------------------------------------------

    def tend(self) -> None:
        """Collect, if that was not done a moment ago. Called where commits and new catalog versions pass by."""
        now = self._now()
        if now - self._collected_ns >= COLLECT_SECONDS * 1e9:
            self._collected_ns = now
            with contextlib.suppress(errors.Error):  # of the disk, say: it shows where something is needed
                self.collect()

    def collect(self) -> int:
        """Forget superseded versions that nobody's snapshot in this process sees (MD-MVCC §3.2.4); how many there were.

        A snapshot that comes later, of a moment in the past, has them read again. It is a matter of memory alone: what
        may be cut from the log, others decide, for all processes.
        """
        with self._lock:
            seen = sorted(self._live, key=lambda seen: seen.timestamp)
            live = [found.timestamp for found in seen]
            if seen:
                self._directory.forget(live[0])
                self._takers.forget(live[0])
                self._examine(seen[-1])
            count = 0
            for container in list(self._several):
                gone = [version for version in container.versions[1:] if not _is_seen(version, live)]
                newest = container.versions[0]
                if newest.id is None and len(gone) == len(container.versions) - 1 and not _is_seen(newest, live):
                    gone.append(newest)
                self._forget(container, gone)
                count += len(gone)
                if not container.versions:
                    del self._containers[container.label]
                    self._metadata -= _CONTAINER_BYTES
            return count

    def _examine(self, newest: Seen) -> None:
        """See whether what nobody has asked for since the last change is there still, some containers at a time: of
        what others have dropped, nobody would tell."""
        for label in list(islice(self._containers, _EXAMINED)):
            container = self._containers[label] = self._containers.pop(label)
            version = container.versions[0]
            if version.id is not None and version.until < newest.timestamp:
                self._prove(label, _key(label), newest.timestamp, newest.upto)

    # --- what there is -----------------------------------------------------------------------------------------------

    def rows(self) -> list[ContainerRow]:
        """A row per container, objects first, in the order of ids and names."""
        with self._lock:
            known = sorted(self._containers.values(), key=lambda found: (isinstance(found.label, str), found.label))
            return [_row(container) for container in known]


def _key(label: Label) -> bytes:
    return system.name_key(label) if isinstance(label, str) else system.descriptor_key(label)


def _version(label: Label, stored: bytes | None, since: int, until: int) -> Version:
    if isinstance(label, str):
        return Version(since, until, None if stored is None else system.decode_bearer(stored), NAME, label)
    if stored is None:
        return Version(since, until, None, "", "")
    head = system.decode_head(stored)
    return Version(since, until, label, head.kind, head.name)


def _payload_of(version: Version) -> Object | None:
    """The payload, if it is here, or anywhere."""
    return version.payload if version.kept is None else version.kept()


def _is_seen(version: Version, live: list[int]) -> bool:
    """Whether one of the timestamps, which are in order, lies in the version's time."""
    place = bisect_left(live, version.since)
    return place < len(live) and live[place] <= version.until


def _row(container: Container) -> ContainerRow:
    versions = container.versions
    described = next((version for version in versions if version.id is not None), versions[0])
    held = [version for version in versions if version.payload is not None]
    return ContainerRow(
        described.kind,
        described.id,
        described.name,
        len(versions),
        len(held),
        _CONTAINER_BYTES + _VERSION_BYTES * len(versions) + sum(version.size for version in held),
        versions[0].since,
        container.used(),
    )
