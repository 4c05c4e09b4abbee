"""Making jsonb of values of other types: to_jsonb, jsonb_build_object and -_array, jsonb_agg, jsonb_object_agg."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, NoReturn

from instar import errors
from instar.sql.functions.model import ANY, Accumulator, Aggregate, AggregateSql, Context, Function, Sql
from instar.sql.functions.rendering import as_text, is_static, render_cast
from instar.sql.functions.udfs import STRING_LIST, register
from instar.types import BOOLEAN, FLOATS, INTEGERS, JSONB, TEXT, TIMESTAMPS, Kind, Type
from instar.values import jsonb, writer

_ZONE = re.compile(r"([+-]\d\d)( BC)?\Z")


def _number(text: str) -> str:
    """PostgreSQL's text of a number; what JSON has no number for is a string."""
    value = Decimal(text)
    return jsonb.write(value if value.is_finite() else text)


def _moment(text: str) -> str:
    """PostgreSQL's text of a timestamp in the form of XML Schema: with T, and with minutes in the zone."""
    return _ZONE.sub(r"\1:00\2", text.replace(" ", "T", 1))


def _not_a_key(value: object) -> NoReturn:
    message = "key value must be scalar, not array, composite, or json"
    raise errors.error(errors.INVALID_PARAMETER, message)


def _writer(type_: Type, zone: str) -> Callable[[Any], str]:
    """The text of a value of this type in a document, before it is quoted."""
    if type_.kind is Kind.BOOLEAN:
        return lambda value: "true" if value else "false"
    write = writer(type_, zone)
    return (lambda value: _moment(write(value))) if type_.kind in TIMESTAMPS else write


def _maker(type_: Type, zone: str) -> Callable[[Any], str]:
    """The document of a value of this type, NULL's too."""
    write = _writer(type_, zone)
    if type_.kind in FLOATS or type_.kind is Kind.NUMERIC:
        finish: Callable[[str], str] = _number
    elif type_.kind in INTEGERS or type_.kind in (Kind.BOOLEAN, Kind.JSONB):
        finish = str
    else:
        finish = jsonb.write
    return lambda value: "null" if value is None else finish(write(value))


def _keyer(type_: Type, zone: str) -> Callable[[Any], str | None]:
    """The key that a value of this type makes; None of NULL."""
    write = _not_a_key if type_.kind is Kind.JSONB else _writer(type_, zone)
    return lambda value: None if value is None else write(value)


_json_number = register("json_number", _number, [TEXT], TEXT)
_json_string = register("json_string", jsonb.write, [TEXT], TEXT)
_json_moment = register("json_moment", _moment, [TEXT], TEXT)
_json_key = register("json_key", _not_a_key, [JSONB], TEXT)


def _render_text(operand: Sql, context: Context) -> str:
    if operand.type.kind is Kind.BOOLEAN:
        return f"CAST({operand.text} AS VARCHAR)"
    text = render_cast(operand, TEXT, True, context).text
    return _json_moment(text) if operand.type.kind in TIMESTAMPS else text


def _render_document(operand: Sql, context: Context) -> str:
    """The document of an operand, NULL of NULL."""
    kind = operand.type.kind
    if kind is Kind.NUMERIC:
        return as_text(operand) if is_static(operand.type) else _json_number(operand.text)
    text = _render_text(operand, context)
    if kind in FLOATS:
        return _json_number(text)
    return text if kind in INTEGERS or kind in (Kind.BOOLEAN, Kind.JSONB) else _json_string(text)


def _render_key(operand: Sql, context: Context) -> str:
    return _json_key(operand.text) if operand.type.kind is Kind.JSONB else _render_text(operand, context)


# --- functions -------------------------------------------------------------------------------------------------------


def _array(documents: Sequence[str | None]) -> str:
    return "[" + ", ".join("null" if document is None else document for document in documents) + "]"


def _object(parts: Sequence[str | None]) -> str:
    """Of keys and documents in turn."""
    if len(parts) % 2:
        raise errors.error(
            errors.INVALID_PARAMETER,
            "argument list must have even number of elements",
            hint="The arguments of jsonb_build_object() must consist of alternating keys and values.",
        )
    pairs: dict[str, str] = {}
    for i in range(0, len(parts), 2):
        key = parts[i]
        if key is None:
            raise errors.error(errors.INVALID_PARAMETER, f"argument {i + 1}: key must not be null")
        pairs[key] = parts[i + 1] or "null"
    return jsonb.object_of(pairs)


_built_array = register("jsonb_array", _array, [STRING_LIST], JSONB)
_built_object = register("jsonb_object", _object, [STRING_LIST], JSONB)


def _build_array(types: tuple[Type, ...]) -> Callable[..., object]:
    def apply(context: Context, *args: object) -> str:
        return _array([_maker(type_, context.zone)(arg) for type_, arg in zip(types, args, strict=True)])

    return apply


def _build_object(types: tuple[Type, ...]) -> Callable[..., object]:
    def apply(context: Context, *args: object) -> str:
        pairs = enumerate(zip(types, args, strict=True))
        return _object([(_maker if i % 2 else _keyer)(type_, context.zone)(arg) for i, (type_, arg) in pairs])

    return apply


def _to_jsonb(types: tuple[Type, ...]) -> Callable[..., object]:
    return lambda context, value: _maker(types[0], context.zone)(value)


