"""Rows that share the key of a unique index with others, as a backfill meets them (rule 21).

The first batch that has any is looked through to its end, so that the error names more than one row; what comes after
it is not: an index that cannot be is not built on.
"""

from __future__ import annotations

from itertools import islice

from instar import errors
from instar.schemachange.tasks import NAMED_ROWS
from instar.store.engine import Section


class Duplicates:
    """What the probes of one index, or primary key, called `name` have found."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._key = ""
        self._rows: dict[str, None] = {}  # in the order of finding; a step that is done again finds the same

    def add(self, key: str, row: str) -> None:
        """The row (its primary key, as people read it) has the `key` of another."""
        self._key = self._key or key
        self._rows[row] = None

    def require_none(self, _section: Section) -> None:
        """A step at the end of a batch. 23505 if there are any."""
        if not self._rows:
            return
        count = len(self._rows)
        shares = "row found so far shares its" if count == 1 else "rows found so far share their"
        among = "" if count <= NAMED_ROWS else ", among them"
        raise errors.error(
            errors.UNIQUE_VIOLATION,
            f'could not create unique index "{self._name}"',
            detail=f"Key {self._key} is duplicated. "
            f"{count} {shares} key with another{among}: {', '.join(islice(self._rows, NAMED_ROWS))}.",
        )
