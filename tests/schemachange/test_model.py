"""Claims 8 and 9 of F1 (§3.2, §3.3), by enumeration: every change that the planner makes, beside two transactions.

After each step the database must be consistent (definition 4) for the schema of the moment and for the one before,
which servers may still read by; what was committed must be what some serial order of the transactions leaves. The
searches of the second half leave a state out, and must find the damage that the paper names: so these tests can fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from typing import Any

import pytest
from msgspec.structs import replace

from instar import errors, types
from instar.catalog.descriptors import Index, State, Table
from instar.clock import ManualClock
from instar.schemachange import populate, propagate, rekey, reorganize, rules
from instar.schemachange import wanted as want
from instar.schemachange.elements import ElementKind, Phase
from instar.schemachange.states import PATHS, Path, Work
from instar.schemachange.wanted import Frozen, NewColumn
from instar.store import MemoryStore
from instar.store.records import decode_table_header, table_key
from instar.tables import upgrade
from instar.tables.copies import image_key
from instar.tables.index import IndexCodec
from instar.tables.writes import Derivation
from support import model as checker
from support.changes import ChangingWorld
from support.changes import Server as Writer
from support.model import Model, Node, Violation
from support.model_servers import FIRST, GIVEN, Write, columns_of, written

CHECKS = {
    "positive": lambda row: row[0] is None or row[0] > 0,
    "present": lambda row: row[0] is not None,
    "other": lambda row: True,
    "another": lambda row: True,
}
COLUMNS = tuple(NewColumn(name, types.BIGINT) for name in ("id", "a", "b"))


def check(name: str, column: int = 2) -> want.Check:
    return want.Check(lambda table: Frozen(f"#{column}", (column,)), name)


def built(*before: want.Wanted, lease: float = 0.0, rows: Sequence[tuple[int, ...]] = ((1, 10, 1),)) -> ChangingWorld:
    """t (id, a, b) with `rows` of one commit, and p (id) with rows 1 and 10, after the changes `before`."""
    world = ChangingWorld(MemoryStore(clock=ManualClock(), schema_lease=lease))
    world.execute(want.CreateTable("p", (NewColumn("id", types.BIGINT),), ("id",)))
    world.execute(want.CreateTable("t", COLUMNS, ("id",)))
    for action in before:
        assert world.execute(action) is None
    for name, identities in (("p", ((1,), (10,))), ("t", rows)):
        writer = Writer(world, name)
        for row in identities:
            writer.insert(*row)
        writer.commit()
    return world


def insert(key: int, table: str = "t", **values: int | None) -> tuple[Write, ...]:
    return (Write("insert", table, key, tuple(values.items())),)


def update(key: int, **values: int | None) -> tuple[Write, ...]:
    return (Write("update", "t", key, tuple(values.items())),)


def count(key: int, **by: int) -> tuple[Write, ...]:
    return (Write("count", "t", key, tuple(by.items())),)


def delete(key: int, table: str = "t") -> tuple[Write, ...]:
    return (Write("delete", table, key),)


# --- what must hold --------------------------------------------------------------------------------------------------


def judge(model: Model, node: Node) -> None:
    """Definition 4 for the newest schema and the one before it, and a serial order for what is committed."""
    both_consistent(model, node)
    serial(model, node)


def both_consistent(model: Model, node: Node) -> None:
    """Definition 4 for the newest schema and the one before it."""
    moment = node.change.moment
    for known in {moment, model.before(moment) or moment}:
        for table in model.catalog(known).tables():
            last = model.catalog(moment).by_id(table.id)
            if not isinstance(last, Table) or table.rowset != last.rowset or last.unseen is not None:
                continue  # nobody writes it any more, or knows of it yet
            if table is not last and floor_of(model, table) > table.version:
                continue  # nobody may read by it what is newer than it (rule 17)
            try:
                consistent(model, node, table, last)
            except errors.Error as failed:
                raise AssertionError(f"clause 2: a row has no value of the new type: {failed}") from None


def floor_of(model: Model, table: Table) -> int:
    with model.world.store.read() as reader:
        stored = reader.get(table_key(table.id))
    assert stored is not None
    return decode_table_header(stored).floor


def consistent(model: Model, node: Node, table: Table, last: Table) -> None:
    rows = model.rows(table, node.change.moment.back)
    left = {index.id for index in last.indexes}
    for index in table.indexes:
        # What nobody reads, and is gone in the newest schema, awaits its removal (clauses 3 and 7 exempt it).
        if index.id in left or index.state is State.PUBLIC:
            entries_of(model, table, index, rows)
    if table.next_key is not None and last.next_key is not None:  # rows as they stand under the present primary key
        copies = model.rows(table, node.change.moment.back, table.next_key.rowset)
        assert copies.items() <= rows.items(), "clause 3: a copy of no row"
    if table is not last:
        return
    for found in table.checks:
        if found.state is State.PUBLIC:
            for image in rows.values():
                holds = model.checks[found.name](columns_of(table, found, image))
                assert holds, f"clause 6: {image} violates {found.name}"
    for ordinal, column in enumerate(table.columns):
        values = {image[ordinal] for image in rows.values()}
        if column.state is State.PUBLIC:
            assert column.nullable or None not in values, f"clause 2: {column.name} is NULL"
            assert not column.per_row or column.derived or values <= {GIVEN}, f"clause 2: {column.name} has no value"
        if column.generated and column.state is State.PUBLIC:
            made_of = [found.id for found in table.columns].index(MADE.columns[0])
            for image in rows.values():
                assert image[ordinal] == converted(image[made_of]), f"clause 2: {column.name} is not what it is made of"
    for key in table.foreign_keys:
        if key.state is State.PUBLIC:
            ordinal = next(i for i, column in enumerate(table.columns) if column.id == key.columns[0])
            lost = {image[ordinal] for image in rows.values()} - set(rows_of(model, node, "p")) - {None}
            assert not lost, f"clause 6: {lost} are referred to and not there"


def entries_of(model: Model, table: Table, index: Index, rows: dict[object, tuple[object, ...]]) -> None:
    codec, key = IndexCodec(table, index), image_key(table)
    wanted = {codec.entry(image, key(image)) for image in rows.values()}
    stored = set(model.world.entries(index))
    assert stored <= wanted, f"clause 5: {index.name} has {len(stored - wanted)} entries without a row"
    if index.state is State.PUBLIC:
        assert stored == wanted, f"clause 4: {index.name} lacks the entries of {len(wanted - stored)} rows"
        if index.unique:
            prefixes = [prefix for image in rows.values() if (prefix := codec.unique_prefix(image)) is not None]
            assert len(set(prefixes)) == len(prefixes), "clause 4: a unique key stands twice"


def serial(model: Model, node: Node) -> None:
    """The rows are those that the committed transactions, and a change of all rows, leave one after the other, in some
    order."""
    table = table_of(model, node, "t")
    if table is None:
        return
    committed = [number for number, server in enumerate(node.servers) if server.outcome == "committed"]
    rows = {name: rows_of(model, node, name) for name in ("t", "p")}
    assert any(_applied(model, order) == rows for order in _orders(model, node, table, committed)), "not serializable"


def _orders(model: Model, node: Node, table: Table, committed: Sequence[int]) -> Iterator[Sequence[int | None]]:
    """What may have come after what; None is the change of all rows."""
    if isinstance(model.wanted[0], want.Truncate) and node.change.moment.stage:
        yield from permutations([*committed, None])
        return
    converts = any(column.replaces is not None and column.state is State.PUBLIC for column in table.columns)
    before = [number for number in committed if not node.servers[number].anew]
    after = [number for number in committed if node.servers[number].anew]
    for one in permutations(before):
        for other in permutations(after):
            yield [*one, *([None] if converts else []), *other]


def table_of(model: Model, node: Node, name: str) -> Table | None:
    """The table that had the name at first, unless it is gone."""
    first = model.catalog(FIRST).lookup("public", name)
    assert isinstance(first, Table)
    found = model.catalog(node.change.moment).by_id(first.id)
    return found if isinstance(found, Table) else None


def rows_of(model: Model, node: Node, name: str) -> dict[object, tuple[object, ...]]:
    """The rows as they stand, without columns that come with the change."""
    table = table_of(model, node, name)
    if table is None:
        return {}
    first = model.catalog(FIRST).lookup("public", name)
    assert isinstance(first, Table)
    found = {column.id: place for place, column in enumerate(table.columns)}
    width = len(COLUMNS if name == "t" else COLUMNS[:1])
    places = [found.get(column.id, place) for place, column in enumerate(first.columns[:width])]
    rows = model.rows(table, node.change.moment.back)
    return {key: tuple([image[place] for place in places]) for key, image in rows.items()}


def _applied(model: Model, order: Sequence[int | None]) -> dict[str, dict[object, tuple[object, ...]]]:
    """What transactions leave one after the other; None stands for the conversion of a, or for TRUNCATE."""
    initial = {name: model.initial[name] for name in ("t", "p")}
    tables = {name: {key: row[: len(COLUMNS)] for key, row in rows.items()} for name, rows in initial.items()}
    for number in order:
        if number is None and isinstance(model.wanted[0], want.Truncate):
            tables["t"] = {}
        elif number is None:
            tables["t"] = {key: (row[0], converted(row[1]), row[2]) for key, row in tables["t"].items()}
        for write in () if number is None else model.writes[number]:
            rows, values = tables[write.table], dict(write.values)
            if write.kind == "delete":
                rows.pop(write.key, None)
            elif write.kind == "insert":
                given = (write.key, values.get("a"), values.get("b"))
                rows[write.key] = given if write.table == "t" else given[:1]
            elif write.key in rows:
                rows[write.key] = written(write, ("id", "a", "b"), rows[write.key])
    return tables


# --- every change that the planner makes -----------------------------------------------------------------------------

WRITES: dict[str, tuple[Write, ...]] = {
    "insert": insert(2, a=20, b=2),
    "update a": update(1, a=11),
    "update b": update(1, b=5),
    "delete": delete(1),
    "count a": count(1, a=1),
    "count b": count(1, b=1),
    "update to b 2": update(1, b=2),
    "insert bad": insert(3, a=-1, b=1),
    "update bad": update(1, a=None),
    "insert taken": insert(2, a=20, b=1),
}
SOME = (("insert", "update a"), ("update a", "delete"), ("insert", "delete"))
ALL = (*SOME, ("insert", "insert"), ("update a", "update b"))
COUNTS = (("count a", "count a"), ("count b", "count b"), ("count a", "count b"), ("count a", "delete"))
KEYS = (("insert", "update to b 2"), ("update b", "delete"), ("update a", "insert"))
ALIKE = (("update a", "update to b 2"), ("delete", "update to b 2"))
TAKEN = (("insert", "update b"), ("insert taken", "delete"), ("insert taken", "update b"))
CONVERTED = (*SOME, ("insert bad", "update a"), ("update bad", "update b"))
BAD = (("insert bad", "update bad"), ("insert bad", "delete"), ("update bad", "update b"))

INDEX = want.CreateIndex("t", (("a", False),), "i")
UNIQUE = want.AddConstraint("t", want.Unique(("b",), "u"))
CHECK = want.AddConstraint("t", check("positive"))
KEY = want.AddConstraint("t", want.ForeignKey(("a",), "p", name="f"))
LOCK = want.AddLock("t", "l", ("a",))
MOVE = want.AlterLock("t", "l", ("a", "b"))
PRIMARY = want.AlterPrimaryKey("t", ("b",))
GIVES = want.Default(lambda _: Frozen("7", ()), True, None)
SEVEN = want.Default(lambda _: Frozen("7", ()), False, "7")
POPULATED = want.AddColumn("t", NewColumn("c", types.BIGINT, nullable=False, default=GIVES))
POPULATED_NULLABLE = want.AddColumn("t", NewColumn("c", types.BIGINT, default=GIVES))
COLUMN = want.AddColumn("t", NewColumn("c", types.BIGINT), (want.Unique(("c",), "uc"),))


def yields(wanted: want.AddConstraint) -> want.AddConstraint:
    """The same, with the policy "abort change"."""
    return replace(wanted, constraint=replace(wanted.constraint, yields=True))


def locked() -> ChangingWorld:
    """With rows that have timestamps under two locks."""
    return built(LOCK)


def alike(*before: want.Wanted) -> ChangingWorld:
    """With two rows that have the same timestamps, and the same value of what may become the key."""
    return built(*before, rows=((1, 10, 1), (2, 20, 1)))


def unvalidated() -> ChangingWorld:
    """With a CHECK that old rows have not been held to."""
    world = built()
    constraint = replace(check("positive"), not_valid=True)
    assert world.execute(want.AddConstraint("t", constraint)) is None
    return world


def older() -> ChangingWorld:
    """With rows that are in an older layout than the newest."""
    world = built()
    assert world.execute(want.AddColumn("t", NewColumn("c", types.BIGINT))) is None
    return world


def leased(*before: want.Wanted) -> Callable[[], ChangingWorld]:
    return lambda: built(*before, lease=1.0)


def converted(value: Any) -> int | None:
    """What conversions of the column a, and columns generated of it, make of a value of it; -1 has none."""
    return None if value is None else int(100 / (value + 1))


def conversion(using: str) -> want.ConvertColumns:
    """ALTER COLUMN a TYPE integer USING an expression."""
    made = want.Conversion(using, (2,), "random" in using, 0, "UTC")
    new = want.NewType("a", types.INTEGER, plain=False, conversion=made, default=None)
    return want.ConvertColumns("t", (new,), lambda check, before, after: Frozen("", (after.columns[1].id,)))


CONVERSION = conversion('CAST(100 / ("#2" + 1) AS integer)')
MADE = Frozen('CAST(100 / ("#2" + 1) AS bigint)', (2,))
GENERATED = want.AddColumn("t", NewColumn("g", types.BIGINT, generated=lambda _: MADE))
OF_UNIQUE = (want.Unique(("g",), "ug"),)
GENERATED_UNIQUE = want.AddColumn("t", replace(GENERATED.column, nullable=False), OF_UNIQUE)
ANOTHER_EACH_TIME = conversion('CAST(CASE WHEN random() >= 0 THEN 100 / ("#2" + 1) END AS integer)')

Pairs = tuple[tuple[str, str], ...]
CHANGES: dict[str, tuple[Callable[[], ChangingWorld], tuple[want.Wanted, ...], Pairs]] = {
    "index": (built, (INDEX,), ALL),
    "unique": (built, (UNIQUE,), (*SOME, ("insert bad", "update b"))),
    "check": (built, (CHECK,), BAD),
    "validate": (unvalidated, (want.ValidateConstraint("t", "positive"),), BAD),
    "not null": (built, (want.SetNotNull("t", "a"),), BAD),
    "index and check": (built, (INDEX, CHECK), (SOME[0], BAD[0])),
    "column with a unique key": (built, (COLUMN,), SOME),
    "lock": (built, (LOCK,), COUNTS),
    "move a column to a lock": (locked, (MOVE,), COUNTS),
    "drop lock": (locked, (want.DropLock("t", "l"),), COUNTS),
    "populated column": (built, (POPULATED,), SOME),
    "populated column of a table with locks": (locked, (POPULATED_NULLABLE,), (("update a", "update b"),)),
    "primary key": (lambda: built(want.SetNotNull("t", "b")), (PRIMARY,), KEYS),
    "primary key of a column with NULLs": (built, (PRIMARY,), KEYS[:1]),
    "primary key that was not unique": (lambda: alike(want.SetNotNull("t", "b")), (PRIMARY,), ALIKE),
    "primary key that was not unique, with locks": (lambda: alike(want.SetNotNull("t", "b"), LOCK), (PRIMARY,), ALIKE),
    "drop index": (leased(INDEX), (want.DropIndexes(("i",)),), SOME),
    "drop check": (leased(CHECK), (want.DropConstraint("t", "positive"),), BAD[:2]),
    "drop constraint and add index": (leased(CHECK), (INDEX, want.DropConstraint("t", "positive")), SOME[:1]),
    "drop index at once": (lambda: built(INDEX), (want.DropIndexes(("i",)),), SOME),
    "drop check at once": (lambda: built(CHECK), (want.DropConstraint("t", "positive"),), BAD[:2]),
    "check and a direct step at its end": (built, (CHECK, want.SetDefault("t", "b", None)), BAD[:1]),
    "compact": (older, (want.CompactTable("t"),), SOME),
    "unique that yields": (built, (yields(UNIQUE),), TAKEN),
    "check that yields": (built, (yields(CHECK),), BAD),
    "not null that yields": (built, (want.SetNotNull("t", "a", yields=True),), BAD),
    "conversion": (built, (CONVERSION,), CONVERTED),
    "conversion with an index": (lambda: built(INDEX), (CONVERSION,), CONVERTED),
    "conversion with a check": (lambda: built(CHECK), (CONVERSION,), CONVERTED),
    "conversion with locks": (locked, (CONVERSION,), (("update a", "update b"), ("insert bad", "count b"))),
    "generated column": (built, (GENERATED,), CONVERTED),
    "generated column with a unique key": (built, (GENERATED_UNIQUE,), CONVERTED),
    "generated column with locks": (locked, (GENERATED,), (("update a", "update b"), ("insert bad", "count b"))),
    "conversion that is another each time": (lambda: built(INDEX), (ANOTHER_EACH_TIME,), CONVERTED),
}

NARROW = want.AddColumn("t", NewColumn("c", types.INTEGER, nullable=False, default=SEVEN))
UNDROPPED = want.AddColumn("t", NewColumn("gone", types.INTEGER))
OTHER = want.AddConstraint("t", check("other"))
# In one step, and no job.
AT_ONCE: dict[str, tuple[want.Wanted, ...]] = {
    "add a column": (want.AddColumn("t", NewColumn("d", types.BIGINT)),),
    "add a column with a default": (want.AddColumn("t", NewColumn("d", types.BIGINT, nullable=False, default=SEVEN)),),
    "add a column among others": (want.AddColumn("t", NewColumn("d", types.BIGINT), place=want.Place("id")),),
    "drop a column": (want.DropColumn("t", "c"),),
    "undrop a column": (want.UndropColumn("t", "gone"),),
    "rename a column": (want.RenameColumn("t", "c", "d"),),
    "move a column": (want.MoveColumn("t", "c", want.Place("a")),),
    "widen": (want.SetType("t", "c", types.BIGINT),),
    "set a default": (want.SetDefault("t", "b", SEVEN),),
    "drop a default": (want.SetDefault("t", "c", None),),
    "drop not null": (want.DropNotNull("t", "c"),),
    "drop an expression": (want.DropExpression("t", "g"),),
    "add an identity": (want.AddIdentity("t", "id", "always", want.SequenceOptions()),),
    "rename an index": (want.RenameIndex("i", "j"),),
    "rename a constraint": (want.RenameConstraint("t", "other", "another"),),
    "set the migration": (want.SetMigration("t", "read"),),
    "set the share to compact for": (want.SetCompaction("t", 0.5),),
    "rename the table": (want.RenameObject("table", "t", "u"),),
    "truncate": (want.Truncate(("t",)),),
    "drop the table": (want.DropTables(("t",)),),
    "several": (
        want.DropColumn("t", "c"),
        want.AddColumn("t", NewColumn("c", types.TEXT)),
        want.SetDefault("t", "b", SEVEN),
    ),
}


def search(world: ChangingWorld, wanted: Sequence[want.Wanted], servers: Sequence[Sequence[Write]], **how: bool) -> int:
    return Model(world, wanted, servers, CHECKS, **how).run(judge)


@pytest.fixture(autouse=True)
def row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others come in between any two rows of a backfill."""
    for module in (reorganize, populate, propagate, rekey):
        monkeypatch.setattr(module, "STEP_ROWS", 1)
    monkeypatch.setattr(reorganize, "STEP_ENTRIES", 1)


