"""CREATE TABLE and ALTER TABLE: columns, constraints and actions."""

from __future__ import annotations

import re

import msgspec
from msgspec.structs import replace
from sqlglot import exp

from instar import errors
from instar.catalog.descriptors import COMPACTION_SHARE, Action
from instar.sql import statements as ast
from instar.sql.generated_statement import DropExpression
from instar.sql.grammar.lexer import WORD
from instar.sql.grammar.locks import LockGrammar
from instar.sql.grammar.not_nulls import conflicting_null, one_name, with_not_nulls
from instar.sql.grammar.transformations import TransformationGrammar
from instar.sql.grammar.type_names import SERIALS, take_type
from instar.sql.not_null_statement import NotNull
from instar.sql.transformation_statements import JoinTables, SplitTable
from instar.types import Type

_TABLE_CONSTRAINTS = ("constraint", "primary", "unique", "check", "foreign", "exclude", "not")
_COLUMN_CONSTRAINTS = (
    "constraint", "not", "null", "default", "primary", "unique", "check", "references", "generated", "collate",
    "deferrable", "initially", "storage", "compression",
)  # fmt: skip

# Of a table: their defaults, and what they may be.
_OPTIONS = {
    "migration": ("write", 'Available values: "write", "read".'),
    "compaction_share": (str(COMPACTION_SHARE), "It is a number from 0 to 1."),
}
_FRACTION = re.compile(r"[0-9]*\.?[0-9]+")


class _Column(msgspec.Struct):
    """A column definition while it is read."""

    name: str
    type: Type
    serial: bool
    nullable: bool | None = None
    not_null_name: str | None = None
    default: exp.Expr | None = None
    identity: ast.Identity | None = None
    generated: exp.Expr | None = None


