"""Reads files into the system's cache so slowly that commits beside it hardly wait for the disk."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

PIECE_BYTES = 1 << 17
# Of the time, how much the disk may be kept busy with it.
SHARE = 0.2


def read_ahead(files: Iterable[Path]) -> None:
    """Have the contents of `files` cached by the system; those that cannot be read are passed over.

    A JVM maps its classes and reads 150 MB in its first tenth of a second, if the disk has them. Every commit that
    waits for that disk meanwhile waits in the same queue. Here at most one piece stands in the queue, and most of the
    time none.
    """
    buffer = bytearray(PIECE_BYTES)
    for file in files:
        try:
            handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            # Else the system reads ahead by itself, in larger and larger pieces.
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
            _read(handle, buffer)
        except OSError:
            continue  # a disk that fails is reported by whoever needs the file
        finally:
            os.close(handle)


def _read(handle: int, buffer: bytearray) -> None:
    offset = 0
    while True:
        begin = time.monotonic()
        count = os.preadv(handle, [buffer], offset)
        took = time.monotonic() - begin
        if count == 0:
            return
        offset += count
        time.sleep(took * (1 / SHARE - 1))
