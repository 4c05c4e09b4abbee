"""What an entry of the table is: Function, Aggregate, WindowFunction, and the pieces of DuckDB text they make."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec

from instar.types import Type

Volatility = Literal["immutable", "stable", "volatile"]


class Polymorphic(enum.Enum):
    """An argument that is not of one type. ANY: as it is; COMMON: all such arguments of a call have one common type."""

    ANY = "any"
    COMMON = "anycompatible"


ANY = Polymorphic.ANY
COMMON = Polymorphic.COMMON
Argument = Type | Polymorphic


class Context(msgspec.Struct, frozen=True):
    """What stable functions read: `now` is the transaction's start in microseconds since 1970 UTC."""

    now: int
    zone: str = "UTC"
    user: str = "instar"
    database: str = "instar"
    schema: str = "public"


class Sql(msgspec.Struct, frozen=True):
    """A DuckDB expression and the *physical* type of its values.

    The physical type is the logical one but for numeric: numeric(p,s) is a DECIMAL(p,s) in which every value has
    exactly the display scale s, which is tracked through expressions; numeric without precision is a VARCHAR of
    PostgreSQL's text, because its scale differs from value to value (see `rendering.duckdb_type`).
    """

    text: str
    type: Type


class Function(msgspec.Struct, frozen=True, eq=False):
    """A function or an operator (its name is then its symbol; LIKE is `~~`, as in PostgreSQL's catalog).

    Evaluate with `closure(argument types)(*values)`, or with `closure(...)(context, *values)` where `context` is set.
    If `strict`, a NULL argument makes the result NULL and the closure must not be called. `inline`, if there, is a
    Python expression with {0}, {1} for the arguments, equal to the closure for arguments that are not None.
    A set-returning function's closure returns an iterable of values, its DuckDB text is a list, to be unnested; its
    column is named `column`, or as the function is, or its alias.
    """

    name: str
    arguments: tuple[Argument, ...]
    result: Type | Callable[[tuple[Type, ...]], Type]
    python: Callable[..., object]
    duckdb: str | Callable[[Sequence[Sql], Context], Sql]
    strict: bool = True
    volatility: Volatility = "immutable"
    operator: bool = False
    variadic: bool = False  # the last argument may be repeated
    context: bool = False
    specialise: Callable[[tuple[Type, ...]], Callable[..., object]] | None = None  # polymorphic: closure by types
    inline: str | None = None
    returns_set: bool = False
    column: str | None = None

    def closure(self, types: Sequence[Type]) -> Callable[..., object]:
        """The closure for arguments of these types (as they are after the casts that resolution asks for)."""
        return self.python if self.specialise is None else self.specialise(tuple(types))

    def result_type(self, types: Sequence[Type]) -> Type:
        """The logical type of the result for arguments of these types."""
        return self.result if isinstance(self.result, Type) else self.result(tuple(types))

    def render(self, args: Sequence[Sql], context: Context) -> Sql:
        """The call in DuckDB's SQL, NULL-correct as it stands. Errors inside are read back by `duckdb_error`."""
        if callable(self.duckdb):
            return self.duckdb(args, context)
        return Sql(self.duckdb.format(*(arg.text for arg in args)), self.result_type([arg.type for arg in args]))


class Accumulator(Protocol):
    """The state of one aggregate over one group."""

    @property
    def add(self) -> Callable[..., None]:
        """A method that takes in a row's arguments; not called for a row with a NULL if the aggregate is strict."""
        ...

    def result(self) -> object:
        """The aggregate of what was added; may be called again after further rows (running windows)."""
        ...


class AggregateSql(msgspec.Struct, frozen=True):
    """DISTINCT, ORDER BY, FILTER and OVER of a call, rendered; `order_by`, `filter`, `over` are bare or empty text.

    Expressions in `order_by`, and in `over`'s PARTITION BY and ORDER BY, must be `sort_key`s.

    One call may become several of DuckDB's (avg is a sum and a count): `call` gives each the modifiers.
    """

    distinct: bool = False
    order_by: str = ""
    filter: str = ""
    over: str | None = None

    def call(self, name: str, *args: str) -> str:
        """`name(DISTINCT args ORDER BY ...) FILTER (WHERE ...) OVER (...)`."""
        inner = ("DISTINCT " if self.distinct else "") + ", ".join(args)
        if self.order_by:
            inner += f" ORDER BY {self.order_by}"
        text = f"{name}({inner})"
        if self.filter:
            text += f" FILTER (WHERE {self.filter})"
        return text if self.over is None else f"{text} OVER ({self.over})"


class Aggregate(msgspec.Struct, frozen=True, eq=False):
    """An aggregate function. `ordered`: its result depends on the order of rows (string_agg).

    `strict`: rows with a NULL argument are passed over (all but count(*), which has no argument).
    """

    name: str
    arguments: tuple[Argument, ...]
    result: Type | Callable[[tuple[Type, ...]], Type]
    python: Callable[[tuple[Type, ...]], Callable[[], Accumulator]]
    duckdb: Callable[[AggregateSql, Sequence[Sql]], Sql]
    strict: bool = True
    ordered: bool = False

    def accumulator(self, types: Sequence[Type]) -> Callable[[], Accumulator]:
        """The factory of accumulators for arguments of these types: one accumulator per group."""
        return self.python(tuple(types))

    def result_type(self, types: Sequence[Type]) -> Type:
        """The logical type of the result for arguments of these types."""
        return self.result if isinstance(self.result, Type) else self.result(tuple(types))

    def render(self, args: Sequence[Sql], modifiers: AggregateSql) -> Sql:
        """The call in DuckDB's SQL; no args: `(*)`. As a window function too, with `modifiers.over`."""
        return self.duckdb(modifiers, args)


class Window(msgspec.Struct, frozen=True):
    """One partition in order: arguments per row, number of the peer group per row, frame [start, end) per row."""

    rows: Sequence[tuple[object, ...]]
    peers: Sequence[int]
    frames: Sequence[tuple[int, int]]


class WindowFunction(msgspec.Struct, frozen=True, eq=False):
    """A window function that is no aggregate: `python` maps a partition to one value per row."""

    name: str
    arguments: tuple[Argument, ...]
    result: Type | Callable[[tuple[Type, ...]], Type]
    python: Callable[[Window], list[object]]
    duckdb: Callable[[AggregateSql, Sequence[Sql]], Sql]

    def result_type(self, types: Sequence[Type]) -> Type:
        """The logical type of the result for arguments of these types."""
        return self.result if isinstance(self.result, Type) else self.result(tuple(types))

    def render(self, args: Sequence[Sql], modifiers: AggregateSql) -> Sql:
        """The call in DuckDB's SQL; `modifiers.over` must be set."""
        return self.duckdb(modifiers, args)


Entry = Function | Aggregate | WindowFunction


class Resolution(msgspec.Struct, frozen=True):
    """The entry chosen for a call: cast argument i to `arguments[i]` where its type differs; `type` is the result's."""

    entry: Entry
    arguments: tuple[Type, ...]
    type: Type
