"""Batched decoding on the trainer's own parameters: a static key-value cache of slots, filled and refilled.

Rows are ragged: every row has its own length, prompts are padded on the left, and padding writes to a spare position
that nothing attends to. A slot remembers the tokens whose keys it holds, so that a new turn of a rollout computes only
what it adds, and the rollouts of a group compute their common prompt once. The same jobs in the same order give the
same bits. A job that is running when the weights change goes on under the new ones, with all of its keys computed
again: the log-probability of every token is that of the distribution which it was drawn from.
"""

# pyright: reportUnknownMemberType=false
# torch is typed in part only.

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from whippletree.types import Floats, Ids, TokenSample

MIN_SHARED_TOKENS = 16
"""A shorter common prefix is cheaper to compute again than to wait for or copy."""
PADDING_TOLERANCE = 1.5
"""Prompts are prefilled together while the longest is at most this many times the shortest."""


@dataclass(eq=False, slots=True)
class Job:
    """One completion on its way."""

    prompt_ids: Ids
    max_tokens: int
    temperature: float
    stop_ids: frozenset[int]
    uniforms: Floats
    """One number in [0, 1) per token that may be sampled."""
    done: Callable[[TokenSample], None]
    abandoned: bool = False
    """Nobody waits any more; the decoder lets go of it before its next token."""
    slot: int = -1
    held_tokens: int = 0
    """Of `tokens`, those whose keys its slot held when it was placed."""
    cached_tokens: int = 0
    version: int = 0
    """Of the weights that sampled the last token, and before it `updates` after `first_version`."""
    first_version: int = 0
    updates: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])

    @property
    def tokens(self) -> Ids:
        """The prompt and what was sampled after it."""
        return np.concatenate([self.prompt_ids, np.array(self.ids, np.int64)]) if self.ids else self.prompt_ids


