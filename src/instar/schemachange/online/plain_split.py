"""Plain updates of the source of a split: rule 10 (§5.2) and, where S's columns change, rule 11 for a split value that
stays. R's records are put for some commits at once, S's in the order of commits."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from instar.encoding.comparing import RowComparer
from instar.encoding.keys import ROWSET_PREFIX_BYTES
from instar.encoding.patching import RowPatcher
from instar.encoding.rows import RowFormat
from instar.schemachange.online.changes import SourceRows
from instar.schemachange.online.overlay import Readable
from instar.schemachange.online.plain_updates import Batch, Layouts, columns_of, key_types, layouts_of, tags_of
from instar.schemachange.online.split_target import StoredSplit
from instar.schemachange.online.target_rows import SplitTargets
from instar.store.engine import LogRecord
from instar.tables.layout import layout_format
from instar.tables.patching import mover
from instar.transformations.commits import Splitting
from instar.transformations.records import Row

_stamp_of = struct.Struct("<Q").unpack_from


class _Way(NamedTuple):
    """What is done of updates from one layout to another: functions of both stored rows, which say whether S's columns
    stay, and whether the row stays where it is in R and S; and of the row after, which make the bodies of R's record
    and of S's, of which counter and flag are given. S's is None if a value would have to be converted or computed."""

    leaves_s: RowComparer
    stays: RowComparer
    r_body: RowPatcher
    s_body: RowPatcher | None


class _Update(NamedTuple):
    """A plain update that is to be put."""

    record: LogRecord
    after: bytes
    way: _Way


class PlainSplit:
    """The plain updates of the source of a split."""

    def __init__(self, rows: SourceRows, targets: SplitTargets) -> None:
        source, made = rows.table, targets.made
        r, s = targets.r, targets.s
        self._rows, self._r, self._s = rows, r, s
        self._ways: dict[bytes, _Way | None] = {}
        # Else R's rows are elsewhere than the keys of the source's say.
        self._is_keyed_alike = key_types(r.table) == key_types(source)
        hidden = (made.counter, made.consistent)
        # What entries of R are made of stays, too.
        self._on = frozenset(made.on)
        self._stays = self._on.union([r.table.columns[place].id for place in r.indexed])
        self._of_s = self._stays.union([column.id for column in s.table.columns if column.id not in hidden])
        self._r_columns, self._s_columns = columns_of(source, r.table), columns_of(source, s.table, hidden)
        in_s = [column for column, _ in s.table.layout.columns]
        self._hidden = [in_s.index(column) for column in hidden]
        self._counter = _number(layout_format(s.table.layout), self._hidden[0])
        self._consistent = _number(layout_format(s.table.layout), self._hidden[1])
        self._split_value = rows.reader(made.on)

    def batch(self, target: StoredSplit, view: Readable) -> Batch:
        """An empty batch of commits."""
        return _SplitBatch(self, target, view)

    def way(self, before: bytes, after: bytes, view: Readable) -> _Way | None:
        """What is done of an update, by its stored rows, if it is plain; None where that is not known."""
        tags = tags_of(before, after)
        try:
            return self._ways[tags]
        except KeyError:
            way = self._ways[tags] = self._found(layouts_of(self._rows, before, after, view))
            return way

    def _found(self, layouts: Layouts) -> _Way | None:
        r_body = mover(layouts.after, self._r_columns)
        if r_body is None or not self._is_keyed_alike:
            return None
        s_body = mover(layouts.after, self._s_columns, self._hidden)
        # A row that has NULL among the split columns belongs to no record of S, and may have values that would be lost.
        return _Way(layouts.alike(self._of_s, self._on), layouts.alike(self._stays, self._on), r_body, s_body)

    def update_r(self, target: StoredSplit, newest: Mapping[bytes, _Update]) -> dict[bytes, int]:
        """Rule 10: the R-part of each t^y, and its timestamp; ignored if there is no r^y, or a newer one. Returns the
        timestamps of the records that were there, by the rows' keys.

        Of some updates of a row the last one is put: those before it would be ignored where it is."""
        rows, pack = target.r_rows, self._r.value
        stamps: dict[bytes, int] = {}
        puts: dict[bytes, bytes] = {}
        prefix = self._r.prefix
        keys = [prefix + key[ROWSET_PREFIX_BYTES:] for key in newest]
        olds = rows.store.get_many(keys)
        for (row, (record, after, way)), key, old in zip(newest.items(), keys, olds, strict=True):
            if old is None:
                continue
            (stamp,) = _stamp_of(old)
            stamps[row] = stamp
            if stamp < record.timestamp:
                body = way.r_body(after, ())
                assert body is not None, "no values of its own"
                puts[key] = pack(body, record.timestamp)
        rows.overwrite_many(puts)
        return stamps

    def update_s(self, target: StoredSplit, updates: Iterable[_Update], view: Readable) -> None:
        """Rule 11 for the updates of one commit whose split value stays, and which rule 10 has not ignored."""
        values: dict[bytes, Row] = {}
        found: dict[bytes, list[_Update]] = {}
        for update in updates:
            value = self._split_value(update.after, view)
            key = target.key_in_s(value)
            values[key] = value
            found.setdefault(key, []).append(update)
        for key, some in found.items():
            old = target.s_rows.store.get(key)
            assert old is not None, "a record of R without one of S"
            counter = self._counter(old)
            consistent = self._agree(some, counter, old)
            record = some[-1].record
            if consistent is not None and _stamp_of(old)[0] <= record.timestamp:
                new = self._s.value(self._s_record(some[-1], counter, consistent), record.timestamp)
                if not self._s.indexed or self._s.indexed_bytes(old, ()) == self._s.indexed_bytes(new, ()):
                    target.overwrite_s(values[key], key, new, consistent=consistent)
                    continue
            Splitting(target, target.targets.shape).overwrite(
                [self._rows.updated(update.record, view) for update in some]
            )

    def _agree(self, updates: Sequence[_Update], counter: int, old: bytes) -> bool | None:
        """Whether S's record is consistent after such updates; None where only their values tell."""
        if counter == 1:
            return True if self._consistent(old) else None
        if len(updates) != counter:
            return False
        first, *others = [self._s_record(update, counter, True) for update in updates]
        return True if all(other == first for other in others) else None

    def _s_record(self, update: _Update, counter: int, consistent: bool) -> bytes:
        assert update.way.s_body is not None, "an update of S's part that is plain"
        body = update.way.s_body(update.after, (counter, consistent))
        assert body is not None, "values that are not NULL"
        return body


