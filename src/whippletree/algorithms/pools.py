"""Which rollouts are compared with which, and by what score.

Invariant: every graded rollout is in exactly one pool; one whose reward is no finite number is in none.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from whippletree.types import Group, Rollout

Grouping = Literal["task_harness", "task", "residual"]

FLAT = 1e-9
"""Scores that differ by no more are equal."""


@dataclass(frozen=True, slots=True)
class Pool:
    rollouts: tuple[Rollout, ...]
    scores: NDArray[np.float64]
    """One per rollout."""

    @property
    def flat(self) -> bool:
        """Whether all scores are equal, so that nothing can be learned from them."""
        return bool(np.ptp(self.scores) <= FLAT)


def scored(groups: Sequence[Group]) -> tuple[list[tuple[Rollout, ...]], tuple[str, ...]]:
    """Per group the rollouts that have a usable reward, and a sentence on each graded rollout that has not."""
    kept: list[tuple[Rollout, ...]] = []
    problems: list[str] = []
    for group in groups:
        kept.append(tuple(rollout for rollout in group.graded if math.isfinite(reward_of(rollout))))
        problems += [
            f"rollout '{rollout.id}' has the reward {reward_of(rollout)} and is left out; a grader gives finite numbers"
            for rollout in group.graded
            if not math.isfinite(reward_of(rollout))
        ]
    return kept, tuple(problems)


def reward_of(rollout: Rollout) -> float:
    assert rollout.reward is not None, f"rollout '{rollout.id}' is not graded"
    return rollout.reward.value


def pools(groups: Sequence[tuple[Rollout, ...]], grouping: Grouping) -> list[Pool]:
    """Pool the rollouts of a step.

    `task_harness`: each group by itself, scored by reward. `task`: groups of the same task together, whatever their
    harness. `residual`: likewise, scored by the reward less what the harness gave on the other tasks of the step, so
    that the difference between harnesses is not taken for one between rollouts.
    """
    if grouping == "task_harness":
        return [Pool(rollouts, _rewards(rollouts)) for rollouts in groups]
    merged: defaultdict[str, list[Rollout]] = defaultdict(list)
    for rollouts in groups:
        for rollout in rollouts:
            merged[rollout.task_id].append(rollout)
    found = [Pool(tuple(rollouts), _rewards(rollouts)) for rollouts in merged.values()]
    if grouping == "task":
        return found
    every = [rollout for rollouts in groups for rollout in rollouts]
    baselines = {(r.task_id, r.harness): _baseline(every, r.task_id, r.harness) for r in every}
    return [
        Pool(pool.rollouts, pool.scores - [baselines[r.task_id, r.harness] for r in pool.rollouts]) for pool in found
    ]


def comparable(every: Sequence[Pool]) -> tuple[list[Pool], dict[str, float]]:
    """The pools of two rollouts or more, which can be compared, and metrics of all."""
    usable = [pool for pool in every if len(pool.rollouts) >= 2]
    num_flat = sum(pool.flat for pool in usable)
    return usable, {
        "groups/dropped": float(len(every) - len(usable)),
        "groups/flat": float(num_flat),
        "groups/with_signal": (len(usable) - num_flat) / max(1, len(usable)),
    }


def _rewards(rollouts: Sequence[Rollout]) -> NDArray[np.float64]:
    return np.array([reward_of(rollout) for rollout in rollouts], dtype=np.float64)


def _baseline(rollouts: Sequence[Rollout], task_id: str, harness: str) -> float:
    """Mean reward of the harness on other tasks; of all harnesses on other tasks where it met none, 0 without any."""
    others = [rollout for rollout in rollouts if rollout.task_id != task_id]
    own = [rollout for rollout in others if rollout.harness == harness] or others
    return float(_rewards(own).mean()) if own else 0.0
