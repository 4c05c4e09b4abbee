"""Look-ups as of a snapshot, and the catalog changes of one transaction or stage.

A snapshot of the database is (timestamp, catalog version), both read from one header in one store transaction. A
`CatalogSnapshot` loaded at a version is right for every snapshot that shows the same version (rule 18), so a process
keeps the newest one and reads the catalog again only when the header shows another version.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Protocol

from instar import errors
from instar.catalog import system
from instar.catalog.descriptors import Object, Sequence, Table, View
from instar.store.engine import Reader, Store
from instar.store.forks import begin_anew_in_child
from instar.types import Type

PUBLIC_SCHEMA = "public"


class SystemView(Protocol):
    """A view whose rows are made by system_tables.py: `instar.*`, information_schema, pg_catalog."""

    @property
    def schema(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def columns(self) -> tuple[tuple[str, Type], ...]: ...


class CatalogSnapshot:
    """All objects at one catalog version. Immutable; shared by all sessions of a process."""

    __slots__ = ("_ids", "_names", "_system_views", "version")

    def __init__(
        self,
        version: int,
        ids: Mapping[int, Object],
        names: Mapping[str, int],
        system_views: Mapping[tuple[str, str], SystemView] = MappingProxyType({}),
    ) -> None:
        self.version = version
        self._ids = ids
        self._names = names
        self._system_views = system_views

    def lookup(self, schema: str | None, name: str) -> Object | SystemView | None:
        """The object of that name. Without a schema: public first, then pg_catalog, as PostgreSQL's search path."""
        if schema in (None, PUBLIC_SCHEMA):
            found = self._names.get(name)
            if found is not None:
                return self._ids[found]
        if schema == PUBLIC_SCHEMA:
            return None
        return self._system_views.get((schema or "pg_catalog", name))

    def has_schema(self, schema: str) -> bool:
        """Whether there is a schema of that name: "public", or one that holds system views."""
        return schema == PUBLIC_SCHEMA or any(key[0] == schema for key in self._system_views)

    def by_id(self, object_id: int) -> Object | None:
        return self._ids.get(object_id)

    def table(self, table_id: int) -> Table:
        """The table of that id; XX001 if there is none (a descriptor that points nowhere)."""
        found = self._ids.get(table_id)
        if not isinstance(found, Table):
            raise errors.error(errors.DATA_CORRUPTED, f"the catalog has no table of id {table_id}")
        return found

    def objects(self) -> Iterable[Object]:
        return self._ids.values()

    def tables(self) -> Iterable[Table]:
        return (found for found in self._ids.values() if isinstance(found, Table))

    def views(self) -> Iterable[View]:
        return (found for found in self._ids.values() if isinstance(found, View))

    def sequences(self) -> Iterable[Sequence]:
        return (found for found in self._ids.values() if isinstance(found, Sequence))

    def system_views(self) -> Iterable[SystemView]:
        return self._system_views.values()

    def changed(self, put: Iterable[Object], dropped: Iterable[int]) -> CatalogSnapshot:
        """This snapshot with objects put in or taken out: how a session sees its own uncommitted DDL."""
        ids = dict(self._ids)
        names = dict(self._names)
        for object_id in dropped:
            names.pop(ids.pop(object_id).name, None)
        for new in put:
            old = ids.get(new.id)
            if old is not None and old.name != new.name and names.get(old.name) == new.id:
                del names[old.name]
            ids[new.id] = new
            names[new.name] = new.id
        return CatalogSnapshot(self.version, ids, names, self._system_views)


class Catalog:
    """The process's cache of the newest catalog version it has seen."""

    def __init__(
        self, system_views: Iterable[SystemView] = (), loaded: Callable[[int], None] = lambda version: None
    ) -> None:
        """`loaded` is called with each version that becomes the newest here."""
        self._tell = loaded
        self._system_views = MappingProxyType({(view.schema, view.name): view for view in system_views})
        self.forked()
        begin_anew_in_child(self)
        self._newest = CatalogSnapshot(-1, {}, {}, self._system_views)
        self._loaded: dict[int, tuple[int, Object]] = {}  # id -> (commit timestamp of the row, descriptor)

    def forked(self) -> None:
        """In a child: what is cached holds there too, the lock may be held by a thread that is not there."""
        self._lock = threading.Lock()

    def at(self, reader: Reader) -> CatalogSnapshot:
        """The catalog of the newest state that `reader` sees, in the same store transaction (rule 18)."""
        newest = self._newest
        if newest.version == reader.catalog_version:
            return newest
        with self._lock:
            loaded = self._load(reader)
            # An older reader may come late; it must not put an older catalog in the place of a newer one.
            if loaded.version > self._newest.version:
                self._newest = loaded
                self._tell(loaded.version)
            return loaded

    def past(self, store: Store, snapshot: int) -> CatalogSnapshot:
        """The catalog as it was at a timestamp, made for the asker alone; 72000 if the log is cut past it."""
        ids: dict[int, Object] = {}
        for object_id, body in system.read_past_descriptors(store, snapshot):
            ids[object_id] = system.decode_descriptor(body)
        names = {found.name: object_id for object_id, found in ids.items()}
        return CatalogSnapshot(self._newest.version, ids, names, self._system_views)

    def _load(self, reader: Reader) -> CatalogSnapshot:
        loaded: dict[int, tuple[int, Object]] = {}
        for object_id, timestamp, body in system.read_descriptors(reader):
            known = self._loaded.get(object_id)
            if known is not None and known[0] == timestamp:
                loaded[object_id] = known
            else:
                loaded[object_id] = (timestamp, system.decode_descriptor(body))
        self._loaded = loaded
        ids = {object_id: found for object_id, (_, found) in loaded.items()}
        names = {found.name: object_id for object_id, found in ids.items()}
        return CatalogSnapshot(reader.catalog_version, ids, names, self._system_views)
