"""Look-ups as of a snapshot: accessors that hide from their callers that there are versions (MD-MVCC §3.2.3).

A snapshot of the database is (timestamp, catalog version), both read from one header in one store transaction. A
`CatalogSnapshot` made at a version is right for every snapshot that shows the same version (rule 18), so a process
keeps the newest one, and a statement compares one number. It holds nothing itself: objects are found when they are
asked for, in the metadata cache (versions.py), so that a new version costs nothing, and the first use of an object
under it a look at the object's row.
"""

from __future__ import annotations

import contextlib
import heapq
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from types import MappingProxyType
from typing import Protocol

from instar import errors
from instar.catalog.descriptors import Column, Kept, Object, Sequence, Table, View, is_seen
from instar.catalog.system import relation_names
from instar.catalog.versions import DEFAULT_CACHE_BYTES, MetadataCache, Seen
from instar.clock import Clock
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


class Objects(Protocol):
    """The objects of one snapshot: committed ones (`versions.Seen`), or those with changes laid over them."""

    def by_id(self, object_id: int) -> Object | None: ...

    def bearer(self, name: str) -> Object | None: ...

    def of_kind(self, kind: type[Object] | None, *, taking: bool = False) -> Iterator[Object]: ...

    def own(self) -> tuple[Set[int], Set[str]]: ...

    def unheld(self) -> Objects: ...


class _Nothing:
    """No objects."""

    def by_id(self, object_id: int) -> Object | None:
        return None

    def bearer(self, name: str) -> Object | None:
        return None

    def of_kind(self, kind: type[Object] | None, *, taking: bool = False) -> Iterator[Object]:
        return iter(())

    def own(self) -> tuple[Set[int], Set[str]]:
        return frozenset(), frozenset()

    def unheld(self) -> Objects:
        return self


class _Changed:
    """Objects put in and taken out (None) over others, and the names that were given and taken away by that."""

    __slots__ = ("_base", "_names", "_objects")

    def __init__(self, base: Objects, objects: dict[int, Object | None], names: dict[str, int | None]) -> None:
        self._base = base
        self._objects = objects
        self._names = names

    def by_id(self, object_id: int) -> Object | None:
        if object_id in self._objects:
            return self._objects[object_id]
        return self._base.by_id(object_id)

    def bearer(self, name: str) -> Object | None:
        if name in self._names:
            found = self._names[name]
            return None if found is None else self.by_id(found)
        return self._base.bearer(name)

    def of_kind(self, kind: type[Object] | None, *, taking: bool = False) -> Iterator[Object]:
        own = (found for _, found in sorted(self._objects.items()) if found is not None)
        put = (found for found in own if kind is None or isinstance(found, kind))
        left = (found for found in self._base.of_kind(kind, taking=taking) if found.id not in self._objects)
        return heapq.merge(left, put, key=lambda found: found.id)

    def own(self) -> tuple[Set[int], Set[str]]:
        return self._objects.keys(), self._names.keys()

    def unheld(self) -> Objects:
        return _Changed(self._base.unheld(), self._objects, self._names)

    def changed(self, put: Iterable[Object], dropped: Iterable[int]) -> _Changed:
        """These with others put in or taken out."""
        made = _Changed(self._base, self._objects.copy(), self._names.copy())
        for object_id in dropped:
            made._take(object_id, ())
            made._objects[object_id] = None
        for new in put:
            names = relation_names(new)
            made._take(new.id, names)
            made._objects[new.id] = new
            made._names.update(dict.fromkeys(names, new.id))
        return made

    def _take(self, object_id: int, kept: Collection[str]) -> None:
        """Take the names of an object away, but for some, and those that others have got."""
        old = self.by_id(object_id)
        for name in relation_names(old) if old is not None else ():
            if name not in kept and self._names.get(name, object_id) == object_id:
                self._names[name] = None


