"""Packed rows against rows computed one by one, in double precision."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from contract import group_of, sample_of
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import MODELS, SHAPE, VOCAB
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import MistralConfig, MistralForCausalLM

from whippletree.policy import tokens as tokens_module
from whippletree.policy.critic import Critic
from whippletree.policy.packed import can_pack, hidden_states, recomputing_layers, takes_block_mask
from whippletree.policy.tokens import score_tokens, scores, token_batch, values_of
from whippletree.trajectory.packing import micro_batches
from whippletree.types import Sample

KINDS = pytest.mark.parametrize("kind", MODELS)
ROWS = st.lists(
    st.tuples(st.integers(-1, 8), st.integers(1, 60), st.integers(1, 30), st.sampled_from([0.0, 0.7, 1.0])),
    min_size=1,
    max_size=9,
)
"""(row whose beginning it shares, so many tokens of it, own tokens, temperature)"""
TREE = [(-1, 0, 50, 1.0), (0, 40, 20, 0.7), (0, 40, 9, 1.0), (0, 20, 30, 1.0), (1, 55, 12, 1.0), (0, 30, 0, 0.7),
        (3, 45, 25, 0.0), (-1, 0, 12, 1.0), (0, 50, 0, 1.0), (4, 60, 20, 1.0)]  # fmt: skip
"""Three levels, a row that is the beginning of another, equal rows, a row without kin."""


def drawn(described):
    """About half of all tokens are trained, shared ones too, by whichever rows."""
    found = []
    for number, (source, cut, own, temperature) in enumerate(described):
        rng = np.random.default_rng((number, own))
        shared = found[source].ids[:cut] if 0 <= source < number else rng.integers(0, VOCAB, 2)
        ids = np.concatenate([shared, rng.integers(0, VOCAB, own)])[:90]
        weights = (rng.random(len(ids)) * (rng.random(len(ids)) < 0.5)).astype(np.float32)
        weights[0] = 0.0
        numbers = [rng.normal(size=len(ids)).astype(np.float32) for _ in range(3)]
        found.append(Sample(ids, weights, *numbers[:2], temperature, columns={"extra": numbers[2]}))
    return found


def exact(kind):
    """In double precision, where the norms of the library round to single."""
    torch.manual_seed(5)
    model = MODELS[kind]().double().eval()
    for parent in list(model.modules()):
        for name, norm in list(parent.named_children()):
            if type(norm).__name__.endswith("RMSNorm"):
                plain = torch.nn.RMSNorm(norm.weight.shape, eps=norm.variance_epsilon, dtype=torch.float64)
                torch.nn.init.uniform_(plain.weight, 0.5, 1.5)
                setattr(parent, name, plain)
    return model


EXACT = {kind: exact(kind) for kind in MODELS}


def critic_of(model, kind):
    torch.manual_seed(6)
    critic = Critic(model, kind, lr=0.0).double()
    torch.nn.init.normal_(critic.head.weight)
    return critic


def gradients(*modules):
    found = [p.grad.clone() if p.grad is not None else None for module in modules for p in module.parameters()]
    for module in modules:
        module.zero_grad()
    return found


def objective(logprobs, entropy, values, sample_numbers):
    weights, advantages, behind, extra = sample_numbers
    return (weights * (advantages * logprobs + behind * entropy + extra * values**2)).sum()


def one_by_one(model, critic, samples):
    """(log-probability, entropy, value) of the trained tokens of each sample, and the gradients."""
    found = []
    for sample in samples:
        at = torch.from_numpy(np.flatnonzero(sample.weights[1:]) + 1)
        ids = torch.from_numpy(sample.ids)
        states = model.base_model(input_ids=ids[None]).last_hidden_state[0]
        logits = model.get_output_embeddings()(states)[at - 1] / float(np.float32(sample.temperature or 1.0))
        spread = logits.softmax(-1)
        entropy = -(spread * spread.log()).sum(-1)
        trunk = critic.trunk(input_ids=ids[None]).last_hidden_state[0] if critic.trunk else states.detach()
        values = critic.head(trunk)[at - 1, 0]
        logprobs = logits.log_softmax(-1).gather(1, ids[at][:, None])[:, 0]
        numbers = (sample.weights, sample.advantages, sample.rollout_logprobs, sample.columns["extra"])
        objective(logprobs, entropy, values, [torch.from_numpy(each)[at] for each in numbers]).backward()
        found.append([each.detach() for each in (logprobs, entropy, values)])
    return found, gradients(model, critic)


def packed(model, critic, samples, max_tokens=10_000, *, checkpointing=False, **options):
    found = [None] * len(samples)
    for pack in micro_batches(samples, max_tokens, **options):
        with recomputing_layers(*((model, critic.trunk) if checkpointing else ())):
            batch = token_batch(model, critic, samples, pack)
        numbers = (batch.weights_N, batch.advantages_N, batch.rollout_logprobs_N, batch.columns_N["extra"])
        objective(batch.logprobs_N, batch.entropy_N, batch.values_N, numbers).backward()
        counts = [int((samples[row].weights > 0).sum()) for row in pack.rows]
        columns = [each.detach().split(counts) for each in (batch.logprobs_N, batch.entropy_N, batch.values_N)]
        for row, *parts in zip(pack.rows, *columns, strict=True):
            found[row] = parts
    return found, gradients(model, critic)


def assert_equal(found, expected):
    for ours, theirs in zip(found[0], expected[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    for ours, theirs in zip(found[1], expected[1], strict=True):
        if theirs is None:
            assert ours is None
        else:
            torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9 * float(theirs.abs().max()) + 1e-12)


@KINDS
@pytest.mark.parametrize("critic_kind", ["model", "head"])
def test_a_tree_gives_the_numbers_and_gradients_of_its_rows(kind, critic_kind):
    model, samples = EXACT[kind], drawn(TREE)
    critic = critic_of(model, critic_kind)
    expected = one_by_one(model, critic, samples)
    levels = max(segment.level for segment in micro_batches(samples, 10_000)[0].segments)
    assert levels >= 2
    assert_equal(packed(model, critic, samples), expected)
    assert_equal(packed(model, critic, samples, 120), expected)
    assert_equal(packed(model, critic, samples, 120, packing=False), expected)
    assert_equal(packed(model, critic, samples, checkpointing=True), expected)


@pytest.mark.parametrize("kind", ["nano", "qwen3"])
@settings(deadline=None, max_examples=12)
@given(ROWS, st.sampled_from([60, 10_000]), st.booleans())
def test_random_trees_give_the_numbers_and_gradients_of_their_rows(kind, described, max_tokens, checkpointing):
    model, samples = EXACT[kind], drawn(described)
    critic = critic_of(model, "head")
    expected = one_by_one(model, critic, samples)
    assert_equal(packed(model, critic, samples, max_tokens, checkpointing=checkpointing), expected)


@pytest.mark.parametrize("critic_kind", ["model", "head"])
def test_scoring_gives_the_values_of_rows_by_themselves(critic_kind):
    model, samples = EXACT["nano"], drawn(TREE)
    critic = critic_of(model, critic_kind)
    found = scores(samples, micro_batches(samples, 150), lambda *batch: values_of(critic, model, *batch))
    for sample, ours, (_, _, values) in zip(samples, found, one_by_one(model, critic, samples)[0], strict=True):
        expected = np.zeros(len(sample.ids), np.float32)
        expected[sample.weights > 0] = values
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_the_same_samples_give_the_same_bits():
    torch.manual_seed(7)
    model, samples = MODELS["nano"]().eval(), drawn(TREE)
    critic = critic_of(model, "head").float()

    def flat(found):
        return [*found[1], *(each for row in found[0] for each in row)]

    first, second = packed(model, critic, samples), packed(model, critic, samples)
    for ours, theirs in zip(flat(first), flat(second), strict=True):
        assert (ours is None and theirs is None) or torch.equal(ours, theirs)


def test_a_sample_without_a_trained_token_is_no_trouble():
    idle = sample_of(30)
    idle.weights[:] = 0.0
    (pack,) = micro_batches([idle], 100)
    assert len(hidden_states(MODELS["nano"]().eval(), [idle], pack)) == 30


# ---- what a model admits ----------------------------------------------------------------------------------------


def test_layers_with_a_window_are_not_packed():
    assert all(can_pack(model) for model in EXACT.values())
    assert not can_pack(MistralForCausalLM(MistralConfig(**SHAPE, num_key_value_heads=2, sliding_window=8)))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@torch.no_grad()
def test_flat_packs_under_flex_attention_give_the_same_states(kind):
    """Forward alone: there is no backward pass of flex_attention without a GPU."""
    model, samples = EXACT[kind], drawn(TREE)
    (pack,) = micro_batches(samples, 10_000)
    expected = hidden_states(model, samples, pack)
    assert not takes_block_mask(model)
    model.config._attn_implementation = "flex_attention"
    try:
        assert takes_block_mask(model)
        with torch.compiler.set_stance("force_eager"):
            found = hidden_states(model, samples, pack)
    finally:
        model.config._attn_implementation = "sdpa"
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


# ---- memory -----------------------------------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """Watches what every operation returns, in both directions."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for each in found if isinstance(found, tuple | list) else [found]:
            if isinstance(each, torch.Tensor):
                self.elements = max(self.elements, each.numel())
        return found


