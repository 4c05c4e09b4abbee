"""Every error that leaves Instar: one class per PEP 249 kind, one SQLSTATE per instance.

Raise with `error(SQLSTATE, message, ...)`: the SQLSTATE decides the PEP 249 class, so that the two can never
disagree. Codes are PostgreSQL's (appendix A of its manual).
"""

from __future__ import annotations

# Class 08: the connection and what is said over it.
CONNECTION_CLOSED = "08003"
PROTOCOL_VIOLATION = "08P01"
# Class 0A to 40: what a statement asked for cannot be, or not now.
FEATURE_NOT_SUPPORTED = "0A000"
CARDINALITY_VIOLATION = "21000"
STRING_TOO_LONG = "22001"
NUMERIC_OUT_OF_RANGE = "22003"
NULL_VALUE_NOT_ALLOWED = "22004"
INVALID_DATETIME_FORMAT = "22007"
DATETIME_OVERFLOW = "22008"
INVALID_TIME_ZONE_DISPLACEMENT = "22009"
SEQUENCE_LIMIT_EXCEEDED = "2200H"
SUBSTRING_ERROR = "22011"
DIVISION_BY_ZERO = "22012"
INVALID_FRAME_OFFSET = "22013"
INVALID_NTILE_ARGUMENT = "22014"
INVALID_NTH_VALUE_ARGUMENT = "22016"
INVALID_LOGARITHM_ARGUMENT = "2201E"
INVALID_POWER_ARGUMENT = "2201F"
INVALID_LIMIT = "2201W"
INVALID_OFFSET = "2201X"
CHARACTER_NOT_IN_REPERTOIRE = "22021"
INVALID_PARAMETER = "22023"
INVALID_ESCAPE_SEQUENCE = "22025"
SUBSCRIPT_ERROR = "2202E"
INVALID_TEXT = "22P02"
BAD_COPY_FILE = "22P04"
UNTRANSLATABLE_CHARACTER = "22P05"
NOT_NULL_VIOLATION = "23502"
FOREIGN_KEY_VIOLATION = "23503"
UNIQUE_VIOLATION = "23505"
CHECK_VIOLATION = "23514"
INVALID_CURSOR_STATE = "24000"
INVALID_TRANSACTION_STATE = "25000"
ACTIVE_TRANSACTION = "25001"
READ_ONLY_TRANSACTION = "25006"
NO_ACTIVE_TRANSACTION = "25P01"
IN_FAILED_TRANSACTION = "25P02"
DEPENDENT_OBJECTS = "2BP01"
INVALID_CURSOR_NAME = "34000"
INVALID_SAVEPOINT = "3B001"
INVALID_SCHEMA_NAME = "3F000"
SERIALIZATION_FAILURE = "40001"
DEADLOCK_DETECTED = "40P01"
# Class 42: syntax and names.
INSUFFICIENT_PRIVILEGE = "42501"
SYNTAX_ERROR = "42601"
INVALID_NAME = "42602"
DUPLICATE_COLUMN = "42701"
AMBIGUOUS_COLUMN = "42702"
UNDEFINED_COLUMN = "42703"
UNDEFINED_OBJECT = "42704"
DUPLICATE_OBJECT = "42710"
DUPLICATE_ALIAS = "42712"
AMBIGUOUS_FUNCTION = "42725"
GROUPING_ERROR = "42803"
DATATYPE_MISMATCH = "42804"
WRONG_OBJECT_TYPE = "42809"
INVALID_FOREIGN_KEY = "42830"
CANNOT_COERCE = "42846"
UNDEFINED_FUNCTION = "42883"
GENERATED_ALWAYS = "428C9"
UNDEFINED_TABLE = "42P01"
UNDEFINED_PARAMETER = "42P02"
DUPLICATE_TABLE = "42P07"
AMBIGUOUS_PARAMETER = "42P08"
INVALID_COLUMN_REFERENCE = "42P10"
INVALID_TABLE_DEFINITION = "42P16"
INVALID_OBJECT_DEFINITION = "42P17"
INVALID_RECURSION = "42P19"
WINDOWING_ERROR = "42P20"
# Class 53 to XX: resources, the operator, the system.
DISK_FULL = "53100"
OUT_OF_MEMORY = "53200"
TOO_MANY_CONNECTIONS = "53300"
LIMIT_EXCEEDED = "54000"
STATEMENT_TOO_COMPLEX = "54001"
TOO_MANY_COLUMNS = "54011"
TOO_MANY_ARGUMENTS = "54023"
OBJECT_NOT_READY = "55000"
OBJECT_IN_USE = "55006"
CANT_CHANGE_RUNTIME_PARAM = "55P02"
LOCK_NOT_AVAILABLE = "55P03"
QUERY_CANCELED = "57014"
IO_ERROR = "58030"
UNDEFINED_FILE = "58P01"
SNAPSHOT_TOO_OLD = "72000"
INTERNAL_ERROR = "XX000"
DATA_CORRUPTED = "XX001"
SCHEMA_CHANGE_FAILED = "XXS01"  # Instar's own: COMMIT stood, a job of it failed later and was reverted


