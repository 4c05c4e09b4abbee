"""What \\d prints, from descriptors."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest

from instar.catalog.descriptors import (
    Check,
    Column,
    CoverageChange,
    Derivation,
    ForeignKey,
    Index,
    IndexColumn,
    Layout,
    Lock,
    Sequence,
    State,
    Table,
    View,
)
from instar.cli import describe
from instar.types import BIGINT, INTEGER, TEXT, Kind, Type


def table(id_: int, name: str, columns: tuple[Column, ...], **more: Any) -> Table:
    known: dict[str, Any] = {
        "version": 1,
        "primary_key": (1,),
        "primary_key_name": f"{name}_pkey",
        "rowset": id_,
        "layout": Layout(1, ()),
        "oldest_layout": 1,
        "next_id": 100,
    }
    return Table(id=id_, name=name, columns=columns, **(known | more))


ORDERS = table(
    1,
    "orders",
    (
        Column(id=1, name="id", type=BIGINT, nullable=False, identity="always", sequence=3),
        Column(id=2, name="Total", type=Type(Kind.NUMERIC, 10, 2), default="0"),
        Column(id=3, name="customer", type=INTEGER),
        Column(id=4, name="note", type=Type(Kind.VARCHAR, length=20), state=State.WRITE_ONLY),
    ),
    indexes=(
        Index(
            id=10,
            name="by_total",
            columns=(IndexColumn(2, True), IndexColumn(3)),
            rowset=20,
            state=State.WRITE_ONLY,
        ),
        Index(id=11, name="one_note", columns=(IndexColumn(4),), rowset=21, unique=True, constraint=True),
    ),
    checks=(Check(id=12, name="positive", expression='"#2" > 0', columns=(2,)),),
    foreign_keys=(ForeignKey(id=13, name="owner", columns=(3,), parent=2, parent_columns=(1,), on_delete="cascade"),),
)
CUSTOMER = table(2, "customer", (Column(id=1, name="id", type=INTEGER, nullable=False),), referenced_by=(1,))
COMPUTED = table(
    7,
    "computed",
    (
        Column(id=1, name="id", type=INTEGER, nullable=False),
        Column(
            id=2,
            name="twice",
            type=INTEGER,
            generated=True,
            derived=Derivation(expression='"#1" * 2', type=INTEGER, sources=(), now=0, zone="UTC"),
        ),
    ),
)
KEYLESS = table(5, "keyless", (Column(id=1, name="row", type=BIGINT, hidden=True), Column(id=2, name="a", type=TEXT)))
LOCKED = table(
    6,
    "locked",
    tuple(Column(id=number, name=name, type=INTEGER) for number, name in enumerate(("id", "a", "B"), 1)),
    locks=(Lock(id=7, name="la", columns=(2, 3)), Lock(id=8, name="lb", columns=(), state=State.WRITE_ONLY)),
    coverage_changes=(CoverageChange(id=9, covers=((3, 8), (2, 0))),),
)
SEQUENCE = Sequence(id=3, name="orders_id_seq", version=1, type=BIGINT, owned_by=(1, 1))
VIEW = View(id=4, name="big", version=1, query="", columns=(("id", BIGINT),), depends_on=())
OBJECTS = (ORDERS, CUSTOMER, SEQUENCE, VIEW, KEYLESS)
BY_ID = {each.id: each for each in OBJECTS}


def shown(found: Table | View | Sequence) -> list[str]:
    out = io.StringIO()
    describe.describe(found, BY_ID, out)
    return [line.strip() if 'Table "' in line else line for line in out.getvalue().splitlines()]


def test_table():
    assert shown(ORDERS) == [
        'Table "public.orders"',
        "  Column  |         Type          | Nullable |           Default",
        "----------+-----------------------+----------+------------------------------",
        " id       | bigint                | not null | generated always as identity",
        " Total    | numeric(10,2)         |          | 0",
        " customer | integer               |          |",
        " note     | character varying(20) |          | [write-only]",
        "Indexes:",
        '    "orders_pkey" PRIMARY KEY (id)',
        '    "by_total" ("Total" DESC, customer) [write-only]',
        '    "one_note" UNIQUE CONSTRAINT (note)',
        "Check constraints:",
        '    "positive" CHECK ("Total" > 0)',
        "Foreign-key constraints:",
        '    "owner" FOREIGN KEY (customer) REFERENCES customer(id) ON DELETE CASCADE',
    ]


def test_a_generated_column():
    assert shown(COMPUTED)[3:5] == [
        " id     | integer | not null |",
        " twice  | integer |          | generated always as (id * 2) stored",
    ]


def test_the_other_side_of_a_foreign_key():
    assert shown(CUSTOMER)[-2:] == [
        "Referenced by:",
        '    TABLE "orders" CONSTRAINT "owner" FOREIGN KEY (customer) REFERENCES customer(id) ON DELETE CASCADE',
    ]


def test_the_hidden_row_id_is_hidden():
    assert shown(KEYLESS) == [
        'Table "public.keyless"',
        " Column | Type | Nullable | Default",
        "--------+------+----------+---------",
        " a      | text |          |",
    ]


def test_locks():
    assert shown(LOCKED)[-5:] == [
        "Locks:",
        '    "la" COVERS (a, "B")',
        '    "lb" COVERS () [write-only]',
        '    "lb" COVERS ("B") [dual]',
        '    "default" COVERS (a) [dual]',
    ]


def test_not_nulls_that_do_not_go_without_saying():
    columns = (
        Column(id=1, name="id", type=INTEGER, nullable=False),
        Column(id=2, name="a", type=INTEGER, nullable=False, not_null_name="n"),
        Column(id=3, name="B", type=INTEGER, not_null=State.WRITE_ONLY, not_null_not_valid=True),
        Column(id=4, name="c", type=INTEGER),
    )
    lines = shown(table(8, "t", columns))
    assert lines[lines.index("Not-null constraints:") + 1 :] == [
        '    "n" NOT NULL a',
        '    "t_B_not_null" NOT NULL "B" [write-only]',
    ]


def test_options():
    assert shown(msgspec.structs.replace(KEYLESS, migration="read"))[-2:] == ["Options:", "    migration = read"]
    assert shown(msgspec.structs.replace(KEYLESS, compaction_share=0.5))[-1] == "    compaction_share = 0.5"


def test_view_and_sequence():
    assert shown(VIEW)[1:] == [" Column |  Type", "--------+--------", " id     | bigint", "(1 row)"]
    assert shown(SEQUENCE)[-1] == "Owned by: orders.id"


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("", ["big", "customer", "keyless", "orders", "orders_id_seq"]),
        ("ORD*", ["orders", "orders_id_seq"]),
        ("public.orders", ["orders"]),
        ('"ORD*"', []),
        ("?ig", ["big"]),
    ],
)
def test_patterns(pattern: str, names: list[str]):
    assert [found.name for found in describe.matching(OBJECTS, pattern)] == names


def test_lists():
    out = io.StringIO()
    assert describe.list_objects(OBJECTS, (Table,), "", out)
    assert [line.split(" | ")[0].strip() for line in out.getvalue().splitlines()[3:-1]] == [
        "customer",
        "keyless",
        "orders",
    ]
    out = io.StringIO()
    assert describe.list_indexes(OBJECTS, "by*", out)
    assert out.getvalue().splitlines()[3] == ' by_total | orders | "Total" DESC, customer | index | write-only'
    assert not describe.list_indexes(OBJECTS, "nothing", out)
    assert not describe.list_objects((), (Table,), "", out)
