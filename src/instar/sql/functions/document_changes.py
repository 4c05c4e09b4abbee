"""jsonb changed and put together: ||, -, #-, jsonb_set, jsonb_insert, and its other forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from instar import errors
from instar.sql.functions.documents import document_function, document_operator, path_steps, position_of, within_depth
from instar.types import BOOLEAN, INTEGER, JSONB, TEXT
from instar.values import jsonb


def _refused(message: str, hint: str | None = None) -> errors.Error:
    return errors.error(errors.INVALID_PARAMETER, message, hint=hint)


def _concatenate(left: str, right: str) -> str:
    """Two objects become one, in which the right one's members win; all else is put into one array."""
    if left[0] == right[0] == "{":
        return jsonb.write(jsonb.parse(left) | jsonb.parse(right))
    inner = [text[1:-1] if text[0] == "[" else text for text in (left, right)]
    return "[" + ", ".join(filter(None, inner)) + "]"


def _without_key(text: str, key: str) -> str:
    document = jsonb.parse(text)
    if isinstance(document, dict):
        document.pop(key, None)
    elif isinstance(document, list):
        document = [element for element in document if element != key]
    else:
        raise _refused("cannot delete from scalar")
    return jsonb.write(document)


def _without_element(text: str, position: int) -> str:
    document = jsonb.parse(text)
    if isinstance(document, dict):
        raise _refused("cannot delete from object using integer index")
    if not isinstance(document, list):
        raise _refused("cannot delete from scalar")
    if -len(document) <= position < len(document):
        del document[position]
    return jsonb.write(document)


# --- at a path -------------------------------------------------------------------------------------------------------

# What is done to the member or element that a path ends in: there is one, or there is none.
_Change = Callable[[Any, Any], None]


def _position(step: str, level: int) -> int:
    position = position_of(step)
    if position is None:
        message = f'path element at position {level + 1} is not an integer: "{step}"'
        raise errors.error(errors.INVALID_TEXT, message)
    return position


def _at_path(text: str, path: str, what: str, there: _Change, absent: _Change) -> str:
    """`text` changed where `path` leads. What leads nowhere before its last step changes nothing."""
    document = jsonb.parse(text)
    if not isinstance(document, (dict, list)):
        raise _refused(f"cannot {what} path in scalar")
    steps = path_steps(path)
    current: Any = document
    for level, step in enumerate(steps):
        last = level == len(steps) - 1
        if step is None:
            raise errors.error(errors.NULL_VALUE_NOT_ALLOWED, f"path element at position {level + 1} is null")
        if isinstance(current, dict):
            key: Any = step
            found = key in current
        elif isinstance(current, list):
            key = _position(step, level)
            found = -len(current) <= key < len(current)
        else:
            break
        if last:
            (there if found else absent)(current, key)
        elif not found:
            break
        else:
            current = current[key]
    return jsonb.write(document)


def _nothing(container: Any, key: Any) -> None:
    pass


def _delete(container: Any, key: Any) -> None:
    del container[key]


def _putting(value: Any) -> _Change:
    return lambda container, key: container.__setitem__(key, value)


def _adding(value: Any) -> _Change:
    """A new member, or an element before the first or behind the last one."""

    def add(container: Any, key: Any) -> None:
        if isinstance(container, dict):
            container[key] = value
        else:
            container.insert(0 if key < 0 else len(container), value)

    return add


def _inserting(value: Any, after: bool) -> _Change:
    def insert(container: Any, key: Any) -> None:
        if isinstance(container, dict):
            raise _refused("cannot replace existing key", "Try using the function jsonb_set to replace key value.")
        container.insert(key % len(container) + after, value)

    return insert


def _without_path(text: str, path: str) -> str:
    if text in ("{}", "[]"):  # PostgreSQL does not look at the path then
        return text
    return _at_path(text, path, "delete", _delete, _nothing)


def _set(text: str, path: str, value: str, create: bool = True) -> str:
    if text in ("{}", "[]") and not create:
        return text
    new = jsonb.parse(value)
    return _at_path(text, path, "set", _putting(new), _adding(new) if create else _nothing)


def _insert(text: str, path: str, value: str, after: bool = False) -> str:
    new = jsonb.parse(value)
    return _at_path(text, path, "set", _inserting(new, after), _adding(new))


# --- other forms -----------------------------------------------------------------------------------------------------


def _without_nulls(document: Any) -> Any:
    if isinstance(document, dict):
        return {key: _without_nulls(value) for key, value in document.items() if value is not None}
    return list(map(_without_nulls, document)) if isinstance(document, list) else document


@within_depth
def _strip_nulls(text: str) -> str:
    return jsonb.write(_without_nulls(jsonb.parse(text)))


def _lines(document: Any, indent: str) -> str:
    if not isinstance(document, (dict, list)):
        return jsonb.write(document)
    deeper = indent + "    "
    if isinstance(document, dict):
        # In a canonical text the keys stand in their order.
        parts = [f"{deeper}{jsonb.write(key)}: {_lines(value, deeper)}" for key, value in document.items()]
    else:
        parts = [deeper + _lines(value, deeper) for value in document]
    opening, closing = "{}" if isinstance(document, dict) else "[]"
    return "\n".join([opening, *([",\n".join(parts)] if parts else []), indent + closing])


@within_depth
def _pretty(text: str) -> str:
    return _lines(jsonb.parse(text), "")


def _of_path(name: str, closure: Callable[..., object]) -> Sequence[Any]:
    """jsonb_set and jsonb_insert: their path is a text[] in PostgreSQL, here it is the text of one."""
    arguments = [JSONB, TEXT, JSONB]
    return [document_function(name, closure, signature, JSONB) for signature in (arguments, [*arguments, BOOLEAN])]


ENTRIES = (
    document_operator("||", "concatenate", _concatenate, JSONB, JSONB),
    document_operator("-", "without", _without_key, TEXT, JSONB),
    document_operator("-", "without", _without_element, INTEGER, JSONB),
    document_operator("#-", "without_path", _without_path, TEXT, JSONB),
    *_of_path("jsonb_set", _set),
    *_of_path("jsonb_insert", _insert),
    document_function("jsonb_strip_nulls", _strip_nulls, [JSONB], JSONB),
    document_function("jsonb_pretty", _pretty, [JSONB], TEXT),
)
