"""What it costs that a table may hold rows of several layouts.

First a table that never changed, read by the engine as it is and by readers from which the look at each row's layout
has been taken out: what is left is what an engine without versions would do. Then a table all of whose rows lie in an
older layout (a column was added, another widened), beside one that was made with the newer layout.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import instar
from benchmarks.harness import Figure, Options, Pair, paired, rate
from benchmarks.tables import CREATE, fill_instar, open_instar
from instar.catalog.descriptors import Layout, Table
from instar.encoding.rows import RowReader, Tags
from instar.sql import point
from instar.tables import rowset
from instar.tables.resolver import Wanted, _decoder, _key, resolver

UNCHANGED = 1.01
OLDER = 1.2
LOOKUP = "SELECT a, g, name, note FROM {name} WHERE id = ?"
SCAN = "SELECT g, count(*), sum(a), max(note) FROM {name} GROUP BY g ORDER BY g"
_WITHOUT_LOOK = "r = decode(value)"
_COUNT = 10_000


def run(options: Options) -> Iterator[Figure]:
    rows = options.size(1_000_000, 100_000)
    connection = open_instar(options.directory / "versions.instar")
    fill_instar(connection, rows, "t")
    # Far more rounds than elsewhere, and short ones (40 ms; 10 of a scan): a hundredth is looked for, which a machine
    # that others use too drifts by within a second.
    rounds = options.rounds * 5
    yield _cost(
        "lookup, never changed", _without_look_in_lookup(connection, rows, rounds * 8), UNCHANGED, "without the look"
    )
    yield _cost(
        "scan, never changed", _without_look_in_scan(connection, rows // 25, rounds * 20), UNCHANGED, "without the look"
    )
    _make_older(connection, rows)
    yield _cost("lookup, all rows in an older layout", _older_lookup(connection, rows, rounds), OLDER, "newest layout")
    yield _cost(
        "scan, all rows in an older layout", _older_scan(connection, rows, options.rounds), OLDER, "newest layout"
    )
    connection.close()


def _cost(name: str, pair: Pair, limit: float, beside: str) -> Figure:
    """The time of ours as a multiple of the peer's, and how far rounds of the same scatter (the standard error)."""
    return Figure(
        name, 1 / pair.ratio, "x", limit, "<=",
        f"{pair.ours:,.0f}/s, +-{pair.error:.1%}", f"{beside} {pair.peer:,.0f}/s",
    )  # fmt: skip


def _lookups(connection: instar.Connection, text: str, rows: int) -> Callable[[], float]:
    draw = random.Random(3)
    keys = [draw.randrange(rows) for _ in range(_COUNT)]
    execute = connection.execute

    def look_up() -> None:
        for key in keys:
            execute(text, (key,)).fetchone()

    return lambda: rate(look_up, _COUNT)


@contextmanager
def _patched(module: Any, name: str, value: object) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def _without_look_in_lookup(connection: instar.Connection, rows: int, rounds: int) -> Pair:
    text = LOOKUP.format(name="t")
    other = text + " "  # another text is another plan

    def untagged(written: Layout, wanted: Sequence[Wanted], _tags: Tags) -> RowReader:
        return resolver(written, wanted)

    with _patched(point, "_NEWEST_FIRST", _WITHOUT_LOOK), _patched(point, "tagged_resolver", untagged):
        assert connection.execute(other, (1,)).fetchall() == connection.execute(other, (1,)).fetchall()
    return paired(_lookups(connection, text, rows), _lookups(connection, other, rows), rounds)


def _without_look_in_scan(connection: instar.Connection, rows: int, rounds: int) -> Pair:
    fill_instar(connection, rows, "scanned")
    with connection.database.store.read() as reader:
        table = connection.database.catalog.at(reader).lookup(None, "scanned")
    assert isinstance(table, Table)
    text = SCAN.format(name="scanned")

    def scan() -> float:
        return rate(lambda: connection.execute(text).fetchall(), rows)

    def scan_without() -> float:
        with _patched(rowset, "mixed_decoder", lambda _, wanted: _decoder(table.layout, _key(wanted))):
            return scan()

    return paired(scan, scan_without, rounds)


def _make_older(connection: instar.Connection, rows: int) -> None:
    """Table `older` has the rows of `newer`, all written before its last two changes."""
    narrow = CREATE.format(name="older").replace("g integer", "g smallint").replace(", note text", "")
    connection.execute(narrow)
    connection.execute(CREATE.format(name="newer"))
    source = connection.execute("SELECT * FROM t").fetch_arrow_table()
    added = source.schema.get_field_index("note")
    connection.insert_arrow("newer", source)
    connection.insert_arrow("older", source.remove_column(added))
    note = source.column("note")[0].as_py()
    connection.execute(f"ALTER TABLE older ADD COLUMN note text DEFAULT '{note}'")
    connection.execute("ALTER TABLE older ALTER COLUMN g TYPE integer")
    ours, peer = (connection.execute(SCAN.format(name=name)).fetchall() for name in ("older", "newer"))
    assert ours == peer


def _older_lookup(connection: instar.Connection, rows: int, rounds: int) -> Pair:
    older, newer = (_lookups(connection, LOOKUP.format(name=name), rows) for name in ("older", "newer"))
    return paired(older, newer, rounds)


def _older_scan(connection: instar.Connection, rows: int, rounds: int) -> Pair:
    older, newer = (SCAN.format(name=name) for name in ("older", "newer"))
    return paired(
        lambda: rate(lambda: connection.execute(older).fetchall(), rows),
        lambda: rate(lambda: connection.execute(newer).fetchall(), rows),
        rounds,
    )
