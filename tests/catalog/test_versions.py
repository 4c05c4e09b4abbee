"""The metadata cache: versions apart from payloads, eviction and reload, names that several bore, collection."""

from __future__ import annotations

import gc
import os
import random
import threading
from pathlib import Path

import msgspec
import pytest

from catalog.catalogs import Model, change_at_random, require_like
from instar import errors
from instar.catalog import system
from instar.catalog.catalog import Catalog, CatalogSnapshot
from instar.catalog.descriptors import Column, Table
from instar.catalog.versions import COLLECT_SECONDS, ContainerRow
from instar.store import open_store
from instar.store.engine import Commit
from instar.types import BIGINT
from support.world import World

NOTHING = 0  # bytes: whatever is read is put out at once


def other_catalog(world: World, cache_bytes: int = 1 << 20) -> Catalog:
    """The catalog of another process, say."""
    return Catalog(world.store, world.clock, cache_bytes=cache_bytes)


def newest(world: World, catalog: Catalog) -> CatalogSnapshot:
    with world.store.read() as reader:
        return catalog.at(reader)


def drop(world: World, table: Table) -> None:
    change = world.change()
    change.drop(table)
    world.commit(change=change)


def touch(world: World, table: Table) -> Table:
    """One more version of a table, and so of the catalog."""
    return world.alter(table, next_id=table.next_id + 1)


def container(catalog: Catalog, label: object) -> ContainerRow | None:
    """What the cache has of an object (an id) or a name."""
    found = [row for row in catalog.cache.rows() if (row.name if row.kind == "name" else row.id) == label]
    return found[0] if found else None


