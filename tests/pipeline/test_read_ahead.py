"""Files that are read ahead are in the system's cache afterwards."""

from __future__ import annotations

import os
from pathlib import Path

from instar.pipeline.read_ahead import PIECE_BYTES, read_ahead
from instar.pipeline.session import java_home, mapped_files

SIZE = 3 * PIECE_BYTES + 17


def dropped_from_cache(path: Path) -> Path:
    path.write_bytes(os.urandom(SIZE))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def cached_bytes(path: Path) -> int:
    """How much of the file is read without waiting for a disk."""
    with path.open("rb") as file:
        try:
            return os.preadv(file.fileno(), [bytearray(SIZE + 1)], 0, os.RWF_NOWAIT)
        except BlockingIOError:
            return 0


def test_files_are_cached_to_their_last_byte(tmp_path: Path) -> None:
    files = [dropped_from_cache(tmp_path / name) for name in ("one", "two")]
    read_ahead([files[0], tmp_path / "missing", tmp_path, files[1]])
    assert [cached_bytes(file) for file in files] == [SIZE, SIZE]


def test_what_a_jvm_maps_is_there() -> None:
    assert all(path.is_file() for path in mapped_files(java_home()))
