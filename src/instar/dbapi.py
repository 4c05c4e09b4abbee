"""The DB-API 2.0 (PEP 249) of Instar: `instar.connect(path)`.

paramstyle is qmark; `$1` is accepted as well. Threads may share the module, not connections. `autocommit` is an
attribute of the connection as in Python 3.12's sqlite3: False (PEP 249's default) keeps a transaction open that
commit() and rollback() end, True commits each statement.
"""

from __future__ import annotations

import datetime as dt
import os
import time
import warnings
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from instar import errors
from instar.database import Database, Result, Session
from instar.errors import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,  # noqa: A004 - PEP 249 prescribes the name
)
from instar.types import INTEGERS, NUMBERS, STRINGS, TIMESTAMPS, Kind

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "BINARY", "DATETIME", "NUMBER", "ROWID", "STRING", "Binary", "Connection", "Cursor", "DataError", "DatabaseError",
    "Date", "DateFromTicks", "Error", "IntegrityError", "InterfaceError", "InternalError", "NotSupportedError",
    "OperationalError", "ProgrammingError", "Time", "TimeFromTicks", "Timestamp", "TimestampFromTicks", "Warning",
    "apilevel", "connect", "paramstyle", "threadsafety",
]  # fmt: skip

apilevel = "2.0"
threadsafety = 1
paramstyle = "qmark"

Parameters = Sequence[object]
Row = tuple[Any, ...]
Description = tuple[str, str, None, None, int | None, int | None, None]


class _TypeObject:
    """One of PEP 249's type objects: equal to the type codes (PostgreSQL's type names) of its kinds."""

    def __init__(self, name: str, kinds: Iterable[Kind]) -> None:
        self.name = name
        self._codes = frozenset(kind.value for kind in kinds)

    def __eq__(self, other: object) -> bool:
        return other in self._codes if isinstance(other, str) else self is other

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"instar.{self.name}"


STRING = _TypeObject("STRING", STRINGS | {Kind.UUID, Kind.JSONB})
BINARY = _TypeObject("BINARY", {Kind.BYTEA})
NUMBER = _TypeObject("NUMBER", NUMBERS)
DATETIME = _TypeObject("DATETIME", TIMESTAMPS | {Kind.DATE})
ROWID = _TypeObject("ROWID", INTEGERS)

Date = dt.date
Time = dt.time
Timestamp = dt.datetime
Binary = bytes


def DateFromTicks(ticks: float) -> dt.date:  # noqa: N802 - the name is prescribed by PEP 249
    """The local date of `ticks` seconds since the epoch."""
    return dt.date(*time.localtime(ticks)[:3])


def TimeFromTicks(ticks: float) -> dt.time:  # noqa: N802 - the name is prescribed by PEP 249
    """The local time of day of `ticks` seconds since the epoch."""
    return dt.time(*time.localtime(ticks)[3:6])


def TimestampFromTicks(ticks: float) -> dt.datetime:  # noqa: N802 - the name is prescribed by PEP 249
    """The local date and time of `ticks` seconds since the epoch."""
    return dt.datetime(*time.localtime(ticks)[:6])


def connect(
    path: str | os.PathLike[str] = ":memory:",
    *,
    synchronous: str | None = "full",
    schema_lease: float | None = None,
    retention: float | None = None,
    log_max_bytes: int | None = None,
    metadata_cache_bytes: int | None = None,
    autocommit: bool = False,
    create: bool = True,
    settings: Mapping[str, str] | None = None,
) -> Connection:
    """Open the database in directory `path` (made if it is not there, unless `create` is false), or a database in
    memory that this connection alone sees.

    `synchronous` is a property of the store (full, normal, off): an existing one that was made otherwise is refused;
    None takes it as it is. So is `schema_lease`: for how many seconds a process may use the schema that it has cached
    (0, of a new store, unless another value is given: never without asking); `retention`: for how many seconds what was
    changed and dropped can still be read and brought back (600); and `log_max_bytes`: how much that may be (4 GiB).
    `metadata_cache_bytes`: what this process keeps of the schema in memory, about (64 MiB; what does not fit is read
    again when it is used). All connections to one store share it: a second value is refused.
    `settings` are SET for the session, as in {"timezone": "Europe/Oslo"}. ProgrammingError (22023) for an argument of
    another type, and an empty path.
    """
    _give_back_abandoned()
    where = _required_path(path)
    _require_type("synchronous", synchronous, str, type(None))
    for name, seconds in (("schema_lease", schema_lease), ("retention", retention)):
        _require_type(name, seconds, int, float, type(None))
    for name, size in (("log_max_bytes", log_max_bytes), ("metadata_cache_bytes", metadata_cache_bytes)):
        _require_type(name, size, int, type(None))
    _require_type("autocommit", autocommit, bool)
    _require_type("create", create, bool)
    _require_settings(settings)
    database = Database.open(
        where,
        synchronous=synchronous,
        schema_lease=schema_lease,
        retention=retention,
        log_max_bytes=log_max_bytes,
        metadata_cache_bytes=metadata_cache_bytes,
        create=create,
    )
    try:
        return Connection(database, autocommit=autocommit, settings=settings or {})
    except BaseException:
        database.release()
        raise


