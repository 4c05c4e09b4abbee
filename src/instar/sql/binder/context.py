"""What binding one statement shares: the catalog, numbers for relations, the parameters' types, the dependencies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from instar import errors, types
from instar.catalog.catalog import SystemView
from instar.catalog.descriptors import Object, Table, View
from instar.sql import tree
from instar.sql.tree import Expr
from instar.types import FLOATS, INTEGERS, Kind, Type

Relation = Object | SystemView


class CatalogReader(Protocol):
    """The catalog as the binder sees it: one version."""

    def lookup(self, schema: str | None, name: str) -> Relation | None: ...

    def by_id(self, object_id: int) -> Object | None: ...


class Context:
    """The state of binding one statement. `hints` are the types of the caller's values for parameters, where known.

    `zone`: the time zone in which texts of timestamptz are read while binding, for what is to mean the same in every
    session; None: they are read when the statement runs, in its session's.
    """

    def __init__(
        self, catalog: CatalogReader, parameters: int = 0, hints: Sequence[Type | None] = (), zone: str | None = None
    ) -> None:
        self.catalog = catalog
        self.zone = zone
        self.hints = tuple(hints)
        self.by_value: set[int] = set()  # parameters whose values were asked for their types
        self.tables: dict[int, Table] = {}
        self.views: dict[int, View] = {}
        self._parameters: list[Type | None] = [None] * parameters
        self._relations = 0
        self._kept = 0
        self._ctes = 0
        self._sources: dict[int, tuple[Expr, str, int | None]] = {}

    def new_relation(self) -> int:
        self._relations += 1
        return self._relations

    def new_kept(self) -> int:
        self._kept += 1
        return self._kept

    def new_cte(self) -> int:
        self._ctes += 1
        return self._ctes

    # --- where expressions come from, for errors ---

    def note(self, expr: Expr, name: str, position: int | None) -> None:
        """Remember what the user called a column, and where. Keeps `expr`, so that its identity stays its own."""
        self._sources[id(expr)] = (expr, name, position)

    def source(self, expr: Expr) -> tuple[str, int | None]:
        found = self._sources.get(id(expr))
        return ("?", None) if found is None else found[1:]

    # --- parameters ---

    def parameter(self, index: int) -> tree.Parameter:
        return tree.Parameter(index, self._parameters[index] or types.UNKNOWN)

    def hint(self, expr: Expr) -> Type | None:
        """The caller's type for a parameter that has none yet, which is by its value from now on."""
        if isinstance(expr, tree.Parameter) and expr.type.kind is Kind.UNKNOWN:
            self.by_value.add(expr.index)
            return self._hint(expr.index)
        return None

    def _hint(self, index: int) -> Type | None:
        return self.hints[index] if index < len(self.hints) else None

    def settle(self, parameter: tree.Parameter, wanted: Type, position: int | None = None) -> tree.Parameter:
        """Give a parameter of unknown type the type that its place wants: the first place decides.

        A number with a fraction where an integer is wanted keeps its type, to be cast as PostgreSQL would cast it.
        """
        hint = self._hint(parameter.index) if parameter.type.kind is Kind.UNKNOWN else None
        bare = Type(wanted.kind)
        if wanted.kind in INTEGERS and hint is not None and (hint.kind in FLOATS or hint.kind is Kind.NUMERIC):
            bare = Type(hint.kind)
        known = self._parameters[parameter.index]
        if known is not None and known != bare:
            message = f"inconsistent types deduced for parameter ${parameter.index + 1}"
            detail = f"{known} versus {bare}"
            raise errors.error(errors.AMBIGUOUS_PARAMETER, message, detail=detail, position=position)
        self._parameters[parameter.index] = bare
        return tree.Parameter(parameter.index, bare)

    def parameter_types(self) -> tuple[Type, ...]:
        """The types of all parameters; one that is never used is its hint, or text."""
        return tuple(type_ or self._hint(index) or types.TEXT for index, type_ in enumerate(self._parameters))
