"""What the image of a grouping is made of: rows of the source to items, groups of items to rows of the target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from instar.catalog.descriptors import MadeByGrouping, MadeByJoin, Table
from instar.catalog.layouts import Layouts
from instar.schemachange.online.conditions import counts_of
from instar.schemachange.online.grouping_target import Counts, GroupTargets
from instar.schemachange.online.image_rows import Item, JoinOperator, Operator, Pair, SourceImage, SplitOperator
from instar.schemachange.validate import CompileCheck
from instar.store.engine import prefix_end, rowset_prefix

_PREFIX_BYTES = len(rowset_prefix(0))


def operator(
    layouts: Layouts, sources: Sequence[Table], targets: Sequence[Table], compile_check: CompileCheck
) -> Operator:
    """What makes these targets of these sources, both in the order that the descriptors name them in."""
    made = None if targets[0].unseen is None else targets[0].unseen.made
    if isinstance(made, MadeByJoin):
        return JoinOperator(layouts, sources[0], sources[1], targets[0])
    if isinstance(made, MadeByGrouping):
        return GroupingOperator(layouts, sources[0], targets[0], counts_of(sources[0], made, compile_check))
    return SplitOperator(layouts, sources[0], targets[0], targets[1])


class GroupingOperator:
    """The grouping of a source's rows (an `Operator`). NULLs of one column are one value."""

    def __init__(self, layouts: Layouts, source: Table, target: Table, counts: Counts) -> None:
        self._targets = GroupTargets(source, target, counts)
        self._source = SourceImage(layouts, source)

    @property
    def prefixes(self) -> tuple[bytes, ...]:
        """As in `Operator`."""
        return (self._targets.t.prefix,)

    def bounds(self, place: int, start: bytes, stop: bytes) -> tuple[bytes, bytes]:
        """As in `Operator`: anywhere."""
        return self._source.prefix, prefix_end(self._source.prefix)

    def items(self, place: int, keys: Sequence[bytes], stored: Sequence[bytes]) -> list[Item]:
        """As in `Operator`: of the rows that are grouped."""
        shape, prefix = self._targets.shape, self._targets.t.prefix
        made = []
        for key, value in zip(keys, stored, strict=True):
            row = self._source.part(value).values
            if shape.counts(row):
                made.append(Item(prefix + self._targets.key(shape.value(row)), 0, key[_PREFIX_BYTES:], value))
        return made

    def rows(self, items: Iterable[Item], first_id: int) -> Iterator[tuple[bytes, Pair]]:
        """As in `Operator`; nobody needs row ids."""
        shape = self._targets.shape
        for group, found in groupby(items, key=attrgetter("group")):
            record, timestamp = None, 0
            for item in found:
                part = self._source.part(item.stored)
                timestamp = max(timestamp, part.timestamp)
                record = shape.plus(record or shape.empty(shape.value(part.values)), part.values, 1, timestamp)
            assert record is not None  # a group has an item
            made = self._targets.row(record)
            yield group, (made.key, made.value)
