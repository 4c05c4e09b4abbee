"""Statements on one row named by its primary key: the forms that skip all general machinery.

A `PointLookup` is a whole autocommit SELECT in one generated function, or what a SELECT ... FOR UPDATE reads. A
`PointWrite` says key and new image of an autocommit INSERT, UPDATE or DELETE whose constraints can be judged on the row
alone; the session commits it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final, Literal, Protocol

from msgspec.structs import replace

from instar import errors
from instar.catalog.catalog import CatalogSnapshot
from instar.catalog.descriptors import Layout, Table
from instar.catalog.layouts import Layouts
from instar.encoding import keys
from instar.encoding.generate import compile_source
from instar.encoding.rows import Tags
from instar.lazily import computed_once
from instar.sql import tree
from instar.sql.binder import bind_defaults
from instar.sql.execution import Row
from instar.sql.executor_dml import insert_image, returned_columns, single_row, updated_image
from instar.sql.expressions import Compiler, Frame, FrameLayout, Scope, reads_context
from instar.sql.functions import Context
from instar.sql.integrity import Rules
from instar.sql.on_conflict import OnConflict, draws_late
from instar.sql.plan import Access, InsertPlan, LockRows, Plan, Project, QueryPlan, is_single
from instar.sql.traversal import walk
from instar.store.engine import MOVED, ROW_TOMBSTONE, Store, rowset_prefix
from instar.store.lock_modes import Mode
from instar.tables.derivations import derived_columns
from instar.tables.resolver import LAYOUT_OFFSET, tagged_resolver
from instar.tables.rowset import Decoder, TableReader
from instar.types import INTEGER_RANGES, STRINGS, Kind, Type
from instar.values import to_python

FALLBACK: Final = object()
"""What a fast path returns when the general one must run."""

Written = tree.Insert | tree.Update | tree.Delete


class Own(Protocol):
    """What a transaction has written itself."""

    def hides(self, version: int, table: int, key: bytes | None) -> bool:
        """Whether what is committed at a key of a table (None: at any) may not be what is to be seen, under this
        catalog version."""
        ...


LookUp = Callable[[Store, Sequence[object], Own | None], Any]

# Parameters of exactly this class are internal values of these types as they are.
_CLASSES: dict[Kind, str] = {Kind.BOOLEAN: "bool", Kind.BYTEA: "bytes"} | dict.fromkeys(INTEGER_RANGES, "int")

# So many layouts that have come since the last one met are looked at.
_UNSEEN = 8

# What is read at once through an index: more may take long, which the general way lets be cancelled.
_MOST_ENTRIES = 64

_BEGIN = """
def fast(store, parameters, own=None):
    try:
        {names}= parameters
    except ValueError:
        return FALLBACK
    if {unfit}:
        return FALLBACK
    key = encode({key})
    if {too_long}:
        return FALLBACK
"""
_LOOKUP = (
    _BEGIN
    + """
    if own is not None and own.hides(VERSION, {table}, key[{prefix}:]):
        return FALLBACK
    value = store.newest(key, VERSION)
    if value is None:
        return []
    if value is MOVED:
        return FALLBACK
    {decode}
    return [{row}]

def older(value):
    if value[12] & TOMBSTONE:
        return []
    {migrate}
    r = (decoders.get(value[12:16]) or learn(value))(value)
    return [{row}]
"""
)
_INDEX_LOOKUP = (
    _BEGIN
    + """
    if own is not None and own.hides(VERSION, {table}, None):
        return FALLBACK
    values = store.newest_under(key, ROWS, {most}, VERSION)
    if values is None or values is MOVED:
        return FALLBACK
    found = []
    for value in values:
        r = decode(value)
        if r is None:
            {migrate}
            r = (decoders.get(value[12:16]) or learn(value))(value)
        found.append({row})
    return found
"""
)

# Of a look-up that locks: the store key that it has looked at.
_KEY_OF = """
def key_of(parameters):
    {names}= parameters
    return encode({key})
