"""Golden plans: each statement's stages as EXPLAIN (DDL) prints them, in plans/. INSTAR_GOLDEN=write renews them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from instar import errors, types
from instar.catalog.descriptors import Sequence, State, Table, View
from instar.schemachange import planner
from instar.schemachange import wanted as want
from instar.schemachange.elements import ElementKind, Phase, phases, used_columns
from instar.schemachange.explain import COLUMNS, Row, explain
from instar.schemachange.wanted import Default, Frozen, NewColumn
from support.changes import ChangingWorld, Server

CODE = types.Type(types.Kind.VARCHAR, length=5)
PLANS = Path(__file__).parent / "plans"


def constant(text: str | None) -> Default:
    return Default(lambda table: Frozen(text or "NULL", ()), volatile=False, value=text)


def volatile() -> Default:
    return Default(lambda table: Frozen("random()", ()), volatile=True, value=None)


def check(column: str, *, not_valid: bool = False) -> want.Check:
    def freeze(table: Table) -> Frozen:
        number = next(found.id for found in table.columns if found.name == column)
        return Frozen(f'"#{number}" > 0', (number,))

    return want.Check(freeze, not_valid=not_valid)


@pytest.fixture
def world() -> ChangingWorld:
    """parent (id, code unique) and child (id, parent -> parent, n: index, check), a row each; view v on child."""
    made = ChangingWorld()
    made.execute(
        want.CreateTable(
            "parent",
            (NewColumn("id", types.BIGINT), NewColumn("code", CODE)),
            ("id",),
            constraints=(want.Unique(("code",)),),
        )
    )
    columns = (NewColumn("id", types.BIGINT), NewColumn("parent", types.BIGINT), NewColumn("n", types.INTEGER))
    made.execute(
        want.CreateTable(
            "child",
            columns,
            ("id",),
            constraints=(want.ForeignKey(("parent",), "parent"), check("n")),
        )
    )
    made.execute(want.CreateIndex("child", (("n", False),)))
    child = made.table("child")
    made.execute(want.CreateView("v", 'SELECT "#3" FROM "#1"', (("n", types.INTEGER),), ((child.id, (3,)),)))
    for name, row in (("parent", (1, "x")), ("child", (1, 1, 1))):
        server = Server(made, name)
        server.insert(*row)
        server.commit()
    return with_people(with_heap(with_locked_table(made)))


def with_locked_table(made: ChangingWorld) -> ChangingWorld:
    """And locked (id, a, b), with lock l on b, and a row."""
    columns = (NewColumn("id", types.BIGINT), NewColumn("a", types.INTEGER), NewColumn("b", types.INTEGER))
    made.execute(want.CreateTable("locked", columns, ("id",)))
    made.execute(want.AddLock("locked", "l", ("b",)))
    server = Server(made, "locked")
    server.insert(1, 1, 1)
    server.commit()
    return made


def with_heap(made: ChangingWorld) -> ChangingWorld:
    """And heap (a, b), whose key is the hidden row id, with a row."""
    made.execute(want.CreateTable("heap", (NewColumn("a", types.BIGINT), NewColumn("b", types.INTEGER))))
    server = Server(made, "heap")
    server.insert(1, 1, 1)
    server.commit()
    return made


def with_people(made: ChangingWorld) -> ChangingWorld:
    """And person (id, zip, town) and place (zip, mayor), with a row each."""
    person = (NewColumn("id", types.BIGINT), NewColumn("zip", types.TEXT), NewColumn("town", types.TEXT))
    place = (NewColumn("zip", types.TEXT), NewColumn("mayor", types.TEXT))
    for name, columns, row in (("person", person, (1, "1", "x")), ("place", place, ("1", "y"))):
        made.execute(want.CreateTable(name, columns, (columns[0].name,)))
        server = Server(made, name)
        server.insert(*row)
        server.commit()
    return made


def rendered(rows: list[Row]) -> str:
    lines = [COLUMNS, *(tuple(str(cell) for cell in row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    return "".join(
        " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n"
        for line in lines
    )


GOLDEN: dict[str, tuple[want.Wanted, ...]] = {
    "create_index": (want.CreateIndex("child", (("n", True), ("parent", False))),),
    "create_unique_index": (want.CreateIndex("child", (("n", False),), "u", unique=True),),
    "add_unique_constraint": (want.AddConstraint("child", want.Unique(("n",))),),
    "drop_index": (want.DropIndexes(("child_n_idx",)),),
    "create_table": (
        want.CreateTable(
            "t", (NewColumn("id", types.BIGINT, identity="always", sequence=want.SequenceOptions()),), ("id",)
        ),
    ),
    "create_child_table": (
        want.CreateTable(
            "t", (NewColumn("p", types.TEXT),), constraints=(want.ForeignKey(("p",), "parent", ("code",)),)
        ),
    ),
    "drop_child_table": (want.DropTables(("child",), cascade=True),),
    "drop_parent_table_cascade": (want.DropTables(("parent",), cascade=True),),
    "add_column": (want.AddColumn("child", NewColumn("c", types.TEXT, default=constant("x"))),),
    "drop_column": (want.DropColumn("child", "n", cascade=True),),
    "rename_column": (want.RenameColumn("child", "n", "m"),),
    "rename_table": (want.RenameObject("table", "child", "kid"),),
    "several_actions": (
        want.AddColumn("child", NewColumn("c", types.INTEGER)),
        want.SetDefault("child", "c", constant("1")),
        want.DropNotNull("child", "parent"),
    ),
    "widen_type": (want.SetType("child", "parent", types.BIGINT), want.SetType("parent", "code", types.TEXT)),
    "truncate": (want.Truncate(("child",)),),
    "truncate_cascade": (want.Truncate(("parent",), cascade=True),),
    "add_lock": (want.AddLock("child", "l", ("n", "parent")),),
    "alter_lock": (want.AlterLock("locked", "l", ("a",)),),
    "drop_lock": (want.DropLock("locked", "l"),),
    "lock_with_others": (
        want.AddLock("locked", "m", ("a",)),
        want.AddColumn("locked", NewColumn("c", types.INTEGER)),
        want.DropLock("locked", "l"),
    ),
    "alter_primary_key": (want.AlterPrimaryKey("child", ("parent", "id")),),
    "add_primary_key": (want.AlterPrimaryKey("heap", ("a",), adds=True),),
    "create_view": (want.CreateView("w", "", (("id", types.BIGINT),), ()),),
    "drop_view": (want.DropViews(("v",)),),
    "drop_constraint": (want.DropConstraint("child", "child_parent_fkey"),),
    "add_check": (want.AddConstraint("child", check("n")),),
    "add_check_not_valid": (want.AddConstraint("child", check("n", not_valid=True)),),
    "add_foreign_key": (want.AddConstraint("child", want.ForeignKey(("n",), "parent")),),
    "add_foreign_key_not_valid": (want.AddConstraint("child", want.ForeignKey(("n",), "parent", not_valid=True)),),
    "add_column_volatile": (want.AddColumn("child", NewColumn("c", types.DOUBLE, False, volatile())),),
    "add_column_serial_with_constraints": (
        want.AddColumn(
            "child",
            NewColumn("c", types.BIGINT, False, sequence=want.SequenceOptions()),
            (want.Unique(("c",)), check("c"), want.ForeignKey(("c",), "parent")),
        ),
        want.AddColumn("child", NewColumn("d", types.DOUBLE, default=volatile())),
        want.AddColumn("child", NewColumn("e", types.INTEGER, default=constant("1"))),
        want.SetNotNull("child", "d"),
        want.AddConstraint("child", want.Unique(("n",))),
    ),
    "add_identity": (want.AddIdentity("parent", "id", "always", want.SequenceOptions()),),
    "set_not_null": (want.SetNotNull("child", "n"),),
    "figure_3": (
        want.AddColumn("child", NewColumn("c", types.INTEGER, default=constant("1")), (check("c"),)),
        want.AddConstraint("child", want.Unique(("n",))),
        want.DropNotNull("child", "parent"),
        want.DropConstraint("child", "child_n_check"),
        want.SetDefault("child", "n", constant("7")),
    ),
}


# What their jobs do is in tests/schemachange/online.
TRANSFORMATIONS: dict[str, tuple[want.Wanted, ...]] = {
    "split_table": (
        want.SplitTable(
            "person", want.NewTable("person", ("id", "zip")), want.NewTable("town", ("zip", "town")), ("zip",)
        ),
    ),
    "join_tables": (
        want.JoinTables(
            "person",
            "place",
            (("zip", "zip"),),
            "address",
            (want.JoinedColumn("id", r="id"), want.JoinedColumn("zip", "zip", "zip")),
            want.TransformationOptions(pause_rows=7),
        ),
    ),
}


@pytest.mark.parametrize("name", [*GOLDEN, *TRANSFORMATIONS])
def test_the_plan_is_the_golden_one(world: ChangingWorld, name: str) -> None:
    plan = world.plan(*(GOLDEN | TRANSFORMATIONS)[name], statement=name)
    text = rendered(explain(plan, world.catalog()))
    golden = PLANS / f"{name}.txt"
    if os.environ.get("INSTAR_GOLDEN") == "write":
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("name", GOLDEN)
def test_every_plan_can_be_committed(world: ChangingWorld, name: str) -> None:
    job = world.execute(*GOLDEN[name], statement=name)
    if job is not None:
        done = world.executor().run(job)
        assert done is not None
        assert done.problem is None
    for table in world.catalog().tables():
        assert tuple(part[0] for part in table.layout.columns) == tuple(column.id for column in table.columns)
        assert table.next_id > max(column.id for column in table.columns)
        assert all(index.state is State.PUBLIC for index in table.indexes)


REFUSED: dict[str, tuple[str, Callable[[], want.Wanted]]] = {
    "table exists": ("42P07", lambda: want.CreateTable("child", (NewColumn("a", types.TEXT),))),
    "index exists": ("42P07", lambda: want.CreateIndex("child", (("n", False),), "child_n_idx")),
    "name of a primary key": ("42P07", lambda: want.CreateTable("child_pkey", (NewColumn("a", types.TEXT),))),
    "no such table": ("42P01", lambda: want.DropTables(("nope",))),
    "not a table": ("42809", lambda: want.DropTables(("v",))),
    "not a view": ("42809", lambda: want.DropViews(("child",))),
    "no such column": ("42703", lambda: want.DropColumn("child", "nope")),
    "no such key column": ("42703", lambda: want.CreateIndex("child", (("nope", False),))),
    "column twice": ("42701", lambda: want.CreateIndex("child", (("n", False), ("n", True)))),
    "column exists": ("42701", lambda: want.AddColumn("child", NewColumn("n", types.TEXT))),
    "rename onto a column": ("42701", lambda: want.RenameColumn("child", "n", "id")),
    "view on the column": ("2BP01", lambda: want.DropColumn("child", "n")),
    "view on the table": ("2BP01", lambda: want.DropTables(("child",))),
    "referenced table": ("2BP01", lambda: want.DropTables(("parent",))),
    "referenced unique constraint": ("2BP01", lambda: want.DropIndexes(("parent_code_key",))),
    "index of a primary key": ("2BP01", lambda: want.DropIndexes(("child_pkey",))),
    "index of a foreign key": ("2BP01", lambda: want.DropIndexes(("child_parent_fkey_idx",))),
    "no such index": ("42704", lambda: want.DropIndexes(("nope",))),
    "a table is no index": ("42809", lambda: want.DropIndexes(("child",))),
    "no such constraint": ("42704", lambda: want.DropConstraint("child", "nope")),
    "primary key column": ("0A000", lambda: want.DropColumn("child", "id")),
    "truncate a referenced table": ("0A000", lambda: want.Truncate(("parent",))),
    "narrower type": ("0A000", lambda: want.SetType("child", "parent", types.INTEGER)),
    "type of a column under a view": ("0A000", lambda: want.SetType("child", "n", types.BIGINT)),
    "required column, rows there": ("23502", lambda: want.AddColumn("child", NewColumn("c", types.TEXT, False))),
    "required column, default NULL": (
        "23502", lambda: want.AddColumn("child", NewColumn("c", types.TEXT, False, constant(None)))
    ),
    "identity of a nullable column": (
        "55000", lambda: want.AddIdentity("child", "n", "always", want.SequenceOptions())
    ),
    "another primary key": ("42P16", lambda: want.AlterPrimaryKey("child", ("n",), adds=True)),
    "no such column of a primary key": ("42703", lambda: want.AlterPrimaryKey("child", ("nope",))),
    "column of a lock in a primary key": ("42P16", lambda: want.AlterPrimaryKey("locked", ("b",))),
    "name of another index": ("42P07", lambda: want.AlterPrimaryKey("child", ("n",), "parent_pkey")),
    "referenced primary key": ("2BP01", lambda: want.AlterPrimaryKey("parent", ("code",))),
    "key of the primary key": ("42P16", lambda: want.DropNotNull("child", "id")),
    "jsonb key": (
        "0A000", lambda: want.CreateTable("j", (NewColumn("a", types.JSONB),), ("a",))
    ),
    "parent without such key": (
        "42830",
        lambda: want.CreateTable("k", (NewColumn("p", types.BIGINT),), constraints=(
            want.ForeignKey(("p",), "child", ("n",)),)),
    ),
    "parent without primary key": (
        "42P01", lambda: want.CreateTable("k", (NewColumn("p", types.BIGINT),), constraints=(
            want.ForeignKey(("p",), "nope"),)),
    ),
    "types that do not compare": (
        "42804",
        lambda: want.CreateTable("k", (NewColumn("p", types.TEXT),), constraints=(want.ForeignKey(("p",), "parent"),)),
    ),
    "numbers of columns": (
        "42830",
        lambda: want.CreateTable(
            "k", (NewColumn("p", types.TEXT),), constraints=(want.ForeignKey(("p",), "parent", ("code", "id")),)
        ),
    ),
    "identity of text": (
        "22023",
        lambda: want.CreateTable(
            "k", (NewColumn("p", types.TEXT, identity="always", sequence=want.SequenceOptions()),)
        ),
    ),
    "sequence that goes nowhere": ("22023", lambda: want.CreateSequence("s", want.SequenceOptions(increment=0))),
    "sequence out of bounds": ("22023", lambda: want.CreateSequence("s", want.SequenceOptions(minimum=5, maximum=2))),
    "start below the minimum": ("22023", lambda: want.CreateSequence("s", want.SequenceOptions(minimum=5, start=1))),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_postgresql_refuses_is_refused_with_its_sqlstate(world: ChangingWorld, case: str) -> None:
    sqlstate, wanted = REFUSED[case]
    with pytest.raises(errors.Error) as refused:
        world.plan(wanted())
    assert refused.value.sqlstate == sqlstate


def test_names_are_postgresqls(world: ChangingWorld) -> None:
    child, parent = world.table("child"), world.table("parent")
    assert child.primary_key_name == "child_pkey"
    assert [index.name for index in parent.indexes] == ["parent_code_key"]
    assert [check.name for check in child.checks] == ["child_n_check"]
    assert [key.name for key in child.foreign_keys] == ["child_parent_fkey"]
    assert [index.name for index in child.indexes] == ["child_parent_fkey_idx", "child_n_idx"]
    long = "x" * 70
    world.execute(want.CreateTable("y" * 63, (NewColumn(long[:63], types.TEXT),)))
    world.execute(want.CreateIndex("y" * 63, ((long[:63], False),)))
    (index,) = world.table("y" * 63).indexes
    assert index.name == "y" * 29 + "_" + "x" * 29 + "_idx"


def test_a_statement_that_has_nothing_left_to_do(world: ChangingWorld) -> None:
    """As DROP INDEX IF EXISTS has when its turn comes and the index is gone."""
    assert not world.plan().first


@pytest.mark.parametrize(
    ("constraint", "name"), [(check("n"), "child_n_check1"), (want.ForeignKey(("n",), "parent"), "child_n_fkey")]
)
def test_a_constraint_that_a_job_moves_is_not_dropped(
    world: ChangingWorld, constraint: want.Constraint, name: str
) -> None:
    """The job could neither go on nor take back what else it has brought, a column say."""
    job = world.execute(want.AddColumn("child", NewColumn("c", types.TEXT)), want.AddConstraint("child", constraint))
    with pytest.raises(errors.Error, match="is not complete") as refused:
        world.plan(want.DropConstraint("child", name))
    assert refused.value.sqlstate == "55006"
    assert job is not None
    world.executor().run(job)
    world.execute(want.DropConstraint("child", name))
    world.execute(want.SetNotNull("child", "parent"))
    with pytest.raises(errors.Error, match="is not complete"):
        world.plan(want.DropColumn("child", "parent", cascade=True))


def test_on_the_way_back_a_column_goes_no_earlier_than_what_stands_on_it(world: ChangingWorld) -> None:
    """Rule 25: else an index that is still delete-only is kept by writers who no longer have its column."""
    constraints = (want.Unique(("c",)), check("c"), want.ForeignKey(("c",), "parent"))
    world.execute(want.AddColumn("child", NewColumn("c", types.BIGINT), constraints))
    child = world.table("child")
    moving = [(found, phase) for found, phase in phases(child).items() if phase is not Phase.PUBLIC]
    (column,) = [found for found, _phase in moving if found.kind is ElementKind.COLUMN]
    others = [found for found, _phase in moving if found != column]
    assert {used_columns(child, found) for found in others} == {(column,)}
    back = planner.reverse(
        planner.Standing(found, Phase.WRITE_ONLY, Phase.ABSENT, used_columns(child, found)) for found, _phase in moving
    )
    moves = [(number, move) for number, stage in enumerate(back) for move in stage.moves]
    gone = {move.element: number for number, move in moves if move.goal is Phase.ABSENT}
    assert len(others) == 4
    assert gone[column] == max(gone.values()) == 1


def test_a_foreign_key_knows_both_sides_and_owns_or_borrows_an_index(world: ChangingWorld) -> None:
    child, parent = world.table("child"), world.table("parent")
    (key,) = child.foreign_keys
    assert (key.parent, key.parent_index, key.owns_index) == (parent.id, None, True)
    assert parent.referenced_by == (child.id,)
    world.execute(
        want.CreateTable(
            "k",
            (NewColumn("p", types.BIGINT), NewColumn("q", types.TEXT)),
            ("p",),
            constraints=(
                want.Unique(("q", "p")),
                want.ForeignKey(("p",), "parent"),
                want.ForeignKey(("q",), "parent", ("code",)),
                want.ForeignKey(("p",), "k"),
            ),
        )
    )
    k = world.table("k")
    assert [(key.child_index, key.owns_index) for key in k.foreign_keys] == [
        (None, False), (k.indexes[1].id, True), (None, False)
    ]  # fmt: skip
    assert k.foreign_keys[1].parent_index == parent.indexes[0].id
    assert world.table("parent").referenced_by == (child.id, k.id)
    assert k.referenced_by == (k.id,)
    world.execute(want.DropTables(("k",)))
    assert world.table("parent").referenced_by == (child.id,)


def test_a_table_without_a_primary_key_has_a_hidden_row_id(world: ChangingWorld) -> None:
    world.execute(want.CreateTable("n", (NewColumn("rowid", types.TEXT),)))
    table = world.table("n")
    assert [(column.name, column.hidden) for column in table.columns] == [("rowid", False), ("rowid", True)]
    assert table.primary_key == (2,)
    assert table.columns[1].sequence is not None


def test_serial_columns_own_their_sequence(world: ChangingWorld) -> None:
    new = NewColumn("id", types.INTEGER, False, sequence=want.SequenceOptions())
    world.execute(want.CreateTable("s", (new, NewColumn("x", types.TEXT)), ("id",)))
    sequence = world.catalog().lookup("public", "s_id_seq")
    assert isinstance(sequence, Sequence)
    assert (sequence.type, sequence.maximum) == (types.INTEGER, 2**31 - 1)
    assert sequence.owned_by == (world.table("s").id, 1)
    with pytest.raises(errors.Error, match="other objects depend on it"):
        world.plan(want.DropSequences(("s_id_seq",)))
    world.execute(want.DropTables(("s",)))
    assert world.catalog().lookup("public", "s_id_seq") is None


def test_dropping_a_column_takes_what_is_built_on_it(world: ChangingWorld) -> None:
    plan = world.plan(want.DropColumn("child", "n", cascade=True))
    assert plan.notices == ("drop cascades to view v",)
    world.execute(want.DropColumn("child", "n", cascade=True))
    child = world.table("child")
    assert [index.name for index in child.indexes] == ["child_parent_fkey_idx"]
    assert not child.checks
    assert child.layout.columns == ((1, types.BIGINT), (2, types.BIGINT))
    assert world.catalog().lookup("public", "v") is None
    world.execute(want.DropColumn("child", "parent"))
    assert not world.table("child").foreign_keys
    assert not world.table("child").indexes
    assert world.table("parent").referenced_by == ()


def test_a_dropped_and_re_added_column_is_another_column(world: ChangingWorld) -> None:
    world.execute(want.DropColumn("child", "parent"), want.AddColumn("child", NewColumn("parent", types.BIGINT)))
    assert world.table("child").columns[-1].id > 3


def test_several_actions_make_one_version(world: ChangingWorld) -> None:
    before = world.table("child").version
    world.execute(*GOLDEN["several_actions"])
    table = world.table("child")
    assert table.version == before + 1
    assert [step.kind.value for step in table.steps if step.version == table.version] == ["add column", "set default"]


def test_an_empty_table_needs_no_path(world: ChangingWorld) -> None:
    world.create_t()
    required = NewColumn("c", types.INTEGER, False)
    plan = world.plan(want.AddColumn("t", required), want.AddConstraint("t", check("c")))
    assert not plan.needs_job
    assert plan.first.still_empty == (world.table().id,)
    assert world.execute(want.CreateIndex("t", (("a", False),), unique=True)) is None
    assert world.table().indexes[0].state is State.PUBLIC


def test_a_table_that_is_no_longer_empty_at_the_commit_is_a_conflict(world: ChangingWorld) -> None:
    from instar.schemachange.executor import apply

    world.create_t()
    plan_on = world.change()
    plan = world.plan(want.CreateIndex("t", (("a", False),)))
    apply(plan.first, plan_on)
    writer = Server(world)
    writer.insert(1, 1, "x")
    writer.commit()
    with pytest.raises(errors.Error) as refused:
        world.commit(change=plan_on)
    assert refused.value.sqlstate == "40001"


def test_a_job_is_not_disturbed_by_what_would_take_its_table_away(world: ChangingWorld) -> None:
    job = world.execute(want.CreateIndex("child", (("n", False),), "i"))
    for wanted in (
        want.DropTables(("child",), cascade=True), want.Truncate(("child",)), want.DropIndexes(("i",)),
        want.DropColumn("child", "n", cascade=True),
    ):  # fmt: skip
        with pytest.raises(errors.Error) as refused:
            world.plan(wanted)
        assert refused.value.sqlstate == "55006"
    world.execute(want.RenameColumn("child", "n", "m"), want.AddColumn("child", NewColumn("c", types.TEXT)))
    assert job is not None
    assert world.executor().run(job).problem is None  # type: ignore[union-attr]
    world.check_index("i", "child")


def test_truncate_swaps_every_rowset_and_tells_the_other_side(world: ChangingWorld) -> None:
    before, parent = world.table("child"), world.table("parent")
    world.execute(want.Truncate(("child",)))
    after = world.table("child")
    assert after.rowset != before.rowset
    assert not {index.rowset for index in before.indexes} & {index.rowset for index in after.indexes}
    assert world.table("parent").version == parent.version + 1
    assert world.rows(after) == {}


def test_create_or_replace_view_keeps_its_columns(world: ChangingWorld) -> None:
    child = world.table("child")
    wider = want.CreateView("v", "q", (("n", types.INTEGER), ("m", types.TEXT)), ((child.id, (3,)),), replace=True)
    world.execute(wider)
    view = world.catalog().lookup("public", "v")
    assert isinstance(view, View)
    assert view.version == 2
    with pytest.raises(errors.Error) as refused:
        world.plan(want.CreateView("v", "q", (("m", types.TEXT),), (), replace=True))
    assert refused.value.sqlstate == "42P16"


def test_widening_converts_the_frozen_value(world: ChangingWorld) -> None:
    world.create_t([(1, 1, "x")])
    world.execute(want.AddColumn("t", NewColumn("r", types.REAL, default=constant("0.1"))))
    world.execute(want.SetType("t", "r", types.DOUBLE))
    column = world.table().columns[-1]
    assert (column.type, column.missing) == (types.DOUBLE, "0.10000000149011612")
    assert isinstance(world.table(), Table)
