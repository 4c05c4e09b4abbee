"""dump, plan and apply from end to end: what they print, and their exit statuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from instar.cli.main import app, guarded
from instar.dbapi import connect

SCHEMA = """CREATE TABLE product (
    id bigint NOT NULL,
    name text NOT NULL,
    CONSTRAINT product_pkey PRIMARY KEY (id)
);

CREATE INDEX by_name ON product (name);
"""
ROWS = 20_000


class Done(NamedTuple):
    status: object
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str | Path) -> Done:
        status: object = 0
        try:
            guarded(lambda: app([str(each) for each in arguments]))
        except SystemExit as left:
            status = left.code or 0
        return Done(status, *capsys.readouterr())

    return run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "schema.sql"
    path.write_text(SCHEMA)
    return path


def test_carriage_returns_in_texts_are_kept(tmp_path: Path, file: Path, run: Run):
    file.write_bytes(b"CREATE TABLE t (\r\na text DEFAULT 'a\rb\r\nc'\r\n);\r\n")
    assert run("apply", tmp_path / "cr", file).status == 0
    dumped = run("dump", tmp_path / "cr", "--schema").out
    assert "'a\rb\r\nc'" in dumped
    file.write_bytes(dumped.encode())
    assert run("plan", tmp_path / "cr", file, "--check") == Done(0, run("plan", tmp_path / "cr", file).out, "")


@pytest.fixture
def shop(tmp_path: Path, file: Path, run: Run) -> Path:
    path = tmp_path / "shop"
    done = run("apply", path, file, "--synchronous", "off")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines()[-2:] == ["CREATE INDEX by_name ON product (name)", "APPLY 2"]
    return path


def test_dump_writes_what_was_applied(shop: Path, run: Run):
    assert run("dump", "--schema", shop) == Done(0, SCHEMA, "")


def test_a_dump_of_rows_is_not_supported(shop: Path, run: Run):
    done = run("dump", shop)
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("ERROR:  0A000: a dump of rows is not supported\n")


def test_applied_twice_changes_nothing(shop: Path, file: Path, run: Run):
    assert run("apply", shop, file) == Done(0, "nothing to do\n", "")
    assert run("plan", "--check", shop, file) == Done(0, "-- The database has this schema already.\n", "")
    done = run("plan", "--json", shop, file)
    assert json.loads(done.out) == {"steps": [], "possible": True, "destructive": False}


def test_a_byte_order_mark_is_no_mistake(shop: Path, file: Path, run: Run):
    file.write_text(SCHEMA, encoding="utf-8-sig")
    assert run("plan", "--check", shop, file).status == 0
    assert "ERROR:  42P07" in run("sql", shop, "-f", file).err


def test_plan_checks_and_speaks_json(shop: Path, file: Path, run: Run):
    file.write_text(SCHEMA.replace("    name text NOT NULL,\n", "    name varchar(3),\n    price real,\n"))
    plain, checked = run("plan", shop, file), run("plan", "--check", shop, file)
    assert (plain.status, checked.status) == (0, 2)
    assert plain.out == checked.out
    document = json.loads(run("plan", "--json", shop, file).out)
    assert (document["possible"], document["destructive"]) == (True, True)
    assert [(step["statement"], step["destroys"] is None, step["error"] is None) for step in document["steps"]] == [
        ("ALTER TABLE product ADD COLUMN price real", True, True),
        ("ALTER TABLE product ALTER COLUMN name TYPE character varying(3)", False, True),
        ("ALTER TABLE product ALTER COLUMN name DROP NOT NULL", True, True),
    ]
    assert document["steps"][1]["stages"][0]["change"] == 'table "product": change type "name"'
    assert document["steps"][0]["stages"][0]["change"] == 'table "product": add column "price"'


def test_a_plan_is_a_script(shop: Path, file: Path, tmp_path: Path, run: Run):
    file.write_text(SCHEMA.replace("    name text NOT NULL,\n", "    name text NOT NULL,\n    price real,\n"))
    script = tmp_path / "plan.sql"
    script.write_text(run("plan", shop, file).out)
    assert run("sql", shop, "-f", script).status == 0
    assert run("plan", "--check", shop, file).status == 0


def test_what_destroys_needs_leave(shop: Path, file: Path, run: Run):
    file.write_text("")
    done = run("apply", shop, file)
    assert done.status == 1
    assert "2BP01" in done.err
    assert "--allow-destructive" in done.err
    assert run("dump", "--schema", shop).out == SCHEMA
    assert run("apply", shop, file, "--allow-destructive") == Done(0, "DROP TABLE product\nAPPLY 1\n", "")
    assert run("dump", "--schema", shop).out == ""


def test_what_is_wrong_with_a_file_is_said_with_line_and_column(tmp_path: Path, file: Path, run: Run):
    file.write_text("CREATE TABLE t (a int);\n\nCREATE TABLE u (\n    b inteher);\n")
    done = run("apply", tmp_path / "new", file)
    assert done.status == 1
    assert done.err.splitlines() == [
        f'{file}:4:7: ERROR:  42704: type "inteher" does not exist',
        "LINE 4:     b inteher);",
        "              ^",
    ]
    assert not (tmp_path / "new").exists()


def test_files_that_are_none(tmp_path: Path, file: Path, run: Run):
    assert run("plan", tmp_path, tmp_path / "nothing.sql").status == 1
    file.write_bytes(b"-- \xff")
    assert "22021" in run("plan", tmp_path, file).err


def test_plan_makes_no_database(tmp_path: Path, file: Path, run: Run):
    assert run("plan", tmp_path / "new", file).status == 1
    assert not (tmp_path / "new").exists()


def test_ctrl_c_leaves_the_job_running(shop: Path, file: Path):
    """The transaction is committed when the wait for its job is broken off: the job goes on, and ends."""
    with connect(shop, synchronous=None, autocommit=True) as connection:
        connection.executemany("INSERT INTO product VALUES (?, ?)", [(n, f"{n:09}") for n in range(ROWS)])
        file.write_text(SCHEMA + "CREATE INDEX other ON product (name, id);")
        connection.execute("SET schema_change_mode = async")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "instar.cli.main", "apply", str(shop), str(file)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == b"CREATE INDEX other ON product (name, id)\n"
            while not connection.execute("SHOW JOBS").fetchall()[1:]:
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            error = process.stderr.read().decode()
            assert process.wait(timeout=30) == 1
        # What it has waited for is told before.
        assert all(line.startswith("NOTICE:  job ") for line in error[: error.index("ERROR:")].splitlines())
        assert "ERROR:  57014: canceling statement due to user request\n" in error
        assert "1 of 1 statements had been committed before." in error


def test_an_expression_that_is_too_deep_is_an_error_of_the_file(shop: Path, file: Path, run: Run):
    file.write_text(f"CREATE TABLE t (a int, CHECK ({' + '.join(['a'] * 3000)} > 0));")
    for command in ("plan", "apply"):
        assert run(command, shop, file) == Done(1, "", "ERROR:  54001: an expression is too deeply nested\n")
