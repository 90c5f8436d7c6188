import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whippletree.algorithms.losses import clipped_surrogate, negative_log_likelihood
from whippletree.policy.base import TokenBatch

TOKENS = st.lists(
    st.tuples(
        st.floats(-8, -0.01),  # logprob
        st.floats(-1, 1),  # how far the rollout's is from it
        st.floats(-3, 3),  # advantage
        st.floats(0.001, 1),  # weight
        st.floats(0, 6),  # entropy
    ),
    min_size=1,
    max_size=30,
)


def batch_of(tokens):
    logprobs, moved, advantages, weights, entropy = np.array(tokens, dtype=np.float32).reshape(-1, 5).T
    as_tensor = [torch.from_numpy(array.copy()) for array in (entropy, logprobs - moved, advantages, weights)]
    return TokenBatch(torch.from_numpy(logprobs.copy()).requires_grad_(), *as_tensor)


def arrays(batch):
    columns = (batch.logprobs_N, batch.rollout_logprobs_N, batch.advantages_N, batch.weights_N, batch.entropy_N)
    return [column.detach().double().numpy() for column in columns]


@given(TOKENS, st.floats(0.05, 0.9), st.floats(0.05, 2))
def test_the_clipped_surrogate_is_its_formula(tokens, clip_low, clip_high):
    batch = batch_of(tokens)
    loss, statistics = clipped_surrogate(batch, clip_low=clip_low, clip_high=clip_high)
    new, old, advantages, weights, entropy = arrays(batch)
    ratio = np.exp(new - old)
    clipped = np.clip(ratio, 1 - clip_low, 1 + clip_high)
    expected = -np.sum(weights * np.minimum(ratio * advantages, clipped * advantages))
    assert loss.item() == statistics["loss"] == pytest.approx(expected, rel=1e-4, abs=1e-4)
    sums = {"entropy": weights * entropy, "logprob_gap": weights * np.abs(new - old), "weight": weights}
    for name, terms in sums.items():
        assert statistics[name] == pytest.approx(terms.sum(), rel=1e-4, abs=1e-4)
    assert statistics["trained_tokens"] == len(tokens)


@given(TOKENS)
def test_where_the_policy_has_not_moved_the_gradient_is_the_policy_gradient(tokens):
    batch = batch_of([(logprob, 0.0, *rest) for logprob, _, *rest in tokens])
    loss, statistics = clipped_surrogate(batch, clip_low=0.2, clip_high=0.28)
    loss.backward()
    torch.testing.assert_close(batch.logprobs_N.grad, -batch.weights_N * batch.advantages_N)
    assert (statistics["clipped"], statistics["logprob_gap"]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("ratio", "advantage", "pushes"),
    [
        (1.5, 1.0, False),  # good and already likelier: enough
        (1.25, 1.0, True),  # the upper limit is the wider one
        (0.5, 1.0, True),  # good and made unlikely: corrected
        (0.5, -1.0, False),  # bad and already unlikelier: enough
        (0.75, -1.0, False),
        (0.85, -1.0, True),
        (1.5, -1.0, True),  # bad and made likely: corrected
    ],
)
def test_clipping_ends_the_push_and_never_the_correction(ratio, advantage, pushes):
    batch = batch_of([(-2.0, np.log(ratio), advantage, 0.5, 1.0)])
    loss, statistics = clipped_surrogate(batch, clip_low=0.2, clip_high=0.28)
    loss.backward()
    gradient = batch.logprobs_N.grad.item()
    assert gradient == pytest.approx(-0.5 * ratio * advantage if pushes else 0.0)
    assert statistics["clipped"] == (0.0 if 0.8 <= ratio <= 1.28 else 0.5)


@given(TOKENS, st.data())
def test_losses_of_micro_batches_add_up(tokens, data):
    cut = data.draw(st.integers(0, len(tokens)))
    for loss in (negative_log_likelihood, lambda batch: clipped_surrogate(batch, clip_low=0.2, clip_high=0.28)):
        whole = loss(batch_of(tokens))[1]
        parts = [loss(batch_of(part))[1] for part in (tokens[:cut], tokens[cut:])]
        assert whole == pytest.approx({name: parts[0][name] + parts[1][name] for name in whole}, rel=1e-4, abs=1e-4)


@given(TOKENS)
def test_imitation_is_the_weighted_negative_log_likelihood(tokens):
    batch = batch_of(tokens)
    loss, statistics = negative_log_likelihood(batch)
    new, _, _, weights, _ = arrays(batch)
    assert loss.item() == statistics["loss"] == pytest.approx(-(weights * new).sum(), rel=1e-4)
    loss.backward()
    torch.testing.assert_close(batch.logprobs_N.grad, -batch.weights_N)
