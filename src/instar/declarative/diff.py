"""The difference between two schemas as changes, in no order yet. Both are named alike: renames are settled before."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from instar.catalog.descriptors import COMPACTION_SHARE
from instar.declarative import changes as to
from instar.declarative import model
from instar.declarative.changes import Change
from instar.schemachange.alteration import widens


def difference(live: model.Schema, wanted: model.Schema) -> list[Change]:
    """What turns `live` into `wanted`. The order of a table's columns is no difference: nothing changes it."""
    return [
        *_sequences(live, wanted),
        *_dropped_tables(live, wanted),
        *_tables(live, wanted),
        *_views(live, wanted),
    ]


# --- sequences -------------------------------------------------------------------------------------------------------


def _sequences(live: model.Schema, wanted: model.Schema) -> Iterator[Change]:
    for name, old in live.sequences.items():
        new = wanted.sequences.get(name)
        if new is None:
            if old.owned_by is None or _has_column(wanted, *old.owned_by):
                yield to.DropSequence(name)  # else it goes with its owner
            continue
        if old.owned_by is not None and new.owned_by != old.owned_by:
            yield to.DisownSequence(name)
        yield from _altered_sequence(old, new)
    for name, new in wanted.sequences.items():
        known = live.sequences.get(name)
        if known is None:
            yield to.CreateSequence(new)
        if new.owned_by is not None and (known is None or known.owned_by != new.owned_by):
            yield to.OwnSequence(name, new.owned_by)


def _altered_sequence(old: model.Sequence, new: model.Sequence) -> Iterator[Change]:
    if msgspec.structs.replace(old, name="", owned_by=None) != msgspec.structs.replace(new, name="", owned_by=None):
        yield to.AlterSequence(old, new)


def _has_column(schema: model.Schema, table: str, column: str) -> bool:
    found = schema.tables.get(table)
    return found is not None and found.column(column) is not None


def lost_sequences(live: model.Schema, wanted: model.Schema) -> dict[str, tuple[str, str] | None]:
    """The sequences that go, with the columns that they belong to. One of identity is never one that stands alone."""
    lost = {name: found.owned_by for name, found in live.sequences.items() if name not in wanted.sequences}
    kept = identities(wanted)
    return lost | {name: owner for owner, name in identities(live).items() if kept.get(owner) != name}


def _all_sequences(schema: model.Schema) -> dict[str, tuple[str, str] | None]:
    found = {name: sequence.owned_by for name, sequence in schema.sequences.items()}
    return found | {name: owner for owner, name in identities(schema).items()}


def identities(schema: model.Schema) -> dict[tuple[str, str], str]:
    """The sequences of identity columns, by table and column."""
    return {
        (table.name, column.name): column.identity.sequence.name
        for table in schema.tables.values()
        for column in table.columns
        if column.identity is not None
    }


def relation_names(schema: model.Schema) -> set[str]:
    """The names that no two relations share: those of tables, views, sequences, indexes and primary keys."""
    indexes = {
        element.name
        for table in schema.tables.values()
        for element in table.elements
        if isinstance(element, model.Index | model.PrimaryKey)
    }
    return {*schema.tables, *schema.views, *_all_sequences(schema), *indexes}


# --- tables that come and go -----------------------------------------------------------------------------------------


def _dropped_tables(live: model.Schema, wanted: model.Schema) -> Iterator[Change]:
    """Tables that refer to others go before those; what closes a circle is taken off first, as is what needs a key or
    index that goes from a table that stays."""
    doomed = {name: table for name, table in live.tables.items() if name not in wanted.tables}
    lost = _dropped_elements(live, wanted)
    for name, table in doomed.items():
        for key in _keys(table):
            if not lost.isdisjoint(key.needs):
                yield to.DropElement(name, key)
    while doomed:
        free = [name for name in doomed if not any(_refers(other, doomed[name], live) for other in doomed.values())]
        if not free:
            name = next(iter(doomed))
            for other in doomed.values():
                for key in _keys(other):
                    if key.parent == name != other.name:
                        yield to.DropElement(other.name, key)
            free = [name]
        for name in free:
            yield to.DropTable(name)
            del doomed[name]


