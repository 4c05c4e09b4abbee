"""Calls: plain functions, aggregates, window functions, and those of sequences."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from sqlglot import exp

from instar import errors, types
from instar.catalog.descriptors import Sequence as SequenceDescriptor
from instar.sql import tree
from instar.sql.binder import coercion
from instar.sql.binder.context import Context
from instar.sql.binder.scope import Scope
from instar.sql.binder.windows import bind_frame, combined_window
from instar.sql.functions import (
    UNSUPPORTED,
    Aggregate,
    Function,
    Resolution,
    WindowFunction,
    is_aggregate,
    is_window,
    lookup,
    resolve_function,
)
from instar.sql.grammar.nodes import position_of
from instar.sql.traversal import references
from instar.sql.tree import Expr, SortKey
from instar.types import STRINGS, UNKNOWN, Type

if TYPE_CHECKING:
    from instar.sql.binder.queries import QueryBinder

T = TypeVar("T")

AGGREGATES_IN = frozenset({"SELECT", "HAVING", "ORDER BY", "DISTINCT ON"})
WINDOWS_IN = frozenset({"SELECT", "ORDER BY", "DISTINCT ON"})
MAX_GROUPING_ARGUMENTS = 31  # the bits of an integer
_SEQUENCE_FUNCTIONS = {"nextval": (1,), "currval": (1,), "lastval": (0,), "setval": (2, 3)}  # and how many arguments


class CallBinder(ABC):
    """The part of ExpressionBinder about calls."""

    queries: QueryBinder
    context: Context
    scope: Scope
    clause: str
    within: str | None
    aggregated: bool
    windows: dict[str, exp.Window]

    @abstractmethod
    def bind(self, node: exp.Expr) -> Expr: ...

    @abstractmethod
    def value(self, node: exp.Expr) -> Expr: ...

    @abstractmethod
    def condition(self, node: exp.Expr, what: str) -> Expr: ...

    @abstractmethod
    def bigint(self, node: exp.Expr, what: str) -> Expr: ...

    @abstractmethod
    def arguments(
        self, args: Sequence[Expr], wanted: Sequence[Type], what: str, position: int | None
    ) -> tuple[Expr, ...]: ...

    def call(self, node: exp.Expr) -> Expr:
        """A call with its FILTER and OVER."""
        window = node if isinstance(node, exp.Window) else None
        inner = node.this if window is not None else node
        filter_ = inner.expression.this if isinstance(inner, exp.Filter) else None
        call = inner.this if filter_ is not None else inner
        if not isinstance(call, exp.Anonymous):
            raise errors.unsupported(f"{call.key} with OVER or FILTER", position=position_of(node))
        name = call.name
        if is_aggregate(name):
            if window is not None:
                return self._window_call(call, window, filter_)
            return self._aggregate(call, filter_)
        if is_window(name):
            if window is None:
                message = f"window function {name} requires an OVER clause"
                raise errors.error(errors.WRONG_OBJECT_TYPE, message, position=position_of(call))
            if filter_ is not None:
                raise errors.unsupported(
                    "FILTER for a window function that is no aggregate", position=position_of(call)
                )
            return self._window_call(call, window, None)
        return self._plain(call, window is not None, filter_ is not None)

    # --- plain functions ---

    def _plain(self, call: exp.Anonymous, window: bool, filtered: bool) -> Expr:
        name, position = call.name, position_of(call)
        if name in UNSUPPORTED and not lookup(name):
            raise errors.unsupported(f"function {name}", position=position)
        for clause, present in (("OVER", window), ("FILTER", filtered), ("DISTINCT", _has(call, exp.Distinct))):
            if present and lookup(name):
                kind = "a window function nor an aggregate function" if clause == "OVER" else "an aggregate function"
                verb = "neither" if clause == "OVER" else "not"
                message = f"{clause} specified, but {name} is {verb} {kind}"
                raise errors.error(errors.WRONG_OBJECT_TYPE, message, position=position)
        if _has(call, exp.Order):
            message = f"ORDER BY specified, but {name} is not an aggregate function"
            raise errors.error(errors.WRONG_OBJECT_TYPE, message, position=position)
        if name in _SEQUENCE_FUNCTIONS:
            return self._of_sequence(call)
        if _is_star(call):
            raise errors.error(errors.SYNTAX_ERROR, 'syntax error at or near "*"', position=position)
        args = [self.bind(arg) for arg in call.expressions]
        if name == "substring" and _is_by_pattern(call, args):
            raise errors.unsupported("SUBSTRING with a regular expression", position=position)
        resolution = self.resolve(name, args, position)
        entry = resolution.entry
        assert isinstance(entry, Function)
        if entry.returns_set:
            raise errors.unsupported(f"set-returning function {name} in {self.clause}", position=position)
        return coercion.call(entry, self.arguments(args, resolution.arguments, name, position), resolution.type)

    def resolve(self, name: str, args: Sequence[Expr], position: int | None) -> Resolution:
        """As `resolve_function`; the hints of parameters are tried first, since they are what the caller will pass."""
        hinted = [self.context.hint(arg) or arg.type for arg in args]
        plain = [arg.type for arg in args]
        if hinted != plain:
            try:
                return resolve_function(name, hinted, position=position)
            except errors.Error:
                pass  # the parameters become what the function takes
        return resolve_function(name, plain, position=position)

    def _of_sequence(self, call: exp.Anonymous) -> Expr:
        name, position = call.name, position_of(call)
        args = [] if _is_star(call) else list(call.expressions)
        if _is_star(call) or len(args) not in _SEQUENCE_FUNCTIONS[name]:
            given = "*" if _is_star(call) else ", ".join(str(self.bind(arg).type) for arg in args)
            raise errors.error(errors.UNDEFINED_FUNCTION, f"function {name}({given}) does not exist", position=position)
        if name == "lastval":
            return tree.CurrentValue(None, types.BIGINT)
        sequence = self._sequence(name, args[0], position)
        if name == "nextval":
            return tree.NextValue(sequence, types.BIGINT)
        if name == "currval":
            return tree.CurrentValue(sequence, types.BIGINT)
        value = self._set_argument(args[1], types.BIGINT, position)
        called = self._set_argument(args[2], types.BOOLEAN, position) if len(args) == 3 else None
        return tree.SetValue(sequence, value, called or tree.Literal(True, types.BOOLEAN), types.BIGINT)

    def _sequence(self, function: str, argument: exp.Expr, position: int | None) -> int:
        """The id of the sequence that a function's first argument names."""
        if not argument.is_string:
            raise errors.unsupported(f"{function} of what is not a literal name", position=position)
        name: str = argument.name
        found = self.queries.by_name(name)
        if found is None:
            raise errors.error(errors.UNDEFINED_TABLE, f'relation "{name}" does not exist', position=position)
        if not isinstance(found, SequenceDescriptor):
            raise errors.error(errors.WRONG_OBJECT_TYPE, f'"{name}" is not a sequence', position=position)
        return found.id

    def _set_argument(self, node: exp.Expr, type_: Type, position: int | None) -> Expr:
        bound = self.bind(node)
        found = coercion.coerce(self.context, bound, type_, "implicit", position)
        if found is None:
            message = f"setval takes {type_}, not {bound.type}"
            hint = "You might need to add an explicit cast."
            raise errors.error(errors.UNDEFINED_FUNCTION, message, hint=hint, position=position)
        return found

    # --- aggregates ---

    def _aggregate(self, call: exp.Anonymous, filter_: exp.Expr | None) -> Expr:
        position = position_of(call)
        self._require_not_nested(position)
        aggregate, args, distinct, order_by, type_ = self._aggregate_parts(call)
        bound_filter = (
            None if filter_ is None else self._inside("an aggregate", lambda: self.condition(filter_, "FILTER"))
        )
        found = tree.AggregateCall(aggregate, args, distinct, bound_filter, order_by, type_)
        # First of which query it is: an outer one's may stand in any clause of this one.
        self._check_level(found, "an aggregate", position)
        self._require_aggregates("aggregate functions", position)
        self.aggregated = True
        return found

    def _aggregate_parts(
        self, call: exp.Anonymous
    ) -> tuple[Aggregate, tuple[Expr, ...], bool, tuple[SortKey, ...], Type]:
        name, position = call.name, position_of(call)
        nodes = [] if _is_star(call) else list(call.expressions)
        keys: list[exp.Expr] = []
        if nodes and isinstance(nodes[-1], exp.Order):
            order = nodes.pop()
            nodes.append(order.this)
            keys = order.expressions
        distinct = bool(nodes) and isinstance(nodes[0], exp.Distinct)
        if distinct:
            nodes = nodes[0].expressions
        bound = self._inside("an aggregate", lambda: [self.bind(node) for node in nodes])
        resolution = self.resolve(name, bound, position)
        if not call.expressions and resolution.entry.name == "count":
            message = "count(*) must be used to call a parameterless aggregate function"
            raise errors.error(errors.WRONG_OBJECT_TYPE, message, position=position)
        args = self.arguments(bound, resolution.arguments, name, position)
        order_by = self._inside("an aggregate", lambda: self.sort_keys(keys))
        if distinct and any(key.expr not in args for key in order_by):
            message = "in an aggregate with DISTINCT, ORDER BY expressions must appear in argument list"
            raise errors.error(errors.INVALID_COLUMN_REFERENCE, message, position=position)
        assert isinstance(resolution.entry, Aggregate)
        if distinct and resolution.entry.ordered:
            order_by += _left_to_sort(args, order_by)
        return resolution.entry, args, distinct, order_by, resolution.type

    def sort_keys(self, nodes: Sequence[exp.Expr]) -> tuple[SortKey, ...]:
        """Sort keys that are expressions of the input, as in windows and aggregates."""
        return tuple(
            SortKey(self.value(node.this), bool(node.args["desc"]), bool(node.args["nulls_first"])) for node in nodes
        )

    def _inside(self, within: str, action: Callable[[], T]) -> T:
        outer, self.within = self.within, within
        try:
            return action()
        finally:
            self.within = outer

    def _require_not_nested(self, position: int | None) -> None:
        if self.within == "an aggregate":
            raise errors.error(errors.GROUPING_ERROR, "aggregate function calls cannot be nested", position=position)

    def _require_aggregates(self, what: str, position: int | None) -> None:
        """42803 in a place where no aggregate may stand, nor what is like one."""
        if self.clause not in AGGREGATES_IN:
            message = f"{what} are not allowed in {self.clause}"
            raise errors.error(errors.GROUPING_ERROR, message, position=position)

    def _check_level(self, found: Expr, what: str, position: int | None) -> None:
        """An aggregate belongs to the query whose columns it reads; Instar takes it for the one it stands in."""
        relations = {relation for relation, _ in references(found).free}
        if relations and not relations & self.own_relations():
            raise errors.unsupported(f"{what} of an outer query's columns", position=position)

    def grouping(self, node: exp.Expr) -> Expr:
        """GROUPING; whether its arguments are grouping expressions is known when all clauses are bound."""
        position = position_of(node)
        self._require_not_nested(position)
        self._require_aggregates("grouping operations", position)
        if len(node.expressions) > MAX_GROUPING_ARGUMENTS:
            message = f"GROUPING must have fewer than {MAX_GROUPING_ARGUMENTS + 1} arguments"
            raise errors.error(errors.TOO_MANY_ARGUMENTS, message, position=position)
        args = self._inside("an aggregate", lambda: tuple(self.value(item) for item in node.expressions))
        for arg, item in zip(args, node.expressions, strict=True):
            if not isinstance(arg, tree.ColumnRef):  # those are known
                self.context.note(arg, "GROUPING", position_of(item))
        found = tree.GroupingCall(args)
        self._check_level(found, "GROUPING", position)
        self.aggregated = True
        return found

    def own_relations(self) -> set[int]:
        return {item.relation for item in self.scope.namespace.items.values()}

    # --- window functions ---

    def _window_call(self, call: exp.Anonymous, window: exp.Window, filter_: exp.Expr | None) -> Expr:
        name, position = call.name, position_of(call)
        if self.within is not None:
            inside = "window function" if self.within == "a window function" else "aggregate function"
            message = (
                "window function calls cannot be nested"
                if inside == "window function"
                else "aggregate function calls cannot contain window function calls"
            )
            sqlstate = errors.WINDOWING_ERROR if inside == "window function" else errors.GROUPING_ERROR
            raise errors.error(sqlstate, message, position=position)
        if self.clause not in WINDOWS_IN:
            message = f"window functions are not allowed in {self.clause}"
            raise errors.error(errors.WINDOWING_ERROR, message, position=position)
        if _has(call, exp.Distinct):
            raise errors.unsupported("DISTINCT for window functions", position=position)
        if _has(call, exp.Order):
            raise errors.unsupported("ORDER BY in the arguments of a window function", position=position)
        nodes = [] if _is_star(call) else list(call.expressions)
        bound = self._inside("a window function", lambda: [self.bind(node) for node in nodes])
        resolution = self.resolve(name, bound, position)
        args = self.arguments(bound, resolution.arguments, name, position)
        definition = combined_window(window, self.windows)
        partition = self._inside(
            "a window function", lambda: tuple(self.value(node) for node in definition.partition_by)
        )
        keys = self._inside("a window function", lambda: self.sort_keys(definition.order_by))
        frame = bind_frame(self, definition.frame, keys, position)
        bound_filter = (
            None if filter_ is None else self._inside("a window function", lambda: self.condition(filter_, "FILTER"))
        )
        entry = resolution.entry
        assert isinstance(entry, Aggregate | WindowFunction)
        return tree.WindowCall(entry, args, bound_filter, partition, keys, frame, resolution.type)


def _has(call: exp.Anonymous, kind: type[exp.Expr]) -> bool:
    return any(isinstance(arg, kind) for arg in call.expressions)


def _left_to_sort(args: Sequence[Expr], order_by: Sequence[SortKey]) -> tuple[SortKey, ...]:
    """By what DISTINCT sorts in PostgreSQL: the arguments that ORDER BY does not name, one after the other."""
    named = [key.expr for key in order_by]
    return tuple(SortKey(arg, False, False) for arg in args if arg not in named and not isinstance(arg, tree.Literal))


def _is_star(call: exp.Anonymous) -> bool:
    return len(call.expressions) == 1 and isinstance(call.expressions[0], exp.Star)


def _is_by_pattern(call: exp.Anonymous, args: Sequence[Expr]) -> bool:
    """Whether PostgreSQL takes this SUBSTRING for one by a regular expression, which all literals in quotes are."""
    texts = [written.is_string or arg.type.kind in STRINGS for written, arg in zip(call.expressions, args, strict=True)]
    of_text = args[0].type == UNKNOWN or args[0].type.kind in STRINGS
    return of_text and len(args) in (2, 3) and all(texts[1:])
