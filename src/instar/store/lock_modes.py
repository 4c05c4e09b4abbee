"""Lock modes and which of them conflict: what the lock table knows of the locks that it holds.

A mode is a bit of an owner's mask on a resource; its conflicts are a mask of other owners' bits. Modes of different
kinds of locks stand in one table and never meet, as their resources are of different kinds. Another kind of lock is
another range of numbers here and its rows in `CONFLICTS`; there is room for sixteen.

The modes of schema locks and their conflicts are those of MD-MVCC (§3.3, table 1), where row locks are its *other
modes*. What they are taken on and by whom is said in `catalog/schema_locks.py`.
"""

from __future__ import annotations

import enum


class Mode(enum.IntEnum):
    """The four modes of row locks, PostgreSQL's, and the four of schema locks: the weaker ones first."""

    KEY_SHARE = 0  # the row stays, and keeps its keys
    SHARE = 1  # the row stays as it is
    NO_KEY_UPDATE = 2  # columns of no key are changed
    UPDATE = 3  # the row goes, comes, or gets other keys

    SCH_A = 4  # Schema Access: the schema is read as of a snapshot
    SCH_S = 5  # Schema Stability: the schema stays as it is
    SCH_C = 6  # Schema Create: it gets another version, beside whoever reads the one before
    SCH_M = 7  # Schema Modification: nobody else

    @property
    def shown(self) -> str:
        """As SQL says it, or the paper."""
        return self.name.replace("_", " " if self in ROW_MODES else "-")


ROW_MODES = (Mode.KEY_SHARE, Mode.SHARE, Mode.NO_KEY_UPDATE, Mode.UPDATE)
SCHEMA_MODES = (Mode.SCH_A, Mode.SCH_S, Mode.SCH_C, Mode.SCH_M)


def _mask(*modes: Mode) -> int:
    return sum(1 << mode for mode in modes)


# By mode: what others may not hold meanwhile. Symmetric.
CONFLICTS: tuple[int, ...] = (
    _mask(Mode.UPDATE, Mode.SCH_C, Mode.SCH_M),
    _mask(Mode.NO_KEY_UPDATE, Mode.UPDATE, Mode.SCH_C, Mode.SCH_M),
    _mask(Mode.SHARE, Mode.NO_KEY_UPDATE, Mode.UPDATE, Mode.SCH_C, Mode.SCH_M),
    _mask(*ROW_MODES, Mode.SCH_C, Mode.SCH_M),
    _mask(Mode.SCH_M),
    _mask(Mode.SCH_C, Mode.SCH_M),
    _mask(*ROW_MODES, Mode.SCH_S, Mode.SCH_C, Mode.SCH_M),
    _mask(*Mode),
)


def modes_of(mask: int) -> list[Mode]:
    """The modes of a mask, the weaker ones first."""
    return [mode for mode in Mode if mask & 1 << mode]