class SlotCache(Cache):
    """Static keys and values, (num_slots, max_context + 1, heads, width) per layer; the last position takes padding."""

    def __init__(self, num_slots: int, max_context: int) -> None:
        super().__init__(layers=[])
        self.num_slots, self.max_context = num_slots, max_context
        self.stores: dict[int, tuple[Tensor, Tensor]] = {}
        self.rows: Tensor | None = None
        self.positions: Tensor = torch.empty(0)
        self.reach = 0

    def aim(self, rows: Tensor | None, positions_Rn: Tensor, reach: int) -> None:
        """Say where the next forward writes, and how many positions it can see; rows None means every slot in order."""
        self.rows, self.positions, self.reach = rows, positions_Rn, reach

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write (R, H, n, D) at the aimed positions; return what the rows can see, (R, H, reach, D)."""
        if layer_idx not in self.stores:
            shape = (self.num_slots, self.max_context + 1, key_states.shape[1])
            self.stores[layer_idx] = (
                key_states.new_zeros(*shape, key_states.shape[3]),
                value_states.new_zeros(*shape, value_states.shape[3]),
            )
        seen: list[Tensor] = []
        rows = torch.arange(self.num_slots) if self.rows is None else self.rows
        for store, states in zip(self.stores[layer_idx], (key_states, value_states), strict=True):
            store[rows[:, None], self.positions] = states.transpose(1, 2)
            view = store[:, : self.reach] if self.rows is None else store[self.rows, : self.reach]
            seen.append(view.transpose(1, 2))
        return seen[0], seen[1]

    def copy(self, source: int, target: int, length: int) -> None:
        for store in (s for pair in self.stores.values() for s in pair):
            store[target, :length] = store[source, :length]

    def get_seq_length(self, layer_idx: int = 0, *args: Any, **kwargs: Any) -> int:
        return self.reach


class SlotDecoder:
    """Runs jobs on a model until they stop. Not thread-safe: one thread owns it."""

    def __init__(self, model: PreTrainedModel, *, num_slots: int, max_context: int) -> None:
        self.model, self.num_slots, self.max_context = model, num_slots, max_context
        self.cache = SlotCache(num_slots, max_context)
        self.waiting: list[Job] = []
        self.active: list[Job] = []
        self.held: NDArray[np.int64] = np.full((num_slots, max_context), -1, dtype=np.int64)
        """Per slot the tokens whose keys and values it holds; -1 beyond."""
        self.free = list(range(num_slots))
        """Oldest first, so that what was used last is kept longest."""
        self.version = 0
        """Of the model's weights."""

    def reset(self) -> None:
        """Drop all jobs and keys, after a failure."""
        self.waiting, self.active = [], []
        self.renew(self.version)

    def renew(self, version: int) -> None:
        """Drop all keys: the weights have changed, or nothing is to depend on what was sampled so far."""
        self.version = version
        for job in self.active:
            job.slot = -1
        self.waiting = [*self.active, *self.waiting]
        self.active = []
        self.held[:] = -1
        self.free = list(range(self.num_slots))

    @torch.no_grad()
    def step(self) -> bool:
        """Admit what fits, then decode one token for every active job. False when there is nothing to do."""
        self._drop_abandoned()
        if self.waiting and self.free:
            self._admit()
        if self.active:
            self._decode()
        return bool(self.active or self.waiting)

    def _drop_abandoned(self) -> None:
        for job in self.active:
            if job.abandoned:
                self._release(job)
        self.active = [job for job in self.active if job.slot >= 0]
        self.waiting = [job for job in self.waiting if not job.abandoned]

    def _release(self, job: Job) -> None:
        self.free.append(job.slot)
        job.slot = -1

    # ---- prompts ----

    def _admit(self) -> None:
        while self.waiting and self.free:
            unready: set[int] = set()
            placed = [job for job in self._continuations_first() if self._place(job, unready)]
            self.waiting = [job for job in self.waiting if job.slot < 0]
            self._prefill(placed)
            self.active.extend(job for job in placed if job.slot >= 0)

    def _continuations_first(self) -> list[Job]:
        """Jobs whose own history is still in a free slot go first, so that no newcomer takes that slot."""
        return sorted(self.waiting, key=lambda job: self._own_slot(self._shared(job)) is None)

    def _shared(self, job: Job) -> NDArray[np.int64]:
        """Per slot the length of the job's tokens that it holds, shape (num_slots,)."""
        tokens = job.tokens
        differs = self.held[:, : len(tokens)] != tokens
        return np.where(differs.any(1), differs.argmax(1), len(tokens))

    def _own_slot(self, shared: NDArray[np.int64]) -> int | None:
        """A free slot that holds a prefix of the job's prompt and hardly more."""
        slot = max(self.free, key=lambda free: int(shared[free]))
        surplus = int((self.held[slot] >= 0).sum()) - int(shared[slot])
        return slot if shared[slot] >= MIN_SHARED_TOKENS > surplus else None

    def _place(self, job: Job, unready: set[int]) -> bool:
        """Give the job a slot with the longest known prefix; False: no slot, or the prefix is still being computed."""
        if not self.free:
            return False
        shared = self._shared(job)
        ready = shared.copy()
        ready[list(unready)] = 0
        if shared.max() >= ready.max() + MIN_SHARED_TOKENS:
            return False
        own = self._own_slot(ready)
        slot = self.free[0] if own is None else own
        self.free.remove(slot)
        donor, length = int(ready.argmax()), int(ready[slot])
        if ready[donor] >= length + MIN_SHARED_TOKENS:
            length = int(ready[donor])
            self.cache.copy(donor, slot, length)
        tokens = job.tokens
        job.slot, job.held_tokens = slot, min(length, len(tokens) - 1)
        if not job.ids:
            job.cached_tokens = job.held_tokens
        self.held[slot] = -1
        self.held[slot, : len(tokens)] = tokens
        unready.add(slot)
        return True

    def _prefill(self, jobs: Sequence[Job]) -> None:
        new = {job: job.tokens[job.held_tokens :] for job in jobs}
        todo = sorted(jobs, key=lambda job: len(new[job]))
        while todo:
            limit = max(MIN_SHARED_TOKENS, int(PADDING_TOLERANCE * len(new[todo[0]])))
            batch = [job for job in todo if len(new[job]) <= limit]
            todo = todo[len(batch) :]
            width = max(len(new[job]) for job in batch)
            tokens = np.zeros((len(batch), width), dtype=np.int64)
            positions = np.full((len(batch), width), self.max_context, dtype=np.int64)
            for row, job in enumerate(batch):
                count = len(new[job])
                tokens[row, width - count :] = new[job]
                positions[row, width - count :] = job.held_tokens + np.arange(count)
            rows = torch.tensor([job.slot for job in batch])
            reach = max(job.held_tokens + len(new[job]) for job in batch)
            logits = self._forward(rows, torch.from_numpy(tokens), torch.from_numpy(positions), reach)
            self._sample(batch, logits)

    # ---- tokens ----

    def _decode(self) -> None:
        jobs = self.active
        lengths = [len(job.prompt_ids) + len(job.ids) - 1 for job in jobs]
        for job, length in zip(jobs, lengths, strict=True):
            self.held[job.slot, length] = job.ids[-1]
        reach = max(lengths) + 1
        if len(jobs) * 2 > self.num_slots:  # reading all slots in place is cheaper than gathering most of them
            tokens = torch.zeros(self.num_slots, 1, dtype=torch.long)
            positions = torch.full((self.num_slots, 1), self.max_context)
            slots = torch.tensor([job.slot for job in jobs])
            tokens[slots, 0] = torch.tensor([job.ids[-1] for job in jobs])
            positions[slots, 0] = torch.tensor(lengths)
            logits = self._forward(None, tokens, positions, reach)[slots]
        else:
            rows = torch.tensor([job.slot for job in jobs])
            tokens = torch.tensor([[job.ids[-1]] for job in jobs])
            logits = self._forward(rows, tokens, torch.tensor(lengths)[:, None], reach)
        self._sample(jobs, logits)
        self.active = [job for job in jobs if job.slot >= 0]

    def _forward(self, rows: Tensor | None, tokens_Rn: Tensor, positions_Rn: Tensor, reach: int) -> Tensor:
        """Logits of the last column, (R, V)."""
        self.cache.aim(rows, positions_Rn, reach)
        mask = torch.arange(reach) <= positions_Rn[:, :, None]
        hidden: Tensor = self.model.base_model(
            input_ids=tokens_Rn,
            attention_mask=mask[:, None],
            position_ids=positions_Rn.masked_fill(positions_Rn == self.max_context, 0),
            cache=self.cache,
            use_cache=True,
        ).last_hidden_state
        return output_logits(self.model, hidden[:, -1])

    def _sample(self, jobs: Sequence[Job], logits_RV: Tensor) -> None:
        """Draw one token per row by inverting the distribution at the job's next uniform number."""
        temperatures = torch.tensor([job.temperature for job in jobs])[:, None]
        greedy = temperatures == 0
        logprobs_RV = torch.log_softmax(logits_RV / temperatures.masked_fill(greedy, 1.0), -1)
        uniforms = torch.tensor([float(job.uniforms[len(job.ids)]) for job in jobs])[:, None]
        cumulative_RV = logprobs_RV.exp().cumsum(-1)
        drawn = torch.searchsorted(cumulative_RV, uniforms * cumulative_RV[:, -1:], right=True)
        drawn = torch.where(greedy, logprobs_RV.argmax(-1, keepdim=True), drawn.clamp(max=logprobs_RV.shape[-1] - 1))
        tokens = cast(list[int], drawn[:, 0].tolist())
        logprobs = cast(list[float], logprobs_RV.gather(1, drawn)[:, 0].tolist())
        for job, token, logprob in zip(jobs, tokens, logprobs, strict=True):
            self._sign(job)
            job.ids.append(token)
            job.logprobs.append(logprob)
            if token in job.stop_ids or len(job.ids) >= job.max_tokens:
                self._finish(job)

    def _sign(self, job: Job) -> None:
        """Note which weights sample the job's next token."""
        if not job.ids:
            job.first_version = self.version
        elif job.version != self.version:
            job.updates.append((len(job.ids), self.version))
        job.version = self.version

    def _finish(self, job: Job) -> None:
        self._release(job)
        job.done(
            TokenSample(
                ids=np.array(job.ids, dtype=np.int64),
                logprobs=np.array(job.logprobs, dtype=np.float32),
                finish_reason="stop" if job.ids[-1] in job.stop_ids else "length",
                policy_version=job.first_version,
                cached_tokens=job.cached_tokens,
                updates=tuple(job.updates),
            )
        )


def output_logits(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Logits (..., V) of the base model's last hidden states (..., D), in single precision at least."""
    head = cast(nn.Module, model.get_output_embeddings())
    logits: Tensor = head(hidden)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
