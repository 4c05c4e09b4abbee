"""Value expressions (PostgreSQL's a_expr): operators by precedence, predicates, and what they are made of.

Precedence is gram.y's, lowest first; `expression(minimum)` reads operators that bind tighter than `minimum`.
"""

from __future__ import annotations

from sqlglot import exp

from instar import errors
from instar.sql.grammar.calls import CallGrammar
from instar.sql.grammar.lexer import NUMBER, OPERATOR, PARAMETER, QUOTED, STRING, WORD
from instar.sql.grammar.nodes import PrefixOperator, place, type_node
from instar.sql.grammar.type_names import take_type

OR, AND, NOT, IS, COMPARISON, RANGE, OTHER, ADDITIVE, MULTIPLICATIVE, POWER, AT, COLLATE, SIGN = range(1, 14)

_LEVELS = {
    "<": COMPARISON, ">": COMPARISON, "=": COMPARISON, "<=": COMPARISON, ">=": COMPARISON, "<>": COMPARISON,
    "+": ADDITIVE, "-": ADDITIVE, "*": MULTIPLICATIVE, "/": MULTIPLICATIVE, "%": MULTIPLICATIVE, "^": POWER,
    "(": 0, ")": 0, ",": 0, ";": 0, ".": 0, ":": 0, ":=": 0, "=>": 0, "[": 0, "]": 0,
}  # fmt: skip
_WORD_LEVELS = {
    "or": OR, "and": AND, "is": IS, "isnull": IS, "notnull": IS, "between": RANGE, "in": RANGE, "like": RANGE,
    "ilike": RANGE, "similar": RANGE, "not": RANGE, "operator": OTHER, "at": AT, "collate": COLLATE,
    "overlaps": OTHER,
}  # fmt: skip
_LIKE = {("like", False): "~~", ("like", True): "!~~", ("ilike", False): "~~*", ("ilike", True): "!~~*"}
_NEGATABLE = ("between", "in", "like", "ilike", "similar")
_QUANTIFIERS = ("any", "all", "some")


