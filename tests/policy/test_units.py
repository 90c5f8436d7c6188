"""Units of a policy: chosen by what they are active on, and the only thing that a named term of a loss changes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from contract import asynchronous, group_of, sample_of
from tiny import local_policy

from whippletree.errors import PolicyError

NAMES = ("action", "argument")
MODELS = pytest.mark.parametrize("model", ["nano", "llama"])


def marked(sample, seed):
    """Each token action, argument or neither, whatever is trained."""
    parts = np.random.default_rng(seed).integers(0, 3, len(sample.ids))
    return replace(sample, columns={name: (parts == n).astype(np.float32) for n, name in enumerate(NAMES)})


SAMPLES = [marked(sample, n) for n, sample in enumerate([sample_of(9), *group_of(40, 9, 20), sample_of(30)])]


def loss(batch):
    """Two terms with weights that differ, so that swapping them would show."""
    terms = [scale * (batch.weights_N * batch.logprobs_N * batch.columns_N[name]).sum() for scale, name in
             zip((-1.0, -3.0), NAMES, strict=True)]  # fmt: skip
    return dict(zip(NAMES, terms, strict=True)), {"loss": sum(term.item() for term in terms)}


def alone(name):
    return lambda batch: (loss(batch)[0][name], {})


def gradients(policy):
    return {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None}


async def with_units(model="nano", *, tokens=1, **options):
    policy = local_policy(model)
    policy.keep_units(NAMES, share=0.25, tokens=tokens, **options)
    return policy, await policy.probe_units(SAMPLES)


@MODELS
@asynchronous
async def test_units_are_chosen_by_their_positive_activations_before_the_marked_tokens(model):
    policy, statistics = await with_units(model)
    layers = [module for module in policy.model.modules() if hasattr(module, "up_proj")]
    for name in NAMES:
        for number, layer in enumerate(layers):
            outputs, expected = [], np.zeros(48)
            handle = layer.up_proj.register_forward_hook(lambda *given, outputs=outputs: outputs.append(given[-1]))
            for sample in SAMPLES:
                with torch.no_grad():
                    policy.model(input_ids=torch.from_numpy(sample.ids)[None])
                active = np.maximum(outputs[-1][0].numpy(), 0)
                places = np.flatnonzero((sample.weights > 0) & (sample.columns[name] > 0))
                expected += active[places - 1].sum(0)
            handle.remove()
            np.testing.assert_allclose(policy.units.sums[name][number].numpy(), expected, rtol=1e-4, atol=1e-4)
            best = np.argsort(-expected)[:12]
            assert set(np.flatnonzero(policy.units.masks[name][number].numpy())) == set(best)
    masks = [torch.cat(policy.units.masks[name]).numpy() for name in NAMES]
    assert statistics["units/chosen"] == pytest.approx((masks[0] | masks[1]).mean())
    assert statistics["units/shared"] == pytest.approx((masks[0] & masks[1]).mean())
    await policy.close()


@MODELS
@asynchronous
async def test_each_term_passes_through_its_own_units_and_nothing_else_moves(model):
    policy, _ = await with_units(model)
    plain = {}
    for name in NAMES:
        other = local_policy(model)
        await other.forward_backward(SAMPLES, alone(name))
        plain[name] = gradients(other)
        await other.close()
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    await policy.forward_backward(SAMPLES, loss)
    found, number = gradients(policy), 0
    for name in plain["action"]:
        if "up_proj" not in name and "down_proj" not in name:
            assert name not in found
            continue
        masks = [policy.units.masks[part][number // 2] for part in NAMES]
        if "up_proj" in name:
            masks = [mask[:, None] for mask in masks]
        expected = sum(mask * plain[part][name] for mask, part in zip(masks, NAMES, strict=True))
        torch.testing.assert_close(found[name], expected, rtol=1e-4, atol=1e-6)
        number += 1
    assert number == len(found) == 4
    await policy.optim_step(lr=1e-2, max_grad_norm=1.0)
    for name, parameter in policy.model.named_parameters():
        moved = parameter != before[name]
        may_move = found[name] != 0 if name in found else torch.zeros_like(moved)
        assert not (moved & ~may_move).any()
        assert moved.any() == may_move.any()
    await policy.close()


@asynchronous
async def test_nothing_moves_before_enough_was_seen_and_the_choice_is_final():
    policy, statistics = await with_units(tokens=30)
    assert (statistics["units/chosen"], policy.units.masks) == (0.0, {})
    await policy.forward_backward(SAMPLES, loss)
    assert gradients(policy) == {}
    assert (await policy.probe_units(SAMPLES * 3))["units/chosen"] > 0.2
    seen = dict(policy.units.seen)
    await policy.probe_units(SAMPLES)
    assert policy.units.seen == seen
    await policy.close()


@asynchronous
async def test_terms_without_units_pass_as_ever():
    policy, plain = local_policy(), local_policy()
    policy.keep_units(("elsewhere",), share=0.5, tokens=1)
    await policy.forward_backward(SAMPLES, loss)
    await plain.forward_backward(SAMPLES, loss)
    torch.testing.assert_close(gradients(policy), gradients(plain), rtol=1e-4, atol=1e-5)
    for each in (policy, plain):
        await each.close()


@asynchronous
async def test_units_go_on_bit_by_bit_from_a_checkpoint(tmp_path):
    policy, _ = await with_units(tokens=30)
    policy.save(tmp_path)
    restored = local_policy()
    restored.keep_units(NAMES, share=0.25, tokens=30)
    restored.load(tmp_path)
    for each in (policy, restored):
        await each.probe_units(SAMPLES * 3)
        await each.forward_backward(SAMPLES, loss)
        await each.optim_step(lr=1e-2, max_grad_norm=1.0)
    assert policy.units.masks
    assert policy.fingerprint() == restored.fingerprint()
    await policy.close()
    await restored.close()


@asynchronous
async def test_what_cannot_be_done_is_said(tmp_path):
    with pytest.raises(PolicyError, match=r"GPT2LMHeadModel has no hidden units.*algorithm\.neurons = 0"):
        local_policy("gpt2").keep_units(NAMES, share=0.25, tokens=1)
    plain, (policy, _) = local_policy(), await with_units()
    with pytest.raises(PolicyError, match="keeps no units"):
        await plain.probe_units(SAMPLES)
    plain.save(tmp_path / "plain")
    with pytest.raises(PolicyError, match=r"no units\.pt: all of it was trained"):
        policy.load(tmp_path / "plain")
    policy.save(tmp_path / "units")
    other = local_policy()
    other.keep_units(("other",), share=0.25, tokens=1)
    with pytest.raises(PolicyError, match="the units in"):
        other.load(tmp_path / "units")
    for each in (plain, policy, other):
        await each.close()
