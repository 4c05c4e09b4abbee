"""Files in and out: what is read is what was written, and what is wrong with a file is said."""

from __future__ import annotations

import datetime
import errno
import gzip
import os
import resource
import struct
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

import instar
from instar import errors
from instar.cli import transfer

GZIPPED = gzip.compress(b"id\n1\n", mtime=0)  # the name of a test has it

TABLE = pa.table(
    {
        "id": pa.array([1, 2, None], pa.int64()),
        "flag": pa.array([True, False, None]),
        "price": pa.array([Decimal("1.50"), None, Decimal("-3.00")], pa.decimal128(10, 2)),
        "ratio": pa.array([0.5, None, float("inf")], pa.float64()),
        "name": pa.array(["", None, 'a "quoted",\nline'], pa.string()),
        "raw": pa.array([b"", None, b"\x00\xff"], pa.binary()),
        "day": pa.array([datetime.date(1999, 12, 31), None, datetime.date(1970, 1, 1)], pa.date32()),
        "at": pa.array([datetime.datetime(2024, 2, 29, 1, 2, 3, 456), None, None], pa.timestamp("us")),
        "seen": pa.array(
            [datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC), None, None], pa.timestamp("us", tz="UTC")
        ),
        "key": pa.array([bytes(16), None, bytes(range(16))], pa.binary(16)),
    }
)


class Result:
    """A finished query: what export reads from a cursor."""

    description = None

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __enter__(self) -> Result:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def fetch_arrow_table(self, *, nan_as_text: bool = False) -> pa.Table:
        return self._table


