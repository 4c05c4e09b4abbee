"""Imports that are large for what they meet: on Spark, into tables with rows, broken off."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import instar
from instar import errors
from instar.cli.transfer import estimated_rows, export_table, import_files
from instar.dbapi import Connection
from instar.schemachange.job_records import JobState
from instar.store.engine import PREFIX_ROWSET, prefix_end
from instar.store.records import RowsetState, decode_rowset_record
from support.databases import fails, rows, run, value

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src")}


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    opened = instar.connect(tmp_path / "db", synchronous="off", autocommit=True)
    yield opened
    opened.close()


def data(count: int, begin: int = 0) -> pa.Table:
    numbers = range(begin, begin + count)
    return pa.table({"id": numbers, "a": [i * 7919 % 1_000 for i in numbers], "b": [f"b{i}" for i in numbers]})


def parquet(path: Path, table: pa.Table) -> Path:
    pyarrow.parquet.write_table(table, path, row_group_size=5_000)
    return path


# Arrow reads ahead while the process ends: six times, each in a fork, which has no threads of Arrow but its own.
_BROKEN_OFF = """
import os, signal, sys
from contextlib import ExitStack
from pathlib import Path
from instar import errors
from instar.cli.transfer import open_source

for _ in range(6):
    child = os.fork()
    if child == 0:
        signal.alarm(5)  # a process that does not end is ended
        try:
            with ExitStack() as stack:
                list(open_source(Path(sys.argv[1]), None, stack, lambda amount: None).batches)
        except errors.Error as error:
            sys.exit(0 if error.sqlstate == "22P04" else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_process_ends_while_arrow_reads_ahead(tmp_path: Path):
    """No thread of Arrow's calls Python: when the interpreter ends that aborts the process, or never lets it end."""
    broken = tmp_path / "t.csv"
    broken.write_bytes(b"id,a\n1,2\n1,2,3\n")
    os.truncate(broken, 200 << 20)  # a hole, which takes no room on the disk
    command = [sys.executable, "-c", _BROKEN_OFF, str(broken)]
    ended = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.split() == ["0"] * 6, ended.stderr


def test_rows_are_estimated(tmp_path: Path):
    table = data(20_000)
    pyarrow.csv.write_csv(table, tmp_path / "t.csv")
    assert estimated_rows(parquet(tmp_path / "t.parquet", table)) == 20_000
    assert 15_000 < estimated_rows(tmp_path / "t.csv") < 30_000


def test_into_a_table_with_rows(connection: Connection, tmp_path: Path):
    run(connection, "CREATE TABLE t (id bigint PRIMARY KEY, a integer, b text)", "INSERT INTO t VALUES (7, 1, 'mine')")
    files = [parquet(tmp_path / "1.parquet", data(25_000))]
    run(connection, "SET max_transaction_rows = 20000")
    others = parquet(tmp_path / "others.parquet", data(25_000, 100))
    with fails(errors.LIMIT_EXCEEDED) as failed:
        import_files(connection, "t", [others], create=False)
    assert "--in-batches" in str(failed.error.hint)
    assert value(connection, "SELECT count(*) FROM t") == 1
    assert import_files(connection, "t", files, create=False, in_batches=True) == 24_999
    assert rows(connection, "SELECT b FROM t WHERE id = 7") == [("mine",)]
    files.append(parquet(tmp_path / "2.parquet", data(5_000, 24_000)))
    assert import_files(connection, "t", files, create=False, in_batches=True) == 4_000


@pytest.mark.parametrize(
    ("columns", "known"),
    [
        ("id bigint, a integer, b text", False),
        ("id bigint UNIQUE, a integer, b text", False),  # two rows may have NULL
        ("id bigint, a integer, b text, n serial PRIMARY KEY", False),
        ("id bigint NOT NULL, a integer, b text, n integer DEFAULT 1, PRIMARY KEY (id, n)", False),
        ("id bigint NOT NULL UNIQUE, a integer, b text", True),
        ("id bigint, a integer, b text, n serial UNIQUE, PRIMARY KEY (a, id)", True),
    ],
)
def test_in_batches_is_for_rows_that_are_known_again(connection: Connection, tmp_path: Path, columns: str, known: bool):
    run(connection, f"CREATE TABLE t ({columns})")
    file = parquet(tmp_path / "1.parquet", data(100))
    if known:
        for new in (100, 0):
            assert import_files(connection, "t", [file], create=False, in_batches=True) == new
        return
    with fails(errors.FEATURE_NOT_SUPPORTED, "whose rows have no key"):
        import_files(connection, "t", [file], create=False, in_batches=True)
    run(connection, "INSERT INTO t (id) VALUES (-1)", "SET max_transaction_rows = 10")
    with fails(errors.LIMIT_EXCEEDED) as failed:
        import_files(connection, "t", [file], create=False)
    assert "--in-batches" not in str(failed.error.hint)


def test_a_table_that_is_made_has_no_key_for_batches(connection: Connection, tmp_path: Path):
    with fails(errors.FEATURE_NOT_SUPPORTED, "whose rows have no key"):
        import_files(connection, "t", [parquet(tmp_path / "1.parquet", data(10))], create=True, in_batches=True)
    with fails(errors.UNDEFINED_TABLE):
        value(connection, "SELECT count(*) FROM t")


def test_sequences_fill_whole_batches(connection: Connection, tmp_path: Path):
    run(connection, "CREATE TABLE t (id serial PRIMARY KEY, a integer, b text)", "CREATE TABLE u (a integer)")
    import_files(connection, "t", [parquet(tmp_path / "1.parquet", data(70_000).drop(["id"]))], create=False)
    assert rows(connection, "SELECT min(id), max(id), count(DISTINCT id) FROM t") == [(1, 70_000, 70_000)]
    run(connection, "INSERT INTO t (a) VALUES (1)")
    assert value(connection, "SELECT max(id) FROM t") == 70_001
    import_files(connection, "u", [parquet(tmp_path / "2.parquet", data(20_000).select(["a"]))], create=False)
    assert value(connection, "SELECT count(*) FROM u") == 20_000
    assert rows(connection, "CHECK DATABASE") == []


def test_ctrl_c_leaves_nothing(connection: Connection, tmp_path: Path):
    run(connection, "CREATE TABLE t (id bigint PRIMARY KEY, a integer, b text)", "CREATE INDEX t_a ON t (a)")
    file = parquet(tmp_path / "1.parquet", data(400_000))
    code = "from instar.cli.main import main; main()"
    command = [sys.executable, "-c", code, "import", str(tmp_path / "db"), "t", *[str(file)] * 3]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        jobs = connection.database.jobs
        while not (found := jobs.all()) or not jobs.progress(found[0]).rows_done:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert process.stderr.read() == "ERROR:  57014: canceling statement due to user request\n"
        assert process.wait(timeout=20) == 1
    assert jobs.all()[0].state is JobState.FAILED
    assert value(connection, "SELECT count(*) FROM t") == 0
    # What was loaded is dead: the worker removes it.
    with connection.database.store.read() as reader:
        records = [decode_rowset_record(found) for _, found in reader.scan(PREFIX_ROWSET, prefix_end(PREFIX_ROWSET))]
    assert [record.state for record in records].count(RowsetState.DEAD) == 2


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.csv.gz"])
def test_an_exported_directory_is_imported_as_it_is(connection: Connection, tmp_path: Path, name: str):
    run(connection, "CREATE TABLE t (a integer, b text)", "INSERT INTO t VALUES (1, 'x'), (NULL, '')")
    assert export_table(connection, "t", f"{tmp_path / name}/") == 2
    (tmp_path / name / "_SUCCESS").touch()
    (tmp_path / name / ".part-00000.csv.crc").touch()
    code = "from instar.cli.main import main; main()"
    run(connection, "CREATE TABLE u (a integer, b text)")
    command = [sys.executable, "-c", code, "import", str(tmp_path / "db"), "u", f"{tmp_path / name}/"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.stdout == "IMPORT 2\n"
    assert rows(connection, "SELECT * FROM u ORDER BY a") == [(1, "x"), (None, "")]


def test_a_table_that_was_made_for_an_import_that_fails_does_not_stay(connection: Connection, tmp_path: Path):
    good, other = tmp_path / "good.csv", tmp_path / "other.csv"
    good.write_text("a,b\n1,x\n")
    other.write_text("a,c\n2,y\n")
    with fails(errors.UNDEFINED_COLUMN, "c"):
        import_files(connection, "t", [good, other], create=True)
    assert import_files(connection, "t", [good], create=True) == 1
    with fails(errors.UNDEFINED_COLUMN, "c"):
        import_files(connection, "t", [other], create=False)
    assert rows(connection, "SELECT * FROM t") == [(1, "x")]


@pytest.mark.parametrize("count", [3, 20_000])  # a statement; a load
@pytest.mark.parametrize("in_batches", [False, True])
@pytest.mark.parametrize(
    ("column", "text", "sqlstate"),
    [
        ("b", "four", errors.STRING_TOO_LONG),
        ("c", "{", errors.INVALID_TEXT),
        ("d", "a\0b", errors.CHARACTER_NOT_IN_REPERTOIRE),
    ],
)
def test_what_the_table_finds_wrong_is_told_with_its_row(
    connection: Connection, tmp_path: Path, column: str, text: str, sqlstate: str, in_batches: bool, count: int
) -> None:
    run(connection, "CREATE TABLE t (id int PRIMARY KEY, b varchar(3), c jsonb, d text)")
    bad, good = tmp_path / "bad.csv", tmp_path / "good.csv"
    bad.write_text(f"id,{column}\n" + "".join(f"{number},3\n" for number in range(1, count)) + f"{count},{text}\n")
    good.write_text("id,b,c,d\n0,x,1,\n")
    with fails(sqlstate, f'It is in row {count} of the file, column "{column}".'):
        import_files(connection, "t", [bad], create=False, in_batches=in_batches)
    assert import_files(connection, "t", [good], create=False) == 1


def test_a_directory_without_files_is_said(connection: Connection, tmp_path: Path):
    run(connection, "CREATE TABLE t (a integer)")
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "notes.txt").touch()
    with fails(errors.IO_ERROR, "has no .csv or .parquet files"):
        import_files(connection, "t", [tmp_path / "none"], create=False)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.csv/"])
def test_a_directory_that_is_not_there_is_said(connection: Connection, tmp_path: Path, name: str):
    run(connection, "CREATE TABLE t (a integer)")
    with fails(errors.IO_ERROR, f'directory "{tmp_path / "nowhere"}" does not exist'):
        export_table(connection, "t", f"{tmp_path}/nowhere/{name}")


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet", "t.csv/"])
def test_a_terminated_export_leaves_nothing(connection: Connection, tmp_path: Path, name: str):
    run(connection, "CREATE TABLE t (id bigint PRIMARY KEY, a integer, b text)")
    import_files(connection, "t", [parquet(tmp_path / "1.parquet", data(400_000))], create=False)
    (tmp_path / "out").mkdir()
    code = "from instar.cli.main import main; main()"
    command = [sys.executable, "-c", code, "export", str(tmp_path / "db"), "t", f"{tmp_path}/out/{name}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        while not list((tmp_path / "out").rglob("*.part")):
            assert process.poll() is None
            time.sleep(0.001)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(timeout=20) == 143
    assert list((tmp_path / "out").iterdir()) == []


def test_names_that_are_key_words(connection: Connection, tmp_path: Path):
    words = pa.table({"select": [1, 2], "user": ["a", "b"], 'a "b': [None, 3], "plain": [4, 5]})
    file = parquet(tmp_path / "words.parquet", words)
    assert import_files(connection, "order", [file], create=True) == 2
    run(connection, 'ALTER TABLE "order" ADD PRIMARY KEY ("select")', 'DELETE FROM "order" WHERE "select" = 1')
    assert import_files(connection, "order", [file], create=False, in_batches=True) == 1
    assert rows(connection, 'SELECT "select", "user", "a ""b" FROM "order" ORDER BY 1 LIMIT 1') == [(1, "a", None)]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_said(connection: Connection, tmp_path: Path, encoding: str):
    file = tmp_path / "t.csv"
    file.write_bytes("\ufeffid,a\r\n1,x\r\n2,y\r\n".encode(encoding))
    run(connection, "CREATE TABLE t (id bigint PRIMARY KEY, a text)")
    with fails(errors.CHARACTER_NOT_IN_REPERTOIRE) as failed:
        import_files(connection, "t", [file], create=False)
    assert failed.error.detail == "The file begins as UTF-16 does."
