"""The policy's contract: tokens in, tokens out; samples in, gradients out.

Every back end passes the tests in `tests/policy/contract.py`. Harnesses, trees and credit know nothing of torch; a loss
is a function of per-token tensors, so that an algorithm needs no knowledge of the back end either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from torch import Tensor

from whippletree.chat.base import Renderer
from whippletree.types import Floats, Ids, Sample, Sampler

CriticKind = Literal["model", "head"]
"""A trunk of its own that begins as a copy of the policy's, or a linear head on the policy's states."""
Scorer = Literal["policy", "reference", "critic"]


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
    values_N: Tensor | None = None
    """The critic's, of the states before the tokens; carries its gradient. None where the policy has no critic."""
    columns_N: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """`Sample.columns`."""


class Loss(Protocol):
    def __call__(self, batch: TokenBatch) -> tuple[Tensor | Mapping[str, Tensor], dict[str, float]]:
        """The scalar to minimise, a sum over the tokens, or named terms of it, and statistics.

        A term changes all weights, unless the policy keeps units for its name (`Policy.keep_units`).
        Statistics are sums over the tokens too, or maxima where the name ends in `_max`.
        """
        ...


def add_statistics(totals: dict[str, float], statistics: Mapping[str, float]) -> None:
    """Take in what the loss says of one more micro-batch."""
    for name, value in statistics.items():
        if name.endswith("_max"):
            totals[name] = max(totals.get(name, value), value)
        else:
            totals[name] = totals.get(name, 0.0) + value


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

    def keep_reference(self, path: Path | str | None = None) -> None:
        """Keep the present weights, or those of a model of the same architecture, to score with them later."""
        ...

    def add_critic(self, kind: CriticKind, *, lr: float) -> None:
        """Learn values beside the policy, with an optimizer and a gradient norm of their own."""
        ...

    def keep_units(self, names: Sequence[str], *, share: float, tokens: int) -> None:
        """Let loss terms of these names change only the hidden units that are most active on tokens of that name.

        A `share` of each layer's units for each name, chosen once `tokens` of each were probed; until then the terms
        change nothing. Raises PolicyError where the back end or the model cannot do it.
        """
        ...

    async def probe_units(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Take in what is active on the trained tokens that the columns of the names mark, until enough were seen.

        Returns `units/chosen` and `units/shared`: the shares of all units that some term, and that every term may
        change; 0 before they are chosen.
        """
        ...

    async def score(self, samples: Sequence[Sample], by: Scorer) -> list[Floats]:
        """Per sample and trained token, 0 elsewhere, shape (T,): what the present weights say of it.

        The log-probability at the sample's temperature under the policy or the reference, or the critic's value of the
        state before the token. Raises PolicyError where there is no reference or no critic.
        """
        ...

    async def forward_backward(self, samples: Sequence[Sample], loss: Loss) -> dict[str, float]:
        """Add the gradient of the loss over all samples; returns the loss's statistics of all of them.

        Raises PolicyError for a sample that is longer than the context.
        """
        ...

    async def gradient_sketch(self, size: int, seed: int) -> Floats:
        """Random projection of the gradient since the last step, before clipping, shape (size,); see `policy.sketch`.

        Zeros where there is no gradient, empty where `size` is 0. A critic of its own has no part in it.
        """
        ...

    async def optim_step(self, *, lr: float, max_grad_norm: float) -> dict[str, float]:
        """Apply and clear the gradient; returns `grad_norm` before clipping, and `critic_grad_norm` with a critic.

        Where a loss or a gradient was not finite since the last step, nothing is applied and `skipped_update` is 1.
        """
        ...

    async def publish(self) -> float:
        """Make the trained weights those that are sampled; returns the largest log-probability gap on a probe.

        Raises PolicyError where sampler and trainer disagree by more than the tolerance.
        """
        ...

    def save(self, path: Path, *, optimizer: bool = True) -> None: ...

    def load(self, path: Path) -> None:
        """Take weights, and the states of optimizer and critic where they were saved."""
        ...

    async def close(self) -> None: ...
