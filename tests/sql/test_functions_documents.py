"""jsonb functions and operators: PostgreSQL 15's answers, in both engines."""

from __future__ import annotations

import pytest

from instar import errors
from instar.sql.functions import Function, resolve_function, resolve_operator
from instar.sql.functions.documents import path_steps, position_of
from instar.sql.planner import Engines
from instar.types import BIGINT, DATE, JSONB, TEXT, TIMESTAMP, TIMESTAMPTZ
from instar.values import from_text
from sql.trees import fill, query
from support.world import World

BOTH: tuple[Engines, ...] = ("executor", "analytic")
DOCUMENTS = {
    1: '{"a": 1, "b": [1, 2, {"c": null}], "a b": "x"}',
    2: "[1, 2, 3]",
    3: '"text"',
    4: "{}",
    5: '["a", "b", "a", 1]',
    6: '{"n": null, "p": {"q": [1.0]}}',
    7: "[]",
}


@pytest.fixture(scope="module")
def world() -> World:
    made = World()
    documents = made.create_table("t", (("id", BIGINT), ("d", JSONB)))
    fill(made, documents, [(number, from_text(JSONB, text)) for number, text in DOCUMENTS.items()])
    moments = made.create_table("m", (("id", BIGINT), ("z", TIMESTAMPTZ), ("s", TIMESTAMP), ("d", DATE), ("x", TEXT)))
    types = (TIMESTAMPTZ, TIMESTAMP, DATE)
    rows = [("2024-01-02 03:04:05.5+00",) * 3, ("0044-03-15 01:02:03+00 BC", "0044-03-15 01:02:03 BC", "0044-03-15 BC")]
    converted = [[from_text(type_, text[:19] if type_ != TIMESTAMPTZ and "." in text else text) for type_, text in
                  zip(types, row, strict=True)] for row in rows]  # fmt: skip
    fill(made, moments, [(number, *row, f'"\\{number}') for number, row in enumerate(converted)])
    return made


