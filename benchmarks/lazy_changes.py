"""What a client keeps of its throughput when its table is changed: once (the thesis, §4.2.2), or every few milliseconds
(§4.2.3). Both beside a change that blocks: it copies the table while the client waits.
"""

from __future__ import annotations

import functools
import math
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path

import instar
from benchmarks import starting
from benchmarks.harness import Figure, Options, paired
from benchmarks.pictures import curves
from benchmarks.tables import open_instar
from instar.catalog.descriptors import Table
from instar.store.engine import ROW_HEADER, prefix_end, rowset_prefix

# Of its table, what the paper had migrated after five minutes.
PAPER_MIGRATED = {"uniform": 0.94, "hotspot": 0.52}
# After so many updates per row a uniform client has met 94 % of the rows: the paper's five minutes, at any speed.
UPDATES_PER_ROW = -math.log(1 - 0.94)
HOT_ROWS, HOT_SHARE = 0.05, 0.8
COLUMNS = tuple(f"c{number}" for number in range(10))
QUIET_SECONDS = 10.0
WINDOW_SECONDS = 0.25

INTERVALS_MS = (10, 50, 100)
KEPT = 0.9
TIMES_BLOCKING = 40.0
_TURN_SECONDS = 0.7
_FILL = 50_000

Draw = Callable[[], int]


def run(options: Options) -> Iterator[Figure]:
    yield from _one_change(options)
    yield from _many_changes(options)


def _keys(rows: int, *, hot: bool, seed: int = 1) -> Draw:
    """Keys of a table: uniform, or most of them in a contiguous twentieth."""
    draw = random.Random(seed)
    if not hot:
        return lambda: draw.randrange(rows)
    first, size = rows // 3, max(int(rows * HOT_ROWS), 1)
    return lambda: first + draw.randrange(size) if draw.random() < HOT_SHARE else draw.randrange(rows)


def _fill(connection: instar.Connection, columns: tuple[str, ...], rows: int) -> None:
    defined = ", ".join(f"{column} bigint NOT NULL" for column in columns)
    connection.execute(f"CREATE TABLE t (id bigint PRIMARY KEY, {defined})")
    values = ", ".join("g" for _ in columns)
    for first in range(0, rows, _FILL):
        last = min(first + _FILL, rows) - 1
        connection.execute(f"INSERT INTO t SELECT g, {values} FROM generate_series(?, ?) AS s (g)", (first, last))


# --- one change (§4.2.2) ---------------------------------------------------------------------------------------------


@dataclass
class Course:
    """How a client fared: operations per window, and when the change was (seconds)."""

    begun: float = field(default_factory=time.perf_counter)
    done: list[int] = field(default_factory=list)
    changed: float = 0.0

    def count(self) -> None:
        window = int((time.perf_counter() - self.begun) / WINDOW_SECONDS)
        self.done += [0] * (window + 1 - len(self.done))
        self.done[window] += 1

    def rates(self) -> list[float]:
        """Operations per second in each whole window."""
        return [count / WINDOW_SECONDS for count in self.done[:-1]]

    def before(self) -> float:
        return _mean(self.rates()[: int(self.changed / WINDOW_SECONDS)])

    def after(self) -> list[float]:
        return self.rates()[int(self.changed / WINDOW_SECONDS) :]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _one_change(options: Options) -> Iterator[Figure]:
    """One client that updates all ten columns of a row in a closed loop."""
    rows = options.size(250_000, 20_000)
    courses: dict[str, Course] = {}
    for case in ("no change", "uniform", "hotspot", "hotspot, compacted", "blocking"):
        with open_instar(options.directory / f"change-{case.replace(', ', '-')}") as connection:
            _fill(connection, COLUMNS, rows)
            course = courses[case] = _updates(connection, case, rows, options)
            yield from _of_one_change(connection, case, course, rows)
    rates = {case: course.rates() for case, course in courses.items()}
    curves(options, "layouts-one-change", "updates per second", rates, WINDOW_SECONDS)


def _updates(connection: instar.Connection, case: str, rows: int, options: Options) -> Course:
    quiet = min(QUIET_SECONDS, options.lasting(60.0, 5.0) / 4)
    until = quiet + options.lasting(290.0, 5.0)
    draw = _keys(rows, hot=case.startswith("hotspot"))
    text = f"UPDATE t SET {', '.join(f'{column} = ?' for column in COLUMNS[:-1])}, {{last}} = ? WHERE id = ?"
    statement, left = text.format(last=COLUMNS[-1]), math.inf
    course = Course()
    while left > 0 and (now := time.perf_counter() - course.begun) < until:
        if not course.changed and now >= quiet:
            if case != "no change":
                _change(connection, blocking=case == "blocking")
                statement = text.format(last="added")
            if case.endswith("compacted"):
                starting.CONTEXT.Process(target=_compact, args=(connection.database.path,), daemon=True).start()
            course.changed, left = now, UPDATES_PER_ROW * rows
        key = draw()
        connection.execute(statement, (*range(key, key + len(COLUMNS)), key))
        course.count()
        left -= 1
    return course


