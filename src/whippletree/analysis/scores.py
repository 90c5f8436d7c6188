"""Pass@k and mean reward, per harness, per factor level and overall.

Invariant: every cell (one task under one harness) counts the same, however many attempts it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean

from whippletree.types import Score

LevelsOf = Callable[[str], Mapping[str, int]]
"""Harness name -> level of each factor, e.g. `S0T2` -> {"S": 0, "T": 2}; in the order of the factors."""


@dataclass(frozen=True, slots=True)
class PolicyScores:
    """One policy's cells under each set of harnesses, e.g. `base`, `training`, `held_out`."""

    label: str
    sets: Mapping[str, Sequence[Score]]


@dataclass(frozen=True, slots=True)
class Summary:
    """Means over cells, each in [0, 1]."""

    pass_at_1: float
    mean_reward: float
    num_cells: int
    num_attempts: int


def set_title(name: str) -> str:
    """How a set of harnesses is called in tables and figures."""
    return {"base": "Base", "training": "Training", "held_out": "Held-out"}.get(name, name)


def pass_at_k(num_attempts: int, num_passed: int, k: int) -> float:
    """Unbiased chance that one of `k` attempts passes (Chen et al. 2021, equation 1): 1 - C(n-c, k) / C(n, k)."""
    if not 0 <= num_passed <= num_attempts or not 1 <= k <= num_attempts:
        raise ValueError(
            f"pass@{k} needs 0 <= passed <= attempts and 1 <= k <= attempts, got {num_passed=} {num_attempts=}"
        )
    return 1.0 - comb(num_attempts - num_passed, k) / comb(num_attempts, k)


def pass_rate_of(score: Score) -> float:
    """Share of passed attempts of one cell."""
    return fmean(score.passes)


def reward_of(score: Score) -> float:
    """Mean reward of one cell."""
    return fmean(score.rewards)


def attempted(scores: Iterable[Score]) -> list[Score]:
    """Cells with at least one graded attempt; the others say nothing. Raises ValueError where none is left."""
    kept = [score for score in scores if score.passes]
    if not kept:
        raise ValueError("there is no cell with a graded attempt")
    return kept


def pass_rate(scores: Iterable[Score], k: int = 1) -> float:
    """Mean pass@k over the cells with at least `k` attempts; raises ValueError where there is none."""
    values = [pass_at_k(len(s.passes), sum(s.passes), k) for s in scores if len(s.passes) >= k]
    if not values:
        raise ValueError(f"no cell has the {k} attempts that pass@{k} needs")
    return fmean(values)


def summary(scores: Iterable[Score]) -> Summary:
    cells = attempted(scores)
    return Summary(
        pass_at_1=fmean(map(pass_rate_of, cells)),
        mean_reward=fmean(map(reward_of, cells)),
        num_cells=len(cells),
        num_attempts=sum(len(cell.passes) for cell in cells),
    )


def by_harness(scores: Iterable[Score]) -> dict[str, Summary]:
    """Summary per harness, by name."""
    groups: dict[str, list[Score]] = {}
    for score in attempted(scores):
        groups.setdefault(score.harness, []).append(score)
    return {harness: summary(groups[harness]) for harness in sorted(groups)}


def by_level(scores: Iterable[Score], levels_of: LevelsOf) -> dict[tuple[str, int], Summary]:
    """Summary per (factor, level), factors in the order of `levels_of`, levels ascending."""
    groups: dict[str, dict[int, list[Score]]] = {}
    for score in attempted(scores):
        for factor, level in levels_of(score.harness).items():
            groups.setdefault(factor, {}).setdefault(level, []).append(score)
    return {(f, level): summary(groups[f][level]) for f in groups for level in sorted(groups[f])}
