"""jsonb operators and functions, on canonical text (values/jsonb.py)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from instar import errors
from instar.sql.functions.model import Function
from instar.sql.functions.udfs import register
from instar.types import INTEGER, JSONB, TEXT, Type
from instar.values import jsonb


def _child(document: Any, step: str | int) -> tuple[bool, Any]:
    """(found, value) of one member or element."""
    if isinstance(document, dict) and isinstance(step, str):
        return step in document, document.get(step)
    if isinstance(document, list) and isinstance(step, int) and -len(document) <= step < len(document):
        return True, document[step]
    return False, None


def _member(text: str, step: str | int) -> tuple[bool, Any]:
    document = jsonb.parse(text)
    if text[0] not in "{[":
        document = [document]  # PostgreSQL keeps a bare scalar as an array of one, and lets it be seen here
    return _child(document, step)


def _get(text: str, step: str | int) -> str | None:
    found, value = _member(text, step)
    return jsonb.write(value) if found else None


def _as_text(found: bool, value: Any) -> str | None:
    if not found or value is None:
        return None
    return value if isinstance(value, str) else jsonb.write(value)


def _get_text(text: str, step: str | int) -> str | None:
    return _as_text(*_member(text, step))


_ELEMENT = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([^",{}\s\\](?:[^",{}\\]*[^",{}\s\\])?))\s*(,|\Z)', re.DOTALL)


def path_steps(path: str) -> list[str]:
    """The elements of a path such as {a,0,"b c"}, PostgreSQL's text of a text[]. Errors: 22P02."""
    inner = path.strip()
    if not (inner.startswith("{") and inner.endswith("}")):
        raise errors.error(errors.INVALID_TEXT, f'malformed array literal: "{path}"')
    inner, steps, position = inner[1:-1].strip(), [], 0
    while position < len(inner):
        match = _ELEMENT.match(inner, position)
        if match is None or (match[3] == "," and match.end() == len(inner)):
            raise errors.error(errors.INVALID_TEXT, f'malformed array literal: "{path}"')
        steps.append(re.sub(r"\\(.)", r"\1", match[1], flags=re.DOTALL) if match[2] is None else match[2])
        position = match.end()
    return steps


def _follow(text: str, path: str) -> tuple[bool, Any]:
    document = jsonb.parse(text)
    found = True
    for step in path_steps(path):
        key: str | int = step
        if isinstance(document, list):
            if not re.fullmatch(r"[+-]?\d{1,9}", step):
                return False, None
            key = int(step)
        found, document = _child(document, key)
        if not found:
            return False, None
    return found, document


def _get_path(text: str, path: str) -> str | None:
    found, value = _follow(text, path)
    return jsonb.write(value) if found else None


def _get_path_text(text: str, path: str) -> str | None:
    return _as_text(*_follow(text, path))


def _array_length(text: str) -> int:
    if text[0] != "[":
        kind = "a non-array" if text[0] == "{" else "a scalar"
        message = f"cannot get array length of {kind}"
        raise errors.error(errors.INVALID_PARAMETER, message)
    return len(jsonb.parse(text))


def _operator(symbol: str, name: str, closure: Callable[..., object], argument: Type, result: Type) -> Function:
    call = register(f"jsonb_{name}_{argument.kind.name.lower()}", closure, [JSONB, argument], result)
    return Function(symbol, (JSONB, argument), result, closure, call("{0}", "{1}"), operator=True)


def _function(name: str, closure: Callable[..., object], arguments: Sequence[Type], result: Type) -> Function:
    call = register(name, closure, arguments, result)
    return Function(name, tuple(arguments), result, closure, call("{0}"))


ENTRIES = (
    _operator("->", "get", _get, TEXT, JSONB),
    _operator("->", "get", _get, INTEGER, JSONB),
    _operator("->>", "get_text", _get_text, TEXT, TEXT),
    _operator("->>", "get_text", _get_text, INTEGER, TEXT),
    # The path is a text[] in PostgreSQL; here it is the text of one.
    _operator("#>", "get_path", _get_path, TEXT, JSONB),
    _operator("#>>", "get_path_text", _get_path_text, TEXT, TEXT),
    _function("jsonb_typeof", jsonb.type_name, [JSONB], TEXT),
    _function("jsonb_array_length", _array_length, [JSONB], INTEGER),
)
