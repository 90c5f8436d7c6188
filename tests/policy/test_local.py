from functools import partial

import numpy as np
import pytest
import torch
from contract import PolicyContract, asynchronous, group_of, learn, sample_of, tokens
from tiny import CONTEXT, MODELS, SHAPE, closed_at_the_end, llama, local_policy
from transformers import GraniteConfig, GraniteForCausalLM

from whippletree.algorithms.losses import negative_log_likelihood
from whippletree.errors import PolicyError
from whippletree.policy.weights import load_model


class TestLocal(PolicyContract):
    @pytest.fixture(params=MODELS)
    def make(self, request):
        with closed_at_the_end(partial(local_policy, request.param)) as make:
            yield make


@asynchronous
async def test_micro_batches_add_up_to_the_same_gradient():
    samples = [sample_of(9), *group_of(40, 9, 20, 3), sample_of(30), sample_of(4)]
    gradients = []
    for micro_batch_tokens in (1, 60, 10_000):
        policy = local_policy(micro_batch_tokens=micro_batch_tokens)
        await policy.forward_backward(samples, negative_log_likelihood)
        gradients.append(torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None]))
        await policy.close()
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0], rtol=1e-3, atol=1e-5)


@asynchronous
async def test_an_update_that_is_not_finite_is_skipped():
    policy = local_policy()
    before = policy.fingerprint()
    await policy.forward_backward([sample_of(9)], lambda batch: (batch.logprobs_N.sum() * float("nan"), {}))
    found = await policy.optim_step(lr=1e-2, max_grad_norm=1.0)
    assert found["skipped_update"] == 1.0
    assert policy.fingerprint() == before
    assert (await learn(policy, [sample_of(9)]))["skipped_update"] == 0.0
    assert policy.fingerprint() != before
    await policy.close()


@asynchronous
async def test_the_norm_is_that_before_clipping():
    norms = []
    for limit in (1e-3, 1e9):
        policy = local_policy()
        await policy.forward_backward([sample_of(9)], negative_log_likelihood)
        norms.append((await policy.optim_step(lr=0.0, max_grad_norm=limit))["grad_norm"])
        await policy.close()
    assert norms[0] == norms[1] > 1e-3


def test_a_context_longer_than_the_model_is_refused():
    with pytest.raises(PolicyError, match=f"max_context is {CONTEXT + 1}, expected 2 to {CONTEXT}"):
        local_policy(max_context=CONTEXT + 1)


@asynchronous
async def test_the_smallest_context_can_be_probed():
    policy = local_policy(max_context=2)
    assert await policy.publish() <= 1e-4
    await policy.close()


# ---- loading ----------------------------------------------------------------------------------------------------


def test_a_saved_model_is_loaded(tmp_path):
    model = llama()
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert {name: torch.equal(p, loaded.state_dict()[name]) for name, p in model.state_dict().items()} == dict.fromkeys(
        model.state_dict(), True
    )


def test_a_model_that_is_not_there_is_told(tmp_path):
    with pytest.raises(PolicyError, match=r"cannot load a model from '.*nothing'"):
        load_model(tmp_path / "nothing")


def test_a_model_that_changes_its_logits_is_refused(tmp_path):
    GraniteForCausalLM(GraniteConfig(**SHAPE, logits_scaling=8.0)).save_pretrained(tmp_path)
    with pytest.raises(PolicyError, match="changes its logits"):
        load_model(tmp_path)


@asynchronous
async def test_weights_of_another_architecture_are_refused(tmp_path):
    llama().save_pretrained(tmp_path)
    policy = local_policy("qwen2")
    before = await policy.logprobs([tokens(9)])
    with pytest.raises(PolicyError, match="another architecture"):
        policy.load(tmp_path)
    np.testing.assert_array_equal(before, await policy.logprobs([tokens(9)]))
    await policy.close()
