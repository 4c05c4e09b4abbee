"""Violation flags: how a write tells a change that the constraint which it brings is violated (thesis §3.3).

A pending constraint that *yields* refuses nobody. Whoever commits what violates it sets the constraint's flag in the
same commit, and the change, whose last step is preconditioned on the flag's absence, is taken back. Flags are records
read at their latest state; the stage that takes the constraint out again removes its flag.
"""

from __future__ import annotations

import struct

import msgspec

from instar.catalog.descriptors import State, Table
from instar.store.engine import View
from instar.store.records import Latest, latest_key

_ELEMENT = struct.Struct(">II")


class Violation(msgspec.Struct, frozen=True, array_like=True):
    """What was written first: the table, and the row's key as people read it."""

    table: str
    row: str


_decode = msgspec.msgpack.Decoder(Violation).decode


def violation_key(table: int, element: int) -> bytes:
    """The store key of a constraint's flag. The element is named by the table that has it (a foreign key's is the
    child) and its id in it (a NOT NULL's is its column's)."""
    return latest_key(Latest.VIOLATION, _ELEMENT.pack(table, element))


def violation_at(view: View, key: bytes) -> Violation | None:
    """The flag at that key, if it is set."""
    stored = view.get(key)
    return None if stored is None else _decode(stored)


def encode_violation(violation: Violation) -> bytes:
    """The record's bytes (MessagePack)."""
    return msgspec.msgpack.encode(violation)


def yielding_checks(table: Table) -> dict[int, bytes]:
    """The flags of the CHECKs and NOT NULLs of a table that yield, by id of the CHECK or column."""
    checks = (check.id for check in table.checks if check.yields and check.state is State.WRITE_ONLY)
    columns = (column.id for column in table.columns if column.tells_null)
    return {number: violation_key(table.id, number) for number in (*checks, *columns)}
