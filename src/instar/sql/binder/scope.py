"""Which columns a name may mean: the FROM items in sight, level by level (PostgreSQL's parse namespace)."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from instar import errors
from instar.catalog.descriptors import Table
from instar.sql import tree
from instar.sql.binder.sameness import SharedSubqueries
from instar.sql.tree import Expr
from instar.types import Type


class ScopeColumn(msgspec.Struct, frozen=True):
    """A column in sight. `expr` is what it stands for: a ColumnRef, or for a column merged by USING a Coalesce.

    `barred`: it is seen, but must not be named, for there are rows of the join without it.
    """

    name: str
    expr: Expr
    barred: bool = False

    @property
    def type(self) -> Type:
        return self.expr.type


class Item(msgspec.Struct, frozen=True):
    """A FROM item under its alias. `table` is set for base tables, `schema` if it may be qualified by it.

    `scalar`: of a function; its rows are its values, which the alias means where no column is called so.
    """

    alias: str
    relation: int
    columns: tuple[ScopeColumn, ...]
    schema: str | None = None
    table: Table | None = None
    scalar: bool = False
    barred: bool = False  # as its columns


class Namespace(msgspec.Struct):
    """What a FROM clause offers: items by alias, and the columns that unqualified names and `*` see, in order."""

    items: dict[str, Item] = msgspec.field(default_factory=dict)
    columns: tuple[ScopeColumn, ...] = ()
    _index: dict[str, list[ScopeColumn]] | None = None

    @classmethod
    def of(cls, item: Item) -> Namespace:
        return cls({item.alias: item}, item.columns)

    def joined(self, other: Namespace, columns: tuple[ScopeColumn, ...] | None = None) -> Namespace:
        """Both together; 42712 if they share an alias. `columns` replaces the concatenation (USING, NATURAL)."""
        for alias in other.items:
            if alias in self.items:
                message = f'table name "{alias}" specified more than once'
                raise errors.error(errors.DUPLICATE_ALIAS, message)
        merged = self.columns + other.columns if columns is None else columns
        return Namespace(self.items | other.items, merged)

    def barred(self) -> Namespace:
        """As the left side of a RIGHT or FULL JOIN is seen by LATERAL items of the right one."""
        items = {alias: replace(item, barred=True) for alias, item in self.items.items()}
        return Namespace(items, tuple(replace(column, barred=True) for column in self.columns))

    def named(self, name: str) -> list[ScopeColumn]:
        """The columns that the unqualified name may mean."""
        if self._index is None:
            self._index = {}
            for column in self.columns:
                self._index.setdefault(column.name, []).append(column)
        return self._index.get(name, [])

    def owner(self, column: ScopeColumn) -> str:
        """The alias of the item whose column it is; one that USING made of two is the join's."""
        for item in self.items.values():
            if any(own.expr == column.expr for own in item.columns):
                return item.alias
        return "unnamed_join"


class CteEntry(msgspec.Struct):
    """A WITH query in sight. `query` None: the recursive one's own name, inside its second term."""

    id: int
    name: str
    columns: tuple[tuple[str, Type], ...]
    query: tree.Query | None
    references: int = 0
    level: int = 0  # of the term that may refer to it


class Scope(msgspec.Struct):
    """One query level. Names not found here are looked for in `parent`, and make the query correlated."""

    namespace: Namespace = msgspec.field(default_factory=Namespace)
    parent: Scope | None = None
    ctes: dict[str, CteEntry] = msgspec.field(default_factory=dict)
    subqueries: SharedSubqueries | None = None  # where equal expressions have to be known as such

    @property
    def level(self) -> int:
        return 0 if self.parent is None else self.parent.level + 1

    def cte(self, name: str) -> CteEntry | None:
        scope: Scope | None = self
        while scope is not None:
            found = scope.ctes.get(name)
            if found is not None:
                return found
            scope = scope.parent
        return None

    def find(self, name: str, position: int | None) -> ScopeColumn | None:
        """An unqualified column: the innermost level that has one decides; 42702 if it has several."""
        scope: Scope | None = self
        while scope is not None:
            found = scope.namespace.named(name)
            if len(found) > 1:
                message = f'column reference "{name}" is ambiguous'
                raise errors.error(errors.AMBIGUOUS_COLUMN, message, position=position)
            if found:
                if found[0].barred:
                    raise _barred(scope.namespace.owner(found[0]), position)
                return found[0]
            scope = scope.parent
        return None

    def item(self, schema: str | None, alias: str, position: int | None) -> Item | None:
        """The FROM item that a qualified name means."""
        scope: Scope | None = self
        while scope is not None:
            found = scope.namespace.items.get(alias)
            if found is not None and (schema is None or schema == found.schema):
                if found.barred:
                    raise _barred(alias, position)
                return found
            scope = scope.parent
        return None


def _barred(alias: str, position: int | None) -> errors.Error:
    message = f'invalid reference to FROM-clause entry for table "{alias}"'
    detail = "The combining JOIN type must be INNER or LEFT for a LATERAL reference."
    return errors.error(errors.INVALID_COLUMN_REFERENCE, message, detail=detail, position=position)
