"""Recovery: what a power failure leaves, what killed processes leave, and what is damaged."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import instar
from instar import errors
from instar.store import keeper, wal
from instar.store.data_file import meta_pages
from instar.store.lmdb import LmdbStore, open_store
from instar.store.wal_format import (
    CHECKPOINT_FILES,
    FRAMES,
    WAL_FILES,
    generation_of,
    offset_of,
    position,
    read_checkpoint,
)
from store.building import contents, ended, in_child, raw
from support.databases import rows
from support.power import Disk

ROWS = 200
LOADED = 3_000
SUM_OF_IDS = LOADED * (LOADED - 1) // 2


class Clients:
    """Threads that write, each to rows of its own, and know what was acknowledged."""

    def __init__(self, path: Path, count: int) -> None:
        self.acknowledged = [dict.fromkeys(range(number, ROWS, count), 0) for number in range(count)]
        self.begun = [dict(known) for known in self.acknowledged]
        self._stop = threading.Event()
        self._failed: list[Exception] = []
        self._threads = [threading.Thread(target=self._run, args=(path, number)) for number in range(count)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_caught: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self._failed, self._failed

    def _run(self, path: Path, number: int) -> None:
        draw = random.Random(number)
        try:
            with instar.connect(path, synchronous=None, autocommit=True) as connection:
                for value in range(1, 1 << 30):
                    if self._stop.is_set():
                        return
                    keys = draw.sample(sorted(self.acknowledged[number]), draw.choice((1, 1, 1, 20)))
                    self.begun[number].update(dict.fromkeys(keys, value))
                    text = "x" * draw.choice((10, 10, 10, 3000, 100_000))
                    connection.executemany("UPDATE t SET a = ?, b = ? WHERE id = ?", [(value, text, k) for k in keys])
                    self.acknowledged[number].update(dict.fromkeys(keys, value))
        except Exception as caught:  # noqa: BLE001 - shown by the thread that joins
            self._failed.append(caught)


class Loader:
    """A thread that loads table after table in bulk, gives each an index, and knows what was acknowledged."""

    def __init__(self, path: Path) -> None:
        self.loaded = 0
        self.indexed = 0
        self._path = path
        self._stop = threading.Event()
        self._failed: list[Exception] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Loader:
        self._thread.start()
        return self

    def __exit__(self, *_caught: object) -> None:
        self._stop.set()
        self._thread.join()
        assert not self._failed, self._failed

    def _run(self) -> None:
        ids = np.arange(LOADED)
        try:
            with instar.connect(self._path, synchronous=None, autocommit=True) as connection:
                while not self._stop.is_set():
                    name = f"loaded{self.loaded}"
                    connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, a int NOT NULL)")
                    connection.insert_arrow(name, pa.table({"id": ids, "a": ids * 7919 % 10007}))
                    self.loaded += 1
                    connection.execute(f"CREATE INDEX ON {name} (a)")
                    self.indexed += 1
        except Exception as caught:  # noqa: BLE001 - shown by the thread that joins
            self._failed.append(caught)


def make(path: Path, synchronous: str = "full") -> None:
    with instar.connect(path, synchronous=synchronous, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL, b text)")
        connection.execute("CREATE INDEX t_a ON t (a)")
        connection.executemany("INSERT INTO t VALUES (?, 0, '')", [(key,) for key in range(ROWS)])


@contextlib.contextmanager
def watched(path: Path, monkeypatch: pytest.MonkeyPatch, draw: random.Random) -> Iterator[tuple[Disk, LmdbStore]]:
    """A new database at `path` that is all on disk, its store, and what watches over its files from then on."""
    monkeypatch.setattr(keeper, "LOG_BYTES", draw.choice((1 << 12, 1 << 17, 1 << 20)))
    make(path)
    with monkeypatch.context() as patch:
        disk = Disk(path, patch)
        for name in (*WAL_FILES, *CHECKPOINT_FILES, "data.mdb"):
            file = os.open(path / name, os.O_RDWR)
            os.fdatasync(file)
            os.close(file)
        store = open_store(path)
        assert isinstance(store, LmdbStore)
        with contextlib.closing(store):
            yield disk, store


@pytest.mark.parametrize("seed", range(6))
def test_nothing_acknowledged_is_lost_when_the_power_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Nor is a transaction there by half: each leaves one value in all rows that it writes."""
    draw = random.Random(seed)
    path = tmp_path / "db"
    images = []
    with watched(path, monkeypatch, draw) as (disk, store):
        with Clients(path, 3) as clients:
            for number in range(5):
                threading.Event().wait(draw.uniform(0.05, 0.4))
                acknowledged = {key: value for known in clients.acknowledged for key, value in dict(known).items()}
                image = tmp_path / f"image{number}"
                disk.fail(store, image, draw)
                begun = {key: value for known in clients.begun for key, value in dict(known).items()}
                images.append((image, acknowledged, begun))
        assert disk.syncs > 10
    for image, acknowledged, begun in images:
        with instar.connect(image, synchronous=None, autocommit=True) as connection:
            found = dict(rows(connection, "SELECT id, a FROM t"))
            assert found.keys() == begun.keys()
            lost = {key: (found[key], value) for key, value in acknowledged.items() if found[key] < value}
            assert not lost, lost
            assert all(found[key] <= value for key, value in begun.items())
            assert rows(connection, "CHECK DATABASE") == []
            connection.execute("UPDATE t SET a = a + 1")
        with instar.connect(image, synchronous=None) as connection:  # it was left as it should be
            assert rows(connection, "SELECT sum(a) FROM t") == [(sum(found.values()) + ROWS,)]
        shutil.rmtree(image)


