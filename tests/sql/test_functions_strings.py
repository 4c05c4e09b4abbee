"""LIKE by its definition, and how long it takes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from instar.sql.functions.strings import like


def defined(text: str, pattern: str) -> bool:
    """By what each character of the pattern says."""
    reached = {0}
    for character in pattern:
        if character == "%":
            reached = set(range(min(reached, default=len(text) + 1), len(text) + 1))
        else:
            found = {place for place in reached if place < len(text) and character in ("_", text[place])}
            reached = {place + 1 for place in found}
    return len(text) in reached


@given(st.text("ab\n", max_size=12), st.text("ab%_\n", max_size=9))
@settings(max_examples=2000)
def test_like_is_what_its_pattern_says(text: str, pattern: str) -> None:
    assert like(text, pattern) == defined(text, pattern)


def test_nothing_is_tried_again() -> None:
    """Else these would take the length of the text to the power of the number of `%`."""
    text = "a" * 5000
    assert not like(text, "%a" * 50 + "%b")
    assert not like(text, "%" * 50 + "b")
    assert not like(text, "%a_" * 50 + "%b")
    assert like(text, "%a_" * 50 + "%")