@pytest.mark.parametrize("name", CHANGES)
def test_two_transactions_beside_a_change_corrupt_nothing(name: str) -> None:
    make, wanted, pairs = CHANGES[name]
    for one, two in pairs:
        cancels = (one, two) == pairs[0]
        assert search(make(), wanted, (WRITES[one], WRITES[two]), cancels=cancels) > 50


def at_once() -> ChangingWorld:
    """With what the changes at once change."""
    return built(UNDROPPED, want.DropColumn("t", "gone"), NARROW, INDEX, OTHER, GENERATED)


@pytest.mark.parametrize("name", AT_ONCE)
def test_two_transactions_beside_a_change_of_one_step_corrupt_nothing(name: str) -> None:
    for one, two in SOME:
        assert search(at_once(), AT_ONCE[name], (WRITES[one], WRITES[two])) > 30


@pytest.mark.parametrize(
    ("name", "pair"),
    [("check that yields", ("insert bad", "update b")), ("unique that yields", ("insert taken", "update a"))],
)
def test_nobody_is_refused_for_a_constraint_that_yields_before_it_is_there(name: str, pair: tuple[str, str]) -> None:
    make, wanted, _pairs = CHANGES[name]
    refused = 0

    def judge_outcomes(model: Model, node: Node) -> None:
        nonlocal refused
        judge(model, node)
        moment = node.change.moment
        if any(server.outcome == "refused" for server in node.servers):
            assert moment.back is None
            assert moment.stage == len(model.job.stages), "refused, and the constraint is not there"
            refused += 1

    Model(make(), wanted, [WRITES[write] for write in pair], CHECKS).run(judge_outcomes)
    assert refused


