"""Rehearsals plan one change upon the other, and leave nothing."""

from __future__ import annotations

import pytest

import instar
from instar import errors
from instar.catalog.descriptors import State, Table
from instar.database.rehearsal import rehearsal


def test_each_statement_finds_those_before_it_complete() -> None:
    with instar.connect(":memory:", autocommit=True) as connection:
        connection.execute("CREATE TABLE t (a int)")
        connection.execute("INSERT INTO t VALUES (1)")
        session = connection.session
        with rehearsal(session) as rehearsed:
            assert [row.stage for row in rehearsed.plan("CREATE UNIQUE INDEX i ON t (a)")] == [1, 2, 3, 4]
            found = rehearsed.catalog.lookup("public", "t")
            assert isinstance(found, Table)
            assert [index.state for index in found.indexes] == [State.PUBLIC]
            with pytest.raises(errors.Error) as caught:
                rehearsed.plan("CREATE INDEX i ON t (a)")
            assert caught.value.sqlstate == "42P07"
            assert len(rehearsed.plan("CREATE TABLE u (a int REFERENCES t (a))")) > 1
            with pytest.raises(errors.Error) as caught:
                rehearsed.plan("INSERT INTO t VALUES (2)")
            assert caught.value.sqlstate == "42601"
            assert rehearsed.plan("DROP TABLE IF EXISTS nothing") == []
        assert session.notices == []
        assert not session.in_transaction
        assert connection.execute("SHOW JOBS").fetchall() == []
        connection.execute("CREATE TABLE u (a int)")
        connection.execute("CREATE INDEX i ON t (a)")
