"""Functions about the session and the system, random identifiers, and series."""

from __future__ import annotations

import platform
import uuid
from collections.abc import Callable, Iterable, Sequence

from instar import errors
from instar.sql.functions.model import ANY, Context, Function, Sql
from instar.sql.functions.rendering import quote, render_literal
from instar.sql.functions.udfs import duckdb_type, register
from instar.types import BIGINT, INTEGER, TEXT, UUID, Type

VERSION = f"PostgreSQL 15.0 (Instar, Python {platform.python_version()})"


def _of_context(name: str, read: Callable[[Context], str]) -> Function:
    return Function(
        name,
        (),
        TEXT,
        read,
        lambda args, context: render_literal(read(context), TEXT),
        volatility="stable",
        context=True,
    )


def _type_name(types: tuple[Type, ...]) -> Callable[..., object]:
    name = str(Type(types[0].kind))
    return lambda value: name


def _render_type_name(args: Sequence[Sql], context: Context) -> Sql:
    return Sql(quote(str(Type(args[0].type.kind))), TEXT)


def _unspecialised(*args: object) -> object:
    raise AssertionError("a polymorphic function is evaluated by closure(types)")


# --- generate_series -------------------------------------------------------------------------------------------------


def _step(step: int) -> int:
    if step == 0:
        raise errors.error(errors.INVALID_PARAMETER, "step size cannot equal zero")
    return step


def _series(start: int, stop: int, step: int = 1) -> Iterable[int]:
    return range(start, stop + (1 if _step(step) > 0 else -1), step)


def _render_series(type_: Type) -> Callable[[Sequence[Sql], Context], Sql]:
    """A list, to be unnested. DuckDB computes in 64 bits and stops at their end, as we do."""

    def render(args: Sequence[Sql], context: Context) -> Sql:
        texts = [f"CAST({arg.text} AS BIGINT)" for arg in args]
        if len(texts) > 2:
            texts[2] = _checked_step(texts[2])
        return Sql(f"CAST(generate_series({', '.join(texts)}) AS {duckdb_type(type_)}[])", type_)

    return render


_checked_step = register("series_step", _step, [BIGINT], BIGINT)


def _series_functions() -> list[Function]:
    found = []
    for type_ in (INTEGER, BIGINT):
        for count in (2, 3):
            arguments = (type_,) * count
            found.append(
                Function("generate_series", arguments, type_, _series, _render_series(type_), returns_set=True)
            )
    return found


ENTRIES = (
    _of_context("version", lambda context: VERSION),
    _of_context("current_user", lambda context: context.user),
    _of_context("user", lambda context: context.user),
    _of_context("session_user", lambda context: context.user),
    _of_context("current_role", lambda context: context.user),
    _of_context("current_schema", lambda context: context.schema),
    _of_context("current_database", lambda context: context.database),
    _of_context("current_catalog", lambda context: context.database),
    Function("pg_typeof", (ANY,), TEXT, _unspecialised, _render_type_name, strict=False, specialise=_type_name),
    Function("gen_random_uuid", (), UUID, lambda: uuid.uuid4().bytes, "gen_random_uuid()", volatility="volatile"),
    *_series_functions(),
)
