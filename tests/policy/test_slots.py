import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import CONTEXT, MODELS, VOCAB, llama, nano

from whippletree.policy.slots import MIN_SHARED_TOKENS, Job, SlotDecoder

torch.manual_seed(2)
MODEL = nano().eval()
ROOTS = [np.random.default_rng(i).integers(0, VOCAB, 60, dtype=np.int64) for i in range(3)]

JOBS = st.lists(
    st.tuples(
        st.integers(0, 2),  # which root the prompt begins with
        st.integers(1, 60),  # how far
        st.integers(0, 12),  # own tokens after it
        st.integers(1, 8),  # max_tokens
        st.integers(0, 3),  # steps of the decoder before the next job comes
    ),
    min_size=1,
    max_size=9,
)


def job(prompt, found, *, max_tokens=8, temperature=1.0, stop_ids=(), seed=0):
    uniforms = np.random.default_rng(seed).random(max_tokens, dtype=np.float32)
    return Job(prompt, max_tokens, temperature, frozenset(stop_ids), uniforms, found.append)


def run(decoder):
    while decoder.step():
        pass


@torch.no_grad()
def reference(model, prompt, ids, temperature=1.0):
    """Log-probabilities of ids after the prompt, by one forward without any cache."""
    whole = torch.from_numpy(np.concatenate([prompt, ids]))[None]
    logits = model(input_ids=whole, use_cache=False).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, -1).gather(1, torch.from_numpy(ids)[:, None])[:, 0].numpy()


@settings(max_examples=25, deadline=None)
@given(JOBS, st.integers(1, 5))
def test_every_mixture_of_jobs_and_shared_prefixes_is_exact(asked, num_slots):
    decoder = SlotDecoder(MODEL, num_slots=num_slots, max_context=CONTEXT)
    done = []
    for number, (root, length, own, max_tokens, steps) in enumerate(asked):
        prompt = np.concatenate([ROOTS[root][:length], ROOTS[root][::-1][:own]])
        found = []
        decoder.waiting.append(job(prompt, found, max_tokens=max_tokens, seed=number))
        done.append((prompt, found, max_tokens))
        for _ in range(steps):
            decoder.step()
    run(decoder)
    assert sorted(decoder.free) == list(range(num_slots))
    for prompt, (sample,), max_tokens in done:
        assert len(sample.ids) == max_tokens
        assert sample.cached_tokens < len(prompt)
        np.testing.assert_allclose(sample.logprobs, reference(MODEL, prompt, sample.ids), atol=1e-4)


@pytest.mark.parametrize("kind", MODELS)
def test_a_group_computes_its_prompt_once(kind):
    model, found = MODELS[kind]().eval(), []
    decoder = SlotDecoder(model, num_slots=8, max_context=CONTEXT)
    decoder.waiting = [job(ROOTS[0][:50], found, seed=seed) for seed in range(5)]
    run(decoder)
    assert sorted(sample.cached_tokens for sample in found) == [0, 49, 49, 49, 49]
    for sample in found:
        np.testing.assert_allclose(sample.logprobs, reference(model, ROOTS[0][:50], sample.ids), atol=1e-4)


def test_a_turn_continues_in_its_own_slot_even_when_newcomers_wait():
    decoder, first, second = SlotDecoder(MODEL, num_slots=2, max_context=CONTEXT), [], []
    decoder.waiting = [job(ROOTS[0][:40], first)]
    run(decoder)
    turn = np.concatenate([ROOTS[0][:40], first[0].ids, ROOTS[1][:5]])
    newcomers = [job(ROOTS[i][:30], second) for i in (1, 2)]
    decoder.waiting = [*newcomers, own := job(turn, second)]
    run(decoder)
    assert own.cached_tokens == 47  # the key of the last sampled token was never computed
    assert all(newcomer.cached_tokens == 0 for newcomer in newcomers)


def test_a_short_common_prefix_is_computed_again():
    decoder, found = SlotDecoder(MODEL, num_slots=2, max_context=CONTEXT), []
    for length in (MIN_SHARED_TOKENS - 1, MIN_SHARED_TOKENS + 4):
        decoder.waiting = [job(np.concatenate([ROOTS[0][:length], ROOTS[1][:20]]), found)]
        run(decoder)
    assert [sample.cached_tokens for sample in found] == [0, 0]


def test_forgetting_leaves_no_cached_token():
    decoder, found = SlotDecoder(MODEL, num_slots=2, max_context=CONTEXT), []
    for _ in range(2):
        decoder.waiting = [job(ROOTS[0][:40], found)]
        run(decoder)
        decoder.renew(0)
    assert [sample.cached_tokens for sample in found] == [0, 0]
    np.testing.assert_array_equal(found[0].logprobs, found[1].logprobs)


def test_abandoned_jobs_free_their_slots():
    decoder, found = SlotDecoder(MODEL, num_slots=1, max_context=CONTEXT), []
    running, waiting, other = (job(ROOTS[i][:20], found) for i in range(3))
    decoder.waiting = [running, waiting, other]
    decoder.step()
    running.abandoned = waiting.abandoned = True
    run(decoder)
    assert len(found) == 1
    np.testing.assert_allclose(found[0].logprobs, reference(MODEL, ROOTS[2][:20], found[0].ids), atol=1e-4)
    running.abandoned = False
    decoder.waiting = [running]
    decoder.step()
    running.abandoned = True
    decoder.renew(0)
    assert (decoder.free, decoder.active) == ([0], [])


def test_tokens_are_drawn_from_the_distribution():
    decoder, found, draws = SlotDecoder(MODEL, num_slots=1, max_context=CONTEXT), [], 300
    grid = ((np.arange(draws) + 0.5) / draws).astype(np.float32)
    for value in grid:
        asked = job(ROOTS[0][:20], found, max_tokens=1, temperature=0.8)
        asked.uniforms[:] = value
        decoder.waiting = [asked]
        run(decoder)
    counts = np.bincount([int(sample.ids[0]) for sample in found], minlength=VOCAB)
    expected = np.exp([reference(MODEL, ROOTS[0][:20], np.array([token]), 0.8)[0] for token in range(VOCAB)])
    assert np.abs(counts / draws - expected).max() <= 1 / draws + 1e-4  # an even grid of uniforms leaves no noise


def test_the_largest_uniform_draws_a_possible_token():
    model = llama().eval()
    model.lm_head.weight.data[200:] = 0.0
    model.lm_head.weight.data[:200] *= 1000.0  # most tokens have probability 0
    decoder, found = SlotDecoder(model, num_slots=1, max_context=CONTEXT), []
    asked = job(ROOTS[0][:5], found, max_tokens=20)
    asked.uniforms[:] = np.nextafter(np.float32(1), np.float32(0))
    decoder.waiting = [asked]
    run(decoder)
    assert np.isfinite(found[0].logprobs).all()
