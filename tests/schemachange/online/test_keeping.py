"""Materialized views follow the log in a process that is killed at any write, and in two at once."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest

import instar
from instar import errors
from instar.catalog.catalog import Catalog
from instar.catalog.descriptors import View
from instar.catalog.ids import IdAllocator
from instar.catalog.sequences import Sequences
from instar.pipeline.facts import StoreFacts
from instar.schemachange.jobs import Jobs
from instar.schemachange.launching import WorkerLauncher
from instar.schemachange.online import keeping
from instar.schemachange.online.followed import Followed, encode_followed, followed, followed_key
from instar.schemachange.online.keeping import ViewKeeper
from instar.schemachange.online.redo import putting
from instar.schemachange.online.retention import kept
from instar.schemachange.pulse import Interrupted
from instar.sql.checks import compile_check
from instar.store.engine import Store
from support.databases import Engine, rows, run
from support.mortal import Killed, Mortal

QUERY = "SELECT g, count(*), sum(n) FROM t GROUP BY g"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A database whose views only these tests keep up."""
    monkeypatch.setattr(WorkerLauncher, "ensure", lambda launcher: True)
    made = Engine(str(tmp_path_factory.mktemp("kept") / "db"))
    yield made
    made.close()


@pytest.fixture
def connection(engine: Engine) -> instar.Connection:
    made = engine.connect()
    run(
        made,
        "CREATE TABLE t (id int PRIMARY KEY, g int, n int)",
        "INSERT INTO t SELECT i, i % 3, i FROM generate_series(1, 10) i",
        f"CREATE MATERIALIZED VIEW v WITH (refresh = 'log') AS {QUERY}",
    )
    return made


def keeper(engine: Engine, store: Store) -> ViewKeeper:
    """As a process that knows nothing makes it."""
    clock = engine.database.clock
    jobs = Jobs(store, clock)
    facts = StoreFacts(store, jobs, Sequences(store))
    return ViewKeeper(store, Catalog(store, clock), IdAllocator(store), jobs, facts, clock, compile_check)


def check(connection: instar.Connection) -> None:
    assert sorted(rows(connection, "SELECT * FROM v")) == sorted(rows(connection, QUERY))
    assert rows(connection, "CHECK DATABASE") == []


