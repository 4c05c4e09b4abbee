"""The checker of histories finds each anomaly in a history made for it, and none in one that is right."""

from __future__ import annotations

import pytest

from support.histories import (
    READ_COMMITTED,
    REPEATABLE_READ,
    SERIALIZABLE,
    Change,
    History,
    Predicate,
    Read,
    Row,
    Seen,
    Span,
    Statement,
    Transaction,
    Versions,
    Write,
)
from support.isolation import anomalies

TABLE, OTHER = 1, 2
COLUMNS = frozenset({"id", "v", "a"})
X, Y = (TABLE, 10), (TABLE, 11)


class Script:
    """A history in the making: what is called first happened first. Table 1 has rows 10 and 11, of writes 10 and 11 in
    group 0; table 2 is empty."""

    def __init__(self) -> None:
        self.history = History()
        self._time = 0
        self._changes: dict[int, Change] = {}
        made = self.begin(READ_COMMITTED)
        for table, name in ((TABLE, "t"), (OTHER, "u")):
            self.change(made, Change(table, table, 0, name, COLUMNS))
        self.write(made, 10, X, (), 0)
        self.write(made, 11, Y, (), 0)
        self.end(made)

    def begin(self, level: str) -> Transaction:
        transaction = Transaction(f"T{len(self.history.transactions)}", level)
        self.history.transactions.append(transaction)
        return transaction

    def _do(self, transaction: Transaction, *changes: int) -> Statement:
        """A statement under the tables' schemas after these changes, by default the newest that were made."""
        newest = changes or tuple({change.table: number for number, change in self._changes.items()}.values())
        statement = Statement("a statement", self._span())
        for number in newest:
            change = self._changes[number]
            statement.seen.append(Seen(change.name, change.table, number, change.columns))
        transaction.statements.append(statement)
        return statement

    def _span(self) -> Span:
        self._time += 2
        return Span(self._time, self._time + 1)

    def find(
        self, transaction: Transaction, *rows: Row, by: Predicate | None = None, under: tuple[int, ...] = ()
    ) -> Statement:
        statement = self._do(transaction, *under)
        statement.reads.append(Read(TABLE, by, rows))
        return statement

    def write(
        self,
        transaction: Transaction,
        number: int,
        key: tuple[int, int],
        base: Versions,
        group: int | None = None,
        *,
        deletes: bool = False,
        under: tuple[int, ...] = (),
    ) -> Statement:
        statement = self._do(transaction, *under)
        statement.reads.append(Read(TABLE, None, (Row(key, base),) if base else ()))
        statement.writes.append(Write(number, key, base, group, deletes=deletes))
        return statement

    def change(self, transaction: Transaction, change: Change) -> None:
        self._do(transaction).changes.append(change)
        self._changes[change.number] = change

    def end(self, transaction: Transaction, *, commit: bool = True) -> None:
        transaction.ended = self._span()
        transaction.committed = commit

    def names(self) -> set[str]:
        """The names of the anomalies that are found."""
        return {problem.split(":")[0] for problem in anomalies(self.history)}


def x(*versions: int) -> Row:
    return Row(X, (10, *versions))


def y(*versions: int) -> Row:
    return Row(Y, (11, *versions))


@pytest.fixture
def script() -> Script:
    return Script()


# --- rows ------------------------------------------------------------------------------------------------------------


def test_a_serial_history_is_right(script: Script) -> None:
    for number, level in enumerate((READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE)):
        transaction = script.begin(level)
        older = tuple(range(20, 20 + number))
        script.find(transaction, x(*older), y(), by=Predicate("a", 0, 0))
        script.write(transaction, 20 + number, X, (10, *older), 0)
        script.find(transaction, x(*older, 20 + number), y(), by=Predicate("a", 0, 0))
        script.end(transaction)
    assert anomalies(script.history) == []


@pytest.mark.parametrize("level", [READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE])
def test_dirty_read(script: Script, level: str) -> None:
    writer, reader = script.begin(level), script.begin(level)
    script.write(writer, 20, X, (10,))
    script.find(reader, x(20))
    script.end(reader)
    script.end(writer, commit=False)
    assert script.names() == {"dirty read (G1a)"}


