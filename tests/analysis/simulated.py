"""Evaluations drawn from a known model, for the tests of the statistics."""

import re
from collections.abc import Sequence

import numpy as np

from whippletree.types import Score


def levels_of(harness: str) -> dict[str, int]:
    return {factor: int(level) for factor, level in re.findall(r"([A-Z])(\d+)", harness)}


def evaluation(
    rng: np.random.Generator,
    harnesses: Sequence[str],
    num_tasks: int,
    *,
    mean: float = 0.4,
    spread: float = 0.3,
    attempts: int = 2,
) -> list[Score]:
    """Tasks differ in difficulty by `spread`, so that the cells of one task are alike."""
    chances = np.clip(mean + rng.uniform(-spread, spread, num_tasks), 0.0, 1.0)
    scores = []
    for harness in harnesses:
        for task, chance in enumerate(chances):
            passes = tuple(bool(p) for p in rng.random(attempts) < chance)
            scores.append(Score(f"t{task}", "copy", harness, passes, tuple(map(float, passes))))
    return scores


def score(task: str, harness: str, *passes: int) -> Score:
    return Score(task, "copy", harness, tuple(map(bool, passes)), tuple(map(float, passes)))
