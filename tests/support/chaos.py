"""Random schedules of whole databases, replayed from a seed: servers, sessions, schema changes, workers that die.

One thread does everything. Wherever another process could come in between, before a commit is judged and between two
steps of background work, it draws whether one does, and what that one does; so schedules nest.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest

from instar import errors
from instar.clock import ManualClock
from instar.database import Database, Session
from instar.schemachange.jobs import LEASE_SECONDS
from instar.store import MemoryStore
from instar.store.engine import PREFIX_TABLE, ROW_HEADER, Commit
from instar.store.pace import Pace
from instar.store.records import Latest, decode_table_header, latest_key
from instar.worker.work import Worker
from support.leftovers import require_no_garbage

SESSIONS = 5
DEEPEST = 2
ACCOUNTS = range(4)

SCHEMA = (
    "create table acc (id int primary key, n int not null default 0, k int, pad text)",
    "create table t (id int primary key, a int, b text)",
    "create table p (id int primary key, u int unique)",
    "create table c (id int primary key, p int references p, q int references p (u) on delete cascade)",
    *[f"insert into acc values ({number}, 0, {number}, 'x')" for number in ACCOUNTS],
    *[f"insert into t values ({number}, {number % 4}, 'b')" for number in range(8)],
)

# What a statement may be refused with, since the schema or the rows are others by now.
REFUSED = {
    "0A000", "22003", "23502", "23503", "23505", "25P02", "2BP01", "40001", "42701", "42703", "42704", "42804", "42P01",
    "42P07", "42P16", "55000", "55006", "55P03", "72000",
}  # fmt: skip
# What a job may have failed with: duplicates, CANCEL JOB.
FAILED = {"23505", "57014"}

# Numbers are handed out under a lock of the process, which nobody comes in between.
_NUMBERS = (latest_key(Latest.COUNTER), latest_key(Latest.SEQUENCE))


class Killed(BaseException):
    """The worker's process is gone."""


class Chaos:
    """One schedule. `run` raises AssertionError where a promise is broken."""

    def __init__(self, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.draw = random.Random(seed)
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)
        self.store.retention_seconds = 0.0
        self._floors: dict[bytes, int] = {}
        self._depth = DEEPEST  # nobody comes in between while the schema is made
        self._busy: list[object] = []  # who is at something, the innermost last
        self._lives: int | None = None  # so many writes, and the worker dies
        for name in ("ensure_worker", "look_after"):
            patch.setattr(Database, name, lambda database: None)
        self._come_between(patch)
        self.databases = [Database(self.store, ":memory:", self.clock) for _ in range(2)]
        self.clients = [Client(self, self.databases[number % 2]) for number in range(SESSIONS)]
        self.worker = Worker(self.store, self.clock)
        self.accounts = dict.fromkeys(ACCOUNTS, 0)
        self.happened: Counter[str] = Counter()

    def run(self, steps: int) -> None:
        for statement in SCHEMA:
            self.clients[0].session.execute(statement)
        self._depth = 0
        for _ in range(steps):
            self._act()
        self._depth = DEEPEST
        for client in self.clients:
            client.session.rollback()
        self._check()

    # --- schedules ---------------------------------------------------------------------------------------------------

    def _come_between(self, patch: pytest.MonkeyPatch) -> None:
        store = self.store
        commit, derived, background = store.commit, store.commit_derived, store.background

        def submit(request: Commit) -> int:
            self._between(0.4, any(key.startswith(_NUMBERS) for key, _ in request.raw))
            timestamp = commit(request)
            self._judge(request)
            self._die()
            return timestamp

        def submit_derived(derive: Any) -> int:
            self._between(0.4)
            return derived(derive)

        def work(steps: Iterable[Any], *, claim: tuple[bytes, bytes] | None = None, pace: Pace | None = None) -> int:
            def drawn() -> Iterator[Any]:
                for step in steps:
                    self._between(0.15)
                    yield step

            return background(drawn(), claim=claim, pace=pace)

        for name, wrapper in (("commit", submit), ("commit_derived", submit_derived), ("background", work)):
            patch.setattr(store, name, wrapper)

    def _between(self, chance: float, alone: bool = False) -> None:
        self._die()
        if alone or self._depth >= DEEPEST or self.draw.random() > chance:
            return
        self._depth += 1
        try:
            for _ in range(self.draw.randrange(1, 4)):
                self._act()
        finally:
            self._depth -= 1

    def _act(self) -> None:
        actors: list[object] = [client for client in self.clients if client not in self._busy]
        actors += [worker for worker in ("worker", "worker", "adopter") if worker not in self._busy]
        actor = self.draw.choice(actors)
        self._busy.append(actor)
        try:
            if isinstance(actor, Client):
                actor.step()
            elif actor == "worker":
                self._background()
            else:
                self._adopt()
        finally:
            self._busy.remove(actor)

    def _background(self) -> None:
        """A turn of the worker, which may be killed at a write."""
        self.clock.advance(self.draw.choice((0, 0.001, 2, LEASE_SECONDS + 1)))
        self._lives = self.draw.randrange(1, 12) if self.draw.random() < 0.4 else None
        worker = self.worker
        try:
            self.draw.choice((worker.turn, worker.turn, worker.collect, worker.deallocate))()
        except Killed:
            self.worker = Worker(self.store, self.clock)
        finally:
            self._lives = None

    def _adopt(self) -> None:
        """A second worker, which may find the first asleep, and take over what it was at."""
        self.clock.advance(self.draw.choice((0, LEASE_SECONDS + 1)))
        lives, self._lives = self._lives, None
        Worker(self.store, self.clock).turn()
        self._lives = lives

    def _die(self) -> None:
        if self._lives is not None and self._busy and self._busy[-1] == "worker":
            self._lives -= 1
            if not self._lives:
                self.happened["killed"] += 1
                raise Killed

    # --- promises ----------------------------------------------------------------------------------------------------

    def _judge(self, request: Commit) -> None:
        """Of every commit: no floor falls (rule 12), no row goes back to an older layout (rule 11), and what deriving
        depends on moves the catalog version (rule 18)."""
        for key, value in request.raw:
            if key.startswith(PREFIX_TABLE) and value is not None:
                floor = decode_table_header(value).floor
                assert floor >= self._floors.get(key, 0)
                assert request.bump_catalog
                self._floors[key] = floor
        for writes in request.tables:
            for row in writes.rows:
                if row.stored is not None:
                    assert ROW_HEADER.unpack_from(row.stored)[2] >> 8 <= row.layout

    def _check(self) -> None:
        first = self.clients[0]
        jobs = self.databases[0].jobs
        for job in jobs.all():
            if job.state.value == "paused":
                jobs.resume(job.id)
        for _ in range(6):
            self.clock.advance(LEASE_SECONDS + 1)
            self.worker.turn()
        assert dict(first.rows("select id, n from acc")) == self.accounts, (
            "an acknowledged update is lost, or twice there"
        )
        assert first.rows("check database") == []
        for orphans in ("p not in (select id from p)", "q not in (select u from p where u is not null)"):
            assert first.rows(f"select id from c where {orphans}") == []
        for job in jobs.all():
            assert job.is_finished
            # The worker compacts what rests; a change that comes meanwhile ends that.
            failed = {*FAILED, "55000"} if job.kind == "compact" else FAILED
            assert job.problem is None or job.problem.sqlstate in failed, job
        with self.store.read() as reader:
            require_no_garbage(self.store, self.databases[0].catalog.at(reader))


