"""Whether a history keeps what its transactions' levels promise, judged by what their sessions were told.

Adya's direct serialization graph, with schema changes among the transactions, on points in time: a transaction commits
at one point, and reads at one (a snapshot; a statement's under READ COMMITTED). SERIALIZABLE transactions that write
read where they commit, those that do not commit where they read. What was seen puts points in order:

    ww      a version was written on top of another
    wr      a version was read, or a row of it found by a predicate
    rw      a version was read that another has replaced: it came later; if it was locked, after who read it had ended
    pr      a row was not found by a predicate, but a later version of it would have been
    schema  a statement ran under a schema change, and under none that came after it where it reads
    floor   what was written under a schema is lost, or without meaning, under a change that came after
    time    one was told before the other was asked for

A history is right if no row, no schema and no order of them is one that nobody can have made (`dirty`, `lost`, ...),
and if the points can be put into one order: if the graph has no cycle. For transactions of one level this is what Adya
asks for (PL-SI: one anti-dependency edge makes a cycle, as the reader's own two points are apart; PL-3: any number,
as they are one), and for mixed levels a reader is held to what its own level promises (Adya, chapter 5).

A transaction may commit after a change of the schema that it has not seen, as long as that takes nothing from what it
wrote: what it did means the same on either side of the change, so that its place in the order is after it. Rows that a
SERIALIZABLE transaction has read are others' after a change that empties their table: that it may not cross. Under a
schema lease a statement may run under the schema before a change that its rows have seen; no write may.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from support.histories import (
    READ_COMMITTED,
    SERIALIZABLE,
    Change,
    History,
    Key,
    Predicate,
    Read,
    Row,
    Seen,
    Span,
    Statement,
    Versions,
    Write,
)
from support.points import Graph, Point

BELOW_THE_FLOOR = "write under a schema below the floor"


class Absence(NamedTuple):
    """A row that a predicate has not found: it was read in one of these gaps between the versions that it matches. A
    gap is who made it and who ended it."""

    key: Key
    reads: Point
    holds: Point
    gaps: list[tuple[int | None, int | None]]


def anomalies(history: History) -> list[str]:
    """What is wrong with a history; nothing if all is well."""
    return _Judge(history).judge()


class _Judge:
    def __init__(self, history: History) -> None:
        self.transactions = history.transactions
        self.leased = history.leased
        self.problems: dict[str, None] = {}
        self.graph = Graph()
        self.written: dict[tuple[int, Key], tuple[int, Write]] = {}
        self.changes: dict[tuple[int, int], tuple[int, Change]] = {}
        self.left = [set(transaction.writes) for transaction in self.transactions]
        self.last: dict[tuple[int, Key], int] = {}  # the last write of a transaction to a row
        self.impossible: set[tuple[int, int, Row]] = set()  # what cannot be ordered, since it cannot be at all
        self.chains: dict[Key, Versions] = {}
        self.schemas: dict[int, list[int]] = {}
        self.versions: dict[Key, set[Versions]] = defaultdict(set)
        for number, transaction in enumerate(self.transactions):
            for statement in transaction.statements:
                for write in statement.writes:
                    self.written[write.number, write.key] = number, write
                for change in statement.changes:
                    self.changes[change.table, change.number] = number, change
            for write in transaction.writes:
                self.last[number, write.key] = write.number

    def judge(self) -> list[str]:
        self._order_schemas()
        for number, index, statement in self._statements():
            for read in statement.reads:
                for row in read.rows:
                    self._judge_row(number, index, read, row)
        self._order_rows()
        self._place()
        absences = []
        for number, index, statement in self._statements():
            for seen in statement.seen:
                self._judge_schema(number, index, statement, seen)
            for read in statement.reads:
                self._order_reads(number, index, read)
                absences += list(self._absences(number, index, read))
        self._resolve(absences)
        cycles = self.graph.cycles(timed=False) or self.graph.cycles(timed=True)
        if cycles:  # one tells all: what others there are lead round by the same points
            cycle = min(cycles, key=lambda found: (len(found), _name(found) != BELOW_THE_FLOOR))
            self._problem(_name(cycle), self._described(cycle))
        return list(self.problems)

    def _statements(self) -> Iterator[tuple[int, int, Statement]]:
        for number, transaction in enumerate(self.transactions):
            for index, statement in enumerate(transaction.statements):
                yield number, index, statement

    def _problem(self, name: str, text: str) -> None:
        self.problems[f"{name}: {text}"] = None

    # --- rows --------------------------------------------------------------------------------------------------------

    def _own(self, number: int, index: int, key: Key, *, now: bool) -> Versions:
        """What the transaction itself has written to the row before the statement, or with it (`now`)."""
        earlier = self.transactions[number].statements[: index + now]
        return tuple(
            write.number
            for statement in earlier
            if statement.undone is None or statement.undone > index
            for write in statement.writes
            if write.key == key
        )

    def _base(self, number: int, versions: Versions, key: Key) -> Versions:
        """The versions below the transaction's own."""
        end = len(versions)
        while end and self.written.get((versions[end - 1], key), (None,))[0] == number:
            end -= 1
        return versions[:end]

    def _judge_row(self, number: int, index: int, read: Read, row: Row) -> None:
        """Whether the row is one that committed transactions have left, and this one made of it."""
        transaction = self.transactions[number]
        who = f"{transaction.name} finds {row}"
        leaves = transaction.committed and any(write.key == row.key for write in self.left[number])
        if transaction.level == READ_COMMITTED and not leaves and self._own(number, index, row.key, now=False):
            # A row that it has written may stand under another key, which another transaction has given it: then it is
            # there twice, or again, until this one is refused or takes all of them (TRUNCATE).
            self.impossible.add((number, index, row))
            return
        base = self._base(number, row.versions, row.key)
        own = row.versions[len(base) :]
        if own not in (self._own(number, index, row.key, now=False), self._own(number, index, row.key, now=True)):
            self._problem("own writes", f"{who}, having written {self._own(number, index, row.key, now=False)}")
        if not self._judge_base(who, base, row.key):
            self.impossible.add((number, index, row))
            return
        self.versions[row.key].add(base)
        write = self.written[row.versions[-1], row.key][1] if row.versions else None
        if write is None or write.deletes:
            self._problem("a row that is not there", who)
            return
        group, columns = self._image(row)
        if (row.group, dict(row.columns)) not in ((group, columns), (None, {})):
            self._problem("a row that nobody has written", f"{who}, which has group {group} and {columns}")
        if read.predicate is not None and not read.predicate.holds(row.key[1], group):
            self._problem("a row that does not match", f"{who} by {read.predicate}, which has group {group}")
        if read.predicate is not None and sum(row.key == other.key for other in read.rows) > 1:
            self._problem("a row found twice", who)

    def _judge_base(self, who: str, base: Versions, key: Key) -> bool:
        for version in base:
            number, write = self.written.get((version, key), (-1, None))
            if write is None:
                self._problem("a row that nobody has written", who)
                return False
            if not self.transactions[number].committed or write not in self.left[number]:
                self._problem("dirty read (G1a)", f"{who}, with what {self.transactions[number].name} took back")
                return False
        if base:
            number = self.written[base[-1], key][0]
            if self.last[number, key] != base[-1]:
                self._problem("intermediate read (G1b)", f"{who}, before {self.transactions[number].name} was through")
                return False
        return True

    def _image(self, row: Row) -> tuple[int, dict[str, int | None]]:
        """What the row's group and columns are, by the writes that made it. A column's default is its number."""
        defaults: dict[str, int | None] = {name: int(name[1:]) for name, _ in row.columns}
        group, columns = 0, defaults
        for version in row.versions:
            write = self.written[version, row.key][1]
            if write.deletes:
                columns = defaults
            group = group if write.group is None else write.group
            columns = columns | {name: version for name in columns if name in write.columns}
        return group, columns

    def _order_rows(self) -> None:
        """Each row's versions in their order: all of them are on top of one another, or an update was lost."""
        for transaction in self.transactions:
            if transaction.committed:
                for write in transaction.writes:
                    if all((version, write.key) in self.written for version in write.base):
                        self.versions[write.key].add((*write.base, write.number))
        for key, versions in self.versions.items():
            longest = max(versions, key=len)
            for version in versions:
                if longest[: len(version)] != version:
                    self._problem("lost update", f"row {key} has versions {version} and {longest}")
            self.chains[key] = longest
        self._empty()
        for key, chain in self.chains.items():
            writers = [self.written[version, key][0] for version in chain]
            for earlier, later in pairwise(writers):
                if earlier != later:
                    self.graph.add(("commit", earlier, 0), ("commit", later, 0), "ww")

    def _empty(self) -> None:
        """A change that empties a table is the last version of the rows that were written under schemas before it."""
        for table, order in self.schemas.items():
            for place, change in enumerate(order):
                number, found = self.changes[table, change]
                if not found.empties:
                    continue
                for key in [key for key in self.chains if key[0] == table]:
                    written = [self.written[version, key][1] for version in self.chains[key]]
                    before = [self._place_of(write, order) < place for write in written]
                    if all(before) and not (written and written[-1].deletes):
                        self.chains[key] += (change,)
                        self.written[change, key] = number, Write(change, key, (), deletes=True)
                        self.last[number, key] = change
                    elif any(before) and not all(before):
                        self._problem(BELOW_THE_FLOOR, f"row {key} was taken by change {change}")

    def _place_of(self, write: Write, order: list[int]) -> int:
        """Under which of the table's changes the statement ran that made a write; -1 if that is none of them."""
        for statement in self.transactions[self.written[write.number, write.key][0]].statements:
            if write in statement.writes:
                seen = next((seen.change for seen in statement.seen if seen.table == write.key[0]), None)
                return order.index(seen) if seen in order else -1
        return -1

    # --- points ------------------------------------------------------------------------------------------------------

    def _reads(self, number: int, index: int) -> Point:
        """Where a statement reads."""
        return "read", number, index if self.transactions[number].level == READ_COMMITTED else 0

    def _holds(self, number: int, index: int) -> Point:
        """Up to where what a statement has read is still so."""
        transaction = self.transactions[number]
        serializable = transaction.level == SERIALIZABLE and transaction.committed
        if serializable and (transaction.writes or transaction.changes):
            return "commit", number, 0
        return self._reads(number, index)

    def _ends(self, number: int, index: int) -> Point:
        """Up to where what a statement has locked is as it was; whoever leaves nothing may not hear that it is not."""
        transaction = self.transactions[number]
        stands = transaction.committed and transaction.statements[index].undone is None
        return ("commit", number, 0) if stands and transaction.writes else self._holds(number, index)

    def _place(self) -> None:
        """The points of all transactions, in the order in which they were asked for and told."""
        spans: dict[Point, Span] = {}
        for number, transaction in enumerate(self.transactions):
            for index, statement in enumerate(transaction.statements):
                spans.setdefault(self._reads(number, index), statement.span)
                if transaction.committed:
                    self.graph.add(self._reads(number, index), ("commit", number, 0), "order")
            if transaction.committed and transaction.ended is not None:
                spans["commit", number, 0] = transaction.ended
        moments = sorted({(span.asked, 0) for span in spans.values()} | {(span.told, 1) for span in spans.values()})
        places = {moment: ("time", place, 0) for place, moment in enumerate(moments)}
        for place in range(1, len(moments)):
            self.graph.add(("time", place - 1, 0), ("time", place, 0), "time")
        for point, span in spans.items():
            self.graph.add(places[span.asked, 0], point, "time")
            self.graph.add(point, places[span.told, 1], "time")

    def _order_reads(self, number: int, index: int, read: Read) -> None:
        for row in read.rows:
            if (number, index, row) in self.impossible:
                continue
            base = self._base(number, row.versions, row.key)
            chain = self.chains.get(row.key, ())
            if base != row.versions:
                continue  # what it has written itself, whatever others did since
            if base:
                writer = self.written.get((base[-1], row.key), (number,))[0]
                self.graph.add(("commit", writer, 0), self._reads(number, index), "wr")
            later = (self.written[version, row.key][0] for version in chain[len(base) :])
            other = next((found for found in later if found != number), None)
            if other is not None and chain[: len(base)] == base:
                held = self._ends(number, index) if read.locked else self._holds(number, index)
                self.graph.add(held, ("commit", other, 0), "rw")

    # --- predicates --------------------------------------------------------------------------------------------------

    def _absences(self, number: int, index: int, read: Read) -> Iterator[Absence]:
        """The rows that a statement has not found although some version of theirs matches its predicate."""
        earlier = self.transactions[number].statements[:index]
        emptied = any(change.empties and change.table == read.table for done in earlier for change in done.changes)
        if read.predicate is None or emptied:
            return
        found = {row.key for row in read.rows}
        for key, chain in self.chains.items():
            if key[0] != read.table or key in found or self._own(number, index, key, now=True):
                continue
            gaps = self._gaps(key, chain, read.predicate)
            if gaps != [(None, None)]:
                yield Absence(key, self._reads(number, index), self._holds(number, index), gaps)

    def _gaps(self, key: Key, chain: Versions, predicate: Predicate) -> list[tuple[int | None, int | None]]:
        gaps: list[tuple[int | None, int | None]] = []
        begun, is_open = None, True  # there is no row at first
        for end, version in enumerate(chain, 1):
            number, write = self.written[version, key]
            if end < len(chain) and self.written[chain[end], key][0] == number:
                continue  # never committed
            group, _ = self._image(Row(key, chain[:end]))
            matches = not write.deletes and predicate.holds(key[1], group)
            if matches and is_open:
                gaps.append((begun, number))
            elif not matches and not is_open:
                begun = number
            is_open = not matches
        if is_open:
            gaps.append((begun, None))
        return gaps

    def _resolve(self, absences: list[Absence]) -> None:
        """Order what only one gap explains, and go on, since that may rule out others' gaps. What is left may be so or
        so."""
        waiting = absences
        while waiting:
            left = []
            for absence in waiting:
                gaps = absence.gaps
                if len(gaps) > 1:
                    gaps = [gap for gap in gaps if self._is_possible(absence, gap)]
                if not gaps:
                    self._problem("phantom", f"{self._shown(absence.reads)} without row {absence.key}, which was there")
                    continue
                if len(gaps) > 1:
                    left.append(absence)
                    continue
                begun, ended = gaps[0]
                if begun not in (None, absence.reads[1]):
                    self.graph.add(("commit", begun, 0), absence.reads, "wr")
                if ended not in (None, absence.reads[1]):
                    self.graph.add(absence.holds, ("commit", ended, 0), "pr")
            if len(left) == len(waiting):
                return
            waiting = left

    def _is_possible(self, absence: Absence, gap: tuple[int | None, int | None]) -> bool:
        begun, ended = gap
        if begun not in (None, absence.reads[1]) and self.graph.leads(absence.reads, ("commit", begun, 0)):
            return False
        return ended in (None, absence.reads[1]) or not self.graph.leads(("commit", ended, 0), absence.holds)

    # --- schemas -----------------------------------------------------------------------------------------------------

    def _order_schemas(self) -> None:
        """Each table's committed changes in their order, one on top of the other."""
        following: dict[tuple[int, int], int] = {}
        for transaction in self.transactions:
            for change in transaction.changes if transaction.committed else ():
                place = change.table, change.after
                if place in following:
                    self._problem("lost schema change", f"{following[place]} and {change.number} both on {place}")
                following.setdefault(place, change.number)
        for table, after in [place for place in following if not place[1]]:
            order: list[int] = []
            number: int | None = following[table, after]
            while number is not None:
                order.append(number)
                number = following.get((table, number))
            self.schemas[table] = order

    def _judge_schema(self, number: int, index: int, statement: Statement, seen: Seen) -> None:
        who = f"{self.transactions[number].name} sees {seen.name} at change {seen.change}"
        by, change = self.changes.get((seen.table, seen.change), (-1, None))
        if change is None or (seen.name, seen.columns) != (change.name, change.columns):
            self._problem("schema read skew", f"{who} with columns {sorted(seen.columns)}, but that is {change}")
            return
        while by == number and change.after:
            by, change = self.changes[seen.table, change.after]
        if by == number:
            return
        order = self.schemas.get(seen.table, [])
        if change.number not in order:
            self._problem("dirty schema read", f"{who}, which {self.transactions[by].name} took back")
            return
        self.graph.add(("commit", by, 0), self._reads(number, index), "schema")
        later = [self.changes[seen.table, found] for found in order[order.index(change.number) + 1 :]]
        if later and later[0][0] == by:
            self._problem("intermediate schema read", who)
            return
        later = [(other, found) for other, found in later if other != number]
        for other, found in later:
            commit = ("commit", other, 0)
            if not self.leased:
                self.graph.add(self._reads(number, index), commit, "schema")
            if found.empties:
                self.graph.add(self._holds(number, index), commit, "rw")
            wrote = statement.undone is None and any(
                write.key[0] == seen.table and self._leaves(number, write.key) for write in statement.writes
            )
            if (found.loses or found.empties) and wrote and self.transactions[number].committed:
                self.graph.add(("commit", number, 0), commit, "floor")

    def _leaves(self, number: int, key: Key) -> bool:
        """Whether the transaction leaves something at a key: not if it has inserted what it then deleted."""
        writes = [write for write in self.transactions[number].writes if write.key == key]
        return not writes or bool(writes[0].base) or not writes[-1].deletes

    # --- what is said of a cycle -------------------------------------------------------------------------------------

    def _described(self, cycle: list[tuple[Point, str]]) -> str:
        parts = [f"{self._shown(point)} -{label}->" for point, label in cycle if point[0] != "time"]
        return " ".join((*parts, self._shown(next(point for point, _ in cycle if point[0] != "time"))))

    def _shown(self, point: Point) -> str:
        kind, number, index = point
        name = self.transactions[number].name
        return f"{name} commits" if kind == "commit" else f"{name} reads ({index})"


def _name(cycle: list[tuple[Point, str]]) -> str:
    labels = [label for point, label in cycle if label not in ("time", "order")]
    timed = any(point[0] == "time" for point, _ in cycle)
    if "floor" in labels:
        return BELOW_THE_FLOOR
    if "schema" in labels:
        return "schema read skew"
    if "pr" in labels:
        return "phantom"
    anti = labels.count("rw")
    if anti > 1:
        return "write skew (G2-item)"
    if anti:
        return "stale read" if timed and set(labels) == {"rw"} else "read skew (G-single)"
    return "dirty write (G0)" if set(labels) == {"ww"} else "circular information flow (G1c)"
