"""Plots of a run as SVG text to stand inside a page: real axes, no script, no font file, nothing fetched."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from hetero.records import F64
from pipelines.run_record import REST, Series, Shares

_WIDTH = 10.0
_POINTS = 1200
_FAR = 0.25
_SEEN = 0.001
_INK, _FAINT, _GRID = "#222222", "#9db8d9", "#e4e4e4"
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "hetero",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.edgecolor": "#888888",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "legend.frameon": False,
    "legend.fontsize": 9,
}
READABLE = FuncFormatter(lambda value, _: f"{value:,.12g}")
_NO_METADATA: Any = {"Creator": None, "Date": None, "Format": None, "Type": None}
COLORS = {
    "data.batch": "#8c6bb1",
    "keys.window": "#41ab5d",
    "rows.pull": "#2b8cbe",
    "tower.step": "#08519c",
    "tower.score": "#6baed6",
    "grads.merge": "#00808a",
    "rows.push": "#74c476",
    "snapshot.write": "#bf812d",
    "wait.reader": "#fdae6b",
    "wait.sequencer": "#fdd0a2",
    "wait.server": "#ef6548",
    "wait.towers": "#d94801",
    REST: "#eeeeee",
}
_LINES = ("#08519c", "#d94801", "#238b45", "#6a51a3", "#00808a", "#bf812d", "#ae017e", "#525252")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened at `x`, drawn as a line through a plot."""

    x: float
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAxis:
    """The time that plots show, from `start_s` to `end_s` seconds alive, and what it is told in."""

    start_s: float
    end_s: float
    unit: str
    unit_s: float

    @staticmethod
    def of(start_s: float, end_s: float) -> TimeAxis:
        """In the unit that suits its length."""
        units = {"s": (1.0, 300.0), "min": (60.0, 3 * 3600.0), "h": (3600.0, float("inf"))}
        unit = next(name for name, (_, most) in units.items() if end_s < most)
        return TimeAxis(start_s=start_s, end_s=end_s, unit=unit, unit_s=units[unit][0])

    def set(self, axes: Axes) -> None:
        """Let a plot show it, with all that was marked."""
        axes.set_xlim(self.start_s / self.unit_s, max(self.end_s, self.start_s + 1e-3) / self.unit_s)
        axes.set_xlabel(f"time since the start, {self.unit}")


def loss_plot(
    losses: tuple[F64, F64], *, unit: str, validation: tuple[F64, F64] | None, marks: Sequence[Mark] = ()
) -> str:
    """Loss by step: as it was, and a running mean. validation: (steps, losses) besides."""
    steps, values = losses
    with plot_figure(height=3.6) as (figure, axes):
        x, low, high, mean = _thinned(steps, values)
        if len(steps) > len(x):
            axes.fill_between(x, low, high, color=_FAINT, alpha=0.45, linewidth=0, label="least and most of the steps")
        else:
            axes.plot(x, mean, color=_FAINT, linewidth=0.8, label="each step")
        axes.plot(x, _smoothed(mean), color=_LINES[0], linewidth=1.6, label="running mean")
        if validation is not None and len(validation[0]):
            axes.plot(*validation, "o-", color=_LINES[1], markersize=4, linewidth=1, label="validation")
        finite = values[np.isfinite(values)]
        if len(finite) > 20:
            axes.set_ylim(*_without_outliers(finite, validation))
        axes.set_xlabel("step")
        axes.set_ylabel(f"loss, {unit}")
        _draw_marks(axes, marks)
        axes.legend(loc="upper right")
        return svg_of(figure)


