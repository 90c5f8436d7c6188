"""Intervals of means and differences: clustered by task, and over seeds.

Invariant: cells of one task are never taken for independent; policies are compared on the same cells, or seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan, sqrt
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

from whippletree.analysis.scores import attempted, pass_rate_of
from whippletree.analysis.student import t_quantile
from whippletree.types import Score

Array = NDArray[np.float64]
Value = Callable[[Score], float]


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its confidence interval; `low` and `high` are NaN where the data allow none."""

    mean: float
    low: float
    high: float


def bootstrap_interval(
    scores: Iterable[Score],
    rng: np.random.Generator,
    *,
    value: Value = pass_rate_of,
    resamples: int = 2000,
    level: float = 0.95,
) -> Interval:
    """Mean of `value` over cells with the percentile interval of a bootstrap that resamples tasks.

    Where every task has the same extreme value, 0 or 1, resampling shows no spread; then the exact binomial bound for
    that many tasks is used (Clopper and Pearson 1934).
    """
    sums, counts = _clusters((cell.task_id, value(cell)) for cell in attempted(scores))
    if np.all(sums == 0.0):
        return Interval(0.0, 0.0, _extreme_bound(len(sums), level))
    if np.all(sums == counts):
        return Interval(1.0, 1.0 - _extreme_bound(len(sums), level), 1.0)
    return _bootstrap(sums, counts, rng, resamples, level)


def paired_difference(
    a: Iterable[Score],
    b: Iterable[Score],
    rng: np.random.Generator,
    *,
    value: Value = pass_rate_of,
    resamples: int = 2000,
    level: float = 0.95,
) -> Interval:
    """Mean of `value` of `a` minus that of `b` over the cells that both hold, resampling tasks.

    Raises ValueError where they hold no common cell.
    """
    pairs = common_cells(a, b)
    if not pairs:
        raise ValueError("the two policies were evaluated on no common cell of harness and task")
    differences = ((cell_a.task_id, value(cell_a) - value(cell_b)) for cell_a, cell_b in pairs)
    return _bootstrap(*_clusters(differences), rng, resamples, level)


def common_cells(a: Iterable[Score], b: Iterable[Score]) -> list[tuple[Score, Score]]:
    """The pairs of cells of one harness and task that have attempts on both sides, in order of harness and task.

    Cells of one harness and task, such as those of several training seeds, are joined first.
    """
    cells_a, cells_b = _joined(a), _joined(b)
    return [(cells_a[key], cells_b[key]) for key in sorted(cells_a.keys() & cells_b.keys())]


def cluster_standard_error(scores: Iterable[Score], *, value: Value = pass_rate_of) -> float:
    """Closed-form standard error of the mean over cells, robust to correlation within a task.

    sqrt(C/(C-1) sum_c (S_c - m n_c)^2) / N with C tasks, S_c the sum and n_c the number of a task's cells, N all cells
    and m the mean (Liang and Zeger 1986; the form of Miller 2024, section 2.2). NaN for a single task.
    """
    sums, counts = _clusters((cell.task_id, value(cell)) for cell in attempted(scores))
    if len(sums) < 2:
        return nan
    residuals = sums - sums.sum() / counts.sum() * counts
    return sqrt(len(sums) / (len(sums) - 1) * float(residuals @ residuals)) / float(counts.sum())


def t_interval(values: Sequence[float], *, level: float = 0.95) -> Interval:
    """Mean of independent values, such as one per seed, with Student's t interval; NaN bounds for a single value."""
    if not values:
        raise ValueError("an interval needs at least one value")
    mean = fmean(values)
    if len(values) == 1:
        return Interval(mean, nan, nan)
    half = t_quantile((1.0 + level) / 2.0, len(values) - 1) * stdev(values) / sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def paired_t_interval(a: Mapping[int, float], b: Mapping[int, float], *, level: float = 0.95) -> Interval:
    """Mean of a - b over the seeds (keys) that both hold, with the t interval of the differences."""
    common = sorted(a.keys() & b.keys())
    if not common:
        raise ValueError(f"no seed is common to {sorted(a)} and {sorted(b)}")
    return t_interval([a[seed] - b[seed] for seed in common], level=level)


def resampling_weights(num_clusters: int, resamples: int, rng: np.random.Generator) -> Array:
    """How often each cluster is drawn, shape (resamples, num_clusters)."""
    return rng.multinomial(num_clusters, np.full(num_clusters, 1.0 / num_clusters), size=resamples).astype(np.float64)


def tail_quantiles(level: float) -> tuple[float, float]:
    return (1.0 - level) / 2.0, (1.0 + level) / 2.0


def _joined(scores: Iterable[Score]) -> dict[tuple[str, str], Score]:
    cells: dict[tuple[str, str], Score] = {}
    for cell in scores:
        key = (cell.harness, cell.task_id)
        if (known := cells.get(key)) is not None:
            cell = replace(cell, passes=known.passes + cell.passes, rewards=known.rewards + cell.rewards)
        if cell.passes:
            cells[key] = cell
    return cells


def _clusters(values: Iterable[tuple[str, float]]) -> tuple[Array, Array]:
    """Sum and number of values per task, each of shape (tasks,), tasks in order of id."""
    groups: dict[str, list[float]] = {}
    for task, value in values:
        groups.setdefault(task, []).append(value)
    ordered = [groups[task] for task in sorted(groups)]
    return np.array([sum(g) for g in ordered], np.float64), np.array([len(g) for g in ordered], np.float64)


def _bootstrap(sums: Array, counts: Array, rng: np.random.Generator, resamples: int, level: float) -> Interval:
    mean = float(sums.sum() / counts.sum())
    if len(sums) < 2:
        return Interval(mean, nan, nan)
    weights = resampling_weights(len(sums), resamples, rng)
    low, high = np.quantile((weights @ sums) / (weights @ counts), tail_quantiles(level))
    return Interval(mean, float(low), float(high))


def _extreme_bound(num_tasks: int, level: float) -> float:
    return 1.0 - ((1.0 - level) / 2.0) ** (1.0 / num_tasks)
