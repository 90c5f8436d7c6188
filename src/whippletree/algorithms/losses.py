"""Losses over the trained tokens of a micro-batch: sums, so that micro-batches add up to the batch.

They read these columns of samples, each made before the update: `reference`, log-probabilities under the reference;
`log_ratio`, of a token's whole rollout to the sampler, a mean over tokens; `values`, the critic's; `returns`, what the
values should have been. There is one update per batch, so that the policy before it is the present one without its
gradient.
"""

from __future__ import annotations

from torch import Tensor

from whippletree.policy.base import TokenBatch

Statistics = dict[str, float]


def policy_loss(
    batch: TokenBatch, *, clip_low: float, clip_high: float, correction: float = 0.0, kl: float = 0.0
) -> tuple[Tensor, Statistics]:
    """The clipped policy gradient (Schulman et al. 2017, equation 7), each token with its own weight.

    Without `correction` the old policy of the ratio is the one that sampled. With it the old policy is the trainer's,
    and what the two are apart is corrected by a factor of each token's whole loss, truncated from above (ClawGym II,
    equation 10). `kl` weighs the estimate k3 of the divergence from the reference.
    """
    own_N, weights_N = batch.logprobs_N, batch.weights_N
    ratio_N = _log_ratio(batch, corrected=correction > 0).exp()
    clipped_N = ratio_N.clamp(1.0 - clip_low, 1.0 + clip_high)
    cost_N = -(ratio_N * batch.advantages_N).minimum(clipped_N * batch.advantages_N)
    gap_N = own_N.detach() - batch.rollout_logprobs_N
    statistics = {
        "entropy": _sum(weights_N * batch.entropy_N),
        "clipped": _sum(weights_N * (ratio_N != clipped_N)),
        "logprob_gap": _sum(weights_N * gap_N.abs()),
        "weight": _sum(weights_N),
        "trained_tokens": float(len(weights_N)),
    }
    if kl:
        away_N = batch.columns_N["reference"] - own_N
        kl_N = away_N.exp() - away_N - 1.0
        cost_N = cost_N + kl * kl_N
        statistics["kl"] = _sum(weights_N * kl_N)
    if correction:
        factor_N = gap_N.exp()
        kept_N = factor_N.clamp(max=correction)
        cost_N = kept_N * cost_N
        statistics["correction"] = _sum(weights_N * kept_N)
        statistics["correction_truncated"] = _sum(weights_N * (factor_N > correction))
        statistics["correction_max"] = factor_N.max().item() if len(factor_N) else 0.0
    loss = (weights_N * cost_N).sum()
    return loss, {"loss": loss.item(), **statistics}


def value_loss(batch: TokenBatch, *, clip: float = 0.0) -> tuple[Tensor, Statistics]:
    """Half the squared error of the critic's values, each token with its own weight.

    `clip` lets a value gain nothing by moving further than this from what it was before the update.
    """
    assert batch.values_N is not None, "a value loss needs a policy with a critic"
    returns_N = batch.columns_N["returns"]
    error_N = (batch.values_N - returns_N) ** 2
    if clip:
        before_N = batch.columns_N["values"]
        near_N = before_N + (batch.values_N - before_N).clamp(-clip, clip)
        error_N = error_N.maximum((near_N - returns_N) ** 2)
    loss = 0.5 * (batch.weights_N * error_N).sum()
    return loss, {"value_loss": loss.item()}


def of_tokens(batch: TokenBatch, marked_N: Tensor) -> TokenBatch:
    """The batch with the marked tokens alone."""
    return TokenBatch(
        logprobs_N=batch.logprobs_N[marked_N],
        entropy_N=batch.entropy_N[marked_N],
        rollout_logprobs_N=batch.rollout_logprobs_N[marked_N],
        advantages_N=batch.advantages_N[marked_N],
        weights_N=batch.weights_N[marked_N],
        values_N=None if batch.values_N is None else batch.values_N[marked_N],
        columns_N={name: column_N[marked_N] for name, column_N in batch.columns_N.items()},
    )


def negative_log_likelihood(batch: TokenBatch) -> tuple[Tensor, Statistics]:
    """Imitation of the samples, each token with its own weight."""
    loss = -(batch.weights_N * batch.logprobs_N).sum()
    return loss, {"loss": loss.item(), "trained_tokens": float(len(batch.weights_N))}


def _log_ratio(batch: TokenBatch, *, corrected: bool) -> Tensor:
    own_N = batch.logprobs_N
    if "log_ratio" in batch.columns_N:  # one value for the rollout, each token's own gradient
        return own_N - own_N.detach() + batch.columns_N["log_ratio"]
    return own_N - (own_N.detach() if corrected else batch.rollout_logprobs_N)


def _sum(numbers_N: Tensor) -> float:
    return numbers_N.sum().item()
