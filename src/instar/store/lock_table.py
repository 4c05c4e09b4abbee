"""The lock table of a store: who holds which resource in which mode, and who waits for whom.

A *resource* is a key of the caller's choice, opaque here: for row locks the store key of a row, or the prefix that a
unique key has in its index; for schema locks the key of a table's header. Modes and their conflicts are those of
`lock_modes`; each kind of lock takes modes and resources of its own, and is held, waited for and found dead like any
other.

An *owner* is a transaction, by the presence slot of its process and a serial. Its record is its life: a lock whose
owner has no record, or whose process is gone (killed, too), is no lock any more, and is swept away by whoever meets
it. The slot says, too, up to which serial all owners of its process have ended: most ends are seen there, and the
record goes along with the next change that this process makes. So the end of a transaction costs a word in memory,
however many locks it has, that of one which an older one outlives a record, and a death costs nothing.

Every commit is judged inside the atomic section against the locks of others, and locks are taken inside it, or so that
nobody can tell (`Store.lock`, `apply.py`, `lmdb.py`). So a commit that was judged before is seen by every snapshot that
is taken after, and one that is judged later is refused: what an owner has locked and then read stays as it is. All of
that rests on one word in shared memory, which says whether any lock may be held: it is set by who locks, and taken back
in the section alone; where it is 0 a commit pays for reading it and nothing else. Owners end, wait and stop waiting
outside the section.

Waiting is no business of the section: `Locked` says who is in the way, `begin_waiting` records that, or finds that
the waiting would never end (`Deadlock`), and `is_blocked` tells when to try again. Nobody is handed a lock: who comes
first when it is free has it.

The records lie where the engine puts them: in memory, or in an LMDB file that all processes share (`lmdb_locks.py`).
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple, Protocol

import msgspec

from instar.store.engine import Refused
from instar.store.forks import begin_anew_in_child
from instar.store.lock_modes import CONFLICTS, Mode, modes_of
from instar.store.presence import Presence

# Owner: slot, when its process took that slot, what tells it from others of the same number, number in the process.
_OWNER = struct.Struct(">HQII")
_LAST_NUMBER = (1 << 32) - 1
# A holder of a resource: the owner, and the mask of its modes.
_HOLDER = struct.Struct(f">{_OWNER.size}sH")

_RESOURCE, _RESOURCES_END = b"l", b"m"
_OWNERS, _OWNERS_END = b"o", b"p"

# Longer resources are known by their beginning and a hash.
_LONGEST = 480
_BEYOND = b"\xff" * 17  # above every hash
# One in so many owners, the first of a process among them, looks for owners whose processes are gone.
_BURIES = 64
# So many times a commit finds dead owners, all of a process at once, before it takes it that some live. Processes that
# rest may have left records each.
_ASKED = 16
# So many records are swept at once, at least: fewer would not be worth beginning.
_SWEPT = 32
# So many records are looked at at once for the first that is in the way, of a range.
_LOOKED_AT = 64


class Records(Protocol):
    """The records of a lock table within one atomic change, or one consistent view, of them."""

    def get(self, key: bytes, /) -> bytes | None: ...

    def put(self, key: bytes, value: bytes, /) -> object: ...

    def delete(self, key: bytes, /) -> object: ...

    def batch(self, start: bytes, stop: bytes, limit: int) -> tuple[list[bytes], list[bytes]]:
        """The first `limit` keys and values of start <= key < stop."""
        ...


class Locked(Refused):
    """`holders`, who live, hold `resource` in modes that conflict with `mode`."""

    def __init__(self, resource: bytes, mode: Mode, holders: tuple[bytes, ...]) -> None:
        super().__init__(resource)
        self.resource = resource
        self.mode = mode
        self.holders = holders


class Wait(NamedTuple):
    """One edge of a deadlock: `owner` waits for `mode` on `resource`, which `holder` has."""

    owner: bytes
    resource: bytes
    mode: Mode
    holder: bytes


class Deadlock(Exception):
    """Whoever was about to wait would wait for himself: `cycle` begins with his edge and ends with the one to him."""

    def __init__(self, cycle: list[Wait]) -> None:
        super().__init__(len(cycle))
        self.cycle = cycle


class HeldLock(NamedTuple):
    """A lock that is held, or waited for, by a living owner: for those who look."""

    owner: bytes
    pid: int
    resource: bytes
    modes: list[Mode]
    granted: bool
    waits_for: tuple[bytes, ...] = ()


class _Life(msgspec.Struct, frozen=True, array_like=True):
    """The record of an owner: its process' number, and what it waits for, if it does."""

    pid: int
    resource: bytes = b""
    mode: int = 0
    holders: tuple[bytes, ...] = ()


