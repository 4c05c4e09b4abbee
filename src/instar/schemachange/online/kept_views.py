"""Names that live on: the views that a join or split leaves under the names of its sources (WITH (keep_views = true)).

A kept view has the columns of the table that it stands for, and `Kept` tells how what is written to it is written to
the new tables (crossing.py). For that they need keys and indexes, which nobody may take away while the view is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from instar import errors
from instar.catalog.descriptors import (
    Column,
    Index,
    Kept,
    MadeByJoin,
    MadeBySplit,
    Object,
    State,
    Table,
    View,
)
from instar.catalog.descriptors import Sequence as SequenceDescriptor
from instar.schemachange.online.crossing_join import marks
from instar.transformations.records import Source

Made = MadeBySplit | MadeByJoin


def targets_of(made: Made) -> tuple[int, ...]:
    """The tables that what is written to a kept view is written to; of a split R and S, whichever table R is."""
    if isinstance(made, MadeBySplit) and made.becomes is not None:
        return (made.source, made.s)
    return made.targets


def require_keepable(made: Made, sources: Sequence[Table], targets: Sequence[Table]) -> None:
    """What it takes that the sources' names can stay as views over `targets`, as they will be: 42P07 if one of these
    has such a name, 55000 naming a column or an index that they would need, 0A000 for what they could not see to."""
    for target in targets:
        if any(target.name == source.name for source in sources):
            raise errors.error(
                errors.DUPLICATE_TABLE,
                f'relation "{target.name}" is to be a view, and cannot be a new table',
                hint="Call the new table otherwise, or do not keep views.",
            )
    if isinstance(made, MadeBySplit):
        _require_of_split(made, sources[0], *targets)
    else:
        _require_of_join(made, sources, targets[0])


def _require_of_split(made: MadeBySplit, source: Table, r: Table, s: Table) -> None:
    shown = {column.id for column in r.columns if column.visible}
    names = {column.id: column.name for column in source.columns}
    missing = next((column for column in made.on if column not in shown), None)
    if missing is not None:
        raise _not_there(f'column "{names[missing]}"', r.name, "by which it is split")
    for index in source.indexes:
        if index.unique and not shown.issuperset(part.column for part in index.columns):
            raise _not_unique(source, index)
    if not _is_key(r, made.on) and not any(_leads(index, made.on) for index in r.indexes):
        on = ", ".join(names[column] for column in made.on)
        raise _not_there(f"index on ({on})", r.name, "by which it is split")


def _require_of_join(made: MadeByJoin, sources: Sequence[Table], target: Table) -> None:
    shown = {column.id for column in target.columns if column.visible}
    for number, source in enumerate(sources):
        columns = dict(made.r_columns if number == 0 else made.s_columns)
        on = {pair[number] for pair in made.on}
        marks(made, tuple(sources), Source.R if number == 0 else Source.S)
        for column in source.columns:
            if columns.get(column.id) not in shown:
                raise _not_there(f'column "{column.name}" of table "{source.name}"', target.name, "which its view has")
        for index in source.indexes:
            parts = [part.column for part in index.columns]
            mapped = {columns[part] for part in parts}
            unique = any(
                found.unique and mapped.issuperset(part.column for part in found.columns) for found in target.indexes
            )
            told = set(parts).issuperset(source.primary_key) or (number == 1 and made.unique and set(parts) == on)
            if index.unique and not unique and not told:
                raise _not_unique(source, index)


def _not_there(what: str, table: str, why: str) -> errors.Error:
    return errors.error(
        errors.OBJECT_NOT_READY,
        f'views cannot be kept: table "{table}" would have no {what}, {why}',
        hint="Have it there, or do not keep views.",
    )


def _not_unique(source: Table, index: Index) -> errors.Error:
    return errors.error(
        errors.FEATURE_NOT_SUPPORTED,
        f'keeping a view of table "{source.name}", whose unique index "{index.name}" no new table could have, is not '
        "supported",
        hint="Drop the index first, or do not keep views.",
    )


def kept_view(number: int, source: Table, kept: Kept, targets: Sequence[Table]) -> View:
    """The view, of this id, that a source's name stays as."""
    if isinstance(kept.made, MadeBySplit):
        query, used = _split_query(kept.made, source, *targets)
    else:
        query, used = _join_query(kept, source, targets[0])
    sequences = {column.sequence for column in source.columns if column.sequence is not None}
    used.update({sequence: set() for sequence in sequences})
    return View(
        id=number,
        name=source.name,
        version=1,
        query=query,
        columns=tuple((column.name, column.type) for column in source.columns),
        depends_on=tuple((table, tuple(sorted(columns))) for table, columns in sorted(used.items())),
        kept=kept,
        source=source.id,
    )


