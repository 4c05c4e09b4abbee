"""Autocommit writes of one row beside schema changes of another session: never judged by the schema of yesterday."""

import pytest

import instar

BIG = 5_000_000_000


@pytest.fixture
def sessions(tmp_path):
    writer, changer = (instar.connect(tmp_path / "db", synchronous="off", autocommit=True) for _ in range(2))
    writer.execute("CREATE TABLE t (a bigint PRIMARY KEY, b integer NOT NULL)")
    for statement in ("INSERT INTO t VALUES (?, ?)", "UPDATE t SET b = ? WHERE a = ?"):
        for number in range(3):  # the lean form is taken from the second execution on
            writer.execute(statement, (number, number))
    yield writer, changer
    writer.close()
    changer.close()


def test_a_value_that_fits_only_the_widened_type(sessions):
    writer, changer = sessions
    for statement, parameters in (
        ("UPDATE t SET b = ? WHERE a = ?", (BIG, 1)),
        ("INSERT INTO t VALUES (?, ?)", (9, BIG)),
    ):
        with pytest.raises(instar.DataError, match="integer out of range"):
            writer.execute(statement, parameters)
    changer.execute("ALTER TABLE t ALTER COLUMN b TYPE bigint")
    assert writer.execute("UPDATE t SET b = ? WHERE a = ?", (BIG, 1)).rowcount == 1
    assert writer.execute("INSERT INTO t VALUES (?, ?)", (9, BIG)).rowcount == 1
    assert changer.execute("SELECT a FROM t WHERE b = ?", (BIG,)).fetchall() == [(1,), (9,)]


def test_a_null_once_the_column_takes_it(sessions):
    writer, changer = sessions
    with pytest.raises(instar.IntegrityError):
        writer.execute("INSERT INTO t VALUES (?, ?)", (9, None))
    changer.execute("ALTER TABLE t ALTER COLUMN b DROP NOT NULL")
    assert writer.execute("INSERT INTO t VALUES (?, ?)", (9, None)).rowcount == 1
