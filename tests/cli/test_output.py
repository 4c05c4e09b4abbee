"""Results and errors as text, compared with what psql prints."""

from __future__ import annotations

import csv
import datetime
import io
import json
import uuid
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar import errors
from instar.cli import output


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (True, "t"),
        (False, "f"),
        (7, "7"),
        (1.0, "1"),
        (0.1, "0.1"),
        (1e22, "1e+22"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        (Decimal("1E+3"), "1000"),
        (Decimal("1.50"), "1.50"),
        (Decimal("NaN"), "NaN"),
        (b"\x00\xff", "\\x00ff"),
        (datetime.date(2024, 2, 29), "2024-02-29"),
        (datetime.datetime(2024, 2, 29, 1, 2, 3), "2024-02-29 01:02:03"),
        (datetime.datetime(2024, 2, 29, 1, 2, 3, 120000), "2024-02-29 01:02:03.12"),
        (datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC), "2024-02-29 00:00:00+00"),
        (
            datetime.datetime(2024, 2, 29, tzinfo=datetime.timezone(-datetime.timedelta(hours=3, minutes=30))),
            "2024-02-29 00:00:00-03:30",
        ),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    ],
)
def test_values_are_written_as_postgresql_writes_them(value: object, text: str):
    assert output.text_of(value) == text


def columns(*names: str) -> list[output.Column]:
    return [output.Column(name) for name in names]


def table(names: list[str], rows: list[tuple[object, ...]]) -> str:
    file = io.StringIO()
    output.write_table([output.Column(name, "integer" if name == "id" else "text") for name in names], rows, file)
    return file.getvalue()


def test_table_has_psql_shape():
    shown = table(["id", "long_name", "日本"], [(1, "a", None), (-10, "two\nlines", "語")])
    assert shown.splitlines() == [
        " id  | long_name | 日本",
        "-----+-----------+------",
        "   1 | a         |",
        " -10 | two      +| 語",
        "     | lines     |",
        "(2 rows)",
    ]


def test_reals_have_the_shortest_digits_of_32_bits():
    file = io.StringIO()
    real = [output.Column("r", "real")]
    for write in output.WRITERS.values():
        write(real, [(0.10000000149011612,), (None,)], file)
    assert "0.1" in file.getvalue()
    assert "0.10" not in file.getvalue()


def test_table_without_rows_or_columns():
    assert table(["a"], []) == " a\n---\n(0 rows)\n"
    assert table([], [()]).endswith("(1 row)\n")


def test_expanded():
    file = io.StringIO()
    output.write_expanded(columns("id", "name"), [(1, "a\nb"), (2, None)], file)
    assert file.getvalue().splitlines() == [
        "-[ RECORD 1 ]",
        "id   | 1",
        "name | a+",
        "     | b",
        "-[ RECORD 2 ]",
        "id   | 2",
        "name |",
    ]
    file = io.StringIO()
    output.write_expanded(columns("id"), [], file)
    assert file.getvalue() == "(0 rows)\n"


def test_csv_tells_null_from_the_empty_string():
    file = io.StringIO()
    output.write_csv(columns("a", "b,c"), [(None, ""), ("x\ny", 'q"'), (1, True)], file)
    assert file.getvalue() == 'a,"b,c"\n,""\n"x\ny","q"""\n1,t\n'


@given(st.lists(st.tuples(st.text(), st.text(min_size=1)), min_size=1))
def test_csv_is_read_back(rows: list[tuple[str, str]]):
    file = io.StringIO()
    output.write_csv(columns("a", "b"), rows, file)
    back = list(csv.reader(io.StringIO(file.getvalue(), newline="")))
    assert back == [["a", "b"], *map(list, rows)]


def test_json_keeps_digits_types_and_names():
    file = io.StringIO()
    row = (1, Decimal("1.10"), None, "x", float("inf"), datetime.date(2024, 1, 2), b"\x01", True, uuid.UUID(int=2))
    output.write_json(columns(*"abcdefghi"), [row, row], file)
    assert '"b": 1.10' in file.getvalue()
    back = json.loads(file.getvalue())
    assert len(back) == 2
    assert back[0] == {
        "a": 1, "b": 1.1, "c": None, "d": "x", "e": "Infinity", "f": "2024-01-02", "g": "\\x01", "h": True,
        "i": "00000000-0000-0000-0000-000000000002",
    }  # fmt: skip
    file = io.StringIO()
    output.write_json(columns("a", "a"), [(1, 2)], file)
    assert file.getvalue() == '[{"a": 1, "a": 2}]\n'
    file = io.StringIO()
    output.write_json(columns("a"), [], file)
    assert file.getvalue() == "[]\n"


def test_documents_are_shown_as_their_text():
    document = [output.Column("d", "jsonb")]
    rows = [('{"a": 1.50, "b": 123456789012345678901.5}',), ("null",), ('"x"',), (None,)]
    file = io.StringIO()
    output.write_csv(document, rows, file)
    assert file.getvalue() == 'd\n"{""a"": 1.50, ""b"": 123456789012345678901.5}"\nnull\n"""x"""\n\n'
    file = io.StringIO()
    output.write_json(document, rows, file)
    assert file.getvalue() == (
        '[{"d": {"a": 1.50, "b": 123456789012345678901.5}},\n {"d": null},\n {"d": "x"},\n {"d": null}]\n'
    )


def test_error_report():
    error = errors.error(
        errors.UNDEFINED_TABLE, 'relation "t" does not exist', detail="no", hint="CREATE it.", position=22
    )
    assert output.error_report(error, "SELECT\n  1\tAS x\nFROM\tt", "a.sql:3: ").splitlines() == [
        'a.sql:3: ERROR:  42P01: relation "t" does not exist',
        "LINE 3: FROM t",
        "             ^",
        "DETAIL:  no",
        "HINT:  CREATE it.",
    ]
    assert output.error_report(errors.error("XX000", "bad")) == "ERROR:  XX000: bad"


def test_a_caret_stands_under_its_place_in_wide_and_in_long_lines():
    statement = "SELECT '日本', x"
    first, second = output.caret_lines(statement, statement.index("x") + 1)
    assert output.cell_len(first[: first.index("x")]) == len(second) - 1
    long = "SELECT " + "a, " * 100 + "x, " + "b, " * 100
    first, second = output.caret_lines(long, long.index("x") + 1)
    assert len(first) < 150
    assert first.startswith("LINE 1: ...")
    assert first.endswith("...")
    assert first[len(second) - 1] == "x"


def test_a_caret_at_the_end_of_the_input():
    assert output.caret_lines("SELECT", 7) == ["LINE 1: SELECT", "              ^"]


@given(st.text(), st.integers(1, 50))
def test_carets_never_fail(statement: str, position: int):
    output.caret_lines(statement, min(position, len(statement) + 1))


@pytest.mark.parametrize(
    ("command", "count", "tag"),
    [
        ("INSERT", 3, "INSERT 0 3"),
        ("UPDATE", 0, "UPDATE 0"),
        ("SELECT", 5, "SELECT 5"),
        ("CREATE INDEX", -1, "CREATE INDEX"),
    ],
)
def test_command_tags(command: str, count: int, tag: str):
    assert output.command_tag(command, count) == tag


def test_notices():
    assert output.notice_line("it waits: job 3") == "NOTICE:  it waits: job 3"
    assert output.notice_line("WARNING: no transaction") == "WARNING:  no transaction"
    assert output.notice_line('NOTICE:  table "t" does not exist') == 'NOTICE:  table "t" does not exist'
