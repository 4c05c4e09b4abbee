"""DDL from SQL text to descriptors: parser, binder, translation and planner together."""

from __future__ import annotations

import pytest

from instar import errors, types
from instar.catalog.descriptors import Sequence, Table, View
from instar.schemachange import planner
from instar.schemachange.executor import apply
from instar.sql import ddl
from instar.sql.functions import Context
from instar.sql.parser import parse_one
from support.changes import ChangingWorld, Facts

NOW = 1_700_000_000_000_000


class Client:
    """A session that knows DDL only."""

    def __init__(self) -> None:
        self.world = ChangingWorld()
        self.notices: list[str] = []

    def translate(self, text: str) -> ddl.Translation:
        statement = parse_one(text)
        assert ddl.is_schema_change(statement)
        return ddl.translate(statement, self.world.catalog(), Context(now=NOW, zone="UTC"), self.notices.append)

    def execute(self, text: str) -> str:
        translation = self.translate(text)
        if translation.wanted:
            change = self.world.change()
            plan = planner.plan(change.view, change, Facts(self.world, None), translation.wanted, text)
            assert not plan.needs_job
            apply(plan.first, change)
            self.notices += plan.notices
            self.world.commit(change=change)
        return translation.tag

    def table(self, name: str = "t") -> Table:
        return self.world.table(name)

    def refused(self, text: str) -> str:
        with pytest.raises(errors.Error) as refused:
            self.execute(text)
        return refused.value.sqlstate


@pytest.fixture
def client() -> Client:
    made = Client()
    made.execute("CREATE TABLE t (id serial PRIMARY KEY, a int DEFAULT 1 + 1 CHECK (a > 0), b varchar(5) UNIQUE)")
    return made


def test_a_table_with_everything(client: Client) -> None:
    assert (
        client.execute(
            "CREATE TABLE c (n bigint GENERATED ALWAYS AS IDENTITY, t int REFERENCES t ON DELETE CASCADE, "
            "at timestamptz DEFAULT now(), CONSTRAINT pk PRIMARY KEY (n), CONSTRAINT fine CHECK (t < n), "
            "UNIQUE (t, at))"
        )
        == "CREATE TABLE"
    )
    table = client.table("c")
    assert [(column.name, column.nullable) for column in table.columns] == [("n", False), ("t", True), ("at", True)]
    assert (table.primary_key_name, table.columns[0].identity) == ("pk", "always")
    assert table.columns[2].default is not None
    assert [check.name for check in table.checks] == ["fine"]
    assert table.checks[0].columns == (1, 2)
    assert table.foreign_keys[0].on_delete == "cascade"
    assert [index.name for index in table.indexes] == ["c_t_at_key"]
    assert table.foreign_keys[0].child_index == table.indexes[0].id
    first = client.table()
    assert [check.name for check in first.checks] == ["t_a_check"]
    assert [index.name for index in first.indexes] == ["t_b_key"]


@pytest.mark.parametrize(
    ("definition", "key", "indexes"),
    [
        ("a int UNIQUE, UNIQUE (a)", "", ["r_a_key"]),
        ("a int UNIQUE, CONSTRAINT n UNIQUE (a)", "", ["n"]),
        ("a int, CONSTRAINT x UNIQUE (a), CONSTRAINT y UNIQUE (a)", "", ["x"]),
        ("a int, b int, UNIQUE (a, b), UNIQUE (b, a)", "", ["r_a_b_key", "r_b_a_key"]),
        ("a int, b int, UNIQUE (a, b), UNIQUE (a), CONSTRAINT m UNIQUE (a, b)", "", ["m", "r_a_key"]),
        ("a int PRIMARY KEY, UNIQUE (a)", "r_pkey", []),
        ("a int PRIMARY KEY, CONSTRAINT n UNIQUE (a)", "n", []),
        ("a int CONSTRAINT q PRIMARY KEY, CONSTRAINT r UNIQUE (a)", "q", []),
    ],
)
def test_keys_of_a_new_table_that_repeat_each_other_are_one(
    client: Client, definition: str, key: str, indexes: list[str]
) -> None:
    """Those of the same columns in the same order, under the first name given, as in PostgreSQL."""
    client.execute(f"CREATE TABLE r ({definition})")
    table = client.table("r")
    assert (table.primary_key_name, [index.name for index in table.indexes]) == (key, indexes)


