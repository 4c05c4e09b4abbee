"""PostgreSQL's lexical rules (manual §4.1): text -> tokens with character positions.

One deviation: `?` is never part of an operator, since it is a parameter (PEP 249's qmark style); behind an
operand the grammar takes it for the operator of jsonb.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from instar import errors
from instar.sql.grammar import constants

WORD = "word"  # an unquoted identifier or keyword, folded to lower case
QUOTED = "quoted"  # "..." or U&"..."
STRING = "string"  # '...', E'...', U&'...', $$...$$: the value
NUMBER = "number"
OPERATOR = "operator"  # operators and punctuation
PARAMETER = "parameter"  # "?" or "$n"
ROWS = "rows"  # rows of constants after VALUES, with the commas between them: see constants.py
END = "end"

MAX_CHARACTERS = 64 * 1024 * 1024
MAX_IDENTIFIER_BYTES = 63


class Token(NamedTuple):
    """A token: `value` is folded, unquoted and unescaped; [start, end) are characters of the text."""

    kind: str
    value: str
    start: int
    end: int


class Unterminated(Exception):
    """A quoted thing or comment that the text ends in; `split` turns it into an unfinished statement."""

    def __init__(self, what: str, start: int) -> None:
        super().__init__(what)
        self.what = what
        self.start = start


_IDENTIFIER = r"[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_$\u0080-\U0010ffff]*"
_TOKENS = re.compile(
    rf"""
      (?P<space>(?:[ \t\n\r\f\v]|--[^\n\r]*)+)
    | (?P<escaped>[eE]'(?:[^'\\]|''|\\[\s\S])*+')
    | (?P<unicode>[uU]&(?:'(?:[^']|'')*+'|"(?:[^"]|"")*+"))
    | (?P<bits>[bBxX]'[^']*')
    | (?P<national>[nN](?='))
    | (?P<word>{_IDENTIFIER})
    | (?P<string>'[^']*+(?:''[^']*+)*+')
    | (?P<quoted>"[^"]*+(?:""[^"]*+)*+")
    | (?P<number>0[xX](?:_?[0-9a-fA-F])+|0[oO](?:_?[0-7])+|0[bB](?:_?[01])+
        |(?:\d(?:_?\d)*(?:\.(?!\.)(?:\d(?:_?\d)*)?)?|\.\d(?:_?\d)*)(?:[eE][+-]?\d(?:_?\d)*)?)
    | (?P<parameter>\?|\$\d+)
    | (?P<dollar>\$(?:[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_\u0080-\U0010ffff]*)?\$)
    | (?P<comment>/\*)
    | (?P<self>::|:=|[(),;.:\[\]])
    | (?P<operator>[~!@\#^&|`+\-*/%<>=]+)
    """,
    re.VERBOSE | re.ASCII,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_ENDS_IN_SIGN = frozenset("~!@#^&|`%")  # an operator with none of these may not end in + or -
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([\s\S]))|''")
_SIMPLE_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SPACE = re.compile(r"(?:\s+|--[^\r\n]*+)*+")
_UESCAPE = re.compile(r"uescape\b", re.IGNORECASE)
_UNICODE_ESCAPE = re.compile(r"\\(?:([0-9a-fA-F]{4})|\+([0-9a-fA-F]{6})|(\\)|)")


def tokenize(text: str) -> list[Token]:
    """The tokens of `text`, END last. Errors: 42601, 22021 and 54000 (too long), all with their position."""
    try:
        return scan(text)
    except Unterminated as unfinished:
        near = text[unfinished.start : unfinished.start + 40]
        message = f'unterminated {unfinished.what} at or near "{near}"'
        raise errors.error(errors.SYNTAX_ERROR, message, position=unfinished.start + 1) from None


def scan(text: str) -> list[Token]:
    """As `tokenize`, but an unfinished end raises Unterminated."""
    _check_characters(text)
    tokens: list[Token] = []
    position, size = 0, len(text)
    match = _TOKENS.match
    while position < size:
        found = match(text, position)
        if found is None:
            raise _unexpected(text, position)
        kind, start, position = found.lastgroup, position, found.end()
        if kind == "word":
            word = found.group()
            tokens.append(Token(WORD, _truncate(word.lower() if word.isascii() else _fold(word)), start, position))
            rows = constants.rows_at(text, position) if tokens[-1].value == "values" else None
            if rows is not None:
                start, position = rows
                tokens.append(Token(ROWS, "", start, position))
        elif kind in ("space", "national"):
            continue
        elif kind == "self":
            tokens.append(Token(OPERATOR, found.group(), start, position))
        elif kind == "number":
            tokens.append(_number(text, start, position))
        elif kind == "comment":
            position = _skip_comment(text, start)
        elif kind == "operator":
            token = _operator(found.group(), start)
            position = token.end
            tokens.append(token)
        elif kind == "parameter":
            tokens.append(Token(PARAMETER, found.group(), start, position))
        else:
            token = _quotation(kind or "", found.group(), text, start, position)
            position = token.end
            if token.kind == STRING and tokens and _continues(tokens[-1], token, text):
                token = Token(STRING, tokens[-1].value + token.value, tokens.pop().start, position)
            tokens.append(token)
    tokens.append(Token(END, "", size, size))
    return tokens


def _check_characters(text: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise errors.error(errors.LIMIT_EXCEEDED, f"statement is longer than {MAX_CHARACTERS} characters")
    position = text.find("\0")
    if position < 0 and not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            position = error.start
    if position >= 0:
        message = f"invalid character U+{ord(text[position]):04X} in the statement"
        raise errors.error(errors.CHARACTER_NOT_IN_REPERTOIRE, message, position=position + 1)


def _unexpected(text: str, position: int) -> Exception:
    character = text[position]
    if character == "'" or text[position + 1 : position + 2] == "'":
        return Unterminated("quoted string", position)
    if character == '"' or text[position : position + 3].lower() == 'u&"':
        return Unterminated("quoted identifier", position)
    return errors.error(errors.SYNTAX_ERROR, f'syntax error at or near "{character}"', position=position + 1)


def _fold(word: str) -> str:
    # PostgreSQL folds only ASCII letters in multi-byte encodings, so that folding depends on no locale.
    return "".join(c.lower() if c.isascii() else c for c in word)


def _truncate(name: str) -> str:
    """PostgreSQL cuts longer identifiers, at a character's edge."""
    if len(name) * 4 <= MAX_IDENTIFIER_BYTES:
        return name
    return name.encode()[:MAX_IDENTIFIER_BYTES].decode(errors="ignore")


def _number(text: str, start: int, end: int) -> Token:
    if end < len(text) and (text[end].isalnum() or text[end] in "_$"):
        junk = re.compile(r"[\w$]+").match(text, end)
        near = text[start : junk.end() if junk else end + 1]
        message = f'trailing junk after numeric literal at or near "{near}"'
        raise errors.error(errors.SYNTAX_ERROR, message, position=start + 1)
    value = text[start:end].replace("_", "")
    if value[:2].lower() in ("0x", "0o", "0b"):
        value = str(int(value, 0))
    return Token(NUMBER, value, start, end)


def _operator(symbol: str, start: int) -> Token:
    """PostgreSQL's rule: the longest, but comments begin inside, and a trailing + or - is another operator."""
    for comment in ("--", "/*"):
        at = symbol.find(comment)
        if at > 0:
            symbol = symbol[:at]
    if len(symbol) > 1 and not _ENDS_IN_SIGN.intersection(symbol):
        symbol = symbol.rstrip("+-") or symbol[0]
    return Token(OPERATOR, "<>" if symbol == "!=" else symbol, start, start + len(symbol))


def _skip_comment(text: str, start: int) -> int:
    depth, position = 1, start + 2
    while depth:
        edge = _COMMENT_EDGE.search(text, position)
        if edge is None:
            raise Unterminated("/* comment", start)
        depth += 1 if edge.group() == "/*" else -1
        position = edge.end()
    return position


def _after_space(text: str, position: int) -> int:
    """Where what comes next begins, behind white space and comments."""
    while True:
        found = _SPACE.match(text, position)
        position = found.end() if found is not None else position
        if not text.startswith("/*", position):
            return position
        position = _skip_comment(text, position)


def _quotation(kind: str, quoted: str, text: str, start: int, end: int) -> Token:
    if kind == "string":
        return Token(STRING, quoted[1:-1].replace("''", "'"), start, end)
    if kind == "quoted":
        return Token(QUOTED, _identifier(quoted[1:-1].replace('""', '"'), start), start, end)
    if kind == "dollar":
        close = text.find(quoted, end)
        if close < 0:
            raise Unterminated("dollar-quoted string", start)
        return Token(STRING, text[end:close], start, close + len(quoted))
    if kind == "escaped":
        return Token(STRING, _unescape(quoted[2:-1], start), start, end)
    if kind == "unicode":
        if _UESCAPE.match(text, _after_space(text, end)):
            raise errors.unsupported("UESCAPE", position=start + 1)
        inner = quoted[3:-1].replace(quoted[2] * 2, quoted[2])
        value = _decoded(_UNICODE_ESCAPE.sub(lambda found: _unicode(found, start), inner), start)
        if quoted[2] == "'":
            return Token(STRING, value, start, end)
        return Token(QUOTED, _identifier(value, start), start, end)
    raise errors.unsupported("type bit", position=start + 1)


def _identifier(name: str, start: int) -> str:
    if not name:
        message = 'zero-length delimited identifier at or near """"'
        raise errors.error(errors.SYNTAX_ERROR, message, position=start + 1)
    return _truncate(name)


def _unescape(body: str, start: int) -> str:
    def replace(found: re.Match[str]) -> str:
        octal, hexadecimal, short, long, plain = found.groups()
        if octal or hexadecimal:
            # A byte of the encoding; Instar's is UTF-8, and bytes past ASCII would have to be put together.
            code = int(octal, 8) & 0xFF if octal else int(hexadecimal, 16)
            if code > 0x7F:
                raise errors.unsupported("a byte escape above 7F in a string", position=start + 1)
            return chr(code)
        if short or long:
            return _character(int(short or long, 16), start)
        if plain is None:
            return "'"
        if plain in "uUx":
            message = "invalid Unicode escape" if plain != "x" else None
            if message:
                raise errors.error(errors.INVALID_ESCAPE_SEQUENCE, message, position=start + 1)
        return _SIMPLE_ESCAPES.get(plain, plain)

    return _decoded(_ESCAPE.sub(replace, body), start)


def _unicode(found: re.Match[str], start: int) -> str:
    short, long, backslash = found.groups()
    if backslash:
        return "\\"
    if not short and not long:
        raise errors.error(errors.SYNTAX_ERROR, "invalid Unicode escape", position=start + 1)
    return _character(int(short or long, 16), start)


def _character(code: int, start: int) -> str:
    if not 0 < code <= 0x10FFFF:
        raise errors.error(errors.SYNTAX_ERROR, "invalid Unicode escape value", position=start + 1)
    return chr(code)


def _decoded(value: str, start: int) -> str:
    """What the escapes say: a surrogate pair that two of them write is one character, and half a pair is none."""
    if "\0" in value:
        raise errors.error(
            errors.CHARACTER_NOT_IN_REPERTOIRE, "invalid character in a string's escapes", position=start + 1
        )
    if value.isascii():
        return value
    try:
        return value.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise errors.error(errors.SYNTAX_ERROR, "invalid Unicode surrogate pair", position=start + 1) from None


def _continues(previous: Token, token: Token, text: str) -> bool:
    """SQL's rule: string constants with only white space and at least one new line between them are one."""
    if previous.kind != STRING or text[token.start] != "'":
        return False
    between = text[previous.end : token.start]
    return "\n" in between or "\r" in between
