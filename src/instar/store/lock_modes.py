"""Lock modes and which of them conflict: what the lock table knows of the locks that it holds.

A mode is a bit of an owner's mask on a resource; its conflicts are a mask of other owners' bits. Modes of different
kinds of locks stand in one table and never meet, as their resources are of different kinds. Another kind of lock is
another range of numbers here and its rows in `CONFLICTS`; there is room for sixteen.
"""

from __future__ import annotations

import enum


class Mode(enum.IntEnum):
    """The four modes of row locks, PostgreSQL's: the weaker ones first."""

    KEY_SHARE = 0  # the row stays, and keeps its keys
    SHARE = 1  # the row stays as it is
    NO_KEY_UPDATE = 2  # columns of no key are changed
    UPDATE = 3  # the row goes, comes, or gets other keys

    @property
    def shown(self) -> str:
        """As SQL says it."""
        return self.name.replace("_", " ")


def _mask(*modes: Mode) -> int:
    return sum(1 << mode for mode in modes)


# By mode: what others may not hold meanwhile. Symmetric.
CONFLICTS: tuple[int, ...] = (
    _mask(Mode.UPDATE),
    _mask(Mode.NO_KEY_UPDATE, Mode.UPDATE),
    _mask(Mode.SHARE, Mode.NO_KEY_UPDATE, Mode.UPDATE),
    _mask(Mode.KEY_SHARE, Mode.SHARE, Mode.NO_KEY_UPDATE, Mode.UPDATE),
)


def modes_of(mask: int) -> list[Mode]:
    """The modes of a mask, the weaker ones first."""
    return [mode for mode in Mode if mask & 1 << mode]
