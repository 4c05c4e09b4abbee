"""Access paths: how keys and indexes restrict what is read of one table, and in which order they give it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from instar.catalog.descriptors import Index, State, Table
from instar.encoding.keys import TAGS
from instar.sql import tree
from instar.sql.expressions import is_representation_kept
from instar.sql.failing import may_fail, under
from instar.sql.functions.strings import like_beginning
from instar.sql.plan import Bound, KeyPath, is_single
from instar.sql.traversal import conjuncts
from instar.sql.tree import Expr, SortKey

_LIKE = "~~"
_FLIPPED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


class Restriction(NamedTuple):
    """`column <comparison> one of values`, found in conjunct number `conjunct`. Of LIKE (`~~`) the pattern's fixed
    beginning is what restricts."""

    ordinal: int
    comparison: str
    values: tuple[Expr, ...]
    conjunct: int
    whole: bool = True  # whether it says all that the conjunct does


class Candidate(NamedTuple):
    """A path, how good it is (smaller is better), and the conjuncts that it makes superfluous; an OR's `others`."""

    path: KeyPath
    rank: tuple[int, int, int]
    used: frozenset[int]
    others: tuple[KeyPath, ...] = ()


# What the conditions given say about single columns of a table.
Find = Callable[[Sequence[Expr]], list[Restriction]]

_BY_VALUES = 2  # the last rank of paths by equality
NARROW = 3  # and of those by two bounds, or a beginning
_WALK = 5
_MOST_PATHS = 16


def restrictions(relation: int, conditions: Sequence[Expr], known: Callable[[Expr], bool]) -> list[Restriction]:
    """What the conditions say about single columns of `relation`; `known` tells which operands can be evaluated.

    Operands are evaluated for a key before any row is there: where they may fail, only if the conditions before, as far
    as they can be evaluated then, say nothing against it.
    """

    def guarded(found: Restriction) -> Restriction:
        said = tuple([before for before in conditions[: found.conjunct] if known(before)])
        if not said or isinstance(found.values[0], tree.InSubquery):
            return found
        return found._replace(values=tuple([under(tree.And(said), value) for value in found.values]))

    return [guarded(found) for found in _unguarded(relation, conditions, known)]


def _unguarded(relation: int, conditions: Sequence[Expr], known: Callable[[Expr], bool]) -> list[Restriction]:
    found = []
    for number, condition in enumerate(conditions):
        if isinstance(condition, tree.InList) and not condition.negated:
            ordinal = _column(relation, condition.operand)
            if ordinal is not None and all(known(item) for item in condition.items):
                found.append(Restriction(ordinal, "=", condition.items, number))
        elif isinstance(condition, tree.InSubquery) and not condition.negated and len(condition.operands) == 1:
            ordinal = _column(relation, condition.operands[0])
            if ordinal is not None and known(tree.ScalarSubquery(condition.query, condition.operands[0].type)):
                found.append(Restriction(ordinal, "=", (condition,), number))
        elif isinstance(condition, tree.Call) and condition.function.operator and condition.function.name in _FLIPPED:
            found.extend(_comparison(relation, condition, number, known))
        elif isinstance(condition, tree.Or):
            found.extend(_implied(relation, condition, number, known))
        elif isinstance(condition, tree.Call) and condition.function.operator and condition.function.name == _LIKE:
            column, pattern = condition.args
            ordinal = _column(relation, column)
            if ordinal is not None and known(pattern) and not _begins_with_anything(pattern):
                found.append(Restriction(ordinal, _LIKE, (pattern,), number))
    return found


def _implied(relation: int, condition: tree.Or, number: int, known: Callable[[Expr], bool]) -> Iterator[Restriction]:
    """A bound that holds whichever argument does: `a <= x` of `a < x OR a = x AND b < y`, as `(a, b) < (x, y)` is."""
    parts = [restrictions(relation, conjuncts(arg), known) for arg in condition.args]
    for first in parts[0]:
        if len(first.values) != 1 or may_fail(first.values):
            continue
        same = [
            {item.comparison[0] for item in part if (item.ordinal, item.values) == (first.ordinal, first.values)}
            for part in parts
        ]
        signs = set().union(*same)
        for sign in "<>":
            if sign in signs and all(found & {sign, "="} for found in same):
                yield Restriction(first.ordinal, f"{sign}=", first.values, number, whole=False)


