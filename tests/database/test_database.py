"""Opening a database."""

from __future__ import annotations

import pytest

import instar


def test_a_path_that_no_file_can_have_is_an_error_of_instars_own() -> None:
    with pytest.raises(instar.Error, match="null characters") as caught:
        instar.connect("a\0b")
    assert caught.value.sqlstate == "22023"