class Connection:
    """A connection on which every query gives one table."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def execute(self, query: str) -> Result:
        return Result(self._table)


def export(table: pa.Table, path: Path) -> None:
    connection: Any = Connection(table)
    assert transfer.export_query(connection, "SELECT", path) == table.num_rows


def read(path: Path, wanted: pa.Schema | None = None) -> pa.Table:
    done: list[int] = []
    with ExitStack() as stack:
        source = transfer.open_source(path, wanted, stack, done.append)
        table = transfer.plain_reader([path], [source], iter(())).read_all()
    assert sum(done) == path.stat().st_size
    return table


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.csv.zst", "t.parquet"])
def test_what_is_exported_is_imported_again(tmp_path: Path, name: str):
    path = tmp_path / name
    export(TABLE, path)
    assert read(path, TABLE.schema).equals(TABLE)
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_uuids_are_uuids_in_files(tmp_path: Path):
    export(TABLE.select(["key"]), tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text().splitlines()[1] == '"00000000-0000-0000-0000-000000000000"'
    export(TABLE.select(["key"]), tmp_path / "t.parquet")
    with ExitStack() as stack:
        schema = transfer.open_source(tmp_path / "t.parquet", None, stack, print).schema
    assert transfer.create_statement("t", schema) == "CREATE TABLE t (key uuid)"


def test_a_failed_export_leaves_the_file_as_it_was(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text("before")
    with pytest.raises(pa.ArrowInvalid):
        export(pa.table({"a": [[1]]}), path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_files_beside_an_export_stay_as_they_are(tmp_path: Path):
    (tmp_path / "t.csv.part").write_text("mine")
    export(TABLE, tmp_path / "t.csv")
    with pytest.raises(pa.ArrowInvalid):
        export(pa.table({"a": [[1]]}), tmp_path / "t.csv")
    assert (tmp_path / "t.csv.part").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_target_that_cannot_be_written_is_named(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / name
    path.mkdir()
    with pytest.raises(errors.Error) as caught:
        export(TABLE, path)
    assert (sqlstate(caught), caught.value.message) == ("42809", f"{path}: Is a directory")
    assert list(tmp_path.iterdir()) == [path]

    def refused(path: Path, exist_ok: bool) -> None:  # root may write everywhere
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "touch", refused)
    with pytest.raises(errors.Error) as caught:
        export(TABLE, path)
    assert (sqlstate(caught), caught.value.message) == ("42501", f"{path}: Permission denied")


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
def test_a_full_disk_is_one(tmp_path: Path, name: str):
    """A limit on files stands for it."""
    table = pa.table({"a": [str(number * number) for number in range(100_000)]})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, hard))
    try:
        with pytest.raises(errors.Error) as caught:
            transfer.export_query(Connection(table), "q", tmp_path / name)  # type: ignore[arg-type]  # as above
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.sqlstate == errors.DISK_FULL
    assert f"the disk is full: {tmp_path / name} could not be written" in caught.value.message
    assert list(tmp_path.iterdir()) == []


def test_csv_of_others(tmp_path: Path):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b'name,id,flag,raw,extra\n"x",1,t,\\x00FF,a\n,2,f,,b\n'))
    table = read(path, TABLE.schema)
    assert table.to_pydict() == {
        "name": ["x", None],
        "id": [1, 2],
        "flag": [True, False],
        "raw": [b"\x00\xff", None],
        "extra": ["a", "b"],
    }


def test_types_are_inferred_where_no_table_gives_them(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text('id,price,day,at,"Name"\n1,1.5,2024-01-01,2024-01-01 00:00:00,x\n')
    assert transfer.create_statement("My table", read(path).schema) == (
        'CREATE TABLE "My table" (id bigint, price double precision, day date, at timestamp, "Name" text)'
    )


@pytest.mark.parametrize(
    ("type_", "name"),
    [
        (pa.int16(), "smallint"),
        (pa.uint16(), "integer"),
        (pa.uint32(), "bigint"),
        (pa.uint64(), "numeric(20,0)"),
        (pa.decimal128(12, 3), "numeric(12,3)"),
        (pa.float32(), "real"),
        (pa.dictionary(pa.int8(), pa.string()), "text"),
        (pa.timestamp("ns", tz="UTC"), "timestamptz"),
        (pa.uuid(), "uuid"),
        (pa.binary(5), "bytea"),
    ],
)
def test_sql_types(type_: pa.DataType, name: str):
    assert transfer.sql_type(type_) == name


def test_files_of_one_import_have_the_same_columns(tmp_path: Path):
    paths = [tmp_path / "a.csv", tmp_path / "b.parquet", tmp_path / "c.csv"]
    export(TABLE, paths[0])
    export(TABLE.select(reversed(TABLE.column_names)), paths[1])
    export(TABLE.select(["id"]), paths[2])
    done: list[int] = []
    with ExitStack() as stack:
        sources = [transfer.open_source(path, TABLE.schema, stack, done.append) for path in paths]
        read = transfer.plain_reader(paths[:2], sources[:1], iter(sources[1:2])).read_all()
        assert read.equals(pa.concat_tables([TABLE, TABLE]))
        with pytest.raises(errors.Error, match=r"is not a column of both .*a.csv and .*c.csv"):
            transfer.plain_reader(paths[::2], sources[:1], iter(sources[2:])).read_all()


def sqlstate(error: pytest.ExceptionInfo[errors.Error]) -> str:
    return error.value.sqlstate


def test_what_cannot_be_is_said(tmp_path: Path):
    with pytest.raises(errors.Error, match=r"Arrow type list") as caught:
        transfer.sql_type(pa.list_(pa.int8()))
    assert sqlstate(caught) == errors.FEATURE_NOT_SUPPORTED
    with pytest.raises(errors.Error, match=r"data.json") as caught:
        transfer.file_format(Path("data.json"))
    assert sqlstate(caught) == errors.FEATURE_NOT_SUPPORTED
    with pytest.raises(errors.Error, match='"b" of relation "t"') as caught:
        transfer.check_names(tmp_path, pa.schema({"b": pa.int8()}), pa.schema({"a": pa.int8()}), "t")
    assert sqlstate(caught) == errors.UNDEFINED_COLUMN
    twice = pa.schema([("a", pa.int8()), ("a", pa.int8())])
    with pytest.raises(errors.Error, match='column "a" more than once') as caught:
        transfer.check_names(tmp_path, twice, pa.schema({"a": pa.int8()}), "t")
    assert sqlstate(caught) == errors.DUPLICATE_COLUMN


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", b"id\n1\nx\n"),
        ("t.csv", b"raw\n\\0g\n"),
        ("t.parquet", b"PAR1 not"),
        ("t.csv.gz", GZIPPED[:20]),
    ],
)
def test_a_broken_file_is_an_error_of_the_file(tmp_path: Path, name: str, content: bytes):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(errors.Error) as caught:
        read(path, TABLE.schema)
    assert sqlstate(caught) == errors.INVALID_TEXT


def test_every_type_comes_back_from_parquet(tmp_path: Path):
    """Those that travel as text have a note of their type beside them; of a query's result all but the length."""
    types = [
        "boolean", "smallint", "integer", "bigint", "real", "double precision", "numeric(9,3)", "numeric", "text",
        "character varying(7)", "character varying", "bytea", "date",
        "timestamp without time zone", "timestamp with time zone", "uuid", "jsonb",
    ]  # fmt: skip
    columns = [f"c{number}" for number in range(len(types))]
    texts = [
        "true", "1", "2", "3", "0.5", "0.25", "1.500", "12345678901234567890.120", "x", "seven 7", "y", "\\x00ff",
        "0044-03-15 BC", "2024-02-29 01:02:03.000456", "2024-02-29 01:02:03+00",
        "00000000-0000-0000-0000-0000000000ff", '{"a": [1, null, 1.50]}',
    ]  # fmt: skip

    def shown(connection: instar.Connection, table: str) -> list[tuple[object, ...]]:
        listed = ", ".join(f"{column}::text" for column in columns)
        return connection.execute(f"SELECT {listed} FROM {table} ORDER BY c0").fetchall()

    def types_of(connection: instar.Connection, table: str) -> list[tuple[object, ...]]:
        query = "SELECT type FROM instar.columns WHERE table_name = ? ORDER BY position"
        return connection.execute(query, (table,)).fetchall()

    with instar.connect(":memory:", autocommit=True) as connection:
        defined = ", ".join(f"{column} {type_}" for column, type_ in zip(columns, types, strict=True))
        connection.execute(f"CREATE TABLE t ({defined})")
        places = ", ".join("?" for _ in columns)
        connection.execute(f"INSERT INTO t VALUES ({places})", texts)
        connection.execute(f"INSERT INTO t VALUES ({places})", [None] * len(types))
        transfer.export_table(connection, "t", str(tmp_path / "t.parquet"))
        transfer.import_files(connection, "u", [tmp_path / "t.parquet"], create=True)
        assert types_of(connection, "u") == types_of(connection, "t") == [(type_,) for type_ in types]
        assert shown(connection, "u") == shown(connection, "t")
        transfer.export_query(connection, "SELECT * FROM t", tmp_path / "q.parquet")
        transfer.import_files(connection, "v", [tmp_path / "q.parquet"], create=True)
        assert types_of(connection, "v") == [(type_.replace("(7)", ""),) for type_ in types]
        assert shown(connection, "v") == shown(connection, "t")