_encode_life = msgspec.msgpack.Encoder().encode
_decode_life = msgspec.msgpack.Decoder(_Life).decode


def number_of(owner: bytes) -> int:
    """The number of an owner among those of its process."""
    found: int = _OWNER.unpack(owner)[3]
    return found


def _key_of(resource: bytes) -> bytes:
    if len(resource) <= _LONGEST:
        return _RESOURCE + resource
    return _RESOURCE + resource[:_LONGEST] + hashlib.blake2b(resource, digest_size=16).digest()


class LockTable(ABC):
    """The locks of one store, as one process sees them; its threads may use it at once.

    `may_be_held()` is False if there is no lock at all: the one question of a commit while nobody locks anything. Asked
    outside of the section, it was so a moment ago.
    """

    def __init__(self, presence: Presence, conflicts: Sequence[int] = CONFLICTS) -> None:
        self._presence = presence
        self.may_be_held = presence.locks_held
        self._conflicts = conflicts
        self._mark = int.from_bytes(os.urandom(4), "big")
        self._over: set[bytes] = set()  # owners that have ended, whose records are still there
        self._swept = _RESOURCE
        self._unswept = 0  # records that are to be looked at

    @abstractmethod
    def _reading(self) -> AbstractContextManager[Records]:
        """A consistent view of the records."""

    @abstractmethod
    def _writing(self) -> AbstractContextManager[Records]:
        """The records to oneself: what is done stands when the block ends, and not if it raises."""

    # --- inside the atomic section ------------------------------------------------------------------------------------

    def require_free(
        self, wanted: Iterable[tuple[bytes, Mode]], owner: bytes = b"", held: Mapping[bytes, Mode] | None = None
    ) -> None:
        """Locked if one of the resources is held by another than `owner` in a mode that conflicts. What `owner` has
        `held` itself since it was acquired, in that mode or a stronger one, nobody else can have."""
        if held:
            wanted = [demand for demand in wanted if held.get(demand[0], -1) < demand[1]]
            if not wanted:
                return
        with self._reading() as records:
            lives = _Lives(records, self._presence)
            if not owner and not self._any_lives(records, lives):
                self._presence.say_no_locks()
                return
            for resource, mode in wanted:
                value = records.get(_key_of(resource))
                if value is not None:
                    _kept, _own, blocking = self._judged(value, owner, mode, lives)
                    if blocking:
                        raise Locked(resource, mode, blocking)

    @staticmethod
    def _any_lives(records: Records, lives: _Lives) -> bool:
        """Whether an owner lives; perhaps, if there are dead ones of many processes."""
        start = _OWNERS
        for _ in range(_ASKED):
            first = records.batch(start, _OWNERS_END, 1)[0]
            if not first:
                return False
            owner = first[0][1:]
            if lives.has(owner):
                return True
            start = _OWNERS + lives.beyond(owner)
        return True

    def acquire(self, owner: bytes, wanted: Sequence[tuple[bytes, Mode]]) -> None:
        """Have `owner` hold the resources, in the given order; Locked at the first that it cannot have.

        Those before it are held then: who comes in the order of resources cannot be overtaken for ever, and two who
        do cannot wait for one another. What is held already, in whatever mode, stays held in that one too.
        """
        self._presence.say_locks_held()  # first: an interrupt may come at any moment
        met: Locked | None = None
        with self._writing() as records:
            lives = _Lives(records, self._presence)
            self._enter(records, owner, lives)
            buried = self._bury(records)
            for resource, mode in wanted:
                key = _key_of(resource)
                value = records.get(key)  # mostly none: then nothing is to be judged
                kept, own, blocking = self._judged(value, owner, mode, lives) if value else (b"", 0, ())
                if blocking:
                    met = Locked(resource, mode, blocking)
                    break
                records.put(key, kept + _HOLDER.pack(owner, own | 1 << mode))
            # More than are added, though some are met while they live: so what is left stays a small multiple of that.
            self._unswept += len(wanted) * 3 // 2 + 2
            if self._unswept >= _SWEPT:
                self._sweep(records, self._unswept, lives)
                self._unswept = 0
        if buried:
            self._over.difference_update(buried)
        if met is not None:
            raise met

    def _judged(self, value: bytes, owner: bytes, mode: Mode, lives: _Lives) -> tuple[bytes, int, tuple[bytes, ...]]:
        """Of the holders of a resource: the other living ones, the modes of `owner`, and who conflicts with `mode`."""
        kept, own, blocking = [], 0, []
        for holder, mask in _HOLDER.iter_unpack(value):
            if holder == owner:
                own = mask
            elif lives.has(holder):
                kept.append(_HOLDER.pack(holder, mask))
                if mask & self._conflicts[mode]:
                    blocking.append(holder)
        return b"".join(kept), own, tuple(blocking)

    def _enter(self, records: Records, owner: bytes, lives: _Lives) -> None:
        """Give a new owner its record, and now and then take away those of processes that are gone."""
        if records.get(_OWNERS + owner) is not None:
            return
        records.put(_OWNERS + owner, _encode_life(_Life(os.getpid())))
        if number_of(owner) % _BURIES != 1:
            return
        start = _OWNERS
        while found := records.batch(start, _OWNERS_END, 1)[0]:
            process = found[0][1 : 1 + _OWNER.size - 4]
            if lives.process(found[0][1:]):
                start = _OWNERS + process + b"\xff" * 5
            else:
                records.delete(found[0])
                start = found[0]

    def _bury(self, records: Records) -> list[bytes]:
        """Take away the records of this process' owners that have ended: which are not `_over` once that stands, and
        no sooner, since a change that is given up leaves their records there."""
        over = list(self._over) if self._over else []
        for owner in over:
            records.delete(_OWNERS + owner)
        return over

    def _sweep(self, records: Records, number: int, lives: _Lives) -> None:
        """Look at the next records, one lap after the other, and take away what the dead have left."""
        keys, values = records.batch(self._swept, _RESOURCES_END, number)
        left: dict[bytes, bytes] = {}  # of a value: most are those of a few owners
        for key, value in zip(keys, values, strict=True):
            living = left.get(value)
            if living is None:
                holders = [_HOLDER.pack(*holder) for holder in _HOLDER.iter_unpack(value) if lives.has(holder[0])]
                living = left[value] = b"".join(holders)
            if not living:
                records.delete(key)
            elif len(living) < len(value):
                records.put(key, living)
        self._swept = keys[-1] + b"\x00" if len(keys) == number else _RESOURCE

    # --- owners -------------------------------------------------------------------------------------------------------

    def new_owner(self) -> bytes:
        """An owner of this process, who is not heard of before it locks or waits."""
        slot, started = self._presence.this_slot()
        return _OWNER.pack(slot, started, self._mark, self._presence.begin_owner())

    def end(self, owner: bytes) -> None:
        """The transaction is over: it holds nothing any more, and nobody waits for it. What fails (53100) is done with
        the next change of this process."""
        seen = self._presence.end_owner(number_of(owner))
        self._over.add(owner)
        if seen:
            return
        with self._writing() as records:
            buried = self._bury(records)
        self._over.difference_update(buried)

    def met(self, resource: bytes, mode: Mode, owner: bytes) -> Locked | None:
        """Who is in the way of a lock as things are: a look, which decides nothing."""
        if not self.may_be_held():
            return None
        with self._reading() as records:
            value = records.get(_key_of(resource)) or b""
            _kept, _own, blocking = self._judged(value, owner, mode, _Lives(records, self._presence))
        return Locked(resource, mode, blocking) if blocking else None

    def met_within(
        self, start: bytes, stop: bytes, mode: Mode, owner: bytes, *, reverse: bool = False
    ) -> Locked | None:
        """As `met`, of the first resource in [start, stop), or of the last, that cannot be had. Of long ones, which
        are known by their beginning, some outside of the range may count as in it."""
        if not self.may_be_held():
            return None
        first, end = start[:_LONGEST], stop if len(stop) <= _LONGEST else stop[:_LONGEST] + _BEYOND
        found = None
        with self._reading() as records:
            lives = _Lives(records, self._presence)
            for key, value in _all(records, _RESOURCE + first, _RESOURCE + end, _LOOKED_AT):
                _kept, _own, blocking = self._judged(value, owner, mode, lives)
                if blocking:
                    found = Locked(key[1:], mode, blocking)
                    if not reverse:
                        break
        return found

    def release(self, owner: bytes, held: Iterable[tuple[bytes, Mode]]) -> None:
        """`owner` holds these no more, none of them a long one; what else it holds, in other modes too, it keeps."""
        with self._writing() as records:
            lives = _Lives(records, self._presence)
            for resource, mode in held:
                key = _key_of(resource)
                kept, own, _blocking = self._judged(records.get(key) or b"", owner, mode, lives)
                own &= ~(1 << mode)
                left = kept + _HOLDER.pack(owner, own) if own else kept
                if left:
                    records.put(key, left)
                else:
                    records.delete(key)

    def is_blocked(self, met: Locked) -> bool:
        """Whether one of those who were in the way still is."""
        with self._reading() as records:
            lives = _Lives(records, self._presence)
            return bool(self._still(records, met.resource, met.mode, met.holders, lives))

    def _still(
        self, records: Records, resource: bytes, mode: Mode, holders: tuple[bytes, ...], lives: _Lives
    ) -> tuple[bytes, ...]:
        """Those of the holders who live, and have not let go of the resource."""
        if len(resource) > _LONGEST:  # such are let go of by their owner's end alone
            return tuple(holder for holder in holders if lives.has(holder))
        _kept, _own, blocking = self._judged(records.get(_key_of(resource)) or b"", b"", mode, lives)
        return tuple(holder for holder in holders if holder in blocking)

    def begin_waiting(self, owner: bytes, met: Locked) -> None:
        """Record that `owner` waits for those in its way. Deadlock if one of them waits for it, be it by others."""
        with self._writing() as records:
            buried = self._bury(records)
            cycle = self._cycle(records, owner, met)
            if not cycle:
                life = _Life(os.getpid(), met.resource, int(met.mode), met.holders)
                records.put(_OWNERS + owner, _encode_life(life))
        self._over.difference_update(buried)
        if cycle:
            raise Deadlock(cycle)

    def end_waiting(self, owner: bytes) -> None:
        """`owner` waits no more; it holds what it held."""
        with self._writing() as records:
            records.put(_OWNERS + owner, _encode_life(_Life(os.getpid())))

    def _cycle(self, records: Records, owner: bytes, met: Locked) -> list[Wait]:
        """The way along edges from `owner`, who meets `met`, back to it; empty if there is none."""
        lives = _Lives(records, self._presence)
        came: dict[bytes, Wait] = {holder: Wait(owner, met.resource, met.mode, holder) for holder in met.holders}
        pending = list(met.holders)
        while pending:
            current = pending.pop()
            if current == owner:
                return _way(came, owner)
            life = lives.of(current)
            if life is None or not life.holders:
                continue
            mode = Mode(life.mode)
            for holder in self._still(records, life.resource, mode, life.holders, lives):
                if holder not in came:
                    came[holder] = Wait(current, life.resource, mode, holder)
                    pending.append(holder)
        return []

    # --- those who look -----------------------------------------------------------------------------------------------

    def entries(self) -> list[HeldLock]:
        """All locks of living owners, and what these wait for; in no particular order."""
        found = []
        with self._reading() as records:
            lives = _Lives(records, self._presence)
            for key, value in _all(records, _RESOURCE, _RESOURCES_END):
                for holder, mask in _HOLDER.iter_unpack(value):
                    life = lives.of(holder)
                    if life is not None:
                        found.append(HeldLock(holder, life.pid, key[1:], modes_of(mask), True))
            for key, _value in _all(records, _OWNERS, _OWNERS_END):
                life = lives.of(key[1:])
                if life is not None and life.holders:
                    waits = HeldLock(key[1:], life.pid, life.resource, [Mode(life.mode)], False, life.holders)
                    found.append(waits)
        return found


