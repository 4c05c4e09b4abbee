"""Histories of several processes on one store, which run as the machine has it. A seed says what each of them does, not
what comes of it; all of them tell the time by the one monotonic clock of the machine."""

from __future__ import annotations

import random
import time
from itertools import count
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from instar.database import Database, Session
from support.histories import History, Transaction
from support.recorded import NAMES, Client, Common
from support.victims import CONTEXT

SESSIONS = 2
_APART = 1_000_000  # the numbers of one process from those of another


def _race(path: str, number: int, orders: Pipe) -> None:
    """Do what is ordered (seed, steps) until the order is None, and hand back the transactions."""
    database = Database.open(path, synchronous=None)
    while (order := orders.recv()) is not None:
        seed, steps = order
        orders.send(_transactions(database, f"p{number}", random.Random(seed * 100 + number), number * _APART, steps))
    database.release()


def _transactions(database: Database, name: str, draw: random.Random, first: int, steps: int) -> list[Transaction]:
    """What some sessions do by turns."""
    common = Common(History(), draw, count(first + 1), time.monotonic_ns)
    clients = [Client(Session(database, autocommit=True), f"{name}s{number}", common) for number in range(SESSIONS)]
    for _ in range(steps):
        draw.choice(clients).step()
    for client in clients:
        client.finish()
    return common.history.transactions


class Racing:
    """So many processes on a store."""

    def __init__(self, path: Path, processes: int) -> None:
        self.database = Database.open(str(path), synchronous="off")
        self._orders: list[Pipe] = []
        self._processes = []
        for number in range(1, processes + 1):
            ours, theirs = CONTEXT.Pipe()
            process = CONTEXT.Process(target=_race, args=(str(path), number, theirs))
            process.start()
            theirs.close()
            self._orders.append(ours)
            self._processes.append(process)

    def history(self, seed: int, steps: int) -> History:
        common = Common(History(seed=seed), random.Random(seed), count(1), time.monotonic_ns)
        client = Client(Session(self.database, autocommit=True), "p0", common)
        client.create_tables()
        for orders in self._orders:
            orders.send((seed, steps))
        for orders in self._orders:
            common.history.transactions += orders.recv()
        client.read_all()
        return common.history

    def check(self) -> list[tuple[object, ...]]:
        """CHECK DATABASE."""
        return list(Session(self.database, autocommit=True).execute("CHECK DATABASE").rows)

    def forget(self) -> None:
        """Drop the tables of a history."""
        session = Session(self.database, autocommit=True)
        session.execute(f"DROP TABLE {', '.join(NAMES)}")

    def close(self) -> None:
        for orders in self._orders:
            orders.send(None)
        for process in self._processes:
            process.join(30)
            process.kill()
        self.database.release()
