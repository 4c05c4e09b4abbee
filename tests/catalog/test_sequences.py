"""Sequences: blocks per process, bounds, cycles, and ids that are never handed out twice."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from instar import errors
from instar.catalog.descriptors import Sequence
from instar.catalog.ids import IdAllocator
from instar.catalog.sequences import FIRST_BLOCK, Sequences
from instar.store import MemoryStore, open_store
from instar.types import BIGINT


def sequence(**options: Any) -> Sequence:
    return Sequence(id=7, name="s", version=1, type=BIGINT, **options)


def test_values_follow_each_other_and_go_on_after_an_orderly_close() -> None:
    store = MemoryStore()
    first = Sequences(store)
    assert [first.next_value(sequence()) for _ in range(3)] == [1, 2, 3]
    first.close()
    assert Sequences(store).next_value(sequence()) == 4


def test_two_processes_never_get_one_value() -> None:
    store = MemoryStore()
    one, two = Sequences(store), Sequences(store)
    values = [held.next_value(sequence()) for _ in range(100) for held in (one, two)]
    assert len(set(values)) == 200
    one.close()
    two.close()
    assert Sequences(store).next_value(sequence()) not in values


def test_the_end_of_a_sequence_is_2200h_and_a_cycle_begins_again() -> None:
    store = MemoryStore()
    values = Sequences(store)
    short = sequence(maximum=3)
    assert [values.next_value(short) for _ in range(3)] == [1, 2, 3]
    with pytest.raises(errors.Error) as caught:
        values.next_value(short)
    assert caught.value.sqlstate == "2200H"
    round_ = Sequence(id=8, name="r", version=1, type=BIGINT, minimum=1, maximum=3, cycle=True)
    assert [values.next_value(round_) for _ in range(7)] == [1, 2, 3, 1, 2, 3, 1]


def test_descending() -> None:
    values = Sequences(MemoryStore())
    down = sequence(start=5, increment=-2, minimum=0, maximum=5)
    assert [values.next_value(down) for _ in range(3)] == [5, 3, 1]
    with pytest.raises(errors.Error, match="minimum value"):
        values.next_value(down)


def test_ids_of_many_threads_and_openers_are_distinct(tmp_path) -> None:
    store = open_store(str(tmp_path / "db"), synchronous="off")
    made: list[int] = []

    def allocate() -> None:
        ids = IdAllocator(store)
        made.extend(ids.next_object() for _ in range(100))

    threads = [threading.Thread(target=allocate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 400
    assert min(made) == 1000
    store.close()


def test_many_values_at_once_are_what_nextval_would_give() -> None:
    store = MemoryStore()
    held, other = Sequences(store), Sequences(store)

    def take(count: int, **options: Any) -> list[int]:
        return [value for part in held.next_values(sequence(**options), count) for value in part]

    assert held.next_value(sequence()) == 1
    assert take(10_000) == list(range(2, 10_002))
    assert other.next_value(sequence()) > 10_001
    assert take(0) == []
    with pytest.raises(errors.Error) as caught:
        take(11, maximum=20_000, counter=8, first=19_991)
    assert caught.value.sqlstate == "2200H"
    assert take(5, maximum=3, cycle=True, counter=9) == [1, 2, 3, 1, 2]
    assert take(3, increment=-2, minimum=-100, maximum=-1, counter=10, first=-1) == [-1, -3, -5]


def test_a_counter_goes_on_where_it_was_left() -> None:
    """Sessions that see another descriptor of the sequence count by another counter, each by its own."""
    values = Sequences(MemoryStore())
    restarted = sequence(counter=8, first=50)
    assert [values.next_value(found) for found in (sequence(), restarted) * 2] == [1, 50, 2, 51]
    values.close()
    assert [values.next_value(found) for found in (restarted, sequence())] == [52, 3]


def test_a_block_is_not_given_back_when_the_sequence_has_gone_there_and_back() -> None:
    store = MemoryStore()
    one, two = Sequences(store), Sequences(store)
    down = sequence(increment=-1)
    assert one.next_value(sequence()) == 1
    reserved = two.next_value(sequence()) - 1
    # Were it not for the count of writes, the counter would be as the first process has left it.
    assert two.next_value(down) == reserved
    assert two.next_value(sequence()) == reserved + 1
    assert two.next_value(down) == reserved
    two.close()
    assert one.next_value(sequence()) == 2
    one.close()
    assert Sequences(store).next_value(sequence()) == reserved + 1


def test_the_last_value_is_of_this_process_or_the_end_of_what_another_has_reserved() -> None:
    store = MemoryStore()
    one, two = Sequences(store), Sequences(store)
    assert one.last_value(sequence()) is None
    assert [one.next_value(sequence()) for _ in range(3)] == [1, 2, 3]
    assert two.last_value(sequence()) == FIRST_BLOCK
    assert one.last_value(sequence()) == 3
    assert two.last_value(sequence()) == 3
    assert one.next_value(sequence()) == 4
    highest = 2**63 - 1
    last = sequence(counter=8, first=highest)
    assert [one.next_value(last), one.last_value(last)] == [highest, highest]
    assert one.next_value(sequence(counter=8, increment=-5)) == highest - 5


class FullStore(MemoryStore):
    """A store that has no room for its next commit, once it is told so."""

    full = False

    def commit(self, request: Any) -> int:
        if self.full:
            self.full = False
            raise errors.error(errors.DISK_FULL, "no room")
        return super().commit(request)


@pytest.mark.parametrize("before", [0, 1, FIRST_BLOCK])
def test_what_could_not_be_reserved_is_not_handed_out(before: int) -> None:
    store = FullStore()
    one, two = Sequences(store), Sequences(store)
    values = [one.next_value(sequence()) for _ in range(before)]
    store.full = True
    values += [one.next_value(sequence()) for _ in range(-before % FIRST_BLOCK)] if before else []
    with pytest.raises(errors.Error, match="no room"):
        one.next_value(sequence())
    values += [held.next_value(sequence()) for _ in range(50) for held in (one, two)]
    assert len(set(values)) == len(values)
    one.close()
    assert Sequences(store).next_value(sequence()) not in values


def test_a_block_that_another_thread_is_reserving_is_left_too_after_a_setval(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was reserved before the setval, and is there only after a statement has looked whether there was one."""
    store = MemoryStore()
    here, elsewhere = Sequences(store), Sequences(store)
    write, reserved, go_on = Sequences._write, threading.Event(), threading.Event()

    def held_up(self: Sequences, *args: Any) -> bytes:
        record = write(self, *args)
        if self is here and not reserved.is_set():
            reserved.set()
            go_on.wait(10)
        return record

    monkeypatch.setattr(Sequences, "_write", held_up)
    got: dict[str, int] = {}

    def draw(name: str) -> None:
        with store.read() as reader:
            here.heed_settings(sequence(), reader)
        got[name] = here.next_value(sequence())

    before = threading.Thread(target=draw, args=("before",))
    before.start()
    assert reserved.wait(10)
    elsewhere.set_value(sequence(), 1000, True)
    after = threading.Thread(target=draw, args=("after",))
    after.start()
    after.join(0.2)  # it waits for the other's lock now
    go_on.set()
    before.join()
    after.join()
    assert got == {"before": 1, "after": 1001}