def cut_log(world: World) -> None:
    with world.store.read() as reader:
        upto = reader.timestamp
    world.store.collect(upto, lambda record: [])


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids of descriptors, in the order in which they are decoded."""
    ids = []
    decode = system.decode_descriptor

    def counting(body: bytes) -> object:
        found = decode(body)
        ids.append(found.id)
        return found

    monkeypatch.setattr(system, "decode_descriptor", counting)
    return ids


def test_another_processs_change_is_a_new_version_never_in_place() -> None:
    world = World()
    table = world.create_table("t")
    other = other_catalog(world)
    before = newest(world, other)
    seen = before.table(table.id)
    world.alter(table, name="u")
    after = newest(world, other)
    assert after.table(table.id).name == "u"
    assert before.table(table.id) is seen
    assert (before.lookup(None, "t"), before.lookup(None, "u")) == (seen, None)
    assert (after.lookup(None, "t"), after.lookup(None, "u")) == (None, after.by_id(table.id))
    found = container(other, table.id)
    assert found is not None
    assert (found.versions, found.payloads, found.name, found.kind) == (2, 2, "u", "table")


def test_a_version_costs_what_is_used_of_it(decoded: list[int]) -> None:
    """Neither the change nor what another process does under it first reads or decodes what is not used."""
    world = World()
    tables = [world.create_table(f"t{number}") for number in range(200)]
    other = other_catalog(world)
    newest(world, other).lookup(None, "t7")
    decoded.clear()
    created = world.create_table("new")
    assert set(decoded) == {created.id}
    decoded.clear()
    after = newest(world, other)
    assert after.lookup(None, "t7") == tables[7]
    assert decoded == []  # proved by its row's timestamp
    assert after.lookup(None, "new") == created
    assert decoded == [created.id]
    reads = []
    read = world.store.read
    world.store.read = lambda: reads.append(1) or read()  # type: ignore[method-assign, func-returns-value] # counted
    assert newest(world, other).lookup(None, "t7") == tables[7]
    assert len(reads) == 1  # to learn the version: all else is at hand


def test_a_name_that_two_tables_bore() -> None:
    world = World()
    first = world.create_table("t", indexes=[("i", (2,), False)])
    then = world.catalog()
    drop(world, first)
    between = world.catalog()
    second = world.create_table("t")
    now = world.catalog()
    for _ in range(2):
        assert (then.lookup(None, "t"), between.lookup(None, "t"), now.lookup(None, "t")) == (first, None, second)
        assert (then.relation("i"), now.relation("i")) == (first, None)
        assert (then.lookup(None, "i"), then.relation("t_pkey")) == (None, first)
        assert (then.by_id(second.id), now.by_id(first.id)) == (None, None)
    found = container(world.catalog_cache, "t")
    assert found is not None
    assert (found.kind, found.id, found.versions, found.payloads) == ("name", second.id, 4, 0)


def test_put_out_and_read_again() -> None:
    world = World()
    table = world.create_table("t")
    versions = [table, *(table := world.alter(table, name=f"t{number}") for number in range(5))]
    cache = other_catalog(world, NOTHING)
    now = newest(world, cache)
    for _ in range(3):
        assert now.table(table.id) == versions[-1]
        gc.collect()
        assert [row.payloads for row in cache.cache.rows()] == [0]
        assert now.lookup(None, "no such table") is None
        assert container(cache, table.id) is None
    with world.store.read() as reader:
        stamps = [found for found, _ in system_history(reader, table.id)]
    for stamp, version in zip(stamps, versions, strict=True):
        assert cache.past(stamp).by_id(table.id) == version
        assert cache.past(stamp).lookup(None, version.name) == version
        assert cache.past(stamp - 1).by_id(table.id) == (
            None if version is versions[0] else versions[version.version - 2]
        )


def system_history(reader: object, table: int) -> list[tuple[int, bytes | None]]:
    """(timestamp, stored value) of all versions of a descriptor, the oldest first."""
    from instar.store.versions import version_chain

    chain = list(version_chain(reader, system.descriptor_key(table), 0))  # type: ignore[arg-type] # a reader
    return [(since, stored) for since, stored in reversed(chain) if stored is not None]


def test_a_reload_brings_the_metadata_of_all_versions_and_one_payload() -> None:
    world = World()
    table = world.create_table("t")
    then = world.now()
    for number in range(4):
        table = world.alter(table, name=f"t{number}")
    other = other_catalog(world)
    assert other.past(then).table(table.id).name == "t"
    found = container(other, table.id)
    assert found is not None
    assert (found.versions, found.payloads) == (5, 1)
    assert newest(world, other).table(table.id) == table
    found = container(other, table.id)
    assert found is not None
    assert (found.versions, found.payloads) == (5, 2)


def test_who_still_uses_a_descriptor_gets_the_same_one_back() -> None:
    """Plans rest on it: `is` tells versions apart, however often the payload was put out."""
    world = World()
    table = world.create_table("t")
    others = [world.create_table(f"o{number}") for number in range(3)]
    catalog = other_catalog(world, 4000)
    used = newest(world, catalog).table(table.id)
    for _ in range(5):
        for other in others:
            assert newest(world, catalog).by_id(other.id) == other
        found = container(catalog, table.id)
        assert found is not None
        assert found.payloads == 0
        others[0] = touch(world, others[0])  # a catalog version
        assert newest(world, catalog).table(table.id) is used
    assert next(newest(world, catalog).tables()) is used


def test_the_cache_keeps_to_its_limit() -> None:
    world = World()
    tables = [world.create_table(f"t{number}") for number in range(100)]
    limit = 60_000
    catalog = other_catalog(world, limit)
    draw = random.Random(1)
    for _ in range(300):
        table = draw.choice(tables)
        assert newest(world, catalog).lookup(None, table.name) == table
        assert catalog.cache.size <= limit
        assert sum(row.bytes for row in catalog.cache.rows()) == catalog.cache.size
    assert sum(row.payloads for row in catalog.cache.rows()) > 0
    for found, table in zip(newest(world, catalog).tables(), tables, strict=True):
        assert found == table
        assert catalog.cache.size <= limit


def test_what_is_used_stays() -> None:
    """Payloads go in the order in which they were last asked for."""
    world = World()
    tables = [world.create_table(f"t{number}") for number in range(30)]
    catalog = other_catalog(world, 60_000)
    for table in tables[1:]:
        world.clock.advance(0.001)
        for used in (tables[0], table):
            world.clock.advance(0.001)
            newest(world, catalog).by_id(used.id)
    first, second, last = (container(catalog, table.id) for table in (tables[0], tables[1], tables[-1]))
    assert first is not None
    assert (first.payloads, 0 if second is None else second.payloads) == (1, 0)
    assert last is not None
    assert first.used_ns == last.used_ns - 1_000_000


def test_collection_keeps_what_somebody_sees() -> None:
    world = World()
    table = world.create_table("t")
    catalog = other_catalog(world)
    held: list[tuple[CatalogSnapshot, Table]] = []
    for number in range(10):
        now = newest(world, catalog)
        assert now.table(table.id) == table
        if number in (2, 6):
            held.append((now, table))
        table = world.alter(table, name=f"t{number}")
    del now
    newest(world, catalog).table(table.id)
    gc.collect()
    assert catalog.cache.collect() > 0
    found = container(catalog, table.id)
    assert found is not None
    assert found.versions == 3  # the newest, and two that are seen
    for snapshot, version in held:
        assert snapshot.by_id(table.id) == version
        assert snapshot.lookup(None, version.name) == version
    held.clear()
    del snapshot
    gc.collect()
    catalog.cache.collect()
    found = container(catalog, table.id)
    assert found is not None
    assert found.versions == 1


def test_what_was_collected_is_read_again_for_a_moment_in_the_past() -> None:
    world = World()
    table = world.create_table("t")
    then = world.now()
    world.alter(table, name="u")
    catalog = other_catalog(world)
    newest(world, catalog).by_id(table.id)
    catalog.cache.collect()
    past = catalog.past(then)
    assert past.by_id(table.id) == table
    assert past.lookup(None, "t") == table
    found = container(catalog, table.id)
    assert found is not None
    assert found.versions == 2
    del past
    gc.collect()
    catalog.cache.collect()
    found = container(catalog, table.id)
    assert found is not None
    assert found.versions == 1


def test_nothing_is_left_of_tables_that_came_and_went() -> None:
    """In the process that dropped them, and in another one that had seen them."""
    world = World()
    other = other_catalog(world)
    keeper = world.create_table("keeper")
    for number in range(20):
        table = world.create_table(f"t{number}", indexes=[(f"i{number}", (2,), False)])
        assert newest(world, other).lookup(None, table.name) == table
        change = world.change()
        change.drop(table)
        world.commit(change=change)
        world.catalog_cache.settle(change.view)
        del change
        keeper = touch(world, keeper)
    for catalog in (world.catalog_cache, other):
        assert newest(world, catalog).by_id(keeper.id) is not None
        gc.collect()
        catalog.cache.collect()
        keeper = touch(world, keeper)
        newest(world, catalog)
        catalog.cache.collect()
        left = [(row.kind, row.name) for row in catalog.cache.rows()]
        assert left in ([("table", "keeper")], [("table", "keeper"), ("name", "keeper")])


def test_what_others_dropped_is_found_out_when_the_log_has_forgotten_it() -> None:
    world = World()
    table = world.create_table("t")
    catalog = other_catalog(world)
    assert newest(world, catalog).lookup(None, "t") == table
    drop(world, table)
    newest(world, catalog)
    world.store.commit(Commit(catalog_version=0, raw=[(b"\x03\x63", b"")]))
    cut_log(world)
    now = newest(world, catalog)
    catalog.cache.collect()
    assert [row.versions for row in catalog.cache.rows()] == [1, 1]  # it is gone, so far somebody sees that
    world.create_table("u")
    del now
    newest(world, catalog)
    gc.collect()
    catalog.cache.collect()
    assert catalog.cache.rows() == []


def test_it_collects_by_itself_every_few_seconds() -> None:
    world = World()
    table = world.create_table("t")
    catalog = world.catalog_cache

    def versions() -> int:
        nonlocal table
        table = touch(world, table)
        newest(world, catalog).by_id(table.id)
        found = container(catalog, table.id)
        assert found is not None
        return found.versions

    counts = [versions() for _ in range(5)]
    assert counts == sorted(set(counts))
    gc.collect()
    world.clock.advance(COLLECT_SECONDS)
    assert versions() < counts[-1]


@pytest.mark.parametrize("limit", [NOTHING, 1 << 20])
def test_below_the_watermark_it_is_too_old_not_wrong(limit: int) -> None:
    """Rule 7. What was put out and cannot be read any more is 72000; what has not changed since is as it was."""
    world = World()
    table, renamed, dropped = (world.create_table(name) for name in ("same", "t", "d"))
    catalog = other_catalog(world, limit)
    old = newest(world, catalog)
    stamp = world.now()
    world.alter(renamed, name="u", primary_key_name="u_pkey")
    drop(world, dropped)
    later = world.create_table("t")
    cut_log(world)
    newest(world, catalog)
    assert old.by_id(table.id) == table
    assert old.lookup(None, "same") == table
    asked = [
        lambda: old.by_id(renamed.id),
        lambda: old.by_id(dropped.id),
        lambda: old.by_id(later.id),
        lambda: old.lookup(None, "t"),
        lambda: old.lookup(None, "u"),
        lambda: old.lookup(None, "d"),
        lambda: old.lookup(None, "never there"),
        lambda: list(old.tables()),
        lambda: catalog.past(stamp),
    ]
    for ask in asked:
        with pytest.raises(errors.Error) as caught:
            ask()
        assert caught.value.sqlstate == "72000"
    now = newest(world, catalog)
    assert (now.lookup(None, "t"), now.lookup(None, "d"), now.by_id(dropped.id)) == (later, None, None)


def test_below_the_watermark_what_is_at_hand_still_serves() -> None:
    world = World()
    table = world.create_table("t")
    catalog = other_catalog(world)
    old = newest(world, catalog)
    assert old.lookup(None, "t") == table
    world.alter(table, name="u")
    assert newest(world, catalog).lookup(None, "u") is not None
    cut_log(world)
    catalog.cache.collect()
    assert old.lookup(None, "t") == table


def test_who_was_idle_for_longer_than_the_log_reaches_back_has_lost_nothing() -> None:
    """A catalog version is read as of the newest moment at which it stood: so what is not there is not there."""
    world = World()
    table = world.create_table("t")
    catalog = other_catalog(world, NOTHING)
    old = newest(world, catalog)
    for _ in range(3):
        world.store.commit(Commit(catalog_version=old.version, raw=[(b"\x03\x63", b"")]))
        cut_log(world)
        assert newest(world, catalog) is old
        assert old.lookup(None, "never there") is None
        assert old.by_id(table.id + 500) is None
        assert list(old.tables()) == [table]
        assert list(old.views()) == []


def test_numbers_and_names_that_nothing_can_have() -> None:
    catalog = World().catalog()
    for number in (0, -1, 1 << 62, 1 << 63, 1 << 80):
        assert catalog.by_id(number) is None
    for name in ("", "x" * 10_000, "a\x00b"):
        assert catalog.lookup(None, name) is None


def test_a_forked_child_goes_on_with_what_is_cached(tmp_path: Path) -> None:
    world = World(open_store(str(tmp_path / "db"), synchronous="off"))
    table = world.create_table("t")
    catalog = other_catalog(world)
    held = newest(world, catalog)
    seen = held.table(table.id)
    with catalog.cache._lock:  # a thread of the parent is in the middle of it
        child = os.fork()
        if child == 0:
            code = 1
            try:
                assert held.table(table.id) is seen
                assert sum(row.bytes for row in catalog.cache.rows()) == catalog.cache.size
                world.catalog_cache = catalog
                world.alter(seen, name="u")
                assert newest(world, catalog).lookup(None, "u") is not None
                assert held.lookup(None, "t") is seen
                catalog.cache.collect()
                assert held.table(table.id) is seen
                code = 0
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert newest(world, catalog).table(table.id).name == "u"
    assert held.table(table.id) is seen
    world.store.close()


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
@pytest.mark.parametrize("limit", [NOTHING, 20_000, 1 << 24])
@pytest.mark.parametrize("seed", range(2))
def test_every_snapshot_repeats_exactly(kind: str, limit: int, seed: int, tmp_path: Path) -> None:
    """A random history of changes by three processes' catalogs, with snapshots of all ages kept open, against a model:
    everything is put out all the time, collection comes at every step, the log is cut now and then."""
    draw = random.Random(f"{kind} {limit} {seed}")
    world = World(open_store(str(tmp_path / "db"), synchronous="off") if kind == "lmdb" else None)
    catalogs = [other_catalog(world, limit) for _ in range(3)]
    model = Model()
    opened: list[tuple[CatalogSnapshot, Model, int]] = []
    history: list[tuple[int, Model]] = []
    for _ in range(60):
        world.catalog_cache = draw.choice(catalogs)
        model = change_at_random(world, draw, model)
        history.append((world.now(), model))
        for found in catalogs:
            if draw.random() < 0.7:
                opened.append((newest(world, found), model, world.now()))
            found.cache.collect()
        if draw.random() < 0.05:
            cut_log(world)
        with world.store.read() as reader:
            watermark = reader.watermark
        moment, then = draw.choice(history)
        if moment >= watermark:
            opened.append((draw.choice(catalogs).past(moment), then, moment))
        draw.shuffle(opened)
        del opened[12:]
        for snapshot, meant, stamp in opened[:4]:
            require_like(snapshot, meant, may_be_gone=stamp < watermark)
    for snapshot, meant, stamp in opened:
        require_like(snapshot, meant, may_be_gone=stamp < watermark)
    world.store.close()


def test_ids_tell_a_column_that_came_back() -> None:
    """A descriptor's parts need no versions of their own: they are its own."""
    world = World()
    table = world.create_table("t")
    then = world.catalog()
    again = Column(id=table.next_id, name="b", type=BIGINT)
    columns = (*table.columns[:2], again)
    layout = msgspec.structs.replace(table.layout, id=2, columns=tuple((found.id, found.type) for found in columns))
    world.alter(table, columns=columns, layout=layout, next_id=table.next_id + 1)
    assert [column.id for column in then.table(table.id).columns] == [1, 2, 3]
    assert [column.id for column in world.catalog().table(table.id).columns] == [1, 2, 200]


