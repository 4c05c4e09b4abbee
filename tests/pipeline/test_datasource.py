"""The data source: every type, fixed snapshots, partitions, pushed conditions, refusals."""

from __future__ import annotations

import datetime
import time
import uuid
from decimal import Decimal
from typing import Any

import pytest

from instar import errors
from instar.catalog.descriptors import Layout
from instar.pipeline.datasource import InstarDataSource
from instar.pipeline.failures import from_spark
from instar.store.header import TIMESTAMP_SHIFT
from instar.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    JSONB,
    NUMERIC,
    REAL,
    SMALLINT,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    Kind,
    Type,
)  # fmt: skip
from pipeline.small_database import SmallDatabase

pytestmark = pytest.mark.spark

EVERYTHING = [
    ("id", BIGINT), ("truth", BOOLEAN), ("small", SMALLINT), ("plain", INTEGER), ("single", REAL), ("double", DOUBLE),
    ("price", Type(Kind.NUMERIC, 12, 2)), ("wide", Type(Kind.NUMERIC, 38, 10)), ("exact", NUMERIC), ("name", TEXT),
    ("code", Type(Kind.VARCHAR, length=4)), ("raw", BYTEA), ("day", DATE), ("local", TIMESTAMP),
    ("instant", TIMESTAMPTZ), ("guid", UUID), ("document", JSONB),
]  # fmt: skip
GUID = uuid.UUID("0123abcd-0000-4000-8000-00000000beef")
SECOND = 1_000_000


@pytest.fixture
def spark(spark: Any) -> Any:
    """The session, which knows the format by now."""
    spark.dataSource.register(InstarDataSource)
    return spark