def _refers(table: model.Table, other: model.Table, live: model.Schema) -> bool:
    """Whether `other` cannot be dropped before `table`."""
    if table.name == other.name:
        return False
    owners = _all_sequences(live)
    used = (name for column in table.columns if column.default is not None for name in column.default.sequences)
    owned = any((owner := owners.get(name)) is not None and owner[0] == other.name for name in used)
    return owned or any(key.parent == other.name for key in _keys(table))


def _keys(table: model.Table) -> list[model.ForeignKey]:
    return [element for element in table.elements if isinstance(element, model.ForeignKey)]


def _tables(live: model.Schema, wanted: model.Schema) -> Iterator[Change]:
    lost = lost_sequences(live, wanted)
    late = set(identities(wanted).values())
    dropped = _dropped_elements(live, wanted)
    for name, new in wanted.tables.items():
        old = live.tables.get(name)
        if old is None:
            yield from _created_table(new, late)
        else:
            elements = list(_elements(old, new, dropped, wanted))
            keys = [change.new for change in elements if isinstance(change, to.ReplaceElement)]
            required = {name for key in keys if isinstance(key, model.PrimaryKey) for name in key.columns}
            for change in _columns(old, new, lost, late):
                if not (isinstance(change, to.SetNotNull) and change.column in required):  # the key sees to it
                    yield change
            yield from elements
            yield from _locks(old, new)
            if old.migration != new.migration:
                yield to.SetMigration(name, new.migration)
            if old.compaction_share != new.compaction_share:
                yield to.SetCompaction(name, new.compaction_share)


def _created_table(table: model.Table, late: set[str]) -> Iterator[Change]:
    columns = tuple(_early(column, late) for column in table.columns)
    within = tuple(element for element in table.elements if _is_within(element))
    yield to.CreateTable(model.Table(name=table.name, columns=columns, elements=within))
    for element in table.elements:
        if not _is_within(element):
            yield to.AddElement(table.name, element)
    yield from _late_defaults(table.name, table.columns, late)
    yield from _pending_not_nulls(table.name, table.columns)
    for lock in table.locks:
        yield to.AddLock(table.name, lock)
    if table.migration != "write":
        yield to.SetMigration(table.name, table.migration)
    if table.compaction_share != COMPACTION_SHARE:
        yield to.SetCompaction(table.name, table.compaction_share)


def _is_within(element: model.Element) -> bool:
    """Whether CREATE TABLE says it. Foreign keys come when all tables are there, and may go round in circles."""
    match element:
        case model.Index():
            return element.constraint
        case model.Check():
            return element.valid
    return isinstance(element, model.PrimaryKey)


def _early(column: model.Column, late: set[str]) -> model.Column:
    """The column as it is added: without a default that takes values of an identity column's sequence."""
    return msgspec.structs.replace(column, default=None) if _is_late(column, late) else column


def _is_late(column: model.Column, late: set[str]) -> bool:
    return column.default is not None and not late.isdisjoint(column.default.sequences)


def _late_defaults(table: str, columns: tuple[model.Column, ...], late: set[str]) -> Iterator[Change]:
    for column in columns:
        if column.default is not None and _is_late(column, late):
            yield to.SetDefault(table, column.name, column.default)


def _pending_not_nulls(table: str, columns: tuple[model.Column, ...]) -> Iterator[Change]:
    """Those that are NOT VALID, which no column is made with."""
    for column in columns:
        if column.not_null is not None and not column.not_null.valid:
            yield from _not_null(table, column.name, None, column.not_null)


# --- columns ---------------------------------------------------------------------------------------------------------


def _columns(
    old: model.Table, new: model.Table, lost: dict[str, tuple[str, str] | None], late: set[str]
) -> Iterator[Change]:
    for column in old.columns:
        there = new.column(column.name)
        place = (old.name, column.name)
        doomed = [name for name in ([] if column.default is None else column.default.sequences) if name in lost]
        if there is None:
            if any(lost[name] != place for name in doomed):  # else it goes with the column
                yield to.DropDefault(*place)
            yield to.DropColumn(*place)
        else:
            yield from _column(old.name, column, there, endangered=bool(doomed))
    added = tuple(column for column in new.columns if old.column(column.name) is None)
    for column in added:
        yield to.AddColumn(new.name, _early(column, late))
    yield from _late_defaults(new.name, added, late)
    yield from _pending_not_nulls(new.name, added)


