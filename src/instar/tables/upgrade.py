"""Buffered images from one version of a table to a later one (IEP-110: writes that cross a compatible change)."""

from __future__ import annotations

from collections.abc import Callable

from instar.catalog.descriptors import Table
from instar.tables.resolver import conversion
from instar.tables.rowset import wanted
from instar.transactions.buffer import TableBuffer

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
    upgrade = image_upgrader(meant, newest)
    copy = TableBuffer(buffer.table)
    for key, change in buffer.changes.items():
        copy.changes[key] = change._replace(
            image=None if change.image is None else upgrade(change.image),
            old=None if change.old is None else upgrade(change.old),
            version=newest.version,
        )
    return copy
