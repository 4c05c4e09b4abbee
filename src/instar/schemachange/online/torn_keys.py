"""Foreign keys that the new tables of a join or split could have, but that would not say there what they said, or
whose actions would tear apart what the change has put together.

A column that a join makes of a pair has values of either table, and so says nothing of one table's alone. What an
action writes it writes in one table, or to one of two join columns: what it is joined by, or has in common, with the
other stays as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from instar.catalog.descriptors import Column, ForeignKey, MadeByJoin, MadeBySplit, Table
from instar.schemachange.online.foreign_keys import Carried, Made

_ON_DELETE = ("set null", "set default")
_ON_UPDATE = ("cascade", *_ON_DELETE)


def torn(
    made: Made, sources: Sequence[Table], targets: Sequence[Table], keys: Sequence[Carried], *, keep_views: bool
) -> Iterator[tuple[Carried, str]]:
    """Those of `keys` that must not be carried over though they could be, and why. `targets` as they will be."""
    ids = {source.id for source in sources}
    for found in keys:
        if found.after is None:
            continue
        if isinstance(made, MadeBySplit):
            why = _in_split(targets, found, keep_views) if found.holder.id in ids else None
        else:
            why = _in_join(made, targets[0], found, keys) if found.holder.id in ids else None
            if why is None and keep_views and found.key.parent in ids:
                why = _to_join(made, sources, found)
        if why is not None:
            yield found, why


def _in_split(targets: Sequence[Table], found: Carried, keep_views: bool) -> str | None:
    assert found.after is not None  # the caller looks at no others
    r, s = ({column.id: column for column in target.columns if column.visible} for target in targets)
    written = _written(found.key, found.after.columns)
    both = next((column for number, column in r.items() if number in s and number in written), None)
    if both is not None:
        return f'{_actions(found.key)} would change column "{both.name}" in one of the new tables only'
    if keep_views and found.key.on_delete == "cascade":
        return "ON DELETE CASCADE would take rows away, and leave what a kept view has of them in the other table"
    return None


def _in_join(made: MadeByJoin, target: Table, found: Carried, keys: Iterable[Carried]) -> str | None:
    assert found.after is not None
    columns = {column.id: column for column in target.columns}
    written = _written(found.key, found.after.columns)
    of_r, of_s = dict(made.r_columns), dict(made.s_columns)
    joining = [place for one, other in made.on for place in (of_r[one], of_s[other]) if place in written]
    if joining:
        return f'{_actions(found.key)} would change column "{columns[joining[0]].name}", by which they are joined'
    for source, place in zip(found.key.columns, found.after.columns, strict=True):
        own = next(column for column in found.holder.columns if column.id == source)
        if place in written and _is_lost(found, own, columns[place]):
            return f'{_actions(found.key)} would set column "{own.name}" to another value than it did, or to NULL'
    shared = set(of_r.values()) & set(of_s.values())
    if shared.issuperset(found.after.columns) and not any(_is_twin(found, other) for other in keys):
        return f'column "{columns[found.after.columns[0]].name}" would have values of the other table, too'
    return None


def _to_join(made: MadeByJoin, sources: Sequence[Table], found: Carried) -> str | None:
    """Whoever deletes a row of one kept view would not be told of rows that refer to it: the other's may stay."""
    of_r, of_s = dict(made.r_columns), dict(made.s_columns)
    assert found.after is not None
    if not (set(of_r.values()) & set(of_s.values())).issuperset(found.after.parent_columns):
        return None
    parent = next(source for source in sources if source.id == found.key.parent)
    return f'it would refer to rows of both kept views, and not to those of "{parent.name}" alone'


def _written(key: ForeignKey, columns: Iterable[int]) -> set[int]:
    """The columns of a foreign key, as far as its actions write any."""
    return set(columns) if key.on_update in _ON_UPDATE or key.on_delete in _ON_DELETE else set()


def _actions(key: ForeignKey) -> str:
    events = (("ON UPDATE", key.on_update, _ON_UPDATE), ("ON DELETE", key.on_delete, _ON_DELETE))
    return " and ".join(f"{event} {action.upper()}" for event, action, writing in events if action in writing)


def _is_lost(found: Carried, before: Column, after: Column) -> bool:
    """Whether an action that sets a column of a joined table does something else there: to give it a default that is
    lost, or a NULL, which it could not have, and by which a row would have lost that table's part."""
    actions = (found.key.on_update, found.key.on_delete)
    defaulted = "set default" in actions
    old, new = ((column.default, column.sequence) for column in (before, after))
    nulled = "set null" in actions or (defaulted and old == (None, None))
    return (defaulted and old != new) or (nulled and not before.nullable)


def _is_twin(found: Carried, other: Carried) -> bool:
    """Whether it is the same foreign key of the other table."""
    one, two = found.after, other.after
    return (
        one is not None
        and two is not None
        and found.holder.id != other.holder.id
        and found.table == other.table
        and (one.parent, one.not_valid) == (two.parent, two.not_valid)
        and sorted(zip(one.columns, one.parent_columns, strict=True))
        == sorted(zip(two.columns, two.parent_columns, strict=True))
    )
