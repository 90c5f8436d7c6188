"""From samples to what a loss sees: the trained tokens of a micro-batch, each with the state before it."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch is typed in part only.

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from whippletree.policy.base import TokenBatch
from whippletree.policy.critic import Critic
from whippletree.policy.packed import can_pack, hidden_states, recomputing_layers
from whippletree.policy.slots import output_logits
from whippletree.trajectory.packing import Pack, micro_batches
from whippletree.types import Floats, Ids, Sample

CHUNK = 1 << 25
"""Logits that exist at a time, in a forward or a backward pass (128 MiB in single precision)."""


@dataclass(frozen=True, slots=True)
class Learning:
    """How the trainer computes; what it computes is the same, to rounding."""

    micro_batch_tokens: int = 4096
    """Computed in one forward and backward pass."""
    packing: bool = True
    """Compute what rows have in common once, where the model admits it."""
    checkpointing: bool = False
    """Keep the states between layers alone, and compute the rest again for the backward pass."""

    def packs(self, model: PreTrainedModel, samples: Sequence[Sample]) -> list[Pack]:
        return micro_batches(samples, self.micro_batch_tokens, packing=self.packing and can_pack(model))

    def recomputing(self, model: PreTrainedModel, critic: Critic | None) -> AbstractContextManager[None]:
        """Where the forward pass of a micro-batch is computed."""
        return recomputing_layers(*((model, critic and critic.trunk) if self.checkpointing else ()))


@dataclass(frozen=True, slots=True)
class Row:
    sample: Sample
    places: Ids
    """Of the trained tokens in the sample."""
    before: Ids
    """In the pack, of the tokens before them, whose states predict them."""


def rows_of(samples: Sequence[Sample], pack: Pack) -> list[Row]:
    found: list[Row] = []
    for row, in_pack in zip(pack.rows, pack.places, strict=True):
        places = np.flatnonzero(samples[row].weights[1:]) + 1
        found.append(Row(samples[row], places, in_pack[places - 1]))
    return found


def token_batch(model: PreTrainedModel, critic: Critic | None, samples: Sequence[Sample], pack: Pack) -> TokenBatch:
    """With the gradient of policy and critic."""
    rows = rows_of(samples, pack)
    states = states_before(model, samples, pack)
    logprobs, entropy = _score_rows(model, rows, states)
    return TokenBatch(
        logprobs,
        entropy,
        rollout_logprobs_N=_of_tokens(rows, [row.sample.rollout_logprobs for row in rows]),
        advantages_N=_of_tokens(rows, [row.sample.advantages for row in rows]),
        weights_N=_of_tokens(rows, [row.sample.weights for row in rows]),
        values_N=None if critic is None else _values(critic, states, samples, pack),
        columns_N={name: _of_tokens(rows, [row.sample.columns[name] for row in rows]) for name in _columns(rows)},
    )


Numbers = Callable[[Sequence[Sample], Pack], Tensor]
"""One number per trained token of a micro-batch, (N,)."""


def scores(samples: Sequence[Sample], packs: Sequence[Pack], numbers: Numbers) -> list[Floats]:
    """Per sample the numbers of its trained tokens, 0 elsewhere, shape (T,); without gradient."""
    found = [np.zeros(len(sample.ids), np.float32) for sample in samples]
    for pack in packs:
        rows = rows_of(samples, pack)
        with torch.no_grad():
            flat = numbers(samples, pack).float().cpu().numpy()
        ends = np.cumsum([len(row.places) for row in rows])
        for index, row, part in zip(pack.rows, rows, np.split(flat, ends[:-1]), strict=True):
            found[index][row.places] = part
    return found


def logprobs_of(model: PreTrainedModel, samples: Sequence[Sample], pack: Pack) -> Tensor:
    return _score_rows(model, rows_of(samples, pack), states_before(model, samples, pack))[0]


def values_of(critic: Critic, model: PreTrainedModel, samples: Sequence[Sample], pack: Pack) -> Tensor:
    """`model` is the policy's, whose states a critic without a trunk reads."""
    return critic.values(states_before(critic.trunk or model, samples, pack))


def states_before(model: PreTrainedModel, samples: Sequence[Sample], pack: Pack) -> Tensor:
    """The hidden state that predicts each trained token, (N, D)."""
    hidden = hidden_states(model, samples, pack)
    before = np.concatenate([row.before for row in rows_of(samples, pack)])
    return hidden.index_select(0, torch.from_numpy(before).to(hidden.device))


def _values(critic: Critic, states_ND: Tensor, samples: Sequence[Sample], pack: Pack) -> Tensor:
    return critic.values(states_ND if critic.trunk is None else states_before(critic.trunk, samples, pack))


def _score_rows(model: PreTrainedModel, rows: Sequence[Row], states_ND: Tensor) -> tuple[Tensor, Tensor]:
    temperatures = torch.cat([torch.full((len(row.places),), row.sample.temperature) for row in rows])
    ids = _of_tokens(rows, [row.sample.ids for row in rows])
    return score_tokens(model, states_ND, ids.to(states_ND.device), temperatures.to(states_ND.device))


def score_tokens(
    model: PreTrainedModel, states_ND: Tensor, ids_N: Tensor, temperatures_N: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of the tokens ids_N, each from the state before it, shape (N,).

    Greedy tokens (temperature 0) are scored at temperature 1, as the sampler does. Logits of more than a chunk are
    dropped and computed again by the backward pass.
    """
    temperatures_N = temperatures_N.masked_fill(temperatures_N == 0, 1.0)
    num_rows = max(1, CHUNK // int(model.config.vocab_size))
    if len(ids_N) <= num_rows:
        return _score_chunk(model, states_ND, ids_N, temperatures_N)
    chunks = zip(states_ND.split(num_rows), ids_N.split(num_rows), temperatures_N.split(num_rows), strict=True)
    found = [checkpoint(_score_chunk, model, *chunk, use_reentrant=False) for chunk in chunks]
    return torch.cat([logprobs for logprobs, _ in found]), torch.cat([entropy for _, entropy in found])


def _score_chunk(
    model: PreTrainedModel, states_ND: Tensor, ids_N: Tensor, temperatures_N: Tensor
) -> tuple[Tensor, Tensor]:
    logits_NV = output_logits(model, states_ND) / temperatures_N[:, None]
    every_NV = torch.log_softmax(logits_NV, -1)
    entropy = -(every_NV.exp() * every_NV).sum(-1)
    return every_NV.gather(1, ids_N[:, None])[:, 0], entropy


def _columns(rows: Sequence[Row]) -> list[str]:
    """The names that all rows have; a loss that needs another says so."""
    return sorted(name for name in rows[0].sample.columns if all(name in row.sample.columns for row in rows))


def _of_tokens(rows: Sequence[Row], arrays: Sequence[NDArray[np.generic]]) -> Tensor:
    return torch.cat([torch.from_numpy(array)[row.places] for array, row in zip(arrays, rows, strict=True)])
