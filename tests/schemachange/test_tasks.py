"""What all tasks do with rows: they are read, and the reader is closed before anything is made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from instar import types
from instar.schemachange import wanted as want
from instar.schemachange.compact import Compaction
from instar.schemachange.references import ReferenceJudge
from instar.schemachange.reorganize import InProcess
from instar.schemachange.tasks import Task, layouts_of
from instar.schemachange.validate import Validation
from instar.store.engine import ROW_HEADER, ROW_TOMBSTONE, Reader
from support.changes import ChangingWorld

ROWS = [(number, number, "x") for number in range(300)]


class Guarded(list[bytes]):
    """Keys or rows that may be gone through when no reader is open."""

    def __init__(self, found: Sequence[bytes], opened: Callable[[], int], met: list[str]) -> None:
        super().__init__(found)
        self._opened = opened
        self._met = met

    def __iter__(self) -> Iterator[bytes]:
        assert not self._opened(), "a reader is open"
        self._met.append("rows")
        return super().__iter__()


class Watching:
    """Does the work in process, and has its rows guarded."""

    def __init__(self, world: ChangingWorld) -> None:
        self.opened = 0
        self.met: list[str] = []
        self._world = world

    def __call__(self, task: Task) -> Watching:
        return self

    def run(self, task: Task, pulse: Callable[[], None]) -> None:
        read, read_rows, watching = self._world.store.read, task.read_rows, self

        @contextmanager
        def noted() -> Iterator[Reader]:
            with read() as reader:
                watching.opened += 1
                try:
                    yield reader
                finally:
                    watching.opened -= 1

        def guarded(*arguments: Any) -> tuple[list[bytes], list[bytes]]:
            keys, rows = read_rows(*arguments)
            made = Guarded(keys, lambda: self.opened, self.met)
            # Which layouts they are in is asked of the reader that compaction must ask about these.
            return made, rows if isinstance(task, Compaction) else Guarded(rows, lambda: self.opened, self.met)

        store: Any = self._world.store
        store.read = noted
        watched: Any = task
        watched.read_rows = guarded
        try:
            InProcess().run(task, pulse)
        finally:
            del store.read


CHANGES: dict[str, want.Wanted] = {
    "a primary key": want.AlterPrimaryKey("t", ("a",)),
    "a lock": want.AddLock("t", "l", ("b",)),
    "compaction": want.CompactTable("t"),
    "an index": want.CreateIndex("t", (("a", False),), "i"),
    "NOT NULL": want.SetNotNull("t", "b"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_rows_are_worked_on_when_the_reader_is_closed(name: str) -> None:
    """As long as it is open, LMDB takes other pages for whatever is written."""
    world = ChangingWorld()
    world.create_t(ROWS)
    if name == "a primary key":
        required = world.execute(want.SetNotNull("t", "a"))
        assert required is not None
        world.executor().run(required)
    world.execute(want.AddColumn("t", want.NewColumn("c", types.INTEGER)))
    job = world.execute(CHANGES[name])
    assert job is not None
    watching = Watching(world)
    ended = world.executor(reorganizer=watching).run(job)
    assert ended is not None
    assert ended.state.value == "succeeded", ended.reason
    assert watching.met
    assert len(world.rows(world.table())) == 300


def test_parents_are_looked_up_in_the_read_that_their_children_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """At another moment a parent may have come or gone with its child."""
    world = ChangingWorld()
    world.create_t(ROWS)
    readers: list[Reader] = []
    read_rows, offenders = Validation.read_rows, ReferenceJudge.offenders

    def reading(task: Validation, reader: Reader, *arguments: Any) -> tuple[list[bytes], list[bytes]]:
        readers.append(reader)
        return read_rows(task, reader, *arguments)

    def judging(judge: ReferenceJudge, find: Any, reader: Reader | None, stored: Sequence[bytes]) -> list[int]:
        assert reader is readers[-1]
        assert reader.get(b"\x00") is None  # it is open
        readers.clear()
        return offenders(judge, find, reader, stored)

    monkeypatch.setattr(Validation, "read_rows", reading)
    monkeypatch.setattr(ReferenceJudge, "offenders", judging)
    job = world.execute(want.AddConstraint("t", want.ForeignKey(("a",), "t")))
    assert job is not None
    ended = world.executor().run(job)
    assert ended is not None
    assert ended.state.value == "succeeded", ended.reason
    assert not readers


def test_tombstones_are_in_no_layout() -> None:
    gone = ROW_HEADER.pack(5, 0, 77 << 8 | ROW_TOMBSTONE)
    assert layouts_of([gone]) == layouts_of([]) == set()
    assert layouts_of([ROW_HEADER.pack(5, 0, 3 << 8) + b"columns", gone]) == {3}
