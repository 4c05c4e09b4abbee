"""Materialized views in a process: REFRESH, the rows of instar.materialized_views, and keeping them up where no worker
does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Table, View
from instar.database.result import Result
from instar.pipeline.facts import StoreFacts
from instar.schemachange.online.followed import followed
from instar.schemachange.online.keeping import ViewKeeper
from instar.sql.binder import thaw_materialized
from instar.sql.checks import compile_check
from instar.store.forks import begin_anew_in_child
from instar.store.header import TIMESTAMP_SHIFT

if TYPE_CHECKING:
    from instar.database.database import Database
    from instar.database.session import Session
    from instar.sql.materialized_statements import RefreshMaterializedView

_POLL_SECONDS = 0.01
_POLL_AT_MOST = 0.2
# So many records of the log are looked at for how far behind a view is.
_LOOKED_AT = 100_000
# And so many for whether it is at all.
_GLANCED_AT = 1_000


class Keeping:
    """Views of a database that no other process can open: they are kept up by whoever commits."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.forked()
        begin_anew_in_child(self)

    def forked(self) -> None:
        """In a child: the lock may be held by a thread that is not there."""
        self._lock = threading.Lock()
        database = self._database
        facts = StoreFacts(database.store, database.jobs, database.sequences)
        names = (database.store, database.catalog, database.ids, database.jobs, facts, database.clock, compile_check)
        self._keeper = ViewKeeper(*names)

    def turn(self) -> None:
        """Bring all views up to what is committed."""
        with self._lock:
            while self._keeper.turn():
                for job in self._database.jobs.runnable():
                    if job.kind == "materialize":
                        self._database.run_job(job.id)


def refresh(session: Session, statement: RefreshMaterializedView) -> Result:
    """REFRESH MATERIALIZED VIEW: wait until it has all that was committed before. 25001 in a transaction block, whose
    snapshot would not show it; 42P01, 42809."""
    if session.has_work:
        message = "REFRESH MATERIALIZED VIEW cannot run inside a transaction block"
        raise errors.error(errors.ACTIVE_TRANSACTION, message)
    database = session.database
    with database.store.read() as reader:
        upto = reader.timestamp
    view = _view(session, statement)
    pause, looked = _POLL_SECONDS, 0.0
    while True:
        if database.in_memory:
            database.keep_views()
        with database.store.read() as reader:
            catalog = database.catalog.at(reader)
            found = catalog.by_id(view.id)
            if not isinstance(found, View):
                raise errors.error(errors.UNDEFINED_TABLE, f'relation "{view.name}" does not exist')
            known, sources = followed(reader, found), _sources(catalog, found)
        if known is not None and not known.stale:
            if known.position >= upto:
                break
            if time.monotonic() - looked > 1:  # the position does not move with what is none of the view's business
                looked = time.monotonic()
                if _has_all(database, sources, known.position, upto):
                    break
        session.check_cancel()
        if not database.in_memory:
            database.ensure_worker()
        time.sleep(pause)
        pause = min(pause * 1.5, _POLL_AT_MOST)
    return Result("REFRESH MATERIALIZED VIEW")


def _view(session: Session, statement: RefreshMaterializedView) -> View:
    name = statement.name
    with session.database.store.read() as reader:
        found = session.database.catalog.at(reader).lookup(name.schema, name.name)
    if found is None:
        raise errors.error(errors.UNDEFINED_TABLE, f'relation "{name}" does not exist', position=name.position)
    if not isinstance(found, View) or found.materialized is None:
        message = f'"{name.name}" is not a materialized view'
        raise errors.error(errors.WRONG_OBJECT_TYPE, message, position=name.position)
    return found


def _sources(catalog: CatalogSnapshot, view: View) -> frozenset[int]:
    assert view.materialized is not None
    storage = catalog.table(view.materialized.storage)
    assert storage.unseen is not None
    return frozenset(storage.unseen.made.sources)


def _behind(database: Database, sources: frozenset[int], position: int, upto: int) -> list[int] | None:
    """The timestamps of the commits to the sources after `position`, up to `upto`, of so many records of the log at
    most; None where it was cut, so that nobody knows."""
    found: list[int] = []
    try:
        for record in islice(database.store.log(position, upto), _LOOKED_AT):
            if record.table in sources and record.timestamp not in found[-1:]:
                found.append(record.timestamp)
    except errors.OperationalError:
        return None
    return found


def _has_all(database: Database, sources: frozenset[int], position: int, upto: int, most: int | None = None) -> bool:
    """Whether nothing was committed to the sources after `position`, up to `upto`; not if there may be something, since
    the log was cut, or has more than so many records."""
    try:
        for number, record in enumerate(database.store.log(position, upto)):
            if record.table in sources or (most is not None and number >= most):
                return False
    except errors.OperationalError:
        return False
    return True


def any_behind(database: Database) -> bool:
    """Whether a view has commits to apply, or may have."""
    with database.store.read() as reader:
        catalog, newest = database.catalog.at(reader), reader.timestamp
        views = [(view, followed(reader, view)) for view in catalog.views() if view.materialized is not None]
    for view, known in views:
        if known is not None and not _has_all(database, _sources(catalog, view), known.position, newest, _GLANCED_AT):
            return True
    return False


def view_rows(session: Session, catalog: CatalogSnapshot) -> Iterator[tuple[object, ...]]:
    """The rows of instar.materialized_views: what each is, as of when, how far behind, and how many rows it has."""
    database = session.database
    facts = StoreFacts(database.store, database.jobs, database.sequences)
    for view in catalog.views():
        if view.materialized is None:
            continue
        with database.store.read() as reader:
            known, now = followed(reader, view), reader.timestamp
        storage = catalog.by_id(view.materialized.storage)
        if known is None or not isinstance(storage, Table):
            continue  # dropped a moment ago, or populated anew
        behind = _behind(database, _sources(catalog, view), known.position, now)
        at = now >> TIMESTAMP_SHIFT if behind == [] and not known.stale else known.position >> TIMESTAMP_SHIFT
        # The first that is missing came after the position, however much of the log is gone.
        first = (known.position if behind is None else behind[0] if behind else now) >> TIMESTAMP_SHIFT
        seconds = 0.0 if behind == [] else max(0.0, database.clock.wall_ns() / 1e9 - first / 1e3)
        state = "stale" if known.stale else "following"
        yield (
            view.id, view.name, thaw_materialized(view, catalog), state, known.stale or None, at * 1000, seconds,
            None if behind is None else len(behind), facts.estimated_rows(storage),
        )  # fmt: skip
