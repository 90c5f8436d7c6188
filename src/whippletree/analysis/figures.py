"""Figures as PNG bytes: learning curves, a heatmap over factor levels, intervals of policies, and costs that grow.

Invariant: drawing touches no global state and no screen; series differ in more than colour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from math import ceil, isfinite, nan
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from whippletree.analysis.growth import Growth, exponent, line
from whippletree.analysis.intervals import Array, Interval
from whippletree.analysis.scores import set_title

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, which the colour-blind can tell apart."""
_MARKERS = "osD^vPX"
_LINES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
_INK = "#333333"

PANELS = (
    ("reward", "Mean reward"),
    ("entropy", "Entropy (nats per token)"),
    ("signal_share", "Share of groups with signal"),
    ("tokens", "Tokens per step"),
)
"""Metric name and title of each panel of the learning curves."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric of one run."""

    arm: str
    metric: str
    points: Sequence[tuple[int, float]]
    """(step, value)."""
    seed: int = 0


def learning_curves(curves: Sequence[Curve], panels: Sequence[tuple[str, str]] = PANELS) -> bytes:
    """A panel a metric and a line an arm: the mean over seeds, smoothed where long, over the raw values of each seed.

    Panels without data are left out; raises ValueError where none is left.
    """
    shown = [(m, title) for m, title in panels if any(c.metric == m and c.points for c in curves)]
    if not shown:
        raise ValueError(f"no curve has one of the metrics {[m for m, _ in panels]}")
    arms = list(dict.fromkeys(curve.arm for curve in curves))
    rows, columns = ceil(len(shown) / 2), min(2, len(shown))
    figure, grid = _figure(4.6 * columns, 2.7 * rows + 0.4, rows, columns)
    for axes, (metric, title) in zip(grid, shown, strict=False):
        for i, arm in enumerate(arms):
            seeds = [c.points for c in curves if (c.arm, c.metric) == (arm, metric) and c.points]
            if seeds:
                _draw_arm(axes, seeds, i, arm)
        axes.set_title(title, loc="left", fontsize=10, color=_INK)
        axes.set_xlabel("Step", fontsize=9)
        axes.grid(axis="y", color="#e5e5e5", linewidth=0.8)
    for axes in grid[len(shown) :]:
        axes.set_axis_off()
    handles = {label: h for axes in grid for h, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if len(arms) > 1:
        figure.legend(
            [handles[a] for a in arms if a in handles],
            [a for a in arms if a in handles],
            loc="outside upper left",
            ncols=min(4, len(arms)),
            frameon=False,
            fontsize=9,
        )
    return _png(figure)


def heatmap(columns: Mapping[str, Mapping[tuple[str, int], float]], title: str) -> bytes:
    """Rows are factor levels, columns policies; values in [0, 1] are written in percent. A missing cell stays blank."""
    policies = list(columns)
    rows = list(dict.fromkeys(row for column in columns.values() for row in column))
    if not rows:
        raise ValueError("a heatmap needs at least one policy with one factor level")
    values = np.array([[100.0 * columns[p].get(row, nan) for p in policies] for row in rows])
    figure, (axes,) = _figure(1.6 + 1.15 * len(policies), 1.1 + 0.27 * len(rows), 1, 1)
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    axes.imshow(values, cmap="cividis", aspect="auto", vmin=low, vmax=max(high, low + 1.0))
    for (i, j), value in np.ndenumerate(values):
        if isfinite(value):
            dark = value < low + 0.6 * max(high - low, 1.0)
            axes.text(j, i, f"{value:.1f}", ha="center", va="center", fontsize=8, color="white" if dark else "black")
    axes.set_xticks(range(len(policies)), [_wrap(p) for p in policies], fontsize=9)
    axes.set_yticks(range(len(rows)), [f"{factor}{level}" for factor, level in rows], fontsize=9)
    axes.tick_params(length=0, top=False, bottom=False)
    for i in range(1, len(rows)):
        if rows[i][0] != rows[i - 1][0]:
            axes.axhline(i - 0.5, color="white", linewidth=3)
    axes.spines[:].set_visible(False)
    axes.set_title(title, loc="left", fontsize=10, color=_INK)
    return _png(figure)


def interval_chart(policies: Mapping[str, Mapping[str, Interval]], title: str) -> bytes:
    """Points with intervals, grouped by set of harnesses, one mark a policy; values in [0, 1] are shown in percent."""
    sets = list(dict.fromkeys(name for row in policies.values() for name in row))
    if not sets:
        raise ValueError("an interval chart needs at least one policy with one set of harnesses")
    gap = len(policies) + 1
    figure, (axes,) = _figure(7.2, 0.9 + 0.3 * gap * len(sets), 1, 1)
    for i, (label, row) in enumerate(policies.items()):
        colour, marker = PALETTE[i % len(PALETTE)], _MARKERS[i % len(_MARKERS)]
        at = [gap * sets.index(name) + i for name in row]
        means = [100.0 * interval.mean for interval in row.values()]
        axes.plot(means, at, marker, color=colour, label=label, markersize=6)
        for y, mean, interval in zip(at, means, row.values(), strict=True):
            right = 100.0 * interval.high if isfinite(interval.high) else mean
            if isfinite(interval.low):
                axes.plot([100.0 * interval.low, right], [y, y], color=colour, linewidth=2)
            place = {"xytext": (7, 0), "textcoords": "offset points", "va": "center", "fontsize": 8}
            axes.annotate(f"{mean:.1f}", (right, y), color=_INK, **place)
    axes.set_yticks([gap * i + (len(policies) - 1) / 2 for i in range(len(sets))], [set_title(s) for s in sets])
    axes.invert_yaxis()
    axes.set_xlim(0.0, 1.1 * max(axes.get_xlim()[1], 1.0))  # room for the numbers
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("Pass@1 (%)", fontsize=9)
    axes.grid(axis="x", color="#e5e5e5", linewidth=0.8)
    axes.set_title(title, loc="left", fontsize=10, color=_INK)
    figure.legend(loc="outside upper right", ncols=min(4, len(policies)), frameon=False, fontsize=9)
    return _png(figure)


def growth_panels(growths: Sequence[Growth], unit: str) -> bytes:
    """A panel a size, logarithmic axes: the whole cost, its parts, and the line through the first two points."""
    figure, grid = _figure(3.6 * len(growths), 3.4, 1, len(growths))
    for axes, growth in zip(grid, growths, strict=True):
        sizes = [size for size, _ in growth.total]
        fixed, slope = line(growth.total)
        axes.plot(sizes, [fixed + slope * size for size in sizes], color="#999999", linestyle=":", label="a line")
        for i, (name, points) in enumerate({"whole step": growth.total, **growth.parts}.items()):
            style = {"color": PALETTE[i], "marker": _MARKERS[i], "markersize": 5 if i else 7}
            axes.plot(*zip(*points, strict=True), linewidth=1.0 if i else 2.0, label=name, **style)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
        axes.set_xlabel(growth.label, fontsize=9)
        axes.set_title(f"exponent {exponent(growth.total):.2f}", loc="left", fontsize=10, color=_INK)
        axes.grid(axis="y", color="#e5e5e5", linewidth=0.8)
    grid[0].set_ylabel(unit, fontsize=9)
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside upper left", ncols=6, frameon=False, fontsize=9)
    return _png(figure)


def _draw_arm(axes: Any, seeds: Sequence[Sequence[tuple[int, float]]], i: int, arm: str) -> None:
    colour = PALETTE[i % len(PALETTE)]
    by_step: dict[int, list[float]] = {}
    for points in seeds:
        axes.plot(*zip(*points, strict=True), color=colour, alpha=0.25, linewidth=0.9)
        for step, value in points:
            by_step.setdefault(step, []).append(value)
    steps = sorted(by_step)
    means = np.array([fmean(by_step[step]) for step in steps])
    axes.plot(steps, _smooth(means), color=colour, linestyle=_LINES[i % len(_LINES)], linewidth=1.8, label=arm)


def _smooth(values: Array) -> Array:
    """Centred moving average over a fifteenth of the points; short series stay as they are."""
    half = len(values) // 30
    if half == 0:
        return values
    known = np.isfinite(values)
    kernel = np.ones(2 * half + 1)
    total = np.convolve(np.where(known, values, 0.0), kernel)[half:-half]
    count = np.convolve(known.astype(np.float64), kernel)[half:-half]
    return np.where(count > 0, total / np.maximum(count, 1.0), nan)


def _figure(width: float, height: float, rows: int, columns: int) -> tuple[Any, list[Any]]:
    figure: Any = Figure(figsize=(width, height), dpi=144, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes: list[Any] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["left", "bottom"]].set_color("#999999")
        ax.tick_params(labelsize=9, color="#999999", labelcolor=_INK)
    return figure, axes


def _png(figure: Any) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _wrap(label: str) -> str:
    return label.replace(" ", "\n")
