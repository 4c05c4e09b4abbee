"""Typed expressions compiled to Python: one generated function for a whole row, not a closure per node.

A generated function takes a row `r` (a tuple whose positions a `Scope` names) and a frame `p`: a list that begins with
the statement's parameters and goes on with slots that `FrameLayout` hands out (the context of stable functions, columns
of outer rows, results kept per execution). NULL is None; three-valued logic is generated in three forms, so that a
filter never builds a boolean it does not need: the value, "is TRUE", and "is FALSE".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

import msgspec

from instar import errors
from instar.encoding.generate import compile_source
from instar.sql import tree
from instar.sql.traversal import walk
from instar.sql.tree import Expr
from instar.types import FLOATS, INTEGERS, STRINGS, Kind, Type
from instar.values import comparison_key, compile_cast

Row = tuple[object, ...]
Frame = list[object]
RowFunction = Callable[[Row, Frame], object]
ColumnKey = tuple[int, int]  # relation, ordinal

# CPython refuses source nested deeper than 200 parentheses; an expression this deep becomes a function of its own.
_MAX_DEPTH = 16
# In the place of a relation: the slots of values that are kept.
_KEPT = -1


class FrameLayout:
    """Hands out the slots of a statement's frame: parameters first, then two contexts, then whatever plans need."""

    def __init__(self, parameters: int) -> None:
        self.parameters = parameters
        self.context = parameters  # functions.Context
        self.execution = parameters + 1  # executor.ExecutionContext
        self.size = parameters + 2
        self._columns: dict[ColumnKey, int] = {}

    def new(self) -> int:
        """A slot that holds None when an execution begins."""
        self.size += 1
        return self.size - 1

    def outer(self, column: ColumnKey) -> int:
        """The slot in which a nested plan finds this column of the row around it."""
        if column not in self._columns:
            self._columns[column] = self.new()
        return self._columns[column]

    def kept(self, number: int) -> int:
        """The slot of the `Keep` of that number."""
        return self.outer((_KEPT, number))

    def frame(self, parameters: Sequence[object], context: object, execution: object) -> Frame:
        """A fresh frame for one execution."""
        rest = self.size - self.parameters - 2
        return [*parameters, context, execution, *([None] * rest)]


class Scope(msgspec.Struct, frozen=True):
    """What a row holds: columns and already computed expressions (groups, aggregates) by position.

    `not_null` are the columns that are never NULL in such rows.
    """

    columns: Mapping[ColumnKey, int]
    not_null: frozenset[ColumnKey] = frozenset()
    exprs: Mapping[Expr, int] = msgspec.field(default_factory=dict)


class Subqueries(Protocol):
    """Compiles the subquery expressions of a statement: each becomes a row function that yields its value."""

    def row_function(self, expr: tree.ScalarSubquery | tree.Exists | tree.InSubquery, scope: Scope) -> RowFunction: ...

    def members(self, expr: tree.InSubquery) -> Callable[[Frame], Iterable[object]]: ...


class _Code(NamedTuple):
    """Source of a value. `constant`: `value` is what it evaluates to, without row and frame."""

    text: str
    nullable: bool
    depth: int = 0
    simple: bool = False  # may be repeated: a name, an index, a constant
    constant: bool = False
    value: object = None