@pytest.mark.parametrize("note", ["jsonb); DROP TABLE t --", "character varying(0)", "uuid", b"\xff"])
def test_a_note_that_no_export_writes_is_passed_over(note: str | bytes):
    schema = pa.schema([pa.field("a", pa.string(), metadata={transfer.TYPE_NOTE: note})])
    assert transfer.create_statement("t", schema) == "CREATE TABLE t (a text)"


def test_a_text_that_is_not_of_the_type_that_is_noted_is_refused(tmp_path: Path):
    with instar.connect(":memory:", autocommit=True) as connection:
        for type_ in ("jsonb", "numeric"):
            schema = pa.schema([pa.field("a", pa.string(), metadata={transfer.TYPE_NOTE: type_})])
            path = tmp_path / f"{type_}.parquet"
            pyarrow.parquet.write_table(pa.table({"a": ["{nothing"]}, schema=schema), path)
            with pytest.raises(errors.Error) as caught:
                transfer.import_files(connection, "t", [path], create=True)
            assert caught.value.sqlstate == "22P02"


@pytest.mark.parametrize(
    ("name", "content", "wrong"),
    [
        ("t.csv", b"", "is empty: it has no header"),
        ("t.csv.gz", gzip.compress(b"", mtime=0), "is empty: it has no header"),
        ("t.csv.gz", b"id\n1\n", "is not compressed with gzip"),
        ("t.csv.gz", b"", "is empty: it has no header"),
        ("t.csv.zst", GZIPPED, "is not compressed with zstd"),
    ],
)
def test_a_file_that_is_not_what_its_name_says_or_has_nothing_in_it_is_refused(
    tmp_path: Path, name: str, content: bytes, wrong: str
):
    path = tmp_path / name
    path.write_bytes(content)
    with instar.connect(":memory:", autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int)")
        for create in (False, True):
            with pytest.raises(errors.Error) as caught:
                transfer.import_files(connection, "u" if create else "t", [path], create=create)
            assert (caught.value.sqlstate, caught.value.message) == ("22P04", f"{path}: the file {wrong}")


def test_a_file_of_zstd_may_begin_with_a_frame_that_is_to_be_skipped(tmp_path: Path):
    path = tmp_path / "t.csv.zst"
    skipped = struct.pack("<II", 0x184D2A50, 4) + b"\1\2\3\4"
    path.write_bytes(skipped + pa.compress(b"id\n1\n2\n", codec="zstd", asbytes=True))
    with instar.connect(":memory:", autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int)")
        assert transfer.import_files(connection, "t", [path], create=False) == 2


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path):
    pipe = tmp_path / "t.csv"
    os.mkfifo(pipe)
    with instar.connect(":memory:", autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int)")
        with pytest.raises(errors.Error) as caught:
            transfer.import_files(connection, "t", [pipe], create=False)
    assert sqlstate(caught) == "0A000"
