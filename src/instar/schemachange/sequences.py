"""CREATE, ALTER and DROP SEQUENCE; the sequences that identity and serial columns own."""

from __future__ import annotations

from typing import Literal

import msgspec

from instar import errors
from instar.catalog.descriptors import Sequence, Table
from instar.schemachange import wanted as want
from instar.schemachange.draft import Draft
from instar.types import BIGINT, INTEGER_RANGES, INTEGERS

Bound = int | Literal["none"] | None


def create_sequence(draft: Draft, wanted: want.CreateSequence) -> None:
    """CREATE SEQUENCE: one direct step; its value comes into being with the first nextval."""
    draft.require_free(wanted.name)
    options = wanted.options
    made = _configured(draft.ids.new_id(), wanted.name, options, None)
    if isinstance(options.owned_by, tuple):
        made = msgspec.structs.replace(made, owned_by=_owner(draft, options.owned_by))
    draft.create(made)


def create_owned(draft: Draft, table_id: int, table_name: str, column: int, new: want.NewColumn) -> int:
    """The sequence of an identity or serial column; returns its id."""
    options = new.sequence or want.SequenceOptions()
    if options.type is None:
        options = msgspec.structs.replace(options, type=new.type)
    name = draft.relation_name(table_name, (new.name,), "seq")
    made = _configured(draft.ids.new_id(), name, options, None)
    draft.create(msgspec.structs.replace(made, owned_by=(table_id, column)))
    return made.id


def alter_sequence(draft: Draft, wanted: want.AlterSequence) -> None:
    """ALTER SEQUENCE: options that are not named stay."""
    old = draft.find(Sequence, wanted.name)
    options = wanted.options
    made = _configured(old.id, old.name, options, old)
    if options.owned_by == "none":
        made = msgspec.structs.replace(made, owned_by=None)
    elif options.owned_by is not None:
        made = msgspec.structs.replace(made, owned_by=_owner(draft, options.owned_by))
    if options.restart is None:
        if (made.minimum, made.maximum) != (old.minimum, old.maximum):
            last = draft.facts.last_value(old)
            if last is not None:
                _require_within("RESTART", last, made)
        draft.replace(made)
        return
    first = made.start if options.restart == "start" else options.restart
    _require_within("RESTART", first, made)
    draft.restart(made, first)


def _owner(draft: Draft, owned_by: tuple[str, str]) -> tuple[int, int]:
    table = draft.find(Table, owned_by[0])
    draft.touch(table)
    return table.id, draft.column(table, owned_by[1]).id


def _configured(sequence: int, name: str, options: want.SequenceOptions, old: Sequence | None) -> Sequence:
    """The sequence that these options make; 22023 where they contradict each other."""
    kind = options.type or (old.type if old is not None else BIGINT)
    if kind.kind not in INTEGERS:
        raise errors.error(errors.INVALID_PARAMETER, "sequence type must be smallint, integer, or bigint")
    increment = _choose(options.increment, old.increment if old else None, 1)
    if increment == 0:
        raise errors.error(errors.INVALID_PARAMETER, "INCREMENT must not be zero")
    low, high = INTEGER_RANGES[kind.kind]
    retyped = old is not None and old.type != kind
    minimum = _bound(options.minimum, old.minimum if old and not retyped else None, 1 if increment > 0 else low)
    maximum = _bound(options.maximum, old.maximum if old and not retyped else None, high if increment > 0 else -1)
    for value, what in ((minimum, "MINVALUE"), (maximum, "MAXVALUE")):
        if not low <= value <= high:
            raise errors.error(
                errors.INVALID_PARAMETER, f"{what} ({value}) is out of range for sequence data type {kind}"
            )
    if minimum >= maximum:
        raise errors.error(errors.INVALID_PARAMETER, f"MINVALUE ({minimum}) must be less than MAXVALUE ({maximum})")
    cache = _choose(options.cache, old.cache if old else None, 1)
    if cache < 1:
        raise errors.error(errors.INVALID_PARAMETER, f"CACHE ({cache}) must be greater than zero")
    made = Sequence(
        id=sequence,
        name=name,
        version=1 if old is None else old.version,
        type=kind,
        start=_choose(options.start, old.start if old else None, minimum if increment > 0 else maximum),
        increment=increment,
        minimum=minimum,
        maximum=maximum,
        cycle=options.cycle if options.cycle is not None else old is not None and old.cycle,
        cache=cache,
        owned_by=old.owned_by if old is not None else None,
        counter=old.counter if old is not None else 0,
        first=_first(old, minimum, maximum),
    )
    _require_within("START", made.start, made)
    return made


def _first(old: Sequence | None, minimum: int, maximum: int) -> int | None:
    """What its counter begins with: a new START is for the next one."""
    if old is None:
        return None
    first = old.start if old.first is None else old.first
    return first if minimum <= first <= maximum else None


def _choose(given: int | None, kept: int | None, otherwise: int) -> int:
    if given is not None:
        return given
    return otherwise if kept is None else kept


def _bound(given: Bound, kept: int | None, otherwise: int) -> int:
    return otherwise if given == "none" else _choose(given, kept, otherwise)


def _require_within(what: str, value: int, sequence: Sequence) -> None:
    if value < sequence.minimum:
        raise errors.error(
            errors.INVALID_PARAMETER, f"{what} value ({value}) cannot be less than MINVALUE ({sequence.minimum})"
        )
    if value > sequence.maximum:
        raise errors.error(
            errors.INVALID_PARAMETER, f"{what} value ({value}) cannot be greater than MAXVALUE ({sequence.maximum})"
        )
