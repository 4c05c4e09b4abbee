"""The rows of instar.servers, instar.schema_versions and instar.metadata_cache: who has the store open, under which
schema version, and what of the schema this process remembers.

What servers say of themselves is a hint, and may be of a moment ago; the versions are the store's own record.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

from instar.catalog.versions import MetadataCache
from instar.clock import Clock
from instar.store.engine import Store
from instar.store.header import TIMESTAMP_SHIFT
from instar.store.schema_version import history


def server_rows(store: Store, clock: Clock) -> Iterator[tuple[object, ...]]:
    """A row of internal values per living process, the oldest first; times are microseconds since the epoch."""
    wall, monotonic = clock.wall_ns(), clock.monotonic_ns()

    def moment(monotonic_ns: int) -> int:
        return (wall + monotonic_ns - monotonic) // 1000

    for found in sorted(store.processes(), key=lambda process: (process.started_ns, process.pid)):
        yield (
            found.pid,
            moment(found.started_ns),
            found.schema_version or None,
            moment(found.lease_until_ns) if found.lease_until_ns else None,
            found.worker,
            found.pid == os.getpid(),
        )


def cache_rows(cache: MetadataCache, clock: Clock) -> Iterator[tuple[object, ...]]:
    """A row of internal values per container of the metadata cache, objects first."""
    wall, monotonic = clock.wall_ns(), clock.monotonic_ns()
    for found in cache.rows():
        changed_us = (found.changed >> TIMESTAMP_SHIFT) * 1000
        used_us = (wall + found.used_ns - monotonic) // 1000 if found.used_ns else None
        yield (
            found.kind or None, found.id, found.name or None, found.versions, found.payloads, found.bytes, changed_us,
            used_us,
        )  # fmt: skip


def version_rows(store: Store) -> Iterator[tuple[object, ...]]:
    """A row of internal values per schema version that is remembered, the oldest first."""
    servers = Counter(found.schema_version for found in store.processes())
    with store.read() as reader:
        known = list(history(reader))
    for version, published in known:
        committed_us = (published.timestamp >> TIMESTAMP_SHIFT) * 1000
        yield version, committed_us, published.change or None, published.abrupt, servers[version]
