"""Time zones: what a session may be set to, and what a clock shows there."""

from __future__ import annotations

import pytest

from instar import errors
from instar.types import TIMESTAMPTZ
from instar.values import reader, writer
from instar.values.datetimes import zone_setting

NOON = "2024-01-15 12:00+00"


@pytest.mark.parametrize(
    ("given", "shown", "noon"),
    [
        ("+03", "<+03>-03", "2024-01-15 15:00:00+03"),
        (" -3", "<-03>+03", "2024-01-15 09:00:00-03"),
        ("3.5", "<+03:30>-03:30", "2024-01-15 15:30:00+03:30"),
        ("+03:30", "<-03:30>+03:30", "2024-01-15 08:30:00-03:30"),
        ("UTC+3", "UTC+3", "2024-01-15 09:00:00-03"),
        ("EST5", "EST5", "2024-01-15 07:00:00-05"),
        ("<+0330>-3:30", "<+0330>-3:30", "2024-01-15 15:30:00+03:30"),
        ("Etc/GMT+3", "Etc/GMT+3", "2024-01-15 09:00:00-03"),
        ("europe/oslo", "europe/oslo", "2024-01-15 13:00:00+01"),
    ],
)
def test_zones_of_a_session(given: str, shown: str, noon: str) -> None:
    assert zone_setting(given) == shown
    instant = reader(TIMESTAMPTZ, "UTC")(NOON)
    assert writer(TIMESTAMPTZ, shown)(instant) == noon
    assert reader(TIMESTAMPTZ, "UTC")(noon) == instant


@pytest.mark.parametrize("given", ["+0330", "16", "+", "", "PST", "AB3", "UTC+16", "nowhere"])
def test_what_is_no_zone_of_a_session(given: str) -> None:
    with pytest.raises(errors.Error) as caught:
        zone_setting(given)
    assert caught.value.sqlstate == errors.INVALID_PARAMETER
