"""Rows in older layouts that a query comes by, and that it may put into the newest (thesis §3.2.1, policy `read`)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping

from instar.catalog.descriptors import Table

_TAG = struct.Struct("<I").pack
_TAG_PLACE = slice(12, 16)  # of `layout id << 8 | flags` in a stored row


class OlderRows:
    """Up to `room` rows of some tables, by store key, as they were read: the bytes say later whether they still are so.

    What is noted was visible to the query's snapshot, so that no flags are set in its tag.
    """

    __slots__ = ("_newest", "found", "room")

    def __init__(self, tables: Mapping[int, Table], room: int) -> None:
        self._newest = {number: _TAG(table.layout.id << 8) for number, table in tables.items()}
        self.found: list[tuple[int, bytes, bytes]] = []
        self.room = room

    def note(self, table: int, key: bytes, value: bytes) -> None:
        """A row of the table: its store key and its stored bytes."""
        if self.room and value[_TAG_PLACE] != self._newest.get(table, value[_TAG_PLACE]):
            self.found.append((table, key, value))
            self.room -= 1

    def note_all(self, table: int, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """The same of many rows."""
        if self.room and table in self._newest:
            for key, value in rows:
                self.note(table, key, value)
                if not self.room:
                    return

    def __iter__(self) -> Iterator[tuple[int, bytes, bytes]]:
        return iter(self.found)
