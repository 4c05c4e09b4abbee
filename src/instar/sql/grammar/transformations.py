"""ALTER TABLE ... SPLIT INTO and ALTER TABLE ... JOIN ... INTO: words that stay free for names, as in PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from sqlglot import exp

from instar import errors
from instar.catalog.descriptors import Repair, Strategy
from instar.schemachange.job_records import LEAST_PRIORITY, MOST_PRIORITY
from instar.sql import statements as ast
from instar.sql.grammar.lexer import NUMBER, STRING, WORD
from instar.sql.grammar.nodes import position_of
from instar.sql.grammar.objects import ObjectGrammar
from instar.sql.transformation_statements import (
    JoinTables,
    Reference,
    Source,
    SplitTable,
    Target,
    TargetColumn,
    TransformationOptions,
)

_OTHER_JOINS = ("left", "right", "inner", "cross", "natural")
_JOIN_OPTIONS = ("pause_rows", "strategy", "grace", "keep_views", "priority")
_SPLIT_OPTIONS = ("repair", *_JOIN_OPTIONS)
_REPAIRS: dict[str, Repair] = {"fail": "fail", "most frequent": "most frequent", "newest": "newest"}
_STRATEGIES: dict[str, Strategy] = {"abort": "abort", "commit": "commit", "block": "block"}
_WITH_GRACE: tuple[Strategy, ...] = ("commit", "block")
_UNITS = {"us": 1, "ms": 1_000, "s": 1_000_000, "min": 60_000_000, "h": 3_600_000_000}
_DURATION = re.compile(r"([0-9]{1,10}(?:\.[0-9]{1,6})?)\s*(us|ms|s|min|h)?")
_LONGEST_GRACE = _UNITS["h"]
_BOOLEANS = {"true": True, "false": False}
_MOST_PAUSE_ROWS = 100_000

T = TypeVar("T")


class _Option(NamedTuple):
    """A value as it is written, and where."""

    text: str
    position: int


class TransformationGrammar(ObjectGrammar):
    """Joins and splits of tables that are in use."""

    def try_transformation(self, name: ast.Name, if_exists: bool) -> SplitTable | JoinTables | None:
        """After ALTER TABLE name: None if something else is to be done with the table."""
        position = self.position
        alias = None
        if self.at("as") or (self.at_name() and self._at_join(1)):
            self.try_words("as")
            alias = self.take_name()
            if not self._at_join():
                self.fail()
        joins = self._at_join()
        if not joins and not self.at("split"):
            return None
        what = "JOIN" if joins else "SPLIT"
        if if_exists:
            raise errors.unsupported(f"IF EXISTS of ALTER TABLE ... {what}", position=position)
        made = self._join_tables(Source(name, alias)) if joins else self._split_table(name)
        if self.at_operator(","):
            raise errors.unsupported(f"{what} together with other actions in one statement", position=self.position)
        return made

    # --- SPLIT ---

    def _split_table(self, name: ast.Name) -> SplitTable:
        self.take_words("split")
        in_place = self.try_words("in", "place")
        self.take_words("into")
        r = self._table_into()
        self.take_operator(",")
        s = self._table_into()
        if self.at_operator(","):
            raise errors.error(
                errors.FEATURE_NOT_SUPPORTED,
                "a split into more than two tables is not supported",
                hint="Split one of the two again.",
                position=self.position,
            )
        self.take_words("on")
        return SplitTable(name, r, s, self.take_names(), self._transformation_options(_SPLIT_OPTIONS), in_place)

    def _table_into(self) -> Target:
        return Target(self.qualified_name(), self.take_names())

    # --- JOIN ---

    def _at_join(self, ahead: int = 0) -> bool:
        """Whether JOIN comes, or what makes it another one."""
        words = [token.value if token.kind == WORD else "" for token in map(self.peek, range(ahead, ahead + 3))]
        if words[0] in ("join", "natural"):
            return True
        if words[0] in ("full", "left", "right"):
            return words[1] == "join" or words[1:] == ["outer", "join"]
        return words[0] in ("inner", "cross") and words[1] == "join"

    def _join_tables(self, r: Source) -> JoinTables:
        if self.at_any(_OTHER_JOINS):
            raise errors.unsupported(f"ALTER TABLE ... {self.token.value.upper()} JOIN", position=self.position)
        if self.try_words("full"):
            self.try_words("outer")
        self.take_words("join")
        name = self.qualified_name()
        s = Source(name, self.take_name() if self.try_words("as") or self.at_name() else None)
        self._refuse_third()
        using: tuple[str, ...] = ()
        on: tuple[tuple[Reference, Reference], ...] = ()
        if self.try_words("using"):
            using = self.take_names()
        else:
            self.take_words("on")
            on = tuple(_equalities(self.expression()))
        self._refuse_third()
        self.take_words("into")
        into = self.qualified_name()
        self.take_operator("(")
        columns = tuple(self.comma_list(self._column_into))
        self.take_operator(")")
        return JoinTables(r, s, into, columns, on, using, self._transformation_options(_JOIN_OPTIONS))

    def _refuse_third(self) -> None:
        if self._at_join():
            raise errors.error(
                errors.FEATURE_NOT_SUPPORTED,
                "a join of more than two tables is not supported",
                hint="Join the result with the third one.",
                position=self.position,
            )

    def _column_into(self) -> TargetColumn:
        position = self.position
        parts = [self.take_name()]
        while self.try_operator("."):
            parts.append(self.take_label())
        if len(parts) > 3:
            raise errors.unsupported("a reference to another database", position=position)
        return TargetColumn(_reference(parts, position), self.take_label() if self.try_words("as") else None)

    # --- WITH ---

    def _transformation_options(self, known: tuple[str, ...]) -> TransformationOptions:
        """[WITH (option = value, ...)]"""
        found: dict[str, _Option] = {}
        if self.try_words("with"):
            self.take_operator("(")
            self.comma_list(lambda: self._transformation_option(known, found))
            self.take_operator(")")
        strategy = _one_of("strategy", found["strategy"], _STRATEGIES) if "strategy" in found else None
        if "grace" in found and strategy not in _WITH_GRACE:
            raise errors.error(
                errors.INVALID_PARAMETER,
                'parameter "grace" is for a strategy that lets old transactions end',
                hint=f"Such strategies: {', '.join(_WITH_GRACE)}.",
                position=found["grace"].position,
            )
        return TransformationOptions(
            _one_of("repair", found["repair"], _REPAIRS) if "repair" in found else None,
            _pause_rows(found["pause_rows"]) if "pause_rows" in found else None,
            strategy,
            _grace(found["grace"]) if "grace" in found else None,
            "keep_views" in found and _one_of("keep_views", found["keep_views"], _BOOLEANS),
            _priority(found["priority"]) if "priority" in found else 0,
        )

    def _transformation_option(self, known: tuple[str, ...], found: dict[str, _Option]) -> None:
        position = self.position
        name = self.take_label()
        if name not in known:
            hint = f"Available parameters: {', '.join(known)}."
            raise errors.error(
                errors.INVALID_PARAMETER, f'unrecognized parameter "{name}"', hint=hint, position=position
            )
        if name in found:
            message = f'parameter "{name}" specified more than once'
            raise errors.error(errors.INVALID_PARAMETER, message, position=position)
        self.take_operator("=")
        position = self.position
        sign = "-" if self.try_operator("-") else ""
        signed = bool(sign) or self.try_operator("+")
        if self.token.kind not in ((NUMBER,) if signed else (NUMBER, STRING, WORD)):
            self.fail()
        found[name] = _Option(sign + self.advance().value, position)


def _equalities(condition: exp.Expr) -> list[tuple[Reference, Reference]]:
    """The pairs of columns that a join condition says are equal, in the order written."""
    found = []
    left = [condition]
    while left:
        node = left.pop()
        if isinstance(node, exp.Paren):
            left.append(node.this)
        elif isinstance(node, exp.And):
            left.extend((node.expression, node.this))
        elif isinstance(node, exp.Operator) and node.args["operator"] == "=":
            found.append((_joined(node.this), _joined(node.expression)))
        else:
            raise _no_equality(node)
    return found


def _joined(node: exp.Expr) -> Reference:
    if isinstance(node, exp.Paren):
        return _joined(node.this)
    if not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier):
        raise _no_equality(node)
    return _reference([part.name for part in node.parts], position_of(node))


def _no_equality(node: exp.Expr) -> errors.Error:
    what = "a condition of ALTER TABLE ... JOIN other than equalities of columns"
    return errors.unsupported(what, position=position_of(node))


def _reference(parts: list[str], position: int | None) -> Reference:
    """[[schema.]table.]column"""
    *qualifiers, name = parts
    if not qualifiers:
        return Reference(name, None, position)
    schema = qualifiers[0] if len(qualifiers) == 2 else None
    return Reference(name, ast.Name(qualifiers[-1], schema, position), position)


def _one_of(name: str, option: _Option, values: Mapping[str, T]) -> T:
    if option.text not in values:
        raise errors.error(
            errors.INVALID_PARAMETER,
            f'invalid value for parameter "{name}": "{option.text}"',
            hint=f"Available values: {', '.join(values)}.",
            position=option.position,
        )
    return values[option.text]


def _priority(option: _Option) -> int:
    priority = int(option.text) if re.fullmatch("-?[0-9]{1,4}", option.text) else MOST_PRIORITY + 1
    if not LEAST_PRIORITY <= priority <= MOST_PRIORITY:
        raise errors.error(
            errors.INVALID_PARAMETER,
            f'invalid value for parameter "priority": "{option.text}"',
            hint=f"It is an integer from {LEAST_PRIORITY} to {MOST_PRIORITY}.",
            position=option.position,
        )
    return priority


def _pause_rows(option: _Option) -> int:
    rows = int(option.text) if re.fullmatch("[0-9]{1,10}", option.text) else 0
    if not 1 <= rows <= _MOST_PAUSE_ROWS:
        raise errors.error(
            errors.INVALID_PARAMETER,
            f'invalid value for parameter "pause_rows": "{option.text}"',
            hint=f"It is an integer from 1 to {_MOST_PAUSE_ROWS}.",
            position=option.position,
        )
    return rows


def _grace(option: _Option) -> int:
    """A duration as settings have them, in microseconds; a number alone is milliseconds."""
    found = _DURATION.fullmatch(option.text.strip())
    grace = -1 if found is None else round(float(found[1]) * _UNITS[found[2] or "ms"])
    if not 0 <= grace <= _LONGEST_GRACE:
        raise errors.error(
            errors.INVALID_PARAMETER,
            f'invalid value for parameter "grace": "{option.text}"',
            hint='It is a time of at most an hour. Valid units are "us", "ms", "s", "min", and "h".',
            position=option.position,
        )
    return grace
