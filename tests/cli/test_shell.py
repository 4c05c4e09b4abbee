"""The prompt, driven by key strokes through a pipe as a terminal sends them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from instar.cli.runner import Runner, Settings
from instar.cli.shell import Shell, SqlCompleter, history_file
from instar.dbapi import connect

Typed = Callable[[str], tuple[str, str]]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def runner() -> Iterator[Runner]:
    connection = connect(":memory:", autocommit=True)
    yield Runner(connection.session, Settings(out=io.StringIO(), err=io.StringIO()))
    connection.close()


@pytest.fixture
def typed(runner: Runner) -> Typed:
    """Types a text and Ctrl-D; gives what came of it: results, and errors."""

    def typed(text: str) -> tuple[str, str]:
        with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
            keys.send_text(text + "\x04")
            Shell(runner, "shop").run()
        out, err = runner.settings.out, runner.settings.err
        assert isinstance(out, io.StringIO)
        assert isinstance(err, io.StringIO)
        return out.getvalue(), err.getvalue()

    return typed


def test_statements_go_over_lines_until_their_semicolon(typed: Typed):
    out, err = typed("SELECT\r1 AS one\r;\rSELECT 'a;\rb' AS two;\r")
    assert err == ""
    assert " one" in out
    assert " a; +" in out
    assert out.count("(1 row)") == 2


def test_an_error_does_not_end_the_shell(typed: Typed):
    out, err = typed("SELECT nothing;\r\\nonsense\rSELECT 7 AS seven;\r")
    assert "42703" in err
    assert "\\nonsense" in err
    assert "seven" in out


def test_ctrl_c_drops_what_was_typed(typed: Typed):
    out, err = typed("SELECT nothing\x03SELECT 7 AS seven;\r")
    assert err == ""
    assert "seven" in out


def test_the_rest_of_a_line_is_dropped_after_an_error(typed: Typed):
    out, err = typed("SELECT nothing; SELECT 7 AS seven;\r\\q\r")
    assert "42703" in err
    assert "seven" not in out


def test_history_is_kept_for_its_owner_alone(typed: Typed, state: Path):
    typed("SELECT 1;\r")
    assert history_file() == state / "instar" / "history"
    assert "+SELECT 1;" in history_file().read_text()
    assert history_file().stat().st_mode & 0o077 == 0


def test_a_home_that_cannot_be_written_to(typed: Typed, state: Path):
    state.write_text("a file, where a directory would have to be")
    assert "(1 row)" in typed("SELECT 1;\r")[0]


def test_prompt_shows_the_transaction(runner: Runner):
    assert runner.prompt_sign() == ""
    assert runner.run("BEGIN")
    assert runner.prompt_sign() == "*"
    assert not runner.run("SELECT nothing")
    assert runner.prompt_sign() == "!"
    assert runner.run("ROLLBACK")
    assert runner.prompt_sign() == ""


def completions(runner: Runner, text: str) -> list[str]:
    found = SqlCompleter(runner.objects).get_completions(Document(text), CompleteEvent())
    return [completion.text for completion in found]


def test_completion(runner: Runner):
    runner.run('CREATE TABLE selection (id integer, "Segment" text)')
    assert completions(runner, "se") == ['"Segment"', "selection", "select", "sequence", "serializable", "set"]
    assert "SELECT" in completions(runner, "SEL")
    assert completions(runner, "\\d") == ["\\d", "\\dt", "\\di", "\\dv", "\\ds"]
    assert completions(runner, "SELECT ") == []
