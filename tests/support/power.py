"""Power failures: what a disk may hold of a store's files when the power fails in the middle of work.

While a `Disk` watches, it notes what each file surely has on disk: what `fdatasync` and its like were called for, as it
was when the call began. At any moment `fail` makes the directory that might be found after a power failure then: of
each block that was written since, the state that is sure, or the one that the page cache has by now.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from instar.store import page_sync
from instar.store.lmdb import LmdbStore

BLOCK = 4096
# What is of no use after a power failure.
_VOLATILE = ("lock.mdb", "presence", "locks.mdb", "locks.mdb-lock")


class Disk:
    """The files below `directory`, as far as this process writes them."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self._directory = str(directory)
        self._sure: dict[str, bytearray] = {}
        self._begun: dict[str, list[tuple[int, bytes]]] = {}  # written by ranges, but not yet durably
        self._lock = threading.Lock()
        self.syncs = 0
        sync, write_vector, ranges = os.fdatasync, os.pwritev, page_sync.write_out

        def fdatasync(file: int) -> None:
            path, content = self._content(file)
            sync(file)
            self._is_sure(path, content)

        def pwritev(file: int, buffers: Any, offset: int, flags: int = 0) -> int:
            written = write_vector(file, buffers, offset, flags)
            if flags & os.RWF_DSYNC:  # an error would be the keeper's, which tries again for ever
                self._ranges_are_sure(os.readlink(f"/proc/self/fd/{file}"))
            return written

        def write_out(file: int, begin: int, length: int, *, wait: bool = False) -> None:
            if wait:
                with self._lock:
                    path = os.readlink(f"/proc/self/fd/{file}")
                    self._begun.setdefault(path, []).append((begin, os.pread(file, length, begin)))
            ranges(file, begin, length, wait=wait)

        patch.setattr(os, "fdatasync", fdatasync)
        patch.setattr(os, "fsync", fdatasync)
        patch.setattr(os, "pwritev", pwritev)
        patch.setattr(page_sync, "write_out", write_out)

    def _content(self, file: int) -> tuple[str, bytes]:
        path = os.readlink(f"/proc/self/fd/{file}")
        size = os.fstat(file).st_size
        return path, os.pread(file, size, 0) if path.startswith(self._directory) and not os.path.isdir(path) else b""

    def _is_sure(self, path: str, content: bytes) -> None:
        with self._lock:
            self.syncs += 1
            self._begun.pop(path, None)
            self._sure[path] = bytearray(content)

    def _ranges_are_sure(self, path: str) -> None:
        with self._lock:
            self.syncs += 1
            sure = self._sure.setdefault(path, bytearray())
            for begin, content in self._begun.pop(path, []):
                if len(sure) < begin + len(content):
                    sure.extend(bytes(begin + len(content) - len(sure)))
                sure[begin : begin + len(content)] = content

    def fail(self, store: LmdbStore, into: Path, draw: random.Random) -> None:
        """Make `into` what may be found of the directory of `store` after a power failure in this moment."""
        section = store._begin()  # so that nobody writes meanwhile
        try:
            self._fail(into, draw)
        finally:
            section.abort()

    def _fail(self, into: Path, draw: random.Random) -> None:
        into.mkdir()
        share = draw.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        for name in sorted(os.listdir(self._directory)):
            path = os.path.join(self._directory, name)
            if name in _VOLATILE:
                shutil.copyfile(path, into / name)
                continue
            with self._lock:
                sure = bytes(self._sure.get(path, b""))
            with open(path, "rb") as file:
                now = file.read()
            (into / name).write_bytes(_mixed(sure, now, share, draw) if name != "STORE" else now)


def _mixed(sure: bytes, now: bytes, share: float, draw: random.Random) -> bytes:
    """The sure content, in which a share of the blocks is as it is now."""
    size = draw.choice((len(sure), max(len(sure), len(now)))) if len(now) >= len(sure) else len(sure)
    mixed = bytearray(sure.ljust(size, b"\x00")[:size])
    for begin in range(0, min(size, len(now)), BLOCK):
        if now[begin : begin + BLOCK] != mixed[begin : begin + BLOCK] and draw.random() < share:
            end = min(begin + BLOCK, size)
            mixed[begin:end] = now[begin : begin + BLOCK].ljust(end - begin, b"\x00")
    return bytes(mixed)
