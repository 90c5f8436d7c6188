import numpy as np
import pytest
import reference
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from whippletree.algorithms.grpo import rollout_log_ratios
from whippletree.algorithms.losses import negative_log_likelihood, policy_loss, value_loss
from whippletree.policy.base import TokenBatch, add_statistics
from whippletree.types import Sample

TOKENS = st.lists(
    st.tuples(
        st.floats(-8, -0.01),  # logprob
        st.floats(-1, 1),  # how far the sampler's is from it
        st.floats(-1, 1),  # and the reference's
        st.floats(-3, 3),  # advantage
        st.floats(0.001, 1),  # weight
        st.floats(-1, 2),  # value
        st.floats(-0.5, 0.5),  # how far it was before
        st.floats(-1, 2),  # return
        st.integers(0, 2),  # rollout
    ),
    min_size=1,
    max_size=20,
)
CLIPS = st.tuples(st.floats(0.05, 0.9), st.floats(0.05, 2))
CLIP = {"clip_low": 0.2, "clip_high": 0.28}


class Tokens:
    """Columns of doubles, and the batch that they make."""

    def __init__(self, tokens):
        columns = np.array(tokens, dtype=np.float64).reshape(-1, 9).T.copy()
        self.new, moved, away, self.advantage, self.weight, self.values, was, self.returns, self.rollout = columns
        self.sampler, self.reference, self.before = self.new - moved, self.new - away, self.values - was
        self.log_ratio = np.zeros_like(self.new)

    def batch(self, *columns, part=slice(None)):
        def tensor(array):
            return torch.from_numpy(array[part].copy())

        given = {
            "reference": self.reference, "values": self.before, "returns": self.returns, "log_ratio": self.log_ratio
        }  # fmt: skip
        return TokenBatch(
            tensor(self.new).requires_grad_(),
            tensor(np.abs(self.new)),
            tensor(self.sampler),
            tensor(self.advantage),
            tensor(self.weight),
            tensor(self.values).requires_grad_(),
            {name: tensor(given[name]) for name in columns},
        )


def near(numbers, edges):
    """Whether a kink is too near for finite differences."""
    return np.min(np.abs(np.subtract.outer(numbers, edges))) < 1e-4


def check(loss, found, expected, leaf, at):
    """The value and the gradient are those of the reference."""
    found.backward()
    assert found.item() == pytest.approx(expected(at), rel=1e-9, abs=1e-9)
    assert found.item() == loss
    np.testing.assert_allclose(leaf.grad, reference.gradient(expected, at), rtol=1e-5, atol=1e-6)


@given(TOKENS, CLIPS, st.sampled_from([0.0, 0.3]))
def test_the_clipped_surrogate_is_its_formula(tokens, clips, kl):
    t, (low, high) = Tokens(tokens), clips
    assume(not near(np.exp(t.new - t.sampler), [1 - low, 1 + high]))
    batch = t.batch("reference")
    loss, statistics = policy_loss(batch, clip_low=low, clip_high=high, kl=kl)

    def expected(new):
        return reference.policy_loss(
            new, t.sampler, t.advantage, t.weight, clip_low=low, clip_high=high, reference=t.reference, kl=kl
        )

    check(statistics["loss"], loss, expected, batch.logprobs_N, t.new)
    away = t.reference - t.new
    sums = {
        "entropy": np.abs(t.new), "logprob_gap": np.abs(t.new - t.sampler), "weight": 1.0,
        **({"kl": np.exp(away) - away - 1} if kl else {}),
    }  # fmt: skip
    for name, terms in sums.items():
        assert statistics[name] == pytest.approx((t.weight * terms).sum(), rel=1e-9)
    assert statistics["trained_tokens"] == len(tokens)


@given(TOKENS, CLIPS, st.floats(0.5, 3), st.sampled_from([0.0, 0.3]))
def test_the_correction_is_a_truncated_factor_of_the_whole_loss(tokens, clips, limit, kl):
    t, (low, high) = Tokens(tokens), clips
    batch = t.batch("reference")
    loss, statistics = policy_loss(batch, clip_low=low, clip_high=high, correction=limit, kl=kl)
    raw, factor = np.exp(t.new - t.sampler), reference.truncated(t.new, t.sampler, limit)

    def expected(new):
        return reference.policy_loss(
            new, t.new, t.advantage, t.weight,
            clip_low=low, clip_high=high, factor=factor, reference=t.reference, kl=kl,
        )  # fmt: skip

    check(statistics["loss"], loss, expected, batch.logprobs_N, t.new)
    assert statistics["clipped"] == 0.0
    assert statistics["correction"] == pytest.approx((t.weight * factor).sum())
    assert statistics["correction_truncated"] == pytest.approx((t.weight * (raw > limit)).sum())
    assert statistics["correction_max"] == pytest.approx(raw.max())


