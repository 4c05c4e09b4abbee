"""A client: a process that does the workload, first as fast as it can (calibration), then at fixed times.

In the open loop the times of arrival are fixed beforehand and a latency counts from them, not from the moment at which
the client got round to the operation: a stall of one second is seen by every operation that should have run within it,
where a closed loop would record one long operation and forget the rest (coordinated omission).
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import instar
from demo.board import Board, Phase, Writer
from demo.copies import UNDEFINED_TABLE
from demo.workload import Workload

_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK = 1, 29
_WARM_UP_OPERATIONS = 20  # of each kind
SERIALIZATION_FAILURE = "40001"
DEADLOCK_DETECTED = "40P01"


def main(path: Path, board: Board, number: int, scale: float, errors: Pipe) -> None:
    """Body of the process. What goes wrong is sent to the parent, which ends the demonstration."""
    try:
        _prepare()
        connection = instar.connect(path, synchronous=None, autocommit=True)
        _run(Workload(connection, board, number, scale), board, board.writer(number), number)
        connection.close()
    except KeyboardInterrupt:
        return  # the parent got it too, and says so
    except BaseException:  # noqa: BLE001 - the parent says what happened and ends
        errors.send(f"client {number}: {traceback.format_exc()}")


def _prepare() -> None:
    """Have this process end with its parent, even if that is killed, and sleep exactly."""
    control = ctypes.CDLL(None).prctl
    control(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    parent = multiprocessing.parent_process()
    if parent is None or not parent.is_alive():
        sys.exit(1)  # it was killed before that
    # The default slack lets each sleep end 50 us late, which would be counted as latency.
    control(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def _run(workload: Workload, board: Board, writer: Writer, number: int) -> None:
    for operation in dict.fromkeys(workload.operations):
        for _ in range(_WARM_UP_OPERATIONS):
            _complete(operation, workload, writer)
    gc.collect()
    gc.freeze()
    writer.ready()
    while board.phase == Phase.PREPARE:
        time.sleep(0.001)
    while board.phase == Phase.CALIBRATE:
        _complete(workload.draw(), workload, writer)
        writer.done()
    if board.phase == Phase.OPEN_LOOP:
        _open_loop(workload, board, writer, number)


def _open_loop(workload: Workload, board: Board, writer: Writer, number: int) -> None:
    clock, sleep = time.monotonic_ns, time.sleep
    origin, interval = board.origin, board.interval
    scheduled = interval * number // board.clients
    while board.phase == Phase.OPEN_LOOP:
        operation = workload.draw()
        early = origin + scheduled - clock()
        if early > 0:
            sleep(early / 1e9)
        _complete(operation, workload, writer)
        writer.arrived(scheduled, clock() - origin)
        scheduled += interval


def _complete(operation: Callable[[], None], workload: Workload, writer: Writer) -> None:
    """Do one operation, trying again after conflicts, and once tables are found to have been joined or split; any other
    error is not caught."""
    while True:
        try:
            return operation()
        except instar.Error as error:
            workload.again()
            if error.sqlstate not in (SERIALIZATION_FAILURE, DEADLOCK_DETECTED) and not (
                error.sqlstate == UNDEFINED_TABLE and workload.looks_again()
            ):
                raise
            writer.conflict()
