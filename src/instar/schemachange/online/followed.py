"""How far a materialized view has come: up to which commit of the log its rows are what its query says of its sources.

The record is read at its latest state, and moves in the very commit that brings the rows there: so a commit of the
sources is applied once, and whoever else is at the same is refused.
"""

from __future__ import annotations

import struct

import msgspec

from instar.catalog.descriptors import View
from instar.store.engine import View as StoreView
from instar.store.records import Latest, latest_key

_ID = struct.Struct(">I")


class Followed(msgspec.Struct, frozen=True, array_like=True):
    """`position`: all commits up to that timestamp are applied, none after it. `stale`: why none ever will be; then the
    view is populated anew."""

    position: int
    stale: str = ""


_decoder = msgspec.msgpack.Decoder(Followed)


def followed_key(storage: int) -> bytes:
    """The store key of the record of the view whose rows are in that table."""
    return latest_key(Latest.FOLLOWED, _ID.pack(storage))


def encode_followed(followed: Followed) -> bytes:
    """The record's bytes (MessagePack)."""
    return msgspec.msgpack.encode(followed)


def followed(reader: StoreView, view: View) -> Followed | None:
    """How far a view has come; None of one that is no more."""
    assert view.materialized is not None
    stored = reader.get(followed_key(view.materialized.storage))
    return None if stored is None else _decoder.decode(stored)
