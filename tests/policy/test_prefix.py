import numpy as np
import pytest
import torch
from contract import group_of, sample_of
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import MODELS, VOCAB, nano

from whippletree.policy.prefix import hidden_states
from whippletree.trajectory.packing import MIN_PREFIX_TOKENS, families, micro_batches
from whippletree.types import Sample

torch.manual_seed(3)
MODEL = nano().eval()
ROOTS = [np.random.default_rng(i).integers(0, VOCAB, 60, dtype=np.int64) for i in range(2)]

SAMPLES = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 60), st.integers(2, 12), st.integers(0, 70)), min_size=1, max_size=8
)
"""(root, tokens of it, own tokens, first trained position)"""


def drawn(described):
    samples = []
    for number, (root, length, own, first) in enumerate(described):
        ids = np.concatenate([ROOTS[root][:length], np.random.default_rng((number, own)).integers(0, VOCAB, own)])
        weights = np.zeros(len(ids), dtype=np.float32)
        weights[first:] = 1.0
        zeros = np.zeros(len(ids), dtype=np.float32)
        samples.append(Sample(ids, weights, zeros, zeros))
    return samples


@settings(deadline=None)
@given(SAMPLES)
def test_families_share_their_prefix_and_train_nothing_in_it(described):
    samples = drawn(described)
    found = families(samples)
    assert [row for family in found for row in family.rows] == list(range(len(samples)))
    for family in found:
        assert family.prefix == 0 or (family.prefix >= MIN_PREFIX_TOKENS and len(family.rows) > 1)
        for row in family.rows:
            np.testing.assert_array_equal(
                samples[row].ids[: family.prefix], samples[family.rows[0]].ids[: family.prefix]
            )
            assert not samples[row].weights[: family.prefix + 1].any() or family.prefix == 0
            assert family.prefix < len(samples[row].ids)


@settings(deadline=None)
@given(SAMPLES, st.integers(1, 300))
def test_micro_batches_take_every_sample_once_and_keep_the_budget(described, max_tokens):
    samples = drawn(described)
    batches = micro_batches(samples, max_tokens)
    assert sorted(row for batch in batches for family in batch for row in family.rows) == list(range(len(samples)))
    for batch in batches:
        assert len(batch) == 1 or sum(family.cost(samples) for family in batch) <= max_tokens
        assert len({family.prefix > 0 for family in batch}) == 1


@settings(deadline=None, max_examples=25)
@given(SAMPLES)
@torch.no_grad()
def test_hidden_states_equal_those_of_rows_by_themselves(described):
    samples = drawn(described)
    for batch in micro_batches(samples, 200):
        found = iter(hidden_states(MODEL, samples, batch))
        for family in batch:
            for row in family.rows:
                alone = MODEL.base_model(input_ids=torch.from_numpy(samples[row].ids)[None]).last_hidden_state[0]
                torch.testing.assert_close(next(found), alone[family.prefix :], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", MODELS)
def test_the_gradient_goes_through_the_common_prefix(kind):
    """Families of different prefixes, padded against each other, against one row at a time."""
    torch.manual_seed(4)
    model = MODELS[kind]().eval()
    samples = [*group_of(40, 9, 20, 3), *group_of(26, 8, 5)]
    assert [family.prefix for family in families(samples)] == [40, 26]
    direction = torch.randn(80, 32)

    def gradients(one_by_one):
        model.zero_grad()
        if one_by_one:
            for sample, prefix in zip(samples, (40, 40, 40, 26, 26), strict=True):
                hidden = model.base_model(input_ids=torch.from_numpy(sample.ids)[None]).last_hidden_state[0]
                (hidden[prefix:] * direction[prefix : len(hidden)]).sum().backward()
        else:
            (batch,) = micro_batches(samples, 1000)
            rows = [(row, family.prefix) for family in batch for row in family.rows]
            states = hidden_states(model, samples, batch)
            total = torch.zeros(())
            for state, (_, prefix) in zip(states, rows, strict=True):
                total = total + (state * direction[prefix : prefix + len(state)]).sum()
            total.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    shared, alone = gradients(one_by_one=False), gradients(one_by_one=True)
    assert shared.keys() == alone.keys()
    for name, gradient in alone.items():
        torch.testing.assert_close(shared[name], gradient, rtol=1e-3, atol=1e-3 * float(gradient.abs().max()))


def test_a_sample_without_a_trained_token_is_no_trouble():
    idle = sample_of(30)
    idle.weights[:] = 0.0
    (batch,) = micro_batches([idle], 100)
    assert [len(states) for states in hidden_states(MODEL, [idle], batch)] == [30]
    assert micro_batches([], 100) == []