@pytest.mark.parametrize("seed", range(4))
def test_what_was_put_in_bulk_is_there_after_a_power_failure_or_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A load or an index that was acknowledged is whole; of what was under way no statement sees a part."""
    draw = random.Random(seed)
    path = tmp_path / "db"
    images = []
    with watched(path, monkeypatch, draw) as (disk, store), Clients(path, 1), Loader(path) as loader:
        while not loader.indexed:
            threading.Event().wait(0.01)
        for number in range(4):
            threading.Event().wait(draw.uniform(0.1, 0.5))
            acknowledged = loader.loaded, loader.indexed
            image = tmp_path / f"image{number}"
            disk.fail(store, image, draw)
            images.append((image, *acknowledged))
    for image, loaded, indexed in images:
        with instar.connect(image, synchronous=None, autocommit=True) as connection:
            for number in range(loaded):
                assert rows(connection, f"SELECT count(*), sum(id) FROM loaded{number}") == [(LOADED, SUM_OF_IDS)]
            for begun in rows(connection, "SELECT tablename FROM pg_tables WHERE tablename LIKE 'loaded%'"):
                assert rows(connection, f"SELECT count(*) FROM {begun[0]}") in ([(0,)], [(LOADED,)])
            seen = rows(connection, "SELECT count(*) FROM pg_indexes WHERE indexname LIKE 'loaded%_a_idx'")
            assert seen[0][0] >= indexed
            assert rows(connection, "CHECK DATABASE") == []
        shutil.rmtree(image)


@pytest.mark.parametrize("turned", [False, True])
def test_what_lies_behind_a_torn_frame_never_follows_upon_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turned: bool
) -> None:
    """A power failure leaves the second of two frames that nobody has synced, with LMDB's meta page or without."""
    path = tmp_path / "db"
    monkeypatch.setattr(keeper, "LOG_BYTES", 1 << 40)
    monkeypatch.setattr(keeper, "AGE_NS", 1 << 60)
    monkeypatch.setattr(wal, "SEGMENT_BYTES", 0 if turned else 1 << 30)

    def commit_two() -> None:
        store = open_store(path)
        raw(store, (b"\x03", b"1"))
        kept = store._environment.keeper  # type: ignore[attr-defined] # only of this engine
        kept.checkpoint()
        section = store._environment.begin_section()  # type: ignore[attr-defined] # as above
        kept._log.turn(kept._log.end)
        section.abort()
        raw(store, (b"\x03A", b"lost" + bytes(8000)))
        raw(store, (b"\x03B", b"lost"))
        os._exit(0)

    def commit_one() -> None:
        store = open_store(path)
        assert not {b"\x03A", b"\x03B"} & contents(store).keys()
        raw(store, (b"\x03A", b"made" + bytes(8000)))
        os._exit(0)

    assert ended(in_child(commit_two)) == 0
    files = [os.open(path / name, os.O_RDONLY) for name in CHECKPOINT_FILES]
    newest = read_checkpoint(files)
    assert newest is not None
    place = position(generation_of(newest.position) + 1, FRAMES) if turned else newest.position
    with (path / WAL_FILES[generation_of(place) & 1]).open("r+b") as log:
        log.seek(offset_of(place))
        log.write(bytes(4096 - offset_of(place) % 4096))
    if not turned:
        with (path / "data.mdb").open("r+b") as data:
            data.write(meta_pages(newest.meta, newest.transaction))
    assert ended(in_child(commit_one)) == 0
    for file in files:
        os.close(file)
    again = open_store(path)
    stored = contents(again)
    assert stored[b"\x03A"][:4] == b"made"
    assert b"\x03B" not in stored
    again.close()


@pytest.mark.parametrize("name", [*WAL_FILES, *CHECKPOINT_FILES])
def test_a_file_that_is_missing_is_named(tmp_path: Path, name: str):
    path = tmp_path / "db"
    open_store(path).close()
    (path / name).unlink()
    with pytest.raises(errors.Error, match=re.escape(f"the store {path} is damaged: {name} is missing")) as caught:
        open_store(path)
    assert caught.value.sqlstate == errors.DATA_CORRUPTED
