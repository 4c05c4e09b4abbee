"""SELECT, VALUES, TABLE and set operations, FROM with its joins, WITH, and INSERT, UPDATE, DELETE.

The trees are sqlglot's, with one deviation: each item of a FROM list bears the joins that hang on it, so that
`a, b RIGHT JOIN c` is what SQL says it is.
"""

from __future__ import annotations

from sqlglot import exp

from instar import errors
from instar.sql.grammar.constants import Constants
from instar.sql.grammar.expressions import RANGE, ExpressionGrammar
from instar.sql.grammar.keywords import AS_LABEL
from instar.sql.grammar.lexer import OPERATOR, QUOTED, ROWS, WORD
from instar.sql.grammar.nodes import identifier, place
from instar.sql.grammar.row_locks import RowLockGrammar
from instar.sql.grammar.table_hints import TableHintGrammar
from instar.sql.statements import AsOf

_SET_OPERATIONS = {"union": exp.Union, "except": exp.Except, "intersect": exp.Intersect}
_JOIN_WORDS = ("join", "inner", "left", "right", "full", "cross", "natural")
_NOT_AN_ALIAS = ("set", "using", "on", "returning", "where")


_AS_OF = ("as", "of", "system", "time")


class QueryGrammar(ExpressionGrammar, RowLockGrammar, TableHintGrammar):
    """Queries and DML."""

    as_of: AsOf | None = None  # of the statement at hand
    _depth = 0  # of queries in one another

    # --- queries ---

    def query(self) -> exp.Expr:
        """[WITH ...] SELECT ... [ORDER BY ...] [LIMIT ...] [OFFSET ...]"""
        self._depth += 1
        query = self._query()
        self._depth -= 1
        return query

    def _query(self) -> exp.Expr:
        with_ = self._with() if self.at("with") else None
        query = self._set_operation(0)
        if isinstance(query, exp.Subquery) and self._at_query_end_clause():
            # (query) ORDER BY ...: the clauses are those of an outer query around it.
            query = exp.Select(expressions=[exp.Star()], from_=exp.From(this=_aliased(query)))
        self._end_clauses(query)
        if with_ is not None:
            if query.args.get("with_") is not None or isinstance(query, exp.Subquery):
                query = exp.Select(expressions=[exp.Star()], from_=exp.From(this=_aliased(query)))
            query.set("with_", with_)
        self._as_of()
        return query

    def _as_of(self) -> None:
        """[AS OF SYSTEM TIME moment [WITH CURRENT SCHEMA]], at the end of a query or behind its FROM list; it is the
        whole statement's."""
        if not self.at_as_of():
            return
        position = self.position
        if self._depth > 1:
            raise errors.unsupported("AS OF SYSTEM TIME for a part of a statement", position=position)
        if self.as_of is not None:
            raise self.syntax_error(self.token)
        self.index += len(_AS_OF)
        self.as_of = AsOf(self.expression(), self.try_words("with", "current", "schema"), position)

    def at_as_of(self) -> bool:
        """Whether AS OF SYSTEM TIME follows."""
        return self.at(*_AS_OF)

    def try_as_of(self) -> AsOf | None:
        """[AS OF SYSTEM TIME moment], of a statement that is no query."""
        if not self.at_as_of():
            return None
        position = self.position
        self.index += len(_AS_OF)
        return AsOf(self.expression(), current_schema=False, position=position)

    def _set_operation(self, minimum: int) -> exp.Expr:
        left = self._query_primary()
        while True:
            token = self.token
            kind = _SET_OPERATIONS.get(token.value) if token.kind == WORD else None
            level = 0 if kind is None else 2 if kind is exp.Intersect else 1
            if kind is None or level <= minimum:
                return left
            self.index += 1
            distinct = self.try_any("all", "distinct") != "all"
            right = self._set_operation(level)
            node = kind(this=left, expression=right, distinct=distinct)
            place(node, token.start + 1)
            left = node

    def _query_primary(self) -> exp.Expr:
        if self.at_operator("("):
            return self.subquery()
        if self.at("select"):
            return self._select()
        if self.at("values"):
            return self._values()
        if self.try_words("table"):
            table = self._table_name()
            return exp.Select(expressions=[exp.Star()], from_=exp.From(this=table))
        raise self.syntax_error(self.token)

    def _values(self) -> exp.Values:
        position = self.position
        self.take_words("values")
        constants, more = Constants("", 0, 0), True
        if self.token.kind == ROWS:
            rows = self.advance()
            constants, more = Constants(self.text, rows.start, rows.end), self.try_operator(",")
        values = exp.Values(expressions=self.comma_list(self._values_row) if more else [], constants=constants)
        place(values, position)
        return values

    def _values_row(self) -> exp.Tuple:
        self.take_operator("(")
        items = self.comma_list(self._value_or_default)
        self.take_operator(")")
        return exp.Tuple(expressions=items)

    def _value_or_default(self) -> exp.Expr:
        if self.at("default"):
            position = self.position
            self.index += 1
            return place(exp.Var(this="DEFAULT"), position)
        return self.expression()

    def _select(self) -> exp.Select:
        self.take_words("select")
        select = exp.Select()
        if self.try_words("distinct"):
            on = None
            if self.try_words("on"):
                self.take_operator("(")
                on = exp.Tuple(expressions=self.comma_list(self.expression))
                self.take_operator(")")
            select.set("distinct", exp.Distinct(on=on))
        else:
            self.try_words("all")
        if not (
            self.at_any(("from", "where", "group", "having", "window", "order", "limit", "union")) or self._at_stop()
        ):
            select.set("expressions", self.comma_list(self._select_item))
        if self.at("into"):
            raise errors.unsupported("SELECT INTO", position=self.position)
        if self.try_words("from"):
            self._from(select)
            self._as_of()
        if self.try_words("where"):
            select.set("where", exp.Where(this=self.expression()))
        if self.try_words("group", "by"):
            select.set("group", self._group_by())
        if self.try_words("having"):
            select.set("having", exp.Having(this=self.expression()))
        if self.try_words("window"):
            select.set("windows", self.comma_list(self._named_window))
        return select

    def _at_stop(self) -> bool:
        return self.at_end() or self.at_operator(")")

    def _select_item(self) -> exp.Expr:
        if self.at_operator("*"):
            position = self.position
            self.index += 1
            return place(exp.Star(), position)
        value = self.expression()
        label = self._label()
        return value if label is None else exp.Alias(this=value, alias=identifier(label))

    def _label(self) -> str | None:
        if self.at(*_AS_OF):
            return None
        if self.try_words("as"):
            return self.take_label()
        token = self.token
        if token.kind == QUOTED or (token.kind == WORD and token.value not in AS_LABEL):
            return self.advance().value
        return None

    def _named_window(self) -> exp.Window:
        name = identifier(self.take_name())
        self.take_words("as")
        return self.window(name)

    def _group_by(self) -> exp.Group:
        if self.try_words("distinct"):
            raise errors.unsupported("GROUP BY DISTINCT", position=self.position)
        self.try_words("all")
        return exp.Group(expressions=self.comma_list(self._group_item))

    def _group_item(self) -> exp.Expr:
        if self.at_any(("rollup", "cube")) and self.peek().value == "(":
            kind = exp.Rollup if self.advance().value == "rollup" else exp.Cube
            return kind(expressions=self._plain_arguments())
        if self.try_words("grouping", "sets"):
            self.take_operator("(")
            sets = self.comma_list(self._group_item)
            self.take_operator(")")
            return exp.GroupingSets(expressions=sets)
        if self.at_operator("(") and self.peek().value == ")" and self.peek().kind == OPERATOR:
            self.index += 2
            return exp.Tuple(expressions=[])
        return self.expression()

    # --- ORDER BY, LIMIT and their like ---

    def order_by(self) -> exp.Order:
        self.take_words("order", "by")
        return exp.Order(expressions=self.comma_list(self._sort_key))

    def _sort_key(self) -> exp.Ordered:
        value = self.expression()
        if self.at("using"):
            raise errors.unsupported("ORDER BY USING", position=self.position)
        descending = self.try_any("asc", "desc") == "desc"
        nulls_first = descending
        if self.try_words("nulls"):
            where = self.try_any("first", "last")
            if where is None:
                self.fail()
            nulls_first = where == "first"
        return exp.Ordered(this=value, desc=descending, nulls_first=nulls_first)

    def _at_query_end_clause(self) -> bool:
        return self.at_any(("order", "limit", "offset", "fetch", "for"))

    def _end_clauses(self, query: exp.Expr) -> None:
        if self.at("order"):
            query.set("order", self.order_by())
        locks = []
        while (locking := self.at_row_lock()) or self.at_any(("limit", "offset", "fetch")):
            if locking:
                locks.append(self.row_lock())
                continue
            position = self.position
            word = self.advance().value
            if query.args.get("offset" if word == "offset" else "limit") is not None:
                message = f"multiple {'OFFSET' if word == 'offset' else 'LIMIT'} clauses not allowed"
                raise errors.error(errors.SYNTAX_ERROR, message, position=position)
            if word == "offset":
                query.set("offset", exp.Offset(expression=self.expression()))
                self.try_any("row", "rows")
            elif word == "fetch":
                query.set("limit", self._fetch())
            elif self.try_words("all"):
                query.set("limit", exp.Limit(expression=exp.Null()))
            else:
                query.set("limit", exp.Limit(expression=self.expression()))
                if self.at_operator(","):
                    message = "LIMIT #,# syntax is not supported"
                    raise errors.error(
                        errors.SYNTAX_ERROR, message, hint="Use separate LIMIT and OFFSET clauses.", position=position
                    )
        if locks:
            query.set("row_locks", locks)

    def _fetch(self) -> exp.Limit:
        if self.try_any("first", "next") is None:
            self.fail()
        count: exp.Expr = exp.Literal.number(1) if self.at_any(("row", "rows")) else self._operand()
        if self.try_any("row", "rows") is None:
            self.fail()
        if self.at("with"):
            raise errors.unsupported("FETCH WITH TIES", position=self.position)
        self.take_words("only")
        return exp.Limit(expression=count)

    # --- WITH ---

    def _with(self) -> exp.With:
        self.take_words("with")
        recursive = self.try_words("recursive")
        return exp.With(expressions=self.comma_list(self._common_table), recursive=recursive)

    def _common_table(self) -> exp.CTE:
        position = self.position
        alias = exp.TableAlias(this=identifier(self.take_name()))
        if self.at_operator("("):
            alias.set("columns", [identifier(name) for name in self.take_names()])
        self.take_words("as")
        materialized = None
        if self.at("materialized") or self.at("not", "materialized"):
            materialized = not self.try_words("not")
            self.take_words("materialized")
        self.take_operator("(")
        if self.at_any(("insert", "update", "delete", "merge")):
            raise errors.unsupported("a data-modifying statement in WITH", position=self.position)
        query = self.query()
        self.take_operator(")")
        if self.at_any(("search", "cycle")):
            raise errors.unsupported(f"{self.token.value.upper()} of a recursive query", position=self.position)
        node = exp.CTE(this=query, alias=alias, materialized=materialized)
        place(node, position)
        return node

    # --- FROM ---

    def _from(self, node: exp.Expr) -> None:
        first, *rest = self.comma_list(self._from_item)
        node.set("from_", exp.From(this=first))
        if rest:
            node.set("joins", [exp.Join(this=item) for item in rest])

    def _from_item(self) -> exp.Expr:
        item = self._table_reference()
        joins = []
        while self.at_any(_JOIN_WORDS):
            joins.append(self._join())
        if joins:
            if item.args.get("joins"):
                item = exp.Paren(this=item)
            item.set("joins", joins)
        return item

    def _join(self) -> exp.Join:
        position = self.position
        natural = self.try_words("natural")
        if not natural and self.try_words("cross"):
            self.take_words("join")
            node = exp.Join(this=self._table_reference(), kind="CROSS")
            place(node, position)
            return node
        side = self.try_any("left", "right", "full", "inner")
        if side in ("left", "right", "full"):
            self.try_words("outer")
        self.take_words("join")
        right = self._table_reference()
        if not natural and not self.at_any(("on", "using")):
            right = self._nested_joins(right)
        node = exp.Join(this=right, side=side.upper() if side not in (None, "inner") else None)
        place(node, position)
        if natural:
            node.set("method", "NATURAL")
        elif self.try_words("on"):
            node.set("on", self.expression())
        else:
            self.take_words("using")
            node.set("using", [identifier(name) for name in self.take_names()])
            if self.at("as"):
                raise errors.unsupported("an alias of JOIN USING", position=self.position)
        return node

    def _nested_joins(self, item: exp.Expr) -> exp.Expr:
        """a JOIN b JOIN c ON ... ON ...: the inner join is the right side of the outer one."""
        joins = []
        while self.at_any(_JOIN_WORDS):
            joins.append(self._join())
        if not joins:
            self.fail()
        item.set("joins", joins)
        return exp.Paren(this=item)

    def _table_reference(self) -> exp.Expr:
        lateral = self.try_words("lateral")
        if self.at("rows", "from"):
            raise errors.unsupported("ROWS FROM", position=self.position)
        if self.at_any(("xmltable", "json_table")):
            raise errors.unsupported(self.token.value.upper(), position=self.position)
        if self.at_query():
            item: exp.Expr = self.subquery()
            self._alias(item)
        elif self.at_operator("("):
            item = self._parenthesised_join()
        elif self._at_call():
            item = exp.Table(this=self.name_or_call())
            self._function_alias(item)
        else:
            if lateral:
                self.fail()
            item = self._table_name()
            self._alias(item)
        if self.at("tablesample"):
            raise errors.unsupported("TABLESAMPLE", position=self.position)
        self.table_hint(item)
        if lateral:
            return exp.Lateral(this=item, alias=item.args["alias"].pop() if item.args.get("alias") else None)
        return item

    def _parenthesised_join(self) -> exp.Expr:
        self.take_operator("(")
        item = self._from_item()
        if not item.args.get("joins") and not isinstance(item, exp.Paren):
            self.fail()
        self.take_operator(")")
        paren = exp.Paren(this=item)
        if self.at("as") or self._at_alias():
            raise errors.unsupported("an alias of a join", position=self.position)
        return paren

    def _at_call(self) -> bool:
        index = self.index
        while self.tokens[index].kind in (WORD, QUOTED):
            after = self.tokens[index + 1]
            if after.kind == OPERATOR and after.value == "(":
                return True
            if after.kind != OPERATOR or after.value != ".":
                # The functions without parentheses may stand in FROM too, but nobody writes that.
                return False
            index += 2
        return False

    def _function_alias(self, item: exp.Expr) -> None:
        if self.at("with", "ordinality"):
            raise errors.unsupported("WITH ORDINALITY", position=self.position)
        if self.at("as") and self.peek().value == "(":
            raise errors.unsupported("a column definition list", position=self.position)
        self._alias(item)

    def _table_name(self) -> exp.Table:
        """[ONLY] [schema.]table [*]: without inheritance ONLY and * mean nothing."""
        only = self.try_words("only")
        parenthesised = only and self.try_operator("(")
        position = self.position
        parts = [self.take_name()]
        while self.try_operator("."):
            parts.append(self.take_label())
        if parenthesised:
            self.take_operator(")")
        self.try_operator("*")
        if len(parts) > 2:
            raise errors.unsupported("a reference to another database", position=position)
        table = exp.Table(this=identifier(parts[-1]), db=identifier(parts[0]) if len(parts) == 2 else None)
        place(table, position)
        return table

    def _at_alias(self) -> bool:
        return self.at_name() and not self.at_any(_NOT_AN_ALIAS)

    def _alias(self, item: exp.Expr) -> None:
        """[AS] name [(columns)]"""
        if self.at(*_AS_OF) or not (self.try_words("as") or self._at_alias()):
            return
        name = self.take_name()
        alias = exp.TableAlias(this=identifier(name))
        if self.at_operator("("):
            if self._at_column_definitions():
                raise errors.unsupported("a column definition list", position=self.position)
            alias.set("columns", [identifier(column) for column in self.take_names()])
        item.set("alias", alias)

    def _at_column_definitions(self) -> bool:
        return self.peek().kind in (WORD, QUOTED) and self.peek(2).kind in (WORD, QUOTED)

    # --- INSERT, UPDATE, DELETE ---

    def dml(self) -> exp.Insert | exp.Update | exp.Delete:
        with_ = self._with() if self.at("with") else None
        word = self.try_any("insert", "update", "delete")
        if word is None:
            self.fail()
        if word == "insert":
            node: exp.Insert | exp.Update | exp.Delete = self._insert()
        else:
            node = self._update() if word == "update" else self._delete()
        if self.try_words("returning"):
            node.set("returning", exp.Returning(expressions=self.comma_list(self._select_item)))
        if with_ is not None:
            node.set("with_", with_)
        return node

    def _insert(self) -> exp.Insert:
        self.take_words("into")
        position = self.position
        target: exp.Expr = self._table_name()
        if self.try_words("as"):
            target.set("alias", exp.TableAlias(this=identifier(self.take_name())))
        if self.at_operator("(") and not self.at_query():
            self.take_operator("(")
            columns = self.comma_list(self._target_column)
            self.take_operator(")")
            target = exp.Schema(this=target, expressions=columns)
        insert = exp.Insert(this=target)
        place(insert, position)
        if self.try_words("overriding"):
            which = self.try_any("system", "user")
            if which is None:
                self.fail()
            self.take_words("value")
            insert.meta["overriding"] = which
        if self.try_words("default", "values"):
            insert.set("default", True)
        else:
            insert.set("expression", self.query())
        if self.try_words("on", "conflict"):
            insert.set("conflict", self._on_conflict())
        return insert

    def _target_column(self) -> exp.Expr:
        position = self.position
        name = identifier(self.take_name())
        if self.at_operator(".") or self.at_operator("["):
            raise errors.unsupported("assignment to a part of a column", position=self.position)
        return place(name, position)

    def _on_conflict(self) -> exp.OnConflict:
        position = self.position
        conflict = exp.OnConflict()
        place(conflict, position)
        if self.try_words("on", "constraint"):
            conflict.set("constraint", identifier(self.take_name()))
        elif self.at_operator("("):
            self.take_operator("(")
            conflict.set("conflict_keys", self.comma_list(self._conflict_key))
            self.take_operator(")")
            if self.at("where"):
                raise errors.unsupported("WHERE of an ON CONFLICT target", position=self.position)
        self.take_words("do")
        if self.try_words("nothing"):
            return conflict
        self.take_words("update", "set")
        conflict.set("expressions", self.comma_list(self._assignment))
        if self.try_words("where"):
            conflict.set("where", exp.Where(this=self.expression()))
        return conflict

    def _conflict_key(self) -> exp.Expr:
        if not self.at_name() or self.peek().value not in (",", ")"):
            raise errors.unsupported("an expression as an ON CONFLICT target", position=self.position)
        return self._target_column()

    def _assignment(self) -> exp.EQ:
        """column = value, or (columns) = (values) | ROW(values) | (query)"""
        position = self.position
        left: exp.Expr
        if self.try_operator("("):
            left = exp.Tuple(expressions=self.comma_list(self._target_column))
            self.take_operator(")")
        else:
            left = self._target_column()
        self.take_operator("=")
        if isinstance(left, exp.Tuple) and not self.at_query():
            row = self.try_words("row")
            if not row and not self.at_operator("("):
                self.fail()
            right: exp.Expr = self._values_row()
        else:
            right = self._value_or_default()
        node = exp.EQ(this=left, expression=right)
        place(node, position)
        return node

    def _update(self) -> exp.Update:
        update = exp.Update(this=self._dml_target())
        self.take_words("set")
        update.set("expressions", self.comma_list(self._assignment))
        if self.try_words("from"):
            self._from(update)
        self._dml_where(update)
        return update

    def _delete(self) -> exp.Delete:
        self.take_words("from")
        delete = exp.Delete(this=self._dml_target())
        if self.try_words("using"):
            delete.set("using", self.comma_list(self._from_item))
        self._dml_where(delete)
        return delete

    def _dml_target(self) -> exp.Table:
        table = self._table_name()
        if self.try_words("as") or self._at_alias():
            table.set("alias", exp.TableAlias(this=identifier(self.take_name())))
        self.no_table_hint("what is written to")
        return table

    def _dml_where(self, node: exp.Expr) -> None:
        if self.try_words("where"):
            if self.at("current", "of"):
                raise errors.unsupported("WHERE CURRENT OF", position=self.position)
            node.set("where", exp.Where(this=self.expression()))

    def limited_expression(self) -> exp.Expr:
        """PostgreSQL's b_expr, which may stand before NOT NULL and other words: no predicates, AND, OR."""
        return self.expression(RANGE)


def _aliased(query: exp.Expr) -> exp.Expr:
    if not isinstance(query, exp.Subquery):
        query = exp.Subquery(this=query)
    if query.args.get("alias") is None:
        query.set("alias", exp.TableAlias(this=identifier("unnamed_subquery")))
    return query
