"""Which rows of its source a grouping has, and which of their columns it reads."""

from __future__ import annotations

import msgspec

from instar.catalog.descriptors import Check, MadeByGrouping, MadeByJoin, MadeBySplit, Table
from instar.schemachange.online.grouping_target import Counts
from instar.schemachange.validate import CompileCheck


def counts_of(source: Table, made: MadeByGrouping, compile_check: CompileCheck) -> Counts:
    """Tells whether a row is in a group: its condition is true of it."""
    if made.condition is None:
        return lambda row: True
    holds = compile_check(source, Check(id=0, name="", expression=made.condition, columns=()))
    return lambda row: holds(row) is True


def read_of(source: Table, made: MadeByGrouping | MadeByJoin | MadeBySplit) -> Table:
    """A source of a materialized view with the columns that the view reads, and no others: those may change, come and
    go. Of a split all of them are read."""
    if isinstance(made, MadeBySplit):
        return source
    if isinstance(made, MadeByJoin):
        pairs = made.r_columns if source.id == made.r else made.s_columns
        read = {column for column, _ in pairs}
    else:
        read = {column for column, _ in made.groups} | {value.column for value in made.values} | set(made.reads)
    columns = tuple(column for column in source.columns if column.id in read or column.id in source.primary_key)
    return msgspec.structs.replace(source, columns=columns)
