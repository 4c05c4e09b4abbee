"""Opening LMDB's environments."""

from __future__ import annotations

from typing import Any

import lmdb

MAX_READERS = 4096
_READER_BYTES = 64
# A little more than LMDB needs in its lock file for MAX_READERS, whatever its own header takes.
READERS_BYTES = (MAX_READERS + 64) * _READER_BYTES


def open_environment(path: str, map_size: int, least: int, **options: bool) -> Any:
    """An environment with as large a map as the system lets us have, and one of `least` bytes at least."""
    while True:
        try:
            return lmdb.Environment(path, map_size=map_size, max_readers=MAX_READERS, max_spare_txns=1, **options)
        except (lmdb.Error, MemoryError):
            if map_size // 2 < least:
                raise
            map_size //= 2
