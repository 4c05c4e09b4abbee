"""`kill -9` around the switch of a join or split with `strategy = 'commit'`: of whoever changes the schema, in each of
its writes; of a client, in each of its commits that are translated; of whoever removes what the switch leaves behind.

Whoever comes next ends it: what was acknowledged is there, nothing else is, and nothing is left over.
"""

from __future__ import annotations

import functools
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import instar
from instar.dbapi import Connection
from instar.schemachange.jobs import LEASE_SECONDS
from instar.store import open_store
from instar.store.engine import Store
from instar.worker.work import Worker
from integration.test_join_and_split_strategies import (
    JOIN,
    REPEATABLE,
    SPLIT,
    going,
    is_sound,
    switched,
    table,
    until,
)
from support.databases import Engine, rows, run
from support.leftovers import require_no_garbage
from support.victims import Later, Victim, die_in_write, successor

# Rows (2 * value, value, 0) and (2 * value + 1, value, 0) of each value, and one of what they are joined with.
VALUES = 3

Say = Callable[[object], None]


class Change(NamedTuple):
    """A join or split: `target` is there after the switch, `source` is not. `deeds` are what an old transaction does to
    the rows of one value, `before` and `after` what shows them before the switch and after it. `writes`: in how many
    the change is made; `late_writes`: so many take row ids before the first old transaction commits; in `removals` the
    sources are removed."""

    statement: str
    target: str
    source: str
    setup: tuple[str, ...]
    deeds: tuple[str, ...]
    before: str
    after: str
    writes: int
    late_writes: int
    removals: int


CHANGES = {
    "join": Change(
        JOIN.format("commit", "1 min"),
        "j",
        "r",
        (
            "CREATE TABLE r (id int PRIMARY KEY, x int, a int)",
            "CREATE TABLE s (id int PRIMARY KEY, x int UNIQUE, b int)",
            "INSERT INTO r VALUES (0, 0, 0), (1, 0, 0), (2, 1, 0), (3, 1, 0), (4, 2, 0), (5, 2, 0)",
            "INSERT INTO s VALUES (0, 0, 0), (1, 1, 0), (2, 2, 0)",
        ),
        (
            "UPDATE r SET a = 1 WHERE x = {0}",
            "UPDATE s SET b = 1 WHERE id = {0}",
            "DELETE FROM r WHERE id = {0} * 2",
            "INSERT INTO r VALUES ({0} * 2 + 10, {0}, 1)",
        ),
        "SELECT r.id, x, b, a FROM r FULL JOIN s USING (x) ORDER BY x, r.id",
        "SELECT r, x, b, a FROM j ORDER BY x, r",
        16,
        1,
        9,
    ),
    "split": Change(
        SPLIT.format("commit", "1 min"),
        "q",
        "t",
        (
            "CREATE TABLE t (id int PRIMARY KEY, zip int, city int, v int)",
            "INSERT INTO t VALUES (0, 0, 0, 0), (1, 0, 0, 0), (2, 1, 0, 0), (3, 1, 0, 0), (4, 2, 0, 0), (5, 2, 0, 0)",
        ),
        (
            "UPDATE t SET v = 1, city = 1 WHERE zip = {0}",
            "DELETE FROM t WHERE id = {0} * 2",
            "INSERT INTO t VALUES ({0} * 2 + 10, {0}, 1, 1)",
        ),
        "SELECT id, zip, city, v FROM t ORDER BY zip, id",
        "SELECT id, zip, city, v FROM p FULL JOIN q USING (zip) ORDER BY zip, id",
        17,
        0,
        5,
    ),
}


@pytest.fixture(params=list(CHANGES))
def change(request: pytest.FixtureRequest) -> Change:
    return CHANGES[request.param]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = Engine(str(tmp_path / "db"))
    yield made
    made.close()


def deeds(change: Change, value: int) -> list[str]:
    return [REPEATABLE, *(text.format(value) for text in change.deeds)]


def require_done(engine: Engine, change: Change, done: Iterable[int]) -> None:
    """The rows of these values are as old transactions have made them, all others as they were; whichever tables have
    them, the others are gone."""
    one, changed, expected = engine.connect(), set(done), []
    for value in range(VALUES):
        keys = (2 * value + 1, 2 * value + 10) if value in changed else (2 * value, 2 * value + 1)
        expected += [(key, value, int(value in changed), int(value in changed)) for key in keys]
    target = table(engine, change.target)
    assert (target is None) == (table(engine, change.source) is not None)
    assert target is None or target.crossing is None
    assert rows(one, change.before if target is None else change.after) == expected
    assert is_sound(one)


def are_over(engine: Engine) -> bool:
    with engine.database.store.read():
        return all(job.is_finished for job in engine.database.jobs.all())


