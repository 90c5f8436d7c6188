"""A policy in this process: any Hugging Face causal LM, sampled and trained on the same torch parameters.

Sampler and trainer share their weights, so publishing is a change of version and their log-probabilities agree to
rounding. In lockstep, sampling waits until every announced worker has asked, and serves the requests in the order of
their sessions: then a run with the same seed gives the same bits whatever the sandboxes' speed.
"""

# pyright: reportUnknownMemberType=false
# torch and transformers are typed in part only.

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from transformers import PreTrainedModel

from whippletree.chat.base import Renderer
from whippletree.errors import ContextOverflow, PolicyError
from whippletree.policy.base import CriticKind, Loss, Scorer, add_statistics
from whippletree.policy.critic import Critic
from whippletree.policy.lora import dropping_out
from whippletree.policy.reference import Reference
from whippletree.policy.sketch import gradient_sketch
from whippletree.policy.slots import Job, SlotDecoder
from whippletree.policy.tokens import Learning, logprobs_of, score_tokens, scores, token_batch, values_of
from whippletree.policy.units import Units, backward, whole
from whippletree.policy.weights import Keeper, Whole, fingerprint
from whippletree.trajectory.packing import Pack, num_unique
from whippletree.types import Floats, Ids, Sample, Sampling, TokenSample

T = TypeVar("T")
log = logging.getLogger(__name__)

PROBE_TOKENS = 64
"""Half of them prompt, half of them sampled."""
PROBE_TOLERANCE = 1e-3
"""In nats."""


