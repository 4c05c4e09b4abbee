"""MD-MVCC's table 3: what it costs a workload without any schema change that metadata has versions.

Two workloads like the paper's: short transactions of point reads and writes, after TPC-C, and mostly queries of a
hundred rows or so, after TPC-E. Each beside the same engine from which all looks at versions of metadata have been
taken out: whoever asks for the catalog gets the one there was, and every plan holds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import instar
from benchmarks.harness import Figure, Options, paired, rate
from benchmarks.tables import open_instar
from instar.catalog.catalog import Catalog
from instar.sql.plan_cache import Prepared
from instar.store.lmdb import LmdbStore

MOST_LOST = 1.0  # per cent
PAPER = {"TPC-C": "0.2 %, deviation 1.8 %", "TPC-E": "0.18 %, deviation 1.5 %"}
TRANSACTIONS = 300  # of a round
_DISTRICTS, _LINES = 10, 5

Execute = Callable[..., Any]
Transaction = Callable[[Execute, random.Random, int], None]

_TPC_C = """
CREATE TABLE district (id integer PRIMARY KEY, next_order integer NOT NULL, ytd bigint NOT NULL);
CREATE TABLE customer (id integer PRIMARY KEY, district integer NOT NULL, name text NOT NULL, balance bigint NOT NULL);
CREATE TABLE stock (id integer PRIMARY KEY, quantity integer NOT NULL, sold bigint NOT NULL);
CREATE TABLE orders (id bigserial PRIMARY KEY, district integer NOT NULL, customer integer NOT NULL);
CREATE TABLE line (orders bigint, number integer, item integer NOT NULL, amount integer NOT NULL,
    PRIMARY KEY (orders, number));
INSERT INTO district SELECT g, 1, 0 FROM generate_series(0, 9) AS s (g);
INSERT INTO customer SELECT g, g % 10, 'name ' || g, 0 FROM generate_series(0, {last}) AS s (g);
INSERT INTO stock SELECT g, 100, 0 FROM generate_series(0, {last}) AS s (g);
"""
_TPC_E = """
CREATE TABLE security (id integer PRIMARY KEY, sector integer NOT NULL, price bigint NOT NULL, volume bigint NOT NULL);
CREATE TABLE trade (id bigserial PRIMARY KEY, account integer NOT NULL, security integer NOT NULL,
    quantity integer NOT NULL, price bigint, state text NOT NULL);
CREATE INDEX trade_account ON trade (account);
CREATE INDEX security_sector ON security (sector);
INSERT INTO security SELECT g, g / 100, g % 89 + 1, 0 FROM generate_series(0, {last}) AS s (g);
INSERT INTO trade (account, security, quantity, price, state)
    SELECT g / 20, g, g % 50, g % 89 + 1, 'done' FROM generate_series(0, {last}) AS s (g);
