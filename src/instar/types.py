"""SQL types: what a column, an expression or a parameter may be; and what their values are inside Instar.

One *internal value* per type, used by rows, keys, expressions and buffers alike; NULL is None everywhere:

    boolean              bool
    smallint ... bigint  int
    real, double         float (a real is always rounded to 32 bits)
    numeric              decimal.Decimal (finite or NaN; at most 38 digits)
    text, varchar        str
    bytea                bytes
    date                 int: days since 1970-01-01
    timestamp            int: microseconds since 1970-01-01 00:00:00
    timestamptz          int: microseconds since 1970-01-01 00:00:00 UTC
    uuid                 bytes, 16
    jsonb                str: canonical JSON text (see values.py)

Conversion from and to text and Python objects is in values.py and happens at the edges only.
"""

from __future__ import annotations

import enum

import msgspec


class Kind(enum.Enum):
    """The type without its modifiers; the value is PostgreSQL's name."""

    BOOLEAN = "boolean"
    SMALLINT = "smallint"
    INTEGER = "integer"
    BIGINT = "bigint"
    REAL = "real"
    DOUBLE = "double precision"
    NUMERIC = "numeric"
    TEXT = "text"
    VARCHAR = "character varying"
    BYTEA = "bytea"
    DATE = "date"
    TIMESTAMP = "timestamp without time zone"
    TIMESTAMPTZ = "timestamp with time zone"
    UUID = "uuid"
    JSONB = "jsonb"
    UNKNOWN = "unknown"  # an untyped literal, NULL or parameter until its context decides; never a column's type

    # Whatever is looked up by types hashes them. There is one of each member, and enum's own way is a call in Python.
    __hash__ = object.__hash__


class Type(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A type with modifiers. `precision`, `scale`: numeric only (None: unconstrained); `length`: varchar only."""

    kind: Kind
    precision: int | None = None
    scale: int | None = None
    length: int | None = None

    def __str__(self) -> str:
        if self.precision is not None:
            return f"{self.kind.value}({self.precision},{self.scale or 0})"
        if self.length is not None:
            return f"{self.kind.value}({self.length})"
        return self.kind.value


BOOLEAN = Type(Kind.BOOLEAN)
SMALLINT = Type(Kind.SMALLINT)
INTEGER = Type(Kind.INTEGER)
BIGINT = Type(Kind.BIGINT)
REAL = Type(Kind.REAL)
DOUBLE = Type(Kind.DOUBLE)
NUMERIC = Type(Kind.NUMERIC)
TEXT = Type(Kind.TEXT)
VARCHAR = Type(Kind.VARCHAR)
BYTEA = Type(Kind.BYTEA)
DATE = Type(Kind.DATE)
TIMESTAMP = Type(Kind.TIMESTAMP)
TIMESTAMPTZ = Type(Kind.TIMESTAMPTZ)
UUID = Type(Kind.UUID)
JSONB = Type(Kind.JSONB)
UNKNOWN = Type(Kind.UNKNOWN)

INTEGERS = frozenset({Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT})
FLOATS = frozenset({Kind.REAL, Kind.DOUBLE})
NUMBERS = INTEGERS | FLOATS | {Kind.NUMERIC}
STRINGS = frozenset({Kind.TEXT, Kind.VARCHAR})
TIMESTAMPS = frozenset({Kind.TIMESTAMP, Kind.TIMESTAMPTZ})

INTEGER_RANGES: dict[Kind, tuple[int, int]] = {
    Kind.SMALLINT: (-(2**15), 2**15 - 1),
    Kind.INTEGER: (-(2**31), 2**31 - 1),
    Kind.BIGINT: (-(2**63), 2**63 - 1),
}
MAX_NUMERIC_DIGITS = 38
