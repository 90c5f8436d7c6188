"""What each factor level does to a score: balanced means, main effects and shares of variance.

Invariant: all quantities are linear in the means per harness, of an additive model without interactions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from whippletree.analysis.intervals import Array, Interval, Value, resampling_weights, tail_quantiles
from whippletree.analysis.scores import LevelsOf, attempted, pass_rate_of
from whippletree.types import Score


@dataclass(frozen=True, slots=True)
class LevelEffect:
    factor: str
    level: int
    mean: Interval
    """Expected score at this level with the other factors at even shares."""
    effect: Interval
    """`mean` minus the mean over the factor's levels."""


@dataclass(frozen=True, slots=True)
class Effects:
    levels: tuple[LevelEffect, ...]
    variance_share: Mapping[str, float]
    """Share of the variance between harnesses that only this factor explains; `rest` is interactions, overlap of
    factors and sampling noise. Empty where the factors are confounded."""
    confounded: bool
    """The harnesses cannot tell the factors apart; then the means are plain averages over a level's harnesses."""


def main_effects(
    scores: Sequence[Score],
    levels_of: LevelsOf,
    rng: np.random.Generator,
    *,
    value: Value = pass_rate_of,
    resamples: int = 1000,
    level: float = 0.95,
) -> Effects:
    """Fit score = mean + one term per factor level to the means per harness, by least squares.

    In an orthogonal design the balanced mean of a level is the plain mean of its harnesses. Intervals are percentiles
    over resampled tasks; their bounds are NaN where a harness has so few tasks that a resample can miss it.
    """
    cells = attempted(scores)
    harnesses = sorted({cell.harness for cell in cells})
    levels = [dict(levels_of(harness)) for harness in harnesses]
    columns = [(f, lv) for f in levels[0] for lv in sorted({row[f] for row in levels})]
    to_means, confounded = _mean_map(levels, columns)
    factor_of = np.array([[f == g for g, _ in columns] for f, _ in columns], np.float64)
    to_effects = to_means - (factor_of / factor_of.sum(axis=1, keepdims=True)) @ to_means

    sums, counts = _table(cells, harnesses, value)
    means_H = sums.sum(axis=0) / counts.sum(axis=0)
    weights = resampling_weights(len(sums), resamples, rng)
    with np.errstate(invalid="ignore"):
        drawn_RH = (weights @ sums) / (weights @ counts)
    means = _intervals(to_means, means_H, drawn_RH, level)
    effects = _intervals(to_effects, means_H, drawn_RH, level)
    return Effects(
        tuple(LevelEffect(f, lv, m, e) for (f, lv), m, e in zip(columns, means, effects, strict=True)),
        {} if confounded else _variance_share(levels, columns, means_H),
        confounded,
    )


def _mean_map(levels: list[dict[str, int]], columns: list[tuple[str, int]]) -> tuple[Array, bool]:
    """The matrix (levels, harnesses) that takes means per harness to means per level, and whether it is only a plain
    average."""
    design, terms = _design(levels, columns)
    if np.linalg.matrix_rank(design) < design.shape[1]:
        member = np.array([[row[f] == lv for row in levels] for f, lv in columns], np.float64)
        return member / member.sum(axis=1, keepdims=True), True
    return terms @ np.linalg.pinv(design), False


def _design(levels: list[dict[str, int]], columns: list[tuple[str, int]]) -> tuple[Array, Array]:
    """Sum-to-zero coding: design (harnesses, p), and terms (levels, p) that give each level's mean from the p
    coefficients, the first of which is the grand mean."""
    last = dict(columns)
    free = [(f, lv) for f, lv in columns if lv != last[f]]

    def code(factor: str, level: int) -> list[float]:
        return [0.0 if f != factor else -1.0 if level == last[f] else float(level == lv) for f, lv in free]

    terms = np.array([[1.0, *code(f, lv)] for f, lv in columns])
    coded = {column: np.array(code(*column)) for column in columns}
    design = np.array([[1.0, *sum((coded[item] for item in row.items()), np.zeros(len(free)))] for row in levels])
    return design, terms


def _table(cells: Sequence[Score], harnesses: list[str], value: Value) -> tuple[Array, Array]:
    """Sum and number of values, each of shape (tasks, harnesses)."""
    task_index = {task: i for i, task in enumerate(sorted({cell.task_id for cell in cells}))}
    harness_index = {harness: i for i, harness in enumerate(harnesses)}
    sums = np.zeros((len(task_index), len(harnesses)))
    counts = np.zeros_like(sums)
    for cell in cells:
        at = task_index[cell.task_id], harness_index[cell.harness]
        sums[at] += value(cell)
        counts[at] += 1.0
    return sums, counts


def _intervals(linear: Array, means_H: Array, drawn_RH: Array, level: float) -> list[Interval]:
    low, high = np.quantile(drawn_RH @ linear.T, tail_quantiles(level), axis=0)
    return [Interval(float(m), float(a), float(b)) for m, a, b in zip(linear @ means_H, low, high, strict=True)]


def _variance_share(levels: list[dict[str, int]], columns: list[tuple[str, int]], means_H: Array) -> dict[str, float]:
    total = float(((means_H - means_H.mean()) ** 2).sum())
    factors = list(levels[0])
    if total <= 1e-12:
        return {**dict.fromkeys(factors, 0.0), "rest": 0.0}

    def residual(without: str | None) -> float:
        design, _ = _design(
            [{f: lv for f, lv in row.items() if f != without} for row in levels],
            [c for c in columns if c[0] != without],
        )
        return float(((means_H - design @ (np.linalg.pinv(design) @ means_H)) ** 2).sum())

    full = residual(None)
    share = {factor: max(0.0, residual(factor) - full) / total for factor in factors}
    return {**share, "rest": 1.0 - sum(share.values())}