def lines_plot(
    series: Mapping[str, Series], *, ylabel: str, axis: TimeAxis, marks: Sequence[Mark] = (), share: bool = False
) -> str:
    """One line a series over time. share: values are in [0, 1]."""
    with plot_figure(height=3.0) as (figure, axes):
        for number, (name, line) in enumerate(series.items()):
            color = _LINES[number % len(_LINES)]
            marker = "o" if len(line) < 25 else None
            axes.plot(line.t / axis.unit_s, line.values, color=color, marker=marker, markersize=3, label=name)
        axes.set_ylim(0, 1.02 if share else None)
        axis.set(axes)
        axes.yaxis.set_major_formatter(READABLE)
        axes.set_ylabel(ylabel)
        _draw_marks(axes, [Mark(x=mark.x / axis.unit_s, what=mark.what) for mark in marks])
        if len(series) > 1:
            axes.legend(loc="best", ncols=min(4, len(series)))
        return svg_of(figure)


def timeline_plot(roles: Sequence[Shares], *, axis: TimeAxis, marks: Sequence[Mark] = ()) -> str:
    """Where the time of every role went, one strip a role, over time."""
    height = 0.9 + 0.85 * len(roles)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        rows = figure.subplots(len(roles), 1, sharex=True, squeeze=False)[:, 0]
        for axes, shares in zip(rows, roles, strict=True):
            _draw_shares(axes, shares, axis)
            for mark in marks:
                axes.axvline(mark.x / axis.unit_s, color=_INK, linewidth=0.8, linestyle=":")
        axis.set(rows[-1])
        spans = _in_order({span for shares in roles for span, share in shares.shares.items() if share.max() > _SEEN})
        handles = [Patch(color=COLORS.get(span, _INK), label=span) for span in spans]
        figure.legend(handles=handles, loc="outside upper center", ncols=min(6, len(handles)))
        return svg_of(figure)


def totals_plot(totals: Mapping[str, Mapping[str, float]]) -> str:
    """Where the time of every role went in all, one bar a role."""
    longest = max(sum(seconds.values()) for seconds in totals.values())
    spans = _in_order({span for seconds in totals.values() for span, s in seconds.items() if s > _SEEN * longest})
    unit = TimeAxis.of(0.0, longest)
    with plot_figure(height=0.9 + 0.34 * len(totals)) as (figure, axes):
        left = np.zeros(len(totals))
        for span in spans:
            widths = np.array([max(0.0, seconds.get(span, 0.0)) for seconds in totals.values()]) / unit.unit_s
            axes.barh(list(totals), widths, left=left, color=COLORS.get(span, _INK), height=0.7, label=span)
            left += widths
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(f"time inside spans, {unit.unit}")
        figure.legend(loc="outside upper center", ncols=min(6, len(spans)))
        return svg_of(figure)


def histogram_plot(counts: Mapping[int, float], *, xlabel: str, ylabel: str) -> str:
    """Bars over whole numbers; beyond 30 of them, those of equal width put together."""
    values = np.array(list(counts), np.float64)
    width = max(1, int(np.ceil((values.max() + 1) / 30)))
    bars = np.bincount((values // width).astype(int), weights=np.array(list(counts.values()), np.float64))
    with plot_figure(height=2.8) as (figure, axes):
        lefts = np.arange(len(bars)) * width
        axes.bar(lefts, bars / bars.sum(), width=0.9 * width, align="center" if width == 1 else "edge", color=_LINES[0])
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        axes.grid(visible=False, axis="x")
        return svg_of(figure)


def pairs_plot(pairs: Mapping[str, tuple[float, float]]) -> str:
    """Measured / predicted of each name, as bars from 1 where both are above 0; far from it on a logarithmic scale."""
    ratios = {name: measured / predicted for name, (predicted, measured) in pairs.items() if predicted and measured > 0}
    low, high = min(ratios.values(), default=1.0), max(ratios.values(), default=1.0)
    with plot_figure(height=0.8 + 0.36 * max(1, len(ratios))) as (figure, axes):
        if min(low, 1 / high) < _FAR:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(READABLE)
        axes.barh(list(ratios), [ratio - 1 for ratio in ratios.values()], left=1.0, color=_LINES[0], height=0.6)
        axes.axvline(1.0, color=_LINES[1], linewidth=1.4)
        axes.set_xlim(min(0.7, low / 1.15), max(1.3, high * 1.15))
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("measured / predicted")
        return svg_of(figure)


@contextmanager
def plot_figure(*, height: float) -> Iterator[tuple[Figure, Axes]]:
    """A figure of one plot in the page's style, which holds while it is written too."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        yield figure, figure.subplots()


def svg_of(figure: Figure) -> str:
    """The figure as an `<svg>` element that takes the width it is given."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata=_NO_METADATA)
    text = file.getvalue()
    text = text[text.index("<svg") :]
    return re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1))


