"""ALTER TABLE ... SPLIT and JOIN: what is read, what is refused by name, and that their words are names still."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from instar.errors import Error
from instar.sql import statements as ast
from instar.sql.parser import parse, parse_one
from instar.sql.transformation_statements import (
    JoinTables,
    Reference,
    Source,
    SplitTable,
    Target,
    TargetColumn,
    TransformationOptions,
)

T, R, S = ast.Name("t"), ast.Name("r"), ast.Name("s")
SPLIT = SplitTable(T, Target(R, ("id", "a")), Target(S, ("a", "b")), ("a",))
SPLIT_TEXT = "ALTER TABLE t SPLIT INTO r (id, a), s (a, b) ON (a)"
JOIN_TEXT = "ALTER TABLE r JOIN s ON r.x = s.y INTO t (id)"
ID = TargetColumn(Reference("id"))
RX, SY = Reference("x", R), Reference("y", S)


def joined(**changes: object) -> JoinTables:
    made: dict[str, object] = {"r": Source(R), "s": Source(S), "into": T, "columns": (ID,), "on": ((RX, SY),)}
    return JoinTables(**(made | changes))  # type: ignore[arg-type] # each has its own


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        (SPLIT_TEXT, SPLIT),
        (SPLIT_TEXT.replace("INTO", "IN PLACE INTO"), replace(SPLIT, in_place=True)),
        ("alter table only t * split into r (id, a), s (a, b) on (a)", SPLIT),
        (
            "ALTER TABLE a.t SPLIT INTO public.r (id), s (b) ON (c, d)",
            SplitTable(ast.Name("t", "a"), Target(ast.Name("r", "public"), ("id",)), Target(S, ("b",)), ("c", "d")),
        ),
        (JOIN_TEXT, joined()),
        ("ALTER TABLE r FULL JOIN s ON (r.x = s.y) INTO t (id)", joined()),
        ("ALTER TABLE r FULL OUTER JOIN s ON (((r.x) = s.y)) INTO t (id)", joined()),
        (
            "ALTER TABLE r AS a JOIN s b ON a.x = y AND (z = b.z) INTO public.t (id, a.x AS k, public.s.y)",
            joined(
                r=Source(R, "a"),
                s=Source(S, "b"),
                on=(
                    (Reference("x", ast.Name("a")), Reference("y")),
                    (Reference("z"), Reference("z", ast.Name("b"))),
                ),
                into=ast.Name("t", "public"),
                columns=(
                    ID,
                    TargetColumn(Reference("x", ast.Name("a")), "k"),
                    TargetColumn(Reference("y", ast.Name("s", "public"))),
                ),
            ),
        ),
        ("ALTER TABLE r a JOIN s USING (x, y) INTO t (id)", joined(r=Source(R, "a"), on=(), using=("x", "y"))),
        ('ALTER TABLE r JOIN s USING (x) INTO t (id AS "Join")', None),
    ],
)
def test_what_is_read(text: str, statement: ast.Statement | None) -> None:
    found = parse_one(text)
    assert found == statement or (statement is None and isinstance(found, JoinTables))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", TransformationOptions()),
        ("WITH (repair = 'fail')", TransformationOptions("fail")),
        ("WITH (repair = newest)", TransformationOptions("newest")),
        ("WITH (repair = 'most frequent', pause_rows = 7)", TransformationOptions("most frequent", 7)),
        ("WITH (keep_views = true)", TransformationOptions(keep_views=True)),
        ("WITH (pause_rows = 3, keep_views = 'false')", TransformationOptions(None, 3)),
        ("WITH (pause_rows = '100000', strategy = 'abort')", TransformationOptions(None, 100000, "abort")),
        ("WITH (strategy = commit, grace = '1.5 s')", TransformationOptions(strategy="commit", grace=1_500_000)),
        ("WITH (strategy = 'block', grace = 20)", TransformationOptions(strategy="block", grace=20_000)),
        ("WITH (grace = '1h', strategy = 'block')", TransformationOptions(strategy="block", grace=3_600_000_000)),
        ("WITH (grace = 0, strategy = commit)", TransformationOptions(strategy="commit", grace=0)),
        ("WITH (grace = 1.5, strategy = commit)", TransformationOptions(strategy="commit", grace=1_500)),
        ("WITH (pause_rows = +4, priority = -3)", TransformationOptions(None, 4, priority=-3)),
        ("WITH (priority = -3)", TransformationOptions(priority=-3)),
    ],
)
def test_options(options: str, expected: TransformationOptions) -> None:
    split = parse_one(f"{SPLIT_TEXT} {options}")
    assert isinstance(split, SplitTable)
    assert split.options == expected
    if expected.repair is None:
        join = parse_one(f"{JOIN_TEXT} {options}")
        assert isinstance(join, JoinTables)
        assert join.options == expected


@pytest.mark.parametrize(
    "text",
    [
        "ALTER TABLE split SPLIT INTO into_ (split), strategy (join_, repair) ON (split)",
        "ALTER TABLE split JOIN outer_ ON repair = pause_rows INTO strategy (split AS into)",
        "ALTER TABLE split split JOIN repair add USING (newest) INTO split (split.newest)",
        "ALTER TABLE add add JOIN drop drop ON add.add = drop.drop INTO rename (add.add)",
        'ALTER TABLE "join" AS "full" JOIN "left" "into" ON "full"."join" = "into"."on" INTO "using" ("full"."join")',
    ],
)
def test_words_of_these_statements_are_names(text: str) -> None:
    assert isinstance(parse_one(text), SplitTable | JoinTables)


@pytest.mark.parametrize(
    "text",
    [
        "ALTER TABLE split ADD split int, DROP repair, ALTER strategy SET DEFAULT 1",
        "ALTER TABLE t RENAME split TO pause_rows",
        "SELECT split.split AS join, repair AS into FROM split AS strategy JOIN split ON true",
        "CREATE TABLE split (split int, repair int, pause_rows int, strategy int, keep_views int)",
    ],
)
def test_other_statements_have_them_as_names(text: str) -> None:
    assert not isinstance(parse_one(text), SplitTable | JoinTables)


@pytest.mark.parametrize(
    ("text", "what", "position"),
    [
        ("ALTER TABLE r LEFT JOIN s ON r.x = s.y INTO t (id)", "ALTER TABLE ... LEFT JOIN", 15),
        ("ALTER TABLE r a RIGHT OUTER JOIN s ON r.x = s.y INTO t (id)", "ALTER TABLE ... RIGHT JOIN", 17),
        ("ALTER TABLE r INNER JOIN s ON r.x = s.y INTO t (id)", "ALTER TABLE ... INNER JOIN", 15),
        ("ALTER TABLE r CROSS JOIN s INTO t (id)", "ALTER TABLE ... CROSS JOIN", 15),
        ("ALTER TABLE r NATURAL FULL JOIN s INTO t (id)", "ALTER TABLE ... NATURAL JOIN", 15),
        ("ALTER TABLE r UNION s INTO t", "ALTER TABLE ... UNION", 15),
        ("ALTER TABLE r INTERSECT s INTO t", "ALTER TABLE ... INTERSECT", 15),
        ("ALTER TABLE r EXCEPT s INTO t", "ALTER TABLE ... EXCEPT", 15),
        ("ALTER TABLE r MERGE WITH s INTO t", "ALTER TABLE ... MERGE", 15),
        ("ALTER TABLE r JOIN s JOIN u ON s.a = u.a ON r.a = s.a INTO t (a)", "a join of more than two tables", 22),
        ("ALTER TABLE r JOIN s USING (a) LEFT JOIN u USING (a) INTO t (a)", "a join of more than two tables", 32),
        (
            "ALTER TABLE r JOIN s ON r.x < s.y INTO t (id)",
            "a condition of ALTER TABLE ... JOIN other than equalities of columns",
            29,
        ),
        (
            "ALTER TABLE r JOIN s ON r.x = s.y OR r.x = s.z INTO t (id)",
            "a condition of ALTER TABLE ... JOIN other than equalities of columns",
            35,
        ),
        (
            "ALTER TABLE r JOIN s ON r.x = s.y AND r.z = 1 INTO t (id)",
            "a condition of ALTER TABLE ... JOIN other than equalities of columns",
            None,
        ),
        (
            "ALTER TABLE r JOIN s ON true INTO t (id)",
            "a condition of ALTER TABLE ... JOIN other than equalities of columns",
            None,
        ),
        (
            "ALTER TABLE r JOIN s ON (r.x, r.y) = (s.x, s.y) INTO t (id)",
            "a condition of ALTER TABLE ... JOIN other than equalities of columns",
            None,
        ),
        (
            "ALTER TABLE t SPLIT INTO r (id, a), s (a, b), u (a) ON (a)",
            "a split into more than two tables",
            45,
        ),
        (f"{SPLIT_TEXT}, ADD c int", "SPLIT together with other actions in one statement", 52),
        (f"{JOIN_TEXT}, ADD c int", "JOIN together with other actions in one statement", 46),
        (
            "ALTER TABLE t ADD c int, SPLIT INTO r (id), s (a) ON (a)",
            "SPLIT together with other actions in one statement",
            26,
        ),
        (
            "ALTER TABLE t ADD c int, JOIN s ON a = b INTO u (a)",
            "JOIN together with other actions in one statement",
            26,
        ),
        (
            "ALTER TABLE IF EXISTS t SPLIT INTO r (id), s (a) ON (a)",
            "IF EXISTS of ALTER TABLE ... SPLIT",
            25,
        ),
        ("ALTER TABLE IF EXISTS r JOIN s USING (a) INTO t (a)", "IF EXISTS of ALTER TABLE ... JOIN", 25),
        ("ALTER TABLE r JOIN s USING (x) INTO t (a.b.c.d)", "a reference to another database", 40),
    ],
)
def test_what_is_not_supported_is_named(text: str, what: str, position: int | None) -> None:
    with pytest.raises(Error) as caught:
        parse(text)
    assert (caught.value.sqlstate, caught.value.message) == ("0A000", f"{what} is not supported")
    assert position is None or caught.value.position == position


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (f"{SPLIT_TEXT} WITH (speed = 1)", 'unrecognized parameter "speed"', "repair, pause_rows, strategy, grace"),
        (f"{JOIN_TEXT} WITH (repair = 'fail')", 'unrecognized parameter "repair"', ": pause_rows, strategy, grace, "),
        (f"{SPLIT_TEXT} WITH (repair = 'oldest')", '"repair": "oldest"', "fail, most frequent, newest"),
        (f"{SPLIT_TEXT} WITH (pause_rows = 0)", '"pause_rows": "0"', "from 1 to 100000"),
        (f"{SPLIT_TEXT} WITH (pause_rows = -5)", '"pause_rows": "-5"', "from 1"),
        (f"{SPLIT_TEXT} WITH (pause_rows = 2147483648)", '"pause_rows": "2147483648"', "from 1"),
        (f"{SPLIT_TEXT} WITH (pause_rows = 'all')", '"pause_rows": "all"', "from 1"),
        (f"{SPLIT_TEXT} WITH (keep_views = maybe)", '"keep_views": "maybe"', "true, false"),
        (f"{SPLIT_TEXT} WITH (strategy = 'hope')", '"strategy": "hope"', "abort, commit, block"),
        (f"{SPLIT_TEXT} WITH (strategy = block, grace = '61 min')", '"grace": "61 min"', "at most an hour"),
        (f"{SPLIT_TEXT} WITH (strategy = block, grace = -1)", '"grace": "-1"', "at most an hour"),
        (f"{SPLIT_TEXT} WITH (grace = '1 s')", 'parameter "grace" is for a strategy that', "commit, block"),
        (f"{JOIN_TEXT} WITH (strategy = 'abort', grace = '1 s')", 'parameter "grace" is for', "commit, block"),
        (f"{JOIN_TEXT} WITH (priority = 1.5)", '"priority": "1.5"', "from -1000 to 1000"),
        (f"{JOIN_TEXT} WITH (pause_rows = 1e3)", '"pause_rows": "1e3"', "from 1 to 100000"),
        (f"{JOIN_TEXT} WITH (priority = 1001)", '"priority": "1001"', "from -1000 to 1000"),
        (f"{JOIN_TEXT} WITH (priority = 'high')", '"priority": "high"', "from -1000 to 1000"),
        (f"{JOIN_TEXT} WITH (strategy = commit, grace = 'soon')", '"grace": "soon"', "at most an hour"),
        (f"{SPLIT_TEXT} WITH (pause_rows = 1, pause_rows = 2)", '"pause_rows" specified more than once', ""),
    ],
)
def test_wrong_options(text: str, message: str, hint: str) -> None:
    with pytest.raises(Error) as caught:
        parse(text)
    assert caught.value.sqlstate == "22023"
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")
    assert caught.value.position is not None


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("ALTER TABLE t SPLIT", "end of input"),
        ("ALTER TABLE t SPLIT r (a), s (a) ON (a)", "r"),
        ("ALTER TABLE t SPLIT INTO r (a) ON (a)", "ON"),
        ("ALTER TABLE t SPLIT INTO r (a), s (a)", "end of input"),
        ("ALTER TABLE t SPLIT INTO r, s ON (a)", ","),
        ("ALTER TABLE t SPLIT INTO r (a), s (a) ON ()", ")"),
        ("ALTER TABLE t AS x SPLIT INTO r (a), s (a) ON (a)", "SPLIT"),
        ("ALTER TABLE r JOIN s INTO t (a)", "INTO"),
        ("ALTER TABLE r JOIN s ON a = b", "end of input"),
        ("ALTER TABLE r JOIN s ON a = b INTO t", "end of input"),
        ("ALTER TABLE r JOIN s ON a = b INTO t ()", ")"),
        ("ALTER TABLE r JOIN s ON a = b INTO t (*)", "*"),
        ("ALTER TABLE r JOIN s ON a = b INTO t (a b)", "b"),
        ("ALTER TABLE r JOIN s ON a = b INTO t (a) WITH ()", ")"),
        ("ALTER TABLE r JOIN s ON a = b INTO t (a) WITH (pause_rows)", ")"),
        ("ALTER TABLE r JOIN s ON a = b INTO t (a) WITH (pause_rows = -all)", "all"),
        ("ALTER TABLE r JOIN s ON a = b INTO t (a) WITH (pause_rows = (1))", "("),
        ("ALTER TABLE t ADD full int", "full"),
    ],
)
def test_syntax_errors(text: str, at: str) -> None:
    with pytest.raises(Error) as caught:
        parse(text)
    expected = f"syntax error at {at}" if at == "end of input" else f'syntax error at or near "{at}"'
    assert (caught.value.sqlstate, caught.value.message) == ("42601", expected)


def test_parameters_are_refused() -> None:
    with pytest.raises(Error) as caught:
        parse("ALTER TABLE r JOIN s ON r.x = $1 INTO t (id)")
    assert caught.value.sqlstate in ("0A000", "42P02")
