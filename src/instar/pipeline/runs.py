"""How tasks on Spark hand over what they made: each key range's result is a file, its run, which appears whole or not
at all. The process that started them takes each as soon as it is there, and records the range's checkpoint.

Tasks only read the store, so that Spark can be run at the lowest priority there is: a task that was kept from the
processor while it held the store's mutex would hold up every writer.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from io import BufferedWriter
from pathlib import Path

import msgspec
import pyarrow as pa

from instar.schemachange.job_records import Checkpoint, decode_checkpoint, encode_checkpoint
from instar.schemachange.tasks import FIRST_NUMBER, Step, Task

# Of each batch in a run of batches: the checkpoint that holds once it is put.
_REACHED = b"reached"


class Todo(msgspec.Struct, frozen=True, array_like=True):
    """A key range that is not done: the number of its checkpoint, its bounds, and where to go on."""

    number: int
    start: bytes
    stop: bytes
    position: bytes
    rows: int


def beat(directory: Path) -> None:
    """Note that somebody is at work on the runs of `directory`."""
    (directory / "beat").touch()


def note_read(directory: Path, start: bytes, rows: int) -> None:
    """Note how many rows of the key range that begins at `start` have been read."""
    _note(directory, start).write_bytes(rows.to_bytes(8, "big"))


def noted(directory: Path, start: bytes) -> int:
    """How many rows of the key range that begins at `start` were read, in all, by a task that has ended."""
    return int.from_bytes(_note(directory, start).read_bytes(), "big")


def _note(directory: Path, start: bytes) -> Path:
    return directory / f"read-{hashlib.blake2b(start, digest_size=12).hexdigest()}"


def rows_read(directory: Path) -> int:
    """How many rows all tasks have read; of one whose note is being written, none."""
    return sum(int.from_bytes(note.read_bytes(), "big") for note in directory.glob("read-*"))


class Heard:
    """Who waits for runs, and listens. It goes by its own clock: that of the file may be set."""

    def __init__(self, directory: Path) -> None:
        beat(directory)
        self._file = directory / "beat"
        self._last = self._file.stat().st_mtime_ns
        self._at = time.monotonic()

    def seconds(self) -> float:
        """How long ago somebody was heard to be at work."""
        now = self._file.stat().st_mtime_ns
        if now != self._last:
            self._last, self._at = now, time.monotonic()
        return time.monotonic() - self._at


def run_path(directory: Path, todo: Todo) -> Path:
    """Where the run of a range lies once it is whole."""
    return directory / f"{todo.number}.run"


def write_run(directory: Path, todo: Todo, write: Callable[[BufferedWriter], object]) -> None:
    """Have the run of a range written. A task may be killed, and is then tried again."""
    handle, name = tempfile.mkstemp(dir=directory, prefix="part-")
    with os.fdopen(handle, "wb") as file:
        write(file)
    os.replace(name, run_path(directory, todo))


def left(ranges: list[Checkpoint]) -> tuple[Todo, ...]:
    """What is to be done still of the ranges of a plan."""
    return tuple(
        Todo(number, found.start, found.stop, found.position, found.rows)
        for number, found in enumerate(ranges, FIRST_NUMBER)
        if not found.done
    )


def write_batches(file: BufferedWriter, schema: pa.Schema, made: Iterable[tuple[pa.RecordBatch, Checkpoint]]) -> None:
    """A run of batches, the last of which is done."""
    with pa.ipc.new_stream(file, schema) as sink:
        for batch, reached in made:
            sink.write_batch(batch, custom_metadata={_REACHED: encode_checkpoint(reached)})


def put_batches(
    task: Task, todo: Todo, run: Path, steps: Callable[[pa.RecordBatch], Iterable[Step]], between: Callable[[], None]
) -> None:
    """Put what `write_batches` wrote, batch by batch. `between` is called before each, and may raise."""
    at = Checkpoint(todo.start, todo.stop, todo.position, todo.rows)
    with pa.memory_map(str(run)) as file, pa.ipc.open_stream(file) as source:
        while not at.done:
            between()
            batch, metadata = source.read_next_batch_with_custom_metadata()
            reached = decode_checkpoint(metadata[_REACHED])
            task.put(todo.number, steps(batch), at, reached)
            at = reached
