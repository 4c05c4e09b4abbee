"""A random workload: weighted statements on several servers, replayed from a seed; every error explained by a rule.

One thread does everything: others come in between the stages and batches of a worker's job, and between the statements
of a transaction, as the seed has it. `Workload(seed, store).run(steps)` with fewer steps is the same history, cut off.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Table
from instar.clock import ManualClock
from instar.database import Database, Session
from instar.schemachange.job_records import JobState
from instar.schemachange.jobs import LEASE_SECONDS
from instar.store.engine import Store
from instar.store.lock_table import Locked
from instar.worker.work import Worker
from matrix.arena import refusal, rows
from support.changes import ChangingWorld, Server
from support.leftovers import require_no_garbage

TABLES = ("t0", "t1", "t2")
COLUMNS = ("c0", "c1", "c2", "c3")
SERVERS = 3
SESSIONS = 5
STEPS_PER_CHECK = 60
DEEPEST = 2


class Statement(NamedTuple):
    """A statement to come: what it is, and the table that it is about. `named`: columns that it names; `made`: what it
    is to bring that must not be there."""

    kind: str
    text: str
    table: str = ""
    named: tuple[str, ...] = ()
    made: str = ""


class Failed(NamedTuple):
    """A statement and what it was refused with."""

    statement: Statement
    error: errors.Error
    in_block: bool  # in a transaction of several statements
    others_wrote: bool  # since that transaction began


class Rule(NamedTuple):
    """Statements of these kinds may be refused with `sqlstate` when `when` says so."""

    sqlstate: str
    kinds: frozenset[str]
    sentence: str
    when: Callable[[Workload, Failed], bool]


WRITES = frozenset({"insert", "update", "delete", "commit"})
CHANGES = frozenset({
    "index", "unique", "column", "drop column", "check", "not null", "foreign key", "drop", "alter", "lock", "key",
})  # fmt: skip
ALL = WRITES | CHANGES | {"select", "truncate", "validate", "control"}


def element_name(part: Any) -> str:
    """The name of a column, index or constraint."""
    return part.name


def _has(part: str) -> Callable[[Workload, Failed], bool]:
    def has(workload: Workload, failed: Failed) -> bool:
        return any(getattr(table, part) for table in workload.ever)

    return has


def _is_in(workload: Workload, failed: Failed) -> bool:
    return failed.in_block


def _moves(workload: Workload, failed: Failed) -> bool:
    return failed.in_block or any(not job.is_finished for job in workload.world.jobs.all())


def _is_missing(workload: Workload, failed: Failed) -> bool:
    table = workload.table(failed.statement.table)
    names = set() if table is None else {column.name for column in table.columns if column.visible}
    return failed.in_block or not names.issuperset(failed.statement.named)


def _is_key(workload: Workload, failed: Failed) -> bool:
    """A column of the statement is part of a primary key, or might come to be."""
    return any(
        column.name in failed.statement.named and column.id in (*table.primary_key, *_next_key(table))
        for table in workload.ever
        for column in table.columns
    )


def _next_key(table: Table) -> tuple[int, ...]:
    return () if table.next_key is None else table.next_key.columns


def _has_locks(workload: Workload, failed: Failed) -> bool:
    return any(table.locks for table in workload.ever)


def _is_there(workload: Workload, failed: Failed) -> bool:
    made = {failed.statement.made, f"{failed.statement.made}x"}
    return failed.in_block or any(
        made
        & {
            element_name(part)
            for part in (*table.columns, *table.indexes, *table.checks, *table.foreign_keys, *table.locks)
        }
        for table in workload.catalog().tables()
    )


def _crossed(workload: Workload, failed: Failed) -> bool:
    return failed.in_block and failed.others_wrote


RULES = (
    Rule(errors.UNIQUE_VIOLATION, WRITES, "a key is taken", lambda workload, failed: True),
    Rule(errors.FOREIGN_KEY_VIOLATION, WRITES, "a foreign key holds, or did", _has("foreign_keys")),
    Rule(errors.CHECK_VIOLATION, WRITES, "a check holds, or did", _has("checks")),
    Rule(
        errors.NOT_NULL_VIOLATION,
        WRITES,
        "a column may not be NULL, or might not",
        lambda workload, failed: any(column.refuses_null for table in workload.ever for column in table.columns),
    ),
    *(
        Rule(sqlstate, ALL, "a constraint has come since, and the next statement judges by it what was written", _is_in)
        for sqlstate in (errors.NOT_NULL_VIOLATION, errors.CHECK_VIOLATION)
    ),
    Rule(errors.SERIALIZATION_FAILURE, ALL, "others committed while the transaction was open", _crossed),
    Rule(errors.LOCK_NOT_AVAILABLE, ALL, "another has locked a row, and all are in one thread", lambda *_: True),
    Rule(errors.IN_FAILED_TRANSACTION, ALL, "the transaction has failed", _is_in),
    Rule(errors.UNDEFINED_COLUMN, ALL, "the column is not there, or was not", _is_missing),
    Rule(
        errors.UNDEFINED_OBJECT,
        CHANGES | {"validate", "control"},
        "what is dropped or validated is not there",
        lambda workload, failed: True,
    ),
    Rule(errors.DUPLICATE_COLUMN, CHANGES, "the column is there, or coming", _is_there),
    Rule(errors.DUPLICATE_TABLE, CHANGES, "the index is there, or coming", _is_there),
    Rule(errors.DUPLICATE_OBJECT, CHANGES, "the constraint is there, or coming", _is_there),
    Rule(errors.OBJECT_IN_USE, CHANGES | {"truncate", "validate"}, "a job changes the table", _moves),
    Rule(
        errors.DEPENDENT_OBJECTS,
        CHANGES,
        "a view or a constraint stands on it",
        lambda workload, failed: failed.statement.kind in ("drop", "drop column"),
    ),
    Rule(errors.WRONG_OBJECT_TYPE, frozenset({"validate"}), "it is a unique one", lambda workload, failed: True),
    Rule(errors.INVALID_TABLE_DEFINITION, frozenset({"alter", "lock"}), "a column is part of the primary key", _is_key),
    Rule(
        errors.INVALID_TABLE_DEFINITION,
        frozenset({"alter"}),
        "a column would come after itself",
        lambda workload, failed: failed.statement.text.endswith(" {0} after {0}".format(failed.statement.named[0])),
    ),
    Rule(
        errors.INVALID_TABLE_DEFINITION, frozenset({"key"}), "a further lock covers a column of the new key", _has_locks
    ),
    Rule(
        errors.DEPENDENT_OBJECTS,
        frozenset({"key"}),
        "a foreign key refers to the old one, or one that the transaction has made just now",
        lambda workload, failed: failed.in_block or _has("referenced_by")(workload, failed),
    ),
    Rule(
        errors.FEATURE_NOT_SUPPORTED,
        frozenset({"key"}),
        "a foreign key of the table finds rows by the old key, or the table was made or filled just now",
        lambda workload, failed: failed.in_block or _has("foreign_keys")(workload, failed),
    ),
    Rule(
        errors.FEATURE_NOT_SUPPORTED,
        frozenset({"drop"}),
        "a foreign key of the table finds rows by the index",
        lambda workload, failed: failed.in_block or _has("foreign_keys")(workload, failed),
    ),
    Rule(
        errors.INVALID_FOREIGN_KEY,
        frozenset({"foreign key"}),
        "the key of the other table has two columns",
        lambda workload, failed: any(len(table.primary_key) > 1 for table in workload.ever),
    ),
    Rule(errors.OBJECT_NOT_READY, frozenset({"control"}), "the job goes no other way", lambda workload, failed: True),
    Rule(
        errors.FEATURE_NOT_SUPPORTED,
        frozenset({"truncate"}),
        "a foreign key refers to the table",
        lambda workload, failed: failed.in_block or _has("referenced_by")(workload, failed),
    ),
    Rule(
        errors.FEATURE_NOT_SUPPORTED,
        frozenset({"drop column"}),
        "a job builds on the table, or the column is the only one",
        lambda workload, failed: True,
    ),
)
# What a job may have failed with: rows that violate what it was to bring, and CANCEL JOB.
JOB_RULES = frozenset({
    errors.UNIQUE_VIOLATION, errors.FOREIGN_KEY_VIOLATION, errors.CHECK_VIOLATION, errors.NOT_NULL_VIOLATION,
    errors.QUERY_CANCELED,
})  # fmt: skip


# And a change that had to wait for another: planned when its turn came, on what was there by then.
WAITED_RULES = frozenset({
    errors.UNDEFINED_OBJECT, errors.UNDEFINED_COLUMN, errors.DUPLICATE_TABLE, errors.DUPLICATE_OBJECT,
    errors.DUPLICATE_COLUMN, errors.DEPENDENT_OBJECTS, errors.FEATURE_NOT_SUPPORTED, errors.WRONG_OBJECT_TYPE,
    errors.INVALID_TABLE_DEFINITION, errors.INVALID_FOREIGN_KEY,
})  # fmt: skip
# And a change under a lease, whose steps are a job's: something has come to use by then what it drops, or somebody else
# has changed what it changes: a DROP COLUMN that was begun before takes the column of a NOT NULL that is validated.
LEASED_RULES = frozenset({errors.DEPENDENT_OBJECTS, errors.OBJECT_NOT_READY})
# And the validation of a constraint that is NOT VALID, which may be dropped meanwhile.
VALIDATION_RULES = frozenset({errors.OBJECT_NOT_READY})


class Workload:
    """One history. AssertionError where a promise is broken or an error is not explained."""

    def __init__(self, seed: int, store: Store, clock: ManualClock) -> None:
        self.seed = seed
        self.draw = random.Random(seed)
        self.world = ChangingWorld(store, clock)
        self.store = store
        self.servers = [Database(store, ":memory:", clock) for _ in range(SERVERS)]
        self.ever: dict[Table, None] = {}  # every version of every table that was seen
        self.happened: Counter[str] = Counter()
        self.ledger = dict.fromkeys(range(4), 0)
        self.commits = 0
        self._depth = 0
        self.step = 0
        self._clients = [Client(self, self.servers[number % SERVERS]) for number in range(SESSIONS)]
        self._laggards: list[Server] = []
        self._fresh = 100
        session = self._clients[0].session
        session.execute("create table ledger (id int primary key, n int not null default 0, k int)")
        session.execute("insert into ledger values (0, 0, 0), (1, 0, 1), (2, 0, 2), (3, 0, 3)")
        for table in TABLES:
            session.execute(f"create table {table} (id int primary key, c0 int, c1 text default 'x')")
            values = ", ".join(f"({number}, {number % 5}, 'v{number % 3}')" for number in range(8))
            session.execute(f"insert into {table} values {values}")

    def run(self, steps: int) -> None:
        """So many deeds, with definition 4 checked now and then, and everything at the end."""
        for self.step in range(steps):
            self.act()
            if self.step % STEPS_PER_CHECK == 0:
                self.check()
        self._end()

    # --- deeds -------------------------------------------------------------------------------------------------------

    def act(self) -> None:
        """One deed of somebody."""
        catalog = self.catalog()
        self.ever.update(dict.fromkeys(catalog.tables()))
        kind = self.draw.choices(("client", "worker", "laggard", "jobs"), (80, 10, 8, 2))[0]
        if kind == "client":
            free = [client for client in self._clients if not client.busy]
            if free:
                self.draw.choice(free).step()
        elif kind == "worker":
            self._work()
        elif kind == "laggard":
            self._lag()
        else:
            self._steer()

    def _work(self) -> None:
        """A turn of a worker, with others in between."""
        self.world.clock.advance(self.draw.choice((0.01, 1.5, LEASE_SECONDS + 1)))
        patience = self.draw.randrange(2, 30)
        failed: list[Exception] = []

        before = self.catalog().version

        def stopping() -> bool:
            nonlocal patience, before
            patience -= 1
            now = self.catalog().version
            self.commits += now > before  # a step of a job
            before = now
            if self._depth < DEEPEST and not failed:
                self._depth += 1
                try:
                    for _ in range(self.draw.randrange(3)):
                        self.act()
                except Exception as found:  # noqa: BLE001 - the executor would take it for a failure of the job
                    failed.append(found)
                finally:
                    self._depth -= 1
            return patience <= 0 or bool(failed)

        Worker(self.store, self.world.clock, stopping=stopping).turn()
        if failed:
            raise failed[0]

    def _lag(self) -> None:
        """A bare server begins a transaction, or commits one that it began some versions ago."""
        if len(self._laggards) < 3 and self.draw.random() < 0.6:
            server = Server(self.world, "ledger")
            server.update(self.draw.randrange(4), k=self.draw.randrange(4))
            self._laggards.append(server)
        elif self._laggards:
            server = self._laggards.pop(self.draw.randrange(len(self._laggards)))
            try:
                refused = refusal(server.commit)
            except Locked:
                self.happened["laggard met a lock"] += 1
                return
            assert refused is None or refused.sqlstate == errors.SERIALIZATION_FAILURE, refused
            self.happened["laggard refused" if refused else "laggard"] += 1
            self.commits += 1

    def _steer(self) -> None:
        open_ = [job.id for job in self.world.jobs.all() if not job.is_finished]
        if open_:
            client = self.draw.choice(self._clients)
            if not client.busy and not client.session.in_transaction:
                verb = self.draw.choice(("pause", "resume", "resume", "cancel"))
                client.execute(Statement("control", f"{verb} job {self.draw.choice(open_)}"))

    # --- what must be so ---------------------------------------------------------------------------------------------

    def catalog(self) -> CatalogSnapshot:
        return self.world.catalog()

    def table(self, name: str) -> Table | None:
        found = self.catalog().lookup("public", name)
        return found if isinstance(found, Table) else None

    def explain(self, failed: Failed) -> None:
        """AssertionError if no rule says that this could happen."""
        statement, error = failed.statement, failed.error
        explained = any(
            rule.sqlstate == error.sqlstate and statement.kind in rule.kinds and rule.when(self, failed)
            for rule in RULES
        )
        assert explained, (self.seed, self.step, statement, repr(error), failed.in_block)
        self.happened[error.sqlstate] += 1

    def check(self) -> None:
        """Definition 4, and every increment of the ledger that was acknowledged."""
        session = Session(self.servers[self.draw.randrange(SERVERS)], autocommit=True)
        where = (self.seed, self.step)
        assert rows(session, "check database") == [], where
        assert dict(rows(session, "select id, n from ledger")) == self.ledger, where

    def _end(self) -> None:
        self._depth = DEEPEST
        for client in self._clients:
            client.session.rollback()
        for job in self.world.jobs.all():
            paused = job.state is JobState.PAUSED and job.requested is None  # else it is being cancelled
            if paused or (job.requested == "pause" and job.state is not JobState.REVERTING):
                self.world.jobs.resume(job.id)
        for _ in range(8):
            self.world.clock.advance(LEASE_SECONDS + 1)
            Worker(self.store, self.world.clock).turn()
        for job in self.world.jobs.all():
            assert job.is_finished, (self.seed, job)
            explained = JOB_RULES | (WAITED_RULES if job.kind == "change" else set())
            leased = self.store.schema_lease and ("drop" in job.statement or "set not null" in job.statement)
            explained |= LEASED_RULES if leased else set()
            explained |= VALIDATION_RULES if "validate constraint" in job.statement else set()
            assert job.problem is None or job.problem.sqlstate in explained, (
                self.seed,
                job.id,
                job.statement,
                job.problem,
            )
            self.happened[job.state.value] += 1
        self.check()
        self.store.retention_seconds = 0.0
        for _ in range(6):
            self.world.clock.advance(LEASE_SECONDS + 1)
            Worker(self.store, self.world.clock).turn()
        require_no_garbage(self.store, self.catalog())
        self.check()


class Client:
    """A session that does what the seed says."""

    def __init__(self, workload: Workload, database: Database) -> None:
        self._workload = workload
        self._draw = workload.draw
        self.session = Session(database, autocommit=True)
        self.session.execute("set schema_change_mode = async")
        self.session.execute("set lock_timeout = '1us'")
        self.busy = False
        self._paid: Counter[int] = Counter()
        self._commits = 0

    def step(self) -> None:
        """One statement."""
        self.busy = True
        try:
            if self.session.in_transaction:
                self._go_on()
            elif self._draw.random() < 0.15:
                level = self._draw.choice(("read committed", "repeatable read", "serializable"))
                self.session.execute(f"begin isolation level {level}")
                self._paid.clear()
                self._commits = self._workload.commits
            else:
                self._some()
        finally:
            self.busy = False

    def _go_on(self) -> None:
        if self.session.failed or self._draw.random() < 0.08:
            self.session.execute("rollback")
        elif self._draw.random() < 0.3:
            if self.execute(Statement("commit", "commit")):
                for account, amount in self._paid.items():
                    self._workload.ledger[account] += amount
        else:
            self._some()

    def _some(self) -> None:
        if self._draw.random() < 0.2:
            self._pay()
        else:
            self.execute(self._statement())

    def _pay(self) -> None:
        account, amount = self._draw.randrange(4), self._draw.randrange(1, 9)
        where = self._draw.choice((f"id = {account}", f"id = {account} and n is not null"))
        inside = self.session.in_transaction
        if self.execute(Statement("update", f"update ledger set n = n + {amount} where {where}", "ledger")):
            if inside:
                self._paid[account] += amount
            else:
                self._workload.ledger[account] += amount

    def execute(self, statement: Statement) -> bool:
        """Whether it went well; if not, a rule explains why."""
        in_block = self.session.in_transaction
        refused = refusal(lambda: self.session.execute(statement.text))
        self._workload.happened[statement.kind] += refused is None
        if refused is not None:
            others = self._workload.commits > self._commits
            self._workload.explain(Failed(statement, refused, in_block, others))
        elif not self.session.in_transaction:
            self._workload.commits += 1
        return refused is None

    # --- statements --------------------------------------------------------------------------------------------------

    def _statement(self) -> Statement:
        draw = self._draw
        table = draw.choice(TABLES)
        found = self._workload.table(table)
        there = [column.name for column in found.columns if column.name != "id"] if found is not None else []
        column = draw.choice(there) if there and draw.random() < 0.9 else draw.choice(COLUMNS)
        maker = draw.choices((self._write, self._read, self._change), (60, 12, 28))[0]
        return maker(table, found, column)

    def _write(self, table: str, found: Table | None, column: str) -> Statement:
        draw = self._draw
        one, other = draw.randrange(14), draw.randrange(14)
        value = self._value(found, column)
        return draw.choice((
            Statement("insert", f"insert into {table} (id, {column}) values ({one}, {value})", table, (column,)),
            Statement("insert", f"insert into {table} (id) values ({one})", table),
            Statement(
                "insert",
                f"insert into {table} (id, {column}) values ({one}, {value}), ({other}, {value}) on conflict do nothing",  # noqa: E501 - a table of statements
                table,
                (column,),
            ),
            Statement("update", f"update {table} set {column} = {value} where id = {one}", table, (column,)),
            Statement("update", f"update {table} set {column} = {value} where id > {one}", table, (column,)),
            Statement("update", f"update {table} set id = {other} where id = {one}", table),
            Statement("delete", f"delete from {table} where id = {one}", table),
            Statement("delete", f"delete from {table} where {column} = {value}", table, (column,)),
        ))  # fmt: skip

    def _value(self, found: Table | None, column: str) -> str:
        kinds = {part.name: part.type.kind.value for part in found.columns} if found is not None else {}
        if self._draw.random() < 0.15:
            return "null"
        number = self._draw.randrange(8)
        return f"'v{number}'" if kinds.get(column, "text" if column == "c1" else "int") == "text" else str(number)

    def _read(self, table: str, found: Table | None, column: str) -> Statement:
        return self._draw.choice((
            Statement("select", f"select count(*), max({column}) from {table}", table, (column,)),
            Statement("select", f"select id from {table} where {column} is not null order by id", table, (column,)),
        ))  # fmt: skip

    def _change(self, table: str, found: Table | None, column: str) -> Statement:
        draw = self._draw
        other = draw.choice([name for name in TABLES if name != table])
        fresh = draw.choice(("c2", "c3"))
        index, ledger = f"{table}_i{draw.randrange(4)}", f"ledger_i{draw.randrange(2)}"
        constraint, lock = f"{table}_k{draw.randrange(4)}", f"l{draw.randrange(2)}"
        alter = f"alter table {table}"
        indexes = [part.name for part in found.indexes if not part.constraint] if found is not None else []
        constraints = (
            [element_name(part) for part in (*found.checks, *found.foreign_keys)] if found is not None else []
        ) + [constraint]
        check = f"{column} is null or id >= 0" if draw.random() < 0.7 else f"{column} is not null"
        valid = " not valid" if draw.random() < 0.3 else ""
        return draw.choice((
            Statement("index", f"create index {index} on {table} ({column})", table, (column,), index),
            Statement("index", f"create index {index} on {table} ({column} desc, id)", table, (column,), index),
            Statement("unique", f"create unique index {index} on {table} ({column})", table, (column,), index),
            Statement("unique", f"{alter} add constraint {constraint} unique ({column}, id)", table, (column,), constraint),  # noqa: E501 - a table of statements
            Statement("drop", f"drop index {draw.choice([*indexes, index])}", table),
            Statement("column", f"{alter} add column {fresh} int default {draw.randrange(5)}", table, (), fresh),
            Statement("column", f"{alter} add column {fresh} int not null default 1 check ({fresh} >= 0)", table, (), fresh),  # noqa: E501 - a table of statements
            Statement("column", f"{alter} add column {fresh} int after id, add column {fresh}x text", table, (), fresh),
            Statement("drop column", f"{alter} drop column {fresh}", table, (fresh,)),
            Statement("drop column", f"{alter} drop column if exists {fresh}x", table, ()),
            Statement("check", f"{alter} add constraint {constraint} check ({check}){valid}", table, (column,), constraint),  # noqa: E501 - a table of statements
            Statement("not null", f"{alter} alter column {column} set not null", table, (column,)),
            Statement("alter", f"{alter} alter column {column} drop not null", table, (column,)),
            Statement("alter", f"{alter} alter column {fresh} set default 3", table, (fresh,)),
            Statement("alter", f"{alter} alter column {fresh} type bigint", table, (fresh,)),
            Statement("alter", f"{alter} rename column {fresh} to {fresh}", table, (fresh,), fresh),
            Statement("alter", f"{alter} alter column {column} after {draw.choice(('id', 'c0', fresh))}", table, (column, fresh)),  # noqa: E501 - a table of statements
            Statement("foreign key", f"{alter} add constraint {constraint} foreign key (c0) references {other}{valid}",
                      table, ("c0",), constraint),
            Statement("drop", f"{alter} drop constraint {draw.choice(constraints)}", table),
            Statement("validate", f"{alter} validate constraint {draw.choice(constraints)}", table),
            Statement("truncate", f"truncate {table}", table),
            Statement("lock", f"{alter} add lock {lock} covers ({column})", table, (column,), lock),
            Statement("lock", f"{alter} alter lock {lock} covers ({column})", table, (column,)),
            Statement("lock", f"{alter} drop lock {lock}", table),
            Statement("key", f"{alter} alter primary key (id, {column})", table, (column,)),
            Statement("key", f"{alter} alter primary key (id)", table),
            Statement("index", f"create index {ledger} on ledger (k, n)", "ledger", (), ledger),
            Statement("drop", f"drop index {ledger}", "ledger"),
        ))  # fmt: skip
