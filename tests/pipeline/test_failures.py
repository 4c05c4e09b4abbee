"""What the errors of Spark's own mean."""

from __future__ import annotations

from instar import errors
from instar.pipeline.failures import from_spark

JAVA = "Job aborted.\nCaused by: java.io.IOException: {}\n\tat java.base/java.io.FileOutputStream.writeBytes"


def test_a_full_disk_is_told_from_other_failures() -> None:
    full = from_spark(Exception(JAVA.format("No space left on device")))
    assert (full.sqlstate, full.message) == (
        errors.DISK_FULL,
        "the disk is full: a Spark job failed: No space left on device",
    )
    assert from_spark(Exception(JAVA.format("Stream closed"))).sqlstate == errors.IO_ERROR
