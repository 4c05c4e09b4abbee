"""A table batch by batch: what SELECT * gives, as of one moment, and never all of it at once."""

from __future__ import annotations

import pyarrow as pa
import pytest

from instar import errors
from instar.catalog.descriptors import Table
from instar.database.scan import table_rows
from instar.dbapi import Connection
from instar.tables.load import ROWS_PER_BATCH
from support.databases import Engine, run


def table_of(connection: Connection, name: str) -> Table:
    database = connection.database
    with database.store.read() as reader:
        found = database.catalog.at(reader).lookup(None, name)
    assert isinstance(found, Table)
    return found


def test_what_select_gives_as_of_the_moment_of_opening(engine: Engine) -> None:
    connection = engine.connect()
    run(
        connection,
        "create table t (gone int, id int, n numeric(10, 2), at timestamptz, u uuid, b text)",
        "insert into t values (1, 1, 1.5, '2024-01-01 00:00+00', '00000000-0000-0000-0000-000000000001', 'x')",
        "alter table t drop column gone",
        "alter table t add column late bigint default 7",
        "insert into t (id, b) values (2, null), (3, '')",
    )
    wanted = connection.execute("select * from t").fetch_arrow_table()
    with table_rows(connection.session, table_of(connection, "t")) as rows:
        run(connection, "update t set id = 9", "alter table t drop column b", "truncate t")
        found = rows.read_all()
    assert found.schema == wanted.schema
    assert found.to_pylist() == wanted.to_pylist()
    with table_rows(connection.session, table_of(connection, "t")) as rows:
        assert rows.read_all().num_rows == 0


def test_a_large_table_is_never_in_memory_as_a_whole(engine: Engine) -> None:
    connection = engine.connect()
    run(connection, "create table t (id int primary key, b text)")
    count = 400_000
    data = pa.table({"id": pa.array(range(count), pa.int32()), "b": pa.array(["x" * 50] * count)})
    connection.insert_arrow("t", data)
    whole = data.nbytes
    del data
    before, most, sizes = pa.total_allocated_bytes(), 0, []
    with table_rows(connection.session, table_of(connection, "t")) as rows:
        for batch in rows:
            most = max(most, pa.total_allocated_bytes() - before)
            sizes.append(batch.num_rows)
            del batch
    assert sum(sizes) == count
    assert most < whole / 2
    # Few and large, wherever the blocks of the store end: each is a row group of a Parquet file.
    assert set(sizes[:-1]) == {ROWS_PER_BATCH}


def test_it_can_be_cancelled(engine: Engine) -> None:
    connection = engine.connect()
    run(connection, "create table t (id int primary key)")
    connection.insert_arrow("t", pa.table({"id": pa.array(range(300_000), pa.int32())}))
    with table_rows(connection.session, table_of(connection, "t")) as rows:
        rows.read_next_batch()
        connection.session.cancel()
        with pytest.raises(errors.Error) as cancelled:
            rows.read_all()
    assert cancelled.value.sqlstate == errors.QUERY_CANCELED