class TableGrammar(TransformationGrammar, LockGrammar):
    """Definitions of tables."""

    def create_table(self) -> ast.CreateTable:
        """After CREATE TABLE."""
        if_not_exists = self.try_words("if", "not", "exists")
        name = self.qualified_name()
        if self.at_any(("of", "partition")):
            raise errors.unsupported(f"CREATE TABLE {self.token.value.upper()}", position=self.position)
        names: tuple[str, ...] = ()
        if self.at_operator("(") and self.peek(2).value in (",", ")") and self.peek().value != ")":
            names = self.take_names()
        if names or self.at("as"):
            return self._create_table_as(name, names, if_not_exists)
        columns: list[ast.ColumnDef] = []
        constraints: list[ast.Constraint] = []
        self.take_operator("(")
        if not self.at_operator(")"):
            for column, found in self.comma_list(self._table_element):
                columns.extend([] if column is None else [column])
                constraints.extend(found)
        self.take_operator(")")
        self._refuse_table_options()
        columns, constraints = with_not_nulls(name, columns, constraints)
        if sum(isinstance(constraint, ast.PrimaryKey) for constraint in constraints) > 1:
            message = f'multiple primary keys for table "{name.name}" are not allowed'
            raise errors.error(errors.INVALID_TABLE_DEFINITION, message, position=name.position)
        return ast.CreateTable(name, tuple(columns), tuple(constraints), if_not_exists)

    def _create_table_as(self, name: ast.Name, names: tuple[str, ...], if_not_exists: bool) -> ast.CreateTable:
        self.take_words("as")
        query = self.wrapped_query()
        with_data = True
        if self.try_words("with"):
            with_data = not self.try_words("no")
            self.take_words("data")
        return ast.CreateTable(name, (), (), if_not_exists, query, names, with_data)

    def _refuse_table_options(self) -> None:
        if self.at_any(("inherits", "partition", "using", "with", "without", "on", "tablespace")):
            raise errors.unsupported(f"{self.token.value.upper()} of CREATE TABLE", position=self.position)

    def _table_element(self) -> tuple[ast.ColumnDef | None, tuple[ast.Constraint, ...]]:
        if self.at("like"):
            raise errors.unsupported("LIKE in CREATE TABLE", position=self.position)
        if self.at_any(_TABLE_CONSTRAINTS):
            return None, (self.table_constraint(),)
        column = self.column_definition()
        return column, column.constraints

    # --- columns ---

    def column_definition(self) -> ast.ColumnDef:
        """name type constraint..."""
        position = self.position
        name = self.take_name()
        serial = SERIALS.get(self.token.value) if self.token.kind == WORD else None
        if serial is not None:
            self.index += 1
        column = _Column(name, serial or take_type(self), serial is not None)
        constraints: list[ast.Constraint] = []
        while self.at_any(_COLUMN_CONSTRAINTS):
            constraint = self._column_constraint(column)
            if constraint is not None:
                constraints.append(constraint)
        _require_one_source(column, position)
        numbered = column.serial or column.identity is not None
        if column.nullable is True and numbered:
            raise conflicting_null(name, position)
        nullable = column.nullable is not False and not numbered
        return ast.ColumnDef(
            name,
            column.type,
            nullable,
            column.default,
            column.identity,
            column.serial,
            tuple(constraints),
            position,
            column.not_null_name,
            column.generated,
        )

    def _column_constraint(self, column: _Column) -> ast.Constraint | None:
        named = self.take_name() if self.try_words("constraint") else None
        position = self.position
        word = self.advance().value
        if word in ("not", "null"):
            if word == "not" and self.at_any(("deferrable",)):
                self.index += 1
                return None
            nullable = word == "null"
            if not nullable:
                self._not_null_words()
                column.not_null_name = one_name(column.not_null_name, named, position)
            if column.nullable not in (None, nullable):
                raise conflicting_null(column.name, position)
            column.nullable = nullable
        elif word == "default":
            if column.default is not None:
                message = f'multiple default values specified for column "{column.name}"'
                raise errors.error(errors.SYNTAX_ERROR, message, position=position)
            column.default = self.limited_expression()
        elif word == "generated":
            self._generated(column)
        elif word in ("primary", "unique", "check", "references"):
            return self._column_key(column, word, named)
        elif word == "initially":
            self._initially(position)
        elif word in ("deferrable", "collate", "storage", "compression"):
            raise errors.unsupported(word.upper(), position=position)
        else:
            self.index -= 1
            self.fail()
        return None

    def _column_key(self, column: _Column, word: str, named: str | None) -> ast.Constraint:
        columns = (column.name,)
        if word == "primary":
            self.take_words("key")
            constraint: ast.Constraint = ast.PrimaryKey(columns, named)
        elif word == "unique":
            self._nulls_distinct()
            constraint = ast.Unique(columns, named)
        elif word == "check":
            constraint = ast.Check(self._check_expression(), named, column.name)
        else:
            constraint = self._references(columns, named)
        self._constraint_options()
        if self.at("with"):
            raise errors.unsupported("WITH of a column's constraint", position=self.position)
        return constraint

    def _not_null_words(self) -> None:
        """NULL, after NOT."""
        self.take_words("null")
        if self.at("no", "inherit"):
            raise errors.unsupported("NO INHERIT", position=self.position)

    def _generated(self, column: _Column) -> None:
        """After GENERATED: an identity, or ALWAYS AS (expression) STORED."""
        position = self.position
        always = self._always_as()
        if not self.at_operator("("):
            column.identity = self._identity(always)
            return
        if not always:
            message = "for a generated column, GENERATED ALWAYS must be specified"
            raise errors.error(errors.SYNTAX_ERROR, message, position=position)
        if column.generated is not None:
            message = f'multiple generation clauses specified for column "{column.name}"'
            raise errors.error(errors.SYNTAX_ERROR, message, position=position)
        self.take_operator("(")
        column.generated = self.expression()
        self.take_operator(")")
        if not self.try_words("stored"):
            raise errors.unsupported("a virtual generated column", position=self.position)

    def identity(self) -> ast.Identity:
        """After GENERATED: ALWAYS | BY DEFAULT AS IDENTITY [(options)]."""
        return self._identity(self._always_as())

    def _always_as(self) -> bool:
        always = self.try_words("always")
        if not always:
            self.take_words("by", "default")
        self.take_words("as")
        return always

    def _identity(self, always: bool) -> ast.Identity:
        self.take_words("identity")
        options = ast.SequenceOptions()
        if self.try_operator("("):
            options = self.sequence_options()
            self.take_operator(")")
        return ast.Identity(always, options)

    # --- constraints ---

    def table_constraint(self) -> ast.Constraint:
        """[CONSTRAINT name] PRIMARY KEY | UNIQUE | CHECK | FOREIGN KEY | NOT NULL ..."""
        named = self.take_name() if self.try_words("constraint") else None
        position = self.position
        word = self.try_any("primary", "unique", "check", "foreign", "exclude", "not")
        if word is None:
            self.fail()
        if word == "exclude":
            raise errors.unsupported("EXCLUDE", position=position)
        if word in ("primary", "unique") and self.at_any(("using",)):
            raise errors.unsupported("a constraint using an existing index", position=self.position)
        constraint: ast.Constraint
        if word == "primary":
            self.take_words("key")
            constraint = ast.PrimaryKey(self.take_names(), named)
        elif word == "unique":
            self._nulls_distinct()
            constraint = ast.Unique(self.take_names(), named)
        elif word == "check":
            constraint = ast.Check(self._check_expression(), named)
        elif word == "not":
            self.take_words("null")
            constraint = NotNull(self.take_name(), named)
        else:
            self.take_words("key")
            columns = self.take_names()
            self.take_words("references")
            constraint = self._references(columns, named)
        return self._with_options(constraint)

    def _with_options(self, constraint: ast.Constraint) -> ast.Constraint:
        """What may follow a table's constraint; NOT VALID changes it."""
        if isinstance(constraint, NotNull) and self.at("no", "inherit"):
            raise errors.unsupported("NO INHERIT", position=self.position)
        self._constraint_options()
        position = self.position
        if self.at("with"):
            if isinstance(constraint, ast.PrimaryKey):
                raise errors.unsupported("WITH of a primary key", position=position)
            constraint = replace(constraint, yields=self.violation_policy())
            self._constraint_options()
            if self.at("not", "valid"):
                raise errors.unsupported("WITH (violation) of a constraint that is NOT VALID", position=position)
            return constraint
        if not self.try_words("not", "valid"):
            return constraint
        if not isinstance(constraint, ast.Check | ast.ForeignKey | NotNull):
            kind = "PRIMARY KEY" if isinstance(constraint, ast.PrimaryKey) else "UNIQUE"
            raise errors.unsupported(f"marking {kind} constraints NOT VALID", position=position)
        self._constraint_options()
        if self.at("with"):
            raise errors.unsupported("WITH (violation) of a constraint that is NOT VALID", position=self.position)
        return replace(constraint, not_valid=True)

    def _check_expression(self) -> exp.Expr:
        self.take_operator("(")
        expression = self.expression()
        self.take_operator(")")
        if self.at("no", "inherit"):
            raise errors.unsupported("NO INHERIT", position=self.position)
        return expression

    def _nulls_distinct(self) -> None:
        if self.at("nulls", "not", "distinct"):
            raise errors.unsupported("NULLS NOT DISTINCT", position=self.position)
        self.try_words("nulls", "distinct")

    def _references(self, columns: tuple[str, ...], named: str | None) -> ast.ForeignKey:
        parent = self.qualified_name()
        parent_columns = self.take_names() if self.at_operator("(") else ()
        if self.try_words("match") and self.try_any("simple") is None:
            raise errors.unsupported(f"MATCH {self.token.value.upper()}", position=self.position)
        actions: dict[str, Action] = {}
        while self.try_words("on"):
            event = self.try_any("delete", "update")
            if event is None or event in actions:
                self.fail()
            actions[event] = self._action()
        on_delete, on_update = actions.get("delete", "no action"), actions.get("update", "no action")
        return ast.ForeignKey(columns, parent, parent_columns, named, on_delete, on_update)

    def _action(self) -> Action:
        if self.try_words("no", "action"):
            return "no action"
        if self.try_words("restrict"):
            return "restrict"
        if self.try_words("cascade"):
            return "cascade"
        self.take_words("set")
        action: Action = "set null" if self.try_words("null") else "set default"
        if action == "set default":
            self.take_words("default")
        if self.at_operator("("):
            raise errors.unsupported(f"{action.upper()} of some columns", position=self.position)
        return action

    def _constraint_options(self) -> None:
        while True:
            position = self.position
            if self.try_words("not", "deferrable"):
                continue
            if self.try_words("initially"):
                self._initially(position)
            elif self.at_any(("deferrable", "include", "using")):
                raise errors.unsupported(f"{self.token.value.upper()} of a constraint", position=position)
            else:
                return

    def _initially(self, position: int) -> None:
        if not self.try_words("immediate"):
            raise errors.unsupported("INITIALLY DEFERRED", position=position)

    # --- ALTER TABLE ---

    def alter_table(self) -> ast.AlterTable | SplitTable | JoinTables:
        """After ALTER TABLE."""
        if_exists = self.try_words("if", "exists")
        self.try_words("only")
        name = self.qualified_name()
        self.try_operator("*")
        transformation = self.try_transformation(name, if_exists)
        if transformation is not None:
            return transformation
        if self.try_words("rename"):
            return ast.AlterTable(name, (self._rename(),), if_exists)
        return ast.AlterTable(name, tuple(self.comma_list(self._alter_action)), if_exists)

    def _rename(self) -> ast.AlterAction:
        if self.try_words("to"):
            return ast.RenameTable(self.take_name())
        constraint = self.try_words("constraint")
        if not constraint:
            self.try_words("column")
        old = self.take_name()
        self.take_words("to")
        new = self.take_name()
        return ast.RenameConstraint(old, new) if constraint else ast.RenameColumn(old, new)

    def _alter_action(self) -> ast.AlterAction:
        position = self.position
        word = self.advance().value
        if word == "add":
            return self._add()
        if word == "drop":
            return self._drop()
        if word == "alter":
            lock = self.try_alter_lock()
            if lock is not None:
                return lock
            if self.try_words("primary", "key"):
                self.try_words("using", "columns")  # as CockroachDB has it
                return ast.AlterPrimaryKey(self.take_names())
            self.try_words("column")
            return self._alter_column(self.take_name())
        if word in ("set", "reset") and self.at_operator("("):
            return self._storage_option(word)
        if word == "undrop":
            self.try_words("column")
            name = self.take_name()
            return ast.UndropColumn(name, self.take_name() if self.try_words("as") else None, self.cascade())
        if word == "validate":
            self.take_words("constraint")
            return ast.ValidateConstraint(self.take_name())
        if self.tokens[self.index - 1].kind == WORD and word in ("split", "join"):
            raise errors.unsupported(f"{word.upper()} together with other actions in one statement", position=position)
        if self.tokens[self.index - 1].kind != WORD or word not in _UNSUPPORTED_ACTIONS:
            self.index -= 1
            self.fail()
        raise errors.unsupported(f"ALTER TABLE ... {word.upper()}", position=position)

    def _storage_option(self, word: str) -> ast.SetMigration | ast.SetCompaction:
        """(migration = 'write' | 'read') or (compaction_share = number), or in RESET (name)."""
        self.take_operator("(")
        position = self.position
        name = self.take_label()
        if name not in _OPTIONS:
            raise errors.error(errors.INVALID_PARAMETER, f'unrecognized parameter "{name}"', position=position)
        value, hint = _OPTIONS[name]
        if word == "set":
            self.take_operator("=")
            position = self.position
            sign = "-" if self.try_operator("-") else ""
            value = sign + self.advance().value.lower()
        self.take_operator(")")
        if name == "migration" and value in ("write", "read"):
            return ast.SetMigration("read" if value == "read" else "write")
        if name == "compaction_share" and _FRACTION.fullmatch(value) and float(value) <= 1:
            return ast.SetCompaction(float(value))
        message = f'invalid value for parameter "{name}": "{value}"'
        raise errors.error(errors.INVALID_PARAMETER, message, hint=hint, position=position)

    def _add(self) -> ast.AlterAction:
        lock = self.try_add_lock()
        if lock is not None:
            return lock
        if self.at_any(_TABLE_CONSTRAINTS):
            return ast.AddConstraint(self.table_constraint())
        self.try_words("column")
        if_not_exists = self.try_words("if", "not", "exists")
        return ast.AddColumn(self.column_definition(), if_not_exists, self._place())

    def _drop(self) -> ast.AlterAction:
        lock = self.try_drop_lock()
        if lock is not None:
            return lock
        constraint = self.try_words("constraint")
        if not constraint:
            self.try_words("column")
        if_exists = self.try_words("if", "exists")
        name = self.take_name()
        cascade = self.cascade()
        return ast.DropConstraint(name, if_exists, cascade) if constraint else ast.DropColumn(name, if_exists, cascade)

    def _place(self) -> ast.Place | None:
        if self.try_words("first"):
            return ast.Place(None)
        return ast.Place(self.take_name()) if self.try_words("after") else None

    def _alter_column(self, column: str) -> ast.AlterAction:
        place = self._place()
        if place is not None:
            return ast.MoveColumn(column, place)
        if self.try_words("set", "default"):
            return ast.SetDefault(column, self.expression())
        if self.try_words("drop", "default"):
            return ast.DropDefault(column)
        if self.try_words("set", "not", "null"):
            return ast.SetNotNull(column, self.at("with") and self.violation_policy())
        if self.try_words("drop", "not", "null"):
            return ast.DropNotNull(column)
        if self.try_words("drop", "expression"):
            return DropExpression(column, self.try_words("if", "exists"))
        if self.try_words("drop", "identity"):
            return ast.DropIdentity(column, self.try_words("if", "exists"))
        if self.try_words("add", "generated"):
            return ast.AddIdentity(column, self.identity())
        if self.try_words("set", "data", "type") or self.try_words("type"):
            type_ = take_type(self)
            if self.at("collate"):
                raise errors.unsupported("COLLATE", position=self.position)
            return ast.SetType(column, type_, self.expression() if self.try_words("using") else None)
        if self.at_any(("set", "reset", "restart", "drop")):
            what = " ".join(self.peek(offset).value.upper() for offset in range(2))
            raise errors.unsupported(f"ALTER COLUMN ... {what}".strip(), position=self.position)
        raise self.syntax_error(self.token)


def _require_one_source(column: _Column, position: int) -> None:
    """42601 if the column is to have its values from two places."""
    kinds = None
    if column.generated is not None and (column.default is not None or column.serial):
        kinds = "both default and generation expression"
    elif column.generated is not None and column.identity is not None:
        kinds = "both identity and generation expression"
    elif column.identity is not None and (column.default is not None or column.serial):
        kinds = "both default and identity"
    elif column.default is not None and column.serial:
        kinds = "multiple default values"
    if kinds is not None:
        raise errors.error(errors.SYNTAX_ERROR, f'{kinds} specified for column "{column.name}"', position=position)


_UNSUPPORTED_ACTIONS = frozenset(
    "owner set reset enable disable cluster inherit no attach detach replica force of not rename primary "
    "union intersect except merge".split()
)
