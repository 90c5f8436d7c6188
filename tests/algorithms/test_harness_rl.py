import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import GROUPS, groups_of, on_tokens, turns

from whippletree.algorithms.harness_rl import HarnessRL
from whippletree.config import parse
from whippletree.errors import ConfigError
from whippletree.policy.base import TokenBatch

WEIGHTS = ("other_weight", "action_weight", "argument_weight")
"""By the number of the part."""
SETTINGS = st.fixed_dictionaries(
    {
        "grouping": st.sampled_from(["task_harness", "task", "residual"]),
        "weighting": st.sampled_from(["rollout", "token"]),
        "normalise_std": st.booleans(),
        "negative_weight": st.sampled_from([1.0, 0.25]),
        "process_weight": st.sampled_from([0.0, 0.1, 2.0]),
    }
)
PART_WEIGHTS = st.tuples(*[st.sampled_from([0.0, 1.0, 0.5])] * 3).filter(any)


@settings(max_examples=200)
@given(GROUPS, SETTINGS, PART_WEIGHTS)
def test_credit_is_its_formula(described, chosen, weights):
    groups = groups_of(described)
    credit = HarnessRL(**chosen, **dict(zip(WEIGHTS, weights, strict=True))).credit(groups)
    found = on_tokens(credit.samples, "other", "action", "argument")
    expected = reference.harness_rl(groups, **chosen, part_weights=weights)
    assert found.keys() == expected.keys()
    for token, (weight, advantage, part) in expected.items():
        assert found[token][:2] == pytest.approx((weight, advantage), rel=1e-5, abs=1e-6)
        assert found[token][3:] == tuple(float(number == part) for number in range(3))


def test_each_part_weighs_as_much_as_it_is_told_to():
    groups = groups_of([("t", "h", [(1.0, turns(30, 30)), (0.0, turns(30))])])
    credit = HarnessRL(action_weight=2.0, argument_weight=0.5, other_weight=1.0).credit(groups)
    for part, weight in {"action": 2.0, "argument": 0.5, "other": 1.0}.items():
        found = sum(float(sample.weights @ sample.columns[part]) for sample in credit.samples)
        assert found == pytest.approx(weight, rel=1e-5)


@given(st.integers(0, 2**16))
def test_each_part_has_the_clipped_loss_of_its_own_tokens(seed):
    rng = np.random.default_rng(seed)
    new, old, advantage, weight = rng.normal(size=(4, 12))
    part = rng.integers(0, 3, 12)
    own = torch.from_numpy(new).requires_grad_()
    numbers = [torch.from_numpy(array) for array in (new, old, advantage, weight)]
    columns = {name: torch.from_numpy((part == n) * 1.0) for n, name in enumerate(("other", "action", "argument"))}
    batch = TokenBatch(own, numbers[0], *numbers[1:], columns_N=columns)
    terms, statistics = HarnessRL(correction=0.0).loss(0)(batch)
    assert list(terms) == ["action", "argument"]
    for number, name in enumerate(terms, 1):
        at = part == number

        def loss(logprobs, at=at):
            given = (logprobs[at], old[at], advantage[at], weight[at])
            return reference.policy_loss(*given, clip_low=0.2, clip_high=0.28)

        assert terms[name].item() == pytest.approx(loss(new), abs=1e-9) == statistics[f"{name}_loss"]
        (gradient,) = torch.autograd.grad(terms[name], own, retain_graph=True)
        np.testing.assert_allclose(gradient.numpy(), reference.gradient(loss, new), rtol=1e-4, atol=1e-6)
    assert statistics["loss"] == pytest.approx(sum(term.item() for term in terms.values()))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"action_weight": 0, "argument_weight": 0}, "are all 0"),
        ({"action_weight": -1}, "algorithm.action_weight = -1"),
        ({"kinds": ["main", "helper"]}, "helper"),
        ({"kinds": []}, "algorithm.kinds"),
        ({"neurons": 1.5}, "algorithm.neurons = 1.5"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        parse({"algorithm": {"type": "harness-rl", **changes}}, "here")
    with pytest.raises(ConfigError, match="harness-rl compares the rollouts"):
        parse({"algorithm": {"type": "harness-rl"}, "group_size": 1}, "here")


def test_without_masks_the_policy_is_asked_nothing():
    class Nobody:
        pass

    HarnessRL(neurons=0).attach(Nobody())
    with pytest.raises(AttributeError, match="keep_units"):
        HarnessRL().attach(Nobody())