def test_defaults_are_frozen_when_a_column_is_added(client: Client) -> None:
    client.execute(
        "ALTER TABLE t ADD COLUMN c int NOT NULL DEFAULT 6 * 7, ADD at timestamptz DEFAULT now(), ADD d date"
    )
    columns = {column.name: column for column in client.table().columns}
    assert columns["c"].missing == "42"
    assert columns["at"].missing == "2023-11-14 22:13:20+00"
    assert columns["d"].missing is None
    client.execute("ALTER TABLE t ALTER c SET DEFAULT 5, ALTER c DROP NOT NULL")
    column = client.table().columns[3]
    assert (column.missing, column.nullable, column.default) == ("42", True, "5")
    client.execute("ALTER TABLE t ALTER c DROP DEFAULT")
    assert client.table().columns[3].default is None


def test_renames_and_types(client: Client) -> None:
    client.execute("ALTER TABLE t RENAME a TO z")
    client.execute("ALTER TABLE t RENAME TO u")
    client.execute("ALTER TABLE u ALTER z TYPE bigint, ALTER b TYPE text")
    client.execute("ALTER INDEX t_b_key RENAME TO k")
    client.execute("ALTER TABLE u RENAME CONSTRAINT t_a_check TO positive")
    table = client.table("u")
    assert [(column.name, column.type) for column in table.columns][1:] == [("z", types.BIGINT), ("b", types.TEXT)]
    assert (table.indexes[0].name, table.checks[0].name) == ("k", "positive")


def test_locks(client: Client) -> None:
    client.execute("ALTER TABLE t ADD LOCK l COVERS (a), ADD lock int")
    client.execute('ALTER TABLE t ADD LOCK lock COVERS (b, lock), ADD LOCK "L" COVERS (lock)')
    table = client.table()
    assert [(lock.name, lock.columns) for lock in table.locks] == [("l", (2,)), ("lock", (3,)), ("L", (7,))]
    assert table.layout.locks == (0, *(lock.id for lock in table.locks))
    client.execute("ALTER TABLE t ALTER LOCK l COVERS (a, b), ALTER lock SET DEFAULT 1")
    assert [lock.columns for lock in client.table().locks] == [(2, 3), (), (7,)]
    client.execute("ALTER TABLE t DROP LOCK lock, DROP LOCK IF EXISTS m, DROP lock CASCADE")
    assert [(lock.name, lock.columns) for lock in client.table().locks] == [("l", (2, 3)), ("L", ())]
    assert client.notices[-1] == 'lock "m" of relation "t" does not exist, skipping'
    for refused, sqlstate in (
        ("ALTER TABLE t ADD LOCK l COVERS (a)", "42710"),
        ("ALTER TABLE t ADD LOCK m COVERS (id)", "42P16"),
        ("ALTER TABLE t ADD LOCK m COVERS (z)", "42703"),
        ("ALTER TABLE t ADD LOCK m COVERS (a, a)", "42701"),
        ("ALTER TABLE t ADD LOCK m COVERS a", "42601"),
        ("ALTER TABLE t ADD LOCK m", "42704"),
        ("ALTER TABLE t DROP LOCK m", "42704"),
        ("ALTER TABLE t ALTER LOCK m COVERS (a)", "42704"),
        ('ALTER TABLE t DROP LOCK "default"', "0A000"),
    ):
        assert client.refused(refused) == sqlstate, refused


