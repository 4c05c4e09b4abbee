"""The data file beside LMDB: where it ends, what of it is cached, and how parts of it are written out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from instar.clock import ManualClock
from instar.store import data_file, open_store
from instar.store.data_file import DataFile, write_out
from instar.store.presence import SharedPresence
from store.building import raw

PAGE = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The data file of a store that all have closed."""
    store = open_store(tmp_path / "db")
    raw(store, (b"\x03\x01", b"1"))
    store.close()
    return tmp_path / "db" / "data.mdb"


@pytest.fixture
def data(path: Path) -> Iterator[DataFile]:
    made = DataFile(str(path), PAGE)
    yield made
    made.close()


def test_its_end_is_moved_forward_by_one_call_and_back_by_another(data: DataFile, path: Path) -> None:
    used, content, blocks = data.used(), path.read_bytes(), path.stat().st_blocks
    assert data.size() == used == len(content)
    data.extend(used - PAGE)
    data.cut(used + PAGE)
    assert data.size() == used
    data.extend(used + 100 * PAGE)
    assert data.size() == used + 100 * PAGE
    assert path.stat().st_blocks == blocks  # a hole
    data.extend(used + 50 * PAGE)
    assert data.size() == used + 100 * PAGE
    data.cut(used)
    assert path.read_bytes() == content


def test_it_ends_with_its_data_when_the_last_process_says_so(data: DataFile, tmp_path: Path) -> None:
    here, other = (SharedPresence(str(tmp_path / "presence"), ManualClock(), 300.0) for _ in range(2))
    data.extend(data.used() + PAGE)
    data.end_with_data(here)
    assert data.size() == data.used() + PAGE
    other.close()
    data.end_with_data(here)
    assert data.size() == data.used()
    here.close()


def test_all_of_a_part_is_read_as_what_is_read_at_random_is(data: DataFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the cache holds each page by itself."""
    done: list[tuple[int, ...]] = []

    def read(_file: int, buffers: list[bytearray], place: int) -> int:
        done.append((place, place + len(buffers[0])))
        return len(buffers[0])

    monkeypatch.setattr(os, "preadv", read)
    monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: done.append(arguments))
    begin, end = 5 * PAGE, 5 * PAGE + (3 << 20) + PAGE
    data.cache_pages(begin, end)
    assert done[0] == (data.number, 0, 0, os.POSIX_FADV_RANDOM)
    places = [begin, *(part[1] for part in done[1:])]
    assert [part[0] for part in done[1:]] == places[:-1]
    assert places[-2] < end <= places[-1]


@pytest.mark.parametrize(("wait", "flags"), [(False, 2), (True, 7)])
def test_who_waits_waits_for_what_is_on_its_way_and_for_what_it_writes(
    data: DataFile, monkeypatch: pytest.MonkeyPatch, wait: bool, flags: int
) -> None:
    """SYNC_FILE_RANGE_WAIT_BEFORE, 1, _WRITE, 2, and _WAIT_AFTER, 4."""
    asked: list[tuple[int, ...]] = []
    really: Callable[..., int] = data_file._sync_file_range

    def note(*arguments: int) -> int:
        asked.append(arguments)
        return really(*arguments)

    monkeypatch.setattr(data_file, "_sync_file_range", note)
    write_out(data.number, PAGE, 2 * PAGE, wait=wait)
    assert asked == [(data.number, PAGE, 2 * PAGE, flags)]
    with pytest.raises(OSError, match="Bad file descriptor"):
        write_out(1 << 20, 0, PAGE, wait=wait)
