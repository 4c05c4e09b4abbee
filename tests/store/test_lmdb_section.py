"""The atomic section of the lmdb engine: while its environment is closed, and when nobody knows of it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from instar.errors import Error
from instar.store import open_store
from instar.store.engine import Store
from instar.store.lmdb import LmdbStore
from store.building import change, contents, row_key


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_closing_waits_for_a_thread_in_the_section_and_refuses_the_next(path: Path) -> None:
    store = open_store(path, synchronous="off")
    entered, leave = threading.Event(), threading.Event()

    def hold(_section: object) -> None:
        entered.set()
        leave.wait(10.0)

    with ThreadPoolExecutor(2) as pool:
        holding = pool.submit(store.background, [hold])
        assert entered.wait(10.0)
        closing = pool.submit(store.close)
        while store._environment.__class__.__name__ != "_Closed":  # type: ignore[attr-defined] # closing has begun
            time.sleep(0.001)
        assert not closing.done()
        leave.set()
        assert holding.result(10.0) == 1
        closing.result(10.0)
    with pytest.raises(Error) as caught:
        change(store, {1: b"late"})
    assert caught.value.sqlstate == "08003"
    open_store(path).close()


def test_commits_while_the_last_opener_closes_stand_or_are_refused(path: Path) -> None:
    """py-lmdb waits for ever for a write transaction of another thread in an environment that it closes."""
    for _turn in range(30):
        store = open_store(path, synchronous="off")
        done: list[int] = []

        def commits(key: int, store: Store = store, done: list[int] = done) -> str | None:
            while True:
                try:
                    change(store, {key: b"%d" % len(done)})
                except Error as refused:
                    return refused.sqlstate
                done.append(1)

        with ThreadPoolExecutor(2) as pool:
            running = [pool.submit(commits, key) for key in range(2)]
            while len(done) < 20:
                time.sleep(0.0001)
            store.close()
            assert [found.result(20.0) for found in running] == ["08003"] * 2


@pytest.mark.parametrize(("synchronous", "write_map"), [("off", True), ("off", False), ("full", True)])
def test_a_section_that_nobody_knows_of_is_left(tmp_path: Path, synchronous: str, write_map: bool) -> None:
    """An interrupt may come when it has been entered and before anybody could leave it: nothing may keep it alive, or
    nobody would ever enter again."""
    store = open_store(tmp_path / "db", synchronous=synchronous, write_map=write_map)
    change(store, {1: b"a"})
    assert isinstance(store, LmdbStore)
    section = store._environment.begin_section()
    section.put(row_key(2), b"never")
    del section
    change(store, {1: b"b"})
    assert row_key(2) not in contents(store)
    store.close()