@pytest.mark.parametrize("limit", [NOTHING, 5_000, 1 << 20])
def test_threads_share_a_cache(limit: int, tmp_path: Path) -> None:
    """Readers of one cache, while the schema changes, payloads are put out and versions are collected: each sees what
    its snapshot saw."""
    world = World(open_store(str(tmp_path / "db"), synchronous="off"))
    tables = [world.create_table(f"t{number}") for number in range(6)]
    catalog = other_catalog(world, limit)
    failed: list[BaseException] = []
    ended = threading.Event()

    def look(seed: int) -> None:
        draw = random.Random(seed)
        try:
            while not ended.is_set():
                snapshot = newest(world, catalog)
                seen: dict[int, object] = {}
                for _ in range(30):
                    table = draw.choice(tables)
                    found = snapshot.table(table.id)
                    assert seen.setdefault(table.id, found) == found
                    assert snapshot.lookup(None, found.name) == found
                    if draw.random() < 0.1:
                        catalog.cache.collect()
                assert {found.id for found in snapshot.tables()} == {table.id for table in tables}
        except BaseException as problem:  # noqa: BLE001 - the test's thread is to report it
            failed.append(problem)

    threads = [threading.Thread(target=look, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    now = list(tables)
    for number in range(60):
        place = number % len(now)
        now[place] = world.alter(now[place], name=f"n{number}")
    ended.set()
    for thread in threads:
        thread.join()
    assert failed == []
    assert sum(row.bytes for row in catalog.cache.rows()) == catalog.cache.size
    world.store.close()
