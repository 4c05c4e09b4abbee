"""Joins and splits of real data: TPC-H orders and lines are joined and split again under traffic, and customers with
the names of their nations written beside them, some of them wrong, are split from these."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from demo.tpch import generate, load, order_key

from support import online
from support.databases import Engine, fails, rows, run, value
from support.victims import Victim, Work

REST_SECONDS = 0.003  # between two transactions of a writer: the change is to end soon
SCALE = 0.001  # 1,500 orders, 6,000 lines, 150 customers
ORDERS = 1_500
WRITERS = 2
O_COLUMNS = (
    "o_custkey, o_orderstatus, o_totalprice, o_orderdate, o_orderpriority, o_clerk, o_shippriority, o_comment".split(
        ", "
    )
)
L_COLUMNS = (
    "l_linenumber, l_partkey, l_suppkey, l_quantity, l_extendedprice, l_discount, l_tax, l_returnflag, l_linestatus,"
    " l_shipdate, l_commitdate, l_receiptdate, l_shipinstruct, l_shipmode, l_comment"
).split(", ")
JOIN = (
    "ALTER TABLE lineitem JOIN orders USING (orderkey) INTO order_line"
    f" (orderkey, {', '.join([*L_COLUMNS, *O_COLUMNS])})"
)
SPLIT = (
    f"ALTER TABLE order_line SPLIT INTO lineitem (orderkey, {', '.join(L_COLUMNS)}),"
    f" orders (orderkey, {', '.join(O_COLUMNS)}) ON (orderkey)"
)
NATIONS = "ALGERIA ARGENTINA BRAZIL CANADA EGYPT ETHIOPIA FRANCE GERMANY INDIA INDONESIA IRAN IRAQ JAPAN JORDAN".split()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    generate(SCALE, tmp_path / "files")
    load(tmp_path / "db", tmp_path / "files", "off", lambda _table, _rows: None)
    made = Engine(str(tmp_path / "db"))
    yield made
    made.close()


def apart(path: str, number: int, say: Callable[[object], None]) -> None:
    """Orders and lines are written to, each in its table."""

    def statements(draw: random.Random) -> list[str]:
        time.sleep(REST_SECONDS)
        key, other = (order_key(draw.randrange(1, ORDERS + 1)) for _ in range(2))
        price = draw.randrange(10**6) / 100
        return draw.choice((
            [f"UPDATE orders SET o_totalprice = {price} WHERE orderkey = {key}"],
            [f"UPDATE lineitem SET l_quantity = {draw.randrange(1, 50)} WHERE orderkey = {key}"],
            [f"DELETE FROM lineitem WHERE orderkey = {key} AND l_linenumber = 1"],
            [f"DELETE FROM orders WHERE orderkey = {key}", f"DELETE FROM lineitem WHERE orderkey = {key}"],
            [f"DELETE FROM orders WHERE orderkey = {key}"],  # its lines stay
            [f"DELETE FROM lineitem WHERE orderkey = {key}"],  # it stays
            [f"UPDATE lineitem SET orderkey = {other}, l_linenumber = 9 WHERE orderkey = {key} AND l_linenumber = 2"],
        ))  # fmt: skip

    online.until_gone(path, number, say, statements)


def together(path: str, number: int, say: Callable[[object], None]) -> None:
    """Lines with their orders are written to, those of an order alike."""

    def statements(draw: random.Random) -> list[str]:
        time.sleep(REST_SECONDS)
        key = order_key(draw.randrange(1, ORDERS + 1))
        return draw.choice((
            [f"UPDATE order_line SET o_totalprice = {draw.randrange(10**6) / 100} WHERE orderkey = {key}"],
            [f"UPDATE order_line SET l_quantity = {draw.randrange(1, 50)} WHERE orderkey = {key}"],
            [f"DELETE FROM order_line WHERE orderkey = {key} AND l_linenumber = 3"],
            [f"DELETE FROM order_line WHERE orderkey = {key}"],
        ))  # fmt: skip

    online.until_gone(path, number, say, statements)


def under_traffic(engine: Engine, work: Work, statement: str) -> None:
    writers = [Victim(work, engine.path, number) for number in range(WRITERS)]
    for writer in writers:
        writer.wait()
    run(engine.connect(), statement)
    happened: Counter[str] = Counter()
    for writer in writers:
        happened.update(cast("dict[str, int]", writer.join()))
    assert set(happened) <= {"", "40001", "40P01", "42P01", "42703", "23505"}, happened
    assert happened[""] > 0


def test_orders_and_lines_are_joined_and_split_again(engine: Engine) -> None:
    one = engine.connect()
    run(one, "ALTER TABLE orders RENAME COLUMN o_orderkey TO orderkey")
    run(one, "ALTER TABLE lineitem RENAME COLUMN l_orderkey TO orderkey")
    under_traffic(engine, apart, JOIN)
    switch = online.switched(engine.database, "order_line")
    lines, orders = (online.rows_at(engine.database, name, switch - 1) for name in ("lineitem", "orders"))
    made = online.rows_at(engine.database, "order_line", switch)
    assert Counter(made) == outer_join(lines, orders)
    assert any(row[1] is None for row in made), "no order lost its lines"
    assert any(row[len(L_COLUMNS) + 1] is None for row in made), "no line lost its order"
    run(
        one,
        "DELETE FROM order_line WHERE l_linenumber IS NULL",
        "ALTER TABLE order_line ADD PRIMARY KEY (orderkey, l_linenumber)",
    )
    under_traffic(engine, together, SPLIT)
    switch = online.switched(engine.database, "orders")
    source = online.rows_at(engine.database, "order_line", switch - 1)
    parted = len(L_COLUMNS) + 1
    assert Counter(online.rows_at(engine.database, "lineitem", switch)) == Counter(row[:parted] for row in source)
    assert Counter(online.rows_at(engine.database, "orders", switch)) == Counter(
        {(row[0], *row[parted:]) for row in source}
    )
    assert rows(one, "CHECK DATABASE") == []


def outer_join(lines: list[online.Row], orders: list[online.Row]) -> Counter[online.Row]:
    """Lines and orders by key, as rows of order_line. A line is read as TPC-H has it: order, part, supplier, number."""
    by_key = {row[0]: row[1:] for row in orders}
    made = [
        (key, number, part, supplier, *rest, *by_key.get(key, (None,) * len(O_COLUMNS)))
        for key, part, supplier, number, *rest in lines
    ]
    lined = {row[0] for row in lines}
    alone = [(key, *(None,) * len(L_COLUMNS), *row) for key, row in by_key.items() if key not in lined]
    return Counter([*made, *alone])


class Denormalized:
    """Customers, each with the name of its nation, and what is wrong of that: by customer."""

    SPLIT = (
        "ALTER TABLE customer SPLIT INTO customers (c_custkey, c_name, c_nationkey, c_acctbal),"
        " nation (c_nationkey, nation) ON (c_nationkey)"
    )

    def __init__(self, engine: Engine) -> None:
        self.one = one = engine.connect()
        run(one, "ALTER TABLE customer DROP COLUMN c_address, DROP COLUMN c_phone, DROP COLUMN c_comment")
        run(one, "ALTER TABLE customer DROP COLUMN c_mktsegment, ADD COLUMN nation text")
        for key in range(25):
            run(one, f"UPDATE customer SET nation = '{self.name(key)}' WHERE c_nationkey = {key}")
        of_nation: dict[int, list[int]] = {}
        for customer, key in rows(one, "SELECT c_custkey, c_nationkey FROM customer"):
            of_nation.setdefault(key, []).append(customer)
        self.names = {key: self.name(key) for key in of_nation}
        # Misspelt for one customer of each nation that has at least three.
        self.wrong = {found[0]: key for key, found in of_nation.items() if len(found) >= 3}
        for customer, key in self.wrong.items():
            run(one, f"UPDATE customer SET nation = '{self.misspelt(key)}' WHERE c_custkey = {customer}")
        self.customers = rows(one, "SELECT c_custkey, c_name, c_nationkey, c_acctbal FROM customer ORDER BY 1")

    @staticmethod
    def name(key: int) -> str:
        return NATIONS[key % len(NATIONS)] + (" II" if key >= len(NATIONS) else "")

    @classmethod
    def misspelt(cls, key: int) -> str:
        """Two letters have changed places, as in Trnodheim (EDBT 2006, §5.3)."""
        name = cls.name(key)
        return name[0] + name[2] + name[1] + name[3:]

    def nations(self) -> dict[Any, Any]:
        return dict(rows(self.one, "SELECT c_nationkey, nation FROM nation"))


@pytest.fixture
def denormalized(engine: Engine) -> Denormalized:
    return Denormalized(engine)


def test_planted_inconsistencies_are_listed(denormalized: Denormalized) -> None:
    assert len(denormalized.wrong) > 1
    first = sorted(denormalized.wrong.values(), key=lambda key: f"({key},)")[:10]
    told = [f"(c_nationkey, nation)=({key}, {denormalized.misspelt(key)}) in 1 row" for key in first]
    with fails("23505", f"with each of {len(denormalized.wrong)} values of (c_nationkey)", *told):
        denormalized.one.execute(denormalized.SPLIT)
    assert value(denormalized.one, "SELECT count(*) FROM customer") == len(denormalized.customers)
    assert rows(denormalized.one, "CHECK DATABASE") == []


def test_planted_inconsistencies_are_repaired_by_what_most_say(denormalized: Denormalized) -> None:
    denormalized.one.execute(f"{denormalized.SPLIT} WITH (repair = 'most frequent')")
    assert denormalized.nations() == denormalized.names
    assert rows(denormalized.one, "SELECT * FROM customers ORDER BY c_custkey") == denormalized.customers
    assert rows(denormalized.one, "CHECK DATABASE") == []


def test_planted_inconsistencies_are_repaired_by_what_was_said_last(denormalized: Denormalized) -> None:
    denormalized.one.execute(f"{denormalized.SPLIT} WITH (repair = 'newest')")
    misspelt = {key: denormalized.misspelt(key) for key in denormalized.wrong.values()}
    assert denormalized.nations() == denormalized.names | misspelt
    assert rows(denormalized.one, "CHECK DATABASE") == []