def test_views_are_kept_by_ids(client: Client) -> None:
    client.execute("CREATE VIEW v (x) AS SELECT a, b FROM t WHERE a > 1")
    view = client.world.catalog().lookup("public", "v")
    assert isinstance(view, View)
    assert view.columns == (("x", types.INTEGER), ("b", types.Type(types.Kind.VARCHAR, length=5)))
    assert view.depends_on == ((client.table().id, (2, 3)),)
    assert client.refused("ALTER TABLE t DROP COLUMN b") == "2BP01"
    assert client.refused("DROP TABLE t") == "2BP01"
    client.execute("ALTER TABLE t DROP COLUMN b CASCADE")
    assert client.world.catalog().lookup("public", "v") is None
    assert client.notices == ["drop cascades to view v"]
    client.execute("CREATE VIEW w AS SELECT 1 AS one, NULL AS nothing")
    client.execute("ALTER VIEW w RENAME TO w2")
    assert client.execute("DROP VIEW w2") == "DROP VIEW"


def test_a_table_without_a_primary_key_takes_no_name_for_it(client: Client) -> None:
    client.execute("CREATE TABLE heap (a int, CONSTRAINT heap_check CHECK (a > 0))")
    assert client.table("heap").primary_key_name == ""
    for refused, sqlstate in (
        ("DROP INDEX heap_pkey", "42704"),
        ("ALTER INDEX heap_pkey RENAME TO other", "42P01"),
        ("ALTER TABLE heap RENAME CONSTRAINT heap_pkey TO other", "42704"),
        ("ALTER TABLE heap DROP CONSTRAINT heap_pkey", "42704"),
    ):
        assert client.refused(refused) == sqlstate
    client.execute("CREATE TABLE heap_pkey (id int PRIMARY KEY)")
    client.execute("ALTER TABLE heap ADD CONSTRAINT heap_pkey1 UNIQUE (a)")
    client.execute("CREATE TABLE more (b int)")
    client.execute("CREATE SEQUENCE more_pkey")
    assert client.refused("CREATE TABLE heap_pkey (a int)") == "42P07"
    client.execute("DROP TABLE heap, more")


def test_sequences(client: Client) -> None:
    client.execute("CREATE SEQUENCE s START 5 INCREMENT 2 MAXVALUE 99 CYCLE OWNED BY t.a")
    found = client.world.catalog().lookup("public", "s")
    assert isinstance(found, Sequence)
    assert (found.start, found.increment, found.maximum, found.cycle) == (5, 2, 99, True)
    assert found.owned_by == (client.table().id, 2)
    client.execute("ALTER SEQUENCE s NO MAXVALUE RESTART WITH 7")
    client.execute("CREATE TABLE x (n int DEFAULT nextval('s'))")
    assert client.refused("DROP SEQUENCE s") == "2BP01"
    client.execute("DROP SEQUENCE s CASCADE")
    assert client.table("x").columns[0].default is None
    assert client.refused("DROP SEQUENCE t_id_seq") == "2BP01"


def test_create_table_as(client: Client) -> None:
    translation = client.translate("CREATE TABLE x (p) AS SELECT a, count(*) FROM t GROUP BY a")
    assert translation.tag == "CREATE TABLE AS"
    assert translation.populate is not None
    client.execute("CREATE TABLE x (p) AS SELECT a, count(*) FROM t GROUP BY a")
    assert [(column.name, column.type) for column in client.table("x").columns] == [
        ("p", types.INTEGER), ("count", types.BIGINT), ("rowid", types.BIGINT)
    ]  # fmt: skip
    assert client.translate("CREATE TABLE y AS SELECT 1 WITH NO DATA").populate is None
    assert client.translate("CREATE TABLE IF NOT EXISTS x AS SELECT 1").populate is None
    with pytest.raises(errors.Error, match="too many column names were specified"):
        client.translate("CREATE TABLE z (p, q) AS SELECT 1")
    with pytest.raises(errors.Error, match="CREATE VIEW specifies more column names than columns"):
        client.translate("CREATE VIEW z (p, q) AS SELECT 1")


