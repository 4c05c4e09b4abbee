"""The table per change and the picture, of a run that is known."""

import io
import json
from xml.etree import ElementTree

import pytest
from demo.changes import CHANGES, LEAST_SECONDS, Course, Stage
from demo.display import LiveDisplay, PlainDisplay, Scene, draw, sparkline
from demo.report import Outcome, Settings, changes_table, duration, milliseconds, seen, verdict, write_json
from rich.console import Console

from demo import timeline


@pytest.fixture
def courses():
    index = Course(CHANGES[1], 11.0, 20.0, rows_done=600)
    index.stages = [
        Stage("delete-only", 11.0),
        Stage("write-only", 11.2),
        Stage("backfill", 14.0),
        Stage("public", 19.9),
    ]
    failed = Course(CHANGES[5], 22.0, 25.0, "23505", "could not create unique index", 100)
    failed.stages = [Stage("write-only", 22.0), Stage("taken back", 24.5), Stage("failed", 25.5)]
    return [Course(CHANGES[0], 8.0, 8.004), index, failed]


@pytest.fixture
def outcome(board, courses):
    settings = Settings(0.1, 2, "full", 2000.0, 1000.0, {"orders": 150_000})
    during = [seen(board, *course.windows()) for course in courses]
    return Outcome(settings, seen(board, 10, 70), (10, 70), (90, 100), courses, during, board.operations, 3)


def text_of(renderable):
    out = io.StringIO()
    Console(file=out, width=200).print(renderable)
    return out.getvalue()


def test_a_row_per_change(outcome):
    text = text_of(changes_table(outcome))
    lines = {change.title: next(line for line in text.splitlines() if change.title in line)
             for change in (CHANGES[0], CHANGES[1], CHANGES[5])}  # fmt: skip
    assert "4.0 ms" in lines[CHANGES[0].title]
    assert "0.20 ms" in lines[CHANGES[0].title]  # no stall beside it
    assert "9.0 s" in lines[CHANGES[1].title]
    assert "600" in lines[CHANGES[1].title]
    assert "500 ms" in lines[CHANGES[1].title]  # the stall
    assert "23505, as it must" in lines[CHANGES[5].title]


def test_a_brief_change_is_judged_by_three_seconds(courses):
    first, last = courses[0].windows()
    assert (last - first) / 10 >= LEAST_SECONDS


def test_a_change_that_should_have_failed_is_not_as_expected():
    course = Course(CHANGES[5], 1.0, 2.0)
    assert not course.is_as_expected
    assert "should have failed" in verdict(course)
    assert not Course(CHANGES[0], 1.0, 2.0, "42703").is_as_expected


def test_the_picture(outcome, board, tmp_path):
    png, svg = tmp_path / "timeline.png", tmp_path / "timeline.svg"
    timeline.draw(outcome, board, [png, svg])
    assert png.read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")


def test_stages_end_where_the_next_begins_and_with_the_change(courses):
    assert [(stage.name, until) for stage, until in timeline.spans(courses[2])] == [
        ("write-only", 24.5), ("taken back", 25.0), ("failed", 25.0)
    ]  # fmt: skip
    assert timeline.spans(courses[0]) == []


def test_figures_for_programs(outcome, tmp_path):
    write_json(outcome, tmp_path / "demo.json")
    found = json.loads((tmp_path / "demo.json").read_text())
    assert found["courses"][1]["rows_done"] == 600
    assert found["quiet"]["completed_per_second"] == pytest.approx(1000)


def test_the_live_display_draws_a_running_change(board, courses):
    courses[1].end = None
    scene = Scene("headline", "create an index", board, 1000.0, seen(board, 10, 70), courses[:2])
    text = text_of(draw(scene, 120))
    assert "▶" in text
    assert "backfill" in text or "public" in text
    display = LiveDisplay(Console(file=io.StringIO(), force_terminal=True, width=120))
    display.update(scene)
    display.note("a line")
    display.close()


def test_plain_lines(board, courses, monkeypatch):
    monkeypatch.setattr("demo.display._PLAIN_EVERY", 0.0)
    courses[1].end = None
    courses[1].share, courses[1].doing = 0.25, "Spark reads rows, 300 so far"
    out = io.StringIO()
    display = PlainDisplay(Console(file=out, width=200))
    display.update(Scene("headline", "create an index", board, 1000.0, None, courses[:2]))
    assert "create an index: public" in out.getvalue()
    assert "median" in out.getvalue()
    assert "25%: Spark reads rows, 300 so far" in out.getvalue()


def test_nothing_is_said_of_traffic_that_has_just_begun(board):
    out = io.StringIO()
    PlainDisplay(Console(file=out, width=200)).update(Scene("headline", "quiet", board, 1000.0, None, []))
    assert out.getvalue() == ""


def test_amounts_for_people():
    assert [milliseconds(value) for value in (0.1234, 12.34, 1234.0, float("nan"))] == [
        "0.12 ms",
        "12.3 ms",
        "1234 ms",
        "-",
    ]
    assert [duration(value) for value in (0.0041, 12.34)] == ["4.1 ms", "12.3 s"]
    assert sparkline([0, 0.5, 1, 7]) == " ▄██"
