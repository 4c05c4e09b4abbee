"""Tables that are joined or split, transactions on them, and the job that does it.

T (id, zip, city, v) has a row per id; R (id, zip, v) and S (zip, city) are what it is split into, and what is joined to
it. There are two values of zip for five rows, as in the paper (50,000 rows, 20,000 values). A dummy table has those
updates that are not to be on the sources.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import instar

_SPLIT = "ALTER TABLE t SPLIT INTO r (id, zip, v), s (zip, city) ON (zip) WITH ({options})"
_JOIN = "ALTER TABLE r JOIN s USING (zip) INTO t (id, zip, city, v) WITH ({options})"
_STATEMENTS = {"split": _SPLIT, "join": _JOIN}
UPDATES = 10  # of a transaction
# Of ten updates on the sources one is of S's part. In T it is made to all rows of a zip at once, so that they agree,
# and no record of S comes into doubt.
S_UPDATES = 0.1
ROWS_PER_ZIP = 2.5
# So many rows of a source are changed by an update on it, by the transformation.
CHANGES = {"split": 1 - S_UPDATES + S_UPDATES * ROWS_PER_ZIP, "join": 1.0}

_CREATE = {
    "dummy": "CREATE TABLE dummy (id bigint PRIMARY KEY, v bigint NOT NULL)",
    "t": "CREATE TABLE t (id bigint PRIMARY KEY, zip bigint NOT NULL, city text NOT NULL, v bigint NOT NULL)",
    "r": "CREATE TABLE r (id bigint PRIMARY KEY, zip bigint NOT NULL, v bigint NOT NULL)",
    "s": "CREATE TABLE s (zip bigint PRIMARY KEY, city text NOT NULL)",
}
_INDEXES = {"t": "CREATE INDEX t_zip ON t (zip)", "r": "CREATE INDEX r_zip ON r (zip)"}
_FILL = 25_000
_DOUBTFUL = 100  # values of zip that are updated at once: clients wait for the rows
# Often enough for what takes seconds; each look is work beside which clients are measured.
_LOOK_SECONDS = 0.2
_PATIENCE_SECONDS = 1800.0
_RETRIED = ("40001", "40P01")
_GONE = ("42P01", "42703")


def zips(rows: int) -> int:
    """How many values of zip so many rows have."""
    return max(int(rows / ROWS_PER_ZIP), 1)


def selects(rows: int) -> dict[str, tuple[str, int]]:
    """What each table is filled by, with x for a number from 0, and how many rows that is."""
    zip_ = f"x % {zips(rows)}"
    return {
        "dummy": ("x, 0", rows),
        "t": (f"x, {zip_}, 'city ' || ({zip_}), 0", rows),
        "r": (f"x, {zip_}, 0", rows),
        "s": ("x, 'city ' || x", zips(rows)),
    }


def creations(table: str) -> list[str]:
    """The statements that make a table and its index, which are PostgreSQL's too."""
    return [_CREATE[table], *([_INDEXES[table]] if table in _INDEXES else [])]


def fill(connection: instar.Connection, table: str, rows: int) -> None:
    """Make and fill one of the tables, in autocommit."""
    for statement in creations(table):
        connection.execute(statement)
    values, count = selects(rows)[table]
    for first in range(0, count, _FILL):
        last = min(first + _FILL, count) - 1
        connection.execute(f"INSERT INTO {table} SELECT {values} FROM generate_series({first}, {last}) AS numbers (x)")


def make_doubtful(connection: instar.Connection, rows: int, records: int) -> None:
    """Update the S-part of the rows of so many values of zip, if there are as many: of the first row of each, and by
    another transaction of the others, so that they agree with it. A record of S that several rows contribute to is in
    doubt then."""
    last = min(records, zips(rows))
    for first in range(0, last, _DOUBTFUL):
        values = first, min(first + _DOUBTFUL, last)
        connection.execute("UPDATE t SET city = city || '!' WHERE id >= ? AND id < ?", values)
        connection.execute(
            "UPDATE t SET city = one.city FROM t AS one WHERE one.id = t.zip AND t.zip >= ? AND t.zip < ?", values
        )


