"""How a cost grows with a size: the exponent of a power law, and the size at which it leaves a straight line.

Invariant: a cost that is a fixed part and a proportional one never leaves its line, whatever its exponent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from statistics import linear_regression

Points = Sequence[tuple[float, float]]
"""(size, cost), both above 0, by size."""
TOLERANCE = 0.25
"""Of a line: what is measured may lie above by this share."""


@dataclass(frozen=True, slots=True)
class Growth:
    """A cost over sizes, and what it is made of."""

    label: str
    """Of the size."""
    total: Points
    parts: Mapping[str, Points]


def exponent(points: Points) -> float:
    """The slope of log(cost) over log(size), by least squares."""
    sizes, costs = ([log(number) for number in column] for column in zip(*points, strict=True))
    return linear_regression(sizes, costs).slope


def line(points: Points) -> tuple[float, float]:
    """Fixed cost and cost per unit of size, through the first two points; the fixed cost is not below 0."""
    (first, low), (second, high) = points[:2]
    slope = min((high - low) / (second - first), low / first)
    return low - slope * first, slope


def leaves_linear(points: Points) -> float | None:
    """The first size whose cost lies above the line through the first two points by more than `TOLERANCE`."""
    fixed, slope = line(points)
    return next((size for size, cost in points[2:] if cost > (1 + TOLERANCE) * (fixed + slope * size)), None)
