"""Which objects are no tables, and which tables take values of sequences: the ids, for those who look for what uses a
table or a sequence.

Tables may be many, and a change of one object is not to go through all. The ids are read once, and from then on
followed: the history of catalog versions says when the catalog was changed, and the log what was changed then. Where
they do not reach back far enough, the ids are read anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from instar.catalog import system
from instar.catalog.descriptors import Table
from instar.store.engine import LogRecord, Reader, Store, View
from instar.store.log import decode, log_key
from instar.store.schema_version import history_after

# Catalog rows come first in the log of their commit; a change has few of them.
_BATCH = 64


class Directory:
    """The ids of all objects of which `lists` says, of a stored descriptor, that they are to be listed, and that a
    snapshot from `_since` on may see: maybe more, never less. Not to be used by two threads at once."""

    def __init__(self, store: Store, lists: Callable[[bytes], bool]) -> None:
        self._store = store
        self._lists = lists
        self._known: set[int] = set()
        self._dropped: dict[int, int] = {}  # id -> when
        self._since = 0  # 0: nothing has been read yet
        self._upto = 0
        self._version = 0

    def ids(self, timestamp: int) -> list[int] | None:
        """The ids, in order, for a snapshot of that timestamp, which is no later than the store's newest; None if they
        are not known so far back."""
        if timestamp > self._upto or not self._since:
            self._follow()
        return sorted(self._known) if timestamp >= self._since else None

    def forget(self, oldest: int) -> None:
        """No snapshot before `oldest` will ask: what was dropped by then is not listed any more."""
        for object_id, dropped in list(self._dropped.items()):
            if dropped <= oldest:
                del self._dropped[object_id]
                self._known.discard(object_id)
                self._since = max(self._since, dropped)

    def _follow(self) -> None:
        with self._store.read() as reader:
            changes = list(self._changes(reader)) if self._since else [None]
            for record in changes:
                if record is not None:
                    self._note(reader, record)
            upto, version = reader.timestamp, reader.catalog_version
        if None in changes:
            self._since = 0
            found = system.iterate_descriptors(self._store, upto)
            self._known = {object_id for object_id, stored in found if self._lists(stored)}
            self._dropped = {}
            self._since = upto
        self._upto, self._version = upto, version

    def _changes(self, reader: Reader) -> Iterator[LogRecord | None]:
        """The changes of descriptors since; None if they are not all known."""
        for version, published in history_after(reader, self._version):
            timestamp = published.timestamp
            self._version += 1
            if version != self._version or timestamp <= reader.watermark:
                yield None
                return
            yield from descriptor_changes(reader, timestamp)
        if self._version != reader.catalog_version:
            yield None

    def _note(self, reader: Reader, record: LogRecord) -> None:
        object_id = system.decode_id(record.key)
        # As it was before and as it is now; what it was in between, the records after this one have.
        images = (stored for stored in (record.before, reader.get(record.key)) if stored is not None)
        if not any(not system.is_tombstone(stored) and self._lists(stored) for stored in images):
            return
        self._known.add(object_id)
        if record.deleted:
            self._dropped[object_id] = record.timestamp
        else:  # it may have come back
            self._dropped.pop(object_id, None)


def is_no_table(stored: bytes) -> bool:
    """Whether a stored descriptor is a view's or a sequence's."""
    return not system.is_kind(stored, Table)


def takes_numbers(stored: bytes) -> bool:
    """Whether a stored descriptor is that of a table which may take values of sequences."""
    found = system.decode_stored(stored) if system.is_kind(stored, Table) else None
    return isinstance(found, Table) and any(
        column.sequence is not None or "#" in (column.default or "") for column in found.columns
    )


def descriptor_changes(reader: View, timestamp: int) -> Iterator[LogRecord]:
    """What the commit of that timestamp has done to descriptors."""
    position, stop = log_key(timestamp, 0), log_key(timestamp + 1, 0)
    while True:
        keys, values = reader.batch(position, stop, _BATCH)
        for key, value in zip(keys, values, strict=True):
            for record in decode(key, value):
                if record.table not in (system.DESCRIPTORS, system.NAMES):
                    return
                if record.table == system.DESCRIPTORS:
                    yield record
        if len(keys) < _BATCH:
            return
        position = keys[-1] + b"\x00"
