"""Sources that are written by real commits, targets with an image of them, and propagation that is killed."""

from __future__ import annotations

from instar.schemachange.job_records import Checkpoint, decode_checkpoint
from instar.schemachange.online.following import Following
from instar.schemachange.online.join_target import StoredJoin
from instar.schemachange.online.overlay import Overlay, ShortReads
from instar.schemachange.online.redo import putting
from instar.schemachange.online.split_target import StoredSplit
from instar.schemachange.online.transformation import OnlineJoin, OnlineSplit, Transformation
from instar.store.engine import Store
from instar.transformations.records import Flag, Join, Source
from schemachange.online.tables import joined_records, split_records, visible
from support.changes import ChangingWorld, Server
from transformations.histories import JOIN, MANY, SPLIT, Writes
from transformations.model import contributing, full_outer_join, split_of

CLAIM = (b"\x03claim", b"mine")


def commit(world: ChangingWorld, transformation: Transformation, writes: Writes) -> int:
    """Have the sources be as the writes say, in one commit; returns its timestamp, or that of the newest."""
    server = None
    for rows in transformation.sources:
        server = _joined(server, Server(world, rows.table.name))
        stored = visible(world.store, rows, world.now())
        for (source, key), row in writes.items():
            if source is not rows.source:
                continue
            if row is None:
                if key in stored:
                    server.delete(key[0])
            elif key in stored:
                names = [column.name for column in rows.table.columns]
                server.update(key[0], **dict(list(zip(names, row, strict=True))[1:]))
            else:
                server.insert(*row)
    assert server is not None
    return world.commit(server.buffer) if server.buffer else world.now()


def _joined(first: Server | None, second: Server) -> Server:
    """The second server in the transaction of the first."""
    if first is not None:
        second.buffer = first.buffer
    return second


def shape_of(join: OnlineJoin) -> Join:
    return JOIN if join.made.unique else MANY


def image(store: Store, transformation: Transformation, snapshot: int) -> None:
    """Fill the targets with what the operator makes of the sources at a snapshot."""
    overlay = Overlay(ShortReads(store))
    target = transformation.target(overlay)
    parts = {rows.source: visible(store, rows, snapshot) for rows in transformation.sources}
    if isinstance(target, StoredJoin):
        assert isinstance(transformation, OnlineJoin)
        for joined in full_outer_join(shape_of(transformation), parts[Source.R], parts[Source.S]):
            target.put(joined)
    else:
        assert isinstance(target, StoredSplit)
        r, s = split_of(SPLIT, parts[Source.T])
        for key, part in r.items():
            target.put_r(key, part)
        for value, record in s.items():
            target.put_s(value, record)
    store.background([putting(overlay.taken())])


def following(store: Store, transformation: Transformation, since: int) -> Following:
    """The work, as a worker begins it that knows nothing."""
    return Following(store, transformation, job=1, stage=2, claim=CLAIM, since=since, place=3)


def at(task: Following) -> Checkpoint:
    """Where the work is on record to be."""
    with task.store.read() as reader:
        stored = reader.get(task.checkpoint_key(0))
    return Checkpoint(task.start, task.stop, task.start, 0) if stored is None else decode_checkpoint(stored)


def run(task: Following, steps: int = 1_000_000) -> bool:
    """Do so many steps of the work, each an atomic section of its own; says whether it came to its end."""
    batches = task.batches(at(task))
    for made, reached in batches:
        for step in [*made, task.checkpoint(0, reached)]:
            if not steps:
                batches.close()  # type: ignore[attr-defined] # a generator
                return False
            task.store.background([step])
            steps -= 1
    return True


def check(store: Store, transformation: Transformation, position: int) -> None:
    """The targets are what the operators make of the sources at a position, from scratch."""
    parts = {rows.source: visible(store, rows, position) for rows in transformation.sources}
    with store.read() as reader:
        if isinstance(transformation, OnlineJoin):
            wanted = full_outer_join(shape_of(transformation), parts[Source.R], parts[Source.S])
            found = joined_records(transformation, reader)
            assert len(found) == len(wanted)
            assert set(found) == wanted
            return
        assert isinstance(transformation, OnlineSplit)
        r, s = split_records(transformation, reader)
    wanted_r, wanted_s = split_of(SPLIT, parts[Source.T])
    assert r == wanted_r
    assert {value: record.counter for value, record in s.items()} == {
        value: record.counter for value, record in wanted_s.items()
    }
    groups = contributing(SPLIT, parts[Source.T])
    for value, record in s.items():
        said = {SPLIT.s_part(part.values) for part in groups[value]}
        assert record.values in said
        assert record.flag is (Flag.CONSISTENT if len(said) == 1 else Flag.UNKNOWN)


def leftovers(task: Following) -> list[bytes]:
    """What the work has on record beside its position."""
    with task.store.read() as reader:
        return [key for key, _ in reader.scan(task.checkpoint_key(1), task.checkpoint_key(1 << 16))]
