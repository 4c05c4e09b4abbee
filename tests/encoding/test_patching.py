"""New values put into rows that are not decoded, against the encoder of whole rows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from instar import errors
from instar.encoding.patching import RowPatcher, compile_mover, compile_patcher
from instar.encoding.rows import Output, compile_encoder, row_format
from instar.store.engine import ROW_HEADER
from instar.types import BIGINT, BYTEA, DOUBLE, INTEGER, REAL, SMALLINT, TEXT, VARCHAR, Kind, Type
from support.values import TYPES, rows, values

TYPE_LISTS = st.lists(TYPES, min_size=1, max_size=10)
HEADER = ROW_HEADER.pack(1, 2, 7 << 8)


def problem_of(patch: RowPatcher, stored: bytes, given_: tuple[Any, ...]) -> str | None:
    try:
        patch(stored, given_)
    except errors.Error as failed:
        return failed.sqlstate
    return None


@given(TYPE_LISTS, st.data())
@settings(max_examples=200)
def test_patched_columns(types: list[Type], data: st.DataObject) -> None:
    """What is put into slots of fixed size gives the bytes of the row as a whole."""
    locks = data.draw(st.integers(0, 3))
    form = row_format(tuple(types), locks)
    fixed = [position for position, slot in enumerate(form.slots) if slot.variable is None]
    assume(fixed)
    positions = data.draw(st.lists(st.sampled_from(fixed), min_size=1, unique=True))
    encode, patch = compile_encoder(form), compile_patcher(form, positions)
    stored = HEADER + b"timestmp" * locks
    old, new = data.draw(rows(types, 2))[:2]
    mixed = tuple(new[position] if position in positions else value for position, value in enumerate(old))
    given_ = [new[position] for position in positions]
    patched = patch(stored + encode(old), given_)
    if any(old[position] is None or new[position] is None for position in positions):
        assert patched is None
    else:
        assert patched == encode(mixed)
    assert patch(stored + encode(old)[: form.fixed_size - 1], given_) is None


def test_a_patch_that_does_not_fit_its_slot() -> None:
    form = row_format((SMALLINT, BIGINT))
    stored = HEADER + compile_encoder(form)((1, 2))
    for patch in (compile_patcher(form, [0]), compile_mover(form, form, [Output(0), Output(1)], [0])):
        assert problem_of(patch, stored, (2**15,)) == errors.NUMERIC_OUT_OF_RANGE


@st.composite
def moves(draw: st.DrawFn) -> tuple[list[Type], list[Type], list[Output], list[int]]:
    """Types of the columns of two formats, where those of the second come from, and which of them get new values."""
    written = draw(TYPE_LISTS)
    kept = draw(st.permutations(range(len(written))))[: draw(st.integers(0, len(written)))]
    if draw(st.booleans()):
        kept = sorted(kept)  # neighbours stay neighbours
    target, outputs = [written[position] for position in kept], [Output(position) for position in kept]
    for _ in range(draw(st.integers(0 if kept else 1, 4))):
        place, type_ = draw(st.integers(0, len(target))), draw(TYPES)
        target.insert(place, type_)
        outputs.insert(place, Output(None, None, draw(st.none() | values(type_))))
    positions = draw(st.lists(st.sampled_from(range(len(target))), min_size=1, unique=True))
    return written, target, outputs, positions


def moved(outputs: list[Output], positions: list[int], old: tuple[Any, ...], given_: tuple[Any, ...]) -> list[Any]:
    """The new row, by values."""
    by_place = dict(zip(positions, given_, strict=True))
    taken = [output.constant if output.position is None else old[output.position] for output in outputs]
    return [by_place.get(place, value) for place, value in enumerate(taken)]


@given(moves(), st.data())
@settings(max_examples=400)
def test_moved_rows(move: tuple[list[Type], list[Type], list[Output], list[int]], data: st.DataObject) -> None:
    """A body in another format is the one that the encoder makes of the values."""
    written, target, outputs, positions = move
    locks = data.draw(st.integers(0, 3))
    form, new_form = row_format(tuple(written), locks), row_format(tuple(target))
    mover = compile_mover(form, new_form, outputs, positions)
    encode = compile_encoder(new_form)
    given_ = tuple(data.draw(values(target[place])) for place in positions)
    for old in data.draw(rows(written)):
        stored = HEADER + b"timestmp" * locks + compile_encoder(form)(old)
        assert mover(stored, given_) == encode(moved(outputs, positions, old, given_))
        for place in range(len(positions)):
            assert mover(stored, (*given_[:place], None, *given_[place + 1 :])) is None


@pytest.mark.parametrize("columns", [1, 8, 9, 16, 33, 64, 65, 130])
@pytest.mark.parametrize("added", [0, 1, 7, 64])
def test_null_bits_are_moved(columns: int, added: int) -> None:
    """To other places of other words, with NULLs of columns that a row lacks."""
    old = tuple(None if number % 3 == 0 else number for number in range(columns))
    written, target = row_format((SMALLINT,) * columns), row_format((SMALLINT,) * (added + columns + 1))
    outputs = [*[Output(None)] * added, *map(Output, range(columns)), Output(None)]
    mover = compile_mover(written, target, outputs, [added + columns])
    body = mover(HEADER + compile_encoder(written)(old), (7,))
    assert body == compile_encoder(target)((*[None] * added, *old, 7))


def test_bytes_that_mean_the_same_in_another_type() -> None:
    old = row_format((SMALLINT, INTEGER, REAL, Type(Kind.VARCHAR, length=5), INTEGER))
    new = row_format((BIGINT, BIGINT, DOUBLE, TEXT, INTEGER))
    stored = HEADER + compile_encoder(old)((-5, None, 0.1, "ä", 1))
    mover = compile_mover(old, new, [Output(place) for place in range(5)], [4])
    (read,) = [compile_encoder(new)((-5, None, 0.10000000149011612, "ä", 2))]
    assert mover(stored, (2,)) == read


@given(moves(), st.binary(max_size=120), st.data())
@settings(max_examples=300)
def test_hostile_bytes(
    move: tuple[list[Type], list[Type], list[Output], list[int]], value: bytes, data: st.DataObject
) -> None:
    written, target, outputs, positions = move
    mover = compile_mover(row_format(tuple(written)), row_format(tuple(target)), outputs, positions)
    given_ = tuple(data.draw(values(target[place])) for place in positions)
    assert problem_of(mover, value, given_) in (None, errors.DATA_CORRUPTED)


def test_offsets_that_cannot_be() -> None:
    form = row_format((VARCHAR, BYTEA, INTEGER))
    stored = bytearray(HEADER + compile_encoder(form)(("text", b"bytes", 1)))
    mover = compile_mover(form, form, [Output(0), Output(1), Output(2)], [2])
    assert mover(bytes(stored), (3,)) == compile_encoder(form)(("text", b"bytes", 3))
    stored[len(HEADER) + form.slots[0].offset] = 200
    assert problem_of(mover, bytes(stored), (3,)) == errors.DATA_CORRUPTED
