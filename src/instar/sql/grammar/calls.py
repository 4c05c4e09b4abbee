"""Names, calls of functions with all their trimmings, and the expressions that begin with a key word of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod

from sqlglot import exp

from instar import errors
from instar.lazily import computed_once
from instar.sql.grammar.cursor import Cursor
from instar.sql.grammar.keywords import BARE_FUNCTIONS, COLUMN_ONLY, NOT_A_FUNCTION, NOT_A_NAME
from instar.sql.grammar.lexer import OPERATOR, QUOTED, STRING, WORD, Token
from instar.sql.grammar.nodes import identifier, place, type_node
from instar.sql.grammar.type_names import take_type

MAX_PARAMETERS = 65535

_TYPE_WORDS = frozenset(
    "bigint bit boolean char character dec decimal float int integer interval nchar national numeric real smallint "
    "time timestamp varchar double".split()
)
_AFTER_TYPE_WORD = ("with", "without", "varying", "precision", "character", "char")
_CONSTRUCTS = {"normalize", "treat", "array"} | {word for word in COLUMN_ONLY if word.startswith(("xml", "json_"))}
# What may follow a parenthesised query inside another pair of parentheses that is a query as well.
_QUERY_GOES_ON = ("union", "intersect", "except", "order", "limit", "offset", "fetch", "for")
QUERY_WORDS = ("select", "values", "with", "table")


class CallGrammar(Cursor, ABC):
    """Names, calls, CASE, CAST and their like. Counts the statement's parameters."""

    def __init__(self, text: str, tokens: list[Token], index: int = 0) -> None:
        super().__init__(text, tokens, index)
        self.parameters = 0
        self._question_marks: bool | None = None

    @abstractmethod
    def expression(self, minimum: int = 0) -> exp.Expr: ...

    @abstractmethod
    def query(self) -> exp.Expr: ...

    @abstractmethod
    def order_by(self) -> exp.Order: ...

    # --- parentheses ---

    @computed_once
    def _closing(self) -> dict[int, int]:
        """Index of the ")" for that of each "("."""
        closing: dict[int, int] = {}
        open_: list[int] = []
        for index, token in enumerate(self.tokens):
            if token.kind == OPERATOR:
                if token.value == "(":
                    open_.append(index)
                elif token.value == ")" and open_:
                    closing[open_.pop()] = index
        return closing

    def at_query(self) -> bool:
        """Whether the next token is the "(" of a query: `((SELECT 1) UNION ...)` is, `((SELECT 1) + 1)` is not."""
        index = self.index
        while self.tokens[index].kind == OPERATOR and self.tokens[index].value == "(":
            index += 1
        first = self.tokens[index]
        if index == self.index or first.kind != WORD or first.value not in QUERY_WORDS:
            return False
        for opening in range(index - 1, self.index, -1):
            after = self.tokens[min(self._closing.get(opening, index) + 1, len(self.tokens) - 1)]
            if not (after.kind == WORD and after.value in _QUERY_GOES_ON) and after.value != ")":
                return False
        return True

    def subquery(self) -> exp.Subquery:
        """(query)"""
        position = self.position
        self.take_operator("(")
        query = self.query()
        self.take_operator(")")
        node = exp.Subquery(this=query)
        place(node, position)
        return node

    # --- parameters and names ---

    def parameter(self, token: Token) -> exp.Expr:
        question_mark = token.value == "?"
        if self._question_marks is None:
            self._question_marks = question_mark
        elif self._question_marks != question_mark:
            message = "a statement's parameters are either all ? or all $n"
            raise errors.error(errors.SYNTAX_ERROR, message, position=token.start + 1)
        number = self.parameters + 1 if question_mark else int(token.value[1:7])
        if question_mark and number > MAX_PARAMETERS:
            message = f"a statement has at most {MAX_PARAMETERS} parameters"
            raise errors.error(errors.LIMIT_EXCEEDED, message, position=token.start + 1)
        if not 1 <= number <= MAX_PARAMETERS:
            raise errors.error(
                errors.UNDEFINED_PARAMETER, f"there is no parameter {token.value}", position=token.start + 1
            )
        self.parameters = max(self.parameters, number)
        return place(exp.Parameter(this=exp.Literal.number(number)), token.start + 1)

    def name_or_call(self) -> exp.Expr:
        """A column, t.*, a call, or a constant with its type's name before it."""
        start = self.token
        if start.kind == WORD and start.value in NOT_A_NAME and start.value in NOT_A_FUNCTION:
            self.fail()
        if self._at_typed_constant():
            return self._typed_constant()
        parts = [self.advance()]
        while self.at_operator("."):
            self.index += 1
            if self.try_operator("*"):
                return self._column(parts, star=True)
            if self.token.kind not in (WORD, QUOTED):
                self.fail()
            parts.append(self.advance())
        if self.at_operator("("):
            return self._call(parts)
        if start.kind == WORD and start.value in NOT_A_NAME:
            raise self.syntax_error(start)
        if self.token.kind == STRING and len(parts) > 1:
            self.fail()
        return self._column(parts, star=False)

    def _at_typed_constant(self) -> bool:
        token, after = self.token, self.peek()
        if token.kind == QUOTED:
            return after.kind == STRING
        if token.value in _TYPE_WORDS:
            if token.value == "double":
                return after.value == "precision" and after.kind == WORD
            return (
                after.kind == STRING or after.value == "(" or (after.kind == WORD and after.value in _AFTER_TYPE_WORD)
            )
        return after.kind == STRING

    def _typed_constant(self) -> exp.Expr:
        position = self.position
        type_ = take_type(self)
        value = place(exp.Literal.string(self.take_string()), self.tokens[self.index - 1].start + 1)
        return place(exp.Cast(this=value, to=type_node(type_)), position)

    def _column(self, parts: list[Token], star: bool) -> exp.Expr:
        names = [identifier(part.value) for part in parts]
        if len(names) + star > 3:
            raise errors.unsupported("a reference to another database", position=parts[0].start + 1)
        last: exp.Expr = exp.Star() if star else names.pop()
        table = names.pop() if names else None
        column = exp.Column(this=last, table=table, db=names.pop() if names else None)
        return place(column, parts[0].start + 1)

    # --- calls ---

    def _call(self, parts: list[Token]) -> exp.Expr:
        *schema, name = parts
        if not schema and name.kind == WORD and name.value in NOT_A_FUNCTION:
            raise self.syntax_error(name)
        if schema and [part.value for part in schema] != ["pg_catalog"]:
            qualified = ".".join(part.value for part in parts)
            raise errors.error(
                errors.UNDEFINED_FUNCTION, f"function {qualified} does not exist", position=parts[0].start + 1
            )
        call = exp.Anonymous(this=name.value, expressions=self._arguments())
        return self._call_modifiers(place(call, parts[0].start + 1))

    def _arguments(self) -> list[exp.Expr]:
        """(* | [ALL | DISTINCT] expression, ... [ORDER BY ...]): DISTINCT and ORDER BY wrap as in sqlglot's trees."""
        self.take_operator("(")
        if self.try_operator(")"):
            return []
        if self.try_operator("*"):
            self.take_operator(")")
            return [exp.Star()]
        distinct = self.try_any("all", "distinct") == "distinct"
        arguments = self.comma_list(self._argument)
        if distinct:
            arguments = [exp.Distinct(expressions=arguments)]
        if self.at("order"):
            order = self.order_by()
            order.set("this", arguments.pop())
            arguments.append(order)
        self.take_operator(")")
        return arguments

    def _argument(self) -> exp.Expr:
        if self.at("variadic"):
            raise errors.unsupported("VARIADIC", position=self.position)
        if self.token.kind in (WORD, QUOTED) and self.peek().kind == OPERATOR and self.peek().value in ("=>", ":="):
            raise errors.unsupported("named notation of arguments", position=self.position)
        return self.expression()

    def _call_modifiers(self, call: exp.Expr) -> exp.Expr:
        if self.at("within", "group"):
            raise errors.unsupported("WITHIN GROUP", position=self.position)
        if self.at("filter") and self.peek().value == "(":
            self.index += 1
            self.take_operator("(")
            self.take_words("where")
            call = exp.Filter(this=call, expression=exp.Where(this=self.expression()))
            self.take_operator(")")
        if self.at_any(("ignore", "respect")) and self.peek().value == "nulls":
            raise errors.unsupported(f"{self.token.value.upper()} NULLS", position=self.position)
        if self.try_words("over"):
            if self.at_operator("("):
                call = self.window(call)
            else:
                # `over`: the named window itself, and not a copy of it, which must not have a frame.
                call = exp.Window(this=call, alias=identifier(self.take_name()), over=True)
        return call

    # --- windows ---

    def window(self, this: exp.Expr) -> exp.Window:
        """([name] [PARTITION BY ...] [ORDER BY ...] [frame])"""
        self.take_operator("(")
        window = exp.Window(this=this)
        if self.at_name() and not self.at_any(("partition", "range", "rows", "groups")):
            window.set("alias", identifier(self.take_name()))
        if self.try_words("partition", "by"):
            window.set("partition_by", self.comma_list(self.expression))
        if self.at("order"):
            window.set("order", self.order_by())
        unit = self.try_any("rows", "range", "groups")
        if unit is not None:
            window.set("spec", self._frame(unit))
        self.take_operator(")")
        return window

    def _frame(self, unit: str) -> exp.WindowSpec:
        between = self.try_words("between")
        start, start_side = self._bound()
        end: exp.Expr | str = "CURRENT ROW"
        end_side: str | None = None
        if between:
            self.take_words("and")
            end, end_side = self._bound()
        if self.at("exclude") and not self.try_words("exclude", "no", "others"):
            raise errors.unsupported("EXCLUDE of a window frame", position=self.position)
        return exp.WindowSpec(kind=unit.upper(), start=start, start_side=start_side, end=end, end_side=end_side)

    def _bound(self) -> tuple[exp.Expr | str, str | None]:
        if self.try_words("current", "row"):
            return "CURRENT ROW", None
        value: exp.Expr | str = "UNBOUNDED" if self.try_words("unbounded") else self.expression()
        side = self.try_any("preceding", "following")
        if side is None:
            self.fail()
        return value, side.upper()

    # --- constructs with key words ---

    def special_form(self) -> exp.Expr | None:
        """The expression that the next key word begins, or None if it begins no special one."""
        token = self.token
        word = token.value
        if word in ("null", "true", "false"):
            self.index += 1
            return exp.Null() if word == "null" else exp.Boolean(this=word == "true")
        if word == "case":
            return self._case()
        if word in BARE_FUNCTIONS:
            return self._bare_function()
        if word == "array" or (word in _CONSTRUCTS and self.peek().value == "("):
            raise errors.unsupported(word.upper(), position=self.position)
        if self.peek().kind != OPERATOR or self.peek().value != "(":
            return None
        reader = _FORMS.get(word)
        if reader is None:
            return None
        self.index += 1
        return place(reader(self), token.start + 1)

    def _bare_function(self) -> exp.Expr | None:
        token = self.token
        if self.peek().value == "(" and token.value == "current_schema":
            return None
        self.index += 1
        if self.at_operator("("):
            raise errors.unsupported(f"a precision of {token.value.upper()}", position=token.start + 1)
        return place(exp.Anonymous(this=token.value, expressions=[]), token.start + 1)

    def _case(self) -> exp.Expr:
        position = self.position
        self.take_words("case")
        operand = None if self.at("when") else self.expression()
        branches = []
        while self.try_words("when"):
            condition = self.expression()
            self.take_words("then")
            branches.append(exp.If(this=condition, true=self.expression()))
        if not branches:
            self.fail()
        default = self.expression() if self.try_words("else") else None
        self.take_words("end")
        return place(exp.Case(this=operand, ifs=branches, default=default), position)

    def _cast(self) -> exp.Expr:
        self.take_operator("(")
        operand = self.expression()
        self.take_words("as")
        type_ = take_type(self)
        self.take_operator(")")
        return exp.Cast(this=operand, to=type_node(type_))

    def _exists(self) -> exp.Expr:
        if not self.at_query():
            self.fail()
        return exp.Exists(this=self.subquery().this)

    def _row(self) -> exp.Expr:
        self.take_operator("(")
        items = [] if self.at_operator(")") else self.comma_list(self.expression)
        self.take_operator(")")
        return exp.Tuple(expressions=items)

    def _coalesce(self) -> exp.Expr:
        first, *rest = self._plain_arguments()
        return exp.Coalesce(this=first, expressions=rest)

    def _nullif(self) -> exp.Expr:
        self.take_operator("(")
        left = self.expression()
        self.take_operator(",")
        right = self.expression()
        self.take_operator(")")
        return exp.Nullif(this=left, expression=right)

    def _plain_arguments(self) -> list[exp.Expr]:
        self.take_operator("(")
        arguments = self.comma_list(self.expression)
        self.take_operator(")")
        return arguments

    def _extract(self) -> exp.Expr:
        self.take_operator("(")
        part = self.take_string() if self.token.kind == STRING else self.take_label()
        self.take_words("from")
        operand = self.expression()
        self.take_operator(")")
        return exp.Anonymous(this="extract", expressions=[exp.Literal.string(part.lower()), operand])

    def _position(self) -> exp.Expr:
        """POSITION(substring IN string), which is "position"(string, substring)."""
        self.take_operator("(")
        substring = self.expression(_RANGE)
        self.take_words("in")
        string = self.expression(_RANGE)
        self.take_operator(")")
        return exp.Anonymous(this="position", expressions=[string, substring])

    def _substring(self) -> exp.Expr:
        self.take_operator("(")
        arguments = [self.expression()]
        if self.at_operator(","):
            while self.try_operator(","):
                arguments.append(self.expression())
        elif self.at("similar"):
            raise errors.unsupported("SUBSTRING with SIMILAR", position=self.position)
        else:
            start = self.expression() if self.try_words("from") else None
            length = self.expression() if self.try_words("for") else None
            if start is None and length is not None and self.try_words("from"):
                start = self.expression()
            if start is not None or length is not None:
                arguments.append(exp.Literal.number(1) if start is None else start)
            arguments.extend([] if length is None else [length])
        self.take_operator(")")
        return exp.Anonymous(this="substring", expressions=arguments)

    def _overlay(self) -> exp.Expr:
        self.take_operator("(")
        arguments = [self.expression()]
        if self.at_operator(","):
            while self.try_operator(","):
                arguments.append(self.expression())
        else:
            self.take_words("placing")
            arguments.append(self.expression())
            self.take_words("from")
            arguments.append(self.expression())
            if self.try_words("for"):
                arguments.append(self.expression())
        self.take_operator(")")
        return exp.Anonymous(this="overlay", expressions=arguments)

    def _trim(self) -> exp.Expr:
        """TRIM([side] [characters] FROM string), TRIM([side] [FROM] string [, characters])."""
        self.take_operator("(")
        side = self.try_any("both", "leading", "trailing") or "both"
        arguments = [] if self.at("from") else self.comma_list(self.expression)
        if self.try_words("from"):
            arguments = [*self.comma_list(self.expression), *arguments]
        if len(arguments) > 2:
            self.fail()
        self.take_operator(")")
        return exp.Anonymous(this=_TRIMS[side], expressions=arguments)

    def _grouping(self) -> exp.Expr:
        return exp.Grouping(expressions=self._plain_arguments())

    def _extreme(self) -> exp.Expr:
        name = self.tokens[self.index - 1].value
        return exp.Anonymous(this=name, expressions=self._plain_arguments())


_RANGE = 6  # the level of IN itself (expressions.RANGE), so that POSITION's IN is not read as the predicate
_TRIMS = {"both": "btrim", "leading": "ltrim", "trailing": "rtrim"}
_FORMS = {
    "cast": CallGrammar._cast,
    "exists": CallGrammar._exists,
    "row": CallGrammar._row,
    "coalesce": CallGrammar._coalesce,
    "nullif": CallGrammar._nullif,
    "greatest": CallGrammar._extreme,
    "least": CallGrammar._extreme,
    "grouping": CallGrammar._grouping,
    "extract": CallGrammar._extract,
    "position": CallGrammar._position,
    "substring": CallGrammar._substring,
    "overlay": CallGrammar._overlay,
    "trim": CallGrammar._trim,
}
