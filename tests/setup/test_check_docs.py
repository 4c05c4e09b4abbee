"""The checker of the documentation finds what is wrong, and nothing else."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("check_docs", ROOT / "scripts" / "check_docs.py")
assert SPEC is not None
assert SPEC.loader is not None
check_docs = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(check_docs)


def problems(tmp_path: Path, text: str) -> list[str]:
    page = tmp_path / "page.md"
    page.write_text(text)
    return list(check_docs.problems(page))


def test_a_sound_page(tmp_path: Path):
    (tmp_path / "other.md").write_text("# Of `NULL`, and more\n")
    text = """# Page
[here](#page) [there](other.md#of-null-and-more) [out](https://example.org/nothing) ![self](page.md)

```text
CREATE TABLE name (...) [not](a-link)
```

```sql
CREATE TABLE t (a integer PRIMARY KEY);
INSERT INTO t VALUES (1);
INSERT INTO t VALUES (1);  -- ERROR 23505
SELECT a
  -- ERROR 22012
  / 0 FROM t;
```

```python
import instar
value = instar.connect().execute("SELECT 1").fetchone()
```

```python
assert value == (1,)
```
"""
    assert problems(tmp_path, text) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[x](gone.md)", "no such file: gone.md"),
        ("[x](#gone)", "no such heading: #gone"),
        ("```sql\nSELECT 1;\n\nSELECT nothing;\n```\n", "4: SELECT nothing: 42703"),
        ("```sql\nSELECT 1 -- ERROR 42703\n```\n", "2: SELECT 1: it succeeds"),
        ("\n```python\n1 / 0\n```\n", "3: ZeroDivisionError"),
    ],
)
def test_a_page_with_a_problem(tmp_path: Path, text: str, problem: str):
    found = problems(tmp_path, text)
    assert len(found) == 1
    assert found[0].startswith(problem)
