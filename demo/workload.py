"""What the clients do: point reads, index lookups, updates, inserts and deletes on orders, lineitem and customer, reads
and updates of the copies that are joined and split (copies.py).

Reads check their answers. Each client inserts orders under keys of its own and deletes them again, oldest first; the
orders that TPC-H generated stay, so a read that does not find one is an error. New orders never repeat (customer, day),
so that the unique index over exactly these columns fails on the generated data and on nothing else.
"""

from __future__ import annotations

import datetime as dt
import random
from collections import deque
from collections.abc import Callable
from decimal import Decimal

import instar
from demo import copies
from demo.board import Board, Feature
from demo.tpch import CUSTOMERS_PER_SCALE, ORDERS_PER_SCALE, PARTS_PER_SCALE, order_key

READ_ORDER = "SELECT o_orderkey, o_orderstatus, o_totalprice, o_shippriority FROM orders WHERE o_orderkey = ?"
READ_ORDER_CHANNEL = "SELECT o_orderkey, o_channel, o_totalprice, o_shippriority FROM orders WHERE o_orderkey = ?"
READ_LINE = "SELECT l_orderkey, l_quantity, l_extendedprice FROM lineitem WHERE l_orderkey = ? AND l_linenumber = ?"
READ_CUSTOMER = "SELECT c_custkey, c_name, c_acctbal FROM customer WHERE c_custkey = ?"
ORDERS_OF_CUSTOMER = "SELECT o_custkey, o_orderkey, o_orderdate, o_totalprice FROM orders WHERE o_custkey = ?"
LINES_OF_ORDER = "SELECT l_orderkey, l_linenumber, l_quantity FROM lineitem WHERE l_orderkey = ?"
LINES_OF_PART = "SELECT l_partkey, l_orderkey, l_linenumber, l_quantity FROM lineitem WHERE l_partkey = ?"
UPDATE_ORDER = "UPDATE orders SET o_orderstatus = ?, o_shippriority = ? WHERE o_orderkey = ?"
UPDATE_ORDER_CHANNEL = "UPDATE orders SET o_channel = ?, o_shippriority = ? WHERE o_orderkey = ?"
UPDATE_LINE = "UPDATE lineitem SET l_quantity = ?, l_shipdate = ? WHERE l_orderkey = ? AND l_linenumber = ?"
MOVE_LINE = "UPDATE lineitem SET l_partkey = ? WHERE l_orderkey = ? AND l_linenumber = ?"
UPDATE_CUSTOMER = "UPDATE customer SET c_acctbal = c_acctbal + ? WHERE c_custkey = ?"
INSERT_ORDER = (
    "INSERT INTO orders (o_orderkey, o_custkey, o_orderstatus, o_totalprice, o_orderdate, o_orderpriority, o_clerk,"
    " o_shippriority) VALUES (?, ?, 'O', ?, ?, '3-MEDIUM', 'Clerk#000000001', 0)"
)
INSERT_LINE = (
    "INSERT INTO lineitem (l_orderkey, l_partkey, l_suppkey, l_linenumber, l_quantity, l_extendedprice, l_discount,"
    " l_tax, l_returnflag, l_linestatus, l_shipdate, l_commitdate, l_receiptdate, l_shipinstruct, l_shipmode)"
    " VALUES (?, ?, 1, ?, ?, ?, 0.05, 0.02, 'N', 'O', ?, ?, ?, 'NONE', 'RAIL')"
)
DELETE_LINES = "DELETE FROM lineitem WHERE l_orderkey = ?"
DELETE_ORDER = "DELETE FROM orders WHERE o_orderkey = ?"

# The day after the last that TPC-H generates.
FIRST_DAY = dt.date(1998, 8, 3)
LINES = 3
# A client deletes only while it has this many orders of its own left, so that deletes never run dry.
KEPT_ORDERS = 20


class WrongAnswer(Exception):
    """The database answered, and the answer is wrong."""


