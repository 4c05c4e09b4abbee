"""A board on which a run has been played, without processes."""

import multiprocessing

import pytest
from demo.board import Board

RATE = 1000
SECONDS = 30
# From here, for this long, nothing is completed.
STALL = (12.0, 0.5)
LATENCY = 200_000  # nanoseconds, when quiet


@pytest.fixture(scope="session")
def board():
    """Two clients at 1,000 operations/s for 30 s, 0.2 ms each; from second 12 both stall for half a second."""
    board = Board(multiprocessing.get_context("spawn"), 2, SECONDS + 5)
    board.open_loop(RATE, 0)
    stall_begin, stall_end = (int(at * 1e9) for at in (STALL[0], sum(STALL)))
    for client in range(2):
        writer = board.writer(client)
        free = 0
        for scheduled in range(board.interval * client // 2, SECONDS * 10**9, board.interval):
            begin = max(scheduled, free)
            if stall_begin <= begin < stall_end:
                begin = stall_end
            free = begin + LATENCY
            writer.arrived(scheduled, free)
    return board
