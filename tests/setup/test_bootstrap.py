"""The set-up: pins agree, and scripts/bootstrap says in one line what is missing and leaves at once when nothing is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(lines: list[str]) -> dict[str, str]:
    """name -> version of `name==version` lines, names as PEP 503 normalizes them."""
    found = (line.partition("==") for line in lines if line and not line.startswith("#"))
    return {re.sub(r"[-_.]+", "-", name).lower(): pinned for name, _, pinned in found}


LOCKED = pins((ROOT / "requirements.lock").read_text().splitlines())


def test_lock_holds_every_direct_dependency_at_its_pin():
    direct = pins(PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"])
    assert direct.items() <= LOCKED.items()


def test_what_is_installed_is_what_is_locked():
    assert {name: version(name) for name in LOCKED if name != "setuptools"} == {
        name: pinned for name, pinned in LOCKED.items() if name != "setuptools"
    }


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """As much of a checkout as the bootstrap looks at before it downloads anything."""
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/bootstrap", "requirements.lock", "pyproject.toml"):
        shutil.copy2(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the few commands that the bootstrap needs; the PATH of a machine without Python, Java, apt."""
    directory = tmp_path_factory.mktemp("bin")
    for name in ("sh", "dirname", "sha256sum", "sed", "head", "grep", "cat", "rm", "id"):
        found = shutil.which(name)
        assert found is not None
        (directory / name).symlink_to(found)
    return directory