def test_if_exists_and_if_not_exists_notice_and_do_nothing(client: Client) -> None:
    version = client.world.catalog().version
    for text in (
        "CREATE TABLE IF NOT EXISTS t (a int)",
        "DROP TABLE IF EXISTS nope, nope2",
        "ALTER TABLE IF EXISTS nope ADD a int",
        "ALTER TABLE t ADD COLUMN IF NOT EXISTS a int",
        "ALTER TABLE t DROP COLUMN IF EXISTS nope",
        "ALTER TABLE t DROP CONSTRAINT IF EXISTS nope",
        "CREATE INDEX IF NOT EXISTS t_b_key ON t (b)",
        "DROP INDEX IF EXISTS nope",
        "CREATE SEQUENCE IF NOT EXISTS t_id_seq",
        "DROP SEQUENCE IF EXISTS nope",
        "DROP VIEW IF EXISTS nope",
    ):
        client.execute(text)
    assert client.world.catalog().version == version
    assert len(client.notices) == 12


@pytest.mark.parametrize(
    ("text", "sqlstate"),
    [
        ("CREATE TABLE other.x (a int)", "3F000"),
        ("CREATE TABLE x (a int PRIMARY KEY, b int, PRIMARY KEY (b))", "42P16"),
        ("CREATE TABLE x (a int, a int)", "42701"),
        ("CREATE TABLE x (a int CHECK (b > 0))", "42703"),
        ("CREATE TABLE x (a int CHECK (a > random()))", "42P17"),
        ("CREATE TABLE x (a int DEFAULT 'no number')", "22P02"),
        ("CREATE TABLE x (a int DEFAULT true)", "42804"),
        ("ALTER TABLE nope ADD a int", "42P01"),
        ("ALTER TABLE t_id_seq ADD a int", "42809"),
        ("ALTER TABLE t ALTER nope SET DEFAULT 1", "42703"),
        ("ALTER TABLE t ALTER a TYPE text", "42883"),
        ("ALTER TABLE t ALTER a TYPE date USING a + 1", "42804"),
        ("ALTER TABLE t ADD PRIMARY KEY (a)", "42P16"),
        ("ALTER TABLE t ADD c int PRIMARY KEY", "0A000"),
        ("ALTER TABLE t DROP CONSTRAINT t_pkey", "0A000"),
        ("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (b), ADD c int", "0A000"),
        ("ALTER TABLE t ALTER PRIMARY KEY (z)", "42703"),
        ("ALTER TABLE t ALTER PRIMARY KEY (a, a)", "42701"),
        ("ALTER TABLE t ALTER PRIMARY KEY ()", "42601"),
        ("ALTER TABLE t ALTER a ADD GENERATED ALWAYS AS IDENTITY", "55000"),
        ("CREATE VIEW v AS SELECT $1::int", "42P02"),
        ("CREATE TABLE c (x text REFERENCES t)", "42804"),
        ("CREATE TABLE c (x numeric REFERENCES t)", "42804"),
        ("CREATE TABLE c (x numeric PRIMARY KEY, y int REFERENCES c)", "0A000"),
        ("CREATE TABLE c (x timestamptz PRIMARY KEY, y date REFERENCES c)", "0A000"),
        ("DROP VIEW t", "42809"),
        ("DROP TABLE t_id_seq", "42809"),
    ],
)
def test_what_is_wrong_is_refused(client: Client, text: str, sqlstate: str) -> None:
    assert client.refused(text) == sqlstate


def test_a_view_never_reads_itself(client: Client) -> None:
    client.execute("CREATE VIEW one AS SELECT a FROM t")
    client.execute("CREATE VIEW two AS SELECT a FROM one")
    client.execute("CREATE VIEW three AS SELECT two.a FROM two, one")
    for below in ("one", "two", "three"):
        assert client.refused(f"CREATE OR REPLACE VIEW one AS SELECT a FROM {below}") == "42P16"
    client.execute("CREATE OR REPLACE VIEW one AS SELECT a + 1 AS a FROM t")


@pytest.mark.parametrize(
    ("actions", "sqlstate"),
    [
        ("ALTER a SET DEFAULT 3, DROP COLUMN a", "42703"),
        ("ADD COLUMN z int, DROP COLUMN z", "42703"),
        ("ADD CHECK (a < 9), DROP COLUMN a", "42703"),
        ("ADD CONSTRAINT c CHECK (a < 9), DROP CONSTRAINT c", "42704"),
        ("DROP CONSTRAINT d_pkey, ADD PRIMARY KEY (a)", "42704"),
        ("ADD PRIMARY KEY (a), DROP CONSTRAINT d_pkey", "42704"),
    ],
)
def test_what_a_statement_drops_is_not_there_for_its_other_actions(client: Client, actions: str, sqlstate: str) -> None:
    client.execute("CREATE TABLE u (a int NOT NULL, b int)")
    assert client.refused(f"ALTER TABLE u {actions}") == sqlstate


