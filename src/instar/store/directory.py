"""The directory of a store on disk: told from other directories, created by one process at a time, checked on opening.

    STORE              the identity (JSON): format version, uuid, synchronous; there from the moment creation is done
    STORE.unfinished   the same while a store is being created; what lies beside it may be thrown away
    data.mdb lock.mdb  LMDB's
    wal.0 wal.1        the write-ahead log, unless the store is made `off`, and
    checkpoint.0 .1    where it begins
    presence           the slots of the processes that have the store open
    locks.mdb locks.mdb-lock   who holds which lock, once one was taken; nothing of it outlasts the processes

The identity lies in a file of its own because it must be known before LMDB is let near the directory: LMDB would put
files into a directory that is not ours, and the durability it is opened with is a property of the store. Creation holds
a lock on the directory itself, which needs no file.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator

import msgspec

from instar import errors
from instar.store.file_lock import locked
from instar.store.header import Identity, decode_identity

IDENTITY_FILE = "STORE"
UNFINISHED_FILE = "STORE.unfinished"
DATA_FILE = "data.mdb"
LOCK_FILE = "lock.mdb"
PRESENCE_FILE = "presence"

# Of a full or failing disk; RLIMIT_FSIZE says EFBIG.
DISK_ERRNOS = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG))

_MAKE_ROOM = (
    "Make room on the device, or enlarge it. Until then the database can be read, but DELETE, TRUNCATE and DROP TABLE "
    "may fail as well: every commit needs pages of its own before any are freed."
)
_WRITABLE = (
    "A database is written to by whoever opens it, to read too. Copy its directory to a file system that allows it."
)


class DataFile:
    """The data file of an open store, to see whether it has been removed from under the processes that have it open.

    They could go on and on: what they commit would be gone with the last of them. 58030.
    """

    def __init__(self, path: str) -> None:
        # No more than a name for it: LMDB's own descriptors and locks are not concerned.
        try:
            self._descriptor = os.open(os.path.join(path, DATA_FILE), os.O_PATH | os.O_CLOEXEC)
        except OSError as caught:
            raise disk_error(caught.errno or 0, f"cannot open the store {path}: {caught.strerror}") from caught

    def is_removed(self) -> bool:
        """Whether nobody can open the file any more; moving the directory does not remove it."""
        return os.fstat(self._descriptor).st_nlink == 0

    def lies_in(self, path: str) -> bool:
        """Whether the file is that of the store in `path` now, from where it may have been moved, too. What cannot be
        seen is not: whoever opens it is told why."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.stat(os.path.join(path, DATA_FILE)))
        except OSError:
            return False

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._descriptor)


def disk_error(code: int, what: str) -> errors.Error:
    """53100 if the disk is full or failing, else 58030."""
    if code in DISK_ERRNOS:
        # LMDB says EIO where the system has written less than it was told to, which is how most disks are full.
        state = "the disk is full or failing" if code == errno.EIO else "the disk is full"
        return errors.error(errors.DISK_FULL, f"{state}: {what}", hint=_MAKE_ROOM)
    return errors.error(errors.IO_ERROR, what, hint=_WRITABLE if code == errno.EROFS else None)


def prepare(path: str, wanted: Identity | None, lock_bytes: int, initialise: Callable[[Identity], None]) -> Identity:
    """The identity of the store in `path`, which is created as `wanted` if there is none and `wanted` is given.

    `initialise` fills a directory in which nothing but the lock file lies. Errors: 58030 if there is no store (or it
    cannot be read), 55000 if the directory is something else or of another format, XX001 if it is damaged, 53100.
    """
    try:
        if wanted is not None:
            os.makedirs(path, exist_ok=True)
        with _locked(path):
            names = set(os.listdir(path))
            if IDENTITY_FILE in names:
                return _existing(path, names, lock_bytes)
            if names and UNFINISHED_FILE not in names:
                raise errors.error(errors.OBJECT_NOT_READY, f"{path} is not an Instar store, and not empty either")
            if wanted is None:
                raise errors.error(errors.IO_ERROR, f"there is no store in {path}")
            _create(path, wanted, lock_bytes, initialise)
            return wanted
    except FileNotFoundError:
        raise errors.error(errors.IO_ERROR, f"there is no store in {path}") from None
    except (NotADirectoryError, FileExistsError):
        raise errors.error(errors.OBJECT_NOT_READY, f"{path} is not an Instar store: it is no directory") from None
    except OSError as caught:
        raise disk_error(caught.errno or 0, f"cannot open the store {path}: {caught.strerror}") from caught


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with locked(directory):
            yield
    finally:
        os.close(directory)


def _existing(path: str, names: set[str], lock_bytes: int) -> Identity:
    with open(os.path.join(path, IDENTITY_FILE), "rb") as file:
        identity = decode_identity(file.read(), path)
    data = os.path.join(path, DATA_FILE)
    # An LMDB file begins with two pages; shorter ones it would take for new, and overwrite.
    if not os.path.exists(data) or os.path.getsize(data) < 2 * os.sysconf("SC_PAGE_SIZE"):
        raise errors.error(errors.DATA_CORRUPTED, f"the store {path} is damaged: {DATA_FILE} is missing or cut short")
    if LOCK_FILE not in names:
        reserve(os.path.join(path, LOCK_FILE), lock_bytes)
    return identity


def _create(path: str, identity: Identity, lock_bytes: int, initialise: Callable[[Identity], None]) -> None:
    unfinished = os.path.join(path, UNFINISHED_FILE)
    with open(unfinished, "wb") as file:
        file.write(msgspec.json.encode(identity) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    for name in (DATA_FILE, LOCK_FILE, PRESENCE_FILE):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(path, name))
    reserve(os.path.join(path, LOCK_FILE), lock_bytes)
    initialise(identity)
    os.rename(unfinished, os.path.join(path, IDENTITY_FILE))
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def reserve(path: str, size: int) -> None:
    """A file of zeros with its blocks allocated: a hole in a mapped file is a SIGBUS when the disk is full.

    Written before LMDB opens it, since closing any descriptor of the lock file drops LMDB's locks on it.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(file, 0, size)
    finally:
        os.close(file)


def require_same(path: str | os.PathLike[str], identity: Identity, **wanted: float | str | None) -> None:
    """55000 where an opener asks for another property than the store has."""
    for name, asked in wanted.items():
        if asked is not None and asked != getattr(identity, name):
            called = name.removesuffix("_seconds")
            has = f"the store {path} has {called} = {getattr(identity, name)}"
            raise errors.error(
                errors.OBJECT_NOT_READY,
                f"{has}, which an opener cannot change to {asked}",
                hint=f"Ask for {called}=None to take the store as it is.",
            )
