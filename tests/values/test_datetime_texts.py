"""Dates and times of texts: what PostgreSQL 15 reads of them, and what it refuses.

What is expected here is what its casts gave (TimeZone UTC, DateStyle ISO, MDY). Three things differ: what is 0A000
here, a J at the end, which it passes over (16 does not), and more than 24 hours run together, which it reads as
the next day.
"""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar import errors
from instar.types import DATE, TIMESTAMP, TIMESTAMPTZ
from instar.values import reader, writer
from instar.values.datetime_texts import names_zone

_DATES = """
    2024-5-6 -> 2024-05-06
    5/6/2024 -> 2024-05-06
    5-6-24 -> 2024-05-06
    2024.05.06 -> 2024-05-06
    (2024-05-06) -> 2024-05-06
    20240506 -> 2024-05-06
    240506 -> 2024-05-06
    990108 -> 1999-01-08
    Jan-08-1999 -> 1999-01-08
    08-Jan-1999 -> 1999-01-08
    1999-Jan-08 -> 1999-01-08
    08-Jan-99 -> 1999-01-08
    Jan-08-69 -> 2069-01-08
    Jan 8, 70 -> 1970-01-08
    8 sept 5 -> 2005-09-08
    8Jan1999 -> 1999-01-08
    Jan8 1999 -> 1999-01-08
    January 8, 99 BC -> 0099-01-08 BC
    0044-03-15 bc -> 0044-03-15 BC
    12345-12-01 -> 12345-12-01
    1999.008 -> 1999-01-08
    1999-366 -> 2000-01-01
    2024.186 -> 2024-07-04
    2024 186 -> 2024-07-04
    0100.366 -> 0101-01-01
    J2451187 -> 1999-01-08
    julian 2451187 -> 1999-01-08
    J0 -> 4714-11-24 BC
    2000-01-01 on -> 2000-01-01
"""

_TIMES = """
    2004-05-06 4:5:6 -> 2004-05-06 04:05:06+00
    2004-05-06 4:5 -> 2004-05-06 04:05:00+00
    2004-05-06 4:5.5 -> 2004-05-06 00:04:05.5+00
    2004-05-06 10: -> 2004-05-06 10:00:00+00
    2004-05-06 24:00 -> 2004-05-07 00:00:00+00
    2004-05-06 23:59:60 -> 2004-05-07 00:00:00+00
    20040506T040506 -> 2004-05-06 04:05:06+00
    20040506 040506.789 +08 -> 2004-05-05 20:05:06.789+00
    2004-05-06 T040506-08 -> 2004-05-06 12:05:06+00
    040506 0405 -> 2004-05-06 04:05:00+00
    20011227 040506+08 -> 2001-12-26 20:05:06+00
    4:05 PM 6 May 2004 -> 2004-05-06 16:05:00+00
    2004-05-06 12:30 am -> 2004-05-06 00:30:00+00
    2004-05-06 12:30 PM BC -> 2004-05-06 12:30:00+00 BC
    J2451187.25 -> 1999-01-08 06:00:00+00
    J2451187-08 -> 1999-01-08 08:00:00+00
    2004-05-06 04:05:06Z -> 2004-05-06 04:05:06+00
    2004-05-06T04:05:06+0530 -> 2004-05-05 22:35:06+00
    2004-05-06 04:05:06.5-15:59 -> 2004-05-06 20:04:06.5+00
    2004-05-06 04:05 + 08 -> 2004-05-05 20:05:00+00
    2004-05-06 04:05:06+08:30:15 -> 2004-05-05 19:34:51+00
    2004-05-06 04:05 pst -> 2004-05-06 12:05:00+00
    2004-05-06 04:05 europe/oslo -> 2004-05-06 02:05:00+00
    May 6 04:05:06 UTC+3 2004 -> 2004-05-06 07:05:06+00
    +08 2004-05-06 04:05 -> 2004-05-05 20:05:00+00
    2004-05-06 japan -> 2004-05-05 15:00:00+00
    epoch -> 1970-01-01 00:00:00+00
"""

_REFUSED = """
    tea -> 22007
    2024 -> 22007
    05-06 -> 22007
    10:00 -> 22007
    2024-05 -> 22007
    2024-05-06-07 -> 22007
    10:00 2024-05-06 -> 22007
    2024-05-06 10:00 11:00 -> 22007
    2024-05-06 2024-05-06 -> 22007
    2024-05-06 10:00 x -> 22007
    2024-05-06 10:00 +08 PST -> 22007
    2024-05-06 T -> 22007
    T10:00 2024-05-06 -> 22007
    2024-05-06 T UTC+3 -> 22007
    J -> 22007
    2024-05-06 ad bc -> 22007
    2024-05-06 10:00:00.5.5 -> 22007
    2024-05-06 10:00+08x -> 22007
    32 sept 2024 -> 22007
    12.5 -> 22007
    2024-05-06 123 -> 22007
    2024-00-06 -> 22008
    2024-13-06 -> 22008
    2023-02-29 -> 22008
    0000-01-01 -> 22008
    0-1-1 BC -> 22008
    20240230 -> 22008
    2024-05-06 24:00:01 -> 22008
    2024-05-06 10:60 -> 22008
    2024-05-06 13:00 pm -> 22008
    2024-05-06 250000 -> 22008
    99999999999-01-01 -> 22008
    J99999999999 -> 22008
    J2147483000 -> 22008
    2024-05-06 10:00+16 -> 22009
    2024-05-06 10:00-08:60 -> 22009
    2024-05-06 10:00 Nowhere/Land -> 22023
    infinity -> 0A000
    now -> 0A000
    2024-05-06 MET DST -> 0A000
    2024-05-06 J -> 22007
"""