class Warning(Exception):  # noqa: A001 - the name is prescribed by PEP 249
    """PEP 249 Warning."""


class Error(Exception):
    """Base of all errors; `sqlstate` is five characters, `position` is the 1-based character in the statement."""

    def __init__(
        self,
        message: str,
        sqlstate: str = INTERNAL_ERROR,
        *,
        detail: str | None = None,
        hint: str | None = None,
        position: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.sqlstate = sqlstate
        self.detail = detail
        self.hint = hint
        self.position = position

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword arguments do not survive the default protocol, and errors cross processes (Spark, multiprocessing).
        return _rebuild, (type(self), self.message, self.sqlstate, self.detail, self.hint, self.position)


def _rebuild(
    kind: type[Error], message: str, sqlstate: str, detail: str | None, hint: str | None, position: int | None
) -> Error:
    return kind(message, sqlstate, detail=detail, hint=hint, position=position)


class InterfaceError(Error):
    """Misuse of the interface itself, such as a closed connection."""


class DatabaseError(Error):
    """Base of what the database reports."""


class DataError(DatabaseError):
    """SQLSTATE class 22: a value cannot be what it should be."""


class OperationalError(DatabaseError):
    """Conflicts, resources, the operator: not the statement's fault; class 40 may be retried."""


class IntegrityError(DatabaseError):
    """SQLSTATE class 23: a constraint."""


class InternalError(DatabaseError):
    """SQLSTATE class XX and 25: a state that should not be, or transaction control out of order."""


class ProgrammingError(DatabaseError):
    """SQLSTATE class 42 and 21: the statement is wrong."""


class NotSupportedError(DatabaseError):
    """SQLSTATE 0A000: named in the message, never answered wrongly."""


_CLASSES: dict[str, type[Error]] = {
    PROTOCOL_VIOLATION: ProgrammingError,  # the number of parameters, which PEP 249 counts among these
    "0A": NotSupportedError,
    "21": ProgrammingError,
    "22": DataError,
    "23": IntegrityError,
    "25": InternalError,
    "2B": ProgrammingError,
    "3B": ProgrammingError,
    "42": ProgrammingError,
    "XX": InternalError,
}


def error(
    sqlstate: str, message: str, *, detail: str | None = None, hint: str | None = None, position: int | None = None
) -> Error:
    """The error of this SQLSTATE, in the PEP 249 class that it decides (nearly always by its first two characters)."""
    kind = _CLASSES.get(sqlstate) or _CLASSES.get(sqlstate[:2], OperationalError)
    return kind(message, sqlstate, detail=detail, hint=hint, position=position)


def unsupported(what: str, *, position: int | None = None) -> Error:
    """0A000 for `what`, a noun phrase: "<what> is not supported"."""
    return error(FEATURE_NOT_SUPPORTED, f"{what} is not supported", position=position)
