"""An overlay against a dictionary, over stores that are written meanwhile."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar.schemachange.online import overlay as module
from instar.schemachange.online.overlay import Overlay, ShortReads
from instar.schemachange.online.redo import putting
from schemachange.online.tables import ENGINES, stored_in

KEYS = [b"\x10" + bytes([number]) for number in range(6)]
# Of several rowsets, and of one: most ranges lie in one.
ROWSETS = (b"", b"\x10\x00\x00\x00\x07")
KEY = st.sampled_from(KEYS)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["put", "put many"]), KEY, st.binary(min_size=1, max_size=2)),
        st.tuples(st.just("delete"), KEY, st.just(b"")),
        st.tuples(st.sampled_from(["take", "settle"]), st.just(b""), st.just(b"")),
    ),
    max_size=30,
)


@pytest.mark.parametrize("rowset", ROWSETS)
@pytest.mark.parametrize("engine", ENGINES)
@given(steps=STEPS, bounds=st.tuples(KEY, KEY))
def test_an_overlay_is_what_is_stored_with_what_is_written(
    engine: str, rowset: bytes, steps: list[tuple[str, bytes, bytes]], bounds: tuple[bytes, bytes]
) -> None:
    keys = [rowset + key for key in KEYS]
    with stored_in(engine) as store:
        store.background([putting([(keys[1], b"old"), (keys[4], b"old")])])
        model = {keys[1]: b"old", keys[4]: b"old"}
        reads = ShortReads(store)
        overlay = Overlay(reads)
        since: dict[bytes, bytes | None] = {}
        written = 0  # bytes since then
        for step, at, value in steps:
            key = rowset + at
            match step:
                case "put":
                    overlay.put(key, value)
                    since[key] = model[key] = value
                    written += len(key) + len(value)
                case "put many":
                    values = {key: value, keys[2]: b"many"}
                    overlay.put_many(values)
                    since |= values
                    model |= values
                    written += sum(len(at) + len(put) for at, put in values.items())
                case "delete":
                    overlay.delete(key)
                    model.pop(key, None)
                    since[key] = None
                    written += len(key)
                case _:
                    taken = overlay.taken()
                    assert taken == sorted(since.items())
                    since.clear()
                    written = 0
                    reads.close()
                    store.background([putting(taken)])
                    if step == "settle":
                        overlay.settled()
            assert {key: overlay.get(key) for key in keys} == {key: model.get(key) for key in keys}
            assert [pair for pair in overlay.scan(b"", b"\xff") if pair[0] in keys] == sorted(model.items())
            assert (overlay.waiting, overlay.waiting_bytes) == (len(since), written)
            assert overlay.get_many(keys) == [model.get(key) for key in keys]
            start, stop = (rowset + bound for bound in bounds)
            assert list(overlay.scan(start, stop)) == [
                pair for pair in sorted(model.items()) if start <= pair[0] < stop
            ]
        reads.close()


def test_what_is_not_taken_cannot_be_settled() -> None:
    with stored_in("memory") as store:
        overlay = Overlay(ShortReads(store))
        overlay.put(b"\x10", b"v")
        with pytest.raises(AssertionError):
            overlay.settled()


@pytest.mark.parametrize("engine", ENGINES)
def test_short_reads_are_renewed_in_the_middle_of_a_scan(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(module, "monotonic", lambda: now)
    with stored_in(engine) as store:
        keys = [b"\x10" + number.to_bytes(2, "big") for number in range(700)]
        store.background([putting([(key, b"v") for key in keys[:600]])])
        reads = ShortReads(store)
        scan = reads.scan(b"\x10", b"\x11")
        found = [next(scan)[0]]
        store.background([putting([(key, b"v") for key in keys[600:]])])
        now = 1.0
        found += [key for key, _ in scan]
        assert found == keys
        reads.close()
        reads.close()
