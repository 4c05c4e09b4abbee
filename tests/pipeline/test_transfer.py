"""Loads from Parquet into unseen rowsets, duplicates across tasks, exports."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet
import pytest

from instar import errors
from instar.catalog.catalog import Catalog
from instar.catalog.descriptors import State, Table
from instar.clock import SystemClock
from instar.pipeline import transfer
from instar.schemachange.loading import Loading
from instar.tables.rowset import TableReader
from instar.tables.view import END, View
from instar.types import BIGINT, INTEGER, TEXT, Kind, Type
from pipeline.small_database import SmallDatabase
from pipeline.test_consistency import problems

pytestmark = pytest.mark.spark

COLUMNS = [("id", BIGINT), ("a", INTEGER), ("b", TEXT), ("price", Type(Kind.NUMERIC, 10, 2))]
CONSTANTS = {"b": None, "price": "1.50"}


def parquet(path: Path, ids: list[int]) -> str:
    data = pa.table({"a": pa.array([i % 10 for i in ids], pa.int64()), "id": pa.array(ids, pa.int64())})
    pyarrow.parquet.write_table(data, path, row_group_size=1_000)
    return str(path)


def load(database: SmallDatabase, table: Table, files: list[str]) -> int:
    loading = Loading(database.store, database.ids, SystemClock(), table)
    try:
        claim = loading._held.claim
        rows = transfer.load_parquet(
            database.path, database.store, loading.table, loading.timestamp, claim, files, CONSTANTS,
            lambda: loading.put(()),
        )  # fmt: skip
        loading.publish(Catalog())
    except BaseException:
        loading.abandon()
        raise
    return rows


def test_load_and_export(spark, database, tmp_path):
    table = database.create("t", COLUMNS, ["id"])
    table = database.add_index(table, "t_a", ["a"], State.PUBLIC)
    files = [parquet(tmp_path / "1.parquet", list(range(0, 6_000, 2))), parquet(tmp_path / "2.parquet", [1, 3, 5])]
    assert load(database, table, files) == 3_003
    published = database.catalog.table(table.id)
    reader = TableReader(published, range(4), database.layouts)
    rows = list(reader.scan(View(database.store, database.now, None, database.layouts), b"", END))
    assert [row[0] for row in rows] == sorted([*range(0, 6_000, 2), 1, 3, 5])
    assert {(row[2], str(row[3])) for row in rows} == {(None, "1.50")}
    assert problems(database) == []
    formats: list[Literal["parquet", "csv"]] = ["parquet", "csv"]
    for file_format in formats:
        target = tmp_path / file_format
        transfer.export(database.path, "t", str(target), file_format)
        assert pyarrow.dataset.dataset(str(target), format=file_format).count_rows() == 3_003
    with pytest.raises(errors.Error):
        transfer.export(database.path, "t", str(tmp_path / "csv"), "csv")
    with pytest.raises(errors.NotSupportedError):
        transfer.export(database.path, "t", str(tmp_path / "x"), "orc")


def test_a_key_in_two_files_is_found(spark, database, tmp_path):
    table = database.create("t", COLUMNS, ["id"])
    files = [parquet(tmp_path / "1.parquet", [1, 2, 3]), parquet(tmp_path / "2.parquet", [3, 4])]
    with pytest.raises(errors.Error) as caught:
        load(database, table, files)
    assert caught.value.sqlstate == errors.UNIQUE_VIOLATION
    assert database.catalog.table(table.id) == table
