"""What happens to the schema, and how each change is followed while it runs."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import instar
from demo import copies
from demo.board import WINDOW_NS, Board, Feature
from instar.schemachange.job_records import Job, JobState
from instar.schemachange.jobs import Jobs
from instar.schemachange.states import Work

# A change of a few milliseconds is judged by what clients see from its start until this much later.
LEAST_SECONDS = 3.0


@dataclass(frozen=True)
class Change:
    """One change. `expects`: the SQLSTATE that it must fail with. `feature`: what clients may use afterwards."""

    title: str
    statement: str
    feature: Feature | None = None
    expects: str | None = None


CHANGES = (
    Change(
        "add a column with a default",
        "ALTER TABLE orders ADD COLUMN o_channel text NOT NULL DEFAULT 'counter'",
        Feature.ADDED_COLUMN,
    ),
    Change("create an index", "CREATE INDEX lineitem_by_part ON lineitem (l_partkey)", Feature.INDEX),
    Change("widen a type", "ALTER TABLE orders ALTER COLUMN o_shippriority TYPE bigint", Feature.WIDENED),
    Change("rename a column", "ALTER TABLE customer RENAME COLUMN c_comment TO c_remark"),
    Change("drop a column", "ALTER TABLE lineitem DROP COLUMN l_comment"),
    Change(
        "unique index over duplicates",
        "CREATE UNIQUE INDEX orders_one_a_day ON orders (o_custkey, o_orderdate)",
        expects="23505",
    ),
    Change("join two tables", copies.JOIN),
    Change("give what was joined a key", copies.KEY),
    Change("split it again", copies.SPLIT),
)


@dataclass(frozen=True)
class Stage:
    """A stage of a change and when it was seen first, in seconds since the open loop began."""

    name: str
    begin: float


@dataclass
class Course:
    """How a change went. Times in seconds since the open loop began."""

    change: Change
    begin: float
    end: float | None = None
    sqlstate: str | None = None
    message: str | None = None
    rows_done: int = 0
    share: float = 0.0  # of the job's way
    doing: str = ""
    stages: list[Stage] = field(default_factory=list)

    @property
    def is_as_expected(self) -> bool:
        """Whether it has ended as it should."""
        return self.end is not None and self.sqlstate == self.change.expects

    @property
    def seconds(self) -> float:
        """How long the statement took."""
        return (self.end or self.begin) - self.begin

    def windows(self) -> tuple[int, int]:
        """The windows of the board that the change is judged by, [first, last)."""
        until = max(self.end or self.begin, self.begin + LEAST_SECONDS)
        return int(self.begin * 1e9 // WINDOW_NS), int(until * 1e9 // WINDOW_NS) + 1


class Runner:
    """Executes a change in a thread, on a connection of its own, while `poll` follows it by the records of its job."""

    def __init__(self, board: Board, path: str) -> None:
        self._board = board
        self._path = path
        self._watch = instar.connect(path, synchronous=None, autocommit=True)
        database = self._watch.database
        self._jobs = Jobs(database.store, database.clock)
        self._known = {job.id for job in self._jobs.all()}
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def start(self, change: Change) -> Course:
        """Begin a change."""
        course = Course(change, self._board.seconds_since_start())
        self._failure = None
        self._thread = threading.Thread(target=self._execute, args=(course,), name="schema change", daemon=True)
        self._thread.start()
        return course

    def poll(self, course: Course) -> bool:
        """Note the stage and progress of the job, if there is one; False once the change is over."""
        running = self._thread is not None and self._thread.is_alive()
        for job in self._jobs.all():
            if job.id not in self._known:
                self._note(course, job)
        if running:
            return True
        if self._failure is not None:
            raise self._failure
        self._known = {job.id for job in self._jobs.all()}
        return False

    def close(self) -> None:
        """Close the connection that watches."""
        self._watch.close()

    def _execute(self, course: Course) -> None:
        try:
            connection = instar.connect(self._path, synchronous=None, autocommit=True)
            course.begin = self._board.seconds_since_start()
            try:
                connection.execute(course.change.statement)
            except instar.Error as error:
                course.sqlstate = error.sqlstate
                course.message = " ".join(filter(None, (f"{error}.", error.detail)))
            course.end = self._board.seconds_since_start()
            if course.change.feature is not None and course.sqlstate is None:
                self._board.allow(course.change.feature)
            connection.close()
        except BaseException as failure:  # noqa: BLE001 - handed to the main thread, which raises it
            self._failure = failure

    def _note(self, course: Course, job: Job) -> None:
        progress = self._jobs.progress(job)
        course.rows_done = max(course.rows_done, progress.rows_done)
        course.share = progress.share
        status = progress.status
        works = status is not None and not status.waits
        course.doing = status.reason if status is not None and works else ""
        name = stage_name(job, works=works)
        if not course.stages or course.stages[-1].name != name:
            course.stages.append(Stage(name, self._board.seconds_since_start()))


def stage_name(job: Job, *, works: bool) -> str:
    """What the job is at, in a word or two. `works`: it waits for nobody any more."""
    if job.state is JobState.REVERTING:
        return "taken back"
    state: str = job.state.value
    if job.is_finished:
        return "public" if job.state is JobState.SUCCEEDED else state
    if not job.stage:
        return state
    stage = job.stages[job.stage - 1]
    if any(work.work is Work.FOLLOW for work in stage.work):
        return "fill and follow"
    if stage.work:
        return "backfill" if works else "write-only"
    return stage.moves[-1].goal.value if stage.moves else state