def write(connection: instar.Connection, chance: random.Random, commits: int) -> None:
    for _ in range(commits):
        key, group, number = chance.randint(1, 20), chance.randint(0, 3), chance.randint(-5, 5)
        connection.execute(
            chance.choice(
                (
                    f"DELETE FROM t WHERE id = {key}",
                    f"INSERT INTO t VALUES ({key}, {group}, {number}) ON CONFLICT (id) DO UPDATE SET n = {number}",
                    f"UPDATE t SET g = {group} WHERE id < {key}",
                )
            )
        )


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_every_write(
    engine: Engine, connection: instar.Connection, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    monkeypatch.setattr(keeping, "COMMIT_PUTS", 1)  # a commit here for each of the source
    chance = random.Random(3)
    store = engine.database.store
    for lives in range(1, 8):
        write(connection, chance, 16)
        with pytest.raises(Killed):
            keeper(engine, Mortal(store, lives, after=after)).turn()
        keeper(engine, store).turn()
        check(connection)


def test_a_write_that_fails_is_done_again_once(engine: Engine, connection: instar.Connection) -> None:
    """The process goes on, and what it has applied, and could not store, it has not applied."""
    store = engine.database.store
    full = Mortal(store, 1, after=False, fails=lambda: errors.error(errors.DISK_FULL, "no space left"))
    found = keeper(engine, full)
    run(connection, "INSERT INTO t VALUES (50, 1, 7)", "DELETE FROM t WHERE id = 3")
    with pytest.raises(errors.Error, match="no space left"):
        found.turn()
    assert found.turn()
    check(connection)


def test_views_do_not_wait_for_one_that_fails(
    engine: Engine, connection: instar.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(connection, "CREATE MATERIALIZED VIEW w WITH (refresh = 'log') AS SELECT n, count(*) FROM t GROUP BY n")
    found = keeper(engine, engine.database.store)
    follow, failing = keeping.FollowingView.follow, True

    def fails(kept: keeping.FollowingView, *arguments: Any) -> bool:
        if failing and kept.view.name == "v":
            raise errors.error(errors.DATA_CORRUPTED, "this one")
        return follow(kept, *arguments)

    monkeypatch.setattr(keeping.FollowingView, "follow", fails)
    run(connection, "INSERT INTO t VALUES (50, 1, 77)")
    with pytest.raises(errors.Error, match="this one"):
        found.turn()
    assert rows(connection, "SELECT * FROM w WHERE n = 77") == [(77, 1)]
    failing = False
    assert found.turn()
    check(connection)


def test_two_at_once(engine: Engine, connection: instar.Connection) -> None:
    """Whoever comes second is refused, and begins anew."""
    store = engine.database.store
    one, two = keeper(engine, store), keeper(engine, store)
    chance = random.Random(4)
    for _ in range(10):
        write(connection, chance, 3)
        one.turn()
        write(connection, chance, 3)
        while two.turn():
            pass
        while one.turn():
            pass
        check(connection)


def test_rows_are_met_anew_when_another_process_has_followed(engine: Engine, connection: instar.Connection) -> None:
    """What a process knows of the view's rows is as old as its own last commit."""
    joined = "SELECT r.id, r.a, s.k, s.b FROM r JOIN s ON r.k = s.k"
    run(
        connection,
        "CREATE TABLE r (id int PRIMARY KEY, k int, a int)",
        "CREATE TABLE s (k int PRIMARY KEY, b int)",
        "INSERT INTO r VALUES (1, 1, 0)",
        "INSERT INTO s VALUES (1, 0)",
        f"CREATE MATERIALIZED VIEW w WITH (refresh = 'log') AS {joined}",
    )
    store = engine.database.store
    one, two = keeper(engine, store), keeper(engine, store)
    run(connection, "INSERT INTO r VALUES (2, 1, 0)")  # the row beside it is met, and not written
    assert one.turn()
    run(connection, "UPDATE r SET a = 5 WHERE id = 1")
    assert two.turn()
    run(connection, "UPDATE s SET b = 9")
    assert one.turn()
    assert sorted(rows(connection, "SELECT * FROM w")) == [(1, 5, 1, 9), (2, 0, 1, 9)]
    assert rows(connection, "CHECK DATABASE") == []


def test_nothing_to_do_is_nothing_done(engine: Engine, connection: instar.Connection) -> None:
    store = engine.database.store
    found = keeper(engine, store)
    run(connection, "INSERT INTO t VALUES (50, 1, 1)", "CREATE TABLE other (a int)", "INSERT INTO other VALUES (1)")
    assert found.turn()
    with store.read() as reader:
        newest = reader.timestamp
    run(connection, "INSERT INTO other VALUES (2)")
    assert not found.turn()
    assert not found.turn()
    with store.read() as reader:
        assert reader.timestamp > newest
        assert list(kept(reader, engine.database.catalog.at(reader))) <= [newest]


def test_the_position_moves_on_with_what_is_none_of_its_business(
    engine: Engine, connection: instar.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "_IDLE_TIMESTAMPS", 0)
    store = engine.database.store
    run(connection, "CREATE TABLE other (a int)", "INSERT INTO other VALUES (1)")
    with store.read() as reader:
        newest = reader.timestamp
    assert keeper(engine, store).turn()
    with store.read() as reader:
        assert list(kept(reader, engine.database.catalog.at(reader))) == [newest]


def test_a_check_knows_how_far_a_view_has_to_have_come(engine: Engine, connection: instar.Connection) -> None:
    store = engine.database.store

    def record(key: bytes, value: bytes | None) -> list[tuple[str, str]]:
        store.background([putting([(key, value)])])
        return [(table, element) for table, element, *_ in rows(connection, "CHECK DATABASE")]

    with store.read() as reader:
        view = engine.database.catalog.at(reader).lookup("public", "v")
        assert isinstance(view, View)
        assert view.materialized is not None
        known = followed(reader, view)
        assert known is not None
    key = followed_key(view.materialized.storage)
    assert record(key, None) == [("v", "position")]
    assert record(key, encode_followed(Followed(1 << 62))) == [("v", "position")]
    assert record(key, encode_followed(known)) == []
    assert record(followed_key(9999), encode_followed(known)) == [("", "position")]
    assert record(followed_key(9999), None) == []


def test_enough_is_after_one_commit_and_the_other_views_come_first_then(
    engine: Engine, connection: instar.Connection
) -> None:
    run(connection, "CREATE MATERIALIZED VIEW w WITH (refresh = 'log') AS SELECT n, count(*) FROM t GROUP BY n")
    found = keeper(engine, engine.database.store)
    while found.turn():
        pass
    run(connection, "INSERT INTO t VALUES (50, 7, 70)", "INSERT INTO t VALUES (51, 7, 70)")
    asked: list[int] = []

    def enough() -> bool:
        asked.append(1)
        return len(asked) > 1  # after the first commit for the first view

    counts = "SELECT (SELECT count FROM v WHERE g = 7), (SELECT count FROM w WHERE n = 70)"
    seen = []
    for _ in range(4):
        asked.clear()
        assert found.turn(enough)
        seen += rows(connection, counts)
    assert seen[0] in ((1, None), (None, 1))
    assert seen[1:] == [(1, 1), (2, 1) if seen[0] == (1, None) else (1, 2), (2, 2)]
    check(connection)


def test_a_view_that_is_far_behind_holds_up_no_other(
    engine: Engine, connection: instar.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(connection, "CREATE MATERIALIZED VIEW w WITH (refresh = 'log') AS SELECT n, count(*) FROM t GROUP BY n")
    found = keeper(engine, engine.database.store)
    while found.turn():
        pass
    for number in range(50, 55):
        run(connection, f"INSERT INTO t VALUES ({number}, 7, 70)")
    counts = "SELECT (SELECT count FROM v WHERE g = 7), (SELECT count FROM w WHERE n = 70)"
    monkeypatch.setattr(keeping, "_SLICE_SECONDS", 0.0)
    seen = []
    while found.turn():
        seen += rows(connection, counts)
    assert seen == [(number, number) for number in range(1, 6)]
    assert not found.turn()  # nothing is left, and nothing is looked for
    check(connection)
    # Each has a slice of its own: here of four looks at the clock.
    monkeypatch.setattr(keeping, "_SLICE_SECONDS", 0.004)
    monkeypatch.setattr(keeping, "monotonic", itertools.count(0.0, 0.001).__next__)
    for number in range(60, 70):
        run(connection, f"INSERT INTO t VALUES ({number}, 7, 70)")
    assert found.turn()
    ((one, other),) = rows(connection, counts)
    assert 5 < one == other < 15


def test_what_is_interrupted_in_the_middle_of_a_commit_is_applied_once(
    engine: Engine, connection: instar.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few groups it touches."""
    monkeypatch.setattr(keeping, "_BEAT_LOOK_UPS", 4)
    found = keeper(engine, engine.database.store)
    run(connection, "INSERT INTO t SELECT i, i % 5, i FROM generate_series(100, 200) i")
    beats = 0

    def beat() -> None:
        nonlocal beats
        beats += 1
        if beats == 20:
            raise Interrupted

    with pytest.raises(Interrupted):
        found.turn(beat=beat)
    assert found.turn(beat=beat)
    assert beats > 40
    check(connection)
