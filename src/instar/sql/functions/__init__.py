"""The one table of functions and operators: types, our closure, DuckDB's text.

Every entry has two implementations that give the same answer: `closure(types)` on internal values (types.py) and a
DuckDB rendering; what has not both is not in the table. It knows types and values, and DuckDB's dialect as text only:
the connection, and the registration of `UDFS` with it, are analytic.py's.
"""

from instar.sql.functions.model import (
    ANY,
    COMMON,
    Accumulator,
    Aggregate,
    AggregateSql,
    Argument,
    Context,
    Function,
    Polymorphic,
    Resolution,
    Sql,
    Volatility,
    Window,
    WindowFunction,
)
from instar.sql.functions.rendering import (
    duckdb_error,
    render_cast,
    render_literal,
    sort_key,
    unify,
)
from instar.sql.functions.resolution import (
    UNSUPPORTED,
    common_type,
    is_aggregate,
    is_window,
    lookup,
    resolve_function,
    resolve_operator,
)
from instar.sql.functions.udfs import UDFS, Udf, duckdb_type

__all__ = [
    "ANY",
    "COMMON",
    "UDFS",
    "UNSUPPORTED",
    "Accumulator",
    "Aggregate",
    "AggregateSql",
    "Argument",
    "Context",
    "Function",
    "Polymorphic",
    "Resolution",
    "Sql",
    "Udf",
    "Volatility",
    "Window",
    "WindowFunction",
    "common_type",
    "duckdb_error",
    "duckdb_type",
    "is_aggregate",
    "is_window",
    "lookup",
    "render_cast",
    "render_literal",
    "resolve_function",
    "resolve_operator",
    "sort_key",
    "unify",
]
