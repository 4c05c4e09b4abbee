"""Curves as SVG, where the results go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness import Options

_STYLE: Any = {"font.family": "sans-serif", "font.size": 10, "svg.hashsalt": "instar"}


def curves(options: Options, name: str, measured: str, series: Mapping[str, Sequence[float]], window: float) -> None:
    """Draw one line per series, a value per window of so many seconds, if there is where to put the picture."""
    points = {
        label: [(place * window, value) for place, value in enumerate(values)] for label, values in series.items()
    }
    lines(options, name, "seconds", measured, points)


def lines(
    options: Options, name: str, along: str, measured: str, series: Mapping[str, Sequence[tuple[float, float]]]
) -> None:
    """Draw one line per series of points, if there is where to put the picture."""
    if options.output is None:
        return
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(10, 4), layout="constrained")
        axes = figure.subplots()
        for label, points in series.items():
            axes.plot([place for place, _ in points], [value for _, value in points], label=label, linewidth=1)
        axes.set_xlabel(along)
        axes.set_ylabel(measured)
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
        options.output.mkdir(parents=True, exist_ok=True)
        figure.savefig(options.output / f"{name}.svg", metadata={"Date": None})
