"""Versions of a row: the newest in place, older ones as before-images in the log (the log is the undo space)."""

from __future__ import annotations

import struct

from instar.store.engine import NO_RECORD, PREFIX_LOG, ROW_HEADER, ROW_TOMBSTONE, Reader

LOG_KEY = struct.Struct(">cQI")


def log_key(timestamp: int, sequence: int) -> bytes:
    """The key of the log record (timestamp, sequence)."""
    return LOG_KEY.pack(PREFIX_LOG, timestamp, sequence)
