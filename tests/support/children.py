"""Processes that this one has started."""

from __future__ import annotations

import psutil


def children(word: str) -> list[psutil.Process]:
    """Those with this among the words of their command. One that has ended has none, until somebody waits for it."""
    return [child for child in psutil.Process().children() if word in _command(child)]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def end_worker(path: str) -> None:
    """End the worker that this process has started for a database."""
    for child in children(path):
        child.terminate()
        child.wait(10)
