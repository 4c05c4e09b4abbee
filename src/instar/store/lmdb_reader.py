"""Views of the lmdb engine: one read transaction of LMDB each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Protocol, Self

import lmdb

from instar.store.blocks import Block, block_of
from instar.store.cursors import SHORT, batch_of_range, read_head, scan_range
from instar.store.cuts import Cut
from instar.store.header import HEADER_KEY, Head
from instar.store.lmdb_errors import closed, translate
from instar.store.pages import PageFile, Tree, UnreadablePages


class Environment(Protocol):
    """Of the environment: the newest state known, with the number of LMDB's transaction; the file by pages; whether it
    is being closed."""

    newest: tuple[int, Head]
    pages: PageFile
    closing: bool

    def learn(self, transaction: Any) -> Head: ...


class LmdbReader:
    """A read transaction. `get` is LMDB's own function: nothing stands between."""

    __slots__ = ("_environment", "_transaction", "catalog_version", "get", "timestamp", "watermark")

    get: Callable[[bytes], bytes | None]

    def __init__(self, transaction: Any, environment: Environment) -> None:
        self._transaction = transaction
        self._environment = environment
        self.get = transaction.get
        known, head = environment.newest
        if transaction.id() != known:
            head = environment.learn(transaction)
        self.timestamp, _log_end, header = head
        self.catalog_version = header.catalog_version
        self.watermark = header.watermark

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """As in `View`."""
        return scan_range(self._transaction.cursor(), start, stop, reverse)

    def batch(self, start: bytes, stop: bytes, limit: int, *, reverse: bool = False) -> tuple[list[bytes], list[bytes]]:
        """As in `View`."""
        return batch_of_range(self._transaction.cursor(), start, stop, limit, reverse)

    def block(self, start: bytes, stop: bytes, size: int) -> Block:
        """As in `Reader`: by whole pages, unless the range is short or the pages cannot be read."""
        transaction = self._transaction
        cursor = transaction.cursor()
        pairs = list(islice(scan_range(cursor, start, stop, False), SHORT))
        if len(pairs) < SHORT:
            return block_of(pairs, size)
        try:
            return self._tree().block(start, stop, size)
        except UnreadablePages:
            return block_of(scan_range(cursor, start, stop, False), size)

    def cut(self, start: bytes, stop: bytes, parts: int) -> Cut | None:
        """As in `Reader`: by the pages, if they can be read."""
        try:
            return self._tree().cut(start, stop, parts)
        except UnreadablePages:
            return None

    def _tree(self) -> Tree:
        """The pages that the transaction sees. UnreadablePages."""
        cursor = self._transaction.cursor()
        cursor.last()
        return self._environment.pages.tree(self._transaction.id(), HEADER_KEY, self.get(HEADER_KEY), cursor.key())

    @property
    def number(self) -> int:
        """Of LMDB's transaction that has left what is seen."""
        return int(self._transaction.id())

    def head(self) -> Head:
        """The whole of what the header and the log's end say."""
        return read_head(self._transaction)

    def close(self) -> None:
        """As in `Reader`."""
        self._transaction.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, caught: object, _traceback: object) -> None:
        self._transaction.abort()
        if isinstance(caught, lmdb.Error):
            raise (closed() if self._environment.closing else translate(caught)) from caught
