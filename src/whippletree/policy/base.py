"""The policy's contract: tokens in, tokens out; samples in, gradients out.

Every back end passes the tests in `tests/policy/contract.py`. Harnesses, trees and credit know nothing of torch; a loss
is a function of per-token tensors, so that an algorithm needs no knowledge of the back end either.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from whippletree.chat.base import Renderer
from whippletree.types import Floats, Ids, Sample, Sampler


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """The trained tokens of one micro-batch, flattened to shape (N,)."""

    logprobs_N: Tensor
    """Under the present weights and the sampling temperature; carries the gradient."""
    entropy_N: Tensor
    """Of the distribution that each token was drawn from, in nats; carries the gradient."""
    rollout_logprobs_N: Tensor
    advantages_N: Tensor
    weights_N: Tensor


class Loss(Protocol):
    def __call__(self, batch: TokenBatch) -> tuple[Tensor, dict[str, float]]:
        """The scalar to minimise, a sum over the tokens, and statistics that are sums over the tokens too."""
        ...


class Policy(Sampler, Protocol):
    """The weights, however they are held."""

    version: int
    """Counts the optimizer steps; every sampled token carries it."""
    renderer: Renderer

    def worker(self) -> AbstractContextManager[None]:
        """Announce one concurrent caller of `sample`, so that a lockstep sampler knows whom to wait for."""
        ...

    async def logprobs(self, ids: Sequence[Ids], temperature: float = 1.0) -> list[Floats]:
        """Per sequence the trainer's log-probability of each token after the first, shape (T - 1,)."""
        ...

    async def forward_backward(self, samples: Sequence[Sample], loss: Loss) -> dict[str, float]:
        """Add the gradient of the loss over all samples; returns the loss's statistics, summed."""
        ...

    async def optim_step(self, *, lr: float, max_grad_norm: float) -> dict[str, float]:
        """Apply and clear the gradient; returns `grad_norm` before clipping."""
        ...

    async def publish(self) -> float:
        """Make the trained weights those that are sampled; returns the largest log-probability gap on a probe.

        Raises PolicyError where sampler and trainer disagree by more than the tolerance.
        """
        ...

    def save(self, path: Path, *, optimizer: bool = True) -> None: ...

    def load(self, path: Path) -> None:
        """Take weights, and the optimizer's state where it was saved."""
        ...

    async def close(self) -> None: ...
