"""Stores as Spark's Python workers see them: opened once per process and kept, for workers are used again.

Spark forks its Python workers from a daemon that has opened nothing; each opens a store with the first task that needs
it. On an LMDB store all of them must run on the store's host: a task proves it by the store's uuid.
"""

from __future__ import annotations

import os

from instar import errors
from instar.catalog import system
from instar.catalog.catalog import Catalog
from instar.catalog.descriptors import Table
from instar.catalog.layouts import Layouts
from instar.store.engine import Store, prefix_end, rowset_prefix
from instar.store.lmdb import open_store
from instar.store.versions import iterate_rows

_DESCRIPTORS = rowset_prefix(system.DESCRIPTORS)


class Opened:
    """A store in this process, with its caches of layouts and catalog."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.layouts = Layouts(store)
        self.catalog = Catalog()


_opened: dict[tuple[int, str], Opened] = {}


def opened(path: str, uuid: bytes | None = None) -> Opened:
    """The store at `path`, opened by this process once. 0A000 if it is not the one whose `uuid` the driver saw."""
    key = os.getpid(), os.path.realpath(path)
    found = _opened.get(key)
    if found is None:
        if uuid is not None and not os.path.isdir(path):
            raise _another_host(path)
        found = _opened[key] = Opened(open_store(path, create=False, write_map=False))
    if uuid is not None and found.store.uuid != uuid:
        raise _another_host(path)
    return found


def forget(path: str) -> None:
    """Close this process's own opening of the store at `path`, if it has one."""
    found = _opened.pop((os.getpid(), os.path.realpath(path)), None)
    if found is not None:
        found.store.close()


def _another_host(path: str) -> errors.Error:
    return errors.error(
        errors.FEATURE_NOT_SUPPORTED,
        f"a Spark executor does not see the store of the driver at {path}",
        detail="An LMDB store is shared memory: every process that opens it runs on one host.",
        hint="Use a local master (local[*]) on the store's host.",
    )


def table_at(store: Store, name: str, snapshot: int) -> Table:
    """The table of that name as of `snapshot`. 42P01 if there was none then, 42809 if it was no table."""
    start = _DESCRIPTORS
    for _, values in iterate_rows(store, start, prefix_end(start), snapshot):
        for value in values:
            found = system.decode_stored(value)
            if found is not None and found.name == name:
                if isinstance(found, Table):
                    return found
                raise errors.error(errors.WRONG_OBJECT_TYPE, f'"{name}" is not a table')
    raise errors.error(errors.UNDEFINED_TABLE, f'relation "{name}" does not exist')
