"""CHECK on Spark for a session: `python -m instar.worker.check PATH`, a process for one check, which starts Spark.

An application never starts Spark in its own process, and a check belongs to whoever asked for it: it is no job, writes
nothing, and ends with the session's statement. So it has a process of its own, which tells what it finds on standard
output, a line of JSON each, and ends when nobody reads it any more. It stands back a little for the application.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from types import FrameType
from typing import BinaryIO

import msgspec

from instar import errors
from instar.catalog.catalog import Catalog
from instar.catalog.layouts import Layouts
from instar.catalog.system_tables import SYSTEM_VIEWS
from instar.clock import SystemClock
from instar.pipeline.consistency import Consistency, Problem
from instar.scheduling import stand_back
from instar.sql.checks import compile_check
from instar.store import open_store

# Half of the weight that the application has where processors are short.
NICENESS = 3
# How often it says how far it is, at most.
TOLD_SECONDS = 0.2


class Told(msgspec.Struct, frozen=True, tag="told"):
    """Which share of which table is checked."""

    table: str
    share: float


class Found(msgspec.Struct, frozen=True, tag="found"):
    """A problem."""

    problem: Problem


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Why there is no more to come, though the check is not at its end."""

    sqlstate: str
    message: str
    detail: str | None = None
    hint: str | None = None


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The check is at its end."""


Line = Told | Found | Failed | Done
DECODER: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)
_ENCODER = msgspec.json.Encoder()


def run(path: str, tables: list[int], spark_rows: int, out: BinaryIO) -> None:
    """Check the tables of those ids, or everything if there are none; those of so many rows or more on Spark."""

    def write(line: Line) -> None:
        out.write(_ENCODER.encode(line) + b"\n")
        out.flush()

    at = 0.0

    def told(table: str, share: float) -> None:
        nonlocal at
        if time.monotonic() - at >= TOLD_SECONDS:
            at = time.monotonic()
            write(Told(table, share))

    store = open_store(path, create=False)
    try:
        catalog = Catalog(store, SystemClock(), SYSTEM_VIEWS)
        consistency = Consistency(
            store, Layouts(store), catalog, compile_check, spark=path, spark_rows=spark_rows, told=told
        )
        parts = [consistency.check_table(table) for table in tables] if tables else [consistency.check_database()]
        for part in parts:
            for problem in part:
                write(Found(problem))
        write(Done())
    except errors.Error as failed:
        write(Failed(failed.sqlstate, failed.message, failed.detail, failed.hint))
    finally:
        store.close()


def main(arguments: list[str]) -> int:
    """The command; SIGTERM ends it, and what it has asked of Spark."""
    parser = argparse.ArgumentParser("python -m instar.worker.check", description="Checks a database on Spark.")
    parser.add_argument("path", metavar="PATH")
    parser.add_argument("--table", type=int, action="append", default=[], metavar="ID")
    parser.add_argument("--spark-rows", type=int, required=True, metavar="N")
    options = parser.parse_args(arguments)

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(1)

    signal.signal(signal.SIGTERM, stop)
    try:
        run(options.path, options.table, options.spark_rows, sys.stdout.buffer)
    except BrokenPipeError:
        os._exit(1)  # nobody is there to be told; the JVM ends with this process
    return 0


if __name__ == "__main__":
    stand_back(NICENESS)
    sys.exit(main(sys.argv[1:]))
