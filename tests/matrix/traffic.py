"""Traffic: what writers do to the table while it changes, through sessions and through bare servers that lag behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from instar import errors, values
from instar.catalog.descriptors import Column
from instar.database import Session
from matrix.arena import Arena, Row, refusal
from support.changes import Server

Effect = Callable[[dict[int, Row]], object]


class Deed(NamedTuple):
    """One statement on the rows of t, and what it makes of them."""

    text: str
    parameters: tuple[object, ...]
    effect: Effect


def deeds(arena: Arena) -> list[Deed]:
    """An insert, two updates, a delete, a change of key: each of a row of its own, under the names of now."""
    t, a, b, n = map(arena.name, ("t", "a", "b", "n"))
    new, value, key = arena.fresh(), arena.fresh() * 10, arena.fresh()
    row: Row = (new * 10, "new", new)
    made = [
        Deed(f"insert into {t} (id, {a}, {b}, {n}) values (?, ?, ?, ?)", (new, *row), lambda rows: _put(rows, new, row))
    ]
    one, other, gone, moved = arena.key(), arena.key(), arena.key(), arena.key()
    if one is not None:
        text = f"update {t} set {a} = ? where id = ?"
        made.append(Deed(text, (value, one), lambda rows: _put(rows, one, (value, *rows[one][1:]))))
    if other is not None:
        text = f"update {t} set {b} = 'changed' where id = ?"
        made.append(Deed(text, (other,), lambda rows: _put(rows, other, (rows[other][0], "changed", rows[other][2]))))
    if gone is not None:
        made.append(Deed(f"delete from {t} where id = ?", (gone,), lambda rows: rows.pop(gone)))
    if moved is not None:
        text = f"update {t} set id = ? where id = ?"
        made.append(Deed(text, (key, moved), lambda rows: _put(rows, key, rows.pop(moved))))
    return made


def _put(rows: dict[int, Row], key: int, row: Row) -> None:
    rows[key] = row


def autocommit(arena: Arena, session: Session) -> None:
    """Each deed in a transaction of its own. All of them go well, and an insert of a key that is taken does not."""
    if arena.changed and arena.kind.drops:
        _refused(session, "delete from t", errors.UNDEFINED_TABLE)
        return
    for deed in deeds(arena):
        session.execute(deed.text, deed.parameters)
        deed.effect(arena.rows)
    if not (arena.changed and arena.kind.keyless):
        _refused(session, f"insert into {arena.name('t')} (id) values (?)", *_refusals(arena), key=_any_key(arena))
    for text in arena.kind.traffic:
        if (statement := filled(arena, text)) is not None:
            session.execute(statement)
    arena.reserved = {1}


def _refusals(arena: Arena) -> tuple[str, ...]:
    """What an insert without values may be refused with."""
    return errors.UNIQUE_VIOLATION, *arena.kind.conflicts


def _any_key(arena: Arena) -> int | None:
    return next(iter(arena.rows), None)


def _refused(session: Session, text: str, *sqlstates: str, key: int | None = None) -> None:
    if "?" in text and key is None:
        return
    refused = refusal(lambda: session.execute(text, () if key is None else (key,)))
    assert refused is not None, text
    assert refused.sqlstate in sqlstates, refused


def filled(arena: Arena, text: str) -> str | None:
    """A kind's own statement, with keys for its placeholders; None if there is no row left for it."""
    key = arena.key() if "{key}" in text else 0
    for old, new in arena.kind.renames.items() if arena.changed else ():
        text = text.replace(f" {old} ", f" {new} ")
    return None if key is None else text.format(key=key, fresh=arena.fresh())


def _judge(arena: Arena, refused: errors.Error | None, effects: Sequence[Effect], *, crossed: bool) -> None:
    """A transaction is refused if, and only if, it has crossed the change, and the change voids its writes."""
    if crossed and arena.kind.vetoes:
        assert refused is not None, "a transaction has crossed a change that voids its writes"
        assert refused.sqlstate == errors.SERIALIZATION_FAILURE, refused
        arena.happened["vetoed"] += 1
        arena.happened["newer row"] += met_newer(refused)
        return
    if refused is not None and arena.store.schema_lease and met_newer(refused):
        assert refused.sqlstate == errors.SERIALIZATION_FAILURE, refused
        arena.happened["newer row"] += 1
        return
    assert refused is None, refused
    for effect in effects:
        effect(arena.rows)
    arena.happened["crossed"] += crossed


def met_newer(refused: errors.Error) -> bool:
    return "was written under a newer schema" in refused.message


class Transaction:
    """A transaction of a session, begun now with all its statements, to be committed later."""

    def __init__(self, arena: Arena, session: Session, level: str) -> None:
        self._arena = arena
        self._session = session
        self._meant = arena.changed
        self._session.execute(f"begin isolation level {level}")
        self._deeds = [] if arena.changed and arena.kind.drops else deeds(arena)
        for deed in self._deeds:
            session.execute(deed.text, deed.parameters)

    def commit(self) -> None:
        """It stands, unless a change came in between that makes its writes void."""
        crossed = self._arena.changed and not self._meant
        refused = refusal(lambda: self._session.execute("commit"))
        _judge(self._arena, refused, [deed.effect for deed in self._deeds], crossed=crossed)


def _missing(column: Column) -> object:
    """What a row has in a column that nobody names."""
    return None if column.missing is None else values.from_text(column.type, column.missing)


class Laggard:
    """A bare server's transaction: it commits under the schema that it held when it began, if the store lets it."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._meant = arena.changed
        self._deeds: list[Effect] = []
        if arena.changed and arena.kind.drops:
            return
        self._server = Server(arena.world, arena.name("t"))
        a, b, n = map(arena.name, ("a", "b", "n"))
        new = arena.fresh()
        row: Row = (new * 10, "late", new)
        named = {"id": new, a: row[0], b: row[1], n: row[2]}
        self._server.insert(*(named.get(column.name, self._unnamed(column)) for column in self._server.meant.columns))
        self._deeds.append(lambda rows: _put(rows, new, row))
        one, gone = arena.key(), arena.key()
        if one is not None:
            value = arena.fresh() * 10
            self._server.update(one, **{a: value})
            self._deeds.append(lambda rows: _put(rows, one, (value, *rows[one][1:])))
        if gone is not None:
            self._server.delete(gone)
            self._deeds.append(lambda rows: rows.pop(gone))

    def _unnamed(self, column: Column) -> object:
        """What an INSERT puts into a column that it does not name."""
        if column.hidden:
            return self._arena.fresh()  # a row id
        if column.is_derived:
            return None  # the server makes it
        return self._server.default(column) if column.per_row or column.derived is not None else _missing(column)

    def commit(self) -> None:
        """As of a session's; the store's fence turns it back as often as it must."""
        if not self._deeds:
            return
        crossed = self._arena.changed and not self._meant
        _judge(self._arena, refusal(self._server.commit), self._deeds, crossed=crossed)
        self._arena.happened["derived again"] += self._server.refused