class ExpressionGrammar(CallGrammar):
    """Expressions; `query` comes from the grammar of queries."""

    def expression(self, minimum: int = 0) -> exp.Expr:
        left = self._operand()
        while True:
            token = self.token
            if token.kind == OPERATOR:
                level = _LEVELS.get(token.value, OTHER)
                if level <= minimum:
                    return left
                left = self._infix(left, level)
                if level == COMPARISON and self._next_level() == COMPARISON:
                    self.fail()  # comparisons do not associate
            elif token.kind == WORD:
                level = _WORD_LEVELS.get(token.value, 0)
                if level <= minimum or (token.value == "not" and self.peek().value not in _NEGATABLE):
                    return left
                left = self._word_infix(left, level)
            elif token.kind == PARAMETER and token.value == "?":
                if minimum >= OTHER:
                    return left
                left = self._has_key(left)
            else:
                return left

    def _next_level(self) -> int:
        return _LEVELS.get(self.token.value, OTHER) if self.token.kind == OPERATOR else 0

    # --- infix ---

    def _infix(self, left: exp.Expr, level: int) -> exp.Expr:
        token = self.advance()
        return self._operator(left, token.value, level, token.start + 1)

    def _operator(self, left: exp.Expr, symbol: str, level: int, position: int) -> exp.Expr:
        if self.at_any(_QUANTIFIERS) and self.peek().value == "(":
            right = self._quantified()
        else:
            right = self.expression(level)
        return place(exp.Operator(this=left, operator=symbol, expression=right), position)

    def _has_key(self, left: exp.Expr) -> exp.Expr:
        """`?` behind an operand: no parameter can stand there."""
        token, following = self.advance(), self.token
        if following.kind == OPERATOR and following.start == token.end and following.value[0] in "|&":
            raise errors.unsupported(f"operator ?{following.value[0]}", position=token.start + 1)
        return self._operator(left, token.value, OTHER, token.start + 1)

    def _quantified(self) -> exp.Expr:
        word = self.advance()
        if not self.at_query():
            raise errors.unsupported(f"{word.value.upper()} over an array", position=word.start + 1)
        query = self.subquery()
        return exp.All(this=query) if word.value == "all" else exp.Any(this=query)

    def _word_infix(self, left: exp.Expr, level: int) -> exp.Expr:
        position = self.position
        word = self.advance().value
        if word == "and":
            return place(exp.And(this=left, expression=self.expression(AND)), position)
        if word == "or":
            return place(exp.Or(this=left, expression=self.expression(OR)), position)
        if level == IS:
            node = self._is(left, word, position)
            if isinstance(node, exp.NullSafeEQ | exp.NullSafeNEQ) and self.at_any(("is", "isnull", "notnull")):
                self.fail()  # nor do these, which end in an expression
            return node
        if level == RANGE:
            negated = word == "not"
            word = self.advance().value if negated else word
            node = self._range(left, word, negated, position)
            if word != "in" and self.at_any(_NEGATABLE):
                self.fail()
            return node
        if word == "operator":
            return self._named_operator(left, position)
        if word == "at":
            self.take_words("time", "zone")
            return place(exp.AtTimeZone(this=left, zone=self.expression(AT)), position)
        raise errors.unsupported(word.upper(), position=position)

    def _named_operator(self, left: exp.Expr, position: int) -> exp.Expr:
        """OPERATOR(pg_catalog.+): binds like any other operator, whatever its symbol."""
        self.take_operator("(")
        if self.try_words("pg_catalog"):
            self.take_operator(".")
        if self.token.kind != OPERATOR or _LEVELS.get(self.token.value, OTHER) == 0:
            self.fail()
        symbol = self.advance().value
        self.take_operator(")")
        return self._operator(left, symbol, OTHER, position)

    def _is(self, left: exp.Expr, word: str, position: int) -> exp.Expr:
        if word != "is":
            return place(exp.Is(this=left, expression=exp.Null(), negate=word == "notnull"), position)
        negated = self.try_words("not")
        if self.try_words("distinct", "from"):
            kind = exp.NullSafeEQ if negated else exp.NullSafeNEQ
            return place(kind(this=left, expression=self.expression(IS)), position)
        value = self.try_any("null", "true", "false", "unknown")
        if value is None:
            if self.at_any(("json", "document", "normalized", "nfc", "nfd", "nfkc", "nfkd")):
                raise errors.unsupported(f"IS {self.token.value.upper()}", position=self.position)
            self.fail()
        operand: exp.Expr
        if value == "null":
            operand = exp.Null()
        elif value == "unknown":
            operand = exp.Var(this="UNKNOWN")
        else:
            operand = exp.Boolean(this=value == "true")
        node: exp.Expr = exp.Is(this=left, expression=operand)
        if negated and value == "null":
            node.set("negate", True)
        elif negated:
            return exp.Not(this=place(node, position))
        return place(node, position)

    def _range(self, left: exp.Expr, word: str, negated: bool, position: int) -> exp.Expr:
        if word in ("like", "ilike"):
            return self._like(left, _LIKE[word, negated], position)
        if word == "between":
            symmetric = self.try_any("symmetric", "asymmetric") == "symmetric"
            low = self.expression(RANGE)
            self.take_words("and")
            high = self.expression(RANGE)
            node: exp.Expr = exp.Between(this=left, low=low, high=high, symmetric=symmetric or None)
        elif word == "in":
            node = self._in(left)
        else:
            raise errors.unsupported("SIMILAR TO", position=position)
        place(node, position)
        return exp.Not(this=node) if negated else node

    def _like(self, left: exp.Expr, symbol: str, position: int) -> exp.Expr:
        if self.at_any(_QUANTIFIERS):
            raise errors.unsupported("LIKE with a quantifier", position=position)
        pattern = self.expression(RANGE)
        if self.try_words("escape"):
            pattern = exp.Anonymous(this="like_escape", expressions=[pattern, self.expression(RANGE)])
        return place(exp.Operator(this=left, operator=symbol, expression=pattern), position)

    def _in(self, left: exp.Expr) -> exp.Expr:
        if self.at_query():
            return exp.In(this=left, query=self.subquery())
        self.take_operator("(")
        items = self.comma_list(self.expression)
        self.take_operator(")")
        return exp.In(this=left, expressions=items)

    # --- operands ---

    def _operand(self) -> exp.Expr:
        token = self.token
        if token.kind == WORD and token.value == "not":
            self.index += 1
            return exp.Not(this=self.expression(NOT))
        if token.kind == OPERATOR and _LEVELS.get(token.value, OTHER) in (OTHER, ADDITIVE):
            self.index += 1
            level = SIGN if token.value in "+-" else OTHER
            operand = self.expression(level)
            return place(PrefixOperator(this=operand, operator=token.value), token.start + 1)
        return self._postfix(self._primary())

    def _postfix(self, node: exp.Expr) -> exp.Expr:
        while self.token.kind == OPERATOR:
            if self.at_operator("::"):
                position = self.position
                self.index += 1
                node = place(exp.Cast(this=node, to=type_node(take_type(self))), position)
            elif self.at_operator("["):
                raise errors.unsupported("a subscript", position=self.position)
            elif self.at_operator(".") and isinstance(node, (exp.Paren, exp.Subquery, exp.Parameter)):
                raise errors.unsupported("selection of a field", position=self.position)
            else:
                break
        return node

    def _primary(self) -> exp.Expr:
        token = self.token
        if token.kind == NUMBER:
            self.index += 1
            return place(exp.Literal.number(token.value), token.start + 1)
        if token.kind == STRING:
            self.index += 1
            return place(exp.Literal.string(token.value), token.start + 1)
        if token.kind == PARAMETER:
            self.index += 1
            return self.parameter(token)
        if token.kind == OPERATOR:
            return self._parenthesised()
        if token.kind == WORD:
            special = self.special_form()
            if special is not None:
                return special
        if token.kind not in (WORD, QUOTED):
            self.fail()
        return self.name_or_call()

    def _parenthesised(self) -> exp.Expr:
        if self.at_query():
            return self.subquery()
        self.take_operator("(")
        first = self.expression()
        if not self.at_operator(","):
            self.take_operator(")")
            return exp.Paren(this=first)
        items = [first]
        while self.try_operator(","):
            items.append(self.expression())
        self.take_operator(")")
        return exp.Tuple(expressions=items)
