"""Joins and splits of small tables with operations at every point of the job: each operation at each point, and pairs
of them at pairs of points. The targets are the operator of what the sources were."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

import pytest

from instar import errors
from instar.schemachange.online.following import Following
from instar.schemachange.online.tail import Tail
from instar.store.engine import View
from support import online
from support.databases import Engine, rows, run
from support.steps import hook_jobs


class Case(NamedTuple):
    """A change, what there is before it, operations on its sources, and what its targets must be."""

    setup: tuple[str, ...]
    statement: str
    operations: tuple[str, ...]
    check: Callable[[Engine], None]


def check_split(engine: Engine) -> None:
    switch = online.switched(engine.database, "s")
    source = online.rows_at(engine.database, "t", switch - 1)
    assert online.rows_at(engine.database, "r", switch) == [(i, z, v) for i, z, _, v in source]
    said = {(zip_, city) for _, zip_, city, _ in source if zip_ is not None}
    assert set(online.rows_at(engine.database, "s", switch)) == said


def check_join(engine: Engine) -> None:
    switch = online.switched(engine.database, "t")
    r, s = (online.rows_at(engine.database, name, switch - 1) for name in ("r", "s"))
    assert Counter(online.rows_at(engine.database, "t", switch)) == online.joined(r, s)


SPLIT = Case(
    (
        "CREATE TABLE t (id int PRIMARY KEY, zip int, city text, v int)",
        "INSERT INTO t VALUES (1, 1, 'a', 0), (2, 1, 'a', 0), (3, 2, 'b', 0), (4, NULL, NULL, 0)",
    ),
    "ALTER TABLE t SPLIT INTO r (id, zip, v), s (zip, city) ON (zip)",
    (
        "INSERT INTO t VALUES (5, 1, (SELECT max(city) FROM t WHERE zip = 1), 0)",
        "INSERT INTO t VALUES (6, 3, 'c', 0)",
        "DELETE FROM t WHERE id = 1",
        "DELETE FROM t WHERE zip = 2",
        "UPDATE t SET city = city || '!' WHERE zip = 1",
        "UPDATE t SET v = v + 1",
        "UPDATE t SET zip = 2, city = coalesce((SELECT max(city) FROM t WHERE zip = 2), 'z') WHERE id = 2",
        "UPDATE t SET zip = 4, city = 'd' WHERE id = 4",
        "UPDATE t SET zip = NULL, city = NULL WHERE id = 3",
        "UPDATE t SET id = id + 10 WHERE id < 10",
        "BEGIN; DELETE FROM t WHERE id = 1; INSERT INTO t VALUES (1, 5, 'e', 0); COMMIT",
    ),
    check_split,
)

_OF_BOTH = (
    "INSERT INTO r VALUES (5, 1, 0)",
    "INSERT INTO s VALUES (25, 4, 0)",
    "DELETE FROM r WHERE id = 1",
    "DELETE FROM s WHERE id = 21",
    "UPDATE r SET v = v + 1",
    "UPDATE s SET w = w + 1",
    "UPDATE r SET x = 3 WHERE id < 3",
    "UPDATE s SET x = NULL WHERE id = 21",
    "UPDATE r SET id = id + 10 WHERE id < 10",
    "UPDATE s SET id = id + 10 WHERE id < 30",
    "BEGIN; UPDATE r SET x = 2 WHERE x = 1; UPDATE s SET x = NULL WHERE x = 2; COMMIT",
    "BEGIN; UPDATE s SET x = 100 + x; UPDATE s SET x = 104 - x; COMMIT",  # all change places
    "BEGIN; DELETE FROM r WHERE id = 1; INSERT INTO r VALUES (1, 2, 7); COMMIT",
)


def joining(unique: str) -> Case:
    return Case(
        (
            "CREATE TABLE r (id int PRIMARY KEY, x int, v int)",
            f"CREATE TABLE s (id int PRIMARY KEY, x int {unique}, w int)",
            "INSERT INTO r VALUES (1, 1, 0), (2, 1, 0), (3, 9, 0), (4, NULL, 0)",
            "INSERT INTO s VALUES (21, 1, 0), (22, 2, 0), (23, 3, 0), (24, NULL, 0)",
        ),
        "ALTER TABLE r JOIN s USING (x) INTO t (r.id AS r, s.id AS s, x, v, w)",
        _OF_BOTH,
        check_join,
    )


IN_PLACE = SPLIT._replace(statement=SPLIT.statement.replace("INTO", "IN PLACE INTO"))
CASES = {"split": SPLIT, "split in place": IN_PLACE, "one-to-many": joining("UNIQUE"), "many-to-many": joining("")}

# "late": the tail is computed, and the commit of the switch not judged yet; "caught up": a cycle has ended.
POINTS = ("stage 2", "work", "read", "put", "caught up", "stage 3", "late")
NTH = (1, 2, 3)


def through(case: Case, deeds: Iterable[tuple[tuple[str, int], str]]) -> None:
    """Make the change, with operations at points of the job: the n-th time that one is passed."""
    todo: dict[tuple[str, int], list[str]] = {}
    for point, text in deeds:
        todo.setdefault(point, []).append(text)
    engine = Engine(":memory:")
    one, two = engine.connect(), engine.connect()
    run(one, *case.setup)
    passed: Counter[str] = Counter()

    def at(point: str) -> None:
        passed[point] += 1
        for text in todo.pop((point, passed[point]), ()):
            try:
                run(two, *text.split("; "))
            except errors.Error as refused:  # of a pair, the second may meet what the first has inserted
                if refused.sqlstate != errors.UNIQUE_VIOLATION:
                    raise
                two.rollback()

    with pytest.MonkeyPatch.context() as patched:
        hook_jobs(patched, at)
        told, made = Following._tell, Tail.__init__

        def tell(self: Following, *, checking: bool = False) -> None:
            told(self, checking=checking)
            at("caught up")  # before the checks of a split, and after them

        def init(self: Tail, following: Following, view: View, *, refused: int) -> None:
            made(self, following, view, refused=refused)
            at("late")

        patched.setattr(Following, "_tell", tell)
        patched.setattr(Tail, "__init__", init)
        one.execute(case.statement)
    case.check(engine)
    assert rows(one, "CHECK DATABASE") == []
    engine.close()


PLACES = [("stage 2", 1), ("stage 3", 1), *itertools.product(("work", "read", "put", "caught up", "late"), NTH)]


@pytest.mark.parametrize("point", PLACES, ids=lambda point: f"{point[0]} {point[1]}")
@pytest.mark.parametrize("name", CASES)
def test_each_operation_at_each_point(name: str, point: tuple[str, int]) -> None:
    for text in CASES[name].operations:
        through(CASES[name], [(point, text)])


@pytest.mark.parametrize("name", CASES)
def test_pairs_of_operations(name: str) -> None:
    case, draw = CASES[name], random.Random(name)
    pairs = list(itertools.product(case.operations, case.operations))
    for first, second in draw.sample(pairs, 60):
        places = draw.choices(PLACES, k=2)
        through(case, sorted(zip(places, (first, second), strict=True), key=lambda deed: PLACES.index(deed[0])))