def _required_path(path: str | os.PathLike[str]) -> str:
    """22023 for what is no path, or an empty one."""
    _require_type("path", path, str, os.PathLike)
    where = os.fspath(path)
    _require_type("path", where, str)
    if not where:
        raise ProgrammingError("path must not be empty", errors.INVALID_PARAMETER)
    return where


def _require_type(name: str, value: object, *types: type) -> None:
    """22023 for an argument of `connect` that is of none of the types; True is no number."""
    if isinstance(value, types) and (not isinstance(value, bool) or bool in types):
        return
    known = " or ".join("None" if found is type(None) else found.__name__ for found in types)
    raise ProgrammingError(f"{name} must be {known}, not {type(value).__name__}", errors.INVALID_PARAMETER)


def _require_settings(settings: Mapping[str, str] | None) -> None:
    _require_type("settings", settings, Mapping, type(None))
    for name, value in (settings or {}).items():
        _require_type("a setting's name", name, str)
        _require_type(f'setting "{name}"', value, str)


# What connections held that nobody closed. The garbage collector may come by in the middle of anything, whatever locks
# the thread holds there: so it only leaves a note, which the next connect acts upon; or a thread of its own, where
# others may wait for a transaction that is open.
_new = object.__new__
_abandoned: deque[tuple[Session | None, Database | None]] = deque()


def _give_back_abandoned() -> None:
    while _abandoned:
        try:
            session, database = _abandoned.popleft()
        except IndexError:  # another thread was faster
            return
        _give_back(session, database)


def _give_back(session: Session | None, database: Database | None) -> None:
    try:
        if session is not None:
            session.close()
    finally:
        if database is not None:
            database.release()


