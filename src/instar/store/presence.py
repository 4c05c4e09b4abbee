"""Who has the store open, and what it is about: one slot per process, written by its owner alone, read by all.

A slot says which snapshots its process uses, whether it waits to commit and when it last did, and whether it works in
the background. All of that is a hint: the collector and the gate heed it, correctness never rests on it, so that torn
or stale reads do no harm. Some words are no hints: how much of the data file its process may touch (module `space`),
whether any lock may be held (`lock_table`), and the write-ahead log's (`wal`, `keeper`), which are written within the
atomic section alone, but that a lock may be held; and up to which number the owners of locks in its process have ended.

Shared between processes the slots are a file in the store's directory, mapped by all. A process owns a slot for as
long as it holds an open-file-description lock on the slot's byte: the kernel lets go of it when the process dies.
(Traditional POSIX locks would vanish when any descriptor of the file is closed.) A forked child closes its copy of the
descriptor, which would keep the parent's slot alive, and takes a slot of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Callable
from itertools import count as counter
from typing import NamedTuple, Protocol

from instar import errors
from instar.clock import Clock
from instar.store.file_lock import locked

SLOTS = 4096
_WORDS = 32  # 256 bytes a slot: whole cache lines, so that owners do not disturb one another
# Words of a slot. Times are monotonic nanoseconds; 0 means none. _WORKER: when a worker last said that it goes on.
_PID, _STARTED, _SNAPSHOT, _REGISTERED, _WAITING, _COMMITTED, _WORKER, _RESERVED, _LATENCY, _VERSION, _LEASE = range(11)
# All owners of locks up to this number have ended.
_ENDED = 11
# Of open transactions: refused << 63 | table << 32 | when it was begun, in seconds since the epoch. The last two words
# stand for all that the others have no room for, as for one that may have to do with any table, begun when the first of
# them was: one word for those that have written, one for the refused.
_WRITERS = range(12, _WORDS - 2)
_MORE = range(_WORDS - 2, _WORDS)
_REFUSED = 1 << 63
# Words of the first line: slots that were ever used; when a process last took its turn at writing back; when a worker
# was started that has not announced itself yet; whether any lock may be held (module `lock_table`).
_HIGH_WATER, _TURN, _LAUNCHED, _LOCKS = range(4)
# The write-ahead log's, of stores that have one. Positions in it: its end, how far it is surely on disk, from where on
# the newest checkpoint needs it. Who keeps the checkpoint's pages: slot + 1 (0: nobody), when that process took the
# slot, when it last said that it goes on. Whether the disk has failed. When another began to take the keeper's place.
# The part of the data file that was written back last.
WAL_END, WAL_DURABLE, WAL_NEEDED, KEEPER_SLOT, KEEPER_STARTED, KEEPER_BEAT, WAL_BROKEN = range(4, 11)
KEEPER_NEXT, KEEPER_PART = 11, 12
# The number of the transaction in which a foreground commit was last judged. How often it was said that no lock is
# held, doubled; odd while that is being done, or was when its process was killed.
_JUDGED, _NO_LOCKS = 13, 14

_FILE_BYTES = (SLOTS + 1) * _WORDS * 8

# A foreground commit is about while it is announced, or was made so recently that the next is likely to come.
ABOUT_NS = 5_000_000
# What a process took for its commits is heeded so long after the last of them.
LATENCY_NS = 1_000_000_000
# An announcement older than this is that of a stopped or killed process, and holds nobody up.
ANNOUNCED_NS = 100_000_000

# A worker that has not said for so long that it goes on is stopped, or hangs: as long as its claims on jobs are heeded.
WORKER_NS = 10_000_000_000
# A worker that was started is given so long to announce itself before another one is started.
LAUNCH_NS = 5_000_000_000
# Who asks is told for so long that it is starting: where the processors are busy, that takes ten seconds.
STARTING_NS = 15_000_000_000

# struct flock: type, whence, start, length, pid (0 for open-file-description locks).
_FLOCK = struct.Struct("hhqqi4x")


class Words(Protocol):
    """What both a list of integers and a view of a mapped file are."""

    def __getitem__(self, index: int, /) -> int: ...

    def __setitem__(self, index: int, value: int, /) -> None: ...


class Process(NamedTuple):
    """What a living process says of itself."""

    pid: int
    started_ns: int
    oldest_snapshot: int | None
    worker: bool
    schema_version: int  # that it has cached; 0: none yet
    lease_until_ns: int  # of that version; 0: without leases


class Writer(NamedTuple):
    """A transaction of several statements that has written to `table`: whose, and when it began (microseconds since the
    epoch; to the second, of another process). `refused`: one whose commit schema changes keep turning back; its table
    is 0 if a change of any table does. Else table 0 stands for transactions of a process that has too many to name them
    one by one, begun then or later. `token` and `thread`: in this process."""

    pid: int
    table: int
    begun_us: int
    token: int = 0
    thread: int = 0
    refused: bool = False


def _word(writer: Writer) -> int:
    """What a process says of a transaction in one of _WRITERS."""
    begun = writer.begun_us // 1_000_000 & 0xFFFFFFFF
    return (_REFUSED if writer.refused else 0) | writer.table << 32 | begun


def _writer(pid: int, word: int) -> Writer:
    """What a process says in one of _WRITERS."""
    table, begun = (word & ~_REFUSED) >> 32, word & 0xFFFFFFFF
    return Writer(pid, table, begun * 1_000_000, refused=bool(word & _REFUSED))


class Presence:
    """The slots, held in `words`; this class keeps them in the process' own memory (the memory engine)."""

    def __init__(self, clock: Clock, snapshot_max_age: float) -> None:
        self._clock = clock
        self._monotonic_ns = clock.monotonic_ns
        self._max_age_ns = int(snapshot_max_age * 1e9)
        self._words: Words = [0] * (2 * _WORDS)
        self._base = _WORDS
        self._words[_HIGH_WATER] = 1
        self._lock = threading.Lock()
        self._tokens = counter(os.getpid() << 32)  # a forked child is handed its parent's tokens
        self._snapshots: dict[int, tuple[int, int]] = {}
        self._since = self._monotonic_ns()  # this process's own, kept here too: a mapped word is read more slowly
        self._usual = 0
        self._owners: dict[int, None] = {}  # the numbers of owners of locks that have not ended, in their order
        self._last_owner = 0
        self._shown: dict[int, tuple[Writer, int]] = {}  # open transactions by token, with the word that says each
        self._more: dict[int, Writer] = {}  # those that there was no word for
        self._fill_slot()

    def _fill_slot(self) -> None:
        words, base = self._words, self._base
        for word in range(_WORDS):
            words[base + word] = 0
        words[base + _STARTED] = self._clock.monotonic_ns()
        words[base + _PID] = os.getpid()

    def forked(self) -> None:
        """In a child, of slots in the process' own memory: a thread that is not there may have had the lock."""
        self._lock = threading.Lock()

    def alive(self, slot: int) -> bool:
        """Whether a process owns `slot`."""
        return slot == 0

    def _slots(self) -> range:
        """Where the slots that were ever used begin in `words`."""
        return range(_WORDS, _WORDS + self._words[_HIGH_WATER] * _WORDS, _WORDS)

    # Foreground commits and the gate.

    def wait_begins(self) -> None:
        """A foreground commit is about to ask for the atomic section."""
        self._words[self._base + _WAITING] = self._since = self._monotonic_ns()

    def wait_ends(self) -> None:
        """The foreground commit is done, for better or worse."""
        words, base = self._words, self._base
        words[base + _WAITING] = 0
        words[base + _COMMITTED] = now = self._monotonic_ns()
        # A mean that forgets, and rises faster than it falls: of commits that take unequally long, near the long.
        usual = self._usual
        more = now - self._since - usual
        self._usual = words[base + _LATENCY] = usual + (more >> 2 if more > 0 else more >> 4)

    def foreground_about(self) -> bool:
        """Whether any process waits to commit, or committed in the last few milliseconds."""
        words, now = self._words, self._clock.monotonic_ns()
        for base in self._slots():
            if now - words[base + _COMMITTED] < ABOUT_NS:
                return True
            waiting = words[base + _WAITING]
            if waiting and now - waiting < ANNOUNCED_NS:
                return True
        return False

    def others_commit(self) -> bool:
        """Whether another process, and no worker, has committed within the last second."""
        words, now = self._words, self._clock.monotonic_ns()
        return any(
            base != self._base and not words[base + _WORKER] and now - words[base + _COMMITTED] < LATENCY_NS
            for base in self._slots()
        )

    def foreground_queues(self) -> bool:
        """Whether a process waits to commit while another does."""
        words, now = self._words, self._clock.monotonic_ns()
        announced = (words[base + _WAITING] for base in self._slots())
        return sum(1 for since in announced if since and now - since < ANNOUNCED_NS) > 1

    def foreground_latency(self) -> int | None:
        """How many nanoseconds commits take, from announcing them to their end, in the process where they take longest
        of those that commit; None if none does. Workers' own do not count."""
        words, now = self._words, self._clock.monotonic_ns()
        longest = None
        for base in self._slots():
            if words[base + _WORKER]:
                continue
            took = words[base + _LATENCY] if now - words[base + _COMMITTED] < LATENCY_NS else 0
            since = words[base + _WAITING]
            if since and now - since < ANNOUNCED_NS:
                took = max(took, now - since)
            if took:
                longest = max(longest or 0, took)
        return longest

    # Snapshots.

    def register(self, snapshot: int) -> int:
        """Note that `snapshot` is in use in this process; returns a token."""
        token = next(self._tokens)
        with self._lock:
            self._snapshots[token] = (snapshot, self._clock.monotonic_ns())
            oldest = self._words[self._base + _SNAPSHOT]
            if not oldest or snapshot < oldest or self._is_too_old(self._words[self._base + _REGISTERED]):
                self._publish()
        return token

    def release(self, token: int) -> None:
        """Take back `register`; a token that is not known any more (after a fork) is ignored."""
        with self._lock:
            released = self._snapshots.pop(token, None)
            if released is not None and released[0] == self._words[self._base + _SNAPSHOT]:
                self._publish()

    def _publish(self) -> None:
        """Show the oldest snapshot that is heeded: one that is too old must not hide those after it."""
        words, base = self._words, self._base
        heeded = (found for found in self._snapshots.values() if not self._is_too_old(found[1]))
        snapshot, since = min(heeded, default=(0, 0))
        words[base + _REGISTERED] = since
        words[base + _SNAPSHOT] = snapshot

    def _is_too_old(self, registered: int) -> bool:
        return self._clock.monotonic_ns() - registered > self._max_age_ns

    def oldest_snapshot(self) -> int | None:
        """The oldest snapshot of a living process, unless it was registered too long ago."""
        words, now = self._words, self._clock.monotonic_ns()
        oldest = None
        for slot, base in enumerate(self._slots()):
            snapshot = words[base + _SNAPSHOT]
            if not snapshot or (oldest is not None and snapshot >= oldest):
                continue
            if now - words[base + _REGISTERED] <= self._max_age_ns and self.alive(slot):
                oldest = snapshot
        return oldest

    # Open transactions: whom a schema change may wait for.

    def enlist(self, table: int, begun_us: int, *, into: list[int] | None = None, refused: bool = False) -> int:
        """Note that a transaction begun at `begun_us` has written to `table`; returns a token, as in `Store`."""
        token = next(self._tokens)
        if into is not None:
            into.append(token)
        writer = Writer(os.getpid(), table, begun_us, token, threading.get_ident(), refused)
        words, base = self._words, self._base
        with self._lock:
            for place in _WRITERS:
                if not words[base + place]:
                    self._show(writer, place)
                    return token
            self._more[token] = writer
            self._say_more()
        return token

    def withdraw(self, token: int) -> None:
        """Take back `enlist`; a token that is not known any more (after a fork) is ignored."""
        with self._lock:
            if token in self._more:
                del self._more[token]
                self._say_more()
            elif token in self._shown:
                _writer, place = self._shown.pop(token)
                if self._more:
                    # Shown before it leaves the others, so that it is never out of sight.
                    first = next(iter(self._more))
                    self._show(self._more.pop(first), place)
                    self._say_more()
                else:
                    self._words[self._base + place] = 0

    def _show(self, writer: Writer, place: int) -> None:
        self._words[self._base + place] = _word(writer)
        self._shown[writer.token] = writer, place

    def _say_more(self) -> None:
        for place, refused in zip(_MORE, (False, True), strict=True):
            begun = [writer.begun_us for writer in self._more.values() if writer.refused is refused]
            self._words[self._base + place] = _word(Writer(0, 0, min(begun), refused=refused)) if begun else 0

    def writers(self) -> list[Writer]:
        """The transactions that living processes say to have written something."""
        with self._lock:
            found = [*(writer for writer, _place in self._shown.values()), *self._more.values()]
        words = self._words
        for slot, base in enumerate(self._slots()):
            if base == self._base:
                continue
            # The last words first: what moves from there to another is seen in one of them.
            said = [word for place in (*_MORE, *_WRITERS) if (word := words[base + place])]
            if said and self.alive(slot):
                found += [_writer(words[base + _PID], word) for word in said]
        return found

    # Locks.

    def locks_held(self) -> bool:
        """Whether any lock may be held."""
        return self._words[_LOCKS] != 0

    def say_locks_held(self) -> None:
        """So it may be from now on."""
        self._words[_LOCKS] = 1

    def say_no_locks(self) -> None:
        """None is held, unless one has come just now. Said in the atomic section, and counted: somebody else may say
        otherwise before it is seen."""
        words = self._words
        words[_NO_LOCKS] |= 1
        words[_LOCKS] = 0
        words[_NO_LOCKS] += 1

    def no_locks_said(self) -> int | None:
        """A number that is another whenever that was said in between; None while it is."""
        said = self._words[_NO_LOCKS]
        return None if said & 1 else said

    def say_judged(self, transaction: int) -> None:
        """A foreground commit is judged by locks from now on, which makes the state of that number if it stands; or
        none is any more that would make a later state. Said in the atomic section."""
        self._words[_JUDGED] = transaction

    def judged(self) -> int:
        """As it was said last."""
        return self._words[_JUDGED]

    def stays_about(self) -> None:
        """The foreground is at work, if not committing."""
        self._words[self._base + _COMMITTED] = self._monotonic_ns()

    def begin_owner(self) -> int:
        """The number of a new owner of locks: greater than those before."""
        with self._lock:
            self._last_owner += 1
            self._owners[self._last_owner] = None
            return self._last_owner

    def end_owner(self, number: int) -> bool:
        """The owner of that number has ended; whether all can see that here. It cannot be seen of one that an older one
        outlives."""
        with self._lock:
            self._owners.pop(number, None)
            ended = next(iter(self._owners), self._last_owner + 1) - 1
            self._words[self._base + _ENDED] = ended
        return number <= ended

    def has_ended(self, slot: int, number: int) -> bool:
        """Whether the owner of that number, in the process that has this slot, is seen to have ended."""
        return number <= self.last_ended(slot)

    def last_ended(self, slot: int) -> int:
        """All owners up to that number, in the process that has this slot, have ended."""
        return self._words[(slot + 1) * _WORDS + _ENDED]

    def this_slot(self) -> tuple[int, int]:
        """The number of this process' slot, and when it took it: no other process has both."""
        return self._base // _WORDS - 1, self._words[self._base + _STARTED]

    def is_owned(self, slot: int, started: int) -> bool:
        """Whether the process that took `slot` at `started` lives."""
        return self._words[(slot + 1) * _WORDS + _STARTED] == started and self.alive(slot)

    # Processes.

    def publish_schema(self, version: int, lease_until_ns: int) -> None:
        """This process has cached this catalog version, under a lease until then (0: without leases)."""
        self._words[self._base + _VERSION] = version
        self._words[self._base + _LEASE] = lease_until_ns

    def is_shared(self) -> bool:
        """Whether another process has, or ever had, the store open at the same time."""
        return self._words[_HIGH_WATER] > 1

    def others(self) -> list[int]:
        """The numbers of the other living processes."""
        return [process.pid for process in self.processes() if process.pid != os.getpid()]

    def announce_worker(self, working: bool) -> None:
        """This process does background work, or no longer does."""
        self._words[self._base + _WORKER] = self._monotonic_ns() if working else 0
        self._words[_LAUNCHED] = 0

    def pid_of(self, slot: int) -> int:
        """The number of the process that has, or had, `slot`."""
        return self._words[(slot + 1) * _WORDS + _PID]

    def is_worker(self, slot: int) -> bool:
        """Whether the process that has `slot` works in the background."""
        return self._words[(slot + 1) * _WORDS + _WORKER] > 0

    def worker_goes_on(self) -> None:
        """This process, if it is a worker, is at work still: it says so well before WORKER_NS have passed again."""
        if self._words[self._base + _WORKER]:
            self._words[self._base + _WORKER] = self._monotonic_ns()

    def wants_worker(self) -> bool:
        """Whether the caller is to start a worker: none is there, and nobody has just started one, which he now has.

        Two that ask within a microsecond may both be told to: the second worker ends when it finds the first.
        """
        words, now = self._words, self._clock.monotonic_ns()
        if self.worker_present() or (words[_LAUNCHED] and 0 <= now - words[_LAUNCHED] < LAUNCH_NS):
            return False
        words[_LAUNCHED] = now
        return True

    def worker_starting(self) -> bool:
        """Whether a worker was started lately that has not announced itself yet: it is on its way, or has failed."""
        launched = self._words[_LAUNCHED]
        return launched > 0 and 0 <= self._monotonic_ns() - launched < STARTING_NS

    def worker_present(self) -> bool:
        """Whether a living process does background work, and has said so of late: a stopped one does none."""
        words, now = self._words, self._monotonic_ns()
        return any(
            words[base + _WORKER] and now - words[base + _WORKER] < WORKER_NS and self.alive(slot)
            for slot, base in enumerate(self._slots())
        )

    def processes(self) -> list[Process]:
        """The living processes, in no particular order."""
        words = self._words
        found = []
        for slot, base in enumerate(self._slots()):
            if self.alive(slot):
                # Before the version, which is written first: a lease is never shown with a version older than its own.
                lease_until = words[base + _LEASE]
                found.append(
                    Process(
                        words[base + _PID],
                        words[base + _STARTED],
                        words[base + _SNAPSHOT] or None,
                        words[base + _WORKER] > 0,
                        words[base + _VERSION],
                        lease_until,
                    )
                )
        return found

    def this_process(self) -> tuple[int, int]:
        """The `pid` and `started_ns` of this process."""
        return self._words[self._base + _PID], self._words[self._base + _STARTED]

    def close(self) -> None:
        """Give the slot back."""
        self._fill_slot()


