"""Losses over the trained tokens of a micro-batch: sums, so that micro-batches add up to the batch."""

from __future__ import annotations

from torch import Tensor

from whippletree.policy.base import TokenBatch


def clipped_surrogate(batch: TokenBatch, *, clip_low: float, clip_high: float) -> tuple[Tensor, dict[str, float]]:
    """The clipped policy gradient (Schulman et al. 2017, eq. 7), each token with its own weight.

    The old policy is the one that sampled: with one update per batch the ratio is 1 up to rounding, and what it is off
    by is the gap between sampler and trainer.
    """
    ratio_N = (batch.logprobs_N - batch.rollout_logprobs_N).exp()
    clipped_N = ratio_N.clamp(1.0 - clip_low, 1.0 + clip_high)
    gain_N = (ratio_N * batch.advantages_N).minimum(clipped_N * batch.advantages_N)
    loss = -(batch.weights_N * gain_N).sum()
    outside_N = (ratio_N != clipped_N).float()
    gap = (batch.logprobs_N - batch.rollout_logprobs_N).detach().abs()
    statistics = {
        "loss": loss.item(),
        "entropy": (batch.weights_N * batch.entropy_N).sum().item(),
        "clipped": (batch.weights_N * outside_N).sum().item(),
        "logprob_gap": (batch.weights_N * gap).sum().item(),
        "weight": batch.weights_N.sum().item(),
        "trained_tokens": float(len(batch.weights_N)),
    }
    return loss, statistics


def negative_log_likelihood(batch: TokenBatch) -> tuple[Tensor, dict[str, float]]:
    """Imitation of the samples, each token with its own weight."""
    loss = -(batch.weights_N * batch.logprobs_N).sum()
    return loss, {"loss": loss.item(), "trained_tokens": float(len(batch.weights_N))}