"""


def run(options: Options) -> Iterator[Figure]:
    rows = options.size(100_000, 2_000)
    with open_instar(options.directory / "tpc-like.instar") as connection:
        for workload, tables, transaction in (("TPC-C", _TPC_C, _like_c), ("TPC-E", _TPC_E, _like_e)):
            for statement in tables.format(last=rows - 1).split(";")[:-1]:
                connection.execute(statement)
            yield _overhead(connection, workload, transaction, rows, options)


def _overhead(
    connection: instar.Connection, workload: str, transaction: Transaction, rows: int, options: Options
) -> Figure:
    draw = random.Random(7)

    def versioned() -> float:
        return rate(lambda: _transactions(connection.execute, transaction, draw, rows), TRANSACTIONS)

    def unversioned() -> float:
        with _without_versions(connection):
            # Other texts have other plans.
            execute = lambda text, values=(): connection.execute(text + " ", values)  # noqa: E731 - as short as the other
            return rate(lambda: _transactions(execute, transaction, draw, rows), TRANSACTIONS)

    # A hundredth is looked for: far more rounds than elsewhere.
    pair = paired(versioned, unversioned, options.rounds * 7)
    return Figure(
        f"throughput lost to versioned metadata, like {workload}", 100 * (1 - pair.ratio), "%", MOST_LOST, "<=",
        f"{pair.ours:,.0f}/s ± {100 * pair.error:.1f} %", f"without {pair.peer:,.0f}/s; paper {PAPER[workload]}",
    )  # fmt: skip


@contextmanager
def _without_versions(connection: instar.Connection) -> Iterator[None]:
    with connection.database.store.read() as reader:
        newest = connection.database.catalog.at(reader)
    with ExitStack() as patches:
        patches.enter_context(patch.object(Catalog, "at", lambda catalog, reader: newest))
        patches.enter_context(patch.object(Prepared, "holds", lambda prepared, catalog: True))
        patches.enter_context(patch.object(LmdbStore, "newest", _newest))
        yield


def _newest(store: LmdbStore, key: bytes, _version: int) -> bytes | None:
    """`LmdbStore.newest` of a store that need not know which version its catalog is of."""
    transaction = store._environment.begin()
    try:
        value: bytes | None = transaction.get(key)
        return value
    finally:
        transaction.abort()


def _transactions(execute: Execute, transaction: Transaction, draw: random.Random, rows: int) -> None:
    for _ in range(TRANSACTIONS):
        transaction(execute, draw, rows)


def _like_c(execute: Execute, draw: random.Random, rows: int) -> None:
    """New orders and payments in equal parts, and one order status in nine."""
    kind, customer = draw.randrange(9), draw.randrange(rows)
    district = customer % _DISTRICTS
    if not kind:
        execute("SELECT name, balance FROM customer WHERE id = ?", (customer,)).fetchone()
        execute("SELECT next_order FROM district WHERE id = ?", (district,)).fetchone()
        return
    execute("BEGIN")
    execute("SELECT name, balance FROM customer WHERE id = ?", (customer,)).fetchone()
    if kind % 2:
        execute("UPDATE district SET ytd = ytd + ? WHERE id = ?", (draw.randrange(5000), district))
        execute("UPDATE customer SET balance = balance - ? WHERE id = ?", (draw.randrange(5000), customer))
    else:
        execute("UPDATE district SET next_order = next_order + 1 WHERE id = ?", (district,))
        text = "INSERT INTO orders (district, customer) VALUES (?, ?) RETURNING id"
        (number,) = execute(text, (district, customer)).fetchone()
        for line in range(_LINES):
            item = draw.randrange(rows)
            execute("SELECT quantity FROM stock WHERE id = ?", (item,)).fetchone()
            execute("UPDATE stock SET quantity = quantity - 1, sold = sold + 1 WHERE id = ?", (item,))
            execute("INSERT INTO line VALUES (?, ?, ?, ?)", (number, line, item, 1))
    execute("COMMIT")


def _like_e(execute: Execute, draw: random.Random, rows: int) -> None:
    """Three queries and a trade of four: a customer's position, a sector's market, the trades of an account."""
    kind, account = draw.randrange(4), draw.randrange(rows // 20)
    if kind == 0:
        position = (
            "SELECT s.sector, sum(t.quantity * s.price) FROM trade AS t JOIN security AS s ON s.id = t.security"
            " WHERE t.account = ? GROUP BY s.sector"
        )
        execute(position, (account,)).fetchall()
    elif kind == 1:
        market = "SELECT count(*), avg(price), sum(volume) FROM security WHERE sector = ?"
        execute(market, (draw.randrange(rows // 100),)).fetchall()
    elif kind == 2:
        execute("SELECT id, state, price FROM trade WHERE account = ? ORDER BY id DESC LIMIT 10", (account,)).fetchall()
    else:
        security = draw.randrange(rows)
        execute("BEGIN")
        (price,) = execute("SELECT price FROM security WHERE id = ?", (security,)).fetchone()
        text = "INSERT INTO trade (account, security, quantity, state) VALUES (?, ?, ?, 'new') RETURNING id"
        (number,) = execute(text, (account, security, 10)).fetchone()
        execute("UPDATE trade SET state = 'done', price = ? WHERE id = ?", (price, number))
        execute("UPDATE security SET volume = volume + 10 WHERE id = ?", (security,))
        execute("COMMIT")
