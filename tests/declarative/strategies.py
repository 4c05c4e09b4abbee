"""Random schemas as specifications, written as SQL in another style than a dump has; and what one may become later."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

NAMES = ("a", "b", "c", "d", "e", "Big", "select", "two words", 'quo"te', "größe", "x_1", "id_seq")
# Of tables and sequences some have names that are generated for the sequence of t.a.
TABLES = ("t", "u", "v", "Order", "t_a", "user", "t_a_seq")
SEQUENCES = ("s", "s2", "t_a_seq", "t_a_seq1", "Counter")
VIEWS = ("w1", "w2", "w3", "Shown")
# Types that only get wider from left to right.
WIDENING = (
    ("smallint", "integer", "bigint"),
    ("varchar(5)", "varchar(9)", "text"),
    ("numeric(6,2)", "numeric(9,2)"),
    ("real", "double precision"),
    ("boolean",), ("date",), ("timestamptz",), ("uuid",), ("jsonb",), ("bytea",), ("timestamp",),
)  # fmt: skip
FAMILY = {type_: chain for chain in WIDENING for type_ in chain}
KEY_CHAINS = WIDENING[:2]
DEFAULTS: dict[str, tuple[str, ...]] = {
    "smallint": ("1", "-2", "1 + 1"), "varchar(5)": ("'x'", "'it''s'", "lower('A')"), "numeric(6,2)": ("1", "2.5"),
    "real": ("0.1", "2"), "boolean": ("true", "NOT true"), "date": ("'2024-02-29'", "current_date"),
    "timestamptz": ("now()", "'2024-01-01 00:00+00'"), "uuid": ("'00000000-0000-0000-0000-000000000001'",),
    "jsonb": ("'{\"a\": 1}'",), "bytea": (r"'\x00ff'",), "timestamp": ("'2024-01-01 10:00'",),
}  # fmt: skip
ACTIONS = ("", " ON DELETE CASCADE", " ON DELETE SET NULL ON UPDATE CASCADE", " ON UPDATE RESTRICT")


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def listed(names: Any) -> str:
    return ", ".join(map(quoted, names))


@dataclass
class ColumnSpec:
    type: str
    nullable: bool = True
    default: str | None = None
    kind: str = ""  # serial, or of identity: always, by default
    options: str = ""


@dataclass
class TableSpec:
    """Named: `keys` (UNIQUE), `indexes` (columns, unique), `checks` columns > 0, `foreign` (column, parent, action)."""

    columns: dict[str, ColumnSpec]
    primary: tuple[str, ...] = ()
    keys: dict[str, tuple[str, ...]] = field(default_factory=dict)
    indexes: dict[str, tuple[tuple[str, ...], str]] = field(default_factory=dict)
    checks: dict[str, str] = field(default_factory=dict)
    foreign: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    locks: dict[str, list[str]] = field(default_factory=dict)

    def used(self) -> set[str]:
        """The columns whose type, or presence, something of the table relies on."""
        return {*self.primary, *self.checks.values(), *(column for column, _, _ in self.foreign.values())}

    def without(self, column: str) -> None:
        del self.columns[column]
        self.keys = {name: columns for name, columns in self.keys.items() if column not in columns}
        self.indexes = {name: found for name, found in self.indexes.items() if column not in found[0]}
        self.checks = {name: found for name, found in self.checks.items() if found != column}
        self.foreign = {name: found for name, found in self.foreign.items() if found[0] != column}
        self.locks = {name: [found for found in columns if found != column] for name, columns in self.locks.items()}


@dataclass
class Spec:
    tables: dict[str, TableSpec] = field(default_factory=dict)
    sequences: dict[str, str] = field(default_factory=dict)  # name -> options
    views: dict[str, str] = field(default_factory=dict)  # name -> query, in an order in which they can be made

    def script(self) -> list[str]:
        """Statements that make it."""
        made = [f"CREATE SEQUENCE {quoted(name)} {options}" for name, options in self.sequences.items()]
        made += [_create(name, table) for name, table in self.tables.items()]
        for name, table in self.tables.items():
            for index, (columns, unique) in table.indexes.items():
                made.append(f"CREATE {unique} INDEX {quoted(index)} ON {quoted(name)} ({listed(columns)})")
            for key, (column, parent, action) in table.foreign.items():
                made.append(
                    f"ALTER TABLE {quoted(name)} ADD CONSTRAINT {quoted(key)} FOREIGN KEY ({quoted(column)}) "
                    f"REFERENCES {quoted(parent)}{action}"
                )
        for name, table in self.tables.items():
            for lock, covered in table.locks.items():
                if covered:
                    made.append(f"ALTER TABLE {quoted(name)} ADD LOCK {quoted(lock)} COVERS ({listed(covered)})")
        made += [f"CREATE VIEW {quoted(name)} AS {query}" for name, query in self.views.items()]
        return made

    def rows(self, count: int) -> list[str]:
        """Statements that fill its tables: no two rows have a value in common, foreign keys are NULL."""
        numbers = range(1, count + 1)
        return [
            f"INSERT INTO {quoted(name)} VALUES {', '.join(_row(table, i) for i in numbers)}"
            for name, table in self.tables.items()
        ]


def _create(name: str, table: TableSpec) -> str:
    parts = []
    for column, spec in table.columns.items():
        text = f"{quoted(column)} {'serial' if spec.kind == 'serial' else spec.type}"
        if spec.kind in ("always", "by default"):
            text += f" GENERATED {spec.kind} AS IDENTITY {spec.options}"
        if spec.default is not None:
            text += f" DEFAULT {spec.default}"
        parts.append(text + ("" if spec.nullable else " NOT NULL"))
    if table.primary:
        parts.append(f"PRIMARY KEY ({listed(table.primary)})")
    parts += [f"CONSTRAINT {quoted(key)} UNIQUE ({listed(columns)})" for key, columns in table.keys.items()]
    parts += [f"CONSTRAINT {quoted(key)} CHECK ({quoted(column)} > 0)" for key, column in table.checks.items()]
    return f"CREATE TABLE {quoted(name)} ({', '.join(parts)})"


_VALUES: dict[str, Callable[[int], str]] = {
    "smallint": str, "varchar(5)": lambda i: f"'x{i}'", "numeric(6,2)": str, "real": str, "boolean": lambda i: "true",
    "date": lambda i: f"'2024-01-{i:02}'", "timestamptz": lambda i: f"'2024-01-{i:02} 00:00+00'",
    "uuid": lambda i: f"'00000000-0000-0000-0000-0000000000{i:02}'", "jsonb": lambda i: f"'{i}'",
    "bytea": lambda i: rf"'\x{i:02}'", "timestamp": lambda i: f"'2024-01-{i:02} 00:00'",
}  # fmt: skip


def _row(table: TableSpec, number: int) -> str:
    foreign = {column for column, _, _ in table.foreign.values()}
    values = [
        "DEFAULT" if column.kind == "always" else "NULL" if name in foreign else _VALUES[FAMILY[column.type][0]](number)
        for name, column in table.columns.items()
    ]
    return f"({', '.join(values)})"


# --- drawing ---------------------------------------------------------------------------------------------------------


@st.composite
def schemas(draw: st.DrawFn) -> Spec:
    """A schema of up to four tables, with sequences, and views that may read views."""
    spec = Spec(sequences=draw(st.dictionaries(st.sampled_from(SEQUENCES), _options(), max_size=2)))
    for name in draw(st.lists(st.sampled_from(TABLES), unique=True, max_size=4)):
        spec.tables[name] = draw(_tables(name, tuple(spec.sequences)))
    for name in spec.tables:
        _draw_foreign(draw, spec, name)
    spec.views = draw(_views(spec))
    return spec


@st.composite
def _options(draw: st.DrawFn) -> str:
    increment = draw(st.sampled_from(("", "INCREMENT BY 3", "INCREMENT BY -1 MINVALUE -100 MAXVALUE 100")))
    kind = draw(st.sampled_from(("", "AS smallint", "AS integer")))
    start, rest = draw(st.sampled_from(("", "START WITH 7"))), draw(st.sampled_from(("", "CYCLE CACHE 5")))
    return f"{kind} {increment} {start} {rest}"


@st.composite
def _columns(draw: st.DrawFn, sequences: tuple[str, ...]) -> ColumnSpec:
    chain = draw(st.sampled_from(WIDENING))
    column = ColumnSpec(draw(st.sampled_from(chain)))
    column.default = draw(_defaults(column.type, sequences))
    column.nullable = draw(st.booleans())
    return column


def _defaults(type_: str, sequences: tuple[str, ...]) -> st.SearchStrategy[str | None]:
    found: list[str | None] = [None, *DEFAULTS[FAMILY[type_][0]]]
    if type_ == "bigint":
        found += [f"nextval('{quoted(name)}')" for name in sequences]
    return st.sampled_from(found)


@st.composite
def _tables(draw: st.DrawFn, name: str, sequences: tuple[str, ...]) -> TableSpec:
    columns = {
        found: draw(_columns(sequences))
        for found in draw(st.lists(st.just("a") | st.sampled_from(NAMES), unique=True, min_size=1, max_size=5))
    }
    first = next(iter(columns))
    kind = draw(st.sampled_from(("", "serial", "always", "by default")))
    if kind:
        options = draw(st.sampled_from(("", "(START WITH 5 INCREMENT BY 2)", "(CYCLE MAXVALUE 100)")))
        columns[first] = ColumnSpec("integer", False, None, kind, "" if kind == "serial" else options)
    table = TableSpec(columns)
    able = keyable(table)
    if draw(st.booleans()) and able:
        table.primary = tuple(draw(st.lists(st.sampled_from(able), unique=True, min_size=1, max_size=2)))
        for column in table.primary:
            columns[column].nullable = False
    if draw(st.booleans()) and able:
        table.keys[f"{name} key"] = tuple(draw(st.lists(st.sampled_from(able), unique=True, min_size=1, max_size=2)))
    if draw(st.booleans()) and integers(table):
        table.checks[f"{name} check"] = draw(st.sampled_from(integers(table)))
    for number in range(draw(st.integers(0, 2)) if able else 0):
        _draw_index(draw, table, f"{name}_index{number}")
    _draw_locks(draw, table)
    return table


def _draw_locks(draw: st.DrawFn, table: TableSpec) -> None:
    table.locks = {}
    for column in table.columns:
        lock = draw(st.sampled_from((None, None, "l1", "Lock 2")))
        if lock is not None and column not in table.primary:
            table.locks.setdefault(lock, []).append(column)


def keyable(table: TableSpec) -> list[str]:
    """The columns that keys and indexes may have: of integers and texts."""
    return [name for name, column in table.columns.items() if any(column.type in chain for chain in KEY_CHAINS)]


def integers(table: TableSpec) -> list[str]:
    return [name for name, column in table.columns.items() if column.type in WIDENING[0]]


def _draw_index(draw: st.DrawFn, table: TableSpec, name: str) -> None:
    able = keyable(table)
    columns = tuple(draw(st.lists(st.sampled_from(able), unique=True, min_size=1, max_size=2)))
    table.indexes[name] = (columns, draw(st.sampled_from(("", "UNIQUE"))))


def _draw_foreign(draw: st.DrawFn, spec: Spec, name: str, taken: tuple[str, ...] = ()) -> None:
    """A foreign key to any table with a key of one column, itself included: so they may go round in circles."""
    table = spec.tables[name]
    key_name = f"{name} fkey{len(taken)}"
    parents = [other for other, found in spec.tables.items() if len(found.primary) == 1]
    free = [name for name in NAMES if name not in (*taken, *table.columns)]
    if not parents or not free or not draw(st.booleans()):
        return
    parent = draw(st.sampled_from(parents))
    key = spec.tables[parent].columns[spec.tables[parent].primary[0]]
    table.columns[free[0]] = ColumnSpec(key.type)
    table.foreign[key_name] = (free[0], parent, draw(st.sampled_from(ACTIONS)))


@st.composite
def _views(draw: st.DrawFn, spec: Spec) -> dict[str, str]:
    """Queries on tables, on two of them, and on views."""
    sources = {name: list(table.columns) for name, table in spec.tables.items()}
    made: dict[str, str] = {}
    for name in draw(st.lists(st.sampled_from(VIEWS), unique=True, max_size=3)):
        if not sources:
            break
        source = draw(st.sampled_from(sorted(sources)))
        column = draw(st.sampled_from(sources[source]))
        one, at = quoted(column), quoted(source)
        query, columns = draw(
            st.sampled_from((
                (f"SELECT {one} AS x FROM {at} WHERE {one} IS NOT NULL", ["x"]),
                (f"SELECT * FROM {at} AS z", sources[source]),
                (f"SELECT count(*) AS n, z.{one} FROM {at} z GROUP BY z.{one}", ["n", column]),
                (f"SELECT p.{one} AS p, q.{one} AS q FROM {at} p LEFT JOIN {at} q ON p.{one} = q.{one}", ["p", "q"]),
                (f"WITH c AS (SELECT {one} AS k FROM {at}) SELECT k FROM c UNION ALL SELECT k FROM c", ["k"]),
            ))
        )  # fmt: skip
        if column == "n" or ("jsonb" in query and "GROUP" in query):
            continue
        made[name] = query
        sources[name] = list(columns)
    return made


# --- later -----------------------------------------------------------------------------------------------------------


@st.composite
def successors(draw: st.DrawFn, before: Spec) -> Spec:
    """What the schema may become by changes that a table with rows takes today."""
    spec = copy.deepcopy(before)
    for name in list(spec.tables):
        if draw(st.integers(0, 4)) == 0:
            _drop_table(spec, name)
    for name in draw(st.lists(st.sampled_from(TABLES), unique=True, max_size=1)):
        if name not in before.tables:
            spec.tables[name] = draw(_tables(name, ()))
            _draw_foreign(draw, spec, name)
    for name, table in spec.tables.items():
        if name in before.tables:
            _alter(draw, name, table, before.tables[name])
    for name in spec.tables:
        if name in before.tables:
            _draw_foreign(draw, spec, name, tuple(before.tables[name].columns))
    _change_sequences(draw, spec)
    spec.views = draw(_views(spec))
    return spec


def _drop_table(spec: Spec, name: str) -> None:
    del spec.tables[name]
    for table in spec.tables.values():
        table.foreign = {key: found for key, found in table.foreign.items() if found[1] != name}


def _alter(draw: st.DrawFn, name: str, table: TableSpec, before: TableSpec) -> None:
    relied_on = table.used() - set(table.checks.values())
    # Of those that are there before, since the rows have NULL in them, whatever becomes of the keys.
    foreign = {column for column, _, _ in before.foreign.values()}
    for column, spec in list(table.columns.items()):
        action = draw(st.sampled_from(("keep", "keep", "drop", "widen", "default", "null", "not null", "kind")))
        if action == "drop" and column not in table.primary and len(table.columns) > 1:
            table.without(column)
        elif action == "widen" and column not in relied_on and not spec.kind:
            chain = FAMILY[spec.type]
            spec.type = draw(st.sampled_from(chain[chain.index(spec.type) :]))
        elif action == "default" and not spec.kind:
            spec.default = draw(_defaults(spec.type, ()))
        elif action == "null" and column not in table.primary and not spec.kind:
            spec.nullable = True
        elif action == "not null" and column not in foreign:
            spec.nullable = False
        elif action == "kind" and spec.kind:
            spec.kind = draw(st.sampled_from(("", "serial")))
    for listing in (table.keys, table.indexes, table.checks, table.foreign):
        for element in list(listing):
            if draw(st.integers(0, 3)) == 0:
                del listing[element]
    # Of the columns that are there: rows of a new one have all the same value.
    if draw(st.booleans()) and keyable(table):
        _draw_index(draw, table, f"{name}_later")
    positive = [column for column in integers(table) if column not in foreign]
    if draw(st.booleans()) and positive:
        table.checks[f"{name} later check"] = draw(st.sampled_from(positive))
    # A name that was another column's would be that column, of another type.
    free = [found for found in NAMES if found not in (*table.columns, *before.columns)]
    if draw(st.booleans()):
        _draw_locks(draw, table)
    if draw(st.booleans()) and free:
        added = draw(_columns(()))
        added.nullable = added.nullable or added.default is None
        table.columns[free[-1]] = added


def _change_sequences(draw: st.DrawFn, spec: Spec) -> None:
    used = {column.default for table in spec.tables.values() for column in table.columns.values()}
    for name in SEQUENCES:
        needed = f"nextval('{quoted(name)}')" in used
        action = draw(st.sampled_from(("keep", "keep", "drop", "make")))
        if action == "drop" and not needed:
            spec.sequences.pop(name, None)
        elif action == "make":
            spec.sequences[name] = draw(_options())
