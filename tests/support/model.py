"""A model checker that drives the real code: all interleavings of transactions with the stages of a change.

The states are those of the memory engine, which are copied and put back; the steps are the code's own: a transaction
begins (and reads what it writes), derives its commit under the schema that its server holds, and submits it; a change
publishes a stage, derives a piece of work, puts it, and goes back the way it came if it fails. A server learns another
schema only when it begins a transaction or is refused, as under a lease. Each state that is reached is looked at once.

What a step does depends on the store, on how far the change is, and on the one who makes it, and on nothing else; so it
is made once for all states that have these in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.changes import CatalogChange
from instar.catalog.descriptors import Table, View
from instar.catalog.layouts import Layouts
from instar.schemachange import planner
from instar.schemachange import wanted as want
from instar.schemachange.elements import yielding
from instar.schemachange.executor import apply
from instar.schemachange.job_records import Job, JobState, new_job
from instar.schemachange.online.conditions import read_of
from instar.schemachange.online.keeping import FollowingView
from instar.schemachange.publishing import advance
from instar.schemachange.stages import Reorganization, Stage
from instar.schemachange.standing import standing, unseen_of
from instar.schemachange.states import Work
from instar.schemachange.violations import judge_moves
from instar.store.engine import (
    PREFIX_ROW,
    ROW_HEADER,
    ROW_TOMBSTONE,
    Commit,
    Refused,
    prefix_end,
    rowset_prefix,
)
from instar.store.memory import _State
from instar.store.records import Latest, latest_key
from instar.tables.rowset import TableReader
from support.changes import ChangingWorld, Facts
from support.model_servers import FIRST, Moment, Predicate, Server, Servers, Write
from support.model_work import CLAIM, JOB, Met, Piece, Works

_FOLLOWED = latest_key(Latest.FOLLOWED)


class Progress(NamedTuple):
    """Where the change is. `todo`: works of the stage that are not derived; `pieces`: what of a work is derived and not
    put, and what its other pieces have `met`; `asked`: the store that the next stage was derived on, if that is another
    step than to publish it; `ended`: it has failed, and nothing is left to take back."""

    moment: Moment
    todo: tuple[Reorganization, ...] = ()
    pieces: tuple[Piece, ...] = ()
    met: Met = ()
    asked: int | None = None
    ended: bool = False


class Node(NamedTuple):
    """A state of everything. `store`: the number of its contents."""

    store: int
    change: Progress
    servers: tuple[Server, ...]


class Violation(AssertionError):
    """A state that breaks what must hold, and how it was reached."""


class Model:
    """One change and the transactions beside it. `checks` are the predicates of CHECK constraints by name (SQL's
    business, which this does without); `servers`: the writes of each server's transaction; `cancels`: the change may be
    cancelled wherever it can."""

    def __init__(
        self,
        world: ChangingWorld,
        wanted: Sequence[want.Wanted],
        servers: Sequence[Sequence[Write]],
        checks: dict[str, Predicate] | None = None,
        *,
        fences: bool = True,
        cancels: bool = False,
    ) -> None:
        self.world = world
        self.wanted = wanted
        self.writes = servers
        self.checks = checks or {}
        self._fences = fences
        self._cancels = cancels
        self._stores: dict[frozenset[tuple[bytes, bytes]], int] = {}
        self._states: list[_State] = []
        self._looks: dict[int, object] = {}
        self._changes: dict[tuple[int, Progress], list[tuple[str, int, Progress]]] = {}
        self._served: dict[tuple[int, Moment, int, Server], list[tuple[str, int, Server]]] = {}
        self._views: dict[Moment, tuple[View, ...]] = {}
        self._kept: dict[tuple[int, Moment], int] = {}
        self._layouts: dict[int | None, Layouts] = {}
        self._readers: dict[tuple[int, int | None], tuple[Table, TableReader]] = {}
        self.initial = {table.name: self.rows(table) for table in world.catalog().tables()}
        change = world.change()
        plan = planner.plan(change.view, change, Facts(world, None), wanted, "the change")
        apply(plan.first, change)
        self.job = new_job(JOB, plan, 0)
        self._published: dict[Moment, CatalogChange] = {Moment(None, 1): change}
        self._ways: dict[int | None, tuple[Stage, ...]] = {None: plan.stages}
        self._catalogs: dict[Moment, CatalogSnapshot] = {FIRST: world.catalog()}
        with world.store.read() as reader:
            self._version = reader.catalog_version
        self._servers = Servers(self, self.checks)
        self._works = Works(self, self.checks)

    # --- the search --------------------------------------------------------------------------------------------------

    def run(self, judge: Callable[[Model, Node], None]) -> int:
        """Visit every state; `judge` raises if it may not be. Returns how many there are. States that differ in nothing
        that `judge` looks at (timestamps, who has begun what) are judged once."""
        judged: set[object] = set()
        start = Node(self._number(), Progress(FIRST), tuple(Server() for _ in self.writes))
        seen = {start}
        waiting: list[tuple[Node, tuple[object, ...]]] = [(start, ())]
        while waiting:
            node, way = waiting.pop()
            look = self._look(node)
            if look not in judged:
                judged.add(look)
                self.restore(node.store)
                try:
                    judge(self, node)
                except AssertionError as problem:
                    raise Violation(f"{problem}\nafter: {_told(way)}") from None
            for name, following in self._moves(node):
                if following not in seen:
                    seen.add(following)
                    waiting.append((following, (way, name)))
        return len(seen)

    def _look(self, node: Node) -> object:
        """What can be judged of a state: rows and entries without their timestamps, how far views have followed, and
        who has committed."""
        data = self._looks.get(node.store)
        if data is None:
            values = self._states[node.store].values.items()
            rows = {(key, value[8:]) for key, value in values if key.startswith(PREFIX_ROW)}
            rows.update(pair for pair in values if pair[0].startswith(_FOLLOWED))
            data = self._looks[node.store] = frozenset(rows)
        return data, node.change.moment, tuple(server.outcome for server in node.servers)

    def rows(
        self, table: Table, back: int | None = None, rowset: int | None = None
    ) -> dict[object, tuple[object, ...]]:
        """The live rows of a table, or those in another rowset of it, by their first column, or a row id that they are
        told apart by."""
        known = self._readers.get((id(table), back))
        if known is None:
            reads = TableReader(table, range(len(table.columns)), self.layouts(back))
            known = self._readers[id(table), back] = (table, reads)
        start = rowset_prefix(table.rowset if rowset is None else rowset)
        with self.world.store.read() as reader:
            images = [
                known[1].decode(value)
                for _, value in reader.scan(start, prefix_end(start))
                if not ROW_HEADER.unpack_from(value)[2] & ROW_TOMBSTONE
            ]
        place = next((n for n, found in enumerate(table.columns) if found.hidden and found.id in table.primary_key), 0)
        return {image[place]: image for image in images}

    def _moves(self, node: Node) -> Iterator[tuple[str, Node]]:
        known = self._changes.get((node.store, node.change))
        if known is None:
            self.restore(node.store)
            known = self._changes[node.store, node.change] = list(self._change(node.store, node.change))
        for name, store, change in known:
            yield name, Node(store, change, node.servers)
        moment = node.change.moment
        for number, server in enumerate(node.servers):
            if server.step == "end":
                continue
            place = (node.store, moment, number, server)
            served = self._served.get(place)
            if served is None:
                served = self._served[place] = list(self._serve(*place))
            for name, store, after in served:
                yield name, Node(store, node.change, (*node.servers[:number], after, *node.servers[number + 1 :]))

    def _serve(self, store: int, moment: Moment, number: int, server: Server) -> Iterator[tuple[str, int, Server]]:
        for after in self._servers.moves(lambda: self.restore(store), moment, number, server):
            name = f"server {number}: {server.step} -> {after.outcome or after.step} at {tuple(after.held)}"
            yield name, self._number(), after

    # --- contents of the store ---------------------------------------------------------------------------------------

    def _number(self) -> int:
        """The number of what the store holds now."""
        state = self.world.store.state  # type: ignore[attr-defined] # the memory engine
        contents = frozenset(state.values.items())
        number = self._stores.setdefault(contents, len(self._states))
        if number == len(self._states):
            state.readers += 1  # so it is never changed
            self._states.append(state)
        return number

    def restore(self, number: int) -> None:
        """Have the store hold what has that number."""
        self.world.store.state = self._states[number]  # type: ignore[attr-defined] # the memory engine

    def layouts(self, back: int | None) -> Layouts:
        """What is known of layouts on a way: one of a number may be another on another way."""
        return self._layouts.setdefault(back, Layouts(self.world.store))

    # --- the schema --------------------------------------------------------------------------------------------------

    def catalog(self, moment: Moment) -> CatalogSnapshot:
        """The schema then."""
        if moment.back is not None and not moment.stage:
            return self._catalogs[Moment(None, moment.back)]
        return self._catalogs[moment]

    def version(self, moment: Moment) -> int:
        """The version of the catalog then."""
        return self._version + (moment.back or 0) + moment.stage

    def before(self, moment: Moment) -> Moment | None:
        """When there was one stage less."""
        if moment.stage:
            return moment._replace(stage=moment.stage - 1)
        return None if moment.back is None else Moment(None, moment.back - 1)

    def catalogs(self) -> Iterator[CatalogSnapshot]:
        """All schemas that there were."""
        return iter(self._catalogs.values())

    def stages(self) -> Iterator[Stage]:
        """All stages, on whatever way."""
        return (stage for way in self._ways.values() for stage in way)

    # --- the change --------------------------------------------------------------------------------------------------

    def _change(self, store: int, at: Progress) -> Iterator[tuple[str, int, Progress]]:
        moment = at.moment
        if at.ended:
            return
        if self._cancels and moment.back is None and self._job(moment).is_revertible and moment.stage:
            yield "cancelled", store, self._turned(moment)
        followed = self._followed(store, moment)
        if followed != store:
            yield "views kept up", followed, at
            self.restore(store)
        try:
            after = self._next(store, at)
        except errors.Error as failed:
            back = self._turned(moment) if moment.back is None else at._replace(ended=True)
            yield f"fails: {failed.sqlstate}", store, back
            return
        if after is not None:
            yield after[0], self._number(), after[1]

    def _next(self, store: int, at: Progress) -> tuple[str, Progress] | None:
        if at.pieces:
            met = self._works.put(at.pieces[0], at.met)
            return "work: put", at._replace(pieces=at.pieces[1:], met=met if at.pieces[1:] else ())
        moment = at.moment
        if at.todo:
            work, values = at.todo[0], self._states[store].values
            pieces = self._works.derive(self.catalog(moment), self._job(moment), moment, work, values)
            goes_on = pieces and work.work is Work.FOLLOW
            return "work: derive", at._replace(todo=at.todo if goes_on else at.todo[1:], pieces=pieces)
        way = self._ways[moment.back]
        if moment.stage == len(way):
            return None
        stage = way[moment.stage]
        if self._is_judged(moment, stage) and at.asked is None:
            return f"stage {moment.stage + 1}: derive", at._replace(asked=store)
        request = self._request(store if at.asked is None else at.asked, moment, stage)
        self.restore(store)
        try:
            self.world.store.commit(request)
        except Refused:
            return f"stage {moment.stage + 1}: refused", at._replace(asked=None)
        return f"stage {moment.stage + 1}", Progress(moment._replace(stage=moment.stage + 1), stage.work)

    def _turned(self, moment: Moment) -> Progress:
        """The change as it is when it turns round."""
        if moment.stage not in self._ways:
            job, catalog = self._job(moment), self.catalog(moment)
            self._ways[moment.stage] = planner.reverse(standing(job, catalog), unseen_of(job, catalog))
        return Progress(Moment(moment.stage, 0), ended=not self._ways[moment.stage])

    def _job(self, moment: Moment) -> Job:
        """What is on record of the job then."""
        state = JobState.RUNNING if moment.back is None else JobState.REVERTING
        return msgspec.structs.replace(self.job, stages=self._ways[moment.back], stage=moment.stage, state=state)

    def _is_judged(self, moment: Moment, stage: Stage) -> bool:
        """Whether it is up to what is committed if the stage can be published: others come in before that."""
        catalog = self.catalog(moment)
        tables = (catalog.table(move.element.table) for move in stage.moves)
        return bool(stage.reveals) or (moment.stage > 0 and any(yielding(table) for table in tables))

    def _request(self, store: int, moment: Moment, stage: Stage) -> Commit:
        """The commit of the stage after `moment`, derived on a store."""
        self.restore(store)
        after = moment._replace(stage=moment.stage + 1)
        change = self._published.get(after)
        if change is None:
            change = self._published[after] = CatalogChange(self.catalog(moment), self.world.ids)
            apply(advance(self.catalog(moment).by_id, stage, "the change"), change)
            for table in stage.fences if self._fences else ():
                change.fence(change.view.table(table))
        self._catalogs.setdefault(after, change.view)
        request = Commit(catalog_version=self.version(moment))
        with self.world.store.read() as reader:
            change.parts(reader).add_to(request)
            judge_moves(request, reader, self.catalog(moment), stage.moves, self._works.compile)
            if stage.reveals or stage.shows:
                works = self._works.following(self.catalog(moment), self._job(moment))
                request.raw += [works.begun(view) for view in stage.shows]
                if stage.reveals:
                    works.add_tail(request, reader)
        if not moment.stage:
            request.raw.append(CLAIM)
        return request

    def _followed(self, store: int, moment: Moment) -> int:
        """What the store holds when the materialized views have followed the log."""
        catalog = self.catalog(moment)
        if moment not in self._views:
            self._views[moment] = tuple(catalog.views())
        place = (store, moment)
        if self._views[moment] and place not in self._kept:
            for view in self._views[moment]:
                if view.materialized is not None:
                    self._follow(view, catalog, catalog.table(view.materialized.storage))
            self._kept[place] = self._number()
            self.restore(store)
        return self._kept.get(place, store)

    def _follow(self, view: View, catalog: CatalogSnapshot, storage: Table) -> None:
        assert storage.unseen is not None
        sources = [read_of(catalog.table(number), storage.unseen.made) for number in storage.unseen.made.sources]
        kept = FollowingView(self.world.store, view, storage, sources, self._works.compile)
        kept.follow(self.world.now(), lambda: False, lambda seconds: None, lambda: None)


def _told(way: tuple[Any, ...]) -> str:
    """The names of steps, of which each knows those before it."""
    names: list[str] = []
    while way:
        way, name = way
        names.append(name)
    return " | ".join(reversed(names))