"""

_NEWEST_FIRST = """r = decode(value)
    if r is None:
        return older(value)"""
# Deleted rows bear a flag in their tag, by which there is no decoder.
_BY_LAYOUT = """decode = decoders.get(value[12:16])
    if decode is None:
        return older(value)
    r = decode(value)"""


class PointLookup:
    """`SELECT columns FROM table WHERE primary key = parameters`, or leading columns of an index, on the newest state.

    `fast(store, parameters, own)` takes Python objects and gives a list of Python tuples, or FALLBACK: another catalog
    version, a parameter that needs conversion, something that `own` hides. `own` is the transaction that the query is
    part of, if it has written something. `mode`: in which the query is to lock the row that it finds, if it is; which
    is for the session to do, at the store key `key_of(parameters)`, of parameters that `fast` has served.
    """

    def __init__(
        self,
        access: Access,
        ordinals: Sequence[int],
        parameters: Sequence[Type],
        layouts: Layouts,
        mode: Mode | None = None,
    ) -> None:
        self.table = table = access.table
        self.mode = mode
        path = access.path
        types = [table.columns[ordinal].type for ordinal in path.columns[: len(path.equal)]]
        descending = [] if path.index is None else [part.descending for part in path.index.columns[: len(types)]]
        prefix = rowset_prefix(table.rowset if path.index is None else path.index.rowset)
        longest = keys.MAX_PRIMARY_KEY_BYTES if path.index is None else keys.MAX_INDEX_PART_BYTES
        self._reader = reader = TableReader(table, ordinals, layouts)
        self.version = 0  # of the catalog at which it serves
        self._decoders: dict[bytes, Decoder] = {}  # by a row's tag
        self._scope: dict[str, Any] = {
            "FALLBACK": FALLBACK,
            "MOVED": MOVED,
            "VERSION": None,
            "encode": keys.compile_encoder(types, descending, prefix=prefix),
            "ROWS": rowset_prefix(table.rowset),
            "TOMBSTONE": ROW_TOMBSTONE,
            "decoders": self._decoders,
            "learn": self._learn,
        }
        values = [alternatives[0] for alternatives in access.path.equal]
        template = _INDEX_LOOKUP if path.index is not None else _LOOKUP if mode is None else _LOOKUP + _KEY_OF
        self._source = template.format(
            names="".join(f"p{index}, " for index in range(len(parameters))) or "() ",
            unfit=" or ".join(unfit(index, type_) for index, type_ in enumerate(parameters)) or "False",
            key=self._key(values, len(parameters)),
            too_long="False"
            if path.index is None and keys.is_fixed_size(types)
            else f"len(key) > {len(prefix) + longest}",
            table=table.id,
            prefix=len(prefix),
            # A row that is to be migrated by who reads it is read by the general way, which does that.
            migrate="return FALLBACK" if table.migration == "read" else "pass",
            row=self._row([table.columns[ordinal].type for ordinal in ordinals]),
            most=_MOST_ENTRIES,
            decode="{decode}",
        )
        # Rows come into the newest layout: one that is in it pays for no more than the comparison, however many others
        # there are. So do those of layouts where the wanted columns stand as they do in this one.
        self._newest_first = True
        self._alike = Tags(table.layout.id)
        self._scope["decode"] = tagged_resolver(table.layout, reader.wanted, self._alike)
        self.fast: LookUp = self._made()

    def _made(self) -> LookUp:
        decode = _NEWEST_FIRST if self._newest_first else _BY_LAYOUT
        exec(compile_source(self._source.replace("{decode}", decode), "point lookup"), self._scope)
        made: LookUp = self._scope["fast"]
        return made

    def key_of(self, parameters: Sequence[object]) -> bytes:
        """The store key of the row, of a look-up that locks."""
        key: bytes = self._scope["key_of"](parameters)
        return key

    def revalidate(self, catalog_version: int, table: Table) -> None:
        """The lookup holds at this catalog version, where `table` is the table's."""
        self.version = catalog_version  # before anybody is served at it
        self._scope["VERSION"] = catalog_version
        if self._newest_first and table.layout.id << 8 not in self._alike:
            self._met(table.layout)

    def _met(self, newest: Layout) -> None:
        """Another layout is the newest. If its rows are read otherwise, that which was is one of several now."""
        own, reader = self.table.layout, self._reader
        decode = reader.decoder_of(own)
        if reader.decoder_of(newest) is not decode:
            self._newest_first = False
            self._decoders[tag_of(own.id)] = decode
            self.fast = self._made()
            return
        # Few rows are in those that came and went unseen, but without them what comes after them is no run.
        for number in range(max(newest.id - _UNSEEN, (self._alike.high >> 8) + 1), newest.id):
            layout = reader.found_layout(number)
            if layout is not None and reader.decoder_of(layout) is decode:
                self._alike.add(number)
        self._alike.add(newest.id)

    def _learn(self, value: bytes) -> Decoder:
        """The decoder of the layout that a stored value is in."""
        tag = value[LAYOUT_OFFSET : LAYOUT_OFFSET + 4]
        layout = int.from_bytes(tag, "little") >> 8
        decode = self._decoders[tag] = self._reader.decoder(layout)
        if decode is self._reader.decoder_of(self.table.layout):
            self._alike.add(layout)
        return decode

    def _key(self, values: Sequence[tree.Expr], parameters: int) -> str:
        if [getattr(value, "index", None) for value in values] == list(range(parameters)):
            return "parameters"
        names = []
        for position, value in enumerate(values):
            if isinstance(value, tree.Parameter):
                names.append(f"p{value.index}")
            else:
                assert isinstance(value, tree.Literal)
                self._scope[f"k{position}"] = value.value
                names.append(f"k{position}")
        return "(" + "".join(f"{name}, " for name in names) + ")"

    def _row(self, types: Sequence[Type]) -> str:
        """Source of the Python tuple of a row `r`."""
        converters = {
            number: convert for number, type_ in enumerate(types) if (convert := to_python(type_)) is not None
        }
        if not converters:
            return "r"
        self._scope |= {f"f{number}": convert for number, convert in converters.items()}
        outputs = "".join(
            f"None if r[{number}] is None else f{number}(r[{number}]), " if number in converters else f"r[{number}], "
            for number in range(len(types))
        )
        return f"({outputs})"


