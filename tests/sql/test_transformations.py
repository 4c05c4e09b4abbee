"""ALTER TABLE ... SPLIT and JOIN from SQL text to what is wanted: names resolved, or refused with their SQLSTATE."""

from __future__ import annotations

import pytest

from instar import errors
from instar.schemachange import wanted as want
from instar.sql import ddl, replan
from instar.sql.functions import Context
from instar.sql.parser import parse_one
from support.changes import ChangingWorld

DEFINITIONS = (
    "CREATE TABLE t (id int PRIMARY KEY, name text, zip text, city text)",
    "CREATE TABLE r (id int PRIMARY KEY, name text, dept int, note text)",
    "CREATE TABLE s (dept int PRIMARY KEY, title text, note text, boss int)",
    "CREATE TABLE heap (a int)",
    "CREATE SEQUENCE q",
    "CREATE VIEW v AS SELECT a AS id FROM heap",
)


class Client:
    """A session that translates statements on a catalog with a few tables."""

    def __init__(self) -> None:
        self.world = ChangingWorld()
        for text in DEFINITIONS:
            self.world.execute(*self.translate(text).wanted)

    def translate(self, text: str) -> ddl.Translation:
        statement = parse_one(text)
        assert ddl.is_schema_change(statement)
        return ddl.translate(statement, self.world.catalog(), Context(now=0, zone="UTC"), lambda notice: None)

    def wanted(self, text: str) -> want.Wanted:
        translation = self.translate(text)
        assert translation.tag == "ALTER TABLE"
        (wanted,) = translation.wanted
        return wanted

    def joined(self, columns: str, on: str = "ON r.dept = s.dept") -> want.JoinTables:
        wanted = self.wanted(f"ALTER TABLE r JOIN s {on} INTO u ({columns})")
        assert isinstance(wanted, want.JoinTables)
        return wanted

    def refused(self, text: str) -> errors.Error:
        with pytest.raises(errors.Error) as refused:
            self.world.plan(*self.translate(text).wanted)
        return refused.value


@pytest.fixture(scope="module")
def client() -> Client:
    return Client()


def test_a_split(client: Client) -> None:
    text = "ALTER TABLE public.t SPLIT INTO person (id, name, zip), public.town (zip, city) ON (zip)"
    person, town = want.NewTable("person", ("id", "name", "zip")), want.NewTable("town", ("zip", "city"))
    assert client.wanted(text) == want.SplitTable("t", person, town, ("zip",))
    options = want.TransformationOptions("newest", 7)
    assert client.wanted(f"{text} WITH (repair = 'newest', pause_rows = 7, strategy = 'abort')") == want.SplitTable(
        "t", person, town, ("zip",), options
    )


def test_a_target_may_bear_the_name_of_the_source(client: Client) -> None:
    wanted = client.wanted("ALTER TABLE t SPLIT INTO t (id, name, zip), town (zip, city) ON (zip)")
    assert isinstance(wanted, want.SplitTable)
    assert wanted.r.name == "t"
    joined = client.wanted("ALTER TABLE r JOIN s USING (dept) INTO r (id, dept)")
    assert isinstance(joined, want.JoinTables)
    assert joined.into == "r"


def test_a_join(client: Client) -> None:
    text = "ALTER TABLE r a JOIN public.s AS b ON b.dept = a.dept AND name = b.title INTO u (id, dept, b.title AS x)"
    columns = (
        want.JoinedColumn("id", r="id"),
        want.JoinedColumn("dept", r="dept", s="dept"),
        want.JoinedColumn("x", s="title"),
    )
    on = (("dept", "dept"), ("name", "title"))
    assert client.wanted(text) == want.JoinTables("r", "s", on, "u", columns)
    options = want.TransformationOptions(pause_rows=9)
    assert client.wanted(f"{text} WITH (pause_rows = 9)") == want.JoinTables("r", "s", on, "u", columns, options)


@pytest.mark.parametrize("on", ["ON r.dept = s.dept", "ON (s.dept = r.dept)", "USING (dept)"])
def test_join_columns_of_one_name_are_one_column(client: Client, on: str) -> None:
    assert client.joined("dept", on).columns == (want.JoinedColumn("dept", "dept", "dept"),)
    assert client.joined("dept AS d", on).columns == (want.JoinedColumn("d", "dept", "dept"),)
    assert client.joined("r.dept, s.dept AS d", on).columns == (
        want.JoinedColumn("dept", r="dept"),
        want.JoinedColumn("d", s="dept"),
    )
    assert client.joined("public.s.dept", on).columns == (want.JoinedColumn("dept", s="dept"),)


def test_join_columns_of_two_names_are_two_columns(client: Client) -> None:
    assert client.joined("id, boss", "ON r.id = boss").columns == (
        want.JoinedColumn("id", r="id"),
        want.JoinedColumn("boss", s="boss"),
    )


def test_a_pair_that_stands_twice_is_one(client: Client) -> None:
    assert client.joined("id", "ON r.dept = s.dept AND s.dept = r.dept").on == (("dept", "dept"),)


SPLIT = "ALTER TABLE t SPLIT INTO"
JOIN = "ALTER TABLE r JOIN s USING (dept) INTO u"


