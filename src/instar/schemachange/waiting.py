"""Whom a schema change waits for, and how long: servers with a lease, transactions that it would doom.

With leases a step of a path is published one lease period after the one before it: by then every server that had the
older version has renewed its lease or lost it (F1 §4.3, invariant 1). A server that is known to have renewed is not
taken at its word: presence is a hint.

A change that some writes cannot cross waits for open transactions that have made such writes, for `ddl_wait` at most:
then it goes on, and they fail with 40001. So does every change for commits that others have turned back again and
again: each is derived anew under the schema of the moment, and would meet the next change for ever if that gave no
way. That none is seen proves nothing; the store's fence and the validators do.

Transactions at a locking level are the exception (DESIGN §1, promise 1): what they have locked of a schema is waited
for as long as it takes, or until somebody cancels the job. The worker has others to run meanwhile: after a second the
job steps aside for them, and is tried again later.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Collection, Iterable

from instar.catalog.descriptors import Table
from instar.catalog.schema_locks import demands_of
from instar.clock import Clock
from instar.schemachange.compatibility import Usage, first_veto
from instar.schemachange.stages import Publication
from instar.store.engine import Store
from instar.store.lock_table import Locked, number_of
from instar.store.presence import Writer

_TICK_SECONDS = 0.01
_NAMED = 3
# A job waits for schema locks for so long before it lets others be run, and looks for others so often.
PATIENCE_NS = 1_000_000_000
_ASKED_NS = 250_000_000


def doomed_tables(publication: Publication) -> frozenset[int]:
    """The tables whose writers, if they have not committed before this is published, never will."""
    doomed = {dropped.id for dropped in publication.dropped if isinstance(dropped, Table)}
    wrote = Usage(wrote=True)
    for published in publication.published:
        before, after = published.before, published.after
        if isinstance(before, Table) and isinstance(after, Table):
            new = (step for step in after.steps if step.version > before.version)
            if first_veto(new, wrote) is not None:
                doomed.add(after.id)
            if before.crossing is not None and after.crossing is None:
                doomed.update(before.crossing.kept.made.sources)
    return frozenset(doomed)


def moved_tables(publication: Publication) -> frozenset[int]:
    """The tables whose writers, if they have derived their commit before this is published, may have to do it again; 0
    stands for those that mind any change."""
    tables = (published.after for published in publication.published if published.before is not None)
    return frozenset({0, *(table.id for table in tables if isinstance(table, Table))})


def writers_of(
    store: Store, doomed: Collection[int], own: Collection[int] = (), moved: Collection[int] = ()
) -> list[Writer]:
    """Open transactions that have written to one of the `doomed` tables, or are refused again and again for changes
    of one that is `moved`, but those whose tokens are `own`. What stands for several may stand for such ones.

    Nor those of the thread that asks: it cannot both wait for them and end them.
    """
    if not doomed and not moved:
        return []
    thread = threading.get_ident()
    any_of = {*doomed, 0} if doomed else doomed
    return [
        found
        for found in store.writers()
        if found.table in (moved if found.refused else any_of) and found.token not in own and found.thread != thread
    ]


def named(writers: Iterable[Writer]) -> str:
    """Transactions in words: process and begin, the oldest first."""
    distinct = sorted({(writer.begun_us // 1_000_000, writer.pid) for writer in writers})
    said = [
        f"the transaction of process {pid}, begun {dt.datetime.fromtimestamp(begun, dt.UTC):%Y-%m-%d %H:%M:%S}+00"
        for begun, pid in distinct[:_NAMED]
    ]
    if len(distinct) > _NAMED:
        said.append(f"{len(distinct) - _NAMED} more")
    return ", ".join(said)


def wait_for_writers(
    store: Store,
    clock: Clock,
    doomed: Collection[int],
    seconds: float,
    tick: Callable[[str], None],
    own: Collection[int] = (),
    moved: Collection[int] = (),
) -> None:
    """Wait until the transactions that `writers_of` finds by now have ended, for `seconds` at most.

    `tick` is told, again and again, whom the change waits for; it may raise. Those that come to write meanwhile are not
    waited for, else the wait might never be worth its while.
    """
    waited = writers_of(store, doomed, own, moved)
    began_us, until = clock.wall_ns() // 1000, clock.monotonic_ns() + int(seconds * 1e9)
    while waited and clock.monotonic_ns() < until:
        tick(named(waited))
        clock.sleep(_TICK_SECONDS)
        known, crowds = set(waited), {writer.pid for writer in waited if not writer.table}
        waited = [
            writer
            for writer in writers_of(store, doomed, own, moved)
            # One that another stood for is shown by itself in time.
            if writer in known or (writer.pid in crowds and writer.begun_us <= began_us)
        ]


class StepsAside(Exception):
    """The wait for locks is to go on later: its argument says for whom."""


def wait_for_locks(
    store: Store,
    clock: Clock,
    met: Locked,
    tick: Callable[[str], None],
    aside: Callable[[Locked], bool] = lambda met: False,
    since_ns: int = 0,
) -> None:
    """Wait until those who hold what a stage's commit has met have ended. `tick` as in `wait_for_writers`.

    StepsAside if `aside`, which is asked now and then from PATIENCE_NS after `since_ns` on, says that there is another
    thing to do meanwhile."""
    reason = holders(store, met)
    asked = since_ns + PATIENCE_NS
    while store.locks.is_blocked(met):
        tick(reason)
        now = clock.monotonic_ns()
        if now >= asked:
            if aside(met):
                raise StepsAside(reason)
            asked = now + _ASKED_NS
        clock.sleep(_TICK_SECONDS)


def holders(store: Store, met: Locked) -> str:
    """Who holds what a stage's commit has met, in words."""
    pids = {entry.owner: entry.pid for entry in store.locks.entries()}
    said = ", ".join(f"{number_of(holder)} of process {pids.get(holder, 0)}" for holder in met.holders[:_NAMED])
    return f"{met.mode.shown} on a table that a transaction at a locking level uses: {said}"


def lock_holders(store: Store, publication: Publication, own: bytes) -> str:
    """Who, but for the owner `own`, holds what the commit of a stage would meet now; "" if nobody does."""
    before = {found.after.id: found.before for found in publication.published}
    put = [found.after for found in publication.published]
    for resource, mode in demands_of(put, publication.dropped, before):
        met = store.locks.met(resource, mode, own)
        if met is not None:
            return holders(store, met)
    return ""


def wait_for_leases(lease: float, clock: Clock, since_ns: int, tick: Callable[[str], None]) -> None:
    """Wait until every lease that was taken before `since_ns` has run out."""
    until = since_ns + int(lease * 1e9)
    while (left := until - clock.monotonic_ns()) > 0:
        tick(f"servers that may still use the schema version before, for a schema lease of {lease:g} s")
        clock.sleep(min(max(_TICK_SECONDS, lease / 50), left / 1e9))