def test_drops_come_first_wherever_they_stand(client: Client) -> None:
    client.execute("ALTER TABLE t ADD COLUMN a text, DROP COLUMN a")
    found = [(column.name, column.type) for column in client.table().columns]
    assert found == [("id", types.INTEGER), ("b", types.Type(types.Kind.VARCHAR, length=5)), ("a", types.TEXT)]
    # A table without columns is none.
    client.execute("CREATE TABLE one (a int)")
    client.execute("ALTER TABLE one ADD COLUMN b int, DROP COLUMN a")
    assert [column.name for column in client.table("one").columns if not column.hidden] == ["b"]


def test_constraints_come_after_the_columns_that_are_added_behind_them(client: Client) -> None:
    client.execute("ALTER TABLE t ADD CONSTRAINT c CHECK (c > 0), ADD UNIQUE (a, c), ADD COLUMN c int DEFAULT 1")
    assert [check.name for check in client.table().checks] == ["t_a_check", "c"]
    assert [index.name for index in client.table().indexes] == ["t_b_key", "t_a_c_key"]
    client.execute("ALTER TABLE t ADD FOREIGN KEY (d) REFERENCES t, ADD COLUMN IF NOT EXISTS d int")
    assert [key.name for key in client.table().foreign_keys] == ["t_d_fkey"]


def test_if_exists_and_if_not_exists_mean_what_earlier_actions_left(client: Client) -> None:
    client.execute("ALTER TABLE t DROP COLUMN a, ADD COLUMN IF NOT EXISTS a text")
    assert [(column.name, column.type) for column in client.table().columns][-1] == ("a", types.TEXT)
    client.execute("ALTER TABLE t ADD COLUMN IF NOT EXISTS a int, DROP COLUMN IF EXISTS a")
    assert [(column.name, column.type) for column in client.table().columns][-1] == ("a", types.INTEGER)
    client.execute("ALTER TABLE t DROP COLUMN IF EXISTS a, DROP COLUMN IF EXISTS a")
    client.execute("ALTER TABLE t ADD COLUMN IF NOT EXISTS c int, ADD COLUMN IF NOT EXISTS c text")
    assert [column.name for column in client.table().columns] == ["id", "b", "c"]
    assert client.refused("ALTER TABLE t ADD COLUMN IF NOT EXISTS d int, ADD COLUMN d int") == "42701"
    client.execute("ALTER TABLE t DROP CONSTRAINT t_b_key, DROP CONSTRAINT IF EXISTS t_b_key")
    assert client.table().indexes == ()


def test_the_index_of_a_primary_key_is_there_by_the_constraints_name(client: Client) -> None:
    assert client.refused("DROP INDEX IF EXISTS t_pkey") == "2BP01"
    assert client.refused("DROP INDEX IF EXISTS t") == client.refused("ALTER INDEX t RENAME TO u") == "42809"
    client.execute("ALTER INDEX IF EXISTS t_pkey RENAME TO key_of_t")
    assert client.table().primary_key_name == "key_of_t"
    client.execute("CREATE INDEX IF NOT EXISTS key_of_t ON t (b)")
    assert [index.name for index in client.table().indexes] == ["t_b_key"]


def test_a_column_of_the_primary_key_is_not_null_and_stays_so(client: Client) -> None:
    version = client.world.catalog().version
    client.execute("ALTER TABLE t ALTER id SET NOT NULL")
    assert client.world.catalog().version == version
    assert client.refused("ALTER TABLE t ALTER id DROP NOT NULL") == "42P16"


