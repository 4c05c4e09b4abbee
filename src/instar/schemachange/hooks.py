"""A command that the worker runs whenever a job enters a stage or a state: to tell an operator, or another system.

The command comes from whoever starts the worker (its option, or INSTAR_JOB_HOOK), never from SQL: who may write to a
database may not thereby run programs on its host. It is split as a shell would, and run without one. It has a time
limit, and the job goes on however it ends: what goes wrong with it is noted in the job's history.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Callable
from typing import IO

from instar import errors
from instar.schemachange.job_records import Job

VARIABLE = "INSTAR_JOB_HOOK"
# Less than half of a lease: whoever holds the job renews it before the hook runs.
SECONDS = 4.0
_KILLED_SECONDS = 0.5
_MOST_SAID = 200
# Of a statement or reason as the command is told it: Linux starts nothing with a variable of 128 KiB (E2BIG).
_MOST_TOLD = 1 << 16
_MOST_READ = 4096


def from_environment(path: str) -> Callable[[Job], str] | None:
    """The hook that whoever started the process has set, if any. One that cannot be read is no reason to end: nobody
    hears a worker that was started on demand, and jobs would wait for it for ever. It is noted like one that fails."""
    text = os.environ.get(VARIABLE, "")
    try:
        return Hook(text, path) if text else None
    except errors.Error as bad:
        said = bad.message
        return lambda job: said


class Hook:
    """The command `text`, for the jobs of the database at `path`. 22023 if it cannot be split into words."""

    def __init__(self, text: str, path: str, seconds: float = SECONDS) -> None:
        try:
            self._words = shlex.split(text)
        except ValueError as bad:
            raise errors.error(errors.INVALID_PARAMETER, f"the job hook {text!r} cannot be read: {bad}") from None
        self._path = path
        self._seconds = seconds

    def __call__(self, job: Job) -> str:
        """Run the command with the job in its environment; returns what went wrong with it, in words, or nothing."""
        if not self._words:
            return ""
        try:
            # Not a pipe: its end would come only when the last of what the command has left running is gone.
            with tempfile.TemporaryFile() as said:
                return self._run(job, said)
        except OSError as failed:
            return f"the hook could not be run: {failed.strerror}: {self._words[0]}"

    def _run(self, job: Job, said: IO[bytes]) -> str:
        # A group of its own, so that what it has started and waits for is killed with it.
        process = subprocess.Popen(
            self._words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            env=os.environb | self._variables(job),
            process_group=0,
        )
        try:
            process.wait(self._seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # of another user, or in a call that nothing ends
                process.wait(_KILLED_SECONDS)
            return f"the hook took longer than {self._seconds:g} s and was killed"
        if not process.returncode:
            return ""
        said.seek(max(0, said.seek(0, os.SEEK_END) - _MOST_READ))
        last = said.read(_MOST_READ).decode(errors="replace").strip().rpartition("\n")[2][:_MOST_SAID]
        # It may hold anything, and is shown on terminals and copied into tables.
        last = "".join(found if found.isprintable() else "\N{REPLACEMENT CHARACTER}" for found in last)
        return f"the hook ended with status {process.returncode}" + (f": {last}" if last else "")

    def _variables(self, job: Job) -> dict[bytes, bytes]:
        problem = "" if job.problem is None else job.problem.message
        return {
            b"INSTAR_DATABASE": os.fsencode(self._path),
            b"INSTAR_JOB_ID": b"%d" % job.id,
            b"INSTAR_JOB_KIND": _told(job.kind),
            b"INSTAR_JOB_STATEMENT": _told(job.statement),
            b"INSTAR_JOB_STATE": _told(job.state.value),
            b"INSTAR_JOB_STAGE": b"%d" % job.stage,
            b"INSTAR_JOB_STAGES": b"%d" % len(job.stages),
            b"INSTAR_JOB_REASON": _told(job.reason or problem),
        }


def _told(text: str) -> bytes:
    """A variable's value: UTF-8 wherever the worker runs, since its locale may know less than a statement holds."""
    told = text.replace("\0", "").encode(errors="replace")
    return told if len(told) <= _MOST_TOLD else told[:_MOST_TOLD].decode(errors="ignore").encode() + b"..."
