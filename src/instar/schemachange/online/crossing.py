"""After the switch of a join or split, changes of rows of its sources made changes of rows of its targets.

They are made by the very rules that the targets have followed the log by. But the targets are tables as others are by
now: their rows are read as a statement or a commit sees them, and what is made is for a transaction to write. Whoever
writes to a target knows nothing of parts, counters and flags, so these are told by the rows themselves:

- A row of T has R's part if none of R's columns in it that rows of R have always a value in is NULL
  (`crossing_join.marks`); S's part likewise.
- The counter of a record of S is the number of rows of R with its split value, and its flag is C.

So T needs its key and join columns for this, and the indexes on them; R its split columns, and the index on these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from instar import errors
from instar.catalog.descriptors import Kept, MadeBySplit, Table
from instar.schemachange.online.crossing_join import CrossingJoin
from instar.schemachange.online.crossing_rows import Budget, Limits, RowChange, TargetRows
from instar.schemachange.online.crossing_split import CrossingSplit
from instar.schemachange.online.shapes import comparable
from instar.tables.rowset import described
from instar.transformations.commits import apply_commit
from instar.transformations.records import Change, Deleted, Inserted, Row, Source

# Every change is newer than whatever is there, which is given 0: who hands it over has seen to it that it is made on
# that.
_NOW = 1


def translate(
    kept: Kept,
    targets: Mapping[int, Table],
    rows: TargetRows,
    changes: Sequence[Change],
    limits: Limits,
    *,
    as_read: bool = False,
) -> list[RowChange]:
    """What changes of the sources, whose rows have the columns of `kept.sources`, come to in the targets, which are
    given by their ids. Timestamps of the changes are of no account. `as_read`: the changes were made on rows that were
    read a while ago, and are refused if what the targets have of these is another by now.

    40001 if a row that is changed or deleted is not there (or is another), 23505 if one is inserted that is, or takes a
    join value that must be unique; 23502 if values would be lost since a split value is NULL; `limits`; 55000 if rows
    are not to be found any more, since somebody has dropped an index.
    """
    made, budget = kept.made, Budget(limits)
    changes = [_prepared(kept, change) for change in changes]
    if isinstance(made, MadeBySplit):
        split = CrossingSplit(kept, made, (targets[made.r], targets[made.s]), rows, budget, changes)
        split.require_kept()
        _require_rows(kept, split, changes, as_read=as_read)
        apply_commit(split.rules(), changes)
        return list(split.changes(limits))
    join = CrossingJoin(kept, made, targets[made.target], rows, budget)
    _require_rows(kept, join, changes, as_read=as_read)
    apply_commit(join.rules(), changes)
    join.require_room(changes)
    return list(join.changes())


def _prepared(kept: Kept, change: Change) -> Change:
    """The change as the rules compare it, and newer than all that is there."""
    table = _table(kept, change.source)
    key_columns = [column for column in table.columns if column.id in table.primary_key]
    key_columns.sort(key=lambda column: table.primary_key.index(column.id))
    ready = comparable(table.columns)
    fields: dict[str, object] = {"timestamp": _NOW, "key": comparable(key_columns)(change.key)}
    if not isinstance(change, Deleted):
        fields["after"] = ready(change.after)
    if not isinstance(change, Inserted):
        fields["before"] = ready(change.before)
    return msgspec.structs.replace(change, **fields)


def _table(kept: Kept, source: Source) -> Table:
    return kept.sources[1 if source is Source.S else 0]


def _require_rows(
    kept: Kept, target: CrossingJoin | CrossingSplit, changes: Sequence[Change], *, as_read: bool
) -> None:
    """40001 for a row that is not there to be changed, or not as it was, 23505 for one that is there already, or comes
    twice. The rules would pass over all of them: while they follow a log these mean that they are ahead of it."""
    leaving = {(change.source, change.key) for change in changes if isinstance(change, Deleted)}
    come: set[tuple[Source, Row]] = set()
    for change in changes:
        table, there = _table(kept, change.source), target.has(change)
        if isinstance(change, Inserted):
            place = change.source, change.key
            if place in come or (there and place not in leaving):
                raise errors.error(
                    errors.UNIQUE_VIOLATION,
                    f'duplicate key value violates unique constraint "{table.primary_key_name}"',
                    detail=f"Key {_key(table, change.key)} already exists.",
                )
            come.add(place)
        elif not there or (as_read and not target.has_as_read(change)):
            raise errors.error(
                errors.SERIALIZATION_FAILURE,
                f'could not serialize access to table "{table.name}" due to a concurrent update',
                detail=f"Row {_key(table, change.key)} was changed by a transaction that committed first.",
                hint="Retry the transaction.",
            )


def _key(table: Table, key: Row) -> str:
    columns = {column.id: column for column in table.columns}
    return described([columns[column] for column in table.primary_key], key)
