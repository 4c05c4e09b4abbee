"""The arena: one database whose schema changes, the servers about it, and a model of what its rows must be."""

from __future__ import annotations

import contextlib
import functools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from instar import errors
from instar.clock import ManualClock
from instar.database import Database, Session
from instar.schemachange.job_records import Job, JobState
from instar.schemachange.jobs import LEASE_SECONDS
from instar.store import MemoryStore
from instar.store.engine import Store
from instar.store.memory import _State
from instar.transactions.commit import Conflict
from instar.worker.work import Worker
from matrix.kinds import ROWS, SCHEMA, Kind, load
from support.changes import ChangingWorld
from support.leftovers import require_no_garbage, schema

# Where a job stands when the hook is called: (stage, how many batches of its work are done).
Point = tuple[int, int]
Hook = Callable[[Point], object]
Row = tuple[int | None, str | None, int | None]

# What a change may be refused with that came second.
_SECOND = "second_"


class Arena:
    """One run of one kind. What the traffic was told is committed is in `rows`, by key: (a, b, n)."""

    def __init__(
        self, kind: Kind, seed: str = "", *, lease: float = 0.0, open_: Callable[[ManualClock], Store] | None = None
    ) -> None:
        """`lease`: the schema lease of the store, in seconds; `open_` makes another store than one in memory."""
        clock = ManualClock()
        store: Store = MemoryStore(clock=clock, schema_lease=lease) if open_ is None else open_(clock)
        self.kind = kind
        self.draw = random.Random(f"{kind.name} {seed}")
        prepared = open_ is None
        if prepared:
            store.state, clock.wall, clock.monotonic = _prepared(kind.name, lease)  # type: ignore[attr-defined]  # in memory
        self.world = ChangingWorld(store, clock)
        self.store: Store = store
        self.databases = [self.server() for _ in range(3)]
        self.job: int | None = None
        self.changed = False
        self.changer = self.session(2)
        self.changer.execute("set schema_change_mode = async")
        for statement in () if prepared else (*SCHEMA, *kind.setup):
            self.changer.execute(statement)
            self.finish()
        self._known = {job.id for job in self.jobs}  # jobs that are not of the change
        self.rows: dict[int, Row] = {i: (i * 10, f"b{i}", i) for i in range(1, ROWS + 1)}
        self.reserved: set[int] = {1}
        self.happened: Counter[str] = Counter()
        self._fresh = 1000
        self.before = self.schema()

    def server(self) -> Database:
        """A server of its own: nothing is shared with the others but the store."""
        return Database(self.store, ":memory:", self.world.clock)

    def session(self, server: int = 0) -> Session:
        """A session with one of the servers."""
        return Session(self.databases[server], autocommit=True)

    # --- leases ------------------------------------------------------------------------------------------------------

    def tend(self) -> None:
        """What servers that have something to do come to, at every moment: leases are renewed with half of them gone.
        The second server is the one that knows the newest version, the first has it when it renews."""
        older, newer = (self.databases[number].repository for number in (0, 1))
        if older is not None and newer is not None:
            older.tend()
            newer.reload()

    @property
    def is_behind(self) -> bool:
        """Whether the first server has a lease of an older version than the newest."""
        repository = self.databases[0].repository
        known = None if repository is None else repository.current()
        return known is not None and known.catalog.version < self.world.catalog().version

    # --- the change --------------------------------------------------------------------------------------------------

    def change(self) -> None:
        """Execute the kind's statements: the first stage, in one transaction."""
        self._known = {job.id for job in self.jobs}
        repository = self.changer.database.repository
        if repository is not None:
            # It knows for a lease of the version before: else the statement would wait, and with the clock all leases.
            repository.reload()
            self.world.clock.advance(self.store.schema_lease)
        self.tend()
        if len(self.kind.statements) == 1:
            self.changer.execute(self.kind.statements[0])
        else:
            with block(self.changer):
                for statement in self.kind.statements:
                    self.changer.execute(statement)
        self.begun()

    def begun(self) -> None:
        """The statement's transaction has been committed."""
        self.job = max((job.id for job in self.jobs if job.id not in self._known), default=None)
        if self.job is None:
            self._publish()

    def recovered(self, made: dict[str, Any]) -> None:
        """Whoever executed the statement is gone, or has died as a worker: see what has become of the change."""
        self.job = max((job.id for job in self.jobs if job.id not in self._known), default=None)
        emptied = not self.kind.empties or not rows(self.session(1), "select id from t where id = 1")
        if self.job_state in (None, JobState.SUCCEEDED) and self.schema() == made and emptied and not self.changed:
            self._publish()

    def _publish(self) -> None:
        """The new schema is there for everybody."""
        self.changed = True
        if self.kind.empties or self.kind.drops:
            self.rows.clear()

    def run(self, hook: Hook, *, server: int = 2) -> Point | None:
        """Let a worker of its own go on with the jobs, with `hook` called between stages and between batches; one that
        returns true stops the worker there, which is where it is then."""
        at: list[Point] = []
        stopped: list[Point] = []
        failed: list[Exception] = []

        def stopping() -> bool:
            job = None if self.job is None else self.get(self.job)
            self.tend()
            if stopped or job is None or job.is_finished:
                return bool(stopped)
            batch = at[-1][1] + 1 if at and at[-1][0] == job.stage else 0
            at.append((job.stage, batch))
            try:
                if hook(at[-1]):
                    stopped.append(at[-1])
            except Exception as found:  # noqa: BLE001 - the executor would take it for a failure of the job
                failed.append(found)
                stopped.append(at[-1])
            return bool(stopped)

        Worker(self.store, self.world.clock, stopping=stopping).turn()
        if failed:
            raise failed[0]
        if self.job is not None and self.get(self.job).state is JobState.SUCCEEDED and not self.changed:
            self._publish()
        return stopped[0] if stopped else None

    def whole(self, hook: Hook) -> None:
        """The change from its statement to its end; the hook is called after the last stage too."""
        hook((0, 0))
        refused = refusal(self.change)
        if refused is not None:
            if refused.sqlstate != errors.OBJECT_IN_USE:
                raise refused
            self.finish()  # another change of the table is under way
            self.change()
        if self.job is not None:
            self.run(hook)
        hook((99, 0))

    def finish(self) -> None:
        """Let the jobs that there are come to their end."""
        for _ in range(4):
            if all(job.is_finished for job in self.jobs):
                break
            self.world.clock.advance(LEASE_SECONDS + 1)
            Worker(self.store, self.world.clock).turn()
        assert all(job.is_finished for job in self.jobs)
        if self.job_state is JobState.SUCCEEDED and not self.changed:
            self._publish()

    @property
    def job_state(self) -> JobState | None:
        """How it stands with the change's job."""
        return None if self.job is None else self.get(self.job).state

    @property
    def jobs(self) -> list[Job]:
        return self.world.jobs.all()

    def get(self, job: int) -> Job:
        return self.world.jobs.get(job)

    # --- rows --------------------------------------------------------------------------------------------------------

    def name(self, name: str) -> str:
        """What t or a column of it is called now."""
        return self.kind.renames.get(name, name) if self.changed else name

    def fresh(self) -> int:
        """A number that nobody has used."""
        self._fresh += 1
        return self._fresh

    def key(self) -> int | None:
        """The key of a row that is there and that nobody is at, which it now is; None if there is none."""
        left = sorted(self.rows.keys() - self.reserved)
        if not left:
            return None
        key = self.draw.choice(left)
        self.reserved.add(key)
        return key

    def schema(self) -> dict[str, Any]:
        """The schema as plain data, without what a second change has added."""
        with self.store.read() as reader:
            found = schema(self.databases[0].catalog.at(reader))
        for described in found.values():
            if "indexes" in described:
                described["columns"] = [one for one in described["columns"] if not one["name"].startswith(_SECOND)]
                described["layout"] = [one for one in described["layout"] if not one[0].startswith(_SECOND)]
                described["indexes"] = {
                    name: one for name, one in described["indexes"].items() if not name.startswith(_SECOND)
                }
                for lock in described["locks"].values():
                    lock["columns"] = [name for name in lock["columns"] if not name.startswith(_SECOND)]
        return found

    # --- what must be so ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Definition 4."""
        problems = rows(self.session(1), "check database")
        assert problems == []

    def check_rows(self) -> None:
        """The rows are those that the traffic was told of."""
        if self.changed and self.kind.drops:
            return
        columns = ", ".join(self.name(column) for column in ("id", "a", "b", "n"))
        found = rows(self.session(1), f"select {columns} from {self.name('t')} where id < 900 or id > 999")
        assert {row[0]: row[1:] for row in found} == self.rows

    def settle(self, new: dict[str, Any] | None, *, same_rows: bool = True) -> None:
        """At the end: definition 4, the rows, the queries; `new` schema or, if that is None, the old one, whole; and
        nothing is left over."""
        self.finish()
        assert self.changed is (new is not None)
        self.check()
        if same_rows:
            self.check_rows()
        assert self.schema() == (self.before if new is None else new)
        self.world.clock.advance(self.store.schema_lease)  # until then a server may be a version behind
        self.databases[0].keep_views()  # a server that is behind may not know that there is one
        for query in self.kind.before if new is None else self.kind.holds:
            self._ask(query.text, query.gives)
        views = [name for name, found in self.schema().items() if found.get("materialized")]
        if views:
            self.check()  # again, now that they are up to date
        for name in views:
            self.session(1).execute(f"drop materialized view {name}")  # which the log is retained for
        self.store.retention_seconds = 0.0
        worker = Worker(self.store, self.world.clock)
        for _ in range(6):
            self.world.clock.advance(LEASE_SECONDS + 1)
            if not worker.turn():
                break
        with self.store.read() as reader:
            require_no_garbage(self.store, self.databases[0].catalog.at(reader))

    def _ask(self, text: str, gives: list[list[object]] | str) -> None:
        """One query, on each of two servers and without a trace."""
        for server in (0, 1):
            session = self.session(server)
            session.execute("begin")
            found: list[list[object]] = []
            refused = refusal(lambda session=session, found=found: found.extend(map(list, rows(session, text))))  # type: ignore[misc]  # called at once
            session.rollback()
            if isinstance(gives, str):
                assert refused is not None, text
                assert refused.sqlstate == gives, text
            else:
                assert refused is None, (text, refused)
                assert sorted(found, key=repr) == sorted(gives, key=repr), text


@functools.cache
def _prepared(name: str, lease: float) -> tuple[_State, int, int]:
    """A store's contents with all that a kind begins with, and the clock then: wall, monotonic. It has many arenas.
    Leases are what servers know, and these are gone."""
    arena = Arena(load(name), lease=lease, open_=lambda clock: MemoryStore(clock=clock, schema_lease=lease))
    state: _State = arena.store.state  # type: ignore[attr-defined]  # the memory engine
    state.readers += 1  # so it is never changed
    return state, arena.world.clock.wall, arena.world.clock.monotonic


@contextlib.contextmanager
def block(session: Session, level: str = "read committed") -> Iterator[None]:
    """A transaction, committed at its end."""
    session.execute(f"begin isolation level {level}")
    try:
        yield
        session.execute("commit")
    except BaseException:
        session.rollback()
        raise


def refusal(statement: Callable[[], object]) -> errors.Error | None:
    """What a statement is refused with, if it is."""
    try:
        statement()
    except errors.Error as refused:
        return refused
    except Conflict as conflict:
        return conflict.reported
    return None


def rows(session: Session, text: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """All rows of a query."""
    return [tuple(row) for row in session.execute(text, parameters).rows or ()]
