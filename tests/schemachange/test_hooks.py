"""The hook: real commands, run with a job in their environment; whatever they do, the job goes on."""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from instar import errors
from instar.schemachange import wanted as want
from instar.schemachange.hooks import VARIABLE, Hook, from_environment
from instar.schemachange.job_records import Job, JobState
from support.changes import ChangingWorld


@pytest.fixture
def world() -> ChangingWorld:
    made = ChangingWorld()
    made.create_t([(number, number * 10, "x") for number in range(5)])
    return made


@pytest.fixture
def command(tmp_path: Path) -> Callable[[str], str]:
    """Makes a command of a shell script; its words are quoted, as an operator would."""

    def make(script: str) -> str:
        path = tmp_path / "a hook"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return f"'{path}' 'one argument'"

    return make


def run(world: ChangingWorld, hook: Hook, statement: str = "CREATE INDEX i ON t (a)") -> Job:
    number = world.execute(want.CreateIndex("t", (("a", False),), "i"), statement=statement)
    assert number is not None
    done = world.executor(hook=hook).run(number)
    assert done == world.jobs.get(number)
    assert done is not None
    return done


def test_it_is_run_at_each_stage_with_the_job_in_its_environment(
    world: ChangingWorld, command: Callable[[str], str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    told = (
        '"$1|$INSTAR_DATABASE|$INSTAR_JOB_ID|$INSTAR_JOB_KIND|$INSTAR_JOB_STATE|$INSTAR_JOB_STAGE/$INSTAR_JOB_STAGES"'
    )
    done = run(world, Hook(command(f"echo {told} >> {out}"), "/data/shop"))
    assert done.state is JobState.SUCCEEDED
    begin = f"one argument|/data/shop|{done.id}|build index|"
    assert out.read_text().splitlines() == [
        begin + "running|1/4", begin + "running|2/4", begin + "running|3/4", begin + "succeeded|4/4",
    ]  # fmt: skip
    assert not any("hook" in event.note for event in done.history)


def test_any_statement_can_be_told(
    world: ChangingWorld, command: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Letters that the worker's locale does not know, and more of them than a variable may hold."""
    monkeypatch.setattr(os, "fsencode", lambda text: text if isinstance(text, bytes) else text.encode("ascii"))
    out = tmp_path / "out"
    hook = Hook(command(f'printf %s "$INSTAR_JOB_STATEMENT" > {out}'), "/data/shop")
    done = run(world, hook, "CREATE INDEX gr\N{LATIN SMALL LETTER O WITH DIAERESIS}\0" + "\N{EURO SIGN}" * 100_000)
    assert not any("hook" in event.note for event in done.history)
    told = out.read_text()
    assert told.startswith("CREATE INDEX gr\N{LATIN SMALL LETTER O WITH DIAERESIS}\N{EURO SIGN}")
    assert told.endswith("\N{EURO SIGN}...")
    assert len(told.encode()) <= (1 << 16) + 3


@pytest.mark.parametrize(
    ("script", "noted"),
    [("echo first >&2; echo no mail >&2; exit 3", "the hook ended with status 3: no mail"),
     ("printf 'a\\000b\\033[31mred' >&2; exit 3", "the hook ended with status 3: a\ufffdb\ufffd[31mred"),
     ("kill -9 $$", "the hook ended with status -9")],
)  # fmt: skip
def test_its_failure_is_noted_and_fails_nothing(
    world: ChangingWorld, command: Callable[[str], str], script: str, noted: str
) -> None:
    done = run(world, Hook(command(script), "/data/shop"))
    assert done.state is JobState.SUCCEEDED
    assert [event.note for event in done.history].count(noted) == 4
    world.check_index("i")


def test_it_has_a_time_limit_that_holds_for_what_it_has_started(
    world: ChangingWorld, command: Callable[[str], str], tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    begun = time.monotonic()
    done = run(world, Hook(command(f"sleep 60 & echo $! > {pid}; wait"), "/data/shop", seconds=0.2))
    assert time.monotonic() - begun < 10
    assert done.state is JobState.SUCCEEDED
    assert "the hook took longer than 0.2 s and was killed" in [event.note for event in done.history]
    status = Path(f"/proc/{int(pid.read_text())}/stat")
    deadline = time.monotonic() + 5
    while status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "it outlived its time"
        time.sleep(0.02)


@pytest.mark.parametrize("then", ["exit 3", "sleep 30"])
def test_what_it_has_left_running_holds_nobody_up(
    world: ChangingWorld, command: Callable[[str], str], tmp_path: Path, then: str
) -> None:
    """In a session of its own, and with the standard error of the command."""
    script = f"echo left >&2; setsid sh -c 'echo $$ >> {tmp_path}/pid; exec sleep 20' & sleep 0.1; {then}"
    begun = time.monotonic()
    done = run(world, Hook(command(script), "/data/shop", seconds=0.5))
    for started in (tmp_path / "pid").read_text().split():
        os.kill(int(started), signal.SIGKILL)
    assert time.monotonic() - begun < 10
    assert done.state is JobState.SUCCEEDED
    noted = "ended with status 3: left" if then == "exit 3" else "took longer than 0.5 s and was killed"
    assert [event.note for event in done.history].count(f"the hook {noted}") == 4


def test_a_command_that_is_not_there(world: ChangingWorld) -> None:
    done = run(world, Hook("/nowhere/notify", "/data/shop"))
    assert done.state is JobState.SUCCEEDED
    assert done.history[-1].note == f"the hook could not be run: {os.strerror(2)}: /nowhere/notify"


def test_no_shell_reads_it(world: ChangingWorld, tmp_path: Path) -> None:
    run(world, Hook(f"true ; touch {tmp_path}/made", "/data/shop"))
    assert not (tmp_path / "made").exists()
    with pytest.raises(errors.Error, match="cannot be read"):
        Hook("'open", "/data/shop")


def test_one_in_the_environment_that_cannot_be_read_holds_no_job_up(
    world: ChangingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was started on demand, and ended for it, would be heard by nobody."""
    monkeypatch.delenv(VARIABLE, raising=False)
    assert from_environment("/data/shop") is None
    monkeypatch.setenv(VARIABLE, "notify 'open")
    hook = from_environment("/data/shop")
    assert hook is not None
    number = world.execute(want.CreateIndex("t", (("a", False),), "i"))
    assert number is not None
    done = world.executor(hook=hook).run(number)
    assert done is not None
    assert done.state is JobState.SUCCEEDED
    assert "cannot be read" in done.history[-1].note
