"""Arrow's compute functions, when they are asked for and not before."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pyarrow.compute
import pytest

from instar.encoding import arrow_compute


def test_functions_are_arrows_own() -> None:
    assert arrow_compute.max is pyarrow.compute.max
    assert arrow_compute.max(pa.array([1, 3, 2])).as_py() == 3
    with pytest.raises(AttributeError):
        arrow_compute.no_such_function  # noqa: B018 - asking is what is tested


def test_a_process_that_asks_for_none_does_not_load_them() -> None:
    program = (
        "import sys, instar\n"
        "connection = instar.connect(':memory:', autocommit=True)\n"
        "connection.execute('CREATE TABLE t (a int PRIMARY KEY)')\n"
        "connection.execute('INSERT INTO t VALUES (1)')\n"
        "connection.execute('SELECT * FROM t').fetchall()\n"
        "print('pyarrow.compute' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
