"""Disturbances: what comes in between while a schema changes. Each takes a kind through it, and checks what is left."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, cast

from instar import errors
from instar.database import Database, Session
from instar.schemachange.job_records import JobState
from instar.store.engine import Store
from matrix.arena import Arena, Point, block, refusal
from matrix.kinds import Kind, load
from matrix.one_row import OneRow
from matrix.traffic import Laggard, Transaction, autocommit, filled
from support.fenced import Fenced
from support.mortal import Killed, Mortal

# Points of a stage's work at which something happens: before its first batch, and between two.
BATCHES = (0, 1, 2)


def is_point(point: Point, lease: float) -> bool:
    """Whether something happens there: under leases, which are about stages, not after a second batch as well."""
    return point[1] in (BATCHES[:2] if lease else BATCHES)


def quiet(kind: Kind, lease: float = 0.0) -> tuple[dict[str, Any], tuple[Point, ...], bool]:
    """The schema that the kind leads to when nobody disturbs it, the points that it passes, whether it has a job."""
    return _quiet(kind.name, lease)


@functools.cache
def _quiet(name: str, lease: float) -> tuple[dict[str, Any], tuple[Point, ...], bool]:
    arena = Arena(load(name), lease=lease)
    points: list[Point] = []
    arena.whole(points.append)
    made = arena.schema()
    arena.settle(made)
    return made, tuple(points), arena.job is not None


def at_points(kind: Kind, deed: Callable[[Arena, Point], object], seed: str, lease: float = 0.0) -> Arena:
    """Do something at every point of a change."""
    arena = Arena(kind, seed, lease=lease)

    def hook(point: Point) -> None:
        if is_point(point, lease):
            deed(arena, point)
            arena.reserved = {1}

    arena.whole(hook)
    return arena


def writers_on_the_newer_version(kind: Kind) -> None:
    """Statements of their own transactions, on a server that knows the newest schema; definition 4 after each stage."""

    def deed(arena: Arena, point: Point) -> None:
        autocommit(arena, sessions.setdefault(arena, arena.session(1)))
        arena.check()

    sessions: dict[Arena, Any] = {}
    at_points(kind, deed, "newer").settle(quiet(kind)[0])


def writers_on_the_older_version(kind: Kind, lease: float = 0.0) -> None:
    """Transactions begun before each stage and committed after it, under either isolation level."""
    open_: list[Transaction] = []

    def deed(arena: Arena, point: Point) -> None:
        for transaction in open_:
            transaction.commit()
        open_[:] = [
            Transaction(arena, arena.session(server), level)
            for server, level in ((0, "read committed"), (1, "repeatable read"))
        ]

    arena = at_points(kind, deed, "older", lease)
    for transaction in open_:
        transaction.commit()
    require_crossed(arena)
    arena.settle(quiet(kind, lease)[0])


def require_crossed(arena: Arena) -> None:
    """Somebody was there when the change came."""
    assert arena.happened["vetoed" if arena.kind.vetoes else "crossed"] > 0


def servers_one_version_behind(kind: Kind) -> None:
    """Servers that derive their commits under the schema of the stage before."""
    open_: list[Laggard] = []

    def deed(arena: Arena, point: Point) -> None:
        for laggard in open_:
            laggard.commit()
        open_[:] = [Laggard(arena)]

    arena = at_points(kind, deed, "behind")
    for laggard in open_:
        laggard.commit()
    arena.settle(quiet(kind)[0])


def stale_servers(kind: Kind) -> None:
    """Servers that slept since before the change: one wakes up at each point."""
    _, points, _ = quiet(kind)
    asleep: list[Laggard] = []

    def deed(arena: Arena, point: Point) -> None:
        if point == (0, 0):
            asleep.extend(Laggard(arena) for _ in range(min(len(points), 5)))
        elif len(asleep) > (point[0] < 99):
            asleep.pop().commit()
            arena.check()

    arena = at_points(kind, deed, "stale")
    for laggard in asleep:
        laggard.commit()
    arena.settle(quiet(kind)[0])


def writers_of_one_row(kind: Kind, lease: float = 0.0) -> None:
    """Writers and SERIALIZABLE readers of the same row, on both sides of each stage: no update is lost, and changes
    under two optimistic locks are merged."""
    if kind.empties or kind.drops or kind.writes:
        return
    arena = Arena(kind, "one row", lease=lease)
    row = OneRow(arena)

    def hook(point: Point) -> None:
        if is_point(point, lease):
            row.at(point)

    arena.whole(hook)
    row.end()
    assert arena.happened["conflicts"] > 0
    assert not kind.merges or arena.happened["merged"] > 0
    arena.settle(quiet(kind, lease)[0])


def conflicting_writers(kind: Kind) -> None:
    """Writers that do what the schema before or after forbids. Either they are refused, or the change fails whole."""
    if not kind.conflicting:
        return
    _, points, _ = quiet(kind)
    for at in points:
        arena = Arena(kind, f"conflicting {at}")
        session = arena.session(1)

        def hook(point: Point, at: Point = at, arena: Arena = arena, session: Any = session) -> None:
            if point == at:
                for text in kind.conflicting:
                    _try(arena, session, text)

        failed = refusal(lambda arena=arena, hook=hook: arena.whole(hook))  # type: ignore[misc]  # called at once
        assert failed is None or failed.sqlstate in kind.conflicts, failed
        arena.finish()
        job = None if arena.job is None else arena.get(arena.job)
        assert job is None or job.problem is None or job.problem.sqlstate in kind.conflicts, job
        arena.check()
        assert arena.schema() == (quiet(kind)[0] if arena.changed else arena.before)


def _try(arena: Arena, session: Any, text: str) -> None:
    statement = filled(arena, text)
    if statement is None:
        return
    refused = refusal(lambda: session.execute(statement))
    assert refused is None or refused.sqlstate in arena.kind.conflicts, refused


def pauses(kind: Kind) -> None:
    """Paused at every point in turn, and resumed by another worker."""
    if not quiet(kind)[2]:
        return
    arena = Arena(kind, "paused")
    arena.change()
    job = arena.job
    assert job is not None
    seen: set[Point] = set()

    def hook(point: Point) -> bool:
        if point in seen or point[1] not in BATCHES:
            return False
        seen.add(point)
        arena.world.jobs.pause(job)
        arena.world.clock.advance(1)  # the next pulse looks
        return False

    while not arena.get(job).is_finished:
        arena.run(hook)
        if arena.job_state is not JobState.SUCCEEDED:
            assert arena.job_state is JobState.PAUSED
            arena.run(lambda point: False)
            assert arena.job_state is JobState.PAUSED
            autocommit(arena, arena.session(1))
            arena.world.jobs.resume(job)
    assert {stage for stage, _ in seen} >= set(range(1, len(arena.get(job).stages)))
    arena.settle(quiet(kind)[0])


def cancellations(kind: Kind, lease: float = 0.0) -> None:
    """Cancelled at every point: the old schema is there whole, and the same change can be made afterwards."""
    made, points, has_job = quiet(kind, lease)
    for at in points if has_job else ():
        if at[0] in (0, 99) or at[1] > (not lease):
            continue
        arena = Arena(kind, f"cancelled {at}", lease=lease)
        arena.change()
        job = arena.job
        assert job is not None
        arena.run(functools.partial(tuple.__eq__, at))
        revertible = arena.get(job).stages[at[0] - 1].revertible
        autocommit(arena, arena.session(1))
        refused = refusal(functools.partial(arena.world.jobs.cancel, job))
        assert (refused is None) is revertible, refused
        session = arena.session(0 if lease else 1)
        arena.run(functools.partial(_write, arena, session))
        assert arena.job_state is (JobState.CANCELLED if revertible else JobState.SUCCEEDED)
        if revertible:
            arena.settle(None)
            arena.change()
        arena.settle(made)
    if not has_job:
        arena = Arena(kind, "rolled back", lease=lease)
        arena.changer.execute("begin")
        for statement in kind.statements:
            arena.changer.execute(statement)
        autocommit(arena, arena.session(1))
        arena.changer.rollback()
        if kind.retained:
            arena.check()
            assert arena.schema() == arena.before
        else:
            arena.settle(None)
        arena.change()
        arena.settle(made)


def _write(arena: Arena, session: Session, point: Point) -> None:
    autocommit(arena, session)


def kills(kind: Kind) -> None:
    """The process that changes the schema dies before or after each of its writes, and another comes."""
    made, _points, _has_job = quiet(kind)
    for lives in kill_points(kind):
        arena = Arena(kind, f"killed {lives}")
        arena.changer.database.store = mortal = Mortal(arena.store, abs(lives), after=lives < 0)
        store = arena.store
        try:
            arena.change()
            arena.store = mortal
            arena.run(lambda point: False)
        except Killed:
            arena.happened["killed"] += 1
        arena.store = store
        arena.recovered(made)
        if arena.job is None or not arena.get(arena.job).is_finished:
            autocommit(arena, arena.session(1))
        arena.finish()
        assert arena.job_state in (None, JobState.SUCCEEDED)
        arena.settle(made if arena.changed else None)


def kill_points(kind: Kind) -> Iterator[int]:
    """How many writes a process lives; negative: it dies after the last of them, else before."""
    yield from (1, -1)
    if quiet(kind)[2]:
        yield from (2, -3, 4, -5, 6, -8, 10, -12)


def second_changes(kind: Kind) -> None:
    """A second change of the table at every point: it stands beside the first, or is told to wait."""

    def deed(arena: Arena, point: Point) -> None:
        if arena.changed and kind.drops:
            return
        number = arena.fresh()
        session, t = arena.session(1), arena.name("t")
        session.execute("set schema_change_mode = async")
        column = f"alter table {t} add column second_{number} integer default {number}"
        for text in (
            *((column,) if arena.changed or not kind.names_all else ()),
            f"create index second_i{number} on {t} ({arena.name('b')})",
        ):
            refused = refusal(lambda text=text: session.execute(text))  # type: ignore[misc]  # called at once
            assert refused is None or refused.sqlstate == errors.OBJECT_IN_USE, refused
            arena.happened["second"] += refused is None
        autocommit(arena, session)

    arena = at_points(kind, deed, "second")
    assert arena.happened["second"] > 0
    arena.settle(quiet(kind)[0])


def competing_transaction(kind: Kind) -> None:
    """Somebody changes the table between the statement and its COMMIT: one of the two is told so, and is whole."""
    arena = Arena(kind, "competing")

    def change() -> None:
        with block(arena.changer):
            for statement in kind.statements:
                arena.changer.execute(statement)
            autocommit(arena, arena.session(1))
            arena.session(1).execute("alter table t add column second_1 integer")

    refused = refusal(change)
    if refused is None:
        arena.begun()
        arena.settle(quiet(kind)[0])
    else:
        assert refused.sqlstate == ("25001" if kind.alone else errors.SERIALIZATION_FAILURE), refused
        arena.settle(None)


LEASE = 0.1


def writers_with_leases(kind: Kind, lease: float) -> None:
    """Statements of their own transactions: on a server that writes under the version before for as long as its lease
    runs, and on one that knows the newest; definition 4 after each stage."""

    def deed(arena: Arena, point: Point) -> None:
        arena.happened["behind"] += arena.is_behind
        autocommit(arena, arena.session(0))
        autocommit(arena, arena.session(1))
        arena.check()

    arena = at_points(kind, deed, "leases", lease)
    assert arena.happened["behind"] > 0
    arena.settle(quiet(kind, lease)[0])


def stale_servers_with_leases(kind: Kind, lease: float) -> None:
    """Servers whose leases run out while they sleep in an open transaction: the fence refuses what they commit when
    they wake up, and it is derived and submitted again."""
    asleep: list[tuple[Transaction, Fenced]] = []

    def wake(arena: Arena) -> None:
        transaction, fence = asleep.pop()
        before = arena.happened["newer row"]
        transaction.commit()
        assert fence.refusals > 0 or arena.happened["newer row"] > before
        arena.check()

    def deed(arena: Arena, point: Point) -> None:
        if point == (0, 0):
            for level in ("read committed", "repeatable read") * 2:
                fence = Fenced(arena.store)
                sleeper = Database(cast("Store", fence), ":memory:", arena.world.clock)
                asleep.append((Transaction(arena, Session(sleeper, autocommit=True), level), fence))
        elif len(asleep) > (point[0] < 99):
            arena.world.clock.advance(lease + 1)
            wake(arena)

    arena = at_points(kind, deed, "stale leases", lease)
    while asleep:
        wake(arena)
    arena.settle(quiet(kind, lease)[0])


DISTURBANCES: dict[str, Callable[[Kind], object]] = {
    made.__name__: made
    for made in (
        quiet,
        writers_on_the_newer_version,
        writers_on_the_older_version,
        servers_one_version_behind,
        stale_servers,
        writers_of_one_row,
        conflicting_writers,
        pauses,
        cancellations,
        kills,
        second_changes,
        competing_transaction,
    )
}

# And with schema leases, on two servers of which one is a version behind.
WITH_LEASES: dict[str, Callable[[Kind, float], object]] = {
    made.__name__: made
    for made in (
        quiet,
        writers_with_leases,
        writers_on_the_older_version,
        stale_servers_with_leases,
        writers_of_one_row,
        cancellations,
    )
}
