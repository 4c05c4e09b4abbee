"""Errors that cross Spark: raised in a task, met again by whoever started the job.

Spark reports a failed task as text: the task's traceback inside a Java exception. So an error of Instar is raised in a
task as a line of its own, which says SQLSTATE and message to a human, and which `from_spark` finds and turns back.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Iterator

from instar import errors

_LINE = re.compile(r"instar\[(\w+)\] (\{.*\})")


class TaskError(Exception):
    """What failed in a task, as one line of text."""

    def __init__(self, code: str, **fields: str | None) -> None:
        given = {name: value for name, value in fields.items() if value is not None}
        super().__init__(f"instar[{code}] {json.dumps(given)}")


@contextlib.contextmanager
def in_task() -> Iterator[None]:
    """Around what runs in a Spark task or planning process: errors leave it as TaskError."""
    try:
        yield
    except errors.Error as problem:
        raise TaskError(
            problem.sqlstate, message=problem.message, detail=problem.detail, hint=problem.hint
        ) from problem


def from_spark(problem: BaseException) -> errors.Error:
    """What a task raised, out of the exception that Spark makes of it, or whoever submitted it. What was nothing of
    Instar's: 53100 for a full disk, else 58030."""
    if isinstance(problem, errors.Error):
        return problem
    text = str(problem)
    found = _LINE.search(text)
    if found is None and os.strerror(errno.ENOSPC) in text:
        return errors.error(errors.DISK_FULL, f"the disk is full: a Spark job failed: {os.strerror(errno.ENOSPC)}")
    if found is None:
        # The first lines say what happened; the rest is Java's stack.
        return errors.error(errors.IO_ERROR, "a Spark job failed", detail="\n".join(text.splitlines()[:20]))
    fields = json.loads(found.group(2))
    return errors.error(found.group(1), fields["message"], detail=fields.get("detail"), hint=fields.get("hint"))
