"""Copies of rows under the table's next primary key, kept by every writer while ALTER PRIMARY KEY is under way.

A copy is the whole row as it is stored: layout, lock timestamps and commit timestamp too, but without a log record, for
it has no history until the swap. Its entries, in second rowsets of all indexes, come and go with it. A key says whose
entry an index entry is; it does not for a copy, since two rows may have the same values in the columns of a key that is
not unique yet. So a copy is told by the primary key inside it, and only the row's own is ever removed or replaced.

As with an index (F1 §3.1): delete-only, copies go and none come; write-only, each row that is written gets one, and
where another row's stands there is a duplicate. A server that lags behind may find the tombstones of a rowset that is
the table's own by now: it is turned back by the floor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from instar import errors
from instar.catalog.descriptors import NextKey, State, Table
from instar.store.apply import is_live
from instar.store.engine import CopyWrite, Reader, rowset_prefix
from instar.tables.index import IndexCodec
from instar.tables.rowset import TableReader, described, key_encoder
from instar.transactions.buffer import Change

Image = tuple[object, ...]


def image_key(table: Table) -> Callable[[Image], bytes]:
    """A function from a row's image (all columns, in descriptor order) to its encoded primary key."""
    ordinals = {column.id: ordinal for ordinal, column in enumerate(table.columns)}
    places = [ordinals[column] for column in table.primary_key]
    encode = key_encoder(table)
    return lambda image: encode([image[place] for place in places])


def duplicate_key(table: Table, name: str, columns: Sequence[int], image: Image) -> errors.Error:
    """23505, as PostgreSQL words it: another row has the image's values in these columns."""
    ordinals = {column.id: ordinal for ordinal, column in enumerate(table.columns)}
    places = [ordinals[column] for column in columns]
    key = described([table.columns[place] for place in places], [image[place] for place in places])
    return errors.error(
        errors.UNIQUE_VIOLATION,
        f'duplicate key value violates unique constraint "{name}"',
        detail=f"Key {key} already exists.",
    )


class Copied(NamedTuple):
    """A change that a commit makes of the row at `key`, and what is stored of it (as in `RowWrite`)."""

    key: bytes
    change: Change
    body: bytes | None
    locks: tuple[int, ...]


class RowCopies:
    """What the writers of one version of a table do for its next key; compiled once."""

    def __init__(self, table: Table, key: NextKey, reader: TableReader) -> None:
        self._table = table
        self._key = key
        self._decode = reader.decode
        self._prefix = rowset_prefix(key.rowset)
        self._own_key = image_key(table)
        self._next_key = image_key(msgspec.structs.replace(table, primary_key=key.columns))
        places = {column.id: ordinal for ordinal, column in enumerate(table.columns)}
        self._required = [(places[column], table.columns[places[column]].name) for column in key.columns]
        rowsets = dict(key.indexes)
        self._codecs = [
            IndexCodec(table, msgspec.structs.replace(index, rowset=rowsets[index.id])) for index in table.indexes
        ]

    def derive(self, reader: Reader, changes: Iterable[Copied]) -> list[CopyWrite]:
        """What the changes of one commit do to copies. 23505 if two rows come to have the same new key, 23502 for a row
        that has none."""
        standing: dict[bytes, bytes | None] = {}
        going: dict[bytes, tuple[bytes, ...]] = {}
        coming: dict[bytes, Copied] = {}
        for copied in changes:
            change = copied.change
            if change.old is not None:
                key = self._next_key(change.old)
                stored = standing[key] = reader.get(self._prefix + key)
                if stored is not None and is_live(stored):
                    image = self._decode(stored)
                    if self._is_own(image, copied.key):
                        going[key] = tuple([codec.entry(image, key) for codec in self._codecs])
            if change.image is not None and self._key.state is not State.DELETE_ONLY:
                key = self._checked_key(change.image)
                if key in coming:
                    raise self._duplicate(change.image)
                coming[key] = copied
                if key not in standing:
                    standing[key] = reader.get(self._prefix + key)
        return [self._write(key, stored, going.get(key), coming.get(key)) for key, stored in standing.items()]

    def _is_own(self, image: Image, key: bytes) -> bool:
        """Whether a copy is that of the row at `key`."""
        return self._own_key(image) == key

    def _write(
        self, key: bytes, stored: bytes | None, going: tuple[bytes, ...] | None, coming: Copied | None
    ) -> CopyWrite:
        store_key, layout = self._prefix + key, self._table.layout.id
        goes, gone = going is not None, going or ()
        image = None if coming is None else coming.change.image
        if coming is None or image is None:
            return CopyWrite(store_key, stored, goes, None, layout, (), gone, ())
        if stored is not None and is_live(stored) and not goes:
            raise self._duplicate(image)
        entries = [(codec.entry(image, key), codec) for codec in self._codecs]
        put = tuple([(entry, codec.primary_offset(entry, key)) for entry, codec in entries])
        return CopyWrite(store_key, stored, goes, coming.body, layout, coming.locks, gone, put)

    def _checked_key(self, image: Image) -> bytes:
        for place, name in self._required:
            if image[place] is None:
                raise errors.error(
                    errors.NOT_NULL_VIOLATION,
                    f'null value in column "{name}" of relation "{self._table.name}" violates not-null constraint',
                )
        return self._next_key(image)

    def _duplicate(self, image: Image) -> errors.Error:
        return duplicate_key(self._table, self._key.name, self._key.columns, image)
