"""ALTER TABLE ... JOIN: the descriptor of T (EDBT 2006, §4.1).

T has the columns that are asked for, and those without which the rules could not tell its records: keys and join
columns. What is unwanted of them is hidden and goes with the switch; so do the mark of the parts, and the locks that
bear their timestamps. Any part of a row may be missing, so that T's key is a row id, and its columns may be NULL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from instar import errors
from instar.catalog.descriptors import (
    DEFAULT_LOCK,
    Check,
    Column,
    Index,
    IndexColumn,
    Layout,
    Lock,
    MadeByJoin,
    State,
    Step,
    StepKind,
    Table,
    Unseen,
)
from instar.catalog.naming import generated_name, not_null_names
from instar.encoding.keys import same_key_family
from instar.schemachange import wanted as want
from instar.schemachange.creation import FIRST_LAYOUT, require_columns, row_id
from instar.schemachange.draft import Draft
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
from instar.schemachange.online.seeing import seen
from instar.schemachange.online.target_rows import made_by_join
from instar.schemachange.stages import Plan
from instar.types import SMALLINT, TIMESTAMPS

_PARTS, _R_LOCK, _S_LOCK = "parts", "r part", "s part"
_COLUMN = re.compile(r'"#(\d+)"')


class _Side(NamedTuple):
    """A source, its join columns, and what T has of it: T's column by the source's."""

    table: Table
    on: tuple[Column, ...]
    columns: dict[int, int]

    def mapped(self, columns: Iterable[int]) -> tuple[int, ...]:
        return tuple(self.columns[column] for column in columns)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        return tuple(sorted(self.columns.items()))


def join_tables(draft: Draft, wanted: want.JoinTables) -> Plan:
    """The plan of a full outer join. Errors as of `require_source`; 42703, 42701, 42804 where the columns do not make
    one; 42P07; 2BP01 naming checks that T cannot have."""
    r, s = draft.find(Table, wanted.r), draft.find(Table, wanted.s)
    if r.id == s.id:
        raise errors.unsupported(f'joining table "{r.name}" with itself')
    for source in (r, s):
        require_source(draft, source)
        require_ungenerated(source)
        require_no_views(draft, source)
    target = _described(_Described, draft, wanted, r, s)
    made = made_by_join(target)
    shown = msgspec.structs.replace(target, **seen(target))
    require_carried(draft, made, (r, s), (shown,), keep_views=wanted.options.keep_views)
    if wanted.options.keep_views:
        require_keepable(made, (r, s) if made.r == r.id else (s, r), (shown,))
    return plan_transformation(draft, made, (r, s), (target,), keep_views=wanted.options.keep_views)


def joined_rows(draft: Draft, wanted: want.JoinTables) -> Table:
    """T as what a materialized view has its rows in: with nothing but the columns, and the indexes that the rules need.
    Errors as of `join_tables`, but for those of what it would carry over."""
    r, s = draft.find(Table, wanted.r), draft.find(Table, wanted.s)
    return _described(_Rows, draft, wanted, r, s)


def _described(kind: type[_Described], draft: Draft, wanted: want.JoinTables, r: Table, s: Table) -> Table:
    r_on = columns_of(r, [one for one, _ in wanted.on], "the join columns")
    s_on = columns_of(s, [other for _, other in wanted.on], "the join columns")
    for one, other in zip(r_on, s_on, strict=True):
        _require_comparable(one, other)
    describe = kind(draft, wanted, _Side(r, r_on, {}), _Side(s, s_on, {}))
    if not describe.is_unique(s, s_on) and describe.is_unique(r, r_on):
        describe.turn()  # the rules have it that R is the side with several rows of a join value
    return describe.table()


def _require_comparable(one: Column, other: Column) -> None:
    for column in (one, other):
        require_exact(column, "joining by column")
    kinds = {one.type.kind, other.type.kind}
    if not same_key_family(one.type, other.type) or (len(kinds) == 2 and kinds <= TIMESTAMPS):
        raise errors.error(
            errors.DATATYPE_MISMATCH,
            f'join columns "{one.name}" and "{other.name}" are of types that cannot be compared: '
            f"{one.type} and {other.type}",
        )


class _Described:
    """The descriptor of T."""

    parts_are_hidden = True

    def __init__(self, draft: Draft, wanted: want.JoinTables, r: _Side, s: _Side) -> None:
        self._draft = draft
        self._wanted = wanted
        self._id = draft.ids.new_id()
        self._named = (r, s)  # as the statement has them
        self._r, self._s = r, s
        self._columns: list[Column] = []
        self._check_names: set[str] = set()

    def is_unique(self, table: Table, on: Sequence[Column]) -> bool:
        """Whether no two rows of the table have the same join value, for as long as T is made of it."""
        columns = {column.id for column in on}
        indexes = [index for index in table.indexes if index.unique and index.state is State.PUBLIC]
        keys = [set(table.primary_key), *({part.column for part in index.columns} for index in indexes)]
        return any(key <= columns for key in keys)

    def turn(self) -> None:
        """R is S, and S is R."""
        self._r, self._s = self._s, self._r

    def table(self) -> Table:
        """T as the job fills it."""
        self._choose()
        shown = tuple(column.id for column in self._columns)
        for side in (self._r, self._s):
            self._add_needed(side)
        require_columns(len(self._columns))
        parts, key = len(self._columns) + 1, len(self._columns) + 2
        locks = self._locks(key + 1)
        indexes = _Indexes(self._draft, self._id, self._wanted.into, self._columns, locks[1].id + 1)
        made = self._made(parts, locks, indexes, self.is_unique(self._s.table, self._s.on))
        checks = self._carry(made, indexes, shown)
        columns = (
            *self._columns,
            Column(id=parts, name=_PARTS, type=SMALLINT, nullable=False, hidden=self.parts_are_hidden),
            row_id(self._draft, key),
        )
        stored = tuple((column.id, column.type) for column in columns)
        target = Table(
            id=self._id,
            name=self._wanted.into,
            version=1,
            columns=columns,
            primary_key=(key,),
            primary_key_name="",
            rowset=self._draft.ids.new_rowset(self._id),
            layout=Layout(FIRST_LAYOUT, stored, (DEFAULT_LOCK, *(lock.id for lock in locks))),
            oldest_layout=FIRST_LAYOUT,
            indexes=tuple(indexes.made),
            checks=tuple(checks),
            steps=(Step(version=1, kind=StepKind.CREATE_TABLE, statement=self._draft.statement),),
            next_id=indexes.next_id,
            locks=locks,
            unseen=Unseen(made=made, shown=(*shown, key)),
        )
        return self._named_so(target)

    def _carry(self, made: MadeByJoin, indexes: _Indexes, shown: tuple[int, ...]) -> tuple[Check, ...]:
        """What T has of the sources' indexes, which are added, and of their checks; notices of what it has not."""
        for side in (self._r, self._s):
            unique = self._is_told_apart if side is self._r and made.unique else None
            refused = indexes.carry(side, unique or (lambda columns: False), self._keys(side, made), shown)
            if refused is not None:
                raise self._cannot_repeat(side, refused)
        sides = (self._r, self._s)
        checks = [check for side in sides for check in self._checks(side, indexes, shown)]
        checks += [check for side in sides for check in self._not_nulls(side, indexes, shown)]
        self._tell_lost(shown)
        return tuple(checks)

    @staticmethod
    def _keys(side: _Side, made: MadeByJoin) -> list[frozenset[int]]:
        """The columns of each key of a source that T may have several times, as it is said by joining: those of its
        primary key, and the join columns that are unique in S, which is what makes the join one-to-many."""
        keys = [frozenset(side.table.primary_key)]
        if made.unique and side.table.id == made.s:
            found = (frozenset(part.column for part in index.columns) for index in side.table.indexes if index.unique)
            keys += [key for key in found if key <= {column.id for column in side.on}]
        return keys

    def _cannot_repeat(self, side: _Side, index: Index) -> errors.Error:
        what = "unique constraint" if index.constraint else "unique index"
        return errors.error(
            errors.DEPENDENT_OBJECTS,
            f"cannot join table {side.table.name}: {what} {index.name} cannot hold for table {self._wanted.into}, "
            "which may have its values several times",
            hint=f"Drop the {what.removeprefix('unique ')} first, or leave a column of it out of the new table.",
        )

    def _named_so(self, target: Table) -> Table:
        """T, with its names taken."""
        return take_names(self._draft, target, (self._r.table, self._s.table))

    def _choose(self) -> None:
        """The columns that are asked for."""
        one, other = self._named
        for wanted in self._wanted.columns:
            names = [(side, name) for side, name in ((one, wanted.r), (other, wanted.s)) if name is not None]
            found = [(side, columns_of(side.table, [name], "")[0]) for side, name in names]
            if any(column.name == wanted.name for column in self._columns):
                raise errors.error(errors.DUPLICATE_COLUMN, f'column "{wanted.name}" specified more than once')
            if len(found) == 2 and found[0][1].type != found[1][1].type:
                raise errors.error(
                    errors.DATATYPE_MISMATCH,
                    f'join column "{wanted.name}" is of types {found[0][1].type} and {found[1][1].type}',
                    hint="Have a column of each table instead.",
                )
            for side, column in found:
                if column.id in side.columns:
                    raise errors.error(
                        errors.DUPLICATE_COLUMN, f'column "{column.name}" of "{side.table.name}" is wanted twice'
                    )
            self._add(wanted.name, found)

    def _add_needed(self, side: _Side) -> None:
        for column in side.table.columns:
            if (
                column.id in (*side.table.primary_key, *(found.id for found in side.on))
                and column.id not in side.columns
            ):
                self._add(column.name, [(side, column)], hidden=True)

    def _add(self, name: str, found: list[tuple[_Side, Column]], *, hidden: bool = False) -> None:
        number = len(self._columns) + 1
        own = next((column for side, column in found if side is self._r), None)
        kept = own is not None and own.identity is None
        self._columns.append(
            Column(
                id=number,
                name=name,
                type=found[0][1].type,
                default=own.default if own is not None and kept else None,
                sequence=own.sequence if own is not None and kept else None,
                hidden=hidden,
            )
        )
        for side, column in found:
            side.columns[column.id] = number

    def _locks(self, number: int) -> tuple[Lock, Lock]:
        both = set(self._r.columns.values()) & set(self._s.columns.values())
        of_r = tuple(sorted(set(self._r.columns.values())))
        of_s = tuple(sorted(set(self._s.columns.values()) - both))
        return Lock(id=number, name=_R_LOCK, columns=of_r), Lock(id=number + 1, name=_S_LOCK, columns=of_s)

    def _made(self, parts: int, locks: tuple[Lock, Lock], indexes: _Indexes, unique: bool) -> MadeByJoin:
        r, s = self._r, self._s
        r_on, s_on = (side.mapped(column.id for column in side.on) for side in (r, s))
        key = r.mapped(r.table.primary_key)
        r_index = indexes.need(key, unique=unique and self._is_told_apart(key))
        s_index = indexes.need(s.mapped(s.table.primary_key))
        return MadeByJoin(
            r=r.table.id,
            s=s.table.id,
            target=self._id,
            r_columns=r.pairs,
            s_columns=s.pairs,
            on=tuple((one.id, other.id) for one, other in zip(r.on, s.on, strict=True)),
            unique=unique,
            parts=parts,
            r_lock=locks[0].id,
            s_lock=locks[1].id,
            r_index=r_index,
            s_index=s_index,
            on_indexes=tuple(dict.fromkeys((indexes.need(r_on), indexes.need(s_on)))),
            pause_rows=self._wanted.options.pause_rows,
            strategy=self._wanted.options.strategy,
            grace=self._wanted.options.grace,
        )

    def _is_told_apart(self, columns: Iterable[int]) -> bool:
        """Whether rows without R's part differ from all others in these columns of T, in which no two rows of R are
        alike: they have NULL in one that is R's alone; or they have a join value, which no row of R has."""
        shared = set(self._s.columns.values())
        on = self._r.mapped(column.id for column in self._r.on)
        return not shared.issuperset(columns) or set(columns).issuperset(on)

    def _checks(self, side: _Side, indexes: _Indexes, shown: tuple[int, ...]) -> Iterable[Check]:
        """The checks of a source hold for rows that have its part: its primary key is not NULL there."""
        key = self._telling(side, shown)
        for check in side.table.checks:
            if not set(check.columns) <= side.columns.keys() or not set(side.mapped(check.columns)) <= set(shown):
                raise self._cannot_carry(
                    side, check, "stands on columns that are not wanted", "have those columns in the new table"
                )
            if not key:
                name = side.table.name
                why = f"would hold for rows that have a row of {name}, and its primary key would not tell which"
                own = f"have its primary key in the new table, with a column that is of {name} alone (r.k, s.k AS sk)"
                raise self._cannot_carry(side, check, why, own)
            text = _COLUMN.sub(lambda found: f'"#{side.columns[int(found[1])]}"', check.expression)
            carried = self._of_part(key, indexes.new_id(), check.name, text, side.mapped(check.columns))
            yield msgspec.structs.replace(carried, state=check.state, not_valid=check.not_valid, yields=check.yields)

    def _not_nulls(self, side: _Side, indexes: _Indexes, shown: tuple[int, ...]) -> Iterable[Check]:
        """NOT NULL of a source's columns, as checks of rows that have its part; a notice where none can tell."""
        key, lost, names = self._telling(side, shown), [], not_null_names(side.table)
        for column in side.table.columns:
            place = side.columns.get(column.id)
            if column.id not in names or column.id in side.table.primary_key or place is None or place not in shown:
                continue
            if key:
                check = self._of_part(key, indexes.new_id(), names[column.id], f'"#{place}" IS NOT NULL', (place,))
                held = State.WRITE_ONLY if column.not_null_not_valid else State.PUBLIC
                yield msgspec.structs.replace(check, state=held, not_valid=column.not_null_not_valid)
            else:
                lost.append(f'"{column.name}"')
        if lost:
            columns = f"column {lost[0]}" if len(lost) == 1 else f"columns {', '.join(lost)}"
            self._draft.notices.append(f'{columns} of table "{side.table.name}" may be NULL')

    def _telling(self, side: _Side, shown: tuple[int, ...]) -> list[int]:
        """The columns of T that are NULL in rows without the part of a source, and in no other; none if T has not all
        of its primary key."""
        other = self._s if side is self._r else self._r
        # In columns that both have, a row without the part may have a value.
        key = [column for column in side.mapped(side.table.primary_key) if column not in other.columns.values()]
        return key if set(key) <= set(shown) else []

    def _of_part(self, key: Sequence[int], number: int, name: str, condition: str, columns: Iterable[int]) -> Check:
        missing = " OR ".join(f'"#{column}" IS NULL' for column in key)
        if name in self._check_names:  # that of a check of the other table
            name = generated_name(self._wanted.into, (), "check", self._check_names.__contains__)
        self._check_names.add(name)
        used = tuple(dict.fromkeys((*columns, *key)))
        return Check(id=number, name=name, expression=f"{missing} OR ({condition})", columns=used)

    def _cannot_carry(self, side: _Side, check: Check, why: str, instead: str) -> errors.Error:
        return errors.error(
            errors.DEPENDENT_OBJECTS,
            f"cannot join table {side.table.name}: constraint {check.name} {why}",
            hint=f"Drop the constraint first, or {instead}.",
        )

    def _tell_lost(self, shown: tuple[int, ...]) -> None:
        """Notices of what T has not: columns, and values that rows would be given although they have no such part."""
        for side in self._named:
            name, columns = side.table.name, [column for column in side.table.columns if not column.hidden]
            left = [f'"{column.name}"' for column in columns if side.columns.get(column.id) not in shown]
            if left:
                kept = "column" if len(left) == 1 else "columns"
                self._draft.notices.append(f'{kept} {", ".join(left)} of table "{name}" will be gone')
        for side in (self._r, self._s):
            for column in side.table.columns:
                given = column.identity is not None or column.sequence is not None or column.default is not None
                lost = given and (side is self._s or column.identity is not None)
                if column.id in side.columns and lost:
                    self._draft.notices.append(f'column "{column.name}" of table "{side.table.name}" loses its default')