class _using:  # noqa: N801 - a context manager, as a class since a generator takes 2 us longer
    """The session for this thread alone; 55006 while another one uses it."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> Session:
        if not self._session.use.acquire(False):
            raise _in_use()
        return self._session

    def __exit__(self, *_caught: object) -> None:
        self._session.use.release()


def _in_use() -> errors.Error:
    return errors.error(
        errors.OBJECT_IN_USE,
        "another thread is using the connection",
        hint="Open a connection in each thread. Only cancel() may be called beside a running statement.",
    )


class Connection:
    """A session with a database. As a context manager it commits, or rolls back on an exception, and stays open.

    It may be handed from thread to thread, but not be used by two at once (55006), except for `cancel`.
    """

    Warning = Warning
    Error = Error
    InterfaceError = InterfaceError
    DatabaseError = DatabaseError
    DataError = DataError
    OperationalError = OperationalError
    IntegrityError = IntegrityError
    InternalError = InternalError
    ProgrammingError = ProgrammingError
    NotSupportedError = NotSupportedError

    def __init__(self, database: Database, *, autocommit: bool, settings: Mapping[str, str]) -> None:
        session = database.session(autocommit=autocommit)
        for name, value in settings.items():
            session.set(name, value)
        # From here on the use of the database is this object's to give back.
        self._database: Database | None = database
        self._session: Session | None = session

    @property
    def session(self) -> Session:
        """The session; raises InterfaceError if the connection is closed."""
        if self._session is None:
            raise InterfaceError("the connection is closed", errors.CONNECTION_CLOSED)
        return self._session

    @property
    def database(self) -> Database:
        """The database this connection is to."""
        return self.session.database

    @property
    def autocommit(self) -> bool:
        """Whether each statement is a transaction of its own."""
        return self.session.autocommit

    @autocommit.setter
    def autocommit(self, value: bool) -> None:
        with _using(self.session) as session:
            # As in sqlite3: switching it on commits what is open.
            if value and not session.autocommit:
                session.forget_cancel()
                session.commit()
            session.autocommit = bool(value)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, if a failed one: begun by BEGIN or, with autocommit off, by a statement."""
        session = self.session
        if not session.use.acquire(False):  # another thread's: its own to end
            return session.transaction is not None
        try:
            return session.in_transaction
        finally:
            session.use.release()

    @property
    def notices(self) -> list[str]:
        """NOTICE messages of the session, oldest first; the caller clears the list. Empty where `on_notice` is set."""
        return self.session.notices

    @property
    def on_notice(self) -> Callable[[str], object] | None:
        """Called with each notice, in the thread that executes: with those of a statement that waits for a job while
        it waits, with others when their statement ends. What it raises ends the statement (a job goes on)."""
        return self.session.on_notice

    @on_notice.setter
    def on_notice(self, handler: Callable[[str], object] | None) -> None:
        self.session.on_notice = handler

    def cursor(self) -> Cursor:
        """A new cursor."""
        return Cursor(self)

    def execute(self, operation: str, parameters: Parameters = ()) -> Cursor:
        """A new cursor on which `operation` was executed."""
        cursor = _new(Cursor)  # and not `Cursor(self)`, which would cost a call from C into Python
        cursor.connection = self
        cursor._session = self._session or self.session
        return cursor.execute(operation, parameters)

    def executemany(self, operation: str, parameters: Iterable[Parameters]) -> Cursor:
        """A new cursor on which `operation` was executed once per parameter set."""
        return self.cursor().executemany(operation, parameters)

    def insert_arrow(self, table: str, data: pa.Table | pa.RecordBatchReader) -> int:
        """Append Arrow rows to `table` (fields matched by name); returns how many. The bulk path."""
        with _using(self.session) as session:
            return session.insert_arrow(table, data)

    def commit(self) -> None:
        """Commit the open transaction, if there is one."""
        with _using(self.session) as session:
            session.forget_cancel()
            session.commit()

    def rollback(self) -> None:
        """Roll the open transaction back, if there is one."""
        with _using(self.session) as session:
            session.rollback()

    def cancel(self) -> None:
        """Cancel the statement that another thread is executing here (57014). Without one, nothing happens."""
        self.session.cancel()

    def close(self) -> None:
        """Roll back what is open and close; closing twice is fine."""
        session, database = self._session, self._database
        if session is not None:
            with _using(session):
                self._session = self._database = None
                _give_back(session, database)
        _give_back_abandoned()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.rollback()

    # What it needs is bound here: at the end of the interpreter the module's own names are gone.
    def __del__(
        self,
        _warn: Callable[..., None] = warnings.warn,
        _abandon: Callable[[tuple[Session | None, Database | None]], None] = _abandoned.append,
        _soon: Callable[[Callable[[], None], tuple[()]], int] = start_new_thread,
        _give_back: Callable[[], None] = _give_back_abandoned,
    ) -> None:
        session = getattr(self, "_session", None)
        if session is not None:
            _warn(f"unclosed {self!r}", ResourceWarning, source=self)
            _abandon((session, self._database))
            if session.transaction is not None:
                try:
                    _soon(_give_back, ())
                except RuntimeError:  # there is no thread to be had, or the interpreter ends
                    pass


