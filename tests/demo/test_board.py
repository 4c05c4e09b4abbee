"""The board: an open loop shows a stall to everything that should have run within it."""

import pytest
from demo.board import WINDOWS_PER_SECOND, Feature, Phase
from demo.report import seen


def test_quiet_seconds(board):
    quiet = seen(board, 2 * WINDOWS_PER_SECOND, 10 * WINDOWS_PER_SECOND)
    assert quiet.seconds == 8
    assert quiet.completed_per_second == pytest.approx(1000)
    assert quiet.median == pytest.approx(0.2, rel=0.04)
    assert quiet.longest == pytest.approx(0.2)


def test_a_stall_is_counted_from_the_scheduled_arrival(board):
    stalled = seen(board, 12 * WINDOWS_PER_SECOND, 13 * WINDOWS_PER_SECOND)
    assert stalled.longest == pytest.approx(500, rel=0.01)
    # All who arrived in that half second waited: a closed loop would have counted one slow operation per client.
    assert stalled.median > 10
    counts = board.latencies(12 * WINDOWS_PER_SECOND, 13 * WINDOWS_PER_SECOND)
    assert counts.sum() == 1000
    assert counts[200:].sum() > 400


def test_nothing_is_completed_within_the_stall(board):
    assert board.completed(121, 125).sum() == 0
    assert board.completed(0, board.windows).sum() == board.operations == 30_000


def test_features_add_up(board):
    board.allow(Feature.INDEX)
    board.allow(Feature.WIDENED)
    assert board.features == Feature.INDEX | Feature.WIDENED
    assert board.phase == Phase.OPEN_LOOP
