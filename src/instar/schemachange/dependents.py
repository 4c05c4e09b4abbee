"""What a stage takes from a table that something has come to use since the stage was planned.

A job drops columns and keys, and widens types, in its last stage, as its statement wanted it when it was planned. So
that stage looks again at what it finds, and so does the first stage that cannot be taken back, on behalf of all that
follow: the job fails then, and leaves the schema as it was. Once it can only go forward, nothing new may come to use
what it is bound to take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Column, Object, Table, View
from instar.schemachange.elements import Element, ElementKind, Phase, name_of, phase_of, phases, used_columns
from instar.schemachange.generation import require_own_type
from instar.schemachange.job_records import Job, JobState
from instar.schemachange.publishing import advance
from instar.schemachange.stages import Change, Edit, Move, Publication, Stage


def require_unused(catalog: CatalogSnapshot, publication: Publication) -> None:
    """2BP01 if something in `catalog` would be left without a column or a key that it uses; 0A000 for a view on a
    column whose type changes."""
    after = {one.after.id: one.after for one in publication.published if isinstance(one.after, Table)}
    for one in publication.published:
        if isinstance(one.before, Table) and isinstance(one.after, Table):
            for user, used in _left_without(catalog, after, one.before, one.after):
                raise _is_used(user, used)
            _require_types(catalog, one.before, one.after)
    for dropped in publication.dropped:
        if isinstance(dropped, Table):
            for user, used in _left_without_table(catalog, after, publication, dropped):
                raise _is_used(user, used)


def _is_used(user: str, used: str) -> errors.Error:
    return errors.error(errors.DEPENDENT_OBJECTS, f"cannot drop {used} because other objects depend on it", detail=user)


def rest_of(job: Job, catalog: CatalogSnapshot) -> Publication:
    """What all stages of the job that are still to come take away, and edit, as if it were done now."""

    def table(number: int) -> Table | None:
        found = catalog.by_id(number)
        return found if isinstance(found, Table) else None

    left = job.stages[job.stage :]
    gone = _taken(left)
    found = {element: phase_of(table(element.table), element) for element in gone}
    moves = tuple(Move(element, phase, Phase.ABSENT) for element, phase in found.items() if phase is not Phase.ABSENT)
    edits = tuple(edit for stage in left for edit in stage.edits)
    drops = tuple(number for stage in left for number in stage.drops)
    reveals = tuple(number for stage in left for number in stage.reveals)
    return advance(catalog.by_id, Stage(moves=moves, edits=edits, drops=drops, reveals=reveals), job.statement)


def bound_elements(job: Job) -> set[Element]:
    """What the job is bound to drop, or to give another type: it is past its last revertible stage."""
    if job.is_finished or job.is_revertible or job.state is JobState.REVERTING:
        return set()
    left = job.stages[job.stage :]
    retyped = _retyped(edit for stage in left for edit in stage.edits)
    dropped = {Element(ElementKind.TABLE, number, number) for stage in left for number in stage.drops}
    return set(_taken(left)) | retyped | dropped


def _taken(stages: tuple[Stage, ...]) -> dict[Element, None]:
    moves = (move for stage in stages for move in stage.moves)
    return dict.fromkeys(move.element for move in moves if move.goal is Phase.ABSENT and move.element.kind in _USED)


def require_staying(
    catalog: CatalogSnapshot, publication: Publication, bound: Callable[[], Mapping[Element, int]]
) -> None:
    """55006 if something new uses what a job is bound to take; `bound` tells of all that is, and of the jobs."""
    anew = set(_used_anew(catalog, publication))
    jobs = bound() if anew else {}
    for used in anew & jobs.keys():
        table = catalog.table(used.table)
        what = f'{name_of(table, used)} of table "{table.name}"'
        if used.kind is ElementKind.TABLE:
            what = f'table "{table.name}"'
        raise errors.error(
            errors.OBJECT_IN_USE,
            f"{what} is being dropped or changed by job {jobs[used]}",
            hint="That job cannot be taken back any more.",
        )


def require_unviewed(catalog: CatalogSnapshot, publication: Publication, change: Change) -> None:
    """55006 if a new view shows a column that the job of its own transaction is to drop, or to give another type."""
    taken = {move.element for move in change.dropped if move.element.kind is ElementKind.COLUMN}
    taken |= _retyped(change.edits)
    for begun in (found.element for found in change.scheduled):
        table = catalog.by_id(begun.table) if begun.kind is ElementKind.COLUMN else None
        for column in table.columns if isinstance(table, Table) else ():
            if column.id == begun.id and column.replaces is not None:
                taken.add(Element(ElementKind.COLUMN, begun.table, column.replaces))
    for view in (one.after for one in publication.published if isinstance(one.after, View)):
        shown = {Element(ElementKind.COLUMN, used, column) for used, columns in view.depends_on for column in columns}
        for used in sorted(shown & taken, key=lambda one: (one.table, one.id)):
            table = catalog.table(used.table)
            raise errors.error(
                errors.OBJECT_IN_USE,
                f'{name_of(table, used)} of table "{table.name}" is being dropped or changed by this transaction',
                hint="The job of that starts at COMMIT: end the transaction first.",
            )


def _retyped(edits: Iterable[Edit]) -> set[Element]:
    columns = ((edit.table, before, after) for edit in edits for before, after in edit.columns)
    return {Element(ElementKind.COLUMN, table, one.id) for table, one, other in columns if one.type != other.type}


def _used_anew(catalog: CatalogSnapshot, publication: Publication) -> Iterator[Element]:
    """What the new views, indexes, constraints and defaults of a publication stand on."""
    for one in publication.published:
        if isinstance(one.after, View):
            for used, columns in one.after.depends_on:
                yield Element(ElementKind.TABLE, used, used)
                yield from (Element(ElementKind.COLUMN, used, column) for column in columns)
        if not isinstance(one.after, Table):
            continue
        known = phases(one.before if isinstance(one.before, Table) else None)
        for element in phases(one.after).keys() - known.keys():
            yield from used_columns(one.after, element)
        for key in one.after.foreign_keys:
            if Element(ElementKind.FOREIGN_KEY, one.after.id, key.id) not in known:
                yield Element(ElementKind.TABLE, key.parent, key.parent)
                if key.parent_index is not None:
                    yield Element(ElementKind.INDEX, key.parent, key.parent_index)
        yield from _owners(catalog, _new_defaults(one.before, one.after))


def _new_defaults(before: Object | None, after: Table) -> list[Column]:
    """The columns that have another default than before."""
    known = {column.id: column.default for column in before.columns} if isinstance(before, Table) else {}
    return [column for column in after.columns if column.default is not None and known.get(column.id) != column.default]


def _owners(catalog: CatalogSnapshot, columns: Sequence[Column]) -> Iterator[Element]:
    """The columns that own sequences of which these take values."""
    for sequence in catalog.sequences() if columns else ():
        if sequence.owned_by is not None and any(column.takes_from(sequence.id) for column in columns):
            yield Element(ElementKind.TABLE, sequence.owned_by[0], sequence.owned_by[0])
            yield Element(ElementKind.COLUMN, *sequence.owned_by)


# What others stand on.
_USED = frozenset({ElementKind.COLUMN, ElementKind.INDEX, ElementKind.CHECK, ElementKind.FOREIGN_KEY})


def _left_without(
    catalog: CatalogSnapshot, published: dict[int, Table], before: Table, table: Table
) -> Iterator[tuple[str, str]]:
    """(what uses it, what goes), in words."""
    left = {column.id for column in table.columns}
    gone = {column.id: column.name for column in before.columns if column.id not in left}
    kinds = ((ElementKind.INDEX, table.indexes), (ElementKind.CHECK, table.checks))
    elements = [Element(kind, table.id, found.id) for kind, listed in kinds for found in listed]
    elements += [Element(ElementKind.FOREIGN_KEY, table.id, key.id) for key in table.foreign_keys]
    elements += [Element(ElementKind.COLUMN, table.id, column.id) for column in table.columns if column.generated]
    for element in elements if gone else ():
        for used in used_columns(table, element):
            if used.id in gone:
                what = f"column {gone[used.id]} of table {table.name}"
                yield f"{name_of(table, element)} depends on {what}", what
    dropped = gone.keys() - _replaced(before, table)
    for view in catalog.views() if dropped else ():
        for column in sorted(_columns_of(view, table) & dropped):
            what = f"column {gone[column]} of table {table.name}"
            yield f"{view.kind} {view.name} depends on {what}", what
    yield from _defaults_without(catalog, published, table, gone)
    yield from _keys_without(catalog, published, before, table)


def _left_without_table(
    catalog: CatalogSnapshot, published: dict[int, Table], publication: Publication, table: Table
) -> Iterator[tuple[str, str]]:
    """(what uses a table that goes, the table), in words."""
    gone = {found.id for found in publication.dropped}
    what = f"table {table.name}"
    anew = {one.after.id: one.after for one in publication.published if isinstance(one.after, View)}
    for view in (anew.get(found.id, found) for found in catalog.views()):
        if view.id not in gone and any(used == table.id for used, _ in view.depends_on):
            yield f"{view.kind} {view.name} depends on {what}", what
    for child_id in table.referenced_by:
        child = published.get(child_id) or catalog.table(child_id)
        for key in child.foreign_keys if child_id not in gone else ():
            if key.parent == table.id:
                yield f"constraint {key.name} on table {child.name} depends on {what}", what
    for sequence in catalog.sequences():
        if sequence.owned_by is not None and sequence.owned_by[0] == table.id:
            for other, column in catalog.takers(sequence.id):
                if other.id not in gone and other.unseen is None:
                    yield f"default value for column {column.name} of table {other.name} depends on it", what


def _defaults_without(
    catalog: CatalogSnapshot, published: dict[int, Table], table: Table, gone: dict[int, str]
) -> Iterator[tuple[str, str]]:
    """Defaults that take values of a sequence which goes with its column: not with one that another replaces."""
    gone = {number: name for number, name in gone.items() if all(found.replaces != number for found in table.columns)}
    for sequence in catalog.sequences() if gone else ():
        if sequence.owned_by is None or sequence.owned_by[0] != table.id or sequence.owned_by[1] not in gone:
            continue
        takers = {found.id: found for found, _column in catalog.takers(sequence.id)}
        heirs = {found.id for found in takers.values() if found.unseen is not None}  # who takes the sequence over
        for other in (takers | published).values():
            for column in other.columns if other.id not in heirs else ():
                if column.takes_from(sequence.id):
                    user = f"default value for column {column.name} of table {other.name}"
                    what = f"column {gone[sequence.owned_by[1]]} of table {table.name}"
                    yield f"{user} depends on sequence {sequence.name}", what


def _keys_without(
    catalog: CatalogSnapshot, published: dict[int, Table], before: Table, table: Table
) -> Iterator[tuple[str, str]]:
    """Foreign keys that refer to the table by an index which goes, or find children by one."""
    left = {index.id for index in table.indexes}
    gone = {index.id: index.name for index in before.indexes if index.id not in left}
    if not gone:
        return
    for key in table.foreign_keys:
        if key.child_index in gone:
            yield f"constraint {key.name} on table {table.name} depends on it", f"index {gone[key.child_index]}"
    for child_id in table.referenced_by:
        child = published.get(child_id) or catalog.table(child_id)
        for key in child.foreign_keys:
            if key.parent == table.id and key.parent_index in gone:
                yield f"constraint {key.name} on table {child.name} depends on it", f"index {gone[key.parent_index]}"


def _require_types(catalog: CatalogSnapshot, before: Table, after: Table) -> None:
    old = {column.id: column.type for column in before.columns}
    changed = {column.id: column.name for column in after.columns if old.get(column.id, column.type) != column.type}
    for found in after.columns:
        if found.id in changed:
            require_own_type(after, found)
    changed |= _replaced(before, after)
    for view in catalog.views() if changed else ():
        for column in sorted(_columns_of(view, after) & changed.keys()):
            raise errors.error(
                errors.FEATURE_NOT_SUPPORTED,
                "cannot alter type of a column used by a view or rule",
                detail=f'{view.kind} {view.name} depends on column "{changed[column]}"',
            )


def _replaced(before: Table, after: Table) -> dict[int, str]:
    """The columns, and their names, whose place others of another type have taken."""
    left = {column.id for column in after.columns}
    heirs = {column.replaces for column in after.columns}
    return {column.id: column.name for column in before.columns if column.id in heirs - left}


def _columns_of(view: View, table: Table) -> set[int]:
    return {column for used, columns in view.depends_on if used == table.id for column in columns}
