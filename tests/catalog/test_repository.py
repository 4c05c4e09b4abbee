"""Schema leases of one server: renewal at half, older versions, fencing, damage, clocks that jump."""

from __future__ import annotations

import functools
import itertools

import pytest

from instar.catalog.catalog import Catalog
from instar.catalog.repository import SchemaRepository
from instar.clock import ManualClock
from instar.errors import IO_ERROR, Error, error
from instar.store import MemoryStore
from instar.store.engine import Commit, LeaseExpired, Reader, Section, StaleSchema
from instar.store.schema_version import COPIES, damaged_copies

LEASE = 10.0
NS = 1_000_000_000


class Counting(Catalog):
    """Counts how often the schema is asked of the store."""

    asked = 0

    def at(self, reader: Reader):
        self.asked += 1
        return super().at(reader)


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock, schema_lease=LEASE)
        self.publish()
        self.catalog = Counting(self.store, self.clock)
        self.repository = SchemaRepository(self.store, self.catalog, self.clock)

    def publish(self, *, abrupt: bool = False) -> None:
        self.store.commit(Commit(catalog_version=0, bump_catalog=True, abrupt=abrupt))

    def damage(self, *copies: int) -> None:
        def step(section: Section) -> None:
            for copy in copies:
                section.put(COPIES[copy], b"?")

        self.store.background([step])

    def version(self) -> int:
        return self.repository.schema().catalog.version


@pytest.fixture
def world() -> World:
    return World()


def test_the_cached_schema_is_used_for_half_of_the_lease(world: World) -> None:
    first = world.repository.schema()
    world.publish()
    world.clock.advance(LEASE / 2 - 0.001)
    assert world.repository.schema() is first
    world.clock.advance(0.001)
    assert world.version() == 2


def test_a_schema_that_is_renewed_for_long_outlives_the_log(world: World) -> None:
    """What must be read of it is read as of the last renewal, not of a moment that the watermark has passed."""
    first = world.repository.schema()
    for name in ("one", "two"):
        world.store.commit(Commit(catalog_version=first.catalog.version, raw=[(b"\x03\x63", b"")]))
        with world.store.read() as reader:
            upto = reader.timestamp
        world.store.collect(upto, lambda record: [])
        world.clock.advance(LEASE)
        assert world.repository.schema() is first
        assert first.catalog.lookup(None, name) is None
        assert world.repository.snapshot(0)[1] is first.catalog
        assert first.catalog.lookup(None, f"{name} again") is None


def test_renewal_compares_timestamps_and_reads_no_schema(world: World) -> None:
    first = world.repository.schema()
    assert world.catalog.asked == 1
    for _ in range(5):
        world.clock.advance(LEASE / 2)
        assert world.repository.schema() is first
        assert first.lease.until == world.clock.monotonic + LEASE * NS
    assert world.catalog.asked == 1
    world.publish()
    world.clock.advance(LEASE / 2)
    world.repository.schema()
    assert world.catalog.asked == 2


def test_an_idle_server_renews_with_its_next_use(world: World) -> None:
    first = world.repository.schema()
    world.clock.advance(1000 * LEASE)
    assert first.lease.until < world.clock.monotonic
    assert world.repository.schema() is first
    assert first.lease.until == world.clock.monotonic + LEASE * NS


def test_a_lease_runs_from_before_the_canonical_version_was_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is stopped while it reads: what it read may be out of date by so long."""
    real = world.store.read

    def slow():
        reader = real()
        world.clock.advance(3)
        return reader

    monkeypatch.setattr(world.store, "read", slow)
    began = world.clock.monotonic
    assert world.repository.schema().lease.until == began + LEASE * NS


def test_a_pending_write_keeps_its_version_and_lease(world: World) -> None:
    old = world.repository.schema()
    with world.store.read() as reader:
        world.publish()
        world.clock.advance(LEASE / 2)
        new = world.repository.schema()
        assert (old.catalog.version, new.catalog.version) == (1, 2)
        assert world.repository.schema_for(reader, 0) is old
        with pytest.raises(StaleSchema):
            world.repository.schema_for(reader, 2)
    with world.store.read() as reader:
        assert world.repository.schema_for(reader, 0) is new
    assert old.lease.until == new.lease.until - LEASE * NS // 2  # its lease was never renewed
    world.store.commit(Commit(catalog_version=1, lease=old.lease))


def test_old_versions_are_forgotten_with_their_leases(world: World) -> None:
    with world.store.read() as reader:
        for _ in range(5):
            world.repository.schema()
            world.publish()
            world.clock.advance(LEASE)
        world.repository.schema()
        with pytest.raises(StaleSchema):
            world.repository.schema_for(reader, 0)


def test_at_least_renews_at_once(world: World) -> None:
    world.repository.schema()
    world.publish()
    assert world.version() == 1
    assert world.repository.schema(2).catalog.version == 2


def test_a_refused_server_reloads_at_once(world: World) -> None:
    world.repository.schema()
    world.publish()
    world.repository.reload()
    assert world.version() == 2


# --- snapshots (rule 17) ---------------------------------------------------------------------------------------------


def test_a_snapshot_may_show_one_compatible_version_more(world: World) -> None:
    world.repository.schema()
    world.publish()
    assert world.repository.snapshot(0)[1].version == 1


def test_a_snapshot_that_shows_two_versions_more_reloads_first(world: World) -> None:
    world.repository.schema()
    world.publish()
    world.publish()
    assert world.repository.snapshot(0)[1].version == 3


def test_a_snapshot_that_shows_an_abrupt_step_reloads_first(world: World) -> None:
    world.repository.schema()
    world.publish(abrupt=True)
    assert world.repository.snapshot(0)[1].version == 2


def test_no_snapshot_is_taken_under_an_expired_lease(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is stopped between looking at its lease and taking the snapshot."""
    world.repository.schema()
    real, waits = world.store.read, [LEASE * 2]

    def stopped():
        if waits:
            world.clock.advance(waits.pop())
            world.publish()
        return real()

    monkeypatch.setattr(world.store, "read", stopped)
    timestamp, catalog = world.repository.snapshot(0)
    assert catalog.version == 2
    with real() as reader:
        assert timestamp == reader.timestamp