def _column(table: str, old: model.Column, new: model.Column, *, endangered: bool) -> Iterator[Change]:
    """`endangered`: the old default takes values of a sequence that goes, though another may come by its name."""
    name = new.name
    if old.generated is not None and new.generated is None:
        yield to.DropExpression(table, name)
    elif new.generated is not None and old.generated != new.generated:
        yield to.SetExpression(table, name, new.generated)
    if old.type != new.type:
        yield to.SetType(table, name, old.type, new.type)
        # A default that is to be another may be nothing that the new type can be assigned.
        changes = old.default is not None and (new.default is None or old.default.text != new.default.text)
        endangered |= changes and not widens(old.type, new.type)
    if old.default is not None and (new.default is None or endangered):
        yield to.DropDefault(table, name)
    if new.default is not None and (endangered or old.default is None or old.default.text != new.default.text):
        yield to.SetDefault(table, name, new.default)
    if new.not_null is not None:
        yield from _not_null(table, name, old.not_null, new.not_null)
    yield from _identity(table, old, new)
    if new.not_null is None and old.not_null is not None:
        yield to.DropNotNull(table, name)


def _not_null(table: str, column: str, old: model.NotNull | None, new: model.NotNull) -> Iterator[Change]:
    """A name that a schema does not say is any."""
    if old is None:
        yield to.SetNotNull(table, column, new.name if new.given else None, new.valid)
        return
    if new.given and new.name != old.name:
        yield to.RenameNotNull(table, old.name, new.name)
    if new.valid and not old.valid:
        yield to.SetNotNull(table, column)


def _identity(table: str, old: model.Column, new: model.Column) -> Iterator[Change]:
    if old.identity is None and new.identity is not None:
        yield to.AddIdentity(table, new)
    elif old.identity is not None and new.identity is None:
        yield to.DropIdentity(table, new.name)
    elif old.identity is not None and new.identity is not None:
        if old.identity.kind != new.identity.kind:
            yield to.SetIdentity(table, new)
        yield from _altered_sequence(old.identity.sequence, new.identity.sequence)


# --- indexes and constraints -----------------------------------------------------------------------------------------


def _dropped_elements(live: model.Schema, wanted: model.Schema) -> set[tuple[str, str]]:
    """The indexes and keys, as (table, name), that tables that stay lose or get anew."""
    found = set()
    for name, new in wanted.tables.items():
        if name in live.tables:
            kept = _pairs(live.tables[name], new)
            elements = [element for element in live.tables[name].elements if element.name not in kept]
            found |= {(name, lost.name) for lost in elements if isinstance(lost, model.Index | model.PrimaryKey)}
    return found


def _pairs(old: model.Table, new: model.Table) -> dict[str, str]:
    """What stays: old names to new ones. What is the same but for its name is renamed; it holds nothing of its own."""
    by_name = {element.name: element for element in new.elements}
    pairs = {
        element.name: element.name
        for element in old.elements
        if element.name in by_name and model.same(element, by_name[element.name])
    }
    taken = {element.name for element in old.elements}
    free = [element for element in new.elements if element.name not in taken]
    for element in old.elements:
        if element.name in by_name:
            continue
        for candidate in free:
            if model.same(element, candidate):
                pairs[element.name] = candidate.name
                free.remove(candidate)
                break
    return pairs


def _elements(
    old: model.Table, new: model.Table, dropped: set[tuple[str, str]], wanted: model.Schema
) -> Iterator[Change]:
    pairs = _pairs(old, new)
    kept = set()
    for element in old.elements:
        name = pairs.get(element.name)
        stranded = isinstance(element, model.ForeignKey) and not dropped.isdisjoint(element.needs)
        if name is None or stranded:
            successor = None if stranded else _successor(element, new, wanted)
            if successor is None or successor.name in pairs.values():
                yield to.DropElement(old.name, element)
            else:
                kept.add(successor.name)
                yield to.ReplaceElement(old.name, element, successor)
            continue
        kept.add(name)
        if name != element.name:
            yield to.RenameElement(old.name, element, name)
        if not model.is_valid(element) and any(found.name == name and model.is_valid(found) for found in new.elements):
            yield to.ValidateConstraint(old.name, name)
    for element in new.elements:
        if element.name not in kept:
            yield to.AddElement(new.name, element)