class Client:
    """A session that does random things, remembers what it was told, and compares."""

    def __init__(self, chaos: Chaos, database: Database) -> None:
        self.chaos = chaos
        self.draw = chaos.draw
        self.session = Session(database, autocommit=True)
        self.session.set("lock_timeout", "1us")  # whoever holds a lock is in the same thread
        self.session.settings.set("schema_change_mode", "async")
        self._pending: Counter[int] = Counter()
        self._savepoints: list[Counter[int]] = []
        self._seen: dict[str, list[tuple[Any, ...]]] | None = None  # under REPEATABLE READ, until it writes

    def rows(self, text: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.session.execute(text, parameters).rows or ()]

    def step(self) -> None:
        if self.session.failed:
            self._end() if self.draw.random() < 0.5 or not self._savepoints else self._rollback_to()
            return
        control: tuple[Callable[[], object], ...] = (self._begin,)
        weights: tuple[int, ...] = (30,)
        if self.session.in_transaction:
            control, weights = (self._end, self._savepoint, self._rollback_to), (20, 6, 6)
        usual = (self._pay, self._write, self._refer, self._change, self._steer, self._read)
        self.draw.choices((*control, *usual), (*weights, 25, 20, 8, 30, 4, 15))[0]()

    def _try(self, text: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]] | None:
        """None if it was refused."""
        try:
            return self.rows(text, parameters)
        except errors.Error as refused:
            if refused.sqlstate not in REFUSED:
                raise
            self.chaos.happened[refused.sqlstate] += 1
            return None

    # --- transactions ------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        level = self.draw.choice(("read committed", "repeatable read"))
        self.rows(f"begin isolation level {level}")
        self._seen = {} if level == "repeatable read" else None

    def _end(self) -> None:
        paid, self._pending, self._savepoints, self._seen = self._pending, Counter(), [], None
        if self.session.failed or self.draw.random() < 0.2:
            self.rows("rollback")
        elif self._try("commit") is not None:
            for account, amount in paid.items():
                self.chaos.accounts[account] += amount

    def _savepoint(self) -> None:
        self.rows(f"savepoint s{len(self._savepoints)}")
        self._savepoints.append(self._pending.copy())

    def _rollback_to(self) -> None:
        if self._savepoints:
            number = self.draw.randrange(len(self._savepoints))
            del self._savepoints[number + 1 :]
            self.rows(f"rollback to s{number}")
            self._pending = self._savepoints[number].copy()
            self._seen = None

    # --- rows --------------------------------------------------------------------------------------------------------

    def _pay(self) -> None:
        """An increment that is counted: by key in the short way, by another column, by both."""
        account, amount = self.draw.choice(ACCOUNTS), self.draw.randrange(1, 5)
        where = self.draw.choice(("id = ?", "k = ?", "k = ? and id >= 0"))
        inside = self.session.in_transaction
        self._seen = None
        if self._try(f"update acc set n = n + ? where {where}", (amount, account)) is not None:
            (self._pending if inside else self.chaos.accounts)[account] += amount

    def _write(self) -> None:
        identity, a = self.draw.randrange(7), self.draw.randrange(4)
        self._seen = None
        self._try(*self.draw.choice((
            ("insert into t (id, a) values (?, ?)", (identity, a)),
            ("insert into t (id, a) values (?, ?) on conflict (id) do update set a = excluded.a", (identity, a)),
            ("insert into t (id, a, c1) values (?, ?, 5)", (identity, a)),
            ("update t set a = ? where id = ?", (a, identity)),
            ("update t set b = 'u' where a = ?", (a,)),
            ("update t set c0 = ? where id = ?", (a, identity)),
            ("update t set a = null where id = ?", (identity,)),
            ("update t set id = id + 20 where id = ?", (identity,)),
            ("update t set id = id - 20 where id >= 20", ()),
            ("delete from t where a = ? and id > ?", (a, identity)),
        )))  # fmt: skip

    def _refer(self) -> None:
        parent, other, child = self.draw.randrange(5), self.draw.randrange(5), self.draw.randrange(8)
        self._seen = None
        self._try(*self.draw.choice((
            ("insert into p values (?, ?)", (parent, other)),
            ("insert into p values (?, ?)", (parent, other)),
            ("delete from p where id = ?", (parent,)),
            ("update p set u = ? where id = ?", (other, parent)),
            ("insert into c values (?, ?, ?)", (child, parent, None)),
            ("insert into c values (?, ?, ?)", (child, None, other)),
            ("update c set p = ?, q = ? where id = ?", (parent, other, child)),
            ("delete from c where id = ?", (child,)),
        )))  # fmt: skip

    def _read(self) -> None:
        """What a snapshot shows is the same each time, and by whichever way."""
        a, identity = self.draw.randrange(4), self.draw.randrange(7)
        if not self.session.in_transaction or self.session.open_transaction().isolation.value != "repeatable read":
            self._try("select n, k from acc where id = ?", (identity,))
            self._try("select count(*), sum(a) from t")
            return
        texts = ("select * from t order by id", "select * from acc order by id")
        for text in texts:
            found = self._try(text)
            if found is not None and self._seen is not None:
                assert self._seen.setdefault(text, found) == found, text
        scanned = self._try("select id, a from t order by id")
        through = self._try("select id from t where a = ? order by id", (a,))
        looked_up = self._try("select a from t where id = ?", (identity,))
        if scanned is not None and through is not None and looked_up is not None:
            assert through == [(row[0],) for row in scanned if row[1] == a]
            assert looked_up == [(row[1],) for row in scanned if row[0] == identity]

    # --- schema changes ----------------------------------------------------------------------------------------------

    def _change(self) -> None:
        self._seen = None
        draw = self.draw
        catalog = self.session.database.catalog
        with self.chaos.store.read() as reader:
            table = draw.choice(
                [found for found in catalog.at(reader).tables() if found.name in ("t", "t", "acc", "p", "c")]
            )
        name, columns = table.name, [column.name for column in table.columns]
        added = [column for column in columns if column[0] == "c" and column[1:].isdigit()] or ["c0"]
        indexes = [index.name for index in table.indexes] or ["none"]
        fresh, unique = f"c{draw.randrange(4)}", "unique " if draw.random() < 0.2 else ""
        listed = ", ".join(draw.sample(columns, draw.choice((1, 1, 2))))
        self._try(draw.choice((
            f"create {unique}index {name}_{draw.randrange(5)} on {name} ({listed})",
            f"create {unique}index {name}_{draw.randrange(5)} on {name} ({listed})",
            f"drop index {draw.choice(indexes)}",
            f"alter table {name} add column {fresh} int default 7",
            f"alter table {name} add column {fresh} bigint not null default 9",
            f"alter table {name} drop column {draw.choice(added)}",
            f"alter table {name} rename column {draw.choice(added)} to {fresh}",
            f"alter table {name} alter column {draw.choice(columns)} type bigint",
            f"alter table {name} alter column {draw.choice(added)} set default 3",
            f"create or replace view v as select id from {name}",
            "truncate t",
        )))  # fmt: skip

    def _steer(self) -> None:
        for job in self.session.database.jobs.all():
            if not job.is_finished and not self.session.in_transaction:
                self._try(f"{self.draw.choice(('pause', 'resume', 'resume', 'cancel'))} job {job.id}")
                return