class Compiler:
    """Compiles the expressions of one row function against one scope."""

    def __init__(self, scope: Scope, layout: FrameLayout, subqueries: Subqueries | None = None) -> None:
        self._scope = scope
        self._layout = layout
        self._subqueries = subqueries
        self._globals: dict[str, object] = {}
        self._helpers: list[str] = []
        self._names = 0

    # --- functions ----------------------------------------------------------------------------------------------------

    def value(self, expr: Expr) -> RowFunction:
        """f(row, frame) -> value."""
        return self._function("r, p", f"return {self._value(expr).text}")

    def row(self, exprs: Sequence[Expr]) -> Callable[[Row, Frame], Row]:
        """f(row, frame) -> tuple of the values."""
        return self._function("r, p", f"return {self._tuple(exprs)}")  # type: ignore[return-value]  # by construction

    def applied(self, function: Callable[[Row], bytes], exprs: Sequence[Expr]) -> Callable[[Frame], bytes | None]:
        """f(frame) -> what `function` makes of the tuple of the values; None where one is NULL. They need no row."""
        name = self._bind(function, "_f")
        body = f"v = {self._tuple(exprs)}\n return None if None in v else {name}(v)"
        return self._function("p", body)  # type: ignore[return-value]  # by construction

    def predicate(self, conjuncts: Sequence[Expr]) -> RowFunction:
        """f(row, frame) -> truthy exactly where every conjunct is TRUE."""
        return self._function("r, p", f"return {self._all(conjuncts)}")

    def pipeline(
        self, conjuncts: Sequence[Expr], outputs: Sequence[Expr] | None
    ) -> Callable[[Iterable[Row], Frame], Iterator[Row]]:
        """f(rows, frame) -> the rows where every conjunct is TRUE, as outputs (None: as they are)."""
        result = "r" if outputs is None else self._tuple(outputs)
        lines = ["for r in rows:"]
        if conjuncts:
            lines += [f" if {self._all(conjuncts)}:", f"  yield {result}"]
        else:
            lines.append(f" yield {result}")
        return self._function("rows, p", "\n ".join(lines))  # type: ignore[return-value]  # by construction

    def _function(self, arguments: str, body: str) -> RowFunction:
        source = "\n".join([*self._helpers, f"def compiled({arguments}):", f" {body}"])
        namespace = self._globals
        exec(compile_source(source, "expression"), namespace)
        # Taken out: a function that is among its own globals is freed by the garbage collector only.
        return namespace.pop("compiled")  # type: ignore[return-value]  # the function defined by the source

    def _tuple(self, exprs: Sequence[Expr]) -> str:
        return "(" + "".join(f"{self._value(expr).text}, " for expr in exprs) + ")"

    def _all(self, conjuncts: Sequence[Expr]) -> str:
        return " and ".join(self._true(conjunct).text for conjunct in conjuncts) or "True"

    # --- pieces -------------------------------------------------------------------------------------------------------

    def _name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def _bind(self, value: object, prefix: str) -> str:
        name = self._name(prefix)
        self._globals[name] = value
        return name

    def _hoist(self, text: str) -> str:
        name = self._name("_h")
        self._helpers.append(f"def {name}(r, p):\n return {text}")
        return f"{name}(r, p)"

    def _make(self, text: str, nullable: bool, *parts: _Code) -> _Code:
        depth = 1 + max((part.depth for part in parts), default=0)
        if depth > _MAX_DEPTH:
            return _Code(self._hoist(text), nullable, 1)
        return _Code(text, nullable, depth)

    def _constant(self, value: object) -> _Code:
        if value is None or isinstance(value, bool) or (isinstance(value, int) and value >= 0):
            text = repr(value)
        else:
            text = self._bind(value, "_k")
        return _Code(text, value is None, 0, simple=True, constant=True, value=value)

    def _guard(self, codes: Sequence[_Code]) -> tuple[str, list[str]]:
        """A test that is true if any of the codes is NULL (empty: none can be), and the names of their values."""
        tests, names = [], []
        for code in codes:
            if not code.nullable:
                names.append(code.text)
                continue
            name = self._name("_t")
            tests.append(f"({name} := {code.text}) is None")
            names.append(name)
        return " or ".join(tests), names

    def _strict(self, codes: Sequence[_Code], call: Callable[[list[str]], str], may_null: bool) -> _Code:
        test, names = self._guard(codes)
        text = call(names)
        if not test:
            return self._make(f"({text})", may_null, *codes)
        return self._make(f"(None if {test} else {text})", True, *codes)

    # --- values -------------------------------------------------------------------------------------------------------

    def _value(self, expr: Expr) -> _Code:
        position = self._scope.exprs.get(expr) if self._scope.exprs else None
        if position is not None:
            return _Code(f"r[{position}]", True, simple=True)
        match expr:
            case tree.Literal():
                return self._constant(expr.value)
            case tree.Parameter():
                return _Code(f"p[{expr.index}]", True, simple=True)
            case tree.ColumnRef():
                return self._column(expr)
            case tree.Call():
                return self._call(expr)
            case tree.Cast():
                return self._cast(expr)
            case tree.And() | tree.Or():
                return self._connective(expr)
            case tree.Not():
                return self._strict([self._value(expr.operand)], lambda names: f"not {names[0]}", False)
            case tree.IsNull() | tree.IsTruth():
                return self._test(expr)
            case tree.IsDistinct():
                return self._distinct(expr)
            case tree.InList():
                return self._in_list(expr)
            case tree.Case():
                return self._case(expr)
            case tree.Coalesce():
                return self._coalesce(expr)
            case tree.ScalarSubquery() | tree.Exists() | tree.InSubquery():
                return self._subquery(expr)
            case tree.NextValue():
                return _Code(f"p[{self._layout.execution}].next_value({expr.sequence})", False, 1)
            case tree.CurrentValue():
                return _Code(f"p[{self._layout.execution}].current_value({expr.sequence})", False, 1)
            case tree.SetValue():
                return self._set_value(expr)
            case tree.Keep():
                return self._keep(expr)
            case tree.Kept():
                return _Code(f"p[{self._layout.kept(expr.number)}]", True, simple=True)
            case tree.DefaultValue():
                return self._constant(None)
            case _:
                raise errors.error(errors.INTERNAL_ERROR, f"{type(expr).__name__} outside of its query level")

    def _set_value(self, expr: tree.SetValue) -> _Code:
        def call(names: list[str]) -> str:
            return f"p[{self._layout.execution}].set_value({expr.sequence}, {', '.join(names)})"

        return self._strict([self._value(expr.value), self._value(expr.called)], call, True)

    def _keep(self, expr: tree.Keep) -> _Code:
        operand = self._value(expr.operand)
        name = self._bind(_keep, "_f")
        # It counts as nullable, so that it is evaluated before what it is compared with is looked at.
        return self._make(f"{name}(p, {self._layout.kept(expr.number)}, {operand.text})", True, operand)

    def _column(self, expr: tree.ColumnRef) -> _Code:
        key = (expr.relation, expr.ordinal)
        position = self._scope.columns.get(key)
        if position is not None:
            return _Code(f"r[{position}]", key not in self._scope.not_null, simple=True)
        return _Code(f"p[{self._layout.outer(key)}]", True, simple=True)

    def _call(self, expr: tree.Call) -> _Code:
        function = expr.function
        codes = [self._value(arg) for arg in expr.args]
        closure = function.closure([arg.type for arg in expr.args])
        if function.volatility == "immutable" and not function.context and all(code.constant for code in codes):
            folded = self._fold(lambda: closure(*(code.value for code in codes)), codes if function.strict else [])
            if folded is not None:
                return folded
        inline = function.inline
        if inline is not None:
            return self._strict(codes, lambda names: inline.format(*names), False)
        name = self._bind(closure, "_f")
        context = [f"p[{self._layout.context}]"] if function.context else []

        def call(names: list[str]) -> str:
            return f"{name}({', '.join(context + names)})"

        if function.strict:
            return self._strict(codes, call, True)
        return self._make(call([code.text for code in codes]), True, *codes)

    def _fold(self, evaluate: Callable[[], object], strict: Sequence[_Code]) -> _Code | None:
        """The constant that `evaluate` gives, or None if it raises: then it must raise when, and only if, it is run."""
        if any(code.value is None for code in strict):
            return self._constant(None)
        try:
            return self._constant(evaluate())
        except errors.Error:
            return None

    def _cast(self, expr: tree.Cast) -> _Code:
        code = self._value(expr.operand)
        source, target = expr.operand.type, expr.type
        if is_representation_kept(source, target):
            return code
        if needs_zone(source, target):
            name = self._bind(_zoned_cast(source, target, expr.explicit), "_c")
            return self._strict([code], lambda names: f"{name}({names[0]}, p[{self._layout.context}].zone)", True)
        cast = compile_cast(source, target, expr.explicit)
        if cast is None:
            return code
        if code.constant:
            folded = self._fold(lambda: cast(code.value), [code])
            if folded is not None:
                return folded
        name = self._bind(cast, "_c")
        return self._strict([code], lambda names: f"{name}({names[0]})", True)

    def _connective(self, expr: tree.And | tree.Or) -> _Code:
        codes = [self._value(arg) for arg in expr.args]
        decides = isinstance(expr, tree.Or)  # the value of an argument that decides the whole
        names = [self._name("_t") for _ in codes]
        test = " or ".join(f"({name} := {code.text}) is {decides}" for name, code in zip(names, codes, strict=True))
        nulls = [name for name, code in zip(names, codes, strict=True) if code.nullable]
        otherwise = repr(not decides)
        if nulls:
            unknown = " or ".join(f"{name} is None" for name in nulls)
            otherwise = f"None if {unknown} else {otherwise}"
        return self._make(f"({decides} if {test} else {otherwise})", bool(nulls), *codes)

    def _test(self, expr: tree.IsNull | tree.IsTruth) -> _Code:
        code = self._value(expr.operand)
        wanted = None if isinstance(expr, tree.IsNull) else expr.truth
        if code.constant:
            return self._constant((code.value is wanted) != expr.negated)
        comparison = "is not" if expr.negated else "is"
        return self._make(f"({code.text} {comparison} {wanted})", False, code)

    def _distinct(self, expr: tree.IsDistinct) -> _Code:
        left, right = self._value(expr.left), self._value(expr.right)
        key = comparison_key(expr.left.type)
        a, b = self._name("_t"), self._name("_t")
        if key is None:
            equal = f"{a} == {b}"
        else:
            name = self._bind(key, "_f")
            equal = f"{name}({a}) == {name}({b})"
        same = f"({b} is None if {a} is None else {b} is not None and {equal})"
        negation = "" if expr.negated else "not "
        # Both are evaluated before they are compared, in this order.
        text = f"({negation}[{a} := {left.text}, {b} := {right.text}, {same}][2])"
        return self._make(text, False, left, right)

    def _in_list(self, expr: tree.InList) -> _Code:
        operand = self._value(expr.operand)
        items = [self._value(item) for item in expr.items]
        key = comparison_key(expr.operand.type)
        if all(item.constant for item in items):
            values = [item.value for item in items if item.value is not None]
            members = self._bind(frozenset(values if key is None else map(key, values)), "_k")
            keyed = "{0}" if key is None else self._bind(key, "_f") + "({0})"
            has_null = len(values) < len(items)

            def membership(names: list[str]) -> str:
                test = f"{keyed.format(names[0])} in {members}"
                if has_null:
                    return f"({not expr.negated} if {test} else None)"
                return f"(not {test})" if expr.negated else f"({test})"

            return self._strict([operand], membership, has_null)
        name = self._bind(_membership(key, expr.negated), "_f")
        listed = "".join(f"{item.text}, " for item in items)
        return self._make(f"{name}({operand.text}, ({listed}))", True, operand, *items)

    def _case(self, expr: tree.Case) -> _Code:
        default = self._value(expr.default)
        parts, text = [default], default.text
        for condition, result in reversed(expr.whens):
            code, test = self._value(result), self._true(condition)
            parts += [code, test]
            text = f"{code.text} if {test.text} else {text}"
        return self._make(f"({text})", True, *parts)

    def _coalesce(self, expr: tree.Coalesce) -> _Code:
        codes = [self._value(arg) for arg in expr.args]
        text = codes[-1].text
        for code in reversed(codes[:-1]):
            name = self._name("_t")
            text = f"{name} if ({name} := {code.text}) is not None else {text}"
        return self._make(f"({text})", all(code.nullable for code in codes), *codes)

    def _subquery(self, expr: tree.ScalarSubquery | tree.Exists | tree.InSubquery) -> _Code:
        if self._subqueries is None:
            raise errors.unsupported("a subquery in this place")
        name = self._bind(self._subqueries.row_function(expr, self._scope), "_q")
        return _Code(f"{name}(r, p)", not isinstance(expr, tree.Exists), 1)

    # --- conditions ---------------------------------------------------------------------------------------------------

    def _true(self, expr: Expr) -> _Code:
        """Source that is truthy exactly where `expr` is TRUE."""
        if expr in self._scope.exprs:
            return self._value(expr)
        if isinstance(expr, tree.Not):
            return self._false(expr.operand)
        if isinstance(expr, (tree.And, tree.Or)):
            return self._joined("and" if isinstance(expr, tree.And) else "or", [self._true(arg) for arg in expr.args])
        if isinstance(expr, tree.Call) and expr.function.inline is not None and expr.function.strict:
            return self._inline_test(expr, expr.function.inline)
        return self._value(expr)

    def _false(self, expr: Expr) -> _Code:
        """Source that is truthy exactly where `expr` is FALSE."""
        if expr not in self._scope.exprs:
            if isinstance(expr, tree.Not):
                return self._true(expr.operand)
            if isinstance(expr, (tree.And, tree.Or)):
                connective = "or" if isinstance(expr, tree.And) else "and"
                return self._joined(connective, [self._false(arg) for arg in expr.args])
            if isinstance(expr, tree.Call) and expr.function.inline is not None and expr.function.strict:
                return self._inline_test(expr, f"not ({expr.function.inline})")
        code = self._value(expr)
        return self._make(f"({code.text} is False)", False, code)

    def _joined(self, connective: str, codes: Sequence[_Code]) -> _Code:
        return self._make("(" + f" {connective} ".join(code.text for code in codes) + ")", True, *codes)

    def _inline_test(self, expr: tree.Call, inline: str) -> _Code:
        codes = [self._value(arg) for arg in expr.args]
        tests, names = [], []
        for code in codes:
            name = code.text
            if code.nullable:
                name = self._name("_t")
                tests.append(f"({name} := {code.text}) is not None")
            names.append(name)
        tests.append(f"({inline.format(*names)})")
        return self._make("(" + " and ".join(tests) + ")", True, *codes)


