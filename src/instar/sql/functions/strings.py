"""String and bytea functions and operators: lengths are in characters, order and case are C.UTF-8's."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from instar import errors
from instar.sql.functions.model import ANY, Context, Function, Sql
from instar.sql.functions.rendering import quote, render_cast, repeatable
from instar.sql.functions.udfs import register
from instar.types import BIGINT, BOOLEAN, BYTEA, INTEGER, TEXT, Kind, Type
from instar.values import compile_cast, numbers, writer
from instar.values.text import hex_bytes

Sliced = TypeVar("Sliced", str, bytes)

_MAX_LENGTH = 1 << 28  # characters that one call may make
_BASE64_SPACES = dict.fromkeys(map(ord, " \t\n\r"))  # passed over


def called(name: str, closure: Callable[..., object], arguments: Sequence[Type], result: Type) -> Function:
    """A function that DuckDB calls back."""
    suffix = "_".join(type_.kind.name.lower() for type_ in arguments)
    call = register(f"{name}_{suffix}", closure, arguments, result)
    return Function(name, tuple(arguments), result, closure, call(*(f"{{{i}}}" for i in range(len(arguments)))))


def constant(operand: Sql) -> int | None:
    """The value of an integer literal as `render_literal` writes it; None for anything else."""
    match = re.fullmatch(r"CAST\((-?\d+) AS (?:SMALLINT|INTEGER|BIGINT)\)", operand.text)
    return int(match[1]) if match else None


def constant_text(operand: Sql) -> str | None:
    """The value of a string literal; None for anything else."""
    match = re.fullmatch(r"'((?:[^']|'')*)'", operand.text, re.DOTALL)
    return match[1].replace("''", "'") if match else None


# --- case ------------------------------------------------------------------------------------------------------------


def upper(text: str) -> str:
    """Character by character: what has no upper-case form of one character stays."""
    if text.isascii():
        return text.upper()
    return "".join([big if len(big := character.upper()) == 1 else character for character in text])


def lower(text: str) -> str:
    """Character by character."""
    if text.isascii():
        return text.lower()
    return "".join([small if len(small := character.lower()) == 1 else character for character in text])


def _initcap(text: str) -> str:
    found, inside = [], False
    for character in text:
        found.append(lower(character) if inside else upper(character))
        inside = character.isalnum()
    return "".join(found)


def _case(name: str, call: Callable[..., str]) -> Callable[[str], str]:
    def render(text: str) -> str:
        if repeatable(text):  # as many bytes as characters: ASCII, in which DuckDB agrees
            return f"(CASE WHEN strlen({text}) = length({text}) THEN {name}({text}) ELSE {call(text)} END)"
        return call(text)

    return render


_render_lower = _case("lower", register("lower", lower, [TEXT], TEXT))
_render_upper = _case("upper", register("upper", upper, [TEXT], TEXT))


def _on_first(render: Callable[[str], str]) -> Callable[[Sequence[Sql], Context], Sql]:
    return lambda args, context: Sql(render(args[0].text), TEXT)


# --- parts -----------------------------------------------------------------------------------------------------------


def substring(text: Sliced, start: int, length: int | None = None) -> Sliced:
    """Characters, or bytes, from `start` (1-based; before the first counts against `length`). Errors: 22011."""
    if length is None:
        return text[max(start - 1, 0) :]
    if length < 0:
        raise errors.error(errors.SUBSTRING_ERROR, "negative substring length not allowed")
    return text[max(start - 1, 0) : max(start - 1 + length, 0)]


_substring = register("substring", substring, [TEXT, INTEGER, INTEGER], TEXT)
_substring_from = register("substring_from", substring, [TEXT, INTEGER], TEXT)


def _render_substring(args: Sequence[Sql], context: Context) -> Sql:
    texts = [arg.text for arg in args]
    start, length = constant(args[1]), constant(args[2]) if len(args) > 2 else 0
    if start is not None and start > 0 and length is not None and length >= 0:
        return Sql(f"substring({', '.join(texts)})", TEXT)
    return Sql((_substring if len(args) > 2 else _substring_from)(*texts), TEXT)


def _left(text: str, count: int) -> str:
    return text[:count]


def _right(text: str, count: int) -> str:
    return text[-count:] if count else ""


def _split_part(text: str, delimiter: str, field: int) -> str:
    if field == 0:
        raise errors.error(errors.INVALID_PARAMETER, "field position must not be zero")
    if not text:
        return ""
    parts = text.split(delimiter) if delimiter else [text]
    index = field - 1 if field > 0 else len(parts) + field
    return parts[index] if 0 <= index < len(parts) else ""


def _pad(left: bool) -> Callable[..., str]:
    def pad(text: str, length: int, fill: str = " ") -> str:
        missing = length - len(text)
        if missing <= 0 or not fill:
            return text[: max(length, 0)]
        _check_length(length)
        padding = (fill * (missing // len(fill) + 1))[:missing]
        return padding + text if left else text + padding

    return pad


def _check_length(length: int) -> None:
    if length > _MAX_LENGTH:
        raise errors.error(errors.LIMIT_EXCEEDED, "requested length too large")


def _repeat(text: str, count: int) -> str:
    _check_length(len(text) * count)
    return text * count


def overlay(text: Sliced, new: Sliced, start: int, length: int | None = None) -> Sliced:
    """`text` with `new` in the place of `length` characters or bytes from `start`. Errors: 22011, 22003."""
    if start <= 0:
        raise errors.error(errors.SUBSTRING_ERROR, "negative substring length not allowed")
    end = start + (len(new) if length is None else length)
    if end >= 1 << 31:
        raise numbers.out_of_range(Kind.INTEGER)
    return text[: start - 1] + new + text[max(end - 1, 0) :]


def _translate(text: str, old: str, new: str) -> str:
    table: dict[int, str | None] = {}
    for index, character in enumerate(old):
        table.setdefault(ord(character), new[index] if index < len(new) else None)
    return text.translate(table)


def _strip(method: Callable[[str, str], str]) -> Callable[..., str]:
    return lambda text, characters=" ": method(text, characters)


_STRIPPERS = {"btrim": _strip(str.strip), "ltrim": _strip(str.lstrip), "rtrim": _strip(str.rstrip)}


def _trims() -> list[Function]:
    found = []
    for name, closure in _STRIPPERS.items():
        native = "trim" if name == "btrim" else name
        found.append(Function(name, (TEXT,), TEXT, closure, f"{native}({{0}}, ' ')"))
        found.append(Function(name, (TEXT, TEXT), TEXT, closure, f"{native}({{0}}, {{1}})"))
    return found


def _replace(text: str, old: str, new: str) -> str:
    if not old:
        return text
    result = text.replace(old, new)
    _check_length(len(result))
    return result


# --- codes -----------------------------------------------------------------------------------------------------------


def _ascii(text: str) -> int:
    return ord(text[0]) if text else 0


def _chr(code: int) -> str:
    if code < 0:
        raise errors.error(errors.INVALID_PARAMETER, "character number must be positive")
    if code == 0:
        raise errors.error(errors.LIMIT_EXCEEDED, "null character not permitted")
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise errors.error(errors.LIMIT_EXCEEDED, f"requested character not valid for encoding: {code}")
    return chr(code)


def _to_hex(bits: int) -> Callable[[int], str]:
    return lambda value: f"{value & ((1 << bits) - 1):x}"


def _encode(value: bytes, form: str) -> str:
    form = form.lower()
    if form == "hex":
        return value.hex()
    if form == "base64":
        digits = base64.b64encode(value).decode()
        return "\n".join(digits[i : i + 76] for i in range(0, len(digits), 76))
    if form == "escape":
        return "".join("\\\\" if byte == 92 else chr(byte) if 0 < byte < 128 else f"\\{byte:03o}" for byte in value)
    raise errors.error(errors.INVALID_PARAMETER, f'unrecognized encoding: "{form}"')


def _decode(text: str, form: str) -> bytes:
    form = form.lower()
    if form == "hex":
        return hex_bytes(text)
    if form == "base64":
        return _base64_bytes(text)
    if form == "escape":
        closure = compile_cast(TEXT, BYTEA, True)
        assert closure is not None
        result = closure(text if not text.startswith("\\x") else "\\" + text)
        assert isinstance(result, bytes)
        return result
    raise errors.error(errors.INVALID_PARAMETER, f'unrecognized encoding: "{form}"')


def _base64_bytes(text: str) -> bytes:
    padded = text.translate(_BASE64_SPACES)
    digits = len(padded.rstrip("="))
    try:
        if len(padded) - digits != -digits % 4:  # Python takes more of them
            raise ValueError
        return base64.b64decode(padded, validate=True)
    except ValueError:
        raise errors.error(errors.INVALID_PARAMETER, "invalid base64 sequence") from None


def _md5(value: str | bytes) -> str:
    raw = value.encode() if isinstance(value, str) else value
    return hashlib.md5(raw, usedforsecurity=False).hexdigest()


# --- LIKE ------------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=512)
def like_pattern(pattern: str) -> re.Pattern[str]:
    """The regular expression of a LIKE pattern whose escape is the backslash. Errors: 22025.

    What stands between two `%` is looked for from left to right, and where it is found first it stays: the rest has the
    most room then. So nothing is tried again, which would take the length of the text to the power of the `%`.
    """
    pieces, characters = [""], iter(pattern)
    for character in characters:
        if character == "\\":
            literal = next(characters, None)
            if literal is None:
                raise errors.error(errors.INVALID_ESCAPE_SEQUENCE, "LIKE pattern must not end with escape character")
            pieces[-1] += re.escape(literal)
        elif character == "%":
            pieces.append("")
        else:
            pieces[-1] += "." if character == "_" else re.escape(character)
    first, *between = pieces
    if not between:
        return re.compile(first, re.DOTALL)
    last = between.pop()
    return re.compile(first + "".join(f"(?>.*?{piece})" for piece in between if piece) + ".*" + last, re.DOTALL)


def like(text: str, pattern: str) -> bool:
    """`text LIKE pattern`."""
    return like_pattern(pattern).fullmatch(text) is not None


def like_beginning(pattern: str) -> str:
    """What every text begins with that is LIKE the pattern."""
    found, characters = [], iter(pattern)
    for character in characters:
        if character in "%_":
            break
        found.append(next(characters, "") if character == "\\" else character)
    return "".join(found)


def like_escape(pattern: str, escape: str) -> str:
    """The pattern rewritten to the backslash as its escape. Errors: 22025."""
    if len(escape) > 1:
        raise errors.error(
            errors.INVALID_ESCAPE_SEQUENCE,
            "invalid escape string",
            hint="Escape string must be empty or one character.",
        )
    if escape == "\\":
        return pattern
    found, characters = [], iter(pattern)
    for character in characters:
        if character == escape:
            found.append("\\" + next(characters, ""))
        else:
            found.append("\\\\" if character == "\\" else character)
    return "".join(found)


def _render_like(
    closure: Callable[[str, str], bool], negated: bool, folded: bool
) -> Callable[[Sequence[Sql], Context], Sql]:
    name = f"{'not_' if negated else ''}{'i' if folded else ''}like"
    call = register(name, closure, [TEXT, TEXT], BOOLEAN)

    def render(args: Sequence[Sql], context: Context) -> Sql:
        pattern = constant_text(args[1])
        if pattern is None or "\\" in pattern:  # when DuckDB finds a bad escape depends on the text: not so ours
            return Sql(call(args[0].text, args[1].text), BOOLEAN)
        text = _render_lower(args[0].text) if folded else args[0].text
        literal = quote(lower(pattern)) if folded else args[1].text
        return Sql(f"({text} {'NOT ' if negated else ''}LIKE {literal})", BOOLEAN)

    return render


def _likes() -> list[Function]:
    closures: dict[str, Callable[[str, str], bool]] = {
        "~~": like,
        "!~~": lambda text, pattern: not like(text, pattern),
        "~~*": lambda text, pattern: like(lower(text), lower(pattern)),
        "!~~*": lambda text, pattern: not like(lower(text), lower(pattern)),
    }
    return [
        Function(
            symbol,
            (TEXT, TEXT),
            BOOLEAN,
            closure,
            _render_like(closure, symbol.startswith("!"), symbol.endswith("*")),
            operator=True,
        )
        for symbol, closure in closures.items()
    ]


# --- concatenation ---------------------------------------------------------------------------------------------------


def _output(operand: Sql, context: Context) -> str:
    """The output text of an operand: as the cast to text, but for booleans."""
    if operand.type.kind is Kind.BOOLEAN:
        return f"(CASE {operand.text} WHEN TRUE THEN 't' WHEN FALSE THEN 'f' END)"
    return render_cast(operand, TEXT, True, context).text


def _concat(types: tuple[Type, ...]) -> Callable[..., object]:
    def apply(context: Context, *args: object) -> str:
        return "".join(_pieces(types, args, context))

    return apply


def _concat_ws(types: tuple[Type, ...]) -> Callable[..., object]:
    def apply(context: Context, separator: str | None, *args: object) -> str | None:
        return None if separator is None else separator.join(_pieces(types[1:], args, context))

    return apply


def _pieces(types: Sequence[Type], args: Sequence[object], context: Context) -> list[str]:
    pairs = zip(types, args, strict=True)
    return [writer(type_, context.zone)(value) for type_, value in pairs if value is not None]


def _render_concat(name: str) -> Callable[[Sequence[Sql], Context], Sql]:
    return lambda args, context: Sql(f"{name}({', '.join(_output(arg, context) for arg in args)})", TEXT)


def _append(types: tuple[Type, ...]) -> Callable[..., object]:
    """text || anything, anything || text: the other side is cast to text."""

    def apply(context: Context, a: Any, b: Any) -> str:
        return "".join(
            str(value if (closure := compile_cast(type_, TEXT, True, context.zone)) is None else closure(value))
            for type_, value in zip(types, (a, b), strict=True)
        )

    return apply


def _render_append(args: Sequence[Sql], context: Context) -> Sql:
    left, right = (render_cast(arg, TEXT, True, context).text for arg in args)
    return Sql(f"({left} || {right})", TEXT)


def _unspecialised(*args: object) -> object:
    raise AssertionError("a polymorphic function is evaluated by closure(types)")


_CONCATENATIONS = (
    Function("||", (TEXT, TEXT), TEXT, lambda a, b: a + b, "({0} || {1})", operator=True, inline="({0} + {1})"),
    Function("||", (BYTEA, BYTEA), BYTEA, lambda a, b: a + b, "({0} || {1})", operator=True, inline="({0} + {1})"),
    *(
        Function(
            "||",
            arguments,
            TEXT,
            _unspecialised,
            _render_append,
            volatility="stable",
            operator=True,
            context=True,
            specialise=_append,
        )
        for arguments in ((TEXT, ANY), (ANY, TEXT))
    ),
    *(
        Function(
            name,
            arguments,
            TEXT,
            _unspecialised,
            _render_concat(name),
            strict=False,
            volatility="stable",
            variadic=True,
            context=True,
            specialise=specialise,
        )
        for name, arguments, specialise in (("concat", (ANY,), _concat), ("concat_ws", (TEXT, ANY), _concat_ws))
    ),
)

_LENGTHS = tuple(
    Function(name, (type_,), INTEGER, closure, f"CAST({native} AS INTEGER)")
    for names, type_, closure, native in (
        (("length", "char_length", "character_length"), TEXT, len, "length({0})"),
        (("octet_length",), TEXT, lambda text: len(text.encode()), "strlen({0})"),
        (("bit_length",), TEXT, lambda text: 8 * len(text.encode()), "8 * strlen({0})"),
        (("length", "octet_length"), BYTEA, len, "octet_length({0})"),
        (("bit_length",), BYTEA, lambda value: 8 * len(value), "8 * octet_length({0})"),
    )
    for name in names
)

ENTRIES = (
    *_LENGTHS,
    *_CONCATENATIONS,
    *_likes(),
    *_trims(),
    Function("lower", (TEXT,), TEXT, lower, _on_first(_render_lower)),
    Function("upper", (TEXT,), TEXT, upper, _on_first(_render_upper)),
    called("initcap", _initcap, [TEXT], TEXT),
    Function("substring", (TEXT, INTEGER), TEXT, substring, _render_substring),
    Function("substring", (TEXT, INTEGER, INTEGER), TEXT, substring, _render_substring),
    Function("substr", (TEXT, INTEGER), TEXT, substring, _render_substring),
    Function("substr", (TEXT, INTEGER, INTEGER), TEXT, substring, _render_substring),
    *(
        Function(name, (TEXT, TEXT), INTEGER, lambda a, b: a.find(b) + 1, "CAST(strpos({0}, {1}) AS INTEGER)")
        for name in ("position", "strpos")  # position(a IN b) is position(b, a)
    ),
    Function("starts_with", (TEXT, TEXT), BOOLEAN, str.startswith, "starts_with({0}, {1})"),
    Function("replace", (TEXT, TEXT, TEXT), TEXT, _replace, "replace({0}, {1}, {2})"),
    called("left", _left, [TEXT, INTEGER], TEXT),
    called("right", _right, [TEXT, INTEGER], TEXT),
    called("lpad", _pad(True), [TEXT, INTEGER], TEXT),
    called("lpad", _pad(True), [TEXT, INTEGER, TEXT], TEXT),
    called("rpad", _pad(False), [TEXT, INTEGER], TEXT),
    called("rpad", _pad(False), [TEXT, INTEGER, TEXT], TEXT),
    called("repeat", _repeat, [TEXT, INTEGER], TEXT),
    called("reverse", lambda text: text[::-1], [TEXT], TEXT),
    called("split_part", _split_part, [TEXT, TEXT, INTEGER], TEXT),
    called("translate", _translate, [TEXT, TEXT, TEXT], TEXT),
    called("overlay", overlay, [TEXT, TEXT, INTEGER], TEXT),
    called("overlay", overlay, [TEXT, TEXT, INTEGER, INTEGER], TEXT),
    called("ascii", _ascii, [TEXT], INTEGER),
    called("chr", _chr, [INTEGER], TEXT),
    called("to_hex", _to_hex(32), [INTEGER], TEXT),
    called("to_hex", _to_hex(64), [BIGINT], TEXT),
    called("encode", _encode, [BYTEA, TEXT], TEXT),
    called("decode", _decode, [TEXT, TEXT], BYTEA),
    called("md5", _md5, [TEXT], TEXT),
    called("md5", _md5, [BYTEA], TEXT),
    called("sha256", lambda value: hashlib.sha256(value).digest(), [BYTEA], BYTEA),
    called("like_escape", like_escape, [TEXT, TEXT], TEXT),
)