class Workload:
    """The operations of one client. Each is one call; after a conflict it can be called again."""

    def __init__(self, connection: instar.Connection, board: Board, client: int, scale: float) -> None:
        self._connection = connection
        self._execute = connection.execute
        self._board = board
        self._client = client
        self._random = random.Random(client)
        self._orders = int(ORDERS_PER_SCALE * scale)
        self._customers = int(CUSTOMERS_PER_SCALE * scale)
        self._parts = int(PARTS_PER_SCALE * scale)
        self._copied = copies.count(scale)
        self._shape = copies.APART
        self._inserted = 0
        self._own: deque[int] = deque()
        weights: dict[Callable[[], None], int] = {
            self.read_order: 25, self.read_line: 15, self.read_customer: 10,
            self.orders_of_customer: 8, self.lines: 7,
            self.update_order: 9, self.update_line: 5, self.move_line: 2, self.update_customer: 4,
            self.insert_order: 8, self.delete_order: 7,
            self.read_copy: 6, self.update_copied_line: 4, self.update_copied_order: 2,
        }  # fmt: skip
        self.operations = [operation for operation, weight in weights.items() for _ in range(weight)]

    def draw(self) -> Callable[[], None]:
        """The next operation, at random by weight."""
        return self.operations[int(self._random.random() * len(self.operations))]

    # --- reads -------------------------------------------------------------------------------------------------------

    def read_order(self) -> None:
        """An order by its key."""
        text = READ_ORDER_CHANNEL if self._board.features & Feature.ADDED_COLUMN else READ_ORDER
        self._one(text, self._order())

    def read_line(self) -> None:
        """A line by its key of two columns."""
        self._one(READ_LINE, self._order(), 1)

    def read_customer(self) -> None:
        """A customer by its key."""
        self._one(READ_CUSTOMER, self._customer())

    def orders_of_customer(self) -> None:
        """The orders of a customer, by the index that is there from the beginning."""
        self._all(ORDERS_OF_CUSTOMER, self._customer(), at_least=0)

    def lines(self) -> None:
        """The lines of a part by the new index once it is there; until then those of an order, by a range of keys."""
        if self._board.features & Feature.INDEX:
            self._all(LINES_OF_PART, self._part(), at_least=0)
        else:
            self._all(LINES_OF_ORDER, self._order(), at_least=1)

    # --- writes ------------------------------------------------------------------------------------------------------

    def update_order(self) -> None:
        """Columns that no index has: the widened one with big values as soon as it takes them, the added one too."""
        features = self._board.features
        priority = self._below(1000) + (5_000_000_000 if features & Feature.WIDENED else 0)
        if features & Feature.ADDED_COLUMN:
            self._update(UPDATE_ORDER_CHANNEL, "web" if priority & 1 else "phone", priority, self._order())
        else:
            self._update(UPDATE_ORDER, "P" if priority & 1 else "F", priority, self._order())

    def update_line(self) -> None:
        """A line's quantity and day of shipping."""
        day = FIRST_DAY + dt.timedelta(days=self._below(100))
        self._update(UPDATE_LINE, Decimal(1 + self._below(50)), day, self._order(), 1)

    def move_line(self) -> None:
        """A line's part: the column that the new index is over."""
        self._update(MOVE_LINE, self._part(), self._order(), 1)

    def update_customer(self) -> None:
        """A customer's balance; few customers, so clients do meet."""
        self._update(UPDATE_CUSTOMER, Decimal(self._below(2001) - 1000) / 100, self._customer())

    def insert_order(self) -> None:
        """An order with its lines, in one transaction."""
        number = self._inserted * self._board.clients + self._client
        key = order_key(self._orders) + 1 + number
        customer = 1 + number % self._customers
        day = FIRST_DAY + dt.timedelta(days=number // self._customers)
        price = Decimal(self._below(10_000_000)) / 100
        self._connection.autocommit = False
        self._execute(INSERT_ORDER, (key, customer, price, day))
        for line in range(1, LINES + 1):
            self._execute(INSERT_LINE, (key, self._part(), line, Decimal(line), price, day, day, day))
        self._connection.commit()
        self._connection.autocommit = True
        self._inserted += 1
        self._own.append(key)

    def delete_order(self) -> None:
        """The oldest order of this client's own, with its lines, in one transaction."""
        if len(self._own) <= KEPT_ORDERS:
            return self.insert_order()
        key = self._own[0]
        self._connection.autocommit = False
        lines = self._execute(DELETE_LINES, (key,)).rowcount
        orders = self._execute(DELETE_ORDER, (key,)).rowcount
        if (lines, orders) != (LINES, 1):
            raise WrongAnswer(f"deleting order {key} met {orders} orders and {lines} lines, not 1 and {LINES}")
        self._connection.commit()
        self._connection.autocommit = True
        self._own.popleft()
        return None

    def again(self) -> None:
        """Clear what a conflict left behind."""
        self._connection.rollback()
        self._connection.autocommit = True

    # --- what is joined and split ------------------------------------------------------------------------------------

    def read_copy(self) -> None:
        """An order of those that there are copies of, or a line of it."""
        key = self._copy()
        self._one(self._shape.read_line if key & 1 else self._shape.read_order, key)

    def update_copied_line(self) -> None:
        """A line's quantity."""
        self._update(self._shape.update_line, Decimal(1 + self._below(50)), self._copy())

    def update_copied_order(self) -> None:
        """An order's status, wherever it is."""
        parameters = ("P" if self._below(2) else "F", self._copy())
        met = self._execute(self._shape.update_order, parameters).rowcount
        if met < 1:
            raise WrongAnswer(f"{self._shape.update_order} with {parameters} met no row")

    def looks_again(self) -> bool:
        """After a table was not there: whether the copies have another shape by now than was held."""
        held, self._shape = self._shape, copies.look(self._execute)
        return self._shape is not held

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _one(self, text: str, *parameters: object) -> None:
        row = self._execute(text, parameters).fetchone()
        if row is None or row[0] != parameters[0]:
            raise WrongAnswer(f"{text} with {parameters} gave {row}")

    def _all(self, text: str, parameter: int, at_least: int) -> None:
        rows = self._execute(text, (parameter,)).fetchall()
        if len(rows) < at_least or any(row[0] != parameter for row in rows):
            raise WrongAnswer(f"{text} with {parameter} gave {rows}")

    def _update(self, text: str, *parameters: object) -> None:
        met = self._execute(text, parameters).rowcount
        if met != 1:
            raise WrongAnswer(f"{text} with {parameters} met {met} rows")

    def _below(self, bound: int) -> int:
        return int(self._random.random() * bound)

    def _order(self) -> int:
        return order_key(1 + self._below(self._orders))

    def _copy(self) -> int:
        return order_key(1 + self._below(self._copied))

    def _customer(self) -> int:
        return 1 + self._below(self._customers)

    def _part(self) -> int:
        return 1 + self._below(self._parts)