class _SplitBatch:
    """A batch of a split: plain updates by the rows' keys, of which the last of each is kept, and what is left, in the
    order of commits: by rule 11 alone, or by all of them."""

    def __init__(self, plain: PlainSplit, target: StoredSplit, view: Readable) -> None:
        self.weight = 0
        self.is_closed = False  # a change comes to a few rows
        self._plain, self._target, self._view = plain, target, view
        self._newest: dict[bytes, _Update] = {}
        self._by_rules: set[bytes] = set()  # the keys of rows whose changes the rules have to apply from now on
        self._left: list[tuple[list[LogRecord], list[_Update]]] = []

    def add(self, records: list[LogRecord]) -> None:
        """As in `Batch`."""
        self.weight += len(records)
        of_s: list[_Update] = []
        others: list[LogRecord] = []
        for record in records:
            before, after = record.before, record.after
            if before is None or after is None or record.renewed or record.key in self._by_rules:
                others.append(record)
                continue
            way = self._plain.way(before, after, self._view)
            if way is None:
                others.append(record)
            elif way.leaves_s(before, after):
                self._newest[record.key] = _Update(record, after, way)
            elif way.s_body is not None and way.stays(before, after):
                of_s.append(_Update(record, after, way))
            else:
                others.append(record)
        if others:  # what the commit's updates make of S is one with what its other changes do (rule 28)
            left = {record.key for record in others}.union([update.record.key for update in of_s])
            self._by_rules |= left
            self._left.append(([record for record in records if record.key in left], []))
        elif of_s:
            self._newest.update([(update.record.key, update) for update in of_s])
            self._left.append(([], of_s))

    def apply(self, by_rules: Callable[[list[LogRecord]], None]) -> None:
        """As in `Batch`."""
        stamps = self._plain.update_r(self._target, self._newest)
        for others, of_s in self._left:
            if others:
                by_rules(others)
                continue
            # What rule 10 has ignored rule 11 does not follow.
            followed = [one for one in of_s if stamps.get(one.record.key, one.record.timestamp) < one.record.timestamp]
            self._plain.update_s(self._target, followed, self._view)


def _number(form: RowFormat, position: int) -> Callable[[bytes], int]:
    """A function from a stored value to its column at a position, which is a number or boolean and never NULL."""
    slot = form.slots[position]
    unpack, offset = struct.Struct("<" + slot.code).unpack_from, form.start + slot.offset
    return lambda stored: int(unpack(stored, offset)[0])