@pytest.mark.parametrize(
    ("text", "sqlstate", "message"),
    [
        ("ALTER TABLE no SPLIT INTO a (id), b (id) ON (id)", "42P01", 'relation "no" does not exist'),
        ("ALTER TABLE v SPLIT INTO a (id), b (id) ON (id)", "42809", '"v" is not a table'),
        ("ALTER TABLE q SPLIT INTO a (id), b (id) ON (id)", "42809", '"q" is not a table'),
        ("ALTER TABLE x.t SPLIT INTO a (id), b (id) ON (id)", "3F000", 'schema "x" does not exist'),
        (f"{SPLIT} a (id, zip), x.b (zip) ON (zip)", "3F000", 'schema "x" does not exist'),
        (f"{SPLIT} a (id, zip), a (zip) ON (zip)", "42P07", 'table name "a" specified more than once'),
        (f"{SPLIT} a (id, no), b (zip) ON (zip)", "42703", 'column "no" of relation "t" does not exist'),
        (f"{SPLIT} a (id, zip), b (no) ON (zip)", "42703", 'column "no" of relation "t" does not exist'),
        (f"{SPLIT} a (id, zip), b (zip) ON (no)", "42703", 'column "no" of relation "t" does not exist'),
        (f"{SPLIT} a (id, zip, id), b (zip) ON (zip)", "42701", 'column "id" appears twice'),
        (f"{SPLIT} a (id, zip), b (zip) ON (zip, zip)", "42701", 'column "zip" appears twice'),
        ("ALTER TABLE no JOIN s USING (dept) INTO u (dept)", "42P01", 'relation "no" does not exist'),
        ("ALTER TABLE r JOIN no USING (dept) INTO u (dept)", "42P01", 'relation "no" does not exist'),
        ("ALTER TABLE r JOIN v USING (id) INTO u (id)", "42809", '"v" is not a table'),
        ("ALTER TABLE q JOIN r USING (id) INTO u (id)", "42809", '"q" is not a table'),
        ("ALTER TABLE r JOIN s USING (dept) INTO x.u (id)", "3F000", 'schema "x" does not exist'),
        ("ALTER TABLE r JOIN r USING (dept) INTO u (id)", "0A000", "joining a table with itself"),
        ("ALTER TABLE r a JOIN r b USING (dept) INTO u (id)", "0A000", "joining a table with itself"),
        ("ALTER TABLE r a JOIN s a USING (dept) INTO u (id)", "42712", 'table name "a" specified more than once'),
        ("ALTER TABLE r s JOIN s USING (dept) INTO u (id)", "42712", 'table name "s" specified more than once'),
        ("ALTER TABLE r JOIN s USING (no) INTO u (id)", "42703", "does not exist in left table"),
        ("ALTER TABLE r JOIN s USING (id) INTO u (id)", "42703", "does not exist in right table"),
        ("ALTER TABLE r JOIN s USING (dept, dept) INTO u (id)", "42701", "more than once in USING clause"),
        ("ALTER TABLE r JOIN s ON r.no = s.dept INTO u (id)", "42703", "column r.no does not exist"),
        ("ALTER TABLE r JOIN s ON no = s.dept INTO u (id)", "42703", 'column "no" does not exist'),
        ("ALTER TABLE r JOIN s ON dept = dept INTO u (id)", "42702", 'column reference "dept" is ambiguous'),
        ("ALTER TABLE r JOIN s ON x.dept = s.dept INTO u (id)", "42P01", 'missing FROM-clause entry for table "x"'),
        ("ALTER TABLE r a JOIN s ON r.dept = s.dept INTO u (id)", "42P01", 'FROM-clause entry for table "r"'),
        ("ALTER TABLE r a JOIN s ON public.a.dept = s.dept INTO u (id)", "42P01", "missing FROM-clause entry"),
        ("ALTER TABLE r JOIN s ON r.id = r.dept INTO u (id)", "0A000", "columns of one table"),
        ("ALTER TABLE r JOIN s ON title = boss INTO u (id)", "0A000", "columns of one table"),
        (f"{JOIN} (no)", "42703", 'column "no" does not exist'),
        (f"{JOIN} (s.id)", "42703", "column s.id does not exist"),
        (f"{JOIN} (x.id)", "42P01", 'missing FROM-clause entry for table "x"'),
        (f"{JOIN} (note)", "42702", 'column reference "note" is ambiguous'),
        (f"{JOIN} (id, name AS id)", "42701", 'column "id" specified more than once'),
        (f"{JOIN} (r.note, s.note)", "42701", 'column "note" specified more than once'),
        (f"{JOIN} (id, id AS x)", "42701", 'column "id" of "r" is wanted twice'),
        (f"{JOIN} (dept, s.dept AS x)", "42701", 'column "dept" of "s" is wanted twice'),
    ],
)
def test_what_is_wrong_is_refused(client: Client, text: str, sqlstate: str, message: str) -> None:
    refused = client.refused(text)
    assert refused.sqlstate == sqlstate
    assert message in refused.message


def test_a_queued_statement_means_the_tables_that_it_named(client: Client) -> None:
    catalog = client.world.catalog()
    for text, names in (
        (f"{SPLIT} a (id, zip), b (zip) ON (zip)", ("t",)),
        ("ALTER TABLE s JOIN r USING (dept) INTO r (dept)", ("r", "s")),
    ):
        found = replan.named_tables([client.wanted(text)], catalog)
        assert found == tuple((name, client.world.table(name).id) for name in names)
