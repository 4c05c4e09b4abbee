"""A tenth of the orders and their lines once more, in two tables of their own, which are joined and split again while
clients read and write them. A client knows both shapes; told that a table is not there, it looks which it is by now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from demo.tpch import ORDERS_PER_SCALE, order_key

_SCHEMA = (
    """CREATE TABLE copied_order (
        orderkey bigint PRIMARY KEY, custkey bigint NOT NULL, status text NOT NULL, totalprice numeric(15,2) NOT NULL,
        orderdate date NOT NULL)""",
    """CREATE TABLE copied_line (
        orderkey bigint, linenumber integer, partkey bigint NOT NULL, quantity numeric(15,2) NOT NULL,
        shipdate date NOT NULL, PRIMARY KEY (orderkey, linenumber))""",
)
_FILL = (
    """INSERT INTO copied_order SELECT o_orderkey, o_custkey, o_orderstatus, o_totalprice, o_orderdate
        FROM orders WHERE o_orderkey BETWEEN ? AND ?""",
    """INSERT INTO copied_line SELECT l_orderkey, l_linenumber, l_partkey, l_quantity, l_shipdate
        FROM lineitem WHERE l_orderkey BETWEEN ? AND ?""",
)
JOIN = (
    "ALTER TABLE copied_line JOIN copied_order USING (orderkey) INTO order_line (orderkey, linenumber, partkey,"
    " quantity, shipdate, custkey, status, totalprice, orderdate)"
)
KEY = "ALTER TABLE order_line ADD PRIMARY KEY (orderkey, linenumber)"
SPLIT = (
    "ALTER TABLE order_line SPLIT INTO copied_line (orderkey, linenumber, partkey, quantity, shipdate),"
    " copied_order (orderkey, custkey, status, totalprice, orderdate) ON (orderkey)"
)
UNDEFINED_TABLE = "42P01"
_MOST = 15_000  # at scale 0.1: whatever the scale, a join takes seconds and not minutes
_COPIED_AT_ONCE = 2_500  # orders: a transaction has its bounds
_IS_JOINED = "SELECT table_name FROM information_schema.tables WHERE table_name = 'order_line'"


class Shape(NamedTuple):
    """The statements on one shape. Where lines have their order's columns, an update of it is one of all its lines."""

    read_order: str
    read_line: str
    update_order: str
    update_line: str


def _shape(order: str, line: str, one_line: str) -> Shape:
    return Shape(
        f"SELECT orderkey, status, totalprice FROM {order} WHERE orderkey = ?{one_line}",
        f"SELECT orderkey, quantity, shipdate FROM {line} WHERE orderkey = ? AND linenumber = 1",
        f"UPDATE {order} SET status = ? WHERE orderkey = ?",
        f"UPDATE {line} SET quantity = ? WHERE orderkey = ? AND linenumber = 1",
    )


APART = _shape("copied_order", "copied_line", "")
TOGETHER = _shape("order_line", "order_line", " AND linenumber = 1")


def count(scale: float) -> int:
    """How many orders there are copies of."""
    return min(int(ORDERS_PER_SCALE * scale) // 10, _MOST)


def make(execute: Callable[..., Any], scale: float) -> None:
    """Make the tables and copy the orders, in autocommit."""
    for statement in _SCHEMA:
        execute(statement)
    for first in range(1, count(scale) + 1, _COPIED_AT_ONCE):
        last = min(first + _COPIED_AT_ONCE - 1, count(scale))
        for statement in _FILL:
            execute(statement, (order_key(first), order_key(last)))


def look(execute: Callable[..., Any]) -> Shape:
    """The shape that the tables have now."""
    return TOGETHER if execute(_IS_JOINED).fetchall() else APART
