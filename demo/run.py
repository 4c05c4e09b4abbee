"""The demonstration from the empty directory to the outcome."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from pathlib import Path

import instar
from demo import client, copies, tpch
from demo.board import Board, Phase
from demo.changes import CHANGES, LEAST_SECONDS, Change, Course, Runner
from demo.display import Display, Scene
from demo.report import Outcome, Settings, seen

CALIBRATION_SECONDS = 10.0
BETWEEN_SECONDS = 1.0  # of what is looked at of a change, and the next
_CALIBRATION_WARM_UP = 1.0
_TICK = 0.02  # seconds between two looks at the running change
_BOARD_SECONDS = 900


class ClientFailed(Exception):
    """A client saw an error that is no conflict, or has died."""


class Clients:
    """The client processes, and what they report."""

    def __init__(self, path: Path, scale: float, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.board = Board(context, count, _BOARD_SECONDS + int(scale * 1200))
        self._processes = []
        self._pipes: list[Pipe] = []
        for number in range(count):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(
                target=client.main, args=(path, self.board, number, scale, sender), name=f"client {number}", daemon=True
            )
            process.start()
            sender.close()
            self._processes.append(process)
            self._pipes.append(receiver)

    def check(self) -> None:
        """ClientFailed if one has ended: while the demonstration runs, none does so by itself."""
        ended = wait([*self._pipes, *(process.sentinel for process in self._processes)], timeout=0)
        if ended:
            raise ClientFailed("\n".join(self._reports()) or "a client process ended without a word")

    def stop(self) -> None:
        """Let the clients finish what they are at; ClientFailed if the last operation of one failed."""
        self.board.set_phase(Phase.STOP)
        for process in self._processes:
            process.join(timeout=30)
        reports = self._reports()
        if reports or any(process.exitcode != 0 for process in self._processes):
            raise ClientFailed("\n".join(reports) or "a client process did not end as it should")

    def kill(self) -> None:
        """End the processes, whatever they do."""
        for process in self._processes:
            process.kill()
            process.join()

    def _reports(self) -> list[str]:
        found = []
        for pipe in self._pipes:
            try:
                if pipe.poll():
                    found.append(str(pipe.recv()))
            except EOFError:
                continue
        return found


class Demonstration:
    """One run.

    `rate`: arrivals per second, or None for `share` of what the clients reach at most in `calibration_seconds`.
    `quiet_seconds`: length of the baseline; `quiet_again_seconds`: after the last change. It can be run once.
    """

    def __init__(
        self,
        display: Display,
        *,
        path: Path,
        scale: float,
        clients: int,
        rate: float | None,
        share: float = 0.25,
        calibration_seconds: float | None = None,
        quiet_seconds: float,
        quiet_again_seconds: float = LEAST_SECONDS,
        synchronous: str,
        changes: Sequence[Change] = CHANGES,
    ) -> None:
        self._display = display
        self._path = path
        self._scale = scale
        self._count = clients
        self._rate = rate
        self._share = share
        self._changes = changes
        self._calibration_seconds = calibration_seconds or CALIBRATION_SECONDS
        self._quiet_seconds = quiet_seconds
        self._quiet_again_seconds = quiet_again_seconds
        self._synchronous = synchronous
        headline = f"Instar · TPC-H scale {scale:g} · {clients} clients · synchronous {synchronous}"
        self._scene = Scene(headline)
        self._rows: dict[str, int] = {}

    def run(self, work_directory: Path) -> tuple[Outcome, Board]:
        """Load, measure, change; the outcome, and the board that it was read off. ClientFailed if a client fails."""
        # The thread that executes the changes must not wait for the one that draws.
        sys.setswitchinterval(0.0005)
        self._load(work_directory)
        with self._clients() as clients:
            peak = self._calibrate(clients)
            rate = self._rate or peak * self._share
            settings = Settings(self._scale, self._count, self._synchronous, peak, rate, self._rows)
            return self._open_loop(clients, settings), clients.board

    def check(self) -> list[tuple[object, ...]]:
        """CHECK DATABASE: the problems that it finds."""
        self._say("CHECK DATABASE")
        with closing(instar.connect(self._path, synchronous=None, autocommit=True)) as connection:
            return list(connection.execute("CHECK DATABASE").fetchall())

    # --- parts -------------------------------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        self._scene.doing = text
        self._display.note(text)
        self._display.update(self._scene)

    def _load(self, work_directory: Path) -> None:
        self._say(f"generating TPC-H data at scale {self._scale:g}")
        tpch.generate(self._scale, work_directory)
        self._say("loading")
        begin = time.monotonic()
        tpch.load(self._path, work_directory, self._synchronous, self._loaded)
        with closing(instar.connect(self._path, synchronous=None, autocommit=True)) as connection:
            copies.make(connection.execute, self._scale)
        seconds = time.monotonic() - begin
        self._say(f"loaded {sum(self._rows.values()):,} rows in {seconds:.1f} s")

    def _loaded(self, table: str, rows: int) -> None:
        self._rows[table] = rows

    @contextmanager
    def _clients(self) -> Iterator[Clients]:
        clients = Clients(self._path, self._scale, self._count)
        try:
            self._tick(clients, lambda: clients.board.ready == self._count)
            yield clients
        finally:
            clients.kill()

    def _calibrate(self, clients: Clients) -> float:
        """Operations per second of the clients as fast as they can."""
        self._say("calibrating: what the clients reach at most")
        clients.board.set_phase(Phase.CALIBRATE)
        self._wait(clients, _CALIBRATION_WARM_UP)
        before, begin = clients.board.operations, time.monotonic()
        self._wait(clients, self._calibration_seconds)
        return (clients.board.operations - before) / (time.monotonic() - begin)

    def _open_loop(self, clients: Clients, settings: Settings) -> Outcome:
        board = clients.board
        board.open_loop(settings.rate, time.monotonic_ns() + 100_000_000)
        self._scene.board, self._scene.rate = board, settings.rate
        self._say(f"quiet: {settings.rate:,.0f} operations/s arrive, {settings.share_of_peak:.0%} of the peak")
        self._wait(clients, 1.0)
        first = board.now
        self._wait(clients, self._quiet_seconds)
        quiet_windows = (first, board.now)
        self._scene.quiet = quiet = seen(board, *quiet_windows)
        courses = self._change_all(clients)
        self._say("quiet again")
        first = board.now
        self._wait(clients, self._quiet_again_seconds)
        quiet_again_windows = (first, board.now)
        self._scene.board = None
        clients.stop()
        during = [seen(board, *course.windows()) for course in courses]
        return Outcome(
            settings, quiet, quiet_windows, quiet_again_windows, courses, during, board.operations, board.conflicts
        )

    def _change_all(self, clients: Clients) -> list[Course]:
        runner = Runner(clients.board, str(self._path))
        for change in self._changes:
            self._say(f"{change.title}: {change.statement}")
            course = runner.start(change)
            self._scene.courses.append(course)
            self._tick(clients, lambda course=course: not runner.poll(course))  # type: ignore[misc]
            if course.message is not None:
                self._display.note(f"  {course.sqlstate}: {course.message}")
            until = course.begin + LEAST_SECONDS + BETWEEN_SECONDS
            self._tick(clients, lambda until=until: clients.board.seconds_since_start() > until)  # type: ignore[misc]
        runner.close()
        return self._scene.courses

    def _wait(self, clients: Clients, seconds: float) -> None:
        until = time.monotonic() + seconds
        self._tick(clients, lambda: time.monotonic() >= until)

    def _tick(self, clients: Clients, is_over: Callable[[], bool]) -> None:
        """Draw, and look after the clients, until it is over."""
        while not is_over():
            clients.check()
            self._display.update(self._scene)
            time.sleep(_TICK)
        self._display.update(self._scene)