def _keep(frame: Frame, slot: int, value: object) -> object:
    """The value, which is in the slot from now on."""
    frame[slot] = value
    return value


def is_representation_kept(source: Type, target: Type) -> bool:
    """Whether a cast leaves every internal value as it is: widening of integers and floats, any string to text."""
    if source == target:
        return True
    if source.kind in INTEGERS and target.kind in INTEGERS:
        return _WIDTH[source.kind] <= _WIDTH[target.kind]
    if source.kind in FLOATS and target.kind in FLOATS:
        return target.kind is Kind.DOUBLE
    if source.kind in STRINGS and target.kind in STRINGS:
        return target.length is None or (source.length is not None and source.length <= target.length)
    return source.kind is Kind.NUMERIC and target == Type(Kind.NUMERIC)


_WIDTH = {Kind.SMALLINT: 2, Kind.INTEGER: 4, Kind.BIGINT: 8}


def needs_zone(source: Type, target: Type) -> bool:
    """Whether the session's time zone decides the result of the cast."""
    return source.kind is not target.kind and Kind.TIMESTAMPTZ in (source.kind, target.kind)


def reads_context(root: object) -> bool:
    """Whether a tree has what neither parameters, rows nor sequences decide: a clock, the session's zone."""
    for found in walk(root):
        if isinstance(found, tree.Call) and (found.function.context or found.function.volatility == "stable"):
            return True
        if isinstance(found, tree.Cast) and needs_zone(found.operand.type, found.type):
            return True
    return False


def _zoned_cast(source: Type, target: Type, explicit: bool) -> Callable[[object, str], object]:
    """A cast that reads the session's time zone when it is run: plans outlive SET TIME ZONE."""

    @lru_cache(maxsize=8)
    def in_zone(zone: str) -> Callable[[object], object] | None:
        return compile_cast(source, target, explicit, zone)

    def cast(value: object, zone: str) -> object:
        closure = in_zone(zone)
        return value if closure is None else closure(value)

    return cast


def _membership(key: Callable[[object], object] | None, negated: bool) -> Callable[[object, Row], bool | None]:
    """IN over values known only when it is evaluated."""

    def contains(operand: object, items: Row) -> bool | None:
        if operand is None:
            return None if items else negated
        wanted = operand if key is None else key(operand)
        unknown = False
        for item in items:
            if item is None:
                unknown = True
            elif (item if key is None else key(item)) == wanted:
                return not negated
        return None if unknown else negated

    return contains
