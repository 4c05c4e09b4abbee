"""Buffered changes from one version of a table to a later one (IEP-110: writes that cross a compatible change).

Under another primary key a row is found by its old image, where by now another row may lie: the new key was unique no
earlier than at its build, and rows of one commit have one timestamp. The old key, which was unique when the row was
read, tells them apart: the row is the one that was meant if it still has that key, unchanged since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count

from msgspec.structs import replace

from instar import errors
from instar.catalog.descriptors import Column, Table
from instar.store.apply import is_live
from instar.store.engine import ROW_HEADER, View
from instar.tables.completion import Default, completed, unseen
from instar.tables.copies import duplicate_key, image_key
from instar.tables.derivations import computation, deriver
from instar.tables.resolver import conversion, source
from instar.tables.rowset import describe_key, wanted
from instar.tables.writes import TableWriter, row_conflict
from instar.transactions.buffer import Change, TableBuffer
from instar.transactions.commit import Conflict

Image = tuple[object, ...]


def image_upgrader(meant: Table, newest: Table, *, lenient: bool = False) -> Callable[[Image], Image]:
    """A function from an image under `meant` to one under `newest`: columns by id, new ones with their frozen value, or
    what is derived of the others. Where each row has a value of its own, that is left to completion.py. `lenient`: NULL
    for what cannot be derived, as of a row that is there.

    The validators have let the steps in between pass, so every conversion here widens.
    """
    places = {column.id: ordinal for ordinal, column in enumerate(meant.columns)}
    steps: list[tuple[int | None, object]] = []
    derived: list[tuple[int, Callable[[Image], object]]] = []
    for column in newest.columns:
        place = places.get(column.id)
        if place is None and column.derived is not None:
            derived.append((len(steps), _derived(column, meant, lenient=lenient and column.is_unproven)))
        if place is None:
            steps.append((None, wanted(column).missing))
        else:
            steps.append((place, conversion(meant.columns[place].type, column.type)))

    def upgrade(image: Image) -> Image:
        values: list[object] = []
        for place, step in steps:
            if place is None:
                values.append(step)
            else:
                value = image[place]
                values.append(step(value) if callable(step) and value is not None else value)
        for place, compute in derived:
            values[place] = compute(image)
        return tuple(values)

    return upgrade


def _derived(column: Column, meant: Table, *, lenient: bool) -> Callable[[Image], object]:
    """A function from an image under `meant`, which has no such column, to what is derived of it there."""
    assert column.derived is not None  # the caller's check
    sources = [_source(found, meant) for found in column.derived.sources]
    compute = computation(column.derived, lenient=lenient)
    convert = conversion(column.derived.type, column.type)

    def derive(image: Image) -> object:
        value = compute([find(image) for find in sources])
        return value if convert is None or value is None else convert(value)

    return derive


def _source(column: Column, meant: Table) -> Callable[[Image], object]:
    """A function from an image under `meant` to the value of a column that something is derived of."""
    for place, found in enumerate(meant.columns):
        if found.id == column.id:
            return partial(_converted, place, conversion(found.type, column.type))
    if column.derived is not None:
        return _derived(column, meant, lenient=False)
    missing = source(column).missing
    return lambda image: missing


def _converted(place: int, convert: Callable[[object], object] | None, image: Image) -> object:
    value = image[place]
    return value if convert is None or value is None else convert(value)


def crossed(buffer: TableBuffer, meant: Table, writer: TableWriter, view: View, default: Default) -> TableBuffer:
    """The changes of a table, which were meant under `meant`, with images at the version of `writer`; Conflict if a row
    is not to be found there any more."""
    newest = writer.table
    if newest is not meant:
        if (newest.rowset, newest.primary_key) != (meant.rowset, meant.primary_key):
            _require_found(buffer.changes.values(), meant, writer, view)
        buffer = upgraded(buffer, meant, newest)
    if writer.per_row and unseen(meant, newest):
        buffer = _derived_anew(completed(buffer, meant, writer.reader, view, default), newest)
    return buffer


def _derived_anew(buffer: TableBuffer, table: Table) -> TableBuffer:
    """The changes with what is generated of columns that have got their values only now."""
    derive, derive_old = deriver(table, generated=True), deriver(table, lenient=True, generated=True)
    if derive is None or derive_old is None:
        return buffer
    made = TableBuffer(buffer.table)
    for key, change in buffer.changes.items():
        image = None if change.image is None else derive(change.image)
        old = None if change.old is None else derive_old(change.old)
        made.changes[key] = replace(change, image=image, old=old)
    return made


def _require_found(changes: Iterable[Change], meant: Table, writer: TableWriter, view: View) -> None:
    """Conflict unless what lies now where the changes find their rows are those rows."""
    table = writer.table
    upgrade, key_of, own_key = image_upgrader(meant, table), image_key(table), image_key(meant)
    for change in changes:
        if change.old is None or change.base is None:
            continue
        old = upgrade(change.old)
        try:
            key = key_of(old)
        except errors.Error:  # no row can have such a key, so this one has another by now
            raise row_conflict(meant, own_key(change.old)) from None
        stored = view.get(writer.prefix + key)
        if stored is None or not is_live(stored) or not _is_still(stored, change.base, old, meant, writer):
            raise row_conflict(table, key, meant.version)


def _is_still(stored: bytes, base: int, old: Image, meant: Table, writer: TableWriter) -> bool:
    """Whether a stored row is the one that had the image `old` and the key of `meant` at `base`."""
    columns = writer.table.columns
    told_by = set(meant.primary_key)
    if told_by <= {column.id for column in columns} and writer.locks is not None:
        if writer.locks.moved(told_by, stored) > base:
            return False
    elif ROW_HEADER.unpack_from(stored)[0] != base:
        return False
    if not told_by <= {column.id for column in columns}:
        # The old key is gone, as a hidden row id goes with the swap: rows that differ in nothing else are alike.
        told_by = {column.id for column in columns if not column.per_row}
    now = writer.reader.decode(stored)
    as_read = [was if column.id in told_by else value for column, was, value in zip(columns, old, now, strict=True)]
    return writer.encode(tuple(as_read)) == writer.encode(now)


def upgraded(buffer: TableBuffer, meant: Table, newest: Table) -> TableBuffer:
    """A copy of `buffer`, whose images are under `meant`, with images under `newest`."""
    copy = TableBuffer(buffer.table)
    copy.changes = _upgraded_changes(buffer.changes, meant, newest)
    return copy


def _upgraded_changes(changes: dict[bytes, Change], meant: Table, newest: Table) -> dict[bytes, Change]:
    """Changes under `meant` as changes under `newest`, by the keys that their rows have there."""
    upgrade, upgrade_old = image_upgrader(meant, newest), image_upgrader(meant, newest, lenient=True)
    replaced = {column.replaces: column.id for column in newest.columns if column.replaces and not column.is_derived}
    made = {
        key: replace(
            change,
            image=None if change.image is None else upgrade(change.image),
            old=None if change.old is None else upgrade_old(change.old),
            changed=None if change.changed is None else frozenset(replaced.get(id_, id_) for id_ in change.changed),
        )
        for key, change in changes.items()
    }
    if meant.primary_key == newest.primary_key:
        return made
    pairs = count(1 + max((max(change.pair, change.gone) for change in made.values()), default=0))
    return _rekeyed(made.values(), newest, pairs)


def _rekeyed(changes: Iterable[Change], table: Table, pairs: Iterator[int]) -> dict[bytes, Change]:
    """The changes by the table's primary key, which is another than that they were made under: a row is found by its
    old image (rule 24), goes from there if its image has another key, and what is left there may be another row."""
    key_of = image_key(table)
    every = frozenset(column.id for column in table.columns)
    gone: dict[bytes, Change] = {}
    come: dict[bytes, Change] = {}
    made: dict[bytes, Change] = {}
    for change in changes:
        old = None if change.old is None else key_of(change.old)
        new = None if change.image is None else key_of(change.image)
        if old is not None and old in gone:
            raise _moved_away(table, old)
        if old is not None and old == new and change.changed is not None:
            gone[old] = replace(change, image=None, changed=None)
            put, kept = change, change
        else:
            left, came = change.pair, change.pair
            if old is not None and new is not None:  # a row that moves now, or one in the place of another
                left, came = (change.gone, came) if change.changed is None else (next(pairs),) * 2
            if old is not None:
                gone[old] = replace(change, image=None, changed=None, pair=left, gone=0)
            put, kept = replace(change, base=None, old=None, changed=None, pair=came, gone=0), None
        if new is not None and change.image is not None:
            if new in come:
                raise duplicate_key(table, table.primary_key_name, table.primary_key, change.image)
            come[new] = put
            if kept is not None:
                made[new] = kept
    for key in (*gone, *(key for key in come if key not in gone)):
        if key in made:
            continue
        leaves, comes = gone.get(key), come.get(key)
        if comes is None and leaves is not None:
            made[key] = leaves
        elif comes is not None and leaves is None:
            made[key] = comes
        elif comes is not None and leaves is not None and comes.pair and comes.pair == leaves.pair:
            # The key that has changed was the old one: an update, of columns that are not known.
            made[key] = replace(leaves, image=comes.image, changed=every, pair=0)
        elif comes is not None and leaves is not None:  # another row takes the place
            made[key] = replace(leaves, image=comes.image, pair=comes.pair, gone=leaves.pair)
    return made


def _moved_away(table: Table, key: bytes) -> Conflict:
    """40001: two of the rows had this key when they were changed, so one of them has another by now."""
    return Conflict(
        errors.error(
            errors.SERIALIZATION_FAILURE,
            f'could not serialize access to table "{table.name}" due to a concurrent update',
            detail=f"One of the rows {describe_key(table, key)} was changed by a transaction that committed first.",
            hint="Retry the transaction.",
        )
    )
