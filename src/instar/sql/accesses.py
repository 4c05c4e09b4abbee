"""Accesses compiled: a table's rows by key, by range, by index, as generators over a frame."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any

from msgspec.structs import replace

from instar.catalog.layouts import Layouts
from instar.encoding import keys
from instar.sql import tree
from instar.sql.execution import BudgetSpent, ExecutionContext, Row
from instar.sql.expressions import Compiler, Frame, FrameLayout, Scope, Subqueries
from instar.sql.functions.strings import like_beginning
from instar.sql.plan import Access, KeyPath, is_single
from instar.sql.tree import Expr
from instar.tables.index import IndexReader
from instar.tables.rowset import TableReader
from instar.tables.view import END, RowVersion, View

Source = Callable[[Frame], Iterator[Row]]
Ranges = Callable[[Frame], list[tuple[bytes, bytes]]]
Limit = Callable[[bytes, bytes], tuple[bytes, bytes]]

_WHOLE = (b"", END)
# So many rows of one scan, less one, go without a look at whether the statement is to end.
_BETWEEN_CHECKS = 1023


class RangeCompiler:
    """Key paths to the byte ranges that they mean for a frame."""

    def __init__(self, layout: FrameLayout, subqueries: Subqueries | None) -> None:
        self._layout = layout
        self._subqueries = subqueries

    def ranges(self, access: Access) -> Ranges:
        """The ranges of encoded keys, disjoint and in key order; none where a value is NULL."""
        path, table = access.path, access.table
        if not path.restricts:
            return lambda p: [_WHOLE]
        descending = _descending(path)
        types = [table.columns[ordinal].type for ordinal in path.columns]
        width = len(path.equal)
        prefixes = self._prefixes(path, keys.compile_encoder(types[:width], descending[:width]))
        limit = _trimmed_primary if path.index is None else _untouched
        if path.like is not None:
            return self._beginning(path.like, prefixes, descending[width], limit)
        if path.low is None and path.high is None:
            return lambda p: [limit(prefix, keys.successor(prefix)) for prefix in prefixes(p)]
        return self._bounded(path, prefixes, types[width], descending[width], limit)

    def keys(self, access: Access) -> Callable[[Frame], list[bytes]]:
        """The primary keys that a unique path over the primary key names; none where a value is NULL."""
        types = [access.table.columns[ordinal].type for ordinal in access.path.columns]
        prefixes = self._prefixes(access.path, keys.compile_encoder(types, [False] * len(types)))
        # Longer keys cannot have been stored, and the store could not even look for them.
        return lambda p: [key for key in prefixes(p) if len(key) <= keys.MAX_PRIMARY_KEY_BYTES]

    def _prefixes(self, path: KeyPath, encode: Callable[[Sequence[Any]], bytes]) -> Callable[[Frame], list[bytes]]:
        if all(is_single(values) for values in path.equal):
            single = self._row([values[0] for values in path.equal])

            def one(p: Frame) -> list[bytes]:
                values = single((), p)
                return [] if None in values else [encode(values)]

            return one

        columns = [self._alternatives(values) for values in path.equal]

        def several(p: Frame) -> list[bytes]:
            alternatives = [{value for value in column(p) if value is not None} for column in columns]
            return sorted({encode(values) for values in product(*alternatives)})

        return several

    def _alternatives(self, values: tuple[Expr, ...]) -> Callable[[Frame], Iterable[object]]:
        if isinstance(values[0], tree.InSubquery) and self._subqueries is not None:
            return self._subqueries.members(values[0])
        row = self._row(values)
        return lambda p: row((), p)

    def _beginning(
        self, pattern: Expr, prefixes: Callable[[Frame], list[bytes]], descending: bool, limit: Limit
    ) -> Ranges:
        evaluate = self._row([pattern])

        def ranges(p: Frame) -> list[tuple[bytes, bytes]]:
            (value,) = evaluate((), p)
            if not isinstance(value, str):  # NULL
                return []
            beginning = like_beginning(value)
            return [limit(*keys.text_range(prefix, beginning, descending)) for prefix in prefixes(p)]

        return ranges

    def _bounded(
        self,
        path: KeyPath,
        prefixes: Callable[[Frame], list[bytes]],
        type_: Any,
        descending: bool,
        limit: Limit,
    ) -> Ranges:
        bounds = [bound for bound in (path.low, path.high) if bound is not None]
        evaluate = self._row([bound.expr for bound in bounds])
        low_inclusive = path.low is None or path.low.inclusive
        high_inclusive = path.high is None or path.high.inclusive
        names = [name for name, bound in (("low", path.low), ("high", path.high)) if bound is not None]

        def ranges(p: Frame) -> list[tuple[bytes, bytes]]:
            values = evaluate((), p)
            if None in values:
                return []
            given = dict(zip(names, values, strict=True))
            found = []
            for prefix in prefixes(p):
                start, stop = keys.key_range(
                    prefix,
                    type_,
                    descending,
                    low=given.get("low"),
                    low_inclusive=low_inclusive,
                    high=given.get("high"),
                    high_inclusive=high_inclusive,
                )
                if start < stop:
                    found.append(limit(start, stop))
            return found

        return ranges

    def _row(self, exprs: Sequence[Expr]) -> Callable[[Row, Frame], Row]:
        return Compiler(Scope({}), self._layout, self._subqueries).row(exprs)


def _descending(path: KeyPath) -> list[bool]:
    if path.index is None:
        return [False] * len(path.columns)
    return [part.descending for part in path.index.columns]


def _trimmed_primary(start: bytes, stop: bytes) -> tuple[bytes, bytes]:
    """The range cut to what the store can look for; no stored key is longer, so it holds the same keys."""
    longest = keys.MAX_PRIMARY_KEY_BYTES
    return (
        start if len(start) <= longest else start[:longest] + b"\x00",
        stop if len(stop) <= longest else stop[:longest] + b"\x00",
    )


def _untouched(start: bytes, stop: bytes) -> tuple[bytes, bytes]:
    """A range of whole index keys: the reader of the index knows which entries are cut."""
    return start, stop


def access_source(access: Access, layout: FrameLayout, subqueries: Subqueries | None, layouts: Layouts) -> Source:
    """The rows of an access before its filter, counted against the budget of the execution."""
    compiler = RangeCompiler(layout, subqueries)
    execution = layout.execution
    if access.others:
        return _united(access, compiler, execution, layouts)
    if access.path.index is None and access.path.unique:
        return _lookups(access, compiler.keys(access), execution, layouts)
    ranges = compiler.ranges(access)
    reverse = access.path.reverse
    reader = _reader(access, layouts)
    seen = _other_view(access)

    def plain(p: Frame) -> Iterator[Row]:
        context: ExecutionContext = p[execution]  # type: ignore[assignment]  # the frame's layout says so
        context.check_cancel()
        found = ranges(p)
        view = context.view if seen is None else seen(context)
        for start, stop in reversed(found) if reverse else found:
            for row in reader.scan(view, start, stop, reverse=reverse, early=access.early):
                context.remaining -= 1
                if context.remaining < 0:
                    raise BudgetSpent
                if not context.remaining & _BETWEEN_CHECKS:
                    context.check_cancel()
                yield row

    def versions(p: Frame) -> Iterator[Row]:
        context: ExecutionContext = p[execution]  # type: ignore[assignment]  # the frame's layout says so
        context.check_cancel()
        found = ranges(p)
        view = context.view if seen is None else seen(context)
        for start, stop in reversed(found) if reverse else found:
            for number, version in enumerate(reader.scan_versions(view, start, stop, reverse=reverse)):
                if not number & _BETWEEN_CHECKS:
                    context.check_cancel()
                yield _with_version(version)

    return versions if access.versions else plain


def _reader(access: Access, layouts: Layouts) -> TableReader | IndexReader:
    if access.path.index is None:
        return TableReader(access.table, access.ordinals, layouts, access.reads)
    return IndexReader(access.table, access.path.index, access.ordinals, layouts, access.reads)


def _united(access: Access, compiler: RangeCompiler, execution: int, layouts: Layouts) -> Source:
    """By one path after the other, without the rows that one before has given."""
    single = [replace(access, path=path, others=()) for path in (access.path, *access.others)]
    parts = [(compiler.ranges(part), _reader(part, layouts)) for part in single]
    seen = _other_view(access)

    def rows(p: Frame) -> Iterator[Row]:
        context: ExecutionContext = p[execution]  # type: ignore[assignment]  # the frame's layout says so
        context.check_cancel()
        view = context.view if seen is None else seen(context)
        given: set[bytes] = set()
        for ranges, reader in parts:
            for start, stop in ranges(p):
                for version in reader.scan_versions(view, start, stop):
                    if version.key not in given:
                        given.add(version.key)
                        context.touch(1)
                        yield _with_version(version) if access.versions else version.values

    return rows


def _other_view(access: Access) -> Callable[[ExecutionContext], View] | None:
    """What the access reads by, if that is not what the statement does: a level of its own, or without waiting for the
    locks of rows that the statement is to lock itself."""
    level = access.level
    if level is not None:
        return lambda context: context.view_at(level)
    return (lambda context: context.view.unguarded()) if access.versions else None


def _lookups(access: Access, wanted: Callable[[Frame], list[bytes]], execution: int, layouts: Layouts) -> Source:
    reader = TableReader(access.table, access.ordinals, layouts, access.reads)
    reverse = access.path.reverse
    seen = _other_view(access)

    def lookups(p: Frame) -> Iterator[Row]:
        context: ExecutionContext = p[execution]  # type: ignore[assignment]  # the frame's layout says so
        context.check_cancel()
        found = wanted(p)
        context.touch(len(found))
        view = context.view if seen is None else seen(context)
        if len(found) == 1:
            version = reader.get_version(view, found[0])
            if version is not None:
                yield _with_version(version) if access.versions else version.values
            return
        for version in reader.get_many(view, found[::-1] if reverse else found):
            yield _with_version(version) if access.versions else version.values

    return lookups


def _with_version(version: RowVersion) -> Row:
    """A row for DML, or to be locked: its columns, then plan.KEY_ORDINAL and plan.BASE_ORDINAL."""
    return (*version.values, version.key, version.base)
