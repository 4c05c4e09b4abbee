"""Descriptors as objects of Python."""

from __future__ import annotations

import gc

import msgspec

from instar.catalog.descriptors import Column, Step, StepKind
from instar.types import BIGINT


def test_the_garbage_collector_does_not_look_at_what_a_table_has_many_of() -> None:
    column = Column(id=1, name="a", type=BIGINT)
    step = Step(version=2, kind=StepKind.ADD_COLUMN, columns=(1,), statement="ALTER TABLE t ADD COLUMN a bigint")
    for made in (column, step):
        decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=type(made))
        assert decoded == made
        assert not gc.is_tracked(decoded)