def _begins_with_anything(pattern: Expr) -> bool:
    return isinstance(pattern, tree.Literal) and not like_beginning(str(pattern.value))


def _comparison(relation: int, call: tree.Call, number: int, known: Callable[[Expr], bool]) -> Iterator[Restriction]:
    left, right = call.args
    symbol = call.function.name
    for column, value, comparison in ((left, right, symbol), (right, left, _FLIPPED[symbol])):
        ordinal = _column(relation, column)
        if ordinal is not None and known(value):
            yield Restriction(ordinal, comparison, (value,), number)


def column_of(expr: Expr) -> tree.ColumnRef | None:
    """The column that `expr` is, at most cast in a way that leaves its values as they are."""
    while isinstance(expr, tree.Cast) and is_representation_kept(expr.operand.type, expr.type):
        expr = expr.operand
    return expr if isinstance(expr, tree.ColumnRef) else None


def _column(relation: int, expr: Expr) -> int | None:
    """The ordinal, if `expr` is a column of `relation`."""
    column = column_of(expr)
    return column.ordinal if column is not None and column.relation == relation else None


class _Key(msgspec.Struct, frozen=True):
    """The primary key or an index as a sequence of columns."""

    index: Index | None
    ordinals: tuple[int, ...]
    descending: tuple[bool, ...]
    unique: bool


def _keys(table: Table) -> Iterator[_Key]:
    ordinals = {column.id: ordinal for ordinal, column in enumerate(table.columns)}
    primary = tuple(ordinals[column] for column in table.primary_key)
    yield _Key(None, primary, (False,) * len(primary), True)
    for index in table.indexes:
        if index.state is State.PUBLIC:
            columns = tuple(ordinals[part.column] for part in index.columns)
            descending = tuple(part.descending for part in index.columns)
            yield _Key(index, columns, descending, index.unique)


def best_candidate(table: Table, conditions: Sequence[Expr], find: Find) -> Candidate:
    """The best path for rows that meet the conditions: one key's, or the paths of an OR's arguments."""
    plain = _best(table, conditions, find)
    return plain if plain.rank[0] <= _BY_VALUES else min([plain, *either(table, conditions, find)], key=_rank_of)


def either(table: Table, conditions: Sequence[Expr], find: Find) -> list[Candidate]:
    """For each OR among the conditions the paths of its arguments, where each has one that restricts."""
    found = [_united(table, number, conditions, find) for number in range(len(conditions))]
    return [candidate for candidate in found if candidate is not None]


def _united(table: Table, number: int, conditions: Sequence[Expr], find: Find) -> Candidate | None:
    chosen = conditions[number]
    if not isinstance(chosen, tree.Or):
        return None
    before, after = conditions[:number], conditions[number + 1 :]
    parts = [_best(table, [*before, *conjuncts(arg), *after], find) for arg in chosen.args]
    worst = max(part.rank[0] for part in parts)
    paths = _merged([part.path for part in parts])
    # All arguments' keys are looked for, be an earlier one true or not.
    if worst > NARROW or len(paths) > _MOST_PATHS or any(may_fail(path.compared) for path in paths):
        return None
    return Candidate(paths[0], (max(worst, 1), 0, 1), frozenset(), tuple(paths[1:]))


def _merged(paths: Sequence[KeyPath]) -> list[KeyPath]:
    """Paths by values of one column, one path for each key: `id = 1 OR id = 2` is `id IN (1, 2)`."""
    found: dict[object, KeyPath] = {}
    for number, path in enumerate(paths):
        merges = len(path.equal) == 1 and not path.next_to
        merges = merges and not isinstance(path.equal[0][0], tree.InSubquery)
        key: object = (path.index,) if merges else number
        known = found.get(key)
        found[key] = path if known is None else replace(known, equal=((*known.equal[0], *path.equal[0]),))
    return list(found.values())