def _cases(table: str) -> list[tuple[str, str]]:
    """Texts and what becomes of them."""
    return [(text, told) for text, _, told in (line.strip().partition(" -> ") for line in table.splitlines()) if told]


def _timestamptz(text: str) -> str:
    return writer(TIMESTAMPTZ, "UTC")(reader(TIMESTAMPTZ, "UTC")(text))


@pytest.mark.parametrize(("text", "day"), _cases(_DATES))
def test_dates(text: str, day: str) -> None:
    assert writer(DATE)(reader(DATE, "UTC")(text)) == day


@pytest.mark.parametrize(("text", "instant"), _cases(_TIMES))
def test_times(text: str, instant: str) -> None:
    assert _timestamptz(text) == instant


def test_a_zone_is_passed_over_where_there_is_none() -> None:
    assert writer(TIMESTAMP)(reader(TIMESTAMP, "UTC")("2004-05-06 04:05:06+08")) == "2004-05-06 04:05:06"
    assert not names_zone("2004-05-06 04:05:06")
    for text in ("2004-05-06 04:05:06+00", "May 6 2004 PST", "epoch"):
        assert names_zone(text)


@pytest.mark.parametrize(
    ("text", "code"), [*_cases(_REFUSED), ("", "22007"), (" ", "22007"), ("2024-05-06 \u0661:00", "22007")]
)
def test_what_is_refused(text: str, code: str) -> None:
    with pytest.raises(errors.Error) as caught:
        reader(TIMESTAMPTZ, "UTC")(text)
    assert caught.value.sqlstate == code


_ZEROS = "0" * 5000  # more digits than Python reads as a number


@pytest.mark.parametrize(
    "text",
    [
        "Z20200101",
        "2020-Z1-1",
        "2020-1-1 Z1:00",
        "2020-1-1 1:Z1",
        "2020-1-1 1:00+Z1:00",
        "2020-1-1 1:00+1:Z",
        "JZ2451187",
    ],
)
def test_numbers_have_any_number_of_zeros_in_front(text: str) -> None:
    assert _timestamptz(text.replace("Z", _ZEROS)) == _timestamptz(text.replace("Z", "0"))


@pytest.mark.parametrize("text", ["Z5 Jan 2020", "Z.Z", "9Z-1-1", "2020-1-1 1:9Z", "J9Z"])
def test_long_numbers_are_refused(text: str) -> None:
    with pytest.raises(errors.Error) as caught:
        reader(TIMESTAMPTZ, "UTC")(text.replace("Z", _ZEROS))
    assert caught.value.sqlstate in ("22007", "22008", "22009")


_WORDS = (
    "2024-05-06 05/06/24 Jan 8 99 1999 040506 T t J 10:00 4:5.5 + +08 -08:30 PST UTC+3 AM pm BC Mon , . 186 2451187"
)
_PIECES = st.one_of(
    st.sampled_from(_WORDS.split()), st.text(alphabet=string.printable + "\u00e9\u0661\u0000", max_size=4)
)


@given(st.lists(st.tuples(_PIECES, st.sampled_from(["", " ", "-"])), max_size=8))
def test_any_text_is_a_time_or_refused(pieces: list[tuple[str, str]]) -> None:
    text = "".join(piece + between for piece, between in pieces)
    try:
        instant = reader(TIMESTAMPTZ, "UTC")(text)
    except errors.Error as caught:
        refused = caught.sqlstate
    else:
        # What is printed of it is read as the same.
        assert reader(TIMESTAMPTZ, "UTC")(writer(TIMESTAMPTZ, "UTC")(instant)) == instant
        return
    assert refused in ("22007", "22008", "22009", "22023", "0A000")


@given(st.datetimes(), st.integers(-15 * 60 - 59, 15 * 60 + 59))
def test_the_quick_way_is_the_long_one(moment: object, offset: int) -> None:
    sign, minutes = "-" if offset < 0 else "+", abs(offset)
    for text in (f"{moment}", f"{moment}{sign}{minutes // 60:02}:{minutes % 60:02}", f"{moment}Z"):
        assert reader(TIMESTAMPTZ, "UTC")(text) == reader(TIMESTAMPTZ, "UTC")(f" {text}")


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