def _successor(element: model.Element, new: model.Table, wanted: model.Schema) -> model.Element | None:
    """The constraint that takes the place of one that goes, in one statement: of its kind and name; of primary keys
    there is one at most. None where the old one must go before what it stands on."""
    for found in new.elements:
        same_name = found.name == element.name or isinstance(found, model.PrimaryKey)
        if type(found) is type(element) and same_name and model.is_constraint(found) and model.is_constraint(element):
            if isinstance(element, model.ForeignKey) and not _stands(element, new, wanted):
                return None
            return found
    return None


def _stands(key: model.ForeignKey, new: model.Table, wanted: model.Schema) -> bool:
    """Whether all that a foreign key stands on stays, as it is."""
    parent = wanted.tables.get(key.parent)
    return (
        parent is not None
        and all(new.column(name) is not None for name in key.columns)
        and all(parent.column(name) is not None for name in key.parent_columns)
    )


# --- locks -----------------------------------------------------------------------------------------------------------


def _locks(old: model.Table, new: model.Table) -> Iterator[Change]:
    """Locks take columns from each other; so who loses some to another lock only is not mentioned."""
    before = {lock.name: lock for lock in old.locks}
    covered = {column for lock in new.locks for column in lock.columns}
    left = {column.name for column in new.columns}
    shrinking = []
    for lock in new.locks:
        known = before.pop(lock.name, None)
        if known is None:
            yield to.AddLock(new.name, lock)
        elif _covers_key(known, new) and _covers_key(lock, old):
            # Neither the lock nor the key can change first.
            yield to.DropLock(new.name, lock.name)
            yield to.AddLock(new.name, lock)
        elif not set(lock.columns) <= set(known.columns):
            yield to.AlterLock(new.name, lock)
        elif not covered >= set(known.columns) & left:
            shrinking.append(to.AlterLock(new.name, lock))
    yield from shrinking
    for name in before:
        yield to.DropLock(new.name, name)


def _covers_key(lock: model.Lock, table: model.Table) -> bool:
    """Whether the lock covers a column of the table's primary key."""
    keys = [found for found in table.elements if isinstance(found, model.PrimaryKey)]
    return any(column in lock.columns for key in keys for column in key.columns)


# --- views -----------------------------------------------------------------------------------------------------------


def _views(live: model.Schema, wanted: model.Schema) -> Iterator[Change]:
    gone = _views_that_go(live, wanted)
    for view in reversed(_by_dependency(live.views)):
        if view.name in gone:
            yield to.DropView(view.name)
    for view in _by_dependency(wanted.views):
        old = live.views.get(view.name)
        if old is None or view.name in gone:
            yield to.CreateView(view)
        elif not model.same_view(old, view):
            yield to.CreateView(view, replace=True)


def _views_that_go(live: model.Schema, wanted: model.Schema) -> set[str]:
    """Views that are dropped, for good or to be made again: they, or what they read, will not be what they are."""
    relations, columns = _moved(live, wanted)
    gone = {
        name
        for name, view in live.views.items()
        if name not in wanted.views or wanted.views[name].columns[: len(view.columns)] != view.columns
    }
    grown = True
    while grown:
        grown = False
        for name, view in live.views.items():
            reads = any(
                used in gone or used in relations or any((used, column) in columns for column in named)
                for used, named in view.reads
            )
            if reads and name not in gone:
                gone.add(name)
                grown = True
    return gone


def _moved(live: model.Schema, wanted: model.Schema) -> tuple[set[str], set[tuple[str, str]]]:
    """The relations that go, and the columns that go or change their type."""
    relations = {name for name in live.tables if name not in wanted.tables} | set(lost_sequences(live, wanted))
    columns = set()
    for name, old in live.tables.items():
        new = wanted.tables.get(name)
        for column in old.columns if new is not None else ():
            there = None if new is None else new.column(column.name)
            if there is None or there.type != column.type:
                columns.add((name, column.name))
    return relations, columns


def _by_dependency(views: dict[str, model.View]) -> list[model.View]:
    """What is read comes before what reads it; by name where there is a choice."""
    placed: dict[str, model.View] = {}
    while len(placed) < len(views):
        for name, view in views.items():
            if name not in placed and all(used in placed or used not in views for used, _ in view.reads):
                placed[name] = view
                break
    return list(placed.values())