def _change(connection: instar.Connection, *, blocking: bool) -> None:
    """Another column in the place of the last: ten columns before, ten after."""
    if blocking:
        kept = ", ".join(("id", *COLUMNS[:-1]))
        connection.execute(
            f"CREATE TABLE copied (id bigint PRIMARY KEY, {_defined(COLUMNS[:-1])}, added bigint NOT NULL)"
        )
        _copy(connection, "copied", f"{kept}, 0")
        connection.execute("DROP TABLE t")
        connection.execute("ALTER TABLE copied RENAME TO t")
        return
    connection.execute(f"ALTER TABLE t ADD COLUMN added bigint NOT NULL DEFAULT 0, DROP COLUMN {COLUMNS[-1]}")


def _compact(path: Path) -> None:
    """A process beside the client's."""
    with closing(instar.connect(path, synchronous=None, autocommit=True)) as connection:
        store = connection.database.store
        store.collect(store.now(), lambda record: [])  # so that compaction may take what the column had
        connection.execute("SET schema_change_mode = async")
        connection.execute("COMPACT TABLE t")


def _defined(columns: tuple[str, ...]) -> str:
    return ", ".join(f"{column} bigint NOT NULL" for column in columns)


def _copy(connection: instar.Connection, target: str, columns: str) -> None:
    """All rows of t, as fast as they are loaded."""
    names = [column[0] for column in connection.execute(f"SELECT * FROM {target} LIMIT 0").description or ()]
    rows = connection.execute(f"SELECT {columns} FROM t").fetch_arrow_table()
    connection.insert_arrow(target, rows.rename_columns(names))


def _migrated(connection: instar.Connection) -> float:
    """The share of rows that are stored in the table's layout of now."""
    database = connection.database
    newest = rows = 0
    with database.store.read() as reader:
        table = database.catalog.at(reader).lookup(None, "t")
        assert isinstance(table, Table)
        prefix = rowset_prefix(table.rowset)
        for _, value in reader.scan(prefix, prefix_end(prefix)):
            rows += 1
            newest += ROW_HEADER.unpack_from(value)[2] >> 8 == table.layout.id
    return newest / rows


def _of_one_change(connection: instar.Connection, case: str, course: Course, rows: int) -> Iterator[Figure]:
    after, before = course.after(), course.before()
    name = f"updates of ten columns, {rows:,} rows, {case}"
    yield Figure(
        f"{name}: throughput after beside before", _mean(after) / before if before else 0.0, "x", None, ">=",
        f"{_mean(after):,.0f}/s", f"before {before:,.0f}/s",
    )  # fmt: skip
    stalled = sum(1 for rate in after if not rate) * WINDOW_SECONDS
    yield Figure(f"{name}: seconds without any", stalled, "s", None if case == "blocking" else 0, "<=")
    if case in PAPER_MIGRATED or case.endswith("compacted"):
        updates = sum(after) * WINDOW_SECONDS / rows
        paper = PAPER_MIGRATED.get(case)
        beside = f"paper {paper:.0%} after five minutes" if paper else "paper has none"
        ours = f"{updates:.1f} updates per row"
        yield Figure(f"{name}: rows migrated", 100 * _migrated(connection), "%", None, ">=", ours, beside)


# --- many changes (§4.2.3) -------------------------------------------------------------------------------------------

ADD, DROP = "ALTER TABLE t ADD COLUMN extra bigint DEFAULT 1", "ALTER TABLE t DROP COLUMN extra"


def _many_changes(options: Options) -> Iterator[Figure]:
    """70 % select, 20 % insert, 10 % update, beside a change every few milliseconds by another process; in turns with
    the same of a table that never changes: a machine that becomes slower by itself is on both sides."""
    rows = options.size(10**6, 20_000)
    seconds = options.lasting(30.0, 2.0)
    turn = min(_TURN_SECONDS, seconds / 4)
    for interval in INTERVALS_MS[:1] if options.quick else INTERVALS_MS:
        with (
            _frequent(options, rows, seconds, "quiet") as (quiet, _, _),
            _frequent(options, rows, seconds, "changed") as (client, _, path),
            _changing(path, interval / 1000) as changes,
        ):
            beside = functools.partial(changes.beside, client, turn)
            pair = paired(beside, functools.partial(quiet.run, turn), round(seconds / turn))
            made = changes.per_second()
        with _frequent(options, rows, seconds, "blocking") as (client, connection, _):
            blocking = client.run(seconds, _blocking(connection, interval / 1000))
        name = f"a change every {interval} ms, {rows:,} rows"
        yield Figure(
            f"{name}: throughput kept", pair.ratio, "x", KEPT, ">=", f"{pair.ours:,.0f}/s, {made:.0f} changes/s",
            f"undisturbed {pair.peer:,.0f}/s, +-{2 * pair.error:.3f}",
        )  # fmt: skip
        paper = ", paper about 40 x" if interval == INTERVALS_MS[0] else ""
        yield Figure(
            f"{name}: beside blocking changes", pair.ours / blocking, "x",
            TIMES_BLOCKING if interval == INTERVALS_MS[0] and not options.quick else None, ">=",
            f"{pair.ours:,.0f}/s", f"blocking {blocking:,.0f}/s{paper}",
        )  # fmt: skip


