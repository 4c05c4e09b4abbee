"""What user transactions notice of an online join or split, beside figure 4 of Løland and Hvasshovd, *Online,
Non-blocking Relational Schema Changes* (EDBT 2006, §6); then the other figures of joins and splits.

Each transaction updates ten rows, a share of them in the sources and the others in a dummy table. In turns the clients
are alone, beside the initial population of the targets, and beside log propagation, which is kept from ending: the
switch is refused until the job is cancelled. A split's propagation has the checker's work in it, as some updates are of
columns that go to S; and it has a turn for the checker alone, at the end of a cycle in which all records of S have come
into doubt, or many. All that is at a priority below 0, at which a job never hurries at the cost of its clients. Where
that does not catch up with them, propagation at priority 0, which hurries, has a turn, too. The clients are alone
before a job and after it, and both together are what is beside it: a machine that becomes slower or faster by itself is
then on both sides. What its processors do from one second to the next is taken out (module `equal_speed`).

As in the paper a client has one transaction at a time. For less than the peak each rests between two, for so long that
this share of the peak is reached when nothing else goes on. So a response time has no queue in it, and can be set
beside the paper's; stalls are measured in open loops elsewhere.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import instar
from benchmarks import remaking, switching
from benchmarks.clients import Clients, Latencies, clients, together
from benchmarks.equal_speed import QUIET, UNKNOWN, Times, Window, at_equal_speed, windows_of
from benchmarks.harness import Figure, Options, say
from benchmarks.held import Turn, loss, turns
from benchmarks.join_and_split_tables import (
    CHANGES,
    UPDATES,
    Running,
    Transactions,
    fill,
    is_propagating,
    make_doubtful,
    sources,
    zips,
)
from benchmarks.noise import Machine, watched
from benchmarks.switch_worker import Checked, Mode, SwitchWorker, switch_worker
from benchmarks.tables import open_instar

ROWS = 50_000
MANY_ROWS = 1_000_000
CLIENTS = 2
LOADS = (0.5, 0.75, 1.0)  # of the peak
SHARES = (0.2, 0.8)  # of the updates, on the sources
JUDGED = 0.75
TRANSFORMATIONS = ("split", "join")
THROUGHPUT_KEPT, RESPONSE_GROWTH = 0.98, 0.05
# Pairs of turns of a round, at the load that is judged. And where a population takes minutes: so many at a time, and
# how long it is left alone then. (Of a short one propagation tells what clients lose of a share of a processor.)
PAIRS = 16
FILLING_PAIRS, _FILLING_SECONDS = 2, 15.0
# What the paper has lost at most at 75 % and 20 %, as far as its figures can be read.
PAPER = "paper: 2 to 6 % of throughput, 5 to 30 % of response time"
# Rates that propagation is allowed, beside that at which the source changes; None: any.
PRIORITIES = (0.5, 0.8, 1.25, 2.0, 4.0, None)
PRIORITY_SHARE = 0.2
CHECKED = 4_000  # records of S at most that come into doubt
# The priority of what is judged. And from this share on the job has a turn at priority 0, in which it hurries.
BACKGROUND, HURRIES_FROM = -1, 0.8
HURRYING = "propagation that hurries (priority 0)"
_SETTLING_SECONDS = 1.0
_CHECKING_SECONDS = 300.0  # to come to the end of the checks
_CATCHING_UP_SECONDS = 900.0
# If such a share is in doubt still when a cycle comes to its checks, it is they that are looked at: updates that agree
# take some out of it.
_LEFT_IN_DOUBT = 0.05
_LATE_SECONDS, _HURRYING_SECONDS = 60.0, 20.0  # until it is late, and until it hurries as much as it has to
_PATIENCE = 8  # times as long as the job was paused, to catch up in


@dataclass(frozen=True)
class _Phase:
    """From when to when (seconds, monotonic), what ended in it, whether processor time was stolen, and the share of a
    processor that the worker took."""

    begin: float
    end: float
    seen: Latencies
    disturbed: bool
    share: float


@dataclass(frozen=True)
class _Round:
    """The phases in which the clients were alone, and the others by their names, with the turns in which the worker was
    held, or not, that tell of each; all that was seen in it."""

    quiet: list[_Phase]
    during: dict[str, _Phase]
    turns: dict[str, list[Turn]]
    seen: Latencies


def run(options: Options) -> Iterator[Figure]:
    with watched(options.directory) as machine:
        rows = options.size(ROWS, 10_000)
        yield from _interference(
            options, machine, rows, *((LOADS, SHARES) if not options.quick else ((JUDGED,), (0.2,)))
        )
        if not options.quick and rows < MANY_ROWS:
            yield from _interference(options, machine, MANY_ROWS, (JUDGED,), (0.2,))
        yield from _priority(options, rows)
    yield from switching.run(options)
    yield from remaking.run(options)


def _tables(path: Path, rows: int, transformation: str) -> instar.Connection:
    connection = open_instar(path)
    for table in ("dummy", *sources(transformation)):
        fill(connection, table, rows)
    return connection


# --- interference (figures 4a, 4b, 4c) -------------------------------------------------------------------------------


class _Scene(NamedTuple):
    """A database whose tables are to be split or joined, its worker and its clients."""

    transformation: str
    rows: int
    connection: instar.Connection
    worker: SwitchWorker
    processes: Clients


def _interference(
    options: Options, machine: Machine, rows: int, loads: tuple[float, ...], shares: tuple[float, ...]
) -> Iterator[Figure]:
    for transformation in TRANSFORMATIONS:
        path = options.directory / f"{transformation}-{rows}.instar"
        with _tables(path, rows, transformation) as connection, switch_worker(path) as worker:
            for share in shares:
                with clients(path, rows, CLIENTS, functools.partial(Transactions, transformation, share)) as processes:
                    scene = _Scene(transformation, rows, connection, worker, processes)
                    peak = processes.peak()
                    for load in loads:
                        name = f"{transformation} of {rows:,} rows, {load:.0%} of the peak, {share:.0%} on the sources"
                        say(f"{name}: {load * peak:,.0f} transactions/s")
                        pairs = 0 if load != JUDGED else 2 if options.quick else PAIRS
                        course = _Turns(CLIENTS / peak * (1 / load - 1), pairs, pairs > 0 and share >= HURRIES_FROM)
                        yield from _at_load(options, machine, scene, name, course)


class _Turns(NamedTuple):
    """What a round is made of: clients that rest for so many seconds after each transaction, so many pairs of turns,
    and whether the job hurries in the end."""

    rest: float
    pairs: int
    hurries: bool


def _at_load(options: Options, machine: Machine, scene: _Scene, name: str, course: _Turns) -> Iterator[Figure]:
    # A round of a million rows takes a quarter of an hour.
    count = options.repeated or (1 if options.quick or scene.rows >= MANY_ROWS else 3)
    rounds = [_round(options, machine, scene, course) for _ in range(count)]
    windows = [_windows(rounds, machine, measured) for measured in (_mean, _completed)]
    as_it_was = at_equal_speed([window._replace(slowness=1.0) for window in windows[0]])
    grown, kept = map(at_equal_speed, windows)
    for phase in rounds[0].during:
        times = (found.get(phase, UNKNOWN) for found in (kept, grown, as_it_was))
        found = [one.during[phase] for one in rounds]
        yield from _figures(f"{name}: {phase}", found, *times, judged=course.pairs > 0 and phase != HURRYING)
        if course.pairs:
            yield from _by_pairs(name, phase, rounds, judged=phase != HURRYING)


def _mean(seen: Latencies, begin: float, end: float) -> float:
    """The mean response time of what ended within a window, in milliseconds; 0 if nothing did."""
    ended = seen.ended(begin, end)
    return ended.mean() if len(ended.took) else 0.0


def _completed(seen: Latencies, begin: float, end: float) -> float:
    """Transactions per second that ended within a window; half a one if none did, as none has no logarithm."""
    return max(seen.completed(begin, end), 0.5 / (end - begin))


def _windows(
    rounds: list[_Round], machine: Machine, measured: Callable[[Latencies, float, float], float]
) -> list[Window]:
    """What was measured in the windows of all rounds in which there is something to measure."""
    found = []
    for number, one in enumerate(rounds):
        for name, phase in [*((QUIET, phase) for phase in one.quiet), *one.during.items()]:
            held = [turn for turn in one.turns.get(name, ()) if turn.held]
            for begin, end in windows_of(phase.begin, phase.end):
                value = measured(one.seen, begin, end)
                if value and not any(turn.begin < end and begin < turn.end for turn in held):
                    found.append(Window(number, name, value, machine.slowness(begin, end)))
    return found


def _round(options: Options, machine: Machine, scene: _Scene, course: _Turns) -> _Round:
    """Clients alone, beside population, beside propagation, and beside the consistency checker, if it is a split; pairs
    of turns with propagation held, and not; the same beside propagation that hurries, if it is to; then the job is
    cancelled, and clients are alone once more."""
    seconds = options.lasting(8.0, 1.0)
    scene.worker.order(Mode.REFUSE)
    scene.processes.begin_closed(course.rest)

    def alone() -> tuple[_Moment, _Moment]:
        time.sleep(min(_SETTLING_SECONDS, seconds))
        begin = _now(scene)
        time.sleep(seconds)
        return begin, _now(scene)

    first = alone()
    job = Running(scene.connection, scene.transformation, priority=BACKGROUND)
    filling = _fill(scene, job, course)
    filled = _now(scene)
    time.sleep(seconds)
    phases = {"population": (first[1], filled), "propagation": (filled, _now(scene))}
    parts = [_catch_up_alone(scene, job, course.rest)] if scene.rows >= MANY_ROWS else []
    if scene.transformation == "split":
        checked = _check(scene, job)
        phases["consistency checking"] = (
            _Moment(checked.begun, checked.computed), _Moment(checked.ended, checked.computed_then)
        )  # fmt: skip
    turned = dict.fromkeys(phases, turns(scene.worker, course.pairs))
    if len(filling) >= 2 * course.pairs:
        turned["population"] = filling
    if course.hurries:
        _hurry(scene, job)
        begin = _now(scene)
        time.sleep(seconds)
        phases[HURRYING] = begin, _now(scene)
        turned[HURRYING] = turns(scene.worker, course.pairs)
    job.cancel()
    quiet = [first, alone()]
    seen = together([*parts, scene.processes.end()])

    def phase(begin: _Moment, end: _Moment, turned: Sequence[Turn] = ()) -> _Phase:
        stolen = [machine.within(one.at, other.at).disturbs(tail=False) for one, other in (*quiet, (begin, end))]
        held = sum(turn.end - turn.begin for turn in turned if turn.held and begin.at < turn.end < end.at)
        share = (end.computed - begin.computed) / (end.at - begin.at - held)
        return _Phase(begin.at, end.at, seen.ended(begin.at, end.at), any(stolen), share)

    during = {name: phase(*found, turned[name]) for name, found in phases.items()}
    return _Round([phase(*found) for found in quiet], during, turned, seen)


def _fill(scene: _Scene, job: Running, course: _Turns) -> list[Turn]:
    """Wait for the end of the image, with pairs of turns meanwhile, evenly, if it is one of very many rows."""
    made: list[Turn] = []
    if course.pairs and scene.rows >= MANY_ROWS:
        while not job.until(is_propagating, _FILLING_SECONDS):
            made += turns(scene.worker, FILLING_PAIRS)
    job.until_propagating()
    return made


class _Moment(NamedTuple):
    """Seconds, monotonic, and how much processor time the worker had taken by then."""

    at: float
    computed: float


def _now(scene: _Scene) -> _Moment:
    return _Moment(time.monotonic(), scene.worker.computed())


def _hurry(scene: _Scene, job: Running) -> None:
    """Let a job hurry, and wait until it does so as much as it has to, where it has to."""
    scene.worker.order(Mode.REFUSE)  # that it has been held counts no more
    job.steer("ALTER JOB {} SET (priority = 0)")
    job.until(lambda _, reason: "times shorter" in reason, _LATE_SECONDS)
    time.sleep(_HURRYING_SECONDS)
    say(f"propagation at priority 0: {job.look()[1]}")


def _catch_up_alone(scene: _Scene, job: Running, rest: float) -> Latencies:
    """Let the clients rest until the job has caught up: so much was written while the image was made that it would take
    half an hour beside them. What they had seen."""
    seen = scene.processes.end()
    scene.worker.order(Mode.TELL)
    job.steer("ALTER JOB {} SET (priority = 0)")
    if scene.worker.seen(_CATCHING_UP_SECONDS) is None:
        raise RuntimeError(f"not caught up with clients at rest within {_CATCHING_UP_SECONDS:.0f} s: {job.look()}")
    job.steer(f"ALTER JOB {{}} SET (priority = {BACKGROUND})")
    scene.processes.begin_closed(rest)
    return seen


def _check(scene: _Scene, job: Running) -> Checked:
    """When the checker was at the records that have come into doubt while the job was paused."""
    job.steer("PAUSE JOB {}")
    job.until(lambda state, _: state == "paused")
    make_doubtful(scene.connection, scene.rows, CHECKED)
    scene.worker.order(Mode.CHECK, rows=int(min(CHECKED, zips(scene.rows)) * _LEFT_IN_DOUBT))
    job.steer("RESUME JOB {}")
    checked = scene.worker.checked(_CHECKING_SECONDS)
    if checked is None:
        raise RuntimeError(f"records of S were not checked within {_CHECKING_SECONDS:.0f} s: {job.look()}")
    say(f"{checked.records:,} records of S checked in {checked.ended - checked.begun:.2f} s")
    return checked


def _figures(
    name: str, rounds: list[_Phase], kept: Times, grown: Times, as_it_was: Times, *, judged: bool
) -> Iterator[Figure]:
    judged = judged and math.isfinite(grown.error)
    mean, p99 = (
        statistics.median(found) for found in zip(*((each.seen.mean(), each.seen.percentile(99, queries=False))
                                                   for each in rounds), strict=True)
    )  # fmt: skip
    noisy = any(found.disturbed for found in rounds)
    yield Figure(
        f"{name}, throughput kept", kept.value, "x", THROUGHPUT_KEPT if judged else None, ">=", f"+-{kept.error:.1%}",
        PAPER if judged else "", noisy,
    )  # fmt: skip
    yield Figure(
        f"{name}, growth of the response time", grown.value - 1, "x", RESPONSE_GROWTH if judged else None, "<=",
        f"mean {mean:.2f} ms, p99 {p99:.1f} ms", f"+-{grown.error:.1%}; as it was {as_it_was.value - 1:+.1%}", noisy,
    )  # fmt: skip


def _by_pairs(name: str, phase: str, rounds: list[_Round], *, judged: bool) -> Iterator[Figure]:
    """What clients lost of the share of a processor that the worker took in a phase, beyond that without a job."""
    during = [one.during[phase] for one in rounds]
    turned = [(turn, one.seen) for one in rounds for turn in one.turns[phase]]
    # The least: after a long job the log that it has kept is cut for a while.
    idle = min(phase.share for one in rounds for phase in one.quiet)
    taken = statistics.fmean(phase.share for phase in during)
    noisy = any(one.disturbed for one in during)
    kept, grown = (loss(turned, measured).at(taken - idle) for measured in (_completed, _mean))
    yield Figure(
        f"{name}: {phase}, throughput kept, by pairs", kept.value, "x", THROUGHPUT_KEPT if judged else None, ">=",
        f"+-{kept.error:.1%}",
        f"the worker took {taken:.1%} of a processor, {idle:.1%} without a job", noisy,
    )  # fmt: skip
    yield Figure(
        f"{name}: {phase}, growth of the response time, by pairs", grown.value - 1, "x",
        RESPONSE_GROWTH if judged else None, "<=", f"+-{grown.error:.1%}", f"{len(turned) // 2} pairs", noisy,
    )  # fmt: skip


# --- priority (figure 4d) --------------------------------------------------------------------------------------------


def _priority(options: Options, rows: int) -> Iterator[Figure]:
    """How long propagation takes to catch up, and what it costs, by the rate that it is allowed. It is paused first, so
    that there is log to be propagated."""
    path = options.directory / "priority.instar"
    paused = options.lasting(8.0, 1.0)
    courses = []
    with (
        _tables(path, rows, "split") as connection,
        switch_worker(path) as worker,
        clients(path, rows, CLIENTS, functools.partial(Transactions, "split", PRIORITY_SHARE)) as processes,
    ):
        rate = JUDGED * processes.peak()
        changes = rate * UPDATES * PRIORITY_SHARE * CHANGES["split"]
        worker.order(Mode.REFUSE)
        processes.begin(rate, evenly=False)
        job = Running(connection, "split")
        job.until_propagating()
        for factor in (0.5, None) if options.quick else PRIORITIES:
            courses.append(_catch_up(job, worker, changes, factor, paused))
            say(f"propagation at {factor or 'any'} x the sources' rate: {courses[-1]}")
        job.cancel()
        seen = processes.end()
    for course in courses:
        limit = "any rate" if course.factor is None else f"{course.factor:g} x the sources' {changes:,.0f} rows/s"
        alone = seen.completed(course.alone, course.begun)  # none on a machine that has much else to do
        kept = f"{seen.completed(course.begun, course.ended) / alone:.3f} x" if alone else "an unknown part of the"
        yield Figure(
            f"split at {JUDGED:.0%}, {PRIORITY_SHARE:.0%} on the source: propagation of {paused:g} s of log at {limit}",
            course.ended - course.begun, "s", None, "<=", "caught up" if course.caught_up else "given up",
            f"{kept} throughput kept",
        )  # fmt: skip
    lost = [course.factor for course in courses if course.factor is not None and not course.caught_up]
    yield Figure("the greatest rate at which it did not catch up", max(lost, default=0.0), "x", None, "<=")


@dataclass(frozen=True)
class _Course:
    """Propagation at a rate. Moments: since when the job was paused, from when on it worked, and when that ended."""

    factor: float | None
    alone: float
    begun: float
    ended: float
    caught_up: bool


def _catch_up(job: Running, worker: SwitchWorker, changes: float, factor: float | None, paused: float) -> _Course:
    """Let log come up while the job is paused, and go on at `factor` times the sources' rate until it would switch."""
    job.steer("PAUSE JOB {}")
    job.until(lambda state, _: state == "paused")
    alone = time.monotonic()
    time.sleep(paused)
    limit = "DEFAULT" if factor is None else f"{max(int(factor * changes), 1)}"
    job.steer(f"ALTER JOB {{}} SET (max_rows_per_second = {limit})")
    worker.order(Mode.TELL)
    job.steer("RESUME JOB {}")
    begun = time.monotonic()
    caught_up = worker.seen(_PATIENCE * paused) is not None
    ended = time.monotonic()
    if not caught_up:
        job.steer("ALTER JOB {} SET (max_rows_per_second = DEFAULT)")
        worker.seen(_PATIENCE * paused)
    return _Course(factor, alone, begun, ended, caught_up)
