"""Values that are computed when they are first asked for: once, and without a lock that a child would inherit."""

from __future__ import annotations

import os
import threading

import pytest

from instar.lazily import computed_once


class Numbers:
    def __init__(self) -> None:
        self.computed = 0
        self.going, self.go_on = threading.Event(), threading.Event()

    @computed_once
    def one(self) -> int:
        """The first."""
        self.computed += 1
        return 1

    @computed_once
    def slow(self) -> int:
        self.going.set()
        self.go_on.wait(10)
        return 2

    @computed_once
    def fails(self) -> int:
        self.computed += 1
        raise ValueError(str(self.computed))


def test_it_is_computed_once_for_each_instance():
    numbers, others = Numbers(), Numbers()
    assert (numbers.one, numbers.one, others.one) == (1, 1, 1)
    assert (numbers.computed, others.computed) == (1, 1)
    assert Numbers.one.__doc__ == "The first."


def test_an_error_is_not_kept():
    numbers = Numbers()
    for message in ("1", "2"):
        with pytest.raises(ValueError, match=message):
            numbers.fails  # noqa: B018 - it is computed


def test_a_child_that_is_forked_while_a_thread_computes_does_not_wait_for_it():
    numbers = Numbers()
    thread = threading.Thread(target=lambda: numbers.slow)
    thread.start()
    assert numbers.going.wait(10)
    child = os.fork()
    if child == 0:
        threading.Timer(5, os._exit, (3,)).start()
        numbers.go_on.set()
        os._exit(0 if numbers.slow == Numbers().one + 1 else 1)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    numbers.go_on.set()
    thread.join()
    assert ended == 0