def last_words(words: Words) -> Words:
    """The shared words as they are now, for the threads that still look at them, or write to them, while all ends."""
    return [words[place] for place in range(_WORDS)]


class SharedPresence(Presence):
    """The slots of all processes, in the file `path`; 53300 if there is no slot left.

    `when_alone` is called if no other process has a slot, while none can take one; it gives the position at which the
    write-ahead log ends, 0 without one.
    """

    def __init__(
        self, path: str, clock: Clock, snapshot_max_age: float, when_alone: Callable[[], int] = lambda: 0
    ) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # Reserved now: a page of a sparse mapped file that the full disk has no room for is a SIGBUS later.
            os.posix_fallocate(self._file, 0, _FILE_BYTES)
            self._map = mmap.mmap(self._file, _FILE_BYTES)
        except BaseException:
            os.close(self._file)
            raise
        self._view = memoryview(self._map).cast("Q")
        try:
            slot = self._take_slot(when_alone)
        except BaseException:
            self.abandon()
            raise
        used = self._view[_HIGH_WATER]
        super().__init__(clock, snapshot_max_age)
        self._words = self._view
        self._base = _WORDS + slot * _WORDS
        self._slot = slot
        self._fill_slot()
        assert used > slot

    def _flock(self, command: int, kind: int, byte: int) -> int:
        answer = fcntl.fcntl(self._file, command, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))
        return int(_FLOCK.unpack(answer)[0])

    def registration(self) -> contextlib.AbstractContextManager[None]:
        """While this lasts no process takes a slot."""
        return locked(self._file)

    @property
    def shared_words(self) -> Words:
        """The words of the first line. Who keeps them has to take the `last_words` in their place at its own end."""
        return self._view

    def _take_slot(self, when_alone: Callable[[], int]) -> int:
        with self.registration():
            for slot in range(SLOTS):
                try:
                    self._flock(fcntl.F_OFD_SETLK, fcntl.F_WRLCK, slot)
                except (BlockingIOError, PermissionError):
                    continue
                used = min(max(self._view[_HIGH_WATER], slot + 1), SLOTS)
                if any(self._is_locked(other) for other in range(used)):
                    self._view[_HIGH_WATER] = used
                else:
                    # What the dead have left behind tells nothing: their times lie ahead if the host was started since.
                    self._view[_HIGH_WATER] = slot + 1
                    for word in range(_LOCKS, _WORDS):
                        self._view[word] = 0
                    end = when_alone()
                    self._view[WAL_END] = self._view[WAL_DURABLE] = self._view[WAL_NEEDED] = end
                return slot
        raise errors.error(errors.TOO_MANY_CONNECTIONS, f"more than {SLOTS} processes have the store open")

    def _is_locked(self, slot: int) -> bool:
        """Whether another than this has `slot`; one's own looks free."""
        return self._flock(fcntl.F_OFD_GETLK, fcntl.F_WRLCK, slot) != fcntl.F_UNLCK

    def is_alone(self) -> bool:
        """Whether no other process has a slot. (Its number tells nothing: that of a process in another container may
        be ours, and a slot just taken still bears the number of who had it before.)
        """
        return not any(slot != self._slot and self.alive(slot) for slot in range(self._words[_HIGH_WATER]))

    def takes_turn(self, seconds: float) -> bool:
        """Whether nobody has taken a turn for about so long; this process has then."""
        words, now = self._words, self._monotonic_ns()
        if 0 <= now - words[_TURN] < seconds * 0.9e9:
            return False
        words[_TURN] = now
        return True

    def publish_reserved(self, end: int) -> None:
        """This process may touch the data file up to byte `end`."""
        self._words[self._base + _RESERVED] = end

    def reserved_by_others(self) -> int:
        """Up to where any other living process may touch the data file."""
        words = self._words
        return max(
            (
                words[base + _RESERVED]
                for slot, base in enumerate(self._slots())
                if slot != self._slot and words[base + _RESERVED] and self.alive(slot)
            ),
            default=0,
        )

    def alive(self, slot: int) -> bool:
        # Locks of one's own description do not conflict, so that one's own slot looks free.
        return slot == self._slot or self._is_locked(slot)

    def close(self) -> None:
        """Give the slot back.

        The mapping is not ended here but when nobody knows of it any more: another thread may be about to write a last
        word, that of a commit which was made. No object may, or mapping and descriptor last until garbage is collected.
        """
        super().close()
        self._words = [0] * (SLOTS + 1) * _WORDS
        self._flock(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, self._slot)
        del self._view, self._map
        os.close(self._file)

    def abandon(self) -> None:
        """Close the mapping and the descriptor, and with them this process' hold on them, without touching the slot.

        What a forked child does with what it inherited: while it held the descriptor, the parent's slot would outlive
        the parent.
        """
        self._view.release()
        self._map.close()
        os.close(self._file)
