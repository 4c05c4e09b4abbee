"""Joins, splits and materialized views, by enumeration (as test_model.py): beside two transactions, from the first
stage to the end, or back.

What is committed must be what some serial order of the transactions leaves, made by the operator from the switch on,
which here is computed from scratch; and what is stored must be consistent (definition 4).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import Any

import pytest

from instar.catalog.changes import CatalogChange
from instar.catalog.descriptors import Table, View
from instar.clock import ManualClock
from instar.database import crossing
from instar.schemachange import wanted as want
from instar.schemachange import works
from instar.schemachange.online.crossing import translate
from instar.schemachange.online.crossing_rows import RowChange
from instar.schemachange.online.followed import Followed, encode_followed, followed, followed_key
from instar.schemachange.online.tail import Tail
from instar.store import MemoryStore
from instar.store.engine import Reader, prefix_end, rowset_prefix
from instar.store.records import TableHeader, decode_table_header, table_key
from instar.store.versions import iterate_rows
from instar.tables.rowset import TableReader
from instar.types import BIGINT, NUMERIC
from schemachange.test_model import COLUMNS, both_consistent, delete, insert, update
from support.changes import ChangingWorld
from support.changes import Server as Writer
from support.model import Model, Node, Violation
from support.model_servers import Write, written

Row = tuple[Any, ...]
Rows = dict[str, dict[object, Row]]


def built(*, unique: bool = True) -> ChangingWorld:
    """t (id, a, b) and u (id, a, b), each with rows of one commit; `unique`: a is so in u."""
    world = ChangingWorld(MemoryStore(clock=ManualClock()))
    constraints = (want.Unique(("a",), "ua"),) if unique else ()
    for name, rows in (("t", [(1, 10, 1), (2, 10, 1)]), ("u", [(1, 10, 5), (2, 20, 6)])):
        world.execute(want.CreateTable(name, COLUMNS, ("id",), constraints=constraints if name == "u" else ()))
        writer = Writer(world, name)
        for row in rows:
            writer.insert(*row)
        writer.commit()
    return world


# --- what must hold --------------------------------------------------------------------------------------------------


def split(rows: Rows) -> Rows:
    """t as r (id, a) and s (a, b), by a."""
    made = {(a, b) for _, a, b in rows["t"].values() if a is not None}
    return {
        "r": {key: row[:2] for key, row in rows["t"].items()},
        "s": {pair if sum(pair[0] == a for a, _ in made) > 1 else pair[0]: pair for pair in made},
    }


def in_place(rows: Rows) -> Rows:
    """The same, but r is t."""
    made = split(rows)
    return {"t": made["r"], "s": made["s"]}


def join(rows: Rows) -> Rows:
    """The full outer join of t and u by a, as j (id, a, b, uid, ub)."""
    t, u = rows["t"].values(), rows["u"].values()
    pairs = [(one, other) for one in t for other in u if one[1] is not None and one[1] == other[1]]
    whole = [(one[0], one[1], one[2], other[0], other[2]) for one, other in pairs]
    whole += [(*one, None, None) for one in t if one not in [pair[0] for pair in pairs]]
    whole += [(None, other[1], None, other[0], other[2]) for other in u if other not in [pair[1] for pair in pairs]]
    return {"j": {(row[0], row[3]): row for row in whole}}


def grouped(rows: Rows) -> Counter[Row]:
    """SELECT b, count(*), sum(a) FROM t GROUP BY b."""
    found = list(rows["t"].values())
    return Counter(
        (b, len(group), sum(values) if (values := [a for a in group if a is not None]) else None)
        for b in {row[2] for row in found}
        for group in [[row[1] for row in found if row[2] == b]]
    )


def joined(rows: Rows) -> Counter[Row]:
    """As `join`, without the join column."""
    return Counter((row[0], row[2], row[3], row[4]) for row in join(rows)["j"].values())


def applied(model: Model, order: Sequence[int], before: Rows) -> Rows:
    """What transactions leave one after the other."""
    tables = {name: dict(rows) for name, rows in before.items()}
    for number in order:
        for write in model.writes[number]:
            rows, values = tables[write.table], dict(write.values)
            if write.kind == "delete":
                rows.pop(write.key, None)
            elif write.kind == "insert":
                rows[write.key] = (write.key, *(values.get(name) for name in ("a", "b")[: len(values)]))
            elif write.key in rows:
                rows[write.key] = written(write, ("id", "a", "b"), rows[write.key])
    return tables


def stored(model: Model, node: Node, names: Sequence[str]) -> dict[str, Counter[Row]]:
    """The rows of tables as they are seen, by name."""
    catalog, found = model.catalog(node.change.moment), {}
    for name in names:
        table = catalog.lookup("public", name)
        assert isinstance(table, Table)
        shown = [place for place, column in enumerate(table.columns) if column.visible]
        rows = model.rows(table, node.change.moment.back).values()
        found[name] = Counter(tuple(row[place] for place in shown) for row in rows)
    return found


class Judge:
    """Judges a change that makes other tables of t and u by an operator."""

    def __init__(self, operator: Callable[[Rows], Rows]) -> None:
        self.operator = operator
        self.ends: Counter[tuple[str, ...]] = Counter()  # how servers have ended, where targets were made

    def __call__(self, model: Model, node: Node) -> None:
        both_consistent(model, node)
        moment = node.change.moment
        initial = {name: rows for name, rows in model.initial.items() if name in ("t", "u")}
        stages = model.job.stages[: moment.stage] if moment.back is None else ()
        switched = any(stage.reveals for stage in stages)
        committed = [number for number, server in enumerate(node.servers) if server.outcome == "committed"]
        before = [number for number in committed if not node.servers[number].anew]
        after = [number for number in committed if node.servers[number].anew]
        expected = []
        for one in permutations(before):
            made = applied(model, one, initial)
            expected += [
                applied(model, other, self.operator(made) if switched else made) for other in permutations(after)
            ]
        if switched:
            self.ends[tuple(server.outcome for server in node.servers)] += 1
        found = stored(model, node, list(expected[0]))
        wanted = [{name: Counter(rows.values()) for name, rows in tables.items()} for tables in expected]
        assert found in wanted, f"not the operator on any serial order: {found}, and not one of {wanted}"


# --- every change ----------------------------------------------------------------------------------------------------


def both(*writes: tuple[Write, ...]) -> tuple[Write, ...]:
    """Several writes in one transaction."""
    return tuple(write for one in writes for write in one)


def of_u(write: tuple[Write, ...]) -> tuple[Write, ...]:
    return tuple(replace(one, table="u") for one in write)


WRITES: dict[str, tuple[Write, ...]] = {
    "another of a value": insert(3, a=10, b=1),
    "another value": insert(3, a=30, b=3),
    "delete": delete(1),
    "delete all of a value": both(delete(1), delete(2)),
    "move": update(2, a=20, b=2),
    "change the value": both(update(1, b=7), update(2, b=7)),
    "contradict": update(1, b=9),
    "insert u": insert(3, "u", a=30, b=7),
    "move u": of_u(update(1, a=30)),
    "delete u": delete(1, "u"),
    "move both": both(update(1, a=20), of_u(update(2, a=40))),
}
OF_SPLIT = (
    ("another of a value", "delete all of a value"), ("move", "change the value"), ("contradict", "move"),
    ("another value", "delete"),
)  # fmt: skip
OF_JOIN = (("move", "move u"), ("delete", "delete u"), ("move both", "another value"), ("insert u", "another value"))


def splitting(**options: Any) -> want.SplitTable:
    place = options.pop("in_place", False)
    r = want.NewTable("t" if place else "r", ("id", "a"))
    s = want.NewTable("s", ("a", "b"))
    return want.SplitTable("t", r, s, ("a",), want.TransformationOptions(**options), in_place=place)


def joining(**options: Any) -> want.JoinTables:
    columns = (
        want.JoinedColumn("id", r="id"), want.JoinedColumn("a", r="a", s="a"), want.JoinedColumn("b", r="b"),
        want.JoinedColumn("uid", s="id"), want.JoinedColumn("ub", s="b"),
    )  # fmt: skip
    return want.JoinTables("t", "u", (("a", "a"),), "j", columns, want.TransformationOptions(**options))


def many() -> ChangingWorld:
    return built(unique=False)


Pairs = tuple[tuple[str, str], ...]
CHANGES: dict[str, tuple[Callable[[], ChangingWorld], want.Wanted, Callable[[Rows], Rows], Pairs]] = {
    "split": (built, splitting(), split, OF_SPLIT),
    "split, commit": (built, splitting(strategy="commit"), split, OF_SPLIT),
    "split, block": (built, splitting(strategy="block"), split, OF_SPLIT[:2]),
    "split, names live on": (built, splitting(strategy="commit", keep_views=True), split, OF_SPLIT[:1]),
    "split in place": (built, splitting(in_place=True), in_place, OF_SPLIT),
    "join": (built, joining(), join, OF_JOIN),
    "join, commit": (built, joining(strategy="commit"), join, OF_JOIN),
    "join, block": (built, joining(strategy="block"), join, OF_JOIN[:2]),
    "many-to-many join": (many, joining(), join, OF_JOIN),
    "many-to-many join, commit": (many, joining(strategy="commit"), join, OF_JOIN),
}


@pytest.mark.parametrize("name", CHANGES)
def test_two_transactions_beside_a_join_or_split_lose_nothing(name: str) -> None:
    make, wanted, operator, pairs = CHANGES[name]
    for one, two in pairs:
        judge = Judge(operator)
        cancels = (one, two) == pairs[0]
        Model(make(), (wanted,), (WRITES[one], WRITES[two]), cancels=cancels).run(judge)
        assert ("committed", "committed") in judge.ends


# --- materialized views ----------------------------------------------------------------------------------------------


def grouping(world: ChangingWorld) -> want.CreateMaterializedView:
    """v: SELECT b, count(*), sum(a) FROM t GROUP BY b."""
    table = world.table("t")
    _, a, b = (column.id for column in table.columns)
    outputs = tuple(want.GroupedOutput(what) for what in ("group", "rows", "sum"))
    made = want.Grouped((b,), ((a, True),), outputs)
    columns = (("b", BIGINT), ("count", BIGINT), ("sum", NUMERIC))
    return want.CreateMaterializedView("v", ("t",), "", columns, ((table.id, (a, b)),), made)


def joined_rows(world: ChangingWorld) -> want.CreateMaterializedView:
    """v: SELECT t.id, t.b, u.id, u.b FROM t FULL JOIN u ON t.a = u.a."""
    t, u = world.table("t"), world.table("u")
    outputs = tuple(((side, table.columns[place].id),) for side, table in ((0, t), (1, u)) for place in (0, 2))
    columns = tuple((name, BIGINT) for name in ("id", "b", "uid", "ub"))
    depends_on = tuple((table.id, tuple(column.id for column in table.columns)) for table in (t, u))
    made = want.Joined("full", (("a", "a"),), outputs)
    return want.CreateMaterializedView("v", ("t", "u"), "", columns, depends_on, made)


def rows_at(model: Model, node: Node, table: Table, timestamp: int) -> list[Row]:
    """The rows of a table at a snapshot."""
    start, back = rowset_prefix(table.rowset), node.change.moment.back
    reader = TableReader(table, range(len(table.columns)), model.layouts(back))
    return [
        reader.decode(value)
        for _, values in iterate_rows(model.world.store, start, prefix_end(start), timestamp)
        for value in values
    ]


def no_operator(rows: Rows) -> Rows:
    """The tables stay as they are."""
    return rows


class ViewJudge(Judge):
    """Judges a materialized view: at its position it is its query on the snapshot of then; `caught_up`: how often it
    was that on what both transactions have left."""

    def __init__(self, query: Callable[[Rows], Counter[Row]], shown: Sequence[str]) -> None:
        super().__init__(no_operator)
        self._query = query
        self._shown = shown
        self.caught_up = 0

    def __call__(self, model: Model, node: Node) -> None:
        super().__call__(model, node)
        catalog = model.catalog(node.change.moment)
        for view in catalog.views():
            assert view.materialized is not None
            with model.world.store.read() as reader:
                known = followed(reader, view)
                newest = reader.timestamp
            assert known is not None
            assert not known.stale
            storage = catalog.table(view.materialized.storage)
            places = [[column.name for column in storage.columns].index(name) for name in self._shown]
            rows = Counter(tuple(row[place] for place in places) for row in rows_at(model, node, storage, newest))
            sources = {
                name: {row[0]: row for row in rows_at(model, node, _table(model, node, name), known.position)}
                for name in ("t", "u")
            }
            wanted = self._query(sources)
            assert rows == wanted, f"clause 9: the view has {rows}, and its query at its position {wanted}"
            last = {
                name: {row[0]: row for row in rows_at(model, node, _table(model, node, name), newest)}
                for name in sources
            }
            ended = [server.outcome for server in node.servers] == ["committed", "committed"]
            self.caught_up += ended and last == sources


def _table(model: Model, node: Node, name: str) -> Table:
    found = model.catalog(node.change.moment).lookup("public", name)
    assert isinstance(found, Table)
    return found


VIEWS: dict[
    str, tuple[Callable[[ChangingWorld], want.CreateMaterializedView], Callable[[Rows], Counter[Row]], Row, Pairs]
]
VIEWS = {
    "grouping": (grouping, grouped, ("b", "count", "a sum"), OF_SPLIT),
    "join": (joined_rows, joined, ("id", "b", "id_1", "b_1"), OF_JOIN),
}


@pytest.mark.parametrize("name", VIEWS)
def test_two_transactions_beside_a_materialized_view_that_is_made(name: str) -> None:
    make, query, shown, pairs = VIEWS[name]
    for one, two in pairs:
        world, judge = built(), ViewJudge(query, shown)
        cancels = (one, two) == pairs[0]
        Model(world, (make(world),), (WRITES[one], WRITES[two]), cancels=cancels).run(judge)
        assert judge.caught_up


ANEW = want.PopulateAnew("v")


def viewed() -> ChangingWorld:
    """With the grouping as a view."""
    world = built()
    job = world.execute(grouping(world))
    assert job is not None
    world.executor().run(job)
    return world


def test_two_transactions_beside_a_materialized_view_that_is_populated_anew() -> None:
    judge = ViewJudge(grouped, ("b", "count", "a sum"))
    Model(viewed(), (ANEW,), (WRITES["move"], WRITES["delete"])).run(judge)
    assert judge.caught_up


# --- what is found when something is left out ------------------------------------------------------------------------


def damage(wanted: want.Wanted, operator: Callable[[Rows], Rows], *names: str) -> str:
    with pytest.raises(Violation) as found:
        Model(built(), (wanted,), [WRITES[name] for name in names]).run(Judge(operator))
    return str(found.value)


BOTH = pytest.mark.parametrize(("wanted", "operator"), [(splitting(), split), (joining(), join)], ids=["split", "join"])


@BOTH
def test_a_switch_that_applies_no_tail(
    wanted: want.Wanted, operator: Callable[[Rows], Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(works.Works, "add_tail", lambda *what: None)
    assert "not the operator" in damage(wanted, operator, "delete", "another value")


@BOTH
def test_a_switch_that_applies_nothing_in_its_atomic_section(
    wanted: want.Wanted, operator: Callable[[Rows], Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tail, "complete", lambda *what: [])
    assert "not the operator" in damage(wanted, operator, "delete", "another value")


@BOTH
def test_a_switch_without_the_floor_on_the_sources(
    wanted: want.Wanted, operator: Callable[[Rows], Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is derived for the sources before the switch, and comes after it, is lost."""

    def kept(change: CatalogChange, reader: Reader, table: Table) -> TableHeader:
        stored = reader.get(table_key(table.id))
        assert stored is not None
        return decode_table_header(stored)

    monkeypatch.setattr(CatalogChange, "_dropped_header", kept)
    assert "not the operator" in damage(wanted, operator, "delete", "another value")


