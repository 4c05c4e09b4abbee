"""The mutex of LMDB's writers, as far as it can be seen without asking for it: whether a process has it now.

Who waits for a mutex sleeps, and is woken 50 to 150 us after it was let go of, mostly by a processor that has to wake
up itself; a commit has the section for 5 to 10. So while other processes commit, a foreground commit looks at the mutex
for some time before it asks for it. Two processes that commit without a pause came to 170,000 commits a second so
instead of 112,000, of which one in a hundred took more than 20 us instead of 150 (docs/benchmarks-history.md).

LMDB does not tell. But the mutex is a robust futex in the file that all its processes map: a word of it has the number
of the thread that holds it, as the kernel has to know it (futex(2), get_robust_list(2)). Which word, is seen by holding
it. Where none is found, nobody looks.

The file must not be opened for that: whoever closes it, by whatever descriptor, lets go of all locks that his process
has on it (fcntl(2)), by which LMDB knows that a process is there. So LMDB's own mapping of it is mapped once more.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable, Sequence
from threading import get_native_id
from time import perf_counter_ns
from typing import Any

# Some commits take so long, and a schema change. Who has it for longer is in no hurry, or has no processor: then it is
# time to give up one's own.
SPIN_NS = 100_000
# Of the word, the thread's number; the other bits say that somebody waits, or that the holder has died.
_HOLDER = 0x3FFF_FFFF
_MAYMOVE = 1  # MREMAP_MAYMOVE of sys/mman.h


class WriterMutex:
    """The mutex as seen in `words` of the file, of which it is the one at `place`."""

    __slots__ = ("_place", "_words")

    def __init__(self, words: Sequence[int], place: int) -> None:
        self._words = words
        self._place = place

    @property
    def is_held(self) -> bool:
        """Whether a thread of any process has it."""
        return self._words[self._place] & _HOLDER != 0

    def spin(self, now: Callable[[], int] = perf_counter_ns) -> None:
        """Wait until nobody has it, but not for longer than it pays. It keeps the interpreter's lock: not while another
        thread of this process may have it."""
        words, place = self._words, self._place
        if not words[place] & _HOLDER:
            return
        until = now() + SPIN_NS
        while words[place] & _HOLDER and now() < until:
            pass


def find_writer_mutex(lock_file: str, begin: Callable[..., Any]) -> WriterMutex | None:
    """The mutex in LMDB's lock file, which this process maps and `begin` waits for and takes (it begins a transaction
    that may write); None if it cannot be seen. OSError where there is no such file or system, and what `begin`
    raises."""
    page = _first_page(lock_file)
    if page is None:
        return None
    words = memoryview(page).cast("B").cast("I")
    own = get_native_id()
    transaction = begin(None, None, True)
    try:
        # A process' number, which its first thread has too, stands there for its readers.
        held = [place for place, word in enumerate(words) if word & _HOLDER == own]
    finally:
        transaction.abort()
    # The GNU C library has the number twice, of which the kernel's comes first.
    found = next((place for place in held if words[place] & _HOLDER != own), None)
    return None if found is None else WriterMutex(words, found)


def _first_page(path: str) -> ctypes.Array[ctypes.c_char] | None:
    """The first page of a file that this process maps to be shared, mapped once more for as long as somebody has it;
    None if it cannot be."""
    inode = str(os.stat(path).st_ino)
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        found = [fields for fields in map(str.split, maps) if fields[4] == inode and int(fields[2], 16) == 0]
    shared = [int(fields[0].partition("-")[0], 16) for fields in found if fields[1].endswith("s")]
    if not shared:
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mremap.restype = ctypes.c_void_p
    libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    # Of a length of 0 it is not moved but mapped again (mremap(2)).
    address = libc.mremap(shared[0], 0, mmap.PAGESIZE, _MAYMOVE)
    if address is None or address == ctypes.c_void_p(-1).value:
        return None
    page = (ctypes.c_char * mmap.PAGESIZE).from_address(address)
    weakref.finalize(page, libc.munmap, address, mmap.PAGESIZE).atexit = False
    return page