@given(TOKENS, CLIPS)
def test_the_sequence_ratio_has_the_gradient_of_the_sequence_objective(tokens, clips):
    """Tokens carry the ratio of their rollout, computed before; the objective knows rollouts only."""
    t, (low, high) = Tokens(tokens), clips
    names, counts = np.unique(t.rollout, return_counts=True)
    sizes = dict(zip(names, counts, strict=True))
    t.weight = np.array([1 / (len(names) * sizes[one]) for one in t.rollout])
    t.advantage = t.advantage[[np.flatnonzero(t.rollout == one)[0] for one in t.rollout]]
    for one in names:
        where = t.rollout == one
        t.log_ratio[where] = np.mean((t.new - t.sampler)[where])
    assume(not near(np.exp(t.log_ratio), [1 - low, 1 + high]))
    batch = t.batch("log_ratio")
    loss, statistics = policy_loss(batch, clip_low=low, clip_high=high)

    def expected(new):
        return reference.sequence_loss(new, t.sampler, t.advantage, t.rollout, clip_low=low, clip_high=high)

    check(statistics["loss"], loss, expected, batch.logprobs_N, t.new)


def test_the_sequence_is_the_rollout_with_all_its_branches():
    def branch(rollout, weights, gaps):
        ones = np.ones(4, np.float32)
        sampler = -np.array(gaps, np.float32)
        return Sample(np.arange(4), np.array(weights, np.float32), sampler, ones, rollout_id=rollout)

    samples = [branch("a", [0, 1, 1, 0], [9, 1, 2, 9]), branch("b", [0, 0, 0, 1], [9, 9, 9, 5]),
               branch("a", [0, 0, 0, 1], [9, 9, 9, 6])]  # fmt: skip
    found = rollout_log_ratios(samples, [np.zeros(4, np.float32)] * 3)
    assert [array.tolist() for array in found] == [[0, 3, 3, 0], [0, 0, 0, 5], [0, 0, 0, 3]]


@given(TOKENS, st.sampled_from([0.0, 0.2]))
def test_the_value_loss_is_its_formula(tokens, clip):
    t = Tokens(tokens)
    if clip:
        moved = t.values - t.before
        near_returns = t.before + np.clip(moved, -clip, clip) - t.returns
        assume(not near(np.abs(moved), [clip]))
        assume(
            np.min(np.abs(np.abs(t.values - t.returns) - np.abs(near_returns))[np.abs(moved) > clip], initial=1) > 1e-4
        )
    batch = t.batch("returns", "values")
    loss, statistics = value_loss(batch, clip=clip)

    def expected(values):
        return reference.value_loss(values, t.before, t.returns, t.weight, clip=clip)

    check(statistics["value_loss"], loss, expected, batch.values_N, t.values)


@given(TOKENS)
def test_where_the_policy_has_not_moved_the_gradient_is_the_policy_gradient(tokens):
    for correction in (0.0, 2.0):
        t = Tokens(tokens)
        t.sampler = t.new
        batch = t.batch()
        loss, statistics = policy_loss(batch, **CLIP, correction=correction)
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
    batch = Tokens([(-2.0, np.log(ratio), 0, advantage, 0.5, 0, 0, 0, 0)]).batch()
    loss, statistics = policy_loss(batch, **CLIP)
    loss.backward()
    gradient = batch.logprobs_N.grad.item()
    assert gradient == pytest.approx(-0.5 * ratio * advantage if pushes else 0.0)
    assert statistics["clipped"] == (0.0 if 0.8 <= ratio <= 1.28 else 0.5)


@given(TOKENS, st.data())
def test_losses_of_micro_batches_add_up(tokens, data):
    t, cut = Tokens(tokens), data.draw(st.integers(0, len(tokens)))

    def corrected(batch):
        return policy_loss(batch, **CLIP, correction=2.0, kl=0.1)

    for loss in (negative_log_likelihood, corrected, lambda batch: value_loss(batch, clip=0.2)):
        columns = ("reference", "returns", "values")
        whole, parts = loss(t.batch(*columns))[1], {}
        for part in (slice(cut), slice(cut, None)):
            add_statistics(parts, loss(t.batch(*columns, part=part))[1])
        assert whole == pytest.approx(parts, rel=1e-9, abs=1e-9)


@given(TOKENS)
def test_imitation_is_the_weighted_negative_log_likelihood(tokens):
    t = Tokens(tokens)
    batch = t.batch()
    loss, statistics = negative_log_likelihood(batch)
    assert loss.item() == statistics["loss"] == pytest.approx(-(t.weight * t.new).sum(), rel=1e-9)
    loss.backward()
    torch.testing.assert_close(batch.logprobs_N.grad, -batch.weights_N)