def _translated_as_is(made: Callable[..., list[RowChange]], *what: object, as_read: bool) -> list[RowChange]:
    """As `translate`, whatever has become of the rows since they were read."""
    return made(*what)


def test_a_late_commit_that_is_not_compared_with_what_others_have_made_of_the_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row of the targets bears no timestamp of that of the source: its values tell whether it is still the one."""
    monkeypatch.setattr(crossing, "translate", partial(_translated_as_is, translate))
    assert "not the operator" in damage(splitting(strategy="commit"), split, "change the value", "move")


@pytest.mark.parametrize(
    ("wanted", "operator"), [(splitting(strategy="commit"), split), (joining(strategy="commit"), join)]
)
def test_a_late_commit_whose_reads_of_the_targets_are_not_judged(
    wanted: want.Wanted, operator: Callable[[Rows], Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    buffers = crossing.Crossings.buffers
    monkeypatch.setattr(crossing.Crossings, "buffers", lambda *what: (buffers(*what)[0], []))
    pair = ("insert u", "another value") if operator is join else ("another of a value", "delete all of a value")
    assert "not the operator" in damage(wanted, operator, *pair)


def test_a_materialized_view_that_is_said_to_have_followed_further(monkeypatch: pytest.MonkeyPatch) -> None:
    def begun(real: works.Works, view: View) -> tuple[bytes, bytes]:
        assert view.materialized is not None
        with real._store.read() as reader:
            return followed_key(view.materialized.storage), encode_followed(Followed(reader.timestamp))

    monkeypatch.setattr(works.Works, "begun", begun)
    world, judge = built(), ViewJudge(grouped, ("b", "count", "a sum"))
    model = Model(world, (grouping(world),), (WRITES["delete"], WRITES["another value"]))
    with pytest.raises(Violation, match="clause 9"):
        model.run(judge)
