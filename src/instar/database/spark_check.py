"""CHECK of large tables for a session: handed to a process of its own, which may start Spark (worker/check.py)."""

from __future__ import annotations

import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import IO

from instar import errors
from instar.pipeline.consistency import Problem, Told
from instar.schemachange.launching import SAFELY, environment
from instar.worker import check

_POLL_SECONDS = 0.1
# What a process that is told to end may take to end Spark's work.
_END_SECONDS = 3.0
_READ_BYTES = 1 << 16


def checked(path: str, tables: list[int], spark_rows: int, told: Told, pulse: Callable[[], None]) -> Iterator[Problem]:
    """The problems of the tables of those ids (none: of everything) in the store at `path`.

    `told` is told which share of which table is checked; `pulse` is called all the while, and may raise to end it.
    What the check raises is raised here; 58030 if its process ends before the check.
    """
    command = [sys.executable, SAFELY, "-m", "instar.worker.check", path, "--spark-rows", str(spark_rows)]
    for number in tables:
        command += ["--table", str(number)]
    with tempfile.TemporaryFile() as said:
        # A process group of its own: a Ctrl-C at the client is the client's, who then ends the check.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            process_group=0,
            env=environment(),
        )
        try:
            for line in _lines(process, pulse):
                match check.DECODER.decode(line):
                    case check.Told(table, share):
                        told(table, share)
                    case check.Found(problem):
                        yield problem
                    case check.Failed(sqlstate, message, detail, hint):
                        raise errors.error(sqlstate, message, detail=detail, hint=hint)
                    case check.Done():
                        return
            raise _ended(process, said)
        finally:
            _end(process)


def _lines(process: subprocess.Popen[bytes], pulse: Callable[[], None]) -> Iterator[bytes]:
    """What the process writes, line by line, until it ends."""
    assert process.stdout is not None
    read, rest = process.stdout, b""
    while True:
        pulse()
        if select.select([read], [], [], _POLL_SECONDS)[0]:
            some = read.read1(_READ_BYTES)  # type: ignore[attr-defined]  # a BufferedReader, which the stubs do not say
            if not some:
                return
            *lines, rest = (rest + some).split(b"\n")
            yield from lines


def _ended(process: subprocess.Popen[bytes], said: IO[bytes]) -> errors.Error:
    status = process.wait()
    said.seek(0)
    text = said.read().decode(errors="replace")[-2_000:].strip()
    return errors.error(
        errors.IO_ERROR, f"the process that checks the database has ended with status {status}", detail=text or None
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdout is not None
    process.stdout.close()