def statement(transformation: str, *, pause_rows: int = 100, priority: int = 0) -> str:
    """The statement that splits or joins."""
    return _STATEMENTS[transformation].format(options=f"pause_rows = {pause_rows}, priority = {priority}")


def sources(transformation: str) -> tuple[str, ...]:
    """The tables that a split or a join is of."""
    return ("t",) if transformation == "split" else ("r", "s")


class Transactions:
    """Transactions of ten updates each, `share` of which are on the sources of a split or join, the others on the dummy
    table. Once the sources are gone all are there."""

    def __init__(self, transformation: str, share: float, path: Path, rows: int, number: int) -> None:
        self._connection = instar.connect(path, synchronous=None, autocommit=True)
        self._splits = transformation == "split"
        self._share = share
        self._rows = rows
        self._random = random.Random(number)

    def draw(self) -> bool:
        """As in `clients.Operations`."""
        return False

    def run(self, query: bool) -> None:
        """As in `clients.Operations`."""
        execute = self._connection.execute
        while True:
            try:
                execute("BEGIN")
                for _ in range(UPDATES):
                    execute(*self._update())
                execute("COMMIT")
                return
            except instar.Error as error:
                self._connection.rollback()
                if error.sqlstate in _GONE:
                    self._share = 0.0
                elif error.sqlstate not in _RETRIED:
                    raise

    def _update(self) -> tuple[str, tuple[object, ...]]:
        below = self._random.randrange
        if self._random.random() >= self._share:
            return "UPDATE dummy SET v = ? WHERE id = ?", (below(1_000_000), below(self._rows))
        if self._random.random() < S_UPDATES:
            table = "t" if self._splits else "s"
            return f"UPDATE {table} SET city = ? WHERE zip = ?", (f"city {below(1_000_000)}", below(zips(self._rows)))
        table = "t" if self._splits else "r"
        return f"UPDATE {table} SET v = ? WHERE id = ?", (below(1_000_000), below(self._rows))


def is_propagating(state: str, reason: str) -> bool:
    """Whether the image of a job has come to its end, by what its row says."""
    return state == "waiting" or reason.startswith("cycle")


class Running:
    """A join or split that is under way as a job of the worker."""

    def __init__(
        self, connection: instar.Connection, transformation: str, *, pause_rows: int = 100, priority: int = 0
    ) -> None:
        self._connection = connection
        connection.execute("SET schema_change_mode = async")
        try:
            connection.execute(statement(transformation, pause_rows=pause_rows, priority=priority))
        finally:
            connection.execute("SET schema_change_mode = wait")
        self.id = int(connection.execute("SELECT max(id) FROM instar.jobs").fetchall()[0][0])

    def look(self) -> tuple[str, str]:
        """State and reason. RuntimeError if it has failed."""
        text = "SELECT state, reason FROM instar.jobs WHERE id = ?"
        state, reason = self._connection.execute(text, (self.id,)).fetchall()[0]
        if state == "failed":
            raise RuntimeError(f"the job has failed: {reason}")
        return state, reason or ""

    def until(self, is_there: Callable[[str, str], bool], seconds: float = _PATIENCE_SECONDS) -> bool:
        """Wait until it is, by state and reason, or for so long; whether it is."""
        begin = time.monotonic()
        while not is_there(*self.look()):
            if time.monotonic() - begin > seconds:
                return False
            time.sleep(_LOOK_SECONDS)
        return True

    def until_propagating(self) -> None:
        """Wait for the end of the image."""
        if not self.until(is_propagating):
            raise RuntimeError(f"no log is propagated after {_PATIENCE_SECONDS:.0f} s")

    def until_ended(self) -> None:
        """Wait for the switch."""
        if not self.until(lambda state, _: state == "succeeded"):
            raise RuntimeError(f"no switch after {_PATIENCE_SECONDS:.0f} s: {self.look()}")

    def steer(self, text: str) -> None:
        """PAUSE JOB and the like: `text` has braces for the job."""
        self._connection.execute(text.format(self.id))

    def cancel(self) -> None:
        """Take all of it back, and wait until it is."""
        self.steer("CANCEL JOB {}")
        self.until(lambda state, _: state == "cancelled")