def change_until(change: Change, path: str, number: int, say: Say) -> None:
    """The change, in a process that dies in its `number`-th write, if there are so many."""
    connection = instar.connect(path, synchronous=None, autocommit=True)
    say("begins")
    if number:
        die_in_write(number, after=False)
    run(connection, change.statement)


# --- whoever changes the schema ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "number"), [(name, number) for name in CHANGES for number in range(1, CHANGES[name].writes + 1)]
)
def test_a_change_is_killed_in_any_write_with_a_transaction_open_across_it(
    engine: Engine, name: str, number: int
) -> None:
    change, old = CHANGES[name], engine.connect()
    run(old, *change.setup, *deeds(change, 0))
    victim = Victim(functools.partial(change_until, change), engine.path, number)
    until(lambda: victim.is_over or table(engine, change.target) is not None)
    after = Victim(successor, engine.path, 1)
    run(old, "COMMIT")
    assert victim.end() == -signal.SIGKILL
    until(lambda: are_over(engine))
    after.kill()
    require_done(engine, change, [0])


def test_a_change_whose_process_is_killed_after_the_switch_is_ended_by_the_next(engine: Engine, change: Change) -> None:
    first, second = engine.connect(), engine.connect()
    run(first, *change.setup, *deeds(change, 0))
    run(second, *deeds(change, 1))
    victim = Victim(functools.partial(change_until, change), engine.path, 0)
    until(lambda: (found := table(engine, change.target)) is not None and found.crossing is not None)
    victim.kill()
    run(first, "COMMIT")
    after = Victim(successor, engine.path, 1)
    after.wait()
    run(second, "COMMIT")
    after.wait()
    after.kill()
    require_done(engine, change, [0, 1])


# --- a client ---------------------------------------------------------------------------------------------------------


def commit_late(change: Change, after: bool, path: str, number: int, say: Say) -> None:
    """A transaction for each value, all begun before the switch. After it they are committed one after the other, and
    each is told; the process dies in the `number`-th write of these commits."""
    connections = [instar.connect(path, synchronous=None, autocommit=True) for _ in range(VALUES)]
    for value, connection in enumerate(connections):
        run(connection, *deeds(change, value))
    say(-1)
    with instar.connect(path, synchronous=None, autocommit=True) as looks:
        while not is_there(looks, change.target):
            time.sleep(0.002)
    die_in_write(number, after=after)
    for value, connection in enumerate(connections):
        run(connection, "COMMIT")
        say(value)


def is_there(connection: Connection, name: str) -> bool:
    found = "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public' AND table_name = ?"
    return rows(connection, found, name) == [(1,)]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("name", "number"),
    [(name, number) for name in CHANGES for number in range(1, VALUES + CHANGES[name].late_writes + 1)],
)
def test_a_client_is_killed_among_its_commits_after_the_switch(
    engine: Engine, name: str, number: int, after: bool
) -> None:
    one, change = engine.connect(), CHANGES[name]
    run(one, *change.setup)
    victim = Victim(functools.partial(commit_late, change, after), engine.path, number)
    victim.wait()
    changing = going(engine, change.statement)
    until(lambda: victim.is_over)
    victim.listen()
    assert victim.end() == -signal.SIGKILL
    changing.end()  # the dead are not waited for
    commits = number - change.late_writes
    assert victim.said == [-1, *range(commits - 1)]
    # The commit that it died right after stands whole, though nobody was told.
    require_done(engine, change, range(commits if after else commits - 1))


# --- whoever removes what is left behind ------------------------------------------------------------------------------


def remove(store: Store) -> None:
    """What the worker does in its own time: forget the past, and with it the old tables."""
    worker = Worker(store, Later(LEASE_SECONDS + 1))
    while worker.collect() | worker.deallocate():
        pass


def remove_until(path: str, number: int, say: Say) -> None:
    """The same in a process that dies in its `number`-th write."""
    store = open_store(path, create=False)
    store.retention_seconds = 0
    die_in_write(number, after=False)
    remove(store)


@pytest.mark.parametrize(
    ("name", "number"), [(name, number) for name in CHANGES for number in range(1, CHANGES[name].removals + 1)]
)
def test_who_removes_the_sources_is_killed_in_any_write(engine: Engine, name: str, number: int) -> None:
    one, old, change = engine.connect(), engine.connect(), CHANGES[name]
    run(one, *change.setup)
    run(old, *deeds(change, 0))
    changing = switched(engine, change.statement, change.target)
    run(old, "COMMIT")
    changing.end()
    time.sleep(0.002)  # the past is older than the millisecond that goes
    victim = Victim(remove_until, engine.path, number)
    assert victim.end() == -signal.SIGKILL
    require_done(engine, change, [0])
    store = engine.database.store
    store.retention_seconds = 0
    remove(store)
    require_done(engine, change, [0])
    with store.read() as reader:
        require_no_garbage(store, engine.database.catalog.at(reader))