def _way(came: dict[bytes, Wait], owner: bytes) -> list[Wait]:
    """The edges by which `owner` was come to from itself, in their order."""
    way = [came[owner]]
    while way[-1].owner != owner:
        way.append(came[way[-1].owner])
    return way[::-1]


def _all(records: Records, start: bytes, stop: bytes, size: int = 1024) -> Iterator[tuple[bytes, bytes]]:
    while True:
        keys, values = records.batch(start, stop, size)
        yield from zip(keys, values, strict=True)
        if len(keys) < size:
            return
        start = keys[-1] + b"\x00"


class _Lives:
    """Which owners live, each found out once: for one look at the records."""

    __slots__ = ("_known", "_presence", "_processes", "_records")

    def __init__(self, records: Records, presence: Presence) -> None:
        self._records = records
        self._presence = presence
        self._known: dict[bytes, _Life | None] = {}
        self._processes: dict[tuple[int, int], bool] = {}

    def has(self, owner: bytes) -> bool:
        """Whether `owner` lives."""
        return self.of(owner) is not None

    def of(self, owner: bytes) -> _Life | None:
        """The record of an owner that lives."""
        if owner not in self._known:
            value = self._records.get(_OWNERS + owner)
            lives = value is not None and self.process(owner) and not self._has_ended(owner)
            self._known[owner] = _decode_life(value) if value is not None and lives else None
        return self._known[owner]

    def _has_ended(self, owner: bytes) -> bool:
        slot, _started, _mark, number = _OWNER.unpack(owner)
        return self._presence.has_ended(slot, number)

    def beyond(self, dead: bytes) -> bytes:
        """Above all owners of the same process that are seen to be dead as this one is; none between them lives."""
        slot, started, mark, number = _OWNER.unpack(dead)
        if not self.process(dead):
            return _OWNER.pack(slot, started, mark, _LAST_NUMBER) + b"\x00"
        return _OWNER.pack(slot, started, mark, max(number, self._presence.last_ended(slot)) + 1)

    def process(self, owner: bytes) -> bool:
        """Whether the process of `owner` lives."""
        slot, started, _mark, _number = _OWNER.unpack(owner)
        if (slot, started) not in self._processes:
            self._processes[slot, started] = self._presence.is_owned(slot, started)
        return self._processes[slot, started]


