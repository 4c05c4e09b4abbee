"""What a forked child must not take over: numbers reserved for its parent, and locks that a thread of the parent held.

The lmdb engine looks after its own environments; this is for what is cached above it.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Inherited(Protocol):
    """Something that begins anew in a forked child."""

    def forked(self) -> None:
        """Called in the child, which has one thread: forget what is the parent's, and make new locks."""
        ...


_known: WeakSet[Inherited] = WeakSet()


def begin_anew_in_child(owner: Inherited) -> None:
    """Have `owner.forked` called in every child that this process forks, for as long as `owner` lives."""
    _known.add(owner)


def _after_fork() -> None:
    for owner in list(_known):
        owner.forked()


os.register_at_fork(after_in_child=_after_fork)
