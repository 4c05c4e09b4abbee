"""The errors that leave the store for those of LMDB and of the system."""

from __future__ import annotations

import lmdb

from instar import errors
from instar.store.directory import disk_error
from instar.store.engine import Damaged
from instar.store.lmdb_environment import MAX_READERS


def translate(caught: Exception) -> Exception:
    """The error that leaves the store for an exception of LMDB or the system; others as they are."""
    match caught:
        case lmdb.MapFullError():
            return errors.error(errors.DISK_FULL, "the store's map is full")
        case lmdb.BadValsizeError():
            return errors.error(errors.LIMIT_EXCEEDED, "an encoded key is longer than the store allows")
        case lmdb.TxnFullError():
            return errors.error(errors.LIMIT_EXCEEDED, "the transaction has changed too many pages")
        case lmdb.ReadersFullError():
            return errors.error(errors.TOO_MANY_CONNECTIONS, f"more than {MAX_READERS} reads of the store are open")
        case Damaged():
            return errors.error(errors.DATA_CORRUPTED, f"the store is damaged: {caught}")
        case lmdb.CorruptedError() | lmdb.PageNotFoundError() | lmdb.InvalidError() | lmdb.VersionMismatchError():
            return errors.error(errors.DATA_CORRUPTED, f"the store is damaged: {caught}")
        case lmdb.Error():
            return disk_error(caught.code, f"the store could not be read or written: {caught}")
        case OSError():
            return disk_error(caught.errno or 0, f"the store could not be read or written: {caught.strerror}")
    return caught


def closed() -> errors.Error:
    return errors.InterfaceError("the store is closed", errors.CONNECTION_CLOSED)
