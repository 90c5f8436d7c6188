"""From scores to advantages: within a group, or along a branch with the help of values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from whippletree.types import Floats

Doubles = NDArray[np.float64]
F = TypeVar("F", np.float32, np.float64)


def group_advantages(scores: Doubles, *, normalise_std: bool) -> Doubles:
    """How much better each is than the mean of all, in population standard deviations (ClawGym II, equation 5)."""
    centred = scores - scores.mean()
    return centred / (scores.std() + 1e-6) if normalise_std else centred


def softened(advantages: NDArray[F], negative_weight: float) -> NDArray[F]:
    """With a weight below 1, what failed is pushed down less than what passed is pushed up.

    Pushing down says only what not to say, and in a small model the probability that it frees ends up in places where
    nothing is good.
    """
    return np.where(advantages < 0, advantages * advantages.dtype.type(negative_weight), advantages)


def lambda_returns(rewards: Doubles, values: Doubles, *, gamma: float, gae_lambda: float) -> Doubles:
    """The target of each value; less the value it is the generalised advantage (Schulman et al. 2016).

    All arrays are over the trained tokens of one branch alone, shape (N,): whatever a harness put between two of them
    is no step of its own, or every pause of the model would cost it a value. With gamma = lambda = 1 each return is
    exactly the sum of the rewards from there on.
    """
    returns = np.empty(len(values), dtype=np.float64)
    after, value_after = 0.0, 0.0
    for t in range(len(values) - 1, -1, -1):
        after = rewards[t] + gamma * ((1.0 - gae_lambda) * value_after + gae_lambda * after)
        returns[t], value_after = after, values[t]
    return returns


def whitened(advantages: Sequence[Floats], weights: Sequence[Floats]) -> list[Floats]:
    """Mean 0 and standard deviation 1 over all trained tokens by their weights; 0 stays where nothing is trained."""
    every = np.concatenate([a[w > 0] for a, w in zip(advantages, weights, strict=True)]).astype(np.float64)
    parts = np.concatenate([w[w > 0] for w in weights]).astype(np.float64)
    mean = np.average(every, weights=parts)
    std = np.sqrt(np.average((every - mean) ** 2, weights=parts))
    return [
        np.where(w > 0, (a - mean) / (std + 1e-8), 0.0).astype(np.float32)
        for a, w in zip(advantages, weights, strict=True)
    ]
