"""Which stalls count as the database's own: none of what came while the disk stood still, or queued up behind that."""

import multiprocessing

import pytest
from benchmarks.stalls import _longest_of_parts, _own_longest, _share
from demo.board import WINDOW_NS, Board

MS = 1_000_000


@pytest.fixture
def board():
    """Ten seconds; each window's longest latency is its number in milliseconds."""
    board = Board(multiprocessing.get_context("spawn"), 1, 10)
    board.open_loop(1000.0, 50_000_000_000)
    writer = board.writer(0)
    for window in range(100):
        writer.arrived(window * WINDOW_NS, window * WINDOW_NS + window * MS)
    return board


@pytest.mark.parametrize(
    ("stood", "longest"),
    [
        ([], 79.0),
        ([(5.0, 5.1)], 79.0),
        ([(6.5, 6.6)], 72.0),  # from 6.3 to 7.0 s of the phase, which begins at window 10
        ([(6.0, 6.1), (6.6, 6.7)], 67.0),
        ([(2.0, 6.5)], 27.0),
        ([(0.0, 7.0)], 0.0),
    ],
)
def test_what_came_behind_a_standstill_does_not_count(board, stood, longest):
    assert _own_longest(board, (10, 80), stood) == longest


def test_how_much_of_a_phase_the_disk_stood_still(board):
    assert _share(board, (10, 80), [(1.0, 1.5), (2.0, 2.2)]) == pytest.approx(0.1)


def test_the_longest_stall_of_each_ten_seconds(board):
    assert _longest_of_parts(board, (0, 100)) == [99.0]
    assert _longest_of_parts(board, (0, 99)) == []
