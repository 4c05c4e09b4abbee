"""What puts an update's values into stored rows: the bytes of a row in whichever layout to a body in the newest one.

It is what an update by key does that asks nothing of the row. Rows in the newest layout are patched, those in older
ones are moved there (thesis §3.2.1: who writes a row migrates it), neither of them decoded (encoding/patching.py). What
is derived, converted or NULL where it may not be takes the way over values, which all updates can take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from weakref import WeakValueDictionary

from instar.catalog.descriptors import Layout, Table
from instar.catalog.layouts import Layouts, Outline, outline_of
from instar.encoding.patching import RowPatcher, compile_mover, compile_patcher
from instar.encoding.rows import Output, row_format
from instar.tables.layout import layout_format
from instar.tables.resolver import LAYOUT_OFFSET, Key, Wanted, Wants, is_widening
from instar.tables.rowset import wanted as wanted_of
from instar.types import FLOATS, INTEGERS, STRINGS, Type

Find = Callable[[bytes], RowPatcher | None]


class Patchers:
    """The patchers of an update, under one version of its table, that puts values into the columns `positions` of a
    layout, by the tags that rows bear, as far as some were met: `known`, which later versions may share, and `own`.

    `wants` are that layout's columns; `layout_of` tells the layout of a stored row, `outlines` those that it takes no
    look into the store to know. Columns whose ids are `next_id` or above are in no layout of this version or one before
    it. `former`: those of the same update of another version of the same shape (sql/shape.py).
    """

    def __init__(
        self,
        layout: Layout,
        wants: Wants,
        layout_of: Callable[[bytes], Layout],
        outlines: Mapping[int, Outline],
        positions: Sequence[int],
        version: int,
        next_id: int,
        former: Patchers | None = None,
    ) -> None:
        self._layout_of = layout_of
        self._outlines = outlines
        self._target = _target(wants.written(layout), wants.key, tuple(positions))
        self._version = version
        self._next_id = next_id
        self.wants = wants
        self._placed = frozenset(enumerate(wants.columns))
        self._alone: frozenset[tuple[int, int]] = frozenset()  # those that not all who share `known` have there
        self._ids_alone: frozenset[int] = frozenset()
        self._heir: dict[None, Patchers] = {}
        self.known: dict[bytes, RowPatcher] = {}
        self.own: dict[bytes, RowPatcher] = {}
        if former is not None and former._target is self._target and former._version < version:
            self._share(former)

    def _share(self, former: Patchers) -> None:
        """Know what is known of layouts that have none of the columns in which this version and those before differ:
        of such a layout all versions of a shape ask the same.

        Those who share what is known are a row of versions, each of which has one heir, and comes before it. A column
        that the last of them did not have in its place has come since, and is in no layout that any of them may have
        met; or it has come back, or stood elsewhere: then all is met anew. What later ones meet is known to former
        ones, too, of whom it may not hold: but nobody commits under a former version any more, however late he is.
        """
        came = self._placed - former._placed
        if any(column < former._next_id for _place, column in came):
            return
        common = former._placed - former._alone
        if common <= self._placed:
            if former._heir.setdefault(None, self) is not self:
                return  # another thread was here first
            self.known = former.known
        self._alone = self._placed - common
        self._ids_alone = frozenset([column for _place, column in self._alone])

    @property
    def found_first(self) -> tuple[Find, Find]:
        """What gives the patcher for a tag, if it was met. Most rows come into the newest layout, unless the table is
        changed all the time; if it has a column that not all have who share what is known, that is among its own."""
        return (self.own.get, self.known.get) if self._ids_alone else (self.known.get, self.own.get)

    def has_met(self, stored: bytes) -> bool:
        """Whether there is a patcher for the layout that a stored row is in."""
        tag = stored[LAYOUT_OFFSET : LAYOUT_OFFSET + 4]
        return tag in self.known or tag in self.own

    def learn(self, stored: bytes) -> RowPatcher:
        """The patcher for the layout that a stored row, which is not deleted, is in. XX001 if nobody knows it."""
        layout = outline_of(self._layout_of(stored))
        patch = _patcher(self._target, self.wants.outlined(layout))
        self._know(stored[LAYOUT_OFFSET : LAYOUT_OFFSET + 4], layout, patch)
        return patch

    def _know(self, tag: bytes, layout: Outline, patch: RowPatcher) -> None:
        known = self.known if self._ids_alone.isdisjoint(layout.columns) else self.own
        known[tag] = patch

    def at_hand(self, stored: bytes) -> RowPatcher | None:
        """As `learn`, where nothing has to be read or compiled for it; else None. Changes of a schema leave rows in
        layouts without end, but few that differ in what is asked of them."""
        tag = stored[LAYOUT_OFFSET : LAYOUT_OFFSET + 4]
        layout = self._outlines.get(int.from_bytes(tag, "little") >> 8)
        if layout is None:
            return None
        patch = _made.get((self._target, self.wants.outlined(layout)))
        if patch is not None:
            self._know(tag, layout, patch)
        return patch


class _Target:
    """What rows are moved to. Looked up by identity: to hash what it is made of would take as long as a patch."""

    def __init__(self, layout: Layout, wanted: Key, positions: tuple[int, ...]) -> None:
        self.layout = layout
        self.form = layout_format(layout)
        self.wanted = wanted
        self.positions = positions


@lru_cache(maxsize=1024)
def _target(layout: Layout, wanted: Key, positions: tuple[int, ...]) -> _Target:
    return _Target(layout, wanted, positions)


# What the cache of `_patcher` holds, but for `never`: whose rows need a decoder, too.
_made: WeakValueDictionary[tuple[_Target, Layout], RowPatcher] = WeakValueDictionary()


@lru_cache(maxsize=4096)
def _patcher(target: _Target, written: Layout) -> RowPatcher:
    form, positions = target.form, target.positions
    if written == target.layout and all(form.slots[position].variable is None for position in positions):
        made = compile_patcher(form, positions)
    else:
        outputs = _outputs(written, target.wanted, positions)
        if outputs is None:
            return never
        made = compile_mover(layout_format(written), form, outputs, positions)
    _made[target, written] = made
    return made


def never(stored: bytes, values: Sequence[object]) -> None:
    """The patcher of rows that have to be decoded and encoded."""


def mover(written: Layout, wanted: Sequence[Wanted], positions: Sequence[int] = ()) -> RowPatcher | None:
    """A function from a row stored in `written`, and new values of the columns at `positions` of the wanted ones, to a
    body of these. None if some of the others would have to be converted or derived."""
    wants = Wants(wanted)
    return _mover(wants.written(written), wants.key, tuple(positions))


@lru_cache(maxsize=1024)
def _mover(written: Layout, wanted: Key, positions: tuple[int, ...]) -> RowPatcher | None:
    outputs = _outputs(written, wanted, positions)
    if outputs is None:
        return None
    form = row_format(tuple([type_ for _column, type_, *_rest in wanted]))
    return compile_mover(layout_format(written), form, outputs, positions)


def _outputs(written: Layout, wanted: Key, positions: tuple[int, ...]) -> list[Output] | None:
    """Where the wanted columns come from; None if not all of them are there as they are to be."""
    stored = {column: (position, type_) for position, (column, type_) in enumerate(written.columns)}
    outputs = []
    for place, (column, type_, missing, derived, lenient) in enumerate(wanted):
        if place in positions:
            outputs.append(Output(None))
        elif column in stored:
            position, old = stored[column]
            if not _is_stored_alike(old, type_):
                return None
            outputs.append(Output(position))
        elif derived is not None or lenient:
            return None
        else:
            outputs.append(Output(None, None, missing.value))
    return outputs


def _is_stored_alike(old: Type, new: Type) -> bool:
    """Whether what struct unpacks of a slot, or the bytes of the variable part, are the value in either type."""
    if old == new:
        return True
    families = (INTEGERS, FLOATS, STRINGS)
    return is_widening(old, new) and any(old.kind in family and new.kind in family for family in families)


def patchers(table: Table, layouts: Layouts, positions: Sequence[int], former: Patchers | None) -> Patchers:
    """Those of an update of a committed version of a table: the number of another's layout may become that of another
    layout. `former`: as of `Patchers`."""

    def layout_of(stored: bytes) -> Layout:
        return layouts.of_row(table, int.from_bytes(stored[LAYOUT_OFFSET : LAYOUT_OFFSET + 4], "little") >> 8)

    outlines = layouts.outlines(table.id)
    outlines[table.layout.id] = outline_of(table.layout)
    if former is not None and former.wants.columns == tuple([column.id for column in table.columns]):
        wants = former.wants
    else:
        wants = Wants([wanted_of(column) for column in table.columns])
    return Patchers(table.layout, wants, layout_of, outlines, positions, table.version, table.next_id, former)
