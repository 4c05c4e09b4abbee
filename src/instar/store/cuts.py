"""Where a range of keys is cut so that its parts hold about as many keys each."""

from __future__ import annotations

from typing import NamedTuple


class Cut(NamedTuple):
    """The first keys of all parts but the first, in order, and about how many keys the whole range has."""

    keys: list[bytes]
    rows: int


def ranks(rows: int, parts: int) -> list[int]:
    """Which of `rows` keys, counted from 0, are the first ones of the second part and of those after it. No part is
    empty: fewer keys than parts are one part each."""
    return sorted({rows * part // parts for part in range(1, parts)} - {0})
