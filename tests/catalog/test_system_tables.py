"""What the views of information_schema and pg_catalog show, which programs read that know PostgreSQL's."""

from __future__ import annotations

import instar
from support.databases import rows, run


def test_defaults_are_shown_as_sql_would_have_them() -> None:
    with instar.connect(":memory:", autocommit=True) as connection:
        run(
            connection,
            "CREATE SEQUENCE s",
            "CREATE TABLE t (id serial PRIMARY KEY, i int GENERATED ALWAYS AS IDENTITY, "
            "a bigint DEFAULT nextval('s') + 1, b text DEFAULT 'x', c int DEFAULT 3, d int)",
            "ALTER SEQUENCE s RENAME TO r",
        )
        found = rows(
            connection, "SELECT column_name, column_default FROM information_schema.columns WHERE table_name = 't'"
        )
    assert found == [
        ("id", "nextval('t_id_seq')"),
        ("i", None),
        ("a", "(nextval('r') + '1'::bigint)"),
        ("b", "'x'::text"),
        ("c", "3"),
        ("d", None),
    ]


def test_generated_columns() -> None:
    with instar.connect(":memory:", autocommit=True) as connection:
        run(
            connection,
            "CREATE TABLE t (a int, b int GENERATED ALWAYS AS (a + 1) STORED, c int GENERATED ALWAYS AS IDENTITY)",
            "CREATE VIEW v AS SELECT b FROM t",
            "ALTER TABLE t RENAME a TO x",
        )
        assert rows(
            connection,
            "SELECT table_name, column_name, column_default, is_identity, is_generated, generation_expression "
            "FROM information_schema.columns ORDER BY table_name, ordinal_position",
        ) == [
            ("t", "x", None, "NO", "NEVER", None),
            ("t", "b", None, "NO", "ALWAYS", "(x + 1)"),
            ("t", "c", None, "YES", "NEVER", None),
            ("v", "b", None, "NO", "NEVER", None),
        ]


def test_primary_keys_are_indexes() -> None:
    with instar.connect(":memory:", autocommit=True) as connection:
        run(
            connection,
            "CREATE TABLE t (a int, b int, c int, PRIMARY KEY (b, a))",
            "CREATE UNIQUE INDEX t_c ON t (c DESC)",
            "CREATE TABLE heap (a int)",
            "CREATE TABLE keyed (a int CONSTRAINT k PRIMARY KEY)",
        )
        assert rows(connection, "SELECT tablename, indexname, indexdef FROM pg_indexes ORDER BY 1, 2") == [
            ("keyed", "k", "CREATE UNIQUE INDEX k ON public.keyed USING btree (a)"),
            ("t", "t_c", "CREATE UNIQUE INDEX t_c ON public.t USING btree (c DESC)"),
            ("t", "t_pkey", "CREATE UNIQUE INDEX t_pkey ON public.t USING btree (b, a)"),
        ]
        assert rows(connection, "SELECT tablename, hasindexes FROM pg_tables ORDER BY 1") == [
            ("heap", False),
            ("keyed", True),
            ("t", True),
        ]


def test_the_definition_of_an_index_can_be_executed() -> None:
    with instar.connect(":memory:", autocommit=True) as connection:
        run(
            connection,
            'CREATE TABLE "A t" ("B b" int, "order" int, c int, PRIMARY KEY ("B b", c))',
            'CREATE INDEX "I ""i" ON "A t" ("order" DESC, "B b", c)',
        )
        assert rows(connection, "SELECT indexdef FROM pg_indexes ORDER BY indexname") == [
            ('CREATE UNIQUE INDEX "A t_pkey" ON public."A t" USING btree ("B b", c)',),
            ('CREATE INDEX "I ""i" ON public."A t" USING btree ("order" DESC, "B b", c)',),
        ]
