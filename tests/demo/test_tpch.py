"""TPC-H data: the keys that clients draw are those that the generator makes."""

import pyarrow.parquet as pq
from demo.tpch import CUSTOMERS_PER_SCALE, ORDERS_PER_SCALE, generate, order_key


def test_keys(tmp_path):
    generate(0.01, tmp_path)
    orders = pq.read_table(tmp_path / "orders.parquet", columns=["o_orderkey"])["o_orderkey"].to_pylist()
    assert orders == [order_key(number) for number in range(1, int(ORDERS_PER_SCALE * 0.01) + 1)]
    lines = pq.read_table(tmp_path / "lineitem.parquet", columns=["l_orderkey", "l_linenumber"])
    assert {1} == set(lines.filter(lines["l_linenumber"].to_numpy() == 1)["l_linenumber"].to_pylist())
    assert set(lines["l_orderkey"].to_pylist()) == set(orders)
    customers = pq.read_table(tmp_path / "customer.parquet", columns=["c_custkey"])["c_custkey"].to_pylist()
    assert customers == list(range(1, int(CUSTOMERS_PER_SCALE * 0.01) + 1))
