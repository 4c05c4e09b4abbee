"""Both engines against each other and against a naive model: a history of versions per row, kept for ever.

The same random operations go to both engines under one clock, so that they must leave the same bytes. The model says
what every snapshot at or above the watermark sees, through rows and through the index, and what the log tells.
"""

from __future__ import annotations

import shutil
import tempfile
from itertools import chain

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from instar.clock import ManualClock
from instar.errors import Error
from instar.store import MemoryStore, open_store
from instar.store.engine import (
    KeyExists,
    Precondition,
    RangeEmpty,
    RangeUnchanged,
    Refused,
    Store,
)
from instar.store.header import IDENTITY_KEY
from instar.store.versions import entry_at, iterate_rows, read_row, visible_values
from store.building import (
    ALL_ENTRIES,
    ALL_ROWS,
    body_of,
    change,
    contents,
    dead_entries,
    entry_key,
    request,
    row_key,
)

NUMBERS = st.integers(0, 7)
BODIES = st.one_of(st.none(), st.sampled_from([b"a1", b"a2", b"b", b"c"]))
CHANGES = st.dictionaries(NUMBERS, BODIES, max_size=5)


class StoreMachine(RuleBasedStateMachine):
    @initialize(padding=st.booleans())
    def open(self, padding: bool) -> None:
        self.directory = tempfile.mkdtemp()
        clock = ManualClock()
        self.clock = clock
        self.stores: list[Store] = [
            open_store(self.directory, synchronous="off", clock=clock),
            MemoryStore(clock=clock),
        ]
        self.watermark = 0
        self.timestamps = [1]
        self.history: dict[int, list[tuple[int, bytes | None]]] = {}
        self.changes: list[tuple[int, int, bytes | None]] = []  # (timestamp, number, body before)
        if padding:  # enough rows for the bulk paths, out of the way of the others
            self.commit(dict.fromkeys(range(100, 140), b"p"), [])

    def teardown(self) -> None:
        for store in self.stores:
            store.close()
        shutil.rmtree(self.directory)

    # The model.

    def at(self, number: int, snapshot: int) -> bytes | None:
        versions = [body for timestamp, body in self.history.get(number, []) if timestamp <= snapshot]
        return versions[-1] if versions else None

    def table(self, snapshot: int) -> dict[int, bytes]:
        seen = {number: self.at(number, snapshot) for number in sorted(self.history)}
        return {number: body for number, body in seen.items() if body is not None}

    def newest(self) -> int:
        return self.timestamps[-1]

    def stands(self, condition: Precondition, changes: dict[int, bytes | None]) -> bool:
        before = self.table(self.newest())
        after = {number: body for number, body in (before | changes).items() if body is not None}
        match condition:
            case KeyExists(on_failure=number):
                return number in after
            case RangeEmpty(allow=allow, on_failure=(int(first), int(last))):
                return not [n for n in after if first <= n < last and row_key(n) != allow]
            case RangeUnchanged(since=since, on_failure=(int(first), int(last))):
                newer = [n for n, versions in self.history.items() if versions and versions[-1][0] > since]
                return not [n for n in newer if first <= n < last]
        raise AssertionError(condition)

    # Operations.

    def commit(self, changes: dict[int, bytes | None], conditions: list[Precondition]) -> None:
        expected = all(self.stands(condition, changes) for condition in conditions)
        outcomes: list[int | str] = []
        for store in self.stores:
            try:
                outcomes.append(store.commit(request(store, changes, conditions)))
            except Refused as refused:
                outcomes.append(type(refused).__name__)
        assert outcomes[0] == outcomes[1]
        assert isinstance(outcomes[0], int) == expected
        if isinstance(outcomes[0], int):
            timestamp = outcomes[0]
            before = self.table(self.newest())
            for number, body in changes.items():
                if body is not None or self.history.get(number):
                    self.history.setdefault(number, []).append((timestamp, body))
                self.changes.append((timestamp, number, before.get(number)))
            self.timestamps.append(timestamp)

    @rule(changes=CHANGES)
    def change(self, changes: dict[int, bytes | None]) -> None:
        changes = {n: body for n, body in changes.items() if body is not None or self.at(n, self.newest()) is not None}
        self.commit(changes, [])

    @rule(changes=CHANGES, kind=st.integers(0, 2), first=NUMBERS, length=NUMBERS, pick=st.integers(0, 5))
    def change_if(self, changes: dict[int, bytes | None], kind: int, first: int, length: int, pick: int) -> None:
        changes = {n: body for n, body in changes.items() if body is not None or self.at(n, self.newest()) is not None}
        start, stop, span = row_key(first), row_key(first + length), (first, first + length)
        condition: Precondition
        if kind == 0:
            condition = KeyExists(start, False, first)
        elif kind == 1:
            condition = RangeEmpty(start, stop, row_key(first) if pick % 2 else None, span)
        else:
            since = max(self.timestamps[-1 - pick % len(self.timestamps)], self.watermark)
            condition = RangeUnchanged(start, stop, since, span)
        self.commit(changes, [condition])

    @rule(back=st.integers(0, 6))
    def collect(self, back: int) -> None:
        upto = self.timestamps[max(0, len(self.timestamps) - 1 - back)]
        counts = [store.collect(upto, dead_entries) for store in self.stores]
        assert counts[0] == counts[1]
        self.watermark = max(self.watermark, upto)
        for number, versions in self.history.items():
            if versions and versions[-1][1] is None and versions[-1][0] <= self.watermark:
                self.history[number] = []  # the tombstone is gone, and with it the trace that range checks see

    @rule(seconds=st.sampled_from([-5.0, 0.001, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.wall += int(seconds * 1e9)
        self.clock.monotonic += int(abs(seconds) * 1e9)

    # What must hold.

    @invariant()
    def engines_agree(self) -> None:
        states = [contents(store) for store in self.stores]
        states[0].pop(IDENTITY_KEY)
        assert states[0] == states[1]
        log = sum(len(k) + len(v) for k, v in states[1].items() if k.startswith(b"\xf0"))
        assert [store.log_bytes() for store in self.stores] == [log, log]

    @invariant()
    def snapshots_repeat(self) -> None:
        retained = [snapshot for snapshot in self.timestamps if snapshot >= self.watermark]
        for snapshot in [*retained[-4:], *retained[:2]]:
            expected = self.table(snapshot)
            for store in self.stores:
                for reverse in (False, True):
                    batches = list(iterate_rows(store, *ALL_ROWS, snapshot, batch=lambda: 3, reverse=reverse))
                    found = [
                        (int.from_bytes(key[-2:], "big"), body_of(value))
                        for keys, values in batches
                        for key, value in zip(keys, values, strict=True)
                    ]
                    assert found == (list(expected.items())[::-1] if reverse else list(expected.items()))
                with store.read_at(snapshot) as reader:
                    for number in range(8):
                        assert body_of(read_row(reader, row_key(number), snapshot)) == expected.get(number)
                    block = visible_values(store, reader.block(*ALL_ROWS, 1 << 20).values, snapshot)
                    assert list(map(body_of, block.values())) == list(expected.values())

    @invariant()
    def the_index_finds_the_rows(self) -> None:
        retained = [snapshot for snapshot in self.timestamps if snapshot >= self.watermark]
        store = self.stores[0]
        for snapshot in retained[-4:]:
            found = {}
            with store.read_at(snapshot) as reader:
                for key, value in reader.scan(*ALL_ENTRIES):
                    visible, offset = entry_at(value, snapshot)
                    number = int.from_bytes(key[offset:], "big")
                    body = body_of(read_row(reader, row_key(number), snapshot))
                    if visible is None:
                        visible = body is not None and entry_key(body, number) == key
                    if visible:
                        assert body is not None
                        found[number] = body
            assert found == self.table(snapshot)

    @invariant()
    def the_log_tells_every_change(self) -> None:
        for store in self.stores:
            told = [
                (record.timestamp, int.from_bytes(record.key[-2:], "big"), body_of(record.before))
                for record in store.log(self.watermark, self.newest())
            ]
            assert sorted(told, key=lambda t: t[:2]) == sorted(
                (c for c in self.changes if c[0] > self.watermark), key=lambda t: t[:2]
            )

    @precondition(lambda self: self.watermark > 1)
    @invariant()
    def what_was_cut_is_an_error(self) -> None:
        for store in self.stores:
            with pytest.raises(Error) as caught:
                store.read_at(self.watermark - 1)
            assert caught.value.sqlstate == "72000"
            with pytest.raises(Error) as caught:
                list(store.log(self.watermark - 1, self.newest()))
            assert caught.value.sqlstate == "72000"


TestStores = StoreMachine.TestCase
TestStores.settings = settings(settings.default, max_examples=25, stateful_step_count=20)


def test_collecting_everything_leaves_the_newest_rows_alone() -> None:
    store = MemoryStore()
    for round_ in range(4):
        change(store, dict.fromkeys(range(20), b"%d" % round_))
    change(store, dict.fromkeys(range(0, 20, 2)))
    store.collect(store.now(), dead_entries)
    rows, entries = contents(store, *ALL_ROWS), contents(store, *ALL_ENTRIES)
    assert {int.from_bytes(key[-2:], "big"): body_of(value) for key, value in rows.items()} == dict.fromkeys(
        range(1, 20, 2), b"3"
    )
    assert list(entries) == [entry_key(b"3", number) for number in range(1, 20, 2)]
    assert list(chain(contents(store, b"\xf0", b"\xf1"))) == []
    assert store.log_bytes() == 0
