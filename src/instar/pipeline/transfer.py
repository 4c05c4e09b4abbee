"""Exports on Spark: a table, at one snapshot, as a directory of Parquet or CSV files, one per key range.

Loads are not done here. One process puts rows as fast as the store's one writer takes them; what Spark is good for in a
load is the order of its index entries (reorganizer.py).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Any

from instar import errors
from instar.pipeline.failures import from_spark
from instar.pipeline.session import spark_session
from instar.pipeline.spark_job import SparkJob

EXPORT_FORMATS = ("parquet", "csv")
# As `instar import` reads it: quotes are doubled.
_CSV = {
    "header": "true",
    "nullValue": "",
    "emptyValue": '""',
    "escape": '"',
}
_LAST_YEAR = 9999  # of four digits
# Dates and times by Spark's types, as Java names their parts; behind a year before Christ stands its era.
_FORMS = {
    "date": "y-MM-dd",
    "timestamp": "y-MM-dd HH:mm:ss.SSSSSSXXX",
    "timestamp_ntz": "y-MM-dd HH:mm:ss.SSSSSS",
}


def _text(column: Any, type_: str) -> Any:
    """A column as SQL's text: of itself Spark has none for bytes, and gives far years a sign."""
    from pyspark.sql import functions as sql

    if type_ == "binary":
        return sql.concat(sql.lit("\\x"), sql.lower(sql.hex(column)))
    form = _FORMS[type_]
    usual = sql.date_format(column, form.replace("y", "yyyy"))
    later = sql.date_format(column, form)
    before = sql.date_format(column, form.replace("y", "yyyy") + " G")
    year = sql.year(column)
    return sql.when(year < 1, before).when(year > _LAST_YEAR, later).otherwise(usual)


def _read(session: Any, path: str, table: str, timestamp: int | None) -> Any:
    """A table as a DataFrame."""
    from instar.pipeline.datasource import InstarDataSource

    # Not before it is needed: Spark then looks for all data sources that are written in Python, for a second.
    session.dataSource.register(InstarDataSource)
    source = session.read.format("instar").option("path", path).option("table", table)
    return (source if timestamp is None else source.option("timestamp", str(timestamp))).load()


def export(
    path: str,
    table: str,
    target: str,
    file_format: str,
    pulse: Callable[[float], None],
    *,
    timestamp: int | None = None,
) -> int:
    """Write a table, as of `timestamp` or now, into directory `target`, which is made; returns the rows.

    CSV has headers; NULL is an empty field, the empty string "". `pulse` is told the share that is done every half
    second, and ends the export by raising; then there is no directory. 0A000 for other formats, 58030 if the directory
    is there already.
    """
    if file_format not in EXPORT_FORMATS:
        raise errors.unsupported(f'exporting to format "{file_format}"')
    if os.path.exists(target):
        raise errors.error(errors.IO_ERROR, f"{target} is there already")
    session = spark_session()
    counted: list[int] = []

    def write() -> None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as sql

        rows = Observation("rows")
        frame = _read(session, path, table, timestamp)
        if file_format == "csv":
            for name, type_ in frame.dtypes:
                if type_ == "binary" or type_ in _FORMS:
                    frame = frame.withColumn(name, _text(sql.col("`" + name.replace("`", "``") + "`"), type_))
        frame = frame.observe(rows, sql.count(sql.lit(1)).alias("count"))
        frame.write.options(**_CSV).format(file_format).save(os.path.realpath(target))
        counted.append(rows.get["count"])

    job = SparkJob(session, "export", write)
    try:
        job.wait(lambda: pulse(job.share))
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    if job.failed is not None:
        shutil.rmtree(target, ignore_errors=True)
        raise from_spark(job.failed) from job.failed
    return counted[0]
