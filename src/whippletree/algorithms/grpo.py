"""Group-relative policy optimisation: a rollout is as good as it is better than its siblings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from whippletree.algorithms.losses import clipped_surrogate
from whippletree.policy.base import TokenBatch
from whippletree.trajectory.filters import TreeFilter
from whippletree.trajectory.samples import group_samples
from whippletree.types import CallKind, Group, Sample


@dataclass(frozen=True, slots=True)
class Credit:
    samples: list[Sample]
    metrics: dict[str, float]


class GRPO(BaseModel):
    """GRPO as in ClawGym II, eq. 5-7: advantages within a group, loss weight equal per rollout."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["grpo"] = "grpo"
    clip_low: Annotated[float, Field(gt=0, lt=1, description="Ratios below 1 - clip_low gain nothing.")] = 0.2
    clip_high: Annotated[float, Field(gt=0, description="Ratios above 1 + clip_high gain nothing.")] = 0.28
    normalise_std: Annotated[
        bool, Field(description="Divide advantages by the group's standard deviation (population).")
    ] = True
    negative_weight: Annotated[
        float, Field(ge=0, description="Factor of negative advantages; below 1 a small model unlearns less.")
    ] = 1.0
    kinds: Annotated[
        tuple[CallKind, ...], Field(min_length=1, description="Kinds of model calls that are trained.")
    ] = ("main",)
    max_leaves: Annotated[
        int, Field(ge=1, description="Leaves of a rollout's call tree, dead ones included; with more it is left out.")
    ] = 16

    def credit(self, groups: Sequence[Group]) -> Credit:
        """Turn graded groups into samples whose weights sum to 1 over the batch.

        A group with fewer than two graded rollouts is dropped. A group whose rewards are all equal has no signal: it
        counts in the mean over groups, but its samples, whose gradient is zero, are left out.
        """
        usable = [group for group in groups if len(group.graded) >= 2]
        samples: list[Sample] = []
        with_signal = 0
        counts: Counter[str] = Counter()
        for group in usable:
            rewards = np.array([rollout.reward.value for rollout in group.graded if rollout.reward is not None])
            if np.ptp(rewards) == 0:
                continue
            with_signal += 1
            tree_filter = TreeFilter(self.kinds, self.max_leaves)
            found, statistics = group_samples(group, self.advantages(rewards).tolist(), tree_filter)
            counts.update(statistics)
            share = np.float32(1.0 / len(usable))
            samples += [replace(sample, weights=sample.weights * share) for sample in found]
        metrics = {
            "groups/dropped": float(len(groups) - len(usable)),
            "groups/with_signal": with_signal / max(1, len(usable)),
            **{f"samples/{name}": float(count) for name, count in sorted(counts.items())},
        }
        return Credit(samples, metrics)

    def advantages(self, rewards: NDArray[np.float64]) -> NDArray[np.float64]:
        """Per rollout of one group, shape of rewards.

        With `negative_weight` below 1 they no longer sum to zero: what failed is pushed down less than what passed is
        pushed up. Pushing down says only what not to say, and in a small model the probability that it frees ends up
        in places where nothing is good.
        """
        centred = rewards - rewards.mean()
        scaled = centred / (rewards.std() + 1e-6) if self.normalise_std else centred
        return np.maximum(scaled, 0.0) + self.negative_weight * np.minimum(scaled, 0.0)

    def loss(self, batch: TokenBatch) -> tuple[Tensor, dict[str, float]]:
        return clipped_surrogate(batch, clip_low=self.clip_low, clip_high=self.clip_high)
