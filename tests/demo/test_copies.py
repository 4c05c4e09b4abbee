"""The copies that are joined and split: a client whose table is gone finds the other shape, and only then goes on."""

import multiprocessing

import pytest
from demo.board import Board
from demo.changes import CHANGES
from demo.client import _complete
from demo.copies import APART, TOGETHER, look
from demo.workload import Workload

import instar
from demo import copies

SCALE = 0.001  # 150 copied orders
_TPCH = (
    """CREATE TABLE orders (o_orderkey bigint PRIMARY KEY, o_custkey bigint, o_orderstatus text,
        o_totalprice numeric(15,2), o_orderdate date)""",
    "INSERT INTO orders SELECT g, g, 'O', 1.00, DATE '1998-08-02' FROM generate_series(1, 1000) AS keys (g)",
    """CREATE TABLE lineitem (l_orderkey bigint, l_linenumber integer, l_partkey bigint, l_quantity numeric(15,2),
        l_shipdate date, PRIMARY KEY (l_orderkey, l_linenumber))""",
    "INSERT INTO lineitem SELECT o_orderkey, g, 1, 1.00, o_orderdate FROM orders, generate_series(1, 2) AS lines (g)",
)


@pytest.fixture
def connection():
    with instar.connect(autocommit=True) as made:
        for statement in _TPCH:
            made.execute(statement)
        copies.make(made.execute, SCALE)
        yield made


def test_clients_go_on_across_the_switches(connection):
    board = Board(multiprocessing.get_context("spawn"), 1, 10)
    workload = Workload(connection, board, 0, SCALE)

    def work():
        for operation in (workload.read_copy, workload.update_copied_line, workload.update_copied_order) * 5:
            _complete(operation, workload, board.writer(0))
        return board.conflicts

    assert look(connection.execute) is APART
    assert work() == 0
    for change, shape, met in zip(CHANGES[-3:], (TOGETHER, TOGETHER, APART), (1, 1, 2), strict=True):
        connection.execute(change.statement)
        assert look(connection.execute) is shape
        assert work() == met
    assert connection.execute("CHECK DATABASE").fetchall() == []


def test_a_table_that_is_not_there_in_either_shape_is_an_error(connection):
    board = Board(multiprocessing.get_context("spawn"), 1, 10)
    workload = Workload(connection, board, 0, SCALE)
    connection.execute("DROP TABLE copied_line")
    with pytest.raises(instar.Error, match="copied_line"):
        _complete(workload.update_copied_line, workload, board.writer(0))