FOREIGN_KEYS = ("add", "yields", "drop")


def foreign_key(how: str) -> tuple[ChangingWorld, want.Wanted]:
    """A change of a foreign key from t to p, and what it is made on."""
    drops = how == "drop"
    world = built(*((KEY,) if drops else ()), lease=float(drops), rows=((1, 1, 1),))
    return world, want.DropConstraint("t", "f") if drops else yields(KEY) if how == "yields" else KEY


@pytest.mark.parametrize("how", FOREIGN_KEYS)
def test_a_foreign_key_beside_its_parents_corrupts_nothing(how: str) -> None:
    pairs = [(insert(2, a=10, b=1), delete(10, "p")), (update(1, a=99), delete(1, "p"))]
    for one, two in pairs if how == "drop" else pairs[:1]:
        world, wanted = foreign_key(how)
        assert search(world, (wanted,), (one, two), cancels=how == "add") > 50


# --- what is found when something is left out ------------------------------------------------------------------------

ABSENT, DELETE_ONLY, WRITE_ONLY, PUBLIC = Phase.ABSENT, Phase.DELETE_ONLY, Phase.WRITE_ONLY, Phase.PUBLIC
INSERTS_AND_DELETES = (insert(2, a=20, b=2), delete(2))


def damage(wanted: want.Wanted, *servers: Sequence[Write], world: ChangingWorld | None = None, **how: bool) -> str:
    with pytest.raises(Violation) as found:
        search(world or built(), (wanted,), servers, **how)
    return str(found.value)


