"""The tail of the log: what the commit of a switch applies to the targets, so that they are as new as it is itself.

Most of it is computed before the commit, from the position of the propagation up to a reader's timestamp, without any
of it being put. What has been committed between that and the switch is applied behind the commit's fence, in the atomic
section, where nothing can follow it. Nobody commits meanwhile, so it is refused if it is much.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext

from instar.schemachange.online.checks import Contradictions, check_all
from instar.schemachange.online.following import Following
from instar.schemachange.online.overlay import Overlay, Put, Readable
from instar.schemachange.online.split_target import StoredSplit
from instar.schemachange.online.transformation import OnlineJoin, OnlineSplit, Stored
from instar.store.apply import snapshot_too_old
from instar.store.engine import LogRecord, Refused, View
from instar.store.log import TABLE, decode, log_key, tables_told

_TOO_MANY_ROWS = "too many rows are to be written"
# What is computed in the atomic section takes twenty times as long there as what is only put: so a tenth of the rows
# may be, or some; but more with each time that it was refused, so that writers cannot put the switch off for ever.
_LATE_SHARE, _LEAST_LATE = 10, 10
# Keys that may be read or written per row that may be: a row has some index entries, and is looked for by them.
_KEYS_PER_ROW = 64


class Behind(Refused):
    """The switch would write or read more than it may: the log has to be propagated once more."""


class Tail:
    """The tail of what `following`, which has come to an end, has left.

    `puts` belong to the commit, and so does what `complete` gives for the view that the commit's own `complete` is
    called with, which comes after. That writes nothing, and may be asked again if the commit is tried again.
    Records of S that come into doubt are checked here, too. Behind, Superseded, 23505 or 72000 if the switch is not
    possible now, from either.
    """

    def __init__(self, following: Following, view: View, *, refused: int = 0) -> None:
        """`refused`: how often the switch was refused in a row since the log had gone on meanwhile."""
        if view.watermark > following.position:
            raise snapshot_too_old(following.position, view.watermark)
        self._propagator = following.propagator
        self._transformation = following.transformation
        self._left = self._transformation.made.pause_rows  # rows of the targets that may be written still
        self._late = max(self._left // max(_LATE_SHARE - refused, 1), _LEAST_LATE)
        self._row_ids: list[int] = []
        if isinstance(self._transformation, OnlineJoin):  # no sequence can be asked in the atomic section
            self._row_ids = [self._transformation.new_row_id() for _ in range(self._late)]
        self._overlay = _Bounded(view, self._left)
        target = self._transformation.target(self._overlay)
        self._apply(target, view, following.position)
        self._left -= target.rows
        self._upto = view.timestamp
        self.puts = self._overlay.taken()

    def complete(self, view: View) -> list[Put]:
        """What is to be put besides, by the state that the commit is judged on."""
        self._overlay.view = view
        self._left = min(self._left, self._late)
        over = _Bounded(self._overlay, self._left)
        self._apply(self._target(over, self._row_ids.copy()), view, self._upto)
        return over.taken()

    def _target(self, store: Overlay, row_ids: list[int]) -> Stored:
        """The target over an overlay; new records take of these row ids."""

        def new_row_id() -> int:
            if not row_ids:
                raise Behind(_TOO_MANY_ROWS)
            return row_ids.pop()

        if isinstance(self._transformation, OnlineJoin):
            return self._transformation._replace(new_row_id=new_row_id).target(store)
        return self._transformation.target(store)

    def _apply(self, target: Stored, view: View, after: int) -> None:
        """Apply what was committed after a timestamp, as far as the view sees."""
        for _ in self._propagator.apply(target, self._records(view, after), view):
            if target.rows > self._left:
                raise Behind(_TOO_MANY_ROWS)
        split = self._transformation
        if isinstance(target, StoredSplit) and isinstance(split, OnlineSplit):
            for _ in check_all(split, target, view.timestamp, lambda: nullcontext(view), Contradictions(split)):
                pass

    def _records(self, view: View, after: int) -> Iterator[LogRecord]:
        """The log of the sources; as soon as it is seen to be too long, it is not read on."""
        changes, told = 0, tables_told(self._propagator.tables)
        for key, value in view.scan(log_key(after + 1, 0), log_key(view.timestamp + 1, 0)):
            for record in decode(key, value) if value[TABLE] in told else ():
                changes += 1
                if changes > self._left:
                    raise Behind("too many changes are to be applied")
                yield record


class _Bounded(Overlay):
    """An overlay that a commit on many rows is stopped by while it is applied, since everybody waits for it: one change
    may meet any number of them."""

    def __init__(self, view: Readable, rows: int) -> None:
        super().__init__(view)
        self._keys_left = (rows + 1) * _KEYS_PER_ROW

    def get(self, key: bytes) -> bytes | None:
        """As in `Overlay`."""
        self._count()
        return super().get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """As in `Overlay`."""
        return [self.get(key) for key in keys]

    def put_many(self, values: Mapping[bytes, bytes]) -> None:
        """As in `Overlay`."""
        for key, value in values.items():
            self.put(key, value)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """As in `Overlay`."""
        for pair in super().scan(start, stop):
            self._count()
            yield pair

    def _write(self, key: bytes, value: bytes | None) -> None:
        self._count()
        super()._write(key, value)

    def _count(self) -> None:
        self._keys_left -= 1
        if self._keys_left < 0:
            raise Behind(_TOO_MANY_ROWS)
