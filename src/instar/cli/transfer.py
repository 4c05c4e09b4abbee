"""Import and export of CSV and Parquet files: Arrow batches from end to end, never a row at a time.

CSV has a header; an empty field is NULL and "" the empty string, as in PostgreSQL's COPY.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from instar import errors
from instar.catalog.catalog import PUBLIC_SCHEMA
from instar.catalog.descriptors import State, Table
from instar.catalog.system_views import user_columns
from instar.cli import csv_columns
from instar.cli.csv_columns import is_bytes, is_open_quote, plain_type, read_column, written_column
from instar.cli.csv_reading import COMPRESSION, csv_reader, ending, name_row, not_utf8, require_text
from instar.cli.output import file_error
from instar.cli.parquet_columns import require_values
from instar.cli.progress import Advance, progress_bars
from instar.cli.runner import cleaning_up, interruptible
from instar.database.bulk import estimated_table_rows, insert_arrow, python_values
from instar.database.scan import table_rows
from instar.pipeline.transfer import export
from instar.sql.binder.deparse import quote_identifier as quoted
from instar.store.directory import DISK_ERRNOS

if TYPE_CHECKING:
    from instar.database import Session
    from instar.dbapi import Connection

_COUNTED_BYTES = 64 << 10  # of a CSV file, from whose lines all are estimated
# From so many rows on a directory of files is written by Spark: it pays for starting it.
EXPORT_SPARK_ROWS = 5_000_000
_BATCH_ROWS = 65_536
_COMMITTED_ROWS = 10_000  # with --in-batches: a transaction that holds nobody up
_SUFFIXES = (".csv", ".parquet")
# What is found wrong of texts when they come to the table: too long, no jsonb, with a zero byte.
_OF_TEXTS = (errors.STRING_TOO_LONG, errors.INVALID_TEXT, errors.CHARACTER_NOT_IN_REPERTOIRE)


class Source(NamedTuple):
    """An opened file: its schema, and its batches, to be read once."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


def file_format(path: Path) -> str:
    """csv or parquet, from the name, behind a suffix of compression. 0A000 for other names."""
    name = path.name.removesuffix(".gz").removesuffix(".zst").lower()
    for suffix in _SUFFIXES:
        if name.endswith(suffix):
            return suffix[1:]
    raise errors.unsupported(f'the format of "{path}" (.csv, .csv.gz, .csv.zst and .parquet are known)')


# --- import ----------------------------------------------------------------------------------------------------------


def import_files(
    connection: Connection, table: str, paths: Sequence[Path], *, create: bool, in_batches: bool = False
) -> int:
    """Append the rows of all files to `table`: all of them or none; returns how many. A directory stands for its files.

    Columns are matched by name; those that the files do not have get their defaults. With `create` the table is made
    first, for the columns of the first file, and does not stay if the import fails. `in_batches`: a commit per batch,
    which passes over rows whose keys are there, so that it can be begun again; 0A000 where rows have none. Errors:
    42703 for a column that the table, or the first file, has not; 57014 after Ctrl-C; 54000 for more
    rows than a transaction takes, where the table has rows already.
    """
    paths = data_files(paths)
    expected = sum(map(estimated_rows, paths))
    session = connection.session
    with ExitStack() as stack:
        bars = stack.enter_context(progress_bars())
        advance = bars.add("import", sum(path.stat().st_size for path in paths))
        wanted = None if create else table_schema(connection, table)
        zone = session.settings.get("timezone")
        first = open_source(paths[0], wanted, stack, advance, zone)
        has_key = _has_key(session, table, first.schema.names)
        if in_batches and not has_key:
            raise _no_key(table)
        if wanted is None:
            wanted = first.schema
            connection.execute(create_statement(table, wanted)).close()
            stack.enter_context(_dropped_on_failure(connection, table))
        check_names(paths[0], first.schema, wanted, table)
        others = (open_source(path, wanted, stack, advance, zone) for path in paths[1:])
        reader = plain_reader(paths, [first], others)
        stack.enter_context(interruptible(session))
        stack.enter_context(_rows_named(session, table, paths, wanted))
        if in_batches:
            return insert_in_batches(session, table, reader)
        try:
            return insert_arrow(session, table, reader, expected=expected, indexed=bars.reached("index ", expected))
        except errors.Error as error:
            if error.sqlstate == errors.LIMIT_EXCEEDED and has_key:
                error.hint = "An import with --in-batches commits as it goes on, and can be begun again."
            raise