def test_what_a_column_loses_is_gone_before_it_gets_anything(client: Client) -> None:
    """As in PostgreSQL, whichever is written first."""
    client.execute("ALTER TABLE t ALTER a SET DEFAULT 1, ALTER a DROP DEFAULT, ALTER a SET NOT NULL")
    client.execute("ALTER TABLE t ALTER a SET NOT NULL, ALTER a DROP NOT NULL")
    column = client.table().columns[1]
    assert (column.default, column.nullable) == ("1", False)
    client.execute("CREATE TABLE i (n int GENERATED ALWAYS AS IDENTITY)")
    client.execute("ALTER TABLE i ALTER n ADD GENERATED BY DEFAULT AS IDENTITY, ALTER n DROP IDENTITY")
    assert client.table("i").columns[0].identity == "by default"
    assert client.refused("ALTER TABLE t ADD COLUMN c int DEFAULT 1, ALTER c DROP DEFAULT") == "42703"


@pytest.mark.parametrize(
    "actions",
    [
        "ADD COLUMN e serial, ALTER e TYPE bigint USING e * 10",
        "ADD COLUMN e int, ALTER e TYPE int",
        "ADD COLUMN e int UNIQUE, ALTER e TYPE int USING nosuch",
        "ADD COLUMN e uuid DEFAULT gen_random_uuid(), ALTER e TYPE text",
        "ADD COLUMN e int GENERATED ALWAYS AS (id) STORED, ALTER e TYPE int USING nosuch",
        "ADD COLUMN IF NOT EXISTS e serial, ALTER e DROP DEFAULT",
        "ALTER e DROP NOT NULL, ADD COLUMN e serial",
        "ADD COLUMN e int GENERATED BY DEFAULT AS IDENTITY, ALTER e DROP IDENTITY IF EXISTS",
        "ADD COLUMN e int GENERATED ALWAYS AS (id) STORED, ALTER e DROP EXPRESSION",
        "DROP COLUMN e, ADD COLUMN e serial, ALTER e TYPE bigint",
    ],
)
def test_what_comes_before_columns_are_added_does_not_find_them(client: Client, actions: str) -> None:
    """As in PostgreSQL, and before it is asked whether that takes a job."""
    if actions.startswith("DROP"):
        client.execute("ALTER TABLE t ADD COLUMN e int")
    with pytest.raises(errors.Error, match='column "e" of relation "t" does not exist') as refused:
        client.translate(f"ALTER TABLE t {actions}")
    assert refused.value.sqlstate == "42703"


def test_a_column_that_is_there_can_be_altered_beside_one_that_would_be_added(client: Client) -> None:
    client.execute("ALTER TABLE t ADD COLUMN IF NOT EXISTS a int, ALTER a DROP DEFAULT, ALTER a TYPE bigint")
    column = client.table().columns[1]
    assert (column.default, column.type) == (None, types.BIGINT)
    client.execute("ALTER TABLE t ALTER a DROP NOT NULL, DROP COLUMN a, ADD COLUMN a text")
    assert client.table().columns[-1].type == types.TEXT


@pytest.mark.parametrize(
    "types", [("int", "bigint"), ("bigint", "bigint"), ("bigint", "smallint"), ("smallint", "int"), ("text", "text")]
)
def test_a_column_gets_one_type(client: Client, types: tuple[str, str]) -> None:
    statement = ", ".join(f"ALTER a TYPE {type_}" for type_ in types)
    with pytest.raises(errors.Error, match='cannot alter type of column "a" twice') as refused:
        client.execute(f"ALTER TABLE t {statement}")
    assert refused.value.sqlstate == "0A000"
    assert client.refused("ALTER TABLE t ALTER z TYPE int, ALTER z TYPE int") == "42703"


def test_a_table_has_at_most_1600_columns(client: Client) -> None:
    columns = [f"c{number} int" for number in range(1601)]
    assert client.refused(f"CREATE TABLE w ({', '.join(columns)})") == "54011"
    client.execute(f"CREATE TABLE w ({', '.join(columns[1:])})")
    assert client.refused("ALTER TABLE w ADD COLUMN d int") == "54011"
    client.execute("ALTER TABLE w ADD COLUMN d int, DROP COLUMN c3")
    assert client.refused("ALTER TABLE w ADD COLUMN e int") == "54011"