class _Mapped:
    """Other objects, with something else made of each table, once."""

    __slots__ = ("_base", "_made", "_make")

    def __init__(self, base: Objects, make: Callable[[Table], Table]) -> None:
        self._base = base
        self._make = make
        self._made: dict[int, Table] = {}

    def _of(self, found: Object | None) -> Object | None:
        if not isinstance(found, Table):
            return found
        if found.id not in self._made:
            self._made[found.id] = self._make(found)
        return self._made[found.id]

    def by_id(self, object_id: int) -> Object | None:
        return self._of(self._base.by_id(object_id))

    def bearer(self, name: str) -> Object | None:
        return self._of(self._base.bearer(name))

    def of_kind(self, kind: type[Object] | None, *, taking: bool = False) -> Iterator[Object]:
        return (made for found in self._base.of_kind(kind, taking=taking) if (made := self._of(found)) is not None)

    def own(self) -> tuple[Set[int], Set[str]]:
        return self._base.own()

    def unheld(self) -> Objects:
        made = _Mapped(self._base.unheld(), self._make)
        made._made = self._made
        return made


class CatalogSnapshot:
    """All objects at one catalog version. Immutable; shared by all sessions of a process.

    What is asked of it may have to be read from the store: 72000 if the watermark has passed it by then.
    """

    __slots__ = ("_objects", "_system_views", "by_id", "version")

    def __init__(
        self,
        version: int,
        objects: Objects,
        system_views: Mapping[tuple[str, str], SystemView] = MappingProxyType({}),
    ) -> None:
        self.version = version
        self._objects = objects
        self._system_views = system_views
        # The object of that id, or None: the very function, since every statement asks.
        self.by_id = objects.by_id

    @classmethod
    def of(
        cls,
        objects: Iterable[Object],
        version: int = 0,
        system_views: Mapping[tuple[str, str], SystemView] = MappingProxyType({}),
    ) -> CatalogSnapshot:
        """These objects and no others, whatever there is in any store."""
        return cls(version, _Nothing(), system_views).changed(objects, ())

    def lookup(self, schema: str | None, name: str) -> Object | SystemView | None:
        """The object of that name. Without a schema: public first, then pg_catalog, as PostgreSQL's search path."""
        if schema in (None, PUBLIC_SCHEMA):
            found = self._objects.bearer(name)
            if found is not None and found.name == name and is_seen(found):
                return found
        if schema == PUBLIC_SCHEMA:
            return None
        return self._system_views.get((schema or "pg_catalog", name))

    def relation(self, name: str) -> Object | None:
        """The object that bears the name among relations: itself, or a table with one of its indexes or its key."""
        return self._objects.bearer(name)

    def has_schema(self, schema: str) -> bool:
        """Whether there is a schema of that name: "public", or one that holds system views."""
        return schema == PUBLIC_SCHEMA or any(key[0] == schema for key in self._system_views)

    def table(self, table_id: int) -> Table:
        """The table of that id; XX001 if there is none (a descriptor that points nowhere)."""
        found = self.by_id(table_id)
        if not isinstance(found, Table):
            raise errors.error(errors.DATA_CORRUPTED, f"the catalog has no table of id {table_id}")
        return found

    def objects(self) -> Iterator[Object]:
        """All of them, unseen ones too, in the order of their ids, read as they are taken: for those who need all."""
        return self._objects.of_kind(None)

    def tables(self) -> Iterator[Table]:
        """The tables that statements can name."""
        return filter(is_seen, self.every_table())

    def every_table(self) -> Iterator[Table]:
        """These, and those that are only being made of others."""
        return (found for found in self._objects.of_kind(Table) if isinstance(found, Table))

    def takers(self, sequence: int) -> Iterator[tuple[Table, Column]]:
        """The columns that take values of the sequence of that id."""
        for found in self._objects.of_kind(Table, taking=True):
            if isinstance(found, Table):
                yield from ((found, column) for column in found.columns if column.takes_from(sequence))

    def kept_of(self, source: int) -> Kept | None:
        """What is known of the join or split that the table of this id was a source of, as long as changes of it may
        still come; None of all others."""
        for table in self.tables():
            if table.crossing is not None and source in table.crossing.kept.made.sources:
                return table.crossing.kept
        return None

    def views(self) -> Iterator[View]:
        return (found for found in self._objects.of_kind(View) if isinstance(found, View))

    def sequences(self) -> Iterator[Sequence]:
        return (found for found in self._objects.of_kind(Sequence) if isinstance(found, Sequence))

    def system_views(self) -> Iterable[SystemView]:
        return self._system_views.values()

    def changed(self, put: Iterable[Object], dropped: Iterable[int]) -> CatalogSnapshot:
        """This snapshot with objects put in or taken out: how a session sees its own uncommitted DDL."""
        objects = self._objects
        under = objects if isinstance(objects, _Changed) else _Changed(objects, {}, {})
        return CatalogSnapshot(self.version, under.changed(put, dropped), self._system_views)

    def mapped(self, make: Callable[[Table], Table]) -> CatalogSnapshot:
        """This snapshot with what `make` makes of each table, when it is first asked for."""
        return CatalogSnapshot(self.version, _Mapped(self._objects, make), self._system_views)

    def own(self) -> tuple[Set[int], Set[str]]:
        """The ids of the objects that were put in or taken out, and the names that were given or taken away by that."""
        return self._objects.own()

    def unheld(self) -> CatalogSnapshot:
        """The same for what outlives its statement (plans), and is to keep no old versions from being collected."""
        return CatalogSnapshot(self.version, self._objects.unheld(), self._system_views)

    def remembering(self, older: CatalogSnapshot) -> Remembering:
        """This snapshot with the names that its objects bore in an older one, as far as nothing bears them now and the
        log reaches back to it."""
        return Remembering(self, older)


