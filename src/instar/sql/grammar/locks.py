"""ALTER TABLE ... ADD, ALTER and DROP LOCK: words that no dialect reserves, told from columns that are named lock."""

from __future__ import annotations

from instar.sql import statements as ast
from instar.sql.grammar.cursor import Cursor
from instar.sql.grammar.lexer import QUOTED, WORD

_BEHIND_A_COLUMN = ("cascade", "restrict")


class LockGrammar(Cursor):
    """Actions on optimistic locks."""

    def try_add_lock(self) -> ast.AddLock | None:
        """After ADD: LOCK name COVERS (columns); None if it is something else that is added."""
        if not (self.at("lock") and self._covers(2)):
            return None
        self.index += 1
        return ast.AddLock(self.take_name(), self._covered())

    def try_alter_lock(self) -> ast.AlterLock | None:
        """After ALTER: LOCK name COVERS (columns)."""
        if not (self.at("lock") and self._covers(2)):
            return None
        self.index += 1
        return ast.AlterLock(self.take_name(), self._covered())

    def try_drop_lock(self) -> ast.DropLock | None:
        """After DROP: LOCK [IF EXISTS] name."""
        following = self.peek()
        if not self.at("lock") or following.kind not in (WORD, QUOTED):
            return None
        if following.kind == WORD and following.value in _BEHIND_A_COLUMN:
            return None
        self.index += 1
        if_exists = self.try_words("if", "exists")
        return ast.DropLock(self.take_name(), if_exists)

    def _covered(self) -> tuple[str, ...]:
        """COVERS (columns): none at all, too."""
        self.take_words("covers")
        if self.at_operator("(") and self.peek().value == ")":
            self.index += 2
            return ()
        return self.take_names()

    def _covers(self, ahead: int) -> bool:
        token = self.peek(ahead)
        return token.kind == WORD and token.value == "covers"
