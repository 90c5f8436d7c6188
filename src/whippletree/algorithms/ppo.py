"""Proximal policy optimisation with a critic: a rollout is as good as it is better than was expected of it.

It needs no siblings: one rollout per task is enough. Every branch of a call tree is a trajectory of its own that ends
with the reward of its rollout, and nothing is carried over from one branch to another (ClawGym II, equation 8).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from whippletree.algorithms import base
from whippletree.algorithms.advantages import lambda_returns, softened, whitened
from whippletree.algorithms.base import Credit, keep_reference, with_columns
from whippletree.algorithms.losses import policy_loss, value_loss
from whippletree.algorithms.pools import reward_of, scored
from whippletree.algorithms.weights import Entry, sample_metrics, weighed
from whippletree.policy.base import CriticKind, Loss, Policy, TokenBatch
from whippletree.trajectory.filters import TreeFilter
from whippletree.trajectory.samples import with_advantages
from whippletree.types import Floats, Group, Sample


class PPO(BaseModel):
    """PPO as in ClawGym II, eq. 2-4 and 8: generalised advantages along the trained tokens of each branch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["ppo"] = "ppo"
    clip_low: base.ClipLow = 0.2
    clip_high: base.ClipHigh = 0.28
    correction: base.Correction = 2.0
    kl: base.KL = 0.0
    reference: base.Reference = base.START
    negative_weight: base.NegativeWeight = 1.0
    weighting: Annotated[base.Weighting, Field(description="Rollouts count alike, or tokens.")] = "rollout"
    kinds: base.Kinds = ("main",)
    max_leaves: base.MaxLeaves = 16
    gamma: Annotated[float, Field(gt=0, le=1, description="Discount per trained token.")] = 1.0
    gae_lambda: Annotated[
        float, Field(ge=0, le=1, description="1: the reward alone says how it went; 0: the next token's value does.")
    ] = 1.0
    whiten: Annotated[bool, Field(description="Give a step's advantages mean 0 and standard deviation 1.")] = False
    critic: Annotated[CriticKind, Field(description="A model of its own, or a linear head on the policy's states.")] = (
        "model"
    )
    critic_lr: Annotated[float, Field(gt=0, description="Learning rate of the critic's own AdamW.")] = 1e-3
    value_steps: Annotated[int, Field(ge=0, description="First steps, in which the critic alone learns.")] = 5
    value_clip: Annotated[
        float, Field(ge=0, description="A value gains nothing by moving further than this in one update; 0: no limit.")
    ] = 0.0

    def attach(self, policy: Policy) -> None:
        keep_reference(policy, self.kl, self.reference)
        policy.add_critic(self.critic, lr=self.critic_lr)

    def credit(self, groups: Sequence[Group]) -> Credit:
        """Turn graded rollouts into samples whose weights sum to 1 over the batch; advantages wait for the values."""
        found, problems = scored(groups)
        rollouts = [rollout for group in found for rollout in group]
        entries = [Entry(rollout, 0.0, 1.0 / len(rollouts)) for rollout in rollouts]
        tree_filter = TreeFilter(self.kinds, self.max_leaves)
        samples, stats = weighed(entries, by_token=self.weighting == "token", tree_filter=tree_filter)
        rewards = {rollout.id: reward_of(rollout) for rollout in rollouts}
        ends = [_at_the_end(sample, rewards[sample.rollout_id]) for sample in samples]
        metrics = {"rollouts/no_number": float(len(problems)), **sample_metrics(stats)}
        return Credit(with_columns(samples, {"rewards": ends}), metrics, problems)

    async def appraise(self, policy: Policy, credit: Credit) -> Credit:
        samples = credit.samples
        columns = {"values": await policy.score(samples, "critic")}
        if self.kl:
            columns["reference"] = await policy.score(samples, "reference")
        columns["returns"] = [self.returns(sample, own) for sample, own in zip(samples, columns["values"], strict=True)]
        advantages = self.advantages(samples, columns["values"], columns["returns"])
        credited = [with_advantages(sample, each) for sample, each in zip(samples, advantages, strict=True)]
        metrics = {**credit.metrics, **_value_metrics(samples, columns["values"], columns["returns"])}
        return Credit(with_columns(credited, columns), metrics, credit.problems)

    def returns(self, sample: Sample, values: Floats) -> Floats:
        """What the critic's values of a branch should have been, (T,); 0 where nothing is trained."""
        trained = np.flatnonzero(sample.weights > 0)
        rewards = sample.columns["rewards"][trained].astype(np.float64)
        found = np.zeros(len(sample.ids), np.float32)
        found[trained] = lambda_returns(
            rewards, values[trained].astype(np.float64), gamma=self.gamma, gae_lambda=self.gae_lambda
        )
        return found

    def advantages(
        self, samples: Sequence[Sample], values: Sequence[Floats], returns: Sequence[Floats]
    ) -> list[Floats]:
        """Returns less values, per sample (T,); whitened and softened where the settings say so."""
        found: list[Floats] = [reached - expected for reached, expected in zip(returns, values, strict=True)]
        if self.whiten and found:
            found = whitened(found, [sample.weights for sample in samples])
        return [softened(each, self.negative_weight) for each in found]

    def loss(self, step: int) -> Loss:
        return self._value_loss if step < self.value_steps else self._both_losses

    def _both_losses(self, batch: TokenBatch) -> tuple[Tensor, dict[str, float]]:
        policy, statistics = policy_loss(
            batch, clip_low=self.clip_low, clip_high=self.clip_high, correction=self.correction, kl=self.kl
        )
        value, more = value_loss(batch, clip=self.value_clip)
        return policy + value, statistics | more

    def _value_loss(self, batch: TokenBatch) -> tuple[Tensor, dict[str, float]]:
        """The statistics are the same as ever; the policy's part is not minimised yet."""
        _, statistics = self._both_losses(batch)
        return value_loss(batch, clip=self.value_clip)[0], statistics


def _at_the_end(sample: Sample, reward: float) -> Floats:
    """The reward on the last trained token of a branch."""
    found = np.zeros(len(sample.ids), np.float32)
    found[np.flatnonzero(sample.weights)[-1]] = reward
    return found


def _value_metrics(samples: Sequence[Sample], values: Sequence[Floats], returns: Sequence[Floats]) -> dict[str, float]:
    """How far the critic is, by the tokens' weights, before it learns from them."""
    if not samples:
        return {"value/mean": 0.0, "value/explained": 0.0}
    weights, expected, reached = (
        np.concatenate([array[sample.weights > 0] for sample, array in zip(samples, arrays, strict=True)]).astype(float)
        for arrays in ([sample.weights for sample in samples], values, returns)
    )
    spread = _variance(reached, weights)
    explained = 1.0 - _variance(reached - expected, weights) / spread if spread > 1e-12 else 0.0
    return {"value/mean": float(np.average(expected, weights=weights)), "value/explained": explained}


def _variance(numbers: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    return float(np.average((numbers - np.average(numbers, weights=weights)) ** 2, weights=weights))
