"""The validation of a foreign key: which rows refer to a parent that is not there.

Child and parent are compared as encoded key bytes: those of the rowset in which the parents stand, rows or entries of a
unique index. A row with a NULL among its columns refers to nothing (MATCH SIMPLE).

There are two ways to find such rows, and one to be sure of them. `offenders` looks parents up in the read that the rows
come from, and what it finds is so. `keys` and `standing` are the two sides of an anti-join: what each row refers to,
what stands. Their reads are at different moments, so what the join leaves over are *candidates*. None is missing: a row
that violates the key at the end has done so since the fence (validate.py), so its parent stood at no moment since. One
may be innocent, since a parent may have come between the two reads, or gone together with its child: a candidate is
put to `offenders`. A whole store key is compared, rowset and all, so that parents that were moved into another rowset
meanwhile, in another order of columns perhaps, are taken for nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import ForeignKey, Layout, State, Table
from instar.encoding.key_batches import compile_key_batch_encoder
from instar.encoding.keys import MAX_PRIMARY_KEY_BYTES, limited_index_key
from instar.schemachange.reorganize import widest
from instar.store.engine import ENTRY_VALUE, ROW_HEADER, ROW_TOMBSTONE, Reader, prefix_end, rowset_prefix
from instar.tables.resolver import LAYOUT_OFFSET, mixed_batch_reader, resolver
from instar.tables.rowset import described, wanted

FindLayout = Callable[[int], Layout]


class ReferenceJudge:
    """A foreign key: the parent's key, as bytes, must stand."""

    probes = True  # of parents

    def __init__(self, table: Table, foreign_key: ForeignKey, snapshot: CatalogSnapshot) -> None:
        self._table, self._key = table, foreign_key
        self._parent = parent = snapshot.table(foreign_key.parent)
        by_id = {column.id: column for column in table.columns}
        self._columns = [by_id[column] for column in foreign_key.columns]
        index = next((found for found in parent.indexes if found.id == foreign_key.parent_index), None)
        descending: tuple[bool, ...] = ()
        if index is None:
            order, rowset = list(parent.primary_key), parent.rowset
        else:
            if index.state is not State.PUBLIC:
                raise errors.error(errors.INTERNAL_ERROR, f'index "{index.name}" is probed and not complete')
            order = [part.column for part in index.columns]
            descending = tuple(part.descending for part in index.columns)
            rowset = index.rowset
        self._by_index = index is not None
        probed = [self._columns[foreign_key.parent_columns.index(column)] for column in order]
        types = [widest(column) for column in probed]
        self._wanted = [wanted(column)._replace(type=type_) for column, type_ in zip(probed, types, strict=True)]
        self._shown = [wanted(column) for column in self._columns]
        self.parents = rowset_prefix(rowset)
        self._encode = compile_key_batch_encoder(types, descending, prefix=self.parents)

    # --- an anti-join ------------------------------------------------------------------------------------------------

    def keys(self, find: FindLayout, stored: Sequence[bytes]) -> list[bytes | None]:
        """What each of the rows as stored refers to: the store key of a row, or the beginning of that of an entry."""
        columns = mixed_batch_reader(find, self._wanted)(stored)
        keys: list[bytes | None] = list(self._encode(columns))
        for column in columns:
            if column.null_count:
                present = column.is_valid().to_pylist()
                keys = [key if valid else None for key, valid in zip(keys, present, strict=True)]
        if self._by_index:
            skip = len(self.parents)
            keys = [None if key is None else limited_index_key(key, skip) for key in keys]
        return keys

    def standing(self, keys: Sequence[bytes], values: Sequence[bytes]) -> list[bytes]:
        """What can be referred to of a batch of the rowset that begins with `parents`: keys as `keys` has them."""
        if not self._by_index:
            rows = zip(keys, values, strict=True)
            return [key for key, value in rows if not value[LAYOUT_OFFSET] & ROW_TOMBSTONE]
        entries = ((key, ENTRY_VALUE.unpack(value)) for key, value in zip(keys, values, strict=True))
        return [key[:offset] for key, (_, live, offset) in entries if live]

    # --- rows and parents in one read --------------------------------------------------------------------------------

    def offenders(self, find: FindLayout, reader: Reader | None, stored: Sequence[bytes]) -> list[int]:
        """Those of the rows whose parent `reader`, which has read them, does not find: a look-up per distinct key, in
        the order of the keys."""
        assert reader is not None
        keys = self.keys(find, stored)
        stands = self._by_entry if self._by_index else self._by_row
        missing = {key for key in sorted({key for key in keys if key is not None}) if not stands(reader, key)}
        return [place for place, key in enumerate(keys) if key in missing] if missing else []

    def _by_row(self, reader: Reader, key: bytes) -> bool:
        if len(key) - len(self.parents) > MAX_PRIMARY_KEY_BYTES:
            return False
        row = reader.get(key)
        return row is not None and not row[LAYOUT_OFFSET] & ROW_TOMBSTONE

    def _by_entry(self, reader: Reader, key: bytes) -> bool:
        return any(ENTRY_VALUE.unpack(value)[1] for _, value in reader.scan(key, prefix_end(key)))

    def why(self, find: FindLayout, stored: bytes) -> tuple[str]:
        """What an offender refers to, as PostgreSQL says it."""
        values = resolver(find(ROW_HEADER.unpack_from(stored)[2] >> 8), self._shown)(stored)
        return (f'Key {described(self._columns, values)} is not present in table "{self._parent.name}".',)

    def problem(self) -> tuple[str, str]:
        """SQLSTATE and message."""
        message = f'insert or update on table "{self._table.name}" violates foreign key constraint "{self._key.name}"'
        return errors.FOREIGN_KEY_VIOLATION, message
