"""Rows that get new values in some columns, while the others stay the bytes that they are: no value of theirs is made.

A *patcher* puts them into a row that keeps its format, where they have slots of fixed size: all else is copied as it
lies. A *mover* makes a body of another format, or one whose variable part changes: slots are unpacked and packed, and
the bytes of strings are copied. That is how a row of an older layout is migrated by an update (thesis §3.2.1).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from instar.encoding.generate import compile_function, concatenation
from instar.encoding.rows import (
    SLOT_SCOPE,
    Output,
    RowFormat,
    Unpacking,
    bytes_expression,
    compile_encoder,
    damaged_row,
    pack_expression,
    row_format,
    unencodable,
)
from instar.types import Type

# A stored value and new values of some columns to the new body; None: the row has to be decoded and encoded.
RowPatcher = Callable[[bytes, Sequence[Any]], bytes | None]


def compile_patcher(form: RowFormat, positions: Sequence[int]) -> RowPatcher:
    """A function from a stored value and new values of its columns `positions`, which have fixed slots, to the new
    body. None where one of them is or becomes NULL, and for a row that is too short. 22003.
    """
    masks: dict[int, int] = {}
    for position in positions:
        at = form.start + position // 8
        masks[at] = masks.get(at, 0) | 1 << position % 8
    unfit = [f"len(data) < {form.start + form.fixed_size}", *(f"data[{at}] & {mask}" for at, mask in masks.items())]
    scope = {**SLOT_SCOPE, "unencodable": unencodable}
    parts, end = [], form.start
    for position in sorted(positions, key=lambda position: form.slots[position].offset):
        start, slot = form.start + form.slots[position].offset, struct.Struct("<" + form.slots[position].code)
        scope[f"pack{position}"] = slot.pack
        parts += [f"data[{end}:{start}]", f"pack{position}({pack_expression(form.types[position], f'c{position}')})"]
        end = start + slot.size
    lines = [
        "def patch_row(data, values):",
        f"    {_names(positions)} = values",
        f"    if None in values or {' or '.join(unfit)}:",
        "        return None",
        "    try:",
        f"        return {concatenation([*parts, f'data[{end}:]'])}",
        *_UNENCODABLE,
    ]
    patcher: RowPatcher = compile_function("patch_row", lines, scope)
    return patcher


def compile_mover(
    written: RowFormat, target: RowFormat, outputs: Sequence[Output], positions: Sequence[int]
) -> RowPatcher:
    """A function from a stored value in `written` and new values of the columns `positions` of `target` to a body in
    `target`. `outputs` say what the others are: a stored column, whose bytes have to mean the same in either format, or
    a constant; nothing of them is converted. None where one of the new values is NULL. 22003, 22021; XX001.
    """
    kept = {
        place: output.position
        for place, output in enumerate(outputs)
        if output.position is not None and place not in positions
    }
    unpacking = Unpacking(written, set(kept.values()), written.start, tagged=False)
    base = written.start + written.fixed_size
    lines = ["def move_row(data, values):", f"    {_names(positions)} = values", "    if None in values:"]
    lines += ["        return None"]
    if unpacking.names:
        lines += ["    try:", f"        {unpacking.names} = unpack(data)", "    except struct_error:"]
        lines += ["        raise damaged_row(data) from None"]
    if unpacking.ends:
        lines += [f"    if not {' <= '.join(unpacking.ends)} <= len(data) - {base}:"]
        lines += ["        raise damaged_row(data, 'bad offsets')"]
    scope: dict[str, Any] = {**SLOT_SCOPE, "unencodable": unencodable, "damaged_row": damaged_row}
    scope |= {"unpack": unpacking.struct.unpack_from}
    nulls = {
        place
        for place, output in enumerate(outputs)
        if output.position is None and output.constant is None and place not in positions
    }
    fixed = [place for place, slot in enumerate(target.slots) if slot.variable is None]
    code = "<" + "".join(word for _, word in target.words) + "".join(target.slots[place].code for place in fixed)
    arguments = [_bitmap_word(word, kept, nulls) for word in range(len(target.words))]
    for place in fixed:
        if place in kept:
            arguments.append(f"s{kept[place]}")
        elif place in positions:
            arguments.append(pack_expression(target.types[place], f"c{place}"))
        else:
            scope[f"k{place}"] = _raw(target.types[place], outputs[place].constant)
            arguments.append(f"k{place}")
    made, ends, tail = _variable_part(written, target, kept, positions, base)
    for place in target.variables:
        if place not in kept and place not in positions:
            scope[f"b{place}"] = _raw(target.types[place], outputs[place].constant)
    scope["pack"] = struct.Struct(code + "I" * len(ends)).pack
    packed = f"pack({', '.join([*arguments, *ends])})"
    lines += ["    try:", *made, f"        return {concatenation([packed, *tail])}", *_UNENCODABLE]
    mover: RowPatcher = compile_function("move_row", lines, scope)
    return mover


_UNENCODABLE = [
    "    except (struct_error, OverflowError, InvalidOperation, UnicodeEncodeError) as problem:",
    "        raise unencodable(problem) from None",
]


def _names(positions: Sequence[int]) -> str:
    """The left side of an assignment of the new values."""
    return "".join(f"c{position}, " for position in positions) or "()"


def _bitmap_word(word: int, kept: Mapping[int, int], nulls: set[int]) -> str:
    """The NULL bits of a word of the target: those of columns that are kept, moved to where they belong, and those of
    constants. Neighbours that stay neighbours are moved together."""
    masks: dict[tuple[int, int], int] = {}
    for place, position in kept.items():
        if place // 64 == word:
            source, bit = divmod(position, 64)
            moved = source, place % 64 - bit
            masks[moved] = masks.get(moved, 0) | 1 << bit
    parts = [f"(n{source} & {mask:#x}) {'<<' if by >= 0 else '>>'} {abs(by)}" for (source, by), mask in masks.items()]
    constant = sum(1 << place % 64 for place in nulls if place // 64 == word)
    return " | ".join([f"({part})" for part in parts] + ([f"{constant:#x}"] if constant or not parts else []))


def _variable_part(
    written: RowFormat, target: RowFormat, kept: Mapping[int, int], positions: Sequence[int], base: int
) -> tuple[list[str], list[str], list[str]]:
    """Lines that make the bytes of the target's variable columns, the expressions of their end offsets, and what is to
    be put behind the fixed part."""
    variables = target.variables
    if variables and tuple(kept.get(place) for place in variables) == written.variables:
        ends = [f"e{ordinal}" for ordinal in range(len(variables))]
        return [], ends, [f"data[{base}:{ends[-1]} + {base}]"]
    lines, ends = [], []
    for ordinal, place in enumerate(variables):
        if place in kept:
            slot = written.slots[kept[place]].variable
            assert slot is not None, "bytes that do not mean the same"
            start = f"e{slot - 1} + {base}" if slot else str(base)
            lines.append(f"        b{place} = data[{start}:e{slot} + {base}]")
        elif place in positions:
            lines.append(f"        b{place} = {bytes_expression(target.types[place], f'c{place}')}")
        before = f"{ends[-1]} + " if ends else ""
        lines.append(f"        x{ordinal} = {before}len(b{place})")
        ends.append(f"x{ordinal}")
    return lines, ends, [f"b{place}" for place in variables]


def _raw(type_: Type, value: Any) -> Any:
    """What stands in the slot of a value, as struct knows it, or in the variable part."""
    form = row_format((type_,))
    body, slot = compile_encoder(form)((value,)), form.slots[0]
    if slot.variable is not None:
        return body[form.fixed_size :]
    return struct.unpack_from("<" + slot.code, body, slot.offset)[0]