class LocalPolicy:
    """See `whippletree.policy.base.Policy`."""

    def __init__(
        self,
        model: PreTrainedModel,
        renderer: Renderer,
        *,
        num_slots: int = 128,
        max_context: int = 1024,
        lockstep: bool = True,
        keeper: Keeper | None = None,
        learning: Learning | None = None,
    ) -> None:
        positions = getattr(model.config, "max_position_embeddings", max_context)
        if not 2 <= max_context <= positions:
            raise PolicyError(f"max_context is {max_context}, expected 2 to {positions}, the positions the model has")
        self.model, self.renderer, self.keeper = model, renderer, keeper or Whole()
        self.max_context, self.lockstep = max_context, lockstep
        self.learning = learning or Learning()
        self.version = 0
        self.cpu_s = {"sampling": 0.0, "learning": 0.0}
        """CPU seconds of the policy's thread so far."""
        self.learned_tokens = Counter({"rows": 0, "unique": 0, "computed": 0})
        """So far: in the rows, in their trees, and computed."""
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)
        self.critic: Critic | None = None
        self.reference: Reference | None = None
        self.units: Units | None = None
        self._broken_loss = False
        """Whether a loss since the last step was not finite."""
        self._decoder = SlotDecoder(model, num_slots=num_slots, max_context=max_context)
        self._micro_batch_s = 0.0
        """CPU seconds that the last one took, while it learns."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="policy")
        self._workers = 0
        self._first_workers = False
        """Whether nothing was sampled since there were no workers."""
        self._answers: dict[Job, asyncio.Future[TokenSample]] = {}
        """Of everyone who waits for tokens."""
        self._asked: dict[Job, tuple[str, int]] = {}
        """Session and seed of the jobs that the decoder does not have yet."""
        self._sampling: asyncio.Task[None] | None = None
        model.eval()

    # ---- acting ----

    @contextmanager
    def worker(self) -> Generator[None]:
        self._first_workers |= self._workers == 0
        self._workers += 1
        try:
            yield
        finally:
            self._workers -= 1
            self._start_sampling()

    async def sample(
        self, prompt_ids: Ids, sampling: Sampling, *, stop_ids: tuple[int, ...], session: str, seed: int
    ) -> TokenSample:
        if len(prompt_ids) == 0 or sampling.max_tokens < 1:
            raise ValueError(f"a prompt of {len(prompt_ids)} and max_tokens of {sampling.max_tokens} must be 1 or more")
        room = self.max_context - len(prompt_ids)
        if room < 1:
            raise ContextOverflow(
                f"a prompt of {len(prompt_ids)} tokens leaves no room for an answer in a context of {self.max_context}"
            )
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[TokenSample] = loop.create_future()

        def done(sample: TokenSample) -> None:
            loop.call_soon_threadsafe(lambda: None if answer.done() else answer.set_result(sample))

        max_tokens = min(sampling.max_tokens, room)
        uniforms = np.random.Generator(np.random.Philox(seed)).random(max_tokens, dtype=np.float32)
        job = Job(prompt_ids, max_tokens, sampling.temperature, frozenset(stop_ids), uniforms, done)
        self._asked[job], self._answers[job] = (session, seed), answer
        self._start_sampling()
        try:
            return await answer
        finally:
            job.abandoned = True  # says nothing to a finished job; a caller that was cancelled wants no more tokens
            self._asked.pop(job, None)
            del self._answers[job]

    def _everyone_asked(self) -> bool:
        return bool(self._asked) and (not self.lockstep or len(self._asked) >= self._workers)

    def _start_sampling(self) -> None:
        idle = self._sampling is None or self._sampling.done()
        if idle and self._everyone_asked():
            self._sampling = asyncio.get_running_loop().create_task(self._sample_all())

    async def _sample_all(self) -> None:
        """Serve what is asked; what goes wrong is raised in those who asked, since no one awaits this task."""
        decode = self._decode_all if self.lockstep else self._decode_turn
        while self._everyone_asked():
            try:
                while await self._in_thread("sampling", decode, self._asked_so_far()):
                    pass
            except Exception as error:
                self._fail(error)
                await self._in_thread("sampling", self._decoder.reset)

    def _asked_so_far(self) -> list[Job]:
        """What the decoder does not have yet, in an order that does not depend on who asked first."""
        jobs = sorted(self._asked, key=lambda job: self._asked[job])
        self._asked.clear()
        return jobs

    def _fail(self, error: Exception) -> None:
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)

    def _decode_all(self, jobs: Sequence[Job]) -> bool:
        if self._first_workers:  # a resumed run has no keys from before either, and must give the same bits
            self._decoder.renew(self.version)
            self._first_workers = False
        self._decoder.waiting += jobs
        while self._decoder.step():
            pass
        return False

    def _decode_turn(self, jobs: Sequence[Job]) -> bool:
        """A token of every job; while the policy learns, as many as take the time of its last micro-batch."""
        self._decoder.waiting += jobs
        ends = time.thread_time() + self._micro_batch_s
        while (more := self._decoder.step()) and time.thread_time() < ends:
            pass
        return more

    # ---- learning ----

    async def logprobs(self, ids: Sequence[Ids], temperature: float = 1.0) -> list[Floats]:
        return await self._in_thread("learning", self._logprobs, ids, temperature)

    def _logprobs(self, ids: Sequence[Ids], temperature: float) -> list[Floats]:
        found: list[Floats] = []
        with torch.no_grad():
            for sequence in ids:
                tokens = torch.from_numpy(sequence)
                hidden = self.model.base_model(input_ids=tokens[None], use_cache=False).last_hidden_state[0, :-1]
                logprobs, _ = score_tokens(self.model, hidden, tokens[1:], torch.full((len(tokens) - 1,), temperature))
                found.append(logprobs.numpy())
        return found

    async def forward_backward(self, samples: Sequence[Sample], loss: Loss) -> dict[str, float]:
        self._refuse_too_long(samples)
        totals: dict[str, float] = {}
        try:
            for pack in await self._in_thread("learning", self._packs_to_learn, samples):
                await self._in_thread("learning", self._learn, samples, pack, loss, totals)  # others' turns between
        finally:
            self._micro_batch_s = 0.0
        return totals

    def _packs_to_learn(self, samples: Sequence[Sample]) -> list[Pack]:
        """The micro-batches, counted."""
        packs = self.learning.packs(self.model, samples)
        rows, computed = sum(len(sample.ids) for sample in samples), sum(pack.num_tokens for pack in packs)
        self.learned_tokens.update(rows=rows, unique=num_unique(samples), computed=computed)
        return packs

    def _learn(self, samples: Sequence[Sample], pack: Pack, loss: Loss, totals: dict[str, float]) -> None:
        """Add a micro-batch's gradient, and its statistics to `totals`."""
        started = time.thread_time()
        with dropping_out(self.model, seed=self.version):  # in layers that are computed again, too
            with self.learning.recomputing(self.model, self.critic):
                value, statistics = loss(token_batch(self.model, self.critic, samples, pack))
            finite = bool(torch.isfinite(whole(value)))
            if finite:
                backward(value, self.units)
        if finite:
            add_statistics(totals, statistics)
        else:
            self._broken_loss = True
            concerned = sorted({samples[row].rollout_id for row in pack.rows})
            log.warning(
                "update %d is skipped: the loss over these rollouts is %s: %s",
                self.version + 1, whole(value).item(), ", ".join(concerned),
            )  # fmt: skip
        self._micro_batch_s = time.thread_time() - started

    def _refuse_too_long(self, samples: Sequence[Sample]) -> None:
        for sample in samples:
            if len(sample.ids) > self.max_context:
                raise PolicyError(
                    f"a sample of rollout '{sample.rollout_id}' has {len(sample.ids)} tokens, more than the context of "
                    f"{self.max_context}; raise policy.max_context to what the samples were made with"
                )

    def keep_reference(self, path: Path | str | None = None) -> None:
        self.reference = Reference(self.model, self.model if path is None else self.keeper.open(path))

    def add_critic(self, kind: CriticKind, *, lr: float) -> None:
        self.critic = Critic(self.model, kind, lr=lr)

    def keep_units(self, names: Sequence[str], *, share: float, tokens: int) -> None:
        self.units = Units(self.model, names, share=share, tokens=tokens)

    async def probe_units(self, samples: Sequence[Sample]) -> dict[str, float]:
        if self.units is None:
            raise PolicyError("this policy keeps no units; a run with algorithm.neurons above 0 does as it opens")
        return await self._in_thread("learning", self.units.probe, self.model, samples)

    async def score(self, samples: Sequence[Sample], by: Scorer) -> list[Floats]:
        return await self._in_thread("learning", self._score, samples, by)

    def _score(self, samples: Sequence[Sample], by: Scorer) -> list[Floats]:
        self._refuse_too_long(samples)
        packs = self.learning.packs(self.model, samples)
        if by == "critic":
            if self.critic is None:
                raise PolicyError('this policy has no critic; a run with algorithm.type = "ppo" adds one as it opens')
            return scores(samples, packs, partial(values_of, self.critic, self.model))
        if by == "reference" and self.reference is None:
            raise PolicyError("this policy has no reference; a run with algorithm.kl above 0 keeps one as it opens")
        with self.reference.in_place() if by == "reference" and self.reference else nullcontext():
            return scores(samples, packs, partial(logprobs_of, self.model))

    async def gradient_sketch(self, size: int, seed: int) -> Floats:
        gradients = ((name, parameter.grad) for name, parameter in self.model.named_parameters())
        return await self._in_thread("learning", gradient_sketch, gradients, size, seed)

    async def optim_step(self, *, lr: float, max_grad_norm: float) -> dict[str, float]:
        return await self._in_thread("learning", self._optim_step, lr, max_grad_norm)

    def _optim_step(self, lr: float, max_grad_norm: float) -> dict[str, float]:
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        learners: dict[str, tuple[torch.nn.Module, torch.optim.Optimizer]] = {"grad_norm": (self.model, self.optimizer)}
        if self.critic is not None:
            learners["critic_grad_norm"] = (self.critic, self.critic.optimizer)
        clip = torch.nn.utils.clip_grad_norm_
        norms = {name: float(clip(module.parameters(), max_grad_norm)) for name, (module, _) in learners.items()}
        skipped = self._broken_loss or not all(map(math.isfinite, norms.values()))
        self._broken_loss = False
        for _, optimizer in learners.values():
            if not skipped:
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self._decoder.renew(self.version + 1)  # no token is sampled with keys of both the old weights and the new
        return {**norms, "skipped_update": float(skipped)}

    async def publish(self) -> float:
        self.version += 1
        gap = await self._in_thread("learning", self._probe_gap)
        if not gap <= PROBE_TOLERANCE:
            raise PolicyError(
                f"after update {self.version} sampler and trainer differ by {gap:.2g} nats on the probe sequence, "
                f"expected at most {PROBE_TOLERANCE:.2g}; the sampler does not hold the trainer's weights"
            )
        return gap

    def _probe_gap(self) -> float:
        """Sample a few tokens after a fixed prompt and score them again: the largest difference in nats."""
        if self._decoder.version != self.version:
            self._decoder.renew(self.version)
        length = min(PROBE_TOKENS, self.max_context) // 2
        prompt = np.random.default_rng(0).integers(0, self.model.config.vocab_size, length, dtype=np.int64)
        samples: list[TokenSample] = []
        uniforms = np.random.default_rng(self.version).random(length, dtype=np.float32)
        self._decoder.waiting.insert(0, Job(prompt, length, 1.0, frozenset(), uniforms, samples.append))
        while not samples:
            self._decoder.step()
        (sampled,) = samples
        scored = self._logprobs([np.concatenate([prompt, sampled.ids])], 1.0)[0][len(prompt) - 1 :]
        if not (self._decoder.active or self._decoder.waiting):
            self._decoder.renew(self.version)
        return float(np.abs(scored - sampled.logprobs).max())

    # ---- keeping ----

    def save(self, path: Path, *, optimizer: bool = True) -> None:
        self.keeper.save(self.model, path)
        self.renderer.save(path)
        if optimizer:
            torch.save({"version": self.version, "optimizer": self.optimizer.state_dict()}, path / "trainer.pt")
            if self.critic is not None:
                self.critic.save(path)
            if self.units is not None:
                self.units.save(path)

    def load(self, path: Path) -> None:
        self.keeper.take(self.model, path)
        trainer = path / "trainer.pt"
        if trainer.exists():
            state: dict[str, Any] = torch.load(trainer, weights_only=True)
            self.version = state["version"]
            self.optimizer.load_state_dict(state["optimizer"])
            if self.critic is not None:
                self.critic.load(path)
            if self.units is not None:
                self.units.load(path)
        self._decoder.renew(self.version)

    def fingerprint(self) -> str:
        """Hash of all parameters: equal exactly where the weights are."""
        return fingerprint(self.model)

    async def close(self) -> None:
        if self._sampling is not None:
            self._sampling.cancel()
        self._fail(PolicyError("the policy was closed while it was asked for tokens"))
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def _in_thread(self, account: str, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._timed, account, function, *args)

    def _timed(self, account: str, function: Callable[..., T], *args: Any) -> T:
        started = time.thread_time()
        try:
            return function(*args)
        finally:
            self.cpu_s[account] += time.thread_time() - started
