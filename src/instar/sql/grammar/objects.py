"""CREATE, ALTER and DROP of indexes, sequences and views; DROP TABLE, TRUNCATE."""

from __future__ import annotations

from typing import Any

from instar import errors
from instar.sql import statements as ast
from instar.sql.grammar.lexer import STRING, WORD
from instar.sql.grammar.queries import QueryGrammar
from instar.sql.grammar.type_names import take_type
from instar.sql.materialized_statements import CreateMaterializedView, DropMaterializedView, RenameMaterializedView

# What WITH (violation = ...) may say, and whether it is the change that a violation ends.
_POLICIES = {"reject write": False, "abort change": True}


class ObjectGrammar(QueryGrammar):
    """Definitions of what is not a table, and what they share with tables."""

    def qualified_name(self) -> ast.Name:
        position = self.position
        parts = [self.take_name()]
        while self.try_operator("."):
            parts.append(self.take_label())
        if len(parts) > 2:
            raise errors.unsupported("a reference to another database", position=position)
        return ast.Name(parts[-1], parts[0] if len(parts) == 2 else None, position)

    def cascade(self) -> bool:
        """[CASCADE | RESTRICT]"""
        return self.try_any("cascade", "restrict") == "cascade"

    def wrapped_query(self) -> ast.Query:
        return ast.Query(self.query(), self.text, self.parameters, self.as_of)

    # --- DROP and TRUNCATE ---

    def drop(self, kind: str) -> ast.Statement:
        """After DROP TABLE | VIEW | INDEX | SEQUENCE."""
        if kind == "index":
            self.try_words("concurrently")
        if_exists = self.try_words("if", "exists")
        names = tuple(self.comma_list(self.qualified_name))
        return _DROPS[kind](names, if_exists, self.cascade())

    def truncate(self) -> ast.Truncate:
        """After TRUNCATE."""
        self.try_words("table")
        names = tuple(self.comma_list(self._truncated))
        restart = self.try_words("restart", "identity")
        if not restart:
            self.try_words("continue", "identity")
        return ast.Truncate(names, restart, self.cascade())

    def _truncated(self) -> ast.Name:
        self.try_words("only")
        name = self.qualified_name()
        self.try_operator("*")
        return name

    # --- indexes ---

    def create_index(self, unique: bool) -> ast.CreateIndex:
        """After CREATE [UNIQUE] INDEX."""
        self.try_words("concurrently")
        if_not_exists = self.try_words("if", "not", "exists")
        name = None if self.at("on") and not if_not_exists else self.take_name()
        self.take_words("on")
        self.try_words("only")
        table = self.qualified_name()
        if self.try_words("using") and not self.try_words("btree"):
            raise errors.unsupported(f"an index of kind {self.token.value}", position=self.position)
        self.take_operator("(")
        columns = tuple(self.comma_list(self._index_column))
        self.take_operator(")")
        if self.at("nulls", "not"):
            raise errors.unsupported("NULLS NOT DISTINCT", position=self.position)
        self.try_words("nulls", "distinct")
        yields = self.at("with") and self.violation_policy()
        if yields and not unique:
            raise errors.unsupported("WITH (violation) of an index that is not unique", position=self.position)
        if self.at_any(("include", "tablespace", "where")):
            what = "a partial index" if self.at("where") else f"{self.token.value.upper()} of CREATE INDEX"
            raise errors.unsupported(what, position=self.position)
        return ast.CreateIndex(name, table, columns, unique, if_not_exists, yields)

    def violation_policy(self) -> bool:
        """WITH (violation = 'reject write' | 'abort change'): whether the change is what a violation ends."""
        self.take_words("with")
        self.take_operator("(")
        position = self.position
        if (name := self.take_label()) != "violation":
            raise errors.unsupported(f"WITH ({name})", position=position)
        self.take_operator("=")
        position = self.position
        policy = self.take_string()
        if policy not in _POLICIES:
            raise errors.error(
                errors.INVALID_PARAMETER,
                f'invalid value for "violation": "{policy}"',
                hint=f"It is one of: {', '.join(_POLICIES)}.",
                position=position,
            )
        self.take_operator(")")
        return _POLICIES[policy]

    def _index_column(self) -> ast.IndexColumn:
        position = self.position
        if not self.at_name() or self.peek().value in ("(", "."):
            if self.at_operator("(") or self.peek().value == "(":
                raise errors.unsupported("an index on an expression", position=position)
            self.fail()
        name = self.take_name()
        if self.at("collate"):
            raise errors.unsupported("COLLATE", position=self.position)
        if self.at_name() and not self.at("nulls"):
            raise errors.unsupported("an operator class", position=self.position)
        descending = self.try_any("asc", "desc") == "desc"
        if self.try_words("nulls"):
            where = self.try_any("first", "last")
            if where is None:
                self.fail()
            if (where == "first") != descending:
                order = "DESC" if descending else "ASC"
                raise errors.unsupported(f"an index column {order} NULLS {where.upper()}", position=position)
        return ast.IndexColumn(name, descending)

    def alter_index(self) -> ast.RenameIndex:
        """After ALTER INDEX: RENAME TO only."""
        if_exists = self.try_words("if", "exists")
        name = self.qualified_name()
        return ast.RenameIndex(name, self._rename_to("ALTER INDEX"), if_exists)

    def _rename_to(self, statement: str) -> str:
        if not self.at("rename", "to"):
            if self.at_end():
                self.fail()
            raise errors.unsupported(f"{statement} ... {self.token.value.upper()}", position=self.position)
        self.take_words("rename", "to")
        return self.take_name()

    # --- sequences ---

    def create_sequence(self) -> ast.CreateSequence:
        """After CREATE SEQUENCE."""
        if_not_exists = self.try_words("if", "not", "exists")
        return ast.CreateSequence(self.qualified_name(), self.sequence_options(), if_not_exists)

    def alter_sequence(self) -> ast.AlterSequence:
        """After ALTER SEQUENCE."""
        if_exists = self.try_words("if", "exists")
        name = self.qualified_name()
        if self.try_words("rename", "to"):
            return ast.AlterSequence(name, rename=self.take_name(), if_exists=if_exists)
        options = self.sequence_options(alter=True)
        if options == ast.SequenceOptions():
            if self.at_any(("owner", "set")):
                raise errors.unsupported(f"ALTER SEQUENCE ... {self.token.value.upper()}", position=self.position)
            self.fail()
        return ast.AlterSequence(name, options, if_exists=if_exists)

    def sequence_options(self, alter: bool = False) -> ast.SequenceOptions:
        """Options in any order, each once (42601 "conflicting or redundant options")."""
        found: dict[str, Any] = {}
        while not self.at_end():
            position = self.position
            option = self._sequence_option(alter)
            if option is None:
                break
            if option[0] in found:
                raise errors.error(errors.SYNTAX_ERROR, "conflicting or redundant options", position=position)
            found[option[0]] = option[1]
        return ast.SequenceOptions(**found)

    def _sequence_option(self, alter: bool) -> tuple[str, object] | None:
        if self.try_words("as"):
            return "type", take_type(self)
        if self.try_words("no"):
            word = self.try_any("minvalue", "maxvalue", "cycle")
            if word is None:
                self.fail()
            return ("cycle", False) if word == "cycle" else (f"{word[:3]}imum", "none")
        word = self.try_any("increment", "minvalue", "maxvalue", "start", "cache", "cycle")
        if word == "cycle":
            return "cycle", True
        if word is not None:
            if word in ("increment", "start"):
                self.try_words("by" if word == "increment" else "with")
            return _NUMBERS.get(word, word), self.take_integer()
        if self.try_words("owned", "by"):
            return "owned_by", self._owner()
        if alter and self.try_words("restart"):
            given = self.try_words("with") or not self.at_end()
            return "restart", self.take_integer() if given else "start"
        return None

    def _owner(self) -> tuple[ast.Name, str] | str:
        if self.try_words("none"):
            return "none"
        position = self.position
        parts = [self.take_name()]
        while self.try_operator("."):
            parts.append(self.take_label())
        if not 2 <= len(parts) <= 3:
            message = "invalid OWNED BY option"
            hint = "Specify OWNED BY table.column or OWNED BY NONE."
            raise errors.error(errors.SYNTAX_ERROR, message, hint=hint, position=position)
        *schema, table, column = parts
        return ast.Name(table, schema[0] if schema else None, position), column

    # --- views ---

    def create_view(self, or_replace: bool) -> ast.CreateView:
        """After CREATE [OR REPLACE] VIEW."""
        name = self.qualified_name()
        columns = self.take_names() if self.at_operator("(") else ()
        if self.at("with"):
            raise errors.unsupported("WITH of CREATE VIEW", position=self.position)
        self.take_words("as")
        query = self.wrapped_query()
        if self.at("with"):
            raise errors.unsupported("WITH CHECK OPTION", position=self.position)
        return ast.CreateView(name, query, columns, or_replace)

    # --- materialized views ---

    def create_materialized_view(self) -> CreateMaterializedView:
        """After CREATE MATERIALIZED VIEW."""
        position = self.position
        if_not_exists = self.try_words("if", "not", "exists")
        name = self.qualified_name()
        columns = self.take_names() if self.at_operator("(") else ()
        if not self.try_words("with"):
            raise errors.error(
                errors.FEATURE_NOT_SUPPORTED,
                "a materialized view that does not follow the log is not supported",
                hint="Say WITH (refresh = 'log') before AS.",
                position=position,
            )
        self.take_operator("(")
        options = self.position
        if len(self.comma_list(self._refresh_option)) > 1:
            raise errors.error(errors.SYNTAX_ERROR, "conflicting or redundant options", position=options)
        self.take_operator(")")
        self.take_words("as")
        query = self.wrapped_query()
        if self.try_words("with", "no", "data"):
            raise errors.unsupported("CREATE MATERIALIZED VIEW ... WITH NO DATA", position=position)
        self.try_words("with", "data")
        return CreateMaterializedView(name, query, columns, if_not_exists)

    def _refresh_option(self) -> None:
        position = self.position
        option = self.take_label()
        if option != "refresh":
            hint = "Available parameters: refresh. What a job takes is set by ALTER JOB."
            raise errors.error(
                errors.INVALID_PARAMETER, f'unrecognized parameter "{option}"', hint=hint, position=position
            )
        self.take_operator("=")
        position = self.position
        if self.token.kind not in (STRING, WORD):
            self.fail()
        way = self.advance().value
        if way != "log":
            raise errors.unsupported(f'a materialized view with refresh "{way}"', position=position)

    def drop_materialized_view(self) -> DropMaterializedView:
        """After DROP MATERIALIZED VIEW."""
        if_exists = self.try_words("if", "exists")
        names = tuple(self.comma_list(self.qualified_name))
        return DropMaterializedView(names, if_exists, self.cascade())

    def alter_materialized_view(self) -> RenameMaterializedView:
        """After ALTER MATERIALIZED VIEW: RENAME TO only."""
        if_exists = self.try_words("if", "exists")
        name = self.qualified_name()
        return RenameMaterializedView(name, self._rename_to("ALTER MATERIALIZED VIEW"), if_exists)

    def alter_view(self) -> ast.RenameView:
        """After ALTER VIEW: RENAME TO only."""
        if_exists = self.try_words("if", "exists")
        name = self.qualified_name()
        return ast.RenameView(name, self._rename_to("ALTER VIEW"), if_exists)


_DROPS: dict[str, type[ast.DropTable | ast.DropView | ast.DropIndex | ast.DropSequence]] = {
    "table": ast.DropTable,
    "view": ast.DropView,
    "index": ast.DropIndex,
    "sequence": ast.DropSequence,
}
_NUMBERS = {"minvalue": "minimum", "maxvalue": "maximum"}