def test_logits_of_more_than_a_chunk_never_exist(monkeypatch):
    model, count, num_rows = EXACT["nano"], 400, 50
    states = torch.randn(count, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ids, temperatures = torch.arange(count) % VOCAB, torch.linspace(0.5, 1.5, count)

    def run():
        leaf = states.clone().requires_grad_()
        with Largest() as largest:
            logprobs, entropy = score_tokens(model, leaf, ids, temperatures)
            (logprobs.sum() + 0.3 * entropy.square().sum()).backward()
        (head,) = gradients(model.get_output_embeddings())
        return largest.elements, [logprobs.detach(), entropy.detach(), leaf.grad, head]

    whole, expected = run()
    monkeypatch.setattr(tokens_module, "CHUNK", num_rows * VOCAB + 1)
    chunked, found = run()
    assert (whole, chunked) == (count * VOCAB, num_rows * VOCAB)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


def test_recomputing_layers_keeps_less():
    model, samples = EXACT["llama"], [*group_of(40, 9, 20, 30), sample_of(60)]
    samples = [replace(sample, columns={"extra": sample.weights}) for sample in samples]
    (pack,) = micro_batches(samples, 10_000)

    def kept(*models):
        sizes = []
        watch = torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t)
        with watch, recomputing_layers(*models):
            hidden_states(model, samples, pack)
        return sum(sizes)

    assert kept(model) < kept() / 4
    assert not any("forward" in vars(module) for module in model.modules())