class _Sorted:
    """Records in memory: a dictionary, with its keys in order. An interrupt may come between the two: whatever is in
    order has its value, and what is not can be put or deleted all the same."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        self.get: Callable[[bytes], bytes | None] = self._values.get

    def put(self, key: bytes, value: bytes, /) -> None:
        self._values[key] = value
        if not self._is_in_order(key):
            insort(self._keys, key)

    def delete(self, key: bytes, /) -> None:
        if self._is_in_order(key):
            del self._keys[bisect_left(self._keys, key)]
        self._values.pop(key, None)

    def _is_in_order(self, key: bytes) -> bool:
        at = bisect_left(self._keys, key)
        return at < len(self._keys) and self._keys[at] == key

    def batch(self, start: bytes, stop: bytes, limit: int) -> tuple[list[bytes], list[bytes]]:
        first = bisect_left(self._keys, start)
        keys = self._keys[first : min(first + limit, bisect_left(self._keys, stop))]
        return keys, [self._values[key] for key in keys]


class MemoryLockTable(LockTable):
    """The lock table of a store in memory."""

    def __init__(self, presence: Presence) -> None:
        super().__init__(presence)
        self.forked()
        begin_anew_in_child(self)

    def forked(self) -> None:
        """In a child, which has a store of its own now: the transactions that held something are its parent's."""
        self._guard = threading.RLock()
        self._records = _Sorted()
        self._presence.say_no_locks()

    @contextmanager
    def _using(self) -> Iterator[Records]:
        with self._guard:
            yield self._records

    def _reading(self) -> AbstractContextManager[Records]:
        return self._using()

    def _writing(self) -> AbstractContextManager[Records]:
        return self._using()
