"""Pairs put so that they fill pages: nothing else is left in the store, and pages are mostly full whatever follows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar.store.filling import MAX_KEY_BYTES, Pairs, fill, takes_wedges, wedge

PAGE = 4096


def pairs_of(count: int, size: int) -> Pairs:
    return [(b"\x10" + number.to_bytes(9, "big"), bytes(size)) for number in range(count)]


def put_run(transaction: lmdb.Transaction, run: Pairs) -> None:
    cursor = transaction.cursor()
    if cursor.set_range(run[0][0]) and takes_wedges(run, bytes(cursor.key()), PAGE):
        fill(transaction, run, cursor.putmulti, PAGE)
    else:
        cursor.putmulti(run)


def put_all(
    path: Path, before: Pairs, runs: list[Pairs], put: Callable[[lmdb.Transaction, Pairs], None] = put_run
) -> tuple[Pairs, int]:
    """Put `before` and then each run; what is stored, and how many leaf pages."""
    with lmdb.open(str(path), map_size=1 << 28, sync=False) as environment:
        with environment.begin(write=True) as transaction:
            for key, value in before:
                transaction.put(key, value)
        for run in runs:
            with environment.begin(write=True) as transaction:
                put(transaction, run)
        with environment.begin() as transaction:
            return list(transaction.cursor()), environment.stat()["leaf_pages"]


def wedged(transaction: lmdb.Transaction, run: Pairs) -> None:
    """Whether or not it is worth the while."""
    fill(transaction, run, transaction.cursor().putmulti, PAGE)


@given(st.data())
def test_what_is_stored(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 400))
    sizes = data.draw(st.lists(st.integers(0, 2500), min_size=count, max_size=count))
    pairs = [(b"\x10" + number.to_bytes(2, "big"), bytes(size)) for number, size in enumerate(sizes)]
    begin = data.draw(st.integers(0, count - 1))
    end = data.draw(st.integers(begin + 1, count))
    # Right behind the run there may be what bears a wedge's key.
    last = pairs[end - 1][0]
    behind = (
        [(last + data.draw(st.sampled_from([b"\0", b"\0\0", b"\1"])), b"behind")] if data.draw(st.booleans()) else []
    )
    others = pairs[:begin] + behind + pairs[end:]
    stored, _pages = put_all(tmp_path_factory.mktemp("filled"), others, [pairs[begin:end]], wedged)
    assert stored == sorted(pairs + behind)


@pytest.mark.parametrize("spare", range(4))
def test_the_longest_keys(tmp_path: Path, spare: int) -> None:
    pairs = [(number.to_bytes(MAX_KEY_BYTES - spare, "big"), bytes(100)) for number in range(100)]
    stored, _pages = put_all(tmp_path, [(b"\xff", b"")], [pairs])
    assert stored == [*pairs, (b"\xff", b"")]
    assert takes_wedges(pairs, b"\xff", PAGE) == (spare >= 2)


@pytest.mark.parametrize("batch", [267, 2000, 8000])
@pytest.mark.parametrize("size", [10, 44, 100, 150])
@pytest.mark.parametrize("following", [[22, 36], [22, 36] * 30, [600, 300, 1620], [1620, 1400]], ids=len)
def test_pages_are_filled_whatever_follows(tmp_path: Path, following: list[int], size: int, batch: int) -> None:
    pairs = pairs_of(16_000, size)
    before = [(b"\x01" + bytes([number]), bytes(50)) for number in range(20)]
    before += [(b"\xf0" + bytes([number]), bytes(record)) for number, record in enumerate(following)]
    runs = [pairs[begin : begin + batch] for begin in range(0, len(pairs), batch)]
    _stored, pages = put_all(tmp_path, before, runs)
    assert sum(len(key) + len(value) + 10 for key, value in pairs) / (pages * PAGE) > (0.8 if batch < 1000 else 0.92)


@pytest.mark.parametrize("page", [4096, 16384])
def test_two_wedges_fill_a_page(page: int) -> None:
    nodes = 2 * (8 + 20 + len(wedge(page, 20)) + 2)
    assert page - 16 - nodes in range(4)  # what LMDB gives away for even sizes


def test_where_wedges_are_worth_it() -> None:
    """Shorter runs, and wider rows, LMDB fills better by itself (docs/benchmarks-history.md)."""
    within, behind = b"\x10" + bytes(4) + b"\xff", b"\xf0"
    assert takes_wedges(pairs_of(30, 70), behind, PAGE)  # half a page, at the end of a table
    assert not takes_wedges(pairs_of(20, 70), behind, PAGE)
    assert takes_wedges(pairs_of(90, 70), within, PAGE)
    assert not takes_wedges(pairs_of(60, 70), within, PAGE)
    assert not takes_wedges(pairs_of(90, 900), behind, PAGE)  # four to a page


@pytest.mark.parametrize("size", [900, 1300])
def test_pages_of_a_few_wide_rows_are_filled_as_before(tmp_path: Path, size: int) -> None:
    pairs = pairs_of(1000, size)
    runs = [pairs[begin : begin + 256] for begin in range(0, len(pairs), 256)]
    _stored, pages = put_all(tmp_path, [(b"\xf0", b"small")], runs)
    assert sum(len(key) + len(value) + 10 for key, value in pairs) / (pages * PAGE) > 0.8