EXPRESSIONS = [
    ("d || '{\"a\": 2, \"z\": []}'", 1, '{"a": 2, "b": [1, 2, {"c": null}], "z": [], "a b": "x"}'),
    ("d || '4'", 2, "[1, 2, 3, 4]"),
    ("d || '{}'", 2, "[1, 2, 3, {}]"),
    ("d || '1'", 3, '["text", 1]'),
    ("d || '[]'", 4, "[{}]"),
    ("d || '1'", 4, "[{}, 1]"),
    ("d || '1'", 7, "[1]"),
    ("d - 'a'", 1, '{"b": [1, 2, {"c": null}], "a b": "x"}'),
    ("d - 'a'", 5, '["b", 1]'),
    ("d - 1", 2, "[1, 3]"),
    ("d - (-1)", 2, "[1, 2]"),
    ("d - 3", 2, "[1, 2, 3]"),
    ("d #- '{b,2,c}'", 1, '{"a": 1, "b": [1, 2, {}], "a b": "x"}'),
    ("d #- '{b,-1}'", 1, '{"a": 1, "b": [1, 2], "a b": "x"}'),
    ("d #- '{a,x}'", 1, DOCUMENTS[1]),
    ("jsonb_set(d, '{a}', '[9]')", 1, '{"a": [9], "b": [1, 2, {"c": null}], "a b": "x"}'),
    ("jsonb_set(d, '{b,2,e}', '9')", 1, '{"a": 1, "b": [1, 2, {"c": null, "e": 9}], "a b": "x"}'),
    ("jsonb_set(d, '{b,2,e}', '9', false)", 1, DOCUMENTS[1]),
    ("jsonb_set(d, '{x,y}', '9')", 1, DOCUMENTS[1]),
    ("jsonb_set(d, '{5}', '9')", 2, "[1, 2, 3, 9]"),
    ("jsonb_set(d, '{-5}', '9')", 2, "[9, 1, 2, 3]"),
    ("jsonb_set(d, '{-1}', '9')", 2, "[1, 2, 9]"),
    ("jsonb_set(d, '{}', '9')", 2, "[1, 2, 3]"),
    ("jsonb_insert(d, '{1}', '9')", 2, "[1, 9, 2, 3]"),
    ("jsonb_insert(d, '{1}', '9', true)", 2, "[1, 2, 9, 3]"),
    ("jsonb_insert(d, '{-9}', '9')", 2, "[9, 1, 2, 3]"),
    ("jsonb_insert(d, '{z}', '9')", 4, '{"z": 9}'),
    ("jsonb_strip_nulls(d)", 1, '{"a": 1, "b": [1, 2, {}], "a b": "x"}'),
    ("d #> '{n,null}'", 6, None),
    ("d #> '{NULL}'", 6, None),
    ("jsonb_build_object('k', d, 1.50, id, true, null, 'f', 1e20::float8, 'g', 'NaN'::float8)", 4,
     '{"f": 100000000000000000000, "g": "NaN", "k": {}, "1.50": 4, "true": null}'),
    ("jsonb_build_object('a', 1, 'bb', 2, 'a', 3)", 4, '{"a": 3, "bb": 2}'),
    ("jsonb_build_array(d, id::numeric(5,2), 'x\"', id = 4, null)", 4, '[{}, 4.00, "x\\"", true, null]'),
    ("jsonb_build_array()", 4, "[]"),
    ("jsonb_build_object()", 4, "{}"),
    ("to_jsonb(id::numeric / 3)", 4, "1.3333333333333333"),
    ("to_jsonb((-0.0)::float8)", 4, "0"),
    ("to_jsonb(nullif(id, 4))", 4, None),
    ("to_jsonb('00000000-0000-0000-0000-000000000001'::uuid)", 4, '"00000000-0000-0000-0000-000000000001"'),
    ("to_jsonb('\\x00ff'::bytea)", 4, '"\\\\x00ff"'),
    ("jsonb_pretty(d)", 6, '{\n    "n": null,\n    "p": {\n        "q": [\n            1.0\n        ]\n    }\n}'),
    ("jsonb_pretty(d)", 7, "[\n]"),
]  # fmt: skip


@pytest.mark.parametrize("engines", BOTH)
@pytest.mark.parametrize(("expression", "row", "expected"), EXPRESSIONS)
def test_documents(world: World, engines: Engines, expression: str, row: int, expected: str | None) -> None:
    assert query(world, f"SELECT {expression} FROM t WHERE id = {row}", engines=engines) == [(expected,)]


@pytest.mark.parametrize("engines", BOTH)
@pytest.mark.parametrize(
    ("condition", "ids"),
    [
        ("d @> '{\"a\": 1.0}'", [1]),
        ("d @> '{\"b\": [{}]}'", [1]),
        ("d @> '{\"b\": [[1]]}'", []),
        ("d @> '{}'", [1, 4, 6]),
        ("d @> '[]'", [2, 5, 7]),
        ("d @> '1'", [2, 5]),
        ("d @> '[1, 1]'", [2, 5]),
        ("d @> '[true]'", []),
        ("d @> '\"text\"'", [3]),
        ("d @> '[\"text\"]'", []),
        ('d @> \'{"p": {"q": [1]}}\'', [6]),
        ("d <@ '[3, 2, 1, 0, \"text\"]'", [2, 3, 7]),
        ("d ? 'a'", [1, 5]),
        ("d ? 'text'", [3]),
        ("d ? 'a' AND id + 1 < 5", [1]),
        ("jsonb_exists(d, 'n')", [6]),
    ],
)
def test_containment(world: World, engines: Engines, condition: str, ids: list[int]) -> None:
    rows = query(world, f"SELECT id FROM t WHERE {condition} ORDER BY id", engines=engines)
    assert [number for (number,) in rows] == ids


