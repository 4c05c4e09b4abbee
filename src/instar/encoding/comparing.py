"""Rows compared in some columns by the bytes that they are: no value is made.

Equal bytes are the same value, to the last bit. Values that are equal but not the same (1.0 and 1.00, 0.0 and -0.0)
have other bytes, and so may a NULL have in its slot: whoever asks takes these for a difference, and looks closer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Set
from itertools import pairwise

from instar.encoding.generate import compile_function
from instar.encoding.rows import RowFormat, damaged_row

# Two stored values of one format: whether they are alike.
RowComparer = Callable[[bytes, bytes], bool]


def compile_comparer(form: RowFormat, alike: Set[int], filled: Set[int] = frozenset()) -> RowComparer:
    """A function from two stored values in `form` to whether the columns at positions `alike` are the same in both,
    and those at `filled` not NULL in the second. XX001 if one is too short."""
    fields = _Fields(form, alike | filled, alike)
    tests = []
    for word in range(len(form.words)):
        same, none = (sum(1 << at % 64 for at in positions if at // 64 == word) for positions in (alike, filled))
        if same:
            tests.append(f"n{word} & {same:#x} == m{word} & {same:#x}")
        if none:
            tests.append(f"not m{word} & {none:#x}")
    tests += [f"one[{begin}:{end}] == other[{begin}:{end}]" for begin, end in _runs(form, alike)]
    base = form.start + form.fixed_size
    for position in sorted(alike):
        ordinal = form.slots[position].variable
        if ordinal is not None:
            one, other = (f"{end}{ordinal - 1} + {base}" if ordinal else str(base) for end in "ef")
            tests.append(f"one[{one}:e{ordinal} + {base}] == other[{other}:f{ordinal} + {base}]")
    lines = [
        "def are_alike(one, other):",
        "    try:",
        f"        {fields.names('n', 'e')} = unpack(one)",
        f"        {fields.names('m', 'f')} = unpack(other)",
        "    except struct_error:",
        "        raise damaged_row(min(one, other, key=len)) from None",
        f"    return {' and '.join(tests) or True}",
    ]
    scope = {"unpack": fields.struct.unpack_from, "struct_error": struct.error, "damaged_row": damaged_row}
    comparer: RowComparer = compile_function("are_alike", lines, scope)
    return comparer


class _Fields:
    """The struct that reads bitmap words and the ends of variable columns, as far as they are asked for."""

    def __init__(self, form: RowFormat, in_bitmap: Set[int], alike: Set[int]) -> None:
        variable = [form.slots[position].variable for position in alike]
        ends = {end for ordinal in variable if ordinal is not None for end in (ordinal - 1, ordinal)} - {-1}
        words = sorted({position // 64 for position in in_bitmap})
        fields = [(*form.words[word], ("word", word)) for word in words]
        fields += [(form.slots[form.variables[end]].offset, "I", ("end", end)) for end in sorted(ends)]
        code, at = "<", -form.start
        for offset, one, _ in fields:
            code += f"{offset - at}x{one}"
            at = offset + struct.calcsize("<" + one)
        # To its end: a row that is too short for its columns is damaged, whatever is read of it.
        self.struct = struct.Struct(f"{code}{form.fixed_size - at}x")
        self._fields = [name for _, _, name in fields]

    def names(self, word: str, end: str) -> str:
        """The left side of an assignment, with these letters."""
        return "".join(f"{word if kind == 'word' else end}{number}, " for kind, number in self._fields) or "()"


def _runs(form: RowFormat, positions: Set[int]) -> list[tuple[int, int]]:
    """Where the fixed columns at these positions lie in a stored value: neighbours are one run."""
    slots = [form.slots[position] for position in positions if form.slots[position].variable is None]
    spans = sorted(
        (form.start + slot.offset, form.start + slot.offset + struct.calcsize("<" + slot.code)) for slot in slots
    )
    if not spans:
        return []
    breaks = [number for number, (one, other) in enumerate(pairwise(spans), 1) if one[1] != other[0]]
    return [(spans[first][0], spans[last - 1][1]) for first, last in pairwise([0, *breaks, len(spans)])]
