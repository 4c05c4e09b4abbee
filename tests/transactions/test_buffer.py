"""The buffer: net changes, order of keys, savepoints."""

from __future__ import annotations

import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar import errors
from instar.store.engine import RowWrite
from instar.transactions.buffer import Buffer, Change, TableBuffer

T = 7


def test_insert_then_update_is_an_insert_of_the_new_image() -> None:
    buffer = Buffer()
    buffer.insert(T, 1, b"k", (1, "a"))
    buffer.update(T, 1, b"k", None, (1, "a"), (1, "b"), frozenset({2}))
    assert buffer.tables[T].changes == {b"k": Change(None, (1, "b"), None, None, 1)}


def test_insert_then_delete_is_nothing() -> None:
    buffer = Buffer()
    buffer.insert(T, 1, b"k", (1,))
    buffer.delete(T, 1, b"k", None, (1,))
    assert buffer.table(T) is None
    assert not buffer


def test_delete_then_insert_replaces_the_stored_row_whole() -> None:
    buffer = Buffer()
    buffer.delete(T, 1, b"k", 42, (1, "a"))
    buffer.insert(T, 1, b"k", (1, "b"))
    assert buffer.tables[T].changes[b"k"] == Change(42, (1, "b"), (1, "a"), None, 1)


def test_updates_merge_their_columns_and_keep_the_first_old_image() -> None:
    buffer = Buffer()
    buffer.update(T, 1, b"k", 42, (1, "a", "x"), (1, "b", "x"), frozenset({2}))
    buffer.update(T, 1, b"k", 42, (1, "b", "x"), (1, "b", "y"), frozenset({3}))
    assert buffer.tables[T].changes[b"k"] == Change(42, (1, "b", "y"), (1, "a", "x"), frozenset({2, 3}), 1)


def test_a_large_transaction_is_nothing_to_the_collector() -> None:
    """Which would look at all rows again and again, and free none: that took 40 % of a large statement."""
    buffer, many = Buffer(), 10_000
    gc.collect()
    before = len(gc.get_objects())
    for number in range(many):
        key = b"%d" % number
        buffer.update(T, 1, key, 42, (number, "a"), (number, "b"), frozenset({number % 3}))
        if number % 5 == 0:
            buffer.update(T, 1, key, 42, (number, "b"), (number, "c"), frozenset({number % 3}))
        elif number % 5 == 1:
            buffer.delete(T, 1, key, 42, (number, "b"))
    gc.collect()
    assert buffer.rows == many
    assert len(gc.get_objects()) - before < many / 10
    assert not gc.is_tracked(RowWrite(b"k", None, b"", 1))


def test_a_row_keeps_its_number_however_often_its_key_changes() -> None:
    buffer = Buffer()
    pair = buffer.pair_of(T, b"a")
    buffer.delete(T, 1, b"a", 42, (1,), pair=pair)
    buffer.insert(T, 1, b"b", (2,), pair=pair)
    assert buffer.pair_of(T, b"b") == pair > 0
    buffer.delete(T, 1, b"b", None, (2,), pair=pair)
    buffer.insert(T, 1, b"c", (3,), pair=pair)
    assert {key: change.pair for key, change in buffer.tables[T].changes.items()} == {b"a": pair, b"c": pair}
    buffer.insert(T, 1, b"d", (4,))
    assert buffer.pair_of(T, b"d") == 0


def test_where_a_row_has_gone_is_known_though_others_take_its_place() -> None:
    buffer = Buffer()
    one, two = buffer.pair_of(T, b"a"), buffer.pair_of(T, b"b")
    assert one != two
    buffer.delete(T, 1, b"a", 41, (1,), pair=one)
    buffer.delete(T, 1, b"b", 42, (2,), pair=two)
    buffer.insert(T, 1, b"a", (1, "b"), pair=two)
    change = buffer.tables[T].changes[b"a"]
    assert (change.pair, change.gone) == (two, one)
    buffer.update(T, 1, b"a", 41, (1, "b"), (1, "c"), frozenset({2}))
    assert buffer.tables[T].changes[b"a"].gone == one
    assert buffer.pair_of(T, b"a") == two
    buffer.delete(T, 1, b"a", 41, (1, "c"), pair=two)
    assert buffer.tables[T].changes[b"a"] == Change(41, None, (1,), None, 1, one)


