"""The target of a grouping as a stored table: what the rules of a grouping read and write (a `GroupTarget`), and the
form that its rows have.

Its key is a hidden column with the encoded values that the rows of a group share, since NULL may be among them, or a
digest of them where they are long. Sums of integers are numerics, which have room for them; those of numerics are
texts, since what a view's query says of a sum that has too many digits, it has to say when it is asked, and not when
rows are committed. They have the scale that the query's have.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from hashlib import blake2b

import msgspec

from instar import errors
from instar.catalog.descriptors import MadeByGrouping, Table
from instar.encoding.keys import compile_encoder
from instar.schemachange.online.overlay import Writable
from instar.schemachange.online.shapes import column_places, comparable
from instar.schemachange.online.stored_rows import StoredRows
from instar.schemachange.online.target_rows import NewRow, TargetTable
from instar.transformations.grouping import Group, Grouping, Sums
from instar.transformations.records import Row
from instar.types import Kind
from instar.values.arithmetic import divide

# Of rows of the source, in all its columns: whether they are grouped.
Counts = Callable[[Row], bool]
# A primary key cannot be of any length: of longer values it has so many bytes, and a digest of all of them, which makes
# it longer than any that has none.
_LONGEST_KEY, _DIGEST_BYTES = 128, 32
_encode_scales = msgspec.json.Encoder().encode
_decode_scales = msgspec.json.Decoder(dict[int, int]).decode


def grouping_shape(source: Table, made: MadeByGrouping, counts: Counts) -> Grouping:
    """The shape of a grouping."""
    found = column_places(source)
    return Grouping(
        on=tuple([found[column] for column, _ in made.groups]),
        values=tuple([found[value.column] for value in made.values]),
        summed=tuple([value.total is not None for value in made.values]),
        scaled=tuple([value.scales is not None for value in made.values]),
        counts=counts,
    )


def made_by_grouping(table: Table) -> MadeByGrouping:
    """What the target of a grouping is made by."""
    if table.unseen is None or not isinstance(table.unseen.made, MadeByGrouping):
        raise errors.error(errors.INTERNAL_ERROR, f'table "{table.name}" is not made by a grouping')
    return table.unseen.made


class GroupTargets:
    """The target of a grouping of its source's rows."""

    def __init__(self, source: Table, target: Table, counts: Counts) -> None:
        self.made = made = made_by_grouping(target)
        self.t = TargetTable(target)
        self.shape = grouping_shape(source, made, counts)
        of = {column.id: column for column in source.columns}
        self.comparable = comparable([of[column] for column, _ in made.groups])
        self._encode = compile_encoder([of[column].type for column, _ in made.groups])
        found = column_places(target)
        self._width = len(found)
        self._key = found[target.primary_key[0]]
        self._counter = found[made.counter]
        self._groups = [found[column] for _, column in made.groups]
        self._sums = [
            (found[one.count], found.get(one.total or 0), found.get(one.nans or 0), found.get(one.scales or 0))
            for one in made.values
        ]
        self._means = [found.get(one.mean or 0) for one in made.values]
        self._texts = [
            total is not None and target.columns[total].type.kind is Kind.TEXT for _, total, *_ in self._sums
        ]

    def key(self, value: Row) -> bytes:
        """The hidden key of the group with these values."""
        key = self._encode(value)
        if len(key) <= _LONGEST_KEY:
            return key
        return key[:_LONGEST_KEY] + blake2b(key, digest_size=_DIGEST_BYTES).digest()

    def row(self, group: Group) -> NewRow:
        """A record as it is stored."""
        image: list[object] = [None] * self._width
        image[self._key] = self.key(group.values)
        image[self._counter] = group.counter
        for place, value in zip(self._groups, group.values, strict=True):
            image[place] = value
        for (count, total, nans, scales), text, sums in zip(self._sums, self._texts, group.sums, strict=True):
            image[count] = sums.count
            if total is not None and nans is not None:
                image[total] = format(sums.total, "f") if text else sums.total
                image[nans] = sums.nans
            if scales is not None:
                image[scales] = _encode_scales(sums.scales).decode()
        for mean, sums in zip(self._means, group.sums, strict=True):
            if mean is not None and sums.count > sums.nans:
                image[mean] = divide(sums.total, Decimal(sums.count - sums.nans))
        return self.t.row(tuple(image), group.timestamp)

    def record(self, image: Row, timestamp: int) -> Group:
        """A stored row as the rules know it."""
        sums = []
        for count, total, nans, scales in self._sums:
            counted = image[count]
            assert isinstance(counted, int)
            if total is None or nans is None:
                sums.append(Sums(counted))
                continue
            summed, strange = image[total], image[nans]
            assert isinstance(summed, str | Decimal)
            assert isinstance(strange, int)
            scaled = None if scales is None else _decode_scales(str(image[scales]))
            sums.append(Sums(counted, Decimal(summed), strange, scaled))
        counter = image[self._counter]
        assert isinstance(counter, int)
        return Group(self.comparable([image[place] for place in self._groups]), counter, tuple(sums), timestamp)


class StoredGroups:
    """The records of a grouping over something to write to."""

    def __init__(self, targets: GroupTargets, store: Writable) -> None:
        self.targets = targets
        self._rows = StoredRows(targets.t, store)

    @property
    def rows(self) -> int:
        """How many rows were put or removed."""
        return self._rows.written

    def group(self, value: Row) -> Group | None:
        """As in `GroupTarget`."""
        row = self._rows.get(self._stored_key(value))
        return None if row is None else self.targets.record(row.image, row.timestamp)

    def put(self, group: Group) -> None:
        """As in `GroupTarget`."""
        self._rows.put(self.targets.row(group))

    def remove(self, value: Row) -> None:
        """As in `GroupTarget`."""
        row = self._rows.get(self._stored_key(value))
        assert row is not None, "no such group"
        self._rows.remove(row)

    def _stored_key(self, value: Row) -> bytes:
        return self.targets.t.key([self.targets.key(value)])