def tag_of(layout: int) -> bytes:
    """What the header of a row in this layout says of it."""
    return (layout << 8).to_bytes(4, "little")


def internal_class(type_: Type) -> str | None:
    """The name of the class whose objects are internal values of the type as they are, if there is one."""
    return "str" if type_.kind in STRINGS else _CLASSES.get(type_.kind)


def unfit(index: int, type_: Type) -> str:
    """Source that is true where parameter `index` is not an internal value of its type as it is."""
    if type_.kind in STRINGS:
        # A NUL is refused; a length is checked where there is one.
        length = "" if type_.length is None else f" or len(p{index}) > {type_.length}"
        return f"p{index}.__class__ is not str or '\\0' in p{index}{length}"
    if type_.kind not in _CLASSES:
        return "True"
    test = f"p{index}.__class__ is not {_CLASSES[type_.kind]}"
    if type_.kind in INTEGER_RANGES:
        low, high = INTEGER_RANGES[type_.kind]
        test += f" or not {low} <= p{index} <= {high}"
    return test


def point_lookup(plan: Plan, parameters: Sequence[Type], layouts: Layouts) -> PointLookup | None:
    """The fast form of a plan, if it has one."""
    if not isinstance(plan, QueryPlan) or not isinstance(plan.root, Project):
        return None
    access, mode = plan.root.child, None
    if isinstance(access, LockRows):
        mode = access.tables[0].lock.mode  # there is one table alone
        access = access.child
    if not isinstance(access, Access) or access.filter or not (_is_point(access) or _is_of_index(access)):
        return None
    if not all(isinstance(output, tree.ColumnRef) for output in plan.root.outputs):
        return None
    values = [alternatives[0] for alternatives in access.path.equal]
    if not all(isinstance(value, tree.Parameter) or _is_key_literal(value) for value in values):
        return None
    if any(unfit(0, type_) == "True" for type_ in parameters):
        return None
    ordinals = [output.ordinal for output in plan.root.outputs if isinstance(output, tree.ColumnRef)]
    return PointLookup(access, ordinals, parameters, layouts, mode)


def _is_key_literal(value: tree.Expr) -> bool:
    return isinstance(value, tree.Literal) and value.value is not None


def _is_point(access: Access) -> bool:
    path = access.path
    is_key = path.index is None and path.unique and all(is_single(values) for values in path.equal)
    return is_key and access.level is None


def _is_of_index(access: Access) -> bool:
    """Whether it is all that stands in an index under values of its leading columns."""
    path = access.path
    if path.index is None or not path.equal or path.next_to or path.reverse:
        return False
    return all(is_single(values) for values in path.equal) and access.level is None and not access.versions