def test_limit_of_rows_is_54000_and_counts_rows_not_changes() -> None:
    buffer = Buffer(max_rows=2)
    buffer.insert(T, 1, b"a", (1,))
    buffer.update(T, 1, b"a", None, (1,), (2,), frozenset({1}))
    buffer.insert(T, 1, b"b", (1,))
    with pytest.raises(errors.OperationalError) as caught:
        buffer.insert(T, 1, b"c", (1,))
    assert caught.value.sqlstate == "54000"


@given(
    st.lists(
        st.one_of(st.lists(st.integers(0, 200), min_size=1, max_size=40), st.tuples(st.integers(0, 210), st.just(0))),
        max_size=30,
    )
)
def test_keys_are_found_in_order_whatever_has_come_and_gone(steps) -> None:
    buffer = Buffer()
    present: set[int] = set()
    for step in steps:
        if isinstance(step, tuple):
            table = buffer.table(T)
            found = [] if table is None else table.keys_between(b"%03d" % step[0], b"\xff")
            assert found == [b"%03d" % number for number in sorted(present) if number >= step[0]]
            continue
        for number in step:
            if number in present:
                buffer.delete(T, 1, b"%03d" % number, None, (number,))
            else:
                buffer.insert(T, 1, b"%03d" % number, (number,))
            present ^= {number}


def _asked(table: TableBuffer, together: threading.Barrier) -> list[bytes]:
    together.wait()
    return list(table.ordered())


def test_keys_in_order_as_several_threads_ask_for_them_at_once() -> None:
    buffer = Buffer()
    for number in range(0, 8000, 2):
        buffer.insert(T, 1, b"%04d" % number, (number,))
    table = buffer.tables[T]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for first in range(1, 8000, 20):
                for number in range(first, first + 20, 2):
                    buffer.insert(T, 1, b"%04d" % number, (number,))
                wanted, together = sorted(table.changes), threading.Barrier(4)
                for found in [pool.submit(_asked, table, together) for _ in range(4)]:
                    assert found.result() == wanted
                assert table.ordered() == wanted
    finally:
        sys.setswitchinterval(interval)


def test_replacing_images_is_undone_by_a_rollback() -> None:
    buffer = Buffer()
    buffer.insert(T, 1, b"k", (1,))
    mark = buffer.mark()
    buffer.replace(T, {b"other": Change(None, (1, None), None, None, 2)})
    assert {key: change.image for key, change in buffer.tables[T].changes.items()} == {b"other": (1, None)}
    buffer.rollback(mark)
    assert buffer.tables[T].changes[b"k"] == Change(None, (1,), None, None, 1)


