"""Dates, times and zones as texts: what PostgreSQL reads of them."""

from __future__ import annotations

import pytest

from instar import errors
from instar.types import DATE, TIMESTAMPTZ
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


@pytest.mark.parametrize(
    "text",
    [
        "Mon Nov 23 2026", "Tue Nov 23 2026", "Monday, November 23, 2026", "weds 23 Nov 2026", "2026-11-23 Mon",
        "2026-11-23Mon", "Nov 23 2026 Mon", "Mon 20261123", "Mon,Nov 23 2026",
    ],
)  # fmt: skip
def test_a_day_of_the_week_is_passed_over(text: str) -> None:
    assert writer(DATE)(reader(DATE, "UTC")(text)) == "2026-11-23"


@pytest.mark.parametrize(
    "text",
    [
        "Mon, 23 Nov 2026 10:00:00 +0000", "Mon Nov 23 10:00:00 2026", "Mon Nov 23 10:00:00 UTC 2026",
        "Mon Nov 23 10:00 2026 UTC", "2026-11-23 Mon 10:00", "2026-11-23 10:00 Mon UTC",
    ],
)  # fmt: skip
def test_a_day_of_the_week_with_a_time(text: str) -> None:
    assert writer(TIMESTAMPTZ, "UTC")(reader(TIMESTAMPTZ, "UTC")(text)) == "2026-11-23 10:00:00+00"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("13/01/2024", "22008"), ("32/01/2024", "22008"), ("2024-13-01", "22008"), ("02/30/2024", "22008"),
        ("Mon", "22007"), ("Mon 2026-11-23", "22007"), ("Mon Mon Nov 23 2026", "22007"), ("MonNov 23 2026", "22007"),
        ("wednes Nov 23 2026", "22007"), ("Mon 11/23/2026", "22007"),
    ],
)  # fmt: skip
def test_what_is_no_date(text: str, code: str) -> None:
    with pytest.raises(errors.Error) as caught:
        reader(DATE, "UTC")(text)
    assert caught.value.sqlstate == code
