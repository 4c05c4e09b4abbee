"""Checkpoints: states of the data file that are wholly on disk, and stay there until the next one.

LMDB writes over pages that no reader and not the newest state needs. So one process, the *keeper*, has a read
transaction open on the state of the newest checkpoint. It makes a checkpoint whenever the log has grown by 256 KiB, or
is a second old: it begins a read on the state of the moment, has the data file synced, which is megabytes in few
writes, with rests in between in which the disk is the commits', writes down the checkpoint, and only then lets go of
the read before.

Any process that writes may become the keeper, and one that has none becomes it before it writes. If it is killed, its
read keeps the pages all the same until somebody clears LMDB's table of readers, and whoever writes looks first whether
the keeper lives. If it is stopped, another takes over, and lets it go on for a moment, in which it lets go of its read.
A worker takes over from others, as long as it keeps up: it is nobody's process that has to answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from instar import errors
from instar.clock import Clock
from instar.store.data_file import DataFile, write_out
from instar.store.directory import DATA_FILE
from instar.store.lmdb_section import LmdbSection
from instar.store.page_sync import AT_ONCE, Rest, sync_pages
from instar.store.pages import PageFile
from instar.store.presence import (
    KEEPER_BEAT,
    KEEPER_NEXT,
    KEEPER_PART,
    KEEPER_SLOT,
    KEEPER_STARTED,
    WAL_NEEDED,
    SharedPresence,
    last_words,
)
from instar.store.space import can_reserve
from instar.store.wal import WriteAheadLog
from instar.store.wal_format import (
    CHECKPOINT_FILES,
    Checkpoint,
    encode_checkpoint,
    read_checkpoint,
)

# A checkpoint is due when the log has grown by so much since the last one, or is so old: until then LMDB cannot use
# pages again that were freed since.
LOG_BYTES = 1 << 18
AGE_NS = 1_000_000_000
# Where a checkpoint's pages are written as fast as the disk takes them, each sync of the log waits behind some, and
# commits queue. So after a few pages it rests for so many times as long as these took, if no longer than that; and no
# more when the log has grown by so much since it began, or a second has passed: then the disk is to keep up.
_RESTS, _LONGEST_REST = 3.0, 0.02
_MOST_GROWTH = LOG_BYTES
# On a disk with less room than this, where the file is not to grow, a checkpoint is due after a quarter of the log, and
# rests for nobody.
_TIGHT_BYTES = 256 << 20
# How often that is looked at: while the log grows, and while it does not.
_BUSY_SECONDS = 0.025
_IDLE_SECONDS = 1.0
# The file is gone through in so many parts, one each time: in 25 seconds. What was late is made up for, up to so much.
_PARTS, _PART_NS, _MOST_LATE_NS = 1000, 25_000_000, 1_000_000_000
# The data file is longer than what is in use, for what LMDB is about to write there: by as much as is in use within
# these bounds, and by twice that when it has just been made longer.
_LEAST_AHEAD, _MOST_AHEAD = 256 << 10, 16 << 20
# A keeper that has said nothing for so long is stopped.
_STOPPED_NS = 10_000_000_000
# A worker does not keep up when the log has grown by so many times what makes a checkpoint due, and so long since there
# was none. Then it is the keeper no more, for so long.
_BEHIND, _BEHIND_NS, _RELIEVED_NS = 4, 1_500_000_000, 60_000_000_000
# A keeper whose place another is about to take begins no checkpoint for so long. One that it is at may be done first;
# who has tried so often, and been too slow, is as one who was relieved.
_NEXT_NS, _MOST_TRIED = 1_000_000_000, 3
# Who was relieved and is stopped before it has let go of its read, as it does within a second, is let go on. Not for
# ever: it may be within another one.
_LETTING_GO_NS = 3_000_000_000
# Who closes the store has the file written before all wait for what is left: as often as that is more than so many
# bytes of log, and so many times at most.
_LITTLE_BYTES, _LAST_ROUNDS = 1 << 14, 4


class _Relieved(Exception):
    """While a checkpoint was made another process has become the keeper, or the read that keeps its pages has ended."""


class Keeper:
    """This process as the keeper of the store in directory `path`, or as one that may become it.

    `begin_read` begins a read transaction of LMDB, `enter` the atomic section; `wake` lets a process that is stopped go
    on for a moment, and says whether it reads no more.
    """

    def __init__(
        self,
        path: str,
        data: DataFile,
        log: WriteAheadLog,
        presence: SharedPresence,
        clock: Clock,
        begin_read: Callable[[], Any],
        enter: Callable[[], LmdbSection],
        wake: Callable[[int], bool],
    ) -> None:
        self._data = data
        self._log = log
        self._presence = presence
        self._words = presence.shared_words
        self._monotonic_ns = clock.monotonic_ns
        self._begin_read = begin_read
        self._enter = enter
        self._wake = wake
        self._pages = PageFile(os.path.join(path, DATA_FILE), data.page_bytes)
        self._in_place = can_reserve(path)
        self._pin: Any = None
        self._made: Checkpoint | None = None  # that it is of; it is on disk
        self._made_ns = 0
        self._relieved_ns = -_RELIEVED_NS  # when another took this one's place, or it was too slow to take another's
        self._tried = 0  # how often in vain
        self._relieved = 0, 0  # the process whose place this one has taken; until when that is looked after
        self._behind = 0, 0  # where the newest checkpoint was when the keeper was seen to be behind, and when
        self._part_ns = 0  # when a part of the file is to be written back
        self._changing = threading.Lock()  # while this process becomes the keeper, or finds that it is not
        self._pinned = threading.Lock()  # while pages are written outside of the section, which a read keeps meanwhile
        self._lost = 0  # how often all reads have ended with LMDB's environment
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._files: list[int] = []
        try:
            for name in CHECKPOINT_FILES:
                self._files.append(os.open(os.path.join(path, name), os.O_RDWR | os.O_CLOEXEC))
        except BaseException:
            for file in self._files:
                os.close(file)
            raise

    # --- who it is ---------------------------------------------------------------------------------------------------

    def is_kept(self) -> bool:
        """Whether a living process is the keeper."""
        slot = self._words[KEEPER_SLOT]
        return slot > 0 and self._presence.is_owned(slot - 1, self._words[KEEPER_STARTED])

    def _is_keeper(self) -> bool:
        slot, started = self._presence.this_slot()
        return self._words[KEEPER_SLOT] == slot + 1 and self._words[KEEPER_STARTED] == started

    def _be_keeper(self) -> None:
        words, (slot, started), now = self._words, self._presence.this_slot(), self._monotonic_ns()
        if not self._is_keeper():
            self._part_ns = now
        words[KEEPER_BEAT] = self._made_ns = now
        words[KEEPER_STARTED] = started
        words[KEEPER_SLOT] = slot + 1

    def _be_none(self) -> None:
        """Who writes next is to be the keeper, if this process is."""
        if self._is_keeper():
            self._words[KEEPER_SLOT] = 0

    def _is_to_be_relieved(self, grown: int) -> bool:
        """Whether this process is to be the keeper in another's place, when the log has grown by so many bytes since
        its checkpoint: for it is gone or stopped, or not the one that should be.

        That is the worker, if there is one, and room for a file that may grow. To find pages and have them written
        takes some tenth of a processor beside a thousand commits a second, and the interpreter from all clients in the
        process. But the worker is of low priority: when it does not keep up somebody else is the keeper, for a while.
        """
        now, words, presence = self._monotonic_ns(), self._words, self._presence
        slot = words[KEEPER_SLOT] - 1
        if now - words[KEEPER_BEAT] > _STOPPED_NS or not self.is_kept():
            return True
        tight = self._is_tight()
        if presence.is_worker(presence.this_slot()[0]):
            return not tight and not presence.is_worker(slot) and now - self._relieved_ns >= _RELIEVED_NS
        return presence.is_worker(slot) and (tight or self._is_behind(grown, now))

    def _is_behind(self, grown: int, now: int) -> bool:
        """Whether the keeper has made no checkpoint for a while, though the log has grown by that much: a single
        transaction may be larger, and a keeper that had nothing to do looks once a second."""
        needed = self._words[WAL_NEEDED]
        if grown <= _BEHIND * LOG_BYTES:
            self._behind = 0, 0
        elif self._behind[0] != needed:
            self._behind = needed, now
        return self._behind[0] == needed and now - self._behind[1] >= _BEHIND_NS

    def entered(self, transaction: int) -> None:
        """A write transaction, of that number, has begun: before it writes, a living process must be the keeper. 58030.

        LMDB itself clears its table of the readers that are gone when it takes the mutex of a process that was killed
        in the section, and who opens it when nobody has it open clears all of it. Nobody has written since then.
        """
        self._log.require_whole()
        if not self.is_kept():
            self._adopt(transaction - 1)
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="instar-keeper", daemon=True)
            with contextlib.suppress(RuntimeError):  # no thread is left: the log grows until there is
                thread.start()
                self._thread = thread

    def _adopt(self, transaction: int) -> None:
        """Become the keeper within the atomic section, before LMDB's transaction after `transaction` has written."""
        newest, end, lost = self._newest(), self._log.end, self._lost
        pin = self._begin_read()
        try:
            self._sync(self._files[newest.sequence & 1])
            if (newest.transaction, newest.position) != (transaction, end):
                meta = self._data.meta(transaction)
                if self._words[KEEPER_SLOT]:
                    self._sync_since(newest.meta, meta)
                else:  # its pages may have been written over since its keeper has let go of them
                    self._sync(self._data.number)
                newest = Checkpoint(newest.sequence + 1, end, transaction, meta)
                self._sync(self._write(newest))
        except BaseException:
            pin.abort()
            raise
        with self._changing:
            self._keep(pin, newest)
            self._be_keeper()
        if self._lost != lost:
            self._be_none()  # it is looked for once more before LMDB writes

    def _keep(self, pin: Any, made: Checkpoint) -> None:
        self._let_go()
        self._pin, self._made = pin, made
        # Whoever was slow to come here may have been overtaken.
        self._words[WAL_NEEDED] = max(made.position, self._words[WAL_NEEDED])

    def _let_go(self) -> None:
        pin, self._pin, self._made = self._pin, None, None
        if pin is not None:
            with contextlib.suppress(Exception):  # LMDB's environment was closed meanwhile, and the read with it
                pin.abort()

    def check_readers(self, check: Callable[[], object]) -> None:
        """Clear LMDB's table of readers that are gone, by `check`: while nobody writes, so that whoever writes next
        sees whether the keeper was one of them."""
        section = self._enter()
        try:
            check()
        finally:
            section.abort()

    def lose(self) -> None:
        """The reads are about to end, with LMDB's environment: who writes next keeps the pages first. A checkpoint that
        is being made comes to nothing; what it is about to write over itself is not to be another page by then."""
        self._lost += 1  # first: whoever finds himself the keeper looks at it after that
        with self._pinned:
            self._be_none()
            self._let_go()

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        seconds = _BUSY_SECONDS
        while not self._stopped.wait(seconds):
            try:
                seconds = _BUSY_SECONDS if self._tend() else _IDLE_SECONDS
            except Exception:  # noqa: BLE001 - closed, full of readers, not to be written: who writes is told
                seconds = _IDLE_SECONDS

    def _tend(self) -> bool:
        """Do what is due; whether the log has grown since the last checkpoint."""
        words, now = self._words, self._monotonic_ns()
        grown = self._log.since(words[WAL_NEEDED])
        if self._is_keeper():
            words[KEEPER_BEAT] = now
            pid, until = self._relieved
            if now < until and self._wake(pid):
                self._relieved = 0, 0
            if grown:
                self._write_back(now)
                self._cache_ahead()
            if grown and self._is_due(grown, now):
                self.checkpoint()
        else:
            with self._changing:
                if self._pin is not None and not self._is_keeper():
                    self._let_go()  # another has taken over, with a checkpoint of its own
                    self._relieved_ns = now
            if grown and self._is_to_be_relieved(grown):
                self._relieve(now)
        return grown > 0

    def _relieve(self, now: int) -> None:
        """Take the keeper's place. In vain if it makes a checkpoint meanwhile: it begins none from now on."""
        words = self._words
        relieved = self._presence.pid_of(words[KEEPER_SLOT] - 1)
        words[KEEPER_NEXT] = now
        self._tried += 1
        try:
            self.checkpoint()
        except BaseException:  # whatever it is, the keeper is to go on
            self._tried, words[KEEPER_NEXT] = _MOST_TRIED, 0
            raise
        finally:
            if self._is_keeper():
                self._relieved = relieved, self._monotonic_ns() + _LETTING_GO_NS
                self._tried = words[KEEPER_NEXT] = 0
            elif self._tried >= _MOST_TRIED:  # it is too slow
                self._relieved_ns, self._tried = now, 0

    def _is_due(self, grown: int, now: int) -> bool:
        """Whether the keeper is to make a checkpoint, when the log has grown by so many bytes since the last one."""
        if 0 <= now - self._words[KEEPER_NEXT] < _NEXT_NS and not self._is_tight():
            return False
        return grown >= self._due_bytes() or now - self._made_ns >= AGE_NS

    def _due_bytes(self) -> int:
        """After how much of the log a checkpoint is due."""
        return LOG_BYTES // 4 if self._is_tight() else LOG_BYTES

    def _is_tight(self) -> bool:
        found = os.fstatvfs(self._data.number)
        return found.f_bavail * found.f_frsize < _TIGHT_BYTES

    def _write_back(self, now: int) -> None:
        """Write the part of the file after that which this keeper, or another, has written last, if it is time. Of the
        pages that LMDB wrote and needs no more, those that are not used again would be written by the system, all at
        once, when the first of them is half a minute old."""
        if now < self._part_ns:
            return
        self._part_ns = max(self._part_ns, now - _MOST_LATE_NS) + _PART_NS
        self._words[KEEPER_PART] = part = (self._words[KEEPER_PART] + 1) % _PARTS
        step = AT_ONCE * self._data.page_bytes
        with contextlib.suppress(OSError):  # who relies on it is told
            size = -(-self._data.size() // _PARTS)
            for begin in range(part * size, (part + 1) * size, step):
                write_out(self._data.number, begin, step, wait=True)

    def _cache_ahead(self) -> None:
        """Have the system's cache hold page by page what LMDB is about to write behind the pages in use (see
        `DataFile.cache_pages`); what is written before that, a very large transaction, only costs more later."""
        data = self._data
        ahead = min(max(data.used(), _LEAST_AHEAD), _MOST_AHEAD)
        if data.size() - data.used() >= ahead:
            return
        with contextlib.suppress(OSError):  # files may not be that large: it is as good as it was
            section = self._enter()
            try:
                begin, end = data.size(), data.used() + 2 * ahead
                data.extend(end)
            finally:
                section.abort()
            data.cache_pages(begin, end)

    def checkpoint(self) -> None:
        """Make a checkpoint of the state of the moment, and be the keeper from then on.

        The pages of the one before are kept meanwhile, by whoever is the keeper, or was when it was killed: if they are
        not any more, there is a newer one, and nothing is done.
        """
        section = self._enter()
        try:
            newest = self._newest()
            if self._made is not None and self._made.sequence == newest.sequence and self._is_keeper():
                self._log.turn(newest.position)
            transaction, end = section.number - 1, self._log.end
            meta = self._data.meta(transaction)
            lost = self._lost
            pin = self._begin_read()
            rest = partial(self._rest, lost, self._is_keeper(), end, self._monotonic_ns())
        finally:
            section.abort()
        made = Checkpoint(newest.sequence + 1, end, transaction, meta)
        try:
            self._sync(self._files[newest.sequence & 1])  # the file of the one before it is about to be written over
            with self._pinned:
                if self._lost != lost:
                    raise _Relieved
                self._sync_since(newest.meta, meta, rest)
            file = self._record(made, lost)
            if file is None:
                pin.abort()
                return
            self._sync(file)
        except _Relieved:
            pin.abort()
            return
        except BaseException:
            pin.abort()
            raise
        with self._changing:
            if self._made is None or self._made.sequence < made.sequence:
                self._keep(pin, made)
                return
        pin.abort()  # another thread has begun anew meanwhile, with a newer checkpoint

    def _rest(self, lost: int, kept: bool, end: int, begun: int, took: float) -> None:
        """Leave the disk to commits, after pages that took so many seconds, in a checkpoint that was begun then, when
        the log ended there, by the keeper, or by whoever is to become it: in haste, unless it is a worker, which takes
        the place of one that goes on meanwhile.

        Who was stopped and has been relieved meanwhile goes on for a moment only, and is to let go within it.
        """
        now = self._monotonic_ns()
        if self._lost != lost:  # who ends the read waits
            raise _Relieved
        if self._is_keeper():
            self._words[KEEPER_BEAT] = now
        elif kept:
            raise _Relieved
        elif not self._presence.is_worker(self._presence.this_slot()[0]):
            return
        self._write_back(now)
        if self._log.since(end) < _MOST_GROWTH and now - begun < AGE_NS and not self._is_tight():
            self._stopped.wait(min(_RESTS * took, _LONGEST_REST))

    def _record(self, made: Checkpoint, lost: int) -> int | None:
        """Write it into its file, which is to be synced; None if there is another one of its number, or its pages are
        not kept any more."""
        section = self._enter()
        try:
            if self._newest().sequence >= made.sequence or self._lost != lost:
                return None
            file = self._write(made)
            if not self._is_keeper():  # as soon as it is, who was before lets go of the checkpoint before
                self._sync(file)
            self._be_keeper()
            if self._lost != lost:
                self._be_none()
                return None
        finally:
            section.abort()
        return file

    def close(self) -> None:
        """This process writes no more: if it is the keeper, the data file is whole without the log from here on."""
        if not self._files:
            return  # when the interpreter ended
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        with contextlib.suppress(Exception):  # whatever it is, who writes next makes a checkpoint
            self._resign()
        self.lose()
        self._close_files()

    def _resign(self) -> None:
        if not self._is_keeper():
            return
        for _ in range(_LAST_ROUNDS):  # so that little is left to be done while all others wait
            self.checkpoint()
            if not self._is_keeper():
                return
            if self._log.since(self._words[WAL_NEEDED]) < _LITTLE_BYTES:
                break
        section = self._enter()
        try:
            made, transaction, end = self._made, section.number - 1, self._log.end
            if made is None or not self._is_keeper():
                return
            if (made.transaction, made.position) != (transaction, end):
                last = Checkpoint(made.sequence + 1, end, transaction, self._data.meta(transaction))
                self._sync_since(made.meta, last.meta)
                self._sync(self._write(last))
                self._words[WAL_NEEDED] = end
            self._words[KEEPER_SLOT] = 0
            self._data.cut(self._data.used())  # nobody writes meanwhile
        finally:
            section.abort()

    # --- files -------------------------------------------------------------------------------------------------------

    def _newest(self) -> Checkpoint:
        newest = read_checkpoint(self._files)
        if newest is None:
            raise errors.error(errors.DATA_CORRUPTED, "the store is damaged: no checkpoint is whole")
        return newest

    def _write(self, made: Checkpoint) -> int:
        """Write it into its file, which is returned; within the atomic section, so that a process that was stopped
        cannot write over a newer one."""
        file = self._files[made.sequence & 1]
        os.pwrite(file, encode_checkpoint(made), 0)
        return file

    def _sync(self, file: int) -> None:
        with self._giving_up():
            os.fdatasync(file)

    def _sync_since(self, before: bytes, after: bytes, rest: Rest = lambda _seconds: None) -> None:
        """Have the data file on disk as far as the state of meta page `after` needs it, which is being read, as is that
        of the last checkpoint, `before`. `rest` as in `sync_pages`."""
        with self._giving_up():
            sync_pages(self._data.number, self._pages, before, after, in_place=self._in_place, rest=rest)

    @contextlib.contextmanager
    def _giving_up(self) -> Iterator[None]:
        """What the disk has failed to write once it may take for written the next time: nobody is to rely on it."""
        try:
            yield
        except OSError as caught:
            self._log.give_up()
            raise errors.error(errors.IO_ERROR, f"the store could not be written: {caught.strerror}") from caught

    def forget(self) -> None:
        """Let go of what is the parent's, in a forked child, without telling LMDB: the parent's read goes on."""
        if self._pin is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._pin))
            self._pin = None
        self._close_files()

    def _close_files(self) -> None:
        files, self._files = self._files, []  # two threads may come here when the interpreter ends
        for file in files:
            os.close(file)
        self._words = last_words(self._words)
        self._pages.close()
        if files:
            self._data.close()
