"""What every policy must do. A back end's tests inherit `PolicyContract`, and make and break its policies."""

import asyncio
import functools
from collections.abc import Sequence

import numpy as np
import pytest

from whippletree.algorithms.losses import negative_log_likelihood
from whippletree.errors import ContextOverflow, PolicyError
from whippletree.policy.base import Policy
from whippletree.types import Ids, Sample, Sampling, TokenSample

SMALLEST_VOCAB = 200
"""Ids below this are known to every policy under test."""


def asynchronous(test):
    """Run an async test in an event loop of its own."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        return asyncio.run(test(*args, **kwargs))

    return run


def tokens(length: int, seed: int = 0) -> Ids:
    return np.random.default_rng((length, seed)).integers(0, SMALLEST_VOCAB, length, dtype=np.int64)


async def ask(
    policy: Policy,
    prompt: Ids,
    *,
    seed: int = 0,
    session: str = "r",
    temperature: float = 1.0,
    max_tokens: int = 12,
    stop_ids: tuple[int, ...] = (),
) -> TokenSample:
    sampling = Sampling(temperature, max_tokens)
    return await policy.sample(prompt, sampling, stop_ids=stop_ids, session=session, seed=seed)


async def ask_all(policy: Policy, prompts: Sequence[Ids], **options) -> list[TokenSample]:
    asked = [ask(policy, prompt, seed=i, session=f"r{i}", **options) for i, prompt in enumerate(prompts)]
    return await asyncio.gather(*asked)


async def trainer_logprobs(policy: Policy, prompt: Ids, sampled: TokenSample, temperature: float = 1.0):
    (found,) = await policy.logprobs([np.concatenate([prompt, sampled.ids])], temperature)
    return found[len(prompt) - 1 :]


def sample_of(length: int, seed: int = 0, *, temperature: float = 1.0) -> Sample:
    """Every second token is trained."""
    weights = np.zeros(length, dtype=np.float32)
    weights[1::2] = 1 / length
    zeros, ones = np.zeros(length, np.float32), np.ones(length, np.float32)
    return Sample(tokens(length, seed), weights, zeros, ones, temperature)


def group_of(prefix: int, *lengths: int) -> list[Sample]:
    """Samples with a common prompt, of which only what comes after it is trained."""
    found = [sample_of(prefix + length) for length in lengths]
    for sample in found:
        sample.ids[:prefix] = tokens(prefix)
        sample.weights[:prefix] = 0.0
    return found


async def learn(policy: Policy, samples: Sequence[Sample], *, lr: float = 1e-2) -> dict[str, float]:
    statistics = await policy.forward_backward(samples, negative_log_likelihood)
    return statistics | await policy.optim_step(lr=lr, max_grad_norm=1.0)


def same(a: TokenSample, b: TokenSample) -> bool:
    return np.array_equal(a.ids, b.ids) and np.array_equal(a.logprobs, b.logprobs)


class PolicyContract:
    """Fixtures of the back end: `make(**options)` opens a policy, always with the same weights and closed after the
    test, that takes the option `micro_batch_tokens`; `break_sampler(policy)` makes it sample from other weights.
    """

    TOLERANCE = 1e-4
    """Between sampler and trainer, in nats."""

    # ---- sampling ----

    @asynchronous
    async def test_sampler_and_trainer_agree_on_ragged_prompts(self, make):
        policy = make()
        for temperature in (1.0, 0.6):
            prompts = [tokens(length) for length in (1, 2, 40, 3, 17, 60, 33, 16, 41)]
            found = await ask_all(policy, prompts, temperature=temperature)
            for prompt, sampled in zip(prompts, found, strict=True):
                assert sampled.ids.shape == sampled.logprobs.shape == (12,)
                assert (sampled.ids.dtype, sampled.logprobs.dtype) == (np.int64, np.float32)
                expected = await trainer_logprobs(policy, prompt, sampled, temperature)
                np.testing.assert_allclose(sampled.logprobs, expected, atol=self.TOLERANCE)

    @asynchronous
    async def test_turns_reuse_their_prefix_and_are_exact(self, make):
        policy = make()
        prompts = [tokens(34, seed) for seed in range(3)]
        for turn in range(3):
            found = await ask_all(policy, prompts, max_tokens=6)
            for i, sampled in enumerate(found):
                expected = await trainer_logprobs(policy, prompts[i], sampled)
                np.testing.assert_allclose(sampled.logprobs, expected, atol=self.TOLERANCE)
                assert 0 <= sampled.cached_tokens < len(prompts[i])
                assert turn == 0 or sampled.cached_tokens >= 16
                prompts[i] = np.concatenate([prompts[i], sampled.ids, tokens(7, turn)])

    @asynchronous
    async def test_a_completion_is_cut_at_max_tokens_and_at_the_end_of_the_context(self, make):
        policy = make()
        short = await ask(policy, tokens(5), max_tokens=3)
        assert (len(short.ids), short.finish_reason) == (3, "length")
        full = await ask(policy, tokens(policy.max_context - 2), max_tokens=20)
        assert (len(full.ids), full.finish_reason) == (2, "length")
        with pytest.raises(ContextOverflow):
            await ask(policy, tokens(policy.max_context))

    @asynchronous
    async def test_a_stop_id_ends_the_completion_and_is_part_of_it(self, make):
        policy = make()
        free = await ask(policy, tokens(9), max_tokens=20)
        stop = int(free.ids[5])
        length = free.ids.tolist().index(stop) + 1
        stopped = await ask(policy, tokens(9), max_tokens=20, stop_ids=(stop,))
        assert stopped.finish_reason == "stop"
        np.testing.assert_array_equal(stopped.ids, free.ids[:length])
        at_the_limit = await ask(policy, tokens(9), max_tokens=length, stop_ids=(stop,))
        assert at_the_limit.finish_reason == "stop"

    @asynchronous
    async def test_tokens_follow_from_prompt_and_seed_in_any_company(self, make):
        policy = make()
        alone = await ask(policy, tokens(20), seed=3)
        together = await asyncio.gather(
            *(ask(policy, tokens(length), seed=9, session=f"s{length}") for length in (4, 50)),
            ask(policy, tokens(20), seed=3, session="t"),
            ask(policy, tokens(20), seed=4, session="t"),
        )
        np.testing.assert_array_equal(alone.ids, together[2].ids)
        assert not np.array_equal(alone.ids, together[3].ids)

    @asynchronous
    async def test_temperature_zero_takes_the_likeliest_token_whatever_the_seed(self, make):
        policy = make()
        prompt = tokens(6)
        first, second = [await ask(policy, prompt, temperature=0.0, seed=seed, max_tokens=4) for seed in (0, 1)]
        np.testing.assert_array_equal(first.ids, second.ids)
        np.testing.assert_allclose(
            first.logprobs, await trainer_logprobs(policy, prompt, first, 0.0), atol=self.TOLERANCE
        )
        others = [np.append(prompt, other) for other in range(SMALLEST_VOCAB)]
        best = max(found[-1] for found in await policy.logprobs(others))
        assert first.logprobs[0] >= best - self.TOLERANCE

    @asynchronous
    async def test_announced_workers_are_served(self, make):
        policy = make()

        async def work(name: str) -> int:
            with policy.worker():
                found = [await ask(policy, tokens(8), session=name, seed=turn, max_tokens=2) for turn in range(3)]
                return len(found)

        assert await asyncio.gather(*map(work, "abcdef")) == [3] * 6

    # ---- learning ----

    @asynchronous
    async def test_temperature_reaches_the_loss(self, make):
        policy = make()
        gaps = []

        def loss(batch):
            gaps.append((batch.logprobs_N - batch.rollout_logprobs_N).abs().max().item())
            return negative_log_likelihood(batch)

        for temperature in (1.0, 0.5, 2.0):
            sampled = await ask(policy, tokens(10), temperature=temperature)
            zeros = np.zeros(10, np.float32)
            ids = np.concatenate([tokens(10), sampled.ids])
            weights = np.concatenate([zeros, np.ones(len(sampled.ids), np.float32)])
            logprobs = np.concatenate([zeros, sampled.logprobs])
            await policy.forward_backward([Sample(ids, weights, logprobs, weights, temperature)], loss)
        assert max(gaps) <= self.TOLERANCE

    @asynchronous
    async def test_the_loss_sees_the_trained_tokens_with_what_belongs_to_them(self, make):
        policy = make()
        rng = np.random.default_rng(0)
        samples = []
        for sample in (sample_of(7), *group_of(30, 5, 9), sample_of(3), *group_of(20, 4, 4)):
            length = len(sample.ids)
            arrays = [rng.random(length).astype(np.float32) + 0.1 for _ in range(3)]
            arrays[0][sample.weights == 0] = 0.0
            samples.append(Sample(sample.ids, *arrays))
        seen: list[tuple[float, ...]] = []

        def loss(batch):
            columns = (batch.weights_N, batch.rollout_logprobs_N, batch.advantages_N, batch.logprobs_N)
            seen.extend(zip(*(column.tolist() for column in columns), strict=True))
            assert (batch.entropy_N > 0).all()
            return negative_log_likelihood(batch)

        await policy.forward_backward(samples, loss)
        logprobs = await policy.logprobs([sample.ids for sample in samples])
        expected = [
            (sample.weights[t], sample.rollout_logprobs[t], sample.advantages[t], found[t - 1])
            for sample, found in zip(samples, logprobs, strict=True)
            for t in range(1, len(sample.ids))
            if sample.weights[t] > 0
        ]
        np.testing.assert_allclose(sorted(seen), sorted(expected), atol=self.TOLERANCE)

    @asynchronous
    async def test_the_gradient_is_a_sum_over_samples_however_they_are_batched(self, make):
        samples = [sample_of(9), sample_of(30), *group_of(40, 9, 20, 3), sample_of(4), *group_of(25, 8, 8)]
        large, small, twice = make(micro_batch_tokens=10_000), make(micro_batch_tokens=1), make()
        found = await large.forward_backward(samples, negative_log_likelihood)
        assert found == pytest.approx(await small.forward_backward(samples, negative_log_likelihood), rel=1e-4)
        parts = [await twice.forward_backward(part, negative_log_likelihood) for part in (samples[:3], samples[3:])]
        assert found == pytest.approx({name: parts[0][name] + parts[1][name] for name in found}, rel=1e-4)
        norms = [await policy.optim_step(lr=1e-3, max_grad_norm=1.0) for policy in (large, small, twice)]
        assert norms[0]["grad_norm"] == pytest.approx(norms[1]["grad_norm"], rel=1e-4)
        assert norms[0]["grad_norm"] == pytest.approx(norms[2]["grad_norm"], rel=1e-4)
        after = [(await policy.logprobs([tokens(20)]))[0] for policy in (large, small, twice)]
        np.testing.assert_allclose(after[0], after[1], atol=1e-2)
        np.testing.assert_allclose(after[0], after[2], atol=1e-2)

    @asynchronous
    async def test_a_step_lowers_the_loss_and_clears_the_gradient(self, make):
        policy = make()
        samples = [sample_of(20), sample_of(12)]
        first = await learn(policy, samples)
        second = await learn(policy, samples)
        assert second["loss"] < first["loss"]
        assert first["grad_norm"] > 0
        assert (await policy.optim_step(lr=1e-2, max_grad_norm=1.0))["grad_norm"] == 0.0

    @asynchronous
    async def test_sketches_are_of_the_gradient_so_far_and_add_up(self, make):
        policy = make()
        samples, found = [sample_of(20), sample_of(30)], []
        for batch in (samples, samples[:1], samples[1:]):
            await policy.forward_backward(batch, negative_log_likelihood)
            found.append(await policy.gradient_sketch(64, seed=5))
            norm = (await policy.optim_step(lr=0.0, max_grad_norm=1e-6))["grad_norm"]
        np.testing.assert_allclose(found[0], found[1] + found[2], rtol=1e-2, atol=1e-4 * norm)
        assert 0.5 < np.linalg.norm(found[2]) / norm < 2.0
        assert np.array_equal(await policy.gradient_sketch(64, seed=5), np.zeros(64))
        assert (await policy.gradient_sketch(0, seed=5)).shape == (0,)

    @asynchronous
    async def test_nothing_to_learn_from_changes_nothing(self, make):
        policy = make()
        before = await policy.logprobs([tokens(20)])
        assert await policy.forward_backward([], negative_log_likelihood) == {}
        assert (await policy.optim_step(lr=1e-2, max_grad_norm=1.0))["grad_norm"] == 0.0
        np.testing.assert_array_equal(before, await policy.logprobs([tokens(20)]))

    # ---- publishing ----

    @asynchronous
    async def test_published_weights_are_those_that_are_sampled(self, make):
        policy = make()
        prompts = [tokens(40, seed) for seed in range(4)]
        before = await ask_all(policy, prompts)
        assert {policy.version, *(sampled.policy_version for sampled in before)} == {0}
        await learn(policy, [sample_of(30)])
        gap = await policy.publish()
        assert 0 <= gap <= self.TOLERANCE
        after = await ask_all(policy, prompts)
        assert {policy.version, *(sampled.policy_version for sampled in after)} == {1}
        for prompt, old, new in zip(prompts, before, after, strict=True):
            expected = await trainer_logprobs(policy, prompt, new)
            np.testing.assert_allclose(new.logprobs, expected, atol=self.TOLERANCE)
            assert not np.allclose(old.logprobs, await trainer_logprobs(policy, prompt, old), atol=self.TOLERANCE)

    @asynchronous
    async def test_a_sampler_with_other_weights_is_found_out(self, make, break_sampler):
        policy = make()
        await policy.publish()
        break_sampler(policy)
        with pytest.raises(PolicyError, match="sampler"):
            await policy.publish()

    # ---- keeping ----

    @asynchronous
    async def test_a_saved_policy_goes_on_bit_by_bit(self, make, tmp_path):
        policy, restored = make(), make()
        await learn(policy, [sample_of(20)])
        await policy.publish()
        policy.save(tmp_path / "at-1")
        restored.load(tmp_path / "at-1")
        assert restored.version == 1
        for each in (policy, restored):
            await learn(each, [sample_of(25)])
            await each.publish()
        assert np.array_equal(*[(await each.logprobs([tokens(30)]))[0] for each in (policy, restored)])
        assert same(*[await ask(each, tokens(30)) for each in (policy, restored)])

    @asynchronous
    async def test_weights_can_be_saved_alone(self, make, tmp_path):
        policy, restored = make(), make()
        await learn(policy, [sample_of(20)])
        policy.save(tmp_path / "weights", optimizer=False)
        restored.load(tmp_path / "weights")
        assert np.array_equal(*[(await each.logprobs([tokens(30)]))[0] for each in (policy, restored)])

    @asynchronous
    async def test_loading_drops_what_the_sampler_remembers(self, make, tmp_path):
        policy, learned = make(), make()
        await learn(learned, [sample_of(20)])
        learned.save(tmp_path / "learned")
        prompt = tokens(40)
        await ask(policy, prompt)
        policy.load(tmp_path / "learned")
        sampled = await ask(policy, prompt)
        expected = await trainer_logprobs(policy, prompt, sampled)
        np.testing.assert_allclose(sampled.logprobs, expected, atol=self.TOLERANCE)
