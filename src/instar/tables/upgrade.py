"""Buffered images from one version of a table to a later one (IEP-110: writes that cross a compatible change)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count

from instar import errors
from instar.catalog.descriptors import Table
from instar.tables.copies import duplicate_key, image_key
from instar.tables.resolver import conversion
from instar.tables.rowset import describe_key, wanted
from instar.transactions.buffer import Change, TableBuffer
from instar.transactions.commit import Conflict

Image = tuple[object, ...]


def image_upgrader(meant: Table, newest: Table) -> Callable[[Image], Image]:
    """A function from an image under `meant` to one under `newest`: columns by id, new ones with their frozen value.
    Where each row has a value of its own, that is left to completion.py.

    The validators have let the steps in between pass, so every conversion here widens.
    """
    places = {column.id: ordinal for ordinal, column in enumerate(meant.columns)}
    steps: list[tuple[int | None, object]] = []
    for column in newest.columns:
        place = places.get(column.id)
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
        return tuple(values)

    return upgrade


def upgraded(buffer: TableBuffer, meant: Table, newest: Table) -> TableBuffer:
    """A copy of `buffer`, whose images are under `meant`, with images under `newest`."""
    copy = TableBuffer(buffer.table)
    copy.changes = _upgraded_changes(buffer.changes, meant, newest)
    return copy


def _upgraded_changes(changes: dict[bytes, Change], meant: Table, newest: Table) -> dict[bytes, Change]:
    """Changes under `meant` as changes under `newest`, by the keys that their rows have there."""
    upgrade = image_upgrader(meant, newest)
    made = {
        key: change._replace(
            image=None if change.image is None else upgrade(change.image),
            old=None if change.old is None else upgrade(change.old),
            version=newest.version,
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
            gone[old] = change._replace(image=None, changed=None)
            put, kept = change, change
        else:
            left, came = change.pair, change.pair
            if old is not None and new is not None:  # a row that moves now, or one in the place of another
                left, came = (change.gone, came) if change.changed is None else (next(pairs),) * 2
            if old is not None:
                gone[old] = change._replace(image=None, changed=None, pair=left, gone=0)
            put, kept = change._replace(base=None, old=None, changed=None, pair=came, gone=0), None
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
            made[key] = leaves._replace(image=comes.image, changed=every, pair=0)
        elif comes is not None and leaves is not None:  # another row takes the place
            made[key] = leaves._replace(image=comes.image, pair=comes.pair, gone=leaves.pair)
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
