"""Transactions, settings, EXPLAIN, jobs and maintenance; and which statement the first words begin."""

from __future__ import annotations

from functools import partial
from typing import Literal

from instar import errors
from instar.sql import statements as ast
from instar.sql.grammar.calls import QUERY_WORDS
from instar.sql.grammar.lexer import END, NUMBER, OPERATOR, QUOTED, STRING, WORD
from instar.sql.grammar.tables import TableGrammar
from instar.sql.materialized_statements import RefreshMaterializedView

_UNSUPPORTED = frozenset(
    "analyse analyze call checkpoint close cluster comment copy deallocate declare discard do execute fetch grant "
    "import listen load lock merge move notify prepare reassign refresh reindex revoke security unlisten vacuum".split()
)
_UNSUPPORTED_OBJECTS = frozenset(
    "access aggregate cast collation conversion database default domain event extension foreign function global group "
    "job language large local materialized operator owned policy procedural procedure publication recursive role "
    "routine rule schema server statistics subscription system tablespace temp temporary text transform trigger "
    "trusted type unlogged user".split()
)
_TRUE, _FALSE = ("on", "true", "1"), ("off", "false", "0")


class StatementGrammar(TableGrammar):
    """Whole statements."""

    def statement(self) -> ast.Statement:
        """One statement, up to its ";" or the end."""
        self._forget_last()
        start = self.token
        statement = self._statement()
        if not self.at_end():
            self.fail()
        if self.as_of is not None and not isinstance(statement, ast.Query):
            raise errors.unsupported("AS OF SYSTEM TIME in a statement that is no query", position=self.as_of.position)
        if self.parameters and not isinstance(statement, ast.Query | ast.Dml | ast.Explain):
            message = f"there is no parameter ${self.parameters}"
            raise errors.error(errors.UNDEFINED_PARAMETER, message, position=start.start + 1)
        return statement

    def _forget_last(self) -> None:
        self.parameters, self._question_marks, self.as_of = 0, None, None

    def _statement(self) -> ast.Statement:
        if self.at_operator("(") or self.at_any(("select", "values", "table")):
            return self.wrapped_query()
        if self.at("with"):
            return self._with_statement()
        if self.at_any(("insert", "update", "delete")):
            return self._dml_statement()
        token = self.token
        if token.kind != WORD:
            self.fail()
        reader = _STATEMENTS.get(token.value)
        if reader is None:
            if token.value in _UNSUPPORTED:
                raise errors.unsupported(token.value.upper(), position=self.position)
            self.fail()
        self.index += 1
        return reader(self)

    def _with_statement(self) -> ast.Statement:
        # What follows the list of common tables says what statement it is: the first word outside parentheses.
        index = self.index
        while self.tokens[index].kind != END:
            token = self.tokens[index]
            if token.kind == OPERATOR and token.value == "(":
                index = self._closing.get(index, index)
            elif token.kind == WORD and token.value in ("insert", "update", "delete", "merge"):
                return self._dml_statement()
            elif token.kind == WORD and token.value in QUERY_WORDS and token.value != "with":
                break
            index += 1
        return self.wrapped_query()

    def _dml_statement(self) -> ast.Dml:
        expression = self.dml()
        overriding = expression.meta.pop("overriding", None)
        return ast.Dml(expression, self.text, self.parameters, overriding)

    # --- CREATE, ALTER, DROP ---

    def _create(self) -> ast.Statement:
        or_replace = self.try_words("or", "replace")
        position = self.position
        if self.try_words("view"):
            return self.create_view(or_replace)
        if not or_replace and self.try_words("materialized", "view"):
            return self.create_materialized_view()
        if or_replace and self.at_any(("table", "index", "sequence", "unique")):
            self.fail()
        if self.try_words("table"):
            return self.create_table()
        if self.try_words("sequence"):
            return self.create_sequence()
        unique = self.try_words("unique")
        if self.try_words("index"):
            return self.create_index(unique)
        if unique:
            self.fail()
        raise self._unsupported_object("CREATE", position)

    def _alter(self) -> ast.Statement:
        position = self.position
        word = self.try_any("table", "index", "sequence", "view")
        if word == "table":
            return self.alter_table()
        if word == "index":
            return self.alter_index()
        if word == "sequence":
            return self.alter_sequence()
        if word == "view":
            return self.alter_view()
        if self.try_words("job"):
            return self._alter_job()
        if self.try_words("materialized", "view"):
            return self.alter_materialized_view()
        raise self._unsupported_object("ALTER", position)

    def _drop_statement(self) -> ast.Statement:
        position = self.position
        if self.try_words("materialized", "view"):
            return self.drop_materialized_view()
        word = self.try_any("table", "view", "index", "sequence")
        if word is None:
            raise self._unsupported_object("DROP", position)
        return self.drop(word)

    def _refresh(self) -> RefreshMaterializedView:
        self.take_words("materialized", "view")
        if self.at("concurrently"):
            raise errors.unsupported("REFRESH MATERIALIZED VIEW CONCURRENTLY", position=self.position)
        name = self.qualified_name()
        if self.try_words("with", "no", "data"):
            raise errors.unsupported("REFRESH MATERIALIZED VIEW WITH NO DATA", position=self.position)
        self.try_words("with", "data")
        return RefreshMaterializedView(name)

    def _unsupported_object(self, verb: str, position: int) -> errors.Error:
        if not self.at_any(_UNSUPPORTED_OBJECTS):
            return self.syntax_error(self.token)
        return errors.unsupported(f"{verb} {self.token.value.upper()}", position=position)

    # --- transactions ---

    def _begin(self) -> ast.Begin:
        if self.tokens[self.index - 1].value == "start":
            self.take_words("transaction")
        else:
            self.try_any("work", "transaction")
        return ast.Begin(ast.TransactionModes() if self.at_end() else self._modes())

    def _modes(self) -> ast.TransactionModes:
        found: dict[str, object] = {}
        while True:
            if self.try_words("isolation", "level"):
                found["isolation"] = self._isolation()
            elif self.try_words("read"):
                which = self.try_any("only", "write")
                if which is None:
                    self.fail()
                found["read_only"] = which == "only"
            elif self.at("deferrable") or self.at("not", "deferrable"):
                found["deferrable"] = not self.try_words("not")
                self.take_words("deferrable")
            else:
                self.fail()
            if self.at_end():
                return ast.TransactionModes(**found)  # type: ignore[arg-type]  # each key has its own type above
            self.try_operator(",")

    def _isolation(self) -> ast.Isolation:
        if self.try_words("serializable"):
            return "serializable"
        if self.try_words("repeatable"):
            self.take_words("read")
            return "repeatable read"
        self.take_words("read")
        if self.try_words("uncommitted"):
            return "read uncommitted"
        self.take_words("committed")
        return "read committed lock" if self.try_words("lock") else "read committed"

    def _commit(self) -> ast.Commit:
        if self.at("prepared"):
            raise errors.unsupported("COMMIT PREPARED", position=self.position)
        self.try_any("work", "transaction")
        return ast.Commit(self._chain())

    def _rollback(self) -> ast.Rollback | ast.RollbackTo:
        if self.at("prepared"):
            raise errors.unsupported("ROLLBACK PREPARED", position=self.position)
        self.try_any("work", "transaction")
        if self.try_words("to"):
            self.try_words("savepoint")
            return ast.RollbackTo(self.take_name())
        return ast.Rollback(self._chain())

    def _chain(self) -> bool:
        if not self.try_words("and"):
            return False
        no = self.try_words("no")
        self.take_words("chain")
        return not no

    def _savepoint(self) -> ast.Savepoint:
        return ast.Savepoint(self.take_name())

    def _release(self) -> ast.ReleaseSavepoint:
        self.try_words("savepoint")
        return ast.ReleaseSavepoint(self.take_name())

    # --- settings ---

    def _set(self) -> ast.SetTransaction | ast.SetVariable:
        if self.try_words("session", "characteristics", "as", "transaction"):
            return ast.SetTransaction(self._modes(), session=True)
        local = self.try_any("session", "local") == "local"
        if self.try_words("transaction"):
            if self.at("snapshot"):
                raise errors.unsupported("SET TRANSACTION SNAPSHOT", position=self.position)
            return ast.SetTransaction(self._modes())
        if self.try_words("time", "zone"):
            zone = self._setting_values() if not self.try_words("local") else None
            return ast.SetVariable("timezone", zone, local)
        if self.at_any(("role", "authorization", "constraints", "names", "schema", "catalog")):
            raise errors.unsupported(f"SET {self.token.value.upper()}", position=self.position)
        name = self._setting()
        if not self.try_operator("="):
            self.take_words("to")
        return ast.SetVariable(name, self._setting_values(), local)

    def _setting(self) -> str:
        parts = [self.take_name()]
        while self.try_operator("."):
            parts.append(self.take_label())
        return ".".join(parts)

    def _setting_values(self) -> tuple[str, ...] | None:
        if self.try_words("default"):
            return None
        return tuple(self.comma_list(self._setting_value))

    def _setting_value(self) -> str:
        sign = "-" if self.try_operator("-") else ""
        if self.token.kind == NUMBER or (not sign and self.token.kind in (STRING, WORD, QUOTED)):
            return sign + self.advance().value
        raise self.syntax_error(self.token)

    def _show(self) -> ast.ShowVariable | ast.ShowJobs:
        if self.at("jobs") and self.peek().value in (";", ""):
            self.index += 1
            return ast.ShowJobs()
        return ast.ShowVariable(self._shown())

    def _reset(self) -> ast.ResetVariable:
        return ast.ResetVariable(self._shown())

    def _shown(self) -> str:
        if self.try_words("all"):
            return "all"
        if self.try_words("time", "zone"):
            return "timezone"
        if self.try_words("transaction", "isolation", "level"):
            return "transaction_isolation"
        return self._setting()

    # --- EXPLAIN, jobs, maintenance ---

    def _explain(self) -> ast.Explain:
        options = {"ddl": False, "analyze": False, "verbose": False}
        if self.at_operator("(") and self.peek().kind == WORD and self.peek().value not in QUERY_WORDS:
            self.index += 1
            options.update(found for found in self.comma_list(self._explain_option) if found[0] != "format")
            self.take_operator(")")
        else:
            options["analyze"] = self.try_any("analyze", "analyse") is not None
            options["verbose"] = self.try_words("verbose")
        position = self.position
        statement = self._statement()
        if isinstance(statement, ast.Explain):
            self.fail()
        return ast.Explain(statement, position, **options)

    def _explain_option(self) -> tuple[str, bool]:
        position = self.position
        name = self.take_label()
        name = "analyze" if name == "analyse" else name
        if name == "format" and self.try_words("text"):
            return name, True  # the only format there is
        if name not in ("ddl", "analyze", "verbose"):
            raise errors.unsupported(f"EXPLAIN option {name.upper()}", position=position)
        if self.at_operator(",") or self.at_operator(")"):
            return name, True
        value = self.advance().value
        if value not in _TRUE + _FALSE:
            raise errors.error(errors.SYNTAX_ERROR, f"{name} requires a Boolean value", position=position)
        return name, value in _TRUE

    def _job(self) -> ast.JobControl:
        word = self.tokens[self.index - 1].value
        action: Literal["pause", "resume", "cancel"]
        action = "pause" if word == "pause" else "resume" if word == "resume" else "cancel"
        self.take_words("job")
        return ast.JobControl(action, self.take_integer())

    def _alter_job(self) -> ast.AlterJob:
        job = self.take_integer()
        self.take_words("set")
        self.take_operator("(")
        options = self.comma_list(partial(self._job_option, set()))
        self.take_operator(")")
        return ast.AlterJob(job, tuple(options))

    def _job_option(self, known: set[str]) -> tuple[str, str | None]:
        position = self.position
        name = self.take_label()
        if name in known:
            raise errors.error(errors.SYNTAX_ERROR, "conflicting or redundant options", position=position)
        known.add(name)
        self.take_operator("=")
        return name, None if self.try_words("default") else self._setting_value()

    def _check(self) -> ast.CheckTable | ast.CheckDatabase:
        if self.try_words("database"):
            return ast.CheckDatabase()
        self.take_words("table")
        return ast.CheckTable(self.qualified_name())

    def _compact(self) -> ast.CompactTable:
        self.take_words("table")
        return ast.CompactTable(self.qualified_name())

    def _undrop(self) -> ast.UndropTable:
        self.take_words("table")
        tables = tuple(self.comma_list(self._undropped))
        as_of = self.try_as_of()
        return ast.UndropTable(tables, as_of, self.cascade())

    def _undropped(self) -> tuple[ast.Name, str | None]:
        name = self.qualified_name()
        if self.at_as_of():
            return name, None
        return name, self.take_name() if self.try_words("as") else None


_STATEMENTS = {
    "create": StatementGrammar._create,
    "alter": StatementGrammar._alter,
    "drop": StatementGrammar._drop_statement,
    "truncate": StatementGrammar.truncate,
    "begin": StatementGrammar._begin,
    "start": StatementGrammar._begin,
    "commit": StatementGrammar._commit,
    "end": StatementGrammar._commit,
    "rollback": StatementGrammar._rollback,
    "abort": StatementGrammar._rollback,
    "savepoint": StatementGrammar._savepoint,
    "release": StatementGrammar._release,
    "set": StatementGrammar._set,
    "show": StatementGrammar._show,
    "reset": StatementGrammar._reset,
    "explain": StatementGrammar._explain,
    "pause": StatementGrammar._job,
    "resume": StatementGrammar._job,
    "cancel": StatementGrammar._job,
    "check": StatementGrammar._check,
    "compact": StatementGrammar._compact,
    "undrop": StatementGrammar._undrop,
    "refresh": StatementGrammar._refresh,
}
