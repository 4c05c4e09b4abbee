"""to_char: PostgreSQL 15's answers, in both engines."""

from __future__ import annotations

import pytest

from instar import errors
from instar.sql.functions.date_formats import to_char
from instar.sql.planner import Engines
from instar.types import BIGINT, DATE, TIMESTAMP, TIMESTAMPTZ
from instar.values import from_text
from sql.trees import fill, query
from support.world import World

BOTH: tuple[Engines, ...] = ("executor", "analytic")


@pytest.mark.parametrize(
    ("text", "template", "expected"),
    [
        ("2024-03-31 02:30:05.012345", "YYYY-MM-DD HH24:MI:SS.MS US FF1 FF3", "2024-03-31 02:30:05.012 012345 0 012"),
        ("2024-03-31 00:05:00", "HH:MI AM a.m. HH12 FMHH12", "12:05 AM a.m. 12 12"),
        ("2024-03-01 12:05:00", "HH p.m. SSSS", "12 p.m. 43500"),
        (
            "2024-05-07 00:00:00",
            "Month|MONTH|month|FMMonth|Mon|Day|DAY|FMday|Dy|dy",
            "May      |MAY      |may      |May|May|Tuesday  |TUESDAY  |tuesday|Tue|tue",
        ),
        ("0044-03-15 00:00:00 BC", "YYYY BC B.C. bc CC AD", "0044 BC B.C. bc -01 BC"),
        ("12345-06-07 00:00:00", "YYYY YYY YY Y Y,YYY", "12345 345 45 5 12,345"),
        (
            "2021-01-03 00:00:00",
            "IYYY IYY IY I IW ID IDDD WW W Q D DDD J",
            "2020 020 20 0 53 7 371 01 1 1 1 003 2459218",
        ),
        ("2020-12-31 00:00:00", "IYYY-IW-ID DDDth", "2020-53-4 366th"),
        ("2024-11-21 00:00:00", "DDth DDTH FMDDth RM FMrm", "21st 21ST 21st XI   xi"),
        ("2024-11-11 00:00:00", 'DD"th of" FMMonth "a\\"b" \\"x\\"', '11th of November a"b "x"'),
        ("2024-11-13 00:00:00", "Hh24 Yyyy Mm é T", "Hh24 4024 Mm é T"),
        ("0600-01-02 00:00:00", "CC YYYY FMYYYY", "06 0600 600"),
        ("0001-01-02 00:00:00 BC", "YYYY IYYY CC", "0001 0002 -01"),
        ("2024-03-31", "", None),
    ],
)
def test_patterns(text: str, template: str, expected: str | None) -> None:
    assert to_char(from_text(TIMESTAMP, text), template) == expected  # type: ignore[arg-type]  # a timestamp is an int


@pytest.mark.parametrize("pattern", ["TZ", "OF", "tzh", "TZM", "TMMonth", "FXYYYY", "YYYYSP"])
def test_patterns_that_are_left_out_are_named(pattern: str) -> None:
    with pytest.raises(errors.Error, match=r'the pattern ".*" of to_char is not supported') as caught:
        to_char(0, f"DD {pattern}")
    assert caught.value.sqlstate == "0A000"


@pytest.mark.parametrize("engines", BOTH)
def test_dates_and_timestamps_of_rows(engines: Engines) -> None:
    world = World()
    table = world.create_table("t", (("id", BIGINT), ("d", DATE), ("s", TIMESTAMP), ("z", TIMESTAMPTZ)))
    text = "2024-03-05 17:08:09"
    row = (from_text(DATE, text[:10]), from_text(TIMESTAMP, text), from_text(TIMESTAMPTZ, text + "+00"))
    fill(world, table, [(1, *row), (2, None, None, None)])
    columns = "to_char(d, 'DD.MM.YYYY'), to_char(s, 'FMDDth FMMonth, HH12:MI am'), to_char(z, 'HH24' || ':MI:SS.MS')"
    assert query(world, f"SELECT {columns} FROM t ORDER BY id", engines=engines) == [
        ("05.03.2024", "5th March, 05:08 pm", "17:08:09.000"),
        (None, None, None),
    ]
