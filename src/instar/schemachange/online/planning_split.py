"""ALTER TABLE ... SPLIT: the descriptors of R and S (EDBT 2006, §5.1).

Their columns bear the ids that they have in the source, so that defaults and checks mean the same there. R has the
split columns, whether they are asked for or not: what is unwanted is hidden, and goes with the switch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from instar import errors
from instar.catalog.descriptors import (
    Check,
    Column,
    Index,
    IndexColumn,
    Layout,
    MadeBySplit,
    Step,
    StepKind,
    Table,
    Unseen,
)
from instar.catalog.naming import generated_name
from instar.schemachange import wanted as want
from instar.schemachange.creation import FIRST_LAYOUT
from instar.schemachange.draft import Draft
from instar.schemachange.elements import Element, ElementKind, Phase, phases
from instar.schemachange.online.kept_views import require_keepable
from instar.schemachange.online.planning import (
    columns_of,
    plan_transformation,
    require_carried,
    require_exact,
    require_no_views,
    require_source,
    require_ungenerated,
    take_names,
)
from instar.schemachange.online.seeing import seen, without_columns
from instar.schemachange.stages import Move, Plan, Stage
from instar.types import BIGINT, BOOLEAN

_COUNTER, _CONSISTENT = "counter", "consistent"  # names of hidden columns; never found by name


def split_table(draft: Draft, wanted: want.SplitTable) -> Plan:
    """The plan of a split. Errors as of `require_source`; 42703, 42701, 42P16 where the columns make no split; 42P07;
    2BP01 naming indexes and checks that stand on columns of both sides."""
    source = draft.find(Table, wanted.table)
    require_source(draft, source)
    require_ungenerated(source)
    on = columns_of(source, wanted.on, "the split columns")
    for column in on:
        require_exact(column, "splitting by column")
    of_r = columns_of(source, wanted.r.columns, f'table "{wanted.r.name}"')
    of_s = columns_of(source, wanted.s.columns, f'table "{wanted.s.name}"')
    _require_whole(source, wanted, of_r, of_s)
    lacking = [column.name for column in on if column not in of_r]
    if lacking:
        # Some want just that: what S has is not to be told of single rows any more.
        draft.notices.append(
            f'table "{wanted.r.name}" is without {", ".join(lacking)}: nobody can tell which rows of '
            f'"{wanted.s.name}" belong to its rows'
        )
    made = MadeBySplit(
        source=source.id,
        r=draft.ids.new_id(),
        s=draft.ids.new_id(),
        on=tuple(column.id for column in on),
        counter=source.next_id,
        consistent=source.next_id + 1,
        repair=wanted.options.repair,
        pause_rows=wanted.options.pause_rows,
        becomes=wanted.r.name if wanted.in_place else None,
        strategy=wanted.options.strategy,
        grace=wanted.options.grace,
    )
    describe = _Described(draft, source, made, on)
    s = describe.s(wanted.s.name, of_s, {column.id for column in of_r})
    if wanted.in_place:
        keys = describe.keys(wanted.r.name, tuple(column.id for column in of_r))
        return _in_place(draft, source, made, keys, s, keep_views=wanted.options.keep_views)
    require_no_views(draft, source)
    r = describe.r(wanted.r.name, of_r)
    _require_placed(source, (r, s))
    shown = [msgspec.structs.replace(target, **seen(target)) for target in (r, s)]
    require_carried(draft, made, (source,), shown, keep_views=wanted.options.keep_views)
    if wanted.options.keep_views:
        require_keepable(made, (source,), shown)
    return plan_transformation(draft, made, (source,), (r, s), keep_views=wanted.options.keep_views)


def _in_place(draft: Draft, source: Table, made: MadeBySplit, r: Table, s: Table, *, keep_views: bool) -> Plan:
    """The source becomes R: with the switch it loses what is S's alone. `r` has what propagation needs of it, and goes
    then (§5.2)."""
    assert r.unseen is not None
    gone = [column.id for column in source.columns if column.id not in r.unseen.shown]
    require_no_views(draft, source, gone)
    after = without_columns(source, gone)
    _require_placed(source, (after, s))
    shown = msgspec.structs.replace(s, **seen(s))
    require_carried(draft, made, (source,), (after, shown), keep_views=keep_views)
    if keep_views:
        require_keepable(made, (source,), (msgspec.structs.replace(after, name=r.name), shown))
    left = phases(after)
    moves = [Move(element, phase, Phase.ABSENT) for element, phase in phases(source).items() if element not in left]
    moves.sort(key=lambda move: move.element.kind is ElementKind.COLUMN)  # what stands on columns goes first
    moves.append(Move(Element(ElementKind.TRANSFORMATION, source.id, source.next_id), Phase.WRITE_ONLY, Phase.PUBLIC))
    switch = Stage(moves=tuple(moves), drops=(r.id,), reveals=(s.id,))
    return plan_transformation(draft, made, (source,), (r, s), keep_views=keep_views, switch=switch)


def _require_whole(source: Table, wanted: want.SplitTable, of_r: tuple[Column, ...], of_s: tuple[Column, ...]) -> None:
    """42P16 if a column would be lost, or S would have nothing but the split columns."""
    if wanted.r.name == wanted.s.name:
        raise errors.error(errors.DUPLICATE_TABLE, f'table name "{wanted.r.name}" specified more than once')
    for column in source.columns:
        if not column.hidden and column not in of_r and column not in of_s:
            raise errors.error(
                errors.INVALID_TABLE_DEFINITION,
                f'column "{column.name}" of table "{source.name}" is in neither "{wanted.r.name}" nor '
                f'"{wanted.s.name}"',
                hint="Give it to one of them, or drop it first.",
            )
    for column in source.columns:
        if column.id in source.primary_key and column not in of_r:
            raise errors.error(
                errors.INVALID_TABLE_DEFINITION,
                f'column "{column.name}" of the primary key of table "{source.name}" is not in "{wanted.r.name}", '
                "whose primary key it is to be",
            )
    missing = next((name for name in wanted.on if all(column.name != name for column in of_s)), None)
    if missing is not None:
        raise errors.error(
            errors.INVALID_TABLE_DEFINITION,
            f'split column "{missing}" is not a column of "{wanted.s.name}", whose primary key it is to be',
        )
    if all(column.name in wanted.on for column in of_s):
        raise errors.error(
            errors.INVALID_TABLE_DEFINITION, f'table "{wanted.s.name}" would have no column but the split columns'
        )


class _Described:
    """The descriptors of the targets of one split."""

    def __init__(self, draft: Draft, source: Table, made: MadeBySplit, on: tuple[Column, ...]) -> None:
        self._draft = draft
        self._source = source
        self._made = made
        self._on = on

    def keys(self, name: str, shown: tuple[int, ...]) -> Table:
        """Of R, what the rules ask for: keys, split values, timestamps. `shown`: what the source keeps."""
        needed = {*self._source.primary_key, *self._made.on}
        columns = tuple(_settled(column, bare=True) for column in self._source.columns if column.id in needed)
        indexes = [self._on_index(name)]
        key, key_name = self._source.primary_key, self._source.primary_key_name
        return self._table(self._made.r, name, columns, key, key_name, indexes, shown)

    def r(self, name: str, wanted: tuple[Column, ...]) -> Table:
        """R, with an index on the split columns, by which the rows of a split value are found."""
        others = [column for column in self._on if column not in wanted]
        columns = (*map(_settled, wanted), *(_settled(column, hidden=True) for column in others))
        indexes = self._indexes({column.id for column in columns}, set(), self._made.r)
        if not any(_is_on(index, self._made.on) for index in indexes):
            indexes.append(self._on_index(name))
        shown = tuple(column.id for column in wanted)
        key_name = self._source.primary_key_name
        return self._table(self._made.r, name, columns, self._source.primary_key, key_name, indexes, shown)

    def _on_index(self, name: str) -> Index:
        parts = tuple(IndexColumn(column) for column in self._made.on)
        label = generated_name(name, [column.name for column in self._on], "idx", self._draft.name_taken)
        rowset = self._draft.ids.new_rowset(self._made.r)
        return Index(id=self._made.consistent + 1, name=label, columns=parts, rowset=rowset)

    def s(self, name: str, wanted: tuple[Column, ...], of_r: set[int]) -> Table:
        """S, whose primary key are the split columns. What is R's too has its sequence there."""
        columns = tuple(_settled(column, key=column.id in self._made.on, shared=column.id in of_r) for column in wanted)
        indexes = self._indexes({column.id for column in columns}, of_r | set(self._source.primary_key), self._made.s)
        shown = tuple(column.id for column in wanted)
        hidden = (
            Column(id=self._made.counter, name=_COUNTER, type=BIGINT, nullable=False, hidden=True),
            Column(id=self._made.consistent, name=_CONSISTENT, type=BOOLEAN, nullable=False, hidden=True),
        )
        key_name = generated_name(name, (), "pkey", self._draft.name_taken)
        return self._table(self._made.s, name, (*columns, *hidden), self._made.on, key_name, indexes, shown)

    def _table(
        self,
        number: int,
        name: str,
        columns: tuple[Column, ...],
        key: tuple[int, ...],
        key_name: str,
        indexes: list[Index],
        shown: tuple[int, ...],
    ) -> Table:
        target = Table(
            id=number,
            name=name,
            version=1,
            columns=columns,
            primary_key=key,
            primary_key_name=key_name,
            rowset=self._draft.ids.new_rowset(number),
            layout=Layout(FIRST_LAYOUT, tuple((column.id, column.type) for column in columns)),
            oldest_layout=FIRST_LAYOUT,
            indexes=tuple(indexes),
            checks=tuple(self._checks({column.id for column in columns if not column.hidden})),
            steps=(Step(version=1, kind=StepKind.CREATE_TABLE, statement=self._draft.statement),),
            next_id=self._made.consistent + 2,
            migration=self._source.migration,
            compaction_share=self._source.compaction_share,
            unseen=Unseen(made=self._made, shown=shown),
        )
        return take_names(self._draft, target, (self._source,))

    def _indexes(self, columns: set[int], others: set[int], target: int) -> list[Index]:
        """The source's indexes on these columns, but for those that the other target has: all `others`' columns."""
        made = []
        for index in self._source.indexes:
            parts = {part.column for part in index.columns}
            if parts <= columns and not parts <= others:
                made.append(msgspec.structs.replace(index, rowset=self._draft.ids.new_rowset(target)))
        return made

    def _checks(self, columns: set[int]) -> Iterator[Check]:
        return (check for check in self._source.checks if columns.issuperset(check.columns))


