"""The store: an ordered key-value store with commit timestamps, atomic test-and-set and short reads.

What lives here: the protocol (engine.py), two engines (lmdb.py, memory.py) and what they share: the judging of commits,
versions of rows, the log, presence, the gate. It knows bytes, keys and timestamps, nothing of types, columns or SQL.
Everything above speaks to the protocol alone.
"""

from instar.store.lmdb import open_store
from instar.store.memory import MemoryStore

__all__ = ["MemoryStore", "open_store"]
