"""jsonb operators and functions, on canonical text (values/jsonb.py)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

from instar import errors
from instar.sql.functions.model import Function
from instar.sql.functions.udfs import STRING_LIST, register
from instar.types import BOOLEAN, INTEGER, INTEGER_RANGES, JSONB, TEXT, Kind, Type
from instar.values import jsonb

P = ParamSpec("P")
R = TypeVar("R")


def within_depth(closure: Callable[P, R]) -> Callable[P, R]:
    """The closure, for which a document may be nested too deeply though it could be read: 54000."""

    def bounded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return closure(*args, **kwargs)
        except RecursionError:
            raise jsonb.too_deep() from None

    return bounded


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


# In quotes, or bare: then it ends with its last character that is escaped or no space.
_ELEMENT = re.compile(
    r'\s*(?:"((?:[^"\\]|\\.)*)"|((?:[^",{}\s\\]|\\.)(?:(?:[^",{}\\]|\\.)*(?:[^",{}\s\\]|\\.))?))\s*(,|\Z)',
    re.ASCII | re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_SPACES = " \t\n\v\f\r"
_POSITION = re.compile(rf"[{_SPACES}]*([+-]?)0*(\d{{1,10}})", re.ASCII)


def path_steps(path: str) -> list[str | None]:
    """The elements of a path such as {a,0,"b c"}, PostgreSQL's text of a text[], where NULL is None. Errors: 22P02."""
    inner = path.strip(_SPACES)
    if not (inner.startswith("{") and inner.endswith("}")):
        raise errors.error(errors.INVALID_TEXT, f'malformed array literal: "{path}"')
    steps: list[str | None] = []
    inner, position = inner[1:-1], 0
    if not inner.strip(_SPACES):
        return steps
    while position < len(inner):
        match = _ELEMENT.match(inner, position)
        if match is None or (match[3] == "," and match.end() == len(inner)):
            raise errors.error(errors.INVALID_TEXT, f'malformed array literal: "{path}"')
        if match[2] is not None and match[2].lower() == "null":
            steps.append(None)
        else:
            steps.append(_ESCAPED.sub(r"\1", match[1] if match[2] is None else match[2]))
        position = match.end()
    return steps


def position_of(step: str) -> int | None:
    """The position in an array that an element of a path is; None if it is none."""
    match = _POSITION.fullmatch(step)
    if match is None:
        return None
    low, high = INTEGER_RANGES[Kind.INTEGER]
    position = int(match[1] + match[2])
    return position if low <= position <= high else None


def _follow(text: str, path: str) -> tuple[bool, Any]:
    document = jsonb.parse(text)
    found = True
    for step in path_steps(path):
        if step is None:
            return False, None
        key = position_of(step) if isinstance(document, list) else step
        if key is None:
            return False, None
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


def _same(a: Any, b: Any) -> bool:
    """Whether two scalars are the same: Python's True is a 1, JSON's is not."""
    return isinstance(a, bool) is isinstance(b, bool) and bool(a == b)


def _holds(document: Any, part: Any) -> bool:
    """Whether a document contains another of its kind, as @> has it below the top."""
    if isinstance(document, dict):
        return isinstance(part, dict) and all(key in document and _holds(document[key], part[key]) for key in part)
    if isinstance(document, list):
        return isinstance(part, list) and all(any(_holds(mine, its) for mine in document) for its in part)
    return not isinstance(part, (dict, list)) and _same(document, part)


@within_depth
def _contains(text: str, part: str) -> bool:
    document, inner = jsonb.parse(text), jsonb.parse(part)
    if isinstance(document, list) and not isinstance(inner, (dict, list)):
        inner = [inner]  # an array contains a bare scalar that is an element of it
    return _holds(document, inner)


def _exists(text: str, key: str) -> bool:
    document = jsonb.parse(text)
    return key in document if isinstance(document, (dict, list)) else bool(document == key)


def _elements(text: str) -> Iterable[Any]:
    if text[0] != "[":
        kind = "an object" if text[0] == "{" else "a scalar"
        raise errors.error(errors.INVALID_PARAMETER, f"cannot extract elements from {kind}")
    document: list[Any] = jsonb.parse(text)
    return document


def _array_elements(text: str) -> list[str]:
    return list(map(jsonb.write, _elements(text)))


def _array_elements_text(text: str) -> list[str | None]:
    return [_as_text(True, element) for element in _elements(text)]


def _object_keys(text: str) -> list[str]:
    if text[0] != "{":
        kind = "an array" if text[0] == "[" else "a scalar"
        raise errors.error(errors.INVALID_PARAMETER, f"cannot call jsonb_object_keys on {kind}")
    return list(jsonb.parse(text))


def document_operator(symbol: str, name: str, closure: Callable[..., object], argument: Type, result: Type) -> Function:
    """An operator with a document to its left."""
    call = register(f"jsonb_{name}_{argument.kind.name.lower()}", closure, [JSONB, argument], result)
    return Function(symbol, (JSONB, argument), result, closure, call("{0}", "{1}"), operator=True)


def document_function(name: str, closure: Callable[..., object], arguments: Sequence[Type], result: Type) -> Function:
    """A function whose two forms are one closure."""
    call = register(f"{name}_{len(arguments)}", closure, arguments, result)
    return Function(name, tuple(arguments), result, closure, call(*(f"{{{i}}}" for i in range(len(arguments)))))


def _set_of(name: str, closure: Callable[..., object], result: Type, column: str | None = None) -> Function:
    call = register(f"{name}_1", closure, [JSONB], STRING_LIST)
    return Function(name, (JSONB,), result, closure, call("{0}"), returns_set=True, column=column)


ENTRIES = (
    document_operator("->", "get", _get, TEXT, JSONB),
    document_operator("->", "get", _get, INTEGER, JSONB),
    document_operator("->>", "get_text", _get_text, TEXT, TEXT),
    document_operator("->>", "get_text", _get_text, INTEGER, TEXT),
    # The path is a text[] in PostgreSQL; here it is the text of one.
    document_operator("#>", "get_path", _get_path, TEXT, JSONB),
    document_operator("#>>", "get_path_text", _get_path_text, TEXT, TEXT),
    document_operator("@>", "contains", _contains, JSONB, BOOLEAN),
    document_operator("<@", "contained", lambda part, text: _contains(text, part), JSONB, BOOLEAN),
    document_operator("?", "exists", _exists, TEXT, BOOLEAN),
    document_function("jsonb_typeof", jsonb.type_name, [JSONB], TEXT),
    document_function("jsonb_array_length", _array_length, [JSONB], INTEGER),
    document_function("jsonb_exists", _exists, [JSONB, TEXT], BOOLEAN),
    _set_of("jsonb_array_elements", _array_elements, JSONB, "value"),
    _set_of("jsonb_array_elements_text", _array_elements_text, TEXT, "value"),
    _set_of("jsonb_object_keys", _object_keys, TEXT),
)
