"""Stores as Spark's Python workers see them: opened once per process and kept, for workers are used again.

Spark forks its Python workers from a daemon that has opened nothing; each opens a store with the first task that needs
it. On an LMDB store all of them must run on the store's host. A task proves it first of all, by the store's uuid, the
boot of the host and the number of the data file: a copy of the store has the same uuid, and is not the store.
"""

from __future__ import annotations

import os
import socket
import struct

from instar import errors
from instar.catalog.catalog import PUBLIC_SCHEMA, Catalog
from instar.catalog.descriptors import Table
from instar.catalog.layouts import Layouts
from instar.clock import SystemClock
from instar.store.directory import DATA_FILE
from instar.store.engine import Store
from instar.store.lmdb import open_store

_FILE = struct.Struct("<QQ")
_UUID_BYTES = 16
_HINT = "Use a local master (local[*]), or one whose executors run on the store's host and see its files."


class Opened:
    """A store in this process, with its caches of layouts and catalog."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.layouts = Layouts(store)
        self.catalog = Catalog(store, SystemClock())


_opened: dict[tuple[int, str], Opened] = {}


def identity(path: str, store: Store) -> bytes:
    """What tells the store at `path`, which is open as `store`, from every other one, for `opened` elsewhere."""
    return store.uuid + _place(path)


def _place(path: str) -> bytes:
    found = os.stat(os.path.join(path, DATA_FILE))
    return SystemClock().boot + _FILE.pack(found.st_dev, found.st_ino)


def opened(path: str, identity: bytes | None = None) -> Opened:
    """The store at `path`, opened by this process once. 0A000 if it is not the one whose `identity` the driver gave."""
    if identity is not None:
        try:
            here = _place(path)
        except OSError as unseen:
            raise _not_shared(path, f"there is none ({unseen.strerror})") from None
        if here != identity[_UUID_BYTES:]:
            raise _not_shared(path, "it is another file, or another host")
    key = os.getpid(), os.path.realpath(path)
    found = _opened.get(key)
    if found is None:
        found = _opened[key] = Opened(open_store(path, create=False, write_map=False))
    if identity is not None and found.store.uuid != identity[:_UUID_BYTES]:
        raise _not_shared(path, "it is another store")
    return found


def require_shared(directory: str) -> None:
    """0A000 unless this process sees the directory that the driver has made for what tasks hand over."""
    if not os.path.isdir(directory):
        raise errors.error(
            errors.FEATURE_NOT_SUPPORTED,
            f"a Spark executor does not see the directory {directory} of the driver",
            detail=f"The executor runs on host {socket.gethostname()}.",
            hint=_HINT,
        )


def forget(path: str) -> None:
    """Close this process's own opening of the store at `path`, if it has one."""
    found = _opened.pop((os.getpid(), os.path.realpath(path)), None)
    if found is not None:
        found.store.close()


def _not_shared(path: str, seen: str) -> errors.Error:
    return errors.error(
        errors.FEATURE_NOT_SUPPORTED,
        f"a Spark executor does not see the store of the driver at {path}",
        detail=f"On the executor's host {socket.gethostname()} {seen}. "
        "An LMDB store is shared memory: every process that opens it runs on one host.",
        hint=_HINT,
    )


def table_at(catalog: Catalog, name: str, snapshot: int) -> Table:
    """The table of that name as of `snapshot`. 42P01 if there was none then, 42809 if it was no table."""
    found = catalog.past(snapshot).lookup(PUBLIC_SCHEMA, name)
    if found is None:
        raise errors.error(errors.UNDEFINED_TABLE, f'relation "{name}" does not exist')
    if not isinstance(found, Table):
        raise errors.error(errors.WRONG_OBJECT_TYPE, f'"{name}" is not a table')
    return found
