"""A database whose jobs stand still until a test lets them go on."""

from __future__ import annotations

import pytest

from instar.database.database import Database
from instar.dbapi import Connection
from instar.schemachange.job_records import Job
from support.databases import Engine, rows, run


class Slow:
    """A database in memory in which jobs stand after their first stage until `finish`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._run = Database.run_job
        monkeypatch.setattr(Database, "run_job", lambda *_: None)
        self.engine = Engine(":memory:")
        self.connection: Connection = self.engine.connect(schema_change_mode="async")
        run(
            self.connection,
            "CREATE TABLE t (id bigint PRIMARY KEY, a integer, b integer, s text)",
            "INSERT INTO t VALUES (1, 1, 1, 'x'), (2, 2, 2, 'y'), (3, 3, 3, 'z')",
            "CREATE TABLE p (id integer PRIMARY KEY, u integer, CONSTRAINT p_u UNIQUE (u))",
            "INSERT INTO p VALUES (1, 1), (2, 2), (3, 3)",
        )

    def finish(self) -> list[Job]:
        """Run all jobs, the newest first, to their ends; returns them in their order."""
        database = self.engine.database
        while runnable := database.jobs.runnable():
            for job in reversed(runnable):
                self._run(database, job.id)
        assert rows(self.connection, "CHECK DATABASE") == []
        return sorted(database.jobs.all(), key=lambda job: job.id)
