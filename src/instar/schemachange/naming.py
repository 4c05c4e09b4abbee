"""Names that PostgreSQL would generate: t_pkey, t_a_key, t_a_check, t_a_fkey, t_a_idx, t_a_seq."""

from __future__ import annotations

from collections.abc import Callable, Sequence

MAX_NAME_BYTES = 63


def generated_name(table: str, columns: Sequence[str], label: str, taken: Callable[[str], bool]) -> str:
    """`<table>_<columns>_<label>`, shortened to 63 bytes as PostgreSQL does, with a number after the label if taken."""
    middle = "_".join(columns)
    attempt = 0
    while True:
        name = _shortened(table, middle, label if attempt == 0 else f"{label}{attempt}")
        if not taken(name):
            return name
        attempt += 1


def _shortened(first: str, second: str, label: str) -> str:
    """The longer of the two parts gives way first."""
    fixed = len(label) + 1 + (1 if second else 0)
    one, two = first.encode(), second.encode()
    while len(one) + len(two) + fixed > MAX_NAME_BYTES:
        if len(one) > len(two):
            one = one[:-1]
        else:
            two = two[:-1]
    parts = [one.decode(errors="ignore"), two.decode(errors="ignore"), label]
    return "_".join(part for part in parts if part)
