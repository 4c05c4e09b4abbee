"""Values of Parquet files that are none of their columns, which the errors name with file, row and column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

import instar
from instar import errors
from instar.cli.transfer import import_files
from support.databases import fails, run


@pytest.mark.parametrize("count", [3, 20_000])  # a statement; a load
@pytest.mark.parametrize(
    ("type_", "good", "bad", "sqlstate"),
    [
        ("integer", "1", "x", errors.INVALID_TEXT),
        ("integer", 1, 1 << 40, errors.NUMERIC_OUT_OF_RANGE),
        ("varchar(3)", "abc", "four", errors.STRING_TOO_LONG),
        ("numeric(3,1)", 1.5, 1e9, errors.NUMERIC_OUT_OF_RANGE),
        ("timestamp", "2024-01-01", "x", errors.INVALID_DATETIME_FORMAT),
        ("jsonb", "1", "{", errors.INVALID_TEXT),
    ],
)
def test_a_value_that_is_none_is_told_with_its_place(
    tmp_path: Path, type_: str, good: Any, bad: Any, sqlstate: str, count: int
):
    good_file, bad_file = tmp_path / "1.parquet", tmp_path / "2.parquet"
    # A load takes numbers for texts, and that is not what is wrong.
    n: list[Any] = [1] * count if count > 3 else ["1"] * count
    pyarrow.parquet.write_table(pa.table({"n": n, "v": [good] * count}), good_file)
    pyarrow.parquet.write_table(pa.table({"n": n, "v": [good] * (count - 1) + [bad]}), bad_file)
    with instar.connect(":memory:", autocommit=True) as connection:
        run(connection, f"CREATE TABLE t (n text, v {type_})")
        with fails(sqlstate, f'It is in row {count} of {bad_file}, column "v".'):
            import_files(connection, "t", [good_file, bad_file], create=False)


@pytest.mark.parametrize("count", [3, 20_000])
@pytest.mark.parametrize(("type_", "value"), [("integer", [1]), ("date", 1)])
def test_a_type_that_the_column_does_not_take_is_named(tmp_path: Path, type_: str, value: object, count: int):
    file = tmp_path / "t.parquet"
    table = pa.table({"v": [value] * count})
    pyarrow.parquet.write_table(table, file)
    with instar.connect(":memory:", autocommit=True) as connection:
        run(connection, f"CREATE TABLE t (v {type_})")
        what = f'column "v" is of type {type_} but {file} has it as '
        with fails(errors.DATATYPE_MISMATCH, what):
            import_files(connection, "t", [file], create=False)