def test_what_a_savepoint_took_back_is_dirty(script: Script) -> None:
    writer, reader = script.begin(READ_COMMITTED), script.begin(READ_COMMITTED)
    script.write(writer, 20, X, (10,)).undone = 1
    script.write(writer, 21, Y, (11,))
    script.end(writer)
    script.find(reader, x(20))
    script.end(reader)
    assert script.names() == {"dirty read (G1a)"}


def test_intermediate_read(script: Script) -> None:
    writer, reader = script.begin(READ_COMMITTED), script.begin(READ_COMMITTED)
    script.write(writer, 20, X, (10,))
    script.find(reader, x(20))
    script.write(writer, 21, X, (10, 20))
    script.end(writer)
    assert script.names() == {"intermediate read (G1b)"}


def test_dirty_write(script: Script) -> None:
    one, two = script.begin(READ_COMMITTED), script.begin(READ_COMMITTED)
    script.write(one, 20, X, (10,))
    script.write(two, 21, Y, (11,))
    script.write(two, 22, X, (10, 20))
    script.write(one, 23, Y, (11, 21))
    script.end(one)
    script.end(two)
    assert "dirty write (G0)" in script.names()


def test_circular_information_flow(script: Script) -> None:
    one, two = script.begin(READ_COMMITTED), script.begin(READ_COMMITTED)
    script.write(one, 20, X, (10,))
    script.write(two, 21, Y, (11,))
    script.find(one, y(21))
    script.find(two, x(20))
    script.end(one)
    script.end(two)
    assert script.names() == {"circular information flow (G1c)"}


@pytest.mark.parametrize("level", [READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE])
def test_lost_update(script: Script, level: str) -> None:
    one, two = script.begin(level), script.begin(level)
    script.write(one, 20, X, (10,))
    script.write(two, 21, X, (10,))
    script.end(one)
    script.end(two)
    assert "lost update" in script.names()


@pytest.mark.parametrize(("level", "found"), [(READ_COMMITTED, False), (REPEATABLE_READ, True), (SERIALIZABLE, True)])
def test_read_skew(script: Script, level: str, found: bool) -> None:
    reader, writer = script.begin(level), script.begin(READ_COMMITTED)
    script.find(reader, x())
    script.write(writer, 20, X, (10,))
    script.write(writer, 21, Y, (11,))
    script.end(writer)
    script.find(reader, y(21))
    script.end(reader)
    assert script.names() == ({"read skew (G-single)"} if found else set())


def test_read_skew_within_one_statement(script: Script) -> None:
    reader, writer = script.begin(READ_COMMITTED), script.begin(READ_COMMITTED)
    script.write(writer, 20, X, (10,))
    script.write(writer, 21, Y, (11,))
    script.find(reader, x(), y(21))
    script.end(writer)
    assert script.names() == {"read skew (G-single)"}


@pytest.mark.parametrize(("level", "found"), [(REPEATABLE_READ, False), (SERIALIZABLE, True)])
def test_write_skew(script: Script, level: str, found: bool) -> None:
    one, two = script.begin(level), script.begin(level)
    script.find(one, y())
    script.find(two, x())
    script.write(one, 20, X, (10,))
    script.write(two, 21, Y, (11,))
    script.end(one)
    script.end(two)
    assert script.names() == ({"write skew (G2-item)"} if found else set())


def test_write_skew_of_one_who_promises_less_is_his_own(script: Script) -> None:
    one, two = script.begin(SERIALIZABLE), script.begin(REPEATABLE_READ)
    script.find(one, y())
    script.find(two, x())
    script.write(one, 20, X, (10,))
    script.write(two, 21, Y, (11,))
    script.end(one)
    script.end(two)
    assert script.names() == set()


