"""Quantiles of Student's t distribution.

Invariant: exact up to rounding for whole degrees of freedom, without tables.
"""

from __future__ import annotations

from math import atan, cos, isfinite, pi, sin, sqrt, tan


def t_probability(t: float, df: int) -> float:
    """P(|T| <= t) for t >= 0 and `df` >= 1 (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    return _probability_of_angle(atan(t / sqrt(df)), df)


def t_quantile(p: float, df: int) -> float:
    """The value that T with `df` >= 1 degrees of freedom exceeds with probability 1 - p, for 0 < p < 1."""
    if df < 1 or not (isfinite(p) and 0.0 < p < 1.0):
        raise ValueError(f"a t quantile needs df >= 1 and 0 < p < 1, got {df=} {p=}")
    if p < 0.5:
        return -t_quantile(1.0 - p, df)
    central = 2.0 * p - 1.0
    low, high = 0.0, pi / 2
    while (middle := (low + high) / 2) not in (low, high):
        if _probability_of_angle(middle, df) < central:
            low = middle
        else:
            high = middle
    return sqrt(df) * tan(low)


def _probability_of_angle(angle: float, df: int) -> float:
    s, c2 = sin(angle), cos(angle) ** 2
    odd = df % 2
    term = cos(angle) if odd else 1.0
    total = 0.0
    for i in range(1 + odd, df, 2):  # terms c, 2/3 c^3, ... for odd df; 1, 1/2 c^2, ... for even df
        total += term
        term *= c2 * i / (i + 1)
    return 2.0 / pi * (angle + s * total) if odd else s * total
