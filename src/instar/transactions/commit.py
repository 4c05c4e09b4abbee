"""The commit: derive physical writes under the newest schema, put them to the store, and try again where that is sound.

Three versions of each written table matter: I, which the statements meant, e, under which the physical writes were
derived, and c, current in the store. I to e is put to the validators while deriving; e to c is the store's fence. A
commit refused for e alone, or because maintenance rewrote a row, is derived and submitted again, unseen by the user.
"""

from __future__ import annotations

from collections.abc import Callable

from instar import errors
from instar.store.engine import (
    Commit,
    LeaseExpired,
    PreconditionFailed,
    Reader,
    Refused,
    StaleRow,
    StaleSchema,
    Store,
)
from instar.store.lock_table import Locked

# Each round is lost to somebody else's success (a published stage, a compacted batch), so this many in a row means
# that something publishes without end.
MAX_ROUNDS = 100
# So often a lease may run out between deriving and the store's judgement: then it is too short for this machine.
MAX_EXPIRIES = 5


class Conflict(Exception):
    """Another transaction committed first what this one depends on. Autocommit statements run again inside; else the
    user gets `reported`."""

    def __init__(self, reported: errors.Error) -> None:
        super().__init__(reported.message)
        self.reported = reported


def commit(
    store: Store,
    derive: Callable[[Reader], Commit | None],
    prepare: Callable[[Refused | None], None] | None = None,
) -> int | None:
    """Commit what `derive` makes of the buffer on the state that a reader sees. Returns the commit timestamp, or None
    if there is nothing to write. `prepare` is called before each round, with what the round before was refused for; if
    that was a lock of another transaction, it waits for that. Without `prepare` Locked is raised.

    `prepare` may take longer than a reader may be open, and may raise Conflict. `derive` raises Conflict where a row
    moved or a validator has a veto, and StaleSchema where its schema is not fit to derive under. Raises Conflict too
    where a precondition fails in the atomic section: something newer than the reader stands in the way. What trying
    again could not help is raised as the error that the failed precondition makes; of one that makes none `prepare` is
    told, and the commit is derived again.
    """
    refused: Refused | None = None
    rounds = expired = 0
    while rounds < MAX_ROUNDS:
        if prepare is not None:
            prepare(refused)
        try:
            with store.read() as reader:
                request = derive(reader)
            return None if request is None else store.commit(request)
        except Locked as again:
            if prepare is None:
                raise
            refused = again  # it waits, as long as may be
        except (StaleSchema, StaleRow) as again:
            refused = again
            rounds += 1
        except LeaseExpired as again:
            refused = again
            rounds += 1
            expired += 1
            if expired == MAX_EXPIRIES:
                raise _expired() from None
        except PreconditionFailed as failed:
            _report(failed)
            refused = failed
            rounds += 1
    raise errors.error(
        errors.SERIALIZATION_FAILURE,
        f"the schema or the rows changed under this commit {MAX_ROUNDS} times in a row",
        hint="Retry the transaction.",
    )


def _report(failed: PreconditionFailed) -> None:
    """Raise what a failed precondition makes of it: nothing, where the commit is to be tried again."""
    failure = failed.precondition.on_failure
    reported: errors.Error | None = failure.error(failed.found)  # type: ignore[attr-defined]  # any object
    if reported is None:
        return
    if reported.sqlstate != errors.SERIALIZATION_FAILURE:
        raise reported from None
    raise Conflict(reported) from None


def _expired() -> errors.Error:
    return errors.error(
        errors.SERIALIZATION_FAILURE,
        f"the schema lease of this process ran out {MAX_EXPIRIES} times in a row before the commit was judged",
        hint="Retry the transaction; if this comes again, the schema lease is too short for this machine.",
    )
