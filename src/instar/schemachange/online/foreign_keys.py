"""Foreign keys of and to tables that are joined or split: whose they are afterwards.

They need not be validated: the targets have the rows that the sources had. What is left behind is a foreign key between
two tables that become one. What cannot be carried over is for the planning to refuse: a key whose columns no target
has all of, or that refers to what is no key any more; and one ON DELETE CASCADE that would delete other rows than it
did: of a join, as rows of the other source go with those of its own, and of S of a split, as rows of R stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from instar.catalog.descriptors import ForeignKey, MadeByJoin, MadeBySplit, Table
from instar.catalog.naming import generated_name
from instar.schemachange.probed_indexes import leading_index, leads, unique_index

Made = MadeBySplit | MadeByJoin


class Carried(NamedTuple):
    """A foreign key of `holder`, a source or a table that refers to one; the table that has it afterwards, and what it
    is there. Both None: it cannot be carried over."""

    holder: Table
    key: ForeignKey
    table: int | None
    after: ForeignKey | None


def carried(
    made: Made, sources: Sequence[Table], targets: Sequence[Table], table: Callable[[int], Table]
) -> Iterator[Carried]:
    """All foreign keys of and to the sources but those between two of them. `targets` as they are once they are seen;
    `table` gives others."""
    ids = {source.id for source in sources}
    for source in sources:
        for key in source.foreign_keys:
            if key.parent not in ids or key.parent == source.id:
                yield _of_source(made, source, targets, key)
        for child in map(table, source.referenced_by):
            for key in child.foreign_keys if child.id not in ids else ():
                if key.parent == source.id:
                    after = _referring(made, source, targets, key)
                    yield Carried(child, key, None if after is None else child.id, after)


def is_kept(found: Carried, table: Table) -> bool:
    """Whether a foreign key stays as it is, of or to a source that goes on as `table`, without some columns."""
    if found.holder.id == table.id:
        return found.table == table.id
    index = found.key.parent_index
    return (
        found.after is not None
        and found.after.parent == table.id
        and (index is None or any(left.id == index for left in table.indexes))
    )


def _of_source(made: Made, source: Table, targets: Sequence[Table], key: ForeignKey) -> Carried:
    for target in targets:
        after = _as_child(made, source, target, key)
        if after is not None and key.parent == source.id:
            after = _referring(made, source, targets, after)
        if after is not None:
            return Carried(source, key, target.id, after)
    return Carried(source, key, None, None)


def _as_child(made: Made, source: Table, target: Table, key: ForeignKey) -> ForeignKey | None:
    columns = _mapped(made, source, target, key.columns)
    deletes_alike = isinstance(made, MadeBySplit) and target.id != made.s
    if columns is None or (key.on_delete == "cascade" and not deletes_alike):
        return None
    if leads(target.primary_key, columns):
        return msgspec.structs.replace(key, columns=columns, child_index=None, owns_index=False)
    index = leading_index(target, columns)
    if index is None:
        return None
    owns = key.owns_index and index.id == key.child_index and isinstance(made, MadeBySplit)
    return msgspec.structs.replace(key, columns=columns, child_index=index.id, owns_index=owns)


def _referring(made: Made, source: Table, targets: Sequence[Table], key: ForeignKey) -> ForeignKey | None:
    """A key that refers to the source, as it refers to the first target that has what it refers to."""
    for target in targets:
        columns = _mapped(made, source, target, key.parent_columns)
        if columns is None:
            continue
        if sorted(columns) == sorted(target.primary_key):
            return msgspec.structs.replace(key, parent=target.id, parent_columns=columns, parent_index=None)
        index = unique_index(target, columns)
        if index is not None:
            return msgspec.structs.replace(key, parent=target.id, parent_columns=columns, parent_index=index.id)
    return None


def _mapped(made: Made, source: Table, target: Table, columns: Iterable[int]) -> tuple[int, ...] | None:
    """Columns of a source as columns of a target; None if it does not have all of them."""
    has = {column.id for column in target.columns}
    if isinstance(made, MadeBySplit):
        places = {number: number for number in has}
    else:
        places = dict(made.r_columns if source.id == made.r else made.s_columns)
    found = [places.get(column) for column in columns]
    mapped = tuple(number for number in found if number in has)
    return mapped if len(mapped) == len(found) else None


def with_keys(made: Made, target: Table, own: Iterable[ForeignKey], children: Iterable[int]) -> dict[str, object]:
    """The fields of a target that change when it gets foreign keys that are carried over to it, and `children` refer to
    it. Of a split they have the ids and names that they had."""
    keys: list[ForeignKey] = []
    names = {check.name for check in target.checks}
    columns = {column.id: column.name for column in target.columns}
    next_id = target.next_id
    for key in own:
        if isinstance(made, MadeByJoin):
            name = key.name
            if name in names:
                name = generated_name(
                    target.name, [columns[found] for found in key.columns], "fkey", names.__contains__
                )
            key = msgspec.structs.replace(key, id=next_id, name=name)
            next_id += 1
        names.add(key.name)
        keys.append(key)
    return {"foreign_keys": tuple(keys), "referenced_by": tuple(sorted(set(children))), "next_id": next_id}
