"""Histories of sessions that lock rows, beside changes that lay rows under other keys or divide them into parts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from support.histories import LEVELS, Predicate, Read
from support.interleaved import Between, Interleaved
from support.recorded import GROUPS, NAMES, REFUSED, Client, _row, _where

# All in which nobody else may change the row; `SKIP LOCKED` finds some of the rows.
MODES = ("UPDATE", "NO KEY UPDATE", "SHARE", "NO KEY UPDATE NOWAIT", "UPDATE SKIP LOCKED")
KEYS = ("id", "id, a", "a, id", "v, id")


class Locking(Client):
    """As a `Client`, with more that meets row locks."""

    refused = REFUSED | {"23505", "42P10"}  # two rows of one INSERT have one `v`; `id` may have no unique index
    _left: list[Callable[[], object]]  # what is still to be done in the open transaction

    def _choose(self) -> Callable[[], object]:
        if self._open is None:
            self._left = self._drawn()
        return self._left.pop(0) if self._left else partial(self._end, commit=True)

    def _drawn(self) -> list[Callable[[], object]]:
        """A transaction that locks rows and acts upon that, one that writes them, or a change."""
        draw, name = self._draw, NAMES[0]
        kind = draw.random()
        if kind < 0.2:
            return [partial(self._beside, name)]
        begin = partial(self._begin, draw.choice(LEVELS))
        writes = [partial(draw.choice((self._some_update, self._some_delete, self._upsert)), name) for _ in "ab"]
        if kind < 0.6:
            return [begin, *writes[: draw.randrange(1, 3)]]
        other = draw.choice((partial(self._insert, name, 1), partial(self._some_update, NAMES[1])))
        between = draw.choice(([], [self._save, writes[0], self._back], [partial(self._select, name)]))
        return [begin, partial(self._select, name), *between, other]

    def _some_update(self, name: str) -> None:
        self._update(name, self._predicate(name))

    def _some_delete(self, name: str) -> None:
        self._delete(name, self._predicate(name))

    def _predicate(self, name: str) -> Predicate:
        """Most are about the same few rows."""
        keys = self._common.keys[name][:3]
        if not keys or self._draw.random() < 0.3:
            return super()._predicate(name)
        key = self._draw.choice(keys)
        return Predicate("id", key, key)

    def _select(self, name: str) -> None:
        """SELECT ... FOR UPDATE and its like."""
        predicate, mode = self._predicate(name), self._draw.choice(MODES)
        where, parameters = _where(predicate)
        done = self._do(f"SELECT * FROM {name} WHERE {where} FOR {mode}", parameters)
        if done is None:
            return
        statement, ((seen, rows, columns),) = done
        seen = self._remember(statement, seen, name, columns)
        shown = tuple(_row(seen, columns, row) for row in rows)
        found = None if mode.endswith("SKIP LOCKED") else predicate
        statement.reads.append(Read(seen.table, found, shown, locked=True))
        self._meet(name, shown)

    def _upsert(self, name: str) -> None:
        """INSERT ... ON CONFLICT of rows that are there."""
        number, group, predicate = next(self._numbers), self._draw.randrange(GROUPS), self._predicate(name)
        where, parameters = _where(predicate)
        text = f"INSERT INTO {name} (id, v, a) SELECT id, v, a FROM {name} WHERE {where}"
        text += f" ON CONFLICT (id) DO UPDATE SET v = {name}.v || ?, a = ? RETURNING *"
        self._written(name, predicate, self._do(text, (*parameters, f",{number}", group)), number, group, None)

    def _build(self, name: str) -> None:
        draw = self._draw
        kind = draw.random()
        if kind < 0.4:
            self._do(f"ALTER TABLE {name} ALTER PRIMARY KEY USING COLUMNS ({draw.choice(KEYS)})")
        elif kind < 0.8:
            self._do(f"ALTER TABLE {name} {draw.choice(('ADD LOCK l COVERS (a)', 'DROP LOCK l'))}")
        else:
            super()._build(name)


class _BetweenLocks(Between):
    """As `Between`, and before locks are taken."""

    def lock(self, *wanted: Any) -> None:
        self.between()
        self._store.lock(*wanted)


class InterleavedLocking(Interleaved):
    """As `Interleaved`, of sessions that lock rows."""

    between = _BetweenLocks
    client = Locking