def _render_array(args: Sequence[Sql], context: Context) -> Sql:
    return Sql(_built_array(f"[{', '.join(_render_document(arg, context) for arg in args)}]"), JSONB)


def _render_object(args: Sequence[Sql], context: Context) -> Sql:
    parts = [(_render_document if i % 2 else _render_key)(arg, context) for i, arg in enumerate(args)]
    return Sql(_built_object(f"[{', '.join(parts)}]"), JSONB)


def _unspecialised(*args: object) -> object:
    raise AssertionError("a polymorphic function is evaluated by closure(types)")


def _builder(
    name: str,
    specialise: Callable[[tuple[Type, ...]], Callable[..., object]],
    render: Callable[[Sequence[Sql], Context], Sql],
    *,
    variadic: bool = True,
) -> Function:
    return Function(
        name,
        (ANY,),
        JSONB,
        _unspecialised,
        render,
        strict=not variadic,
        volatility="stable",  # as PostgreSQL's: a timestamptz is written in the session's zone
        variadic=variadic,
        context=True,
        specialise=specialise,
    )


# --- aggregates ------------------------------------------------------------------------------------------------------


def _aggregated(types: tuple[Type, ...]) -> Type:
    """jsonb. An aggregate does not know the session's zone, to_jsonb in its argument does."""
    if any(type_.kind is Kind.TIMESTAMPTZ for type_ in types):
        message = "an aggregate of timestamptz into jsonb is not supported"
        raise errors.error(errors.FEATURE_NOT_SUPPORTED, message, hint="Write to_jsonb(...) around it.")
    return JSONB


class _Elements:
    __slots__ = ("documents", "make")

    def __init__(self, make: Callable[[Any], str]) -> None:
        self.make = make
        self.documents: list[str] = []

    def add(self, value: object) -> None:
        self.documents.append(self.make(value))

    def result(self) -> str | None:
        return _array(self.documents) if self.documents else None


class _Members:
    __slots__ = ("key", "make", "pairs")

    def __init__(self, key: Callable[[Any], str | None], make: Callable[[Any], str]) -> None:
        self.key, self.make = key, make
        self.pairs: dict[str, str] = {}

    def add(self, name: object, value: object) -> None:
        key = self.key(name)
        if key is None:
            raise errors.error(errors.INVALID_PARAMETER, "field name must not be null")
        self.pairs[key] = self.make(value)

    def result(self) -> str | None:
        return jsonb.object_of(self.pairs) if self.pairs else None


def _collect(documents: Sequence[str | None], distinct: bool) -> str | None:
    if distinct:  # values are equal if their documents are
        first: dict[object, str | None] = {}
        for document in documents:
            first.setdefault(None if document is None else jsonb.sort_key(document), document)
        documents = list(first.values())
    return _array(documents) if documents else None


def _collect_members(pairs: Sequence[dict[str, str | None]]) -> str | None:
    members = _Members(lambda key: key, lambda document: "null" if document is None else document)
    for pair in pairs:
        members.add(pair["k"], pair["v"])
    return members.result()


_elements = register("jsonb_agg", _collect, [STRING_LIST, BOOLEAN], JSONB)
_members = register("jsonb_object_agg", _collect_members, ["STRUCT(k VARCHAR, v VARCHAR)[]"], JSONB)
_NO_CONTEXT = Context(now=0)  # nothing that an aggregate takes is written by it


def _render_elements(modifiers: AggregateSql, args: Sequence[Sql]) -> Sql:
    plain = AggregateSql(False, modifiers.order_by, modifiers.filter, modifiers.over)
    listed = plain.call("list", _render_document(args[0], _NO_CONTEXT))
    return Sql(_elements(listed, "TRUE" if modifiers.distinct else "FALSE"), JSONB)


def _render_members(modifiers: AggregateSql, args: Sequence[Sql]) -> Sql:
    # DISTINCT leaves the result as it is: the last of equal keys wins, whichever it is.
    plain = AggregateSql(False, modifiers.order_by, modifiers.filter, modifiers.over)
    key, value = _render_key(args[0], _NO_CONTEXT), _render_document(args[1], _NO_CONTEXT)
    return Sql(_members(plain.call("list", f"{{'k': {key}, 'v': {value}}}")), JSONB)


def _element_aggregate(types: tuple[Type, ...]) -> Callable[[], Accumulator]:
    make = _maker(types[0], "UTC")
    return lambda: _Elements(make)


def _member_aggregate(types: tuple[Type, ...]) -> Callable[[], Accumulator]:
    key, make = _keyer(types[0], "UTC"), _maker(types[1], "UTC")
    return lambda: _Members(key, make)


ENTRIES = (
    _builder(
        "to_jsonb",
        _to_jsonb,
        lambda args, context: Sql(_render_document(args[0], context), JSONB),
        variadic=False,
    ),
    _builder("jsonb_build_array", _build_array, _render_array),
    _builder("jsonb_build_object", _build_object, _render_object),
    Function("jsonb_build_array", (), JSONB, lambda: "[]", "'[]'"),
    Function("jsonb_build_object", (), JSONB, lambda: "{}", "'{{}}'"),
    Aggregate("jsonb_agg", (ANY,), _aggregated, _element_aggregate, _render_elements, strict=False, ordered=True),
    Aggregate(
        "jsonb_object_agg", (ANY, ANY), _aggregated, _member_aggregate, _render_members, strict=False, ordered=True
    ),
)
