"""Group-relative policy optimisation: a rollout is as good as it is better than its siblings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from whippletree.algorithms import base
from whippletree.algorithms.advantages import group_advantages, softened
from whippletree.algorithms.base import Credit, keep_reference, with_columns
from whippletree.algorithms.losses import policy_loss
from whippletree.algorithms.pools import Grouping, comparable, pools, scored
from whippletree.algorithms.weights import Entry, sample_metrics, weighed
from whippletree.policy.base import Loss, Policy
from whippletree.trajectory.filters import TreeFilter
from whippletree.types import Floats, Group, Sample


class GRPO(BaseModel):
    """GRPO as in ClawGym II, eq. 5-7: advantages within a group, loss weight equal per rollout."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["grpo"] = "grpo"
    clip_low: base.ClipLow = 0.2
    clip_high: base.ClipHigh = 0.28
    correction: base.Correction = 2.0
    kl: base.KL = 0.0
    reference: base.Reference = base.START
    grouping: Annotated[
        Grouping,
        Field(
            description="Compared are the rollouts of a task under one harness, or of a task under all; `residual` "
            "first takes off what a harness gives on other tasks."
        ),
    ] = "task_harness"
    normalise_std: base.NormaliseStd = True
    negative_weight: base.NegativeWeight = 1.0
    keep_flat: Annotated[
        bool, Field(description="Also train on groups whose scores are all equal; only the divergence acts on them.")
    ] = False
    weighting: Annotated[
        Literal[base.Weighting, "sequence"],
        Field(
            description="Rollouts count alike, or tokens; `sequence`: rollouts, and what is clipped is a rollout's "
            "mean ratio to the sampler."
        ),
    ] = "rollout"
    kinds: base.Kinds = ("main",)
    max_leaves: base.MaxLeaves = 16

    @model_validator(mode="after")
    def _corrected_once(self) -> Self:
        if self.weighting == "sequence" and self.correction:
            raise ValueError(
                f'weighting = "sequence" clips what a rollout differs from its sampler, and correction = '
                f"{self.correction:g} would correct it again; set correction = 0"
            )
        return self

    def attach(self, policy: Policy) -> None:
        keep_reference(policy, self.kl, self.reference)

    def credit(self, groups: Sequence[Group]) -> Credit:
        """Turn graded groups into samples whose weights sum to 1 over the batch.

        A group with fewer than two graded rollouts is dropped. A flat group, whose scores are all equal, has no signal:
        it counts in the mean over groups, but its samples are left out unless `keep_flat`.
        """
        rollouts, problems = scored(groups)
        usable, compared = comparable(pools(rollouts, self.grouping))
        entries: list[Entry] = []
        for pool in usable:
            advantages = self.advantages(pool.scores) * (not pool.flat)
            share = 1.0 / (len(usable) * len(pool.rollouts))
            entries += [
                Entry(rollout, float(advantage), share, trained=self.keep_flat or not pool.flat)
                for rollout, advantage in zip(pool.rollouts, advantages, strict=True)
            ]
        tree_filter = TreeFilter(self.kinds, self.max_leaves)
        samples, stats = weighed(entries, by_token=self.weighting == "token", tree_filter=tree_filter)
        metrics = {
            **compared,
            "rollouts/no_number": float(len(problems)),
            **sample_metrics(stats),
        }
        return Credit(samples, metrics, problems)

    def advantages(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Per rollout of one group, shape of scores; with `negative_weight` below 1 they do not sum to zero."""
        return softened(group_advantages(scores, normalise_std=self.normalise_std), self.negative_weight)

    async def appraise(self, policy: Policy, credit: Credit) -> Credit:
        columns: dict[str, list[Floats]] = {}
        if self.kl:
            columns["reference"] = await policy.score(credit.samples, "reference")
        if self.weighting == "sequence":
            columns["log_ratio"] = rollout_log_ratios(credit.samples, await policy.score(credit.samples, "policy"))
        return Credit(with_columns(credit.samples, columns), credit.metrics, credit.problems)

    def loss(self, step: int) -> Loss:
        return partial(
            policy_loss, clip_low=self.clip_low, clip_high=self.clip_high, correction=self.correction, kl=self.kl
        )


def rollout_log_ratios(samples: Sequence[Sample], logprobs: Sequence[Floats]) -> list[Floats]:
    """On each trained token the mean of log(policy / sampler) over the trained tokens of its rollout, all branches.

    Its exponent is the sequence ratio of Zheng et al. 2025 (GSPO, equation 7), with the rollout as the sequence.
    """
    gaps: dict[str, list[NDArray[np.float64]]] = {}
    for sample, own in zip(samples, logprobs, strict=True):
        trained = sample.weights > 0
        gaps.setdefault(sample.rollout_id, []).append((own - sample.rollout_logprobs)[trained].astype(np.float64))
    means = {rollout: np.concatenate(parts).mean() for rollout, parts in gaps.items()}
    return [((sample.weights > 0) * means[sample.rollout_id]).astype(np.float32) for sample in samples]
