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

Feed = Callable[[Row], object]
Finish = Callable[[], object]


class _Call:
    """An aggregate call, compiled: `start` begins a group."""

    def __init__(self, call: AggregateCall, compiler: Callable[[], Compiler]) -> None:
        types = [arg.type for arg in call.args]
        self._single = compiler().value(call.args[0]) if len(call.args) == 1 else None
        self._arguments = compiler().row(call.args)
        self._filter = None if call.filter is None else compiler().predicate([call.filter])
        self._strict = call.aggregate.strict
        self._factory = call.aggregate.accumulator(types)
        self._normal = hashable(types) if call.distinct else None
        self._passes: list[SortPass] = sort_passes(compiler, call.order_by)

    def start(self, p: Frame) -> tuple[Feed, Finish]:
        """What takes in a row of a group, and what gives the group's result."""
        accumulator = self._factory()
        feed, finish = self._added(accumulator, p), accumulator.result
        if self._passes:
            feed, finish = self._sorted(feed, finish, p)
        meets = self._filter
        if meets is None:
            return feed, finish
        return (lambda row: feed(row) if meets(row, p) else None), finish

    def _added(self, accumulator: Accumulator, p: Frame) -> Feed:
        add, arguments, single, normal = accumulator.add, self._arguments, self._single, self._normal
        if normal is None and single is not None and self._strict:

            def one(row: Row) -> None:
                value = single(row, p)
                if value is not None:
                    add(value)

            return one
        seen: set[object] = set()

        def several(row: Row) -> None:
            values = arguments(row, p)
            if self._strict and None in values:
                return
            if normal is not None:
                key = normal(values)
                if key in seen:
                    return
                seen.add(key)
            add(*values)

        return several

    def _sorted(self, feed: Feed, finish: Finish, p: Frame) -> tuple[Feed, Finish]:
        """ORDER BY in a call: the group's rows are kept until its end."""
        kept: list[Row] = []

        def finished() -> object:
            sort_rows(kept, self._passes, p)
            for row in kept:
                feed(row)
            return finish()

        return kept.append, finished


def aggregate_source(node: Aggregate, child: Source, compiler: Callable[[Scope], Compiler]) -> Source:
    """Rows of the groups' values, then the calls' results, then what each GROUPING is; groups come in the order in
    which they were first met."""
    scope = node.child.scope
    calls = [_Call(call, lambda: compiler(scope)) for call in node.calls]
    if node.sets == ((),) and not node.groups:
        return lambda p: _ungrouped(child(p), calls, p)
    groups = compiler(scope).row(node.groups)
    normal = hashable([expr.type for expr in node.groups])
    nothing_left_out = (0,) * len(node.groupings)
    if node.sets == (tuple(range(len(node.groups))),):
        return lambda p: _grouped(((row, groups(row, p)) for row in child(p)), normal, calls, nothing_left_out, p)

    def sets(p: Frame) -> Iterator[Row]:
        pairs = [(row, groups(row, p)) for row in child(p)]
        for chosen in node.sets:
            masked = [(row, _masked(values, chosen)) for row, values in pairs]
            marks = tuple([_bits(positions, chosen) for positions in node.groupings])
            if masked or chosen:
                yield from _grouped(masked, normal, calls, marks, p)
            else:
                nothing = (None,) * len(node.groups)
                yield from (nothing + row + marks for row in _ungrouped((), calls, p))

    return sets


def _ungrouped(rows: Iterable[Row], calls: Sequence[_Call], p: Frame) -> Iterator[Row]:
    """One row, even for no input."""
    started = [call.start(p) for call in calls]
    feeds = [feed for feed, _ in started]
    if len(feeds) == 1:
        only = feeds[0]
        for row in rows:
            only(row)
    else:
        for row in rows:
            for feed in feeds:
                feed(row)
    yield tuple([finish() for _, finish in started])


def _grouped(
    pairs: Iterable[tuple[Row, Row]], normal: Callable[[Row], object], calls: Sequence[_Call], marks: Row, p: Frame
) -> Iterator[Row]:
    found: dict[object, tuple[Row, list[Feed], list[Finish]]] = {}
    for row, values in pairs:
        key = normal(values)
        group = found.get(key)
        if group is None:
            started = [call.start(p) for call in calls]
            group = found[key] = values, [feed for feed, _ in started], [finish for _, finish in started]
        for feed in group[1]:
            feed(row)
    for values, _, finishes in found.values():
        yield (*values, *(finish() for finish in finishes), *marks)


def _masked(values: Row, chosen: Sequence[int]) -> Row:
    """The groups' values with NULL where the grouping set leaves a group out."""
    return tuple([value if position in chosen else None for position, value in enumerate(values)])


def _bits(positions: Sequence[int], chosen: Sequence[int]) -> int:
    """What GROUPING of the groups at these positions is in the rows of a grouping set."""
    bits = 0
    for position in positions:
        bits = 2 * bits + (position not in chosen)
    return bits
