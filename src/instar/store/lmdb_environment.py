"""Opening LMDB's environments, in processes that were forked too."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import lmdb
import lmdb._envid

from instar import errors
from instar.store.directory import DATA_FILE
from instar.store.extent import holds_tree
from instar.store.file_lock import locked
from instar.store.header import HEADER_KEY, IDENTITY_KEY, Identity, decode_identity

# Arguments of LMDB's `put` for a key above all others: duplicates, overwrite, append.
APPENDING = (True, True, True)
MAX_READERS = 4096
_READER_BYTES = 64
# A little more than LMDB needs in its lock file for MAX_READERS, whatever its own header takes.
READERS_BYTES = (MAX_READERS + 64) * _READER_BYTES
_LEAST_MAP_SIZE = 1 << 30


def open_environment(path: str, map_size: int, least: int, *, subdir: bool = True, **options: bool) -> Any:
    """An environment with as large a map as the system lets us have, and one of `least` bytes at least."""
    with _opening(os.path.join(path, DATA_FILE) if subdir else path):
        while True:
            try:
                return lmdb.Environment(
                    path, map_size=map_size, max_readers=MAX_READERS, max_spare_txns=1, subdir=subdir, **options
                )
            except (lmdb.Error, MemoryError):
                if map_size // 2 < least:
                    raise
                map_size //= 2


@contextlib.contextmanager
def _opening(data: str) -> Iterator[None]:
    """No two processes open an environment at a time. Whoever is the first has LMDB's own lock for himself meanwhile,
    and others wait for that in LMDB, where no signal reaches them: for ever, if he is stopped just then. For this lock
    they let him go on (`file_lock`)."""
    try:
        file = os.open(data, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # of a store that is being made, where nobody else is
        yield
        return
    try:
        with locked(file):
            yield
    finally:
        os.close(file)


def open_data(path: str, map_size: int, *, write_map: bool = False) -> Any:
    """A store's environment, which never waits for the disk; a write map must have all of `map_size`."""
    return open_environment(
        path,
        map_size,
        map_size if write_map else _LEAST_MAP_SIZE,
        sync=False,
        metasync=False,
        create=False,
        writemap=write_map,
        readahead=not write_map,
    )


def open_checked(path: str, map_size: int, identity: Identity) -> Any:
    """As `open_data`; the data file is whole and belongs to the identity beside it, else XX001."""
    environment = open_data(path, map_size)
    try:
        _check(environment, path, identity)
    except BaseException:
        environment.close()
        raise
    return environment


def _check(environment: Any, path: str, identity: Identity) -> None:
    """The data file is whole and belongs to the identity beside it; else XX001."""
    with environment.begin() as transaction:
        page_bytes = environment.stat()["psize"]
        needed = (environment.info()["last_pgno"] + 1) * page_bytes
        data = os.path.join(path, DATA_FILE)
        size = os.path.getsize(data)
        if size < needed:
            if not holds_tree(data, transaction.id(), page_bytes):
                raise errors.error(errors.DATA_CORRUPTED, f"the store {path} is damaged: {DATA_FILE} is cut short")
            file = os.open(data, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.posix_fallocate(file, size, needed - size)
            finally:
                os.close(file)
        stored = transaction.get(IDENTITY_KEY)
        if stored is None or decode_identity(stored, path) != identity or transaction.get(HEADER_KEY) is None:
            raise errors.error(errors.DATA_CORRUPTED, f"the store {path} is damaged: {DATA_FILE} is another store's")


_env_keys: Callable[[Any, Any], tuple[Any, ...]] = lmdb._envid.env_keys


def _env_keys_of_process(path: Any, subdir: Any) -> tuple[Any, ...]:
    """LMDB's locks belong to (process, file), so a forked child may, and must, open files that its parent has open.

    py-lmdb asks this function which files an environment is made of and refuses those that are open; what it
    remembers survives a fork, and closing the parent's environment in the child frees the parent's reader slots.
    """
    process = os.getpid()
    return tuple((process, key) for key in _env_keys(path, subdir))


lmdb._envid.env_keys = _env_keys_of_process


def has_reader(environment: Any, pid: int) -> bool:
    """Whether that process is within a read transaction, and pages are kept for it."""
    rows = map(str.split, environment.readers().splitlines())
    return any(row[0] == str(pid) and row[-1] != "-" for row in rows)
