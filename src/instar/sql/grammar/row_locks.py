"""FOR UPDATE and its like, at the end of a query."""

from __future__ import annotations

from sqlglot import exp

from instar.sql.grammar.cursor import Cursor
from instar.sql.grammar.nodes import identifier, place
from instar.store.lock_modes import Mode

_MODES = (
    (("no", "key", "update"), Mode.NO_KEY_UPDATE),
    (("key", "share"), Mode.KEY_SHARE),
    (("update",), Mode.UPDATE),
    (("share",), Mode.SHARE),
)


class RowLockGrammar(Cursor):
    """Locking clauses. Each is a node `exp.Lock`, with the mode and how to wait in its `meta`."""

    def at_row_lock(self) -> bool:
        """Whether a locking clause comes next."""
        return self.at("for") and self.peek().value in ("update", "share", "no", "key")

    def row_lock(self) -> exp.Lock:
        """FOR mode [OF name, ...] [NOWAIT | SKIP LOCKED]"""
        position = self.position
        self.take_words("for")
        mode = next((mode for words, mode in _MODES if self.try_words(*words)), None)
        if mode is None:
            self.fail()
        names = [identifier(name) for name in self._names()] if self.try_words("of") else []
        wait = "nowait" if self.try_words("nowait") else "skip" if self.try_words("skip", "locked") else "wait"
        node = exp.Lock(update=mode is Mode.UPDATE, expressions=names)
        node.meta["row_lock"] = (mode, wait)
        place(node, position)
        return node

    def _names(self) -> list[str]:
        names = [self.take_name()]
        while self.try_operator(","):
            names.append(self.take_name())
        return names
