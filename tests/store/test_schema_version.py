"""The canonical schema version: two copies in one commit, each mended from the other; its history."""

from __future__ import annotations

from pathlib import Path

import pytest

from instar.clock import ManualClock
from instar.errors import Error
from instar.store import schema_version
from instar.store.engine import Commit, Lease, LeaseExpired, Section, Store
from instar.store.schema_version import COPIES, KEPT_VERSIONS, SchemaVersion
from store.building import change, contents, raw, request

FORMATS = Path(__file__).parents[2] / "docs" / "formats" / "schema-version.md"


def canonical(store: Store) -> SchemaVersion:
    with store.read() as reader:
        return schema_version.read_version(reader)


def damage(store: Store, key: bytes, value: bytes | None) -> None:
    """As a fault of the disk would: no commit of anybody's."""

    def step(section: Section) -> None:
        if value is None:
            section.delete(key)
        else:
            section.put(key, value)

    store.background([step])


def bump(store: Store, statement: str = "", *, abrupt: bool = False) -> int:
    made = Commit(catalog_version=0, bump_catalog=True, change=statement, abrupt=abrupt)
    return store.commit(made)


def test_both_copies_are_written_by_every_catalog_commit_and_by_no_other(store: Store) -> None:
    first = bump(store)
    assert canonical(store) == SchemaVersion(1, first, False)
    written = [contents(store, key, key + b"\x00") for key in COPIES]
    change(store, {1: b"a"})
    raw(store, (b"\x03\x01x", b"y"))
    assert [contents(store, key, key + b"\x00") for key in COPIES] == written
    second = bump(store, abrupt=True)
    assert canonical(store) == SchemaVersion(2, second, True)
    with store.read() as reader:
        assert {schema_version.decode_copy(key, reader.get(key)) for key in COPIES} == {canonical(store)}
        assert not schema_version.damaged_copies(reader)


def test_a_commit_that_is_refused_publishes_nothing(store: Store) -> None:
    bump(store)
    before = canonical(store)
    with pytest.raises(LeaseExpired):
        store.commit(Commit(catalog_version=1, bump_catalog=True, lease=Lease(0)))
    assert canonical(store) == before


@pytest.mark.parametrize("copy", [0, 1])
@pytest.mark.parametrize("how", ["a bit", "cut short", "gone", "the other's", "an older one"])
def test_a_damaged_copy_is_mended_from_the_other(store: Store, copy: int, how: str) -> None:
    bump(store)
    key = COPIES[copy]
    with store.read() as reader:
        old = reader.get(key)
        assert old is not None
    bump(store)
    with store.read() as reader:
        sound, other = reader.get(key), reader.get(COPIES[1 - copy])
        assert sound is not None
    values = {
        "a bit": sound[:5] + bytes([sound[5] ^ 1]) + sound[6:],
        "cut short": sound[:-1],
        "gone": None,
        "the other's": other,
        "an older one": old,
    }
    before = canonical(store)
    damage(store, key, values[how])
    assert canonical(store) == before
    with store.read() as reader:
        assert schema_version.damaged_copies(reader) == [key]
    assert schema_version.repair(store)
    assert contents(store, key, key + b"\x00") == {key: sound}
    assert not schema_version.repair(store)


def test_two_damaged_copies_are_an_error_until_the_next_catalog_commit(store: Store) -> None:
    bump(store)
    for key in COPIES:
        damage(store, key, b"?")
    with pytest.raises(Error, match="both copies") as caught:
        canonical(store)
    assert caught.value.sqlstate == "XX001"
    with pytest.raises(Error, match="both copies"):
        schema_version.repair(store)
    bump(store)
    assert canonical(store).version == 2


def test_history_is_bounded(store: Store) -> None:
    stamps = [bump(store, f"change {number}") for number in range(1, KEPT_VERSIONS + 4)]
    with store.read() as reader:
        found = list(schema_version.history(reader))
    assert [version for version, _ in found] == list(range(4, KEPT_VERSIONS + 4))
    assert [(line.timestamp, line.change) for _, line in found] == [
        (stamp, f"change {number}") for number, stamp in enumerate(stamps, 1) if number > 3
    ]


def test_a_store_without_a_record_is_not_damaged(store: Store) -> None:
    with store.read() as reader:
        assert not schema_version.damaged_copies(reader)


def test_a_write_whose_lease_has_run_out_is_refused_in_the_atomic_section(store: Store, clock: ManualClock) -> None:
    lease = Lease(clock.monotonic_ns() + 1_000_000_000)
    late, renewed = request(store, {1: b"a"}), request(store, {2: b"b"})
    late.lease = renewed.lease = lease
    clock.advance(0.999)
    store.commit(late)
    clock.advance(0.001)
    with pytest.raises(LeaseExpired):
        store.commit(renewed)
    lease.until += 1_000_000_000  # what is under way has the renewed lease too
    store.commit(renewed)


def test_jumps_of_the_wall_clock_move_no_lease(store: Store, clock: ManualClock) -> None:
    lease = Lease(clock.monotonic_ns() + 1_000_000_000)
    for number, jump in enumerate((3_600, -7_200, 10**9)):
        clock.wall += jump * 10**9
        made = request(store, {number: b"a"})
        made.lease = lease
        store.commit(made)
    clock.monotonic += 2_000_000_000
    clock.wall -= 10**18
    made = request(store, {9: b"a"})
    made.lease = lease
    with pytest.raises(LeaseExpired):
        store.commit(made)


def test_the_documented_vectors() -> None:
    rows = [line.strip("| \n").split(" | ") for line in FORMATS.read_text().splitlines() if line.startswith("| `")]
    vectors = [[cell.strip("`") for cell in row] for row in rows if len(row) == 5]
    assert len(vectors) == 3
    for key, version, timestamp, abrupt, value in vectors:
        found = SchemaVersion(int(version), int(timestamp), abrupt == "yes")
        assert schema_version.encode_copy(bytes.fromhex(key), found).hex() == value
        assert schema_version.decode_copy(bytes.fromhex(key), bytes.fromhex(value)) == found