@pytest.mark.parametrize(("level", "found"), [(REPEATABLE_READ, False), (SERIALIZABLE, True)])
def test_phantom(script: Script, level: str, found: bool) -> None:
    one, two = script.begin(level), script.begin(level)
    script.find(one, by=Predicate("a", 1, 1))
    script.find(two, by=Predicate("a", 2, 2))
    script.write(one, 20, (TABLE, 20), (), 2)
    script.write(two, 21, (TABLE, 21), (), 1)
    script.end(one)
    script.end(two)
    assert script.names() == ({"phantom"} if found else set())


@pytest.mark.parametrize(("level", "found"), [(READ_COMMITTED, False), (REPEATABLE_READ, True)])
def test_a_row_that_comes_into_a_snapshot(script: Script, level: str, found: bool) -> None:
    reader, writer = script.begin(level), script.begin(READ_COMMITTED)
    script.find(reader, by=Predicate("a", 1, 1))
    script.write(writer, 20, X, (10,), 1)
    script.end(writer)
    script.find(reader, x(20), by=Predicate("a", 1, 1))
    assert script.names() == ({"phantom"} if found else set())


@pytest.mark.parametrize(("versions", "found"), [((), True), ((20,), False), ((20, 21), True)])
def test_a_row_that_goes_and_comes_back_was_not_found_in_between(
    script: Script, versions: Versions, found: bool
) -> None:
    """Nobody knows when anything was, so one of several gaps may explain it; what else the reader sees leaves one."""
    reader, writer, other = (script.begin(REPEATABLE_READ) for _ in range(3))
    script.find(reader, x(), by=Predicate("a", 0, 0))
    script.write(writer, 20, Y, (11,), 1)
    script.write(other, 21, Y, (11, 20), 0)
    for transaction in (writer, other):
        script.end(transaction)
        transaction.ended = Span(8, 99)
    for transaction in (reader, writer, other):
        transaction.statements[0].span = Span(8, 99)
    assert script.names() == set()
    script.find(reader, y(*versions))
    assert script.names() == ({"phantom"} if found else set())


def test_stale_read(script: Script) -> None:
    writer = script.begin(READ_COMMITTED)
    script.write(writer, 20, X, (10,))
    script.end(writer)
    reader = script.begin(READ_COMMITTED)
    script.find(reader, x())
    assert script.names() == {"stale read"}


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("locked", [False, True])
def test_a_row_that_is_changed_while_another_has_locked_it(script: Script, locked: bool, writes: bool) -> None:
    """Who acts upon it is told; who leaves nothing need not be."""
    holder, writer = script.begin(READ_COMMITTED), script.begin(SERIALIZABLE)
    script.find(holder, x()).reads[0] = Read(TABLE, None, (x(),), locked=locked)
    script.write(writer, 20, X, (10,))
    script.end(writer)
    if writes:
        script.write(holder, 21, Y, (11,))
    script.end(holder)
    assert script.names() == ({"stale read"} if locked and writes else set())


@pytest.mark.parametrize(
    ("row", "name"),
    [
        (Row(X, (10, 99)), "a row that nobody has written"),
        (Row(X, (10,), 3), "a row that nobody has written"),
        (Row(X, (10,), 0, (("c7", 8),)), "a row that nobody has written"),
        (Row(X, (10, 20)), "a row that is not there"),
        (Row((TABLE, 30), (30,)), "own writes"),
    ],
)
def test_rows_that_cannot_be(script: Script, row: Row, name: str) -> None:
    gone = script.begin(READ_COMMITTED)
    script.write(gone, 20, X, (10,), deletes=True)
    script.end(gone)
    reader = script.begin(READ_COMMITTED)
    if name == "own writes":
        script.find(reader, row)
        script.write(reader, 30, (TABLE, 30), (), 0)
        assert name in script.names()
        return
    script.find(reader, row)
    assert name in script.names()


def test_rows_that_no_predicate_finds(script: Script) -> None:
    reader = script.begin(READ_COMMITTED)
    script.find(reader, x(), x(), y(), by=Predicate("a", 0, 0))
    assert script.names() == {"a row found twice"}
    script.find(reader, x(), by=Predicate("a", 1, 1))
    assert script.names() == {"a row found twice", "a row that does not match"}