@contextmanager
def _dropped_on_failure(connection: Connection, table: str) -> Iterator[None]:
    """A table that was made for an import of which nothing has come does not stay, so that it can be begun again."""
    try:
        yield
    except BaseException:
        with suppress(errors.Error):  # what the import failed of is told
            connection.execute(f"DROP TABLE {quoted(table)}").close()
        raise


@contextmanager
def _rows_named(session: Session, table: str, paths: Sequence[Path], wanted: pa.Schema) -> Iterator[None]:
    """What only the table finds wrong with a value is told with its row: the files are read again."""
    try:
        yield
    except (errors.DataError, errors.ProgrammingError, errors.NotSupportedError) as error:
        if "of the file" in (error.detail or ""):
            raise
        found = _table(session, table)
        zone, columns = session.settings.get("timezone"), () if found is None else found.columns
        for path in paths:
            is_csv = file_format(path) == "csv"
            if is_csv and error.sqlstate not in _OF_TEXTS:
                continue
            with ExitStack() as stack:
                before = 0
                for batch in open_source(path, wanted, stack, lambda _bytes: None, zone).batches:
                    session.check_cancel()
                    if is_csv:
                        csv_columns.require_texts(batch, columns, zone, before)
                    else:
                        require_values(path, batch, columns, zone, before, error)
                    before += batch.num_rows
        raise


def _table(session: Session, name: str) -> Table | None:
    with session.database.store.read() as reader:
        found = session.database.catalog.at(reader).lookup(PUBLIC_SCHEMA, name)
    return found if isinstance(found, Table) else None


def _has_key(session: Session, table: str, given: Sequence[str]) -> bool:
    """Whether a row that comes a second time is known by a key. It is not where the key has a default, which may be
    another by then, or NULL, which is unlike itself."""
    found = _table(session, table)
    if found is None:
        return False
    known = {column.id for column in found.columns if column.visible and column.name in given and not column.nullable}
    unique = (index for index in found.indexes if index.unique and index.state is State.PUBLIC and not index.yields)
    keys = (found.primary_key, *([each.column for each in index.columns] for index in unique))
    return any(known.issuperset(key) for key in keys)


def _no_key(table: str) -> errors.Error:
    refused = errors.unsupported(f'an import in batches into "{table}", whose rows have no key to be passed over by,')
    refused.detail = "It needs a primary key, or unique columns that are NOT NULL, whose values are all in the files."
    refused.hint = "Without --in-batches all rows are imported or none: any number into an empty table."
    return refused


def data_files(paths: Sequence[Path]) -> list[Path]:
    """The files, with the CSV and Parquet files in a directory, in order of their names, in its place.

    58030 for a directory that has none. Hidden files and markers, whose names begin with . and _, are passed over.
    0A000 for pipes and devices: a file is read more than once.
    """
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            if path.exists() and not path.is_file():
                raise errors.unsupported(f'"{path}", which is no regular file')
            found.append(path)
            continue
        inside = sorted(each for each in path.iterdir() if each.name[0] not in "._" and _is_data(each))
        if not inside:
            raise errors.error(errors.IO_ERROR, f'directory "{path}" has no .csv or .parquet files')
        found += inside
    return found


def _is_data(path: Path) -> bool:
    try:
        return path.is_file() and bool(file_format(path))
    except errors.Error:
        return False


def insert_in_batches(session: Session, table: str, reader: pa.RecordBatchReader) -> int:
    """A transaction per batch; rows whose keys are there already are left as they are. Returns how many were new."""
    names = ", ".join(quoted(name) for name in reader.schema.names)
    places = ", ".join("?" for _ in reader.schema.names)
    text = f"INSERT INTO {quoted(table)} ({names}) VALUES ({places}) ON CONFLICT DO NOTHING"
    inserted = 0
    for batch in reader:
        for begin in range(0, batch.num_rows, _COMMITTED_ROWS):
            session.check_cancel()
            part = batch.slice(begin, _COMMITTED_ROWS)
            rows = list(zip(*map(python_values, part.columns), strict=True))
            inserted += session.executemany(text, rows).rowcount
    return inserted


def estimated_rows(path: Path) -> int:
    """About how many rows a file has: what Parquet says of itself; CSV by the length of its first lines."""
    with _reported(path):
        if file_format(path) == "parquet":
            return int(pa.parquet.read_metadata(path).num_rows)
    if path.suffix in COMPRESSION:
        return 0
    with path.open("rb") as file:
        head = file.read(_COUNTED_BYTES)
    return path.stat().st_size * head.count(b"\n") // max(1, len(head))