@contextmanager
def _frequent(
    options: Options, rows: int, seconds: float, name: str
) -> Iterator[tuple[_Client, instar.Connection, Path]]:
    """A client that is warm, of a table of its own: the client's inserts make a table slower in each run."""
    path = options.directory / name
    with closing(open_instar(path)) as connection:
        _fill(connection, ("a",), rows)
        client = _Client(connection, rows)
        client.run(seconds / 4)
        yield client, connection, path
    shutil.rmtree(path)


class _Client:
    """A closed loop of transactions of one statement."""

    def __init__(self, connection: instar.Connection, rows: int) -> None:
        self._execute = connection.execute
        self._keys = _keys(rows, hot=True)
        self._draw = random.Random(2)
        self._next = rows

    def run(self, seconds: float, before_each: Callable[[], object] = lambda: None) -> float:
        """Transactions per second that were committed."""
        begin = time.perf_counter()
        until, done = begin + seconds, 0
        while time.perf_counter() < until:
            before_each()
            self._transact()
            done += 1
        return done / (time.perf_counter() - begin)

    def _transact(self) -> None:
        kind = self._draw.random()
        if kind < 0.7:
            self._execute("SELECT id, a FROM t WHERE id = ?", (self._keys(),)).fetchone()
        elif kind < 0.9:
            self._next += 1
            self._execute("INSERT INTO t (id, a) VALUES (?, ?)", (self._next, self._next))
        else:
            self._execute("UPDATE t SET a = ? WHERE id = ?", (self._draw.randrange(10**9), self._keys()))


class _Changes:
    """The parent's side of a process that changes the table, when it is let go."""

    def __init__(self, path: Path, interval: float) -> None:
        self._pipe, theirs = starting.CONTEXT.Pipe()
        self._going, self._ending = starting.CONTEXT.Event(), starting.CONTEXT.Event()
        self._process = starting.CONTEXT.Process(
            target=_change_on, args=(path, interval, theirs, self._going, self._ending), daemon=True
        )
        self._process.start()
        theirs.close()
        self._pipe.recv()
        self._seconds = 0.0  # in which it was let go

    def beside(self, client: _Client, seconds: float) -> float:
        """The client's transactions per second beside the changes."""
        begun = time.perf_counter()
        self._going.set()
        try:
            return client.run(seconds)
        finally:
            self._going.clear()
            self._seconds += time.perf_counter() - begun

    def per_second(self) -> float:
        """How many changes it has made; it makes no more."""
        self._end()
        made: int = self._pipe.recv()
        return made / self._seconds

    def _end(self) -> None:
        self._ending.set()
        self._going.set()

    def close(self) -> None:
        """End the process."""
        self._end()
        self._process.join()


@contextmanager
def _changing(path: Path, interval: float) -> Iterator[_Changes]:
    """The process, ended whatever happens."""
    changes = _Changes(path, interval)
    try:
        yield changes
    finally:
        changes.close()


def _change_on(path: Path, interval: float, pipe: Connection, going: Event, ending: Event) -> None:
    """ADD and DROP COLUMN in turn, at fixed times while it may."""
    with closing(instar.connect(path, synchronous=None, autocommit=True)) as connection:
        pipe.send(None)
        made, due = 0, 0.0
        while not ending.is_set():
            if not going.is_set():
                going.wait()
                due = time.monotonic()
                continue
            connection.execute(DROP if made % 2 else ADD)
            made += 1
            due = max(due + interval, time.monotonic() - interval)
            time.sleep(max(due - time.monotonic(), 0))
        pipe.send(made)


def _blocking(connection: instar.Connection, interval: float) -> Callable[[], None]:
    """What a client meets where a change copies the table while all wait: it is copied whenever a change is due. One
    transaction comes through between two of them, however long they take."""
    due = time.perf_counter() + interval

    def change_if_due() -> None:
        nonlocal due
        if time.perf_counter() >= due:
            connection.execute("CREATE TABLE copied (id bigint PRIMARY KEY, a bigint NOT NULL)")
            _copy(connection, "copied", "id, a")
            connection.execute("DROP TABLE t")
            connection.execute("ALTER TABLE copied RENAME TO t")
            due = max(due + interval, time.perf_counter())

    return change_if_due
