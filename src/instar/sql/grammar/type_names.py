"""Type names: PostgreSQL's spellings and aliases -> `types.Type`, the others 0A000 by name."""

from __future__ import annotations

from functools import lru_cache

from instar import errors, types
from instar.sql.grammar.cursor import Cursor
from instar.sql.grammar.lexer import QUOTED, WORD, tokenize
from instar.types import Kind, Type

_SIMPLE: dict[str, Type] = {
    "bool": types.BOOLEAN,
    "boolean": types.BOOLEAN,
    "smallint": types.SMALLINT,
    "int2": types.SMALLINT,
    "int": types.INTEGER,
    "integer": types.INTEGER,
    "int4": types.INTEGER,
    "bigint": types.BIGINT,
    "int8": types.BIGINT,
    "real": types.REAL,
    "float4": types.REAL,
    "float8": types.DOUBLE,
    "text": types.TEXT,
    "bytea": types.BYTEA,
    "date": types.DATE,
    "uuid": types.UUID,
    "jsonb": types.JSONB,
}

SERIALS: dict[str, Type] = {
    "smallserial": types.SMALLINT,
    "serial2": types.SMALLINT,
    "serial": types.INTEGER,
    "serial4": types.INTEGER,
    "bigserial": types.BIGINT,
    "serial8": types.BIGINT,
}

# PostgreSQL's built-in types that Instar has not: named in a 0A000 rather than called unknown.
_UNSUPPORTED = frozenset(
    "char character bpchar nchar interval time timetz json money bit varbit xml oid name inet cidr macaddr macaddr8 "
    "point line lseg box path polygon circle tsvector tsquery regclass regtype regproc int4range int8range numrange "
    "tsrange tstzrange daterange int4multirange int8multirange nummultirange tsmultirange tstzmultirange "
    "datemultirange pg_lsn txid_snapshot hstore citext record".split()
)

MAX_VARCHAR = 10_485_760


def take_type(cursor: Cursor) -> Type:
    """Read a type name. Errors: 42601 syntax, 42704 no such type, 0A000 one that Instar lacks, 22023 bad modifier."""
    position = cursor.position
    name = _take_type_word(cursor)
    type_ = _standard_type(cursor, name, position)
    if cursor.try_words("array") or cursor.at_operator("["):
        raise errors.unsupported(f"type {type_}[]", position=position)
    return type_


def _take_type_word(cursor: Cursor) -> str:
    if cursor.at("setof"):
        cursor.fail()
    if cursor.token.kind not in (WORD, QUOTED):
        cursor.fail()
    if cursor.token.value == "pg_catalog" and cursor.peek().value == ".":
        cursor.index += 2
    token = cursor.token
    if token.kind == QUOTED:
        # "char" in quotes is PostgreSQL's one-byte type; other built-in names mean the same with and without quotes.
        cursor.advance()
        return token.value
    return cursor.take_label()


def _standard_type(cursor: Cursor, name: str, position: int) -> Type:
    if name == "double":
        cursor.take_words("precision")
        return types.DOUBLE
    if name in ("numeric", "decimal", "dec"):
        return _numeric(_modifiers(cursor), position)
    if name == "float":
        return _float(_modifiers(cursor), position)
    if name in ("varchar", "character", "char", "nchar", "national", "bpchar"):
        return _character(cursor, name, position)
    if name in ("timestamp", "timestamptz", "time", "timetz"):
        return _timestamp(cursor, name, position)
    known = _SIMPLE.get(name)
    if known is not None:
        if cursor.at_operator("("):
            raise errors.error(
                errors.SYNTAX_ERROR, f'type modifier is not allowed for type "{name}"', position=position
            )
        return known
    if name in _UNSUPPORTED or name in SERIALS:
        raise errors.unsupported(f"type {name}", position=position)
    raise errors.error(errors.UNDEFINED_OBJECT, f'type "{name}" does not exist', position=position)


def _modifiers(cursor: Cursor) -> list[int]:
    if not cursor.try_operator("("):
        return []
    values = cursor.comma_list(cursor.take_integer)
    cursor.take_operator(")")
    return values


def _numeric(modifiers: list[int], position: int) -> Type:
    if not modifiers:
        return types.NUMERIC
    if len(modifiers) > 2:
        raise errors.error(errors.INVALID_PARAMETER, "invalid NUMERIC type modifier", position=position)
    precision, scale = modifiers[0], modifiers[1] if len(modifiers) == 2 else 0
    if not 1 <= precision <= 1000:
        message = f"NUMERIC precision {precision} must be between 1 and 1000"
        raise errors.error(errors.INVALID_PARAMETER, message, position=position)
    if precision > types.MAX_NUMERIC_DIGITS:
        raise errors.unsupported(
            f"numeric precision {precision} (at most {types.MAX_NUMERIC_DIGITS} digits)", position=position
        )
    if not 0 <= scale <= precision:
        raise errors.unsupported(f"numeric scale {scale} outside 0 to {precision}", position=position)
    return Type(Kind.NUMERIC, precision=precision, scale=scale)


def _float(modifiers: list[int], position: int) -> Type:
    if not modifiers:
        return types.DOUBLE
    bits = modifiers[0]
    if len(modifiers) > 1 or not 1 <= bits <= 53:
        message = "precision for type float must be between 1 and 53 bits"
        raise errors.error(errors.INVALID_PARAMETER, message, position=position)
    return types.REAL if bits <= 24 else types.DOUBLE


def _character(cursor: Cursor, name: str, position: int) -> Type:
    if name == "national":
        cursor.take_label()
    varying = name == "varchar" or cursor.try_words("varying")
    modifiers = _modifiers(cursor)
    if not varying:
        raise errors.unsupported("type character", position=position)
    if not modifiers:
        return types.VARCHAR
    length = modifiers[0]
    if len(modifiers) > 1 or not 1 <= length <= MAX_VARCHAR:
        which = "at least 1" if length < 1 else f"at most {MAX_VARCHAR}"
        message = f"length for type varchar must be {which}"
        raise errors.error(errors.INVALID_PARAMETER, message, position=position)
    return Type(Kind.VARCHAR, length=length)


def _timestamp(cursor: Cursor, name: str, position: int) -> Type:
    modifiers = _modifiers(cursor)
    zone = name.endswith("tz")
    if not zone and cursor.at("with", "time", "zone"):
        cursor.take_words("with", "time", "zone")
        zone = True
    elif not zone:
        cursor.try_words("without", "time", "zone")
    if name.startswith("time") and not name.startswith("timestamp"):
        raise errors.unsupported("type time", position=position)
    if modifiers and modifiers != [6]:
        raise errors.unsupported(f"timestamp precision {modifiers[0]}", position=position)
    return types.TIMESTAMPTZ if zone else types.TIMESTAMP


@lru_cache(maxsize=1024)
def parse_type(text: str) -> Type:
    """The type that `text` names, all of it."""
    cursor = Cursor(text, tokenize(text))
    type_ = take_type(cursor)
    if not cursor.at_end():
        cursor.fail()
    return type_