def table_schema(connection: Connection, table: str) -> pa.Schema:
    """The Arrow schema of a table's rows."""
    with connection.execute(f"SELECT * FROM {quoted(table)} LIMIT 0") as cursor:
        return cursor.fetch_arrow_table().schema


def plain_reader(paths: Sequence[Path], opened: list[Source], others: Iterator[Source]) -> pa.RecordBatchReader:
    """The batches of the source in `opened` and of the others after it, opened when their turn comes.

    All have the columns of the first, by name; uuids are their 16 bytes.
    """
    schema = pa.schema([pa.field(field.name, plain_type(field.type)) for field in opened[0].schema])

    def batches() -> Iterator[pa.RecordBatch]:
        for path, source in zip(paths, itertools.chain(opened, others), strict=True):
            if set(source.schema.names) != set(schema.names):
                (odd, *_) = set(source.schema.names) ^ set(schema.names)
                raise errors.error(errors.UNDEFINED_COLUMN, f'"{odd}" is not a column of both {paths[0]} and {path}')
            for batch in source.batches:
                columns = [batch.column(name) for name in schema.names]
                plain = [getattr(column, "storage", column) for column in columns]
                yield pa.RecordBatch.from_arrays(plain, schema.names).cast(schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def check_names(path: Path, found: pa.Schema, wanted: pa.Schema, table: str) -> None:
    """42703 if the file has a column that the table has not, 42701 if it has one twice."""
    twice = [name for name in found.names if found.names.count(name) > 1]
    if twice:
        raise errors.error(errors.DUPLICATE_COLUMN, f'{path} has column "{twice[0]}" more than once')
    unknown = [name for name in found.names if name not in wanted.names]
    if unknown:
        raise errors.error(
            errors.UNDEFINED_COLUMN,
            f'column "{unknown[0]}" of relation "{table}" does not exist',
            detail=f"It is in the header of {path}.",
        )


def open_source(path: Path, wanted: pa.Schema | None, stack: ExitStack, advance: Advance, zone: str = "UTC") -> Source:
    """Open a file; its columns get the types that `wanted` has for their names. The file is closed with `stack`.

    `zone` is that of times in a CSV file that name none.
    """
    with _reported(path):
        if file_format(path) == "parquet":
            schema, batches = _open_parquet(path, stack, advance)
        else:
            schema, batches = _open_csv(path, wanted, stack, advance, zone)

    def reported() -> Iterator[pa.RecordBatch]:
        with _reported(path):
            yield from batches

    return Source(schema, reported())


def _open_parquet(path: Path, stack: ExitStack, advance: Advance) -> Source:
    size = path.stat().st_size
    file = stack.enter_context(pa.parquet.ParquetFile(path))

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in file.iter_batches(_BATCH_ROWS):
            yield batch
            advance(size * batch.num_rows // max(1, file.metadata.num_rows))

    return Source(file.schema_arrow, batches())


def _open_csv(path: Path, wanted: pa.Schema | None, stack: ExitStack, advance: Advance, zone: str) -> Source:
    require_text(path)
    reader, file = csv_reader(path, wanted, stack)
    if len(reader.schema) == 1:
        # An empty line is a row, of NULL.
        reader, file = csv_reader(path, wanted, stack, ignore_empty_lines=False)
    names = reader.schema.names
    schema = reader.schema if wanted is None else pa.schema(
        [pa.field(name, wanted.field(name).type if name in wanted.names else pa.string()) for name in names]
    )  # fmt: skip

    def batches() -> Iterator[pa.RecordBatch]:
        done = rows = 0
        last = None
        for batch in reader:
            if batch.num_rows:
                last = batch.column(len(names) - 1)[-1]
            columns = [
                read_column(column, field, zone, rows) for column, field in zip(batch.columns, schema, strict=True)
            ]
            rows += batch.num_rows
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
            advance(file.tell() - done)
            done = file.tell()
        value = None if last is None or not pa.types.is_string(last.type) else last.as_py()
        if value is not None and is_open_quote(ending(path), value):
            raise errors.error(errors.BAD_COPY_FILE, f"{path}: unterminated quoted field at the end of the file")

    return Source(schema, batches())


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    """What Arrow finds wrong inside of the file becomes 22P02, names of columns that are no UTF-8 22021.

    What the system says of it (no such file) stays.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        raise not_utf8(path, error.object[error.start]) from None
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        if isinstance(error, pa.ArrowInvalid) and file_format(path) == "csv":
            name_row(path, error)
        first, _, rest = str(error).partition("\n")
        raise errors.error(errors.INVALID_TEXT, f"{path}: {first}", detail=rest or None) from None


# Beside a column that is text in Parquet: the SQL type whose values these are.
TYPE_NOTE = b"instar.type"
_NOTED = re.compile(r"jsonb|numeric|character varying(\([1-9][0-9]{0,7}\))?")

_SQL_TYPES: list[tuple[Callable[[pa.DataType], bool], str]] = [
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int8, "smallint"),
    (pa.types.is_uint8, "smallint"),
    (pa.types.is_int16, "smallint"),
    (pa.types.is_uint16, "integer"),
    (pa.types.is_int32, "integer"),
    (pa.types.is_uint32, "bigint"),
    (pa.types.is_int64, "bigint"),
    (pa.types.is_uint64, "numeric(20,0)"),
    (pa.types.is_float16, "real"),
    (pa.types.is_float32, "real"),
    (pa.types.is_float64, "double precision"),
    (pa.types.is_string, "text"),
    (pa.types.is_large_string, "text"),
    (pa.types.is_string_view, "text"),
    (pa.types.is_null, "text"),
    (is_bytes, "bytea"),
    (pa.types.is_date, "date"),
]


def sql_type(type_: Any) -> str:
    """The SQL type that holds every value of an Arrow type; 0A000 if there is none."""
    if pa.types.is_dictionary(type_):
        return sql_type(type_.value_type)
    if pa.types.is_decimal(type_):
        return f"numeric({type_.precision},{type_.scale})"
    if pa.types.is_timestamp(type_):
        return "timestamp" if type_.tz is None else "timestamptz"
    if isinstance(type_, pa.BaseExtensionType) and type_.extension_name == "arrow.uuid":
        return "uuid"
    for fits, name in _SQL_TYPES:
        if fits(type_):
            return name
    raise errors.unsupported(f"a column of Arrow type {type_}")


def column_type(field: pa.Field[Any]) -> str:
    """The SQL type of a file's column: what an export has noted beside it, if that is one that travels as text."""
    noted = (field.metadata or {}).get(TYPE_NOTE, b"").decode(errors="replace")
    return noted if pa.types.is_string(field.type) and _NOTED.fullmatch(noted) else sql_type(field.type)


def create_statement(table: str, schema: pa.Schema) -> str:
    """CREATE TABLE for the columns of a file."""
    columns = ", ".join(f"{quoted(field.name)} {column_type(field)}" for field in schema)
    return f"CREATE TABLE {quoted(table)} ({columns})"


# --- export ----------------------------------------------------------------------------------------------------------


def export_table(connection: Connection, table: str, path: str) -> int:
    """Write a table to a file as `export_query` does; or, if `path` ends in a slash, to a new directory of files,
    one per key range: on Spark where the table is large. Returns how many rows. 58030 if the directory is there."""
    if not path.endswith("/"):
        return _export_rows(connection, table, Path(path))
    target = Path(path)
    kind = file_format(target)
    check_directory(target)
    database = connection.database
    rows = estimated_table_rows(connection.session, table)
    # Spark's CSV has no line for a row that is nothing but NULL.
    lone = kind == "csv" and len(table_schema(connection, table)) == 1
    if database.in_memory or rows < EXPORT_SPARK_ROWS or target.suffix in COMPRESSION or lone:
        try:
            target.mkdir()
        except FileExistsError:
            raise errors.error(errors.IO_ERROR, f"{target} is there already") from None
        try:
            return _export_rows(connection, table, target / f"part-00000.{kind}{_compression_of(target)}")
        except BaseException:
            target.rmdir()
            raise
    with cleaning_up(), progress_bars() as bars, interruptible(connection.session):
        told = bars.share("export")

        def pulse(share: float) -> None:
            connection.session.check_cancel()
            told(share)

        try:
            return export(database.path, table, str(target), kind, pulse)
        except errors.NotSupportedError:
            _name_nan(connection, table)
            raise


def _compression_of(path: Path) -> str:
    return path.suffix if path.suffix in COMPRESSION else ""


def _export_rows(connection: Connection, name: str, path: Path) -> int:
    """A table goes from the store to the file batch by batch; what a view gives is a query's result."""
    session = connection.session
    found = _table(session, name)
    if found is None:
        return export_query(connection, f"SELECT * FROM {quoted(name)}", path)
    expected = estimated_table_rows(session, name)

    def write(*, numerics_as_text: bool) -> int:
        with table_rows(session, found, numerics_as_text=numerics_as_text) as rows, interruptible(session):
            types = [] if numerics_as_text else [str(column.type) for column in user_columns(found)]
            return _write(Source(rows.schema, rows), path, expected, types)

    try:
        return write(numerics_as_text=False)
    except errors.NotSupportedError:
        if file_format(path) != "csv":
            _name_nan(connection, name)
            raise
    return write(numerics_as_text=True)


def _name_nan(connection: Connection, table: str) -> None:
    """0A000 that names a column of the table which has NaN and no place for it in Arrow, if there is one."""
    columns = table_schema(connection, table)
    names = [quoted(field.name) for field in columns if pa.types.is_decimal(field.type)]
    if names:
        has = " OR ".join(f"{name} = 'NaN'" for name in names)
        query = f"SELECT {', '.join(names)} FROM {quoted(table)} WHERE {has} LIMIT 1"
        with connection.execute(query) as cursor:
            cursor.fetch_arrow_table()


def export_query(connection: Connection, query: str, path: Path) -> int:
    """Write the rows of a query to a file, which is there as a whole or not at all; returns how many.

    The result is held in memory.
    """
    with connection.execute(query) as cursor:
        table = cursor.fetch_arrow_table(nan_as_text=file_format(path) == "csv")
        # All but the length of a varchar; numerics with a precision are told by Arrow's type.
        types = [code if precision is None else "" for _, code, _, _, precision, _, _ in cursor.description or ()]
    return _write(Source(table.schema, iter(table.to_batches(_BATCH_ROWS))), path, table.num_rows, types)


def check_directory(path: Path) -> None:
    """58030 if there is no directory for the file to be made in."""
    if not path.parent.is_dir():
        raise errors.error(errors.IO_ERROR, f'directory "{path.parent}" does not exist')


def _write(source: Source, path: Path, expected: int, types: Sequence[str]) -> int:
    check_directory(path)
    write = _write_parquet if file_format(path) == "parquet" else _write_csv
    # Of a name that nobody else has: neither a file of the user's nor one of another export's.
    unfinished = path.with_name(f"instar-export-{secrets.token_hex(8)}.part")
    with cleaning_up():
        try:
            unfinished.touch(exist_ok=False)
            with progress_bars() as bars:
                rows = write(noted(source, types), unfinished, path.suffix, bars.add("export", expected))
            unfinished.replace(path)
        except OSError as error:
            if error.errno is None:
                raise
            if error.errno == errno.EIO or error.errno not in DISK_ERRNOS:
                raise file_error(error, path) from None
            what = f"the disk is full: {path} could not be written: {os.strerror(error.errno)}"
            raise errors.error(errors.DISK_FULL, what, hint="Make room on the device, or export to another.") from None
        finally:
            unfinished.unlink(missing_ok=True)
    return rows


def noted(source: Source, types: Sequence[str]) -> Source:
    """The rows with their uuids, which travel as 16 bytes and are the only type that does, marked as such; and with a
    note beside what travels as text of another type, if the columns' `types` are known."""
    fields = [pa.field(field.name, pa.uuid() if field.type == pa.binary(16) else field.type) for field in source.schema]
    for place, type_ in enumerate(types):
        if _NOTED.fullmatch(type_):
            fields[place] = fields[place].with_metadata({TYPE_NOTE: type_})
    named = pa.schema(fields)
    return Source(named, (batch.cast(named) for batch in source.batches))


def _write_parquet(source: Source, path: Path, suffix: str, advance: Advance) -> int:
    rows = 0
    with pa.parquet.ParquetWriter(path, source.schema, compression="zstd") as writer:
        for batch in source.batches:
            writer.write_batch(batch)
            advance(batch.num_rows)
            rows += batch.num_rows
    return rows


def _write_csv(source: Source, path: Path, suffix: str, advance: Advance) -> int:
    rows = 0
    names = source.schema.names
    header = pa.schema([pa.field(name, pa.string()) for name in names]).empty_table()
    with ExitStack() as stack:
        stream: Any = stack.enter_context(pa.OSFile(str(path), "wb"))  # any: the stubs forget Arrow's own streams
        if suffix in COMPRESSION:
            stream = stack.enter_context(pa.CompressedOutputStream(stream, COMPRESSION[suffix]))
        pa.csv.write_csv(header, stream)
        for batch in source.batches:
            written = pa.RecordBatch.from_arrays(list(map(written_column, batch.columns)), names)
            pa.csv.write_csv(written, stream, pa.csv.WriteOptions(include_header=False))
            advance(batch.num_rows)
            rows += batch.num_rows
    return rows
