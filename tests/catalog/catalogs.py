"""A model of the catalog, to compare snapshots with: all objects as a dict, and random changes of them."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.changes import CatalogChange
from instar.catalog.descriptors import Index, IndexColumn, Object, Sequence, Table, View
from instar.catalog.system import relation_names
from instar.types import BIGINT
from support.world import DEFAULT_COLUMNS, World, describe_table

# All names and ids that any history uses: those of objects that are gone, or to come, are asked for too.
NAMES = [f"{kind}{number}" for kind in "abcd" for number in range(3)]
IDS = range(998, 1150)


class Model(dict[int, Object]):
    """The objects that there are, by id. Never changed once it is the model of a moment."""

    def bearers(self) -> dict[str, Object]:
        return {name: found for found in self.values() for name in relation_names(found)}


def require_like(snapshot: CatalogSnapshot, model: Model, *, may_be_gone: bool) -> None:
    """Everything that can be asked of the snapshot is as in the model, or with `may_be_gone` 72000."""
    bearers = model.bearers()
    relations = {name: bearers.get(name) for name in NAMES}
    named = {name: found if found is not None and found.name == name else None for name, found in relations.items()}
    same = [
        (lambda: {name: snapshot.relation(name) for name in NAMES}, relations),
        (lambda: {name: snapshot.lookup(None, name) for name in NAMES}, named),
        (lambda: {number: found for number in IDS if (found := snapshot.by_id(number)) is not None}, dict(model)),
        (lambda: list(snapshot.objects()), [found for _, found in sorted(model.items())]),
        (
            lambda: list(snapshot.views()),
            [model[number] for number in sorted(model) if isinstance(model[number], View)],
        ),
    ]
    asked: list[tuple[Callable[[], object], object]] = [*same]
    for ask, expected in asked:
        try:
            found = ask()
        except errors.Error as failed:
            if not may_be_gone or failed.sqlstate != "72000":
                raise
        else:
            assert found == expected


def change_at_random(world: World, draw: random.Random, model: Model) -> Model:
    """Commit one change of one to three objects; the model of what there is then."""
    change = world.change()
    made = Model(model)
    for _ in range(draw.randint(1, 3)):
        draw.choice((_create, _create, _rename, _index, _drop))(change, draw, made)
    if draw.random() < 0.1:  # rolled back: nothing of it comes to anybody
        return model
    world.commit(change=change)
    if draw.random() < 0.5:
        world.catalog_cache.settle(change.view)
    return made


def _create(change: CatalogChange, draw: random.Random, model: Model) -> None:
    name = _free(draw, model)
    if name is None:
        return
    kind = draw.random()
    new: Object
    if kind < 0.6:
        new = describe_table(change, name, DEFAULT_COLUMNS, (1,))
    elif kind < 0.8:
        new = View(id=change.new_id(), name=name, version=1, query="SELECT 1", columns=(), depends_on=())
    else:
        new = Sequence(id=change.new_id(), name=name, version=1, type=BIGINT)
    change.create(new)
    model[new.id] = new


def _rename(change: CatalogChange, draw: random.Random, model: Model) -> None:
    name = _free(draw, model)
    if name is not None and model:
        old = draw.choice(list(model.values()))
        key = {"primary_key_name": f"{name}_pkey"} if isinstance(old, Table) else {}
        _update(change, model, msgspec.structs.replace(old, name=name, version=old.version + 1, **key))


def _index(change: CatalogChange, draw: random.Random, model: Model) -> None:
    tables = [found for found in model.values() if isinstance(found, Table)]
    name = _free(draw, model)
    if not tables or name is None:
        return
    table = draw.choice(tables)
    indexes = table.indexes[draw.randint(0, 1) :]
    if len(indexes) < 3:
        new = Index(id=table.next_id, name=name, columns=(IndexColumn(2),), rowset=change.new_rowset(table.id))
        indexes = (*indexes, new)
    version, next_id = table.version + 1, table.next_id + 1
    _update(change, model, msgspec.structs.replace(table, indexes=indexes, version=version, next_id=next_id))


def _update(change: CatalogChange, model: Model, new: Object) -> None:
    committed = change.committed(new.id)
    if committed is not None:  # a change publishes one version
        new = msgspec.structs.replace(new, version=committed.version + 1)
    change.update(new)
    model[new.id] = new


def _drop(change: CatalogChange, draw: random.Random, model: Model) -> None:
    if model:
        change.drop(model.pop(draw.choice(list(model))))


def _free(draw: random.Random, model: Model) -> str | None:
    free = sorted(set(NAMES) - model.bearers().keys())
    return draw.choice(free) if free else None