class Remembering(CatalogSnapshot):
    """`gone`: what a name was looked up for that is not there under any name now; the last one."""

    __slots__ = ("_older", "gone")

    def __init__(self, now: CatalogSnapshot, older: CatalogSnapshot) -> None:
        super().__init__(now.version, now._objects, now._system_views)
        self._older = older
        self.gone: Object | None = None

    def lookup(self, schema: str | None, name: str) -> Object | SystemView | None:
        found = super().lookup(schema, name)
        if schema not in (None, PUBLIC_SCHEMA) or isinstance(found, Object):
            return found
        try:
            former = self._older.lookup(PUBLIC_SCHEMA, name)
        except errors.Error as failed:
            if failed.sqlstate != errors.SNAPSHOT_TOO_OLD:
                raise
            return found
        if not isinstance(former, Object):
            return found
        renamed = self.by_id(former.id)
        if renamed is None:
            self.gone = former
        return renamed or found


class Catalog:
    """The catalog of one store in this process: the newest version that it has seen, and the metadata cache."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        system_views: Iterable[SystemView] = (),
        loaded: Callable[[int], None] = lambda version: None,
        *,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        """`loaded` is called with each version that becomes the newest here; `cache_bytes`: what the metadata cache
        may take."""
        self.cache = MetadataCache(store, clock, cache_bytes)
        self._store = store
        self._tell = loaded
        self._system_views = MappingProxyType({(view.schema, view.name): view for view in system_views})
        self._newest = CatalogSnapshot(-1, _Nothing(), self._system_views), Seen(self.cache, 0)
        self.forked()
        begin_anew_in_child(self)

    def forked(self) -> None:
        """In a child: what is cached holds there too, the lock may be held by a thread that is not there."""
        self._lock = threading.Lock()

    def at(self, reader: Reader) -> CatalogSnapshot:
        """The catalog of the newest state that `reader` sees, in the same store transaction (rule 18)."""
        newest, seen = self._newest
        if newest.version == reader.catalog_version:
            seen.upto = reader.timestamp
            return newest
        with self._lock:
            newest, _ = self._newest
            if newest.version == reader.catalog_version:
                return newest
            seen = self.cache.seen(reader.timestamp)
            made = CatalogSnapshot(reader.catalog_version, seen, self._system_views)
            # An older reader may come late; it must not put an older catalog in the place of a newer one.
            if made.version > newest.version:
                self._newest = made, seen
                self._tell(made.version)
        self.cache.tend()
        return made

    def confirm(self, catalog: CatalogSnapshot, reader: Reader) -> None:
        """`reader` shows the version of `catalog`, which `at` has given: what need not be read again is not."""
        newest, seen = self._newest
        if newest is catalog:
            seen.upto = reader.timestamp

    def past(self, snapshot: int) -> CatalogSnapshot:
        """The catalog as it was at a timestamp, for the asker alone; 72000 if the log is cut past it."""
        self._store.read_at(snapshot).close()
        return CatalogSnapshot(self._newest[0].version, self.cache.seen(snapshot), self._system_views)

    def settle(self, change: CatalogSnapshot) -> None:
        """This process has committed what `change` shows: what is gone by it is noted as gone. Nobody asks for it any
        more, and so nobody would find out."""
        ids, names = change.own()
        with contextlib.suppress(errors.Error), self._store.read() as reader:  # the commit stands
            newest = self.at(reader)
            for object_id in ids:
                newest.by_id(object_id)
            for name in names:
                newest.relation(name)
