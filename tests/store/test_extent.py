"""Data files that are shorter than LMDB believes."""

from __future__ import annotations

from pathlib import Path

import lmdb
import pytest

from instar.errors import Error
from instar.store import open_store
from instar.store.extent import holds_tree
from store.building import ALL_ROWS, change, contents, raw

PAGE = 4096


def cut(path: Path, size: int) -> None:
    with (path / "data.mdb").open("r+b") as file:
        file.truncate(size)


def test_free_pages_may_be_missing_and_others_not(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = open_store(path, synchronous="off")
    change(store, dict.fromkeys(range(300), b"x" * 500))
    change(store, {300: b"z" * 3 * PAGE})
    raw(store, (b"\x03\x01", b"y" * 50 * PAGE))
    raw(store, (b"\x03\x01", None))
    rows = contents(store, *ALL_ROWS)
    store.close()
    with lmdb.open(str(path), map_size=1 << 30) as environment, environment.begin() as transaction:
        number, last = transaction.id(), environment.info()["last_pgno"]
    whole = (path / "data.mdb").read_bytes()
    sound = []
    for pages in range(last + 1, 1, -1):
        cut(path, pages * PAGE)
        sound.append(holds_tree(str(path / "data.mdb"), number, PAGE))
    missing = sound.index(False)
    assert missing > 50
    assert not any(sound[missing:])
    # The last page in use is missing: refused, again and again.
    (path / "data.mdb").write_bytes(whole[: (last + 1 - missing) * PAGE])
    for _ in range(2):
        with pytest.raises(Error) as caught:
            open_store(path)
        assert caught.value.sqlstate == "XX001"
    # Free ones are.
    (path / "data.mdb").write_bytes(whole[: (last + 2 - missing) * PAGE])
    store = open_store(path)
    assert contents(store, *ALL_ROWS) == rows
    assert (path / "data.mdb").stat().st_size >= len(whole) - PAGE
    change(store, {1: b"new"})
    store.close()


def test_another_page_at_its_place_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = open_store(path, synchronous="off")
    change(store, dict.fromkeys(range(300), b"x" * 500))
    store.close()
    data = path / "data.mdb"
    with lmdb.open(str(path), map_size=1 << 30) as environment, environment.begin() as transaction:
        number = transaction.id()
    assert holds_tree(str(data), number, PAGE)
    assert holds_tree(str(data), number + 7, PAGE)  # other processes have committed since
    whole = data.read_bytes()
    data.write_bytes(whole[: 2 * PAGE] + bytes(len(whole) - 2 * PAGE))
    assert not holds_tree(str(data), number, PAGE)
