"""From samples to what a loss sees: the trained tokens of a micro-batch, each with the state before it."""

# pyright: reportUnknownMemberType=false
# torch is typed in part only.

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from whippletree.policy.base import TokenBatch
from whippletree.policy.critic import Critic
from whippletree.policy.prefix import hidden_states
from whippletree.policy.slots import output_logits
from whippletree.trajectory.packing import Family, micro_batches
from whippletree.types import Floats, Sample


@dataclass(frozen=True, slots=True)
class Row:
    sample: Sample
    places: Tensor
    """Of the trained tokens in the sample."""
    prefix: int
    """Tokens that its family computes once."""


def rows_of(samples: Sequence[Sample], batch: Sequence[Family]) -> list[Row]:
    return [
        Row(samples[row], torch.from_numpy(np.flatnonzero(samples[row].weights[1:]) + 1), family.prefix)
        for family in batch
        for row in family.rows
    ]


def token_batch(
    model: PreTrainedModel, critic: Critic | None, samples: Sequence[Sample], batch: Sequence[Family]
) -> TokenBatch:
    """With the gradient of policy and critic."""
    rows = rows_of(samples, batch)
    states = states_before(model, samples, batch)
    logprobs, entropy = _score_rows(model, rows, states)
    return TokenBatch(
        logprobs,
        entropy,
        rollout_logprobs_N=_of_tokens(rows, [row.sample.rollout_logprobs for row in rows]),
        advantages_N=_of_tokens(rows, [row.sample.advantages for row in rows]),
        weights_N=_of_tokens(rows, [row.sample.weights for row in rows]),
        values_N=None if critic is None else _values(critic, states, samples, batch),
        columns_N={name: _of_tokens(rows, [row.sample.columns[name] for row in rows]) for name in _columns(rows)},
    )


Numbers = Callable[[Sequence[Sample], Sequence[Family]], Tensor]
"""One number per trained token of a micro-batch, (N,)."""


def scores(samples: Sequence[Sample], max_tokens: int, numbers: Numbers) -> list[Floats]:
    """Per sample the numbers of its trained tokens, 0 elsewhere, shape (T,); without gradient."""
    found = [np.zeros(len(sample.ids), np.float32) for sample in samples]
    for batch in micro_batches(samples, max_tokens):
        rows, order = rows_of(samples, batch), [row for family in batch for row in family.rows]
        with torch.no_grad():
            flat = numbers(samples, batch).float().numpy()
        ends = np.cumsum([len(row.places) for row in rows])
        for index, row, part in zip(order, rows, np.split(flat, ends[:-1]), strict=True):
            found[index][row.places.numpy()] = part
    return found


def logprobs_of(model: PreTrainedModel, samples: Sequence[Sample], batch: Sequence[Family]) -> Tensor:
    return _score_rows(model, rows_of(samples, batch), states_before(model, samples, batch))[0]


def values_of(critic: Critic, model: PreTrainedModel, samples: Sequence[Sample], batch: Sequence[Family]) -> Tensor:
    """`model` is the policy's, whose states a critic without a trunk reads."""
    states = states_before(critic.trunk or model, samples, batch)
    return critic.values(states)


def states_before(model: PreTrainedModel, samples: Sequence[Sample], batch: Sequence[Family]) -> Tensor:
    """The hidden state that predicts each trained token, (N, D)."""
    rows, hidden = rows_of(samples, batch), hidden_states(model, samples, batch)
    return torch.cat([state[row.places - 1 - row.prefix] for state, row in zip(hidden, rows, strict=True)])


def _values(critic: Critic, states_ND: Tensor, samples: Sequence[Sample], batch: Sequence[Family]) -> Tensor:
    return critic.values(states_ND if critic.trunk is None else states_before(critic.trunk, samples, batch))


def _score_rows(model: PreTrainedModel, rows: Sequence[Row], states_ND: Tensor) -> tuple[Tensor, Tensor]:
    temperatures = torch.cat([torch.full((len(row.places),), row.sample.temperature) for row in rows])
    return score_tokens(model, states_ND, _of_tokens(rows, [row.sample.ids for row in rows]), temperatures)


def score_tokens(
    model: PreTrainedModel, states_ND: Tensor, ids_N: Tensor, temperatures_N: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of the tokens ids_N, each from the state before it, shape (N,).

    Greedy tokens (temperature 0) are scored at temperature 1, as the sampler does.
    """
    temperatures_N = temperatures_N.masked_fill(temperatures_N == 0, 1.0)
    logits_NV = output_logits(model, states_ND) / temperatures_N[:, None]
    every_NV = torch.log_softmax(logits_NV, -1)
    entropy = -(every_NV.exp() * every_NV).sum(-1)
    return every_NV.gather(1, ids_N[:, None])[:, 0], entropy


def _columns(rows: Sequence[Row]) -> list[str]:
    """The names that all rows have; a loss that needs another says so."""
    return sorted(name for name in rows[0].sample.columns if all(name in row.sample.columns for row in rows))


def _of_tokens(rows: Sequence[Row], arrays: Sequence[NDArray[np.generic]]) -> Tensor:
    return torch.cat([torch.from_numpy(array)[row.places] for array, row in zip(arrays, rows, strict=True)])
