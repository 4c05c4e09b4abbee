"""Executing a plan as one batched change: one transaction where SQL allows it, and as few as it allows where not."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from instar import errors
from instar.database import Session
from instar.declarative.planning import Plan, Step

# What a statement is refused with because something before it in its transaction is still to be built, or still to go:
# the rehearsal has shown that it can be executed once that is complete.
_INCOMPLETE = frozenset(
    {
        errors.OBJECT_IN_USE,
        errors.INVALID_FOREIGN_KEY,
        errors.DEPENDENT_OBJECTS,
        errors.DUPLICATE_OBJECT,
        errors.DUPLICATE_TABLE,
        errors.INVALID_TABLE_DEFINITION,
        errors.UNDEFINED_COLUMN,  # it is still given values
        errors.OBJECT_NOT_READY,  # an identity, of a column that still has NULLs
        errors.INVALID_PARAMETER,  # or is still of its old type
    }
)

Tell = Callable[[str], None]


def require_possible(plan: Plan, *, allow_destructive: bool) -> None:
    """Refuse a plan with a step that cannot be done (by that step's error), or that destroys what may not be."""
    for step in plan.problems:
        assert step.problem is not None
        problem = step.problem
        raise errors.error(
            problem.sqlstate,
            f"{problem.message} (nothing has been changed)",
            detail=f"{step.statement}{'' if problem.detail is None else chr(10) + problem.detail}",
            hint=problem.hint,
        )
    if plan.destructive and not allow_destructive:
        raise errors.error(
            errors.DEPENDENT_OBJECTS,
            "the plan destroys what no later change brings back (nothing has been changed)",
            detail="\n".join(f"{step.statement} destroys {step.loses}" for step in plan.destructive),
            hint="--allow-destructive applies it all the same.",
        )


def apply(session: Session, plan: Plan, tell: Tell, *, allow_destructive: bool = False) -> None:
    """Execute the plan. `tell` hears of each statement, and where the transaction has to be divided.

    Errors leave what was committed before them, and say which statements that were.
    """
    require_possible(plan, allow_destructive=allow_destructive)
    if not plan.steps:
        return
    batch = _Batch(session, tell)
    try:
        for step in plan.steps:
            batch.add(step)
        batch.commit()
    except BaseException as error:
        session.rollback()
        if isinstance(error, errors.Error) and (batch.committed or batch.reverted):
            told = [*filter(None, [error.detail]), *batch.told(len(plan.steps))]
            error.detail = "\n".join(told)
        raise


class _Batch:
    """The statements of the open transaction, and those that were committed before it."""

    def __init__(self, session: Session, tell: Tell) -> None:
        self._session = session
        self._tell = tell
        self._open: list[Step] = []
        self.committed: list[Step] = []
        self.reverted: list[Step] = []  # committed, and taken back with the job that they took

    def told(self, steps: int) -> Iterator[str]:
        """What stands of so many statements, in words."""
        yield f"{len(self.committed)} of {steps} statements had been committed before."
        yield from (f"It was reverted: {step.statement}" for step in self.reverted)

    def add(self, step: Step) -> None:
        """Execute a statement in the transaction, or in a new one if it cannot be in one with those before it."""
        if not self._open:
            self._session.execute("BEGIN")
        self._session.execute("SAVEPOINT step")
        try:
            self._session.execute(step.statement)
        except errors.Error as error:
            if not self._is_too_early(error):
                raise
            self._session.execute("ROLLBACK TO SAVEPOINT step")
            count = len(self._open)
            those = "the statement" if count == 1 else f"the {count} statements"
            self._tell(f"committing {those} so far, which cannot be in one transaction with what comes next:")
            self._tell(f"{error.sqlstate}: {error.message}")
            self.commit()
            self.add(step)
            return
        self._open.append(step)
        self._tell(step.statement)

    def _is_too_early(self, error: errors.Error) -> bool:
        """Whether the statement may succeed once those before it are committed, and their job has ended."""
        if error.sqlstate == errors.FEATURE_NOT_SUPPORTED:
            return bool(self._open)
        return error.sqlstate in _INCOMPLETE and any(step.takes_job for step in self._open)

    def commit(self) -> None:
        """Commit, and wait for the jobs that the transaction has begun. They go on if the wait is broken off."""
        began, self._open = self._open, []
        try:
            self._session.execute("COMMIT")
        except errors.Error as error:
            # The transaction stands, its jobs go on or were taken back: see Session.commit.
            if error.sqlstate == errors.SCHEMA_CHANGE_FAILED:
                self.committed += [step for step in began if not step.takes_job]
                self.reverted += [step for step in began if step.takes_job]
            elif error.sqlstate == errors.QUERY_CANCELED:
                self.committed += began
            raise
        self.committed += began