def test_own_writes_are_seen(script: Script) -> None:
    transaction = script.begin(REPEATABLE_READ)
    script.write(transaction, 20, X, (10,))
    script.find(transaction, x())
    assert "own writes" in script.names()


def test_the_values_of_columns_follow_from_the_writes(script: Script) -> None:
    """A column's default is its number, also in rows that are older than it."""
    changer = script.begin(READ_COMMITTED)
    script.change(changer, Change(7, TABLE, TABLE, "t", COLUMNS | {"c7"}))
    script.end(changer)
    writer = script.begin(READ_COMMITTED)
    script.find(writer, Row(X, (10,), 0, (("c7", 7),)))
    statement = script.write(writer, 20, X, (10,))
    statement.writes = [statement.writes[0]._replace(columns=frozenset({"c7"}))]
    script.end(writer)
    reader = script.begin(READ_COMMITTED)
    script.find(reader, Row(X, (10, 20), 0, (("c7", 20),)), Row(Y, (11,), 0, (("c7", 7),)))
    assert script.names() == set()


# --- schemas ---------------------------------------------------------------------------------------------------------


def changed(script: Script, change: Change, *, commit: bool = True) -> Transaction:
    """A transaction that makes a change."""
    transaction = script.begin(READ_COMMITTED)
    script.change(transaction, change)
    script.end(transaction, commit=commit)
    return transaction


ADDED = Change(7, TABLE, TABLE, "t", COLUMNS | {"c7"})


def test_a_statement_that_sees_two_schemas_of_one_table(script: Script) -> None:
    reader = script.begin(READ_COMMITTED)
    statement = script.find(reader, x())
    changed(script, ADDED)
    statement.seen = [Seen("t", TABLE, TABLE, ADDED.columns)]
    assert script.names() == {"schema read skew"}


def test_a_statement_that_sees_half_of_a_swap(script: Script) -> None:
    swap = script.begin(READ_COMMITTED)
    script.change(swap, Change(7, TABLE, TABLE, "u", COLUMNS))
    script.change(swap, Change(8, OTHER, OTHER, "t", COLUMNS))
    script.end(swap)
    reader = script.begin(READ_COMMITTED)
    script.find(reader, under=(7, OTHER)).span = swap.statements[0].span
    assert script.names() == {"schema read skew"}


@pytest.mark.parametrize(("level", "found"), [(READ_COMMITTED, False), (REPEATABLE_READ, True), (SERIALIZABLE, True)])
def test_a_transaction_that_sees_two_schemas(script: Script, level: str, found: bool) -> None:
    reader = script.begin(level)
    script.find(reader, x(), under=(TABLE,))
    changed(script, ADDED)
    script.find(reader, under=(7,))
    script.end(reader)
    assert script.names() == ({"schema read skew"} if found else set())


def test_a_snapshot_of_rows_from_after_a_change_and_the_schema_from_before(script: Script) -> None:
    changed(script, ADDED)
    writer = script.begin(READ_COMMITTED)
    script.write(writer, 20, X, (10,))
    script.end(writer)
    reader = script.begin(REPEATABLE_READ)
    reading = script.find(reader, x(20), under=(TABLE,))
    reading.span = Span(0, 99)
    assert script.names() == {"schema read skew"}


def test_a_schema_that_was_taken_back(script: Script) -> None:
    changed(script, ADDED, commit=False)
    reader = script.begin(READ_COMMITTED)
    script.find(reader, under=(7,))
    assert script.names() == {"dirty schema read"}


def test_half_of_a_schema_change(script: Script) -> None:
    changer = script.begin(READ_COMMITTED)
    script.change(changer, ADDED)
    script.change(changer, Change(8, TABLE, 7, "t", COLUMNS | {"c7", "c8"}))
    script.end(changer)
    reader = script.begin(READ_COMMITTED)
    script.find(reader, under=(7,)).span = Span(0, 99)
    assert script.names() == {"intermediate schema read"}