def test_an_index_without_delete_only_keeps_entries_of_deleted_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """F1 §3.1: a server that does not know the index deletes a row whose entry another has made."""
    path = Path((ABSENT, WRITE_ONLY, PUBLIC), {WRITE_ONLY: Work.BACKFILL})
    monkeypatch.setitem(PATHS, ElementKind.INDEX, path)
    assert "clause 5" in damage(INDEX, *INSERTS_AND_DELETES)


def test_an_index_without_write_only_lacks_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """F1 §3.1: a server inserts behind the backfill and makes no entry."""
    path = Path((ABSENT, DELETE_ONLY, PUBLIC), {DELETE_ONLY: Work.BACKFILL})
    monkeypatch.setitem(PATHS, ElementKind.INDEX, path)
    assert "clause 4" in damage(INDEX, *INSERTS_AND_DELETES)


def test_a_dropped_index_without_write_only_lacks_rows_for_those_who_still_read_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = built(INDEX, lease=1.0)
    path = Path((ABSENT, DELETE_ONLY, PUBLIC), {})
    monkeypatch.setitem(PATHS, ElementKind.INDEX, path)
    assert "clause 4" in damage(want.DropIndexes(("i",)), *INSERTS_AND_DELETES, world=world)


def test_a_unique_index_whose_backfill_does_not_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 21."""
    monkeypatch.setattr(reorganize.Backfill, "_is_taken", lambda *what: False)
    assert "twice" in damage(UNIQUE, WRITES["insert taken"], WRITES["insert"])


def test_work_without_the_fence_misses_those_who_are_one_state_behind() -> None:
    """Rule 19."""
    assert "clause 4" in damage(INDEX, *INSERTS_AND_DELETES, fences=False)


def test_a_check_that_is_not_pending_while_rows_are_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path((ABSENT, DELETE_ONLY, PUBLIC), {DELETE_ONLY: Work.VALIDATE})
    monkeypatch.setitem(PATHS, ElementKind.CHECK, path)
    assert "clause 6" in damage(CHECK, WRITES["insert bad"], delete(1))


def test_a_foreign_key_that_is_not_pending_while_rows_are_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path((ABSENT, DELETE_ONLY, PUBLIC), {DELETE_ONLY: Work.VALIDATE})
    monkeypatch.setitem(PATHS, ElementKind.FOREIGN_KEY, path)
    world = built(rows=((1, 1, 1),))
    assert "clause 6" in damage(KEY, insert(2, a=10, b=1), delete(10, "p"), world=world)


def test_a_column_in_a_new_lock_without_propagation_loses_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """F1 §3.4: read under the old coverage, changed by another under it, committed under the new one."""
    path = Path((ABSENT, WRITE_ONLY, PUBLIC), {})
    monkeypatch.setitem(PATHS, ElementKind.COVERAGE, path)
    assert "not serializable" in damage(MOVE, WRITES["count b"], WRITES["count b"], world=locked())


def test_a_column_in_a_new_lock_without_dual_coverage_loses_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """F1 §3.4, claim 8: one server checks the old lock alone, and the other moves the new one alone."""
    covering = Table.covering
    monkeypatch.setattr(Table, "covering", lambda table, column: covering(table, column)[-1:])
    monkeypatch.setattr(rules, "skips_dual_coverage", lambda before, after: False)
    assert "not serializable" in damage(MOVE, WRITES["count b"], WRITES["count b"], world=locked())


def test_a_column_that_is_not_filled_in_before_it_is_public(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PATHS, ElementKind.COLUMN, Path((ABSENT, WRITE_ONLY, PUBLIC), {}))
    assert "clause 2" in damage(POPULATED, WRITES["insert"], WRITES["update a"])


def test_a_next_primary_key_without_delete_only_keeps_copies_of_deleted_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path((ABSENT, WRITE_ONLY, PUBLIC), {WRITE_ONLY: Work.BACKFILL})
    monkeypatch.setitem(PATHS, ElementKind.PRIMARY_KEY, path)
    # A pending NOT NULL, which nobody commits past who has not seen it, would hide the damage.
    world = built(want.SetNotNull("t", "b"))
    assert "clause 3" in damage(PRIMARY, *INSERTS_AND_DELETES, world=world)


def test_a_row_that_is_found_by_its_new_key_alone_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 24: rows of one commit have one timestamp, and the new key was not unique when the row was read."""
    monkeypatch.setattr(upgrade, "_is_still", lambda *row: True)
    world = alike(want.SetNotNull("t", "b"))
    assert "not serializable" in damage(PRIMARY, *(WRITES[name] for name in ALIKE[0]), world=world)


