"""The commands from end to end, on real databases."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from instar import __version__
from instar.cli.main import app, guarded
from instar.store import open_store


class Done(NamedTuple):
    status: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "shop"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(*arguments: str | Path, stdin: str = "") -> Done:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        status: object = 0
        try:
            guarded(lambda: app([str(each) for each in arguments]))
        except SystemExit as left:
            status = left.code or 0
        captured = capsys.readouterr()
        assert isinstance(status, int)
        return Done(status, captured.out, captured.err)

    return run


@pytest.fixture
def shop(database: Path, run: Run) -> Path:
    """A database with a table of two rows."""
    text = """
    CREATE TABLE product (id bigint PRIMARY KEY, name text NOT NULL, price numeric(10,2));
    INSERT INTO product VALUES (1, 'tea', 3.50), (2, 'coffee', NULL);
    CREATE INDEX by_name ON product (name);
    """
    done = run("sql", database, "--synchronous", "off", stdin=text)
    assert done == Done(0, "CREATE TABLE\nINSERT 0 2\nCREATE INDEX\n", "")
    return database


def test_version(run: Run):
    assert run("--version").out == f"instar {__version__}\n"


def test_results_as_table_csv_and_json(shop: Path, run: Run):
    query = "SELECT id, name, price FROM product ORDER BY id"
    assert run("sql", shop, "-c", query).out.splitlines() == [
        " id |  name  | price",
        "----+--------+-------",
        "  1 | tea    |  3.50",
        "  2 | coffee |",
        "(2 rows)",
    ]
    assert run("sql", shop, "--csv", "-c", query).out == "id,name,price\n1,tea,3.50\n2,coffee,\n"
    assert json.loads(run("sql", shop, "--json", "-c", query).out) == [
        {"id": 1, "name": "tea", "price": 3.5},
        {"id": 2, "name": "coffee", "price": None},
    ]


def test_documents_are_printed_as_postgresql_does(shop: Path, run: Run):
    done = run(
        "sql",
        shop,
        "--csv",
        "-c",
        """SELECT '1.50'::jsonb AS a, 'null'::jsonb AS b, '"x"'::jsonb AS c, 'true'::jsonb AS d""",
    )
    assert done.out == 'a,b,c,d\n1.50,null,"""x""",true\n'


def test_bytes_that_are_no_utf8(shop: Path, tmp_path: Path):
    script = tmp_path / "script.sql"
    script.write_bytes(b"SELECT 1 AS one;\nSELECT '\xff';\n")
    command = [sys.executable, "-m", "instar.cli.main", "sql", str(shop), "--csv", "-f"]
    for file in (str(script), "-"):
        done = subprocess.run([*command, file], input=script.read_bytes(), capture_output=True, check=False)
        assert (done.returncode, done.stdout) == (1, b"one\n1\n")
        assert b":2: ERROR:  22021: invalid character U+DCFF" in done.stderr


@pytest.mark.parametrize(("closed", "out"), [(">&-", ""), ("<&-", "one\n1\n")])
def test_standard_files_that_are_closed(shop: Path, closed: str, out: str):
    command = f"'{sys.executable}' -m instar sql '{shop}' --csv -c 'SELECT 1 AS one' {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, out, "")


def test_programs_see_rows_and_nothing_else(shop: Path, run: Run):
    text = "BEGIN; SELECT 1 AS one; COMMIT; \\dt\n"
    assert run("sql", shop, "--csv", stdin="BEGIN; SELECT 1 AS one; COMMIT;").out == "one\n1\n", text


def test_several_commands_and_files_share_a_session(shop: Path, run: Run, tmp_path: Path):
    script = tmp_path / "script.sql"
    script.write_text("DELETE FROM product;\n\\x\nSELECT count(*) AS n FROM product;\n")
    done = run("sql", shop, "-c", "BEGIN", "-c", "INSERT INTO product VALUES (3, 'a', 1); ROLLBACK", "-f", script)
    assert done.status == 0
    assert done.out.splitlines() == [
        "BEGIN", "INSERT 0 1", "ROLLBACK", "DELETE 2", "Expanded display is on.", "-[ RECORD 1 ]", "n | 0",
    ]  # fmt: skip


def test_the_first_error_ends_a_script(shop: Path, run: Run, tmp_path: Path):
    script = tmp_path / "script.sql"
    script.write_text("-- a script\nSELECT 1 AS one;\n\nSELECT nme\nFROM product;\nDELETE FROM product;\n")
    done = run("sql", shop, "--csv", "-f", script)
    assert done.status == 1
    assert done.out == "one\n1\n"
    first, line, caret = done.err.splitlines()[:3]
    assert first == f'{script}:4: ERROR:  42703: column "nme" does not exist'
    assert line == "LINE 1: SELECT nme"
    assert caret == "               ^"
    assert run("sql", shop, "--csv", "-c", "SELECT count(*) FROM product").out.endswith("\n2\n")


TEXTS = b"CREATE TABLE cr (a int, b text);\r\nINSERT INTO cr -- two\r\nVALUES (1,'a\rb'),\r\n(2,'a\r\nb');\r\n"
KEPT = r"SELECT count(*) FROM cr WHERE b IN (E'a\rb', E'a\r\nb')"


@pytest.mark.parametrize("way", ["-f", "-c", "\\i"])
def test_carriage_returns_in_texts_are_kept(shop: Path, run: Run, tmp_path: Path, way: str):
    (tmp_path / "cr.sql").write_bytes(TEXTS)
    file = f"{tmp_path}/cr.sql"
    given = {"-f": ("-f", file), "-c": ("-c", TEXTS.decode()), "\\i": ("-c", f"\\i {file}")}
    assert run("sql", shop, *given[way]) == Done(0, "CREATE TABLE\nINSERT 0 2\n", "")
    assert run("sql", shop, "--csv", "-c", KEPT).out.endswith("\n2\n")


def test_a_pipe_is_read_as_a_file_is(shop: Path, run: Run):
    """Its carriage returns are kept, a byte order mark is none of it, and bytes that are no UTF-8 are named."""
    for text in (b"\xef\xbb\xbf" + TEXTS, b"\nSELECT '\xff';"):
        done = subprocess.run(command("sql", shop), input=text, capture_output=True, env=ENVIRONMENT, check=False)
    assert done.stderr.startswith(b"<stdin>:2: ERROR:  22021: ")
    assert run("sql", shop, "--csv", "-c", KEPT).out.endswith("\n2\n")


def test_bytes_that_are_no_utf8_are_named_with_their_place(shop: Path, run: Run, tmp_path: Path):
    script = tmp_path / "bin.sql"
    script.write_bytes(b"SELECT 1 AS one;\nSELECT '\xff';\n")
    for given in (["-f", script], ["-c", f"\\i {script}"]):
        done = run("sql", shop, "--csv", *given)
        assert (done.status, done.out) == (1, "one\n1\n")
        assert done.err.startswith(f"{script}:2: ERROR:  22021: ")
        assert "\nLINE 1: SELECT '\ufffd'\n" in done.err


def test_a_comment_that_is_never_closed_is_an_error(shop: Path, run: Run):
    done = run("sql", shop, "--csv", stdin="SELECT 1 AS one;\n/* the rest\nSELECT 2;\n")
    assert (done.status, done.out) == (1, "one\n1\n")
    assert done.err.startswith("<stdin>:2: ERROR:  42601: unterminated /* comment")


def test_a_command_that_fails_ends_a_script(shop: Path, run: Run):
    done = run("sql", shop, stdin="\\dt nothing\nSELECT 1;\n")
    assert done == Done(1, "", "<stdin>:1: Did not find any table named nothing.\n")
    assert run("sql", shop, stdin="\\nonsense\n").status == 1
    assert run("sql", shop, "-c", "\\i gone.sql").err == "ERROR:  58P01: gone.sql: No such file or directory\n"
    assert run("sql", shop, stdin="SELECT 1;\n\\q\nSELECT nothing;\n").status == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("\\nonsense", "invalid command \\nonsense"),
        ("\\i gone.sql", "ERROR:  58P01: gone.sql: No such file or directory"),
        ("\\i '", "ERROR:  42601: invalid file name: No closing quotation"),
        ("\\o '", "ERROR:  42601: invalid file name: No closing quotation"),
        ("\\o /", "ERROR:  42809: /: Is a directory"),
        ("\\i a b", "ERROR:  22023: one file name is needed"),
        ("\\i a\0b", "ERROR:  22023: one file name is needed"),
        ("\\x maybe", 'ERROR:  22023: "maybe" is neither on nor off'),
    ],
)
def test_what_is_wrong_with_a_command_is_told_with_its_place(
    shop: Path, run: Run, tmp_path: Path, text: str, told: str
):
    script = tmp_path / "script.sql"
    script.write_text(f"\n{text}\n")
    (tmp_path / "outer.sql").write_text(f"\\i {script}\n")
    for file in ("script.sql", "outer.sql"):
        done = run("sql", shop, "-f", tmp_path / file)
        assert (done.status, done.out) == (1, "")
        assert done.err.startswith(f"{script}:2: {told}")


def test_a_file_that_includes_itself_is_told(shop: Path, run: Run, tmp_path: Path):
    script = tmp_path / "script.sql"
    script.write_text(f"\\i {script}\n")
    done = run("sql", shop, "-f", script)
    assert done == Done(1, "", f"{script}:1: ERROR:  54000: {script}: files include files more than 50 deep\n")
    script.write_text("SELECT 1 AS one;\n")
    assert run("sql", shop, "--csv", *["-c", f"\\i {script}"] * 60).out == "one\n1\n" * 60


def test_files_that_cannot_be_read_are_told_with_their_sqlstate(shop: Path, run: Run, tmp_path: Path):
    assert run("sql", shop, "-f", "gone.sql").err == "ERROR:  58P01: gone.sql: No such file or directory\n"
    assert run("sql", shop, "-f", tmp_path).err == f"ERROR:  42809: {tmp_path}: Is a directory\n"
    assert run("plan", shop, "gone.sql").err == "ERROR:  58P01: gone.sql: No such file or directory\n"


@pytest.mark.parametrize("size", [1, 100_000])
def test_output_that_is_full_is_one_error(shop: Path, size: int):
    for arguments in (("jobs", str(shop), "--json"), ("sql", str(shop), "-c", f"SELECT repeat('x', {size})")):
        with open("/dev/full", "w") as full:
            asked = command(*arguments)
            done = subprocess.run(asked, stdout=full, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, check=False)
        assert (done.returncode, done.stderr) == (1, "ERROR:  53100: No space left on device\n")


def test_notices_go_to_stderr(shop: Path, run: Run):
    done = run("sql", shop, "-c", "ROLLBACK")
    assert done.status == 0
    assert done.out == "ROLLBACK\n"
    assert done.err == "WARNING:  there is no transaction in progress\n"


def test_describe(shop: Path, run: Run):
    assert run("sql", shop, "-c", "\\d product").out.splitlines()[1:] == [
        " Column |     Type      | Nullable | Default",
        "--------+---------------+----------+---------",
        " id     | bigint        | not null |",
        " name   | text          | not null |",
        " price  | numeric(10,2) |          |",
        "Indexes:",
        '    "product_pkey" PRIMARY KEY (id)',
        '    "by_name" (name)',
    ]
    assert "product" in run("sql", shop, "-c", "\\dt").out
    assert "by_name" in run("sql", shop, "-c", "\\di").out
    # The session's own uncommitted tables, too.
    assert "fresh" in run("sql", shop, "-c", "BEGIN; CREATE TABLE fresh (a integer)", "-c", "\\dt").out


def test_timing_and_output_file(shop: Path, run: Run, tmp_path: Path):
    out = tmp_path / "out"
    done = run("sql", shop, stdin=f"\\timing\n\\o {out}\nSELECT 7 AS seven;\n\\o\nSELECT 8 AS eight;\n")
    assert done.out.startswith("Timing is on.\n")
    assert "seven" not in done.out
    assert "eight" in done.out
    assert "seven" in out.read_text()
    assert "Time: " in out.read_text()


@pytest.mark.parametrize("form", ["--table", "--csv", "--json"])
def test_dates_that_python_has_no_object_for_are_shown_as_text(shop: Path, run: Run, form: str):
    """The third look-up by key would be done in one step; it is shown like the first."""
    look = "SELECT * FROM old WHERE id = 1"
    run("sql", shop, "-c", "CREATE TABLE old (id int PRIMARY KEY, day date, at timestamp, tz timestamptz)")
    run("sql", shop, "-c", "INSERT INTO old VALUES (1, '0044-03-15 BC', '20000-01-01 12:00', '0001-01-01 BC')")
    done = run("sql", shop, form, *(word for _ in range(3) for word in ("-c", look)))
    assert (done.status, done.err) == (0, "")
    for text in ("0044-03-15 BC", "20000-01-01 12:00:00", "0001-01-01 00:00:00+00 BC"):
        assert done.out.count(text) == 3
    done = run("sql", shop, form, "-c", "SELECT day, count(*) FROM old GROUP BY day")
    assert "0044-03-15 BC" in done.out
    assert "2024-02-29" in run("sql", shop, form, "-c", "SELECT '2024-02-29'::date").out


def test_help_names_every_command(shop: Path, run: Run):
    shown = run("sql", shop, "-c", "\\?").out
    assert all(
        name in shown for name in ("\\d ", "\\dt", "\\di", "\\dv", "\\ds", "\\timing", "\\x", "\\i", "\\o", "\\q")
    )


@pytest.mark.parametrize("name", ["check", "jobs", "debug", "worker"])
def test_what_is_no_database_is_not_made_one(name: str, tmp_path: Path, run: Run):
    # The worker lowers its own priority for good: not that of this process.
    told = run_apart if name == "worker" else run
    done = told(name, tmp_path / "gone")
    assert done.status == 1
    assert done.err.startswith("ERROR:  58030: there is no store in ")
    (tmp_path / "other").write_text("")
    done = told(name, tmp_path)
    assert done.status == 1
    assert "not an Instar store" in done.err


@pytest.mark.parametrize(
    "arguments", [["sql", "PATH", "--csv", "--json"], ["export", "PATH", "only.csv"], ["sql"], ["sql", ""], ["nothing"]]
)
def test_misuse_is_status_two(arguments: list[str], run: Run):
    assert run(*arguments).status == 2


def test_durability_is_that_of_the_store(shop: Path, run: Run):
    assert run("sql", shop, "-c", "SELECT 1").status == 0
    done = run("sql", shop, "--synchronous", "full", "-c", "SELECT 1")
    assert done.status == 1
    assert "55000" in done.err


def test_schema_lease_is_that_of_the_store(run: Run, tmp_path: Path):
    assert run("sql", tmp_path / "leased", "--schema-lease", "2.5", "-c", "SELECT 1").status == 0
    assert "2.5" in run("sql", tmp_path / "leased", "-c", "SHOW schema_lease").out
    done = run("sql", tmp_path / "leased", "--schema-lease", "0", "-c", "SELECT 1")
    assert done.status == 1
    assert "55000" in done.err


def test_what_is_kept_of_the_past_is_the_stores(run: Run, tmp_path: Path):
    asked = ["--retention", "86400", "--log-max-bytes", "123456"]
    assert run("sql", tmp_path / "kept", *asked, "-c", "SELECT 1").status == 0
    assert "86400" in run("sql", tmp_path / "kept", "-c", "SHOW retention").out
    assert "123456" in run("sql", tmp_path / "kept", "-c", "SHOW log_max_bytes").out


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
def test_import_and_export(shop: Path, run: Run, tmp_path: Path, name: str):
    file = tmp_path / name
    assert run("export", shop, "product", file).out == "EXPORT 2\n"
    run("sql", shop, "-c", "DELETE FROM product")
    assert run("import", shop, "product", file).out == "IMPORT 2\n"
    assert run("sql", shop, "--csv", "-c", "SELECT * FROM product ORDER BY id").out == (
        "id,name,price\n1,tea,3.50\n2,coffee,\n"
    )
    assert run("import", shop, "copy", file, "--create").out == "IMPORT 2\n"
    assert run("export", shop, "--query", "SELECT name FROM copy WHERE id = 1", tmp_path / "q.csv").out == "EXPORT 1\n"
    done = run("export", shop, "product", tmp_path / "nowhere" / name)
    assert done.status == 1
    assert done.err == f'ERROR:  58030: directory "{tmp_path / "nowhere"}" does not exist\n'
    assert (tmp_path / "q.csv").read_text() == '"name"\n"tea"\n'


def test_export_changes_nothing(shop: Path, run: Run, tmp_path: Path):
    for query in ("DELETE FROM product", "DELETE FROM product RETURNING id", "DROP TABLE product"):
        done = run("export", shop, "--query", query, tmp_path / "q.csv")
        assert done.status == 1
        assert done.err.startswith("ERROR:  25006: cannot execute ")
    assert run("sql", shop, "--csv", "-c", "SELECT count(*) AS n FROM product").out == "n\n2\n"


def test_a_failed_import_leaves_nothing(shop: Path, run: Run, tmp_path: Path):
    (tmp_path / "good.csv").write_text("id,name\n3,milk\n")
    (tmp_path / "bad.csv").write_text("id,name\n1,again\n")
    done = run("import", shop, "product", tmp_path / "good.csv", tmp_path / "bad.csv")
    assert done.status == 1
    assert done.err.startswith("ERROR:  23505: ")
    assert run("sql", shop, "--csv", "-c", "SELECT count(*) FROM product").out.endswith("\n2\n")
    (tmp_path / "odd.csv").write_text("id,name,colour\n3,milk,white\n")
    done = run("import", shop, "product", tmp_path / "odd.csv")
    assert 'column "colour" of relation "product" does not exist' in done.err
    done = run("import", shop, "nothing", tmp_path / "good.csv")
    assert done.err.startswith('ERROR:  42P01: relation "nothing" does not exist')


def test_check_and_jobs(shop: Path, run: Run):
    assert run("check", shop) == Done(0, "no problems found\n", "")
    assert run("jobs", shop).status == 0
    assert isinstance(json.loads(run("jobs", shop, "--json").out), list)


def test_debug_prints_what_lies_there(shop: Path, run: Run):
    run("sql", shop, "-c", "UPDATE product SET price = 4 WHERE id = 1")
    everything = run("debug", shop).out
    assert "store header: catalog version" in everything
    assert "? " not in everything
    rows = run("debug", shop, "product").out
    assert "name='tea'" in rows
    assert "row (1)" in rows
    assert "entry ('coffee') -> (2)" in rows
    assert "updated (1)" in run("debug", shop, "log").out
    assert run("debug", shop, "nothing").err.startswith("ERROR:  42P01: ")


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-c", "from instar.cli.main import main; main()", *map(str, arguments)]


ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src")}


def run_apart(*arguments: str | Path) -> Done:
    """As the fixture `run`, in a process of its own."""
    done = subprocess.run(command(*arguments), capture_output=True, text=True, env=ENVIRONMENT, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


def test_worker_runs_until_it_is_told_to_stop(shop: Path):
    with subprocess.Popen(command("worker", shop), stderr=subprocess.PIPE, env=ENVIRONMENT) as process:
        store = open_store(shop, create=False)
        deadline = time.monotonic() + 30
        while not store.worker_present() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert store.worker_present()
        store.close()
        process.terminate()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(timeout=20) == 0


def test_a_reader_that_has_seen_enough_is_no_error(shop: Path):
    many = command("sql", shop, "--csv", "-c", "SELECT * FROM generate_series(1, 200000)")
    with subprocess.Popen(many, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(100)
        process.stdout.close()
        assert process.stderr.read() == b""


def test_ctrl_c_cancels_the_statement(shop: Path):
    endless = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000000) SELECT count(*) FROM n"
    )
    with subprocess.Popen(
        command("sql", shop, "-c", "SELECT 1 AS ready", "-c", endless),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while "row" not in process.stdout.readline():
            pass
        time.sleep(0.3)
        killer = threading.Timer(20, process.kill)
        killer.start()
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == "ERROR:  57014: canceling statement due to user request\n"
        killer.cancel()
        assert process.wait(timeout=20) == 1