def test_a_question_mark_is_an_operator_behind_an_operand_and_a_parameter_elsewhere(world: World) -> None:
    assert query(world, "SELECT id FROM t WHERE d ? ? AND id > ?", "a", 1) == [(5,)]


@pytest.mark.parametrize("engines", BOTH)
def test_moments_are_written_as_xml_schema_has_them(world: World, engines: Engines) -> None:
    found = query(world, "SELECT jsonb_build_array(z, s, d, x) FROM m ORDER BY id", engines=engines)
    assert [text for (text,) in found] == [
        '["2024-01-02T03:04:05.5+00:00", "2024-01-02T03:04:05", "2024-01-02", "\\"\\\\0"]',
        '["0044-03-15T01:02:03+00:00 BC", "0044-03-15T01:02:03 BC", "0044-03-15 BC", "\\"\\\\1"]',
    ]


@pytest.mark.parametrize("engines", BOTH)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT jsonb_agg(id ORDER BY id DESC) FROM t WHERE id < 4", [("[3, 2, 1]",)]),
        ("SELECT jsonb_agg(nullif(id, 2) ORDER BY id) FROM t WHERE id < 4", [("[1, null, 3]",)]),
        ("SELECT jsonb_agg(id) FROM t WHERE id < 0", [(None,)]),
        ("SELECT jsonb_agg(DISTINCT nullif(id % 3, 1)) FROM t", [("[0, 2, null]",)]),
        ("SELECT jsonb_agg(DISTINCT id % 3 ORDER BY id % 3 DESC) FROM t", [("[2, 1, 0]",)]),
        ("SELECT jsonb_agg(d ORDER BY id) FILTER (WHERE id > 5) FROM t", [(f"[{DOCUMENTS[6]}, []]",)]),
        ("SELECT jsonb_object_agg('k' || id, d ORDER BY id) FROM t WHERE id IN (2, 4)",
         [('{"k2": [1, 2, 3], "k4": {}}',)]),
        ("SELECT jsonb_object_agg(id % 2, id ORDER BY id) FROM t", [('{"0": 6, "1": 7}',)]),
        ("SELECT jsonb_object_agg(id, id) FROM t WHERE id < 0", [(None,)]),
        ("SELECT id, x FROM t, jsonb_array_elements(d) AS x WHERE id = 5 AND x <> '\"a\"' ORDER BY 2",
         [(5, '"b"'), (5, "1")]),
        ("SELECT x.value FROM t, jsonb_array_elements_text(d #> '{b}') AS x WHERE id = 1 ORDER BY 1",
         [("1",), ("2",), ('{"c": null}',)]),
        ("SELECT value FROM jsonb_array_elements_text('[null]')", [(None,)]),
        ("SELECT t.id, k FROM t CROSS JOIN LATERAL jsonb_object_keys(d) k WHERE id IN (1, 4) ORDER BY 2",
         [(1, "a"), (1, "a b"), (1, "b")]),
        ("SELECT g FROM generate_series(1, 2) g ORDER BY g", [(1,), (2,)]),
    ],
)  # fmt: skip
def test_aggregates_and_sets(world: World, engines: Engines, text: str, expected: list[tuple[object, ...]]) -> None:
    assert query(world, text, engines=engines) == expected


@pytest.mark.parametrize("engines", BOTH)
@pytest.mark.parametrize(
    ("expression", "row", "sqlstate", "message"),
    [
        ("d - 'a'", 3, "22023", "cannot delete from scalar"),
        ("d - 1", 4, "22023", "cannot delete from object using integer index"),
        ("d #- '{a}'", 3, "22023", "cannot delete path in scalar"),
        ("jsonb_set(d, '{a}', '1')", 3, "22023", "cannot set path in scalar"),
        ("jsonb_set(d, '{a}', '1')", 2, "22P02", 'path element at position 1 is not an integer: "a"'),
        ("jsonb_set(d, '{99999999999}', '1')", 2, "22P02", "path element at position 1 is not an integer"),
        ("jsonb_set(d, '{a,NULL}', '1')", 1, "22004", "path element at position 2 is null"),
        ("jsonb_insert(d, '{a}', '1')", 1, "22023", "cannot replace existing key"),
        ("jsonb_build_object('a', id, 'b')", 1, "22023", "argument list must have even number of elements"),
        ("jsonb_build_object(nullif('a', 'a'), id)", 1, "22023", "argument 1: key must not be null"),
        ("jsonb_build_object(d, id)", 1, "22023", "key value must be scalar, not array, composite, or json"),
    ],
)
def test_errors(world: World, engines: Engines, expression: str, row: int, sqlstate: str, message: str) -> None:
    with pytest.raises(errors.Error, match=message) as caught:
        query(world, f"SELECT {expression} FROM t WHERE id = {row}", engines=engines)
    assert caught.value.sqlstate == sqlstate