class Cursor:
    """Executes statements and fetches their results. `arraysize` is what fetchmany takes by default."""

    # Of the class until they are set: there is a cursor for each statement that a connection executes.
    arraysize = 1
    _result: Result | None = None
    _closed = False

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._session = connection._session or connection.session

    @property
    def description(self) -> list[Description] | None:
        """One 7-tuple per result column: name, type code (PostgreSQL's name), ..., precision, scale, None."""
        if self._result is None or self._result.columns is None:
            return None
        return [(name, type_.kind.value, None, None, type_.precision, type_.scale, None)
                for name, type_ in self._result.columns]  # fmt: skip

    @property
    def rowcount(self) -> int:
        """Rows returned or affected by the last statement; -1 where it is not known."""
        return -1 if self._result is None else self._result.rowcount

    def execute(self, operation: str, parameters: Parameters = ()) -> Self:
        """Execute one statement."""
        if self._closed or self.connection._session is None:
            raise InterfaceError("the cursor is closed", errors.INVALID_CURSOR_NAME)
        if operation.__class__ is not str or parameters.__class__ is not tuple:
            parameters = _arguments(operation, parameters)
        session = self._session
        use = session.use
        if not use.acquire(False):
            raise _in_use()
        try:
            self._result = None
            self._result = session.execute(operation, parameters)
        finally:
            use.release()
        return self

    def executemany(self, operation: str, seq_of_parameters: Iterable[Parameters]) -> Self:
        """Execute one INSERT, UPDATE or DELETE once per parameter set; rowcount is the sum. All or none stand."""
        self._check()
        self._result = None
        if not isinstance(seq_of_parameters, Iterable):
            raise errors.error(errors.PROTOCOL_VIOLATION, "executemany takes a sequence of parameter sequences")
        sets = [given if given.__class__ is tuple else _arguments(operation, given) for given in seq_of_parameters]
        with _using(self._session) as session:
            self._result = session.executemany(operation, sets)
        return self

    def fetchone(self) -> Row | None:
        """The next row, or None."""
        result = self._result
        if result is None or result.columns is None or self._closed or self.connection._session is None:
            return next(self._rows(), None)  # which says what is wrong
        return next(result.rows, None)

    def fetchmany(self, size: int | None = None) -> list[Row]:
        """The next `size` rows."""
        rows = self._rows()
        wanted = self.arraysize if size is None else size
        return [row for _, row in zip(range(wanted), rows, strict=False)]

    def fetchall(self) -> list[Row]:
        """All remaining rows."""
        return list(self._rows())

    def fetch_arrow_table(self, *, nan_as_text: bool = False) -> pa.Table:
        """All rows as an Arrow table; a whole-table query comes straight from the analytic engine.

        0A000 for NaN in a column of numeric(p,s), a decimal in Arrow; as plain numeric, which is text there, it goes.
        With `nan_as_text` such a column is text as well.
        """
        self._rows()
        if self._result is None:
            raise errors.error(errors.INVALID_CURSOR_STATE, "no result to fetch")
        return self._result.arrow(nan_as_text=nan_as_text)

    def setinputsizes(self, sizes: Sequence[object]) -> None:
        """Does nothing, as PEP 249 allows."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Does nothing, as PEP 249 allows."""

    def close(self) -> None:
        """Close the cursor; it cannot be used again."""
        self._check()
        self._closed = True
        self._result = None

    def __iter__(self) -> Iterator[Row]:
        return self

    def __next__(self) -> Row:
        return next(self._rows())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if not self._closed:
            self.close()

    def _check(self) -> None:
        if self._closed:
            raise InterfaceError("the cursor is closed", errors.INVALID_CURSOR_NAME)
        self.connection.session  # noqa: B018 - raises if closed

    def _rows(self) -> Iterator[Row]:
        self._check()
        if self._result is None or self._result.columns is None:
            raise ProgrammingError("the last statement returned no rows", errors.INVALID_CURSOR_STATE)
        return self._result.rows


def _arguments(operation: object, parameters: object) -> Parameters:
    """The parameters of an operation as a tuple or list; ProgrammingError where either is something else.

    Text and mappings are refused although they can be iterated: their characters and keys are not what was meant.
    """
    if not isinstance(operation, str):
        raise errors.error(errors.PROTOCOL_VIOLATION, f"a statement is text, not a Python {type(operation).__name__}")
    if isinstance(parameters, tuple | list):
        return parameters
    if isinstance(parameters, Sequence) and not isinstance(parameters, str | bytes | bytearray | memoryview):
        return tuple(parameters)
    raise errors.error(
        errors.PROTOCOL_VIOLATION, f"parameters are a sequence of values, not a Python {type(parameters).__name__}"
    )
