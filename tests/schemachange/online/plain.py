"""What a batch of commits makes of targets, beside what the rules over values do, to the last byte.

But for the timestamps of entries: one that is put bears that of its row, which plain updates of the same commits may
have brought on by then.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from instar.encoding.keys import ROWSET_PREFIX_BYTES
from instar.schemachange.online.changes import Translator
from instar.schemachange.online.overlay import Overlay
from instar.schemachange.online.split_target import StoredSplit
from instar.schemachange.online.transformation import (
    OnlineJoin,
    OnlineSplit,
    Propagator,
    Stored,
    Transformation,
    apply,
    rules_of,
)
from instar.store.engine import LogRecord, Reader, Store, rowset_prefix
from instar.transformations.records import Change, Row, Source
from schemachange.online.tables import row_ids
from transformations.histories import Place

LONG = "p" * 120  # an entry with such a value is cut and hashed
KEYS = st.integers(1, 3)
VALUES = st.sampled_from(["x", "z", LONG, None])
NUMBERS = st.integers(0, 2) | st.none()
TOGETHER = st.integers(1, 9)


def writes_of(source: Source, *columns: st.SearchStrategy[object]) -> st.SearchStrategy[dict[Place, Row | None]]:
    """A commit on one source: some rows put or deleted; most of what is put is an update."""
    values = st.tuples(*columns)
    rows = st.dictionaries(KEYS, st.one_of(values, values, st.none()), max_size=3)
    return rows.map(lambda found: {(source, (k,)): None if v is None else (k, *v) for k, v in found.items()})


def everything(transformation: Transformation, overlay: Overlay) -> dict[bytes, bytes]:
    """All that is stored, as it is seen through an overlay; entries of the targets without their timestamps."""
    if isinstance(transformation, OnlineSplit):
        targets = [transformation.targets.r.table, transformation.targets.s.table]
    else:
        assert isinstance(transformation, OnlineJoin)
        targets = [transformation.joined.t.table]
    entries = {rowset_prefix(index.rowset) for table in targets for index in table.indexes}
    found = overlay.scan(b"", b"\xff" * 9)
    return {key: value[8:] if key[:ROWSET_PREFIX_BYTES] in entries else value for key, value in found}


def by_rules(transformation: Transformation, target: object, own: list[LogRecord], reader: Reader) -> None:
    changes = Translator(transformation.sources).changes(own, reader)
    apply(transformation, rules_of(target), changes)  # type: ignore[arg-type] # a stored target


def compare(transformation: OnlineSplit | OnlineJoin, store: Store, since: int, *, together: int = 1) -> None:
    """Bring a log to two targets, and a part of it once more; compare whenever some commits are applied."""
    other_way = transformation
    if isinstance(other_way, OnlineJoin):
        transformation, other_way = (other_way._replace(new_row_id=row_ids()) for _ in range(2))
    propagator = Propagator(transformation)
    with store.read() as reader:
        one, other = Overlay(reader), Overlay(reader)
        first, second = transformation.target(one), other_way.target(other)
        records = list(store.log(since, reader.timestamp, propagator.tables))
        timestamps = sorted({record.timestamp for record in records})
        for start in (0, len(timestamps) // 2):
            left = timestamps[start:]
            again = [record for record in records if record.timestamp in left]
            for upto, commits, changes in propagator.apply(first, again, reader, together):
                applied, left = left[:commits], left[commits:]
                assert applied[-1] == upto
                own = [[record for record in records if record.timestamp == timestamp] for timestamp in applied]
                assert sum(map(len, own)) == changes
                for commit_records in own:
                    by_rules(other_way, second, commit_records, reader)
                assert everything(transformation, one) == everything(transformation, other)
                assert doubts(first) == doubts(second)
            assert not left


def doubts(target: Stored) -> set[Row] | None:
    return target.doubtful if isinstance(target, StoredSplit) else None


def is_plain(transformation: Transformation, store: Store, since: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the last commit of a log takes no rule."""
    met: list[LogRecord] = []
    changes = Translator.changes

    def seen(self: Translator, own: list[LogRecord], view: Reader) -> list[Change]:
        met.extend(own)
        return changes(self, own, view)

    with store.read() as reader:
        overlay = Overlay(reader)
        target = transformation.target(overlay)
        records = list(store.log(since, reader.timestamp))
        last = records[-1].timestamp
        propagator = Propagator(transformation)
        list(propagator.apply(target, [record for record in records if record.timestamp != last], reader))
        before = everything(transformation, overlay)
        with monkeypatch.context() as patch:
            patch.setattr(Translator, "changes", seen)
            list(propagator.apply(target, [record for record in records if record.timestamp == last], reader))
        assert everything(transformation, overlay) != before
    return not met
