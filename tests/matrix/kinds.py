"""Kinds of change, one file each in kinds/: what there is before, the statement, and what must be so afterwards."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path

import msgspec

FILES = Path(__file__).parent / "kinds"

# What every kind starts from. Row 1 is nobody's: the traffic changes others only, so that queries can be sure of it.
ROWS = 12
SCHEMA = (
    "create table t (id bigint primary key, a integer, b text, n integer, p bigint)",
    "create table parent (id bigint primary key, code text)",
    "insert into parent values (1, 'one'), (2, 'two'), (3, 'three')",
    "insert into t values " + ", ".join(f"({i}, {i * 10}, 'b{i}', {i}, {i % 3 + 1})" for i in range(1, ROWS + 1)),
)


class Query(msgspec.Struct, frozen=True, array_like=True):
    """A query and its rows, in any order; or the SQLSTATE that it fails with."""

    text: str
    gives: list[list[object]] | str


class Kind(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One kind of change; docs/MAINTAINERS.md says how to write its file.

    `statements`: several are one transaction. `holds`, `before`: what is so once it is done, and before it or once it
    is taken back. `renames`: what t and its columns are called afterwards. `vetoes`: who has written to t before and
    commits after gets 40001. `empties`, `drops`: what becomes of t. `traffic`: more statements that go well at any
    time, `{key}` and `{fresh}` standing for a row that is there and one that is not. `conflicting`: statements that may
    be refused, or make the change fail, with one of `conflicts`. `merges`: before or afterwards a and n are under two
    optimistic locks, so that changes of both in one row are merged. `by_paths`: takes a job under a lease only, whose
    plan is golden too. `alone`: refused in a transaction block (25001). `writes`: its statement writes rows itself, and
    so waits for who has locked one. `retained`: goes by what the log has, so not once that is cut. `names_all`:
    names all columns of t, so that it is refused where another one has come before it. `keyless`: rows of t may have
    one id afterwards.
    """

    name: str
    title: str
    setup: tuple[str, ...] = ()
    statements: tuple[str, ...]
    holds: tuple[Query, ...]
    before: tuple[Query, ...] = ()
    renames: dict[str, str] = {}
    vetoes: bool = False
    empties: bool = False
    drops: bool = False
    traffic: tuple[str, ...] = ()
    conflicting: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    merges: bool = False
    by_paths: bool = False
    alone: bool = False
    writes: bool = False
    retained: bool = False
    names_all: bool = False
    keyless: bool = False


@functools.cache
def load(name: str) -> Kind:
    """The kind of this name."""
    text = (FILES / f"{name}.toml").read_text()
    return msgspec.convert({"name": name, **tomllib.loads(text)}, Kind)


NAMES = sorted(path.stem for path in FILES.glob("*.toml"))
