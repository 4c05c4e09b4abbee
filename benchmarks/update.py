"""Single-row updates of a column that no index has: in autocommit, without and with fsync; a hundred to a transaction.

With fsync there are two peers, which lose as little as Instar. `sqlite3` as it comes, with a rollback journal, bears
the target. In WAL mode, which waits for the disk once per commit where LMDB has to wait twice, it is reported.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import instar
from benchmarks.harness import Figure, Options, paired, rate, versus
from benchmarks.tables import fill_instar, fill_sqlite, open_instar, open_sqlite

STATEMENT = "UPDATE t SET b = ? WHERE id = ?"
COUNT = 10_000  # updates of a round; a tenth with fsync
_TARGET = 0.7
_TOGETHER = 100  # updates of a transaction


def run(options: Options) -> Iterator[Figure]:
    rows = options.size(1_000_000, 100_000)
    ours = _filled(options, "off", rows)
    yield _measure(options, ours, "off", "off", COUNT, rows, _TARGET)
    yield _measure(options, ours, "off", "off", COUNT, rows, None, together=_TOGETHER)
    ours.close()
    ours = _filled(options, "full", rows)
    yield _measure(options, ours, "full", None, COUNT // 10, rows, _TARGET)
    yield _measure(options, ours, "full", "full", COUNT // 10, rows, None)
    ours.close()


def _filled(options: Options, synchronous: str, rows: int) -> instar.Connection:
    connection = open_instar(options.directory / f"update-{synchronous}.instar", synchronous)
    fill_instar(connection, rows)
    return connection


def _measure(
    options: Options,
    ours: instar.Connection,
    synchronous: str,
    wal: str | None,
    count: int,
    rows: int,
    target: float | None,
    together: int = 0,
) -> Figure:
    """`wal`: the peer's `synchronous` in WAL mode; None: as it comes. `together`: updates of a transaction; 0: each is
    one."""
    peer = open_sqlite(options.directory / f"update-{synchronous}-{wal}-{together}.sqlite", wal)
    fill_sqlite(peer, rows)
    os.sync()  # else the disk is busy with the load while updates are measured
    draw = random.Random(2)

    def update(connection: object, pairs: list[tuple[int, int]]) -> None:
        execute = connection.execute  # type: ignore[attr-defined] # both have it
        for number, changed in enumerate(pairs):
            if together and number % together == 0:
                execute("BEGIN")
            execute(STATEMENT, changed)
            if together and (number + 1) % together == 0:
                execute("COMMIT")

    def measured(connection: object) -> float:
        pairs = [(draw.randrange(10**6), draw.randrange(rows)) for _ in range(count)]
        return rate(lambda: update(connection, pairs), count)

    pair = paired(lambda: measured(ours), lambda: measured(peer), options.rounds)
    peer.close()
    beside = "sqlite3 as it comes" if wal is None else "sqlite3 in WAL mode"
    many = f", {together} to a transaction" if together else ""
    return versus(f"single-row update{many}, synchronous {synchronous}, beside {beside}", pair, target)
