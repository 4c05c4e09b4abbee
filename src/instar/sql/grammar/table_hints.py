"""Isolation hints of a table in FROM, as SQL Server writes them (MD-MVCC §3.5.2): FROM t [AS x] WITH (NOLOCK)."""

from __future__ import annotations

from sqlglot import exp

from instar import errors
from instar.sql.grammar.cursor import Cursor
from instar.transactions.transaction import Isolation

_LEVELS = {
    "nolock": Isolation.READ_UNCOMMITTED,
    "readuncommitted": Isolation.READ_UNCOMMITTED,
    "readcommittedlock": Isolation.READ_COMMITTED_LOCK,
    "readcommitted": Isolation.READ_COMMITTED,
    "snapshot": Isolation.REPEATABLE_READ,
}


def hint_of(node: exp.Expr) -> Isolation | None:
    """The level at which a table is to be read, if its node says so."""
    found: Isolation | None = node.meta.get("table_hint")
    return found


class TableHintGrammar(Cursor):
    """Table hints. The level stands in the `meta` of the table's node."""

    def table_hint(self, node: exp.Expr) -> None:
        """[WITH (hint)] behind what FROM names. 0A000 for what is no table's name, and for other hints."""
        if not self._at_hint():
            return
        if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
            raise errors.unsupported("a table hint of what is not a table", position=self.position)
        self.take_words("with")
        self.take_operator("(")
        position = self.position
        name = self.take_label()
        level = _LEVELS.get(name.lower())
        if level is None:
            raise errors.unsupported(f"the table hint {name.upper()}", position=position)
        if self.at_operator(","):
            raise errors.unsupported("more than one table hint", position=self.position)
        self.take_operator(")")
        node.meta["table_hint"] = level

    def no_table_hint(self, what: str) -> None:
        """0A000 if a hint comes next."""
        if self._at_hint():
            raise errors.unsupported(f"a table hint of {what}", position=self.position)

    def _at_hint(self) -> bool:
        return self.at("with") and self.peek().value == "("