def _best(table: Table, conditions: Sequence[Expr], find: Find) -> Candidate:
    return min(candidates(table, find(conditions)), key=_rank_of)


def _rank_of(candidate: Candidate) -> tuple[int, int, int]:
    return candidate.rank


def candidates(table: Table, found: Sequence[Restriction]) -> Iterator[Candidate]:
    """A path for every key that the restrictions restrict, and the walk over the primary key."""
    for key in _keys(table):
        equal: list[tuple[Expr, ...]] = []
        used: set[int] = set()
        for ordinal in key.ordinals:
            matches = [item for item in found if item.ordinal == ordinal and item.comparison == "="]
            if not matches:
                break
            best = min(matches, key=lambda item: (not is_single(item.values), len(item.values)))
            equal.append(best.values)
            used.add(best.conjunct)
        low = high = like = None
        if len(equal) < len(key.ordinals):
            low, high = _bounds(key.ordinals[len(equal)], found, used)
            if low is high is None:
                like = _pattern(key.ordinals[len(equal)], found)
        unique = key.unique and len(equal) == len(key.ordinals)
        path = KeyPath(key.index, key.ordinals, tuple(equal), low, high, unique, like=like)
        if key.index is None or path.restricts:
            yield Candidate(path, _rank(path), frozenset(used))


def _bounds(ordinal: int, found: Sequence[Restriction], used: set[int]) -> tuple[Bound | None, Bound | None]:
    low = high = None
    for item in found:
        if item.ordinal != ordinal or item.comparison in ("=", _LIKE):
            continue
        bound = Bound(item.values[0], item.comparison in ("<=", ">="))
        if item.comparison in (">", ">="):
            if low is not None:
                continue
            low = bound
        elif high is None:
            high = bound
        else:
            continue
        if item.whole:
            used.add(item.conjunct)
    return low, high


def _pattern(ordinal: int, found: Sequence[Restriction]) -> Expr | None:
    patterns = [item.values[0] for item in found if item.ordinal == ordinal and item.comparison == _LIKE]
    return patterns[0] if patterns else None


def _rank(path: KeyPath) -> tuple[int, int, int]:
    several = not all(is_single(values) for values in path.equal)
    if path.unique:
        level = 1 if several else 0
    elif path.equal:
        level = _BY_VALUES
    elif path.like is not None or (path.low is not None and path.high is not None):
        level = NARROW
    else:
        level = 4 if path.restricts else _WALK
    bounds = (path.low is not None) + (path.high is not None)
    return level, -2 * len(path.equal) - bounds, 0 if path.index is None else 1


def ordered(table: Table, path: KeyPath, keys: Sequence[SortKey], relation: int) -> KeyPath | None:
    """`path`, turned round if need be, if its rows then come in the order of `keys`; else None."""
    key = next(found for found in _keys(table) if found.index == path.index)
    primary = next(_keys(table))
    columns = list(zip(key.ordinals, key.descending, strict=True))
    columns += [(ordinal, False) for ordinal in primary.ordinals if ordinal not in key.ordinals]
    fixed = {
        ordinal for ordinal, values in zip(key.ordinals, path.equal, strict=False) if is_single(values)
    }  # fmt: skip
    walked = [column for column in columns if column[0] not in fixed]
    reverse: bool | None = None
    position = 0
    for sort in keys:
        ordinal = _column(relation, sort.expr)
        if ordinal is None:
            return None
        if ordinal in fixed or ordinal in {column for column, _ in walked[:position]}:
            continue
        if position >= len(walked) or walked[position][0] != ordinal:
            return None
        turned = walked[position][1] != sort.descending
        nullable = table.columns[ordinal].nullable
        if (nullable and sort.nulls_first != sort.descending) or (reverse is not None and reverse != turned):
            return None
        reverse = turned
        position += 1
    return replace(path, reverse=bool(reverse))


def walks(table: Table) -> Iterator[KeyPath]:
    """The walks over the whole table, in the order of each of its keys."""
    for key in _keys(table):
        if all(table.columns[ordinal].type.kind in TAGS for ordinal in key.ordinals):
            yield KeyPath(key.index, key.ordinals, ())