@pytest.mark.parametrize("engines", BOTH)
@pytest.mark.parametrize(
    ("text", "sqlstate", "message"),
    [
        ("SELECT jsonb_agg(z) FROM m", "0A000", "an aggregate of timestamptz into jsonb is not supported"),
        ("SELECT jsonb_object_agg(nullif(id, 1), 1) FROM t", "22023", "field name must not be null"),
        ("SELECT * FROM jsonb_array_elements('{}')", "22023", "cannot extract elements from an object"),
        ("SELECT * FROM jsonb_array_elements_text('1')", "22023", "cannot extract elements from a scalar"),
        ("SELECT * FROM jsonb_object_keys('[]')", "22023", "cannot call jsonb_object_keys on an array"),
    ],
)
def test_errors_of_queries(world: World, engines: Engines, text: str, sqlstate: str, message: str) -> None:
    with pytest.raises(errors.Error, match=message) as caught:
        query(world, text, engines=engines)
    assert caught.value.sqlstate == sqlstate


def test_a_document_that_is_nested_too_deeply_is_told_as_that() -> None:
    deep = "[" * 5000 + "]" * 5000
    for found in (resolve_operator("@>", [JSONB, JSONB]), resolve_function("jsonb_pretty", [JSONB])):
        assert isinstance(found.entry, Function)
        with pytest.raises(errors.Error) as caught:
            found.entry.closure(found.arguments)(*[deep for _ in found.arguments])
        assert caught.value.sqlstate == "54000"


@pytest.mark.parametrize(
    ("path", "steps"),
    [
        (r"{a\\b}", [r"a\b"]),
        (r" {a\,b , c\}\"} ", ["a,b", 'c}"']),
        (r"{a\ }", ["a "]),
        (r"{\ , b c }", [" ", "b c"]),
        (r'{"a\"b", " c ", ""}', ['a"b', " c ", ""]),
        (r'{null,NULL,nul\l,\null,"null"}', [None, None, "null", "null", "null"]),
        ("{ }", []),
        ("{\u00a0}", ["\u00a0"]),  # no space to PostgreSQL
    ],
)
def test_a_path_is_read_as_the_text_of_an_array(path: str, steps: list[str | None]) -> None:
    assert path_steps(path) == steps


@pytest.mark.parametrize("path", ["{a,}", "{,a}", "{a, }", r"{a\}", '{a"b"}', '{"a"b}', "{{a}}", "{a} b", "", "{"])
def test_no_path(path: str) -> None:
    with pytest.raises(errors.Error, match="malformed array literal"):
        path_steps(path)


@pytest.mark.parametrize(
    ("step", "position"),
    [
        ("1", 1),
        ("+1", 1),
        (" -1", -1),
        ("0" * 5000 + "7", 7),
        ("2147483647", 2**31 - 1),
        ("2147483648", None),
        ("-2147483649", None),
        ("9" * 5000, None),
        ("1 ", None),
        ("1_0", None),
        ("\u0663", None),  # a digit of another script
        ("", None),
    ],
)
def test_positions_are_what_postgresql_takes_for_integers(step: str, position: int | None) -> None:
    assert position_of(step) == position