class PointWrite:
    """An autocommit write of one row. The session reads the stored row, asks for the new image, and commits.

    `operation` insert: `image(None, frame)` is the new row, `key_of(image)` its key, `duplicate(image)` the error if
    a row stands there. Update and delete: `key(frame)` is the key sought (None: no row can have it) and
    `image(old, frame)` the new row (None: delete). `changed` are the ordinals that an update sets, and of what is
    derived of these. Images have all columns. `assigned` are the ordinals that an update sets and a function to their
    new values, which needs nothing of the row, where only NOT NULL is to be judged, and nothing returned; else None.
    `returning(image, frame)` is what the statement returns, in `columns`, of the new row or of that which is deleted.
    `conflict`: what an insert does about rows in its way, where it says so; `changed` are of that then.
    """

    def __init__(
        self,
        operation: Literal["insert", "update", "delete"],
        statement: Written,
        layout: FrameLayout,
        rules: Rules,
        key: Callable[[Frame], bytes | None],
        compute: Callable[[Row, Frame], Row] | None,
        changed: frozenset[int],
        assigned: tuple[list[int], Callable[[Row, Frame], Row]] | None = None,
        conflict: OnConflict | None = None,
    ) -> None:
        self.operation = operation
        self.statement = statement
        self.table = table = statement.target.table
        self.key = key
        self.changed = changed
        self.assigned = assigned
        self.conflict = conflict
        self.family: Final = object()  # one for the versions of its table of the same shape
        self._layout = layout
        self._rules = rules.of(table)
        self._compute = compute
        scope = Scope({(statement.target.relation, ordinal): ordinal for ordinal in range(len(table.columns))})
        outputs = [output.expr for output in statement.returning]
        self.returning = Compiler(scope, layout).row(outputs) if outputs else None
        self.columns = returned_columns(statement.returning)
        self.key_of = self._rules.key
        self.checks_read_context = self._rules.checks_read_context

    @computed_once
    def reads_context(self) -> bool:
        """Whether the statement reads a clock, or the session's time zone."""
        return reads_context(self.statement)

    @computed_once
    def draws(self) -> bool:
        """Whether the statement takes values of sequences, sets them, or asks for what its session has taken."""
        return any(isinstance(found, tree.OfSequence) for found in walk(self.statement))

    @computed_once
    def knows_numbers(self) -> bool:
        """Whether the statement sets values of sequences, or asks for what its session has taken."""
        return any(isinstance(found, tree.CurrentValue | tree.SetValue) for found in walk(self.statement))

    def frame(self, parameters: Sequence[object], functions: Context, execution: object) -> Frame:
        """`parameters` are internal values; `execution` needs what `Execution` has (defaults.py)."""
        return self._layout.frame(parameters, functions, execution)

    def image(self, old: Row | None, frame: Frame) -> Row | None:
        """The new row, which keeps to NOT NULL (23502) and CHECK (23514); None: the row is deleted."""
        if self._compute is None:
            return None
        new = self._compute(old or (), frame)
        return self._rules.checked(new, frame[self._layout.execution])  # type: ignore[arg-type]  # see `frame`

    def updated(self, old: Row, proposed: Row, frame: Frame) -> Row | None:
        """What ON CONFLICT makes of the row `old`, which stands in the way of `proposed`; errors as of `image`. None:
        it is left alone."""
        assert self.conflict is not None
        new = self.conflict.updated(old, proposed, frame)
        if new is None:
            return None
        return self._rules.checked(new, frame[self._layout.execution])  # type: ignore[arg-type]  # see `frame`

    def duplicate(self, image: Row) -> errors.Error:
        """23505 for the primary key of `image`."""
        return self._rules.duplicate(self.table.primary_key_name, self._rules.key_ordinals, image)

    def at(self, table: Table) -> PointWrite:
        """The same write, as it is, for a version of its table of the same shape (shape.py)."""
        made = PointWrite.__new__(PointWrite)
        made.__dict__ |= self.__dict__  # `copy` takes some microseconds longer
        made.table = table
        return made

    def under(self, table: Table, rules: Rules, catalog: CatalogSnapshot) -> PointWrite | None:
        """The same write for another version of its table, which the statement cannot tell from its own (holding.py)
        but for columns that it does not name; None if it has no lean form there."""
        if any(column.is_being_given for column in table.columns):
            return None  # every UPDATE gives them values
        target = replace(self.statement.target, table=table)
        if self.conflict is not None:
            return None  # its index may be another one
        if isinstance(self.statement, tree.Insert):
            defaults = bind_defaults(table, self.statement.columns, catalog)
            return _insert(replace(self.statement, target=target, defaults=defaults), self._layout, rules)
        return _modify(replace(self.statement, target=target), self.key, self._layout, rules)


def point_write(plan: Plan, parameters: int, rules: Rules) -> PointWrite | None:
    """The lean form of a DML plan, if what it must keep to can be judged on its one row, and the columns that it sets
    are all that change."""
    if isinstance(plan, QueryPlan) or plan.subplans or plan.statement.target.kept:
        return None
    layout = FrameLayout(parameters)
    if isinstance(plan, InsertPlan):
        return _insert(plan.statement, layout, rules)
    root = plan.root
    if not isinstance(root, Access) or root.filter or not _is_point(root):
        return None
    return _modify(plan.statement, _key(root, layout), layout, rules)


