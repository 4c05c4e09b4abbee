"""Who has the store open: what one process says and the others read."""

from __future__ import annotations

from pathlib import Path

from instar.clock import ManualClock
from instar.store.presence import LAUNCH_NS, SharedPresence


def test_of_all_processes_one_starts_the_worker(clock: ManualClock, tmp_path: Path) -> None:
    """Each that started one would have it load for a second, to find the other there."""
    first, second = (SharedPresence(str(tmp_path / "presence"), clock, 3600.0) for _ in range(2))
    assert first.wants_worker()
    assert not second.wants_worker()
    assert not first.wants_worker()
    clock.monotonic += LAUNCH_NS  # it has died of something
    assert second.wants_worker()
    assert not first.wants_worker()
    worker = SharedPresence(str(tmp_path / "presence"), clock, 3600.0)
    worker.announce_worker(True)
    assert not first.wants_worker()
    worker.close()  # without a word, as who is killed
    assert first.wants_worker()
    first.close()
    second.close()