def _draw_shares(axes: Axes, shares: Shares, axis: TimeAxis) -> None:
    spans = _in_order(set(shares.shares))
    edges = np.repeat(shares.edges / axis.unit_s, 2)[1:-1]
    heights = [np.repeat(shares.shares[span], 2) for span in spans]
    axes.stackplot(edges, heights, colors=[COLORS.get(span, _INK) for span in spans], linewidth=0)
    top = float(np.max(np.sum(list(shares.shares.values()), axis=0), initial=1.0))
    axes.set_ylim(0, 1.0 if top < 1.1 else top)
    axes.set_yticks([0, 1], ["0", "1"])
    axes.set_facecolor(COLORS[REST])
    axes.grid(visible=False)
    axes.set_ylabel(shares.role, rotation=0, ha="right", va="center")


def _draw_marks(axes: Axes, marks: Sequence[Mark]) -> None:
    low, high = axes.get_xlim()
    for mark in _apart(marks, least=0.02 * (high - low)):
        axes.axvline(mark.x, color=_INK, linewidth=0.8, linestyle=":")
        axes.annotate(
            mark.what,
            (mark.x, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(-2, -2),
            textcoords="offset points",
            rotation=90,
            va="top",
            ha="right",
            fontsize=8,
        )


def _apart(marks: Sequence[Mark], *, least: float) -> list[Mark]:
    """Marks of which those nearer to each other than `least` are told together."""
    told: list[Mark] = []
    for mark in sorted(marks, key=lambda mark: mark.x):
        if told and mark.x - told[-1].x < least:
            if mark.what not in told[-1].what:
                told[-1] = Mark(x=told[-1].x, what=f"{told[-1].what}, {mark.what}")
        else:
            told.append(mark)
    return told


def _in_order(spans: set[str]) -> list[str]:
    """Work before waits, in the order of the flow."""
    known = [span for span in COLORS if span in spans]
    return known + sorted(spans - set(known))


def _thinned(x: F64, y: F64) -> tuple[F64, F64, F64, F64]:
    """(x, least, most, mean) of runs of equal length, at most `_POINTS` of them."""
    per = -(-len(x) // _POINTS)
    if per <= 1:
        return x, y, y, y
    starts = np.arange(0, len(x), per)
    count = np.diff([*starts, len(x)])
    mean = np.add.reduceat(y, starts) / count
    return x[starts], np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts), mean


def _smoothed(y: F64) -> F64:
    """Mean of the points around each; fewer at the ends."""
    half = max(1, len(y) // 60)
    total = np.concatenate([[0.0], np.cumsum(np.nan_to_num(y))])
    low = np.clip(np.arange(len(y)) - half, 0, None)
    high = np.clip(np.arange(len(y)) + half + 1, None, len(y))
    mean: F64 = (total[high] - total[low]) / (high - low)
    return mean


def _without_outliers(values: F64, validation: tuple[F64, F64] | None) -> tuple[float, float]:
    """Limits that hold all but the rarest values, and room around them."""
    low, high = np.quantile(values, [0.002, 0.995])
    high = max(high, float(_smoothed(values)[0]))
    if validation is not None and len(validation[1]):
        low, high = min(low, validation[1].min()), max(high, validation[1].max())
    room = 0.05 * (high - low) or 0.1
    return float(low - room), float(high + room)
