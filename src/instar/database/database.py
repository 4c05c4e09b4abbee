"""A database as one process has it open: the store, and what is cached of it."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from instar import errors
from instar.catalog import system
from instar.catalog.catalog import Catalog, CatalogSnapshot
from instar.catalog.descriptors import Sequence as SequenceDescriptor
from instar.catalog.ids import IdAllocator
from instar.catalog.layouts import Layouts
from instar.catalog.repository import SchemaRepository
from instar.catalog.sequences import Sequences
from instar.catalog.system_tables import SYSTEM_VIEWS
from instar.catalog.versions import DEFAULT_CACHE_BYTES
from instar.clock import Clock, SystemClock
from instar.database.materialized import Keeping, any_behind
from instar.database.result import Result, written
from instar.database.session import Session
from instar.schemachange.executor import Executor
from instar.schemachange.jobs import Jobs
from instar.schemachange.launching import WorkerLauncher
from instar.schemachange.migration import MigrationOnRead
from instar.schemachange.reorganize import InProcess
from instar.sql.beside import run_beside
from instar.sql.checks import compile_check
from instar.sql.defaults import Defaults
from instar.sql.execution import ExecutionContext, Given
from instar.sql.execution import Result as Executed
from instar.sql.integrity import Rules
from instar.sql.plan import QueryPlan
from instar.sql.plan_cache import PlanCache
from instar.store import MemoryStore, open_store
from instar.store.directory import DataFile
from instar.store.engine import Commit, Lease, PreconditionFailed, Store, ValueUnchanged
from instar.store.forks import begin_anew_in_child
from instar.tables.writers import Writers
from instar.types import BIGINT
from instar.worker.work import replanner

if TYPE_CHECKING:
    from instar.database.point_writes import PointWriter
    from instar.sql.analytic import Analytic

MEMORY = ":memory:"
MAX_POINT_WRITERS = 2048

# How often a process that commits looks for jobs that nobody works on, or a log to be cut, which takes a fraction of a
# millisecond.
LOOK_NS = 5_000_000_000
# Whoever commits more seldom than this asks the clock at each commit, others at every eighth or so.
_SELDOM_NS = 500_000_000
# Whether a worker that is on its way has come is looked at after so long: then another one may be started.
_LOOK_AGAIN_SECONDS = 6.0
LOG_WORTH_A_WORKER = 64 << 20
# Asking whether the data file is still there costs two microseconds: less of what a commit costs that waits for the
# disk than of one that does not.
COMMITS_PER_QUESTION = {"full": 8, "normal": 8, "off": 64}


class Database:
    """One per process and path, shared by its sessions; counted, and closed with the last `release`."""

    _open: ClassVar[dict[str, Database]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, store: Store, path: str, clock: Clock, cache_bytes: int | None = None) -> None:
        self.store = store
        self.path = path
        self.name = os.path.basename(path)
        self.clock = clock
        self.known_version = -1  # of the catalog, without leases: the newest that this process has met
        leased = bool(store.schema_lease)
        # Without leases nobody uses a schema that he has not just seen to be the newest.
        loaded = (lambda _: None) if leased else self._loaded
        limit = DEFAULT_CACHE_BYTES if cache_bytes is None else cache_bytes
        self.catalog = Catalog(store, clock, SYSTEM_VIEWS, loaded, cache_bytes=limit)
        self.repository = SchemaRepository(store, self.catalog, clock) if leased else None
        self.layouts = Layouts(store)
        self.ids = IdAllocator(store)
        self.sequences = Sequences(store)
        self.plans = PlanCache()
        self.writers = Writers(self.layouts)
        self.migration = MigrationOnRead(store, self.layouts, clock)
        self._rules: tuple[CatalogSnapshot, Rules] | None = None
        self._jobs = Jobs(store, clock)
        self._launcher = WorkerLauncher(store, None if path == MEMORY else path)
        # By the text of a write: its command, its short way, the result of that for one row, the way it had before.
        self.point_writers: dict[str, tuple[str, PointWriter, Result, PointWriter | None]] = {}
        self._commits = 0
        self._most_commits = COMMITS_PER_QUESTION[store.synchronous]
        self._interval, self._question = 1, 0
        self._asked_ns = self._looked_ns = clock.monotonic_ns()
        self._analytic: Analytic | None = None
        self._keeping: Keeping | None = None
        self._looking: threading.Timer | None = None
        self._users = 1
        self._process = os.getpid()
        _bootstrap(store)
        self._file = None if path == MEMORY else DataFile(path)  # last: it is to be closed

    @classmethod
    def forked(cls) -> None:
        """In a child: the lock on what is open may be held by a thread that is not there."""
        cls._lock = threading.Lock()

    @classmethod
    def open(
        cls,
        path: str,
        *,
        synchronous: str | None = "full",
        schema_lease: float | None = None,
        retention: float | None = None,
        log_max_bytes: int | None = None,
        metadata_cache_bytes: int | None = None,
        create: bool = True,
        clock: Clock | None = None,
    ) -> Database:
        """The database that is in directory `path` now, opened once per process; ":memory:" is a new one each time.

        `metadata_cache_bytes` is of the process: 55000 if it has the database open with another one, 22023 below 0.
        """
        clock = clock or SystemClock()
        if metadata_cache_bytes is not None and metadata_cache_bytes < 0:
            raise errors.error(errors.INVALID_PARAMETER, "metadata_cache_bytes is at least 0")
        if path == MEMORY:
            memory = MemoryStore(
                clock=clock, retention_seconds=retention, log_max_bytes=log_max_bytes, schema_lease=schema_lease
            )
            return cls(memory, path, clock, metadata_cache_bytes)
        if "\0" in path:
            raise errors.error(errors.INVALID_PARAMETER, "a database's path has no null characters")
        real = os.path.realpath(path)
        # The store itself refuses an opener who asks for another durability, lease, retention or bound of the log.
        open_it = functools.partial(
            open_store,
            real,
            synchronous=synchronous,
            retention_seconds=retention,
            log_max_bytes=log_max_bytes,
            schema_lease=schema_lease,
            clock=clock,
        )
        with cls._lock:
            known = cls._open.get(real)
            # A forked child has the parent's objects but not its slots: it opens anew.
            if known is not None and known._process == os.getpid() and known._lies_in(real):
                open_it(create=False).close()
                known._require_cache(metadata_cache_bytes)
                known._users += 1
                return known
            opened = cls._over(open_it(create=create), real, clock, metadata_cache_bytes)
            cls._open[real] = opened
            opened.look_after()
            opened.look_after_views()
            return opened

    @classmethod
    def _over(cls, store: Store, path: str, clock: Clock, metadata_cache_bytes: int | None) -> Database:
        """The database in a store that was opened for it, and is closed if nothing comes of that."""
        try:
            return cls(store, path, clock, metadata_cache_bytes)
        except BaseException:
            store.close()
            raise

    def _lies_in(self, path: str) -> bool:
        return self._file is not None and self._file.lies_in(path)

    def _require_cache(self, size: int | None) -> None:
        limit = self.catalog.cache.limit
        if size is not None and size != limit:
            raise errors.error(
                errors.OBJECT_NOT_READY,
                f"this process has {self.path} open with metadata_cache_bytes = {limit}, not {size}",
            )

    def fixed_settings(self) -> dict[str, str]:
        """What SHOW says of the store and the process, and SET cannot change."""
        return {
            "synchronous": self.store.synchronous,
            "schema_lease": f"{self.store.schema_lease:g}",
            "retention": f"{self.store.retention_seconds:.15g}",
            "log_max_bytes": str(self.store.log_max_bytes),
            "metadata_cache_bytes": str(self.catalog.cache.limit),
        }

    def session(self, *, autocommit: bool = True) -> Session:
        """A new session."""
        return Session(self, autocommit=autocommit)

    def rules(self, catalog: CatalogSnapshot) -> Rules:
        """The rules that rows of the tables of `catalog` are held to at a commit, compiled once."""
        known = self._rules
        if known is None or known[0] is not catalog:
            known = self._rules = (catalog, Rules(catalog, self.layouts))
        return known[1]

    def next_value(self, sequence: int) -> int:
        """nextval, of what no session can ask for: row ids."""
        return self.sequences.next_value(self.sequence(sequence))

    def sequence(self, sequence: int, catalog: CatalogSnapshot | None = None) -> SequenceDescriptor:
        """The newest descriptor, whatever the snapshot: who restarts a sequence restarts it for all; and who sets it
        does so, too, so that what was reserved before is left here.

        What the session itself has changed, and sees in `catalog`, is a version ahead. A row id's sequence has an id,
        but no descriptor.
        """
        reader = self.store.read()
        try:
            newest = self.catalog.at(reader)
            found = newest.by_id(sequence)
            seen = found if catalog is None or catalog is newest else catalog.by_id(sequence)
            if isinstance(seen, SequenceDescriptor) and (found is None or seen.version > found.version):
                found = seen
            if isinstance(found, SequenceDescriptor):
                self.sequences.heed_settings(found, reader)
                return found
        finally:
            reader.close()
        return SequenceDescriptor(id=sequence, name="", version=1, type=BIGINT)

    def keep_point_writer(self, text: str, command: str, writer: PointWriter) -> None:
        """Keep the short form of a write, and that which it had before: a change that is taken back finds it. Of a few
        thousand writes at most."""
        former = self.point_writers.get(text)
        if len(self.point_writers) >= MAX_POINT_WRITERS:
            self.point_writers.clear()
        kept = None if former is None else former[1]
        self.point_writers[text] = command, writer, written(command, 1), kept

    def analytic(self, plan: QueryPlan, context: ExecutionContext, given: Given) -> Executed:
        """Run a query in the analytic engine, which is loaded when it is first needed."""
        if self._analytic is None:
            self._analytic = run_beside(self._load_analytic)
        return self._analytic.run(plan, context, given)

    def _load_analytic(self) -> Analytic:
        from instar.sql.analytic import Analytic

        return Analytic()

    @property
    def jobs(self) -> Jobs:
        """The jobs of the store."""
        return self._jobs

    @property
    def in_memory(self) -> bool:
        """Whether no other process can open the database, so that there can be no worker."""
        return self.path == MEMORY

    def run_job(self, job: int, stopping: Callable[[], bool] = lambda: False) -> None:
        """Take a job as far as it goes, in this process, or until it is `stopping`: then it is left to others."""
        owner = b"session %d" % os.getpid()
        executor = Executor(
            self.store,
            self.catalog,
            self.ids,
            self.clock,
            owner,
            lambda _: InProcess(),
            compile_check,
            replanner(self.store, self.clock),
            Defaults(self.sequences),
            stopping=stopping,
        )
        executor.run(job)
        self.outdate_schema()

    def _loaded(self, version: int) -> None:
        self.known_version = version
        self.store.publish_schema(version, 0)

    def outdate_schema(self) -> None:
        """This process has published a schema version: what it does next it does under that."""
        if self.repository is not None:
            self.repository.outdate()

    def after_change(self, view: CatalogSnapshot) -> None:
        """Called after every commit that changed the schema to what `view` shows."""
        self.outdate_schema()
        self.catalog.settle(view)

    def lease_at(self, version: int) -> Lease | None:
        """The lease under which this process may write at this catalog version; without leases None."""
        if self.repository is None:
            return None
        current = self.repository.current()
        return current.lease if current is not None and current.catalog.version == version else Lease(0)

    def after_commit(self) -> None:
        """Called after every commit: now and then, see whether the store is there and whether it wants a worker.

        58030 if its directory was removed, and the commit with it.
        """
        self._commits += 1
        if self._commits < self._question:
            return
        now = self.clock.monotonic_ns()
        self._interval = 1 if now - self._asked_ns > _SELDOM_NS else min(2 * self._interval, self._most_commits)
        self._question, self._asked_ns = self._commits + self._interval, now
        if self.repository is not None:
            self.repository.tend()
        self.catalog.cache.tend()
        if self._file is not None and self._file.is_removed():
            self._question, self._most_commits = 0, 1  # from now on no commit is acknowledged
            raise errors.error(
                errors.IO_ERROR,
                f"the store {self.path} was removed while it was open",
                detail="What was committed since is lost when the last process that has it open ends.",
            )
        if now - self._looked_ns > LOOK_NS:
            self._looked_ns = now
            try:
                self.look_after()
                self.look_after_views()
            except (errors.Error, OSError):
                # The commit stands: what ails the store or the machine shows at the next statement, not as this one's.
                return

    def look_after(self) -> None:
        """Start a worker if there is something for it to do: a job that nobody works on, or a log to be cut."""
        if self.in_memory:
            return
        worth = min(LOG_WORTH_A_WORKER, self.store.log_max_bytes)
        if self._jobs.runnable() or self.store.log_bytes() > worth:
            self.ensure_worker()

    def look_after_views(self) -> None:
        """Start a worker if a materialized view has been left behind, by a worker that was killed, say."""
        with contextlib.suppress(errors.Error, OSError):  # whoever asks for the view finds out
            if not self.in_memory and any_behind(self):
                self.ensure_worker()

    def keep_views(self) -> None:
        """Bring the materialized views of a database without a worker up to what is committed."""
        if self._keeping is None:
            self._keeping = Keeping(self)
        self._keeping.turn()

    def after_followed(self) -> None:
        """Called after every commit to tables that materialized views follow: somebody is to bring these up."""
        try:
            if self.in_memory:
                self.keep_views()
            else:
                self.ensure_worker()
        except (errors.Error, OSError):
            return  # the commit stands, as in `after_commit`

    def after_followed_commit(self) -> None:
        """`after_commit` and `after_followed`, for writes that take the short way."""
        self.after_commit()
        self.after_followed()

    def ensure_worker(self) -> None:
        """Start the background process, unless one is there. If it is on its way only, it is looked for again, since it
        may be killed, and nobody may have a reason to ask once more."""
        if not self._launcher.ensure():
            self._look_later()

    def see_to_request(self) -> None:
        """Something was asked of a job: whoever works on it may be gone, which shows only when its lease has ended."""
        self.ensure_worker()
        if not self.in_memory:
            self._look_later()

    def _look_later(self) -> None:
        if self._looking is not None and self._looking.is_alive():
            return
        self._looking = threading.Timer(_LOOK_AGAIN_SECONDS, self._look_again)
        self._looking.daemon = True
        self._looking.start()

    def _look_again(self) -> None:
        self._looking = None
        with contextlib.suppress(errors.Error, OSError):  # the database has been closed, say
            self.look_after()
            self.look_after_views()
            if any(not job.is_finished and job.requested not in (None, job.met) for job in self._jobs.all()):
                self._look_later()

    def require_worker(self, since: float) -> None:
        """58030 if the background process, started here after `since` (time.monotonic), has ended with an error."""
        status = self._launcher.failed(since)
        if status is not None:
            raise errors.error(
                errors.IO_ERROR,
                f"the background process has ended with status {status}",
                hint=f'"instar worker {self.path}" shows why.',
            )

    def release(self) -> None:
        """Give one use of the database back; the last one closes the store."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            if self._open.get(self.path) is self:
                del self._open[self.path]
        looking = self._looking
        if looking is not None:
            looking.cancel()
        self.sequences.close()
        self.store.close()
        if self._file is not None:
            self._file.close()


begin_anew_in_child(Database)


def _bootstrap(store: Store) -> None:
    """Write the records of the system tables into a new store; one of several first openers does it."""
    made = system.bootstrap_records()
    with store.read() as reader:
        if reader.get(made[0][0]) is not None:
            return
        version = reader.catalog_version
    try:
        first = ValueUnchanged(made[0][0], None, None)
        store.commit(
            Commit(catalog_version=version, preconditions=[first], raw=made, bump_catalog=True, change="a new database")
        )
    except PreconditionFailed:
        return