def _require_placed(source: Table, targets: Iterable[Table]) -> None:
    """2BP01 if an index or a check of the source stands on columns that no target has together."""
    indexes = {index.id for target in targets for index in target.indexes}
    checks = {check.id for target in targets for check in target.checks}
    left = [f"index {index.name}" for index in source.indexes if index.id not in indexes]
    left += [f"constraint {check.name}" for check in source.checks if check.id not in checks]
    if left:
        raise errors.error(
            errors.DEPENDENT_OBJECTS,
            f"cannot split table {source.name} because objects stand on columns of both new tables",
            detail="\n".join(left),
            hint="Drop them first.",
        )


def _is_on(index: Index, columns: tuple[int, ...]) -> bool:
    return index.columns == tuple(IndexColumn(column) for column in columns)


def _settled(
    column: Column, *, key: bool = False, shared: bool = False, hidden: bool = False, bare: bool = False
) -> Column:
    """The column as a target has it: each row has a value of its own. `shared`, `bare`: without what new rows get."""
    given = not (shared or bare)
    return Column(
        id=column.id,
        name=column.name,
        type=column.type,
        nullable=column.nullable and not key,
        default=column.default if given else None,
        identity=column.identity if given else None,
        sequence=column.sequence if given else None,
        not_null=None if key else column.not_null,
        not_null_not_valid=column.not_null_not_valid and not key,
        not_null_name=column.not_null_name,
        hidden=hidden,
    )
