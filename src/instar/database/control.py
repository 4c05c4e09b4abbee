"""Transaction control: savepoints, COMMIT and ROLLBACK with their variants, SET TRANSACTION."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from instar import errors
from instar.catalog.changes import CatalogChange
from instar.database.commit import SessionTransaction
from instar.database.result import Result
from instar.database.variables import VARIABLES
from instar.sql import statements as ast
from instar.sql.parser import parse_one
from instar.transactions.transaction import Isolation

if TYPE_CHECKING:
    from instar.database.session import Session


def copied(ddl: CatalogChange | None) -> CatalogChange | None:
    """A catalog change as it stands now, for a savepoint."""
    return ddl.copy() if ddl else None


def _begin(session: Session, statement: ast.Begin) -> Result:
    """A warning where a transaction is open, as in PostgreSQL: it goes on, whoever opened it."""
    open_ = session.transaction
    if open_ is None:
        session.open(explicit=True, modes=statement.modes)
    else:
        session.notice("there is already a transaction in progress", "WARNING")
        _set_modes(open_, statement.modes)
        open_.explicit = True
    return Result("BEGIN")


def _savepoint(session: Session, statement: ast.Savepoint) -> Result:
    open_ = _require_block(session, "SAVEPOINT")
    open_.savepoint(statement.name, copied(open_.ddl), session.keep())
    return Result("SAVEPOINT")


def _rollback_to(session: Session, statement: ast.RollbackTo) -> Result:
    open_ = _require_block(session, "ROLLBACK TO SAVEPOINT")
    session.restore(open_, open_.rollback_to(statement.name))
    return Result("ROLLBACK")


def _release(session: Session, statement: ast.ReleaseSavepoint) -> Result:
    open_ = _require_block(session, "RELEASE SAVEPOINT")
    open_.release(statement.name)
    return Result("RELEASE")


def _require_block(session: Session, what: str) -> SessionTransaction:
    """25P01 outside a transaction; with autocommit off, one is open as soon as it is asked for."""
    if session.transaction is None:
        if session.autocommit:
            raise errors.error(errors.NO_ACTIVE_TRANSACTION, f"{what} can only be used in transaction blocks")
        return session.open(explicit=False)
    return session.transaction


def _commit(session: Session, statement: ast.Commit) -> Result:
    _require_one(session, "COMMIT", chain=statement.chain)
    chained = session.transaction if statement.chain else None
    result = session.commit()
    return _chain(session, chained, result)


def _rollback(session: Session, statement: ast.Rollback) -> Result:
    _require_one(session, "ROLLBACK", chain=statement.chain)
    chained = session.transaction if statement.chain else None
    return _chain(session, chained, session.rollback())


def _require_one(session: Session, what: str, *, chain: bool) -> None:
    """A warning outside a transaction, 25P01 if it is to be followed by another; as of `_require_block`."""
    if chain:
        _require_block(session, f"{what} AND CHAIN")
    elif session.transaction is None and session.autocommit:
        session.notice("there is no transaction in progress", "WARNING")


def _chain(session: Session, ended: SessionTransaction | None, result: Result) -> Result:
    if ended is not None:
        session.open(explicit=True, modes=ast.TransactionModes(ended.isolation.value, ended.read_only))
    return result


def _set_transaction(session: Session, statement: ast.SetTransaction) -> Result:
    modes = statement.modes
    if statement.session:
        if modes.isolation is not None:
            session.set("default_transaction_isolation", modes.isolation)
        if modes.read_only is not None:
            session.set("default_transaction_read_only", "on" if modes.read_only else "off")
        return Result("SET")
    open_ = session.transaction
    if open_ is None:
        if session.autocommit:
            session.notice("SET TRANSACTION can only be used in transaction blocks", "WARNING")
            return Result("SET")
        open_ = session.open(explicit=False)
    _set_modes(open_, modes)
    return Result("SET")


def _set_modes(open_: SessionTransaction, modes: ast.TransactionModes) -> None:
    """25001 if it is too late for that."""
    if modes.isolation is not None and (level := Isolation(modes.isolation)) is not open_.isolation:
        if open_.has_begun:
            raise _too_late("SET TRANSACTION ISOLATION LEVEL must be called before any query")
        if open_.has_savepoints:
            raise _too_late("SET TRANSACTION ISOLATION LEVEL must not be called in a subtransaction")
        open_.isolation = level
    if modes.read_only is not None:
        if open_.read_only and not modes.read_only and (open_.has_begun or open_.has_savepoints):
            raise _too_late("cannot set transaction read-write mode inside a read-only transaction")
        open_.read_only = modes.read_only


def _too_late(message: str) -> errors.Error:
    return errors.error(errors.ACTIVE_TRANSACTION, message)


# What controls transactions and settings rather than running on a snapshot.
CONTROL: dict[type, Callable[..., Result]] = {
    **VARIABLES,
    ast.Begin: _begin,
    ast.Commit: _commit,
    ast.Rollback: _rollback,
    ast.Savepoint: _savepoint,
    ast.RollbackTo: _rollback_to,
    ast.ReleaseSavepoint: _release,
    ast.SetTransaction: _set_transaction,
}
# What a failed transaction still takes.
ENDINGS = (_commit, _rollback, _rollback_to)

# BEGIN, COMMIT and their like as they were parsed: a few, since every transaction says the same.
known_controls: dict[str, ast.Statement] = {}
_MAX_CONTROLS = 64


def parsed(text: str) -> ast.Statement:
    """The statement that a text is. Errors as of the parser."""
    known = known_controls.get(text)
    if known is not None:
        return known
    statement = parse_one(text)
    if type(statement) in CONTROL and len(known_controls) < _MAX_CONTROLS:
        known_controls[text] = statement
    return statement
