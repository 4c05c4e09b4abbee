"""Migration on write beside migration on read (thesis §3.2.1): how soon rows are in the newest layout, at what cost.

A column is added to a table, and then a client looks rows up, one by one, and updates one in ten; keys are drawn from
all, or four in five of them from a twentieth. After each tenth of that it is counted which share of the rows lies in
the newest layout, and a scan of the table is timed. The two policies take turns at the same keys.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import NamedTuple

import instar
from benchmarks.harness import Figure, Options
from benchmarks.tables import fill_instar, open_instar
from instar.database import Database
from instar.store.engine import ROW_HEADER, prefix_end, rowset_prefix

TENTHS = 10
# Operations per row of the table, over the whole run.
OPERATIONS = 1.0
UPDATES = 10  # one operation in so many
HOT_ROWS, HOT_SHARE = 20, 0.8  # one row in so many gets such a share of the operations
# A read may take so many times as long as by the other policy: what migrates a row takes the general way.
DEARER = 12.0

POLICIES = ("write", "read")


class Course(NamedTuple):
    """What one run has come to: the share migrated after each tenth, a look-up's seconds, a scan's at the end."""

    migrated: list[float]
    lookup: float
    scan: float


def run(options: Options) -> Iterator[Figure]:
    rows = options.size(100_000, 20_000)
    for access in ("uniform", "hot"):
        courses = {policy: _course(options, rows, policy, access) for policy in POLICIES}
        write, read = courses["write"], courses["read"]
        for tenth in (2, 5, TENTHS):
            ours, peer = (100 * course.migrated[tenth - 1] for course in (read, write))
            name = f"migrated after {tenth}/10, {access}"
            yield Figure(name, ours, "%", None, "", f"on read {ours:.0f} %", f"on write {peer:.0f} %")
        both = f"{read.lookup * 1e6:.1f} us", f"on write {write.lookup * 1e6:.1f} us"
        yield Figure(f"look-up, {access}", read.lookup / write.lookup, "x", DEARER, "<=", *both)
        both = f"{read.scan * 1e3:.1f} ms", f"on write {write.scan * 1e3:.1f} ms"
        yield Figure(f"scan at the end, {access}", read.scan / write.scan, "x", None, "", *both)


def _course(options: Options, rows: int, policy: str, access: str) -> Course:
    path = options.directory / f"migration-{access}-{policy}.instar"
    connection = open_instar(path)
    fill_instar(connection, rows)
    connection.execute("ALTER TABLE t ADD COLUMN extra integer DEFAULT 5")
    connection.execute(f"ALTER TABLE t SET (migration = '{policy}')")
    database = Database.open(str(path), synchronous="off", create=False)
    draw = random.Random(5)
    migrated: list[float] = []
    looking = 0.0
    count = int(rows * OPERATIONS / TENTHS)
    for _ in range(TENTHS):
        for number in range(count):
            key = _key(draw, rows, access)
            if number % UPDATES == 0:
                connection.execute("UPDATE t SET c = c + 1 WHERE id = ?", (key,))
                continue
            begun = time.perf_counter()
            connection.execute("SELECT a, g, extra, note FROM t WHERE id = ?", (key,)).fetchone()
            looking += time.perf_counter() - begun
        migrated.append(_share(database))
    scan = min(_scan(connection) for _ in range(options.rounds))
    database.release()
    connection.close()
    return Course(migrated, looking / (TENTHS * (count - len(range(0, count, UPDATES)))), scan)


def _key(draw: random.Random, rows: int, access: str) -> int:
    if access == "hot" and draw.random() < HOT_SHARE:
        return draw.randrange(rows // HOT_ROWS)
    return draw.randrange(rows)


def _share(database: Database) -> float:
    """Of the rows, those in the newest layout."""
    with database.store.read() as reader:
        (table,) = database.catalog.at(reader).tables()
        start = rowset_prefix(table.rowset)
        tags = [ROW_HEADER.unpack_from(value)[2] for _, value in reader.scan(start, prefix_end(start))]
    return sum(tag >> 8 == table.layout.id for tag in tags) / len(tags)


def _scan(connection: instar.Connection) -> float:
    begun = time.perf_counter()
    connection.execute("SELECT g, count(*), sum(extra) FROM t GROUP BY g").fetchall()
    return time.perf_counter() - begun
