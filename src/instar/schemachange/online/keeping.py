"""Keeping materialized views up with the log: a standing duty of the worker, and no job, so that nobody waits for it.

Once a view is shown, its rows are versioned like any others: a transaction that has read them reads the same again. So
what a commit of the sources makes of them is put by an ordinary commit, with before-images in the log, at a timestamp
of its own; the same rules, over the same overlay, say what is to be put as they did before the view was shown. Commits
are applied in order and as wholes, several small ones in one commit here, with the position in it: a precondition is
that the position is where it was, so two processes at the same view do no harm, and a crash loses nothing.

The log is retained for the view from its position on. If it is cut all the same (log_max_bytes), or a source gets other
rows altogether, the view says that it is stale, and a job populates it anew beside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import monotonic

from instar import errors
from instar.catalog.catalog import Catalog, CatalogSnapshot
from instar.catalog.changes import CatalogChange
from instar.catalog.descriptors import DEFAULT_LOCK, Table, View
from instar.catalog.ids import IdAllocator
from instar.clock import Clock
from instar.encoding.rows import LOCK_BYTES
from instar.schemachange import wanted as want
from instar.schemachange.draft import Facts, TableBusy
from instar.schemachange.job_records import encode_job, job_key, new_job
from instar.schemachange.jobs import Jobs
from instar.schemachange.online.conditions import read_of
from instar.schemachange.online.followed import Followed, encode_followed, followed, followed_key
from instar.schemachange.online.overlay import Overlay, Put, Readable, ShortReads
from instar.schemachange.online.transformation import Propagator
from instar.schemachange.planner import plan
from instar.schemachange.pulse import Interrupted
from instar.schemachange.stages import Superseded
from instar.schemachange.validate import CompileCheck
from instar.schemachange.works import transformation_of
from instar.store.apply import is_live
from instar.store.engine import (
    ENTRY_VALUE,
    ROW_HEADER,
    Commit,
    EntryWrite,
    Reader,
    Refused,
    RowWrite,
    Store,
    TableWrites,
    ValueUnchanged,
    rowset_prefix,
)
from instar.store.lock_table import Locked

# So many puts are one commit, and no more commits of the sources than these take.
COMMIT_PUTS = 256
# The position moves on although nothing is to be put, since the log is retained from there: timestamps are milliseconds
# above a counter of so many bits.
_IDLE_TIMESTAMPS = 10_000 << 20
# A view that could not be begun to be populated anew is let alone for so long.
_RETRY_SECONDS = 5.0
# So many look-ups take a few milliseconds at most.
_BEAT_LOOK_UPS = 256
# Beside foreground commits there is a pause of so many times what a commit took.
_PAUSES = 2.0
# A view that has much to follow leaves the rest for the next turn after so long, so that others are not behind by that.
_SLICE_SECONDS = 0.25


class ViewKeeper:
    """Keeps all views of one store up, in one process."""

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        ids: IdAllocator,
        jobs: Jobs,
        facts: Facts,
        clock: Clock,
        compile_check: CompileCheck,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._ids = ids
        self._jobs = jobs
        self._facts = facts
        self._clock = clock
        self._compile_check = compile_check
        self._version = -1
        self._seen = 0
        self._views: dict[int, FollowingView] = {}
        self._retry_ns = 0
        # Whether a view is left as it is only for now, though nothing is committed any more.
        self.is_owing = False

    def turn(self, enough: Callable[[], bool] = lambda: False, beat: Callable[[], None] = lambda: None) -> bool:
        """Bring all views up to what is committed now, each as far as it comes in its slice of time; returns whether
        there was anything to do. The error of one that could not be is raised when the others have been.

        After a commit of the sources that is `enough` the rest is left for the next turn. `beat` is called every
        moment meanwhile, since a commit may be large; it may raise.
        """
        with self._store.read() as reader:
            newest, version = reader.timestamp, reader.catalog_version
            if newest == self._seen and not self._is_due():
                return False
            if version != self._version:
                self._know(self._catalog.at(reader))
                self._version = version
        worked, later, slices = False, False, _Slices(enough)
        failed: Exception | None = None
        self._retry_ns = 0

        def pause(seconds: float) -> None:
            if not enough():
                self._pause(seconds)

        for number in list(self._views):
            if enough():
                break
            slices.begin()
            kept = self._views[number] = self._views.pop(number)  # those that are left come first in the next turn
            try:
                worked |= kept.follow(newest, slices.is_enough, pause, beat)
            except Locked:  # a reader at a locking level has its rows
                kept.begin()
                later = True
            except Refused:
                kept.begin()
                self._seen = 0
                return True
            except Interrupted:
                raise
            except Exception as why:  # noqa: BLE001 - the others are not to wait until that is mended, be it a bug
                failed = failed or why
            if kept.is_stale:
                worked |= self._populate(kept.view)
        if failed is not None:
            raise failed
        self._seen = 0 if later or slices.ran_out or enough() else newest
        self.is_owing = later or self._retry_ns > 0
        return worked

    def _is_due(self) -> bool:
        """Whether it is time to try once more to have a stale view populated."""
        return 0 < self._retry_ns <= self._clock.monotonic_ns()

    def _pause(self, seconds: float) -> None:
        if self._store.foreground_about():
            self._clock.sleep(seconds * _PAUSES)

    def _know(self, catalog: CatalogSnapshot) -> None:
        """The views that there are now; what is known of one stays as long as nothing that it reads has changed."""
        known, self._views = self._views, {}
        for view in catalog.views():
            if view.materialized is None:
                continue
            storage = catalog.table(view.materialized.storage)
            assert storage.unseen is not None
            made = storage.unseen.made
            sources = [read_of(catalog.table(number), made) for number in made.sources]
            before = known.get(view.id)
            if before is not None and before.reads(view, storage, sources):
                self._views[view.id] = before
            else:
                self._views[view.id] = FollowingView(self._store, view, storage, sources, self._compile_check)

    def _populate(self, view: View) -> bool:
        """Put a job on record that populates the view anew, unless there is one, or its tables are busy."""
        for job in self._jobs.all():
            shown = {found.id for stage in job.stages for found in stage.shows}
            if not job.is_finished and view.id in shown:
                return False
        self._retry_ns = self._clock.monotonic_ns() + int(_RETRY_SECONDS * 1e9)
        with self._store.read() as reader:
            change = CatalogChange(self._catalog.at(reader), self._ids)
            found = change.view.by_id(view.id)
            if found is None:
                return False
            statement = f'REFRESH MATERIALIZED VIEW "{found.name}"'
            try:
                made = plan(change.view, change, self._facts, [want.PopulateAnew(found.name)], statement)
            except TableBusy:
                return False
            for published in made.first.published:
                if published.before is None:
                    change.create(published.after)
                else:
                    change.update(published.after, floor=published.floor, checks_moved=published.checks_moved)
            job = new_job(self._ids.next_job(), made, self._clock.wall_ns() // 1000)
            change.write(job_key(job.id), encode_job(job))
            change.describe(statement)
            request = Commit(catalog_version=reader.catalog_version)
            change.parts(reader).add_to(request)
        try:
            self._store.commit(request)
        except Refused:
            return False
        return True


class _Slices:
    """How long the views of a turn follow, one after the other; `ran_out`: one has had its time before it was done."""

    def __init__(self, enough: Callable[[], bool]) -> None:
        self.ran_out = False
        self._enough = enough
        self._until = 0.0

    def begin(self) -> None:
        """It is the next view's turn."""
        self._until = monotonic() + _SLICE_SECONDS

    def is_enough(self) -> bool:
        """Whether the view leaves the rest for the next turn."""
        is_over = monotonic() >= self._until
        self.ran_out |= is_over
        return is_over or self._enough()


