"""Which tables of a query that runs in the analytic engine are read by a key, and in which order.

Not every table of such a query has to be read whole: `WHERE customer = 7` below a window function leaves a few rows of
an index, and these leave a few rows of what they are joined with. Rows left out by a comparison that the query makes
itself can be in no row of its answer, as long as that comparison would fail for them wherever they could get to:

- a conjunct of WHERE holds for every table below FROM, the nullable sides of outer joins too, since it fails for NULL;
- a conjunct of ON holds for both sides of an inner join, and for the nullable side of an outer one.

What it compares with is a constant, a parameter, or a column of a table that is read before: of the same query level,
or of one further out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from instar.catalog.descriptors import Table
from instar.sql import tree
from instar.sql.access_paths import Candidate, Restriction, candidates, column_of, either, restrictions
from instar.sql.expressions import ColumnKey, Scope
from instar.sql.plan import Access
from instar.sql.traversal import SUBQUERIES, conjuncts, free_relations, references, walk
from instar.sql.tree import Expr, FromItem, Query


class Held(NamedTuple):
    """A table of a query, and what must hold for each of its rows that matters."""

    scan: tree.TableScan
    conditions: tuple[Expr, ...]


def held_scans(item: FromItem | None, conditions: Sequence[Expr]) -> Iterator[Held]:
    """The tables of a query level's FROM under the conjuncts of its WHERE; not those of derived tables."""
    if isinstance(item, tree.TableScan):
        yield Held(item, tuple(conditions))
    elif isinstance(item, tree.Join):
        below = [*conditions, *conjuncts(item.condition)]
        yield from held_scans(item.left, below if item.kind in ("inner", "right") else conditions)
        yield from held_scans(item.right, below if item.kind in ("inner", "left") else conditions)


def is_constant(expr: Expr) -> bool:
    """Whether the operand of a comparison can be evaluated before the query runs, in which nothing is volatile."""
    return not free_relations(expr) and not any(isinstance(found, SUBQUERIES) for found in walk(expr))


def read_columns(needed: frozenset[ColumnKey], scan: tree.TableScan) -> tuple[int, ...]:
    """The ordinals that are to be read of a table, if a query mentions these columns. DuckDB has no relation without
    columns: count(*) reads the first column of the key."""
    wanted = tuple(sorted(ordinal for owner, ordinal in needed if owner == scan.relation))
    return wanted or (_key_ordinal(scan.table),)


def _key_ordinal(table: Table) -> int:
    return next(ordinal for ordinal, column in enumerate(table.columns) if column.id == table.primary_key[0])


def driven_inputs(query: Query) -> tuple[Access, ...]:
    """The tables to be read by keys, each after those whose columns its path compares with.

    A range of the primary key is none of them: the analytic engine reads that itself, by the batch.
    """
    pending = {
        held.scan.relation: held
        for level in walk(query)
        if isinstance(level, tree.Select)
        for held in held_scans(level.from_, conjuncts(level.where))
    }
    needed = references(query).columns
    found: list[Access] = []
    while pending:
        known = frozenset(access.relation for access in found)
        best = {relation: _best(held, known) for relation, held in pending.items()}
        relation = min(best, key=lambda number: best[number].rank)
        scan, path, others = pending.pop(relation).scan, best[relation].path, best[relation].others
        if path.equal or others or (path.index is not None and path.restricts):
            ordinals = read_columns(needed, scan)
            scope = Scope({(relation, ordinal): position for position, ordinal in enumerate(ordinals)})
            found.append(
                Access(scope, relation, scan.table, scan.alias, ordinals, path, level=scan.level, others=others)
            )
    return tuple(found)


def _best(held: Held, known: frozenset[int]) -> Candidate:
    """The best path by what is evaluated before the query runs, or read of the tables that are `known`. A row must not
    be found for several rows of these: IN, inequalities and ORs are read by constants alone."""

    def find(exprs: Sequence[Expr], at_hand: Callable[[Expr], bool] = is_constant) -> list[Restriction]:
        found = restrictions(held.scan.relation, exprs, at_hand)
        return [item for item in found if _is_single(item) or all(is_constant(value) for value in item.values)]

    def is_at_hand(expr: Expr) -> bool:
        return is_constant(expr) or (column_of(expr) is not None and free_relations(expr) <= known)

    table, conditions = held.scan.table, held.conditions
    found = [*candidates(table, find(conditions, is_at_hand)), *either(table, conditions, find)]
    return min(found, key=lambda candidate: candidate.rank)


def _is_single(found: Restriction) -> bool:
    return found.comparison == "=" and len(found.values) == 1