def _split_query(made: MadeBySplit, source: Table, r: Table, s: Table) -> tuple[str, dict[int, set[int]]]:
    of_r = {column.id for column in r.columns if column.visible}
    owners = [("r" if column.id in of_r else "s", column) for column in source.columns]
    outputs = ", ".join(f'{owner}."#{column.id}" AS {_quoted(column.name)}' for owner, column in owners)
    on = " AND ".join(f'r."#{column}" = s."#{column}"' for column in made.on)
    used = {
        r.id: {column.id for owner, column in owners if owner == "r"},
        s.id: {column.id for owner, column in owners if owner == "s"} | set(made.on),
    }
    return f'SELECT {outputs} FROM "#{r.id}" AS r LEFT JOIN "#{s.id}" AS s ON {on}', used


def _join_query(kept: Kept, source: Table, target: Table) -> tuple[str, dict[int, set[int]]]:
    made = kept.made
    assert isinstance(made, MadeByJoin)
    of_r = source.id == made.r
    columns = dict(made.r_columns if of_r else made.s_columns)
    told = marks(made, kept.sources, Source.R if of_r else Source.S)
    outputs = ", ".join(f't."#{columns[column.id]}" AS {_quoted(column.name)}' for column in source.columns)
    where = " AND ".join(f't."#{column}" IS NOT NULL' for column in told)
    once = of_r and made.unique  # else its rows are in T once for each that they match
    used = {target.id: {columns[column.id] for column in source.columns}}
    return f'SELECT {"" if once else "DISTINCT "}{outputs} FROM "#{target.id}" AS t WHERE {where}', used


def needed(view: View, table: Table) -> Iterator[tuple[int, ...]]:
    """The columns of a table by which a kept view finds rows of it, in whatever order: there has to be a primary key or
    an index that begins with them."""
    made = None if view.kept is None else view.kept.made
    if isinstance(made, MadeBySplit) and table.id in targets_of(made):
        yield made.on
    elif isinstance(made, MadeByJoin) and table.id == made.target:
        assert view.kept is not None
        for number, source in enumerate(view.kept.sources):
            places = dict(made.r_columns if number == 0 else made.s_columns)
            yield tuple(places[column] for column in source.primary_key)
            yield tuple(places[pair[number]] for pair in made.on)


def needs_index(view: View, table: Table, index: Index) -> bool:
    """Whether a kept view could not be written to without the index."""
    others = [found for found in table.indexes if found.id != index.id and found.state is State.PUBLIC]
    return any(
        _leads(index, columns) and not _is_key(table, columns) and not any(_leads(found, columns) for found in others)
        for columns in needed(view, table)
    )


def needs_key(view: View, table: Table) -> bool:
    """Whether a kept view could not be written to if the table had another primary key."""
    made = None if view.kept is None else view.kept.made
    return isinstance(made, MadeBySplit) and table.id in targets_of(made)


def _is_key(table: Table, columns: Sequence[int]) -> bool:
    return sorted(table.primary_key) == sorted(columns)


def _leads(index: Index, columns: Sequence[int]) -> bool:
    return sorted(part.column for part in index.columns[: len(columns)]) == sorted(columns)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def outliving(orphaned: Iterable[SequenceDescriptor], views: Iterable[Object]) -> Iterator[SequenceDescriptor]:
    """Of sequences whose columns go, those that rows written to kept views take values of: they are nobody's then."""
    columns: list[Column] = []
    for view in views:
        source = view.stands_for if isinstance(view, View) else None
        columns += () if source is None else source.columns
    for sequence in orphaned:
        if any(column.takes_from(sequence.id) for column in columns):
            yield msgspec.structs.replace(sequence, owned_by=None, version=sequence.version + 1)
