"""What a command shows while it works: bars on the terminal's error side."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, TaskID, TimeElapsedColumn

Advance = Callable[[int], None]  # told how much more is done


class Bars:
    """Bars on the terminal's error side; nothing where that is no terminal."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._named: dict[str, TaskID] = {}

    def add(self, what: str, total: int) -> Advance:
        """One more bar, and how it advances."""
        task = self._bars.add_task(what, total=total)
        return lambda amount: self._bars.advance(task, amount)

    def reached(self, prefix: str, total: float) -> Callable[[str, float], None]:
        """A function told how far each of several parts is: a bar for each, when it is first heard of."""

        def told(name: str, done: float) -> None:
            if name not in self._named:
                self._named[name] = self._bars.add_task(prefix + name, total=total)
            self._bars.update(self._named[name], completed=done)

        return told

    def share(self, what: str) -> Callable[[float], None]:
        """One more bar, told which share of the whole is done."""
        task = self._bars.add_task(what, total=1.0)
        return lambda done: self._bars.update(task, completed=done)


@contextmanager
def progress_bars() -> Iterator[Bars]:
    """Bars that go when they are done with."""
    columns = (*Progress.get_default_columns(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not os.isatty(2)) as bars:
        yield Bars(bars)
