"""Run what the documentation shows, and follow its links.

The ```sql blocks of a page run one after the other in a fresh database, its ```python blocks in one namespace and a
fresh directory. A statement that is shown because it fails says so in a comment on its line or inside of it:
`-- ERROR 23505`. Blocks of other languages (```text for outlines of syntax) are not run.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from instar import errors
from instar.cli.statements import Splitter
from instar.dbapi import connect

ROOT = Path(__file__).resolve().parent.parent
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
_EXPECTED = re.compile(r"--\s*ERROR\s+(\w{5})")


class Block(NamedTuple):
    """A fenced block; `line` is that of its first line in the page."""

    language: str
    text: str
    line: int


def pages() -> list[Path]:
    """Every page of the documentation."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page."""
    for found in _FENCE.finditer(text):
        yield Block(found.group(1), found.group(2), text.count("\n", 0, found.start(2)) + 1)


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = _HEADING.findall(_FENCE.sub("", text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> Iterator[str]:
    """Links to files or headings that are not there. Links to other sites are not followed."""
    text = page.read_text(encoding="utf-8")
    for link, image in _LINK.findall(_FENCE.sub("", text)):
        target, _, anchor = (link or image).partition("#")
        if ":" in target:
            continue
        file = (page.parent / target).resolve() if target else page
        if not file.exists():
            yield f"no such file: {target}"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text(encoding="utf-8")):
            yield f"no such heading: {target}#{anchor}"


def failing_sql(sql: list[Block]) -> Iterator[str]:
    """Statements that fail, or fail otherwise than they say, in one fresh database."""
    connection = connect(":memory:", autocommit=True)
    for block in sql:
        splitter = Splitter()
        wanted: str | None = None
        for line in [*block.text.splitlines(keepends=True), ""]:
            expected = _EXPECTED.search(line)
            wanted = expected.group(1) if expected else wanted
            # The comment is taken out: behind a semicolon it would begin the next statement.
            pieces = list(splitter.feed(_EXPECTED.sub("", line))) if line else list(splitter.finish())
            for piece in pieces:
                got, message = None, "it succeeds"
                try:
                    connection.execute(piece.text).close()
                except errors.Error as error:
                    got, message = error.sqlstate, f"{error.sqlstate}: {error.message}"
                if got != wanted:
                    yield f"{block.line + piece.line - 1}: {piece.text.splitlines()[0]}: {message}"
                wanted = None
    connection.close()


def failing_python(python: list[Block]) -> Iterator[str]:
    """Blocks that raise, run in one namespace in a fresh directory."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        try:
            namespace: dict[str, object] = {}
            for block in python:
                try:
                    # The documentation is as trusted as the code beside it.
                    exec(compile(block.text, "example", "exec"), namespace)
                except Exception as error:  # noqa: BLE001 - whatever an example raises is what is reported
                    yield f"{block.line}: {type(error).__name__}: {error}"
            namespace.clear()
        finally:
            os.chdir(before)


def problems(page: Path) -> Iterator[str]:
    """All that is wrong with a page."""
    found = list(blocks(page.read_text(encoding="utf-8")))
    yield from broken_links(page)
    yield from failing_sql([block for block in found if block.language == "sql"])
    yield from failing_python([block for block in found if block.language == "python"])


def main() -> int:
    """Print every problem; the status is 1 if there is one."""
    checked = pages()
    lines = [f"{page.relative_to(ROOT)}: {problem}" for page in checked for problem in problems(page)]
    print("\n".join([*lines, f"{len(checked)} pages, {len(lines)} problems"]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
