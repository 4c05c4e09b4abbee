"""The experiments of the thesis on lazy schema changes (chapter 4): what it costs that a table has been changed.

§4.2.1 here: six operations on a table of two 8-byte columns, in four states: never changed; two versions, with all rows
migrated to the second; two versions, with all rows still in the first; and compacted. (What the first costs beside an
engine without versions is measured in `versions`.) §4.2.2 and §4.2.3 are in `lazy_changes`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import count, cycle

import instar
from benchmarks import lazy_changes
from benchmarks.harness import Figure, Options, Pair, paired, rate
from benchmarks.tables import open_instar

MIGRATED = 1.02
COMPACTED = 1.01
COUNT = 2_000
# So many times as many rounds as others make: one takes 5 ms, and it is one or two hundredths that are looked for.
_ROUNDS = 5
BLOCK = 1_000
# By how much a second version slows an operation down in the paper, at the least, though all rows are migrated to it.
PAPER_MIGRATED = 1.14
_BATCH = 100_000
# Fewer than a page of the store holds of these tables.
_ROWS_OF_A_PAGE = 40
# Keys that a comparison has to itself, of those behind the rows: more than it inserts.
_NEW_KEYS = 10**7

# State of the table: what is done to a table of columns id and old to bring it there.
STATES = ("never changed", "migrated", "older", "compacted")

Work = Callable[[], float]


def run(options: Options) -> Iterator[Figure]:
    connection = open_instar(options.directory / "layouts.instar")
    rows = options.size(10**6, 50_000)
    for state in STATES:
        _make(connection, _name(state), rows, state)
    rounds = options.rounds if options.quick else _ROUNDS * options.rounds
    for operation, make in OPERATIONS.items():
        for number, state in enumerate(STATES[1:]):
            yield _compared(connection, operation, make, state, rows, rounds, number)
    connection.close()
    yield from lazy_changes.run(options)


def _name(state: str) -> str:
    return state.replace(" ", "_")


def _make(connection: instar.Connection, table: str, rows: int, state: str) -> None:
    """Fill a table and bring it into a state; at the end its columns are id and b."""
    column = "b" if state == "never changed" else "old"
    connection.execute(f"CREATE TABLE {table} (id bigint PRIMARY KEY, {column} bigint NOT NULL)")
    insert = f"INSERT INTO {table} SELECT g, 7 FROM generate_series(?, ?) AS s (g)"
    for first in range(0, rows, _BATCH):
        connection.execute(insert, (first, min(first + _BATCH, rows) - 1))
    if state == "never changed":
        return
    connection.execute(f"ALTER TABLE {table} ADD COLUMN b bigint NOT NULL DEFAULT 7, DROP COLUMN old")
    if state == "migrated":
        for first in range(0, rows, _BATCH):
            connection.execute(f"UPDATE {table} SET b = 7 WHERE id BETWEEN ? AND ?", (first, first + _BATCH - 1))
    store = connection.database.store
    store.collect(store.now(), lambda record: [])  # there is no index whose entries had to go
    if state == "compacted":
        connection.execute(f"COMPACT TABLE {table}")


def _compared(
    connection: instar.Connection,
    operation: str,
    make: Callable[[instar.Connection, str, int, int], Work],
    state: str,
    rows: int,
    rounds: int,
    number: int,
) -> Figure:
    """The time of an operation as a multiple of that on a table that never changed, which is the peer of several
    comparisons: `number` tells them apart, so that each finds keys that no other has inserted or deleted."""
    ours, peer = (make(connection, _name(table), rows, number) for table in (state, STATES[0]))
    pair: Pair = paired(ours, peer, rounds)
    target = {"migrated": MIGRATED, "compacted": COMPACTED}.get(state)
    paper = f", paper at least {PAPER_MIGRATED} x" if state == "migrated" else ""
    beside = f"{STATES[0]} {pair.peer:,.0f}/s, +-{2 * pair.error:.1%}{paper}"
    name = f"{operation}, {'all rows in an older layout' if state == 'older' else state}"
    return Figure(name, 1 / pair.ratio, "x", target, "<=", f"{pair.ours:,.0f}/s", beside)


# --- the six operations ----------------------------------------------------------------------------------------------


def _each(connection: instar.Connection, text: str, parameters: Callable[[], list[tuple[object, ...]]]) -> Work:
    """Operations per second of a statement, with other parameters each time."""
    execute = connection.execute

    def operate() -> float:
        given = parameters()

        def work() -> None:
            for one in given:
                execute(text, one).fetchall()

        return rate(work, len(given))

    return operate


def _random_select(connection: instar.Connection, table: str, rows: int, _number: int) -> Work:
    draw, text = random.Random(1), f"SELECT id, b FROM {table} WHERE id = ?"
    # The table that never changed is the peer of all others, so its pages have been looked at before. So have these.
    for key in range(0, rows, _ROWS_OF_A_PAGE):
        connection.execute(text, (key,)).fetchall()
    return _each(connection, text, lambda: [(draw.randrange(rows),) for _ in range(COUNT)])


def _own_part(rows: int, number: int) -> range:
    """A third of the rows, which no other comparison has met: of those that it has, the never changed table's would be
    in the processor's caches."""
    part = rows // (len(STATES) - 1)
    return range(number * part, (number + 1) * part)


def _sequential_select(connection: instar.Connection, table: str, rows: int, number: int) -> Work:
    keys = cycle(_own_part(rows, number))
    return _each(connection, f"SELECT id, b FROM {table} WHERE id = ?", lambda: [(next(keys),) for _ in range(COUNT)])


def _scan(connection: instar.Connection, table: str, rows: int, _number: int) -> Work:
    """Blocks of a thousand rows, one after the other."""
    text = f"SELECT id, b FROM {table} WHERE id BETWEEN ? AND ?"
    starts = list(range(0, max(rows - BLOCK, 1), BLOCK))[:20]
    return _each(connection, text, lambda: [(start, start + BLOCK - 1) for start in starts])


def _changing(connection: instar.Connection, text: str, numbers: Iterator[int]) -> Work:
    """A statement that changes rows, which is given one number after the other and gives nothing back."""
    execute = connection.execute

    def operate() -> float:
        given = [(next(numbers),) for _ in range(COUNT)]

        def work() -> None:
            for one in given:
                execute(text, one)

        return rate(work, COUNT)

    return operate


def _update(connection: instar.Connection, table: str, rows: int, number: int) -> Work:
    """Each row once, so that a row in an older layout is migrated by it."""
    return _changing(connection, f"UPDATE {table} SET b = b + 1 WHERE id = ?", cycle(_own_part(rows, number)))


def _insert(connection: instar.Connection, table: str, rows: int, number: int) -> Work:
    return _changing(connection, f"INSERT INTO {table} (id, b) VALUES (?, 7)", count(rows + number * _NEW_KEYS))


def _delete(connection: instar.Connection, table: str, rows: int, number: int) -> Work:
    """From the end of a part, which nobody else has met."""
    keys = cycle(reversed(_own_part(rows, number)))
    return _changing(connection, f"DELETE FROM {table} WHERE id = ?", keys)


OPERATIONS: dict[str, Callable[[instar.Connection, str, int, int], Work]] = {
    "random select": _random_select,
    "sequential select": _sequential_select,
    "scan of 1,000": _scan,
    "update": _update,
    "insert": _insert,
    "delete": _delete,
}