class FollowingView:
    """One view that follows the log: tables as they are now, sources with what the view reads of them."""

    def __init__(
        self, store: Store, view: View, storage: Table, sources: Sequence[Table], compile_check: CompileCheck
    ) -> None:
        assert storage.unseen is not None
        self.view = view
        self.is_stale = False
        self._store = store
        self._storage = storage
        self._sources = tuple(sources)
        self._key = followed_key(storage.id)
        self._transformation = transformation_of(store, storage.unseen.made, sources, [storage], compile_check)
        self._propagator = Propagator(self._transformation)
        self._beats: Callable[[], None] = lambda: None
        self._reads = ShortReads(store, self._beat)
        self._prefix = rowset_prefix(storage.rowset)
        # Where the timestamps of a row's parts are; that of the row itself is the commit's, which 0 stands for.
        self._locks = [
            None if lock == DEFAULT_LOCK else ROW_HEADER.size + number * LOCK_BYTES
            for number, lock in enumerate(storage.layout.locks)
        ]
        self._offset = ROW_HEADER.size + len(self._locks) * LOCK_BYTES
        self.begin()

    def reads(self, view: View, storage: Table, sources: Sequence[Table]) -> bool:
        """Whether it is this view of these tables."""
        return (self.view, self._storage, self._sources) == (view, storage, tuple(sources))

    def begin(self) -> None:
        """Know nothing but what is stored."""
        self._overlay = _Felt(_LiveRows(self._reads), self._beat)
        self._target = self._transformation.target(self._overlay)
        self._scanned = 0  # up to where the log has nothing for the view that is not applied

    def follow(
        self, upto: int, enough: Callable[[], bool], pause: Callable[[float], None], beat: Callable[[], None]
    ) -> bool:
        """Apply what was committed up to a timestamp, or until it is `enough`; returns whether there was anything.
        Refused if another process is at it, or a reader is in the way."""
        with self._store.read() as reader:
            known = followed(reader, self.view)
        if known is None:
            return False
        self.is_stale = bool(known.stale)
        if self.is_stale:
            return False
        after = max(self._scanned, known.position)
        if after >= upto:
            return False
        if known.position > self._scanned:  # another process has followed meanwhile: rows that were met are others now
            self.begin()
        self._beats = beat
        try:
            return self._follow(known, after, upto, enough, pause)
        except Superseded as why:
            return self._give_up(known, str(why))
        except errors.Error as failed:
            if failed.sqlstate != errors.SNAPSHOT_TOO_OLD:
                self.begin()  # what was applied is not stored, and is applied again
                raise
            return self._give_up(known, "the log was cut before the view had followed it")
        except AssertionError as broken:  # what the rules rely on is not so in what is stored
            return self._give_up(known, f"its rows contradict the log: {broken}")
        except BaseException:
            self.begin()
            raise
        finally:
            self._reads.close()

    def _follow(
        self, known: Followed, after: int, upto: int, enough: Callable[[], bool], pause: Callable[[float], None]
    ) -> bool:
        begun = known
        position = after
        puts: list[Put] = []
        log = self._store.log(after, upto, self._propagator.tables, lambda records: self._beat())
        for timestamp, _commits, _changes in self._propagator.apply(self._target, log, self._reads):
            puts += self._overlay.taken()
            position = timestamp
            ended = enough()
            if ended or len(puts) >= COMMIT_PUTS:
                known = self._put(known, puts, position, pause)
                puts = []
            if ended:
                self._scanned = position
                return True
        # A commit of the sources that nothing is to be put for is on record as applied, too: REFRESH waits for it.
        if puts or position > max(known.position, after) or upto - known.position > _IDLE_TIMESTAMPS:
            known = self._put(known, puts, upto, pause)
        self._scanned = upto
        return known is not begun

    def _beat(self) -> None:
        self._reads.close()  # it may take a moment
        self._beats()

    def _give_up(self, known: Followed, why: str) -> bool:
        """The view cannot follow any more."""
        self.begin()
        self._commit(Commit(catalog_version=0), known, Followed(known.position, why))
        self.is_stale = True
        return True

    # --- putting -----------------------------------------------------------------------------------------------------

    def _put(self, known: Followed, puts: Sequence[Put], position: int, pause: Callable[[float], None]) -> Followed:
        """Put what the commits up to a position make of the view, by a commit; returns the record as it is then."""
        self._reads.close()
        begun = monotonic()
        reached = Followed(position)
        with self._store.read() as reader:
            rows, entries = list(self._rows(reader, puts)), list(self._entries(reader, puts))
        request = Commit(catalog_version=0)
        if rows:
            request.tables.append(
                TableWrites(self._storage.id, self._storage.version, self._storage.checks_version, rows)
            )
        request.entries.extend(entries)
        self._commit(request, known, reached)
        self._overlay.settled()
        pause(monotonic() - begun)
        return reached

    def _commit(self, request: Commit, known: Followed, reached: Followed) -> None:
        with self._store.read() as reader:
            request.catalog_version = reader.catalog_version
        request.preconditions.append(ValueUnchanged(self._key, encode_followed(known), None))
        request.raw.append((self._key, encode_followed(reached)))
        self._store.commit(request)

    def _rows(self, reader: Reader, puts: Sequence[Put]) -> Iterator[RowWrite]:
        """The rows among what is put."""
        for key, value in _last(puts):
            if not key.startswith(self._prefix):
                continue
            stored = reader.get(key)
            if value is None:
                if stored is not None and is_live(stored):
                    yield RowWrite(key, stored, None, self._storage.layout.id)
                continue
            locks = tuple(
                [0 if at is None else int.from_bytes(value[at : at + LOCK_BYTES], "little") for at in self._locks]
            )
            yield RowWrite(key, stored, value[self._offset :], self._storage.layout.id, locks)

    def _entries(self, reader: Reader, puts: Sequence[Put]) -> Iterator[EntryWrite]:
        """The index entries among what is put. One that goes is there, or nobody need hear of it (rule 4)."""
        for key, value in _last(puts):
            if key.startswith(self._prefix):
                continue
            if value is not None:
                yield EntryWrite(key, ENTRY_VALUE.unpack(value)[2], True)
                continue
            stored = reader.get(key)
            if stored is not None and is_live(stored):
                yield EntryWrite(key, ENTRY_VALUE.unpack(stored)[2], False)


def _last(puts: Sequence[Put]) -> Iterator[Put]:
    """What becomes of each key in the end."""
    return iter(dict(puts).items())


class _Felt(Overlay):
    """An overlay that is felt to be used, however long a commit of the sources takes to be applied."""

    def __init__(self, view: Readable, beat: Callable[[], None]) -> None:
        super().__init__(view)
        self._beat = beat
        self._looked_up = 0

    def get(self, key: bytes) -> bytes | None:
        """As in `Overlay`."""
        self._looked_up += 1
        if self._looked_up % _BEAT_LOOK_UPS == 0:
            self._beat()
        return super().get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """As in `Overlay`."""
        return [self.get(key) for key in keys]


class _LiveRows:
    """Rows and entries as they are, without tombstones: the rules know none."""

    def __init__(self, reads: ShortReads) -> None:
        self._reads = reads

    def get(self, key: bytes) -> bytes | None:
        """As in `Readable`."""
        value = self._reads.get(key)
        return value if value is not None and is_live(value) else None

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """As in `Readable`."""
        return (pair for pair in self._reads.scan(start, stop) if is_live(pair[1]))