def _modify(
    statement: tree.Update | tree.Delete, key: Callable[[Frame], bytes | None], layout: FrameLayout, rules: Rules
) -> PointWrite | None:
    table = statement.target.table
    if any(column.is_unproven for column in table.columns):
        return None
    if isinstance(statement, tree.Delete):
        return PointWrite("delete", statement, layout, rules, key, None, frozenset())
    changed = frozenset(ordinal for ordinal, _ in statement.assignments)
    derived = derived_columns(table)
    changed |= {found.ordinal for found in derived if not changed.isdisjoint(found.sources)}
    if _moves(table, changed):
        return None
    # The row is read as a whole.
    scope = Scope({(statement.target.relation, ordinal): ordinal for ordinal in range(len(table.columns))})
    image = updated_image(Compiler(scope, layout), statement, statement.assignments)
    # There may be rows with NULL in such a column still, and whoever writes one is held to it.
    unproven = any(column.nullable and column.refuses_null for column in table.columns)
    judged = derived or unproven or statement.returning or rules.of(table).has_checks
    assigned = None if judged else _assigned(statement.assignments, layout)
    return PointWrite("update", statement, layout, rules, key, image, changed, assigned)


def _assigned(
    assignments: Sequence[tuple[int, tree.Expr]], layout: FrameLayout
) -> tuple[list[int], Callable[[Row, Frame], Row]] | None:
    """What `PointWrite` calls so."""
    # In the order of columns, as images are made: of two values that do not fit, the same one is told.
    assignments = sorted(assignments, key=itemgetter(0))
    exprs = [expr for _ordinal, expr in assignments]
    if any(isinstance(node, tree.ColumnRef) for expr in exprs for node in walk(expr)):
        return None
    return [ordinal for ordinal, _expr in assignments], Compiler(Scope({}), layout).row(exprs)


def _key(access: Access, layout: FrameLayout) -> Callable[[Frame], bytes | None]:
    """A function that gives the one key that the access names, without prefix; None for a NULL, or what is too long."""
    path = access.path
    types = [access.table.columns[ordinal].type for ordinal in path.columns]
    key = Compiler(Scope({}), layout).applied(keys.compile_encoder(types), [values[0] for values in path.equal])
    if keys.is_fixed_size(types):
        return key

    def fitting(frame: Frame) -> bytes | None:
        found = key(frame)
        return None if found is None or len(found) > keys.MAX_PRIMARY_KEY_BYTES else found

    return fitting


def _insert(statement: tree.Insert, layout: FrameLayout, rules: Rules) -> PointWrite | None:
    table, action = statement.target.table, statement.on_conflict
    row = single_row(statement)
    if row is None or any(column.is_unproven for column in table.columns):
        return None
    conflict = None
    if action is not None:
        conflict = OnConflict(statement, action, lambda scope: Compiler(scope, layout))
        if _moves(table, conflict.changed) or draws_late(action, statement.returning):
            return None
    image = _inserted(statement, insert_image(statement, row), layout)
    changed = frozenset[int]() if conflict is None else conflict.changed
    return PointWrite("insert", statement, layout, rules, lambda frame: None, image, changed, conflict=conflict)


def _inserted(statement: tree.Insert, columns: Sequence[tree.Expr], layout: FrameLayout) -> Callable[[Row, Frame], Row]:
    """The function that gives the new row. What the statement gives is evaluated before defaults that may fail, or draw
    a number, as it is where rows come from elsewhere."""
    compiler = Compiler(Scope({}), layout)
    rest = [ordinal for ordinal in range(len(columns)) if ordinal not in statement.columns]
    if all(isinstance(columns[ordinal], tree.Literal) for ordinal in rest):
        return compiler.row(columns)
    order = [*statement.columns, *rest]
    make = compiler.row([columns[ordinal] for ordinal in order])
    places = [order.index(ordinal) for ordinal in range(len(columns))]

    def image(old: Row, frame: Frame) -> Row:
        made = make(old, frame)
        return tuple([made[place] for place in places])

    return image


def _moves(table: Table, changed: frozenset[int]) -> bool:
    """Whether a change of these columns moves a row."""
    return any(table.columns[ordinal].id in table.primary_key for ordinal in changed)
