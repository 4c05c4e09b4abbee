"""What a reader may rely on in every source file: its size, its explanation, nothing left open."""

from __future__ import annotations

import ast
import re
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "instar").rglob("*.py"))
LEFT_OPEN = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|\bNotImplementedError\b|pytest\.(mark\.)?(skip|xfail)")
# Of other threads that run, CPython 3.11 hands out frames that are not there any more.
FRAMES = re.compile(r"\b(_current_frames|f_back|f_locals)\b")
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 50


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_source_file(path: Path):
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "says nowhere what it is for"
    assert text.count("\n") <= MAX_FILE_LINES
    assert not LEFT_OPEN.search(text)
    assert not FRAMES.search(text)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    too_long = {node.name: (node.end_lineno or 0) - node.lineno + 1 for node in functions}
    assert {name: lines for name, lines in too_long.items() if lines > MAX_FUNCTION_LINES} == {}


def test_files_are_short():
    assert statistics.median(path.read_text().count("\n") for path in SOURCES) <= 250


def test_no_test_is_left_out():
    this = Path(__file__)
    tests = [path for path in (ROOT / "tests").rglob("*.py") if path != this]
    assert [name(path) for path in tests if LEFT_OPEN.search(path.read_text())] == []
