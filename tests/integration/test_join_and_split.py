"""Tables are joined and split while processes write to them at random: the targets are what the sources were, row by
row, and nothing is wrong with the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from support import online
from support.databases import Engine, rows, run
from support.victims import Victim, Work

WRITERS = 2
# Rows that contradict each other and that no writer knows of: what the writers make of others is left to chance.
UNTOUCHED = [(-1, -100, "Trondheim", 0), (-2, -100, "Trnodheim", 0)]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = Engine(str(tmp_path / "db"))
    yield made
    made.close()


def under_traffic(engine: Engine, work: Work, statement: str) -> Counter[str]:
    """Change the schema while processes write; what has come of their transactions, by SQLSTATE."""
    writers = [Victim(work, engine.path, number) for number in range(WRITERS)]
    for writer in writers:
        writer.wait()
    run(engine.connect(), statement)
    happened: Counter[str] = Counter()
    for writer in writers:
        happened.update(cast("dict[str, int]", writer.join()))
    assert set(happened) <= {"", "40001", "40P01", "42P01", "42703", "42601", "23505"}, happened
    assert happened[""] > 0
    return happened


def split(engine: Engine, into: str, work: Work, repair: str) -> tuple[list[online.Row], dict[object, object]]:
    """The rows of the source as the switch has met them, and S; R has been compared with them."""
    one = engine.connect()
    run(one, "CREATE TABLE t (id int PRIMARY KEY, zip int, city text, v int)", "CREATE INDEX t_zip ON t (zip)")
    filled = [(i, i // 2 % online.VALUES, f"city {i // 2 % online.VALUES}", 0) for i in range(online.KEYS)]
    filled = [(i, zip_ - (zip_ - i) % 2, f"city {zip_ - (zip_ - i) % 2}", v) for i, zip_, _, v in filled]
    one.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", filled)
    for row in UNTOUCHED if repair == "newest" else ():
        one.execute("INSERT INTO t VALUES (?, ?, ?, ?)", row)
    name = into.rpartition(" ")[2]
    under_traffic(
        engine, work, f"ALTER TABLE t SPLIT {into} (id, zip, v), s (zip, city) ON (zip) WITH (repair = '{repair}')"
    )
    switch = online.switched(engine.database, "s")
    source = online.rows_at(engine.database, "t", switch - 1)
    assert online.rows_at(engine.database, name, switch) == [(i, z, v) for i, z, _, v in source]
    assert rows(one, "CHECK DATABASE") == []
    return source, dict(cast("list[tuple[object, object]]", online.rows_at(engine.database, "s", switch)))


@pytest.mark.parametrize("into", ["INTO t", "INTO r", "IN PLACE INTO t", "IN PLACE INTO r"])
def test_split(engine: Engine, into: str) -> None:
    source, s = split(engine, into, online.agreeing_traffic, "fail")
    said = {(zip_, city) for _, zip_, city, _ in source if zip_ is not None}
    assert set(s.items()) == said


def test_split_of_rows_that_contradict_each_other(engine: Engine) -> None:
    source, s = split(engine, "INTO r", online.split_traffic, "newest")
    assert s.keys() == {zip_ for _, zip_, _, _ in source if zip_ is not None}
    assert s[-100] == "Trnodheim"


@pytest.mark.parametrize("unique", [True, False])
def test_join(engine: Engine, unique: bool) -> None:
    one = engine.connect()
    run(one, "CREATE TABLE r (id int PRIMARY KEY, x int, v int)")
    run(one, f"CREATE TABLE s (id int PRIMARY KEY, x int {'UNIQUE' if unique else ''}, w int)")
    one.executemany("INSERT INTO r VALUES (?, ?, 0)", [(i, i % online.VALUES) for i in range(online.KEYS)])
    one.executemany("INSERT INTO s VALUES (?, ?, 0)", [(i, i + 3) for i in range(online.VALUES)])
    statement = "ALTER TABLE r JOIN s USING (x) INTO t (r.id AS r, s.id AS s, x, v, w)"
    under_traffic(engine, online.join_traffic, statement)
    switch = online.switched(engine.database, "t")
    r, s = (online.rows_at(engine.database, name, switch - 1) for name in ("r", "s"))
    assert Counter(rows(one, "SELECT r, s, x, v, w FROM t")) == online.joined(r, s)
    assert rows(one, "CHECK DATABASE") == []
