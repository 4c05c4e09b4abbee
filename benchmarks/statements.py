"""Statements as an application has them: on a table with a unique key, a foreign key, an index and a default that reads
the clock, one by one in autocommit, each in a transaction of its own, and ten to a transaction, beside sqlite3.

A database in another process has to be asked; here a statement costs what it takes to execute it. Without targets: what
the ratios say is which statements take the short way.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.harness import Figure, Options, paired, rate, versus
from benchmarks.tables import open_instar, open_sqlite

COUNT = 2_000  # statements of a round
_TOGETHER = 10  # of a transaction
_SCHEMA = (
    "CREATE TABLE customers (id {key} PRIMARY KEY, email varchar(40) UNIQUE, name varchar(40))",
    """CREATE TABLE orders (id {key} PRIMARY KEY, customer bigint NOT NULL REFERENCES customers (id), state smallint,
       amount bigint, made timestamp DEFAULT current_timestamp)""",
    "CREATE INDEX orders_customer ON orders (customer)",
)
_FIRST = 1 << 40  # keys from here on are new

Given = Callable[[int, int], tuple[object, ...]]
"""From the number of the statement, and of the customers that there are, to its parameters."""

STATEMENTS: dict[str, tuple[str, Given]] = {
    "insert, with a unique key": (
        "INSERT INTO customers VALUES (?, ?, ?)",
        lambda n, rows: (_FIRST + n, f"new {n}", "a name"),
    ),
    "insert, with a foreign key, an index and a clock": (
        "INSERT INTO orders (id, customer, state, amount) VALUES (?, ?, ?, ?)",
        lambda n, rows: (_FIRST + n, n * 7919 % rows, 1, n),
    ),
    "insert that returns its key": (
        "INSERT INTO orders (id, customer, amount) VALUES (?, ?, ?) RETURNING id",
        lambda n, rows: (2 * _FIRST + n, n * 7919 % rows, n),
    ),
    "update of a plain column": (
        "UPDATE orders SET state = ?, amount = amount + 1 WHERE id = ?",
        lambda n, rows: (n % 9, n * 7919 % rows),
    ),
    "update of a unique column": (
        "UPDATE customers SET email = ? WHERE id = ?",
        lambda n, rows: (f"moved {n}", n * 7919 % rows),
    ),
    "update of a foreign key": (
        "UPDATE orders SET customer = ? WHERE id = ?",
        lambda n, rows: (n * 104_729 % rows, n * 7919 % rows),
    ),
    "insert or update, by the key": (
        "INSERT INTO customers VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET name = excluded.name",
        lambda n, rows: (n * 7919 % rows, None, f"name {n}"),
    ),
    "insert or update, by a unique key": (
        "INSERT INTO customers VALUES (?, ?, ?) ON CONFLICT (email) DO UPDATE SET name = excluded.name",
        lambda n, rows: (2 * _FIRST + n, f"new {n % 1000}", f"name {n}"),
    ),
    "insert or nothing": (
        "INSERT INTO customers VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        lambda n, rows: (n * 7919 % rows, None, "a name"),
    ),
    "select by a unique key": (
        "SELECT id, name FROM customers WHERE email = ?",
        lambda n, rows: (f"customer {n * 7919 % rows}",),
    ),
    "select by an index": (
        "SELECT id, amount FROM orders WHERE customer = ?",
        lambda n, rows: (n * 7919 % rows,),
    ),
    "select of twenty rows in a row": (
        "SELECT id, amount FROM orders WHERE id BETWEEN ? AND ?",
        lambda n, rows: (n * 7919 % rows, n * 7919 % rows + 19),
    ),
    "join of a row with its parent": (
        "SELECT o.amount, c.name FROM orders AS o JOIN customers AS c ON c.id = o.customer WHERE o.id = ?",
        lambda n, rows: (n * 7919 % rows,),
    ),
    "delete": ("DELETE FROM orders WHERE id = ?", lambda n, rows: (n * 7919 % rows,)),
    "delete of a row that others might refer to": (
        "DELETE FROM customers WHERE id = ?",
        lambda n, rows: (rows + n % rows,),
    ),
}
_LAST = ("delete", "delete of a row that others might refer to")  # else the others would find less
_SINGLE = [(name, 0) for name in STATEMENTS if name not in _LAST]
_OWN = [(name, 1) for name, _ in _SINGLE if name.startswith(("insert", "update"))]
_MANY = [(name, _TOGETHER) for name, _ in _SINGLE if name.startswith(("insert", "update", "select by"))]
# Statements, and of how many of them a transaction is; 0: each is one, in autocommit.
MEASURED = (*_SINGLE, *_OWN, *_MANY, *((name, 0) for name in _LAST))


def run(options: Options) -> Iterator[Figure]:
    rows = options.size(100_000, 10_000)
    ours = open_instar(options.directory / "statements.instar")
    peer = open_sqlite(options.directory / "statements.sqlite")
    peer.execute("PRAGMA foreign_keys = ON")
    try:
        for connection, key in ((ours, "bigint"), (peer, "integer")):
            _fill(connection, key, rows)
        os.sync()
        numbers = {id(connection): itertools.count() for connection in (ours, peer)}
        for name, together in MEASURED:

            def measured(connection: Any, name: str = name, together: int = together) -> float:
                text, given = STATEMENTS[name]
                parameters = [given(number, rows) for number in itertools.islice(numbers[id(connection)], COUNT)]
                return rate(lambda: _execute(connection, text, parameters, together), COUNT)

            pair = paired(partial(measured, ours), partial(measured, peer), options.rounds)
            many = {0: "", 1: ", in a transaction of its own"}.get(together, f", {together} to a transaction")
            yield versus(f"{name}{many}", pair, None)
    finally:
        ours.close()
        peer.close()


def _fill(connection: Any, key: str, rows: int) -> None:
    """As many orders as customers, and as many customers again who have none."""
    for text in _SCHEMA:
        connection.execute(text.format(key=key))
    customers = [(number, f"customer {number}", "a name") for number in range(2 * rows)]
    orders = [(number, number * 31 % rows, 1, number) for number in range(rows)]
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO customers VALUES (?, ?, ?)", customers)
    connection.executemany("INSERT INTO orders (id, customer, state, amount) VALUES (?, ?, ?, ?)", orders)
    connection.execute("COMMIT")


def _execute(connection: Any, text: str, parameters: list[tuple[object, ...]], together: int) -> None:
    execute = connection.execute
    for number, given in enumerate(parameters):
        if together and number % together == 0:
            execute("BEGIN")
        execute(text, given).fetchall() if text.startswith("SELECT") else execute(text, given)
        if together and (number + 1) % together == 0:
            execute("COMMIT")
