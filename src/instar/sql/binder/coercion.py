"""Conversions: when one type becomes another, the explicit Cast nodes for it, and folding what is constant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from instar import errors, types, values
from instar.sql import tree
from instar.sql.binder.context import Context
from instar.sql.functions import Function, common_type
from instar.sql.tree import Expr
from instar.types import Kind, Type
from instar.values import datetime_texts

CastContext = Literal["implicit", "assignment", "explicit"]
_RANK = {"implicit": 0, "assignment": 1, "explicit": 2}


def coerce(
    context: Context, expr: Expr, target: Type, how: CastContext = "implicit", position: int | None = None
) -> Expr | None:
    """`expr` as exactly `target`, or None if there is no such cast in this context.

    A literal of unknown type is read by the type's input syntax, here (22P02 and its like have the position).
    """
    if expr.type == target:
        return expr
    if expr.type.kind is Kind.UNKNOWN:
        return _settle(context, expr, target, how, position)
    needed = values.cast_context(expr.type, target)
    if needed is None or _RANK[needed] > _RANK[how]:
        return None
    return cast(expr, target, how == "explicit")


def cast(expr: Expr, target: Type, explicit: bool) -> Expr:
    """A Cast node, or a literal where the conversion of a literal depends on nothing else."""
    if isinstance(expr, tree.Literal):
        if expr.value is None:
            return tree.Literal(None, target)
        if Kind.TIMESTAMPTZ not in (expr.type.kind, target.kind):
            try:
                return tree.Literal(values.cast(expr.value, expr.type, target, explicit), target)
            except errors.Error:
                pass  # it is raised when, and if, the expression is evaluated
    return tree.Cast(expr, target, explicit)


def _settle(context: Context, expr: Expr, target: Type, how: CastContext, position: int | None) -> Expr:
    if isinstance(expr, tree.Parameter):
        settled = context.settle(expr, target, position)
        return settled if settled.type == target else cast(settled, target, how == "explicit")
    if not isinstance(expr, tree.Literal):
        return tree.Cast(expr, target, how == "explicit")
    if expr.value is None or target.kind is Kind.UNKNOWN:
        return tree.Literal(expr.value, target)
    position = context.source(expr)[1] or position
    value = _read(expr.value, target, how, position, context.zone or "UTC")
    if target.kind is Kind.TIMESTAMPTZ and context.zone is None and not datetime_texts.names_zone(str(expr.value)):
        # What the text means depends on the session's time zone, so it is read again when the statement runs.
        return tree.Cast(tree.Literal(expr.value, types.TEXT), target, explicit=True)
    return tree.Literal(value, target)


def _read(value: object, target: Type, how: CastContext, position: int | None, zone: str) -> object:
    try:
        return values.cast(value, types.UNKNOWN, target, how == "explicit", zone)
    except errors.Error as error:
        error.position = error.position or position
        raise


def to_text_if_unknown(context: Context, expr: Expr) -> Expr:
    """What nothing decided is its hint's type if it is a parameter, else text."""
    if expr.type.kind is not Kind.UNKNOWN:
        return expr
    settled = coerce(context, expr, context.hint(expr) or types.TEXT)
    assert settled is not None
    return settled


def kinds_of(context: Context, exprs: Sequence[Expr]) -> list[Type]:
    """The types of expressions that are to have one: a parameter that has none yet counts by its value, but the text of
    one is that of whatever type the others have."""
    found = [context.hint(expr) or expr.type for expr in exprs]
    if all(type_.kind is Kind.UNKNOWN or type_.kind in types.STRINGS for type_ in found):
        return found
    return [
        types.UNKNOWN if expr.type.kind is Kind.UNKNOWN and type_.kind in types.STRINGS else type_
        for expr, type_ in zip(exprs, found, strict=True)
    ]


def unify(context: Context, exprs: Sequence[Expr], construct: str, position: int | None = None) -> tuple[Expr, ...]:
    """All as their common type (CASE, COALESCE, UNION, VALUES); 42804 if they have none."""
    target = common_type(kinds_of(context, exprs), construct, position=position)
    return tuple(require(context, expr, target, construct, position) for expr in exprs)


def require(context: Context, expr: Expr, target: Type, construct: str, position: int | None = None) -> Expr:
    """As `target`, implicitly; 42846 if that cannot be."""
    found = coerce(context, expr, target, "implicit", position)
    if found is None:
        message = f"{construct} could not convert type {expr.type} to {target}"
        raise errors.error(errors.CANNOT_COERCE, message, position=position)
    return found


def assign(context: Context, expr: Expr, target: Type, column: str, position: int | None = None) -> Expr:
    """As what a column takes; 42804 in PostgreSQL's words."""
    found = coerce(context, expr, target, "assignment", position)
    if found is None:
        message = f'column "{column}" is of type {target} but expression is of type {expr.type}'
        hint = "You will need to rewrite or cast the expression."
        raise errors.error(errors.DATATYPE_MISMATCH, message, hint=hint, position=position)
    return found


def call(function: Function, args: tuple[Expr, ...], type_: Type) -> Expr:
    """A Call, or its value if the function is immutable and all arguments are literals."""
    literals = [arg for arg in args if isinstance(arg, tree.Literal)]
    if len(literals) < len(args) or function.volatility != "immutable" or function.context or function.returns_set:
        return tree.Call(function, args, type_)
    if function.strict and any(literal.value is None for literal in literals):
        return tree.Literal(None, type_)
    try:
        evaluate = function.closure([arg.type for arg in args])
        return tree.Literal(evaluate(*(literal.value for literal in literals)), type_)
    except errors.Error:
        return tree.Call(function, args, type_)  # 1/0 fails when it is evaluated, which CASE may prevent
