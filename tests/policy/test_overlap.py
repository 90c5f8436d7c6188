"""Sampling while the policy learns: every token is of one version, and its log-probability is that version's."""

import asyncio
import copy

import numpy as np
import pytest
import torch
from contract import ask, ask_all, asynchronous, learn, sample_of, tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import CONTEXT, MODELS, local_policy

from whippletree.policy.slots import Job, SlotDecoder


def logprobs_by(model, prompt, sampled):
    ids = torch.from_numpy(np.concatenate([prompt, sampled.ids]))
    with torch.no_grad():
        found = torch.log_softmax(model(input_ids=ids[None]).logits[0, :-1].float(), -1)
    return found.gather(1, ids[1:, None])[len(prompt) - 1 :, 0].numpy()


def versions_of(sampled):
    found = np.full(len(sampled.ids), sampled.policy_version)
    for place, version in sampled.updates:
        found[place:] = version
    return found


def require_true(models, prompt, sampled):
    """Each token has the log-probability that the weights of its version give it."""
    versions = versions_of(sampled)
    for version in set(versions.tolist()):
        expected = logprobs_by(models[version], prompt, sampled)
        np.testing.assert_allclose(sampled.logprobs[versions == version], expected[versions == version], atol=1e-4)


def moved(model, seed):
    other = copy.deepcopy(model)
    torch.manual_seed(seed)
    for parameter in other.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)
    return other


MODELS_OF = {kind: [make().eval() for make in [MODELS[kind]]] for kind in ("nano", "llama")}
for weights in MODELS_OF.values():
    weights += [moved(weights[0], seed) for seed in (1, 2)]


@settings(deadline=None, max_examples=20)
@given(
    st.sampled_from(["nano", "llama"]),
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 30)), min_size=1, max_size=5),
    st.lists(st.integers(0, 20), min_size=2, max_size=2),
)
def test_jobs_go_on_under_new_weights_with_their_keys_computed_again(kind, asked, pauses):
    models = MODELS_OF[kind]
    model = copy.deepcopy(models[0])
    decoder, found = SlotDecoder(model, num_slots=3, max_context=CONTEXT), {}
    prompts = [tokens(length, seed) for seed, (length, _) in enumerate(asked)]
    for number, (prompt, (_, count)) in enumerate(zip(prompts, asked, strict=True)):
        uniforms = np.random.default_rng(number).random(count, dtype=np.float32)
        done = lambda sample, number=number: found.update({number: sample})  # noqa: E731
        decoder.waiting.append(Job(prompt, count, 1.0, frozenset(), uniforms, done))
    for version, pause in enumerate(pauses, start=1):
        for _ in range(pause):
            decoder.step()
        model.load_state_dict(models[version].state_dict())
        decoder.renew(version)
    while decoder.step():
        pass
    for number, (prompt, (_, count)) in enumerate(zip(prompts, asked, strict=True)):
        assert len(found[number].ids) == count
        assert found[number].cached_tokens < len(prompt)
        require_true(models, prompt, found[number])


@pytest.mark.parametrize("kind", ["nano", "llama"])
@asynchronous
async def test_tokens_sampled_during_an_update_are_of_both_versions(kind):
    policy = local_policy(kind, lockstep=False, micro_batch_tokens=16)
    models = [copy.deepcopy(policy.model)]
    prompts = [tokens(6, seed) for seed in range(6)]  # more than slots
    sampling = asyncio.create_task(ask_all(policy, prompts, max_tokens=80))
    await asyncio.sleep(0)
    for _ in range(2):
        await learn(policy, [sample_of(20, seed) for seed in range(3)], lr=1e-3)
        models.append(copy.deepcopy(policy.model))
        assert await policy.publish() <= 1e-4
    found = await sampling
    assert any(sampled.updates for sampled in found)
    for prompt, sampled in zip(prompts, found, strict=True):
        require_true(models, prompt, sampled)
    assert (await ask(policy, prompts[0])).policy_version == policy.version == 2
    await policy.close()


@asynchronous
async def test_a_caller_that_leaves_during_an_update_disturbs_nobody():
    policy = local_policy(lockstep=False)
    staying, leaving = (asyncio.create_task(ask(policy, tokens(n), max_tokens=60, session=str(n))) for n in (5, 6))
    await asyncio.sleep(0.01)
    leaving.cancel()
    await learn(policy, [sample_of(20)])
    await policy.publish()
    assert len((await staying).ids) == 60
    await policy.close()
