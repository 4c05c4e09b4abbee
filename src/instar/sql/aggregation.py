"""Grouping and aggregates in the executor: a dictionary of groups, each with the states of its aggregate calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from instar.sql.accesses import Source
from instar.sql.execution import Row
from instar.sql.expressions import Compiler, Frame, Scope
from instar.sql.functions import Accumulator
from instar.sql.plan import Aggregate
from instar.sql.sorting import SortPass, hashable, sort_passes, sort_rows
from instar.sql.tree import AggregateCall


class _State:
    """One call over one group. With ORDER BY the group's rows are kept until the end."""

    __slots__ = ("accumulator", "kept", "seen")

    def __init__(self, accumulator: Accumulator) -> None:
        self.accumulator = accumulator
        self.seen: set[object] = set()
        self.kept: list[Row] = []


class _Call:
    """An aggregate call, compiled."""

    def __init__(self, call: AggregateCall, compiler: Callable[[], Compiler]) -> None:
        types = [arg.type for arg in call.args]
        self._arguments = compiler().row(call.args)
        self._filter = None if call.filter is None else compiler().predicate([call.filter])
        self._strict = call.aggregate.strict
        self._factory = call.aggregate.accumulator(types)
        self._normal = hashable(types) if call.distinct else None
        self._passes: list[SortPass] = sort_passes(compiler, call.order_by)

    def state(self) -> _State:
        """The state of an empty group."""
        return _State(self._factory())

    def feed(self, state: _State, row: Row, p: Frame) -> None:
        """Take in a row of the group."""
        if self._filter is not None and not self._filter(row, p):
            return
        if self._passes:
            state.kept.append(row)
        else:
            self._add(state, row, p)

    def result(self, state: _State, p: Frame) -> object:
        """The aggregate of all rows fed."""
        if self._passes:
            sort_rows(state.kept, self._passes, p)
            for row in state.kept:
                self._add(state, row, p)
        return state.accumulator.result()

    def _add(self, state: _State, row: Row, p: Frame) -> None:
        values = self._arguments(row, p)
        if self._strict and None in values:
            return
        if self._normal is not None:
            key = self._normal(values)
            if key in state.seen:
                return
            state.seen.add(key)
        state.accumulator.add(*values)


def aggregate_source(node: Aggregate, child: Source, compiler: Callable[[Scope], Compiler]) -> Source:
    """Rows of the groups' values, then the calls' results; groups come in the order in which they were first met."""
    scope = node.child.scope
    groups = compiler(scope).row(node.groups)
    normal = hashable([expr.type for expr in node.groups])
    calls = [_Call(call, lambda: compiler(scope)) for call in node.calls]

    def grouped(pairs: Iterable[tuple[Row, Row]], p: Frame, empty: Row | None) -> Iterator[Row]:
        """`empty` are the groups' values of the row that stands even where no row came in."""
        found: dict[object, tuple[Row, list[_State]]] = {}
        for row, values in pairs:
            key = normal(values)
            group = found.get(key)
            if group is None:
                group = found[key] = values, [call.state() for call in calls]
            for call, state in zip(calls, group[1], strict=True):
                call.feed(state, row, p)
        if not found and empty is not None:
            found[None] = empty, [call.state() for call in calls]
        for values, states in found.values():
            yield (*values, *(call.result(state, p) for call, state in zip(calls, states, strict=True)))

    if node.sets == (tuple(range(len(node.groups))),):
        empty = None if node.groups else ()
        return lambda p: grouped(((row, groups(row, p)) for row in child(p)), p, empty)

    def sets(p: Frame) -> Iterator[Row]:
        pairs = [(row, groups(row, p)) for row in child(p)]
        for chosen in node.sets:
            masked = ((row, _masked(values, chosen)) for row, values in pairs)
            yield from grouped(masked, p, None if chosen else (None,) * len(node.groups))

    return sets


def _masked(values: Row, chosen: Sequence[int]) -> Row:
    """The groups' values with NULL where the grouping set leaves a group out."""
    return tuple([value if position in chosen else None for position, value in enumerate(values)])
