"""CSV as PostgreSQL writes and reads it, where Arrow's CSV would not do: far years, forms of dates, lone NULLs."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

import instar
from instar import errors
from instar.cli.transfer import export_query, export_table, import_files
from instar.dbapi import Connection
from support.databases import fails, rows, run

TEMPORAL = "SELECT i, d::text, t::text, z::text FROM t ORDER BY i"


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    opened = instar.connect(tmp_path / "db", synchronous="off", autocommit=True)
    yield opened
    opened.close()


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
def test_far_years_are_kept(connection: Connection, tmp_path: Path, name: str):
    run(
        connection,
        "CREATE TABLE t (i integer PRIMARY KEY, d date, t timestamp, z timestamptz)",
        "INSERT INTO t VALUES (1, '0044-03-15 BC', '0044-03-15 12:00:01.5 BC', '0044-03-15 12:00+00 BC'), "
        "(2, '40000-01-01', '40000-01-01', '40000-01-01 00:00+00'), (3, NULL, NULL, NULL), "
        "(4, '2024-02-29', '2024-02-29 01:02:03.000004', '2024-02-29 01:02:03+00')",
        "CREATE VIEW v AS SELECT * FROM t",
    )
    before = rows(connection, TEMPORAL)
    for table in ("t", "v"):
        assert export_table(connection, table, str(tmp_path / name)) == 4
        run(connection, "CREATE TABLE copy (i integer PRIMARY KEY, d date, t timestamp, z timestamptz)")
        assert import_files(connection, "copy", [tmp_path / name], create=False) == 4
        assert rows(connection, TEMPORAL.replace("FROM t", "FROM copy")) == before
        run(connection, "DROP TABLE copy")


def test_far_years_are_written_as_sql_prints_them(connection: Connection, tmp_path: Path):
    query = "SELECT '0044-03-15 BC'::date AS d, '40000-01-01 00:00+00'::timestamptz AS z, NULL::date AS n"
    export_query(connection, query, tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text() == '"d","z","n"\n"0044-03-15 BC","40000-01-01 00:00:00+00",\n'


def test_every_form_of_a_date_is_read(connection: Connection, tmp_path: Path):
    run(connection, "CREATE TABLE t (i integer, d date, t timestamp, z timestamptz)", "SET timezone = 'Europe/Berlin'")
    file = tmp_path / "t.csv"
    file.write_text("i,d,t,z\n1,20240229,2024-02-29 01:02:03.1234567,2024-07-01 00:00\n2,,2024-02-29 01:02+05,\n")
    import_files(connection, "t", [file], create=False)
    assert rows(connection, TEMPORAL) == [
        (1, "2024-02-29", "2024-02-29 01:02:03.123457", "2024-07-01 00:00:00+02"),
        (2, None, "2024-02-29 01:02:00", None),
    ]
    for text, sqlstate in [
        ("x", errors.INVALID_DATETIME_FORMAT),
        ("2024-02-30", errors.DATETIME_OVERFLOW),
        ("0000-01-01", errors.DATETIME_OVERFLOW),
    ]:
        file.write_text(f"i,d\n1,{text}\n")
        with fails(sqlstate):
            import_files(connection, "t", [file], create=False)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.zst"])
def test_lone_nulls_are_rows(connection: Connection, tmp_path: Path, name: str):
    run(connection, "CREATE TABLE t (a text)", "INSERT INTO t VALUES (NULL), (''), ('x'), (NULL)")
    assert export_table(connection, "t", str(tmp_path / name)) == 4
    assert import_files(connection, "t", [tmp_path / name], create=False) == 4
    found = rows(connection, "SELECT a, count(*) FROM t GROUP BY a ORDER BY a")
    assert found == [("", 2), ("x", 2), (None, 4)]
    run(connection, "CREATE TABLE n (a integer)", "INSERT INTO n VALUES (NULL), (1), (NULL)")
    export_table(connection, "n", str(tmp_path / name))
    assert import_files(connection, "n", [tmp_path / name], create=False) == 3


NAN = ("CREATE TABLE n (i int, b numeric(10,2), a numeric(30,2))", "INSERT INTO n VALUES (1, 2, 'NaN'), (2, 3.5, NULL)")


def test_nan_of_a_decimal_column_has_no_place_in_parquet(connection: Connection, tmp_path: Path):
    run(connection, *NAN)
    path = tmp_path / "n.parquet"
    with fails(errors.FEATURE_NOT_SUPPORTED, 'NaN of type numeric(30,2) in column "a"') as failed:
        export_table(connection, "n", str(path))
    assert "Cast it to numeric without a precision in a query" in (failed.error.hint or "")
    with fails(errors.FEATURE_NOT_SUPPORTED, 'NaN of type numeric(30,2) in column "a"'):
        export_query(connection, "SELECT * FROM n", path)
    assert not path.exists()
    assert export_query(connection, "SELECT a::numeric FROM n", path) == 2


def test_nan_of_a_decimal_column_is_text_in_csv(connection: Connection, tmp_path: Path):
    run(connection, *NAN)
    assert export_table(connection, "n", str(tmp_path / "n.csv")) == 2
    assert (tmp_path / "n.csv").read_text() == '"i","b","a"\n1,"2.00","NaN"\n2,"3.50",\n'
    with fails(errors.FEATURE_NOT_SUPPORTED, "loading NaN", 'It is in row 1 of the file, column "a"'):
        import_files(connection, "n", [tmp_path / "n.csv"], create=False)
    assert export_query(connection, "SELECT * FROM n ORDER BY i", tmp_path / "q.csv") == 2
    assert (tmp_path / "q.csv").read_text() == '"i","b","a"\n1,2.00,"NaN"\n2,3.50,\n'


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("content", "values"),
    [
        ('i,a\n1,"x\n2,y\n', None),
        ('i,a\n1,x\n2,"', None),
        ('i,a\n1,x\n2,"\n', None),
        ('i,a\n1,"x ""y""\n2,z', None),
        ('i,a\n1,"""', None),
        ('i,a\n1,"x\r\n', None),
        ('i,a\n1,""', [""]),
        ('i,a\n1,""\n', [""]),
        ('i,a\n1,""""', ['"']),
        ('i,a\n1,""""\n', ['"']),
        ('i,a\n1,"\n"\n', ["\n"]),
        ('i,a\n1,"\n"', ["\n"]),
        ('i,a\n1,"x\n"\n', ["x\n"]),
        ('i,a\n1,"x ""y"""', ['x "y"']),
        ('i,a\n1,5" wide\n', ['5" wide']),
        ('i,a\n1,5" wide', ['5" wide']),
        ('i,a\n1,"x"\n2,\n', ["x", None]),
    ],
)
def test_a_quote_that_is_left_open_is_an_error(
    connection: Connection, tmp_path: Path, content: str, values: list[str | None] | None, suffix: str
):
    run(connection, "CREATE TABLE t (i integer, a text)")
    file = tmp_path / f"t.csv{suffix}"
    file.write_bytes(gzip.compress(content.encode()) if suffix else content.encode())
    if values is None:
        with fails(errors.BAD_COPY_FILE, str(file)):
            import_files(connection, "t", [file], create=False)
        values = []
    else:
        import_files(connection, "t", [file], create=False)
    assert [row[0] for row in rows(connection, "SELECT a FROM t ORDER BY i")] == values