def test_two_changes_on_top_of_one(script: Script) -> None:
    changed(script, ADDED)
    changed(script, Change(8, TABLE, TABLE, "t", COLUMNS | {"c8"}))
    assert script.names() == {"lost schema change"}


@pytest.mark.parametrize("level", [READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE])
@pytest.mark.parametrize("loses", [False, True])
def test_a_write_under_a_schema_below_the_floor(script: Script, level: str, loses: bool) -> None:
    """A transaction crosses a change that takes nothing from what it wrote, and no other."""
    writer = script.begin(level)
    script.write(writer, 20, X, (10,), under=(TABLE,))
    changed(script, ADDED._replace(loses=loses))
    script.end(writer)
    assert script.names() == ({"write under a schema below the floor"} if loses else set())


def test_what_a_transaction_has_taken_back_is_lost_to_no_change(script: Script) -> None:
    writer = script.begin(REPEATABLE_READ)
    script.write(writer, 20, (TABLE, 30), (), under=(TABLE,))
    script.write(writer, 21, (TABLE, 30), (20,), deletes=True, under=(TABLE,))
    changed(script, ADDED._replace(loses=True))
    script.end(writer)
    assert script.names() == set()


def test_under_a_lease_statements_may_be_behind_and_writes_may_not(script: Script) -> None:
    changed(script, ADDED._replace(loses=True))
    late = script.begin(READ_COMMITTED)
    script.find(late, x(), under=(TABLE,))
    script.end(late)
    assert script.names() == {"schema read skew"}
    script.history.leased = True
    assert script.names() == set()
    writer = script.begin(READ_COMMITTED)
    script.write(writer, 20, X, (10,), under=(TABLE,))
    script.end(writer)
    assert script.names() == {"write under a schema below the floor"}


def test_below_the_floor_by_what_others_have_written(script: Script) -> None:
    """Nobody knows when anything was, but that the one wrote on top of the other."""
    older, newer = script.begin(READ_COMMITTED), script.begin(READ_COMMITTED)
    late = changed(script, ADDED._replace(loses=True))
    script.write(newer, 20, X, (10,), under=(7,))
    script.end(newer)
    script.write(older, 21, X, (10, 20), under=(TABLE,))
    script.end(older)
    for transaction in (late, older, newer):
        transaction.ended = Span(10, 99)
        for statement in transaction.statements:
            statement.span = Span(10, 99)
    assert script.names() == {"write under a schema below the floor"}


def test_rows_that_a_truncate_has_taken(script: Script) -> None:
    changed(script, Change(7, TABLE, TABLE, "t", COLUMNS, empties=True))
    reader = script.begin(REPEATABLE_READ)
    script.find(reader, by=Predicate("a", 0, 0))
    script.end(reader)
    assert script.names() == set()
    late = script.begin(READ_COMMITTED)
    script.find(late, x())
    assert "schema read skew" in script.names()


def test_a_write_on_a_row_that_a_truncate_has_taken(script: Script) -> None:
    changed(script, Change(7, TABLE, TABLE, "t", COLUMNS, empties=True))
    writer = script.begin(READ_COMMITTED)
    script.write(writer, 20, X, (10,))
    script.end(writer)
    assert "write under a schema below the floor" in script.names()


def test_a_serializable_transaction_that_read_what_a_truncate_took(script: Script) -> None:
    reader = script.begin(SERIALIZABLE)
    script.find(reader, x(), by=Predicate("id", 10, 10), under=(TABLE, OTHER))
    changed(script, Change(7, TABLE, TABLE, "t", COLUMNS, empties=True))
    script.write(reader, 20, (OTHER, 20), (), 0, under=(TABLE, OTHER))
    script.end(reader)
    assert anomalies(script.history) != []


def test_a_history_is_readable() -> None:
    shown = str(Script().history)
    assert "T0 (READ COMMITTED): a statement" in shown
    assert "writes 1/10=[10]" in shown
    assert "COMMIT" in shown
