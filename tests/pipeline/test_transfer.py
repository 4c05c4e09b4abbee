"""Exports as directories, and loads whose index entries are sorted on Spark."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pytest

import instar
from instar import errors
from instar.cli import transfer as cli
from instar.database import bulk
from instar.pipeline import spark_job, transfer
from instar.schemachange.job_records import JobState
from instar.schemachange.loading import LOAD
from instar.types import BIGINT, BYTEA, INTEGER, TEXT, TIMESTAMPTZ, Kind, Type
from support.databases import fails, rows, run, value

pytestmark = pytest.mark.spark

COLUMNS = [
    ("id", BIGINT), ("a", INTEGER), ("b", TEXT), ("price", Type(Kind.NUMERIC, 10, 2)), ("raw", BYTEA),
    ("at", TIMESTAMPTZ),
]  # fmt: skip


PRICE = Decimal("1.50")


def shared(reached: float) -> None:
    assert 0 <= reached <= 1


@pytest.fixture
def connection(tmp_path):
    with instar.connect(tmp_path / "sql", synchronous="off", autocommit=True) as opened:
        yield opened


def test_export(spark, database, tmp_path):
    table = database.create("t", COLUMNS, ["id"])
    moment = 1_700_000_000_123_456
    content = [(i, None, None, PRICE, None, None) if i % 2 else (i, i, "", PRICE, b"\\x", moment) for i in range(3_000)]
    database.insert(table, content)
    before = database.now
    database.insert(table, [(9_999, 1, "later", PRICE, None, None)])
    for kind in ("parquet", "csv"):
        target = tmp_path / f"t.{kind}"
        assert transfer.export(database.path, "t", str(target), kind, shared, timestamp=before) == 3_000
        assert pyarrow.dataset.dataset(str(target), format=kind).count_rows() == 3_000
        with fails(errors.IO_ERROR, "is there already"):
            transfer.export(database.path, "t", str(target), kind, shared)
    with pytest.raises(errors.NotSupportedError):
        transfer.export(database.path, "t", str(tmp_path / "x"), "orc", shared)


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_directory_is_imported_again(spark, connection, tmp_path: Path, monkeypatch, kind: str):
    create = "CREATE TABLE {} (id bigint PRIMARY KEY, t text, n numeric(8,2), x bytea, at timestamptz, ok boolean)"
    run(connection, create.format("a"), create.format("b"))
    connection.executemany(
        "INSERT INTO a VALUES (?, ?, 1.50, ?, '2024-02-29 01:02:03.000456+00', ?)",
        [(i, (None, "", 'a "b",\nc')[i % 3], (None, bytes([i % 256]))[i % 2], (None, True)[i % 2]) for i in range(99)],
    )
    monkeypatch.setattr(cli, "EXPORT_SPARK_ROWS", 1)
    assert cli.export_table(connection, "a", f"{tmp_path}/a.{kind}/") == 99
    files = sorted((tmp_path / f"a.{kind}").glob(f"*.{kind}"))
    assert cli.import_files(connection, "b", files, create=False) == 99
    query = "SELECT * FROM {} ORDER BY id"
    assert rows(connection, query.format("a")) == rows(connection, query.format("b"))


def test_an_export_that_is_broken_off_leaves_nothing(spark, database, tmp_path):
    table = database.create("t", COLUMNS, ["id"])
    database.insert(table, [(i, None, None, PRICE, None, None) for i in range(100)])

    class Stop(Exception):
        pass

    def stop(share: float) -> None:
        raise Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("instar.pipeline.spark_job.PULSE_SECONDS", 0.001)
        with pytest.raises(Stop):
            transfer.export(database.path, "t", str(tmp_path / "t"), "csv", stop)
    assert not (tmp_path / "t").exists()


def test_a_large_load_has_its_indexes_sorted(spark, connection, monkeypatch):
    monkeypatch.setattr(bulk, "SPARK_ROWS", 20_000)
    monkeypatch.setattr(spark_job, "PULSE_SECONDS", 0.02)
    run(
        connection, "CREATE TABLE t (id serial PRIMARY KEY, a integer, b text UNIQUE)", "CREATE INDEX t_a ON t (a DESC)"
    )
    told: list[tuple[str, int]] = []

    def load(content: pa.Table) -> int:
        return bulk.insert_arrow(
            connection.session, "t", content, expected=25_000, indexed=lambda *reached: told.append(reached)
        )

    content = pa.table({"a": [i * 7919 % 1_000 for i in range(25_000)], "b": [f"b{i}" for i in range(25_000)]})
    with fails(errors.UNIQUE_VIOLATION, "t_b_key", "(b)=(b0)"):
        load(pa.concat_tables([content, content.slice(0, 1)]))
    with fails(errors.QUERY_CANCELED):
        bulk.insert_arrow(
            connection.session, "t", content, expected=25_000, indexed=lambda *_: connection.session.cancel()
        )
    assert {job.state for job in connection.database.jobs.all() if job.kind == LOAD} == {JobState.FAILED}
    assert value(connection, "SELECT count(*) FROM t") == 0
    assert load(content) == 25_000
    assert {name for name, _ in told} == {"t_b_key", "t_a"}
    assert value(connection, "SELECT count(*) FROM t WHERE a = 17") == 25
    assert value(connection, "SELECT a FROM t WHERE b = 'b17'") == 17 * 7919 % 1_000
    assert rows(connection, "CHECK DATABASE") == []


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_far_years_and_lone_nulls_come_back(spark, connection, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(cli, "EXPORT_SPARK_ROWS", 0)
    run(
        connection,
        *(
            f"CREATE TABLE {name} (i integer PRIMARY KEY, d date, t timestamp, z timestamptz)"
            for name in ("far", "far2")
        ),
        "INSERT INTO far VALUES (1, '0044-03-15 BC', '0044-03-15 12:00:01.5 BC', '0044-03-15 12:00+00 BC'), "
        "(2, '40000-01-01', '40000-01-01', '40000-01-01 00:00+00'), (3, NULL, NULL, NULL), "
        "(4, '2024-02-29', '2024-02-29 01:02:03.000004', '1500-02-28 01:02:03+00')",
        *(f"CREATE TABLE {name} (a text)" for name in ("lone", "lone2")),
        "INSERT INTO lone VALUES (NULL), (''), ('x'), (NULL)",
    )
    for table in ("far", "lone"):
        target = tmp_path / f"{table}.{kind}"
        assert cli.export_table(connection, table, f"{target}/") == 4
        assert cli.import_files(connection, f"{table}2", [target], create=False) == 4
    text = "SELECT i, d::text, t::text, z::text FROM {} ORDER BY i"
    assert rows(connection, text.format("far2")) == rows(connection, text.format("far"))
    assert value(connection, "SELECT count(*) FROM lone2 WHERE a IS NULL") == 2