class _Rows(_Described):
    """T of a materialized view. Its sources go on changing: a unique index may go, the primary key does not."""

    parts_are_hidden = False

    def is_unique(self, table: Table, on: Sequence[Column]) -> bool:
        """As in `_Described`."""
        return set(table.primary_key) <= {column.id for column in on}

    def _add(self, name: str, found: list[tuple[_Side, Column]], *, hidden: bool = False) -> None:
        bare = [
            (side, msgspec.structs.replace(column, default=None, sequence=None, identity=None))
            for side, column in found
        ]
        super()._add(name, bare, hidden=hidden)

    def _carry(self, made: MadeByJoin, indexes: _Indexes, shown: tuple[int, ...]) -> tuple[Check, ...]:
        return ()

    def _named_so(self, target: Table) -> Table:
        """Nobody writes to it but by its parts, whose timestamps its layout has: locks are none of its readers'."""
        return take_names(self._draft, msgspec.structs.replace(target, locks=()), ())


class _Indexes:
    """T's indexes: those that the rules need, and those of the sources whose columns it has."""

    def __init__(self, draft: Draft, table: int, name: str, columns: list[Column], next_id: int) -> None:
        self._draft = draft
        self._table = table
        self._name = name
        self._names = {column.id: column.name for column in columns}
        self.made: list[Index] = []
        self.next_id = next_id

    def new_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    def need(self, columns: tuple[int, ...], *, unique: bool = False) -> int:
        """The index on these columns, made if there is none."""
        parts = tuple(IndexColumn(column) for column in columns)
        for index in self.made:
            if index.columns == parts:
                return index.id
        own = {index.name for index in self.made}
        label = generated_name(
            self._name,
            [self._names[column] for column in columns],
            "key" if unique else "idx",
            lambda name: name in own or self._draft.name_taken(name),
        )
        return self._put(label, parts, unique=unique)

    def carry(
        self,
        side: _Side,
        is_unique: Callable[[Iterable[int]], bool],
        keys: Iterable[frozenset[int]],
        shown: Sequence[int],
    ) -> Index | None:
        """The indexes of a source on columns that T shows; of a unique one `is_unique` says whether T has each of its
        values once, too. Gives one whose values it may have several times, though they are unique by none of `keys`."""
        for index in side.table.indexes:
            columns = {part.column for part in index.columns}
            if not {side.columns.get(column) for column in columns} <= set(shown):
                self._draft.notices.append(f'index "{index.name}" goes with columns that are not wanted')
                continue
            parts = tuple(IndexColumn(side.columns[part.column], part.descending) for part in index.columns)
            unique = index.unique and is_unique([part.column for part in parts])
            if index.unique and not unique:
                if not any(key <= columns for key in keys):
                    return index
                self._draft.notices.append(f'index "{index.name}" is not unique any more')
            elif any(found.columns == parts for found in self.made):
                continue
            self._put(index.name, parts, unique=unique)
        return None

    def _put(self, name: str, parts: tuple[IndexColumn, ...], *, unique: bool) -> int:
        rowset = self._draft.ids.new_rowset(self._table)
        self.made.append(Index(id=self.new_id(), name=name, columns=parts, unique=unique, rowset=rowset))
        return self.made[-1].id
