"""How far the log may be cut."""

from __future__ import annotations

from instar.store.collector import collection_limit
from instar.store.engine import Store
from store.building import change, contents, dead_entries

SECOND = 1000 << 20


def limit(**given: object) -> int:
    usual: dict[str, object] = {
        "now": 1000 * SECOND,
        "watermark": 0,
        "holds": (),
        "retention_seconds": 600.0,
        "log_bytes": 0,
        "log_max_bytes": 1000,
    }
    return collection_limit(**(usual | given))  # type: ignore[arg-type] # merged above


def test_retention_and_snapshots_hold_the_log() -> None:
    assert limit() == 400 * SECOND
    assert limit(holds=(300 * SECOND, 350 * SECOND)) == 300 * SECOND
    assert limit(holds=(900 * SECOND,)) == 400 * SECOND
    assert limit(retention_seconds=0.0) == 1000 * SECOND


def test_the_limit_never_falls_below_the_watermark() -> None:
    assert limit(watermark=500 * SECOND, holds=(1,)) == 500 * SECOND


def test_past_its_cap_the_slowest_is_cut_loose() -> None:
    assert limit(holds=(1,), log_bytes=1000) == 1
    assert limit(holds=(1,), log_bytes=4000) == 750 * SECOND
    assert limit(holds=(1,), log_bytes=2000, watermark=900 * SECOND) == 950 * SECOND


def test_collecting_in_several_steps_and_twice(store: Store) -> None:
    change(store, dict.fromkeys(range(500), b"a"))
    change(store, dict.fromkeys(range(500), b"b"))
    last = change(store, dict.fromkeys(range(500)))
    newest = change(store, {1000: b"z"})
    records = len(contents(store, b"\xf0", b"\xf1"))
    assert store.collect(last, dead_entries) == records - 1
    assert store.collect(last, dead_entries) == 0
    with store.read() as reader:
        assert reader.watermark == last
    assert store.collect(newest + 10**9, dead_entries) == 1
    with store.read() as reader:
        assert reader.watermark == newest  # a snapshot taken now must not be too old
    assert store.log_bytes() == 0