def test_a_quote_that_is_left_open_far_from_the_beginning(connection: Connection, tmp_path: Path):
    file = tmp_path / "t.csv"
    with file.open("w") as out:
        out.write("i,a\n")
        out.writelines(f'{i},"{"x" * 100}"\n' for i in range(200_000))
        out.write('200000,"x\n')
    run(connection, "CREATE TABLE t (i integer, a text)")
    with fails(errors.BAD_COPY_FILE):
        import_files(connection, "t", [file], create=False)
    assert rows(connection, "SELECT count(*) FROM t") == [(0,)]


def test_numbers_and_booleans_are_read_as_sql_reads_them(connection: Connection, tmp_path: Path):
    run(connection, "CREATE TABLE t (i integer, n numeric(5,2), f double precision, r real, b boolean)")
    file = tmp_path / "t.csv"
    file.write_text("i,n,f,r,b\n+1, 1.555 ,-inf,0.1,yes\n1_000,-1e1,1e-7,nan,Off\n3,2,3,4,t\n,,,,\n")
    assert import_files(connection, "t", [file], create=False) == 4
    assert rows(connection, "SELECT i, n::text, f::text, r::text, b FROM t ORDER BY i") == [
        (1, "1.56", "-Infinity", "0.1", True),
        (3, "2.00", "3", "4", True),
        (1000, "-10.00", "1e-07", "NaN", False),
        (None, None, None, None, None),
    ]


