"""Schema locks (MD-MVCC §3.3, table 1): what they are taken on, and who takes which.

| mode | taken by | until |
|---|---|---|
| SCH-A | compiling any statement; queries and DML at the snapshot levels | never written down |
| SCH-S | a query at a locking level, of what it reads; DML there, of all it depends on | its end; the transaction's |
| SCH-C | a change of an object | a locking level: the transaction's end; else for its commit |
| SCH-M | one of `NON_VERSIONED` | likewise |

They lie in the store's lock table (`store/lock_table.py`), where any process meets them. The resource of a table, and
of a view, is the store key that a table's header has, by the object's id: a rename changes nothing.

**Why SCH-A is never written down.** The one mode that it excludes is SCH-M, which is there to keep snapshot queries
from pages that are about to be used for something else. Here nothing is taken from under a snapshot: what a change
replaces stays until the watermark has passed the change (rule 22), whoever reads; and a write that the change voids is
found by the validators and the floor, after `ddl_wait`. So nobody at a snapshot level has to wait for any change, SCH-A
can always be had, and to have had it would hold up nobody. DESIGN §1, promise 1 demands just that.

**Why a commit need not hold SCH-C.** A change that is not committed is seen by nobody, and a commit is one moment in
the atomic section: there it is judged against the SCH-S of others, as rows are against row locks, and refused while one
is held. So what has been locked and is read after that is the newest version until it is let go. Only a transaction at
a locking level holds SCH-C for longer: from its statement on, so that it is not refused at its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from instar.catalog.descriptors import Object, Table
from instar.store.engine import PREFIX_TABLE
from instar.store.lock_modes import Mode
from instar.store.records import table_key
from instar.store.row_locks import Demand


class Operation(NamedTuple):
    """What takes SCH-M: as statements say it, and why it leaves no version beside its own."""

    name: str
    why: str


NON_VERSIONED = (
    Operation("DROP TABLE, DROP VIEW", "the object is gone"),
    Operation("TRUNCATE", "the table's rows are those of another rowset, an empty one"),
    Operation("ALTER TABLE ... ADD or ALTER PRIMARY KEY, its last stage", "the rows lie under other keys"),
    Operation("a bulk load into an empty table, its publication", "the rows are those of another rowset"),
)


def resource_of(object_id: int) -> bytes:
    """What is locked of a table or view."""
    return table_key(object_id)


def object_of(resource: bytes) -> int | None:
    """The id of the object whose schema lock this resource is; None for those of rows."""
    return int.from_bytes(resource[1:], "big") if resource[:1] == PREFIX_TABLE else None


def demands_of(put: Iterable[Object], dropped: Iterable[Object], before: Mapping[int, Object | None]) -> list[Demand]:
    """The schema locks of a change, in the order of resources. `before`: the objects as they are committed. What is new
    nobody can have locked."""
    wanted = {resource_of(old.id): Mode.SCH_M for old in dropped}
    for new in put:
        old = before.get(new.id)
        if old is not None:
            wanted[resource_of(new.id)] = Mode.SCH_M if _other_rows(old, new) else Mode.SCH_C
    return sorted(wanted.items())


def _other_rows(old: Object, new: Object) -> bool:
    return isinstance(old, Table) and isinstance(new, Table) and old.rowset != new.rowset
