"""Supervised fine-tuning on rollouts: what was said in them is imitated, each rollout counting the same."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict
from torch import Tensor

from whippletree.algorithms import base
from whippletree.algorithms.base import Credit
from whippletree.algorithms.losses import negative_log_likelihood
from whippletree.algorithms.weights import Entry, sample_metrics, weighed
from whippletree.policy.base import TokenBatch
from whippletree.trajectory.filters import TreeFilter
from whippletree.types import Rollout


class SFT(BaseModel):
    """The samples and weights of reinforcement learning, with the advantage 1 for every rollout that is given."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kinds: base.Kinds = ("main",)
    max_leaves: base.MaxLeaves = 16

    def credit(self, rollouts: Sequence[Rollout]) -> Credit:
        """Samples whose weights sum to 1 over the rollouts; one without a token to train on keeps its share."""
        entries = [Entry(rollout, 1.0, 1.0 / len(rollouts)) for rollout in rollouts]
        samples, stats = weighed(entries, by_token=False, tree_filter=TreeFilter(self.kinds, self.max_leaves))
        return Credit(samples, sample_metrics(stats))

    def loss(self, batch: TokenBatch) -> tuple[Tensor, dict[str, float]]:
        """Nats per token, at the temperature at which the tokens were sampled."""
        loss, statistics = negative_log_likelihood(batch)
        entropy = (batch.weights_N * batch.entropy_N).sum().item()
        return loss, {**statistics, "entropy": entropy, "weight": batch.weights_N.sum().item()}
