"""What the directory of a store says when the system refuses something."""

from __future__ import annotations

import errno

import pytest

from instar.store.directory import disk_error


@pytest.mark.parametrize(
    ("code", "sqlstate", "message", "hint"),
    [
        (errno.ENOSPC, "53100", "the disk is full: it was written", "DELETE, TRUNCATE and DROP TABLE may fail as well"),
        (errno.EDQUOT, "53100", "the disk is full: it was written", "Make room on the device"),
        (errno.EIO, "53100", "the disk is full or failing: it was written", "Make room on the device"),
        (errno.EROFS, "58030", "it was written", "Copy its directory"),
        (errno.EACCES, "58030", "it was written", ""),
    ],
)
def test_an_error_of_the_disk_says_what_helps(code: int, sqlstate: str, message: str, hint: str) -> None:
    found = disk_error(code, "it was written")
    assert (found.sqlstate, found.message) == (sqlstate, message)
    assert hint in (found.hint or "")
    assert bool(hint) == (found.hint is not None)
