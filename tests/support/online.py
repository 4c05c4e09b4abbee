"""Traffic on the sources of an online join or split, in processes of its own, and what the targets are to be: read from
the sources as they were just before the switch."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable

import instar
from instar.catalog.descriptors import Table
from instar.catalog.layouts import Layouts
from instar.catalog.system import descriptor_key
from instar.database import Database
from instar.store.engine import ROW_HEADER, prefix_end, rowset_prefix
from instar.store.versions import iterate_rows
from instar.tables.rowset import TableReader

Row = tuple[object, ...]
Say = Callable[[object], None]

# Of keys, and of join or split values: few enough for writers to meet.
KEYS, VALUES = 400, 25
# Transactions that a process has open.
OPEN = 6


def until_gone(path: str, number: int, say: Say, statements: Callable[[random.Random], list[str]]) -> None:
    """Execute statements, those of a list as one transaction, until the tables that they name are gone; say that it
    goes once the first are committed, then what has come of them, by SQLSTATE ("" if they were committed)."""
    connection = instar.connect(path, synchronous=None, autocommit=True)
    draw = random.Random(number)
    happened: Counter[str] = Counter()
    while not happened["42P01"] and not happened["42703"]:
        work = statements(draw)
        try:
            if len(work) > 1:
                connection.execute("BEGIN")
            for text in work:
                connection.execute(text)
            if len(work) > 1:
                connection.execute("COMMIT")
            happened[""] += 1
            if happened[""] == 1:
                say("goes")
        except instar.Error as failed:
            happened[failed.sqlstate or "?"] += 1
            connection.rollback()
    say(dict(happened))
    connection.close()


def split_traffic(path: str, number: int, say: Say) -> None:
    """On t (id, zip, city, v), which is to be split."""

    def statements(draw: random.Random) -> list[str]:
        return [_of_t(draw) for _ in range(draw.choice((1, 1, 1, 3)))]

    until_gone(path, number, say, statements)


def _of_t(draw: random.Random) -> str:
    key, zip_, version = draw.randrange(KEYS), draw.randrange(VALUES), draw.randrange(1000)
    return draw.choice((
        f"INSERT INTO t SELECT {key}, {zip_}, max(city), {version} FROM t WHERE zip = {zip_} ON CONFLICT DO NOTHING",
        f"INSERT INTO t VALUES ({key}, {zip_}, 'city {version}', 0) ON CONFLICT (id) DO UPDATE SET v = {version}",
        f"DELETE FROM t WHERE id = {key}",
        f"UPDATE t SET v = {version} WHERE id = {key}",
        f"UPDATE t SET city = 'city {version}' WHERE zip = {zip_}",
        f"UPDATE t SET city = 'city {version}' WHERE id = {key} AND zip IS NOT NULL",
        f"UPDATE t SET zip = {zip_}, city = 'city {version}' WHERE id = {key}",
        f"UPDATE t SET zip = NULL, city = NULL WHERE id = {key}",
        f"UPDATE t SET id = {KEYS + key} WHERE id = {key}",
        f"DELETE FROM t WHERE id = {KEYS + key}",
    ))  # fmt: skip


def agreeing_traffic(path: str, number: int, say: Say) -> None:
    """The same, but after each statement the rows of one split value agree: a process has values and keys of its own,
    those of its parity."""

    def statements(draw: random.Random) -> list[str]:
        return [_of_t_agreeing(draw, number % 2) for _ in range(draw.choice((1, 1, 1, 3)))]

    until_gone(path, number, say, statements)


def _of_t_agreeing(draw: random.Random, parity: int) -> str:
    key, zip_, version = (draw.randrange(parity, limit, 2) for limit in (KEYS, VALUES, 1000))
    city = f"coalesce((SELECT max(city) FROM t WHERE zip = {zip_}), 'city {version}')"
    return draw.choice((
        f"INSERT INTO t VALUES ({key}, {zip_}, {city}, {version}) ON CONFLICT DO NOTHING",
        f"DELETE FROM t WHERE id = {key}",
        f"UPDATE t SET v = {version} WHERE id = {key}",
        f"UPDATE t SET city = 'city {version}' WHERE zip = {zip_}",
        f"UPDATE t SET zip = {zip_}, city = {city} WHERE id = {key}",
        f"UPDATE t SET zip = NULL, city = NULL WHERE id = {key}",
        f"UPDATE t SET id = {KEYS + key} WHERE id = {key}",
        f"DELETE FROM t WHERE id = {KEYS + key}",
    ))  # fmt: skip


def join_traffic(path: str, number: int, say: Say) -> None:
    """On r (id, x, v) and s (id, x, w), which are to be joined. A transaction may change both."""

    def statements(draw: random.Random) -> list[str]:
        return [_of_r_or_s(draw) for _ in range(draw.choice((1, 1, 1, 3)))]

    until_gone(path, number, say, statements)


def _of_r_or_s(draw: random.Random) -> str:
    table, keys = draw.choice((("r", KEYS), ("s", VALUES)))
    column = "v" if table == "r" else "w"
    key, value, version = draw.randrange(keys), draw.randrange(VALUES), draw.randrange(1000)
    return draw.choice((
        f"INSERT INTO {table} VALUES ({key}, {value}, {version}) ON CONFLICT DO NOTHING",
        f"DELETE FROM {table} WHERE id = {key}",
        f"UPDATE {table} SET {column} = {version} WHERE id = {key}",
        f"UPDATE {table} SET x = {value} WHERE id = {key}",
        f"UPDATE {table} SET x = NULL WHERE id = {key}",
        f"UPDATE {table} SET id = {keys + key} WHERE id = {key}",
        f"UPDATE {table} SET id = {key} WHERE id = {keys + key}",
    ))  # fmt: skip


COUNTING = "+ 1"


def staying(path: str, number: int, say: Say, deed: Callable[[random.Random], str]) -> None:
    """Transactions that stay open for a while, some at a time, until the tables that they name are gone: those that are
    open then commit all the same, if they can. One at least can: the first is open from the beginning on, has locks on
    its rows, and moves none. Says at last how many rows were counted up by those that have committed, and how many of
    these came after the tables were gone. A deed counts up the rows that it changes if it says so."""
    connections = [instar.connect(path, synchronous=None, autocommit=True) for _ in range(OPEN)]
    for connection in connections:  # one of them would wait for another for ever
        connection.execute("SET lock_timeout = '2ms'")
    draw, counted = random.Random(number), dict.fromkeys(range(OPEN), -1)  # -1: not open
    total = late = 0
    gone = False

    def do(place: int, text: str) -> None:
        changed = connections[place].execute(text).rowcount
        counted[place] = max(counted[place], 0) + (changed if COUNTING in text else 0)

    while counted[0] < 0:
        text = deed(draw)
        if COUNTING in text:
            connections[0].execute("BEGIN ISOLATION LEVEL READ COMMITTED")
            try:
                do(0, text)
            except instar.Error as failed:
                if failed.sqlstate != "55P03":  # the other process is there
                    raise
                connections[0].rollback()
    say("goes")
    while not gone or max(counted.values()) >= 0:
        time.sleep(0.004)  # many rows of the targets may come of one
        place = draw.randrange(OPEN)
        connection = connections[place]
        try:
            if counted[place] < 0 and not gone:
                connection.execute(f"BEGIN ISOLATION LEVEL {draw.choice(('REPEATABLE READ', 'READ COMMITTED'))}")
                for _ in range(draw.choice((1, 1, 2))):
                    do(place, deed(draw))
            elif counted[place] >= 0 and (place or gone):
                if draw.random() < 0.3:
                    connection.execute("SELECT 1")
                connection.execute("COMMIT")
                total, late = total + counted[place], late + gone
                counted[place] = -1
        except instar.Error as failed:
            gone = gone or failed.sqlstate == "42P01"
            if failed.sqlstate not in ("42P01", "40001", "40P01", "55P03", "23505"):
                raise
            connection.rollback()
            counted[place] = -1
    say((total, late))
    for connection in connections:
        connection.close()


def staying_on_r_and_s(path: str, number: int, say: Say) -> None:
    """Such transactions on r (id, x, v) and s (id, x, w)."""

    def deed(draw: random.Random) -> str:
        key, other = draw.randrange(KEYS), draw.randrange(VALUES)
        return draw.choice((
            f"UPDATE r SET v = v + 1 WHERE id = {key}",
            f"UPDATE s SET w = w + 1 WHERE id = {other}",
            f"UPDATE r SET x = {draw.randrange(2 * VALUES)} WHERE id = {key}",
            f"UPDATE s SET x = {draw.randrange(2 * VALUES)} WHERE id = {other}",
        ))  # fmt: skip

    staying(path, number, say, deed)


def staying_on_t(path: str, number: int, say: Say) -> None:
    """Such transactions on t (id, zip, city, v), in which rows of one zip agree: a process has zips of its own."""

    def deed(draw: random.Random) -> str:
        key, zip_ = (draw.randrange(number % 2, limit, 2) for limit in (KEYS, VALUES))
        return draw.choice((
            f"UPDATE t SET v = v + 1 WHERE id = {key}",
            f"UPDATE t SET city = 'city {draw.randrange(1000)}' WHERE zip = {zip_}",
            f"UPDATE t SET zip = {zip_}, city = (SELECT max(city) FROM t WHERE zip = {zip_}) WHERE id = {key}",
        ))  # fmt: skip

    staying(path, number, say, deed)


def switched(database: Database, target: str) -> int:
    """The timestamp of the switch that made the table: the commit of its newest version."""
    with database.store.read() as reader:
        found = database.catalog.at(reader).lookup("public", target)
        assert isinstance(found, Table)
        stored = reader.get(descriptor_key(found.id))
    assert stored is not None
    timestamp: int = ROW_HEADER.unpack_from(stored)[0]
    return timestamp


def rows_at(database: Database, name: str, timestamp: int) -> list[Row]:
    """The rows of a table as it was then, with all its columns that are not hidden."""
    table = database.catalog.past(timestamp).lookup("public", name)
    assert isinstance(table, Table)
    shown = [place for place, column in enumerate(table.columns) if not column.hidden]
    read = TableReader(table, shown, Layouts(database.store))
    prefix = rowset_prefix(table.rowset)
    batches = iterate_rows(database.store, prefix, prefix_end(prefix), timestamp, lambda: 1000)
    return [read.decode(value) for _, values in batches for value in values]


def joined(r: list[Row], s: list[Row]) -> Counter[Row]:
    """The full outer join of rows (id, x, v) and (id, x, w) on x, as rows (id, id, x, v, w)."""
    found: list[Row] = []
    for key, x, v in r:
        matches = [(other, w) for other, y, w in s if x is not None and x == y] or [(None, None)]
        found += [(key, other, x, v, w) for other, w in matches]
    matched = {x for _, x, _ in r if x is not None}
    return Counter([*found, *((None, other, y, None, w) for other, y, w in s if y not in matched)])
