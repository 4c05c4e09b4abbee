"""The paths of states as tables (F1 §3.3): which states an element passes on its way in, and what work lies between.

The reverse of a path is the way out. Whole rows leave no orphans, so columns are simpler than in F1: a column is part
of the row, and a row in another layout is translated when it is read; one step brings it or takes it. Only one that
needs a value per row, or that comes with something else that takes time, is write-only for a while.
"""

from __future__ import annotations

import enum

import msgspec

from instar.catalog.descriptors import State
from instar.schemachange.elements import ElementKind, Phase, state_in


class Work(enum.Enum):
    """What must happen to the data before an element may take the next step; the value is how it is printed."""

    BACKFILL = "reorganize: backfill"
    POPULATE = "reorganize: populate"
    VALIDATE = "validate"
    PROPAGATE = "propagate lock timestamps"
    COMPACT = "compact rows"
    IMAGE = "initial population"
    ENTRIES = "index entries"
    FOLLOW = "log propagation"


class Path(msgspec.Struct, frozen=True):
    """`phases` from absent to public; `work` is done in the phase it is keyed by, before the step that follows it."""

    phases: tuple[Phase, ...]
    work: dict[Phase, Work]

    def distance(self, one: Phase, other: Phase) -> int:
        """How many steps lie between two phases of this path."""
        return abs(self.phases.index(one) - self.phases.index(other))

    def between(self, start: Phase, goal: Phase) -> tuple[Phase, ...]:
        """The phases to be passed from `start` (left out) to `goal`, in order; either direction."""
        begin, end = self.phases.index(start), self.phases.index(goal)
        if begin <= end:
            return self.phases[begin + 1 : end + 1]
        return tuple(reversed(self.phases[end:begin]))


def first_state(kind: ElementKind) -> State:
    """The state in which a new element begins its path."""
    return state_in(PATHS[kind].phases[1])


_CONSTRAINT = Path((Phase.ABSENT, Phase.WRITE_ONLY, Phase.PUBLIC), {Phase.WRITE_ONLY: Work.VALIDATE})

PATHS: dict[ElementKind, Path] = {
    ElementKind.COLUMN: Path((Phase.ABSENT, Phase.WRITE_ONLY, Phase.PUBLIC), {Phase.WRITE_ONLY: Work.POPULATE}),
    ElementKind.INDEX: Path(
        (Phase.ABSENT, Phase.DELETE_ONLY, Phase.WRITE_ONLY, Phase.PUBLIC), {Phase.WRITE_ONLY: Work.BACKFILL}
    ),
    ElementKind.CHECK: _CONSTRAINT,
    ElementKind.NOT_NULL: _CONSTRAINT,
    # On record, and holding for nobody, until the index that its probes use is public (rule 27).
    ElementKind.FOREIGN_KEY: Path(
        (Phase.ABSENT, Phase.DELETE_ONLY, Phase.WRITE_ONLY, Phase.PUBLIC), {Phase.WRITE_ONLY: Work.VALIDATE}
    ),
    ElementKind.PRIMARY_KEY: Path(
        (Phase.ABSENT, Phase.DELETE_ONLY, Phase.WRITE_ONLY, Phase.PUBLIC), {Phase.WRITE_ONLY: Work.BACKFILL}
    ),
    ElementKind.LOCK: Path((Phase.ABSENT, Phase.WRITE_ONLY, Phase.PUBLIC), {}),
    # Of a source, which is logged whole while it is write-only. When the targets are seen, it goes with the source.
    ElementKind.TRANSFORMATION: Path((Phase.ABSENT, Phase.WRITE_ONLY, Phase.PUBLIC), {}),
    ElementKind.COVERAGE: Path((Phase.ABSENT, Phase.WRITE_ONLY, Phase.PUBLIC), {Phase.WRITE_ONLY: Work.PROPAGATE}),
}
