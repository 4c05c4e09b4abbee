"""jsonb documents that are too deep."""

from __future__ import annotations

import pytest

from instar import errors
from instar.types import JSONB
from instar.values.python import from_python


def nested(depth: int) -> list[object]:
    document: list[object] = []
    for _ in range(depth):
        document = [document]
    return document


def around_itself() -> list[object]:
    document: list[object] = []
    document.append(document)
    return document


@pytest.mark.parametrize(
    "document",
    [nested(1000), nested(5000), "[" * 5000 + "]" * 5000, around_itself()],
    ids=["1000", "5000", "text", "itself"],
)
def test_a_document_that_is_nested_too_deeply(document: object) -> None:
    with pytest.raises(errors.Error) as caught:
        from_python(JSONB, document)
    assert caught.value.sqlstate == "54000"
