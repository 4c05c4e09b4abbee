"""Many byte strings in one buffer: what bulk reads hand on, so that nothing is made per row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from instar.errors import LIMIT_EXCEEDED, Error, error

Array = npt.NDArray[Any]

# Arrow's offsets have 31 bits.
_MOST_BYTES = 2**31


class Joined(NamedTuple):
    """Byte strings in one buffer: string i is buffer[starts[i]:ends[i]]. They lie in it in any order, gaps between
    them; `stride` is their common size if they are adjacent, in order and of one size, else 0."""

    buffer: Array  # of bytes (u1)
    starts: Array  # i8, as are the ends
    ends: Array
    stride: int = 0
    # Of stored rows, where somebody has looked at them already: `layout id << 8 | flags` of each, u4.
    tags: Array | None = None

    def shortest(self) -> int:
        """The length of the shortest string; there must be one."""
        return self.stride or int((self.ends - self.starts).min())

    def ascending(self) -> bool:
        """Whether the strings lie in the buffer in their order."""
        return bool(self.stride) or bool((self.starts[1:] >= self.ends[:-1]).all())

    def parts(self, offset: int, dtype: np.dtype[Any]) -> Array:
        """What stands at `offset` in each string, as an array; every string must reach so far."""
        if not len(self.starts):
            return np.empty(0, dtype)
        if self.stride:
            return np.ndarray((len(self.starts),), dtype, self.buffer, offset, (self.stride,))
        size = dtype.itemsize
        everywhere = np.ndarray((len(self.buffer) - size + 1,), f"V{size}", self.buffer, 0, (1,))
        gathered: Array = everywhere[self.starts + offset].view(dtype)
        return gathered

    def select(self, index: Array | slice) -> Joined:
        """The strings at `index`."""
        tags = None if self.tags is None else self.tags[index]
        return Joined(self.buffer, self.starts[index], self.ends[index], 0, tags)

    def replaced(self, index: Array, values: Sequence[bytes]) -> Joined:
        """With `values` in place of the strings at `index`; 54000 if that makes a buffer of 2 GiB."""
        if not values:
            return self
        more = join_values(values)
        begin = len(self.buffer)
        if begin + len(more.buffer) >= _MOST_BYTES:
            raise _too_large()
        starts, ends = self.starts.copy(), self.ends.copy()
        starts[index], ends[index] = more.starts + begin, more.ends + begin
        return Joined(np.concatenate([self.buffer, more.buffer]), starts, ends)

    def value(self, position: int) -> bytes:
        """One string."""
        return self.buffer[self.starts[position] : self.ends[position]].tobytes()

    def values(self) -> list[bytes]:
        """The strings one by one."""
        data = self.buffer.tobytes()
        return [data[start:end] for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True)]


def join_values(values: Sequence[bytes]) -> Joined:
    """Join byte strings; 54000 if they have 2 GiB together."""
    buffer = b"".join(values)
    if len(buffer) >= _MOST_BYTES:
        raise _too_large()
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    ends = np.cumsum(lengths)
    stride = int(lengths[0]) if len(values) and bool((lengths == lengths[0]).all()) else 0
    return Joined(np.frombuffer(buffer, np.uint8), ends - lengths, ends, stride)


def _too_large() -> Error:
    return error(LIMIT_EXCEEDED, "a batch of rows takes more than 2 GiB")