def command(tools: Path, name: str, script: str) -> Path:
    path = tools / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def bootstrap(checkout: Path, tools: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [tools / "sh", "scripts/bootstrap", *arguments],
        cwd=checkout,
        env={"PATH": str(tools), "JVM_DIRECTORY": "/nowhere", "SYSTEM_PYTHON": "/nowhere"} | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


JAVA_17 = "echo 'openjdk version \"17.0.15\" 2025-04-15' >&2"
JAVA_8 = "echo 'openjdk version \"1.8.0_402\"' >&2"


@pytest.mark.parametrize("java", [None, JAVA_8], ids=["absent", "too old"])
def test_missing_java_is_one_line_that_says_what_to_install(checkout: Path, tools: Path, java: str | None):
    if java:
        command(tools, "java", java)
    done = bootstrap(checkout, tools)
    assert done.returncode != 0
    assert done.stderr.count("\n") == 1
    assert "apt-get install openjdk-17-jre-headless" in done.stderr


def test_missing_python_is_one_line(checkout: Path, tools: Path):
    command(tools, "java", JAVA_17)
    command(tools, "python3", "exit 1")
    done = bootstrap(checkout, tools)
    assert done.returncode != 0
    assert done.stderr.count("\n") == 1
    assert "Python 3.11 or newer" in done.stderr


def test_missing_venv_module_is_one_line_naming_the_package(checkout: Path, tools: Path):
    command(tools, "java", JAVA_17)
    # An interpreter as Debian ships it: everything but ensurepip.
    script = f'case "$2" in *ensurepip*) exit 1;; esac\nexec {sys.executable} "$@"'
    command(tools, "python3", script)
    done = bootstrap(checkout, tools)
    assert done.returncode != 0
    assert done.stderr.count("\n") == 1
    assert f"apt-get install python{sys.version_info[0]}.{sys.version_info[1]}-venv" in done.stderr


@pytest.mark.parametrize(
    ("system", "wanted", "made"),
    [("exit 0", None, "system"), ("exit 1", None, "found"), ('case "$2" in *ensurepip*) exit 1;; esac', None, "found"),
     ("exit 0", "wanted", "wanted")],
    ids=["complete", "too old", "without venv", "another is named"],
)  # fmt: skip
def test_the_python_of_the_distribution_comes_first(
    checkout: Path, tools: Path, system: str, wanted: str | None, made: str
):
    """Unless it is too old or not complete, or PYTHON names another."""
    command(tools, "java", JAVA_17)
    makes = 'case "$2" in venv) echo "$0" >&2; exit 1;; esac'
    command(tools, "python3", makes)
    command(tools, "system", f"{makes}\n{system}")
    chosen = {"PYTHON": str(command(tools, wanted, makes))} if wanted else {}
    done = bootstrap(checkout, tools, SYSTEM_PYTHON=str(tools / "system"), **chosen)
    assert done.stderr.splitlines()[-1] == str(tools / {"found": "python3"}.get(made, made)), done.stderr


def fake_venv(checkout: Path) -> Path:
    """A .venv whose python notes what it is asked to do and does nothing."""
    (checkout / ".venv/bin").mkdir(parents=True)
    log = checkout / "asked"
    command(checkout / ".venv/bin", "python", f'echo "$*" >> {log}')
    return log


def test_installs_once_from_the_lock_and_then_leaves_at_once(checkout: Path, tools: Path):
    command(tools, "java", JAVA_17)
    log = fake_venv(checkout)
    assert bootstrap(checkout, tools).returncode == 0
    asked = log.read_text()
    assert f"install --quiet setuptools=={LOCKED['setuptools']}\n" in asked
    assert "--no-build-isolation --use-pep517 --requirement requirements.lock\n" in asked
    assert "--no-build-isolation --no-deps --editable .\n" in asked

    log.unlink()
    assert bootstrap(checkout, tools).returncode == 0
    assert not log.exists()


def test_packages_alone_leave_the_archive_of_classes_to_a_later_run(checkout: Path, tools: Path):
    command(tools, "java", JAVA_17)
    log = fake_venv(checkout)
    assert bootstrap(checkout, tools, "packages").returncode == 0
    assert "--requirement requirements.lock" in log.read_text()
    assert "class_archive" not in log.read_text()
    log.unlink()
    assert bootstrap(checkout, tools).returncode == 0
    assert log.read_text() == "-m instar.pipeline.class_archive\n"


@pytest.mark.parametrize("name", ["requirements.lock", "pyproject.toml"])
def test_a_changed_pin_is_installed(checkout: Path, tools: Path, name: str):
    command(tools, "java", JAVA_17)
    log = fake_venv(checkout)
    assert bootstrap(checkout, tools).returncode == 0
    log.unlink()
    with (checkout / name).open("a") as file:
        file.write("# changed\n")
    assert bootstrap(checkout, tools).returncode == 0
    assert "--requirement requirements.lock" in log.read_text()
    assert "class_archive" in log.read_text()


def test_a_failed_installation_is_repeated(checkout: Path, tools: Path):
    command(tools, "java", JAVA_17)
    log = fake_venv(checkout)
    python = checkout / ".venv/bin/python"
    whole = python.read_text()
    python.write_text(whole + 'case "$*" in *--requirement*) exit 1;; esac\n')
    assert bootstrap(checkout, tools).returncode != 0
    python.write_text(whole)
    log.unlink()
    assert bootstrap(checkout, tools).returncode == 0
    assert "--requirement requirements.lock" in log.read_text()


@pytest.mark.parametrize("variable", ["JAVA_HOME", "JVM_DIRECTORY"])
def test_java_is_found_beside_the_path(checkout: Path, tools: Path, variable: str):
    fake_venv(checkout)
    command(tools, "java", JAVA_8)
    home = checkout / "jvm/java-21"
    (home / "bin").mkdir(parents=True)
    command(home / "bin", "java", "echo 'openjdk version \"21.0.1\"' >&2")
    found = {"JAVA_HOME": home, "JVM_DIRECTORY": home.parent}[variable]
    assert bootstrap(checkout, tools, **{variable: str(found)}).returncode == 0


def test_apt_is_asked_where_the_user_may(checkout: Path, tools: Path):
    fake_venv(checkout)
    command(tools, "id", "echo 0")
    (tools / "env").symlink_to(shutil.which("env") or "/usr/bin/env")
    # apt-get that "installs" the second package it is asked for, as a release without Java 17 does.
    later = command(checkout, "java", "echo 'openjdk version \"21.0.1\"' >&2")
    install = f'case "$*" in *openjdk-21*) {shutil.which("mv")} {later} {tools}/;; *) exit 100;; esac'
    command(tools, "apt-get", f'echo "$*" >> {checkout}/apt\n{install}')
    done = bootstrap(checkout, tools)
    assert done.returncode == 0, done.stderr
    asked = (checkout / "apt").read_text()
    assert "install -y -qq --no-install-recommends openjdk-17-jre-headless" in asked
    assert "update -qq" in asked
    assert asked.rstrip().endswith("openjdk-21-jre-headless")


@pytest.mark.parametrize("target", ["demo", "test", "lint", "bench", "docs", "lock"])
def test_every_target_of_the_makefile_sets_up_first(target: str):
    shown = subprocess.run(
        ["make", "--dry-run", target],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},  # not the flags of a make that runs this test
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.splitlines()[0] == "scripts/bootstrap packages"