@pytest.mark.parametrize(
    ("type_", "value", "sqlstate"),
    [
        ("integer", "x", "22P02"),
        ("integer", "1.0", "22P02"),
        ("integer", "99999999999", "22003"),
        ("smallint", "40000", "22003"),
        ("numeric(5,2)", "999.995", "22003"),
        ("double precision", "-nan", "22P02"),
        ("real", "nan(1)", "22P02"),
        ("timestamp", "2024-01-10 00", "22007"),
        ("timestamptz", "2024-05-29T11+15:59", "22007"),
        ("timestamptz", "2024-05-29T19Z", "22007"),
        ("numeric(38, 10)", "99999999999999999999999999999999.8718937", "22003"),
        ("numeric(38, 10)", "4E38", "22003"),
        ("double precision", "1e400", "22003"),
        ("boolean", "o", "22P02"),
        ("integer", '""', "22P02"),
        ("date", "2024-02-30", "22008"),
        ("real", "1e-60", "22003"),
        ("real", "-0.00001e-60", "22003"),
        ("double precision", "1e-400", "22003"),
        ("timestamptz", "2024-01-01 00:00+16:00", "22009"),
        ("timestamptz", "2024-01-01 00:00:00-2000", "22009"),
        ("bytea", "\\x0", "22023"),
        ("bytea", "\\xg0", "22023"),
        ("bytea", "\\400", "22P02"),
        ("uuid", "000000000000000000000000000000-01", "22P02"),
        ("uuid", "00", "22P02"),
    ],
)
def test_what_is_no_value_is_named_with_its_row(
    connection: Connection, tmp_path: Path, type_: str, value: str, sqlstate: str
):
    run(connection, f"CREATE TABLE t (i integer, v {type_})")
    file = tmp_path / "t.csv"
    file.write_text(f"v,i\n,1\n{value},2\n")
    with fails(sqlstate, 'It is in row 2 of the file, column "v".'):
        import_files(connection, "t", [file], create=False)


def test_bytes_and_uuids_are_read_as_sql_reads_them(connection: Connection, tmp_path: Path):
    run(connection, "CREATE TABLE t (i integer, a bytea, u uuid)")
    texts = ["dead", "ff00", "61-62", "\\xDE ad", "\\336\\\\", "é", '""', ""]
    uuid = "{A0EEBC99-9C0B4EF8-BB6D6BB9-BD380A11}"
    file = tmp_path / "t.csv"
    file.write_text("i,a,u\n" + "".join(f"{i},{text},{uuid}\n" for i, text in enumerate(texts)))
    import_files(connection, "t", [file], create=False)
    found = rows(connection, "SELECT a FROM t ORDER BY i")
    assert [row[0] for row in found] == [b"dead", b"ff00", b"61-62", b"\xde\xad", b"\xde\\", "é".encode(), b"", None]
    assert rows(connection, f"SELECT count(*) FROM t WHERE u = '{uuid}'") == [(len(texts),)]


def test_zeros_and_offsets_that_are_in_range(connection: Connection, tmp_path: Path):
    run(connection, "CREATE TABLE t (r real, d double precision, z timestamptz)")
    file = tmp_path / "t.csv"
    file.write_text("r,d,z\n0e-60,-0.00e9,2024-01-16 00:00+15:59\n1e-45,1e-320,2024-01-16 00:00-12\n,,\n")
    import_files(connection, "t", [file], create=False)
    assert rows(connection, "SELECT r::text, d::text, z::text FROM t ORDER BY r") == [
        ("0", "-0", "2024-01-15 08:01:00+00"),
        ("1e-45", "1e-320", "2024-01-16 12:00:00+00"),
        (None, None, None),
    ]


def test_a_header_that_is_no_utf8(connection: Connection, tmp_path: Path):
    run(connection, "CREATE TABLE t (i integer)")
    file = tmp_path / "t.csv"
    file.write_bytes(b"i,n\xff\n1,2\n")
    for table, create in (("t", False), ("made", True)):
        with fails("22021", str(file), "0xff"):
            import_files(connection, table, [file], create=create)