@given(st.lists(st.tuples(st.sampled_from(["insert", "update", "delete", "mark", "rollback"]), st.integers(0, 4))))
def test_any_rollback_restores_what_was_there(operations: list[tuple[str, int]]) -> None:
    """Against whole copies of the state; keys 0 to 2 are stored rows, 3 and 4 are not."""
    buffer = Buffer()
    stored: dict[int, tuple[int, tuple[object, ...]]] = {
        number: (100 + number, (number, "stored")) for number in range(3)
    }
    marks: list[tuple[int, dict[bytes, Change]]] = []
    rows: dict[int, tuple[object, ...]] = {number: image for number, (_, image) in stored.items()}
    copies: list[dict[int, tuple[object, ...]]] = []

    def state() -> dict[bytes, Change]:
        return dict(buffer.tables[T].changes) if T in buffer.tables else {}

    for step, (kind, number) in enumerate(operations):
        key = bytes([number])
        base = stored[number][0] if number in stored else None
        if kind == "insert" and number not in rows:
            rows[number] = (number, step)
            buffer.insert(T, 1, key, rows[number])
        elif kind == "update" and number in rows:
            image = (number, step)
            buffer.update(T, 1, key, base, rows[number], image, frozenset({2}))
            rows[number] = image
        elif kind == "delete" and number in rows:
            buffer.delete(T, 1, key, base, rows.pop(number))
        elif kind == "mark":
            marks.append((buffer.mark(), state()))
            copies.append(dict(rows))
        elif kind == "rollback" and marks:
            mark, before = marks.pop()
            buffer.rollback(mark)
            rows = copies.pop()
            assert state() == before
    changes = state()
    assert buffer.rows == len(changes)
    seen = {number: image for number, (_, image) in stored.items()}
    for key, change in changes.items():
        seen.pop(key[0], None)
        if change.image is not None:
            seen[key[0]] = change.image
    assert seen == rows
    if T in buffer.tables:
        assert buffer.tables[T].ordered() == sorted(changes)
        assert buffer.tables[T].keys_between(b"\x01", b"\x03") == [
            k for k in sorted(changes) if k in (b"\x01", b"\x02")
        ]


def part_of(image: tuple[object, ...]) -> bytes:
    return bytes([int(str(image[0]))])


_STEPS = st.tuples(st.sampled_from(["insert", "update", "delete", "mark", "rollback", "look"]), st.integers(0, 39))


@given(st.lists(_STEPS, max_size=150))
def test_new_rows_are_found_in_the_order_of_an_index_whatever_came_before(steps: list[tuple[str, int]]) -> None:
    buffer, marks, number = Buffer(), [0], 0
    for what, place in steps:
        key, number = b"%02d" % place, number + 1
        table = buffer.table(T)
        change = None if table is None else table.changes.get(key)
        there = change is not None and change.image is not None
        image = (number * 7 % 50, number)
        if what == "insert" and not there:
            buffer.insert(T, 1, key, image)
        elif what == "update":
            buffer.update(T, 1, key, None if change is None else change.base, (0,), image, frozenset({1}))
        elif what == "delete":
            buffer.delete(T, 1, key, 42 if change is None else change.base, (0,))
        elif what == "mark":
            marks.append(buffer.mark())
        elif what == "rollback" and len(marks) > 1:
            buffer.rollback(marks.pop())
        if table is not None:
            rows = [(part_of(change.image), key) for key, change in table.changes.items() if change.image is not None]
            for start, stop in [(0, 255), (place, 40)]:
                expected = sorted(row for row in rows if bytes([start]) <= row[0] < bytes([stop]))
                assert table.rows_between("order", part_of, bytes([start]), bytes([stop])) == expected


def test_looking_after_each_row_makes_the_part_of_each_row_once() -> None:
    buffer, made = Buffer(), 0

    def counted(image: tuple[object, ...]) -> bytes:
        nonlocal made
        made += 1
        return part_of(image)

    for number in range(500):
        buffer.insert(T, 1, b"%04d" % number, (number % 50,))
        found = buffer.tables[T].rows_between("order", counted, bytes([number % 50]), bytes([number % 50 + 1]))
        assert len(found) == number // 50 + 1
    assert made == 500


def test_an_order_that_was_interrupted_is_made_anew() -> None:
    buffer = Buffer()
    for number in range(20):
        buffer.insert(T, 1, b"%04d" % number, (number,))

    def interrupted(image: tuple[object, ...]) -> bytes:
        if image == (10,):
            raise KeyboardInterrupt
        return part_of(image)

    with pytest.raises(KeyboardInterrupt):
        buffer.tables[T].rows_between("order", interrupted, b"", b"\xff")
    for number in range(20):
        buffer.update(T, 1, b"%04d" % number, None, (number,), (number + 1,), frozenset({1}))
    assert len(buffer.tables[T].rows_between("order", part_of, b"", b"\xff")) == 20
