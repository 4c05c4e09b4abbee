"""Pairs put in the order that fills pages: nothing lost, and pages that are mostly full whatever follows."""

from __future__ import annotations

from pathlib import Path

import lmdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar.store.filling import filling_runs

PAGE = 4096


def pairs_of(count: int, size: int) -> list[tuple[bytes, bytes]]:
    return [(b"\x10" + number.to_bytes(9, "big"), bytes(size)) for number in range(count)]


@given(st.integers(1, 500), st.integers(0, 300))
def test_every_pair_is_put_once(count: int, size: int) -> None:
    pairs = pairs_of(count, size)
    runs = filling_runs(pairs, PAGE)
    assert all(runs)
    assert sorted(pair for run in runs for pair in run) == pairs


@pytest.mark.parametrize("batch", [267, 8000])
@pytest.mark.parametrize("size", [10, 44, 100])
@pytest.mark.parametrize("following", [[22, 36], [22, 36] * 30, [600, 300, 1620], [1620, 1400]], ids=len)
def test_pages_are_filled_whatever_follows(tmp_path: Path, following: list[int], size: int, batch: int) -> None:
    pairs = pairs_of(16_000, size)
    with lmdb.open(str(tmp_path), map_size=1 << 28, sync=False) as environment:
        with environment.begin(write=True) as transaction:
            for number in range(20):
                transaction.put(b"\x01" + bytes([number]), bytes(50))
            for number, record in enumerate(following):
                transaction.put(b"\xf0" + bytes([number]), bytes(record))
        for begin in range(0, len(pairs), batch):
            with environment.begin(write=True) as transaction:
                for run in filling_runs(pairs[begin : begin + batch], PAGE):
                    transaction.cursor().putmulti(run)
        pages = environment.stat()["leaf_pages"]
    stored = sum(len(key) + len(value) + 10 for key, value in pairs)
    assert stored / (pages * PAGE) > (0.6 if batch < 1000 else 0.8)


def test_pages_of_few_rows_are_filled_in_order() -> None:
    pairs = pairs_of(100, 150)
    assert filling_runs(pairs, PAGE) == [pairs]
