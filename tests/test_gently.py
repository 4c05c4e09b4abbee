"""Loading modules beside others' work: how long it rests, and for whom."""

from __future__ import annotations

import importlib
import sys
import threading
import time
import types
from pathlib import Path

import pytest

from instar import gently
from instar.gently import REST, loading_gently

BUSY = "import time\nuntil = time.thread_time() + 0.02\nwhile time.thread_time() < until: pass\n"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Modules each of which computes for 20 ms when it is loaded."""
    names = [f"busy_module_{number}" for number in range(4)]
    for name in names:
        (tmp_path / f"{name}.py").write_text(BUSY)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    return names


def listen(monkeypatch: pytest.MonkeyPatch, rests: list[float]) -> None:
    """Have the module tell its rests instead of taking them; nobody else, whatever threads earlier tests have left."""
    own = types.SimpleNamespace(sleep=rests.append, thread_time=time.thread_time)
    monkeypatch.setattr(gently, "time", own)


def load(names: list[str]) -> None:
    for name in names:
        importlib.import_module(name)


def test_it_rests_for_as_long_as_it_should_while_others_work(
    modules: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []
    listen(monkeypatch, rests)
    before = list(sys.meta_path)
    with loading_gently(lambda: True):
        load(modules)
    assert sys.meta_path == before
    # The last module's time is nobody's any more.
    assert REST * 0.02 * (len(modules) - 1) <= sum(rests) < REST * 0.02 * len(modules)
    assert max(rests) < sum(rests)  # in pieces


def test_it_does_not_rest_where_nobody_works(modules: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    listen(monkeypatch, rests)
    with loading_gently(lambda: False):
        load(modules)
    assert rests == []


def test_what_a_thread_did_besides_does_not_count(modules: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that computes, and loads a module now and then, is not held up for that."""
    rests: list[float] = []
    listen(monkeypatch, rests)

    def work() -> None:
        for name in modules[:2]:
            until = time.thread_time() + 0.4
            while time.thread_time() < until:
                pass
            load([name])

    with loading_gently(lambda: True):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert sum(rests) <= 0.1 * REST


def test_threads_rest_for_what_they_have_loaded_themselves(modules: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    listen(monkeypatch, rests)
    before = list(sys.meta_path)
    with loading_gently(lambda: True):
        thread = threading.Thread(target=load, args=(modules[:1],))
        thread.start()
        thread.join()
        load(modules[1:2])  # this one has worked for longer
    assert rests == []
    with pytest.raises(ImportError), loading_gently(lambda: True):
        load(["no_such_module"])
    assert sys.meta_path == before
