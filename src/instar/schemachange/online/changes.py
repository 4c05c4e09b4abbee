"""The sources' log as the rules read it: whole rows before and after, commit by commit.

A source is *logged whole* while others are made of it. A row's log record says what its commit made of it: there is one
at most per row and commit. Only a row that was deleted and inserted again by one commit, with another content under the
same key, comes as two changes: it is another row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from instar import errors
from instar.catalog.descriptors import Layout, Table
from instar.catalog.layouts import decode_layout, layout_key
from instar.encoding.rows import BODY_OFFSET
from instar.schemachange.online.overlay import Readable
from instar.schemachange.online.shapes import column_places, comparable
from instar.schemachange.stages import Superseded
from instar.store.engine import ROW_HEADER, LogRecord
from instar.tables.resolver import LAYOUT_OFFSET, resolver
from instar.tables.rowset import wanted
from instar.transformations.records import Change, Deleted, Inserted, Row, Source, Updated, choosing


class SourceRows:
    """The rows of a source as the rules see them: all its columns, in the order of `table.columns`."""

    def __init__(self, source: Source, table: Table) -> None:
        self.source = source
        self.table = table
        found = column_places(table)
        # A row's primary key.
        self.key = choosing(tuple([found[column] for column in table.primary_key]))
        # A row that went before a column of it was made may have no value of that; nothing here asks for it.
        self._wanted = [wanted(column)._replace(lenient=True) for column in table.columns]
        self._comparable = comparable(table.columns)
        self._decoders: dict[int, Callable[[bytes], Row]] = {}

    def row(self, stored: bytes, view: Readable) -> Row:
        """A row as stored, in whichever layout; one that came into being a moment ago is in `view` (rule 26)."""
        layout = ROW_HEADER.unpack_from(stored)[2] >> 8
        decode = self._decoders.get(layout)
        if decode is None:
            decode = self._decoders[layout] = resolver(self.layout(layout, view), self._wanted)
        return self._comparable(decode(stored))

    def reader(self, columns: Sequence[int]) -> Callable[[bytes, Readable], Row]:
        """A function from a stored row and a view, as of `row`, to the values of some columns, by their ids."""
        found = column_places(self.table)
        wants = [self._wanted[found[column]] for column in columns]
        compared = comparable([self.table.columns[found[column]] for column in columns])
        decoders: dict[bytes, Callable[[bytes], Row]] = {}

        def read(stored: bytes, view: Readable) -> Row:
            tag = stored[LAYOUT_OFFSET:BODY_OFFSET]
            decode = decoders.get(tag)
            if decode is None:
                layout = self.layout(int.from_bytes(tag, "little") >> 8, view)
                decode = decoders[tag] = resolver(layout, wants)
            return compared(decode(stored))

        return read

    def updated(self, record: LogRecord, view: Readable) -> Updated:
        """The change that the record of an update tells of."""
        assert record.before is not None, "an update has a row before it"
        assert record.after is not None, "and one after it"
        after = self.row(record.after, view)
        return Updated(self.source, self.key(after), self.row(record.before, view), after, record.timestamp)

    def layout(self, layout: int, view: Readable) -> Layout:
        """The layout of that id, as of `row`."""
        if layout == self.table.layout.id:
            return self.table.layout
        record = view.get(layout_key(self.table.id, layout))
        if record is None:
            raise errors.error(errors.DATA_CORRUPTED, f'table "{self.table.name}" has no layout {layout}')
        return decode_layout(record)


class Translator:
    """Log records to changes of the sources."""

    def __init__(self, sources: Sequence[SourceRows]) -> None:
        self._sources = {rows.table.id: rows for rows in sources}
        self.tables = frozenset(self._sources)  # by their ids

    def commits(self, records: Iterable[LogRecord]) -> Iterator[tuple[int, list[LogRecord]]]:
        """For each commit that touches a source its timestamp and its records of sources, all of them: a commit is
        applied as a whole, however large."""
        sources = self._sources
        commit: list[LogRecord] = []
        timestamp = 0
        for record in records:
            if record.table not in sources:
                continue
            if record.timestamp != timestamp:
                if commit:
                    yield timestamp, commit
                timestamp, commit = record.timestamp, []
            commit.append(record)
        if commit:
            yield timestamp, commit

    def changes(self, commit: Iterable[LogRecord], view: Readable) -> list[Change]:
        """The changes that records of one commit tell of; `view` has the layouts. Superseded if a source has got other
        rows altogether."""
        return [change for record in commit for change in self._translated(record, view)]

    def _translated(self, record: LogRecord, view: Readable) -> list[Change]:
        rows = self._sources[record.table]
        if record.replaced is not None:
            raise Superseded(f'the rows of table "{rows.table.name}" were replaced')
        before = None if record.before is None else rows.row(record.before, view)
        source, timestamp = rows.source, record.timestamp
        if record.deleted:
            assert before is not None, "the deletion of a row that was not there"
            return [Deleted(source, rows.key(before), before, timestamp)]
        if record.after is None:
            raise errors.error(
                errors.DATA_CORRUPTED,
                f'log record {record.timestamp}/{record.sequence} has not got the new row of table "{rows.table.name}"',
            )
        after = rows.row(record.after, view)
        key = rows.key(after)
        if before is None:
            return [Inserted(source, key, after, timestamp)]
        if record.renewed:
            return [Deleted(source, rows.key(before), before, timestamp), Inserted(source, key, after, timestamp)]
        return [Updated(source, key, before, after, timestamp)]
