"""What statements of the data definition language have in common: names looked up, expressions frozen, columns and
constraints as they are wanted, IF [NOT] EXISTS answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from sqlglot import exp

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Sequence, Table, View
from instar.schemachange import wanted as want
from instar.sql import statements as ast
from instar.sql.binder import freeze_check, freeze_default, freeze_generated
from instar.sql.expressions import Compiler, FrameLayout, Scope
from instar.sql.functions import Context
from instar.sql.traversal import is_volatile
from instar.sql.tree import Expr, Literal
from instar.types import Type
from instar.values import to_text


class DdlContext(msgspec.Struct, frozen=True):
    """What a statement is translated in: the catalog that the session sees, what stable functions read, who is told of
    what IF [NOT] EXISTS skips, and the timestamp that it means by AS OF SYSTEM TIME."""

    catalog: CatalogSnapshot
    functions: Context
    notice: Callable[[str], None]
    as_of: int | None = None

    def name(self, name: ast.Name) -> str:
        """The name in schema public, the only one that users' objects are in."""
        if name.schema in (None, "public"):
            return name.name
        if self.catalog.has_schema(name.schema or ""):
            raise errors.error(
                errors.INSUFFICIENT_PRIVILEGE,
                f"permission denied: schema {name.schema} holds system views only",
                position=name.position,
            )
        raise errors.error(errors.INVALID_SCHEMA_NAME, f'schema "{name.schema}" does not exist', position=name.position)

    def present(self, kind: str, names: Iterable[ast.Name], if_exists: bool) -> tuple[str, ...]:
        """The names; with IF EXISTS those that are there, and a notice for each of the others."""
        kept = []
        for name in names:
            found = self.name(name)
            # Indexes have their names among those of tables, and a primary key's has the constraint's.
            there = self.catalog.relation(found) if kind == "index" else self.lookup(found)
            if there is not None or not if_exists:
                kept.append(found)
            else:
                self.notice(f'{kind} "{found}" does not exist, skipping')
        return tuple(kept)

    def lookup(self, name: str) -> object | None:
        """The table, view or sequence of this name."""
        return self.catalog.lookup("public", name)

    def exists_already(self, name: str, if_not_exists: bool) -> bool:
        """Whether a relation of this name makes a CREATE ... IF NOT EXISTS do nothing."""
        if not if_not_exists or self.catalog.relation(name) is None:
            return False
        self.notice(f'relation "{name}" already exists, skipping')
        return True

    def table(self, name: ast.Name) -> Table:
        """The table of this name. 42809 for a view or sequence, 42P01 if there is nothing."""
        found = self.lookup(self.name(name))
        if isinstance(found, Table):
            return found
        if isinstance(found, View | Sequence):
            raise errors.error(errors.WRONG_OBJECT_TYPE, f'"{name.name}" is not a table', position=name.position)
        raise errors.error(errors.UNDEFINED_TABLE, f'relation "{name.name}" does not exist', position=name.position)

    def default(self, node: exp.Expr, column: str, type_: Type, *, evaluate: bool) -> want.Default:
        """A column's default; `evaluate`: with its value of now, which rows that are there already get."""
        text, expr = freeze_default(node, column, type_, self.catalog, self.functions.zone)
        volatile = is_volatile(expr)
        value = self._evaluated(expr, type_) if evaluate and not volatile else None
        return want.Default(lambda table: want.Frozen(text, ()), volatile, value)

    def _evaluated(self, expr: Expr, type_: Type) -> str | None:
        """The canonical text of a constant or stable expression's value now."""
        if isinstance(expr, Literal):
            value = expr.value
        else:
            layout = FrameLayout(0)
            function = Compiler(Scope({}), layout).value(expr)
            value = function((), layout.frame((), self.functions, None))
        return None if value is None else to_text(type_, value)

    def _check(self, check: ast.Check) -> want.Check:
        return want.Check(
            lambda table: want.Frozen(*freeze_check(check.expression, table, self.catalog, self.functions.zone)),
            check.name,
            check.column,
            check.not_valid,
            check.yields,
        )

    def column(self, column: ast.ColumnDef, *, evaluate: bool) -> want.NewColumn:
        """A column with its default, as `default` says, and its sequence; its constraints are apart."""
        default = None
        if column.default is not None:
            default = self.default(column.default, column.name, column.type, evaluate=evaluate)
        sequence = None
        if column.identity is not None:
            sequence = self.options(column.identity.options)
        elif column.serial:
            sequence = want.SequenceOptions()
        identity = None if column.identity is None else identity_kind(column.identity)
        generated = None if column.generated is None else self._generated(column.generated, column.name, column.type)
        return want.NewColumn(
            column.name, column.type, column.nullable, default, identity, sequence, column.not_null_name, generated
        )

    def _generated(self, node: exp.Expr, column: str, type_: Type) -> want.Freezer:
        zone = self.functions.zone
        return lambda table: want.Frozen(*freeze_generated(node, table, column, type_, self.catalog, zone))

    def constraints(self, constraints: Iterable[ast.Constraint]) -> Iterable[want.Constraint]:
        """All but the primary key."""
        for constraint in constraints:
            if not isinstance(constraint, ast.PrimaryKey):
                yield self.constraint(constraint)

    def constraint(self, constraint: ast.Constraint) -> want.Constraint:
        """UNIQUE, CHECK or FOREIGN KEY. 0A000 for a primary key."""
        if isinstance(constraint, ast.Unique):
            return want.Unique(constraint.columns, constraint.name, constraint.yields)
        if isinstance(constraint, ast.Check):
            return self._check(constraint)
        if isinstance(constraint, ast.ForeignKey):
            return want.ForeignKey(
                constraint.columns,
                self.name(constraint.parent),
                constraint.parent_columns,
                constraint.name,
                constraint.on_delete,
                constraint.on_update,
                constraint.not_valid,
                constraint.yields,
            )
        raise errors.unsupported("a primary key that comes with a column")

    def options(self, options: ast.SequenceOptions) -> want.SequenceOptions:
        """The options of a sequence."""
        owner = options.owned_by
        return want.SequenceOptions(
            options.type,
            options.start,
            options.increment,
            options.minimum,
            options.maximum,
            options.cycle,
            options.cache,
            options.restart,
            (self.name(owner[0]), owner[1]) if isinstance(owner, tuple) else owner,
        )


def identity_kind(identity: ast.Identity) -> want.IdentityKind:
    """ALWAYS or BY DEFAULT."""
    return "always" if identity.always else "by default"