def test_a_check_that_yields_whose_pending_entry_writers_do_not_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thesis §3.3: whoever commits what violates it has to say so."""
    monkeypatch.setattr(Derivation, "_note_violations", lambda *what: None)
    assert "clause 6" in damage(yields(CHECK), WRITES["insert bad"], delete(1))


@pytest.mark.parametrize(
    ("wanted", "server"), [(CHECK, "insert bad"), (UNIQUE, "insert taken")], ids=["check", "unique"]
)
def test_a_constraint_that_yields_whose_flag_is_not_looked_at(
    wanted: want.AddConstraint, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checker, "judge_moves", lambda *what: None)
    assert "clause" in damage(yields(wanted), WRITES[server], delete(1))


@pytest.mark.parametrize(
    ("wanted", "server"), [(CHECK, "insert bad"), (UNIQUE, "insert taken")], ids=["check", "unique"]
)
def test_a_constraint_that_yields_without_its_floor(
    wanted: want.AddConstraint, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 16: what was derived while it gave way comes when it is there, and tells nobody any more. The version of the
    list of checks would turn it back, too."""
    monkeypatch.setattr(rules, "check_list", lambda table: ())
    left = tuple(rule for rule in rules.FLOOR_RULES if rule.name != "abort change")
    monkeypatch.setattr(rules, "FLOOR_RULES", left)
    assert "clause" in damage(yields(wanted), WRITES[server], delete(1))


@pytest.mark.parametrize("wanted", [CONVERSION, ANOTHER_EACH_TIME], ids=["derived", "stored"])
def test_a_conversion_whose_index_skips_write_only(
    wanted: want.ConvertColumns, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path((ABSENT, DELETE_ONLY, PUBLIC), {DELETE_ONLY: Work.BACKFILL})
    monkeypatch.setitem(PATHS, ElementKind.INDEX, path)
    world = built(INDEX)
    assert "clause 4" in damage(wanted, *INSERTS_AND_DELETES, world=world)


def test_a_conversion_of_rows_that_nobody_has_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PATHS, ElementKind.COLUMN, Path((ABSENT, WRITE_ONLY, PUBLIC), {}))
    assert "clause 2" in damage(CONVERSION, WRITES["insert bad"], delete(1))


def test_a_conversion_that_is_another_each_time_and_stored_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PATHS, ElementKind.COLUMN, Path((ABSENT, WRITE_ONLY, PUBLIC), {}))
    assert "not serializable" in damage(ANOTHER_EACH_TIME, WRITES["insert"], delete(1))