def load(spark: Any, database: SmallDatabase, table: str, **options: object) -> Any:
    reader = spark.read.format("instar").option("path", database.path).option("table", table)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def refusal(action: Any) -> errors.Error:
    """What Instar said when `action` failed in Spark."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        action()
    found = from_spark(caught.value)
    assert isinstance(found, errors.Error)
    return found


def test_every_type(spark, database):
    table = database.create("t", EVERYTHING, ["id"])
    row = (
        1, True, -3, 70_000, 1.5, 1e300, Decimal("12345.67"), Decimal("-0.0000000001"),
        Decimal("123456789012345678901234567890.1"), "ﬁx", "abcd", b"\x00\xff", 19_000, 86_400 * SECOND + 1,
        -1, GUID.bytes, '{"a": 1}',
    )  # fmt: skip
    database.insert(table, [row, (2, *[None] * 16)])
    frame = load(spark, database, "t")
    assert [field.dataType.simpleString() for field in frame.schema] == [
        "bigint", "boolean", "smallint", "int", "float", "double", "decimal(12,2)", "decimal(38,10)", "string",
        "string", "string", "binary", "date", "timestamp_ntz", "timestamp", "string", "string",
    ]  # fmt: skip
    first, second = frame.orderBy("id").collect()
    # A Python datetime of Spark is in the zone of the process, whatever the session's: compare the instant.
    assert first["instant"].timestamp() == pytest.approx(-1e-6, abs=1e-9)
    assert [value for name, value in first.asDict().items() if name != "instant"] == [
        1, True, -3, 70_000, 1.5, 1e300, Decimal("12345.67"), Decimal("-0.0000000001"),
        "123456789012345678901234567890.1", "ﬁx", "abcd", bytearray(b"\x00\xff"), datetime.date(2022, 1, 8),
        datetime.datetime(1970, 1, 2, 0, 0, 0, 1), str(GUID), '{"a": 1}',
    ]  # fmt: skip
    assert set(second.asDict().values()) == {2, None}


def test_a_frame_is_a_snapshot(spark, database):
    table = database.create("t", [("id", BIGINT), ("v", TEXT)], ["id"])
    database.insert(table, [(i, "old") for i in range(20_000)])
    frame = load(spark, database, "t", partitions=4)
    before = database.now
    database.update(table, (7, "old"), (7, "new"))
    database.delete(table, (8, "old"))
    database.insert(table, [(50_000, "new")])
    assert frame.rdd.getNumPartitions() == 4
    assert frame.groupBy("v").count().collect() == [("old", 20_000)]
    assert sorted(map(tuple, load(spark, database, "t").groupBy("v").count().collect())) == [
        ("new", 2),
        ("old", 19_998),
    ]
    assert load(spark, database, "t", timestamp=before).where("v = 'old'").count() == 20_000


def test_a_frame_is_of_a_time(spark, database):
    table = database.create("t", [("id", BIGINT), ("v", TEXT)], ["id"])
    database.insert(table, [(1, "old")])
    then = datetime.datetime.now(datetime.UTC)
    time.sleep(0.01)
    database.update(table, (1, "old"), (1, "new"))

    def read(timestamp: object) -> list[tuple[object, ...]]:
        return list(map(tuple, load(spark, database, "t", timestamp=timestamp).collect()))

    assert read(then.isoformat()) == read(then.replace(tzinfo=None)) == [(1, "old")]
    assert read(then.astimezone(datetime.timezone(datetime.timedelta(hours=5)))) == [(1, "old")]
    assert read(datetime.datetime.now(datetime.UTC)) == read(database.now) == [(1, "new")]


def test_what_is_to_come_and_what_is_misspelt_is_refused(spark, database):
    """Under a timestamp to come a task would see what was committed since another one read."""
    table = database.create("t", [("id", BIGINT)], ["id"])
    database.insert(table, [(1,)])
    for later in (database.now + (60_000 << TIMESTAMP_SHIFT), "2500-01-01", "2500-01-01 00:00:00+01"):
        assert refusal(lambda later=later: load(spark, database, "t", timestamp=later)).sqlstate == "22023"
    assert refusal(lambda: load(spark, database, "t", timestamp="yesterday noon")).sqlstate == "22007"
    unknown = refusal(lambda: load(spark, database, "t", timestmp=database.now))
    assert unknown.sqlstate == "22023"
    assert '"timestmp"' in unknown.message
    assert load(spark, database, "t", PARTITIONS=1).count() == 1


def test_old_layouts_and_chosen_columns(spark, database):
    table = database.create("t", [("id", BIGINT), ("v", TEXT)], ["id"])
    database.insert(table, [(1, "a")])
    column = type(table.columns[0])(id=3, name="w", type=INTEGER, missing="7")
    layout = Layout(2, (*table.layout.columns, (3, INTEGER)))
    table = database.alter(table, columns=(*table.columns, column), layout=layout)
    database.insert(table, [(2, "b", 8)])
    frame = load(spark, database, "t", columns="w, id")
    assert frame.columns == ["w", "id"]
    assert sorted(map(tuple, frame.collect())) == [(7, 1), (8, 2)]


def test_pushed_conditions_read_less(spark, database):
    table = database.create("t", [("a", INTEGER), ("b", TEXT), ("v", INTEGER)], ["a", "b"])
    database.insert(table, [(i % 10, f"k{i:05}", i) for i in range(10_000)])
    pushed = load(spark, database, "t", pushdown="true", partitions=2)
    plain = load(spark, database, "t", partitions=2)
    conditions = [
        "a = 3", "a = 3 and b >= 'k05'", "a > 7", "a between 2 and 4 and v % 2 = 0", "a = 3 and b < 'k002'", "a = 99",
        "b = 'k00042'", "a in (1, 2)", "a = 3 and a = 4",
    ]  # fmt: skip
    for condition in conditions:
        wanted = sorted(map(tuple, plain.where(condition).collect()))
        assert sorted(map(tuple, pushed.where(condition).collect())) == wanted, condition


def test_refusals(spark, database, tmp_path):
    table = database.create("t", [("id", BIGINT)], ["id"])
    assert refusal(lambda: load(spark, database, "nowhere")).sqlstate == errors.UNDEFINED_TABLE
    assert refusal(lambda: load(spark, database, "t", columns="id,x")).sqlstate == errors.UNDEFINED_COLUMN
    assert refusal(lambda: load(spark, database, "t", partitions="many")).sqlstate == errors.INVALID_PARAMETER
    assert refusal(lambda: spark.read.format("instar").option("table", "t").load()).sqlstate == errors.INVALID_PARAMETER
    missing = spark.read.format("instar").option("path", str(tmp_path / "no")).option("table", "t")
    assert refusal(missing.load).sqlstate == errors.IO_ERROR
    frame = load(spark, database, "t")
    saved = frame.write.format("instar").option("path", database.path).option("table", "t").mode("append").save
    assert refusal(saved).sqlstate == errors.FEATURE_NOT_SUPPORTED
    early = database.now
    database.insert(table, [(1,)])
    database.store.collect(database.now, lambda _: [])
    assert refusal(lambda: load(spark, database, "t", timestamp=early).collect()).sqlstate == errors.SNAPSHOT_TOO_OLD
    assert refusal(frame.collect).sqlstate == errors.SNAPSHOT_TOO_OLD
