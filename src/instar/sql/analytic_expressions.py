"""Typed expressions as DuckDB's SQL, with the physical types of their values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from instar import errors
from instar.sql import tree
from instar.sql.failing import depends, is_guarded, may_fail, under
from instar.sql.functions import AggregateSql, Context
from instar.sql.functions.model import Sql
from instar.sql.functions.rendering import fail, render_cast, render_literal, sort_key, unify
from instar.sql.rewrites import bare
from instar.sql.traversal import free_relations, walk
from instar.sql.tree import Expr, SortKey
from instar.types import BOOLEAN, INTEGER, INTEGERS, Kind, Type

if TYPE_CHECKING:
    from instar.sql.analytic_sql import QueryWriter


class ExpressionWriter:
    """Writes the expressions of one clause. Those equal to a group's expression are the group's value."""

    def __init__(
        self,
        queries: QueryWriter,
        groups: Sequence[Expr] = (),
        sets: Sequence[tuple[int, ...]] | None = None,
        own: frozenset[int] = frozenset(),
    ) -> None:
        """`own` are the relations of a query level that is grouped: above the grouping their columns are one per
        group."""
        self._queries = queries
        self._own = own
        self._context: Context = queries.context
        self._sets = sets
        self._groups: dict[Expr, Sql] = {}
        self._keys: list[str] = []
        below = ExpressionWriter(queries) if groups else self
        for group in groups:
            self._group(group, below.expr(group))

    def _group(self, group: Expr, value: Sql) -> None:
        key = sort_key(value)
        self._keys.append(key)
        if key != value.text:
            # Grouped by another text than its own: any of the group's equal values stands for them all.
            value = Sql(f"CASE WHEN grouping({key}) = 0 THEN first({value.text}) END", value.type)
        self._groups[group] = value

    def group_by(self) -> str:
        """The GROUP BY clause, with its leading space; empty if there is none."""
        if self._sets is not None:
            listed = ", ".join("(" + ", ".join(self._keys[number] for number in chosen) + ")" for chosen in self._sets)
            return f" GROUP BY GROUPING SETS ({listed})"
        return f" GROUP BY {', '.join(self._keys)}" if self._keys else ""

    def expr(self, expr: Expr) -> Sql:
        """Text and physical type of an expression."""
        if self._groups:
            group = self._groups.get(expr)
            if group is not None:
                return group
        match expr:
            case tree.Literal():
                return render_literal(expr.value, expr.type)
            case tree.Parameter():
                return render_literal(self._queries.parameters[expr.index], expr.type)
            case tree.ColumnRef():
                return self._column(expr)
            case tree.Call():
                return expr.function.render([self.expr(arg) for arg in expr.args], self._context)
            case tree.Cast():
                return render_cast(self.expr(expr.operand), expr.type, expr.explicit, self._context)
            case tree.And() | tree.Or():
                return Sql(self._connected(expr), BOOLEAN)
            case tree.Not():
                return Sql(f"(NOT {self.expr(expr.operand).text})", BOOLEAN)
            case tree.IsNull() | tree.IsTruth():
                wanted = _TESTS[expr.truth if isinstance(expr, tree.IsTruth) else None]
                return Sql(f"({self.expr(expr.operand).text} IS {_not(expr.negated)}{wanted})", BOOLEAN)
            case tree.IsDistinct():
                left, right = self._comparable([expr.left, expr.right])
                # `negated` is IS NOT DISTINCT FROM.
                return Sql(f"({left} IS {_not(expr.negated)}DISTINCT FROM {right})", BOOLEAN)
            case tree.InList():
                operand, *items = self._comparable([expr.operand, *expr.items])
                return Sql(f"({operand} {_not(expr.negated)}IN ({', '.join(items)}))", BOOLEAN)
            case tree.Case():
                return self._case(expr)
            case tree.Coalesce():
                return self._coalesce(expr)
            case tree.AggregateCall():
                return self._aggregate(expr)
            case tree.GroupingCall():
                return self._grouping(expr)
            case tree.WindowCall():
                return self._window(expr)
            case tree.ScalarSubquery() | tree.Exists() | tree.InSubquery():
                return self._subquery(expr)
            case tree.DefaultValue():
                return render_literal(None, expr.type)
            case tree.NextValue() | tree.CurrentValue() | tree.SetValue() | tree.Keep() | tree.Kept():
                raise errors.unsupported("what is volatile in an analytic query")

    # --- what is evaluated left to right (failing.py) ---------------------------------------------------------------

    def condition(self, conjuncts: Sequence[Expr]) -> str:
        """What is true where all of these are. DuckDB takes conjuncts of WHERE and ON one by one, in order."""
        return " AND ".join([self.truth(found) for found in conjuncts]) or "TRUE"

    def truth(self, expr: Expr, wanted: bool = True) -> str:
        """What is true where `expr` is `wanted`, true or false, and false or NULL elsewhere."""
        if isinstance(expr, tree.Not) and expr not in self._groups:
            return self.truth(expr.operand, not wanted)
        if isinstance(expr, tree.And | tree.Or) and expr not in self._groups and is_guarded(expr):
            return self._stepwise(expr.args, wanted, every=isinstance(expr, tree.And) == wanted)
        text = self.expr(expr).text
        return text if wanted else f"(NOT {text})"

    def _stepwise(self, args: Sequence[Expr], wanted: bool, *, every: bool) -> str:
        """Whether every one is `wanted`, or some one, as far as has to be looked for that."""
        first = self.truth(args[0], wanted)
        with self._below_a_guard():
            *others, text = [self.truth(arg, wanted) for arg in args[1:]]
        for other in reversed([first, *others]):
            then, otherwise = (text, "FALSE") if every else ("TRUE", text)
            text = f"(CASE WHEN {other} THEN {then} ELSE {otherwise} END)"
        return text

    def _connected(self, expr: tree.And | tree.Or) -> str:
        if is_guarded(expr):
            return f"(CASE WHEN {self.truth(expr)} THEN TRUE WHEN {self.truth(expr, wanted=False)} THEN FALSE END)"
        word = " AND " if isinstance(expr, tree.And) else " OR "
        return "(" + word.join(self.expr(arg).text for arg in expr.args) + ")"

    def _coalesce(self, expr: tree.Coalesce) -> Sql:
        first = self.expr(expr.args[0])
        with self._below_a_guard():
            args = unify([first, *(self.expr(arg) for arg in expr.args[1:])])
        if not may_fail(expr.args[1:]):
            return Sql(f"COALESCE({', '.join(arg.text for arg in args)})", _physical(args))
        # What COALESCE need not evaluate DuckDB may, if it stands there twice; of CASE it takes nothing out.
        whens = " ".join(f"WHEN {arg.text} IS NOT NULL THEN {arg.text}" for arg in args[:-1])
        return Sql(f"(CASE {whens} ELSE {args[-1].text} END)", _physical(args))

    @contextmanager
    def _below_a_guard(self) -> Iterator[None]:
        queries = self._queries
        around, queries.guarded = queries.guarded, True
        try:
            yield
        finally:
            queries.guarded = around

    # --- calls --------------------------------------------------------------------------------------------------------

    def _column(self, expr: tree.ColumnRef) -> Sql:
        column = self._queries.columns[expr.relation, expr.ordinal]
        # Not a group itself, it depends on the groups, as the binder made sure.
        return Sql(f"first({column.text})", column.type) if expr.relation in self._own else column

    def _comparable(self, exprs: Sequence[Expr]) -> list[str]:
        return [sort_key(operand) for operand in unify([self.expr(expr) for expr in exprs])]

    def _case(self, expr: tree.Case) -> Sql:
        first = self.truth(expr.whens[0][0])
        with self._below_a_guard():
            conditions = [first, *(self.truth(condition) for condition, _ in expr.whens[1:])]
            *results, default = unify([*(self.expr(result) for _, result in expr.whens), self.expr(expr.default)])
        whens = " ".join(
            f"WHEN {condition} THEN {result.text}" for condition, result in zip(conditions, results, strict=True)
        )
        return Sql(f"(CASE {whens} ELSE {default.text} END)", _physical([*results, default]))

    def _aggregate(self, expr: tree.AggregateCall) -> Sql:
        below = ExpressionWriter(self._queries)
        modifiers = AggregateSql(
            distinct=expr.distinct,
            order_by=below.order_by([replace(key, expr=under(expr.filter, key.expr)) for key in expr.order_by]),
            filter="" if expr.filter is None else below.truth(expr.filter),
        )
        return expr.aggregate.render([below.expr(under(expr.filter, arg)) for arg in expr.args], modifiers)

    def _grouping(self, expr: tree.GroupingCall) -> Sql:
        if self._sets is None:
            return Sql("0", INTEGER)
        positions = {group: position for position, group in enumerate(self._groups)}
        keys = ", ".join(self._keys[positions[arg]] for arg in expr.args)
        return Sql(f"CAST(grouping({keys}) AS INTEGER)", INTEGER)

    def _window(self, expr: tree.WindowCall) -> Sql:
        parts = []
        if expr.partition_by:
            parts.append("PARTITION BY " + ", ".join(sort_key(self.expr(part)) for part in expr.partition_by))
        frame = expr.frame
        offsets: list[str] = []
        if (
            frame is not None
            and frame.unit == "range"
            and any(offset is not None for _, offset in (frame.start, frame.end))
        ):
            parts.append("ORDER BY " + self._range_key(expr.order_by[0]))
            parts.append(self._range(frame, offsets))
        else:
            if expr.order_by:
                parts.append("ORDER BY " + self.order_by(expr.order_by))
            if frame is not None:
                parts.append(self._frame(frame))
        modifiers = AggregateSql(
            filter="" if expr.filter is None else self.truth(expr.filter), over=" ".join(parts)
        )  # fmt: skip
        found = expr.function.render([self.expr(under(expr.filter, arg)) for arg in expr.args], modifiers)
        if offsets and expr.order_by[0].expr.type.kind is Kind.DOUBLE:
            return self._guarded(found, self.expr(expr.order_by[0].expr).text, offsets)
        return found

    def _frame(self, frame: tree.Frame) -> str:
        # DuckDB takes a NULL of GROUPS for no bound.
        bounds = [
            kind.upper() if offset is None else f"coalesce({self.expr(offset).text}, -1) {kind.upper()}"
            for kind, offset in (frame.start, frame.end)
        ]
        return f"{frame.unit.upper()} BETWEEN {bounds[0]} AND {bounds[1]}"

    def _range(self, frame: tree.Frame, offsets: list[str]) -> str:
        """A RANGE frame with an offset; those that are not zero are added to `offsets`."""
        sides = [self._side(frame.start, "starting"), self._side(frame.end, "ending")]
        # Rows before the row's peers, or behind them, that end where they begin: DuckDB's grammar has no such frame.
        if sides == [_ROW, ("preceding", sides[1][1])] or sides == [("following", sides[0][1]), _ROW]:
            raise errors.unsupported("a RANGE frame without rows")
        offsets += [text for _, text in sides if text]
        start, end = (f"{text} {kind.upper()}".strip() for kind, text in sides)
        return f"RANGE BETWEEN {start} AND {end}"

    def _side(self, bound: tuple[str, Expr | None], name: str) -> tuple[str, str]:
        """What a bound of a RANGE frame is, and its offset in DuckDB's SQL: not zero, for it finds a row's peers
        reliably (2.0) only if told to."""
        kind, offset = bound
        if offset is None:
            return kind, ""
        value: Any = self._queries.value(offset, "the offset of a frame")
        if value is None:
            raise errors.error(errors.NULL_VALUE_NOT_ALLOWED, f"frame {name} offset must not be null")
        if not value >= 0:
            message = "invalid preceding or following size in window function"
            raise errors.error(errors.INVALID_FRAME_OFFSET, message)
        if value == 0:
            return _ROW
        whole = offset.type.kind in INTEGERS
        return kind, f"CAST({value} AS HUGEINT)" if whole else render_literal(value, offset.type).text

    def _range_key(self, key: SortKey) -> str:
        """The sort key of a RANGE frame with an offset: integers have room for it."""
        found = self.expr(key.expr)
        if sort_key(found) != found.text:
            raise errors.unsupported("a RANGE frame over numeric in an analytic query")
        text = f"CAST({found.text} AS HUGEINT)" if key.expr.type.kind in INTEGERS else found.text
        return f"{text} {'DESC' if key.descending else 'ASC'} NULLS {_nulls(key)}"

    def _guarded(self, window: Sql, key: str, offsets: Sequence[str]) -> Sql:
        """0A000, as the query runs, where an offset does not move a float (infinity, say): such a frame ends with the
        row's peers, and DuckDB's would be now these rows, now those."""
        stays = " OR ".join(f"{key} + {by} = {key} OR {key} - {by} = {key}" for by in offsets)
        failure = fail("0A000", "a RANGE frame whose offset does not change a value is not supported")
        return Sql(f"(CASE WHEN bool_or({stays}) OVER () THEN {failure} ELSE {window.text} END)", window.type)

    def order_by(self, keys: Sequence[SortKey]) -> str:
        """ORDER BY's list, without the words."""
        return ", ".join(
            f"{sort_key(self.expr(key.expr))} {'DESC' if key.descending else 'ASC'} NULLS {_nulls(key)}" for key in keys
        )

    def _subquery(self, expr: tree.ScalarSubquery | tree.Exists | tree.InSubquery) -> Sql:
        # DuckDB computes it for all rows. If that fails, it may have been for one that a condition excepts.
        self._queries.unsure |= self._queries.guarded and depends(expr)
        if isinstance(expr, tree.Exists):
            text, _ = self._queries.query(bare(expr.query))
            return Sql(f"({_not(expr.negated)}EXISTS ({text}))", BOOLEAN)
        text, types = self._queries.query(expr.query)
        if isinstance(expr, tree.ScalarSubquery):
            return Sql(f"({text})", types[0])
        operands, members = [], []
        for number, (operand, type_) in enumerate(zip(expr.operands, types, strict=True)):
            left, right = unify([self.expr(operand), Sql(f"q.c{number}", type_)])
            operands.append(sort_key(left))
            members.append(sort_key(right))
        if len(operands) > 1 and free_relations(expr.query):
            return self._correlated_rows(expr, operands, members, f"({text}) AS q")
        left_side = operands[0] if len(operands) == 1 else f"({', '.join(operands)})"
        inner = f"SELECT {', '.join(members)} FROM ({text}) AS q"
        return Sql(f"({left_side} {_not(expr.negated)}IN ({inner}))", BOOLEAN)

    def _correlated_rows(
        self, expr: tree.InSubquery, operands: Sequence[str], members: Sequence[str], source: str
    ) -> Sql:
        """(a, b) IN (SELECT ...) of a query that reads outer columns, which DuckDB has for one operand only."""
        if any(isinstance(found, tree.AggregateCall | tree.WindowCall) for found in walk(expr.operands)):
            raise errors.unsupported("a row of aggregates IN a correlated subquery in an analytic query")
        equal = " AND ".join(f"{left} = {right}" for left, right in zip(operands, members, strict=True))
        yes, no = ("FALSE", "TRUE") if expr.negated else ("TRUE", "FALSE")
        whens = (
            f"WHEN EXISTS (SELECT 1 FROM {source} WHERE ({equal}){test}) THEN {answer}"
            for test, answer in (("", yes), (" IS NULL", "NULL"))
        )
        return Sql(f"(CASE {' '.join(whens)} ELSE {no} END)", BOOLEAN)


_ROW = ("current row", "")
_TESTS = {True: "TRUE", False: "FALSE", None: "NULL"}


def _not(negated: bool) -> str:
    return "NOT " if negated else ""


def _nulls(key: SortKey) -> str:
    return "FIRST" if key.nulls_first else "LAST"


def _physical(operands: Sequence[Sql]) -> Type:
    """The physical type of unified operands."""
    return operands[0].type