def test_a_machine_too_slow_for_the_lease_is_told_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    real = world.store.read

    def slow():
        world.clock.advance(LEASE)
        return real()

    monkeypatch.setattr(world.store, "read", slow)
    with pytest.raises(Error, match="lease of 10 s ran out") as caught:
        world.repository.snapshot(0)
    assert caught.value.sqlstate == "40001"


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copy", [0, 1])
def test_renewal_mends_a_damaged_copy(world: World, copy: int) -> None:
    world.repository.schema()
    world.damage(copy)
    world.clock.advance(LEASE / 2)
    assert world.version() == 1
    with world.store.read() as reader:
        assert not damaged_copies(reader)


def test_a_server_that_cannot_renew_goes_on_until_its_lease_runs_out(world: World) -> None:
    first = world.repository.schema()
    world.damage(0, 1)
    world.clock.advance(LEASE - 0.001)
    assert world.repository.schema() is first
    world.clock.advance(0.001)
    with pytest.raises(Error) as caught:
        world.repository.schema()
    assert caught.value.sqlstate == "XX001"
    world.repository.tend()  # says nothing
    world.publish()
    assert world.version() == 2


def test_no_damage_to_the_copies_gives_another_version(world: World) -> None:
    """Torn, flipped, missing, in place of one another, or that of the version before: the right version, or XX001."""
    with world.store.read() as reader:
        older = [reader.get(key) for key in COPIES]
    world.publish()
    with world.store.read() as reader:
        sound = [reader.get(key) for key in COPIES]
    damages: list[list[bytes | None]] = []
    for copy in range(2):
        kept, other, before = sound[copy], sound[1 - copy], older[copy]
        assert kept is not None
        flipped = [kept[:at] + bytes([kept[at] ^ 1 << at % 8]) + kept[at + 1 :] for at in range(len(kept))]
        damages.append([kept, None, b"", kept[:-1], kept + b"\0", bytes(len(kept)), other, before, *flipped[::5]])
    for first, second in itertools.product(*damages):
        world.store.background([functools.partial(_put, (first, second))])
        fresh = SchemaRepository(world.store, Catalog(world.store, world.clock), world.clock)
        if first == sound[0] or second == sound[1]:
            assert fresh.schema().catalog.version == 2
            continue
        with pytest.raises(Error, match="both copies") as caught:
            fresh.schema()
        assert caught.value.sqlstate == "XX001"


def _put(values: tuple[bytes | None, bytes | None], section: Section) -> None:
    for key, value in zip(COPIES, values, strict=True):
        if value is None:
            section.delete(key)
        else:
            section.put(key, value)


def test_a_store_that_cannot_be_read_is_what_a_server_says_when_its_lease_is_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then it goes on, and asks no more often than every sixteenth of the lease; afterwards it does at once."""
    first = world.repository.schema()
    asked = 0

    def broken() -> Reader:
        nonlocal asked
        asked += 1
        raise error(IO_ERROR, "the disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr(world.store, "read", broken)
        world.clock.advance(LEASE / 2)
        for _ in range(499):
            assert world.repository.schema() is first
            world.clock.advance(LEASE / 1000)
        assert asked <= 9
        world.clock.advance(LEASE / 1000)
        for _ in range(2):
            with pytest.raises(Error, match="the disk is gone"):
                world.repository.schema()
        with pytest.raises(Error, match="the disk is gone"):
            world.repository.snapshot(0)
        with pytest.raises(LeaseExpired):
            world.store.commit(Commit(catalog_version=1, lease=first.lease))
    assert world.repository.schema() is first
    world.store.commit(Commit(catalog_version=1, lease=first.lease))


def test_a_version_that_is_needed_is_not_put_off(world: World) -> None:
    world.repository.schema()
    world.publish()
    world.damage(0, 1)
    with pytest.raises(Error, match="both copies"):
        world.repository.schema(2)


# --- clocks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump", [-(10**18), -3600 * NS, 3600 * NS, 10**18])
def test_jumps_of_the_wall_clock_change_nothing(world: World, jump: int) -> None:
    first = world.repository.schema()
    until = first.lease.until
    world.clock.wall += jump
    assert world.repository.schema() is first
    assert first.lease.until == until
    world.publish()
    world.clock.wall -= jump
    assert world.version() == 1
    world.clock.monotonic += int(LEASE * NS)
    assert world.version() == 2
